//! Slices of nodes for jobs: always free, legal and found again by `tile`; and whenever there is a way.

use gpuos_config::options::parse_mig;
use gpuos_model::gpu_index::PoolSet;
use gpuos_model::gpuset::GpuSet;
use gpuos_model::mig::{Geometry, NONE, State, States};
use gpuos_placement::mig::{Ask, Effort, JobInstance, MOST_STEPS, Pick, Pool, tile};

use crate::mig_support::{board, boards};
use crate::random::Random;

const NODES: u32 = 3;

/// A job that runs: its node, its slices, and its instances where it has some.
struct Running {
    job: u32,
    node: u32,
    bits: u64,
    cuts: Vec<JobInstance>,
}

/// What runs, kept apart from the pool.
struct Checker {
    geometry: Geometry,
    states: States,
    gpus: usize,
    jobs: Vec<Running>,
}

impl Checker {
    fn taken(&self, node: u32) -> u64 {
        let own = self.jobs.iter().filter(|job| job.node == node);
        own.fold(0, |all, job| {
            assert_eq!(all & job.bits, 0, "two jobs have a slice");
            all | job.bits
        })
    }

    /// The states of a node's GPUs by the instances on them.
    fn node(&self, node: u32) -> Vec<State> {
        let own = |gpu: usize| {
            let jobs = self.jobs.iter().filter(move |job| job.node == node);
            let cuts = jobs.flat_map(|job| &job.cuts);
            cuts.filter(move |cut| cut.gpu.index() == gpu)
        };
        let spot = |cut: &JobInstance| self.states.spot(cut.profile, cut.placement.start).unwrap();
        let each = (0..self.gpus).map(|gpu| self.states.of(own(gpu).map(spot)));
        let all: Vec<State> = each.collect();
        assert!(all.iter().all(|state| *state != NONE), "cannot be together");
        all
    }

    /// Whether there is any way, by trying all of them.
    fn brute(&self, states: &mut [State], profiles: &[usize]) -> bool {
        let Some((&profile, rest)) = profiles.split_first() else {
            return true;
        };
        for gpu in 0..states.len() {
            let before = states[gpu];
            let all: Vec<State> = self.states.fits(before, profile).map(|f| f.1).collect();
            for next in all {
                states[gpu] = next;
                if self.brute(states, rest) {
                    return true;
                }
            }
            states[gpu] = before;
        }
        false
    }
}

/// A random request, and how many slices of a node it takes.
fn request(random: &mut Random, geometry: &Geometry) -> (String, u64) {
    let mut items = Vec::new();
    let mut slices = 0;
    for _ in 0..1 + random.below(3) {
        let profile = &geometry.profiles()[random.index(geometry.profiles().len())];
        let count = 1 + random.below(2);
        slices += count * u64::from(profile.size);
        items.push(format!("{}:{count}", profile.name));
    }
    (items.join(","), slices)
}

/// Jobs come and go on three nodes; some take slices by number alone where `by_hand`.
fn simulate(name: &str, geometry: Geometry, seed: u64, by_hand: bool) -> [u32; 3] {
    let mut random = Random(seed);
    let gpus = (64 / usize::from(geometry.slices())).min(2);
    let mut pool = Pool::new(vec![geometry.clone()]).unwrap();
    for _ in 0..NODES {
        pool.add_node(0, gpus).expect("a node");
    }
    let mut checker = Checker {
        states: States::new(&geometry).unwrap(),
        geometry,
        gpus,
        jobs: Vec::new(),
    };
    let mut seen = [0; 3];
    for job in 1..1_500 {
        if !checker.jobs.is_empty() && random.below(5) < 2 {
            let at = random.index(checker.jobs.len());
            let gone = checker.jobs.swap_remove(at);
            // slurmctld tells of the end before it frees the slices, or the other way round.
            if random.below(2) == 0 {
                pool.ends(gone.job);
            }
            pool.see(gone.node, checker.taken(gone.node), PoolSet::EMPTY);
            pool.ends(gone.job);
        }
        let (text, slices) = request(&mut random, &checker.geometry);
        let parsed = parse_mig(&text).unwrap();
        let Some(ask) = Ask::of_request(&parsed, &pool, slices) else {
            continue;
        };
        pool.arrives(&ask, 1);
        let node = random.below(NODES.into()) as u32;
        if by_hand && random.below(6) == 0 {
            let free: Vec<usize> = (0..pool.slices_of(node))
                .filter(|bit| checker.taken(node) >> bit & 1 == 0)
                .collect();
            let bits = free.iter().take(3).fold(0, |bits, bit| bits | 1 << bit);
            checker.jobs.push(Running {
                job,
                node,
                bits,
                cuts: Vec::new(),
            });
            continue;
        }
        let taken = checker.taken(node);
        pool.see(node, taken, PoolSet::EMPTY);
        let prices = pool.prices();
        let serves = parsed.serves(&checker.geometry).unwrap();
        let profiles: Vec<usize> = serves
            .iter()
            .flat_map(|&(profile, count)| vec![profile; count.into()])
            .collect();
        // What the search of one node has shown is no other answer for the next.
        let mut shared = Effort::default();
        let mut alone = 0;
        for node in 0..NODES {
            let mut own = Effort::default();
            let fresh = pool.pick(&mut own, &prices, node, &ask);
            assert!(own.steps() < MOST_STEPS, "{name}: {text} on {taken:b}");
            assert_eq!(pool.pick(&mut shared, &prices, node, &ask), fresh, "{text}");
            alone += own.steps();
        }
        seen[2] += u32::from(shared.steps() < alone);
        let picked = pool.pick(&mut Effort::default(), &prices, node, &ask);
        seen[usize::from(picked.is_some())] += 1;
        let Some(Pick { bits, .. }) = picked else {
            // Several kinds, one of them scarce: there may be a way in which `tile` does not find them again
            // beside what is there. Then the job waits.
            let scarce = |&(profile, _): &(usize, u16)| checker.states.is_scarce(profile);
            let hidden = serves.len() > 1 && serves.iter().any(scarce);
            if !by_hand && !hidden {
                let mut states = checker.node(node);
                let way = checker.brute(&mut states, &profiles);
                assert!(!way, "{name}: {text} fits on {taken:b}");
            }
            continue;
        };
        assert_eq!(bits & taken, 0, "{name}: {text} on {taken:b}");
        let cuts = tile(&checker.geometry, bits, &serves).expect("it is found again");
        checker.jobs.push(Running {
            job,
            node,
            bits,
            cuts,
        });
        checker.node(node);
        pool.holds(job, &ask, [(node, bits)]);
    }
    seen
}

#[test]
fn what_is_given_is_free_legal_and_found_again_and_what_fits_is_given() {
    let mut saved = 0;
    for (at, (name, geometry)) in (0..).zip(boards()) {
        for seed in 0..4 {
            let seen = simulate(&name, geometry.clone(), 100 * at + seed, false);
            assert!(seen[..2].iter().all(|&n| n > 20), "{name}: {seen:?}");
            saved += seen[2];
        }
    }
    assert!(saved > 0, "no node was like another that was searched");
}

#[test]
fn slices_that_somebody_took_by_number_are_left_alone() {
    for (at, (name, geometry)) in (0..).zip(boards()) {
        let seen = simulate(&name, geometry, 7 + at, true);
        assert!(seen[1] > 20, "{name}: {seen:?}");
    }
}

fn pool(gpus: usize) -> Pool {
    let mut pool = Pool::new(vec![board("h100-80gb")]).unwrap();
    pool.add_node(0, gpus).expect("a node");
    pool
}

fn ask(pool: &Pool, text: &str, slices: u64) -> Ask {
    Ask::of_request(&parse_mig(text).unwrap(), pool, slices).expect("it is served")
}

fn pick(pool: &mut Pool, ask: &Ask) -> Option<u64> {
    let prices = pool.prices();
    pool.pick(&mut Effort::default(), &prices, 0, ask)
        .map(|pick| pick.bits)
}

#[test]
fn the_media_extension_is_given_once_for_each_gpu() {
    let mut pool = pool(2);
    let me = ask(&pool, "1g.10gb+me", 1);
    let mut taken = 0;
    for job in 1..=2 {
        let bits = pick(&mut pool, &me).expect("each GPU has one");
        pool.holds(job, &me, [(0, bits)]);
        taken |= bits;
        pool.see(0, taken, PoolSet::EMPTY);
    }
    assert_eq!([taken & 0xff, taken >> 8].map(u64::count_ones), [1, 1]);
    assert_eq!(pick(&mut pool, &me), None);
    let one = ask(&pool, "1g.10gb", 1);
    assert!(pick(&mut pool, &one).is_some());
    // Slices are free, and yet it is only foreseen for the end of one that has the extension.
    let prices = pool.prices();
    let ends = [(5, 0), (9, taken & 0xff)];
    let (at, later) = pool
        .pick_later(&mut Effort::default(), &prices, 0, &me, &ends)
        .expect("then");
    assert_eq!((at, later.bits), (9, taken & 0xff));
    // Its bits are free again: so is the extension, whenever slurmctld tells of the end.
    pool.see(0, taken & 0xff, PoolSet::EMPTY);
    let again = pick(&mut pool, &me).expect("one is back");
    assert_eq!(again & 0xff, 0);
}

#[test]
fn a_request_for_each_task_is_multiplied_and_others_are_taken_at_their_word() {
    let pool = pool(2);
    let request = |text: &str, slices| Ask::of_request(&parse_mig(text).unwrap(), &pool, slices);
    let four = request("1g.10gb:per-task", 4).expect("four tasks");
    assert_eq!(four.names(&pool, 0), "1g.10gb:4");
    assert!(request("1g.10gb", 4).is_none());
    assert!(request("1g.10gb,3g.40gb:per-task", 11).is_none());
    let named = Ask::of_slices(&pool, 2).expect("1g.20gb and 2g.20gb have two");
    assert_eq!(named.names(&pool, 0), "1g.20gb:1");
    assert_eq!(Ask::of_slices(&pool, 3), None);
}

#[test]
fn gpus_out_of_service_are_not_offered() {
    let mut pool = pool(2);
    let seven = ask(&pool, "7g.80gb", 8);
    pool.see(0, 0, PoolSet(GpuSet(0b01)));
    assert_eq!(pick(&mut pool, &seven), Some(0xff00));
    pool.see(0, 0, PoolSet(GpuSet(0b11)));
    assert_eq!(pick(&mut pool, &seven), None);
    pool.see(0, 0, PoolSet::EMPTY);
    assert!(pick(&mut pool, &seven).is_some());
}

/// A thousand nodes of eight GPUs, of which each has the GPUs that are like these, from another one on.
fn thousand(taken: [u64; 8]) -> Pool {
    let mut pool = Pool::new(vec![board("h100-80gb")]).unwrap();
    for node in 0..1_000 {
        pool.add_node(0, 8).expect("a node");
        let turned = (0..8).map(|at| taken[(at + node as usize) % 8] << (8 * at));
        pool.see(node, turned.fold(0, |all, own| all | own), PoolSet::EMPTY);
    }
    pool
}

/// Asks all nodes of a pool in one decision: how many have room, and what it took.
fn ask_all(pool: &mut Pool, ask: &Ask, nodes: std::ops::Range<u32>) -> (usize, u32) {
    let mut effort = Effort::default();
    let prices = pool.prices();
    let rooms = nodes.filter(|node| pool.pick(&mut effort, &prices, *node, ask).is_some());
    (rooms.count(), effort.steps())
}

#[test]
fn nodes_with_too_few_placements_are_not_searched() {
    // 19 placements of one slice are free on each, besides the last slices, in which there is none.
    let few = [0, 0, 0b11, 0xff, 0xff, 0x7f, 0x7f, 0x7f];
    let mut pool = thousand(few);
    for (text, slices) in [("1g.10gb:20", 20), ("1g.10gb:40", 40), ("3g.40gb:6", 24)] {
        let ask = ask(&pool, text, slices);
        assert_eq!(ask_all(&mut pool, &ask, 0..1_000), (0, 0), "{text}");
    }
    let nineteen = ask(&pool, "1g.10gb:19", 19);
    assert_eq!(ask_all(&mut pool, &nineteen, 0..1_000).0, 1_000);
}

#[test]
fn nodes_that_are_alike_are_searched_once() {
    // Nine slices and all placements that each profile needs, but the ninth slice is in none.
    let halves = [0xf0, 0xf0, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff];
    let mut pool = thousand(halves);
    let ask = ask(&pool, "3g.40gb:2,1g.10gb:1", 9);
    let (rooms, one) = ask_all(&mut pool, &ask, 0..1);
    assert!(rooms == 0 && one > 0, "{one}");
    assert_eq!(ask_all(&mut pool, &ask, 0..1_000), (0, one));
}

#[test]
fn a_decision_ends_and_what_fits_without_a_search_is_still_found() {
    // 26 slices are free and 24 of them in placements: all ways to put 24 instances there.
    let mut pool = thousand([0xf0, 0xf0, 0xf0, 0xf0, 0xf0, 0xf0, 0x7f, 0x7f]);
    let ask = ask(&pool, "2g.20gb:2,1g.10gb:22", 26);
    pool.see(999, 0, PoolSet::EMPTY);
    assert_eq!(ask_all(&mut pool, &ask, 0..1_000), (1, MOST_STEPS));
    assert_eq!(ask_all(&mut pool, &ask, 999..1_000), (1, 0));
}

#[test]
fn room_is_foreseen_when_a_placement_is_free_not_when_enough_slices_are() {
    let mut pool = pool(1);
    let half = ask(&pool, "3g.40gb", 4);
    // Free: 1, 2, 5 and 6, four slices and no placement.
    let taken = 0b1001_1001;
    pool.see(0, taken, PoolSet::EMPTY);
    assert_eq!(pick(&mut pool, &half), None);
    let prices = pool.prices();
    let ends = [(10, 0b1000_0000), (20, 0b1000), (30, 0b1), (40, 0b1_0000)];
    let (at, later) = pool
        .pick_later(&mut Effort::default(), &prices, 0, &half, &ends)
        .expect("a placement");
    assert_eq!((at, later.bits), (30, 0b1111));
    assert_eq!(pick(&mut pool, &half), None, "nothing has changed");
}

#[test]
fn nodes_that_cannot_be_kept_are_refused() {
    let mut pool = Pool::new(vec![board("h100-80gb"), board("rtx-pro-6000")]).unwrap();
    assert_eq!(pool.add_node(0, 8), Some(0));
    assert_eq!(pool.add_node(0, 9), None);
    assert_eq!(pool.add_node(1, 5), Some(1));
    assert_eq!(pool.add_node(1, 6), None);
    assert_eq!(pool.add_node(2, 1), None);
    assert_eq!((pool.slices_of(0), pool.slices_of(1)), (64, 60));
    let _ = pool.prices();
}
