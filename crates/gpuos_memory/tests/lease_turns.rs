//! Turns on a GPU, in simulated time: what they cost, who gets them, and when they are given up on.

use gpuos_memory::lease::{
    Broker, ClientId, Config, Effect, GpuId, Input, JobId, JobSpec, Notice, Refuge, Supply,
};

use crate::lease_support::GIB;
use crate::lease_support::world::{Kill, Moment, World};

pub fn supply(gpus: u32) -> Supply {
    Supply {
        gpus: (0..gpus).map(|gpu| (GpuId(gpu), 80 * GIB)).collect(),
        host: 400 * GIB,
        nvme: 400 * GIB,
        nvme_counted: 0,
    }
}

pub fn job(job: u64, gpus: &[u32], grant: u64) -> JobSpec {
    JobSpec {
        job: JobId(job),
        gpus: gpus.iter().map(|gpu| GpuId(*gpu)).collect(),
        hbm_per_gpu: 80 * GIB,
        host: grant * gpus.len() as u64 * GIB,
        nvme: 0,
        bytes_per_gpu: grant * GIB,
        timeslice: true,
        account: None,
        rank: 0,
        guaranteed: 0,
    }
}

/// Jobs of one process each that work for so many ms, without a pause. A GiB takes 40 ms, as over PCIe 5.
fn world(jobs: &[(JobSpec, u64)], gpus: u32, config: Config) -> World {
    let mut world = World::new(1, config, supply(gpus));
    (world.ms_per_gib, world.idles, world.patience) = (40, false, u64::MAX);
    add(&mut world, jobs);
    world
}

fn add(world: &mut World, jobs: &[(JobSpec, u64)]) {
    for (spec, work) in jobs {
        world.job(spec.clone());
        let asks = spec.gpus.iter().map(|gpu| (*gpu, spec.bytes_per_gpu));
        world.process(spec.job, asks.collect(), *work);
    }
}

/// When all have ended, in ms.
fn makespan(world: &mut World) -> u64 {
    while !world.processes.is_empty() {
        world.run(world.now + 100).expect("laws hold");
        assert!(world.now < 100_000_000, "it does not end");
    }
    world.now
}

#[test]
fn two_jobs_of_80_percent_take_at_most_a_tenth_longer_than_one_after_the_other() {
    let each = 600_000;
    let jobs = [(job(1, &[0], 64), each), (job(2, &[0], 64), each)];
    let mut world = world(&jobs, 1, Config::default());
    let took = makespan(&mut world);
    eprintln!("{took} ms for {} ms, {} parks", 2 * each, world.seen.parks);
    assert!(took <= 2 * each * 11 / 10, "{took} ms");
    // They did take turns, and nobody waited for the end of the other.
    assert!(world.seen.parks >= 8, "{} parks", world.seen.parks);
    assert!(world.seen.most_waited < each / 3);
    assert_eq!((world.seen.finished, world.seen.refused), (2, 0));
}

#[test]
fn jobs_that_fit_beside_each_other_are_not_parked() {
    let jobs: Vec<_> = (1..=3).map(|id| (job(id, &[0], 26), 50_000)).collect();
    let mut world = world(&jobs, 1, Config::default());
    let took = makespan(&mut world);
    assert!(took < 51_000, "{took}");
    assert_eq!(world.seen.parks, 0);
}

/// One comes when the other has parked, not while it does: contexts of both are there.
#[test]
fn what_is_kept_for_contexts_is_nobodys() {
    let mut world = world(&[], 1, Config::default());
    world.input(Input::Reserve(20 * GIB));
    add(
        &mut world,
        &[(job(1, &[0], 35), 90_000), (job(2, &[0], 35), 90_000)],
    );
    while !world.processes.is_empty() {
        world.run(world.now + 10).expect("laws hold");
        let lies = world.truth.bytes.values();
        let lies: u64 = lies.filter_map(|it| it.hbm.get(&GpuId(0))).sum();
        assert!(lies <= 60 * GIB, "{} GiB at {} ms", lies / GIB, world.now);
    }
    assert!(world.seen.parks >= 2, "{} parks", world.seen.parks);
    assert_eq!((world.seen.finished, world.seen.refused), (2, 0));
}

#[test]
fn three_jobs_have_the_same_time() {
    let jobs: Vec<_> = (1..=3).map(|id| (job(id, &[0], 40), 10_000_000)).collect();
    let mut world = world(&jobs, 1, Config::default());
    world.run(3_000_000).expect("laws hold");
    let view = world.broker.as_ref().expect("a broker").view();
    let times: Vec<u64> = view.clients.iter().map(|it| it.gpu_ms).collect();
    let [least, most] = [times.iter().min(), times.iter().max()].map(|it| *it.expect("three"));
    // One turn: 20 switches of 3.2 s.
    assert!(most - least <= 70_000, "{times:?}");
    assert!(least > 900_000, "{times:?}");
}

#[test]
fn jobs_on_several_gpus_do_not_wait_for_each_other_in_a_circle() {
    let jobs = [
        (job(1, &[0, 1], 64), 200_000),
        (job(2, &[1, 2], 64), 200_000),
        (job(3, &[2, 0], 64), 200_000),
        (job(4, &[1], 64), 200_000),
    ];
    let mut world = world(&jobs, 3, Config::default());
    makespan(&mut world);
    assert_eq!(world.seen.finished, 4);
    let ended = world.seen.ended.keys().filter(|why| *why != "JobOver");
    assert_eq!(ended.count(), 0, "{:?}", world.seen.ended);
}

#[test]
fn who_is_killed_in_the_middle_of_its_swap_gives_way_within_a_second() {
    for moment in [Moment::ToldPark, Moment::Parking, Moment::Returning] {
        let jobs = [(job(1, &[0], 64), 300_000), (job(2, &[0], 64), 300_000)];
        let mut world = world(&jobs, 1, Config::default());
        world.plan = Some((Kill::Client, moment, 0));
        while world.plan.is_some() {
            world.run(world.now + 10).expect("laws hold");
        }
        world.run(world.now + 1000).expect("laws hold");
        let left: Vec<ClientId> = world.processes.keys().copied().collect();
        let [other] = left[..] else {
            panic!("{left:?} are left");
        };
        assert_eq!(world.truth.works.get(&other), Some(&true), "{moment:?}");
        makespan(&mut world);
        assert_eq!(world.seen.finished, 1);
    }
}

/// Two processes of two jobs, answered at 0 ms; the first has the GPU.
pub fn two(config: Config) -> Broker {
    let mut broker = Broker::new(config);
    broker.step(0, Input::Supply(supply(1)));
    for id in [1, 2] {
        broker.step(0, Input::Job(job(id, &[0], 64)));
        ask(&mut broker, id);
    }
    assert_eq!(broker.holders(GpuId(0)), [JobId(1)]);
    broker
}

fn ask(broker: &mut Broker, id: u64) -> Vec<Effect> {
    broker.step(
        0,
        Input::Ask {
            client: ClientId(id),
            job: JobId(id),
            gpu: GpuId(0),
            bytes: 64 * GIB,
        },
    )
}

/// Has the next one come: whoever is told to park needs so long, and whoever comes, too.
fn switch(broker: &mut Broker, now: &mut u64, took_ms: u64) -> Option<u64> {
    *now += 100;
    let effects = broker.step(*now, Input::Tick);
    let parks = effects.iter().find_map(|it| match it {
        Effect::Park { client, to, .. } if *to == Refuge::Host => Some(*client),
        _ => None,
    })?;
    *now += took_ms;
    let client = parks;
    let effects = broker.step(*now, Input::Parked { client, took_ms });
    let turn = effects.iter().find_map(|it| match it {
        Effect::Turn { client, .. } => Some(*client),
        _ => None,
    });
    let client = turn.expect("the other one comes");
    *now += took_ms;
    broker.step(*now, Input::Back { client, took_ms });
    Some(client.0)
}

#[test]
fn a_turn_is_at_least_ten_measured_switches() {
    let config = Config {
        switches: 10,
        quantum_ms: 1000,
        ..Config::default()
    };
    let mut broker = two(config);
    let (mut now, mut begun, mut holder) = (0, 0, 1);
    for turn in 0..12 {
        let next = loop {
            if let Some(next) = switch(&mut broker, &mut now, 2000) {
                break next;
            }
            assert!(now - begun < 200_000);
        };
        assert_ne!(next, holder);
        // The first turns go by what is guessed.
        let length = now - 4000 - begun;
        assert!(turn < 2 || length >= 40_000, "turn {turn}: {length} ms");
        assert!(length <= 80_000, "turn {turn}: {length} ms");
        (begun, holder) = (now, next);
    }
}

#[test]
fn a_turn_has_a_floor_where_switches_are_cheap() {
    let mut broker = two(Config {
        rate: u64::MAX,
        ..Config::default()
    });
    let mut now = 0;
    while switch(&mut broker, &mut now, 1).is_none() {}
    assert!((30_000..30_300).contains(&now), "{now}");
}

#[test]
fn who_has_no_work_gives_way_early_and_not_to_nobody() {
    let mut broker = two(Config {
        rate: u64::MAX,
        ..Config::default()
    });
    broker.step(5000, Input::Idle(ClientId(2)));
    broker.step(5000, Input::Idle(ClientId(1)));
    // Nobody wants it.
    let mut now = 5000;
    for _ in 0..1000 {
        assert_eq!(switch(&mut broker, &mut now, 1), None);
    }
    let effects = broker.step(now, Input::Busy(ClientId(2)));
    let park = |it: &Effect| matches!(it, Effect::Park { client, .. } if *client == ClientId(1));
    assert!(effects.iter().any(park), "{effects:?}");
}

#[test]
fn a_pair_whose_switch_is_too_long_is_told_and_one_runs_to_its_end() {
    let jobs = [(job(1, &[0], 64), 2_000_000), (job(2, &[0], 64), 2_000_000)];
    let config = Config {
        longest_ms: 20_000,
        quantum_ms: 10_000,
        ..Config::default()
    };
    let mut world = world(&jobs, 1, config.clone());
    let took = makespan(&mut world);
    assert!(world.seen.parks <= 2, "{} parks", world.seen.parks);
    assert!(took < 4_020_000, "{took}");

    let mut broker = Broker::new(config);
    broker.step(0, Input::Supply(supply(1)));
    let mut told = Vec::new();
    for id in [1, 2] {
        broker.step(0, Input::Job(job(id, &[0], 64)));
        for effect in ask(&mut broker, id) {
            if let Effect::Notify { client, notice } = effect {
                assert!(matches!(notice, Notice::Serialised { .. }));
                told.push(client.0);
            }
        }
    }
    told.sort_unstable();
    assert_eq!(told, [1, 2]);
    assert!(broker.view().gpus[0].serialised);
}

#[test]
fn turns_that_are_given_up_at_once_are_found_not_to_be_worth_it() {
    let mut broker = two(Config::default());
    let mut now = 0;
    let mut told = false;
    let mut holder = 1;
    for _ in 0..8 {
        // The holder works for a moment, and has no work then; the other one has.
        now += 500;
        broker.step(now, Input::Idle(ClientId(holder)));
        let begun = now;
        let next = loop {
            match switch(&mut broker, &mut now, 3000) {
                Some(next) => break next,
                None if now - begun > 120_000 => panic!("nobody comes"),
                None => {}
            }
        };
        holder = next;
        let effects = broker.step(now, Input::Busy(ClientId(3 - holder)));
        told |= broker.view().gpus[0].serialised;
        drop(effects);
        if told {
            // Who has no work now keeps the GPU for ten switches.
            now += 500;
            broker.step(now, Input::Idle(ClientId(holder)));
            let begun = now;
            while switch(&mut broker, &mut now, 3000).is_none() {}
            assert!(now - 6000 - begun >= 60_000, "{}", now - begun);
            return;
        }
    }
    panic!("it was not told");
}

#[test]
fn who_takes_his_time_with_parking_does_not_get_more_of_it() {
    let mut broker = two(Config::default());
    let (mut now, mut told) = (0, Vec::new());
    while told.len() < 12 {
        now += 100;
        let effects = broker.step(now, Input::Tick);
        let parks = effects.iter().find_map(|it| match it {
            Effect::Park {
                client,
                deadline_ms,
                ..
            } => Some((*client, *deadline_ms)),
            _ => None,
        });
        let Some((client, deadline_ms)) = parks else {
            assert!(now < 10_000_000);
            continue;
        };
        // The first one is slow on purpose.
        let took_ms = match client {
            ClientId(1) => deadline_ms - now - 1,
            _ => 3000,
        };
        if client == ClientId(1) {
            told.push(took_ms);
        }
        now += took_ms;
        let effects = broker.step(now, Input::Parked { client, took_ms });
        let next = effects.iter().find_map(|it| match it {
            Effect::Turn { client, .. } => Some(*client),
            _ => None,
        });
        let client = next.expect("the other one comes");
        now += 3000;
        let took_ms = 3000;
        broker.step(now, Input::Back { client, took_ms });
        assert!(!broker.view().gpus[0].serialised, "{told:?}");
    }
    // 14 s at first, and four times that.
    assert!(told.iter().all(|took| *took <= 4 * told[0] + 4), "{told:?}");
}

#[test]
fn the_time_before_others_came_is_held_against_nobody_for_more_than_a_turn() {
    let mut broker = Broker::new(Config::default());
    broker.step(0, Input::Supply(supply(1)));
    broker.step(0, Input::Job(job(1, &[0], 64)));
    ask(&mut broker, 1);
    // It is alone for ten hours, and has no work when others come.
    let mut now = 36_000_000;
    broker.step(now, Input::Idle(ClientId(1)));
    let mut told = Vec::new();
    for id in [2, 3] {
        broker.step(now, Input::Job(job(id, &[0], 64)));
        told.extend(ask(&mut broker, id));
    }
    let parks = |it: &Effect| matches!(it, Effect::Park { client, .. } if client.0 == 1);
    assert!(told.iter().any(parks), "{told:?}");
    let (client, took_ms) = (ClientId(1), 2000);
    now += took_ms;
    broker.step(now, Input::Parked { client, took_ms });
    let client = ClientId(2);
    now += took_ms;
    broker.step(now, Input::Back { client, took_ms });
    broker.step(now, Input::Busy(ClientId(1)));
    let begun = now;
    while switch(&mut broker, &mut now, 2000) != Some(1) {
        // The longest turn of either.
        assert!(now - begun < 800_000, "it does not come");
    }
}
