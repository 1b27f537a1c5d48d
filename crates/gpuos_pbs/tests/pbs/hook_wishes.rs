//! Wishes of jobs and reservations on hosts with several sets of GPUs, by another server, and of reservations.

use serde_json::{Value, json};

use crate::hook::ask;
use crate::hook_talks::{edits, made, refusal};

fn profile(name: &str, slices: u8, starts: &[u8]) -> Value {
    json!({ "id": 14 - slices, "name": name, "compute": slices, "memory_mib": 5952, "most": starts.len(), "size": slices, "starts": starts,
            "engines": [0, 0, 0, 0] })
}

/// Hosts of eight GPUs in two sets of NVLink each.
fn site(kind: &str, job: &Value, old: &Value) -> Value {
    ask(&json!({
        "event": kind, "several_sets": true, "largest": { "node": 8, "leaf": 32 },
        "shares": { "parts": 4, "turns": 2, "gpu_mib": 81_559, "most_mib": 80_535 },
        "memory": { "gpu_mib": 81_920, "most_percent": 400, "reserve_mib": 1024 },
        "boards": { "a30": [profile("1g.6gb", 1, &[0, 1, 2, 3]), profile("4g.24gb", 4, &[0])] },
        "job": { "resources": job }, "old": { "resources": old },
    }))
}

fn submit(job: &Value) -> Value {
    site("queuejob", job, &json!({}))
}

fn change(old: &Value, changed: &Value) -> Value {
    site("modifyjob", changed, old)
}

/// No vnode says in which of its host's sets a job is: one host has it, and as many of its free GPUs have to be linked.
#[test]
fn nvlink_on_hosts_with_several_sets_is_one_host_with_linked_gpus() {
    for (select, wish, wanted) in [
        (
            "1:ncpus=4:ngpus=4",
            "nvlink:required",
            Some("1:ncpus=4:ngpus=4:gpuos_linked=4"),
        ),
        // Each chunk is compared with what a host has, and all of them are on one.
        (
            "2:ngpus=1+1:ngpus=2+1:ncpus=8",
            "nvlink:required",
            Some("2:ngpus=1:gpuos_linked=4+1:ngpus=2:gpuos_linked=4+1:ncpus=8"),
        ),
        // A wish starts where there is no such place, too.
        ("2:ngpus=1", "nvlink", None),
        ("1:ngpus=1", "nvlink:required", None),
    ] {
        let found = made(&submit(
            &json!({ "select": select, "gpuos_topology": wish }),
        ));
        assert_eq!(found["place"], "free:group=host", "{select}");
        assert_eq!(found.get("select").map(String::as_str), wanted, "{select}");
    }
    // More than a host has are in sets of several hosts, which their vnodes name.
    let found = made(&submit(
        &json!({ "select": "9:ngpus=1", "gpuos_topology": "nvlink:required" }),
    ));
    assert_eq!(found["place"], "free:group=gpuos_nvlink");
    assert!(!found.contains_key("select"), "{found:?}");
    let leaf = made(&submit(
        &json!({ "select": "2:ngpus=4", "gpuos_topology": "leaf:required" }),
    ));
    assert_eq!(leaf["place"], "free:group=gpuos_leaf");
    assert!(!leaf.contains_key("select"), "{leaf:?}");
}

#[test]
fn one_host_contradicts_what_takes_several() {
    for wish in ["nvlink", "nvlink:required"] {
        let job = json!({ "select": "2:ngpus=1", "place": "scatter", "gpuos_topology": wish });
        let said = submit(&job);
        assert!(
            refusal(&said).contains("contradicts -l place=scatter"),
            "{said}"
        );
        let two =
            json!({ "select": "1:ngpus=1:host=n1+1:ngpus=1:host=n2", "gpuos_topology": wish });
        let said = submit(&two);
        assert!(
            refusal(&said).contains("host=n1 and another one host=n2"),
            "{said}"
        );
    }
    let one = json!({ "select": "1:ngpus=2", "place": "scatter", "gpuos_topology": "nvlink" });
    assert_eq!(made(&submit(&one))["place"], "scatter:group=host");
}

#[test]
fn a_change_counts_links_anew_and_off_takes_all_of_it_out() {
    let old = json!({ "select": "1:ngpus=4:gpuos_linked=4", "place": "pack:group=host", "gpuos_topology": "nvlink:required" });
    let found = made(&change(&old, &json!({ "select": "1:ngpus=2" })));
    assert_eq!(
        found,
        [("select".into(), "1:ngpus=2:gpuos_linked=2".into())].into()
    );
    let found = made(&change(&old, &json!({ "gpuos_topology": "nvlink" })));
    assert_eq!(found, [("select".into(), "1:ngpus=4".into())].into());
    let found = made(&change(&old, &json!({ "gpuos_topology": "leaf" })));
    assert_eq!(
        (&found["select"][..], &found["place"][..]),
        ("1:ngpus=4", "pack:group=gpuos_leaf")
    );
    for off in ["off", ""] {
        let found = made(&change(&old, &json!({ "gpuos_topology": off })));
        assert_eq!(
            (&found["select"][..], &found["place"][..]),
            ("1:ngpus=4", "pack")
        );
    }
    // A copy of what qstat shows.
    let copy = json!({ "select": "1:ngpus=4:gpuos_linked=4" });
    assert_eq!(*edits(&change(&old, &copy)), Vec::<Value>::new());
}

/// The release before this one held parts of a GPU together by the vnode of that.
#[test]
fn what_a_release_before_has_made_of_a_job_is_counted_anew() {
    let slices = json!({
        "select": "1:ncpus=2:gpuos_mig_compute=1:gpuos_mig_memory=1:gpuos_mig_board=a30",
        "place": "pack:group=gpuos_mig_gpu", "gpuos_mig": "1g.6gb",
    });
    let found = made(&change(&slices, &json!({ "gpuos_mig": "1g.6gb:2" })));
    assert_eq!(
        found["select"],
        "1:ncpus=2:gpuos_mig_compute=2:gpuos_mig_memory=2:gpuos_mig_board=a30"
    );
    assert_eq!(found["place"], "pack");
    let found = made(&change(&slices, &json!({ "gpuos_mig": "off" })));
    assert_eq!(
        (&found["select"][..], &found["place"][..]),
        ("1:ncpus=2", "pack")
    );

    let share = json!({
        "select": "1:ncpus=2:mem=76gb:gpuos_share_parts=2", "place": "free:group=gpuos_share_gpu", "gpuos_share": "timeslice,mem=60G",
        "gpuos_share_parts": "2", "mem": "76gb",
    });
    let found = made(&change(
        &share,
        &json!({ "gpuos_share": "timeslice,mem=10G" }),
    ));
    assert_eq!(found["select"], "1:ncpus=2:mem=26gb:gpuos_share_parts=2");
    assert_eq!(found["place"], "free");
    let found = made(&change(&share, &json!({ "gpuos_share": "off" })));
    assert_eq!(
        (&found["select"][..], &found["place"][..]),
        ("1:ncpus=2:mem=16gb", "free")
    );
}

/// Each chunk with slices was on a vnode of its own, which now is a host.
#[test]
fn chunks_that_a_release_before_had_on_gpus_of_their_own_may_be_on_one_host() {
    let counts = "gpuos_mig_compute=1:gpuos_mig_memory=1:gpuos_mig_board=a30";
    let old = json!({ "select": format!("2:ncpus=1:{counts}"), "place": "vscatter", "gpuos_mig": "1g.6gb" });
    let found = made(&change(&old, &json!({ "gpuos_mig": "1g.6gb:2" })));
    assert_eq!(found["place"], "free");
    let found = made(&change(&old, &json!({ "gpuos_mig": "off" })));
    assert_eq!(
        (&found["select"][..], &found["place"][..]),
        ("2:ncpus=1", "free")
    );
    // A user's own word stays.
    let own = json!({ "select": "2:ncpus=1", "place": "vscatter" });
    let found = made(&change(&own, &json!({ "gpuos_mig": "1g.6gb" })));
    assert!(!found.contains_key("place"), "{found:?}");
}

/// Its counts are those of the site from which it comes, and no user's.
#[test]
fn a_job_that_another_server_sends_is_counted_anew() {
    for (select, name, value, wanted) in [
        (
            "1:ncpus=2:mem=76gb:gpuos_share_parts=3",
            "gpuos_share",
            "timeslice,mem=60G",
            "1:ncpus=2:mem=76gb:gpuos_share_parts=2",
        ),
        (
            "1:ncpus=2:gpuos_share_parts=3:mem=61gb",
            "gpuos_share",
            "timeslice:3,mem=60G",
            "1:ncpus=2:mem=61gb:gpuos_share_parts=3",
        ),
        (
            "1:ncpus=2:gpuos_mig_compute=4:gpuos_mig_memory=4:gpuos_mig_board=h100",
            "gpuos_mig",
            "1g.6gb:2",
            "1:ncpus=2:gpuos_mig_compute=2:gpuos_mig_memory=2:gpuos_mig_board=a30",
        ),
        (
            "1:ngpus=1:mem=99gb:gpuos_mem_beyond=83gb",
            "gpuos_mem",
            "120G",
            "1:ngpus=1:mem=57gb:gpuos_mem_beyond=41gb",
        ),
        (
            "1:ngpus=4:gpuos_linked=2",
            "gpuos_topology",
            "nvlink:required",
            "1:ngpus=4:gpuos_linked=4",
        ),
    ] {
        let mut job = json!({ "select": select, name: value });
        if name == "gpuos_share" {
            // What PBS adds up of the chunks.
            job["gpuos_share_parts"] = "3".into();
        }
        let found = made(&submit(&job));
        assert_eq!(found["select"], wanted, "{select}");
    }
    // Of who asks for no share or memory, nobody counts one.
    for select in [
        "1:gpuos_share_parts=1",
        "1:ngpus=1:mem=9gb:gpuos_mem_beyond=1gb",
    ] {
        let said = submit(&json!({ "select": select }));
        assert!(
            refusal(&said).contains("gpuos counts it by what a job asks for"),
            "{said}"
        );
    }
}

#[test]
fn a_reservation_is_translated_as_a_job() {
    for (name, value, select, wanted) in [
        (
            "gpuos_topology",
            "leaf",
            "2:ngpus=8",
            ("", "free:group=gpuos_leaf"),
        ),
        (
            "gpuos_topology",
            "nvlink:required",
            "1:ngpus=2",
            ("1:ngpus=2:gpuos_linked=2", "free:group=host"),
        ),
        (
            "gpuos_mig",
            "1g.6gb",
            "1:ncpus=1",
            (
                "1:ncpus=1:gpuos_mig_compute=1:gpuos_mig_memory=1:gpuos_mig_board=a30",
                "",
            ),
        ),
        (
            "gpuos_share",
            "timeslice,mem=1G",
            "1:ncpus=1:mem=1gb",
            ("1:ncpus=1:mem=2gb:gpuos_share_parts=2", ""),
        ),
    ] {
        let reservation = json!({ "select": select, name: value });
        let found = made(&site("resvsub", &reservation, &json!({})));
        let text = |key: &str| found.get(key).map_or("", |value| &value[..]);
        assert_eq!((text("select"), text("place")), wanted, "{name}={value}");
    }
    for (name, value, says) in [
        (
            "gpuos_topology",
            "spine",
            "this cluster has no level 'spine'",
        ),
        (
            "gpuos_topology",
            "leaf:required",
            "no leaf has more than 32",
        ),
        (
            "gpuos_share",
            "timeslice,mem=9T",
            "write mem=80535M or less",
        ),
    ] {
        let reservation = json!({ "select": "5:ngpus=8:mem=1gb", name: value });
        let reservation = match name {
            "gpuos_share" => json!({ "select": "1:mem=1gb", name: value }),
            _ => reservation,
        };
        let said = site("resvsub", &reservation, &json!({}));
        assert!(refusal(&said).contains(says), "{said}");
    }
    let plain = json!({ "select": "1:ngpus=1", "place": "pack" });
    assert!(edits(&site("resvsub", &plain, &json!({}))).is_empty());
}

#[test]
fn a_changed_reservation_is_looked_at_as_a_whole() {
    let old = json!({ "select": "1:ngpus=4:gpuos_linked=4", "place": "free:group=host", "gpuos_topology": "nvlink:required" });
    let changed = |changed: Value| site("modifyresv", &changed, &old);
    let found = made(&changed(json!({ "select": "1:ngpus=2" })));
    assert_eq!(found["select"], "1:ngpus=2:gpuos_linked=2");
    assert!(edits(&changed(json!({ "reserve_start": "1800000000" }))).is_empty());
    let said = changed(json!({ "select": "1:ncpus=2" }));
    assert!(refusal(&said).contains("asks for no GPU"), "{said}");
}

#[test]
fn what_means_something_for_a_program_alone_is_refused_in_a_reservation() {
    for (name, value) in [
        ("gpuos_checkpoint", "10m"),
        ("gpuos_power", "300W"),
        ("gpuos_clocks", "1200"),
        ("gpuos_mps", "50%"),
        ("gpuos_placement", "pack"),
    ] {
        let reservation = json!({ "select": "1:ngpus=1", name: value });
        for kind in ["resvsub", "modifyresv"] {
            let said = site(kind, &reservation, &json!({ "select": "1:ngpus=1" }));
            assert_eq!(
                refusal(&said),
                format!(
                    "-l {name}={value}: it means nothing for a reservation; write it for the jobs in the reservation"
                )
            );
        }
        let off = json!({ "select": "1:ngpus=1", name: "off" });
        let said = site("resvsub", &off, &json!({}));
        assert!(edits(&said).is_empty(), "{said}");
    }
}
