//! Processes against the plan: whoever is at home is never named, every stranger once, and he is let go when he
//! is gone.

use std::collections::{BTreeMap, BTreeSet};

use gpuos_core::isolation::{
    Effect, Finding, Foreign, Group, Holding, Plan, Policy, Process, Seen, Watch, step,
};
use gpuos_core::job::JobId;
use gpuos_model::gpu_index::GresGpu;
use proptest::prelude::*;

fn gres(gpu: u8) -> GresGpu {
    GresGpu::try_from(gpu).expect("no node has so many GPUs")
}

fn holding(job: u32, uid: u32, gpus: &[u8]) -> Holding {
    Holding {
        job: job.into(),
        uid,
        gpus: gpus.iter().copied().map(gres).collect(),
        ..Holding::default()
    }
}

fn process(pid: u32, gpu: u8, job: Option<u32>) -> Process {
    Process {
        gpu: gres(gpu),
        instance: None,
        pid,
        started: u64::from(pid) * 10,
        uid: 1000,
        owners: Vec::new(),
        program: "python3".into(),
        step: job.map(|job| (job.into(), "0".into())),
        memory_mib: None,
    }
}

/// The same as the user that a job has in random worlds.
fn of_user(process: Process, job: u32) -> Process {
    Process {
        uid: 1000 + job,
        ..process
    }
}

fn seen(processes: &[Process]) -> Seen {
    Seen {
        processes: processes.to_vec(),
        groups: Some(Vec::new()),
    }
}

fn policy(foreign: Foreign) -> Policy {
    Policy {
        foreign,
        grace_ms: 5000,
        ..Policy::default()
    }
}

fn found(effects: &[Effect]) -> Vec<&Finding> {
    let mut found = Vec::new();
    for effect in effects {
        if let Effect::Found(finding) = effect {
            found.push(finding);
        }
    }
    found
}

fn kills(effects: &[Effect]) -> Vec<u32> {
    let kill = |effect: &Effect| match effect {
        Effect::Kill { pid, .. } => Some(*pid),
        _ => None,
    };
    effects.iter().filter_map(kill).collect()
}

/// Jobs that Slurm was asked for at that time.
fn plan(jobs: &[Holding], asked_ms: u64) -> Plan {
    Plan {
        jobs: jobs.to_vec(),
        asked_ms,
    }
}

#[test]
fn the_jobs_user_has_to_be_behind_a_process_of_its_group() {
    let (policy, mut watch) = (policy(Foreign::Kill), Watch::default());
    let plan = plan(&[holding(7, 1000, &[0]), holding(8, 0, &[0])], 1_000_000);
    let of = |pid: u32, uid: u32, owners: &[u32], job| Process {
        uid,
        owners: owners.to_vec(),
        ..process(pid, 0, Some(job))
    };
    let all = seen(&[
        of(1, 1000, &[], 7),
        of(2, 0, &[], 7),
        of(3, 1001, &[1001, 1001, 1001, 1001], 7),
        // A program with the s-bit, and a container without root.
        of(4, 112, &[1000, 112, 112, 112], 7),
        of(5, 100_033, &[100_033, 1000], 7),
        // A job of root's may run as anybody.
        of(6, 1001, &[], 8),
    ]);
    step(&mut watch, &policy, &plan, &all, 0);
    let effects = step(&mut watch, &policy, &plan, &all, 5000);
    let named: Vec<_> = found(&effects).iter().filter_map(|one| one.pid).collect();
    assert_eq!((named, kills(&effects)), (vec![3], vec![3]));
}

#[test]
fn a_stranger_is_named_after_the_grace_and_slurms_word_and_let_go_when_he_is_gone() {
    let (policy, mut watch) = (policy(Foreign::Kill), Watch::default());
    let jobs = [holding(7, 1000, &[0])];
    let all = seen(&[process(1, 0, Some(7)), process(2, 0, None)]);
    assert_eq!(step(&mut watch, &policy, &plan(&jobs, 0), &all, 1000), []);
    // The grace is over, and Slurm was asked before it began.
    assert_eq!(
        step(&mut watch, &policy, &plan(&jobs, 1000), &all, 6000),
        [Effect::Ask]
    );
    let effects = step(&mut watch, &policy, &plan(&jobs, 1001), &all, 6001);
    let [finding] = found(&effects)[..] else {
        panic!("{effects:?}")
    };
    assert_eq!(
        finding.message,
        "process 2 (python3, uid 1000) of no job is on GPU 0, which job 7 holds"
    );
    assert_eq!(
        (&finding.holders[..], finding.job.clone()),
        (&[7.into()][..], None)
    );
    assert_eq!(kills(&effects), [2]);
    assert!(watch.is_foreign(&all.processes[1]) && !watch.is_foreign(&all.processes[0]));
    // It is told once, and killed once.
    assert_eq!(
        step(&mut watch, &policy, &plan(&jobs, 9000), &all, 9000),
        []
    );
    let rest = seen(&all.processes[..1]);
    let effects = step(&mut watch, &policy, &plan(&jobs, 9000), &rest, 9500);
    assert!(matches!(&effects[..], [Effect::Over(over)] if over.pid == Some(2)));
    assert_eq!(watch.findings().count(), 0);
}

#[test]
fn a_pid_that_is_used_again_is_another_process() {
    let (policy, mut watch) = (policy(Foreign::Warn), Watch::default());
    let plan = plan(&[], 1_000_000);
    let first = process(2, 0, None);
    let second = Process {
        started: 99,
        ..first.clone()
    };
    step(&mut watch, &policy, &plan, &seen(&[first]), 0);
    assert_eq!(
        step(
            &mut watch,
            &policy,
            &plan,
            &seen(std::slice::from_ref(&second)),
            5000
        ),
        []
    );
    assert_eq!(
        found(&step(&mut watch, &policy, &plan, &seen(&[second]), 10_000)).len(),
        1
    );
}

#[test]
fn a_job_that_was_not_known_yet_and_one_that_just_ended_are_no_finding() {
    let (policy, mut watch) = (policy(Foreign::Kill), Watch::default());
    let mine = seen(&[process(1, 3, Some(9))]);
    assert_eq!(step(&mut watch, &policy, &plan(&[], 0), &mine, 100), []);
    assert_eq!(
        step(&mut watch, &policy, &plan(&[], 50), &mine, 8000),
        [Effect::Ask]
    );
    // Slurm names the job.
    let jobs = [holding(9, 1000, &[3])];
    assert_eq!(
        step(&mut watch, &policy, &plan(&jobs, 8100), &mine, 8200),
        []
    );
    // It ends; its process dies a moment after.
    assert_eq!(step(&mut watch, &policy, &plan(&[], 9000), &mine, 9000), []);
    assert_eq!(
        step(&mut watch, &policy, &plan(&[], 9500), &seen(&[]), 9800),
        []
    );
}

#[test]
fn who_may_and_who_is_not_killed() {
    let mut policy = policy(Foreign::Kill);
    policy.exempt_uids = vec![4000];
    let jobs = [
        holding(7, 1000, &[0]),
        Holding {
            shares: true,
            ..holding(8, 1001, &[])
        },
    ];
    let of = |pid: u32, uid: u32, program: &str, job| Process {
        uid,
        program: program.into(),
        ..process(pid, 0, job)
    };
    let all = seen(&[
        of(1, 112, "nvidia-persiste", None),
        of(2, 4000, "python3", None),
        // The MPS server of job 7's user, and somebody else's.
        of(3, 1000, "nvidia-cuda-mps", None),
        of(4, 1002, "nvidia-cuda-mps", None),
        // A job with shards is at home wherever it is.
        of(5, 1001, "python3", Some(8)),
        of(6, 0, "dcgmi", None),
        // A name does not help inside of a job.
        of(9, 0, "nv-hostengine", Some(99)),
    ]);
    let mut watch = Watch::default();
    let plan = plan(&jobs, 1_000_000);
    step(&mut watch, &policy, &plan, &all, 0);
    let effects = step(&mut watch, &policy, &plan, &all, 5000);
    let named: Vec<_> = found(&effects).iter().filter_map(|one| one.pid).collect();
    assert_eq!(named, [4, 6, 9]);
    assert_eq!(kills(&effects), [4]);
    policy.kill_root = true;
    let mut watch = Watch::default();
    step(&mut watch, &policy, &plan, &all, 0);
    assert_eq!(
        kills(&step(&mut watch, &policy, &plan, &all, 5000)),
        [4, 6, 9]
    );
    policy.foreign = Foreign::Ignore;
    // What was named before is over when nobody is to look any more.
    let effects = step(&mut watch, &policy, &plan, &all, 6000);
    assert_eq!(effects.len(), 3);
    assert!(
        effects
            .iter()
            .all(|effect| matches!(effect, Effect::Over(_)))
    );
}

#[test]
fn groups_that_allow_more_or_less_than_the_plan() {
    let (policy, mut watch) = (policy(Foreign::Kill), Watch::default());
    let group = |job, step: &str, gpus: &[u8]| Group {
        job,
        step: step.into(),
        gpus: gpus.iter().copied().map(gres).collect(),
    };
    let mut job = holding(7, 1000, &[0, 1]);
    job.steps.insert("0".into(), [gres(1)].into());
    let other = holding(8, 1000, &[2]);
    let plan = plan(&[job, other], 1_000_000);
    let of = |groups: &[Group]| Seen {
        processes: Vec::new(),
        groups: Some(groups.to_vec()),
    };
    let sound = of(&[
        group(7.into(), "batch", &[0, 1]),
        group(7.into(), "0", &[1]),
        group(5.into(), "batch", &[]),
    ]);
    for now in [0, 5000, 60_000] {
        assert_eq!(step(&mut watch, &policy, &plan, &sound, now), []);
    }
    let wrong = of(&[
        group(7.into(), "0", &[0, 2, 3]),
        group(5.into(), "batch", &[2]),
    ]);
    step(&mut watch, &policy, &plan, &wrong, 61_000);
    let effects = step(&mut watch, &policy, &plan, &wrong, 66_000);
    let said: Vec<&str> = found(&effects).iter().map(|one| &one.message[..]).collect();
    assert_eq!(said.len(), 3, "{said:?}");
    assert!(
        said.iter()
            .any(|line| line.starts_with("step 5.batch may open GPU 2, which"))
    );
    assert!(
        said.iter()
            .any(|line| line.starts_with("step 7.0 may open GPU 2,3, which"))
    );
    assert!(said.contains(&"step 7.0 was given GPU 1 and may not open it"));
    // A group is nothing to kill; a round that did not look changes nothing.
    assert_eq!(kills(&effects), [0; 0]);
    let blind = Seen::default();
    assert_eq!(step(&mut watch, &policy, &plan, &blind, 67_000), []);
    assert_eq!(watch.findings().count(), 3);
    assert_eq!(step(&mut watch, &policy, &plan, &sound, 68_000).len(), 3);
}

/// GPUs dealt out to jobs, and processes of each on its own GPUs.
fn world() -> impl Strategy<Value = (Vec<Holding>, Vec<Process>)> {
    let dealt = prop::collection::vec(prop::option::of(1u32..6), 8);
    let home = prop::collection::vec((any::<prop::sample::Index>(), any::<bool>()), 0..20);
    (dealt, home).prop_map(|(dealt, home)| {
        let mut gpus: BTreeMap<u32, BTreeSet<GresGpu>> = BTreeMap::new();
        for (gpu, job) in (0..).zip(&dealt) {
            if let Some(job) = job {
                gpus.entry(*job).or_default().insert(gres(gpu));
            }
        }
        let jobs: Vec<Holding> = gpus
            .iter()
            .map(|(job, gpus)| Holding {
                gpus: gpus.clone(),
                ..holding(*job, 1000 + job, &[])
            })
            .collect();
        let mut processes = Vec::new();
        for (pid, (at, _)) in (100..).zip(home.iter().filter(|_| !jobs.is_empty())) {
            let job = at.get(&jobs);
            let own: Vec<u8> = job.gpus.iter().map(|gpu| u8::from(*gpu)).collect();
            let one = process(pid, *at.get(&own), job.job.number());
            processes.push(of_user(one, job.uid - 1000));
        }
        (jobs, processes)
    })
}

proptest! {
    #[test]
    fn the_innocent_are_never_named_and_strangers_exactly_once(
        (jobs, home) in world(),
        strangers in prop::collection::vec((0u8..8, prop::option::of((1u32..12, 1u32..12)), 0u64..20, 1u64..40), 0..8),
        words in prop::collection::vec(0u64..2000, 40),
    ) {
        let policy = policy(Foreign::Kill);
        let mut watch = Watch::default();
        // In the groups of one job, as the user of that or of another.
        type Stranger = (u8, Option<(u32, u32)>, u64, u64);
        let of = |(pid, (gpu, job, from, length)): (u32, &Stranger)| {
            let one = process(pid, *gpu, job.map(|(job, _)| job));
            (of_user(one, job.map_or(0, |(_, user)| user)), *from, from + length)
        };
        let strangers: Vec<(Process, u64, u64)> = (1..).zip(&strangers).map(of).collect();
        let holds = |job: Option<&JobId>, process: &Process| {
            let own = |one: &&Holding| Some(&one.job) == job && one.uid == process.uid;
            jobs.iter().any(|one| own(&one) && one.gpus.contains(&process.gpu))
        };
        let is_stranger = |one: &Process| !holds(one.step.as_ref().map(|(job, _)| job), one);
        let mut named: BTreeMap<u32, (u32, u32)> = BTreeMap::new();
        let mut asked = 0;
        // A round a second, Slurm's word now and then.
        for round in 0..70u64 {
            let now = round * 1000;
            let there = |(_, from, to): &&(Process, u64, u64)| (*from..*to).contains(&round);
            let mut processes = home.clone();
            processes.extend(strangers.iter().filter(there).map(|(one, ..)| one.clone()));
            let effects = step(&mut watch, &policy, &plan(&jobs, asked), &seen(&processes), now);
            for effect in &effects {
                match effect {
                    Effect::Found(finding) => named.entry(finding.pid.unwrap()).or_default().0 += 1,
                    Effect::Over(finding) => named.entry(finding.pid.unwrap()).or_default().1 += 1,
                    Effect::Kill { pid, .. } => prop_assert!(*pid < 100),
                    Effect::Ask => asked = now.saturating_sub(words[round as usize % words.len()]),
                }
            }
        }
        for (one, from, to) in &strangers {
            let counts = named.get(&one.pid).copied().unwrap_or_default();
            if !is_stranger(one) || to - from <= 5 {
                prop_assert_eq!(counts, (0, 0));
            } else if to - from > 12 {
                // Long enough for the grace and for Slurm's word; and let go once.
                prop_assert_eq!(counts, (1, 1), "{:?} {} {}", one, from, to);
            }
            prop_assert_eq!(counts.0, counts.1);
        }
        prop_assert!(named.keys().all(|pid| *pid < 100));
        prop_assert_eq!(watch.findings().count(), 0);
    }
}
