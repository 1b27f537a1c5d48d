//! Simulated GPUs behind the device files of a lab's nodes, and a gpuosd that watches them on each.
//!
//! The GPUs are those of `tests/nvml`: a management library over a state file, one for each node, and the
//! program `gpuos-nvml` that makes, breaks and mends them. Neither is part of what users install.

use std::env;
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use crate::built::{built_dirs, dir_with};
use crate::cgroup;
use crate::daemons::Daemons;
use crate::error::{Context, LabError};
use crate::mig;
use crate::process::PREFIX;
use crate::store::Record;

/// Names the folder of what cargo builds.
pub(crate) const VARIABLE: &str = "GPUOS_DAEMON_DIR";

/// What cargo builds, and the name under which a lab has it.
const FILES: [(&str, &str); 3] = [
    ("gpuosd", "gpuosd"),
    ("gpuos-nvml", "gpuos-nvml"),
    ("libnvidia_ml.so", "libnvidia-ml.so.1"),
];

/// Finds the folder with gpuosd, gpuos-nvml and its library: `$GPUOS_DAEMON_DIR`, beside this program, or in
/// cargo's target folder (tests run in `deps` below it).
///
/// # Errors
/// A sentence that names what is missing, and how to build it.
pub fn find_daemon_dir() -> Result<PathBuf, LabError> {
    // Who names a folder is told what it lacks, and not given another one.
    if let Some(dir) = env::var_os(VARIABLE).filter(|dir| !dir.is_empty()) {
        return Ok(PathBuf::from(dir));
    }
    let files = FILES.map(|(built, _)| built);
    dir_with(
        &files,
        &built_dirs(VARIABLE),
        "--daemon-dir or GPUOS_DAEMON_DIR",
    )
}

/// The name of a node's gpuosd among the lab's daemons.
pub(crate) fn daemon(node: &str) -> String {
    format!("gpuosd.{node}")
}

/// The folder of a node's simulated GPUs: the file `state` and the library.
pub(crate) fn gpus_dir(record: &Record, node: &str) -> PathBuf {
    record.path(&format!("nvml/{node}"))
}

/// Where the gpuosd of a node keeps its state and audit log.
pub(crate) fn state_dir(record: &Record, node: &str) -> PathBuf {
    record.path(&format!("gpuosd/{node}"))
}

/// The folder with the socket of a node's gpuosd.
pub(crate) fn runtime_dir(record: &Record, node: &str) -> PathBuf {
    record.path(&format!("run/gpuosd.{node}"))
}

/// What gpuosd of a node reads as the kernel's name for this boot.
pub(crate) fn boot_file(record: &Record, node: &str) -> PathBuf {
    record.path(&format!("run/boot.{node}"))
}

/// `gpuos-nvml` for the GPUs of a node.
pub(crate) fn nvml(record: &Record, node: &str) -> Command {
    let mut command = Command::new(record.path("bin/gpuos-nvml"));
    let state = gpus_dir(record, node).join("state");
    command.arg("--state").arg(state);
    command
}

/// The folder that the simulated GPUs come from.
pub(crate) fn simulated(record: &Record) -> Result<&Path, LabError> {
    let from = record.spec.simulated_gpus.as_deref();
    from.ok_or_else(|| {
        LabError::Spec(format!(
            "lab {} has no simulated GPUs: make one with `gpuos lab up --gpus simulated`",
            record.spec.name
        ))
    })
}

/// Breaks or mends a simulated GPU of a node by the words of `gpuos lab fault`.
pub(crate) fn fault(
    record: &Record,
    node: &str,
    gpu: &str,
    words: &[&str],
) -> Result<String, LabError> {
    let mut command = nvml(record, node);
    match words {
        [verb @ ("repair" | "reset")] => command.args([*verb, gpu]),
        words => command.args(["fault", gpu]).args(words),
    };
    output_of(&mut command).map_err(|why| LabError::Spec(format!("{node} {gpu}: {why}")))
}

/// What a boot of the node does to its simulated GPUs.
pub(crate) fn reboot(record: &Record, node: &str) -> Result<(), LabError> {
    output_of(nvml(record, node).arg("reboot"))
        .map_err(|why| LabError::Spec(format!("{node}: {why}")))?;
    divide(record, node)
}

/// Copies the programs into the lab, so that a later build does not change them, and makes the GPUs of
/// every node.
pub(crate) fn make(record: &Record, from: &Path) -> Result<(), LabError> {
    let bin = record.path("bin");
    fs::create_dir_all(&bin).context(|| format!("cannot make {}", bin.display()))?;
    for (built, name) in FILES {
        let built = from.join(built);
        // Another process copies: what a thread beside this one starts meanwhile would have the copy open for
        // writing, and nothing that is can be run ("Text file busy").
        let mut copy = Command::new("cp");
        copy.arg("--").arg(&built).arg(bin.join(name));
        output_of(&mut copy).map_err(|why| LabError::Missing {
            program: built.display().to_string(),
            fix: format!("{why}: `make build` makes it"),
        })?;
    }
    let library = bin.join("libnvidia-ml.so.1");
    for (number, (node, kind)) in record.spec.typed_nodes().into_iter().enumerate() {
        let dir = gpus_dir(record, &node);
        let mut command = Command::new(bin.join("gpuos-nvml"));
        command.args(["create", &kind, "--seed", &(number + 1).to_string()]);
        command
            .arg("--dir")
            .arg(&dir)
            .arg("--library")
            .arg(&library);
        output_of(&mut command)
            .map_err(|why| LabError::Spec(format!("--gpus simulated, node {node}: {why}")))?;
        divide(record, &node)?;
    }
    Ok(())
}

/// Puts the GPUs of a node that are divided for good into MIG mode, as a site's own boot script does.
fn divide(record: &Record, node: &str) -> Result<(), LabError> {
    for gpu in mig::fixed(&record.spec).iter() {
        output_of(nvml(record, node).args(["mig", &gpu.to_string(), "on"]))
            .map_err(|why| LabError::Spec(format!("{node} gpu{gpu}: {why}")))?;
    }
    Ok(())
}

/// Runs a command: what it wrote, or what it wrote when it failed.
pub(crate) fn output_of(command: &mut Command) -> Result<String, String> {
    let out = command
        .output()
        .map_err(|e| format!("{}: {e}", command.get_program().to_string_lossy()))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_string();
    match out.status.success() {
        true => Ok(text(&out.stdout)),
        false => Err(text(&out.stderr)
            .trim_start_matches("gpuos-nvml: ")
            .to_string()),
    }
}

impl Daemons<'_> {
    pub(crate) fn start_gpuosd(&self, node: &str) -> Result<Child, LabError> {
        let name = daemon(node);
        let (state, runtime) = (state_dir(self.record, node), runtime_dir(self.record, node));
        for dir in [&state, &runtime] {
            fs::create_dir_all(dir).context(|| format!("cannot make {}", dir.display()))?;
        }
        let gpus = gpus_dir(self.record, node);
        let nvml = self.record.path("bin/gpuos-nvml");
        let program = self.record.path("bin/gpuosd");
        let mut command = self.command(&program.display().to_string(), true)?;
        command
            .env("GPUOS_NVML_STATE", gpus.join("state"))
            .env_remove("GPUOS_CONF")
            .args(["--node", node, "--interval", "1"])
            .arg("--state-dir")
            .arg(&state)
            .arg("--runtime-dir")
            .arg(&runtime)
            .arg("--boot-id")
            .arg(boot_file(self.record, node))
            .arg("--nvml")
            .arg(gpus.join("libnvidia-ml.so.1"))
            .arg("--reset-command")
            .arg(format!(
                "{} --state {}/state reset {{index}}",
                nvml.display(),
                gpus.display()
            ));
        let log = self.record.spec.kernel_log.as_deref();
        command
            .arg("--kernel-log")
            .arg(log.unwrap_or(Path::new("none")));
        command
            .arg("--mps-command")
            .arg(self.record.path("bin/nvidia-cuda-mps-control"));
        if let turn @ 1.. = self.record.spec.memory_turn {
            let turn = turn.to_string();
            command.args(["--memory-turn", &turn, "--memory-rate", "10000"]);
        }
        if !self.record.spec.mig.is_empty() {
            let (slices, caps) = (
                mig::slices_dir(self.record, node),
                mig::caps_dir(self.record, node),
            );
            command.arg("--slices").arg(slices).arg("--caps").arg(caps);
            command
                .arg("--mig-minors")
                .arg(mig::minors_file(self.record, node));
        }
        if self.record.cgroup {
            command.arg("--cgroup").arg(self.record.path("cgroup"));
            // Slurm's groups of a lab lie below its own.
            let groups = format!("/{PREFIX}{}", self.record.id);
            command.arg("--slurm-groups").arg(groups);
        } else if let Some(groups) = cgroup::make_v2(&self.record.id) {
            // Groups that gpuosd makes are the lab's, and gone with it.
            command.arg("--cgroup").arg(groups);
        }
        let socket = runtime.join("gpuosd.sock");
        let mut child = self.spawn(&name, command)?;
        let file = self.record.path(&format!("run/{name}.pid"));
        fs::write(&file, format!("{}\n", child.id()))
            .context(|| format!("cannot write {}", file.display()))?;
        self.wait(&name, &mut child, || UnixStream::connect(&socket).is_ok())?;
        Ok(child)
    }
}
