//! Has the driver's checkpoint calls made, each time by a process of its own ([`crate::driver_checkpoint`]) with a thread that waits for it.
//! What becomes of it is told; who is late is ended by its number.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use gpuos_host::steps::job_processes::Proc;
use gpuos_memory::lease::ClientId;
use rustix::process::geteuid;

use super::Notice;
use super::programs::process;
use crate::driver_checkpoint::{Stop, Target, Way, words};
use crate::sink::Sink;

/// How long after its time it may take to notice that.
const GRACE: Duration = Duration::from_secs(2);
/// Between two looks whether it has ended.
const PAUSE: Duration = Duration::from_millis(5);
/// How often one is begun that was killed before it was done.
const TRIES: usize = 3;
/// What a process has that could not be brought out, to be let go on.
const LET_GO: Duration = Duration::from_secs(5);
/// What it writes at most.
const MOST: u64 = 64;
/// The group of nobody, where a process does not show its own.
const NOGROUP: u32 = 65534;

/// What is to be done with a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Order {
    /// The process.
    pub client: ClientId,
    /// Its user.
    pub uid: u32,
    /// What.
    pub way: Way,
    /// Within so long.
    pub limit: Duration,
}

/// What became of it: how long it took in ms, or why it was not done, in a clause.
pub type Outcome = Result<u64, String>;

/// What processes that call the driver are started with.
#[derive(Clone, Debug)]
pub struct Caller {
    /// This program.
    pub program: PathBuf,
    /// The driver's library.
    pub library: String,
    /// Where processes are looked up.
    pub proc: PathBuf,
}

/// Starts the thread that takes orders.
///
/// # Errors
/// The thread cannot be made.
pub fn start(caller: Caller, to: Sink<Notice>) -> std::io::Result<Sender<Order>> {
    let (orders, from) = channel::<Order>();
    let caller = Arc::new(caller);
    let run = move || {
        for order in from {
            let (caller, tell) = (Arc::clone(&caller), to.clone());
            let serve = move || {
                let done = caller.serve(&order);
                tell.send(Notice::Called(order.client, order.way, done));
            };
            let builder = thread::Builder::new().name("driver".into());
            if let Err(why) = builder.spawn(serve) {
                let done = Err(format!("no thread can be started: {why}"));
                to.send(Notice::Called(order.client, order.way, done));
            }
        }
    };
    thread::Builder::new().name("drivers".into()).spawn(run)?;
    Ok(orders)
}

impl Caller {
    /// The process is a child of this thread's, which lives longer than it: so it does not outlive gpuosd.
    fn serve(&self, order: &Order) -> Outcome {
        let begun = Instant::now();
        let (pid, started) = process(order.client);
        let target = Target {
            pid,
            started,
            uid: order.uid,
        };
        let mut why = String::new();
        for _ in 0..TRIES {
            let left = order.limit.saturating_sub(begun.elapsed());
            match self.call(order.way, &target, left) {
                Ok(Ok(())) => return Ok(begun.elapsed().as_millis() as u64),
                // Whoever is late may have been killed with it half done.
                Ok(Err(Stop::Late)) => {
                    why = Stop::Late.why();
                    break;
                }
                Ok(Err(stop)) => return Err(stop.why()),
                // What it had begun the next one finds.
                Err(killed) => why = killed,
            }
        }
        if order.way == Way::Out {
            let _ = self.call(Way::Back, &target, LET_GO);
        }
        Err(why)
    }

    /// Runs it once. `Err`: it was not done, and nobody says why.
    fn call(&self, way: Way, target: &Target, limit: Duration) -> Result<Result<(), Stop>, String> {
        if limit.is_zero() {
            return Ok(Err(Stop::Late));
        }
        let from = (self.proc.clone().into_os_string(), &self.library[..]);
        let mut command = Command::new(&self.program);
        command
            .args(words(way, target, limit, std::process::id(), from))
            .env_clear()
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        if geteuid().is_root() {
            let group = Proc::at(&self.proc).real_group(target.pid);
            // This clears root's further groups, too, and with its number root's capabilities go.
            command.uid(target.uid).gid(group.unwrap_or(NOGROUP));
        }
        let failed = |why: std::io::Error| format!("it cannot be started: {why}");
        let mut child = command.spawn().map_err(failed)?;
        let deadline = Instant::now() + limit + GRACE;
        loop {
            match child.try_wait() {
                Ok(Some(status)) => {
                    let mut line = String::new();
                    if let Some(out) = child.stdout.take() {
                        let _ = out.take(MOST).read_to_string(&mut line);
                    }
                    let told = status.code().and_then(|code| match code {
                        0 => Some(Ok(())),
                        code => Stop::of(code, &line).map(Err),
                    });
                    return told
                        .ok_or_else(|| "the process that calls the driver was ended".into());
                }
                Ok(None) if Instant::now() < deadline => thread::sleep(PAUSE),
                Ok(None) | Err(_) => break,
            }
        }
        let _ = child.kill();
        // One that the driver holds even now is not waited for.
        let deadline = Instant::now() + Duration::from_secs(1);
        while matches!(child.try_wait(), Ok(None)) && Instant::now() < deadline {
            thread::sleep(PAUSE);
        }
        Ok(Err(Stop::Late))
    }
}
