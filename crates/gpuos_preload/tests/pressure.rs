//! A gpuosd that this test plays says that memory is short, that the program has less of the GPU, and what it may move. The program works on,
//! and what it computes is right.

use std::path::Path;
use std::time::{Duration, Instant};

use gpuos_memory::protocol::{Figures, FromProgram, NOT_UNDERSTOOD, Short, ToProgram, Uuid};

use crate::common::Cuda;
use crate::played::{Talk, inside, plays, work};
use crate::shim::MIB;

/// A busy machine is no fault.
const LIMIT: Duration = Duration::from_secs(180);

/// What of the library's a program calls without arguments.
fn call(name: &str) -> i32 {
    // SAFETY: the library is loaded already; the functions have no arguments and answer a number.
    unsafe {
        let this = libloading::os::unix::Library::this();
        let function = this.get::<extern "C" fn() -> i32>(name.as_bytes());
        function.expect("the library's function")()
    }
}

/// Works on so much memory, and notes each word about what is short in a file.
fn works_and_listens(folder: &Path, mib: u64) {
    let cuda = Cuda::open();
    cuda.context(0);
    let own = folder.to_path_buf();
    let bell = call("gpuos_mem_short_fd");
    assert!(bell >= 0);
    std::thread::spawn(move || {
        loop {
            let mut poll = libc::pollfd {
                fd: bell,
                events: libc::POLLIN,
                revents: 0,
            };
            // SAFETY: one structure of this frame.
            let ready = unsafe { libc::poll(&raw mut poll, 1, -1) };
            if ready == 1 {
                let told = call("gpuos_mem_short").to_string();
                std::fs::write(own.join("short"), told).expect("a file");
            }
        }
    });
    work(folder, &cuda, mib);
}

/// Says something until figures are as wanted.
fn figures(talk: &mut Talk, what: &str, wanted: impl Fn(&Figures) -> bool) -> Result<(), String> {
    let deadline = Instant::now() + LIMIT;
    let mut last = Figures::default();
    while Instant::now() < deadline {
        if let FromProgram::Figures(told) = talk.line()? {
            if wanted(&told) {
                return Ok(());
            }
            last = told;
        }
    }
    Err(format!("{what}: {last:?}"))
}

fn short(folder: &Path, wanted: &str) -> Result<(), String> {
    let deadline = Instant::now() + LIMIT;
    while std::fs::read_to_string(folder.join("short")).unwrap_or_default() != wanted {
        if Instant::now() >= deadline {
            return Err(format!("it was not told {wanted}"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

#[test]
fn a_program_hears_what_is_short_and_works_with_less_of_its_gpu() {
    let test = "pressure::a_program_hears_what_is_short_and_works_with_less_of_its_gpu";
    if let Some(folder) = inside() {
        return works_and_listens(&folder, 96);
    }
    plays(test, &[], |listener, progress| {
        let folder = progress.folder();
        let mut talk = Talk::accept(&listener);
        let gpu = talk.begin(None)?;
        talk.lease(gpu, [128, 128, 0], false);
        progress.until_more_than(1)?;
        talk.say(&ToProgram::Pressure(Short::Node));
        short(folder, "1")?;
        talk.say(&ToProgram::Pressure(Short::Job));
        short(folder, "2")?;
        talk.say(&ToProgram::Trim { deadline_ms: 1000 });
        match talk.next()? {
            FromProgram::Demoted { bytes: 0 } => {}
            other => return Err(format!("{other:?}")),
        }
        // Half of it is somebody else's now.
        talk.lease(gpu, [32, 224, 0], false);
        // What is touched now is known to be hot. It is told once, unless something changes.
        figures(&mut talk, "it has less, and works", |told| {
            let known = told.heat.iter().sum::<u64>() == 96 * MIB && told.heat[0] > 0;
            told.pressed >= 64 * MIB && known
        })?;
        let before = progress.rounds();
        progress.until_more_than(before + 1)?;
        // It has it again, and less of the host: what lies there goes back, whoever moves it.
        talk.lease(gpu, [128, 8, 0], false);
        while !matches!(talk.line()?, FromProgram::Moved { down, up } if down == up && up >= 64 * MIB) {}
        talk.say(&ToProgram::Pressure(Short::Calm));
        short(folder, "0")?;
        progress.until_more_than(progress.rounds() + 1)
    })
    .map(|said| assert_eq!(said.matches("short of").count(), 2, "{said}"))
    .unwrap();
}

#[test]
fn a_gpuosd_of_an_earlier_release_is_asked_by_what_it_speaks() {
    let test = "pressure::a_gpuosd_of_an_earlier_release_is_asked_by_what_it_speaks";
    if inside().is_some() {
        let cuda = Cuda::open();
        cuda.context(0);
        assert_eq!(cuda.info().1, 96 * MIB);
        return;
    }
    plays(test, &[], |listener, _| {
        let mut talk = Talk::accept(&listener);
        let _: Uuid = talk.begin(None)?;
        let why: String = NOT_UNDERSTOOD.into();
        // By the next older one each time.
        for version in [2, 1] {
            talk.say(&ToProgram::Refused { why: why.clone() });
            talk = Talk::accept(&listener);
            let hello = talk.next()?;
            if hello != (FromProgram::Hello { version }) {
                return Err(format!("{hello:?}"));
            }
            if version > 1 {
                talk.next()?;
            }
        }
        let FromProgram::Ask { gpu, .. } = talk.next()? else {
            return Err("it asks for nothing".into());
        };
        talk.lease(gpu, [32, 64, 0], false);
        Ok(())
    })
    .unwrap();
}

#[test]
fn moves_that_nobody_waits_for_keep_to_their_part_of_the_link() {
    let test = "pressure::moves_that_nobody_waits_for_keep_to_their_part_of_the_link";
    if let Some(folder) = inside() {
        let cuda = Cuda::open();
        cuda.context(0);
        return work(&folder, &cuda, 96);
    }
    let lru = [("GPUOS_MEM_POLICY", "lru")];
    plays(test, &lru, |listener, progress| {
        let mut talk = Talk::accept(&listener);
        let gpu = talk.begin(None)?;
        // Of 96 MiB that are worked on in a loop 64 have room: with LRU something moves all the time.
        talk.lease(gpu, [64, 128, 0], false);
        let rate = 16 * MIB;
        talk.say(&ToProgram::Budget { gpu, rate });
        progress.until_more_than(1)?;
        let sum = |told: Figures| told.fetched + told.evicted;
        let mut first = None;
        loop {
            let FromProgram::Figures(told) = talk.line()? else {
                continue;
            };
            let (begun, before) = *first.get_or_insert((Instant::now(), sum(told)));
            let elapsed = begun.elapsed();
            if elapsed < Duration::from_secs(4) && progress.rounds() < 400 {
                continue;
            }
            // A batch may be more than its second has, and one was under way at each end.
            let most = rate * (elapsed.as_secs() + 1) + 256 * MIB;
            return match sum(told) - before <= most {
                true => Ok(()),
                false => Err(format!("{} bytes in {elapsed:?}", sum(told) - before)),
            };
        }
    })
    .unwrap();
}
