//! What a job says to gpuos, in resources of PBS.

use gpuos_config::options::{CheckpointOption, JobOptions, OptionError, is_off};
use gpuos_placement::plan::Placement;

use super::event::{Event, Resources};
use super::refused;
use super::resources::{CHECKPOINT, Resource, of_users};

/// What a site has, by the word of `gpuos pbs install`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Site {
    /// `gpuos pbs-planner` places jobs.
    pub planner: bool,
    /// gpuos_mover keeps checkpoints.
    pub checkpoints: bool,
}

impl Site {
    pub(super) fn of(event: &Event) -> Site {
        Site {
            planner: event.planner,
            checkpoints: event.checkpoints,
        }
    }
}

/// Reads the resources of a job that are options, by the functions that read Slurm's, and refuses what is not there for PBS yet, or not on this site.
///
/// # Errors
/// The sentence for who submitted or changed the job.
pub(super) fn read(resources: &Resources, site: Site) -> Result<JobOptions, String> {
    let mut options = JobOptions::default();
    for resource in of_users() {
        let Some(value) = said(resources, resource.name) else {
            continue;
        };
        let set = options.set(resource.option, value);
        set.map_err(|error| sentence(error, resource))?;
    }
    not_yet(&options, resources, site)?;
    Ok(options)
}

/// The value of a resource; an empty one is what `qalter` unsets with. PBS reads names of resources in any case.
pub(super) fn said<'a>(resources: &'a Resources, name: &str) -> Option<&'a str> {
    let mut all = resources.iter();
    let (_, value) = all.find(|(one, _)| one.eq_ignore_ascii_case(name))?;
    Some(value.trim()).filter(|value| !value.is_empty())
}

/// The same of an option that can be `off`, which is no wish.
pub(super) fn wish<'a>(resources: &'a Resources, name: &str) -> Option<&'a str> {
    said(resources, name).filter(|value| !is_off(value))
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
fn not_yet(options: &JobOptions, resources: &Resources, site: Site) -> Result<(), String> {
    let given = |name| said(resources, name).unwrap_or_default();
    let rule = options.placement.as_ref();
    if !site.planner && rule.is_some_and(|rule| *rule != Placement::Default) {
        return Err(refused::placed_by_pbs(given("gpuos_placement")).to_string());
    }
    if options.checkpoint.is_some() && !site.checkpoints {
        return Err(refused::no_checkpoints(given(CHECKPOINT), named(CHECKPOINT)).to_string());
    }
    let in_memory = |asked: &CheckpointOption| asked.memory_mib.is_some();
    if options.checkpoint.as_ref().is_some_and(in_memory) {
        return Err(refused::not_in_memory(given(CHECKPOINT), named(CHECKPOINT)).to_string());
    }
    Ok(())
}
