//! What slurm.conf and gres.conf say of GPUs, one against the other.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use gpuos_config::options::parse_gres;
use gpuos_config::slurm_conf::{GresConf, GresRecord};
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
            let gres = GresConf::of(&file.lines);
            gres_lines::check(look, &file, &gres, findings);
            compare(&nodes, &gres, findings);
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

fn compare(nodes: &BTreeMap<String, Wanted>, gres: &GresConf, findings: &mut Findings) {
    let records = gres.by_node();
    // What is wrong, where, and for whom.
    let mut wrong: BTreeMap<(Status, String, String), Vec<&str>> = BTreeMap::new();
    let mut right = 0;
    for (name, wanted) in nodes {
        let given: Vec<&GresRecord> = records.of(name).filter(|one| one.is("gpu")).collect();
        // A node may have a gres.conf of its own; what slurmd finds itself nobody knows here.
        if given.is_empty() || gres.detects(name) {
            continue;
        }
        // What slurmd leaves out was told with its line.
        if given.iter().any(|one| one.files.is_empty()) {
            continue;
        }
        let gpus: u64 = given.iter().map(|one| one.devices()).sum();
        let types = given.iter().map(|one| one.gres_type.clone());
        let types: BTreeSet<String> = types.filter(|one| !one.is_empty()).collect();
        let places: Vec<&str> = given.iter().map(|one| one.place.as_str()).collect();
        let place = format!("{}, {}", wanted.place, places.join(", "));
        if gpus != wanted.gpus {
            let what = format!("slurm.conf gives {} GPUs, gres.conf {gpus}", wanted.gpus);
            let status = if gpus < wanted.gpus {
                Status::Fail
            } else {
                Status::Warn
            };
            wrong.entry((status, what, place)).or_default().push(name);
        } else if !wanted.types.is_empty() && !types.is_empty() && wanted.types != types {
            let list =
                |types: &BTreeSet<String>| types.iter().cloned().collect::<Vec<_>>().join(", ");
            let what = format!(
                "slurm.conf has GPUs of type {}, gres.conf of type {}",
                list(&wanted.types),
                list(&types)
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
