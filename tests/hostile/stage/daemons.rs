//! What the stage does with its daemons: other configuration, another kernel's log, a new start.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use gpuos_core::wire::Request;
use gpuos_lab::set_key;

use super::{NODES, Stage};

/// gpuosd looks into the kernel's log each second.
const RECORDS: Duration = Duration::from_millis(1200);
/// What is done about a record comes 5 s later, which NVIDIA's library is given to tell it.
const FOLLOWS: Duration = Duration::from_secs(8);

/// Comes into gpuos.toml later.
const FORBID: &str = "
[[forbid]]
options = [\"gpuos-mps\", \"gpuos-power\", \"gpuos-clocks\", \"gpuos-checkpoint\"]
partition = \"walled\"
";

impl Stage {
    /// Forbids options in the partition `walled`.
    pub fn forbid(&self) {
        let file = self.path("etc/gpuos.toml");
        let text = fs::read_to_string(&file).expect("gpuos.toml");
        fs::write(&file, text + FORBID).expect("gpuos.toml");
        self.reconfigure();
        for node in NODES {
            if let Err(why) = self.ask(node, &Request::Reload) {
                println!("{why}");
            }
            // It reads gpuos.toml when it starts.
            let again = self.cluster.lab.kill_mover(node, 15);
            let again = again.and_then(|_| self.cluster.lab.start_mover(node));
            again.expect("the mover starts again");
        }
    }

    /// Has slurmctld call job_submit/gpuos or not.
    pub fn check_jobs(&self, on: bool) {
        let file = self.path("etc/slurm.conf");
        let text = fs::read_to_string(&file).expect("slurm.conf");
        let text = set_key(&text, "JobSubmitPlugins", on.then_some("gpuos"));
        fs::write(&file, text).expect("slurm.conf");
        self.reconfigure();
    }

    fn reconfigure(&self) {
        self.cluster.lab.reconfigure().expect("reconfigures");
        // A node that an attack has drained stays so.
        self.until("the nodes have registered", || {
            let text = self
                .cluster
                .try_run("sinfo", &["-h", "-N", "-o", "%T"])
                .ok()?;
            let there = |state: &str| !state.contains(['*', '$']) && state != "unknown";
            text.split_whitespace().all(there).then_some(())
        });
        self.shown.borrow_mut().clear();
    }

    /// Starts each gpuosd again that has ended, so that the next wave meets one.
    pub fn revive(&self) {
        for node in NODES {
            if self.cluster.lab.gpuosd_pid(node).is_none() {
                println!("gpuosd of {node} has ended, and is started again");
                let _ = self.cluster.lab.start_gpuosd(node);
            }
        }
    }

    /// Has the gpuosd of n4 read a stand-in for the kernel's log. It is a file: the kernel gives one record at a time, a file gives all that is
    /// there, so one record comes between two looks.
    pub fn feed_log(&self) {
        let file = self.path("log/kmsg");
        fs::write(&file, "").expect("a file");
        self.restart_gpuosd_with("n4", "--kernel-log", &file);
        let mut file = OpenOptions::new().append(true).open(file).expect("a file");
        let log = Arc::downgrade(&self.log);
        std::thread::spawn(move || {
            while let Some(log) = log.upgrade() {
                let record = {
                    let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
                    let record = log.0.pop_front();
                    log.1 = if record.is_some() {
                        Instant::now()
                    } else {
                        log.1
                    };
                    record
                };
                if let Some(record) = record {
                    let _ = writeln!(file, "{record}");
                }
                drop(log);
                std::thread::sleep(RECORDS);
            }
        });
    }

    /// One more record for it.
    pub fn log(&self, record: &str) {
        self.log
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .0
            .push_back(record.to_owned());
    }

    /// Waits until all records were there, and what follows from them has been done.
    pub fn logged(&self) {
        self.until("the records are written", || {
            let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
            (log.0.is_empty() && log.1.elapsed() > FOLLOWS).then_some(())
        });
    }

    /// The gpuosd of a node is started anew with another value of an option.
    pub fn restart_gpuosd_with(&self, node: &str, option: &str, value: &Path) {
        let pid = self.cluster.lab.gpuosd_pid(node).expect("it runs");
        let read = |name: &str| {
            let bytes = fs::read(format!("/proc/{pid}/{name}")).expect("a process");
            let parts = bytes
                .split(|byte| *byte == 0)
                .filter(|part| !part.is_empty());
            let text = parts.map(|part| String::from_utf8_lossy(part).into_owned());
            text.collect::<Vec<_>>()
        };
        let (words, environment) = (read("cmdline"), read("environ"));
        self.cluster.lab.kill_gpuosd(node, 15).expect("it ends");
        let mut command = self.cluster.lab.command(&words[0]).expect("the lab is up");
        command.envs(environment.iter().filter_map(|one| one.split_once('=')));
        let mut words = words[1..].iter();
        while let Some(word) = words.next() {
            match word == option {
                true => drop(words.next()),
                false => drop(command.arg(word)),
            }
        }
        let log = File::create(self.path(&format!("log/gpuosd.{node}.out"))).expect("a log");
        command
            .arg(option)
            .arg(value)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let child = command.spawn().expect("gpuosd");
        let file = self.path(&format!("run/gpuosd.{node}.pid"));
        fs::write(file, format!("{}\n", child.id())).expect("its number");
        self.keep(child);
        let hears = || {
            self.cluster
                .lab
                .gpuosd_log(node)
                .contains("NVML's events are heard")
        };
        self.until("gpuosd is back", || hears().then_some(()));
    }
}
