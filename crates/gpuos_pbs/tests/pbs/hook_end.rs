//! A run of a job that has left a host: who is told of it, and when nobody is.

use gpuos_core::wire::{MomEnd, MomReport, Request};
use gpuos_pbs::hook::question::Question;
use gpuos_pbs::hook::talk::Daemon;
use gpuos_pbs::hook::{Step, begin};
use serde_json::{Value, json};

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
    assert_nobody_waits(&question);
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

/// Mom keeps the job while its hook runs: nothing is waited for but that it is written, and the event goes on whatever becomes of that.
fn assert_nobody_waits(question: &Question) {
    let patience: u64 = question.talks.iter().map(|talk| talk.patience_ms).sum();
    assert!(question.talks.iter().all(|talk| talk.answers == 0));
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
