//! A gpuosd that was built without traces.

use std::sync::Arc;

use gpuos_config::gpuos_toml::MetricsConfig;
use gpuos_core::health::{Effect, Event};
use gpuos_workload::WorkloadManager;
use gpuos_workload::action::{Action, Outcome};

use crate::jobs::Table;

/// Tells nobody.
#[derive(Debug, Default)]
pub struct Traces {
    asked: bool,
}

impl Traces {
    /// Nothing is told, of whatever node.
    pub fn new(_node: &str, _manager: Arc<dyn WorkloadManager>) -> Traces {
        Traces::default()
    }

    /// Takes `[metrics]` of gpuos.toml.
    pub fn set(&mut self, config: &MetricsConfig) {
        self.asked = config.traces.is_some();
    }

    /// The rules are told of it.
    pub fn event(&self, _at_ms: u64, _event: &Event) {}

    /// The rules want it done.
    pub fn effects(&self, _at_ms: u64, _effects: &[Effect], _jobs: &Table) {}

    /// slurmctld answered.
    pub fn acted(&self, _at_ms: u64, _action: &Action, _outcome: &Outcome) {}

    /// That traces are wanted here.
    pub fn trouble(&self) -> Option<String> {
        self.asked.then(|| {
            "no traces: this gpuosd was built without them; build it with `--features otel`, or take traces \
             out of [metrics] in gpuos.toml"
                .into()
        })
    }
}
