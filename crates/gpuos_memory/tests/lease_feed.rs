//! What the broker does with what it is told of the machine: jobs that are short of their own memory, GPUs that others use who ask nobody,
//! jobs that may not be requeued, guarantees and quotas of accounts, and how long a first turn is.

use gpuos_memory::lease::{
    AccountId, Broker, ClientId, Config, Demote, Effect, GpuId, Input, JobId, JobSpec, Notice,
    Place, Refused, Share, Supply,
};

use crate::lease_support::GIB;

const GPU: GpuId = GpuId(0);

fn supply(gpu: u64, host: u64) -> Input {
    Input::Supply(Supply {
        gpus: vec![(GPU, gpu * GIB)],
        host: host * GIB,
        nvme: 0,
        nvme_counted: 0,
    })
}

fn spec(job: u64, host: u64, account: Option<u64>) -> JobSpec {
    JobSpec {
        job: JobId(job),
        gpus: vec![GPU],
        hbm_per_gpu: 80 * GIB,
        host: host * GIB,
        nvme: 0,
        bytes_per_gpu: 200 * GIB,
        timeslice: false,
        account: account.map(AccountId),
        rank: job,
        guaranteed: 0,
    }
}

fn ask(broker: &mut Broker, now: u64, id: u64, bytes: u64) -> Result<(u64, u64), Refused> {
    let effects = broker.step(
        now,
        Input::Ask {
            client: ClientId(id),
            job: JobId(id),
            gpu: GPU,
            bytes: bytes * GIB,
        },
    );
    let answer = effects.into_iter().find_map(|it| match it {
        Effect::Answer { answer, .. } => Some(answer),
        _ => None,
    });
    let granted = answer.expect("an answer")?;
    Ok((granted.hbm / GIB, granted.host / GIB))
}

/// What is done until a time, in words, ticking ten times a second. Who is asked to demote frees nothing.
fn until(broker: &mut Broker, from: u64, to: u64, first: Vec<Effect>) -> Vec<String> {
    let mut words = Vec::new();
    let mut effects = first;
    for now in (from..to).step_by(100) {
        effects.extend(broker.step(now, Input::Tick));
        for effect in std::mem::take(&mut effects) {
            let word = match effect {
                Effect::Notify { client, notice } => format!("{notice:?} {}", client.0),
                Effect::Demote { client, what, .. } => {
                    let bytes = 0;
                    effects.extend(broker.step(now, Input::Demoted { client, bytes }));
                    let what = if what == Demote::Clean {
                        "clean"
                    } else {
                        "dirty"
                    };
                    format!("{what} {}", client.0)
                }
                Effect::Lease {
                    client, granted, ..
                } => format!(
                    "lease {} {}+{}",
                    client.0,
                    granted.hbm / GIB,
                    granted.host / GIB
                ),
                Effect::Requeue { job, .. } => format!("requeue {}", job.0),
                Effect::End { client, .. } => format!("end {}", client.0),
                _ => continue,
            };
            words.push(word);
        }
    }
    words
}

/// Two jobs on one GPU of 80 GiB: 60 of it and 20 of the host, and 20 of the GPU.
fn two() -> Broker {
    let mut broker = Broker::new(Config::default());
    broker.step(0, supply(80, 400));
    for job in [1, 2] {
        broker.step(0, Input::Job(spec(job, 64, None)));
    }
    assert_eq!(ask(&mut broker, 0, 1, 60), Ok((60, 0)));
    assert_eq!(ask(&mut broker, 0, 2, 40), Ok((20, 20)));
    broker
}

#[test]
fn a_job_that_is_short_of_its_own_memory_is_the_only_one_that_is_asked() {
    let mut broker = two();
    let short = |free| Input::JobPressure {
        job: JobId(2),
        free: free * GIB,
        total: 64 * GIB,
        stalled: 0,
    };
    let first = broker.step(1000, short(2));
    assert_eq!(broker.view().short, [JobId(2)]);
    assert_eq!(
        until(&mut broker, 1000, 60_000, first),
        ["JobPressure 2", "clean 2"]
    );
    assert!(!broker.view().pressure);
    // Between the marks nothing changes.
    assert!(broker.step(60_000, short(8)).is_empty());
    let calm = broker.step(61_000, short(32));
    assert_eq!(until(&mut broker, 61_000, 70_000, calm), ["Calm 2"]);
    assert!(broker.view().short.is_empty());
    // Time that is lost counts as well, and a job that is over is not asked.
    let stalled = Input::JobPressure {
        job: JobId(2),
        free: 32 * GIB,
        total: 64 * GIB,
        stalled: 150,
    };
    broker.step(71_000, stalled);
    assert_eq!(broker.view().short, [JobId(2)]);
    broker.step(71_000, Input::JobGone(JobId(2)));
    broker.step(71_000, Input::Gone(ClientId(2)));
    assert!(broker.view().short.is_empty());
}

#[test]
fn what_others_use_of_a_gpu_is_taken_from_the_lowest_and_given_back() {
    let mut broker = two();
    // 30 GiB: the lowest has host memory for all of it.
    let first = broker.step(1000, supply(50, 400));
    assert_eq!(until(&mut broker, 1000, 2000, first), ["lease 1 30+30"]);
    let view = broker.view();
    assert_eq!(
        (view.gpus[0].hbm.promised, view.clients[0].squeezed),
        (50 * GIB, 30 * GIB)
    );
    assert_eq!(view.host.promised, 50 * GIB);
    // 70: what it has no host memory for the other one gives, and no more than it can.
    let more = broker.step(3000, supply(10, 400));
    assert_eq!(
        until(&mut broker, 3000, 4000, more),
        ["lease 1 0+60", "lease 2 10+30"]
    );
    // They are gone. It does not come back at once, for they may come again.
    let back = broker.step(5000, supply(80, 400));
    assert!(until(&mut broker, 5000, 30_000, back).is_empty());
    let back = until(&mut broker, 30_000, 120_000, Vec::new());
    assert_eq!(back, ["lease 2 20+20", "lease 1 60+0"]);
    assert_eq!(broker.view().clients[0].squeezed, 0);
}

#[test]
fn who_asks_again_while_others_use_a_gpu_gets_back_what_is_still_its() {
    let squeezed = |broker: &Broker| broker.view().clients[0].squeezed / GIB;
    // The same, less than that, less than lies in the GPU, more, and nothing.
    for (bytes, now, later, back) in [
        (60, (30, 30), 30, "lease 1 60+0"),
        (40, (30, 10), 10, "lease 1 40+0"),
        (20, (20, 0), 0, ""),
        (70, (30, 40), 30, "lease 1 60+10"),
    ] {
        let mut broker = two();
        broker.step(1000, supply(50, 400));
        assert_eq!(squeezed(&broker), 30);
        assert_eq!(ask(&mut broker, 2000, 1, bytes), Ok(now));
        assert_eq!(squeezed(&broker), later, "{bytes}");
        broker.step(3000, supply(80, 400));
        let words = until(&mut broker, 3000, 120_000, Vec::new());
        assert_eq!(words.join(""), back, "{bytes}");
        assert_eq!(squeezed(&broker), 0);
    }
    // What is given of the GPU with the answer is not given once more.
    let mut broker = two();
    broker.step(1000, supply(50, 400));
    broker.step(2000, supply(60, 400));
    assert_eq!(ask(&mut broker, 2000, 1, 70), Ok((40, 30)));
    assert_eq!(squeezed(&broker), 20);
    // Nor what was given back before.
    assert_eq!(ask(&mut broker, 3000, 1, 0), Ok((0, 0)));
    broker.step(3000, supply(10, 400));
    assert_eq!(ask(&mut broker, 3000, 1, 20), Ok((0, 20)));
    broker.step(4000, supply(80, 400));
    assert_eq!(squeezed(&broker), 0);
    let words = until(&mut broker, 4000, 120_000, Vec::new());
    assert_eq!(words, ["lease 2 20+20"]);
}

#[test]
fn what_comes_back_is_no_more_than_the_job_may_have_of_a_card() {
    let mut broker = Broker::new(Config::default());
    broker.step(0, supply(80, 400));
    let hbm_per_gpu = 60 * GIB;
    broker.step(
        0,
        Input::Job(JobSpec {
            hbm_per_gpu,
            ..spec(1, 64, None)
        }),
    );
    let job = JobId(1);
    assert_eq!(ask(&mut broker, 0, 1, 50), Ok((50, 0)));
    let less = broker.step(1000, supply(30, 400));
    assert_eq!(until(&mut broker, 1000, 2000, less), ["lease 1 30+20"]);
    broker.step(2000, supply(80, 400));
    let (client, gpu, bytes) = (ClientId(2), GPU, 40 * GIB);
    broker.step(
        3000,
        Input::Ask {
            client,
            job,
            gpu,
            bytes,
        },
    );
    assert!(until(&mut broker, 3000, 120_000, Vec::new()).is_empty());
    assert_eq!(broker.view().gpus[0].hbm.promised, hbm_per_gpu);
    let gone = broker.step(120_000, Input::Gone(client));
    let back = until(&mut broker, 120_000, 121_000, gone);
    assert_eq!(back, ["lease 1 50+0"]);
}

#[test]
fn a_job_is_not_pressed_beyond_what_it_has_of_its_own_memory() {
    let mut broker = two();
    let free = Input::JobPressure {
        job: JobId(1),
        free: 5 * GIB,
        total: 20 * GIB,
        stalled: 0,
    };
    broker.step(500, free);
    let first = broker.step(1000, supply(70, 400));
    assert_eq!(
        until(&mut broker, 1000, 2000, first),
        ["lease 1 55+5", "lease 2 15+25"]
    );
}

#[test]
fn a_job_is_not_pressed_twice_by_the_same_free_memory() {
    let mut broker = two();
    let free = |job, free| Input::JobPressure {
        job: JobId(job),
        free: free * GIB,
        total: 20 * GIB,
        stalled: 0,
    };
    broker.step(500, free(1, 5));
    broker.step(500, free(2, 4));
    let first = broker.step(1000, supply(50, 400));
    assert_eq!(
        until(&mut broker, 1000, 3000, first),
        ["lease 1 55+5", "lease 2 16+24"]
    );
    // It is on its way: a part of it is there.
    let part = broker.step(3000, free(1, 3));
    assert!(until(&mut broker, 3000, 4000, part).is_empty());
    // The job has given back some beside that.
    let more = broker.step(4000, free(1, 6));
    assert_eq!(until(&mut broker, 4000, 6000, more), ["lease 1 52+8"]);
    // What never comes is forgotten.
    let later = until(&mut broker, 6000, 40_000, Vec::new());
    assert_eq!(later, ["lease 2 12+28", "lease 1 46+14"]);
}

#[test]
fn a_job_that_may_not_be_requeued_is_told_and_another_one_is() {
    let mut broker = two();
    broker.step(0, Input::MayRequeue(JobId(1), false));
    let short = Input::Pressure {
        free: 10,
        total: 1000,
        stalled: 0,
    };
    let first = broker.step(1000, short.clone());
    assert_eq!(broker.view().rung, "demote-clean");
    // Job 1 has nothing in host memory that it could give.
    assert_eq!(
        until(&mut broker, 1000, 20_000, first),
        [
            "Pressure 1",
            "Pressure 2",
            "clean 1",
            "clean 2",
            "requeue 2"
        ]
    );
    assert_eq!(broker.view().rung, "requeue");
    let mut broker = two();
    broker.step(0, Input::MayRequeue(JobId(2), false));
    let first = broker.step(1000, short);
    assert_eq!(
        until(&mut broker, 1000, 120_000, first),
        [
            "Pressure 1",
            "Pressure 2",
            "clean 1",
            "clean 2",
            "NoRequeue 2"
        ],
        "once"
    );
    let calm = Input::Pressure {
        free: 900,
        total: 1000,
        stalled: 0,
    };
    let first = broker.step(120_000, calm);
    assert_eq!(
        until(&mut broker, 120_000, 121_000, first),
        ["Calm 1", "Calm 2"]
    );
    assert_eq!(broker.view().rung, "calm");
}

#[test]
fn marks_are_the_sites() {
    let mut broker = two();
    let used = |used: u64| Input::Pressure {
        free: 1000 - used,
        total: 1000,
        stalled: 0,
    };
    broker.step(0, used(800));
    assert!(!broker.view().pressure);
    broker.step(
        0,
        Input::Marks {
            high: 700,
            low: 600,
            stalled: 100,
        },
    );
    broker.step(0, used(700));
    assert!(broker.view().pressure);
    broker.step(0, used(650));
    assert!(broker.view().pressure);
    broker.step(0, used(600));
    assert!(!broker.view().pressure);
}

#[test]
fn an_account_gets_what_it_is_guaranteed_and_no_more_than_its_quota() {
    let mut broker = Broker::new(Config::default());
    let share = |guaranteed, at_most| Share {
        guaranteed: guaranteed * GIB,
        at_most: at_most * GIB,
    };
    // Told before it is known what there is, as after a restart.
    broker.step(0, Input::Account(AccountId(7), share(30, 50)));
    broker.step(0, supply(80, 60));
    for (job, account) in [(1, Some(7)), (2, Some(7)), (3, None)] {
        broker.step(0, Input::Job(spec(job, 64, account)));
    }
    assert_eq!(ask(&mut broker, 0, 1, 100), Ok((80, 20)));
    // 60, less 30 that are kept for the account.
    assert!(matches!(
        ask(&mut broker, 0, 3, 31),
        Err(Refused::HostFull { .. })
    ));
    assert_eq!(ask(&mut broker, 0, 3, 30), Ok((0, 30)));
    assert_eq!(ask(&mut broker, 0, 2, 10), Ok((0, 10)));
    broker.step(0, Input::Gone(ClientId(3)));
    broker.step(0, Input::JobGone(JobId(3)));
    // Its quota.
    assert!(matches!(
        ask(&mut broker, 0, 2, 31),
        Err(Refused::BeyondQuota { .. })
    ));
    assert_eq!(ask(&mut broker, 0, 2, 30), Ok((0, 30)));
}

#[test]
fn a_first_turn_goes_by_no_guess_of_minutes() {
    let mut broker = Broker::new(Config::default());
    broker.step(0, supply(80, 400));
    for job in [1, 2] {
        let timeslice = true;
        broker.step(
            0,
            Input::Job(JobSpec {
                timeslice,
                ..spec(job, 100, None)
            }),
        );
        let _ = ask(&mut broker, 0, job, 60);
    }
    // A switch is guessed to take 6 s, twenty of which are two minutes.
    let mut parks = None;
    for now in (0..200_000).step_by(100) {
        let effects = broker.step(now, Input::Tick);
        let parked = effects.iter().any(|it| matches!(it, Effect::Park { .. }));
        if parked {
            parks.get_or_insert(now);
        }
    }
    let at = parks.expect("its turn is over");
    assert!((29_000..=31_000).contains(&at), "{at}");
    assert_ne!(broker.view().clients[0].place, Place::Resident);
}

#[test]
fn every_word_of_pressure_is_a_sentence() {
    for notice in [
        Notice::Pressure,
        Notice::JobPressure,
        Notice::Calm,
        Notice::NoRequeue,
    ] {
        let text = notice.to_string();
        assert!((20..380).contains(&text.len()), "{text}");
    }
}
