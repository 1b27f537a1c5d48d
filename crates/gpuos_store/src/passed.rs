//! Checkpoints of other jobs that the program of this job could not load.
//!
//! A job that begins from another one's checkpoint reads it only: what its program refuses is noted with this job, which passes over it from
//! then on. The other job's program may well load it.

use gpuos_checkpoint::ids::CheckpointId;
use gpuos_checkpoint::refusal::Refusal;
use gpuos_core::job::JobId;

use crate::disk::Disk;
use crate::error::{Error, Kind, Result, Tried};
use crate::job::JobStore;
use crate::names::PASSED;
use crate::small::{read_whole, replace, there};

/// Apart from what else is signed with the key.
const PURPOSE: &[u8] = b"passed";
/// So many are noted, the latest; own choice: a job keeps a few checkpoints.
const MOST: usize = 64;
/// The longest note, in bytes: all of them with the longest texts, and some.
const MAX_NOTE: usize = 64 << 10;

/// One of them.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Passed {
    of: JobId,
    id: CheckpointId,
    refusal: Refusal,
}

/// Notes that the program of a job could not load a checkpoint of another job. The first note of it stays.
///
/// # Errors
/// The disk fails.
pub fn pass_over<D: Disk>(
    job: &JobStore<'_, D>,
    of: &JobId,
    id: CheckpointId,
    refusal: &Refusal,
) -> Result<()> {
    let mut all = match read(job) {
        // What does not hold is no note, and makes room.
        Err(error) if error.kind == Kind::Damaged => Vec::new(),
        read => read?,
    };
    if all.iter().any(|it| (&it.of, it.id) == (of, id)) {
        return Ok(());
    }
    let (of, refusal) = (of.clone(), refusal.clone().cut());
    all.push(Passed { of, id, refusal });
    let from = all.len().saturating_sub(MOST);
    let mut note: Vec<u8> = all[from..].iter().flat_map(encode).collect();
    note.extend(job.keys.state_code(&[PURPOSE, &note].concat()));
    let tried = || format!("note what the program of job {} could not load", job.job);
    replace(job.disk, &job.folder, PASSED, &note).tried(tried)
}

/// What the program of a job could not load of another job's checkpoints.
///
/// # Errors
/// The note cannot be read or does not hold.
pub fn passed_over<D: Disk>(
    job: &JobStore<'_, D>,
    of: &JobId,
) -> Result<Vec<(CheckpointId, Refusal)>> {
    let all = read(job)?.into_iter().filter(|it| it.of == *of);
    Ok(all.map(|it| (it.id, it.refusal)).collect())
}

fn read<D: Disk>(job: &JobStore<'_, D>) -> Result<Vec<Passed>> {
    let tried = || format!("read what the program of job {} could not load", job.job);
    let bytes = there(read_whole(job.disk, &job.folder, PASSED, MAX_NOTE));
    let Some(bytes) = bytes.tried(tried)? else {
        return Ok(Vec::new());
    };
    let read = bytes.split_last_chunk().and_then(|(note, code)| {
        let holds = job.keys.state_holds(&[PURPOSE, note].concat(), code);
        holds.then(|| decode(note))?
    });
    read.ok_or_else(|| Error::damaged(tried(), "the note does not hold"))
}

/// Two texts, each behind its length, and the numbers between them.
fn encode(passed: &Passed) -> Vec<u8> {
    let Passed { of, id, refusal } = passed;
    let (of, refusal) = (of.to_string(), refusal.encode());
    let length = |bytes: &[u8]| u16::try_from(bytes.len()).unwrap_or(u16::MAX).to_le_bytes();
    [
        &length(of.as_bytes())[..],
        of.as_bytes(),
        &id.number.to_le_bytes(),
        &id.attempt.to_le_bytes(),
        &length(&refusal),
        &refusal,
    ]
    .concat()
}

fn decode(mut note: &[u8]) -> Option<Vec<Passed>> {
    let mut all = Vec::new();
    while !note.is_empty() {
        let of = text(&mut note)?;
        let (number, rest) = note.split_first_chunk()?;
        let (attempt, rest) = rest.split_first_chunk()?;
        note = rest;
        let id = CheckpointId {
            number: u32::from_le_bytes(*number),
            attempt: u64::from_le_bytes(*attempt),
        };
        all.push(Passed {
            of: std::str::from_utf8(of).ok()?.parse().ok()?,
            id,
            refusal: Refusal::decode(text(&mut note)?)?,
        });
    }
    Some(all)
}

fn text<'a>(note: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, rest) = note.split_first_chunk()?;
    let (text, rest) = rest.split_at_checked(u16::from_le_bytes(*length).into())?;
    *note = rest;
    Some(text)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::disk::LinuxDisk;
    use crate::key::SiteKey;
    use crate::store::Store;

    fn id(number: u32) -> CheckpointId {
        CheckpointId { number, attempt: 9 }
    }

    fn refusal(said: &str) -> Refusal {
        Refusal {
            rank: 2,
            node: "n3".into(),
            said: said.into(),
        }
    }

    #[test]
    fn it_is_noted_by_job_once_for_the_latest_and_signed() {
        let place = tempfile::TempDir::new().unwrap();
        fs::set_permissions(place.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let root = LinuxDisk::folder(place.path()).unwrap();
        let key = SiteKey::derive(b"a key of tests that is long enough");
        let (store, _) = Store::open(LinuxDisk, root, key).unwrap();
        let job = store.job(&JobId::from(7), LinuxDisk.user()).unwrap();
        let (of, other) = (JobId::from(5), "word".parse().unwrap());
        assert_eq!(passed_over(&job, &of), Ok(Vec::new()));
        let long = refusal(&"x".repeat(5000));
        for (of, number, refusal) in [
            (&of, 1, &refusal("no layer")),
            (&other, 2, &long),
            (&of, 1, &refusal("again")),
            (&of, 3, &refusal("")),
        ] {
            pass_over(&job, of, id(number), refusal).unwrap();
        }
        let wanted = vec![(id(1), refusal("no layer")), (id(3), refusal(""))];
        assert_eq!(passed_over(&job, &of), Ok(wanted));
        assert_eq!(
            passed_over(&job, &other),
            Ok(vec![(id(2), long.clone().cut())])
        );
        for number in 4..=80 {
            pass_over(&job, &of, id(number), &long).unwrap();
        }
        let left = passed_over(&job, &of).unwrap();
        assert_eq!((left.len(), left[0].0), (64, id(17)));
        let path = place.path().join("7/passed");
        let mut bytes = fs::read(&path).unwrap();
        bytes[9] ^= 1;
        fs::write(&path, &bytes).unwrap();
        let error = passed_over(&job, &of).unwrap_err();
        assert_eq!(error.kind, Kind::Damaged);
        pass_over(&job, &of, id(1), &refusal("new")).unwrap();
        assert_eq!(passed_over(&job, &of).unwrap().len(), 1);
    }
}
