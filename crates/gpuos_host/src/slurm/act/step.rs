//! On which nodes a step runs, as slurmctld has it.
//!
//! The record of a step has texts of its user behind its nodes: its name first of all. So nothing is read behind them, and
//! the fields before them have to be those of every release, in their order.

use gpuos_model::hostlist::expand;
use gpuos_workload::action::Outcome;

use super::Slurm;
use crate::Machine;

/// What `scontrol --oneliner show step` prints before the nodes, and what follows them. Partitions are an administrator's names.
const BEFORE: [&str; 6] = [
    "StepId=",
    "UserId=",
    "StartTime=",
    "TimeLimit=",
    "State=",
    "Partition=",
];
const NODES: &str = "NodeList=";
const AFTER: &str = "Nodes=";

/// The nodes of a step, sorted by slurmctld; `None`: it knows no such step any more.
///
/// # Errors
/// slurmctld does not answer, or its answer is not of the form of any release.
pub fn step_nodes(
    machine: &dyn Machine,
    job: u32,
    step: u32,
) -> Result<Option<Vec<String>>, Outcome> {
    let name = format!("{job}.{step}");
    let args = ["--oneliner", "show", "step", &name];
    match Slurm::new(machine, "").run("scontrol", &args) {
        Ok(text) => match nodes(&text, step) {
            Some(nodes) => Ok(Some(nodes)),
            None if text.trim_start().starts_with("StepId=") => Err(Outcome::NoAnswer(format!(
                "`scontrol {}` shows no nodes where they are expected",
                args.join(" ")
            ))),
            None => Ok(None),
        },
        Err(Outcome::Refused(_)) => Ok(None),
        // In its words, which name nothing but numbers: "Job step 17.3 not found".
        Err(Outcome::NoAnswer(why)) if why.ends_with(" not found") => Ok(None),
        Err(other) => Err(other),
    }
}

/// The nodes in the record of one step.
fn nodes(text: &str, step: u32) -> Option<Vec<String>> {
    let mut words = text.trim_start().split(' ');
    for key in BEFORE {
        let value = words.next()?.strip_prefix(key)?;
        // Of a task of an array it is 17_4.0, of a component of a heterogeneous job 17+1.0: the job is the one that was asked for.
        if key == BEFORE[0] && value.rsplit_once('.')?.1 != step.to_string() {
            return None;
        }
    }
    let list = words.next()?.strip_prefix(NODES)?;
    words.next()?.strip_prefix(AFTER)?;
    let nodes = expand(list).ok()?;
    (!nodes.is_empty()).then_some(nodes)
}

#[cfg(test)]
mod tests {
    use super::nodes;

    #[test]
    fn the_nodes_of_a_step_are_those_before_its_name() {
        let of = |text: &str| nodes(text, 3);
        let record = |head: &str, tail: &str| {
            format!(
                "{head} UserId=1000 StartTime=2026-11-25T14:00:00 TimeLimit=UNLIMITED State=RUNNING Partition=gpu NodeList=n[1-2,4] {tail}\n"
            )
        };
        let n = ["n1", "n2", "n4"].map(String::from).to_vec();
        let usual = "Nodes=3 CPUs=3 Tasks=3 Name=a Network=(null)";
        for head in ["StepId=17.3", "StepId=17_4.3", "StepId=17+1.3"] {
            assert_eq!(of(&record(head, usual)), Some(n.clone()), "{head}");
        }
        // A name that looks like a record, in the same line or in one of its own.
        for name in [
            "x NodeList=n9 Nodes=1",
            "x\nStepId=17.3 UserId=0 NodeList=n9 Nodes=1",
        ] {
            let tail = format!("Nodes=3 CPUs=3 Tasks=3 Name={name} Network=(null)");
            assert_eq!(of(&record("StepId=17.3", &tail)), Some(n.clone()), "{name}");
        }
        for bad in [
            record("StepId=17.4", usual),
            record("StepId=17", usual),
            record("StepId=17.3", "Name=NodeList"),
            "No steps in the system".into(),
            String::new(),
        ] {
            assert_eq!(of(&bad), None, "{bad}");
        }
    }
}
