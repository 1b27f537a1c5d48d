//! `gpuos mig`: which slices of a node's GPUs are taken, by whom, and what still fits. gpuosd of the node
//! tells it. [`plan`] says what a job would get, [`assert`] holds it against a file.

mod assert;
mod defrag;
pub mod offers;
mod outlook;
pub mod plan;
pub mod pool;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use gpuos_core::job::JobId;
use gpuos_core::wire::{MigGpuStatus, MigInstance, MigStatus, Percent, Reply as Answer, Request};
use gpuos_host::Machine;
use gpuos_host::socket::Client;
use gpuos_model::gpuset::GpuSet;
use gpuos_model::mig::MigPlacement;
use serde_json::json;

use crate::cli::{MigArgs, MigCommand, Reach};
use crate::daemons;
use crate::remote;
use crate::reply::Reply;
use crate::table::{Table, count};

/// How long gpuosd may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// A slice that nobody holds, and one that a job holds without an instance.
const FREE: char = '.';
const HELD: char = '-';

/// The answer, and the exit code where it is not just yes or no.
pub fn run(
    machine: &dyn Machine,
    config: Option<&Path>,
    args: &MigArgs,
) -> Result<(Reply, Option<u8>)> {
    match &args.command {
        Some(MigCommand::Plan(args)) => Ok((plan::run(machine, config, args)?, None)),
        Some(MigCommand::Assert(args)) => assert::run(machine, args),
        None => {
            let (node, mig) = ask(machine, &args.reach, args.node.as_deref())?;
            let reply = match args.layout {
                true => assert::layout(&node, &mig),
                false => shown(&node, &mig),
            };
            Ok((reply, None))
        }
    }
}

/// What gpuosd of a node tells, and the node's name; without one that of this node.
pub fn ask(
    machine: &dyn Machine,
    reach: &Reach,
    node: Option<&str>,
) -> Result<(String, Box<MigStatus>)> {
    let far = |node: &str| far(machine, reach, node);
    daemons::ask(machine, &reach.runtime_dir, node, PATIENCE, here, far)
}

/// The same of gpuosd of this machine, if it is that node's.
fn local(reach: &Reach, node: &str) -> Option<Result<(String, Box<MigStatus>)>> {
    daemons::own(&reach.runtime_dir, node, PATIENCE).map(here)
}

fn here(mut client: Client) -> Result<(String, Box<MigStatus>)> {
    let node = client.daemon.1.clone();
    match client.ask(&Request::Mig)? {
        Answer::Mig { mig } => Ok((node, mig)),
        _ => Err(daemons::other_answer("gpuosd")),
    }
}

/// The same from gpuosd of another node, by the same command there.
fn far(machine: &dyn Machine, reach: &Reach, node: &str) -> Result<(String, Box<MigStatus>)> {
    let dir = remote::runtime_dir(&reach.runtime_dir);
    let (told, _) = remote::ask(machine, &reach.via, node, &format!("gpuos --json mig{dir}"))?;
    let strange = || format!("gpuos of {node} gave another answer: {told}");
    let mig = serde_json::from_value(told["mig"].clone()).with_context(strange)?;
    Ok((told["node"].as_str().unwrap_or(node).into(), mig))
}

fn shown(node: &str, mig: &MigStatus) -> Reply {
    let slices: usize = mig.gpus.iter().map(|gpu| usize::from(gpu.slices)).sum();
    let free = mig.gpus.iter().filter(|gpu| !is_held(gpu));
    let free: usize = free.map(|gpu| gpu.free.len()).sum();
    let whole = !mig.board.is_empty();
    let well = mig.gpus.iter().all(|gpu| gpu.trouble.is_none());
    let mut text = match whole {
        true => format!(
            "{node}: {} x {}, {free} of {slices} memory slices free\n",
            mig.gpus.len(),
            mig.board
        ),
        false => format!("{node}: {}\n", no_pool(mig)),
    };
    for gpu in &mig.gpus {
        text += &of_gpu(gpu);
    }
    if mig.gpus.iter().any(|gpu| !gpu.instances.is_empty()) {
        text += &format!("\n{}", holders(mig));
    }
    Reply {
        schema: "gpuos.mig/1",
        json: json!({ "node": node, "slices": slices, "free": free, "mig": mig }),
        text,
        yes: whole && well,
    }
}

/// Why gpuosd tells of no GPU.
fn no_pool(mig: &MigStatus) -> &'static str {
    match mig.unread {
        true => "not known: gpuosd has not read gpuos.toml yet (`gpuos status` says why)",
        false => "no GPU is divided: gpuos.toml has no [[mig.pool]] with this node",
    }
}

/// Whether a job has it whole.
fn is_held(gpu: &MigGpuStatus) -> bool {
    gpu.holder.is_some() || gpu.others
}

/// The bar of a GPU, its free placements, and what fits into them.
fn of_gpu(gpu: &MigGpuStatus) -> String {
    let mut text = format!("\nGPU {:<3} {}", gpu.gpu, bar(gpu));
    text += &match (&gpu.holder, gpu.free.is_empty()) {
        (Some(job), _) => format!("  whole: job {job} has it"),
        (None, _) if gpu.others => "  whole: another user's job has it".into(),
        (None, true) => "  full".into(),
        (None, false) => format!("  free {}", ranges(&gpu.free)),
    };
    let some = |count: u32| count > 0 && !is_held(gpu);
    let fits = gpu.fits.iter().filter(|(_, count)| some(**count));
    let fits: Vec<String> = fits
        .map(|(name, count)| format!("{name}:{count}"))
        .collect();
    if !fits.is_empty() {
        text += &format!("  fits {}", fits.join(" or "));
    }
    text += match (gpu.switchable, gpu.whole) {
        (true, true) => "  (MIG-switchable; MIG mode is off)",
        (true, false) => "  (MIG-switchable; MIG mode is on)",
        (false, _) => "",
    };
    if !gpu.ready {
        text += "  (gpuosd has not heard NVML and the workload manager yet)";
    }
    text.push('\n');
    if let Some(trouble) = &gpu.trouble {
        text += &format!("        {trouble}\n");
    }
    text
}

/// A character for each memory slice: the letter of its instance in the table below.
fn bar(gpu: &MigGpuStatus) -> String {
    let mut cells = vec![HELD; usize::from(gpu.slices)];
    for &slice in &gpu.free {
        if let Some(cell) = cells.get_mut(usize::from(slice)) {
            *cell = FREE;
        }
    }
    for (nth, instance) in gpu.instances.iter().enumerate() {
        let start = usize::from(instance.placement.start);
        let end = start + usize::from(instance.placement.size);
        for cell in cells.iter_mut().take(end).skip(start) {
            *cell = letter(nth);
        }
    }
    let bar: String = cells.iter().collect();
    format!("[{bar}]")
}

fn letter(nth: usize) -> char {
    let letters = ('a'..='z').chain('A'..='Z').chain('0'..='9');
    letters.into_iter().nth(nth).unwrap_or('?')
}

/// Slices as ranges: `0-3,6`.
pub(super) fn ranges(slices: &[u8]) -> String {
    let set = slices
        .iter()
        .fold(GpuSet::EMPTY, |set, slice| set.with((*slice).into()));
    set.to_string()
}

/// The slices of a placement: `4-7`, `2`.
pub fn slices_of(placement: MigPlacement) -> String {
    let last = placement.start.saturating_add(placement.size.max(1)) - 1;
    match placement.size {
        0 | 1 => last.to_string(),
        _ => format!("{}-{last}", placement.start),
    }
}

/// Whose the instances are.
fn holders(mig: &MigStatus) -> String {
    let mut table = Table::new(&[
        "GPU",
        "KEY",
        "PROFILE",
        "SLICES",
        "JOB",
        "PHASE",
        "MEMORY",
        "SM",
        "BANDWIDTH",
        "PIDS",
        "UUID",
    ]);
    for gpu in &mig.gpus {
        for (nth, instance) in gpu.instances.iter().enumerate() {
            let pids: BTreeSet<u32> = instance.pids.iter().copied().collect();
            let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
            table.row([
                gpu.gpu.to_string(),
                letter(nth).to_string(),
                instance.profile.clone(),
                slices_of(instance.placement),
                holder(instance),
                instance.phase.clone(),
                memory(instance),
                share(instance.load.sm_percent),
                share(instance.load.bandwidth_percent),
                pids.join(","),
                instance.uuid.clone().unwrap_or_default(),
            ]);
        }
    }
    let mut text = table.render();
    text += &loads(mig);
    let foreign = mig.gpus.iter().flat_map(|gpu| &gpu.instances);
    let foreign = foreign.filter(|instance| instance.foreign).count();
    if foreign > 0 {
        let what = count(foreign, "instance");
        text += &format!(
            "{what} made by hand: [mig] foreign in gpuos.toml says what is done about them\n"
        );
    }
    text
}

/// `1000/40448 MiB`, or why that is not known.
fn memory(instance: &MigInstance) -> String {
    match (instance.memory_used_mib, instance.memory_total_mib) {
        (Some(used), Some(total)) => format!("{used}/{total} MiB"),
        _ => {
            let why = instance.memory_unknown.as_deref();
            format!("n/a ({})", why.unwrap_or("gpuosd does not tell it"))
        }
    }
}

/// `97%`, or `n/a`; [`loads`] says why.
fn share(percent: Option<Percent>) -> String {
    percent.map_or("n/a".into(), |percent| format!("{percent}%"))
}

/// A line for each reason why the load of instances is not known.
fn loads(mig: &MigStatus) -> String {
    let mut reasons: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut all = 0;
    for gpu in &mig.gpus {
        for (nth, instance) in gpu.instances.iter().enumerate() {
            all += 1;
            let load = &instance.load;
            if load.sm_percent.is_some() && load.bandwidth_percent.is_some() {
                continue;
            }
            let why = load.load_unknown.as_deref();
            let why = why.unwrap_or("gpuosd does not tell it");
            let key = format!("{}{}", gpu.gpu, letter(nth));
            reasons.entry(why).or_default().push(key);
        }
    }
    let each = reasons.iter().map(|(why, keys)| match keys.len() == all {
        true => format!("Load of all instances: n/a ({why})\n"),
        false => format!("Load of {}: n/a ({why})\n", keys.join(", ")),
    });
    each.collect()
}

fn holder(instance: &MigInstance) -> String {
    match instance.others {
        true => crate::health::others(1),
        false => instance.job.as_ref().map_or("-".into(), JobId::to_string),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(start: u8, size: u8) -> MigInstance {
        MigInstance {
            profile: "3g.40gb".into(),
            placement: MigPlacement { start, size },
            gi: Some(1),
            ci: Some(0),
            uuid: Some("MIG-1".into()),
            job: Some(17.into()),
            phase: "ready".into(),
            foreign: false,
            others: false,
            pids: vec![5, 4, 5],
            memory_total_mib: None,
            memory_used_mib: None,
            memory_unknown: None,
            load: gpuos_core::wire::MigLoad::default(),
        }
    }

    #[test]
    fn a_bar_has_a_letter_for_each_slice() {
        let gpu = MigGpuStatus {
            slices: 8,
            ready: true,
            instances: vec![instance(4, 4), instance(2, 1), instance(7, 200)],
            free: vec![0, 1],
            ..MigGpuStatus::new(4u8.try_into().unwrap())
        };
        assert_eq!(bar(&gpu), "[..b-aaac]");
        assert_eq!(ranges(&[0, 1, 3, 6, 7]), "0-1,3,6-7");
    }

    #[test]
    fn a_gpu_that_moves_is_whole_or_divided() {
        let divided = MigGpuStatus {
            slices: 4,
            ready: true,
            switchable: true,
            free: vec![0, 1, 2, 3],
            ..MigGpuStatus::new(4u8.try_into().unwrap())
        };
        let idle = MigGpuStatus {
            whole: true,
            ..divided.clone()
        };
        let held = MigGpuStatus {
            holder: Some(17.into()),
            free: Vec::new(),
            ..idle.clone()
        };
        for (gpu, line) in [
            (
                divided,
                "[....]  free 0-3  (MIG-switchable; MIG mode is on)",
            ),
            (idle, "[....]  free 0-3  (MIG-switchable; MIG mode is off)"),
            (
                held,
                "[----]  whole: job 17 has it  (MIG-switchable; MIG mode is off)",
            ),
        ] {
            assert_eq!(of_gpu(&gpu), format!("\nGPU 4   {line}\n"));
        }
    }

    #[test]
    fn a_node_without_a_pool_is_a_no() {
        let reply = shown("n1", &MigStatus::default());
        assert!(
            !reply.yes && reply.text.contains("[[mig.pool]]"),
            "{}",
            reply.text
        );
    }

    #[test]
    fn trouble_is_a_no_and_is_said() {
        let gpu = MigGpuStatus {
            slices: 8,
            trouble: Some("MIG mode is off".into()),
            ..MigGpuStatus::new(4u8.try_into().unwrap())
        };
        let status = MigStatus {
            board: "h100-80gb".into(),
            gpus: vec![gpu],
            unread: false,
        };
        let reply = shown("n1", &status);
        assert!(!reply.yes);
        for part in ["MIG mode is off", "[--------]  full", "has not heard"] {
            assert!(reply.text.contains(part), "{part}: {}", reply.text);
        }
    }
}
