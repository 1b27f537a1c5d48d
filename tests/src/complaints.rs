//! Lines of slurmctld's log that no sound cluster has, and those that Slurm itself has without a reason.

/// Whether this is what 22.05 says of a requeued job of which it has not noted the GPUs.
pub fn is_lost_requeued(line: &str) -> bool {
    line.contains("bad node_offset") && line.contains("count is 0")
}

/// Whether a line is an error of gpuos.
pub fn is_own(line: &str) -> bool {
    let ours = [
        "error: select/gpuos",
        "error: job_submit/gpuos",
        "error: gpuos",
    ];
    ours.iter().any(|own| line.contains(own))
}

/// Whether a line of slurmctld's log complains of GPUs or of its counts; not those of gpuos.
pub fn is_complaint(line: &str) -> bool {
    // The lab's folder has "gpuos" in its name.
    let lower = line.to_ascii_lowercase().replace("gpuos-lab", "lab");
    // Two that are not about GPUs or the select plugin: of `--gres-flags=enforce-binding` with few cores
    // (stock 22.05.8 too), and slurmctld's own count of jobs that end on a node, when nodes are set down.
    let own_count = lower.contains("comp_job_cnt underflow");
    if lower.contains("gres_min_cpus=") || own_count || is_own(line) {
        return false;
    }
    let wrong = lower.contains("error:") && (lower.contains("gres") || lower.contains("gpu"));
    let words = ["underflow", "overallocat", "over-allocat"];
    wrong || words.iter().any(|word| lower.contains(word))
}

/// Nodes that have not registered since slurmctld's last start. On 26.05 cons_tres may try jobs on one that is
/// in use; it counts the GPUs that will be free there, does not find them, and says so: stock 26.05.5 too,
/// 64 times in a soak. No job gets anything by it.
pub struct Unregistered {
    nodes: Vec<String>,
    waiting: Vec<String>,
}

impl Unregistered {
    /// All, once slurmctld has started.
    pub fn new(nodes: Vec<String>) -> Unregistered {
        Unregistered {
            nodes,
            waiting: Vec::new(),
        }
    }

    /// Reads the next line of slurmctld's log; whether it is such a complaint.
    pub fn explains(&mut self, line: &str) -> bool {
        if line.contains(" started on cluster ") {
            self.waiting.clone_from(&self.nodes);
        }
        if let Some((_, rest)) = line.split_once("] Node ")
            && let Some(node) = rest.strip_suffix(" now responding")
        {
            self.waiting.retain(|name| name != node);
        }
        if line.contains("error: gres_select_filter_select_and_set job ")
            && line.ends_with(" failed to satisfy gres-per-job counter")
        {
            return !self.waiting.is_empty();
        }
        let of_a_node = line.contains(": Insufficient gres/gpu allocated for job ")
            || line.contains(" failed to find any available GRES on node ");
        let named = |node: &String| line.contains(&format!(" on node {node} (node_inx "));
        of_a_node && self.waiting.iter().any(named)
    }
}

#[cfg(test)]
mod tests {
    use super::Unregistered;

    #[test]
    fn only_what_is_said_before_a_node_registers_is_let_pass() {
        let complaint = "[t] error: _set_node_bits: Insufficient gres/gpu allocated for job 7 on node n1 (node_inx 0) (gres still needed 2, total requested: 2)";
        let mut unregistered = Unregistered::new(vec!["n1".into(), "n2".into()]);
        assert!(!unregistered.explains(complaint));
        assert!(!unregistered.explains("[t] slurmctld version 26.05.5 started on cluster c(1)"));
        assert!(unregistered.explains(complaint));
        assert!(!unregistered.explains("[t] error: gres/gpu: job 7 dealloc node n1 underflow"));
        assert!(!unregistered.explains("[t] Node n1 now responding"));
        assert!(!unregistered.explains(complaint));
        assert!(unregistered.explains(&complaint.replace("n1", "n2")));
    }
}
