//! The topologies that slurmctld goes by, from its files or as it shows them.

use std::path::Path;

use gpuos_config::slurm_conf::TopologyKeys;
use gpuos_config::slurm_topology::{
    SlurmRelease, Topologies, parse_topology_conf, parse_topology_yaml,
};

use crate::Machine;
use crate::slurm::local::text;
use crate::slurm::{self, NodeRecord, Running};

/// What is known of the topologies.
#[derive(Default)]
pub(super) struct Found {
    /// Those in force.
    pub topologies: Topologies,
    /// Nodes that their file names and slurmctld does not have.
    pub strangers: Vec<String>,
    /// Why there are none, where their file cannot be read or has a mistake.
    pub note: Option<String>,
}

/// The topologies of a running slurmctld; what its own files do not tell, slurmctld shows.
pub(super) fn topologies(machine: &dyn Machine, running: &Running, nodes: &[NodeRecord]) -> Found {
    let release = SlurmRelease::parse(running.release());
    let plugin = running.get("TopologyPlugin").unwrap_or("");
    let mut found = Found::default();
    let topologies = match of_files(machine, &running.directory(), release, plugin) {
        Ok(topologies) if !topologies.all().is_empty() => {
            let names: Vec<String> = nodes.iter().map(|node| node.name.clone()).collect();
            found.strangers = topologies.unknown_nodes(&names);
            Ok(topologies)
        }
        // Without slurm.conf there are none of its files here.
        Ok(none) if machine.read(&running.slurm_conf()).is_ok() && is_flat(plugin) => Ok(none),
        Ok(_) => shown(machine, release),
        Err(why) => Err(why),
    };
    match topologies {
        Ok(mut topologies) => {
            let texts = nodes.iter();
            topologies.move_nodes(texts.map(|node| (&*node.name, &*node.topology)));
            found.topologies = topologies;
        }
        Err(why) => found.note = Some(format!("{why}; the fabric is left out")),
    }
    found
}

/// Whether the plugin needs no file.
fn is_flat(plugin: &str) -> bool {
    !plugin.contains("tree") && !plugin.contains("block")
}

/// The topologies by the files in a folder.
fn of_files(
    machine: &dyn Machine,
    folder: &Path,
    release: Option<SlurmRelease>,
    plugin: &str,
) -> Result<Topologies, String> {
    let read = |name: &str| text(machine, &folder.join(name));
    Topologies::read_in(folder, release, plugin, &read)
}

/// The topologies that slurmctld shows, if it shows any.
///
/// # Errors
/// What it shows is not understood.
fn shown(machine: &dyn Machine, release: Option<SlurmRelease>) -> Result<Topologies, String> {
    const SHOW_ALL_FROM: SlurmRelease = SlurmRelease {
        major: 25,
        minor: 5,
    };
    if release.is_none_or(|release| release >= SHOW_ALL_FROM)
        && let Ok(text) = slurm::scontrol(machine, &["show", "topoconf"])
        && let Ok(found) = parse_topology_yaml(&text, "scontrol show topoconf")
    {
        return Ok(found);
    }
    let Ok(text) = slurm::scontrol(machine, &["show", "topology"]) else {
        return Ok(Topologies::default());
    };
    let file = parse_topology_conf(&without_levels(&text), "scontrol show topology");
    let file = file.map_err(|why| why.to_string())?;
    Ok(Topologies::of_conf(file))
}

/// The topologies by the files of this node, and where it has none, by slurmctld.
///
/// # Errors
/// A file cannot be read or has a mistake: a sentence.
pub(crate) fn local_topologies(machine: &dyn Machine) -> Result<Topologies, String> {
    let release = installed(machine);
    let Some(folder) = slurm::conf_folder(machine) else {
        return shown(machine, release);
    };
    let keys = TopologyKeys::read(&|name| text(machine, &folder.join(name)))?;
    let mut found = of_files(machine, &folder, release, &keys.plugin)?;
    if found.all().is_empty() && !is_flat(&keys.plugin) {
        found = shown(machine, release)?;
    }
    found.move_nodes(keys.moves());
    Ok(found)
}

/// The release of Slurm on this node; `scontrol -V` asks nobody.
fn installed(machine: &dyn Machine) -> Option<SlurmRelease> {
    let output = machine.run("scontrol", &["-V"]).ok().filter(|out| out.ok)?;
    SlurmRelease::parse(output.stdout.split_whitespace().last()?)
}

/// `scontrol show topology` in the form of topology.conf: without what is only shown (levels,
/// the nodes below switches of switches, and blocks that Slurm makes of others).
fn without_levels(shown: &str) -> String {
    let mut text = String::new();
    for line in shown.lines() {
        let tree = line.contains("Switches=");
        for word in line.split_whitespace() {
            let key = word.split('=').next().unwrap_or("");
            let keep = match key {
                "AggregatedBlock" => break,
                "SwitchName" | "Switches" | "BlockName" => true,
                "Nodes" => !tree,
                _ => false,
            };
            if keep {
                text.push_str(word);
                text.push(' ');
            }
        }
        text.push('\n');
    }
    text
}
