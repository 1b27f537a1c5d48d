//! Whom Slurm may preempt, as far as scontrol shows it.

use anyhow::Result;

use super::{Job, Record, Running, scontrol};
use crate::Machine;

/// One partition.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Partition {
    name: String,
    default: bool,
    tier: u64,
    mode: Mode,
}

/// What preemption does to a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    /// It ends or waits again: its GPUs become free.
    Frees,
    /// Nothing.
    Off,
    /// It is stopped and keeps its GPUs.
    Keeps,
}

/// Slurm's rules of preemption for one waiting job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Preemption {
    partitions: Vec<Partition>,
    /// Highest tier among the waiting job's partitions.
    tier: u64,
    /// Seconds that every job may run undisturbed.
    exempt: u64,
    /// Why nobody may be preempted, as a sentence; empty when some may.
    pub nobody: String,
}

impl Preemption {
    /// The rules for a job that waits in these partitions; without any it is the default one.
    pub fn read(machine: &dyn Machine, running: &Running, partitions: &[String]) -> Preemption {
        let exempt = running.get("PreemptExemptTime").and_then(seconds);
        let mut rules = Preemption {
            partitions: Vec::new(),
            tier: 0,
            exempt: exempt.unwrap_or(0),
            nobody: String::new(),
        };
        let kind = running.get("PreemptType").unwrap_or("");
        if !kind.ends_with("partition_prio") {
            rules.nobody = match kind {
                "" | "(null)" | "preempt/none" => {
                    "Slurm preempts no job here (PreemptType is not set)".into()
                }
                other => format!(
                    "Slurm preempts by {other} here, and scontrol does not show whom; only \
                     preempt/partition_prio can be followed"
                ),
            };
            return rules;
        }
        let usual = mode(running.get("PreemptMode").unwrap_or(""));
        match read(machine, usual) {
            Ok(list) => rules.partitions = list,
            Err(why) => rules.nobody = format!("{why:#}; no job is offered for preemption"),
        }
        let mine = rules.partitions.iter().filter(|partition| {
            partitions.contains(&partition.name) || partitions.is_empty() && partition.default
        });
        rules.tier = mine.map(|partition| partition.tier).max().unwrap_or(0);
        rules
    }

    /// Whether Slurm may preempt this job, and its GPUs become free by that: its partition has a
    /// lower PriorityTier and a PreemptMode that ends jobs, and the job has run long enough.
    pub fn may(&self, job: &Job) -> bool {
        let own = self
            .partitions
            .iter()
            .filter(|p| job.partitions.contains(&p.name));
        let mut own = own.peekable();
        self.nobody.is_empty()
            && own.peek().is_some()
            && own.all(|p| p.tier < self.tier && p.mode == Mode::Frees)
            && job.run_seconds >= self.exempt
    }
}

fn read(machine: &dyn Machine, usual: Mode) -> Result<Vec<Partition>> {
    let text = scontrol(machine, &["show", "partitions"])?;
    let records = Record::parse_all(&text, "PartitionName");
    let partition = |record: &Record| Partition {
        name: record.text("PartitionName"),
        default: record.get("Default") == Some("YES"),
        tier: record.number("PriorityTier").unwrap_or(1),
        mode: record.get("PreemptMode").map_or(usual, mode),
    };
    Ok(records.iter().map(partition).collect())
}

/// `GANG,SUSPEND`, `REQUEUE`, `CANCEL`, `OFF`.
fn mode(text: &str) -> Mode {
    let mut words = text.split(',').map(str::trim);
    match words.find(|word| !matches!(*word, "GANG" | "WITHIN" | "")) {
        Some("CANCEL" | "REQUEUE" | "CHECKPOINT") => Mode::Frees,
        Some("SUSPEND") => Mode::Keeps,
        _ => Mode::Off,
    }
}

/// Slurm's way to write a length of time, `[DAYS-]HH:MM:SS`, in seconds.
pub fn seconds(text: &str) -> Option<u64> {
    let (days, clock) = text.split_once('-').unwrap_or(("0", text));
    let parts: Vec<u64> = clock
        .split(':')
        .map(|part| part.parse().ok())
        .collect::<Option<_>>()?;
    let (hours, minutes, seconds) = match parts[..] {
        [hours, minutes, seconds] => (hours, minutes, seconds),
        [minutes, seconds] => (0, minutes, seconds),
        _ => return None,
    };
    let hours = days
        .parse::<u64>()
        .ok()?
        .checked_mul(24)?
        .checked_add(hours)?;
    let minutes = hours.checked_mul(60)?.checked_add(minutes)?;
    minutes.checked_mul(60)?.checked_add(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Recorded;

    fn rules(kind: &str, exempt: &str, partitions: &[&str]) -> Preemption {
        let machine = Recorded::default().command(
            "scontrol show partitions",
            "PartitionName=low\n   Default=YES PreemptMode=REQUEUE PriorityTier=1\n\n\
             PartitionName=kept\n   PreemptMode=OFF PriorityTier=1\n\n\
             PartitionName=asleep\n   PreemptMode=GANG,SUSPEND PriorityTier=1\n\n\
             PartitionName=high\n   PreemptMode=CANCEL PriorityTier=10\n\n",
        );
        let config = format!(
            "Configuration data as of 2026-11-20T20:40:59\nPreemptMode             = REQUEUE\n\
             PreemptType             = {kind}\nPreemptExemptTime       = {exempt}\n"
        );
        let names: Vec<String> = partitions.iter().map(|name| name.to_string()).collect();
        Preemption::read(&machine, &Running::parse(&config), &names)
    }

    fn job(partition: &str, run_seconds: u64) -> Job {
        Job {
            partitions: vec![partition.into()],
            run_seconds,
            ..Job::default()
        }
    }

    #[test]
    fn lower_tiers_whose_jobs_end_are_preempted() {
        let high = rules("preempt/partition_prio", "00:00:00", &["high"]);
        assert_eq!(high.nobody, "");
        let may = |name: &str| high.may(&job(name, 60));
        assert!(may("low"));
        assert!(!may("kept") && !may("asleep") && !may("high") && !may("unknown"));
        // The default partition stands below nobody.
        let low = rules("preempt/partition_prio", "00:00:00", &[]);
        assert!(!low.may(&job("low", 60)) && !low.may(&job("high", 60)));
        let exempt = rules("preempt/partition_prio", "1-00:01:00", &["high"]);
        assert!(!exempt.may(&job("low", 86_459)) && exempt.may(&job("low", 86_460)));
    }

    #[test]
    fn lengths_of_time_are_read_and_too_long_ones_are_none() {
        assert_eq!(seconds("00:10"), Some(10));
        assert_eq!(seconds("01:02:03"), Some(3723));
        assert_eq!(seconds("2-00:00:01"), Some(172_801));
        for bad in [
            "",
            "10",
            "UNLIMITED",
            "1-1",
            "18446744073709551615-00:00:01",
            "18446744073709551615:00",
        ] {
            assert_eq!(seconds(bad), None, "{bad}");
        }
    }

    #[test]
    fn other_rules_are_told() {
        for (kind, words) in [
            ("preempt/none", "preempts no job"),
            ("(null)", "preempts no job"),
            ("preempt/qos", "preempt/qos"),
        ] {
            let rules = rules(kind, "00:00:00", &["high"]);
            assert!(rules.nobody.contains(words), "{}", rules.nobody);
            assert!(!rules.may(&job("low", 60)));
        }
    }
}
