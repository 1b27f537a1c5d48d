//! Lines of gres.conf that slurmd leaves out, ends with, or takes in another way than they look.

use std::collections::BTreeMap;

use gpuos_config::slurm_conf::{GresConf, GresRecord};
use gpuos_host::slurm::files::SlurmFile;
use gpuos_model::hostlist::{compress, expand};

use super::about::{self, About};
use super::findings::Findings;
use super::{Context, toml};

const NAME: About = about::GRES_CONF;

pub fn check(look: &Context, file: &SlurmFile, gres: &GresConf, findings: &mut Findings) {
    let Some(lines) = toml::node_lines(look) else {
        return;
    };
    let names = lines.all().into_iter().map(|facts| facts.name);
    let known: BTreeMap<String, u32> = names.zip(lines.cores()).collect();
    let all: Vec<String> = known.keys().cloned().collect();
    // Each device of a node, with the line that names it.
    let mut named: BTreeMap<(&str, &str), &str> = BTreeMap::new();
    for record in gres.records.iter().filter(|record| record.is("gpu")) {
        let nodes = record.nodes.as_ref().unwrap_or(&all);
        let without: Vec<&str> = nodes
            .iter()
            .filter(|name| !gres.detects(name))
            .map(String::as_str)
            .collect();
        if !without.is_empty() {
            device(record, &without, findings);
        }
        count(record, findings);
        cores(record, nodes, &known, findings);
        links(record, findings);
        twice(record, nodes, &mut named, findings);
    }
    names_of_nodes(file, &known, lines.dynamic(), findings);
}

/// Without a device file slurmd leaves a GPU out.
fn device(record: &GresRecord, nodes: &[&str], findings: &mut Findings) {
    if !record.files.is_empty() {
        return;
    }
    findings
        .fail(
            NAME,
            format!(
                "a line of GRES gpu has no File=, so slurmd leaves it out: {}",
                compress(nodes.iter().copied())
            ),
            "write File=/dev/nvidia[0-7] with the device files of these GPUs (`gpuos discover` prints the line), or AutoDetect=nvml",
        )
        .at(&record.place)
        .why("slurmctld takes a node out that reports fewer GPUs than slurm.conf says");
}

/// Slurm ends with a count that is not that of the files.
fn count(record: &GresRecord, findings: &mut Findings) {
    let files = record.files.len() as u64;
    let other = record.count.filter(|count| *count != files);
    let is_counted = files > 0 && !record.is_one_device;
    if let Some(count) = other.filter(|_| is_counted) {
        findings
            .fail(
                NAME,
                format!("Count={count}, and File= names {files} device files"),
                "take Count= out: it is that of the files",
            )
            .at(&record.place)
            .why("slurmd ends with a line that contradicts itself");
    }
}

/// Cores that a node does not have.
fn cores(
    record: &GresRecord,
    nodes: &[String],
    known: &BTreeMap<String, u32>,
    findings: &mut Findings,
) {
    let list = &record.cores;
    if list.is_empty() {
        return;
    }
    let numbers = expand(&format!("[{list}]")).unwrap_or_default();
    let numbers: Option<Vec<u32>> = numbers.iter().map(|one| one.parse().ok()).collect();
    let Some(last) = numbers.and_then(|numbers| numbers.into_iter().max()) else {
        findings
            .fail(
                NAME,
                format!("Cores={list} is no list of cores"),
                "write numbers and ranges of cores, such as Cores=0-7",
            )
            .at(&record.place)
            .why("slurmd ends with a line that it does not understand");
        return;
    };
    let beyond: Vec<(&str, u32)> = nodes
        .iter()
        .filter_map(|node| {
            let cores = *known.get(node)?;
            (cores > 0 && last >= cores).then_some((node.as_str(), cores))
        })
        .collect();
    if let Some((_, cores)) = beyond.first() {
        findings
            .fail(
                NAME,
                format!(
                    "Cores={list}, and the cores of {} are 0-{}",
                    compress(beyond.iter().map(|(node, _)| *node)),
                    cores - 1
                ),
                format!("write cores from 0 to {}, not their threads (`gpuos discover` prints them), or correct Sockets= and CoresPerSocket=", cores - 1),
            )
            .at(&record.place)
            .why("slurmd does not take the line, and slurmctld takes the node out");
    }
}

/// What of `Links=` is no number for each GPU.
fn links(record: &GresRecord, findings: &mut Findings) {
    let list = &record.links;
    if list.is_empty() {
        return;
    }
    let entries: Vec<&str> = list.split(',').map(str::trim).collect();
    let shape = "a number of links to each GPU of the node in their order, -1 for the GPU itself, such as Links=-1,4,0,0";
    let mut wrong = |what: String| {
        findings
            .fail(
                NAME,
                format!("Links={list}: {what}"),
                format!("write {shape}"),
            )
            .at(&record.place)
            .why("slurmd does not take the line, or Slurm counts links to the wrong GPUs");
    };
    if let Some(at) = entries.iter().position(|entry| entry.is_empty()) {
        return wrong(format!("its entry {} is empty", at + 1));
    }
    let bad = entries
        .iter()
        .find(|entry| !entry.parse::<i32>().is_ok_and(|links| links >= -1));
    if let Some(bad) = bad {
        return wrong(format!("{bad} is no number of links"));
    }
    let own = entries.iter().filter(|entry| **entry == "-1").count();
    if own > 1 {
        wrong(format!(
            "-1 stands there {own} times, and a GPU is itself once"
        ));
    }
}

/// A device that two lines give to one node.
fn twice<'a>(
    record: &'a GresRecord,
    nodes: &'a [String],
    named: &mut BTreeMap<(&'a str, &'a str), &'a str>,
    findings: &mut Findings,
) {
    let mut told = false;
    for path in &record.files {
        for node in nodes {
            let Some(first) = named.insert((node, path), &record.place) else {
                continue;
            };
            if !std::mem::replace(&mut told, true) {
                findings
                    .fail(
                        NAME,
                        format!("{path} of {node} stands there twice"),
                        "name each device file once for a node",
                    )
                    .at(format!("{first}, {}", record.place))
                    .why("one GPU would be given to two jobs");
            }
        }
    }
}

/// Names that are none, and those of nodes that there are not.
fn names_of_nodes(
    file: &SlurmFile,
    known: &BTreeMap<String, u32>,
    dynamic: bool,
    findings: &mut Findings,
) {
    for line in &file.lines {
        let names = match line.get("nodename").map(expand) {
            None => continue,
            Some(Ok(names)) => names,
            Some(Err(why)) => {
                findings
                    .fail(NAME, format!("NodeName: {why}"), "correct the names")
                    .at(line.place());
                continue;
            }
        };
        let strange = names.iter().filter(|name| !known.contains_key(*name));
        let strange: Vec<&str> = strange.map(String::as_str).collect();
        if !strange.is_empty() && !known.is_empty() && !dynamic {
            findings
                .warn(
                    NAME,
                    format!(
                        "it names nodes that slurm.conf does not have: {}",
                        compress(strange)
                    ),
                    "correct the names, or take them out",
                )
                .at(line.place());
        }
    }
}
