//! NVMe for what is parked: who is promised how much of it, and who cannot go there.

use gpuos_memory::lease::{
    Broker, ClientId, Config, Effect, Ended, Input, JobSpec, Refuge, Refused, Supply,
};

use crate::lease::{self, ask, broker, granted, in_turns, supply};
use crate::lease_support::GIB;

#[test]
fn host_memory_and_nvme_share_what_is_parked() {
    let mut broker = broker(30, 100);
    broker.step(0, Input::Job(in_turns(1, 64, 64)));
    broker.step(0, Input::Job(in_turns(2, 64, 64)));
    assert_eq!(ask(&mut broker, 1, 1, 64), granted(64, 0, true));
    assert_eq!(ask(&mut broker, 2, 2, 64), granted(64, 0, false));
    let view = broker.view();
    assert_eq!(view.host.promised, 30 * GIB);
    assert_eq!(view.nvme.promised, 98 * GIB);
    let parks = (1..2000).find_map(|tick| {
        let effects = broker.step(tick * 100, Input::Tick);
        effects.into_iter().find_map(|it| match it {
            Effect::Park { to, nvme, .. } => Some((to, nvme)),
            _ => None,
        })
    });
    assert_eq!(parks, Some((Refuge::Host, 34 * GIB)));
}

#[test]
fn nvme_that_slurm_counts_is_for_those_to_whom_it_gave_it() {
    let counted = |all, counted| Supply {
        nvme_counted: counted * GIB,
        ..supply(300, all)
    };
    let with = |job, nvme| JobSpec {
        nvme: nvme * GIB,
        ..in_turns(job, 64, 10)
    };
    let mut broker = Broker::new(Config::default());
    broker.step(0, Input::Supply(counted(200, 140)));
    for job in 1..4 {
        broker.step(0, Input::Job(with(job, [64, 0, 70][job as usize - 1])));
    }
    // Its own NVMe comes before its host memory.
    assert_eq!(ask(&mut broker, 1, 1, 64), granted(64, 0, true));
    let promised = |broker: &Broker| {
        let view = broker.view();
        (view.host.promised / GIB, view.nvme.promised / GIB)
    };
    assert_eq!(promised(&broker), (0, 64));
    // Who has none finds what is not counted: 60 GiB, and 10 of host memory.
    assert_eq!(ask(&mut broker, 2, 2, 64), granted(64, 0, false));
    assert_eq!(promised(&broker), (10, 118));
    broker.step(0, Input::Job(with(4, 0)));
    let lacks = Refused::NoRefuge { lacks: 48 * GIB };
    assert_eq!(ask(&mut broker, 4, 4, 64), Err(lacks));
    // What the third has is there all the same, whoever came first.
    assert_eq!(ask(&mut broker, 3, 3, 64), granted(64, 0, false));
    assert_eq!(promised(&broker), (10, 182));
    // After a restart it is so, too.
    let mut again = Broker::new(Config::default());
    again.step(0, Input::Supply(counted(200, 140)));
    again.step(0, Input::Restored(broker.journal()));
    assert_eq!(promised(&again), (10, 182));
    again.step(0, Input::Gone(ClientId(3)));
    assert_eq!(ask(&mut again, 4, 4, 64), Err(lacks));
    assert_eq!(ask(&mut again, 5, 3, 64), granted(64, 0, false));
    // Where more is counted than there is nobody is promised what is not there.
    let mut broker = Broker::new(Config::default());
    broker.step(0, Input::Supply(counted(100, 200)));
    broker.step(0, Input::Job(with(1, 64)));
    broker.step(0, Input::Job(with(2, 64)));
    assert_eq!(ask(&mut broker, 1, 1, 64), granted(64, 0, true));
    let lacks = Refused::NoRefuge { lacks: 28 * GIB };
    assert_eq!(ask(&mut broker, 2, 2, 64), Err(lacks));
}

/// Its memory is for its programs, however much of it there is.
#[test]
fn who_has_nvme_of_its_own_and_cannot_go_there_is_ended() {
    let mut broker = Broker::new(Config::default());
    let all = Supply {
        nvme_counted: 100 * GIB,
        ..supply(300, 200)
    };
    broker.step(0, Input::Supply(all));
    let own = JobSpec {
        nvme: 64 * GIB,
        ..in_turns(1, 64, 100)
    };
    broker.step(0, Input::Job(own));
    broker.step(0, Input::Job(in_turns(2, 64, 64)));
    assert_eq!(ask(&mut broker, 1, 1, 64), granted(64, 0, true));
    assert_eq!(ask(&mut broker, 2, 2, 64), granted(64, 0, false));
    let parks = |it: &Effect| matches!(it, Effect::Park { client: ClientId(1), nvme, .. } if *nvme == 64 * GIB);
    let told = |tick: &u64| {
        let effects = broker.step(tick * 100, Input::Tick);
        effects.iter().any(parks)
    };
    let now = (1..2000).find(told).expect("its turn ends") * 100;
    let effects = broker.step(now + 1, Input::NotParked(ClientId(1)));
    let ends = Effect::End {
        client: ClientId(1),
        why: Ended::NoNvme,
    };
    assert!(effects.contains(&ends), "{effects:?}");
}

/// Two processes in turns of which the first was told to park, a part of it on NVMe. Host memory beyond that is `host` GiB.
fn parks_on_nvme(host: u64) -> (Broker, u64) {
    let mut broker = broker(host, 100);
    broker.step(0, Input::Job(in_turns(1, 64, 64)));
    broker.step(0, Input::Job(in_turns(2, 64, 10)));
    assert_eq!(ask(&mut broker, 2, 2, 64), granted(64, 0, true));
    assert_eq!(ask(&mut broker, 1, 1, 64), granted(64, 0, false));
    let told = |effects: Vec<Effect>| {
        let parks = |it: &Effect| matches!(it, Effect::Park { client: ClientId(2), nvme, .. } if *nvme == 54 * GIB);
        effects.iter().any(parks)
    };
    let told = (1..2000).find(|tick| told(broker.step(tick * 100, Input::Tick)));
    (broker, told.expect("its turn ends") * 100)
}

#[test]
fn who_cannot_go_to_nvme_parks_in_host_memory_or_is_ended() {
    // Its job's memory has no room.
    let (mut broker, now) = parks_on_nvme(200);
    let effects = broker.step(now + 1, Input::NotParked(ClientId(2)));
    let ends = Effect::End {
        client: ClientId(2),
        why: Ended::NoNvme,
    };
    assert!(effects.contains(&ends), "{effects:?}");
    // It has, once another of its processes is gone.
    let mut broker = lease::broker(200, 100);
    broker.step(0, Input::Job(in_turns(1, 64, 64)));
    broker.step(0, Input::Job(in_turns(2, 80, 64)));
    assert_eq!(ask(&mut broker, 3, 2, 16), granted(16, 0, true));
    assert_eq!(ask(&mut broker, 2, 2, 64), granted(64, 0, true));
    broker.step(0, Input::Gone(ClientId(3)));
    assert_eq!(ask(&mut broker, 1, 1, 64), granted(64, 0, false));
    let parks = |effects: &[Effect]| {
        effects.iter().find_map(|it| match it {
            Effect::Park { client, nvme, .. } if client.0 == 2 => Some(*nvme / GIB),
            _ => None,
        })
    };
    let told = (1..2000).find(|tick| parks(&broker.step(tick * 100, Input::Tick)) == Some(16));
    let now = told.expect("its turn ends") * 100;
    let effects = broker.step(now + 1, Input::NotParked(ClientId(2)));
    assert_eq!(parks(&effects), Some(0), "{effects:?}");
    assert_eq!(broker.view().clients[1].nvme, 0);
    // A word that nobody asked for changes nothing.
    broker.step(
        now + 2,
        Input::Parked {
            client: ClientId(2),
            took_ms: 1,
        },
    );
    let before = broker.view();
    broker.step(now + 3, Input::NotParked(ClientId(2)));
    broker.step(now + 3, Input::NotParked(ClientId(77)));
    assert_eq!(broker.view(), before);
}
