//! What programs map themselves, parked on NVMe: it is there again at all of its addresses, or the program is told.

use std::path::Path;

use gpuos_memory::protocol::{FromProgram, ToProgram};
use gpuos_memory::stow::PIECE;

use crate::common::Cuda;
use crate::played::{inside, plays};
use crate::shim::MIB;
use crate::stow::{Mover, State, until, works};

const BLOCK: u64 = 2 * MIB;
/// Bytes of the handles; the second one has two extents.
const SIZES: [u64; 3] = [6 * BLOCK, 34 * BLOCK, 2 * BLOCK];

/// A segment of handles, of which the third is mapped nowhere.
struct Segment {
    handles: [u64; 3],
    /// Where the first two are, ...
    starts: [u64; 2],
    /// ... and where parts of them are, too: from the first's second block on four blocks, of the second five over the border of its extents.
    alias: u64,
}

const PARTS: [(u64, u64); 2] = [(BLOCK, 4 * BLOCK), (30 * BLOCK, 4 * BLOCK)];

impl Segment {
    fn new(cuda: &Cuda) -> Segment {
        let handles = SIZES.map(|bytes| cuda.create(bytes, 0));
        let at = cuda.reserve(96 * MIB);
        let alias = cuda.reserve(64 * MIB);
        let starts = [at, at + SIZES[0]];
        for nth in 0..2 {
            cuda.map(starts[nth], SIZES[nth], 0, handles[nth], 0);
            let (offset, bytes) = PARTS[nth];
            let to = alias + nth as u64 * 16 * BLOCK;
            cuda.map(to, bytes, offset, handles[nth], 0);
        }
        Segment {
            handles,
            starts,
            alias,
        }
    }

    /// All blocks of the first two handles: where each is, and what it holds.
    fn blocks(&self) -> Vec<(u64, u8)> {
        let of = |nth: usize| {
            let start = self.starts[nth];
            (0..SIZES[nth] / BLOCK).map(move |block| start + block * BLOCK)
        };
        let all = of(0).chain(of(1)).enumerate();
        all.map(|(nth, at)| (at, nth as u8 + 1)).collect()
    }

    /// The same of the parts that are mapped once more.
    fn others(&self) -> Vec<(u64, u8)> {
        let of = |nth: usize| {
            let before = nth as u64 * SIZES[0] / BLOCK;
            let (offset, bytes) = PARTS[nth];
            let to = self.alias + nth as u64 * 16 * BLOCK;
            let first = before + offset / BLOCK + 1;
            (0..bytes / BLOCK).map(move |block| (to + block * BLOCK, (first + block) as u8))
        };
        of(0).chain(of(1)).collect()
    }
}

fn say(folder: &Path, name: &str, text: &str) {
    std::fs::write(folder.join(name), text).expect("a file");
}

#[test]
fn handles_of_a_program_come_back_at_all_their_addresses() {
    let test = "stow_handles::handles_of_a_program_come_back_at_all_their_addresses";
    if let Some(folder) = inside() {
        let cuda = Cuda::open();
        cuda.context(0);
        let segment = Segment::new(&cuda);
        for round in 0..4_u8 {
            for (at, byte) in segment.blocks() {
                cuda.upload(at, &[byte + round; 4096]);
                cuda.upload(at + BLOCK - 4096, &[byte + round; 4096]);
            }
            say(&folder, "progress", "...");
            say(&folder, &format!("written {round}"), "");
            until(|| folder.join(format!("parked {round}")).exists());
            // While nothing is behind the addresses, to change them waits for the program's turn.
            let part = segment.alias + 16 * BLOCK;
            cuda.ok("cuMemUnmap", &[part, PARTS[1].1]);
            say(&folder, &format!("unmapped {round}"), "");
            cuda.map(part, PARTS[1].1, PARTS[1].0, segment.handles[1], 0);
            for (at, byte) in segment.blocks().into_iter().chain(segment.others()) {
                for at in [at, at + BLOCK - 4096] {
                    let there = cuda.download(at, 4096);
                    assert!(there == [byte + round; 4096], "{at:#x}: {}", there[0]);
                }
            }
            until(|| folder.join(format!("heard {round}")).exists());
        }
        // What was mapped nowhere can be mapped now.
        let at = cuda.reserve(SIZES[2]);
        cuda.map(at, SIZES[2], 0, segment.handles[2], 0);
        cuda.upload(at, &[9; 4096]);
        assert!(cuda.download(at, 4096) == [9; 4096]);
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mover = Mover::start(folder.path(), State::default());
    plays(test, &[], |listener, progress| {
        let mut talk = works(&listener, progress)?;
        let folder = progress.folder();
        let whole: u64 = SIZES.iter().sum();
        for round in 0..4 {
            until(|| folder.join(format!("written {round}")).exists());
            // At once, or by way of host memory.
            let least = match round % 2 {
                0 => {
                    talk.stow(&mover, 112, true);
                    talk.is_parked(whole)?;
                    whole
                }
                _ => {
                    talk.say(&ToProgram::Park {
                        deadline_ms: 60_000,
                    });
                    talk.is_parked(whole)?;
                    let mover = mover.name();
                    talk.say(&ToProgram::Demote {
                        deadline_ms: 60_000,
                        bytes: whole / 2,
                        mover,
                    });
                    match talk.next()? {
                        FromProgram::Demoted { bytes } if bytes >= whole / 2 => bytes,
                        other => return Err(format!("{other:?}")),
                    }
                }
            };
            if mover.held() != least {
                return Err(format!("{} bytes of {least} on NVMe", mover.held()));
            }
            say(folder, &format!("parked {round}"), "");
            std::thread::sleep(std::time::Duration::from_millis(100));
            if folder.join(format!("unmapped {round}")).exists() {
                return Err("addresses were changed while it was parked".into());
            }
            talk.turn(whole)?;
            say(folder, &format!("heard {round}"), "");
        }
        Ok(())
    })
    .unwrap();
}

/// Whose bytes do not come back has an error, and can free what is left.
#[test]
fn a_handle_of_which_a_piece_is_damaged_is_lost_and_can_be_freed() {
    let test = "stow_handles::a_handle_of_which_a_piece_is_damaged_is_lost_and_can_be_freed";
    if let Some(folder) = inside() {
        let cuda = Cuda::open();
        cuda.context(0);
        let segment = Segment::new(&cuda);
        for (at, byte) in segment.blocks() {
            cuda.upload(at, &[byte; 4096]);
        }
        say(&folder, "progress", "...");
        until(|| folder.join("again").exists());
        // The second handle's first extent of 32 blocks is gone, its second one is there.
        let lost = |at: u64| (segment.starts[1]..segment.starts[1] + 32 * BLOCK).contains(&at);
        for (at, byte) in segment.blocks() {
            if !lost(at) {
                assert!(cuda.download(at, 4096) == [byte; 4096], "{at:#x}");
            }
        }
        for (start, bytes) in [
            (segment.alias + 16 * BLOCK, PARTS[1].1),
            (segment.starts[1], SIZES[1]),
        ] {
            cuda.ok("cuMemUnmap", &[start, bytes]);
        }
        // A handle without bytes is mapped no more.
        let words = [segment.starts[1], SIZES[1], 0, segment.handles[1], 0];
        assert_ne!(cuda.code("cuMemMap", &words), 0);
        for handle in segment.handles {
            cuda.ok("cuMemRelease", &[handle]);
        }
        // Its addresses can have others.
        let other = cuda.create(SIZES[1], 0);
        cuda.map(segment.starts[1], SIZES[1], 0, other, 0);
        cuda.upload(segment.starts[1], &[5; 4096]);
        assert!(cuda.download(segment.starts[1], 4096) == [5; 4096]);
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    // A piece of the second handle, behind the three of the first.
    let mut damaged = State::default();
    damaged.damaged = Some(4 * PIECE);
    let mover = Mover::start(folder.path(), damaged);
    let said = plays(test, &[], |listener, progress| {
        let mut talk = works(&listener, progress)?;
        talk.stow(&mover, 112, true);
        talk.is_parked(SIZES.iter().sum())?;
        talk.turn(0)?;
        say(progress.folder(), "again", "");
        Ok(())
    })
    .unwrap();
    assert!(said.contains("cannot be had back from NVMe"), "{said}");
}
