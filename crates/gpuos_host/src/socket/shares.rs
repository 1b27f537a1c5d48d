//! How many connections each user may have: as many as everybody, and more by need.

use std::collections::BTreeMap;

/// What users need beyond what everybody has: how many GPUs of this node their running jobs have, by user.
pub type Need = BTreeMap<u32, usize>;

/// Limits of connections at one time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Of all users but root together, besides those that GPUs give.
    pub users: usize,
    /// Of one user other than root, whatever he has here.
    pub one_user: usize,
    /// Besides, for each GPU of this node that his running jobs have.
    pub each_gpu: usize,
    /// Of one user other than root, however many GPUs he has.
    pub one_at_most: usize,
    /// What GPUs give to all users together: gpuosd has 1,024 open files. Where the need is greater each has a part of it.
    pub for_gpus: usize,
    /// Of root: kept free of what users do.
    pub root: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            users: 64,
            one_user: 8,
            each_gpu: 4,
            one_at_most: 256,
            for_gpus: 512,
            root: 64,
        }
    }
}

/// The places of users at one moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Shares {
    limits: Limits,
    /// By need, of each user who has any.
    extra: BTreeMap<u32, usize>,
}

impl Shares {
    /// By the need that there is. Root has places of its own, whatever its jobs have.
    pub(super) fn new(limits: Limits, need: &Need, is_root: impl Fn(u32) -> bool) -> Shares {
        let most = limits.one_at_most.saturating_sub(limits.one_user);
        let wish = |gpus: usize| gpus.saturating_mul(limits.each_gpu).min(most);
        let users = need.iter().filter(|(uid, _)| !is_root(**uid));
        let mut extra: BTreeMap<u32, usize> =
            users.map(|(uid, gpus)| (*uid, wish(*gpus))).collect();
        let sum: usize = extra.values().sum();
        if sum > limits.for_gpus {
            let part = |extra: &mut usize| *extra = *extra * limits.for_gpus / sum;
            extra.values_mut().for_each(part);
        }
        Shares { limits, extra }
    }

    /// What a user's need gives him, and nobody else takes up.
    pub(super) fn by_need(&self, uid: u32) -> usize {
        self.extra.get(&uid).copied().unwrap_or(0)
    }

    /// How many of a user's connections take up what users have in common.
    pub(super) fn in_common(&self, uid: u32, held: usize) -> usize {
        held.saturating_sub(self.by_need(uid))
    }

    /// What everybody may have, without need.
    pub(super) fn of_each(&self) -> usize {
        self.limits.one_user
    }

    /// All that a user may have.
    pub(super) fn of(&self, uid: u32) -> usize {
        self.limits.one_user + self.by_need(uid)
    }

    /// What users have in common, whatever their need.
    pub(super) fn common(&self) -> usize {
        self.limits.users
    }

    /// All that users may have together: nobody's places are fewer for the need of another.
    pub(super) fn all(&self) -> usize {
        self.limits.users + self.extra.values().sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_give_places_up_to_a_bound() {
        let limits = Limits::default();
        let shares = |need: &[(u32, usize)]| {
            Shares::new(limits, &need.iter().copied().collect(), |uid| uid == 0)
        };
        let few = shares(&[(1001, 0), (1002, 1), (1003, 8), (1004, 1000), (0, 8)]);
        let of = [1000, 1001, 1002, 1003, 1004].map(|uid| few.of(uid));
        assert_eq!(of, [8, 8, 12, 40, 256]);
        assert_eq!(few.all(), 64 + 4 + 32 + 248);
        assert_eq!(few.by_need(0), 0, "root has places of its own");
        // Sixty users who share eight GPUs.
        let need: Vec<(u32, usize)> = (1001..=1060).map(|uid| (uid, 8)).collect();
        let many = shares(&need);
        assert!((1001..=1060).all(|uid| many.of(uid) == 8 + 512 / 60));
        assert!(many.all() <= 64 + 512);
    }
}
