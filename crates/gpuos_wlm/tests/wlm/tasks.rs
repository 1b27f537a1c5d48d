//! Tasks whose checkpoints gpuos_mover keeps, by what `qstat -xml` of 8.1.9 printed.

use gpuos_wlm::gridengine::task::{Task, host, host_entry, is_spread, known, numbers};
use proptest::prelude::*;

/// An array of which tasks 3 and 4 run, one of a job that waits for its restart, and one of two tasks of different states.
fn record(tasks: &[(u32, u32, u32)], context: &[(&str, &str)], environment: &str) -> String {
    let task = |(status, number, start): &(u32, u32, u32)| {
        format!(
            "<ulong_sublist><JAT_status>{status}</JAT_status><JAT_task_number>{number}</JAT_task_number><JAT_scaled_usage_list><scaled>\
             <UA_name>cpu</UA_name><UA_value>128</UA_value></scaled></JAT_scaled_usage_list><JAT_start_time>{start}</JAT_start_time>\
             </ulong_sublist>"
        )
    };
    let pair = |(name, value): &(&str, &str)| {
        format!(
            "<context_list><VA_variable>{name}</VA_variable><VA_value>{value}</VA_value></context_list>"
        )
    };
    let tasks: String = tasks.iter().map(task).collect();
    let context: String = context.iter().map(pair).collect();
    format!(
        "<?xml version='1.0'?>\n<detailed_job_info  xmlns:xsd=\"http://x\">\n<djob_info>\n<element>\n<JB_job_number>7</JB_job_number>\n\
         <JB_owner>ann</JB_owner><JB_uid>1001</JB_uid><JB_gid>1002</JB_gid>\n<JB_ja_tasks>{tasks}</JB_ja_tasks><JB_context>{context}\
         </JB_context><JB_checkpoint_name>{environment}</JB_checkpoint_name><JB_restart>0</JB_restart></element>\n</djob_info>\n\
         </detailed_job_info>\n"
    )
}

fn read(text: &str, task: &str) -> Task {
    Task::read(text, "7", task).unwrap().expect("the job")
}

#[test]
fn a_run_is_known_by_the_moment_at_which_it_was_given_its_host() {
    let text = record(
        &[(128, 3, 500), (512, 4, 501), (0, 5, 0), (0, 6, 499)],
        &[],
        "gpuos",
    );
    let since = |task| read(&text, task).since;
    assert_eq!(
        ["3", "4", "5", "6", "7"].map(since),
        [Some(500), Some(501), None, None, None]
    );
    let task = read(&text, "3");
    assert_eq!((&task.user[..], task.uid, task.gid), ("ann", 1001, 1002));
    assert!(task.may_rerun);
    // Suspended it has its host still.
    assert_eq!(
        read(&record(&[(0x180, 1, 9)], &[], "gpuos"), "1").since,
        Some(9)
    );
}

#[test]
fn a_job_says_how_often_and_another_environment_is_none_of_ours() {
    let asked = |context: &[(&str, &str)], environment| {
        Task::read(&record(&[], context, environment), "7", "1")
            .map(|task| task.expect("the job").asked)
    };
    let said = |context| asked(context, "gpuos").unwrap();
    assert_eq!(said(&[]).as_deref(), Some("auto"));
    assert_eq!(said(&[("gpuos_checkpoint", "10m")]).as_deref(), Some("10m"));
    let parts = said(&[("gpuos_checkpoint", "10m+l3=every:2")]);
    assert_eq!(parts.as_deref(), Some("10m,l3=every:2"));
    assert_eq!(said(&[("gpuos_checkpoint", "off")]), None);
    assert_eq!(asked(&[("gpuos_checkpoint", "10m")], "berkeley"), Ok(None));
    for bad in ["soon", "10m+l0=1G", "10m+restart=7", ""] {
        assert!(
            asked(&[("gpuos_checkpoint", bad)], "gpuos").is_err(),
            "{bad}"
        );
    }
}

#[test]
fn a_job_that_is_gone_is_told_from_no_answer() {
    let gone =
        "<?xml version='1.0'?>\n<unknown_jobs >\n    <ST_name>7</ST_name>\n</unknown_jobs>\n";
    assert_eq!(Task::read(gone, "7", "1"), Ok(None));
    for bad in [
        "",
        "error: commlib",
        &gone.replace('7', "8"),
        &gone.replace("</ST_name>", ""),
    ] {
        assert!(Task::read(bad, "7", "1").is_err(), "{bad}");
    }
    let other = record(&[], &[], "gpuos").replace("<JB_job_number>7<", "<JB_job_number>8<");
    assert!(Task::read(&other, "7", "1").is_err());
}

#[test]
fn where_a_task_runs_is_the_queue_and_not_what_a_user_wrote() {
    let job = |number: u32, task: &str, queue: &str| {
        format!(
            "<job_list state=\"running\"><JB_job_number>{number}</JB_job_number><JB_name>x%lt;queue_name&gt;q@n9</JB_name><state>r</state>\
             <queue_name>{queue}</queue_name><slots>1</slots>{task}</job_list>"
        )
    };
    let list = |jobs: &str| {
        format!(
            "<?xml version='1.0'?>\n<job_info  xmlns:xsd=\"http://x\"><queue_info>{jobs}</queue_info><job_info></job_info></job_info>\n"
        )
    };
    let text = list(
        &[
            job(6, "", "gpu.q@n4"),
            job(7, "<tasks>3</tasks>", "gpu.q@n1"),
            job(7, "<tasks>4</tasks>", "gpu.q@N2.example.org"),
            job(8, "", "gpu.q@n5"),
        ]
        .concat(),
    );
    let on = |number, task| host(&text, number, task).unwrap();
    assert_eq!(on("7", "3").as_deref(), Some("n1"));
    assert_eq!(on("7", "4").as_deref(), Some("n2"));
    assert_eq!(on("8", "1").as_deref(), Some("n5"));
    assert_eq!(
        (on("7", "1"), on("9", "1"), on("6", "2")),
        (None, None, None)
    );
    assert_eq!(host(&list(&job(7, "", "q@a/../b")), "7", "1"), Ok(None));
    assert!(host(&text[..200], "7", "1").is_err());
}

#[test]
fn hosts_of_a_job_are_exec_hosts_or_nothing() {
    let names = [
        "gpuos_at_n1",
        "gpuos_at_n2",
        "gpuos_at_a.b",
        "gpuos_at_x,y",
        "gpuos_at_-v",
        "gpuos_at_",
        "at_n3",
    ];
    let context = names.map(|name| (name, ""));
    let task = read(&record(&[], &context, "gpuos"), "1");
    assert_eq!(task.hosts, ["n1", "n2"]);
    assert_eq!(known("n2.example.org\nN3\n", &task.hosts), ["n2"]);
    assert_eq!(host_entry("n1").as_deref(), Some("gpuos_at_n1"));
    assert_eq!(
        (host_entry("a,b"), host_entry(""), host_entry("A")),
        (None, None, None)
    );
    assert!(
        !is_spread("n1.x 2 gpu.q@n1.x UNDEFINED\nn1 1 other.q@n1 UNDEFINED\n") && !is_spread("")
    );
    assert!(is_spread(
        "n1 2 gpu.q@n1 UNDEFINED\nn2 1 gpu.q@n2 UNDEFINED\n"
    ));
    assert_eq!(numbers("17.1"), Some(("17", "1")));
    for bad in [
        "17",
        "17.0",
        "017.1",
        "17.x",
        "17.1.1",
        ".1",
        "17.",
        "17.undefined",
    ] {
        assert_eq!(numbers(bad), None, "{bad}");
    }
}

proptest! {
    #[test]
    fn no_text_makes_it_fail(text in "\\PC{0,60}", inside in "[<>/a-zA-Z_0-9=\" ]{0,60}") {
        for text in [&text, &inside, &record(&[], &[("k", &inside)], "gpuos")] {
            let _ = Task::read(text, "7", "1");
            let _ = host(text, "7", "1");
        }
    }
}
