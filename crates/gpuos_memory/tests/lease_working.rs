//! Processes that have given their GPUs more work than a switch may take: they have the time that the site gives, and nobody is ended for whom
//! nobody waits.

use gpuos_memory::lease::{Broker, ClientId, Effect, Ended, Input, JobId, Place, Refuge};

use crate::lease_stopped::{broker, comes, ended, parked, parks, pass, place};

const FIRST: ClientId = ClientId(1);

/// Two jobs that do not fit beside each other, from when the first was told to park.
fn switching() -> (Broker, u64) {
    let mut broker = broker(&[60, 60]);
    let mut now = 0;
    while place(&broker, 1) == Place::Resident {
        pass(&mut broker, &mut now, 250);
    }
    assert_eq!(place(&broker, 1), Place::Parking(Refuge::Host));
    (broker, now)
}

/// Says each second for so many of them that it works.
fn works(broker: &mut Broker, now: &mut u64, seconds: u64) -> Vec<Effect> {
    let mut all = Vec::new();
    for _ in 0..seconds {
        all.extend(pass(broker, now, 1000));
        all.extend(broker.step(*now, Input::Working(FIRST)));
    }
    all
}

#[test]
fn a_first_switch_waits_as_long_as_the_work_takes() {
    let (mut broker, mut now) = switching();
    let told = works(&mut broker, &mut now, 300);
    assert_eq!(ended(&told), []);
    assert!(!comes(&told, 2), "the GPU is not free");
    let before = broker.view().clients[0].gpu_ms;
    let told = parked(&mut broker, now, 1);
    assert!(comes(&told, 2));
    // It had the GPU meanwhile, and others have theirs for it.
    let more = broker.view().clients[0].gpu_ms - before;
    assert!((299_000..=301_000).contains(&more), "{more}");
}

#[test]
fn who_says_nothing_any_more_is_ended_after_the_usual_time() {
    let (mut broker, mut now) = switching();
    works(&mut broker, &mut now, 60);
    let told = pass(&mut broker, &mut now, 9_000);
    assert_eq!(ended(&told), []);
    let told = pass(&mut broker, &mut now, 2_000);
    assert_eq!(ended(&told), [(1, Ended::Deaf)]);
}

#[test]
fn work_that_does_not_end_ends_with_the_time_that_the_site_gives() {
    let (mut broker, mut now) = switching();
    let turns = |seconds: u64| Input::Turns {
        quantum_ms: 30_000,
        work_ms: seconds * 1000,
    };
    broker.step(now, turns(90));
    let told = works(&mut broker, &mut now, 89);
    assert_eq!(ended(&told), []);
    let told = works(&mut broker, &mut now, 5);
    let why = Ended::Works { seconds: 90 };
    assert_eq!(ended(&told)[0], (1, why));
    let text = why.to_string();
    for word in ["90 s", "switch-seconds", "gpuos.toml", "--gpus=1"] {
        assert!(text.contains(word), "{text}");
    }
}

#[test]
fn nobody_is_ended_for_whom_nobody_waits() {
    // The other one has ended, has no work, or is stopped.
    let gone: [fn(&mut Broker, u64); 4] = [
        |broker, now| drop(broker.step(now, Input::Gone(ClientId(2)))),
        |broker, now| drop(broker.step(now, Input::Idle(ClientId(2)))),
        |broker, now| drop(broker.step(now, Input::Suspended(JobId(2), true))),
        |broker, now| {
            broker.step(now, Input::JobGone(JobId(2)));
            broker.step(now, Input::Gone(ClientId(2)));
        },
    ];
    for (case, gone) in gone.into_iter().enumerate() {
        let (mut broker, mut now) = switching();
        works(&mut broker, &mut now, 3);
        gone(&mut broker, now);
        let told = pass(&mut broker, &mut now, 3_600_000);
        assert_eq!(ended(&told), [], "case {case}");
        // It was told to give the GPU up, and does; who waits then has it.
        let told = parked(&mut broker, now, 1);
        assert_eq!(ended(&told), [], "case {case}");
    }
    // Who comes then waits for the usual time alone.
    let (mut broker, mut now) = switching();
    broker.step(now, Input::Idle(ClientId(2)));
    let told = pass(&mut broker, &mut now, 60_000);
    assert_eq!(ended(&told), []);
    broker.step(now, Input::Busy(ClientId(2)));
    let told = pass(&mut broker, &mut now, 11_000);
    assert_eq!(ended(&told)[0], (1, Ended::Deaf));
}

#[test]
fn what_work_takes_while_nobody_waits_is_not_held_against_it() {
    let (mut broker, mut now) = switching();
    broker.step(now, Input::Idle(ClientId(2)));
    let told = works(&mut broker, &mut now, 2000);
    assert_eq!(ended(&told), []);
    // Somebody waits from here on.
    broker.step(now, Input::Busy(ClientId(2)));
    let told = works(&mut broker, &mut now, 590);
    assert_eq!(ended(&told), []);
    let told = works(&mut broker, &mut now, 15);
    assert_eq!(ended(&told)[0], (1, Ended::Works { seconds: 600 }));
}

#[test]
fn a_connection_that_is_lost_takes_none_of_that_time() {
    let (mut broker, mut now) = switching();
    works(&mut broker, &mut now, 60);
    broker.step(now, Input::Away(FIRST));
    pass(&mut broker, &mut now, 5_000);
    let at = gpuos_memory::lease::At::Gpu;
    let told = broker.step(now, Input::Return(FIRST, at));
    assert!(parks(&told, 1), "it is told again");
    let told = works(&mut broker, &mut now, 120);
    assert_eq!(ended(&told), []);
    assert!(comes(&parked(&mut broker, now, 1), 2));
    // Words of it at any other time mean nothing.
    for _ in 0..3 {
        assert_eq!(ended(&broker.step(now, Input::Working(FIRST))), []);
    }
}
