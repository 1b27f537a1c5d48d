//! 1,000 nodes with 8 GPUs each, jobs on them, and 1,000 random faults in an hour: no GPU is used while it
//! is out, no healthy neighbour is harmed, nothing flaps, and in the end all that can serve does.

use std::collections::BTreeMap;

use gpuos_core::health::{
    Effect, Event, ExtraPart, GpuState, Job, NodeHealth, RecoveryAction, Rules, Sample, step,
};
use gpuos_core::job::JobId;
use gpuos_model::node_gpu::NodeGpu;

use crate::health_support;
use crate::health_support::{nth, sound};
use crate::random::Random;

const NODES: usize = 1000;
const GPUS: u8 = 8;
const FAULTS: usize = 1000;
/// Faults come in the first hour; then there is time to mend all.
const HOUR: u64 = 3600;
const END: u64 = HOUR + 1800;
/// A node where nothing goes on ticks so often, in s.
const QUIET: u64 = 60;

/// Xids by what may become of jobs on the GPU.
const XIDS: [u32; 24] = [
    13, 31, 32, 69, 94, 43, 45, 92, 63, 46, 48, 62, 64, 74, 95, 109, 110, 119, 120, 136, 140, 143,
    145, 79,
];

#[derive(Default)]
struct Node {
    health: Option<NodeHealth>,
    samples: Vec<Sample>,
    jobs: Vec<Job>,
    /// What slurmctld has, and what is on its way to it.
    part: ExtraPart,
    under_way: Vec<(u64, Event, Option<ExtraPart>)>,
    drained: Option<String>,
    boot_at: Option<u64>,
    publications: u32,
    /// Those that tell of nothing but checkpoints.
    words: u32,
    /// GPUs with a fault of their own.
    hit: Vec<u8>,
    outs: BTreeMap<u8, u32>,
    active_until: u64,
}

#[derive(Default)]
struct Counts {
    killed: u32,
    requeued: u32,
    resets: u32,
    boots: u32,
    jobs: u32,
    raced: u32,
}

struct Site {
    nodes: Vec<Node>,
    rules: Rules,
    random: Random,
    second: u64,
    next_job: u32,
    counts: Counts,
}

impl Site {
    fn new(seed: u64) -> Site {
        let node = |at: usize| Node {
            health: Some(NodeHealth::new(GPUS, at as u64)),
            samples: vec![sound(); usize::from(GPUS)],
            ..Node::default()
        };
        Site {
            nodes: (0..NODES).map(node).collect(),
            rules: Rules::default(),
            random: Random(seed),
            second: 0,
            next_job: 1,
            counts: Counts::default(),
        }
    }

    fn tell(&mut self, at: usize, event: Event) {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            let node = &mut self.nodes[at];
            let mut health = node.health.take().expect("there is one");
            let before: Vec<bool> = (0..GPUS)
                .map(|gpu| health.state(nth(gpu)).is_out())
                .collect();
            let effects = step(
                &mut health,
                &self.rules,
                event,
                1_000_000 + self.second * 1000,
            );
            for gpu in 0..GPUS {
                if health.state(nth(gpu)).is_out() && !before[usize::from(gpu)] {
                    *node.outs.entry(gpu).or_default() += 1;
                    assert!(
                        node.hit.contains(&gpu),
                        "node {at}: GPU {gpu} is taken out for nothing"
                    );
                }
            }
            node.health = Some(health);
            for effect in effects {
                self.does(at, effect);
            }
        }
    }

    fn does(&mut self, at: usize, effect: Effect) {
        let late = 1 + self.random.below(3);
        let node = &mut self.nodes[at];
        let harmed = |node: &Node, job: &JobId| {
            let mut gpus = node
                .jobs
                .iter()
                .filter(|j| j.job == *job)
                .flat_map(|j| &j.gpus);
            gpus.any(|gpu| node.hit.contains(&(*gpu).into()))
        };
        match effect {
            // A job that has just ended by itself is not hit any more.
            Effect::KillStep { job, .. } | Effect::Requeue { job, .. }
                if !node.jobs.iter().any(|j| j.job == job) => {}
            Effect::Publish { revision, part } => {
                match part.has_same_gpus(&node.part) && part.held != node.part.held {
                    true => node.words += 1,
                    false => node.publications += 1,
                }
                let done = Event::Published { revision, ok: true };
                node.under_way.push((self.second + late, done, Some(part)));
            }
            Effect::KillStep { job, .. } => {
                assert!(
                    harmed(node, &job),
                    "node {at}: job {job} is killed for a fault elsewhere"
                );
                node.jobs.retain(|j| j.job != job);
                self.counts.killed += 1;
            }
            Effect::Requeue {
                job, avoid_node, ..
            } => {
                assert!(
                    harmed(node, &job),
                    "node {at}: job {job} is requeued for a fault elsewhere"
                );
                assert!(!avoid_node, "slurmctld answers");
                node.jobs.retain(|j| j.job != job);
                self.counts.requeued += 1;
            }
            Effect::Reset { gpu } => {
                assert!(
                    !node.jobs.iter().any(|j| j.gpus.contains(&gpu)),
                    "a job is on it"
                );
                self.counts.resets += 1;
                let ok = self.random.below(10) > 0;
                if ok {
                    node.samples[usize::from(u8::from(gpu))] = sound();
                }
                let message = String::new();
                let done = Event::ResetDone { gpu, ok, message };
                node.under_way.push((self.second + 2 * late, done, None));
            }
            Effect::Check { gpu } => {
                let ok = self.random.below(20) > 0;
                let message = String::new();
                let done = Event::CheckDone { gpu, ok, message };
                node.under_way.push((self.second + 2 * late, done, None));
            }
            Effect::DrainNode { reason } => {
                // An administrator boots it later, once it is empty.
                node.drained.get_or_insert(reason);
                node.boot_at.get_or_insert(self.second + 300);
            }
            Effect::UndrainNode { reason } => {
                // It is told again until the node's record was read.
                let ours = node.drained.as_ref().is_none_or(|had| *had == reason);
                assert!(ours, "node {at}");
                node.drained = None;
            }
            Effect::Warn { .. } | Effect::Audit(_) => {}
        }
    }

    /// slurmctld gives free GPUs to jobs, by what it knows, and jobs end.
    fn schedule(&mut self) {
        for _ in 0..40 {
            let at = self.random.index(NODES);
            let want = 1 << self.random.below(3);
            let node = &mut self.nodes[at];
            let taken = |gpu: &u8| node.jobs.iter().any(|job| job.gpus.contains(&nth(*gpu)));
            let out = |gpu: &u8| node.part.has_out(nth(*gpu));
            let free = (0..GPUS).filter(|gpu| !taken(gpu) && !out(gpu));
            let gpus: Vec<NodeGpu> = free.take(want).map(nth).collect();
            if node.drained.is_some() || gpus.len() < want {
                if let Some(end) = node.jobs.len().checked_sub(1) {
                    node.jobs.remove(self.random.index(end + 1));
                }
                continue;
            }
            let health = node.health.as_ref().expect("there is one");
            for gpu in &gpus {
                let state = health.state(*gpu);
                assert!(
                    !(state.is_out() && health.confirmed_out(*gpu)),
                    "node {at}: GPU {gpu} is {state:?}, and slurmctld gives it to a job"
                );
                // Out a moment ago, and slurmctld does not know yet: the step sends such a job away.
                self.counts.raced += u32::from(state.is_out());
            }
            node.jobs.push(Job {
                job: self.next_job.into(),
                step: Some(0),
                gpus,
                pids: vec![self.next_job],
                requeue: self.random.below(4) > 0,
                ..Job::default()
            });
            self.next_job += 1;
            self.counts.jobs += 1;
        }
    }

    fn fault(&mut self) {
        let at = self.random.index(NODES);
        let gpu = self.random.below(GPUS.into()) as u8;
        let index = usize::from(gpu);
        let node = &mut self.nodes[at];
        node.hit.push(gpu);
        node.active_until = self.second + 240;
        let sample = &mut node.samples[index];
        let kind = self.random.below(40);
        match kind {
            0 => sample.rows_pending = Some(true),
            1 => sample.ecc_uncorrected = Some(1),
            2 => sample.nvlinks_down = 1,
            3 => sample.clock_reasons = Some(0x40),
            4 => sample.pcie_width = Some(4),
            5 => sample.recovery_action = Some(1),
            6 => sample.rows_failed = Some(true),
            _ => {
                let code = self.random.pick(&XIDS);
                // Some come in bursts.
                for _ in 0..1 + self.random.below(3) {
                    self.tell(at, health_support::xid(gpu, code));
                }
            }
        }
    }

    fn node_second(&mut self, at: usize) {
        let second = self.second;
        while let Some(next) = {
            let due = |(when, _, _): &(u64, Event, Option<ExtraPart>)| *when <= second;
            self.nodes[at].under_way.iter().position(due)
        } {
            let (_, event, part) = self.nodes[at].under_way.remove(next);
            if let Some(part) = part {
                self.nodes[at].part = part;
            }
            self.tell(at, event);
        }
        let node = &self.nodes[at];
        if node.active_until < second && second % QUIET != at as u64 % QUIET {
            return;
        }
        if node.boot_at.is_some_and(|boot| boot <= second) && node.jobs.is_empty() {
            let node = &mut self.nodes[at];
            node.boot_at = None;
            node.samples = vec![sound(); usize::from(GPUS)];
            node.under_way.clear();
            self.counts.boots += 1;
            self.tell(at, Event::Started { rebooted: true });
            let recovery = RecoveryAction::None;
            self.tell(
                at,
                Event::RecoveryAction {
                    gpu: nth(0),
                    action: recovery,
                },
            );
        }
        let jobs = self.nodes[at].jobs.clone();
        self.tell(at, Event::Jobs(jobs));
        for gpu in 0..GPUS {
            if self.nodes[at].hit.contains(&gpu) {
                let sample = Box::new(self.nodes[at].samples[usize::from(gpu)].clone());
                self.tell(
                    at,
                    Event::Sample {
                        gpu: nth(gpu),
                        sample,
                    },
                );
            }
        }
        // Checkpoints of jobs come and go on every third node.
        if at.is_multiple_of(3) && second % 600 < QUIET {
            let job = 1 + (second / 600) as u32;
            let jobs = [(job, 1)].into();
            self.tell(at, Event::Held { jobs, more: false });
        }
        let (part, drained) = (self.nodes[at].part.clone(), self.nodes[at].drained.clone());
        if self.nodes[at].under_way.is_empty() {
            self.tell(
                at,
                Event::Shown {
                    part,
                    damaged: false,
                    drain: drained,
                },
            );
        }
        self.tell(at, Event::Tick);
    }
}

#[test]
fn a_thousand_faults_on_a_thousand_nodes() {
    let mut site = Site::new(20_240_601);
    for second in 0..END {
        site.second = second;
        site.schedule();
        if second < HOUR && (second + 1) * FAULTS as u64 / HOUR > second * FAULTS as u64 / HOUR {
            site.fault();
        }
        if second == HOUR + 300 {
            // What a reset does not mend is repaired by hand.
            for node in &mut site.nodes {
                node.samples = vec![sound(); usize::from(GPUS)];
            }
        }
        for at in 0..NODES {
            site.node_second(at);
        }
    }
    let limits = &site.rules.limits;
    let mut states = BTreeMap::<&str, u32>::new();
    let mut published = 0;
    for (at, node) in site.nodes.iter().enumerate() {
        let health = node.health.as_ref().unwrap();
        published += node.publications;
        for gpu in 0..GPUS {
            let state = health.state(nth(gpu));
            *states.entry(state.word()).or_default() += 1;
            let times = node.hit.iter().filter(|hit| **hit == gpu).count() as u32;
            let outs = node.outs.get(&gpu).copied().unwrap_or(0);
            // One trouble takes a GPU out once, and once more where a failed reset left it out.
            assert!(
                outs <= 2 * times,
                "node {at} GPU {gpu}: {times} faults, {outs} times out"
            );
            assert!(
                !state.is_out() || times > 0,
                "node {at} GPU {gpu} is {state:?}"
            );
        }
        let bound = limits.publish_burst + (END / u64::from(limits.publish_every_s)) as u32 + 1;
        assert!(node.publications <= bound);
        let hits = node.hit.len() as u32;
        assert!(
            node.publications <= 6 * hits,
            "node {at}: {hits} faults, {} publications",
            node.publications
        );
        // What is degraded alone is told with less haste, and can be on its way at the end.
        let part = health.part();
        assert_eq!(
            (&node.part.out, &node.part.held),
            (&part.out, &part.held),
            "node {at}"
        );
        let changes = if at.is_multiple_of(3) {
            END.div_ceil(600) as u32
        } else {
            0
        };
        assert!(node.words <= changes, "node {at}: {} words", node.words);
    }
    let counts = &site.counts;
    println!(
        "{} jobs, {} killed, {} requeued, {} resets, {} boots, {published} publications, {} raced, {states:?}",
        counts.jobs, counts.killed, counts.requeued, counts.resets, counts.boots, counts.raced
    );
    assert!(counts.killed > 0 && counts.requeued > 0 && counts.resets > 100 && counts.boots > 0);
    // What is out at the end waits for an administrator: resets and checks that failed twice, boards to be replaced.
    let out: u32 = ["draining", "drained", "resetting"]
        .iter()
        .filter_map(|word| states.get(word))
        .sum();
    let offline = states.get(GpuState::Offline.word()).copied().unwrap_or(0);
    assert!(out <= 60 && offline <= 60, "{states:?}");
}
