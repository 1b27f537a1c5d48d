//! Where a job went, and how good that place is.

use gpuos_config::options::JobOptions;
use gpuos_host::slurm::Job;
use gpuos_host::slurm::site::{JobRequest, Site};
use gpuos_model::gpuset::GpuSet;
use gpuos_model::hostlist::compress;
use gpuos_placement::explain::{Note, held_sentence, level_reached, sentence, value_sentence};
use gpuos_placement::plan::{Choice, GpuShape, NodeState, Placement, Planner, Request};
use serde_json::json;

use super::{Answer, requeue, slices};
use crate::figures;
use crate::outlook::may_use;
use crate::table::count;

/// Which jobs have parts of the same GPUs, and how they share the memory of these.
fn beside(site: &Site, jobs: &[Job], job: &Job) -> String {
    let shares = |other: &&Job| {
        let on = |node: &String| !(job.shared_on(node).and(other.shared_on(node))).is_empty();
        other.id != job.id && other.is_running() && job.nodes.iter().any(on)
    };
    let others: Vec<&str> = jobs
        .iter()
        .filter(shares)
        .map(|it| it.label.as_str())
        .collect();
    let named = match others.as_slice() {
        [] => return String::new(),
        [one] => format!("job {one}"),
        several => format!("jobs {}", several.join(", ")),
    };
    match site.config.memory.turns {
        0 => format!(" Beside it there: {named}."),
        _ => format!(
            " Beside it there: {named}. Where they do not fit together they have its memory in turns, and gpuos mem show tells whose turn it is."
        ),
    }
}

pub fn explain(site: &Site, jobs: &[Job], job: &Job) -> Answer {
    let gpus = job.gpu_count();
    let on = compress(job.nodes.iter().map(String::as_str));
    if let Some(sentence) = requeue::ending(site, job, &job.label) {
        return Answer {
            sentence,
            details: String::new(),
            json: json!({ "nodes": job.nodes }),
            yes: true,
        };
    }
    if let Some(answer) = slices::running(site, jobs, job) {
        return answer;
    }
    let note = Note::parse(&job.system_comment);
    let held = note.as_ref().and_then(|note| note.held);
    let held = held.map(held_sentence);
    if gpus == 0 {
        let sentence = match (requeue::shares(job), &held) {
            (Some(shares), _) => {
                let beside = beside(site, jobs, job);
                format!("Job {} runs on {on} with {shares}.{beside}", job.label)
            }
            (None, Some(held)) => {
                format!("Job {} runs on {on} without GPUs. {held}", job.label)
            }
            (None, None) => format!(
                "Job {} runs on {on} without GPUs: Slurm alone placed it.",
                job.label
            ),
        };
        return Answer {
            sentence,
            details: String::new(),
            json: json!({ "nodes": job.nodes }),
            yes: true,
        };
    }
    let options = JobOptions {
        topology: note.as_ref().and_then(|note| note.wish.clone()),
        ..JobOptions::default()
    };
    let wanted = JobRequest::of_job(job, &options, site);
    let mut planner = Planner::new(site.cluster.clone());
    let Some(mut here) = measure(&mut planner, site, job) else {
        let sentence = format!(
            "Job {} has {} on {on}, but Slurm does not say which (no File= in gres.conf), so their links are unknown.",
            job.label,
            count(gpus as usize, "GPU"),
        );
        return Answer {
            sentence,
            details: String::new(),
            json: json!({ "nodes": job.nodes }),
            yes: true,
        };
    };
    let said = match (&note, &wanted) {
        (Some(note), Some(wanted)) => {
            // What was true when the job was placed, and is not any more.
            here.usability_lost = note.usability_lost;
            here.feasible_nodes = note.feasible_nodes;
            here.feasible_domains = note.feasible_domains;
            let tried = match note.attempt {
                0 => String::new(),
                n => format!(" Slurm refused {n} better choices."),
            };
            let worth = note.worth.as_ref();
            let worth = worth.map(|worth| format!(" {}", value_sentence(worth, &site.cluster)));
            let held = held.map(|held| format!(" {held}"));
            let said = sentence(&here, &wanted.request, &site.cluster);
            let (worth, held) = (worth.unwrap_or_default(), held.unwrap_or_default());
            format!("{said}{worth}{held}{tried}")
        }
        _ => format!(
            "{} on {} ({on}){}. {}",
            count(gpus as usize, "GPU"),
            count(job.nodes.len(), "node"),
            place_words(&here, site),
            // Whole nodes, of which no GPUs were asked for.
            held.unwrap_or_else(|| "gpuos left no note: Slurm chose the place.".into())
        ),
    };
    let best = wanted
        .as_ref()
        .and_then(|wanted| best(&mut planner, site, job, wanted));
    let mut details = figures::table(&here, &site.cluster);
    if let Some(best) = &best {
        details += &format!("\n{}\n", compare(&here, best, site));
    }
    let json = json!({
        "place": figures::choice_json(&here, &site.cluster),
        "note": note.as_ref().map(|_| job.system_comment.clone()),
        "best_in_empty_cluster": best.as_ref().map(|b| figures::choice_json(b, &site.cluster)),
        "start": job.start,
        "end": job.end,
    });
    Answer {
        sentence: format!("Job {} runs: {said}", job.label),
        details,
        json,
        yes: true,
    }
}

/// Puts the job's own GPUs through the planner as the only free ones: level and bandwidth
/// come out as they would for a choice.
fn measure(planner: &mut Planner, site: &Site, job: &Job) -> Option<Choice> {
    let mut state = vec![NodeState::default(); site.nodes.len()];
    let mut sizes = Vec::new();
    for allocation in job.allocations.iter().filter(|a| a.gpu_count > 0) {
        if allocation.gpus.len() != allocation.gpu_count as usize {
            return None;
        }
        for at in site.indices(&allocation.nodes).0 {
            let node = &mut state[at as usize];
            sizes.push(allocation.gpu_count);
            *node = NodeState {
                candidate: true,
                present: GpuSet::first(site.nodes[at as usize].gpu_count()),
                free: allocation.gpus,
                free_cpus: u32::MAX,
                free_memory_mib: u64::MAX,
                affinity: 0,
                penalty: 0,
                until: 0,
            };
        }
    }
    let nodes = sizes.len() as u32;
    let total: u32 = sizes.iter().sum();
    let even = sizes.windows(2).all(|pair| pair[0] == pair[1]);
    let gpus = match even {
        true => GpuShape::PerNode(*sizes.first()?),
        false => GpuShape::Total(total),
    };
    let request = Request::new(nodes, nodes, gpus);
    planner.plan(&state, &request, 0).ok().cloned()
}

/// The best place for such a job if nothing else ran and all was in service. How many nodes a running job asked for is
/// not in its record where it could have had another number of them: GPUs in all may have stood on fewer.
fn best(planner: &mut Planner, site: &Site, job: &Job, wanted: &JobRequest) -> Option<Choice> {
    let state: Vec<NodeState> = site
        .nodes
        .iter()
        .map(|node| {
            let mine = job.nodes.contains(&node.name);
            NodeState {
                candidate: mine || may_use(wanted, node),
                present: GpuSet::first(node.gpu_count()),
                free: node.gpus_of_type(wanted.gres_type.as_deref()),
                free_cpus: node.cpus,
                free_memory_mib: match site.memory_counts() {
                    true => node.memory_mib,
                    false => u64::MAX,
                },
                affinity: 0,
                penalty: 0,
                until: 0,
            }
        })
        .collect();
    let mut request = Request {
        topology: None,
        placement: Placement::BestFit,
        ..wanted.request.clone()
    };
    if matches!(request.gpus, GpuShape::Total(_) | GpuShape::PerTask { .. }) {
        request.min_nodes = job
            .asked_nodes
            .max(request.required_nodes.len() as u32)
            .max(1);
    }
    planner.plan(&state, &request, 0).ok().cloned()
}

/// `, inside leaf l3; modelled ring bandwidth 50 GB/s per GPU`.
fn place_words(choice: &Choice, site: &Site) -> String {
    let (level, domain) = level_reached(choice, &site.cluster);
    let mut text = match (choice.reached, domain) {
        (0, _) => ", all linked by NVLink".to_string(),
        (1, _) => ", in one node".to_string(),
        (_, Some(domain)) => format!(", inside {level} {domain}"),
        (_, None) => ", in no common domain of the fabric".to_string(),
    };
    if choice.bus_gbps > 0.0 {
        text += &format!(
            "; modelled ring bandwidth {:.0} GB/s per GPU",
            choice.bus_gbps
        );
    }
    text
}

fn compare(here: &Choice, best: &Choice, site: &Site) -> String {
    let (level, _) = level_reached(here, &site.cluster);
    let (best_level, _) = level_reached(best, &site.cluster);
    if here.reached <= best.reached && here.bus_gbps >= best.bus_gbps * 0.999 {
        return "No place in an empty cluster would be better.".into();
    }
    let (nodes, fewer) = (here.nodes.len(), best.nodes.len());
    let on = match fewer < nodes {
        true => format!(
            " on {} instead of {nodes}, if the job may have so few,",
            count(fewer, "node")
        ),
        false => String::new(),
    };
    let share = match best.bus_gbps > 0.0 && here.bus_gbps > 0.0 {
        true => format!(
            "; it has {:.0} of {:.0} GB/s, {:.0} %",
            here.bus_gbps,
            best.bus_gbps,
            100.0 * here.bus_gbps / best.bus_gbps
        ),
        false => String::new(),
    };
    format!("The best place in an empty cluster{on} reaches {best_level}, this one {level}{share}.")
}
