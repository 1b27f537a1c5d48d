//! One `job_test`, from the job's record to the answer for Slurm.

use std::ffi::c_int;

use gpuos_core::explain;
use gpuos_core::options::JobOptions;
use gpuos_core::plan::{GpuShape, Placement, Unit, Wait};
use gpuos_core::record::{self, By};
use slurm_ffi::bits::Bitmap;
use slurm_ffi::gres::JobGres;
use slurm_ffi::handles::Job;
use slurm_ffi::log;

use crate::call::{Call, Mode, NOT_NOW};
use crate::engine::{Engine, Left};
use crate::note::Decision;
use crate::quick::Nothing;
use crate::reasons;
use crate::request::Wanted;
use crate::snapshot::Place;
use crate::steer::Purpose;

/// The options of a job that has none.
static NOTHING_SAID: JobOptions = JobOptions {
    off: false,
    topology: None,
    placement: None,
    shape: None,
    profile: None,
    class: None,
    exclusive: None,
    power: None,
    clocks: None,
    watch_s: None,
    mps: None,
    mig: None,
    share: None,
};

/// So many more nodes than asked for are offered to a job whose tasks the fewest nodes have not the CPUs for.
const MORE_NODES: u32 = 3;

/// How many domains are asked for the start of a job that waits for a required level.
const FUTURES: u32 = 16;

impl Engine {
    /// Decides one call; `None` hands it on as it came.
    pub(crate) fn decide(&mut self, call: &Call) -> Option<c_int> {
        let layout = self.layout;
        // SAFETY: the job record and bitmap of this call, locked by slurmctld for its length, of the
        // release whose layout the self-check accepted.
        let (job, nodes) = unsafe { (Job::new(call.job, layout)?, Bitmap::new(call.nodes)?) };
        if job.id() == 0 {
            return None;
        }
        if self.slices.on
            && let Some(asked) = self.slices_asked(job)
        {
            return self.place_slices(call, job, nodes, asked);
        }
        if self.has_shards()
            && let Some(asked) = self.shards_asked(job)
        {
            return self.place_shards(call, job, nodes, asked);
        }
        self.left = Left::Elsewhere;
        let Some(gpus) = self.one_type(job) else {
            if self.gpus_asked(job).next().is_some() {
                self.looks_into(Left::Unplanned);
            }
            return None;
        };
        // Unless something is decided below, cons_tres chooses by itself.
        self.pending = None;
        self.decided(call, Decision::Stock);
        if call.mode() == Mode::RunNow {
            self.withdraw(gpus);
        }
        if !self.settings.config.slurm.steer {
            return None;
        }
        self.looks_into(Left::Unplanned);
        // SAFETY: as above.
        unsafe { reasons::begin(self.api, layout, job.id()) };
        let forecasts = self.may_forecast(call, job);
        match self.nothing_to_choose(call, job, gpus, nodes) {
            Some(Nothing::Room) if forecasts => {}
            Some(nothing) => {
                self.left = Left::Elsewhere;
                return self.hand_on(call, nothing);
            }
            None => {}
        }
        let said = job.has_spank_env().then(|| said(job));
        let options = said.as_ref().unwrap_or(&NOTHING_SAID);
        if options.off {
            return None;
        }
        // SAFETY: as above.
        unsafe {
            self.snapshot.take(
                &self.source(),
                nodes,
                gpus.type_name(),
                &self.ledger,
                &self.service,
            )
        };
        if self.snapshot.unlisted || !self.model() {
            return None;
        }
        let mut wanted = self.wanted(call.counts, job, gpus, options)?;
        self.mix_arrives(job.id(), &wanted, gpus.type_name().is_some());
        if let Placement::Affinity(names) | Placement::AntiAffinity(names) =
            &wanted.request.placement
        {
            self.count_named(names);
        }
        self.mark_avoided(job.id());
        self.fit(job, gpus, &mut wanted);
        self.left = Left::Elsewhere;
        self.refused.asks(&wanted.request);
        let purpose = match call.mode() {
            Mode::RunNow => record::Purpose::Start,
            _ => record::Purpose::Forecast,
        };
        self.records.begin(job.id(), purpose);
        let enough = self.cores_enough(call, job, gpus, &wanted);
        self.steering.begin(nodes, enough);
        if forecasts && let Some(code) = self.forecast(call, job, nodes, &wanted) {
            return Some(code);
        }
        if let Some(decided) = self.without_a_plan(call, nodes, &wanted) {
            return match decided {
                NoPlan::Answer(code) => {
                    if code == 0 {
                        self.count_only_way(call);
                        self.decided(call, Decision::OnlyWay(wanted.request));
                    }
                    Some(code)
                }
                NoPlan::Stock => None,
            };
        }
        let offered = match self.offer(call, job, nodes, &mut wanted) {
            None => self.offer_more_nodes(call, job, gpus, nodes, &mut wanted),
            answer => answer,
        };
        let Some(code) = offered else {
            self.records.ended(record::Outcome::Left);
            self.left = Left::Refused;
            return None;
        };
        self.records.ended(match code {
            0 => record::Outcome::Taken,
            _ => record::Outcome::Waits,
        });
        if code == 0 && call.mode() == Mode::RunNow {
            self.records.count(|tally| tally.placed += 1);
            self.complete_selection(call, nodes);
            self.decided(call, Decision::Planned(wanted.request));
        }
        Some(code)
    }

    /// Counts a call, which is about a job of this kind as far as is known yet.
    fn looks_into(&mut self, left: Left) {
        self.left = left;
        self.records.count(|tally| tally.calls += 1);
    }

    pub(crate) fn count_only_way(&mut self, call: &Call) {
        if call.mode() == Mode::RunNow {
            self.records.count(|tally| tally.only_way += 1);
        }
    }

    /// cons_tres has given a job its nodes by itself.
    pub(crate) fn left_to_slurm(&mut self, call: &Call, left: Left) {
        if left == Left::Refused {
            // SAFETY: the bitmap of this call, locked by slurmctld for its length.
            let nodes = unsafe { Bitmap::new(call.nodes) };
            for index in nodes.into_iter().flat_map(Bitmap::iter) {
                self.took(index);
            }
        }
        // Who makes way for a job is for cons_tres to say, and a forecast starts nothing.
        if call.mode() == Mode::RunNow && call.preemptable().is_null() {
            self.records.count(|tally| match left {
                Left::Refused => tally.left += 1,
                Left::Unplanned => tally.unplanned += 1,
                Left::Elsewhere => {}
            });
        }
    }

    /// Counts, on each candidate, what an affinity rule names.
    #[inline(never)]
    fn count_named(&mut self, names: &[String]) {
        let layout = self.layout;
        let states = &mut self.snapshot.states;
        self.ledger.for_each_node(
            // SAFETY: job_test runs under slurmctld's job write lock.
            |id| unsafe { Job::find(id, layout) }.is_some_and(|job| job.is_named(names)),
            |node| {
                if let Some(state) = states.get_mut(node as usize) {
                    state.affinity = state.affinity.saturating_add(1);
                }
            },
        );
        self.go_near(names);
    }

    /// The calls in which there is nothing to choose: too few nodes have enough free GPUs, or all of
    /// them have to be taken whole.
    fn without_a_plan(
        &mut self,
        call: &Call,
        nodes: Bitmap<'_>,
        wanted: &Wanted,
    ) -> Option<NoPlan> {
        let request = &wanted.request;
        let GpuShape::PerNode(gpus) = request.gpus else {
            return None;
        };
        if wanted.required() || request.whole_nodes {
            return None;
        }
        let room = self.snapshot.with_free(gpus);
        if room < request.min_nodes {
            return Some(match call.answers_no_room() {
                true => NoPlan::Answer(NOT_NOW),
                false => NoPlan::Stock,
            });
        }
        let all = room == wanted.nodes && nodes.count() == room as usize;
        let whole =
            |place: &Place| place.gres == 0 || (!place.flat && place.devices == gpus as usize);
        let whole = all && self.snapshot.places.iter().all(whole);
        whole.then(|| NoPlan::Answer(self.steering.all(call, nodes, self.layout, &self.snapshot)))
    }

    /// How many cores of each socket are enough for a job, where cons_tres wastes its time on more of them
    /// and the job has no use for them.
    fn cores_enough(
        &self,
        call: &Call,
        job: Job<'_>,
        gpus: JobGres<'_>,
        wanted: &Wanted,
    ) -> Option<u32> {
        let request = &wanted.request;
        let known = self.hides_cores
            && call.is_plain(self.release)
            && !request.whole_nodes
            && matches!(request.gpus, GpuShape::PerNode(_))
            && !gpus.binds_cpus();
        known
            .then(|| job.cpus_of_each_node(request.min_nodes))
            .flatten()
    }

    /// Offers choices to cons_tres, best first. `None`: let it choose by itself.
    fn offer(
        &mut self,
        call: &Call,
        job: Job<'_>,
        nodes: Bitmap<'_>,
        wanted: &mut Wanted,
    ) -> Option<c_int> {
        let mut wait = None;
        // A GPU that is worn is given where there is no other way.
        if self.snapshot.spare_degraded() {
            let spared = self.offer_choices(call, nodes, wanted, &mut wait);
            self.snapshot.offer_degraded();
            if spared {
                return Some(0);
            }
            wait = None;
        }
        if self.offer_choices(call, nodes, wanted, &mut wait) {
            return Some(0);
        }
        if wanted.required() {
            return Some(self.later(call, job, nodes, wanted, wait));
        }
        None
    }

    /// Offers more nodes than a job asked for, where it named no number of tasks for each and the fewest nodes have not
    /// the CPUs for all tasks: so does Slurm. Each of them has the GPUs that were asked for.
    #[cold]
    #[inline(never)]
    fn offer_more_nodes(
        &mut self,
        call: &Call,
        job: Job<'_>,
        gpus: JobGres<'_>,
        nodes: Bitmap<'_>,
        wanted: &mut Wanted,
    ) -> Option<c_int> {
        let (fewest, most) = (wanted.nodes, wanted.request.max_nodes);
        let GpuShape::PerNode(each) = wanted.request.gpus else {
            return None;
        };
        let cpus = job.min_cpus();
        if wanted.required() || job.tasks_per_node() != 0 || wanted.request.whole_nodes {
            return None;
        }
        for count in fewest + 1..=most.min(fewest + MORE_NODES) {
            if cpus.div_ceil(count) >= cpus.div_ceil(count - 1)
                || self.snapshot.with_free(each) < count
            {
                break;
            }
            // SAFETY: as in `decide`.
            unsafe {
                self.snapshot.take(
                    &self.source(),
                    nodes,
                    gpus.type_name(),
                    &self.ledger,
                    &self.service,
                )
            };
            self.mark_avoided(job.id());
            wanted.nodes = count;
            let request = &mut wanted.request;
            (request.min_nodes, request.max_nodes) = (count, count);
            request.cpus_per_node = job.min_cpus_per_node().max(cpus.div_ceil(count));
            self.fit(job, gpus, wanted);
            let answer = self.offer(call, job, nodes, wanted);
            if answer.is_some() {
                return answer;
            }
        }
        None
    }

    /// Offers choices of all weights, best first; whether cons_tres took one. Why there was none goes to
    /// `wait`.
    fn offer_choices(
        &mut self,
        call: &Call,
        nodes: Bitmap<'_>,
        wanted: &mut Wanted,
        wait: &mut Option<Wait>,
    ) -> bool {
        let (min, max) = (wanted.request.min_nodes, wanted.request.max_nodes);
        // Slurm uses nodes of lower weight first; within what they can take, gpuos chooses.
        let weights = self.snapshot.weights();
        // By all that is known of CPUs and memory; a job that cons_tres is not asked about any more if there
        // is no place for it so, once more without.
        'advice: for known in [true, false] {
            if !known {
                if !wanted.required() {
                    break;
                }
                self.snapshot.forget_cpus();
            }
            for weight in 0..weights {
                if weights > 1 {
                    self.snapshot.up_to_weight(weight);
                    // Too few free GPUs up to this weight: seen without asking the planner.
                    let lacks = match wanted.request.gpus {
                        GpuShape::PerNode(gpus) => self.snapshot.with_free(gpus) < min,
                        _ => false,
                    };
                    if lacks && weight + 1 < weights {
                        continue;
                    }
                }
                match self.offer_best(call, nodes, wanted, (min, max)) {
                    Offer::Taken => return true,
                    // There were choices, and cons_tres wants none of them: not for a lack of CPUs.
                    Offer::Refused if weight + 1 == weights => {
                        *wait = None;
                        break 'advice;
                    }
                    Offer::Refused => {}
                    Offer::NoRoom(why) => *wait = Some(why),
                }
            }
        }
        (wanted.request.min_nodes, wanted.request.max_nodes) = (min, max);
        false
    }

    /// Offers the best choices of one weight to cons_tres.
    fn offer_best(
        &mut self,
        call: &Call,
        nodes: Bitmap<'_>,
        wanted: &mut Wanted,
        range: (u32, u32),
    ) -> Offer {
        let attempts = u32::from(self.settings.config.slurm.attempts);
        let request = &mut wanted.request;
        (request.min_nodes, request.max_nodes) = match request.gpus {
            GpuShape::Total(_) | GpuShape::PerTask { .. } => range,
            _ => (wanted.nodes, wanted.nodes),
        };
        self.records.states(&self.snapshot.states);
        let (mut tried, mut first) = (0, 0);
        // How many of the choices at hand were refused, and for which nodes that may have been.
        let (mut passed, mut suspect) = (0, None);
        while tried < attempts {
            let Some(planner) = self.planner.as_mut() else {
                break;
            };
            let mut by = By::Order;
            // The place with the most bandwidth beside the running gangs goes first, then all others.
            if let (0, Some(traffic)) = (tried, &mut self.traffic) {
                let pick = traffic.best(planner, &self.snapshot.states, request);
                (first, by) = (pick.skip, By::Network(pick.beside));
            }
            let skip = match passed {
                0 if tried == 0 => first,
                n if n <= first => n.saturating_sub(1),
                n => n,
            };
            let answer = planner.plan(&self.snapshot.states, request, skip);
            self.records.asked(request, (skip, by), &answer);
            match answer {
                Ok(choice) => {
                    let layout = self.layout;
                    let code = self.steering.attempt(
                        call,
                        nodes,
                        layout,
                        &self.snapshot,
                        choice,
                        Purpose::Answer,
                    );
                    self.chosen.set(choice);
                    self.records.count(|tally| {
                        tally.offers += 1;
                        tally.refused += u64::from(code != 0);
                    });
                    if code == 0 {
                        self.attempt = tried;
                        self.confirmed(suspect);
                        return Offer::Taken;
                    }
                    tried += 1;
                    passed += 1;
                    if self.refused(&mut suspect) {
                        // The choices are counted anew among what is left.
                        (passed, first) = (0, 0);
                        self.records.states(&self.snapshot.states);
                    }
                }
                Err(why) if tried == 0 => match fewer(&why) {
                    // `-N 2-4` with room for three.
                    Some(fit) if fit >= range.0 && fit < request.max_nodes => {
                        (request.min_nodes, request.max_nodes) = (fit, fit);
                    }
                    _ => return Offer::NoRoom(why),
                },
                Err(_) => break,
            }
        }
        Offer::Refused
    }

    /// A required level that has no room now: preempt inside one domain if Slurm may, else say when the
    /// first domain will have room, and why the job waits.
    #[inline(never)]
    fn later(
        &mut self,
        call: &Call,
        job: Job<'_>,
        nodes: Bitmap<'_>,
        wanted: &Wanted,
        wait: Option<Wait>,
    ) -> c_int {
        let may_preempt = !call.preemptable().is_null();
        let mut best: Option<(i64, u32)> = None;
        if call.mode() == Mode::WillRun || may_preempt {
            for n in 0..FUTURES {
                let Some(planner) = self.planner.as_mut() else {
                    break;
                };
                let Some(domain) = planner.future(&self.snapshot.states, &wanted.request, n) else {
                    break;
                };
                let purpose = if call.mode() == Mode::RunNow {
                    Purpose::Answer
                } else {
                    Purpose::Question
                };
                let layout = self.layout;
                let code =
                    self.steering
                        .attempt(call, nodes, layout, &self.snapshot, domain, purpose);
                if code != 0 {
                    continue;
                }
                if purpose == Purpose::Answer {
                    self.records.states(&self.snapshot.states);
                    self.records
                        .asked(&wanted.request, (n, By::Future), &Ok(domain));
                    self.chosen.set(domain);
                    return code;
                }
                if best.is_none_or(|(start, _)| job.start_time() < start) {
                    best = Some((job.start_time(), n));
                }
            }
        }
        let mut code = NOT_NOW;
        if let (Some((_, n)), Some(planner)) = (best, self.planner.as_mut())
            && let Some(domain) = planner.future(&self.snapshot.states, &wanted.request, n)
        {
            self.records.states(&self.snapshot.states);
            self.records
                .asked(&wanted.request, (n, By::Future), &Ok(domain));
            let layout = self.layout;
            code =
                self.steering
                    .attempt(call, nodes, layout, &self.snapshot, domain, Purpose::Answer);
        }
        if let Some(wait) = wait {
            let named = wanted.request.required_nodes.len();
            let sentence = format!("gpuos: {}", explain::why_wait_on(&wait, named));
            reasons::tell(self.api, call.mode(), job, sentence);
        }
        code
    }
}

/// What a job says to gpuos.
#[inline(never)]
pub(crate) fn said(job: Job<'_>) -> JobOptions {
    JobOptions::from_spank_env(job.spank_env()).unwrap_or_else(|why| {
        log::debug(&format!("job {}: {why}; the option is ignored", job.id()));
        JobOptions::default()
    })
}

/// A call that needs no plan.
enum NoPlan {
    /// The answer to Slurm.
    Answer(c_int),
    /// cons_tres decides.
    Stock,
}

/// What came of offering choices.
enum Offer {
    /// cons_tres took one.
    Taken,
    /// cons_tres took none of them.
    Refused,
    /// There was none to offer.
    NoRoom(Wait),
}

/// How many nodes would fit, where that is the reason to wait.
fn fewer(wait: &Wait) -> Option<u32> {
    match wait {
        Wait::Capacity {
            feasible_nodes,
            needed_nodes,
            ..
        } if feasible_nodes < needed_nodes => Some(*feasible_nodes),
        Wait::Level {
            have,
            need,
            unit: Unit::Nodes,
            ..
        } if have < need => Some(*have),
        _ => None,
    }
}
