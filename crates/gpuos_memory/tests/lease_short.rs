//! A job that is short of its own memory, as its control group has it: what is parked of it goes to NVMe, and nobody is ended for it.

use gpuos_memory::lease::{
    At, Broker, ClientId, Config, Demote, Effect, Ended, GpuId, Input, JobId, Place, Refuge, Supply,
};

use crate::lease_pressure::{between, node, pressure};
use crate::lease_support::GIB;

#[test]
fn a_job_that_is_short_of_its_own_memory_is_not_ended_for_keeping_it() {
    let mut broker = node(400, [2, 1, 3], 0);
    let mut now = 200_000;
    let short = Input::JobPressure {
        job: JobId(3),
        free: 1,
        total: 1000,
        stalled: 0,
    };
    let mut effects = broker.step(now, short);
    while now < 300_000 {
        now += 100;
        effects.extend(broker.step(now, Input::Tick));
    }
    let of = |it: &&Effect| {
        matches!(
            it,
            Effect::Demote { .. } | Effect::Park { .. } | Effect::End { .. }
        )
    };
    let told: Vec<&Effect> = effects.iter().filter(of).collect();
    assert!(matches!(told[..], [Effect::Demote { .. }]), "{told:?}");
    // Nobody waits for it any more.
    pressure(&mut broker, now, 930);
    let told: Vec<Effect> = (0..20)
        .flat_map(|tick| broker.step(now + tick * 100, Input::Tick))
        .collect();
    let clean = |it: &Effect| matches!(it, Effect::Demote { client, .. } if client.0 == 3);
    assert!(told.iter().any(clean), "{told:?}");
}

/// A job in turns that is short of its own memory: what of it is parked is to go to NVMe. Answers until when.
fn short_of_its_own(broker: &mut Broker, now: u64, job: u64) -> u64 {
    let short = Input::JobPressure {
        job: JobId(job),
        free: 1,
        total: 1000,
        stalled: 0,
    };
    let mut effects = broker.step(now, short);
    for tick in 1..200 {
        effects.extend(broker.step(now + tick * 100, Input::Tick));
        let asked = effects.drain(..).find_map(|it| match it {
            Effect::Demote {
                client,
                what: Demote::Dirty,
                deadline_ms,
            } if client.0 == job => Some(deadline_ms),
            Effect::Demote { client, .. } => panic!("{client:?}"),
            _ => None,
        });
        if let Some(until) = asked {
            return until;
        }
    }
    panic!("it is not asked");
}

/// NVMe and host memory that are promised, and what of process 2 is on its way, in GiB.
fn promised(broker: &Broker) -> (u64, u64, u64) {
    let view = broker.view();
    let bytes = [
        view.nvme.promised,
        view.host.promised,
        view.clients[1].leaving,
    ];
    let [nvme, host, leaving] = bytes.map(|bytes| bytes / GIB);
    (nvme, host, leaving)
}

#[test]
fn who_is_late_with_what_his_own_job_wants_on_nvme_is_left() {
    // 64 of each that takes turns lie or go to host memory, and 40 of the third.
    let asked = || {
        let mut broker = node(400, [2, 1, 3], 0);
        let until = short_of_its_own(&mut broker, 200_000, 2);
        assert_eq!(promised(&broker), (64, 168, 64));
        let late = between(&mut broker, until - 1000, until + 100_000);
        assert_eq!(late, [], "nobody waits for it, and it is asked once");
        assert_eq!(promised(&broker), (64, 168, 64), "nobody knows where it is");
        (broker, until + 100_000)
    };
    let client = ClientId(2);
    // It has done all of it, some, or none.
    for moved in [64, 10, 0] {
        let (mut broker, now) = asked();
        let bytes = moved * GIB;
        broker.step(now, Input::Demoted { client, bytes });
        assert_eq!(promised(&broker), (moved, 168 - moved, 0));
    }
    // The node becomes short, too: each step has whom it finds.
    let (mut broker, now) = asked();
    pressure(&mut broker, now, 930);
    let steps = between(&mut broker, now, now + 9000);
    let has = |wanted: &dyn Fn(&Effect) -> bool| steps.iter().filter(|it| wanted(it)).count();
    let clean = |it: &Effect| matches!(it, Effect::Demote { client, what: Demote::Clean, .. } if client.0 != 2);
    assert_eq!(has(&clean), 2, "{steps:?}");
    assert_eq!(has(&|it| matches!(it, Effect::End { .. })), 0, "{steps:?}");
    for other in [1, 3] {
        let (client, bytes) = (ClientId(other), 0);
        broker.step(now + 9000, Input::Demoted { client, bytes });
    }
    let steps = between(&mut broker, now + 9000, now + 16_000);
    let parks =
        |it: &Effect| matches!(it, Effect::Park { client, to: Refuge::Nvme, .. } if client.0 == 1);
    assert!(steps.iter().any(parks), "{steps:?}");
}

#[test]
fn who_is_late_with_what_his_own_job_wants_on_nvme_has_his_turn() {
    let parks = |effects: &[Effect], id: u64| {
        let parks = |it: &Effect| matches!(it, Effect::Park { client, .. } if client.0 == id);
        effects.iter().any(parks)
    };
    let late = || {
        let mut broker = node(400, [2, 1, 3], 0);
        let until = short_of_its_own(&mut broker, 200_000, 2);
        between(&mut broker, until - 1000, until + 1000);
        let now = until + 1000;
        let mut effects = broker.step(now, Input::Busy(ClientId(2)));
        effects.extend(between(&mut broker, now, now + 5000));
        assert!(parks(&effects, 1), "{effects:?}");
        let (client, took_ms) = (ClientId(1), 1);
        broker.step(now + 5000, Input::Parked { client, took_ms });
        assert_eq!(
            broker.view().clients[1].place,
            Place::Returning(Refuge::Host)
        );
        assert_eq!(promised(&broker), (64, 168, 64));
        (broker, now + 5000)
    };
    let (client, took_ms) = (ClientId(2), 1);
    // It says nothing of NVMe, and is back.
    let (mut broker, now) = late();
    broker.step(now, Input::Back { client, took_ms });
    assert_eq!(promised(&broker), (0, 168, 0));
    assert_eq!(between(&mut broker, now, now + 60_000), []);
    // Its turn is taken back before it is there: it says late what had gone to NVMe, and has all of it in host memory at last.
    let (mut broker, now) = late();
    broker.step(now, Input::Stopped(client, true));
    broker.step(now, Input::Busy(ClientId(1)));
    broker.step(now, Input::Idle(client));
    let effects = broker.step(now, Input::Stopped(client, false));
    assert!(parks(&effects, 2), "{effects:?}");
    let bytes = 64 * GIB;
    broker.step(now, Input::Demoted { client, bytes });
    assert_eq!(promised(&broker), (64, 168, 64));
    broker.step(now, Input::Parked { client, took_ms });
    assert_eq!(promised(&broker), (0, 168, 0));
    // Who does not come for his turn keeps others from the GPU.
    let (mut broker, now) = late();
    broker.step(now, Input::Busy(ClientId(1)));
    let effects = between(&mut broker, now, now + 120_000);
    let why = Ended::NotBack;
    assert!(
        effects.contains(&Effect::End { client, why }),
        "{effects:?}"
    );
}

#[test]
fn after_a_restart_nobody_waits_for_it_either() {
    let mut broker = node(400, [2, 1, 3], 0);
    let until = short_of_its_own(&mut broker, 200_000, 2);
    let supply = Input::Supply(Supply {
        gpus: vec![(GpuId(0), 80 * GIB), (GpuId(1), 80 * GIB)],
        host: 400 * GIB,
        nvme: 400 * GIB,
        nvme_counted: 0,
    });
    let mut again = Broker::new(Config::default());
    again.step(until, supply);
    again.step(until, Input::Restored(broker.journal()));
    let at = [At::Gpu, At::Parked(Refuge::Host), At::Gpu];
    for (client, at) in (1..).map(ClientId).zip(at) {
        again.step(until, Input::Return(client, at));
        again.step(until, Input::Idle(client));
    }
    let effects = between(&mut again, until, until + 200_000);
    let ends = |it: &Effect| matches!(it, Effect::End { .. });
    assert!(!effects.iter().any(ends), "{effects:?}");
    assert_eq!(promised(&again), (64, 168, 64));
}
