//! Which GPUs are a job's: slurmctld's record says so, and nothing is done to another one for it.
//!
//! A step names its GPUs by variables of its environment. A user can write there; that Slurm removes what he wrote is not relied on.

use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use gpuos_core::job::JobId;
use gpuos_core::limits::Asked;
use gpuos_workload::job::Job;

use crate::jobs;

/// Slurm is asked about GPUs that steps name within this time, where nobody waits for it: not by all nodes of a job in one moment.
const SPREAD: Duration = Duration::from_secs(8);

/// Takes what a record gives a job here. Leaves in `gpus` and `asked` what of it may be done, and says what may not.
/// `record` is `None` where slurmctld says nothing, or nothing that can be gone by.
pub fn granted(
    node: &str,
    gpus: &mut Vec<u8>,
    asked: &mut Asked,
    record: Option<&Job>,
) -> Vec<String> {
    let waits = asked.waits();
    let Some(record) = record else {
        // Power and clocks stay a wish: they are set on what slurmctld gives the job, once it says so. MPS would come
        // too late for the programs of this step.
        let why = waits.then(|| no_record_message(asked).to_owned());
        asked.mps = None;
        return why.into_iter().collect();
    };
    let own = jobs::gpus_of(record, node);
    let shared = record.shared_on(node);
    let is_shared = |gpu: &u8| shared.contains(usize::from(*gpu));
    asked.shared |= waits && (record.shares || gpus.iter().any(is_shared));
    let named: BTreeSet<u8> = gpus.iter().copied().collect();
    let others = named.iter().filter(|gpu| !jobs::has(&own, **gpu));
    let others: Vec<String> = others.map(u8::to_string).collect();
    if others.is_empty() {
        return Vec::new();
    }
    gpus.retain(|gpu| jobs::has(&own, *gpu));
    if gpus.is_empty() {
        (asked.power, asked.clocks, asked.mps) = (None, None, None);
    }
    if record.shares {
        let what =
            "Slurm does not say of which GPUs this job has a part: they are left as they are";
        return vec![what.to_owned()];
    }
    vec![format!(
        "the environment names GPU {}, which Slurm has not given to this job here: nothing is done with it",
        others.join(",")
    )]
}

/// After how long this node asks about a job: each node of it at another time.
pub fn spread(node: &str, job: &JobId) -> Duration {
    let mut hasher = std::hash::DefaultHasher::new();
    (node, job).hash(&mut hasher);
    let most = SPREAD.as_millis() as u64;
    Duration::from_millis(hasher.finish() % most)
}

/// What a step is told whose job slurmctld says nothing of.
fn no_record_message(asked: &Asked) -> &'static str {
    match (asked.sets(), asked.mps.is_some()) {
        (true, true) => {
            "slurmctld does not say which GPUs this job has: MPS is not started, and power and clocks are set once it does"
        }
        (false, true) => "slurmctld does not say which GPUs this job has: MPS is not started",
        _ => {
            "slurmctld does not say which GPUs this job has: power and clocks are set once it does"
        }
    }
}
