//! What gpuos adds to PBS's resources.

/// A resource that PBS is told to have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Resource {
    /// Its name.
    pub name: &'static str,
    /// Its type, as `qmgr` has it.
    pub kind: &'static str,
    /// Its flags, as `qmgr` has them; empty: none.
    pub flags: &'static str,
    /// The option of the same name, where users write it; empty: they do not.
    pub option: &'static str,
}

const fn of_jobs(name: &'static str, option: &'static str) -> Resource {
    Resource {
        name,
        kind: "string",
        flags: "m",
        option,
    }
}

const fn of_vnodes(name: &'static str, kind: &'static str) -> Resource {
    Resource {
        name,
        kind,
        flags: "h",
        option: "",
    }
}

/// GPUs, which PBS counts on vnodes.
pub const NGPUS: &str = "ngpus";
/// UUID of the GPU of a vnode.
pub const UUID: &str = "gpuos_uuid";
/// Set of GPUs with NVLink to each other.
pub const NVLINK: &str = "gpuos_nvlink";
/// Leaf switch of a vnode's host.
pub const LEAF: &str = "gpuos_leaf";
/// NUMA node of the GPU of a vnode.
pub const NUMA: &str = "gpuos_numa";
/// How often a job makes checkpoints.
pub const CHECKPOINT: &str = "gpuos_checkpoint";
/// Hosts on which a job has run, where its checkpoints may be. PBS keeps it with the job, and users cannot change it.
pub const HOSTS: &str = "gpuos_hosts";
/// How often the start of a job was put off. PBS keeps it with the job, and users cannot change it.
pub const VETOES: &str = "gpuos_vetoes";

/// Slices of GPUs that a job asks for.
pub const MIG: &str = "gpuos_mig";
/// A part of a GPU that a job asks for, beside other jobs.
pub const SHARE: &str = "gpuos_share";
/// Memory for each GPU of a job, in more than the GPU's own.
pub const MEM: &str = "gpuos_mem";
/// Power cap of the GPUs of a job.
pub const POWER: &str = "gpuos_power";
/// Their clocks.
pub const CLOCKS: &str = "gpuos_clocks";
/// MPS for a job.
pub const MPS: &str = "gpuos_mps";
/// Compute slices of the GPU of a vnode, which PBS counts.
pub const MIG_COMPUTE: &str = "gpuos_mig_compute";
/// Its memory slices.
pub const MIG_MEMORY: &str = "gpuos_mig_memory";
/// Its kind in gpuos.toml, which says how it can be divided.
pub const MIG_BOARD: &str = "gpuos_mig_board";
/// A name that no other vnode has: what has it in common is of one GPU.
pub const MIG_GPU: &str = "gpuos_mig_gpu";
/// Parts of the GPU of a vnode, which PBS counts: each is one job's.
pub const SHARE_PARTS: &str = "gpuos_share_parts";
/// A name that no other vnode has, as [`MIG_GPU`], of a GPU that jobs share.
pub const SHARE_GPU: &str = "gpuos_share_gpu";

/// What of a chunk's memory was added for its GPUs. It is to be said of chunks alone: no vnode has it, and pbs_sched does not look at it.
pub const MEM_BEYOND: &str = "gpuos_mem_beyond";

/// All of them: what users write, then what vnodes and jobs are given. `n` and `h` make a count of a host's vnodes, `m` tells
/// moms, `r` is what users may read only.
pub const RESOURCES: [Resource; 23] = [
    of_jobs("gpuos_topology", "gpuos-topology"),
    of_jobs("gpuos_placement", "gpuos-placement"),
    of_jobs(MIG, "gpuos-mig"),
    of_jobs(SHARE, "gpuos-share"),
    of_jobs(MEM, "gpuos-mem"),
    of_jobs(POWER, "gpuos-power"),
    of_jobs(CLOCKS, "gpuos-clocks"),
    of_jobs(MPS, "gpuos-mps"),
    of_jobs(CHECKPOINT, "gpuos-checkpoint"),
    Resource {
        name: NGPUS,
        kind: "long",
        flags: "nh",
        option: "",
    },
    of_vnodes(UUID, "string"),
    of_vnodes(NVLINK, "string"),
    of_vnodes(LEAF, "string"),
    of_vnodes(NUMA, "string"),
    Resource {
        flags: "nh",
        ..of_vnodes(MIG_COMPUTE, "long")
    },
    Resource {
        flags: "nh",
        ..of_vnodes(MIG_MEMORY, "long")
    },
    of_vnodes(MIG_BOARD, "string"),
    of_vnodes(MIG_GPU, "string"),
    Resource {
        flags: "nh",
        ..of_vnodes(SHARE_PARTS, "long")
    },
    of_vnodes(SHARE_GPU, "string"),
    of_vnodes(MEM_BEYOND, "string"),
    Resource {
        name: VETOES,
        kind: "long",
        flags: "r",
        option: "",
    },
    Resource {
        name: HOSTS,
        kind: "string",
        flags: "rm",
        option: "",
    },
];

/// Those that users write with `-l`.
pub fn of_users() -> impl Iterator<Item = &'static Resource> {
    RESOURCES
        .iter()
        .filter(|resource| !resource.option.is_empty())
}
