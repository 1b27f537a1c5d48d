//! A program that is about to be started is kept to its job's GPUs, where the site has that: gpuosd brings the process that becomes the program into
//! the control group of the job.

use gpuos_core::wire::{Reply, Request};
use gpuos_model::gpu_index::GresGpu;

use super::event::{Confine, Event, Parent, Verdict};
use super::mom;
use super::options::wish;
use super::resources::MIG;
use super::shares;
use super::talk::{Daemon, Said, Talk, replies};
use super::vnodes::{divided, gpu, parse_exec_vnode, shared, short};

/// How long a start waits for it, in milliseconds.
const PATIENCE: u64 = 2_000;

/// What gpuosd is asked, once it has made the slices of the job.
pub(super) fn talk(event: &Event) -> Option<Talk> {
    if !applies(event) {
        return None;
    }
    let (gpus, slices) = has(event)?;
    // Without a parent gpuosd is asked about a process that there is not, and says so.
    let Parent { pid, started } = event.parent.unwrap_or_default();
    let request = Request::Confine {
        job: event.job.id.parse().ok()?,
        pid,
        started,
        gpus,
        slices,
    };
    let talk = Talk::new(Daemon::Groups, &event.gpuosd, &[request])?;
    Some(talk.within(PATIENCE))
}

/// What becomes of a start, after what gpuosd said about it; `None`: it was not asked.
pub(super) fn applied(event: &Event, said: Option<&Said>, verdict: Verdict) -> Verdict {
    if !applies(event) || verdict.refused.is_some() {
        return verdict;
    }
    let Err(why) = done(said) else {
        return verdict;
    };
    match event.confine {
        // The hook tries again for a while where a sentence begins so.
        Confine::Require => Verdict::reject(format!(
            "gpuos cannot keep this program to the GPUs of its job, which this site requires: {why}"
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

fn done(said: Option<&Said>) -> Result<(), String> {
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

/// The job's GPUs of this host, with those of which it has a share, and whether it has slices of others.
fn has(event: &Event) -> Option<(Vec<GresGpu>, bool)> {
    let chunks = parse_exec_vnode(&event.job.exec_vnode).ok()?;
    let this = short(&event.host);
    let of_host = |(host, _): &(&str, usize)| short(host) == this;
    let whole = chunks.iter().flatten().filter_map(gpu).filter(of_host);
    let parts = shares::here(event, &chunks, &event.job.resources);
    let all = whole.chain(parts.into_iter().filter_map(shared));
    let mut gpus: Vec<GresGpu> = all.filter_map(|(_, index)| GresGpu::new(index)).collect();
    gpus.sort_unstable();
    gpus.dedup();
    let asks = wish(&event.job.resources, MIG).is_some();
    let mut given = chunks.iter().flatten().filter_map(divided);
    Some((gpus, asks && given.any(|one| of_host(&one))))
}
