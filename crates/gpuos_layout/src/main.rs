//! gpuos-layout: the rows for a Slurm release that the built-in table does not have.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;

/// Reads from Slurm's headers where it keeps the fields that the gpuos plugins use.
///
/// Writes a table for the release of that source. `gpuos layout` runs this program.
#[derive(Parser)]
#[command(name = "gpuos-layout", version)]
struct Args {
    /// Unpacked source of the installed Slurm release; it need not be configured.
    #[arg(value_name = "SLURM-SOURCE-DIR")]
    source: PathBuf,
    /// File to write instead of standard output.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Release of the source, when its file META does not say it (for example 24.11.5).
    #[arg(long, value_name = "RELEASE")]
    release: Option<String>,
    /// Answer as JSON.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) if args.json => {
            println!(
                "{}",
                serde_json::json!({ "schema": "gpuos.error/1", "error": format!("{e:#}") })
            );
            ExitCode::from(1)
        }
        Err(e) => {
            eprintln!("gpuos-layout: {e:#}");
            ExitCode::from(1)
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let layout = gpuos_layout::read(&args.source, args.release.as_deref())?;
    if let Some(path) = &args.output {
        std::fs::write(path, layout.to_tsv())
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    if args.json {
        let mut answer = serde_json::json!({
            "schema": "gpuos.layout/1",
            "release": layout.release,
            "fields": layout.rows.len(),
            "file": args.output,
        });
        if args.output.is_none() {
            answer["table"] = layout.to_tsv().into();
        }
        println!("{answer}");
    } else if let Some(path) = &args.output {
        println!(
            "{}: {} fields of Slurm {}",
            path.display(),
            layout.rows.len(),
            layout.release
        );
    } else {
        print!("{}", layout.to_tsv());
    }
    Ok(())
}
