//! Rules of co-location: which candidates a job may have beside the jobs that run.
//!
//! What is forbidden is taken out of the candidates for the whole call, so that it holds for cons_tres
//! too. Where nobody has such rules and no job wants a place to itself, there is no book of who runs where.

use gpuos_config::gpuos_toml::Config;
use gpuos_config::options::{JobOptions, is_exclusive};
use gpuos_model::cluster::Cluster;
use gpuos_placement::rules::{Book, Facts, Newcomer, Verdict};
use slurm_ffi::gres::JobGres;
use slurm_ffi::handles::Job;
use slurm_ffi::log;

use crate::abi::frame::Frame;
use crate::abi::source::Source;
use crate::gres::registration::Excluded;
use crate::messages;
use crate::read::ledger::Holding;
use crate::read::site::Site;
use crate::read::snapshot::Snapshot;

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
    pub needed: bool,
    /// The job that was judged last.
    judged: Option<(u32, Newcomer)>,
    /// The candidates of that job, as words of a bitmap.
    offered: Vec<u64>,
    /// GPUs of the largest node.
    most_gpus: u64,
}

impl Neighbours {
    /// Whether rules may keep the job of a call from candidates. Forgets what was judged before.
    pub fn concern(&mut self, site: &Site, frame: &Frame<'_>) -> bool {
        self.judged = None;
        let (config, job) = (&site.settings.config, frame.job);
        let concerned = self.needed || config.rules().bind() || job.spank_env().any(is_exclusive);
        concerned && config.slurm.steer && job.id() != 0 && frame.source.wants_gpus(job)
    }

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

/// Tells which nodes are in service: all, where slurmctld does not say.
fn in_service<'a>(source: &Source<'a>) -> impl Fn(u32) -> bool + use<'a> {
    let service = source.nodes_in_service();
    move |node| service.is_none_or(|nodes| nodes.test(node as usize))
}

impl Neighbours {
    /// Takes the nodes that are forbidden to a job out of its candidates.
    #[inline(never)]
    pub fn keep_out<'a>(&mut self, frame: &Frame<'a>) -> Option<Excluded<'a>> {
        let (source, job, candidates) = (&frame.source, frame.job, frame.candidates);
        let options = options(job);
        // `--gpus=32` needs four nodes with eight.
        let total = source.sum(job, JobGres::per_job);
        let most_gpus = self.most_gpus;
        let book = self.book.as_mut()?;
        let nodes = frame
            .call
            .counts
            .min
            .max(total.div_ceil(most_gpus.max(1)) as u32);
        let new = book.newcomer(&facts(job, &options, nodes));
        if !book.matters(&new) {
            return None;
        }
        let verdicts = book.judge(&new, &in_service(source));
        self.judged = Some((job.id(), new));
        candidates.save(&mut self.offered);
        let forbidden = |node: &usize| verdicts.get(*node) == Some(&Verdict::Forbidden);
        Excluded::new(candidates, candidates.iter().filter(forbidden).collect())
    }

    /// Makes an empty book for a model, if anybody needs one.
    pub fn new_book(&mut self, config: &Config, cluster: &Cluster) {
        self.book = None;
        if self.needed {
            for why in config.unknown_levels(cluster) {
                log::error(&messages::unknown_level(why));
            }
            let nodes = cluster.nodes.iter();
            let gpus = nodes.filter_map(|node| Some(node.node_type.as_ref()?.gpus));
            self.most_gpus = gpus.max().unwrap_or(0) as u64;
            self.book = Some(Book::new(config.rules(), cluster));
        }
    }

    /// Notes the nodes of a running job.
    pub fn note<'a>(&mut self, source: &Source<'a>, job: Job<'a>, held: &[Holding]) {
        if self.book.is_none() {
            self.needed |= job.spank_env().any(is_exclusive);
            return;
        }
        if !source.wants_gpus(job) {
            return;
        }
        let nodes: Vec<u32> = held.iter().map(|one| one.node).collect();
        if let Some(book) = &mut self.book {
            match nodes.is_empty() {
                true => book.end(job.id()),
                false => {
                    let options = options(job);
                    book.start(job.id(), &facts(job, &options, nodes.len() as u32), &nodes);
                }
            }
        }
    }

    /// Marks candidates that the job should rather not have.
    pub fn mark_avoided(&self, job: u32, snapshot: &mut Snapshot) {
        let Some(book) = &self.book else {
            return;
        };
        if self.judged.is_none_or(|(id, _)| id != job) {
            return;
        }
        let states = snapshot.states.iter_mut().zip(&mut snapshot.places);
        for ((state, place), verdict) in states.zip(book.verdicts()) {
            match verdict {
                Verdict::Avoided => state.set_rules(1),
                Verdict::LastResort => place.weight |= LAST_RESORT,
                Verdict::Allowed | Verdict::Forbidden => {}
            }
        }
    }

    /// The job from which candidates were kept, as rules see it.
    pub fn judged(&self) -> Option<Newcomer> {
        self.judged.map(|(_, new)| new)
    }

    /// Which nodes are kept from the job, and why, where it is not for a lack of free GPUs that it waits.
    pub fn why_apart(&mut self, frame: &Frame<'_>, new: &Newcomer) -> Option<String> {
        let offered = &self.offered;
        let offered = |node: u32| {
            let word = offered.get(node as usize / 64);
            word.is_some_and(|word| word >> (node % 64) & 1 == 1)
        };
        let room = nodes_with_capacity(frame, &offered);
        if room.len() < frame.call.counts.min as usize {
            return None;
        }
        let named = frame.job.required_nodes();
        let named = named.filter(|named| named.iter().next().is_some());
        let has_room = |node: u32| {
            room.binary_search(&(node as usize)).is_ok()
                && named.is_none_or(|named| named.test(node as usize))
        };
        let kept = self
            .book
            .as_mut()?
            .explain(new, &in_service(&frame.source), &has_room);
        let kept = kept
            .iter()
            .filter(|kept| kept.verdict == Verdict::Forbidden);
        let causes: Vec<String> = kept.take(CAUSES).map(|kept| kept.to_string()).collect();
        (!causes.is_empty()).then(|| format!("gpuos: {}", causes.join("; ")))
    }

    /// Leaves a job the candidates that only running jobs keep from it: a reserve has no end. Whether that is known.
    pub fn leave_for_later(&self, frame: &Frame<'_>, new: &Newcomer) -> bool {
        let Some(book) = &self.book else {
            return false;
        };
        for node in frame.candidates.iter() {
            if book.is_reserved_against(new, node as u32) {
                frame.candidates.set_bit(node, false);
            }
        }
        true
    }

    /// Moves a forecast on these nodes to when the last job has ended that keeps the other one away; whether that is
    /// known.
    pub fn start_after_blockers(&self, frame: &Frame<'_>, new: &Newcomer) -> bool {
        let Some(book) = &self.book else {
            return false;
        };
        let (job, nodes) = (frame.job, frame.candidates);
        let mut start = job.start_time();
        book.for_each_blocker(new, &|node| nodes.test(node as usize), |id| {
            if let Some(other) = frame.source.job(id) {
                start = start.max(other.end_time());
            }
        });
        job.set_start_time(start);
        true
    }
}

/// Those of some nodes with free GPUs for a share of the job, ascending.
fn nodes_with_capacity(frame: &Frame<'_>, among: &dyn Fn(u32) -> bool) -> Vec<usize> {
    let source = &frame.source;
    let least = source.sum(frame.job, JobGres::per_node).max(1);
    let has_room = |index: &usize| {
        let gpus = source.gpus_of(*index);
        gpus.is_some_and(|gpus| gpus.free_units() >= least)
    };
    let nodes = (0..source.nodes()).filter(|index| among(*index as u32));
    nodes.filter(has_room).collect()
}
