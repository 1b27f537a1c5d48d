//! What stands behind a `gpuos_ckpt *`: the client, what it was told, and why the last call failed.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gpuos_program::{Checkpoints, Error, Lost, Outcome, Rank, Reason, Request, Start};

/// `GPUOS_CKPT_NEW`.
pub(crate) const NEW: i32 = 0;
/// `GPUOS_CKPT_RESTORE`.
pub(crate) const RESTORE: i32 = 1;
/// `GPUOS_CKPT_PENDING`.
pub(crate) const PENDING: i32 = 0;
/// `GPUOS_CKPT_COMMITTED`.
pub(crate) const COMMITTED: i32 = 1;
/// `GPUOS_CKPT_BEFORE_LOST`.
pub(crate) const LOST: i32 = 1;
/// `GPUOS_CKPT_ERROR`.
pub(crate) const ERROR: i32 = -1;
/// `GPUOS_CKPT_FAILED`.
pub(crate) const FAILED: i32 = -2;
/// `GPUOS_CKPT_TIMEOUT`.
pub(crate) const TIMEOUT: i32 = -3;

/// Behind a `gpuos_ckpt *`. Calls of several threads wait for each other.
pub(crate) struct Handle(Mutex<State>);

struct State {
    /// Ranks that cannot be are an error of `join`, which every program looks at.
    client: Result<Checkpoints, String>,
    restored: Option<(u32, PathBuf)>,
    message: String,
}

impl Handle {
    /// For this rank; `None`: as the launcher's environment has it.
    pub(crate) fn open(rank: Option<(u64, u64)>) -> Handle {
        let client = match rank {
            None => Checkpoints::from_environment(),
            Some((rank, size)) => Rank::new(rank, size).map(Checkpoints::of),
        };
        Handle(Mutex::new(State {
            client: client.map_err(|error| error.to_string()),
            restored: None,
            message: String::new(),
        }))
    }

    pub(crate) fn available(&self) -> bool {
        let state = self.state();
        state.client.as_ref().is_ok_and(Checkpoints::available)
    }

    pub(crate) fn rank(&self) -> Option<Rank> {
        self.state().client.as_ref().ok().map(Checkpoints::rank)
    }

    pub(crate) fn any_ranks(&self) -> i32 {
        self.call(|client, _| {
            client.any_ranks();
            Ok(0)
        })
    }

    /// How many ranks have made what the program goes on from; 0: nothing is.
    pub(crate) fn restored_ranks(&self) -> i32 {
        self.call(|client, _| Ok(client.given_ranks().map_or(0, i32::from)))
    }

    pub(crate) fn join(&self, limit: Option<Duration>) -> i32 {
        self.call(|client, restored| {
            *restored = None;
            match client.join(limit)? {
                Start::New => Ok(NEW),
                Start::Restore { number, folder } => {
                    *restored = Some((number, folder));
                    Ok(RESTORE)
                }
                Start::Failed(why) => Err(Refused::new(FAILED, why)),
            }
        })
    }

    /// The checkpoint cannot be loaded.
    pub(crate) fn refuse_given(&self, said: &str) -> i32 {
        self.call(|client, restored| {
            client.refuse(said)?;
            *restored = None;
            Ok(0)
        })
    }

    pub(crate) fn ask(&self) -> i32 {
        self.done(false, |client| client.ask())
    }

    /// The checkpoint that was saved last and came to nothing.
    pub(crate) fn lost(&self, take: impl FnOnce(u32)) -> i32 {
        let mut guard = self.state();
        let state = &mut *guard;
        let Some(lost) = state.client.as_ref().ok().and_then(Checkpoints::lost) else {
            return 0;
        };
        state.message = before(&lost);
        take(lost.number);
        LOST
    }

    /// A call that has done what it is for, and tells by the way that the checkpoint before came to nothing; not of the one for the job's end, whose outcome
    /// is waited for.
    fn done(&self, ends: bool, what: impl FnOnce(&mut Checkpoints) -> Result<(), Error>) -> i32 {
        let code = self.call(|client, _| {
            what(client)?;
            Ok(0)
        });
        match code {
            0 if !ends => self.lost(|_| {}),
            code => code,
        }
    }

    /// The checkpoint that the program goes on from, and where this rank's files are.
    pub(crate) fn restored(&self) -> Option<(u32, PathBuf)> {
        self.state().restored.clone()
    }

    pub(crate) fn wanted(&self) -> Option<Request> {
        self.state().client.as_ref().ok()?.wanted()
    }

    /// Hands the folder for a checkpoint to `take`, which returns what the call does.
    pub(crate) fn folder(&self, number: u32, take: impl FnOnce(&Path) -> i32) -> i32 {
        let mut found = None;
        let code = self.call(|client, _| {
            found = Some(client.folder(number)?);
            Ok(0)
        });
        found.map_or(code, |folder| take(&folder))
    }

    pub(crate) fn ready(&self, number: u32) -> i32 {
        let request = self.wanted();
        let ends = request.is_some_and(|it| it.number == number && it.is_end());
        self.done(ends, |client| client.ready(number))
    }

    pub(crate) fn outcome(&self, number: u32) -> i32 {
        self.call(|client, _| code(client.outcome(number)?))
    }

    pub(crate) fn wait(&self, number: u32, limit: Option<Duration>) -> i32 {
        self.call(|client, _| match client.wait(number, limit)? {
            Outcome::Pending => Err(Refused::new(
                TIMEOUT,
                format!("checkpoint {number} had not ended within the time limit"),
            )),
            outcome => code(outcome),
        })
    }

    /// Why the last call that failed did.
    pub(crate) fn message(&self) -> String {
        self.state().message.clone()
    }

    /// A call failed outside the client: keeps why, and gives the code.
    pub(crate) fn refuse(&self, why: impl Into<String>) -> i32 {
        self.state().message = why.into();
        ERROR
    }

    fn call(
        &self,
        what: impl FnOnce(&mut Checkpoints, &mut Option<(u32, PathBuf)>) -> Result<i32, Refused>,
    ) -> i32 {
        let mut guard = self.state();
        let state = &mut *guard;
        let done = match &mut state.client {
            Ok(client) => what(client, &mut state.restored),
            Err(why) => Err(Refused::new(ERROR, why.clone())),
        };
        done.unwrap_or_else(|Refused { code, why }| {
            state.message = why;
            code
        })
    }

    /// A panic while it was locked leaves nothing half done that matters.
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `GPUOS_CKPT_INTERVAL` and so on.
pub(crate) fn reason(reason: Reason) -> i32 {
    match reason {
        Reason::Interval => 0,
        Reason::Asked => 1,
        Reason::End => 2,
    }
}

fn before(lost: &Lost) -> String {
    let Lost { number, why } = lost;
    format!("checkpoint {number}, which was saved before, came to nothing: {why}")
}

struct Refused {
    code: i32,
    why: String,
}

impl Refused {
    fn new(code: i32, why: impl Into<String>) -> Refused {
        let why = why.into();
        Refused { code, why }
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Refused {
        let code = match error {
            Error::Over { .. } => FAILED,
            Error::TimedOut(_) => TIMEOUT,
            _ => ERROR,
        };
        Refused::new(code, error.to_string())
    }
}

fn code(outcome: Outcome) -> Result<i32, Refused> {
    match outcome {
        Outcome::Pending => Ok(PENDING),
        Outcome::Committed => Ok(COMMITTED),
        Outcome::Failed(why) => Err(Refused::new(FAILED, why)),
    }
}
