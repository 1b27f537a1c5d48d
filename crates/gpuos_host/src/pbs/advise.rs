//! A host on which another one gives GPUs to jobs, such as pbs_cgroups: what would be done is said to an administrator, and nothing is done.

use gpuos_core::health::ExtraPart;
use gpuos_core::job::JobId;
use gpuos_core::wire::{HostOrder, MomHost};
use gpuos_workload::action::Outcome;

use super::state::State;

impl State {
    /// Why nothing is done to a job.
    pub(super) fn left_alone(&self, job: &JobId) -> Option<Outcome> {
        let why = if self.advise {
            format!("gpuos only advises on this host: job {job} goes on")
        } else if !self.jobs.contains_key(job) {
            format!("job {job} is not here any more")
        } else {
            return None;
        };
        Some(Outcome::Nothing(why))
    }

    /// What an administrator is told where gpuos only advises, if something is to be done.
    pub(super) fn advice(&self) -> Option<String> {
        let out = self.wanted.as_ref().map(|part| self.out(part));
        let out = out.iter().flat_map(|gpus| gpus.iter());
        let out: Vec<String> = out.map(|gpu| gpu.to_string()).collect();
        let what = match (&self.drain, &out[..]) {
            (Some(Some(_)), _) => "this host".to_owned(),
            (_, []) => return None,
            (_, [gpu]) => format!("GPU {gpu}"),
            (_, gpus) => format!("GPUs {}", gpus.join(",")),
        };
        Some(format!(
            "{what} should get no more jobs; gpuos health there says why"
        ))
    }

    /// Whether pbs_server shows the advice. Where another comment stands there is no place for it.
    pub(super) fn is_advice_shown(&self, seen: &MomHost) -> bool {
        seen.commented || seen.reason == self.advice()
    }

    /// What mom does: it writes the advice.
    pub(super) fn advised(&self) -> HostOrder {
        let known = self.wanted.is_some() || self.drain.is_some();
        match self.advice() {
            _ if !known => HostOrder::Leave,
            None => HostOrder::Online,
            Some(advice) => HostOrder::Offline(advice),
        }
    }

    /// What counts as published of what is wanted: all of it, once the advice is shown.
    pub(super) fn advised_part(&self, mut part: ExtraPart) -> ExtraPart {
        let shown = self.is_shown();
        part.out.retain(|_| shown);
        part
    }
}
