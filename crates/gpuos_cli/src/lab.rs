//! `gpuos lab`: a private Slurm cluster or PBS on this machine, to try things before installing them.

mod args;
mod pbs;

use std::fs;
use std::io::{IsTerminal, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command as Process;

use anyhow::{Context, Result, bail};
use gpuos_lab::pbs::{HOST_ENV, PbsLab};
use gpuos_lab::{Cgroup, Lab, LabError, LabSpec, Record, Suite};
use gpuos_model::gpuset::GpuSet;
use serde_json::{Value, json};

use args::{
    Action, CgroupArg, DownArgs, FaultArgs, GpusArg, PlaceArgs, RebootArgs, SelectArg, UpArgs,
};
pub use args::{Args, gpus};

/// The variable that says which lab is meant; commands in a lab have it.
pub const LAB_ENV: &str = "GPUOS_LAB";

/// The name of labs that nobody named.
const DEFAULT: &str = "lab";

fn named(given: &Option<String>) -> Option<String> {
    let env = || std::env::var(LAB_ENV).ok().filter(|name| !name.is_empty());
    given.clone().or_else(env)
}

/// The lab that is meant: the one that is named, by `$GPUOS_LAB` too; else `lab`, or the only one that is up.
fn meant(given: &Option<String>) -> String {
    named(given).unwrap_or_else(|| {
        let names: Vec<String> = gpuos_lab::records()
            .into_iter()
            .map(|record| record.spec.name)
            .collect();
        match &names[..] {
            [only] => only.clone(),
            _ => DEFAULT.into(),
        }
    })
}

/// Where `$GPUOS_LAB` names a lab and this process is not in one (neither `$SLURM_CONF` nor the name of a host of it is set):
/// becomes this command in that lab, with its Slurm and its gpuosds, or on the head of its PBS. Returns where there is nothing to do.
///
/// # Errors
/// There is no such lab, or it cannot be entered.
pub fn go_there() -> Result<()> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let inside = set("SLURM_CONF").or(set(HOST_ENV)).is_some();
    let (Some(name), false) = (set(LAB_ENV), inside) else {
        return Ok(());
    };
    let name = name.to_string_lossy().into_owned();
    let lab = Any::open(&name).with_context(|| format!("{LAB_ENV}={name}"))?;
    let own = std::env::current_exe()?;
    let program = lab.own_command().unwrap_or(own);
    let mut command = lab.command(&program.to_string_lossy(), &PlaceArgs::of(&name))?;
    let error = command.args(std::env::args_os().skip(1)).exec();
    Err(error).with_context(|| format!("cannot run gpuos in lab {name}"))
}

impl PlaceArgs {
    /// The head, or where commands of a Slurm run.
    fn of(name: &str) -> PlaceArgs {
        PlaceArgs {
            name: Some(name.to_string()),
            on: None,
            user: None,
        }
    }
}

/// A lab of either kind.
enum Any {
    Slurm(Box<Lab>),
    Pbs(Box<PbsLab>),
}

impl Any {
    fn open(name: &str) -> Result<Any, LabError> {
        match gpuos_lab::record(name)?.spec.pbs {
            Some(_) => Ok(Any::Pbs(Box::new(PbsLab::open(name)?))),
            None => Ok(Any::Slurm(Box::new(Lab::open(name)?))),
        }
    }

    fn own_command(&self) -> Option<PathBuf> {
        match self {
            Any::Slurm(lab) => lab.own_command(),
            Any::Pbs(lab) => lab.own_command(),
        }
    }

    fn command(&self, program: &str, place: &PlaceArgs) -> Result<Process, LabError> {
        match self {
            Any::Slurm(lab) if place.on.is_some() || place.user.is_some() => {
                Err(LabError::Spec(format!(
                    "lab {} has a Slurm, whose nodes are all on this host: --on and --as are for labs of PBS",
                    lab.name()
                )))
            }
            Any::Slurm(lab) => lab.command(program),
            Any::Pbs(lab) => {
                let on = place.on.as_deref().unwrap_or("head");
                lab.command_on(on, place.user.as_deref(), program)
            }
        }
    }
}

/// Runs `gpuos lab`; returns the exit code.
pub fn run(args: &Args, json: bool) -> Result<i32> {
    let done = match &args.action {
        Action::Up(args) if args.pbs.is_some() => pbs::up(args, json),
        Action::Up(args) => up(args, json),
        Action::Run(args) => enter(&args.place, &args.command[0], &args.command[1..]),
        Action::Sh(args) => shell(args),
        Action::Down(args) => down(args, json),
        Action::List => list(json),
        Action::Status(args) => status(&meant(&args.name), json),
        Action::Fault(args) => fault(args, json),
        Action::Reboot(args) => reboot(args, json),
    };
    match done {
        Ok(()) => Ok(0),
        Err(e) => match e.downcast_ref::<LabError>() {
            Some(LabError::Spec(text)) => {
                if json {
                    print_json("gpuos.error/1", json!({ "error": text }));
                } else {
                    eprintln!("gpuos: {text}");
                }
                Ok(2)
            }
            _ => Err(e),
        },
    }
}

fn up(args: &UpArgs, json: bool) -> Result<()> {
    let mut spec = LabSpec {
        name: named(&args.name).unwrap_or_else(|| DEFAULT.into()),
        nodes: usize::from(args.nodes).into(),
        node_type: args.node_type.clone(),
        suite: args.slurm.clone(),
        cgroup: match args.cgroup {
            CgroupArg::Auto => Cgroup::Auto,
            CgroupArg::Off => Cgroup::Off,
            CgroupArg::Required => Cgroup::Required,
        },
        accounting: args.accounting,
        mig: args.mig.unwrap_or(GpuSet::EMPTY),
        mig_switchable: args.mig_switchable.unwrap_or(GpuSet::EMPTY),
        cloud_nodes: args.cloud_nodes.map(|n| n as usize),
        slurm_conf_extra: args.conf.clone(),
        detached: true,
        ..LabSpec::default()
    };
    if let Some(file) = &args.gpuos_toml {
        let text =
            fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        spec.gpuos_toml = Some(text);
    }
    if let Some(leaf) = args.switches {
        let names = [spec.node_names(), spec.cloud_names()].concat();
        spec.topology_conf = Some(LabSpec::tree_topology(&names, usize::from(leaf)));
    }
    if let SelectArg::Gpuos = args.select {
        let dir = match &args.plugin_dir {
            Some(dir) => dir.clone(),
            None => gpuos_lab::find_plugin_dir()
                .context("the lab needs gpuos's plugins (without them: --select stock)")?,
        };
        spec = spec.with_gpuos(dir);
    }
    if args.memory {
        if let SelectArg::Stock = args.select {
            bail!("--memory needs gpuos's plugins: leave out --select stock");
        }
        spec.tiers = Some(gpuos_lab::find_tiers_dir().context("--memory")?);
        spec.shards = gpuos_lab::SHARDS;
        spec.job_submit = true;
    }
    if args.gpus == GpusArg::Simulated || args.memory {
        spec.simulated_gpus = Some(match &args.daemon_dir {
            Some(dir) => dir.clone(),
            None => gpuos_lab::find_daemon_dir().context(match args.memory {
                true => "--memory",
                false => "--gpus simulated",
            })?,
        });
    }
    if args.checkpoints {
        if let SelectArg::Stock = args.select {
            bail!("--checkpoints needs gpuos's plugins: leave out --select stock");
        }
        spec.movers = Some(match &args.daemon_dir {
            Some(dir) => dir.clone(),
            None => gpuos_lab::find_mover_dir().context("--checkpoints")?,
        });
    }
    if let Some(log) = &args.kernel_log {
        if args.gpus != GpusArg::Simulated {
            bail!("--kernel-log is for the gpuosds of simulated GPUs: add --gpus simulated");
        }
        let whole = std::path::absolute(log);
        spec.kernel_log = Some(whole.with_context(|| log.display().to_string())?);
    }
    let mut progress = Progress::new();
    let lab = Lab::up(&spec, &mut |step| progress.show(step));
    progress.end();
    let lab = lab?;
    if json {
        print_json("gpuos.lab/1", describe(&lab)?);
        return Ok(());
    }
    let name = match lab.name() {
        DEFAULT => String::new(),
        other => format!(" --name {other}"),
    };
    println!(
        "lab {} is up: Slurm {}, {} nodes of type {}, {}, device cgroups {}",
        lab.name(),
        lab.version(),
        spec.node_names().len() + spec.cloud_nodes.unwrap_or(0),
        spec.node_type,
        spec.select.select_type(),
        if lab.has_cgroup() { "on" } else { "off" },
    );
    println!("  gpuos lab run{name} -- sinfo    runs a command in it");
    println!("  gpuos lab sh{name}              opens a shell in it");
    println!("  gpuos lab down{name}            ends it");
    if spec.simulated_gpus.is_some() {
        println!("  gpuos health, mig, drain and online find the gpuosd of each node there");
    }
    if spec.tiers.is_some() {
        println!(
            "  cuda PROGRAM in a job runs a program over the simulated CUDA driver; gpuos mem show tells who has what"
        );
    }
    if spec.movers.is_some() {
        println!("  gpuos ckpt finds the gpuos_mover of each node there");
    }
    println!(
        "  export GPUOS_LAB={}         means this lab from now on",
        lab.name()
    );
    Ok(())
}

/// Becomes the command: its terminal and exit code are its own.
fn enter(place: &PlaceArgs, program: &str, args: &[String]) -> Result<()> {
    let name = meant(&place.name);
    let lab = Any::open(&name)?;
    let error = lab.command(program, place)?.args(args).exec();
    Err(error).with_context(|| format!("cannot run {program} in lab {name}"))
}

fn shell(place: &PlaceArgs) -> Result<()> {
    let name = meant(&place.name);
    let lab = Any::open(&name)?;
    let own = std::env::var("SHELL").unwrap_or_default();
    // The root of a Debian suite has bash and sh only.
    let in_suite = matches!(&lab, Any::Slurm(lab) if matches!(lab.spec().suite, Suite::Debian(_)));
    let shell = match in_suite {
        true => "/bin/bash",
        false if own.is_empty() => "/bin/sh",
        false => &own,
    };
    if std::io::stdin().is_terminal() {
        let what = match &lab {
            Any::Slurm(lab) => format!("Slurm {}", lab.version()),
            Any::Pbs(lab) => format!("PBS {}", lab.version()),
        };
        eprintln!("shell in lab {name} ({what}); `exit` leaves it");
    }
    let mut command = lab.command(shell, place)?;
    // Debian's bashrc shows it in the prompt.
    command.env("debian_chroot", format!("lab {name}"));
    let error = command.exec();
    Err(error).with_context(|| format!("cannot run {shell} in lab {name}"))
}

fn down(args: &DownArgs, json: bool) -> Result<()> {
    if let Ok(host) = std::env::var(HOST_ENV) {
        bail!("this is {host} of a lab, which cannot end itself: leave its shell first");
    }
    let names = if args.all {
        let all = gpuos_lab::records().into_iter();
        all.filter(|r| r.owner.is_none() || r.is_orphan())
            .map(|r| r.spec.name)
            .collect()
    } else {
        vec![meant(&args.name)]
    };
    for name in &names {
        gpuos_lab::down(name)?;
        if !json {
            println!("lab {name} is down");
        }
    }
    if json {
        print_json("gpuos.lab.down/1", json!({ "down": names }));
    } else if names.is_empty() {
        println!("no lab is up");
    }
    Ok(())
}

fn state(record: &Record) -> String {
    match record.owner {
        Some(owner) if !record.is_orphan() => format!("owned by process {}", owner.pid),
        Some(_) => "owner died".to_string(),
        None if record.is_dead() => "dead".to_string(),
        None => "up".to_string(),
    }
}

fn list(json: bool) -> Result<()> {
    let records = gpuos_lab::records();
    if json {
        let labs: Vec<Value> = records.iter().map(summary).collect();
        print_json("gpuos.lab.list/1", json!({ "labs": labs }));
        return Ok(());
    }
    if records.is_empty() {
        println!("no lab is up; `gpuos lab up` starts one");
        return Ok(());
    }
    let mut rows = vec![["NAME", "MANAGER", "NODES", "TYPE", "SELECT", "STATE"].map(String::from)];
    for record in &records {
        let spec = &record.spec;
        rows.push([
            spec.name.clone(),
            match &spec.pbs {
                Some(prefix) => format!("PBS {} ({})", record.slurm, prefix.display()),
                None => format!("Slurm {} ({})", record.slurm, spec.suite),
            },
            (spec.node_names().len() + spec.cloud_nodes.unwrap_or(0)).to_string(),
            spec.node_type.clone(),
            match spec.pbs {
                Some(_) => "-".to_string(),
                None => spec.select.select_type().to_string(),
            },
            state(record),
        ]);
    }
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
    for row in &rows {
        let cells = row.iter().zip(&widths);
        let line: Vec<String> = cells.map(|(cell, w)| format!("{cell:w$}")).collect();
        println!("{}", line.join("  ").trim_end());
    }
    Ok(())
}

fn summary(record: &Record) -> Value {
    let spec = &record.spec;
    if let Some(prefix) = &spec.pbs {
        return pbs::summary(record, prefix);
    }
    json!({
        "name": spec.name,
        "state": state(record),
        "dir": record.dir,
        "slurm": record.slurm,
        "suite": spec.suite.to_string(),
        "select": spec.select.select_type(),
        "node_type": spec.node_type,
        "nodes": spec.node_names(),
        "simulated_gpus": spec.simulated_gpus.is_some(),
        "mig_gpus": spec.mig.iter().collect::<Vec<_>>(),
        "mig_switchable_gpus": spec.mig_switchable.iter().collect::<Vec<_>>(),
        "cloud_nodes": spec.cloud_nodes.unwrap_or(0),
        "device_cgroups": record.cgroup,
        "created": record.created,
        "owner": record.owner.map(|owner| owner.pid),
    })
}

/// The summary, with what runs.
fn describe(lab: &Lab) -> Result<Value> {
    let mut all = summary(lab.record());
    let nodes = lab.spec().node_names();
    let slurmds: serde_json::Map<String, Value> = nodes
        .into_iter()
        .map(|node| {
            let pid = lab.slurmd_pid(&node);
            (node, json!(pid))
        })
        .collect();
    if lab.spec().simulated_gpus.is_some() {
        let nodes = lab.spec().node_names().into_iter();
        let gpuosds = nodes.map(|node| (node.clone(), json!(lab.gpuosd_pid(&node))));
        all["gpuosd_pids"] = Value::Object(gpuosds.collect());
    }
    all["slurmctld_pid"] = json!(lab.slurmctld_pid());
    all["slurmd_pids"] = Value::Object(slurmds);
    all["slurm_conf"] = json!(lab.dir().join("etc/slurm.conf"));
    all["logs"] = json!(lab.dir().join("log"));
    Ok(all)
}

fn status(name: &str, json: bool) -> Result<()> {
    let lab = match Any::open(name)? {
        Any::Slurm(lab) => lab,
        Any::Pbs(lab) => return pbs::status(&lab, json),
    };
    if json {
        print_json("gpuos.lab/1", describe(&lab)?);
        return Ok(());
    }
    let record = lab.record();
    let spec = lab.spec();
    println!("lab {name}: {}", state(record));
    println!("  Slurm        {} ({})", record.slurm, spec.suite);
    println!("  select       {}", spec.select.select_type());
    println!("  files        {}", lab.dir().display());
    match lab.slurmctld_pid() {
        Some(pid) => println!("  slurmctld    pid {pid}, port {}", record.port),
        None => println!("  slurmctld    does not run"),
    }
    let nodes = spec.node_names();
    let runs = |node: &&String| lab.slurmd_pid(node).is_some();
    println!(
        "  slurmd       {} of {} run",
        nodes.iter().filter(runs).count(),
        nodes.len()
    );
    if spec.simulated_gpus.is_some() {
        let runs = |node: &&String| lab.gpuosd_pid(node).is_some();
        println!(
            "  gpuosd       {} of {} run",
            nodes.iter().filter(runs).count(),
            nodes.len()
        );
    }
    if lab.slurmctld_pid().is_some() {
        print!("{}", lab.run("sinfo", &["-o", "%6D %11T %20G %N"])?);
    }
    Ok(())
}

fn fault(args: &FaultArgs, json: bool) -> Result<()> {
    let name = meant(&args.name);
    let words: Vec<&str> = args.words.iter().map(String::as_str).collect();
    match Any::open(&name)? {
        Any::Slurm(lab) => lab.fault(&args.node, &args.gpu, &words)?,
        Any::Pbs(lab) => lab.fault(&args.node, &args.gpu, &words)?,
    };
    if json {
        let (node, gpu) = (&args.node, &args.gpu);
        print_json(
            "gpuos.lab.fault/1",
            json!({ "lab": name, "node": node, "gpu": gpu, "words": words }),
        );
    }
    Ok(())
}

fn reboot(args: &RebootArgs, json: bool) -> Result<()> {
    let name = meant(&args.name);
    match Any::open(&name)? {
        Any::Slurm(lab) => lab.reboot(&args.node)?,
        Any::Pbs(lab) => lab.reboot(&args.node)?,
    }
    if json {
        print_json(
            "gpuos.lab.reboot/1",
            json!({ "lab": name, "node": args.node }),
        );
    }
    Ok(())
}

fn print_json(schema: &str, mut value: Value) {
    value["schema"] = json!(schema);
    println!("{value:#}");
}

/// Progress on standard error: one line that changes on a terminal, else a line for each step.
struct Progress {
    terminal: bool,
}

impl Progress {
    fn new() -> Progress {
        Progress {
            terminal: std::io::stderr().is_terminal(),
        }
    }

    fn show(&mut self, step: &str) {
        let mut err = std::io::stderr();
        // Nobody is hurt when progress cannot be shown.
        let _ = if self.terminal {
            write!(err, "\r\x1b[K{step}")
        } else {
            writeln!(err, "{step}")
        };
    }

    fn end(&mut self) {
        if self.terminal {
            eprint!("\r\x1b[K");
        }
    }
}
