//! Rules of co-location: which candidates a job may have beside the jobs that run.
//!
//! What is forbidden is taken out of the candidates for the whole call, so that it holds for cons_tres
//! too. Where nobody has such rules and no job wants a place to itself, there is no book of who runs where.

use std::ffi::c_int;

use gpuos_core::options::{JobOptions, Target, is_exclusive};
use gpuos_core::rules::{Book, Facts, Newcomer, Verdict};
use slurm_ffi::bits::Bitmap;
use slurm_ffi::gres::JobGres;
use slurm_ffi::handles::{Job, Node};
use slurm_ffi::log;
use slurm_ffi::nodes::nodes_in_service;

use crate::call::{Call, Mode, NOT_NOW};
use crate::clock;
use crate::engine::Engine;
use crate::ledger::Held;
use crate::reasons;
use crate::registration::KeptOut;

/// Added to the weight of nodes that are a last resort: Slurm and gpuos take lower weights first.
const LAST_RESORT: u64 = 1 << 62;

/// The most causes in the sentence that squeue shows.
const CAUSES: usize = 3;

/// Who runs where, as far as that matters to anybody.
#[derive(Default)]
pub struct Neighbours {
    /// Made when it is first needed, and anew with the model of the cluster.
    pub book: Option<Book>,
    /// Whether a job has wanted a place to itself, or near others, since the nodes were read.
    needed: bool,
    /// The job that was judged last.
    judged: Option<(u32, Newcomer)>,
    /// The candidates of that job, as words of a bitmap.
    offered: Vec<u64>,
    /// GPUs of the largest node.
    most_gpus: u64,
}

impl Neighbours {
    /// A job has ended.
    pub fn ended(&mut self, job: u32) {
        if let Some(book) = &mut self.book {
            book.end(job);
        }
    }
}

/// What rules ask of a job.
fn facts<'a>(job: Job<'a>, options: &'a JobOptions, nodes: u32) -> Facts<'a> {
    Facts {
        uid: job.user(),
        user: job.user_name().unwrap_or_default(),
        account: job.account().unwrap_or_default(),
        partition: job.partition(),
        class: options.class.as_deref(),
        exclusive: options.exclusive.as_deref(),
        nodes,
        minutes: job.limit_minutes(),
    }
}

fn options(job: Job<'_>) -> JobOptions {
    JobOptions::from_spank_env(job.spank_env()).unwrap_or_default()
}

/// Tells which nodes are in service: all, where slurmctld does not say. For the length of a `job_test`.
fn in_service() -> impl Fn(u32) -> bool {
    // SAFETY: job_test is called under slurmctld's node write lock.
    let service = unsafe { nodes_in_service() };
    move |node| service.is_none_or(|nodes| nodes.test(node as usize))
}

impl Engine {
    /// Takes the nodes out of a GPU job's candidates that rules forbid it, also when Slurm asks for the
    /// time of a start: backfill is not to plan on them while they are forbidden.
    pub(crate) fn keep_apart<'a>(&mut self, call: &'a Call) -> Option<KeptOut<'a>> {
        self.neighbours.judged = None;
        let config = &self.settings.config;
        // SAFETY: the job record and bitmap of this call, locked by slurmctld for its length, of the
        // release whose layout the self-check accepted.
        let (job, candidates) =
            unsafe { (Job::new(call.job, self.layout)?, Bitmap::new(call.nodes)?) };
        let concerned =
            self.neighbours.needed || config.rules().bind() || job.spank_env().any(is_exclusive);
        if !concerned || !config.slurm.steer || job.id() == 0 || !self.wants_gpus(job) {
            return None;
        }
        self.judge(call, job, candidates)
    }

    /// Takes the nodes that are forbidden to a job out of its candidates.
    #[inline(never)]
    fn judge<'a>(
        &mut self,
        call: &Call,
        job: Job<'_>,
        candidates: Bitmap<'a>,
    ) -> Option<KeptOut<'a>> {
        let options = options(job);
        if !self.open_book() {
            return None;
        }
        // `--gpus=32` needs four nodes with eight.
        let (total, most_gpus) = (self.sum(job, JobGres::per_job), self.neighbours.most_gpus);
        let book = self.neighbours.book.as_mut()?;
        let nodes = call.counts.min.max(total.div_ceil(most_gpus.max(1)) as u32);
        let new = book.newcomer(&facts(job, &options, nodes));
        if !book.matters(&new) {
            return None;
        }
        let verdicts = book.judge(&new, &in_service());
        self.neighbours.judged = Some((job.id(), new));
        candidates.save(&mut self.neighbours.offered);
        let forbidden = |node: &usize| verdicts.get(*node) == Some(&Verdict::Forbidden);
        KeptOut::new(candidates, candidates.iter().filter(forbidden).collect())
    }

    /// Whether a job asks for GPUs; rules hold for those of several types too.
    fn wants_gpus(&self, job: Job<'_>) -> bool {
        self.gpus_asked(job).next().is_some()
    }

    /// What a job asks for of all types together.
    pub(crate) fn sum<'a>(&self, job: Job<'a>, of: fn(JobGres<'a>) -> u64) -> u64 {
        self.gpus_asked(job).map(of).fold(0, u64::saturating_add)
    }

    /// Makes the book of who runs where, if there is none.
    fn open_book(&mut self) -> bool {
        self.neighbours.needed = true;
        if !self.model() {
            return false;
        }
        if self.neighbours.book.is_none() {
            self.new_book();
            self.count_running();
        }
        true
    }

    /// Makes an empty book for the model at hand, if anybody needs one.
    pub(crate) fn new_book(&mut self) {
        self.neighbours.book = None;
        if let (true, Some(planner)) = (self.neighbours.needed, &self.planner) {
            let (config, cluster) = (&self.settings.config, planner.cluster());
            for why in config.unknown_levels(cluster) {
                log::error(&why.to_string());
            }
            let gpus = cluster
                .nodes
                .iter()
                .filter_map(|node| Some(node.node_type.as_ref()?.gpus));
            self.neighbours.most_gpus = gpus.max().unwrap_or(0) as u64;
            self.neighbours.book = Some(Book::new(config.rules(), cluster));
        }
    }

    /// Notes the nodes of a running job.
    pub(crate) fn note_neighbour(&mut self, job: Job<'_>, held: &[Held]) {
        if self.neighbours.book.is_none() {
            self.neighbours.needed |= job.spank_env().any(is_exclusive);
            return;
        }
        if !self.wants_gpus(job) {
            return;
        }
        let nodes: Vec<u32> = held.iter().map(|one| one.node).collect();
        if let Some(book) = &mut self.neighbours.book {
            match nodes.is_empty() {
                true => book.end(job.id()),
                false => {
                    let options = options(job);
                    book.start(job.id(), &facts(job, &options, nodes.len() as u32), &nodes);
                }
            }
        }
    }

    /// Counts the classes and places that an affinity rule names; jobs and users were counted before.
    pub(crate) fn go_near(&mut self, names: &[String]) {
        let targets = names.iter().map(|name| Target::of(name));
        for target in targets.filter(|target| !matches!(target, Target::Job(_))) {
            if !self.open_book() {
                return;
            }
            let states = &mut self.snapshot.states;
            if let Some(book) = &self.neighbours.book {
                book.for_each_node(target, |node| {
                    if let Some(state) = states.get_mut(node as usize) {
                        state.affinity = state.affinity.saturating_add(1);
                    }
                });
            }
        }
    }

    /// Marks candidates that the job should rather not have.
    pub(crate) fn mark_avoided(&mut self, job: u32) {
        let Some(book) = &self.neighbours.book else {
            return;
        };
        if self.neighbours.judged.is_none_or(|(id, _)| id != job) {
            return;
        }
        let states = self
            .snapshot
            .states
            .iter_mut()
            .zip(&mut self.snapshot.places);
        for ((state, place), verdict) in states.zip(book.verdicts()) {
            match verdict {
                Verdict::Avoided => state.set_rules(1),
                Verdict::LastResort => place.weight |= LAST_RESORT,
                Verdict::Allowed | Verdict::Forbidden => {}
            }
        }
    }

    /// Whether a node that the job names (`--nodelist`) was taken out of its candidates: Slurm need not
    /// be asked then.
    pub(crate) fn lacks_a_named_node(&self, call: &Call, apart: bool) -> bool {
        // SAFETY: as in `keep_apart`.
        let both = unsafe { (Job::new(call.job, self.layout), Bitmap::new(call.nodes)) };
        let (true, (Some(job), Some(candidates))) = (apart, both) else {
            return false;
        };
        let named = job.required_nodes();
        named.is_some_and(|named| named.iter().any(|node| !candidates.test(node)))
    }

    /// Some candidates were kept from a job. Where it has to wait, says so, and tells backfill when the
    /// jobs that keep it away will have ended. Unless the answer was yes, the candidates are back.
    #[inline(never)]
    pub(crate) fn say_apart(&mut self, call: &Call, code: c_int) -> c_int {
        // SAFETY: as in `keep_apart`.
        let both = unsafe { (Job::new(call.job, self.layout), Bitmap::new(call.nodes)) };
        let ((Some(job), Some(candidates)), Some((_, new))) = (both, self.neighbours.judged) else {
            return code;
        };
        let forecast = call.mode() == Mode::WillRun;
        if code == 0 && !(forecast && job.start_time() > clock::now()) {
            return code;
        }
        let code = match code {
            0 => 0,
            _ if forecast => self.start_after(call, job, candidates, &new),
            _ => code,
        };
        if let Some(sentence) = self.why_apart(call, job, &new) {
            reasons::tell(self.api, call.mode(), job, sentence);
        }
        code
    }

    /// Which nodes are kept from the job, and why, where it is not for a lack of free GPUs that it waits.
    fn why_apart(&mut self, call: &Call, job: Job<'_>, new: &Newcomer) -> Option<String> {
        let offered = &self.neighbours.offered;
        let offered = |node: u32| {
            let word = offered.get(node as usize / 64);
            word.is_some_and(|word| word >> (node % 64) & 1 == 1)
        };
        let room = self.room(job, &offered);
        if room.len() < call.counts.min as usize {
            return None;
        }
        let named = job
            .required_nodes()
            .filter(|named| named.iter().next().is_some());
        let has_room = |node: u32| {
            room.binary_search(&(node as usize)).is_ok()
                && named.is_none_or(|named| named.test(node as usize))
        };
        let kept = self
            .neighbours
            .book
            .as_mut()?
            .explain(new, &in_service(), &has_room);
        let kept = kept
            .iter()
            .filter(|kept| kept.verdict == Verdict::Forbidden);
        let causes: Vec<String> = kept.take(CAUSES).map(|kept| kept.to_string()).collect();
        (!causes.is_empty()).then(|| format!("gpuos: {}", causes.join("; ")))
    }

    /// Those of some nodes with free GPUs for a share of the job, ascending.
    fn room(&self, job: Job<'_>, among: &dyn Fn(u32) -> bool) -> Vec<usize> {
        let source = self.source();
        let least = self.sum(job, JobGres::per_node).max(1);
        let has_room = |index: &usize| {
            // SAFETY: job_test is called under slurmctld's node write lock; the table's slot holds null
            // or a live record.
            let gpus = unsafe {
                Node::new(source.table.raw(*index), self.layout).and_then(|node| source.gpus(node))
            };
            gpus.is_some_and(|gpus| gpus.available().saturating_sub(gpus.allocated()) >= least)
        };
        let nodes = (0..source.table.len()).filter(|index| among(*index as u32));
        nodes.filter(has_room).collect()
    }

    /// The answer to "when could it start" where the job has to wait for its neighbours: as cons_tres
    /// says, but not before the last of them ends. A reserve has no end.
    fn start_after(
        &mut self,
        call: &Call,
        job: Job<'_>,
        nodes: Bitmap<'_>,
        new: &Newcomer,
    ) -> c_int {
        let layout = self.layout;
        let Some(book) = &self.neighbours.book else {
            return NOT_NOW;
        };
        let mut saved = Vec::new();
        nodes.save(&mut saved);
        for node in nodes.iter() {
            if book.is_kept(new, node as u32) {
                nodes.put(node, false);
            }
        }
        let code = self.decide(call).unwrap_or_else(|| call.forward());
        let (0, Some(book)) = (code, &self.neighbours.book) else {
            nodes.restore(&saved);
            return NOT_NOW;
        };
        let mut start = job.start_time();
        book.for_each_blocker(new, &|node| nodes.test(node as usize), |id| {
            // SAFETY: job_test runs under slurmctld's job write lock.
            if let Some(other) = unsafe { Job::find(id, layout) } {
                start = start.max(other.end_time());
            }
        });
        job.set_start_time(start);
        code
    }
}
