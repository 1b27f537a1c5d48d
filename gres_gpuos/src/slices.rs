//! The slice files: what whoever holds a memory slice of a GPU may open. gpuosd writes them.
//!
//! One file for each bit, with one path of a device file in a line: the GPU's, and those of the MIG instance
//! that has the slice. The files `fence4`, one for each GPU, beside them name what nobody may open but through a slice, so
//! that a step cannot open an instance that is made while it runs.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use gpuos_model::hostlist;
use slurm_ffi::gres_plugin::Device;

/// The most slices of a node.
const MAX_SLICES: usize = 64;

/// The longest slice file and the longest fence, in bytes.
const MAX_BYTES: [u64; 2] = [4 << 10, 256 << 10];

/// The most devices of a slice file and of a fence.
const MAX_LINES: [usize; 2] = [16, 256];

/// What the names of files begin with that list what is closed to all others; the GPU's number follows.
const FENCE: &str = "fence";

/// The slice files that `File=` of the records of gres.conf stands for, in the order of the bits: at most 64.
///
/// # Errors
/// A text that is no list of absolute paths.
pub fn files(records: &[String]) -> Result<Vec<PathBuf>, String> {
    let mut all = Vec::new();
    for record in records {
        for item in items(record) {
            let bad = || {
                format!(
                    "File={record:.80}: give a list of absolute paths such as /var/lib/gpuos/slices/gpu4s[0-7]"
                )
            };
            let (folder, names) = item.rsplit_once('/').ok_or_else(bad)?;
            if !folder.starts_with('/') || folder.contains('[') {
                return Err(bad());
            }
            let names = hostlist::expand(names).map_err(|why| format!("{}: {why}", bad()))?;
            all.extend(names.iter().map(|name| Path::new(folder).join(name)));
        }
    }
    all.truncate(MAX_SLICES);
    Ok(all)
}

/// Cuts a list at the commas outside brackets.
fn items(list: &str) -> Vec<&str> {
    let mut open = false;
    let items = list.split(|c| {
        open = (open || c == '[') && c != ']';
        c == ',' && !open
    });
    items.filter(|item| !item.is_empty()).collect()
}

/// The devices of a node's slices and, under the bit `closed` that the job does not hold, those of the fence.
pub fn devices(files: &[PathBuf], closed: Option<u32>) -> Vec<Device> {
    let mut all = of_slices(files);
    all.extend(of_fences(files, closed));
    all
}

fn of_slices(files: &[PathBuf]) -> Vec<Device> {
    let files = (0..).zip(files);
    files
        .flat_map(|(index, file)| listed(file, index, 0))
        .collect()
}

fn of_fences(files: &[PathBuf], closed: Option<u32>) -> Vec<Device> {
    let folder = files.first().and_then(|file| file.parent());
    let Some((folder, closed)) = folder.zip(closed) else {
        return Vec::new();
    };
    let fences = fences(folder);
    let fences = fences.iter();
    fences.flat_map(|fence| listed(fence, closed, 1)).collect()
}

/// The minor number of a device that stands for all of its major number: `NO_VAL`, which Slurm leaves out of its program.
const ANY_MINOR: u32 = 0xffff_fffe;

/// The same in as few devices as do it: each major number of the fence is closed as a whole, after what the job holds of it.
///
/// Slurm before 23.02.4 keeps steps to their devices on control groups of version 2 by a program that some 20 devices make too
/// long for it; then nothing is closed to anybody. Its programs go through the devices in the order of this list.
pub fn few_devices(files: &[PathBuf], closed: Option<u32>, held: u64) -> Vec<Device> {
    let holds = |index: u32| held.checked_shr(index).is_some_and(|bits| bits & 1 == 1);
    let fence = of_fences(files, closed);
    let majors: BTreeSet<u32> = fence.iter().map(|device| device.major).collect();
    let kept = |device: &Device| holds(device.index) || !majors.contains(&device.major);
    let mut few: Vec<Device> = of_slices(files).into_iter().filter(kept).collect();
    let ends = fence.first().into_iter().flat_map(|first| {
        majors.iter().filter_map(|&major| {
            Some(Device {
                index: first.index,
                // No device has it: of two with one path Slurm would leave out the second.
                path: CString::new(format!("/dev/char/{major}:*")).ok()?,
                major,
                minor: ANY_MINOR,
            })
        })
    });
    few.extend(ends);
    few
}

/// The fences of a node, at most one for each GPU that can have slices.
fn fences(folder: &Path) -> Vec<PathBuf> {
    let is_fence = |name: &str| {
        let number = name.strip_prefix(FENCE).unwrap_or_default();
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let named = entries.filter(|entry| entry.file_name().to_str().is_some_and(is_fence));
    let mut all: Vec<PathBuf> = named.take(MAX_SLICES).map(|entry| entry.path()).collect();
    all.sort_unstable();
    all
}

/// What a file names. One that is missing or too long names nothing.
fn listed(file: &Path, index: u32, kind: usize) -> Vec<Device> {
    let mut text = String::new();
    let opened = File::open(file).map(|file| file.take(MAX_BYTES[kind] + 1));
    let read = opened.and_then(|mut file| file.read_to_string(&mut text));
    if read.is_err() || text.len() as u64 > MAX_BYTES[kind] {
        return Vec::new();
    }
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let devices = lines
        .take(MAX_LINES[kind])
        .filter_map(|line| device(line, index));
    devices.collect()
}

/// `PATH`, an existing character device, or `PATH MAJOR:MINOR`, which may not be there yet.
fn device(line: &str, index: u32) -> Option<Device> {
    let (path, numbers) = match line.split_once(' ') {
        Some((path, numbers)) => (path, Some(numbers)),
        None => (line, None),
    };
    let (major, minor) = match numbers {
        _ if !path.starts_with('/') => return None,
        Some(numbers) => {
            let (major, minor) = numbers.trim().split_once(':')?;
            (major.parse().ok()?, minor.parse().ok()?)
        }
        None => {
            let found = fs::metadata(path).ok()?;
            if !found.file_type().is_char_device() {
                return None;
            }
            (libc::major(found.rdev()), libc::minor(found.rdev()))
        }
    };
    Some(Device {
        index,
        path: CString::new(path).ok()?,
        major,
        minor,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(device: &Device) -> (u32, &str, u32, u32) {
        let path = device.path.to_str().expect("text");
        (device.index, path, device.major, device.minor)
    }

    #[test]
    fn file_lists_are_bits_in_order() {
        let records = ["/a/gpu4s[0-2,5]".to_owned(), "/b/x1,/b/y[07-08]".to_owned()];
        let found = files(&records).expect("paths");
        let found: Vec<_> = found
            .iter()
            .map(|path| path.to_str().expect("text"))
            .collect();
        let wanted = [
            "/a/gpu4s0",
            "/a/gpu4s1",
            "/a/gpu4s2",
            "/a/gpu4s5",
            "/b/x1",
            "/b/y07",
            "/b/y08",
        ];
        assert_eq!(found, wanted);
        for bad in ["gpu4s[0-7]", "slices/gpu4s0", "/a[0-1]/x", "/a/x[0-"] {
            let why = files(&[bad.to_owned()]).expect_err(bad);
            assert!(why.contains("absolute paths"), "{why}");
        }
        let many = files(&["/a/s[0-9999]".to_owned()]).expect("paths");
        assert_eq!(many.len(), MAX_SLICES);
    }

    #[test]
    fn only_character_devices_count_and_a_missing_file_is_only_nothing() {
        let dir = std::env::temp_dir().join(format!("gpuos-slices-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("a folder");
        let write = |name: &str, text: &str| fs::write(dir.join(name), text).expect("written");
        write(
            "s0",
            "/dev/null\n\n  /dev/zero\nnull\n/dev\n/no/such/file\n/dev/full x:y\n",
        );
        write("s2", "/dev/null\n");
        write("s3", &"/dev/null\n".repeat(1000));
        let list = files(&[format!("{}/s[0-3]", dir.display())]).expect("paths");
        let wanted = [
            (0, "/dev/null", 1, 3),
            (0, "/dev/zero", 1, 5),
            (2, "/dev/null", 1, 3),
        ];
        let found = devices(&list, Some(3));
        assert_eq!(found.iter().map(named).collect::<Vec<_>>(), wanted);
        write("fence4", "/dev/zero\n/dev/nvidia-caps/nvidia-cap7 236:7\n");
        let found = devices(&list, Some(3));
        let fence = [
            (3, "/dev/zero", 1, 5),
            (3, "/dev/nvidia-caps/nvidia-cap7", 236, 7),
        ];
        assert_eq!(found[3..].iter().map(named).collect::<Vec<_>>(), fence);
        assert_eq!(devices(&list, None).len(), 3);
        fs::remove_dir_all(&dir).expect("removed");
    }

    #[test]
    fn few_devices_close_what_all_close() {
        let dir = std::env::temp_dir().join(format!("gpuos-few-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("a folder");
        let write = |name: &str, text: &str| fs::write(dir.join(name), text).expect("written");
        let instance =
            |cap: u32| format!("/dev/nvidia4 195:4\n/dev/nvidia-caps/nvidia-cap{cap} 236:{cap}\n");
        for (slice, cap) in [(0, 30), (1, 30), (2, 39), (3, 48)] {
            write(&format!("s{slice}"), &instance(cap));
        }
        let fence: String = (30..170)
            .map(|cap| format!("/dev/nvidia-caps/nvidia-cap{cap} 236:{cap}\n"))
            .collect();
        write("fence4", &fence);
        let list = files(&[format!("{}/s[0-3]", dir.display())]).expect("paths");
        // Who holds 2 may open its instance alone, and nobody else's, also where it is not made yet.
        for (held, own) in [(0b0100_u64, Some(39)), (0b0011, Some(30)), (0, None)] {
            let closed = Some((!held).trailing_zeros());
            let few = few_devices(&list, closed, held);
            assert!(few.len() <= 10, "{few:?}");
            let paths: Vec<_> = few.iter().map(|device| &device.path).collect();
            let closing = paths.last().expect("devices");
            assert!(paths.iter().filter(|path| *path == closing).count() == 1);
            let first = |minor: u32| {
                let fits = |device: &&Device| {
                    device.major == 236 && [minor, ANY_MINOR].contains(&device.minor)
                };
                let device = few.iter().find(fits).expect("closed or open");
                held >> device.index & 1 == 1
            };
            for minor in 30..170 {
                assert_eq!(first(minor), own == Some(minor), "{held:b} {minor}");
            }
            let gpu = few.iter().filter(|device| device.major == 195);
            assert_eq!(
                gpu.clone().any(|device| held >> device.index & 1 == 1),
                held != 0
            );
            assert!(
                gpu.count() > 0,
                "the GPU itself is closed to who has no slice"
            );
        }
        // Who holds all has nobody to be kept from.
        assert_eq!(few_devices(&list, None, 0b1111), devices(&list, None));
        fs::remove_dir_all(&dir).expect("removed");
    }
}
