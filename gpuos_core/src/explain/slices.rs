//! Jobs with slices of GPUs, in words.

use super::sentence::plural;
use crate::gpuset::GpuSet;

/// Instances in words: `3g.40gb:1,1g.10gb:2` is "3g.40gb and 2 x 1g.10gb".
fn instances(mig: &str) -> String {
    let each = mig.split(',').map(|one| match one.rsplit_once(':') {
        Some((name, "1")) => name.to_string(),
        Some((name, count)) => format!("{count} x {name}"),
        None => one.to_string(),
    });
    let each: Vec<String> = each.collect();
    match each.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => each.concat(),
    }
}

/// Where a job with slices runs: its instances on each node as its note has them, its nodes, and how many
/// they are.
pub fn slices_sentence(mig: &str, nodes: &str, count: u32) -> String {
    let each = if count > 1 { " on each" } else { "" };
    let on = plural(count, "node");
    format!(
        "{}{each} of {on} ({nodes}), at the windows that leave the most useful ones to others.",
        instances(mig)
    )
}

/// Why a job with slices waits: no node, or too few, have windows for its instances now.
pub fn no_slices(mig: &str, feasible: u32, needed: u32) -> String {
    let what = instances(mig);
    let found = match feasible {
        0 => "no node has".to_string(),
        n => format!("{n} of {} needed have", plural(needed, "node")),
    };
    format!(
        "{found} room for {what} now: free slices count only where they make whole windows that the \
         board has. It starts when instances end there."
    )
}

/// Why a job waits although GPUs that move are idle: they served the other kind of job last. `nodes` are nodes with
/// these GPUs by NVML's index, `whole` whether the job wants whole GPUs, `after` and `hold` the seconds of
/// `move-after` and `move-hold`.
pub fn other_kind(nodes: &[(&str, GpuSet)], whole: bool, after: i64, hold: i64) -> String {
    const NAMED: usize = 3;
    let each = nodes.iter().take(NAMED);
    let gpus: Vec<String> = each
        .map(|(node, gpus)| format!("{node} GPU {gpus}"))
        .collect();
    let more = match nodes.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {}", plural(more as u32, "more node")),
    };
    let (served, wants) = match whole {
        true => ("jobs with slices", "whole GPUs"),
        false => ("jobs with whole GPUs", "slices"),
    };
    format!(
        "GPUs that move are idle and served {served} last: {}{more}. They go to a job with {wants} that has waited {after} s \
         (move-after), not before {hold} s on the other side (move-hold).",
        gpus.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_are_counted_in_words() {
        assert_eq!(instances("3g.40gb:1"), "3g.40gb");
        assert_eq!(instances("3g.40gb:1,1g.10gb:2"), "3g.40gb and 2 x 1g.10gb");
        assert!(no_slices("7g.80gb:1", 0, 1).starts_with("no node has room for 7g.80gb now"));
        assert!(no_slices("7g.80gb:1", 1, 2).starts_with("1 of 2 nodes needed have room"));
        assert!(slices_sentence("1g.10gb:2", "n1", 1).starts_with("2 x 1g.10gb of 1 node (n1)"));
    }

    #[test]
    fn gpus_of_the_other_kind_are_named() {
        let node = |name| (name, GpuSet(0b1100_0000));
        let said = other_kind(&[node("n1")], true, 60, 600);
        assert_eq!(
            said,
            "GPUs that move are idle and served jobs with slices last: n1 GPU 6-7. They go to a job with whole GPUs that has \
             waited 60 s (move-after), not before 600 s on the other side (move-hold)."
        );
        let said = other_kind(&["n1", "n2", "n3", "n4"].map(node), false, 60, 600);
        assert!(said.contains("whole GPUs last: n1 GPU 6-7, n2 GPU 6-7, n3 GPU 6-7 and 1 more node. They go to a job with slices"), "{said}");
    }
}
