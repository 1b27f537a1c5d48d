//! Jobs with checkpoints in PBS: who may have them, what gpuos_mover is told, and what its answers do.

use gpuos_core::wire::{CheckpointRequest, MomOrders, MomReport, Reply, Request};
use gpuos_pbs::hook::question::Question;
use gpuos_pbs::hook::talk::Daemon;
use gpuos_pbs::hook::{Step, answer, begin};
use serde_json::{Value, json};

use crate::hook_talks::{lines, question, told};

fn event(mut event: Value) -> Value {
    event["schema"] = json!("gpuos.pbs/1");
    event
}

fn decided(what: Value) -> Value {
    serde_json::from_str(&answer(&event(what).to_string())).expect("an answer")
}

fn report(question: &Question) -> MomReport {
    match told(question, Daemon::Mover).into_iter().next() {
        Some(Request::Mom { report }) => *report,
        other => panic!("{other:?}"),
    }
}

fn submitted(checkpoints: bool, value: &str) -> Value {
    decided(json!({
        "event": "queuejob", "checkpoints": checkpoints,
        "job": { "resources": { "select": "1:ncpus=1", "gpuos_checkpoint": value } },
    }))
}

#[test]
fn a_job_may_ask_for_checkpoints_where_the_site_keeps_them() {
    for value in ["10m", "auto,l2=rs:6+2", "off"] {
        assert_eq!(submitted(true, value)["verdict"], "accept", "{value}");
    }
    let refused = submitted(false, "10m");
    assert_eq!(refused["verdict"], "reject");
    let why = refused["message"].as_str().expect("a sentence");
    assert!(
        why.contains("-l gpuos_checkpoint") && why.contains("no checkpoints are kept here"),
        "{why}"
    );
    assert_eq!(submitted(false, "off")["verdict"], "accept");
    let wrong = submitted(true, "soon");
    let why = wrong["message"].as_str().expect("a sentence");
    assert!(why.contains("-l gpuos_checkpoint=soon"), "{why}");
}

#[test]
fn a_start_keeps_the_names_of_the_hosts_that_the_job_has_had() {
    let start = |id: &str, known: &str, given: &str| {
        let said = decided(json!({
            "event": "runjob", "checkpoints": true,
            "job": { "id": id, "exec_vnode": given, "resources": { "gpuos_checkpoint": "10m", "gpuos_hosts": known } },
        }));
        assert_eq!(said["verdict"], "accept");
        said["edits"].clone()
    };
    let edit = |value: &str| json!([{ "set": "resource", "name": "gpuos_hosts", "value": value }]);
    assert_eq!(
        start("1.head", "", "(n1:ngpus=1)+(n2:ncpus=1)"),
        edit("n[1-2]")
    );
    assert_eq!(start("1.head", "n[1-2]", "(n3:ncpus=1)"), edit("n[1-3]"));
    assert_eq!(start("1.head", "n[1-2]", "(n2:ncpus=1)"), json!([]));
    // Nothing of a subjob may be changed, and what cannot be read is no list.
    assert_eq!(start("1[2].head", "", "(n1:ncpus=1)"), json!([]));
    assert_eq!(start("1.head", "n[1-", "(n3:ncpus=1)"), edit("n3"));
    // Without checkpoints there is nothing to be kept.
    let said = decided(json!({
        "event": "runjob", "job": { "id": "1.head", "exec_vnode": "(n1:ncpus=1)", "resources": { "gpuos_checkpoint": "off" } },
    }));
    assert_eq!(said["edits"], json!([]));
}

fn launch() -> Value {
    json!({
        "event": "execjob_launch", "server": {}, "host": "n2", "gpuosd": "/run/g.sock", "mover": "/run/m.sock",
        "job": {
            "id": "1.head", "exec_vnode": "(n2:ncpus=1)+(n1:ncpus=1)+(n2:ncpus=1)", "user": "ann", "uid": 7, "gid": 8, "run": 2, "ends_in": 60,
            "resources": { "gpuos_checkpoint": "10m", "gpuos_hosts": "n[1-3]" },
        },
    })
}

#[test]
fn a_program_is_started_with_the_folder_that_the_mover_makes() {
    let asked = question(&launch());
    let all = told(&asked, Daemon::Mover);
    let job = &report(&asked).jobs[0];
    assert_eq!(
        (
            job.hosts.as_str(),
            job.script_on.as_str(),
            job.former.as_str()
        ),
        ("n[2,1]", "n2", "n[1-3]")
    );
    assert_eq!(
        (
            job.run,
            job.ends_in_s,
            job.may_rerun.is_none(),
            job.checkpoints
        ),
        (2, Some(60), true, true)
    );
    let Request::Checkpoint {
        what:
            CheckpointRequest::Step {
                id,
                uid,
                gid,
                asked: value,
                ..
            },
    } = &all[1]
    else {
        panic!("{all:?}");
    };
    assert_eq!(
        (id.job.to_string(), *uid, *gid, value.as_str()),
        ("1.head".into(), 7, 8, "10m")
    );

    let prepared = |folder: Option<&str>, notes: &[&str]| Reply::Prepared {
        notes: notes.iter().map(ToString::to_string).collect(),
        environment: folder
            .map(|folder| ("GPUOS_CHECKPOINT_DIR".into(), folder.into()))
            .into_iter()
            .collect(),
        failed: None,
    };
    let orders = Reply::Mom {
        orders: Box::default(),
    };
    let done = |said: Result<Vec<u8>, String>| -> Value {
        serde_json::from_str(&asked.answer(&[said])).expect("an answer")
    };
    let ok = done(Ok(lines(&[
        orders.clone(),
        prepared(Some("/var/lib/gpuos/jobs/1.head"), &["a note"]),
    ])));
    let folder = json!([{ "set": "env", "name": "GPUOS_CHECKPOINT_DIR", "value": "/var/lib/gpuos/jobs/1.head" }]);
    assert_eq!(
        (&ok["verdict"], &ok["edits"], &ok["notes"]),
        (&json!("accept"), &folder, &json!(["a note"]))
    );
    // Without a mover, or with one that says no, the program runs all the same, and is told.
    let refused = Reply::Refused {
        code: gpuos_core::wire::Code::Failed,
        message: "a disk is full".into(),
    };
    for (said, why) in [
        (Err(String::new()), "does not run on this host"),
        (Err("it took longer than 6000 ms".into()), "6000 ms"),
        (Ok(lines(&[orders, refused])), "a disk is full"),
        (Ok(b"{}\n".to_vec()), "gpuos_mover"),
    ] {
        let said = done(said);
        assert_eq!(
            (&said["verdict"], &said["edits"]),
            (&json!("accept"), &json!([]))
        );
        let note = said["notes"][0].as_str().expect("a note");
        assert!(
            note.starts_with("the program has no checkpoints: ") && note.contains(why),
            "{note}"
        );
    }
    // A job that wants none, and a user whom the host does not know.
    for (key, value) in [
        ("resources", json!({ "gpuos_checkpoint": "off" })),
        ("uid", Value::Null),
    ] {
        let mut other = launch();
        other["job"][key] = value;
        assert!(matches!(begin(&event(other).to_string()), Step::Done(_)));
    }
}

fn periodic(server: Value) -> Value {
    let job = |value: &str| {
        json!({
            "exec_vnode": "(n1:ncpus=1)", "session": 100, "user": "ann", "uid": 7, "gid": 7, "run": 1,
            "resources": { "gpuos_checkpoint": value },
        })
    };
    let mut event = json!({
        "event": "exechost_periodic", "host": "n1", "mover": "/run/m.sock", "vnodes": { "n1": {} },
        "jobs": { "1.head": job("10m"), "2.head": job("off") },
    });
    if !server.is_null() {
        event["server"] = server;
        event["turn"] = json!(1);
    }
    event
}

#[test]
fn the_mover_is_told_which_jobs_are_held_and_has_jobs_run_again() {
    let orders = |jobs: &[&str]| {
        let rerun = jobs.iter().map(|job| (job.parse().expect("an id"), 0));
        let orders = MomOrders {
            rerun: rerun.collect(),
            look: true,
            ..MomOrders::default()
        };
        Ok(lines(&[Reply::Mom {
            orders: Box::new(orders),
        }]))
    };
    let done = |question: &Question, said| -> Value {
        serde_json::from_str(&question.answer(&[said])).expect("an answer")
    };
    let first = question(&periodic(Value::Null));
    let told = report(&first);
    assert!(told.all && told.jobs.len() == 1 && told.jobs[0].is_held.is_none());
    // Who holds a job pbs_server alone knows; it is asked of those whose script is here, and of no vnode.
    let said = done(&first, orders(&[]));
    assert_eq!(said["ask"], json!({ "vnodes": [], "jobs": ["1.head"] }));
    // A mover that is away costs no question.
    assert!(done(&first, Err(String::new())).get("ask").is_none());

    for held in [false, true] {
        let server = json!({ "vnodes": {}, "jobs": { "1.head": { "rerun": true, "held": held } } });
        let asked = question(&periodic(server));
        let told = &report(&asked).jobs[0];
        assert_eq!((told.is_held, told.may_rerun), (Some(held), Some(true)));
        assert_eq!(done(&asked, orders(&[]))["edits"], json!([]));
        // It has saved.
        let rerun = json!([{ "set": "rerun", "value": "1.head" }]);
        assert_eq!(done(&asked, orders(&["1.head"]))["edits"], rerun);
    }
    let known = json!({ "vnodes": {}, "jobs": { "1.head": { "rerun": true, "exit": -18 } } });
    let kill = json!([{ "set": "kill", "value": 100, "uid": 7 }]);
    assert_eq!(
        done(&question(&periodic(known)), orders(&["1.head", "9.head"]))["edits"],
        kill
    );
}
