//! Which GPU Slurm means by a GRES index.
//!
//! Slurm numbers a node's GPUs in the order in which gres.conf names them, the driver's device files by
//! their minor number. With `AutoDetect=nvml` it sorts them as NVML does, by their place on the bus, whatever
//! gres.conf says (`_merge_system_gres_conf` in Slurm's `gres_gpu.c`, 22.05 to 26.05).

use std::path::Path;

use gpuos_config::slurm_conf::{auto_detect, gpu_devices};
use gpuos_workload::numbering::GpuNumbering;

use super::local::{conf_folder, text};
use crate::Machine;

/// From the gres.conf in a folder. A file that is missing, or names files that are none of
/// NVIDIA's, gives [`GpuNumbering::identity`].
///
/// # Errors
/// The file cannot be read; the sentence names it.
pub fn read(machine: &dyn Machine, folder: &Path, node: &str) -> Result<GpuNumbering, String> {
    let file = |name: &str| text(machine, &folder.join(name));
    let devices = gpu_devices(node, &file)?;
    let minors: Option<Vec<u32>> = devices.iter().map(|device| device.minor()).collect();
    let by_bus = auto_detect(node, &file)?.as_deref() == Some("nvml");
    Ok(GpuNumbering::new(minors, by_bus))
}

/// As [`read`], from the folder where slurmd has its files: that of `$SLURM_CONF`, slurmd's copy
/// where it runs without files of its own, or `/etc/slurm`. It needs no slurmctld.
///
/// # Errors
/// The file cannot be read; the sentence names it.
pub fn of_node(machine: &dyn Machine, node: &str) -> Result<GpuNumbering, String> {
    let folder = conf_folder(machine);
    folder.map_or_else(
        || Ok(GpuNumbering::identity()),
        |folder| read(machine, &folder, node),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Recorded;

    fn index(gres_conf: &str) -> GpuNumbering {
        let machine = Recorded::default().file("/etc/slurm/gres.conf", gres_conf);
        read(&machine, Path::new("/etc/slurm"), "n1").unwrap()
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
        assert_eq!(of_node(&nowhere, "n1"), Ok(GpuNumbering::identity()));
        let mut named = nowhere.clone();
        let conf = "/etc/other/slurm.conf";
        named.env.insert("SLURM_CONF".into(), conf.into());
        let configless = Recorded::default()
            .file("/run/slurm/conf/slurm.conf", "")
            .file("/run/slurm/conf/gres.conf", reversed);
        for machine in [named, configless] {
            assert_eq!(of_node(&machine, "n1").unwrap().index(2), Some(0));
        }
    }

    #[test]
    fn without_files_the_numbers_are_the_same() {
        let none = Recorded::default();
        let none = read(&none, Path::new("/etc/slurm"), "n1").unwrap();
        assert_eq!(none, GpuNumbering::identity());
        assert_eq!(index("AutoDetect=nvidia\n"), none);
        assert_eq!((none.index(7), none.minor(7)), (Some(7), Some(7)));
        assert_eq!(none.index(70_000), None);
    }
}
