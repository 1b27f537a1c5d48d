//! A mom that starts: each GPU of its host is a vnode with its share of CPUs and memory.

use super::advise;
use super::event::{Divided, Edit, Event, Gpu, Host, Value};
use super::launch::is_word;
use super::options::said;
use super::resources::{
    LEAF, MIG_BOARD, MIG_COMPUTE, MIG_GPU, MIG_MEMORY, NGPUS, NUMA, NVLINK, SHARE_GPU, SHARE_PARTS,
    UUID,
};
use super::vnodes::{MOST_GPUS, vnode_name};
use crate::units;

/// No GPU is shared by more jobs.
const MOST_SHARES: u16 = 256;

/// What the host's vnodes are, where the administrator describes its GPUs; any other host stays as it is.
pub(super) fn started(event: &Event) -> Result<Vec<Edit>, String> {
    let short = event.host.split('.').next().unwrap_or_default();
    let host = event
        .hosts
        .get(&event.host)
        .or_else(|| event.hosts.get(short));
    let Some(host) = host.filter(|host| !host.gpus.is_empty()) else {
        return Ok(Vec::new());
    };
    let what = |why: String| format!("gpuos makes no vnodes of the GPUs of {short}: {why}");
    if host.advise {
        return advise::started(event, host).map_err(what);
    }
    check(host).map_err(what)?;
    // The host's own vnode may have the long name; under another one what is left would be counted a second time.
    let natural = event
        .vnodes
        .get_key_value(&event.host)
        .or_else(|| event.vnodes.get_key_value(short));
    let has = |name| natural.and_then(|(_, vnode)| said(vnode, name));
    let cpus = has("ncpus").and_then(|count| count.parse::<u64>().ok());
    let memory = has("mem").and_then(units::kib);
    let cpus = cpus.ok_or_else(|| what("mom does not say how many CPUs the host has".into()))?;
    let memory =
        memory.ok_or_else(|| what("mom does not say how much memory the host has".into()))?;
    let own = natural.map_or(short, |(name, _)| name);
    let count = u64::try_from(host.gpus.len()).unwrap_or(u64::MAX);
    let share = |all: u64, kept: u64| all.saturating_sub(kept) / count;
    let (cpu_share, memory_share) = (
        share(cpus, host.keep_cpus),
        share(memory, host.keep_mib.saturating_mul(1024)),
    );
    if cpu_share == 0 {
        return Err(what(format!(
            "{cpus} CPUs less {} are not one for each of {count} GPUs; lower keep_cpus",
            host.keep_cpus
        )));
    }
    let mut edits = Vec::new();
    let rest = [
        ("ncpus", Value::Number(cpus - cpu_share * count)),
        ("mem", kib(memory - memory_share * count)),
        (NGPUS, Value::Number(0)),
    ];
    set(&mut edits, own, rest);
    text(&mut edits, own, LEAF, &host.leaf);
    for (index, gpu) in host.gpus.iter().enumerate() {
        let vnode = vnode_name(short, index);
        let share = [
            ("ncpus", Value::Number(cpu_share)),
            ("mem", kib(memory_share)),
            (NGPUS, Value::Number(u64::from(gpu.is_whole()))),
        ];
        set(&mut edits, &vnode, share);
        about(&mut edits, &vnode, gpu);
        if let Some(mig) = &gpu.mig {
            slices(&mut edits, &vnode, mig, &format!("{short}-{index}"));
        }
        if gpu.shares > 0 {
            set(
                &mut edits,
                &vnode,
                [(SHARE_PARTS, Value::Number(gpu.shares.into()))],
            );
            text(&mut edits, &vnode, SHARE_GPU, &format!("{short}-{index}"));
        }
        // Of a vnode that jobs may share pbs_server does not see that two starts which race take the same GPU. Slices and parts are counted by
        // pbs_sched, which alone starts their jobs; slices are chosen by gpuosd, which gives none twice.
        edits.push(Edit::Sharing {
            vnode: vnode.clone(),
            value: match gpu.is_whole() {
                false => "default_shared",
                true => "force_excl",
            },
        });
        text(&mut edits, &vnode, LEAF, &host.leaf);
    }
    Ok(edits)
}

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

fn about(edits: &mut Vec<Edit>, vnode: &str, gpu: &Gpu) {
    text(edits, vnode, UUID, &gpu.uuid);
    text(edits, vnode, NVLINK, &gpu.nvlink);
    if let Some(numa) = gpu.numa {
        text(edits, vnode, NUMA, &numa.to_string());
    }
}

/// The slices of a GPU that is divided, and what it has in common with no other: a job is on one GPU.
fn slices(edits: &mut Vec<Edit>, vnode: &str, mig: &Divided, alone: &str) {
    let counts = [
        (MIG_COMPUTE, Value::Number(mig.compute.into())),
        (MIG_MEMORY, Value::Number(mig.memory.into())),
    ];
    set(edits, vnode, counts);
    text(edits, vnode, MIG_BOARD, &mig.board);
    text(edits, vnode, MIG_GPU, alone);
}

fn text(edits: &mut Vec<Edit>, vnode: &str, name: &'static str, value: &str) {
    if !value.is_empty() {
        set(edits, vnode, [(name, Value::Text(value.into()))]);
    }
}

fn set<const N: usize>(edits: &mut Vec<Edit>, vnode: &str, values: [(&'static str, Value); N]) {
    edits.extend(values.map(|(name, value)| Edit::Vnode {
        vnode: vnode.into(),
        name,
        value,
    }));
}

fn kib(amount: u64) -> Value {
    Value::Text(format!("{amount}kb"))
}
