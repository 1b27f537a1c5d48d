//! What select_gpuos had to choose from when it decided on a job, from its recording.

use gpuos_host::slurm::Job;
use gpuos_model::cluster::Cluster;
use gpuos_placement::explain::level_reached;
use gpuos_placement::plan::{Choice, Criterion, Wait};
use gpuos_placement::record::{By, Outcome, Purpose, Recording, Step};
use serde_json::{Value, json};

use crate::figures::{choice_json, wait_json};
use crate::mix;
use crate::table::{Table, count, utc};

/// The best places that are shown.
const SHOWN: u32 = 4;

/// The last decision on a job.
#[derive(Default)]
pub struct Decided {
    /// Empty when none is recorded.
    pub text: String,
    /// The same; null when none is recorded.
    pub json: Value,
    /// A sentence, where the mix of jobs told the place from the next best one.
    pub mix: Option<String>,
}

/// The last decision on a job that is recorded.
pub fn last(recording: Option<&Recording>, job: &Job) -> Decided {
    let mut found = None;
    if let Some(recording) = recording {
        recording.replay(&mut |step| {
            let starts = step.asked.purpose == Purpose::Start;
            let fits = match job.is_running() {
                // Forecasts after the start are about other things.
                true => starts && step.outcome == Some(Outcome::Taken),
                false => true,
            };
            if fits && step.asked.job == job.id {
                found = Some(decided(step));
            }
        });
    }
    found.unwrap_or_default()
}

fn decided(step: Step<'_>) -> Decided {
    let Step {
        asked,
        planner,
        states,
        again,
        ..
    } = step;
    let offered = states.iter().filter(|state| state.candidate).count();
    let with_free = states.iter().filter(|s| s.candidate && !s.free.is_empty());
    let with_free = with_free.count();
    let at = utc(asked.at);
    let mut best: Vec<Choice> = Vec::new();
    let future = asked.by == By::Future;
    for skip in 0..SHOWN.max(asked.skip + 1) {
        let place = match future {
            true => planner.future(states, &asked.request, skip),
            false => planner.plan(states, &asked.request, skip).ok(),
        };
        match place {
            Some(place) => best.push(place.clone()),
            None => break,
        }
    }
    let cluster = planner.cluster();
    let verb = match (&again, asked.purpose) {
        (Ok(_), purpose) if !future || purpose == Purpose::Start => "Decided",
        _ => "Last looked at",
    };
    let mut text = format!(
        "{verb} {at}: Slurm offered {}, {} with free GPUs.",
        count(offered, "node"),
        with_free
    );
    if let Some(first) = best.first().filter(|_| future) {
        let slurm = match asked.purpose {
            Purpose::Start => "preempted jobs in",
            Purpose::Forecast => "expects room first in",
        };
        text += &format!(
            " None had room for all of it; {} would have, if nothing ran. Slurm {slurm} the one that is marked:\n\n{}",
            count(first.feasible_domains as usize, "place"),
            table(&best, asked.skip as usize, cluster)
        );
    } else if let Some(first) = best.first() {
        text += &format!(
            " {} could take a part; {} at the level reached had room for all of it. The best places:\n\n{}",
            count(first.feasible_nodes as usize, "node"),
            count(first.feasible_domains as usize, "domain"),
            table(&best, asked.skip as usize, cluster)
        );
    } else {
        text.push('\n');
    }
    let by_mix = matches!(&again, Ok(choice) if choice.decided == Criterion::Mix);
    let learned = planner.learned().filter(|_| by_mix);
    let json = json!({
        "at": at,
        "offered_nodes": offered,
        "nodes_with_free_gpus": with_free,
        "choice": asked.skip + 1,
        "once_running_jobs_are_gone": future,
        "mix": learned.map(mix::sizes_json),
        "wait": again.err().as_ref().map(|wait: &Wait| wait_json(wait)),
        "best": best.iter().map(|choice| choice_json(choice, cluster)).collect::<Vec<_>>(),
    });
    Decided {
        text,
        json,
        mix: learned.map(|mix| {
            format!(
                "Of places with equal links it took the one that the mix of jobs ({}) will miss least.",
                mix::sizes(mix)
            )
        }),
    }
}

fn table(best: &[Choice], chosen: usize, cluster: &Cluster) -> String {
    let mut table = Table::new(&[
        "PLACE",
        "LEVEL",
        "DOMAIN",
        "NODES",
        "GB/S",
        "GPUS BROKEN UP",
        "",
    ]);
    for (nth, choice) in best.iter().enumerate() {
        let (level, domain) = level_reached(choice, cluster);
        let name = |at: u32| cluster.nodes.get(at as usize).map(|n| n.name.as_str());
        let nodes = choice.nodes.iter().filter_map(|chosen| name(chosen.node));
        let nodes = gpuos_model::hostlist::compress(nodes);
        // The job's own GPUs are gone anywhere.
        let own: usize = choice.nodes.iter().map(|node| node.gpus.len()).sum();
        let own = own as f32;
        table.row([
            (nth + 1).to_string(),
            level.to_string(),
            domain.unwrap_or("-").to_string(),
            shortened(nodes),
            format!("{:.1}", choice.bus_gbps),
            format!("{:.2}", (choice.usability_lost - own).max(0.0)),
            if nth == chosen { "chosen" } else { "" }.to_string(),
        ]);
    }
    table.render()
}

fn shortened(text: String) -> String {
    const WIDTH: usize = 40;
    match text.char_indices().nth(WIDTH) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text,
    }
}
