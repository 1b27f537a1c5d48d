//! Which GPU Slurm means by a GRES index.

use std::io;
use std::path::Path;

use gpuos_core::slurm_conf::gpu_devices;

use crate::Machine;

/// Slurm numbers a node's GPUs in the order in which gres.conf names them, the driver's device files by
/// their minor number.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GresIndex {
    /// Minor numbers by GRES index; empty = the same numbers.
    minors: Vec<u32>,
}

impl GresIndex {
    /// Both numbers are the same: where gres.conf names no files (`AutoDetect`).
    pub fn identity() -> GresIndex {
        GresIndex::default()
    }

    /// From the gres.conf in a folder. A file that is missing, or names files that are none of
    /// NVIDIA's, gives [`GresIndex::identity`].
    ///
    /// # Errors
    /// The file cannot be read; the sentence names it.
    pub fn read(machine: &dyn Machine, folder: &Path, node: &str) -> Result<GresIndex, String> {
        let devices = gpu_devices(node, &|name| text(machine, &folder.join(name)))?;
        let minors: Option<Vec<u32>> = devices.iter().map(|device| device.minor()).collect();
        Ok(GresIndex {
            minors: minors.unwrap_or_default(),
        })
    }

    /// GRES index of a GPU by its minor number; `None` when Slurm does not manage it.
    pub fn index(&self, minor: u32) -> Option<u8> {
        match self.minors.is_empty() {
            true => minor.try_into().ok(),
            false => self
                .minors
                .iter()
                .position(|&known| known == minor)?
                .try_into()
                .ok(),
        }
    }

    /// Minor number of a GPU by its GRES index.
    pub fn minor(&self, index: u8) -> Option<u32> {
        match self.minors.is_empty() {
            true => Some(index.into()),
            false => self.minors.get(usize::from(index)).copied(),
        }
    }
}

/// A file as text; `None` when there is none. The error is a sentence.
pub(crate) fn text(machine: &dyn Machine, path: &Path) -> Result<Option<String>, String> {
    match machine.read(path) {
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(format!("{}: {e}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Recorded;

    fn index(gres_conf: &str) -> GresIndex {
        let machine = Recorded::default().file("/etc/slurm/gres.conf", gres_conf);
        GresIndex::read(&machine, Path::new("/etc/slurm"), "n1").unwrap()
    }

    #[test]
    fn order_of_gres_conf_counts() {
        let swapped = index("Name=gpu File=/dev/nvidia[4-5]\nName=gpu File=/dev/nvidia[0-1]\n");
        assert_eq!((swapped.index(4), swapped.index(1)), (Some(0), Some(3)));
        assert_eq!((swapped.minor(2), swapped.minor(4)), (Some(0), None));
        assert_eq!(swapped.index(2), None);
    }

    #[test]
    fn without_files_the_numbers_are_the_same() {
        let none = Recorded::default();
        let none = GresIndex::read(&none, Path::new("/etc/slurm"), "n1").unwrap();
        assert_eq!(none, GresIndex::identity());
        assert_eq!(index("AutoDetect=nvml\n"), none);
        assert_eq!((none.index(7), none.minor(7)), (Some(7), Some(7)));
        assert_eq!(none.index(70_000), None);
    }
}
