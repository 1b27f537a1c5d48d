//! The choice among equally close places by what running gangs leave of the network.

use gpuos_config::gpuos_toml::Config;
use gpuos_model::cluster::Cluster;
use gpuos_model::gpuset::GpuSet;
use gpuos_model::node_types::NodeFacts;
use gpuos_placement::fabric::UNBOUNDED;
use gpuos_placement::plan::{Choice, GpuShape, NodeState, Placement, Planner, Request};
use gpuos_placement::traffic::Traffic;
use proptest::prelude::*;

const NET: &str = "[[fabric.net]]\nname = \"ib\"\nkind = \"fat-tree\"\nnodes = \"n[1-16]\"\n\
                   nodes-per-switch = 2\nfanout = [2, 4]\noversubscription = [4, 4]\n";

/// Two nodes on a leaf, two leaves under a spine group, four of these.
fn site() -> (Cluster, Traffic) {
    let config = Config::parse(NET, "gpuos.toml").unwrap();
    let facts: Vec<NodeFacts> = (1..=16)
        .map(|n| NodeFacts {
            name: format!("n{n}"),
            gpus: 8,
            gres_type: "h100".into(),
            ..NodeFacts::default()
        })
        .collect();
    let cluster = config.cluster(&facts, None).unwrap();
    let traffic = config.traffic(&cluster).expect("a net");
    (cluster, traffic)
}

fn state(free: u64) -> NodeState {
    NodeState {
        candidate: true,
        present: GpuSet::first(8),
        free: GpuSet(free),
        free_cpus: u32::MAX,
        free_memory_mib: u64::MAX,
        affinity: 0,
        penalty: 0,
        until: 0,
    }
}

fn gang(nodes: u32, gpus: u32) -> Request {
    Request::new(nodes, nodes, GpuShape::PerNode(gpus))
}

fn nodes(choice: &Choice) -> Vec<u32> {
    choice.nodes.iter().map(|node| node.node).collect()
}

#[test]
fn a_gang_goes_where_no_other_uses_the_uplinks() {
    let (cluster, mut traffic) = site();
    let mut planner = Planner::new(cluster);
    let mut states = vec![state(0xff); 16];
    let want = gang(4, 4);
    // A gang over both leaves of the first spine group.
    for node in [0, 2] {
        states[node].free = GpuSet(0xf0);
    }
    assert_eq!(
        nodes(planner.plan(&states, &want, 0).unwrap()),
        [0, 1, 2, 3]
    );
    assert_eq!(traffic.best(&mut planner, &states, &want).skip, 0);
    traffic.start(7, vec![(0, GpuSet(0x0f)), (2, GpuSet(0x0f))]);
    let skip = traffic.best(&mut planner, &states, &want).skip;
    let first = planner.plan(&states, &want, 0).unwrap().clone();
    let [(alone, _), (beside, narrowest)] = traffic.bandwidth(&first);
    assert!(beside < alone && alone < UNBOUNDED, "{beside} of {alone}");
    let link = traffic.link_name(narrowest.unwrap());
    assert!(link.contains(" to "), "{link}");
    let chosen = planner.plan(&states, &want, skip).unwrap().clone();
    assert!(nodes(&chosen)[0] >= 4, "{chosen:?}");
    let [(alone, _), (beside, _)] = traffic.bandwidth(&chosen);
    assert_eq!(alone, beside);
    // Rules that say where to go, and jobs on one node, are left alone.
    for placement in [Placement::Pack, Placement::Spread, Placement::FirstFit] {
        let request = Request {
            placement,
            ..want.clone()
        };
        assert_eq!(traffic.best(&mut planner, &states, &request).skip, 0);
    }
    assert_eq!(traffic.best(&mut planner, &states, &gang(1, 4)).skip, 0);
    // The gang ends; so it does when it is reported on one node.
    traffic.end(7);
    assert_eq!(traffic.best(&mut planner, &states, &want).skip, 0);
    traffic.start(7, vec![(0, GpuSet(0x0f)), (2, GpuSet(0x0f))]);
    traffic.start(7, vec![(0, GpuSet(0x0f))]);
    assert_eq!(traffic.best(&mut planner, &states, &want).skip, 0);
}

#[test]
fn without_a_net_there_is_no_traffic() {
    let config = Config::parse("", "gpuos.toml").unwrap();
    assert!(config.traffic(&Cluster::default()).is_none());
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 200,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Never farther, never on other numbers of nodes, and none of the first four that are as good
    /// has more bandwidth; when all gangs have ended, as if there had been none.
    #[test]
    fn the_best_of_the_first_four(
        free in prop::collection::vec(0u64..256, 16),
        running in prop::collection::vec((prop::collection::btree_set(0u32..16, 2..6), 1u64..256), 0..6),
        count in 2u32..6,
        gpus in 1u32..5,
    ) {
        let (cluster, mut traffic) = site();
        let mut planner = Planner::new(cluster);
        let states: Vec<NodeState> = free.iter().map(|&free| state(free)).collect();
        let want = gang(count, gpus);
        for (job, (nodes, set)) in running.iter().enumerate() {
            traffic.start(job as u32, nodes.iter().map(|&node| (node, GpuSet(*set))).collect());
        }
        let skip = traffic.best(&mut planner, &states, &want).skip;
        let mut rate = |traffic: &mut Traffic, skip| {
            let place = planner.plan(&states, &want, skip).ok()?.clone();
            let [_, (beside, _)] = traffic.bandwidth(&place);
            let alike = (place.reached, place.nodes.len(), place.bus_gbps);
            Some((alike, beside))
        };
        if let Some((alike, most)) = rate(&mut traffic, skip) {
            for other in 0..4 {
                let Some((level, units)) = rate(&mut traffic, other) else { break };
                if level != alike {
                    break;
                }
                prop_assert!(units < most || units == most && skip <= other || running.is_empty());
            }
            prop_assert_eq!(alike, rate(&mut traffic, 0).unwrap().0);
        } else {
            prop_assert_eq!(skip, 0);
        }
        for job in 0..running.len() {
            traffic.end(job as u32);
        }
        prop_assert_eq!(traffic.best(&mut planner, &states, &want).skip, 0);
    }
}
