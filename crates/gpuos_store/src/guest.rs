//! Parts of nodes that a job has no more, hosted by one that it has.
//!
//! ```text
//! ROOT/JOB/guest-NODES-INDEX/NUMBER-ATTEMPT/…      as in the store of node INDEX of NODES
//! ```
//!
//! A job that goes on with another number of nodes first makes a checkpoint whole as it was made. Who hosts a part of another node then has a
//! folder for it beside its own parts: with the same keys, so that it is read back as it was written.

use gpuos_checkpoint::ids::NodeIndex;

use crate::disk::{Disk, Form};
use crate::drained::remove_tree;
use crate::error::{Result, Tried};
use crate::job::JobStore;
use crate::small::{make_or_open, there};
use crate::store::Store;

/// How the name of a folder begins.
const GUEST: &str = "guest-";
/// Names in the folder of a job at most.
const MAX_NAMES: usize = 1 << 20;

/// A hosted part.
pub struct Guest<'a, D: Disk> {
    /// Nodes of the job when it was made.
    pub nodes: u16,
    /// Whose part it is, of these.
    pub index: NodeIndex,
    /// Where it lies.
    pub parts: JobStore<'a, D>,
}

fn name(nodes: u16, index: NodeIndex) -> String {
    format!("{GUEST}{nodes}-{index}")
}

/// Only what is written the same way again is known.
fn read(bytes: &[u8]) -> Option<(u16, NodeIndex)> {
    let text = std::str::from_utf8(bytes).ok()?;
    let (nodes, index) = text.strip_prefix(GUEST)?.split_once('-')?;
    let (nodes, index) = (nodes.parse().ok()?, NodeIndex(index.parse().ok()?));
    (name(nodes, index) == text && index.0 < nodes).then_some((nodes, index))
}

impl<D: Disk> Store<D> {
    /// The folder for the part of node `index` of `nodes` that this node hosts, which is made if it is not there.
    ///
    /// # Errors
    /// The disk fails.
    pub fn guest(
        &self,
        job: &JobStore<'_, D>,
        nodes: u16,
        index: NodeIndex,
    ) -> Result<JobStore<'_, D>> {
        let tried = || {
            format!(
                "make a folder for the part of node {index} of job {}",
                job.job
            )
        };
        let name = name(nodes, index);
        let folder = make_or_open(self.disk(), &job.folder, name.as_bytes()).tried(tried)?;
        Ok(self.within(job, folder))
    }

    /// All that are hosted here, in the order of their names.
    ///
    /// # Errors
    /// The disk fails.
    pub fn guests(&self, job: &JobStore<'_, D>) -> Result<Vec<Guest<'_, D>>> {
        let tried = || format!("list the parts of other nodes of job {}", job.job);
        let mut guests = Vec::new();
        for name in self.disk().list(&job.folder, MAX_NAMES).tried(tried)? {
            let Some((nodes, index)) = read(&name) else {
                continue;
            };
            let folder = self.disk().open_folder(&job.folder, &name).tried(tried)?;
            let parts = self.within(job, folder);
            guests.push(Guest {
                nodes,
                index,
                parts,
            });
        }
        Ok(guests)
    }

    /// Removes them.
    ///
    /// # Errors
    /// The disk fails; another call goes on.
    pub fn remove_guests(&self, job: &JobStore<'_, D>) -> Result<()> {
        let tried = || format!("remove the parts of other nodes of job {}", job.job);
        self.drop_guests(&job.folder).tried(tried)
    }

    pub(crate) fn drop_guests(&self, folder: &D::Folder) -> std::io::Result<()> {
        let disk = self.disk();
        for name in disk.list(folder, MAX_NAMES)? {
            let facts = there(disk.look(folder, &name))?;
            let is_folder = facts.is_some_and(|facts| facts.form == Form::Folder);
            if is_folder && read(&name).is_some() {
                remove_tree(disk, folder, &name, 1)?;
            }
        }
        disk.sync_folder(folder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_its_own_are_read() {
        assert_eq!(read(b"guest-3-2"), Some((3, NodeIndex(2))));
        for other in [
            "guest-3-3",
            "guest-03-1",
            "guest-3-1-0",
            "guest-3",
            "guests-3-1",
            "guest-3-+1",
            "3-0000000000000001",
        ] {
            assert_eq!(read(other.as_bytes()), None, "{other}");
        }
    }
}
