//! The files of all ranks of a checkpoint, for programs that can begin from those of any number of ranks: one folder for each of its ranks, once
//! on a node, in which nobody is permitted to write.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Mode, fchmod, mkdirat, renameat, statat};

use super::at;
use super::at::Walk;
use super::job::{JobFolder, State};
use super::names::{all_names, read_all};

/// Whether the files of all ranks of a checkpoint are there.
pub fn has_all(folder: &JobFolder, number: u32) -> bool {
    let [name, _] = all_names(number);
    statat(folder.root(), &name[..], AtFlags::SYMLINK_NOFOLLOW).is_ok()
}

/// A new folder for them, in which nobody else can write. What is there of others goes.
///
/// # Errors
/// The disk fails.
pub fn begin_all(folder: &JobFolder, number: u32) -> io::Result<OwnedFd> {
    let mut state = folder.state();
    leave_all(folder, &mut state, Some(number));
    let [_, unfinished] = all_names(number);
    if statat(folder.root(), &unfinished[..], AtFlags::SYMLINK_NOFOLLOW).is_ok() {
        folder.discard(&mut state, unfinished.clone());
    }
    mkdirat(folder.root(), &unfinished[..], Mode::RWXU)?;
    at::folder(folder.root(), &unfinished[..])
}

/// All of them are there.
///
/// # Errors
/// The disk fails.
pub fn end_all(folder: &JobFolder, number: u32, made: &OwnedFd) -> io::Result<()> {
    let [name, unfinished] = all_names(number);
    fchmod(made, Mode::from_raw_mode(0o755))?;
    Ok(renameat(
        folder.root(),
        &unfinished[..],
        folder.root(),
        &name[..],
    )?)
}

/// Removes those of all checkpoints but this one.
pub(super) fn leave_all(folder: &JobFolder, state: &mut State, but: Option<u32>) {
    let mut names = Vec::new();
    let listed = at::each(folder.root(), |name, _| {
        let text = name.to_string_lossy();
        if read_all(&text).is_some_and(|number| Some(number) != but) {
            names.push(text.into_owned());
        }
        Walk::On
    });
    // What is not found now goes with the folder of the job.
    if listed.is_ok() {
        names
            .into_iter()
            .for_each(|name| folder.discard(state, name));
    }
}
