//! Faults of what `[checkpoint]` and `[memory]` of gpuos.toml need of Slurm's files.

use crate::doctor_planted_lines::{Fault, TOML, conf, fault, toml, with_toml};

pub const TABLES: &[Fault] = &[
    fault(
        "rs:6+2 on four nodes",
        |bed| with_toml(bed, "enabled = true", "enabled = true\nscheme = \"rs:6+2\""),
        "warn checkpoints",
        "scheme = \"rs:6+2\" is for sets of 8 nodes, and slurm.conf has 4: every job has partner in its place",
        "write scheme = \"partner\"",
    ),
    fault(
        "xor:8 on four nodes",
        |bed| with_toml(bed, "enabled = true", "enabled = true\nscheme = \"xor:8\""),
        "warn checkpoints",
        "is for sets of 8 nodes",
        "4 nodes are enough for",
    ),
    fault(
        "[checkpoint] without enabled",
        |bed| with_toml(bed, "enabled = true", "keep = 3"),
        "warn checkpoints",
        "[checkpoint] is written, and has no enabled = true",
        "add enabled = true",
    ),
    fault(
        "jobs are not requeued",
        |bed| bed.set("JobRequeue", "0"),
        "warn checkpoints",
        "JobRequeue=0: Slurm does not start jobs again",
        "set JobRequeue=1",
    ),
    fault(
        "the mover's port is slurmd's",
        |bed| with_toml(bed, "enabled = true", "enabled = true\nport = 6818"),
        "fail checkpoints",
        "port = 6818 of [checkpoint] is that of SlurmdPort",
        "port = 6821",
    ),
    fault(
        "the mover's port is in slurmctld's range",
        |bed| {
            bed.set("SlurmctldPort", "6820-6825");
            with_toml(bed, "enabled = true", "enabled = true");
        },
        "fail checkpoints",
        "port = 6821 of [checkpoint] is that of SlurmctldPort",
        "write another one",
    ),
    fault(
        "user-gib below max-gib",
        |bed| {
            with_toml(
                bed,
                "enabled = true",
                "enabled = true\nmax-gib = 500\nuser-gib = 100",
            )
        },
        "warn checkpoints",
        "user-gib = 100 is less than max-gib = 500",
        "raise user-gib",
    ),
    fault(
        "keys and no encryption",
        |bed| {
            with_toml(
                bed,
                "enabled = true",
                "enabled = true\nencrypt-keys = [\"/etc/gpuos/1.key\"]",
            )
        },
        "warn checkpoints",
        "encrypt is not true",
        "add encrypt = true",
    ),
    fault(
        "memory that is not counted",
        |bed| bed.set("SelectTypeParameters", "CR_Core"),
        "fail memory",
        "Slurm does not count memory (SelectTypeParameters=CR_Core)",
        "CR_Core_Memory",
    ),
    fault(
        "memory that is not counted by sockets either",
        |bed| bed.set("SelectTypeParameters", "CR_Socket"),
        "fail memory",
        "SelectTypeParameters=CR_Socket",
        "RealMemory=",
    ),
    fault(
        "no [[nodes]]",
        |bed| {
            toml(
                bed,
                "[checkpoint]\nenabled = true\n[memory]\noversubscribe = true\n",
            )
        },
        "warn memory",
        "gpuos.toml does not say how much memory the GPUs of n[1-4] have",
        "[[nodes]] match = \"n[1-4]\"",
    ),
    fault(
        "[[nodes]] for some",
        |bed| with_toml(bed, "n[1-4]", "n[1-2]"),
        "warn memory",
        "the GPUs of n[3-4] have",
        "[[nodes]] match = \"n[3-4]\"",
    ),
    fault(
        "no RealMemory",
        |bed| conf(bed, "RealMemory=2000000 ", ""),
        "warn memory",
        "n[1-4]: slurm.conf has no RealMemory=",
        "slurmd -C",
    ),
    fault(
        "turns without shards",
        |bed| {
            conf(bed, ",shard:h100:32", "");
            conf(bed, "GresTypes=gpu,shard", "GresTypes=gpu");
            bed.set("GresTypes", "gpu");
            bed.file(
                "gres.conf",
                "AutoDetect=off\nNodeName=n[1-4] Name=gpu Type=h100 File=/dev/nvidia[0-7]\n",
            );
        },
        "warn memory",
        "turns = 2, and no node has GRES shard",
        "Gres=gpu:8,shard:32",
    ),
    fault(
        "more turns than shards",
        |bed| with_toml(bed, "turns = 2", "turns = 8"),
        "warn memory",
        "turns = 8, and a GPU has 4 shards at most",
        "write turns = 4",
    ),
    fault(
        "nodes that no file names",
        |bed| bed.set("MaxNodeCount", "64"),
        "warn memory",
        "MaxNodeCount allows nodes that no file names",
        "take MaxNodeCount out",
    ),
    fault(
        "a reserve as large as a GPU",
        |bed| {
            toml(
                bed,
                &format!(
                    "{}[[node-type]]\nname = \"small\"\nbase = \"dgx-h100\"\ngpu-memory-mib = 40000\n",
                    TOML.replace("turns = 2", "turns = 2\nreserve-mib = 65536")
                        .replace("dgx-h100", "small")
                ),
            );
        },
        "warn memory",
        "reserve-mib = 65536, and a GPU has 40000 MiB",
        "reserve-mib = 1024",
    ),
    fault(
        "shares of nothing",
        |bed| {
            toml(
                bed,
                "[[memory-share]]\npartition = \"main\"\nguaranteed = \"1G\"\n",
            )
        },
        "warn memory",
        "[[memory-share]] says nothing",
        "take the tables out",
    ),
    fault(
        "shares by QOS without slurmdbd",
        |bed| {
            toml(
                bed,
                &format!("{TOML}[[memory-share]]\nqos = \"high\"\nguaranteed = \"1G\"\n"),
            )
        },
        "warn memory",
        "[[memory-share]] with qos = is of no job",
        "slurmdbd",
    ),
    fault(
        "more guaranteed than a node has",
        |bed| {
            toml(
                bed,
                &format!("{TOML}[[memory-share]]\npartition = \"main\"\nguaranteed = \"3T\"\n"),
            )
        },
        "warn memory",
        "[[memory-share]] guarantee 3145728 MiB together, and a node has 2000000 MiB",
        "lower guaranteed =",
    ),
    fault(
        "nvme for nothing",
        |bed| toml(bed, "[memory]\nnvme = \"/nvme\"\nnvme-gib = 10\n"),
        "warn memory",
        "nvme = … says nothing",
        "take nvme out",
    ),
];
