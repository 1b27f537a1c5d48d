//! Signed notes about all that is kept of a job: that a drill has copied it in, and since when the job is over.

use gpuos_core::job::JobId;

use crate::disk::Disk;
use crate::error::{Error, Kind, Result, Tried};
use crate::job::JobStore;
use crate::names::{DRILL, OVER};
use crate::small::{read_whole, remove_if_there, replace, there};
use crate::store::Store;

/// The longest note: the id of a job.
const MOST: usize = 1024;
/// Bytes of the code at its end.
const CODE: usize = 32;

/// Apart from what else is signed with the key.
fn signed(name: &[u8], note: &[u8]) -> Vec<u8> {
    [b"mark of ", name, b": ", note].concat()
}

fn put<D: Disk>(job: &JobStore<'_, D>, name: &[u8], note: &[u8]) -> Result<()> {
    let tried = || format!("write a note about job {}", job.job);
    let code = job.keys.state_code(&signed(name, note));
    replace(job.disk, &job.folder, name, &[note, &code].concat()).tried(tried)
}

fn get<D: Disk>(job: &JobStore<'_, D>, name: &[u8]) -> Result<Option<Vec<u8>>> {
    let tried = || format!("read a note about job {}", job.job);
    let bytes = there(read_whole(job.disk, &job.folder, name, MOST + CODE)).tried(tried)?;
    let Some(bytes) = bytes else {
        return Ok(None);
    };
    let note = bytes.split_last_chunk::<CODE>();
    let note = note.filter(|(note, code)| job.keys.state_holds(&signed(name, note), code));
    let damaged = || Error::damaged(tried(), "the note does not hold");
    note.map(|(note, _)| Some(note.to_vec()))
        .ok_or_else(damaged)
}

fn drop_note<D: Disk>(job: &JobStore<'_, D>, name: &[u8]) -> Result<()> {
    let tried = || format!("remove a note about job {}", job.job);
    remove_if_there(job.disk, &job.folder, name).tried(tried)
}

/// A folder for what a drill, itself the job `by`, copies in of a job of the same user. `true`: nothing was here before but what this
/// drill has copied in, and it is marked so; `false`: something was, which is not the drill's.
///
/// # Errors
/// What is here is another user's; the disk fails.
pub fn begin_drill<D: Disk>(store: &Store<D>, job: &JobId, uid: u32, by: &JobId) -> Result<bool> {
    let is_new = !store.has_folder(job)?;
    // Refuses what is another user's.
    let parts = store.job(job, uid)?;
    if is_new {
        put(&parts, DRILL, by.to_string().as_bytes())?;
    }
    Ok(drill(&parts)?.as_ref() == Some(by))
}

/// The drill that has copied in all that is here of a job; `None`: none has, or the job has run here itself since.
///
/// # Errors
/// The note cannot be read or does not hold: then it is no drill's.
pub fn drill<D: Disk>(job: &JobStore<'_, D>) -> Result<Option<JobId>> {
    let note = get(job, DRILL)?;
    let text = note.and_then(|note| String::from_utf8(note).ok());
    Ok(text.and_then(|text| text.parse().ok()))
}

/// A job begins to run here: from now on what is here is its own, and the job is not over. What it has not is not made.
///
/// # Errors
/// What is here is another user's; the disk fails.
pub fn adopt<D: Disk>(store: &Store<D>, job: &JobId, uid: u32) -> Result<()> {
    let parts = match store.existing(job) {
        Ok(parts) if parts.uid() == uid => parts,
        // Whoever opens it next says what is wrong.
        Ok(_) => return Ok(()),
        Err(error) if matches!(error.kind, Kind::Missing | Kind::Damaged) => return Ok(()),
        Err(error) => return Err(error),
    };
    drop_note(&parts, DRILL)?;
    drop_note(&parts, OVER)
}
/// Since when the job is over, in seconds since 1970, as was noted; `None`: that is not noted.
///
/// # Errors
/// The note cannot be read or does not hold.
pub fn over_since<D: Disk>(job: &JobStore<'_, D>) -> Result<Option<u64>> {
    let note = get(job, OVER)?;
    let time = note.and_then(|note| Some(u64::from_le_bytes(note.try_into().ok()?)));
    Ok(time)
}

/// Notes since when the job is over; `None`: it is not.
///
/// # Errors
/// The disk fails.
pub fn note_over<D: Disk>(job: &JobStore<'_, D>, since: Option<u64>) -> Result<()> {
    match since {
        Some(time) => put(job, OVER, &time.to_le_bytes()),
        None => drop_note(job, OVER),
    }
}
