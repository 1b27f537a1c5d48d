//! Slurm itself: its commands, slurmctld, the release, munge, and what slurmctld logged.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};
use gpuos_host::Machine;
use gpuos_host::slurm::Running;
use gpuos_host::slurm::releases;
use gpuos_model::hostlist::expand;

use super::about;
use super::findings::{Findings, Status};
use super::toml::SITE_TABLE;
use super::{Context, log, plugins, processes};

/// How long slurmctld may take: Slurm's commands try again for a minute where nobody listens.
const PATIENCE: Duration = Duration::from_secs(75);

/// How long other commands may take.
const ANSWERS: Duration = Duration::from_secs(3);

/// Names that are looked up at most.
const NAMES: usize = 4;

/// What slurmctld says of itself.
///
/// # Errors
/// There are no commands of Slurm, or slurmctld does not answer.
pub fn ask(machine: &dyn Machine) -> Result<Running> {
    if machine.find("scontrol").is_none() {
        bail!(
            "scontrol is not on PATH: install Slurm's commands (slurm-client on Debian) or add their directory to PATH"
        );
    }
    let output = machine.run_within(PATIENCE, "scontrol", &["show", "config"])?;
    if !output.ok {
        let said = match output.stderr.trim() {
            "" => output.stdout.trim(),
            said => said,
        };
        bail!(
            "{}",
            said.lines()
                .next_back()
                .unwrap_or("scontrol gave no reason")
        );
    }
    Ok(Running::parse(&output.stdout))
}

/// Whether slurmctld answers, and if not, with which words it ended.
pub fn controller(look: &Context, error: Option<&anyhow::Error>, findings: &mut Findings) {
    let Some(running) = look.running else {
        let why = error.map_or(String::new(), |error| format!("{error:#}"));
        let ended = log::fatal(look.machine, look.log);
        let missing = match (&ended, &look.log.missing) {
            (None, Some(missing)) => format!(" ({missing})"),
            _ => String::new(),
        };
        let message = match &ended {
            Some((words, _)) => {
                format!("slurmctld does not answer ({why}); its log ends with {words}")
            }
            None => match log::ending(look.log) {
                Some(ending) => format!("slurmctld does not answer ({why}); {ending}"),
                None => format!("slurmctld does not answer: {why}{missing}"),
            },
        };
        if let Some(pid) = alive(look) {
            waits(look, pid, &why, findings);
            return;
        }
        let failed = findings.0.iter().any(|check| check.status == Status::Fail);
        let fix = match (failed, &ended) {
            (true, _) => "mend what else is said here, then start it (`systemctl start slurmctld`)",
            (false, Some(_)) => {
                "mend what its log says, then start it (`systemctl start slurmctld`)"
            }
            (false, None) => {
                "start slurmctld (`systemctl status slurmctld`, and its log), or set SLURM_CONF to the slurm.conf of the cluster"
            }
        };
        let place = ended.map_or_else(|| look.log.source.clone(), |(_, place)| place);
        findings.fail(about::SLURM, message, fix).at(place);
        return;
    };
    let down = running
        .controllers
        .iter()
        .find(|line| !line.ends_with("UP"));
    if let Some(down) = down {
        findings.warn(
            about::SLURM,
            format!("slurmctld answers, but: {down}"),
            "start it, or take it out of SlurmctldHost",
        );
    } else {
        let cluster = running.get("ClusterName").unwrap_or("?");
        findings.ok(
            about::SLURM,
            format!(
                "slurmctld of cluster {cluster} answers, Slurm {}",
                running.release()
            ),
        );
    }
}

/// The process of slurmctld on this machine, if one runs: one that waits is not one that has ended.
fn alive(look: &Context) -> Option<u32> {
    // Beside a lab others may run, and on a machine slurmctlds of several clusters.
    if !look.here.controller || look.here.lab {
        return None;
    }
    let own = look.settings.slurm_conf();
    let other = |args: &[&str]| {
        let named = args.windows(2).find(|pair| pair[0] == "-f");
        named.is_some_and(|pair| Path::new(pair[1]) != own)
    };
    let all = processes::shown(look.machine)?;
    let found = all.iter().find(|one| {
        let args: Vec<&str> = one.line.split_whitespace().skip(1).collect();
        one.program() == "slurmctld" && !other(&args)
    });
    found.map(|one| one.pid)
}

/// Names of slurm.conf that nobody answers for, which a slurmctld that starts waits for one after the other.
fn unresolved(look: &Context) -> Vec<String> {
    let Some(conf) = look.conf else {
        return Vec::new();
    };
    let hosts = conf.all("slurmctldhost").into_iter();
    let hosts = hosts.map(|host| match host.value.split_once('(') {
        Some((_, address)) => address.trim_end_matches(')').to_string(),
        None => host.value,
    });
    let nodes = conf.table("nodename").filter_map(|line| {
        let address = line.get("nodeaddr").or(line.get("nodehostname"));
        let names = expand(address.or(line.get("nodename"))?).ok()?;
        names.into_iter().next()
    });
    let known = |name: &String| !name.eq_ignore_ascii_case("default");
    let mut names: Vec<String> = hosts.chain(nodes).filter(known).take(NAMES).collect();
    names.retain(|name| {
        let told = look.machine.run_within(ANSWERS, "getent", &["hosts", name]);
        // Without the program nobody knows.
        look.machine.find("getent").is_some() && !told.is_ok_and(|told| told.ok)
    });
    names
}

/// A slurmctld that runs and does not answer.
fn waits(look: &Context, pid: u32, why: &str, findings: &mut Findings) {
    let names = unresolved(look);
    let last = look
        .log
        .text
        .lines()
        .rev()
        .find(|line| !line.trim().is_empty());
    let last = last.map_or(String::new(), |last| {
        format!("; its log ends with `{}`", last.trim())
    });
    let (what, fix) = match names.is_empty() {
        true => (
            String::new(),
            format!("see what it waits for: its log, `cat /proc/{pid}/wchan`, whether slurmdbd and the disk of StateSaveLocation answer"),
        ),
        false => (
            format!("; no name server answers for {}", names.join(", ")),
            "have these names answered for (/etc/hosts, or a name server of /etc/resolv.conf that is up), or write NodeAddr= with addresses"
                .to_string(),
        ),
    };
    findings
        .fail(
            about::SLURM,
            format!("slurmctld runs (process {pid}) and does not answer: {why}{what}{last}"),
            fix,
        )
        .at(look.log.source.clone())
        .why("it was not killed: started anew it would wait for the same again");
}

/// Whether the layout of this exact release is known.
pub fn release(look: &Context, findings: &mut Findings) {
    let settings = look.settings;
    let told = settings
        .get("SLURM_VERSION")
        .map(|_| settings.release().to_string());
    let Some(release) = told.or_else(|| plugins::installed(look.machine)) else {
        return;
    };
    if releases::is_known(&release) {
        findings.ok(
            about::RELEASE,
            format!("Slurm {release} is in the layout table of the plugins"),
        );
        return;
    }
    let path = settings.directory().join(SITE_TABLE);
    let table = look.machine.read(&path).unwrap_or_default();
    let table = String::from_utf8_lossy(&table);
    if covers(&table, &release) {
        findings.ok(
            about::RELEASE,
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
    match look.selected() {
        true => findings.fail(about::RELEASE, message, fix),
        false => findings.warn(about::RELEASE, message, fix),
    };
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
pub fn munge(machine: &dyn Machine, settings: Option<&Running>, findings: &mut Findings) {
    let kind = settings.and_then(|settings| settings.get("AuthType"));
    let kind = kind.unwrap_or("auth/munge");
    if kind != "auth/munge" {
        findings.ok(about::MUNGE, format!("not needed: AuthType is {kind}"));
        return;
    }
    if machine.find("munge").is_none() {
        findings.note(
            about::MUNGE,
            "the command munge is not on PATH, so authentication is not checked",
            "install munge, or add its directory to PATH",
        );
        return;
    }
    let socket = socket(settings);
    let mut args = vec!["-n"];
    if let Some(socket) = &socket {
        args.extend(["-S", socket]);
    }
    match machine.run("munge", &args) {
        Ok(output) if output.ok => findings.ok(about::MUNGE, "munged answers and signs"),
        Ok(output) => findings.fail(
            about::MUNGE,
            format!("munged does not sign: {}", output.stderr.trim().lines().next().unwrap_or("no reason given")),
            "start munged (`systemctl start munge`) and see that /etc/munge/munge.key is the same on all hosts",
        ),
        Err(e) => findings.fail(about::MUNGE, format!("{e:#}"), "reinstall munge"),
    };
}

/// `socket=` in AuthInfo.
fn socket(settings: Option<&Running>) -> Option<String> {
    let value = settings?.get("AuthInfo")?;
    let mut parts = value.split(',');
    parts.find_map(|part| part.trim().strip_prefix("socket=").map(str::to_string))
}
