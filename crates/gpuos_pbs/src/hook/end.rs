//! A run of a job has left a host, of which gpuosd and gpuos_mover there are told at once. Mom's next list would tell them the same, and nothing is
//! lost without this word.
//!
//! What gpuosd answers, how much of its GPUs is to be had now, is in pbs_server before the job's end is, and with it the cycle of pbs_sched which that end
//! begins: OpenPBS ends a job when its moms have answered, and they answer when this hook has ended (`on_job_exit`, `req_deletejob`).

use gpuos_core::wire::{MomEnd, MomReport};

use super::advise;
use super::event::{Event, Job, accepted_json};
use super::mom::{asked_vnodes, orders, own, request};
use super::options::wish;
use super::resources::CHECKPOINT;
use super::room;
use super::talk::{Daemon, Said, TAKES, Talk};

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
        asked: event.server.is_some(),
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
    // Mom keeps the job meanwhile.
    let talks = talks.map(|talk| match (talk.daemon, own(event)) {
        (Daemon::Gpuosd, Some(_)) => talk.within(TAKES),
        _ => talk.tell(),
    });
    talks.collect()
}

/// What mom does by what gpuosd says: the host's vnode shows what is to be had of its GPUs, and PBS counts it.
pub(super) fn answer(event: &Event, gpuosd: Option<&Said>) -> String {
    let said = gpuosd.and_then(|said| said.as_ref().ok());
    let orders = said.and_then(|lines| orders(lines).ok());
    let (Some(host), Some(orders)) = (own(event), orders) else {
        return accepted_json(Vec::new(), None);
    };
    match room::edits_at_end(event, host, &orders) {
        Some(edits) => accepted_json(edits, None),
        None => asked_vnodes(event).json(),
    }
}

/// The run that is over; `None`: which one it was mom does not say, or its number comes again, and only mom's list can tell.
fn ended(job: &Job) -> Option<MomEnd> {
    let run = Some(job.held.run).filter(|run| *run > 0)?;
    let job_id = job.id.parse().ok()?;
    (job.exit != Some(CHECKPOINTED)).then_some(MomEnd { job: job_id, run })
}
