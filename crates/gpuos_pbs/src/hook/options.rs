//! What a job says to gpuos, in resources of PBS.

use gpuos_config::options::{JobOptions, OptionError};
use gpuos_placement::plan::Placement;

use super::event::Resources;
use super::refused;
use super::resources::{Resource, of_users};

/// Reads the resources of a job that are options, by the functions that read Slurm's, and refuses what is not there for PBS yet. `planner` says
/// whether one of gpuos places jobs.
///
/// # Errors
/// The sentence for who submitted or changed the job.
pub(super) fn read(resources: &Resources, planner: bool) -> Result<JobOptions, String> {
    let mut options = JobOptions::default();
    for resource in of_users() {
        let Some(value) = said(resources, resource.name) else {
            continue;
        };
        let set = options.set(resource.option, value);
        set.map_err(|error| sentence(error, resource))?;
    }
    not_yet(&options, resources, planner)?;
    Ok(options)
}

/// The value of a resource; an empty one is what `qalter` unsets with. PBS reads names of resources in any case.
pub(super) fn said<'a>(resources: &'a Resources, name: &str) -> Option<&'a str> {
    let mut all = resources.iter();
    let (_, value) = all.find(|(one, _)| one.eq_ignore_ascii_case(name))?;
    Some(value.trim()).filter(|value| !value.is_empty())
}

/// Slurm's sentence with the option as users of PBS write it.
fn sentence(error: OptionError, resource: &Resource) -> String {
    let error = OptionError {
        option: named(resource.name),
        accepted: error.accepted.replace("--gpuos-", "-l gpuos_"),
        ..error
    };
    error.to_string()
}

/// A resource as it is written: `-l gpuos_mig`.
pub(super) fn named(resource: &str) -> String {
    format!("-l {resource}")
}

/// Refuses what nobody would do anything about.
fn not_yet(options: &JobOptions, resources: &Resources, planner: bool) -> Result<(), String> {
    let given = |name| said(resources, name).unwrap_or_default();
    let rule = options.placement.as_ref();
    if !planner && rule.is_some_and(|rule| *rule != Placement::Default) {
        return Err(refused::placed_by_pbs(given("gpuos_placement")).to_string());
    }
    let missing = [
        (
            options.mig.is_some(),
            "gpuos_mig",
            "divide GPUs",
            "ngpus=N in -l select= for whole GPUs, and no gpuos_mig",
        ),
        (
            options.share.is_some(),
            "gpuos_share",
            "share GPUs between jobs",
            "ngpus=1 in -l select= for a whole GPU, and no gpuos_share",
        ),
        (
            options.power.is_some(),
            "gpuos_power",
            "limit the power of GPUs",
            "no gpuos_power",
        ),
        (
            options.checkpoint.is_some(),
            "gpuos_checkpoint",
            "make checkpoints",
            "no gpuos_checkpoint",
        ),
    ];
    match missing.into_iter().find(|(asked, ..)| *asked) {
        Some((_, name, what, instead)) => {
            let error = refused::not_on_pbs(given(name), named(name), what, instead);
            Err(error.to_string())
        }
        None => Ok(()),
    }
}
