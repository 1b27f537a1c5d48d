//! Memory of jobs that ask for none, in slurm.conf.

/// Whether a line, as keys in lower case and values, gives jobs that say nothing less than all memory of their nodes. It may be about one
/// partition: then some jobs have it.
pub(super) fn sets_default(line: &[(String, String)]) -> bool {
    line.iter().any(|(key, value)| {
        let value = value.to_ascii_lowercase();
        match key.as_str() {
            "defmempercpu" | "defmempernode" => value != "0" && value != "unlimited",
            "jobdefaults" => value
                .split(',')
                .any(|one| one.trim_start().starts_with("defmempergpu")),
            _ => false,
        }
    })
}

#[cfg(test)]
mod tests {
    use crate::slurm_conf::NodeLines;

    fn read(slurm: &str) -> NodeLines {
        let read = |name: &str| Ok((name == "slurm.conf").then(|| slurm.to_owned()));
        NodeLines::read(&read).unwrap()
    }

    #[test]
    fn a_default_of_any_partition_is_one() {
        let nodes = "NodeName=n1 Gres=gpu:1\n";
        for (line, sets) in [
            ("", false),
            ("DefMemPerNode=0", false),
            ("DefMemPerCPU=UNLIMITED", false),
            ("JobDefaults=DefCpuPerGPU=4", false),
            ("#DefMemPerCPU=1024", false),
            ("defmempercpu=1024", true),
            ("DefMemPerNode=4096", true),
            ("PartitionName=p Nodes=n1 DefMemPerCPU=512", true),
            ("JobDefaults=DefCpuPerGPU=4,DefMemPerGPU=1000", true),
        ] {
            let lines = read(&format!("{nodes}{line}\n"));
            assert_eq!(lines.memory_has_default(), sets, "{line}");
        }
    }

    #[test]
    fn nodes_have_their_memory_in_the_order_of_all() {
        let lines = read(
            "NodeName=n[1-2] RealMemory=1000\nNodeName=DEFAULT RealMemory=500\nNodeName=n3\nNodeName=n4 RealMemory=x\n",
        );
        assert_eq!(lines.memory_mib(), [1000, 1000, 500, 0]);
        assert_eq!(lines.memory_mib().len(), lines.all().len());
    }
}
