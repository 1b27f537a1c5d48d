//! The leader's side of a restart: what all nodes have, which checkpoint is taken, and when all have their parts of it.
//!
//! ```text
//!  InventoryAsk ─► Inventory (all) ─► Plan ─► Repaired (all) ─► Settle ─► Settled (all)
//!                                      ▲          │ one cannot
//!                                      └──────────┘ that checkpoint is passed over, the next one is taken
//! ```
//!
//! Nobody goes on before all have their parts: a node that had begun to make checkpoints could not go back to an earlier plan.

use std::collections::{BTreeMap, BTreeSet};

use gpuos_checkpoint::commit::Digests;
use gpuos_checkpoint::ids::{CheckpointId, Digest, NodeIndex};
use gpuos_checkpoint::refusal::Refusal;
use gpuos_checkpoint::sets::Set;
use gpuos_checkpoint::stripe::Part;
use gpuos_checkpoint::usable::{self, HeldPart, Inventory, ManifestFacts, NodeSet, Verdict};

use crate::message::{Body, Facts, PartReport, Plan, Report, short};
use crate::settings::Settings;

/// So many checkpoints of earlier runs are kept at most; own choice.
const MOST_KEPT: usize = 16;

/// A restart as the leader sees it.
pub(crate) struct Restart {
    nodes: u16,
    keep: u32,
    full_every: u32,
    only: Option<u32>,
    above: Option<CheckpointId>,
    beyond: u32,
    sets: Vec<NodeSet>,
    reports: BTreeMap<NodeIndex, Report>,
    /// Checkpoints that could not be repaired, with the reason.
    failed: BTreeMap<CheckpointId, String>,
    /// Checkpoints that a program could not load, as any node has it.
    refused: BTreeMap<CheckpointId, Refusal>,
    plan: Option<Plan>,
    repaired: BTreeSet<NodeIndex>,
    settled: BTreeSet<NodeIndex>,
}

impl Restart {
    pub(crate) fn new(settings: &Settings) -> Restart {
        Restart {
            nodes: settings.nodes,
            keep: settings.keep,
            full_every: settings.full_every,
            only: settings.only,
            above: settings.above,
            beyond: settings.beyond,
            sets: settings.sets.iter().map(stripes).collect(),
            reports: BTreeMap::new(),
            failed: BTreeMap::new(),
            refused: BTreeMap::new(),
            plan: None,
            repaired: BTreeSet::new(),
            settled: BTreeSet::new(),
        }
    }

    /// What is to be said now, again as long as it has no answer.
    pub(crate) fn open(&self) -> Vec<(NodeIndex, Body)> {
        let all = (0..self.nodes).map(NodeIndex);
        let body = |node: NodeIndex| match &self.plan {
            None => (!self.reports.contains_key(&node)).then_some(Body::InventoryAsk),
            Some(plan) if self.repaired.len() == usize::from(self.nodes) => {
                let round = plan.round;
                (!self.settled.contains(&node)).then_some(Body::Settle { round })
            }
            Some(plan) => (!self.repaired.contains(&node)).then(|| Body::Plan(plan.clone())),
        };
        all.filter_map(|node| Some((node, body(node)?))).collect()
    }

    /// A node's report. What is to be said then.
    pub(crate) fn report(&mut self, from: NodeIndex, report: Report) -> Vec<(NodeIndex, Body)> {
        // The first counts: what a repair has made meanwhile must not change the choice.
        self.reports.entry(from).or_insert(report);
        if self.plan.is_some() || self.reports.len() < usize::from(self.nodes) {
            return Vec::new();
        }
        for part in self.reports.values().flat_map(|report| &report.parts) {
            if let Some(refusal) = &part.refused {
                let by = self.refused.entry(part.id);
                by.or_insert_with(|| refusal.clone());
            }
        }
        self.plan = Some(self.decide(1));
        self.open()
    }

    /// A node has done its part of a plan, or cannot.
    pub(crate) fn repaired(
        &mut self,
        from: NodeIndex,
        round: u32,
        failed: Option<String>,
    ) -> Vec<(NodeIndex, Body)> {
        let Some(plan) = self.plan.as_ref().filter(|plan| plan.round == round) else {
            return Vec::new();
        };
        match (failed, plan.restore) {
            (Some(why), Some(id)) => {
                let why = format!(
                    "checkpoint {}: node {from} cannot make its part again: {why}",
                    id.number
                );
                self.failed.insert(id, short(why));
                // Parts of the next one are to be made by all of them.
                self.repaired.clear();
                self.plan = Some(self.decide(round.saturating_add(1)));
            }
            _ => {
                self.repaired.insert(from);
                if self.repaired.len() < usize::from(self.nodes) {
                    return Vec::new();
                }
            }
        }
        self.open()
    }

    /// A node goes on with the plan.
    pub(crate) fn settled(&mut self, from: NodeIndex, round: u32) {
        if self.plan.as_ref().is_some_and(|plan| plan.round == round) {
            self.settled.insert(from);
        }
    }

    /// The digests of all manifests of a checkpoint. `None`: not all are known.
    pub(crate) fn digests(&self, id: CheckpointId) -> Option<Digests> {
        let mut known: BTreeMap<NodeIndex, Digest> = BTreeMap::new();
        for (node, report) in &self.reports {
            for part in report.parts.iter().filter(|part| part.id == id) {
                known.extend(part.own.iter().map(|own| (*node, own.digest)));
                for (of, copy) in &part.copies {
                    known.entry(*of).or_insert(copy.digest);
                }
            }
        }
        let all: Option<Vec<Digest>> = (0..self.nodes)
            .map(|node| known.get(&NodeIndex(node)).copied())
            .collect();
        all.map(Digests::from)
    }

    fn decide(&self, round: u32) -> Plan {
        let inventory = self.inventory();
        let parts = self.reports.values().flat_map(|report| &report.parts);
        let highest = parts.map(|part| part.id.number).max();
        let mut plan = Plan {
            round,
            restore: None,
            repair: Vec::new(),
            passed_over: Vec::new(),
            refused: self.refused.clone().into_iter().collect(),
            highest: highest.unwrap_or(0).max(self.beyond),
            lost: false,
            kept: Vec::new(),
            keep: self.keep,
            full_every: self.full_every,
        };
        let verdicts = match usable::judge(&inventory) {
            Ok(verdicts) => verdicts,
            Err(why) => {
                plan.passed_over.push(short(why));
                // Nothing shows that there is none.
                plan.lost = true;
                return plan;
            }
        };
        let (only, above) = (self.only, self.above);
        let wanted = |verdict: &&Verdict| {
            only.is_none_or(|only| only == verdict.id.number)
                && above.is_none_or(|above| above < verdict.id)
        };
        let wanted: Vec<Verdict> = verdicts.iter().filter(wanted).cloned().collect();
        if let (Some(only), true, None) = (only, wanted.is_empty(), above) {
            plan.passed_over
                .push(format!("there is no checkpoint {only}"));
        }
        let chosen = usable::choose(&wanted);
        for verdict in &wanted {
            if Some(verdict) == chosen {
                break;
            }
            if let Err(why) = &verdict.result {
                let refused = self.refused.get(&verdict.id);
                let refused = refused.map(|by| format!("checkpoint {}: {by}", verdict.id.number));
                let failed = || self.failed.get(&verdict.id).unwrap_or(why).clone();
                plan.passed_over.push(short(refused.unwrap_or_else(failed)));
            }
        }
        // What a program was given was committed, whatever has become of the note of it.
        let was = |verdict: &Verdict| verdict.committed || self.refused.contains_key(&verdict.id);
        // Who names one does not want to begin anew in its place.
        let counts = only.is_some() || verdicts.iter().any(was);
        let counts = counts && above.is_none();
        plan.lost = chosen.is_none() && counts;
        if let Some(id) = chosen.map(|verdict| verdict.id) {
            plan.restore = self.digests(id).map(|_| id);
            plan.repair = self.needs(id);
        }
        let usable = verdicts.iter().filter(|verdict| verdict.result.is_ok());
        let keep = usize::try_from(self.keep.max(1)).unwrap_or(usize::MAX);
        let newest = usable.take(keep.min(MOST_KEPT));
        let kept: BTreeSet<CheckpointId> = newest.chain(chosen).map(|verdict| verdict.id).collect();
        plan.kept = kept
            .into_iter()
            .rev()
            .map(|id| (id, self.needs(id)))
            .collect();
        plan
    }

    /// The checkpoints in whose segments the files of one lie, and itself, which comes last.
    fn needs(&self, id: CheckpointId) -> Vec<CheckpointId> {
        let parts = self.reports.values().flat_map(|report| &report.parts);
        let facts = parts.filter(|part| part.id == id).flat_map(|part| {
            part.own
                .iter()
                .chain(part.copies.iter().map(|copy| &copy.1))
        });
        let needs: BTreeSet<CheckpointId> = facts
            .flat_map(|facts| facts.segments.iter().copied())
            .collect();
        needs
            .into_iter()
            .filter(|other| *other != id)
            .chain([id])
            .collect()
    }

    fn inventory(&self) -> Inventory {
        // Who has nothing at all has lost its disk, or never had one here: for this it is gone.
        let left = self
            .reports
            .iter()
            .filter(|(_, report)| report.parts.iter().any(|part| !is_mark(part)));
        Inventory {
            nodes: self.nodes,
            sets: self.sets.clone(),
            left: left
                .map(|(node, report)| (*node, held(report, self.nodes)))
                .collect(),
            failed: self
                .failed
                .keys()
                .chain(self.refused.keys())
                .copied()
                .collect(),
            ..Inventory::default()
        }
    }
}

fn held(report: &Report, nodes: u16) -> BTreeMap<CheckpointId, HeldPart> {
    let facts = |facts: &Facts| ManifestFacts {
        segments: facts.segments.clone(),
    };
    let parts = report.parts.iter().filter(|part| !is_mark(part));
    let parts = parts.map(|part| {
        let held = HeldPart {
            manifest: part.own.as_ref().map(facts),
            committed: part.committed,
            // A report came from another node: it may name nodes that the job has not.
            copies: part
                .copies
                .iter()
                .filter(|(node, _)| node.0 < nodes)
                .map(|(node, copy)| (*node, facts(copy)))
                .collect(),
            segment: part.segment,
            shards: part
                .shards
                .iter()
                .map(|(stripe, holds)| (u16::from(*stripe), *holds))
                .collect(),
        };
        (part.id, held)
    });
    parts.collect()
}

/// Whether nothing of a checkpoint is there but that a program could not load it.
fn is_mark(part: &PartReport) -> bool {
    let nothing = part.own.is_none() && part.copies.is_empty() && part.shards.is_empty();
    nothing && !part.committed && part.refused.is_some()
}

/// The holders of the parity of each stripe of a set.
fn stripes(set: &Set) -> NodeSet {
    let geometry = set.geometry().filter(|geometry| geometry.parity() > 0);
    let holders = |stripe: u8| {
        let shards = geometry
            .into_iter()
            .flat_map(move |geometry| geometry.stripe(stripe));
        let parity = shards.filter(|shard| matches!(shard.part, Part::Parity(_)));
        parity
            .map(|shard| set.members[usize::from(shard.member)])
            .collect()
    };
    let stripes = 0..geometry.map_or(0, |geometry| geometry.members());
    NodeSet {
        members: set.members.clone(),
        stripes: stripes.map(holders).collect(),
    }
}
