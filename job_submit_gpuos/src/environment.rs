//! Jobs that no command with the options made, as those of slurmrestd: the `GPUOS_*` variables of their environment ask, as the
//! defaults of sbatch do.
//!
//! Such a job has no options in its `spank_job_env`, and no `submit_line`: sbatch, salloc and srun write their command line there, in
//! every release of the table, and slurmrestd does not let a request write it.

use std::ffi::c_void;

use gpuos_config::options::environment::EnvironmentRequest;
use slurm_ffi::layout::Fields;
use slurm_ffi::mem::{in_blocks, read, read_bytes};
use slurm_ffi::sizes;

use crate::hands::{Hands, List};
use crate::messages::impossible;
use crate::refusal::{Kind, Refusal};
use crate::site::unreadable;

/// The most entries of an environment that are looked at: as many as sbatch could hand on at most, with 128 bytes each (`ARG_MAX`).
const MAX_ENTRIES: u32 = 16_384;
/// So much of an entry is read: more than any value of an option may have.
const MAX_HEAD: usize = 4096;
/// An entry is read in pieces that end where a page may: the next one need not be mapped.
const PIECE: usize = 256;

/// Where everything stands that this is about.
#[derive(Clone, Copy, Debug)]
pub struct Offsets {
    environment: List,
    carried: List,
    submit_line: usize,
}

impl Offsets {
    /// The offsets of one release; absent where the table lacks one.
    pub fn of(fields: &Fields) -> Option<Offsets> {
        let offset = |field| fields.offset("job_descriptor", field).ok();
        Some(Offsets {
            environment: List {
                array: offset("environment")?,
                count: offset("env_size")?,
            },
            carried: List {
                array: offset("spank_job_env")?,
                count: offset("spank_job_env_size")?,
            },
            submit_line: offset("submit_line")?,
        })
    }

    /// What the environment of a job asks for whose `spank_job_env` has no options. `None`: a command made the job, or its memory does not
    /// look like a description.
    fn asked(&self, at: usize) -> Option<Result<EnvironmentRequest, Refusal>> {
        if read::<usize>(at.checked_add(self.submit_line)?)? != 0 {
            return None;
        }
        let Some(entries) = entries(at, self.environment) else {
            unreadable();
            return None;
        };
        Some(EnvironmentRequest::read(&entries).map_err(Refusal::from))
    }
}

/// Gives a job what its environment asks for, if no command made it; whether there is something. `carried`: how many entries its
/// `spank_job_env` has, of which none is an option.
pub fn take(
    offsets: Option<&Offsets>,
    description: *mut c_void,
    carried: usize,
    hands: &Hands,
) -> Result<bool, Refusal> {
    let asked = offsets.and_then(|offsets| Some((offsets, offsets.asked(description as usize)?)));
    let Some((offsets, asked)) = asked else {
        return Ok(false);
    };
    let asked = asked?;
    let relist = |list, kept: &[bool], added: &[String]| {
        let no_memory = || Refusal::of_other(Kind::Invalid, impossible::no_memory());
        let done = (hands.relist)(description, list, kept, added);
        done.then_some(()).ok_or_else(no_memory)
    };
    if asked.changes_environment() {
        relist(offsets.environment, &asked.kept, &asked.added)?;
    }
    if asked.carried.is_empty() {
        return Ok(false);
    }
    relist(offsets.carried, &vec![true; carried], &asked.carried)?;
    Ok(true)
}

/// The entries of an array of texts, each cut where no value is as long.
fn entries(at: usize, list: List) -> Option<Vec<String>> {
    let array: usize = read(at.checked_add(list.array)?)?;
    let count: u32 = read(at.checked_add(list.count)?)?;
    if array == 0 {
        return (count == 0).then(Vec::new);
    }
    // A job with more asks for nothing.
    if count > MAX_ENTRIES {
        return Some(Vec::new());
    }
    sizes::array(array, count as usize, size_of::<usize>(), "environment").ok()?;
    let entry = |index: usize| match read(array + index * size_of::<usize>())? {
        0 => Some(String::new()),
        at => head(at).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()),
    };
    in_blocks(|| (0..count as usize).map(entry).collect())
}

/// The start of a text.
fn head(at: usize) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    while bytes.len() < MAX_HEAD {
        let at = at.checked_add(bytes.len())?;
        let piece = read_bytes(at, PIECE - at % PIECE)?;
        if let Some(end) = piece.iter().position(|byte| *byte == 0) {
            bytes.extend_from_slice(&piece[..end]);
            return Some(bytes);
        }
        bytes.extend_from_slice(&piece);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use slurm_ffi::release::Release;
    use slurm_ffi::sizes::XMALLOC_MAGIC;

    use super::*;

    #[test]
    fn every_release_of_the_table_has_the_fields() {
        for release in [
            Release::new(22, 5, 0),
            Release::new(23, 2, 3),
            Release::new(24, 11, 5),
            Release::new(25, 5, 1),
            Release::new(26, 5, 5),
        ] {
            let fields = Fields::of(release, None).unwrap();
            assert!(Offsets::of(&fields).is_some(), "{release}");
        }
    }

    fn offsets() -> Offsets {
        let at = |array, count| List { array, count };
        Offsets {
            environment: at(0, 8),
            carried: at(16, 24),
            submit_line: 32,
        }
    }

    /// Words of an array as Slurm's allocator gives it out: the mark and the size stand before.
    fn allocated(entries: &[Vec<u8>]) -> Vec<usize> {
        let size = (entries.len() + 1) * size_of::<usize>();
        let mut words = vec![XMALLOC_MAGIC as usize, size];
        words.extend(entries.iter().map(|entry| entry.as_ptr() as usize));
        words.push(0);
        words
    }

    fn asked(entries: &[Vec<u8>], line: usize) -> Option<Result<EnvironmentRequest, Refusal>> {
        let array = allocated(entries);
        let at = (&raw const array[2]) as usize;
        let description = [at, entries.len(), 0, 0, line];
        offsets().asked((&raw const description) as usize)
    }

    #[test]
    fn the_environment_asks_where_no_command_line_stands() {
        let entry = |text: &str| [text.as_bytes(), b"\0"].concat();
        let entries = [entry("PATH=/bin"), entry("GPUOS_TOPOLOGY=leaf")];
        let request = asked(&entries, 0).unwrap().unwrap();
        assert_eq!(
            request.carried[0],
            "_SLURM_SPANK_OPTION_gpuos_gpuos_topology=leaf"
        );
        assert!(asked(&entries, 1).is_none());
        let nothing = asked(&[], 0).unwrap().unwrap();
        assert!(nothing.carried.is_empty() && !nothing.changes_environment());
    }

    #[test]
    fn texts_that_are_long_or_no_utf8_are_no_values() {
        let long = [&b"GPUOS_CLASS="[..], &[b'a'; 70_000], b"\0"].concat();
        for entry in [long, b"GPUOS_CLASS=\xff\0".to_vec()] {
            let refusal = asked(&[entry], 0).unwrap().unwrap_err();
            let said = &refusal.sentence;
            assert!(said.contains("GPUOS_CLASS="), "{said}");
        }
        let long = [&b"OTHER="[..], &[b'a'; 70_000], b"\0"].concat();
        assert!(asked(&[long], 0).unwrap().is_ok());
    }

    #[test]
    fn memory_that_is_no_array_asks_for_nothing() {
        for (array, count) in [(0, 1), (1, 1), (0x10_0000, 3), (usize::MAX, 2)] {
            let description = [array, count, 0, 0, 0];
            let asked = offsets().asked((&raw const description) as usize);
            assert!(asked.is_none(), "{array} {count}");
        }
        assert!(offsets().asked(usize::MAX - 3).is_none());
    }
}
