//! A run of a job that has left a host: who is told of it, and when nobody is.

use gpuos_core::wire::{MomEnd, MomOrders, MomReport, MomRoom, Request};
use gpuos_pbs::hook::question::Question;
use gpuos_pbs::hook::talk::Daemon;
use gpuos_pbs::hook::{Step, begin};
use serde_json::{Value, json};

use crate::hook_talks::{edits, lines, orders};

/// A job with a GPU of n1 and with checkpoints, which has run three times.
fn end(change: impl FnOnce(&mut Value)) -> Value {
    let mut event = json!({
        "schema": "gpuos.pbs/1", "event": "execjob_end", "host": "n1.site", "gpuosd": "/run/g.sock", "mover": "/run/m.sock",
        "hosts": { "n1": { "gpus": [{ "uuid": "GPU-a" }] } },
        "job": {
            "id": "7.head", "exec_vnode": "(n1:ngpus=1)", "user": "ann", "uid": 1000, "run": 3, "exit": 271,
            "resources": { "gpuos_checkpoint": "60" },
        },
    });
    change(&mut event);
    event
}

fn told(event: &Value) -> Vec<(Daemon, MomReport)> {
    let question = match begin(&event.to_string()) {
        Step::Ask(question) => question,
        Step::Done(said) => {
            assert!(said.contains(r#""verdict":"accept","edits":[]"#), "{said}");
            return Vec::new();
        }
    };
    assert_nobody_waits_long(&question);
    let report = |lines: &[u8]| {
        let text = String::from_utf8(lines.to_vec()).expect("text");
        let last = text.lines().next_back().expect("a request");
        match serde_json::from_str(last).expect("a request") {
            Request::Mom { report } => *report,
            other => panic!("{other:?}"),
        }
    };
    let talks = question.talks.iter();
    talks
        .map(|talk| (talk.daemon, report(&talk.lines)))
        .collect()
}

/// Mom keeps the job while its hook runs: nobody but gpuosd of a host whose GPUs it gives is heard, and the event goes on whatever becomes of that.
fn assert_nobody_waits_long(question: &Question) {
    let patience: u64 = question.talks.iter().map(|talk| talk.patience_ms).sum();
    let movers = |talk: &&gpuos_pbs::hook::talk::Talk| talk.daemon == Daemon::Mover;
    assert!(
        question
            .talks
            .iter()
            .filter(movers)
            .all(|talk| talk.answers == 0)
    );
    assert!(patience <= 1000, "{patience} ms");
    for said in [Ok(Vec::new()), Err("it is full".to_string())] {
        let said = vec![said; question.talks.len()];
        let answer = question.answer(&said);
        assert!(
            answer.contains(r#""verdict":"accept","edits":[]"#),
            "{answer}"
        );
    }
}

#[test]
fn daemons_are_told_which_run_has_left() {
    let all = told(&end(|_| {}));
    let ended = MomEnd {
        job: "7.head".parse().expect("an id"),
        run: 3,
    };
    let daemons: Vec<Daemon> = all.iter().map(|(daemon, _)| *daemon).collect();
    assert_eq!(daemons, [Daemon::Gpuosd, Daemon::Mover]);
    for (_, report) in all {
        assert_eq!(report.ended, std::slice::from_ref(&ended));
        // It is no list: nothing that is not in it has ended.
        assert!(!report.all && report.jobs.is_empty());
    }
    let without = told(&end(|event| event["job"]["resources"] = json!({})));
    assert_eq!(without.len(), 1, "gpuos_mover has nothing of it");
    let advised = told(&end(|event| {
        event["hosts"]["n1"]["advise"] = json!(true);
    }));
    assert_eq!(advised[0].0, Daemon::Gpuosd);
    let elsewhere = told(&end(|event| event["hosts"] = json!({})));
    assert_eq!(elsewhere.len(), 1, "{elsewhere:?}");
    assert_eq!(elsewhere[0].0, Daemon::Mover);
}

#[test]
fn a_run_without_a_number_of_its_own_is_left_to_moms_list() {
    // An action of the site's has checkpointed it: its next run has the same number.
    for (name, value) in [
        ("run", json!(0)),
        ("exit", json!(-12)),
        ("id", json!("no job")),
    ] {
        let all = told(&end(|event| event["job"][name] = value));
        assert!(all.is_empty(), "{name}: {all:?}");
    }
}

fn room(whole: u64, out: &str) -> MomRoom {
    MomRoom {
        whole,
        linked: 3,
        share_fits: 2,
        shown: format!("whole=0-7;free=1-2;out={out}"),
        ..MomRoom::default()
    }
}

/// What mom does by what gpuosd says of the room at the end of a job that had these vnodes of a host of eight GPUs, two of them shared.
fn does(vnodes: &[&str], room: MomRoom, look: bool, server: Option<Value>) -> Value {
    let gpus: Vec<Value> = (0..10)
        .map(|at| json!({ "nvlink": "a", "shares": if at < 8 { 0 } else { 4 } }))
        .collect();
    let event = end(|event| {
        event["hosts"]["n1"]["gpus"] = gpus.into();
        event["job"]["resources"] = json!({});
        for vnode in vnodes {
            event["vnodes"][vnode] = json!({});
        }
        if let Some(server) = server {
            event["server"] = json!({ "vnodes": server });
        }
    });
    let said = MomOrders {
        room: Some(room),
        look,
        ..MomOrders::default()
    };
    let Step::Ask(question) = begin(&event.to_string()) else {
        panic!("gpuosd is told");
    };
    serde_json::from_str(&question.answer(&[Ok(lines(&[orders(said)]))])).expect("JSON")
}

fn written(said: &Value) -> Vec<String> {
    let one = |edit: &Value| format!("{} {}={}", edit["vnode"], edit["name"], edit["value"]);
    edits(said)
        .iter()
        .map(one)
        .map(|text| text.replace('"', ""))
        .collect()
}

#[test]
fn what_is_free_then_is_shown_before_pbs_sched_looks() {
    let said = does(&["n1"], room(8, "-"), false, None);
    let shown = [
        "n1 gpuos_host=whole=0-7;free=1-2;out=-",
        "n1 gpuos_linked=3",
        "n1 gpuos_share_parts=0",
        "n1 gpuos_share_fits=2",
    ];
    assert_eq!(written(&said), shown);
    assert!(
        written(&does(&[], room(8, "-"), false, None)).is_empty(),
        "of which vnode is not known"
    );
}

#[test]
fn a_gpu_that_is_out_of_service_is_counted_down_when_its_job_ends() {
    let asked = does(&["n1"], room(7, "3"), true, None);
    assert_eq!(asked["ask"]["vnodes"], json!(["n1"]), "{asked}");
    let eight = json!({ "n1": { "resources": { "ngpus": "8" } } });
    let said = written(&does(&["n1"], room(7, "3"), true, Some(eight)));
    assert!(said.contains(&"n1 ngpus=7".into()), "{said:?}");
    assert!(said.contains(&"n1 gpuos_ngpus=8>7".into()), "{said:?}");
    // A site with a vnode for each half of the host, of which the job had one: what the other counts is not known here.
    let half = json!({ "n1": { "resources": {} }, "n1[0]": { "resources": { "ngpus": "4" } } });
    let said = written(&does(&["n1[0]"], room(7, "3"), true, Some(half)));
    assert!(!said.iter().any(|text| text.contains("ngpus=")), "{said:?}");
    let none = written(&does(&["n1"], room(7, "3"), true, Some(json!({}))));
    assert!(none.is_empty(), "pbs_server does not say: {none:?}");
}
