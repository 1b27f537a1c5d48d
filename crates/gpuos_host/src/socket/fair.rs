//! Places that users share: who has few gets the last ones, so that no few users have them all.

/// Places of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Places {
    /// Of all users together.
    pub most: usize,
    /// Of one user.
    pub of_one: usize,
}

impl Places {
    /// Whether a user who has `own` of the `taken` places may have one more. One who has some leaves four times as many free, so that it takes
    /// many users to fill all places, and the last ones go to those who have none.
    pub fn may_enter(self, own: usize, taken: usize) -> bool {
        let free = self.most.saturating_sub(taken);
        own < self.of_one && own.saturating_mul(4) < free
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Users who take all that they can, one after the other; what each got.
    fn greedy(places: Places, users: u32) -> Vec<usize> {
        let mut has: BTreeMap<u32, usize> = BTreeMap::new();
        for user in 0..users {
            let own = |has: &BTreeMap<u32, usize>| has.get(&user).copied().unwrap_or(0);
            while places.may_enter(own(&has), has.values().sum()) {
                *has.entry(user).or_default() += 1;
            }
        }
        has.into_values().collect()
    }

    #[test]
    fn a_few_greedy_users_do_not_have_all_places() {
        for (most, of_one) in [(128, 16), (192, 64), (64, 8), (48, 8), (32, 4)] {
            let places = Places { most, of_one };
            let users = (most / 4).min(16);
            let got = greedy(places, users as u32);
            assert_eq!(got.len(), users, "{places:?}: {got:?}");
            assert!(got[0] >= of_one.min(most / 5), "{places:?}: {got:?}");
            assert!(got.iter().sum::<usize>() <= most);
        }
    }

    #[test]
    fn who_has_none_gets_the_last_place_and_nobody_a_place_more() {
        let places = Places { most: 8, of_one: 4 };
        assert!(places.may_enter(0, 7));
        assert!(!places.may_enter(1, 7) && !places.may_enter(0, 8));
        assert!(places.may_enter(1, 3) && !places.may_enter(4, 4));
    }
}
