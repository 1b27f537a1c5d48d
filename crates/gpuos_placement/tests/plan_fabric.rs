//! The choice of domains and nodes against brute force on small random fabrics, and what must
//! hold for every choice whatever was asked.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use gpuos_model::cluster::{Cluster, Link, NO_DOMAIN, NodeType};
use gpuos_model::gpuset::GpuSet;
use gpuos_placement::plan::{Choice, GpuShape, NodeState, Placement, Planner, Request, Wait};
use proptest::prelude::*;

use crate::plan_support::brute::Brute;
use crate::plan_support::*;

fn switched() -> NodeType {
    node_type("switched-4", 4, |_, _| Link::Nv(12))
}

fn paired() -> NodeType {
    node_type("pairs-4", 4, |a, b| {
        if a / 2 == b / 2 {
            Link::Nv(4)
        } else {
            Link::Sys
        }
    })
}

/// A node of a random cluster: type, leaf, and its state.
#[derive(Clone, Debug)]
struct Place {
    pairs: bool,
    leaf: u32,
    state: NodeState,
}

fn place() -> impl Strategy<Value = Place> {
    let masks = (0u64..16, 0u64..16, prop::bool::weighted(0.8));
    let rest = (
        any::<bool>(),
        0u32..5,
        0u32..40,
        0u16..3,
        prop::bool::weighted(0.9),
    );
    (masks, rest).prop_map(
        |((free, gone, healthy), (pairs, leaf, cpus, affinity, candidate))| {
            let present = if healthy { 15 } else { 15 & !gone };
            Place {
                pairs,
                leaf,
                state: NodeState {
                    candidate,
                    present: GpuSet(present),
                    // Free GPUs out of service must not be used.
                    free: GpuSet(free),
                    free_cpus: if cpus < 20 { cpus } else { u32::MAX },
                    free_memory_mib: u64::MAX,
                    affinity,
                    penalty: 0,
                    until: 0,
                },
            }
        },
    )
}

/// Failing cases are printed, not kept in files.
fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

/// Leaves 0 to 3 in two spines; leaf 4 stands for a node outside the fabric.
fn build(places: &[Place]) -> (Cluster, Vec<NodeState>) {
    build_levels(places, ["leaf", "spine"])
}

fn build_levels(places: &[Place], names: [&str; 2]) -> (Cluster, Vec<NodeState>) {
    let (pairs, switch) = (Arc::new(paired()), Arc::new(switched()));
    let types: Vec<_> = places
        .iter()
        .map(|p| {
            if p.pairs {
                pairs.clone()
            } else {
                switch.clone()
            }
        })
        .collect();
    let outside = |of: &dyn Fn(u32) -> u32| -> Vec<u32> {
        let domain = |p: &Place| if p.leaf == 4 { NO_DOMAIN } else { of(p.leaf) };
        places.iter().map(domain).collect()
    };
    let levels = [
        (names[0], outside(&|leaf| leaf)),
        (names[1], outside(&|leaf| leaf / 2)),
    ];
    (
        cluster(&types, &levels),
        places.iter().map(|p| p.state).collect(),
    )
}

/// A node with room: index, best GPUs, their ring, usability lost, free GPUs.
#[derive(Clone, Copy, Debug)]
struct Fit {
    node: u32,
    set: u64,
    ring: u64,
    lost: u64,
    free: u32,
}

fn fits(places: &[Place], types: &[NodeType; 2], brutes: &mut [Brute; 2], count: u32) -> Vec<Fit> {
    let mut fits = Vec::new();
    for (node, place) in places.iter().enumerate() {
        let brute = &mut brutes[usize::from(place.pairs)];
        let free = place.state.free.0 & place.state.present.0;
        assert!(types[0].gpus == 4);
        if !place.state.candidate {
            continue;
        }
        if let Some(set) = brute.best(free, count, false) {
            fits.push(Fit {
                node: node as u32,
                set,
                ring: brute.rings[&set],
                lost: brute.usable(free) - brute.usable(free & !set),
                free: free.count_ones(),
            });
        }
    }
    fits
}

fn subsets(of: &[Fit], count: usize) -> Vec<Vec<Fit>> {
    (0u32..1 << of.len())
        .filter(|set| set.count_ones() as usize == count)
        .map(|set| {
            let member = |i: &usize| set >> i & 1 == 1;
            (0..of.len()).filter(member).map(|i| of[i]).collect()
        })
        .collect()
}

/// Worst ring, highest first; usability lost; then the nodes one by one.
type SetRank = (Reverse<u64>, u64, Vec<(u64, u32, u32)>);

fn set_rank(set: &[Fit]) -> SetRank {
    let mut each: Vec<_> = set.iter().map(|f| (f.lost, f.free, f.node)).collect();
    each.sort_unstable();
    (
        Reverse(set.iter().map(|f| f.ring).min().unwrap()),
        set.iter().map(|f| f.lost).sum(),
        each,
    )
}

proptest! {
    #![proptest_config(cases(1500))]

    #[test]
    fn single_node_jobs_match_brute_force(
        mut places in prop::collection::vec(place(), 1..8),
        count in 1u32..=4,
    ) {
        let types = [switched(), paired()];
        let mut brutes = [Brute::new(&types[0]), Brute::new(&types[1])];
        for place in &mut places {
            place.state.free = place.state.free.and(place.state.present);
        }
        let (cluster, state) = build(&places);
        let mut planner = Planner::new(cluster);
        let fits = fits(&places, &types, &mut brutes, count);
        let whole = |same: &dyn Fn(u32) -> bool| {
            let is_whole = |p: &&Place| {
                let s = &p.state;
                s.candidate && !s.free.is_empty() && s.free == s.present && same(p.leaf)
            };
            places.iter().filter(is_whole).count()
        };
        let mut ranked: Vec<_> = fits
            .iter()
            .map(|fit| {
                let place = &places[fit.node as usize];
                let total = brutes[usize::from(place.pairs)].total(fit.set);
                let domain = match place.leaf {
                    4 => (0, 0),
                    leaf => (whole(&|l| l == leaf), whole(&|l| l != 4 && l / 2 == leaf / 2)),
                };
                ((Reverse(fit.ring), Reverse(total), fit.lost, fit.free, domain, fit.node), fit)
            })
            .collect();
        ranked.sort_unstable_by_key(|(rank, _)| *rank);
        for (skip, (_, fit)) in ranked.iter().enumerate() {
            let request = request(1, GpuShape::PerNode(count));
            let choice = planner.plan(&state, &request, skip as u32).unwrap();
            prop_assert_eq!((choice.nodes[0].node, choice.nodes[0].gpus.0), (fit.node, fit.set));
            prop_assert_eq!(choice.usability_lost, fit.lost as f32 / 1000.0);
            prop_assert_eq!(choice.bus_gbps, fit.ring as f32 / 100.0);
            prop_assert_eq!(choice.feasible_domains as usize, fits.len());
        }
        let skip = ranked.len() as u32;
        prop_assert!(planner.plan(&state, &request(1, GpuShape::PerNode(count)), skip).is_err());
    }

    #[test]
    fn gangs_match_brute_force(
        places in prop::collection::vec(place(), 2..9),
        count in 1u32..=4,
        nodes in 2usize..5,
    ) {
        let types = [switched(), paired()];
        let mut brutes = [Brute::new(&types[0]), Brute::new(&types[1])];
        let (cluster, state) = build(&places);
        let mut planner = Planner::new(cluster);
        let fits = fits(&places, &types, &mut brutes, count);
        let leaf = |node: u32| places[node as usize].leaf;
        let inside = |level: u32, domain: u32| -> Vec<Fit> {
            let within = |f: &&Fit| match (level, leaf(f.node)) {
                (2, _) => true,
                (_, 4) => false,
                (0, leaf) => leaf == domain,
                (_, leaf) => leaf / 2 == domain,
            };
            fits.iter().filter(within).copied().collect()
        };
        let with_room = |level: u32| -> Vec<u32> {
            (0..4 >> level).filter(|&d| inside(level, d).len() >= nodes).collect()
        };
        let gang = request(nodes as u32, GpuShape::PerNode(count));
        let got = planner.plan(&state, &gang, 0).cloned();
        let Some(level) = (0..=2).find(|&level| !with_room(level).is_empty()) else {
            prop_assert!(got.is_err());
            return Ok(());
        };
        let got = got.unwrap();
        let chosen: Vec<Fit> = got
            .nodes
            .iter()
            .map(|c| *fits.iter().find(|f| f.node == c.node && f.set == c.gpus.0).unwrap())
            .collect();
        prop_assert_eq!(got.reached, level + 2);
        prop_assert_eq!(got.feasible_nodes as usize, fits.len());
        prop_assert_eq!(got.feasible_domains as usize, with_room(level).len());
        let lost: u64 = chosen.iter().map(|f| f.lost).sum();
        prop_assert_eq!(got.usability_lost, lost as f32 / 1000.0);
        if level == 0 {
            let best = with_room(0)
                .into_iter()
                .map(|domain| {
                    let room = inside(0, domain);
                    let set = subsets(&room, nodes).into_iter().map(|s| set_rank(&s)).min().unwrap();
                    let outer = inside(1, domain / 2).len();
                    ((set.0, set.1, room.len() - nodes, outer, domain), set.2)
                })
                .min()
                .unwrap();
            let mut each: Vec<_> = chosen.iter().map(|f| (f.lost, f.free, f.node)).collect();
            each.sort_unstable();
            prop_assert_eq!(each, best.1);
            prop_assert_eq!(got.domain, Some(best.0.4));
        } else {
            // The best worst ring, then the fewest domains one level further in.
            let spanned = |set: &[Fit]| {
                let domain = |f: &Fit| match (level, leaf(f.node)) {
                    (_, 4) => 100 + f.node,
                    (1, leaf) => leaf,
                    (_, leaf) => leaf / 2,
                };
                set.iter().map(domain).collect::<BTreeSet<_>>().len()
            };
            let rank = |set: &[Fit]| (Reverse(set.iter().map(|f| f.ring).min().unwrap()), spanned(set));
            let best = with_room(level)
                .into_iter()
                .flat_map(|domain| subsets(&inside(level, domain), nodes))
                .map(|set| rank(&set))
                .min()
                .unwrap();
            prop_assert_eq!(rank(&chosen), best);
        }
    }

    #[test]
    fn totals_take_the_fewest_nodes_of_the_closest_domain(
        places in prop::collection::vec(place(), 1..8),
        total in 1u32..20,
        (min, more) in (1u32..4, 0u32..5),
    ) {
        let (cluster, state) = build(&places);
        let mut planner = Planner::new(cluster);
        let mut request = request(min, GpuShape::Total(total));
        request.max_nodes = min + more;
        let got = planner.plan(&state, &request, 0).cloned();
        let free = |p: &Place| match p.state.candidate {
            true => p.state.free.and(p.state.present).len() as u32,
            false => 0,
        };
        // Fewest nodes among these, if they can hold the job.
        let fewest = |inside: &dyn Fn(u32) -> bool| {
            let mut room: Vec<u32> = places.iter().filter(|p| inside(p.leaf)).map(free).collect();
            room.retain(|&f| f > 0);
            room.sort_unstable_by_key(|&f| Reverse(f));
            (min..=request.max_nodes.min(total))
                .find(|&n| room.len() >= n as usize && room[..n as usize].iter().sum::<u32>() >= total)
        };
        let one = places.iter().any(|p| free(p) >= total) && min == 1;
        let leaves = (0..4).filter_map(|d| fewest(&|leaf| leaf == d)).min();
        let spines = (0..2).filter_map(|d| fewest(&|leaf| leaf < 4 && leaf / 2 == d)).min();
        let want = match (leaves, spines, fewest(&|_| true)) {
            _ if one => Some((1, 1)),
            (Some(n), _, _) => Some((n, 2)),
            (None, Some(n), _) => Some((n, 3)),
            (None, None, Some(n)) => Some((n, 4)),
            _ => None,
        };
        let got = got.ok().map(|c| (c.nodes.len() as u32, c.reached.max(1)));
        prop_assert_eq!(got, want);
    }
}

fn request_strategy() -> impl Strategy<Value = Request> {
    let shape = prop_oneof![
        (1u32..6).prop_map(GpuShape::PerNode),
        (1u32..20).prop_map(GpuShape::Total),
        (1u32..4, 1u32..6).prop_map(|(per_task, tasks)| GpuShape::PerTask { per_task, tasks }),
        (1u32..3).prop_map(|per_socket| GpuShape::PerSocket {
            per_socket,
            sockets: 1
        }),
    ];
    let rule = prop_oneof![
        Just(Placement::BestFit),
        Just(Placement::Pack),
        Just(Placement::Spread),
        Just(Placement::Affinity(vec!["a".into()])),
        Just(Placement::AntiAffinity(vec!["a".into()])),
    ];
    let level = prop::sample::select(vec!["", "node", "nvlink", "leaf", "spine", "any"]);
    (
        (1u32..5, 0u32..4, shape, rule),
        (0u32..8, 0u32..4, prop::bool::weighted(0.2)),
        (
            level,
            any::<bool>(),
            prop::collection::btree_set(0u32..6, 0..3),
        ),
    )
        .prop_map(
            |((min, more, gpus, rule), (cpus, per_gpu, whole), (level, required, named))| {
                let mut request = request(min, gpus);
                request.max_nodes = min + more;
                request.placement = rule;
                (request.cpus_per_node, request.cpus_per_gpu) = (cpus, per_gpu);
                request.whole_nodes = whole;
                if named.len() < 2 {
                    request.required_nodes = named.into_iter().collect();
                }
                if level.is_empty() {
                    request
                } else {
                    wish(request, level, required)
                }
            },
        )
}

/// What must hold for every choice.
fn assert_valid(cluster: &Cluster, state: &[NodeState], request: &Request, choice: &Choice) {
    let case = format!("{request:?}\n{choice:?}");
    let count = choice.nodes.len() as u32;
    let most = request.max_nodes.max(request.min_nodes);
    assert!(count >= request.min_nodes && count <= most, "{case}");
    assert!(
        choice.nodes.windows(2).all(|w| w[0].node < w[1].node),
        "{case}"
    );
    let leave = request.whole_nodes || matches!(request.gpus, GpuShape::PerSocket { .. });
    let mut held = 0;
    for part in &choice.nodes {
        let s = &state[part.node as usize];
        let free = s.free.and(s.present);
        assert!(s.candidate, "{case}");
        assert!(part.gpus.minus(free).is_empty(), "{case}");
        assert_eq!(part.gpus.is_empty(), leave, "{case}");
        assert!(s.free_cpus >= request.cpus_per_node, "{case}");
        if request.whole_nodes {
            assert_eq!(free, s.present, "{case}");
        }
        let used = if leave { free.len() } else { part.gpus.len() } as u32;
        let cpus = used * request.cpus_per_gpu;
        assert!(leave || s.free_cpus >= cpus, "{case}");
        match request.gpus {
            GpuShape::PerNode(k) if !leave => assert_eq!(used, k, "{case}"),
            GpuShape::PerNode(k) | GpuShape::PerSocket { per_socket: k, .. } => {
                assert!(used >= k, "{case}")
            }
            GpuShape::Total(_) => assert!(used >= 1, "{case}"),
            GpuShape::PerTask { per_task, .. } if leave => assert!(used >= per_task, "{case}"),
            GpuShape::PerTask { per_task, .. } => assert_eq!(used % per_task, 0, "{case}"),
        }
        held += used;
    }
    match request.gpus {
        GpuShape::Total(n) if leave => assert!(held >= n, "{case}"),
        GpuShape::Total(n) => assert_eq!(held, n, "{case}"),
        GpuShape::PerTask { per_task, tasks } if !leave => {
            assert_eq!(held, per_task * tasks, "{case}")
        }
        _ => {}
    }
    for required in &request.required_nodes {
        assert!(
            choice.nodes.iter().any(|part| part.node == *required),
            "{case}"
        );
    }
    // The level that it claims.
    let levels = &cluster.fabric.levels;
    match choice.reached {
        0 | 1 => {
            assert_eq!((count, choice.domain), (1, None), "{case}");
            let part = choice.nodes[0];
            let node_type = cluster.nodes[part.node as usize]
                .node_type
                .as_ref()
                .unwrap();
            let linked = |set: GpuSet| {
                set.iter().all(|a| {
                    let joined = |b| a == b || matches!(node_type.link(a, b), Link::Nv(_));
                    set.iter().all(joined)
                })
            };
            assert!(choice.reached == 1 || linked(part.gpus), "{case}");
        }
        reached => match levels.get(reached as usize - 2) {
            Some(level) => {
                let domain = choice.domain.unwrap();
                let inside = |part: &gpuos_placement::plan::NodeChoice| {
                    level.domain_of[part.node as usize] == domain
                };
                assert!(
                    domain != NO_DOMAIN && choice.nodes.iter().all(inside),
                    "{case}"
                );
            }
            None => assert_eq!(choice.domain, None, "{case}"),
        },
    }
    if let Some(wish) = request.topology.as_ref().filter(|wish| wish.required) {
        let named = levels.iter().position(|level| level.name == wish.level);
        let most = match (wish.level.as_str(), named) {
            (_, Some(level)) => level as u32 + 2,
            ("nvlink", None) => 0,
            ("node", None) => 1,
            _ => 4,
        };
        if wish.level == "nvlink" {
            assert_ne!(choice.reached, 1, "{case}");
        }
        assert!(choice.reached <= most, "{case}");
    }
    assert!(
        choice.usability_lost >= 0.0 && choice.bus_gbps >= 0.0,
        "{case}"
    );
    assert!(
        choice.feasible_domains >= 1 && choice.feasible_nodes >= count,
        "{case}"
    );
}

proptest! {
    #![proptest_config(cases(6000))]

    #[test]
    fn every_choice_is_valid(
        places in prop::collection::vec(place(), 6..12),
        request in request_strategy(),
        names in prop::sample::select(vec![["leaf", "spine"], ["nvlink", "leaf"]]),
    ) {
        let (cluster, state) = build_levels(&places, names);
        let mut planner = Planner::new(cluster.clone());
        let mut choices: Vec<Choice> = Vec::new();
        let wait = loop {
            match planner.plan(&state, &request, choices.len() as u32) {
                Ok(choice) => {
                    assert_valid(&cluster, &state, &request, choice);
                    choices.push(choice.clone());
                }
                Err(wait) => break wait,
            }
            prop_assert!(choices.len() < 60, "choices never end");
        };
        // A preferred level is reached whenever it could have been required.
        if let (Some(wish), Some(first)) = (&request.topology, choices.first()) {
            let mut strict = request.clone();
            strict.topology = Some(gpuos_placement::plan::TopologyRequest { required: true, ..wish.clone() });
            if let Ok(near) = planner.plan(&state, &strict, 0) {
                prop_assert_eq!((&near.nodes, near.reached), (&first.nodes, first.reached));
            }
        }
        match wait {
            Wait::Capacity { feasible_nodes, needed_nodes, free_gpus, needed_gpus } if choices.is_empty() => {
                prop_assert!(feasible_nodes < needed_nodes || free_gpus < needed_gpus, "{request:?}");
            }
            Wait::Level { have, need, .. } if choices.is_empty() => {
                prop_assert!(have < need, "{request:?}: {have} of {need}");
            }
            Wait::Never { why } => {
                prop_assert!(choices.is_empty() && !why.to_string().is_empty());
                // Then nothing waits for running jobs to end, either.
                prop_assert!(planner.future(&state, &request, 0).is_none(), "{request:?}: {why}");
            }
            _ => {}
        }
    }
}

fn edge() -> impl Strategy<Value = u32> {
    prop_oneof![
        Just(0u32),
        Just(1),
        2u32..70,
        Just(u32::MAX - 1),
        Just(u32::MAX)
    ]
}

proptest! {
    #![proptest_config(cases(3000))]

    /// Numbers at the edges, states that are too short and GPUs that do not exist: an answer, and
    /// a valid one.
    #[test]
    fn absurd_requests_are_answered(
        places in prop::collection::vec(place(), 0..6),
        (shape, a, b) in (0u8..4, edge(), edge()),
        (min, max, cpus, per_gpu) in (edge(), edge(), edge(), edge()),
        memory in prop::sample::select(vec![0, 1, u64::MAX]),
        whole in any::<bool>(),
        named in prop::collection::btree_set(edge(), 0..3),
        (skip, known, masks) in (edge(), 0usize..7, any::<u64>()),
        level in prop::sample::select(vec!["", "node", "nvlink", "leaf", "any", "Leaf", "\u{fffd}"]),
    ) {
        let (cluster, mut state) = build(&places);
        for state in &mut state {
            (state.free, state.present) = (GpuSet(masks), GpuSet(!0));
        }
        let mut request = request(min, match shape {
            0 => GpuShape::PerNode(a),
            1 => GpuShape::Total(a),
            2 => GpuShape::PerTask { per_task: a, tasks: b },
            _ => GpuShape::PerSocket { per_socket: a, sockets: 1 },
        });
        (request.max_nodes, request.whole_nodes) = (max, whole);
        (request.cpus_per_node, request.cpus_per_gpu) = (cpus, per_gpu);
        request.memory_mib_per_node = memory;
        request.required_nodes = named.into_iter().collect();
        if !level.is_empty() {
            request = wish(request, level, a % 2 == 0);
        }
        let mut planner = Planner::new(cluster);
        for skip in [0, skip] {
            if let Ok(choice) = planner.plan(&state, &request, skip) {
                prop_assert!(choice.nodes.iter().all(|part| part.gpus.minus(GpuSet(masks & 15)).is_empty()));
                prop_assert!(choice.nodes.len() <= places.len());
            }
            planner.future(&state, &request, skip);
        }
        state.truncate(known);
        planner.plan(&state, &request, 0).ok();
    }
}
