//! What daemons of a mom's host are told of an event, and what comes of what they say.

use std::collections::BTreeMap;

use gpuos_core::wire::{MomChoice, MomOrders, MomReport, Reply, Request};
use gpuos_model::gpu_index::GresGpu;
use gpuos_pbs::hook::question::Question;
use gpuos_pbs::hook::talk::Daemon;
use gpuos_pbs::hook::{Step, begin};
use serde_json::{Value, json};

fn step(event: &Value) -> Step {
    let mut event = event.clone();
    event["schema"] = "gpuos.pbs/1".into();
    begin(&event.to_string())
}

/// What daemons are asked of an event.
pub fn question(event: &Value) -> Box<Question> {
    match step(event) {
        Step::Ask(question) => question,
        Step::Done(said) => panic!("nobody is asked: {said}"),
    }
}

/// What is done about an event of which no daemon is told.
pub fn alone(event: &Value) -> Value {
    match step(event) {
        Step::Done(said) => serde_json::from_str(&said).expect("an answer"),
        Step::Ask(question) => panic!("{question:?}"),
    }
}

/// What a daemon is told, behind the greeting.
pub fn told(question: &Question, daemon: Daemon) -> Vec<Request> {
    let mut talks = question.talks.iter();
    let talk = talks
        .find(|talk| talk.daemon == daemon)
        .expect("it is told");
    let text = String::from_utf8(talk.lines.clone()).expect("text");
    let mut lines = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("a request"));
    assert!(matches!(lines.next(), Some(Request::Hello { .. })));
    lines.collect()
}

/// What gpuosd is told of jobs and host.
pub fn report(event: &Value) -> MomReport {
    match told(&question(event), Daemon::Gpuosd).into_iter().next() {
        Some(Request::Mom { report }) => *report,
        other => panic!("{other:?}"),
    }
}

/// The lines of a daemon that says this.
pub fn lines(replies: &[Reply]) -> Vec<u8> {
    let hello = Reply::Hello {
        protocol: 1,
        release: "1".into(),
        node: "n1".into(),
    };
    let all = std::iter::once(&hello).chain(replies);
    let line = |reply: &Reply| serde_json::to_string(reply).expect("JSON") + "\n";
    all.map(line).collect::<String>().into_bytes()
}

pub fn orders(orders: MomOrders) -> Reply {
    Reply::Mom {
        orders: Box::new(orders),
    }
}

pub fn gpus(indices: &[usize]) -> Vec<GresGpu> {
    let gpus = indices.iter().map(|index| GresGpu::new(*index));
    gpus.map(|gpu| gpu.expect("a GPU")).collect()
}

/// A gpuosd that has chosen these GPUs for a job, or none for a reason.
pub fn choice(job: &str, chosen: &[usize], refused: &str) -> Reply {
    let choice = MomChoice {
        gpus: gpus(chosen),
        refused: refused.into(),
        as_stock: false,
    };
    orders(MomOrders {
        chosen: [(job.parse().expect("an id"), choice)].into(),
        ..MomOrders::default()
    })
}

/// What is done where the first daemon says this, and others nothing. The reason of one that cannot be asked is empty where it is not there.
pub fn done(event: &Value, said: Result<&[Reply], &str>) -> Value {
    let question = question(event);
    let mut all = vec![Err(String::new()); question.talks.len()];
    all[0] = said.map(lines).map_err(str::to_owned);
    serde_json::from_str(&question.answer(&all)).expect("an answer")
}

/// The edits of an event that goes on.
pub fn edits(answer: &Value) -> &Vec<Value> {
    assert_eq!(answer["verdict"], "accept", "{answer}");
    assert!(answer.get("ask").is_none(), "{answer}");
    answer["edits"].as_array().expect("edits")
}

/// What edits of resources or variables make, by their names.
pub fn made(answer: &Value) -> BTreeMap<String, String> {
    let text = |value: &Value| value.as_str().expect("a text").to_string();
    let edits = edits(answer).iter();
    edits
        .map(|edit| (text(&edit["name"]), text(&edit["value"])))
        .collect()
}

/// The sentence of an event that is refused.
pub fn refusal(answer: &Value) -> &str {
    assert_eq!(answer["verdict"], "reject", "{answer}");
    answer["message"].as_str().expect("a sentence")
}

/// A note for the standard error of a program; empty: there is none.
pub fn notes(answer: &Value) -> String {
    let notes = answer["notes"].as_array().into_iter().flatten();
    let notes: Vec<&str> = notes.filter_map(Value::as_str).collect();
    notes.join("\n")
}

/// A program of job `1.head` that is about to be started on n1 with these vnodes; n1 has four GPUs.
pub fn launch(given: &str) -> Value {
    let gpu = |index: usize, pair: &str| json!({ "uuid": format!("GPU-n1-{index}"), "nvlink": format!("n1{pair}"), "numa": index / 2 });
    let gpus = |host: &str| {
        [0, 1, 2, 3].map(|index| {
            let pair = ["a", "b"][index / 2];
            json!({ "uuid": format!("GPU-{host}-{index}"), "nvlink": format!("{host}{pair}") })
        })
    };
    json!({
        "event": "execjob_launch", "host": "n1.site", "gpuosd": "/run/g.sock", "vnodes": { "n1": {} }, "server": {},
        "hosts": {
            "n1": { "leaf": "l1", "gpus": [gpu(0, "a"), gpu(1, "a"), gpu(2, "b"), gpu(3, "b")] },
            "n2": { "leaf": "l1", "gpus": gpus("n2") }, "n3": { "leaf": "l2", "gpus": gpus("n3") },
        },
        "job": { "id": "1.head", "exec_vnode": given, "user": "ann", "uid": 7, "gid": 70, "run": 2, "resources": {} },
    })
}
