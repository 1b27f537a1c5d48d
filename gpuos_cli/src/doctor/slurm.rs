//! Slurm itself: its commands, slurmctld, the release, munge, and what slurmctld logged.

use gpuos_host::slurm::Running;
use gpuos_host::{Machine, releases, slurm};

use super::Findings;

/// The table that a site makes for a release of its own; select/gpuos reads it.
const SITE_TABLE: &str = "gpuos-layouts.tsv";

/// Slurm's commands and slurmctld. `None`: nothing else can be checked.
pub fn controller(machine: &dyn Machine, findings: &mut Findings) -> Option<Running> {
    if machine.find("scontrol").is_none() {
        findings.fail(
            "slurm",
            "scontrol is not on PATH",
            "install Slurm's commands (slurm-client on Debian) or add their directory to PATH",
        );
        return None;
    }
    match slurm::running(machine) {
        Ok(running) => {
            let down: Vec<&String> = running
                .controllers
                .iter()
                .filter(|line| !line.ends_with("UP"))
                .collect();
            if let Some(down) = down.first() {
                findings.warn(
                    "slurm",
                    format!("slurmctld answers, but: {down}"),
                    "start it, or take it out of SlurmctldHost",
                );
            } else {
                let cluster = running.get("ClusterName").unwrap_or("?");
                findings.ok(
                    "slurm",
                    format!(
                        "slurmctld of cluster {cluster} answers, Slurm {}",
                        running.release()
                    ),
                );
            }
            Some(running)
        }
        Err(e) => {
            findings.fail(
                "slurm",
                format!("slurmctld does not answer: {e:#}"),
                "start slurmctld (`systemctl status slurmctld`, and its log), or set SLURM_CONF to the slurm.conf of the cluster",
            );
            None
        }
    }
}

/// Whether the layout of this exact release is known.
pub fn release(machine: &dyn Machine, running: &Running, selected: bool, findings: &mut Findings) {
    let release = running.release();
    if releases::is_known(release) {
        findings.ok(
            "release",
            format!("Slurm {release} is in the layout table of the plugins"),
        );
        return;
    }
    let path = running.directory().join(SITE_TABLE);
    let table = machine.read(&path).unwrap_or_default();
    let table = String::from_utf8_lossy(&table);
    if covers(&table, release) {
        findings.ok(
            "release",
            format!("Slurm {release} stands in {}", path.display()),
        );
        return;
    }
    let message = format!(
        "Slurm {release} is in no layout table: select/gpuos passes every call through, and jobs are placed as by stock Slurm"
    );
    let fix = format!(
        "unpack the source that this Slurm was built from, run `gpuos layout DIR -o {}`, and restart slurmctld",
        path.display()
    );
    match selected {
        true => findings.fail("release", message, fix),
        false => findings.warn("release", message, fix),
    }
}

/// Whether a layout table has rows for the release.
fn covers(table: &str, release: &str) -> bool {
    let Some(at) = releases::numbers(release) else {
        return false;
    };
    table.lines().any(|line| {
        let fields: Vec<&str> = line.split('\t').collect();
        let range = fields.get(5).zip(fields.get(6));
        let range = range.and_then(|(f, l)| releases::numbers(f).zip(releases::numbers(l.trim())));
        range.is_some_and(|(first, last)| first <= at && at <= last)
    })
}

/// Whether this user can make a munge credential; where slurmctld does not answer, this is
/// often the cause.
pub fn munge(machine: &dyn Machine, running: Option<&Running>, findings: &mut Findings) {
    let kind = running.and_then(|running| running.get("AuthType"));
    let kind = kind.unwrap_or("auth/munge");
    if kind != "auth/munge" {
        return findings.ok("munge", format!("not needed: AuthType is {kind}"));
    }
    if machine.find("munge").is_none() {
        return findings.warn(
            "munge",
            "the command munge is not on PATH, so authentication is not checked",
            "install munge, or add its directory to PATH",
        );
    }
    let socket = socket(machine, running);
    let mut args = vec!["-n"];
    if let Some(socket) = &socket {
        args.extend(["-S", socket]);
    }
    match machine.run("munge", &args) {
        Ok(output) if output.ok => findings.ok("munge", "munged answers and signs"),
        Ok(output) => findings.fail(
            "munge",
            format!("munged does not sign: {}", output.stderr.trim().lines().next().unwrap_or("no reason given")),
            "start munged (`systemctl start munge`) and see that /etc/munge/munge.key is the same on all hosts",
        ),
        Err(e) => findings.fail("munge", format!("{e:#}"), "reinstall munge"),
    }
}

/// `socket=` in AuthInfo; from slurm.conf itself where slurmctld does not answer.
fn socket(machine: &dyn Machine, running: Option<&Running>) -> Option<String> {
    let value = match running {
        Some(running) => running.get("AuthInfo")?.to_string(),
        None => {
            let conf = machine.env("SLURM_CONF");
            let conf = conf.unwrap_or_else(|| "/etc/slurm/slurm.conf".into());
            let text = machine.read(conf.as_ref()).ok()?;
            String::from_utf8_lossy(&text).lines().find_map(|line| {
                let (key, value) = line.split_once('=')?;
                let meant = key.trim().eq_ignore_ascii_case("AuthInfo");
                meant.then(|| value.trim().to_string())
            })?
        }
    };
    value
        .split(',')
        .find_map(|part| part.trim().strip_prefix("socket=").map(str::to_string))
}

/// What select/gpuos says where the layout table has no place for the Extra of nodes.
const NO_EXTRA: &str = "no offset of node_record.extra";

/// The last word of select/gpuos in slurmctld's log about whether it steers.
pub fn log(machine: &dyn Machine, running: &Running, selected: bool, findings: &mut Findings) {
    if !selected {
        return;
    }
    let Some(path) = running.get("SlurmctldLogFile") else {
        findings.warn(
            "log",
            "slurmctld logs to syslog, so its lines are not looked at",
            "look for `select/gpuos:` with `journalctl -u slurmctld`",
        );
        return;
    };
    let Ok(bytes) = machine.read(path.as_ref()) else {
        findings.warn(
            "log",
            format!("{path} cannot be read here"),
            "run `gpuos doctor` as root on the host of slurmctld",
        );
        return;
    };
    let text = String::from_utf8_lossy(&bytes);
    let mut lines = text.lines().filter(|line| line.contains("select/gpuos: "));
    let told = |line: &&str| line.contains("steering") || line.contains("pass");
    if lines.clone().any(|line| line.contains(NO_EXTRA)) {
        findings.warn(
            "health",
            "select/gpuos cannot read the Extra of nodes here, so GPUs that are out of service get jobs",
            "add the row node_record extra to gpuos-layouts.tsv (`gpuos layout SLURM-SOURCE-DIR` prints it)",
        );
    }
    match lines.rfind(told) {
        Some(line) => {
            let said = line
                .split_once("select/gpuos: ")
                .map_or(line, |(_, said)| said);
            if said.contains("pass") {
                findings.fail(
                    "log",
                    format!("select/gpuos does not place jobs: {said}"),
                    "mend what the line names, then `scontrol reconfigure` or restart slurmctld",
                );
            } else {
                findings.ok("log", format!("select/gpuos is active: {said}"));
            }
        }
        None => findings.warn(
            "log",
            format!("no line of select/gpuos in {path}"),
            "restart slurmctld; if there is still none, see that SlurmctldDebug is info or higher",
        ),
    }
}
