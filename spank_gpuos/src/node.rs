//! In slurmstepd: puts the `GPUOS_*` variables into the job's environment.
//!
//! Nothing here can fail a job: what is not known is left out, with a line in slurmd's debug log.

use std::sync::atomic::Ordering;

use gpuos_config::options::{OPTIONS, is_off};
use gpuos_core::limits::Asked;
use gpuos_core::step::StepId;
use gpuos_core::wire::{MigAsk, memory_socket};
use gpuos_model::gpuset::GpuSet;
use gpuos_model::hostlist::expand;
use slurm_ffi::conf;
use slurm_ffi::log;
use slurm_ffi::release::Release;
use slurm_ffi::spank::Spank;

use crate::job_env::{self, Step};
use crate::{checkpoint, limits, mig, ranks, report, tiers};

/// Sets the variables of the step that starts, and removes those it inherited.
pub fn set_variables(spank: Spank<'_>) {
    let gpus = own_gpus(spank);
    let described = match gpus {
        Some(_) => describe(spank, gpus.unwrap_or_default()),
        None => job_env::Described::default(),
    };
    let shape = ranks::noted().or_else(|| spank.getenv(ranks::JOB_SHAPE));
    let rank_file = gpus
        .zip(shape.as_ref().filter(|shape| !is_off(shape)))
        .and_then(|(gpus, shape)| rank_file(spank, gpus, shape));
    let gpus = gpus.map(job_env::gpus_text);
    let limits = limits::of_step(spank).to_string();
    let whole_job = spank.step_id().is_some_and(has_whole_job);
    for (name, value) in [
        (ranks::JOB_SHAPE, shape),
        (
            checkpoint::JOB_CHECKPOINT,
            checkpoint::of_job(spank, whole_job),
        ),
        (
            checkpoint::JOB_SPARES,
            checkpoint::spares_of_job(spank, whole_job),
        ),
        (
            limits::JOB_LIMITS,
            Some(limits).filter(|text| !text.is_empty()),
        ),
        (ranks::RANK_FILE, rank_file),
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

/// Whether a step is that of a batch script or of salloc's shell, which have all that their job has.
fn has_whole_job(step: u32) -> bool {
    matches!(step, StepId::BATCH | StepId::INTERACTIVE)
}

/// Tells gpuosd which GPUs and slices the step has, and its user what could not be done with them as asked; a
/// step without either is not told.
pub fn report(spank: Spank<'_>, socket: &str, library: &str) {
    let (Some(job), Some(step), Some(uid)) = (spank.job_id(), spank.step_id(), spank.job_uid())
    else {
        return;
    };
    let gpus = own_gpus(spank).unwrap_or_default();
    let whole_job = has_whole_job(step);
    if whole_job {
        mig::forward_to_steps(spank);
    }
    let slices = match step {
        StepId::EXTERN => mig::Slices::None,
        _ => mig::slices(spank, whole_job),
    };
    let ask = match slices {
        mig::Slices::Of(ask) => Some(ask),
        mig::Slices::Missing(why) => {
            mig::fail(&why);
            None
        }
        mig::Slices::None => None,
    };
    if ask.is_none() {
        mig::forget_inherited(spank);
    }
    let options = limits::of_step(spank);
    let node = name_in(spank, socket);
    let memory = tiers::of_step(&options, gpus, limits::is_shared(spank) || ask.is_some())
        .filter(|_| step != StepId::EXTERN);
    tiers::set(
        spank,
        memory.map(|(asked, _)| asked),
        library,
        &memory_socket(&socket.replace("%n", &node)),
    );
    let has_devices = !gpus.is_empty() || ask.is_some();
    let Some(reason) = report::reason(has_devices, &options, OPTIONS) else {
        return;
    };
    // Without devices there is nothing to set.
    let asked = match has_devices {
        true => limits::asked(&options, limits::is_shared(spank), spank.job_gid()),
        false => Asked::default(),
    };
    let per_task = ask
        .as_ref()
        .filter(|_| !whole_job)
        .and_then(|ask: &MigAsk| mig::each_task(&ask.request));
    let has_slices = ask.is_some();
    let unasked = ask.as_ref().is_some_and(|ask| ask.request.is_empty());
    let is_whole = unasked || !gpus.is_empty();
    let start = report::Start {
        id: StepId {
            job: job.into(),
            step,
        },
        uid,
        gpus,
        asked,
        mig: ask,
        memory: memory.as_ref().map(tiers::told),
        reason,
    };
    let told = report::started(socket, &node, start);
    for note in told.notes {
        limits::keep_note(&options.reworded(&note));
    }
    limits::set_mps(spank, &told.environment);
    match told.failed {
        Some(why) if told.requeues => mig::fail_for_requeue(&why),
        Some(why) => mig::fail(&why),
        // A job with whole nodes has them all: nobody asked for them, or they are of GPUs that it has whole.
        None if has_slices && is_whole && !mig::has_any(&told.environment) => {
            mig::forget_inherited(spank);
        }
        None if has_slices && mig::is_undone(spank, whole_job) => {
            mig::hide(spank, !gpus.is_empty());
        }
        None if has_slices => {
            mig::set_step_environment(spank, &told.environment, gpus.is_empty(), per_task)
        }
        None => {}
    }
}

/// Has gpuos_mover of this node prepare what a step needs for checkpoints, if its job has asked for them.
pub fn prepare_checkpoints(spank: Spank<'_>, socket: &str, jobs: &str) {
    let [path, jobs] = [socket, jobs].map(|path| path.replace("%n", &name_in(spank, path)));
    let whole_job = spank.step_id().is_some_and(has_whole_job);
    checkpoint::prepare(spank, (&path, &jobs), whole_job);
}

/// The name of this node, where a path asks for it.
fn name_in(spank: Spank<'_>, path: &str) -> String {
    match path.contains("%n") {
        true => node_name(spank).unwrap_or_default(),
        false => String::new(),
    }
}

/// Slurm's name of this node.
fn node_name(spank: Spank<'_>) -> Option<String> {
    let index = spank.node_index()? as usize;
    expand(&step_nodes(spank)).ok()?.into_iter().nth(index)
}

/// Writes the rank file of a step that has all GPUs of its job's shape; returns its path.
fn rank_file(spank: Spank<'_>, gpus: GpuSet, shape: &str) -> Option<String> {
    let (job, step_id) = (spank.job_id()?, spank.step_id()?);
    let node_index = spank.node_index().unwrap_or(0);
    let step = ranks::Step {
        shape: shape.to_owned(),
        nodes: step_nodes(spank),
        node_index: node_index as usize,
        gpus,
        cpus: spank.getenv(c"SLURM_JOB_CPUS_PER_NODE").unwrap_or_default(),
        partition: spank.getenv(c"SLURM_JOB_PARTITION").unwrap_or_default(),
    };
    // The process makes the name one of its own where several slurmd run on one machine.
    let name = format!("ranks.{job}.{step_id}.{}", std::process::id());
    let written = conf::site(None, release())
        .and_then(|site| ranks::text(&site, &step))
        .and_then(|text| ranks::write(&name, &text));
    match written {
        Ok(path) => path.to_str().map(str::to_owned),
        Err(why) => {
            log::debug(&format!("GPUOS_RANK_FILE is not set: {why}"));
            None
        }
    }
}

/// The release of this Slurm, which is that of the plugin.
fn release() -> Option<Release> {
    let number = crate::plugin_version.load(Ordering::Relaxed);
    (number != 0).then_some(Release(number))
}

/// Nodes of the step, as a hostlist.
fn step_nodes(spank: Spank<'_>) -> String {
    let job = || spank.getenv(c"SLURM_JOB_NODELIST").unwrap_or_default();
    match spank.step_id() {
        Some(StepId::BATCH | StepId::INTERACTIVE) | None => job(),
        Some(_) => spank.getenv(c"SLURM_STEP_NODELIST").unwrap_or_else(job),
    }
}

/// The step's GPUs on this node, by Slurm's own account.
fn own_gpus(spank: Spank<'_>) -> Option<GpuSet> {
    let list = match spank.step_id()? {
        StepId::BATCH | StepId::INTERACTIVE => spank.getenv(c"SLURM_JOB_GPUS"),
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
        step_nodes: step_nodes(spank),
        node_index: spank.node_index().unwrap_or(0) as usize,
        job_nodes,
        partition: spank.getenv(c"SLURM_JOB_PARTITION").unwrap_or_default(),
    };
    conf::site(None, release())
        .and_then(|site| job_env::describe(&site, &step))
        .unwrap_or_else(|why| {
            log::debug(&format!("GPUOS_LINKS and GPUOS_LEVEL are not set: {why}"));
            job_env::Described::default()
        })
}
