//! What graphs touch: the words of their nodes that may be addresses. They are read when a graph becomes executable or is changed, and
//! made extents by the thread that moves, so that launching a graph notes no more than its handle.

use std::collections::{BTreeMap, HashMap};

/// Words of the nodes of a graph, in the order in which they were added to it.
pub(crate) type Nodes = Vec<(u64, Vec<Word>)>;

/// A word that may be an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Word {
    pub(crate) address: u64,
    /// All that follows it may be touched.
    pub(crate) rest: bool,
}

/// Words of executable graphs, by the node that has them.
#[derive(Default)]
pub(crate) struct Graphs {
    execs: HashMap<u64, Nodes>,
    /// Addresses that the program has reserved, with their bytes: what is mapped there may change between two launches.
    pub(crate) reserved: BTreeMap<u64, u64>,
}

impl Graphs {
    /// An executable graph has these words, and no others.
    pub(crate) fn set(&mut self, exec: u64, nodes: Nodes) {
        self.execs.insert(exec, nodes);
    }

    /// A node of it has others.
    pub(crate) fn change(&mut self, exec: u64, node: u64, words: Vec<Word>) {
        let Some(nodes) = self.execs.get_mut(&exec) else {
            return;
        };
        match nodes.iter_mut().find(|(known, _)| *known == node) {
            Some((_, old)) => *old = words,
            None => nodes.push((node, words)),
        }
    }

    /// It ends.
    pub(crate) fn forget(&mut self, exec: u64) {
        self.execs.remove(&exec);
    }

    /// The words of each node of an executable graph.
    pub(crate) fn nodes(&self, exec: u64) -> impl Iterator<Item = &[Word]> + '_ {
        let nodes = self.execs.get(&exec).into_iter().flatten();
        nodes.map(|(_, words)| words.as_slice())
    }

    /// All words of an executable graph.
    pub(crate) fn words(&self, exec: u64) -> impl Iterator<Item = Word> + '_ {
        self.nodes(exec).flatten().copied()
    }

    /// Whether an address is reserved.
    pub(crate) fn is_reserved(&self, address: u64) -> bool {
        let before = self.reserved.range(..=address).next_back();
        before.is_some_and(|(start, bytes)| address - start < *bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_the_last_change() {
        let word = |address| Word {
            address,
            rest: true,
        };
        let mut graphs = Graphs::default();
        graphs.set(1, vec![(11, vec![word(6)]), (10, vec![word(5)])]);
        graphs.change(1, 10, vec![word(7), word(8)]);
        graphs.change(2, 10, vec![word(9)]);
        let words: Vec<u64> = graphs.words(1).map(|word| word.address).collect();
        assert_eq!(words, [6, 7, 8]);
        graphs.forget(1);
        assert!(graphs.words(1).next().is_none() && graphs.words(2).next().is_none());
        graphs.reserved.insert(100, 10);
        assert!(graphs.is_reserved(109) && !graphs.is_reserved(110) && !graphs.is_reserved(99));
    }
}
