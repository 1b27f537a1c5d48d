//! Why a job waits, and the smallest change that would start it.

use gpuos_core::explain::{self, sentence, why_wait};
use gpuos_core::hostlist::compress;
use gpuos_core::options::{JobOptions, topology_text};
use gpuos_core::plan::Planner;
use gpuos_core::record::Recording;
use gpuos_host::slurm::Job;
use gpuos_host::{Asker, JobRequest, Neighbours, Site};
use serde_json::{Value, json};

use super::{Answer, reason};
use crate::figures;
use crate::forecast::forecast;
use crate::mix::Mix;
use crate::plan::have;
use crate::smaller::{Case, Who, changes, told};
use crate::table::count;

pub fn explain(
    site: &Site,
    (jobs, recording): (&[Job], Option<&Recording>),
    job: &Job,
    options: &JobOptions,
) -> Answer {
    if let Some(sentence) = reason::plain(job) {
        return Answer {
            sentence,
            details: String::new(),
            json: json!({ "cause": "slurm" }),
            yes: true,
        };
    }
    let Some(wanted) = JobRequest::of_job(job, options, site) else {
        let sentence = format!(
            "Job {} waits for {} and asks for no GPU: Slurm alone places it.",
            job.label,
            match job.reason.as_str() {
                "Priority" => "jobs with a higher priority".to_string(),
                "" | "None" => "the scheduler to look at it".to_string(),
                "Resources" => "free resources".to_string(),
                other => reason::words(other),
            }
        );
        return Answer {
            sentence,
            details: String::new(),
            json: json!({ "cause": "slurm" }),
            yes: true,
        };
    };
    let asked = asked(job, &wanted);
    if options.off {
        let sentence = format!(
            "Job {} waits ({}) and was submitted with --gpuos=off: Slurm alone places it.",
            job.label, job.reason
        );
        return Answer {
            sentence,
            details: asked,
            json: json!({ "cause": "slurm" }),
            yes: true,
        };
    }
    if let Some(name) = wanted.missing.first() {
        let sentence = format!(
            "Job {} waits for node {name}, which this cluster does not have.",
            job.label
        );
        return Answer {
            sentence,
            details: asked,
            json: json!({ "cause": "nodes" }),
            yes: true,
        };
    }
    let wanted = wanted.beside(job, jobs);
    let mut state = wanted.state(site, jobs);
    let asker = Asker::of_job(job, options);
    let before_rules = state.clone();
    let neighbours = Neighbours::judge(site, jobs, &wanted, &asker, &mut state);
    let mut planner = Planner::new(site.cluster.clone());
    let mix = Mix::tell(&mut planner, recording, site, jobs);
    let mut resorts = neighbours.first_resorts(&state).into_iter();
    if let Some(first) = resorts.find(|first| planner.plan(first, &wanted.request, 0).is_ok()) {
        state = first;
    }
    let now = planner.plan(&state, &wanted.request, 0).cloned();
    // Whether it is rules alone that it waits for.
    let kept = neighbours
        .kept
        .iter()
        .find(|_| neighbours.forbids() && planner.plan(&before_rules, &wanted.request, 0).is_ok());
    let kept = kept.filter(|_| now.is_err()).map(ToString::to_string);
    let own = reason::is_own(&job.reason).then(|| reason::words(&job.reason));
    let mut details = asked + &neighbours.text();
    if let Some(own) = &own {
        let said = now.as_ref().err().map(why_wait).unwrap_or_default();
        // While nothing has changed since, both are the same sentence.
        if !own.ends_with(&said) || said.is_empty() {
            details += &format!("Reason in Slurm: {own}\n");
        }
    }
    match now {
        Ok(choice) => {
            let why = match job.reason.as_str() {
                "Priority" => "jobs with a higher priority come first",
                "" | "None" => "the scheduler has not looked at it yet",
                _ => {
                    "the scheduler has not got to it, keeps the nodes for another job, or sees a limit that gpuos does not (time limits, reservations)"
                }
            };
            details += &format!(
                "Its place now: {}\n",
                sentence(&choice, &wanted.request, &site.cluster)
            );
            details += &format!("\n{}", figures::table(&choice, &site.cluster));
            details += &mix.text(&wanted.request);
            details += &slurms_estimate(job);
            let json = json!({
                "cause": "priority",
                "place": figures::choice_json(&choice, &site.cluster),
                "mix": mix.json(),
                "slurm_estimate": estimate_json(job),
            });
            Answer {
                sentence: format!("Job {} would fit now, but waits: {why}.", job.label),
                details,
                json,
                yes: true,
            }
        }
        Err(wait) => {
            let case = Case {
                site,
                jobs,
                wanted: &wanted,
                asker: &asker,
                states: &before_rules,
            };
            let changes = changes(&mut planner, case);
            for (nth, change) in told(&changes).enumerate() {
                let by = match (nth, change.who) {
                    (0, Who::User) => "Smallest change that would start it now",
                    (0, Who::Administrator) => {
                        "Smallest change that would start it now, for the administrator"
                    }
                    _ => "Smallest that the job itself can ask for",
                };
                details += &format!(
                    "{by}: {}. It would get {}\n",
                    change.option,
                    sentence(&change.choice, &wanted.request, &site.cluster)
                );
            }
            if changes.is_empty() {
                details += "No smaller request of this kind would start now.\n";
            }
            let later = forecast(&mut planner, case);
            match &later {
                Some(later) => {
                    details += &format!(
                        "Expected: at {} at the latest, when {} ended (jobs with a higher priority may come first).\n",
                        later.at,
                        have(&later.jobs)
                    );
                }
                None => {
                    details += match neighbours.forbids() {
                        true => {
                            "The end of the running jobs alone makes no room: nodes that are down, drained or reserved, or that rules keep from it, are needed too.\n"
                        }
                        false => {
                            "The end of the running jobs alone makes no room: nodes that are down, drained or reserved are needed too.\n"
                        }
                    };
                }
            }
            let out = out_of_service(site);
            if let Some(out) = &out {
                details += &format!("{out}.\n");
            }
            details += &slurms_estimate(job);
            let json = json!({
                "out_of_service": out,
                "cause": if kept.is_some() { "rules" } else { "gpus" },
                "wait": figures::wait_json(&wait),
                "changes": changes.iter().map(|c| c.json(site)).collect::<Vec<_>>(),
                "forecast": later.map(|f| f.json(site)),
                "mix": mix.json(),
                "slurm_estimate": estimate_json(job),
            });
            Answer {
                sentence: match kept {
                    Some(kept) => format!("Job {} waits: {kept}.", job.label),
                    None => format!("Job {} waits. {}", job.label, why_wait(&wait)),
                },
                details,
                json,
                yes: true,
            }
        }
    }
}

/// What the job asked for, in a line.
fn asked(job: &Job, wanted: &JobRequest) -> String {
    use gpuos_core::plan::GpuShape;
    let some = |n: u32| count(n as usize, "GPU");
    let gpus = match wanted.request.gpus {
        GpuShape::PerNode(n) => format!("{} on each node", some(n)),
        GpuShape::Total(n) => format!("{} in all", some(n)),
        GpuShape::PerTask { per_task, tasks } => {
            format!(
                "{} for each of {}",
                some(per_task),
                count(tasks as usize, "task")
            )
        }
        GpuShape::PerSocket(n) => format!("{} on each socket", some(n)),
    };
    let nodes = match (wanted.request.min_nodes, wanted.request.max_nodes) {
        (min, max) if min == max => count(min as usize, "node"),
        (min, max) => format!("{min} to {max} nodes"),
    };
    let mut text = format!("It asks for {gpus}, on {nodes}");
    if let Some(gres_type) = &wanted.gres_type {
        text += &format!(", of type {gres_type}");
    }
    if wanted.request.whole_nodes {
        text += ", nodes whole";
    }
    if let Some(wish) = &wanted.request.topology {
        text += &format!(", --gpuos-topology={}", topology_text(wish));
    }
    if !job.features.is_empty() {
        text += &format!(", features {}", job.features);
    }
    text + ".\n"
}

/// Which GPUs of the cluster are out of service, if any.
fn out_of_service(site: &Site) -> Option<String> {
    let nodes = site.nodes.iter();
    let out: Vec<_> = nodes
        .map(|node| (node.name.as_str(), node.gpus_out()))
        .filter(|(_, out)| !out.is_empty())
        .collect();
    let total = site.nodes.iter().map(|node| node.gpu_count()).sum();
    (!out.is_empty()).then(|| explain::out_of_service(&out, total))
}

/// Backfill's own forecast, when it has one.
fn slurms_estimate(job: &Job) -> String {
    if job.start.is_empty() {
        return String::new();
    }
    let on = match &job.planned_nodes[..] {
        [] => String::new(),
        nodes => format!(" on {}", compress(nodes.iter().map(String::as_str))),
    };
    format!("Slurm's own estimate: {}{on}.\n", job.start)
}

fn estimate_json(job: &Job) -> Value {
    match job.start.as_str() {
        "" => Value::Null,
        start => json!({ "at": start, "nodes": job.planned_nodes }),
    }
}
