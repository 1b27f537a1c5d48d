//! Random events in any order: what must never happen does not, and nothing stays broken for ever.

use gpuos_core::health::{
    Effect, Event, ExtraPart, GpuState, HostFault, Job, NodeHealth, RecoveryAction, Rules, Verb,
    step,
};

use crate::health_support;
use crate::health_support::{World, admin, job, kept, nth, sound};
use crate::random::Random;

const GPUS: u8 = 4;

fn any_event(random: &mut Random, world: &mut World) -> Event {
    // One GPU more than there are.
    let index = random.below(u64::from(GPUS) + 1) as u8;
    let (gpu, at) = (nth(index), usize::from(index.min(GPUS - 1)));
    match random.below(30) {
        0..=5 => {
            let code = random.pick(&[
                13, 31, 43, 45, 48, 63, 64, 74, 79, 94, 95, 109, 119, 154, 999,
            ]);
            let gpu_instance = random.pick(&[None, None, Some(1)]);
            let pid = random.pick(&[None, Some(10), Some(20)]);
            match random.below(3) {
                0 => Event::Logged {
                    gpu,
                    code,
                    gpu_instance,
                    pid,
                },
                _ => Event::Xid {
                    gpu,
                    code,
                    gpu_instance,
                    compute_instance: None,
                    pid,
                },
            }
        }
        6 => Event::RecoveryAction {
            gpu,
            action: RecoveryAction::from_nvml(random.below(7) as u32),
        },
        7 => match random.below(2) {
            0 => Event::Lost { gpu },
            _ => Event::Silent { gpu },
        },
        8 => Event::LibrarySilent,
        9 => Event::LibraryBack,
        10..=13 => {
            let verb = random.pick(&[Verb::Drain, Verb::Online, Verb::Online, Verb::Offline]);
            let gpu = random.pick(&[Some(index), Some(index), None]);
            admin(verb, gpu, random.below(2) == 0)
        }
        14 => Event::ResetDone {
            gpu,
            ok: random.below(2) == 0,
            message: "late".into(),
        },
        15 => Event::CheckDone {
            gpu,
            ok: random.below(2) == 0,
            message: "late".into(),
        },
        16 => Event::Published {
            revision: random.below(8),
            ok: random.below(2) == 0,
        },
        17 => Event::Shown {
            part: ExtraPart::default(),
            damaged: random.below(2) == 0,
            drain: random.pick(&[None, Some(())]).map(|()| "other".into()),
        },
        18 => Event::Host(match random.below(3) {
            0 => HostFault::NicLink {
                nic: "mlx5_0".into(),
                up: random.below(2) == 0,
                gpus: vec![gpu],
            },
            1 => HostFault::MemoryErrors {
                controller: 0,
                corrected: random.below(5000),
                uncorrected: random.below(2),
            },
            _ => HostFault::FileSystem {
                path: "/scratch".into(),
                stalled_ms: random.below(400_000),
            },
        }),
        19 => Event::Started {
            rebooted: random.below(4) == 0,
        },
        20..=23 => {
            // A job comes where slurmctld gives GPUs, or one ends.
            let free = !world.part.has_out(gpu) && index < GPUS;
            let taken = world.jobs.iter().any(|job| job.gpus.contains(&gpu));
            if free && !taken {
                let number = 1 + random.below(1000) as u32;
                let mut job: Job = job(number, &[index]);
                job.requeue = random.below(3) > 0;
                world.jobs.push(job);
            } else if !world.jobs.is_empty() {
                let at = random.index(world.jobs.len());
                world.jobs.remove(at);
            }
            Event::Jobs(world.jobs.clone())
        }
        24..=26 => {
            world.touched.insert(index);
            let sample = &mut world.samples[at];
            match random.below(8) {
                0 => sample.rows_pending = Some(true),
                1 => sample.rows_failed = Some(true),
                2 => sample.ecc_uncorrected = Some(random.below(9)),
                3 => sample.clock_reasons = Some(random.pick(&[0, 0x40, 0x80])),
                4 => sample.celsius = Some(random.below(110) as u32),
                5 => sample.nvlinks_down = random.below(4),
                6 => sample.pcie_replays = Some(random.below(1000)),
                _ => *sample = sound(),
            }
            let sample = Box::new(sample.clone());
            Event::Sample { gpu, sample }
        }
        27 => Event::Held {
            jobs: (0..random.below(3))
                .map(|job| (1 + job as u32, 1))
                .collect(),
            more: random.below(2) == 0,
        },
        _ => Event::Tick,
    }
}

#[test]
fn no_order_of_events_does_what_must_not_be() {
    for seed in 0..20 {
        let mut random = Random(seed * 7919 + 1);
        let mut world = World::new(GPUS);
        // The hang watch needs jobs that ask for it; samples may touch any GPU.
        world.touched.extend(0..GPUS);
        for _ in 0..200 {
            match random.below(40) {
                // The clock goes back, or leaps ahead by days.
                0 => world.now = world.now.saturating_sub(random.below(1 << 40)),
                1 => world.now += random.below(1 << 33),
                2 => world.slurmctld = !world.slurmctld,
                3 => world.resets = random.pick(&[Some(true), Some(false), None]),
                4 => world.checks = random.pick(&[Some(true), Some(false), None]),
                5 => {
                    // kill -9 and a start.
                    world.node = kept(&world.node);
                    world.tell(Event::Started { rebooted: false });
                }
                6..=15 => world.run(random.below(30)),
                _ => world.now += random.below(3000),
            }
            let event = any_event(&mut random, &mut world);
            world.tell(event);
        }
        // Whatever happened: an administrator gets all back.
        world.slurmctld = true;
        world.resets = Some(true);
        world.checks = Some(true);
        world.samples = vec![sound(); usize::from(GPUS)];
        world.jobs.clear();
        world.run(60);
        world.tell(Event::LibraryBack);
        world.tell(Event::Host(HostFault::NicLink {
            nic: "mlx5_0".into(),
            up: true,
            gpus: Vec::new(),
        }));
        world.tell(Event::Host(HostFault::FileSystem {
            path: "/scratch".into(),
            stalled_ms: 0,
        }));
        world.tell(admin(Verb::Online, None, true));
        // All figures are calm again, and what was counted within a day is forgotten.
        world.leap(28 * 3600);
        world.run(60);
        world.tell(admin(Verb::Online, None, true));
        world.run(90);
        for gpu in 0..GPUS {
            let state = world.node.state(nth(gpu));
            assert_eq!(
                state,
                GpuState::Available,
                "seed {seed} GPU {gpu}\n{}",
                world.story()
            );
        }
        assert!(world.part.is_empty(), "seed {seed}: {}", world.part);
    }
}

#[test]
fn the_same_events_do_the_same() {
    let run = || {
        let mut random = Random(99);
        let mut world = World::new(GPUS);
        world.touched.extend(0..GPUS);
        for _ in 0..300 {
            world.now += random.below(3000);
            let event = any_event(&mut random, &mut world);
            world.tell(event);
        }
        (world.node, format!("{:?}", world.done))
    };
    assert_eq!(run(), run());
}

/// 10,000 nodes see the same fault in the same second, slurmctld refuses for half a minute, then takes all.
#[test]
fn a_storm_of_publications_is_spread_and_bounded() {
    const NODES: usize = 10_000;
    let rules = Rules::default();
    let mut nodes: Vec<NodeHealth> = (0..NODES)
        .map(|seed| NodeHealth::new(1, seed as u64))
        .collect();
    let mut in_second = vec![0u32; 110];
    let mut of_node = vec![0u32; NODES];
    for second in 0..110u64 {
        for (at, node) in nodes.iter_mut().enumerate() {
            // Nodes tick when they have something to do.
            let now = 1_000_000 + second * 1000;
            if second > 1 && node.confirmed_out(nth(0)) {
                continue;
            }
            let mut told = step(node, &rules, Event::Tick, now);
            if second == 1 {
                let xid = health_support::xid(0, 48);
                told.extend(step(node, &rules, xid, now));
            }
            for effect in told {
                if let Effect::Publish { revision, .. } = effect {
                    in_second[second as usize] += 1;
                    of_node[at] += 1;
                    let ok = second >= 30;
                    step(node, &rules, Event::Published { revision, ok }, now);
                }
            }
        }
    }
    let most_of_node = *of_node.iter().max().unwrap();
    let limits = &rules.limits;
    let bound = limits.publish_burst + 110 / limits.publish_every_s + 1;
    assert!(
        most_of_node <= bound,
        "{most_of_node} by one node, bound {bound}"
    );
    assert!(nodes.iter().all(|node| node.confirmed_out(nth(0))));
    // slurmctld's return is not met by all nodes at once.
    let after = *in_second[30..].iter().max().unwrap();
    assert!(after as usize <= NODES / 5, "{after} in one second");
}
