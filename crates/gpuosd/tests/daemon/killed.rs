//! A program with a pattern in its memory is ended by kill -9 while that is in the GPU, on its way, or parked in host memory or on NVMe: who has the
//! GPU in turns with it never finds the pattern in memory that he is given.
//!
//! A process has memory of its own in the simulated driver. So this holds what gpuos itself keeps and hands on; that NVIDIA's driver clears
//! memory between processes is its own promise.

use std::fs::File;
use std::io::Read;
use std::time::Instant;

use rustix::fs::SeekFrom;

use crate::memory_program::{sharer, start, status};
use crate::nvme::{self, Mover};
use crate::site::{Daemon, LIMIT, Site};
use crate::turns::{self, PART, Program, Worker};

/// The pattern of the one that is killed.
const PATTERN: u32 = 0x5ec2_e7a5;
const KEEPS: &str = "killed::keeps_a_pattern_for_a_test";
const LOOKS: &str = "killed::looks_for_the_pattern_for_a_test";

fn holds_it(bytes: &[u8]) -> bool {
    let pattern = PATTERN.to_le_bytes();
    bytes.chunks_exact(4).any(|word| word == pattern)
}

/// Not a test: a program whose memory is full of the pattern.
#[test]
fn keeps_a_pattern_for_a_test() {
    let Some(folder) = turns::folder() else {
        return;
    };
    let mut worker = Worker::begin(&folder);
    let (parts, fill) = (worker.parts(), worker.cuda.kernel("fill"));
    while worker.goes_on() {
        for part in &parts {
            let args = [*part, u64::from(PATTERN), PART / 4];
            assert_eq!(worker.cuda.launch(fill, 0, &args), 0);
        }
        // Where the pattern is, a look finds it.
        assert!(holds_it(&worker.cuda.download(parts[0], 4096)));
        worker.round();
    }
}

/// Not a test: a program that reads all that it is given before it writes there.
#[test]
fn looks_for_the_pattern_for_a_test() {
    let Some(folder) = turns::folder() else {
        return;
    };
    let mut worker = Worker::begin(&folder);
    let fill = worker.cuda.kernel("fill");
    let mut round = 0_u32;
    while worker.goes_on() {
        round = (round + 1) % (1 << 16);
        let parts = worker.parts();
        let cuda = &worker.cuda;
        for part in &parts {
            assert!(!holds_it(&cuda.download(*part, PART as usize)));
            let args = [*part, u64::from(round), PART / 4];
            assert_eq!(cuda.launch(fill, 0, &args), 0);
        }
        for part in parts {
            let bytes = cuda.download(part, PART as usize);
            let own = round.to_le_bytes();
            assert!(bytes.chunks_exact(4).all(|word| word == own));
            cuda.ok("cuMemFree_v2", &[part]);
        }
        worker.round();
    }
}

/// Whether a file of a program's on NVMe has it. Files are as long as what was promised, with holes.
fn is_on_nvme(site: &Site) -> bool {
    let mut files = nvme::on_nvme(site).into_iter();
    files.any(|path| {
        let Ok(mut file) = File::open(path) else {
            return false;
        };
        let (mut at, mut piece) = (0, vec![0; PART as usize]);
        while let Ok(data) = rustix::fs::seek(&file, SeekFrom::Data(at)) {
            let Ok(count @ 1..) = file.read(&mut piece) else {
                return false;
            };
            if holds_it(&piece[..count]) {
                return true;
            }
            at = data + count as u64;
        }
        false
    })
}

/// Kills it in each of these places; the other one finds nothing of it afterwards. `also`: what has to be so when it is killed.
fn ends(site: &Site, daemon: &Daemon, places: &[&str], also: impl Fn(&str) -> bool) {
    let mut other = Program::start_as(site, daemon, 8, LOOKS);
    for place in places {
        let mut one = Program::start_as(site, daemon, 7, KEEPS);
        let deadline = Instant::now() + LIMIT;
        let is_there = |one: &Program| one.status(daemon).is_some_and(|it| it.place == *place);
        // Not longer than it moves.
        while one.rounds() == 0 || !is_there(&one) || !also(place) {
            assert!(one.lives() && other.lives(), "{place}: {}", site.log());
            assert!(Instant::now() < deadline, "{place}: {}", site.log());
        }
        let killed = Instant::now();
        one.kill();
        turns::has_its_turn(site, daemon, &other, killed);
        let before = other.rounds();
        site.until("the other one looks", || {
            assert!(other.lives(), "{place}: {}", site.log());
            (other.rounds() > before + 2).then_some(())
        });
        site.until("the killed one is forgotten", || {
            (status(daemon).programs.len() == 1).then_some(())
        });
    }
    other.end();
}

#[test]
fn who_is_killed_in_a_turn_or_while_it_moves_leaves_its_bytes_to_nobody() {
    let site = Site::new();
    for id in [7, 8] {
        sharer(&site, id, "2", "70G");
    }
    let daemon = start(&site);
    nvme::steps(&daemon);
    let places = ["resident", "parking", "parked", "returning"];
    ends(&site, &daemon, &places, |_| true);
}

#[test]
fn who_is_killed_while_it_is_on_nvme_leaves_its_bytes_to_nobody() {
    let site = Site::new();
    nvme::jobs(&site, "2G");
    let daemon = start(&site);
    let _mover = Mover::start(&site);
    nvme::steps(&daemon);
    // What is parked is there, and a look finds it.
    let also = |place: &str| place != "parked" || is_on_nvme(&site);
    ends(&site, &daemon, &["parking", "parked", "returning"], also);
    site.until("no file is left", || {
        nvme::on_nvme(&site).is_empty().then_some(())
    });
}
