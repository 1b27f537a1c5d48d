//! The device files of a node's GPUs in gres.conf, in the order in which Slurm numbers them.
use gpuos_model::hostlist::expand;

use super::{Read, keys, logical_lines};

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

/// The GPUs of a node that gres.conf names by their files; none where Slurm finds them itself
/// (`AutoDetect`) or there is no gres.conf. A line that is not understood is left out.
///
/// # Errors
/// A file cannot be read; the sentence names it.
pub fn gpu_devices(node: &str, read: Read<'_>) -> Result<Vec<GpuDevice>, String> {
    let mut lines = Vec::new();
    logical_lines("gres.conf", read, 0, &mut 0, &mut lines)?;
    let mut devices = Vec::new();
    for line in &lines {
        let keys = keys(line);
        let get = |key: &str| {
            let found = keys.iter().find(|(name, _)| name == key);
            found.map(|(_, value)| value.as_str())
        };
        let gpu = get("name").is_some_and(|name| name.eq_ignore_ascii_case("gpu"));
        let here = get("nodename").is_none_or(|names| {
            expand(names).is_ok_and(|names| names.iter().any(|name| name == node))
        });
        if let (true, true, Some(file)) = (gpu, here, get("file")) {
            devices.extend(names(file).into_iter().map(|file| GpuDevice {
                file,
                gres_type: get("type").unwrap_or_default().to_owned(),
                cores: get("cores").unwrap_or_default().to_owned(),
            }));
        }
    }
    Ok(devices)
}

/// `AutoDetect=` of a node in gres.conf, in small letters: that of a line that names the node, else of one for all.
///
/// # Errors
/// A file cannot be read; the sentence names it.
pub fn auto_detect(node: &str, read: Read<'_>) -> Result<Option<String>, String> {
    let mut lines = Vec::new();
    logical_lines("gres.conf", read, 0, &mut 0, &mut lines)?;
    let (mut own, mut all) = (None, None);
    for keys in lines.iter().map(|line| keys(line)) {
        let get = |key: &str| keys.iter().find(|(name, _)| name == key);
        let Some((_, how)) = get("autodetect") else {
            continue;
        };
        let how = Some(how.to_ascii_lowercase());
        match get("nodename") {
            None => all = how,
            Some((_, names)) if expand(names).is_ok_and(|all| all.iter().any(|n| n == node)) => {
                own = how;
            }
            Some(_) => {}
        }
    }
    Ok(own.or(all))
}

/// The files of a `File=`: paths with ranges, separated by commas.
fn names(list: &str) -> Vec<String> {
    // A host list but for the slashes of its folders.
    let mut found = Vec::new();
    for part in list.replace(",/", "\0/").split('\0') {
        let (folder, name) = part.rsplit_once('/').unwrap_or(("", part));
        for name in expand(name).unwrap_or_default() {
            found.push(format!("{folder}/{name}"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn minors(text: &str) -> Vec<Option<u32>> {
        let read = |_: &str| Ok(Some(text.to_owned()));
        let devices = gpu_devices("n2", &read).unwrap();
        devices.iter().map(GpuDevice::minor).collect()
    }

    #[test]
    fn a_nodes_own_autodetect_counts_more_than_that_of_all() {
        let how = |node: &str, text: &str| {
            auto_detect(node, &|_: &str| Ok(Some(text.to_owned()))).unwrap()
        };
        let text = "AutoDetect=NVML\nNodeName=n[2-3] AutoDetect=off Name=gpu File=/dev/nvidia0\n";
        assert_eq!(how("n1", text).as_deref(), Some("nvml"));
        assert_eq!(how("n3", text).as_deref(), Some("off"));
        assert_eq!(how("n1", "#AutoDetect=nvml\n"), None);
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
        assert_eq!(minors(swapped), [Some(2), Some(3), Some(0), Some(1)]);
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

    proptest::proptest! {
        #[test]
        fn any_gres_conf_is_read_without_panic(text: String, file in "[a-z0-9/,\\[\\]-]{0,30}") {
            minors(&text);
            minors(&format!("Name=gpu File={file}\n"));
        }
    }
}
