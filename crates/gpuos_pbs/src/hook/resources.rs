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
/// What a host shows of its GPUs, on its own vnode: [`crate::published`].
pub const SHOWN: &str = "gpuos_host";
/// The site's own number of GPUs of a vnode, and what gpuos has made of it, as `8>7`; a vnode on which nothing was changed has none.
pub const SITE_NGPUS: &str = "gpuos_ngpus";
/// How many free GPUs of a host at most are linked with each other: compared, and not counted.
pub const LINKED: &str = "gpuos_linked";
/// Memory slices of the largest profile for which a GPU of the host has room, likewise.
pub const MIG_FITS: &str = "gpuos_mig_fits";
/// Free parts of a shared GPU of the host, at most, likewise.
pub const SHARE_FITS: &str = "gpuos_share_fits";
/// Set of GPUs with NVLink to each other.
pub const NVLINK: &str = "gpuos_nvlink";
/// Leaf switch of a vnode's host.
pub const LEAF: &str = "gpuos_leaf";
/// How often a job makes checkpoints.
pub const CHECKPOINT: &str = "gpuos_checkpoint";
/// Hosts on which a job has run, where its checkpoints may be. PBS keeps it with the job, and users cannot change it.
pub const HOSTS: &str = "gpuos_hosts";
/// How often the start of a job was put off. PBS keeps it with the job, and users cannot change it.
pub const VETOES: &str = "gpuos_vetoes";

/// How near each other the GPUs of a job are to be.
pub const TOPOLOGY: &str = "gpuos_topology";
/// The rule by which a planner places a job.
pub const PLACEMENT: &str = "gpuos_placement";
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
/// Compute slices of a host's divided GPUs, which PBS counts.
pub const MIG_COMPUTE: &str = "gpuos_mig_compute";
/// Their memory slices.
pub const MIG_MEMORY: &str = "gpuos_mig_memory";
/// Their kind in gpuos.toml, which says how they can be divided.
pub const MIG_BOARD: &str = "gpuos_mig_board";
/// Parts of a host's shared GPUs, which PBS counts: each is one job's.
pub const SHARE_PARTS: &str = "gpuos_share_parts";

/// What of a chunk's memory was added for its GPUs. It is to be said of chunks alone: no vnode has it, and pbs_sched does not look at it.
pub const MEM_BEYOND: &str = "gpuos_mem_beyond";

/// All of them: what users write, then what vnodes and jobs are given. `n` and `h` make a count of a host's vnodes, `m` tells
/// moms, `r` is what users may read only.
pub const RESOURCES: [Resource; 24] = [
    of_jobs(TOPOLOGY, "gpuos-topology"),
    of_jobs(PLACEMENT, "gpuos-placement"),
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
    of_vnodes(SHOWN, "string"),
    of_vnodes(SITE_NGPUS, "string"),
    of_vnodes(LINKED, "long"),
    of_vnodes(MIG_FITS, "long"),
    of_vnodes(SHARE_FITS, "long"),
    of_vnodes(NVLINK, "string"),
    of_vnodes(LEAF, "string"),
    Resource {
        flags: "nh",
        ..of_vnodes(MIG_COMPUTE, "long")
    },
    Resource {
        flags: "nh",
        ..of_vnodes(MIG_MEMORY, "long")
    },
    of_vnodes(MIG_BOARD, "string"),
    Resource {
        flags: "nh",
        ..of_vnodes(SHARE_PARTS, "long")
    },
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

/// Resources of releases that made a vnode of each GPU: they are taken out.
pub const FORMER: [&str; 4] = [
    "gpuos_uuid",
    "gpuos_numa",
    "gpuos_mig_gpu",
    "gpuos_share_gpu",
];

/// Those that users write with `-l`.
pub fn of_users() -> impl Iterator<Item = &'static Resource> {
    RESOURCES
        .iter()
        .filter(|resource| !resource.option.is_empty())
}
