//! `nvme` and what goes with it in `[memory]`: where memory of jobs is parked that has to leave GPU and host memory.
use std::path::PathBuf;

use gpuos_model::reading::{Check, ConfigError};

use super::raw::RawMemory;
use crate::options::check_gres_name;

/// GRES that stand for GPUs or parts of them.
const OF_GPUS: [&str; 4] = ["gpu", "mps", "shard", "gpuos"];

/// A folder for what is parked, on each node with gpuos_mover.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParkingConfig {
    /// The folder, on a disk of the node.
    pub nvme: PathBuf,
    /// GiB of it that gpuosd lends at most.
    pub gib: u32,
    /// MiB a second, written and read together, that gpuos_mover takes of the disk at most; 0: all that it has.
    pub rate_mib: u32,
    /// The GRES in which Slurm counts some of it.
    pub gres: Option<ParkingGres>,
}

/// A GRES that is only counted, a GiB each.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParkingGres {
    /// Its name.
    pub name: String,
    /// GiB that Slurm counts on a node at most: nobody gets anything of it to whom Slurm gave none.
    pub gib: u32,
}

pub(super) fn read(check: Check, raw: &RawMemory) -> Result<Option<ParkingConfig>, ConfigError> {
    let int = |key, value, range| {
        let number = check.int(key, value, range, 0)?;
        Ok::<u32, ConfigError>(number as u32)
    };
    let gib = int("nvme-gib", &raw.nvme_gib, 1..=1 << 20)?;
    let rate_mib = int("nvme-rate-mib", &raw.nvme_rate_mib, 0..=1 << 20)?;
    let gres_gib = int("nvme-gres-gib", &raw.nvme_gres_gib, 0..=1 << 20)?;
    let Some(folder) = &raw.nvme else {
        let message = "a size, a rate or a GRES of NVMe is given, and no folder: write nvme = \"/var/lib/gpuos/parked\"";
        let numbers = [&raw.nvme_gib, &raw.nvme_rate_mib, &raw.nvme_gres_gib];
        let number = numbers.into_iter().flatten().next();
        let number = number.map(|key| check.error(key, message));
        let gres = raw.nvme_gres.as_ref();
        let gres = gres.map(|key| check.error(key, message));
        return number.or(gres).map_or(Ok(None), Err);
    };
    if gib == 0 {
        let message = "nvme names a folder, and nvme-gib does not say how much of it may be used: write nvme-gib = 500";
        return Err(check.error(folder, message));
    }
    Ok(Some(ParkingConfig {
        nvme: check.path("nvme", folder, "/var/lib/gpuos/parked")?,
        gib,
        rate_mib,
        gres: gres(check, raw, (gib, gres_gib))?,
    }))
}

fn gres(
    check: Check,
    raw: &RawMemory,
    (gib, counted): (u32, u32),
) -> Result<Option<ParkingGres>, ConfigError> {
    let Some(name) = &raw.nvme_gres else {
        return match &raw.nvme_gres_gib {
            Some(key) => {
                let message = "a size is given, and not the GRES in which Slurm counts it: write nvme-gres = \"nvme\"";
                Err(check.error(key, message))
            }
            None => Ok(None),
        };
    };
    let of = name.get_ref();
    if OF_GPUS.contains(&of.as_str()) || check_gres_name(of).is_err() {
        let message = "nvme-gres is no name of a GRES of its own: write one that GresTypes of slurm.conf has, such as nvme-gres = \"nvme\"";
        return Err(check.error(name, message));
    }
    if counted > gib {
        let message = format!("more is counted than nvme-gib = {gib} GiB: write as much or less");
        let at = raw.nvme_gres_gib.as_ref();
        return Err(at.map_or_else(
            || check.error(name, &*message),
            |at| check.error(at, &*message),
        ));
    }
    Ok(Some(ParkingGres {
        name: of.clone(),
        gib: if counted == 0 { gib } else { counted },
    }))
}

#[cfg(test)]
mod tests {
    use super::{ParkingConfig, ParkingGres};
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
            gres: None,
        };
        assert_eq!(own, Some(wanted));
    }

    #[test]
    fn what_slurm_counts_of_it_is_all_or_what_is_said() {
        for (text, gib) in [
            ("nvme-gres = \"nvme\"", 500),
            ("nvme-gres = \"nvme\"\nnvme-gres-gib = 400", 400),
        ] {
            let text = format!("nvme = \"/nvme/parked\"\nnvme-gib = 500\n{text}");
            let gres = read(&text).unwrap().and_then(|own| own.gres);
            let name = "nvme".into();
            assert_eq!(gres, Some(ParkingGres { name, gib }));
        }
        for (text, wanted) in [
            ("nvme-gres-gib = 4", "write nvme-gres = \"nvme\""),
            ("nvme-gres = \"\"", "no name of a GRES of its own"),
            ("nvme-gres = \"shard\"", "no name of a GRES of its own"),
            ("nvme-gres = \"a b\"", "no name of a GRES of its own"),
            (
                "nvme-gres-gib = 501\nnvme-gres = \"nvme\"",
                "more is counted than nvme-gib = 500 GiB",
            ),
        ] {
            let text = format!("nvme = \"/nvme/parked\"\nnvme-gib = 500\n{text}");
            let error = read(&text).unwrap_err();
            let placed = error.contains("gpuos.toml:4:");
            assert!(error.contains(wanted) && placed, "{text}: {error}");
        }
    }

    #[test]
    fn mistakes_are_named_with_their_place() {
        for (text, wanted) in [
            ("nvme = \"parked\"\nnvme-gib = 1", "a path from the root"),
            ("nvme = \"/nvme\"", "nvme-gib = 500"),
            ("nvme-gib = 500", "no folder"),
            ("nvme-rate-mib = 5", "no folder"),
            ("nvme-gres = \"nvme\"", "no folder"),
            ("nvme-gres-gib = 5", "no folder"),
            ("nvme-gib = 0", "from 1 to 1048576"),
            ("nvme-rate-mib = -1", "from 0 to 1048576"),
        ] {
            let error = read(text).unwrap_err();
            let placed = error.contains("gpuos.toml:2:");
            assert!(error.contains(wanted) && placed, "{text}: {error}");
        }
    }
}
