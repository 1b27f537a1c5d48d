//! The movers of a job find each other: seat 0 asks all for what they have of the job, draws the roster, and tells it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use gpuos_checkpoint::ids::NodeIndex;
use gpuos_checkpoint::sets::{NodeDomains, Scheme};
use gpuos_mover::roster::{Claim, Roster, draw};

use crate::domains::satisfiable;

/// How long the movers of a job that has no checkpoints are waited for. Its programs wait meanwhile.
const FIRST: Duration = Duration::from_secs(60);
/// And of one that was started again: without them it would begin from its start.
const AGAIN: Duration = Duration::from_secs(300);
/// Others wait longer than seat 0, which can say why.
const OTHERS: Duration = Duration::from_secs(30);

/// What seat 0 knows of the others.
pub struct Gather {
    begun: Instant,
    claims: BTreeMap<u16, Option<Claim>>,
    chosen: Vec<(u32, u32)>,
    /// What was there before this run is looked for, also in a first run.
    is_long: bool,
}

impl Gather {
    /// Nothing is known yet.
    pub fn new() -> Gather {
        Gather {
            begun: Instant::now(),
            claims: BTreeMap::new(),
            chosen: Vec::new(),
            is_long: false,
        }
    }

    /// A seat has this, or nothing, and knows of this choice for a run.
    pub fn claim(&mut self, seat: u16, claim: Option<Claim>, chosen: Option<(u32, u32)>) {
        self.chosen.extend(chosen);
        self.claims.entry(seat).or_insert(claim);
    }

    /// Whether a seat has to be asked still.
    pub fn lacks_claim(&self, seat: u16) -> bool {
        !self.claims.contains_key(&seat)
    }

    /// Whether all seats have answered, of so many.
    pub fn is_full(&self, seats: usize) -> bool {
        self.claims.len() >= seats
    }

    /// Gives seats that have nothing the claims of nodes that are lost, in their order.
    pub fn fill(&mut self, lost: Vec<Claim>) {
        let has = |index| {
            self.claims
                .values()
                .flatten()
                .any(|claim| claim.index == index)
        };
        let mut open: Vec<Claim> = lost.into_iter().filter(|claim| !has(claim.index)).collect();
        open.reverse();
        let empty = self.claims.values_mut().filter(|claim| claim.is_none());
        empty.for_each(|claim| *claim = open.pop());
    }

    /// What was chosen for a run, as seats know, or `others`.
    pub fn chosen(&self, run: u32, others: &[(u32, u32)]) -> Option<u32> {
        let mut all = self.chosen.iter().chain(others);
        all.find(|chosen| chosen.0 == run).map(|chosen| chosen.1)
    }

    /// What the seats that have answered have, in their order.
    pub fn claims(&self) -> Vec<Option<Claim>> {
        self.claims.values().cloned().collect()
    }

    /// Whether the nodes themselves can make whole what the newest of them has, all being heard: of each set no more are missing than it can
    /// lose. Then nobody outside has to be asked, and a node that is dead is not waited for.
    pub fn covers(&self, nodes: u16) -> bool {
        let claims: Vec<&Claim> = self.claims.values().flatten().collect();
        let Some(first) = claims.first() else {
            return false;
        };
        let is_there = |index: &NodeIndex| claims.iter().any(|claim| claim.index == *index);
        let is_covered = |index: NodeIndex| {
            let set = claims.iter().find(|claim| claim.set.contains(&index));
            set.is_some_and(|claim| {
                let missing = claim.set.iter().filter(|member| !is_there(member));
                missing.count() <= usize::from(claim.parity)
            })
        };
        claims.iter().all(|claim| claim.newest == first.newest)
            && (0..nodes).map(NodeIndex).all(is_covered)
    }

    /// The checkpoints of another job are gathered, which nodes outside may have to be asked for.
    pub fn take_longer(&mut self) {
        self.is_long = true;
    }

    /// Whether it has taken too long, in run `run` of the job. `leads`: this is seat 0.
    pub fn is_late(&self, run: u32, leads: bool) -> bool {
        let limit = if run == 0 && !self.is_long {
            FIRST
        } else {
            AGAIN
        };
        let more = if leads { Duration::ZERO } else { OTHERS };
        self.begun.elapsed() > limit + more
    }

    /// The roster, once all claims are known. `levels` are those of the domains, in the order of their weight.
    ///
    /// # Errors
    /// A sentence: there can be none.
    pub fn draw(
        &self,
        scheme: Scheme,
        domains: &[NodeDomains],
        levels: &[String],
    ) -> Option<Result<Roster, String>> {
        if self.claims.len() < domains.len() {
            return None;
        }
        let (domains, notes) = satisfiable(domains, levels, scheme);
        let seats: Vec<(Option<Claim>, NodeDomains)> =
            self.claims.values().cloned().zip(domains).collect();
        Some(draw(&seats, scheme).map(|mut roster| {
            roster.notes.extend(notes);
            roster
        }))
    }
}
