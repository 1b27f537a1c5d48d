//! What the plugin keeps between calls: offsets of the release, and the cluster.

use std::ffi::c_void;
use std::sync::{Mutex, OnceLock, PoisonError};

use gpuos_core::gpuset::MAX_GPUS;
use gpuos_core::options::{JobOptions, PREFIX};
use slurm_ffi::api;
use slurm_ffi::conf;
use slurm_ffi::layout::Fields;
use slurm_ffi::log;
use slurm_ffi::mem::read;
use slurm_ffi::release::Release;

use crate::check::{Catalogue, Refusal};
use crate::request::{self, Offsets};

struct Known {
    fields: Fields,
    offsets: Offsets,
}

/// Absent when this release cannot be read: everything is accepted then.
static KNOWN: OnceLock<Option<Known>> = OnceLock::new();

/// The cluster and the time at which slurmctld had read its configuration when it was made. Absent
/// cluster: the site's files have a mistake, or gpuos does not place jobs.
static CLUSTER: Mutex<Option<(i64, Option<Catalogue>)>> = Mutex::new(None);

/// Reads layouts and files once, and says in the log when jobs will not be checked.
pub fn start(release: Release) {
    KNOWN.get_or_init(|| match known(release) {
        Ok(known) => Some(known),
        Err(why) => {
            log::error(&format!(
                "jobs are accepted without a check of their gpuos options: {why}"
            ));
            None
        }
    });
    if let Some(Some(known)) = KNOWN.get() {
        with_catalogue(known, |_| ());
    }
}

fn known(release: Release) -> Result<Known, String> {
    let fields = conf::fields(release)?;
    let offsets = Offsets::of(&fields)?;
    Ok(Known { fields, offsets })
}

/// Checks a new job.
pub fn submit(description: *mut c_void) -> Result<(), Refusal> {
    let Some(Some(known)) = KNOWN.get() else {
        return Ok(());
    };
    let Some(env) = known.offsets.asked_env(description) else {
        return unreadable();
    };
    if !has_options(&env) {
        return Ok(());
    }
    let Some(shape) = known.offsets.asked_shape(description) else {
        return unreadable();
    };
    with_catalogue(known, |catalogue| {
        let options = JobOptions::from_spank_env(env.iter().map(String::as_str))?;
        catalogue.check(&options, &shape)
    })
    .unwrap_or(Ok(()))
}

/// Checks a change of a job, if it is about nodes, tasks or GPUs.
pub fn modify(description: *mut c_void, record: *mut c_void) -> Result<(), Refusal> {
    let Some(Some(known)) = KNOWN.get() else {
        return Ok(());
    };
    let offsets = &known.offsets;
    let Some(update) = offsets.asked_shape(description).filter(request::touches) else {
        return Ok(());
    };
    let Some((env, now)) = offsets.record_env(record).zip(offsets.record_shape(record)) else {
        return unreadable();
    };
    if !has_options(&env) {
        return Ok(());
    }
    let shape = request::merged(now, &update);
    with_catalogue(known, |catalogue| {
        // What slurmctld took at submission is not questioned now.
        let options =
            JobOptions::from_spank_env(env.iter().map(String::as_str)).unwrap_or_default();
        if options.is_default() || options.off {
            Ok(())
        } else {
            catalogue.check(&options, &shape)
        }
    })
    .unwrap_or(Ok(()))
}

fn has_options(env: &[String]) -> bool {
    env.iter().any(|entry| entry.starts_with(PREFIX))
}

fn unreadable() -> Result<(), Refusal> {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| {
        log::error("a job description does not look as in the layout table; jobs that look so are accepted unchecked");
    });
    Ok(())
}

/// Runs `check` on the cluster, which is made again when slurmctld has read its configuration again.
fn with_catalogue<T>(known: &Known, check: impl FnOnce(&mut Catalogue) -> T) -> Option<T> {
    let mut cluster = CLUSTER.lock().unwrap_or_else(PoisonError::into_inner);
    let configured = configured_at();
    if cluster.as_ref().is_none_or(|(at, _)| *at != configured) {
        *cluster = Some((configured, catalogue(known)));
    }
    cluster.as_mut()?.1.as_mut().map(check)
}

/// When slurmctld last read slurm.conf, in seconds since the epoch. Releases before 23.11 keep their
/// plugins loaded over `scontrol reconfigure`; later ones start slurmctld anew.
fn configured_at() -> i64 {
    // last_update is the first field of slurm_conf_t in every release.
    api::symbol(c"slurm_conf")
        .and_then(|conf: *mut c_void| read(conf as usize))
        .unwrap_or(0)
}

fn catalogue(known: &Known) -> Option<Catalogue> {
    let site = conf::site(Some(&known.fields)).and_then(|site| {
        let nodes = site.nodes.all();
        let cluster = site.cluster(&nodes)?;
        // Nodes with more GPUs than a plan can hold are Slurm's alone.
        let bounded = !site.nodes.dynamic() && nodes.iter().all(|node| node.gpus <= MAX_GPUS);
        Ok((site, cluster, bounded))
    });
    match site {
        Ok((site, ..)) if !site.config.slurm.steer => None,
        Ok((site, cluster, bounded)) => {
            say_once(None);
            let rules = site.config.rules().clone();
            Some(Catalogue::new(cluster, rules, bounded))
        }
        Err(why) => {
            say_once(Some(why));
            None
        }
    }
}

/// Says what is wrong with the files, once until something else is: slurmctld reads its
/// configuration several times while it starts.
fn say_once(why: Option<String>) {
    static SAID: Mutex<Option<String>> = Mutex::new(None);
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(why) = why.as_ref().filter(|why| said.as_ref() != Some(why)) {
        log::error(&format!(
            "jobs are accepted without a check of their gpuos options: {why}"
        ));
    }
    *said = why;
}
