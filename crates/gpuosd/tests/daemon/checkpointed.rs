//! Programs whose memory cannot be moved while they run, in turns with others: the driver takes them out of the GPU whole, by a process that
//! gpuosd starts, whatever is killed on the way.

use std::cell::Cell;
use std::fs;
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};

use crate::common::library;
use crate::isolation::audited;
use crate::memory_program::{sharer, start_with, status, step};
use crate::site::{Daemon, LIMIT, Site};
use crate::turns::{self, Program};

const GIB: u64 = 1 << 30;
/// Moving takes long enough to be seen and killed.
const DEVICE: &str = "memory=32M,link=400M,checkpoint=60";
const PINNED: &str = "checkpointed::works_pinned_for_a_test";

/// Not a test: a program that works as those of [`turns`] do, and from its first round on cannot be moved.
#[test]
fn works_pinned_for_a_test() {
    let Some(folder) = turns::folder() else {
        return;
    };
    let pinned = Cell::new(false);
    turns::work(&folder, |cuda| {
        if !pinned.replace(true) {
            // It is not simulated, so it fails. That it was called is enough.
            assert_ne!(cuda.code("cuGreenCtxCreate", &[0; 4]), 0);
        }
    });
}

/// Jobs 7 and 8 have GPU 2 in turns. `on`: the site has turned it on.
fn site(on: bool) -> Site {
    let site = Site::new();
    fs::write(
        site.path("gpuos.toml"),
        format!("[memory]\ndriver-checkpoint = {on}\n"),
    )
    .unwrap();
    for id in [7, 8] {
        sharer(&site, id, "2", "70G");
    }
    site
}

fn start(site: &Site) -> Daemon<'_> {
    let library = library().display().to_string();
    start_with(site, &["--cuda", &library])
}

fn steps(daemon: &Daemon) {
    for id in [7, 8] {
        step(daemon, id, &[2], 60 * GIB, true);
    }
}

/// One that cannot be moved and one that can, each of its own job.
fn both<'a>(site: &'a Site, daemon: &Daemon, device: &str) -> [Program<'a>; 2] {
    [
        Program::start_on(site, daemon, 7, PINNED, device),
        Program::start(site, daemon, 8),
    ]
}

/// Both work, one after the other, and never had the GPU both at once, as NVML shows it.
fn go_on(site: &Site, programs: &mut [Program; 2], what: &str) {
    let before = [0, 1].map(|at| programs[at].rounds());
    let deadline = Instant::now() + LIMIT;
    while (0..2).any(|at| programs[at].rounds() <= before[at] + 1) {
        for program in &mut *programs {
            assert!(program.lives(), "{what}: {}", site.log());
        }
        let on = site.gpu(2).processes;
        let large = on.iter().filter(|one| one.pid != 0 && one.memory_mib > 20);
        assert!(large.count() <= 1, "{what}");
        assert!(Instant::now() < deadline, "{what}: {}", site.log());
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// The processes that call the driver for a program just now, and what they do.
fn callers(program: &Program) -> Vec<(u32, String)> {
    let pid = program.pid().to_string();
    let all = fs::read_dir("/proc").unwrap().flatten();
    let numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let caller = |number: u32| {
        let words = fs::read(format!("/proc/{number}/cmdline")).ok()?;
        let words = String::from_utf8(words).ok()?;
        let words: Vec<&str> = words.split('\0').collect();
        let is = words.get(1) == Some(&gpuosd::driver_checkpoint::FLAG);
        let its = words.get(3) == Some(&&pid[..]);
        (is && its).then(|| (number, words[2].to_owned()))
    };
    numbers.filter_map(caller).collect()
}

/// The next one that does this.
fn next_caller(site: &Site, program: &Program, way: &str) -> u32 {
    site.until(way, || {
        let found = callers(program).into_iter().find(|it| it.1 == way);
        found.map(|(number, _)| number)
    })
}

#[test]
fn a_program_that_cannot_be_moved_takes_turns_with_one_that_can() {
    let site = site(true);
    let daemon = start(&site);
    steps(&daemon);
    let mut programs = both(&site, &daemon, DEVICE);
    let by_driver = || {
        let own = programs[0].status(&daemon)?;
        (own.by_driver && own.place == "parked").then_some(own)
    };
    let own = site.until("the driver parks it", by_driver);
    assert!(own.pinned && own.connected, "{own:?}");
    for round in 0..3 {
        go_on(&site, &mut programs, &format!("round {round}"));
    }
    site.until("it came back, and is told so", || {
        let own = programs[0].status(&daemon)?;
        (own.parks >= 2 && own.moved_up > 0).then_some(())
    });
    // Said once.
    assert_eq!(audited(&site, "the driver parks it from now on"), 1);
    let [a, b] = programs;
    a.end();
    b.end();
}

#[test]
fn whatever_is_killed_while_the_driver_is_called_both_go_on() {
    let site = site(true);
    let mut daemon = start(&site);
    steps(&daemon);
    let mut programs = both(&site, &daemon, DEVICE);
    go_on(&site, &mut programs, "at first");
    for way in ["out", "back"] {
        // The one that calls, and then gpuosd, with which it ends.
        let caller = next_caller(&site, &programs[0], way);
        let caller = Pid::from_raw(caller.try_into().unwrap()).unwrap();
        let _ = kill_process(caller, Signal::KILL);
        go_on(&site, &mut programs, &format!("the caller, {way}"));
        next_caller(&site, &programs[0], way);
        daemon.kill();
        site.until("none outlives gpuosd", || {
            callers(&programs[0]).is_empty().then_some(())
        });
        daemon = start(&site);
        go_on(&site, &mut programs, &format!("gpuosd, {way}"));
    }
    // gpuosd while all of it lies in host memory.
    site.until("it is parked", || {
        let own = programs[0].status(&daemon)?;
        (own.by_driver && own.place == "parked").then_some(())
    });
    daemon.kill();
    daemon = start(&site);
    go_on(&site, &mut programs, "gpuosd, parked");
    // The program itself.
    next_caller(&site, &programs[0], "out");
    let [mut a, b] = programs;
    a.kill();
    let before = b.rounds();
    site.until("the other one goes on", || {
        (b.rounds() > before + 2).then_some(())
    });
    site.until("it is forgotten", || {
        (status(&daemon).programs.len() == 1).then_some(())
    });
    b.end();
}

/// What the driver refuses is said, and is as where the site has not turned it on: it is ended, for another one waits.
#[test]
fn a_program_that_the_driver_refuses_or_may_not_take_out_is_ended() {
    for (on, device, why) in [
        (
            true,
            "memory=32M,link=400M,checkpoint=refused",
            "cuCheckpointProcessCheckpoint answered 801",
        ),
        (
            true,
            "memory=32M,link=400M",
            "cuCheckpointProcessGetState answered 1",
        ),
        (false, DEVICE, "its memory cannot be moved while it runs"),
    ] {
        let site = site(on);
        let daemon = start(&site);
        steps(&daemon);
        let [mut a, b] = both(&site, &daemon, device);
        site.until("it is ended", || (!a.lives()).then_some(()));
        a.forget();
        site.until(why, || (audited(&site, why) > 0).then_some(()));
        let before = b.rounds();
        site.until("the other one works", || {
            (b.rounds() > before + 1).then_some(())
        });
        b.end();
    }
}
