//! Contexts: a device, streams, memory, and the error that ends all of it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::ThreadId;

use crate::abi::{Answer, Code, code};
use crate::engine::device::Device;
use crate::engine::driver::{Driver, driver};
use crate::engine::heap::{self, Heap};
use crate::engine::stream::{Stream, Unfinished};
use crate::engine::work::Work;

/// A context.
pub(crate) struct Context {
    pub(crate) handle: u64,
    pub(crate) device: Arc<Device>,
    pub(crate) primary: bool,
    pub(crate) flags: AtomicU32,
    pub(crate) unfinished: &'static Unfinished,
    pub(crate) heap: Heap,
    /// The default stream.
    pub(crate) null: Arc<Stream>,
    /// The other streams. The lock is held while work is given, so that it has one order.
    streams: Mutex<Vec<Arc<Stream>>>,
    /// Streams that were destroyed, while they have work.
    leaving: Mutex<Vec<Arc<Stream>>>,
    of_threads: Mutex<HashMap<ThreadId, Arc<Stream>>>,
    /// The first error of its work; all that follows is not done.
    failed: AtomicU32,
    /// Whether a call told of it: from then on every call does.
    told: AtomicBool,
}

impl Context {
    pub(crate) fn new(
        driver: &'static Driver,
        device: &Arc<Device>,
        primary: bool,
        flags: u32,
    ) -> Arc<Context> {
        let handle = driver.contexts.fresh();
        let context = Arc::new_cyclic(|weak: &Weak<Context>| Context {
            handle,
            device: Arc::clone(device),
            primary,
            flags: AtomicU32::new(flags),
            unfinished: &driver.unfinished,
            heap: Heap::new(),
            null: Arc::new(Stream::new(0, weak.clone(), 0, 0)),
            streams: Mutex::new(Vec::new()),
            leaving: Mutex::new(Vec::new()),
            of_threads: Mutex::new(HashMap::new()),
            failed: AtomicU32::new(0),
            told: AtomicBool::new(false),
        });
        driver.contexts.insert(handle, Arc::clone(&context));
        driver.ledger.present(device.number, true);
        context
    }

    /// A new stream of the context.
    pub(crate) fn stream(self: &Arc<Context>, flags: u32, priority: i32) -> Answer<Arc<Stream>> {
        let driver = driver()?;
        let handle = driver.streams.fresh();
        let stream = Arc::new(Stream::new(handle, Arc::downgrade(self), flags, priority));
        driver.streams.insert(handle, Arc::clone(&stream));
        self.streams().push(Arc::clone(&stream));
        Ok(stream)
    }

    /// The calling thread's default stream.
    pub(crate) fn of_thread(self: &Arc<Context>) -> Answer<Arc<Stream>> {
        let mut of_threads = self
            .of_threads
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let thread = std::thread::current().id();
        if let Some(stream) = of_threads.get(&thread) {
            return Ok(Arc::clone(stream));
        }
        let stream = self.stream(0, 0)?;
        of_threads.insert(thread, Arc::clone(&stream));
        Ok(stream)
    }

    fn streams(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Stream>>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a stream work. The default stream waits for the others, and they for it, but for those
    /// that were made not to.
    pub(crate) fn submit(self: &Arc<Context>, stream: &Arc<Stream>, work: Work) -> Answer<u64> {
        let streams = self.streams();
        let before = |stream: &Arc<Stream>| (Arc::clone(stream), stream.given());
        let after = match stream.flags & 1 == 0 {
            true if Arc::ptr_eq(stream, &self.null) => {
                let leaving = self.leaving();
                let others = streams.iter().chain(leaving.iter());
                let others = others.filter(|stream| stream.flags & 1 == 0);
                others.map(before).collect()
            }
            true => vec![before(&self.null)],
            false => Vec::new(),
        };
        stream.push(self, work, after)
    }

    /// Forgets a stream; its work goes on.
    pub(crate) fn forget(&self, stream: &Arc<Stream>) {
        let mut streams = self.streams();
        streams.retain(|other| !Arc::ptr_eq(other, stream));
        stream.close();
        self.leaving().push(Arc::clone(stream));
    }

    /// Streams that were destroyed and have work.
    fn leaving(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Stream>>> {
        let mut leaving = self.leaving.lock().unwrap_or_else(PoisonError::into_inner);
        leaving.retain(|stream| !stream.is_done(stream.given()));
        leaving
    }

    /// Waits for all work, and tells of its error.
    pub(crate) fn synchronize(&self) -> Answer<()> {
        let mut all: Vec<Arc<Stream>> = self.streams().clone();
        all.extend(self.leaving().iter().cloned());
        for stream in all.iter().chain([&self.null]) {
            if stream.is_capturing() {
                return Err(code::CAPTURE_UNSUPPORTED);
            }
            stream.wait(stream.given());
        }
        self.outcome()
    }

    /// Whether all work is done.
    pub(crate) fn is_idle(&self) -> bool {
        let idle = |stream: &Arc<Stream>| stream.is_done(stream.given());
        let streams = self.streams().iter().all(idle);
        streams && self.leaving().is_empty() && idle(&self.null)
    }

    /// Notes an error of its work: the first one stays.
    pub(crate) fn fail(&self, error: Code) {
        let _ = self
            .failed
            .compare_exchange(0, error, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// The error of its work, or 0.
    pub(crate) fn error(&self) -> Code {
        self.failed.load(Ordering::SeqCst)
    }

    /// Whether its work has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.error() != 0
    }

    /// What a synchronizing call tells: the error of the work, if there was one.
    pub(crate) fn outcome(&self) -> Answer<()> {
        match self.error() {
            0 => Ok(()),
            error => {
                self.told.store(true, Ordering::SeqCst);
                Err(error)
            }
        }
    }

    /// Ends the context: waits for its work, and frees what it has.
    pub(crate) fn destroy(&self, driver: &Driver) {
        let mut streams = std::mem::take(&mut *self.streams());
        streams.extend(self.leaving().drain(..));
        for stream in streams.iter().chain([&self.null]) {
            stream.close();
            stream.wait(stream.given());
        }
        self.of_threads
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
        let _ = driver.contexts.remove(self.handle);
        let mine = |stream: &Stream| stream.context.as_ptr() == std::ptr::from_ref(self);
        driver.streams.drain(mine);
        heap::clear(driver, self);
        let last = |context: &Context| context.device.index == self.device.index;
        if !driver.contexts.any(last) {
            driver.ledger.present(self.device.number, false);
        }
    }
}

thread_local! {
    /// The handles of the thread's contexts, the current one last. What runs when a thread or the program ends may call the driver still, so it
    /// is never dropped.
    static STACK: ManuallyDrop<RefCell<Vec<u64>>> = const { ManuallyDrop::new(RefCell::new(Vec::new())) };
}

/// Works on the thread's stack of contexts.
pub(crate) fn stack<R>(work: impl FnOnce(&mut Vec<u64>) -> R) -> R {
    STACK.with(|stack| work(&mut stack.borrow_mut()))
}

/// The current context, unless its error is known already.
pub(crate) fn current() -> Answer<Arc<Context>> {
    let context = current_even_failed()?;
    if context.told.load(Ordering::SeqCst) {
        context.outcome()?;
    }
    Ok(context)
}

/// The current context, whatever became of it.
pub(crate) fn current_even_failed() -> Answer<Arc<Context>> {
    let driver = driver()?;
    let handle = stack(|stack| stack.last().copied()).filter(|handle| *handle != 0);
    let handle = handle.ok_or(code::INVALID_CONTEXT)?;
    driver
        .contexts
        .get(handle)
        .map_err(|_| code::CONTEXT_DESTROYED)
}
