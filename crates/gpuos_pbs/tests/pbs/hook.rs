//! Jobs that are submitted, changed and started, as the hook hands them over.

use gpuos_pbs::hook::{MOST_BYTES, answer};
use proptest::prelude::*;
use serde_json::{Value, json};

/// The answer to an event.
pub fn ask(event: &Value) -> Value {
    let mut event = event.clone();
    event["schema"] = "gpuos.pbs/1".into();
    serde_json::from_str(&answer(&event.to_string())).expect("the answer is JSON")
}

fn job(resources: &[(&str, &str)]) -> Value {
    let resources: serde_json::Map<String, Value> = resources
        .iter()
        .map(|(name, value)| ((*name).to_string(), (*value).into()))
        .collect();
    json!({ "resources": resources })
}

fn submit(resources: &[(&str, &str)]) -> Value {
    ask(&json!({ "event": "queuejob", "job": job(resources) }))
}

fn change(old: &[(&str, &str)], changed: &[(&str, &str)]) -> Value {
    ask(&json!({ "event": "modifyjob", "old": job(old), "job": job(changed) }))
}

/// The sentence of a refusal, which changes nothing.
fn refusal(answer: &Value) -> String {
    assert_eq!(answer["verdict"], "reject", "{answer}");
    assert_eq!(answer["edits"], json!([]), "{answer}");
    answer["message"].as_str().expect("a sentence").to_string()
}

fn untouched(answer: &Value) {
    assert_eq!(
        *answer,
        json!({ "schema": "gpuos.pbs/1", "verdict": "accept", "edits": [] })
    );
}

/// The new place of an accepted job.
fn placed(answer: &Value) -> &str {
    assert_eq!(answer["verdict"], "accept", "{answer}");
    let edits = answer["edits"].as_array().expect("edits");
    assert_eq!(edits.len(), 1, "{answer}");
    assert_eq!(
        (&edits[0]["set"], &edits[0]["name"]),
        (&"resource".into(), &"place".into())
    );
    edits[0]["value"].as_str().expect("a text")
}

const GPUS: (&str, &str) = ("select", "8:ngpus=8");

#[test]
fn a_level_becomes_a_group_of_the_place() {
    let of = |wish: &str, place: &str| {
        let mut resources = vec![GPUS, ("gpuos_topology", wish)];
        resources.extend((!place.is_empty()).then_some(("place", place)));
        placed(&submit(&resources)).to_string()
    };
    assert_eq!(of("leaf", ""), "free:group=gpuos_leaf");
    assert_eq!(of("LEAF:required", ""), "free:group=gpuos_leaf");
    assert_eq!(of("nvlink", "excl"), "free:excl:group=gpuos_nvlink");
    assert_eq!(of("node", "pack:exclhost"), "pack:exclhost:group=host");
    assert_eq!(of("leaf", "scatter:excl"), "scatter:excl:group=gpuos_leaf");
}

#[test]
fn what_needs_no_change_gets_none() {
    untouched(&submit(&[
        GPUS,
        ("gpuos_topology", "leaf"),
        ("place", "group=gpuos_leaf"),
    ]));
    untouched(&submit(&[GPUS, ("gpuos_topology", "any")]));
    untouched(&submit(&[
        GPUS,
        ("gpuos_topology", "off"),
        ("place", "pack"),
    ]));
    untouched(&submit(&[GPUS, ("gpuos_placement", "default")]));
    untouched(&submit(&[
        GPUS,
        ("gpuos_mig", "off"),
        ("gpuos_checkpoint", "OFF"),
    ]));
}

#[test]
fn jobs_that_say_nothing_to_gpuos_are_not_looked_at() {
    // What PBS itself would refuse is PBS's to refuse.
    for select in [
        "1:ncpus=1",
        "4:ngpus=8:gpuos_leaf=l1",
        "((",
        "1:gpuos_uuid=\"GPU-1",
        "",
    ] {
        for place in ["", "nonsense", "scatter"] {
            untouched(&submit(&[
                ("select", select),
                ("place", place),
                ("walltime", "01:00:00"),
            ]));
        }
    }
    untouched(&submit(&[("ngpus", "2"), ("nodes", "2:ppn=4")]));
    untouched(&change(&[GPUS], &[("walltime", "10")]));
    untouched(&change(
        &[GPUS, ("gpuos_topology", "leaf")],
        &[("walltime", "10")],
    ));
}

#[test]
fn values_are_read_as_those_of_slurm() {
    let wrong = |name: &str, value: &str| refusal(&submit(&[GPUS, (name, value)]));
    assert_eq!(
        wrong("gpuos_topology", "leaf:maybe"),
        "-l gpuos_topology=leaf:maybe: 'maybe' is not understood; write LEVEL, LEVEL:required or LEVEL:preferred, or off"
    );
    assert_eq!(
        wrong("gpuos_topology", "spine"),
        "-l gpuos_topology=spine: this cluster has no level 'spine'; write one of node, nvlink, leaf, any"
    );
    for (option, value) in [
        ("mig", "9"),
        ("share", "all"),
        ("power", "lots"),
        ("checkpoint", "now"),
        ("placement", "best"),
    ] {
        let mut options = gpuos_config::options::JobOptions::default();
        let error = options.set(&format!("gpuos-{option}"), value).unwrap_err();
        let said = wrong(&format!("gpuos_{option}"), value);
        assert_eq!(said, error.to_string().replace("--gpuos-", "-l gpuos_"));
        assert!(
            said.starts_with(&format!("-l gpuos_{option}={value}: ")),
            "{said}"
        );
    }
}

#[test]
fn what_is_not_there_yet_is_refused_and_not_ignored() {
    for (name, value, says) in [
        (
            "gpuos_share",
            "timeslice",
            "it does not go with ngpus, which are whole GPUs",
        ),
        ("gpuos_checkpoint", "auto", "no checkpoints are kept here"),
        (
            "gpuos_placement",
            "pack",
            "pbs_sched alone places jobs here",
        ),
    ] {
        let said = refusal(&submit(&[GPUS, (name, value)]));
        assert!(
            said.starts_with(&format!("-l {name}={value}: ")) && said.contains(says),
            "{said}"
        );
        assert!(said.contains("; write "), "{said}");
    }
}

#[test]
fn contradictions_are_refused() {
    let leaf = ("gpuos_topology", "leaf");
    let said = |resources: &[(&str, &str)]| refusal(&submit(resources));
    assert_eq!(
        said(&[GPUS, leaf, ("place", "free:group=gpuos_nvlink")]),
        "-l gpuos_topology=leaf: it contradicts -l place=free:group=gpuos_nvlink, which holds the job together by another resource; \
         write one of the two"
    );
    let scattered = said(&[
        GPUS,
        ("gpuos_topology", "node:required"),
        ("place", "scatter"),
    ]);
    assert!(scattered.contains("-l place=scatter"), "{scattered}");
    let two = said(&[
        ("select", "1:ngpus=1:gpuos_leaf=l1+1:ngpus=1:gpuos_leaf=l2"),
        leaf,
    ]);
    assert!(
        two.contains("gpuos_leaf=l1 and another one gpuos_leaf=l2"),
        "{two}"
    );
    let chunk = said(&[("select", "2:ngpus=1:gpuos_topology=leaf")]);
    assert_eq!(
        chunk,
        "-l gpuos_topology=leaf: it is for the whole job, and cannot be said of a chunk; write -l gpuos_topology=VALUE beside -l select="
    );
    let none = said(&[("select", "2:ncpus=4"), leaf]);
    assert!(none.contains("the job asks for no GPU"), "{none}");
    let old = said(&[("ngpus", "2"), leaf]);
    assert!(old.contains("has no -l select="), "{old}");
    assert!(
        said(&[("select", "2:ngpus="), leaf])
            .starts_with("-l select=2:ngpus=: '' is no value; write ")
    );
    assert!(
        said(&[GPUS, leaf, ("place", "near")])
            .starts_with("-l place=near: 'near' is not understood; write ")
    );
}

#[test]
fn a_change_is_looked_at_with_all_of_the_job() {
    let old = [
        GPUS,
        ("gpuos_topology", "leaf"),
        ("place", "free:group=gpuos_leaf"),
    ];
    let placed_by = |changed: &[(&str, &str)]| placed(&change(&old, changed)).to_string();
    assert_eq!(
        placed_by(&[("gpuos_topology", "nvlink")]),
        "free:group=gpuos_nvlink"
    );
    assert_eq!(placed_by(&[("gpuos_topology", "off")]), "free");
    // An empty value is how qalter takes a resource away.
    assert_eq!(placed_by(&[("gpuos_topology", "")]), "free");
    assert_eq!(
        placed_by(&[("place", "scatter")]),
        "scatter:group=gpuos_leaf"
    );
    untouched(&change(&old, &[("select", "2:ngpus=1")]));
    let said = refusal(&change(&old, &[("select", "2:ncpus=1")]));
    assert!(said.contains("asks for no GPU"), "{said}");
    let said = refusal(&change(&old, &[("gpuos_share", "timeslice")]));
    assert!(said.contains("does not go with ngpus"), "{said}");
    assert_eq!(
        placed(&change(
            &[GPUS, ("place", "pack")],
            &[("gpuos_topology", "leaf")]
        )),
        "pack:group=gpuos_leaf"
    );
    // Whose group was not gpuos's keeps it.
    let own = [GPUS, ("place", "free:group=rack")];
    assert!(refusal(&change(&own, &[("gpuos_topology", "leaf")])).contains("group=rack"));
}

#[test]
fn a_job_that_no_domain_could_hold_is_spread_or_refused() {
    let submit = |select: &str, wish: &str| {
        let job = job(&[("select", select), ("gpuos_topology", wish)]);
        ask(&json!({ "event": "queuejob", "largest": { "leaf": 16, "node": 8 }, "job": job }))
    };
    assert_eq!(
        placed(&submit("2:ngpus=8", "leaf:required")),
        "free:group=gpuos_leaf"
    );
    assert_eq!(
        placed(&submit("2:ngpus=4+8:ngpus=1", "leaf")),
        "free:group=gpuos_leaf"
    );
    // PBS would have it wait for ever.
    untouched(&submit("2:ngpus=8+1:ngpus=1", "leaf"));
    assert_eq!(
        refusal(&submit("2:ngpus=8+ngpus=1", "leaf:required")),
        "-l gpuos_topology=leaf:required: the job asks for 17 GPUs, and no leaf has more than 16; write -l gpuos_topology=leaf to prefer \
         it only, or ask for less"
    );
    // Of this level nothing is known.
    assert_eq!(
        placed(&submit("2000:ngpus=8", "nvlink")),
        "free:group=gpuos_nvlink"
    );
    untouched(&submit(
        "4000000000:ngpus=18446744073709551615+1:ngpus=x",
        "leaf",
    ));
}

#[test]
fn a_planner_follows_wishes_and_rules_itself() {
    let submit = |resources: &[(&str, &str)]| {
        ask(&json!({ "event": "queuejob", "planner": true, "job": job(resources) }))
    };
    untouched(&submit(&[
        GPUS,
        ("gpuos_topology", "leaf"),
        ("gpuos_placement", "spread"),
    ]));
    // PBS has to keep what is required also where the planner is down.
    assert_eq!(
        placed(&submit(&[GPUS, ("gpuos_topology", "leaf:required")])),
        "free:group=gpuos_leaf"
    );
    assert!(
        refusal(&submit(&[GPUS, ("gpuos_placement", "near")]))
            .contains("-l gpuos_placement=near: ")
    );
    assert!(
        refusal(&submit(&[
            GPUS,
            ("gpuos_topology", "leaf"),
            ("place", "group=rack")
        ]))
        .contains("group=rack")
    );
}

fn run(wish: &str, given: &str, vetoes: &str) -> Value {
    let vnodes = json!({
        "n1[0]": { "host": "n1", "gpuos_leaf": "l1", "gpuos_nvlink": "n1a" },
        "n1[1]": { "host": "n1", "gpuos_leaf": "l1", "gpuos_nvlink": "n1b" },
        "n2": { "host": "n2", "gpuos_leaf": "l2", "gpuos_nvlink": "n2a" },
        "n9": { "host": "n9" },
    });
    let mut job = job(&[
        GPUS,
        ("gpuos_topology", wish),
        ("gpuos_vetoes", vetoes),
        ("place", "free:group=gpuos_leaf"),
    ]);
    job["exec_vnode"] = given.into();
    ask(&json!({ "event": "runjob", "now": 1000, "job": job, "vnodes": vnodes }))
}

#[test]
fn a_job_that_requires_a_level_is_not_started_across_it() {
    let apart = "(n1[0]:ngpus=1)+(n2:ngpus=1)";
    let close = "(n1[0]:ngpus=1+n1[1]:ngpus=1)";
    untouched(&run("leaf", apart, ""));
    untouched(&run("leaf:required", close, ""));
    untouched(&run("node:required", close, ""));
    untouched(&run("any:required", apart, ""));
    untouched(&run("nvlink:required", "(n9:ncpus=4+n1[0]:ngpus=1)", ""));
    let answer = run("leaf:required", apart, "");
    assert_eq!(answer["verdict"], "reject");
    assert_eq!(
        answer["message"],
        "-l gpuos_topology=leaf:required: no leaf had room for all of the job: n1[0] and n2 are in different ones; start put off (number 1) and \
         tried again in 1 min; write a level without :required to start all the same, or ask for less"
    );
    assert_eq!(run("nvlink:required", close, "")["verdict"], "reject");
    assert_eq!(run("node:required", apart, "")["verdict"], "reject");
    let nowhere = run("leaf:required", "(n1[0]:ngpus=1)+(n9:ngpus=1)", "");
    assert!(
        nowhere["message"]
            .as_str()
            .unwrap()
            .contains("vnode n9 is in no leaf"),
        "{nowhere}"
    );
}

/// A subjob in state W is not counted among those that are left: its array would end and be freed under it.
#[test]
fn a_subjob_is_refused_and_never_put_off() {
    let start = |id: &str, given: &str| {
        let vnodes = json!({ "n1[0]": { "gpuos_leaf": "l1" }, "n2": { "gpuos_leaf": "l2" } });
        let mut job = job(&[
            GPUS,
            ("gpuos_topology", "leaf:required"),
            ("place", "free:group=gpuos_leaf"),
        ]);
        job["id"] = id.into();
        job["exec_vnode"] = given.into();
        ask(&json!({ "event": "runjob", "now": 1000, "job": job, "vnodes": vnodes }))
    };
    let apart = "(n1[0]:ngpus=1)+(n2:ngpus=1)";
    let nowhere = "(n1[0]:ngpus=1)+(n9:ngpus=1)";
    assert_eq!(
        refusal(&start("12[3].head", apart)),
        "-l gpuos_topology=leaf:required: no leaf had room for all of this subjob: n1[0] and n2 are in different ones; not started, \
         and tried again whenever pbs_sched comes to it; write a level without :required to start all the same, or ask for less"
    );
    let said = refusal(&start("12[3].head", nowhere));
    assert!(
        said.contains("vnode n9 is in no leaf") && !said.contains("put off"),
        "{said}"
    );
    untouched(&start("12[3].head", "(n1[0]:ngpus=1)"));
    for given in [apart, nowhere] {
        let put_off = start("12.head", given);
        assert_eq!(
            put_off["edits"].as_array().map(Vec::len),
            Some(2),
            "{put_off}"
        );
    }
}

#[test]
fn a_job_is_put_off_so_often_at_most_and_then_stays_in_its_queue() {
    let apart = "(n1[0]:ngpus=1)+(n2:ngpus=1)";
    let (mut last, mut all) = (0, 0);
    for vetoes in 0..7u64 {
        let answer = run("leaf:required", apart, &vetoes.to_string());
        let edits = &answer["edits"];
        assert_eq!(
            edits[0],
            json!({ "set": "resource", "name": "gpuos_vetoes", "value": vetoes + 1 })
        );
        let wait = edits[1]["value"].as_u64().unwrap() - 1000;
        assert!(wait > last && (60..=3600).contains(&wait), "{answer}");
        (last, all) = (wait, all + wait);
    }
    assert_eq!((last, all), (3600, 7380));
    for vetoes in ["7", "8", "1000000", &u64::MAX.to_string()] {
        let said = refusal(&run("leaf:required", apart, vetoes));
        assert!(said.contains("keeps its place in the queue"), "{said}");
        assert!(said.contains("without :required"), "{said}");
        let said = refusal(&run("leaf:required", "(n9:ngpus=1)", vetoes));
        assert!(said.contains("pbs install --hosts"), "{said}");
        untouched(&run("leaf:required", "(n1[0]:ngpus=2)", vetoes));
        untouched(&run("leaf", apart, vetoes));
    }
}

/// The planner takes jobs in state Q alone.
#[test]
fn beside_a_planner_nobody_is_put_off() {
    let mut event = apart("free:group=gpuos_leaf");
    event["planner"] = true.into();
    assert!(refusal(&ask(&event)).contains("keeps its place in the queue"));
    event["planner"] = false.into();
    assert_eq!(ask(&event)["edits"].as_array().map(Vec::len), Some(2));
}

/// A job that requires a leaf and is about to be started across two.
fn apart(place: &str) -> Value {
    let vnodes = json!({ "n1[0]": { "gpuos_leaf": "l1" }, "n2": { "gpuos_leaf": "l2" } });
    let wish = [GPUS, ("gpuos_topology", "leaf:required"), ("place", place)];
    let mut job = job(&wish);
    job["exec_vnode"] = "(n1[0]:ngpus=1)+(n2:ngpus=1)".into();
    json!({ "event": "runjob", "now": 1000, "job": job, "vnodes": vnodes })
}

/// Its wish is a default of its queue, which PBS adds after the event queuejob.
#[test]
fn a_job_without_a_group_gets_one_when_it_is_refused() {
    for (given, place) in [
        ("", "free:group=gpuos_leaf"),
        ("scatter:excl", "scatter:excl:group=gpuos_leaf"),
    ] {
        for planner in [false, true] {
            let mut event = apart(given);
            event["planner"] = planner.into();
            let answer = ask(&event);
            assert_eq!(answer["verdict"], "reject");
            assert_eq!(
                answer["edits"][0],
                json!({ "set": "resource", "name": "place", "value": place })
            );
            let edits = answer["edits"].as_array().map(Vec::len);
            assert_eq!(edits, Some(if planner { 1 } else { 3 }));
        }
    }
}

#[test]
fn a_text_that_is_no_event_decides_nothing() {
    let deep = "[".repeat(100_000);
    let long = format!("{{\"schema\":\"{}\"}}", "x".repeat(MOST_BYTES));
    for text in [
        "",
        "null",
        "[]",
        "{",
        "{}",
        r#"{"schema":"gpuos.pbs/1"}"#,
        r#"{"schema":"gpuos.pbs/1","event":"provision"}"#,
        r#"{"schema":"gpuos.pbs/2","event":"queuejob"}"#,
        r#"{"schema":"gpuos.pbs/1","event":"queuejob","job":{"resources":{"select":7}}}"#,
        "{\"schema\":\"gpuos.pbs/1\0",
        &deep,
        &long,
    ] {
        let answer: Value = serde_json::from_str(&answer(text)).expect("JSON");
        assert_eq!(answer["verdict"], "error");
        assert_eq!(answer["edits"], json!([]));
        assert!(answer["message"].as_str().unwrap().len() < 1200);
    }
}

#[test]
fn a_text_of_a_user_is_never_structure() {
    let hostile = [
        "leaf\",\"verdict\":\"accept",
        "leaf'; qmgr -c 'set server scheduling=false",
        "$(touch /tmp/x)`id`",
        "leaf\nset hook gpuos enabled=false",
        "leaf\u{1b}[2J\u{202e}",
        "leaf:group=host",
        "leaf+1:ncpus=64",
        "leaf,Variable_List=A\\,B",
    ];
    for text in hostile {
        let said = refusal(&submit(&[GPUS, ("gpuos_topology", text)]));
        assert!(
            !said.chars().any(gpuos_model::screen::is_control),
            "{said:?}"
        );
        // In a job that says nothing to gpuos nobody reads it.
        untouched(&submit(&[GPUS, ("place", text), ("comment", text)]));
        let said = refusal(&submit(&[
            GPUS,
            ("gpuos_topology", "leaf"),
            ("place", text),
        ]));
        assert!(
            !said.chars().any(gpuos_model::screen::is_control),
            "{said:?}"
        );
    }
}

proptest! {
    #[test]
    fn whatever_is_accepted_has_a_place_of_known_words(wish in "[a-z:]{0,12}|leaf|node|nvlink", place in "[ -~]{0,30}|scatter|pack:excl", select in "[ -~]{0,40}|2:ngpus=1") {
        let answer = submit(&[("select", &select), ("place", &place), ("gpuos_topology", &wish)]);
        let edits = answer["edits"].as_array().unwrap();
        prop_assert!(edits.len() <= 1);
        for edit in edits {
            prop_assert_eq!(&edit["name"], "place");
            let new = edit["value"].as_str().unwrap();
            let read = gpuos_pbs::hook::place::Place::parse(new).unwrap();
            prop_assert_eq!(read.to_string(), new);
        }
    }
}
