//! A run that would never be the last: OpenPBS 22.05.11 and 23.06.06 note in a job's `Exit_status` that a hook of a mom has wanted it to run again, and
//! do not clear that when it does (`svr_startjob`: what clears it stands behind a condition that is not meant for it). Each later end of the job is then
//! taken for that hook's, and the job runs again. What a refused launch notes in its place goes by itself.

use super::allocation::Allocation;
use super::event::{Ask, Event, Kind, Verdict};
use super::mom::{HOOK_RERUN, own};
use super::options::wish;
use super::resources::CHECKPOINT;

/// What is done about the first program of a later run on the host of its script, as JSON: pbs_server is asked, and a launch is refused once where the note
/// is still there. `None`: it is none of those.
pub(super) fn answer(event: &Event) -> Option<String> {
    let job = &event.job;
    let is_later_run = event.kind == Kind::ExecjobLaunch && event.first && job.held.run > 1;
    if !is_later_run {
        return None;
    }
    let has = Allocation::of(event, &job.exec_vnode).ok()?;
    let has_gpus = own(event).is_some() && has.has_any();
    if !has.is_of_script(event) || !has_gpus && wish(&job.resources, CHECKPOINT).is_none() {
        return None;
    }
    let Some(server) = &event.server else {
        let ask = Ask {
            vnodes: Vec::new(),
            jobs: vec![job.id.clone()],
        };
        return Some(ask.json());
    };
    let noted = server.jobs.get(&job.id)?.exit?;
    (noted == HOOK_RERUN).then(|| {
        let why = "pbs_server still has the end of this job's last run as its own (Exit_status -18), and would have it run again after each; it is started once more";
        let verdict = Verdict {
            must: true,
            ..Verdict::reject(why.into())
        };
        verdict.json()
    })
}
