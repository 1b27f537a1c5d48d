//! Sentences on choices and on waiting.
use gpuos_model::cluster::Cluster;
use gpuos_model::hostlist::compress;

use super::note::number;
use crate::plan::{Choice, Criterion, Placement, Request, TopologyRequest, Unit, Wait};

/// The name of the level that a choice reaches, and that of the domain there, if any.
pub fn level_reached<'a>(choice: &Choice, cluster: &'a Cluster) -> (&'a str, Option<&'a str>) {
    let fabric = match choice.reached {
        0 => return ("nvlink", None),
        1 => return ("node", None),
        reached => cluster.fabric.levels.get(reached as usize - 2),
    };
    match fabric {
        Some(level) => {
            let domain = choice
                .domain
                .and_then(|domain| level.domains.get(domain as usize));
            (&level.name, domain.map(String::as_str))
        }
        None => ("any", None),
    }
}

/// Why a job went where it went, in one or two sentences.
pub fn sentence(choice: &Choice, request: &Request, cluster: &Cluster) -> String {
    let (level, domain) = level_reached(choice, cluster);
    let names = choice
        .nodes
        .iter()
        .filter_map(|chosen| cluster.nodes.get(chosen.node as usize))
        .map(|node| node.name.as_str());
    let list = compress(names);
    let count = choice.nodes.len() as u32;
    let gpus: usize = choice.nodes.iter().map(|chosen| chosen.gpus.len()).sum();
    let gpus = gpus as u32;
    let what = match gpus {
        0 => plural(count, "node"),
        gpus => format!("{} on {}", plural(gpus, "GPU"), plural(count, "node")),
    };
    let mut text = format!("{what} ({list})");
    text += &match (choice.reached, domain) {
        (0, _) => ", all linked by NVLink".into(),
        (1, _) => ", in one node".into(),
        (_, Some(domain)) => format!(", inside {level} {domain}"),
        (_, None) => ", in no common domain of the fabric".into(),
    };
    if choice.bus_gbps > 0.0 {
        text += &format!("; ring bandwidth {} GB/s per GPU", number(choice.bus_gbps));
    }
    text += &domains_text(choice, level, domain, cluster);
    text += &lost(choice, request);
    text.push('.');
    if let Some(wish) = request.topology.as_ref().filter(|wish| wish.level != "any") {
        let short = rank(&wish.level, cluster).is_some_and(|wished| wished < choice.reached);
        if short {
            text += &format!(
                " No {} had room: --gpuos-topology={} would have waited.",
                domain_word(&wish.level),
                TopologyRequest {
                    level: wish.level.clone(),
                    required: true,
                }
            );
        }
    }
    text
}

/// How many domains had room, of how many.
fn domains_text(choice: &Choice, level: &str, domain: Option<&str>, cluster: &Cluster) -> String {
    let found = choice.feasible_domains;
    match (choice.reached, domain) {
        (0 | 1, _) if found == 1 => "; the only node with room for it".into(),
        (0 | 1, _) if found > 1 => format!("; {found} nodes had room for it"),
        (reached, Some(_)) if reached >= 2 => {
            let all = cluster.fabric.levels[reached as usize - 2].domains.len();
            match (found, all) {
                (_, 0 | 1) | (0, _) => String::new(),
                (1, all) => format!("; the only one of {all} {level} domains with room for it"),
                (found, all) => format!("; {found} of {all} {level} domains had room for it"),
            }
        }
        _ => String::new(),
    }
}

fn lost(choice: &Choice, request: &Request) -> String {
    let rule = match request.placement {
        Placement::Default | Placement::BestFit | Placement::Frag => "",
        Placement::Backfill if choice.decided == Criterion::Ends => {
            " (where other jobs last as long)"
        }
        Placement::Backfill => "",
        Placement::FirstFit => " (first fit)",
        Placement::Pack => " (packed)",
        Placement::Spread => " (spread)",
        Placement::Affinity(_) => " (near the named jobs)",
        Placement::AntiAffinity(_) => " (away from the named jobs)",
    };
    // The job's own GPUs are gone in any case; what counts against a place is the rest.
    let own: usize = choice.nodes.iter().map(|node| node.gpus.len()).sum();
    if own == 0 {
        return rule.into();
    }
    let beyond = number((choice.usability_lost - own as f32).max(0.0));
    match beyond.as_str() {
        "0" => format!("; breaks up nothing that later jobs could use better{rule}"),
        "1" => format!("; leaves 1 more idle GPU harder to use for later jobs{rule}"),
        lost => format!("; leaves {lost} more idle GPUs harder to use for later jobs{rule}"),
    }
}

/// The place of a level from narrow to wide, as [`Choice::reached`] counts. A level `nvlink`
/// of the fabric is wider than the one inside nodes.
fn rank(level: &str, cluster: &Cluster) -> Option<u32> {
    let fabric = cluster
        .fabric
        .levels
        .iter()
        .position(|other| other.name == level);
    match (level, fabric) {
        (_, Some(at)) => Some(at as u32 + 2),
        ("nvlink", None) => Some(0),
        ("node", None) => Some(1),
        _ => None,
    }
}

fn domain_word(level: &str) -> String {
    match level {
        "node" => "node".into(),
        "nvlink" => "NVLink domain".into(),
        level => format!("{level} domain"),
    }
}

/// Why a job that names no node waits, with the smallest change that would start it.
pub fn why_wait(wait: &Wait) -> String {
    why_wait_on(wait, 0)
}

/// The same of a job that names so many nodes. [`Wait::Never`] is about the nodes and GPUs that were offered when it
/// was found: whether those that are not in service would help is told by a [`super::Claim`].
pub fn why_wait_on(wait: &Wait, named: usize) -> String {
    match wait {
        // Less than all of them have room: then the numbers are about these.
        Wait::Capacity {
            feasible_nodes,
            needed_nodes,
            ..
        } if named > 0 && *needed_nodes as usize == named && feasible_nodes < needed_nodes => {
            let has = if *feasible_nodes == 1 { "has" } else { "have" };
            let of = plural(*needed_nodes, "node");
            format!(
                "Not enough room now: of the {of} that the job names, {feasible_nodes} {has} enough free GPUs, CPUs and \
                 memory. It starts when all of them have."
            )
        }
        Wait::Capacity {
            feasible_nodes,
            needed_nodes,
            free_gpus,
            needed_gpus,
        } => capacity(*feasible_nodes, *needed_nodes, *free_gpus, *needed_gpus),
        Wait::Level {
            level,
            best_domain,
            unit,
            have,
            need,
        } => {
            let unit = match unit {
                Unit::Nodes => "node",
                Unit::Gpus => "GPU",
            };
            let needed = plural(*need, unit);
            let nearest = match best_domain.as_str() {
                "" => format!("at most {have} of {needed} are free together"),
                best => format!("{best} comes nearest, with {have} of {needed} free"),
            };
            let short = need.saturating_sub(*have).max(1);
            let are = if short > 1 { "are" } else { "is" };
            format!(
                "The job requires one {}, and none has room now: {nearest}. It starts when \
                 {short} more {are} free there, or now with --gpuos-topology={level}:preferred.",
                domain_word(level),
            )
        }
        Wait::UnknownLevel { level, known } => {
            let known = match known.is_empty() {
                true => "no level besides node and any".into(),
                false => known.join(", "),
            };
            format!(
                "The job requires the level '{level}', which this cluster does not have: it has \
                 {known}. Submit it again with one of these, or with \
                 --gpuos-topology=any."
            )
        }
        Wait::Never { why } => {
            let why = why.to_string();
            let why = why.trim_end_matches('.');
            format!(
                "Not with the nodes and GPUs in service that Slurm offers now, even if they were idle: {why}."
            )
        }
    }
}

fn capacity(feasible: u32, needed: u32, free: u32, gpus: u32) -> String {
    let text = format!(
        "Not enough room now: {needed} needed with enough free GPUs, CPUs and memory, {feasible} \
         found; {} needed, {free} free for it.",
        plural(gpus, "GPU"),
        needed = plural(needed, "node"),
    );
    // What it needs at least: that it is enough depends on how it may be spread.
    let change = match (needed.saturating_sub(feasible), gpus.saturating_sub(free)) {
        (0, 0) => "It starts when Slurm offers the nodes to it".to_string(),
        (0, more) => format!("It needs {more} more free"),
        (nodes, _) => format!("It needs at least {} with room", more_nodes(nodes)),
    };
    format!("{text} {change}.")
}

fn more_nodes(nodes: u32) -> String {
    match nodes {
        1 => "1 more node".into(),
        nodes => format!("{nodes} more nodes"),
    }
}

pub(super) fn plural(count: u32, word: &str) -> String {
    match count {
        1 => format!("1 {word}"),
        count => format!("{count} {word}s"),
    }
}
