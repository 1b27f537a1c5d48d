//! `scontrol -d show nodes`.

use gpuos_config::options::parse_gres;
use gpuos_core::health::ExtraPart;
use gpuos_model::gpuset::{GpuSet, MAX_GPUS};

use super::text::{Record, mebibytes};

/// Fields that are read. Slurm prints each of them once.
const KEYS: &[&str] = &[
    "NodeName",
    "State",
    "Reason",
    "Sockets",
    "CoresPerSocket",
    "CPUAlloc",
    "CPUEfctv",
    "CPUTot",
    "RealMemory",
    "AllocMem",
    "Gres",
    "GresUsed",
    "ActiveFeatures",
    "Partitions",
    "Version",
    "Extra",
    "Weight",
];

/// One node as slurmctld has it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NodeRecord {
    /// Name.
    pub name: String,
    /// State and its flags, upper case: `IDLE`, `MIXED`, `DRAIN`, …
    pub states: Vec<String>,
    /// Why an administrator or slurmctld set the state.
    pub reason: String,
    /// Sockets, and cores on each.
    pub sockets: u16,
    /// Cores per socket.
    pub cores_per_socket: u16,
    /// CPUs that jobs can get, and those allocated.
    pub cpus: u32,
    /// CPUs allocated.
    pub cpus_allocated: u32,
    /// Memory in MiB, and what of it is allocated.
    pub memory_mib: u64,
    /// Memory allocated, in MiB.
    pub memory_allocated_mib: u64,
    /// GPU types and their counts, in the order of the node's GRES list; an empty type is none.
    pub gpus: Vec<(String, usize)>,
    /// Types and counts of GRES `gpuos`: memory slices of GPUs in MIG mode.
    pub slices: Vec<(String, usize)>,
    /// All its GRES, as Slurm shows them.
    pub gres: String,
    /// GPUs allocated, as a whole or in part, by index.
    pub gpus_used: GpuSet,
    /// Memory slices allocated: bits of GRES `gpuos`.
    pub slices_used: GpuSet,
    /// MIG-switchable GPUs of which jobs have slices, by index: nobody gets one whole. [`Site::read`](crate::slurm::site::Site::read) knows
    /// them.
    pub gpus_divided: GpuSet,
    /// Features that are active.
    pub features: Vec<String>,
    /// Partitions that it is in.
    pub partitions: Vec<String>,
    /// Slurm's release on the node, empty when slurmd never registered.
    pub release: String,
    /// Free text that administrators keep on the node.
    pub extra: String,
    /// Where the node's own line puts it in topologies (25.05 and later); empty where it does not.
    pub topology: String,
    /// Slurm's weight: nodes with the lowest are taken first.
    pub weight: u64,
}

impl NodeRecord {
    /// All nodes in the text that scontrol printed.
    pub fn parse_all(text: &str) -> Vec<NodeRecord> {
        Record::parse_once(text, "NodeName", KEYS)
            .iter()
            .map(NodeRecord::from_record)
            .collect()
    }

    fn from_record(record: &Record) -> NodeRecord {
        let number = |key: &str| record.number(key).unwrap_or(0);
        let list = |key: &str| -> Vec<String> {
            let text = record.text(key);
            text.split(',')
                .filter(|s| !s.is_empty())
                .map(str::to_string)
                .collect()
        };
        let gpus = counts(&record.text("Gres"), "gpu", MAX_GPUS);
        let total = gpus.iter().map(|(_, n)| n).sum();
        NodeRecord {
            name: record.text("NodeName"),
            states: record
                .text("State")
                .split('+')
                .map(|s| {
                    s.trim_end_matches(['*', '~', '#', '!', '%', '$', '@', '^', '-'])
                        .to_uppercase()
                })
                .collect(),
            reason: record.text("Reason"),
            sockets: number("Sockets") as u16,
            cores_per_socket: number("CoresPerSocket") as u16,
            cpus: record
                .number("CPUEfctv")
                .or(record.number("CPUTot"))
                .unwrap_or(0) as u32,
            cpus_allocated: number("CPUAlloc") as u32,
            memory_mib: record.get("RealMemory").and_then(mebibytes).unwrap_or(0),
            memory_allocated_mib: record.get("AllocMem").and_then(mebibytes).unwrap_or(0),
            gpus_used: gpus_used(&record.text("GresUsed"), total),
            gpus,
            slices_used: slices_used(&record.text("GresUsed")),
            gpus_divided: GpuSet::EMPTY,
            slices: counts(&record.text("Gres"), "gpuos", MAX_SLICES),
            gres: record.text("Gres"),
            features: list("ActiveFeatures"),
            partitions: list("Partitions"),
            release: record.text("Version"),
            extra: record.text("Extra"),
            topology: record.text("Topology"),
            weight: number("Weight"),
        }
    }

    /// How many GPUs Slurm counts on the node.
    pub fn gpu_count(&self) -> usize {
        self.gpus.iter().map(|(_, count)| count).sum()
    }

    /// The GPUs of a type, by index: Slurm numbers them in the order of the node's GRES list.
    /// `None` asks for all types.
    pub fn gpus_of_type(&self, gres_type: Option<&str>) -> GpuSet {
        let mut set = GpuSet::EMPTY;
        let mut next = 0;
        for (name, count) in &self.gpus {
            if gres_type.is_none_or(|wanted| wanted.eq_ignore_ascii_case(name)) {
                set = (next..next + count).fold(set, GpuSet::with);
            }
            next += count;
        }
        set
    }

    /// What gpuosd says of the GPUs; what cannot be read of it counts as "all are out", as in slurmctld.
    fn part(&self) -> ExtraPart {
        ExtraPart::read(&self.extra).0
    }

    /// GPUs out of service, by index: no job gets them.
    pub fn gpus_out(&self) -> GpuSet {
        let out: GpuSet = self.part().out.into_iter().collect();
        out.and(GpuSet::first(self.gpu_count()))
    }

    /// Degraded GPUs, by index: jobs get them last.
    pub fn gpus_degraded(&self) -> GpuSet {
        let degraded: GpuSet = self.part().degraded.into_iter().collect();
        degraded.and(GpuSet::first(self.gpu_count()))
    }

    /// Whether the node is short of host memory, as its gpuosd says.
    pub fn is_short(&self) -> bool {
        self.part().short
    }

    /// The GPUs of a type that jobs can have, now or when others have ended.
    pub fn gpus_in_service(&self, gres_type: Option<&str>) -> GpuSet {
        self.gpus_of_type(gres_type).minus(self.gpus_out())
    }

    /// The GPUs of a type that a job could have now.
    pub fn gpus_free(&self, gres_type: Option<&str>) -> GpuSet {
        let free = self.gpus_in_service(gres_type).minus(self.gpus_used);
        free.minus(self.gpus_divided)
    }

    /// Whether Slurm can start jobs here: up, and neither drained nor failing nor answering
    /// no more. Nodes in power saving count: Slurm wakes them.
    pub fn is_up(&self) -> bool {
        const OUT: &[&str] = &[
            "DOWN",
            "DRAIN",
            "DRAINED",
            "DRAINING",
            "FAIL",
            "FAILING",
            "UNKNOWN",
            "FUTURE",
            "NOT_RESPONDING",
            "NO_RESPOND",
            "MAINT",
            "INVALID_REG",
            "INVAL",
            "ERROR",
            "REBOOT_ISSUED",
            "POWERING_DOWN",
            "POWER_DOWN",
            "BLOCKED",
        ];
        !self
            .states
            .iter()
            .any(|state| OUT.contains(&state.as_str()))
    }

    /// Whether a reservation holds the node.
    pub fn is_reserved(&self) -> bool {
        self.states.iter().any(|state| state == "RESERVED")
    }

    /// State as one word for a table: `idle`, `mixed`, `idle+drain`.
    pub fn state_text(&self) -> String {
        self.states.join("+").to_lowercase()
    }
}

/// More slices than any node has.
const MAX_SLICES: usize = MAX_GPUS * 16;

/// Types and counts of one GRES in a list such as `gpu:h100:8(S:0-1),mps:100`, each count up to `most`.
fn counts(list: &str, gres: &str, most: usize) -> Vec<(String, usize)> {
    let requests = parse_gres("Gres", list).unwrap_or_default();
    let mut counts: Vec<(String, usize)> = Vec::new();
    for request in requests.into_iter().filter(|r| r.name == gres) {
        let name = request.gres_type.unwrap_or_default();
        let count = usize::try_from(request.count).unwrap_or(0).min(most);
        match counts.iter_mut().find(|(known, _)| *known == name) {
            Some((_, sum)) => *sum += count,
            None => counts.push((name, count)),
        }
    }
    counts
}

/// The indices in `gpu:h100:2(IDX:0-1),gpu:a100:0(IDX:N/A)`. Without indices (no `File=` in
/// gres.conf) the lowest ones count as used: only the number is true then.
fn gpus_used(used: &str, total: usize) -> GpuSet {
    let mut set = GpuSet::EMPTY;
    for entry in split_entries(used) {
        // Nobody gets a whole GPU of which others have shards.
        if entry.starts_with("shard:") {
            set = GpuSet(set.0 | shared(entry).unwrap_or(GpuSet::EMPTY).0);
        }
        if !entry.starts_with("gpu:") && entry != "gpu" {
            continue;
        }
        match indices(entry) {
            Some(indices) => set = GpuSet(set.0 | indices.0),
            None => {
                let count = entry
                    .rsplit(':')
                    .next()
                    .and_then(|n| n.parse().ok())
                    .unwrap_or(0);
                let free = GpuSet::first(total).minus(set);
                set = free.iter().take(count).fold(set, GpuSet::with);
            }
        }
    }
    set
}

/// The indices in `gpuos:h100-80gb:4(IDX:12-15)`.
fn slices_used(used: &str) -> GpuSet {
    let entries = split_entries(used).into_iter();
    let slices = entries.filter(|entry| entry.starts_with("gpuos:"));
    let all = slices.filter_map(indices);
    all.fold(GpuSet::EMPTY, |all, one| GpuSet(all.0 | one.0))
}

/// The entries of a GRES list, cut at commas outside parentheses.
pub(super) fn split_entries(list: &str) -> Vec<&str> {
    let (mut entries, mut start, mut depth) = (Vec::new(), 0, 0i32);
    for (at, byte) in list.bytes().enumerate() {
        match byte {
            b'(' => depth += 1,
            b')' => depth -= 1,
            b',' if depth <= 0 => {
                entries.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    entries.push(&list[start..]);
    entries.retain(|entry| !entry.is_empty());
    entries
}

/// The GPUs of which shards are used by an entry for GRES `shard`: `shard:h100:2(IDX:0,4)` on 22.05, later
/// `shard:h100:3(2/4,0/4,-/4,1/4)` with what is used of each. `None` when the entry does not name them.
pub(super) fn shared(entry: &str) -> Option<GpuSet> {
    if let Some(indices) = indices(entry) {
        return Some(indices);
    }
    let (_, rest) = entry.split_once('(')?;
    let list: Vec<&str> = rest.split(')').next()?.split(',').collect();
    if list.len() > MAX_GPUS || list.iter().any(|one| !one.contains('/')) {
        return None;
    }
    let used = |(gpu, one): (usize, &&str)| {
        let count = one.split('/').next()?.parse::<u64>().ok()?;
        (count > 0).then_some(gpu)
    };
    let used = list.iter().enumerate().filter_map(used);
    Some(used.fold(GpuSet::EMPTY, GpuSet::with))
}

/// The set in `…(IDX:0-1,4)`; `None` when the entry has no indices.
pub(super) fn indices(entry: &str) -> Option<GpuSet> {
    let (_, rest) = entry.split_once("(IDX:")?;
    let list = rest.split(')').next()?;
    let mut set = GpuSet::EMPTY;
    for range in list.split(',').filter(|range| *range != "N/A") {
        let (low, high) = range.split_once('-').unwrap_or((range, range));
        let (Ok(low), Ok(high)) = (low.parse::<usize>(), high.parse::<usize>()) else {
            continue;
        };
        set = (low..=high.min(MAX_GPUS)).fold(set, GpuSet::with);
    }
    Some(set)
}
