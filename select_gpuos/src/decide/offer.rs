//! Offers to cons_tres: the planner's choices, the best first, and what is said when none is taken.

use std::ffi::c_int;

use gpuos_placement::explain;
use gpuos_placement::plan::{GpuShape, Unit, Wait};
use gpuos_placement::record::By;
use slurm_ffi::gres::JobGres;

use crate::abi::call::NOT_NOW;
use crate::decide::refusals::{Candidates, Facts};
use crate::decide::{Decide, Placing};
use crate::gres::enough;
use crate::gres::steer::Purpose;
use crate::messages;
use crate::read::request::Wanted;
use crate::tell::reasons;

/// So many more nodes than asked for are offered to a job whose tasks the fewest nodes have not the CPUs for.
const MORE_NODES: u32 = 3;

/// How many domains are asked for the start of a job that waits for a required level.
const FUTURES: u32 = 16;

impl Decide<'_, '_> {
    /// Offers choices to cons_tres, best first. `None`: let it choose by itself.
    pub fn offer(&mut self, wanted: &mut Wanted) -> Option<c_int> {
        let mut wait = None;
        // A degraded GPU is given where there is no other way.
        if self.cluster.snapshot.spare_degraded() {
            let spared = self.offer_choices(wanted, &mut wait);
            self.cluster.snapshot.offer_degraded();
            if spared {
                return Some(0);
            }
            wait = None;
        }
        if !self.fell_short && self.offer_choices(wanted, &mut wait) {
            return Some(0);
        }
        if wanted.required() {
            return Some(self.later(wanted, wait));
        }
        None
    }

    /// Offers more nodes than a job asked for, where it named no number of tasks for each and the fewest nodes have not
    /// the CPUs for all tasks: so does Slurm. Each of them has the GPUs that were asked for.
    #[cold]
    #[inline(never)]
    pub fn offer_more_nodes(&mut self, gpus: JobGres<'_>, wanted: &mut Wanted) -> Option<c_int> {
        let (fewest, most) = (wanted.nodes, wanted.request.max_nodes);
        let GpuShape::PerNode(each) = wanted.request.gpus else {
            return None;
        };
        let cpus = self.frame.job.min_cpus();
        if wanted.required() || !self.may_spread(wanted) {
            return None;
        }
        for count in fewest + 1..=most.min(fewest + MORE_NODES) {
            if cpus.div_ceil(count) >= cpus.div_ceil(count - 1)
                || self.cluster.snapshot.with_free(each) < count
            {
                break;
            }
            let answer = self.offer_nodes(count, gpus, wanted);
            if answer.is_some() || self.fell_short {
                return answer;
            }
        }
        None
    }

    /// Whether the job may have more nodes than the fewest, with its tasks spread as they fit.
    pub fn may_spread(&self, wanted: &Wanted) -> bool {
        let per_node = matches!(wanted.request.gpus, GpuShape::PerNode(_));
        per_node && self.frame.job.tasks_per_node() == 0 && !wanted.request.whole_nodes
    }

    /// Offers so many nodes to a job that may have more than the fewest.
    #[cold]
    #[inline(never)]
    pub fn offer_nodes(
        &mut self,
        count: u32,
        gpus: JobGres<'_>,
        wanted: &mut Wanted,
    ) -> Option<c_int> {
        let frame = self.frame;
        let (source, job) = (&frame.source, frame.job);
        (self.cluster).take_snapshot(
            frame.is_forecast(),
            source,
            frame.candidates,
            gpus.type_name(),
        );
        (self.cluster.neighbours).mark_avoided(job.id(), &mut self.cluster.snapshot);
        self.placing.holders.mark(&mut self.cluster.snapshot);
        self.placing.short.mark(&mut self.cluster.snapshot);
        wanted.nodes = count;
        let request = &mut wanted.request;
        (request.min_nodes, request.max_nodes) = (count, count);
        let share = job.min_cpus().div_ceil(count.max(1));
        request.cpus_per_node = job.min_cpus_per_node().max(share);
        self.fit(gpus, wanted);
        self.offer(wanted)
    }

    /// Offers choices of all weights, best first; whether cons_tres took one. Why there was none goes to
    /// `wait`.
    fn offer_choices(&mut self, wanted: &mut Wanted, wait: &mut Option<Wait>) -> bool {
        let (min, max) = (wanted.request.min_nodes, wanted.request.max_nodes);
        // Slurm uses nodes of lower weight first; within what they can take, gpuos chooses.
        let weights = self.cluster.snapshot.weights();
        // By all that is known of CPUs and memory; a job that cons_tres is not asked about any more if there
        // is no place for it so, once more without.
        'advice: for known in [true, false] {
            if !known {
                if !wanted.required() {
                    break;
                }
                self.cluster.snapshot.forget_cpus();
            }
            for weight in 0..weights {
                if weights > 1 {
                    self.cluster.snapshot.up_to_weight(weight);
                    // Too few free GPUs up to this weight: seen without asking the planner.
                    let lacks = match wanted.request.gpus {
                        GpuShape::PerNode(gpus) => self.cluster.snapshot.with_free(gpus) < min,
                        _ => false,
                    };
                    if lacks && weight + 1 < weights {
                        continue;
                    }
                }
                match self.offer_best(wanted, (min, max)) {
                    Offer::Taken => return true,
                    Offer::Short => break 'advice,
                    // There were choices, and cons_tres wants none of them: not for a lack of CPUs.
                    Offer::Refused if weight + 1 == weights => {
                        *wait = None;
                        break 'advice;
                    }
                    Offer::Refused => {}
                    Offer::NothingFits(why) => *wait = Some(why),
                }
            }
        }
        (wanted.request.min_nodes, wanted.request.max_nodes) = (min, max);
        false
    }

    /// Offers the best choices of one weight to cons_tres.
    fn offer_best(&mut self, wanted: &mut Wanted, range: (u32, u32)) -> Offer {
        let frame = self.frame;
        let attempts = u32::from(self.site.settings.config.slurm.attempts);
        let required = wanted.required();
        let request = &mut wanted.request;
        (request.min_nodes, request.max_nodes) = match request.gpus {
            GpuShape::Total(_) | GpuShape::PerTask { .. } => range,
            _ => (wanted.nodes, wanted.nodes),
        };
        self.cluster.records.states(&self.cluster.snapshot.states);
        let (mut tried, mut first) = (0, 0);
        // How many of the choices at hand were refused, and for which nodes that may have been.
        let (mut passed, mut suspect) = (0, None);
        while tried < attempts {
            let Some(planner) = self.cluster.planner.as_mut() else {
                break;
            };
            let mut by = By::Order;
            // The place with the most bandwidth beside the running gangs goes first, then all others.
            if let (0, Some(traffic)) = (tried, &mut self.cluster.traffic) {
                let pick = traffic.best(planner, &self.cluster.snapshot.states, request);
                (first, by) = (pick.skip, By::Network(pick.beside));
            }
            let skip = match passed {
                0 if tried == 0 => first,
                n if n <= first => n.saturating_sub(1),
                n => n,
            };
            let answer = planner.plan(&self.cluster.snapshot.states, request, skip);
            self.cluster.records.asked(request, (skip, by), &answer);
            match answer {
                Ok(choice) if self.cluster.negative_links.may_shorten(choice) => {
                    (tried, passed) = (tried + 1, passed + 1);
                }
                Ok(choice) => {
                    let snapshot = &self.cluster.snapshot;
                    let steering = &mut self.placing.steering;
                    let mut code = frame.asking_for_now(self.site.release, || {
                        steering.attempt(frame, snapshot, choice, Purpose::Offer)
                    });
                    self.placing.chosen.set(choice);
                    let later = code == 0 && steering.takes_back_later(frame, self.site.release);
                    if later {
                        code = NOT_NOW;
                    }
                    if code == 0 && self.takes_back() {
                        code = NOT_NOW;
                        self.fell_short = !required;
                    }
                    self.cluster.records.count(|tally| {
                        tally.offers += 1;
                        tally.refused += u64::from(code != 0 && !later);
                    });
                    if code == 0 {
                        self.placing.attempt = tried;
                        self.confirmed(suspect);
                        return Offer::Taken;
                    }
                    if self.fell_short {
                        return Offer::Short;
                    }
                    tried += 1;
                    passed += 1;
                    if self.learn_refusal(&mut suspect) {
                        // The choices are counted anew among what is left.
                        (passed, first) = (0, 0);
                        self.cluster.records.states(&self.cluster.snapshot.states);
                    }
                }
                Err(why) if tried == 0 => match fewer(&why) {
                    // `-N 2-4` with room for three.
                    Some(fit) if fit >= range.0 && fit < request.max_nodes => {
                        (request.min_nodes, request.max_nodes) = (fit, fit);
                    }
                    _ => return Offer::NothingFits(why),
                },
                Err(_) => break,
            }
        }
        Offer::Refused
    }

    /// A required level that has no room now: preempt inside one domain if Slurm may, else say when the
    /// first domain will have room, and why the job waits.
    #[inline(never)]
    fn later(&mut self, wanted: &Wanted, wait: Option<Wait>) -> c_int {
        let frame = self.frame;
        let (call, job) = (frame.call, frame.job);
        let may_preempt = !call.preemptable().is_null();
        let mut best: Option<(i64, u32)> = None;
        if frame.is_forecast() || may_preempt {
            for n in 0..FUTURES {
                let Some(planner) = self.cluster.planner.as_mut() else {
                    break;
                };
                let Some(domain) =
                    planner.future(&self.cluster.snapshot.states, &wanted.request, n)
                else {
                    break;
                };
                let purpose = if frame.is_start() {
                    Purpose::Answer
                } else {
                    Purpose::Question
                };
                let snapshot = &self.cluster.snapshot;
                let code = (self.placing.steering).attempt(frame, snapshot, domain, purpose);
                if code != 0 {
                    continue;
                }
                if purpose == Purpose::Answer {
                    self.cluster.records.states(&self.cluster.snapshot.states);
                    self.cluster
                        .records
                        .asked(&wanted.request, (n, By::Future), &Ok(domain));
                    self.placing.chosen.set(domain);
                    if self.takes_back() {
                        continue;
                    }
                    return code;
                }
                if best.is_none_or(|(start, _)| job.start_time() < start) {
                    best = Some((job.start_time(), n));
                }
            }
        }
        let mut code = NOT_NOW;
        if let (Some((_, n)), Some(planner)) = (best, self.cluster.planner.as_mut())
            && let Some(domain) = planner.future(&self.cluster.snapshot.states, &wanted.request, n)
        {
            self.cluster.records.states(&self.cluster.snapshot.states);
            self.cluster
                .records
                .asked(&wanted.request, (n, By::Future), &Ok(domain));
            let snapshot = &self.cluster.snapshot;
            code = (self.placing.steering).attempt(frame, snapshot, domain, Purpose::Answer);
        }
        if let Some(wait) = wait {
            let named = wanted.request.required_nodes.len();
            let sentence = format!("gpuos: {}", explain::why_wait_on(&wait, named));
            reasons::publish(frame, sentence);
        }
        code
    }

    /// Takes back an answer that gives the job less than it asks for; whether it was one.
    pub fn takes_back(&mut self) -> bool {
        let (frame, read) = (self.frame, (self.site, &*self.trust));
        let taken =
            (self.placing).takes_back(frame, read, self.plain, |job, given, asked, place| {
                messages::too_few_offered(job, given, asked, place)
            });
        if taken {
            self.placing.steering.restore_candidates(frame);
        }
        taken
    }

    /// Whether it depends on the nodes how many GPUs a job that starts has: on their sockets and cores, on how large whole ones are, on how many
    /// of them are left within a range, or on how many its tasks need.
    pub fn depends_on_nodes(&self, wanted: &Wanted) -> bool {
        if !self.frame.is_start() || wanted.required() {
            return false;
        }
        let (request, snapshot) = (&wanted.request, &self.cluster.snapshot);
        match request.gpus {
            // By cores that come with a task, some releases give GPUs for more tasks than there are.
            GpuShape::PerSocket { .. } | GpuShape::PerTask { .. } => true,
            _ if request.whole_nodes && snapshot.has_sizes() => true,
            GpuShape::PerNode(_) if wanted.nodes > request.min_nodes => true,
            // How many tasks a node takes follows from its sockets, memory and limits of the request: cons_tres takes more nodes for the rest.
            GpuShape::PerNode(_) => {
                let least = request.min_nodes.max(1);
                request.max_nodes > least && self.frame.job.tasks() > least
            }
            _ => false,
        }
    }

    /// Has cons_tres give the job GPUs as Slurm asked, notes how many they are, and takes all of it back. How many nodes it took; 0 =
    /// none, or they are not known.
    #[cold]
    pub fn ask_plainly(&mut self) -> u32 {
        let frame = self.frame;
        let standing = frame.job.standing();
        let code = frame.call.without_preemption(|| frame.call.forward());
        frame.job.set_standing(standing);
        let given = match code {
            0 => enough::given(frame, self.site, self.trust),
            _ => None,
        };
        let nodes = given.map_or(0, |_| frame.candidates.count() as u32);
        if given.is_some() {
            enough::take_back(frame);
        }
        frame.call.unanswered();
        self.placing.steering.restore_candidates(frame);
        self.plain = given.unwrap_or(0);
        nodes
    }

    /// cons_tres has refused the choice: whether the next question should be asked anew, without nodes that it may have
    /// been for.
    fn learn_refusal(&mut self, suspect: &mut Option<Facts>) -> bool {
        let mut candidates = Candidates {
            source: &self.frame.source,
            ledger: &self.cluster.ledger,
            snapshot: &mut self.cluster.snapshot,
        };
        let Placing {
            refusals,
            demand,
            chosen,
            ..
        } = &mut *self.placing;
        let about = (demand.form, self.frame.now);
        let lesson = refusals.refused(about, &chosen.nodes, &mut candidates, suspect);
        if lesson.left_out {
            self.cluster.records.count(|tally| tally.spared += 1);
        }
        lesson.recount
    }

    /// cons_tres has taken what it was offered, after nodes had been left out on suspicion.
    fn confirmed(&mut self, suspect: Option<Facts>) {
        let (form, now) = (self.placing.demand.form, self.frame.now);
        self.placing.refusals.confirmed(form, now, suspect);
    }
}

/// What came of offering choices.
enum Offer {
    /// cons_tres took one.
    Taken,
    /// cons_tres took none of them.
    Refused,
    /// It took one and gave less than was asked for: it is to decide alone.
    Short,
    /// There was none to offer.
    NothingFits(Wait),
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
