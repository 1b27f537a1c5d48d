//! `nvme` and what goes with it in `[memory]`: where memory of jobs is parked that has to leave GPU and host memory.
use std::path::PathBuf;

use gpuos_model::reading::{Check, ConfigError};

use super::raw::RawMemory;

/// A folder for what is parked, on each node with gpuos_mover.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParkingConfig {
    /// The folder, on a disk of the node.
    pub nvme: PathBuf,
    /// GiB of it that gpuosd lends at most.
    pub gib: u32,
    /// MiB a second, written and read together, that gpuos_mover takes of the disk at most; 0: all that it has.
    pub rate_mib: u32,
}

pub(super) fn read(check: Check, raw: &RawMemory) -> Result<Option<ParkingConfig>, ConfigError> {
    let int = |key, value, range| {
        let number = check.int(key, value, range, 0)?;
        Ok::<u32, ConfigError>(number as u32)
    };
    let gib = int("nvme-gib", &raw.nvme_gib, 1..=1 << 20)?;
    let rate_mib = int("nvme-rate-mib", &raw.nvme_rate_mib, 0..=1 << 20)?;
    let Some(folder) = &raw.nvme else {
        return match raw.nvme_gib.as_ref().or(raw.nvme_rate_mib.as_ref()) {
            Some(key) => {
                let message = "a size or a rate of NVMe is given, and no folder: write nvme = \"/var/lib/gpuos/parked\"";
                Err(check.error(key, message))
            }
            None => Ok(None),
        };
    };
    if gib == 0 {
        let message = "nvme names a folder, and nvme-gib does not say how much of it may be used: write nvme-gib = 500";
        return Err(check.error(folder, message));
    }
    Ok(Some(ParkingConfig {
        nvme: check.path("nvme", folder, "/var/lib/gpuos/parked")?,
        gib,
        rate_mib,
    }))
}

#[cfg(test)]
mod tests {
    use super::ParkingConfig;
    use crate::gpuos_toml::Config;

    fn read(text: &str) -> Result<Option<ParkingConfig>, String> {
        let config = Config::parse(&format!("[memory]\n{text}\n"), "gpuos.toml");
        config
            .map(|config| config.parking)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn nothing_is_parked_on_nvme_unless_a_folder_is_named_and_its_size() {
        assert_eq!(read("").unwrap(), None);
        let own = read("nvme = \"/nvme/parked\"\nnvme-gib = 500\nnvme-rate-mib = 2000").unwrap();
        let wanted = ParkingConfig {
            nvme: "/nvme/parked".into(),
            gib: 500,
            rate_mib: 2000,
        };
        assert_eq!(own, Some(wanted));
    }

    #[test]
    fn mistakes_are_named_with_their_place() {
        for (text, wanted) in [
            ("nvme = \"parked\"\nnvme-gib = 1", "a path from the root"),
            ("nvme = \"/nvme\"", "nvme-gib = 500"),
            ("nvme-gib = 500", "no folder"),
            ("nvme-rate-mib = 5", "no folder"),
            ("nvme-gib = 0", "from 1 to 1048576"),
            ("nvme-rate-mib = -1", "from 0 to 1048576"),
        ] {
            let error = read(text).unwrap_err();
            let placed = error.contains("gpuos.toml:2:");
            assert!(error.contains(wanted) && placed, "{text}: {error}");
        }
    }
}
