//! Partitions whose jobs end when others preempt them, and for how long these go on then, by the text of slurm.conf.
use std::collections::{BTreeMap, BTreeSet};

use gpuos_model::hostlist::expand;

use super::{ConfLine, Read, conf_lines};

/// Partitions whose jobs may end by preemption. What `scontrol update` has changed since is not in it, nor is what a QOS says.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Preemption {
    grace_s: BTreeMap<String, u32>,
}

#[derive(Clone, Default)]
struct Partition {
    tier: u32,
    mode: String,
    /// `None`: not understood.
    grace_s: Option<u32>,
    /// `None`: all, or not known.
    nodes: Option<BTreeSet<String>>,
}

impl Preemption {
    /// Reads slurm.conf with what it includes. Where it cannot be read nothing is known.
    pub fn read(read: Read<'_>) -> Preemption {
        match conf_lines("slurm.conf", read) {
            Ok(Some((lines, _))) => Preemption::of(&lines),
            _ => Preemption::default(),
        }
    }

    /// For how many seconds jobs of a partition go on when they are preempted (`GraceTime`). `None`: they are not, or that is not known.
    pub fn grace_s(&self, partition: &str) -> Option<u32> {
        self.grace_s.get(partition).copied()
    }

    fn of(lines: &[ConfLine]) -> Preemption {
        // Lines of partitions have some of the keys as well.
        let general = |line: &&ConfLine| line.get("partitionname").is_none();
        let last = |key: &str| {
            let mut general = lines.iter().rev().filter(general);
            general.find_map(|line| line.get(key))
        };
        let kind = last("preempttype").unwrap_or_default();
        let kind = kind.strip_prefix("preempt/").unwrap_or(kind);
        if !kind.eq_ignore_ascii_case("partition_prio") {
            return Preemption::default();
        }
        let all = partitions(lines, last("preemptmode").unwrap_or_default());
        let ended = all.iter().filter(|(_, lower)| {
            ends(&lower.mode)
                && all
                    .values()
                    .any(|upper| upper.tier > lower.tier && meets(upper, lower))
        });
        let known = ended.filter_map(|(name, of)| Some((name.clone(), of.grace_s?)));
        Preemption {
            grace_s: known.collect(),
        }
    }
}

/// All partitions. A line with the name DEFAULT is about those behind it.
fn partitions(lines: &[ConfLine], mode: &str) -> BTreeMap<String, Partition> {
    let sets: BTreeSet<&str> = lines.iter().filter_map(|it| it.get("nodeset")).collect();
    let mut default = Partition {
        tier: 1,
        mode: mode.into(),
        grace_s: Some(0),
        nodes: None,
    };
    let mut all = BTreeMap::new();
    for line in lines {
        let Some(name) = line.get("partitionname") else {
            continue;
        };
        let mut one = default.clone();
        // Slurm reads the older key for both priorities, and the newer one goes before it.
        for key in ["priority", "prioritytier"] {
            one.tier = line.get(key).and_then(number).unwrap_or(one.tier);
        }
        if let Some(mode) = line.get("preemptmode") {
            one.mode = mode.into();
        }
        if let Some(grace) = line.get("gracetime") {
            one.grace_s = number(grace);
        }
        if let Some(nodes) = line.get("nodes") {
            one.nodes = named(nodes, &sets);
        }
        match name.eq_ignore_ascii_case("DEFAULT") {
            true => default = one,
            false => drop(all.insert(name.to_string(), one)),
        }
    }
    all
}

fn number(text: &str) -> Option<u32> {
    match text.to_ascii_lowercase().as_str() {
        "infinite" | "unlimited" => Some(u32::MAX),
        digits => digits.parse().ok(),
    }
}

/// The nodes of a list, where it names no set of nodes and not all.
fn named(list: &str, sets: &BTreeSet<&str>) -> Option<BTreeSet<String>> {
    let names = expand(list).ok()?;
    let is_name = |name: &String| !name.eq_ignore_ascii_case("ALL") && !sets.contains(&name[..]);
    names
        .iter()
        .all(is_name)
        .then(|| names.into_iter().collect())
}

/// Whether two partitions may have a node in common.
fn meets(one: &Partition, other: &Partition) -> bool {
    match (&one.nodes, &other.nodes) {
        (Some(one), Some(other)) => !one.is_disjoint(other),
        _ => true,
    }
}

/// Whether a PreemptMode ends jobs.
fn ends(mode: &str) -> bool {
    let mut words = mode.split(',');
    words.any(|word| {
        ["REQUEUE", "CANCEL"]
            .iter()
            .any(|it| it.eq_ignore_ascii_case(word.trim()))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Preemption {
        let more = "PartitionName=more GraceTime=7\n";
        Preemption::read(&|name| {
            Ok(match name {
                "slurm.conf" => Some(text.to_string()),
                "more.conf" => Some(more.to_string()),
                _ => None,
            })
        })
    }

    const PRIO: &str = "PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE\n";

    #[test]
    fn jobs_of_a_partition_below_another_one_end_after_its_grace() {
        let text = format!(
            "{PRIO}PartitionName=first Nodes=n[1-4]\nPartitionName=DEFAULT GraceTime=30 Nodes=n[1-4]\n\
             PartitionName=usual\npartitionname=LOW gracetime=120 \\\n Default=YES\nPartitionName=none GraceTime=0\n\
             PartitionName=kept PreemptMode=OFF\nPartitionName=asleep PreemptMode=SUSPEND,GANG\n\
             PartitionName=aside Nodes=m[1-2]\nPartitionName=set Nodes=some\nNodeSet=some Feature=a\n\
             PartitionName=odd GraceTime=soon\nPartitionName=ever GraceTime=INFINITE\n\
             PartitionName=old Priority=9\nPartitionName=high PriorityTier=10\nInclude more.conf\n"
        );
        let known = read(&text);
        for (name, grace) in [
            ("first", Some(0)),
            ("usual", Some(30)),
            ("LOW", Some(120)),
            ("low", None),
            ("none", Some(0)),
            ("kept", None),
            ("asleep", None),
            ("aside", None),
            ("set", Some(30)),
            ("odd", None),
            ("ever", Some(u32::MAX)),
            ("old", Some(30)),
            ("high", None),
            ("more", Some(7)),
            ("DEFAULT", None),
            ("", None),
        ] {
            assert_eq!(known.grace_s(name), grace, "{name}");
        }
    }

    #[test]
    fn without_preemption_by_partition_nothing_is_known() {
        let both = "PartitionName=low\nPartitionName=high PriorityTier=2\n";
        assert_eq!(read(&format!("{PRIO}{both}")).grace_s("low"), Some(0));
        for head in [
            "",
            "PreemptMode=REQUEUE\n",
            "PreemptType=preempt/qos\nPreemptMode=REQUEUE\n",
            "PreemptType=preempt/partition_prio\n",
            "PreemptType=preempt/partition_prio\nPreemptMode=SUSPEND,GANG\n",
            "PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE\nPreemptType=preempt/none\n",
        ] {
            assert_eq!(
                read(&format!("{head}{both}")),
                Preemption::default(),
                "{head}"
            );
        }
        let gone = Preemption::read(&|_| Ok(None));
        let denied = Preemption::read(&|_| Err("denied".into()));
        assert_eq!((gone, denied), Default::default());
    }

    proptest! {
        #[test]
        fn no_text_is_too_odd(text in "((PartitionName|GraceTime|Nodes|NodeSet|PriorityTier|Include|[a-z]{0,3})=?[ -~]{0,12}\n?){0,12}") {
            let known = read(&format!("{PRIO}{text}"));
            prop_assert!(known.grace_s.len() <= text.len());
        }
    }
}
