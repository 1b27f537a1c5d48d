//! Processes that cannot be moved while they run, which the driver takes out of their GPUs whole.

use gpuos_memory::lease::{
    At, Broker, ClientId, Config, Effect, Ended, GpuId, Input, JobId, Place, Record, Refuge,
};

use crate::lease_support::GIB;
use crate::lease_support::world::{Kill, Moment, World};
use crate::lease_turns::{job, supply, two};

const ONE: ClientId = ClientId(1);
const OTHER: ClientId = ClientId(2);

fn config() -> Config {
    Config {
        checkpoints: true,
        ..Config::default()
    }
}

/// Has time go by until somebody is told something that is asked for; answers what.
fn until<T>(
    broker: &mut Broker,
    now: &mut u64,
    wanted: impl Fn(&Effect) -> Option<T>,
) -> Option<T> {
    for _ in 0..5000 {
        *now += 100;
        let effects = broker.step(*now, Input::Tick);
        if let Some(found) = effects.iter().find_map(&wanted) {
            return Some(found);
        }
    }
    None
}

fn parks(client: ClientId) -> impl Fn(&Effect) -> Option<()> {
    move |it| matches!(it, Effect::Park { client: of, .. } if *of == client).then_some(())
}

fn ends(client: ClientId) -> impl Fn(&Effect) -> Option<Ended> {
    move |it| match it {
        Effect::End { client: of, why } if *of == client => Some(*why),
        _ => None,
    }
}

fn is_checkpoint(it: &Effect) -> bool {
    matches!(it, Effect::Checkpoint { client: ONE, .. })
}

fn is_restore(it: &Effect) -> bool {
    matches!(it, Effect::Restore { client: ONE, .. })
}

fn comes(it: &Effect) -> bool {
    matches!(it, Effect::Turn { client: OTHER, .. })
}

fn failed(client: ClientId, refused: bool, runs_on: bool) -> Input {
    Input::NotCheckpointed {
        client,
        refused,
        runs_on,
    }
}

fn place(broker: &Broker) -> Place {
    let clients = broker.view().clients;
    clients[0].place
}

/// The first process has been told to park, and has said that it cannot, with so many bytes on its GPU.
fn told(config: Config, bytes: u64) -> (Broker, u64, Vec<Effect>) {
    let mut broker = two(config);
    let mut now = 0;
    until(&mut broker, &mut now, parks(ONE)).expect("a turn ends");
    let pinned = Input::Pinned { client: ONE, bytes };
    let effects = broker.step(now, pinned);
    (broker, now, effects)
}

#[test]
fn the_driver_takes_it_out_and_brings_it_back_and_its_word_alone_counts() {
    let (mut broker, mut now, effects) = told(config(), 64 * GIB);
    assert!(effects.iter().any(is_checkpoint), "{effects:?}");
    assert!(broker.view().clients[0].by_driver);
    // Said again it is not begun again, and the process cannot say that it is done.
    let again = Input::Pinned {
        client: ONE,
        bytes: 0,
    };
    let (client, took_ms) = (ONE, 5);
    for lie in [
        again,
        Input::Parked { client, took_ms },
        Input::NotParked(ONE),
        Input::BroughtBack { client, took_ms },
    ] {
        let effects = broker.step(now, lie.clone());
        assert!(
            !effects.iter().any(|it| is_checkpoint(it) || comes(it)),
            "{lie:?}: {effects:?}"
        );
        assert_eq!(place(&broker), Place::Parking(Refuge::Host), "{lie:?}");
    }
    now += 2000;
    let effects = broker.step(now, Input::Checkpointed { client, took_ms });
    assert!(effects.iter().any(comes), "{effects:?}");
    now += 2000;
    let client = OTHER;
    broker.step(now, Input::Back { client, took_ms });
    // The other one has its turn, and parks by itself.
    until(&mut broker, &mut now, parks(OTHER)).expect("a turn ends");
    now += 2000;
    let effects = broker.step(now, Input::Parked { client, took_ms });
    assert!(effects.iter().any(is_restore), "{effects:?}");
    let client = ONE;
    broker.step(now, Input::Back { client, took_ms });
    assert_eq!(place(&broker), Place::Returning(Refuge::Host));
    broker.step(now, Input::BroughtBack { client, took_ms });
    assert_eq!(place(&broker), Place::Resident);
    assert!(!broker.view().clients[0].by_driver);
}

#[test]
fn where_the_site_has_not_turned_it_on_all_is_as_ever() {
    let (mut broker, mut now, effects) = told(Config::default(), 64 * GIB);
    assert!(!effects.iter().any(is_checkpoint), "{effects:?}");
    let why = Some(Ended::NotCheckpointed);
    assert_eq!(until(&mut broker, &mut now, ends(ONE)), why);
    // It is turned on and off while the daemon runs.
    let mut broker = two(Config::default());
    broker.step(0, Input::Checkpoints(true));
    let mut now = 0;
    until(&mut broker, &mut now, parks(ONE)).expect("a turn ends");
    let bytes = 64 * GIB;
    let effects = broker.step(now, Input::Pinned { client: ONE, bytes });
    assert!(effects.iter().any(is_checkpoint), "{effects:?}");
}

#[test]
fn who_was_not_told_to_park_is_left_alone() {
    let mut broker = two(config());
    for client in [ONE, OTHER, ClientId(9)] {
        let effects = broker.step(100, Input::Pinned { client, bytes: 0 });
        assert!(effects.is_empty(), "{effects:?}");
        let effects = broker.step(100, failed(client, true, true));
        assert!(effects.is_empty(), "{effects:?}");
    }
}

/// Contexts and small allocations go along, and have to have room in the job's memory.
#[test]
fn what_is_beyond_the_lease_counts_in_the_jobs_memory_or_is_not_moved() {
    let (broker, _, effects) = told(config(), 64 * GIB);
    assert!(effects.iter().any(is_checkpoint));
    assert_eq!(broker.view().host.promised, 128 * GIB);
    // The job has 64 GiB here, and all of them are kept for its lease.
    let (mut broker, mut now, effects) = told(config(), 65 * GIB);
    assert!(!effects.iter().any(is_checkpoint), "{effects:?}");
    let why = Some(Ended::NotCheckpointed);
    assert_eq!(until(&mut broker, &mut now, ends(ONE)), why);

    let mut broker = Broker::new(config());
    broker.step(0, Input::Supply(supply(1)));
    for id in [1, 2] {
        let mut spec = job(id, &[0], 64);
        spec.host += 2 * GIB;
        broker.step(0, Input::Job(spec));
        let ask = Input::Ask {
            client: ClientId(id),
            job: JobId(id),
            gpu: GpuId(0),
            bytes: 64 * GIB,
        };
        broker.step(0, ask);
    }
    let mut now = 0;
    until(&mut broker, &mut now, parks(ONE)).expect("a turn ends");
    let bytes = 65 * GIB;
    let effects = broker.step(now, Input::Pinned { client: ONE, bytes });
    assert!(effects.iter().any(is_checkpoint), "{effects:?}");
    assert_eq!(broker.view().host.promised, 129 * GIB);
}

#[test]
fn whom_the_driver_does_not_take_out_is_ended_and_nobody_comes_before_it_is_dead() {
    let (mut broker, now, _) = told(config(), 64 * GIB);
    let effects = broker.step(now, failed(ONE, true, true));
    let why = effects.iter().find_map(ends(ONE));
    assert_eq!(why, Some(Ended::NotCheckpointed));
    assert!(!effects.iter().any(comes), "{effects:?}");
    let effects = broker.step(now, Input::Gone(ONE));
    assert!(effects.iter().any(comes), "{effects:?}");
    // The same where nobody says anything.
    let (mut broker, mut now, _) = told(config(), 64 * GIB);
    let why = until(&mut broker, &mut now, ends(ONE));
    assert_eq!(why, Some(Ended::NotCheckpointed));
}

/// The driver cannot lock who is stopped: he is told to park anew when he goes on.
#[test]
fn who_is_stopped_meanwhile_is_not_ended_for_it() {
    let (mut broker, mut now, _) = told(config(), 64 * GIB);
    broker.step(now, Input::Suspended(JobId(1), true));
    let effects = broker.step(now, failed(ONE, false, true));
    assert!(effects.iter().find_map(ends(ONE)).is_none(), "{effects:?}");
    assert_eq!(place(&broker), Place::Resident);
    now += 100_000;
    let effects = broker.step(now, Input::Suspended(JobId(1), false));
    let parks = effects.iter().find_map(parks(ONE));
    assert!(parks.is_some(), "{effects:?}");
}

/// Whoever calls has a time that does not stand still while the process is stopped.
#[test]
fn what_failed_while_a_process_was_stopped_is_tried_again_when_it_goes_on() {
    let (client, took_ms) = (ONE, 5);
    // On its way out: locked, and nobody could let it go on.
    let (mut broker, mut now, _) = told(config(), 64 * GIB);
    broker.step(now, Input::Suspended(JobId(1), true));
    now += 100_000;
    broker.step(now, failed(ONE, false, false));
    assert_eq!(place(&broker), Place::Parking(Refuge::Host));
    assert!(broker.view().clients[0].by_driver);
    let effects = broker.step(now, Input::Tick);
    assert!(!effects.iter().any(is_checkpoint), "{effects:?}");
    broker.step(now, Input::Suspended(JobId(1), false));
    let effects = broker.step(now, Input::Tick);
    assert!(effects.iter().any(is_checkpoint), "{effects:?}");
    broker.step(now, Input::Checkpointed { client, took_ms });
    let client = OTHER;
    broker.step(now, Input::Back { client, took_ms });
    until(&mut broker, &mut now, parks(OTHER)).expect("a turn ends");
    // On its way back: nobody hears that it failed.
    let effects = broker.step(now, Input::Parked { client, took_ms });
    assert!(effects.iter().any(is_restore), "{effects:?}");
    broker.step(now, Input::Suspended(JobId(1), true));
    now += 100_000;
    broker.step(now, Input::Suspended(JobId(1), false));
    let effects = broker.step(now, Input::Tick);
    assert!(effects.iter().any(is_restore), "{effects:?}");
    assert!(effects.iter().find_map(ends(ONE)).is_none(), "{effects:?}");
    // Once its time is over it is ended.
    let why = until(&mut broker, &mut now, ends(ONE));
    assert_eq!(why, Some(Ended::NotBack));
}

#[test]
fn what_was_not_refused_is_tried_again_until_its_time_is_over() {
    let (mut broker, mut now, _) = told(config(), 64 * GIB);
    let effects = broker.step(now, failed(ONE, false, true));
    assert!(effects.iter().find_map(ends(ONE)).is_none(), "{effects:?}");
    assert_eq!(place(&broker), Place::Parking(Refuge::Host));
    now += 100;
    let effects = broker.step(now, Input::Tick);
    assert!(effects.iter().any(is_checkpoint), "{effects:?}");
    let why = until(&mut broker, &mut now, ends(ONE));
    assert_eq!(why, Some(Ended::NotCheckpointed));
}

/// What it takes of host memory could not be promised.
#[test]
fn of_whom_nobody_knows_what_he_has_the_driver_takes_nothing() {
    let (mut broker, now, effects) = told(config(), 0);
    assert!(!effects.iter().any(is_checkpoint), "{effects:?}");
    // It was measured only now.
    let bytes = 64 * GIB;
    let effects = broker.step(now, Input::Pinned { client: ONE, bytes });
    assert!(effects.iter().any(is_checkpoint), "{effects:?}");
}

#[test]
fn who_asks_while_the_driver_has_him_has_what_he_had() {
    let (mut broker, now, _) = told(config(), 64 * GIB);
    let (client, took_ms) = (ONE, 5);
    for parked in [false, true] {
        if parked {
            broker.step(now, Input::Checkpointed { client, took_ms });
        }
        let before = broker.view().clients[0].leases.clone();
        for bytes in [0, GIB, 64 * GIB, 65 * GIB] {
            let ask = Input::Ask {
                client,
                job: JobId(1),
                gpu: GpuId(0),
                bytes,
            };
            let effects = broker.step(now, ask);
            let answered = effects.iter().find_map(|it| match it {
                Effect::Answer { answer, .. } => Some(answer.expect("what it has").hbm),
                _ => None,
            });
            assert_eq!(answered, Some(64 * GIB), "{bytes}");
            assert_eq!(broker.view().clients[0].leases, before, "{bytes}");
        }
    }
}

/// What the journal has, as a daemon that was started anew reads it.
fn again(broker: &Broker, now: u64) -> (Broker, Vec<Effect>) {
    let lines: Vec<String> = broker.journal().iter().map(Record::to_string).collect();
    let records = lines.iter().map(|line| line.parse());
    let records = records.collect::<Result<_, _>>();
    let mut again = Broker::new(Config::default());
    again.step(now, Input::Supply(supply(1)));
    let effects = again.step(now, Input::Restored(records.expect("a journal")));
    (again, effects)
}

#[test]
fn a_daemon_that_was_started_anew_has_the_driver_go_on() {
    let (broker, mut now, _) = told(config(), 64 * GIB);
    let (mut broker, effects) = again(&broker, now);
    assert!(effects.iter().any(is_checkpoint), "{effects:?}");
    // Nobody else is there again yet, so it comes back at once.
    let (client, took_ms) = (ONE, 5);
    let effects = broker.step(now, Input::Checkpointed { client, took_ms });
    assert!(effects.iter().any(is_restore), "{effects:?}");
    let (mut broker, effects) = again(&broker, now);
    assert!(effects.iter().any(is_restore), "{effects:?}");
    // From when it works it has the usual time to be there again.
    broker.step(now, Input::BroughtBack { client, took_ms });
    let since = now;
    assert_eq!(until(&mut broker, &mut now, ends(ONE)), Some(Ended::Away));
    assert!(now - since >= Config::default().away_ms);
}

/// Wherever it says that its memory is when it returns, it is where the driver has it.
#[test]
fn who_returns_while_the_driver_has_him_is_believed_nothing() {
    for at in [At::Gpu, At::Parked(Refuge::Host), At::Parked(Refuge::Nvme)] {
        let (mut broker, now, _) = told(config(), 64 * GIB);
        broker.step(now, Input::Away(ONE));
        let effects = broker.step(now, Input::Return(ONE, at));
        assert!(effects.is_empty(), "{at:?}: {effects:?}");
        assert_eq!(place(&broker), Place::Parking(Refuge::Host));
    }
}

#[test]
fn nothing_is_left_whatever_is_killed_while_the_driver_works() {
    let kills = [
        Kill::Client,
        Kill::Caller,
        Kill::Broker,
        Kill::Step,
        Kill::Node,
    ];
    for kill in kills {
        for moment in [Moment::Checkpointing, Moment::Restoring] {
            for count in 0..6 {
                let jobs = [job(1, &[0], 64), job(2, &[0], 64)];
                let config = Config {
                    quantum_ms: 500,
                    switches: 10,
                    rate: 1 << 40,
                    away_ms: 3000,
                    end_ms: 300,
                    ..config()
                };
                let mut world = World::new(count, config, supply(1));
                (world.pins, world.ms_per_gib) = (1000, 1);
                for mut spec in jobs {
                    spec.host += 2 * GIB;
                    world.job(spec.clone());
                    world.process(spec.job, vec![(GpuId(0), spec.bytes_per_gpu)], 20_000);
                }
                world.plan = Some((kill, moment, count));
                let done = world.run(200_000).and_then(|()| world.left());
                done.unwrap_or_else(|why| panic!("{kill:?} at {moment:?}, {count}: {why}"));
                assert!(world.plan.is_none(), "{kill:?} at {moment:?}, {count}");
                assert!(world.seen.checkpoints > 0);
            }
        }
    }
}
