//! What is parked on NVMe: a gpuosd and a gpuos_mover that this test plays, and a program that has its bytes again, or is told.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use gpuos_memory::protocol::{FromProgram, ToProgram};
use gpuos_memory::stow::{self, Digest, PIECE};

use crate::common::Cuda;
use crate::played::{Progress, Talk, inside, plays, work};
use crate::shim::{MIB, RUNS};

/// What the mover of this test does, and has done.
#[derive(Default)]
pub(crate) struct State {
    /// Pieces by their place.
    pieces: BTreeMap<u64, Vec<u8>>,
    /// After so many answers the connection ends, once.
    ends_after: Option<u64>,
    /// So many puts are done, and those that follow fail.
    room: Option<u64>,
    /// The segment may be so long.
    limit: Option<u64>,
    /// What lies at this place is damaged.
    pub(crate) damaged: Option<u64>,
    /// Connections so far.
    connections: u64,
    dropped: u64,
}

/// A mover that keeps pieces in memory.
#[derive(Clone)]
pub(crate) struct Mover {
    path: PathBuf,
    state: Arc<Mutex<State>>,
}

impl Mover {
    pub(crate) fn start(folder: &Path, state: State) -> Mover {
        let path = folder.join("mover socket");
        let listener = UnixListener::bind(&path).expect("a socket");
        let mover = Mover {
            path,
            state: Arc::new(Mutex::new(state)),
        };
        let own = mover.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                own.serve(stream.expect("a connection"));
            }
        });
        mover
    }

    pub(crate) fn name(&self) -> String {
        self.path.to_str().expect("a path").to_owned()
    }

    pub(crate) fn held(&self) -> u64 {
        let state = self.state.lock().expect("nobody failed");
        state.pieces.values().map(|piece| piece.len() as u64).sum()
    }

    fn serve(&self, stream: UnixStream) {
        let Some((ring, slots)) = hello(&stream) else {
            return;
        };
        let limit = {
            let mut state = self.state.lock().expect("nobody failed");
            state.connections += 1;
            state.limit.unwrap_or(1 << 40)
        };
        let mut to = stream.try_clone().expect("a connection");
        let mut say = |what: stow::ToProgram| drop(to.write_all(what.line().as_bytes()));
        say(stow::ToProgram::Ready { limit });
        for line in BufReader::new(&stream).lines().map_while(Result::ok) {
            let mut state = self.state.lock().expect("nobody failed");
            if let Some(left) = &mut state.ends_after {
                if *left == 0 {
                    state.ends_after = None;
                    return;
                }
                *left -= 1;
            }
            let said = stow::FromProgram::parse(line.as_bytes()).expect("a message");
            say(state.answer(&said, &ring, slots));
        }
    }
}

impl State {
    fn answer(&mut self, said: &stow::FromProgram, ring: &File, slots: u32) -> stow::ToProgram {
        use stow::{FromProgram as Said, ToProgram as Told};
        let failed = |slot, why: &str| Told::Failed {
            slot,
            why: why.into(),
        };
        match *said {
            Said::Put { slot, at, bytes } => {
                assert!(slot < slots && bytes <= PIECE);
                if self.room == Some(0) {
                    return failed(slot, "the disk is full");
                }
                self.room = self.room.map(|room| room - 1);
                let mut piece = vec![0; bytes as usize];
                let from = u64::from(slot) * PIECE;
                ring.read_exact_at(&mut piece, from).expect("the ring");
                let digest = digest(at, &piece);
                self.pieces.insert(at, piece);
                Told::Done { slot, digest }
            }
            Said::Get {
                slot,
                at,
                digest: wanted,
                ..
            } => {
                let piece = self.pieces.get(&at).filter(|_| self.damaged != Some(at));
                match piece.filter(|piece| digest(at, piece) == wanted) {
                    Some(piece) => {
                        let to = u64::from(slot) * PIECE;
                        ring.write_all_at(piece, to).expect("the ring");
                        Told::Done {
                            slot,
                            digest: wanted,
                        }
                    }
                    None => failed(slot, "these are not the bytes that were written there"),
                }
            }
            Said::Drop => {
                self.pieces.clear();
                self.dropped += 1;
                Told::Dropped
            }
            Said::Hello { .. } => panic!("a second hello"),
        }
    }
}

fn digest(at: u64, bytes: &[u8]) -> Digest {
    let sum = bytes.iter().fold(at, |sum, byte| {
        sum.rotate_left(5).wrapping_mul(31) ^ u64::from(*byte)
    });
    let mut digest = [7; 32];
    digest[..8].copy_from_slice(&sum.to_le_bytes());
    Digest(digest)
}

/// The ring, and how many slots it has.
fn hello(stream: &UnixStream) -> Option<(File, u32)> {
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
    let mut bytes = [0; 64];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut into = [std::io::IoSliceMut::new(&mut bytes)];
    let got = recvmsg(stream, &mut into, &mut control, RecvFlags::empty()).ok()?;
    let mut files: Vec<OwnedFd> = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            files.extend(rights);
        }
    }
    match stow::FromProgram::parse(&bytes[..got.bytes]).ok()? {
        stow::FromProgram::Hello { slots, .. } => Some((files.pop()?.into(), slots)),
        _ => None,
    }
}

impl Talk {
    pub(crate) fn stow(&mut self, mover: &Mover, mib: u64, all: bool) {
        self.say(&ToProgram::Stow {
            deadline_ms: 60_000,
            bytes: mib * MIB,
            all,
            mover: mover.name(),
        });
    }

    pub(crate) fn is_parked(&mut self, least: u64) -> Result<(), String> {
        match self.next()? {
            FromProgram::Parked { moved, left, .. } if moved >= least && left < 2 * MIB => Ok(()),
            other => Err(format!("{other:?}")),
        }
    }

    pub(crate) fn turn(&mut self, least: u64) -> Result<(), String> {
        self.say(&ToProgram::Turn);
        match self.next()? {
            FromProgram::Back { moved, .. } if moved >= least => Ok(()),
            other => Err(format!("{other:?}")),
        }
    }
}

/// Of 96 MiB so many are in the GPU's memory at least: the policy may have brought some to host memory and nothing back yet.
const SOME: u64 = 56 * MIB;

const TURNS: &str = "stow::a_program_has_its_bytes_again_from_nvme";

/// The program of this file's tests: 96 MiB of the GPU's memory and 16 of the host's, all looked at in each round.
fn program() -> bool {
    let Some(folder) = inside() else {
        return false;
    };
    let cuda = Cuda::open();
    cuda.context(0);
    work(&folder, &cuda, 112);
    true
}

/// Parks a part, and all, and what is parked already; each time the program works on with what it had.
fn turns(mutant: Option<&str>, state: impl Fn() -> State) -> Result<u64, String> {
    let planted = mutant.map(|mutant| ("GPUOS_PRELOAD_MUTANT", mutant));
    let more: Vec<(&str, &str)> = planted.into_iter().collect();
    let folder = tempfile::tempdir().expect("a folder");
    let mover = Mover::start(folder.path(), state());
    let seen = mover.state.clone();
    plays(TURNS, &more, |listener, progress| {
        let mut talk = Talk::lent(&listener, [96, 16, 128], false)?;
        for round in 0..2 {
            progress.until_more_than(progress.rounds() + 1)?;
            talk.stow(&mover, 40, false);
            talk.is_parked(SOME)?;
            let held = mover.held();
            if !(40 * MIB..=48 * MIB).contains(&held) {
                return Err(format!("{held} bytes on NVMe"));
            }
            progress.rests()?;
            talk.turn(SOME)?;
            if mover.held() != 0 {
                return Err("something is left on NVMe".into());
            }
            progress.until_more_than(progress.rounds() + 1)?;
            talk.stow(&mover, 112, true);
            talk.is_parked(112 * MIB)?;
            if mover.held() != 112 * MIB {
                return Err(format!("{} bytes of all on NVMe", mover.held()));
            }
            talk.turn(112 * MIB)?;
            progress.until_more_than(progress.rounds() + 1)?;
            talk.say(&ToProgram::Park {
                deadline_ms: 60_000,
            });
            talk.is_parked(SOME)?;
            let mib = [48, 24][round];
            talk.say(&ToProgram::Demote {
                deadline_ms: 60_000,
                bytes: mib * MIB,
                mover: mover.name(),
            });
            match talk.next()? {
                FromProgram::Demoted { bytes } if bytes >= mib * MIB && bytes == mover.held() => {}
                other => return Err(format!("{other:?}")),
            }
            progress.rests()?;
            talk.turn(SOME)?;
        }
        progress.until_more_than(progress.rounds() + 1)
    })?;
    let connections = seen.lock().expect("nobody failed").connections;
    Ok(connections)
}

#[test]
fn a_program_has_its_bytes_again_from_nvme() {
    if !program() {
        assert_eq!(turns(None, State::default).unwrap(), 12);
    }
}

#[test]
fn found_a_program_that_parks_nothing_on_nvme_or_takes_nothing_back() {
    if cfg!(debug_assertions) {
        for mutant in ["stow-nothing", "unstow-nothing"] {
            let found = (0..RUNS).find_map(|_| turns(Some(mutant), State::default).err());
            let found = found.expect("nobody found it");
            // The program has other bytes than its own.
            assert!(found.contains("assertion `left == right`"), "{found}");
        }
    }
}

#[test]
fn a_mover_that_ends_at_any_moment_is_found_again_and_loses_nothing() {
    for ends_after in [0, 1, 5, 11, 12, 20, 40, 44, 51, 64, 80] {
        let state = || State {
            ends_after: Some(ends_after),
            ..State::default()
        };
        assert_eq!(turns(None, state).unwrap(), 13, "{ends_after}");
    }
}

#[test]
fn what_nvme_does_not_take_stays_and_the_program_works_on() {
    let test = "stow::what_nvme_does_not_take_stays_and_the_program_works_on";
    if program() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let full = State {
        room: Some(5),
        ..State::default()
    };
    let mover = Mover::start(folder.path(), full);
    let said = plays(test, &[], |listener, progress| {
        let mut talk = works(&listener, progress)?;
        talk.stow(&mover, 112, true);
        match talk.next()? {
            FromProgram::NotParked => {}
            other => return Err(format!("{other:?}")),
        }
        progress.until_more_than(progress.rounds() + 1)?;
        // In host memory there is room.
        talk.say(&ToProgram::Park {
            deadline_ms: 60_000,
        });
        talk.is_parked(SOME)?;
        // Of what is to be demoted nothing goes, and it stays where it is.
        talk.say(&ToProgram::Demote {
            deadline_ms: 60_000,
            bytes: 96 * MIB,
            mover: mover.name(),
        });
        match talk.next()? {
            FromProgram::Demoted { bytes } if bytes <= 16 * MIB => {}
            other => return Err(format!("{other:?}")),
        }
        talk.turn(SOME)?;
        progress.until_more_than(progress.rounds() + 1)
    })
    .unwrap();
    let told = "gpuos: memory cannot be parked on NVMe: the disk is full\n";
    assert!(said.contains(told), "{said}");
}

#[test]
fn what_is_damaged_is_lost_and_never_seen() {
    let test = "stow::what_is_damaged_is_lost_and_never_seen";
    if let Some(folder) = inside() {
        let cuda = Cuda::open();
        cuda.context(0);
        let [one, other] = [(); 2].map(|()| cuda.alloc(8 * MIB));
        let places: Vec<u64> = [one, other]
            .into_iter()
            .flat_map(|at| (0..4).map(move |part| at + part * 2 * MIB))
            .collect();
        for at in &places {
            cuda.upload(*at, &[7; 4096]);
        }
        std::fs::write(folder.join("progress"), "...").unwrap();
        while !folder.join("again").exists() {
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        // What is whole is there; what is damaged is an error, after which the context is none any more, and not other bytes.
        let damaged = 2;
        for (nth, at) in places.iter().enumerate() {
            if nth != damaged {
                assert!(cuda.download(*at, 4096) == [7; 4096]);
            }
        }
        let mut bytes = [9_u8; 4096];
        let words = [bytes.as_mut_ptr() as u64, places[damaged], 4096];
        assert_ne!(cuda.code("cuMemcpyDtoH_v2", &words), 0);
        assert!(bytes == [9; 4096]);
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let damaged = State {
        damaged: Some(PIECE),
        ..State::default()
    };
    let mover = Mover::start(folder.path(), damaged);
    let said = plays(test, &[], |listener, progress| {
        let mut talk = works(&listener, progress)?;
        talk.stow(&mover, 112, true);
        talk.is_parked(16 * MIB)?;
        talk.turn(8 * MIB)?;
        std::fs::write(progress.0.with_file_name("again"), "").expect("a file");
        Ok(())
    })
    .unwrap();
    assert!(said.contains("cannot be had back from NVMe"), "{said}");
    assert!(said.contains("work that touches them fails"), "{said}");
}

#[test]
fn a_program_on_nvme_comes_back_to_a_gpuosd_that_was_started_anew() {
    let test = "stow::a_program_on_nvme_comes_back_to_a_gpuosd_that_was_started_anew";
    if program() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mover = Mover::start(folder.path(), State::default());
    plays(test, &[], |listener, progress| {
        let mut talk = works(&listener, progress)?;
        talk.stow(&mover, 112, true);
        talk.is_parked(112 * MIB)?;
        drop(talk);
        let mut talk = Talk::accept(&listener);
        for wanted in [FromProgram::Hello { version: 3 }, FromProgram::ReturnStowed] {
            let told = talk.next()?;
            if told != wanted {
                return Err(format!("{told:?}"));
            }
        }
        talk.next()?;
        talk.turn(112 * MIB)?;
        progress.until_more_than(progress.rounds() + 1)?;
        // What was demoted and may not have been heard of is said once more, and not done twice.
        talk.say(&ToProgram::Park {
            deadline_ms: 60_000,
        });
        talk.is_parked(SOME)?;
        let demote = ToProgram::Demote {
            deadline_ms: 60_000,
            bytes: 24 * MIB,
            mover: mover.name(),
        };
        talk.say(&demote);
        let first = talk.next()?;
        drop(talk);
        let mut talk = Talk::accept(&listener);
        talk.begin(Some(true))?;
        talk.say(&demote);
        if talk.next()? != first {
            return Err("it demotes twice".into());
        }
        talk.turn(SOME)?;
        progress.until_more_than(progress.rounds() + 1)
    })
    .unwrap();
}

/// The program has its lease, and works.
pub(crate) fn works(listener: &UnixListener, progress: &Progress) -> Result<Talk, String> {
    let talk = Talk::lent(listener, [96, 16, 128], false)?;
    progress.until_more_than(1)?;
    Ok(talk)
}

pub(crate) fn until(what: impl Fn() -> bool) {
    while !what() {
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

/// To free it waits for the process's turn, as all else does: what is on NVMe would be forgotten, and given to the next as if it were there.
#[test]
fn what_is_freed_while_it_is_on_nvme_is_whole_for_who_has_it_next() {
    let test = "stow::what_is_freed_while_it_is_on_nvme_is_whole_for_who_has_it_next";
    const THRESHOLD: u64 = 4;
    if let Some(folder) = inside() {
        let cuda = Cuda::open();
        cuda.context(0);
        let stream = cuda.stream();
        let pool = cuda.get("cuDeviceGetMemPool", &[0]);
        cuda.set_pool_attribute(pool, THRESHOLD, 64 * MIB);
        let at = cuda.alloc_async(8 * MIB, stream);
        cuda.ok("cuStreamSynchronize", &[stream]);
        std::fs::write(folder.join("progress"), "...").unwrap();
        until(|| folder.join("again").exists());
        cuda.free_async(at, stream);
        let at = cuda.alloc_async(8 * MIB, stream);
        for part in 0..4 {
            cuda.upload(at + part * 2 * MIB, &[7; 4096]);
            assert!(cuda.download(at + part * 2 * MIB, 4096) == [7; 4096]);
        }
        until(|| folder.join("heard").exists());
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mover = Mover::start(folder.path(), State::default());
    plays(test, &[], |listener, progress| {
        let mut talk = works(&listener, progress)?;
        talk.stow(&mover, 112, true);
        talk.is_parked(8 * MIB)?;
        std::fs::write(progress.folder().join("again"), "").expect("a file");
        std::thread::sleep(std::time::Duration::from_millis(200));
        let heard = talk.turn(0);
        std::fs::write(progress.folder().join("heard"), "").expect("a file");
        heard
    })
    .unwrap();
}

/// A process that may open no more files waits for some to be closed, and its bytes are where they were.
#[test]
fn who_has_too_many_open_files_loses_nothing() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let test = "stow::who_has_too_many_open_files_loses_nothing";
    if let Some(folder) = inside() {
        let cuda = Cuda::open();
        cuda.context(0);
        let at = cuda.alloc(8 * MIB);
        cuda.upload(at, &[7; 4096]);
        std::fs::write(folder.join("progress"), "...").unwrap();
        until(|| folder.join("again").exists());
        let before = getrlimit(Resource::Nofile);
        let none = Rlimit {
            current: Some(0),
            ..before
        };
        setrlimit(Resource::Nofile, none).unwrap();
        std::fs::create_dir(folder.join("none")).unwrap();
        until(|| folder.join("more").exists());
        setrlimit(Resource::Nofile, before).unwrap();
        assert!(cuda.download(at, 4096) == [7; 4096]);
        // It would end before it has said that it is back.
        until(|| folder.join("heard").exists());
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mover = Mover::start(folder.path(), State::default());
    plays(test, &[], |listener, progress| {
        let mut talk = works(&listener, progress)?;
        talk.stow(&mover, 112, true);
        talk.is_parked(8 * MIB)?;
        std::fs::write(progress.folder().join("again"), "").expect("a file");
        until(|| progress.folder().join("none").exists());
        talk.say(&ToProgram::Turn);
        std::thread::sleep(std::time::Duration::from_millis(300));
        std::fs::write(progress.folder().join("more"), "").expect("a file");
        let said = talk.next()?;
        std::fs::write(progress.folder().join("heard"), "").expect("a file");
        match said {
            FromProgram::Back { moved, .. } if moved >= 8 * MIB => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .unwrap();
}

/// Places of what did not go are for what comes next.
#[test]
fn what_did_not_go_takes_no_room_of_what_comes_later() {
    let test = "stow::what_did_not_go_takes_no_room_of_what_comes_later";
    if program() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let full = State {
        room: Some(5),
        limit: Some(72 * MIB),
        ..State::default()
    };
    let mover = Mover::start(folder.path(), full);
    plays(test, &[], |listener, progress| {
        let mut talk = works(&listener, progress)?;
        talk.say(&ToProgram::Park {
            deadline_ms: 60_000,
        });
        talk.is_parked(SOME)?;
        for (mib, room, wanted) in [(48, Some(5), 1), (40, None, 24 * MIB)] {
            mover.state.lock().expect("nobody failed").room = room;
            talk.say(&ToProgram::Demote {
                deadline_ms: 60_000,
                bytes: mib * MIB,
                mover: mover.name(),
            });
            match talk.next()? {
                FromProgram::Demoted { bytes } if bytes >= wanted => {}
                other => return Err(format!("{other:?}")),
            }
        }
        talk.turn(SOME)?;
        progress.until_more_than(progress.rounds() + 1)
    })
    .unwrap();
}
