//! Memory of GPUs that is parked on NVMe: each process of a job that has to leave GPU and host memory has a segment of its own in the
//! site's folder, and hands its bytes over in pieces, by the lines of `gpuos_memory::stow`.
//!
//! - [`serve`]: the socket, and a thread for each process that moves something,
//! - [`ring`]: the file in memory in which a process hands pieces over; it is read and written by calls, never mapped,
//! - [`pool`]: threads that read, write and make digests, at the rate of the disk,
//! - [`segment`]: the files, of root alone, and which of them are left over,
//! - [`leases`]: how much a process may have, by gpuosd's word.
//!
//! gpuosd decides and has it in its journal before a process hears of it; a process owns its bytes and says when they have gone; what stands
//! here only moves them. It remembers nothing about them: a segment is the process's until that is dead, whoever is started anew meanwhile.

pub mod leases;
pub mod pool;
pub mod ring;
pub mod segment;
pub mod serve;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use gpuos_host::socket;
use gpuos_host::steps::job_processes::Processes;
use gpuos_link::bucket::Bucket;
use gpuos_link::tcp::Pace;

use leases::Leases;
use pool::Pool;
use segment::{Folder, Owner};
use serve::Shared;

/// Between two looks at who is dead.
const LOOK: Duration = Duration::from_millis(200);
/// What goes at once after a pause, where the disk has a rate.
const BURST: u64 = 16 << 20;

/// Where and how fast.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// The folder, which is made where it is missing.
    pub folder: PathBuf,
    /// MiB a second at most, written and read together; 0: as fast as the disk.
    pub rate_mib: u32,
}

/// Begins to park, in threads of its own that live as long as the process.
///
/// # Errors
/// The folder is not root's alone, or another gpuos_mover has it; the socket cannot be made.
pub fn start(
    place: &Place,
    socket: &Path,
    leases: Box<dyn Leases>,
    processes: Box<dyn Processes>,
) -> Result<()> {
    let folder = Arc::new(Folder::open(&place.folder)?);
    let pace = (place.rate_mib > 0)
        .then(|| Pace::new(Bucket::new(u64::from(place.rate_mib) << 20, BURST)));
    let shared = Arc::new(Shared::new(
        folder.clone(),
        Pool::start(pace)?,
        leases,
        processes,
    ));
    let left = sweep(&folder, &shared);
    if left > 0 {
        tracing::info!("removed {left} segments of processes that are dead");
    }
    // Before the socket of an earlier one is looked at: nobody else has the folder.
    let listener = socket::bind(socket).with_context(|| socket.display().to_string())?;
    let serving = shared.clone();
    thread::Builder::new()
        .name("park".into())
        .spawn(move || serve::accept(&listener, &serving))?;
    thread::Builder::new()
        .name("park-sweep".into())
        .spawn(move || {
            loop {
                thread::sleep(LOOK);
                sweep(&folder, &shared);
            }
        })?;
    let direct = match gpuos_store::stream::is_direct(&place.folder) {
        true => "past the page cache (O_DIRECT)",
        false => "through the page cache: its file system does not take O_DIRECT",
    };
    tracing::info!("memory is parked in {}, {direct}", place.folder.display());
    Ok(())
}

/// Frees what dead processes have; how many had something.
fn sweep(folder: &Folder, shared: &Shared) -> usize {
    let dead = |owner: &Owner| shared.is_dead(*owner);
    match folder.sweep(dead) {
        Ok(removed) => {
            shared.end(&removed);
            removed.len()
        }
        Err(error) => {
            tracing::error!("what dead processes have parked cannot be removed: {error}");
            0
        }
    }
}
