//! Events as PBS's hook tells them, and the same with one thing or several wrong: what is right is accepted, and of what is wrong something
//! is said and nothing breaks.

use gpuos_model::rng::Rng;
use gpuos_pbs::hook::{Step, answer, begin};
use serde_json::{Map, Value, json};

const EVENTS: usize = 1_400;
/// Of each event.
const MUTANTS: usize = 12;

fn pick<'a>(rng: &mut Rng, all: &[&'a str]) -> &'a str {
    all[rng.below(all.len() as u64) as usize]
}

/// What a job asks for, in forms that PBS and gpuos take.
fn resources(rng: &mut Rng) -> Map<String, Value> {
    let selects = [
        "1:ncpus=1:ngpus=1",
        "2:ncpus=4:mem=10gb:ngpus=2",
        "1:ncpus=1:ngpus=1+2:ncpus=2:ngpus=1",
        "4:ngpus=1:host=n1",
        "2:ncpus=2:ngpus=1:note=\"a:b+c,d\"",
    ];
    let mut all = Map::new();
    all.insert("select".into(), pick(rng, &selects).into());
    let options = [
        ("gpuos_topology", ["leaf", "leaf:required", "node", "off"]),
        ("gpuos_power", ["300W", "250W", "400W", "off"]),
        ("gpuos_watch", ["5", "60", "off", "10"]),
        ("gpuos_checkpoint", ["10m", "auto", "1h,l2=single", "off"]),
    ];
    for (name, values) in options {
        if rng.below(3) == 0 {
            all.insert(name.into(), pick(rng, &values).into());
        }
    }
    all
}

/// What PBS gave, on a host's own vnode or on one that its site or an earlier release has made.
fn given(rng: &mut Rng) -> String {
    let host = ["n1", "n2"][rng.below(2) as usize];
    let part = ["", "[0]", "[3]"][rng.below(3) as usize];
    let chunk = |_| format!("({host}{part}:ncpus=4:mem=1000kb:ngpus=1)");
    (0..=rng.below(3)).map(chunk).collect::<Vec<_>>().join("+")
}

fn vnodes() -> Value {
    let of = |host: &str| json!({ "ngpus": "8", "host": host, "gpuos_leaf": "l1", "gpuos_nvlink": host });
    json!({ "n1": of("n1"), "n2": of("n2"), "n1[0]": of("n1"), "n1[3]": of("n1"), "n2[0]": of("n2"), "n2[3]": of("n2") })
}

fn hosts() -> Value {
    let gpus: Vec<Value> = (0..8)
        .map(
            |index| json!({ "uuid": format!("GPU-n1-{index}"), "nvlink": "n1", "numa": index / 4 }),
        )
        .collect();
    json!({ "n1": { "leaf": "l1", "keep_cpus": 4, "keep_mib": 1024, "former": [3], "gpus": gpus } })
}

/// The host's own vnode as pbs_server has it.
fn server() -> Value {
    let own = json!({ "offline": false, "comment": "", "resources": { "ngpus": "7", "gpuos_ngpus": "8>7", "gpuos_host": "whole=0-7;free=0" } });
    json!({ "vnodes": { "n1": own }, "jobs": { "17.head": { "exit": -18, "rerun": true, "held": false } } })
}

/// An event of each kind in turn, as the hook tells it.
fn event(rng: &mut Rng, nth: usize) -> Value {
    let job = |rng: &mut Rng| {
        json!({
            "id": "17.head", "resources": resources(rng), "exec_vnode": given(rng), "user": "alice", "uid": 1000, "gid": 1000,
            "ends_in": rng.below(1 << 20), "run": 1 + rng.below(20), "suspended": rng.below(2) == 0,
        })
    };
    let mut event = json!({
        "schema": "gpuos.pbs/1", "host": "n1", "now": 1_800_000_000 + rng.below(1 << 20), "planner": rng.below(2) == 0,
        "checkpoints": true, "largest": { "node": 8, "nvlink": 8, "leaf": 16 },
    });
    let more = match nth % 8 {
        0 => json!({ "event": "queuejob", "job": { "resources": resources(rng) } }),
        1 => {
            json!({ "event": "modifyjob", "job": { "resources": resources(rng) }, "old": { "id": "17.head", "resources": resources(rng) } })
        }
        2 => {
            let left = json!({ "available": 8, "assigned": rng.below(6) });
            json!({ "event": "runjob", "job": job(rng), "vnodes": vnodes(), "left": { "n1": left, "n2[0]": left } })
        }
        3 => {
            json!({ "event": "execjob_launch", "job": job(rng), "vnodes": vnodes(), "hosts": hosts(), "first": rng.below(2) == 0 })
        }
        4 => json!({ "event": "execjob_end", "job": job(rng) }),
        5 => {
            json!({ "event": "resvsub", "job": { "resources": { "select": "1:ngpus=1", "gpuos_topology": "leaf" } } })
        }
        6 => {
            json!({ "event": "modifyresv", "job": { "resources": { "select": "1:ngpus=1" } }, "old": { "resources": { "gpuos_topology": "node" } } })
        }
        _ => {
            json!({ "event": "exechost_periodic", "hosts": hosts(), "server": server(), "jobs": { "17.head": job(rng), "18[3].head": job(rng) } })
        }
    };
    if let (Some(event), Value::Object(more)) = (event.as_object_mut(), more) {
        event.extend(more);
    }
    event
}

/// A value that may stand anywhere, and has structure for somebody.
fn anything(rng: &mut Rng) -> Value {
    match rng.below(12) {
        0 => Value::Null,
        1 => json!(true),
        2 => json!(-1),
        3 => json!(u64::MAX),
        4 => json!(1.5e300),
        5 => json!([[], {}, "x"]),
        6 => json!({ "x": { "y": [] } }),
        7 => json!("9".repeat(1 + rng.below(400) as usize)),
        8 => json!("(n1[0]:ncpus=99999999999999999999:ngpus=1"),
        9 => json!("\u{0}\n\r\u{1b}[31m\u{202e}'\"`$(x);"),
        10 => json!("1:ncpus=+1:=:ngpus=\"+(n1[999999999]:"),
        _ => json!(""),
    }
}

/// Another text: of PBS's own forms, with a mistake, or with what has structure for somebody.
fn other_text(rng: &mut Rng, text: &str) -> String {
    const TEXTS: [&str; 14] = [
        "",
        "off",
        "leaf:required",
        "1:ncpus=+1:=:ngpus=\"+(n1[999999999]:",
        "(n1[0]:ncpus=99999999999999999999:ngpus=1)",
        "(n1[0]:ngpus=1)+(n1[0]:ngpus=1)",
        "(n9[3]:ngpus=1:gpuos_mig_memory=3)",
        "4294967296:ngpus=18446744073709551616",
        "18446744073709551615kb",
        "0b",
        "-1",
        "\u{0}\n\r\u{1b}[31m\u{202e}'\"`$(x);",
        "GPU-n1-0,GPU-n1-1\\,\\\\",
        "1000000h",
    ];
    let count = text.chars().count() as u64;
    if count == 0 || rng.below(3) == 0 {
        return pick(rng, &TEXTS).into();
    }
    const PARTS: [&str; 14] = [
        "",
        ":",
        "+",
        "(",
        ")",
        "=",
        "\"",
        "\\",
        "0",
        "99999999999",
        "\u{1f600}",
        "\n",
        ",",
        "]",
    ];
    let (at, with) = (rng.below(count), pick(rng, &PARTS));
    let changed = text.chars().zip(0..).map(|(c, n)| match n == at {
        true => with.to_string(),
        false => c.to_string(),
    });
    changed.collect()
}

/// Changes one thing somewhere, rarely to something of another type: that is no event any more, and soon said.
fn mutate(rng: &mut Rng, value: &mut Value) {
    if rng.below(60) == 0 {
        *value = anything(rng);
        return;
    }
    match value {
        Value::Object(all) if !all.is_empty() => {
            let at = rng.below(all.len() as u64) as usize;
            let key = all.keys().nth(at).cloned().unwrap_or_default();
            match rng.below(24) {
                0 => drop(all.remove(&key)),
                1 => {
                    let moved = all.remove(&key).unwrap_or_default();
                    all.insert(other_text(rng, &key), moved);
                }
                2 => {
                    let copied = all[&key].clone();
                    all.insert(other_text(rng, &key), copied);
                }
                _ => mutate(rng, all.entry(key).or_insert(Value::Null)),
            }
        }
        Value::Array(all) if !all.is_empty() => {
            let at = rng.below(all.len() as u64) as usize;
            match rng.below(6) {
                0 => drop(all.remove(at)),
                1 => all.insert(0, all[at].clone()),
                _ => mutate(rng, &mut all[at]),
            }
        }
        Value::String(text) => *text = other_text(rng, text),
        Value::Number(number) => {
            let others = [0, 1, 2, 255, 65_535, u64::from(u32::MAX), u64::MAX];
            let other = others[rng.below(others.len() as u64) as usize];
            *number = other.into();
        }
        Value::Bool(flag) => *flag = !*flag,
        value => *value = anything(rng),
    }
}

/// The verdict of an answer, which is one line of JSON whatever the event was.
fn verdict(event: &str) -> String {
    let said = match begin(event) {
        Step::Done(said) => said,
        // Daemons are asked first; without them it is this.
        Step::Ask(_) => answer(event),
    };
    assert!(!said.contains('\n'), "{event}: {said}");
    let said: Value =
        serde_json::from_str(&said).unwrap_or_else(|why| panic!("{event}: {why}: {said}"));
    let verdict = said["verdict"].as_str().unwrap_or_default().to_string();
    assert!(
        ["accept", "reject", "error"].contains(&verdict.as_str()),
        "{event}: {said}"
    );
    if verdict != "accept" {
        assert!(
            !said["message"].as_str().unwrap_or_default().is_empty(),
            "{event}: {said}"
        );
    }
    verdict
}

#[test]
fn what_is_right_is_accepted_and_what_is_wrong_breaks_nothing() {
    let mut rng = Rng::new(45);
    let mut counts = std::collections::BTreeMap::<String, usize>::new();
    for nth in 0..EVENTS {
        let right = event(&mut rng, nth);
        let text = right.to_string();
        assert_eq!(verdict(&text), "accept", "{text}: {}", answer(&text));
        for _ in 0..MUTANTS {
            let mut wrong = right.clone();
            for _ in 0..=rng.below(3) {
                mutate(&mut rng, &mut wrong);
            }
            *counts.entry(verdict(&wrong.to_string())).or_default() += 1;
            // The text itself: cut, or with another byte.
            let mut bytes = text.clone().into_bytes();
            let at = rng.below(bytes.len() as u64) as usize;
            match rng.below(2) {
                0 => bytes.truncate(at),
                _ => bytes[at] = rng.below(256) as u8,
            }
            verdict(&String::from_utf8_lossy(&bytes));
        }
    }
    // Most of what is wrong in one place is still an event, whose decision is tried too.
    for verdict in ["accept", "reject", "error"] {
        let part = counts.get(verdict).copied().unwrap_or(0) * 50;
        assert!(part >= EVENTS * MUTANTS, "{counts:?}");
    }
}
