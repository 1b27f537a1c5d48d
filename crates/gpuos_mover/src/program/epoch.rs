//! One start of the program: who has joined, and from what all of them begin.

use std::collections::BTreeMap;

use gpuos_checkpoint::ids::{CheckpointId, NodeIndex};

use super::start::{Join, Start};
use super::types::Told;
use super::word::short;

/// From what an epoch begins.
#[derive(Clone, Debug)]
pub(super) enum Base {
    /// Nothing was committed.
    Nothing,
    /// There is something, and it cannot be loaded.
    Lost(String),
    /// What an earlier conductor has settled, and is not the newest any more: all ranks have their answers. Whether they run.
    Past { runs: bool },
    /// A checkpoint of so many ranks, with the node that holds each one's files.
    Made {
        id: CheckpointId,
        size: u16,
        holders: BTreeMap<u16, NodeIndex>,
    },
}

impl Base {
    /// The base that the manifests of a checkpoint's nodes make up: rank and number of ranks of each folder.
    pub(super) fn of(id: CheckpointId, held: &[(NodeIndex, Vec<(u16, u16)>)]) -> Base {
        let folders = held
            .iter()
            .flat_map(|(node, ranks)| ranks.iter().map(|folder| (*node, *folder)));
        let Some(size) = folders.clone().map(|(_, (_, size))| size).next() else {
            let why = "has no files of ranks, so that none can begin from it";
            return Base::lost(id, why.into());
        };
        if folders.clone().any(|(_, (_, other))| other != size) {
            return Base::lost(
                id,
                "has files of programs with different numbers of ranks".into(),
            );
        }
        let mut holders = BTreeMap::new();
        for (node, (rank, _)) in folders {
            holders.entry(rank).or_insert(node);
        }
        if let Some(rank) = (0..size).find(|rank| !holders.contains_key(rank)) {
            return Base::lost(id, format!("has no files of rank {rank} of {size}"));
        }
        Base::Made { id, size, holders }
    }

    fn lost(id: CheckpointId, why: String) -> Base {
        Base::Lost(format!(
            "checkpoint {} {why}; nothing was removed, look at it with gpuos ckpt list",
            id.number
        ))
    }

    /// How a rank begins. `None`: that is not known before all have joined.
    pub(super) fn start(&self, join: Join, reads: Reads) -> Option<Start> {
        Some(match self {
            Base::Nothing => Start::New,
            Base::Lost(why) => Start::Failed(short(why.clone())),
            Base::Past { .. } => {
                Start::Failed("the program has started without this rank; start it again".into())
            }
            Base::Made { size, .. } if *size == join.size && reads == Reads::Waits(true) => {
                return None;
            }
            Base::Made { id, size, holders } if *size != join.size || reads == Reads::All(true) => {
                match reads {
                    Reads::Waits(_) => return None,
                    // There is one for each rank.
                    Reads::All(_) => Start::All {
                        id: *id,
                        holders: holders.values().copied().collect(),
                    },
                    Reads::Own => Start::Failed(format!(
                        "checkpoint {} was made by {size} ranks, and the program has {}; start it with {size}, have all its ranks say that they can \
                     read the files of any number (any_ranks), or remove the job's checkpoints with gpuos ckpt prune --anew",
                        id.number, join.size
                    )),
                    Reads::Mixed(rank) => Start::Failed(format!(
                        "checkpoint {} was made by {size} ranks, and rank {rank} of the program's {} does not say that it can read the files of any \
                     number (any_ranks), as this one does",
                        id.number, join.size
                    )),
                }
            }
            Base::Made { id, holders, .. } => match holders.get(&join.rank) {
                Some(from) => Start::Restore {
                    id: *id,
                    from: *from,
                },
                None => Start::Failed(format!(
                    "checkpoint {} has no files of rank {}",
                    id.number, join.rank
                )),
            },
        })
    }

    /// What ranks are told that begin from it.
    pub(super) fn told(&self) -> Told {
        match self {
            Base::Nothing => Told::New,
            Base::Lost(_) | Base::Past { .. } => Told::Failed,
            Base::Made { id, .. } => Told::Restore(id.number),
        }
    }

    /// Whether a program of so many ranks runs on, which it does not if it was told to end with an error. `any`: it can read the files of any
    /// number.
    pub(super) fn admits(&self, ranks: u16, any: bool) -> bool {
        match self {
            Base::Nothing => true,
            Base::Lost(_) => false,
            Base::Past { runs } => *runs,
            Base::Made { size, .. } => *size == ranks || any,
        }
    }
}

/// Whose files a rank can begin from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reads {
    /// Those of its own number of its own size.
    Own,
    /// Those of any, and so can all ranks of the program. Whether all of them need them in any case.
    All(bool),
    /// Those of any, and this rank cannot.
    Mixed(u16),
    /// Those of any, and others have not joined. Whether it needs them in any case.
    Waits(bool),
}

/// All ranks have joined.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Complete {
    pub(super) size: u16,
    /// Since the last join.
    pub(super) since: u64,
}

/// An epoch.
#[derive(Clone, Debug)]
pub(super) struct Epoch {
    pub(super) number: u64,
    joined: BTreeMap<u16, (Join, NodeIndex)>,
    /// How many have joined that name so many ranks.
    counts: BTreeMap<u16, usize>,
    /// Ranks of the last join.
    size: Option<u16>,
    pub(super) complete: Option<Complete>,
    /// Settled once for all ranks.
    pub(super) base: Option<Base>,
    /// A checkpoint of it was begun.
    pub(super) begun: bool,
    /// Every node was heard since all ranks have joined.
    pub(super) heard: bool,
    /// Who has ended of those that have joined is known, and nobody has.
    pub(super) alive: bool,
    /// Ranks wait for each other: none is answered before all have joined.
    pub(super) together: Option<Together>,
}

/// For how long ranks wait for each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Together {
    /// The checkpoint that some of them were given before, and that was refused; `None`: they wait because they are to go on from one,
    /// and those that do not come may have begun from the start.
    pub(super) refused: Option<u32>,
    /// When it is over, once one has joined.
    pub(super) until: Option<u64>,
    /// It is over, and not all have come.
    pub(super) over: bool,
}

impl Together {
    pub(super) fn after(refused: u32) -> Together {
        Together {
            refused: Some(refused),
            ..Together::to_go_on()
        }
    }

    fn to_go_on() -> Together {
        Together {
            refused: None,
            until: None,
            over: false,
        }
    }
}

impl Epoch {
    pub(super) fn new(number: u64) -> Epoch {
        Epoch {
            number,
            joined: BTreeMap::new(),
            counts: BTreeMap::new(),
            size: None,
            complete: None,
            base: None,
            begun: false,
            heard: false,
            alive: false,
            together: None,
        }
    }

    /// An epoch of an earlier conductor whose base is the newest checkpoint still.
    pub(super) fn resumed(number: u64, base: Base) -> Epoch {
        let mut epoch = Epoch::new(number);
        epoch.settle(base);
        epoch
    }

    /// From now on it is known from what its ranks begin.
    pub(super) fn settle(&mut self, base: Base) {
        if matches!(base, Base::Made { .. }) {
            self.together.get_or_insert_with(Together::to_go_on);
        }
        self.base = Some(base);
    }

    /// One whose base is not: there are no more answers in it. Whether its ranks run.
    pub(super) fn past(number: u64, runs: bool) -> Epoch {
        Epoch {
            begun: true,
            ..Epoch::resumed(number, Base::Past { runs })
        }
    }

    /// The join of a rank, and its node.
    pub(super) fn of_rank(&self, rank: u16) -> Option<(Join, NodeIndex)> {
        self.joined.get(&rank).copied()
    }

    /// A rank belongs to it that was answered before.
    pub(super) fn count_in(&mut self, join: Join, node: NodeIndex, now: u64) {
        if let Some((before, _)) = self.joined.insert(join.rank, (join, node))
            && let Some(count) = self.counts.get_mut(&before.size)
        {
            *count -= 1;
        }
        *self.counts.entry(join.size).or_default() += 1;
        self.size = Some(join.size);
        (self.heard, self.alive) = (false, false);
        let before = self.complete.map(|complete| complete.size);
        let sizes = [Some(join.size), before].into_iter().flatten();
        let whole = sizes.into_iter().find(|size| self.is_whole(*size));
        // Joins of an earlier start with more ranks may become known after all of this one's.
        self.complete = whole.map(|size| Complete { size, since: now });
    }

    /// Whether a rank that joins again begins a new epoch.
    fn is_closed(&self, now: u64, settle_ms: u64) -> bool {
        let settled = |complete: Complete| now >= complete.since.saturating_add(settle_ms);
        self.begun || (self.heard && self.complete.is_some_and(settled))
    }

    /// A rank has joined on a node. Whether anything is new by that. `waits`: its join before has no answer, so that it is no new start of
    /// the program.
    pub(super) fn join(
        &mut self,
        join: Join,
        node: NodeIndex,
        (now, settle_ms): (u64, u64),
        waits: bool,
    ) -> bool {
        if self.joined.get(&join.rank) == Some(&(join, node)) {
            return false;
        }
        let over = self.together.is_some_and(|together| together.over);
        if over || (self.is_closed(now, settle_ms) && (self.begun || !waits)) {
            // Ranks that were answered together need not wait for each other next time.
            let together = self
                .together
                .filter(|it| it.over || self.complete.is_none() || self.is_past());
            *self = Epoch {
                together: together.and_then(|it| it.refused).map(Together::after),
                ..Epoch::new(self.number.saturating_add(1))
            };
        }
        self.count_in(join, node, now);
        true
    }

    fn is_past(&self) -> bool {
        matches!(self.base, Some(Base::Past { .. }))
    }

    /// Time went by, and ranks wait for others: after a refusal for `anew_ms`, otherwise for `join_ms`. Whether they do no longer, since
    /// these do not come. `waits`: somebody has no answer.
    pub(super) fn is_given_up(
        &mut self,
        now: u64,
        (anew_ms, join_ms): (u64, u64),
        waits: bool,
    ) -> bool {
        let waits = waits && !self.is_there() && !self.is_past();
        let Some(together) = self.together.as_mut().filter(|it| !it.over) else {
            return false;
        };
        if !waits {
            together.until = None;
            return false;
        }
        let limit = if together.refused.is_some() {
            anew_ms
        } else {
            join_ms
        };
        let until = *together.until.get_or_insert(now.saturating_add(limit));
        together.over = now >= until;
        together.over
    }

    /// All have joined that go on together.
    fn is_there(&self) -> bool {
        let refused = self.together.is_some_and(|it| it.refused.is_some());
        self.complete.is_some() && (self.alive || refused)
    }

    /// Whether of those that have joined, with their nodes, any is such.
    pub(super) fn has(&self, mut such: impl FnMut(Join, NodeIndex) -> bool) -> bool {
        self.joined.values().any(|(join, node)| such(*join, *node))
    }

    fn is_whole(&self, size: u16) -> bool {
        self.counted(size) == usize::from(size)
    }

    fn counted(&self, size: u16) -> usize {
        self.counts.get(&size).copied().unwrap_or(0)
    }

    /// Ranks of the program: of all that have joined, or of the last join.
    pub(super) fn size(&self) -> Option<u16> {
        self.complete.map(|complete| complete.size).or(self.size)
    }

    /// How many ranks of the program have joined.
    pub(super) fn count(&self) -> usize {
        self.size().map_or(0, |size| self.counted(size))
    }

    /// All ranks of a complete epoch with their nodes.
    pub(super) fn ranks(&self, size: u16) -> BTreeMap<u16, (Join, NodeIndex)> {
        let all = self.joined.values().copied();
        let all = all.filter(|(join, _)| join.size == size);
        all.map(|(join, node)| (join.rank, (join, node))).collect()
    }

    /// The first rank of the program that does not read the files of any number of ranks, as those of `any` do. `None`: all do.
    pub(super) fn own_alone(&self, size: u16, any: &BTreeMap<Join, bool>) -> Option<u16> {
        let ranks = self.ranks(size);
        let mut own = ranks.values().filter(|(join, _)| !any.contains_key(join));
        own.next().map(|(join, _)| join.rank)
    }

    /// The answers, by node and then by what is answered. `any`: who can begin from the files of any number of ranks.
    pub(super) fn answers(
        &self,
        any: &BTreeMap<Join, bool>,
    ) -> BTreeMap<NodeIndex, BTreeMap<Start, Vec<Join>>> {
        let mut answers: BTreeMap<NodeIndex, BTreeMap<Start, Vec<Join>>> = BTreeMap::new();
        let Some(base) = &self.base else {
            return answers;
        };
        if self.is_past() {
            return answers;
        }
        let lost = matches!(base, Base::Lost(_));
        let open = self.together.filter(|_| !self.is_there() && !lost);
        if open.is_some_and(|together| !together.over && together.refused.is_some()) {
            return answers;
        }
        let whole = self.complete.map(|complete| {
            let own = self.own_alone(complete.size, any);
            let ranks = self.ranks(complete.size);
            let every = ranks.values().all(|(join, _)| any.get(join) == Some(&true));
            (complete.size, own.map_or(Reads::All(every), Reads::Mixed))
        });
        for (join, node) in self.joined.values() {
            let reads = match (any.get(join), whole.filter(|(size, _)| *size == join.size)) {
                (None, _) => Reads::Own,
                (Some(_), Some((_, reads))) => reads,
                (Some(every), None) => Reads::Waits(*every),
            };
            let begun = base.start(*join, reads);
            let from = match (base, &begun) {
                (Base::Made { id, .. }, None | Some(Start::Restore { .. } | Start::All { .. })) => {
                    Some(id.number)
                }
                _ => None,
            };
            let start = match (begun, &open, from) {
                (None, None, _) => continue,
                (Some(start), None, _) => start,
                (_, Some(together), Some(_)) if !together.over => continue,
                (begun, Some(together), from) => match (together.refused, from, begun) {
                    (Some(refused), ..) => Start::Failed(format!(
                        "checkpoint {refused} was refused, and not all ranks that were given it have joined again; start all of the program again"
                    )),
                    (None, Some(number), _) => Start::Failed(format!(
                        "{} of {} ranks have joined, and those that have not may have begun from the start, so that none goes on from \
                         checkpoint {number}; see why in the job's standard error, and start all of the program again",
                        self.counted(join.size),
                        join.size,
                    )),
                    (None, None, Some(start)) => start,
                    (None, None, None) => continue,
                },
            };
            let of_node = answers.entry(*node).or_default();
            of_node.entry(start).or_default().push(*join);
        }
        answers
    }
}
