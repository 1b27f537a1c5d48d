//! The nodes of a job: who watches whom, and who has a say.
use gpuos_model::fnv::fnv;

use crate::job::JobId;

/// A node pings so many of the job's nodes that follow it, and is pinged by so many before it.
const WATCHED: usize = 3;
/// So many of a job's nodes have a say. To look into a silent node costs each of them a few messages.
const MOST_VOTERS: usize = 31;
/// Jobs of more nodes are not watched: Slurm's own timeout is there for them.
const MOST_NODES: usize = 16_384;

/// A job of several nodes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Group {
    /// Its number.
    pub job: JobId,
    /// Its nodes, in Slurm's order, which is the same on all of them.
    pub nodes: Vec<String>,
}

impl Group {
    /// Whether there is anybody to watch.
    pub(super) fn is_watched(&self, own: &str) -> bool {
        (2..=MOST_NODES).contains(&self.nodes.len()) && self.position(own).is_some()
    }

    fn position(&self, node: &str) -> Option<usize> {
        self.nodes.iter().position(|name| name == node)
    }

    /// Whether the job has the node.
    pub fn has(&self, node: &str) -> bool {
        self.position(node).is_some()
    }

    /// The nodes that `node` pings: those that follow it in a ring.
    pub fn watched_by(&self, node: &str) -> Vec<&str> {
        let Some(own) = self.position(node) else {
            return Vec::new();
        };
        let count = WATCHED.min(self.nodes.len() - 1);
        let at = |step: usize| self.nodes[(own + step) % self.nodes.len()].as_str();
        (1..=count).map(at).collect()
    }

    /// How far `node` is before `other` in the ring, from 0: who is nearest, asks first.
    pub(super) fn rank(&self, node: &str, other: &str) -> u64 {
        let place = |name| self.position(name).unwrap_or(0) + self.nodes.len();
        let steps = (place(other) - self.position(node).unwrap_or(0)) % self.nodes.len();
        (steps.max(1) - 1).min(WATCHED) as u64
    }

    /// The nodes that have a say: all, or as many as one can ask, spread over the list.
    pub fn voters(&self) -> Vec<&str> {
        let (all, most) = (self.nodes.len(), self.nodes.len().min(MOST_VOTERS));
        let at = |nth: usize| self.nodes[nth * all / most].as_str();
        (0..most).map(at).collect()
    }

    /// Whether these nodes are more than half of those that have a say, or half of them with the job's first
    /// node. Two quorums of a job always have a node in common.
    pub fn is_quorum(&self, agreed: &[&str]) -> bool {
        let voters = self.voters();
        let count = voters.iter().filter(|name| agreed.contains(name)).count();
        let half = 2 * count == voters.len() && voters.first().is_some_and(|n| agreed.contains(n));
        2 * count > voters.len() || half
    }

    /// A number for the list of nodes: who has another list, has no say.
    pub(super) fn mark(&self) -> u64 {
        fnv(self.nodes.iter().flat_map(|n| n.bytes().chain([0])))
    }
}

#[cfg(test)]
mod tests {
    use super::Group;

    fn of(count: usize) -> Group {
        Group {
            job: 1.into(),
            nodes: (1..=count).map(|n| format!("n{n}")).collect(),
        }
    }

    #[test]
    fn everybody_is_watched_by_those_before_it() {
        assert_eq!(of(2).watched_by("n2"), ["n1"]);
        assert_eq!(of(4).watched_by("n3"), ["n4", "n1", "n2"]);
        let group = of(100);
        assert_eq!(group.watched_by("n99"), ["n100", "n1", "n2"]);
        assert!(group.watched_by("x").is_empty());
        for node in &group.nodes {
            let watchers: Vec<&String> = group
                .nodes
                .iter()
                .filter(|other| group.watched_by(other).contains(&node.as_str()))
                .collect();
            assert_eq!(watchers.len(), 3);
            let mut ranks: Vec<u64> = watchers.iter().map(|w| group.rank(w, node)).collect();
            ranks.sort_unstable();
            assert_eq!(ranks, [0, 1, 2]);
        }
    }

    #[test]
    fn two_quorums_have_a_node_in_common() {
        for count in 2..=9 {
            let group = of(count);
            let set = |bits: usize| -> Vec<&str> {
                let chosen = (0..count).filter(|n| bits & (1 << n) != 0);
                chosen.map(|n| group.nodes[n].as_str()).collect()
            };
            for bits in 0..1_usize << count {
                let rest = !bits & ((1 << count) - 1);
                let both = group.is_quorum(&set(bits)) && group.is_quorum(&set(rest));
                assert!(!both, "{bits:b} of {count}");
            }
        }
        // Of two nodes, the first.
        assert!(of(2).is_quorum(&["n1"]) && !of(2).is_quorum(&["n2"]));
        // Nodes without a say do not count.
        let large = of(1000);
        assert_eq!(large.voters().len(), 31);
        let rest: Vec<&str> = large.nodes.iter().map(String::as_str).collect();
        let rest: Vec<&str> = rest
            .into_iter()
            .filter(|n| !large.voters().contains(n))
            .collect();
        assert!(!large.is_quorum(&rest) && large.is_quorum(&large.voters()[15..]));
    }
}
