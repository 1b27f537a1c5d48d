//! The files of the protocol, in the folder of the job on this node.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{FlockOperation, flock};

use crate::error::Error;
use crate::rank::Rank;
use crate::words::{self, Answer, Request};

/// The mover cuts its sentences far below that.
const LONGEST_LINE: u64 = 4096;

/// In the file of a join that its process keeps locked.
const LOCKED: &[u8] = b"locked\n";

/// The folder of a job.
#[derive(Clone, Debug)]
pub(crate) struct Folder(PathBuf);

/// How a checkpoint ended, by the files.
pub(crate) enum End {
    Committed,
    Failed(String),
}

impl Folder {
    pub(crate) fn at(path: PathBuf) -> Folder {
        Folder(path)
    }

    /// That it is there: a wait in a folder that is gone would have no end.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match fs::metadata(&self.0) {
            Ok(_) => Ok(()),
            Err(error) => Err(failed("wait in", &self.0, error)),
        }
    }

    /// Makes the file by which a rank joins, and gives its nonce, and the file, which is locked as long as it is open: so gpuos_mover knows
    /// that the process has ended. Older ones of the rank are removed: a script that starts programs in a loop would leave one of each.
    pub(crate) fn join(&self, rank: Rank, any: bool) -> Result<(u64, File), Error> {
        let ranks = self.0.join("ranks");
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let mut nonce = u64::try_from(since.unwrap_or_default().as_nanos()).unwrap_or(1);
        let prefix = format!("{}.{}", rank.rank(), rank.size());
        let mut file = loop {
            let path = ranks.join(format!("{prefix}.{nonce}"));
            if any {
                // Before the join: what is said of it then is not missed.
                let says = ranks.join(any_name(rank, nonce));
                let made = fs::write(&says, "");
                made.map_err(|error| failed(Error::JOIN, &says, error))?;
            }
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(file) => break file,
                Err(error) if error.kind() == ErrorKind::AlreadyExists => nonce += 1,
                Err(error) => return Err(failed(Error::JOIN, &path, error)),
            }
        };
        // Where files cannot be locked nobody takes it for ended: it says nothing of a lock.
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            let _ = file.write_all(LOCKED);
        }
        for entry in fs::read_dir(&ranks).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let older = name.to_str().and_then(joined);
            if older.is_some_and(|(of, other)| of == rank.rank() && other < nonce) {
                let _ = fs::remove_file(entry.path());
            }
        }
        Ok((nonce, file))
    }

    /// Whether the file by which a rank joined is there: a later start of the rank removes it.
    pub(crate) fn is_joined(&self, rank: Rank, nonce: u64) -> bool {
        let name = format!("{}.{}.{nonce}", rank.rank(), rank.size());
        let there = self.0.join("ranks").join(name).try_exists();
        there.unwrap_or(true)
    }

    /// The answer to a rank that joined, once it is there.
    pub(crate) fn answer(&self, rank: Rank, nonce: u64) -> Result<Option<Answer>, Error> {
        let path = self.0.join(format!("start.{}.{nonce}", rank.rank()));
        let Some(line) = line(&path)? else {
            return Ok(None);
        };
        match words::answer(&line) {
            Some(answer) => Ok(Some(answer)),
            None => Err(Error::Unknown { path, line }),
        }
    }

    /// Says that a rank cannot load what it was given by the answer to this join, with a line for the user.
    pub(crate) fn refuse(&self, rank: Rank, nonce: u64, said: &str) -> Result<(), Error> {
        let ranks = self.0.join("ranks");
        let name = format!("refused.{}.{nonce}", rank.rank());
        let (path, unfinished) = (ranks.join(&name), ranks.join(format!(".{name}")));
        let line = said.lines().next().unwrap_or_default();
        let made = fs::write(&unfinished, format!("{line}\n"));
        let made = made.and_then(|()| fs::rename(&unfinished, &path));
        made.map_err(|error| failed("make", &path, error))
    }

    pub(crate) fn ask(&self, rank: Rank) -> Result<(), Error> {
        let path = self.0.join(format!("ranks/ask.{}", rank.rank()));
        let made = fs::write(&path, "");
        made.map_err(|error| failed("make", &path, error))
    }

    /// The folders of all ranks of a checkpoint.
    pub(crate) fn all(&self, number: u32) -> PathBuf {
        self.0.join(format!("restored.{number}"))
    }

    pub(crate) fn restored(&self, rank: Rank, nonce: u64) -> PathBuf {
        self.0.join(format!("restore.{}.{nonce}", rank.rank()))
    }

    pub(crate) fn request(&self) -> Option<Request> {
        words::request(&line(&self.0.join("request")).ok()??)
    }

    /// Where a rank writes its files, if that is there.
    pub(crate) fn files(&self, number: u32, rank: Rank) -> Option<PathBuf> {
        let name = format!("rank-{}-of-{}", rank.rank(), rank.size());
        let path = self.0.join(format!("{number}/files/{name}"));
        path.is_dir().then_some(path)
    }

    /// Says that the files of a rank are complete; `false`: the checkpoint is gone.
    pub(crate) fn ready(&self, number: u32, rank: Rank) -> Result<bool, Error> {
        let path = self.0.join(format!("{number}/ready.{}", rank.rank()));
        match OpenOptions::new().write(true).create_new(true).open(&path) {
            Ok(_) => Ok(true),
            Err(error) => match error.kind() {
                ErrorKind::AlreadyExists => Ok(true),
                ErrorKind::NotFound => Ok(false),
                _ => Err(failed("make", &path, error)),
            },
        }
    }

    /// The newest checkpoint of this run that exists.
    pub(crate) fn newest(&self) -> Option<u32> {
        words::number(&line(&self.0.join("commit")).ok()??)
    }

    /// How a checkpoint ended; `None`: it has not.
    pub(crate) fn end(&self, number: u32) -> Result<Option<End>, Error> {
        // Before the others: a newer one is asked for when they say what became of this one, if it was ever asked for on this node.
        let asked = self.request().map(|request| request.number);
        // In this order. If a newer one has failed, this one has ended before, and `commit` has it if it came to be.
        let failure = line(&self.0.join("failed"))?;
        let failure = failure.as_deref().and_then(words::failed);
        if let Some((_, why)) = failure.filter(|(failed, _)| *failed == number) {
            return Ok(Some(End::Failed(why.into())));
        }
        let newest = line(&self.0.join("commit"))?;
        let newest: Option<u32> = newest.as_deref().and_then(words::number);
        if newest.is_some_and(|newest| newest >= number) {
            return Ok(Some(End::Committed));
        }
        let newer = failure.filter(|(failed, _)| *failed > number);
        let newer = newer.map(|(newer, _)| format!("checkpoint {newer} after it"));
        let asked = asked.filter(|asked| *asked > number);
        let asked = asked.map(|asked| format!("checkpoint {asked} is asked for"));
        let why = newer.or(asked);
        Ok(why.map(|why| End::Failed(format!("it came to nothing, as {why}"))))
    }
}

/// The file by which a rank says that it can begin from the files of any number of ranks.
fn any_name(rank: Rank, nonce: u64) -> String {
    format!("any.{}.{nonce}", rank.rank())
}

/// Rank and nonce in the name by which a rank joins.
fn joined(name: &str) -> Option<(u16, u64)> {
    let mut parts = name.split('.');
    let rank = words::number(parts.next()?)?;
    let _size: u16 = words::number(parts.next()?)?;
    let nonce = words::number(parts.next()?)?;
    parts.next().is_none().then_some((rank, nonce))
}

/// The first line of a file, if it is there.
fn line(path: &Path) -> Result<Option<String>, Error> {
    let read = || -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        File::open(path)?
            .take(LONGEST_LINE)
            .read_to_end(&mut text)?;
        Ok(text)
    };
    match read() {
        Ok(text) => {
            let text = String::from_utf8_lossy(&text);
            Ok(Some(text.lines().next().unwrap_or_default().into()))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed("read", path, error)),
    }
}

fn failed(doing: &'static str, path: &Path, error: io::Error) -> Error {
    let path = path.into();
    Error::Files { doing, path, error }
}
