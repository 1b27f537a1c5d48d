//! `gpuos wlm wrap`: what it runs as the job's user takes the place of this process.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use gpuos_host::Machine;
use gpuos_model::screen;
use gpuos_wlm::{batch, journal};

use super::{gpus, saves};
use crate::cli::{Manager, WlmWrapArgs};

/// The job did not get what it requires, and goes back into the queue, where the workload manager is told so.
const LATER: u8 = 99;

/// There is no such program.
const NOT_FOUND: u8 = 127;

/// The program is there and cannot be started.
const NOT_STARTED: u8 = 126;

/// Becomes the program.
///
/// A job that says nothing to gpuos starts in any case, with a line on standard error where it goes without something.
///
/// # Errors
/// What the job asks gpuos for cannot be had.
pub fn run(machine: &dyn Machine, args: &WlmWrapArgs) -> Result<u8> {
    if args.manager != Manager::Torque && args.saves.is_some() {
        bail!(
            "--saves is for jobs of Torque: leave it out, Grid Engine and LSF say where a job saves"
        );
    }
    if args.manager != Manager::Gridengine && args.starter.is_some() {
        bail!("--starter is for jobs of Grid Engine: leave it out");
    }
    let mut command = match (args.manager, &args.starter) {
        (Manager::Gridengine, Some(starter)) => {
            // It is told by the same variables how Grid Engine would start the job.
            let mut command = Command::new(starter);
            command.args(&args.command);
            command
        }
        (Manager::Gridengine, None) => gridengine(&args.command)?,
        (Manager::Lsf | Manager::Torque, _) => plain(&args.command)?,
    };
    // What a job that asked for nothing of it goes without.
    let mut without = Vec::new();
    if args.manager != Manager::Gridengine {
        match tell_gpus(machine, args, &mut command)? {
            Gpus::Told => {}
            Gpus::Untold(why) => without.push(format!("it is not told its GPUs: {why:#}")),
            Gpus::Apart(why) => {
                say(&why);
                return Ok(LATER);
            }
        }
    }
    match tell_saves(args, &mut command) {
        Err(why) if asks_for_saves(args) => return Err(why),
        Err(why) => without.push(format!("it has no folder for checkpoints: {why:#}")),
        Ok(()) => {}
    }
    if !without.is_empty() {
        say(&format!("the job starts, but {}", without.join("; and ")));
    }
    let error = command.exec();
    let program = command.get_program().to_string_lossy().into_owned();
    say(&format!("cannot start {program}: {error}"));
    // As a shell has it.
    Ok(match error.kind() {
        std::io::ErrorKind::NotFound => NOT_FOUND,
        _ => NOT_STARTED,
    })
}

/// Writes one line. A job whose standard error takes none starts all the same.
fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "gpuos: {}", screen::line(text));
}

/// Tells the program where it saves, and what it goes on from.
fn tell_saves(args: &WlmWrapArgs, command: &mut Command) -> Result<()> {
    let Some(folder) = folder(args)? else {
        return Ok(());
    };
    // What runs within the job must not take away what the job is about to save.
    let within = var("GPUOS_SAVES").is_some_and(|own| own == folder) || is_later_task(args);
    let committed = match within {
        true => saves::last(&folder)?,
        false => saves::open(&folder)?,
    };
    command.env("GPUOS_SAVES", &folder);
    match committed {
        Some(committed) => command.env("GPUOS_RESTORE", committed),
        None => command.env_remove("GPUOS_RESTORE"),
    };
    Ok(())
}

/// Whether the job itself asked gpuos for checkpoints: not where the site alone has a folder for all jobs.
fn asks_for_saves(args: &WlmWrapArgs) -> bool {
    match args.manager {
        Manager::Gridengine => true,
        Manager::Lsf => {
            let methods = var("LSB_ECHKPNT_METHOD").unwrap_or_default();
            batch::names_gpuos(&methods.to_string_lossy())
        }
        Manager::Torque => false,
    }
}

fn plain(words: &[OsString]) -> Result<Command> {
    let (program, arguments) = words.split_first().context("name a program after --")?;
    let mut command = Command::new(program);
    command.args(arguments);
    Ok(command)
}

/// The words as Grid Engine's own starter would run them: a script by the job's shell, a command of `qsub -b y` as a line of that shell,
/// and one with `-shell n` by itself.
fn gridengine(words: &[OsString]) -> Result<Command> {
    let config = var("SGE_JOB_SPOOL_DIR").map(|folder| PathBuf::from(folder).join("config"));
    // It has no variables for these two.
    let config = config.and_then(|file| std::fs::read(file).ok());
    let config = config.unwrap_or_default();
    let config = String::from_utf8_lossy(&config);
    let is = |line: &str| config.lines().any(|one| one == line);
    let mode = var("SGE_STARTER_SHELL_START_MODE").unwrap_or_default();
    let by_shell = match is("handle_as_binary=1") {
        true => !is("no_shell=1"),
        false => mode != "unix_behavior",
    };
    match var("SGE_STARTER_SHELL_PATH").filter(|_| by_shell) {
        None => plain(words),
        Some(shell) => {
            let mut command = Command::new(&shell);
            if var("SGE_STARTER_USE_LOGIN_SHELL").is_some_and(|login| login == "true") {
                let mut name = OsString::from("-");
                name.push(Path::new(&shell).file_name().unwrap_or(OsStr::new("sh")));
                command.arg0(name);
            }
            match is("handle_as_binary=1") {
                true => command.arg("-c").arg(words.join(OsStr::new(" "))),
                false => command.args(words),
            };
            Ok(command)
        }
    }
}

/// A variable of the job that is not empty.
fn var(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// Where the job's checkpoints are; none where it has none: without a checkpointing environment of Grid Engine, without `bsub -k` or
/// with another method there, and where the site names no folder for jobs of Torque.
fn folder(args: &WlmWrapArgs) -> Result<Option<PathBuf>> {
    match args.manager {
        Manager::Gridengine if args.stored => Ok(None),
        Manager::Gridengine => {
            let (Some(folder), Some(job)) = (var("SGE_CKPT_DIR"), var("JOB_ID")) else {
                return Ok(None);
            };
            let task = var("SGE_TASK_ID").unwrap_or_else(|| "0".into());
            let name = journal::file(&job.to_string_lossy(), &task.to_string_lossy());
            let name = name.context(
                "JOB_ID and SGE_TASK_ID are no numbers: run this as the starter_method of a queue",
            )?;
            Ok(Some(PathBuf::from(folder).join(name)))
        }
        Manager::Lsf => {
            let methods = var("LSB_ECHKPNT_METHOD").unwrap_or_default();
            let Some(folder) =
                var("LSB_CHKPNT_DIR").filter(|_| batch::saves_here(&methods.to_string_lossy()))
            else {
                return Ok(None);
            };
            let folder = std::path::absolute(&folder).context("cannot tell where this runs")?;
            Ok(Some(folder.join("gpuos")))
        }
        Manager::Torque => {
            let Some(folder) = &args.saves else {
                return Ok(None);
            };
            let job = var("PBS_JOBID").unwrap_or_default();
            let job = job.to_string_lossy();
            let name = batch::folder_of(&job).with_context(|| {
                format!(
                    "PBS_JOBID={} is no job of Torque: run this as its $job_starter, or leave --saves out",
                    screen::lines(&job)
                )
            })?;
            Ok(Some(folder.join(name)))
        }
    }
}

/// Torque starts what a job spawns (pbsdsh, MPI) by the same starter as the job itself.
fn is_later_task(args: &WlmWrapArgs) -> bool {
    let number = |name: &str| var(name).unwrap_or_default().into_string();
    let (node, task) = (number("PBS_NODENUM"), number("PBS_TASKNUM"));
    let (node, task) = (node.unwrap_or_default(), task.unwrap_or_default());
    args.manager == Manager::Torque && !batch::is_first_task(&node, &task)
}

/// What a job is told of its GPUs.
enum Gpus {
    /// Which they are; or it has none.
    Told,
    /// Nothing, and why.
    Untold(anyhow::Error),
    /// They are not as close as it requires: a sentence.
    Apart(String),
}

/// Tells the program which GPUs it was given.
///
/// # Errors
/// What the job says to gpuos is not understood, or it requires what cannot be looked at.
fn tell_gpus(machine: &dyn Machine, args: &WlmWrapArgs, command: &mut Command) -> Result<Gpus> {
    let names = match gpus::names(machine, args.manager) {
        Ok(names) => names,
        Err(why) => return Ok(Gpus::Untold(why)),
    };
    if names.is_empty() {
        return Ok(Gpus::Told);
    }
    let wish = var(batch::VARIABLE).unwrap_or_default();
    let ask = batch::wish(&wish.to_string_lossy()).map_err(anyhow::Error::msg)?;
    let required = ask.linked() > 0 && names.len() > 1;
    let variables = match gpus::variables(machine, args, &names) {
        Err(why) if required => {
            return Err(why.context(
                "the job requires NVLink between all its GPUs, which gpuos cannot look at",
            ));
        }
        Err(why) => return Ok(Gpus::Untold(why)),
        Ok(variables) => variables,
    };
    let linked = variables
        .iter()
        .any(|(name, value)| name == "GPUOS_LEVEL" && value == "nvlink");
    if required && !linked {
        return Ok(Gpus::Apart(format!(
            "the job requires NVLink between all its GPUs, and was given {}, which are not linked so",
            names.join(",")
        )));
    }
    command.envs(variables);
    Ok(Gpus::Told)
}
