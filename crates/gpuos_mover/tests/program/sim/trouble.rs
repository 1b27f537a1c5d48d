//! What goes wrong in a job, and that it goes on after that.

use gpuos_checkpoint::ids::CheckpointId;
use gpuos_checkpoint::refusal::Refusal;
use gpuos_mover::program::{Input, Reason, Refused, Start};

use super::{Job, Process};

/// The program is started again and again, and parts of it die, while the network is bad.
pub(super) fn trouble(job: &mut Job, sizes: &[u16]) {
    let until = job.now + 60_000;
    let mut next = 0;
    while job.now < until {
        if job.now >= next {
            let size = job.random.pick(sizes);
            job.start(size);
            // Some starts last long enough for checkpoints, some die before all have joined.
            next = job.now + job.random.pick(&[800, 3000, 15_000, 25_000]);
        }
        if job.random.below(500) == 0 {
            let rank = job.random.index(job.ranks.len());
            job.ranks[rank] = None;
        }
        if job.random.below(500) == 0 {
            let node = job.random.index(job.down.len());
            job.down[node] = job.now + job.random.below(5000);
        }
        if job.anew > 0 && job.random.below(job.anew) == 0 {
            job.anew();
        }
        if job.refuses > 0 && job.random.below(job.refuses) == 0 {
            job.refuse();
        }
        if job.random.below(1000) == 0 {
            let node = job.random.index(job.down.len()) as u16;
            let reason = job
                .random
                .pick(&[Reason::Asked, Reason::Asked, Reason::Interval]);
            job.give(node, Input::Want(reason));
        }
        job.step();
    }
}

/// The network does its work again, if slowly, and the program starts once more: a checkpoint of it is committed.
pub(super) fn heal(job: &mut Job, size: u16) {
    job.good = true;
    (job.lost, job.delay) = job.random.pick(&[(0, 50), (10, 600)]);
    job.down.fill(0);
    let mut size = job.newest.as_ref().map_or(size, |newest| newest.1);
    job.start(size);
    let until = job.now + 60_000;
    while job.last_round != Some(job.round) {
        if job.is_lost() && job.told_to_end() {
            return;
        }
        assert!(
            job.now < until,
            "no checkpoint of the last start: {:?}",
            job.conductors[0].view()
        );
        job.step();
        let failed = |process: &Process| matches!(process.start, Some(Start::Failed(_)));
        if !job.is_lost() && job.ranks.iter().flatten().any(failed) {
            // One of the earlier start was still being stored.
            size = job.newest.as_ref().map_or(size, |newest| newest.1);
            job.start(size);
        }
    }
    let started = job
        .ranks
        .iter()
        .flatten()
        .all(|process| process.start.is_some());
    assert!(started, "all ranks were told how to begin");
}

impl Job {
    /// A checkpoint is marked everywhere, and all begins anew without it.
    pub(super) fn anew_without(&mut self, id: CheckpointId) {
        assert!(self.begun.is_none(), "nothing is being stored");
        let newest = self.newest.take().unwrap();
        assert_eq!(newest.0, id, "the newest is refused");
        self.newest = self.older.pop();
        let by = Refusal {
            rank: 0,
            node: "n".into(),
            said: String::new(),
        };
        self.refused.push((id, by));
        self.before = self.before.max(id.number);
        self.anew();
    }

    /// A rank cannot load what it was given. Mostly the program is started again.
    fn refuse(&mut self) {
        let rank = self.random.index(self.ranks.len());
        let Some(process) = &self.ranks[rank] else {
            return;
        };
        if let Some(Start::Restore { id, .. }) = &process.start {
            let refused = Refused {
                join: process.join,
                number: id.number,
                said: String::new(),
            };
            self.refusals.insert(rank as u16, refused);
            let size = process.join.size;
            match self.random.below(4) {
                0 => self.ranks[rank] = None,
                _ => self.start(size),
            }
        }
    }
}
