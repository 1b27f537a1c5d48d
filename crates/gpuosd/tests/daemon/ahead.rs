//! Programs that give their GPU more work than a switch takes, with a real gpuosd: queued at once, launched without waiting, or such that never ends.

use std::fs;
use std::time::{Duration, Instant};

use crate::isolation::audited;
use crate::memory_program::{sharer, start, step};
use crate::site::{Daemon, Site};
use crate::turns::{Program, Worker, folder};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// The device has 32 MiB; a kernel over all of a program takes 2.6 s.
const ALL: u64 = 26 * MIB;
const DEVICE: &str = "memory=32M,link=400M,hbm=10M";

/// Each word of the program's memory that is looked at has this value.
fn holds(worker: &Worker, at: u64, value: u64) {
    for offset in [0, ALL / 2, ALL - 4] {
        let word = worker.cuda.download(at + offset, 4);
        assert_eq!(word, (value as u32).to_le_bytes());
    }
}

/// Until the test has seen what it wants: the kernel's record of a process is the test's, and it would not be known to have ended.
fn stays(worker: &Worker) {
    while worker.goes_on() {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Not a test: gives 13 s of work at once, and waits for it.
#[test]
fn queues_for_a_test() {
    let Some(folder) = folder() else { return };
    let mut worker = Worker::begin(&folder);
    let all = worker.cuda.alloc(ALL);
    let fill = worker.cuda.kernel("fill");
    for round in 1..=5 {
        assert_eq!(worker.cuda.launch(fill, 0, &[all, round, ALL / 4]), 0);
    }
    worker.round();
    worker.cuda.ok("cuCtxSynchronize", &[]);
    worker.round();
    holds(&worker, all, 5);
    stays(&worker);
}

/// Not a test: gives more work than it waits for all the time.
#[test]
fn launches_for_a_test() {
    let Some(folder) = folder() else { return };
    let mut worker = Worker::begin(&folder);
    let all = worker.cuda.alloc(ALL);
    let fill = worker.cuda.kernel("fill");
    let part = ALL / 13;
    for round in 1..=6_u64 {
        for at in 0..13 {
            let words = [all + at * part, round, part / 4];
            assert_eq!(worker.cuda.launch(fill, 0, &words), 0);
            std::thread::sleep(Duration::from_millis(100));
        }
        worker.round();
    }
    holds(&worker, all, 6);
    stays(&worker);
}

/// Not a test: its kernel waits for what never comes.
#[test]
fn hangs_for_a_test() {
    let Some(folder) = folder() else { return };
    let mut worker = Worker::begin(&folder);
    let all = worker.cuda.alloc(ALL);
    let flag = worker.cuda.flag();
    let wait = worker.cuda.kernel("wait");
    assert_eq!(worker.cuda.launch(wait, 0, &[flag.0, 7]), 0);
    worker.round();
    worker.cuda.ok("cuCtxSynchronize", &[]);
    holds(&worker, all, 0);
}

fn daemon<'a>(site: &'a Site, toml: &str) -> Daemon<'a> {
    fs::write(site.path("gpuos.toml"), toml).unwrap();
    for id in [7, 8] {
        sharer(site, id, "2", "70G");
    }
    let daemon = start(site);
    for id in [7, 8] {
        step(&daemon, id, &[2], 60 * GIB, true);
    }
    daemon
}

fn program<'a>(site: &'a Site, daemon: &Daemon, of: u32, does: &str) -> Program<'a> {
    Program::start_on(site, daemon, of, &format!("ahead::{does}"), DEVICE)
}

/// Both have had the GPU, and ended with the bytes that they should have.
fn both_end(does: [&str; 2]) {
    let site = Site::new();
    let daemon = daemon(&site, "");
    let a = program(&site, &daemon, 7, does[0]);
    site.until("work of the first", || (a.rounds() > 0).then_some(()));
    let b = program(&site, &daemon, 8, does[1]);
    site.until("work of the other", || (b.rounds() > 0).then_some(()));
    a.end();
    b.end();
    assert_eq!(audited(&site, "was ended"), 0, "{}", site.log());
}

#[test]
fn two_programs_that_queue_more_than_a_switch_takes_run_to_their_end() {
    both_end(["queues_for_a_test", "queues_for_a_test"]);
}

#[test]
fn two_programs_that_launch_ahead_run_to_their_end() {
    both_end(["launches_for_a_test", "launches_for_a_test"]);
}

/// Its user reads why, and so does who reads the log.
#[test]
fn work_that_does_not_end_is_ended_with_a_sentence() {
    let site = Site::new();
    let daemon = daemon(&site, "[memory]\nswitch-seconds = 10\n");
    let mut a = program(&site, &daemon, 7, "hangs_for_a_test");
    site.until("work of the first", || (a.rounds() > 0).then_some(()));
    let told = Instant::now();
    let b = program(&site, &daemon, 8, "queues_for_a_test");
    site.until("the end of the first", || (!a.lives()).then_some(()));
    assert!(told.elapsed() >= Duration::from_secs(9));
    a.forget();
    let said = a.said();
    let why = "was not done 10 s later (switch-seconds in [memory] of gpuos.toml)";
    assert!(
        said.contains("gpuos: the process was ended") && said.contains(why),
        "{said}"
    );
    site.until("the audit log", || (audited(&site, why) >= 1).then_some(()));
    b.end();
}
