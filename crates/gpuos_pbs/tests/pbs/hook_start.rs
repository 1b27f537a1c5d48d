//! Starts of jobs: those that would take more GPUs than there are left, and those that a host has refused.

use serde_json::{Value, json};

use crate::hook::ask;
use crate::hook_talks::{edits, refusal};

/// A start with these vnodes, of which n1 has eight GPUs and two left, and n2 one; of n3 nobody says.
fn start(given: &str, resources: &Value) -> Value {
    ask(&json!({
        "event": "runjob", "now": 1000,
        "left": { "n1": { "available": 8, "assigned": 6 }, "n2": { "available": 7, "assigned": 6 }, "n4": { "available": 1, "assigned": 4 } },
        "job": { "id": "1.head", "resources": resources, "exec_vnode": given },
    }))
}

#[test]
fn a_start_that_would_give_a_gpu_twice_waits_whatever_the_job_says() {
    for given in [
        "(n1:ncpus=4:ngpus=2)",
        "(n1:ngpus=1)+(n1:ngpus=1+n2:ngpus=1)",
        "(n3:ngpus=64)",
        "(n4:ncpus=8)",
        "(n1:ncpus=500:ngpus=0)",
    ] {
        let said = start(given, &json!({}));
        assert!(edits(&said).is_empty(), "{given}: {said}");
    }
    for (given, vnode, wanted, free) in [
        ("(n1:ncpus=4:ngpus=3)", "n1", 3, 2),
        ("(n1:ngpus=1)+(n2:ngpus=1)+(n1:ngpus=2)", "n1", 3, 2),
        ("(n1:ngpus=2)+(n2:ngpus=2)", "n2", 2, 1),
        // More than there are, by a number that was counted down.
        ("(n4:ngpus=1)", "n4", 1, 0),
    ] {
        let said = start(given, &json!({}));
        assert_eq!(
            refusal(&said),
            format!(
                "exec_vnode={given}: the start would have {wanted} GPUs of {vnode}, and {free} are left there; not started, and it keeps its place \
                 in the queue; write nothing: it is tried again; an operator names vnodes with so many GPUs left"
            )
        );
        // Also of a job that says nothing to gpuos.
        assert_eq!(
            (&said["must"], &said["edits"]),
            (&json!(true), &json!([])),
            "{said}"
        );
    }
    let wish = json!({ "select": "1:ngpus=9", "gpuos_topology": "node:required" });
    assert!(refusal(&start("(n1:ngpus=9)", &wish)).contains("and 2 are left there"));
}

/// A start of a job whose `run`-th run ended so.
fn after(id: &str, resources: &Value, given: &str, (exit, run): (i64, u64)) -> Value {
    let job =
        json!({ "id": id, "resources": resources, "exec_vnode": given, "exit": exit, "run": run });
    ask(&json!({
        "event": "runjob", "now": 1000, "job": job,
        "shares": { "parts": 4, "turns": 0, "gpu_mib": 81_559, "most_mib": 80_535 },
    }))
}

/// Parts of GPUs and whole ones, of jobs that ask for them.
fn of_gpus() -> [(Value, &'static str, &'static str); 3] {
    [
        (json!({}), "(n1:ncpus=4:ngpus=2)", "-l ngpus=2"),
        (
            json!({ "gpuos_mig": "1g.10gb" }),
            "(n1:ncpus=1:gpuos_mig_compute=1:gpuos_mig_memory=1)",
            "-l gpuos_mig=1g.10gb",
        ),
        (
            json!({ "gpuos_share": "timeslice" }),
            "(n1:ncpus=1:gpuos_share_parts=1)",
            "-l gpuos_share=timeslice",
        ),
    ]
}

#[test]
fn a_start_that_its_host_has_refused_is_put_off_for_longer_and_longer() {
    let steps = [10, 10, 60, 120, 300, 900, 1_800, 3_600, 3_600];
    for (resources, given, named) in of_gpus() {
        for (seconds, run) in steps.into_iter().zip(1_u64..).chain([(3_600, 99)]) {
            let said = after("1.head", &resources, given, (-16, run));
            let wanted = format!("{named}: its GPUs were not to be had where it was started last");
            assert!(refusal(&said).starts_with(&wanted), "{said}");
            assert!(
                refusal(&said).contains(&format!("(number {run}) and tried again in {seconds} s")),
                "{said}"
            );
            assert_eq!(
                said["edits"],
                json!([{ "set": "resource", "name": "gpuos_vetoes", "value": run }, { "set": "start-after", "value": 1000 + seconds }])
            );
            let mut tried = resources.clone();
            tried["gpuos_vetoes"] = run.to_string().into();
            let said = after("1.head", &tried, given, (-16, run));
            assert!(edits(&said).is_empty(), "its time has come: {said}");
        }
        // One that ran and is to run again.
        assert!(edits(&after("1.head", &resources, given, (-18, 1))).is_empty());
    }
    assert!(
        edits(&after("1.head", &json!({}), "(n1:ncpus=4)", (-16, 1))).is_empty(),
        "it has no GPUs"
    );
}

/// pbs_sched takes a host whose free slices are in pieces as well as any other, until they are asked for in one piece.
#[test]
fn after_a_refused_start_slices_and_parts_are_asked_for_in_one_piece() {
    let select = |resources: Value, given: &str, run: u64| {
        let job = json!({ "id": "1.head", "resources": resources, "exec_vnode": given, "exit": -16, "run": run });
        let said = ask(&json!({
            "event": "runjob", "now": 1000, "job": job, "boards": crate::hook_mig::boards(),
            "shares": { "parts": 4, "turns": 0, "gpu_mib": 81_559, "most_mib": 80_535 },
        }));
        let edits = said["edits"].as_array().cloned().unwrap_or_default();
        let own = edits.into_iter().find(|edit| edit["name"] == "select");
        own.map(|edit| edit["value"].as_str().unwrap_or_default().to_owned())
    };
    let counted = "2:ncpus=1:gpuos_mig_compute=5:gpuos_mig_memory=6:gpuos_mig_board=h100";
    let mig = |select: &str| json!({ "gpuos_mig": "3g.40gb,1g.10gb:2", "select": select });
    let given = "(n1:ncpus=1:gpuos_mig_compute=5:gpuos_mig_memory=6)+(n1:ncpus=1:gpuos_mig_compute=5:gpuos_mig_memory=6)";
    let asked = format!("{counted}:gpuos_mig_fits=4");
    assert_eq!(some(&asked), select(mig(counted), given, 1));
    assert_eq!(
        None,
        select(mig(&asked), given, 2),
        "it is asked for already"
    );
    let share = |select: &str| json!({ "gpuos_share": "timeslice:3", "select": select });
    let given = "(n1:ncpus=1:gpuos_share_parts=3)";
    assert_eq!(
        some("1:ncpus=1:gpuos_share_parts=3:gpuos_share_fits=3"),
        select(share("1:ncpus=1:gpuos_share_parts=3"), given, 1)
    );
    let whole = json!({ "select": "1:ngpus=2" });
    assert_eq!(None, select(whole, "(n1:ngpus=2)", 1));
}

fn some(text: &str) -> Option<String> {
    Some(text.into())
}

/// In state W it would not be counted among the subjobs that are left.
#[test]
fn a_subjob_is_never_put_off() {
    for (resources, given, _) in of_gpus() {
        let said = after("1[2].head", &resources, given, (-16, 1));
        assert!(edits(&said).is_empty(), "{said}");
    }
}

/// Two seconds later the counts would be others; the reason that helps is the first.
#[test]
fn what_is_left_is_looked_at_before_anything_else() {
    let job = json!({ "id": "1.head", "resources": {}, "exec_vnode": "(n1:ngpus=2)", "exit": -16, "run": 1 });
    let said = ask(
        &json!({ "event": "runjob", "now": 1000, "job": job, "left": { "n1": { "available": 2, "assigned": 1 } } }),
    );
    assert!(refusal(&said).contains("and 1 are left there"), "{said}");
    assert_eq!(said["edits"], json!([]));
}

/// Which set of a host's GPUs a job has is gpuosd's to choose.
#[test]
fn on_one_host_with_several_sets_a_start_is_close_enough() {
    let start = |given: &str, several: bool| {
        let resources = json!({ "select": "2:ngpus=2", "gpuos_topology": "nvlink:required", "place": "free:group=host" });
        let vnodes = json!({ "n1": {}, "n1[0]": { "gpuos_nvlink": "a" }, "n1[1]": { "gpuos_nvlink": "b" }, "n2": {} });
        let job = json!({ "id": "1.head", "resources": resources, "exec_vnode": given });
        ask(
            &json!({ "event": "runjob", "now": 1000, "several_sets": several, "job": job, "vnodes": vnodes }),
        )
    };
    assert!(edits(&start("(n1:ngpus=2)+(n1:ngpus=2)", true)).is_empty());
    assert!(edits(&start("(n1[0]:ngpus=2)+(n1[1]:ngpus=2)", true)).is_empty());
    assert!(
        refusal(&start("(n1:ngpus=2)+(n2:ngpus=2)", true)).contains("vnode n1 is in no nvlink")
    );
    assert!(
        refusal(&start("(n1[0]:ngpus=2)+(n1[1]:ngpus=2)", false))
            .contains("n1[0] and n1[1] are in different ones")
    );
}
