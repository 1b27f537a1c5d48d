//! Leases: what is given and refused, what is guaranteed, what comes back after a restart.

use gpuos_memory::lease::{
    AccountId, At, Broker, ClientId, ClientRecord, Config, Effect, Ended, GpuId, Granted, Input,
    JobId, JobSpec, Lease, Place, Record, Refuge, Refused, Share, Supply,
};
use proptest::prelude::*;

use crate::lease_support::GIB;

const GPU: GpuId = GpuId(0);

pub fn supply(host: u64, nvme: u64) -> Supply {
    Supply {
        gpus: vec![(GPU, 80 * GIB), (GpuId(1), 80 * GIB)],
        host: host * GIB,
        nvme: nvme * GIB,
        nvme_counted: 0,
    }
}

pub fn broker(host: u64, nvme: u64) -> Broker {
    let mut broker = Broker::new(Config::default());
    broker.step(0, Input::Supply(supply(host, nvme)));
    broker
}

fn spec(job: u64, grant: u64, host: u64) -> JobSpec {
    JobSpec {
        job: JobId(job),
        gpus: vec![GPU],
        hbm_per_gpu: 80 * GIB,
        host: host * GIB,
        nvme: 0,
        bytes_per_gpu: grant * GIB,
        timeslice: false,
        account: None,
        rank: 0,
        guaranteed: 0,
    }
}

pub fn in_turns(job: u64, grant: u64, host: u64) -> JobSpec {
    JobSpec {
        timeslice: true,
        ..spec(job, grant, host)
    }
}

pub fn ask(broker: &mut Broker, client: u64, job: u64, gib: u64) -> Result<Granted, Refused> {
    let effects = broker.step(
        0,
        Input::Ask {
            client: ClientId(client),
            job: JobId(job),
            gpu: GPU,
            bytes: gib * GIB,
        },
    );
    answer(&effects)
}

fn answer(effects: &[Effect]) -> Result<Granted, Refused> {
    let mut answers = effects.iter().filter_map(|it| match it {
        Effect::Answer { answer, .. } => Some(*answer),
        _ => None,
    });
    let answer = answers.next().expect("an answer");
    assert_eq!(answers.next(), None);
    // What is answered is in the journal before.
    let at = |which: fn(&Effect) -> bool| effects.iter().position(which);
    let answered = at(|it| matches!(it, Effect::Answer { .. }));
    let journal = effects
        .iter()
        .rposition(|it| matches!(it, Effect::Journal(_)));
    assert!(journal < answered);
    answer
}

pub fn granted(hbm: u64, host: u64, turn: bool) -> Result<Granted, Refused> {
    Ok(Granted {
        hbm: hbm * GIB,
        host: host * GIB,
        turn,
    })
}

#[test]
fn a_job_larger_than_its_gpu_gets_the_rest_in_host_memory() {
    let mut broker = broker(100, 0);
    broker.step(0, Input::Job(spec(1, 120, 50)));
    assert_eq!(ask(&mut broker, 1, 1, 120), granted(80, 40, true));
    // Asked again, the answer comes again.
    assert_eq!(ask(&mut broker, 1, 1, 120), granted(80, 40, true));
    // A second process has what is left, which is nothing; what the first gives back is its.
    assert_eq!(
        ask(&mut broker, 2, 1, 10),
        Err(Refused::BeyondGrant {
            asked: 10 * GIB,
            left: 0
        })
    );
    assert_eq!(ask(&mut broker, 1, 1, 60), granted(60, 0, true));
    assert_eq!(ask(&mut broker, 2, 1, 60), granted(20, 40, true));
    assert_eq!(ask(&mut broker, 1, 1, 0), granted(0, 0, true));
    broker.step(0, Input::Gone(ClientId(1)));
    broker.step(0, Input::Gone(ClientId(2)));
    broker.step(0, Input::JobGone(JobId(1)));
    assert!(broker.is_empty());
}

#[test]
fn what_is_refused_says_what_was_asked_and_what_to_do() {
    let mut broker = broker(30, 0);
    broker.step(0, Input::Job(spec(1, 120, 10)));
    broker.step(0, Input::Job(in_turns(2, 60, 50)));
    broker.step(0, Input::Job(in_turns(3, 60, 60)));
    for (refused, sentence) in [
        (
            ask(&mut broker, 1, 9, 1),
            "memory in tiers was asked for by a process of no job that has it: submit the job with --gpuos-mem, or with --gpuos-share=timeslice,mem=SIZE",
        ),
        (
            ask(&mut broker, 1, 1, 130),
            "130.0 GiB were asked for on a GPU, and 120.0 GiB are left of what the job has there: submit it with a larger --gpuos-mem, or a larger mem= of --gpuos-share",
        ),
        (
            ask(&mut broker, 1, 1, 120),
            "it takes 40.0 GiB of host memory, and 10.0 GiB are left of the job's memory on this node: submit it with a larger --mem",
        ),
        (
            ask(&mut broker, 2, 2, 60),
            "30.0 GiB could not be parked while other jobs have the GPU: submit the job with a larger --mem",
        ),
        (
            ask(&mut broker, 3, 3, 60),
            "it takes 60.0 GiB of host memory, and the node has less to lend now: try again later, or ask for less",
        ),
    ] {
        assert_eq!(refused.expect_err("refused").to_string(), sentence);
    }
    // Nothing of it is left.
    assert_eq!(broker.view().host.promised, 0);
    assert!(broker.view().clients.is_empty());
    // Who asks for nothing has nothing to wait for, in turns or not.
    for job in [1, 2] {
        assert_eq!(ask(&mut broker, job, job, 0), granted(0, 0, true));
    }
}

#[test]
fn a_process_is_of_one_job_and_on_its_gpus_and_there_are_not_too_many() {
    let mut broker = broker(100, 0);
    broker.step(0, Input::Job(spec(1, 64, 0)));
    broker.step(0, Input::Job(spec(2, 64, 0)));
    assert!(ask(&mut broker, 1, 1, 1).is_ok());
    assert_eq!(ask(&mut broker, 1, 2, 1), Err(Refused::NoJob));
    let other = Input::Ask {
        client: ClientId(1),
        job: JobId(1),
        gpu: GpuId(1),
        bytes: 1,
    };
    let refused = Err(Refused::NotItsGpu { gpu: GpuId(1) });
    assert_eq!(answer(&broker.step(0, other)), refused);
    for client in 2..=64 {
        assert!(ask(&mut broker, client, 1, 1).is_ok());
    }
    let many = Err(Refused::TooMany { most: 64 });
    assert_eq!(ask(&mut broker, 65, 1, 1), many);
    // Of job 2 one may still come.
    assert!(ask(&mut broker, 66, 2, 1).is_ok());
}

#[test]
fn a_guarantee_is_kept_free_and_a_quota_is_all_there_is() {
    let mut broker = broker(100, 0);
    let guaranteed = JobSpec {
        guaranteed: 60 * GIB,
        ..spec(1, 160, 80)
    };
    broker.step(0, Input::Job(guaranteed));
    broker.step(
        0,
        Input::Job(JobSpec {
            hbm_per_gpu: 0,
            ..spec(2, 80, 80)
        }),
    );
    // Of 100 GiB 60 are the other one's, whether it uses them or not.
    let full = Err(Refused::HostFull { takes: 50 * GIB });
    assert_eq!(ask(&mut broker, 2, 2, 50), full);
    assert_eq!(ask(&mut broker, 2, 2, 40), granted(0, 40, true));
    assert_eq!(ask(&mut broker, 1, 1, 140), granted(80, 60, true));
    let full = Err(Refused::HostFull { takes: 61 * GIB });
    assert_eq!(ask(&mut broker, 1, 1, 141), full);

    let mut broker = self::broker(100, 0);
    let account = Some(AccountId(7));
    let share = Share {
        guaranteed: 0,
        at_most: 30 * GIB,
    };
    broker.step(0, Input::Account(AccountId(7), share));
    for id in [1, 2] {
        let spec = JobSpec {
            account,
            hbm_per_gpu: 0,
            ..spec(id, 80, 80)
        };
        broker.step(0, Input::Job(spec));
    }
    assert_eq!(ask(&mut broker, 1, 1, 20), granted(0, 20, true));
    let refused = Err(Refused::BeyondQuota {
        takes: 20 * GIB,
        left: 10 * GIB,
    });
    assert_eq!(ask(&mut broker, 2, 2, 20), refused);
    assert_eq!(ask(&mut broker, 2, 2, 10), granted(0, 10, true));
}

#[test]
fn an_accounts_guarantee_is_its_jobs_together() {
    let mut broker = broker(100, 0);
    let share = Share {
        guaranteed: 70 * GIB,
        at_most: u64::MAX,
    };
    broker.step(0, Input::Account(AccountId(7), share));
    let hosts = |id, account| JobSpec {
        account,
        hbm_per_gpu: 0,
        ..spec(id, 80, 80)
    };
    // It counts while the account has a job here.
    broker.step(0, Input::Job(hosts(9, None)));
    assert_eq!(ask(&mut broker, 9, 9, 20), granted(0, 20, true));
    broker.step(0, Input::Job(hosts(1, Some(AccountId(7)))));
    broker.step(0, Input::Job(hosts(2, Some(AccountId(7)))));
    let full = Err(Refused::HostFull { takes: 31 * GIB });
    assert_eq!(ask(&mut broker, 10, 9, 31), full);
    assert_eq!(ask(&mut broker, 1, 1, 40), granted(0, 40, true));
    assert_eq!(ask(&mut broker, 2, 2, 30), granted(0, 30, true));
    assert_eq!(ask(&mut broker, 10, 9, 10), granted(0, 10, true));
}

#[test]
fn the_second_of_two_waits_for_its_turn_and_has_it_when_the_first_is_gone() {
    let mut broker = broker(200, 0);
    broker.step(0, Input::Job(in_turns(1, 64, 64)));
    broker.step(0, Input::Job(in_turns(2, 64, 64)));
    assert_eq!(ask(&mut broker, 1, 1, 64), granted(64, 0, true));
    assert_eq!(ask(&mut broker, 2, 2, 64), granted(64, 0, false));
    assert_eq!(broker.view().gpus[0].holder, Some(JobId(1)));
    let effects = broker.step(5, Input::Gone(ClientId(1)));
    let turn = |it: &Effect| matches!(it, Effect::Turn { client, .. } if client.0 == 2);
    assert!(effects.iter().any(turn), "{effects:?}");
    assert_eq!(broker.view().gpus[0].hbm.promised, 64 * GIB);
}

#[test]
fn the_deaf_are_ended_at_their_deadline_and_hold_what_they_have_until_they_are_dead() {
    let mut broker = broker(200, 0);
    broker.step(0, Input::Job(in_turns(1, 64, 64)));
    broker.step(0, Input::Job(in_turns(2, 64, 64)));
    ask(&mut broker, 1, 1, 64).expect("room");
    ask(&mut broker, 2, 2, 64).expect("room");
    let mut deadline = None;
    let mut ended = Vec::new();
    for tick in 1..2000 {
        let now = tick * 100;
        for effect in broker.step(now, Input::Tick) {
            match effect {
                Effect::Park { deadline_ms, .. } => deadline = Some(deadline_ms),
                Effect::End { client, why } => ended.push((now, client.0, why)),
                Effect::Turn { .. } => panic!("the first one still has the memory"),
                _ => {}
            }
        }
        if ended.len() == 3 {
            break;
        }
    }
    let deadline = deadline.expect("its turn ends").next_multiple_of(100);
    // It is said again until the process is dead.
    let again = [0, 2000, 4000].map(|later| (deadline + later, 1, Ended::Deaf));
    assert_eq!(ended, again);
    let effects = broker.step(deadline + 4100, Input::Gone(ClientId(1)));
    assert!(effects.iter().any(|it| matches!(it, Effect::Turn { .. })));
}

#[test]
fn after_a_restart_nothing_is_promised_twice_and_who_stays_away_is_ended() {
    let mut before = broker(200, 0);
    let mut journal = Vec::new();
    let mut step = |broker: &mut Broker, input| {
        for effect in broker.step(0, input) {
            if let Effect::Journal(record) = effect {
                journal.push(record);
            }
        }
    };
    for id in [1, 2] {
        step(&mut before, Input::Job(in_turns(id, 64, 64)));
        step(
            &mut before,
            Input::Ask {
                client: ClientId(id),
                job: JobId(id),
                gpu: GPU,
                bytes: 64 * GIB,
            },
        );
    }
    let mut broker = broker(200, 0);
    broker.step(1000, Input::Restored(journal.clone()));
    assert_eq!(broker.view().gpus[0].hbm.promised, 64 * GIB);
    assert_eq!(broker.journal(), before.journal());
    // The second says that it works: it cannot.
    let effects = broker.step(1100, Input::Return(ClientId(2), At::Gpu));
    let why = Ended::Elsewhere;
    assert!(effects.contains(&Effect::End {
        client: ClientId(2),
        why
    }));
    // The first does not come.
    let effects = broker.step(30_900, Input::Tick);
    assert!(
        !effects
            .iter()
            .any(|it| matches!(it, Effect::End { client, .. } if client.0 == 1))
    );
    let effects = broker.step(31_000, Input::Tick);
    let why = Ended::Away;
    assert!(effects.contains(&Effect::End {
        client: ClientId(1),
        why
    }));
    assert_eq!(broker.view().gpus[0].hbm.promised, 64 * GIB);

    // As it should be: both come back, and go on.
    let mut broker = self::broker(200, 0);
    broker.step(1000, Input::Restored(journal));
    broker.step(1100, Input::Return(ClientId(1), At::Gpu));
    broker.step(1200, Input::Return(ClientId(2), At::Parked(Refuge::Host)));
    assert_eq!(broker.holders(GPU), [JobId(1)]);
    let effects = broker.step(1300, Input::Gone(ClientId(1)));
    assert!(
        effects
            .iter()
            .any(|it| matches!(it, Effect::Turn { client, .. } if client.0 == 2))
    );
}

#[test]
fn a_gpu_that_is_gone_ends_who_was_on_it() {
    let mut broker = broker(200, 0);
    broker.step(0, Input::Job(spec(1, 64, 64)));
    ask(&mut broker, 1, 1, 64).expect("room");
    let effects = broker.step(
        1,
        Input::Supply(Supply {
            gpus: vec![(GpuId(1), 80 * GIB)],
            ..supply(200, 0)
        }),
    );
    let why = Ended::GpuGone;
    assert!(effects.contains(&Effect::End {
        client: ClientId(1),
        why
    }));
}

#[test]
fn a_job_that_comes_again_waits_for_the_dead_of_before() {
    let mut broker = broker(200, 0);
    broker.step(0, Input::Job(spec(1, 64, 64)));
    ask(&mut broker, 1, 1, 64).expect("room");
    broker.step(0, Input::JobGone(JobId(1)));
    broker.step(0, Input::Job(spec(1, 70, 64)));
    assert_eq!(ask(&mut broker, 2, 1, 70), Err(Refused::NoJob));
    broker.step(0, Input::Gone(ClientId(1)));
    assert_eq!(ask(&mut broker, 2, 1, 70), granted(70, 0, true));
}

fn record() -> impl Strategy<Value = Record> {
    let places = prop_oneof![
        Just(Place::Resident),
        Just(Place::Parking(Refuge::Host)),
        Just(Place::Parking(Refuge::Nvme)),
        Just(Place::Parked(Refuge::Host)),
        Just(Place::Parked(Refuge::Nvme)),
        Just(Place::Returning(Refuge::Host)),
        Just(Place::Returning(Refuge::Nvme)),
    ];
    let lease = (any::<u32>(), any::<[u64; 4]>(), any::<bool>()).prop_map(|(gpu, it, fresh)| {
        let lease = Lease {
            hbm: it[0],
            host: it[1],
            refuge_host: it[2],
            refuge_nvme: it[3],
            fresh,
        };
        (GpuId(gpu), lease)
    });
    let leases = proptest::collection::vec(lease, 0..4);
    let client = (any::<[u64; 3]>(), places, leases).prop_map(|(it, place, leases)| {
        Record::Client(ClientRecord {
            client: ClientId(it[0]),
            job: JobId(it[1]),
            place,
            leaving: it[2],
            own: it[1] % 2 == 0,
            by_driver: it[0].is_multiple_of(3).then_some(it[1]),
            leases,
        })
    });
    let gpus = proptest::collection::vec(any::<u32>(), 0..4);
    let account = proptest::option::of(any::<u64>());
    let job = (any::<[u64; 7]>(), gpus, any::<bool>(), account).prop_map(
        |(it, gpus, timeslice, account)| {
            Record::Job(JobSpec {
                job: JobId(it[0]),
                gpus: gpus.into_iter().map(GpuId).collect(),
                hbm_per_gpu: it[1],
                host: it[2],
                nvme: it[6],
                bytes_per_gpu: it[3],
                timeslice,
                account: account.map(AccountId),
                rank: it[4],
                guaranteed: it[5],
            })
        },
    );
    prop_oneof![
        client,
        job,
        any::<u64>().prop_map(|it| Record::Gone(ClientId(it))),
        any::<u64>().prop_map(|it| Record::JobOver(JobId(it))),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn records_are_read_as_they_were_written(record in record()) {
        let line = record.to_string();
        prop_assert!(!line.contains('\n'));
        prop_assert_eq!(line.parse(), Ok(record));
    }

    #[test]
    fn no_line_is_too_bad_to_be_read(line in "(job|client|gone|over|)( [0-9a-z:-]{0,20}){0,9}\\PC{0,3}") {
        let _ = line.parse::<Record>();
    }
}
