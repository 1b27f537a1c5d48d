//! The HTTP endpoint: one thread, and limits on what a client can take.
//!
//! Connections are taken as they come and answered side by side, so nobody waits for another one. When all places are taken,
//! one is given up at once, and it is not that of who has only just come ([`Places::victim`]): a program that scrapes sends
//! its request with its first packet and is gone within milliseconds, while slow ones stay.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use gpuos_host::socket::{Bucket, Rate};

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use super::Snapshot;
use super::text::{self, Process, text};

/// Connections at a time; beyond them slow ones give up their places.
const CONNECTIONS: usize = 32;
/// A client has so long to send its request.
const HEAD: Duration = Duration::from_secs(2);
/// A connection lasts no longer.
const WHOLE: Duration = Duration::from_secs(10);
/// Connections that are taken from the kernel's queue: a flood of them is to take a small part of a core.
const ACCEPTS: Rate = Rate {
    each_second: 1000.0,
    at_once: 200.0,
};
/// Most bytes of a request's head.
const BYTES: usize = 16 << 10;
/// Most headers of a request.
const HEADERS: usize = 64;
/// A port that is taken is tried again so often.
const AGAIN: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
struct Shared {
    snapshot: Mutex<Arc<Snapshot>>,
    /// The text of that snapshot, once somebody has asked for it.
    text: Mutex<Option<Bytes>>,
    trouble: Mutex<Option<String>>,
    open: Mutex<Option<SocketAddr>>,
}

fn set<T>(place: &Mutex<T>, value: T) {
    *place.lock().unwrap_or_else(PoisonError::into_inner) = value;
}

fn get<T: Clone>(place: &Mutex<T>) -> T {
    place.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// A running endpoint; it closes when it is dropped.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Server {
    /// Opens `address` in a thread of its own; where that fails it is tried again, and [`Server::trouble`] says so.
    ///
    /// # Errors
    /// The thread cannot be made.
    pub fn start(address: SocketAddr) -> io::Result<Server> {
        let shared = Arc::new(Shared::default());
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()?;
        let own = Arc::clone(&shared);
        let run = move || {
            runtime.block_on(async {
                tokio::select! {
                    // Sent or dropped: both are the end.
                    _ = stopped => {}
                    () = serve(address, &own) => {}
                }
            });
        };
        let thread = thread::Builder::new().name("metrics".into()).spawn(run)?;
        Ok(Server {
            shared,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// What is told from now on.
    pub fn show(&self, snapshot: Arc<Snapshot>) {
        set(&self.shared.snapshot, snapshot);
        set(&self.shared.text, None);
    }

    /// Why nothing can be asked, if so.
    pub fn trouble(&self) -> Option<String> {
        get(&self.shared.trouble)
    }

    /// The address, once it is open: with port 0 the kernel has chosen one.
    pub fn address(&self) -> Option<SocketAddr> {
        get(&self.shared.open)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        // It holds no lock and waits for nobody: the end is a matter of microseconds.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn serve(address: SocketAddr, shared: &Arc<Shared>) {
    let listener = loop {
        match TcpListener::bind(address).await {
            Ok(listener) => break listener,
            Err(e) => {
                let why = format!("no metrics: [metrics] listen = {address}: {e}");
                if get(&shared.trouble).as_ref() != Some(&why) {
                    tracing::error!("{why}; it is tried again every {} s", AGAIN.as_secs());
                }
                set(&shared.trouble, Some(why));
                tokio::time::sleep(AGAIN).await;
            }
        }
    };
    set(&shared.trouble, None);
    let open = listener.local_addr().unwrap_or(address);
    set(&shared.open, Some(open));
    tracing::info!("metrics at http://{open}/metrics");
    let places = Arc::new(Mutex::new(Places::default()));
    let mut rate = Bucket::full(ACCEPTS, Instant::now());
    loop {
        tokio::time::sleep(rate.take_in_advance(Instant::now())).await;
        let Ok((stream, from)) = listener.accept().await else {
            // Too many open files: they close again.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let number = lock(&places).make_slot(from.ip());
        let talk = talk(stream, number, Arc::clone(shared), Arc::clone(&places));
        let ends = tokio::spawn(talk).abort_handle();
        // It has not run yet: this thread is the only one.
        lock(&places).entered(number, ends);
    }
}

async fn talk(stream: TcpStream, number: u64, shared: Arc<Shared>, places: Arc<Mutex<Places>>) {
    let asked = Arc::clone(&places);
    let answer = service_fn(move |request| {
        lock(&asked).asked(number);
        let response = answer(&request, &shared);
        async move { Ok::<_, Infallible>(response) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(BYTES)
        .max_headers(HEADERS)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), answer);
    // What goes wrong on a connection is the client's.
    let _ = tokio::time::timeout(WHOLE, connection).await;
    lock(&places).left(number);
}

fn lock(places: &Mutex<Places>) -> MutexGuard<'_, Places> {
    places.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A connection.
#[derive(Debug)]
struct Place {
    from: IpAddr,
    /// Its request was read: it is being answered.
    asked: bool,
    ends: Option<AbortHandle>,
}

/// Connections, by their numbers, which rise.
#[derive(Debug, Default)]
struct Places {
    taken: BTreeMap<u64, Place>,
    next: u64,
}

impl Places {
    /// A place for a new connection, of somebody else where none is free.
    fn make_slot(&mut self, from: IpAddr) -> u64 {
        while self.taken.len() >= CONNECTIONS {
            let Some(number) = self.victim() else { break };
            if let Some(ends) = self.taken.remove(&number).and_then(|place| place.ends) {
                ends.abort();
            }
        }
        self.next += 1;
        let place = Place {
            from,
            asked: false,
            ends: None,
        };
        self.taken.insert(self.next, place);
        self.next
    }

    /// Who gives up his place: of the address with the most connections, the oldest that has not sent a request, else the
    /// oldest.
    fn victim(&self) -> Option<u64> {
        let mut counts: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for place in self.taken.values() {
            *counts.entry(place.from).or_default() += 1;
        }
        let (from, _) = counts.into_iter().max_by_key(|(_, count)| *count)?;
        let own = self.taken.iter().filter(|(_, place)| place.from == from);
        let first = own.min_by_key(|(number, place)| (place.asked, **number));
        first.map(|(number, _)| *number)
    }

    fn entered(&mut self, number: u64, ends: AbortHandle) {
        if let Some(place) = self.taken.get_mut(&number) {
            place.ends = Some(ends);
        }
    }

    fn asked(&mut self, number: u64) {
        if let Some(place) = self.taken.get_mut(&number) {
            place.asked = true;
        }
    }

    fn left(&mut self, number: u64) {
        self.taken.remove(&number);
    }
}

/// The text of the newest snapshot: made once, however many ask.
fn metrics(shared: &Shared) -> Bytes {
    let mut kept = shared.text.lock().unwrap_or_else(PoisonError::into_inner);
    let made = || Bytes::from(text(&get(&shared.snapshot), process()));
    kept.get_or_insert_with(made).clone()
}

fn answer(request: &Request<Incoming>, shared: &Shared) -> Response<Full<Bytes>> {
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    let known = matches!(request.uri().path(), "/" | "/metrics");
    let (status, kind, body) = match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/metrics") => {
            let kind = HeaderValue::from_static(text::CONTENT_TYPE);
            (StatusCode::OK, kind, metrics(shared))
        }
        (&Method::GET | &Method::HEAD, "/") => (
            StatusCode::OK,
            plain,
            Bytes::from_static(b"gpuosd: metrics are at /metrics\n"),
        ),
        _ if known => {
            let body = Bytes::from_static(b"write GET\n");
            (StatusCode::METHOD_NOT_ALLOWED, plain, body)
        }
        _ => (
            StatusCode::NOT_FOUND,
            plain,
            Bytes::from_static(b"metrics are at /metrics\n"),
        ),
    };
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, kind);
    if status == StatusCode::METHOD_NOT_ALLOWED {
        let allowed = HeaderValue::from_static("GET, HEAD");
        response.headers_mut().insert(ALLOW, allowed);
    }
    response
}

/// What the daemon uses, by the kernel's word.
fn process() -> Option<Process> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name, in parentheses, may hold anything.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |nth: usize| fields.get(nth)?.parse::<u64>().ok();
    // Counted from the state, the third field of proc(5): utime, stime and rss are the 14th, 15th and 24th.
    let ticks = number(11)?.saturating_add(number(12)?);
    let pages = number(21)?;
    Some(Process {
        resident_bytes: pages.saturating_mul(rustix::param::page_size() as u64),
        cpu_seconds: ticks as f64 / rustix::param::clock_ticks_per_second() as f64,
    })
}

#[cfg(test)]
#[path = "serve_tests.rs"]
mod tests;
