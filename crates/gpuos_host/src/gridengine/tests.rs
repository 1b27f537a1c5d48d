use super::*;
use crate::Recorded;

fn id(name: &str) -> JobId {
    name.parse().expect("an id")
}

/// Job 7 of ann's, whose only task runs since then; 0: it waits.
fn qstat(since: u32, context: &str) -> String {
    let status = if since == 0 { 0 } else { 128 };
    format!(
        "<?xml version='1.0'?>\n<detailed_job_info  xmlns:xsd=\"http://x\"><djob_info><element><JB_job_number>7</JB_job_number>\
         <JB_owner>ann</JB_owner><JB_uid>1000</JB_uid><JB_gid>1001</JB_gid><JB_ja_tasks><ulong_sublist><JAT_status>{status}</JAT_status>\
         <JAT_task_number>1</JAT_task_number><JAT_start_time>{since}</JAT_start_time></ulong_sublist></JB_ja_tasks>{context}\
         <JB_checkpoint_name>gpuos</JB_checkpoint_name><JB_restart>0</JB_restart></element></djob_info></detailed_job_info>\n"
    )
}

const GONE: &str =
    "<?xml version='1.0'?>\n<unknown_jobs >\n    <ST_name>7</ST_name>\n</unknown_jobs>\n";

fn runs_on(host: &str) -> String {
    format!(
        "<?xml version='1.0'?>\n<job_info  xmlns:xsd=\"http://x\"><queue_info><job_list state=\"running\"><JB_job_number>7</JB_job_number>\
         <JB_name>x%lt;queue_name&gt;gpu.q@n9</JB_name><JB_owner>ann</JB_owner><state>r</state><queue_name>gpu.q@{host}</queue_name>\
         <slots>1</slots></job_list></queue_info><job_info></job_info></job_info>\n"
    )
}

fn machine(of_job: &str, of_user: &str) -> Recorded {
    Recorded::default()
        .command("qstat -xml -j 7", of_job)
        .command("qstat -xml -s rs -u ann", of_user)
        .command("qconf -sel", "n1.example.org\nn2\n")
}

fn host(of_job: &str, of_user: &str) -> Execd {
    Execd::new("n1", Arc::new(machine(of_job, of_user)))
}

fn told(execd: &Execd, since: u64, hosts: &str) {
    let job = MomJob {
        job: id("7.1"),
        user: "ann".into(),
        uid: 1000,
        run: since,
        hosts: hosts.into(),
        checkpoints: true,
        ..MomJob::default()
    };
    let report = MomReport {
        jobs: vec![job],
        ..MomReport::default()
    };
    execd.told(&report).expect("it is told");
}

/// Lets what was told be so old that sge_qmaster is asked.
fn age(execd: &Execd) {
    for held in execd.lock().here.values_mut() {
        held.seen = Instant::now().checked_sub(LOOK).expect("a time");
    }
}

#[test]
fn a_job_is_here_from_its_prolog_to_its_epilog() {
    // sge_qmaster is not asked while it holds.
    let execd = Execd::new("n1", Arc::new(Recorded::default()));
    assert!(execd.job(&id("7.1")).is_err());
    told(&execd, 500, "n1");
    let record = execd.job(&id("7.1")).unwrap().expect("it is here");
    assert_eq!(
        (record.restarts, record.uid, record.state),
        (500, 1000, JobState::Running)
    );
    assert_eq!(record.nodes, ["n1"]);
    // While it does not answer the job is as it was.
    age(&execd);
    assert!(execd.job(&id("7.1")).unwrap().is_some());
    told(&execd, 0, "");
    assert!(execd.job(&id("7.1")).is_err());
}

#[test]
fn an_epilog_that_did_not_run_is_noticed() {
    for (answer, is_known) in [(qstat(0, ""), true), (GONE.into(), false)] {
        let execd = host(&answer, "");
        told(&execd, 500, "n1");
        assert!(
            execd
                .job(&id("7.1"))
                .unwrap()
                .is_some_and(|job| job.is_running())
        );
        age(&execd);
        let record = execd.job(&id("7.1")).unwrap();
        assert_eq!(record.is_some(), is_known);
        assert!(record.is_none_or(|job| job.state == JobState::Waiting && job.nodes.is_empty()));
        assert_eq!(execd.jobs().unwrap(), []);
    }
}

#[test]
fn a_job_that_has_ended_here_is_not_here_while_qmaster_still_says_so() {
    let execd = host(&qstat(500, ""), &runs_on("n1.example.org"));
    // As after a start of gpuos_mover: nobody has told of it.
    let record = execd.job(&id("7.1")).unwrap().expect("it is here");
    assert_eq!(
        (record.restarts, &record.nodes[..]),
        (500, &["n1".to_string()][..])
    );
    told(&execd, 0, "");
    let record = execd.job(&id("7.1")).unwrap().expect("it ends");
    assert_eq!((record.state, record.nodes.len()), (JobState::Ending, 0));
    // Its next run on this host is another one.
    told(&execd, 501, "n1");
    assert_eq!(
        execd.job(&id("7.1")).unwrap().expect("it is here").restarts,
        501
    );
}

#[test]
fn another_host_is_asked_for_what_it_keeps_where_the_job_was() {
    let entry =
        |name: &str| format!("<context_list><VA_variable>{name}</VA_variable></context_list>");
    let names = [
        "gpuos_at_n2",
        "gpuos_at_evil.example.org",
        "gpuos_at_n3",
        "gpuos_at_-x",
        "gpuos_at_",
        "n1",
    ];
    let context = format!("<JB_context>{}</JB_context>", names.map(entry).concat());
    let execd = host(&qstat(500, &context), &runs_on("n2"));
    let record = execd.job_anywhere(&id("7.1")).unwrap().expect("it runs");
    assert_eq!(record.nodes, ["n2"]);
    let holders = execd.holders(&id("7.1")).unwrap();
    // What is no exec host was written by the job's user.
    assert_eq!(
        holders.iter().map(|one| &one.node[..]).collect::<Vec<_>>(),
        ["n2"]
    );
    for other in ["7", "7.0", "07.1", "x", "7.1.1"] {
        assert!(execd.job(&id(other)).is_err(), "{other}");
    }
}

#[test]
fn hosts_are_remembered_by_names_alone() {
    let machine =
        machine("", "").command("qalter -ac gpuos_at_n1 7", "modified context of job 7\n");
    assert_eq!(remember(&machine, &id("7.1"), "n1"), Ok(()));
    for bad in ["", "-n1", "n1,x=y", "n1=2", "N1", "a.b"] {
        assert!(remember(&machine, &id("7.1"), bad).is_err(), "{bad}");
    }
}
