//! Planning allocates nothing once every form of request was seen: it runs inside slurmctld's
//! locks.

use gpuos_model::gpuset::GpuSet;
use gpuos_placement::cost::{Objectives, Profile, Scoring};
use gpuos_placement::frag::{Learner, Share};
use gpuos_placement::plan::{GpuShape, Placement, Planner, Request};

use crate::counting::allocations;
use crate::plan_support::*;

#[test]
fn planning_allocates_nothing() {
    for keep in [false, true] {
        plans(keep);
    }
    weighing_allocates_nothing();
}

/// With ranks that are kept from one decision to the next, or without.
fn plans(keep: bool) {
    let cluster = tree(pairs(), 120, 10, 3);
    let mut state = idle(&cluster);
    let mut planner = Planner::new(cluster);
    planner.keep_ranks(keep);
    let mut requests: Vec<Request> = Vec::new();
    for rule in [
        Placement::BestFit,
        Placement::Pack,
        Placement::Spread,
        Placement::FirstFit,
        Placement::Backfill,
        Placement::AntiAffinity(Vec::new()),
    ] {
        for (nodes, gpus) in [
            (1, GpuShape::PerNode(3)),
            (1, GpuShape::Total(5)),
            (16, GpuShape::PerNode(2)),
            (64, GpuShape::PerNode(8)),
            (
                70,
                GpuShape::PerSocket {
                    per_socket: 1,
                    sockets: 1,
                },
            ),
            (3, GpuShape::Total(60)),
            (8, GpuShape::Total(500)),
            (
                2,
                GpuShape::PerTask {
                    per_task: 3,
                    tasks: 40,
                },
            ),
        ] {
            let mut request = request(nodes, gpus);
            request.max_nodes = nodes.max(100);
            request.placement = rule.clone();
            for level in ["leaf", "nvlink"] {
                requests.push(wish(request.clone(), level, false));
            }
            request.max_nodes = nodes;
            request.required_nodes = vec![17];
            requests.push(request);
        }
    }
    // By a mix that was learned, among many nodes and among few.
    let mut learner = Learner::new();
    for gpus in [1, 2, 4, 8].into_iter().cycle().take(40) {
        let share = Share {
            gpus,
            cpus: 4,
            memory_gib: 0,
            types: 0,
        };
        learner.arrives(share, 1);
    }
    planner.learn(learner.expected(vec![(64, 1 << 20)]));
    assert!(planner.work(usize::MAX));
    for gpus in [1, 2, 8] {
        requests.push(request(1, GpuShape::PerNode(gpus)));
    }
    // States that change, so that other nodes and GPU sets are chosen each time.
    let mut random = 1u64;
    // Three of four nodes are candidates.
    let some = [0x7777_7777_7777_7777u64; 2];
    let mut choices = 0;
    for round in 0..4 {
        for state in &mut state {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            let busy = if random >> 33 & 3 == 0 {
                random >> 40 & 0xff
            } else {
                0
            };
            state.free = GpuSet(0xff & !busy);
            state.free_cpus = 8 * state.free.len() as u32;
        }
        for request in &requests {
            let before = allocations();
            // A refusal carries names: only choices must be free of allocations.
            let planned = planner.plan(&state, request, round % 3).is_ok();
            if planned && round > 0 {
                assert_eq!(allocations(), before, "round {round}: {request:?}");
                choices += 1;
            }
            let before = allocations();
            let planned = planner.decide(request, Some(&some), round % 3).is_ok();
            if planned && round > 0 {
                assert_eq!(allocations(), before, "round {round}, some: {request:?}");
            }
            let before = allocations();
            planner.future(&state, request, 0);
            assert!(round == 0 || allocations() == before, "future: {request:?}");
        }
    }
    assert!(choices > 100, "{choices} choices");
}

/// Nor does weighing what nodes of two types are worth, with wishes that change from job to job.
fn weighing_allocates_nothing() {
    let kinds = [pairs(), nvswitch()].map(std::sync::Arc::new);
    let types: Vec<_> = (0..64).map(|n| kinds[n / 8 % 2].clone()).collect();
    let cluster = cluster(&types, &[("leaf", (0..64).map(|n| n / 8).collect())]);
    let states = idle(&cluster);
    let mut planner = Planner::new(cluster);
    let wishes = [
        None,
        Scoring::of(None, Some(Profile::Compute), None, None),
        Scoring::of(Objectives::new([0, 0, 50, 50, 0]).ok(), None, None, None),
    ];
    let (mut now, mut asked) = (states.clone(), request(1, GpuShape::PerNode(2)));
    for round in 0..9 {
        now.copy_from_slice(&states);
        let before = allocations();
        planner.weigh(wishes[round % 3].as_ref(), &[], &mut asked, &mut now);
        let planned = planner.plan(&now, &asked, 0).is_ok();
        assert!(
            planned && (round < 6 || allocations() == before),
            "round {round}"
        );
    }
}
