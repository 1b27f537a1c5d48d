//! Rules of co-location by what scontrol shows: who runs where, and what that keeps a job from.

use std::collections::HashMap;

use gpuos_config::options::JobOptions;
use gpuos_model::gpuset::GpuSet;
use gpuos_placement::explain::Note;
use gpuos_placement::plan::{GpuShape, NodeState, Placement};
use gpuos_placement::rules::Target;
use gpuos_placement::rules::{Book, Exclusion, Facts, Newcomer, Rules, Verdict};

use crate::slurm::Job;
use crate::slurm::site::JobRequest;
use crate::slurm::site::Site;
use crate::slurm::site::options_in_words;

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
fn options_of(job: &Job) -> JobOptions {
    match Note::parse(&job.system_comment) {
        Some(note) => JobOptions {
            class: note.class,
            exclusive: note.alone,
            ..JobOptions::default()
        },
        None => options_in_words(job.submit_line.split_whitespace()),
    }
}

/// Rules over the jobs that run on a site: what they make of the nodes for whoever asks for a place.
pub struct Judge<'a> {
    site: &'a Site,
    /// Numbers of users that have jobs.
    uids: HashMap<&'a str, u32>,
    book: Book,
    /// GPUs of the largest node.
    most_gpus: u32,
}

impl<'a> Judge<'a> {
    /// By the rules of the site.
    pub fn new(site: &'a Site, jobs: &'a [Job]) -> Judge<'a> {
        Judge::by(site.config.rules(), site, jobs)
    }

    /// By other rules.
    pub fn by(rules: &Rules, site: &'a Site, jobs: &'a [Job]) -> Judge<'a> {
        let types = site.cluster.nodes.iter();
        let gpus = types.filter_map(|node| Some(node.node_type.as_ref()?.gpus as u32));
        let mut judge = Judge {
            site,
            uids: jobs
                .iter()
                .map(|job| (job.user.as_str(), job.uid))
                .collect(),
            book: Book::new(rules, &site.cluster),
            most_gpus: gpus.max().unwrap_or(0).max(1),
        };
        let running = jobs.iter().filter(|job| job.is_running());
        running.for_each(|job| judge.start(job));
        judge
    }

    /// A job runs from now on.
    fn start(&mut self, job: &Job) {
        let gpus = job.allocations.iter().filter(|on| on.gpu_count > 0);
        let names: Vec<String> = gpus.flat_map(|on| on.nodes.clone()).collect();
        let (nodes, _) = self.site.indices(&names);
        if !nodes.is_empty() {
            let partition = job.partitions.first().map_or("", String::as_str);
            let asker = Asker::of_job(job, &options_of(job));
            let facts = asker.facts(job.uid, partition, nodes.len() as u32);
            self.book.start(job.id, &facts, &nodes);
        }
    }

    /// The nodes that rules do not keep from a running job if it has to go elsewhere; `None` = all.
    pub fn elsewhere(&mut self, job: &Job, wanted: &JobRequest) -> Option<Vec<bool>> {
        let asker = Asker::of_job(job, &options_of(job));
        if !self.matters(wanted, &asker) {
            return None;
        }
        let open = NodeState {
            candidate: true,
            ..NodeState::default()
        };
        let mut states = vec![open; self.site.nodes.len()];
        self.end(job.id);
        self.mark(wanted, &asker, &mut states);
        self.start(job);
        Some(states.iter().map(|state| state.candidate).collect())
    }

    /// A running job has ended.
    pub fn end(&mut self, job: u32) {
        self.book.end(job);
    }

    fn newcomer(&self, wanted: &JobRequest, asker: &Asker) -> Newcomer {
        let request = &wanted.request;
        let nodes = match request.gpus {
            GpuShape::Total(gpus) => request.min_nodes.max(gpus.div_ceil(self.most_gpus)),
            _ => request.min_nodes,
        };
        let uid = self.uids.get(asker.user.as_str());
        let uid = uid.copied().unwrap_or(u32::MAX);
        let partition = wanted.partitions.first().map_or("", String::as_str);
        self.book.newcomer(&asker.facts(uid, partition, nodes))
    }

    /// Whether rules can say anything of a request.
    pub fn matters(&self, wanted: &JobRequest, asker: &Asker) -> bool {
        self.book.matters(&self.newcomer(wanted, asker))
    }

    /// Marks the states as slurmctld's plugin does: forbidden nodes are no candidates. Returns the nodes
    /// that are a last resort.
    pub fn mark(
        &mut self,
        wanted: &JobRequest,
        asker: &Asker,
        states: &mut [NodeState],
    ) -> Vec<usize> {
        if let Placement::Affinity(names) | Placement::AntiAffinity(names) =
            &wanted.request.placement
        {
            for target in names.iter().map(|name| Target::of(name)) {
                self.book.for_each_node(target, |node| {
                    let affinity = &mut states[node as usize].affinity;
                    *affinity = affinity.saturating_add(1);
                });
            }
        }
        let new = self.newcomer(wanted, asker);
        let mut last_resort = Vec::new();
        if !self.book.matters(&new) {
            return last_resort;
        }
        let site = self.site;
        let in_service = |node: u32| site.nodes[node as usize].is_up();
        for (at, verdict) in self.book.judge(&new, &in_service).iter().enumerate() {
            match verdict {
                Verdict::Allowed => {}
                Verdict::Avoided => states[at].add_rule(),
                Verdict::LastResort => last_resort.push(at),
                Verdict::Forbidden => states[at].candidate = false,
            }
        }
        last_resort
    }

    /// What speaks against nodes that the request allows, the worst first.
    fn exclusions(&mut self, wanted: &JobRequest, asker: &Asker) -> Vec<Exclusion> {
        let new = self.newcomer(wanted, asker);
        if !self.book.matters(&new) {
            return Vec::new();
        }
        let site = self.site;
        let in_service = |node: u32| site.nodes[node as usize].is_up();
        let offered = |node: u32| wanted.allows(&site.nodes[node as usize]) && in_service(node);
        self.book.explain(&new, &in_service, &offered)
    }

    /// The running jobs beside which the request may not be on some nodes, by id.
    pub fn blockers(
        &self,
        wanted: &JobRequest,
        asker: &Asker,
        nodes: &dyn Fn(u32) -> bool,
    ) -> Vec<u32> {
        let mut ids = Vec::new();
        let new = self.newcomer(wanted, asker);
        self.book.for_each_blocker(&new, nodes, |id| ids.push(id));
        ids
    }
}

/// What rules keep from a job.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Neighbours {
    /// With their causes, the worst first.
    pub exclusions: Vec<Exclusion>,
    last_resort: Vec<usize>,
    /// Nodes with degraded GPUs, and these.
    degraded: Vec<(usize, GpuSet)>,
}

impl Neighbours {
    /// Judges a job by the rules of the site and marks the states ([`Judge::mark`]).
    pub fn judge(
        site: &Site,
        jobs: &[Job],
        wanted: &JobRequest,
        asker: &Asker,
        states: &mut [NodeState],
    ) -> Neighbours {
        let mut judge = Judge::new(site, jobs);
        Neighbours {
            last_resort: judge.mark(wanted, asker, states),
            degraded: (0..)
                .zip(&site.nodes)
                .map(|(at, node)| (at, node.gpus_degraded()))
                .filter(|(_, degraded)| !degraded.is_empty())
                .collect(),
            exclusions: judge.exclusions(wanted, asker),
        }
    }

    /// The states to plan with before those of all, best first: without GPUs that are degraded, and without
    /// nodes that are a last resort. In the order in which slurmctld looks.
    pub fn first_resorts(&self, states: &[NodeState]) -> Vec<Vec<NodeState>> {
        let mut resorts = Vec::new();
        for (spared, apart) in [(true, true), (true, false), (false, true)] {
            if spared && self.degraded.is_empty() || apart && self.last_resort.is_empty() {
                continue;
            }
            let mut states = states.to_vec();
            for (at, degraded) in self.degraded.iter().filter(|_| spared) {
                states[*at].free = states[*at].free.minus(*degraded);
            }
            for at in self.last_resort.iter().filter(|_| apart) {
                states[*at].candidate = false;
            }
            resorts.push(states);
        }
        resorts
    }

    /// Whether some nodes are forbidden.
    pub fn forbids(&self) -> bool {
        self.exclusions
            .iter()
            .any(|kept| kept.verdict == Verdict::Forbidden)
    }

    /// The sentences, one a line.
    pub fn text(&self) -> String {
        self.exclusions
            .iter()
            .map(|kept| format!("{kept}.\n"))
            .collect()
    }
}
