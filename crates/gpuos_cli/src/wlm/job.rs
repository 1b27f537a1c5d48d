//! `gpuos wlm prolog` and `epilog`: what root does before and after a job of Grid Engine.
//!
//! A job's environment is its user's, so nothing is taken from it but the path of the job's folder, which the administrator's
//! adapter hands on. Root appends to a file there: it has to be the file of that job, and not one that its user could have made.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use gpuos_core::wire::CHECKPOINT_VARIABLE;
use gpuos_host::Machine;
use gpuos_model::screen;
use gpuos_wlm::gridengine::job::{Job, MOST_BYTES};
use gpuos_wlm::gridengine::task::{Task, is_spread};
use gpuos_wlm::host::Chosen;
use gpuos_wlm::journal::{self, Entry};
use gpuos_wlm::start::{Start, start};

use super::hardware::{Numbers, host};
use super::held::{Held, started};
use super::store;
use crate::cli::WlmJobArgs;

/// The job goes back into the queue.
const LATER: u8 = 99;
/// The job is wrong, and stays as it is until somebody looks at it.
const WRONG: u8 = 100;
/// The host is wrong: its queue takes no jobs until somebody looks at it.
const HOST: u8 = 1;

/// Whoever else may write.
const OTHERS_WRITE: u32 = 0o022;

/// The file in a job's folder that says which run of it this is.
const RUN: &str = "gpuos_run";

/// The variable by which gpuos's starter of jobs knows the site's.
const STARTER: &str = "GPUOS_SITE_STARTER";

/// How long GPUs of jobs that have just ended are waited for: Grid Engine ends what they left behind.
const PATIENCE: Duration = Duration::from_secs(20);

/// Chooses a job's GPUs, and has the host's gpuos_mover prepare for its checkpoints.
///
/// # Errors
/// What is wrong with the host.
pub fn prolog(machine: &dyn Machine, args: &WlmJobArgs) -> Result<u8> {
    let mut text = Vec::new();
    let most = u64::try_from(MOST_BYTES).unwrap_or(u64::MAX);
    std::io::stdin()
        .lock()
        .take(most.saturating_add(1))
        .read_to_end(&mut text)
        .context("cannot read what qstat prints")?;
    if text.is_empty() {
        bail!(
            "qstat prints nothing of job {}: sge_qmaster does not answer, or this host is no administrative or submit host (qconf -ah)",
            screen::lines(&args.job)
        );
    }
    let text = String::from_utf8_lossy(&text);
    let job = match Job::read(&text, &args.job) {
        Ok(job) => job,
        Err(why) => return Ok(say(&why, WRONG)),
    };
    let of_daemon = |is: fs::Metadata| is.uid() == job.uid;
    if fs::symlink_metadata(&args.spool).is_ok_and(of_daemon) {
        // The queue is not to stop because of who submits a job.
        let why = "the job's user is the account of sge_execd, whose files no job is to write: submit it as another user";
        return Ok(say(why, WRONG));
    }
    let (name, spool) = (name(args)?, Spool::open(machine, args, Some(job.uid))?);
    let saving = match saving(args, &text, (&name, &spool)) {
        Ok(saving) => saving,
        Err(why) => return Ok(say(&why, WRONG)),
    };
    let code = gpus(machine, args, (&job, &name, &spool))?;
    if let Some(starter) = args.starter.as_ref().filter(|_| code == 0) {
        let starter = starter.display().to_string();
        if starter.contains(char::is_whitespace) {
            bail!("--starter: a path has no blanks");
        }
        spool.append(&[(STARTER, starter)])?;
    }
    if let Some(task) = saving.filter(|_| code == 0) {
        checkpoints(machine, args, (&task, &name, &spool))?;
    }
    Ok(code)
}

/// The job, where gpuos_mover is to keep its checkpoints; why it must not start.
fn saving(
    args: &WlmJobArgs,
    text: &str,
    (name, spool): (&str, &Spool<'_>),
) -> Result<Option<Task>, String> {
    if args.mover.is_none() {
        return Ok(None);
    }
    let (job, task) = name.split_once('.').unwrap_or((name, "1"));
    let task = Task::read(text, job, task)?.filter(|task| task.asked.is_some());
    // The file is there where the job has a parallel environment.
    let hosts = spool.read("pe_hostfile").unwrap_or_default();
    if task.is_some() && is_spread(&hosts) {
        return Err("checkpoints are kept of jobs on one host, and this one has several: submit it without -ckpt gpuos, or with a \
             parallel environment of one host"
            .into());
    }
    Ok(task)
}

/// Has gpuos_mover prepare, and tells the job's environment; what comes of it stands in the job's output.
fn checkpoints(
    machine: &dyn Machine,
    args: &WlmJobArgs,
    (task, name, spool): (&Task, &str, &Spool<'_>),
) -> Result<()> {
    let Some(mover) = &args.mover else {
        return Ok(());
    };
    if let Some(run) = task.since {
        spool.note_run(run)?;
    }
    let told = store::begins(machine, mover, (name, task));
    let (folder, notes) = told.unwrap_or_else(|why| {
        let why = format!("the program has no checkpoints: {why}");
        (String::new(), vec![why])
    });
    for note in notes {
        eprintln!("gpuos: {}", screen::lines(&note));
    }
    // Empty where there is none: what the user has set of it does not count.
    spool.append(&[(CHECKPOINT_VARIABLE, folder)])
}

/// Chooses a job's GPUs.
fn gpus(
    machine: &dyn Machine,
    args: &WlmJobArgs,
    (job, name, spool): (&Job, &str, &Spool<'_>),
) -> Result<u8> {
    if job.ask.gpus == 0 {
        let none = Chosen {
            numbers: Vec::new(),
            visible: Vec::new(),
            level: None,
        };
        spool.tell(&none)?;
        return Ok(0);
    }
    let (keeper, group) = (spool.keeper()?, spool.group()?);
    let host = host(machine, &args.host, Numbers::Minor)?;
    let began = Instant::now();
    loop {
        let held = Held::lock(&args.host.state)?;
        held.set_apart(name, group)?;
        let (others, left) = held.others(name)?;
        match start(&host, &job.ask, &others) {
            Start::Now(chosen) => {
                let entry = Entry {
                    gpus: chosen.numbers.iter().copied().collect(),
                    keeper,
                    group,
                };
                held.note(name, &entry)?;
                spool.tell(&chosen)?;
                return Ok(0);
            }
            Start::Later(why) => return Ok(say(&why, LATER)),
            Start::HostDiffers(why) if began.elapsed() > PATIENCE => {
                let left = match left.is_empty() {
                    true => String::new(),
                    false => format!(
                        "; programs of jobs that have ended still run: {}: end them, then clear the queue's error (qmod -cq)",
                        left.join(", ")
                    ),
                };
                return Ok(say(&format!("{why}{left}"), HOST));
            }
            Start::HostDiffers(_) => {}
        }
        drop(held);
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// Says why a job does not start, in its output.
fn say(why: &str, code: u8) -> u8 {
    eprintln!("gpuos: {}", screen::lines(why));
    code
}

/// Frees a job's GPUs.
///
/// # Errors
/// They stay the job's.
pub fn epilog(machine: &dyn Machine, args: &WlmJobArgs) -> Result<u8> {
    let name = name(args)?;
    if let Some(mover) = &args.mover {
        let spool = Spool::open(machine, args, None).ok();
        let run = spool.and_then(|spool| spool.run());
        store::ends(mover, &name, run);
    }
    if args.host.state.exists() {
        Held::lock(&args.host.state)?.end(&name)?;
    }
    Ok(0)
}

fn name(args: &WlmJobArgs) -> Result<String> {
    journal::file(&args.job, &args.task).with_context(|| {
        let (job, task) = (screen::lines(&args.job), screen::lines(&args.task));
        format!(
            "--job {job} --task {task}: write the numbers that $job_id and $ja_task_id stand for"
        )
    })
}

/// Where a cell of Grid Engine says how its daemons run.
fn bootstrap(machine: &dyn Machine) -> PathBuf {
    let of = |name: &str, otherwise: &str| {
        let value = machine.env(name).filter(|value| !value.is_empty());
        value.unwrap_or_else(|| otherwise.into())
    };
    let root = PathBuf::from(of("SGE_ROOT", "/var/lib/gridengine"));
    root.join(of("SGE_CELL", "default"))
        .join("common/bootstrap")
}

/// The account of Grid Engine's daemons; `None`: it is root, or not known.
fn admin(machine: &dyn Machine) -> Option<u32> {
    let text = fs::read_to_string(bootstrap(machine)).ok()?;
    let mut lines = text.lines().map(str::split_whitespace);
    let name =
        lines.find_map(|mut words| (words.next()? == "admin_user").then(|| words.next())?)?;
    let said = machine.run("id", &["-u", "--", name]).ok()?;
    said.ok.then(|| said.stdout.trim().parse().ok()).flatten()
}

/// The folder that Grid Engine has for a job on this host.
struct Spool<'a> {
    folder: &'a Path,
    /// The accounts that sge_execd may write as: root and the one of Grid Engine.
    accounts: Vec<u32>,
}

impl<'a> Spool<'a> {
    /// Looks whether it is the job's and sge_execd's: a folder that any other user has made looks like it, too.
    fn open(machine: &dyn Machine, args: &'a WlmJobArgs, user: Option<u32>) -> Result<Spool<'a>> {
        let folder = &args.spool;
        let (name, shown) = (name(args)?, folder.display());
        let own = fs::metadata("/proc/self").map_or(0, |own| own.uid());
        let admin = admin(machine);
        let accounts = [Some(own), admin].into_iter().flatten();
        // Not the job's user, who may be Grid Engine's account.
        let accounts = accounts.filter(|account| Some(*account) != user).collect();
        let spool = Spool { folder, accounts };
        let is = fs::symlink_metadata(folder).with_context(|| format!("cannot look at {shown}"))?;
        let named = folder.file_name() == Some(name.as_ref());
        let parent = folder.parent().and_then(Path::file_name);
        let placed = folder.is_absolute() && parent == Some("active_jobs".as_ref());
        if !is.is_dir() || !named || !placed || is.mode() & OTHERS_WRITE != 0 {
            bail!(
                "{shown} is not the folder that sge_execd has for the job: give $SGE_JOB_SPOOL_DIR as it is"
            );
        }
        // What lies in a folder of somebody's is his to rename, too.
        let above = folder.parent().map(fs::metadata).transpose();
        let above = above.with_context(|| format!("cannot look at what {shown} lies in"))?;
        for is in [Some(is), above].into_iter().flatten() {
            if !spool.is_of_daemon(&is) {
                bail!(
                    "{shown} is not sge_execd's: it, or active_jobs, is user {}'s, and neither root's nor of Grid Engine's account \
                     (admin_user in {}, by SGE_ROOT and SGE_CELL in /etc/default/gridengine or /etc/default/gpuos-gridengine)",
                    is.uid(),
                    bootstrap(machine).display()
                );
            }
        }
        Ok(spool)
    }

    fn is_of_daemon(&self, is: &fs::Metadata) -> bool {
        self.accounts.contains(&is.uid()) && is.mode() & OTHERS_WRITE == 0
    }

    /// Opens a file of the daemon's; neither a link nor a file that has another name too.
    fn file(&self, name: &str, append: bool) -> Result<File> {
        let path = self.folder.join(name);
        let shown = path.display();
        let before =
            fs::symlink_metadata(&path).with_context(|| format!("cannot look at {shown}"))?;
        let sound = |is: &fs::Metadata| is.is_file() && is.nlink() == 1 && self.is_of_daemon(is);
        if !sound(&before) {
            bail!("{shown} is not the file of sge_execd");
        }
        let mut options = File::options();
        let file = options.read(!append).append(append).open(&path);
        let file = file.with_context(|| format!("cannot open {shown}"))?;
        let after = file
            .metadata()
            .with_context(|| format!("cannot look at {shown}"))?;
        if !sound(&after) || (before.dev(), before.ino()) != (after.dev(), after.ino()) {
            bail!("{shown} has just become another file");
        }
        Ok(file)
    }

    fn read(&self, name: &str) -> Result<String> {
        let mut text = Vec::new();
        let file = self.file(name, false)?;
        let read = file.take(1 << 20).read_to_end(&mut text);
        read.with_context(|| format!("cannot read {}", self.folder.join(name).display()))?;
        // What a user named a job is in there, in any encoding.
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// The job's sge_shepherd.
    fn keeper(&self) -> Result<(u32, u64)> {
        let text = self.read("pid")?;
        let pid: u32 = text.trim().parse().context("sge_execd noted no shepherd")?;
        let start =
            started(pid).with_context(|| format!("the job's shepherd, {pid}, has ended"))?;
        Ok((pid, start))
    }

    /// The group that Grid Engine gives all processes of the job; 0 where it gives none. Its line is the first, before any that a
    /// user has a part in.
    fn group(&self) -> Result<u32> {
        let text = self.read("config")?;
        let first = text
            .lines()
            .next()
            .and_then(|line| line.strip_prefix("add_grp_id="));
        Ok(first.and_then(|number| number.parse().ok()).unwrap_or(0))
    }

    /// Notes for the epilog which run of the job this is: what ends with the folder ends with the run.
    fn note_run(&self, run: u32) -> Result<()> {
        let path = self.folder.join(RUN);
        let shown = path.display();
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot remove {shown}"));
            }
            _ => {}
        }
        let mut options = File::options();
        let file = options.write(true).create_new(true).mode(0o644).open(&path);
        let written = file.and_then(|mut file| file.write_all(format!("{run}\n").as_bytes()));
        written.with_context(|| format!("cannot write {shown}"))
    }

    /// Which run the prolog has noted; `None`: none, or the file is not its own. Here nobody says who the job's user is: root made it.
    fn run(&self) -> Option<u32> {
        let file = self.file(RUN, false).ok()?;
        let own = fs::metadata("/proc/self").ok()?.uid();
        (file.metadata().ok()?.uid() == own).then_some(())?;
        let mut text = String::new();
        file.take(16).read_to_string(&mut text).ok()?;
        text.trim_end().parse().ok()
    }

    /// Appends variables to the job's environment.
    fn tell(&self, chosen: &Chosen) -> Result<()> {
        self.append(&chosen.variables())
    }

    fn append(&self, lines: &[(&'static str, String)]) -> Result<()> {
        let lines: Vec<String> = lines
            .iter()
            .map(|(name, value)| format!("{name}={value}\n"))
            .collect();
        let mut file = self.file("environment", true)?;
        let written = file.write_all(lines.concat().as_bytes());
        written.context("cannot write the environment of the job")
    }
}
