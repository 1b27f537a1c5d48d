//! `gpuos mig assert`: whether GPUs are divided as a file says; and that file, from how they are.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result};
use clap::CommandFactory;
use clap::error::ErrorKind;
use gpuos_config::gpuos_toml::{MigLayout, Pinned, Wanted};
use gpuos_core::wire::{MigGpuStatus, MigStatus};
use gpuos_host::Machine;
use gpuos_model::gpuset::GpuSet;
use gpuos_model::mig::MigPlacement;
use gpuos_model::mig::profile::bare;
use serde_json::json;

use super::{ask, no_pool};
use crate::cli::{Cli, MigAssertArgs};
use crate::reply::Reply;
use crate::table::count;

/// What is found out about one GPU.
struct Line {
    node: String,
    gpu: usize,
    what: String,
}

impl Line {
    fn text(&self) -> String {
        format!("{} GPU {}: {}\n", self.node, self.gpu, self.what)
    }
}

/// Holds what gpuosd shows against the file. With the answer comes the exit code: 2 where something is not known.
///
/// # Errors
/// The file cannot be read or has a mistake.
pub fn run(machine: &dyn Machine, args: &MigAssertArgs) -> Result<(Reply, Option<u8>)> {
    // Exit code 2, as for any other wrong usage.
    let wrong = |error| Cli::command().error(ErrorKind::ValueValidation, format!("{error:#}"));
    let layout = read(args).map_err(wrong)?;
    let mut known: BTreeMap<String, Result<(String, Box<MigStatus>), String>> = BTreeMap::new();
    let (mut differs, mut unknown) = (Vec::new(), Vec::new());
    let (mut compared, mut gpus) = (0, 0);
    for wanted in &layout.gpus {
        let here = [String::new()];
        let nodes = match wanted.nodes.is_empty() {
            true => &here[..],
            false => &wanted.nodes,
        };
        for node in nodes {
            let name = Some(node.as_str()).filter(|node| !node.is_empty());
            let told = known.entry(node.clone()).or_insert_with(|| {
                ask(machine, &args.reach, name).map_err(|error| format!("{error:#}"))
            });
            for gpu in wanted.gpus.iter() {
                gpus += 1;
                let of = |node: &str, what: String| Line {
                    node: node.into(),
                    gpu,
                    what,
                };
                match told {
                    Err(why) => unknown.push(of(name.unwrap_or("this node"), why.clone())),
                    Ok((node, mig)) => match compare(mig, gpu, wanted) {
                        Err(why) => unknown.push(of(node, why)),
                        Ok(found) => {
                            compared += 1;
                            differs.extend(found.into_iter().map(|what| of(node, what)));
                        }
                    },
                }
            }
        }
    }
    let mut text: String = differs.iter().map(Line::text).collect();
    let cannot =
        |line: &Line| format!("{} GPU {}: not known: {}\n", line.node, line.gpu, line.what);
    text.extend(unknown.iter().map(cannot));
    let same = differs.is_empty() && unknown.is_empty();
    if same {
        text = format!("{} as {} says\n", count(gpus, "GPU"), args.file.display());
    }
    let lines = |lines: &[Line]| -> Vec<_> {
        let one = |line: &Line| json!({ "node": line.node, "gpu": line.gpu, "what": line.what });
        lines.iter().map(one).collect()
    };
    let json = json!({
        "as_said": same,
        "gpus": gpus,
        "compared": compared,
        "differences": lines(&differs),
        "unknown": lines(&unknown),
    });
    let code = match (differs.is_empty(), unknown.is_empty()) {
        (_, false) => 2,
        (false, _) => 1,
        _ => 0,
    };
    Ok((reply(json, text, same), Some(code)))
}

fn read(args: &MigAssertArgs) -> Result<MigLayout> {
    let file = args.file.display();
    let text = fs::read_to_string(&args.file).with_context(|| format!("cannot read {file}"))?;
    Ok(MigLayout::parse(&text, &file.to_string())?)
}

fn reply(json: serde_json::Value, text: String, yes: bool) -> Reply {
    Reply {
        schema: "gpuos.mig-assert/1",
        json,
        text,
        yes,
    }
}

/// What differs on a GPU, or why that cannot be told.
fn compare(mig: &MigStatus, gpu: usize, wanted: &Wanted) -> Result<Vec<String>, String> {
    let Some(gpu) = mig.gpus.iter().find(|one| one.gpu.index() == gpu) else {
        return match mig.unread {
            true => Err("gpuosd has not read gpuos.toml yet".into()),
            false => Ok(vec!["it is in no [[mig.pool]] of its node".into()]),
        };
    };
    if !gpu.ready {
        let why = "gpuosd has not heard NVML and Slurm yet";
        return Err(gpu.trouble.clone().unwrap_or_else(|| why.into()));
    }
    let there = there(gpu);
    let there: Vec<(&str, MigPlacement)> = there.iter().map(|(p, w)| (p.as_str(), *w)).collect();
    let found = wanted.differences(&there);
    Ok(found.iter().map(ToString::to_string).collect())
}

/// The GPU instances that NVML shows: what is only wanted is not there.
fn there(gpu: &MigGpuStatus) -> Vec<(String, MigPlacement)> {
    let there = gpu.instances.iter().filter(|one| one.gi.is_some());
    there
        .map(|one| (one.profile.clone(), one.placement))
        .collect()
}

/// How the GPUs of a node are divided, as a file.
pub fn layout(node: &str, mig: &MigStatus) -> Reply {
    let of = |gpu: &MigGpuStatus| Wanted {
        nodes: vec![node.into()],
        gpus: GpuSet::EMPTY.with(gpu.gpu.index()),
        instances: there(gpu)
            .iter()
            .map(|(profile, placement)| Pinned::at(bare(profile), *placement))
            .collect(),
    };
    let known = mig.gpus.iter().filter(|gpu| gpu.ready);
    let layout = MigLayout {
        gpus: known.map(of).collect(),
    };
    let whole = !layout.gpus.is_empty() && layout.gpus.len() == mig.gpus.len();
    let mut text = layout.text();
    for gpu in mig.gpus.iter().filter(|gpu| !gpu.ready) {
        text += &format!(
            "# GPU {} is left out: gpuosd has not heard NVML and Slurm yet\n",
            gpu.gpu
        );
    }
    if mig.gpus.is_empty() {
        text += &format!("# {node}: {}\n", no_pool(mig));
    }
    Reply {
        schema: "gpuos.mig-layout/1",
        json: json!({ "node": node, "layout": text }),
        text,
        yes: whole,
    }
}
