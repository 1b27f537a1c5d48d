//! The restart, as a node follows it: what it has, its parts made again, and the begin of its run.

use gpuos_checkpoint::commit::{Digests, Held, Input};
use gpuos_checkpoint::ids::{CheckpointId, LEADER, NodeIndex};
use gpuos_store::disk::Disk;
use gpuos_store::error::{Kind, Result as Stored};

use super::{Node, Phase};
use crate::inventory;
use crate::keeping::Keeping;
use crate::local::digest;
use crate::message::{Body, Plan, short};
use crate::output::{Output, Ready};
use crate::rebuild::Repair;

impl<D: Disk> Node<'_, D> {
    pub(super) fn inventory(&mut self, from: NodeIndex) {
        if !matches!(self.phase, Phase::Waiting) {
            return;
        }
        if self.report.is_none() {
            match inventory::report(&mut self.local) {
                Ok(report) => self.report = Some(report),
                // Without an answer the leader asks again.
                Err(error) => return self.local.note(error.to_string()),
            }
        }
        if let Some(report) = self.report.clone() {
            self.deliver(vec![(from, Body::Inventory(report))]);
        }
    }

    /// How to go on. It may come again, and a later one replaces one that could not be followed.
    pub(super) fn plan(&mut self, plan: Plan) {
        let round = match &self.phase {
            Phase::Waiting => 0,
            Phase::Repairing(own) | Phase::Repaired(own, _) => own.round,
            Phase::Running(_) => return,
        };
        if plan.round > round {
            let repair = plan.repair.clone();
            self.phase = Phase::Repairing(plan);
            self.begin_repair(&repair);
        } else if let Phase::Repaired(own, failed) = &self.phase
            && own.round == plan.round
        {
            let failed = failed.clone();
            self.deliver(vec![(LEADER, Body::Repaired { round, failed })]);
        }
    }

    pub(super) fn begin_repair(&mut self, ids: &[CheckpointId]) {
        let mut repair = Repair::new(&self.local, ids);
        let ended = repair.go_on(&mut self.local);
        self.repair = Some(repair);
        self.repaired(ended);
    }

    pub(super) fn repaired(&mut self, ended: Option<Result<(), String>>) {
        let Some(ended) = ended else { return };
        self.repair = None;
        let failed = ended.err().map(short);
        if let Some(id) = self.wanted.take() {
            self.local.out.push(Output::Rebuilt { id, failed });
        } else if let Phase::Repairing(plan) = &self.phase {
            let (plan, round) = (plan.clone(), plan.round);
            self.phase = Phase::Repaired(plan, failed.clone());
            self.deliver(vec![(LEADER, Body::Repaired { round, failed })]);
        }
    }

    /// All nodes have their parts of what is restored, so that it is as good as committed: each records it, the leader first.
    pub(super) fn settle(&mut self, round: u32) {
        if let Phase::Repaired(plan, None) = &self.phase
            && plan.round == round
        {
            let plan = plan.clone();
            self.mark(&plan);
            let held = match self.adopt(&plan).and_then(|()| self.held(&plan)) {
                Ok(held) => held,
                // The leader says it again.
                Err(error) => return self.local.note(error.to_string()),
            };
            self.report = None;
            self.local.base = plan.restore;
            self.local.keeping = Some(Keeping::of(&plan, self.local.settings.nodes));
            self.local.out.push(Output::Ready(Ready {
                restore: plan.restore,
                passed_over: plan.passed_over.clone(),
                refused: plan.refused.clone(),
                highest: plan.highest,
                lost: plan.lost,
            }));
            self.phase = Phase::Running(plan);
            self.run(Input::Restarted {
                held,
                begun: Vec::new(),
                adopt: None,
            });
        }
        if matches!(&self.phase, Phase::Running(plan) if plan.round == round) {
            self.deliver(vec![(LEADER, Body::Settled { round })]);
        }
    }

    fn adopt(&self, plan: &Plan) -> Stored<()> {
        let Some(id) = plan.restore else {
            return Ok(());
        };
        let newest = || self.local.job.current().ok().flatten();
        // Who reads another job's goes back to an older one for itself alone.
        if self.local.settings.passed.is_some() && newest() > Some(id) {
            return Ok(());
        }
        self.local.job.adopt(id)
    }

    /// What other nodes have marked as refused is marked here, too: they may be lost. What is another job's stays as it is.
    fn mark(&mut self, plan: &Plan) {
        if self.local.settings.passed.is_some() {
            return;
        }
        for (id, refusal) in &plan.refused {
            match self.local.job.refuse(*id, refusal) {
                // Nothing of it is here.
                Err(error) if error.kind == Kind::Missing => {}
                Err(error) => self.local.note(error.to_string()),
                Ok(()) => {}
            }
        }
    }

    /// The parts here, as the commit has to know them. Later ones than the restored one count as not committed. Earlier ones that it
    /// refers to count as committed, although a node that made its part again has no record of it: nobody may drop them.
    fn held(&mut self, plan: &Plan) -> Stored<Vec<Held>> {
        let restored = plan.restore;
        let mut held = Vec::new();
        for part in inventory::list(&mut self.local)? {
            let Ok(bytes) = self.local.job.manifest_bytes(part.id, None) else {
                continue;
            };
            let earlier =
                |other: CheckpointId| restored.is_some_and(|id| other.number <= id.number);
            let recorded = part.committed && earlier(part.id);
            let needed = plan.repair.contains(&part.id);
            // Only the leader passes the digests on. Those of a part that is not whole are not known, and nobody asks for them.
            let known = self
                .restart
                .as_ref()
                .and_then(|restart| restart.digests(part.id));
            let digests = known.unwrap_or_else(|| Digests::from(Vec::new()));
            held.push(Held {
                id: part.id,
                digest: digest(&bytes),
                committed: (recorded || needed).then_some(digests),
            });
        }
        Ok(held)
    }
}
