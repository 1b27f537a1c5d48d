//! Where `gpuos top` gets its figures: gpuosd's socket on this node, and Slurm's records of all others.

use std::path::Path;
use std::time::Duration;

use gpuos_core::wire::Status;
use gpuos_host::socket::{Client, ClientError, NAME};
use gpuos_host::{Machine, slurm};

use super::board::Sources;

/// How long gpuosd may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// Asks both.
pub fn gather(machine: &dyn Machine, runtime_dir: &Path) -> Sources {
    let mut sources = Sources::default();
    match local(runtime_dir) {
        Ok(status) => sources.local = Some(status),
        Err(e) => sources.missing.push(format!(
            "no temperature, power and load of this node's GPUs: {e}"
        )),
    }
    match slurm::nodes(machine) {
        Ok(nodes) => sources.nodes = Some(nodes),
        Err(e) => {
            sources
                .missing
                .push(format!("no other nodes and no names of jobs: {e:#}"));
            return sources;
        }
    }
    match slurm::jobs(machine) {
        Ok(jobs) => sources.jobs = Some(jobs),
        Err(e) => sources.missing.push(format!("no jobs: {e:#}")),
    }
    sources
}

fn local(runtime_dir: &Path) -> Result<Status, ClientError> {
    Client::connect(&runtime_dir.join(NAME), PATIENCE)?.status()
}
