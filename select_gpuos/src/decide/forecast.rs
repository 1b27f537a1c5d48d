//! Forecasts: when and where a job could start that does not fit now (`WILL_RUN`).
//!
//! Backfill keeps the nodes of the answer for the job. cons_tres takes those that it would take to start it,
//! as a rule nodes that have GPUs free now, and so keeps away jobs that could run there. So it is first asked for the nodes
//! that [`Foresight`] names alone, with the earliest moment at which the job can have its GPUs at all. Only an answer that
//! is no later than that moment counts: for all candidates cons_tres could say none that is earlier. Else it is asked for all, as
//! it came. As a few nodes are tested sooner than all, most forecasts take a part of the time only.

use std::ffi::c_int;

use gpuos_model::gpuset::GpuSet;
use gpuos_placement::plan::{Choice, Ending, Foresight, GpuShape, NodeChoice, Planner};
use slurm_ffi::release::Release;

use crate::abi::call::NOT_NOW;
use crate::abi::frame::Frame;
use crate::gres::steer::{Purpose, Steering};
use crate::read::backfill::Twofold;
use crate::read::ledger::Ledger;
use crate::read::request::Wanted;
use crate::read::snapshot::Snapshot;

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
    twofold: Twofold,
    /// Whether the call at hand is a first question of two.
    first: bool,
}

impl Forecasts {
    /// Whether a call is a forecast of the kind that gpuos has a say in. Nobody is preempted for it, nothing is kept
    /// out of it, and what running jobs hold is known (`knows`).
    pub fn may_answer(&mut self, frame: &Frame<'_>, release: Release, knows: bool) -> bool {
        let (call, job) = (frame.call, frame.job);
        if !frame.is_forecast() {
            return false;
        }
        self.first = self.twofold.asked(job.id(), job.beside_nobody());
        knows
            && call.is_plain(release)
            && call.out_of_service.is_empty()
            && (self.first || self.tries())
    }

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

/// A call that asks when a job could start.
pub struct Forecasting<'e, 'a> {
    /// The call.
    pub frame: &'e Frame<'a>,
    /// Slurm's release.
    pub release: Release,
    /// What is kept of forecasts.
    pub forecasts: &'e mut Forecasts,
    /// How cons_tres is asked.
    pub steering: &'e mut Steering,
    /// The candidates.
    pub snapshot: &'e Snapshot,
    /// Who plans for the cluster.
    pub planner: Option<&'e Planner>,
    /// What running jobs hold.
    pub ledger: &'e Ledger,
}

impl Forecasting<'_, '_> {
    /// Answers the first question of two, where the answer cannot be "now": too few candidates are without jobs, or
    /// the question is about later. Called with the snapshot taken.
    fn not_alone_now(&mut self, wanted: &Wanted) -> bool {
        let frame = self.frame;
        if !self.forecasts.first || wanted.required() {
            return false;
        }
        let (from, _) = frame.call.asked_between(self.release);
        let places = &self.snapshot.places;
        let empty = places.iter().filter(|place| place.has_gpus() && place.idle);
        let never = from > frame.now || empty.count() < wanted.request.min_nodes as usize;
        if never {
            self.forecasts.twofold.open = frame.job.id();
        }
        never
    }

    /// Answers a forecast for the nodes that are rather kept; `None`: cons_tres is to be asked for all. Called
    /// with the snapshot taken.
    pub fn answer(&mut self, wanted: &Wanted) -> Option<c_int> {
        let frame = self.frame;
        let (call, job, now) = (frame.call, frame.job, frame.now);
        if self.not_alone_now(wanted) {
            return Some(NOT_NOW);
        }
        let request = &wanted.request;
        let GpuShape::PerNode(each) = request.gpus else {
            return None;
        };
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
        self.read_endings();
        let (forecasts, steering) = (&mut *self.forecasts, &mut *self.steering);
        let snapshot = self.snapshot;
        let (moment, coming) = forecasts.foresight.find(
            &snapshot.states,
            &forecasts.endings,
            from.max(now),
            wanted.nodes,
            each,
        )?;
        if until.is_some_and(|until| moment > until) {
            return Some(NOT_NOW);
        }
        forecasts.choice.nodes.clear();
        forecasts
            .choice
            .nodes
            .extend(coming.iter().map(|at| NodeChoice {
                node: at.node,
                gpus: GpuSet::EMPTY,
            }));
        let before = job.start_time();
        let (release, choice) = (self.release, &forecasts.choice);
        let code = call.asking_until(release, moment, || {
            steering.attempt(frame, snapshot, choice, Purpose::Answer)
        });
        let counts = code == 0 && job.start_time() <= moment;
        forecasts.tried(counts);
        if counts {
            return Some(code);
        }
        if code == 0 {
            steering.restore_candidates(frame);
            call.unanswered();
        }
        job.set_start_time(before);
        None
    }

    fn keeps_busiest(&self, nodes: u32) -> bool {
        self.planner
            .is_some_and(|planner| planner.keeps_busiest(nodes))
    }

    /// Whether all candidates have the same weight in slurm.conf.
    fn one_weight(&self) -> bool {
        let places = self.snapshot.places.iter().enumerate();
        let mut weights = places
            .filter(|(_, place)| place.has_gpus())
            .filter_map(|(index, _)| {
                let node = self.frame.source.node(index)?;
                Some(node.configured_weight())
            });
        let first = weights.next();
        weights.all(|weight| Some(weight) == first)
    }

    /// Has at hand what running jobs give back, and when: by their records of this second, as a time limit
    /// may be changed at any time.
    fn read_endings(&mut self) {
        let (frame, now) = (self.frame, self.frame.now);
        let read = (now, self.ledger.changes());
        let forecasts = &mut *self.forecasts;
        if forecasts.read == read {
            return;
        }
        forecasts.read = read;
        let endings = &mut forecasts.endings;
        endings.clear();
        self.ledger.for_each_job(|id, held| {
            let job = frame.source.job(id);
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
