//! The gpuos command: what the fabric looks like, where jobs go and why, and whether the
//! installation is sound.
//!
//! One module for each subcommand; `cli` is the one table of flags, from which help, man pages (`pages`) and completion follow.

mod ckpt;
mod cli;
mod daemons;
mod defrag;
mod discover;
mod doctor;
mod drain;
mod figures;
mod forecast;
mod health;
mod lab;
mod layout;
mod matrix;
mod mem;
#[cfg(test)]
#[path = "../../../tests/reference/messages.rs"]
mod messages_page;
mod mig;
mod migrate;
mod mix;
mod names;
mod network;
mod notes;
mod outlook;
mod pages;
#[cfg(test)]
mod pages_commands;
#[cfg(test)]
mod pages_reference;
mod pbs;
mod pbs_plan;
mod pbs_planner;
mod pbs_sched_config;
mod pbs_why;
mod plan;
mod plan_memory;
mod remedies;
mod remote;
mod replay;
mod reply;
mod run;
mod sim;
mod steering;
mod table;
mod target;
mod top;
mod topo;
mod value_gain;
mod why;
mod wlm;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use gpuos_core::health::Verb;
use gpuos_host::ThisMachine;

use cli::{Cli, Command, MigArgs, MigCommand};
use reply::error_json;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => return usage(&e),
    };
    match run(&cli) {
        Ok(code) => ExitCode::from(code),
        // Flags that do not go together, which the table cannot say.
        Err(e) if e.is::<clap::Error>() => e.downcast_ref().map_or(ExitCode::from(2), usage),
        Err(e) if cli.json => {
            reply::out(&format!("{}\n", error_json(&format!("{e:#}"))));
            ExitCode::from(1)
        }
        Err(e) => {
            let sentence = format!("{e:#}");
            eprintln!("gpuos: {}", gpuos_model::screen::lines(&sentence));
            ExitCode::from(1)
        }
    }
}

/// Runs the subcommand; answers the exit code.
fn run(cli: &Cli) -> anyhow::Result<u8> {
    let machine = ThisMachine;
    let config = cli.config.as_deref();
    if let Some(name) = cli.command.without_config().filter(|_| config.is_some()) {
        let own = match name {
            "lab" => ", or give the lab its own with --gpuos-toml",
            _ => "",
        };
        let problem =
            format!("--config: 'gpuos {name}' reads no gpuos.toml; leave the option out{own}");
        return Err(Cli::command()
            .error(ErrorKind::ArgumentConflict, problem)
            .into());
    }
    if cli.command.asks_slurm() {
        lab::go_there()?;
    }
    let reply = match &cli.command {
        Command::Topo(args) => topo::run(
            &machine,
            config,
            pbs_why::is_asked(&machine, args.pbs),
            args,
        )?,
        Command::Why(args) if pbs_why::is_asked(&machine, args.pbs) => {
            pbs_why::run(&machine, config, &args.job)?
        }
        Command::Why(args) => why::run(&machine, config, args)?,
        Command::Plan(args) if pbs_why::is_asked(&machine, args.pbs) => {
            pbs_plan::run(&machine, config, args)?
        }
        Command::Plan(args) => plan::run(&machine, config, args)?,
        Command::Replay(args) => replay::run(&machine, args)?,
        Command::Doctor(args) => {
            let pbs = pbs_why::is_asked(&machine, args.pbs);
            let (reply, code) = doctor::run(&machine, config, pbs, args)?;
            reply.print(cli.json);
            return Ok(code);
        }
        Command::Discover(args) => discover::run(&machine, args)?,
        Command::Health(args) => match health::run(&machine, cli.json, args)? {
            Some(reply) => reply,
            None => return Ok(0),
        },
        Command::Mig(MigArgs {
            command: Some(MigCommand::Plan(args)),
            ..
        }) if pbs_why::is_meant(&machine, false) => pbs_plan::slices(&machine, config, args)?,
        Command::Mig(args) => match mig::run(&machine, config, args)? {
            (reply, None) => reply,
            (reply, Some(code)) => {
                reply.print(cli.json);
                return Ok(code);
            }
        },
        Command::Ckpt(args) => ckpt::run(&machine, args)?,
        Command::Mem(args) => mem::run(&machine, args)?,
        // It speaks while it works, and hands on the exit code of the program.
        Command::Run(args) => return run::run(&machine, args),
        Command::Drain(args) if args.migrate && pbs_why::is_meant(&machine, false) => {
            anyhow::bail!(
                "--migrate moves jobs by Slurm: on PBS `gpuos drain NODE` lets them end, and with --force those that make checkpoints save and run again"
            )
        }
        Command::Drain(args) if args.migrate => migrate::run(&machine, args)?,
        Command::Drain(args) => drain::run(&machine, Verb::Drain, &args.admin)?,
        Command::Online(args) => drain::run(&machine, Verb::Online, args)?,
        Command::Offline(args) => drain::run(&machine, Verb::Offline, args)?,
        Command::Sim(args) => sim::run(args)?,
        Command::Layout(args) => layout::run(args, cli.json)?,
        Command::Pbs(args) => pbs::run(cli.json, args)?,
        Command::PbsHook => return pbs::hook(),
        // Its exit codes are the workload manager's.
        Command::Wlm(args) => return wlm::run(&machine, args),
        // It speaks while it works.
        Command::PbsPlanner(args) => match pbs_planner::run(&machine, config, args)? {
            Some(reply) => reply,
            None => return Ok(0),
        },
        Command::Completion(args) => pages::completion(args),
        Command::Man(args) => pages::man(args)?,
        // With a screen there is nothing left to say.
        Command::Top(args) => {
            let ask = top::ask(
                &machine,
                config,
                pbs_why::is_asked(&machine, args.pbs),
                args,
            );
            match top::run(&machine, ask, cli.json, args)? {
                Some(reply) => reply,
                None => return Ok(0),
            }
        }
        // A lab speaks while it works, and hands on the exit code of what ran in it.
        Command::Lab(args) => {
            return Ok(u8::try_from(lab::run(args, cli.json)?).unwrap_or(1));
        }
    };
    Ok(reply.print(cli.json))
}

/// Help and version are answers; anything else is a usage error, exit code 2. Under `--json`
/// the error is JSON too, although the line could not be parsed.
fn usage(error: &clap::Error) -> ExitCode {
    let asked = matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
    );
    if !asked && std::env::args_os().any(|arg| arg == "--json") {
        let text = error.render().to_string();
        let text = text.strip_prefix("error: ").unwrap_or(&text);
        let sentence = text.split("\n\n").next().unwrap_or(text).replace('\n', " ");
        reply::out(&format!("{}\n", error_json(sentence.trim())));
        return ExitCode::from(2);
    }
    let _ = error.print();
    ExitCode::from(if asked { 0 } else { 2 })
}
