//! What programs that count and save themselves have written, and whether it hangs together: an oracle that knows nothing of gpuos.
//!
//! Each rank has a file of its own for each start of the program: `JOB.RUN.START.RANK.log`, with the lines `new`, `restored [checkpoint] WHAT at COUNT`,
//! `saved WHAT at COUNT` and `done at COUNT`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// A checkpoint as a rank names it, and its count there.
pub type Saved = (String, u64);

/// What one rank has said in one start of the program.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Said {
    /// It has begun from the start.
    pub new: bool,
    /// It has gone on from this checkpoint.
    pub restored: Option<Saved>,
    /// What it has saved, in order.
    pub saved: Vec<Saved>,
    /// The count that it ended with.
    pub done: Option<u64>,
    /// Lines that are none of these.
    pub other: Vec<String>,
}

/// What the ranks have said in one start of the program.
pub type Start = BTreeMap<u32, Said>;

/// All starts of a job's program, in order.
pub fn starts(folder: &Path, job: u32) -> Vec<Start> {
    let mut starts: BTreeMap<(u32, u32), Start> = BTreeMap::new();
    for (path, [run, start, rank]) in files(folder, job) {
        let text = fs::read_to_string(path).unwrap_or_default();
        let of = starts.entry((run, start)).or_default();
        of.insert(rank, said(&text));
    }
    starts.into_values().collect()
}

/// Removes what a job's ranks have written.
pub fn forget(folder: &Path, job: u32) {
    for (path, _) in files(folder, job) {
        let _ = fs::remove_file(path);
    }
}

/// The files of a job's ranks: run, start and rank of each.
fn files(folder: &Path, job: u32) -> Vec<(PathBuf, [u32; 3])> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let files = entries.filter_map(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        let numbers = name.strip_suffix(".log")?.split('.');
        let numbers: Vec<u32> = numbers.map(str::parse).collect::<Result<_, _>>().ok()?;
        match numbers[..] {
            [of, run, start, rank] if of == job => Some((entry.path(), [run, start, rank])),
            _ => None,
        }
    });
    files.collect()
}

/// Reads what one rank has said.
fn said(text: &str) -> Said {
    let mut said = Said::default();
    let of = |rest: &str| {
        let (what, count) = rest.split_once(" at ")?;
        let what = what.strip_prefix("checkpoint ").unwrap_or(what);
        Some((what.to_string(), count.parse().ok()?))
    };
    // A rank that was killed may have left half a line.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    for line in whole.lines() {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match (word, of(rest)) {
            ("new", _) => said.new = true,
            ("restored", Some(from)) => said.restored = Some(from),
            ("saved", Some(one)) => said.saved.push(one),
            ("done", _) if rest.starts_with("at ") => said.done = rest[3..].parse().ok(),
            _ => said.other.push(line.into()),
        }
    }
    said
}

/// Whether a program of so many ranks has ended as if nothing had happened, and each start has gone on from one checkpoint of earlier ones.
///
/// # Errors
///
/// A sentence.
pub fn check(starts: &[Start], ranks: u32, limit: u64) -> Result<(), String> {
    let mut known: BTreeMap<u32, Vec<Saved>> = BTreeMap::new();
    for (at, start) in starts.iter().enumerate() {
        let from: BTreeSet<Option<&str>> = start
            .values()
            .filter(|said| said.new || said.restored.is_some())
            .map(|said| said.restored.as_ref().map(|(what, _)| &**what))
            .collect();
        if from.len() > 1 {
            return Err(format!("start {at} goes on from several: {from:?}"));
        }
        for (rank, said) in start {
            let before = known.entry(*rank).or_default();
            if let Some((what, count)) = &said.restored {
                let same = before.iter().rev().find(|(name, _)| name == what);
                match same {
                    Some((_, saved)) if saved != count => {
                        return Err(format!(
                            "rank {rank} has saved {what} at {saved}, and start {at} goes on at {count}"
                        ));
                    }
                    Some(_) => (),
                    // It can be killed after it has saved and before it says so; then what it saved is newer than all that it has said.
                    None if before.last().is_none_or(|(_, newest)| count > newest) => (),
                    None => {
                        return Err(format!(
                            "start {at} of rank {rank} goes on from {what}, which it has not saved"
                        ));
                    }
                }
            }
            before.extend(said.saved.iter().cloned());
        }
    }
    let last = starts.last().ok_or("the program has not started")?;
    for rank in 0..ranks {
        let said = last.get(&rank);
        if said.and_then(|said| said.done) != Some(limit) {
            return Err(format!("rank {rank} has not ended with {limit}: {said:?}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(texts: &[&str]) -> Start {
        (0..).zip(texts.iter().map(|text| said(text))).collect()
    }

    #[test]
    fn a_program_that_goes_on_hangs_together() {
        let first = start(&[
            "new\nsaved 1 at 10\nsaved 2 at 20\nsaved 3 a",
            "new\nsaved 1 at 11\n",
        ]);
        // The second rank was killed before it could say that it had saved 2.
        let second = start(&[
            "restored checkpoint 2 at 20\ndone at 30\n",
            "restored checkpoint 2 at 21\ndone at 30\n",
        ]);
        assert_eq!(check(&[first.clone(), second.clone()], 2, 30), Ok(()));
        assert!(check(&[first], 2, 30).is_err());
        assert!(check(&[second], 3, 30).is_err());
        assert!(check(&[], 1, 30).is_err());
    }

    #[test]
    fn what_does_not_hang_together_is_found() {
        let first = start(&[
            "new\nsaved 1 at 10\nsaved 2 at 20\n",
            "new\nsaved 1 at 11\nsaved 2 at 21\n",
        ]);
        for second in [
            [
                "restored 2 at 20\ndone at 30\n",
                "restored 1 at 11\ndone at 30\n",
            ],
            ["restored 2 at 20\ndone at 30\n", "new\ndone at 30\n"],
            [
                "restored 2 at 20\ndone at 30\n",
                "restored 2 at 11\ndone at 30\n",
            ],
            [
                "restored 7 at 3\ndone at 30\n",
                "restored 7 at 3\ndone at 30\n",
            ],
            [
                "restored 2 at 20\ndone at 30\n",
                "restored 2 at 21\ndone at 29\n",
            ],
        ] {
            assert!(
                check(&[first.clone(), start(&second)], 2, 30).is_err(),
                "{second:?}"
            );
        }
    }
}
