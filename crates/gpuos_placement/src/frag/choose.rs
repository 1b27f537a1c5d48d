//! The choice of a node by a score, with the scores kept from one decision to the next.
use std::collections::BTreeMap;

use super::cluster::Cluster;
use super::request::{Request, Slot, State};

/// Classes of request whose scores are kept; past that all are forgotten.
const MAX_TABLES: usize = 1024;

/// A measure of how well a request fits a node.
pub trait Score {
    /// The score of the best slot for a request that fits the state, higher is better; `None`
    /// when it shall not go there. It is kept until the node changes or [`Score::revision`] does.
    fn score(&mut self, state: &State, request: &Request) -> Option<(i64, Slot)>;

    /// What a node counts as in the end, from its score and from what is known of the cluster.
    fn rank(&self, score: i64, _state: &State, _request: &Request) -> i64 {
        score
    }

    /// Hears of every arrival, before it is placed.
    fn observe(&mut self, _cluster: &Cluster, _request: &Request) {}

    /// Grows when scores given before no longer hold.
    fn revision(&self) -> u64 {
        0
    }
}

/// A node, and the slot in its state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Choice {
    /// Index of the node.
    pub node: usize,
    /// Slot of its state.
    pub slot: Slot,
}

/// Chooses the node with the highest score, the first of equals.
#[derive(Clone, Debug)]
pub struct Chooser<S> {
    score: S,
    /// Which table a request has.
    index: BTreeMap<Request, usize>,
    tables: Vec<Table>,
}

#[derive(Clone, Debug, Default)]
struct Table {
    /// By node; the lowest number where the request does not fit.
    scores: Vec<i64>,
    slots: Vec<u8>,
    /// State of the cluster and of the score that they hold for.
    version: u64,
    revision: u64,
}

/// Where a request does not fit.
const NO: i64 = i64::MIN;

impl<S: Score> Chooser<S> {
    /// A chooser by this score.
    pub fn new(score: S) -> Chooser<S> {
        Chooser {
            score,
            index: BTreeMap::new(),
            tables: Vec::new(),
        }
    }

    /// The score, to look at.
    pub fn score(&self) -> &S {
        &self.score
    }

    /// Where a request that has just arrived shall start; `None` when it fits nowhere. The same
    /// chooser has to be asked about the same cluster each time.
    pub fn choose(&mut self, cluster: &Cluster, request: &Request) -> Option<Choice> {
        self.score.observe(cluster, request);
        let table = self.table(request);
        let table = &mut self.tables[table];
        let revision = self.score.revision();
        let same = table.revision == revision && table.scores.len() == cluster.states().len();
        match cluster.changed_since(table.version).filter(|_| same) {
            Some(changed) => {
                for &node in changed {
                    table.update(&mut self.score, cluster, request, node as usize);
                }
            }
            None => {
                table.scores.resize(cluster.states().len(), NO);
                table.slots.resize(cluster.states().len(), 0);
                for node in 0..cluster.states().len() {
                    table.update(&mut self.score, cluster, request, node);
                }
            }
        }
        table.version = cluster.version();
        table.revision = revision;
        let mut best = Choice { node: 0, slot: 0 };
        let mut highest = NO;
        let nodes = table.scores.iter().zip(cluster.states()).enumerate();
        for (node, (&score, state)) in nodes.filter(|(_, (score, _))| **score > NO) {
            let rank = self.score.rank(score, state, request);
            if rank > highest {
                highest = rank;
                best.node = node;
            }
        }
        best.slot = usize::from(*table.slots.get(best.node)?);
        (highest > NO).then_some(best)
    }

    fn table(&mut self, request: &Request) -> usize {
        if let Some(&known) = self.index.get(request) {
            return known;
        }
        if self.tables.len() >= MAX_TABLES {
            self.index.clear();
            self.tables.clear();
        }
        self.index.insert(*request, self.tables.len());
        self.tables.push(Table::default());
        self.tables.len() - 1
    }
}

impl Table {
    fn update<S: Score>(&mut self, by: &mut S, cluster: &Cluster, request: &Request, node: usize) {
        let state = &cluster.states()[node];
        let fits = state.fits(request);
        let found = fits.then(|| by.score(state, request)).flatten();
        let (score, slot) = found.unwrap_or((NO, 0));
        self.scores[node] = score;
        self.slots[node] = slot as u8;
    }
}
