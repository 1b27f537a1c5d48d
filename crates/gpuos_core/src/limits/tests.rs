//! Whatever happens, in whatever order: every GPU ends with the limit that it had before the jobs.
use std::collections::{BTreeMap, BTreeSet};

use gpuos_model::gpu_index::GresGpu;
use proptest::prelude::*;

use super::state::Phase;
use super::*;
use crate::job::JobId;

const BOARD: [u32; 3] = [200_000, 700_000, 750_000];
const RANGE: ClockRange = ClockRange {
    least: 1200,
    most: 1500,
};

/// One simulated GPU: what it does when it is told to, and what an administrator wants it to have.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Gpu {
    limit_mw: u32,
    locked: bool,
    /// What it is to have when no job is on it.
    wanted_mw: u32,
    broken: bool,
}

impl Gpu {
    fn set(&mut self, set: Setting) {
        self.limit_mw = set.power_mw.unwrap_or(self.limit_mw);
        self.locked = match set.clocks {
            Clocks::Leave => self.locked,
            Clocks::Lock(_) => true,
            Clocks::Unlock => false,
        };
    }
}

fn gres(gpu: u8) -> GresGpu {
    GresGpu::try_from(gpu).expect("a GPU")
}

/// A node: GPUs, a disk, and a daemon with effects under way.
struct Node {
    gpus: BTreeMap<GresGpu, Gpu>,
    disk: Limits,
    limits: Limits,
    jobs: BTreeMap<JobId, Holder>,
    under_way: Vec<(Effect, Limits)>,
    full: bool,
    now: u64,
    audit: Vec<String>,
}

impl Node {
    fn new() -> Node {
        let gpu = Gpu {
            limit_mw: BOARD[1],
            locked: false,
            wanted_mw: BOARD[1],
            broken: false,
        };
        Node {
            gpus: (0..4).map(|index| (gres(index), gpu)).collect(),
            disk: Limits::default(),
            limits: Limits::default(),
            jobs: BTreeMap::new(),
            under_way: Vec::new(),
            full: false,
            now: 0,
            audit: Vec::new(),
        }
    }

    fn tell(&mut self, event: Event) {
        for effect in step(&mut self.limits, event, self.now, self.now) {
            match effect {
                Effect::Audit(audit) => self.audit.push(audit.text),
                effect => self.under_way.push((effect, self.limits.clone())),
            }
        }
    }

    /// Jobs as they are now.
    fn told(&mut self) {
        self.tell(Event::Jobs(self.jobs.values().cloned().collect()));
    }

    /// Has one effect done.
    fn one(&mut self, which: usize) {
        if self.under_way.is_empty() {
            return;
        }
        let (effect, state) = self.under_way.remove(which % self.under_way.len());
        let event = match effect {
            Effect::Read { gpu } => Event::Read {
                gpu,
                result: self.work(gpu, |gpu| Board {
                    limit_mw: Some(gpu.limit_mw),
                    limits_mw: Some(BOARD),
                    clocks_mhz: Some([345, 1980]),
                    divided: false,
                }),
            },
            Effect::Set { gpu, set } => Event::Done {
                gpu,
                result: self.work(gpu, |gpu| gpu.set(set)),
            },
            Effect::Save { revision } => {
                let told = match self.full {
                    true => Err("full".to_string()),
                    false => Ok(()),
                };
                // As the disk keeps the newest of several states.
                if told.is_ok() && state.revision >= self.disk.revision {
                    self.disk = state;
                }
                Event::Saved {
                    revision,
                    result: told,
                }
            }
            Effect::Audit(_) => return,
        };
        self.tell(event);
    }

    fn work<T>(&mut self, gpu: GresGpu, work: impl FnOnce(&mut Gpu) -> T) -> Result<T, String> {
        match self.gpus.get_mut(&gpu) {
            Some(gpu) if !gpu.broken => Ok(work(gpu)),
            _ => Err("the GPU is lost".into()),
        }
    }

    /// Until nothing is under way any more.
    fn rest(&mut self) {
        for _ in 0..1000 {
            self.one(0);
            if self.under_way.is_empty() {
                break;
            }
        }
    }

    /// Kill -9, and a new daemon; what was under way may have been done or not.
    fn crash(&mut self, done: usize, rebooted: bool) {
        for (effect, _) in std::mem::take(&mut self.under_way).into_iter().take(done) {
            if let Effect::Set { gpu, set } = effect {
                let _ = self.work(gpu, |gpu| gpu.set(set));
            }
        }
        // What was undone and not yet written down is undone once more.
        for (index, gpu) in &mut self.gpus {
            if let Some(before) = Node::capped(&self.disk, *index) {
                gpu.wanted_mw = before;
            }
        }
        // What is saved goes through JSON.
        let text = serde_json::to_string(&self.disk).unwrap();
        self.limits = serde_json::from_str(&text).unwrap();
        self.disk.revision = 0;
        if rebooted {
            for gpu in self.gpus.values_mut() {
                *gpu = Gpu {
                    limit_mw: BOARD[1],
                    locked: false,
                    wanted_mw: BOARD[1],
                    broken: false,
                };
            }
            self.jobs.clear();
        }
        self.tell(Event::Started { rebooted });
        self.told();
    }

    /// Whether a job's power limit is on a GPU, or about to be.
    fn capped(limits: &Limits, gpu: GresGpu) -> Option<u32> {
        let kept = limits.applied.get(&gpu)?;
        kept.power_mw.map(|[before, _]| before)
    }

    fn start(&mut self, job: u32, gpus: &[u8], asked: Asked) {
        let gpus: BTreeSet<GresGpu> = gpus.iter().copied().map(gres).collect();
        let holder = Holder {
            uid: 1000,
            job: job.into(),
            gpus,
            asked,
            resting: false,
        };
        self.jobs.insert(job.into(), holder);
        self.told();
    }

    fn end(&mut self, job: u32) {
        self.jobs.remove(&job.into());
        self.told();
    }

    fn limit(&self, gpu: u8) -> (u32, bool) {
        let gpu = &self.gpus[&gres(gpu)];
        (gpu.limit_mw / 1000, gpu.locked)
    }
}

fn cap(watts: u32) -> Asked {
    Asked {
        power: Some(PowerCap::Watts(watts)),
        ..Asked::default()
    }
}

#[test]
fn a_job_has_its_cap_from_start_to_end() {
    let mut node = Node::new();
    let asked = Asked {
        clocks: Some(RANGE),
        ..cap(300)
    };
    node.start(7, &[0, 1], asked);
    node.start(8, &[2], Asked::default());
    assert_eq!(node.limits.job_notes(&7.into()), None);
    assert_eq!(node.limits.job_notes(&8.into()), Some(vec![]));
    node.rest();
    assert_eq!(node.limits.job_notes(&7.into()), Some(vec![]));
    assert_eq!((node.limit(0), node.limit(1)), ((300, true), (300, true)));
    assert_eq!(node.limit(2), (700, false));
    // Between two steps it stays, until somebody else comes to the GPU.
    node.jobs.get_mut(&7.into()).unwrap().resting = true;
    node.told();
    node.rest();
    assert_eq!(node.limit(0), (300, true));
    node.start(9, &[0], Asked::default());
    node.rest();
    assert_eq!((node.limit(0), node.limit(1)), ((700, false), (300, true)));
    node.end(7);
    node.rest();
    assert_eq!(node.limit(1), (700, false));
    assert!(node.limits.applied().is_empty() && node.disk.applied().is_empty());
    assert!(
        node.audit
            .contains(&"job 7 has 300 W, clocks 1200-1500 MHz (before: 700 W)".to_string()),
        "{:?}",
        node.audit
    );
}

#[test]
fn what_the_board_moves_and_what_holds_for_some_gpus_is_said() {
    let mut node = Node::new();
    let asked = Asked {
        clocks: Some(ClockRange {
            least: 100,
            most: 3000,
        }),
        ..cap(100)
    };
    node.start(7, &[0, 1], asked);
    node.rest();
    let told = [
        "GPUs 0,1: 200 W is set for --gpuos-power=100W: the board takes 200 W to 750 W",
        "GPUs 0,1: 345-1980 MHz is set for --gpuos-clocks=100-3000: the board takes 345 MHz to 1980 MHz",
    ];
    assert_eq!(node.limits.job_notes(&7.into()).unwrap(), told);
    // A daemon that starts anew says it to the next step.
    node.crash(0, false);
    node.rest();
    assert_eq!(node.limits.job_notes(&7.into()).unwrap(), told);
    node.gpus.get_mut(&gres(3)).unwrap().broken = true;
    let share = Asked {
        power: Some(PowerCap::Percent(20)),
        ..Asked::default()
    };
    node.start(8, &[2, 3], share);
    node.rest();
    assert_eq!(
        node.limits.job_notes(&8.into()).unwrap(),
        [
            "GPU 2: 200 W is set for --gpuos-power=20% (140 W): the board takes 200 W to 750 W",
            "GPU 3: power and clocks are not set: the GPU is lost; GPU 2 is set",
        ]
    );
}

#[test]
fn the_next_job_finds_what_was_before_the_first() {
    let mut node = Node::new();
    node.gpus.get_mut(&gres(0)).unwrap().limit_mw = 500_000;
    node.start(7, &[0], cap(300));
    node.rest();
    node.jobs.remove(&7.into());
    node.start(8, &[0], cap(400));
    node.rest();
    assert_eq!(node.limit(0), (400, false));
    node.end(8);
    node.rest();
    assert_eq!(node.limit(0), (500, false));
}

#[test]
fn what_cannot_be_done_is_told_and_leaves_no_trace() {
    let mut node = Node::new();
    let notes = |node: &Node, job: u32| node.limits.job_notes(&job.into()).unwrap().join("; ");
    node.start(1, &[0], cap(100));
    node.rest();
    assert!(
        notes(&node, 1)
            .contains("200 W is set for --gpuos-power=100W: the board takes 200 W to 750 W")
    );
    node.gpus.get_mut(&gres(1)).unwrap().broken = true;
    node.start(2, &[1], cap(300));
    node.rest();
    assert!(notes(&node, 2).contains("GPU 1: power and clocks are not set: the GPU is lost"));
    // Two jobs on one GPU, and a share of one.
    node.start(3, &[2], cap(300));
    node.start(4, &[2], Asked::default());
    node.start(
        5,
        &[3],
        Asked {
            shared: true,
            ..cap(300)
        },
    );
    node.rest();
    assert_eq!((node.limit(2), node.limit(3)), ((700, false), (700, false)));
    for job in [3, 5] {
        assert!(notes(&node, job).contains("shared with other jobs"));
    }
    // A disk that takes nothing: what cannot be undone for certain is not done.
    node.end(3);
    node.end(4);
    node.full = true;
    node.start(6, &[2], cap(300));
    node.rest();
    assert_eq!(node.limit(2), (700, false));
    assert!(notes(&node, 6).contains("could not be written down: full"));
}

#[test]
fn an_administrators_change_is_noticed_and_stays_as_long_as_the_job() {
    let mut node = Node::new();
    node.start(7, &[0], cap(300));
    node.rest();
    node.gpus.get_mut(&gres(0)).unwrap().limit_mw = 450_000;
    let sample = Event::Sample {
        gpu: gres(0),
        limit_mw: 450_000,
    };
    for _ in 0..5 {
        node.tell(sample.clone());
    }
    let said = node
        .audit
        .iter()
        .filter(|line| line.contains("somebody has set"))
        .count();
    assert_eq!(said, 1, "{:?}", node.audit);
    node.rest();
    node.crash(0, false);
    node.rest();
    assert_eq!(node.limit(0), (450, false));
    node.end(7);
    node.rest();
    assert_eq!(node.limit(0), (700, false));
}

#[test]
fn a_lost_gpu_is_undone_when_it_is_back() {
    let mut node = Node::new();
    node.start(7, &[0], cap(300));
    node.rest();
    node.gpus.get_mut(&gres(0)).unwrap().broken = true;
    node.end(7);
    node.rest();
    assert!(matches!(node.limits.now[&gres(0)].phase, Phase::Again(_)));
    // Back from a reset, with the limit of its maker.
    let gpu = node.gpus.get_mut(&gres(0)).unwrap();
    (gpu.broken, gpu.limit_mw) = (false, 750_000);
    node.tell(Event::Reset { gpu: gres(0) });
    node.rest();
    assert_eq!(node.limit(0), (700, false));
    assert!(node.disk.applied().is_empty());
}

#[derive(Clone, Debug)]
enum Act {
    Start {
        job: u32,
        gpus: Vec<u8>,
        watts: Option<u32>,
        clocks: bool,
        shared: bool,
    },
    Rest(u32),
    End(u32),
    Do(usize),
    Admin {
        gpu: u8,
        watts: u32,
    },
    Break {
        gpu: u8,
        broken: bool,
    },
    Reset(u8),
    Poll,
    Full(bool),
    Crash {
        done: usize,
        rebooted: bool,
    },
    Time(u64),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let gpu = || 0..4u8;
    let start = (
        1..6u32,
        proptest::collection::vec(gpu(), 1..3),
        proptest::option::of(100..900u32),
        any::<bool>(),
        prop::bool::weighted(0.1),
    );
    let start = start.prop_map(|(job, gpus, watts, clocks, shared)| Act::Start {
        job,
        gpus,
        watts,
        clocks,
        shared,
    });
    let act = prop_oneof![
        5 => start,
        1 => (1..6u32).prop_map(Act::Rest),
        4 => (1..6u32).prop_map(Act::End),
        12 => any::<usize>().prop_map(Act::Do),
        2 => (gpu(), 200..750u32).prop_map(|(gpu, watts)| Act::Admin { gpu, watts }),
        1 => (gpu(), any::<bool>()).prop_map(|(gpu, broken)| Act::Break { gpu, broken }),
        1 => gpu().prop_map(Act::Reset),
        2 => Just(Act::Poll),
        1 => any::<bool>().prop_map(Act::Full),
        1 => (0..3usize, prop::bool::weighted(0.2)).prop_map(|(done, rebooted)| Act::Crash { done, rebooted }),
        1 => (0..90_000u64).prop_map(Act::Time),
    ];
    proptest::collection::vec(act, 1..120)
}

fn act(node: &mut Node, act: Act) {
    match act {
        Act::Start {
            job,
            gpus,
            watts,
            clocks,
            shared,
        } => {
            let asked = Asked {
                power: watts.map(PowerCap::Watts),
                clocks: clocks.then_some(RANGE),
                shared,
                ..Asked::default()
            };
            node.start(job, &gpus, asked);
        }
        Act::Rest(job) => {
            if let Some(holder) = node.jobs.get_mut(&job.into()) {
                holder.resting = true;
            }
            node.told();
        }
        Act::End(job) => node.end(job),
        Act::Do(which) => node.one(which),
        Act::Admin { gpu, watts } => {
            let touched = Node::capped(&node.limits, gres(gpu)).is_some();
            // Between a look and what follows from it, milliseconds later, nobody can tell who was first.
            let phase = node.limits.now.get(&gres(gpu)).map(|now| now.phase.clone());
            let looked = matches!(phase, Some(Phase::Saving(_)));
            let gpu = node.gpus.get_mut(&gres(gpu)).unwrap();
            if !gpu.broken && !looked {
                gpu.limit_mw = watts * 1000;
                // What is set while a job has its own limit lasts as long as that job.
                if !touched {
                    gpu.wanted_mw = watts * 1000;
                }
            }
        }
        Act::Break { gpu, broken } => node.gpus.get_mut(&gres(gpu)).unwrap().broken = broken,
        Act::Reset(index) => {
            let phase = node
                .limits
                .now
                .get(&gres(index))
                .map(|now| now.phase.clone());
            let looked = matches!(phase, Some(Phase::Saving(_)));
            if looked {
                return;
            }
            let touched = Node::capped(&node.limits, gres(index)).is_some();
            let gpu = node.gpus.get_mut(&gres(index)).unwrap();
            (gpu.limit_mw, gpu.locked, gpu.broken) = (BOARD[1], false, false);
            if !touched {
                gpu.wanted_mw = BOARD[1];
            }
            node.tell(Event::Reset { gpu: gres(index) });
        }
        Act::Poll => {
            for (gpu, limit_mw) in node
                .gpus
                .clone()
                .into_iter()
                .map(|(n, gpu)| (n, gpu.limit_mw))
            {
                node.tell(Event::Sample { gpu, limit_mw });
            }
        }
        Act::Full(full) => node.full = full,
        Act::Crash { done, rebooted } => node.crash(done, rebooted),
        Act::Time(ms) => {
            node.now += ms;
            node.tell(Event::Tick);
        }
    }
}

proptest! {
    #[test]
    fn every_gpu_ends_as_it_was_before_the_jobs(acts in acts()) {
        let mut node = Node::new();
        for one in acts {
            act(&mut node, one);
            for (gpu, kept) in node.limits.applied() {
                // What is set stands on the disk, or has not been set yet.
                let phase = node.limits.now.get(gpu).map(|now| now.phase.clone());
                let safe = matches!(phase, Some(Phase::Saving(_))) || node.disk.applied().contains_key(gpu);
                prop_assert!(safe, "GPU {} {:?} {:?}", gpu, kept, phase);
            }
        }
        node.jobs.clear();
        node.full = false;
        for gpu in node.gpus.values_mut() {
            gpu.broken = false;
        }
        node.told();
        for _ in 0..20 {
            node.rest();
            node.now += 60_000;
            node.tell(Event::Tick);
        }
        for (index, gpu) in &node.gpus {
            prop_assert_eq!((gpu.limit_mw, gpu.locked), (gpu.wanted_mw, false), "GPU {} {:?}", index, node.audit);
        }
        prop_assert!(node.limits.applied().is_empty());
    }

    #[test]
    fn when_all_is_quiet_jobs_have_what_they_asked_for(acts in acts()) {
        let mut node = Node::new();
        for one in acts {
            act(&mut node, one);
        }
        node.full = false;
        for gpu in node.gpus.values_mut() {
            gpu.broken = false;
        }
        // A clean start: nothing has failed before.
        node.crash(0, false);
        for _ in 0..20 {
            node.rest();
            node.now += 60_000;
            node.tell(Event::Tick);
        }
        for holder in node.jobs.values() {
            prop_assert!(node.limits.job_notes(&holder.job).is_some(), "job {}", holder.job);
        }
        for (gpu, kept) in node.limits.applied() {
            let theirs = |holder: &Holder| holder.gpus.contains(gpu) && !holder.resting;
            prop_assert!(node.jobs.values().filter(|holder| theirs(holder)).count() <= 1);
            prop_assert!(node.jobs.contains_key(&kept.job));
        }
    }
}
