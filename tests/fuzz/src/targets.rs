// One function for each kind of text: it must not panic, and what it accepts must hold. The
// stable test `input_fuzz` of gpuos_config includes this file too.

use std::borrow::Cow;

use gpuos_config::gpuos_toml::Config;
use gpuos_config::options::{
    Inherited, JobOptions, OPTIONS, PREFIX, Sources, parse_checkpoint, parse_gpus, parse_gres,
    parse_placement, parse_shape, parse_topology, placement_text,
};
use gpuos_config::slurm_conf::NodeLines;
use gpuos_config::slurm_topology::{TopologyFile, parse_topology_conf, parse_topology_yaml};
use gpuos_core::health::{Event, ExtraPart, NodeHealth, Sample, step};
use gpuos_core::wire::{self, Lines, MAX_REQUEST, decode, encode};
use gpuos_model::cluster::{Cluster, Fabric, NO_DOMAIN};
use gpuos_model::gpu_index::{GresGpu, NvmlIndex};
use gpuos_model::gpuset::GpuSet;
use gpuos_model::hostlist::{MAX_HOSTS, compress, expand};
use gpuos_model::node_gpu::NodeGpu;
use gpuos_model::node_types::NodeFacts;
use gpuos_placement::explain::{MAX_NOTE, Note};
use gpuos_placement::fabric::{Net, Promises, Scratch};
use gpuos_placement::plan::{GpuShape, Never, NodeState, Request, Wait};
use gpuos_placement::record::{By, Purpose, Sizes, Writer, read};

/// The longest sentence about bad input.
const MAX_SENTENCE: usize = 4000;

pub fn hostlist(text: &str) {
    match expand(text) {
        Ok(names) => {
            assert!(names.len() <= MAX_HOSTS);
            let list = compress(names.iter().map(String::as_str));
            assert_eq!(expand(&list).as_ref(), Ok(&names));
        }
        Err(error) => sentence(&error.to_string()),
    }
}

pub fn options(text: &str) {
    let sources = Sources::parse(text);
    assert_eq!(Sources::parse(&sources.text()), sources);
    let inherited = Inherited::parse(text);
    assert_eq!(Inherited::parse(&inherited.to_string()), inherited);
    assert_eq!(inherited.reworded("no option"), "no option");
    if let Ok(wish) = parse_topology(text) {
        assert_eq!(parse_topology(&wish.to_string()), Ok(wish));
    }
    if let Ok(rule) = parse_placement(text) {
        assert_eq!(parse_placement(&placement_text(&rule)), Ok(rule));
    }
    if let Ok(asked) = parse_checkpoint(text) {
        assert_eq!(parse_checkpoint(&asked.to_string()), Ok(asked));
    }
    if let Ok(shape) = parse_shape(text) {
        let written = shape.to_string();
        assert_eq!(parse_shape(&written).map(|s| s.to_string()), Ok(written));
        let ranks = shape.ranks();
        assert!((0..ranks.min(64)).all(|rank| shape.nested(rank) < ranks));
        assert!(shape.check(u64::from(ranks), None).is_ok());
    }
    for option in OPTIONS {
        let entry = format!("{PREFIX}{}={text}", option.name);
        if let Err(error) = JobOptions::from_spank_env([entry.as_str()].into_iter()) {
            sentence(&error.to_string());
        }
    }
    let entry = format!("{PREFIX}{text}");
    if let Err(error) = JobOptions::from_spank_env([entry.as_str()].into_iter()) {
        sentence(&error.to_string());
    }
}

pub fn gres(text: &str) {
    for parse in [parse_gres, parse_gpus] {
        match parse("--gres", text) {
            Ok(list) => assert!(
                list.iter()
                    .all(|gres| gres.count > 0 && !gres.name.is_empty())
            ),
            Err(error) => sentence(&error.to_string()),
        }
    }
}

pub fn config(text: &str) {
    match Config::parse(text, "gpuos.toml") {
        Ok(config) => {
            let (nodes, slurm) = (nodes(), slurm_fabric());
            for fabric in [None, Some(&slurm)] {
                match config.cluster(&nodes, fabric) {
                    Ok(cluster) => {
                        sound(&cluster, nodes.len());
                        let net = config
                            .net(&cluster)
                            .expect("what the cluster accepts holds");
                        sound_net(&net);
                    }
                    Err(error) => sentence(&error.to_string()),
                }
            }
        }
        Err(error) => sentence(&error.to_string()),
    }
}

/// Rules that were accepted can be worked with, whatever numbers they have.
pub fn health(text: &str) {
    let Ok(config) = Config::parse(text, "gpuos.toml") else {
        return;
    };
    let mut node = NodeHealth::new(2, 1);
    let mut now = 0;
    for round in 0..40u64 {
        let sample = Sample {
            celsius: Some(round as u32 * 9),
            pcie_replays: Some(round * round),
            ..Sample::default()
        };
        let code = [48, 31, 63, 79, 109][round as usize % 5];
        let gpu = NodeGpu::try_from((round % 3) as u8).expect("a GPU");
        for event in [
            Event::Sample {
                gpu,
                sample: Box::new(sample),
            },
            Event::Xid {
                gpu,
                code,
                gpu_instance: None,
                compute_instance: None,
                pid: None,
            },
            Event::Jobs(Vec::new()),
            Event::Tick,
        ] {
            now += 20_000;
            let _ = step(&mut node, &config.health, event, now);
        }
    }
}

/// gpuos's part of a node's `Extra`: what is read is what was written, and other text stays.
pub fn extra(text: &str) {
    let (mut part, wrong) = ExtraPart::read(text);
    if let Some(error) = wrong {
        sentence(&error.to_string());
        part = ExtraPart {
            out: [3, 7].into_iter().filter_map(GresGpu::new).collect(),
            degraded: GresGpu::new(1).into_iter().collect(),
            pool_out: NvmlIndex::new(4).into_iter().collect(),
            short: true,
            held: [(12, 3), (1200, 40)].into(),
            held_more: true,
        };
    }
    let written = part.write_into(text);
    assert_eq!(ExtraPart::read(&written), (part.clone(), None));
    assert_eq!(part.write_into(&written), written);
    let without = ExtraPart::default().write_into(&written);
    assert_eq!(ExtraPart::read(&without), Default::default());
    let again = part.write_into(&without);
    assert_eq!(ExtraPart::read(&again), (part, None));
    // Unknown words live through all of it.
    let unknown = ExtraPart::unknown(&written);
    assert_eq!(ExtraPart::unknown(&without), unknown);
    assert_eq!(ExtraPart::unknown(&again), unknown);
}

/// What comes over gpuosd's socket, in pieces as a socket gives them.
pub fn wire(text: &str) {
    let mut lines = Lines::new(MAX_REQUEST);
    for piece in text.as_bytes().chunks(7) {
        lines.push(piece);
        while let Ok(Some(line)) = lines.next_line() {
            match decode::<wire::Request>(&line, MAX_REQUEST) {
                Ok(request) => {
                    let again =
                        encode(&request, MAX_REQUEST * 8).expect("what was read is written");
                    assert_eq!(decode(&again, MAX_REQUEST * 8), Ok(request));
                }
                Err(error) => sentence(&error.to_string()),
            }
            let _ = decode::<wire::Reply>(&line, MAX_REQUEST);
        }
    }
}

pub fn topology_conf(text: &str) {
    topology(parse_topology_conf(text, "topology.conf").map_err(|error| error.to_string()));
}

pub fn topology_yaml(text: &str) {
    let found = parse_topology_yaml(text, "topology.yaml").map_err(|error| error.to_string());
    for one in found.iter().flat_map(|found| found.all()) {
        topology(Ok(one.clone()));
    }
}

pub fn note(text: &str) {
    if let Some(note) = Note::parse(text) {
        assert!(note.encode().len() <= MAX_NOTE);
        let written = note.write_into(text);
        assert!(Note::parse(&written).is_some(), "{written}");
    }
}

/// A ring of decisions with bytes of the input laid over it, and the bytes alone.
pub fn record(bytes: &[u8]) {
    if let Ok(recording) = read(bytes) {
        recording.replay(&mut |_| {});
    }
    let cluster = Config::default().cluster(&nodes(), Some(&slurm_fabric()));
    let cluster = cluster.expect("the nodes above are right");
    let sizes = Sizes::new(0, cluster.nodes.len());
    let mut memory = vec![0; sizes.total()];
    let mut writer = Writer::open(&mut memory, sizes, cluster.nodes.len());
    writer.model(&mut memory, &cluster, None);
    let free = |bits: u8| NodeState {
        candidate: true,
        present: GpuSet(0xff),
        free: GpuSet(bits.into()),
        ..NodeState::default()
    };
    let states: Vec<NodeState> = bytes.iter().take(16).map(|bits| free(*bits)).collect();
    writer.states(&mut memory, &states);
    let request = Request::new(1, 2, GpuShape::PerNode(4));
    let wait = Wait::Never {
        why: Never::Said("x".into()),
    };
    for job in 0..8 {
        writer.asked(
            &mut memory,
            job,
            Purpose::Start,
            (0, By::Order),
            &request,
            Err(&wait),
            1,
        );
    }
    // Every fourth byte of the input says how far on the next three go.
    let mut at = 0usize;
    for hit in bytes.chunks_exact(4) {
        at = (at + usize::from(hit[0]) * 97) % (memory.len() - 3);
        memory[at..at + 3].copy_from_slice(&hit[1..]);
    }
    if let Ok(recording) = read(&memory) {
        recording.replay(&mut |step| assert!(step.asked.answer == Err(Cow::Borrowed(&wait))));
    }
}

pub fn slurm_conf(text: &str) {
    let read = |name: &str| Ok((name == "slurm.conf").then(|| text.to_string()));
    if let Ok(lines) = NodeLines::read(&read) {
        let facts = lines.all();
        if let Ok(cluster) = Config::default().cluster(&facts, None) {
            sound(&cluster, facts.len());
        }
    }
}

fn topology(file: Result<TopologyFile, String>) {
    match file {
        Ok(file) => {
            let names: Vec<String> = nodes().into_iter().map(|node| node.name).collect();
            let cluster = Cluster {
                nodes: Vec::new(),
                fabric: file.fabric(&names),
            };
            sound_fabric(&cluster.fabric, names.len());
        }
        Err(error) => sentence(&error),
    }
}

/// One line of bounded length.
fn sentence(text: &str) {
    assert!(text.len() <= MAX_SENTENCE, "{} bytes: {text}", text.len());
    assert!(!text.contains('\n'), "{text}");
}

fn nodes() -> Vec<NodeFacts> {
    let node = |at: usize| NodeFacts {
        name: format!("n{at}"),
        gpus: [8, 4, 0][at % 3],
        gres_type: ["h100", "a100", ""][at % 3].into(),
        sockets: 2,
        cores_per_socket: 8,
        ..NodeFacts::default()
    };
    (0..16).map(node).collect()
}

fn slurm_fabric() -> Fabric {
    let text =
        "SwitchName=l1 Nodes=n[0-7]\nSwitchName=l2 Nodes=n[8-15]\nSwitchName=s Switches=l[1-2]";
    let names: Vec<String> = nodes().into_iter().map(|node| node.name).collect();
    let file = parse_topology_conf(text, "topology.conf").expect("the text above is right");
    file.fabric(&names)
}

/// What the planner takes for granted.
fn sound(cluster: &Cluster, nodes: usize) {
    assert_eq!(cluster.nodes.len(), nodes);
    for node_type in cluster
        .nodes
        .iter()
        .filter_map(|node| node.node_type.as_ref())
    {
        let gpus = node_type.gpus;
        assert!((1..=64).contains(&gpus));
        assert_eq!(node_type.links.len(), gpus * gpus);
        assert_eq!(node_type.numa.len(), gpus);
        assert!(node_type.nics.iter().all(|nic| nic.links.len() == gpus));
        for a in 0..gpus {
            for b in 0..gpus {
                assert_eq!(node_type.link(a, b), node_type.link(b, a));
            }
        }
        assert!(node_type.nvlink_gbps.is_finite() && node_type.pcie_gbps.is_finite());
    }
    sound_fabric(&cluster.fabric, nodes);
}

/// Routes end, stay inside the net, and a gang over all nodes has a rate.
fn sound_net(net: &Net) {
    let nodes = net.nodes() as u32;
    for (a, b) in (0..nodes).flat_map(|a| (0..a).map(move |b| (a, b))) {
        for link in net.path((a, 0), (b, 0)) {
            assert!((link as usize) < net.links());
            assert!(!net.link_name(link).is_empty());
        }
    }
    let gang: Vec<(u32, GpuSet)> = (0..nodes).map(|node| (node, GpuSet::EMPTY)).collect();
    let (mut promises, mut scratch) = (Promises::new(net), Scratch::new(net));
    let promise = promises.add(net, &mut scratch, &gang, 1000);
    assert!(net.bandwidth(&promises, &mut scratch, &gang) > 0);
    promises.remove(net, &mut scratch, &gang, promise);
    assert!(promises.is_empty());
}

fn sound_fabric(fabric: &Fabric, nodes: usize) {
    for level in &fabric.levels {
        assert_eq!(level.domain_of.len(), nodes);
        let known = |&of: &u32| of == NO_DOMAIN || (of as usize) < level.domains.len();
        assert!(level.domain_of.iter().all(known));
    }
    for pair in fabric.levels.windows(2) {
        for a in 0..nodes {
            for b in 0..a {
                let inner = pair[0].domain_of[a];
                if inner != NO_DOMAIN && inner == pair[0].domain_of[b] {
                    assert_eq!(pair[1].domain_of[a], pair[1].domain_of[b]);
                }
            }
        }
    }
}
