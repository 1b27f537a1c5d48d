//! Whether jobs are kept to their GPUs: TaskPlugin, ProctrackType and cgroup.conf; and on a node whether its kernel goes with them.

mod conf;
mod devices;
mod host;
mod version;

use gpuos_host::slurm::files::SlurmFile;

use super::Context;
use super::about::{self, About};
use super::files::nearly;
use super::findings::{Findings, Status};
use conf::{Conf, Uses};

const NAME: About = about::CGROUP;

/// Whether any node has real GPUs: device files of NVIDIA's driver, or such that slurmd finds.
fn has_devices(look: &Context) -> bool {
    let path = look.settings.directory().join("gres.conf");
    let file = SlurmFile::read(look.machine, &path).ok().flatten();
    file.is_some_and(|file| {
        file.lines.iter().any(|line| {
            let detected = line
                .get("autodetect")
                .is_some_and(|how| !how.eq_ignore_ascii_case("off"));
            let device = line
                .get("file")
                .is_some_and(|file| file.starts_with("/dev/nvidia"));
            detected || device
        })
    })
}

pub fn check(look: &Context, findings: &mut Findings) {
    let gpus = look.settings.list("GresTypes");
    if !gpus.contains(&"gpu") {
        return;
    }
    let status = if has_devices(look) {
        Status::Warn
    } else {
        Status::Note
    };
    let task = look.settings.get("TaskPlugin").unwrap_or("");
    let confined = Uses::of(look).task;
    let conf = Conf::read(look);
    let constrained = conf.is("constraindevices");
    let why = "a job may open the GPUs of others on its node, and gpuosd finds it there too late";
    if !confined {
        findings
            .add(
                NAME,
                status,
                format!(
                    "TaskPlugin ({}) has no task/cgroup: nothing keeps jobs to their GPUs",
                    if task.is_empty() { "not set" } else { task }
                ),
                "set TaskPlugin=task/cgroup,task/affinity, and ConstrainDevices=yes in cgroup.conf",
            )
            .at(look.place("taskplugin"))
            .why(why);
    }
    if confined && !constrained {
        findings
            .add(
                NAME,
                status,
                "ConstrainDevices is not yes: nothing keeps jobs to their GPUs",
                "set ConstrainDevices=yes in cgroup.conf, and restart the slurmds",
            )
            .at(conf.place("constraindevices"))
            .why(why);
    }
    let proctrack = look
        .settings
        .get("ProctrackType")
        .unwrap_or("proctrack/cgroup");
    if confined && proctrack != "proctrack/cgroup" {
        findings
            .add(NAME, status, format!("ProctrackType={proctrack}: processes that leave their session outlive their job, with their GPUs"), "set ProctrackType=proctrack/cgroup")
            .at(look.place("proctracktype"));
    }
    misspelt(&conf, findings);
    if confined && constrained && !findings.found(NAME) {
        findings.ok(
            NAME,
            "jobs are kept to their GPUs (task/cgroup, ConstrainDevices)",
        );
    }
}

/// Keys of cgroup.conf, of all releases.
const KEYS: [&str; 26] = [
    "allowedramspace",
    "allowedswapspace",
    "allowedkmemspace",
    "allowedswap",
    "cgroupautomount",
    "cgroupmountpoint",
    "cgroupplugin",
    "cgroupreleaseagentdir",
    "constraincores",
    "constraindevices",
    "constrainkmemspace",
    "constrainramspace",
    "constrainswapspace",
    "enablecontrollers",
    "enableextracontrollers",
    "ignoresystemd",
    "ignoresystemdonfailure",
    "maxkmempercent",
    "maxrampercent",
    "maxswappercent",
    "memoryswappiness",
    "minkmemspace",
    "minramspace",
    "signalchildrenprocesses",
    "systemdtimeout",
    "taskaffinity",
];

/// Keys that are nearly one of Slurm's: slurmd ends with them.
fn misspelt(conf: &Conf, findings: &mut Findings) {
    for line in conf.lines() {
        for (key, _) in &line.pairs {
            if KEYS.contains(&key.as_str()) {
                continue;
            }
            if let Some(near) = nearly(&KEYS, key) {
                findings
                    .fail(
                        NAME,
                        format!("{key} is no key of cgroup.conf; {near} is"),
                        "correct the key: slurmd ends with one that it does not know",
                    )
                    .at(line.place());
            }
        }
    }
}

/// Whether jobs are kept to their memory; `None`: there is no cgroup.conf to be read here.
pub fn confines_memory(look: &Context) -> Option<bool> {
    let conf = Conf::read(look);
    let there = conf.is_there();
    there.then(|| conf.is("constrainramspace") && Uses::of(look).task)
}

/// The kernel of this host, if it is a node with GPUs. Whether slurmd uses version 2 of control groups here.
pub fn host(look: &Context, findings: &mut Findings) -> bool {
    if look.here.gpu_nodes.is_empty() {
        return false;
    }
    let conf = Conf::read(look);
    let uses = Uses::of(look);
    let plugin = version::check(look, &conf, &uses, findings);
    let two = plugin == Some("cgroup/v2");
    if two && uses.task && conf.is("constraindevices") {
        devices::check(look, &conf, findings);
    }
    // Where systemd is told to be ignored its units are nothing to go by.
    two && !conf.is("ignoresystemd")
}
