//! `gpuos top`: nodes, GPUs, jobs, heat and faults, on a screen, as a table or as JSON.
//!
//! - [`gather`]: asks gpuosd, Slurm or PBS by [`of_slurm`] and [`of_pbs`] and, by [`prometheus`], the site's Prometheus,
//! - [`board`]: joins what they say,
//! - [`table`]: cells, order, filter,
//! - [`screen`]: drawing and keys.

mod board;
mod gather;
mod of_pbs;
mod of_slurm;
mod prometheus;
mod screen;
mod table;

use std::io::IsTerminal;
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::CommandFactory;
use clap::error::ErrorKind;
use gpuos_host::{Machine, ThisMachine};
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use serde_json::{Value, json};

use crate::cli::{Cli, TopArgs};
use crate::reply::Reply;
use crate::table::Table;
use board::Board;
pub use gather::Ask;
use screen::{Command, View};
use table::{Kind, Pick, rows, summary};

/// Who is asked; `pbs`: PBS is the workload manager.
pub fn ask(machine: &dyn Machine, config: Option<&Path>, pbs: bool, args: &TopArgs) -> Ask {
    Ask::new(machine, config, pbs, args)
}

/// The answer of `--once` and `--json`; `None`: the screen was shown and has gone.
pub fn run(
    machine: &(dyn Machine + Sync),
    ask: Ask,
    json: bool,
    args: &TopArgs,
) -> Result<Option<Reply>> {
    let pick = pick(args)?;
    if !(json || args.once) {
        if !std::io::stdout().is_terminal() {
            bail!(
                "standard output is no terminal: ask for one table with --once, or for JSON with --json"
            );
        }
        screen(ask, args.interval, pick)?;
        return Ok(None);
    }
    let board = Board::new(gather::gather(machine, &ask));
    Ok(Some(Reply {
        schema: "gpuos.top/1",
        json: as_json(&board),
        text: as_text(&board, &pick),
        // Nothing at all was to be had.
        yes: !(board.nodes.is_empty() && board.missing.len() > 1),
    }))
}

fn pick(args: &TopArgs) -> Result<Pick> {
    let sort = args.sort.clone();
    let (sort, reverse) = match sort.as_ref().and_then(|name| name.strip_prefix('-')) {
        Some(name) => (Some(name.to_string()), true),
        None => (sort, false),
    };
    if let Some(name) = &sort
        && !Kind::ALL.iter().any(|kind| kind.column(name).is_some())
    {
        let mut known: Vec<&str> = Kind::ALL
            .iter()
            .flat_map(|kind| kind.headings())
            .copied()
            .collect();
        known.sort_unstable();
        known.dedup();
        let message = format!(
            "--sort {name}: no table has that column; write one of {}\n",
            known.join(", ")
        );
        return Err(Cli::command()
            .error(ErrorKind::InvalidValue, message)
            .into());
    }
    let filter = args.filter.clone().unwrap_or_default();
    Ok(Pick {
        sort,
        reverse,
        filter,
    })
}

fn as_text(board: &Board, pick: &Pick) -> String {
    let mut text = summary(board) + "\n";
    for kind in Kind::ALL {
        let rows = rows(board, kind, pick);
        if rows.is_empty() {
            continue;
        }
        let mut table = Table::new(kind.headings());
        for row in rows {
            table.row(row.cells);
        }
        text += &format!("\n{}", table.render());
    }
    if !board.missing.is_empty() {
        text.push('\n');
    }
    for sentence in &board.missing {
        text += &format!("{}\n", gpuos_model::screen::line(sentence));
    }
    text
}

fn as_json(board: &Board) -> Value {
    let nodes = board.nodes.iter().map(|node| {
        json!({
            "name": node.name, "state": node.state, "gpus": node.gpus, "used": node.used,
            "out": node.out, "degraded": node.degraded, "jobs": node.jobs,
            "max_celsius": node.celsius, "power_mw": node.power_mw, "figures": node.figures,
            "reason": node.reason,
        })
    });
    let gpus = board.gpus.iter().map(|gpu| {
        json!({
            "node": gpu.node, "index": gpu.index, "type": gpu.kind, "state": gpu.state,
            "celsius": gpu.celsius, "power_mw": gpu.power_mw, "busy_percent": gpu.busy,
            "memory_mib": gpu.memory_mib, "jobs": gpu.jobs, "reason": gpu.reason,
        })
    });
    let jobs = board.jobs.iter().map(|job| {
        json!({
            "job": job.label, "user": job.user, "state": job.state, "nodes": job.nodes,
            "gpus": job.gpus, "run_seconds": job.seconds, "name": job.name, "reason": job.reason,
        })
    });
    let faults = board.faults.iter().map(|fault| {
        json!({ "node": fault.node, "gpu": fault.gpu, "rule": fault.rule, "message": fault.message })
    });
    let processes = board.processes.iter().map(|one| {
        json!({
            "node": one.node, "gpu": one.gpu, "gpu_instance": one.instance, "pid": one.pid, "uid": one.uid,
            "program": one.program, "job": one.job, "step": one.step, "memory_mib": one.memory_mib,
            "foreign": one.foreign,
        })
    });
    let slices = board.slices.iter().map(|one| {
        json!({
            "node": one.node, "gpu": one.gpu, "gpu_instance": one.instance, "profile": one.profile,
            "slices": one.slices, "job": one.job, "phase": one.phase,
            "memory_mib": one.memory_mib.map(|memory| memory.0),
            "memory_total_mib": one.memory_mib.map(|memory| memory.1),
            "sm_percent": one.load.sm_percent, "bandwidth_percent": one.load.bandwidth_percent,
        })
    });
    json!({
        "nodes": nodes.collect::<Vec<_>>(),
        "gpus": gpus.collect::<Vec<_>>(),
        "jobs": jobs.collect::<Vec<_>>(),
        "faults": faults.collect::<Vec<_>>(),
        "processes": processes.collect::<Vec<_>>(),
        "slices": slices.collect::<Vec<_>>(),
        "missing": board.missing,
    })
}

/// Shows the screen until `q`. A thread of its own asks: a slurmctld that is slow holds up no key.
fn screen(ask: Ask, interval: u64, pick: Pick) -> Result<()> {
    let interval = Duration::from_secs(interval);
    let (tell, told) = channel();
    let (again, asked) = channel::<()>();
    thread::spawn(move || {
        loop {
            let board = Board::new(gather::gather(&ThisMachine, &ask));
            if tell.send(board).is_err() {
                return;
            }
            // While the screen is paused nobody asks; the wait ends with the screen.
            match asked.recv_timeout(interval) {
                Ok(()) if asked.recv().is_ok() => {}
                Err(RecvTimeoutError::Timeout) => {}
                Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    });
    // It puts the terminal back when it is dropped, and in a panic.
    let mut terminal = ratatui::try_init().context("cannot draw on this terminal")?;
    let mut view = View::new(pick, crate::table::colour());
    let mut board = Board::default();
    let done = loop {
        if let Some(newest) = told.try_iter().last() {
            board = newest;
        }
        if let Err(e) = terminal.draw(|frame| view.draw(frame, &board)) {
            break Err(e.into());
        }
        match event::poll(Duration::from_millis(250)) {
            Ok(false) => continue,
            Ok(true) => {}
            Err(e) => break Err(e.into()),
        }
        let paused = view.paused;
        match event::read() {
            Ok(Event::Key(key)) if key.kind != KeyEventKind::Release => {
                if view.key(key) == Command::Quit {
                    break Ok(());
                }
            }
            Ok(_) => {}
            Err(e) => break Err(e.into()),
        }
        if paused != view.paused {
            let _ = again.send(());
        }
    };
    ratatui::restore();
    done
}
