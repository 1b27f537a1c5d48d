//! In slurmstepd: puts the `GPUOS_*` variables into the job's environment.
//!
//! Nothing here can fail a job: what is not known is left out, with a line in slurmd's debug log.

use gpuos_core::gpuset::GpuSet;
use slurm_ffi::conf;
use slurm_ffi::log;
use slurm_ffi::spank::Spank;

use crate::job_env::{self, Step};

/// Step ids with the job's GPUs instead of own ones: the batch script and `salloc`'s shell.
const BATCH_SCRIPT: u32 = 0xffff_fffb;
const INTERACTIVE: u32 = 0xffff_fffa;

/// Sets the variables of the step that starts, and removes those it inherited.
pub fn set_variables(spank: Spank<'_>) {
    let gpus = own_gpus(spank);
    let described = match gpus {
        Some(_) => describe(spank, gpus.unwrap_or_default()),
        None => job_env::Described::default(),
    };
    let gpus = gpus.map(job_env::gpus_text);
    for (name, value) in [
        (job_env::GPUS, gpus),
        (job_env::LINKS, described.links),
        (job_env::LEVEL, described.level),
    ] {
        match value {
            Some(value) => spank.setenv(name, &value),
            // A step inherits the batch script's environment, which is that of another node.
            None => spank.unsetenv(name),
        };
    }
}

/// The step's GPUs on this node, by Slurm's own account.
fn own_gpus(spank: Spank<'_>) -> Option<GpuSet> {
    let list = match spank.step_id()? {
        BATCH_SCRIPT | INTERACTIVE => spank.getenv(c"SLURM_JOB_GPUS"),
        _ => spank.getenv(c"SLURM_STEP_GPUS"),
    };
    job_env::parse_gpus(&list?)
}

fn describe(spank: Spank<'_>, gpus: GpuSet) -> job_env::Described {
    let job_nodes = spank.getenv(c"SLURM_JOB_NODELIST").unwrap_or_default();
    let step = Step {
        gpus,
        job_gpus: spank
            .getenv(c"SLURM_JOB_GPUS")
            .and_then(|list| job_env::parse_gpus(&list))
            .unwrap_or_default(),
        step_nodes: match spank.step_id() {
            Some(BATCH_SCRIPT | INTERACTIVE) | None => job_nodes.clone(),
            Some(_) => spank
                .getenv(c"SLURM_STEP_NODELIST")
                .unwrap_or_else(|| job_nodes.clone()),
        },
        node_index: spank.node_index().unwrap_or(0) as usize,
        job_nodes,
    };
    conf::site(None)
        .and_then(|site| job_env::describe(&site, &step))
        .unwrap_or_else(|why| {
            log::debug(&format!("GPUOS_LINKS and GPUOS_LEVEL are not set: {why}"));
            job_env::Described::default()
        })
}
