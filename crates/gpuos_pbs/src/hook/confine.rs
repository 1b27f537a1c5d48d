//! A program that is about to be started is kept to its job's GPUs, where the site has that: gpuosd brings the process that becomes the program into
//! the control group of the job.

use gpuos_core::wire::{Reply, Request};
use gpuos_model::gpu_index::GresGpu;

use super::event::{Confine, Event, Parent, Verdict};
use super::mom;
use super::options::wish;
use super::talk::{Daemon, Said, Talk, replies};
use super::vnodes::{gpu, parse_exec_vnode, short};

/// How long a start waits for it, in milliseconds.
const PATIENCE: u64 = 2_000;

/// With these a job has parts of GPUs, by the driver.
const PARTS: [&str; 2] = ["gpuos_mig", "gpuos_share"];

/// Whether a program must not start here whatever gpuosd says, so that nobody is asked.
pub(super) fn is_hopeless(event: &Event) -> bool {
    event.confine == Confine::Require && applies(event) && has_parts(event)
}

/// What gpuosd is asked.
pub(super) fn talk(event: &Event) -> Option<Talk> {
    if !applies(event) || has_parts(event) {
        return None;
    }
    // Without a parent gpuosd is asked about a process that there is not, and says so.
    let Parent { pid, started } = event.parent.unwrap_or_default();
    let request = Request::Confine {
        job: event.job.id.parse().ok()?,
        pid,
        started,
        gpus: gpus(event)?,
    };
    let talk = Talk::new(Daemon::Groups, &event.gpuosd, &[request])?;
    Some(talk.within(PATIENCE))
}

/// What becomes of a start, after what gpuosd said about it; `None`: it was not asked.
pub(super) fn applied(event: &Event, said: Option<&Said>, verdict: Verdict) -> Verdict {
    if !applies(event) || verdict.refused.is_some() {
        return verdict;
    }
    let Err(why) = done(event, said) else {
        return verdict;
    };
    match event.confine {
        // The hook tries again for a while where a sentence begins so.
        Confine::Require if !has_parts(event) => Verdict::reject(format!(
            "gpuos cannot keep this program to the GPUs of its job, which this site requires: {why}"
        )),
        Confine::Require => Verdict::reject(format!(
            "this site requires that programs are kept to the GPUs of their job, and {why}"
        )),
        Confine::Off | Confine::Try => Verdict {
            log: Some(format!(
                "gpuos does not keep a program of job {} to its GPUs: {why}",
                event.job.id
            )),
            ..verdict
        },
    }
}

fn done(event: &Event, said: Option<&Said>) -> Result<(), String> {
    if has_parts(event) {
        return Err(
            "the job has parts of GPUs (gpuos_mig or gpuos_share), for which gpuos has no such thing in PBS"
                .into(),
        );
    }
    let Some(said) = said else {
        return Err("its number or its vnodes cannot be read".into());
    };
    let said = said.as_ref().map_err(|why| match why.is_empty() {
        true => "gpuosd does not run on this host".to_owned(),
        false => format!("gpuosd on this host gave no answer: {why}"),
    })?;
    match replies(said)?.into_iter().next_back() {
        Some(Reply::Done { .. }) => Ok(()),
        Some(Reply::Refused { message, .. }) => Err(message),
        _ => Err("gpuosd on this host is of another release".into()),
    }
}

/// The site has it, and this host has GPUs of which gpuos knows. A job without GPUs has none of them.
fn applies(event: &Event) -> bool {
    event.confine != Confine::Off && mom::own(event).is_some() && !event.gpuosd.is_empty()
}

fn has_parts(event: &Event) -> bool {
    let mut parts = PARTS.iter();
    parts.any(|name| wish(&event.job.resources, name).is_some())
}

/// The job's GPUs of this host.
fn gpus(event: &Event) -> Option<Vec<GresGpu>> {
    let chunks = parse_exec_vnode(&event.job.exec_vnode).ok()?;
    let this = short(&event.host);
    let here = chunks.iter().flatten().filter_map(gpu);
    let here = here.filter(|(host, _)| short(host) == this);
    let mut gpus: Vec<GresGpu> = here.filter_map(|(_, index)| GresGpu::new(index)).collect();
    gpus.sort_unstable();
    gpus.dedup();
    Some(gpus)
}
