//! Lines of gres.conf that slurmd leaves out, ends with, or takes in another way than they look.

use std::collections::BTreeMap;

use gpuos_config::slurm_conf::ConfLine;
use gpuos_host::slurm::files::SlurmFile;
use gpuos_model::hostlist::{compress, expand};

use super::Context;
use super::about::{self, About};
use super::findings::Findings;

const NAME: About = about::GRES_CONF;

/// What slurm.conf says of the cores of a node.
#[derive(Clone, Copy)]
struct Cores {
    /// Cores, not their threads.
    all: u32,
}

/// Whether slurmd finds GPUs itself by a line, or by the file.
pub fn detects(line: &ConfLine) -> Option<bool> {
    line.get("autodetect")
        .map(|how| !how.eq_ignore_ascii_case("off"))
}

/// Whether a line is of GPUs.
pub fn is_gpu(line: &ConfLine) -> bool {
    line.get("name")
        .is_some_and(|name| name.eq_ignore_ascii_case("gpu"))
}

/// The files that a line names, by any of Slurm's names for them.
pub fn files(line: &ConfLine) -> Option<&str> {
    ["file", "files", "multiplefiles"]
        .into_iter()
        .find_map(|key| line.get(key))
}

/// Stands for a slash while a path is read as a hostlist.
const SLASH: &str = "_slash_";

/// Paths of a `File=`: a hostlist but for its slashes.
fn paths(list: &str) -> Vec<String> {
    let names = list.replace(",/", ",");
    let names = names.trim_start_matches('/').replace('/', SLASH);
    let all = expand(&names).unwrap_or_default().into_iter();
    all.map(|name| format!("/{}", name.replace(SLASH, "/")))
        .collect()
}

pub fn check(look: &Context, file: &SlurmFile, findings: &mut Findings) {
    let cores = cores(look);
    let general = file
        .lines
        .iter()
        .filter(|line| line.get("nodename").is_none())
        .find_map(detects);
    let own: BTreeMap<String, bool> = file
        .lines
        .iter()
        .filter_map(|line| Some((line.get("nodename")?, detects(line)?)))
        .flat_map(|(names, detects)| {
            let names = expand(names).unwrap_or_default().into_iter();
            names.map(move |name| (name, detects))
        })
        .collect();
    // Each device of a node, with the line that names it.
    let mut named: BTreeMap<(String, String), String> = BTreeMap::new();
    for line in file.lines.iter().filter(|line| is_gpu(line)) {
        let all: Vec<String> = match line.get("nodename") {
            Some(names) => expand(names).unwrap_or_default(),
            None => cores.keys().cloned().collect(),
        };
        let found = |name: &String| own.get(name).copied().or(general).unwrap_or(false);
        let without: Vec<&str> = all
            .iter()
            .filter(|name| !found(name))
            .map(String::as_str)
            .collect();
        if !without.is_empty() {
            device(line, &without, findings);
        }
        count(line, findings);
        cores_of(line, &all, &cores, findings);
        links(line, findings);
        if let Some(list) = files(line) {
            twice(line, &all, list, &mut named, findings);
        }
    }
    strangers(look, file, findings);
}

/// Cores of the nodes of slurm.conf, where it says them.
fn cores(look: &Context) -> BTreeMap<String, Cores> {
    let mut cores = BTreeMap::new();
    let mut default: Option<&ConfLine> = None;
    for line in look
        .conf
        .into_iter()
        .flat_map(|conf| conf.table("nodename"))
    {
        let name = line.get("nodename").unwrap_or_default();
        if name.eq_ignore_ascii_case("default") {
            default = Some(line);
            continue;
        }
        let number = |key: &str| {
            let written = line.get(key).or_else(|| default?.get(key));
            written.and_then(|number| number.parse::<u32>().ok())
        };
        let sockets = number("sockets").or_else(|| {
            let boards = number("boards").unwrap_or(1);
            Some(boards.saturating_mul(number("socketsperboard")?))
        });
        let threads = number("threadspercore").unwrap_or(1).max(1);
        let by_sockets = sockets.zip(number("corespersocket"));
        let all = match by_sockets {
            Some((sockets, each)) => sockets.saturating_mul(each),
            None => number("cpus").or_else(|| number("procs")).unwrap_or(0) / threads,
        };
        for node in expand(name).unwrap_or_default() {
            cores.insert(node, Cores { all });
        }
    }
    cores
}

/// Without a device file slurmd leaves a GPU out.
fn device(line: &ConfLine, nodes: &[&str], findings: &mut Findings) {
    if files(line).is_some() {
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
        .at(line.place())
        .why("slurmctld takes a node out that reports fewer GPUs than slurm.conf says");
}

/// Slurm ends with a count that is not that of the files.
fn count(line: &ConfLine, findings: &mut Findings) {
    let (Some(count), Some(list)) = (line.get("count"), line.get("file").or(line.get("files")))
    else {
        return;
    };
    let files = paths(list).len();
    if count.parse::<usize>().is_ok_and(|count| count != files) {
        findings
            .fail(
                NAME,
                format!("Count={count}, and File= names {files} device files"),
                "take Count= out: it is that of the files",
            )
            .at(line.place())
            .why("slurmd ends with a line that contradicts itself");
    }
}

/// Cores that a node does not have.
fn cores_of(
    line: &ConfLine,
    nodes: &[String],
    known: &BTreeMap<String, Cores>,
    findings: &mut Findings,
) {
    let Some(list) = line.get("cores").or(line.get("cpus")) else {
        return;
    };
    let numbers = expand(&format!("[{list}]")).unwrap_or_default();
    let numbers: Option<Vec<u32>> = numbers.iter().map(|one| one.parse().ok()).collect();
    let Some(last) = numbers.and_then(|numbers| numbers.into_iter().max()) else {
        findings
            .fail(
                NAME,
                format!("Cores={list} is no list of cores"),
                "write numbers and ranges of cores, such as Cores=0-7",
            )
            .at(line.place())
            .why("slurmd ends with a line that it does not understand");
        return;
    };
    let beyond: Vec<(&str, u32)> = nodes
        .iter()
        .filter_map(|node| {
            let cores = known.get(node)?.all;
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
            .at(line.place())
            .why("slurmd does not take the line, and slurmctld takes the node out");
    }
}

/// What of `Links=` is no number for each GPU.
fn links(line: &ConfLine, findings: &mut Findings) {
    let Some(list) = line.get("links").or(line.get("link")) else {
        return;
    };
    let entries: Vec<&str> = list.split(',').map(str::trim).collect();
    let shape = "a number of links to each GPU of the node in their order, -1 for the GPU itself, such as Links=-1,4,0,0";
    let mut wrong = |what: String| {
        findings
            .fail(
                NAME,
                format!("Links={list}: {what}"),
                format!("write {shape}"),
            )
            .at(line.place())
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
fn twice(
    line: &ConfLine,
    nodes: &[String],
    list: &str,
    named: &mut BTreeMap<(String, String), String>,
    findings: &mut Findings,
) {
    let mut told = false;
    for path in paths(list) {
        for node in nodes {
            let key = (node.clone(), path.clone());
            let Some(first) = named.insert(key, line.place()) else {
                continue;
            };
            if !std::mem::replace(&mut told, true) {
                findings
                    .fail(
                        NAME,
                        format!("{path} of {node} stands there twice"),
                        "name each device file once for a node",
                    )
                    .at(format!("{first}, {}", line.place()))
                    .why("one GPU would be given to two jobs");
            }
        }
    }
}

/// Names of nodes that there are not.
fn strangers(look: &Context, file: &SlurmFile, findings: &mut Findings) {
    let known = cores(look);
    let dynamic = look
        .conf
        .is_some_and(|conf| conf.get("maxnodecount").is_some());
    if known.is_empty() || dynamic {
        return;
    }
    for line in &file.lines {
        let names = line.get("nodename").map(expand);
        let Some(Ok(names)) = names else { continue };
        let strange: Vec<&str> = names
            .iter()
            .filter(|name| !known.contains_key(*name))
            .map(String::as_str)
            .collect();
        if !strange.is_empty() {
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
