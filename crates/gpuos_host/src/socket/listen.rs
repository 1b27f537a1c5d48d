//! Making the socket file.

use std::fmt;
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

/// Why there is no socket.
#[derive(Debug)]
pub enum BindError {
    /// Another daemon listens there.
    InUse,
    /// Something that is no socket has that name.
    NotASocket,
    /// The directory or the file cannot be made.
    Io(io::Error),
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BindError::InUse => f.write_str(
                "another daemon listens there: stop it, or give this one its own --runtime-dir",
            ),
            BindError::NotASocket => {
                f.write_str("there is a file of that name that is no socket: move it away")
            }
            BindError::Io(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for BindError {}

impl From<io::Error> for BindError {
    fn from(e: io::Error) -> BindError {
        BindError::Io(e)
    }
}

/// Listens at `path`, which everybody may connect to. The directory is made where it is missing, and a
/// socket that a dead daemon left there is replaced.
///
/// # Errors
/// Somebody listens there already, or the file system does not let us.
pub fn bind(path: &Path) -> Result<UnixListener, BindError> {
    bind_for(path, 0o666)
}

/// The same, where only root and the daemon's own user may connect.
///
/// # Errors
/// As [`bind`].
pub fn bind_for_root(path: &Path) -> Result<UnixListener, BindError> {
    bind_for(path, 0o600)
}

fn bind_for(path: &Path, mode: u32) -> Result<UnixListener, BindError> {
    if let Some(folder) = path.parent() {
        match DirBuilder::new().mode(0o755).recursive(true).create(folder) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e.into()),
            _ => {}
        }
    }
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => return Err(BindError::NotASocket),
        Ok(_) if UnixStream::connect(path).is_ok() => return Err(BindError::InUse),
        Ok(_) => fs::remove_file(path)?,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(e.into()),
    }
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, Permissions::from_mode(mode))?;
    Ok(listener)
}
