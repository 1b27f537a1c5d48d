//! What subsystems may look at of each other.

use std::time::Duration;

use gpuos_core::health::NodeHealth;

use super::effect::Now;
use super::gpus::Gpus;
use super::health::Health;
use super::reports::Reports;
use super::scheduler::Scheduler;
use super::troubles::Troubles;
use crate::jobs::Table;

/// What of the node many look at.
pub struct Node {
    /// Slurm's name of the node.
    pub name: String,
    /// Time between polls.
    pub interval: Duration,
    /// The health of its GPUs.
    pub health: Health,
    /// Who they are.
    pub gpus: Gpus,
    /// Who has them.
    pub reports: Reports,
    /// What slurmctld is asked and told.
    pub scheduler: Scheduler,
    /// What keeps the daemon from its work.
    pub troubles: Troubles,
}

/// The same, to be looked at.
#[derive(Clone, Copy)]
pub struct Facts<'a> {
    /// The clocks.
    pub now: Now,
    /// Slurm's name of the node.
    pub node: &'a str,
    /// Time between polls.
    pub interval: Duration,
    /// The health of its GPUs.
    pub health: &'a NodeHealth,
    /// Who they are.
    pub gpus: &'a Gpus,
    /// Who has them.
    pub jobs: &'a Table,
    /// What keeps the daemon from its work.
    pub troubles: &'a Troubles,
    /// slurmctld may be asked: it is not waited for.
    pub may_ask: bool,
}

impl Facts<'_> {
    /// Milliseconds since the library answered.
    pub fn sampled_ms_ago(&self) -> Option<u64> {
        let ago = |at| self.now.at.saturating_duration_since(at).as_millis() as u64;
        self.gpus.polled().map(ago)
    }
}

impl Node {
    /// How the node is now.
    pub fn facts(&self, now: Now) -> Facts<'_> {
        Facts {
            now,
            node: &self.name,
            interval: self.interval,
            health: self.health.node(),
            gpus: &self.gpus,
            jobs: self.reports.table(),
            troubles: &self.troubles,
            may_ask: self.scheduler.may_ask(now.at),
        }
    }
}
