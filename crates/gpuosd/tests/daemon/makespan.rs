//! How long two programs of four fifths of a GPU take in turns, beside one after the other. Only with `GPUOS_LONG`: it is a matter of time.

use std::fs;
use std::time::{Duration, Instant};

use crate::memory_program::{sharer, start_in_turns_of, step};
use crate::site::{Daemon, Site};
use crate::turns::{self, Program};

const GIB: u64 = 1 << 30;
/// How often each of them works on all of it.
const ROUNDS: u32 = 120;
const WORKS: &str = "makespan::works_so_often_for_a_test";
/// A move of what a program has takes a thirtieth of a second.
const DEVICE: &str = "memory=32M,link=800M";
/// The shortest turn, in seconds: moves are shorter here than on a GPU, and turns with them.
const TURN: &str = "2";
/// Of the time of both, one after the other.
const GOAL: f64 = 1.1;

/// Not a test: a program that ends by itself.
#[test]
fn works_so_often_for_a_test() {
    let Some(folder) = turns::folder() else {
        return;
    };
    let mut left = ROUNDS;
    turns::work(&folder, |_| {
        left -= 1;
        if left == 0 {
            fs::write(folder.join("end"), "").unwrap();
        }
    });
}

/// Seconds until all have ended, whose results were right.
fn seconds(site: &Site, daemon: &Daemon, jobs: &[u32]) -> f64 {
    let begun = Instant::now();
    let start = |id: &u32| Program::start_on(site, daemon, *id, WORKS, DEVICE);
    let mut programs: Vec<Program> = jobs.iter().map(start).collect();
    let mut left = jobs.len();
    while left > 0 {
        std::thread::sleep(Duration::from_millis(5));
        left = 0;
        for program in &mut programs {
            match program.lives() {
                true => left += 1,
                false => program.forget(),
            }
        }
    }
    let took = begun.elapsed().as_secs_f64();
    programs.into_iter().for_each(Program::end);
    took
}

#[test]
fn two_programs_in_turns_take_hardly_longer_than_one_after_the_other() {
    if std::env::var_os("GPUOS_LONG").is_none() {
        eprintln!("skipped: without GPUOS_LONG");
        return;
    }
    let site = Site::new();
    for id in [7, 8] {
        sharer(&site, id, "2", "70G");
    }
    let daemon = start_in_turns_of(&site, TURN, &[]);
    for id in [7, 8] {
        step(&daemon, id, &[2], 60 * GIB, true);
    }
    let serial: f64 = [7, 8].map(|id| seconds(&site, &daemon, &[id])).iter().sum();
    let both = seconds(&site, &daemon, &[7, 8]);
    let ratio = both / serial;
    println!(
        "one after the other {serial:.1} s, in turns {both:.1} s: {ratio:.2} times, goal {GOAL}"
    );
    assert!(ratio <= GOAL, "{}", site.log());
}
