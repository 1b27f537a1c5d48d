//! `gpuos wlm gpus`, and how `gpuos wlm wrap` asks it: in a process of its own, so that neither a driver that does not answer nor a
//! library that ends its process keeps a job from its start.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use gpuos_host::{Machine, host_name};
use gpuos_wlm::batch;

use super::hardware::{Numbers, host};
use crate::cli::{Manager, WlmGpusArgs, WlmHostArgs, WlmWrapArgs};
use crate::reply::out;

/// The most of a file that a workload manager writes about a job.
const MOST_BYTES: u64 = 1 << 20;

/// Prints what a program is told.
///
/// # Errors
/// The GPUs of this host cannot be looked at, or one is not among them.
pub fn run(machine: &dyn Machine, args: &WlmGpusArgs) -> Result<u8> {
    let names: Vec<&str> = args.gpus.iter().map(String::as_str).collect();
    let given = host(machine, &args.host, Numbers::Nvml)?.given(&names);
    let Some(chosen) = given else {
        bail!(
            "{}: these are not GPUs of this host, each named once",
            names.join(",")
        );
    };
    for (name, value) in chosen.variables() {
        out(&format!("{name}={value}\n"));
    }
    Ok(0)
}

/// The names of the GPUs that a job of LSF or Torque was given on this host.
///
/// # Errors
/// What says so cannot be read.
pub fn names(machine: &dyn Machine, manager: Manager) -> Result<Vec<String>> {
    let var = |name: &str| std::env::var_os(name).unwrap_or_default();
    let owned = |names: Vec<&str>| names.into_iter().map(String::from).collect();
    if manager != Manager::Torque {
        let visible = var("CUDA_VISIBLE_DEVICES");
        return Ok(owned(batch::of_visible(&visible.to_string_lossy())));
    }
    let file = var("PBS_GPUFILE");
    if file.is_empty() {
        return Ok(Vec::new());
    }
    let shown = Path::new(&file).display();
    let text = text_of(Path::new(&file)).with_context(|| format!("PBS_GPUFILE={shown}"))?;
    let own = host_name(machine).unwrap_or_default();
    let found = batch::of_gpufile(&text, &own);
    let found = found.map_err(|line| anyhow!("'{line}' in {shown} names no GPU"))?;
    Ok(owned(found))
}

/// Asks in another process what a program is told of GPUs.
///
/// # Errors
/// They are not of this host, or the driver does not answer.
pub fn variables(
    machine: &dyn Machine,
    args: &WlmWrapArgs,
    names: &[String],
) -> Result<Vec<(String, String)>> {
    let own = std::env::current_exe().context("cannot tell where this program is")?;
    let own = own
        .to_str()
        .context("the path of this program is not UTF-8")?;
    let mut words = vec!["wlm".to_string(), "gpus".to_string()];
    words.extend(host_words(&args.host)?);
    words.push("--".into());
    words.extend_from_slice(names);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let limit = Duration::from_secs(args.limit);
    let Ok(output) = machine.run_within(limit, own, &words) else {
        bail!(
            "NVIDIA's driver could not be asked, or gave no answer within {} s",
            args.limit
        );
    };
    if !output.ok {
        let said = output.stderr.lines().next().unwrap_or_default();
        let said = said.strip_prefix("gpuos: ").unwrap_or(said);
        bail!(
            "{}",
            if said.is_empty() {
                "NVIDIA's library ended the process that asked it"
            } else {
                said
            }
        );
    }
    let pairs = output
        .stdout
        .lines()
        .filter_map(|line| line.split_once('='));
    Ok(pairs
        .map(|(name, value)| (name.into(), value.into()))
        .collect())
}

/// The flags by which another process looks at the same host.
fn host_words(args: &WlmHostArgs) -> Result<Vec<String>> {
    let text = |path: &Path| {
        let text = path.to_str().map(String::from);
        text.with_context(|| format!("{} is not UTF-8", path.display()))
    };
    let mut words = vec!["--sysfs".to_string(), text(&args.hardware.sysfs)?];
    if let Some(kind) = &args.node_type {
        words.extend(["--type".into(), kind.name.clone()]);
    }
    if let Some(library) = &args.hardware.nvml {
        words.extend(["--nvml".into(), text(library)?]);
    }
    if let Some(name) = &args.hardware.node_name {
        words.extend(["--node-name".into(), name.clone()]);
    }
    Ok(words)
}

/// The text of a file of a workload manager's: not of a pipe, which nobody may ever write.
///
/// # Errors
/// It is none, or cannot be read.
pub fn text_of(path: &Path) -> Result<String> {
    if !std::fs::metadata(path)?.is_file() {
        bail!("it is no file");
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(MOST_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
