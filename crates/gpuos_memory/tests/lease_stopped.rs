//! Processes that are stopped while their GPU is had in turns: none is ended for what it cannot hear, its turn goes to others, and nobody
//! keeps a GPU for himself by it.

use gpuos_memory::lease::{
    Broker, ClientId, Config, Effect, Ended, GpuId, Input, JobId, JobSpec, Place, Refuge, Supply,
};

use crate::lease_support::GIB;

const GPU: GpuId = GpuId(0);

/// Jobs of one process each that want so many GiB of one GPU of 80, in turns. The first has it.
pub fn broker(grants: &[u64]) -> Broker {
    let config = Config {
        rate: u64::MAX,
        ..Config::default()
    };
    let mut broker = Broker::new(config);
    broker.step(
        0,
        Input::Supply(Supply {
            gpus: vec![(GPU, 80 * GIB)],
            host: 400 * GIB,
            nvme: 0,
            nvme_counted: 0,
        }),
    );
    for (id, grant) in (1..).zip(grants) {
        broker.step(
            0,
            Input::Job(JobSpec {
                job: JobId(id),
                gpus: vec![GPU],
                hbm_per_gpu: 80 * GIB,
                host: grant * GIB,
                nvme: 0,
                bytes_per_gpu: grant * GIB,
                timeslice: true,
                account: None,
                rank: 0,
                guaranteed: 0,
            }),
        );
        let bytes = grant * GIB;
        let (client, job) = (ClientId(id), JobId(id));
        let ask = Input::Ask {
            client,
            job,
            gpu: GPU,
            bytes,
        };
        broker.step(0, ask);
    }
    broker
}

/// Lets time go by, four times a second; what is wanted meanwhile.
pub fn pass(broker: &mut Broker, now: &mut u64, ms: u64) -> Vec<Effect> {
    let end = *now + ms;
    let mut all = Vec::new();
    while *now < end {
        *now = (*now + 250).min(end);
        all.extend(broker.step(*now, Input::Tick));
    }
    all
}

pub fn ended(effects: &[Effect]) -> Vec<(u64, Ended)> {
    let end = |it: &Effect| match it {
        Effect::End { client, why } => Some((client.0, *why)),
        _ => None,
    };
    effects.iter().filter_map(end).collect()
}

pub fn parks(effects: &[Effect], id: u64) -> bool {
    let is = |it: &Effect| matches!(it, Effect::Park { client, .. } if client.0 == id);
    effects.iter().any(is)
}

pub fn comes(effects: &[Effect], id: u64) -> bool {
    let is = |it: &Effect| matches!(it, Effect::Turn { client, .. } if client.0 == id);
    effects.iter().any(is)
}

pub fn place(broker: &Broker, id: u64) -> Place {
    let view = broker.view();
    let mut clients = view.clients.iter();
    let one = clients.find(|one| one.client == ClientId(id));
    one.expect("it is there").place
}

pub fn parked(broker: &mut Broker, now: u64, id: u64) -> Vec<Effect> {
    let client = ClientId(id);
    broker.step(now, Input::Parked { client, took_ms: 1 })
}

#[test]
fn a_suspended_job_is_never_ended_and_parks_when_it_goes_on() {
    let mut broker = broker(&[60, 60]);
    let mut now = 1000;
    broker.step(now, Input::Suspended(JobId(1), true));
    let told = pass(&mut broker, &mut now, 4 * 3_600_000);
    assert_eq!(ended(&told), []);
    assert!(!parks(&told, 1), "it does not hear");
    assert!(!comes(&told, 2), "there is no room yet");
    assert_eq!(place(&broker, 1), Place::Resident);
    assert!(broker.view().clients[0].stopped);
    let told = broker.step(now, Input::Suspended(JobId(1), false));
    assert!(parks(&told, 1), "its turn is over");
    let told = parked(&mut broker, now + 100, 1);
    assert!(comes(&told, 2));
}

#[test]
fn what_it_was_told_before_it_has_the_time_for_that_was_left() {
    let mut broker = broker(&[60, 60]);
    let mut now = 0;
    while place(&broker, 1) == Place::Resident {
        pass(&mut broker, &mut now, 250);
    }
    assert_eq!(place(&broker, 1), Place::Parking(Refuge::Host));
    // Ten seconds are given.
    let told = pass(&mut broker, &mut now, 6000);
    assert_eq!(ended(&told), []);
    broker.step(now, Input::Suspended(JobId(1), true));
    let told = pass(&mut broker, &mut now, 3_600_000);
    assert_eq!(ended(&told), []);
    broker.step(now, Input::Suspended(JobId(1), false));
    let told = pass(&mut broker, &mut now, 3500);
    assert_eq!(ended(&told), []);
    assert!(!parks(&told, 1), "it was told");
    let told = pass(&mut broker, &mut now, 1000);
    assert_eq!(ended(&told), [(1, Ended::Deaf)]);
}

#[test]
fn the_turn_of_one_that_is_stopped_while_it_waits_is_passed_over() {
    let mut broker = broker(&[60, 60, 60]);
    let mut now = 0;
    broker.step(now, Input::Stopped(ClientId(2), true));
    let told = pass(&mut broker, &mut now, 31_000);
    assert!(parks(&told, 1) && !comes(&told, 2));
    let told = parked(&mut broker, now, 1);
    assert!(comes(&told, 3) && !comes(&told, 2));
    broker.step(
        now,
        Input::Back {
            client: ClientId(3),
            took_ms: 1,
        },
    );
    // It keeps its lease, and has its turn as soon as it goes on.
    assert_eq!(place(&broker, 2), Place::Parked(Refuge::Host));
    broker.step(now, Input::Stopped(ClientId(2), false));
    let told = pass(&mut broker, &mut now, 31_000);
    assert!(parks(&told, 3));
    let told = parked(&mut broker, now, 3);
    assert!(comes(&told, 2));
    assert_eq!(ended(&told), []);
}

#[test]
fn others_come_where_there_is_room_beside_what_it_has() {
    let mut broker = broker(&[30, 60, 50]);
    let mut now = 0;
    let mut told = broker.step(now, Input::Idle(ClientId(2)));
    told.extend(broker.step(now, Input::Suspended(JobId(1), true)));
    told.extend(pass(&mut broker, &mut now, 5000));
    assert!(comes(&told, 3), "{told:?}");
    assert_eq!(place(&broker, 1), Place::Resident);
}

#[test]
fn who_stops_himself_keeps_others_waiting_for_a_bounded_time() {
    // Nobody says yet whether it was slurmctld: nothing is done.
    let mut one = broker(&[60, 60]);
    let mut now = 0;
    one.step(now, Input::Stopped(ClientId(1), true));
    assert_eq!(ended(&pass(&mut one, &mut now, 3_600_000)), []);
    // It was not.
    one.step(now, Input::Suspended(JobId(1), false));
    assert_eq!(ended(&pass(&mut one, &mut now, 599_000)), []);
    assert_eq!(
        ended(&pass(&mut one, &mut now, 2000)),
        [(1, Ended::Stopped)]
    );
    // Who goes on for a moment begins anew, with the time for what it is told.
    let mut one = broker(&[60, 60]);
    let mut now = 0;
    for _ in 0..2 {
        one.step(now, Input::Stopped(ClientId(1), true));
        one.step(now, Input::Suspended(JobId(1), false));
        assert_eq!(ended(&pass(&mut one, &mut now, 500_000)), []);
        one.step(now, Input::Stopped(ClientId(1), false));
        assert_eq!(ended(&pass(&mut one, &mut now, 1000)), []);
    }
    // Each moment counts against its time to park.
    let mut all = Vec::new();
    for _ in 0..20 {
        one.step(now, Input::Stopped(ClientId(1), false));
        all.extend(pass(&mut one, &mut now, 1000));
        one.step(now, Input::Stopped(ClientId(1), true));
        all.extend(pass(&mut one, &mut now, 1000));
    }
    assert_eq!(ended(&all)[0], (1, Ended::Deaf));
    // While nobody waits it may stay stopped, and so may one that has nothing on the GPU.
    let mut alone = broker(&[60]);
    let mut now = 0;
    alone.step(now, Input::Stopped(ClientId(1), true));
    alone.step(now, Input::Suspended(JobId(1), false));
    assert_eq!(ended(&pass(&mut alone, &mut now, 7_200_000)), []);
    let mut waits = broker(&[60, 60]);
    waits.step(now, Input::Stopped(ClientId(2), true));
    waits.step(now, Input::Suspended(JobId(2), false));
    let told = pass(&mut waits, &mut now, 7_200_000);
    assert!(ended(&told).iter().all(|(id, _)| *id != 2));
}

#[test]
fn one_that_is_stopped_over_a_restart_is_not_taken_for_gone() {
    let mut before = broker(&[60, 60]);
    let mut now = 1000;
    before.step(now, Input::Suspended(JobId(1), true));
    let mut after = Broker::new(Config::default());
    let supply = Supply {
        gpus: vec![(GPU, 80 * GIB)],
        host: 400 * GIB,
        nvme: 0,
        nvme_counted: 0,
    };
    after.step(now, Input::Supply(supply));
    after.step(now, Input::Restored(before.journal()));
    after.step(now, Input::Stopped(ClientId(1), true));
    let told = pass(&mut after, &mut now, 100_000);
    let ended_now = ended(&told);
    assert!(!ended_now.is_empty() && ended_now.iter().all(|it| *it == (2, Ended::Away)));
    after.step(now, Input::Stopped(ClientId(1), false));
    let told = pass(&mut after, &mut now, 29_000);
    assert!(ended(&told).iter().all(|(id, _)| *id == 2));
    let told = pass(&mut after, &mut now, 2000);
    assert!(ended(&told).contains(&(1, Ended::Away)));
}

#[test]
fn contexts_of_programs_have_room_beside_those_in_turns() {
    let mut fits = broker(&[40, 40]);
    assert!(!fits.view().gpus[0].sliced);
    let told = fits.step(10, Input::Reserve(GIB));
    assert!(fits.view().gpus[0].sliced, "{told:?}");
    assert_eq!(fits.holders(GPU).len(), 1);
}

#[test]
fn one_for_which_there_is_no_room_beside_it_keeps_nobody_waiting() {
    // The second would be next and does not fit beside the first, the third does.
    let mut broker = broker(&[60, 60, 20]);
    let mut now = 1000;
    let mut told = broker.step(now, Input::Suspended(JobId(1), true));
    told.extend(pass(&mut broker, &mut now, 1000));
    assert!(comes(&told, 3) && !comes(&told, 2), "{told:?}");
    let client = ClientId(3);
    broker.step(now, Input::Back { client, took_ms: 1 });
    assert_eq!(ended(&pass(&mut broker, &mut now, 600_000)), []);
    assert_eq!(place(&broker, 3), Place::Resident);
    // When the first goes on they take turns as before.
    let mut told = broker.step(now, Input::Suspended(JobId(1), false));
    for client in [1, 3] {
        if place(&broker, client) == Place::Parking(Refuge::Host) {
            told.extend(parked(&mut broker, now, client));
        }
    }
    assert!(comes(&told, 2), "{told:?}");
}

#[test]
fn a_gpu_that_became_smaller_is_not_kept_for_who_does_not_fit() {
    let mut broker = broker(&[60, 60, 30]);
    let mut now = 0;
    let told = pass(&mut broker, &mut now, 31_000);
    assert!(parks(&told, 1));
    // It is the second's turn, when others take half of the GPU.
    let less = Supply {
        gpus: vec![(GPU, 40 * GIB)],
        host: 400 * GIB,
        nvme: 0,
        nvme_counted: 0,
    };
    broker.step(now, Input::Supply(less));
    let mut told = parked(&mut broker, now, 1);
    told.extend(pass(&mut broker, &mut now, 1000));
    assert!(comes(&told, 3) && !comes(&told, 2), "{told:?}");
}
