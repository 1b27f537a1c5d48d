//! A node's own ranks: their joins and files as the leader has to know them, and what the leader says as the ranks have to.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use gpuos_checkpoint::ids::CheckpointId;
use gpuos_checkpoint::refusal::MAX_SAID;

use super::start::{Join, Reason};
use super::types::{Known, Making, Output, Refused, Stage, Told, View};
use super::word::{Asked, Orders, Report};
use crate::output::Ready;

/// So many failures are shown.
const FAILURES: usize = 8;

/// A checkpoint that the program was asked for.
#[derive(Clone, Debug)]
struct Open {
    ask: Asked,
    since: u64,
    saved: BTreeSet<u16>,
    /// The node was offered the folder: since when.
    offered: Option<u64>,
    /// One of the ranks has started anew: its files are not complete any more, whatever there is.
    broken: bool,
}

/// The ranks of one node.
#[derive(Clone, Debug, Default)]
pub(super) struct Member {
    ready: Option<Ready>,
    holds: Option<(CheckpointId, Vec<(u16, u16)>)>,
    joins: BTreeMap<u16, Join>,
    gone: Vec<Join>,
    found_gone: Vec<Join>,
    looked: u64,
    any: Vec<(Join, bool)>,
    answered: BTreeMap<u16, Join>,
    known: Known,
    refused: Option<Refused>,
    version: u64,
    orders: Orders,
    open: Option<Open>,
    asked: u32,
    ends: u32,
    failures: VecDeque<(u32, String)>,
    /// The highest number that programs here were told of.
    told: u32,
    /// What was open before this conductor began, and was said by it to have ended.
    settled: Option<u32>,
}

impl Member {
    pub(super) fn ready(&mut self, ready: Ready, now: u64, out: &mut Vec<Output>) {
        self.ready.get_or_insert(ready);
        self.follow(now, out);
    }

    pub(super) fn holds(&mut self, id: CheckpointId, mut ranks: Vec<(u16, u16)>) {
        ranks.retain(|(rank, size)| rank < size);
        ranks.sort_unstable();
        ranks.dedup();
        ranks.truncate(u16::MAX.into());
        self.holds = Some((id, ranks));
    }

    pub(super) fn known(&mut self, mut known: Known) {
        known.answered.retain(|it| it.join.rank < it.join.size);
        known.answered.truncate(u16::MAX.into());
        for it in &known.answered {
            // One that this conductor has answered may not lie in the folder yet.
            self.answered.entry(it.join.rank).or_insert(it.join);
        }
        self.known = known;
    }

    pub(super) fn refused(&mut self, refused: Option<Refused>) {
        self.refused =
            refused.filter(|it| it.join.rank < it.join.size && it.said.len() <= MAX_SAID);
    }

    /// It counts with the joins that follow.
    pub(super) fn gone(&mut self, gone: Vec<Join>) {
        self.found_gone = gone;
    }

    pub(super) fn any(&mut self, mut joins: Vec<(Join, bool)>) {
        joins.retain(|(join, _)| join.rank < join.size);
        joins.truncate(u16::MAX.into());
        self.any = joins;
    }

    pub(super) fn joins(&mut self, joins: Vec<Join>, now: u64, out: &mut Vec<Output>) {
        let joins = joins.into_iter().filter(|join| join.rank < join.size);
        self.joins = joins.map(|join| (join.rank, join)).collect();
        let is_newest = |join: &Join| self.joins.get(&join.rank) == Some(join);
        self.gone = std::mem::take(&mut self.found_gone);
        self.gone.retain(is_newest);
        self.looked = self.orders.look;
        if let Some(open) = &mut self.open
            && !are_current(&self.joins, &open.ask)
        {
            open.broken = true;
        }
        self.follow(now, out);
    }

    pub(super) fn saved(
        &mut self,
        number: u32,
        ranks: &BTreeSet<u16>,
        now: u64,
        out: &mut Vec<Output>,
    ) {
        if let Some(open) = self.open.as_mut().filter(|open| open.ask.number == number)
            && !open.broken
        {
            let asked = open.ask.joins.iter().map(|join| join.rank);
            open.saved.extend(asked.filter(|rank| ranks.contains(rank)));
            offer(open, now, out);
        }
    }

    pub(super) fn folder_read(&self, id: CheckpointId, out: &mut Vec<Output>) {
        let number = id.number;
        if self
            .open
            .as_ref()
            .is_some_and(|open| open.ask.number == number)
        {
            out.push(Output::Taken { number });
        }
    }

    pub(super) fn want(&mut self, reason: Reason) {
        let count = match reason {
            Reason::End => &mut self.ends,
            Reason::Asked | Reason::Interval => &mut self.asked,
        };
        *count = count.saturating_add(1);
    }

    /// What the leader has to know.
    pub(super) fn report(&self) -> Report {
        Report {
            heard: self.version,
            ready: self.ready.is_some(),
            holds: self.holds.clone(),
            joins: self.joins.values().copied().collect(),
            gone: self.gone.clone(),
            looked: self.looked,
            any: self.any.clone(),
            known: self.known.clone(),
            refused: self.refused.clone(),
            saved: self
                .open
                .as_ref()
                .map(|open| (open.ask.number, open.saved.clone())),
            asked: self.asked,
            ends: self.ends,
        }
    }

    /// What the leader says.
    pub(super) fn orders(&mut self, version: u64, orders: Orders, now: u64, out: &mut Vec<Output>) {
        if version > self.version {
            self.version = version;
            if let (None, Some((id, node, by))) = (&self.orders.refused, &orders.refused) {
                let (id, node, by) = (*id, *node, by.clone());
                out.push(Output::Refuse { id, node, by });
            }
            self.orders = orders;
            self.follow(now, out);
        }
    }

    /// Does what is still to be done of it: what has ended comes first, as an answer may be of that.
    fn follow(&mut self, now: u64, out: &mut Vec<Output>) {
        let number = self.orders.ask.as_ref().map(|ask| ask.number);
        if let Some(open) = self.open.take_if(|open| Some(open.ask.number) != number) {
            self.close(open.ask.number, out);
        }
        if let Some((number, outcome)) = self.orders.settled.clone()
            && self.known.open == Some(number)
            && self.settled.replace(number) != Some(number)
        {
            self.end(number, outcome, out);
        }
        // It came to nothing before this node heard of it: ranks here may wait for it, as ranks elsewhere have.
        if let Some((number, Err(_))) = self.orders.ended
            && number > self.told.max(self.known.highest)
        {
            self.close(number, out);
        }
        // Before, this node could not give a rank its files.
        if self.ready.is_none() {
            return;
        }
        for (start, joins) in &self.orders.answers {
            for join in joins {
                let is_current = self.joins.get(&join.rank) == Some(join);
                if is_current && self.answered.insert(join.rank, *join) != Some(*join) {
                    out.push(Output::Answer {
                        join: *join,
                        start: start.clone(),
                        epoch: self.orders.epoch,
                    });
                }
            }
        }
        if let Some(ask) = self.orders.ask.clone()
            && self.open.is_none()
            && are_current(&self.joins, &ask)
        {
            out.push(Output::Ask {
                number: ask.number,
                reason: ask.reason,
                ranks: ask
                    .joins
                    .iter()
                    .map(|join| (join.rank, join.size))
                    .collect(),
            });
            self.told = self.told.max(ask.number);
            let mut open = Open {
                ask,
                since: now,
                saved: BTreeSet::new(),
                offered: None,
                broken: false,
            };
            offer(&mut open, now, out);
            self.open = Some(open);
        }
    }

    fn close(&mut self, number: u32, out: &mut Vec<Output>) {
        let ended = self.orders.ended.as_ref().filter(|ended| ended.0 == number);
        let outcome = match ended {
            Some((_, outcome)) => outcome.clone(),
            None => Err("node 0, which leads, went on without it".into()),
        };
        self.end(number, outcome, out);
    }

    fn end(&mut self, number: u32, outcome: Result<(), String>, out: &mut Vec<Output>) {
        self.told = self.told.max(number);
        if let Err(why) = &outcome {
            self.failures.push_back((number, why.clone()));
            let excess = self.failures.len().saturating_sub(FAILURES);
            self.failures.drain(..excess);
        }
        out.push(Output::Close { number, outcome });
    }

    pub(super) fn view(&self) -> View {
        let making = self.open.as_ref().map(|open| Making {
            number: open.ask.number,
            reason: open.ask.reason,
            stage: match open.offered {
                Some(_) => Stage::Storing,
                None => Stage::Saving,
            },
            since: open.offered.unwrap_or(open.since),
        });
        View {
            joined: self.joins.len(),
            size: self.joins.values().map(|join| join.size).max(),
            making,
            restored: restored(self.ready.as_ref(), [&self.known]),
            failures: self.failures.iter().cloned().collect(),
            ..View::default()
        }
    }
}

/// From which checkpoint the program has gone on, as the folders of some nodes show, or would.
pub(super) fn restored<'a>(
    ready: Option<&Ready>,
    known: impl IntoIterator<Item = &'a Known>,
) -> Option<u32> {
    let answered = known.into_iter().flat_map(|known| &known.answered);
    let last = answered
        .filter(|it| it.told != Told::Failed)
        .max_by_key(|it| it.epoch);
    match last.map(|it| it.told) {
        Some(Told::Restore(number)) => Some(number),
        Some(_) => None,
        None => Some(ready?.restore?.number),
    }
}

/// Whether it is wanted of the processes that are there now.
fn are_current(joins: &BTreeMap<u16, Join>, ask: &Asked) -> bool {
    let mut asked = ask.joins.iter();
    asked.all(|join| joins.get(&join.rank) == Some(join))
}

/// When all ranks here have saved. A node without ranks has at once.
fn offer(open: &mut Open, now: u64, out: &mut Vec<Output>) {
    if open.offered.is_none() && open.saved.len() == open.ask.joins.len() {
        open.offered = Some(now);
        let number = open.ask.number;
        out.push(Output::Offer { number });
    }
}
