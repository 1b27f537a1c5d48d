//! Which crates there are, and which of them each may use.

/// What only thinks, from the ground up: no unsafe code, no file, clock, thread or log. Each may use those before it, but
/// for gpuos_core, the life of a node, which has nothing to do with where jobs go.
pub const THINKING: [&str; 9] = [
    "gpuos_model",
    "gpuos_placement",
    "gpuos_core",
    "gpuos_checkpoint",
    "gpuos_memory",
    "gpuos_config",
    "gpuos_workload",
    "gpuos_pbs",
    "gpuos_wlm",
];

/// For each crate, the crates of this workspace that it may use. None may use a plugin.
pub const MAY_USE: [(&str, &[&str]); 37] = [
    ("gpuos_model", &[]),
    ("gpuos_placement", &["gpuos_model"]),
    ("gpuos_core", &["gpuos_model"]),
    (
        "gpuos_config",
        &[
            "gpuos_model",
            "gpuos_placement",
            "gpuos_core",
            "gpuos_checkpoint",
        ],
    ),
    ("gpuos_workload", &["gpuos_model", "gpuos_core"]),
    (
        "gpuos_pbs",
        &[
            "gpuos_model",
            "gpuos_placement",
            "gpuos_core",
            "gpuos_config",
        ],
    ),
    (
        "gpuos_wlm",
        &["gpuos_model", "gpuos_placement", "gpuos_config"],
    ),
    // Its tests run the command, which the last has built.
    ("pbs_hook", &["gpuos_pbs", "gpuos_tests"]),
    ("gpuos_checkpoint", &["gpuos_model", "gpuos_core"]),
    ("gpuos_memory", &["gpuos_model"]),
    (
        "gpuos_store",
        &["gpuos_model", "gpuos_core", "gpuos_checkpoint"],
    ),
    (
        "gpuos_mover",
        &[
            "gpuos_model",
            "gpuos_core",
            "gpuos_checkpoint",
            "gpuos_store",
        ],
    ),
    (
        "gpuos_link",
        &["gpuos_core", "gpuos_checkpoint", "gpuos_host"],
    ),
    ("gpuos_daemon", &["gpuos_core", "gpuos_host"]),
    (
        "gpuos_moverd",
        &[
            "gpuos_model",
            "gpuos_core",
            "gpuos_config",
            "gpuos_workload",
            "gpuos_checkpoint",
            "gpuos_store",
            "gpuos_mover",
            "gpuos_memory",
            "gpuos_link",
            "gpuos_host",
            "gpuos_daemon",
        ],
    ),
    ("gpuos_program", &[]),
    ("gpuos_driver", &[]),
    // The simulated driver is what its tests run on.
    (
        "gpuos_fabric",
        &["gpuos_driver", "gpuos_memory", "gpuos_model", "gpuos_cuda"],
    ),
    ("libgpuos", &["gpuos_program", "gpuos_fabric", "gpuos_cuda"]),
    ("libscr", &["gpuos_program"]),
    // The simulated driver is what its tests run on.
    (
        "gpuos_preload",
        &["gpuos_driver", "gpuos_memory", "gpuos_cuda"],
    ),
    (
        "slurm_ffi",
        &["gpuos_model", "gpuos_placement", "gpuos_config"],
    ),
    ("select_gpuos", &THINKING_AND_SLURM),
    ("spank_gpuos", &THINKING_AND_SLURM),
    ("job_submit_gpuos", &THINKING_AND_SLURM),
    ("gres_gpuos", &["slurm_ffi", "gpuos_model"]),
    ("gpuos_host", &THINKING),
    (
        "gpuos_lab",
        &["gpuos_model", "gpuos_placement", "gpuos_config"],
    ),
    ("gpuos_layout", &[]),
    ("gpuos_sim", &["gpuos_model", "gpuos_placement"]),
    (
        "gpuos_cli",
        &[
            "gpuos_model",
            "gpuos_placement",
            "gpuos_core",
            "gpuos_config",
            "gpuos_workload",
            "gpuos_host",
            "gpuos_lab",
            "gpuos_sim",
            "gpuos_memory",
            "gpuos_pbs",
            "gpuos_wlm",
        ],
    ),
    (
        "gpuos_tests",
        &[
            "gpuos_model",
            "gpuos_placement",
            "gpuos_core",
            "gpuos_config",
            "gpuos_host",
            "gpuos_lab",
            "gpuos_driver",
        ],
    ),
    (
        "gpuos_bench",
        &[
            "gpuos_model",
            "gpuos_placement",
            "gpuos_host",
            "gpuos_lab",
            "gpuos_sim",
        ],
    ),
    ("gpuos_decisions", &["gpuos_model", "gpuos_placement"]),
    (
        "gpuos_nvml",
        &["gpuos_model", "gpuos_core", "gpuos_config", "gpuos_host"],
    ),
    // Its tests alone: it has structures of its own.
    ("gpuos_cuda", &["gpuos_nvml", "gpuos_driver"]),
    (
        "gpuosd",
        &[
            "gpuos_model",
            "gpuos_placement",
            "gpuos_core",
            "gpuos_config",
            "gpuos_workload",
            "gpuos_memory",
            "gpuos_host",
            "gpuos_daemon",
            // What its tests run on.
            "gpuos_pbs",
            "gpuos_driver",
            "gpuos_nvml",
            "gpuos_cuda",
            "gpuos_preload",
            "gpuos_moverd",
        ],
    ),
];

/// What plugins may use that do more than one thing.
const THINKING_AND_SLURM: [&str; 5] = [
    "slurm_ffi",
    "gpuos_model",
    "gpuos_placement",
    "gpuos_core",
    "gpuos_config",
];
