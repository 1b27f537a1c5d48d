//! A program whose memory cannot be moved: a gpuosd that this test plays has the driver hold it.

use std::time::{Duration, Instant};

use gpuos_memory::protocol::{FromProgram, ToProgram};

use crate::common::Cuda;
use crate::played::{LIMIT, Talk, inside, plays, work};
use crate::shim::MIB;

fn told(talk: &mut Talk, wanted: FromProgram) -> Result<(), String> {
    match talk.next()? {
        told if told == wanted => Ok(()),
        told => Err(format!("{told:?} and not {wanted:?}")),
    }
}

#[test]
fn a_program_that_cannot_be_moved_says_so_each_time_that_it_is_to_park() {
    let test = "held::a_program_that_cannot_be_moved_says_so_each_time_that_it_is_to_park";
    if let Some(folder) = inside() {
        let cuda = Cuda::open();
        cuda.context(0);
        // It fails here. That it was called is enough.
        assert_ne!(cuda.code("cuGreenCtxCreate", &[0; 4]), 0);
        return work(&folder, &cuda, 96);
    }
    let (deadline_ms, none) = (60_000, FromProgram::Demoted { bytes: 0 });
    plays(test, &[], |listener, progress| {
        let mut talk = Talk::lent(&listener, [128, 0, 128], false)?;
        told(&mut talk, FromProgram::Pinned)?;
        for _ in 0..2 {
            progress.until_more_than(progress.rounds() + 1)?;
            talk.say(&ToProgram::Park { deadline_ms });
            told(&mut talk, FromProgram::Pinned)?;
            // Whoever has the driver hold it waits for nothing that the driver would have to do.
            talk.say(&ToProgram::Trim { deadline_ms });
            told(&mut talk, none)?;
            // gpuosd is started anew meanwhile.
            drop(talk);
            talk = Talk::accept(&listener);
            let gpu = talk.begin(Some(false))?;
            talk.lease(gpu, [128, 0, 128], true);
            told(&mut talk, FromProgram::Pinned)?;
            talk.say(&ToProgram::Turn);
            match talk.next()? {
                FromProgram::Back { moved: 0, .. } => {}
                other => return Err(format!("{other:?}")),
            }
        }
        progress.until_more_than(progress.rounds() + 1)
    })
    .unwrap();
}

/// With its turn on a new connection it has what it is given then.
#[test]
fn a_program_that_was_held_has_what_it_is_given_with_its_turn() {
    let test = "held::a_program_that_was_held_has_what_it_is_given_with_its_turn";
    if let Some(folder) = inside() {
        let cuda = Cuda::open();
        cuda.context(0);
        assert_ne!(cuda.code("cuGreenCtxCreate", &[0; 4]), 0);
        cuda.alloc(8 * MIB);
        let deadline = Instant::now() + LIMIT;
        let mut at = 0_u64;
        // More than is in the GPU, until nothing of the host is the program's any more.
        while cuda.code("cuMemAlloc_v2", &[&raw mut at as u64, 40 * MIB]) == 0 {
            cuda.ok("cuMemFree_v2", &[at]);
            assert!(Instant::now() < deadline, "it has what it had before");
            std::thread::sleep(Duration::from_millis(2));
        }
        std::fs::write(folder.join("progress"), ".").unwrap();
        return;
    }
    plays(test, &[], |listener, progress| {
        let mut talk = Talk::lent(&listener, [32, 32, 0], false)?;
        told(&mut talk, FromProgram::Pinned)?;
        talk.say(&ToProgram::Park {
            deadline_ms: 60_000,
        });
        told(&mut talk, FromProgram::Pinned)?;
        drop(talk);
        let mut talk = Talk::accept(&listener);
        let gpu = talk.begin(Some(false))?;
        talk.lease(gpu, [32, 0, 0], false);
        progress.until_more_than(0)
    })
    .unwrap();
}
