//! The conductors of a job over a network that does its work.

use std::collections::{BTreeMap, BTreeSet};

use gpuos_checkpoint::commit::Outcome;
use gpuos_checkpoint::ids::{CheckpointId, NodeIndex};
use gpuos_checkpoint::refusal::Refusal;
use gpuos_mover::output::Ready;
use gpuos_mover::program::{
    Answered, Conductor, Every, Input, Join, Known, Output, Reason, Refused, Settings, Start, Told,
};

pub const MINUTE: u64 = 60_000;

/// The conductors of a job, and what came out of them beside words.
pub struct Bench {
    pub now: u64,
    pub nodes: Vec<Conductor>,
    joins: Vec<BTreeMap<u16, Join>>,
    every: Every,
    run: u32,
    /// What lies in the folder of each node.
    pub known: Vec<BTreeMap<u16, Answered>>,
    /// Answers are long in being carried out.
    pub slow: bool,
    /// Joins of processes that have ended.
    gone: BTreeSet<Join>,
    /// The highest number that each node has heard of.
    pub heard: Vec<u32>,
    /// What each node knows of a checkpoint that was being made when the movers began anew.
    pub left: Vec<Known>,
    /// What is said in the folder of each node of ranks that can begin from any number's files, and whether they need all.
    any: Vec<Vec<(Join, bool)>>,
    pub out: Vec<(u16, Output)>,
    /// Words are lost.
    pub cut: bool,
    /// What the next restart passes over.
    pub refused: Vec<(CheckpointId, Refusal)>,
}

pub fn ready(restore: Option<CheckpointId>) -> Ready {
    Ready {
        restore,
        passed_over: Vec::new(),
        refused: Vec::new(),
        highest: restore.map_or(0, |id| id.number),
        lost: false,
    }
}

pub fn id(number: u32) -> CheckpointId {
    CheckpointId { number, attempt: 5 }
}

impl Bench {
    pub fn with(nodes: u16, every: Every) -> Bench {
        Bench::of(nodes, every, 0)
    }

    /// A job that begins, at a site with a least time between two checkpoints.
    pub fn least(nodes: u16, every: Every, least_ms: u64) -> Bench {
        let mut bench = Bench::of(nodes, every, least_ms);
        bench.ready(None);
        bench
    }

    fn of(nodes: u16, every: Every, least_ms: u64) -> Bench {
        let settings = |node| Settings {
            least_ms,
            ..Settings::new(NodeIndex(node), nodes, 1, every)
        };
        Bench {
            now: 0,
            nodes: (0..nodes)
                .map(|node| Conductor::new(settings(node), 0))
                .collect(),
            joins: vec![BTreeMap::new(); nodes.into()],
            every,
            run: 1,
            known: vec![BTreeMap::new(); nodes.into()],
            slow: false,
            gone: BTreeSet::new(),
            heard: vec![0; nodes.into()],
            left: vec![Known::default(); nodes.into()],
            any: vec![Vec::new(); nodes.into()],
            out: Vec::new(),
            cut: false,
            refused: Vec::new(),
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
            let refused = self.refused.clone();
            let ready = Ready {
                lost: restore.is_none() && !refused.is_empty(),
                passed_over: refused
                    .iter()
                    .map(|(id, by)| format!("checkpoint {}: {by}", id.number))
                    .collect(),
                refused,
                ..ready(restore)
            };
            self.give(node, Input::Ready(ready));
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
                    output => {
                        if let Output::Answer { join, start, epoch } = &output
                            && !self.slow
                        {
                            self.lay(node, *join, *epoch, start);
                            inputs.insert(0, (node, self.known(node)));
                        }
                        self.out.push((node, output));
                    }
                }
            }
        }
    }

    fn lay(&mut self, node: u16, join: Join, epoch: u64, start: &Start) {
        let told = match start {
            Start::New => Told::New,
            Start::Restore { id, .. } | Start::All { id, .. } => Told::Restore(id.number),
            Start::Failed(_) => Told::Failed,
        };
        let answered = Answered { join, epoch, told };
        self.known[usize::from(node)].insert(join.rank, answered);
    }

    fn known(&self, node: u16) -> Input {
        let answered: Vec<Answered> = self.known[usize::from(node)].values().copied().collect();
        let epoch = answered.iter().map(|it| it.epoch).max();
        Input::Known(Known {
            answered,
            epoch: epoch.unwrap_or(0),
            highest: self.heard[usize::from(node)],
            ..self.left[usize::from(node)].clone()
        })
    }

    /// The movers begin anew, with what lies in the folders.
    pub fn anew(&mut self) {
        self.run += 1;
        for node in 0..self.nodes.len() as u16 {
            let nodes = self.nodes.len() as u16;
            let settings = Settings::new(NodeIndex(node), nodes, self.run, self.every);
            self.nodes[usize::from(node)] = Conductor::new(settings, self.now);
        }
        for node in 0..self.nodes.len() as u16 {
            self.give(node, self.known(node));
            self.look(node);
        }
    }

    /// All have the newest checkpoint, of one rank on each of the first nodes.
    pub fn restored(&mut self, number: u32, size: u16) {
        let id = id(number);
        self.ready(Some(id));
        for node in 0..self.nodes.len() as u16 {
            let ranks = if node < size {
                vec![(node, size)]
            } else {
                vec![]
            };
            self.give(node, Input::Holds { id, ranks });
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
        self.look(node);
    }

    /// The process of a rank ends, and its node gets to know.
    pub fn ends(&mut self, node: u16, rank: u16) {
        let join = self.joins[usize::from(node)][&rank];
        self.gone.insert(join);
        self.look(node);
    }

    /// It is said in a node's folder of these that they can begin from the files of any number of ranks.
    pub fn says(&mut self, node: u16, any: Vec<(Join, bool)>) {
        self.any[usize::from(node)] = any;
        self.look(node);
    }

    /// A mover looks into the folder.
    fn look(&mut self, node: u16) {
        let joins: Vec<Join> = self.joins[usize::from(node)].values().copied().collect();
        let gone = joins.iter().filter(|join| self.gone.contains(join));
        self.give(node, Input::Gone(gone.copied().collect()));
        self.give(node, Input::Any(self.any[usize::from(node)].clone()));
        self.give(node, Input::Joins(joins));
    }

    /// A rank says that it could not load what it was given by its last answer.
    pub fn refuse(&mut self, node: u16, rank: u16) {
        let it = self.known[usize::from(node)][&rank];
        let Told::Restore(number) = it.told else {
            panic!("{it:?}");
        };
        let refused = Refused {
            join: it.join,
            number,
            said: "no such layer".into(),
        };
        self.give(node, Input::Refused(Some(refused)));
    }

    /// The checkpoint that all nodes were told to mark since the last look, and whose rank has refused it.
    pub fn refused(&mut self) -> Option<(u32, u16)> {
        let out = self.out();
        let refused = out.iter().filter_map(|(_, output)| match output {
            Output::Refuse { id, by, .. } => Some((id.number, by.join.rank)),
            _ => None,
        });
        let refused: Vec<(u32, u16)> = refused.collect();
        assert!(
            refused.is_empty() || refused.len() == self.nodes.len(),
            "{out:?}"
        );
        refused.first().copied()
    }

    /// The movers begin anew after a refusal: of the checkpoints before one of so many ranks is the newest.
    pub fn anew_without(&mut self, refused: u32, before: Option<(u32, u16)>) {
        self.anew();
        let by = Refusal {
            rank: 1,
            node: "n1".into(),
            said: String::new(),
        };
        self.refused = vec![(id(refused), by)];
        match before {
            Some((number, size)) => self.restored(number, size),
            None => self.ready(None),
        }
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

    /// What came out since the last look, after another one of all movers.
    pub fn out(&mut self) -> Vec<(u16, Output)> {
        (0..self.nodes.len() as u16).for_each(|node| self.look(node));
        std::mem::take(&mut self.out)
    }

    pub fn answers(&mut self) -> Vec<(u16, Start)> {
        let answers = self.out().into_iter().map(|(_, output)| match output {
            Output::Answer { join, start, .. } => (join.rank, start),
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
