//! gpuos.toml, the fabric, the node types, and whether Slurm counts the GPUs as described.

use gpuos_host::slurm::Running;
use gpuos_host::slurm::site::Site;
use gpuos_model::cluster::NO_DOMAIN;
use gpuos_model::hostlist::compress;
use gpuos_model::node_types::NodeFacts;
use gpuos_placement::cost::{Objective, Objectives};
use std::collections::{BTreeMap, BTreeSet};

use super::about::{self, About};
use super::findings::{Findings, others};
use super::{Context, hardware, nvme, shards, slices};

const NAME: About = about::GPUOS_TOML;

/// How many wrong names are shown one by one.
const SHOWN: usize = 5;

pub fn check(look: &Context, findings: &mut Findings) {
    let Some(running) = look.running else { return };
    let machine = look.machine;
    let site = match Site::read(machine, look.config) {
        Ok(site) => site,
        Err(e) => {
            // A mistake in the file itself was told before.
            if !findings.found(NAME) {
                let check = findings.fail(
                    NAME,
                    format!("{e:#}"),
                    "mend the line; packaging/gpuos.toml.sample documents every key",
                );
                check.why("until then select/gpuos passes every call through");
            }
            return;
        }
    };
    let shown = site.nodes.iter().map(|node| &node.name);
    let names: Vec<&str> = shown.chain(&site.hidden).map(String::as_str).collect();
    let partitions: Vec<&str> = site
        .nodes
        .iter()
        .flat_map(|node| node.partitions.iter().map(String::as_str))
        .collect();
    let facts = facts(&site);
    let mut unknown = site.config.unknown_nodes(&names);
    unknown.extend(site.config.unknown_levels(&site.cluster));
    // Which partitions have nodes that are not shown, nobody says.
    if site.hidden.is_empty() {
        unknown.extend(site.config.unknown_partitions(&partitions));
    }
    for error in unknown.iter().take(SHOWN) {
        let check = findings.warn(NAME, error.to_string(), "correct the name, or take it out");
        check.at(format!("{}:{}", error.file, error.line));
    }
    if unknown.len() > SHOWN {
        let message = format!(
            "{} more names that this cluster does not have",
            unknown.len() - SHOWN
        );
        findings.warn(NAME, message, "correct them, or take them out");
    }
    for error in site.config.foreign_types(&facts) {
        findings
            .warn(NAME, error.to_string(), "write the type of these GPUs")
            .at(format!("{}:{}", error.file, error.line))
            .why("places are weighed by the links and rates of another machine");
    }
    for (kind, nodes) in site.config.unknown_gpus(&facts) {
        findings
            .warn(
                about::NODE_TYPES,
                format!("{}: no node type is for GPUs of type {kind}", compress(nodes.iter().map(String::as_str))),
                "correct the type in Gres= and gres.conf, or describe it: `gpuos discover` on the node prints a [[node-type]]",
            )
            .at(look.settings.slurm_conf().display())
            .why("nothing is known of their links, memory and rates, so all places in such a node count alike");
    }
    if let (Some(file), false) = (&site.config_file, findings.found(NAME)) {
        findings.ok(NAME, file.display().to_string());
    }
    policy(&site, running, findings);
    fabric(&site, findings);
    node_types(&site, findings);
    states(&site, findings);
    slices::check(machine, &site, running, findings);
    shards::check(&site, running, findings);
    nvme::check(&site, findings);
    hardware::check(machine, &site, &look.args.hardware, findings);
}

/// What Slurm says of the GPUs of each node that has those of one type.
fn facts(site: &Site) -> Vec<NodeFacts> {
    let nodes = site.nodes.iter();
    let facts = nodes.filter_map(|node| match &node.gpus[..] {
        [(kind, _)] => Some(NodeFacts {
            name: node.name.clone(),
            gpus: node.gpu_count(),
            gres_type: kind.clone(),
            ..NodeFacts::default()
        }),
        _ => None,
    });
    facts.collect()
}

/// What `[policy]` asks for and this Slurm, or this gpuos.toml, cannot give.
fn policy(site: &Site, running: &Running, findings: &mut Findings) {
    let policy = &site.config.policy;
    let has = |key: &str, value: &str| running.get(key).is_some_and(|is| is.ends_with(value));
    if policy.rules.iter().any(|rule| rule.qos.is_some())
        && !has("AccountingStorageType", "slurmdbd")
    {
        findings.warn(
            about::POLICY,
            "[[policy.rule]] with qos = holds for no job: without slurmdbd jobs have no QOS",
            "set AccountingStorageType=accounting_storage/slurmdbd, or make the rules for partitions",
        );
    }
    let rules = policy.rules.iter().filter_map(|rule| rule.objectives);
    let all: Vec<Objectives> = policy.objectives.into_iter().chain(rules).collect();
    let weighed = |of| all.iter().any(|objectives| objectives.weight(of) > 0);
    let share = running.get("PriorityWeightFairShare").unwrap_or("0");
    if weighed(Objective::Fairness) && (!has("PriorityType", "multifactor") || share == "0") {
        findings.warn(
            about::POLICY,
            "the objective fairness goes by the jobs' priority, and Slurm's says nothing of fair shares here",
            "set PriorityType=priority/multifactor and PriorityWeightFairShare, or weigh something else",
        );
    }
    let types = site
        .cluster
        .nodes
        .iter()
        .filter_map(|node| node.node_type.as_deref());
    let free: BTreeSet<&str> = types
        .filter(|kind| kind.figures.price_milli == 0)
        .map(|kind| kind.name.as_str())
        .collect();
    if weighed(Objective::Cost) && !free.is_empty() {
        let names: Vec<&str> = free.into_iter().collect();
        findings.warn(
            about::POLICY,
            format!("the objective cost has no price for {}: it counts by its throughput", names.join(", ")),
            "write price-per-gpu-hour into a [[node-type]] with base = the type, and name that in [[nodes]]",
        );
    }
}

fn fabric(site: &Site, findings: &mut Findings) {
    if let Some(note) = site.notes.first() {
        findings.warn(
            about::FILES,
            format!("{note}{}", others(site.notes.len())),
            "mend the line that it names; for a file that cannot be read run `gpuos doctor` on the host of \
             slurmctld, as a user who may read it",
        );
    }
    let strangers = site.topology_strangers.iter().map(String::as_str);
    if !site.topology_strangers.is_empty() {
        findings.warn(
            about::TOPOLOGY_FILE,
            format!(
                "it names nodes that slurmctld does not have: {}",
                compress(strangers)
            ),
            "correct the names, or take them out; gpuos leaves these nodes out of the fabric",
        );
    }
    let levels = &site.cluster.fabric.levels;
    let Some(narrowest) = levels.first() else {
        if site.nodes.len() > 1 {
            findings.note(
                about::FABRIC,
                "no fabric is known: gangs are placed without regard to switches",
                "describe it in gpuos.toml ([fabric]), or in topology.conf with TopologyPlugin=topology/tree",
            );
        }
        return;
    };
    let outside: Vec<&str> = site
        .nodes
        .iter()
        .enumerate()
        .filter(|(at, node)| {
            node.gpu_count() > 0 && narrowest.domain_of.get(*at).is_none_or(|d| *d == NO_DOMAIN)
        })
        .map(|(_, node)| node.name.as_str())
        .collect();
    let shape: Vec<String> = levels
        .iter()
        .map(|l| format!("{} {}", l.domains.len(), l.name))
        .collect();
    let shape = shape.join(", ");
    let empty: Vec<&str> = levels
        .iter()
        .flat_map(|level| {
            let used: BTreeSet<u32> = level.domain_of.iter().copied().collect();
            let all = level.domains.iter().enumerate();
            all.filter(move |(at, _)| !used.contains(&(*at as u32)))
                .map(|(_, name)| name.as_str())
        })
        .collect();
    // Nodes that are not shown may be below those that look empty.
    let empty = if site.hidden.is_empty() {
        empty
    } else {
        Vec::new()
    };
    if !empty.is_empty() {
        findings.warn(
            about::FABRIC,
            format!("no node of slurmctld is below {}", empty.join(", ")),
            "correct the names of its nodes, or take it out",
        );
    }
    if !outside.is_empty() {
        findings.warn(
            about::FABRIC,
            format!("{shape}; in no {}: {}", narrowest.name, compress(outside)),
            "add these nodes to a switch, or leave them if they have none",
        );
    } else if empty.is_empty() {
        findings.ok(about::FABRIC, shape);
    }
}

fn node_types(site: &Site, findings: &mut Findings) {
    let mut by_type: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut untyped = Vec::new();
    for (node, model) in site.nodes.iter().zip(&site.cluster.nodes) {
        match &model.node_type {
            Some(t) => by_type.entry(&t.name).or_default().push(&node.name),
            None if node.gpu_count() > 0 => untyped.push(node.name.as_str()),
            None => {}
        }
    }
    if !untyped.is_empty() {
        findings.fail(
            about::NODE_TYPES,
            format!("no node type for {}", compress(untyped)),
            "name one in gpuos.toml: [[nodes]] match = \"…\", type = \"…\"",
        );
    } else if by_type.is_empty() {
        findings.warn(
            about::NODE_TYPES,
            "no node has a GPU that Slurm knows of",
            "set GresTypes=gpu and Gres=gpu:… in slurm.conf, and File= in gres.conf",
        );
    } else {
        let list: Vec<String> = by_type
            .into_iter()
            .map(|(t, nodes)| format!("{t} ({})", compress(nodes)))
            .collect();
        findings.ok(about::NODE_TYPES, list.join(", "));
    }
}

/// Nodes that slurmctld took out because what they report is not what slurm.conf says.
fn states(site: &Site, findings: &mut Findings) {
    let wrong = |state: &String| matches!(state.as_str(), "INVAL" | "INVALID_REG");
    let invalid: Vec<_> = site
        .nodes
        .iter()
        .filter(|node| node.states.iter().any(wrong) || node.reason.starts_with("gres/gpu count"))
        .collect();
    match invalid.first() {
        Some(first) => findings.fail(
            about::GPU_COUNTS,
            format!(
                "{}: what slurmd reports is not what slurm.conf says: {}",
                compress(invalid.iter().map(|node| node.name.as_str())),
                first.reason
            ),
            "make Gres= in slurm.conf and File= in gres.conf agree with the GPUs of the node (`slurmd -G` there), then `scontrol update NodeName=… State=RESUME`",
        ),
        None => {
            let gpus: usize = site.nodes.iter().map(|node| node.gpu_count()).sum();
            findings.ok(about::GPU_COUNTS, format!("{gpus} GPUs on {} nodes, as in slurm.conf", site.nodes.len()))
        }
    };
    if !site.hidden.is_empty() {
        let names = site.hidden.iter().map(String::as_str);
        findings
            .note(
                about::GPU_COUNTS,
                format!("slurmctld does not show nodes of slurm.conf: {}", compress(names)),
                "before Slurm 23.02 PrivateData=cloud in slurm.conf shows nodes of a cloud that are powered down; those of State=FUTURE \
                 are shown when they register",
            )
            .why("gpuos plan, why and top go without them");
    }
}
