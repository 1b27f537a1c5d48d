//! Hosts as the administrator describes them: what is checked of that, and what their vnodes say by it.

use std::collections::BTreeMap;

use super::event::{Gpu, Host};
use super::launch::is_word;
use super::resources::{LEAF, MIG_BOARD, NVLINK};
use super::vnodes::{MOST_GPUS, gpu_of};

/// No GPU is shared by more jobs.
const MOST_SHARES: u16 = 256;

/// Resources of vnodes that say where a host's GPUs are, which `gpuos pbs install` sets.
pub const SAID: [&str; 3] = [LEAF, NVLINK, MIG_BOARD];

/// Checks what an administrator describes.
///
/// # Errors
/// Which value cannot be used.
pub(super) fn check(host: &Host) -> Result<(), String> {
    if host.gpus.len() > MOST_GPUS {
        return Err(format!(
            "{} GPUs are more than {MOST_GPUS}",
            host.gpus.len()
        ));
    }
    if let Some(gpu) = host.gpus.iter().find(|gpu| gpu.shares > MOST_SHARES) {
        return Err(format!("shares {} are more than {MOST_SHARES}", gpu.shares));
    }
    let words = host
        .gpus
        .iter()
        .flat_map(|gpu| [("uuid", &gpu.uuid), ("nvlink", &gpu.nvlink)]);
    let mut words = words
        .chain([("leaf", &host.leaf)])
        .filter(|(_, word)| !word.is_empty());
    match words.find(|(_, word)| !is_word(word)) {
        Some((key, word)) => Err(format!(
            "{key} '{}' is no name (letters, digits and - _ . / :)",
            gpuos_model::hostlist::shorten(word)
        )),
        None => Ok(()),
    }
}

/// What a vnode of a host says of its place, by resource; empty: nothing.
pub fn said(host: &Host, vnode: &str) -> BTreeMap<&'static str, String> {
    let numa = gpu_of(vnode).map(|(_, numa)| numa);
    let divided = host.gpus.iter().filter(|_| !host.advise);
    let board = divided
        .filter_map(|gpu| gpu.mig.as_ref())
        .map(|mig| mig.board.clone())
        .next();
    BTreeMap::from([
        (LEAF, host.leaf.clone()),
        (NVLINK, nvlink(host, numa).to_owned()),
        (MIG_BOARD, board.unwrap_or_default()),
    ])
}

/// The set of NVLink that all whole GPUs of a vnode are in: of the host's own all that it has, of one of a NUMA node those beside it.
fn nvlink(host: &Host, numa: Option<usize>) -> &str {
    let beside =
        |gpu: &&Gpu| numa.is_none() || gpu.numa.and_then(|own| own.try_into().ok()) == numa;
    let whole = host.gpus.iter().filter(|gpu| gpu.is_whole());
    let mut sets = whole.filter(beside).map(|gpu| &gpu.nvlink[..]);
    let first = sets.next().unwrap_or_default();
    match sets.all(|other| other == first) {
        true => first,
        false => "",
    }
}

/// Whether a host's GPUs are in several sets of NVLink.
pub fn has_several_sets(host: &Host) -> bool {
    let whole = host.gpus.iter().filter(|gpu| gpu.is_whole());
    let linked = whole.clone().any(|gpu| !gpu.nvlink.is_empty());
    linked && whole.count() > 1 && nvlink(host, None).is_empty()
}
