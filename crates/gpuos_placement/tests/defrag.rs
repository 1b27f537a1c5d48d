//! Plans for waiting gangs against brute force, and on large clusters against the rules that any
//! plan has to keep.

use gpuos_model::cluster::{Cluster, NO_DOMAIN};
use gpuos_placement::defrag::*;
use proptest::prelude::*;

use crate::plan_support::{pcie, tree};
use crate::random::Random;

const MOST: u32 = 8;

fn domain(cluster: &Cluster, level: Option<usize>, node: u32) -> u32 {
    level.map_or(0, |level| {
        cluster.fabric.levels[level].domain_of[node as usize]
    })
}

/// Whether these nodes lie together at a level.
fn together(cluster: &Cluster, level: Option<usize>, nodes: &[u32]) -> bool {
    let first = domain(cluster, level, nodes[0]);
    let same = nodes
        .iter()
        .all(|&node| domain(cluster, level, node) == first);
    same && (first != NO_DOMAIN || nodes.len() == 1)
}

fn cost(problem: &Problem, job: &Job, preempt: bool) -> u64 {
    let prices = &problem.prices;
    match preempt {
        true => job.gpu_seconds + job.gpus() * prices.restart_seconds,
        false => {
            let copy = job.memory_mib.div_ceil(prices.move_mib_per_second);
            job.gpus() * (prices.move_seconds + copy)
        }
    }
}

/// The lowest cost by trying everything; `None` = there is no way.
fn brute(problem: &Problem) -> Option<u64> {
    let jobs = problem.jobs.len() as u32;
    let mut best = None;
    for set in 0..3u32.pow(jobs) {
        let (mut free, mut total, mut movers, mut allowed) =
            (problem.free.clone(), 0, vec![], true);
        for (at, job) in problem.jobs.iter().enumerate() {
            let kind = set / 3u32.pow(at as u32) % 3;
            if kind == 0 {
                continue;
            }
            allowed &= if kind == 1 {
                job.preemptable
            } else {
                job.movable
            };
            total += cost(problem, job, kind == 1);
            job.shares
                .iter()
                .for_each(|&(node, gpus)| free[node as usize] += gpus);
            if kind == 2 {
                movers.push(job);
            }
        }
        if allowed && best.is_none_or(|best| total < best) && place_gang(problem, free, &movers) {
            best = Some(total);
        }
    }
    best
}

fn place_gang(problem: &Problem, free: Vec<u32>, movers: &[&Job]) -> bool {
    let gang = &problem.gang;
    (0u32..1 << free.len())
        .filter(|set| set.count_ones() == gang.nodes)
        .any(|set| {
            let nodes: Vec<u32> = (0..free.len() as u32)
                .filter(|node| set >> node & 1 == 1)
                .collect();
            let mut free = free.clone();
            let fits = nodes.iter().all(|&node| {
                let able =
                    free[node as usize] >= gang.gpus && problem.classes[gang.class][node as usize];
                free[node as usize] = free[node as usize].saturating_sub(gang.gpus);
                able
            });
            fits && together(problem.cluster, gang.level, &nodes)
                && place_movers(problem, &free, movers)
        })
}

fn place_movers(problem: &Problem, free: &[u32], movers: &[&Job]) -> bool {
    let Some((job, rest)) = movers.split_first() else {
        return true;
    };
    fn shares(
        problem: &Problem,
        free: &[u32],
        job: &Job,
        split: &[u32],
        on: &mut Vec<u32>,
        rest: &[&Job],
    ) -> bool {
        let Some(&gpus) = split.get(on.len()) else {
            return together(problem.cluster, job.level, on) && place_movers(problem, free, rest);
        };
        (0..free.len() as u32).any(|node| {
            let at = node as usize;
            if on.contains(&node) || free[at] < gpus || !problem.classes[job.class][at] {
                return false;
            }
            let mut free = free.to_vec();
            free[at] -= gpus;
            on.push(node);
            let fits = shares(problem, &free, job, split, on, rest);
            on.pop();
            fits
        })
    }
    let own: Vec<u32> = job.shares.iter().map(|share| share.1).collect();
    let mut splits = std::iter::once(&own).chain(&job.others);
    splits.any(|split| shares(problem, free, job, split, &mut Vec::new(), rest))
}

/// What any plan has to keep.
fn holds(problem: &Problem, plan: &Plan) {
    let mut free = problem.free.clone();
    let mut total = 0;
    for (at, action) in &plan.actions {
        let job = &problem.jobs[*at];
        assert!(if *action == Action::Preempt {
            job.preemptable
        } else {
            job.movable
        });
        total += cost(problem, job, *action == Action::Preempt);
        job.shares
            .iter()
            .for_each(|&(node, gpus)| free[node as usize] += gpus);
    }
    assert_eq!(total, plan.cost.total);
    assert!(plan.bound <= total);
    assert_eq!(plan.method == Method::Exact, plan.bound == total);
    let mut take = |node: u32, gpus: u32, class: usize| {
        assert!(problem.classes[class][node as usize]);
        free[node as usize] = free[node as usize].checked_sub(gpus).expect("room");
    };
    let gang = &problem.gang;
    assert_eq!(plan.gang.len(), gang.nodes as usize);
    assert!(plan.gang.windows(2).all(|pair| pair[0] < pair[1]));
    assert!(together(problem.cluster, gang.level, &plan.gang));
    plan.gang
        .iter()
        .for_each(|&node| take(node, gang.gpus, gang.class));
    for (at, action) in &plan.actions {
        let Action::Move(to) = action else { continue };
        let job = &problem.jobs[*at];
        let sorted = |shares: &[(u32, u32)]| {
            let mut gpus: Vec<u32> = shares.iter().map(|share| share.1).collect();
            gpus.sort_unstable_by(|a, b| b.cmp(a));
            gpus
        };
        let split = sorted(to);
        assert!(split == sorted(&job.shares) || job.others.contains(&split));
        let nodes: Vec<u32> = to.iter().map(|share| share.0).collect();
        assert!(together(problem.cluster, job.level, &nodes));
        let mut different = nodes.clone();
        different.sort_unstable();
        different.dedup();
        assert_eq!(different.len(), nodes.len());
        to.iter()
            .for_each(|&(node, gpus)| take(node, gpus, job.class));
    }
}

/// A cluster with `jobs` jobs on it, in so far as they find room, and a gang that wants much.
fn problem(cluster: &Cluster, jobs: usize, seed: u64) -> Problem<'_> {
    let mut random = Random(seed);
    let nodes = cluster.nodes.len();
    let mut free = vec![MOST; nodes];
    let classes = vec![
        vec![true; nodes],
        (0..nodes).map(|_| random.below(5) > 0).collect(),
    ];
    let mut list = Vec::new();
    for id in 0..jobs as u32 {
        let (gpus, wide) = (1 + random.below(8) as u32, 1 + random.below(2) as usize);
        let start = random.below(nodes as u64) as usize;
        let on: Vec<usize> = (0..nodes)
            .map(|at| (start + at) % nodes)
            .filter(|&node| free[node] >= gpus)
            .take(wide)
            .collect();
        if on.is_empty() {
            continue;
        }
        on.iter().for_each(|&node| free[node] -= gpus);
        let shares: Vec<(u32, u32)> = on.iter().map(|&node| (node as u32, gpus)).collect();
        let at: Vec<u32> = shares.iter().map(|share| share.0).collect();
        let level =
            (0..cluster.fabric.levels.len()).find(|&level| together(cluster, Some(level), &at));
        list.push(Job {
            id,
            preemptable: random.below(3) > 0,
            movable: random.below(3) > 0,
            gpu_seconds: random.below(50_000),
            memory_mib: random.below(200_000),
            class: random.below(2) as usize,
            level: level.filter(|_| shares.len() > 1),
            others: match (shares.len(), gpus) {
                (2, 2..8) if random.below(2) == 0 => vec![vec![gpus + 1, gpus - 1]],
                _ => Vec::new(),
            },
            shares,
        });
    }
    Problem {
        cluster,
        free,
        classes,
        jobs: list,
        gang: Gang {
            nodes: 1 + random.below(3) as u32,
            gpus: 1 + random.below(8) as u32,
            level: [None, Some(0), Some(1)][random.below(3) as usize],
            class: random.below(2) as usize,
        },
        prices: Prices::default(),
    }
}

#[test]
fn a_fragmented_leaf_is_cleared_by_the_cheapest_moves() {
    // Two leaves of two nodes. The gang wants both nodes of one leaf; a young job of one GPU is in
    // the way in each, and old ones fill one node of the other leaf.
    let cluster = tree(pcie(), 4, 2, 2);
    let job = |id, node, gpus, hours: u64| Job {
        id,
        shares: vec![(node, gpus)],
        preemptable: true,
        movable: true,
        gpu_seconds: hours * 3600 * u64::from(gpus),
        memory_mib: 80 << 10,
        ..Job::default()
    };
    let mut problem = Problem {
        cluster: &cluster,
        free: vec![7, 8, 0, 6],
        classes: vec![vec![true; 4]],
        jobs: vec![job(1, 0, 1, 5), job(2, 2, 8, 9), job(3, 3, 2, 9)],
        gang: Gang {
            nodes: 2,
            gpus: 8,
            level: Some(0),
            class: 0,
        },
        prices: Prices::default(),
    };
    let plan = solve(&problem, Limits::default()).unwrap();
    assert_eq!((plan.method, &plan.gang[..]), (Method::Exact, &[0, 1][..]));
    assert_eq!(plan.actions, [(0, Action::Move(vec![(3, 1)]))]);
    assert_eq!((plan.cost.gpus_moved, plan.cost.mib_moved), (1, 80 << 10));
    assert_eq!((plan.cost.total, plan.cost.gpu_seconds_lost), (38, 0));
    // A job that was just saved is cheaper to preempt than to move.
    problem.jobs[0].gpu_seconds = 0;
    problem.prices.restart_seconds = 5;
    let plan = solve(&problem, Limits::default()).unwrap();
    assert_eq!(plan.actions, [(0, Action::Preempt)]);
    // Nobody may be touched.
    problem
        .jobs
        .iter_mut()
        .for_each(|job| (job.preemptable, job.movable) = (false, false));
    assert_eq!(
        solve(&problem, Limits::default()),
        Err(Impossible::DoesNotFit)
    );
    // It fits as it is.
    problem.gang.nodes = 1;
    let plan = solve(&problem, Limits::default()).unwrap();
    assert_eq!(
        (plan.cost, &plan.gang[..], plan.actions.len()),
        (Cost::default(), &[1][..], 0)
    );
}

#[test]
fn a_moved_job_may_be_split_in_another_way_and_others_make_way_for_it() {
    // The gang wants node 0 whole. Its job of two and two GPUs finds three and one free elsewhere.
    let cluster = tree(pcie(), 4, 4, 2);
    let fixed = |id, node, gpus| Job {
        id,
        shares: vec![(node, gpus)],
        ..Job::default()
    };
    let mut problem = Problem {
        cluster: &cluster,
        free: vec![4, 0, 3, 1],
        classes: vec![vec![true; 4]],
        jobs: vec![
            Job {
                shares: vec![(0, 2), (1, 2)],
                movable: true,
                ..Job::default()
            },
            fixed(1, 0, 2),
            fixed(2, 1, 6),
            fixed(3, 2, 5),
            fixed(4, 3, 7),
        ],
        gang: Gang {
            nodes: 1,
            gpus: 6,
            level: None,
            class: 0,
        },
        prices: Prices::default(),
    };
    problem.free[1] = 0;
    // Two GPUs of node 1 become free as well: 2 there and 2 of node 2, or 3 and 1.
    let plan = solve(&problem, Limits::default()).unwrap();
    holds(&problem, &plan);
    // Node 1 is out of service for it: only three and one are left.
    problem.classes.push(vec![true, false, true, true]);
    problem.jobs[0].class = 1;
    assert_eq!(
        solve(&problem, Limits::default()),
        Err(Impossible::DoesNotFit)
    );
    problem.jobs[0].others = vec![vec![3, 1]];
    let plan = solve(&problem, Limits::default()).unwrap();
    holds(&problem, &plan);
    assert_eq!(plan.actions, [(0, Action::Move(vec![(2, 3), (3, 1)]))]);
    // One more GPU that the job needs is held by somebody who can move to node 1.
    problem.jobs[0].others = Vec::new();
    problem.jobs.push(Job {
        movable: true,
        ..fixed(5, 3, 1)
    });
    problem.jobs[4].shares = vec![(3, 6)];
    let plan = solve(&problem, Limits::default()).unwrap();
    holds(&problem, &plan);
    assert_eq!((plan.method, plan.actions.len()), (Method::Exact, 2));
}

#[test]
fn large_clusters_get_a_sound_plan_in_bounded_work() {
    let cluster = tree(pcie(), 320, 16, 4);
    for seed in 0..2 {
        let mut problem = problem(&cluster, 600, seed);
        for job in &mut problem.jobs {
            (job.preemptable, job.class) = (true, 0);
        }
        problem.gang = Gang {
            nodes: 12,
            gpus: 8,
            level: Some(0),
            class: 0,
        };
        let limits = Limits {
            sets: 2000,
            steps: 500,
        };
        let plan = solve(&problem, limits).unwrap();
        holds(&problem, &plan);
        assert_eq!(plan.method, Method::Bounded);
        assert!(!plan.actions.is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if std::env::var_os("GPUOS_LONG").is_some() { 300 } else { 100 }))]

    #[test]
    fn the_cheapest_set_is_found(seed in any::<u64>(), jobs in 0usize..7, leaf in 1u32..4) {
        let cluster = tree(pcie(), 5, leaf, 2);
        let problem = problem(&cluster, jobs, seed);
        match (solve(&problem, Limits { sets: 1_000_000, steps: 1_000_000 }), brute(&problem)) {
            (Ok(plan), Some(best)) => {
                holds(&problem, &plan);
                prop_assert_eq!((plan.cost.total, plan.method), (best, Method::Exact));
            }
            (found, best) => {
                prop_assert_eq!((found.clone().err(), best), (Some(Impossible::DoesNotFit), None), "{:?}", found);
            }
        }
    }

    #[test]
    fn bounded_plans_are_sound(seed in any::<u64>(), jobs in 4usize..20) {
        let cluster = tree(pcie(), 8, 4, 2);
        let problem = problem(&cluster, jobs, seed);
        if let Ok(plan) = solve(&problem, Limits { sets: 3, steps: 50 }) {
            holds(&problem, &plan);
        }
    }
}
