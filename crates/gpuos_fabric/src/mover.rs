//! The thread that moves, and how each task is done.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use gpuos_memory::objects::{Kind, Next, Outcome, Spot, Task, Tier};

use crate::disk::Home;
use crate::near::{Mark, Trouble};
use crate::pages::{self, Pages};
use crate::shared::{Shared, State};

/// Extents on their way for which memory is kept.
const STAGED: usize = 4;

/// Starts the thread.
pub(crate) fn start(shared: &Arc<Shared>) -> std::io::Result<JoinHandle<()>> {
    let shared = Arc::clone(shared);
    let builder = std::thread::Builder::new().name("gpuos-fabric".to_string());
    pages::without_signals(|| {
        builder.spawn(move || {
            let ended = catch_unwind(AssertUnwindSafe(|| run(&shared)));
            if ended.is_err() {
                let mut state = shared.lock();
                state.dead = Some("an error of gpuos ended the thread that moves".to_string());
                shared.changed.notify_all();
            }
        })
    })
}

/// What is needed of an object to do a task with it.
struct Job {
    at: u64,
    offset: u64,
    home: Option<Arc<Home>>,
    marks: Vec<(u64, Arc<Mark>)>,
}

fn run(shared: &Shared) {
    let mut state = shared.lock();
    while !state.stop {
        match state.objects.next(shared.now()) {
            Next::Changed => shared.tell(&mut state),
            Next::Task(task) => {
                let job = job(shared, &mut state, &task);
                drop(state);
                let done = match job {
                    Some(job) => shared.execute(&task, &job),
                    None => Err((Outcome::Lost, "the object has no place".to_string())),
                };
                state = shared.lock();
                let outcome = match done {
                    Ok(()) => Outcome::Done,
                    Err((outcome, trouble)) => {
                        state.trouble = Some(trouble);
                        outcome
                    }
                };
                let over = |tier| {
                    let (used, limit) = state.objects.used(tier);
                    used > limit
                };
                let beyond = over(Tier::Hbm) || over(Tier::Host);
                // What leaves beyond a limit is given back when nothing else is to be done.
                state.trim |= beyond;
                state.objects.done(&task, outcome, shared.now());
                shared.tell(&mut state);
            }
            Next::Idle => state = idle(shared, state),
        }
    }
}

/// Gives memory back that limits do not allow any more, or waits until something changes.
fn idle<'a>(shared: &'a Shared, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
    shared.tell(&mut state);
    if std::mem::take(&mut state.trim) {
        for frame in state.objects.surplus(Tier::Hbm) {
            shared.near.trim(*frame);
        }
        for frame in state.objects.surplus(Tier::Host) {
            if let Some(pages) = shared.frame(*frame) {
                shared.near.unlock(&pages);
            }
        }
        return state;
    }
    let changed = &shared.changed;
    match state.objects.again_at() {
        None => changed.wait(state).unwrap_or_else(PoisonError::into_inner),
        Some(at) => {
            let left = Duration::from_nanos(at.saturating_sub(shared.now()).max(1));
            let waited = changed.wait_timeout(state, left);
            waited.unwrap_or_else(PoisonError::into_inner).0
        }
    }
}

fn job(shared: &Shared, state: &mut State, task: &Task) -> Option<Job> {
    let place = state.places.get(&task.object)?;
    let offset = task.index * shared.extent;
    let marks = match task.kind {
        Kind::Out { .. } => state.marks.remove(&task.extent).unwrap_or_default(),
        _ => Vec::new(),
    };
    Some(Job {
        at: place.at + offset,
        offset,
        home: place.home.clone(),
        marks,
    })
}

pub(crate) type Done = Result<(), (Outcome, Trouble)>;

fn no_target<T>(done: Result<T, impl ToString>) -> Result<T, (Outcome, Trouble)> {
    done.map_err(|trouble| (Outcome::NoTarget, trouble.to_string()))
}

fn lost<T>(done: Result<T, impl ToString>) -> Result<T, (Outcome, Trouble)> {
    done.map_err(|trouble| (Outcome::Lost, trouble.to_string()))
}

impl Shared {
    fn execute(&self, task: &Task, job: &Job) -> Done {
        match task.kind {
            Kind::In { frame, from } => {
                no_target(self.near.attach(frame, job.at))?;
                let filled = self.fill(job, from);
                if filled.is_err() {
                    // Its memory is given up if that fails, too.
                    let _ = self.near.detach(frame, job.at);
                }
                filled
            }
            Kind::Out { frame, to } => {
                for (_, mark) in &job.marks {
                    self.near.wait(mark.mark);
                }
                self.save(job, to)?;
                lost(self.near.detach(frame, job.at))
            }
            Kind::Down { frame, slot } => {
                let pages = self.frame(frame);
                let pages = lost(pages.ok_or("a frame of host memory is not there"))?;
                let disk = lost(self.disk.as_ref().ok_or("there is no file"))?;
                let written = disk.write(slot, &pages);
                self.put(frame, pages);
                no_target(written)
            }
        }
    }

    /// Fills a frame that was attached. Every byte of it is written: what another object had there is gone.
    fn fill(&self, job: &Job, from: Spot) -> Done {
        match from {
            Spot::Zero => no_target(self.near.zero(job.at)),
            Spot::Host(frame) => {
                let pages = self.frame(frame);
                let pages = lost(pages.ok_or("a frame of host memory is not there"))?;
                let done = self.near.upload(job.at, pages.bytes());
                self.put(frame, pages);
                no_target(done)
            }
            from => {
                let mut pages = no_target(self.staging())?;
                let read = self.load(from, job.home.as_deref(), job.offset, &mut pages);
                let done =
                    lost(read).and_then(|()| no_target(self.near.upload(job.at, pages.bytes())));
                self.stage(pages);
                done
            }
        }
    }

    fn save(&self, job: &Job, to: Option<Spot>) -> Done {
        match to {
            None => Ok(()),
            Some(Spot::Host(frame)) => {
                let mut pages = match self.frame(frame) {
                    Some(pages) => pages,
                    None => {
                        let pages = no_target(Pages::new(self.extent as usize))?;
                        self.near.lock(&pages);
                        pages
                    }
                };
                let done = self.near.download(job.at, pages.bytes_mut());
                self.put(frame, pages);
                lost(done)
            }
            Some(to) => {
                let mut pages = no_target(self.staging())?;
                let read = lost(self.near.download(job.at, pages.bytes_mut()));
                let done = read.and_then(|()| match (to, &self.disk) {
                    (Spot::File(slot), Some(disk)) => no_target(disk.write(slot, &pages)),
                    _ => no_target(Err("no place for an extent")),
                });
                self.stage(pages);
                done
            }
        }
    }

    /// Reads an extent from the file or from what was mapped.
    fn load(
        &self,
        from: Spot,
        home: Option<&Home>,
        offset: u64,
        to: &mut Pages,
    ) -> Result<(), Trouble> {
        let read = match (from, home, &self.disk) {
            (Spot::Home, Some(home), _) => home.read(offset, to),
            (Spot::File(slot), _, Some(disk)) => disk.read(slot, to),
            _ => return Err("an extent is nowhere".to_string()),
        };
        read.map_err(|error| error.to_string())
    }

    /// Reads a part of an extent that is not in GPU memory.
    pub(crate) fn peek(
        &self,
        from: Spot,
        home: Option<&Home>,
        index: u64,
        skip: usize,
        to: &mut [u8],
    ) -> Done {
        let end = skip + to.len();
        if let Spot::Host(frame) = from {
            let pages = self.frame(frame);
            let pages = lost(pages.ok_or("a frame of host memory is not there"))?;
            to.copy_from_slice(&pages.bytes()[skip..end]);
            self.put(frame, pages);
            return Ok(());
        }
        // Without memory for it nothing was read, and nothing is lost.
        let mut pages = no_target(self.staging())?;
        let read = self.load(from, home, index * self.extent, &mut pages);
        if read.is_ok() {
            to.copy_from_slice(&pages.bytes()[skip..end]);
        }
        self.stage(pages);
        lost(read)
    }

    /// Memory for an extent on its way; who reads into it reads all of it.
    pub(crate) fn staging(&self) -> std::io::Result<Pages> {
        let mut all = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
        match all.pop() {
            Some(pages) => Ok(pages),
            None => {
                let pages = Pages::new(self.extent as usize)?;
                self.near.lock(&pages);
                Ok(pages)
            }
        }
    }

    pub(crate) fn stage(&self, pages: Pages) {
        let mut all = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() < STAGED {
            all.push(pages);
        } else {
            self.near.unlock(&pages);
        }
    }

    /// Takes a frame of host memory out, for who may use it now: its extent is busy.
    fn frame(&self, frame: u32) -> Option<Pages> {
        let mut frames = self.frames.lock().unwrap_or_else(PoisonError::into_inner);
        frames.get_mut(frame as usize)?.take()
    }

    fn put(&self, frame: u32, pages: Pages) {
        let mut frames = self.frames.lock().unwrap_or_else(PoisonError::into_inner);
        let at = frame as usize;
        if frames.len() <= at {
            frames.resize_with(at + 1, || None);
        }
        frames[at] = Some(pages);
    }
}
