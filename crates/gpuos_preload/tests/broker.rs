//! A program that has what gpuosd gives it, and does what it is told.

use std::io::Write;
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use gpuos_memory::protocol::{FromProgram, ToProgram};

use crate::common::Cuda;
use crate::played::{LIMIT, OVER, Progress, Talk, inside, plays, work};
use crate::shim::{MIB, RUNS, preload};

#[test]
fn a_program_has_what_it_is_given_whatever_its_environment_says() {
    let test = "broker::a_program_has_what_it_is_given_whatever_its_environment_says";
    if inside().is_some() {
        let cuda = Cuda::open();
        cuda.context(0);
        let (free, total) = cuda.info();
        assert_eq!((free, total), (96 * MIB, 96 * MIB));
        let all = cuda.alloc(96 * MIB);
        cuda.upload(all + 95 * MIB, &[7; 4096]);
        assert_eq!(cuda.download(all + 95 * MIB, 4096), [7; 4096]);
        assert_eq!(
            cuda.code("cuMemAlloc_v2", &[&raw const all as u64, 2 * MIB]),
            2
        );
        return;
    }
    plays(test, &[], |listener, _| {
        Talk::lent(&listener, [32, 64, 0], false).map(drop)
    })
    .unwrap();
}

#[test]
fn a_program_that_is_refused_runs_with_the_drivers_own_memory() {
    let test = "broker::a_program_that_is_refused_runs_with_the_drivers_own_memory";
    if inside().is_some() {
        let cuda = Cuda::open();
        cuda.context(0);
        assert_eq!(cuda.info().1, 256 * MIB);
        let at = cuda.alloc(8 * MIB);
        cuda.upload(at, &[7; 4096]);
        assert_eq!(cuda.download(at, 4096), [7; 4096]);
        return;
    }
    let more = [("GPUOS_MEM_GRANT", "1073741824")];
    let said = plays(test, &more, |listener, _| {
        let mut talk = Talk::accept(&listener);
        talk.begin(None)?;
        let why = "this process belongs to no job".into();
        talk.say(&ToProgram::Refused { why });
        Ok(())
    })
    .unwrap();
    let told = "gpuos: this process belongs to no job: the program runs without gpuos's memory\n";
    assert_eq!(said.matches(told).count(), 1, "{said}");
}

#[test]
fn without_gpuosd_the_environment_holds() {
    let test = "broker::without_gpuosd_the_environment_holds";
    if inside().is_some() {
        let cuda = Cuda::open();
        cuda.context(0);
        assert_eq!(cuda.info().1, 256 * MIB);
        return;
    }
    let more = [("GPUOS_MEM_SOCKET", "/nonexistent/socket")];
    let said = plays(test, &more, |_, _| Ok(())).unwrap();
    assert!(
        said.contains("gpuos: gpuosd cannot be asked for memory (/nonexistent/socket: ")
            && said.contains("the process has what GPUOS_MEM_GRANT says"),
        "{said}"
    );
}

const TURNS: &str = "broker::a_program_gives_its_gpu_and_has_it_again";

/// Three times: the program works, is told to park, rests, has its turn, and works on.
fn turns(mutant: Option<&str>) -> Result<String, String> {
    let planted = mutant.map(|mutant| ("GPUOS_PRELOAD_MUTANT", mutant));
    let more: Vec<(&str, &str)> = planted.into_iter().collect();
    plays(TURNS, &more, |listener, progress| {
        let mut talk = Talk::lent(&listener, [128, 0, 128], false)?;
        for _ in 0..3 {
            progress.until_more_than(progress.rounds() + 1)?;
            talk.say(&ToProgram::Park {
                deadline_ms: 60_000,
            });
            match talk.next()? {
                FromProgram::Parked { moved, left, .. } if moved >= 96 * MIB && left < 2 * MIB => {}
                other => return Err(format!("{other:?}")),
            }
            progress.rests()?;
            talk.say(&ToProgram::Turn);
            match talk.next()? {
                FromProgram::Back { moved, .. } if moved >= 96 * MIB => {}
                other => return Err(format!("{other:?}")),
            }
        }
        progress.until_more_than(progress.rounds() + 1)
    })
}

#[test]
fn a_program_gives_its_gpu_and_has_it_again() {
    if let Some(folder) = inside() {
        let cuda = Cuda::open();
        cuda.context(0);
        return work(&folder, &cuda, 96);
    }
    turns(None).unwrap();
}

#[test]
fn found_a_program_that_parks_nothing_or_works_on() {
    if cfg!(debug_assertions) {
        // A gate left open is seen in rounds of a program that is parked, by the driver, whose memory goes beneath a kernel, or by
        // the program, which reads bytes that are on their way.
        let open = [
            "the program works although",
            "work that is not done",
            "assertion",
        ];
        for (mutant, signs) in [("park-nothing", &["Parked"][..]), ("park-open", &open)] {
            // Where rounds are longer than anybody waits for one, none is seen.
            let found = (0..RUNS).find_map(|_| turns(Some(mutant)).err());
            let found = found.expect("nobody found it");
            assert!(signs.iter().any(|sign| found.contains(sign)), "{found}");
        }
    }
}

/// Random programs that lose their turn at random moments.
#[test]
fn random_programs_are_parked_at_random() {
    let test = "broker::random_programs_are_parked_at_random";
    if inside().is_some() {
        return crate::programs::programs(&Cuda::open(), 1);
    }
    let seeds = std::env::var("GPUOS_PRELOAD_SEEDS").unwrap_or_else(|_| "8".to_string());
    let more = [
        ("GPUOS_MEM_GRANT", "2147483648"),
        ("GPUOS_PRELOAD_SEEDS", seeds.as_str()),
        ("GPUOS_PRELOAD_SHAKE", "6"),
    ];
    let soon = AtomicBool::new(false);
    const LEAST: u64 = 3;
    let play = |listener: UnixListener, _: &Progress| {
        let mut talk = Talk::lent(&listener, [16, 2032, 2048], false)?;
        let mut turns = 0_u64;
        // Until the program has ended.
        loop {
            std::thread::sleep(Duration::from_millis(20 + turns * 37 % 150));
            let park = ToProgram::Park {
                deadline_ms: 60_000,
            };
            for (line, left) in [(park.line(), 20), (ToProgram::Turn.line(), 0)] {
                // A line that nobody takes: the program has ended.
                let said = talk.lines.get_mut().write_all(line.as_bytes());
                let told = said.map_err(|_| OVER.into()).and_then(|()| talk.next());
                match told {
                    Ok(FromProgram::Parked { .. } | FromProgram::Back { .. }) => {}
                    Err(why) if why == OVER => {
                        soon.store(turns < LEAST, Ordering::SeqCst);
                        return Ok(());
                    }
                    other => return Err(format!("{other:?} after {turns} turns")),
                }
                std::thread::sleep(Duration::from_millis(turns % (left + 1)));
            }
            turns += 1;
        }
    };
    // This test may be let run less than the program. How the program ends is looked at each time.
    let enough = (0..RUNS).any(|_| {
        plays(test, &more, play).unwrap();
        !soon.load(Ordering::SeqCst)
    });
    assert!(enough, "each time it ended before its third turn");
}

/// One of two GPUs is not given: the program has that as the driver gives it, and the other in tiers.
#[test]
fn one_gpu_that_is_refused_is_not_both() {
    let test = "broker::one_gpu_that_is_refused_is_not_both";
    if inside().is_some() {
        let cuda = Cuda::open();
        cuda.context(0);
        assert_eq!(cuda.info(), (96 * MIB, 96 * MIB));
        let first = cuda.alloc(80 * MIB);
        cuda.upload(first + 79 * MIB, &[7; 4096]);
        cuda.get("cuCtxCreate_v2", &[0, 1]);
        assert_eq!(cuda.info().1, 64 * MIB);
        let second = cuda.alloc(8 * MIB);
        cuda.upload(second, &[8; 4096]);
        assert_eq!(cuda.download(second, 4096), [8; 4096]);
        assert_eq!(cuda.download(first + 79 * MIB, 4096), [7; 4096]);
        return;
    }
    let more = [
        ("GPUOS_MEM_GRANT", "1073741824"),
        ("GPUOS_CUDA", "devices=2,memory=64M"),
    ];
    let said = plays(test, &more, |listener, _| {
        let mut talk = Talk::accept(&listener);
        let first = talk.begin(None)?;
        let FromProgram::Ask { gpu: second, .. } = talk.next()? else {
            return Err("it asks for one GPU".into());
        };
        talk.say(&ToProgram::Without {
            gpu: second,
            why: "the job has no such GPU here".into(),
        });
        talk.lease(first, [32, 64, 0], false);
        Ok(())
    })
    .unwrap();
    let told = "gpuos: GPU 1: the job has no such GPU here: the program has its memory as the driver gives it\n";
    assert_eq!(said.matches(told).count(), 1, "{said}");
}

#[test]
fn a_program_without_its_turn_waits_for_it() {
    let test = "broker::a_program_without_its_turn_waits_for_it";
    if let Some(folder) = inside() {
        let cuda = Cuda::open();
        cuda.context(0);
        std::fs::write(folder.join("began"), "").unwrap();
        return work(&folder, &cuda, 32);
    }
    plays(test, &[], |listener, progress| {
        let mut talk = Talk::lent(&listener, [128, 0, 128], true)?;
        let began = Progress(progress.0.with_file_name("began"));
        let deadline = Instant::now() + LIMIT;
        while !began.0.exists() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
        progress.rests()?;
        if progress.rounds() > 0 {
            return Err("it did not wait".into());
        }
        talk.say(&ToProgram::Turn);
        match talk.next()? {
            FromProgram::Back { moved: 0, .. } => progress.until_more_than(1),
            other => Err(format!("{other:?}")),
        }
    })
    .unwrap();
}

#[test]
fn a_program_says_when_it_has_no_work_and_when_it_has() {
    let test = "broker::a_program_says_when_it_has_no_work_and_when_it_has";
    if let Some(folder) = inside() {
        let cuda = Cuda::open();
        cuda.context(0);
        let at = cuda.alloc(8 * MIB);
        while !folder.join("again").exists() {
            std::thread::sleep(Duration::from_millis(2));
        }
        cuda.ok("cuMemsetD8_v2", &[at, 3, 4096]);
        // A kernel that has not ended is work.
        let (flag, wait) = (cuda.flag(), cuda.kernel("wait"));
        assert_eq!(cuda.launch(wait, 0, &[flag.0, 1]), 0);
        std::fs::write(folder.join("waits"), "").unwrap();
        while !folder.join("end").exists() {
            std::thread::sleep(Duration::from_millis(2));
        }
        flag.set(1);
        cuda.ok("cuCtxSynchronize", &[]);
        return;
    }
    plays(test, &[], |listener, progress| {
        let mut talk = Talk::accept(&listener);
        let gpu = talk.begin(None)?;
        // As where all that is parked goes to NVMe.
        talk.say(&ToProgram::Lease {
            gpu,
            hbm: 128 * MIB,
            host: 0,
            refuge: 1,
            wait: false,
        });
        let idle = talk.next_of_work()?;
        std::fs::write(progress.0.with_file_name("again"), "").expect("a file");
        let busy = talk.next_of_work()?;
        if (idle, busy) != (FromProgram::Idle, FromProgram::Busy) {
            return Err(format!("{idle:?}, {busy:?}"));
        }
        let waits = progress.0.with_file_name("waits");
        let deadline = Instant::now() + LIMIT;
        while !waits.exists() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
        // While the kernel runs nothing is said, for longer than it takes to be idle. What was before it may have been done for so long.
        talk.lines
            .get_ref()
            .set_read_timeout(Some(Duration::from_secs(1)))
            .expect("a time");
        let mut last = FromProgram::Busy;
        while Instant::now() < deadline {
            match talk.next_of_work() {
                Ok(said @ (FromProgram::Idle | FromProgram::Busy)) => last = said,
                Err(silent) if silent.contains("says nothing") => {
                    if last == FromProgram::Busy {
                        return Ok(());
                    }
                }
                other => return Err(format!("{other:?}")),
            }
        }
        Err(format!("at last {last:?}"))
    })
    .unwrap();
}

#[test]
fn a_program_comes_back_to_a_gpuosd_that_was_started_anew() {
    let test = "broker::a_program_comes_back_to_a_gpuosd_that_was_started_anew";
    if let Some(folder) = inside() {
        let cuda = Cuda::open();
        cuda.context(0);
        return work(&folder, &cuda, 32);
    }
    plays(test, &[], |listener, progress| {
        let mut talk = Talk::accept(&listener);
        let gpu = talk.begin(None)?;
        talk.lease(gpu, [128, 0, 128], false);
        progress.until_more_than(1)?;
        drop(talk);
        let mut talk = Talk::accept(&listener);
        talk.begin(Some(false))?;
        talk.lease(gpu, [128, 0, 128], false);
        talk.say(&ToProgram::Park {
            deadline_ms: 60_000,
        });
        match talk.next()? {
            FromProgram::Parked { .. } => {}
            other => return Err(format!("{other:?}")),
        }
        // It stays parked while nobody is there.
        drop(talk);
        let mut talk = Talk::accept(&listener);
        talk.begin(Some(true))?;
        progress.rests()?;
        talk.say(&ToProgram::Turn);
        match talk.next()? {
            FromProgram::Back { .. } => progress.until_more_than(progress.rounds()),
            other => Err(format!("{other:?}")),
        }
    })
    .unwrap();
}

/// Sockets among the open files of this process.
fn sockets() -> usize {
    let is_socket = |fd: &i32| {
        // SAFETY: a structure of numbers, for which zero is a value; fstat writes it or fails.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        let known = unsafe { libc::fstat(*fd, &raw mut stat) } == 0;
        known && stat.st_mode & libc::S_IFMT == libc::S_IFSOCK
    };
    (3..256).filter(is_socket).count()
}

#[test]
fn a_child_of_fork_keeps_no_connection_and_a_checkpoint_can_close_it() {
    let test = "broker::a_child_of_fork_keeps_no_connection_and_a_checkpoint_can_close_it";
    if inside().is_some() {
        let cuda = Cuda::open();
        cuda.context(0);
        let own = sockets();
        assert!(own > 0);
        // SAFETY: the child looks at its files and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let left = sockets();
            // SAFETY: ends the child without handlers of the parent's.
            unsafe { libc::_exit(i32::from(left != own - 1)) };
        }
        let mut status = 0;
        // SAFETY: waits for the child above.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        // SAFETY: it is loaded already.
        let library = unsafe { libloading::Library::new(preload()) }.unwrap();
        let call = |name: &str| {
            // SAFETY: the functions have no arguments and answer a number.
            let function = unsafe { library.get::<extern "C" fn() -> i32>(name.as_bytes()) };
            function.unwrap()()
        };
        assert_eq!((call("gpuos_mem_disconnect"), sockets()), (0, own - 1));
        assert_eq!((call("gpuos_mem_connect"), sockets()), (0, own));
        let at = cuda.alloc(8 * MIB);
        cuda.upload(at, &[7; 4096]);
        assert_eq!(cuda.download(at, 4096), [7; 4096]);
        return;
    }
    plays(test, &[], |listener, _| {
        let mut talk = Talk::accept(&listener);
        let gpu = talk.begin(None)?;
        talk.lease(gpu, [128, 0, 0], false);
        match talk.next()? {
            FromProgram::Bye => {}
            other => return Err(format!("{other:?}")),
        }
        let mut again = Talk::accept(&listener);
        again.begin(Some(false))?;
        // It works meanwhile by what it had, and may have ended.
        let lease = ToProgram::Lease {
            gpu,
            hbm: 128 * MIB,
            host: 0,
            refuge: 0,
            wait: false,
        };
        let _ = again.lines.get_mut().write_all(lease.line().as_bytes());
        // Until the program has ended: a connection that ends is opened again.
        let _ = again.next();
        Ok(())
    })
    .unwrap();
}
