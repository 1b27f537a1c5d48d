//! Objects and tickets, for several threads at once.
//!
//! One lock has all that is decided; what takes time is done outside it, by the mover's thread or, for bytes that a program reads and writes by
//! calls, by the caller's.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gpuos_memory::link::Bounds;
use gpuos_memory::objects::{
    Advice, Config, Counts, Event, ObjectId, Objects, Origin, Span, Standing, TicketId, Tier,
};
use gpuos_memory::policy;

use crate::bell::Bell;
use crate::cuda::Cuda;
use crate::disk::{Disk, Home};
use crate::failure::{Failure, Why};
use crate::near::{Mark, Near};
use crate::plain::Plain;
use crate::shared::{Place, Saves, Shared, State};

/// What an extent may have, and what it has if nothing is said.
const LEAST_EXTENT: u64 = 2 << 20;
const MOST_EXTENT: u64 = 64 << 20;

/// How much is there, and of what.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// A GPU's number in this process; `None`: host memory takes its place.
    pub device: Option<i32>,
    /// Bytes of GPU memory; 0: nine tenths of what is free of the GPU now.
    pub hbm: u64,
    /// Bytes of host memory for what is not in GPU memory.
    pub host: u64,
    /// Bytes of a file for what is in neither.
    pub file: u64,
    /// The folder of that file, on a disk of the node.
    pub folder: Option<PathBuf>,
    /// Bytes of an extent: a power of two from 2 to 64 MiB; 0: 2 MiB.
    pub extent: u64,
    /// A name of a policy; empty: gpuos's own.
    pub policy: String,
}

/// What is used, in bytes, and what was done, in extents.
#[derive(Clone, Copy, Debug)]
pub struct Stats {
    /// Bytes of an extent.
    pub extent: u64,
    /// Of GPU memory, host memory and the file: what is used.
    pub used: [u64; 3],
    /// What may be.
    pub limit: [u64; 3],
    /// Objects.
    pub objects: u64,
    /// Tickets that were not released.
    pub tickets: u64,
    /// What was done.
    pub counts: Counts,
    /// What was saved.
    pub saves: Saves,
    /// The file is read and written past the page cache.
    pub direct: bool,
}

/// Objects of a process on one GPU. Its functions may be called by several threads at once. In a child of `fork` all of them fail, and dropping
/// it does nothing.
pub struct Fabric {
    pub(crate) shared: Arc<Shared>,
    mover: Option<std::thread::JoinHandle<()>>,
    process: u32,
}

pub(crate) fn wrong(text: impl Into<String>) -> Failure {
    Failure::new(Why::Wrong, text)
}

fn frames(bytes: u64, extent: u64) -> u32 {
    u32::try_from(bytes / extent).unwrap_or(u32::MAX)
}

impl Fabric {
    /// Opens one.
    ///
    /// # Errors
    /// There is no driver or GPU, a size or name is wrong, or the folder cannot be written.
    pub fn open(options: &Options) -> Result<Fabric, Failure> {
        let extent = match options.extent {
            0 => LEAST_EXTENT,
            extent => extent,
        };
        if !extent.is_power_of_two() || !(LEAST_EXTENT..=MOST_EXTENT).contains(&extent) {
            return Err(wrong(format!(
                "extents of {extent} bytes: give a power of two from 2 MiB to 64 MiB, or 0 for 2 MiB"
            )));
        }
        let mut hbm = options.hbm;
        let near: Arc<dyn Near> = match options.device {
            None if hbm == 0 => {
                return Err(wrong(
                    "without a GPU say how many bytes of host memory take its place (hbm)",
                ));
            }
            None => Arc::new(Plain::new(extent)),
            Some(number) => {
                let no_driver = |text| Failure::new(Why::NoDriver, text);
                let cuda = Cuda::new(number, extent).map_err(no_driver)?;
                if hbm == 0 {
                    hbm = cuda.free().map_err(no_driver)? / 10 * 9;
                }
                Arc::new(cuda)
            }
        };
        let limits = [hbm, options.host, options.file].map(|bytes| frames(bytes, extent));
        if limits[0] == 0 {
            return Err(wrong(format!(
                "{hbm} bytes of GPU memory: give at least one extent of {extent}"
            )));
        }
        let disk = match (&options.folder, limits[2]) {
            (_, 0) => None,
            (None, _) => {
                return Err(wrong("a file tier needs a folder on a disk of the node"));
            }
            (Some(folder), _) => {
                let told = |error| wrong(format!("a file in {}: {error}", folder.display()));
                Some(Disk::new(folder, extent).map_err(told)?)
            }
        };
        let name = match options.policy.as_str() {
            "" => policy::NAMES[0],
            name => name,
        };
        let config = Config {
            extent,
            limits,
            policy: name.to_string(),
            ahead: Bounds {
                // The link's own rate bounds it: nothing is moved ahead while a ticket waits.
                ahead_rate: 1 << 40,
                at_once: 1,
                ahead_at_once: 1,
                waiting: limits[0] as usize,
                stays: 0,
            },
        };
        let objects = Objects::new(&config).ok_or_else(|| {
            let names = policy::NAMES.join(", ");
            wrong(format!("no policy has this name: they are {names}"))
        })?;
        let bell = Bell::new().map_err(|error| wrong(format!("eventfd: {error}")))?;
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                objects,
                places: HashMap::new(),
                marks: HashMap::new(),
                streams: HashMap::new(),
                bell,
                saves: Saves::default(),
                stop: false,
                dead: None,
                trouble: None,
                trim: false,
            }),
            changed: Condvar::new(),
            near,
            disk,
            frames: Mutex::new(Vec::new()),
            staging: Mutex::new(Vec::new()),
            saved: Mutex::new(HashMap::new()),
            extent,
            begun: Instant::now(),
        });
        let mover = crate::mover::start(&shared)
            .map_err(|error| wrong(format!("no thread can be started: {error}")))?;
        Ok(Fabric {
            shared,
            mover: Some(mover),
            process: std::process::id(),
        })
    }

    pub(crate) fn lock(&self) -> Result<MutexGuard<'_, State>, Failure> {
        // Before the lock: another thread may have had it when the process was forked.
        if self.process != std::process::id() {
            return Err(Failure::new(
                Why::Forked,
                "this process is a child of the one that opened it, and a child has no GPU: open one of its own after fork and exec",
            ));
        }
        let state = self.shared.lock();
        match &state.dead {
            None => Ok(state),
            Some(why) => Err(wrong(format!("nothing moves any more: {why}"))),
        }
    }

    /// Waits until something changes.
    pub(crate) fn pause<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
    ) -> Result<MutexGuard<'a, State>, Failure> {
        drop(self.shared.wait(state));
        // If nothing moves any more, what this waits for never comes.
        self.lock()
    }

    pub(crate) fn told(&self, mut state: MutexGuard<'_, State>) {
        self.shared.tell(&mut state);
    }

    /// Makes an object of zeros.
    ///
    /// # Errors
    /// No bytes, no room, or no addresses.
    pub fn alloc(&self, bytes: u64) -> Result<ObjectId, Failure> {
        self.make(bytes, Origin::Zero, None)
    }

    /// Makes an object of a file's bytes, which can only be read. All processes that map it read it from the same page cache.
    ///
    /// # Errors
    /// The file cannot be read, has no bytes or too many.
    pub fn map(&self, path: &Path) -> Result<ObjectId, Failure> {
        drop(self.lock()?);
        let home = Home::new(path).map_err(|e| wrong(format!("{}: {e}", path.display())))?;
        if home.bytes == 0 {
            return Err(wrong(format!("{}: the file is empty", path.display())));
        }
        self.make(home.bytes, Origin::Home, Some(Arc::new(home)))
    }

    fn make(
        &self,
        bytes: u64,
        origin: Origin,
        home: Option<Arc<Home>>,
    ) -> Result<ObjectId, Failure> {
        self.lock()?.objects.fits(bytes, origin)?;
        // As many bytes as fit are far from the end of all numbers.
        let whole = bytes.next_multiple_of(self.shared.extent);
        let reserved = self.shared.near.reserve(whole);
        let at = reserved.map_err(|text| Failure::new(Why::Full, text))?;
        let mut state = self.lock()?;
        match state.objects.allocate(bytes, origin) {
            Ok(object) => {
                let place = Place {
                    at,
                    bytes: whole,
                    home,
                    name: None,
                };
                state.places.insert(object, place);
                Ok(object)
            }
            Err(refused) => {
                drop(state);
                self.shared.near.unreserve(at, whole);
                Err(refused.into())
            }
        }
    }

    /// Where an object begins, and how many bytes it has. The address is the same as long as it lives; only what is acquired may be touched there.
    ///
    /// # Errors
    /// There is no such object.
    pub fn place(&self, object: ObjectId) -> Result<(u64, u64), Failure> {
        let state = self.lock()?;
        let bytes = state.objects.bytes(object)?;
        Ok((state.places[&object].at, bytes))
    }

    /// Asks for a part of an object in GPU memory, to be used by work on a stream until the ticket is released.
    ///
    /// # Errors
    /// It cannot be had.
    pub fn acquire(
        &self,
        object: ObjectId,
        span: Span,
        writes: bool,
        stream: Option<u64>,
    ) -> Result<TicketId, Failure> {
        let mut state = self.lock()?;
        let ticket = state.objects.acquire(object, span, writes)?;
        state.streams.insert(ticket, stream);
        self.told(state);
        Ok(ticket)
    }

    /// Waits until what a ticket asks for is there. A ticket that has failed is gone after that. `None`: without a limit.
    ///
    /// # Errors
    /// It came to nothing, or the time is over.
    pub fn wait(&self, ticket: TicketId, limit: Option<Duration>) -> Result<(), Failure> {
        let end = limit.and_then(|limit| Instant::now().checked_add(limit));
        let mut state = self.lock()?;
        loop {
            match state.objects.standing(ticket)? {
                Standing::Held => return Ok(()),
                Standing::Failed(why) => {
                    state.streams.remove(&ticket);
                    let mut failure = Failure::from(why);
                    if let Some(trouble) = &state.trouble {
                        failure.text = format!("{}; the last trouble was {trouble}", failure.text);
                    }
                    return Err(failure);
                }
                Standing::Waiting => {}
            }
            if let Some(why) = &state.dead {
                return Err(wrong(format!("nothing moves any more: {why}")));
            }
            state = match end {
                None => self.shared.wait(state),
                Some(end) => {
                    let left = end.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Err(Failure::new(
                            Why::Timeout,
                            "what the ticket asks for was not there within the time limit; the ticket waits on",
                        ));
                    }
                    let waited = self.shared.changed.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// Gives back what a ticket holds, as soon as the work that its stream has been given so far has ended; or gives up that it waits.
    ///
    /// # Errors
    /// There is no such ticket.
    pub fn release(&self, ticket: TicketId) -> Result<(), Failure> {
        let state = self.lock()?;
        let held = !state.objects.held(ticket)?.is_empty();
        let stream = state.streams.get(&ticket).copied().flatten();
        drop(state);
        let mut mark = None;
        if let Some(stream) = stream.filter(|_| held) {
            match self.shared.near.mark(stream) {
                Ok(0) => {}
                Ok(made) => {
                    let near = Arc::clone(&self.shared.near);
                    mark = Some((stream, Arc::new(Mark { near, mark: made })));
                }
                // A stream that is gone or has failed: whatever it had was before this.
                Err(_) => self.shared.near.drain(),
            }
        }
        let mut state = self.lock()?;
        if let Some((stream, mark)) = mark {
            for extent in state.objects.held(ticket)? {
                let marks = state.marks.entry(extent).or_default();
                marks.retain(|(of, _)| *of != stream);
                marks.push((stream, Arc::clone(&mark)));
            }
        }
        state.objects.release(ticket)?;
        state.streams.remove(&ticket);
        self.told(state);
        Ok(())
    }

    /// Asks for a part in advance.
    ///
    /// # Errors
    /// There is no such part.
    pub fn prefetch(&self, object: ObjectId, span: Span) -> Result<(), Failure> {
        let now = self.shared.now();
        let mut state = self.lock()?;
        state.objects.prefetch(object, span, now)?;
        self.told(state);
        Ok(())
    }

    /// Says what the program knows about a part.
    ///
    /// # Errors
    /// There is no such part.
    pub fn advise(&self, object: ObjectId, span: Span, advice: Advice) -> Result<(), Failure> {
        let mut state = self.lock()?;
        state.objects.advise(object, span, advice)?;
        self.told(state);
        Ok(())
    }

    /// Frees an object, as soon as the work that was given before it was released has ended.
    ///
    /// # Errors
    /// There is no such object, or tickets hold it.
    pub fn free(&self, object: ObjectId) -> Result<(), Failure> {
        let mut state = self.lock()?;
        let freed = loop {
            match state.objects.free(object)? {
                Some(freed) => break freed,
                None => state = self.pause(state)?,
            }
        };
        let place = state.places.remove(&object);
        let marks = freed.extents.iter();
        let marks: Vec<_> = marks.filter_map(|at| state.marks.remove(at)).collect();
        self.shared.tell(&mut state);
        drop(state);
        if let Some(place) = place {
            for (_, mark) in marks.iter().flatten() {
                self.shared.near.wait(mark.mark);
            }
            for (index, frame) in freed.mapped {
                let at = place.at + index * self.shared.extent;
                // A frame that cannot be detached has lost its memory, and the next object gets other memory.
                let _ = self.shared.near.detach(frame, at);
            }
            self.shared.near.unreserve(place.at, place.bytes);
        }
        let mut state = self.lock()?;
        state.objects.gone(object);
        state.trim = true;
        self.told(state);
        Ok(())
    }

    /// Waits for all work of the GPU.
    ///
    /// # Errors
    /// The process was forked.
    pub fn drain(&self) -> Result<(), Failure> {
        drop(self.lock()?);
        self.shared.near.drain();
        Ok(())
    }

    /// Bytes of GPU memory that nobody holds, so that a ticket for them waits for nobody's release.
    ///
    /// # Errors
    /// The process was forked.
    pub fn unheld(&self) -> Result<u64, Failure> {
        Ok(self.lock()?.objects.unheld() * self.shared.extent)
    }

    /// Other limits, in bytes, of GPU memory, host memory and the file. What is beyond them leaves as soon as it can.
    ///
    /// # Errors
    /// There is no file.
    pub fn limit(&self, bytes: [u64; 3]) -> Result<(), Failure> {
        let mut state = self.lock()?;
        if bytes[2] > 0 && self.shared.disk.is_none() {
            return Err(wrong("there is no file: name a folder when it is opened"));
        }
        let limits = bytes.map(|bytes| frames(bytes, self.shared.extent));
        state.objects.limit(limits);
        state.trim = true;
        self.told(state);
        Ok(())
    }

    /// The descriptor that is readable while there is an event.
    ///
    /// # Errors
    /// The process was forked.
    pub fn descriptor(&self) -> Result<i32, Failure> {
        Ok(self.lock()?.bell.number())
    }

    /// The oldest event that was not taken, with bytes in the place of extents.
    ///
    /// # Errors
    /// The process was forked.
    pub fn event(&self) -> Result<Option<(Event, u64)>, Failure> {
        let event = self.lock()?.bell.take();
        Ok(event.map(|event| {
            let (Event::Wanted(extents) | Event::Over(_, extents) | Event::Less(_, extents)) =
                event;
            (event, u64::from(extents) * self.shared.extent)
        }))
    }

    /// What is used, and what was done.
    ///
    /// # Errors
    /// The process was forked.
    pub fn stats(&self) -> Result<Stats, Failure> {
        let state = self.lock()?;
        let each = [Tier::Hbm, Tier::Host, Tier::File].map(|tier| state.objects.used(tier));
        let bytes = |extents: u32| u64::from(extents) * self.shared.extent;
        let (objects, tickets) = state.objects.count();
        Ok(Stats {
            extent: self.shared.extent,
            used: each.map(|(used, _)| bytes(used)),
            limit: each.map(|(_, limit)| bytes(limit)),
            objects: objects as u64,
            tickets: tickets as u64,
            counts: state.objects.counts(),
            saves: state.saves,
            direct: self.shared.disk.as_ref().is_some_and(|disk| disk.direct),
        })
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // A child of `fork` has neither the thread nor the driver, nor the memory: nothing is undone there.
            std::mem::forget(Arc::clone(&self.shared));
            std::mem::forget(self.mover.take());
            return;
        }
        self.shared.lock().stop = true;
        self.shared.changed.notify_all();
        if let Some(mover) = self.mover.take() {
            let _ = mover.join();
        }
        self.shared.near.drain();
        let mut state = self.shared.lock();
        state.marks.clear();
        let places = std::mem::take(&mut state.places);
        for (object, place) in places {
            for (index, frame) in state.objects.mapped(object) {
                let at = place.at + index * self.shared.extent;
                let _ = self.shared.near.detach(frame, at);
            }
            self.shared.near.unreserve(place.at, place.bytes);
        }
        drop(state);
        let mut frames = self
            .shared
            .frames
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut staging = self
            .shared
            .staging
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for pages in frames.drain(..).flatten().chain(staging.drain(..)) {
            self.shared.near.unlock(&pages);
        }
    }
}
