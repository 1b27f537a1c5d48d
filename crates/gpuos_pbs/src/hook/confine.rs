//! A program that is about to be started is kept to its job's GPUs, where the site has that: gpuosd brings the process that becomes the program into
//! the control group of the job.

use gpuos_core::wire::{Reply, Request};

use super::allocation::Allocation;
use super::event::{Confine, Event, Parent, Verdict};
use super::mom;
use super::options::wish;
use super::resources::MIG;
use super::talk::{Daemon, Said, Talk, replies};

/// How long a start waits for it, in milliseconds.
const PATIENCE: u64 = 2_000;

/// What gpuosd is asked, once it has made the slices of the job.
pub(super) fn talk(event: &Event) -> Option<Talk> {
    if !applies(event) {
        return None;
    }
    let allocation = Allocation::of(event, &event.job.exec_vnode).ok()?;
    let asks = wish(&event.job.resources, MIG).is_some();
    // Without a parent gpuosd is asked about a process that there is not, and says so.
    let Parent { pid, started } = event.parent.unwrap_or_default();
    let request = Request::Confine {
        job: event.job.id.parse().ok()?,
        pid,
        started,
        slices: asks && allocation.has_slices(),
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
