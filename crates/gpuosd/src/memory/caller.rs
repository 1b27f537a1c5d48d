//! Has the driver's checkpoint calls made, each time by a process of its own ([`crate::driver_checkpoint`]) with a thread that waits for it.
//! What becomes of it is told; who is late is ended by its number.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use gpuos_memory::lease::ClientId;
use rustix::fs::{OFlags, fcntl_setfl};

use super::Notice;
use super::programs::process;
use crate::as_user;
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
const MOST: usize = 64;

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

/// What became of it: how long it took in ms, or that it was not done.
pub type Outcome = Result<u64, Failed>;

/// Why it was not done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failed {
    /// In a clause.
    pub why: String,
    /// It would be the same if it were tried again.
    pub refused: bool,
    /// It was to be brought out, and the driver has let it go on.
    pub runs_on: bool,
}

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
                let done = Err(Failed {
                    why: format!("no thread can be started: {why}"),
                    refused: false,
                    runs_on: false,
                });
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
        let (mut why, mut refused) = (String::new(), false);
        for _ in 0..TRIES {
            let left = order.limit.saturating_sub(begun.elapsed());
            match self.call(order.way, &target, left) {
                Ok(Ok(())) => return Ok(begun.elapsed().as_millis() as u64),
                Ok(Err(stop)) => {
                    (why, refused) = (stop.why(), stop.stays());
                    break;
                }
                // What it had begun the next one finds.
                Err(killed) => why = killed,
            }
        }
        // It may be half done, whoever was killed or refused. Where it is not let go on, the driver has it still.
        let out = order.way == Way::Out;
        let runs_on = out && self.call(Way::Back, &target, LET_GO) == Ok(Ok(()));
        Err(Failed {
            why,
            refused,
            runs_on,
        })
    }

    /// Runs it once. `Err`: it was not done, and nobody says why.
    fn call(&self, way: Way, target: &Target, limit: Duration) -> Result<Result<(), Stop>, String> {
        if limit.is_zero() {
            return Ok(Err(Stop::Late));
        }
        let from = (self.proc.clone().into_os_string(), &self.library[..]);
        let mut command = Command::new(&self.program);
        // It takes the user's rights itself.
        command
            .args(words(way, target, limit, std::process::id(), from))
            .env_clear()
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let ended = as_user::run(&mut command, limit + GRACE, PAUSE);
        let ended = ended.map_err(|why| format!("it cannot be started: {why}"))?;
        let Some((status, out)) = ended else {
            return Ok(Err(Stop::Late));
        };
        let line = out.map_or(String::new(), written);
        let told = status.code().and_then(|code| match code {
            0 => Some(Ok(())),
            code => Stop::of(code, &line).map(Err),
        });
        told.ok_or_else(|| "the process that calls the driver was ended".into())
    }
}

/// What a process that has ended has written. Others may have the pipe from it, and keep it open: nothing more is waited for.
fn written(mut out: ChildStdout) -> String {
    let mut line = [0; MOST];
    let count = match fcntl_setfl(&out, OFlags::NONBLOCK) {
        Ok(()) => out.read(&mut line).unwrap_or(0),
        Err(_) => 0,
    };
    String::from_utf8_lossy(&line[..count]).into_owned()
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::path::Path;
    use std::sync::mpsc::channel;

    use super::*;

    /// What is called in the place of this program: it does as `text` says for the word that it is given, `out` or `back`.
    fn plays(folder: &Path, text: &str) -> Caller {
        let program = folder.join("plays");
        // No thread of this process has it open for writing while another one starts something.
        let mut shell = Command::new("sh")
            .args(["-c", "cat > \"$0\" && chmod 755 \"$0\""])
            .arg(&program)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = shell.stdin.take().unwrap();
        write!(stdin, "#!/bin/sh\ncase $2 in\n{text}\nesac\n").unwrap();
        drop(stdin);
        assert!(shell.wait().unwrap().success());
        Caller {
            program,
            library: String::new(),
            proc: "/proc".into(),
        }
    }

    fn order(way: Way) -> Order {
        Order {
            client: ClientId(7),
            uid: 0,
            way,
            limit: Duration::from_secs(60),
        }
    }

    #[test]
    fn that_a_process_runs_on_is_said_only_where_it_was_let_go() {
        let folder = tempfile::tempdir().unwrap();
        for (text, refused, runs_on) in [
            ("out) exit 5;;", false, true),
            ("out) exit 5;; back) exit 5;;", false, false),
            ("out) echo 3 801; exit 7;;", true, true),
            (
                "out) echo 3 801; exit 7;; back) echo 5 1; exit 7;;",
                true,
                false,
            ),
            ("out) kill -9 $$;;", false, true),
            ("*) kill -9 $$;;", false, false),
        ] {
            let caller = plays(folder.path(), text);
            let failed = caller.serve(&order(Way::Out)).unwrap_err();
            assert_eq!(
                (failed.refused, failed.runs_on),
                (refused, runs_on),
                "{text}"
            );
        }
        let caller = plays(folder.path(), "back) echo 4 2; exit 7;;");
        assert!(caller.serve(&order(Way::Out)).is_ok());
        let failed = caller.serve(&order(Way::Back)).unwrap_err();
        assert_eq!(failed.why, "cuCheckpointProcessRestore answered 2");
    }

    /// A process that the caller has made may live on, and has what the caller writes to.
    #[test]
    fn who_keeps_what_the_caller_wrote_to_holds_nobody_up() {
        let folder = tempfile::tempdir().unwrap();
        let text = "*) sleep 600 & echo $! >> \"$0.left\"; echo 4 801; exit 7;;";
        let caller = plays(folder.path(), text);
        let (tell, told) = channel();
        thread::spawn(move || tell.send(caller.serve(&order(Way::Back))));
        let failed = told.recv_timeout(Duration::from_secs(300));
        let left = std::fs::read_to_string(folder.path().join("plays.left")).unwrap();
        Command::new("kill").args(left.lines()).status().unwrap();
        let failed = failed.expect("nobody waits for it").unwrap_err();
        assert_eq!(failed.why, "cuCheckpointProcessRestore answered 801");
    }
}
