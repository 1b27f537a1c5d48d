//! Streams: a queue of work and a thread that does it, one piece after another.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};

use crate::abi::{Answer, code};
use crate::engine::context::Context;
use crate::engine::graph::Capture;
use crate::engine::work::Work;

/// A stream. The work that it was given has tickets 1, 2, 3…
pub(crate) struct Stream {
    pub(crate) handle: u64,
    pub(crate) id: u64,
    pub(crate) context: Weak<Context>,
    /// 1 for one that does not wait for the default stream.
    pub(crate) flags: u32,
    pub(crate) priority: i32,
    /// What is captured in it, instead of being done.
    pub(crate) capture: Mutex<Option<Capture>>,
    queue: Mutex<Queue>,
    wake: Condvar,
    done: Mutex<u64>,
    reached: Condvar,
}

#[derive(Default)]
struct Queue {
    work: VecDeque<Piece>,
    given: u64,
    running: bool,
    closed: bool,
}

struct Piece {
    context: Arc<Context>,
    work: Work,
    after: Vec<(Arc<Stream>, u64)>,
    ticket: u64,
}

/// Work of the process that is not done, and the addresses that it was told to touch. Who unmaps one of
/// these has not waited for it.
pub(crate) struct Unfinished(Mutex<BTreeMap<(u64, u64), Told>>);

struct Told {
    context: Arc<Context>,
    ranges: Vec<(u64, u64)>,
}

impl Unfinished {
    pub(crate) const fn new() -> Unfinished {
        Unfinished(Mutex::new(BTreeMap::new()))
    }

    /// The contexts whose unfinished work was told to touch some of these addresses.
    pub(crate) fn touching(&self, start: u64, length: u64) -> Vec<Arc<Context>> {
        let told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let hit =
            |(at, size): &(u64, u64)| *at < start + length && start < at.saturating_add(*size);
        told.values()
            .filter(|told| told.ranges.iter().any(hit))
            .map(|told| Arc::clone(&told.context))
            .collect()
    }
}

impl Stream {
    pub(crate) fn new(handle: u64, context: Weak<Context>, flags: u32, priority: i32) -> Stream {
        static IDS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
        Stream {
            handle,
            id: IDS.fetch_add(1, std::sync::atomic::Ordering::Relaxed),
            context,
            flags,
            priority,
            capture: Mutex::new(None),
            queue: Mutex::new(Queue::default()),
            wake: Condvar::new(),
            done: Mutex::new(0),
            reached: Condvar::new(),
        }
    }

    /// The context that it belongs to.
    pub(crate) fn context(&self) -> Answer<Arc<Context>> {
        self.context.upgrade().ok_or(code::CONTEXT_DESTROYED)
    }

    /// Whether work is captured.
    pub(crate) fn is_capturing(&self) -> bool {
        let capture = self.capture.lock().unwrap_or_else(PoisonError::into_inner);
        capture.is_some()
    }

    /// The ticket of the last work that it was given.
    pub(crate) fn given(&self) -> u64 {
        self.queue
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .given
    }

    /// Whether all work up to this ticket is done.
    pub(crate) fn is_done(&self, ticket: u64) -> bool {
        *self.done.lock().unwrap_or_else(PoisonError::into_inner) >= ticket
    }

    /// Waits until all work up to this ticket is done.
    pub(crate) fn wait(&self, ticket: u64) {
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        while *done < ticket {
            done = self
                .reached
                .wait(done)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Gives it work that waits for other streams' work before. [`Context::submit`] knows which.
    pub(crate) fn push(
        self: &Arc<Stream>,
        context: &Arc<Context>,
        work: Work,
        after: Vec<(Arc<Stream>, u64)>,
    ) -> Answer<u64> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if queue.closed {
            return Err(code::CONTEXT_DESTROYED);
        }
        queue.given += 1;
        let ticket = queue.given;
        let ranges = work.ranges();
        if !ranges.is_empty() {
            let told = Told {
                context: Arc::clone(context),
                ranges,
            };
            let unfinished = &context.unfinished.0;
            let mut all = unfinished.lock().unwrap_or_else(PoisonError::into_inner);
            all.insert((self.id, ticket), told);
        }
        queue.work.push_back(Piece {
            context: Arc::clone(context),
            work,
            after,
            ticket,
        });
        if !queue.running {
            queue.running = true;
            let stream = Arc::clone(self);
            let thread = std::thread::Builder::new().name(format!("cuda-stream-{}", self.id));
            thread
                .spawn(move || stream.run())
                .map_err(|_| code::UNKNOWN)?;
        }
        drop(queue);
        self.wake.notify_one();
        Ok(ticket)
    }

    /// Takes no more work; the thread ends when it has done what it has.
    pub(crate) fn close(&self) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.closed = true;
        drop(queue);
        self.wake.notify_one();
    }

    fn next(&self) -> Option<Piece> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(piece) = queue.work.pop_front() {
                return Some(piece);
            }
            if queue.closed {
                return None;
            }
            queue = self
                .wake
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn run(&self) {
        while let Some(piece) = self.next() {
            for (stream, ticket) in &piece.after {
                stream.wait(*ticket);
            }
            let context = &piece.context;
            let run = AssertUnwindSafe(|| piece.work.run(context));
            // A panic is an error of this library: whoever waits must hear of it.
            if let Err(error) = catch_unwind(run).unwrap_or(Err(code::UNKNOWN)) {
                context.fail(error);
            }
            let unfinished = &context.unfinished.0;
            let mut all = unfinished.lock().unwrap_or_else(PoisonError::into_inner);
            all.remove(&(self.id, piece.ticket));
            drop(all);
            *self.done.lock().unwrap_or_else(PoisonError::into_inner) = piece.ticket;
            self.reached.notify_all();
        }
    }
}
