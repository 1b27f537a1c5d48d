//! GPUs of a pool: several jobs have instances on one, and none of them pays for what is not its own.

use std::collections::BTreeMap;

use gpuos_core::health::{Effect, Event, GpuState, Job, NodeHealth, Rules, Verb, step};
use gpuos_model::node_gpu::NodeGpu;

use crate::health_support::{admin, kept, nth, numbers, sound, xid};
use crate::random::Random;

/// Of GRES gpu, and NVML's index of those of the pool.
const GRES: u8 = 2;
const POOL: [u8; 2] = [2, 3];

fn pool(nvml: u8) -> NodeGpu {
    NodeGpu::Pool(nvml.try_into().unwrap())
}

/// A step 0 with an instance of a pool's GPU.
fn job(job: u32, gpu: NodeGpu, instance: u32) -> Job {
    Job {
        job: job.into(),
        step: Some(0),
        gpus: vec![gpu],
        instances: vec![(gpu, instance)],
        requeue: true,
        ..Job::default()
    }
}

/// A node, and what it asked for.
struct Node {
    health: NodeHealth,
    rules: Rules,
    now: u64,
    jobs: Vec<Job>,
    /// Instances by GPU; not told where there is no figure.
    instances: BTreeMap<NodeGpu, u32>,
    /// Both as told last, the latter with the time.
    told: Vec<Job>,
    counted: BTreeMap<NodeGpu, (u32, u64)>,
    done: Vec<Effect>,
    /// Resets and checks end at once.
    mends: bool,
}

impl Node {
    fn new() -> Node {
        let mut health = NodeHealth::new(GRES, 7);
        let own = |nvml: u8| (pool(nvml), Default::default());
        health.pool = POOL.map(own).into();
        let mut node = Node {
            health,
            rules: Rules::default(),
            now: 1_700_000_000_000,
            jobs: Vec::new(),
            instances: BTreeMap::new(),
            told: Vec::new(),
            counted: BTreeMap::new(),
            done: Vec::new(),
            mends: true,
        };
        node.tell(Event::Started { rebooted: false });
        node
    }

    fn tell(&mut self, event: Event) {
        match &event {
            Event::Jobs(jobs) => self.told.clone_from(jobs),
            Event::Instances { gpu, count } => {
                self.counted.insert(*gpu, (*count, self.now));
            }
            _ => {}
        }
        let effects = step(&mut self.health, &self.rules, event, self.now);
        for effect in effects {
            let gpus = match &effect {
                Effect::Reset { gpu } | Effect::Check { gpu } => Some(*gpu),
                _ => None,
            };
            if let (Effect::Reset { gpu }, Some(nvml)) = (&effect, gpus.and_then(NodeGpu::pool)) {
                assert!(self.health.confirmed_out(*gpu), "mig{nvml}");
                assert!(self.told.iter().all(|job| !job.gpus.contains(gpu)));
                let (count, at) = self.counted[gpu];
                assert!(count == 0 && self.now - at < 30_000, "mig{nvml}");
            }
            self.done.push(effect.clone());
            match effect {
                Effect::Publish { revision, .. } => {
                    self.tell(Event::Published { revision, ok: true })
                }
                Effect::Requeue { job, .. } => self.jobs.retain(|one| one.job != job),
                Effect::KillStep { job, step, .. } => {
                    self.jobs
                        .retain(|one| (one.job.clone(), one.step) != (job.clone(), step));
                }
                Effect::Reset { gpu } if self.mends => self.tell(Event::ResetDone {
                    gpu,
                    ok: true,
                    message: String::new(),
                }),
                Effect::Check { gpu } if self.mends => self.tell(Event::CheckDone {
                    gpu,
                    ok: true,
                    message: String::new(),
                }),
                _ => {}
            }
        }
    }

    fn run(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.now += 1000;
            self.tell(Event::Jobs(self.jobs.clone()));
            for gpu in self.health.numbers() {
                let sample = Box::new(sound());
                self.tell(Event::Sample { gpu, sample });
                if let Some(count) = self.instances.get(&gpu).copied() {
                    self.tell(Event::Instances { gpu, count });
                }
            }
            self.tell(Event::Tick);
        }
    }

    fn requeued(&self) -> Vec<u32> {
        let job = |effect: &Effect| match effect {
            Effect::Requeue { job, .. } => job.number(),
            _ => None,
        };
        self.done.iter().filter_map(job).collect()
    }

    fn killed(&self) -> Vec<u32> {
        let job = |effect: &Effect| match effect {
            Effect::KillStep { job, .. } => job.number(),
            _ => None,
        };
        self.done.iter().filter_map(job).collect()
    }

    fn resets(&self) -> usize {
        let reset = |effect: &&Effect| matches!(effect, Effect::Reset { .. });
        self.done.iter().filter(reset).count()
    }
}

/// Two jobs on one GPU of the pool, one on the other, one on GPU 0.
fn busy() -> Node {
    let mut node = Node::new();
    let whole = Job {
        instances: Vec::new(),
        ..job(9, nth(0), 0)
    };
    let [a, b] = POOL.map(pool);
    node.jobs = vec![job(6, a, 1), job(7, a, 2), job(8, b, 1), whole];
    node.instances = [(a, 2), (b, 1)].into();
    node.run(2);
    node
}

#[test]
fn a_fault_takes_out_one_gpu_of_the_pool_and_its_jobs_and_a_reset_waits_for_its_instances() {
    let mut node = busy();
    let gpu = pool(2);
    node.tell(xid(gpu.into(), 48));
    node.run(20);
    assert_eq!(node.health.part().to_string(), "[gpuos:1 mig-out=2]");
    let mut requeued = node.requeued();
    requeued.sort_unstable();
    assert_eq!(requeued, [6, 7]);
    assert!(node.killed().is_empty());
    // The jobs are gone, and their instances are still there.
    node.run(60);
    assert_eq!(node.health.state(gpu), GpuState::Drained);
    assert_eq!(node.resets(), 0);
    // Nobody counts them any more: they may be there.
    node.instances.remove(&gpu);
    node.run(60);
    assert_eq!(node.resets(), 0);
    node.instances.insert(gpu, 0);
    node.run(60);
    assert_eq!(node.resets(), 1);
    assert_eq!(node.health.state(gpu), GpuState::Available);
    assert!(node.health.part().is_empty());
    assert_eq!(node.jobs.len(), 2);
    let said = |effect: &Effect| matches!(effect, Effect::Warn { text, .. } if text.starts_with("GPU mig2: Xid 48"));
    assert!(node.done.iter().any(said));
}

#[test]
fn an_xid_of_an_instance_touches_its_job_only_and_one_of_nobodys_none() {
    let in_instance = |code, instance| Event::Xid {
        gpu: pool(2),
        code,
        gpu_instance: Some(instance),
        compute_instance: Some(0),
        pid: None,
    };
    // A fault of a program.
    let mut node = busy();
    node.tell(in_instance(31, 2));
    node.run(3);
    assert_eq!(node.killed(), [7]);
    // An instance that no job has, also where one job only is on the GPU; and no instance at all.
    node.tell(in_instance(31, 5));
    node.tell(xid(pool(2).into(), 31));
    node.jobs[0].instances.clear();
    node.run(3);
    node.tell(in_instance(31, 1));
    node.run(3);
    assert_eq!((node.killed(), node.requeued()), (vec![7], vec![]));
    assert!(node.health.part().is_empty());
    // One that takes the GPU out: the other job runs out.
    let mut node = busy();
    node.tell(in_instance(46, 2));
    node.run(40);
    assert_eq!((node.requeued(), node.killed()), (vec![7], vec![]));
    assert_eq!(node.health.state(pool(2)), GpuState::Draining);
}

#[test]
fn a_job_that_comes_to_a_gpu_that_is_out_does_not_cost_the_others_theirs() {
    let mut node = busy();
    let gpu = pool(2);
    node.tell(Event::Xid {
        gpu,
        code: 46,
        gpu_instance: Some(2),
        compute_instance: None,
        pid: None,
    });
    node.run(20);
    node.tell(admin(Verb::Offline, Some(gpu.into()), false));
    node.run(5);
    node.jobs.push(job(10, gpu, 3));
    node.run(20);
    assert_eq!(node.requeued(), [7, 10]);
    assert!(node.jobs.iter().any(|one| one.job == 6.into()));
}

#[test]
fn administrators_name_one_gpu_of_the_pool_and_a_restart_forgets_nothing() {
    let mut node = busy();
    let gpu = pool(3);
    node.tell(admin(Verb::Drain, Some(gpu.into()), false));
    node.run(5);
    assert_eq!(node.health.part().to_string(), "[gpuos:1 mig-out=3]");
    node.health = kept(&node.health);
    node.tell(Event::Started { rebooted: false });
    node.run(5);
    assert_eq!(numbers(&node.health.part().pool_out), [3]);
    // One that the node does not have.
    let before = node.health.clone();
    node.tell(admin(Verb::Drain, Some(pool(9).into()), false));
    assert_eq!(node.health.numbers(), before.numbers());
    assert_eq!(node.health.state(pool(9)), GpuState::Offline);
    node.tell(admin(Verb::Online, Some(gpu.into()), false));
    node.run(5);
    assert!(node.health.part().is_empty());
    assert!(node.requeued().is_empty() && node.killed().is_empty());
}

/// Whatever comes in whatever order: no job is touched of whose GPU nobody said anything, nothing is reset that may have
/// instances (see [`Node::tell`]), and GPUs of the pool and of GRES gpu are not taken for each other.
#[test]
fn no_order_of_events_touches_another_gpu() {
    for seed in 0..8 {
        let mut random = Random(seed * 7919 + 3);
        let mut node = Node::new();
        let gpus = node.health.numbers();
        let broken = random.pick(&gpus);
        let mut on = BTreeMap::new();
        for at in 0..150 {
            if random.below(3) == 0 {
                let gpu = random.pick(&gpus);
                let new = job(100 + at, gpu, random.below(3) as u32);
                if !node.health.part().has_out(gpu) {
                    on.insert(new.job.clone(), gpu);
                    node.jobs.push(new);
                }
            }
            if random.below(4) == 0 && !node.jobs.is_empty() {
                let gone = random.index(node.jobs.len());
                node.jobs.remove(gone);
            }
            for nvml in POOL {
                let gpu = pool(nvml);
                let own = node.jobs.iter().filter(|job| job.gpus.contains(&gpu));
                let count = own.count() as u32;
                match random.below(8) {
                    0 => drop(node.instances.remove(&gpu)),
                    // One of nobody.
                    1 => drop(node.instances.insert(gpu, count + 1)),
                    _ => drop(node.instances.insert(gpu, count)),
                }
            }
            node.mends = random.below(3) > 0;
            let before = node.done.len();
            match random.below(6) {
                0 => node.tell(Event::Xid {
                    gpu: broken,
                    code: random.pick(&[13, 31, 46, 48, 63, 64, 94, 95, 119]),
                    gpu_instance: random.pick(&[None, Some(0), Some(1), Some(7)]),
                    compute_instance: None,
                    pid: None,
                }),
                1 => node.tell(admin(
                    random.pick(&[Verb::Drain, Verb::Offline, Verb::Online]),
                    Some(broken.into()),
                    random.below(4) == 0,
                )),
                2 => {
                    node.health = kept(&node.health);
                    node.tell(Event::Started {
                        rebooted: random.below(5) == 0,
                    });
                }
                _ => {}
            }
            node.run(random.below(25));
            for effect in &node.done[before..] {
                let (Effect::Requeue { job, .. } | Effect::KillStep { job, .. }) = effect else {
                    continue;
                };
                assert_eq!(on[job], broken, "seed {seed}: job {job}");
            }
            let part = node.health.part();
            let others = gpus.iter().filter(|gpu| **gpu != broken);
            let wrong: Vec<String> = others
                .filter(|gpu| part.has_out(**gpu))
                .map(NodeGpu::to_string)
                .collect();
            assert!(wrong.is_empty(), "seed {seed}: {wrong:?}");
        }
    }
}
