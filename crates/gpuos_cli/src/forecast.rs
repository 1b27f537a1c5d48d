//! When the end of running jobs will have made room for a job that waits.

use std::collections::HashSet;

use gpuos_host::slurm::Job;
use gpuos_host::slurm::site::{Judge, Site, switchable};
use gpuos_model::gpuset::GpuSet;
use gpuos_placement::explain::Claim;
use gpuos_placement::plan::{Choice, Planner};
use serde_json::{Value, json};

use crate::figures::choice_json;
use crate::remedies::{Case, place_among};

/// When running jobs will have made room.
pub struct Forecast {
    /// Local time at which the last of them ends at the latest; `None` where no end is known of one of them.
    pub at: Option<String>,
    /// The jobs that have to end, in that order; those without a known end come last.
    pub jobs: Vec<String>,
    /// Those of them of which no end is known.
    pub open: Vec<String>,
    /// Where the job would go then.
    pub choice: Choice,
}

impl Forecast {
    /// The forecast as JSON; null where no time is known.
    pub fn json(&self, site: &Site) -> Value {
        match &self.at {
            Some(at) => {
                json!({ "at": at, "jobs": self.jobs, "place": choice_json(&self.choice, &site.cluster) })
            }
            None => Value::Null,
        }
    }

    /// The same as a fact to be told.
    pub fn claim(&self) -> Claim {
        let jobs = self.jobs.clone();
        match &self.at {
            Some(at) => Claim::FitsAt {
                at: at.clone(),
                jobs,
            },
            None => Claim::FitsAfter {
                jobs,
                open: self.open.clone(),
            },
        }
    }
}

/// What backfill gives a job as its limit that has none when it starts it.
const YEAR: &str = "365-00:00:00";

/// Whether a running job has no time limit, Slurm's default.
pub fn is_endless(job: &Job) -> bool {
    matches!(job.time_limit.as_str(), "UNLIMITED" | YEAR)
}

/// When a running job ends at the latest. Without a time limit nobody knows: what Slurm prints then is a year ahead.
pub fn known_end(job: &Job) -> Option<&str> {
    (!is_endless(job) && !job.end.is_empty()).then_some(job.end.as_str())
}

/// Ends the running jobs one after the other, by their latest end and those without one last, until the request fits
/// and no rule speaks against it. Jobs that wait are not thought of: with a higher priority they come first.
pub fn forecast(planner: &mut Planner, case: Case<'_>) -> Option<Forecast> {
    let Case {
        site,
        jobs,
        wanted,
        asker,
        ..
    } = case;
    let mut ends: Vec<&Job> = jobs.iter().filter(|job| job.is_running()).collect();
    // The format sorts as time does.
    ends.sort_by_key(|job| (known_end(job).is_none(), known_end(job), job.id));
    let mut judge = Judge::new(site, jobs);
    let mut states = case.states.to_vec();
    let mut used: Vec<u32> = site.nodes.iter().map(|node| node.cpus_allocated).collect();
    let mut slices: Vec<GpuSet> = site.nodes.iter().map(|node| node.slices_used).collect();
    let mut ended = Vec::new();
    for job in ends {
        // Whom a rule keeps apart is in the way on nodes beside his own, too.
        let mut touched = judge.matters(wanted, asker);
        judge.end(job.id);
        for allocation in &job.allocations {
            for at in site.indices(&allocation.nodes).0 {
                let at = at as usize;
                let node = &site.nodes[at];
                let free = &mut states[at];
                let of_type = node.gpus_in_service(wanted.gres_type.as_deref());
                let mut whole = allocation.gpus;
                if let Some(own) = site.config.mig.pool_of(&node.name) {
                    // A MIG-switchable GPU is whole again when the last one with slices of it has ended.
                    slices[at] = slices[at].minus(allocation.slices);
                    let left = switchable::whole_of(own, slices[at]);
                    whole = GpuSet(
                        whole.0 | switchable::whole_of(own, allocation.slices).minus(left).0,
                    );
                }
                free.free = GpuSet(free.free.0 | whole.and(of_type).0);
                free.free_cpus = free.free_cpus.saturating_add(allocation.cpus);
                free.free_memory_mib = free.free_memory_mib.saturating_add(allocation.memory_mib);
                used[at] = used[at].saturating_sub(allocation.cpus);
                if wanted.request.whole_nodes && used[at] == 0 {
                    let sound = node.gpus_out().is_empty();
                    free.candidate = node.is_up() && sound && wanted.allows(node);
                }
                touched |= free.candidate;
            }
        }
        // Also one after whose end a node is not idle yet: it is needed if the job gets that node.
        ended.push(job);
        if !touched {
            continue;
        }
        if let Some(choice) = place_among(planner, &mut judge, (wanted, asker), &states) {
            let needed = needed(case, &choice, &ended);
            let label = |job: &&Job| job.label.clone();
            let open = needed.iter().filter(|job| known_end(job).is_none());
            let open: Vec<String> = open.map(label).collect();
            let last = needed.iter().filter_map(|job| known_end(job)).max();
            return Some(Forecast {
                at: match open.is_empty() {
                    true => last.map(String::from),
                    false => None,
                },
                jobs: needed.iter().map(label).collect(),
                open,
                choice,
            });
        }
    }
    None
}

/// Those of the ended jobs that stood on a node of the choice, or that a rule keeps apart from it.
fn needed<'a>(case: Case<'_>, choice: &Choice, ended: &[&'a Job]) -> Vec<&'a Job> {
    let nodes: Vec<u32> = choice.nodes.iter().map(|chosen| chosen.node).collect();
    let names = nodes
        .iter()
        .filter_map(|at| case.site.nodes.get(*at as usize));
    let names: HashSet<&str> = names.map(|node| node.name.as_str()).collect();
    let judge = Judge::new(case.site, case.jobs);
    let chosen = |node: u32| nodes.contains(&node);
    let apart = judge.blockers(case.wanted, case.asker, &chosen);
    let stood = |job: &Job| job.nodes.iter().any(|node| names.contains(node.as_str()));
    let needed = ended
        .iter()
        .filter(|job| stood(job) || apart.contains(&job.id));
    needed.copied().collect()
}
