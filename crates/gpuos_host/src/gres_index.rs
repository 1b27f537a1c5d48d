//! Which GPU Slurm means by a GRES index.

use std::io;
use std::path::{Path, PathBuf};

use gpuos_config::slurm_conf::{auto_detect, gpu_devices};

use crate::Machine;

/// Slurm numbers a node's GPUs in the order in which gres.conf names them, the driver's device files by
/// their minor number. With `AutoDetect=nvml` it sorts them as NVML does, by their place on the bus, whatever
/// gres.conf says (`_merge_system_gres_conf` in Slurm's `gres_gpu.c`, 22.05 to 26.05).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GresIndex {
    /// Minor numbers by GRES index; empty = the same numbers.
    minors: Vec<u32>,
    /// Slurm goes by the order of NVML.
    by_bus: bool,
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
        let file = |name: &str| text(machine, &folder.join(name));
        let devices = gpu_devices(node, &file)?;
        let minors: Option<Vec<u32>> = devices.iter().map(|device| device.minor()).collect();
        Ok(GresIndex {
            minors: minors.unwrap_or_default(),
            by_bus: auto_detect(node, &file)?.as_deref() == Some("nvml"),
        })
    }

    /// As [`GresIndex::read`], from the folder where slurmd has its files: that of `$SLURM_CONF`, slurmd's copy
    /// where it runs without files of its own, or `/etc/slurm`. It needs no slurmctld.
    ///
    /// # Errors
    /// The file cannot be read; the sentence names it.
    pub fn of_node(machine: &dyn Machine, node: &str) -> Result<GresIndex, String> {
        let folder = conf_folder(machine);
        folder.map_or_else(
            || Ok(GresIndex::identity()),
            |folder| GresIndex::read(machine, &folder, node),
        )
    }

    /// Whether gres.conf says which device files are GPUs.
    pub fn names_files(&self) -> bool {
        !self.minors.is_empty()
    }

    /// GRES indices of all GPUs, whose minor numbers are given in NVML's order. `None`: Slurm does not manage it, or
    /// it does not say which device file is its own.
    pub fn number(&self, minors: &[Option<u32>]) -> Vec<Option<u8>> {
        let small = |index: usize| u8::try_from(index).ok();
        if self.by_bus {
            let mut next = 0;
            let listed = |minor: &Option<u32>| {
                self.minors.is_empty() || minor.is_none_or(|minor| self.minors.contains(&minor))
            };
            let mut count = |minor: &Option<u32>| {
                let own = listed(minor).then_some(next)?;
                next += 1;
                small(own)
            };
            return minors.iter().map(&mut count).collect();
        }
        if !self.minors.is_empty() {
            let told: Vec<Option<u8>> = minors.iter().map(|m| self.index((*m)?)).collect();
            // Those that do not say who they are, are the ones that are missing: all of them are lost.
            let places = (0..self.minors.len()).filter_map(small);
            let mut rest = places.filter(|place| !told.contains(&Some(*place)));
            let each = minors.iter().zip(&told);
            return each
                .map(|(minor, told)| told.or_else(|| minor.is_none().then(|| rest.next())?))
                .collect();
        }
        let mut order: Vec<u32> = minors.iter().copied().flatten().collect();
        order.sort_unstable();
        order.dedup();
        let whole = order.len() == minors.len();
        let rank = |minor: u32| order.binary_search(&minor).ok();
        let number = |(nvml, minor): (usize, &Option<u32>)| match minor {
            Some(minor) if whole => small(rank(*minor)?),
            _ => small(nvml),
        };
        minors.iter().enumerate().map(number).collect()
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
/// The folder where slurmd has its files: that of `$SLURM_CONF`, slurmd's copy where it runs without files of its own, or
/// `/etc/slurm`.
pub fn conf_folder(machine: &dyn Machine) -> Option<PathBuf> {
    if let Some(file) = machine.env("SLURM_CONF") {
        return Path::new(&file).parent().map(Path::to_path_buf);
    }
    let usual = ["/etc/slurm", "/run/slurm/conf"].map(PathBuf::from);
    usual
        .into_iter()
        .find(|folder| machine.read(&folder.join("slurm.conf")).is_ok())
}

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
    fn gpus_are_numbered_as_slurm_does() {
        let minors = [Some(3), Some(1), Some(2), Some(0)];
        let number = |gres_conf: &str, minors: &[Option<u32>]| index(gres_conf).number(minors);
        let files = "Name=gpu File=/dev/nvidia[2-3]\nName=gpu File=/dev/nvidia0\n";
        let [a, b, c, d] = [Some(0), Some(1), Some(2), Some(3)];
        assert_eq!(number(files, &minors), [b, None, a, c]);
        assert_eq!(number(files, &[Some(3), None, Some(2)]), [b, c, a]);
        assert_eq!(number("AutoDetect=nvml\n", &minors), [a, b, c, d]);
        let both = format!("AutoDetect=nvml\n{files}");
        assert_eq!(number(&both, &minors), [a, None, b, c]);
        for none in ["", "AutoDetect=nvidia\n"] {
            assert_eq!(number(none, &minors), [d, b, c, a]);
            // A lost GPU does not tell: NVML's order then.
            assert_eq!(number(none, &[Some(1), None, Some(2)]), [a, b, c]);
        }
    }

    #[test]
    fn the_folder_is_slurmds() {
        let reversed = "Name=gpu File=/dev/nvidia[2-3]\nName=gpu File=/dev/nvidia[0-1]\n";
        let nowhere = Recorded::default().file("/etc/other/gres.conf", reversed);
        assert_eq!(
            GresIndex::of_node(&nowhere, "n1"),
            Ok(GresIndex::identity())
        );
        let mut named = nowhere.clone();
        let conf = "/etc/other/slurm.conf";
        named.env.insert("SLURM_CONF".into(), conf.into());
        let configless = Recorded::default()
            .file("/run/slurm/conf/slurm.conf", "")
            .file("/run/slurm/conf/gres.conf", reversed);
        for machine in [named, configless] {
            assert_eq!(
                GresIndex::of_node(&machine, "n1").unwrap().index(2),
                Some(0)
            );
        }
    }

    #[test]
    fn without_files_the_numbers_are_the_same() {
        let none = Recorded::default();
        let none = GresIndex::read(&none, Path::new("/etc/slurm"), "n1").unwrap();
        assert_eq!(none, GresIndex::identity());
        assert_eq!(index("AutoDetect=nvidia\n"), none);
        assert_eq!((none.index(7), none.minor(7)), (Some(7), Some(7)));
        assert_eq!(none.index(70_000), None);
    }
}
