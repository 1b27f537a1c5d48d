//! What `gpuos lab` does otherwise where the lab has a PBS.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use gpuos_lab::pbs::{HEAD_DAEMONS, MOM, PbsLab, USERS};
use gpuos_lab::{LabSpec, Record};
use serde_json::{Map, Value, json};

use super::args::{GpusArg, UpArgs};
use super::{DEFAULT, Progress, named, print_json, state};

/// `gpuos lab up --pbs DIR`.
pub fn up(args: &UpArgs, json: bool) -> Result<()> {
    let mut spec = LabSpec {
        name: named(&args.name).unwrap_or_else(|| DEFAULT.into()),
        nodes: usize::from(args.nodes).into(),
        node_type: args.node_type.clone(),
        pbs: args.pbs.clone(),
        detached: true,
        ..LabSpec::default()
    };
    if let Some(file) = &args.gpuos_toml {
        let text = fs::read_to_string(file);
        spec.gpuos_toml = Some(text.with_context(|| format!("cannot read {}", file.display()))?);
    }
    if args.gpus == GpusArg::Simulated {
        spec.simulated_gpus = Some(match &args.daemon_dir {
            Some(dir) => dir.clone(),
            None => gpuos_lab::find_daemon_dir().context("--gpus simulated")?,
        });
    }
    if args.checkpoints {
        spec.movers = Some(match &args.daemon_dir {
            Some(dir) => dir.clone(),
            None => gpuos_lab::find_mover_dir().context("--checkpoints")?,
        });
    }
    let mut progress = Progress::new();
    let lab = PbsLab::up(&spec, &mut |step| progress.show(step));
    progress.end();
    let lab = lab?;
    if json {
        print_json("gpuos.lab/1", describe(&lab));
        return Ok(());
    }
    let name = match lab.name() {
        DEFAULT => String::new(),
        other => format!(" --name {other}"),
    };
    println!(
        "lab {} is up: PBS {}, {} nodes of type {}",
        lab.name(),
        lab.version(),
        spec.node_names().len(),
        spec.node_type,
    );
    let user = USERS[0];
    let hints = [
        (
            format!("gpuos lab run{name} -- pbsnodes -aS"),
            "runs a command on its head, as root",
        ),
        (
            format!("gpuos lab run{name} --on n1 --as {user} -- id"),
            "runs one on a node, as a user",
        ),
        (format!("gpuos lab sh{name}"), "opens a shell on its head"),
        (format!("gpuos lab down{name}"), "ends it"),
        (
            format!("export GPUOS_LAB={}", lab.name()),
            "means this lab from now on",
        ),
    ];
    let width = hints.iter().map(|(words, _)| words.len()).max();
    let width = width.unwrap_or(0);
    for (words, what) in &hints {
        println!("  {words:width$}  {what}");
    }
    Ok(())
}

/// What `gpuos lab list` says of it.
pub fn summary(record: &Record, prefix: &Path) -> Value {
    let spec = &record.spec;
    json!({
        "name": spec.name,
        "state": state(record),
        "dir": record.dir,
        "pbs": record.slurm,
        "prefix": prefix,
        "node_type": spec.node_type,
        "nodes": spec.node_names(),
        "simulated_gpus": spec.simulated_gpus.is_some(),
        "created": record.created,
        "owner": record.owner.map(|owner| owner.pid),
    })
}

/// The summary, with what runs.
fn describe(lab: &PbsLab) -> Value {
    let record = lab.record();
    let prefix = record.spec.pbs.as_deref().unwrap_or(Path::new(""));
    let mut all = summary(record, prefix);
    let nodes = record.spec.node_names().into_iter();
    let moms: Map<String, Value> = nodes
        .map(|node| (node.clone(), json!(lab.pid(&node, MOM))))
        .collect();
    for daemon in HEAD_DAEMONS {
        all[format!("{daemon}_pid")] = json!(lab.pid("head", daemon));
    }
    all["pbs_mom_pids"] = Value::Object(moms);
    all["users"] = json!(USERS);
    all
}

/// `gpuos lab status`.
pub fn status(lab: &PbsLab, json: bool) -> Result<()> {
    if json {
        print_json("gpuos.lab/1", describe(lab));
        return Ok(());
    }
    let record = lab.record();
    let nodes = record.spec.node_names();
    let prefix = record.spec.pbs.as_deref().unwrap_or(Path::new(""));
    println!("lab {}: {}", lab.name(), state(record));
    println!("  PBS          {} ({})", record.slurm, prefix.display());
    println!("  files        {}", lab.dir().display());
    for daemon in HEAD_DAEMONS {
        match lab.pid("head", daemon) {
            Some(pid) => println!("  {daemon:11}  pid {pid}"),
            None => println!("  {daemon:11}  does not run"),
        }
    }
    let runs = |node: &&String| lab.pid(node, MOM).is_some();
    let running = nodes.iter().filter(runs).count();
    println!("  {MOM:11}  {running} of {} run", nodes.len());
    if lab.pid("head", HEAD_DAEMONS[1]).is_some() {
        print!("{}", lab.run("pbsnodes", &["-aS"])?);
    }
    Ok(())
}
