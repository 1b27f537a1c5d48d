//! What users see of the planner: where jobs go.

use std::sync::Arc;

use gpuos_model::cluster::{Link, NO_DOMAIN};
use gpuos_model::gpuset::GpuSet;
use gpuos_placement::plan::{
    Choice, GpuShape, Never, NodeState, Placement, Planner, Request, Unit, Wait,
};

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

fn sizes(choice: &Choice) -> Vec<usize> {
    choice.nodes.iter().map(|c| c.gpus.len()).collect()
}

fn take(state: &mut NodeState, mask: u64) {
    state.free = state.free.minus(GpuSet(mask));
}

#[test]
fn two_gpus_of_a_pair_linked_node_are_a_pair() {
    let cluster = tree(pairs(), 1, 1, 1);
    let mut state = idle(&cluster);
    let mut planner = Planner::new(cluster);
    take(&mut state[0], 0b0000_0001);
    let choice = plan(&mut planner, &state, &request(1, GpuShape::PerNode(2)));
    assert_eq!(choice.nodes[0].gpus, GpuSet(0b0000_1100));
    assert_eq!(choice.reached, 0);
    assert_eq!(choice.bus_gbps, 80.0);
}

#[test]
fn four_gpus_of_a_pair_linked_node_are_two_pairs_of_one_socket() {
    let cluster = tree(pairs(), 1, 1, 1);
    let mut state = idle(&cluster);
    let mut planner = Planner::new(cluster);
    take(&mut state[0], 0b0000_0001);
    let choice = plan(&mut planner, &state, &request(1, GpuShape::PerNode(4)));
    assert_eq!(choice.nodes[0].gpus, GpuSet(0b1111_0000));
    assert_eq!(choice.reached, 1);
}

#[test]
fn one_gpu_goes_where_it_breaks_no_pair() {
    let cluster = tree(pairs(), 3, 3, 1);
    let mut state = idle(&cluster);
    let mut planner = Planner::new(cluster);
    take(&mut state[1], 0b0001_0000);
    let one = request(1, GpuShape::PerNode(1));
    let choice = plan(&mut planner, &state, &one);
    assert_eq!(
        (nodes(&choice), choice.nodes[0].gpus),
        (vec![1], GpuSet(0b0010_0000))
    );
}

#[test]
fn a_gang_lands_in_the_one_leaf_with_room_though_lower_nodes_are_free() {
    let cluster = tree(nvswitch(), 40, 10, 2);
    let mut state = idle(&cluster);
    let mut planner = Planner::new(cluster);
    // Only leaf 2 has eight whole nodes; elsewhere seven each.
    for node in [0, 5, 9, 11, 12, 13, 30, 31, 32] {
        take(&mut state[node], 1);
    }
    let gang = request(8, GpuShape::PerNode(8));
    let choice = plan(&mut planner, &state, &gang);
    assert_eq!(nodes(&choice), (20..28).collect::<Vec<_>>());
    assert_eq!((choice.reached, choice.domain), (2, Some(2)));
    assert_eq!(choice.feasible_nodes, 31);
    assert_eq!(choice.feasible_domains, 1);
    assert_eq!(choice.bus_gbps, 25.0);
}

#[test]
fn a_gang_takes_the_leaf_that_it_fills_best() {
    let cluster = tree(nvswitch(), 32, 8, 2);
    let mut state = idle(&cluster);
    let mut planner = Planner::new(cluster);
    for node in [16, 17, 18, 24] {
        take(&mut state[node], 0xff);
    }
    let choice = plan(&mut planner, &state, &request(5, GpuShape::PerNode(8)));
    assert_eq!(nodes(&choice), vec![19, 20, 21, 22, 23]);
}

#[test]
fn next_choices_are_other_domains_and_then_other_nodes_of_them() {
    let cluster = tree(nvswitch(), 16, 4, 2);
    let mut state = idle(&cluster);
    let mut planner = Planner::new(cluster);
    for node in [0, 1, 2, 12, 13, 14] {
        take(&mut state[node], 1);
    }
    let gang = request(2, GpuShape::PerNode(8));
    let mut seen = Vec::new();
    while let Ok(choice) = planner.plan(&state, &gang, seen.len() as u32) {
        seen.push(nodes(choice));
    }
    assert_eq!(seen, [[4, 5], [8, 9], [6, 7], [10, 11]]);
    // One leaf is used up; the wider levels hold nothing that the leaves do not.
    let gang = wish(request(3, GpuShape::PerNode(8)), "leaf", true);
    let mut seen = Vec::new();
    while let Ok(choice) = planner.plan(&state, &gang, seen.len() as u32) {
        assert_eq!(choice.reached, 2);
        seen.push(nodes(choice));
    }
    assert_eq!(seen[..2], [[4, 5, 6], [8, 9, 10]]);
    assert!(seen[2].contains(&7) && seen[3].contains(&11));
    assert_eq!(seen.len(), 4);
}

#[test]
fn next_choices_of_a_single_node_job_are_other_nodes() {
    let cluster = tree(pairs(), 3, 3, 1);
    let mut state = idle(&cluster);
    let mut planner = Planner::new(cluster);
    take(&mut state[2], 0b1111);
    let pair = request(1, GpuShape::PerNode(2));
    let mut seen = Vec::new();
    while let Ok(choice) = planner.plan(&state, &pair, seen.len() as u32) {
        assert_eq!(choice.feasible_domains, 3);
        seen.push(choice.nodes[0].node);
    }
    assert_eq!(seen, [2, 0, 1]);
}

#[test]
fn a_total_takes_the_fewest_nodes_and_leaves_the_rest_whole() {
    let cluster = tree(nvswitch(), 6, 3, 2);
    let mut state = idle(&cluster);
    let mut planner = Planner::new(cluster);
    let mut total = request(1, GpuShape::Total(20));
    total.max_nodes = 6;
    take(&mut state[4], 0b1111);
    let choice = plan(&mut planner, &state, &total);
    assert_eq!(
        (nodes(&choice), sizes(&choice)),
        (vec![3, 4, 5], vec![8, 4, 8])
    );
    assert_eq!(choice.domain, Some(1));
    // On one node when one has room.
    total.gpus = GpuShape::Total(4);
    let choice = plan(&mut planner, &state, &total);
    assert_eq!((nodes(&choice), sizes(&choice)), (vec![4], vec![4]));
    // More nodes than needed: evenly.
    total.gpus = GpuShape::Total(5);
    total.min_nodes = 2;
    let choice = plan(&mut planner, &state, &total);
    let mut shares = sizes(&choice);
    shares.sort_unstable();
    assert_eq!((choice.nodes.len(), shares), (2, vec![2, 3]));
    // Not on more nodes than allowed: the best two have 8 and 7.
    total.gpus = GpuShape::Total(24);
    (total.min_nodes, total.max_nodes) = (1, 2);
    assert!(matches!(
        planner.plan(&state, &total, 0),
        Err(Wait::Never { .. })
    ));
    total.gpus = GpuShape::Total(16);
    for state in &mut state[1..] {
        take(state, 0b1);
    }
    assert_eq!(
        planner.plan(&state, &total, 0).err(),
        Some(Wait::Capacity {
            feasible_nodes: 6,
            needed_nodes: 2,
            free_gpus: 15,
            needed_gpus: 16
        })
    );
}

#[test]
fn tasks_are_not_split_over_nodes() {
    let cluster = tree(nvswitch(), 3, 3, 1);
    let mut state = idle(&cluster);
    let mut planner = Planner::new(cluster);
    let mut tasks = request(
        1,
        GpuShape::PerTask {
            per_task: 3,
            tasks: 4,
        },
    );
    tasks.max_nodes = 3;
    let choice = plan(&mut planner, &state, &tasks);
    assert_eq!(sizes(&choice), vec![6, 6]);
    // CPUs for one task only on the last node.
    tasks.cpus_per_gpu = 4;
    for state in &mut state {
        state.free_cpus = 31;
    }
    state[2].free_cpus = 23;
    let choice = plan(&mut planner, &state, &tasks);
    assert_eq!((nodes(&choice), sizes(&choice)), (vec![0, 1], vec![6, 6]));
    state[1].free_cpus = 12;
    let choice = plan(&mut planner, &state, &tasks);
    assert_eq!(
        (nodes(&choice), sizes(&choice)),
        (vec![0, 1, 2], vec![6, 3, 3])
    );
}

#[test]
fn cpus_and_memory_count_where_known() {
    let cluster = tree(nvswitch(), 4, 4, 1);
    let mut state = idle(&cluster);
    let mut planner = Planner::new(cluster);
    let mut one = request(1, GpuShape::PerNode(2));
    (one.cpus_per_node, one.cpus_per_gpu, one.memory_mib_per_node) = (8, 6, 1000);
    (state[0].free_cpus, state[0].free_memory_mib) = (11, 5000);
    (state[1].free_cpus, state[1].free_memory_mib) = (12, 999);
    (state[2].free_cpus, state[2].free_memory_mib) = (12, 1000);
    let choice = plan(&mut planner, &state, &one);
    assert_eq!((nodes(&choice), choice.feasible_nodes), (vec![2], 2));
    one.cpus_per_node = 13;
    assert_eq!(nodes(&plan(&mut planner, &state, &one)), vec![3]);
}

#[test]
fn whole_nodes_are_wholly_free_and_their_gpus_left_to_slurm() {
    let cluster = tree(nvswitch(), 4, 2, 2);
    let mut state = idle(&cluster);
    let mut planner = Planner::new(cluster);
    take(&mut state[0], 1);
    state[1].present = GpuSet(0x7f);
    let mut job = request(2, GpuShape::PerNode(4));
    job.whole_nodes = true;
    let choice = plan(&mut planner, &state, &job);
    assert_eq!((nodes(&choice), sizes(&choice)), (vec![2, 3], vec![0, 0]));
    job.gpus = GpuShape::Total(9);
    let choice = plan(&mut planner, &state, &job);
    assert_eq!((nodes(&choice), sizes(&choice)), (vec![2, 3], vec![0, 0]));
    job.min_nodes = 1;
    job.gpus = GpuShape::Total(7);
    // The node with one GPU out of service is whole too, and the smallest that suffices.
    assert_eq!(nodes(&plan(&mut planner, &state, &job)), vec![1]);
}

#[test]
fn a_share_per_socket_chooses_nodes_only() {
    let cluster = tree(pairs(), 2, 2, 1);
    let mut state = idle(&cluster);
    let mut planner = Planner::new(cluster);
    take(&mut state[0], 0b0111_1111);
    let choice = plan(
        &mut planner,
        &state,
        &request(
            1,
            GpuShape::PerSocket {
                per_socket: 2,
                sockets: 1,
            },
        ),
    );
    assert_eq!((nodes(&choice), sizes(&choice)), (vec![1], vec![0]));
}

#[test]
fn named_nodes_are_part_of_the_choice() {
    let cluster = tree(nvswitch(), 12, 4, 3);
    let mut state = idle(&cluster);
    let mut planner = Planner::new(cluster);
    let mut job = request(3, GpuShape::PerNode(8));
    job.required_nodes = vec![6];
    assert_eq!(nodes(&plan(&mut planner, &state, &job)), vec![4, 5, 6]);
    job.required_nodes = vec![6, 9];
    let choice = plan(&mut planner, &state, &job);
    assert_eq!((nodes(&choice), choice.reached), (vec![4, 6, 9], 3));
    let never = planner
        .plan(&state, &wish(job.clone(), "leaf", true), 0)
        .err();
    let level = "leaf".into();
    let why = Never::Apart { level };
    assert_eq!(never, Some(Wait::Never { why }));
    job.required_nodes = vec![0, 1, 2, 3];
    assert!(matches!(
        planner.plan(&state, &job, 0),
        Err(Wait::Never { .. })
    ));
    take(&mut state[6], 1);
    job.required_nodes = vec![6];
    assert_eq!(
        planner.plan(&state, &job, 0).err(),
        Some(Wait::Capacity {
            feasible_nodes: 0,
            needed_nodes: 1,
            free_gpus: 95,
            needed_gpus: 24
        })
    );
    let mut one = request(1, GpuShape::Total(2));
    one.required_nodes = vec![11];
    assert_eq!(nodes(&plan(&mut planner, &state, &one)), vec![11]);
}

#[test]
fn a_range_of_nodes_takes_what_the_domain_has_and_pack_the_fewest() {
    let cluster = tree(nvswitch(), 12, 4, 3);
    let mut state = idle(&cluster);
    let mut planner = Planner::new(cluster);
    take(&mut state[0], 1);
    let mut job = request(2, GpuShape::PerNode(8));
    job.max_nodes = 6;
    assert_eq!(nodes(&plan(&mut planner, &state, &job)), vec![4, 5, 6, 7]);
    job.placement = Placement::Pack;
    assert_eq!(nodes(&plan(&mut planner, &state, &job)), vec![1, 2]);
    job.min_nodes = 1;
    assert_eq!(nodes(&plan(&mut planner, &state, &job)), vec![1]);
    job.placement = Placement::BestFit;
    let near = wish(job, "node", false);
    let choice = plan(&mut planner, &state, &near);
    assert_eq!((nodes(&choice), choice.reached), (vec![1], 0));
}

#[test]
fn placement_rules_choose_among_equally_close_nodes() {
    let cluster = tree(nvswitch(), 6, 3, 2);
    let mut state = idle(&cluster);
    let mut planner = Planner::new(cluster);
    take(&mut state[1], 0b1);
    take(&mut state[2], 0b111_1111);
    take(&mut state[4], 0b11);
    for node in [0, 1, 2, 4] {
        state[node].affinity = 1;
    }
    let mut one = request(1, GpuShape::PerNode(1));
    for (rule, want) in [
        (Placement::BestFit, 2),
        (Placement::Pack, 2),
        (Placement::Spread, 3),
        (Placement::Affinity(vec!["a".into()]), 2),
        (Placement::AntiAffinity(vec!["a".into()]), 3),
    ] {
        one.placement = rule;
        let choice = plan(&mut planner, &state, &one);
        assert_eq!(nodes(&choice), vec![want], "{:?}", one.placement);
    }
    // Gangs of two: spread and anti-affinity take the emptier leaf.
    let mut two = request(2, GpuShape::PerNode(1));
    for (rule, want) in [
        (Placement::BestFit, [1, 2]),
        (Placement::Pack, [1, 2]),
        (Placement::Affinity(vec!["a".into()]), [1, 2]),
        (Placement::AntiAffinity(vec!["a".into()]), [3, 5]),
    ] {
        two.placement = rule;
        let choice = plan(&mut planner, &state, &two);
        assert_eq!(nodes(&choice), want, "{:?}", two.placement);
    }
    state[3].candidate = false;
    two.placement = Placement::Spread;
    assert_eq!(nodes(&plan(&mut planner, &state, &two)), [0, 1]);
}

#[test]
fn whole_leaves_stay_free_when_another_is_broken_into() {
    let cluster = tree(nvswitch(), 9, 3, 3);
    let mut state = idle(&cluster);
    let mut planner = Planner::new(cluster);
    take(&mut state[7], 0xff);
    let choice = plan(&mut planner, &state, &request(1, GpuShape::PerNode(8)));
    assert_eq!(nodes(&choice), vec![6]);
}

#[test]
fn a_gang_avoids_nodes_whose_free_gpus_are_not_linked() {
    let cluster = tree(pairs(), 8, 4, 2);
    let mut state = idle(&cluster);
    let mut planner = Planner::new(cluster);
    // One GPU of each pair is free in three nodes of the first leaf: cheap, but slow.
    for state in &mut state[..3] {
        take(state, 0b0101_0101);
    }
    let choice = plan(&mut planner, &state, &request(2, GpuShape::PerNode(2)));
    assert_eq!((nodes(&choice), choice.bus_gbps), (vec![4, 5], 80.0));
}

#[test]
fn a_gang_uses_up_broken_nodes_before_it_breaks_whole_ones() {
    let cluster = tree(nvswitch(), 12, 4, 3);
    let mut state = idle(&cluster);
    let mut planner = Planner::new(cluster);
    for node in [5, 6, 9, 10] {
        take(&mut state[node], 0b11_1111);
    }
    let choice = plan(&mut planner, &state, &request(2, GpuShape::PerNode(2)));
    assert_eq!(nodes(&choice), vec![5, 6]);
}

#[test]
fn the_nvlink_level_is_inside_the_node_or_across_nodes() {
    // Two racks of trays whose NVLink domain spans the rack, and PCIe nodes beside them.
    let tray = Arc::new(node_type("tray", 4, |_, _| Link::Nv(18)));
    let plain = Arc::new(pcie());
    let types: Vec<_> = (0..8)
        .map(|n| if n < 6 { tray.clone() } else { plain.clone() })
        .collect();
    let racks = vec![0, 0, 0, 1, 1, 1, NO_DOMAIN, NO_DOMAIN];
    let cluster = cluster(&types, &[("nvlink", racks), ("leaf", vec![0; 8])]);
    let mut state = idle(&cluster);
    let mut planner = Planner::new(cluster);
    let mut job = request(1, GpuShape::Total(8));
    job.max_nodes = 8;
    // Two trays of one rack rather than one node without NVLink.
    let choice = plan(&mut planner, &state, &wish(job.clone(), "nvlink", false));
    assert_eq!(
        (nodes(&choice), choice.reached, choice.domain),
        (vec![0, 1], 2, Some(0))
    );
    // Without the wish one node is closer.
    let choice = plan(&mut planner, &state, &job);
    assert_eq!((nodes(&choice), choice.reached), (vec![6], 1));
    for node in [0, 1, 3, 4] {
        take(&mut state[node], 0b1);
    }
    let choice = plan(&mut planner, &state, &wish(job.clone(), "nvlink", false));
    assert_eq!(
        (nodes(&choice), sizes(&choice)),
        (vec![0, 1, 2], vec![3, 1, 4])
    );
    job.max_nodes = 2;
    let choice = plan(&mut planner, &state, &wish(job.clone(), "nvlink", false));
    assert_eq!((nodes(&choice), choice.reached), (vec![6], 1));
    assert_eq!(
        planner
            .plan(&state, &wish(job.clone(), "nvlink", true), 0)
            .err(),
        Some(Wait::Level {
            level: "nvlink".into(),
            best_domain: "nvlink0".into(),
            unit: Unit::Gpus,
            have: 7,
            need: 8,
        })
    );
    // Within one node: four GPUs need a free tray.
    let four = wish(request(1, GpuShape::PerNode(4)), "nvlink", true);
    let choice = plan(&mut planner, &state, &four);
    assert_eq!((nodes(&choice), choice.reached), (vec![2], 0));
}

#[test]
fn nodes_without_a_type_or_outside_the_fabric() {
    let mut outside = tree(nvswitch(), 4, 2, 2);
    outside.nodes[0].node_type = None;
    outside.fabric.levels[0].domain_of = vec![0, 0, NO_DOMAIN, NO_DOMAIN];
    outside.fabric.levels[1].domain_of.truncate(2);
    let state = idle(&tree(nvswitch(), 4, 2, 2));
    let mut planner = Planner::new(outside);
    let choice = plan(&mut planner, &state, &request(3, GpuShape::PerNode(8)));
    assert_eq!(
        (nodes(&choice), choice.reached, choice.domain),
        (vec![1, 2, 3], 4, None)
    );
    assert!(matches!(
        planner.plan(
            &state,
            &wish(request(2, GpuShape::PerNode(1)), "leaf", true),
            0
        ),
        Err(Wait::Never { .. })
    ));
    // A cluster without any fabric, and one without nodes.
    let mut flat = tree(nvswitch(), 4, 2, 2);
    flat.fabric.levels.clear();
    let choice = plan(
        &mut Planner::new(flat),
        &state,
        &request(4, GpuShape::PerNode(2)),
    );
    assert_eq!((choice.nodes.len(), choice.reached), (4, 2));
    let mut empty = Planner::new(cluster(&[], &[]));
    assert!(
        empty
            .plan(&[], &request(1, GpuShape::PerNode(1)), 0)
            .is_err()
    );
    assert!(
        empty
            .future(&[], &request(1, GpuShape::PerNode(1)), 0)
            .is_none()
    );
}
