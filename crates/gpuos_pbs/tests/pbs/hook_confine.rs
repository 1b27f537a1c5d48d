//! Programs that are kept to the GPUs of their jobs: what gpuosd is asked, and what becomes of the start.

use gpuos_core::wire::{Code, Reply, Request};
use gpuos_pbs::hook::question::Question;
use gpuos_pbs::hook::talk::Daemon;
use gpuos_pbs::hook::{Step, begin};
use serde_json::{Value, json};

use crate::hook_talks::{choice, lines};

fn launch(confine: &str) -> Value {
    json!({
        "schema": "gpuos.pbs/1", "event": "execjob_launch", "host": "n1.site", "gpuosd": "/run/g.sock", "confine": confine,
        "hosts": { "n1": { "gpus": [{}, {}, {}] } },
        "parent": { "pid": 4711, "started": 99 },
        "job": { "id": "1.head", "exec_vnode": "(n1:ngpus=2)+(n2:ngpus=1)", "user": "ann", "uid": 7, "run": 1 },
    })
}

fn question(event: &Value) -> Option<Box<Question>> {
    match begin(&event.to_string()) {
        Step::Ask(question) => Some(question),
        Step::Done(_) => None,
    }
}

/// What gpuosd is asked about the program.
fn asked(event: &Value) -> Option<Value> {
    let question = question(event)?;
    let lines = question.talks.iter().flat_map(|talk| {
        let text = String::from_utf8(talk.lines.clone()).expect("text");
        let lines: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).expect("a request"))
            .collect();
        lines
    });
    let mut found = lines.filter(|line| line["ask"] == "confine");
    let first = found.next()?;
    assert!(found.next().is_none(), "it is asked once");
    Some(first)
}

/// What is done where gpuosd has chosen GPUs 0 and 2, and says this of the program.
fn done(event: &Value, said: &Result<Reply, &str>) -> Value {
    let question = question(event).expect("gpuosd is asked");
    let all: Vec<_> = question
        .talks
        .iter()
        .map(|talk| match (talk.daemon, said) {
            (Daemon::Groups, Err(why)) => Err((*why).to_owned()),
            (Daemon::Groups, Ok(reply)) => {
                assert!(talk.patience_ms <= 2_000 && talk.socket == "/run/g.sock.root");
                Ok(lines(std::slice::from_ref(reply)))
            }
            _ => Ok(lines(&[choice("1.head", &[0, 2], "")])),
        })
        .collect();
    serde_json::from_str(&question.answer(&all)).expect("an answer")
}

fn confined() -> Result<Reply, &'static str> {
    Ok(Reply::Done {
        message: "it is".into(),
    })
}

fn refused() -> Result<Reply, &'static str> {
    Ok(Reply::Refused {
        code: Code::Failed,
        message: "no control groups of version 2".into(),
    })
}

#[test]
fn gpuosd_is_asked_where_the_site_has_it() {
    assert_eq!(asked(&launch("off")), None);
    for word in ["try", "require"] {
        let wanted = Request::Confine {
            job: "1.head".parse().expect("an id"),
            pid: 4711,
            started: 99,
            slices: false,
        };
        let wanted = serde_json::to_value(wanted).expect("JSON");
        assert_eq!(asked(&launch(word)), Some(wanted));
    }
    // A job without GPUs has none of this host's.
    let mut none = launch("try");
    none["job"]["exec_vnode"] = json!("(n1:ncpus=1)");
    assert!(asked(&none).is_some());
    // A host of which gpuos knows no GPUs.
    none["hosts"] = json!({ "n2": { "gpus": [{}] } });
    assert_eq!(asked(&none), None);
    let mut other = launch("sometimes");
    assert!(question(&other).is_none());
    other["confine"] = json!("require");
    // Slices, beside a share of a GPU.
    for (option, given, slices) in [
        (
            "gpuos_mig",
            "(n1:gpuos_mig_compute=1:gpuos_mig_memory=1+n1:gpuos_share_parts=1)",
            json!(true),
        ),
        (
            "gpuos_share",
            "(n1:gpuos_mig_compute=1:gpuos_mig_memory=1+n1:gpuos_share_parts=1)",
            Value::Null,
        ),
        // They are of another host.
        (
            "gpuos_mig",
            "(n2:gpuos_mig_compute=1:gpuos_mig_memory=1)",
            Value::Null,
        ),
    ] {
        other["job"]["resources"] = json!({ option: "x" });
        other["job"]["exec_vnode"] = given.into();
        assert_eq!(
            asked(&other).expect("it is asked")["slices"],
            slices,
            "{option} {given}"
        );
    }
}

#[test]
fn a_program_starts_all_the_same_unless_the_site_requires_it() {
    for (word, said, why) in [
        ("try", confined(), None),
        ("require", confined(), None),
        ("try", refused(), Some("version 2")),
        ("require", refused(), Some("version 2")),
        ("try", Err(""), Some("does not run")),
        ("require", Err(""), Some("does not run")),
        ("try", Err("it took longer"), Some("it took longer")),
        ("require", Err("it took longer"), Some("it took longer")),
    ] {
        let done = done(&launch(word), &said);
        let message = done["message"].as_str().unwrap_or_default();
        match why {
            None => assert!(done["verdict"] == "accept" && message.is_empty(), "{done}"),
            Some(why) => {
                let verdict = if word == "try" { "accept" } else { "reject" };
                assert!(
                    done["verdict"] == verdict && message.contains(why),
                    "{word}: {done}"
                );
            }
        }
        if done["verdict"] == "accept" {
            assert_eq!(done["edits"][0]["value"], "0\\,2", "{done}");
        }
    }
}

#[test]
fn what_cannot_even_be_asked_about_starts_only_where_it_may() {
    for (key, value) in [
        ("exec_vnode", json!("(n1:ngpus=1")),
        ("id", json!("../7")),
        ("id", json!("7\n8")),
    ] {
        for (word, verdict) in [("off", "accept"), ("try", "accept"), ("require", "reject")] {
            let mut event = launch(word);
            event["job"][key] = value.clone();
            let unreadable = key == "exec_vnode";
            if unreadable {
                // Without a word of GPUs it is nobody's mistake.
                event["job"][key] = json!("(n1:ncpus=1");
            }
            let said = match begin(&event.to_string()) {
                Step::Done(said) => said,
                Step::Ask(question) => {
                    let none = vec![Ok(Vec::new()); question.talks.len()];
                    question.answer(&none)
                }
            };
            let said: Value = serde_json::from_str(&said).expect("an answer");
            assert_eq!(said["verdict"], verdict, "{word} {key}: {said}");
        }
    }
}
