//! Slice files: for each memory slice of a GPU of the pool a text file with the device files that whoever holds the
//! slice may open, one a line. `gres_gpuos` hands them to Slurm, which lets a job's tasks open these and no others.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Where slice files lie, and what stands in them.
#[derive(Clone, Debug)]
pub struct Slices {
    /// `--slices`: the folder.
    pub folder: PathBuf,
    /// `--caps`: where the device files of instances are.
    pub caps: PathBuf,
    /// `--mig-minors`: the driver's list of them.
    pub minors: PathBuf,
}

/// By memory slice of one GPU: the GPU instance and the compute instance that can be used there.
pub type Layout = Vec<Option<(u32, u32)>>;

impl Slices {
    /// The file of a slice of a GPU, by NVML's index.
    pub fn file(&self, gpu: u8, slice: usize) -> PathBuf {
        self.folder.join(format!("gpu{gpu}s{slice}"))
    }

    /// Writes the files of one GPU, whose device file is `/dev/nvidiaMINOR`. Those that say so already are left
    /// alone.
    ///
    /// # Errors
    /// What could not be written, or which instance the driver's list lacks, in a sentence. Its slices can then open
    /// the GPU's own device file and nothing else, which serves no program.
    pub fn write(&self, gpu: u8, minor: u32, layout: &Layout) -> Result<(), String> {
        let list = match layout.iter().any(Option::is_some) {
            true => fs::read_to_string(&self.minors)
                .map_err(|e| format!("{}: {e}", self.minors.display())),
            false => Ok(String::new()),
        };
        let mut lacks = None;
        for (slice, instance) in layout.iter().enumerate() {
            let mut text = format!("/dev/nvidia{minor}\n");
            if let Some((gi, ci)) = *instance {
                let caps = list.as_ref().map_err(Clone::clone).and_then(|list| {
                    caps(list, minor, gi, ci).ok_or_else(|| {
                        format!(
                            "{} has no minors of GPU instance {gi}, compute instance {ci} of GPU {minor}",
                            self.minors.display()
                        )
                    })
                });
                match caps {
                    Ok(caps) => {
                        for cap in caps {
                            let path = self.caps.join(format!("nvidia-cap{cap}"));
                            text.push_str(&format!("{}\n", path.display()));
                        }
                    }
                    Err(why) => lacks = Some(why),
                }
            }
            let path = self.file(gpu, slice);
            replace(&path, &text).map_err(|e| format!("{}: {e}", path.display()))?;
        }
        lacks.map_or(Ok(()), Err)
    }
}

/// The numbers of the two device files that open an instance, from the driver's list: lines such as `gpu4/gi2/access 75`
/// and `gpu4/gi2/ci0/access 76`.
pub fn caps(list: &str, gpu: u32, gi: u32, ci: u32) -> Option<[u32; 2]> {
    let number = |name: &str| {
        let mut lines = list.lines().map(str::split_ascii_whitespace);
        lines.find_map(|mut words| match words.next() == Some(name) {
            true => words.next()?.parse().ok(),
            false => None,
        })
    };
    Some([
        number(&format!("gpu{gpu}/gi{gi}/access"))?,
        number(&format!("gpu{gpu}/gi{gi}/ci{ci}/access"))?,
    ])
}

/// Puts a file in place whole, so that nobody reads half of it.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    if fs::read_to_string(path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let new = path.with_extension("new");
    let mut options = fs::OpenOptions::new();
    options.create(true).write(true).truncate(true).mode(0o644);
    let mut file = options.open(&new)?;
    file.write_all(text.as_bytes())?;
    fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "config 1\nmonitor 2\ngpu4/gi1/access 39\ngpu4/gi1/ci0/access 40\n\
                        gpu4/gi11/access 129\ngpu4/gi11/ci0/access 130\n";

    #[test]
    fn a_slice_opens_the_gpu_and_the_two_devices_of_its_instance() {
        let folder = tempfile::tempdir().unwrap();
        let slices = Slices {
            folder: folder.path().join("slices"),
            caps: "/dev/nvidia-caps".into(),
            minors: folder.path().join("mig-minors"),
        };
        // Nothing is made: no list is needed.
        slices.write(4, 4, &vec![None; 8]).unwrap();
        let read = |slice| fs::read_to_string(slices.file(4, slice)).unwrap();
        assert_eq!(read(7), "/dev/nvidia4\n");
        let mut layout = vec![None; 8];
        layout[2] = Some((11, 0));
        let why = slices.write(4, 4, &layout).unwrap_err();
        assert!(why.contains("mig-minors"), "{why}");
        fs::write(&slices.minors, LIST).unwrap();
        slices.write(4, 4, &layout).unwrap();
        assert_eq!(
            read(2),
            "/dev/nvidia4\n/dev/nvidia-caps/nvidia-cap129\n/dev/nvidia-caps/nvidia-cap130\n"
        );
        assert_eq!(read(1), "/dev/nvidia4\n");
        // Another instance in the same slice, and one that the list lacks: nobody keeps what was there.
        layout[2] = Some((3, 0));
        assert!(
            slices
                .write(4, 4, &layout)
                .unwrap_err()
                .contains("instance 3")
        );
        assert_eq!(read(2), "/dev/nvidia4\n");
        let names = fs::read_dir(&slices.folder).unwrap().count();
        assert_eq!(names, 8, "nothing half written is left");
    }

    #[test]
    fn no_list_upsets_the_reader() {
        assert_eq!(caps(LIST, 4, 1, 0), Some([39, 40]));
        for (list, gi) in [
            ("", 1),
            (LIST, 2),
            ("gpu4/gi1/access\ngpu4/gi1/ci0/access x", 1),
        ] {
            assert_eq!(caps(list, 4, gi, 0), None);
        }
    }
}
