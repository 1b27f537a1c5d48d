//! `gpuos wlm ckpt` and `restore`: checkpoints that a program makes when it is asked to, in a folder of its user's. All of it
//! runs as that user.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use gpuos_wlm::saves::{Saves, number};

use crate::cli::{WlmSaveArgs, WlmSavesArgs};
use crate::reply::out;

const REQUEST: &str = "request";
const COMMITTED: &str = "committed";
const READY: &str = "ready";

/// How often the program's answer is looked for.
const TURN: Duration = Duration::from_millis(200);

/// Asks for a checkpoint and waits.
///
/// # Errors
/// The folder cannot be used, or the program did not save in time.
pub fn ckpt(args: &WlmSaveArgs) -> Result<u8> {
    let folder = &args.saves.folder;
    check(folder)?;
    let names = names(folder)?;
    let saves = read(folder, &names);
    let wanted = saves.next;
    write(folder, REQUEST, wanted)?;
    let ready = folder.join(wanted.to_string()).join(READY);
    let began = Instant::now();
    while !ready.is_file() {
        if began.elapsed() > Duration::from_secs(args.limit) {
            let _ = fs::remove_file(folder.join(REQUEST));
            bail!(
                "the program did not make checkpoint {wanted} in {} within {} s; what was complete before stays",
                folder.display(),
                args.limit
            );
        }
        std::thread::sleep(TURN);
    }
    write(folder, COMMITTED, wanted)?;
    let _ = fs::remove_file(folder.join(REQUEST));
    for old in Saves::old(names.iter().map(String::as_str), wanted) {
        let _ = fs::remove_dir_all(folder.join(old.to_string()));
    }
    Ok(0)
}

/// Prints where the last complete checkpoint is.
///
/// # Errors
/// There is none, or the folder cannot be read.
pub fn restore(args: &WlmSavesArgs) -> Result<u8> {
    let folder = &args.folder;
    let Some(path) = last(folder)? else {
        bail!("{} has no checkpoint that was complete", folder.display());
    };
    out(&format!("{}\n", path.display()));
    Ok(0)
}

/// Finds the last complete checkpoint in the folder of a job.
///
/// # Errors
/// The folder cannot be read.
pub fn last(folder: &Path) -> Result<Option<PathBuf>> {
    let committed = read(folder, &names(folder)?).committed;
    Ok(committed.map(|number| folder.join(number.to_string())))
}

/// Makes the folder of a job, or finds what is in it: the last complete checkpoint. What was begun after that and a request that
/// nobody waits for are taken away.
///
/// # Errors
/// It cannot be made, or is somebody else's.
pub fn open(folder: &Path) -> Result<Option<PathBuf>> {
    if let Err(error) = DirBuilder::new().mode(0o700).create(folder)
        && error.kind() != std::io::ErrorKind::AlreadyExists
    {
        bail!("cannot make {}: {error}", folder.display());
    }
    check(folder)?;
    let names = names(folder)?;
    let saves = read(folder, &names);
    let _ = fs::remove_file(folder.join(REQUEST));
    for begun in names.iter().filter_map(|name| number(name)) {
        if Some(begun) != saves.committed {
            let _ = fs::remove_dir_all(folder.join(begun.to_string()));
        }
    }
    let committed = saves.committed;
    Ok(committed.map(|number| folder.join(number.to_string())))
}

/// In a folder that everybody may write, another user could have made it.
fn check(folder: &Path) -> Result<()> {
    let shown = folder.display();
    let is = fs::symlink_metadata(folder).with_context(|| {
        format!(
            "cannot look at {shown}; the job's program runs under gpuos wlm wrap, which makes it"
        )
    })?;
    let own = fs::metadata("/proc/self").map_or(0, |own| own.uid());
    if !is.is_dir() || is.uid() != own {
        bail!("{shown} is no folder of user {own}");
    }
    Ok(())
}

fn names(folder: &Path) -> Result<Vec<String>> {
    let all = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let names = all
        .flatten()
        .filter_map(|one| one.file_name().into_string().ok());
    Ok(names.collect())
}

fn read(folder: &Path, names: &[String]) -> Saves {
    let committed = fs::read_to_string(folder.join(COMMITTED)).unwrap_or_default();
    Saves::read(names.iter().map(String::as_str), &committed)
}

/// Writes a number so that whoever looks sees the old one or the new one.
fn write(folder: &Path, name: &str, number: u32) -> Result<()> {
    let (new, path) = (folder.join(format!("{name}.new")), folder.join(name));
    let written = fs::write(&new, format!("{number}\n")).and_then(|()| fs::rename(&new, &path));
    written.with_context(|| format!("cannot write {}", path.display()))
}
