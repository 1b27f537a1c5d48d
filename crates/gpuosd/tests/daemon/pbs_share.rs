//! A part of a GPU on a host of PBS: gpuosd lends by what mom's hook tells of it, to this run of a job and to no other.

use std::fs;

use gpuos_core::job::JobId;
use gpuos_core::step::StepId;
use gpuos_core::wire::{MomJob, MomReport, Reason, Request, StepMemory};
use gpuos_memory::protocol::{FromProgram, ToProgram};

use crate::isolation::audited;
use crate::memory_program::{Program, own, start_with, status};
use crate::pbs::{Mom, PBS, ends, gpu, id, job, knows, world};
use crate::pbs_isolation::recorded_groups;
use crate::site::{Daemon, Site};

const GIB: u64 = 1 << 30;

/// A job of this user, which has a part of a GPU and so much memory of the host.
fn sharer(name: &str, part_of: usize, (run, mib): (u64, u64)) -> (JobId, MomJob) {
    let (job, held) = job(name, &[]);
    let held = MomJob {
        uid: own(),
        shared: vec![gpu(part_of)],
        memory_mib: mib,
        run,
        ..held
    };
    (job, held)
}

/// Its script starts, of which the hook tells gpuosd.
fn launched(daemon: &Daemon, name: &str) {
    let request = Request::StepStart {
        id: StepId {
            job: id(name),
            step: StepId::BATCH,
        },
        uid: own(),
        gpus: Vec::new(),
        asked: Default::default(),
        mig: None,
        switchable: false,
        memory: Some(StepMemory {
            bytes_per_gpu: 60 * GIB,
            timeslice: true,
        }),
        reason: Reason::Devices,
    };
    daemon.ask(&request).unwrap();
}

/// A process of this user in no group of anybody's.
fn program<'a>(site: &'a Site, daemon: &Daemon) -> Program<'a> {
    Program::start_as(site, daemon, own(), "0::/system.slice/pbs.service\n")
}

/// A gpuosd that was started anew knows what GPUs there are when mom has told their order.
#[test]
fn who_asks_before_mom_has_told_of_the_gpus_waits_for_that() {
    let site = Site::new();
    let sharer = sharer("12.head", 2, (1, 70 << 10));
    let mom = Mom::start(&site, world(std::slice::from_ref(&sharer)));
    let first = start_with(&site, &PBS);
    knows(&site, &first, 1);
    // The next one begins with what is on the disk then.
    site.until("what GPUs have is saved", || {
        let saved = fs::read(site.path("state/state")).ok()?;
        let saved = String::from_utf8_lossy(&saved);
        let sizes = saved.matches("\"memory_total_mib\":81559");
        (sizes.count() == 8).then_some(())
    });
    drop(mom);
    drop(first);
    let proc = site.path("proc");
    let proc = proc.to_str().unwrap();
    let second = site.start_with(&[&PBS[..], &["--proc", proc]].concat());
    let report = Box::new(MomReport {
        jobs: vec![sharer.1.clone()],
        ..MomReport::default()
    });
    second.ask(&Request::Mom { report }).unwrap();
    launched(&second, "12.head");
    site.until("its programs may ask", || {
        status(&second).gpus.get(2).map(|_| ())
    });
    let mut program = program(&site, &second);
    program.say(FromProgram::Hello { version: 2 });
    program.wants(2, 60 * GIB);
    let _mom = Mom::start(&site, world(&[sharer]));
    assert_eq!(program.given(2), Ok((60 * GIB, 0, 60 * GIB, false)));
}

#[test]
fn a_part_is_lent_to_this_run_of_a_job_and_within_what_pbs_has_counted() {
    let site = Site::new();
    let mib = 70 << 10;
    let mom = Mom::start(&site, world(&[sharer("12.head", 2, (1, mib))]));
    let daemon = start_with(&site, &PBS);
    launched(&daemon, "12.head");
    let mut first = program(&site, &daemon);
    // All of it has its place in the job's memory.
    let lent = (60 * GIB, 0, 60 * GIB, false);
    assert_eq!(first.ask(2, 60 * GIB), Ok(lent));
    let told = status(&daemon);
    assert_eq!(told.programs[0].job, id("12.head"));
    assert_eq!(told.gpus[2].hbm.promised, 60 * GIB);
    // What was said of another GPU, or of more than there is, is of no use.
    let why = first.ask_again(3, GIB).unwrap_err();
    assert!(why.contains("does not have on this node"), "{why}");
    assert!(first.ask_again(2, 71 * GIB).is_err());

    // Another job of the user: whose a process is nobody can tell.
    let both = [
        sharer("12.head", 2, (1, mib)),
        sharer("13.head", 2, (1, mib)),
    ];
    mom.change(|now| *now = world(&both));
    knows(&site, &daemon, 2);
    launched(&daemon, "13.head");
    let why = program(&site, &daemon).ask(2, GIB).unwrap_err();
    assert!(why.contains("gpuos pbs install --confine try"), "{why}");

    // The first runs again, on another GPU, before anybody has said that it had ended.
    mom.change(|now| *now = world(&[sharer("12.head", 5, (2, mib))]));
    knows(&site, &daemon, 1);
    site.until("mom has told of the next run", || {
        let jobs = daemon.status().jobs;
        let mut gpus = jobs.iter().flat_map(|job| &job.gpus);
        gpus.any(|one| *one == gpu(5)).then_some(())
    });
    launched(&daemon, "12.head");
    first.is_ended();
    site.until("what the first run had is free", || {
        status(&daemon).programs.is_empty().then_some(())
    });
    let mut second = program(&site, &daemon);
    assert_eq!(second.ask(5, 60 * GIB), Ok(lent));
    assert!(second.ask_again(2, GIB).is_err());

    // It is over: what is left of it is ended.
    mom.change(|now| *now = world(&[]));
    second.is_ended();
    site.until("nothing is lent", || {
        let told = status(&daemon);
        (told.programs.is_empty() && told.host.promised == 0).then_some(())
    });
}

/// One in the group of a job.
fn confined<'a>(site: &'a Site, daemon: &Daemon, name: &str) -> Program<'a> {
    let group = format!("/gpuos/n1/job_{name}");
    Program::start_as(site, daemon, own(), &group)
}

#[test]
fn what_a_run_had_is_free_with_the_word_of_its_end() {
    let site = Site::new();
    let mib = 70 << 10;
    let mom = Mom::start(&site, world(&[sharer("12.head", 2, (1, mib))]));
    let daemon = start_with(&site, &PBS);
    launched(&daemon, "12.head");
    let mut first = program(&site, &daemon);
    assert!(first.ask(2, 60 * GIB).is_ok());
    knows(&site, &daemon, 1);
    // No list comes any more.
    drop(mom);
    ends(&daemon, "12.head", 1);
    // What is left of it is ended.
    first.is_ended();
    site.until("nothing is lent", || {
        let told = status(&daemon);
        (told.programs.is_empty() && told.host.promised == 0).then_some(())
    });
}

#[test]
fn a_run_on_another_gpu_is_told_from_the_one_before_by_a_gpuosd_that_was_away() {
    let site = Site::new();
    let mib = 70 << 10;
    let mom = Mom::start(&site, world(&[sharer("12.head", 2, (1, mib))]));
    let daemon = start_with(&site, &PBS);
    launched(&daemon, "12.head");
    let mut first = program(&site, &daemon);
    assert!(first.ask(2, 60 * GIB).is_ok());
    knows(&site, &daemon, 1);
    daemon.kill();
    // It has ended, and runs again.
    first.child.wait().unwrap();
    first.forget();
    mom.change(|now| *now = world(&[sharer("12.head", 5, (2, mib))]));
    let daemon = start_with(&site, &PBS);
    knows(&site, &daemon, 1);
    launched(&daemon, "12.head");
    let mut second = program(&site, &daemon);
    assert_eq!(second.ask(5, 60 * GIB), Ok((60 * GIB, 0, 60 * GIB, false)));
}

#[test]
fn a_job_that_pbs_has_suspended_is_not_ended_for_not_parking() {
    let site = Site::new();
    recorded_groups(&site);
    let mib = 70 << 10;
    let both = |suspended: bool| {
        let (first, held) = sharer("12.head", 2, (1, mib));
        let held = MomJob { suspended, ..held };
        world(&[(first, held), sharer("13.head", 2, (1, mib))])
    };
    let mom = Mom::start(&site, both(false));
    let daemon = start_with(&site, &PBS);
    knows(&site, &daemon, 2);
    launched(&daemon, "12.head");
    launched(&daemon, "13.head");
    let mut first = confined(&site, &daemon, "12.head");
    let mut second = confined(&site, &daemon, "13.head");
    assert!(!first.ask(2, 60 * GIB).unwrap().3);
    assert!(second.ask(2, 60 * GIB).unwrap().3);
    assert!(matches!(first.told(), Some(ToProgram::Park { .. })));
    mom.change(|now| *now = both(true));
    let stopped = |is: bool| {
        let programs = status(&daemon).programs;
        let mut own = programs.iter().filter(|one| one.job == id("12.head"));
        own.next()
            .is_some_and(|one| one.stopped == is)
            .then_some(())
    };
    site.until("it is known to be suspended", || stopped(true));
    // Longer than who is told to park has.
    std::thread::sleep(std::time::Duration::from_secs(12));
    stopped(true).expect("it is there");
    mom.change(|now| *now = both(false));
    site.until("it is known to run", || stopped(false));
    first.say(FromProgram::Parked {
        took_ms: 1,
        moved: GIB,
        left: 0,
    });
    assert_eq!(second.told(), Some(ToProgram::Turn));
    assert_eq!(audited(&site, "was ended"), 0);
}

#[test]
fn what_pbs_has_not_counted_is_not_lent() {
    let site = Site::new();
    let (_, whole) = job("8.head", &[2]);
    let whole = MomJob {
        uid: own(),
        memory_mib: 70 << 10,
        ..whole
    };
    // No memory is counted for one, the other has the GPU as a whole.
    for (name, held) in [("7.head", sharer("7.head", 2, (1, 0)).1), ("8.head", whole)] {
        let mom = Mom::start(&site, world(&[(id(name), held)]));
        let daemon = start_with(&site, &PBS);
        launched(&daemon, name);
        let asked = program(&site, &daemon).ask(2, GIB);
        assert!(asked.is_err(), "{name}: {asked:?}");
        assert_eq!(status(&daemon).host.promised, 0);
        drop(mom);
        daemon.kill();
    }
}
