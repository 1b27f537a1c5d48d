//! The conductors of a job over a network that does its work.

use std::collections::{BTreeMap, BTreeSet};

use gpuos_checkpoint::commit::Outcome;
use gpuos_checkpoint::ids::{CheckpointId, NodeIndex};
use gpuos_mover::output::Ready;
use gpuos_mover::program::{Conductor, Every, Input, Join, Output, Reason, Settings, Start};

pub const MINUTE: u64 = 60_000;

/// The conductors of a job, and what came out of them beside words.
pub struct Bench {
    pub now: u64,
    pub nodes: Vec<Conductor>,
    joins: Vec<BTreeMap<u16, Join>>,
    pub out: Vec<(u16, Output)>,
    /// Words are lost.
    pub cut: bool,
}

pub fn ready(restore: Option<CheckpointId>) -> Ready {
    Ready {
        restore,
        passed_over: Vec::new(),
        highest: restore.map_or(0, |id| id.number),
        lost: false,
    }
}

pub fn id(number: u32) -> CheckpointId {
    CheckpointId { number, attempt: 5 }
}

impl Bench {
    pub fn with(nodes: u16, every: Every) -> Bench {
        let settings = |node| Settings::new(NodeIndex(node), nodes, 1, every);
        Bench {
            now: 0,
            nodes: (0..nodes)
                .map(|node| Conductor::new(settings(node), 0))
                .collect(),
            joins: vec![BTreeMap::new(); nodes.into()],
            out: Vec::new(),
            cut: false,
        }
    }

    /// A job that begins, with a checkpoint every 10 minutes.
    pub fn new(nodes: u16) -> Bench {
        let mut bench = Bench::with(nodes, Every::Fixed(10 * MINUTE));
        bench.ready(None);
        bench
    }

    pub fn ready(&mut self, restore: Option<CheckpointId>) {
        for node in 0..self.nodes.len() as u16 {
            self.give(node, Input::Ready(ready(restore)));
        }
    }

    pub fn give(&mut self, node: u16, input: Input) {
        let mut inputs = vec![(node, input)];
        while let Some((node, input)) = inputs.pop() {
            for output in self.nodes[usize::from(node)].step(self.now, input) {
                match output {
                    Output::Say { .. } if self.cut => {}
                    Output::Say { to, word } => {
                        let from = NodeIndex(node);
                        inputs.insert(0, (to.0, Input::Received { from, word }));
                    }
                    output => self.out.push((node, output)),
                }
            }
        }
    }

    pub fn wait(&mut self, ms: u64) {
        let until = self.now + ms;
        while self.now < until {
            self.now = until.min(self.now + 500);
            for node in 0..self.nodes.len() as u16 {
                self.give(node, Input::Tick);
            }
        }
    }

    pub fn join(&mut self, node: u16, rank: u16, size: u16, nonce: u64) {
        let joins = &mut self.joins[usize::from(node)];
        joins.insert(rank, Join { rank, size, nonce });
        let joins = joins.values().copied().collect();
        self.give(node, Input::Joins(joins));
    }

    /// One rank on each of the first nodes.
    pub fn start(&mut self, size: u16, nonce: u64) {
        for rank in 0..size {
            self.join(rank, rank, size, nonce);
        }
    }

    pub fn saved(&mut self, node: u16, number: u32, ranks: &[u16]) {
        let ranks: BTreeSet<u16> = ranks.iter().copied().collect();
        self.give(node, Input::Saved { number, ranks });
    }

    /// What came out since the last look.
    pub fn out(&mut self) -> Vec<(u16, Output)> {
        std::mem::take(&mut self.out)
    }

    pub fn answers(&mut self) -> Vec<(u16, Start)> {
        let answers = self.out().into_iter().map(|(_, output)| match output {
            Output::Answer { join, start } => (join.rank, start),
            output => panic!("{output:?}"),
        });
        answers.collect()
    }

    /// The checkpoint that all nodes were asked for since the last look.
    pub fn asked(&mut self) -> Option<(u32, Reason)> {
        let out = self.out();
        let asked = out.iter().filter_map(|(_, output)| match output {
            Output::Ask { number, reason, .. } => Some((*number, *reason)),
            _ => None,
        });
        let asked: Vec<(u32, Reason)> = asked.collect();
        assert!(
            asked.is_empty() || asked.len() == self.nodes.len(),
            "{out:?}"
        );
        asked.first().copied()
    }

    /// All ranks have saved, one on each of the first nodes; the node was told to begin.
    pub fn save(&mut self, number: u32, size: u16) {
        for rank in 0..size {
            self.saved(rank, number, &[rank]);
        }
        assert!(self.out().contains(&(0, Output::Begin { number })));
    }

    pub fn end(&mut self, number: u32, outcome: Outcome) {
        let id = id(number);
        self.give(0, Input::Ended { id, outcome });
    }

    /// One comes to be.
    pub fn commit(&mut self, number: u32, size: u16) {
        self.save(number, size);
        self.end(number, Outcome::Committed);
        assert_eq!(self.closed(), Some((number, Ok(()))));
    }

    /// What all nodes were told to have ended since the last look.
    pub fn closed(&mut self) -> Option<(u32, Result<(), String>)> {
        let out = self.out();
        let closed = out.iter().filter_map(|(_, output)| match output {
            Output::Close { number, outcome } => Some((*number, outcome.clone())),
            _ => None,
        });
        let closed: Vec<_> = closed.collect();
        assert!(
            closed.iter().all(|one| Some(one) == closed.first()),
            "{out:?}"
        );
        assert!(
            closed.is_empty() || closed.len() == self.nodes.len(),
            "{out:?}"
        );
        closed.first().cloned()
    }

    pub fn why(&mut self, number: u32) -> String {
        match self.closed() {
            Some((closed, Err(why))) if closed == number => why,
            closed => panic!("{closed:?}"),
        }
    }
}
