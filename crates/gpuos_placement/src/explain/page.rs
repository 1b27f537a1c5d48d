//! The part of docs/reference/messages.md on jobs that wait: each form of a sentence with an example.

use gpuos_model::gpu_index::{NvmlIndex, NvmlSet};
use gpuos_model::gpuset::GpuSet;
use gpuos_model::messages::Row;

use super::*;
use crate::plan::{Never, Unit, Wait};
use crate::rules::{Cause, Exclusion, Verdict};

#[path = "../../../../tests/reference/messages.rs"]
mod rows_on_the_page;

/// Rows of all forms of a type, each with an example. The compiler asks for those of a new one.
macro_rules! forms {
    ($type:ty, $say:expr; $($form:pat => $example:expr, $means:literal, $action:literal;)+) => {{
        let _all = |one: &$type| match one { $($form => {})+ };
        let say = $say;
        [$({
            let example: $type = $example;
            assert!(matches!(&example, $form));
            row(say(&example), $means, $action)
        }),+]
    }};
}

fn row(text: String, means: &'static str, action: &'static str) -> Row {
    Row {
        name: "",
        text: text.leak(),
        means,
        action,
    }
}

fn words(all: &[&str]) -> Vec<String> {
    all.iter().map(|word| (*word).to_string()).collect()
}

fn now() -> Vec<Row> {
    let squeue = |text: String| format!("gpuos: {text}");
    let mut rows = Vec::new();
    rows.extend(forms! { Wait, |wait: &Wait| squeue(why_wait(wait));
        Wait::Capacity { .. } => Wait::Capacity { feasible_nodes: 2, needed_nodes: 4, free_gpus: 20, needed_gpus: 32 },
            "Too few nodes have enough free GPUs, CPUs and memory.",
            "Wait, or ask for less: `gpuos why` names the smallest change.";
        Wait::Level { .. } => Wait::Level { level: "leaf".into(), best_domain: "leaf2".into(), unit: Unit::Nodes, have: 3, need: 4 },
            "There is room, but not in one domain of the level that the job requires.",
            "Wait, or prefer the level only.";
        Wait::UnknownLevel { .. } => Wait::UnknownLevel { level: "pod".into(), known: words(&["nvlink", "node", "leaf"]) },
            "The level was there when the job was submitted, or nobody checked.",
            "Do what it says.";
        Wait::Never { .. } => Wait::Never { why: Never::Gpus { need: 64, have: 32, nodes: (1, 4) } },
            "Idle nodes and GPUs in service would not be enough; one of the reasons of the next section follows.",
            "Ask for less, or see with `gpuos why` whether GPUs that are out of service are missing.";
    });
    rows.push(row(
        squeue(why_wait_on(
            &Wait::Capacity {
                feasible_nodes: 1,
                needed_nodes: 2,
                free_gpus: 8,
                needed_gpus: 16,
            },
            2,
        )),
        "The nodes that `--nodelist` names are not all free.",
        "Wait, or name no nodes.",
    ));
    let refusal = |asked, found| Refusal {
        needed: 2,
        most: 2,
        asked,
        offered: 16,
        found,
        free: 9,
    };
    rows.extend(forms! { Asked, |asked: &Asked| squeue(refusal(*asked, 1).to_string());
        Asked::Each(_) => Asked::Each(8),
            "What Slurm offered when it looked last has too few nodes with that many free GPUs.",
            "Wait, or ask for less: `gpuos why` names the smallest change.";
        Asked::All(_) => Asked::All(12), "The same for GPUs in all.", "Wait, or ask for less.";
        Asked::Other => Asked::Other,
            "The same where the job asks in a form that gpuos does not count.", "Wait, or ask for less.";
    });
    rows.push(row(
        squeue(refusal(Asked::Each(8), 2).to_string()),
        "GPUs are free, and what else the job asks for is not.",
        "Look at its CPUs and memory, at `--nodelist` and at the level.",
    ));
    rows.push(row(
        squeue(out_of_service(&[("n2", GpuSet::first(2))], 32)),
        "The job would have room with the GPUs that gpuosd or an administrator has taken out.",
        "Wait; administrators: `gpuos health` says why they are out.",
    ));
    rows.push(row(
        squeue(no_slices("3g.40gb:2", 0, 1, (0, 0))),
        "Free slices are too few, or lie where no such instance can be made.",
        "Wait, or ask for smaller slices: `gpuos mig plan` says what would start.",
    ));
    rows.push(row(
        squeue(no_slices("3g.40gb:2", 2, 1, (0, 0))),
        "There are slices, and Slurm refused the nodes for something else.",
        "Look at the job's CPUs and memory.",
    ));
    let gpus = [NvmlIndex::new(6), NvmlIndex::new(7)].into_iter().flatten();
    let gpus: NvmlSet = gpus.fold(NvmlSet::EMPTY, NvmlSet::with);
    rows.push(row(
        squeue(other_kind(&[("n1", gpus)], true, 60, 300)),
        "MIG-switchable GPUs do not go from one kind of jobs to the other at once.",
        "Wait.",
    ));
    rows
}

fn never() -> Vec<Row> {
    forms! { Never, Never::to_string;
        Never::NoGpu => Never::NoGpu, "", "Ask for GPUs.";
        Never::Named { .. } => Never::Named { named: 3, most: 2 }, "", "Name fewer nodes, or raise `--nodes`.";
        Never::NoSuchNode { .. } => Never::NoSuchNode { node: 9 }, "The nodes have changed since.", "Submit it again.";
        Never::Tasks { .. } => Never::Tasks { tasks: 2, nodes: 4 }, "Each node needs a task.", "Ask for fewer nodes.";
        Never::TotalGpus { .. } => Never::TotalGpus { gpus: 2, nodes: 4 }, "", "Ask for fewer nodes, or more GPUs.";
        Never::InsideNode { .. } => Never::InsideNode { nodes: 2, level: "nvlink".into() }, "", "Ask for one node, or a wider level.";
        Never::Apart { .. } => Never::Apart { level: "leaf".into() }, "", "Name other nodes, or a wider level.";
        Never::Domain { .. } => Never::Domain { unit: Unit::Nodes, need: 9, have: 8, domain: "leaf1".into(), level: "leaf".into() },
            "", "Ask for less, or for a wider level.";
        Never::Node { .. } => Never::Node { name: "n3".into() }, "", "Name another node, or ask for less on it.";
        Never::Gpus { .. } => Never::Gpus { need: 64, have: 32, nodes: (1, 4) }, "", "Ask for more nodes, or fewer GPUs.";
        Never::Nodes { .. } => Never::Nodes { gpus: 8, have: 3, nodes: (4, 4) }, "", "Ask for fewer nodes, or less on each.";
        Never::Said(_) => Never::Said(String::new()), "", "";
    }
    .into_iter()
    // What recordings of earlier releases have is one of the others.
    .filter(|row| !row.text.is_empty())
    .collect()
}

fn rules() -> Vec<Row> {
    let kept = |cause: &Cause| {
        let verdict = Verdict::Forbidden;
        let (cause, nodes) = (cause.clone(), words(&["n1", "n2"]));
        Exclusion {
            verdict,
            cause,
            nodes,
        }
        .to_string()
    };
    let domain = || "leaf leaf1".to_string();
    let mut rows = forms! { Cause, kept;
        Cause::Sole { .. } => Cause::Sole { job: 7, domain: domain() },
            "That job has `--gpuos-exclusive`.", "Wait.";
        Cause::Wanted { .. } => Cause::Wanted { job: 7, domain: domain() },
            "The job itself has `--gpuos-exclusive`.", "Wait, or submit it without the option.";
        Cause::Rule { .. } => Cause::Rule { number: 1, others: "class io".into(), domain: domain() },
            "A `[[rule]]` of gpuos.toml, counted from 1, keeps them apart.", "Wait, or ask those who run the cluster.";
        Cause::Reserve { .. } => Cause::Reserve { number: 1, gangs: 8 },
            "A `[[reserve]]` of gpuos.toml keeps the nodes for larger jobs.", "Wait, or ask those who run the cluster.";
        Cause::Power { .. } => Cause::Power { domain: "pdu1".into() },
            "A `[[power-domain]]` of gpuos.toml is used up.", "Wait.";
    }
    .to_vec();
    rows.push(row(
        Claim::RulesKeep.to_string(),
        "`gpuos why` looked ahead: rules stay in the way of this job.",
        "Ask those who run the cluster.",
    ));
    rows
}

#[test]
fn the_page_in_the_reference_has_every_reason_to_wait() {
    rows_on_the_page::hold(
        &[("waits", &now()), ("never", &never()), ("rules", &rules())],
        &[],
    );
}
