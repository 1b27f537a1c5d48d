//! One pass over jobs that wait, for a workload manager that lets somebody else say where they start.
//!
//! The jobs are asked for in the order in which they come. Each that fits is started in this account, and what it takes is
//! free for no later one. For the first that do not fit, nodes are kept: a later job gets these only if it ends before
//! the one that they are kept for can start. The same queue gives the same answers: nothing is asked of a clock or of chance.
use gpuos_model::gpuset::GpuSet;
use serde::Serialize;

use crate::plan::{Choice, Ending, Foresight, GpuShape, NodeState, Planner, Request, Units, Wait};

/// How many domains are looked at for the one in which a job that waits can start first.
const MOST_PLACES: u32 = 16;

/// In how many seconds a job ends of which nobody knows when: five years, as pbs_sched has it.
pub const ENDLESS: i64 = 5 * 365 * 86_400;

/// A job that waits.
#[derive(Clone, PartialEq, Debug)]
pub struct Waiting {
    /// What it asks for.
    pub request: Request,
    /// Which of [`Queue::kinds`] says what is free for it.
    pub kind: usize,
    /// In how many seconds it would have ended at the latest if it started now; `None`: nobody knows.
    pub ends_in: Option<i64>,
    /// Host memory in MiB that each further task on a node takes, beside [`Request::memory_mib_per_node`]; whether there is
    /// so much the caller has to see.
    pub more_memory_mib: u64,
}

/// What there is, and who waits for it.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Queue {
    /// What is free, by node index, once for each kind of job: jobs that may use the same nodes are of one kind.
    pub kinds: Vec<Vec<NodeState>>,
    /// When running jobs give GPUs back at the latest, in seconds from now. What no ending gives back counts as free soon.
    pub endings: Vec<Ending>,
    /// The jobs, those first that come first.
    pub waiting: Vec<Waiting>,
}

/// How far a pass goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// For how many jobs that do not fit nodes are kept.
    pub kept: usize,
    /// How many places are tried for a job whose best ones the caller refuses.
    pub places: u32,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds { kept: 1, places: 4 }
    }
}

/// What becomes of a job.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub enum Answer {
    /// It starts there.
    Starts(Choice),
    /// It waits for room.
    Waits(Wait),
    /// There is room, and the caller refused each place that was offered.
    Refused,
}

/// Nodes that are kept for a job.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Kept {
    /// Index of the job in [`Queue::waiting`].
    pub job: usize,
    /// In how many seconds it can start at the earliest, by what is known of running jobs.
    pub starts_in: i64,
    /// The nodes, ascending by index.
    pub nodes: Vec<u32>,
}

/// What came of a pass.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Decided {
    /// One for each job, in their order.
    pub answers: Vec<Answer>,
    /// What is kept, and for whom.
    pub kept: Vec<Kept>,
}

/// Decides for all jobs of a queue. `accept` hears of each choice, with the job's index in the queue; what it refuses is not
/// started, and the next best place is tried.
pub fn pass(
    planner: &mut Planner,
    queue: Queue,
    bounds: Bounds,
    accept: &mut dyn FnMut(usize, &Choice) -> bool,
) -> Decided {
    let Queue {
        kinds,
        endings,
        waiting,
    } = queue;
    let nodes = planner.cluster().nodes.len();
    let mut run = Pass {
        planner,
        kinds,
        endings,
        bounds,
        known: None,
        failed: Vec::new(),
        mask: vec![u64::MAX; nodes.div_ceil(64)],
        decided: Decided::default(),
    };
    for (index, job) in waiting.iter().enumerate() {
        let answer = run.decide(index, job, accept);
        let full = run.decided.kept.len() >= bounds.kept;
        if let (Answer::Waits(wait), false) = (&answer, full)
            && !matches!(wait, Wait::Never { .. } | Wait::UnknownLevel { .. })
        {
            run.keep(index, job);
        }
        run.decided.answers.push(answer);
    }
    run.decided
}

struct Pass<'p> {
    planner: &'p mut Planner,
    kinds: Vec<Vec<NodeState>>,
    endings: Vec<Ending>,
    bounds: Bounds,
    /// Whose states the planner has.
    known: Option<usize>,
    /// What did not fit: as nothing becomes free in a pass, it does not fit later either. With whether kept nodes counted.
    failed: Vec<(usize, Request, bool, Answer)>,
    /// All nodes but those that are kept.
    mask: Vec<u64>,
    decided: Decided,
}

impl Pass<'_> {
    fn decide(
        &mut self,
        index: usize,
        job: &Waiting,
        accept: &mut dyn FnMut(usize, &Choice) -> bool,
    ) -> Answer {
        // A job that is gone before the others can start does not hold them up.
        let soon = |kept: &Kept| job.ends_in.is_some_and(|ends| ends <= kept.starts_in);
        let all = self.decided.kept.iter().all(soon);
        let same = |(kind, request, others, _): &&(usize, Request, bool, Answer)| {
            *kind == job.kind && (*others || !all) && *request == job.request
        };
        if let Some((.., answer)) = self.failed.iter().find(same) {
            return answer.clone();
        }
        let Some(states) = self.kinds.get(job.kind) else {
            return Answer::Refused;
        };
        if self.known != Some(job.kind) {
            self.planner.sync(states);
            self.known = Some(job.kind);
        }
        let mut answer = Answer::Refused;
        for skip in 0..self.bounds.places.max(1) {
            let mask = (!all).then_some(&self.mask[..]);
            match self.planner.decide(&job.request, mask, skip) {
                Ok(choice) => {
                    let choice = choice.clone();
                    if accept(index, &choice) {
                        self.start(&choice, job);
                        return Answer::Starts(choice);
                    }
                }
                Err(wait) if skip == 0 => {
                    answer = Answer::Waits(wait);
                    break;
                }
                Err(_) => break,
            }
        }
        // What a caller refuses hangs on more than the request.
        if matches!(answer, Answer::Waits(_)) {
            let request = job.request.clone();
            self.failed.push((job.kind, request, all, answer.clone()));
        }
        answer
    }

    /// What a started job has is free for nobody else.
    fn start(&mut self, choice: &Choice, job: &Waiting) {
        for chosen in &choice.nodes {
            let node = chosen.node as usize;
            self.endings.push(Ending {
                at: job.ends_in.unwrap_or(ENDLESS),
                node: chosen.node,
                gpus: chosen.gpus.len() as u32,
            });
            for states in &mut self.kinds {
                let Some(state) = states.get_mut(node) else {
                    continue;
                };
                take(state, chosen.gpus, job);
            }
            let known = self.known.and_then(|kind| self.kinds.get(kind));
            if let Some(state) = known.and_then(|states| states.get(node)) {
                self.planner.update(chosen.node, *state);
            }
        }
    }

    /// Keeps nodes for a job that waits: those of the domain in which it can start first.
    fn keep(&mut self, index: usize, job: &Waiting) {
        let Some(states) = self.kinds.get(job.kind) else {
            return;
        };
        if self.known != Some(job.kind) {
            self.planner.sync(states);
            self.known = Some(job.kind);
        }
        self.endings.sort_by_key(|ending| (ending.at, ending.node));
        let mut foresight = Foresight::default();
        let mut best: Option<Kept> = None;
        let mut masked = states.clone();
        for n in 0..MOST_PLACES {
            let Some(place) = self.planner.foresee(&job.request, None, n) else {
                break;
            };
            for state in &mut masked {
                state.candidate = false;
            }
            let mut widest = 0;
            for chosen in &place.nodes {
                let node = chosen.node as usize;
                if let (Some(state), Some(own)) = (masked.get_mut(node), states.get(node)) {
                    let kept =
                        (self.mask.get(node / 64)).is_some_and(|w| w >> (node % 64) & 1 == 0);
                    state.candidate = own.candidate && !kept;
                    widest = widest.max(own.present.len() as u32);
                }
            }
            let Some((nodes, each)) = share(&job.request, widest) else {
                continue;
            };
            let found = foresight.find(&masked, &self.endings, 0, nodes, each);
            let Some((at, coming)) = found else {
                continue;
            };
            if best.as_ref().is_none_or(|best| at < best.starts_in) {
                best = Some(Kept {
                    job: index,
                    starts_in: at,
                    nodes: coming.iter().map(|one| one.node).collect(),
                });
            }
        }
        let Some(kept) = best else {
            return;
        };
        for node in &kept.nodes {
            if let Some(word) = self.mask.get_mut(*node as usize / 64) {
                *word &= !(1 << (node % 64));
            }
        }
        self.decided.kept.push(kept);
    }
}

/// Takes a job's share of a node from what is free there.
fn take(state: &mut NodeState, gpus: GpuSet, job: &Waiting) {
    let request = &job.request;
    if request.whole_nodes {
        state.candidate = false;
        state.free = GpuSet::EMPTY;
        return;
    }
    state.free = state.free.minus(gpus);
    let of_gpus = request.cpus_per_gpu.saturating_mul(gpus.len() as u32);
    if state.free_cpus != u32::MAX {
        let cpus = request.cpus_per_node.max(of_gpus);
        state.free_cpus = state.free_cpus.saturating_sub(cpus);
    }
    if state.free_memory_mib != u64::MAX {
        let further = match request.gpus {
            GpuShape::PerTask { per_task, .. } => (gpus.len() as u64)
                .checked_div(per_task.into())
                .map_or(0, |tasks| tasks.saturating_sub(1)),
            _ => 0,
        };
        let more = job.more_memory_mib.saturating_mul(further);
        let memory = request.memory_mib_per_node.saturating_add(more);
        state.free_memory_mib = state.free_memory_mib.saturating_sub(memory);
    }
}

/// On how many nodes a job will lie, and with how many GPUs on each at most, where the largest has `widest`. `None`: it never will.
fn share(request: &Request, widest: u32) -> Option<(u32, u32)> {
    let least = request.min_nodes.max(1);
    let Units { gpus, count } = request.gpus.units();
    let Some(count) = count else {
        return Some((least, gpus));
    };
    let of_node = widest.checked_div(gpus)?;
    let nodes = count.div_ceil(of_node.max(1)).max(least);
    let most = request.max_nodes.max(least);
    (of_node > 0 && nodes <= most).then(|| (nodes, count.div_ceil(nodes) * gpus))
}
