//! Steps that ask for memory beyond that of their GPUs of which slurmctld never heard, round what srun checks.

use crate::attempt::{Attempt, attempt, ensure, judge};
use crate::users::MALLORY;

/// SECURITY.md's name of the input.
const INPUT: &str = "Memory beyond that of GPUs, and in turns";

/// The attempts.
pub fn all() -> Vec<Attempt> {
    let mut all = Vec::new();
    let holds =
        "the step has no GPU but its job's, and the job no memory but what slurmctld counts";
    for (name, step) in [
        (
            "16 TiB by what a job hands to its steps",
            "GPUOS_JOB_LIMITS=mem=16T srun -n1 --gpuos-mem=16T",
        ),
        (
            "a size with a path and a line by what a job hands to its steps",
            "GPUOS_JOB_LIMITS=\"$(printf 'mem=1G/../../etc\nLD_PRELOAD=/x')\" srun -n1 --gpuos-mem=1G",
        ),
        (
            "turns of 16 TiB on a whole GPU by what a job hands to its steps",
            "GPUOS_JOB_LIMITS=share=timeslice,mem=16T SLURM_SHARDS_ON_NODE=4 srun -n1 --gpuos-share=timeslice,mem=16T",
        ),
        (
            "turns with a line and a path by what a job hands to its steps",
            "GPUOS_JOB_LIMITS=\"$(printf 'share=timeslice,mem=1G\nLD_PRELOAD=/x share=timeslice,mem=../../etc')\" SLURM_SHARDS_ON_NODE=4 srun -n1",
        ),
        (
            "a library and a socket of one's own",
            "LD_PRELOAD=/tmp/own.so GPUOS_MEM_SOCKET=/etc/shadow GPUOS_MEM_GRANT=1 srun -n1",
        ),
    ] {
        all.push(attempt(INPUT, name, holds, move |stage| {
            let script = format!(
                "{step} sh -c 'echo step=$CUDA_VISIBLE_DEVICES; echo loads=$LD_PRELOAD'; echo end=1"
            );
            let options = ["-w", "n3", "--gres=gpu:1", "--mem=64"];
            let job = stage.sbatch(MALLORY, &options, &script);
            judge(move |stage| {
                let job = job?;
                stage.told(job, "end=")?;
                let told = stage.told(job, "step=")?;
                ensure(told.split(',').count() <= 1, || format!("step={told}"))?;
                let record = stage.cluster.show(job);
                let kept = record.is_empty() || record.contains("MinMemoryNode=64M");
                ensure(kept, || record)
            })
        }));
    }
    all
}
