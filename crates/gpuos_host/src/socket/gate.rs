//! How many connections there may be, and how often users may come and ask.
//!
//! Root has places of its own, and a socket of its own besides ([`gpuos_core::wire::root_socket`]): nothing that users do keeps
//! reports of slurmstepd out. Among users the places are shared out ([`super::shares`]). What a user has by need is his own: it takes up
//! nobody's place. The rest they have in common: when it is taken up, whoever is above his share gives one up, as he is whose job has ended,
//! and where nobody is, whoever has the most of it, to a user who has fewer.

use std::collections::BTreeMap;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::bucket::{Bucket, Rate};
use super::shares::{Limits, Need, Shares};

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
            Full::Places => {
                "too many connections of this user: close some; GPUs of his running jobs on this node give him more"
            }
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
    stream: Option<Arc<UnixStream>>,
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
        (limits, need): (Limits, &Need),
        stream: Option<&Arc<UnixStream>>,
        now: Instant,
    ) -> Result<Pass, Full> {
        let root = self.is_root(uid);
        let shares = Shares::new(limits, need, |uid| self.is_root(uid));
        let mut state = self.lock();
        state.forget(now);
        if state.users.len() >= MOST && !state.users.contains_key(&uid) && !root {
            return Err(Full::Places);
        }
        let user = state.users.entry(uid).or_insert_with(|| User::new(now));
        let own = user.places.len();
        if !root && !user.connects.take(now) {
            return Err(Full::Often);
        }
        let most = if root { limits.root } else { shares.of(uid) };
        if own >= most {
            return Err(Full::Places);
        }
        if !root && !state.has_capacity(uid, &shares, |uid| self.is_root(uid)) {
            return Err(Full::Places);
        }
        state.next += 1;
        let id = state.next;
        let place = Place {
            id,
            stream: stream.cloned(),
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

    /// Whether there is a place for one more of a user below his share, or one that somebody else has to give up.
    fn has_capacity(&mut self, uid: u32, shares: &Shares, is_root: impl Fn(u32) -> bool) -> bool {
        let users = self.users.iter().filter(|(uid, _)| !is_root(**uid));
        let (mut all, mut common) = (0, 0);
        for (uid, user) in users {
            all += user.places.len();
            common += shares.in_common(*uid, user.places.len());
        }
        let own = self.users.get(&uid).map_or(0, |user| user.places.len());
        let by_need = shares.by_need(uid);
        if own < by_need {
            // All places are taken only where jobs have ended: he gets in as one without need does.
            return all < shares.all() || self.evict_connection(own, shares, is_root);
        }
        common < shares.common() || self.evict_connection(own - by_need, shares, is_root)
    }

    /// Ends the oldest connection of the user who is most above his share. Where nobody is: of the one who has the most that he does not
    /// have by need, if those are more than the one who comes would have then.
    fn evict_connection(
        &mut self,
        own: usize,
        shares: &Shares,
        is_root: impl Fn(u32) -> bool,
    ) -> bool {
        let users = self.users.iter_mut().filter(|(uid, _)| !is_root(**uid));
        // Who has most of what is in common is most above his share as well.
        let most = users
            .map(|(uid, user)| (shares.in_common(*uid, user.places.len()), user))
            .max_by_key(|(held, _)| *held);
        let Some((held, most)) = most else {
            return false;
        };
        if held <= shares.of_each() && held <= own + 1 {
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
        user.map_or(Duration::ZERO, |user| user.lines.take_in_advance(now))
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
    use proptest::prelude::*;

    use super::*;

    const LIMITS: Limits = Limits {
        users: 32,
        one_user: 8,
        each_gpu: 4,
        one_at_most: 24,
        for_gpus: 60,
        root: 4,
    };

    /// Nobody has a GPU.
    static NOBODY: Need = Need::new();

    /// As many connections of a user as he gets, as slowly as he has to.
    fn fill_by(gate: &Gate, uid: u32, need: &Need, now: &mut Instant) -> Vec<Pass> {
        let mut enter = || {
            *now += Duration::from_secs(1);
            gate.enter(uid, (LIMITS, need), None, *now).ok()
        };
        std::iter::from_fn(&mut enter).take(100).collect()
    }

    fn taken(gate: &Gate, uid: u32) -> usize {
        let state = gate.lock();
        state.users.get(&uid).map_or(0, |user| user.places.len())
    }

    #[test]
    fn gpus_give_a_user_more_places_and_others_no_fewer() {
        let (gate, mut now) = (Gate::new(0), Instant::now());
        let need: Need = [(1001, 3), (0, 8)].into();
        let mut held = fill_by(&gate, 1001, &need, &mut now);
        assert_eq!(held.len(), 8 + 3 * 4);
        // Four others fill all that users have in common, where he has eight as each of them.
        for uid in 2001..=2004 {
            let own = fill_by(&gate, uid, &need, &mut now);
            assert!(own.len() >= 32 / 5, "{uid}: {}", own.len());
            held.extend(own);
        }
        let left = (2001..=2004).map(|uid| taken(&gate, uid));
        assert_eq!(left.sum::<usize>() + taken(&gate, 1001), 32 + 3 * 4);
        // Nobody takes from him what he has by need.
        for uid in 3001..=3060 {
            held.extend(fill_by(&gate, uid, &need, &mut now));
        }
        assert!(taken(&gate, 1001) >= 12, "{}", taken(&gate, 1001));
        // With all of that taken he gets what he has by need, and costs nobody a place.
        let others =
            |gate: &Gate| -> Vec<usize> { (2001..=3060).map(|uid| taken(gate, uid)).collect() };
        held.retain(|pass| pass.uid != 1001);
        held.extend((3001..=3060).flat_map(|uid| fill_by(&gate, uid, &need, &mut now)));
        let before = others(&gate);
        let back = (0..12).filter_map(|_| {
            now += Duration::from_secs(1);
            gate.enter(1001, (LIMITS, &need), None, now).ok()
        });
        held.extend(back);
        assert_eq!(taken(&gate, 1001), 12);
        assert_eq!(others(&gate), before);
    }

    #[test]
    fn what_a_job_gave_goes_first_once_it_has_ended() {
        let (gate, mut now) = (Gate::new(0), Instant::now());
        let need: Need = [(1001, 4)].into();
        let _held = fill_by(&gate, 1001, &need, &mut now);
        assert_eq!(taken(&gate, 1001), 24);
        let mut others = fill_by(&gate, 1002, &need, &mut now);
        // The job has ended: nothing is cut, and nothing comes in.
        let gone = fill_by(&gate, 1001, &NOBODY, &mut now);
        assert!(gone.is_empty() && taken(&gate, 1001) == 24);
        // Who comes now takes his place, and not that of the one who has as many as he may.
        for uid in 2001..=2002 {
            others.extend(fill_by(&gate, uid, &NOBODY, &mut now));
        }
        assert_eq!(taken(&gate, 1002), 8);
        assert_eq!(taken(&gate, 1001), 24 - 16);
        assert_eq!(taken(&gate, 2001) + taken(&gate, 2002), 16);
    }

    /// One thing that happens.
    #[derive(Clone, Debug)]
    enum Op {
        /// A connection of this user comes.
        Enter(u32),
        /// One of his goes.
        Leave(u32, prop::sample::Index),
        /// His running jobs have so many GPUs from now on.
        Need(u32, usize),
    }

    fn ops() -> impl Strategy<Value = Vec<Op>> {
        // Root is 0, and as many others as need places more than there are.
        let uid = 0..12u32;
        let op = prop_oneof![
            12 => uid.clone().prop_map(Op::Enter),
            2 => (uid.clone(), any::<prop::sample::Index>()).prop_map(|(uid, at)| Op::Leave(uid, at)),
            1 => (uid, 0..7usize).prop_map(|(uid, gpus)| Op::Need(uid, gpus)),
        ];
        prop::collection::vec(op, 1..400)
    }

    proptest! {
        #[test]
        fn places_are_shared_out_by_need(ops in ops()) {
            let (gate, mut now, mut need) = (Gate::new(0), Instant::now(), Need::new());
            let mut passes: Vec<Pass> = Vec::new();
            let mut largest = 0;
            for op in ops {
                now += Duration::from_secs(1);
                let uid = match op {
                    Op::Need(uid, gpus) => {
                        need.insert(uid, gpus);
                        continue;
                    }
                    Op::Leave(uid, at) => {
                        let own: Vec<usize> = (0..passes.len()).filter(|n| passes[*n].uid == uid).collect();
                        if !own.is_empty() {
                            passes.swap_remove(*at.get(&own));
                        }
                        continue;
                    }
                    Op::Enter(uid) => uid,
                };
                let shares = Shares::new(LIMITS, &need, |uid| uid == 0);
                largest = largest.max(shares.all());
                let before: Vec<usize> = (0..12).map(|uid| taken(&gate, uid)).collect();
                let told = gate.enter(uid, (LIMITS, &need), None, now);
                let after: Vec<usize> = (0..12).map(|uid| taken(&gate, uid)).collect();
                let own = before[uid as usize];
                let above = |uid: u32| before[uid as usize].saturating_sub(shares.of(uid));
                let common = |uid: u32, held: usize| held.saturating_sub(shares.by_need(uid));
                if uid == 0 {
                    // Root is never counted, and costs nobody a place.
                    prop_assert_eq!(told.is_ok(), own < LIMITS.root);
                    prop_assert_eq!(&before[1..], &after[1..]);
                    passes.extend(told);
                    continue;
                }
                let lost: Vec<u32> = (1..12).filter(|n| after[*n as usize] < before[*n as usize]).collect();
                prop_assert!(after[1..].iter().sum::<usize>() <= largest, "{:?}", after);
                let Ok(pass) = told else {
                    prop_assert_eq!(&before, &after);
                    // Who has fewer than his share, and so than everybody may have, gets in as long as somebody is above his.
                    prop_assert!(own >= shares.of(uid) || (1..12).all(|uid| above(uid) == 0));
                    // And who is within what his need gives him, as long as all is not taken.
                    let all: usize = before[1..].iter().sum();
                    prop_assert!(own >= shares.by_need(uid) || all >= shares.all());
                    continue;
                };
                passes.push(pass);
                // Nobody above his limit gets in.
                prop_assert!(own < shares.of(uid));
                prop_assert_eq!(after[uid as usize], own + 1);
                prop_assert!(lost.len() <= 1);
                let Some(loser) = lost.first().copied() else { continue };
                let (had, has) = (before[loser as usize], after[loser as usize]);
                prop_assert_eq!(has + 1, had);
                prop_assert!((1..12).all(|uid| above(uid) <= above(loser)), "{:?}", before);
                if above(loser) == 0 {
                    // No need takes it from him: the other has fewer, without what his need gives him.
                    let fair = match own < shares.by_need(uid) {
                        true => own + 1,
                        false => common(uid, own + 1),
                    };
                    prop_assert!(common(loser, has) >= fair, "{:?} {:?}", before, after);
                } else {
                    prop_assert!(has >= shares.of(loser) && has >= LIMITS.one_user);
                }
            }
        }
    }

    /// Many connections of a user, as slowly as he may.
    fn fill(gate: &Gate, uid: u32, count: usize, now: Instant) -> Vec<Pass> {
        let enter = |_| gate.enter(uid, (LIMITS, &NOBODY), None, now).ok();
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
            gate.enter(5000, (LIMITS, &NOBODY), None, now).err(),
            Some(Full::Places)
        );
    }

    #[test]
    fn who_comes_too_often_waits_and_nobody_else() {
        let (gate, now) = (Gate::new(0), Instant::now());
        let got = (0..1000)
            .filter(|_| gate.enter(1001, (LIMITS, &NOBODY), None, now).is_ok())
            .count();
        assert_eq!(got, CONNECTS.at_once as usize);
        assert_eq!(
            gate.enter(1001, (LIMITS, &NOBODY), None, now).err(),
            Some(Full::Often)
        );
        assert!(gate.enter(1002, (LIMITS, &NOBODY), None, now).is_ok());
        assert!((0..1000).all(|_| gate.enter(0, (LIMITS, &NOBODY), None, now).is_ok()));
        let later = now + Duration::from_secs(1);
        assert!(gate.enter(1001, (LIMITS, &NOBODY), None, later).is_ok());
    }

    #[test]
    fn lines_of_users_wait_and_those_of_root_do_not() {
        let (gate, now) = (Gate::new(77), Instant::now());
        for (uid, waits) in [(0, false), (77, false), (1001, true)] {
            let pass = gate.enter(uid, (LIMITS, &NOBODY), None, now).unwrap();
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
            let _ = gate.enter(uid, (LIMITS, &NOBODY), None, later);
            assert!(gate.lock().users.len() <= MOST);
        }
        let late = now + Duration::from_secs(200);
        assert!(gate.enter(20_000, (LIMITS, &NOBODY), None, late).is_ok());
    }
}
