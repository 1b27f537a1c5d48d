//! One call from C: results become return codes, and a panic becomes one too. And what a call does with
//! a stream.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};

use crate::abi::{Answer, Code, code};
use crate::engine::checkpoint;
use crate::engine::context::{Context, current};
use crate::engine::driver::driver;
use crate::engine::stream::Stream;
use crate::engine::work::Work;

/// The address of a function.
pub(crate) struct Address(pub(crate) *const ());

// SAFETY: it is the address of code, which nothing changes.
unsafe impl Sync for Address {}

thread_local! {
    /// Whether the default stream of this call is the thread's own.
    static OWN: Cell<bool> = const { Cell::new(false) };
}

/// Runs a call whose default stream is the thread's own.
pub(crate) fn per_thread(body: impl FnOnce() -> Code) -> Code {
    OWN.set(true);
    let code = body();
    OWN.set(false);
    code
}

/// Runs the body of an exported function. A panic is an error of this library, and becomes
/// `CUDA_ERROR_UNKNOWN`: it must not cross into C.
pub(crate) fn call(name: &str, body: impl FnOnce() -> Answer<()>) -> Code {
    let _inside = checkpoint::enter(name);
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => code::OK,
        Ok(Err(error)) => error,
        Err(_) => {
            eprintln!("simulated libcuda: {name} failed by an error of the simulator");
            code::UNKNOWN
        }
    }
}

/// The stream that a handle means: 0 is the default one, 1 the context's, 2 the thread's.
pub(crate) fn stream_of(handle: u64) -> Answer<(Arc<Context>, Arc<Stream>)> {
    let driver = driver()?;
    match handle {
        0..=2 => {
            let context = current()?;
            let own = handle == 2 || (handle == 0 && OWN.get());
            let stream = match own {
                true => context.of_thread()?,
                false => Arc::clone(&context.null),
            };
            Ok((context, stream))
        }
        _ => {
            let stream = driver.streams.get(handle)?;
            // The calling thread needs a context, and one that works.
            current()?;
            Ok((stream.context()?, stream))
        }
    }
}

/// Work that a stream was given, with the context whose error tells how it went.
type Ticket = (Arc<Context>, Arc<Stream>, u64);

/// Gives a stream work, or adds it to the graph that the stream captures. Some only where there is a ticket to
/// wait for.
pub(crate) fn enqueue(handle: u64, work: Work) -> Answer<Option<Ticket>> {
    let (context, stream) = stream_of(handle)?;
    let mut capture = stream
        .capture
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    if let Some(capture) = capture.as_mut() {
        let driver = driver()?;
        let graph = driver.graphs.get(capture.graph)?;
        let node = graph.add(driver, capture.graph, work, &capture.tails)?;
        capture.tails = vec![node];
        return Ok(None);
    }
    drop(capture);
    let ticket = context.submit(&stream, work)?;
    Ok(Some((context, stream, ticket)))
}

/// Does work in the default stream and waits for it.
pub(crate) fn finish(work: Work) -> Answer<()> {
    match enqueue(0, work)? {
        None => Err(code::CAPTURE_UNSUPPORTED),
        Some((context, stream, ticket)) => {
            stream.wait(ticket);
            context.outcome()
        }
    }
}
