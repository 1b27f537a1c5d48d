//! What is parked in host memory that was made ahead: it is mapped nowhere else until the turn, and then all of it is where it was.

use gpuos_memory::protocol::{FromProgram, ToProgram};

use crate::common::Cuda;
use crate::played::{Progress, Talk, inside, plays, work};
use crate::shim::{MIB, RUNS};

/// The program's memory in MiB.
const WORK: u64 = 96;

/// Parks: so many MiB leave the GPU at least, and nothing is left there.
fn park(talk: &mut Talk, least: u64) -> Result<(), String> {
    talk.say(&ToProgram::Park {
        deadline_ms: 60_000,
    });
    match talk.next()? {
        FromProgram::Parked { moved, left, .. } if moved >= least * MIB && left < 2 * MIB => Ok(()),
        other => Err(format!("{other:?}")),
    }
}

fn turn(talk: &mut Talk, progress: &Progress) -> Result<(), String> {
    progress.rests()?;
    talk.say(&ToProgram::Turn);
    match talk.next()? {
        FromProgram::Back { .. } => {}
        other => return Err(format!("{other:?}")),
    }
    progress.until_more_than(progress.rounds() + 2)
}

const LESS: &str = "parked::a_program_that_has_less_room_at_its_turn_reads_the_rest_where_it_is";

/// Less of the GPU while it is parked, and more again.
fn less(mutant: Option<&str>) -> Result<String, String> {
    let planted = mutant.map(|mutant| ("GPUOS_PRELOAD_MUTANT", mutant));
    let more: Vec<(&str, &str)> = planted.into_iter().collect();
    plays(LESS, &more, |listener, progress| {
        let mut talk = Talk::accept(&listener);
        let gpu = talk.begin(None)?;
        talk.lease(gpu, [WORK, 96, 128], false);
        for _ in 0..2 {
            progress.until_more_than(progress.rounds() + 2)?;
            park(&mut talk, 16)?;
            talk.lease(gpu, [32, WORK, 128], false);
            turn(&mut talk, progress)?;
            // Most of it lies in host memory, and is parked there already.
            park(&mut talk, 0)?;
            talk.lease(gpu, [WORK, 96, 128], false);
            turn(&mut talk, progress)?;
        }
        Ok(())
    })
}

#[test]
fn a_program_that_has_less_room_at_its_turn_reads_the_rest_where_it_is() {
    if let Some(folder) = inside() {
        let cuda = Cuda::open();
        cuda.context(0);
        return work(&folder, &cuda, WORK);
    }
    less(None).unwrap();
}

#[test]
fn found_a_program_whose_parked_memory_is_not_mapped_again() {
    if cfg!(debug_assertions) {
        let found = (0..RUNS).find_map(|_| less(Some("parked-unseen")).err());
        found.expect("nobody found it");
    }
}

/// What the driver knows of an address is asked for when it is there.
#[test]
fn who_asks_about_parked_memory_waits_for_the_turn() {
    let test = "parked::who_asks_about_parked_memory_waits_for_the_turn";
    /// `CU_POINTER_ATTRIBUTE_DEVICE_POINTER`.
    const DEVICE_POINTER: u64 = 3;
    if let Some(folder) = inside() {
        let cuda = Cuda::open();
        cuda.context(0);
        let at = cuda.alloc(16 * MIB);
        std::fs::write(folder.join("progress"), "...").expect("a file");
        while !folder.join("end").exists() {
            let there = cuda.get("cuPointerGetAttribute", &[DEVICE_POINTER, at + MIB]);
            assert_eq!(there, at + MIB);
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        return;
    }
    plays(test, &[], |listener, progress| {
        let mut talk = Talk::lent(&listener, [64, 0, 64], false)?;
        progress.until_more_than(1)?;
        for _ in 0..3 {
            std::thread::sleep(std::time::Duration::from_millis(100));
            park(&mut talk, 16)?;
            std::thread::sleep(std::time::Duration::from_millis(50));
            talk.say(&ToProgram::Turn);
            match talk.next()? {
                FromProgram::Back { .. } => {}
                other => return Err(format!("{other:?}")),
            }
        }
        Ok(())
    })
    .unwrap();
}
