//! The files of ranks are written by a thread of its own, one rank after another, also from another node's store.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use gpuos_checkpoint::ids::CheckpointId;
use gpuos_checkpoint::manifest::{Kind, Manifest, rank_folder, ranks};
use gpuos_core::job::JobId;
use gpuos_mover::program::Join;
use gpuos_store::disk::{Disk, LinuxDisk};
use gpuos_store::error::{self, Error, Result};
use gpuos_store::job::JobStore;
use gpuos_store::restore::{Target, restore_part, restore_shared};
use gpuos_store::room::{size, usable};
use gpuos_store::source::{LocalSource, Source};
use gpuos_store::store::Store;

use crate::carried::{Body, PIECE};
use crate::event::Event;
use crate::folder::{JobFolder, begin_all, end_all, has_all, restored_name};

/// Another node is asked again after so long ...
const AGAIN: Duration = Duration::from_secs(5);
/// ... and given up after that.
const PATIENCE: Duration = Duration::from_secs(120);

/// Whose files a rank gets.
enum What {
    /// Its own, from a seat; `None`: this node.
    Own(Option<u16>),
    /// Those of all ranks of the checkpoint, each likewise.
    All(Vec<Option<u16>>),
}

/// What a thread restores.
struct Task {
    join: Join,
    id: CheckpointId,
    what: What,
    /// In which the program is answered.
    epoch: u64,
}

/// An answer of another node: its ticket, and the bytes if it had them.
type Given = (u64, Option<Vec<u8>>);

/// The way to the thread.
pub struct Restorer {
    tasks: Sender<Task>,
    answers: Sender<Given>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

/// Of which job, and where to.
pub struct Place {
    /// The store of this node.
    pub store: &'static Store<LinuxDisk>,
    /// The job.
    pub job: JobId,
    /// Its user and the group of its processes.
    pub owner: (u32, u32),
    /// The checkpoint of another job from which it begins, and that job.
    pub base: Option<(CheckpointId, JobId)>,
    /// The folder of its programs.
    pub folder: Arc<JobFolder>,
    /// The gathering of the job's movers for which it is done.
    pub session: u32,
    /// The thread of the gathering before, which may be about to end: two never write at the same time.
    pub before: Option<JoinHandle<()>>,
    /// To the job's thread.
    pub to: SyncSender<Event>,
}

impl Restorer {
    /// Starts the thread. It ends when this is dropped.
    ///
    /// # Errors
    /// No thread can be made.
    pub fn start(mut place: Place) -> std::io::Result<Restorer> {
        let (tasks, to_do) = channel();
        let (answers, given) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let run = move || {
            if let Some(before) = place.before.take() {
                let _ = before.join();
            }
            run(&place, &to_do, &given, &stopped);
        };
        let thread = thread::Builder::new().name("restore".into()).spawn(run)?;
        Ok(Restorer {
            tasks,
            answers,
            stop,
            thread,
        })
    }

    /// What is being written comes to nothing; the thread ends soon.
    pub fn end(self) -> JoinHandle<()> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread
    }

    /// Has the files of a rank written; [`Event::Restored`] says when that is done.
    pub fn restore(&self, join: Join, epoch: u64, id: CheckpointId, from: Option<u16>) {
        self.send(join, epoch, id, What::Own(from));
    }

    /// The same with the files of all ranks that have made it, from the seat that has those of each.
    pub fn restore_all(&self, join: Join, epoch: u64, id: CheckpointId, from: Vec<Option<u16>>) {
        self.send(join, epoch, id, What::All(from));
    }

    fn send(&self, join: Join, epoch: u64, id: CheckpointId, what: What) {
        let _ = self.tasks.send(Task {
            join,
            id,
            what,
            epoch,
        });
    }

    /// Another node has answered.
    pub fn given(&self, ticket: u64, bytes: Option<Vec<u8>>) {
        let _ = self.answers.send((ticket, bytes));
    }
}

fn run(place: &Place, tasks: &Receiver<Task>, given: &Receiver<Given>, stop: &AtomicBool) {
    let mut ticket = 0;
    for task in tasks {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        // What a gathering before has written for it was not told to the program.
        let _ = place.folder.discard_restored(&task.join);
        let restored = one(place, &task, (given, &mut ticket), stop);
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let line = match (restored, &task.what) {
            (Ok(()), What::Own(_)) => format!("restore {}", task.id.number),
            (Ok(()), What::All(from)) => format!("restore {} of {}", task.id.number, from.len()),
            (Err(error), _) => format!("failed {error}"),
        };
        let restored = Event::Restored {
            join: task.join,
            line,
            epoch: task.epoch,
            session: place.session,
        };
        if place.to.send(restored).is_err() {
            return;
        }
    }
}

fn one(
    place: &Place,
    task: &Task,
    (given, ticket): (&Receiver<Given>, &mut u64),
    stop: &AtomicBool,
) -> Result<()> {
    let mut from = Origin {
        place,
        id: task.id,
        given,
        ticket,
        stop,
    };
    let seats = match &task.what {
        What::Own(seat) => {
            let (root, name) = (place.folder.root(), restored_name(&task.join));
            let rank = (task.join.rank, task.join.size);
            return from.rank(rank, *seat, (root, &name), Use::Own);
        }
        What::All(seats) => seats,
    };
    let number = task.id.number;
    // Another rank of this node has asked for it before.
    if has_all(&place.folder, number) {
        return Ok(());
    }
    let failed = |error: std::io::Error| {
        let tried = format!("restore the files of all ranks of checkpoint {}", task.id);
        let next = "see that the disk has space and is writable, and start the job again";
        Error::new(error::Kind::Disk, tried, error.to_string(), next)
    };
    let folder = begin_all(&place.folder, number).map_err(failed)?;
    let size = u16::try_from(seats.len()).unwrap_or(u16::MAX);
    for (rank, seat) in (0..size).zip(seats) {
        let name = rank_folder(rank, size);
        from.rank((rank, size), *seat, (&folder, &name), Use::Shared)?;
    }
    end_all(&place.folder, number, &folder).map_err(failed)
}

/// Who may write to what is restored.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Own,
    Shared,
}

/// Where files come from.
struct Origin<'a> {
    place: &'a Place,
    id: CheckpointId,
    given: &'a Receiver<Given>,
    ticket: &'a mut u64,
    stop: &'a AtomicBool,
}

impl Origin<'_> {
    /// Restores the files of a rank, which a seat has, or this node, to a new folder.
    fn rank(
        &mut self,
        (rank, size): (u16, u16),
        seat: Option<u16>,
        (folder, name): (&OwnedFd, &str),
        used: Use,
    ) -> Result<()> {
        let place = self.place;
        let base = place.base.as_ref().filter(|(id, _)| *id == self.id);
        let of = base.map_or(&place.job, |(_, job)| job);
        let job = place.store.job(of, place.owner.0)?;
        let only = rank_folder(rank, size);
        let only = only.as_bytes();
        let target = Target {
            disk: &LinuxDisk,
            folder,
            name: name.as_bytes(),
            owner: Some(place.owner),
        };
        let write =
            |parts: &JobStore<'_, LinuxDisk>, manifest: &Manifest, source: &mut dyn Source| {
                match used {
                    Use::Own => restore_part(parts, manifest, only, &target, source),
                    Use::Shared => restore_shared(parts, manifest, only, &target, source),
                }
            };
        let stop = self.stop;
        let Some(seat) = seat else {
            let (parts, manifest) = part_here(place, job, self.id, rank)?;
            fits(place, &manifest, only)?;
            let source = LocalSource::new(&parts);
            let mut source = Stoppable { source, stop };
            return write(&parts, &manifest, &mut source);
        };
        let mut far = Far {
            place,
            seat,
            id: self.id,
            rank,
            part: 0,
            given: self.given,
            ticket: &mut *self.ticket,
        };
        let manifest = far.manifest(&job)?;
        fits(place, &manifest, only)?;
        let mut source = Stoppable { source: far, stop };
        write(&job, &manifest, &mut source)
    }
}

/// The part of this node, or of one that it hosts, in which the files of a rank are.
fn part_here(
    place: &Place,
    job: JobStore<'static, LinuxDisk>,
    id: CheckpointId,
    rank: u16,
) -> Result<(JobStore<'static, LinuxDisk>, Manifest)> {
    let has = |manifest: &Manifest| ranks(manifest).iter().any(|(of, _)| *of == rank);
    for guest in place.store.guests(&job)? {
        if let Ok(manifest) = guest.parts.manifest(id)
            && has(&manifest)
        {
            return Ok((guest.parts, manifest));
        }
    }
    let manifest = job.manifest(id)?;
    Ok((job, manifest))
}

/// A source that can be left in the middle.
struct Stoppable<'a, S> {
    source: S,
    stop: &'a AtomicBool,
}

impl<S: Source> Source for Stoppable<'_, S> {
    fn read(&mut self, segment: CheckpointId, offset: u64, buffer: &mut [u8]) -> Result<()> {
        if self.stop.load(Ordering::Relaxed) {
            let tried = format!("restore files of checkpoint {segment}");
            let next = "they are restored anew";
            return Err(Error::refused(
                tried,
                "the movers of the job gather anew",
                next,
            ));
        }
        self.source.read(segment, offset, buffer)
    }
}

/// Whether what a rank gets back leaves some of the disk of jobs free: root may fill a disk to its end, and a user who keeps deleted files open
/// could have him do so again and again.
fn fits(place: &Place, manifest: &Manifest, only: &[u8]) -> Result<()> {
    let tried = || format!("restore files of checkpoint {}", manifest.id);
    let of_rank = |path: &[u8]| {
        let rest = path.strip_prefix(only);
        rest.is_some_and(|rest| rest.starts_with(b"/"))
    };
    let files = manifest.files.iter().filter(|file| of_rank(&file.path));
    let extents = files.flat_map(|file| &file.extents);
    // As they are in files; what is all zero becomes a hole.
    let there = extents.filter(|extent| extent.kind != Kind::Zero);
    let bytes: u64 = there.map(|extent| extent.raw).sum();
    let space = LinuxDisk.space(place.folder.root()).map_err(|error| {
        let next = "look in the kernel's log for faults of the disk, and start the job again";
        Error::new(error::Kind::Disk, tried(), error.to_string(), next)
    })?;
    let usable = usable(space);
    if bytes <= usable {
        return Ok(());
    }
    let why = format!(
        "they have {}, and the disk of the folders of jobs can take {}",
        size(bytes),
        size(usable)
    );
    let next = "free space there, and start the job again";
    Err(Error::new(error::Kind::Full, tried(), why, next))
}

/// The store of another node. What comes from there is held against the job's keys by who reads it.
struct Far<'a> {
    place: &'a Place,
    seat: u16,
    id: CheckpointId,
    rank: u16,
    /// The node whose part it is, once its manifest is here.
    part: u16,
    given: &'a Receiver<Given>,
    ticket: &'a mut u64,
}

impl Far<'_> {
    fn manifest(&mut self, job: &JobStore<'_, LinuxDisk>) -> Result<Manifest> {
        let (id, rank) = (self.id, self.rank);
        let bytes = self.ask(|ticket| Body::ManifestAsk { ticket, id, rank })?;
        let manifest = job.opened(id, &bytes)?;
        self.part = manifest.node.0;
        Ok(manifest)
    }

    fn ask(&mut self, body: impl Fn(u64) -> Body) -> Result<Vec<u8>> {
        *self.ticket += 1;
        let ticket = *self.ticket;
        let (seat, begun) = (self.seat, Instant::now());
        let refused = |why: &str| {
            let tried = format!("fetch files of checkpoint {} from another node", self.id);
            let next = "see the log of gpuos_mover there, and start the job again";
            Err(Error::refused(tried, why, next))
        };
        loop {
            let body = body(ticket);
            if self.place.to.send(Event::Ask { seat, body }).is_err() {
                return refused("the job has ended here");
            }
            let asked = Instant::now();
            loop {
                let left = AGAIN.saturating_sub(asked.elapsed());
                match self.given.recv_timeout(left) {
                    Ok((given, Some(bytes))) if given == ticket => return Ok(bytes),
                    Ok((given, None)) if given == ticket => {
                        return refused("it says that it has not got them");
                    }
                    // A late answer to an earlier question.
                    Ok(_) => {}
                    Err(RecvTimeoutError::Timeout) => break,
                    Err(RecvTimeoutError::Disconnected) => {
                        return refused("the job has ended here");
                    }
                }
            }
            if begun.elapsed() > PATIENCE {
                return refused("it does not answer");
            }
        }
    }
}

impl Source for Far<'_> {
    fn read(&mut self, segment: CheckpointId, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let mut at = offset;
        for part in buffer.chunks_mut(PIECE as usize) {
            let length = part.len() as u32;
            let of = self.part;
            let bytes = self.ask(|ticket| Body::SegmentAsk {
                ticket,
                id: segment,
                part: of,
                offset: at,
                length,
            })?;
            // Whatever came instead does not hold against its digest.
            let known = bytes.len().min(part.len());
            part[..known].copy_from_slice(&bytes[..known]);
            part[known..].fill(0);
            at += u64::from(length);
        }
        Ok(())
    }
}
