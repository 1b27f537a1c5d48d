//! pbs.conf, and PBS's programs.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use gpuos_host::{Kind, Machine, host_name};
use gpuos_pbs::hook::install::programs;
use gpuos_pbs::pbs_conf::{HOME, value};

use super::super::about;
use super::super::findings::Findings;

/// Where PBS says what it runs with, unless `$PBS_CONF_FILE` names another file.
const CONF: &str = "/etc/pbs.conf";

/// Programs that gpuos runs.
const PROGRAMS: [&str; 5] = ["qstat", "pbsnodes", "qmgr", "qrun", "pbs_rstat"];

/// What pbs.conf says.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Conf {
    /// The file.
    pub path: PathBuf,
    /// The folder of PBS's programs; empty: it names none.
    pub programs: String,
    /// Where PBS keeps its files.
    pub home: PathBuf,
    /// Whether pbs_server, pbs_sched and pbs_mom run on this host.
    pub has_server: bool,
    /// Whether pbs_sched does.
    pub has_sched: bool,
    /// Whether pbs_mom does.
    pub has_mom: bool,
    /// The host of pbs_server.
    pub server: String,
    /// The name of this host.
    pub host: String,
}

impl Conf {
    /// Reads the file.
    ///
    /// # Errors
    /// It cannot be read: a sentence.
    pub fn read(machine: &dyn Machine) -> Result<Conf> {
        let path = machine.env("PBS_CONF_FILE").unwrap_or_else(|| CONF.into());
        let bytes = machine.read(Path::new(&path));
        let bytes = bytes.with_context(|| format!("cannot read {path}"))?;
        let mut conf = Conf::parse(&String::from_utf8_lossy(&bytes));
        conf.path = path.into();
        conf.host = host_name(machine).unwrap_or_default();
        Ok(conf)
    }

    /// Reads its text.
    pub fn parse(text: &str) -> Conf {
        let starts = |key: &str| value(text, key).is_some_and(|value| value != "0");
        Conf {
            programs: programs(text).unwrap_or_default(),
            home: value(text, "PBS_HOME").unwrap_or(HOME).into(),
            has_server: starts("PBS_START_SERVER"),
            has_sched: starts("PBS_START_SCHED"),
            has_mom: starts("PBS_START_MOM"),
            server: value(text, "PBS_SERVER").unwrap_or_default().to_owned(),
            ..Conf::default()
        }
    }
}

/// Looks at the file and at the programs.
pub fn check(machine: &dyn Machine, conf: &Conf, findings: &mut Findings) {
    let path = &conf.path.display();
    if let Ok(stat) = machine.stat(&conf.path)
        && (stat.mode & 0o022 != 0 || stat.uid != 0)
    {
        findings
            .warn(
                about::PBS_CONF,
                format!("{path} is of user {} with mode {:o}", stat.uid, stat.mode),
                format!("chown root {path}; chmod 644 {path}"),
            )
            .at(path)
            .why("whoever writes there says which programs root runs");
    }
    let missing = PROGRAMS.iter().filter(|name| {
        let stat = machine.stat(&Path::new(&conf.programs).join(name));
        !stat.is_ok_and(|stat| stat.kind == Kind::File)
    });
    let missing: Vec<&str> = missing.copied().collect();
    if !missing.is_empty() {
        findings
            .fail(
                about::PBS_CONF,
                format!("{} has no {}", conf.programs, missing.join(", ")),
                "install PBS's commands, and have PBS_EXEC in pbs.conf name the folder above their bin",
            )
            .at(path);
    }
    if !findings.found(about::PBS_CONF) {
        let what = [
            (conf.has_server, "pbs_server"),
            (conf.has_sched, "pbs_sched"),
            (conf.has_mom, "pbs_mom"),
        ];
        let runs: Vec<&str> = what
            .iter()
            .filter(|(has, _)| *has)
            .map(|(_, n)| *n)
            .collect();
        let runs = match runs.is_empty() {
            true => "none of PBS's daemons belongs here".to_owned(),
            false => format!("here belong {}", runs.join(", ")),
        };
        findings.ok(
            about::PBS_CONF,
            format!("{path}: programs in {}; {runs}", conf.programs),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_value_of_a_key_counts_and_zero_is_no() {
        let text = "PBS_EXEC=/usr\nPBS_EXEC=\"/opt/pbs\"\n# PBS_HOME=/x\nPBS_START_SERVER=1\nPBS_START_MOM=0\nPBS_SERVER=head\n";
        let conf = Conf::parse(text);
        assert_eq!(conf.programs, "/opt/pbs/bin");
        assert_eq!(conf.home, Path::new("/var/spool/pbs"));
        assert_eq!(
            (conf.has_server, conf.has_mom, conf.has_sched),
            (true, false, false)
        );
        assert_eq!(conf.server, "head");
    }
}
