//! Processes that lose their connection, or say so: nobody has more time by it for what he was told, nor more of the GPU.

use gpuos_memory::lease::{
    At, Broker, ClientId, Config, Effect, Ended, GpuId, Input, JobId, JobSpec, Place, Refuge,
    Supply,
};

use crate::lease_support::GIB;

const ONE: ClientId = ClientId(1);
const TWO: ClientId = ClientId(2);

/// Two jobs of 60 GiB that share 80 in turns, until the first is told to park; and when that is.
fn parking() -> (Broker, u64) {
    let mut broker = Broker::new(Config::default());
    broker.step(
        0,
        Input::Supply(Supply {
            gpus: vec![(GpuId(0), 80 * GIB)],
            host: 400 * GIB,
            nvme: 400 * GIB,
            nvme_counted: 0,
        }),
    );
    for id in [1, 2] {
        broker.step(
            0,
            Input::Job(JobSpec {
                job: JobId(id),
                gpus: vec![GpuId(0)],
                hbm_per_gpu: 80 * GIB,
                host: 60 * GIB,
                nvme: 0,
                bytes_per_gpu: 60 * GIB,
                timeslice: true,
                account: None,
                rank: 0,
                guaranteed: 0,
            }),
        );
        ask(&mut broker, 0, id);
    }
    let mut now = 0;
    while place(&broker) == Place::Resident {
        now += 100;
        broker.step(now, Input::Tick);
    }
    (broker, now)
}

fn ask(broker: &mut Broker, now: u64, id: u64) -> Vec<Effect> {
    broker.step(
        now,
        Input::Ask {
            client: ClientId(id),
            job: JobId(id),
            gpu: GpuId(0),
            bytes: 60 * GIB,
        },
    )
}

fn place(broker: &Broker) -> Place {
    broker.view().clients[0].place
}

/// When and why the first process is ended, if each 5 s it does this. Nothing else is done for two minutes.
fn ended(
    broker: &mut Broker,
    from: u64,
    does: impl Fn(&mut Broker, u64) -> Vec<Effect>,
) -> Option<(u64, Ended)> {
    (1..1200).find_map(|tick| {
        let now = from + tick * 100;
        let mut effects = broker.step(now, Input::Tick);
        if tick % 50 == 0 {
            effects.extend(does(broker, now));
        }
        effects.into_iter().find_map(|it| match it {
            Effect::End { client: ONE, why } => Some((now - from, why)),
            _ => None,
        })
    })
}

#[test]
fn who_was_not_away_returns_from_nowhere() {
    let (mut broker, from) = parking();
    let works = |broker: &mut Broker, now| broker.step(now, Input::Return(ONE, At::Gpu));
    let (after, why) = ended(&mut broker, from, works).expect("it is ended");
    assert_eq!(why, Ended::Deaf);
    // Ten seconds, or four times what 60 GiB take by the guess.
    assert!((12_000..13_500).contains(&after), "{after}");
}

#[test]
fn who_loses_his_connection_has_more_time_once() {
    let again: [fn(&mut Broker, u64) -> Vec<Effect>; 2] = [
        |broker, now| broker.step(now, Input::Return(ONE, At::Gpu)),
        |broker, now| ask(broker, now, 1),
    ];
    for again in again {
        let (mut broker, from) = parking();
        let reconnects = |broker: &mut Broker, now| {
            let mut effects = broker.step(now, Input::Away(ONE));
            effects.extend(again(broker, now));
            effects
        };
        let (after, why) = ended(&mut broker, from, reconnects).expect("it is ended");
        assert_eq!(why, Ended::Deaf);
        // From the first time on, after 5 s.
        assert!((17_000..18_500).contains(&after), "{after}");
    }
}

#[test]
fn who_is_away_whenever_he_is_late_is_ended_when_he_is_there() {
    let (mut broker, from) = parking();
    broker.step(from, Input::Away(ONE));
    let there = |broker: &mut Broker, now| {
        let effects = broker.step(now, Input::Return(ONE, At::Gpu));
        broker.step(now, Input::Away(ONE));
        effects
    };
    let (after, why) = ended(&mut broker, from, there).expect("it is ended");
    assert_eq!(why, Ended::Deaf);
    assert!(after <= 20_000, "{after}");
}

#[test]
fn who_parks_after_he_was_away_owes_nothing() {
    let (mut broker, mut now) = parking();
    for _ in 0..3 {
        broker.step(now + 1000, Input::Away(ONE));
        let effects = broker.step(now + 2000, Input::Return(ONE, At::Gpu));
        let deadline = effects.iter().find_map(|it| match it {
            Effect::Park {
                client: ONE,
                deadline_ms,
                ..
            } => Some(*deadline_ms),
            _ => None,
        });
        assert!(deadline.is_some_and(|at| at >= now + 12_000), "{effects:?}");
        now += 5000;
        for (here, there) in [(ONE, TWO), (TWO, ONE)] {
            let took_ms = 1000;
            broker.step(
                now,
                Input::Parked {
                    client: here,
                    took_ms,
                },
            );
            now += 1000;
            broker.step(
                now,
                Input::Back {
                    client: there,
                    took_ms,
                },
            );
            // Until the next one is to park.
            let parks = |it: &Effect| matches!(it, Effect::Park { client, .. } if *client == there);
            while !broker.step(now, Input::Tick).iter().any(parks) {
                now += 100;
            }
        }
    }
    assert_eq!(place(&broker), Place::Parking(Refuge::Host));
}

#[test]
fn what_was_asked_is_asked_again_with_more_time_once() {
    let (mut broker, now) = parking();
    broker.step(
        now,
        Input::Parked {
            client: ONE,
            took_ms: 1000,
        },
    );
    broker.step(
        now,
        Input::Back {
            client: TWO,
            took_ms: 1000,
        },
    );
    let mut from = now;
    broker.step(
        now,
        Input::Pressure {
            free: 10,
            total: 1000,
            stalled: 0,
        },
    );
    let asked = |it: &Effect| matches!(it, Effect::Demote { client: ONE, .. });
    loop {
        from += 100;
        let (client, bytes) = (TWO, 0);
        let effects = broker.step(from, Input::Demoted { client, bytes });
        if effects.iter().any(asked) {
            break;
        }
        assert!(from < now + 60_000, "it is not asked");
    }
    let parked = At::Parked(Refuge::Host);
    let reconnects = |broker: &mut Broker, now| {
        broker.step(now, Input::Away(ONE));
        broker.step(now, Input::Return(ONE, parked))
    };
    let (after, why) = ended(&mut broker, from, reconnects).expect("it is ended");
    assert_eq!(why, Ended::DeafUnderPressure);
    // 10 s and 32 s for 60 GiB to NVMe, from the first time on.
    assert!((46_000..49_000).contains(&after), "{after}");
}
