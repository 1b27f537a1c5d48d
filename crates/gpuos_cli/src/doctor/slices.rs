//! Whether Slurm counts the slices of GPUs that gpuos.toml has pools of.

use std::collections::BTreeMap;

use gpuos_config::gpuos_toml::STEERED_SLICES;
use gpuos_host::Machine;
use gpuos_host::slurm::Running;
use gpuos_host::slurm::site::Site;
use gpuos_model::hostlist::compress;

use super::Findings;
use super::about::{self, About};

const NAME: About = about::SLICES;
const PLUGIN: &str = "gres_gpuos.so";

/// Says nothing where there is no pool, and no node with the GRES.
pub fn check(machine: &dyn Machine, site: &Site, running: &Running, findings: &mut Findings) {
    let mig = &site.config.mig;
    let counted = site.nodes.iter().any(|node| !node.slices.is_empty());
    if mig.pools.is_empty() && !counted {
        return;
    }
    let before = findings.0.len();
    let types = running.get("GresTypes").unwrap_or_default();
    if !types.split(',').any(|one| one.trim() == "gpuos") {
        findings.fail(
            NAME,
            format!("GresTypes ({types}) has no gpuos: no job gets a slice"),
            "set GresTypes=gpu,gpuos in slurm.conf and restart slurmctld and every slurmd",
        );
    }
    let dirs = running.plugin_dirs();
    let found = dirs
        .iter()
        .any(|dir| machine.read(&dir.join(PLUGIN)).is_ok());
    if !found {
        let dirs: Vec<String> = dirs.iter().map(|dir| dir.display().to_string()).collect();
        findings.fail(
            NAME,
            format!(
                "no {PLUGIN} in PluginDir ({}) that can be read here",
                dirs.join(":")
            ),
            "install it there, on the nodes too: without it steps do not find their slices",
        );
    }
    // What differs, with the nodes of which it is true.
    let mut wrong: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    let mut right: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for node in &site.nodes {
        let has: Vec<String> = node
            .slices
            .iter()
            .map(|(board, count)| format!("gpuos:{board}:{count}"))
            .collect();
        let has = has.join(",");
        let Some((pool, board)) = mig.pool_of(&node.name) else {
            if !has.is_empty() {
                let what = format!("slurm.conf has {has}, and no [[mig.pool]] has the node");
                wrong.entry(what).or_default().push(&node.name);
            }
            continue;
        };
        let count = pool.slices(board);
        let wanted = format!("gpuos:{}:{count}", board.name);
        if has != wanted {
            let has = if has.is_empty() { "none" } else { &has };
            let what = format!("[[mig.pool]] makes {wanted}, slurm.conf has {has}");
            wrong.entry(what).or_default().push(&node.name);
        } else {
            right.entry(&board.name).or_default().push(&node.name);
        }
        let highest = pool
            .switchable
            .iter()
            .filter_map(|gpu| pool.whole(gpu))
            .max();
        if highest.is_some_and(|number| number.index() >= node.gpu_count()) {
            let has = node.gpu_count();
            let what = format!(
                "GPU {} of the pool is MIG-switchable, so it is in GRES gpu too, of which slurm.conf has {has}",
                pool.switchable
            );
            wrong.entry(what).or_default().push(&node.name);
        }
        if count > STEERED_SLICES {
            let what = format!("{count} slices: jobs get the first {STEERED_SLICES} only");
            wrong.entry(what).or_default().push(&node.name);
        }
    }
    for (what, nodes) in wrong {
        findings.fail(
            NAME,
            format!("{}: {what}", compress(nodes)),
            "make Gres= in slurm.conf, gres.conf and [[mig.pool]] agree: `gpuos discover` on the node prints all three",
        );
    }
    if findings.0.len() == before {
        let all = right.into_iter();
        let all: Vec<String> = all
            .map(|(board, nodes)| format!("{board} ({})", compress(nodes)))
            .collect();
        findings.ok(NAME, all.join(", "));
    }
}
