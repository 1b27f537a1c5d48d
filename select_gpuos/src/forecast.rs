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
use crate::engine::Engine;
use crate::request::Wanted;
use crate::steer::Purpose;
use crate::trust::Trust;

/// After so many refusals in a row the pauses grow no longer: 2^6 calls.
const LONGEST_PAUSE: u32 = 6;

/// So many jobs are remembered that are beside nobody for good; with more, no first question is answered.
const LONERS: usize = 64;

/// Backfill asks twice for a job: whether it could start now beside nobody, and then when it could start
/// at all. The first answer counts only if it is "now".
#[derive(Default)]
pub struct Twofold {
    /// The job whose first question was answered, until its second one comes; 0 = none.
    open: u32,
    /// Jobs for which no second one came: for them it is the only one.
    loners: Vec<u32>,
}

impl Twofold {
    /// A question about a job comes in. Returns whether it is a first one, which another will follow.
    fn asked(&mut self, job: u32, first: bool) -> bool {
        let open = std::mem::take(&mut self.open);
        let followed = open == job && !first;
        if open != 0 && !followed && self.loners.len() < LONERS {
            self.loners.push(open);
        }
        first && self.loners.len() < LONERS && !self.loners.contains(&job)
    }

    /// The same, where a first one is never looked into.
    pub fn left_open(&mut self, job: u32, first: bool) -> bool {
        let asked = self.asked(job, first);
        if asked {
            self.open = job;
        }
        asked
    }
}

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
    pub(crate) fn may_forecast(&mut self, call: &Call, job: Job<'_>) -> bool {
        if call.mode() != Mode::WillRun {
            return false;
        }
        let forecasts = &mut self.forecasts;
        forecasts.first = forecasts.twofold.asked(job.id(), job.beside_nobody());
        self.trust == Trust::Selection
            && call.is_plain(self.release)
            && call.withheld.is_empty()
            && (forecasts.first || forecasts.tries())
    }

    /// Answers the first question of two, where the answer cannot be "now": too few candidates are without jobs, or
    /// the question is about later. Called with the snapshot taken.
    fn not_alone_now(&mut self, call: &Call, job: Job<'_>, wanted: &Wanted) -> bool {
        if !self.forecasts.first || wanted.required() {
            return false;
        }
        let (from, _) = call.asked_between(self.release);
        let places = &self.snapshot.places;
        let empty = places.iter().filter(|place| place.gres != 0 && place.idle);
        let never = from > clock::now() || empty.count() < wanted.request.min_nodes as usize;
        if never {
            self.forecasts.twofold.open = job.id();
        }
        never
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
        if self.not_alone_now(call, job, wanted) {
            return Some(NOT_NOW);
        }
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

#[cfg(test)]
mod tests {
    use super::{LONERS, Twofold};

    /// A first question that is answered when it may be.
    fn first(twofold: &mut Twofold, job: u32) -> bool {
        twofold.left_open(job, true)
    }

    #[test]
    fn a_first_question_is_answered_while_a_second_one_follows() {
        let mut twofold = Twofold::default();
        for job in [7, 8, 7] {
            assert!(first(&mut twofold, job));
            assert!(!twofold.asked(job, false));
        }
        assert!(twofold.loners.is_empty());
    }

    #[test]
    fn a_job_with_one_question_only_is_not_answered_twice() {
        let mut twofold = Twofold::default();
        assert!(first(&mut twofold, 7));
        // Another job's question shows that no second one came.
        assert!(!twofold.asked(8, false));
        assert!(!first(&mut twofold, 7));
        assert!(first(&mut twofold, 9));
        assert!(first(&mut twofold, 10));
        assert!(!first(&mut twofold, 9));
        assert!(!twofold.asked(10, false));
        assert_eq!(twofold.loners, [7, 9, 10]);
    }

    #[test]
    fn with_too_many_of_them_none_is_answered() {
        let mut twofold = Twofold::default();
        let answered = (1..=2 * LONERS as u32).filter(|job| first(&mut twofold, *job));
        assert_eq!(answered.count(), LONERS);
    }
}
