//! Files that tell other exporters which job holds which GPU, in the forms that they read:
//!
//! - dcgm-exporter (`--hpc-job-mapping-dir`): a file for each GPU, named by its number, a job a line, and for each
//!   MIG instance, named `GPU.GI` with NVML's number of the GPU and id of the GPU instance,
//! - jobstats (`/run/gpustat`): a file for each GPU, named by its number, with `JOB UID`.
//!
//! A file is written whole or not at all, and goes when the job has gone.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use gpuos_model::gpuset::MAX_GPUS;
use gpuos_model::node_gpu::NodeGpu;

use super::{Holder, Slice, Snapshot};
use crate::gpus::GpuIdentity;
use gpuos_daemon::places;

/// Everybody may read them: exporters run as users of their own.
const FILE: u32 = 0o644;
const DIR: u32 = 0o755;

/// Files of a directory: name and content.
pub type Files = BTreeMap<String, String>;

/// The number by which exporters know a GPU: NVML's. Without the library's word, Slurm's.
fn number(found: &[GpuIdentity], gpu: NodeGpu) -> usize {
    let known = found.iter().find(|found| found.number == gpu);
    match (known, gpu) {
        (Some(found), _) => found.nvml.index(),
        (None, NodeGpu::Pool(nvml)) => nvml.index(),
        (None, NodeGpu::Gres(gres)) => gres.index(),
    }
}

fn by_gpu<'a>(holders: &'a [Holder], found: &[GpuIdentity]) -> BTreeMap<usize, Vec<&'a Holder>> {
    let mut by_gpu: BTreeMap<usize, Vec<&Holder>> = BTreeMap::new();
    for holder in holders {
        by_gpu
            .entry(number(found, holder.gpu))
            .or_default()
            .push(holder);
    }
    for list in by_gpu.values_mut() {
        list.sort_by(|one, other| one.job.cmp(&other.job));
        list.dedup_by(|one, other| one.job == other.job);
    }
    by_gpu
}

/// What dcgm-exporter reads.
pub fn dcgm(holders: &[Holder], found: &[GpuIdentity], slices: &[Slice]) -> Files {
    let lines = |list: Vec<&Holder>| {
        list.iter()
            .map(|holder| format!("{}\n", holder.job))
            .collect()
    };
    let files = by_gpu(holders, found).into_iter();
    let files = files.map(|(gpu, list)| (gpu.to_string(), lines(list)));
    let instance = |slice: &Slice| {
        let name = format!("{}.{}", slice.gpu, slice.gi);
        Some((name, format!("{}\n", slice.job.as_ref()?)))
    };
    files.chain(slices.iter().filter_map(instance)).collect()
}

/// Whether a file is one of ours: named by a GPU, or by an instance of one.
fn is_own(name: &str) -> bool {
    let (gpu, instance) = name.split_once('.').unwrap_or((name, "0"));
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    digits(instance)
        && instance.parse::<u32>().is_ok()
        && gpu.parse::<usize>().is_ok_and(|gpu| gpu < MAX_GPUS)
}

/// What jobstats's exporter reads: it knows one job for a GPU; of several the oldest is told.
pub fn jobstats(holders: &[Holder], found: &[GpuIdentity]) -> Files {
    let files = by_gpu(holders, found).into_iter();
    let first = |(gpu, list): (usize, Vec<&Holder>)| {
        let holder = list.first()?;
        Some((gpu.to_string(), format!("{} {}\n", holder.job, holder.uid)))
    };
    files.filter_map(first).collect()
}

/// Makes a directory hold these files and no others that are named by a number of a GPU.
///
/// # Errors
/// The directory or a file cannot be written; the other files are.
pub fn write(dir: &Path, wanted: &Files) -> io::Result<()> {
    if let Some(why) = places::unsafe_to_write(dir) {
        return Err(io::Error::other(format!("{why}; name a folder of root's")));
    }
    if !dir.is_dir() {
        fs::create_dir_all(dir)?;
        fs::set_permissions(dir, fs::Permissions::from_mode(DIR))?;
    }
    let mut first = Ok(());
    for (name, content) in wanted {
        let path = dir.join(name);
        if fs::read(&path).is_ok_and(|there| there == content.as_bytes()) {
            continue;
        }
        first = first.and(replace(&path, content));
    }
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        let Some(name) = name.to_str() else { continue };
        if is_own(name) && !wanted.contains_key(name) {
            let gone = match fs::remove_file(dir.join(name)) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
                _ => Ok(()),
            };
            first = first.and(gone);
        }
    }
    first
}

fn replace(path: &Path, content: &str) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let new = path.with_file_name(format!(".{name}.gpuosd"));
    // One that a killed daemon left behind; what somebody else put there is not followed.
    let _ = fs::remove_file(&new);
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(FILE)
        .open(&new)
        .and_then(|mut file| {
            // The umask may have taken rights away.
            file.set_permissions(fs::Permissions::from_mode(FILE))?;
            file.write_all(content.as_bytes())
        })
        .and_then(|()| fs::rename(&new, path));
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written
}

type Batch = Vec<(PathBuf, Files)>;

/// A thread that writes the files: a file system that hangs holds up nobody else.
#[derive(Debug)]
pub struct Writer {
    dcgm: Option<PathBuf>,
    jobstats: Option<PathBuf>,
    to: SyncSender<Batch>,
    received: Option<Batch>,
    trouble: Arc<Mutex<Option<String>>>,
}

impl Writer {
    /// Starts the thread; it ends when this is dropped.
    ///
    /// # Errors
    /// The thread cannot be made.
    pub fn start(dcgm: Option<PathBuf>, jobstats: Option<PathBuf>) -> io::Result<Writer> {
        let (to, from) = sync_channel(1);
        let trouble = Arc::new(Mutex::new(None));
        let own = Arc::clone(&trouble);
        let run = move || write_on(&from, &own);
        thread::Builder::new().name("maps".into()).spawn(run)?;
        Ok(Writer {
            dcgm,
            jobstats,
            to,
            received: None,
            trouble,
        })
    }

    /// Hands on what the files are to hold, if it changed, or could not be written.
    pub fn show(&mut self, snapshot: &Snapshot, found: &[GpuIdentity]) {
        let holders = &snapshot.holders;
        let mut work = Batch::new();
        work.extend(
            self.dcgm
                .clone()
                .map(|dir| (dir, dcgm(holders, found, &snapshot.slices))),
        );
        work.extend(
            self.jobstats
                .clone()
                .map(|dir| (dir, jobstats(holders, found))),
        );
        let same = self.received.as_ref() == Some(&work);
        if same && self.trouble().is_none() {
            return;
        }
        // A thread that is busy gets it a second later.
        if self.to.try_send(work.clone()).is_ok() {
            self.received = Some(work);
        }
    }

    /// Why the files are not as they should be.
    pub fn trouble(&self) -> Option<String> {
        let trouble = self.trouble.lock();
        trouble.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn write_on(from: &Receiver<Batch>, trouble: &Mutex<Option<String>>) {
    for work in from {
        let mut why = None;
        for (dir, files) in &work {
            if let Err(e) = write(dir, files) {
                why = Some(format!("map files in {}: {e}", dir.display()));
            }
        }
        let mut trouble = trouble.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(why) = &why
            && trouble.as_ref() != Some(why)
        {
            tracing::error!("{why}; it is tried again");
        }
        *trouble = why;
    }
}

#[cfg(test)]
mod tests {
    use gpuos_model::mig::MigPlacement;

    use super::*;

    fn holder(gpu: u8, job: u32, step: Option<u32>) -> Holder {
        Holder {
            gpu: gpu.try_into().unwrap(),
            job: job.into(),
            step,
            uid: 1000 + job,
            user: String::new(),
        }
    }

    fn found(gres: u8, nvml: u8) -> GpuIdentity {
        GpuIdentity {
            number: gres.try_into().unwrap(),
            nvml: nvml.try_into().unwrap(),
            uuid: format!("GPU-{gres}"),
            name: String::new(),
            pci: String::new(),
        }
    }

    #[test]
    fn each_job_of_a_gpu_has_one_line_and_jobstats_knows_one() {
        let holders = [
            holder(0, 9, Some(1)),
            holder(0, 7, None),
            holder(0, 9, Some(0)),
            holder(3, 7, None),
        ];
        // GPU 3 of Slurm is the library's first.
        let found = [found(3, 1), found(0, 0)];
        let files = |list: &[(&str, &str)]| -> Files {
            list.iter()
                .map(|(a, b)| (a.to_string(), b.to_string()))
                .collect()
        };
        assert_eq!(
            dcgm(&holders, &found, &[]),
            files(&[("0", "7\n9\n"), ("1", "7\n")])
        );
        assert_eq!(
            jobstats(&holders, &found),
            files(&[("0", "7 1007\n"), ("1", "7 1007\n")])
        );
        assert_eq!(dcgm(&holders[3..], &[], &[]), files(&[("3", "7\n")]));
        let slice = |gi, job| Slice {
            gpu: 4u8.try_into().unwrap(),
            number: "mig4".parse().unwrap(),
            gi,
            uuid: format!("MIG-{gi}"),
            profile: "1g.10gb".into(),
            placement: MigPlacement { start: 0, size: 1 },
            job,
            memory_mib: None,
            load: Default::default(),
        };
        // An instance of nobody has no file.
        assert_eq!(
            dcgm(&[], &[], &[slice(10, Some(8.into())), slice(3, None)]),
            files(&[("4.10", "8\n")])
        );
    }

    #[test]
    fn files_come_and_go_and_strangers_stay() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("run/gpustat");
        let both: Files = [("0".into(), "7 1\n".into()), ("5".into(), "8 2\n".into())].into();
        write(&dir, &both).unwrap();
        fs::write(dir.join("notes"), "mine").unwrap();
        fs::write(dir.join("MIG-1"), "7 1\n").unwrap();
        fs::write(dir.join("4.x"), "mine").unwrap();
        // Left over from before, and from a daemon that was killed.
        fs::write(dir.join("6"), "1 1\n").unwrap();
        fs::write(dir.join("6.10"), "1\n").unwrap();
        fs::write(dir.join(".5.gpuosd"), "half").unwrap();
        let one: Files = [("5".into(), "9 2\n".into())].into();
        write(&dir, &one).unwrap();
        let mut names: Vec<String> = fs::read_dir(&dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, ["4.x", "5", "MIG-1", "notes"]);
        assert_eq!(fs::read_to_string(dir.join("5")).unwrap(), "9 2\n");
        let mode = fs::metadata(dir.join("5")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o644);
    }

    #[test]
    fn a_link_in_the_way_is_replaced_and_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let other = dir.path().join("passwd");
        fs::write(&other, "precious").unwrap();
        for name in ["2", ".2.gpuosd"] {
            std::os::unix::fs::symlink(&other, dir.path().join(name)).unwrap();
        }
        let files: Files = [("2".into(), "7 1\n".into())].into();
        write(dir.path(), &files).unwrap();
        assert_eq!(fs::read_to_string(&other).unwrap(), "precious");
        assert_eq!(fs::read_to_string(dir.path().join("2")).unwrap(), "7 1\n");
        write(dir.path(), &Files::new()).unwrap();
        assert!(other.exists() && !dir.path().join("2").exists());
    }

    #[test]
    fn what_cannot_be_written_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        let files: Files = [("2".into(), "7 1\n".into())].into();
        assert!(write(&file.join("below"), &files).is_err());
    }
}
