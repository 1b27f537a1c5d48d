//! The daemons of MPS, one event after the other.
use super::super::requests::{Asked, MpsRequest};
use super::*;

const ONE: Process = Process {
    pid: 41,
    started: 7,
};

fn gres(gpu: u8) -> GresGpu {
    GresGpu::try_from(gpu).expect("a GPU")
}

fn gpus(list: &[u8]) -> BTreeSet<GresGpu> {
    list.iter().copied().map(gres).collect()
}

fn holder(job: u32, gpus: &[u8]) -> Holder {
    Holder {
        job: job.into(),
        uid: 1000,
        gpus: self::gpus(gpus),
        asked: Asked {
            mps: Some(MpsRequest {
                percent: 50,
                gid: 100,
                joint: false,
            }),
            ..Asked::default()
        },
        resting: false,
    }
}

/// What is done, without lines for the log.
fn after(mps: &mut Mps, event: MpsEvent) -> Vec<MpsEffect> {
    let mut effects = mps_step(mps, event, 1000, 1000);
    effects.retain(|effect| !matches!(effect, MpsEffect::Audit(_)));
    effects
}

fn saved_as(effects: &[MpsEffect]) -> MpsEvent {
    match effects {
        [MpsEffect::Save { revision }] => MpsEvent::Saved {
            revision: *revision,
            result: Ok(()),
        },
        other => panic!("{other:?}"),
    }
}

fn running(job: u32) -> Mps {
    let mut mps = Mps::default();
    let saves = after(&mut mps, MpsEvent::Jobs(vec![holder(job, &[0, 1])]));
    let starts = after(&mut mps, saved_as(&saves));
    assert!(matches!(&starts[..], [MpsEffect::Start { serving, .. }]
        if serving.uid == 1000 && serving.gid == 100 && serving.percent == 50));
    assert_eq!(mps.outcome(&MpsClient::Job(job.into()), &gpus(&[0])), None);
    let told = Ok(ONE);
    let saves = after(
        &mut mps,
        MpsEvent::Running {
            whom: MpsClient::Job(job.into()),
            result: told,
        },
    );
    // Not before gpuosd would find it again.
    assert_eq!(mps.outcome(&MpsClient::Job(job.into()), &gpus(&[0])), None);
    assert_eq!(after(&mut mps, saved_as(&saves)), []);
    assert_eq!(
        mps.outcome(&MpsClient::Job(job.into()), &gpus(&[0])),
        Some(Ok(()))
    );
    mps
}

#[test]
fn it_is_written_down_started_once_and_ended_with_the_job() {
    let mut mps = running(7);
    assert!(
        mps.outcome(&MpsClient::Job(7.into()), &gpus(&[2]))
            .unwrap()
            .is_err()
    );
    assert_eq!(
        after(&mut mps, MpsEvent::Jobs(vec![holder(7, &[0, 1])])),
        []
    );
    let ends = after(&mut mps, MpsEvent::Jobs(Vec::new()));
    assert!(
        matches!(&ends[..], [MpsEffect::End { whom: MpsClient::Job(_), serving }]
        if serving.process == Some(ONE))
    );
    // It comes again, as after a requeue: the old one ends first.
    assert_eq!(after(&mut mps, MpsEvent::Jobs(vec![holder(7, &[4])])), []);
    let told = Err(NotEnded::Lives("busy".into()));
    let whom = MpsClient::Job(7.into());
    let saves = after(&mut mps, MpsEvent::Ended { whom, result: told });
    assert_eq!(after(&mut mps, saved_as(&saves)), []);
    let again = mps_step(&mut mps, MpsEvent::Tick, 1000 + AGAIN_MS, 0);
    assert!(matches!(&again[..], [MpsEffect::End { .. }]));
    let told = Ok(());
    let next = after(
        &mut mps,
        MpsEvent::Ended {
            whom: MpsClient::Job(7.into()),
            result: told,
        },
    );
    assert_eq!(next.len(), 2);
    assert_eq!(mps.servers()[&MpsClient::Job(7.into())].gpus, gpus(&[4]));
}

#[test]
fn a_folder_that_cannot_be_removed_is_given_up_and_a_daemon_that_lives_is_not() {
    let mut mps = running(7);
    let whom = MpsClient::Job(7.into());
    let mut now = 1000;
    let mut told = |mps: &mut Mps, event| {
        let effects = mps_step(mps, event, now, 1000);
        now += 1000;
        let ends = effects
            .iter()
            .filter(|effect| matches!(effect, MpsEffect::End { .. }));
        let said = effects.iter().filter_map(|effect| match effect {
            MpsEffect::Audit(audit) => Some(audit.text.clone()),
            _ => None,
        });
        (ends.count(), said.collect::<Vec<_>>())
    };
    assert_eq!(told(&mut mps, MpsEvent::Jobs(Vec::new())).0, 1);
    let mut story = Vec::new();
    let (mut ends, mut seconds) = (1, 0);
    while !mps.servers().is_empty() {
        // Its processes live for a while; after a start of gpuosd it goes on where it was.
        let why = match ends {
            0..4 => NotEnded::Lives("still there".into()),
            _ => NotEnded::Left("not empty".into()),
        };
        story.extend(
            told(
                &mut mps,
                MpsEvent::Ended {
                    whom: whom.clone(),
                    result: Err(why),
                },
            )
            .1,
        );
        if ends == 6 {
            mps = serde_json::from_str(&serde_json::to_string(&mps).unwrap()).unwrap();
            told(&mut mps, MpsEvent::Started { rebooted: false });
            ends += told(&mut mps, MpsEvent::Jobs(Vec::new())).0;
            continue;
        }
        let before = ends;
        for _ in 0..3600 {
            if mps.servers().is_empty() || ends > before {
                break;
            }
            ends += told(&mut mps, MpsEvent::Tick).0;
            seconds += 1;
        }
    }
    assert_eq!(ends, 3 + usize::from(REMOVALS));
    assert!((300..4000).contains(&seconds), "{seconds}");
    assert_eq!(story.len(), 2, "{story:?}");
    assert!(story[0].contains("tried again: still there") && story[1].contains("is left"));
    assert!(story[1].contains("not empty") && story[1].contains("uid 1000"));
    assert_eq!(told(&mut mps, MpsEvent::Tick), (0, Vec::new()));
}

#[test]
fn what_was_killed_in_between_is_ended_or_taken_over() {
    let mut saved = running(7);
    saved.phases.clear();
    saved.holders.clear();
    let rebooted = false;
    for (jobs, adopts) in [(vec![holder(7, &[0, 1])], true), (Vec::new(), false)] {
        let mut mps = saved.clone();
        assert_eq!(after(&mut mps, MpsEvent::Started { rebooted }), []);
        let effects = after(&mut mps, MpsEvent::Jobs(jobs));
        match &effects[..] {
            [MpsEffect::Adopt { process: ONE, .. }] => assert!(adopts),
            [MpsEffect::End { .. }] => assert!(!adopts),
            other => panic!("{other:?}"),
        }
    }
    // Written down, and not known whether it was started; and after a boot.
    let mut mps = saved.clone();
    after(&mut mps, MpsEvent::Started { rebooted: true });
    let effects = after(&mut mps, MpsEvent::Jobs(vec![holder(7, &[0, 1])]));
    assert!(matches!(&effects[..], [MpsEffect::End { serving, .. }] if serving.process.is_none()));
}

#[test]
fn one_that_died_is_not_started_again_and_what_failed_is_not_tried_again() {
    let mut mps = running(7);
    let process = ONE;
    assert_eq!(
        after(
            &mut mps,
            MpsEvent::Died {
                whom: MpsClient::Job(7.into()),
                process
            }
        )
        .len(),
        1
    );
    assert!(
        mps.outcome(&MpsClient::Job(7.into()), &gpus(&[0]))
            .unwrap()
            .is_err()
    );
    assert_eq!(after(&mut mps, MpsEvent::Tick), []);
    assert_eq!(after(&mut mps, MpsEvent::Jobs(Vec::new())).len(), 1);

    let mut mps = Mps::default();
    let saves = after(&mut mps, MpsEvent::Jobs(vec![holder(8, &[0])]));
    after(&mut mps, saved_as(&saves));
    let told = Err("no such program".into());
    after(
        &mut mps,
        MpsEvent::Running {
            whom: MpsClient::Job(8.into()),
            result: told,
        },
    );
    assert_eq!(after(&mut mps, MpsEvent::Tick), []);
    assert!(
        mps.servers().is_empty()
            && mps
                .outcome(&MpsClient::Job(8.into()), &gpus(&[0]))
                .unwrap()
                .is_err()
    );
    after(&mut mps, MpsEvent::Jobs(Vec::new()));
    assert_eq!(mps.outcome(&MpsClient::Job(8.into()), &gpus(&[0])), None);
}

#[test]
fn shared_gpus_get_none() {
    let mut mps = Mps::default();
    let mut shared = holder(7, &[0]);
    shared.asked.shared = true;
    let mut plain = holder(8, &[1]);
    plain.asked = Asked::default();
    let jobs = vec![shared, plain, holder(9, &[1, 2])];
    assert_eq!(after(&mut mps, MpsEvent::Jobs(jobs)), []);
    for job in [7, 9] {
        let told = mps
            .outcome(&MpsClient::Job(job.into()), &gpus(&[1]))
            .unwrap()
            .unwrap_err();
        assert!(told.contains("shared with other jobs"), "{told}");
    }
}

fn sharer(job: u32, uid: u32, gpu: u8) -> Holder {
    let mut holder = holder(job, &[gpu]);
    holder.uid = uid;
    holder.asked.shared = true;
    holder.asked.mps = holder
        .asked
        .mps
        .map(|mps| MpsRequest { joint: true, ..mps });
    holder
}

/// What an event starts and ends, once all is written down.
fn started_and_ended(mps: &mut Mps, event: MpsEvent) -> (Vec<String>, Vec<String>) {
    let (mut starts, mut ends) = (Vec::new(), Vec::new());
    let mut effects = after(mps, event);
    while let Some(effect) = effects.pop() {
        let next = match effect {
            MpsEffect::Save { revision } => {
                let told = Ok(());
                MpsEvent::Saved {
                    revision,
                    result: told,
                }
            }
            MpsEffect::Start { whom, .. } => {
                starts.push(whom.to_string());
                let told = Ok(ONE);
                MpsEvent::Running { whom, result: told }
            }
            MpsEffect::End { whom, .. } => {
                ends.push(whom.to_string());
                let told = Ok(());
                MpsEvent::Ended { whom, result: told }
            }
            other => panic!("{other:?}"),
        };
        effects.extend(after(mps, next));
    }
    starts.sort();
    (starts, ends)
}

#[test]
fn jobs_of_a_user_that_share_a_gpu_have_one_daemon_until_the_last_is_gone() {
    let mut mps = Mps::default();
    let mut jobs = vec![sharer(7, 1000, 0), sharer(8, 1000, 0), sharer(9, 1001, 0)];
    jobs.push(sharer(10, 1000, 3));
    let told = |jobs: &[Holder]| MpsEvent::Jobs(jobs.to_vec());
    let names = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect();
    let all = ["gpu0-1000", "gpu0-1001", "gpu3-1000"];
    let made = started_and_ended(&mut mps, told(&jobs));
    assert_eq!(made, (names(&all), Vec::new()));
    let first = MpsClient::Sharers {
        gpu: gres(0),
        uid: 1000,
    };
    assert_eq!(mps.outcome(&first, &gpus(&[0])), Some(Ok(())));
    assert!(mps.outcome(&first, &gpus(&[1])).unwrap().is_err());
    // The job for which it was started goes, and comes again on another GPU: the other one keeps its own.
    jobs[0] = sharer(7, 1000, 5);
    let made = started_and_ended(&mut mps, told(&jobs));
    assert_eq!(made, (names(&["gpu5-1000"]), Vec::new()));
    jobs.remove(1);
    let made = started_and_ended(&mut mps, told(&jobs));
    assert_eq!(made, (Vec::new(), names(&["gpu0-1000"])));
    assert_eq!(mps.outcome(&first, &gpus(&[0])), None);
    let made = started_and_ended(&mut mps, told(&[]));
    assert_eq!((made.0.len(), made.1.len()), (0, 3));
    assert!(mps.servers().is_empty());
}

#[test]
fn what_failed_for_sharers_is_tried_again_when_a_job_joins_them() {
    let mut mps = Mps::default();
    let whom = MpsClient::Sharers {
        gpu: gres(0),
        uid: 1000,
    };
    let mut jobs = vec![sharer(7, 1000, 0)];
    let saves = after(&mut mps, MpsEvent::Jobs(jobs.clone()));
    after(&mut mps, saved_as(&saves));
    let told = Err("it was not ready".into());
    let saves = after(
        &mut mps,
        MpsEvent::Running {
            whom: whom.clone(),
            result: told,
        },
    );
    after(&mut mps, saved_as(&saves));
    // Not by more steps of the same job, nor by jobs elsewhere.
    jobs.push(sharer(9, 1001, 0));
    let told = MpsEvent::Jobs(jobs.clone());
    let made = started_and_ended(&mut mps, told.clone());
    assert_eq!(made.0, ["gpu0-1001"]);
    assert_eq!(after(&mut mps, told), []);
    assert!(mps.outcome(&whom, &gpus(&[0])).unwrap().is_err());
    jobs.push(sharer(8, 1000, 0));
    let made = started_and_ended(&mut mps, MpsEvent::Jobs(jobs));
    assert_eq!(made.0, ["gpu0-1000"]);
    assert_eq!(mps.outcome(&whom, &gpus(&[0])), Some(Ok(())));
}

#[test]
fn shares_of_several_gpus_have_no_daemon_and_a_user_cannot_forge_one() {
    let mut mps = Mps::default();
    let mut several = sharer(7, 1000, 0);
    several.gpus.insert(gres(1));
    // What says so on a whole GPU was not given by Slurm's shards.
    let mut whole = sharer(8, 1000, 2);
    whole.asked.shared = false;
    let made = started_and_ended(&mut mps, MpsEvent::Jobs(vec![several, whole]));
    assert_eq!(made, (Vec::new(), Vec::new()));
}

#[test]
fn names_of_daemons_are_read_again() {
    for whom in [
        MpsClient::Job(7.into()),
        MpsClient::Sharers {
            gpu: gres(3),
            uid: 1000,
        },
    ] {
        assert_eq!(MpsClient::try_from(whom.to_string()), Ok(whom));
    }
    for odd in [
        "",
        "x",
        "gpu",
        "gpu1",
        "gpu-1",
        "gpu300-1",
        "gpu1-1000-2",
        "-7",
    ] {
        assert!(MpsClient::try_from(odd.to_owned()).is_err(), "{odd}");
    }
}

/// Each text names one daemon's folder, whatever a workload manager calls its jobs.
#[test]
fn a_name_leads_back_to_whom_it_means() {
    let job = |id: &str| MpsClient::Job(id.parse().unwrap());
    let sharers = MpsClient::Sharers {
        gpu: gres(0),
        uid: 1000,
    };
    for (whom, text) in [
        (job("7"), "7"),
        (job("8.server"), "job-8.server"),
        (job("gpu0-1000"), "job-gpu0-1000"),
        (job("job-7"), "job-job-7"),
        (sharers, "gpu0-1000"),
    ] {
        assert_eq!(whom.to_string(), text);
        assert_eq!(MpsClient::try_from(text.to_string()), Ok(whom));
    }
    for nobody in [
        "", "07", "job-", "job-7", "8.server", "job-../7", "gpu-1", "gpu0",
    ] {
        assert!(
            MpsClient::try_from(nobody.to_string()).is_err(),
            "{nobody:?}"
        );
    }
}
