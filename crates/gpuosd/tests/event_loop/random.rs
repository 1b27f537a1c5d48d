//! Everything at random: faults, jobs, drains, a slurmctld that is away or slow, clocks that jump, daemons that are
//! killed. Never is a GPU reset under a job (the world asserts that), a drain lost, or a sound neighbour harmed; and
//! in the end all is back.

use std::collections::{BTreeMap, BTreeSet};

use gpuos_core::health::Verb;
use gpuos_model::rng::Rng;

use crate::JUMPS;
use crate::world::{GPUS, World};

/// More of them: GPUOS_SEEDS=1000.
const SEEDS: u64 = 10;
/// How long each goes on, in s.
const LONG: u64 = 1200;

#[derive(Default)]
struct Story {
    next: u32,
    /// Drained by an administrator.
    held: BTreeSet<u8>,
    /// Had a fault that concerns jobs; and for how many seconds it has been in service since.
    faulty: BTreeMap<u8, u32>,
    jumps: usize,
}

#[test]
fn no_job_is_under_a_reset_no_drain_is_lost_no_neighbour_is_harmed() {
    let seeds = std::env::var("GPUOS_SEEDS")
        .ok()
        .and_then(|text| text.parse().ok());
    for seed in 0..seeds.unwrap_or(SEEDS) {
        let told = std::panic::catch_unwind(|| one(seed));
        assert!(told.is_ok(), "seed {seed}");
    }
}

fn one(seed: u64) {
    let mut rng = Rng::new(seed);
    let mut world = World::new();
    let mut story = Story {
        next: 100,
        ..Story::default()
    };
    world.seconds(20);
    for _ in 0..LONG {
        let told = world.slurm.log.len();
        let before = world.slurm.jobs.clone();
        happens(&mut world, &mut story, &mut rng);
        world.second();
        for (_, what) in &world.slurm.log[told..] {
            let of = |word: &str| what.split_once(word).and_then(|(_, rest)| number(rest));
            let job = of("Requeue { job: ").or_else(|| of("Kill { job: "));
            let Some(hit) = job
                .filter(|_| what.contains("Done"))
                .and_then(|job| before.get(&job))
            else {
                continue;
            };
            assert!(
                hit.gpus.iter().any(|gpu| story.faulty.contains_key(gpu)),
                "{what} hit {hit:?}; faults on {:?}",
                story.faulty
            );
        }
        forgive(&mut world, &mut story);
    }
    ends(&mut world, &story);
}

/// A GPU that has served for a minute, with nothing left to be told to slurmctld, has no fault any more.
fn forgive(world: &mut World, story: &mut Story) {
    let status = world.status();
    let told = !world.slurm.away && status.daemon.waiting == 0;
    let out = world.slurm.out();
    story.faulty.retain(|gpu, calm| {
        let state = &status.gpus[usize::from(*gpu)].state[..];
        let serves = ["available", "allocated", "in-use", "degraded"].contains(&state);
        *calm = if serves && told && !out.contains(gpu) {
            *calm + 1
        } else {
            0
        };
        *calm < 60
    });
}

fn number(text: &str) -> Option<u32> {
    let end = text.find(|c: char| !c.is_ascii_digit())?;
    text[..end].parse().ok()
}

fn happens(world: &mut World, story: &mut Story, rng: &mut Rng) {
    let gpu = rng.below(GPUS.into()) as u8;
    match rng.below(400) {
        0..40 => job(world, story, rng),
        40..70 => {
            let jobs: Vec<u32> = world.slurm.jobs.keys().copied().collect();
            if !jobs.is_empty() {
                world.ended(jobs[rng.below(jobs.len() as u64) as usize]);
            }
        }
        70..73 => {
            story.faulty.insert(gpu, 0);
            let code = [48, 95, 31, 119, 46][rng.below(5) as usize];
            world.xid(gpu, code);
        }
        73..75 => world.xid(gpu, [43, 63, 64, 156][rng.below(4) as usize]),
        75 => {
            // A storm.
            for gpu in 0..GPUS {
                story.faulty.insert(gpu, 0);
                world.xid(gpu, 48);
            }
        }
        76..79 => {
            world.admin(Verb::Drain, gpu);
            story.held.insert(gpu);
        }
        79..82 => {
            world.admin(Verb::Online, gpu);
            story.held.remove(&gpu);
        }
        82..84 => world.slurm.away = !world.slurm.away,
        84..86 => world.slurm.slow = [0, 0, 500, 5000][rng.below(4) as usize],
        86..89 => {
            world.start();
            for gpu in &story.held {
                let state = world.status().gpus[usize::from(*gpu)].state.clone();
                assert!(
                    ["draining", "drained", "resetting", "offline"].contains(&&state[..]),
                    "{gpu} is {state}"
                );
            }
        }
        89..91 => {
            let jump = JUMPS[story.jumps % JUMPS.len()];
            story.jumps += 1;
            world.jump(if rng.below(2) == 0 { jump } else { -jump });
        }
        91 => world.library = !world.library,
        _ => {}
    }
}

/// slurmctld starts a job where it may.
fn job(world: &mut World, story: &mut Story, rng: &mut Rng) {
    let out = world.slurm.out();
    if world.slurm.away || world.slurm.drained.is_some() {
        return;
    }
    let free = |gpu: &u8| !out.contains(gpu) && world.slurm.on(*gpu).is_empty();
    let mut gpus: Vec<u8> = (0..GPUS).filter(free).collect();
    rng.shuffle(&mut gpus);
    gpus.truncate(1 + rng.below(3) as usize);
    if gpus.is_empty() {
        return;
    }
    let waiting = world
        .slurm
        .jobs
        .iter()
        .find(|(_, job)| job.pending && !job.held);
    let (id, requeue) = match waiting {
        Some((id, job)) => (*id, job.requeue),
        None => (story.next, rng.below(4) > 0),
    };
    story.next += 1;
    world.job(id, &gpus, requeue, rng.below(5) > 0);
}

/// All ends well: what was drained is out, nothing else is, and that comes back when it is told to.
fn ends(world: &mut World, story: &Story) {
    (world.slurm.away, world.slurm.slow, world.library) = (false, 0, true);
    for job in world.slurm.jobs.keys().copied().collect::<Vec<_>>() {
        world.ended(job);
    }
    world.seconds(600);
    let offline: BTreeSet<u8> = (0..GPUS)
        .filter(|gpu| world.status().gpus[usize::from(*gpu)].state == "offline")
        .collect();
    let wanted: Vec<u8> = story.held.union(&offline).copied().collect();
    assert_eq!(world.slurm.out(), wanted, "{:#?}", world.status().gpus);
    assert_eq!(world.slurm.drained, None);
    for gpu in wanted {
        world.admin(Verb::Online, gpu);
    }
    world.until("all are back", 400, |world| world.slurm.out().is_empty());
}
