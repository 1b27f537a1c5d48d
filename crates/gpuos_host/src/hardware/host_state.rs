//! What the kernel says of the host beside its GPUs: links of network adapters, and errors of memory.

use std::path::Path;

use crate::hardware::discover::{Adapter, Sysfs};

/// Errors that a memory controller has counted since boot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryErrors {
    /// N of EDAC's mcN.
    pub controller: u32,
    /// Corrected ones.
    pub corrected: u64,
    /// Uncorrected ones.
    pub uncorrected: u64,
}

/// The host. What the kernel does not tell is missing: no call fails.
pub trait HostState: Send {
    /// Network adapters, those without a link too.
    fn adapters(&self) -> Vec<Adapter>;
    /// Errors of memory; none where no EDAC driver is loaded.
    fn memory_errors(&self) -> Vec<MemoryErrors>;
}

impl HostState for Sysfs {
    fn adapters(&self) -> Vec<Adapter> {
        Sysfs::adapters(self)
    }

    fn memory_errors(&self) -> Vec<MemoryErrors> {
        const FOLDER: &str = "devices/system/edac/mc";
        let one = |name: String| {
            let count = |file: &str| {
                let path = Path::new(FOLDER).join(&name).join(file);
                self.read(&path)?.parse::<u64>().ok()
            };
            Some(MemoryErrors {
                controller: name.strip_prefix("mc")?.parse().ok()?,
                corrected: count("ce_count")?,
                uncorrected: count("ue_count")?,
            })
        };
        self.list(FOLDER).into_iter().filter_map(one).collect()
    }
}

/// The twin: what was put in.
#[derive(Clone, Debug, Default)]
pub struct HostTwin {
    /// Network adapters.
    pub adapters: Vec<Adapter>,
    /// Errors of memory.
    pub memory_errors: Vec<MemoryErrors>,
}

impl HostState for HostTwin {
    fn adapters(&self) -> Vec<Adapter> {
        self.adapters.clone()
    }

    fn memory_errors(&self) -> Vec<MemoryErrors> {
        self.memory_errors.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_memory_controllers() {
        let folder = tempfile::tempdir().unwrap();
        let sysfs = Sysfs::at(folder.path());
        assert_eq!(sysfs.memory_errors(), []);
        let edac = folder.path().join("devices/system/edac/mc");
        for (name, corrected, uncorrected) in [
            ("mc0", "12\n", "0\n"),
            ("mc1", "0\n", "3\n"),
            ("mc2", "?", "0"),
        ] {
            let mc = edac.join(name);
            std::fs::create_dir_all(&mc).unwrap();
            std::fs::write(mc.join("ce_count"), corrected).unwrap();
            std::fs::write(mc.join("ue_count"), uncorrected).unwrap();
        }
        std::fs::create_dir(edac.join("power")).unwrap();
        let errors = |controller, corrected, uncorrected| MemoryErrors {
            controller,
            corrected,
            uncorrected,
        };
        assert_eq!(sysfs.memory_errors(), [errors(0, 12, 0), errors(1, 0, 3)]);
        let twin = HostTwin {
            memory_errors: sysfs.memory_errors(),
            ..HostTwin::default()
        };
        assert_eq!(HostState::memory_errors(&twin), sysfs.memory_errors());
    }
}
