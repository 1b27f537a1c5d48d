//! Metrics and traces of what happens.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use gpuos_config::gpuos_toml::Config;
use gpuos_core::health::{Effect, Event};
use gpuos_workload::WorkloadManager;
use gpuos_workload::action::{Action, Outcome};

use super::effect::Now;
use crate::jobs::Table;
use crate::metrics::Keeper;
use crate::metrics::checkpoints::NamedJobs;
use crate::metrics::count::Act;
use crate::metrics::keep::Rest;
use crate::traces::Traces;

/// Counters and spans.
pub struct Telemetry {
    metrics: Keeper,
    traces: Traces,
}

impl Telemetry {
    /// Nothing is told before [`Telemetry::set`]. `interval` is that of the polls, `mover` the socket of gpuos_mover.
    pub fn new(
        node: &str,
        manager: Arc<dyn WorkloadManager>,
        (interval, mover): (Duration, PathBuf),
    ) -> Telemetry {
        Telemetry {
            metrics: Keeper::new(interval, mover),
            traces: Traces::new(node, manager),
        }
    }

    /// Takes `[metrics]` of gpuos.toml, and whether checkpoints are made on this site.
    pub fn set(&mut self, config: &Config) {
        self.metrics.set(&config.metrics, config.checkpoint.enabled);
        self.traces.set(&config.metrics);
    }

    /// The health rules are told something.
    pub fn event(&mut self, event: &Event, now: Now) {
        self.metrics.event(event);
        self.traces.event(now.wall_ms, event);
    }

    /// They want this done.
    pub fn effects(&mut self, effects: &[Effect], jobs: &Table, now: Now) {
        self.metrics.effects(effects);
        self.traces.effects(now.wall_ms, effects, jobs);
    }

    /// slurmctld answered.
    pub fn acted(&mut self, action: &Action, outcome: &Outcome, now: Now) {
        self.metrics.acted(action, outcome);
        self.traces.acted(now.wall_ms, action, outcome);
    }

    /// A process was killed, or could not be.
    pub fn killed(&mut self, ok: bool) {
        self.metrics.did(Act::KillProcess, ok);
    }

    /// What keeps metrics and traces from being told.
    pub fn troubles(&self) -> [(&'static str, Option<String>); 2] {
        [
            ("metrics", self.metrics.trouble()),
            ("traces", self.traces.trouble()),
        ]
    }

    /// Jobs of which checkpoints lie on this node; see [`Keeper::held`].
    pub fn held(&self) -> Option<NamedJobs> {
        self.metrics.held()
    }

    /// Hands the node over to Prometheus and the map files.
    pub fn show(&mut self, rest: &Rest<'_>) {
        self.metrics.show(rest);
    }
}
