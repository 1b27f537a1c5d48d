//! What running jobs hold, told to everybody who goes by it.

use gpuos_model::gpuset::GpuSet;
use slurm_ffi::check;
use slurm_ffi::gres::JobGres;
use slurm_ffi::handles::Job;

use crate::abi::source::Source;
use crate::decide::cluster_state::ClusterState;
use crate::decide::mix::Seen;
use crate::read::demand;
use crate::read::ends;
use crate::read::ledger::Holding;
use crate::read::site::Site;
use crate::read::trust::{LayoutTrust, Trust};

impl ClusterState {
    /// Counts what all running jobs hold: those that started before the layout was trusted or the model made.
    pub fn count_running(&mut self, site: &Site, trust: &mut LayoutTrust, source: &Source<'_>) {
        for job in source.jobs() {
            if job.holds_resources() {
                self.note_holdings(site, trust, source, job);
            }
        }
    }

    /// A job has, or no longer has, what its record says.
    pub fn note_holdings(
        &mut self,
        site: &Site,
        trust: &mut LayoutTrust,
        source: &Source<'_>,
        job: Job<'_>,
    ) {
        if !trust.reads_records() {
            return;
        }
        // What it holds, or what an earlier job held, is checked by reads that cannot fault.
        if !trust.held {
            let Ok(fits) = check::held(site.layout, job.raw()) else {
                return;
            };
            trust.held = fits;
        }
        // 22.05 reports these too when it makes its tables anew, and their end is never told.
        if job.is_over() {
            return;
        }
        let mut held = Vec::new();
        let asked: Vec<JobGres<'_>> = match trust.level {
            Trust::Selection => source.gpus_asked(job).collect(),
            _ => Vec::new(),
        };
        job.for_each_held(|node, cpus, memory_mib| {
            let gpus = asked.iter().map(|gpus| gpus.selected_count(node));
            held.push(Holding {
                node: node as u32,
                cpus,
                memory_mib,
                gpus: u32::try_from(gpus.sum::<u64>()).unwrap_or(0),
                cores: None,
            })
        });
        demand::note_cores(source, job, &mut held);
        if self.traffic.is_some() {
            self.note_traffic(trust, source, job, &held);
        }
        self.neighbours.note(source, job, &held);
        if self.slices.on {
            self.slices.note(site, source, job, &held);
        }
        if self.switchable.on {
            self.switchable.note(site, source, &held);
        }
        if let Some(gpus) = source.one_type(job) {
            let per_task = gpus.per_task() * u64::from(job.tasks());
            let in_all = (gpus.per_node() * held.len() as u64).max(gpus.per_job());
            let seen = Seen {
                job: job.id(),
                gpus: in_all.max(per_task),
                typed: gpus.type_name().is_some(),
            };
            self.mix.runs(source, self.planner.as_ref(), seen, &held);
        }
        let part = demand::follows_part(site.parameters, job).then(|| job.partition_key());
        let kind = (job.sharing(), part);
        self.ledger.set(job.id(), held, kind, ends::of_running(job));
    }

    /// Counts a job among the gangs on the network, if it has GPUs on several nodes, of one type or of
    /// several.
    fn note_traffic(
        &mut self,
        trust: &LayoutTrust,
        source: &Source<'_>,
        job: Job<'_>,
        held: &[Holding],
    ) {
        let asked: Vec<JobGres<'_>> = source.gpus_asked(job).collect();
        let selected = match trust.level {
            Trust::Selection => &asked[..],
            _ => &[],
        };
        let on = |one: &Holding| {
            let bits = selected
                .iter()
                .filter_map(|gpus| gpus.selected(one.node as usize));
            // Empty = any of the node's.
            let all = bits.fold(0, |all, bits| all | bits.chunk(0));
            (one.node, GpuSet(all))
        };
        let nodes = match asked.is_empty() {
            true => Vec::new(),
            false => held.iter().map(on).collect(),
        };
        if let Some(traffic) = &mut self.traffic {
            traffic.start(job.id(), nodes);
            self.records.gang(job.id(), traffic);
        }
    }

    /// A job ends.
    pub fn note_end(&mut self, site: &Site, job: Job<'_>) {
        let policy = &site.settings.config.policy;
        self.standing.learn(policy, &mut self.records, job);
        self.ledger.remove(job.id());
        self.neighbours.ended(job.id());
        self.slices.ends(job.id());
        if let Some(traffic) = &mut self.traffic {
            traffic.end(job.id());
            self.records.gang(job.id(), traffic);
        }
    }
}
