//! Whether a job that is preempted has time for a last checkpoint, by what slurmctld and slurmdbd have now.

use gpuos_config::gpuos_toml::AROUND_END_S;
use gpuos_host::slurm::{Record, scontrol, seconds};
use gpuos_model::hostlist::expand;
use gpuos_model::screen::line;

use super::Context;
use super::about::{self, About};
use super::findings::Findings;
use super::mover::enabled;

const NAME: About = about::GRACE_TIME;

/// What may be preempted, and for how many seconds it goes on then.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Lower {
    name: String,
    grace_s: u64,
}

pub fn check(look: &Context, findings: &mut Findings) {
    if look.running.is_none() || !enabled(look) {
        return;
    }
    let kind = look.settings.get("PreemptType").unwrap_or("");
    let usual = look.settings.get("PreemptMode").unwrap_or("");
    let (what, set, lower) = match kind {
        "preempt/partition_prio" => {
            let told = scontrol(look.machine, &["show", "partitions"]);
            let set = "GraceTime=120 to its line in slurm.conf and `scontrol reconfigure`";
            ("partition", set, told.map(|text| partitions(&text, usual)))
        }
        "preempt/qos" => {
            let format = "format=name,preempt,preemptmode,gracetime";
            let args = ["-nP", "show", "qos", format];
            let told = look.machine.run("sacctmgr", &args);
            let told = told.map(|output| qos(&output.stdout, usual));
            let set = "it by `sacctmgr modify qos NAME set GraceTime=120`";
            ("QOS", set, told)
        }
        _ => return,
    };
    // What does not answer is found elsewhere.
    let Ok(lower) = lower else { return };
    let names = |all: &[&Lower]| {
        let names: Vec<String> = all.iter().map(|lower| lower.named()).collect();
        line(&names.join(", ")).into_owned()
    };
    let fits = |lower: &&Lower| lower.grace_s >= u64::from(AROUND_END_S);
    let (long, short): (Vec<&Lower>, Vec<&Lower>) = lower.iter().partition(fits);
    if !short.is_empty() {
        findings
            .warn(
                NAME,
                format!(
                    "[checkpoint] enabled = true, and jobs of {what} {} are preempted before a checkpoint can be made, which takes \
                     {AROUND_END_S} s beside the program's own time",
                    names(&short)
                ),
                format!("give each a GraceTime that a checkpoint fits in: add {set}"),
            )
            .at(look.place("preempttype"))
            .why("such a job goes on from its last regular checkpoint, and what it did since is lost");
    } else if !long.is_empty() {
        findings.ok(
            NAME,
            format!(
                "jobs of {what} {} can save when they are preempted, if {AROUND_END_S} s less than that are enough for the program",
                names(&long)
            ),
        );
    }
}

impl Lower {
    fn named(&self) -> String {
        format!("{} (GraceTime={})", self.name, self.grace_s)
    }
}

/// Partitions whose jobs end when others preempt them: another one on some of their nodes has a higher PriorityTier, and their PreemptMode
/// ends jobs.
fn partitions(text: &str, usual: &str) -> Vec<Lower> {
    let records = Record::parse_all(text, "PartitionName");
    let tier = |record: &Record| record.number("PriorityTier").unwrap_or(1);
    // Where one cannot be read it may have any node.
    let nodes = |record: &Record| expand(record.get("Nodes")?).ok();
    let meets = |one: &Record, other: &Record| match (nodes(one), nodes(other)) {
        (Some(one), Some(other)) => one.iter().any(|node| other.contains(node)),
        _ => true,
    };
    let lower = records.iter().filter(|record| {
        let mode = record.get("PreemptMode").unwrap_or(usual);
        let mut higher = records.iter().filter(|it| tier(it) > tier(record));
        ends(mode) && higher.any(|it| meets(it, record))
    });
    let lower = lower.map(|record| Lower {
        name: record.text("PartitionName"),
        grace_s: record.number("GraceTime").unwrap_or(0),
    });
    lower.collect()
}

/// QOS whose jobs end when others preempt them, those of their own QOS with WITHIN, from lines of name, whom it preempts, PreemptMode and
/// GraceTime.
fn qos(text: &str, usual: &str) -> Vec<Lower> {
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split('|').collect()).collect();
    let rows = rows.iter().filter(|row| row.len() == 4);
    let preempted: Vec<&str> = rows.clone().flat_map(|row| row[1].split(',')).collect();
    let within = |mode: &str| has(mode, &["WITHIN"]);
    let lower = rows.filter(|row| {
        let mode = match row[2] {
            "" | "cluster" => usual,
            own => own,
        };
        let by = preempted.contains(&row[0]) || within(row[2]) || within(usual);
        by && ends(mode)
    });
    let lower = lower.map(|row| Lower {
        name: row[0].into(),
        grace_s: seconds(row[3]).unwrap_or(0),
    });
    lower.collect()
}

/// Whether a PreemptMode ends jobs.
fn ends(mode: &str) -> bool {
    has(mode, &["REQUEUE", "CANCEL"])
}

fn has(mode: &str, words: &[&str]) -> bool {
    let mode = mode.to_ascii_uppercase();
    mode.split(',').any(|word| words.contains(&word.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(all: &[Lower]) -> Vec<(&str, u64)> {
        let all = all.iter();
        all.map(|lower| (lower.name.as_str(), lower.grace_s))
            .collect()
    }

    #[test]
    fn partitions_below_another_one_whose_jobs_end_are_those() {
        let text = "PartitionName=low\n   GraceTime=0 PriorityTier=1 PreemptMode=REQUEUE Nodes=n[1-2]\n\n\
                    PartitionName=calm\n   GraceTime=120 PriorityTier=1 PreemptMode=CANCEL Nodes=n2,n3\n\n\
                    PartitionName=usual\n   GraceTime=5 PriorityTier=1\n\n\
                    PartitionName=kept\n   GraceTime=0 PriorityTier=1 PreemptMode=OFF Nodes=n1\n\n\
                    PartitionName=asleep\n   GraceTime=0 PriorityTier=1 PreemptMode=GANG,SUSPEND Nodes=n1\n\n\
                    PartitionName=aside\n   GraceTime=0 PriorityTier=1 PreemptMode=REQUEUE Nodes=n4\n\n\
                    PartitionName=high\n   GraceTime=0 PriorityTier=10 PreemptMode=REQUEUE Nodes=n[1-3]\n\n";
        let lower = partitions(text, "REQUEUE");
        assert_eq!(named(&lower), [("low", 0), ("calm", 120), ("usual", 5)]);
    }

    #[test]
    fn qos_that_another_one_preempts_or_their_own_jobs_are_those() {
        let text = "normal||cluster|00:00:00\nhigh|normal,calm,kept|cluster|00:00:00\n\
                    calm||requeue|00:02:00\nkept||suspend|00:00:00\nfree||requeue|00:00:00\n\
                    own||requeue,within|00:00:10\nbroken|\n";
        assert_eq!(
            named(&qos(text, "REQUEUE")),
            [("normal", 0), ("calm", 120), ("own", 10)]
        );
        assert_eq!(named(&qos(text, "OFF")), [("calm", 120), ("own", 10)]);
        assert_eq!(
            named(&qos("one||cluster|00:00:07\n", "REQUEUE,WITHIN")),
            [("one", 7)]
        );
    }
}
