//! Metrics that a poll of a GPU gives, as a table.

use gpuos_core::health::Sample;

/// What to tell of a poll; `None` where the board or the driver does not.
pub type Get = fn(&Sample) -> Option<f64>;

/// A metric of a GPU.
pub struct Metric {
    /// Name without its unit, and without `_total`.
    pub name: &'static str,
    /// Unit; empty for counts and flags.
    pub unit: &'static str,
    /// A sentence.
    pub help: &'static str,
    /// Whether it only grows.
    pub counter: bool,
    /// A label more than every GPU's; empty: none.
    pub label: &'static str,
    /// Its values, by the value of that label.
    pub values: &'static [(&'static str, Get)],
}

const fn gauge(
    name: &'static str,
    unit: &'static str,
    help: &'static str,
    values: &'static [(&'static str, Get); 1],
) -> Metric {
    Metric {
        name,
        unit,
        help,
        counter: false,
        label: "",
        values,
    }
}

const fn counter(
    name: &'static str,
    unit: &'static str,
    help: &'static str,
    label: &'static str,
    values: &'static [(&'static str, Get)],
) -> Metric {
    Metric {
        name,
        unit,
        help,
        counter: true,
        label,
        values,
    }
}

fn count(count: Option<u64>) -> Option<f64> {
    count.map(|count| count as f64)
}

fn number(count: Option<u32>) -> Option<f64> {
    count.map(f64::from)
}

fn flag(set: Option<bool>) -> Option<f64> {
    set.map(|set| if set { 1.0 } else { 0.0 })
}

fn mebibytes(count: Option<u64>) -> Option<f64> {
    count.map(|count| count as f64 * 1_048_576.0)
}

fn megahertz(count: Option<u32>) -> Option<f64> {
    count.map(|count| f64::from(count) * 1e6)
}

fn nanoseconds(count: Option<u64>) -> Option<f64> {
    count.map(|count| count as f64 / 1e9)
}

fn thousandths(count: Option<u32>) -> Option<f64> {
    count.map(|count| f64::from(count) / 1000.0)
}

fn pages(sample: &Sample) -> Option<f64> {
    let counts = [sample.pages_single_bit, sample.pages_double_bit];
    let known = counts.iter().any(Option::is_some);
    known.then(|| counts.iter().flatten().map(|count| f64::from(*count)).sum())
}

/// On a board without NVLink there is nothing to tell.
fn links(sample: &Sample, links: u64) -> Option<f64> {
    (sample.nvlinks != 0).then(|| f64::from(links.count_ones()))
}

/// Prefix of all names is `gpuos_gpu_`.
pub const METRICS: &[Metric] = &[
    gauge(
        "utilization",
        "ratio",
        "Part of the time in which a kernel ran, 0 to 1; not on a GPU divided by MIG",
        &[("", |s| {
            number(s.busy_percent).map(|percent| percent / 100.0)
        })],
    ),
    gauge(
        "memory_used",
        "bytes",
        "GPU memory in use",
        &[("", |s| mebibytes(s.memory_used_mib))],
    ),
    gauge(
        "memory_total",
        "bytes",
        "GPU memory",
        &[("", |s| mebibytes(s.memory_total_mib))],
    ),
    gauge(
        "temperature",
        "celsius",
        "Temperature of the GPU",
        &[("", |s| number(s.celsius))],
    ),
    gauge(
        "memory_temperature",
        "celsius",
        "Temperature of the GPU's memory",
        &[("", |s| number(s.memory_celsius))],
    ),
    gauge(
        "slowdown_temperature",
        "celsius",
        "Temperature from which the GPU slows down",
        &[("", |s| number(s.slowdown_celsius))],
    ),
    gauge(
        "power",
        "watts",
        "Power drawn",
        &[("", |s| thousandths(s.power_mw))],
    ),
    gauge(
        "power_limit",
        "watts",
        "Power limit in force",
        &[("", |s| thousandths(s.power_limit_mw))],
    ),
    gauge(
        "sm_clock",
        "hertz",
        "Clock of the multiprocessors",
        &[("", |s| megahertz(s.sm_mhz))],
    ),
    gauge(
        "memory_clock",
        "hertz",
        "Clock of the memory",
        &[("", |s| megahertz(s.memory_mhz))],
    ),
    counter(
        "thermal_slowdown",
        "seconds",
        "Time in which hardware held clocks down because of heat, since the driver was loaded",
        "",
        &[("", |s| nanoseconds(s.thermal_ns))],
    ),
    counter(
        "power_brake",
        "seconds",
        "Time in which the power brake held clocks down, since the driver was loaded",
        "",
        &[("", |s| nanoseconds(s.power_brake_ns))],
    ),
    counter(
        "energy",
        "joules",
        "Energy used since the driver was loaded",
        "",
        &[("", |s| s.energy_mj.map(|mj| mj as f64 / 1000.0))],
    ),
    counter(
        "ecc_errors",
        "",
        "ECC errors of memory since the last reset",
        "severity",
        &[
            ("corrected", |s| count(s.ecc_corrected)),
            ("uncorrected", |s| count(s.ecc_uncorrected)),
        ],
    ),
    counter(
        "ecc_lifetime_errors",
        "",
        "ECC errors of memory in the life of the board",
        "severity",
        &[
            ("corrected", |s| count(s.ecc_corrected_ever)),
            ("uncorrected", |s| count(s.ecc_uncorrected_ever)),
        ],
    ),
    gauge(
        "sram_threshold_exceeded",
        "",
        "1 when uncorrected errors of on-chip memory passed NVIDIA's threshold for replacement",
        &[("", |s| flag(s.sram_threshold))],
    ),
    counter(
        "remapped_rows",
        "",
        "Memory rows remapped in the life of the board, by the kind of error that caused it",
        "cause",
        &[
            ("corrected", |s| number(s.rows_corrected)),
            ("uncorrected", |s| number(s.rows_uncorrected)),
        ],
    ),
    gauge(
        "row_remap_pending",
        "",
        "1 when a memory row is remapped at the next reset",
        &[("", |s| flag(s.rows_pending))],
    ),
    gauge(
        "row_remap_failed",
        "",
        "1 when a memory row could not be remapped",
        &[("", |s| flag(s.rows_failed))],
    ),
    gauge(
        "retired_pages",
        "",
        "Memory pages retired, on boards before Ampere",
        &[("", pages)],
    ),
    gauge(
        "retired_page_pending",
        "",
        "1 when a memory page is retired at the next reset",
        &[("", |s| flag(s.pages_pending))],
    ),
    gauge(
        "nvlinks",
        "",
        "NVLinks that should be up",
        &[("", |s| links(s, s.nvlinks))],
    ),
    gauge(
        "nvlinks_down",
        "",
        "NVLinks that are down",
        &[("", |s| links(s, s.nvlinks_down))],
    ),
    counter(
        "nvlink_errors",
        "",
        "Errors over all NVLinks; from NVLink 5 on crc counts packets and replay symbols with errors",
        "kind",
        &[
            ("crc", |s| count(s.nvlink_crc)),
            ("replay", |s| count(s.nvlink_replays)),
            ("recovery", |s| count(s.nvlink_recoveries)),
        ],
    ),
    counter(
        "pcie_replays",
        "",
        "PCIe replays",
        "",
        &[("", |s| count(s.pcie_replays))],
    ),
    gauge(
        "pcie_generation",
        "",
        "PCIe generation that the link runs at; lower while the GPU is idle",
        &[("", |s| number(s.pcie_generation))],
    ),
    gauge(
        "pcie_lanes",
        "",
        "PCIe lanes that the link runs with",
        &[("", |s| number(s.pcie_width))],
    ),
    gauge(
        "pcie_lanes_max",
        "",
        "PCIe lanes that board and slot can do",
        &[("", |s| number(s.pcie_width_most))],
    ),
    gauge(
        "processes",
        "",
        "Processes that compute on the GPU",
        &[("", |s| number(s.processes))],
    ),
];

/// Why clocks are lower than they could be: NVML's `nvmlClocksEventReason*` bits and their labels.
pub const CLOCK_REASONS: [(&str, u64); 9] = [
    ("gpu_idle", 0x1),
    ("applications_clocks", 0x2),
    ("sw_power_cap", 0x4),
    ("hw_slowdown", 0x8),
    ("sync_boost", 0x10),
    ("sw_thermal_slowdown", 0x20),
    ("hw_thermal_slowdown", 0x40),
    ("hw_power_brake", 0x80),
    ("display_clocks", 0x100),
];
