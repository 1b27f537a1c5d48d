//! Recordings of decisions: what is written is read back and replays bit by bit, whatever happened
//! to the bytes meanwhile; writing allocates nothing.

use gpuos_model::cluster::Cluster;
use gpuos_model::gpuset::GpuSet;
use gpuos_placement::fabric::{Promise, Recipe};
use gpuos_placement::plan::{GpuShape, Never, NodeState, Planner, Request, Wait};
use gpuos_placement::record::{
    By, Event, FORMAT, Outcome, Purpose, ReadError, Recording, Sizes, Writer, read, tally,
};
use proptest::prelude::*;

use crate::counting::allocations;
use crate::plan_support::*;
use crate::random::Random;

/// A scheduler that keeps a ring.
struct Scheduler {
    planner: Planner,
    writer: Writer,
    memory: Vec<u8>,
    states: Vec<NodeState>,
    random: Random,
    job: u32,
}

impl Scheduler {
    fn new(cluster: &Cluster, records: u32, seed: u64) -> Scheduler {
        let sizes = Sizes::new(records, cluster.nodes.len());
        let mut memory = vec![0x5a; sizes.total()];
        let mut writer = Writer::open(&mut memory, sizes, cluster.nodes.len());
        writer.model(&mut memory, cluster, None);
        Scheduler {
            planner: Planner::new(cluster.clone()),
            writer,
            memory,
            states: idle(cluster),
            random: Random(seed),
            job: 0,
        }
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.random.below(limit)
    }

    /// Some states change, then a job is decided.
    fn decide(&mut self) {
        let nodes = self.states.len() as u64;
        for _ in 0..self.below(6) {
            let (node, mask) = (self.below(nodes) as usize, self.below(256));
            let partition = self.below(20) == 0;
            let state = &mut self.states[node];
            state.free = GpuSet(mask);
            state.free_cpus = mask as u32;
            state.candidate ^= partition;
        }
        let count = 1 + self.below(8) as u32;
        let nodes = 1 + self.below(6) as u32;
        let shape = match self.below(3) {
            0 => GpuShape::Total(count * nodes),
            _ => GpuShape::PerNode(count),
        };
        let mut request = request(nodes, shape);
        if self.below(3) == 0 {
            let required = self.below(2) == 0;
            request = wish(request, "leaf", required);
        }
        self.job += 1;
        self.writer.states(&mut self.memory, &self.states);
        let purpose = match self.below(4) {
            0 => Purpose::Forecast,
            _ => Purpose::Start,
        };
        for skip in 0..=self.below(2) as u32 {
            self.ask(&request, purpose, skip);
        }
        self.writer
            .ended(&mut self.memory, self.job, Outcome::Taken);
    }

    fn ask(&mut self, request: &Request, purpose: Purpose, skip: u32) {
        let answer = self.planner.plan(&self.states, request, skip);
        let answer = answer.as_ref().map(|choice| *choice);
        let (job, at) = (self.job, 1_700_000_000 + u64::from(self.job));
        self.writer.asked(
            &mut self.memory,
            job,
            purpose,
            (skip, By::Order),
            request,
            answer,
            at,
        );
    }

    /// The last job, for which there was no room, is given a place for when others are gone.
    fn expect(&mut self, request: &Request, purpose: Purpose, nth: u32) -> bool {
        let place = self.planner.future(&self.states, request, nth);
        let Some(place) = place else { return false };
        let (job, at) = (self.job, 1_700_000_000 + u64::from(self.job));
        let number = (nth, By::Future);
        let answer = Ok(place);
        let memory = &mut self.memory;
        self.writer
            .asked(memory, job, purpose, number, request, answer, at);
        true
    }

    /// The planner goes by another mix of jobs from now on.
    fn learn(&mut self) {
        let salt = self.below(1 << 20) as u32;
        self.planner.learn(mix(salt, 1));
        assert!(self.planner.work(usize::MAX));
        let expected = self.planner.learned().expect("just learned").clone();
        self.writer.learned(&mut self.memory, &expected);
    }

    fn read(&self) -> Recording {
        read(&self.memory).expect("a ring")
    }
}

fn small() -> Cluster {
    tree(pairs(), 12, 4, 2)
}

/// Replays all of it; answers how many decisions there were.
fn holds(recording: &Recording) -> u64 {
    let counts = recording.replay(&mut |step| {
        assert!(step.same, "{:?} now {:?}", step.asked, step.again);
    });
    assert_eq!(counts.replayed, counts.same);
    counts.replayed
}

#[test]
fn decisions_replay_bit_by_bit_in_order() {
    let mut scheduler = Scheduler::new(&small(), 4096, 1);
    for _ in 0..500 {
        scheduler.decide();
    }
    let recording = scheduler.read();
    assert_eq!(recording.clusters, [scheduler.planner.cluster().clone()]);
    let jobs: Vec<u32> = recording.asked().map(|asked| asked.job).collect();
    assert!(jobs.is_sorted() && jobs[0] == 1 && jobs.contains(&500));
    assert!(holds(&recording) >= 500);
    let mut outcomes = 0;
    recording.replay(&mut |step| outcomes += u32::from(step.outcome == Some(Outcome::Taken)));
    assert_eq!(outcomes, 500);
}

#[test]
fn what_was_learned_is_part_of_a_recording() {
    let mut scheduler = Scheduler::new(&small(), 512, 9);
    for round in 0..2000 {
        if round % 150 == 70 {
            scheduler.learn();
        }
        scheduler.decide();
    }
    let recording = scheduler.read();
    assert!(holds(&recording) >= 512);
    let opened = |event: Option<&Event>| matches!(event, Some(Event::Learned(_)));
    assert!(recording.segments.iter().all(|s| opened(s.events.first())));
    // A new model begins without.
    let cluster = scheduler.planner.cluster().clone();
    scheduler
        .writer
        .model(&mut scheduler.memory, &cluster, None);
    scheduler.planner = Planner::new(cluster);
    scheduler.decide();
    let recording = scheduler.read();
    holds(&recording);
    assert!(!opened(
        recording.segments.last().and_then(|s| s.events.first())
    ));
}

#[test]
fn the_oldest_are_overwritten_and_the_others_still_replay() {
    let mut scheduler = Scheduler::new(&small(), 64, 2);
    for round in 0..3000 {
        scheduler.decide();
        if round % 250 == 249 {
            let recording = scheduler.read();
            assert!(holds(&recording) >= 64, "round {round}");
            assert_eq!(
                recording.asked().last().map(|asked| asked.job),
                Some(scheduler.job)
            );
        }
    }
}

#[test]
fn a_restarted_writer_goes_on() {
    let cluster = small();
    let mut scheduler = Scheduler::new(&cluster, 512, 3);
    for _ in 0..100 {
        scheduler.decide();
    }
    let before = scheduler.read().asked().count();
    let sizes = Sizes::new(512, cluster.nodes.len());
    scheduler.writer = Writer::open(&mut scheduler.memory, sizes, cluster.nodes.len());
    scheduler
        .writer
        .model(&mut scheduler.memory, &cluster, None);
    scheduler.decide();
    let after = scheduler.read();
    assert!(after.asked().count() > before);
    holds(&after);
    // Clusters come and go: what was decided for the last few of them replays, and the first one,
    // which comes back again and again, is kept.
    for nodes in 13..20 {
        for cluster in [tree(quads(), nodes, 6, 1), tree(pairs(), 12, 4, 2)] {
            scheduler
                .writer
                .model(&mut scheduler.memory, &cluster, None);
            scheduler.planner = Planner::new(cluster.clone());
            scheduler.states = idle(&cluster);
            scheduler.decide();
            let after = scheduler.read();
            let all = after.asked().count() as u64;
            let counts = after.replay(&mut |step| assert!(step.same));
            assert_eq!(counts.skipped + counts.replayed, all);
            assert!(counts.replayed > 0 && after.clusters.contains(&cluster));
        }
    }
    // Other sizes: a new ring.
    let sizes = Sizes::new(4096, cluster.nodes.len());
    let mut memory = scheduler.memory.clone();
    memory.resize(sizes.total(), 0);
    Writer::open(&mut memory, sizes, cluster.nodes.len());
    assert_eq!(read(&memory).unwrap().asked().count(), 0);
}

#[test]
fn repeated_answers_to_waiting_jobs_take_no_room() {
    let mut scheduler = Scheduler::new(&small(), 512, 4);
    let never = request(12, GpuShape::PerNode(8));
    scheduler.states[3].free = GpuSet::EMPTY;
    scheduler
        .writer
        .states(&mut scheduler.memory, &scheduler.states);
    for _ in 0..50 {
        scheduler.ask(&never, Purpose::Start, 0);
        scheduler.ask(&request(1, GpuShape::PerNode(4)), Purpose::Start, 0);
    }
    assert_eq!(
        scheduler.read().asked().count(),
        100,
        "the answers take turns"
    );
    for _ in 0..50 {
        scheduler.ask(&never, Purpose::Start, 0);
    }
    assert_eq!(scheduler.read().asked().count(), 101);
}

#[test]
fn places_for_when_jobs_are_gone_replay_bit_by_bit() {
    let mut scheduler = Scheduler::new(&small(), 4096, 12);
    let (mut expected, mut preempted) = (0, 0);
    for round in 0..300 {
        scheduler.decide();
        scheduler.job += 1;
        let nodes = 1 + scheduler.below(4) as u32;
        let count = 2 + scheduler.below(7) as u32;
        let level = ["leaf", "nvlink", "spine", "node"][round % 4];
        let request = wish(request(nodes, GpuShape::PerNode(count)), level, true);
        scheduler.ask(&request, Purpose::Start, 0);
        let nth = scheduler.below(3) as u32;
        let purpose = [Purpose::Start, Purpose::Forecast][round % 2];
        if scheduler.expect(&request, purpose, nth) {
            expected += 1;
            if purpose == Purpose::Start {
                preempted += 1;
                scheduler
                    .writer
                    .ended(&mut scheduler.memory, scheduler.job, Outcome::Taken);
            }
        }
    }
    assert!(expected > 60 && preempted > 40, "{expected}, {preempted}");
    let recording = scheduler.read();
    let (mut taken, mut told) = (0, 0);
    let counts = recording.replay(&mut |step| {
        assert!(step.same, "{:?} now {:?}", step.asked, step.again);
        if step.asked.by == By::Future {
            told += 1;
            taken += u32::from(step.outcome == Some(Outcome::Taken));
        }
    });
    assert_eq!(
        (counts.futures, told, taken),
        (expected, expected, preempted)
    );
    // Another place than the planner names is seen.
    let request = wish(request(2, GpuShape::PerNode(8)), "leaf", true);
    assert!(scheduler.expect(&request, Purpose::Start, 0));
    let place = scheduler.planner.future(&scheduler.states, &request, 1);
    let other = place.expect("a second place").clone();
    let memory = &mut scheduler.memory;
    let number = (0, By::Future);
    let answer = Ok(&other);
    scheduler
        .writer
        .asked(memory, 7, Purpose::Start, number, &request, answer, 1);
    let counts = scheduler.read().replay(&mut |_| {});
    assert_eq!(counts.replayed - counts.same, 1);
}

#[test]
fn a_repeated_expectation_takes_no_room() {
    let mut scheduler = Scheduler::new(&small(), 512, 13);
    scheduler.states.iter_mut().for_each(|state| {
        state.free = GpuSet(1);
    });
    scheduler
        .writer
        .states(&mut scheduler.memory, &scheduler.states);
    let request = wish(request(2, GpuShape::PerNode(8)), "leaf", true);
    for _ in 0..50 {
        scheduler.ask(&request, Purpose::Forecast, 0);
        assert!(scheduler.expect(&request, Purpose::Forecast, 1));
    }
    assert_eq!(scheduler.read().asked().count(), 2);
}

#[test]
fn the_wording_of_a_wait_is_not_compared_but_its_numbers_are() {
    let mut scheduler = Scheduler::new(&small(), 512, 14);
    scheduler
        .writer
        .states(&mut scheduler.memory, &scheduler.states);
    let never = request(13, GpuShape::PerNode(8));
    let answer = |scheduler: &mut Scheduler, why: Never| {
        scheduler.job += 1;
        let wait = Wait::Never { why };
        let (job, memory) = (scheduler.job, &mut scheduler.memory);
        let why = (0, By::Order);
        let writer = &mut scheduler.writer;
        writer.asked(memory, job, Purpose::Start, why, &never, Err(&wait), 1);
        let counts = scheduler.read().replay(&mut |_| {});
        counts.replayed - counts.same
    };
    let (gpus, nodes) = (8, (13, 13));
    let right = Never::Nodes {
        gpus,
        have: 12,
        nodes,
    };
    assert_eq!(answer(&mut scheduler, right), 0);
    let other = Never::Nodes {
        gpus,
        have: 11,
        nodes,
    };
    assert_eq!(answer(&mut scheduler, other), 1);
    let other = Never::Gpus {
        need: 8,
        have: 12,
        nodes,
    };
    assert_eq!(answer(&mut scheduler, other), 2);
}

#[test]
fn writing_allocates_nothing() {
    let mut scheduler = Scheduler::new(&small(), 64, 5);
    let request = request(2, GpuShape::PerNode(4));
    let choice = scheduler
        .planner
        .plan(&scheduler.states, &request, 0)
        .unwrap()
        .clone();
    // Each new segment begins with the gangs.
    let net = Recipe::Levels {
        uplinks: Vec::new(),
        rails: false,
    };
    let (writer, memory) = (&mut scheduler.writer, &mut scheduler.memory);
    writer.model(memory, &small(), Some(&net));
    for job in 0..5 {
        let nodes = [(job, GpuSet(0xff)), (job + 1, GpuSet(0xff))];
        writer.gang(memory, 9000 + job, &nodes, Promise { ring: 2500 });
    }
    for round in 0..2000u32 {
        scheduler.states[round as usize % 12].free = GpuSet(u64::from(round % 255));
        let before = allocations();
        let (writer, memory) = (&mut scheduler.writer, &mut scheduler.memory);
        writer.states(memory, &scheduler.states);
        writer.asked(
            memory,
            round,
            Purpose::Start,
            (0, By::Network(Some(round))),
            &request,
            Ok(&choice),
            7,
        );
        writer.ended(memory, round, Outcome::Taken);
        assert_eq!(allocations(), before, "round {round}");
    }
}

#[test]
fn eight_gangs_on_each_node_fit_a_segment() {
    const NODES: u32 = 1000;
    let cluster = tree(pairs(), NODES, 32, 8);
    let net = Recipe::Levels {
        uplinks: Vec::new(),
        rails: false,
    };
    let sizes = Sizes::new(64, NODES as usize);
    let mut memory = vec![0; sizes.total()];
    let mut writer = Writer::open(&mut memory, sizes, NODES as usize);
    writer.model(&mut memory, &cluster, Some(&net));
    let job = |nth: u32| 60_000_000 + nth;
    for nth in 0..4 * NODES {
        let (pair, gpu) = (nth / 8, GpuSet(1 << (nth % 8)));
        let nodes = [(2 * pair, gpu), (2 * pair + 1, gpu)];
        writer.gang(&mut memory, job(nth), &nodes, Promise { ring: 90_000 });
    }
    let mut states = idle(&cluster);
    // All that happens from now on fills several laps.
    for round in 0..60_000u32 {
        states[(round % NODES) as usize].free = GpuSet(u64::from(round % 255));
        writer.states(&mut memory, &states);
    }
    let recording = read(&memory).expect("a ring");
    assert_eq!(recording.segments.len(), 8);
    for segment in &recording.segments {
        assert_eq!(segment.events[0], Event::Network { whole: true });
        let Event::Gangs(gangs) = &segment.events[1] else {
            panic!("{:?}", segment.events[1]);
        };
        assert_eq!(gangs.len() as u32, 4 * NODES);
        let (last, gpu) = (gangs.last().expect("many"), GpuSet(0x80));
        assert_eq!((last.job, last.ring), (job(4 * NODES - 1), 90_000));
        assert_eq!(*last.nodes, [(NODES - 2, gpu), (NODES - 1, gpu)]);
    }
}

#[test]
fn other_bytes_are_refused_with_a_sentence() {
    let mut scheduler = Scheduler::new(&small(), 64, 6);
    scheduler.decide();
    let whole = scheduler.memory;
    assert_eq!(read(b"JobId=1"), Err(ReadError::NotARing));
    assert_eq!(read(&whole[..whole.len() - 1]), Err(ReadError::Length));
    assert_eq!(read(&whole[..100]), Err(ReadError::Length));
    // What another release wrote is not guessed at: it is named, and a writer begins anew.
    let (sizes, nodes) = (Sizes::new(64, small().nodes.len()), small().nodes.len());
    for form in [FORMAT - 1, 99] {
        let mut other = whole.clone();
        other[8..12].copy_from_slice(&form.to_le_bytes());
        let error = read(&other).unwrap_err().to_string();
        assert!(
            error.contains(&format!("form {form},")) && error.contains("use the gpuos command"),
            "{error}"
        );
        assert!(tally(&other).is_none());
        Writer::open(&mut other, sizes, nodes);
        assert_eq!(read(&other).unwrap().asked().count(), 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// A copy made while slurmctld writes is part old and part new, at any byte.
    #[test]
    fn torn_copies_hold_only_whole_decisions(seed in any::<u64>(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 1..6)) {
        let mut scheduler = Scheduler::new(&small(), 64, seed);
        for _ in 0..400 {
            scheduler.decide();
        }
        let old = scheduler.memory.clone();
        for _ in 0..60 {
            scheduler.decide();
        }
        let mut torn = scheduler.memory.clone();
        for cut in cuts.chunks_exact(2) {
            let (a, b) = (cut[0].index(torn.len()), cut[1].index(torn.len()));
            torn[a.min(b)..a.max(b)].copy_from_slice(&old[a.min(b)..a.max(b)]);
        }
        let all = holds(&read(&torn).unwrap());
        prop_assert!(all > 0);
    }

    #[test]
    fn damaged_bytes_are_left_out(seed in any::<u64>(), hits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..40)) {
        let mut scheduler = Scheduler::new(&small(), 64, seed);
        for _ in 0..100 {
            scheduler.decide();
        }
        let mut bytes = scheduler.memory.clone();
        for (at, value) in hits {
            let at = at.index(bytes.len());
            bytes[at] ^= value;
        }
        if let Ok(recording) = read(&bytes) {
            holds(&recording);
        }
        // A writer that finds such bytes goes on.
        let sizes = Sizes::new(64, 12);
        scheduler.memory = bytes;
        scheduler.writer = Writer::open(&mut scheduler.memory, sizes, 12);
        scheduler.writer.model(&mut scheduler.memory, &small(), None);
        scheduler.decide();
        let last = read(&scheduler.memory).unwrap();
        prop_assert_eq!(last.asked().last().map(|asked| asked.job), Some(scheduler.job));
        holds(&last);
    }
}
