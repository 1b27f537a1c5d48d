//! The client: joins, looks for requests, saves, and waits for the outcome.

use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::folder::{End, Folder};
use crate::past::{Lost, Past};
use crate::rank::Rank;
use crate::words::{Answer, Request};

/// Variable that names the folder of the job on this node.
const VARIABLE: &str = "GPUOS_CHECKPOINT_DIR";

/// How long a rank waits for its folder of a checkpoint that another rank has seen: nodes get a request at slightly different moments.
const FOLDER_LIMIT: Duration = Duration::from_secs(60);

/// How often a wait is told on standard error.
const TOLD_EVERY: Duration = Duration::from_secs(60);

/// Between two looks of a wait: from the first to the second, growing.
const LOOKS: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(200)];

/// How a program starts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Start {
    /// There is no checkpoint: it begins from the start.
    New,
    /// It goes on from a checkpoint.
    Restore {
        /// The checkpoint.
        number: u32,
        /// This rank's files, as it has saved them; a copy that it may change. After [`any_ranks`](Checkpoints::any_ranks), where
        /// [`given_ranks`](Checkpoints::given_ranks) is another number than this program has ranks: the folder with those of all of them, named
        /// `rank-R-of-S`, which others read, too.
        folder: PathBuf,
    },
    /// There are checkpoints, and they cannot be loaded as things are: a sentence. The program should end with an error.
    Failed(String),
}

/// What has become of a checkpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It is being made.
    Pending,
    /// It, or a newer one, exists on all nodes.
    Committed,
    /// It does not exist: a sentence. The one before is as it was.
    Failed(String),
}

/// The checkpoints of this job, as one rank of its program makes them.
///
/// In a job without checkpoints [`join`](Checkpoints::join) says [`Start::New`] and none is ever wanted.
#[derive(Debug)]
pub struct Checkpoints {
    folder: Option<Folder>,
    rank: Rank,
    /// By which it has joined, and was answered.
    nonce: Option<u64>,
    /// The file of the last join, locked as long as this process takes part.
    held: Option<File>,
    /// Whether it was told that another process has joined in its place.
    told: AtomicBool,
    /// The join by which it was given a checkpoint.
    given: Option<u64>,
    /// It can begin from the files of any number of ranks.
    any: bool,
    /// How many ranks have made what it was given.
    of: u16,
    /// The newest checkpoint for which nothing is left to do here.
    done: u32,
    past: Past,
}

impl Checkpoints {
    /// Folder and rank from the environment: `GPUOS_CHECKPOINT_DIR`, and what [`Rank::from_environment`] reads.
    ///
    /// # Errors
    ///
    /// [`Error::Rank`].
    pub fn from_environment() -> Result<Checkpoints, Error> {
        Ok(Checkpoints::of(Rank::from_environment()?))
    }

    /// The folder from the environment, for this rank.
    pub fn of(rank: Rank) -> Checkpoints {
        let path = std::env::var_os(VARIABLE).filter(|path| !path.is_empty());
        Checkpoints::at(path.map(PathBuf::from), rank)
    }

    /// This folder of a job, for this rank; `None`: a job without checkpoints.
    pub fn at(folder: Option<PathBuf>, rank: Rank) -> Checkpoints {
        Checkpoints {
            folder: folder.map(Folder::at),
            rank,
            nonce: None,
            held: None,
            told: AtomicBool::new(false),
            given: None,
            any: false,
            of: 0,
            done: 0,
            past: Past::default(),
        }
    }

    /// Whether the job makes checkpoints at all.
    pub fn available(&self) -> bool {
        self.folder.is_some()
    }

    /// Which rank this is.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// Says, before [`join`](Checkpoints::join), that the program can begin from a checkpoint of any number of ranks: every rank then reads what it needs of
    /// the files of all of them. All ranks have to say so. With as many ranks as have made it each is given its own files alone, as always.
    pub fn any_ranks(&mut self) {
        self.any = true;
    }

    /// How many ranks have made the checkpoint that [`join`](Checkpoints::join) has given. `None`: it has given none.
    pub fn given_ranks(&self) -> Option<u16> {
        self.given.map(|_| self.of)
    }

    /// Joins, and waits for the answer, at most for `limit`. All ranks of the program have to join before any is answered. Rank 0 says on standard
    /// error from which checkpoint the program goes on.
    ///
    /// Without a limit it waits for as long as it takes, and says so on standard error every 60 s. A program that begins again
    /// within the same process joins again.
    ///
    /// # Errors
    ///
    /// [`Error::Files`]: the folder is not there, for example inside a container; [`Error::TimedOut`]; [`Error::Unknown`].
    pub fn join(&mut self, limit: Option<Duration>) -> Result<Start, Error> {
        let Some(folder) = self.folder.clone() else {
            return Ok(Start::New);
        };
        self.nonce = None;
        self.given = None;
        let rank = self.rank;
        let (nonce, held) = folder.join(rank, self.any)?;
        self.held = Some(held);
        let waited_for = format!("gpuos_mover's answer to {rank}");
        let answer = wait(&folder, limit, &waited_for, || folder.answer(rank, nonce))?;
        let start = match answer.ok_or(Error::TimedOut(waited_for))? {
            Answer::New => Start::New,
            Answer::Restore(number) => {
                (self.given, self.of) = (Some(nonce), rank.size());
                Start::Restore {
                    number,
                    folder: folder.restored(rank, nonce),
                }
            }
            Answer::All(number, ranks) => {
                (self.given, self.of) = (Some(nonce), ranks);
                Start::Restore {
                    number,
                    folder: folder.all(number),
                }
            }
            Answer::Failed(why) => return Ok(Start::Failed(why)),
        };
        let from = match &start {
            Start::Restore { number, .. } => Some(*number),
            _ => None,
        };
        if let (Some(number), 0) = (from, rank.rank()) {
            eprintln!("gpuos: the program goes on from checkpoint {number}");
        }
        self.past.begin(from);
        self.nonce = Some(nonce);
        Ok(start)
    }

    /// Says that the checkpoint which [`join`](Checkpoints::join) has given cannot be loaded, with a line for the user, which may be empty. It is
    /// passed over from now on, in later runs of the job, too. Then the program joins again and is given the one before.
    ///
    /// One rank's refusal counts for all. Those that could load it refuse it all the same before they join again, so that gpuos_mover
    /// knows of it whichever rank's node it looks at first.
    ///
    /// # Errors
    ///
    /// [`Error::NothingGiven`]; [`Error::Files`].
    pub fn refuse(&mut self, said: &str) -> Result<(), Error> {
        let (Some(folder), Some(nonce)) = (&self.folder, self.given) else {
            return Err(Error::NothingGiven);
        };
        folder.refuse(self.rank, nonce, said)?;
        self.nonce = None;
        self.given = None;
        Ok(())
    }

    /// Asks for a checkpoint, as soon as all ranks can: [`Checkpoints::wanted`] shows it then, as every other. The site's `least-seconds` is the
    /// least time between two that a program asks for; what comes sooner waits. One rank asks, and nothing is done in a job without checkpoints, or in
    /// one that has not joined. [`lost`](Checkpoints::lost) says then what became of the one before.
    ///
    /// # Errors
    ///
    /// [`Error::Files`].
    pub fn ask(&self) -> Result<(), Error> {
        match (&self.folder, self.nonce) {
            (Some(folder), Some(_)) => {
                self.past.look(folder, self.rank);
                folder.ask(self.rank)
            }
            _ => Ok(()),
        }
    }

    /// The checkpoint that this rank has saved last, if it came to nothing, as [`wanted`](Checkpoints::wanted), [`ask`](Checkpoints::ask) or
    /// [`ready`](Checkpoints::ready) has found last. `None`: it, or a newer one, exists, none was saved in this run, or it is not known yet.
    pub fn lost(&self) -> Option<Lost> {
        self.past.lost()
    }

    /// The checkpoint that is wanted now and that this rank has not saved yet. One look for a file that mostly is not there: cheap
    /// enough for each iteration.
    ///
    /// In a program of several ranks one rank looks and tells the others the number, so that all save the same state.
    ///
    /// None is wanted of a process in whose place another one has joined, which standard error says: a later start of the program, or a second
    /// program of the job. Both would write into one folder.
    pub fn wanted(&self) -> Option<Request> {
        let folder = self.folder.as_ref().filter(|_| self.nonce.is_some())?;
        self.past.look(folder, self.rank);
        let request = folder.request()?;
        if request.number <= self.done {
            return None;
        }
        let replaced = self.replaced(folder);
        if replaced && !self.told.swap(true, Ordering::Relaxed) {
            eprintln!(
                "gpuos: {}, so no checkpoint is made here",
                self.replacement()
            );
        }
        (!replaced).then_some(request)
    }

    fn replaced(&self, folder: &Folder) -> bool {
        self.nonce
            .is_some_and(|nonce| !folder.is_joined(self.rank, nonce))
    }

    fn replacement(&self) -> String {
        format!(
            "another process of this job has joined as {} after this one: a job makes checkpoints of one program at a time",
            self.rank
        )
    }

    /// The folder for this rank's files of a checkpoint. Where another rank has seen the request it can take a moment until the folder is here:
    /// it is waited for, 60 s at most.
    ///
    /// # Errors
    ///
    /// As [`folder_within`](Checkpoints::folder_within).
    pub fn folder(&mut self, number: u32) -> Result<PathBuf, Error> {
        self.folder_within(number, FOLDER_LIMIT)
    }

    /// The same, with another limit.
    ///
    /// # Errors
    ///
    /// [`Error::Over`]: the checkpoint was given up, and the program goes on; [`Error::TimedOut`]: the same, and this checkpoint is not wanted of this rank
    /// again, as each look would wait as long; [`Error::NoCheckpoints`], [`Error::Files`].
    pub fn folder_within(&mut self, number: u32, limit: Duration) -> Result<PathBuf, Error> {
        let folder = self.folder.clone().ok_or(Error::NoCheckpoints)?;
        if self.replaced(&folder) {
            return Err(self.over(number, End::Failed(self.replacement())));
        }
        let rank = self.rank;
        let waited_for = format!("the folder for checkpoint {number} of {rank}");
        let look = || {
            if let Some(path) = folder.files(number, rank) {
                return Ok(Some(Ok(path)));
            }
            Ok(folder.end(number)?.map(Err))
        };
        match wait(&folder, Some(limit), &waited_for, look)? {
            Some(Ok(path)) => Ok(path),
            Some(Err(end)) => Err(self.over(number, end)),
            None => {
                self.pass_over(number);
                Err(Error::TimedOut(waited_for))
            }
        }
    }

    /// This rank does not save this checkpoint, and is not asked for it again: another rank of the program cannot.
    pub fn pass_over(&mut self, number: u32) {
        self.done = self.done.max(number);
    }

    /// Says that this rank's files of a checkpoint are complete. From then on it leaves them alone; the mover reads, syncs and removes them.
    ///
    /// # Errors
    ///
    /// [`Error::Over`]: the checkpoint was given up, and the program goes on; [`Error::NoCheckpoints`], [`Error::Files`].
    pub fn ready(&mut self, number: u32) -> Result<(), Error> {
        let folder = self.folder.clone().ok_or(Error::NoCheckpoints)?;
        if self.replaced(&folder) {
            return Err(self.over(number, End::Failed(self.replacement())));
        }
        if !folder.ready(number, self.rank)? {
            let end = folder.end(number)?;
            let unknown = || End::Failed("its folder is gone".into());
            return Err(self.over(number, end.unwrap_or_else(unknown)));
        }
        self.pass_over(number);
        self.past.look(&folder, self.rank);
        self.past.saved(number);
        Ok(())
    }

    /// What has become of a checkpoint. In a job without checkpoints: failed.
    ///
    /// # Errors
    ///
    /// [`Error::Files`].
    pub fn outcome(&self, number: u32) -> Result<Outcome, Error> {
        let Some(folder) = &self.folder else {
            return Ok(Outcome::Failed(Error::NoCheckpoints.to_string()));
        };
        Ok(match folder.end(number)? {
            None => Outcome::Pending,
            Some(End::Committed) => Outcome::Committed,
            Some(End::Failed(why)) => Outcome::Failed(why),
        })
    }

    /// Waits until a checkpoint has ended, at most for `limit`; [`Outcome::Pending`]: the limit was over first. Programs need not wait, but for
    /// one that is the last ([`Request::is_end`]).
    ///
    /// # Errors
    ///
    /// [`Error::Files`]: the folder of the job is gone.
    pub fn wait(&self, number: u32, limit: Option<Duration>) -> Result<Outcome, Error> {
        let Some(folder) = &self.folder else {
            return self.outcome(number);
        };
        let waited_for = format!("the end of checkpoint {number}");
        let ended = wait(folder, limit, &waited_for, || {
            let outcome = self.outcome(number)?;
            Ok(Some(outcome).filter(|outcome| *outcome != Outcome::Pending))
        })?;
        match &ended {
            Some(Outcome::Committed) => self.past.told(number, None),
            Some(Outcome::Failed(why)) => self.past.told(number, Some(why)),
            Some(Outcome::Pending) | None => {}
        }
        Ok(ended.unwrap_or(Outcome::Pending))
    }

    /// The error of a checkpoint that has ended without this rank.
    fn over(&mut self, number: u32, end: End) -> Error {
        self.pass_over(number);
        let why = match end {
            End::Committed => "a newer one exists".into(),
            End::Failed(why) => why,
        };
        Error::Over { number, why }
    }
}

/// Looks until there is something, at most for `limit`.
fn wait<T>(
    folder: &Folder,
    limit: Option<Duration>,
    waited_for: &str,
    mut look: impl FnMut() -> Result<Option<T>, Error>,
) -> Result<Option<T>, Error> {
    let begun = Instant::now();
    let mut told = TOLD_EVERY;
    let [mut pause, longest] = LOOKS;
    loop {
        if let Some(found) = look()? {
            return Ok(Some(found));
        }
        folder.check()?;
        let waited = begun.elapsed();
        let left = limit.map_or(longest, |limit| limit.saturating_sub(waited));
        if left.is_zero() {
            return Ok(None);
        }
        if waited >= told {
            told = waited + TOLD_EVERY;
            eprintln!(
                "gpuos: still waiting for {waited_for}, for {} s",
                waited.as_secs()
            );
        }
        thread::sleep(pause.min(left));
        pause = (pause * 2).min(longest);
    }
}
