//! Files that ranks write together, and which checkpoint a run may go on from by its user's settings.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::{Problem, Restart, Session, agree, together};
use crate::mpi::World;
use crate::shared;
use crate::told::Told;

impl Session {
    /// A folder that all ranks see, empty, for files that they write together.
    pub(super) fn folder_of_all(&self, what: &str) -> Result<PathBuf, Problem> {
        let folder = shared::folder(&self.prefix, what);
        let failed = |why: &dyn std::fmt::Display| {
            format!(
                "files that ranks share (SCR_CACHE_BYPASS=1) are written in {}: {why}; set SCR_PREFIX to a folder on a file system of all nodes",
                folder.display()
            )
        };
        let made = match self.world.rank().rank() {
            0 => shared::make(&folder).map_err(|error| failed(&error)),
            _ => Ok(()),
        };
        together(&self.world, made)?;
        let seen = match folder.is_dir() {
            true => Ok(()),
            false => Err(failed(&"this rank does not see what rank 0 has made there")),
        };
        together(&self.world, seen)?;
        Ok(folder)
    }

    /// One rank removes a folder of all, when nobody needs it any more.
    pub(super) fn removed(&self, folder: &Path) {
        if self.world.rank().rank() == 0 {
            // What stays takes room, and is removed before the next one of this name.
            let _ = fs::remove_dir_all(folder);
        }
    }

    /// This rank's part of files in the folder of all; the names that it has to bring to their places.
    pub(super) fn taken(
        &self,
        all: &Path,
        data: &Path,
        used: &BTreeSet<PathBuf>,
    ) -> Result<BTreeSet<PathBuf>, Problem> {
        let rank = self.world.rank();
        let failed = |error: std::io::Error| {
            format!(
                "SCR_Complete_output: files that ranks share, in {}: {error}",
                all.display()
            )
        };
        let told = shared::tell(all, rank.rank().into(), used).map_err(failed);
        together(&self.world, told)?;
        let found = match rank.rank() {
            0 => shared::find(all, rank.size().into()).map_err(failed),
            _ => Ok(()),
        };
        together(&self.world, found)?;
        let taken = shared::take(all, data, rank.rank().into(), used).map_err(failed);
        together(&self.world, taken)
    }

    /// What is to be said where ranks that could not write have all asked for the same file, as such do that write it together.
    pub(super) fn seem_to_share(
        &self,
        used: &BTreeSet<PathBuf>,
        already: bool,
    ) -> Result<Problem, Problem> {
        let last = used.last().map(|name| shared::number(name));
        let own = last.map_or([i32::MAX, i32::MAX], |number| [number, -number]);
        let [highest, lowest] = agree(&self.world, own)?;
        let (Some(name), false) = (used.last(), already) else {
            return Ok(None);
        };
        if highest != -lowest || self.world.rank().size() == 1 {
            return Ok(None);
        }
        Ok(Some(format!(
            "a rank could not write its files, says the program, and all ranks have named {}: each has one of its own of that name. If they are to write \
             one together, as by MPI-IO, write SCR_CACHE_BYPASS=1 in the environment or in SCR_CONF_FILE: then ranks share files, on the file system of SCR_PREFIX",
            name.display()
        )))
    }
}

/// Of the checkpoint to go on from, whether the program's settings let it. All ranks have one, or none.
pub(super) fn chosen(
    world: &World,
    restart: Option<Restart>,
    told: &Told,
) -> Result<Option<Restart>, Problem> {
    let first = world.rank().rank() == 0;
    if let Some(restart) = &restart
        && !told.fetches
    {
        if first {
            eprintln!(
                "libscr: SCR_FETCH=0: the program begins anew, and does not go on from {}; its next checkpoints take that one's place",
                String::from_utf8_lossy(&restart.name)
            );
        }
        return Ok(None);
    }
    let Some(wanted) = &told.current else {
        return Ok(restart);
    };
    let has = restart.as_ref().map(|restart| &restart.name[..]);
    if has == Some(wanted.as_bytes()) {
        return Ok(restart);
    }
    let has = match has {
        Some(name) => format!(
            "the one to go on from is {}",
            String::from_utf8_lossy(name).escape_debug()
        ),
        None => "there is none to go on from".into(),
    };
    let why = format!(
        "SCR_CURRENT={wanted} cannot be done here: gpuos offers its newest checkpoint alone, and {has}. Take the setting away, or begin from another one by \
         sbatch --gpuos-restart=JOB/NUMBER"
    );
    together(world, Err(why))
}
