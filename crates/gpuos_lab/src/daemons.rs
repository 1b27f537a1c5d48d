//! Starting and ending the daemons of a lab.

use std::fs::{self, File};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::cgroup::Cgroups;
use crate::chroot;
use crate::error::{Context, LabError};
use crate::install::Install;
use crate::process::{self, MARK, Stat};
use crate::store::Record;
use crate::sys::{ChildSetup, View, c_path, ignore_sigpipe};

/// How long a daemon may take to come up, on a machine on which many labs do at once.
const START_LIMIT: Duration = Duration::from_secs(120);
/// How long one may take to end: slurmctld waits for what it has sent to nodes that do not answer.
const STOP_LIMIT: Duration = Duration::from_secs(150);
/// A slurmctld of 26.05 that a reconfigure has just put in place of the old one loses a signal at times.
const SIGNAL_AGAIN: Duration = Duration::from_secs(10);

/// Folder of a lab with the programs that its users run beside Slurm's.
pub(crate) const TOOLS: &str = "tools";

/// What is needed to start a process of a lab.
pub(crate) struct Daemons<'a> {
    pub(crate) record: &'a Record,
    pub(crate) install: &'a Install,
    pub(crate) cgroups: &'a Cgroups,
}

impl Daemons<'_> {
    /// A command in the lab's environment, and in its root where it has one.
    pub(crate) fn command(&self, program: &str, daemon: bool) -> Result<Command, LabError> {
        let mut command = Command::new(program);
        self.set_environment(&mut command, daemon);
        let view = match self.install.root {
            None => View::Host,
            Some(_) => self.join()?,
        };
        if daemon || !matches!(view, View::Host) {
            ChildSetup {
                new_session: daemon,
                cgroups: if daemon {
                    self.cgroups.open()
                } else {
                    Vec::new()
                },
                view,
            }
            .apply(&mut command);
        }
        Ok(command)
    }

    /// The same for a command that is waited for, without a fork: a large program that asks often, as tests do, pays more for
    /// that than for the command. What has to be done before it starts is left to nsenter; where that is missing it is as above.
    pub(crate) fn question(&self, program: &str) -> Result<Command, LabError> {
        let mut command = match self.install.root {
            // The standard library forks where it has to look for the program in another PATH.
            None => match find(program, &self.path()) {
                Some(file) => Command::new(file),
                None => return self.command(program, false),
            },
            Some(_) => {
                let Some(nsenter) = find("nsenter", "/usr/bin:/bin") else {
                    return self.command(program, false);
                };
                let root = format!("/proc/{}/root", self.munged()?);
                let here = std::env::current_dir().unwrap_or_default();
                let here = format!("{root}{}", here.display());
                let work = Some(here).filter(|here| Path::new(here).is_dir());
                let mut command = Command::new(nsenter);
                command
                    .arg(format!("--mount=/proc/{}/ns/mnt", self.munged()?))
                    .arg(format!("--root={root}"))
                    .arg(format!("--wd={}", work.as_ref().unwrap_or(&root)))
                    .arg("--")
                    .arg(program);
                command
            }
        };
        self.set_environment(&mut command, false);
        Ok(command)
    }

    fn set_environment(&self, command: &mut Command, daemon: bool) {
        for (key, _) in std::env::vars_os() {
            let name = key.to_string_lossy();
            // What a surrounding job or shell says about Slurm is not about this lab.
            if ["SLURM", "SBATCH", "SALLOC", "SRUN", "SINFO", "SQUEUE"]
                .iter()
                .any(|prefix| name.starts_with(prefix))
            {
                command.env_remove(&key);
            }
        }
        command
            .env("SLURM_CONF", self.record.path("etc/slurm.conf"))
            .env("GPUOS_LAB", &self.record.spec.name)
            .env("PATH", self.path())
            .env_remove("GPUOS_CONF");
        let spec = &self.record.spec;
        match spec.simulated_gpus.is_some() || spec.movers.is_some() {
            true => command.env("GPUOS_RUNTIME_DIR", self.record.path("run/gpuosd.%n")),
            false => command.env_remove("GPUOS_RUNTIME_DIR"),
        };
        if self.install.root.is_some() {
            // The suite's folder has no other locales.
            command.env("LC_ALL", "C.UTF-8").env_remove("LANGUAGE");
        }
        if daemon || self.record.owner.is_some() {
            command.env(MARK, &self.record.id);
        } else {
            command.env_remove(MARK);
        }
    }

    /// PATH in the lab: the command `gpuos` that made it, then Slurm's programs.
    fn path(&self) -> String {
        format!(
            "{}:{}",
            self.record.path(TOOLS).display(),
            self.install.path
        )
    }

    /// Pid of the lab's munged.
    fn munged(&self) -> Result<u32, LabError> {
        let munged = self.pid("munged");
        munged
            .map(|(pid, _)| pid)
            .ok_or_else(|| self.failed("munged", "has ended"))
    }

    /// The view of the lab's munged, which holds the lab's root.
    fn join(&self) -> Result<View, LabError> {
        let munged = self.munged()?;
        let open = |what: &str| {
            let path = format!("/proc/{munged}/{what}");
            File::open(&path).context(|| format!("cannot open {path}"))
        };
        Ok(View::Join(open("ns/mnt")?, open("root")?))
    }

    /// Pid and start time of a daemon that runs: `munged`, `slurmctld` or `slurmd.NODE`.
    pub(crate) fn pid(&self, daemon: &str) -> Option<(u32, u64)> {
        let file = self.record.path(&format!("run/{daemon}.pid"));
        let pid = fs::read_to_string(file).ok()?.trim().parse().ok()?;
        let stat = Stat::read(pid)?;
        process::is_marked(pid, &self.record.id).then_some((pid, stat.start))
    }

    fn log_of(&self, daemon: &str) -> String {
        let mut text = String::new();
        for kind in ["out", "log"] {
            let path = self.record.path(&format!("log/{daemon}.{kind}"));
            text += &tail(&path, 15);
        }
        text
    }

    /// An error of a daemon, with the end of its logs.
    pub(crate) fn failed(&self, daemon: &str, what: &str) -> LabError {
        LabError::Daemon {
            daemon: daemon.to_string(),
            what: what.to_string(),
            log: self.log_of(daemon),
        }
    }

    pub(crate) fn spawn(&self, daemon: &str, mut command: Command) -> Result<Child, LabError> {
        let path = self.record.path(&format!("log/{daemon}.out"));
        let out = File::create(&path).context(|| format!("cannot make {}", path.display()))?;
        let err = out
            .try_clone()
            .context(|| format!("cannot write {}", path.display()))?;
        command
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .current_dir("/");
        command.spawn().map_err(|e| {
            if e.kind() == std::io::ErrorKind::PermissionDenied {
                LabError::Machine {
                    what: format!("cannot start {daemon} of the lab: {e}"),
                    fix: "this machine does not let root make mount namespaces (a container without CAP_SYS_ADMIN?): use --slurm native".to_string(),
                }
            } else {
                LabError::Io {
                    what: format!("cannot start {daemon} of the lab"),
                    source: e,
                }
            }
        })
    }

    /// Waits until `ready`; fails when the daemon ends before.
    pub(crate) fn wait(
        &self,
        daemon: &str,
        child: &mut Child,
        ready: impl Fn() -> bool,
    ) -> Result<(), LabError> {
        let deadline = Instant::now() + START_LIMIT;
        while !ready() {
            if let Ok(Some(status)) = child.try_wait() {
                return Err(self.failed(daemon, &format!("did not start ({status})")));
            }
            if Instant::now() > deadline {
                let limit = START_LIMIT.as_secs();
                return Err(self.failed(daemon, &format!("did not answer within {limit} s")));
            }
            sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Starts munged with the lab's own key and socket. In a lab with a root it builds it.
    pub(crate) fn start_munged(&self) -> Result<Child, LabError> {
        let dir = &self.record.dir;
        let mut command = Command::new("munged");
        command
            .env_clear()
            .env("PATH", &self.install.path)
            .env(MARK, &self.record.id)
            // Runs as root and in a folder of root's: what it would rather not.
            .args(["--foreground", "--force", "--num-threads=2"]);
        for (option, file) in [
            ("--socket", "munge/socket"),
            ("--key-file", "munge/key"),
            ("--seed-file", "munge/seed"),
            ("--pid-file", "run/munged.pid"),
            ("--log-file", "log/munged.log"),
        ] {
            command.arg(format!("{option}={}", dir.join(file).display()));
        }
        let view = match &self.install.root {
            None => View::Host,
            Some(suite) => View::Build(chroot::steps(suite, dir)?, c_path(&chroot::root_of(dir))),
        };
        ChildSetup {
            new_session: true,
            cgroups: self.cgroups.open(),
            view,
        }
        .apply(&mut command);
        let mut child = self.spawn("munged", command)?;
        self.wait("munged", &mut child, || {
            dir.join("munge/socket").exists() && self.pid("munged").is_some()
        })?;
        Ok(child)
    }

    /// Starts slurmctld and waits until it listens.
    pub(crate) fn start_slurmctld(
        &self,
        variables: &[(String, String)],
    ) -> Result<Child, LabError> {
        let _ = fs::remove_file(self.record.path("run/slurmctld.pid"));
        let mut command = self.command("slurmctld", true)?;
        command.arg("-D").envs(variables.iter().cloned());
        ignore_sigpipe(&mut command);
        let mut child = self.spawn("slurmctld", command)?;
        self.wait("slurmctld", &mut child, || {
            self.pid("slurmctld").is_some()
                && TcpStream::connect(("127.0.0.1", self.record.port)).is_ok()
        })?;
        Ok(child)
    }

    /// Starts the slurmds of these nodes and waits until all run. Their registration with
    /// slurmctld comes later; `booted`: it says then that the node was booted just now.
    pub(crate) fn start_slurmds(
        &self,
        nodes: &[String],
        booted: bool,
    ) -> Result<Vec<Child>, LabError> {
        let mut children = Vec::new();
        for node in nodes {
            let daemon = format!("slurmd.{node}");
            let spool = self.record.path(&format!("spool/{node}"));
            fs::create_dir_all(&spool).context(|| format!("cannot make {}", spool.display()))?;
            let _ = fs::remove_file(self.record.path(&format!("run/{daemon}.pid")));
            let mut command = self.command("slurmd", true)?;
            command.args(["-D", "-N", node]);
            if booted {
                command.arg("-b");
            }
            children.push((self.spawn(&daemon, command)?, daemon));
        }
        for (child, daemon) in &mut children {
            self.wait(daemon, child, || self.pid(daemon).is_some())?;
        }
        Ok(children.into_iter().map(|(child, _)| child).collect())
    }

    /// Sends a daemon a signal and waits until it has ended. False when it was not running.
    pub(crate) fn stop(&self, daemon: &str, signal: i32) -> Result<bool, LabError> {
        let Some((pid, start)) = self.pid(daemon) else {
            return Ok(false);
        };
        if process::end(pid, start, signal, SIGNAL_AGAIN, STOP_LIMIT) {
            Ok(true)
        } else {
            Err(self.failed(
                daemon,
                &format!("(pid {pid}) did not end after signal {signal}"),
            ))
        }
    }
}

/// Copies the command `gpuos` into the lab where it is what makes the lab: `gpuos lab sh` has it on PATH then, in the
/// root of a suite too, and a later build does not change it.
pub(crate) fn place_command(record: &Record) -> Result<(), LabError> {
    let tools = record.path(TOOLS);
    fs::create_dir_all(&tools).context(|| format!("cannot make {}", tools.display()))?;
    let own = std::env::current_exe().ok();
    let own = own.filter(|own| own.file_name().is_some_and(|name| name == "gpuos"));
    let Some(own) = own else { return Ok(()) };
    // Another process copies: see the simulated GPUs' programs.
    let copied = Command::new("cp")
        .arg("--")
        .arg(&own)
        .arg(tools.join("gpuos"))
        .status();
    match copied {
        Ok(status) if status.success() => Ok(()),
        other => Err(LabError::Machine {
            what: format!(
                "cannot copy {} into {}: {other:?}",
                own.display(),
                tools.display()
            ),
            fix: "see that there is room for it".to_string(),
        }),
    }
}

/// A program in a PATH; `None` for one that names its folder.
fn find(program: &str, path: &str) -> Option<PathBuf> {
    let runs = |file: &PathBuf| {
        let data = fs::metadata(file);
        data.is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
    };
    let folders = path.split(':').filter(|_| !program.contains('/'));
    folders
        .map(|folder| Path::new(folder).join(program))
        .find(runs)
}

/// The last lines of a file; empty when there is none.
pub(crate) fn tail(path: &Path, lines: usize) -> String {
    let text = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..]
        .iter()
        .map(|line| format!("{line}\n"))
        .collect()
}
