//! Instances are made and destroyed on a GPU in memory, and the daemon dies at every point.

use std::collections::BTreeSet;

use gpuos_core::job::JobId;
use gpuos_core::mig::carve::{Answer, Carver, Effect, Event, step};
use gpuos_core::mig::reconcile::{Foreign, reconcile};
use gpuos_core::mig::{Claim, JobPlacement, Shown};
use gpuos_model::mig::{Geometry, MigPlacement, States};

use crate::mig_support::board;
use crate::random::Random;

/// A GPU, its driver, the journal on the disk, what Slurm holds and what prologs were told.
struct World {
    geometry: Geometry,
    states: States,
    instances: Vec<Shown>,
    /// Process of a job in an instance: job, GPU instance, signals that it still ignores.
    processes: Vec<(u32, u32, u32)>,
    disk: Vec<Claim>,
    held: Vec<JobPlacement>,
    made: u64,
    told: Vec<(u32, Result<String, String>)>,
    carver: Carver,
    now: u64,
    /// Effects that are still done before the daemon dies; after that nothing is.
    lives: Option<usize>,
    /// It dies after the effect was done and before its answer came.
    after: bool,
    refuse: bool,
}

impl World {
    fn new() -> World {
        let geometry = board("h100-80gb");
        let mut world = World {
            states: States::new(&geometry).unwrap(),
            geometry,
            instances: Vec::new(),
            processes: Vec::new(),
            disk: Vec::new(),
            held: Vec::new(),
            made: 0,
            told: Vec::new(),
            carver: Carver::default(),
            now: 0,
            lives: None,
            after: false,
            refuse: false,
        };
        world.start();
        world
    }

    /// The daemon starts with what is on the disk.
    fn start(&mut self) {
        self.lives = None;
        self.carver = Carver::restore(self.disk.clone());
        self.look();
    }

    fn look(&mut self) {
        let mut shown = self.instances.clone();
        for instance in &mut shown {
            instance.busy = self
                .processes
                .iter()
                .any(|process| process.1 == instance.gi);
        }
        let seen = Event::Seen {
            shown,
            held: self.held.clone(),
            foreign: Foreign::Leave,
        };
        self.event(seen);
    }

    /// Gives an event and does what follows, until nothing does. `false` when the daemon died.
    fn event(&mut self, event: Event) -> bool {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            let effects = step(&mut self.carver, event, self.now);
            let mut answers = Vec::new();
            for effect in effects {
                if self.lives == Some(0) && !self.after {
                    return false;
                }
                answers.extend(self.done(effect));
                if let Some(lives) = &mut self.lives {
                    if *lives == 0 {
                        return false;
                    }
                    *lives -= 1;
                }
            }
            answers.reverse();
            events.extend(answers);
        }
        true
    }

    fn done(&mut self, effect: Effect) -> Option<Event> {
        let answer = match effect {
            Effect::Save { revision, claims } => {
                self.disk = claims;
                return Some(Event::Saved(revision));
            }
            Effect::MakeGpu { profile, placement } => self.make(profile, placement),
            Effect::MakeCompute { gi } if self.refuse => {
                let why = format!("compute instance in {gi}: insufficient resources");
                Answer::Refused { why }
            }
            Effect::MakeCompute { gi } => {
                self.made += 1;
                let uuid = format!("MIG-{}", self.made);
                let instance = self.instances.iter_mut().find(|i| i.gi == gi);
                let instance = instance.expect("a compute instance goes into a GPU instance");
                assert!(instance.computes.is_empty(), "it has one already");
                instance.computes.push((0, uuid.clone()));
                Answer::ComputeMade { ci: 0, uuid }
            }
            Effect::DestroyCompute { gi } => {
                let users = self.processes.iter().filter(|process| process.1 == gi);
                let pids: Vec<u32> = users.map(|process| process.0).collect();
                // No process of a job that still runs is ever in the way.
                let instance = self.instances.iter().find(|i| i.gi == gi);
                let placement = instance.map(|instance| instance.placement);
                for job in &pids {
                    let runs = self
                        .held
                        .iter()
                        .any(|h| h.job == (*job).into() && Some(h.placement) == placement);
                    assert!(
                        !runs,
                        "the instance of job {job} was to be destroyed under it"
                    );
                }
                if pids.is_empty() {
                    let instance = self.instances.iter_mut().find(|i| i.gi == gi);
                    instance.into_iter().for_each(|i| i.computes.clear());
                    Answer::Gone
                } else {
                    Answer::Busy { pids }
                }
            }
            Effect::DestroyGpu { gi } => {
                let instance = self.instances.iter().find(|i| i.gi == gi);
                let bare = instance.is_none_or(|instance| instance.computes.is_empty());
                assert!(bare, "the compute instance goes first");
                self.instances.retain(|i| i.gi != gi);
                Answer::Gone
            }
            Effect::Ready { job, uuid, .. } => {
                self.told.push((job.number().unwrap(), Ok(uuid)));
                return None;
            }
            Effect::Failed { job, why } => {
                self.told.push((job.number().unwrap(), Err(why)));
                return None;
            }
            Effect::Signal { pids, kill } => {
                for process in &mut self.processes {
                    if pids.contains(&process.0) {
                        process.2 = if kill { 0 } else { process.2.saturating_sub(1) };
                    }
                }
                self.processes.retain(|process| process.2 > 0);
                return None;
            }
            Effect::Warn(_) => return None,
        };
        Some(Event::Done(answer))
    }

    fn make(&mut self, profile: u32, placement: MigPlacement) -> Answer {
        let spots = self.instances.iter().map(|i| {
            let number = self.geometry.by_id(i.profile).unwrap();
            self.states.spot(number, i.placement.start).unwrap()
        });
        let state = self.states.of(spots);
        let number = self.geometry.by_id(profile).unwrap();
        let spot = self
            .states
            .spot(number, placement.start)
            .expect("a legal placement");
        if self.states.make(state, spot) == gpuos_model::mig::NONE {
            let why = "insufficient resources".into();
            return Answer::Refused { why };
        }
        let gi = 8 * u32::from(placement.size) + u32::from(placement.start);
        self.instances.push(Shown {
            gi,
            profile,
            placement,
            computes: Vec::new(),
            busy: false,
        });
        Answer::GpuMade { gi }
    }

    /// The placement of a profile, and its id.
    fn spot(&self, name: &str, start: u8) -> (u32, MigPlacement) {
        let profile = &self.geometry.profiles()[self.geometry.by_name(name).unwrap()];
        let placement = MigPlacement {
            start,
            size: profile.size,
        };
        (profile.id, placement)
    }

    /// Slurm starts a job, and its prolog asks.
    fn begin(&mut self, job: u32, name: &str, start: u8) -> bool {
        let (profile, placement) = self.spot(name, start);
        self.held.push(holds(job, profile, placement));
        self.ask(job, name, start)
    }

    fn ask(&mut self, job: u32, name: &str, start: u8) -> bool {
        let (profile, placement) = self.spot(name, start);
        self.event(Event::Carve {
            job: job.into(),
            profile,
            placement,
        })
    }

    fn end(&mut self, job: u32) -> bool {
        self.held.retain(|held| held.job != job.into());
        self.event(Event::Release { job: job.into() })
    }

    /// Time goes on until nothing is left to do.
    fn settle(&mut self) {
        for _ in 0..100 {
            self.now += 1_000;
            self.event(Event::Tick);
            if self.carver.quiet() {
                return;
            }
        }
        panic!("it never comes to rest: {:?}", self.carver);
    }

    /// What holds at rest: the instances are exactly those of jobs that were told of them.
    fn check(&self) {
        let mut taken = 0u16;
        for instance in &self.instances {
            let placement = instance.placement;
            let mask = ((1u16 << placement.size) - 1) << placement.start;
            assert_eq!(taken & mask, 0, "two instances overlap");
            taken |= mask;
            let held = self.held.iter().find(|held| held.placement == placement);
            let job = held.and_then(|held| held.job.number());
            assert!(job.is_some(), "leaked: {instance:?}, {:?}", self.disk);
            let (_, uuid) = instance
                .computes
                .first()
                .expect("it has a compute instance");
            let told = self.told.iter().rev().find(|(to, _)| Some(*to) == job);
            assert_eq!(
                told.map(|told| told.1.as_ref()),
                Some(Ok(uuid)),
                "job {job:?}"
            );
        }
        assert_eq!(self.carver.claims(), self.disk);
        let plan = reconcile(&self.instances, &self.held, &self.disk, Foreign::Leave);
        assert_eq!(plan.actions, [], "{:?}", self.disk);
    }

    fn uuid(&self, job: u32) -> Option<&String> {
        let mut told = self.told.iter().rev().filter(|told| told.0 == job);
        told.next().and_then(|told| told.1.as_ref().ok())
    }
}

fn holds(job: u32, profile: u32, placement: MigPlacement) -> JobPlacement {
    JobPlacement {
        job: job.into(),
        placement,
        profile: Some(profile),
        own: false,
    }
}

/// Two jobs come, one ends with a process left behind, a third gets its placement. Gives how many
/// effects there were, the daemon dying before or after one of them.
fn story(dies: Option<(usize, bool)>) -> usize {
    const LONG: usize = 1_000;
    let mut world = World::new();
    (world.lives, world.after) = match dies {
        Some((at, after)) => (Some(at), after),
        None => (Some(LONG), true),
    };
    let mut died = false;
    // What Slurm and its prologs do again after a restart: a prolog that was not answered asks anew.
    let mut again = |world: &mut World, alive: bool, asks: &[(u32, &str, u8)]| {
        if !alive {
            assert!(!died, "it dies once");
            died = true;
            world.now += 5_000;
            world.start();
            for (job, name, start) in asks {
                world.ask(*job, name, *start);
            }
        }
    };
    let alive = world.begin(1, "3g.40gb", 4);
    again(&mut world, alive, &[(1, "3g.40gb", 4)]);
    let alive = world.begin(2, "1g.10gb", 0);
    again(&mut world, alive, &[(2, "1g.10gb", 0)]);
    let first = world.uuid(1).cloned().expect("job 1 runs");
    assert!(world.uuid(2).is_some_and(|uuid| *uuid != first));
    // Its process outlives two requests to end.
    let gi = world
        .instances
        .iter()
        .find(|i| i.placement.start == 4)
        .unwrap()
        .gi;
    world.processes.push((1, gi, 3));
    let alive = world.end(1);
    again(&mut world, alive, &[]);
    // Slurm gives the placement to another job at once.
    let alive = world.begin(3, "2g.20gb", 4);
    again(&mut world, alive, &[(3, "2g.20gb", 4)]);
    for _ in 0..40 {
        world.now += 2_000;
        let alive = world.event(Event::Tick);
        again(&mut world, alive, &[(3, "2g.20gb", 4)]);
    }
    assert!(world.processes.is_empty(), "the process was killed");
    assert!(world.uuid(3).is_some(), "job 3 runs: {:?}", world.told);
    let effects = LONG - world.lives.unwrap_or(LONG);
    world.lives = None;
    world.check();
    assert_eq!(world.instances.len(), 2);
    for job in [2, 3] {
        world.end(job);
    }
    world.settle();
    world.check();
    assert!(world.instances.is_empty() && world.disk.is_empty());
    assert!(
        world.told.iter().all(|told| told.1.is_ok()),
        "{:?}",
        world.told
    );
    effects
}

/// Every effect of the story, with the daemon dying before it and after it.
#[test]
fn a_crash_at_every_point_leaks_and_loses_nothing() {
    let effects = story(None);
    let points = (0..effects).flat_map(|at| [(at, false), (at, true)]);
    let points: Vec<(usize, bool)> = points.collect();
    println!("{} points", points.len());
    assert!(points.len() >= 30);
    for point in points {
        story(Some(point));
    }
}

#[test]
fn what_the_driver_refuses_is_rolled_back_and_told() {
    let mut world = World::new();
    world.refuse = true;
    world.begin(1, "3g.40gb", 0);
    let told = world.told.last().unwrap();
    assert!(
        told.1
            .as_ref()
            .is_err_and(|why| why.contains("insufficient")),
        "{told:?}"
    );
    world.held.clear();
    world.settle();
    world.check();
    assert!(world.instances.is_empty() && world.disk.is_empty());
    world.refuse = false;
    // Somebody made an instance by hand: it stays, and the job is told who is in the way.
    let (profile, placement) = world.spot("2g.20gb", 2);
    world.make(profile, placement);
    world.begin(2, "3g.40gb", 0);
    assert!(world.told.last().unwrap().1.is_err());
    world.held.clear();
    world.settle();
    assert_eq!((world.instances.len(), world.disk.len()), (1, 0));
    // Two jobs on the same slices: the second is refused.
    world.begin(3, "3g.40gb", 4);
    world.ask(4, "1g.10gb", 5);
    let told = world.told.last().unwrap();
    assert!(
        told.1.as_ref().is_err_and(|why| why.contains("job 3")),
        "{told:?}"
    );
    assert!(world.uuid(3).is_some());
}

#[test]
fn a_prolog_that_asks_again_is_told_again_and_early_release_undoes() {
    let mut world = World::new();
    world.begin(1, "1g.10gb", 6);
    let uuid = world.uuid(1).cloned();
    world.ask(1, "1g.10gb", 6);
    assert_eq!((world.uuid(1).cloned(), world.told.len()), (uuid, 2));
    // The job is cancelled while the driver is at work.
    let mut carver = Carver::restore(Vec::new());
    let seen = Event::Seen {
        shown: Vec::new(),
        held: Vec::new(),
        foreign: Foreign::Leave,
    };
    step(&mut carver, seen, 0);
    let (profile, placement) = world.spot("1g.10gb", 0);
    let wanted = Event::Carve {
        job: 7.into(),
        profile,
        placement,
    };
    let effects = step(&mut carver, wanted, 0);
    assert!(
        matches!(effects[..], [Effect::Save { .. }]),
        "the journal first: {effects:?}"
    );
    let effects = step(&mut carver, Event::Saved(1), 0);
    assert!(
        matches!(effects[..], [Effect::MakeGpu { .. }]),
        "{effects:?}"
    );
    step(&mut carver, Event::Release { job: 7.into() }, 0);
    step(&mut carver, Event::Saved(2), 0);
    let effects = step(&mut carver, Event::Done(Answer::GpuMade { gi: 9 }), 0);
    assert_eq!(effects, [Effect::DestroyCompute { gi: 9 }]);
    let effects = step(&mut carver, Event::Done(Answer::Gone), 0);
    assert_eq!(effects, [Effect::DestroyGpu { gi: 9 }]);
    let effects = step(&mut carver, Event::Done(Answer::Gone), 0);
    assert!(matches!(&effects[..], [Effect::Save { claims, .. }] if claims.is_empty()));
    // Answers to nothing, and journals that were never written, change nothing.
    assert!(step(&mut carver, Event::Done(Answer::Gone), 0).is_empty());
    step(&mut carver, Event::Saved(u64::MAX), 0);
    assert!(carver.quiet());
}

/// Jobs come and go at random, and the daemon dies at random points.
#[test]
fn thousands_of_random_jobs_and_crashes_leave_no_leak() {
    for seed in 0..20 {
        let mut random = Random(seed);
        let mut world = World::new();
        let mut running: Vec<(u32, usize, u8)> = Vec::new();
        for job in 1..250u32 {
            if random.below(4) == 0 {
                world.lives = Some(random.index(6));
                world.after = random.below(2) == 0;
            }
            let mut alive = true;
            if running.len() < 7 && random.below(5) < 3 {
                let number = random.index(7);
                let profile = world.geometry.profiles()[number].clone();
                let start = random.pick(&profile.starts);
                let placement = MigPlacement {
                    start,
                    size: profile.size,
                };
                let media = |&(_, other, _): &(u32, usize, u8)| other == 1 && number == 1;
                if world
                    .held
                    .iter()
                    .all(|held| !held.placement.overlaps(placement))
                    && !running.iter().any(media)
                {
                    running.push((job, number, start));
                    alive = world.begin(job, &profile.name, start);
                    if random.below(3) == 0 {
                        let gi = 8 * u32::from(placement.size) + u32::from(start);
                        let there = world.instances.iter().any(|i| i.gi == gi);
                        if alive && there && world.uuid(job).is_some() {
                            world.processes.push((job, gi, 1 + random.below(4) as u32));
                        }
                    }
                }
            } else if !running.is_empty() {
                let (job, ..) = running.swap_remove(random.index(running.len()));
                alive = world.end(job);
            }
            for _ in 0..random.below(3) {
                world.now += random.below(5_000);
                alive = alive && world.event(Event::Tick);
            }
            if !alive {
                world.start();
                for (job, number, start) in running.clone() {
                    let name = world.geometry.profiles()[number].name.clone();
                    world.ask(job, &name, start);
                }
            }
            if random.below(8) == 0 {
                world.lives = None;
                world.look();
                world.settle();
                world.check();
                let jobs: BTreeSet<&JobId> = world.held.iter().map(|held| &held.job).collect();
                assert_eq!(world.instances.len(), jobs.len(), "seed {seed} job {job}");
            }
        }
        world.lives = None;
        world.held.clear();
        world.look();
        world.settle();
        world.check();
        assert!(world.instances.is_empty() && world.disk.is_empty());
    }
}
