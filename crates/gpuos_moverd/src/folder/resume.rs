//! A folder that an earlier mover has made for the same run of the job is gone on with.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;

use gpuos_core::job::JobId;
use gpuos_mover::program::{Answered, Join, Known, Told};
use rustix::fs::AtFlags;
use rustix::fs::{fstat, statat};

use super::at::{self, Walk};
use super::job::{COMMIT, FAILED, JobFolder, RANKS, REQUEST, State, TAKEN, remove_file};
use super::kept::{Kept, text};
use super::names::{number, read_restored, read_start, start_file, told};
use super::trash::{Trash, is_safe};

/// The answer to the last join of a rank that has one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Start {
    pub(super) nonce: u64,
    /// Ranks of the program; `None`: the file of the join is gone.
    pub(super) size: Option<u16>,
    pub(super) epoch: u64,
    pub(super) told: Told,
}

/// The folder and its `ranks`, if they are of this run, and nobody else could have changed them.
pub(super) fn there(trash: &Trash, job: &JobId, kept: &Kept) -> Option<(OwnedFd, OwnedFd)> {
    let root = open(trash, job)?;
    let before = Kept::read(&root)?;
    let same = |kept: &Kept| (kept.run, kept.launch.step, kept.uid, kept.gid);
    let ranks = at::folder(&root, RANKS).ok()?;
    let owner = fstat(&ranks).ok()?.st_uid;
    (same(&before) == same(kept) && owner == kept.uid).then_some((root, ranks))
}

fn open(trash: &Trash, job: &JobId) -> Option<OwnedFd> {
    let root = at::folder(trash.base(), &job.to_string()[..]).ok()?;
    is_safe(&root, trash.us(), 0o022).ok()?.then_some(root)
}

impl Trash {
    /// The run that the folder of a job belongs to. `None`: there is no folder, or it does not say.
    pub fn kept(&self, job: &JobId) -> Option<Kept> {
        Kept::read(&open(self, job)?)
    }
}

impl JobFolder {
    /// What was answered and asked in this run of the job.
    pub fn known(&self) -> Known {
        let state = self.state();
        let answered = state.answered.iter().filter_map(|(rank, start)| {
            let Start {
                nonce, epoch, told, ..
            } = *start;
            let (rank, size) = (*rank, start.size?);
            let join = Join { rank, size, nonce };
            Some(Answered { join, epoch, told })
        });
        Known {
            answered: answered.collect(),
            epoch: state.epoch,
            highest: state.highest,
            open: state.open,
            committed: state.told[0],
            failed: state.told[1],
        }
    }

    /// Whether a checkpoint was committed in this run of the job, as far as its programs were told.
    pub fn has_committed(&self) -> bool {
        statat(self.root(), COMMIT, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// The movers gather anew: the checkpoint that was wanted stays open, as one that an earlier mover has left, until
    /// [`JobFolder::close`] says what became of it.
    pub fn leave(&self) {
        let mut state = self.state();
        state.open = state.asked.as_ref().map(|it| it.number).or(state.open);
        state.told = [COMMIT, FAILED].map(|name| self.number_in(name));
    }

    /// The checkpoint that was left open.
    pub fn left_open(&self) -> Option<u32> {
        self.state().open
    }

    /// The number with which a line begins.
    fn number_in(&self, name: &str) -> Option<u32> {
        let text = text(self.root(), name).ok()?;
        number32(text.split_whitespace().next()?)
    }

    /// Learns what an earlier mover has left. What became of the checkpoint that was made is open, and its files are not waited for any more.
    pub(super) fn resume(&self) -> io::Result<()> {
        let mut names = Vec::new();
        at::each(self.root(), |name, _| {
            names.push(name.to_string_lossy().into_owned());
            Walk::On
        })?;
        let mut state = self.state();
        let joins = self.sizes()?;
        self.learn_starts(&mut state, &names, &joins)?;
        let mut made = None;
        for name in &names {
            let restored = read_restored(name);
            let is_whole = |(rank, nonce)| {
                let start = state.answered.get(&rank);
                start.is_some_and(|it| it.nonce == nonce && matches!(it.told, Told::Restore(_)))
            };
            if name.starts_with('.') {
                // A line that was not finished.
                remove_file(self.root(), name)?;
            } else if name.starts_with("restore.") && !restored.is_some_and(is_whole) {
                self.discard(&mut state, name.clone());
            } else {
                made = made.max(number32(name));
            }
        }
        let said = [REQUEST, COMMIT, FAILED, TAKEN].map(|name| self.number_in(name));
        let [wanted, commit, failed, taken] = said;
        let heard = [wanted, commit, failed, taken, made].into_iter().max();
        state.highest = state.highest.max(heard.flatten().unwrap_or(0));
        state.told = [commit, failed];
        // Ranks may have heard from others of one whose request was not there yet.
        let last = wanted.max(made);
        state.open = last.filter(|_| last > commit && last > failed);
        // The line by which it is found once more if the mover ends again.
        if state.open.is_none() {
            remove_file(self.root(), REQUEST)?;
        }
        for name in names.iter().filter(|name| number32(name).is_some()) {
            self.discard(&mut state, name.clone());
        }
        if let Some(memory) = self.memory() {
            memory.clear()?;
            memory.free();
            state.memory = Some(memory);
        }
        Ok(())
    }

    /// How many ranks each join has named.
    fn sizes(&self) -> io::Result<BTreeMap<(u16, u64), u16>> {
        let joined = super::joined::read_joins(self.ranks())?;
        let all = joined.newest.iter().chain(&joined.older);
        Ok(all
            .map(|join| ((join.rank, join.nonce), join.size))
            .collect())
    }

    /// The last answer of each rank. Earlier ones that stand there still are removed.
    fn learn_starts(
        &self,
        state: &mut State,
        names: &[String],
        sizes: &BTreeMap<(u16, u64), u16>,
    ) -> io::Result<()> {
        let mut times: BTreeMap<u16, (u64, i64, u64)> = BTreeMap::new();
        for (rank, nonce) in names.iter().filter_map(|name| read_start(name)) {
            let name = start_file(rank, nonce);
            let text = text(self.root(), &name[..])?;
            let epoch = text
                .lines()
                .nth(1)
                .and_then(|line| line.strip_prefix("epoch "));
            // Who was answered without an epoch was answered by no conductor.
            let epoch = epoch.and_then(|epoch| epoch.parse().ok()).unwrap_or(0);
            let told = told(text.lines().next().unwrap_or_default());
            let stat = statat(self.root(), &name[..], AtFlags::SYMLINK_NOFOLLOW)?;
            let time = (epoch, stat.st_mtime, stat.st_mtime_nsec);
            let size = sizes.get(&(rank, nonce)).copied();
            let mut old = Some(nonce);
            if times.get(&rank).is_none_or(|before| *before < time) {
                times.insert(rank, time);
                let start = Start {
                    nonce,
                    size,
                    epoch,
                    told,
                };
                old = state
                    .answered
                    .insert(rank, start)
                    .map(|before| before.nonce);
            }
            if let Some(old) = old {
                remove_file(self.root(), &start_file(rank, old))?;
            }
            state.epoch = state.epoch.max(epoch);
            if let Told::Restore(number) = told {
                state.highest = state.highest.max(number);
            }
        }
        Ok(())
    }
}

fn number32(text: &str) -> Option<u32> {
    u32::try_from(number(text.as_bytes(), 10)?).ok()
}
