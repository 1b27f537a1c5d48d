//! A daemon, a Slurm and GPUs in a few lines, around one node's health.
#![allow(dead_code, reason = "each test uses its part")]

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use gpuos_core::health::{
    Admin, Effect, Event, ExtraPart, GpuState, Job, NodeHealth, RecoveryAction, Rules, Sample,
    Verb, step,
};
use gpuos_core::job::JobId;
use gpuos_model::node_gpu::NodeGpu;

/// What happens around one node: effects are done as a daemon would do them.
pub struct World {
    pub node: NodeHealth,
    pub rules: Rules,
    pub now: u64,
    /// Jobs on the node as Slurm has them.
    pub jobs: Vec<Job>,
    /// What GPUs show, by index.
    pub samples: Vec<Sample>,
    /// What Slurm's node record has.
    pub part: ExtraPart,
    /// The record has words in gpuos's part that cannot be read.
    pub damaged: bool,
    pub drained: Option<String>,
    /// slurmctld answers.
    pub slurmctld: bool,
    /// NVML answers.
    pub library: bool,
    /// GPUs that do not answer it.
    pub silent: BTreeSet<u8>,
    /// Resets and checks come to an end, and to a good one.
    pub resets: Option<bool>,
    pub checks: Option<bool>,
    /// What a reset does to the GPU.
    pub mend: fn(&mut Sample),
    /// Everything that was done, in order.
    pub done: Vec<Effect>,
    pub killed: Vec<(u32, Option<u32>)>,
    pub requeued: Vec<(u32, bool)>,
    pub published: Vec<(u64, ExtraPart)>,
    pub reset: Vec<u8>,
    /// States that each GPU went through.
    pub states: BTreeMap<u8, Vec<GpuState>>,
    /// GPUs that passed the check that is under way.
    passed: BTreeSet<u8>,
    /// Jobs as told last.
    told: Vec<Job>,
    /// GPUs that something happened to, or that an administrator named.
    pub touched: BTreeSet<u8>,
}

/// A GPU by its number.
pub fn nth(gpu: u8) -> NodeGpu {
    NodeGpu::try_from(gpu).expect("no node has so many GPUs")
}

/// Numbers of GPUs.
pub fn numbers<Gpu: Copy + Into<u8>>(gpus: &[Gpu]) -> Vec<u8> {
    gpus.iter().copied().map(Gpu::into).collect()
}

/// An idle GPU that is as new.
pub fn sound() -> Sample {
    Sample {
        celsius: Some(40),
        slowdown_celsius: Some(87),
        busy_percent: Some(0),
        processes: Some(0),
        ecc_corrected: Some(0),
        ecc_uncorrected: Some(0),
        ecc_uncorrected_ever: Some(0),
        sram_threshold: Some(false),
        rows_pending: Some(false),
        rows_failed: Some(false),
        rows_corrected: Some(0),
        rows_uncorrected: Some(0),
        banks: Some([640, 0, 0, 0, 0]),
        pages_single_bit: Some(0),
        pages_double_bit: Some(0),
        pages_pending: Some(false),
        nvlinks: 0x3ffff,
        nvlink_crc: Some(0),
        nvlink_replays: Some(0),
        nvlink_recoveries: Some(0),
        pcie_replays: Some(0),
        pcie_generation: Some(5),
        pcie_generation_most: Some(5),
        pcie_width: Some(16),
        pcie_width_most: Some(16),
        clock_reasons: Some(0),
        recovery_action: Some(0),
        ..Sample::default()
    }
}

/// A step 0 of a job that may be requeued.
pub fn job(job: u32, gpus: &[u8]) -> Job {
    Job {
        job: job.into(),
        step: Some(0),
        gpus: gpus.iter().copied().map(nth).collect(),
        pids: vec![job * 10],
        requeue: true,
        ..Job::default()
    }
}

pub fn xid(gpu: u8, code: u32) -> Event {
    Event::Xid {
        gpu: nth(gpu),
        code,
        gpu_instance: None,
        compute_instance: None,
        pid: None,
    }
}

pub fn admin(verb: Verb, gpu: Option<u8>, force: bool) -> Event {
    Event::Admin(Admin {
        verb,
        gpu: gpu.map(nth),
        reason: "fans".into(),
        uid: 1000,
        force,
    })
}

/// Mends all that a reset mends.
pub fn mend_all(sample: &mut Sample) {
    *sample = sound();
}

impl World {
    pub fn new(gpus: u8) -> World {
        World::with(gpus, Rules::default())
    }

    pub fn with(gpus: u8, rules: Rules) -> World {
        let mut world = World {
            node: NodeHealth::new(gpus, 7),
            rules,
            now: 1_700_000_000_000,
            jobs: Vec::new(),
            samples: vec![sound(); usize::from(gpus)],
            part: ExtraPart::default(),
            damaged: false,
            drained: None,
            slurmctld: true,
            library: true,
            silent: BTreeSet::new(),
            resets: Some(true),
            checks: Some(true),
            mend: mend_all,
            done: Vec::new(),
            killed: Vec::new(),
            requeued: Vec::new(),
            published: Vec::new(),
            reset: Vec::new(),
            states: BTreeMap::new(),
            passed: BTreeSet::new(),
            told: Vec::new(),
            touched: BTreeSet::new(),
        };
        world.tell(Event::Started { rebooted: false });
        world
    }

    /// Tells one event, does what follows, and tells what comes of that.
    pub fn tell(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let before: Vec<GpuState> = self.all_states();
            self.note(&event);
            let effects = step(&mut self.node, &self.rules, event.clone(), self.now);
            self.judge(&before, &event, &effects);
            for gpu in 0..self.node.gpus.len() as u8 {
                let state = self.node.state(nth(gpu));
                let states = self.states.entry(gpu).or_default();
                if states.last() != Some(&state) {
                    states.push(state);
                }
            }
            for effect in effects {
                events.extend(self.does(&effect));
                self.done.push(effect);
            }
        }
    }

    pub fn all_states(&self) -> Vec<GpuState> {
        let gpus = 0..self.node.gpus.len() as u8;
        gpus.map(|gpu| self.node.state(nth(gpu))).collect()
    }

    fn note(&mut self, event: &Event) {
        match event {
            Event::CheckDone { gpu, ok: true, .. } => {
                self.passed.insert((*gpu).into());
            }
            Event::Jobs(jobs) => self.told = jobs.clone(),
            Event::Xid { gpu, .. } | Event::Lost { gpu } => {
                self.touched.insert((*gpu).into());
            }
            Event::RecoveryAction { gpu, action } => {
                self.touched.insert((*gpu).into());
                // What NVML says in an event it says in samples too.
                if let Some(sample) = self.samples.get_mut(usize::from(u8::from(*gpu))) {
                    sample.recovery_action = Some(number(*action));
                }
            }
            Event::Admin(admin) => match admin.gpu {
                Some(gpu) => drop(self.touched.insert(gpu.into())),
                None => self.touched.extend(0..self.node.gpus.len() as u8),
            },
            _ => {}
        }
    }

    /// What holds after every step, whatever happened.
    fn judge(&mut self, before: &[GpuState], event: &Event, effects: &[Effect]) {
        let online = |gpu: u8| match event {
            Event::Admin(admin) => {
                admin.verb == Verb::Online && admin.gpu.is_none_or(|named| named == nth(gpu))
            }
            _ => false,
        };
        for (gpu, (was, is)) in before.iter().zip(self.all_states()).enumerate() {
            let gpu = gpu as u8;
            if was.is_out() && !is.is_out() {
                let passed = *was == GpuState::Resetting && self.passed.contains(&gpu);
                assert!(
                    passed || online(gpu),
                    "GPU {gpu} went from {was:?} to {is:?} on {event:?}\n{}",
                    self.story()
                );
            }
            if is != GpuState::Resetting {
                self.passed.remove(&gpu);
            }
        }
        let on = |job: &JobId| {
            let job = job.clone();
            self.told.iter().filter(move |told| told.job == job)
        };
        for effect in effects {
            match effect {
                Effect::Reset { gpu } => {
                    let used = self.told.iter().any(|job| job.gpus.contains(gpu));
                    assert!(
                        self.node.confirmed_out(*gpu) && !used,
                        "GPU {gpu} is reset\n{}",
                        self.story()
                    );
                }
                Effect::KillStep { job, step, .. } => {
                    let mut hit = on(job).filter(|told| told.step == *step);
                    assert!(
                        hit.any(|told| told
                            .gpus
                            .iter()
                            .any(|gpu| self.touched.contains(&(*gpu).into()))),
                        "step {job}.{step:?} is killed and nothing happened to its GPUs\n{}",
                        self.story()
                    );
                }
                Effect::Requeue {
                    job, avoid_node, ..
                } => {
                    assert!(
                        on(job).any(|told| told.requeue),
                        "job {job} may not be requeued"
                    );
                    let mut gpus = on(job).flat_map(|told| told.gpus.iter().copied());
                    assert!(
                        gpus.any(|gpu| self.touched.contains(&gpu.into())
                            && (*avoid_node
                                || self.node.hold.is_some()
                                || self.node.confirmed_out(gpu))),
                        "job {job} is requeued and its GPUs are not out\n{}",
                        self.story()
                    );
                }
                _ => {}
            }
        }
    }

    fn does(&mut self, effect: &Effect) -> Option<Event> {
        match effect {
            Effect::KillStep { job, step, .. } => {
                self.killed.push((job.number().unwrap(), *step));
                self.jobs.retain(|j| j.job != *job || j.step != *step);
            }
            Effect::Requeue {
                job, avoid_node, ..
            } if self.slurmctld => {
                self.requeued.push((job.number().unwrap(), *avoid_node));
                self.jobs.retain(|j| j.job != *job);
            }
            Effect::Publish { revision, part } => {
                self.published.push((self.now, part.clone()));
                if self.slurmctld {
                    self.part = part.clone();
                    self.damaged = false;
                }
                return Some(Event::Published {
                    revision: *revision,
                    ok: self.slurmctld,
                });
            }
            Effect::DrainNode { reason } if self.slurmctld => {
                self.drained.get_or_insert(reason.clone());
            }
            Effect::UndrainNode { reason }
                if self.slurmctld && self.drained.as_ref() == Some(reason) =>
            {
                self.drained = None;
            }
            Effect::Reset { gpu } => {
                let index = u8::from(*gpu);
                self.reset.push(index);
                let ok = self.resets?;
                let at = usize::from(index);
                if ok {
                    (self.mend)(&mut self.samples[at]);
                }
                let message = if ok { "" } else { "GPU is in use" }.to_string();
                return Some(Event::ResetDone {
                    gpu: *gpu,
                    ok,
                    message,
                });
            }
            Effect::Check { gpu } => {
                return Some(Event::CheckDone {
                    gpu: *gpu,
                    ok: self.checks?,
                    message: String::new(),
                });
            }
            _ => {}
        }
        None
    }

    /// Lets seconds go by, each with polls of all GPUs and of the jobs.
    pub fn run(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.now += 1000;
            self.poll();
        }
    }

    /// Lets a long time go by, a poll a minute: the most that the node's own clock moves at once.
    pub fn leap(&mut self, seconds: u64) {
        for _ in 0..seconds / 60 {
            self.now += 60_000;
            self.poll();
        }
    }

    /// One round of polls.
    pub fn poll(&mut self) {
        self.tell(Event::Jobs(self.jobs.clone()));
        if self.library {
            for gpu in 0..self.samples.len() as u8 {
                let sample = Box::new(self.samples[usize::from(gpu)].clone());
                let silent = self.silent.contains(&gpu);
                let gpu = nth(gpu);
                self.tell(match silent {
                    true => Event::Silent { gpu },
                    false => Event::Sample { gpu, sample },
                });
            }
        }
        if self.slurmctld {
            self.tell(Event::Shown {
                part: self.part.clone(),
                damaged: self.damaged,
                drain: self.drained.clone(),
            });
        }
        self.tell(Event::Tick);
    }

    /// The audit log as text.
    pub fn story(&self) -> String {
        let line = |effect: &Effect| match effect {
            Effect::Audit(audit) => Some(match audit.gpu {
                Some(gpu) => format!("GPU {gpu}: {}\n", audit.text),
                None => format!("{}\n", audit.text),
            }),
            _ => None,
        };
        self.done.iter().filter_map(line).collect()
    }
}

/// NVML's number of a recovery action.
fn number(action: RecoveryAction) -> u32 {
    match action {
        RecoveryAction::None => 0,
        RecoveryAction::GpuReset => 1,
        RecoveryAction::NodeReboot => 2,
        RecoveryAction::DrainP2p => 3,
        RecoveryAction::DrainAndReset => 4,
        RecoveryAction::Other(other) => other,
    }
}

/// A state as gpuosd has it after a restart: it keeps it as JSON.
pub fn kept(node: &NodeHealth) -> NodeHealth {
    let text = serde_json::to_string(node).expect("the state can be written");
    serde_json::from_str(&text).expect("what was written")
}
