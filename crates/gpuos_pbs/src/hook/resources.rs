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
/// How often the start of a job was put off. PBS keeps it with the job, and users cannot change it.
pub const VETOES: &str = "gpuos_vetoes";

/// All of them: what users write, then what vnodes and jobs are given. `n` and `h` make a count of a host's vnodes, `m` tells
/// moms, `r` is what users may read only.
pub const RESOURCES: [Resource; 12] = [
    of_jobs("gpuos_topology", "gpuos-topology"),
    of_jobs("gpuos_placement", "gpuos-placement"),
    of_jobs("gpuos_mig", "gpuos-mig"),
    of_jobs("gpuos_share", "gpuos-share"),
    of_jobs("gpuos_power", "gpuos-power"),
    of_jobs("gpuos_checkpoint", "gpuos-checkpoint"),
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
        name: VETOES,
        kind: "long",
        flags: "r",
        option: "",
    },
];

/// Those that users write with `-l`.
pub fn of_users() -> impl Iterator<Item = &'static Resource> {
    RESOURCES
        .iter()
        .filter(|resource| !resource.option.is_empty())
}
