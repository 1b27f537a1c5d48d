//! The daemons of a lab of PBS: how a host gets its home, how they start and end, when the nodes are there.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::PbsLab;
use super::files::{self, HEAD};
use super::movers::{self, MOVER};
use crate::cgroup;
use crate::daemons::tail;
use crate::error::{Context, LabError};
use crate::gpus;
use crate::mig;
use crate::pauses::Pauses;
use crate::process;

/// The server.
const SERVER: &str = "pbs_server";

/// The daemons of the head, in the order in which they start.
pub const HEAD_DAEMONS: [&str; 3] = ["pbs_comm", SERVER, "pbs_sched"];

/// The daemon of a node.
pub const MOM: &str = "pbs_mom";

/// The daemon of a node with simulated GPUs that watches them.
pub const GPUOSD: &str = "gpuosd";

/// What makes the home of a host.
const HABITAT: &str = "pbs_habitat";

/// How long the server may take to answer when it starts, and to end when its database is made.
const STARTS: Duration = Duration::from_secs(240);

/// How long a daemon may take to end after a signal.
const ENDS: Duration = Duration::from_secs(60);

/// What a site with GPUs tells a new server: the resource, jobs of root, users of all hosts, and jobs that have ended.
const SETTINGS: &str = "create resource ngpus type=long, flag=hn
set server scheduling = True
set server acl_roots = root@*
set server flatuid = True
set server job_history_enable = True
set server log_events = 2047
";

impl PbsLab {
    /// Has PBS make the home of every host, all at once: that of the server has a database.
    pub(super) fn make_homes(&self) -> Result<(), LabError> {
        let habitat = self.install.prefix.join("libexec/pbs_habitat");
        let hosts = self.host_names();
        let started = hosts.iter().map(|host| {
            let mut command = self.service(host, HABITAT, &habitat.to_string_lossy())?;
            let child = command.spawn();
            child.context(|| format!("cannot run {HABITAT} on {host}"))
        });
        let started: Vec<_> = started.collect();
        // All are waited for, also behind one that failed.
        let ended = hosts.iter().zip(started).map(|(host, child)| {
            let status = child?.wait();
            let status = status.context(|| format!("cannot wait for {HABITAT} on {host}"))?;
            match status.success() {
                true => Ok(()),
                false => Err(self.failed(host, HABITAT, &status.to_string())),
            }
        });
        let ended: Vec<_> = ended.collect();
        ended.into_iter().collect::<Result<Vec<()>, LabError>>()?;
        let mom = self.install.prefix.join("sbin").join(MOM);
        for (node, node_type) in self.record.spec.typed_nodes() {
            let vnodes = files::finish_node(&self.record, &self.install, &node, &node_type)?;
            let mut command = self.service(&node, "vnodes", &mom.to_string_lossy())?;
            command.args(["-s", "insert", "gpus"]).arg(vnodes);
            self.finish(&node, "vnodes", &mut command)?;
        }
        self.edit_resources()?;
        // The one that made the database has been told to end, and may take a moment.
        self.until(HABITAT, || self.pid(HEAD, SERVER).is_none())
    }

    /// Waits for what a daemon of the head does on its own.
    pub(super) fn until(&self, name: &str, there: impl Fn() -> bool) -> Result<(), LabError> {
        let (pauses, deadline) = (Pauses::new(), Instant::now() + STARTS);
        while !there() {
            if Instant::now() > deadline {
                let seconds = STARTS.as_secs();
                return Err(self.failed(HEAD, name, &format!("not done after {seconds} s")));
            }
            pauses.pause();
        }
        Ok(())
    }

    /// Has the scheduler look at the GPUs, as every site with GPUs does.
    fn edit_resources(&self) -> Result<(), LabError> {
        let path = self.home(HEAD).join("sched_priv/sched_config");
        let text =
            fs::read_to_string(&path).context(|| format!("cannot read {}", path.display()))?;
        let lines = text
            .lines()
            .map(|line| match line.trim_start().strip_prefix("resources:") {
                Some(list) => format!(
                    "resources: \"ngpus, {}\n",
                    list.trim().trim_start_matches('"')
                ),
                None => format!("{line}\n"),
            });
        files::write(&path, &lines.collect::<String>())
    }

    /// Tells the new server what a site with GPUs tells it.
    pub(super) fn configure(&self) -> Result<(), LabError> {
        let answers = || {
            self.output("qstat", &["-B"])
                .is_ok_and(|out| out.status.success())
        };
        self.until(SERVER, answers)?;
        SETTINGS
            .lines()
            .try_for_each(|line| self.run("qmgr", &["-c", line]).map(drop))
    }

    /// A command on a host that hears nothing of the caller's environment and writes to a file of `log/`. A daemon keeps what
    /// it has open, so it gets no pipe.
    pub(super) fn service(
        &self,
        host: &str,
        name: &str,
        program: &str,
    ) -> Result<Command, LabError> {
        let mut command = self.hosts().service(host, program)?;
        let path = self.log(host, name);
        let out = fs::File::create(&path).context(|| format!("cannot make {}", path.display()))?;
        let errors = out.try_clone();
        let errors = errors.context(|| format!("cannot write {}", path.display()))?;
        command.stdin(Stdio::null()).stdout(out).stderr(errors);
        Ok(command)
    }

    fn log(&self, host: &str, name: &str) -> PathBuf {
        self.record.path(&format!("log/{host}.{name}.out"))
    }

    pub(super) fn finish(
        &self,
        host: &str,
        name: &str,
        command: &mut Command,
    ) -> Result<(), LabError> {
        let status = command
            .status()
            .context(|| format!("cannot run {name} on {host}"))?;
        match status.success() {
            true => Ok(()),
            false => Err(self.failed(host, name, &status.to_string())),
        }
    }

    fn failed(&self, host: &str, name: &str, status: &str) -> LabError {
        let log = tail(&self.log(host, name), 15) + &self.last_of_log(host, name);
        LabError::Daemon {
            daemon: format!("{name} of {host}"),
            what: format!("failed ({status})"),
            log,
        }
    }

    /// Starts a daemon of a host, which is there when it has returned: one of [`HEAD_DAEMONS`], [`MOM`], [`GPUOSD`] where the lab has
    /// simulated GPUs, or [`MOVER`] where it has checkpoints.
    ///
    /// # Errors
    /// There is no such host, it has ended, or the daemon does not start.
    pub fn start(&self, host: &str, daemon: &str) -> Result<(), LabError> {
        self.knows(host)?;
        match daemon {
            GPUOSD => return self.start_gpuosd(host),
            MOVER => return movers::start(self, host),
            _ => {}
        }
        let program = self.install.prefix.join("sbin").join(daemon);
        let mut command = self.service(host, daemon, &program.to_string_lossy())?;
        self.finish(host, daemon, &mut command)
    }

    /// Starts gpuosd on a node, where pbs_mom is its workload manager; its files are in places of the host's own.
    fn start_gpuosd(&self, node: &str) -> Result<(), LabError> {
        gpus::simulated(&self.record)?;
        self.is_node(node)?;
        let state = files::own(&self.record, node).join("gpuosd");
        fs::create_dir_all(&state).context(|| format!("cannot make {}", state.display()))?;
        let folder = gpus::gpus_dir(&self.record, node);
        let (bin, folder) = (self.record.path("bin"), folder.display());
        let reset = format!(
            "{}/gpuos-nvml --state {folder}/state reset {{index}}",
            bin.display()
        );
        // The shell ends, and so gpuosd is a child of the host's process 1, as daemons are that go to the background themselves.
        let mut command = self.service(node, GPUOSD, "sh")?;
        command.args(["-c", "mkdir -p /run/gpuos && { setsid \"$@\" & }", "sh"]);
        command.arg(bin.join("gpuosd")).args(["--workload", "pbs"]);
        command.args([
            "--node",
            node,
            "--interval",
            "1",
            "--runtime-dir",
            "/run/gpuos",
        ]);
        command.arg("--state-dir").arg(&state);
        command.arg("--slices").arg(state.join("slices"));
        command
            .arg("--mps-command")
            .arg(bin.join("nvidia-cuda-mps-control"));
        if let turn @ 1.. = self.record.spec.memory_turn {
            let turn = turn.to_string();
            command.args(["--memory-turn", &turn, "--memory-rate", "10000"]);
        }
        if !self.record.spec.mig.is_empty() {
            let (caps, minors) = (
                mig::caps_dir(&self.record, node),
                mig::minors_file(&self.record, node),
            );
            command.arg("--caps").arg(caps);
            command.arg("--mig-minors").arg(minors);
        }
        command
            .arg("--nvml")
            .arg(format!("{folder}/libnvidia-ml.so.1"));
        command.args(["--kernel-log", "none", "--reset-command", &reset]);
        if let Some(groups) = cgroup::make_v2(&self.record.id) {
            // Groups of jobs are the lab's, and gone with it.
            command.arg("--cgroup").arg(groups);
        }
        self.finish(node, GPUOSD, &mut command)?;
        self.until(GPUOSD, || {
            let there = self.run_on(node, None, "test", &["-S", "/run/gpuos/gpuosd.sock.root"]);
            there.is_ok() && self.pid(node, GPUOSD).is_some()
        })
    }

    /// What gpuosd of a node has said since it was started last.
    pub fn gpuosd_log(&self, node: &str) -> String {
        fs::read_to_string(self.log(node, GPUOSD)).unwrap_or_default()
    }

    /// What gpuos_mover of a node has said since it was started last.
    pub fn mover_log(&self, node: &str) -> String {
        fs::read_to_string(self.log(node, MOVER)).unwrap_or_default()
    }

    /// Pid of a daemon of a host while it runs, as this process sees it.
    pub fn pid(&self, host: &str, daemon: &str) -> Option<u32> {
        self.hosts().daemon(host, daemon).map(|(pid, _)| pid)
    }

    /// Sends a daemon a signal that ends it, and waits. False when it was not running.
    ///
    /// # Errors
    /// It does not end.
    pub fn kill(&self, host: &str, daemon: &str, signal: i32) -> Result<bool, LabError> {
        let Some((pid, start)) = self.hosts().daemon(host, daemon) else {
            return Ok(false);
        };
        if process::end(pid, start, signal, ENDS, ENDS) {
            return Ok(true);
        }
        Err(self.failed(
            host,
            daemon,
            &format!("pid {pid} does not end after signal {signal}"),
        ))
    }

    /// Ends a node with all that runs on it, as a power failure does.
    ///
    /// # Errors
    /// There is no such node, or it is down.
    pub fn crash(&self, node: &str) -> Result<(), LabError> {
        self.is_node(node)?;
        self.hosts().kill(node)
    }

    /// Boots a node: ends what runs on it, makes it anew with the files that it had, and starts its MoM. Simulated GPUs are
    /// reset, also those off the bus. [`PbsLab::wait_ready`] waits until the server knows of it.
    ///
    /// # Errors
    /// There is no such node, or its MoM does not start.
    pub fn reboot(&self, node: &str) -> Result<(), LabError> {
        self.is_node(node)?;
        if self.hosts().pid(node).is_some() {
            self.hosts().kill(node)?;
        }
        if self.record.spec.simulated_gpus.is_some() {
            gpus::reboot(&self.record, node)?;
        }
        let all = self.typed_hosts().into_iter();
        for (host, node_type) in all.filter(|(host, _)| host == node) {
            self.hold.adopt(self.hosts().start_host(&host, &node_type)?);
        }
        if self.record.spec.simulated_gpus.is_some() {
            self.start(node, GPUOSD)?;
        }
        if self.record.spec.movers.is_some() {
            self.start(node, MOVER)?;
        }
        self.start(node, MOM)
    }

    pub(super) fn is_node(&self, node: &str) -> Result<(), LabError> {
        self.knows(node)?;
        match node == HEAD {
            false => Ok(()),
            true => Err(LabError::Spec(format!(
                "{HEAD} is the server's host and no node of lab {}: give one of {}",
                self.name(),
                self.record.spec.node_names().join(", ")
            ))),
        }
    }

    /// Waits until the server counts all nodes among those that can run jobs.
    ///
    /// # Errors
    /// They are not after `limit`; the sentence has what the server says of them.
    pub fn wait_ready(&self, limit: Duration) -> Result<(), LabError> {
        let (pauses, deadline) = (Pauses::new(), Instant::now() + limit);
        let nodes = self.record.spec.node_names();
        loop {
            let out = self.output("pbsnodes", &["-a"])?;
            let text = String::from_utf8_lossy(&out.stdout).into_owned();
            let states = states(&text);
            let ready = |node: &&String| {
                states
                    .iter()
                    .any(|(name, state)| name == *node && is_up(state))
            };
            if nodes.iter().all(|node| ready(&node)) {
                return Ok(());
            }
            if self.pid(HEAD, SERVER).is_none() {
                return Err(self.failed(HEAD, SERVER, "it has ended"));
            }
            if Instant::now() > deadline {
                let said = states
                    .iter()
                    .map(|(name, state)| format!("{name} {state}; "));
                let said = said.collect::<String>() + &String::from_utf8_lossy(&out.stderr);
                let what = format!("after {} s its nodes are: {}", limit.as_secs(), said.trim());
                return Err(self.failed(HEAD, SERVER, &what));
            }
            pauses.pause();
        }
    }

    fn last_of_log(&self, host: &str, daemon: &str) -> String {
        let log = self.daemon_log(host, daemon);
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }

    /// Log of a daemon of a host since the lab was made: `pbs_server`, `pbs_sched`, `pbs_comm` or `pbs_mom`.
    pub fn daemon_log(&self, host: &str, daemon: &str) -> String {
        let folder = match daemon {
            SERVER => "server_logs",
            "pbs_sched" => "sched_logs",
            "pbs_comm" => "comm_logs",
            _ => "mom_logs",
        };
        let entries = fs::read_dir(self.home(host).join(folder));
        let entries = entries.into_iter().flatten().flatten();
        let mut days: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        days.sort();
        let texts = days.iter().map(|day| fs::read(day).unwrap_or_default());
        texts
            .map(|text| String::from_utf8_lossy(&text).into_owned())
            .collect()
    }
}

/// Names and states of the nodes in the output of `pbsnodes -a`.
fn states(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut name = "";
    for line in text.lines() {
        if !line.starts_with([' ', '\t']) {
            name = line.trim();
        } else if let Some(state) = line.trim().strip_prefix("state = ") {
            found.push((name.to_string(), state.to_string()));
        }
    }
    found
}

/// Whether a node in this state can run jobs, or would if its place was not taken.
fn is_up(state: &str) -> bool {
    let up = ["free", "job-busy", "job-exclusive", "resv-exclusive"];
    state.split(',').all(|word| up.contains(&word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_of_nodes_and_which_of_them_can_run_jobs() {
        let text = "n1\n     Mom = n1\n     state = free\n     pcpus = 2\n\nn2\n     Mom = n2\n     state = state-unknown,down\n";
        let states = states(text);
        let pair = |name: &str, state: &str| (name.to_string(), state.to_string());
        assert_eq!(
            states,
            [pair("n1", "free"), pair("n2", "state-unknown,down")]
        );
        assert!(is_up("free") && is_up("job-busy") && is_up("job-exclusive"));
        assert!(!is_up("state-unknown,down") && !is_up("offline") && !is_up("free,offline"));
    }
}
