//! `gpuos lab`: a private Slurm cluster on this machine, to try things before installing them.

use std::fs;
use std::io::{IsTerminal, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::{Args as ClapArgs, Subcommand, ValueEnum};
use gpuos_lab::{Cgroup, Lab, LabError, LabSpec, Record, Suite};
use gpuos_model::gpuset::{GpuSet, MAX_GPUS};
use gpuos_model::hostlist;
use serde_json::{Value, json};

/// `gpuos lab`.
#[derive(ClapArgs)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Start a lab and leave it up.
    Up(Box<UpArgs>),
    /// Run a command in a lab; its exit code is that of the command.
    Run(RunArgs),
    /// Open a shell in a lab.
    Sh(NameArgs),
    /// End a lab, its jobs too, and remove its files.
    Down(DownArgs),
    /// List the labs of this machine.
    List,
    /// Show a lab: its nodes, daemons and files.
    Status(NameArgs),
    /// Break or mend a simulated GPU: gpuos lab fault n2 gpu3 xid 79.
    #[command(after_help = FAULTS)]
    Fault(FaultArgs),
    /// Reboot a node: its jobs end, simulated GPUs are reset, also one that fell off the bus.
    Reboot(RebootArgs),
}

const FAULTS: &str = "Faults: xid N, ecc uncorrected N, row-remap pending, thermal C, lost, hang S and others: a wrong \
    one is answered with the list of all. repair makes a GPU as good as new; reset does what nvidia-smi -r does; one that \
    is lost needs gpuos lab reboot. The lab needs simulated GPUs: gpuos lab up --gpus simulated.";

#[derive(ClapArgs)]
struct FaultArgs {
    /// Name of the lab; without it $GPUOS_LAB, else lab, else the only one that is up.
    #[arg(long)]
    name: Option<String>,
    /// Node, for example n2.
    node: String,
    /// gpu3 or 3, or node.
    gpu: String,
    /// The fault in words, repair, or reset.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

#[derive(ClapArgs)]
struct RebootArgs {
    /// Name of the lab; without it $GPUOS_LAB, else lab, else the only one that is up.
    #[arg(long)]
    name: Option<String>,
    /// Node, for example n2.
    node: String,
}

#[derive(ClapArgs)]
struct NameArgs {
    /// Name of the lab; without it $GPUOS_LAB, else lab, else the only one that is up.
    #[arg(long)]
    name: Option<String>,
}

#[derive(ClapArgs)]
struct RunArgs {
    /// Name of the lab; without it $GPUOS_LAB, else lab, else the only one that is up.
    #[arg(long)]
    name: Option<String>,
    /// The command and its arguments, after `--`.
    #[arg(required = true, last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

#[derive(ClapArgs)]
struct DownArgs {
    /// Name of the lab; without it $GPUOS_LAB, else lab, else the only one that is up.
    #[arg(long)]
    name: Option<String>,
    /// End all labs that `gpuos lab up` made, and what is left of those whose owner died.
    /// Labs of programs that run are theirs to end.
    #[arg(long, conflicts_with = "name")]
    all: bool,
}

#[derive(ClapArgs)]
struct UpArgs {
    /// Name of the lab: letters, digits, - and _. Without it $GPUOS_LAB, else lab.
    #[arg(long)]
    name: Option<String>,
    /// Number of nodes, each with a slurmd: n1, n2, ….
    #[arg(short = 'N', long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(0..=256))]
    nodes: u16,
    /// Node type: one of gpuos's, one of --gpuos-toml, or cpu for nodes without GPUs.
    #[arg(long, value_name = "TYPE", default_value = "dgx-h100")]
    node_type: String,
    /// Which Slurm: native, a Debian suite (trixie, sid), or the prefix of an installed one.
    #[arg(long, value_name = "SLURM", default_value = "native", value_parser = suite)]
    slurm: Suite,
    /// Plugin that selects nodes and GPUs. Stock Slurm is for comparison.
    #[arg(long, default_value = "gpuos")]
    select: SelectArg,
    /// Folder with gpuos's built plugins, when they are not where the command looks for them.
    #[arg(long, value_name = "DIR")]
    plugin_dir: Option<PathBuf>,
    /// Put a leaf switch over every K nodes, and one spine over all.
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u16).range(1..))]
    switches: Option<u16>,
    /// What stands behind the GPUs' device files: nothing, or simulated GPUs with a gpuosd on every node,
    /// which `gpuos lab fault` breaks and mends.
    #[arg(long, default_value = "files")]
    gpus: GpusArg,
    /// GPUs of every node that are divided by MIG, for example 4-7: GRES gpuos instead of gpu.
    #[arg(long, value_name = "GPUS", value_parser = gpus)]
    mig: Option<GpuSet>,
    /// Those of --mig that are MIG-switchable: in GRES gpu too, whole or divided as jobs need them (after 2 s each).
    #[arg(long, value_name = "GPUS", value_parser = gpus, requires = "mig")]
    mig_switchable: Option<GpuSet>,
    /// A gpuos_mover on every node, which keeps checkpoints of jobs (sbatch --gpuos-checkpoint).
    #[arg(long)]
    checkpoints: bool,
    /// Folder with gpuosd, gpuos-nvml and its library, and gpuos_mover, when they are not where the command looks for them.
    #[arg(long, value_name = "DIR")]
    daemon_dir: Option<PathBuf>,
    /// Where the gpuosds of simulated GPUs read the kernel's log, for example /dev/kmsg; nowhere by default.
    #[arg(long, value_name = "FILE")]
    kernel_log: Option<PathBuf>,
    /// gpuos.toml of the lab.
    #[arg(long, value_name = "FILE")]
    gpuos_toml: Option<PathBuf>,
    /// Confine jobs to their GPUs by device cgroups: where that works, never, or else fail.
    #[arg(long, default_value = "auto")]
    cgroup: CgroupArg,
    /// A slurmdbd and a MariaDB of the lab's own, for accounts and QOS.
    #[arg(long)]
    accounting: bool,
    /// That many further nodes without daemons, c1, c2, …: for looking at slurmctld alone.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_000))]
    cloud_nodes: Option<u32>,
    /// Line for the lab's slurm.conf, for example --conf MinJobAge=30; may be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    conf: Vec<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum SelectArg {
    /// select/gpuos, with the other plugins of gpuos.
    Gpuos,
    /// select/cons_tres, without any of them.
    Stock,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum GpusArg {
    /// Device files alone.
    Files,
    /// A simulated NVIDIA library, and gpuosd.
    Simulated,
}

#[derive(Clone, Copy, ValueEnum)]
enum CgroupArg {
    Auto,
    Off,
    Required,
}

fn suite(text: &str) -> Result<Suite, String> {
    // clap names the option and the value already.
    text.parse().map_err(|_| {
        "give native, the name of a Debian suite (trixie, sid) or the absolute path of an installed Slurm"
            .to_string()
    })
}

/// Numbers of GPUs: `4-7` or `0,2`.
pub fn gpus(text: &str) -> Result<GpuSet, String> {
    let names = hostlist::expand(&format!("[{text}]")).unwrap_or_default();
    let numbers: Option<Vec<usize>> = names.iter().map(|name| name.parse().ok()).collect();
    let numbers = numbers.filter(|all| !all.is_empty() && all.iter().all(|gpu| *gpu < MAX_GPUS));
    let numbers = numbers.ok_or("give numbers of GPUs from 0 on, for example 4-7 or 0,2")?;
    Ok(numbers.into_iter().fold(GpuSet::EMPTY, GpuSet::with))
}

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

/// Where `$GPUOS_LAB` names a lab and this process is not in one (`$SLURM_CONF` is not set): becomes this command in that
/// lab, with its Slurm and its gpuosds. Returns where there is nothing to do.
///
/// # Errors
/// There is no such lab, or it cannot be entered.
pub fn go_there() -> Result<()> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let (Some(name), None) = (set(LAB_ENV), set("SLURM_CONF")) else {
        return Ok(());
    };
    let name = name.to_string_lossy().into_owned();
    let lab = Lab::open(&name).with_context(|| format!("{LAB_ENV}={name}"))?;
    let own = std::env::current_exe()?;
    let program = lab.own_command().unwrap_or(own);
    let mut command = lab.command(&program.to_string_lossy())?;
    let error = command.args(std::env::args_os().skip(1)).exec();
    Err(error).with_context(|| format!("cannot run gpuos in lab {name}"))
}

/// Runs `gpuos lab`; returns the exit code.
pub fn run(args: &Args, json: bool) -> Result<i32> {
    let done = match &args.action {
        Action::Up(args) => up(args, json),
        Action::Run(args) => {
            return enter(&meant(&args.name), &args.command[0], &args.command[1..]);
        }
        Action::Sh(args) => return shell(&meant(&args.name)),
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
    if args.gpus == GpusArg::Simulated {
        spec.simulated_gpus = Some(match &args.daemon_dir {
            Some(dir) => dir.clone(),
            None => gpuos_lab::find_daemon_dir().context("--gpus simulated")?,
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
    if spec.movers.is_some() {
        println!("  gpuos ckpt finds the gpuos_mover of each node there");
    }
    println!(
        "  export GPUOS_LAB={}         means this lab from now on",
        lab.name()
    );
    Ok(())
}

/// Becomes the command: its signals, terminal and exit code are its own.
fn enter(name: &str, program: &str, args: &[String]) -> Result<i32> {
    let lab = Lab::open(name)?;
    let error = lab.command(program)?.args(args).exec();
    Err(error).with_context(|| format!("cannot run {program} in lab {name}"))
}

fn shell(name: &str) -> Result<i32> {
    let lab = Lab::open(name)?;
    let own = std::env::var("SHELL").unwrap_or_default();
    // The root of a Debian suite has bash and sh only.
    let shell = match &lab.spec().suite {
        Suite::Debian(_) => "/bin/bash",
        _ if own.is_empty() => "/bin/sh",
        _ => &own,
    };
    if std::io::stdin().is_terminal() {
        eprintln!(
            "shell in lab {name} (Slurm {}); `exit` leaves it",
            lab.version()
        );
    }
    let mut command = lab.command(shell)?;
    // Debian's bashrc shows it in the prompt.
    command.env("debian_chroot", format!("lab {name}"));
    let error = command.exec();
    Err(error).with_context(|| format!("cannot run {shell} in lab {name}"))
}

fn down(args: &DownArgs, json: bool) -> Result<()> {
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
    let mut rows = vec![["NAME", "SLURM", "NODES", "TYPE", "SELECT", "STATE"].map(String::from)];
    for record in &records {
        let spec = &record.spec;
        rows.push([
            spec.name.clone(),
            format!("{} ({})", record.slurm, spec.suite),
            (spec.node_names().len() + spec.cloud_nodes.unwrap_or(0)).to_string(),
            spec.node_type.clone(),
            spec.select.select_type().to_string(),
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
    let lab = Lab::open(name)?;
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
    let lab = Lab::open(&meant(&args.name))?;
    let words: Vec<&str> = args.words.iter().map(String::as_str).collect();
    lab.fault(&args.node, &args.gpu, &words)?;
    if json {
        let (node, gpu) = (&args.node, &args.gpu);
        print_json(
            "gpuos.lab.fault/1",
            json!({ "lab": lab.name(), "node": node, "gpu": gpu, "words": words }),
        );
    }
    Ok(())
}

fn reboot(args: &RebootArgs, json: bool) -> Result<()> {
    let lab = Lab::open(&meant(&args.name))?;
    lab.reboot(&args.node)?;
    if json {
        print_json(
            "gpuos.lab.reboot/1",
            json!({ "lab": lab.name(), "node": args.node }),
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
