//! The mix of jobs that nodes are compared by: the one that slurmctld has learned, where its recording can
//! be read, else what the jobs that run and wait make of it.

use gpuos_host::slurm::Job;
use gpuos_host::slurm::site::{JobRequest, Site};
use gpuos_placement::frag::{Expected, Learner};
use gpuos_placement::plan::{Placement, Planner, Request};
use gpuos_placement::record::Recording;
use serde_json::{Value, json};

use gpuos_config::options::JobOptions;

use crate::table::count;

/// Sizes of jobs that are named.
const NAMED: usize = 4;

/// Where a mix comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Source {
    /// The recording of slurmctld.
    Recorded,
    /// So many jobs that run and wait.
    Jobs(u64),
}

/// The mix that a planner was told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mix {
    source: Source,
    /// `None`: all sizes are equally likely.
    expected: Option<Expected>,
}

impl Mix {
    /// Tells the planner what slurmctld goes by, as far as that can be known.
    pub fn apply(
        planner: &mut Planner,
        recording: Option<&Recording>,
        site: &Site,
        jobs: &[Job],
    ) -> Mix {
        let recorded = recording.and_then(Recording::latest);
        let recorded = recorded.filter(|(cluster, _)| {
            // The mix names types of nodes by number.
            let theirs = Planner::new((*cluster).clone());
            let (known, mine) = (&cluster.nodes, &site.cluster.nodes);
            known.len() == mine.len()
                && known.iter().zip(mine).all(|(a, b)| a.name == b.name)
                && (0..mine.len() as u32).all(|n| theirs.type_number(n) == planner.type_number(n))
        });
        let mix = match recorded {
            Some((_, expected)) => Mix {
                source: Source::Recorded,
                expected: expected.cloned(),
            },
            None => Mix::of_jobs(planner, site, jobs),
        };
        if let Some(expected) = &mix.expected {
            planner.learn(expected.clone());
            planner.work(usize::MAX);
        }
        mix
    }

    /// As select_gpuos counts them when it meets them.
    fn of_jobs(planner: &Planner, site: &Site, jobs: &[Job]) -> Mix {
        let mut learner = Learner::new();
        for job in jobs {
            let nodes = match (job.is_running(), job.is_pending()) {
                (true, _) => job.nodes.len() as u32,
                (_, true) => job.max_nodes.max(job.min_nodes),
                _ => continue,
            };
            let Some(wanted) = JobRequest::of_job(job, &JobOptions::default(), site) else {
                continue;
            };
            let named = wanted.gres_type.as_deref();
            let of_type = site.nodes.iter().zip(0..).filter(|(node, _)| {
                named.is_some_and(|named| !node.gpus_of_type(Some(named)).is_empty())
            });
            let (share, nodes) = planner.share(&wanted.request, nodes, of_type.map(|(_, at)| at));
            learner.arrives(share, nodes);
        }
        let mut sizes = vec![(0, 0); planner.types()];
        for (node, at) in site.nodes.iter().zip(0..) {
            if let Some(number) = planner.type_number(at) {
                let size: &mut (u32, u64) = &mut sizes[number];
                *size = (size.0.max(node.cpus), size.1.max(node.memory_mib));
            }
        }
        Mix {
            source: Source::Jobs(learner.arrived()),
            expected: learner.due().then(|| learner.expected(sizes)),
        }
    }

    /// A line for people; empty for a request that no mix matters to.
    pub fn text(&self, request: &Request) -> String {
        let matters = matches!(request.placement, Placement::Default | Placement::Frag)
            && !request.whole_nodes
            && request.min_nodes <= 1;
        if !matters {
            return String::new();
        }
        let by = match (self.source, &self.expected) {
            (Source::Recorded, Some(mix)) => {
                format!("by the mix that slurmctld has learned: {}", sizes(mix))
            }
            (Source::Jobs(jobs), Some(mix)) => format!(
                "by the mix of the {jobs} jobs with GPUs that run and wait: {}",
                sizes(mix)
            ),
            (Source::Recorded, None) => {
                "with all sizes of jobs equally likely: slurmctld has learned no mix yet".into()
            }
            (Source::Jobs(jobs), None) => format!(
                "with all sizes of jobs equally likely: {} with GPUs make no mix yet",
                count(jobs as usize, "job")
            ),
        };
        format!("Nodes are compared {by}.\n")
    }

    /// The same as JSON.
    pub fn json(&self) -> Value {
        let (source, jobs) = match (self.source, &self.expected) {
            (Source::Recorded, Some(_)) => ("slurmctld", None),
            (Source::Recorded, None) => ("even", None),
            (Source::Jobs(jobs), Some(_)) => ("jobs", Some(jobs)),
            (Source::Jobs(jobs), None) => ("even", Some(jobs)),
        };
        let sizes = self.expected.as_ref().map_or(json!([]), sizes_json);
        json!({ "source": source, "jobs": jobs, "sizes": sizes })
    }
}

/// `62 % 1 GPU, 20 % 8 GPUs`: the largest parts of a mix, by GPUs on a node.
pub fn sizes(mix: &Expected) -> String {
    let all = mix.sizes();
    let mut named: Vec<String> = all
        .iter()
        .take(NAMED)
        .map(|&(gpus, percent)| format!("{percent} % {}", count(gpus.into(), "GPU")))
        .collect();
    if all.len() > NAMED {
        named.push("…".into());
    }
    named.join(", ")
}

/// All parts of a mix.
pub fn sizes_json(mix: &Expected) -> Value {
    let size = |(gpus, percent)| json!({ "gpus": gpus, "percent": percent });
    mix.sizes().into_iter().map(size).collect()
}
