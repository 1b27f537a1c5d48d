//! A gpuos_mover on each node of a lab of PBS, and the munged by which they know each other.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;

use super::PbsLab;
use super::files;
use crate::error::{Context, LabError};
use crate::movers;
use crate::spec::LabSpec;
use crate::store::Record;

/// The daemon of a node that keeps checkpoints.
pub const MOVER: &str = "gpuos_mover";

/// The one that vouches for it to other nodes.
const MUNGED: &str = "munged";

/// What gpuos.toml has of it, where the lab's own text says nothing.
pub(super) fn stanza(spec: &LabSpec) -> &'static str {
    let own = spec.gpuos_toml.as_deref().unwrap_or_default();
    match spec.movers.is_some() && !own.contains("[checkpoint]") {
        true => "\n[checkpoint]\nenabled = true\nleast-seconds = 1\n",
        false => "",
    }
}

/// Copies the program into the lab, and makes the key that all nodes have.
pub(super) fn make(record: &Record, from: &std::path::Path) -> Result<(), LabError> {
    movers::make(record, from)?;
    let folder = record.path("munge");
    let write = || {
        fs::create_dir_all(&folder)?;
        let mut key = vec![0u8; 128];
        fs::File::open("/dev/urandom")?.read_exact(&mut key)?;
        let mut options = fs::OpenOptions::new();
        options.create_new(true).write(true).mode(0o400);
        options.open(folder.join("key"))?.write_all(&key)
    };
    write().context(|| "cannot write the lab's munge key".to_string())
}

/// Starts gpuos_mover on a node, and munged where it does not run there yet; their files are in places of the host's own.
pub(super) fn start(lab: &PbsLab, node: &str) -> Result<(), LabError> {
    if lab.record.spec.movers.is_none() {
        let why = format!("lab {} was made without checkpoints", lab.name());
        return Err(LabError::Spec(why));
    }
    lab.is_node(node)?;
    let own = files::own(&lab.record, node).join("mover");
    fs::create_dir_all(&own).context(|| format!("cannot make {}", own.display()))?;
    let key = lab.record.path("munge/key");
    if lab.pid(node, MUNGED).is_none() {
        let mut command = lab.service(node, MUNGED, "sh")?;
        // The shell ends, and so the daemon is a child of the host's process 1.
        command.args([
            "-c",
            "mkdir -p /run/munge && { setsid munged \"$@\" & }",
            "sh",
        ]);
        command.args(["--foreground", "--force", "--num-threads=2"]);
        for (option, path) in [
            ("--key-file", key.clone()),
            ("--seed-file", own.join("seed")),
            ("--pid-file", own.join("munged.pid")),
            ("--log-file", own.join("munged.log")),
        ] {
            command.arg(format!("{option}={}", path.display()));
        }
        lab.finish(node, MUNGED, &mut command)?;
        lab.until(MUNGED, || has(lab, node, "/run/munge/munge.socket.2"))?;
    }
    let mut command = lab.service(node, MOVER, "sh")?;
    command.args(["-c", "mkdir -p /run/gpuos && { setsid \"$@\" & }", "sh"]);
    command.arg(lab.record.path("bin").join(MOVER));
    command.args([
        "--workload",
        "pbs",
        "--node",
        node,
        "--runtime-dir",
        "/run/gpuos",
    ]);
    command.arg("--store").arg(own.join("checkpoints"));
    command.arg("--jobs").arg(own.join("jobs"));
    command.arg("--key").arg(&key);
    lab.finish(node, MOVER, &mut command)?;
    lab.until(MOVER, || {
        has(lab, node, "/run/gpuos/gpuos_mover.sock.root") && lab.pid(node, MOVER).is_some()
    })
}

/// Whether a host has a socket.
fn has(lab: &PbsLab, host: &str, socket: &str) -> bool {
    lab.run_on(host, None, "test", &["-S", socket]).is_ok()
}
