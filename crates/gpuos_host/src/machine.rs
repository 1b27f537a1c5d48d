//! Commands, files and environment of the machine, and a recorded stand-in.

use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};

use crate::hardware::device_programs::{self, DevicePrograms};
use crate::stat::{self, Stat};

/// What a command answered.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Output {
    /// Whether it exited with 0.
    pub ok: bool,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// The machine as the command sees it.
pub trait Machine {
    /// Runs a program to its end. Error: it is not there or cannot be started.
    fn run(&self, program: &str, args: &[&str]) -> Result<Output>;
    /// Runs a program that is ended after `limit`. Error: also when it was.
    fn run_within(&self, limit: Duration, program: &str, args: &[&str]) -> Result<Output>;
    /// The same with one more variable in the program's environment, which only the user of this process can read:
    /// the command line everybody can.
    fn run_with_env(
        &self,
        limit: Duration,
        variable: (&str, &str),
        program: &str,
        args: &[&str],
    ) -> Result<Output>;
    /// A word that nobody can guess, another one for each call.
    fn secret(&self) -> io::Result<String> {
        let mut bytes = [0; 16];
        std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
    }
    /// Waits. A stand-in has no time that goes by.
    fn pause(&self, time: Duration) {
        let _ = time;
    }
    /// Reads a file.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let _ = path;
        Err(io::ErrorKind::NotFound.into())
    }
    /// A variable of the environment, if it is set, not empty and UTF-8.
    fn env(&self, name: &str) -> Option<String> {
        let _ = name;
        None
    }
    /// Files that a path stands for whose last part may have `*`, sorted.
    fn glob(&self, pattern: &Path) -> Vec<PathBuf> {
        let _ = pattern;
        Vec::new()
    }
    /// Where a program of that name lies on PATH.
    fn find(&self, program: &str) -> Option<PathBuf> {
        let _ = program;
        None
    }
    /// What a path leads to; links are followed.
    fn stat(&self, path: &Path) -> io::Result<Stat> {
        let _ = path;
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Where a symbolic link leads; `None`: it is none.
    fn link(&self, path: &Path) -> Option<PathBuf> {
        let _ = path;
        None
    }
    /// Free and all bytes of the file system that has the path.
    fn disk_space(&self, path: &Path) -> io::Result<(u64, u64)> {
        let _ = path;
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Whether the kernel has programs that keep control groups of version 2 to their devices.
    fn device_programs(&self) -> DevicePrograms {
        DevicePrograms::Unknown
    }
}

/// The machine's name without its domain; what Slurm calls a node unless slurmd was told otherwise.
pub fn host_name(machine: &dyn Machine) -> Option<String> {
    let name = machine.read(Path::new("/proc/sys/kernel/hostname")).ok()?;
    let name = String::from_utf8(name).ok()?;
    let short = name.trim().split('.').next()?;
    (!short.is_empty()).then(|| short.to_owned())
}

/// The last bytes of a long file are enough for a log.
const MAX_READ: u64 = 64 << 20;

/// How long the output of a program that has ended may take to come.
const PIPES: Duration = Duration::from_secs(2);

/// Variables by which a user changes what Slurm's commands print or whom they ask. What is read here has to be the
/// answer to the question that was asked.
const FORMATS: &[&str] = &[
    "SLURM_BITSTR_LEN",
    "SLURM_TIME_FORMAT",
    "SQUEUE_ACCOUNT",
    "SQUEUE_ARRAY",
    "SQUEUE_ARRAY_UNIQUE",
    "SQUEUE_FORMAT",
    "SQUEUE_FORMAT2",
    "SQUEUE_LICENSES",
    "SQUEUE_NAMES",
    "SQUEUE_PARTITION",
    "SQUEUE_PRIORITY",
    "SQUEUE_QOS",
    "SQUEUE_SORT",
    "SQUEUE_STATES",
    "SQUEUE_USERS",
];

fn command(program: &str, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    for name in FORMATS {
        command.env_remove(name);
    }
    command.args(args).env("LC_ALL", "C").stdin(Stdio::null());
    command
}

fn not_run(program: &str, error: &io::Error) -> anyhow::Error {
    let slurms = [
        "scontrol", "squeue", "sinfo", "scancel", "sacct", "sacctmgr", "sprio", "sshare",
    ];
    match error.kind() {
        io::ErrorKind::NotFound if !slurms.contains(&program) => {
            anyhow!("{program} is not on PATH")
        }
        io::ErrorKind::NotFound => anyhow!(
            "{program} is not on PATH: install Slurm's commands (slurm-client on Debian) or add their \
             directory to PATH"
        ),
        _ => anyhow!("cannot run {program}: {error}"),
    }
}

/// Reads a pipe to its end in a thread, so that a full pipe never stops who writes.
fn drain(pipe: Option<impl io::Read + Send + 'static>) -> Receiver<String> {
    let (to, from) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(pipe) = pipe {
            let _ = pipe.take(MAX_READ).read_to_end(&mut bytes);
        }
        let _ = to.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    from
}

/// Runs a command that is ended after `limit`.
fn within(limit: Duration, mut command: Command, program: &str, args: &[&str]) -> Result<Output> {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| not_run(program, &e))?;
    let stdout = drain(child.stdout.take());
    let stderr = drain(child.stderr.take());
    let deadline = Instant::now() + limit;
    // Most commands are back at once; a few wait for slurmctld.
    let mut pause = Duration::from_millis(2);
    let status = loop {
        match child.try_wait()? {
            Some(status) => break status,
            None if Instant::now() >= deadline => {
                let _ = child.kill();
                let _ = child.wait();
                bail!(
                    "{program} {} gave no answer in {} s",
                    args.join(" "),
                    limit.as_secs()
                );
            }
            None => std::thread::sleep(pause),
        }
        pause = (pause * 2).min(Duration::from_millis(100));
    };
    // A grandchild may hold the pipes: what the program itself wrote is there by now.
    let text = |from: Receiver<String>| from.recv_timeout(PIPES).unwrap_or_default();
    Ok(Output {
        ok: status.success(),
        stdout: text(stdout),
        stderr: text(stderr),
    })
}

/// The machine that the command runs on.
#[derive(Clone, Copy, Debug, Default)]
pub struct ThisMachine;

impl Machine for ThisMachine {
    fn pause(&self, time: Duration) {
        std::thread::sleep(time);
    }

    fn run(&self, program: &str, args: &[&str]) -> Result<Output> {
        let out = command(program, args).output();
        let out = out.map_err(|e| not_run(program, &e))?;
        Ok(Output {
            ok: out.status.success(),
            stdout: String::from_utf8_lossy(&out.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&out.stderr).into_owned(),
        })
    }

    fn run_within(&self, limit: Duration, program: &str, args: &[&str]) -> Result<Output> {
        within(limit, command(program, args), program, args)
    }

    fn run_with_env(
        &self,
        limit: Duration,
        (name, value): (&str, &str),
        program: &str,
        args: &[&str],
    ) -> Result<Output> {
        let mut command = command(program, args);
        command.env(name, value);
        within(limit, command, program, args)
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        use std::io::{Seek, SeekFrom};
        let mut file = std::fs::File::open(path)?;
        let length = file.metadata()?.len();
        if length > MAX_READ {
            file.seek(SeekFrom::Start(length - MAX_READ))?;
        }
        let mut bytes = Vec::new();
        file.take(MAX_READ).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn env(&self, name: &str) -> Option<String> {
        std::env::var(name).ok().filter(|value| !value.is_empty())
    }

    fn glob(&self, pattern: &Path) -> Vec<PathBuf> {
        let dir = pattern.parent().unwrap_or(Path::new("/"));
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        files.retain(|file| matches(pattern, file));
        files.sort();
        files
    }

    fn find(&self, program: &str) -> Option<PathBuf> {
        let path = std::env::var_os("PATH")?;
        std::env::split_paths(&path)
            .map(|dir| dir.join(program))
            .find(|p| p.is_file())
    }

    fn stat(&self, path: &Path) -> io::Result<Stat> {
        stat::stat(path)
    }

    fn link(&self, path: &Path) -> Option<PathBuf> {
        std::fs::read_link(path).ok()
    }

    fn disk_space(&self, path: &Path) -> io::Result<(u64, u64)> {
        stat::disk_space(path)
    }

    fn device_programs(&self) -> DevicePrograms {
        device_programs::ask()
    }
}

/// A machine that answers from memory: commands by their whole line, files by path.
#[derive(Clone, Debug, Default)]
pub struct Recorded {
    /// Answers, by `program arg arg …`.
    pub commands: BTreeMap<String, Output>,
    /// Files.
    pub files: BTreeMap<PathBuf, Vec<u8>>,
    /// Environment.
    pub env: BTreeMap<String, String>,
    /// What the kernel says of programs for devices.
    pub device_programs: DevicePrograms,
    /// What paths are that are no files, or files with other rights than all have.
    pub stats: BTreeMap<PathBuf, Stat>,
    /// Free and all bytes of file systems, by a path on them.
    pub spaces: BTreeMap<PathBuf, (u64, u64)>,
}

impl Recorded {
    /// Adds a folder of root's.
    pub fn folder(mut self, path: impl Into<PathBuf>, mode: u32) -> Recorded {
        let kind = stat::Kind::Folder;
        let stat = Stat {
            kind,
            mode,
            ..Stat::default()
        };
        self.stats.insert(path.into(), stat);
        self
    }

    /// Adds the answer of a command that succeeds.
    pub fn command(mut self, line: &str, stdout: &str) -> Recorded {
        let output = Output {
            ok: true,
            stdout: stdout.into(),
            stderr: String::new(),
        };
        self.commands.insert(line.into(), output);
        self
    }

    /// Adds a file.
    pub fn file(mut self, path: impl Into<PathBuf>, text: &str) -> Recorded {
        self.files.insert(path.into(), text.into());
        self
    }
}

impl Machine for Recorded {
    /// A recording has no `squeue`: it is what the recorded `scontrol -d show jobs` says, which nobody has forged.
    fn run_with_env(
        &self,
        _: Duration,
        (_, format): (&str, &str),
        program: &str,
        args: &[&str],
    ) -> Result<Output> {
        match self.commands.get("scontrol -d show jobs") {
            Some(jobs) if program == "squeue" && jobs.ok => Ok(Output {
                ok: true,
                stdout: crate::slurm::rows_of(&jobs.stdout, format),
                stderr: String::new(),
            }),
            _ => self.run(program, args),
        }
    }

    fn run_within(&self, _: Duration, program: &str, args: &[&str]) -> Result<Output> {
        self.run(program, args)
    }

    fn run(&self, program: &str, args: &[&str]) -> Result<Output> {
        let mut line = program.to_string();
        for arg in args {
            line.push(' ');
            line.push_str(arg);
        }
        match self.commands.get(&line) {
            Some(output) => Ok(output.clone()),
            None => bail!("{program} is not on PATH (nothing recorded for `{line}`)"),
        }
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.files
            .get(path)
            .cloned()
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn env(&self, name: &str) -> Option<String> {
        self.env.get(name).cloned()
    }

    fn glob(&self, pattern: &Path) -> Vec<PathBuf> {
        self.files
            .keys()
            .filter(|file| matches(pattern, file))
            .cloned()
            .collect()
    }

    fn find(&self, program: &str) -> Option<PathBuf> {
        let start = format!("{program} ");
        self.commands
            .keys()
            .any(|line| line.starts_with(&start))
            .then(|| Path::new("/usr/bin").join(program))
    }

    fn disk_space(&self, path: &Path) -> io::Result<(u64, u64)> {
        let known = self.spaces.get(path).copied();
        known.ok_or_else(|| io::ErrorKind::Unsupported.into())
    }

    /// Recorded files are root's, and all may read them.
    fn stat(&self, path: &Path) -> io::Result<Stat> {
        if let Some(stat) = self.stats.get(path) {
            return Ok(*stat);
        }
        let length = self.read(path)?.len() as u64;
        let mode = 0o644;
        Ok(Stat {
            mode,
            length,
            ..Stat::default()
        })
    }

    fn device_programs(&self) -> DevicePrograms {
        self.device_programs
    }
}

/// Whether `file` is in the directory of `pattern` and its name fits, `*` standing for any text.
fn matches(pattern: &Path, file: &Path) -> bool {
    let name = |path: &Path| {
        path.file_name()
            .and_then(|n| n.to_str())
            .unwrap_or("")
            .to_string()
    };
    let (wanted, name) = (name(pattern), name(file));
    let parts: Vec<&str> = wanted.split('*').collect();
    let (first, last) = (parts[0], parts[parts.len() - 1]);
    if pattern.parent() != file.parent() || !name.starts_with(first) {
        return false;
    }
    if parts.len() == 1 {
        return name == wanted;
    }
    let mut rest = &name[first.len()..];
    for part in &parts[1..parts.len() - 1] {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.len() >= last.len() && rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_in_file_names() {
        let fits = |pattern: &str, file: &str| matches(Path::new(pattern), Path::new(file));
        assert!(fits("/d/*.conf", "/d/a.conf") && fits("/d/a.conf", "/d/a.conf"));
        assert!(fits("/d/a*b*c", "/d/axxbyyc") && fits("/d/*", "/d/x"));
        assert!(!fits("/d/*.conf", "/e/a.conf") && !fits("/d/*.conf", "/d/a.con"));
        assert!(!fits("/d/ab*ba", "/d/aba"));
    }
}
