//! Whether a job that is preempted has time for a last checkpoint.

use gpuos_host::slurm::{Record, scontrol};
use gpuos_model::screen::line;

use super::Context;
use super::about::{self, About};
use super::findings::Findings;
use super::mover::enabled;

const NAME: About = about::GRACE_TIME;

/// What may be preempted, and for how long it goes on then.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Lower {
    name: String,
    grace: String,
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
    let (without, with): (Vec<Lower>, Vec<Lower>) =
        lower.into_iter().partition(|lower| is_zero(&lower.grace));
    let names = |all: &[Lower]| {
        let names: Vec<&str> = all.iter().map(|lower| lower.name.as_str()).collect();
        line(&names.join(", ")).into_owned()
    };
    if !without.is_empty() {
        findings
            .warn(
                NAME,
                format!(
                    "[checkpoint] enabled = true, and jobs of {what} {} are preempted without notice (GraceTime=0)",
                    names(&without)
                ),
                format!("give each a GraceTime that a checkpoint fits in: add {set}"),
            )
            .at(look.place("preempttype"))
            .why("such a job goes on from its last regular checkpoint, and what it did since is lost");
    } else if !with.is_empty() {
        findings.ok(
            NAME,
            format!(
                "jobs of {what} {} can save when they are preempted",
                names(&with)
            ),
        );
    }
}

/// Partitions whose jobs end when others preempt them: a PriorityTier below another one's, and a PreemptMode that ends jobs.
fn partitions(text: &str, usual: &str) -> Vec<Lower> {
    let records = Record::parse_all(text, "PartitionName");
    let tier = |record: &Record| record.number("PriorityTier").unwrap_or(1);
    let highest = records.iter().map(tier).max().unwrap_or(0);
    let lower = records.iter().filter(|record| {
        let mode = record.get("PreemptMode").unwrap_or(usual);
        tier(record) < highest && ends(mode)
    });
    let lower = lower.map(|record| Lower {
        name: record.text("PartitionName"),
        grace: record.text("GraceTime"),
    });
    lower.collect()
}

/// QOS whose jobs end when others preempt them, from lines of name, whom it preempts, PreemptMode and GraceTime.
fn qos(text: &str, usual: &str) -> Vec<Lower> {
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split('|').collect()).collect();
    let rows = rows.iter().filter(|row| row.len() == 4);
    let preempted: Vec<&str> = rows.clone().flat_map(|row| row[1].split(',')).collect();
    let lower = rows.filter(|row| {
        let mode = match row[2] {
            "" | "cluster" => usual,
            own => own,
        };
        preempted.contains(&row[0]) && ends(mode)
    });
    let lower = lower.map(|row| Lower {
        name: row[0].into(),
        grace: row[3].into(),
    });
    lower.collect()
}

/// Whether a PreemptMode ends jobs.
fn ends(mode: &str) -> bool {
    let mode = mode.to_ascii_uppercase();
    mode.split(',')
        .any(|word| matches!(word.trim(), "REQUEUE" | "CANCEL"))
}

/// `0`, `00:00:00` and the like.
fn is_zero(time: &str) -> bool {
    time.bytes().all(|b| matches!(b, b'0' | b':' | b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(all: &[Lower]) -> Vec<(&str, bool)> {
        let all = all.iter();
        all.map(|lower| (lower.name.as_str(), is_zero(&lower.grace)))
            .collect()
    }

    #[test]
    fn partitions_below_another_one_whose_jobs_end_are_those() {
        let text = "PartitionName=low\n   GraceTime=0 PriorityTier=1 PreemptMode=REQUEUE\n\n\
                    PartitionName=calm\n   GraceTime=120 PriorityTier=1 PreemptMode=CANCEL\n\n\
                    PartitionName=usual\n   GraceTime=0 PriorityTier=1\n\n\
                    PartitionName=kept\n   GraceTime=0 PriorityTier=1 PreemptMode=OFF\n\n\
                    PartitionName=asleep\n   GraceTime=0 PriorityTier=1 PreemptMode=GANG,SUSPEND\n\n\
                    PartitionName=high\n   GraceTime=0 PriorityTier=10 PreemptMode=REQUEUE\n\n";
        let lower = partitions(text, "REQUEUE");
        assert_eq!(
            named(&lower),
            [("low", true), ("calm", false), ("usual", true)]
        );
    }

    #[test]
    fn qos_that_another_one_preempts_are_those() {
        let text = "normal||cluster|00:00:00\nhigh|normal,calm,kept|cluster|00:00:00\n\
                    calm||requeue|00:02:00\nkept||suspend|00:00:00\nfree||requeue|00:00:00\nbroken|\n";
        assert_eq!(
            named(&qos(text, "REQUEUE")),
            [("normal", true), ("calm", false)]
        );
        assert_eq!(named(&qos(text, "OFF")), [("calm", false)]);
    }
}
