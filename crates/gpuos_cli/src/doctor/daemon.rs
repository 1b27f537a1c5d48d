//! What has to run beside slurmctld: gpuosd on the nodes; and what all of them need: room on the disks, clocks that agree.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use gpuos_host::socket::ClientError;
use gpuos_model::hostlist::compress;

use super::about::{self, About};
use super::findings::{Findings, Status};
use super::units::Units;
use super::{Context, changed};
use crate::daemons;

const NAME: About = about::GPUOSD;

/// How long a gpuosd may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Where gpuosd keeps its state, unless it is told otherwise.
const STATE_DIR: &str = "/var/lib/gpuos";

/// A file system with less than this, in bytes, is as good as full for logs and states.
const LITTLE: u64 = 64 << 20;

/// Clocks that differ by more than this, in seconds, confuse logs and limits; munge refuses at 300.
const SKEW: u64 = 30;

pub fn check(look: &Context, units: &Units, findings: &mut Findings) {
    gpuosd(look, units, findings);
    state(look, findings);
    disks(look, findings);
    clock(look, findings);
}

fn gpuosd(look: &Context, units: &Units, findings: &mut Findings) {
    let dir = &look.args.runtime_dir;
    let here = &look.here.gpu_nodes;
    if let (Some(lab), false) = (look.machine.env("GPUOS_LAB"), daemons::is_of_nodes(dir)) {
        findings.note(
            NAME,
            format!("lab {lab} has device files in place of GPUs, and nothing that watches them"),
            "gpuos lab up --gpus simulated has a gpuosd on every node",
        );
        return;
    }
    if here.is_empty() {
        findings.note(
            NAME,
            "this machine is no node with GPUs; whether gpuosd runs on those was not looked at",
            "run `gpuos doctor` on the nodes too",
        );
        return;
    }
    let (mut away, mut answer, mut said) = (Vec::new(), Vec::new(), String::new());
    for node in here {
        match daemons::status(&daemons::of_node(dir, node), PATIENCE) {
            Ok(status) => {
                let old = status.daemon.release != env!("CARGO_PKG_VERSION");
                if old {
                    findings.warn(
                        NAME,
                        format!("gpuosd of {node} is {}, and this command {}", status.daemon.release, env!("CARGO_PKG_VERSION")),
                        "install both of one build, and restart gpuosd (`systemctl restart gpuosd`)",
                    );
                }
                for trouble in &status.daemon.troubles {
                    findings.warn(
                        NAME,
                        format!("{node}: {trouble}"),
                        "see gpuosd's log: `journalctl -u gpuosd`",
                    );
                }
                answer.push(node.as_str());
            }
            Err(error @ ClientError::NoDaemon(_)) => {
                said = error.to_string();
                away.push(node.as_str());
            }
            Err(error) => {
                findings.warn(
                    NAME,
                    format!("{node}: {error}"),
                    "restart it: `systemctl restart gpuosd`",
                );
            }
        }
    }
    if !away.is_empty() {
        let (unit, fix) = units.gpuosd_away();
        findings
            .warn(
                NAME,
                format!(
                    "gpuosd does not run on {}: nobody watches the GPUs ({said}){unit}",
                    compress(away)
                ),
                fix,
            )
            .at(dir.display())
            .why("a GPU that breaks goes on getting jobs, and slices of GPUs are not made");
    }
    if !answer.is_empty() && !findings.found(NAME) {
        findings.ok(NAME, format!("watches the GPUs of {}", compress(answer)));
    }
}

/// gpuosd runs as root, and takes nothing from a folder that others write.
fn state(look: &Context, findings: &mut Findings) {
    let path = Path::new(STATE_DIR);
    let Ok(stat) = look.machine.stat(path) else {
        return;
    };
    if stat.uid != 0 || stat.mode & 0o022 != 0 {
        findings
            .warn(
                NAME,
                format!(
                    "{STATE_DIR} is of user {} with mode {:o}",
                    stat.uid, stat.mode
                ),
                format!("chown root:root {STATE_DIR}; chmod 755 {STATE_DIR}"),
            )
            .at(STATE_DIR)
            .why("whoever writes there tells gpuosd, which is root, which GPUs are out of service");
    }
}

/// Room for states and logs.
fn disks(look: &Context, findings: &mut Findings) {
    let settings = look.settings;
    let log = settings
        .get("SlurmctldLogFile")
        .and_then(|path| Path::new(path).parent());
    let state = settings.get("StateSaveLocation").map(Path::new);
    let all = [
        state,
        log,
        Some(Path::new(STATE_DIR)),
        Some(Path::new("/dev/shm")),
    ];
    let mut told: Vec<PathBuf> = Vec::new();
    for folder in all.into_iter().flatten() {
        if told.iter().any(|done| done == folder) {
            continue;
        }
        told.push(folder.to_path_buf());
        let Ok((free, size)) = look.machine.disk_space(folder) else {
            continue;
        };
        // Small file systems are small on purpose: a percent of them counts there.
        if size > 0 && free < LITTLE.min(size / 100) {
            findings
                .fail(
                    about::DISK,
                    format!(
                        "{} has {} MiB left of {}",
                        folder.display(),
                        free >> 20,
                        size >> 20
                    ),
                    "make room there",
                )
                .at(folder.display())
                .why("slurmctld and gpuosd cannot save their states, which are lost when they end");
        }
    }
}

/// This machine's clock against slurmctld's.
fn clock(look: &Context, findings: &mut Findings) {
    let theirs = look.running.and_then(|running| running.get("as of"));
    let theirs = theirs.and_then(|text| changed::seconds(look.machine, text));
    let own = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs();
    let Some(skew) = theirs
        .map(|theirs| theirs.abs_diff(own))
        .filter(|skew| *skew > SKEW)
    else {
        return;
    };
    findings
        .add(
            about::CLOCK,
            Status::Warn,
            format!("slurmctld's clock and this machine's differ by {skew} s"),
            "have all hosts follow one time server (chrony)",
        )
        .why("munge refuses credentials that are older, or newer, than five minutes");
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuos_host::Machine;
    use std::io;

    /// A machine whose disk is full.
    struct Full;

    impl Machine for Full {
        fn run(&self, _: &str, _: &[&str]) -> anyhow::Result<gpuos_host::Output> {
            anyhow::bail!("nothing")
        }
        fn run_within(
            &self,
            _: Duration,
            _: &str,
            _: &[&str],
        ) -> anyhow::Result<gpuos_host::Output> {
            anyhow::bail!("nothing")
        }
        fn run_with_env(
            &self,
            _: Duration,
            _: (&str, &str),
            _: &str,
            _: &[&str],
        ) -> anyhow::Result<gpuos_host::Output> {
            anyhow::bail!("nothing")
        }
        fn disk_space(&self, path: &Path) -> io::Result<(u64, u64)> {
            Ok(match path.to_str() {
                Some("/state") => (1 << 20, 500 << 30),
                // A small one with most of it free.
                Some("/log") => (60 << 20, 64 << 20),
                _ => (1 << 40, 1 << 41),
            })
        }
        fn stat(&self, path: &Path) -> io::Result<gpuos_host::Stat> {
            match path.to_str() {
                Some(STATE_DIR) => Ok(gpuos_host::Stat {
                    kind: gpuos_host::Kind::Folder,
                    mode: 0o755,
                    uid: 1000,
                    ..gpuos_host::Stat::default()
                }),
                _ => Err(io::ErrorKind::NotFound.into()),
            }
        }
    }

    #[test]
    fn a_full_disk_and_a_state_folder_of_somebody_else_are_told() {
        use gpuos_host::slurm::Running;
        let settings = Running::of_file(
            Path::new("/etc/slurm/slurm.conf"),
            [
                ("StateSaveLocation", "/state"),
                ("SlurmctldLogFile", "/log/ctld.log"),
            ]
            .into_iter(),
        );
        let args = crate::cli::DoctorArgs::default();
        let look = Context {
            machine: &Full,
            config: None,
            args: &args,
            running: None,
            settings: &settings,
            conf: None,
            user: None,
            log: &super::super::log::Log::read(&Full, &settings),
            here: &Default::default(),
        };
        let mut findings = Findings::default();
        disks(&look, &mut findings);
        state(&look, &mut findings);
        let (reply, code) = findings.reply(true);
        assert_eq!(code, 1);
        assert!(
            reply.text.contains("/state has 1 MiB left of 512000"),
            "{}",
            reply.text
        );
        assert!(!reply.text.contains("/log"), "{}", reply.text);
        assert!(
            reply.text.contains("/var/lib/gpuos is of user 1000"),
            "{}",
            reply.text
        );
    }
}
