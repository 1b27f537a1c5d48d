//! Forecasts: when and where a job could start that does not fit now (`WILL_RUN`).
//!
//! Backfill keeps the nodes of the answer for the job. cons_tres takes those that it would take to start it,
//! as a rule nodes that have GPUs free now, and so keeps away jobs that could run there. So it is first asked for the nodes
//! that [`Foresight`] names alone, with the earliest moment at which the job can have its GPUs at all. Only an answer that
//! is no later than that moment counts: for all candidates cons_tres could say none that is earlier. Else it is asked for all, as
//! it came. As a few nodes are tested sooner than all, most forecasts take a part of the time only.

use std::ffi::{c_int, c_void};

use gpuos_core::gpuset::GpuSet;
use gpuos_core::plan::{Choice, Ending, Foresight, GpuShape, NodeChoice};
use slurm_ffi::bits::Bitmap;
use slurm_ffi::handles::{Job, Node};

use crate::call::{Call, Mode, NOT_NOW};
use crate::clock;
use crate::engine::{Engine, Trust};
use crate::request::Wanted;
use crate::steer::Purpose;

/// After so many refusals in a row the pauses grow no longer: 2^6 calls.
const LONGEST_PAUSE: u32 = 6;

/// What is kept from forecast to forecast.
#[derive(Default)]
pub struct Forecasts {
    foresight: Foresight,
    /// What running jobs give back, by time.
    endings: Vec<Ending>,
    /// For which second, and which state of the ledger, they were read.
    read: (i64, u64),
    choice: Choice,
    /// How many answers in a row did not count, and how many calls are handed on before the next try.
    refused: u32,
    pause: u32,
}

impl Forecasts {
    /// Whether it is worth a try: where CPUs or memory decide, it never is.
    fn tries(&mut self) -> bool {
        let tries = self.pause == 0;
        self.pause = self.pause.saturating_sub(1);
        tries
    }

    fn tried(&mut self, counts: bool) {
        self.refused = match counts {
            true => 0,
            false => (self.refused + 1).min(LONGEST_PAUSE),
        };
        self.pause = match self.refused {
            0 => 0,
            refused => (1 << refused) - 1,
        };
    }
}

impl Engine {
    /// Whether a call is a forecast of the kind that gpuos has a say in. Nobody is preempted for it, nothing is kept
    /// out of it, and what running jobs hold is known.
    pub(crate) fn may_forecast(&mut self, call: &Call) -> bool {
        call.mode() == Mode::WillRun
            && self.trust == Trust::Selection
            && call.is_plain(self.release)
            && call.withheld.is_empty()
            && self.forecasts.tries()
    }

    /// Answers a forecast for the nodes that are rather kept; `None`: cons_tres is to be asked for all. Called
    /// with the snapshot taken.
    pub(crate) fn forecast(
        &mut self,
        call: &Call,
        job: Job<'_>,
        nodes: Bitmap<'_>,
        wanted: &Wanted,
    ) -> Option<c_int> {
        let request = &wanted.request;
        let GpuShape::PerNode(each) = request.gpus else {
            return None;
        };
        let now = clock::now();
        let (from, until) = call.asked_between(self.release);
        let later = from > now || self.snapshot.with_free(each) < request.min_nodes;
        if !later
            || wanted.required()
            || request.whole_nodes
            || !self.keeps_busiest(wanted.nodes)
            || !request.required_nodes.is_empty()
            // With fewer nodes it could start sooner, or on other switches at once.
            || request.min_nodes != wanted.nodes
            || job.asks_for_switches()
            // Slurm takes nodes of lower weight first.
            || !self.one_weight()
        {
            return None;
        }
        self.read_endings(now);
        let kept = &mut self.forecasts;
        let (moment, coming) = kept.foresight.find(
            &self.snapshot.states,
            &kept.endings,
            from.max(now),
            wanted.nodes,
            each,
        )?;
        if until.is_some_and(|until| moment > until) {
            return Some(NOT_NOW);
        }
        kept.choice.nodes.clear();
        kept.choice.nodes.extend(coming.iter().map(|at| NodeChoice {
            node: at.node,
            gpus: GpuSet::EMPTY,
        }));
        let before = job.start_time();
        let layout = self.layout;
        let code = call.asking_until(self.release, moment, || {
            let (snapshot, choice) = (&self.snapshot, &kept.choice);
            self.steering
                .attempt(call, nodes, layout, snapshot, choice, Purpose::Answer)
        });
        let counts = code == 0 && job.start_time() <= moment;
        kept.tried(counts);
        if counts {
            return Some(code);
        }
        if code == 0 {
            self.steering.put_back(nodes);
            call.unanswered();
        }
        job.set_start_time(before);
        None
    }

    fn keeps_busiest(&self, nodes: u32) -> bool {
        let planner = self.planner.as_ref();
        planner.is_some_and(|planner| planner.keeps_busiest(nodes))
    }

    /// Whether all candidates have the same weight in slurm.conf.
    fn one_weight(&self) -> bool {
        let places = self.snapshot.places.iter().filter(|place| place.gres != 0);
        let mut weights = places.filter_map(|place| {
            // SAFETY: the snapshot read this address in this very call, under the node write lock.
            let node = unsafe { Node::new(place.record as *mut c_void, self.layout) };
            node.map(Node::configured_weight)
        });
        let first = weights.next();
        weights.all(|weight| Some(weight) == first)
    }

    /// Has at hand what running jobs give back, and when: by their records of this second, as a time limit
    /// may be changed at any time.
    fn read_endings(&mut self, now: i64) {
        let read = (now, self.ledger.changes());
        if self.forecasts.read == read {
            return;
        }
        self.forecasts.read = read;
        let layout = self.layout;
        let endings = &mut self.forecasts.endings;
        endings.clear();
        self.ledger.for_each_job(|id, held| {
            // SAFETY: job_test runs under slurmctld's job write lock.
            let job = unsafe { Job::find(id, layout) };
            let at = job.map_or(now, |job| job.soonest_end(now));
            let given = held.iter().filter(|one| one.gpus > 0);
            endings.extend(given.map(|one| Ending {
                at,
                node: one.node,
                gpus: one.gpus,
            }));
        });
        endings.sort_unstable_by_key(|ending| ending.at);
    }
}
