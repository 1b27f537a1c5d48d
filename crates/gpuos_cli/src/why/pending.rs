//! Why a job waits, and the smallest change that would start it.

use gpuos_config::options::JobOptions;
use gpuos_host::slurm::Job;
use gpuos_host::slurm::site::{Asker, JobRequest, Neighbours, Site};
use gpuos_model::hostlist::compress;
use gpuos_placement::explain::{self, Claim, sentence, why_wait_on};
use gpuos_placement::plan::{Planner, Wait};
use gpuos_placement::record::Recording;
use serde_json::{Value, json};

use super::memory::Asked;
use super::{Answer, reason, requeue, slices};
use crate::figures;
use crate::forecast::is_endless;
use crate::mix::Mix;
use crate::outlook::{Outlook, known_level, lead, outlook};
use crate::remedies::{Case, Who, changes, shown};
use crate::table::count;

pub fn explain(
    site: &Site,
    (jobs, recording): (&[Job], Option<&Recording>),
    (job, name): (&Job, &str),
    (options, memory): &(JobOptions, Asked),
    others: Vec<String>,
) -> Answer {
    let plain = |cause: &str, sentence: String, details: String| Answer {
        sentence,
        details,
        json: json!({ "cause": cause }),
        yes: true,
    };
    if let Some(sentence) = requeue::held_back(site, job, name) {
        return plain("requeue", sentence, String::new());
    }
    let before = requeue::requeue_text(site, job).map(|said| format!("{said}\n"));
    let before = before.unwrap_or_default();
    if let Some(sentence) = reason::plain(job, name) {
        return plain("slurm", sentence, before);
    }
    if slices::wanted(job).is_some() {
        if options.off {
            return plain("slurm", off(job, name), before);
        }
        let mut answer = slices::pending(site, jobs, (job, name), options, others);
        answer.details += &before;
        return answer;
    }
    let Some(wanted) = JobRequest::of_job(job, options, site) else {
        let waits = match job.reason.as_str() {
            "Priority" => "for jobs with a higher priority".to_string(),
            "" | "None" => "for the scheduler to look at it".to_string(),
            "Resources" => "for free resources".to_string(),
            other => format!("({})", reason::words(other)),
        };
        let sentence = match parts(job) {
            Some(parts) => format!(
                "Job {name} waits {waits}. It asks for parts of GPUs ({parts}), which Slurm counts by itself."
            ),
            None => format!("Job {name} waits {waits} and asks for no GPU: Slurm alone places it."),
        };
        let mut answer = plain("slurm", sentence, before);
        if let Some(parked) = memory.parked(job) {
            answer.details.insert_str(0, &parked.text(None));
            parked.add_json(None, &mut answer.json);
        }
        return answer;
    };
    let taken = memory.waiting(site, job, &wanted);
    let asked = asked(job, &wanted) + &before;
    if options.off {
        return plain("slurm", off(job, name), asked);
    }
    if let Some(node) = wanted.missing.first() {
        let sentence =
            format!("Job {name} waits for node {node}, which this cluster does not have.");
        return plain("nodes", sentence, asked);
    }
    let mut wanted = wanted.beside(job, jobs);
    wanted.excluded.extend(others);
    let mut state = wanted.state(site, jobs);
    let asker = Asker::of_job(job, options);
    let before_rules = state.clone();
    let neighbours = Neighbours::judge(site, jobs, &wanted, &asker, &mut state);
    let mut planner = Planner::new(site.cluster.clone());
    let mix = Mix::apply(&mut planner, recording, site, jobs);
    let mut resorts = neighbours.first_resorts(&state).into_iter();
    if let Some(first) = resorts.find(|first| planner.plan(first, &wanted.request, 0).is_ok()) {
        state = first;
    }
    let now = planner.plan(&state, &wanted.request, 0).cloned();
    // Whether it is rules alone that it waits for.
    let kept = neighbours
        .exclusions
        .iter()
        .find(|_| neighbours.forbids() && planner.plan(&before_rules, &wanted.request, 0).is_ok());
    let kept = kept.filter(|_| now.is_err()).map(ToString::to_string);
    let room = taken
        .as_ref()
        .filter(|_| now.is_err() && kept.is_none())
        .and_then(|taken| taken.without(&wanted))
        .map(|less| planner.plan(&state, &less.request, 0).is_ok());
    let own = reason::is_own(&job.reason).then(|| reason::words(&job.reason));
    let taken_text = taken.as_ref().map(|taken| taken.text(room));
    let mut details = asked + &taken_text.unwrap_or_default() + &neighbours.text();
    if let Some(own) = &own {
        let named = wanted.request.required_nodes.len();
        let said = now.as_ref().err().map(|wait| why_wait_on(wait, named));
        let said = said.unwrap_or_default();
        // While nothing has changed since, both are the same sentence.
        if !own.ends_with(&said) || said.is_empty() {
            details += &format!("Reason in Slurm: {own}\n");
        }
    }
    let mut answer = match now {
        Ok(choice) => {
            let why = match job.reason.as_str() {
                _ if job.label.contains('+') => {
                    "all components of a heterogeneous job start together, and this is one of them"
                }
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
            details += &slurms_estimate(job, jobs);
            let json = json!({
                "cause": "priority",
                "place": figures::choice_json(&choice, &site.cluster),
                "mix": mix.json(),
                "slurm_estimate": estimate_json(job),
            });
            Answer {
                sentence: format!("Job {name} would fit now, but waits: {why}."),
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
            let named = wanted.request.required_nodes.len();
            let changes = changes(&mut planner, case);
            for (nth, change) in shown(&changes).enumerate() {
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
                details += &format!("{}.\n", Claim::NothingSmaller);
            }
            let outlook = known_level(&wait).then(|| outlook(&mut planner, case));
            match &outlook {
                Some(outlook) if outlook.adds() => details += &format!("{}.\n", outlook.claim),
                // The numbers of now stand behind what is in the way for longer.
                Some(_) if !matches!(wait, Wait::Never { .. }) => {
                    details += &format!("{}\n", why_wait_on(&wait, named));
                }
                _ => {}
            }
            let out = out_of_service(site);
            if let Some(out) = &out {
                details += &format!("{out}.\n");
            }
            details += &slurms_estimate(job, jobs);
            let lead = lead(&wait, outlook.as_ref(), named);
            let forecast = outlook.as_ref().and_then(|o| o.forecast.as_ref());
            let json = json!({
                "out_of_service": out,
                "cause": if kept.is_some() { "rules" } else { "gpus" },
                "wait": figures::wait_json(&wait),
                "changes": changes.iter().map(|c| c.json(site)).collect::<Vec<_>>(),
                "forecast": forecast.map(|f| f.json(site)),
                "outlook": outlook.as_ref().map(Outlook::json),
                "mix": mix.json(),
                "slurm_estimate": estimate_json(job),
            });
            Answer {
                sentence: match kept {
                    Some(kept) => format!("Job {name} waits: {kept}."),
                    None => format!("Job {name} waits. {lead}"),
                },
                details,
                json,
                yes: true,
            }
        }
    };
    if let Some(taken) = &taken {
        taken.add_json(room, &mut answer.json);
    }
    answer
}

/// What the job asked for, in a line.
fn asked(job: &Job, wanted: &JobRequest) -> String {
    use gpuos_placement::plan::GpuShape;
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
        GpuShape::PerSocket {
            per_socket,
            sockets: 0 | 1,
        } => format!("{} on each socket", some(per_socket)),
        GpuShape::PerSocket {
            per_socket,
            sockets,
        } => format!("{} on each of {sockets} sockets", some(per_socket)),
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
        text += &format!(", --gpuos-topology={wish}");
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

/// The sentence on a job that gpuos leaves alone by its own wish.
fn off(job: &Job, name: &str) -> String {
    let why = match job.reason.as_str() {
        "" | "None" => "Slurm gives no reason yet".to_string(),
        reason => reason::words(reason),
    };
    format!("Job {name} waits ({why}) and was submitted with --gpuos=off: Slurm alone places it.")
}

/// The GRES of a job that are parts of GPUs, as Slurm writes them.
fn parts(job: &Job) -> Option<String> {
    let all = [
        &job.tres_per_node,
        &job.tres_per_task,
        &job.tres_per_socket,
        &job.tres_per_job,
    ];
    let entries = all.into_iter().flat_map(|list| list.split(','));
    let part = |entry: &&str| {
        let name = entry
            .trim_start_matches("gres:")
            .trim_start_matches("gres/");
        name.starts_with("shard") || name.starts_with("mps")
    };
    let parts: Vec<&str> = entries.filter(part).collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// Backfill's own forecast, when it has one.
fn slurms_estimate(job: &Job, jobs: &[Job]) -> String {
    if job.start.is_empty() {
        return String::new();
    }
    let on = match &job.planned_nodes[..] {
        [] => String::new(),
        nodes => format!(" on {}", compress(nodes.iter().map(String::as_str))),
    };
    let running = jobs.iter().filter(|job| job.is_running());
    let endless = running.clone().any(is_endless);
    let year = match endless {
        true => "; jobs without a time limit count as a year there",
        false => "",
    };
    format!("Slurm's own estimate: {}{on}{year}.\n", job.start)
}

fn estimate_json(job: &Job) -> Value {
    match job.start.as_str() {
        "" => Value::Null,
        start => json!({ "at": start, "nodes": job.planned_nodes }),
    }
}
