//! The hosts of a lab: a process 1 each, with namespaces that end with it, links between them, and commands that run in them.
//!
//! The switch is process 1 of a process namespace in which those of the hosts lie, so that all of a lab ends, in one step of
//! the kernel, when the switch does: whatever a job did to its environment, session or parent. Mounts and links end with the
//! namespaces. Nothing is mounted, and no interface is made, where the machine's own programs look.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::files::{self, Account};
use super::install::Install;
use crate::daemons::TOOLS;
use crate::error::{Context, LabError};
use crate::gpus;
use crate::node_type;
use crate::process::{self, MARK, Stat};
use crate::store::Record;

/// Which host a process runs on: set in all commands of a lab of PBS.
pub const HOST_ENV: &str = "GPUOS_LAB_HOST";

/// The switch, among the names of what has a process 1. No host can have a name with a dot.
const SWITCH: &str = "the.switch";

/// Goes to the caller's working directory where the host has it, and becomes the command.
const BECOME: &str = "cd \"$1\" 2>/dev/null || cd /; shift; exec \"$@\"";

/// The hosts of a lab.
pub(crate) struct Hosts<'a> {
    pub(crate) record: &'a Record,
    pub(crate) install: &'a Install,
}

impl Hosts<'_> {
    /// Makes the switch. The child is to be waited for when the lab has ended.
    pub(crate) fn start_switch(&self) -> Result<Child, LabError> {
        let mut command = Command::new("unshare");
        command.args(["--fork", "--kill-child", "--pid", "--mount", "--net", "sh"]);
        command.arg(self.record.path("run/switch.sh"));
        self.start(SWITCH, command)
    }

    /// Makes a host and its link to the switch.
    pub(crate) fn start_host(&self, host: &str, node_type: &str) -> Result<Child, LabError> {
        let gpus = match host == files::HEAD {
            true => 0,
            false => node_type::find(&self.record.spec, node_type)?.gpus,
        };
        let switch = self.pid_of(SWITCH)?;
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--target={switch}"))
            .args(["--pid", "--net", "--", "unshare", "--fork", "--kill-child"])
            .args(["--pid", "--mount", "--uts", "--ipc", "--net", "sh"])
            .arg(self.record.path("run/host.sh"))
            .arg(&self.record.dir)
            .arg(host)
            .arg(self.record.dir.parent().unwrap_or(Path::new("/")))
            .arg(gpus.to_string());
        let child = self.start(host, command)?;
        self.link(host, switch)?;
        Ok(child)
    }

    /// A link between switch and host, whose end there is `eth0`. It goes when either ends.
    fn link(&self, host: &str, switch: u32) -> Result<(), LabError> {
        let all = files::hosts(self.record);
        let place = all.iter().position(|name| name == host).unwrap_or(0);
        let (pid, address) = (self.pid_of(host)?, files::address(place));
        let in_net = |of: u32, words: &str| {
            let mut command = Command::new("nsenter");
            command.arg(format!("--net=/proc/{of}/ns/net")).arg("ip");
            command.args(words.split(' ')).env("PATH", self.path());
            gpus::output_of(&mut command).map_err(|why| LabError::Machine {
                what: format!("cannot link {host} to the network of the lab: {why}"),
                fix: "a lab of PBS needs the kernel's bridge and veth, and the right to make them (CAP_NET_ADMIN)".to_string(),
            })
        };
        // The other end of a host that was killed may take a moment to go.
        let _ = in_net(switch, &format!("link delete v{place}"));
        in_net(
            switch,
            &format!("link add v{place} type veth peer name eth0 netns {pid}"),
        )?;
        in_net(switch, &format!("link set v{place} master switch up"))?;
        in_net(pid, &format!("address add {address}/16 dev eth0"))?;
        in_net(pid, "link set eth0 up")?;
        Ok(())
    }

    /// Starts a process 1 and waits until it says that all is made.
    fn start(&self, name: &str, mut command: Command) -> Result<Child, LabError> {
        let path = self.record.path(&format!("log/{name}.out"));
        let errors =
            fs::File::create(&path).context(|| format!("cannot make {}", path.display()))?;
        command
            .env_clear()
            .env("PATH", self.path())
            .env("LANG", "C")
            .env(MARK, &self.record.id)
            .env(HOST_ENV, name)
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(errors);
        let program = command.get_program().to_string_lossy().into_owned();
        let mut child = command
            .spawn()
            .context(|| format!("cannot run {program}"))?;
        let mut said = String::new();
        if let Some(out) = child.stdout.take() {
            let _ = BufReader::new(out.take(16)).read_line(&mut said);
        }
        let found = match said.as_str() {
            "up\n" => self.find(name),
            _ => None,
        };
        let Some(pid) = found else {
            let _ = child.kill();
            let _ = child.wait();
            let said = fs::read_to_string(&path).unwrap_or_default();
            return Err(LabError::Machine {
                what: format!("cannot make {} of the lab: {}", plain(name), said.trim()),
                fix: "a lab of PBS needs the right to make namespaces, mounts and links (root with CAP_SYS_ADMIN and CAP_NET_ADMIN)"
                    .to_string(),
            });
        };
        files::write(&self.pid_file(name), &format!("{pid}\n"))?;
        Ok(child)
    }

    /// The process 1 of a name, among all processes: it carries the lab's mark and the name, and is the first of its namespace.
    fn find(&self, name: &str) -> Option<u32> {
        let own = format!("{HOST_ENV}={name}");
        let all = process::members(&self.record.id, &self.record.dir);
        all.into_keys().find(|pid| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
            numbers.is_some_and(|line| line.split_whitespace().last() == Some("1"))
                && environment.split(|b| *b == 0).any(|e| e == own.as_bytes())
        })
    }

    fn pid_file(&self, name: &str) -> PathBuf {
        self.record.path(&format!("run/{name}.pid"))
    }

    fn pid_of(&self, name: &str) -> Result<u32, LabError> {
        self.pid(name).ok_or_else(|| {
            let lab = &self.record.spec.name;
            LabError::Machine {
                what: format!("{} of lab {lab} has ended", plain(name)),
                fix: format!("start a node again with `gpuos lab reboot --name {lab} NODE`, or end the lab with `gpuos lab down --name {lab}`"),
            }
        })
    }

    /// Pid of the process 1 of a host while it runs, as this process sees it.
    pub(crate) fn pid(&self, host: &str) -> Option<u32> {
        let text = fs::read_to_string(self.pid_file(host)).ok()?;
        let pid = text.trim().parse().ok()?;
        process::is_marked(pid, &self.record.id).then_some(pid)
    }

    /// Pid and start of a daemon of a host: a child of its process 1 by the name of its program.
    pub(crate) fn daemon(&self, host: &str, program: &str) -> Option<(u32, u64)> {
        let first = self.pid(host)?;
        let children = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = children.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let all = pids.filter_map(|pid: u32| Some((pid, Stat::read(pid)?)));
        // pbs_server is a script that becomes pbs_server.bin.
        let is = |stat: &Stat| stat.comm == program || stat.comm == format!("{program}.bin");
        all.filter(|(_, stat)| stat.ppid == first && is(stat))
            .map(|(pid, stat)| (pid, stat.start))
            .find(|(pid, start)| process::is_alive(*pid, *start))
    }

    /// Ends a host with all that runs on it, as a power failure does.
    pub(crate) fn kill(&self, host: &str) -> Result<(), LabError> {
        let pid = self.pid_of(host)?;
        let start = Stat::read(pid).map_or(0, |stat| stat.start);
        let limit = std::time::Duration::from_secs(60);
        if process::end(pid, start, libc::SIGKILL, limit, limit) {
            return Ok(());
        }
        Err(LabError::Machine {
            what: format!("{host} (process {pid}) does not end"),
            fix: "it hangs in the kernel; try again when it is gone".to_string(),
        })
    }

    /// PATH on the hosts: the command `gpuos` that made the lab, then PBS's programs.
    pub(crate) fn path(&self) -> String {
        self.install.path(&self.record.path(TOOLS))
    }

    /// A command on a host, as root or as another account of the lab. When the process that it becomes is killed, so is what
    /// it started.
    pub(crate) fn command(
        &self,
        host: &str,
        user: Option<&str>,
        program: &str,
    ) -> Result<Command, LabError> {
        let account = user.map(|user| files::account(self.record, user));
        let account = account.transpose()?;
        let mut command = self.enter(host, account.as_ref(), program)?;
        for (key, _) in std::env::vars_os() {
            let name = key.to_string_lossy();
            // What a surrounding job or shell says about Slurm or PBS is not about this lab.
            let foreign = [
                "PBS", "SLURM", "SBATCH", "SALLOC", "SRUN", "SINFO", "SQUEUE",
            ];
            if foreign.iter().any(|prefix| name.starts_with(prefix)) {
                command.env_remove(&key);
            }
        }
        command.env_remove("GPUOS_CONF").env_remove("GPUOS_LAB_DIR");
        self.set_environment(&mut command, host);
        if self.record.owner.is_none() {
            // What a shell of the lab leaves behind elsewhere is not the lab's.
            command.env_remove(MARK);
        }
        if let (Some(user), Some(account)) = (user, account) {
            command
                .env("HOME", account.home)
                .env("USER", user)
                .env("LOGNAME", user);
        }
        Ok(command)
    }

    /// The same for a daemon and for what prepares one: it hears nothing of the caller's environment.
    pub(crate) fn service(&self, host: &str, program: &str) -> Result<Command, LabError> {
        let mut command = self.enter(host, None, program)?;
        command.env_clear().env("LANG", "C").env("HOME", "/root");
        self.set_environment(&mut command, host);
        command.stdin(Stdio::null()).current_dir("/");
        Ok(command)
    }

    fn enter(
        &self,
        host: &str,
        account: Option<&Account>,
        program: &str,
    ) -> Result<Command, LabError> {
        let pid = self.pid_of(host)?;
        let here = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--target={pid}"))
            .args(["--mount", "--uts", "--ipc", "--net", "--pid", "--"])
            .args(["setpriv", "--pdeathsig=KILL"]);
        if let Some(account) = account {
            command
                .arg(format!("--reuid={}", account.user))
                .arg(format!("--regid={}", account.group))
                .arg("--init-groups");
        }
        command.args(["sh", "-c", BECOME, "sh"]).arg(here);
        command.arg(program);
        Ok(command)
    }

    fn set_environment(&self, command: &mut Command, host: &str) {
        command
            .env("PATH", self.path())
            .env("GPUOS_LAB", &self.record.spec.name)
            .env(HOST_ENV, host)
            .env(MARK, &self.record.id);
        if host != files::HEAD && self.record.spec.simulated_gpus.is_some() {
            let state = gpus::gpus_dir(self.record, host).join("state");
            command.env("GPUOS_NVML_STATE", state);
        }
    }
}

/// A name in sentences.
fn plain(name: &str) -> &str {
    match name == SWITCH {
        true => "the switch",
        false => name,
    }
}
