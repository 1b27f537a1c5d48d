//! The plugin files and the lines of slurm.conf and plugstack.conf that load them.

use std::path::{Path, PathBuf};

use gpuos_host::slurm::Running;
use gpuos_host::{Machine, elf};

use super::{Findings, is_selected};

/// A plugin, the symbols without which Slurm does not take it, and its name in the list.
struct Wanted {
    name: &'static str,
    file: &'static str,
    symbols: &'static [&'static str],
}

const PLUGINS: &[Wanted] = &[
    Wanted {
        name: "select_gpuos",
        file: "select_gpuos.so",
        symbols: &[
            "plugin_name",
            "plugin_type",
            "plugin_version",
            "plugin_id",
            "init",
            "fini",
            "select_p_job_test",
        ],
    },
    Wanted {
        name: "spank_gpuos",
        file: "spank_gpuos.so",
        symbols: &[
            "plugin_name",
            "plugin_type",
            "plugin_version",
            "slurm_spank_init",
        ],
    },
    Wanted {
        name: "job_submit_gpuos",
        file: "job_submit_gpuos.so",
        symbols: &[
            "plugin_name",
            "plugin_type",
            "plugin_version",
            "job_submit",
            "job_modify",
        ],
    },
];

/// A SPANK plugin with one of these makes slurmd fork for every job.
const COSTLY: &[&str] = &["slurm_spank_job_prolog", "slurm_spank_job_epilog"];

/// Looks at each plugin file.
pub fn files(machine: &dyn Machine, running: &Running, selected: bool, findings: &mut Findings) {
    let dirs = running.plugin_dirs();
    for wanted in PLUGINS {
        let from_plugstack = match wanted.file {
            "spank_gpuos.so" => plugstack(machine, running).map(|line| PathBuf::from(line.path)),
            _ => None,
        };
        let mut places: Vec<PathBuf> = from_plugstack
            .filter(|path| path.is_absolute())
            .into_iter()
            .collect();
        places.extend(dirs.iter().map(|dir| dir.join(wanted.file)));
        let found = places
            .iter()
            .find_map(|path| Some((path, machine.read(path).ok()?)));
        match found {
            Some((path, bytes)) => file(wanted, path, &bytes, findings),
            None => {
                let shown: Vec<String> = dirs.iter().map(|dir| dir.display().to_string()).collect();
                findings.fail(
                    wanted.name,
                    format!("no {} in PluginDir ({}) that can be read here", wanted.file, shown.join(":")),
                    "install the plugins of gpuos there, or add their directory in front: PluginDir=/usr/lib/gpuos:…",
                );
            }
        }
    }
    let cons_tres = dirs
        .iter()
        .any(|dir| machine.read(&dir.join("select_cons_tres.so")).is_ok());
    if selected && !cons_tres {
        findings.fail(
            "select_cons_tres",
            "select_cons_tres.so, which select/gpuos wraps, is in no directory of PluginDir",
            "add Slurm's own plugin directory to PluginDir, after that of gpuos",
        );
    }
}

fn file(wanted: &Wanted, path: &Path, bytes: &[u8], findings: &mut Findings) {
    let shown = path.display();
    let reinstall = format!(
        "install the {} that was built for this machine",
        wanted.file
    );
    let plugin = match elf::read(bytes) {
        Ok(plugin) => plugin,
        Err(what) => return findings.fail(wanted.name, format!("{shown} {what}"), reinstall),
    };
    if plugin.arch != std::env::consts::ARCH {
        let message = format!(
            "{shown} is for {}, and this machine is {}",
            plugin.arch,
            std::env::consts::ARCH
        );
        return findings.fail(wanted.name, message, reinstall);
    }
    let missing: Vec<&str> = wanted
        .symbols
        .iter()
        .copied()
        .filter(|symbol| !plugin.exports.contains(*symbol))
        .collect();
    if !missing.is_empty() {
        let message = format!("{shown} does not export {}", missing.join(", "));
        return findings.fail(wanted.name, message, reinstall);
    }
    if let Some(costly) = COSTLY
        .iter()
        .find(|symbol| plugin.exports.contains(**symbol))
    {
        let message = format!("{shown} exports {costly}, which makes slurmd fork for every job");
        return findings.warn(wanted.name, message, reinstall);
    }
    findings.ok(wanted.name, format!("{shown}, {}", plugin.arch));
}

/// Looks at SelectType, plugstack.conf and JobSubmitPlugins.
pub fn settings(machine: &dyn Machine, running: &Running, findings: &mut Findings) {
    let conf = running.slurm_conf();
    let conf = conf.display();
    if is_selected(running) {
        findings.ok("SelectType", "select/gpuos");
    } else {
        findings.warn(
            "SelectType",
            format!(
                "{}: jobs are placed by stock Slurm",
                running.get("SelectType").unwrap_or("not set")
            ),
            format!("set SelectType=select/gpuos in {conf} and restart slurmctld"),
        );
    }
    let file = plugstack_path(running);
    match plugstack(machine, running) {
        Some(line) => plugstack_line(machine, running, &file, &line, findings),
        None => findings.fail(
            "plugstack",
            format!(
                "no line for spank_gpuos.so in {}: sbatch knows no --gpuos options",
                file.display()
            ),
            format!("add to {}: optional spank_gpuos.so", file.display()),
        ),
    }
    let list = running.list("JobSubmitPlugins");
    if list
        .iter()
        .any(|name| matches!(*name, "gpuos" | "job_submit/gpuos"))
    {
        findings.ok("JobSubmit", list.join(","));
    } else {
        let mut new = list.clone();
        new.push("gpuos");
        findings.warn(
            "JobSubmit",
            "job_submit/gpuos is not loaded: wrong --gpuos options are not refused when a job is submitted",
            format!("set JobSubmitPlugins={} in {conf} and restart slurmctld", new.join(",")),
        );
    }
}

fn plugstack_line(
    machine: &dyn Machine,
    running: &Running,
    file: &Path,
    line: &Line,
    findings: &mut Findings,
) {
    let path = Path::new(&line.path);
    let places: Vec<PathBuf> = match path.is_absolute() {
        true => vec![path.to_path_buf()],
        false => running
            .plugin_dirs()
            .iter()
            .map(|dir| dir.join(path))
            .collect(),
    };
    if !places.iter().any(|place| machine.read(place).is_ok()) {
        let message = format!("{}: {} does not exist", file.display(), line.path);
        let fix =
            "write the full path of spank_gpuos.so, or its name alone when it lies in PluginDir";
        return match line.required {
            true => findings.fail(
                "plugstack",
                format!("{message}, and it is required: no job can start"),
                fix,
            ),
            false => findings.fail("plugstack", message, fix),
        };
    }
    let word = if line.required {
        "required"
    } else {
        "optional"
    };
    findings.ok(
        "plugstack",
        format!("{}: {word} {}", file.display(), line.path),
    );
}

/// The line of plugstack.conf that loads spank_gpuos.so.
struct Line {
    required: bool,
    path: String,
}

fn plugstack_path(running: &Running) -> PathBuf {
    match running.get("PlugStackConfig") {
        Some(path) => path.into(),
        None => running.directory().join("plugstack.conf"),
    }
}

fn plugstack(machine: &dyn Machine, running: &Running) -> Option<Line> {
    let mut found = None;
    search(machine, &plugstack_path(running), 0, &mut found);
    found
}

/// Looks for the line in a file and in those that it includes.
fn search(machine: &dyn Machine, path: &Path, depth: usize, found: &mut Option<Line>) {
    const MAX_DEPTH: usize = 8;
    let Ok(bytes) = machine.read(path) else {
        return;
    };
    let text = String::from_utf8_lossy(&bytes);
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or("");
        let mut words = line.split_whitespace();
        let (Some(word), Some(target)) = (words.next(), words.next()) else {
            continue;
        };
        if word == "include" && depth < MAX_DEPTH {
            let target = path.parent().unwrap_or(Path::new("/")).join(target);
            for file in machine.glob(&target) {
                search(machine, &file, depth + 1, found);
            }
        } else if target.ends_with("spank_gpuos.so") && found.is_none() {
            *found = Some(Line {
                required: word == "required",
                path: target.into(),
            });
        }
    }
}
