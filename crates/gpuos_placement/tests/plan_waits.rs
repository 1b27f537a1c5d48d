//! What users see of the planner when a job has to wait: why, and where it could start later.

use gpuos_model::gpuset::GpuSet;
use gpuos_placement::plan::{Choice, GpuShape, NodeState, Planner, Request, Unit, Wait};

use crate::plan_support::*;

fn plan(planner: &mut Planner, state: &[NodeState], request: &Request) -> Choice {
    match planner.plan(state, request, 0) {
        Ok(choice) => choice.clone(),
        Err(wait) => panic!("no choice: {wait:?}"),
    }
}

fn nodes(choice: &Choice) -> Vec<u32> {
    choice.nodes.iter().map(|c| c.node).collect()
}

fn take(state: &mut NodeState, mask: u64) {
    state.free = state.free.minus(GpuSet(mask));
}

#[test]
fn required_waits_where_preferred_goes_wider() {
    let cluster = tree(nvswitch(), 16, 8, 2);
    let mut state = idle(&cluster);
    let mut planner = Planner::new(cluster);
    for node in [0, 1, 2, 8, 9] {
        take(&mut state[node], 0xf0);
    }
    let gang = request(8, GpuShape::PerNode(8));
    let wait = planner.plan(&state, &wish(gang.clone(), "leaf", true), 0);
    assert_eq!(
        wait.err(),
        Some(Wait::Level {
            level: "leaf".into(),
            best_domain: "leaf1".into(),
            unit: Unit::Nodes,
            have: 6,
            need: 8,
        })
    );
    let choice = plan(&mut planner, &state, &wish(gang, "leaf", false));
    assert_eq!((choice.reached, choice.domain), (3, Some(0)));
    // The larger leaf whole, the rest from the other.
    assert_eq!(nodes(&choice), vec![3, 4, 10, 11, 12, 13, 14, 15]);
}

#[test]
fn nvlink_in_the_node_waits_for_a_pair() {
    let cluster = tree(pairs(), 2, 2, 1);
    let mut state = idle(&cluster);
    let mut planner = Planner::new(cluster);
    for state in &mut state {
        take(state, 0b0101_0101);
    }
    let pair = request(1, GpuShape::PerNode(2));
    let wait = planner.plan(&state, &wish(pair.clone(), "nvlink", true), 0);
    assert_eq!(
        wait.err(),
        Some(Wait::Level {
            level: "nvlink".into(),
            best_domain: "n0".into(),
            unit: Unit::Gpus,
            have: 1,
            need: 2,
        })
    );
    let choice = plan(&mut planner, &state, &wish(pair, "nvlink", false));
    assert_eq!((choice.reached, choice.nodes[0].gpus), (1, GpuSet(0b1010)));
    let quad = wish(request(1, GpuShape::PerNode(4)), "nvlink", true);
    let Err(Wait::Never { why }) = planner.plan(&state, &quad, 0) else {
        panic!("four GPUs are never all linked here");
    };
    let why = why.to_string();
    assert!(
        why.contains("4 GPUs") && why.contains("nvlink") && why.contains("n0"),
        "{why}"
    );
    // A single GPU has no pair to link.
    let one = wish(request(1, GpuShape::PerNode(1)), "nvlink", true);
    assert_eq!(plan(&mut planner, &state, &one).reached, 0);
}

#[test]
fn what_can_never_fit_says_why() {
    let cluster = tree(nvswitch(), 8, 4, 2);
    let mut state = idle(&cluster);
    for state in &mut state {
        take(state, 0xff);
    }
    let mut planner = Planner::new(cluster);
    let mut never = |request: &Request| match planner.plan(&state, request, 0) {
        Err(Wait::Never { why }) => why.to_string(),
        other => panic!("{other:?}"),
    };
    let why = never(&request(1, GpuShape::PerNode(9)));
    assert_eq!(
        why,
        "the job needs 1 node with 9 GPUs each and CPUs and memory for them; there are 0"
    );
    let why = never(&request(9, GpuShape::PerNode(8)));
    assert_eq!(
        why,
        "the job needs 9 nodes with 8 GPUs each and CPUs and memory for them; there are 8"
    );
    let why = never(&wish(request(5, GpuShape::PerNode(1)), "leaf", true));
    assert_eq!(
        why,
        "the job needs 5 nodes within one domain of the level leaf; the largest (leaf0) has 4"
    );
    let why = never(&wish(request(2, GpuShape::PerNode(1)), "node", true));
    assert_eq!(
        why,
        "2 nodes cannot lie within one domain of the level node"
    );
    assert_eq!(
        never(&request(1, GpuShape::PerNode(0))),
        "the job asks for no GPU"
    );
    assert_eq!(
        never(&request(4, GpuShape::Total(3))),
        "3 GPUs in all cannot use 4 nodes: each needs one"
    );
    let mut total = request(1, GpuShape::Total(65));
    total.max_nodes = 100;
    assert_eq!(
        never(&total),
        "the job needs 65 GPUs on 1 to 100 nodes; there is room for 64 on so many"
    );
}

#[test]
fn a_busy_cluster_is_a_matter_of_waiting() {
    let cluster = tree(nvswitch(), 4, 4, 1);
    let mut state = idle(&cluster);
    let mut planner = Planner::new(cluster);
    take(&mut state[0], 0b1);
    take(&mut state[1], 0xff);
    state[2].candidate = false;
    // Nodes that the scheduler does not describe could still be free one day.
    state.truncate(3);
    assert_eq!(
        planner
            .plan(&state, &request(2, GpuShape::PerNode(8)), 0)
            .err(),
        Some(Wait::Capacity {
            feasible_nodes: 0,
            needed_nodes: 2,
            free_gpus: 7,
            needed_gpus: 16
        })
    );
}

#[test]
fn unknown_levels_are_refused_when_required() {
    let cluster = tree(nvswitch(), 4, 2, 2);
    let state = idle(&cluster);
    let mut planner = Planner::new(cluster);
    let job = request(2, GpuShape::PerNode(8));
    assert_eq!(
        planner
            .plan(&state, &wish(job.clone(), "rack", true), 0)
            .err(),
        Some(Wait::UnknownLevel {
            level: "rack".into(),
            known: ["nvlink", "node", "leaf", "spine", "any"]
                .map(String::from)
                .to_vec(),
        })
    );
    assert!(planner.plan(&state, &wish(job, "rack", false), 0).is_ok());
}

#[test]
fn the_future_lists_domains_by_what_is_free_in_them() {
    let cluster = tree(nvswitch(), 12, 4, 3);
    let mut state = idle(&cluster);
    let mut planner = Planner::new(cluster);
    for (node, mask) in [
        (0, 0xff),
        (1, 0xff),
        (4, 0xff),
        (8, 0xff),
        (9, 0xff),
        (10, 0xff),
    ] {
        take(&mut state[node], mask);
    }
    state[3].candidate = false;
    let gang = wish(request(4, GpuShape::PerNode(8)), "leaf", true);
    let mut seen = Vec::new();
    while let Some(choice) = planner.future(&state, &gang, seen.len() as u32) {
        assert_eq!((choice.reached, choice.feasible_domains), (2, 2));
        assert!(choice.nodes.iter().all(|c| c.gpus.is_empty()));
        seen.push((choice.domain, nodes(choice)));
    }
    assert_eq!(
        seen,
        [(Some(1), vec![4, 5, 6, 7]), (Some(2), vec![8, 9, 10, 11])]
    );
    // Without a required level everything is one domain.
    let choice = planner
        .future(&state, &request(4, GpuShape::PerNode(8)), 0)
        .unwrap();
    assert_eq!((choice.nodes.len(), choice.domain), (11, None));
    assert!(
        planner
            .future(&state, &request(12, GpuShape::PerNode(8)), 0)
            .is_none()
    );
}

#[test]
fn the_future_of_nvlink_names_the_linked_gpus() {
    let cluster = tree(pairs(), 2, 2, 1);
    let mut state = idle(&cluster);
    let mut planner = Planner::new(cluster);
    state[0].present = GpuSet(0b1111);
    state[0].free = GpuSet(0b1000);
    state[1].present = GpuSet(0b1011_0001);
    state[1].free = GpuSet::EMPTY;
    let pair = wish(request(1, GpuShape::PerNode(2)), "nvlink", true);
    let mut seen = Vec::new();
    while let Some(choice) = planner.future(&state, &pair, seen.len() as u32) {
        assert_eq!(choice.reached, 0);
        seen.push((choice.nodes[0].node, choice.nodes[0].gpus.0));
    }
    assert_eq!(seen, [(0, 0b1100), (0, 0b11), (1, 0b11_0000)]);
    let node = wish(request(1, GpuShape::PerNode(4)), "node", true);
    let choice = planner.future(&state, &node, 0).unwrap();
    assert_eq!((nodes(choice), choice.feasible_domains), (vec![0], 2));
}
