//! What qmgr is told of hosts at installs and removals, held against a model of what qmgr then does: in the end each host is what it was.

use gpuos_model::rng::Rng;
use serde_json::{Value, json};

use crate::hook_qmgr::{NGPUS, Node, Pbs, former};

fn four() -> Value {
    let gpu =
        |index: usize| json!({ "uuid": format!("GPU-{index}"), "nvlink": "a", "numa": index / 2 });
    json!({ "n1": { "leaf": "l1", "gpus": [gpu(0), gpu(1), gpu(2), gpu(3)] } })
}

const PLAIN: Node = (
    "n1",
    &[("ncpus", "64"), ("mem", "1000kb"), ("arch", "linux")],
);

#[test]
fn a_fresh_site_counts_gpus_where_it_counted_none() {
    let mut pbs = Pbs::of(&[PLAIN]);
    let before = pbs.nodes.clone();
    let (lines, notes) = pbs.install(&four());
    assert_eq!(
        lines,
        [
            "set node n1 resources_available.ngpus = 4",
            "set node n1 resources_available.gpuos_leaf = l1",
            "set node n1 resources_available.gpuos_nvlink = a",
        ]
    );
    assert_eq!(notes, "");
    assert_eq!(
        pbs.install(&four()).0,
        Vec::<String>::new(),
        "it is installed"
    );
    // GPUs that are shared or divided are none that it gives as a whole, and those of several sets are in none.
    let mut other = four();
    other["n1"]["gpus"][3] = json!({ "shares": 4 });
    other["n1"]["gpus"][0]["nvlink"] = "b".into();
    let mut shared = Pbs::of(&[PLAIN]);
    shared.install(&other);
    assert_eq!(
        (shared.get("n1", NGPUS), shared.get("n1", "gpuos_nvlink")),
        (Some("3"), None)
    );
    // Described otherwise.
    pbs.install(&other);
    assert_eq!(
        (pbs.get("n1", NGPUS), pbs.get("n1", "gpuos_nvlink")),
        (Some("4"), None)
    );
    pbs.counted("n1", 2);
    assert_eq!(pbs.remove(), Default::default());
    assert_eq!(pbs.nodes, before);
}

/// As PBS or an administrator may have it.
#[test]
fn a_host_is_known_by_its_short_name_and_by_its_long_one() {
    for (vnode, named) in [("n1.site", "n1"), ("n1", "n1.site"), ("n1.site", "n1.site")] {
        let mut pbs = Pbs::of(&[(vnode, PLAIN.1), ("n11", PLAIN.1)]);
        let before = pbs.nodes.clone();
        let hosts = json!({ named: four()["n1"] });
        pbs.install(&hosts);
        assert_eq!(
            (pbs.get(vnode, NGPUS), pbs.get("n11", NGPUS)),
            (Some("4"), None)
        );
        pbs.counted(vnode, 1);
        assert!(pbs.install(&hosts).0.is_empty());
        pbs.remove();
        assert_eq!(pbs.nodes, before, "{vnode} {named}");
    }
}

#[test]
fn a_site_that_counts_gpus_itself_keeps_its_number() {
    for site in ["0", "3", "4"] {
        let mut pbs = Pbs::of(&[PLAIN]);
        pbs.set("n1", "ngpus", site);
        let before = pbs.nodes.clone();
        pbs.install(&four());
        assert_eq!(pbs.get("n1", NGPUS), Some(site));
        pbs.counted("n1", 2);
        assert_eq!(pbs.install(&four()).0, Vec::<String>::new());
        assert_eq!(pbs.remove(), Default::default());
        assert_eq!(pbs.nodes, before);
    }
    // It has vnodes of its own: of sockets, each for one job at a time.
    let socket: &[(&str, &str)] = &[("ncpus", "32"), ("ngpus", "2"), ("sharing", "force_excl")];
    let mut pbs = Pbs::of(&[PLAIN, ("n1[0]", socket), ("n1[1]", socket)]);
    let before = pbs.nodes.clone();
    let mut two = four();
    two["n1"]["gpus"][3]["nvlink"] = "b".into();
    two["n1"]["gpus"][2]["nvlink"] = "b".into();
    pbs.install(&two);
    let set = |pbs: &Pbs| {
        ["n1", "n1[0]", "n1[1]"].map(|node| pbs.get(node, "gpuos_nvlink").map(str::to_owned))
    };
    assert_eq!(set(&pbs), [None, Some("a".into()), Some("b".into())]);
    assert_eq!(pbs.get("n1", NGPUS), None, "they are counted there");
    pbs.counted("n1[1]", 1);
    assert_eq!(
        pbs.install(&two).0,
        Vec::<String>::new(),
        "they are no vnodes of gpuos"
    );
    assert_eq!(pbs.remove(), Default::default());
    assert_eq!(pbs.nodes, before);
}

#[test]
fn a_host_that_does_not_fit_is_left_out_with_a_sentence() {
    let mut pbs = Pbs::of(&[PLAIN, ("n2", &[("ngpus", "5")])]);
    let mut both = four();
    both["n2"] = both["n1"].clone();
    let (lines, notes) = pbs.install(&both);
    assert_eq!(
        notes,
        "n2 is left out: PBS counts 5 GPUs there and 4 are described. Describe all of them, and install again."
    );
    assert!(lines.iter().all(|line| !line.contains("n2")), "{lines:?}");
    assert!(pbs.hosts.contains_key("n1") && !pbs.hosts.contains_key("n2"));
    // One of before is given back, with the number that its site has written.
    pbs.set("n2", "ngpus", "4");
    pbs.install(&both);
    pbs.counted("n2", 1);
    let mut fewer = both.clone();
    fewer["n2"]["gpus"] = json!([{}, {}]);
    let (_, notes) = pbs.install(&fewer);
    assert!(
        notes.contains("n2 is left out: PBS counts 4 GPUs there and 2 are described"),
        "{notes}"
    );
    assert_eq!(
        (
            pbs.get("n2", NGPUS),
            pbs.get("n2", "gpuos_ngpus"),
            pbs.get("n2", "gpuos_leaf")
        ),
        (Some("4"), None, None)
    );
}

#[test]
fn keep_cpus_and_keep_mib_are_said_to_mean_nothing() {
    let mut hosts = four();
    hosts["n1"]["keep_cpus"] = 2.into();
    let (_, notes) = Pbs::of(&[PLAIN]).install(&hosts);
    assert!(
        notes.starts_with("keep_cpus and keep_mib of n1 mean nothing any more"),
        "{notes}"
    );
}

/// It is described no more, without GPUs, or as one on which another one gives them.
#[test]
fn a_host_that_gpuos_gives_no_more_is_what_it_was() {
    for site in ["", "4"] {
        for new in [json!({}), json!({ "n1": { "leaf": "l1", "gpus": [] } })] {
            let mut pbs = Pbs::of(&[PLAIN]);
            pbs.set("n1", "ngpus", site);
            let before = pbs.nodes.clone();
            pbs.install(&four());
            pbs.counted("n1", 1);
            pbs.install(&new);
            assert_eq!(pbs.nodes, before, "{new}");
            assert_eq!(pbs.remove(), Default::default());
            assert_eq!(pbs.nodes, before, "{new}");
        }
        let mut pbs = Pbs::of(&[PLAIN]);
        pbs.set("n1", "ngpus", site);
        let before = pbs.nodes.clone();
        pbs.install(&four());
        pbs.counted("n1", 1);
        let mut advised = four();
        advised["n1"]["advise"] = true.into();
        pbs.install(&advised);
        let counts =
            [NGPUS, "gpuos_ngpus", "gpuos_host", "gpuos_leaf"].map(|key| pbs.get("n1", key));
        assert_eq!(
            counts,
            [
                Some(site).filter(|site| !site.is_empty()),
                None,
                None,
                Some("l1")
            ]
        );
        pbs.remove();
        assert_eq!(pbs.nodes, before);
    }
}

#[test]
fn comments_of_gpuos_go_and_a_host_that_it_took_offline_stays_so() {
    for (comment, state, left, says) in [
        (
            "gpuos: GPU 3 is out of service; gpuos health on n1 says why",
            "free",
            None,
            "",
        ),
        ("gpuos advises: GPU 1 is bad", "free", None, ""),
        ("fan", "offline", Some("fan"), ""),
        (
            "gpuos: host: dust",
            "offline",
            Some("gpuos: host: dust"),
            "n1 stays offline",
        ),
    ] {
        let mut pbs = Pbs::of(&[PLAIN]);
        pbs.install(&four());
        pbs.add("n1", &[("comment", comment), ("state", state)]);
        let (kept, notes) = pbs.remove();
        assert_eq!(
            (kept, pbs.get("n1", "comment"), pbs.get("n1", "state")),
            (String::new(), left, Some(state))
        );
        assert!(notes.starts_with(says), "{notes}");
        assert_eq!(notes.is_empty(), says.is_empty());
    }
}

/// Ends all jobs, or one of each vnode but these.
fn jobs_end(pbs: &mut Pbs) {
    for has in pbs.nodes.values_mut() {
        has.remove("jobs");
    }
}

#[test]
fn vnodes_of_a_release_before_are_taken_out_when_no_job_is_on_them() {
    for bare in [false, true] {
        let mut pbs = Pbs::of(&[PLAIN]);
        let before = pbs.nodes.clone();
        former(&mut pbs, "n1", &four(), bare);
        let (_, notes) = pbs.install(&four());
        assert_eq!((pbs.nodes.len(), &notes[..]), (1, ""));
        let counts = ["ncpus", "mem", NGPUS].map(|key| pbs.get("n1", key));
        assert_eq!(counts, [Some("64"), Some("1000kb"), Some("4")]);
        assert!(pbs.hosts["n1"].former.is_empty());
        assert_eq!(pbs.install(&four()).0, Vec::<String>::new());
        pbs.remove();
        assert_eq!(pbs.nodes, before);
    }
}

#[test]
fn vnodes_with_jobs_stay_offline_until_these_have_ended() {
    let mut pbs = Pbs::of(&[PLAIN]);
    let before = pbs.nodes.clone();
    former(&mut pbs, "n1", &four(), false);
    for (node, jobs) in [("n1[1]", "17.head/0"), ("n1[3]", "17.head/0, 18.head/0")] {
        pbs.add(node, &[("jobs", jobs)]);
    }
    let (_, notes) = pbs.install(&four());
    assert!(
        notes.contains(
            "vnodes of 2 GPUs stay, offline, until the jobs on them have ended (17.head, 18.head)"
        ),
        "{notes}"
    );
    assert_eq!(pbs.hosts["n1"].former, [1, 3]);
    let names: Vec<&String> = pbs.nodes.keys().collect();
    assert_eq!(names, ["n1", "n1[1]", "n1[3]"]);
    assert_eq!(
        ["n1[1]", "n1[3]"].map(|node| pbs.get(node, "state")),
        [Some("offline"); 2]
    );
    // What these have is not given a second time.
    assert_eq!(
        ["ncpus", "mem"].map(|key| pbs.get("n1", key)),
        [Some("62"), Some("998kb")]
    );
    pbs.counted("n1", 2);
    assert_eq!(
        (pbs.get("n1", NGPUS), pbs.get("n1", "gpuos_ngpus")),
        (Some("2"), None)
    );
    // Nothing new comes of another install while they run.
    let nodes = pbs.nodes.clone();
    pbs.install(&four());
    assert_eq!(
        ["ncpus", "mem"].map(|key| pbs.get("n1", key)),
        [Some("62"), Some("998kb")]
    );
    assert_eq!(pbs.nodes.len(), nodes.len());
    jobs_end(&mut pbs);
    pbs.install(&four());
    pbs.counted("n1", 4);
    assert!(pbs.hosts["n1"].former.is_empty() && pbs.nodes.len() == 1);
    assert_eq!(
        ["ncpus", "mem", NGPUS].map(|key| pbs.get("n1", key)),
        [Some("64"), Some("1000kb"), Some("4")]
    );
    pbs.remove();
    assert_eq!(pbs.nodes, before);
}

/// The hook is disabled then: PBS must not count what jobs have by the names of vnodes as free.
#[test]
fn a_removal_under_jobs_on_such_vnodes_gives_no_gpu_twice_and_is_done_later() {
    for site in ["", "4"] {
        let mut hosts = four();
        hosts["n1"]["gpus"][0] = json!({ "shares": 4 });
        let mut pbs = Pbs::of(&[PLAIN]);
        pbs.set("n1", "ngpus", site);
        let before = pbs.nodes.clone();
        former(&mut pbs, "n1", &hosts, false);
        for node in ["n1[0]", "n1[2]"] {
            pbs.add(node, &[("jobs", "17.head/0")]);
        }
        let (kept, _) = pbs.remove();
        assert!(kept.contains("17.head"), "{kept}");
        let own: u64 = pbs
            .get("n1", NGPUS)
            .map_or(0, |now| now.parse().expect("a number"));
        assert!(own <= 2, "of four, one is shared and one a job's: {own}");
        jobs_end(&mut pbs);
        let (kept, _) = pbs.remove();
        assert_eq!((kept, &pbs.nodes), (String::new(), &before), "{site}");
    }
}

#[test]
fn a_host_with_such_vnodes_that_is_described_no_more_is_given_back() {
    let mut pbs = Pbs::of(&[PLAIN]);
    let before = pbs.nodes.clone();
    former(&mut pbs, "n1", &four(), false);
    let mut idle = pbs.clone();
    idle.install(&json!({}));
    assert_eq!(idle.nodes, before);
    // Under a job it stays known until that has ended.
    pbs.add("n1[2]", &[("jobs", "17.head/0")]);
    pbs.install(&json!({}));
    assert_eq!(
        (&pbs.hosts["n1"].former[..], pbs.nodes.len()),
        (&[2][..], 2)
    );
    jobs_end(&mut pbs);
    pbs.install(&json!({}));
    assert!(pbs.hosts.is_empty());
    assert_eq!(pbs.nodes, before);
}

/// A site and what happens to it, by a seed: whatever it was, it is that in the end.
#[test]
fn whatever_a_site_was_it_is_after_a_removal() {
    for seed in 0..400 {
        let mut rng = Rng::new(seed);
        let mut draw = |below: usize| rng.below(below as u64) as usize;
        let mut pbs = Pbs::default();
        let mut hosts = json!({});
        let mut old = Vec::new();
        for name in ["n1", "n2", "n3"] {
            let count = 1 + draw(8);
            let numa = |index: usize| index * 2 / count;
            let gpus: Vec<Value> = (0..count)
                .map(|index| match draw(4) {
                    0 => json!({ "shares": 4, "uuid": format!("GPU-{name}-{index}") }),
                    set => json!({ "nvlink": format!("{name}.{}", set / 2), "numa": numa(index), "uuid": format!("GPU-{name}-{index}") }),
                })
                .collect();
            let leaf = ["", "l1"][draw(2)];
            hosts[name] = json!({ "leaf": leaf, "gpus": gpus });
            pbs.add(
                name,
                &[
                    ("ncpus", "64"),
                    ("mem", "1000kb"),
                    ("gmodel", "h100"),
                    ("queue", "big"),
                ],
            );
            match draw(4) {
                // Of a release before.
                0 => old.push(name),
                1 => pbs.set(name, "ngpus", &draw(count + 2).to_string()),
                2 => {
                    for socket in 0..2 {
                        let ngpus = (0..count)
                            .filter(|index| numa(*index) == socket)
                            .count()
                            .to_string();
                        let sharing = ["default_shared", "force_excl"][draw(2)];
                        pbs.add(
                            &format!("{name}[{socket}]"),
                            &[("ngpus", &ngpus), ("sharing", sharing)],
                        );
                    }
                }
                _ => {}
            }
        }
        let before = pbs.nodes.clone();
        for name in old {
            former(&mut pbs, name, &hosts, draw(2) == 0);
            for index in 0..hosts[name]["gpus"].as_array().expect("GPUs").len() {
                if draw(3) == 0 {
                    pbs.add(
                        &format!("{name}[{index}]"),
                        &[("jobs", "17.head/0, 18.head/1")],
                    );
                }
            }
        }
        for _ in 0..draw(8) {
            match draw(6) {
                0 | 1 => drop(pbs.install(&hosts)),
                2 => {
                    let mut fewer = hosts.clone();
                    match draw(3) {
                        0 => drop(fewer.as_object_mut().expect("a table").remove("n2")),
                        1 => fewer["n2"]["gpus"] = json!([]),
                        _ => fewer["n2"]["advise"] = true.into(),
                    }
                    pbs.install(&fewer);
                }
                3 => {
                    for node in pbs.counting() {
                        pbs.counted(&node, draw(8) as u64);
                    }
                }
                4 => jobs_end(&mut pbs),
                _ => drop(pbs.remove()),
            }
        }
        jobs_end(&mut pbs);
        let (kept, _) = pbs.remove();
        assert_eq!(kept, "", "{seed}");
        for (node, has) in &mut pbs.nodes {
            // A vnode of the site's with a job was never taken offline.
            assert_eq!(Some(&*has), before.get(node), "{seed}: {node}");
        }
        assert_eq!(pbs.nodes.len(), before.len(), "{seed}");
    }
}
