//! A job that starts again: nodes on which its checkpoints lie come first.
//!
//! Jobs with GPUs are planned, so what a node spares the job of fetching is a part of its state. For others cons_tres is asked first, and then once
//! more with nodes of its choice exchanged for such nodes; what it refuses is not asked for, and its own answer stands.

use std::ffi::c_int;

use gpuos_config::options::JobOptions;
use gpuos_model::cluster::Fabric;
use gpuos_placement::explain::Held;
use gpuos_placement::held::{Holder, exchanged_within, rate_mib_s, spared};
use gpuos_placement::plan::Planner;

use crate::decide::Decide;
use crate::decide::note::Decision;
use crate::read::request;
use crate::read::snapshot::Snapshot;

/// So often cons_tres is asked for other nodes than it chose, each time for half as many.
const ATTEMPTS: usize = 3;

/// The candidates that hold checkpoints of a job.
#[derive(Default)]
pub struct Holders {
    /// The job.
    job: u32,
    nodes: Vec<Holder>,
    /// How fast data comes from there, in MiB a second.
    mib_s: u64,
}

impl Holders {
    /// Marks what they spare the job of fetching.
    pub fn mark(&self, snapshot: &mut Snapshot) {
        let most = self.nodes.iter().map(|one| one.gib).max().unwrap_or(0);
        for one in &self.nodes {
            if let Some(state) = snapshot.states.get_mut(one.node as usize) {
                state.set_spares(spared(one.gib.max(1), most.max(1), self.mib_s));
            }
        }
    }

    /// How many of the nodes that a job was given hold checkpoints of it; `None`: nobody has looked for such nodes, or there were none.
    pub fn among(&self, job: u32, nodes: impl Iterator<Item = u32>) -> Option<Held> {
        if self.nodes.is_empty() || self.job != job {
            return None;
        }
        let (mut held, mut of) = (0, 0);
        for node in nodes {
            held += u32::from(self.nodes.iter().any(|one| one.node == node));
            of += 1;
        }
        Some(Held { nodes: held, of })
    }
}

impl Decide<'_, '_> {
    /// Finds the candidates that hold checkpoints of the job of this call. [`Service`](crate::read::service::Service) has been read.
    pub fn find_holders(&mut self, options: &JobOptions) {
        self.placing.holders.nodes.clear();
        if options.checkpoint.is_some() && self.cluster.service.has_holders() {
            self.list_holders();
        }
    }

    #[cold]
    #[inline(never)]
    fn list_holders(&mut self) {
        let (frame, cluster) = (self.frame, &self.cluster);
        let job = frame.job.id();
        let holders = &mut self.placing.holders;
        holders.job = job;
        for index in frame.indices() {
            if let Some(gib) = cluster.service.held(index, job) {
                let node = index as u32;
                holders.nodes.push(Holder { node, gib });
            }
        }
        let limit = self.site.settings.config.checkpoint.rate_mib;
        holders.mib_s = rate_mib_s(fabric(cluster.planner.as_ref()), limit);
    }

    /// A job without GPUs. `None` hands the call on as it came.
    pub fn without_gpus(&mut self) -> Option<c_int> {
        let serves = self.cluster.service.serves(self.site);
        match serves && self.frame.job.has_spank_env() {
            true => self.prefer_holders(),
            false => None,
        }
    }

    #[cold]
    #[inline(never)]
    fn prefer_holders(&mut self) -> Option<c_int> {
        let frame = self.frame;
        let options = request::options_of(frame.job);
        if options.off || options.checkpoint.is_none() {
            return None;
        }
        // Until something else is decided: a note of an earlier start goes.
        self.placing.pending = None;
        self.keep(Decision::Stock);
        let cluster = &mut *self.cluster;
        cluster.service.refresh(frame, &mut cluster.prefetch);
        self.find_holders(&options);
        if self.placing.holders.nodes.is_empty() {
            return None;
        }
        let has_model = self.model();
        self.placing.steering.begin(frame, None);
        let code = self.ask_around(has_model);
        if code.is_none() {
            self.placing.steering.restore_candidates(frame);
            frame.call.unanswered();
        }
        code
    }

    /// Asks cons_tres for all candidates, and then for holders in place of what it chose.
    fn ask_around(&mut self, has_model: bool) -> Option<c_int> {
        let frame = self.frame;
        let call = frame.call;
        if call.without_preemption(|| call.forward()) != 0 {
            return None;
        }
        if frame.starts_later() {
            // When it could start is for cons_tres to say, and whether others make way for it.
            return call.preemptable().is_null().then_some(0);
        }
        let chosen: Vec<u32> = frame.candidates.iter().map(|node| node as u32).collect();
        let holders = self.usable_holders(&chosen);
        let mut most = chosen.len();
        for _ in 0..ATTEMPTS {
            let planner = self.cluster.planner.as_ref().filter(|_| has_model);
            let named = frame.job.required_nodes();
            let (service, job) = (&self.cluster.service, frame.job.id());
            // Who may hold something is not given up for who does.
            let named = |node: u32| {
                let is_named = named.is_some_and(|named| named.test(node as usize));
                is_named || service.may_hold(node as usize, job)
            };
            let Some(nodes) = exchanged_within(fabric(planner), &chosen, named, &holders, most)
            else {
                // It is the best already, unless something else was asked meanwhile.
                return (most == chosen.len()).then(|| self.took(&chosen));
            };
            let code = self.placing.steering.attempt_nodes(frame, &nodes);
            let whole = frame.candidates.count() == chosen.len();
            if code == 0 && whole && !frame.starts_later() {
                return Some(self.took(&nodes));
            }
            most /= 2;
        }
        None
    }

    fn took(&mut self, nodes: &[u32]) -> c_int {
        let job = self.frame.job.id();
        let held = self.placing.holders.among(job, nodes.iter().copied());
        if let Some(held) = held.filter(|held| held.nodes > 0) {
            self.keep(Decision::Held(held));
        }
        0
    }

    /// Those holders that have room as far as is known, and that Slurm's weights do not put behind its choice.
    fn usable_holders(&self, chosen: &[u32]) -> Vec<Holder> {
        let (source, job) = (&self.frame.source, self.frame.job);
        let weight = |node: u32| source.node(node as usize).map(|node| node.weight());
        let most = chosen.iter().filter_map(|node| weight(*node)).max();
        let has_room = |one: &&Holder| {
            let index = one.node as usize;
            let Some(node) = source.node(index) else {
                return false;
            };
            let (cpus, memory) = self.cluster.ledger.on(index);
            let least = match job.takes_whole_nodes() {
                true => node.cpus(),
                false => job.min_cpus_per_node().max(1),
            };
            let fits = job.memory_per_node().is_none_or(|wanted| {
                let counts = source.memory_counts && node.memory() > 1;
                !counts || node.memory_for_jobs().saturating_sub(memory) >= wanted
            });
            fits && node.cpus().saturating_sub(cpus) >= least && weight(one.node) <= most
        };
        let holders = &self.placing.holders.nodes;
        holders.iter().filter(has_room).copied().collect()
    }
}

fn fabric(planner: Option<&Planner>) -> &Fabric {
    static NONE: Fabric = Fabric { levels: Vec::new() };
    planner.map_or(&NONE, |planner| &planner.cluster().fabric)
}
