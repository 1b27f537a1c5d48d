//! What Slurm shows of jobs and nodes, read.

use std::collections::BTreeMap;

use gpuos_model::hostlist::expand;

/// GPU indices by node.
pub type Gpus = BTreeMap<String, Vec<usize>>;

/// `0-1,4` as indices; `N/A` and nothing are none.
pub fn indices(text: &str) -> Vec<usize> {
    let mut all = Vec::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) {
            all.extend(first..=last);
        }
    }
    all
}

/// `KEY=VALUE` of a line of scontrol where the value may hold blanks: up to the next ` KEY=`.
pub fn long_field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let start = text.find(&format!("{key}="))? + key.len() + 1;
    Some(text[start..].lines().next().unwrap_or_default().trim())
}

/// The GPUs of a job in `scontrol show job -d`, from lines like
/// `Nodes=n[1-2] CPU_IDs=0 Mem=16 GRES=gpu:a40:2(IDX:0-1)`.
pub fn job_gpus(text: &str) -> Gpus {
    let mut all = Gpus::new();
    for line in text.lines().map(str::trim) {
        let (Some(nodes), true) = (line.strip_prefix("Nodes="), line.contains("CPU_IDs=")) else {
            continue;
        };
        let nodes = nodes.split(' ').next().unwrap_or_default();
        let index = line.split("(IDX:").nth(1).and_then(|t| t.split(')').next());
        for node in expand(nodes).expect("a list of nodes") {
            all.insert(node, indices(index.unwrap_or_default()));
        }
    }
    all
}

/// The socket of each CPU of a job, by node, where each socket has `cores` cores.
pub fn job_sockets(text: &str, cores: usize) -> BTreeMap<String, Vec<usize>> {
    let mut all = BTreeMap::new();
    for line in text.lines().map(str::trim) {
        let (Some(nodes), Some(cpus)) = (
            line.strip_prefix("Nodes=")
                .and_then(|t| t.split(' ').next()),
            line.split("CPU_IDs=")
                .nth(1)
                .and_then(|t| t.split(' ').next()),
        ) else {
            continue;
        };
        let mut sockets: Vec<usize> = indices(cpus).iter().map(|cpu| cpu / cores).collect();
        sockets.dedup();
        for node in expand(nodes).expect("a list of nodes") {
            all.insert(node, sockets.clone());
        }
    }
    all
}

/// What is in use on a node, of a line of `scontrol -d -o show node`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Used {
    /// CPUs.
    pub cpus: u32,
    /// Number of GPUs.
    pub gpus: u32,
    /// Their indices.
    pub index: Vec<usize>,
}

/// What is in use on each node, of `scontrol -d -o show node`.
pub fn nodes_used(text: &str) -> BTreeMap<String, Used> {
    let mut all = BTreeMap::new();
    for line in text.lines() {
        let get = |key| gpuos_lab::field(line, key).unwrap_or_default();
        let gres = get("GresUsed");
        let count = gres.split("(IDX:").next().unwrap_or_default();
        let index = gres.split("(IDX:").nth(1).and_then(|t| t.split(')').next());
        let used = Used {
            cpus: get("CPUAlloc").parse().unwrap_or_default(),
            gpus: count
                .rsplit(':')
                .next()
                .and_then(|n| n.parse().ok())
                .unwrap_or_default(),
            index: indices(index.unwrap_or_default()),
        };
        if !get("NodeName").is_empty() {
            all.insert(get("NodeName").to_string(), used);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocations_are_read() {
        let text = "JobId=1\n     Nodes=n[1-2] CPU_IDs=0,64 Mem=16 GRES=gpu:a40:3(IDX:0-1,4)\n     \
                    Nodes=n4 CPU_IDs=2-3 Mem=16 GRES=gpu(IDX:N/A)\n   Nodes=x\n";
        let gpus = job_gpus(text);
        assert_eq!(gpus["n1"], [0, 1, 4]);
        assert_eq!(gpus["n2"], [0, 1, 4]);
        assert!(gpus["n4"].is_empty() && gpus.len() == 3);
        assert_eq!(job_sockets(text, 32)["n2"], [0, 2]);
        let text = "NodeName=n1 CPUAlloc=2 Gres=gpu:a40:8 GresUsed=gpu:a40:3(IDX:0-1,4)\n";
        let used = Used {
            cpus: 2,
            gpus: 3,
            index: vec![0, 1, 4],
        };
        assert_eq!(nodes_used(text)["n1"], used);
        assert_eq!(
            long_field("  SystemComment=a b\nX=", "SystemComment"),
            Some("a b")
        );
    }
}
