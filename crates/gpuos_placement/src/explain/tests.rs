use std::sync::Arc;

use gpuos_model::cluster::{Cluster, Fabric, FabricLevel, Node};
use gpuos_model::gpuset::GpuSet;
use proptest::prelude::*;

use super::*;
use crate::cost::Objectives;
use crate::plan::{Choice, GpuShape, Never, NodeChoice, Request, TopologyRequest, Unit, Wait};

/// Eight DGX H100 under two leaf switches and a spine.
fn cluster() -> Cluster {
    let node_type = Arc::new(gpuos_model::node_types::by_name("dgx-h100").unwrap());
    let node = |at| Node {
        name: format!("n{at}"),
        node_type: Some(node_type.clone()),
    };
    let level = |name: &str, domains: &[&str], of: Vec<u32>| FabricLevel {
        name: name.into(),
        domains: domains.iter().map(|d| d.to_string()).collect(),
        domain_of: of,
        gbps: 50.0,
    };
    Cluster {
        nodes: (1..=8).map(node).collect(),
        fabric: Fabric {
            levels: vec![
                level("leaf", &["l1", "l2"], vec![0, 0, 0, 0, 1, 1, 1, 1]),
                level("spine", &["s1"], vec![0; 8]),
            ],
        },
    }
}

fn request(wish: Option<&str>) -> Request {
    Request {
        topology: wish.map(|level| TopologyRequest {
            level: level.into(),
            required: false,
        }),
        ..Request::new(2, 2, GpuShape::PerNode(8))
    }
}

fn choice(nodes: &[u32], reached: u32, domain: Option<u32>) -> Choice {
    let chosen = |&node| NodeChoice {
        node,
        gpus: GpuSet::first(8),
    };
    Choice {
        nodes: nodes.iter().map(chosen).collect(),
        reached,
        domain,
        bus_gbps: 50.0,
        usability_lost: 0.0,
        feasible_nodes: 6,
        feasible_domains: 1,
        ..Choice::default()
    }
}

#[test]
fn sentence_on_a_gang_in_one_leaf() {
    assert_eq!(
        sentence(
            &choice(&[4, 5], 2, Some(1)),
            &request(Some("leaf")),
            &cluster()
        ),
        "16 GPUs on 2 nodes (n[5-6]), inside leaf l2; ring bandwidth 50 GB/s per GPU; the only \
         one of 2 leaf domains with room for it; breaks up nothing that later jobs could use better."
    );
}

#[test]
fn sentence_says_when_the_wish_was_not_met() {
    let text = sentence(
        &choice(&[3, 4], 3, Some(0)),
        &request(Some("leaf")),
        &cluster(),
    );
    assert!(text.contains("inside spine s1"), "{text}");
    assert!(
        text.ends_with(
            "No leaf domain had room: --gpuos-topology=leaf:required would have waited."
        ),
        "{text}"
    );
    let met = sentence(
        &choice(&[3, 4], 3, Some(0)),
        &request(Some("spine")),
        &cluster(),
    );
    assert!(!met.contains("would have waited"), "{met}");
}

#[test]
fn what_a_place_is_worth_beside_another() {
    let of = |objectives: &str| {
        let worth = ValueGain {
            objectives: objectives.parse().unwrap(),
            percent: 31,
            than: "n5".into(),
        };
        value_sentence(&worth, &cluster())
    };
    assert_eq!(
        of("cost=100"),
        "More work by 31 % for the price than n5 (dgx-h100)."
    );
    assert_eq!(of("throughput=100"), "Faster by 31 % than n5 (dgx-h100).");
    assert_eq!(
        of("throughput=40,energy=60"),
        "Worth 31 % more by throughput=40,energy=60 than n5 (dgx-h100)."
    );
}

#[test]
fn sentence_on_one_node() {
    let mut one = choice(&[2], 0, None);
    one.usability_lost = 9.5;
    one.feasible_domains = 3;
    let text = sentence(&one, &request(None), &cluster());
    assert_eq!(
        text,
        "8 GPUs on 1 node (n3), all linked by NVLink; ring bandwidth 50 GB/s per GPU; 3 nodes had \
         room for it; leaves 1.5 more idle GPUs harder to use for later \
         jobs."
    );
}

#[test]
fn waiting_names_the_smallest_change() {
    let capacity = why_wait(&Wait::Capacity {
        feasible_nodes: 5,
        needed_nodes: 8,
        free_gpus: 43,
        needed_gpus: 64,
    });
    assert_eq!(
        capacity,
        "Not enough room now: 8 nodes needed with enough free GPUs, CPUs and memory, 5 found; 64 \
         GPUs needed, 43 free for it. It needs at least 3 more nodes with room."
    );
    let level = why_wait(&Wait::Level {
        level: "leaf".into(),
        best_domain: "l2".into(),
        unit: Unit::Nodes,
        have: 6,
        need: 8,
    });
    assert_eq!(
        level,
        "The job requires one leaf domain, and none has room now: l2 comes nearest, with 6 of 8 \
         nodes free. It starts when 2 more are free there, or now with \
         --gpuos-topology=leaf:preferred."
    );
    let unknown = why_wait(&Wait::UnknownLevel {
        level: "leef".into(),
        known: vec!["node".into(), "leaf".into()],
    });
    assert!(
        unknown.contains("'leef'") && unknown.contains("node, leaf"),
        "{unknown}"
    );
    let never = why_wait(&Wait::Never {
        why: Never::Said("no node has 9 GPUs.".into()),
    });
    // What was offered is not the cluster: that a job can never start is another claim.
    assert!(
        never.contains("in service") && never.ends_with("no node has 9 GPUs."),
        "{never}"
    );
    let named = why_wait_on(
        &Wait::Capacity {
            feasible_nodes: 1,
            needed_nodes: 2,
            free_gpus: 20,
            needed_gpus: 8,
        },
        2,
    );
    assert_eq!(
        named,
        "Not enough room now: of the 2 nodes that the job names, 1 has enough free GPUs, CPUs and memory. It starts when \
         all of them have."
    );
}

#[test]
fn note_reads_as_one_line() {
    let note = Note::new(
        &choice(&[4, 5], 2, Some(1)),
        &request(Some("leaf")),
        &cluster(),
        0,
    );
    let text = note.encode();
    assert_eq!(
        text,
        "gpuos: level=leaf domain=l2 wish=leaf bus=50 lost=0 nodes=6 domains=1 gpus=n[5-6]:0-7"
    );
    assert_eq!(Note::parse(&text), Some(note));
}

#[test]
fn note_keeps_what_others_wrote() {
    let note = Note::parse("gpuos: level=node bus=48 gpus=n1:0,2-3,n2:-,+4").unwrap();
    assert_eq!(note.gpus.len(), 2);
    assert_eq!(note.gpus[0].gpus, GpuSet(0b1101));
    assert_eq!((note.gpus[1].gpus, note.more_nodes), (GpuSet::EMPTY, 4));
    let first = note.write_into("burst buffer ready");
    assert!(
        first.starts_with("burst buffer ready | gpuos: level=node"),
        "{first}"
    );
    let again = Note::parse(&first).unwrap().write_into(&first);
    assert_eq!(again, first);
    assert_eq!(without(&first), "burst buffer ready");
}

#[test]
fn damaged_notes_are_no_notes() {
    for text in [
        "",
        "hello",
        "gpuos:",
        "gpuos: level",
        "gpuos: bus=1",
        "gpuos: level=x bus=y",
        "gpuos: level=x gpus=0-3",
        "gpuos: level=x gpus=n[:0",
        "gpuos: level=x gpus=n1:3-1",
        "gpuos: level=x gpus=n1:64",
        "gpuos: level=x wish=a:b",
    ] {
        assert_eq!(Note::parse(text), None, "{text}");
    }
    assert!(Note::parse("gpuos: level=x later=field").is_some());
}

prop_compose! {
    fn notes()(
        level in "[a-z]{1,70}",
        domain in "[ -~]{0,80}",
        wish in proptest::option::of(("[a-z0-9]{1,64}", any::<bool>())),
        figures in (0u32..4000, 0u32..100, any::<u32>(), any::<u32>(), 0u32..16),
        nodes in proptest::collection::vec(("(n|gpu-)", 0u32..5000, 0usize..5, any::<u64>()), 0..200),
        same in any::<bool>(),
        worth in proptest::option::of((0i64..=100, 0u32..1000, "[!-{]{1,70}")),
        held in proptest::option::of(any::<(u32, u32)>()),
    ) -> Note {
        let gpus = nodes.into_iter().map(|(stem, number, width, gpus)| NodeGpus {
            node: format!("{stem}{number:0width$}"),
            gpus: GpuSet(if same { 0xff } else { gpus }),
        });
        Note {
            level,
            domain,
            wish: wish.map(|(level, required)| TopologyRequest { level, required }),
            bus_gbps: figures.0 as f32 / 4.0,
            usability_lost: figures.1 as f32 / 2.0,
            feasible_nodes: figures.2,
            feasible_domains: figures.3,
            attempt: figures.4,
            worth: worth.map(|(energy, percent, than)| ValueGain {
                objectives: Objectives::new([100 - energy, 0, energy, 0, 0]).unwrap(),
                percent,
                than,
            }),
            held: held.map(|(nodes, of)| Held { nodes, of }),
            class: None,
            alone: None,
            mig: None,
            gpus: gpus.collect(),
            more_nodes: 0,
        }
    }
}

#[test]
fn a_note_says_how_many_nodes_hold_checkpoints_of_the_job() {
    let held = |nodes, of| Held { nodes, of };
    let note = Note::of_nodes(held(2, 3), ["n4", "n5", "n6"].map(String::from));
    assert_eq!(
        note.encode(),
        "gpuos: level=any bus=0 lost=0 nodes=0 domains=0 held=2/3 gpus=n[4-6]:-"
    );
    assert_eq!(Note::parse(&note.encode()), Some(note));
    for damaged in ["held=", "held=2", "held=2/x", "held=-1/3", "held=1/2/3"] {
        let note = Note::parse(&format!("gpuos: level=any {damaged} gpus="));
        assert_eq!(note.map(|note| note.held), Some(None), "{damaged}");
    }
    let first = |held| held_sentence(held).split(" held ").next().map(String::from);
    assert_eq!(first(held(1, 1)).as_deref(), Some("Its node"));
    assert_eq!(first(held(3, 3)).as_deref(), Some("All 3 nodes"));
    assert_eq!(first(held(2, 3)).as_deref(), Some("2 of its 3 nodes"));
    assert!(held_sentence(held(0, 3)).starts_with("None of the nodes that held"));
}

#[test]
fn a_note_keeps_class_and_exclusive_level_where_there_is_room() {
    let mut note = Note {
        level: "node".into(),
        class: Some("noisy".into()),
        alone: Some("leaf".into()),
        ..Note::default()
    };
    assert_eq!(
        note.encode(),
        "gpuos: level=node bus=0 lost=0 nodes=0 domains=0 class=noisy alone=leaf gpus="
    );
    assert_eq!(Note::parse(&note.encode()), Some(note.clone()));
    let long = "x".repeat(64);
    (note.level, note.domain) = (long.clone(), long.clone());
    (note.class, note.alone) = (Some(long.clone()), Some(long));
    assert!(note.encode().len() <= MAX_NOTE);
}

proptest! {
    #[test]
    fn notes_fit_and_read_back(note in notes()) {
        let text = note.encode();
        prop_assert!(text.len() <= MAX_NOTE && text.is_ascii() && !text.contains('\n'), "{}", text);
        let read = Note::parse(&text).unwrap();
        prop_assert_eq!(read.gpus.len() + read.more_nodes as usize, note.gpus.len());
        let mut all = note.gpus.clone();
        all.sort();
        prop_assert!(read.gpus.iter().all(|entry| all.binary_search(entry).is_ok()));
        prop_assert_eq!(&read.wish, &note.wish);
        prop_assert_eq!(read.feasible_nodes, note.feasible_nodes);
        let percent = |note: &Note| note.worth.as_ref().map(|worth| (worth.objectives, worth.percent));
        prop_assert_eq!(percent(&read), percent(&note));
        prop_assert_eq!(read.held, note.held);
        prop_assert!((read.bus_gbps - note.bus_gbps).abs() <= 0.051);
        // What was read is a note again, as it stands.
        prop_assert_eq!(Note::parse(&read.encode()), Some(read));
    }

    #[test]
    fn any_comment_is_read_or_refused(text in "\\PC{0,60}|gpuos: level=x [ -~]{0,60}") {
        if let Some(note) = Note::parse(&text) {
            prop_assert!(note.encode().len() <= MAX_NOTE);
        }
    }

    #[test]
    fn a_note_is_found_beside_any_text(text in "[ |a]{0,12}(gpuos: (level=x)?)?[ |a]{0,12}") {
        let note = Note { level: "leaf".into(), ..Note::default() };
        let once = note.write_into(&text);
        prop_assert_eq!(Note::parse(&once), Some(note.clone()), "{}", once);
        prop_assert_eq!(note.write_into(&once), once);
        prop_assert_eq!(Note::parse(&without(&text)), None);
    }

    #[test]
    fn gpu_sets_read_back(bits in any::<u64>()) {
        let set = GpuSet(bits);
        prop_assert_eq!(parse_gpus(&set.to_string()), Some(set));
    }
}

proptest! {
    /// The figures and GPUs of a note read as `format` writes them.
    #[test]
    fn notes_are_written_as_format_would(
        bus in prop_oneof![0.0f32..2000.0, (0u32..80_000).prop_map(|n| n as f32 / 40.0), any::<f32>()],
        mask in any::<u64>(),
    ) {
        let gpus = GpuSet(mask);
        let note = Note {
            level: "leaf".into(),
            bus_gbps: bus,
            gpus: vec![NodeGpus { node: "n1".into(), gpus }],
            ..Note::default()
        };
        let figure = format!("{bus:.1}");
        let figure = figure.strip_suffix(".0").unwrap_or(&figure);
        let wanted = format!("gpuos: level=leaf bus={figure} lost=0 nodes=0 domains=0 gpus=n1:{gpus}");
        prop_assert_eq!(note.encode(), wanted);
    }
}

#[test]
fn a_note_on_slices_keeps_its_instances_whole() {
    let mig = "3g.40gb:1,1g.10gb+me:2".to_string();
    let note = Note::of_slices(mig.clone(), ["n2".to_string(), "n1".to_string()]);
    let line = note.encode();
    assert!(line.contains(" mig=3g.40gb:1,1g.10gb+me:2 "), "{line}");
    let read = Note::parse(&format!("mine | {line}")).expect("a note");
    assert_eq!((read.mig, read.gpus.len()), (Some(mig), 2));
    let long = Note::of_slices("x".repeat(MAX_NOTE), ["n1".to_string()]).encode();
    assert!(!long.contains("mig=") && long.len() <= MAX_NOTE, "{long}");
}
