//! Who has joined: what lies in the folder in which ranks do so, which is the user's.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use gpuos_mover::program::{Join, Refused};

use super::at::{self, Walk};
use super::job::MOST_NAMES;
use super::names::{join_name, read_any, read_ask, read_join};

/// A folder that has not changed for so long has not changed unseen: the kernel stamps by a clock that ticks each 10 ms or faster.
const SETTLED: Duration = Duration::from_secs(1);

/// What was found in `ranks`, and when the folder was changed last before that.
pub(super) struct Joined {
    pub(super) changed: Option<(i64, u64)>,
    pub(super) newest: Vec<Join>,
    pub(super) older: Vec<Join>,
    /// Rank and nonce of those that can begin from the files of any number of ranks, and whether they need all in any case.
    pub(super) any: BTreeMap<(u16, u64), bool>,
    /// Who has refused what he was given.
    pub(super) refused: Option<Refused>,
    /// Who asks for a checkpoint.
    pub(super) asks: BTreeSet<u16>,
}

/// Whether a folder that was changed then has not changed unseen since.
pub(super) fn is_settled((seconds, nanos): (i64, u64)) -> bool {
    let seconds = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    let changed = UNIX_EPOCH.checked_add(seconds.saturating_add(Duration::from_nanos(nanos)));
    let since = changed.map(|changed| SystemTime::now().duration_since(changed));
    since.is_some_and(|since| since.is_ok_and(|since| since >= SETTLED))
}

/// Looks at all names there. Other ones are passed over.
///
/// # Errors
/// The folder cannot be read.
pub(super) fn read_joins(ranks: &OwnedFd) -> io::Result<Joined> {
    let mut of_rank: BTreeMap<u16, Vec<Join>> = BTreeMap::new();
    let mut asks = BTreeSet::new();
    let mut any = BTreeMap::new();
    let mut looked = 0;
    at::each(ranks, |name, told| {
        looked += 1;
        let ask = read_ask(name.to_bytes());
        asks.extend(ask.filter(|_| at::is_file(ranks, name, told)));
        let join = read_join(name.to_bytes());
        if let Some(join) = join.filter(|_| at::is_file(ranks, name, told)) {
            of_rank.entry(join.rank).or_default().push(join);
        }
        let says = read_any(name.to_bytes());
        any.extend(says.filter(|_| at::is_file(ranks, name, told)));
        match looked < MOST_NAMES {
            true => Walk::On,
            false => Walk::Stop,
        }
    })?;
    let (mut newest, mut older) = (Vec::new(), Vec::new());
    for mut joins in of_rank.into_values() {
        // A rank that has joined once, as most have, need not be looked at.
        if joins.len() > 1 {
            joins.sort_by_cached_key(|join| (time(ranks, join), join.nonce, join.size));
        }
        newest.extend(joins.pop());
        older.extend(joins);
    }
    Ok(Joined {
        changed: None,
        newest,
        older,
        any,
        refused: None,
        asks,
    })
}

/// When a join was made; one that is gone is the oldest.
fn time(ranks: &OwnedFd, join: &Join) -> Option<(i64, u64)> {
    let stat = at::look(ranks, &join_name(join)[..]).ok()?;
    Some((stat.st_mtime, stat.st_mtime_nsec))
}
