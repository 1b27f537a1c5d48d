//! Whether GPUs that jobs may share are counted so that nobody gets one twice.

use std::collections::BTreeMap;

use gpuos_config::options::parse_gres;
use gpuos_host::slurm::site::Site;
use gpuos_host::slurm::{NodeRecord, Running};
use gpuos_model::hostlist::compress;

use super::Findings;
use super::about::{self, About};

const NAME: About = about::SHARDS;

/// From this release on Slurm remembers that a GPU is shared until the last of its jobs has ended.
const REMEMBERS_FROM: (u32, u32, u32) = (23, 11, 5);

/// Says nothing where no node has GRES shard.
pub fn check(site: &Site, running: &Running, findings: &mut Findings) {
    let counted: Vec<(&NodeRecord, u64)> = site
        .nodes
        .iter()
        .map(|node| (node, count(node, "shard")))
        .filter(|(_, shards)| *shards > 0)
        .collect();
    if counted.is_empty() {
        return;
    }
    let before = findings.0.len();
    let mut wrong: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    let mut right: BTreeMap<u64, Vec<&str>> = BTreeMap::new();
    for (node, shards) in counted {
        let gpus: u64 = node.gpus.iter().map(|(_, count)| *count as u64).sum();
        let named = node.gpus.iter().all(|(name, _)| !name.is_empty()) || node.gres.contains("(S:");
        let mut say = |what, fix| wrong.entry((what, fix)).or_default().push(&node.name);
        if !named {
            say(
                "GRES gpu has neither Type= nor Cores=: some releases only count such GPUs, and may give one that is shared",
                "write Type= or Cores= into the lines of GRES gpu in gres.conf",
            );
        }
        if count(node, "mps") > 0 {
            say(
                "both GRES shard and GRES mps: Slurm keeps whole GPUs apart from one of them only",
                "take GRES mps out: --gpuos-share=mps:25% is counted in shards",
            );
        }
        if gpus == 0 || shards % gpus != 0 {
            say(
                "the shards cannot be dealt out evenly to the GPUs",
                "make the count of shard in Gres= and gres.conf a multiple of the GPUs",
            );
        } else {
            right.entry(shards / gpus).or_default().push(&node.name);
        }
    }
    for ((what, fix), nodes) in wrong {
        findings.warn(NAME, format!("{}: {what}", compress(nodes)), fix);
    }
    let selected = running
        .get("SelectType")
        .is_some_and(|select| select == "select/gpuos");
    let mut numbers = running.release().split('.').map(|part| part.parse::<u32>());
    let mut number = || numbers.next().and_then(Result::ok).unwrap_or(u32::MAX);
    if !selected && (number(), number(), number()) < REMEMBERS_FROM {
        findings.warn(
            NAME,
            "this Slurm gives a shared GPU as a whole once one of its jobs has ended",
            "set SelectType=select/gpuos, which prevents it, or update Slurm to 23.11.5 or later",
        );
    }
    if findings.0.len() == before {
        let all = right.into_iter();
        let all: Vec<String> = all
            .map(|(each, nodes)| format!("{each} of each GPU ({})", compress(nodes)))
            .collect();
        findings.ok(NAME, all.join(", "));
    }
}

/// How many of a GRES a node has.
pub fn count(node: &NodeRecord, gres: &str) -> u64 {
    let all = parse_gres("Gres", &node.gres).unwrap_or_default();
    let own = all.iter().filter(|one| one.name == gres);
    own.fold(0, |all, one| all.saturating_add(one.count))
}
