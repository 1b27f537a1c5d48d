//! `gpuos mem show`: what a node lends of the memory of its GPUs and of the host, to whom, and whose turn it is. gpuosd of the node tells
//! it.

use std::io::IsTerminal;
use std::time::Duration;

use anyhow::{Context, Result};
use gpuos_core::job::JobId;
use gpuos_core::wire::{
    MemoryGpuStatus, MemoryPressureStatus, MemoryProgramStatus, MemoryStatus, MemoryTierStatus,
    MemoryUnaskedStatus, Reply as Answer, Request,
};
use gpuos_host::Machine;
use gpuos_host::socket::Client;
use gpuos_model::screen::lines;
use serde_json::json;

use crate::cli::{MemShowArgs, Reach};
use crate::reply::{Reply, out};
use crate::table::{Table, count};
use crate::{daemons, remote};

/// How long gpuosd may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two looks with `--watch`.
const AGAIN: Duration = Duration::from_secs(1);
/// Cells of a bar.
const BAR: u64 = 24;
/// The cursor to the top, and all after it away.
const HOME: &str = "\u{1b}[H\u{1b}[J";

/// The answer.
///
/// # Errors
/// gpuosd cannot be asked.
pub fn run(machine: &dyn Machine, args: &MemShowArgs) -> Result<Reply> {
    loop {
        let (node, memory) = ask(machine, &args.reach, args.node.as_deref())?;
        let reply = shown(&node, memory, args.job.as_ref());
        if !args.watch {
            return Ok(reply);
        }
        let home = match std::io::stdout().is_terminal() {
            true => HOME,
            false => "",
        };
        out(&format!("{home}{}\n", lines(&reply.text)));
        std::thread::sleep(AGAIN);
    }
}

fn ask(machine: &dyn Machine, reach: &Reach, node: Option<&str>) -> Result<(String, MemoryStatus)> {
    let far = |node: &str| far(machine, reach, node);
    daemons::ask(machine, &reach.runtime_dir, node, PATIENCE, here, far)
}

fn here(mut client: Client) -> Result<(String, MemoryStatus)> {
    let node = client.daemon.1.clone();
    match client.ask(&Request::Memory)? {
        Answer::Memory { memory } => Ok((node, *memory)),
        _ => Err(daemons::other_answer("gpuosd")),
    }
}

/// The same from gpuosd of another node, by the same command there.
fn far(machine: &dyn Machine, reach: &Reach, node: &str) -> Result<(String, MemoryStatus)> {
    let dir = remote::runtime_dir(&reach.runtime_dir);
    let line = format!("gpuos --json mem show{dir}");
    let (told, _) = remote::ask(machine, &reach.via, node, &line)?;
    let strange = || format!("gpuos of {node} gave another answer: {told}");
    let memory = serde_json::from_value(told["memory"].clone()).with_context(strange)?;
    Ok((told["node"].as_str().unwrap_or(node).into(), memory))
}

fn shown(node: &str, mut memory: MemoryStatus, job: Option<&JobId>) -> Reply {
    if let Some(job) = job {
        memory.programs.retain(|one| one.job == *job);
        memory.unasked.retain(|one| one.job == *job);
    }
    let lent = memory.gpus.iter().filter(|gpu| gpu.hbm.promised > 0);
    let lent: Vec<&MemoryGpuStatus> = lent.collect();
    let nvme = match memory.nvme.present {
        0 => String::new(),
        _ => format!(", {} of NVMe", of(memory.nvme)),
    };
    let mut text = format!(
        "{node}: {} of {} lent, {} of host memory{nvme}\n",
        lent.len(),
        count(memory.gpus.len(), "GPU"),
        of(memory.host)
    );
    for gpu in &lent {
        text += &of_gpu(gpu);
    }
    if memory.host.promised > 0 {
        text += &format!("Host    [{}] {}\n", bar(memory.host), of(memory.host));
    }
    text += &pressure(&memory.pressure);
    if !memory.programs.is_empty() {
        text += &format!("\n{}", programs(&memory.programs));
        text += &figures(&memory.programs);
    }
    text += &unasked(&memory.unasked);
    if memory.programs_of_others > 0 {
        let others = count(memory.programs_of_others as usize, "process");
        let others = others.replace("processs", "processes");
        text += &format!("{others} of other users\n");
    }
    if let (Some(job), true) = (job, memory.programs.is_empty()) {
        text += &format!("job {job} has no memory in tiers here\n");
    }
    Reply {
        schema: "gpuos.mem/1",
        yes: job.is_none() || !memory.programs.is_empty(),
        json: json!({ "node": node, "memory": memory }),
        text,
    }
}

fn of_gpu(gpu: &MemoryGpuStatus) -> String {
    let turn = match (gpu.in_turns, &gpu.turn) {
        (false, _) => String::new(),
        (true, Some(job)) => format!("  in turns: job {job} has it"),
        (true, None) => "  in turns".into(),
    };
    let serialised = match gpu.serialised {
        true => ", until it ends or has no work: switching costs too much",
        false => "",
    };
    let others = match gpu.others {
        0 => String::new(),
        bytes => format!("  {} GiB used by others", gib(bytes)),
    };
    let link = match gpu.link {
        0 => String::new(),
        rate => format!(
            "  link {}.{} GB/s",
            rate / 1_000_000_000,
            rate / 100_000_000 % 10
        ),
    };
    format!(
        "GPU {:<3} [{}] {}{turn}{serialised}{others}{link}\n",
        gpu.gpu,
        bar(gpu.hbm),
        of(gpu.hbm)
    )
}

/// What is said of host memory where it is short, and what is done next.
fn pressure(told: &MemoryPressureStatus) -> String {
    let next = match told.step.as_str() {
        "notify" => "programs are told",
        "demote-clean" => "programs drop what is elsewhere, too",
        "demote-dirty" => "what is parked goes to NVMe",
        "park" => "the job of the lowest rank goes to NVMe",
        "requeue" => "the job of the lowest rank is requeued",
        _ => "",
    };
    let mut text = String::new();
    if !next.is_empty() {
        let available = told
            .available
            .map(|bytes| format!(" {} GiB are available.", gib(bytes)));
        let stalled = told.stalled.filter(|part| *part > 0).map(|part| {
            format!(
                " All that runs waits for memory {}.{} % of the time.",
                part / 10,
                part % 10
            )
        });
        text += &format!(
            "Host memory is short.{}{} Next: {next}.\n",
            available.unwrap_or_default(),
            stalled.unwrap_or_default()
        );
    }
    if !told.short.is_empty() {
        let jobs: Vec<String> = told.short.iter().map(ToString::to_string).collect();
        text += &format!("Short of their own memory: job {}\n", jobs.join(", "));
    }
    text
}

/// Who uses a GPU and has asked for nothing.
fn unasked(processes: &[MemoryUnaskedStatus]) -> String {
    let line = |one: &MemoryUnaskedStatus| {
        format!(
            "Process {} of job {} uses {} GiB of GPU {} and has not asked for it.\n",
            one.pid,
            one.job,
            gib(one.bytes),
            one.gpu
        )
    };
    let text: String = processes.iter().map(line).collect();
    match text.is_empty() {
        true => text,
        false => format!(
            "\n{text}Static and setuid programs do not load libgpuos_preload.so, nor do those that lose LD_PRELOAD: they take no turns and have \
             no tiers.\n"
        ),
    }
}

/// When programs touched their memory, what moved and why, and what that cost; empty where none tells it.
fn figures(programs: &[MemoryProgramStatus]) -> String {
    let mut table = Table::new(&[
        "JOB",
        "PID",
        "HEAT",
        "HOT",
        "WARM",
        "COLD",
        "IN",
        "OUT",
        "ASKED",
        "SQUEEZED",
        "PREDICTED",
        "MEASURED",
    ]);
    let mut any = false;
    for one in programs {
        let it = &one.figures;
        let moved = [it.fetched, it.evicted, it.pressed];
        if it.heat == [0; 3] && moved == [0; 3] && one.squeezed == 0 {
            continue;
        }
        any = true;
        let [predicted, measured] = it.slower.map(|slower| {
            let hundredths = slower.max(1000) / 10;
            format!("{}.{:02} x", hundredths / 100, hundredths % 100)
        });
        table.row([
            one.job.to_string(),
            one.pid.to_string(),
            format!("[{}]", heat(it.heat)),
            gib(it.heat[0]),
            gib(it.heat[1]),
            gib(it.heat[2]),
            gib(it.fetched),
            gib(it.evicted),
            gib(it.pressed),
            gib(one.squeezed),
            predicted,
            measured,
        ]);
    }
    match any {
        false => String::new(),
        true => format!(
            "\n{}HEAT: # touched within a second, + within a minute, . longer ago. IN and OUT: moved as the program used it; ASKED: as gpuosd \
             said so.\nSQUEEZED: on the host because others use the GPU. PREDICTED and MEASURED: how many times as long it takes for moves.\n",
            table.render()
        ),
    }
}

/// A bar of what is hot, warm and cold.
fn heat(parts: [u64; 3]) -> String {
    let all = parts
        .iter()
        .fold(0_u128, |all, part| all + u128::from(*part));
    let upto = |count: usize| {
        let sum: u128 = parts[..count].iter().map(|part| u128::from(*part)).sum();
        (sum * u128::from(BAR)).checked_div(all).unwrap_or(0) as usize
    };
    let (hot, warm) = (upto(1), upto(2));
    format!(
        "{}{}{}",
        "#".repeat(hot),
        "+".repeat(warm - hot),
        ".".repeat(BAR as usize - warm)
    )
}

/// A bar, of which so much is full as is promised.
fn bar(tier: MemoryTierStatus) -> String {
    let full = (tier.promised.min(tier.present)).saturating_mul(BAR);
    let full = full.checked_div(tier.present).unwrap_or(0) as usize;
    format!("{:.<width$}", "#".repeat(full), width = BAR as usize)
}

fn of(tier: MemoryTierStatus) -> String {
    format!("{} of {} GiB", gib(tier.promised), gib(tier.present))
}

/// GiB with one digit behind the point.
fn gib(bytes: u64) -> String {
    let tenths = (u128::from(bytes) * 10) >> 30;
    format!("{}.{}", tenths / 10, tenths % 10)
}

fn programs(programs: &[MemoryProgramStatus]) -> String {
    let mut table = Table::new(&[
        "JOB",
        "PID",
        "GPU",
        "HBM",
        "HOST",
        "FOR PARKING",
        "PLACE",
        "WORK",
        "PARKED",
        "OUT",
        "BACK",
    ]);
    for one in programs {
        let mut place = one.place.clone();
        if one.nvme > 0 {
            place += &format!(", {} for NVMe", gib(one.nvme));
        }
        place += match (one.connected, one.pinned) {
            _ if one.stopped => ", stopped",
            _ if one.by_driver => ", by the driver",
            (false, _) => ", not connected",
            (true, true) => ", pinned",
            (true, false) => "",
        };
        for lease in &one.leases {
            table.row([
                one.job.to_string(),
                one.pid.to_string(),
                lease.gpu.to_string(),
                gib(lease.hbm),
                gib(lease.host),
                gib(lease.refuge),
                place.clone(),
                if one.busy { "yes" } else { "no" }.into(),
                one.parks.to_string(),
                gib(one.moved_down),
                gib(one.moved_up),
            ]);
        }
    }
    table.render() + "Sizes are in GiB. OUT and BACK: what went to host memory and came back.\n"
}
