//! What partitions give their jobs: a topology, and memory to those that ask for none.

use gpuos_placement::fits::Memory;

use crate::slurm::{Record, Running};

/// A partition as far as places of its jobs hang on it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Partition {
    /// Its name.
    pub name: String,
    /// Whether jobs that name none come here.
    pub is_default: bool,
    /// The topology that it names (25.05 and later); empty where it names none.
    pub topology: String,
    defaults: Defaults,
}

/// Memory of jobs that ask for none, in MiB; 0: it is not said.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Defaults {
    per_node: u64,
    per_cpu: u64,
    per_gpu: u64,
}

impl Defaults {
    fn of(get: impl Fn(&str) -> Option<String>) -> Defaults {
        let number = |key: &str| get(key).and_then(|value| value.parse().ok()).unwrap_or(0);
        let all = get("JobDefaults").unwrap_or_default();
        let mut all = all.split(',').filter_map(|one| one.trim().split_once('='));
        let per_gpu = all.find(|(key, _)| key.eq_ignore_ascii_case("DefMemPerGPU"));
        Defaults {
            per_node: number("DefMemPerNode"),
            per_cpu: number("DefMemPerCPU"),
            per_gpu: per_gpu
                .and_then(|(_, value)| value.parse().ok())
                .unwrap_or(0),
        }
    }
}

/// Reads what `scontrol show partitions` prints.
pub(super) fn read(text: &str) -> Vec<Partition> {
    let all = Record::parse_all(text, "PartitionName");
    let partition = |record: &Record| Partition {
        name: record.text("PartitionName"),
        is_default: record.get("Default") == Some("YES"),
        topology: record.text("Topology"),
        defaults: Defaults::of(|key| record.get(key).map(str::to_owned)),
    };
    all.iter().map(partition).collect()
}

/// The memory that a job gets which asks for none: by its partition, else by slurm.conf, else all of its nodes'.
pub(super) fn memory(running: &Running, partition: Option<&Partition>) -> Memory {
    let all = Defaults::of(|key| running.get(key).map(str::to_owned));
    let own = partition
        .map(|partition| partition.defaults)
        .unwrap_or_default();
    let given = |defaults: Defaults| match (defaults.per_cpu, defaults.per_node) {
        (0, 0) => None,
        (0, mib) => Some(Memory::Node(mib)),
        (mib, _) => Some(Memory::Cpu(mib)),
    };
    match [own.per_gpu, all.per_gpu].into_iter().find(|mib| *mib > 0) {
        Some(mib) => Memory::Gpu(mib),
        None => given(own).or(given(all)).unwrap_or(Memory::All),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_partition_counts_before_slurm_conf_and_gpus_before_both() {
        let running = |text: &str| Running::parse(text);
        let none =
            running("DefMemPerNode           = UNLIMITED\nJobDefaults             = (null)\n");
        let cpu =
            running("DefMemPerCPU            = 100\nJobDefaults             = DefCpuPerGPU=2\n");
        let gpu = running(
            "DefMemPerNode           = 900\nJobDefaults             = DefCpuPerGPU=2,DefMemPerGPU=50\n",
        );
        let shown = "PartitionName=a\n   Default=YES\n   DefMemPerNode=UNLIMITED MaxMemPerNode=UNLIMITED\n\n\
                     PartitionName=b\n   JobDefaults=(null)\n   DefMemPerNode=300 MaxMemPerNode=UNLIMITED\n   Topology=t\n\n\
                     PartitionName=c\n   JobDefaults=DefMemPerGPU=70\n   DefMemPerCPU=5\n";
        let all = read(shown);
        let of = |running: &Running, at: usize| memory(running, all.get(at));
        assert!(all[0].is_default && all[1].topology == "t");
        assert_eq!(of(&none, 0), Memory::All);
        assert_eq!(of(&none, 9), Memory::All);
        assert_eq!(of(&cpu, 0), Memory::Cpu(100));
        assert_eq!(of(&cpu, 1), Memory::Node(300));
        assert_eq!(of(&gpu, 1), Memory::Gpu(50));
        assert_eq!(of(&gpu, 2), Memory::Gpu(70));
    }
}
