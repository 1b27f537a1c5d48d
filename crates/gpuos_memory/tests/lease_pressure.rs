//! The ladder of pressure on host memory, step by step.

use gpuos_memory::lease::{
    Broker, ClientId, Config, Demote, Effect, Ended, GpuId, Input, JobId, JobSpec, Notice, Place,
    Refuge, Supply,
};

use crate::lease_support::GIB;

/// Two jobs in turns on GPU 0, of which the second waits, and one that has GPU 1 with half of its memory in the host's.
pub fn node(nvme: u64, ranks: [u64; 3], guaranteed: u64) -> Broker {
    let mut broker = Broker::new(Config::default());
    broker.step(
        0,
        Input::Supply(Supply {
            gpus: vec![(GpuId(0), 80 * GIB), (GpuId(1), 80 * GIB)],
            host: 400 * GIB,
            nvme: nvme * GIB,
            nvme_counted: 0,
        }),
    );
    for (id, gpu, bytes) in [(1, 0, 64), (2, 0, 64), (3, 1, 120)] {
        broker.step(
            0,
            Input::Job(JobSpec {
                job: JobId(id),
                gpus: vec![GpuId(gpu)],
                hbm_per_gpu: 80 * GIB,
                host: 64 * GIB,
                nvme: 0,
                bytes_per_gpu: bytes * GIB,
                timeslice: gpu == 0,
                account: None,
                rank: ranks[id as usize - 1],
                guaranteed: guaranteed * GIB,
            }),
        );
        broker.step(
            0,
            Input::Ask {
                client: ClientId(id),
                job: JobId(id),
                gpu: GpuId(gpu),
                bytes: bytes * GIB,
            },
        );
        broker.step(0, Input::Idle(ClientId(id)));
    }
    // The second has had its turn, so that something of it is parked.
    broker.step(0, Input::Busy(ClientId(2)));
    let mut now = 0;
    while broker.view().clients[1].place != Place::Resident {
        now += 100;
        for effect in broker.step(now, Input::Tick) {
            follow(&mut broker, now, &effect);
        }
    }
    broker.step(now, Input::Idle(ClientId(2)));
    broker.step(now, Input::Busy(ClientId(1)));
    while broker.view().clients[0].place != Place::Resident {
        now += 100;
        for effect in broker.step(now, Input::Tick) {
            follow(&mut broker, now, &effect);
        }
    }
    broker.step(now, Input::Idle(ClientId(1)));
    assert!(now < 100_000);
    broker
}

/// Does at once what is said.
fn follow(broker: &mut Broker, now: u64, effect: &Effect) {
    let input = match effect {
        Effect::Park { client, .. } => Input::Parked {
            client: *client,
            took_ms: 1,
        },
        Effect::Turn { client, .. } => Input::Back {
            client: *client,
            took_ms: 1,
        },
        Effect::Demote { client, what, .. } => Input::Demoted {
            client: *client,
            bytes: if *what == Demote::Dirty { 64 * GIB } else { 0 },
        },
        _ => return,
    };
    for effect in broker.step(now, input) {
        follow(broker, now, &effect);
    }
}

pub fn pressure(broker: &mut Broker, now: u64, used: u64) -> Vec<Effect> {
    broker.step(
        now,
        Input::Pressure {
            free: 1000 - used,
            total: 1000,
            stalled: 0,
        },
    )
}

/// What is done in so many seconds, in words, with the second from the beginning. `hears`: whoever is told something does it.
fn steps(broker: &mut Broker, seconds: u64, hears: bool) -> Vec<(u64, String)> {
    let start = 200_000;
    let mut steps = Vec::new();
    let mut effects = pressure(broker, start, 930);
    for tick in 0..seconds * 10 {
        let now = start + tick * 100;
        effects.extend(broker.step(now, Input::Tick));
        for effect in std::mem::take(&mut effects) {
            let words = match &effect {
                Effect::Notify {
                    notice: Notice::Pressure,
                    client,
                } => format!("notify {}", client.0),
                Effect::Demote { client, what, .. } => format!("demote {what:?} {}", client.0),
                Effect::Park { client, to, .. } => format!("park {to:?} {}", client.0),
                Effect::Requeue { job, .. } => format!("requeue {}", job.0),
                Effect::End { client, why } => format!("end {why:?} {}", client.0),
                _ => continue,
            };
            steps.push(((now - start) / 1000, words));
            if hears {
                follow(broker, now, &effect);
            }
        }
    }
    steps
}

fn words(steps: &[(u64, String)]) -> Vec<&str> {
    steps.iter().map(|it| it.1.as_str()).collect()
}

/// What is done from one time to another, but for records.
pub fn between(broker: &mut Broker, from: u64, to: u64) -> Vec<Effect> {
    let times = (from..to).step_by(100);
    let effects = times.flat_map(|now| broker.step(now, Input::Tick));
    effects
        .filter(|it| !matches!(it, Effect::Journal(_)))
        .collect()
}

#[test]
fn the_mildest_step_comes_first_and_each_has_time_to_help() {
    let mut broker = node(400, [2, 1, 3], 0);
    let steps = steps(&mut broker, 60, true);
    assert_eq!(
        words(&steps),
        [
            "notify 1",
            "notify 2",
            "notify 3",
            "demote Clean 1",
            "demote Clean 3",
            "demote Dirty 2",
            "park Nvme 1",
            "park Nvme 3",
        ],
        "{steps:?}"
    );
    let at: Vec<u64> = steps.iter().map(|it| it.0).collect();
    assert_eq!(at, [0, 0, 0, 1, 1, 6, 11, 16]);
    let view = broker.view();
    // All of it is on NVMe: 64 of each that takes turns, and 120.
    assert_eq!(view.nvme.promised, 248 * GIB);
    assert_eq!(view.host.promised, 0);
}

#[test]
fn where_there_is_no_nvme_the_lowest_is_requeued() {
    let mut broker = node(0, [2, 1, 3], 0);
    let steps = steps(&mut broker, 20, true);
    let words = words(&steps);
    assert_eq!(words[5..], ["requeue 2"], "{words:?}");
}

#[test]
fn pressure_goes_below_the_lower_mark_only_and_who_was_parked_comes_back() {
    let mut broker = node(400, [2, 1, 3], 0);
    // Between the marks nothing begins.
    pressure(&mut broker, 190_000, 900);
    assert!(!broker.view().pressure);
    let before = steps(&mut broker, 60, true);
    assert_eq!(before.len(), 8);
    pressure(&mut broker, 300_000, 900);
    assert!(broker.view().pressure);
    pressure(&mut broker, 300_000, 850);
    assert!(!broker.view().pressure);
    broker.step(300_000, Input::Busy(ClientId(1)));
    let mut turns = Vec::new();
    for tick in 0..300 {
        let now = 300_000 + tick * 100;
        let before = broker.view();
        for effect in broker.step(now, Input::Tick) {
            follow(&mut broker, now, &effect);
        }
        for (before, it) in before.clients.iter().zip(broker.view().clients) {
            if before.place != it.place && it.place == Place::Resident {
                turns.push((it.client.0, (now - 300_000) / 1000));
            }
        }
    }
    // The highest first, one at a time.
    assert_eq!(turns, [(3, 5), (1, 10)]);
    assert_eq!(broker.view().clients[2].place, Place::Resident);
}

#[test]
fn the_deaf_are_parked_or_ended_at_their_deadline() {
    let mut broker = node(400, [2, 1, 3], 0);
    // Writing 64 GiB to NVMe has half a minute.
    let steps = steps(&mut broker, 100, false);
    let words = words(&steps);
    // Who works and frees nothing is to park, and is ended when it does not do that either.
    assert_eq!(
        words[3..7],
        [
            "demote Clean 1",
            "demote Clean 3",
            "park Nvme 1",
            "park Nvme 3"
        ],
        "{steps:?}"
    );
    assert_eq!(steps[5].0 - steps[3].0, 10);
    let ended: Vec<_> = steps.iter().filter(|it| it.1.starts_with("end")).collect();
    let pressure = Ended::DeafUnderPressure;
    assert_eq!(ended[0].1, format!("end {pressure:?} 1"), "{steps:?}");
}

#[test]
fn where_nvme_takes_nothing_the_next_job_is_asked_and_then_one_is_requeued() {
    let mut broker = node(400, [2, 1, 0], 0);
    let mut now = 300_000;
    let (mut refused, mut requeued) = (Vec::new(), None);
    pressure(&mut broker, now, 930);
    while requeued.is_none() && now < 500_000 {
        now += 100;
        for effect in broker.step(now, Input::Tick) {
            match effect {
                Effect::Park {
                    client,
                    to: Refuge::Nvme,
                    ..
                } => {
                    refused.push(client);
                    broker.step(now, Input::NotParked(client));
                }
                Effect::Demote { client, .. } => {
                    broker.step(now, Input::Demoted { client, bytes: 0 });
                }
                Effect::Requeue { job, .. } => requeued = Some(job),
                Effect::End { client, why } => panic!("{client:?}: {why}"),
                _ => {}
            }
        }
    }
    // Each is asked once, the lowest first, and works on.
    assert_eq!(refused, [ClientId(3), ClientId(1)]);
    assert_eq!(requeued, Some(JobId(3)));
    assert_eq!(broker.view().clients[2].place, Place::Resident);
}

#[test]
fn a_guarantee_is_not_touched() {
    let mut broker = node(400, [2, 1, 3], 64);
    let steps = steps(&mut broker, 60, true);
    let words = words(&steps);
    assert_eq!(words.len(), 5, "{words:?}");
    assert_eq!(broker.view().nvme.promised, 0);
    // It goes on looking, and has nothing that it may take.
    assert!(broker.view().pressure);
    let place = broker.view().clients[1].place;
    assert_eq!(place, Place::Parked(Refuge::Host));
}

#[test]
fn one_that_is_suspended_does_not_stop_the_ladder() {
    let mut broker = node(400, [2, 1, 3], 0);
    let mut now = 200_000;
    pressure(&mut broker, now, 930);
    let mut clean = 0;
    let mut parks = Vec::new();
    while now < 260_000 {
        now += 100;
        for effect in broker.step(now, Input::Tick) {
            match effect {
                // It is suspended when it was just asked.
                Effect::Demote {
                    client: ClientId(3),
                    ..
                } => {
                    clean += 1;
                    broker.step(now, Input::Suspended(JobId(3), true));
                }
                Effect::Park { client, .. } => {
                    parks.push(client.0);
                    follow(&mut broker, now, &effect);
                }
                Effect::End { client, why } => panic!("{client:?}: {why}"),
                effect => follow(&mut broker, now, &effect),
            }
        }
    }
    assert_eq!((clean, parks), (1, vec![1]));
    // What is on NVMe comes back when it is calm.
    pressure(&mut broker, now, 800);
    broker.step(now, Input::Busy(ClientId(1)));
    // Nobody was there to be parked, so one was to be requeued, which has half a minute.
    while broker.view().clients[0].place != Place::Resident && now < 300_000 {
        now += 100;
        for effect in broker.step(now, Input::Tick) {
            follow(&mut broker, now, &effect);
        }
    }
    assert_eq!(broker.view().clients[0].place, Place::Resident);
    // What it was asked it has the time for that was left.
    broker.step(now, Input::Suspended(JobId(3), false));
    let ends = |it: &Effect| matches!(it, Effect::End { .. });
    let mut in_time = |tick: u64| !broker.step(now + tick * 100, Input::Tick).iter().any(ends);
    assert!((0..95).all(&mut in_time));
}

#[test]
fn a_job_on_nvme_takes_no_turns_though_who_was_told_to_go_there_is_dead() {
    const GPU: GpuId = GpuId(0);
    let mut broker = Broker::new(Config {
        notice_ms: 100,
        cool_ms: 300,
        ..Config::default()
    });
    broker.step(
        0,
        Input::Supply(Supply {
            gpus: vec![(GPU, 80 * GIB)],
            host: 400 * GIB,
            nvme: 400 * GIB,
            nvme_counted: 0,
        }),
    );
    let ask = |broker: &mut Broker, now, client, job, gib: u64| {
        let spec = JobSpec {
            job: JobId(job),
            gpus: vec![GPU],
            hbm_per_gpu: 80 * GIB,
            host: 80 * GIB,
            nvme: 0,
            bytes_per_gpu: 80 * GIB,
            timeslice: true,
            account: None,
            rank: job,
            guaranteed: 0,
        };
        broker.step(now, Input::Job(spec));
        let (client, job, bytes) = (ClientId(client), JobId(job), gib * GIB);
        let gpu = GPU;
        broker.step(
            now,
            Input::Ask {
                client,
                job,
                gpu,
                bytes,
            },
        );
    };
    let places = |broker: &Broker| -> Vec<Place> {
        let clients = broker.view().clients.into_iter();
        clients.map(|it| it.place).collect()
    };
    let [here, waits] = [Place::Resident, Place::Parked(Refuge::Host)];
    // The second process of the first job has never had anything on the GPU when the first one is sent to NVMe.
    ask(&mut broker, 0, 1, 1, 40);
    ask(&mut broker, 0, 2, 2, 30);
    ask(&mut broker, 0, 4, 1, 25);
    assert_eq!(
        places(&broker),
        [here, Place::Parking(Refuge::Host), waits],
        "they do not fit"
    );
    pressure(&mut broker, 100, 930);
    let mut now = 200;
    while places(&broker)[0] != Place::Parking(Refuge::Nvme) {
        now += 100;
        for effect in broker.step(now, Input::Tick) {
            if let Effect::Demote { .. } = effect {
                follow(&mut broker, now, &effect);
            }
        }
        assert!(now < 9000, "nobody is sent to NVMe");
    }
    pressure(&mut broker, now, 100);
    let said = Input::Parked {
        client: ClientId(2),
        took_ms: 1,
    };
    for effect in broker.step(now, said) {
        follow(&mut broker, now, &effect);
    }
    // For the third job there is room once the first one's process is gone: that one's job is away, and these two fit.
    ask(&mut broker, now, 3, 3, 30);
    assert_eq!(
        places(&broker),
        [Place::Parking(Refuge::Nvme), here, waits, waits]
    );
    for effect in broker.step(now, Input::Gone(ClientId(1))) {
        assert!(!matches!(effect, Effect::Park { .. }), "{effect:?}");
        follow(&mut broker, now, &effect);
    }
    assert_eq!(places(&broker), [here, here, waits]);
    assert_eq!(broker.holders(GPU), []);
    // When it is calm the job is there again, and one of the three at a time has what does not suffice for all.
    for effect in between(&mut broker, now, now + 1000) {
        follow(&mut broker, now + 1000, &effect);
    }
    assert_eq!(broker.holders(GPU).len(), 1);
    let work = places(&broker).into_iter().filter(|it| *it == here);
    assert_eq!(work.count(), 1, "{:?}", places(&broker));
}
