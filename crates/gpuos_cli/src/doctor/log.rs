//! slurmctld's log: what ended it, and the last word of select/gpuos about whether it steers.

use std::time::Duration;

use gpuos_host::Machine;
use gpuos_host::slurm::Running;

use super::Context;
use super::about;
use super::findings::{Findings, Status};

/// How long the journal may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// How much of the end of the log is looked at for what ended slurmctld, in bytes: a start that fails writes less.
const TAIL: usize = 256 << 10;

/// What select/gpuos says where the layout table has no place for the Extra of nodes.
const NO_EXTRA: &str = "no offset of node_record.extra";

/// What select/gpuos says where slurmctld may not read its own memory, and what mends it.
const UNREADABLE: &str = "may not read its own memory";
const LET_READ: &str = "have the service or container of slurmctld allow process_vm_readv, or pipe2, write and read (`systemctl show -p \
                        SystemCallFilter slurmctld` and `grep Seccomp /proc/$(pidof slurmctld)/status` show whether a \
                        filter is in force), then restart slurmctld";

/// slurmctld's log, as far as it can be read here.
pub struct Log {
    /// What it is called in messages.
    pub source: String,
    /// Its text; empty where there is none.
    pub text: String,
    /// Why there is none.
    pub missing: Option<String>,
}

impl Log {
    /// The file that slurm.conf names, else the journal.
    pub fn read(machine: &dyn Machine, settings: &Running) -> Log {
        if let Some(path) = settings.get("SlurmctldLogFile") {
            return match machine.read(path.as_ref()) {
                Ok(bytes) => Log {
                    source: path.into(),
                    text: String::from_utf8_lossy(&bytes).into_owned(),
                    missing: None,
                },
                Err(error) => Log {
                    source: path.into(),
                    text: String::new(),
                    missing: Some(format!("{path} cannot be read here: {error}")),
                },
            };
        }
        let source = "the journal (journalctl -u slurmctld)".to_string();
        let text = journal(machine).unwrap_or_default();
        let missing = "slurmctld logs to syslog, and the journal shows nothing of it here";
        Log {
            missing: text.is_empty().then(|| missing.to_string()),
            source,
            text,
        }
    }

    /// The lines since the last start of slurmctld that came up.
    fn since_start(&self) -> impl DoubleEndedIterator<Item = &str> + Clone {
        let at = self.text.rfind(" started on cluster ").unwrap_or(0);
        let at = self.text[..at].rfind('\n').map_or(0, |end| end + 1);
        self.text[at..].lines()
    }

    /// What select/gpuos last said that contains a text, without what stands before.
    pub fn last_message_with(&self, words: &str) -> Option<&str> {
        let mut lines = self.text.lines();
        let line = lines.rfind(|line| line.contains("select/gpuos: ") && line.contains(words))?;
        line.split_once("select/gpuos: ").map(|(_, said)| said)
    }
}

fn journal(machine: &dyn Machine) -> Option<String> {
    machine.find("journalctl")?;
    let args = ["-u", "slurmctld", "-n", "400", "--no-pager", "-o", "cat"];
    let told = machine.run_within(PATIENCE, "journalctl", &args).ok()?;
    Some(told.stdout).filter(|text| told.ok && !text.contains("-- No entries --"))
}

/// The line with which slurmctld ended, and up to two errors before it that tell of plugins or files: of its log, else
/// of the journal, where what comes before the log is opened goes.
pub fn fatal(machine: &dyn Machine, log: &Log) -> Option<(String, String)> {
    let of = |text: &str| {
        let mut start = text.len().saturating_sub(TAIL);
        while !text.is_char_boundary(start) {
            start -= 1;
        }
        let lines: Vec<&str> = text[start..].lines().collect();
        let at = lines.iter().rposition(|line| line.contains("fatal: "))?;
        // One that came up after that ended for another reason.
        let later = |line: &&str| line.contains("Running as primary controller");
        if lines[at..].iter().any(later) {
            return None;
        }
        let telling = |line: &&&str| {
            let about = ["plugin", ".so", "gpuos", "slurm.conf"];
            line.contains("error: ") && about.iter().any(|word| line.contains(word))
        };
        let before = lines[..at]
            .iter()
            .rev()
            .take(12)
            .take_while(|l| !l.contains("fatal: "));
        let mut told: Vec<&str> = before.filter(telling).take(2).copied().collect();
        told.reverse();
        told.push(lines[at]);
        let told: Vec<String> = told
            .iter()
            .map(|line| format!("`{}`", line.trim()))
            .collect();
        Some(told.join(", "))
    };
    let own = of(&log.text).map(|told| (told, log.source.clone()));
    own.or_else(|| {
        Some((
            of(&journal(machine)?)?,
            "the journal of slurmctld".to_string(),
        ))
    })
}

/// How a log without a fatal line ends: a clause. It breaks off where slurmctld was killed by a signal, as by a plugin
/// whose file is cut off while the loader maps it; one that ended so early has not written to its log at all.
pub fn ending(log: &Log) -> Option<String> {
    let last = log
        .text
        .lines()
        .rev()
        .find(|line| !line.trim().is_empty())?;
    let in_order = [
        "shutdown",
        "Terminate signal",
        "Saving all slurm state",
        "SIGTERM",
        "SIGINT",
    ];
    let ended = log
        .since_start()
        .any(|line| in_order.iter().any(|word| line.contains(word)));
    Some(match ended {
        true => {
            "its log ends in order: it was not started since, or was killed before it could log"
                .into()
        }
        false => format!(
            "its log breaks off without a reason, as where it was killed, after `{}`",
            last.trim()
        ),
    })
}

/// The last word of select/gpuos in slurmctld's log about whether it steers.
pub fn check(look: &Context, findings: &mut Findings) {
    if !look.selected() || look.running.is_none() {
        return;
    }
    let log = look.log;
    if let Some(missing) = &log.missing {
        findings.note(
            about::LOG,
            format!("{missing}; so nobody can tell whether select/gpuos steers"),
            "run `gpuos doctor` as root on the host of slurmctld, or look for `select/gpuos:` in its log",
        );
        return;
    }
    let lines = log
        .since_start()
        .filter(|line| line.contains("select/gpuos: "));
    let told = |line: &&str| {
        line.contains("steering cons_tres")
            || line.contains("pass through")
            || line.contains("passing through")
            || line.contains("passes")
    };
    if lines.clone().any(|line| line.contains(NO_EXTRA)) {
        findings.warn(
            about::HEALTH,
            "select/gpuos cannot read the Extra of nodes here, so GPUs that are out of service get jobs",
            "add the row node_record extra to gpuos-layouts.tsv (`gpuos layout SLURM-SOURCE-DIR` prints it)",
        );
    }
    for line in lines
        .clone()
        .filter(|line| line.contains("gpuos-layouts.tsv") && line.contains("error: "))
    {
        let said = line
            .split_once("select/gpuos: ")
            .map_or(line, |(_, said)| said);
        findings.warn(
            about::LAYOUTS,
            said,
            "mend or remove the file, then restart slurmctld",
        );
    }
    match lines.clone().rfind(told) {
        Some(line) => {
            let said = line.split_once("select/gpuos: ");
            let said = said.map_or(line, |(_, said)| said);
            if said.contains("pass") {
                let since = line
                    .split_once("] ")
                    .map(|(time, _)| time.trim_start_matches('['));
                let since = since.map_or(String::new(), |time| format!(" (since {time})"));
                let fix = match said.contains(UNREADABLE) {
                    true => LET_READ,
                    false => {
                        "mend what the line names, then `scontrol reconfigure` or restart slurmctld"
                    }
                };
                let message = format!("select/gpuos does not place jobs: {said}{since}");
                findings
                    .fail(about::LOG, message, fix)
                    .at(&log.source)
                    .why("jobs are placed as by stock Slurm meanwhile");
            } else {
                findings.ok(about::LOG, format!("select/gpuos is active: {said}"));
            }
        }
        None => {
            let running = look.running.is_some_and(|running| {
                running
                    .get("SlurmctldDebug")
                    .is_some_and(|level| ["quiet", "fatal", "error"].contains(&level))
            });
            let status = if running { Status::Note } else { Status::Warn };
            findings.add(
                about::LOG,
                status,
                format!("no line of select/gpuos in {} since slurmctld started", log.source),
                "restart slurmctld; if there is still none, see that SlurmctldDebug is info or higher",
            );
        }
    }
    steering(look, findings);
}

/// The share of jobs that were placed as planned: select/gpuos tells it in its log from time to time.
fn steering(look: &Context, findings: &mut Findings) {
    // `steered N of M jobs`: the words are select/gpuos' own.
    let Some(said) = look.log.last_message_with("jobs steered: ") else {
        return;
    };
    let numbers = said.split_once("jobs steered: ").map(|(_, rest)| rest);
    let numbers = numbers.and_then(|rest| {
        let (steered, rest) = rest.split_once(" of ")?;
        let all = rest.split(|c: char| !c.is_ascii_digit()).next()?;
        Some((
            steered.trim().parse::<u64>().ok()?,
            all.parse::<u64>().ok()?,
        ))
    });
    if let Some((steered, all)) = numbers.filter(|(_, all)| *all >= 100) {
        let text = format!("{steered} of {all} jobs were placed as planned");
        if steered * 100 < all * 90 {
            findings.warn(
                about::STEERING,
                text,
                "see `gpuos why` of a job that was not: the note says what cons_tres refused",
            );
        } else {
            findings.ok(about::STEERING, text);
        }
    }
}
