//! `gpuos layout`: runs gpuos-layout, the program that has the C front end.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cli::LayoutArgs;
use crate::reply::Reply;

/// The program, beside this one or on PATH.
const PROGRAM: &str = "gpuos-layout";

pub fn run(args: &LayoutArgs, json: bool) -> Result<Reply> {
    let program = find();
    let mut command = Command::new(&program);
    command.arg(&args.source);
    if let Some(file) = &args.output {
        command.arg("--output").arg(file);
    }
    if let Some(release) = &args.release {
        command.arg("--release").arg(release);
    }
    if json {
        command.arg("--json");
    }
    match command.output() {
        Ok(output) => {
            // It speaks for itself, JSON and errors included.
            eprint!("{}", String::from_utf8_lossy(&output.stderr));
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let value = serde_json::from_str(&text).unwrap_or_default();
            Ok(Reply {
                schema: schema(&value),
                json: value,
                text,
                yes: output.status.success(),
            })
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => bail!(
            "{PROGRAM} is not installed: it reads C headers and comes separately; install it \
             beside gpuos (`cargo install --path crates/gpuos_layout` in the source of gpuos)"
        ),
        Err(e) => Err(e).with_context(|| format!("cannot run {}", program.display())),
    }
}

fn schema(value: &serde_json::Value) -> &'static str {
    match value["schema"].as_str() {
        Some("gpuos.error/1") => "gpuos.error/1",
        _ => "gpuos.layout/1",
    }
}

fn find() -> PathBuf {
    let beside = std::env::current_exe()
        .ok()
        .and_then(|exe| Some(exe.parent()?.join(PROGRAM)));
    beside
        .filter(|path| path.is_file())
        .unwrap_or_else(|| PROGRAM.into())
}
