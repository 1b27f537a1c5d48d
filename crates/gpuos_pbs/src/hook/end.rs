//! A run of a job has left a host, of which gpuosd and gpuos_mover there are told at once. Mom's next list would tell them the same: nothing
//! waits for this word, and nothing is lost without it.

use gpuos_core::wire::{MomEnd, MomReport};

use super::advise;
use super::event::{Event, Job};
use super::mom::{own, request};
use super::options::wish;
use super::resources::CHECKPOINT;
use super::talk::{Daemon, Talk};

/// `Exit_status` of a job that an action of the site's own has checkpointed and ended: its next run has the number of this one.
const CHECKPOINTED: i64 = -12;

/// What they are told.
pub(super) fn talks(event: &Event) -> Vec<Talk> {
    let Some(ended) = ended(&event.job) else {
        return Vec::new();
    };
    let has_gpus = own(event).is_some() || advise::host(event).is_some();
    let saves = wish(&event.job.resources, CHECKPOINT).is_some();
    let report = request(MomReport {
        ended: vec![ended],
        ..MomReport::default()
    });
    let whom = [
        (Daemon::Gpuosd, &event.gpuosd, has_gpus),
        (Daemon::Mover, &event.mover, saves),
    ];
    let told = whom
        .into_iter()
        .filter(|(_, socket, concerned)| *concerned && !socket.is_empty());
    let talks = told
        .filter_map(|(daemon, socket, _)| Talk::new(daemon, socket, std::slice::from_ref(&report)));
    talks.map(Talk::tell).collect()
}

/// The run that is over; `None`: which one it was mom does not say, or its number comes again, and only mom's list can tell.
fn ended(job: &Job) -> Option<MomEnd> {
    let run = Some(job.held.run).filter(|run| *run > 0)?;
    let job_id = job.id.parse().ok()?;
    (job.exit != Some(CHECKPOINTED)).then_some(MomEnd { job: job_id, run })
}
