//! The forms of sentences that the table has to meet, and which of them it met.

use std::collections::BTreeMap;

/// How often each form was judged, and the first line that had it.
pub(super) type Judged = BTreeMap<&'static str, (u32, String)>;

/// Forms that have to be met: a table in which one of them never comes has lost its generator. With what each means,
/// and what to do where something can be done: docs/reference/messages.md has them with the first sentence of each.
pub const FORMS: [(&str, &str, &str); 28] = [
    (
        "fits",
        "There is room, and something else than GPUs keeps the job waiting.",
        "Wait, or ask for a higher priority.",
    ),
    (
        "not while",
        "What the job needs is down, drained, reserved or out of service.",
        "Administrators: bring it back (`gpuos health`, `scontrol show node`).",
    ),
    (
        "enough back",
        "The same, where several ways lead out of it: these are enough.",
        "Administrators: bring them back.",
    ),
    (
        "never",
        "The cluster is too small for the request, as it is configured.",
        "Submit it again with a smaller request.",
    ),
    (
        "capacity",
        "Too few GPUs, CPUs or memory are free.",
        "Wait, or take the smallest change that a later line names.",
    ),
    (
        "named",
        "The nodes that `--nodelist` names are not all free.",
        "Wait, or name no nodes.",
    ),
    (
        "level",
        "There is room, but not in one domain of the required level.",
        "Wait, or prefer the level only, as the sentence says.",
    ),
    (
        "not for GPUs",
        "Slurm has a reason of its own, such as a dependency or a limit; the sentence says what lifts it.",
        "Do what it says.",
    ),
    (
        "no GPU",
        "gpuos places only jobs with GPUs.",
        "`scontrol show job` has Slurm's reason.",
    ),
    (
        "requeue",
        "Slurm lets a requeued job wait for a while.",
        "Wait; look at the node that is named, if one is.",
    ),
    ("asks", "What was understood of the request.", ""),
    (
        "host memory",
        "sbatch added that to the job's memory for `--gpuos-mem`: it counts in limits, and the job waits for nodes that have it.",
        "",
    ),
    (
        "without host memory",
        "Of that part of its memory the nodes have too little: without it the job would fit.",
        "Wait, or submit it again with a smaller `--gpuos-mem`.",
    ),
    (
        "smallest",
        "With this change alone, and all else as it was, the job would start now.",
        "`scontrol update`, or cancel the job and submit it so.",
    ),
    (
        "nothing smaller",
        "Less of the same does not help now.",
        "Wait.",
    ),
    (
        "room at",
        "When running jobs end by their time limits.",
        "Wait.",
    ),
    (
        "room after",
        "The same, where jobs have no time limit.",
        "Administrators: set DefaultTime, so that forecasts are possible.",
    ),
    (
        "unseen",
        "PrivateData hides the jobs that are in the way.",
        "Ask those who run the cluster.",
    ),
    (
        "out of service",
        "gpuosd or an administrator has taken GPUs out.",
        "Administrators: `gpuos health` says why.",
    ),
    (
        "its place",
        "Where the job would go, if it could start now.",
        "",
    ),
    ("runs", "Where a job runs, and how its GPUs are linked.", ""),
    (
        "tiers",
        "Where its memory lies by `--gpuos-mem` when it has all of it.",
        "`gpuos mem show` tells what it has now.",
    ),
    (
        "best",
        "The job would lie better if it could choose from all nodes.",
        "`gpuos defrag` and `gpuos plan` say what a move would bring.",
    ),
    ("no better", "Its place is as good as any.", ""),
    ("instance", "Which MIG instances a job has.", ""),
    (
        "slices",
        "No GPU has free slices that make the instances.",
        "Wait, or take the change that a later line names.",
    ),
    (
        "slices fit",
        "The same as for GPUs: there is room, and something else keeps the job waiting.",
        "Wait, or ask for a higher priority.",
    ),
    (
        "row",
        "What each node has for the job: a row of the table.",
        "",
    ),
];

pub(super) fn count(judged: &mut Judged, form: &'static str) {
    judged.entry(form).or_default().0 += 1;
}

/// The line that was judged: it is the example of forms that had none.
pub(super) fn judged_line(judged: &mut Judged, line: &str) {
    let new = judged
        .values_mut()
        .filter(|(_, example)| example.is_empty());
    new.for_each(|(_, example)| *example = line.to_string());
}
