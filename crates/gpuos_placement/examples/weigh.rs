//! How long it takes to weigh what nodes of two types are worth to a job, and to plan for it after that:
//! with no wish, with one, and with wishes that change from job to job, so that nodes change their
//! penalties. The figures stand in docs/internals/cost.md.

use std::sync::Arc;
use std::time::Instant;

use gpuos_model::cluster::{Cluster, Fabric, FabricLevel, Node, NodeType};
use gpuos_model::gpuset::GpuSet;
use gpuos_model::node_types;
use gpuos_placement::cost::{Objectives, Profile, Scoring};
use gpuos_placement::plan::{GpuShape, NodeState, Planner, Request};

const ROUNDS: usize = 300;

fn main() {
    for nodes in [1_250, 12_500] {
        let mut planner = Planner::new(cluster(nodes));
        let states: Vec<NodeState> = (0..nodes).map(state).collect();
        let wish = |weights| {
            let objectives = Objectives::new(weights).ok();
            Scoring::of(objectives, Some(Profile::Compute), None, None)
        };
        let wishes = [None, wish([100, 0, 0, 0, 0]), wish([0, 0, 100, 0, 0])];
        for (name, turns) in [
            ("no wish", &[0][..]),
            ("one wish", &[1]),
            ("changing", &[0, 1, 2]),
        ] {
            let (mut weighing, mut planning) = (Vec::new(), Vec::new());
            for round in 0..ROUNDS {
                let mut now = states.clone();
                let mut request = Request::new(1, 1, GpuShape::PerNode(2));
                let wish = wishes[turns[round % turns.len()]].as_ref();
                let start = Instant::now();
                planner.weigh(wish, &[], &mut request, &mut now);
                let weighed = start.elapsed();
                let planned = planner.plan(&now, &request, 0).is_ok();
                assert!(planned, "there is room");
                weighing.push(weighed.as_nanos());
                planning.push((start.elapsed() - weighed).as_nanos());
            }
            weighing.sort_unstable();
            planning.sort_unstable();
            let middle = ROUNDS / 2;
            println!(
                "{nodes} nodes, {name}: weigh p50 {} ns, plan p50 {} ns",
                weighing[middle], planning[middle]
            );
        }
    }
}

/// Leaves of 32 nodes, DGX A100 and DGX H100 in turn.
fn cluster(nodes: usize) -> Cluster {
    let kinds: [Option<Arc<NodeType>>; 2] =
        ["dgx-a100", "dgx-h100"].map(|name| node_types::by_name(name).map(Arc::new));
    let node = |at: usize| Node {
        name: format!("n{at}"),
        node_type: kinds[at / 32 % 2].clone(),
    };
    Cluster {
        nodes: (0..nodes).map(node).collect(),
        fabric: Fabric {
            levels: vec![FabricLevel {
                name: "leaf".into(),
                domains: (0..nodes.div_ceil(32))
                    .map(|leaf| format!("l{leaf}"))
                    .collect(),
                domain_of: (0..nodes as u32).map(|node| node / 32).collect(),
                gbps: 0.0,
            }],
        },
    }
}

fn state(node: usize) -> NodeState {
    NodeState {
        candidate: true,
        present: GpuSet::first(8),
        free: GpuSet(((node as u64 * 2_654_435_761) >> 7) & 0xff),
        free_cpus: u32::MAX,
        free_memory_mib: u64::MAX,
        ..NodeState::default()
    }
}
