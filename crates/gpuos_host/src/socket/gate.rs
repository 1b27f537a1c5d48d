//! How many connections there may be, and how often users may come and ask.
//!
//! Root has places of its own, and a socket of its own besides ([`gpuos_core::wire::root_socket`]): nothing that users do keeps
//! reports of slurmstepd out. Among users the places are shared out: when all are taken, whoever has the most gives one
//! up to a user who has fewer.

use std::collections::BTreeMap;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::bucket::{Bucket, Rate};

/// Limits of connections at one time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Of all users but root together.
    pub users: usize,
    /// Of one user other than root.
    pub one_user: usize,
    /// Of root: kept free of what users do.
    pub root: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            users: 64,
            one_user: 8,
            root: 64,
        }
    }
}

/// Watchers of one user other than root.
const WATCHERS: usize = 4;
/// New connections of one user.
const CONNECTS: Rate = Rate {
    each_second: 5.0,
    at_once: 20.0,
};
/// Lines of one user, requests or not.
const LINES: Rate = Rate {
    each_second: 10.0,
    at_once: 40.0,
};
/// Users that are remembered; no node has more that come at the same time.
const MOST: usize = 4096;

/// Why a connection is not let in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Full {
    /// No place is free.
    Places,
    /// It comes too soon after others of its user.
    Often,
}

impl Full {
    pub(super) fn sentence(self) -> &'static str {
        match self {
            Full::Places => "too many connections of this user: close some",
            Full::Often => "too many connections of this user in a short time: wait a second",
        }
    }
}

/// Counts connections by user.
#[derive(Clone, Debug)]
pub(super) struct Gate {
    state: Arc<Mutex<State>>,
    /// The daemon's own user, who counts as root.
    own: u32,
}

#[derive(Default, Debug)]
struct State {
    users: BTreeMap<u32, User>,
    next: u64,
}

#[derive(Debug)]
struct User {
    places: Vec<Place>,
    connects: Bucket,
    lines: Bucket,
}

#[derive(Debug)]
struct Place {
    id: u64,
    /// By which the connection is ended when its place goes to somebody else.
    stream: Option<UnixStream>,
    watches: bool,
}

impl User {
    fn new(now: Instant) -> User {
        User {
            places: Vec::new(),
            connects: Bucket::full(CONNECTS, now),
            lines: Bucket::full(LINES, now),
        }
    }
}

/// A connection that was let in; it is out when this is dropped.
#[derive(Debug)]
pub(super) struct Pass {
    gate: Gate,
    uid: u32,
    id: u64,
}

impl Gate {
    pub(super) fn new(own: u32) -> Gate {
        Gate {
            state: Arc::default(),
            own,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_root(&self, uid: u32) -> bool {
        uid == 0 || uid == self.own
    }

    /// Lets a connection in, or says why not.
    pub(super) fn enter(
        &self,
        uid: u32,
        limits: Limits,
        stream: Option<&UnixStream>,
        now: Instant,
    ) -> Result<Pass, Full> {
        let mut state = self.lock();
        let root = self.is_root(uid);
        state.forget(now);
        if state.users.len() >= MOST && !state.users.contains_key(&uid) && !root {
            return Err(Full::Places);
        }
        let user = state.users.entry(uid).or_insert_with(|| User::new(now));
        let own = user.places.len();
        if !root && !user.connects.take(now) {
            return Err(Full::Often);
        }
        let most = if root { limits.root } else { limits.one_user };
        if own >= most {
            return Err(Full::Places);
        }
        if !root {
            let others = state.users.iter().filter(|(uid, _)| !self.is_root(**uid));
            let taken: usize = others.map(|(_, user)| user.places.len()).sum();
            if taken >= limits.users && !state.make_room(own, |uid| self.is_root(uid)) {
                return Err(Full::Places);
            }
        }
        state.next += 1;
        let id = state.next;
        let place = Place {
            id,
            stream: stream.and_then(|stream| stream.try_clone().ok()),
            watches: false,
        };
        if let Some(user) = state.users.get_mut(&uid) {
            user.places.push(place);
        }
        Ok(Pass {
            gate: self.clone(),
            uid,
            id,
        })
    }
}

impl State {
    /// Users without a connection whose rates have recovered are as good as new.
    fn forget(&mut self, now: Instant) {
        if self.users.len() >= MOST / 2 {
            self.users.retain(|_, user| {
                !user.places.is_empty() || !user.connects.is_full(now) || !user.lines.is_full(now)
            });
        }
    }

    /// Ends the oldest connection of the user who has the most, if those are more than the one who comes would have then.
    fn make_room(&mut self, own: usize, is_root: impl Fn(u32) -> bool) -> bool {
        let users = self.users.iter_mut().filter(|(uid, _)| !is_root(**uid));
        let Some((_, most)) = users.max_by_key(|(_, user)| user.places.len()) else {
            return false;
        };
        if most.places.len() <= own + 1 {
            return false;
        }
        if let Some(stream) = most.places.remove(0).stream {
            let _ = stream.shutdown(Shutdown::Both);
        }
        true
    }
}

impl Pass {
    /// A line came: how long it has to wait until it is looked at.
    pub(super) fn line(&self, now: Instant) -> Duration {
        if self.gate.is_root(self.uid) {
            return Duration::ZERO;
        }
        let mut state = self.gate.lock();
        let user = state.users.get_mut(&self.uid);
        user.map_or(Duration::ZERO, |user| user.lines.owe(now))
    }

    /// The connection wants to watch; whether it may.
    pub(super) fn watch(&self) -> bool {
        let mut state = self.gate.lock();
        let Some(user) = state.users.get_mut(&self.uid) else {
            return true;
        };
        let watching = user.places.iter().filter(|place| place.watches).count();
        if watching >= WATCHERS && !self.gate.is_root(self.uid) {
            return false;
        }
        let mut own = user.places.iter_mut().filter(|place| place.id == self.id);
        own.by_ref().for_each(|place| place.watches = true);
        true
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut state = self.gate.lock();
        if let Some(user) = state.users.get_mut(&self.uid) {
            user.places.retain(|place| place.id != self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        users: 32,
        one_user: 8,
        root: 4,
    };

    /// Many connections of a user, as slowly as he may.
    fn fill(gate: &Gate, uid: u32, count: usize, now: Instant) -> Vec<Pass> {
        let enter = |_| gate.enter(uid, LIMITS, None, now).ok();
        (0..count).filter_map(enter).collect()
    }

    #[test]
    fn four_accounts_with_eight_connections_lock_nobody_out() {
        let (gate, now) = (Gate::new(0), Instant::now());
        let mut held: Vec<Pass> = Vec::new();
        for uid in 1001..=1004 {
            let own = fill(&gate, uid, 9, now);
            assert_eq!(own.len(), 8, "{uid}");
            held.extend(own);
        }
        // All places are taken, and still each of many others gets one, and a second one.
        let others: Vec<Pass> = (2001..2013)
            .flat_map(|uid| fill(&gate, uid, 2, now))
            .collect();
        assert_eq!(others.len(), 24);
        // Root is not counted with them.
        assert_eq!(fill(&gate, 0, 9, now).len(), LIMITS.root);
        let state = gate.lock();
        let taken = |uid| state.users[&uid].places.len();
        assert!((1001..=1004).all(|uid| taken(uid) == 2), "{state:?}");
        drop(state);
        drop((held, others));
        assert!(
            gate.lock()
                .users
                .values()
                .all(|user| user.places.is_empty())
        );
    }

    #[test]
    fn no_user_takes_a_place_from_one_who_has_no_more_than_he() {
        let (gate, now) = (Gate::new(0), Instant::now());
        let _held: Vec<Pass> = (0..32)
            .flat_map(|n| fill(&gate, 1001 + n, 1, now))
            .collect();
        assert_eq!(
            gate.enter(5000, LIMITS, None, now).err(),
            Some(Full::Places)
        );
    }

    #[test]
    fn who_comes_too_often_waits_and_nobody_else() {
        let (gate, now) = (Gate::new(0), Instant::now());
        let got = (0..1000)
            .filter(|_| gate.enter(1001, LIMITS, None, now).is_ok())
            .count();
        assert_eq!(got, CONNECTS.at_once as usize);
        assert_eq!(gate.enter(1001, LIMITS, None, now).err(), Some(Full::Often));
        assert!(gate.enter(1002, LIMITS, None, now).is_ok());
        assert!((0..1000).all(|_| gate.enter(0, LIMITS, None, now).is_ok()));
        let later = now + Duration::from_secs(1);
        assert!(gate.enter(1001, LIMITS, None, later).is_ok());
    }

    #[test]
    fn lines_of_users_wait_and_those_of_root_do_not() {
        let (gate, now) = (Gate::new(77), Instant::now());
        for (uid, waits) in [(0, false), (77, false), (1001, true)] {
            let pass = gate.enter(uid, LIMITS, None, now).unwrap();
            let longest = (0..1000).map(|_| pass.line(now)).max().unwrap();
            assert_eq!(
                longest > Duration::from_secs(60),
                waits,
                "{uid}: {longest:?}"
            );
        }
    }

    #[test]
    fn watchers_of_a_user_are_few() {
        let (gate, now) = (Gate::new(0), Instant::now());
        let own = fill(&gate, 1001, 8, now);
        let watching = own.iter().filter(|pass| pass.watch()).count();
        assert_eq!(watching, WATCHERS);
        drop(own);
        assert!(fill(&gate, 1001, 1, now)[0].watch());
    }

    #[test]
    fn users_are_forgotten_when_they_have_gone() {
        let (gate, now) = (Gate::new(0), Instant::now());
        for uid in 1..10_000 {
            let later = now + Duration::from_millis(u64::from(uid) * 10);
            let _ = gate.enter(uid, LIMITS, None, later);
            assert!(gate.lock().users.len() <= MOST);
        }
        let late = now + Duration::from_secs(200);
        assert!(gate.enter(20_000, LIMITS, None, late).is_ok());
    }
}
