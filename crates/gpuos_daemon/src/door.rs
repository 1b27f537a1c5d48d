//! The socket files of a daemon: one for everybody, and one for root that no user can fill.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpuos_core::wire::root_socket;
use gpuos_host::socket::{self, BindError, Limits, RequestHandler, Server};

/// The sockets are looked after so often.
const SOCKET_EVERY: Duration = Duration::from_secs(10);

/// The socket files, made anew where somebody took them away or they could not be made.
#[derive(Debug)]
pub struct Door {
    path: PathBuf,
    /// The file that is ours, by device and number.
    own: Option<(u64, u64)>,
    /// The socket for root, which only root can reach.
    for_root: PathBuf,
    own_for_root: Option<(u64, u64)>,
    checked: Instant,
    trouble: Option<String>,
}

impl Door {
    /// For a socket at `path`, and one for root beside it. None is there yet.
    pub fn new(path: PathBuf) -> Door {
        Door {
            own: None,
            for_root: root_socket(&path.to_string_lossy()).into(),
            own_for_root: None,
            path,
            checked: Instant::now(),
            trouble: None,
        }
    }

    fn has(path: &Path, own: Option<(u64, u64)>) -> bool {
        own.is_some() && identity(path) == own
    }

    /// Where the socket for everybody is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes both sockets, where they are not there, and serves them.
    ///
    /// # Errors
    /// One cannot be made, which [`Door::check_sockets`] tries again; or another daemon has them, which a caller does not live with.
    pub fn open(&mut self, handler: &Arc<dyn RequestHandler>) -> Result<(), BindError> {
        let opened = self.open_both(handler);
        let before = self.trouble.take();
        if let Err((path, e)) = &opened {
            let why = format!("{}: {e}", path.display());
            if before.as_ref() != Some(&why) {
                tracing::error!(
                    "no socket: {why}; it is tried again every {} s",
                    SOCKET_EVERY.as_secs()
                );
            }
            self.trouble = Some(why);
        } else if before.is_some() {
            tracing::info!("the socket {} is there", self.path.display());
        }
        opened.map_err(|(_, e)| e)
    }

    fn open_both(&mut self, handler: &Arc<dyn RequestHandler>) -> Result<(), (PathBuf, BindError)> {
        // Root's first: whoever listens there is another daemon, also where the one for everybody was taken away.
        if !Door::has(&self.for_root, self.own_for_root) {
            let path = &self.for_root;
            let opened = socket::bind_for_root(path).and_then(|listener| {
                Server::start_for_root(listener, handler.clone(), Limits::default())?;
                Ok(())
            });
            opened.map_err(|e| (path.clone(), e))?;
            self.own_for_root = identity(path);
        }
        if !Door::has(&self.path, self.own) {
            let path = &self.path;
            let opened = socket::bind(path).and_then(|listener| {
                Server::start(listener, handler.clone(), Limits::default())?;
                Ok(())
            });
            opened.map_err(|e| (path.clone(), e))?;
            self.own = identity(path);
        }
        Ok(())
    }

    /// Looks whether the sockets are there still; why not, if they are not.
    pub fn check_sockets(&mut self, handler: &Arc<dyn RequestHandler>) -> Option<String> {
        if self.checked.elapsed() >= SOCKET_EVERY {
            self.checked = Instant::now();
            let both =
                Door::has(&self.path, self.own) && Door::has(&self.for_root, self.own_for_root);
            if !both {
                let _ = self.open(handler);
            }
        }
        self.trouble.clone()
    }

    /// Removes what is ours.
    pub fn close(&self) {
        for (path, own) in [(&self.path, self.own), (&self.for_root, self.own_for_root)] {
            if Door::has(path, own) {
                let _ = std::fs::remove_file(path);
            }
        }
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let file = std::fs::symlink_metadata(path).ok()?;
    Some((file.dev(), file.ino()))
}
