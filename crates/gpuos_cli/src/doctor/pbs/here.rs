//! What lies and runs on this host: the command and the library that the hook calls, pbs_sched's configuration, the planner, and gpuosd.

use std::path::Path;
use std::time::Duration;

use gpuos_core::wire::Status;
use gpuos_host::libraries::Libraries;
use gpuos_host::socket::{Client, ClientError, MOVER};
use gpuos_host::{Kind, elf};
use gpuos_pbs::hook::event::Gpu;
use gpuos_pbs::sched_config::{COUNTED, needed, resources};

use super::super::about;
use super::super::findings::Findings;
use super::super::processes::{self, Process};
use super::Look;
use super::hook::Known;
use crate::daemons;

/// What moms call in the library.
const CALLED: [&str; 3] = ["gpuos_pbs_version", "gpuos_pbs_event", "gpuos_pbs_free"];

/// How long a command may take, and a gpuosd.
const PATIENCE: Duration = Duration::from_secs(5);

/// What systemd gives gpuosd.
const DEFAULTS: &str = "/etc/default/gpuosd";

/// The release of this command, and how it tells it.
const RELEASE: &str = env!("CARGO_PKG_VERSION");

/// The name of a host up to its first dot, as the hook compares them.
pub fn short(name: &str) -> String {
    let name = name.to_ascii_lowercase();
    name.split(['.', '[']).next().unwrap_or_default().to_owned()
}

/// Looks at all of it; `known`: what the hook is configured with.
pub fn check(look: &Look, known: Option<&Known>, findings: &mut Findings) {
    let processes = processes::all(look.machine);
    if look.conf.has_sched {
        let hosts = known.iter().flat_map(|known| known.hosts.values());
        let gpus: Vec<&Gpu> = hosts.flat_map(|host| &host.gpus).collect();
        let divided = gpus.iter().any(|gpu| gpu.mig.is_some());
        let shared = gpus.iter().any(|gpu| gpu.shares > 0);
        sched_config(look, &needed(divided, shared), findings);
    }
    if look.conf.has_server {
        if let Some(known) = known {
            command(look, known, findings);
        }
        planner(look, known, processes.as_deref(), findings);
    }
    if look.conf.has_mom && known.is_some_and(|known| known.checkpoints) {
        mover(look, findings);
    }
    let described = known.is_some_and(|known| {
        let mut hosts = known.hosts.iter().filter(|(_, host)| !host.gpus.is_empty());
        hosts.any(|(name, _)| short(name) == short(&look.conf.host))
    });
    match known.filter(|_| described) {
        Some(known) => {
            library(look, known, findings);
            if let Some(status) = gpuosd(look, processes.as_deref(), findings) {
                hardware(look, known, &status, findings);
            }
        }
        None => {
            findings.note(
                about::GPUOSD,
                "this host is not known to have GPUs of gpuos; library and gpuosd on those that have were not looked at",
                "run `gpuos doctor` there too, as root",
            );
        }
    }
}

/// Whether a process is a planner that goes on without end.
fn is_planner(process: &Process) -> bool {
    let mut words = process.line.split_whitespace();
    let once = |word: &str| word == "--once" || word == "--dry-run";
    process.program() == "gpuos" && words.any(|word| word == "pbs-planner") && !words.any(once)
}

/// The command, which pbs_server runs.
fn command(look: &Look, known: &Known, findings: &mut Findings) {
    let path = known.command.as_path();
    let shown = path.display();
    let install = "install gpuos here, and run `gpuos pbs install` by the command that is to stay";
    let why = "jobs that name something of gpuos are refused";
    match look.machine.stat(path) {
        Ok(stat) if stat.kind == Kind::File && stat.mode & 0o111 != 0 => {
            if stat.mode & 0o022 != 0 || stat.uid != 0 {
                findings
                    .warn(
                        about::COMMAND,
                        format!(
                            "{shown}, which pbs_server runs as root, is of user {} with mode {:o}",
                            stat.uid, stat.mode
                        ),
                        format!("chown root {shown}; chmod 755 {shown}"),
                    )
                    .why("whoever writes there has root do what he likes");
                // It is not run by root for this.
                return;
            }
        }
        _ => {
            findings
                .fail(
                    about::COMMAND,
                    format!("the hook calls {shown}, which is no program here"),
                    install,
                )
                .why(why);
            return;
        }
    }
    let told = look
        .machine
        .run_within(PATIENCE, &path.to_string_lossy(), &["--version"]);
    let release = match &told {
        Ok(told) if told.ok => told.stdout.trim().to_owned(),
        _ => String::new(),
    };
    if release == format!("gpuos {RELEASE}") {
        findings.ok(
            about::COMMAND,
            format!("the hook calls {shown}, of this release"),
        );
    } else if release.is_empty() {
        findings
            .fail(
                about::COMMAND,
                format!("the hook calls {shown}, which does not run"),
                install,
            )
            .why(why);
    } else {
        findings
            .warn(
                about::COMMAND,
                format!("the hook calls {shown}, which is {release}, and this command is gpuos {RELEASE}"),
                install,
            )
            .why("hook, command and library have to be of one release");
    }
}

/// The library, which moms load.
fn library(look: &Look, known: &Known, findings: &mut Findings) {
    let path = known.library.as_path();
    let shown = path.display();
    let why = "the mom tells PBS nothing of the GPUs, and starts no program of a job that names something of gpuos";
    let install =
        "install gpuos on this host, or name its place with `gpuos pbs install --library FILE`";
    let bytes = match look.machine.read(path) {
        Ok(bytes) => bytes,
        Err(e) => {
            findings
                .fail(
                    about::LIBRARY,
                    format!("{shown}, which the mom loads, cannot be read: {e}"),
                    install,
                )
                .why(why);
            return;
        }
    };
    if let Ok(stat) = look.machine.stat(path)
        && (stat.mode & 0o022 != 0 || stat.uid != 0)
    {
        findings
            .warn(
                about::LIBRARY,
                format!(
                    "{shown}, which the mom loads as root, is of user {} with mode {:o}",
                    stat.uid, stat.mode
                ),
                format!("chown root {shown}; chmod 755 {shown}"),
            )
            .why("whoever writes there has root do what he likes");
    }
    let wrong = match elf::read(&bytes) {
        Err(what) => Some(what),
        Ok(library) if library.arch != std::env::consts::ARCH => {
            Some(format!("is for {}", library.arch))
        }
        Ok(library) => {
            let missing = CALLED.iter().find(|name| !library.exports.contains(**name));
            match missing {
                Some(name) => Some(format!("does not export {name}")),
                None => Libraries::of(look.machine).refuses(&library),
            }
        }
    };
    match wrong {
        Some(what) => {
            findings
                .fail(about::LIBRARY, format!("{shown} {what}"), install)
                .why(why);
        }
        None if !findings.found(about::LIBRARY) => {
            findings.ok(about::LIBRARY, format!("moms load {shown}, which is whole"));
        }
        None => {}
    }
}

/// Whether pbs_sched looks at the resources that it needs.
fn sched_config(look: &Look, needed: &[&str], findings: &mut Findings) {
    let path = look.conf.home.join("sched_priv/sched_config");
    let text = match look.machine.read(&path) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(e) => {
            findings
                .note(
                    about::SCHED_CONFIG,
                    format!("what pbs_sched counts was not looked at: {e}"),
                    "run `gpuos doctor` as root",
                )
                .at(path.display());
            return;
        }
    };
    let has = resources(&text);
    let missing = needed.iter().filter(|name| !has.contains(name));
    let missing: Vec<&str> = missing.copied().collect();
    let all = missing.join(", ");
    let what = format!("pbs_sched does not look at {all}");
    let fix = format!("add {all} to the line `resources:`, then send pbs_sched a HUP");
    let found = if missing.is_empty() {
        findings.ok(
            about::SCHED_CONFIG,
            "pbs_sched counts GPUs, and knows leaf switches and NVLink",
        )
    } else if missing.iter().any(|name| COUNTED.contains(name)) {
        findings
            .fail(about::SCHED_CONFIG, what, fix)
            .why("it gives GPUs twice, or starts jobs that the host has to send back")
    } else {
        findings
            .warn(about::SCHED_CONFIG, what, fix)
            .why("it does not keep jobs within a leaf switch or an NVLink domain")
    };
    found.at(path.display());
}

/// Whether the planner runs where the hook takes it for granted, and nothing of a dead one is left.
fn planner(
    look: &Look,
    known: Option<&Known>,
    processes: Option<&[Process]>,
    findings: &mut Findings,
) {
    let runs = processes.map(|all| all.iter().any(is_planner));
    let wanted = known.map(|known| known.planner);
    match (wanted, runs) {
        (_, None) => {
            findings.note(
                about::PLANNER,
                "whether the planner runs is not known: processes of others are not shown here",
                "run `gpuos doctor` as root",
            );
        }
        (Some(true), Some(false)) => {
            findings
                .warn(
                    about::PLANNER,
                    "the hook was told of a planner (`gpuos pbs install --planner`), and none runs here",
                    "`systemctl enable --now gpuos-pbs-planner`, or `gpuos pbs install` without --planner",
                )
                .why("a gpuos_topology without :required, and rules of gpuos_placement, are left to it: pbs_sched knows nothing of them");
        }
        (Some(false), Some(true)) => {
            findings
                .warn(
                    about::PLANNER,
                    "the planner runs, and the hook was not told of it",
                    "`gpuos pbs install --planner`",
                )
                .why("the hook refuses rules of gpuos_placement, and makes a group of each wish");
        }
        (None, Some(true)) if findings.found(about::HOOK) => {
            findings
                .fail(
                    about::PLANNER,
                    "the planner runs, and the hook is not in use",
                    "`gpuos pbs install --planner`, or `systemctl disable --now gpuos-pbs-planner`",
                )
                .why("without the hook planner and pbs_sched may start two jobs at once with the same GPUs");
        }
        (_, Some(true)) => {
            let barred = look.site.map_or("", |site| &site.barred[..]);
            match barred {
                "" => findings.ok(about::PLANNER, "the planner runs"),
                barred => findings
                    .warn(
                        about::PLANNER,
                        format!("the planner runs, and starts no job: {barred}"),
                        "mend that, or leave all jobs to pbs_sched",
                    )
                    .why("pbs_sched alone places jobs meanwhile"),
            };
        }
        (Some(false), Some(false)) => {
            findings.ok(about::PLANNER, "pbs_sched places jobs, without a planner");
        }
        (None, Some(false)) => {
            findings.ok(about::PLANNER, "no planner runs here");
        }
    }
    if runs == Some(false) {
        for one in look.reserved {
            findings
                .warn(
                    about::PLANNER,
                    format!(
                        "reservation {} keeps GPUs for job {}, and no planner runs that would move or delete it",
                        one.id, one.job
                    ),
                    format!("start the planner, or `pbs_rdel {}`", one.id),
                )
                .why("jobs that would run into it are not started on what it keeps");
        }
    }
}

/// gpuosd beside the mom; what it says of the GPUs.
fn gpuosd(look: &Look, processes: Option<&[Process]>, findings: &mut Findings) -> Option<Status> {
    let dir = daemons::pick(&look.args.runtime_dir, Some(&look.conf.host));
    let status = match daemons::status(&dir, PATIENCE) {
        Ok(status) => status,
        Err(error @ ClientError::NoDaemon(_)) => {
            findings
                .warn(
                    about::GPUOSD,
                    format!("gpuosd does not run here: nobody watches the GPUs ({error})"),
                    "GPUOSD_WORKLOAD=pbs in /etc/default/gpuosd, then `systemctl enable --now gpuosd`",
                )
                .at(dir.display())
                .why("a GPU that breaks goes on getting jobs");
            return None;
        }
        Err(error) => {
            findings.warn(
                about::GPUOSD,
                error.to_string(),
                "restart it: `systemctl restart gpuosd`",
            );
            return None;
        }
    };
    let release = &status.daemon.release;
    if release != RELEASE {
        findings.warn(
            about::GPUOSD,
            format!("gpuosd is {release}, and this command {RELEASE}"),
            "install both of one build, and restart gpuosd (`systemctl restart gpuosd`)",
        );
    }
    let defaults = look.machine.read(Path::new(DEFAULTS)).unwrap_or_default();
    let told = |text: &str| {
        text.lines()
            .any(|line| line.trim() == "GPUOSD_WORKLOAD=pbs")
    };
    let says = |process: &Process| {
        let line = process.line.replace('=', " ");
        process.program() == "gpuosd" && line.contains("--workload pbs")
    };
    let is_told = told(&String::from_utf8_lossy(&defaults))
        || processes.is_none_or(|all| all.iter().any(says));
    if !is_told {
        findings
            .warn(
                about::GPUOSD,
                "gpuosd runs, and was not told that PBS is the workload manager",
                "GPUOSD_WORKLOAD=pbs in /etc/default/gpuosd, then `systemctl restart gpuosd`",
            )
            .why("it takes Slurm for that, and no vnode of a bad GPU goes offline");
    }
    for trouble in &status.daemon.troubles {
        findings.warn(
            about::GPUOSD,
            trouble.clone(),
            "see gpuosd's log: `journalctl -u gpuosd`",
        );
    }
    if !findings.found(about::GPUOSD) {
        findings.ok(
            about::GPUOSD,
            format!("watches the GPUs of {}", status.node),
        );
    }
    Some(status)
}

/// gpuos_mover beside the mom, where jobs may ask for checkpoints.
fn mover(look: &Look, findings: &mut Findings) {
    let dir = daemons::pick(&look.args.runtime_dir, Some(&look.conf.host));
    let why = "jobs with gpuos_checkpoint are taken, and run here without checkpoints";
    match Client::connect(&dir.join(MOVER), PATIENCE) {
        Ok(client) if client.daemon.0 != RELEASE => {
            findings.warn(
                about::GPUOS_MOVER,
                format!(
                    "gpuos_mover is {}, and this command {RELEASE}",
                    client.daemon.0
                ),
                "install both of one build, and restart it (`systemctl restart gpuos_mover`)",
            )
        }
        Ok(_) => findings.ok(about::GPUOS_MOVER, "gpuos_mover answers"),
        Err(error @ ClientError::NoDaemon(_)) => findings
            .warn(
                about::GPUOS_MOVER,
                format!("the hook has checkpoints made (`gpuos pbs install --checkpoints`), and gpuos_mover does not run here: {error}"),
                "GPUOS_MOVER_WORKLOAD=pbs in /etc/default/gpuos_mover, then `systemctl enable --now gpuos_mover`",
            )
            .at(dir.display())
            .why(why),
        Err(error) => findings
            .warn(
                about::GPUOS_MOVER,
                error.to_string(),
                "see why by `journalctl -u gpuos_mover`, then `systemctl restart gpuos_mover`",
            )
            .why(why),
    };
}

/// Whether gpuosd finds the GPUs that were described.
fn hardware(look: &Look, known: &Known, status: &Status, findings: &mut Findings) {
    let mut hosts = known.hosts.iter();
    let own = hosts.find(|(name, _)| short(name) == short(&look.conf.host));
    let gpus = own.map_or(&[][..], |(_, host)| &host.gpus);
    let found = |uuid: &str| status.gpus.iter().any(|gpu| gpu.uuid == uuid);
    let named = gpus.iter().enumerate();
    let named: Vec<_> = named.filter(|(_, gpu)| !gpu.uuid.is_empty()).collect();
    if named.is_empty() {
        return;
    }
    let missing = named.iter().filter(|(_, gpu)| !found(&gpu.uuid));
    let missing: Vec<String> = missing
        .map(|(at, gpu)| format!("{at} ({})", gpu.uuid))
        .collect();
    match missing.is_empty() {
        true => findings.ok(
            about::HARDWARE,
            format!("gpuosd finds the GPUs that are described, {} of them", named.len()),
        ),
        false => findings
            .warn(
                about::HARDWARE,
                format!("gpuosd does not find GPU {}", missing.join(", ")),
                "compare `nvidia-smi -L` with what `gpuos pbs install --hosts` was given, and give it that again",
            )
            .why("programs are told these UUIDs, and nobody watches such a GPU"),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_planner_is_one_that_goes_on() {
        for (line, is) in [
            ("/usr/bin/gpuos pbs-planner", true),
            ("gpuos --config /x pbs-planner --interval=1", true),
            ("gpuos pbs-planner --once", false),
            ("gpuos pbs-planner --json --dry-run", false),
            ("gpuos why 7", false),
            ("vi gpuos pbs-planner", false),
        ] {
            let process = Process {
                pid: 9,
                line: line.into(),
            };
            assert_eq!(is_planner(&process), is, "{line}");
        }
    }

    #[test]
    fn hosts_are_the_same_up_to_their_first_dot() {
        assert_eq!(short("N1.example.org"), short("n1"));
        assert_eq!(short("n1[3]"), "n1");
    }
}
