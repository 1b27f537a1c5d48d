//! Where the gpuosds of this machine listen: one on a node, one for each node in a lab.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{anyhow, bail};
use gpuos_core::wire::Status;
use gpuos_host::pbs::Pbs;
use gpuos_host::socket::{Client, ClientError, NAME};
use gpuos_host::{Machine, slurm};
use gpuos_model::hostlist::compress;
use gpuos_model::screen::line;

/// The directory of gpuosd's socket, where neither `--runtime-dir` nor the environment says another.
pub const RUNTIME_DIR: &str = "/run/gpuos";

/// The variable that names it. `%n` in it stands for the name of the node: a lab has many on one machine.
pub const RUNTIME_ENV: &str = "GPUOS_RUNTIME_DIR";

/// Stands for the name of a node.
const NODE: &str = "%n";

/// Whether the directory is another one for each node.
pub fn is_of_nodes(dir: &Path) -> bool {
    dir.to_string_lossy().contains(NODE)
}

/// The directory of a node's gpuosd.
pub fn of_node(dir: &Path, node: &str) -> PathBuf {
    dir.to_string_lossy().replace(NODE, node).into()
}

/// Names of nodes with a directory here, with it, sorted; for one without `%n` that alone, without a name.
pub fn all(dir: &Path) -> Vec<(Option<String>, PathBuf)> {
    if !is_of_nodes(dir) {
        return vec![(None, dir.to_path_buf())];
    }
    let text = dir.to_string_lossy();
    let Some((before, after)) = text.split_once(NODE) else {
        return Vec::new();
    };
    let folder = Path::new(before).parent().unwrap_or(Path::new("/"));
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<(Option<String>, PathBuf)> = entries
        .filter_map(|entry| {
            let path = entry.path();
            let whole = path.to_str()?;
            let node = whole.strip_prefix(before)?;
            // What stands behind the name may be folders below.
            let name = match after.is_empty() {
                true => node.to_string(),
                false => node
                    .to_string()
                    .strip_suffix(after.split('/').next()?)?
                    .to_string(),
            };
            let dir = of_node(dir, &name);
            (!name.is_empty() && dir.is_dir()).then_some((Some(name), dir))
        })
        .collect();
    // n2 before n10.
    found.sort_by_key(|(name, _)| {
        let name = name.clone().unwrap_or_default();
        let digits = name.trim_start_matches(|c: char| !c.is_ascii_digit());
        (
            name[..name.len() - digits.len()].to_string(),
            digits.parse::<u64>().unwrap_or(0),
            name.clone(),
        )
    });
    found
}

/// The directory to ask for a node, or for this machine: the only one there is, or that of the node.
pub fn pick(dir: &Path, node: Option<&str>) -> PathBuf {
    if !is_of_nodes(dir) {
        return dir.to_path_buf();
    }
    match node {
        Some(node) => of_node(dir, node),
        None => {
            let first = all(dir).into_iter().next();
            first.map_or_else(|| of_node(dir, "none"), |(_, dir)| dir)
        }
    }
}

/// Whether the workload manager has a node of this name, looked at where that node was not reached: nothing can be started on one that
/// there is not. Where nobody answers for the nodes, it is taken for one.
///
/// # Errors
/// A sentence with the nodes that there are.
pub fn check_known(machine: &dyn Machine, node: &str) -> anyhow::Result<()> {
    let known: Vec<String> = match slurm::nodes(machine) {
        Ok(nodes) => nodes.into_iter().map(|node| node.name).collect(),
        Err(_) => match Pbs::find(machine).and_then(|pbs| pbs.site(machine, None)) {
            Ok(site) => {
                let nodes = site.cluster.nodes.into_iter();
                nodes.map(|node| node.name).collect()
            }
            Err(_) => return Ok(()),
        },
    };
    if known.is_empty() || known.iter().any(|known| known == node) {
        return Ok(());
    }
    let known = compress(known.iter().map(String::as_str));
    bail!("there is no node {}: write one of {known}", line(node))
}

/// What is said where a daemon of this name answers a question with what belongs to another one.
pub fn other_answer(daemon: &str) -> anyhow::Error {
    anyhow!("{daemon} did not answer what was asked: have command and {daemon} of one release")
}

/// gpuosd of this machine, if it is that node's.
pub fn own(dir: &Path, node: &str, patience: Duration) -> Option<Client> {
    let client = Client::connect(&dir.join(NAME), patience).ok()?;
    (client.daemon.1 == node).then_some(client)
}

/// Asks gpuosd of a node, or without one that of this node: `here` by its socket on this machine, `far` where it is another machine's.
///
/// # Errors
/// It is to be here and is not reached, or those of `here` and `far`.
pub fn ask<T>(
    machine: &dyn Machine,
    dir: &Path,
    node: Option<&str>,
    patience: Duration,
    here: impl FnOnce(Client) -> anyhow::Result<T>,
    far: impl FnOnce(&str) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    match node {
        Some(node) if !is_of_nodes(dir) => match own(dir, node, patience) {
            Some(client) => here(client),
            None => far(node),
        },
        // In a lab all nodes are here.
        node => match Client::connect(&pick(dir, node).join(NAME), patience) {
            Ok(client) => here(client),
            Err(error) => {
                node.map_or(Ok(()), |node| check_known(machine, node))?;
                Err(error.into())
            }
        },
    }
}

/// What the gpuosd of a directory says of its node.
pub fn status(dir: &Path, patience: Duration) -> Result<Status, ClientError> {
    Client::connect(&dir.join(NAME), patience)?.status()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lab_has_one_for_each_node() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["gpuosd.n10", "gpuosd.n2", "other", "gpuosd."] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        let template = dir.path().join("gpuosd.%n");
        let names: Vec<String> = all(&template)
            .into_iter()
            .filter_map(|(name, _)| name)
            .collect();
        assert_eq!(names, ["n2", "n10"]);
        assert_eq!(pick(&template, None), dir.path().join("gpuosd.n2"));
        assert_eq!(pick(&template, Some("n7")), dir.path().join("gpuosd.n7"));
        assert_eq!(
            all(Path::new("/run/gpuos")),
            [(None, PathBuf::from("/run/gpuos"))]
        );
        assert_eq!(
            pick(Path::new("/run/gpuos"), Some("n1")),
            Path::new("/run/gpuos")
        );
    }
}
