//! The HTTP endpoint: one thread, and limits on what a client can take.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, oneshot};

use super::Snapshot;
use super::text::{self, Process, text};

/// Connections at a time; more wait in the kernel's queue.
const CONNECTIONS: usize = 16;
/// A client has so long to send its request.
const HEAD: Duration = Duration::from_secs(5);
/// A connection lasts no longer.
const WHOLE: Duration = Duration::from_secs(30);
/// Most bytes of a request's head.
const BYTES: usize = 16 << 10;
/// Most headers of a request.
const HEADERS: usize = 64;
/// A port that is taken is tried again so often.
const AGAIN: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
struct Shared {
    snapshot: Mutex<Arc<Snapshot>>,
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
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(pass) = Arc::clone(&room).acquire_owned().await else {
            return;
        };
        let Ok((stream, _)) = listener.accept().await else {
            // Too many open files: they close again.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let own = Arc::clone(shared);
        tokio::spawn(async move {
            let answer = service_fn(move |request| {
                let response = answer(&request, &own);
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
            drop(pass);
        });
    }
}

fn answer(request: &Request<Incoming>, shared: &Shared) -> Response<Full<Bytes>> {
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    let known = matches!(request.uri().path(), "/" | "/metrics");
    let (status, kind, body) = match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/metrics") => {
            let body = text(&get(&shared.snapshot), process());
            (
                StatusCode::OK,
                HeaderValue::from_static(text::CONTENT_TYPE),
                body,
            )
        }
        (&Method::GET | &Method::HEAD, "/") => (
            StatusCode::OK,
            plain,
            "gpuosd: metrics are at /metrics\n".into(),
        ),
        _ if known => {
            let body = "write GET\n".into();
            (StatusCode::METHOD_NOT_ALLOWED, plain, body)
        }
        _ => (
            StatusCode::NOT_FOUND,
            plain,
            "metrics are at /metrics\n".into(),
        ),
    };
    let mut response = Response::new(Full::new(Bytes::from(body)));
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
