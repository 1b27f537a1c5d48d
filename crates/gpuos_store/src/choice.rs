//! From which checkpoint the next run of a job is to begin, as its user has chosen.
//!
//! It holds for one run: what comes after it begins from the newest again.

use crate::disk::Disk;
use crate::error::{Error, Result, Tried};
use crate::job::JobStore;
use crate::names::CHOSEN;
use crate::small::{read_whole, remove_if_there, replace, there};

/// Apart from what else is signed with the key.
const PURPOSE: &[u8] = b"chosen";
/// Two numbers and a code.
const BYTES: usize = 8 + 32;

/// A choice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chosen {
    /// For this run, by the workload manager's count of restarts.
    pub run: u32,
    /// The number of the checkpoint.
    pub number: u32,
}

/// Notes a choice in place of an earlier one; `None`: there is none any more.
///
/// # Errors
/// The disk fails.
pub fn choose<D: Disk>(job: &JobStore<'_, D>, chosen: Option<Chosen>) -> Result<()> {
    let tried = || format!("note from which checkpoint job {} goes on", job.job);
    let Some(chosen) = chosen else {
        return remove_if_there(job.disk, &job.folder, CHOSEN).tried(tried);
    };
    let note = [chosen.run.to_le_bytes(), chosen.number.to_le_bytes()].concat();
    let code = job.keys.state_code(&[PURPOSE, &note].concat());
    let bytes = [&note[..], &code].concat();
    replace(job.disk, &job.folder, CHOSEN, &bytes).tried(tried)
}

/// What was chosen.
///
/// # Errors
/// The note cannot be read or does not hold.
pub fn chosen<D: Disk>(job: &JobStore<'_, D>) -> Result<Option<Chosen>> {
    let tried = || format!("read from which checkpoint job {} goes on", job.job);
    let bytes = there(read_whole(job.disk, &job.folder, CHOSEN, BYTES));
    let Some(bytes) = bytes.tried(tried)? else {
        return Ok(None);
    };
    let parts = bytes.split_last_chunk().and_then(|(note, code)| {
        let (run, number) = note.split_first_chunk()?;
        let chosen = Chosen {
            run: u32::from_le_bytes(*run),
            number: u32::from_le_bytes(number.try_into().ok()?),
        };
        let holds = job.keys.state_holds(&[PURPOSE, note].concat(), code);
        holds.then_some(chosen)
    });
    let damaged = || Error::damaged(tried(), "the note does not hold");
    parts.map(Some).ok_or_else(damaged)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use gpuos_core::job::JobId;

    use super::*;
    use crate::disk::{Disk, LinuxDisk};
    use crate::key::SiteKey;
    use crate::store::Store;

    #[test]
    fn a_choice_is_kept_replaced_and_signed() {
        let place = tempfile::TempDir::new().unwrap();
        let private = fs::Permissions::from_mode(0o700);
        fs::set_permissions(place.path(), private).unwrap();
        let root = LinuxDisk::folder(place.path()).unwrap();
        let key = SiteKey::derive(b"a key of tests that is long enough");
        let (store, _) = Store::open(LinuxDisk, root, key).unwrap();
        let job = store.job(&JobId::from(7), LinuxDisk.user()).unwrap();
        assert_eq!(chosen(&job), Ok(None));
        let some = |number| Some(Chosen { run: 2, number });
        choose(&job, some(5)).unwrap();
        choose(&job, some(4)).unwrap();
        assert_eq!(chosen(&job), Ok(some(4)));
        let path = place.path().join("7/chosen");
        let mut bytes = fs::read(&path).unwrap();
        bytes[4] = 6;
        fs::write(&path, &bytes).unwrap();
        assert!(chosen(&job).is_err());
        fs::write(&path, b"").unwrap();
        assert!(chosen(&job).is_err());
        choose(&job, None).unwrap();
        choose(&job, None).unwrap();
        assert_eq!(chosen(&job), Ok(None));
    }
}
