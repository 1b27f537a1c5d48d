//! The device files of a node's GPUs in gres.conf, in the order in which Slurm numbers them.
use super::gres_conf::{GresConf, gpus_of};
use super::{GpuCount, NodeLines, Read, lines_of};

/// A GPU as gres.conf names it. Its place in the list is its GRES index.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GpuDevice {
    /// `File=`, for example `/dev/nvidia0`.
    pub file: String,
    /// `Type=`; empty when there is none.
    pub gres_type: String,
    /// `Cores=` as it is written; empty when there is none.
    pub cores: String,
}

impl GpuDevice {
    /// N of `/dev/nvidiaN`.
    pub fn minor(&self) -> Option<u32> {
        let name = self.file.strip_prefix("/dev/nvidia")?;
        let digits = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| name.parse().ok())?
    }
}

/// The GPUs of a node by their files in gres.conf, in the order that slurmd gives them; none where Slurm finds them
/// itself (`AutoDetect`) or there is no gres.conf. A line that is not understood is left out. Of a node that no line of
/// slurm.conf names, all devices of gres.conf count.
///
/// # Errors
/// A file cannot be read; the sentence names it.
pub fn gpu_devices(node: &str, read: Read<'_>) -> Result<Vec<GpuDevice>, String> {
    let conf = GresConf::read(read)?;
    let lines = lines_of("slurm.conf", read)?.unwrap_or_default();
    let counts = NodeLines::of(&lines, GresConf::default()).gpu_counts(node);
    let all = [GpuCount {
        gres_type: None,
        count: u64::MAX,
    }];
    let counts = counts.as_deref().unwrap_or(&all);
    let mut devices = Vec::new();
    for share in gpus_of(counts, conf.of_node(node)) {
        let record = share.record;
        let device = |file: &String| GpuDevice {
            file: file.clone(),
            gres_type: record.gres_type.clone(),
            cores: record.cores.clone(),
        };
        match record.is_one_device {
            false => {
                let most = usize::try_from(share.devices).unwrap_or(usize::MAX);
                devices.extend(record.files.iter().take(most).map(device));
            }
            // Of the files of one GPU that counts which has its number.
            true => {
                let all = record.files.iter().map(device);
                let numbered = all.clone().find(|device| device.minor().is_some());
                devices.extend(numbered.or_else(|| all.clone().next()));
            }
        }
    }
    Ok(devices)
}

/// `AutoDetect=` of a node in gres.conf, in small letters: that of a line that names the node, else of one for all.
///
/// # Errors
/// A file cannot be read; the sentence names it.
pub fn auto_detect(node: &str, read: Read<'_>) -> Result<Option<String>, String> {
    Ok(GresConf::read(read)?.auto_detect(node).map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn minors(text: &str) -> Vec<Option<u32>> {
        minors_of("", text)
    }

    fn minors_of(slurm: &str, gres: &str) -> Vec<Option<u32>> {
        let text = |name: &str| if name == "slurm.conf" { slurm } else { gres };
        let read = |name: &str| Ok(Some(text(name).to_owned()));
        let devices = gpu_devices("n2", &read).unwrap();
        devices.iter().map(GpuDevice::minor).collect()
    }

    #[test]
    fn files_in_the_order_of_the_lines() {
        assert_eq!(
            minors("Name=gpu File=/dev/nvidia[0-2]\n"),
            [Some(0), Some(1), Some(2)]
        );
        let swapped = "NodeName=n[1-2] Name=gpu Type=a30 File=/dev/nvidia[2,3] Cores=0-3\n\
                       NodeName=n9 Name=gpu File=/dev/nvidia7\n\
                       Name=gpu File=/dev/nvidia0,/dev/nvidia1\n";
        assert_eq!(minors(swapped), [Some(0), Some(1), Some(2), Some(3)]);
        assert_eq!(minors("AutoDetect=nvml\nName=mps Count=100\n"), []);
        assert_eq!(
            minors("Name=gpu File=/dev/nvidia-x,/dev/tty[1]\n"),
            [None, None]
        );
        assert_eq!(
            minors("Name=gpu File=[\n# Name=gpu File=/dev/nvidia0\n"),
            []
        );
    }

    #[test]
    fn numbers_are_those_of_slurm_with_several_files_and_types() {
        let slurm = "NodeName=n[1-2] Gres=gpu:a:1,gpu:b:3\n";
        let gres = "Name=gpu Type=b MultipleFiles=/dev/nvidia-caps/nvidia-cap[1-2],/dev/nvidia5\n\
                    Name=gpu Type=b Files=/dev/nvidia[1-3]\nName=gpu Type=a File=/dev/nvidia0\n";
        assert_eq!(minors_of(slurm, gres), [Some(0), Some(5), Some(1), Some(2)]);
        assert_eq!(minors_of("NodeName=n2\n", gres), []);
        assert_eq!(minors_of("NodeName=n2 Gres=shard:4\n", gres), []);
    }

    proptest::proptest! {
        #[test]
        fn any_gres_conf_is_read_without_panic(text: String, file in "[a-z0-9/,\\[\\]-]{0,30}") {
            minors(&text);
            minors(&format!("Name=gpu File={file}\n"));
        }
    }
}
