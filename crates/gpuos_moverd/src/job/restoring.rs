//! The files of ranks are written by a thread of its own, one rank after another, also from another node's store.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use gpuos_checkpoint::ids::CheckpointId;
use gpuos_checkpoint::manifest::{Kind, Manifest, rank_folder};
use gpuos_core::job::JobId;
use gpuos_mover::program::Join;
use gpuos_store::disk::{Disk, LinuxDisk};
use gpuos_store::error::{self, Error, Result};
use gpuos_store::job::JobStore;
use gpuos_store::restore::{Target, restore_part};
use gpuos_store::room::{size, usable};
use gpuos_store::source::{LocalSource, Source};
use gpuos_store::store::Store;

use crate::carried::{Body, PIECE};
use crate::event::Event;
use crate::folder::{JobFolder, restored_name};

/// Another node is asked again after so long ...
const AGAIN: Duration = Duration::from_secs(5);
/// ... and given up after that.
const PATIENCE: Duration = Duration::from_secs(120);

/// What a thread restores.
struct Task {
    join: Join,
    id: CheckpointId,
    /// The seat that has the files; `None`: this node.
    from: Option<u16>,
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
        let _ = self.tasks.send(Task {
            join,
            id,
            from,
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
        let line = match restored {
            Ok(()) => format!("restore {}", task.id.number),
            Err(error) => format!("failed {error}"),
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
    let base = place.base.as_ref().filter(|(id, _)| *id == task.id);
    let of = base.map_or(&place.job, |(_, job)| job);
    let job = place.store.job(of, place.owner.0)?;
    let only = rank_folder(task.join.rank, task.join.size);
    let name = restored_name(&task.join).into_bytes();
    let target = Target {
        disk: &LinuxDisk,
        folder: place.folder.root(),
        name: &name,
        owner: Some(place.owner),
    };
    let Some(seat) = task.from else {
        let manifest = job.manifest(task.id)?;
        fits(place, &manifest, only.as_bytes())?;
        let source = LocalSource::new(&job);
        let mut source = Stoppable { source, stop };
        return restore_part(&job, &manifest, only.as_bytes(), &target, &mut source);
    };
    let mut far = Far {
        place,
        seat,
        id: task.id,
        given,
        ticket,
    };
    let manifest = far.manifest(&job)?;
    fits(place, &manifest, only.as_bytes())?;
    let mut source = Stoppable { source: far, stop };
    restore_part(&job, &manifest, only.as_bytes(), &target, &mut source)
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
    given: &'a Receiver<Given>,
    ticket: &'a mut u64,
}

impl Far<'_> {
    fn manifest(&mut self, job: &JobStore<'_, LinuxDisk>) -> Result<Manifest> {
        let id = self.id;
        let bytes = self.ask(|ticket| Body::ManifestAsk { ticket, id })?;
        job.opened(id, &bytes)
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
            let bytes = self.ask(|ticket| Body::SegmentAsk {
                ticket,
                id: segment,
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
