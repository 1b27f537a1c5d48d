//! What this node has measured of restarts and drills: a line of JSON for each, in a file that root alone can read.
//!
//! Only the node that leads a job writes one, so that over all nodes each counts once. Nothing in a line is a user's text but the reason
//! why a drill came to nothing, which JSON keeps in one string.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use gpuos_core::job::JobId;
use gpuos_core::wire::{CheckpointRecoveries, CheckpointRecovery, decode, encode};

use crate::jobs::locked;

/// The file, in the folder of all jobs, in which no job has a name that begins with a dot.
const FILE: &str = ".recoveries";
/// The one before it.
const OLDER: &str = ".recoveries.1";
/// It becomes the one before when it is so long, in bytes: some 3,000 lines. Own choice.
const MOST: u64 = 1 << 20;
/// The longest line, in bytes.
const LINE: usize = 4096;
/// Jobs of which it is remembered that they have lost a node. Own choice: they start again soon, or never.
const LOSSES: usize = 1024;

/// The journal, and what was counted since the daemon started.
#[derive(Debug)]
pub struct Journal {
    folder: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    counted: CheckpointRecoveries,
    /// When a job that has ended here was seen to lose a node, in milliseconds since 1970.
    losses: BTreeMap<JobId, u64>,
}

impl Journal {
    /// In the folder of all jobs, with what was written there before. What cannot be read counts as nothing.
    pub fn open(folder: &Path) -> Journal {
        let journal = Journal {
            folder: folder.into(),
            state: Mutex::default(),
        };
        let mut counted = CheckpointRecoveries::default();
        for drill in journal.lines().iter().filter(|one| one.drill.is_some()) {
            last(&mut counted, drill);
        }
        locked(&journal.state).counted = counted;
        journal
    }

    /// Counts one, and writes it. A disk that does not take it is told of in the log.
    pub fn enter(&self, one: &CheckpointRecovery) {
        let mut state = locked(&self.state);
        count(&mut state.counted, one);
        if let Err(error) = self.write(one) {
            tracing::warn!(job = %one.job, "the journal of restarts is not written: {error}");
        }
    }

    /// What was counted.
    pub fn counted(&self) -> CheckpointRecoveries {
        locked(&self.state).counted.clone()
    }

    /// Those that `told` lets through, as many of the newest as `bytes` of JSON have room for, oldest first.
    pub fn told(
        &self,
        bytes: usize,
        told: impl Fn(&CheckpointRecovery) -> bool,
    ) -> Vec<CheckpointRecovery> {
        let state = locked(&self.state);
        let lines = self.lines();
        drop(state);
        let mut left = bytes;
        let mut newest: Vec<CheckpointRecovery> = Vec::new();
        for one in lines.into_iter().rev().filter(|one| told(one)) {
            let length = encode(&one, LINE).map_or(LINE, |line| line.len());
            let Some(rest) = left.checked_sub(length) else {
                break;
            };
            left = rest;
            newest.push(one);
        }
        newest.reverse();
        newest
    }

    /// A job that ends here has lost a node, at this time in milliseconds since 1970.
    pub fn lost(&self, job: &JobId, at: u64) {
        let mut state = locked(&self.state);
        if state.losses.len() >= LOSSES {
            let oldest = state.losses.iter().min_by_key(|(_, at)| **at);
            let oldest = oldest.map(|(job, _)| job.clone());
            oldest.map(|job| state.losses.remove(&job));
        }
        state.losses.insert(job.clone(), at);
    }

    /// When a job that starts here has lost a node in its run before. Once.
    pub fn loss(&self, job: &JobId) -> Option<u64> {
        locked(&self.state).losses.remove(job)
    }

    fn write(&self, one: &CheckpointRecovery) -> io::Result<()> {
        let path = self.folder.join(FILE);
        let long = fs::symlink_metadata(&path).is_ok_and(|it| it.len() >= MOST);
        if long {
            fs::rename(&path, self.folder.join(OLDER))?;
        }
        let line = encode(one, LINE).map_err(io::Error::other)?;
        let mut options = OpenOptions::new();
        let mut file = options.append(true).create(true).mode(0o600).open(path)?;
        file.write_all(&line)
    }

    /// All that is written, oldest first; a line that is none is passed over.
    fn lines(&self) -> Vec<CheckpointRecovery> {
        let mut all = Vec::new();
        for name in [OLDER, FILE] {
            let text = text(&self.folder.join(name)).unwrap_or_default();
            let lines = text.split(|byte| *byte == b'\n');
            all.extend(lines.filter_map(|line| decode(line, LINE).ok()));
        }
        all
    }
}

/// The end of a file, twice as much as one has at most.
fn text(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(2 * MOST)))?;
    let mut text = Vec::new();
    file.take(2 * MOST).read_to_end(&mut text)?;
    Ok(text)
}

fn count(counted: &mut CheckpointRecoveries, one: &CheckpointRecovery) {
    if one.drill.is_some() {
        match one.failed.is_empty() {
            true => counted.drills.0 += 1,
            false => counted.drills.1 += 1,
        }
        return last(counted, one);
    }
    counted.count += 1;
    for (sum, part) in counted.parts_ms.iter_mut().zip(one.parts()) {
        *sum = sum.saturating_add(part.unwrap_or(0));
    }
    counted.lost_s = counted.lost_s.saturating_add(one.lost_s.unwrap_or(0));
}

fn last(counted: &mut CheckpointRecoveries, drill: &CheckpointRecovery) {
    let last = match drill.failed.is_empty() {
        true => &mut counted.last_well,
        false => &mut counted.last_failed,
    };
    *last = (*last).max(Some(drill.time));
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn restart(job: u32, time: u64) -> CheckpointRecovery {
        CheckpointRecovery {
            time,
            job: job.into(),
            number: Some(4),
            requeue_ms: Some(2000),
            load_ms: Some(30),
            lost_s: Some(42),
            ..CheckpointRecovery::default()
        }
    }

    #[test]
    fn what_is_entered_is_there_after_a_restart_and_for_root_alone() {
        let folder = tempfile::tempdir().unwrap();
        let journal = Journal::open(folder.path());
        let drill = CheckpointRecovery {
            drill: Some(9.into()),
            failed: "it is \"gone\"\n{".into(),
            ..restart(7, 50)
        };
        for one in [&restart(7, 10), &restart(8, 20), &drill] {
            journal.enter(one);
        }
        let counted = journal.counted();
        assert_eq!((counted.count, counted.lost_s), (2, 84));
        assert_eq!(counted.parts_ms, [0, 4000, 0, 60]);
        assert_eq!((counted.drills, counted.last_failed), ((0, 1), Some(50)));
        let mode = fs::metadata(folder.path().join(FILE))
            .unwrap()
            .permissions();
        assert_eq!(mode.mode() & 0o777, 0o600);
        let again = Journal::open(folder.path());
        assert_eq!(again.counted().count, 0, "since it started");
        assert_eq!(again.counted().last_failed, Some(50));
        let all = again.told(usize::MAX, |_| true);
        assert_eq!(all, [restart(7, 10), restart(8, 20), drill.clone()]);
        let of = again.told(usize::MAX, |one| one.job == 7.into());
        assert_eq!(of.len(), 2);
        assert_eq!(again.told(1, |_| true), [], "no room");
        let one = encode(&drill, LINE).unwrap().len();
        assert_eq!(again.told(one + 1, |_| true), [drill], "the newest");
    }

    #[test]
    fn it_does_not_grow_for_ever_and_what_is_no_line_is_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        let journal = Journal::open(folder.path());
        let mut junk = vec![b'x'; MOST as usize];
        junk.extend(b"\n{\"time\":1}\n\xff\n");
        fs::write(folder.path().join(FILE), &junk).unwrap();
        journal.enter(&restart(7, 10));
        assert_eq!(journal.told(usize::MAX, |_| true), [restart(7, 10)]);
        let now = fs::metadata(folder.path().join(FILE)).unwrap().len();
        assert!(now < 1000, "another file was begun");
    }

    #[test]
    fn a_loss_is_remembered_once_and_not_for_all_jobs_there_ever_were() {
        let folder = tempfile::tempdir().unwrap();
        let journal = Journal::open(folder.path());
        for job in 1..=(LOSSES as u32 + 1) {
            journal.lost(&job.into(), job.into());
        }
        assert_eq!(journal.loss(&1.into()), None, "the oldest went");
        assert_eq!(journal.loss(&2.into()), Some(2));
        assert_eq!(journal.loss(&2.into()), None);
    }
}
