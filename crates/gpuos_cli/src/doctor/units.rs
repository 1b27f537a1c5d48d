//! Units of systemd: whether those that belong on this host are there, and are started.

use std::path::Path;
use std::time::Duration;

use gpuos_host::Machine;

use super::Context;
use super::about::{self, About};
use super::findings::{Findings, Status};
use super::processes::{self, Process};

const NAME: About = about::UNITS;

/// How long systemd may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Where systemd says that it has booted the host (sd_booted(3)).
const BOOTED: &str = "/run/systemd/system";

/// Units that are asked for, in one call.
const ASKED: [&str; 4] = [
    "gpuosd.service",
    "slurmd.service",
    "slurmctld.service",
    "munge.service",
];

/// What is asked of each.
const PROPERTIES: &str =
    "--property=Id,LoadState,ActiveState,SubState,UnitFileState,Result,Delegate";

/// What systemd says of a unit.
#[derive(Clone, Default, Debug)]
struct Unit {
    id: String,
    load: String,
    active: String,
    sub: String,
    file: String,
    result: String,
    delegate: String,
}

impl Unit {
    /// A unit that ends at once and is started again is none that runs.
    fn runs(&self) -> bool {
        ["active", "activating", "reloading"].contains(&self.active.as_str())
            && self.sub != "auto-restart"
    }

    /// What is wrong with one that does not run, and what mends it.
    fn trouble(&self, package: &str) -> (String, String) {
        let Unit { id, result, .. } = self;
        let name = id.trim_end_matches(".service");
        let start = format!("`systemctl enable --now {name}`");
        if self.load == "masked" || self.file.starts_with("masked") {
            return (
                format!("its unit {id} is masked"),
                format!("`systemctl unmask {name}`, then {start}"),
            );
        }
        match (self.load.as_str(), self.active.as_str()) {
            ("not-found", _) => (
                format!("there is no unit {id}"),
                format!("{package}, then {start}"),
            ),
            ("loaded", "failed") | ("loaded", "activating") => (
                format!("its unit {id} failed ({result})"),
                format!(
                    "see why by `journalctl -u {name}`, mend it, then `systemctl restart {name}`"
                ),
            ),
            ("loaded", _) if self.file == "disabled" => (
                format!("its unit {id} is not enabled, so it does not start at boot"),
                start,
            ),
            ("loaded", _) => (
                format!("its unit {id} is {}", self.active),
                format!(
                    "`systemctl start {name}`, and `systemctl status {name}` says why it did not"
                ),
            ),
            (load, _) => (
                format!("its unit {id} cannot be loaded ({load})"),
                format!(
                    "mend it as `systemctl status {name}` says, `systemctl daemon-reload`, then {start}"
                ),
            ),
        }
    }
}

/// Units of a host that systemd has booted.
#[derive(Default)]
pub struct Units {
    all: Vec<Unit>,
    /// Programs that run, each by its name; `None`: others' processes are not shown.
    programs: Option<Vec<String>>,
}

impl Units {
    /// Asks systemd, where this machine has a place in the cluster. Nothing where there is none: in a container, in a lab.
    pub fn read(look: &Context) -> Units {
        let here = look.here;
        let placed = !here.nodes.is_empty() || here.controller;
        if !placed || here.lab || look.machine.stat(Path::new(BOOTED)).is_err() {
            return Units::default();
        }
        let args = [&["show", PROPERTIES][..], &ASKED].concat();
        let told = look.machine.run_within(PATIENCE, "systemctl", &args);
        let Some(told) = told.ok().filter(|told| told.ok) else {
            return Units::default();
        };
        Units {
            all: told.stdout.split("\n\n").map(parse).collect(),
            programs: programs(look.machine),
        }
    }

    fn get(&self, id: &str) -> Option<&Unit> {
        self.all.iter().find(|unit| unit.id == id)
    }

    /// The unit of a daemon that runs neither by it nor otherwise.
    fn missing(&self, id: &str, program: &str) -> Option<&Unit> {
        let unit = self.get(id).filter(|unit| !unit.runs())?;
        let known = self.programs.as_ref()?;
        (!known.iter().any(|one| one == program)).then_some(unit)
    }

    /// Of a gpuosd that does not answer: what its unit says, to be put behind a sentence, and what mends it.
    pub fn gpuosd_away(&self) -> (String, String) {
        let Some(unit) = self.get("gpuosd.service") else {
            return (
                String::new(),
                "`systemctl enable --now gpuosd` on the node, then `gpuos health`".into(),
            );
        };
        if unit.runs() {
            return (
                "; its unit gpuosd.service runs".into(),
                "see what it waits for by `journalctl -u gpuosd`; if it has another --runtime-dir, give that to this command too"
                    .into(),
            );
        }
        let (what, fix) = unit.trouble("`make install` on the node brings it");
        (format!("; {what}"), format!("{fix}, then `gpuos health`"))
    }
}

/// `Key=Value` lines of one unit.
fn parse(text: &str) -> Unit {
    let mut unit = Unit::default();
    for (key, value) in text.lines().filter_map(|line| line.split_once('=')) {
        let to = match key {
            "Id" => &mut unit.id,
            "LoadState" => &mut unit.load,
            "ActiveState" => &mut unit.active,
            "SubState" => &mut unit.sub,
            "UnitFileState" => &mut unit.file,
            "Result" => &mut unit.result,
            "Delegate" => &mut unit.delegate,
            _ => continue,
        };
        *to = value.into();
    }
    unit
}

/// Names of all that runs.
fn programs(machine: &dyn Machine) -> Option<Vec<String>> {
    let all = processes::all(machine)?;
    let names = all.iter().map(Process::program);
    // A daemon that tells its state in its title.
    Some(
        names
            .map(|name| name.trim_end_matches(':').to_owned())
            .collect(),
    )
}

/// Looks at the units. `two`: slurmd uses version 2 of control groups.
pub fn check(look: &Context, units: &Units, two: bool, findings: &mut Findings) {
    let here = look.here;
    let munge = look.settings.get("AuthType").unwrap_or("auth/munge") == "auth/munge";
    // slurmctld that answers from another host leaves this one as a backup.
    let controller = match look.running {
        Some(_) => Status::Warn,
        None => Status::Fail,
    };
    let all = [
        (
            !here.nodes.is_empty(),
            "slurmd",
            "slurmd.service",
            Status::Fail,
            "install slurmd with its unit (slurmd on Debian)",
            "this host is a node, and gets no jobs without it",
        ),
        (
            here.controller,
            "slurmctld",
            "slurmctld.service",
            controller,
            "install slurmctld with its unit (slurmctld on Debian)",
            "slurm.conf has it run on this host (SlurmctldHost)",
        ),
        (
            munge,
            "munged",
            "munge.service",
            Status::Fail,
            "install munge (munge on Debian), with the cluster's /etc/munge/munge.key",
            "Slurm's daemons here can prove to no other who they are (AuthType=auth/munge)",
        ),
    ];
    for (wanted, program, id, status, package, why) in all {
        let Some(unit) = units.missing(id, program).filter(|_| wanted) else {
            continue;
        };
        let (what, fix) = unit.trouble(package);
        findings
            .add(
                NAME,
                status,
                format!("{program} does not run here: {what}"),
                fix,
            )
            .why(why);
    }
    if let Some(unit) = units.get("gpuosd.service")
        && !here.gpu_nodes.is_empty()
        && unit.runs()
        && unit.file == "disabled"
    {
        findings
            .warn(
                NAME,
                "gpuosd runs, and its unit gpuosd.service is not enabled",
                "`systemctl enable gpuosd`",
            )
            .why("after the next boot of this node nobody watches its GPUs");
    }
    if let Some(unit) = units.get("slurmd.service")
        && two
        && unit.load == "loaded"
        && unit.delegate == "no"
    {
        findings
            .warn(
                NAME,
                "slurmd.service has no Delegate=yes, and slurmd uses version 2 of control groups",
                "`systemctl edit slurmd`, with the lines [Service] and Delegate=yes, then `systemctl restart slurmd`",
            )
            .why("systemd takes the groups that slurmd makes for its own, and may change and remove them under its jobs");
    }
    let known = units.all.iter().any(|unit| !unit.id.is_empty());
    if known && !findings.found(NAME) {
        findings.ok(NAME, "systemd has the units that belong on this host");
    }
}
