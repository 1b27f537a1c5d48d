//! GPUs that gpuosd has taken out of service, or takes for degraded.
//!
//! It writes them into the node's `Extra`. For the length of a `job_test` those that are out and free count
//! as allocated, so that nobody is given them: neither the planner nor cons_tres, whatever the job is and
//! whoever decides it. A job that takes whole nodes is not offered a node with such a GPU. TEST_ONLY sees
//! none of this: a job that could run on the whole node waits, it is not refused.

use std::ffi::c_int;

use gpuos_model::gpuset::GpuSet;
use gpuos_placement::withhold::out::{self, Blame, Job, NodeState, Withhold};
use slurm_ffi::gres::{JobGres, NodeGres};

use crate::abi::frame::Frame;
use crate::read::prefetch::Prefetch;
use crate::read::service::Service;
use crate::read::site::Site;
use crate::read::trust::Selections;
use crate::tell::reasons;

/// Which candidates of a call have GPUs out of service.
#[derive(Default)]
pub struct Withheld {
    /// The candidates as Slurm gave them, as words of a bitmap.
    offered: Vec<u64>,
    /// Nodes on which a job still holds a GPU that is out: its end gives nobody that GPU.
    pub held: Vec<usize>,
    /// Those of them whose other GPUs are too few for the job.
    pub too_few: Vec<usize>,
    /// Nodes with GPUs out that a job which takes whole nodes is not offered.
    pub left_out: Vec<usize>,
}

impl Withheld {
    fn offered(&self) -> impl Iterator<Item = usize> {
        let word = |(at, word): (usize, &u64)| GpuSet(*word).iter().map(move |bit| at * 64 + bit);
        self.offered.iter().enumerate().flat_map(word)
    }
}

/// The phase of a call that withholds GPUs from anybody.
pub struct Withholding<'e, 'a> {
    /// The call.
    pub frame: &'e Frame<'a>,
    /// This slurmctld.
    pub site: &'e Site,
    /// What is out of service.
    pub service: &'e mut Service,
    /// Where nodes stood.
    pub prefetch: &'e mut Prefetch,
    /// What may be taken back.
    pub selections: Selections,
}

impl Withholding<'_, '_> {
    /// Withholds GPUs that are out of service from the job of this call, which any GRES or whole nodes are
    /// asked for by.
    pub fn withhold(&mut self) -> Option<Withheld> {
        let job = self.frame.job;
        if !self.service.serves(self.site) {
            return None;
        }
        if job.gres_list().is_null() && !job.whole_nodes() {
            return None;
        }
        match (self.service).refresh(self.frame, self.prefetch) {
            true => self.withhold_from(),
            false => None,
        }
    }

    #[cold]
    #[inline(never)]
    fn withhold_from(&mut self) -> Option<Withheld> {
        let frame = self.frame;
        let source = &frame.source;
        let mut withheld = Withheld::default();
        let mut any = false;
        let asked = self.job();
        for index in frame.indices() {
            let (out, _) = self.service.of(index);
            let is_pool_out = asked.whole_nodes && self.is_pool_out(index);
            if out.is_empty() && !is_pool_out {
                continue;
            }
            let gpus = source.gpus_of(index);
            let state = NodeState {
                is_pool_out,
                ..node_state(gpus, out)
            };
            match asked.withhold(&state) {
                Withhold::Nothing => continue,
                Withhold::Node => withheld.left_out.push(index),
                Withhold::Gpus { out, held, too_few } => {
                    withheld.held.extend(held.then_some(index));
                    withheld.too_few.extend(too_few.then_some(index));
                    if let Some(gpus) = gpus {
                        (frame.call.out_of_service).allocate(source.layout, gpus, out.0);
                    }
                }
            }
            any = true;
        }
        if !any {
            return None;
        }
        frame.candidates.save(&mut withheld.offered);
        if frame.is_start() {
            // What was supplied for an earlier start that was not one.
            self.selections.withdraw_all(frame);
        }
        reasons::begin(frame);
        Some(withheld)
    }

    /// Whether a GPU of the node's pool is out of service. One that has left the pool does not count.
    fn is_pool_out(&self, index: usize) -> bool {
        let out = self.service.pool_out(index);
        if out.is_empty() {
            return false;
        }
        let mig = &self.site.settings.config.mig;
        let node = self.frame.source.node(index);
        let pool = node.and_then(|node| mig.pool_of(node.name()));
        pool.is_some_and(|(pool, _)| !pool.gpus.and(out).is_empty())
    }

    /// Names the GPUs on nodes where cons_tres only counts them: once the call is over it would take the
    /// first ones that are free, among them those that were withheld.
    pub fn name_the_sound(&self) {
        let frame = self.frame;
        let (source, job) = (&frame.source, frame.job);
        for index in frame.indices() {
            if self.service.of(index).0.is_empty() {
                continue;
            }
            let gpus = source.gpus_of(index);
            let Some(bits) = gpus
                .filter(|g| g.topologies() == 0)
                .and_then(NodeGres::bits)
            else {
                continue;
            };
            let given = GpuSet(bits.chunk(0));
            for asked in source
                .gpus_asked(job)
                .filter(|a| a.selected(index).is_none())
            {
                let count = asked.selected_count(index) as usize;
                let devices = out::name_the_sound(bits.len(), given, count);
                asked.supply(source.api, index, devices.0, bits.len());
            }
        }
    }

    /// Whether a forecast needs more GPUs than the sound ones that are free now, where it has nodes on which a
    /// job holds a GPU that is out.
    pub fn counts_on_held(&self, withheld: &Withheld) -> bool {
        let frame = self.frame;
        let nodes = frame.indices().map(|index| {
            let free = frame.source.gpus_of(index).map_or(0, NodeGres::free_units);
            (free, withheld.held.contains(&index))
        });
        self.job().counts_on_held(nodes)
    }

    /// What the job of this call asks for.
    fn job(&self) -> Job {
        let (source, job) = (&self.frame.source, self.frame.job);
        Job {
            whole_nodes: job.whole_nodes(),
            nodes: self.frame.call.counts.min.into(),
            each: source.of_each_node(job),
            sum: source.sum(job, JobGres::per_job),
        }
    }

    /// A job got no place, or only later: says so where it is for GPUs that are out of service.
    pub fn publish_out_of_service(&self, code: c_int, withheld: &Withheld) {
        let frame = self.frame;
        let job = frame.job;
        if job.id() == 0 || code == 0 && !frame.starts_later() {
            return;
        }
        let Some(sentence) = self.why_out(withheld) else {
            return;
        };
        let sentence = match reasons::of(job.id()) {
            Some(other) => format!("{other}; {sentence}"),
            None => format!("gpuos: {sentence}"),
        };
        reasons::publish(frame, sentence);
    }

    /// Which GPUs of the candidates are out of service, where the job would have room now, or could have it at
    /// all, if they were not.
    fn why_out(&self, withheld: &Withheld) -> Option<String> {
        let (call, source) = (self.frame.call, &self.frame.source);
        let mut blame = Blame::new(self.job());
        for index in withheld.offered() {
            let node = source.node(index);
            let gpus = node.and_then(|node| source.gpus(node));
            let (Some(node), Some(gpus)) = (node, gpus) else {
                continue;
            };
            if gpus.bits().is_none() {
                continue;
            }
            let mut state = node_state(Some(gpus), self.service.of(index).0);
            let marked = GpuSet(call.out_of_service.of(gpus));
            state.allocated = state.allocated.minus(marked);
            blame.add(node.name(), &state);
        }
        blame.sentence()
    }
}

/// The GPUs of a node of which some are out of service.
fn node_state(gpus: Option<NodeGres<'_>>, out: GpuSet) -> NodeState {
    NodeState {
        devices: gpus.map_or(0, NodeGres::devices),
        allocated: GpuSet(gpus.map_or(0, NodeGres::allocated_devices)),
        out,
        is_pool_out: false,
    }
}
