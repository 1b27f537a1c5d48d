//! Which version of control groups this host has, and whether Slurm's plugin and settings go with it.

use std::path::Path;

use super::super::about::{self, About};
use super::super::findings::Findings;
use super::super::{Context, plugins};
use super::conf::{Conf, MOUNTED, Uses, since};
use super::host::{Host, Version};

const NAME: About = about::CGROUP_VERSION;

/// Parameters of the boot that ask for version 1.
const LEGACY: [&str; 5] = [
    "systemd.unified_cgroup_hierarchy=0",
    "systemd.unified_cgroup_hierarchy=no",
    "systemd.unified_cgroup_hierarchy=false",
    "systemd.legacy_systemd_cgroup_controller",
    "SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE",
];

/// From this release on slurmd warns of cgroup/v1.
const DEPRECATED: [u32; 3] = [25, 5, 0];

/// From this release on Slurm mounts no hierarchy of version 1 itself.
const NO_AUTOMOUNT: [u32; 3] = [23, 11, 0];

/// From this release on memory is confined only where SelectTypeParameters counts it.
const MEMORY_COUNTED: [u32; 3] = [23, 2, 0];

/// The file as text.
fn text(look: &Context, path: &str) -> String {
    let bytes = look.machine.read(Path::new(path)).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// How the host comes to have version 2 alone.
fn unify(look: &Context) -> String {
    let boot = text(look, "/proc/cmdline");
    let legacy: Vec<&str> = boot
        .split_whitespace()
        .filter(|word| {
            LEGACY.iter().any(|start| word.starts_with(start)) && !word.ends_with("_controller=0")
        })
        .collect();
    let first = match legacy.is_empty() {
        true => String::new(),
        false => format!(
            "take {} out of the boot parameters, and ",
            legacy.join(" and ")
        ),
    };
    format!(
        "{first}boot with `systemd.unified_cgroup_hierarchy=1 systemd.legacy_systemd_cgroup_controller=0 cgroup_no_v1=all` \
         (on Debian GRUB_CMDLINE_LINUX in /etc/default/grub, then `update-grub`), with CgroupPlugin=autodetect; what \
         `grep -v ^0: /proc/self/cgroup` shows after that somebody mounts"
    )
}

/// Looks at the host. The plugin that slurmd has here, if it can run with it.
pub fn check(
    look: &Context,
    conf: &Conf,
    uses: &Uses,
    findings: &mut Findings,
) -> Option<&'static str> {
    let host = Host::read(look.machine);
    let version = host.version()?;
    let said = conf.plugin();
    let plugin = match said.as_str() {
        "autodetect" => host.detected(),
        "cgroup/v1" => Some("cgroup/v1"),
        "cgroup/v2" => Some("cgroup/v2"),
        "disabled" => {
            disabled(conf, uses, findings);
            return None;
        }
        _ => return None,
    };
    let place = conf.place("cgroupplugin");
    let Some(plugin) = plugin else {
        findings
            .fail(
                NAME,
                format!("CgroupPlugin=autodetect cannot tell which control groups this host has: {}", host.words()),
                format!("{}; or name the version: CgroupPlugin=cgroup/v1", unify(look)),
            )
            .at(place)
            .why("slurmd ends at its start; Slurm looks for version 2 at /sys/fs/cgroup, or for /sys/fs/cgroup/systemd");
        return None;
    };
    match (plugin, version) {
        ("cgroup/v2", Version::Two) => {}
        ("cgroup/v2", _) => {
            let (what, or) = match version {
                Version::Both => ("both versions of control groups (hybrid)", ""),
                _ => (
                    "control groups of version 1 alone (legacy)",
                    "; or set CgroupPlugin=cgroup/v1",
                ),
            };
            findings
                .fail(
                    NAME,
                    format!(
                        "CgroupPlugin={said} takes cgroup/v2, and this host has {what}: {}",
                        host.words()
                    ),
                    unify(look) + or,
                )
                .at(place)
                .why("slurmd ends at its start: Slurm's cgroup/v2 runs only where the kernel has no group of version 1");
            return None;
        }
        (_, Version::Two) => {
            // Slurm may mount what is missing, in releases that still do.
            let mounts = conf.is("cgroupautomount") && since(look, NO_AUTOMOUNT) != Some(true);
            if uses.any() && !mounts && conf.usual_place() {
                findings
                    .fail(
                        NAME,
                        format!("CgroupPlugin=cgroup/v1, and this host has control groups of version 2 alone: {}", host.words()),
                        "set CgroupPlugin=autodetect in cgroup.conf, and restart slurmd",
                    )
                    .at(place)
                    .why(format!("{} find no hierarchy of version 1, and slurmd ends or no job starts", uses.words()));
                return None;
            }
        }
        (_, Version::Both) if uses.any() && said == "autodetect" => {
            findings
                .warn(
                    NAME,
                    format!("this host has both versions of control groups (hybrid), and CgroupPlugin=autodetect takes cgroup/v1: {}", host.words()),
                    format!("{}; or settle it by CgroupPlugin=cgroup/v1", unify(look)),
                )
                .at(place)
                .why("Slurm does not support hosts with both, and its cgroup/v2 does not start there");
        }
        _ if uses.any() => {
            let old = match since(look, DEPRECATED) {
                Some(true) => "; this Slurm calls cgroup/v1 deprecated",
                _ => "",
            };
            let what = match version {
                Version::Both => "both versions of control groups (hybrid)",
                _ => "control groups of version 1 alone (legacy)",
            };
            findings
                .note(
                    NAME,
                    format!(
                        "this host has {what}, and slurmd uses cgroup/v1{old}: {}",
                        host.words()
                    ),
                    format!(
                        "before a systemd or a Slurm without version 1 comes: {}",
                        unify(look)
                    ),
                )
                .at(place);
        }
        _ => {}
    }
    library(look, plugin, conf, findings);
    controllers(look, conf, uses, &host, plugin, findings);
    if plugin == "cgroup/v2" && !findings.found(NAME) {
        findings.ok(NAME, format!("CgroupPlugin={said}, and {}", host.words()));
    }
    Some(plugin)
}

/// Without control groups Slurm's plugins of that name cannot work.
fn disabled(conf: &Conf, uses: &Uses, findings: &mut Findings) {
    if uses.any() {
        findings
            .fail(
                NAME,
                format!("CgroupPlugin=disabled, and slurm.conf has {}", uses.words()),
                "set CgroupPlugin=autodetect in cgroup.conf, and restart slurmd",
            )
            .at(conf.place("cgroupplugin"))
            .why("slurmd ends at its start, or no job starts");
    }
}

/// A Slurm that was built without bpf's header or D-Bus has no cgroup/v2, and newer ones may have no cgroup/v1.
fn library(look: &Context, plugin: &str, conf: &Conf, findings: &mut Findings) {
    let dirs = plugins::folders(look.machine, look.settings);
    let file = plugin.replace('/', "_") + ".so";
    let own = |file: &str| plugins::find(look.machine, &dirs, file).is_some();
    if own(&file) || !own("select_cons_tres.so") {
        return;
    }
    let fix = match plugin {
        "cgroup/v2" => {
            "install or build a Slurm with it: it takes linux/bpf.h of 5.7 or newer, and libdbus-1's headers".to_string()
        }
        _ => unify(look),
    };
    findings
        .fail(
            NAME,
            format!(
                "slurmd uses {plugin} here, and there is no {file} in PluginDir ({})",
                plugins::shown(&dirs)
            ),
            fix,
        )
        .at(conf.place("cgroupplugin"))
        .why("slurmd ends at its start");
}

/// Whether the kernel has the controllers that the settings ask for.
fn controllers(
    look: &Context,
    conf: &Conf,
    uses: &Uses,
    host: &Host,
    plugin: &str,
    findings: &mut Findings,
) {
    let wanted = wanted(look, conf, uses);
    if wanted.is_empty() || !conf.usual_place() {
        return;
    }
    let two = plugin == "cgroup/v2";
    let listed = |folder: &str| {
        let path = format!("{MOUNTED}{folder}/cgroup.controllers");
        let bytes = look.machine.read(Path::new(&path)).ok()?;
        let text = String::from_utf8_lossy(&bytes).into_owned();
        Some(text.split_whitespace().map(str::to_owned).collect())
    };
    let root: Option<Vec<String>> = listed("");
    let scope: Option<Vec<String>> = listed("/system.slice/slurmstepd.scope");
    let boot = text(look, "/proc/cmdline");
    for (controller, by, key, then) in wanted {
        let name = match (controller, two) {
            ("cpu", false) => "cpuacct",
            _ => controller,
        };
        let has = match (two, &root) {
            (false, _) => host.mounted(name),
            (true, Some(root)) => root.iter().any(|one| one == name),
            // A kernel that does not list any says nothing.
            (true, None) => continue,
        };
        let place = match key {
            "" => look.place("jobacctgathertype"),
            key => conf.place(key),
        };
        if !has {
            let word = format!("cgroup_disable={name}");
            let off = boot.split_whitespace().any(|one| {
                one.split_once('=').is_some_and(|(key, list)| {
                    key == "cgroup_disable" && list.split(',').any(|one| one == name)
                })
            });
            let fix = match off {
                true => format!(
                    "take {word} out of the boot parameters; where firmware puts it there, as on Raspberry Pi, add cgroup_enable={name} behind it (/boot/firmware/cmdline.txt)"
                ),
                false if two => format!(
                    "boot a kernel that has the controller {name} ({}), without cgroup_disable={name}",
                    option(name)
                ),
                false => format!("mount it, or boot a kernel that has it ({})", option(name)),
            };
            let because = if off {
                format!(" (booted with {word})")
            } else {
                String::new()
            };
            findings
                .fail(
                    NAME,
                    format!(
                        "{by} needs the controller {name}, which this host does not have{because}"
                    ),
                    fix,
                )
                .at(place)
                .why(then);
        } else if two
            && scope
                .as_ref()
                .is_some_and(|scope| !scope.iter().any(|one| one == name))
        {
            findings
                .warn(
                    NAME,
                    format!("{by} needs the controller {name}, which is not on for the groups of jobs (system.slice/slurmstepd.scope)"),
                    "have slurmd run as a unit with Delegate=yes, or set EnableControllers=yes in cgroup.conf, and restart slurmd when no job runs",
                )
                .at(format!("{MOUNTED}/system.slice/cgroup.subtree_control"))
                .why(then);
        }
    }
}

/// The kernel's option for a controller.
fn option(controller: &str) -> &'static str {
    match controller {
        "memory" => "CONFIG_MEMCG",
        "cpuset" => "CONFIG_CPUSETS",
        "cpuacct" => "CONFIG_CGROUP_CPUACCT",
        _ => "CONFIG_CGROUP_SCHED",
    }
}

/// Controllers that settings need: the name in version 2, by what, its key in cgroup.conf, and what follows without it.
fn wanted(
    look: &Context,
    conf: &Conf,
    uses: &Uses,
) -> Vec<(&'static str, &'static str, &'static str, &'static str)> {
    let mut all = Vec::new();
    let parameters = look.settings.get("SelectTypeParameters").unwrap_or("");
    let counted = parameters.to_ascii_uppercase().contains("MEMORY");
    let memory = counted || since(look, MEMORY_COUNTED) == Some(false);
    if uses.task && conf.is("constraincores") {
        let then = "Slurm logs that the controller is not available, and nothing keeps steps to their cores";
        all.push(("cpuset", "ConstrainCores=yes", "constraincores", then));
    }
    let then = "Slurm's task/cgroup does not start without it, and no step does";
    for (key, by) in [
        ("constrainramspace", "ConstrainRAMSpace=yes"),
        ("constrainswapspace", "ConstrainSwapSpace=yes"),
    ] {
        if uses.task && memory && conf.is(key) {
            all.push(("memory", by, key, then));
            break;
        }
    }
    if uses.account {
        let then = "slurmd ends at its start without it";
        let by = "JobAcctGatherType=jobacct_gather/cgroup";
        if !all.iter().any(|(controller, ..)| *controller == "memory") {
            all.push(("memory", by, "", then));
        }
        all.push(("cpu", by, "", then));
    }
    all
}
