//! Which GPUs of a host jobs are given, who has them, and what the host reports.

use std::collections::BTreeSet;

use gpuos_model::cluster::Link;
use gpuos_model::node_types::by_name;
use gpuos_wlm::ask::Ask;
use gpuos_wlm::host::{Gpu, Host, Short};
use gpuos_wlm::journal::{Entry, file};
use gpuos_wlm::saves::{Saves, number};
use gpuos_wlm::sense::Sensed;
use gpuos_wlm::start::{Start, start};
use proptest::prelude::*;

fn host(kind: &str) -> Host {
    Host::of_kind(by_name(kind).expect("a shipped type").into())
}

fn ask(gpus: u32, wish: &str) -> Ask {
    let options = [("gpuos_topology", wish)];
    let options = options.into_iter().filter(|(_, wish)| !wish.is_empty());
    Ask::read(gpus, options, "-l {}").expect("a wish")
}

fn set(numbers: &[u8]) -> BTreeSet<u8> {
    numbers.iter().copied().collect()
}

#[test]
fn pairs_stay_together_and_a_required_one_waits() {
    let host = host("pairs-8");
    let held = set(&[0, 2, 4]);
    let two = host.choose(&ask(2, ""), &held).unwrap();
    assert_eq!((two.numbers, two.level), (vec![6, 7], Some("nvlink")));
    // One of the broken pairs, not of the whole one.
    let one = host.choose(&ask(1, ""), &held).unwrap();
    assert!([1, 3, 5].contains(&one.numbers[0]), "{one:?}");
    let held = set(&[0, 2, 4, 6]);
    let apart = host.choose(&ask(2, "nvlink"), &held).unwrap();
    assert_eq!(apart.level, Some("node"));
    let Start::Later(why) = start(&host, &ask(2, "nvlink:required"), &held) else {
        panic!("there is no pair");
    };
    assert!(why.contains("nvlink"), "{why}");
    let all = set(&[0, 1, 2, 3, 4, 5, 6]);
    let Start::HostDiffers(why) = start(&host, &ask(2, ""), &all) else {
        panic!("one is free");
    };
    assert!(
        why.contains("was given 2 GPUs of this host, and 1 of its 8"),
        "{why}"
    );
}

#[test]
fn variables_name_gpus_by_one_kind_of_name() {
    let mut host = host("a100-pairs-4");
    let value = |host: &Host| {
        let chosen = host.choose(&ask(2, ""), &set(&[])).unwrap();
        let mut all = chosen.variables().into_iter();
        let names = ["CUDA_DEVICE_ORDER", "GPUOS_GPUS", "GPUOS_LEVEL"];
        let visible = all.next().unwrap();
        assert_eq!(visible.0, "CUDA_VISIBLE_DEVICES");
        assert_eq!(all.map(|(name, _)| name).collect::<Vec<_>>(), names);
        visible.1
    };
    assert_eq!(value(&host), "0,1");
    host.gpus[0].uuid = "GPU-a".into();
    assert_eq!(value(&host), "0,1");
    host.gpus[1].uuid = "GPU-b".into();
    assert_eq!(value(&host), "GPU-a,GPU-b");
    // Nothing that a list could be broken by.
    host.gpus[1].uuid = "GPU-b\nLD_PRELOAD=x".into();
    assert_eq!(value(&host), "0,1");
    let none = host.choose(&ask(0, ""), &set(&[])).unwrap();
    assert_eq!(none.variables(), [("CUDA_VISIBLE_DEVICES", String::new())]);
}

#[test]
fn a_gpu_that_has_gone_keeps_the_numbers_of_the_others() {
    let mut host = host("pairs-8");
    // What the hardware shows without GPU 0: seven GPUs, numbered as before.
    let mut kind = (*host.kind).clone();
    let links = (1..8).flat_map(|a| (1..8).map(move |b| (a, b)));
    kind.links = links.map(|(a, b)| kind.link(a, b)).collect();
    kind.gpus = 7;
    kind.numa.remove(0);
    kind.nics.iter_mut().for_each(|nic| {
        nic.links.remove(0);
    });
    host.gpus.remove(0);
    host.kind = kind.into();
    let chosen = host
        .choose(&ask(2, "nvlink:required"), &set(&[3, 5]))
        .unwrap();
    assert_eq!(chosen.numbers, [6, 7]);
    let given = host.given(&["6", "7"]).unwrap();
    assert_eq!((given.numbers, given.level), (vec![6, 7], Some("nvlink")));
    assert_eq!(host.given(&["0", "1"]), None);
    assert_eq!(host.given(&[]), None);
}

#[test]
fn reports_say_what_is_free() {
    let host = host("pairs-8");
    let sensed = Sensed::of(&host, &set(&[0, 2, 4]));
    assert_eq!(
        sensed.for_gridengine("n1"),
        "begin\nn1:gpuos_topo:pairs-8\nn1:gpuos_free:5\nn1:gpuos_nvlink:2\nend\n"
    );
    assert_eq!(sensed.for_lsf(), "2 gpuos_topo pairs-8 gpuos_nvlink 2\n");
    let none = Sensed::of(&host, &(0..8).collect());
    assert_eq!((none.free, none.nvlink), (0, 0));
    let switch = Sensed::of(&self::host("dgx-h100"), &set(&[3]));
    assert_eq!((switch.free, switch.nvlink), (7, 7));
    // No NVLink: each GPU is alone.
    assert_eq!(Sensed::of(&self::host("l40s-8"), &set(&[])).nvlink, 1);
    assert_eq!(Sensed::blind().free, 0);
}

#[test]
fn an_entry_is_read_whole_or_not_at_all() {
    let entry = Entry {
        gpus: set(&[0, 3, 17]),
        keeper: (4711, 123_456),
        group: 65_400,
    };
    let text = entry.text();
    assert_eq!(Entry::parse(&text), Some(entry));
    for end in 0..text.len() {
        assert_eq!(Entry::parse(&text[..end]), None, "{}", &text[..end]);
    }
    assert_eq!(Entry::parse(&format!("{text}gpus 1\n")), None);
    for (job, task, name) in [
        ("17", "0", "17.1"),
        ("17", "4", "17.4"),
        ("1", "undefined", "1.1"),
    ] {
        assert_eq!(file(job, task).as_deref(), Some(name));
    }
    for (job, task) in [
        ("", "1"),
        ("../x", "1"),
        ("1", "../x"),
        ("01", "1"),
        ("1\n", "1"),
        ("lock", "0"),
        ("12345678901", "1"),
    ] {
        assert_eq!(file(job, task), None, "{job} {task}");
    }
}

#[test]
fn saves_are_numbers_and_only_a_complete_one_is_told() {
    let names = ["1", "2", "request", "committed", "02", "x3"];
    let read = |committed| Saves::read(names.into_iter(), committed);
    assert_eq!(
        read("1\n"),
        Saves {
            committed: Some(1),
            next: 3
        }
    );
    for none in ["", "3\n", "01\n", "../1\n", "1 2\n"] {
        assert_eq!(
            read(none),
            Saves {
                committed: None,
                next: 3
            },
            "{none}"
        );
    }
    assert_eq!(Saves::old(names.into_iter(), 2), [1]);
    assert_eq!(number("4294967296"), None);
}

proptest! {
    // All sets of GPUs are looked at for each.
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever is asked for while whatever is held: as many as asked, none that is held, and a required level is kept.
    #[test]
    fn choices_are_free_and_as_many_as_asked(
        kind in prop::sample::select(vec!["pairs-8", "dgx-h100", "l40s-8", "a100-pairs-4"]),
        held in prop::collection::btree_set(0u8..8, 0..8),
        gpus in 1u32..9,
        wish in prop::sample::select(vec!["", "nvlink", "node", "any", "nvlink:required", "node:required"]),
    ) {
        let host = host(kind);
        let linked = |a: u8, b: u8| a == b || matches!(host.kind.link(a.into(), b.into()), Link::Nv(_));
        let free: Vec<u8> = (0..host.gpus.len() as u8).filter(|gpu| !held.contains(gpu)).collect();
        // All sets of that size, one by one.
        let sets = (0u32..1 << free.len()).filter(|set| set.count_ones() == gpus);
        let members = |set: u32| free.iter().enumerate().filter(move |(at, _)| set >> at & 1 == 1).map(|(_, gpu)| *gpu);
        let whole = |set: u32| members(set).all(|a| members(set).all(|b| linked(a, b)));
        let some_linked = sets.clone().any(whole);
        match host.choose(&ask(gpus, wish), &held) {
            Ok(chosen) => {
                prop_assert_eq!(chosen.numbers.len(), gpus as usize);
                prop_assert!(chosen.numbers.iter().all(|gpu| !held.contains(gpu)));
                prop_assert!(chosen.numbers.windows(2).all(|two| two[0] < two[1]));
                let all = chosen.numbers.iter().all(|a| chosen.numbers.iter().all(|b| linked(*a, *b)));
                if wish.starts_with("nvlink") && some_linked {
                    prop_assert!(all, "{:?} of {:?}", chosen, free);
                }
                if gpus > 1 {
                    prop_assert_eq!(chosen.level, Some(if all { "nvlink" } else { "node" }));
                }
            }
            Err(Short::Gpus(_)) => prop_assert!(free.len() < gpus as usize),
            Err(Short::Level(_)) => {
                prop_assert_eq!(wish, "nvlink:required");
                prop_assert!(free.len() >= gpus as usize && !some_linked);
            }
        }
        let (all, most) = host.room(&held);
        prop_assert_eq!(all as usize, free.len());
        let largest = (0u32..1 << free.len()).filter(|set| whole(*set)).map(u32::count_ones).max();
        prop_assert_eq!(Some(most), largest);
    }

    #[test]
    fn any_text_is_read_or_refused(text in "\\PC*", name in "\\PC{0,12}") {
        let _ = (Entry::parse(&text), file(&text, &name), number(&text));
        let gpu = Gpu { number: 0, uuid: text.clone() };
        let host = Host { gpus: vec![gpu], kind: by_name("l40s-8").unwrap().into() };
        for (_, value) in host.choose(&ask(1, ""), &set(&[])).unwrap().variables() {
            prop_assert!(value.bytes().all(|b| b.is_ascii_graphic()), "{}", value);
        }
    }
}
