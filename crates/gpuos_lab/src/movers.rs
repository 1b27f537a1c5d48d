//! A gpuos_mover on each node of a lab, which keeps checkpoints of jobs.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use crate::built::built_dirs;
use crate::daemons::Daemons;
use crate::error::{Context, LabError};
use crate::gpus;
use crate::spec::LabSpec;
use crate::store::Record;

/// The program.
const PROGRAM: &str = "gpuos_mover";

/// Finds the folder with gpuos_mover: `$GPUOS_DAEMON_DIR`, beside this program, or in cargo's target folder (tests run in `deps`
/// below it).
///
/// # Errors
/// A sentence that says how to build it.
pub fn find_mover_dir() -> Result<PathBuf, LabError> {
    built_dirs(gpus::VARIABLE)
        .into_iter()
        .find(|dir| dir.join(PROGRAM).is_file())
        .ok_or_else(|| LabError::Missing {
            program: PROGRAM.into(),
            fix: "`make build` in gpuos's source folder makes it, or name its folder by --daemon-dir or GPUOS_DAEMON_DIR".into(),
        })
}

/// The name of a node's mover among the lab's daemons.
pub(crate) fn daemon(node: &str) -> String {
    format!("{PROGRAM}.{node}")
}

/// Where the mover of a node keeps checkpoints.
pub(crate) fn store_dir(record: &Record, node: &str) -> PathBuf {
    record.path(&format!("mover/{node}/checkpoints"))
}

/// Where the jobs of a node have their folders.
pub(crate) fn jobs_dir(record: &Record, node: &str) -> PathBuf {
    record.path(&format!("mover/{node}/jobs"))
}

/// What gpuos.toml has of it, where the lab's own text says nothing.
pub(crate) fn stanza(spec: &LabSpec) -> &'static str {
    let own = spec.gpuos_toml.as_deref().unwrap_or_default();
    match spec.movers.is_some() && !own.contains("[checkpoint]") {
        // Each node has its own port, as all of them are one machine.
        true => "[checkpoint]\nenabled = true\nport = 0\nleast-seconds = 1\n",
        false => "",
    }
}

/// Copies the program into the lab, so that a later build does not change it.
pub(crate) fn make(record: &Record, from: &Path) -> Result<(), LabError> {
    let bin = record.path("bin");
    fs::create_dir_all(&bin).context(|| format!("cannot make {}", bin.display()))?;
    // Another process copies, as for the simulated GPUs.
    let mut copy = Command::new("cp");
    copy.arg("--")
        .arg(from.join(PROGRAM))
        .arg(bin.join(PROGRAM));
    let copied = gpus::output_of(&mut copy);
    copied.map(drop).map_err(|why| LabError::Missing {
        program: from.join(PROGRAM).display().to_string(),
        fix: format!("{why}: `make build` makes it"),
    })
}

/// Starts the mover of a node and waits until it listens.
pub(crate) fn start(daemons: &Daemons<'_>, node: &str) -> Result<Child, LabError> {
    let name = daemon(node);
    let runtime = gpus::runtime_dir(daemons.record, node);
    let (store, jobs) = (
        store_dir(daemons.record, node),
        jobs_dir(daemons.record, node),
    );
    for dir in [&runtime, &jobs] {
        fs::create_dir_all(dir).context(|| format!("cannot make {}", dir.display()))?;
    }
    let program = daemons.record.path(&format!("bin/{PROGRAM}"));
    let mut command = daemons.command(&program.display().to_string(), true)?;
    command
        .env_remove("GPUOS_CONF")
        .args(["--node", node])
        .arg("--store")
        .arg(&store)
        .arg("--jobs")
        .arg(&jobs)
        .arg("--runtime-dir")
        .arg(&runtime)
        .arg("--key")
        .arg(daemons.record.path("munge/key"));
    let socket = runtime.join(format!("{PROGRAM}.sock"));
    let mut child = daemons.spawn(&name, command)?;
    let file = daemons.record.path(&format!("run/{name}.pid"));
    fs::write(&file, format!("{}\n", child.id()))
        .context(|| format!("cannot write {}", file.display()))?;
    daemons.wait(&name, &mut child, || UnixStream::connect(&socket).is_ok())?;
    Ok(child)
}
