//! A thread that writes, so that a slow or full disk holds up nobody else. What could not be written is
//! tried again; of several states only the newest is.

use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::{audit, store};

/// Wait after a failure.
const RETRY: Duration = Duration::from_secs(5);
/// Lines that are kept in memory while the disk does not take them; older ones go.
const MOST_LINES: usize = 10_000;

/// Told whether the state that was handed over, or a newer one, is safe on the disk.
pub type Ack = Box<dyn FnOnce(Result<(), String>) + Send>;

#[derive(Default)]
struct Pending {
    state: Option<Vec<u8>>,
    lines: Vec<String>,
    acks: Vec<Ack>,
    writing: bool,
    trouble: Option<String>,
    lost_lines: u64,
}

/// The disk, as the loop sees it.
#[derive(Clone)]
pub struct Disk {
    shared: Arc<(Mutex<Pending>, Condvar)>,
}

impl Disk {
    /// Starts the thread that writes into `folder`.
    ///
    /// # Errors
    /// The thread cannot be made.
    pub fn start(folder: PathBuf) -> std::io::Result<Disk> {
        let disk = Disk {
            shared: Arc::default(),
        };
        let own = disk.clone();
        thread::Builder::new()
            .name("disk".into())
            .spawn(move || own.write_on(&folder))?;
        Ok(disk)
    }

    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands a state over; `ack` is told once.
    pub fn save(&self, state: Vec<u8>, ack: Option<Ack>) {
        let mut pending = self.lock();
        pending.state = Some(state);
        pending.acks.extend(ack);
        self.shared.1.notify_all();
    }

    /// Hands lines for the audit log over.
    pub fn audit(&self, lines: Vec<String>) {
        if lines.is_empty() {
            return;
        }
        let mut pending = self.lock();
        pending.lines.extend(lines);
        let over = pending.lines.len().saturating_sub(MOST_LINES);
        pending.lines.drain(..over);
        pending.lost_lines += over as u64;
        self.shared.1.notify_all();
    }

    /// Why nothing can be written, if so.
    pub fn trouble(&self) -> Option<String> {
        self.lock().trouble.clone()
    }

    /// Waits until all is written, or until `limit` has passed. Returns whether it is.
    pub fn flush(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        let mut pending = self.lock();
        loop {
            if pending.state.is_none() && pending.lines.is_empty() && !pending.writing {
                return true;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.shared.1.wait_timeout(pending, left);
            pending = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn write_on(&self, folder: &std::path::Path) {
        loop {
            let (state, lines, acks) = self.next();
            let logged = match lines.is_empty() {
                true => Ok(()),
                false => audit::append(folder, &lines),
            };
            let saved = match &state {
                Some(state) => store::write(folder, state),
                None => Ok(()),
            };
            let told = match &saved {
                Ok(()) => Ok(()),
                Err(e) => Err(format!("{}: {e}", folder.join(store::NAME).display())),
            };
            for ack in acks {
                ack(told.clone());
            }
            let mut pending = self.lock();
            pending.writing = false;
            let failed = saved.is_err() || logged.is_err();
            let trouble = told.err().or(match &logged {
                Ok(()) => None,
                Err(e) => Some(format!("{}: {e}", folder.join(audit::NAME).display())),
            });
            log_change(&pending.trouble, &trouble);
            pending.trouble = trouble;
            if logged.is_err() {
                let newer = std::mem::replace(&mut pending.lines, lines);
                pending.lines.extend(newer);
            }
            if saved.is_err() && pending.state.is_none() {
                pending.state = state;
            }
            self.shared.1.notify_all();
            if failed {
                drop(pending);
                thread::sleep(RETRY);
            }
        }
    }

    fn next(&self) -> (Option<Vec<u8>>, Vec<String>, Vec<Ack>) {
        let mut pending = self.lock();
        while pending.state.is_none() && pending.lines.is_empty() {
            let waited = self.shared.1.wait(pending);
            pending = waited.unwrap_or_else(PoisonError::into_inner);
        }
        pending.writing = true;
        (
            pending.state.take(),
            std::mem::take(&mut pending.lines),
            std::mem::take(&mut pending.acks),
        )
    }
}

fn log_change(before: &Option<String>, now: &Option<String>) {
    match (before, now) {
        (None, Some(why)) => tracing::error!(
            "cannot write {why}; the daemon goes on from memory and tries again every {} s: make room, or \
             check the directory's rights",
            RETRY.as_secs()
        ),
        (Some(_), None) => tracing::info!("the state and the audit log are written again"),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn what_cannot_be_written_is_said_and_written_later() {
        let folder = tempfile::tempdir().unwrap();
        // A file where a folder has to be: it holds for root, too.
        let path = folder.path().join("state-dir");
        std::fs::write(&path, "").unwrap();
        let disk = Disk::start(path.clone()).unwrap();
        let (to, from) = channel();
        disk.audit(vec!["{\"n\":1}".into()]);
        let ack: Ack = Box::new(move |told| to.send(told).unwrap());
        disk.save(b"first".to_vec(), Some(ack));
        assert!(from.recv_timeout(LONG).unwrap().is_err());
        while disk.trouble().is_none() {
            thread::sleep(Duration::from_millis(5));
        }
        disk.save(b"second".to_vec(), None);
        std::fs::remove_file(&path).unwrap();
        assert!(disk.flush(LONG));
        assert_eq!(std::fs::read(path.join(store::NAME)).unwrap(), b"second");
        assert_eq!(audit::tail(&path, 9).unwrap(), ["{\"n\":1}"]);
        assert_eq!(disk.trouble(), None);
    }
}
