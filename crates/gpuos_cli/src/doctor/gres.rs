//! What slurm.conf and gres.conf say of GPUs, one against the other.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use gpuos_config::options::parse_gres;
use gpuos_config::slurm_conf::ConfLine;
use gpuos_host::slurm::files::SlurmFile;
use gpuos_model::hostlist::{compress, expand};

use super::Context;
use super::about::{self, About};
use super::findings::{Findings, Status};
use super::{gres_lines, plugins};

const NAME: About = about::GRES_CONF;

/// What slurm.conf says of a node.
#[derive(Default)]
struct Wanted {
    gpus: u64,
    types: BTreeSet<String>,
    place: String,
}

/// What gres.conf says of a node.
#[derive(Default, Clone)]
struct GresConfNode {
    gpus: u64,
    types: BTreeSet<String>,
    places: Vec<String>,
    detect: bool,
    /// A line of GPUs names no device file.
    without_file: bool,
}

pub fn check(look: &Context, findings: &mut Findings) {
    let Some(conf) = look.conf else { return };
    let known: BTreeSet<&str> = look.settings.list("GresTypes").into_iter().collect();
    let mut nodes: BTreeMap<String, Wanted> = BTreeMap::new();
    let mut strange: BTreeMap<String, String> = BTreeMap::new();
    let mut default = String::new();
    for line in conf.table("nodename") {
        let name = line.get("nodename").unwrap_or_default();
        let own = line.get("gres");
        if name.eq_ignore_ascii_case("default") {
            default = own.unwrap_or(&default).to_string();
            continue;
        }
        let gres = own.unwrap_or(&default);
        if gres.is_empty() || gres == "(null)" {
            continue;
        }
        let all = match parse_gres("Gres", gres) {
            Ok(all) => all,
            Err(why) => {
                findings
                    .fail(about::GRES, format!("{why}"), "correct Gres= of the node")
                    .at(line.place());
                continue;
            }
        };
        for one in all.iter().filter(|one| !known.contains(one.name.as_str())) {
            strange
                .entry(one.name.clone())
                .or_insert_with(|| line.place());
        }
        let gpus: Vec<_> = all.iter().filter(|one| one.name == "gpu").collect();
        for node in expand(name).unwrap_or_default() {
            let wanted = Wanted {
                gpus: gpus.iter().map(|one| one.count).sum(),
                types: gpus
                    .iter()
                    .filter_map(|one| one.gres_type.clone())
                    .collect(),
                place: line.place(),
            };
            nodes.insert(node, wanted);
        }
    }
    for (name, place) in strange {
        let types: Vec<&str> = known.iter().copied().collect();
        findings
            .fail(
                about::GRES_TYPES,
                format!("Gres= has {name}, and GresTypes ({}) does not", types.join(",")),
                format!("add it: GresTypes={}", types.iter().copied().chain([name.as_str()]).collect::<Vec<_>>().join(",")),
            )
            .at(place)
            .why("slurmctld does not count a GRES of a type that it does not know, and takes nodes out for it");
    }
    nodes.retain(|_, wanted| wanted.gpus > 0);
    if nodes.is_empty() {
        return;
    }
    let path = look.settings.directory().join("gres.conf");
    match SlurmFile::read(look.machine, &path) {
        Ok(Some(file)) => {
            for fault in &file.faults {
                let check =
                    findings.fail(NAME, &fault.message, "mend the line: slurmd ends with it");
                check.at(format!("{}:{}", fault.file, fault.line));
            }
            gres_lines::check(look, &file, findings);
            compare(&nodes, &file, findings);
            detected(look, &file, findings);
        }
        Ok(None) => {
            findings
                .add(
                    NAME,
                    Status::Warn,
                    format!("there is no {}: slurmd knows no device files of the GPUs of {}", path.display(), compress(nodes.keys().map(String::as_str))),
                    "write gres.conf on the nodes (`gpuos discover` prints it), and the same beside this slurm.conf",
                )
                .at(path.display())
                .why("jobs are told numbers of GPUs that nobody checked, and nothing keeps them from those of others");
        }
        Err(why) => {
            findings
                .warn(NAME, why, "make it a file that can be read")
                .at(path.display());
        }
    }
}

fn add(given: &mut GresConfNode, line: &ConfLine) {
    if let Some(how) = line.get("autodetect") {
        given.detect = !how.eq_ignore_ascii_case("off");
    }
    if !line
        .get("name")
        .is_some_and(|name| name.eq_ignore_ascii_case("gpu"))
    {
        return;
    }
    let count = line
        .get("count")
        .and_then(|count| count.parse::<u64>().ok());
    let count = match gres_lines::files(line).map(files_of) {
        Some(files) => files,
        None => count.unwrap_or(1),
    };
    given.gpus += count;
    given.without_file |= gres_lines::files(line).is_none();
    given.types.extend(line.get("type").map(str::to_string));
    given.places.push(line.place());
}

/// How many files a `File=` names: a path is a hostlist but for its slashes.
fn files_of(list: &str) -> u64 {
    let names = list.replace(",/", ",");
    let names = names.trim_start_matches('/').replace('/', "-");
    expand(&names).map_or(0, |all| all.len() as u64)
}

fn compare(nodes: &BTreeMap<String, Wanted>, file: &SlurmFile, findings: &mut Findings) {
    let mut general = GresConfNode::default();
    let mut own: BTreeMap<String, GresConfNode> = BTreeMap::new();
    for line in &file.lines {
        match line.get("nodename").map(expand) {
            None => add(&mut general, line),
            Some(Ok(names)) => {
                for name in names.into_iter().filter(|name| nodes.contains_key(name)) {
                    add(own.entry(name).or_default(), line);
                }
            }
            Some(Err(why)) => {
                let check = findings.fail(NAME, format!("NodeName: {why}"), "correct the names");
                check.at(line.place());
            }
        }
    }
    // What is wrong, where, and for whom.
    let mut wrong: BTreeMap<(Status, String, String), Vec<&str>> = BTreeMap::new();
    let mut right = 0;
    for (name, wanted) in nodes {
        let mut given = general.clone();
        if let Some(more) = own.get(name) {
            given.gpus += more.gpus;
            given.types.extend(more.types.iter().cloned());
            given.places.extend(more.places.iter().cloned());
            given.detect |= more.detect;
            given.without_file |= more.without_file;
        }
        // A node may have a gres.conf of its own; what slurmd finds itself nobody knows here.
        if given.gpus == 0 || given.detect {
            continue;
        }
        // What slurmd leaves out was told with its line.
        if given.without_file {
            continue;
        }
        let place = format!("{}, {}", wanted.place, given.places.join(", "));
        if given.gpus != wanted.gpus {
            let what = format!(
                "slurm.conf gives {} GPUs, gres.conf {}",
                wanted.gpus, given.gpus
            );
            let status = if given.gpus < wanted.gpus {
                Status::Fail
            } else {
                Status::Warn
            };
            wrong.entry((status, what, place)).or_default().push(name);
        } else if !wanted.types.is_empty() && !given.types.is_empty() && wanted.types != given.types
        {
            let list =
                |types: &BTreeSet<String>| types.iter().cloned().collect::<Vec<_>>().join(", ");
            let what = format!(
                "slurm.conf has GPUs of type {}, gres.conf of type {}",
                list(&wanted.types),
                list(&given.types)
            );
            wrong
                .entry((Status::Fail, what, place))
                .or_default()
                .push(name);
        } else {
            right += 1;
        }
    }
    for ((status, what, place), names) in wrong {
        findings
            .add(NAME, status, format!("{}: {what}", compress(names)), "make Gres= in slurm.conf and File= and Type= in gres.conf agree (`slurmd -G` on the node)")
            .at(place)
            .why("slurmctld takes out a node with fewer GPUs than slurm.conf says, and leaves further ones unused");
    }
    if right > 0 && !findings.found(NAME) {
        findings.ok(
            NAME,
            format!(
                "as in slurm.conf for {right} of {} nodes with GPUs",
                nodes.len()
            ),
        );
    }
}

/// AutoDetect needs a plugin, and on the nodes NVIDIA's library.
fn detected(look: &Context, file: &SlurmFile, findings: &mut Findings) {
    let how = file
        .lines
        .iter()
        .find_map(|line| Some((line.get("autodetect")?.to_ascii_lowercase(), line.place())));
    let Some((how, place)) = how.filter(|(how, _)| how != "off") else {
        return;
    };
    let library = match how.as_str() {
        "nvml" => "gpu_nvml.so",
        "rsmi" => "gpu_rsmi.so",
        "oneapi" => "gpu_oneapi.so",
        "nvidia" => "gpu_nvidia.so",
        "nrt" => "gpu_nrt.so",
        other => {
            findings
                .fail(
                    NAME,
                    format!("AutoDetect={other} is not known"),
                    "write nvml, nvidia or off",
                )
                .at(place);
            return;
        }
    };
    let dirs = plugins::folders(look.machine, look.settings);
    if !dirs.is_empty() && plugins::find(look.machine, &dirs, library).is_none() {
        findings
            .warn(
                NAME,
                format!("AutoDetect={how}: there is no {library} in PluginDir ({})", plugins::shown(&dirs)),
                "install the Slurm package that has it, or write File= and Cores= (`gpuos discover` prints them) and AutoDetect=off",
            )
            .at(place)
            .why("slurmd then finds no GPU, and its node is taken out");
        return;
    }
    let here = look.machine.stat(Path::new("/dev/nvidiactl")).is_ok();
    if how == "nvml"
        && here
        && gpuos_host::libraries::Libraries::of(look.machine)
            .find("libnvidia-ml.so.1")
            .is_none()
    {
        findings
            .warn(
                NAME,
                "AutoDetect=nvml, and this machine has no libnvidia-ml.so.1",
                "install NVIDIA's driver with its library",
            )
            .at(place)
            .why("slurmd then finds no GPU, and its node is taken out");
    }
}
