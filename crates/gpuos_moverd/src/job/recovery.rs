//! How long a job stood still until it went on from its checkpoint, and what of its work was lost: for the journal.
//!
//! ```text
//!  a link to a node breaks ── detection ──► requeued ── requeue ──► has its nodes ── rebuild ──► whole on all nodes ── load ──► ranks have their files
//! ```
//!
//! Times are the machine's: those of the run before and of slurmctld are not on this thread's clock.

use std::collections::BTreeSet;

use gpuos_core::wire::CheckpointRecovery;
use gpuos_mover::program::Join;

use super::{Phase, Start, Worker, other};
use crate::clock::{millis, seconds};

/// What is known of it. Milliseconds since 1970.
#[derive(Default, Debug)]
pub struct Recovery {
    /// A node of the run before was lost, as this one has seen.
    lost_before: Option<u64>,
    began: u64,
    /// Number and time of the checkpoint that is whole, and since when.
    whole: Option<(u32, u64, u64)>,
    /// Ranks of this node that have their files, ...
    loaded: BTreeSet<Join>,
    /// ... since when.
    loaded_at: u64,
    /// It is in the journal, or there is nothing to be measured.
    is_over: bool,
    /// A node of this run was lost.
    lost: Option<u64>,
}

impl Recovery {
    /// The thread begins; `lost_before`: what is known of the run before.
    pub fn new(lost_before: Option<u64>) -> Recovery {
        Recovery {
            lost_before,
            began: millis(),
            ..Recovery::default()
        }
    }

    /// The mover was started anew in the middle of a run.
    pub fn is_none(&mut self) {
        self.is_over = true;
    }

    /// A link to another node has ended.
    pub fn unlinked(&mut self) {
        self.lost.get_or_insert_with(millis);
    }

    /// All are there.
    pub fn linked(&mut self) {
        self.lost = None;
    }

    /// When a node of this run was lost that did not come back.
    pub fn lost(&self) -> Option<u64> {
        self.lost
    }

    /// A rank of this node has its files.
    pub fn loaded(&mut self, join: Join) {
        self.loaded.insert(join);
        self.loaded_at = millis();
    }

    /// The checkpoint of this number and time, in seconds, is whole on all nodes since then.
    fn is_whole(&mut self, number: u32, time: u64, since: u64) {
        self.whole = Some((number, time, since));
    }

    /// What is measured of a restart.
    fn measured(&self, start: &Start) -> CheckpointRecovery {
        // Of a start in the same run slurmctld's times say nothing.
        let (queued, started) = match start.launch.start > 1 {
            true => (self.began, self.began),
            false => (
                start.queued_at.map_or(self.began, |at| at * 1000),
                start.started_at.map_or(self.began, |at| at * 1000),
            ),
        };
        let (number, time, whole) = self.whole.unwrap_or((0, 0, started));
        // slurmctld's are whole seconds, and may be before what was measured in the same second.
        let ended = self.lost_before.map_or(queued, |lost| lost.min(queued));
        CheckpointRecovery {
            time: seconds(),
            job: start.job.clone(),
            uid: start.uid,
            run: start.run,
            start: start.launch.start,
            number: Some(number),
            nodes: start.nodes.len() as u32,
            detection_ms: self.lost_before.map(|_| queued - ended),
            requeue_ms: (start.launch.start <= 1).then(|| started.saturating_sub(queued)),
            rebuild_ms: Some(whole.saturating_sub(started)),
            load_ms: Some(self.loaded_at.saturating_sub(whole)),
            lost_s: Some((ended / 1000).saturating_sub(time)),
            ..CheckpointRecovery::default()
        }
    }
}

/// Whether what the run goes on from is there now, and all ranks of this node have it: then it is entered, by the node that leads.
pub(super) fn look(worker: &mut Worker) {
    if worker.recovery.is_over {
        return;
    }
    let Phase::Running(running) = &worker.phase else {
        return;
    };
    if running.ready.is_none() {
        return;
    }
    let view = running.conductor().view();
    let drill = other::drill(worker);
    let again = worker.start.earlier() > 0;
    let from = running.goes_on_from();
    let (Some((number, time)), true) = (from, again || drill.is_some()) else {
        worker.recovery.is_over = true;
        return;
    };
    worker.recovery.is_whole(number, time, running.whole_at);
    let has_files = |join| worker.recovery.loaded.contains(join);
    let all = view
        .size
        .is_some_and(|size| usize::from(size) <= view.joined);
    if !running.leads() || !all || !running.joins().iter().all(has_files) {
        return;
    }
    worker.recovery.is_over = true;
    let mut one = worker.recovery.measured(&worker.start);
    if let Some(drill) = drill {
        one = CheckpointRecovery {
            job: drill.job,
            drill: Some(worker.start.job.clone()),
            lose: drill.lose.unwrap_or(0),
            // Nothing was lost, and nobody waited.
            detection_ms: None,
            requeue_ms: None,
            lost_s: None,
            run: 0,
            start: 0,
            ..one
        };
    }
    worker.shared.journal.enter(&one);
}

/// What was to be restored cannot be: of a drill that is entered.
pub(super) fn failed(worker: &mut Worker, why: &str) {
    let Some(drill) = other::drill(worker) else {
        return;
    };
    if std::mem::replace(&mut worker.recovery.is_over, true) {
        return;
    }
    let one = CheckpointRecovery {
        time: seconds(),
        job: drill.job,
        uid: worker.start.uid,
        drill: Some(worker.start.job.clone()),
        lose: drill.lose.unwrap_or(0),
        number: drill.number,
        nodes: worker.start.nodes.len() as u32,
        failed: why.chars().take(MOST_WHY).collect(),
        ..CheckpointRecovery::default()
    };
    worker.shared.journal.enter(&one);
}

/// Characters of a reason at most: a line of the journal has a limit.
const MOST_WHY: usize = 500;

#[cfg(test)]
mod tests {
    use gpuos_checkpoint::ids::NodeIndex;
    use gpuos_link::session::Place;

    use super::*;
    use crate::launch::Launch;

    fn start(launch: Launch) -> Start {
        let job = gpuos_core::job::JobId::from(7);
        Start {
            place: Place {
                job: job.clone(),
                list: 0,
                own: NodeIndex(0),
                nodes: 2,
            },
            job,
            uid: 1000,
            run: 1,
            launch,
            nodes: vec!["n1".into(), "n2".into()],
            spares: Vec::new(),
            lost: Vec::new(),
            domains: Vec::new(),
            over: Default::default(),
            queued_at: Some(1_000),
            started_at: Some(1_003),
        }
    }

    fn recovery(lost_before: Option<u64>) -> Recovery {
        Recovery {
            lost_before,
            began: 1_004_000,
            whole: Some((5, 940, 1_005_500)),
            loaded_at: 1_005_700,
            ..Recovery::default()
        }
    }

    #[test]
    fn a_requeue_has_its_parts_and_the_work_that_is_done_again() {
        let one = recovery(Some(992_500)).measured(&start(Launch::default()));
        let parts = [Some(7500), Some(3000), Some(2500), Some(200)];
        assert_eq!((one.parts(), one.total_ms()), (parts, 13_200));
        assert_eq!((one.number, one.lost_s), (Some(5), Some(52)));
        // No node was lost, or slurmctld's second is that of the loss.
        let one = recovery(None).measured(&start(Launch::default()));
        assert_eq!((one.detection_ms, one.lost_s), (None, Some(60)));
        let one = recovery(Some(1_000_900)).measured(&start(Launch::default()));
        assert_eq!((one.detection_ms, one.lost_s), (Some(0), Some(60)));
    }

    #[test]
    fn a_start_in_the_same_run_has_no_queue() {
        let launch = Launch {
            step: Some(2),
            start: 2,
        };
        let one = recovery(Some(1_001_000)).measured(&start(launch));
        let parts = [Some(3000), None, Some(1500), Some(200)];
        assert_eq!((one.parts(), one.lost_s), (parts, Some(61)));
    }

    #[test]
    fn a_node_that_comes_back_was_not_lost() {
        let mut recovery = recovery(None);
        recovery.unlinked();
        assert!(recovery.lost().is_some());
        recovery.linked();
        assert_eq!(recovery.lost(), None);
    }
}
