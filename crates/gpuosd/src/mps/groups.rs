//! The control groups in which MPS daemons run: each opens the GPUs that it serves and no others, and all in it end with it. A daemon has its
//! user's rights, and he can have it run code of his own.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gpuos_core::limits::{MpsClient, Serving};
use gpuos_host::steps::own_groups::service::any_mounted;
use gpuos_host::steps::own_groups::{Own, OwnGroups};

use crate::confine::DeviceFiles;

/// Where MPS daemons run.
#[derive(Clone, Debug)]
pub enum Groups {
    /// In groups of gpuosd's.
    Own(Arc<OwnGroups>, Arc<DeviceFiles>),
    /// Beside gpuosd: this machine has no control groups, for jobs neither.
    NoneHere,
    /// Nowhere: there are control groups, and none can be made. A clause.
    Refused(String),
}

impl Groups {
    /// Those of this machine. `found` are gpuosd's own, or why there are none.
    pub fn of(found: Result<OwnGroups, String>, files: Arc<DeviceFiles>, proc: &Path) -> Groups {
        match found {
            Ok(groups) => Groups::Own(Arc::new(groups), files),
            Err(_) if any_mounted(proc).is_ok_and(|any| !any) => Groups::NoneHere,
            Err(why) => Groups::Refused(why),
        }
    }

    /// Makes the group of a daemon: the files by which a process enters it.
    ///
    /// # Errors
    /// It would not be kept to its GPUs: why, in a clause.
    pub fn make(&self, whom: &MpsClient, serving: &Serving) -> Result<Vec<PathBuf>, String> {
        match self {
            Groups::Own(groups, files) => {
                let gpus = files.of_gpus(&serving.gpus)?;
                made(groups, whom, gpus)
            }
            Groups::NoneHere => Ok(Vec::new()),
            Groups::Refused(why) => Err(unconfined(why)),
        }
    }

    /// The files by which a process enters the group of a daemon that is to be told to end. Where there is none any more, one that opens no GPU.
    ///
    /// # Errors
    /// As [`Groups::make`].
    pub fn of_end(&self, whom: &MpsClient) -> Result<Vec<PathBuf>, String> {
        match self {
            Groups::Own(groups, _) => match groups.service_files(&whom.to_string())? {
                files if files.is_empty() => made(groups, whom, BTreeSet::new()),
                files => Ok(files),
            },
            Groups::NoneHere => Ok(Vec::new()),
            Groups::Refused(why) => Err(unconfined(why)),
        }
    }

    /// Ends all that runs in the group of a daemon, and removes it.
    ///
    /// # Errors
    /// Something lives on: a clause.
    pub fn end(&self, whom: &str, time: Duration) -> Result<(), String> {
        match self {
            Groups::Own(groups, _) => groups.end_service(whom, time),
            Groups::NoneHere | Groups::Refused(_) => Ok(()),
        }
    }

    /// The names of groups that are there.
    pub fn names(&self) -> BTreeSet<String> {
        match self {
            Groups::Own(groups, _) => groups.services(),
            Groups::NoneHere | Groups::Refused(_) => BTreeSet::new(),
        }
    }
}

/// Makes a group that opens these GPUs: the files by which a process enters it.
fn made(groups: &OwnGroups, whom: &MpsClient, gpus: BTreeSet<u32>) -> Result<Vec<PathBuf>, String> {
    let own = Own {
        gpus,
        ..Own::default()
    };
    let made = groups.make_service(&whom.to_string(), &own);
    made.map_err(|why| unconfined(&why))
}

fn unconfined(why: &str) -> String {
    format!(
        "its daemon would run outside of the job's control group with all GPUs of the node, and cannot be kept to those of the job: {why}"
    )
}
