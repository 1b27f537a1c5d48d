//! GPUs out of service, in words.
use gpuos_model::gpuset::GpuSet;

use super::sentence::plural;

/// Nodes that are named at most.
const NODES: usize = 4;

/// Which GPUs are out of service: the nodes that have some, by name, and how many GPUs all nodes that count
/// have together. "3 of 32 GPUs are out of service: n2 gpu3, n4 gpu0 gpu5".
pub fn out_of_service(out: &[(&str, GpuSet)], total: usize) -> String {
    let count: usize = out.iter().map(|(_, gpus)| gpus.len()).sum();
    let verb = if count == 1 { "is" } else { "are" };
    let gpus = plural(total as u32, "GPU");
    let mut text = format!("{count} of {gpus} {verb} out of service");
    for (at, (node, gpus)) in out.iter().take(NODES).enumerate() {
        text += if at == 0 { ": " } else { ", " };
        text += node;
        for gpu in gpus.iter() {
            text += &format!(" gpu{gpu}");
        }
    }
    if out.len() > NODES {
        let rest = (out.len() - NODES) as u32;
        text += &match rest {
            1 => " and 1 more node".into(),
            rest => format!(" and {rest} more nodes"),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_named_by_node_and_the_list_has_an_end() {
        let one = [("n2", GpuSet(1 << 3))];
        assert_eq!(
            out_of_service(&one, 32),
            "1 of 32 GPUs is out of service: n2 gpu3"
        );
        let two = [("n2", GpuSet(1 << 3)), ("n4", GpuSet(0b10_0001))];
        assert_eq!(
            out_of_service(&two, 32),
            "3 of 32 GPUs are out of service: n2 gpu3, n4 gpu0 gpu5"
        );
        let names: Vec<String> = (0..9).map(|n| format!("n{n}")).collect();
        let many: Vec<_> = names.iter().map(|n| (n.as_str(), GpuSet(1))).collect();
        assert_eq!(
            out_of_service(&many, 72),
            "9 of 72 GPUs are out of service: n0 gpu0, n1 gpu0, n2 gpu0, n3 gpu0 and 5 more nodes"
        );
    }
}
