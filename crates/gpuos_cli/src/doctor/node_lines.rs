//! Lines of slurm.conf that name nodes and partitions, one against the other.

use std::collections::{BTreeMap, BTreeSet};

use gpuos_config::slurm_conf::ConfLine;
use gpuos_host::slurm::files::SlurmFile;
use gpuos_model::hostlist::{compress, expand};

use super::Context;
use super::about::{self, About};
use super::findings::Findings;

const NAME: About = about::NODES;

/// Names that stand for all nodes of a file, in lower case.
const ALL: &str = "all";

pub fn check(look: &Context, findings: &mut Findings) {
    let Some(conf) = look.conf else { return };
    let before = findings.0.len();
    let nodes = nodes(conf, findings);
    let sets: BTreeSet<String> = conf
        .table("nodeset")
        .filter_map(|line| line.get("nodeset"))
        .flat_map(|names| expand(names).unwrap_or_default())
        .collect();
    let dynamic = conf.get("maxnodecount").is_some();
    if !nodes.is_empty() && !dynamic {
        partitions(look, conf, (&nodes, &sets), findings);
    }
    memory(look, conf, findings);
    if findings.0.len() == before && !nodes.is_empty() {
        let count = conf.table("partitionname").count();
        findings.ok(
            NAME,
            format!(
                "{} nodes, {}",
                nodes.len(),
                crate::table::count(count, "partition")
            ),
        );
    }
}

fn is_default(line: &ConfLine, key: &str) -> bool {
    line.get(key)
        .is_some_and(|name| name.eq_ignore_ascii_case("default"))
}

/// All nodes, with the line of each.
fn nodes(conf: &SlurmFile, findings: &mut Findings) -> BTreeMap<String, String> {
    let mut nodes: BTreeMap<String, String> = BTreeMap::new();
    for line in conf
        .table("nodename")
        .filter(|line| !is_default(line, "nodename"))
    {
        let list = line.get("nodename").unwrap_or_default();
        let Ok(names) = expand(list) else {
            findings
                .fail(
                    NAME,
                    format!("NodeName={list} is no list of names"),
                    "write names such as n1 or n[1-16]",
                )
                .at(line.place())
                .why("Slurm's daemons and commands end with it");
            continue;
        };
        addresses(line, &names, findings);
        cpus(line, findings);
        let twice: Vec<&str> = names
            .iter()
            .filter(|name| nodes.contains_key(*name))
            .map(String::as_str)
            .collect();
        if let Some(first) = twice.first() {
            let other = nodes.get(*first).cloned().unwrap_or_default();
            findings
                .fail(
                    NAME,
                    format!("{} stand in two NodeName= lines", compress(twice)),
                    "keep each node in one line",
                )
                .at(format!("{other}, {}", line.place()))
                .why("slurmctld ends with a node that is named twice");
        }
        nodes.extend(names.into_iter().map(|name| (name, line.place())));
    }
    nodes
}

/// Addresses and host names: as many as nodes, or one for all of them.
fn addresses(line: &ConfLine, names: &[String], findings: &mut Findings) {
    for (key, word) in [
        ("nodeaddr", "NodeAddr"),
        ("nodehostname", "NodeHostname"),
        ("port", "Port"),
    ] {
        let Some(list) = line.get(key) else { continue };
        let given = expand(list).map_or(0, |all| all.len());
        if given > 1 && given != names.len() {
            findings
                .fail(
                    NAME,
                    format!("{word}={list} has {given} values for {} nodes", names.len()),
                    format!("write as many as nodes, in the same order, such as {word}=…[1-{}], or one for all", names.len()),
                )
                .at(line.place())
                .why("Slurm's daemons and commands end with it");
        }
        let ports = line.get("port").and_then(|ports| expand(ports).ok());
        let of_one_port = ports.is_none_or(|ports| ports.len() < 2);
        if key == "nodeaddr" && given == 1 && names.len() > 1 && of_one_port {
            findings
                .fail(
                    NAME,
                    format!(
                        "NodeAddr={list} is the address of all {} nodes of the line, on one port",
                        names.len()
                    ),
                    format!("write an address for each: NodeAddr=…[1-{}], or leave NodeAddr= out where names can be resolved", names.len()),
                )
                .at(line.place())
                .why("slurmctld takes one slurmd for all of them, and jobs do not reach the others");
        }
    }
}

/// CPUs that the sockets, cores and threads of the same line do not have.
fn cpus(line: &ConfLine, findings: &mut Findings) {
    let number = |key: &str| line.get(key).and_then(|text| text.parse::<u64>().ok());
    let (Some(cpus), Some(sockets), Some(cores)) = (
        number("cpus").or_else(|| number("procs")),
        number("sockets"),
        number("corespersocket"),
    ) else {
        return;
    };
    let threads = number("threadspercore").unwrap_or(1);
    let cores = sockets.saturating_mul(cores);
    // A CPU may be a core, or a thread of one.
    if cpus != cores && cpus != cores.saturating_mul(threads) {
        findings
            .warn(
                NAME,
                format!("CPUs={cpus}, and Sockets, CoresPerSocket and ThreadsPerCore come to {}", cores.saturating_mul(threads)),
                "write what `slurmd -C` on the node prints, or leave CPUs= out",
            )
            .at(line.place())
            .why("Slurm takes one of the two for wrong, and Cores= of gres.conf may be beyond the node");
    }
}

fn partitions(
    look: &Context,
    conf: &SlurmFile,
    (nodes, sets): (&BTreeMap<String, String>, &BTreeSet<String>),
    findings: &mut Findings,
) {
    let mut placed: BTreeSet<String> = BTreeSet::new();
    let mut all = false;
    let mut default = "";
    let mut any = false;
    for line in conf.table("partitionname") {
        let own = line.get("nodes");
        if is_default(line, "partitionname") {
            default = own.unwrap_or(default);
            continue;
        }
        any = true;
        let list = own.unwrap_or(default);
        let name = line.get("partitionname").unwrap_or_default();
        if list.is_empty() {
            findings
                .warn(
                    NAME,
                    format!("partition {name} has no nodes"),
                    "write Nodes= with names of nodes, or Nodes=ALL",
                )
                .at(line.place());
            continue;
        }
        let names = expand(list).unwrap_or_default();
        if names.iter().any(|name| name.eq_ignore_ascii_case(ALL)) {
            all = true;
            continue;
        }
        let strange: Vec<&str> = names
            .iter()
            .filter(|name| !nodes.contains_key(*name) && !sets.contains(*name))
            .map(String::as_str)
            .collect();
        // Nodes of a set may be given by features.
        all |= names.iter().any(|name| sets.contains(name));
        if !strange.is_empty() {
            findings
                .fail(
                    NAME,
                    format!(
                        "partition {name} names nodes that slurm.conf does not have: {}",
                        compress(strange)
                    ),
                    "correct Nodes=, or add the nodes",
                )
                .at(line.place())
                .why("slurmctld ends with a node that it does not know");
        }
        placed.extend(names);
    }
    if !any {
        findings
            .warn(
                NAME,
                "slurm.conf has no partition: no job can run",
                "add PartitionName=main Nodes=ALL Default=YES State=UP",
            )
            .at(look.settings.slurm_conf().display());
        return;
    }
    let alone: Vec<&str> = nodes
        .keys()
        .filter(|node| !placed.contains(*node))
        .map(String::as_str)
        .collect();
    if !all && !alone.is_empty() {
        findings
            .warn(
                NAME,
                format!("in no partition: {}", compress(alone)),
                "add them to Nodes= of a partition",
            )
            .at(look.settings.slurm_conf().display())
            .why("no job ever runs there");
    }
}

/// Memory that is counted, and not said.
fn memory(look: &Context, conf: &SlurmFile, findings: &mut Findings) {
    let text = |line: &ConfLine, key: &str| line.get(key).map(str::to_string);
    for key in ["DefMemPerCPU", "DefMemPerNode", "DefMemPerGPU"] {
        let given = look.settings.get(key).unwrap_or("0");
        // slurmctld shows what is not set in words.
        let Some(mib) = given.parse::<u64>().ok().filter(|mib| *mib > 0) else {
            continue;
        };
        let lines = conf.table("nodename");
        let smallest = lines.filter_map(|line| text(line, "realmemory")?.parse::<u64>().ok());
        if let Some(smallest) = smallest.min().filter(|smallest| *smallest < mib) {
            findings
                .warn(
                    NAME,
                    format!("{key}={mib}, and a node has RealMemory={smallest}"),
                    format!(
                        "lower {key}, or correct RealMemory= (`slurmd -C` on the node prints it)"
                    ),
                )
                .at(look.place(&key.to_ascii_lowercase()))
                .why("a job that says nothing of memory never starts there");
        }
    }
}
