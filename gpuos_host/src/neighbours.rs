//! Rules of co-location by what scontrol shows: who runs where, and what that keeps a job from.

use gpuos_core::explain::Note;
use gpuos_core::options::{JobOptions, Target};
use gpuos_core::plan::{GpuShape, NodeState, Placement};
use gpuos_core::rules::{Book, Facts, Kept, Verdict};

use crate::slurm::Job;
use crate::{JobRequest, Site, options_in_words};

/// Whose job it is that asks for a place.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Asker {
    /// Its user.
    pub user: String,
    /// Its account.
    pub account: String,
    /// Its class, if it says one.
    pub class: Option<String>,
    /// The level of the domains that it wants to itself.
    pub exclusive: Option<String>,
    /// Time limit in minutes.
    pub minutes: Option<u32>,
}

impl Asker {
    /// Of a job in the queue.
    pub fn of_job(job: &Job, options: &JobOptions) -> Asker {
        Asker {
            user: job.user.clone(),
            account: job.account.clone(),
            class: options.class.clone(),
            exclusive: options.exclusive.clone(),
            minutes: job.limit_minutes(),
        }
    }

    fn facts<'a>(&'a self, uid: u32, partition: &'a str, nodes: u32) -> Facts<'a> {
        Facts {
            uid,
            user: &self.user,
            account: &self.account,
            partition,
            class: self.class.as_deref(),
            exclusive: self.exclusive.as_deref(),
            nodes,
            minutes: self.minutes,
        }
    }
}

/// What a running job said of its class and of a place for itself: in gpuos's note, or in its command line
/// where Slurm shows that.
fn said(job: &Job) -> JobOptions {
    match Note::parse(&job.system_comment) {
        Some(note) => JobOptions {
            class: note.class,
            exclusive: note.alone,
            ..JobOptions::default()
        },
        None => options_in_words(job.submit_line.split_whitespace()),
    }
}

/// The running jobs with GPUs, in a book of the site's rules.
fn book(site: &Site, jobs: &[Job]) -> Book {
    let mut book = Book::new(site.config.rules(), &site.cluster);
    for job in jobs.iter().filter(|job| job.is_running()) {
        let gpus = job.allocations.iter().filter(|on| on.gpu_count > 0);
        let names: Vec<String> = gpus.flat_map(|on| on.nodes.clone()).collect();
        let (nodes, _) = site.indices(&names);
        if !nodes.is_empty() {
            let partition = job.partitions.first().map_or("", String::as_str);
            let asker = Asker::of_job(job, &said(job));
            book.start(
                job.id,
                &asker.facts(job.uid, partition, nodes.len() as u32),
                &nodes,
            );
        }
    }
    book
}

/// What rules keep from a job.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Neighbours {
    /// With their causes, the worst first.
    pub kept: Vec<Kept>,
    last_resort: Vec<usize>,
}

impl Neighbours {
    /// Judges a job and marks the states as slurmctld's plugin does: forbidden nodes are no candidates.
    pub fn judge(
        site: &Site,
        jobs: &[Job],
        wanted: &JobRequest,
        asker: &Asker,
        states: &mut [NodeState],
    ) -> Neighbours {
        let mut book = book(site, jobs);
        let request = &wanted.request;
        let types = site
            .cluster
            .nodes
            .iter()
            .filter_map(|node| node.node_type.as_ref());
        let most = types.map(|t| t.gpus as u32).max().unwrap_or(0).max(1);
        let nodes = match request.gpus {
            GpuShape::Total(gpus) => request.min_nodes.max(gpus.div_ceil(most)),
            _ => request.min_nodes,
        };
        if let Placement::Affinity(names) | Placement::AntiAffinity(names) = &request.placement {
            for target in names.iter().map(|name| Target::of(name)) {
                book.for_each_node(target, |node| {
                    let affinity = &mut states[node as usize].affinity;
                    *affinity = affinity.saturating_add(1);
                });
            }
        }
        let mut same_user = jobs.iter().filter(|job| job.user == asker.user);
        let uid = same_user.next().map_or(u32::MAX, |job| job.uid);
        let partition = wanted.partitions.first().map_or("", String::as_str);
        let new = book.newcomer(&asker.facts(uid, partition, nodes));
        if !book.matters(&new) {
            return Neighbours::default();
        }
        let in_service = |node: u32| site.nodes[node as usize].is_up();
        let mut last_resort = Vec::new();
        for (at, verdict) in book.judge(&new, &in_service).iter().enumerate() {
            match verdict {
                Verdict::Allowed => {}
                Verdict::Avoided => states[at].set_rules(1),
                Verdict::LastResort => last_resort.push(at),
                Verdict::Forbidden => states[at].candidate = false,
            }
        }
        let offered = |node: u32| wanted.allows(&site.nodes[node as usize]) && in_service(node);
        Neighbours {
            kept: book.explain(&new, &in_service, &offered),
            last_resort,
        }
    }

    /// The states without the nodes that are a last resort; `None` where there are none.
    pub fn first_resort(&self, states: &[NodeState]) -> Option<Vec<NodeState>> {
        let mut states = states.to_vec();
        for at in &self.last_resort {
            states[*at].candidate = false;
        }
        (!self.last_resort.is_empty()).then_some(states)
    }

    /// Whether some nodes are forbidden.
    pub fn forbids(&self) -> bool {
        self.kept
            .iter()
            .any(|kept| kept.verdict == Verdict::Forbidden)
    }

    /// The sentences, one a line.
    pub fn text(&self) -> String {
        self.kept.iter().map(|kept| format!("{kept}.\n")).collect()
    }
}
