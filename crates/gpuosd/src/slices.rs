//! Slice files: for each memory slice of a GPU of the pool a text file with the device files that whoever holds the
//! slice may open, one a line. `gres_gpuos` hands them to Slurm, which lets a job's tasks open these and no others.
//! For each GPU a fence besides: what opens any instance that it can ever have, which nobody may but through a slice.

use gpuos_model::gpu_index::NvmlIndex;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Where slice files lie, and what stands in them.
#[derive(Clone, Debug)]
pub struct Slices {
    /// `--slices`: the folder.
    pub folder: PathBuf,
    /// `--caps`: where the device files of instances are; those of the GPUs lie beside this folder.
    pub caps: PathBuf,
    /// `--mig-minors`: the driver's list of them.
    pub minors: PathBuf,
    /// `/proc/devices`: where the kernel says which major number they have.
    pub majors: PathBuf,
}

/// By memory slice of one GPU: the GPU instance and the compute instance that can be used there.
pub type Layout = Vec<Option<(u32, u32)>>;

impl Slices {
    /// The file of a slice of a GPU, by NVML's index.
    pub fn file(&self, gpu: NvmlIndex, slice: usize) -> PathBuf {
        self.folder.join(format!("gpu{gpu}s{slice}"))
    }

    /// Writes the files of one GPU, whose own device file is `nvidiaMINOR`. Those that say so already are left
    /// alone.
    ///
    /// # Errors
    /// What could not be written, or which instance the driver's list lacks, in a sentence. Its slices can then open
    /// the GPU's own device file and nothing else, which serves no program.
    pub fn write(&self, gpu: NvmlIndex, minor: u32, layout: &Layout) -> Result<(), String> {
        self.fence(gpu, minor)
            .map_err(|e| format!("the fence of GPU {gpu}: {e}"))?;
        let list = match layout.iter().any(Option::is_some) {
            true => fs::read_to_string(&self.minors)
                .map_err(|e| format!("{}: {e}", self.minors.display())),
            false => Ok(String::new()),
        };
        let mut lacks = None;
        for (slice, instance) in layout.iter().enumerate() {
            let own = self.caps.with_file_name(format!("nvidia{minor}"));
            let mut text = format!("{}\n", own.display());
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

    /// Writes `fence4`, with the device file of every GPU instance that GPU 4 can have, made or not, and its numbers:
    /// a step must not open an instance that is made while it runs. Without the driver's list there is none.
    fn fence(&self, gpu: NvmlIndex, minor: u32) -> io::Result<()> {
        let Ok(list) = fs::read_to_string(&self.minors) else {
            return Ok(());
        };
        let majors = fs::read_to_string(&self.majors).unwrap_or_default();
        let major = majors.lines().find_map(|line| {
            let (number, name) = line.trim().split_once(' ')?;
            (name == "nvidia-caps").then(|| number.parse::<u32>().ok())?
        });
        let start = format!("gpu{minor}/gi");
        let mut text = String::new();
        for line in list.lines().filter(|line| line.starts_with(&start)) {
            let Some((name, cap)) = line.split_once(' ') else {
                continue;
            };
            // Without its GPU instance a compute instance cannot be used.
            let number = cap.trim().parse::<u32>();
            let (Ok(number), 2) = (number, name.matches('/').count()) else {
                continue;
            };
            let path = self.caps.join(format!("nvidia-cap{number}"));
            let numbers = major.map_or_else(String::new, |major| format!(" {major}:{number}"));
            text.push_str(&format!("{}{numbers}\n", path.display()));
        }
        replace(&self.folder.join(format!("fence{gpu}")), &text)
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
            majors: folder.path().join("devices"),
        };
        let four = NvmlIndex::new(4).unwrap();
        // Nothing is made: no list is needed.
        slices.write(four, 4, &vec![None; 8]).unwrap();
        let read = |slice| fs::read_to_string(slices.file(four, slice)).unwrap();
        assert_eq!(read(7), "/dev/nvidia4\n");
        let mut layout = vec![None; 8];
        layout[2] = Some((11, 0));
        let why = slices.write(four, 4, &layout).unwrap_err();
        assert!(why.contains("mig-minors"), "{why}");
        fs::write(&slices.minors, LIST).unwrap();
        slices.write(four, 4, &layout).unwrap();
        assert_eq!(
            read(2),
            "/dev/nvidia4\n/dev/nvidia-caps/nvidia-cap129\n/dev/nvidia-caps/nvidia-cap130\n"
        );
        assert_eq!(read(1), "/dev/nvidia4\n");
        // Another instance in the same slice, and one that the list lacks: nobody keeps what was there.
        layout[2] = Some((3, 0));
        assert!(
            slices
                .write(four, 4, &layout)
                .unwrap_err()
                .contains("instance 3")
        );
        assert_eq!(read(2), "/dev/nvidia4\n");
        let fence = || fs::read_to_string(slices.folder.join("fence4")).unwrap();
        let caps = [
            "/dev/nvidia-caps/nvidia-cap39",
            "/dev/nvidia-caps/nvidia-cap129",
        ];
        assert_eq!(fence(), format!("{}\n{}\n", caps[0], caps[1]));
        fs::write(
            &slices.majors,
            "Character devices:\n  1 mem\n236 nvidia-caps\n",
        )
        .unwrap();
        slices.write(four, 4, &vec![None; 8]).unwrap();
        assert_eq!(
            fence(),
            format!("{} 236:39\n{} 236:129\n", caps[0], caps[1])
        );
        let names = fs::read_dir(&slices.folder).unwrap().count();
        assert_eq!(names, 9, "nothing half written is left");
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
