//! `gpuos replay`, and what `gpuos why` takes from a recording.

use std::fs;

use gpuos_config::gpuos_toml::Config;
use gpuos_model::gpuset::GpuSet;
use gpuos_model::node_types::NodeFacts;
use gpuos_placement::plan::{GpuShape, NodeState, Planner, Request};
use gpuos_placement::record::{By, Outcome, Purpose, Sizes, Writer, path};

use crate::site::Site;

/// A ring with one decision on two nodes; `wrong` makes it one that the planner would not make.
pub fn ring(job: u32, wrong: bool) -> Vec<u8> {
    let node = |at: usize| NodeFacts {
        name: format!("n{at}"),
        gpus: 8,
        gres_type: "h100".into(),
        ..NodeFacts::default()
    };
    let cluster = Config::default()
        .cluster(&[node(1), node(2)], None)
        .unwrap();
    let mut planner = Planner::new(cluster.clone());
    let states = [8, 6].map(|free| NodeState {
        candidate: true,
        present: GpuSet::first(8),
        free: GpuSet::first(free),
        free_cpus: 64,
        free_memory_mib: u64::MAX,
        ..NodeState::default()
    });
    let request = Request::new(1, 1, GpuShape::PerNode(2));
    let mut choice = planner.plan(&states, &request, 0).unwrap().clone();
    if wrong {
        choice.bus_gbps += 1.0;
    }
    let sizes = Sizes::new(64, 2);
    let mut memory = vec![0; sizes.total()];
    let mut writer = Writer::open(&mut memory, sizes, 2);
    writer.model(&mut memory, &cluster, None);
    writer.states(&mut memory, &states);
    writer.asked(
        &mut memory,
        job,
        Purpose::Start,
        (0, By::Order),
        &request,
        Ok(&choice),
        1_795_210_800,
    );
    writer.ended(&mut memory, job, Outcome::Taken);
    memory
}

#[test]
fn a_recording_replays_alone_or_shows_the_first_difference() {
    let site = Site::new("24.11.5");
    let (good, bad) = (site.path("good"), site.path("bad"));
    fs::write(&good, ring(17, false)).unwrap();
    fs::write(&bad, ring(17, true)).unwrap();
    let copy = site.path("copy");
    let same = site.run(&["replay", &good, "--save", &copy]);
    assert_eq!(same.code, 0, "{}", same.err);
    assert!(
        same.out.contains("1 decision from 2026-11-20T21:40:00Z"),
        "{}",
        same.out
    );
    assert!(same.out.contains("the same, bit by bit"), "{}", same.out);
    assert_eq!(fs::read(copy).unwrap(), ring(17, false));
    let other = site.run(&["replay", &bad]);
    assert_eq!(other.code, 1);
    assert!(other.out.contains("The first: job 17 at"), "{}", other.out);
    let json = site.run(&["replay", &bad, "--json"]).json();
    assert_eq!(
        (&json["different"], &json["first_difference"]["job"]),
        (&1.into(), &17.into())
    );
}

#[test]
fn what_a_recording_has_of_the_network_is_told() {
    let site = Site::new("24.11.5");
    // Two leaves with an uplink each; a gang on both of the first half.
    let node = |at: usize| NodeFacts {
        name: format!("n{at}"),
        gpus: 8,
        gres_type: "h100".into(),
        ..NodeFacts::default()
    };
    let net = "[[fabric.net]]\nname = \"ib\"\nkind = \"fat-tree\"\nnodes = \"n[1-8]\"\nnode-gbps = 25\n\
               nodes-per-switch = 2\nfanout = [2, 2]\noversubscription = [4, 4]\n";
    let config = Config::parse(net, "gpuos.toml").unwrap();
    let nodes: Vec<NodeFacts> = (1..=8).map(node).collect();
    let cluster = config.cluster(&nodes, None).unwrap();
    let (mut traffic, net) = (config.traffic(&cluster).unwrap(), config.recipe(&cluster));
    let sizes = Sizes::new(64, 8);
    let mut memory = vec![0; sizes.total()];
    let mut writer = Writer::open(&mut memory, sizes, 8);
    writer.model(&mut memory, &cluster, net.as_ref());
    let state = NodeState {
        candidate: true,
        present: GpuSet::first(8),
        free: GpuSet::first(4),
        free_cpus: 64,
        free_memory_mib: u64::MAX,
        ..NodeState::default()
    };
    let states = vec![state; 8];
    let mut planner = Planner::new(cluster);
    traffic.start(7, vec![(0, GpuSet(0xf0)), (2, GpuSet(0xf0))]);
    let (gang, promise) = traffic.gang(7).unwrap();
    writer.gang(&mut memory, 7, gang, promise);
    writer.states(&mut memory, &states);
    let request = Request::new(4, 4, GpuShape::PerNode(4));
    let pick = traffic.best(&mut planner, &states, &request);
    let answer = planner.plan(&states, &request, pick.skip);
    let mut ask = |by| {
        let answer = answer.as_ref().map(|choice| *choice);
        let why = Purpose::Start;
        writer.asked(&mut memory, 8, why, (pick.skip, by), &request, answer, 1);
    };
    ask(By::Network(pick.beside));
    ask(By::Network(Some(1)));
    fs::write(site.path("net"), &memory).unwrap();
    let answer = site.run(&["replay", &site.path("net")]);
    assert_eq!(answer.code, 1, "{}", answer.err);
    assert!(
        answer
            .out
            .contains("2 were asked again, and 1 came out otherwise")
            && answer
                .out
                .contains("For 2 decisions equally close places were compared"),
        "{}",
        answer.out
    );
}

#[test]
fn what_is_no_recording_is_told() {
    let site = Site::new("24.11.5");
    let conf = site.path("slurm.conf");
    for (args, words) in [
        (&["replay"][..], "records = 0"),
        (&["replay", "/nowhere"], "--save"),
        (&["replay", &conf], "no ring of decisions"),
    ] {
        let answer = site.run(args);
        assert_eq!(answer.code, 1, "{args:?}");
        assert!(answer.err.contains(words), "{args:?}: {}", answer.err);
    }
}

#[test]
fn why_shows_what_there_was_to_choose_from() {
    let site = Site::new("24.11.5");
    // Where slurmctld with this slurm.conf would keep it.
    let place = path(&site.path(""));
    fs::write(&place, ring(2, false)).unwrap();
    let text = site.run(&["why", "2"]).out;
    let json = site.run(&["why", "2", "--json"]).json();
    let other = site.run(&["why", "9", "--json"]).json();
    fs::remove_file(&place).unwrap();
    assert!(
        text.contains("Decided 2026-11-20T21:40:00Z: Slurm offered 2 nodes, 2 with free GPUs"),
        "{text}"
    );
    let rows: Vec<&str> = text
        .lines()
        .filter(|line| line.contains("chosen"))
        .collect();
    assert_eq!(rows.len(), 1, "{text}");
    let decision = &json["jobs"][0]["decision"];
    assert_eq!(
        (&decision["offered_nodes"], &decision["choice"]),
        (&2.into(), &1.into())
    );
    assert_eq!(decision["best"].as_array().unwrap().len(), 2, "{decision}");
    assert!(other["jobs"][0]["decision"].is_null());
}
