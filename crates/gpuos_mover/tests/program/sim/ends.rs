//! What programs are told of the ends of checkpoints, and movers that are started anew meanwhile.

use std::collections::{BTreeMap, BTreeSet};

use gpuos_checkpoint::ids::CheckpointId;
use gpuos_mover::program::{Conductor, Known};

use super::{Job, settings};

/// What was told, and what is still to be.
pub(super) struct Ends {
    /// By node: a checkpoint that was left open when the movers began anew, and what was known there then.
    open: Vec<Known>,
    /// By node: the newest that was said to exist, and the newest that was said to have come to nothing.
    said: Vec<[Option<u32>; 2]>,
    /// What was said on any node, of each.
    told: BTreeMap<u32, BTreeSet<bool>>,
    /// Numbers of those that exist, or did.
    exist: BTreeSet<u32>,
    /// One that was said to have come to nothing, and of which all parts may be complete.
    pub(super) complete: Option<(CheckpointId, BTreeSet<u32>)>,
}

impl Ends {
    pub(super) fn new(nodes: u16) -> Ends {
        Ends {
            open: vec![Known::default(); nodes.into()],
            said: vec![[None; 2]; nodes.into()],
            told: BTreeMap::new(),
            exist: BTreeSet::new(),
            complete: None,
        }
    }

    pub(super) fn known(&self, node: u16) -> Known {
        self.open[usize::from(node)].clone()
    }

    /// It is open there no more.
    pub(super) fn was_open(&mut self, node: u16, number: u32) -> bool {
        let open = &mut self.open[usize::from(node)].open;
        open.take_if(|open| *open == number).is_some()
    }

    /// The programs of a node are told: all hear the same, and the truth, unless others had heard of a failure before that was none.
    pub(super) fn say(&mut self, node: u16, number: u32, exists: bool) {
        let told = self.told.entry(number).or_default();
        let wrong = told.contains(&false);
        assert!(
            exists == self.exist.contains(&number) || (wrong && !exists),
            "{number} exists or not: {exists}"
        );
        told.insert(exists);
        assert_eq!(told.len(), 1, "all hear the same of {number}");
        self.said[usize::from(node)][usize::from(!exists)] = Some(number);
    }
}

impl Job {
    /// A mover is started anew: all begin again with what lies in the folders. What was being stored may turn out to be complete.
    pub(super) fn anew(&mut self) {
        let nodes = self.conductors.len() as u16;
        let stored = self.begun.take();
        let mut lacks = None;
        if let Some((id, rounds, _)) = stored {
            match self.random.below(2) == 0 {
                true => self.commit(id, &rounds),
                false => lacks = Some(self.random.below(nodes.into()) as u16),
            }
        } else if let Some((id, rounds)) = self.ends.complete.take()
            && id.number == self.numbers
            && self.random.below(3) == 0
        {
            self.commit(id, &rounds);
        }
        for node in 0..nodes {
            self.leave(node, lacks);
        }
        self.run += 1;
        let highest = self.newest.as_ref().map_or(0, |newest| newest.0.number);
        let highest = highest.max(self.before);
        self.conductors = (0..nodes)
            .map(|node| Conductor::new(settings(node, nodes, self.run), self.now))
            .collect();
        self.restoring.clear();
        self.later.clear();
        for node in 0..nodes {
            self.look(node);
        }
        self.restart(highest);
    }

    /// A node's mover gathers with the others: without a part of what was being made it says at once that it came to nothing. `lacks`: this node has
    /// not all of its part.
    fn leave(&mut self, node: u16, lacks: Option<u16>) {
        let at = usize::from(node);
        let asked = self.folders[at].take().map(|folder| folder.number);
        let open = asked.or(self.ends.open[at].open);
        self.ends.open[at].open = open;
        if let Some(number) = open {
            let complete = self.ends.exist.contains(&number) || self.random.below(2) == 0;
            if number > self.numbers || lacks == Some(node) || !complete {
                self.ends.open[at].open = None;
                self.ends.say(node, number, false);
            }
        }
        [self.ends.open[at].committed, self.ends.open[at].failed] = self.ends.said[at];
    }

    pub(super) fn commit(&mut self, id: CheckpointId, rounds: &BTreeSet<u32>) {
        self.ends.exist.insert(id.number);
        let of = *rounds.first().unwrap();
        self.last_round = Some(of);
        let size = self.size_of(of);
        let places = (0..size).map(|rank| (rank, self.place(rank))).collect();
        self.older.extend(self.newest.replace((id, size, places)));
    }
}
