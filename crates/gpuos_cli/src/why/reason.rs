//! Slurm's reasons for waiting that have nothing to do with free GPUs.

use gpuos_host::slurm::Job;
use gpuos_host::slurm::act::held_comment;
use gpuos_host::slurm::in_command;

/// A sentence on why the job waits, when GPUs are not the cause. `None`: resources or
/// priority, which are worth a plan.
pub fn plain(job: &Job, name: &str) -> Option<String> {
    // All that waits together is held together.
    let all = in_command(job);
    // Slurm says no more than that it is held.
    if let Some(why) = held_comment(&job.admin_comment)
        && (job.reason.starts_with("JobHeld") || job.reason.contains("held_state"))
    {
        return Some(format!(
            "{}; `scontrol release {}` by an administrator lets it go at once",
            why.trim_start_matches("gpuos: "),
            all
        ));
    }
    let text = match job.reason.as_str() {
        "" | "None" | "Resources" | "Priority" | "NodeDown" | "ReqNodeNotAvail" => return None,
        "Dependency" => format!("it depends on other jobs ({})", job.dependency),
        "DependencyNeverSatisfied" => format!(
            "it depends on jobs that did not end as it demands ({}); it will never start: cancel it or change --dependency",
            job.dependency
        ),
        "JobHeldUser" => format!("its user holds it; `scontrol release {all}` lets it go"),
        "JobHeldAdmin" => "an administrator holds it; ask them to release it".into(),
        "BeginTime" => format!("it may start at {} at the earliest (--begin)", job.eligible),
        "Licenses" => format!("not all of its licences are free ({})", job.licenses),
        "JobArrayTaskLimit" => format!(
            "the array allows no more tasks at once ({})",
            job.array_tasks
        ),
        "JobHoldMaxRequeue" => {
            "it was requeued too often and is held; look at its output, then release it".into()
        }
        "PartitionDown" | "PartitionInactive" => {
            format!("partition {} starts no jobs now", job.partitions.join(","))
        }
        "PartitionNodeLimit" => format!(
            "partition {} does not allow that many nodes, or nodes that it needs are down or drained",
            job.partitions.join(",")
        ),
        "PartitionTimeLimit" => {
            format!(
                "partition {} does not allow its time limit {}",
                job.partitions.join(","),
                job.time_limit
            )
        }
        "Reservation" => format!("its reservation {} is not available yet", job.reservation),
        "ReservationDeleted" => "its reservation is gone; change --reservation or cancel it".into(),
        "Cleaning" => "its last run is still being cleaned up".into(),
        "BadConstraints" => {
            "Slurm says that no node meets its constraints; change the request".into()
        }
        "InvalidAccount" => "its account is not valid; change --account".into(),
        "InvalidQOS" => "its quality of service is not valid; change --qos".into(),
        "DeadLine" => "it cannot end before its deadline any more".into(),
        "BurstBufferResources" | "BurstBufferStageIn" | "BurstBufferOperation" => {
            "its burst buffer is not ready".into()
        }
        reason
            if reason.starts_with("QOS")
                || reason.starts_with("Assoc")
                || reason.starts_with("MaxQOS") =>
        {
            format!(
                "a limit of its account or quality of service is reached ({reason}); `sacctmgr show assoc` and `sacctmgr show qos` show the limits"
            )
        }
        reason if is_own(reason) || is_nodes(reason) => return None,
        reason => format!("Slurm says {}", words(reason)),
    };
    Some(format!("Job {name} waits, and not for GPUs: {text}."))
}

/// Whether gpuos itself set the reason.
pub fn is_own(reason: &str) -> bool {
    reason.starts_with("gpuos")
}

/// Slurm's long text about nodes that are down, drained or reserved.
fn is_nodes(reason: &str) -> bool {
    reason.starts_with("Nodes_required_for_job") || reason.starts_with("ReqNodeNotAvail")
}

/// scontrol writes blanks as underscores.
pub fn words(reason: &str) -> String {
    reason.replace('_', " ")
}
