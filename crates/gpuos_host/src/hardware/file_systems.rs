//! Whether file systems answer. A call into one that does not may never come back, so each is asked in a
//! thread of its own, and whoever wants to know looks at when it was asked.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How file systems are asked.
pub trait FileSystems: Send + Sync {
    /// Asks the one that holds `path`; may block for as long as it likes.
    ///
    /// # Errors
    /// It answered, and with an error.
    fn ask(&self, path: &Path) -> io::Result<()>;
}

/// The kernel's: `statvfs`, which network file systems pass on to their server.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mounted;

impl FileSystems for Mounted {
    fn ask(&self, path: &Path) -> io::Result<()> {
        rustix::fs::statvfs(path)?;
        Ok(())
    }
}

/// The twin: every path answers but those that are put here.
#[derive(Debug, Default)]
pub struct FileSystemsTwin {
    silent: Mutex<Vec<PathBuf>>,
    changed: Condvar,
}

impl FileSystemsTwin {
    /// From now on these do not answer, and all others do.
    pub fn set_silent(&self, paths: &[&str]) {
        *self.silent.lock().unwrap_or_else(PoisonError::into_inner) =
            paths.iter().map(PathBuf::from).collect();
        self.changed.notify_all();
    }
}

impl FileSystems for FileSystemsTwin {
    fn ask(&self, path: &Path) -> io::Result<()> {
        let mut silent = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        while silent.iter().any(|known| known == path) {
            let woken = self.changed.wait(silent);
            silent = woken.unwrap_or_else(PoisonError::into_inner);
        }
        Ok(())
    }
}

/// What is known of a file system.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answered {
    /// Its path, as it was given.
    pub path: PathBuf,
    /// For how long it has not answered; zero when it does.
    pub silent: Duration,
    /// The error that it answered with.
    pub error: Option<String>,
}

#[derive(Debug, Default)]
struct State {
    /// When it was asked what it has not answered yet.
    asked: Option<Instant>,
    error: Option<String>,
    /// Nobody wants to know any more.
    dropped: bool,
    /// The thread has seen that, and is gone.
    ended: bool,
}

#[derive(Debug, Default)]
struct Probe {
    state: Mutex<State>,
    changed: Condvar,
}

impl Probe {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, path: &Path, ask: &dyn FileSystems, pause: Duration) {
        loop {
            {
                let mut state = self.lock();
                if state.dropped {
                    state.ended = true;
                    return;
                }
                state.asked = Some(Instant::now());
            }
            let answer = ask.ask(path);
            let mut state = self.lock();
            state.asked = None;
            state.error = answer.err().map(|error| error.to_string());
            let wait = self
                .changed
                .wait_timeout_while(state, pause, |state| !state.dropped);
            drop(wait.unwrap_or_else(PoisonError::into_inner));
        }
    }
}

/// Threads that ask.
pub struct Probes {
    ask: Arc<dyn FileSystems>,
    pause: Duration,
    each: BTreeMap<PathBuf, Arc<Probe>>,
}

impl Drop for Probes {
    fn drop(&mut self) {
        let _ = self.watch(&[]);
    }
}

impl Probes {
    /// Nothing is asked yet. `pause` lies between an answer and the next question.
    pub fn new(ask: Arc<dyn FileSystems>, pause: Duration) -> Probes {
        Probes {
            ask,
            pause,
            each: BTreeMap::new(),
        }
    }

    /// From now on these paths are asked, and no others.
    ///
    /// # Errors
    /// A thread cannot be made; the other paths are asked.
    pub fn watch(&mut self, paths: &[PathBuf]) -> io::Result<()> {
        for (path, probe) in &self.each {
            if !paths.contains(path) {
                probe.lock().dropped = true;
                probe.changed.notify_all();
            }
        }
        self.each.retain(|_, probe| !probe.lock().ended);
        let mut worst = Ok(());
        for path in paths {
            if let Some(known) = self.each.get(path) {
                let mut state = known.lock();
                // A thread that still hangs in its call goes on with it.
                if !state.ended {
                    state.dropped = false;
                    continue;
                }
            }
            let probe = Arc::new(Probe::default());
            let (own, ask, at, pause) = (
                Arc::clone(&probe),
                Arc::clone(&self.ask),
                path.clone(),
                self.pause,
            );
            let run = move || own.run(&at, &*ask, pause);
            match thread::Builder::new().name("file-system".into()).spawn(run) {
                Ok(_) => drop(self.each.insert(path.clone(), probe)),
                Err(error) => worst = Err(error),
            }
        }
        worst
    }

    /// How each of them is.
    pub fn states(&self) -> Vec<Answered> {
        let wanted = self.each.iter().map(|(path, probe)| (path, probe.lock()));
        let answered = |(path, state): (&PathBuf, MutexGuard<'_, State>)| Answered {
            path: path.clone(),
            silent: state.asked.map_or(Duration::ZERO, |at| at.elapsed()),
            error: state.error.clone(),
        };
        wanted
            .filter(|(_, state)| !state.dropped)
            .map(answered)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn until(what: &str, mut done: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !done() {
            assert!(Instant::now() < deadline, "{what}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn one_that_hangs_is_told_and_holds_up_nobody() {
        let twin = Arc::new(FileSystemsTwin::default());
        let mut probes = Probes::new(twin.clone(), Duration::from_millis(5));
        let paths: Vec<PathBuf> = vec!["/home".into(), "/scratch".into()];
        probes.watch(&paths).unwrap();
        twin.set_silent(&["/scratch"]);
        let silent = |probes: &Probes, path: &str| {
            let all = probes.states();
            let one = all.iter().find(|one| one.path == Path::new(path));
            one.map(|one| one.silent)
        };
        let long = Duration::from_millis(200);
        until("it hangs", || silent(&probes, "/scratch") > Some(long));
        // The other one goes on: its questions are young.
        until("it answers", || silent(&probes, "/home") < Some(long));
        // No second thread is left behind by a reload that takes it away and back.
        probes.watch(&paths[..1]).unwrap();
        assert_eq!(silent(&probes, "/scratch"), None);
        probes.watch(&paths).unwrap();
        assert!(silent(&probes, "/scratch") > Some(long));
        twin.set_silent(&[]);
        until("it is back", || silent(&probes, "/scratch") < Some(long));
    }

    #[test]
    fn an_error_is_an_answer() {
        let mut probes = Probes::new(Arc::new(Mounted), Duration::from_millis(5));
        probes
            .watch(&["/nowhere/at/all".into(), "/".into()])
            .unwrap();
        until("both answer", || {
            let all = probes.states();
            let error = |path: &str| {
                all.iter()
                    .any(|one| one.path == Path::new(path) && one.error.is_some())
            };
            error("/nowhere/at/all") && !error("/")
        });
    }
}
