//! The calls in which there is nothing to choose: too few nodes have enough free GPUs, or all nodes have to be
//! taken whole. On a small cluster they are many, and whatever else gpuos read and made before it handed them
//! on would only be added to what cons_tres takes. So they are told apart first, by as little as shows them.

use std::ffi::c_int;

use gpuos_core::gpuset::MAX_GPUS;
use slurm_ffi::bits::Bitmap;
use slurm_ffi::gres::JobGres;
use slurm_ffi::handles::Job;

use crate::call::{Call, NOT_NOW};
use crate::engine::Engine;
use crate::note::Decision;
use crate::request;
use crate::snapshot;

/// With more candidates than this the look is not worth its time where it finds a choice after all.
const MOST_NODES: usize = 64;

/// What a quick look found.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Nothing {
    /// Fewer candidates than needed have enough free GPUs.
    Room,
    /// As many as needed have, each of them whole, and there are no others.
    Choice,
}

impl Engine {
    /// Tells the calls apart in which there is nothing to choose; `None`: there may be. Only for jobs that
    /// say nothing to gpuos, once the cluster model is made. The same calls are told apart by
    /// `Engine::without_a_plan` where this look is not enough.
    pub(crate) fn nothing_to_choose(
        &mut self,
        call: &Call,
        job: Job<'_>,
        gpus: JobGres<'_>,
        nodes: Bitmap<'_>,
    ) -> Option<Nothing> {
        let wanted = gpus.per_node();
        let other_forms = gpus.per_job() | gpus.per_task() | gpus.per_socket();
        if wanted == 0
            || wanted > MAX_GPUS as u64
            || other_forms != 0
            || job.has_spank_env()
            || job.whole_nodes()
            || self.planner.is_none()
            || !self.settings.config.leaves_all_nodes()
            // A rule may go by the QOS, whose name is not to be looked up at the start of a job.
            || !self.settings.config.policy.rules.is_empty()
        {
            return None;
        }
        let candidates = nodes.count();
        if candidates > MOST_NODES {
            return None;
        }
        let wanted_type = gpus.type_name();
        let source = self.source();
        let count = source.table.len();
        let hints = &mut self.snapshot.hints;
        let mut ahead = hints.begin(nodes, count);
        let counts = request::counts(call.counts, job);
        // Where cores are hidden from cons_tres there is more to do than to hand the call on.
        let mut whole = !self.hides_cores && candidates == counts.wanted as usize;
        let mut room = 0;
        for index in nodes.iter().take_while(|index| *index < count) {
            hints.fetch(ahead.next());
            // SAFETY: called from job_test, under slurmctld's node write lock.
            let seen = unsafe { snapshot::look(&source, hints, index, wanted_type) };
            let Some(seen) = seen else { continue };
            let Some(devices) = seen.devices.filter(|devices| *devices <= MAX_GPUS) else {
                if seen.gpus.available() > 0 {
                    return None;
                }
                continue;
            };
            if (seen.free.len() as u64) < wanted {
                whole = false;
                continue;
            }
            room += 1;
            whole = whole && devices as u64 == wanted && seen.gpus.topologies() > 0;
            if room >= counts.min && !whole {
                return None;
            }
        }
        if room < counts.min {
            self.refused.counted(wanted as u32, counts.min, room);
            return Some(Nothing::Room);
        }
        (whole && room == counts.wanted).then_some(Nothing::Choice)
    }

    /// Ends a call in which there is nothing to choose; `None` hands it on as it came.
    pub(crate) fn hand_on(&mut self, call: &Call, nothing: Nothing) -> Option<c_int> {
        match nothing {
            Nothing::Room if call.answers_no_room() => Some(NOT_NOW),
            Nothing::Room => None,
            Nothing::Choice => {
                let code = call.forward();
                if code == 0 {
                    self.count_only_way(call);
                    self.decided(call, Decision::Unread(call.counts));
                }
                Some(code)
            }
        }
    }
}
