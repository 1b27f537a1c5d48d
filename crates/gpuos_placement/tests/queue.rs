//! A pass over jobs that wait.

use gpuos_model::gpuset::GpuSet;
use gpuos_placement::plan::{Ending, GpuShape, NodeState, Planner, Request};
use gpuos_placement::queue::{Answer, Bounds, Decided, ENDLESS, Kept, Queue, Waiting, pass};
use proptest::prelude::*;

use crate::plan_support::{idle, nvswitch, request, tree, wish};

/// A job of a kind.
fn job(request: Request, ends_in: Option<i64>) -> Waiting {
    Waiting {
        request,
        kind: 0,
        ends_in,
        more_memory_mib: 0,
    }
}

fn each(nodes: u32, gpus: u32) -> Request {
    request(nodes, GpuShape::PerNode(gpus))
}

/// A queue on 8 nodes of 8 GPUs in leaves of 4, of which these GPUs are taken until these times.
fn queue(taken: &[(u32, u32, i64)], waiting: Vec<Waiting>) -> (Planner, Queue) {
    let cluster = tree(nvswitch(), 8, 4, 2);
    let mut states = idle(&cluster);
    let mut endings = Vec::new();
    for &(node, gpus, at) in taken {
        let free = &mut states[node as usize].free;
        *free = GpuSet::first(free.len() - gpus as usize);
        endings.push(Ending { at, node, gpus });
    }
    let queue = Queue {
        kinds: vec![states],
        endings,
        waiting,
    };
    (Planner::new(cluster), queue)
}

fn decided((mut planner, queue): (Planner, Queue), bounds: Bounds) -> Decided {
    pass(&mut planner, queue, bounds, &mut |_, _| true)
}

/// Nodes on which a job starts; none where it does not.
fn on(answer: &Answer) -> Vec<u32> {
    match answer {
        Answer::Starts(choice) => choice.nodes.iter().map(|one| one.node).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn nodes_are_kept_where_the_job_can_start_first_and_lent_to_who_ends_before() {
    let whole = || wish(each(4, 8), "leaf", true);
    let waiting = vec![
        job(whole(), Some(100)),
        job(each(1, 8), Some(500)),
        job(each(1, 8), Some(501)),
        job(each(1, 8), None),
        job(each(4, 8), None),
    ];
    let all = decided(
        queue(&[(0, 1, 500), (4, 8, 9000)], waiting),
        Bounds::default(),
    );
    let kept = Kept {
        job: 0,
        starts_in: 500,
        nodes: vec![0, 1, 2, 3],
    };
    assert_eq!(all.kept, [kept]);
    assert!(matches!(all.answers[0], Answer::Waits(_)));
    let nodes: Vec<Vec<u32>> = all.answers.iter().map(on).collect();
    // The second one ends in time, and goes by the planner's rules wherever it likes.
    assert_eq!(nodes[1].len(), 1);
    assert!(nodes[2][0] > 4 && nodes[3][0] > 4, "{nodes:?}");
    assert!(nodes[4].is_empty());
}

#[test]
fn nothing_is_kept_where_nothing_may_be_or_for_a_job_that_never_fits() {
    let whole = vec![job(each(8, 8), None), job(each(1, 1), None)];
    let bounds = Bounds {
        kept: 0,
        ..Bounds::default()
    };
    let all = decided(queue(&[(0, 1, 500)], whole.clone()), bounds);
    assert!(all.kept.is_empty());
    assert_eq!(on(&all.answers[1]).len(), 1);
    let all = decided(queue(&[(0, 1, 500)], whole), Bounds::default());
    assert_eq!(all.kept[0].nodes.len(), 8);
    assert!(on(&all.answers[1]).is_empty());
    let never = vec![job(each(9, 8), None), job(each(1, 1), None)];
    let all = decided(queue(&[], never), Bounds::default());
    assert!(all.kept.is_empty());
    assert_eq!(on(&all.answers[1]).len(), 1);
}

#[test]
fn who_was_started_and_who_has_no_end_hold_their_nodes() {
    let waiting = || vec![job(each(7, 8), Some(70)), job(each(8, 8), None)];
    for (ends, starts_in) in [(ENDLESS, ENDLESS), (50, 70)] {
        let all = decided(queue(&[(0, 8, ends)], waiting()), Bounds::default());
        assert_eq!(on(&all.answers[0]).len(), 7);
        assert_eq!((all.kept[0].job, all.kept[0].starts_in), (1, starts_in));
    }
}

#[test]
fn a_refused_place_is_followed_by_the_next_best_one() {
    let (mut planner, queue) = queue(&[], vec![job(each(1, 8), None)]);
    let mut seen = Vec::new();
    let bounds = Bounds::default();
    let all = pass(&mut planner, queue, bounds, &mut |_, choice| {
        seen.push(choice.nodes[0].node);
        false
    });
    assert_eq!(all.answers, [Answer::Refused]);
    assert_eq!(seen.len(), bounds.places as usize);
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), bounds.places as usize);
}

proptest! {
    #[test]
    fn no_gpu_twice_and_the_same_again(
        taken in prop::collection::vec((0..8u32, 1..=8u32, 1..1000i64), 0..8),
        jobs in prop::collection::vec((1..4u32, 1..=8u32, any::<bool>(), prop::option::of(1..1000i64)), 1..20),
    ) {
        let mut free = [8u32; 8];
        let mut held = Vec::new();
        for (node, gpus, at) in taken {
            let gpus = gpus.min(free[node as usize]);
            free[node as usize] -= gpus;
            held.push((node, gpus, at));
        }
        let waiting = jobs.iter().map(|&(nodes, gpus, leaf, ends)| {
            let request = each(nodes, gpus);
            job(if leaf { wish(request, "leaf", true) } else { request }, ends)
        });
        let waiting: Vec<Waiting> = waiting.collect();
        let (planner, queue) = queue(&held, waiting);
        let mut states: Vec<NodeState> = queue.kinds[0].clone();
        let all = decided((planner, queue.clone()), Bounds::default());
        for answer in &all.answers {
            if let Answer::Starts(choice) = answer {
                for one in &choice.nodes {
                    let free = &mut states[one.node as usize].free;
                    prop_assert!(one.gpus.minus(*free).is_empty());
                    *free = free.minus(one.gpus);
                }
            }
        }
        let planner = Planner::new(tree(nvswitch(), 8, 4, 2));
        prop_assert_eq!(all, decided((planner, queue), Bounds::default()));
    }
}
