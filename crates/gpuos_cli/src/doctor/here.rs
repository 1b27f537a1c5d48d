//! What this machine is in the cluster. Checks of the host itself look only where something of Slurm belongs on it.

use gpuos_config::options::parse_gres;
use gpuos_host::slurm::Running;
use gpuos_host::slurm::files::SlurmFile;
use gpuos_host::{Machine, host_name, slurm};
use gpuos_model::hostlist::expand;

use crate::cli::DoctorArgs;
use crate::{daemons, discover};

/// This machine's places in the cluster.
#[derive(Default)]
pub struct Here {
    /// Nodes with GPUs, or slices of them, whose slurmd is on this machine: one, or in a lab all.
    pub gpu_nodes: Vec<String>,
    /// All nodes whose slurmd is on this machine, with GPUs or without.
    pub nodes: Vec<String>,
    /// Whether slurm.conf has slurmctld run here.
    pub controller: bool,
    /// Whether it is a lab: its daemons are nobody's units.
    pub lab: bool,
}

impl Here {
    /// By slurmctld's list of nodes, else by that of slurm.conf.
    pub fn find(
        machine: &dyn Machine,
        args: &DoctorArgs,
        running: Option<&Running>,
        conf: Option<&SlurmFile>,
    ) -> Here {
        let all = nodes(machine, running.is_some(), conf);
        // All slurmds of a lab are on this machine.
        let lab = daemons::is_of_nodes(&args.runtime_dir) || machine.env("GPUOS_LAB").is_some();
        let own = discover::node_name(machine, &args.hardware);
        let mine = |name: &String| lab || Some(name) == own.as_ref();
        Here {
            nodes: all
                .iter()
                .map(|(name, _)| name.clone())
                .filter(mine)
                .collect(),
            gpu_nodes: all
                .into_iter()
                .filter(|(name, gpus)| *gpus && mine(name))
                .map(|(name, _)| name)
                .collect(),
            controller: controller(machine, running, conf),
            lab,
        }
    }
}

/// Names of nodes, and whether each has GPUs or slices.
fn nodes(machine: &dyn Machine, running: bool, conf: Option<&SlurmFile>) -> Vec<(String, bool)> {
    if running && let Ok(nodes) = slurm::nodes(machine) {
        let each = nodes.into_iter().map(|node| {
            let gpus = node.gpu_count() > 0 || !node.slices.is_empty();
            (node.name, gpus)
        });
        return each.collect();
    }
    let Some(conf) = conf else {
        return Vec::new();
    };
    let each = conf.table("nodename").flat_map(|line| {
        let all = parse_gres("Gres", line.get("gres").unwrap_or_default()).unwrap_or_default();
        let gpus = all
            .iter()
            .any(|one| one.name == "gpu" || one.name == "gpuos");
        let names = expand(line.get("nodename").unwrap_or_default()).unwrap_or_default();
        names.into_iter().map(move |name| (name, gpus))
    });
    each.collect()
}

/// Whether one of the hosts of slurmctld is this one.
fn controller(machine: &dyn Machine, running: Option<&Running>, conf: Option<&SlurmFile>) -> bool {
    let Some(own) = host_name(machine) else {
        return false;
    };
    let told = running.into_iter().flat_map(|running| {
        (0..8).filter_map(|at| {
            running
                .get(&format!("SlurmctldHost[{at}]"))
                .map(str::to_owned)
        })
    });
    let written = conf.into_iter().flat_map(|conf| conf.all("slurmctldhost"));
    told.chain(written.map(|setting| setting.value))
        .any(|value| value.split(['(', '.']).next().map(str::trim) == Some(own.as_str()))
}
