//! Makes simulated GPUs, breaks and mends them, and runs processes on them.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{Args, Parser, Subcommand};
use nvidia_ml::fault::{self, Fault};
use nvidia_ml::hold::Hold;
use nvidia_ml::model::{KINDS, kind_named};
use nvidia_ml::state::{NO_INSTANCE, Node, Options, Process, Shared, node, now_us};

/// Simulated NVIDIA GPUs in a file, for libnvidia-ml.so.1 of the same build.
#[derive(Parser)]
#[command(name = "gpuos-nvml", version)]
struct Cli {
    /// The state file.
    #[arg(long, global = true, env = "GPUOS_NVML_STATE", value_name = "FILE")]
    state: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make a node in a folder: the state file and libnvidia-ml.so.1.
    Create(Create),
    /// List the kinds of node.
    Kinds,
    /// Show the GPUs and what is wrong with them.
    Show,
    /// Break something.
    #[command(after_help = forms())]
    Fault {
        /// gpu3, 3, or node.
        gpu: String,
        /// The fault, in words.
        #[arg(required = true)]
        words: Vec<String>,
    },
    /// Reset a GPU, as nvidia-smi -r does.
    Reset {
        /// gpu3, 3, or all.
        gpu: String,
    },
    /// Make a GPU as good as new.
    Repair {
        /// gpu3, 3, or all.
        gpu: String,
    },
    /// Boot the node: all GPUs are reset, those off the bus too, and nobody uses them.
    Reboot,
    /// Show a process on a GPU.
    Run(Run),
    /// Take a process from all GPUs.
    Stop {
        /// Process id.
        pid: u32,
    },
    /// Turn MIG mode on or off, as nvidia-smi -mig and the reset that some boards need after it.
    Mig {
        /// gpu3, 3, 4-7, or all.
        gpus: String,
        /// on or off.
        #[arg(value_parser = ["on", "off"])]
        mode: String,
    },
    /// List the MIG instances.
    Instances,
    /// Make a MIG instance by hand, as nvidia-smi mig -cgi PROFILE:START -C does.
    Carve {
        /// gpu3 or 3.
        gpu: String,
        /// Id of the profile.
        profile: u32,
        /// Its first memory slice.
        start: u32,
    },
    /// Have a call that makes or destroys a MIG instance wait, so that its caller can be ended there.
    Hold {
        /// before- or after-, then make-gpu, make-compute, destroy-compute or destroy-gpu; off: calls go on.
        point: String,
        /// Calls that are let through before.
        #[arg(default_value_t = 0)]
        skip: u32,
    },
    /// The process whose call waits; nothing while none has come there.
    Held,
    /// Make calls take as long as on real hardware, or no time.
    Latency {
        /// on or off.
        #[arg(value_parser = ["on", "off"])]
        mode: String,
    },
}

fn forms() -> String {
    let forms = Fault::forms().replace('\n', "\n  ");
    format!("Faults:\n  {forms}\n\nThe whole node knows only: hang SECONDS")
}

#[derive(Args)]
struct Create {
    /// Kind of node; `gpuos-nvml kinds` lists them.
    kind: String,
    /// Folder for the files; it is made.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// The library, when it is not beside this program.
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,
    /// Other UUIDs and serial numbers for another number.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Clique of the NVLink fabric.
    #[arg(long, default_value_t = 0)]
    clique: u32,
    /// UUID of the fabric's cluster, as 32 hexadecimal digits.
    #[arg(long, value_parser = cluster, default_value = "00000000000000000000000000000000")]
    cluster: u128,
    /// Calls take as long as on real hardware.
    #[arg(long)]
    real_latency: bool,
}

fn cluster(text: &str) -> Result<u128, String> {
    let plain: String = text.chars().filter(|&c| c != '-').collect();
    let value = u128::from_str_radix(&plain, 16)
        .ok()
        .filter(|_| plain.len() == 32);
    value.ok_or_else(|| "give 32 hexadecimal digits".to_string())
}

#[derive(Args)]
struct Run {
    /// gpu3 or 3.
    gpu: String,
    /// Process id.
    #[arg(long)]
    pid: u32,
    /// How busy it keeps the GPU, in percent.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(..=100))]
    load: u32,
    /// Memory in MiB.
    #[arg(long, default_value_t = 1024)]
    memory: u64,
    /// MIG instances that it runs in, as GPU-INSTANCE/COMPUTE-INSTANCE.
    #[arg(long, value_parser = instances)]
    instance: Option<(u32, u32)>,
    /// A graphics context instead of a compute context.
    #[arg(long)]
    graphics: bool,
}

fn instances(text: &str) -> Result<(u32, u32), String> {
    let parts = text.split_once('/');
    let read = parts.and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    read.ok_or_else(|| format!("'{text}': give GPU-INSTANCE/COMPUTE-INSTANCE, as 2/0"))
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gpuos-nvml: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> anyhow::Result<()> {
    match cli.command {
        Command::Create(create) => return make(&create),
        Command::Kinds => {
            for kind in &KINDS {
                println!("{:<14} {} x {}", kind.name, kind.buses.len(), kind.board);
            }
            return Ok(());
        }
        _ => {}
    }
    let path = cli
        .state
        .context("no state file: give --state or set GPUOS_NVML_STATE")?;
    let shared = Shared::open(&path).with_context(|| path.display().to_string())?;
    match cli.command {
        Command::Create(_) | Command::Kinds => Ok(()),
        Command::Show => {
            shared.read(|node| print!("{}", table(node)));
            Ok(())
        }
        Command::Fault { gpu, words } => {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let fault = Fault::parse(&words).map_err(anyhow::Error::msg)?;
            let gpu = match gpu.as_str() {
                "node" => None,
                gpu => Some(index(gpu)?),
            };
            said(shared.update(|node| fault::inject(node, gpu, &fault)))
        }
        Command::Reset { gpu } => each(&shared, &gpu, fault::reset),
        Command::Repair { gpu } => {
            shared.update(|node| node.hang_until_us = 0);
            each(&shared, &gpu, fault::repair)
        }
        Command::Reboot => {
            shared.update(fault::reboot);
            Ok(())
        }
        Command::Run(run) => start(&shared, &run),
        Command::Stop { pid } => stop(&shared, pid),
        Command::Mig { gpus, mode } => {
            let (first, last) = match gpus.split_once('-') {
                _ if gpus == "all" => (0, shared.read(|node| node.gpus().len()).max(1) - 1),
                Some((first, last)) => (index(first)?, index(last)?),
                None => (index(&gpus)?, index(&gpus)?),
            };
            (first..=last).try_for_each(|gpu| said(mig(&shared, gpu, mode == "on")))
        }
        Command::Instances => {
            shared.read(|node| print!("{}", node.instances_text()));
            Ok(())
        }
        Command::Carve {
            gpu,
            profile,
            start,
        } => {
            let gpu = index(&gpu)?;
            let made = shared.update(|node| node.carve(gpu, profile, start));
            made.map_err(|refusal| anyhow::anyhow!("gpu{gpu}: the driver refuses: {refusal:?}"))
        }
        Command::Hold { point, skip } => {
            let hold = Hold::parse(&point, skip).map_err(anyhow::Error::msg)?;
            shared.update(|node| node.hold = hold);
            Ok(())
        }
        Command::Held => {
            let pid = shared.read(|node| node.hold.pid);
            if pid != 0 {
                println!("{pid}");
            }
            Ok(())
        }
        Command::Latency { mode } => {
            shared.update(|node| node.real_latency = u32::from(mode == "on"));
            Ok(())
        }
    }
}

fn mig(shared: &Shared, gpu: usize, on: bool) -> Result<(), String> {
    shared.update(|node| {
        if node.model().board().mig.is_none() {
            return Err("this board has no MIG".into());
        }
        let own = node.gpus_mut().get_mut(gpu).ok_or("no such GPU")?;
        let set = own.set_mig(on, false);
        set.map_err(|_| format!("gpu{gpu}: processes or MIG instances are on it"))
    })
}

fn said(result: Result<(), String>) -> anyhow::Result<()> {
    result.map_err(anyhow::Error::msg)
}

/// Every GPU that is meant, or none at all when one refuses.
fn each(
    shared: &Shared,
    gpu: &str,
    work: fn(&mut Node, usize) -> Result<(), String>,
) -> anyhow::Result<()> {
    let one = match gpu {
        "all" => None,
        gpu => Some(index(gpu)?),
    };
    said(shared.update(|node| match one {
        Some(gpu) => work(node, gpu),
        None => {
            let before = *node;
            let all = (0..node.gpus().len()).try_for_each(|gpu| work(node, gpu));
            if all.is_err() {
                *node = before;
            }
            all
        }
    }))
}

fn index(text: &str) -> anyhow::Result<usize> {
    let number = text.strip_prefix("gpu").unwrap_or(text);
    match number.parse() {
        Ok(number) => Ok(number),
        Err(_) => bail!("'{text}' is no GPU: give gpu0, gpu1, …"),
    }
}

fn make(create: &Create) -> anyhow::Result<()> {
    let Some((number, kind)) = kind_named(&create.kind) else {
        let names: Vec<_> = KINDS.iter().map(|kind| kind.name).collect();
        bail!(
            "'{}' is no kind of node: give one of {}",
            create.kind,
            names.join(", ")
        );
    };
    let library = match &create.library {
        Some(library) => library.clone(),
        None => beside()?,
    };
    let library = library
        .canonicalize()
        .with_context(|| format!("{}: cargo build -p gpuos_nvml makes it", library.display()))?;
    let dir = &create.dir;
    std::fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    let options = Options {
        seed: create.seed,
        clique: create.clique,
        cluster: create.cluster.to_be_bytes(),
        real_latency: create.real_latency,
    };
    let state = dir.join("state");
    Shared::create(&state, &node(number, kind, options))
        .with_context(|| state.display().to_string())?;
    for name in ["libnvidia-ml.so.1", "libnvidia-ml.so"] {
        link(&library, &dir.join(name))?;
    }
    let dir = dir.canonicalize()?;
    println!("export GPUOS_NVML_STATE={}/state", dir.display());
    println!("export LD_LIBRARY_PATH={}", dir.display());
    Ok(())
}

/// A link that replaces one which may be there.
fn link(library: &Path, name: &Path) -> anyhow::Result<()> {
    match std::fs::remove_file(name) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    std::os::unix::fs::symlink(library, name).with_context(|| name.display().to_string())
}

/// The library that was built with this program.
fn beside() -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe()?;
    let dir = program.parent().context("this program lies in no folder")?;
    Ok(dir.join("libnvidia_ml.so"))
}

fn start(shared: &Shared, run: &Run) -> anyhow::Result<()> {
    let gpu = index(&run.gpu)?;
    let (gpu_instance, compute_instance) = run.instance.unwrap_or((NO_INSTANCE, NO_INSTANCE));
    let process = Process {
        pid: run.pid,
        load: run.load,
        memory_mib: run.memory,
        gpu_instance,
        compute_instance,
        graphics: run.graphics.into(),
        started: 0,
    };
    said(shared.update(|node| {
        let board = node.model().board();
        let gpu = node.gpus_mut().get_mut(gpu).ok_or("no such GPU")?;
        gpu.settle(board, now_us());
        let known = gpu.processes.iter().position(|p| p.pid == process.pid);
        let place = known.or_else(|| gpu.processes.iter().position(|p| p.pid == 0));
        let place = place.ok_or("the GPU has no room for another process")?;
        gpu.processes[place] = process;
        Ok(())
    }))
}

fn stop(shared: &Shared, pid: u32) -> anyhow::Result<()> {
    let now = now_us();
    let stopped = shared.update(|node| {
        let board = node.model().board();
        let mut stopped = false;
        for gpu in node.gpus_mut() {
            gpu.settle(board, now);
            for process in gpu
                .processes
                .iter_mut()
                .filter(|p| p.pid == pid && pid != 0)
            {
                *process = Process::default();
                stopped = true;
            }
        }
        stopped
    });
    match stopped {
        true => Ok(()),
        false => bail!("process {pid} is on no GPU"),
    }
}

fn table(node: &Node) -> String {
    let kind = node.model();
    let board = kind.board();
    let mut text = format!("{}: {} x {}\n", kind.name, node.gpus().len(), board.name);
    for (index, gpu) in node.gpus().iter().enumerate() {
        let mut notes = Vec::new();
        let mut note = |holds: bool, text: &str| {
            if holds {
                notes.push(text.to_string());
            }
        };
        note(gpu.lost != 0, "lost");
        note(gpu.driver_timeout != 0, "driver timeout");
        note(gpu.hang_until_us > now_us(), "hangs");
        note(gpu.reset_required != 0, "needs a reset");
        note(
            gpu.recovery_action != 0,
            &format!("recovery action {}", gpu.recovery_action),
        );
        note(gpu.throttle != 0, "slowed down");
        note(gpu.aggregate.uncorrected() > 0, "uncorrected ECC errors");
        note(gpu.rows_pending != 0, "row remapping pending");
        note(gpu.rows_failed != 0, "row remapping failed");
        note(gpu.page_count > 0, "retired pages");
        note(gpu.links.iter().any(|link| link.down != 0), "NVLink down");
        note(
            gpu.power_limit_mw != board.watts[2] * 1000,
            &format!("limit {} W", gpu.power_limit_mw / 1000),
        );
        let [low, high] = gpu.clock_lock;
        note(high != 0, &format!("clocks {low}-{high} MHz"));
        note(
            gpu.mig_on(),
            &format!("MIG, {} devices", gpu.mig_devices().len()),
        );
        text += &format!(
            "gpu{index}  {:>3} C  {:>4} W  {:>3} %  {:>6} MiB  {}\n",
            gpu.celsius(board),
            gpu.power_mw(board) / 1000,
            gpu.load(),
            gpu.used_mib(),
            notes.join(", ")
        );
    }
    text
}
