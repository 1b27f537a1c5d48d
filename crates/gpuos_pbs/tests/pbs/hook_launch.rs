//! Programs that are about to be started: what they find of their GPUs, by what gpuosd has chosen.

use gpuos_core::wire::{MomJob, MomOrders, Reply, Request};
use gpuos_pbs::hook::Step;
use gpuos_pbs::hook::talk::Daemon;
use serde_json::{Value, json};

use crate::hook_talks::{
    alone, choice, done, edits, gpus, launch, made, notes, orders, question, refusal, told,
};

/// What a program finds whose job has these GPUs by gpuosd's word.
fn found(event: &Value, chosen: &[usize]) -> std::collections::BTreeMap<String, String> {
    let said = done(event, Ok(&[choice("1.head", chosen, "")]));
    assert_eq!(notes(&said), "");
    made(&said)
}

fn job(event: &Value) -> MomJob {
    let question = question(event);
    match &told(&question, Daemon::Gpuosd)[..] {
        [Request::Mom { report }] if report.jobs.len() == 1 && !report.all => {
            report.jobs[0].clone()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn gpuosd_is_asked_which_gpus_a_job_has() {
    let mut event = launch("(n1:ncpus=4:ngpus=2)+(n2:ngpus=1)+(n1:ngpus=1)");
    event["job"]["resources"] = json!({ "gpuos_topology": "NVLINK:required" });
    let job = job(&event);
    assert_eq!((job.count, job.gpus.len(), job.parts), (3, 0, 0));
    assert_eq!(
        (&job.topology[..], &job.hosts[..], &job.script_on[..]),
        ("nvlink:required", "n[1-2]", "n1")
    );
    assert_eq!((job.uid, job.run), (7, 2));
    let question = question(&event);
    let talk = &question.talks[0];
    assert_eq!((talk.answers, &talk.socket[..]), (2, "/run/g.sock.root"));
    // What had them before may have ended just now; for another program than the first mom itself waits.
    assert!(talk.patience_ms >= 5_000, "{}", talk.patience_ms);
    event["first"] = false.into();
    assert!(crate::hook_talks::question(&event).talks[0].patience_ms <= 3_000);
}

#[test]
fn a_program_is_told_what_gpuosd_has_chosen() {
    let event = launch("(n1:ncpus=1:ngpus=2)");
    let said = found(&event, &[3, 2]);
    assert_eq!(
        said["CUDA_VISIBLE_DEVICES"], "GPU-n1-2\\,GPU-n1-3",
        "PBS wants commas with a backslash"
    );
    assert_eq!(said["CUDA_DEVICE_ORDER"], "PCI_BUS_ID");
    assert_eq!(
        (&said["GPUOS_GPUS"][..], &said["GPUOS_LEVEL"][..]),
        ("2\\,3", "nvlink")
    );
    assert_eq!(found(&event, &[1, 2])["GPUOS_LEVEL"], "node");
    let one = found(&launch("(n1:ngpus=1)"), &[1]);
    assert_eq!(
        (&one["GPUOS_LEVEL"][..], &one["CUDA_VISIBLE_DEVICES"][..]),
        ("node", "GPU-n1-1")
    );
    let mut subjob = launch("(n1:ngpus=1)");
    subjob["job"]["id"] = "12[3].head".into();
    let said = done(&subjob, Ok(&[choice("12[3].head", &[2], "")]));
    assert_eq!(made(&said)["GPUOS_GPUS"], "2");
    // Without their names, or with such as CUDA does not take, numbers.
    for uuid in ["", "a,LD_PRELOAD=/tmp/x", "GPU 1"] {
        let mut event = launch("(n1:ngpus=2)");
        event["hosts"]["n1"]["gpus"][2]["uuid"] = uuid.into();
        assert_eq!(
            found(&event, &[1, 2])["CUDA_VISIBLE_DEVICES"],
            "1\\,2",
            "{uuid}"
        );
    }
}

/// Which GPUs a job has of other hosts is not known here: all of theirs have to be near enough.
#[test]
fn the_level_over_hosts_is_what_is_sure() {
    let level = |given: &str, change: &dyn Fn(&mut Value)| {
        let mut event = launch(given);
        change(&mut event);
        found(&event, &[0, 1]).get("GPUOS_LEVEL").cloned()
    };
    let as_is = |_: &mut Value| {};
    let rack = |event: &mut Value| {
        for host in ["n1", "n2"] {
            for gpu in event["hosts"][host]["gpus"].as_array_mut().expect("GPUs") {
                gpu["nvlink"] = "rack7".into();
            }
        }
    };
    let two = "(n1:ngpus=2)+(n2:ngpus=2)";
    assert_eq!(level(two, &as_is).as_deref(), Some("leaf"));
    assert_eq!(level("(n1:ngpus=2)+(n3:ngpus=2)", &as_is), None);
    assert_eq!(
        level("(n1:ngpus=2)+(n9:ngpus=2)", &as_is),
        None,
        "nobody describes it"
    );
    assert_eq!(level(two, &rack).as_deref(), Some("nvlink"));
    let mixed = |event: &mut Value| {
        rack(event);
        event["hosts"]["n2"]["gpus"][3]["nvlink"] = "other".into();
    };
    assert_eq!(level(two, &mixed).as_deref(), Some("leaf"));
    let nowhere = |event: &mut Value| {
        for host in ["n1", "n2"] {
            event["hosts"][host]["leaf"] = "".into();
        }
    };
    assert_eq!(level(two, &nowhere), None, "no leaf has no name in common");
}

/// As in PBS without gpuos.
#[test]
fn without_a_choice_a_program_starts_with_all_of_the_host_and_is_told_why() {
    let event = launch("(n1:ncpus=1:ngpus=2)");
    let other = choice("2.head", &[1], "");
    let none = orders(MomOrders::default());
    let refused = Reply::Refused {
        code: gpuos_core::wire::Code::Failed,
        message: "no".into(),
    };
    let cases: [(Result<&[Reply], &str>, &str); 6] = [
        (
            Err(""),
            "gpuosd does not run on this host; tell your administrator",
        ),
        (
            Err("it took longer than 10000 ms"),
            "gave no answer: it took longer than 10000 ms",
        ),
        (Ok(&[]), "it ended before it had answered"),
        (Ok(&[none]), "of another release"),
        (Ok(&[other]), "of another release"),
        (Ok(&[refused]), "of another release"),
    ];
    for (said, why) in cases {
        let said = done(&event, said);
        assert!(edits(&said).is_empty(), "{said}");
        let note = notes(&said);
        assert!(
            note.contains("find all of the host as in PBS without gpuos: ") && note.contains(why),
            "{note}"
        );
    }
    // A site where gpuosd is not asked.
    let mut event = event;
    event["gpuosd"] = "".into();
    let said = alone(&event);
    assert!(
        edits(&said).is_empty() && notes(&said).contains("gpuosd is not told of jobs"),
        "{said}"
    );
}

/// PBS has counted what is not there, and its hook holds that against a job that says nothing to gpuos, too.
#[test]
fn a_choice_that_is_refused_has_the_job_queued_again_by_its_first_program_alone() {
    let refused = choice("1.head", &[], "GPU 3 has just gone out of service");
    let said = |event: &Value| done(event, Ok(std::slice::from_ref(&refused)));
    let mut event = launch("(n1:ngpus=1)+(n2:ngpus=1)");
    let first = said(&event);
    assert_eq!(
        refusal(&first),
        "the GPUs of this job are not there, and it is queued again: GPU 3 has just gone out of service"
    );
    assert_eq!(
        (&first["must"], &first["edits"]),
        (&json!(true), &json!([{ "set": "requeue" }]))
    );
    event["first"] = false.into();
    let later = said(&event);
    event["first"] = true.into();
    event["job"]["exec_vnode"] = "(n2:ngpus=1)+(n1:ngpus=1)".into();
    let sister = said(&event);
    for said in [later, sister] {
        assert!(
            refusal(&said).contains("and this program of it is not started: "),
            "{said}"
        );
        assert_eq!((&said["must"], &said["edits"]), (&json!(true), &json!([])));
    }
}

/// Of a release that made a vnode of each GPU.
#[test]
fn a_job_on_former_vnodes_keeps_exactly_their_gpus() {
    let mut event = launch("(n1[3]:ncpus=1:ngpus=1+n1[2]:ngpus=1)+(n2[0]:ngpus=1)");
    event["hosts"]["n1"]["former"] = json!([2, 3]);
    let job = job(&event);
    assert_eq!((job.count, job.gpus), (0, gpus(&[2, 3])));
    // Nobody has to choose: whatever becomes of that, it has them.
    let talk = &question(&event).talks[0];
    assert_eq!(talk.answers, 0);
    for said in [Ok(&[][..]), Err("")] {
        let said = done(&event, said);
        let found = made(&said);
        assert_eq!(
            (
                &found["CUDA_VISIBLE_DEVICES"][..],
                &found["GPUOS_LEVEL"][..]
            ),
            ("GPU-n1-2\\,GPU-n1-3", "leaf")
        );
        assert_eq!(notes(&said), "");
    }
    // Some of either kind.
    event["job"]["exec_vnode"] = "(n1[3]:ngpus=1)+(n1:ngpus=1)".into();
    assert_eq!(found(&event, &[0])["GPUOS_GPUS"], "0\\,3");
    // On a host that its site divides by sockets the same name is a socket.
    let socket = launch("(n1[1]:ncpus=4:ngpus=2)");
    assert_eq!(found(&socket, &[2, 3])["GPUOS_GPUS"], "2\\,3");
}

#[test]
fn jobs_without_gpus_of_this_host_are_started_as_they_are() {
    for given in [
        "",
        "(n1:ncpus=4)",
        "(n2:ngpus=1)",
        "(n1:ncpus=1:ngpus=0)",
        "(((",
        "(n1",
    ] {
        let said = alone(&launch(given));
        assert!(
            edits(&said).is_empty() && notes(&said).is_empty(),
            "{given}: {said}"
        );
    }
    let mut unknown = launch("(n1:ngpus=2)");
    unknown["hosts"] = json!({ "n2": { "gpus": [{}] } });
    assert!(edits(&alone(&unknown)).is_empty(), "nobody describes it");
    let said = alone(&launch("(n1:ngpus=1"));
    assert!(
        refusal(&said).contains("cannot read exec_vnode"),
        "its GPUs would be unknown: {said}"
    );
}

/// Of 24,000 GPUs the texts have more than a MiB.
#[test]
fn a_program_of_a_very_large_job_is_told_its_gpus() {
    let host = |host: usize| {
        (
            format!("n{host}"),
            json!({ "leaf": "l1", "gpus": [{}, {}, {}, {}, {}, {}, {}, {}] }),
        )
    };
    let hosts: serde_json::Map<String, Value> = (0..24_000).map(host).collect();
    let given: Vec<String> = (0..24_000)
        .map(|host| format!("(n{host}:ncpus=14:mem=257949696kb:ngpus=1:gpuos_leaf=l1)"))
        .collect();
    let given = given.join("+");
    assert!(given.len() > 1 << 20);
    let mut event = launch(&given);
    event["hosts"] = hosts.into();
    assert_eq!(found(&event, &[5])["GPUOS_LEVEL"], "leaf");
    event["hosts"]["n23999"]["leaf"] = "l2".into();
    let said = found(&event, &[5]);
    assert_eq!(
        (said.get("GPUOS_LEVEL"), &said["GPUOS_GPUS"][..]),
        (None, "5")
    );
}

/// OpenPBS 22.05.11 and 23.06.06 keep the note of a hook of a mom for ever, and each end of the job is then another start.
#[test]
fn a_run_after_one_that_a_hook_has_ended_is_begun_twice_where_pbs_server_forgets_nothing() {
    let launch = |change: fn(&mut Value)| {
        let mut event = json!({
            "schema": "gpuos.pbs/1", "event": "execjob_launch", "host": "n1.site", "gpuosd": "/run/g.sock",
            "hosts": { "n1": { "gpus": [{ "uuid": "GPU-a" }] } },
            "job": { "id": "7.head", "exec_vnode": "(n1:ngpus=1)", "user": "ann", "uid": 1000, "run": 2 },
        });
        change(&mut event);
        match gpuos_pbs::hook::begin(&event.to_string()) {
            Step::Done(said) => serde_json::from_str(&said).expect("JSON"),
            Step::Ask(_) => json!({ "verdict": "gpuosd is asked" }),
        }
    };
    let asked: Value = launch(|_| ());
    assert_eq!(
        asked["ask"],
        json!({ "vnodes": [], "jobs": ["7.head"] }),
        "{asked}"
    );
    let said: Value = launch(|event| {
        event["server"] = json!({ "jobs": { "7.head": { "exit": -18, "rerun": true } } })
    });
    assert_eq!(
        (&said["verdict"], &said["must"]),
        (&json!("reject"), &json!(true)),
        "{said}"
    );
    let others: [fn(&mut Value); 6] = [
        |event| event["server"] = json!({ "jobs": { "7.head": { "exit": -16 } } }),
        |event| event["server"] = json!({ "jobs": { "7.head": { "exit": null } } }),
        // pbs_server is away, or has cleared it.
        |event| event["server"] = json!({}),
        |event| event["job"]["run"] = json!(1),
        |event| event["first"] = json!(false),
        // Its script is elsewhere, and what is refused here ends nothing.
        |event| event["job"]["exec_vnode"] = json!("(n2:ngpus=1)+(n1:ngpus=1)"),
    ];
    for other in others {
        let said: Value = launch(other);
        assert_eq!(said["verdict"], "gpuosd is asked", "{said}");
    }
    let without: Value = launch(|event| event["job"]["exec_vnode"] = json!("(n1:ncpus=1)"));
    assert_eq!(without["verdict"], "accept", "{without}");
    assert!(without["ask"].is_null(), "{without}");
}
