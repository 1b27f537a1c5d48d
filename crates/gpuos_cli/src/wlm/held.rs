//! Which GPUs of this host jobs have: a file for each in a folder that root alone writes.
//!
//! An entry counts until the process that keeps its job is gone and no process has the job's group. So neither a killed daemon
//! nor an epilog that did not run loses a GPU, and none is given away under a program that still runs.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use gpuos_host::steps::job_processes::{Proc, Processes};
use gpuos_wlm::journal::Entry;

/// Whoever else may write.
const OTHERS_WRITE: u32 = 0o022;

/// The folder, while it is locked.
pub struct Held {
    folder: PathBuf,
    _lock: File,
}

impl Held {
    /// Makes the folder where it is missing, and waits until nobody else works in it.
    ///
    /// # Errors
    /// It cannot be made, or is not of this process's user alone.
    pub fn lock(folder: &Path) -> Result<Held> {
        let shown = folder.display();
        if let Err(error) = DirBuilder::new().mode(0o755).create(folder)
            && error.kind() != std::io::ErrorKind::AlreadyExists
        {
            bail!("cannot make {shown}: {error}; run this as root");
        }
        check_folder(folder)?;
        let path = folder.join("lock");
        // Who can open it can hold it: a user who did would stop all jobs of the host.
        let made = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&path);
        let lock = made.and_then(|_| gpuos_lab::lock(&path));
        let lock = lock.with_context(|| format!("cannot lock {}", path.display()))?;
        Ok(Held {
            folder: folder.to_path_buf(),
            _lock: lock,
        })
    }

    /// GPUs of jobs that are there, but for one job, and words about jobs that have ended and left programs behind. What jobs had
    /// that are gone is free from here on.
    ///
    /// # Errors
    /// The folder, or the kernel's list of processes, cannot be read.
    pub fn others(&self, own: &str) -> Result<(BTreeSet<u8>, Vec<String>)> {
        let (mut gpus, mut left) = (BTreeSet::new(), Vec::new());
        let groups = groups()?;
        for (name, entry) in entries(&self.folder)? {
            if name == own {
                continue;
            }
            if !is_there(&entry, &groups) {
                self.remove(&name)?;
                continue;
            }
            if !is_kept(&entry) {
                left.push(format!("{name} (group {})", entry.group));
            }
            gpus.extend(entry.gpus);
        }
        Ok((gpus, left))
    }

    /// Keeps what an earlier run of the same job has, for as long as its processes are there: a job that is started again has
    /// another group, and its entry would take the place of the one of before.
    ///
    /// # Errors
    /// The folder, or the kernel's list of processes, cannot be read or written.
    pub fn set_apart(&self, name: &str, group: u32) -> Result<()> {
        let path = self.folder.join(name);
        let Some(entry) = entry(&path)? else {
            return Ok(());
        };
        if entry.group == group || !is_there(&entry, &groups()?) {
            return Ok(());
        }
        let apart = self.folder.join(format!("{name}.{}", entry.group));
        fs::rename(&path, apart).with_context(|| format!("cannot rename {}", path.display()))
    }

    /// Notes what a job has.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn note(&self, name: &str, entry: &Entry) -> Result<()> {
        let (new, path) = (self.folder.join("new"), self.folder.join(name));
        let mut options = File::options();
        // The load sensor, which is not root, reads it.
        let file = options.create(true).truncate(true).write(true).mode(0o644);
        let written = file
            .open(&new)
            .and_then(|mut file| file.write_all(entry.text().as_bytes()))
            .and_then(|()| fs::rename(&new, &path));
        written.with_context(|| format!("cannot write {}", path.display()))
    }

    /// The job has ended: what it had is free at once, or when its last process has ended. So is what other jobs had that are gone.
    ///
    /// # Errors
    /// The folder, or the kernel's list of processes, cannot be read or written.
    pub fn end(&self, name: &str) -> Result<()> {
        self.others(name)?;
        let Some(mut entry) = entry(&self.folder.join(name))? else {
            return Ok(());
        };
        entry.keeper = (0, 0);
        match is_there(&entry, &groups()?) {
            true => self.note(name, &entry),
            false => self.remove(name),
        }
    }

    fn remove(&self, name: &str) -> Result<()> {
        let path = self.folder.join(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", path.display()))
            }
            _ => Ok(()),
        }
    }
}

/// GPUs that jobs have, for one who may read the folder and changes nothing; none where the folder is not there yet.
///
/// # Errors
/// It cannot be read.
pub fn seen(folder: &Path) -> Result<BTreeSet<u8>> {
    if !folder.exists() {
        return Ok(BTreeSet::new());
    }
    let groups = groups()?;
    let entries = entries(folder)?.into_iter();
    let there = entries.filter(|(_, entry)| is_there(entry, &groups));
    Ok(there.flat_map(|(_, entry)| entry.gpus).collect())
}

fn check_folder(folder: &Path) -> Result<()> {
    let shown = folder.display();
    let is = fs::symlink_metadata(folder).with_context(|| format!("cannot look at {shown}"))?;
    let own = fs::metadata("/proc/self").map_or(0, |own| own.uid());
    if !is.is_dir() || is.uid() != own || is.mode() & OTHERS_WRITE != 0 {
        bail!(
            "{shown} is no folder that user {own} alone can write in; remove it, or name another with --state"
        );
    }
    Ok(())
}

/// The entries; what is none by its name, such as the lock, is passed over.
fn entries(folder: &Path) -> Result<Vec<(String, Entry)>> {
    let failed = || format!("cannot read {}", folder.display());
    let mut entries = Vec::new();
    for one in fs::read_dir(folder).with_context(failed)? {
        let Ok(name) = one.with_context(failed)?.file_name().into_string() else {
            continue;
        };
        if name.starts_with(|c: char| c.is_ascii_digit())
            && let Some(entry) = entry(&folder.join(&name))?
        {
            entries.push((name, entry));
        }
    }
    Ok(entries)
}

/// An entry; `None`: there is none. One that cannot be read is an error: its GPUs would be given away.
fn entry(path: &Path) -> Result<Option<Entry>> {
    let shown = path.display();
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        text => text.with_context(|| format!("cannot read {shown}"))?,
    };
    let entry = Entry::parse(&text);
    let entry = entry.with_context(|| {
        format!("{shown} does not say which GPUs a job has; remove it when that job has ended")
    })?;
    Ok(Some(entry))
}

fn is_there(entry: &Entry, groups: &BTreeSet<u32>) -> bool {
    is_kept(entry) || entry.group != 0 && groups.contains(&entry.group)
}

fn is_kept(entry: &Entry) -> bool {
    let (pid, start) = entry.keeper;
    pid != 0 && started(pid) == Some(start)
}

/// When a process was started, in the kernel's ticks since the boot; `None`: there is none, or it is dead and not yet waited for.
pub fn started(pid: u32) -> Option<u64> {
    let who = Proc::at("/proc").who(pid).ok()??;
    (!who.ended).then_some(who.started)
}

/// Groups that processes have beside their own.
fn groups() -> Result<BTreeSet<u32>> {
    let mut all = BTreeSet::new();
    for process in fs::read_dir("/proc")
        .context("cannot read /proc")?
        .flatten()
    {
        let Ok(status) = fs::read_to_string(process.path().join("status")) else {
            continue;
        };
        let zombie = status.lines().any(|line| line.starts_with("State:\tZ"));
        // A program whose first thread has ended looks like one, and its other threads run.
        let alone = |line: &str| matches!(line, "Threads:\t0" | "Threads:\t1");
        let dead = zombie && status.lines().any(alone);
        let line = status.lines().find_map(|line| line.strip_prefix("Groups:"));
        let numbers = line.unwrap_or_default().split_whitespace();
        if !dead {
            all.extend(numbers.filter_map(|one| one.parse::<u32>().ok()));
        }
    }
    Ok(all)
}
