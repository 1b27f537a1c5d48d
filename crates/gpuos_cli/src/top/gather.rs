//! Where `gpuos top` gets its figures: gpuosd's socket on this node, the records of Slurm or PBS of all others, and the site's Prometheus
//! if there is one.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use gpuos_core::wire::{MigStatus, Reply, Request, Status};
use gpuos_host::socket::{Client, ClientError, NAME};
use gpuos_host::{Machine, pbs, slurm};

use super::board::Sources;
use super::{of_pbs, of_slurm, prometheus};
use crate::ckpt::unstored;
use crate::cli::TopArgs;
use crate::daemons;

/// How long gpuosd may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// Who is asked.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Directory of gpuosd's socket.
    pub runtime_dir: PathBuf,
    /// The site's Prometheus, or why it is not known; `None`: there is none.
    pub prometheus: Option<Result<String, String>>,
    /// Whether PBS is the workload manager.
    pub pbs: bool,
    /// gpuos.toml that the command line names.
    pub config: Option<PathBuf>,
}

impl Ask {
    /// What the flags say, and gpuos.toml where they do not.
    pub fn new(machine: &dyn Machine, config: Option<&Path>, pbs: bool, args: &TopArgs) -> Ask {
        let given = args.prometheus.clone().map(Ok);
        let read = || match pbs {
            true => pbs::config(machine, config),
            false => slurm::site::config(machine, config),
        };
        let prometheus = given.or_else(|| match read() {
            Ok(config) => config.metrics.prometheus.map(Ok),
            Err(e) => Some(Err(format!("{e:#}"))),
        });
        Ask {
            runtime_dir: daemons::pick(&args.runtime_dir, None),
            prometheus,
            pbs,
            config: config.map(Path::to_path_buf),
        }
    }
}

/// Asks all of them at once: one that is slow holds up no other.
pub fn gather(machine: &(dyn Machine + Sync), ask: &Ask) -> Sources {
    thread::scope(|scope| {
        let figures = scope.spawn(|| {
            let url = ask.prometheus.clone()?;
            Some(url.and_then(|url| prometheus::ask(&url)))
        });
        let unstored = scope.spawn(|| unstored(&ask.runtime_dir));
        let (mut sources, no_daemon) = manager_and_this_node(machine, ask);
        match figures.join().unwrap_or(None) {
            None => {}
            Some(Ok(figures)) => {
                sources.figures = Some(figures);
                // A machine without gpuosd, such as a login node, needs none.
                if no_daemon && sources.nodes.is_some() {
                    sources.missing.remove(0);
                }
            }
            Some(Err(why)) => sources.missing.push(format!(
                "no temperature, power and load of other nodes: {why}"
            )),
        }
        sources.missing.extend(unstored.join().unwrap_or_default());
        sources
    })
}

/// Whether this node has no gpuosd, too: then the first sentence of what is missing says so.
fn manager_and_this_node(machine: &dyn Machine, ask: &Ask) -> (Sources, bool) {
    let mut sources = Sources::default();
    let mut no_daemon = false;
    match local(&ask.runtime_dir) {
        Ok(status) => {
            sources.local = Some(status);
            sources.slices = slices(&ask.runtime_dir);
        }
        Err(e) => {
            no_daemon = matches!(e, ClientError::NoDaemon(_));
            sources.missing.push(format!(
                "no temperature, power and load of this node's GPUs: {e}"
            ));
        }
    }
    match ask.pbs {
        true => of_pbs::add(machine, ask.config.as_deref(), &mut sources),
        false => of_slurm::add(machine, &mut sources),
    }
    (sources, no_daemon)
}

/// The MIG instances of this node. A gpuosd that does not know the question has none to tell of.
fn slices(runtime_dir: &Path) -> Option<MigStatus> {
    let mut client = Client::connect(&runtime_dir.join(NAME), PATIENCE).ok()?;
    match client.ask(&Request::Mig) {
        Ok(Reply::Mig { mig }) => Some(*mig),
        _ => None,
    }
}

fn local(runtime_dir: &Path) -> Result<Status, ClientError> {
    Client::connect(&runtime_dir.join(NAME), PATIENCE)?.status()
}
