//! Nodes on which checkpoints of a job lie, for a job that starts again: what another node would have to fetch, and which nodes are
//! asked for where Slurm chooses.
//!
//! A fetch is paid once, a worse place for the whole run, and what later jobs would rather have is other jobs' loss. So it counts after
//! closeness, bandwidth, rules and worth ([`crate::plan::NodeState::spares`]), and before what stays usable and how full nodes are. It
//! tells places apart and forbids none: with it and without it the same jobs start.
use gpuos_model::cluster::{Fabric, NO_DOMAIN};

use crate::plan::MOST_SPARED;

/// MiB a second at which data is taken to come where neither a link nor a limit is known: a disk that is no NVMe, or 10 GbE. Own choice.
const USUAL_MIB_S: u64 = 1024;
/// MiB in a GB.
const MIB_PER_GB: f32 = 953.67;

/// How fast data comes, in MiB a second: by the slowest link of the fabric that is known, in GB/s, and by what movers may send, in MiB/s;
/// 0 = no limit.
pub fn rate_mib_s(fabric: &Fabric, limit_mib_s: u32) -> u64 {
    let known = fabric.levels.iter().map(|level| level.gbps);
    let slowest = known
        .filter(|gbps| *gbps > 0.0)
        .map(|gbps| (gbps * MIB_PER_GB) as u64)
        .min();
    let limit = (limit_mib_s > 0).then_some(u64::from(limit_mib_s));
    let rate = slowest.into_iter().chain(limit).min();
    rate.unwrap_or(USUAL_MIB_S).max(1)
}

/// What a node that holds `gib` of a job's checkpoints spares it of fetching, in steps, where the fullest holds `most`. For that one it
/// is one step up to a second, and one more whenever the time doubles; for others the part that they have, at least one step where
/// they have anything.
pub fn spared(gib: u32, most: u32, mib_s: u64) -> u8 {
    let seconds = u64::from(most) * 1024 / mib_s.max(1);
    let all = (1 + (seconds + 1).ilog2()).min(u32::from(MOST_SPARED));
    (u64::from(all) * u64::from(gib.min(most))).div_ceil(u64::from(most.max(1))) as u8
}

/// A node on which checkpoints of the job lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holder {
    /// Node index.
    pub node: u32,
    /// GiB there.
    pub gib: u32,
}

/// What Slurm's choice of nodes for a job becomes with those that hold its checkpoints: as many nodes, ascending, and at most `most` of
/// them new. The nodes that the job names stay. `None`: it is the best already.
pub fn exchanged(
    chosen: &[u32],
    named: impl Fn(u32) -> bool,
    holders: &[Holder],
    most: usize,
) -> Option<Vec<u32>> {
    let mut first: Vec<u32> = chosen.iter().copied().filter(|node| named(*node)).collect();
    let mut by_size: Vec<&Holder> = holders.iter().collect();
    // Of equal ones those that Slurm has chosen.
    by_size.sort_by_key(|one| (u32::MAX - one.gib, !chosen.contains(&one.node), one.node));
    let mut new = 0;
    for one in by_size {
        let is_new = !chosen.contains(&one.node);
        if first.len() < chosen.len() && !first.contains(&one.node) && (!is_new || new < most) {
            first.push(one.node);
            new += usize::from(is_new);
        }
    }
    for node in chosen {
        if first.len() < chosen.len() && !first.contains(node) {
            first.push(*node);
        }
    }
    first.sort_unstable();
    (new > 0).then_some(first)
}

/// How far apart nodes are: the first level of the fabric that has them all in one domain; past the last one: none has.
pub fn reach(fabric: &Fabric, nodes: &[u32]) -> usize {
    let together = |domain_of: &[u32]| {
        let domain = |node: u32| domain_of.get(node as usize).copied().unwrap_or(NO_DOMAIN);
        let first = nodes.first().map_or(NO_DOMAIN, |node| domain(*node));
        first != NO_DOMAIN && nodes.iter().all(|node| domain(*node) == first)
    };
    let levels = &fabric.levels;
    let found = levels.iter().position(|level| together(&level.domain_of));
    found.unwrap_or(levels.len())
}

/// [`exchanged`], and never farther apart than Slurm's choice: where the holders of all domains would be, only those in that of the
/// choice are taken.
pub fn exchanged_within(
    fabric: &Fabric,
    chosen: &[u32],
    named: impl Fn(u32) -> bool,
    holders: &[Holder],
    most: usize,
) -> Option<Vec<u32>> {
    let all = exchanged(chosen, &named, holders, most)?;
    let level = reach(fabric, chosen);
    if reach(fabric, &all) <= level {
        return Some(all);
    }
    let domain_of = &fabric.levels.get(level)?.domain_of;
    let domain = domain_of.get(*chosen.first()? as usize)?;
    let near = |one: &&Holder| domain_of.get(one.node as usize) == Some(domain);
    let near: Vec<Holder> = holders.iter().filter(near).copied().collect();
    exchanged(chosen, &named, &near, most)
}

#[cfg(test)]
mod tests {
    use gpuos_model::cluster::FabricLevel;
    use proptest::prelude::*;

    use super::*;

    fn holders(all: &[(u32, u32)]) -> Vec<Holder> {
        let holder = |&(node, gib): &(u32, u32)| Holder { node, gib };
        all.iter().map(holder).collect()
    }

    fn leaves(of: &[u32], gbps: f32) -> Fabric {
        let level = FabricLevel {
            name: "leaf".into(),
            domains: vec!["a".into(), "b".into()],
            domain_of: of.to_vec(),
            gbps,
        };
        Fabric {
            levels: vec![level],
        }
    }

    #[test]
    fn a_fetch_counts_by_its_time_in_steps_that_double() {
        assert_eq!(rate_mib_s(&Fabric::default(), 0), 1024);
        assert_eq!(rate_mib_s(&leaves(&[], 0.0), 200), 200);
        assert_eq!(rate_mib_s(&leaves(&[], 50.0), 200), 200);
        assert_eq!(rate_mib_s(&leaves(&[], 50.0), 0), 47_683);
        let all = |most| spared(most, most, 1024);
        assert_eq!([1, 2, 3, 6, 7, 1000].map(all), [2, 2, 3, 3, 4, 10]);
        assert_eq!(spared(1, 1, 47_683), 1);
        assert_eq!(spared(u32::MAX, u32::MAX, 1), 15);
        let part = |gib| spared(gib, 100, 1024);
        assert_eq!([0, 1, 25, 50, 100].map(part), [0, 1, 2, 4, 7]);
    }

    #[test]
    fn slurms_choice_takes_in_the_nodes_with_the_most() {
        let nobody = |_| false;
        let all = holders(&[(3, 5), (4, 5), (5, 5)]);
        let take = |chosen: &[u32], holders: &[Holder]| exchanged(chosen, nobody, holders, 9);
        assert_eq!(take(&[0, 1, 2], &all), Some(vec![3, 4, 5]));
        assert_eq!(take(&[0, 1, 2], &all[..2]), Some(vec![0, 3, 4]));
        assert_eq!(take(&[3, 4, 5], &all), None);
        assert_eq!(take(&[0, 3], &holders(&[(3, 1), (4, 9)])), Some(vec![3, 4]));
        assert_eq!(take(&[0], &holders(&[(4, 1), (5, 2)])), Some(vec![5]));
        // Named nodes stay, and of the others only so many come in.
        assert_eq!(
            exchanged(&[0, 1, 2], |node| node == 2, &all, 9),
            Some(vec![2, 3, 4])
        );
        assert_eq!(exchanged(&[0, 1, 2], nobody, &all, 1), Some(vec![0, 1, 3]));
    }

    #[test]
    fn data_does_not_cost_a_job_its_leaf() {
        let nobody = |_| false;
        let fabric = leaves(&[0, 0, 0, 1, 1, 1], 0.0);
        let take =
            |held: &[(u32, u32)]| exchanged_within(&fabric, &[0, 1], nobody, &holders(held), 9);
        // Another leaf that has all of it is as near.
        assert_eq!(take(&[(3, 1), (4, 1)]), Some(vec![3, 4]));
        // One node of it is not worth two leaves.
        assert_eq!(take(&[(3, 9)]), None);
        assert_eq!(take(&[(3, 9), (2, 1)]), Some(vec![0, 2]));
        assert_eq!(reach(&fabric, &[0, 3]), 1);
        assert_eq!(reach(&leaves(&[NO_DOMAIN, NO_DOMAIN], 0.0), &[0, 1]), 1);
    }

    proptest! {
        #[test]
        fn a_node_that_holds_more_spares_no_less_and_one_that_holds_anything_something(
            most in 1u32..=u32::MAX, parts in any::<[f64; 2]>(), mib_s in 1u64..1 << 20,
        ) {
            let mut gib = parts.map(|part| (f64::from(most) * part.fract().abs()) as u32);
            gib.sort_unstable();
            let [less, more] = gib.map(|gib| spared(gib, most, mib_s));
            prop_assert!(less <= more && more <= spared(most, most, mib_s));
            prop_assert!(spared(most, most, mib_s) <= MOST_SPARED);
            prop_assert_eq!([less > 0, more > 0], gib.map(|gib| gib > 0));
        }

        #[test]
        fn as_many_nodes_as_slurm_chose_no_farther_apart_and_with_no_less_of_the_data(
            chosen in prop::collection::btree_set(0u32..12, 1..6),
            named in 0u32..1 << 12,
            held in prop::collection::btree_map(0u32..12, 1u32..9, 0..8),
            leaf in prop::collection::vec(prop_oneof![Just(0u32), Just(1), Just(NO_DOMAIN)], 12),
            most in 0usize..6,
        ) {
            let fabric = leaves(&leaf, 0.0);
            let chosen: Vec<u32> = chosen.into_iter().collect();
            let holders: Vec<Holder> = held.iter().map(|(&node, &gib)| Holder { node, gib }).collect();
            let is_named = |node: u32| named >> node & 1 == 1 && chosen.contains(&node);
            let Some(got) = exchanged_within(&fabric, &chosen, is_named, &holders, most) else {
                return Ok(());
            };
            prop_assert_eq!(got.len(), chosen.len());
            prop_assert!(got.windows(2).all(|two| two[0] < two[1]));
            prop_assert!(chosen.iter().all(|node| !is_named(*node) || got.contains(node)));
            prop_assert!(reach(&fabric, &got) <= reach(&fabric, &chosen));
            let new: Vec<&u32> = got.iter().filter(|node| !chosen.contains(node)).collect();
            prop_assert!(new.len() <= most && new.iter().all(|node| held.contains_key(node)));
            let gib = |nodes: &[u32]| nodes.iter().filter_map(|node| held.get(node)).sum::<u32>();
            prop_assert!(gib(&got) >= gib(&chosen));
        }
    }
}
