//! Who is told what: everything to root, SlurmUser and operators, to others their own; and who watches.

use std::collections::BTreeMap;
use std::sync::mpsc::SyncSender;

use gpuos_config::access::Access;
use gpuos_core::job::JobId;
use gpuos_core::wire::{Happening, Peer, Viewer};

/// Watchers of one user that is not told everything, and of all together: those beyond are told that they are too slow.
const OF_ONE: usize = 4;
/// All together.
const MOST: usize = 128;

/// Who is told everything.
#[derive(Debug)]
pub struct Viewers {
    /// `[access]` of gpuos.toml; before that is read nobody but root is told of others.
    pub access: Access,
    /// SlurmUser, once slurmctld has told who that is.
    pub workload_user: Option<u32>,
    /// The daemon's own user.
    own: u32,
}

impl Default for Viewers {
    fn default() -> Viewers {
        Viewers {
            access: Access::default(),
            workload_user: None,
            own: rustix::process::getuid().as_raw(),
        }
    }
}

impl Viewers {
    /// Whether a user is told everything.
    pub fn sees_all(&self, uid: u32) -> bool {
        let named = self.access.operators.contains(&uid) || self.workload_user == Some(uid);
        uid == 0 || uid == self.own || self.access.all || named
    }
}

/// One who watches.
#[derive(Debug)]
struct Watcher {
    uid: u32,
    to: SyncSender<Happening>,
}

/// Those who watch.
#[derive(Debug, Default)]
pub struct Watchers(Vec<Watcher>);

impl Watchers {
    /// One more. Those who have gone are let go first: nothing else tells, on a node where nothing happens.
    pub fn add(&mut self, peer: Peer, to: SyncSender<Happening>) {
        self.0.retain(|one| one.to.try_send(look()).is_ok());
        let uid = peer.uid;
        let own = self.0.iter().filter(|one| one.uid == uid).count();
        let first = |watchers: &[Watcher], of: u32| watchers.iter().position(|one| one.uid == of);
        if uid != 0 && own >= OF_ONE {
            first(&self.0, uid).map(|at| self.0.remove(at));
        } else if self.0.len() >= MOST {
            let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
            for one in &self.0 {
                *counts.entry(one.uid).or_default() += 1;
            }
            let most = counts.into_iter().max_by_key(|(_, count)| *count);
            most.and_then(|(of, _)| first(&self.0, of))
                .map(|at| self.0.remove(at));
        }
        self.0.push(Watcher { uid, to });
    }

    /// Tells all, each what is for him. Whoever is too slow goes: telling never waits.
    pub fn publish(&mut self, event: &Happening, seers: &Viewers, users: &BTreeMap<JobId, u32>) {
        self.0.retain(|watcher| {
            let told = match seers.sees_all(watcher.uid) {
                true => event.clone(),
                false => event.clone().redacted_for(&Viewer {
                    uid: watcher.uid,
                    users,
                }),
            };
            watcher.to.try_send(told).is_ok()
        });
    }

    /// Whether nobody watches.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Nothing: it is not handed on to the one who watches.
fn look() -> Happening {
    Happening {
        at_ms: 0,
        what: String::new(),
        gpu: None,
        job: None,
        message: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;

    const fn peer(uid: u32) -> Peer {
        Peer { uid, pid: 1 }
    }

    #[test]
    fn who_is_told_everything_is_named() {
        let seers = Viewers {
            access: Access {
                operators: vec![1001],
                all: false,
            },
            workload_user: Some(64030),
            own: 0,
        };
        let seen = [0, 1001, 64030, 1002, u32::MAX].map(|uid| seers.sees_all(uid));
        assert_eq!(seen, [true, true, true, false, false]);
        let none = Viewers {
            own: 0,
            ..Viewers::default()
        };
        assert!(none.sees_all(0) && !none.sees_all(64030));
    }

    #[test]
    fn a_user_who_comes_and_goes_leaves_nothing_behind() {
        let mut watchers = Watchers::default();
        for _ in 0..1000 {
            let (to, from) = sync_channel(4);
            watchers.add(peer(1001), to);
            drop(from);
        }
        assert_eq!(watchers.0.len(), 1);
        let kept: Vec<_> = (0..1000)
            .map(|n| {
                let (to, from) = sync_channel(2000);
                watchers.add(peer(n % 200), to);
                from
            })
            .collect();
        assert!(watchers.0.len() <= MOST, "{}", watchers.0.len());
        drop(kept);
    }

    #[test]
    fn each_is_told_what_is_his() {
        let (mut watchers, seers) = (Watchers::default(), Viewers::default());
        let users = [(7.into(), 1001), (8.into(), 1002)].into();
        let (root, heard_by_root) = sync_channel(4);
        let (user, heard) = sync_channel(4);
        watchers.add(peer(0), root);
        watchers.add(peer(1001), user);
        for job in [7, 8] {
            let event = Happening {
                at_ms: 1,
                what: "requeue".into(),
                gpu: Some(3u8.try_into().unwrap()),
                job: Some(job.into()),
                message: format!("job {job} is requeued"),
            };
            watchers.publish(&event, &seers, &users);
        }
        let said = |from: std::sync::mpsc::Receiver<Happening>| -> Vec<String> {
            let told = from.try_iter().filter(|event| !event.what.is_empty());
            told.map(|event| event.message).collect()
        };
        assert_eq!(
            said(heard_by_root),
            ["job 7 is requeued", "job 8 is requeued"]
        );
        assert_eq!(
            said(heard),
            ["job 7 is requeued", "GPU 3: requeue; root is told more"]
        );
    }
}
