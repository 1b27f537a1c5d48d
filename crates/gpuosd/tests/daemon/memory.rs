//! Memory in tiers: what programs of jobs are given, whose turn it is, and what is left of them.

use std::fs;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use gpuos_core::step::StepId;
use gpuos_core::wire::Request;
use gpuos_memory::protocol::{FromProgram, ToProgram};

use crate::isolation::{audited, of_job};
use crate::memory_program::{CARD, Program, job, own, sharer, socket, start, status, step, uuid};
use crate::site::{Daemon, Site};

const GIB: u64 = 1 << 30;

#[test]
fn a_program_is_given_what_slurm_gives_its_job_and_no_more() {
    let site = Site::new();
    job(&site, 7, "2", "60G");
    let daemon = start(&site);
    step(&daemon, 7, &[2], 120 * GIB, false);
    let mut program = Program::start(&site, &daemon, 7);
    let (hbm, host, refuge, wait) = program.ask(2, 120 * GIB).unwrap();
    assert_eq!((hbm, refuge, wait), (CARD, 0, false));
    // What does not fit, and room for what moves.
    assert_eq!(host, 120 * GIB + (256 << 20) - CARD);
    let told = status(&daemon);
    assert_eq!(told.programs.len(), 1);
    let one = &told.programs[0];
    assert_eq!(
        (one.job.number(), one.uid, one.pid),
        (Some(7), own(), program.child.id())
    );
    assert_eq!((one.place.as_str(), one.connected), ("resident", true));
    assert_eq!((one.leases[0].hbm, one.leases[0].host), (hbm, host));
    assert_eq!(told.gpus[2].hbm.promised, CARD);
    program.say(FromProgram::Moved { down: 5, up: 3 });
    site.until("what it has moved", || {
        let one = &status(&daemon).programs[0];
        ((one.moved_down, one.moved_up) == (5, 3)).then_some(())
    });
    // A GPU of nobody, more than the option, and the same again.
    let why = program.ask_again(3, GIB).unwrap_err();
    assert!(why.contains("does not have on this node"), "{why}");
    let why = program.ask_again(2, 121 * GIB).unwrap_err();
    assert!(why.contains("a larger --gpuos-mem"), "{why}");
    assert_eq!(program.ask_again(2, 120 * GIB).unwrap().0, hbm);
    // A second process gets what is left, which is nothing.
    let mut second = Program::start(&site, &daemon, 7);
    assert!(second.ask(2, 120 * GIB).is_err());
    drop(second);
    program.kill();
    site.until("all of it is free", || {
        let told = status(&daemon);
        (told.programs.is_empty() && told.host.promised == 0).then_some(())
    });
}

/// A script starts its program again in the moment in which it has ended, before gpuosd knows that.
#[test]
fn a_program_that_is_started_again_has_what_it_had() {
    let site = Site::new();
    job(&site, 7, "2", "60G");
    let daemon = start(&site);
    step(&daemon, 7, &[2], 120 * GIB, false);
    // gpuosd waits some seconds for the end of the first one. Where a busy machine lets the test kill it later, that is tried again.
    for _ in 0..10 {
        let mut first = Program::start(&site, &daemon, 7);
        let had = first.ask(2, 120 * GIB).unwrap();
        let mut second = Program::start(&site, &daemon, 7);
        second.say(FromProgram::Hello { version: 2 });
        let (gpu, bytes, hbm) = (uuid(&site, 2), 120 * GIB, CARD);
        let asked = Instant::now();
        second.say(FromProgram::Ask { gpu, bytes, hbm });
        first.kill();
        let is_late = asked.elapsed() > Duration::from_secs(1);
        match second.told() {
            Some(ToProgram::Lease { hbm, host, .. }) => {
                return assert_eq!((hbm, host), (had.0, had.1));
            }
            other => assert!(is_late, "{other:?}"),
        }
        drop(second);
        site.until("both are forgotten", || {
            status(&daemon).programs.is_empty().then_some(())
        });
    }
    panic!("the first one is never killed in time");
}

#[test]
fn a_job_with_too_little_memory_is_told_how_much_it_takes() {
    let site = Site::new();
    job(&site, 7, "2", "10G");
    let daemon = start(&site);
    step(&daemon, 7, &[2], 120 * GIB, false);
    let mut program = Program::start(&site, &daemon, 7);
    let why = program.ask(2, 120 * GIB).unwrap_err();
    assert!(
        why.contains("of host memory") && why.contains("a larger --mem"),
        "{why}"
    );
    // What fits is given.
    let (hbm, host, ..) = program.ask_again(2, 85 * GIB).unwrap();
    assert_eq!(hbm, CARD);
    assert!(host >= 85 * GIB - CARD);
}

#[test]
fn who_is_no_program_of_such_a_job_gets_nothing() {
    let site = Site::new();
    job(&site, 7, "2", "60G");
    site.job(8, "3");
    let daemon = start(&site);
    step(&daemon, 7, &[2], 120 * GIB, false);
    let others = [
        (own() + 1, of_job(7, "0")),
        (own(), of_job(7, "1")),
        (own(), of_job(8, "0")),
        (own(), of_job(9, "0")),
    ];
    // All at once: each is waited for some seconds.
    let start = |(uid, cgroup): &(u32, String)| Program::start_as(&site, &daemon, *uid, cgroup);
    let mut programs: Vec<Program> = others.iter().map(start).collect();
    for program in &mut programs {
        let Some(ToProgram::Refused { why }) = program.told() else {
            panic!("it is not refused");
        };
        assert!(
            why.contains("no memory in tiers") || why.contains("another user's"),
            "{why}"
        );
        assert_eq!(program.told(), None);
    }
    assert!(status(&daemon).programs.is_empty());
}

/// A GPU that is not the job's is refused alone: the program keeps what it has of its own.
#[test]
fn one_gpu_is_refused_and_the_other_is_kept() {
    let site = Site::new();
    job(&site, 7, "2", "60G");
    let daemon = start(&site);
    step(&daemon, 7, &[2], 60 * GIB, false);
    let mut program = Program::start(&site, &daemon, 7);
    program.ask(2, 60 * GIB).unwrap();
    let (gpu, bytes, hbm) = (uuid(&site, 3), 60 * GIB, CARD);
    program.say(FromProgram::Ask { gpu, bytes, hbm });
    match program.told() {
        Some(ToProgram::Without { gpu: of, .. }) => assert_eq!(of, gpu),
        other => panic!("{other:?}"),
    }
    assert_eq!(status(&daemon).programs.len(), 1);
    // One of an earlier release has all of its GPUs in tiers, or none.
    let mut earlier = Program::start(&site, &daemon, 7);
    assert!(earlier.ask_earlier(3, 60 * GIB).is_err());
}

#[test]
fn two_jobs_have_a_gpu_in_turns_and_one_that_is_deaf_is_ended() {
    let site = Site::new();
    sharer(&site, 7, "2", "70G");
    sharer(&site, 8, "2", "70G");
    let daemon = start(&site);
    step(&daemon, 7, &[2], 60 * GIB, true);
    step(&daemon, 8, &[2], 60 * GIB, true);
    let mut a = Program::start(&site, &daemon, 7);
    let mut b = Program::start(&site, &daemon, 8);
    let (hbm, host, refuge, wait) = a.ask(2, 60 * GIB).unwrap();
    assert_eq!((hbm, host, refuge, wait), (60 * GIB, 0, 60 * GIB, false));
    let (hbm, _, refuge, wait) = b.ask(2, 60 * GIB).unwrap();
    assert_eq!((hbm, refuge, wait), (60 * GIB, 60 * GIB, true));
    let told = status(&daemon);
    assert!(told.gpus[2].in_turns);
    assert_eq!(told.gpus[2].turn, Some(7.into()));
    for _ in 0..2 {
        for (holder, other) in [(0, 1), (1, 0)] {
            let both = [&mut a, &mut b];
            assert!(matches!(both[holder].told(), Some(ToProgram::Park { .. })));
            both[holder].say(FromProgram::Parked {
                took_ms: 1,
                moved: GIB,
                left: 0,
            });
            assert_eq!(both[other].told(), Some(ToProgram::Turn));
            both[other].say(FromProgram::Back {
                took_ms: 1,
                moved: GIB,
            });
        }
    }
    site.until("what was parked", || {
        let programs = status(&daemon).programs;
        let parks: Vec<_> = programs
            .iter()
            .map(|one| (one.parks, one.moved_down))
            .collect();
        (parks == [(2, 2 * GIB); 2]).then_some(())
    });
    // It is killed while it parks: the other one goes on.
    assert!(matches!(a.told(), Some(ToProgram::Park { .. })));
    let killed = Instant::now();
    a.kill();
    assert_eq!(b.told(), Some(ToProgram::Turn));
    println!("its turn came after {} ms", killed.elapsed().as_millis());
    b.say(FromProgram::Back {
        took_ms: 1,
        moved: GIB,
    });
    // One that does not park is ended, and the next one has the GPU.
    let mut c = Program::start(&site, &daemon, 7);
    assert!(c.ask(2, 60 * GIB).unwrap().3);
    assert!(matches!(b.told(), Some(ToProgram::Park { .. })));
    b.is_ended();
    assert_eq!(c.told(), Some(ToProgram::Turn));
    site.until("the audit log", || {
        (audited(&site, "gpuos's library in the process did not answer") == 1).then_some(())
    });
}

#[test]
fn what_was_lent_outlives_gpuosd_and_nothing_is_lent_twice() {
    let site = Site::new();
    sharer(&site, 7, "2", "70G");
    sharer(&site, 8, "2", "70G");
    let daemon = start(&site);
    step(&daemon, 7, &[2], 60 * GIB, true);
    step(&daemon, 8, &[2], 60 * GIB, true);
    let mut a = Program::start(&site, &daemon, 7);
    assert!(!a.ask(2, 60 * GIB).unwrap().3);
    daemon.kill();
    assert_eq!(a.told(), None);
    let daemon = start(&site);
    let leases = |daemon: &Daemon| {
        let programs = status(daemon).programs;
        programs.iter().map(|one| one.pid).collect::<Vec<_>>()
    };
    assert_eq!(leases(&daemon), [a.child.id()]);
    // The process has ended meanwhile as far as this test is concerned: another one with its number and start is it.
    let mut b = Program::start(&site, &daemon, 8);
    assert!(
        b.ask(2, 60 * GIB).unwrap().3,
        "the GPU is the other's still"
    );
    a.forget();
    assert_eq!(b.told(), Some(ToProgram::Turn));
    assert_eq!(leases(&daemon), [b.child.id()]);
}

#[test]
fn turns_are_on_gpus_that_slurm_gives_in_parts_and_on_no_others() {
    let site = Site::new();
    // What a step says of turns is its user's word. It has the GPU whole, or a part of it, by slurmctld's.
    job(&site, 7, "2", "70G");
    sharer(&site, 8, "3", "70G");
    let daemon = start(&site);
    step(&daemon, 7, &[2], 60 * GIB, true);
    step(&daemon, 8, &[3], 60 * GIB, false);
    for (id, gpu) in [(7, 2), (8, 3)] {
        let mut program = Program::start(&site, &daemon, id);
        let why = program.ask(gpu, GIB).unwrap_err();
        assert!(why.contains("no memory in tiers"), "{why}");
    }
    assert!(status(&daemon).programs.is_empty());
}

#[test]
fn a_job_in_turns_is_given_no_more_than_it_can_park() {
    let site = Site::new();
    sharer(&site, 7, "2", "50G");
    let daemon = start(&site);
    // Whatever the step says that it has asked for.
    step(&daemon, 7, &[2], 1 << 50, true);
    let mut program = Program::start(&site, &daemon, 7);
    let why = program.ask(2, 60 * GIB).unwrap_err();
    assert!(why.contains("a larger --mem"), "{why}");
    let (hbm, host, refuge, _) = program.ask_again(2, 40 * GIB).unwrap();
    assert_eq!((hbm, host, refuge), (40 * GIB, 0, 40 * GIB));
    let why = program.ask_again(3, GIB).unwrap_err();
    assert!(why.contains("does not have on this node"), "{why}");
}

#[test]
fn a_job_that_slurm_has_suspended_is_not_ended_for_not_answering() {
    let site = Site::new();
    sharer(&site, 7, "2", "70G");
    sharer(&site, 8, "2", "70G");
    let daemon = start(&site);
    step(&daemon, 7, &[2], 60 * GIB, true);
    step(&daemon, 8, &[2], 60 * GIB, true);
    let mut a = Program::start(&site, &daemon, 7);
    let mut b = Program::start(&site, &daemon, 8);
    assert!(!a.ask(2, 60 * GIB).unwrap().3);
    assert!(b.ask(2, 60 * GIB).unwrap().3);
    assert!(matches!(a.told(), Some(ToProgram::Park { .. })));
    // slurmctld is asked of one that takes long.
    let text = site.slurm("jobs/7");
    let asleep = text.replace("JobState=RUNNING", "JobState=SUSPENDED");
    site.set_slurm("jobs/7", &asleep);
    let stopped = |is: bool| {
        let programs = status(&daemon).programs;
        let mut own = programs.iter().filter(|one| one.job.number() == Some(7));
        own.next()
            .is_some_and(|one| one.stopped == is)
            .then_some(())
    };
    site.until("it is known to be suspended", || stopped(true));
    // Longer than who is told to park has.
    std::thread::sleep(Duration::from_secs(12));
    stopped(true).expect("it is there");
    site.set_slurm("jobs/7", &text);
    // What it says has slurmctld asked again.
    a.say(FromProgram::Parked {
        took_ms: 1,
        moved: GIB,
        left: 0,
    });
    assert_eq!(b.told(), Some(ToProgram::Turn));
    site.until("it is known to run", || stopped(false));
    assert_eq!(audited(&site, "was ended"), 0);
}

#[test]
fn a_job_that_is_over_leaves_nothing() {
    let site = Site::new();
    job(&site, 7, "2", "60G");
    let daemon = start(&site);
    step(&daemon, 7, &[2], 100 * GIB, false);
    let mut program = Program::start(&site, &daemon, 7);
    program.ask(2, 100 * GIB).unwrap();
    fs::remove_file(site.path("slurm/jobs/7")).unwrap();
    let id = StepId {
        job: 7.into(),
        step: 0,
    };
    daemon.ask(&Request::StepEnd { id }).unwrap();
    // What is left of it is ended.
    program.is_ended();
    site.until("the audit log", || {
        (audited(&site, "its job is over") == 1).then_some(())
    });
    site.until("all of it is free", || {
        status(&daemon).programs.is_empty().then_some(())
    });
}

#[test]
fn floods_and_half_lines_cost_nobody_anything() {
    let site = Site::new();
    job(&site, 7, "2", "60G");
    let daemon = start(&site);
    step(&daemon, 7, &[2], 100 * GIB, false);
    let path = socket(&daemon);
    // This process is of no step: it has no file in the recorded folder.
    let mut held: Vec<UnixStream> = Vec::new();
    for at in 0..100_u8 {
        let Ok(mut stream) = UnixStream::connect(&path) else {
            break;
        };
        let _ = stream.set_write_timeout(Some(Duration::from_millis(10)));
        let _ = stream.write_all(&vec![at; 50 << (at % 8)]);
        held.push(stream);
    }
    // They are of the same user, so that there may be no place for a moment.
    let mut program = site.until("a place", || {
        let mut program = Program::start(&site, &daemon, 7);
        program.ask(2, 100 * GIB).is_ok().then_some(program)
    });
    // Lines that are none, and one without an end.
    for text in ["ask 01", "turn", "\u{1b}[2J", &"x".repeat(5000)] {
        let mut other = Program::start(&site, &daemon, 7);
        other.say(FromProgram::Hello { version: 1 });
        other.line(text);
        assert_eq!(other.told(), None, "{text}");
    }
    // As fast as it can: it is answered in turn, and others as ever.
    for _ in 0..150 {
        program.say(FromProgram::Busy);
    }
    program.ask_again(2, 100 * GIB).unwrap();
    assert_eq!(daemon.status().gpus.len(), 8);
    drop(held);
}
