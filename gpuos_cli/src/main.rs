//! The gpuos command.

mod lab;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "gpuos", version)]
struct Cli {
    /// Answer as JSON, with the name of its schema in "schema".
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Start, use and end a private Slurm cluster on this machine.
    Lab(lab::Args),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match &cli.command {
        Command::Lab(args) => lab::run(args, cli.json),
    };
    match result {
        Ok(code) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        Err(e) => {
            eprintln!("gpuos: {e:#}");
            ExitCode::from(1)
        }
    }
}
