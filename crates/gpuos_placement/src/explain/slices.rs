//! Jobs with slices of GPUs, in words.
use gpuos_model::gpu_index::{NvmlIndex, NvmlSet};

use super::sentence::plural;

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
        "{}{each} of {on} ({nodes}), at the placements that leave the most useful ones to others.",
        instances(mig)
    )
}

/// One instance of a job that runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InstanceAt {
    /// The node.
    pub node: String,
    /// The GPU there.
    pub gpu: NvmlIndex,
    /// Name of its profile; empty where the board has none in these slices.
    pub profile: String,
    /// First memory slice of the GPU that it has.
    pub start: u8,
    /// How many it has.
    pub size: u8,
}

/// Which instances a running job has: `3g.40gb on GPU 6 of n1 (memory slices 0-3)`.
pub fn slices_of_job(instances: &[InstanceAt]) -> String {
    const NAMED: usize = 4;
    let one = |it: &InstanceAt| {
        let slices = match it.size {
            0 | 1 => format!("memory slice {}", it.start),
            size => format!("memory slices {}-{}", it.start, it.start + size - 1),
        };
        match it.profile.as_str() {
            "" => format!("{slices} of GPU {} of {}", it.gpu, it.node),
            profile => format!("{profile} on GPU {} of {} ({slices})", it.gpu, it.node),
        }
    };
    let shown: Vec<String> = instances.iter().take(NAMED).map(one).collect();
    match (instances.len().saturating_sub(NAMED), shown.split_last()) {
        (0, Some((last, []))) => last.clone(),
        (0, Some((last, first))) => format!("{} and {last}", first.join(", ")),
        (more, _) => format!(
            "{} and {}",
            shown.join(", "),
            plural(more as u32, "more instance")
        ),
    }
}

/// Why a job with slices waits: of the nodes that it may use now so many have placements for its instances, and it needs
/// `needed`. Of those that it names, which it needs all, `named` are (how many have, how many they are).
pub fn no_slices(mig: &str, feasible: u32, needed: u32, named: (u32, u32)) -> String {
    let what = instances(mig);
    let has = |n: u32| if n == 1 { "has" } else { "have" };
    let found = match (feasible, named) {
        (_, (have, all)) if have < all => {
            let of = plural(all, "node");
            format!("of the {of} that the job names, {have} {}", has(have))
        }
        (0, _) => "no node that it may use has".to_string(),
        (n, _) if n < needed => format!("{n} of {} needed {}", plural(needed, "node"), has(n)),
        // There is room for the instances; what is missing is something else.
        (n, _) => {
            let nodes = plural(n, "node");
            return format!(
                "{nodes} {} room for {what}, but Slurm did not give it there: CPUs, memory or another limit is in the way.",
                has(n)
            );
        }
    };
    format!(
        "{found} room for {what} now: free slices count only where they make whole placements that the board has."
    )
}

/// Why a job waits although MIG-switchable GPUs are idle: they served the other kind of job last. `nodes` are nodes with
/// these GPUs by NVML's index, `whole` whether the job wants whole GPUs, `after` and `hold` the seconds of
/// `switch-after` and `switch-hold`.
pub fn other_kind(nodes: &[(&str, NvmlSet)], whole: bool, after: i64, hold: i64) -> String {
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
        "MIG-switchable GPUs are idle and served {served} last: {}{more}. They go to a job with {wants} that has waited {after} s \
         (switch-after), not before {hold} s on the other side (switch-hold).",
        gpus.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuos_model::gpuset::GpuSet;

    #[test]
    fn instances_are_counted_in_words() {
        assert_eq!(instances("3g.40gb:1"), "3g.40gb");
        assert_eq!(instances("3g.40gb:1,1g.10gb:2"), "3g.40gb and 2 x 1g.10gb");
        let none = no_slices("7g.80gb:1", 0, 1, (0, 0));
        assert!(none.starts_with("no node that it may use has room for 7g.80gb now"));
        let some = no_slices("7g.80gb:1", 1, 2, (0, 0));
        assert!(some.starts_with("1 of 2 nodes needed has room for 7g.80gb now"));
        // Others have room, and it names one that has none.
        let named = no_slices("7g.80gb:1", 2, 1, (0, 1));
        assert!(named.starts_with("of the 1 node that the job names, 0 have room for 7g.80gb now"));
        let enough = no_slices("7g.80gb:1", 1, 1, (0, 0));
        assert!(enough.starts_with("1 node has room for 7g.80gb, but Slurm did not"));
        assert!(slices_sentence("1g.10gb:2", "n1", 1).starts_with("2 x 1g.10gb of 1 node (n1)"));
    }

    #[test]
    fn instances_of_a_running_job_are_named() {
        let at = |gpu, profile: &str, start, size| InstanceAt {
            node: "n1".into(),
            gpu: NvmlIndex::new(gpu).expect("a GPU"),
            profile: profile.into(),
            start,
            size,
        };
        let two = [at(6, "3g.40gb", 4, 4), at(7, "", 0, 1)];
        assert_eq!(
            slices_of_job(&two),
            "3g.40gb on GPU 6 of n1 (memory slices 4-7) and memory slice 0 of GPU 7 of n1"
        );
        assert!(slices_of_job(&vec![at(1, "1g.10gb", 0, 1); 6]).ends_with("and 2 more instances"));
    }

    #[test]
    fn gpus_of_the_other_kind_are_named() {
        let node = |name| (name, NvmlSet(GpuSet(0b1100_0000)));
        let said = other_kind(&[node("n1")], true, 60, 600);
        assert_eq!(
            said,
            "MIG-switchable GPUs are idle and served jobs with slices last: n1 GPU 6-7. They go to a job with whole GPUs that has \
             waited 60 s (switch-after), not before 600 s on the other side (switch-hold)."
        );
        let said = other_kind(&["n1", "n2", "n3", "n4"].map(node), false, 60, 600);
        assert!(said.contains("whole GPUs last: n1 GPU 6-7, n2 GPU 6-7, n3 GPU 6-7 and 1 more node. They go to a job with slices"), "{said}");
    }
}
