//! `scontrol -d show job`.

use gpuos_config::options::parse_count;
use gpuos_model::gpuset::GpuSet;
use gpuos_model::hostlist::expand;

use super::node::{self, indices, split_entries};
use super::preempt::seconds;
use super::rows::{Row, waiting};
use super::text::{Record, leading_number, mebibytes};

/// What a job has on some nodes (all alike).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Allocation {
    /// The nodes.
    pub nodes: Vec<String>,
    /// GPUs on each of them, by index; empty when Slurm names none.
    pub gpus: GpuSet,
    /// How many GPUs on each of them.
    pub gpu_count: u32,
    /// Memory slices of GPUs on each of them: bits of GRES `gpuos`.
    pub slices: GpuSet,
    /// GPUs of which it has shards on each of them: others may have them too.
    pub shared: GpuSet,
    /// CPUs on each of them.
    pub cpus: u32,
    /// Memory on each of them, in MiB.
    pub memory_mib: u64,
    /// Other GRES on each of them, by name and count.
    pub others: Vec<(String, u64)>,
}

/// One job as slurmctld has it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Job {
    /// Number of the job.
    pub id: u32,
    /// Its name as users write it: `17`, `4_1` for a task of an array, `19+1` for a component
    /// of a heterogeneous job.
    pub label: String,
    /// Tasks of an array that still wait together, for example `1-3%1`.
    pub array_tasks: String,
    /// Job name.
    pub name: String,
    /// User.
    pub user: String,
    /// Number of the user.
    pub uid: u32,
    /// Account; empty when it has none.
    pub account: String,
    /// `PENDING`, `RUNNING`, …
    pub state: String,
    /// Slurm's reason or gpuos's own; empty when there is none.
    pub reason: String,
    /// Jobs that it waits for.
    pub dependency: String,
    /// Partitions.
    pub partitions: Vec<String>,
    /// QOS; empty when it has none.
    pub qos: String,
    /// Reservation, if any.
    pub reservation: String,
    /// Nodes that it has.
    pub nodes: Vec<String>,
    /// The node that runs its batch script; empty when it has none.
    pub batch_host: String,
    /// Nodes that backfill has planned for it.
    pub planned_nodes: Vec<String>,
    /// `--nodelist`.
    pub required_nodes: Vec<String>,
    /// `--exclude`.
    pub excluded_nodes: Vec<String>,
    /// Fewest nodes.
    pub min_nodes: u32,
    /// Most nodes.
    pub max_nodes: u32,
    /// Nodes that its request counts at least, where Slurm shows that beside those that it has; else 1.
    pub asked_nodes: u32,
    /// Tasks.
    pub tasks: u32,
    /// Tasks per node; 0 = not given.
    pub tasks_per_node: u32,
    /// `--sockets-per-node`, 0 = not said.
    pub sockets_per_node: u32,
    /// CPUs of one task.
    pub cpus_per_task: u32,
    /// CPUs needed on each node at least.
    pub min_cpus_node: u32,
    /// Memory needed on each node, in MiB; 0 = not given so.
    pub memory_node_mib: u64,
    /// Memory that each CPU brings along, in MiB; 0 = not given so.
    pub memory_cpu_mib: u64,
    /// `--constraint`.
    pub features: String,
    /// Licences.
    pub licenses: String,
    /// GRES for each node, task and socket and for the whole job, as Slurm writes them.
    pub tres_per_node: String,
    /// See [`Job::tres_per_node`].
    pub tres_per_task: String,
    /// See [`Job::tres_per_node`].
    pub tres_per_socket: String,
    /// See [`Job::tres_per_node`].
    pub tres_per_job: String,
    /// `--cpus-per-gpu` as Slurm writes it.
    pub cpus_per_tres: String,
    /// Memory for each unit of a TRES that it asks for, as Slurm shows it; empty when it asks for none.
    pub mem_per_tres: String,
    /// Whether it takes whole nodes.
    pub exclusive: bool,
    /// Whether Slurm would requeue it: a batch job that allows it.
    pub may_requeue: bool,
    /// How often it was requeued.
    pub restarts: u32,
    /// Start, or expected start, in local time (`2026-11-20T20:40:59`); empty when unknown.
    pub start: String,
    /// End or latest end in local time; empty when unknown. Of one job alone ([`act`](super::act)) it is seconds since 1970.
    pub end: String,
    /// When Slurm began to preempt it, in the same way; empty when it has not, or does not say.
    pub preempted: String,
    /// When it was submitted, or requeued.
    pub submitted: String,
    /// When it may start at the earliest.
    pub eligible: String,
    /// Time limit.
    pub time_limit: String,
    /// How long it has run, in seconds.
    pub run_seconds: u64,
    /// What it has, by node.
    pub allocations: Vec<Allocation>,
    /// Whether it has shards or MPS shares of GPUs that `allocations` does not name.
    pub shares: bool,
    /// Where gpuos notes its decision.
    pub system_comment: String,
    /// What operators and gpuosd wrote about it.
    pub admin_comment: String,
    /// Slurm's own id of it, which may name its control groups; empty before 26.05.
    pub sluid: String,
    /// The command that submitted it; only later releases show it.
    pub submit_line: String,
    /// Why what it has on its nodes and what it asked for cannot be read; empty when it can. Such a job has its numbers,
    /// user, state, nodes and name, and nothing else is known of it.
    pub unreadable: String,
}

impl Job {
    /// All jobs in a text that scontrol printed and in which no user's text is: recordings and tests. Others are read
    /// by [`jobs`](super::jobs).
    pub fn parse_all(text: &str) -> Vec<Job> {
        Record::parse_all(text, "JobId")
            .iter()
            .map(Job::from_record)
            .collect()
    }

    /// A job of which squeue's fields are all that is known.
    pub(super) fn unreadable(row: &Row, why: &str) -> Job {
        let of = |key: &str| {
            let field = row.fields.iter().find(|(known, _)| *known == key);
            field.map(|(_, text)| text.clone()).unwrap_or_default()
        };
        let hosts = |list: &str| expand(list).unwrap_or_default();
        Job {
            id: row.id,
            label: row.label.clone(),
            name: row.name.clone(),
            user: row.user.clone(),
            uid: row.uid,
            state: row.state.clone(),
            nodes: hosts(&row.nodes),
            required_nodes: hosts(&row.required),
            min_nodes: 1,
            max_nodes: 1,
            restarts: row.restarts,
            may_requeue: row.may_requeue,
            system_comment: of("SystemComment"),
            admin_comment: of("AdminComment"),
            unreadable: why.into(),
            ..Job::default()
        }
    }

    pub(super) fn from_record(record: &Record) -> Job {
        let number = |key: &str| record.number(key).unwrap_or(0) as u32;
        let hosts = |key: &str| expand(&record.text(key)).unwrap_or_default();
        let id = number("JobId");
        let (low, high) = node_range(&record.text("NumNodes"));
        // The smallest count stands in the TRES of the request; NumNodes shows the largest.
        let requested = record.get("ReqTRES").or(record.get("TRES")).unwrap_or("");
        let requested = requested
            .split(',')
            .find_map(|t| t.strip_prefix("node=")?.parse().ok());
        let state = waiting(record.get("JobState").unwrap_or_default());
        let pending = state == "PENDING";
        let min_nodes = match requested {
            Some(nodes) if pending => low.min(nodes),
            _ => low,
        };
        let memory = |key: &str| record.get(key).and_then(mebibytes).unwrap_or(0);
        let exclusive = match record.get("Exclusive") {
            Some(word) => word == "NODE" || word == "YES",
            // Before 26.05 both words stand in one field.
            None => matches!(record.get("OverSubscribe"), Some("NO" | "EXCLUSIVE")),
        };
        Job {
            id,
            label: label(record, id),
            array_tasks: record.text("ArrayTaskId"),
            sluid: record.text("SLUID"),
            name: record.text("JobName"),
            user: record.text("UserId").split('(').next().unwrap_or("").into(),
            uid: {
                let user = record.text("UserId");
                let number = user.split('(').nth(1).and_then(|n| n.strip_suffix(')'));
                number.and_then(|n| n.parse().ok()).unwrap_or(u32::MAX)
            },
            account: record.text("Account"),
            state: state.into(),
            reason: record.text("Reason"),
            dependency: record.text("Dependency"),
            partitions: record
                .text("Partition")
                .split(',')
                .filter(|p| !p.is_empty())
                .map(String::from)
                .collect(),
            qos: record.text("QOS"),
            reservation: record.text("Reservation"),
            nodes: hosts("NodeList"),
            batch_host: record.text("BatchHost"),
            planned_nodes: hosts("SchedNodeList"),
            required_nodes: hosts("ReqNodeList"),
            excluded_nodes: hosts("ExcNodeList"),
            min_nodes,
            max_nodes: high,
            asked_nodes: {
                let asked = record.text("ReqTRES");
                let nodes = asked
                    .split(',')
                    .find_map(|t| t.strip_prefix("node=")?.parse().ok());
                nodes.unwrap_or(1)
            },
            tasks: number("NumTasks"),
            tasks_per_node: record
                .get("NtasksPerN:B:S:C")
                .and_then(leading_number)
                .map_or(0, |n| if n >= 0xfffe { 0 } else { n as u32 }),
            sockets_per_node: number("Socks/Node"),
            cpus_per_task: number("CPUs/Task"),
            min_cpus_node: number("MinCPUsNode"),
            memory_node_mib: memory("MinMemoryNode"),
            memory_cpu_mib: memory("MinMemoryCPU"),
            features: record.text("Features"),
            licenses: record.text("Licenses"),
            tres_per_node: record.text("TresPerNode"),
            tres_per_task: record.text("TresPerTask"),
            tres_per_socket: record.text("TresPerSocket"),
            tres_per_job: record.text("TresPerJob"),
            cpus_per_tres: record.text("CpusPerTres"),
            mem_per_tres: record.text("MemPerTres"),
            exclusive,
            restarts: number("Restarts"),
            may_requeue: number("Requeue") == 1 && number("BatchFlag") == 1,
            start: record.text("StartTime"),
            end: record.text("EndTime"),
            preempted: record.text("PreemptTime"),
            submitted: record.text("SubmitTime"),
            eligible: record.text("EligibleTime"),
            time_limit: record.text("TimeLimit"),
            run_seconds: record.get("RunTime").and_then(seconds).unwrap_or(0),
            allocations: allocations(record),
            shares: shares(record),
            system_comment: record.text("SystemComment"),
            admin_comment: record.text("AdminComment"),
            submit_line: record.text("SubmitLine"),
            unreadable: String::new(),
        }
    }

    /// Its time limit in minutes, if it has one.
    pub fn limit_minutes(&self) -> Option<u32> {
        u32::try_from(seconds(&self.time_limit)? / 60).ok()
    }

    /// Whether the job waits.
    pub fn is_pending(&self) -> bool {
        self.state == "PENDING"
    }

    /// Whether the job is over. A state that is not one of Slurm's words for that may come back: REQUEUE_HOLD, SPECIAL_EXIT and the like do, and
    /// what no release has had until now may.
    pub fn has_ended(&self) -> bool {
        matches!(
            self.state.as_str(),
            "BOOT_FAIL"
                | "CANCELLED"
                | "COMPLETED"
                | "DEADLINE"
                | "FAILED"
                | "NODE_FAIL"
                | "OUT_OF_MEMORY"
                | "PREEMPTED"
                | "TIMEOUT"
        )
    }

    /// Whether the job has its nodes.
    pub fn is_running(&self) -> bool {
        matches!(
            self.state.as_str(),
            "RUNNING"
                | "SUSPENDED"
                | "COMPLETING"
                | "CONFIGURING"
                | "STOPPED"
                | "SIGNALING"
                | "RESIZING"
                | "STAGE_OUT"
        )
    }

    /// Bits of GRES `gpuos` that it has on a node.
    pub fn slices_on(&self, node: &str) -> GpuSet {
        self.sum_on(node, |part| part.slices)
    }

    /// GPUs of which it has shards on a node.
    pub fn shared_on(&self, node: &str) -> GpuSet {
        self.sum_on(node, |part| part.shared)
    }

    /// GPUs that it has on a node, as a whole or in part.
    pub fn gpus_on(&self, node: &str) -> GpuSet {
        self.sum_on(node, |part| GpuSet(part.gpus.0 | part.shared.0))
    }

    /// What the parts of the job on a node have together.
    fn sum_on(&self, node: &str, of: impl Fn(&Allocation) -> GpuSet) -> GpuSet {
        let here = self.allocations.iter();
        let here = here.filter(|part| part.nodes.iter().any(|name| name == node));
        here.fold(GpuSet::EMPTY, |set, part| GpuSet(set.0 | of(part).0))
    }

    /// Whole GPUs that the job has in all.
    pub fn gpu_count(&self) -> u32 {
        let all = |a: &Allocation| a.gpu_count.saturating_mul(a.nodes.len() as u32);
        self.allocations
            .iter()
            .map(all)
            .fold(0, u32::saturating_add)
    }
}

fn label(record: &Record, id: u32) -> String {
    if let (Some(array), Some(task)) = (record.number("ArrayJobId"), record.get("ArrayTaskId")) {
        if task.bytes().all(|b| b.is_ascii_digit()) {
            return format!("{array}_{task}");
        }
        return array.to_string();
    }
    match (record.number("HetJobId"), record.number("HetJobOffset")) {
        (Some(job), Some(offset)) => format!("{job}+{offset}"),
        _ => id.to_string(),
    }
}

/// `4-4`, `2-3`, `1`.
fn node_range(text: &str) -> (u32, u32) {
    let (low, high) = text.split_once('-').unwrap_or((text, text));
    let low = leading_number(low).unwrap_or(1).max(1) as u32;
    let high = leading_number(high).unwrap_or(1).max(1) as u32;
    (low, high.max(low))
}

/// The lines `Nodes=n[1-2] CPU_IDs=0 Mem=10 GRES=gpu:h100:2(IDX:0-1)`.
fn allocations(record: &Record) -> Vec<Allocation> {
    let mut found: Vec<Allocation> = Vec::new();
    let mut nodes = Vec::new();
    let (mut cpus, mut memory_mib) = (0, 0);
    for (key, value) in record.fields() {
        match key {
            "Nodes" => nodes = expand(value).unwrap_or_default(),
            "CPU_IDs" => cpus = count_ids(value),
            "Mem" => memory_mib = mebibytes(value).unwrap_or(0),
            "GRES" => {
                let (mut gpus, mut gpu_count) = (GpuSet::EMPTY, 0);
                let (mut slices, mut shared) = (GpuSet::EMPTY, GpuSet::EMPTY);
                let mut others = Vec::new();
                for entry in split_entries(value) {
                    if entry.starts_with("gpuos:") {
                        slices = GpuSet(slices.0 | indices(entry).unwrap_or(GpuSet::EMPTY).0);
                    }
                    if entry.starts_with("shard:") {
                        shared = GpuSet(shared.0 | node::shared(entry).unwrap_or(GpuSet::EMPTY).0);
                    }
                    if !entry.starts_with("gpu:") {
                        others.extend(counted(entry));
                        continue;
                    }
                    let head = entry.split('(').next().unwrap_or("");
                    let count = head.rsplit(':').next().and_then(|n| n.parse::<u32>().ok());
                    gpu_count = u32::saturating_add(gpu_count, count.unwrap_or(0));
                    gpus = GpuSet(gpus.0 | indices(entry).unwrap_or(GpuSet::EMPTY).0);
                }
                found.push(Allocation {
                    nodes: std::mem::take(&mut nodes),
                    gpus,
                    gpu_count,
                    slices,
                    shared,
                    cpus,
                    memory_mib,
                    others,
                });
            }
            _ => {}
        }
    }
    found
}

/// Name and count of a GRES that has no devices: `nvme:60`, `nvme:samsung:60(CNT:60)`, `nvme(CNT:60)`.
fn counted(entry: &str) -> Option<(String, u64)> {
    let (head, tail) = entry.split_once('(').unwrap_or((entry, ""));
    let name = head.split(':').next().unwrap_or_default();
    if ["gpuos", "shard", "mps"].contains(&name) {
        return None;
    }
    let counted = tail
        .strip_prefix("CNT:")
        .map(|rest| rest.trim_end_matches(')'));
    let count = counted.or(head.rsplit_once(':').map(|(_, last)| last));
    Some((name.to_owned(), parse_count(count?)?))
}

/// Whether a `GRES=` line gives it parts of GPUs without naming them.
fn shares(record: &Record) -> bool {
    let part = |entry: &str| {
        let shards = entry.starts_with("shard:") && node::shared(entry).is_none();
        shards || entry.starts_with("mps:")
    };
    let mut gres = record.fields().filter(|(key, _)| *key == "GRES");
    gres.any(|(_, value)| split_entries(value).into_iter().any(part))
}

/// How many numbers a list such as `0-3,8` has.
fn count_ids(list: &str) -> u32 {
    let ranges = list.split(',').filter_map(|range| {
        let (low, high) = range.split_once('-').unwrap_or((range, range));
        let (low, high): (u32, u32) = (low.parse().ok()?, high.parse().ok()?);
        Some(high.checked_sub(low)?.saturating_add(1))
    });
    ranges.fold(0, u32::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_that_are_shared_are_named_in_two_ways() {
        let text = |gres: &str| {
            format!(
                "JobId=7 JobName=a\n   JobState=RUNNING\n   NodeList=n1\n     Nodes=n1 CPU_IDs=0 Mem=10 GRES={gres}\n"
            )
        };
        for (gres, shared, unnamed) in [
            ("shard:1(IDX:0)", 0b1, false),
            ("shard:h100:3(0/4,-/4,2/4,1/4)", 0b1100, false),
            ("shard:2(CNT:2)", 0, true),
            ("shard:2", 0, true),
            ("mps:50(IDX:1)", 0, true),
            ("gpu:h100:1(IDX:5)", 0, false),
        ] {
            let job = Job::parse_all(&text(gres)).remove(0);
            assert_eq!(
                (job.allocations[0].shared.0, job.shares),
                (shared, unnamed),
                "{gres}"
            );
        }
        let both = Job::parse_all(&text("gpu:1(IDX:5),shard:1(1/4,0/4)")).remove(0);
        assert_eq!(both.gpus_on("n1"), GpuSet(0b10_0001));
        assert_eq!(both.gpus_on("n2"), GpuSet::EMPTY);
    }

    #[test]
    fn gres_without_devices_are_read_by_their_counts() {
        let text = "JobId=7 JobName=a\n   JobState=RUNNING\n   NodeList=n1\n     Nodes=n1 CPU_IDs=0 Mem=10 \
                    GRES=shard:2(IDX:0),nvme:60(CNT:60),disk(CNT:2K),nic:fast:3,odd:many,odd(CNT:x)\n";
        let job = Job::parse_all(text).remove(0);
        let others = [("nvme", 60), ("disk", 2048), ("nic", 3)];
        let others = others.map(|(name, count)| (name.to_owned(), count));
        assert_eq!(job.allocations[0].others, others);
    }

    #[test]
    fn slices_of_gpus_are_read_by_node_and_gpus_are_not_taken_for_them() {
        let text = "JobId=7 JobName=a\n   JobState=RUNNING\n   NodeList=n[1-3]\n     \
                    Nodes=n1 CPU_IDs=0 Mem=10 GRES=gpu:h100:2(IDX:0-1),gpuos:h100-80gb:5(IDX:0,12-15)\n     \
                    Nodes=n2 CPU_IDs=0 Mem=10 GRES=gpuos:4(IDX:60-63)\n     \
                    Nodes=n3 CPU_IDs=0 Mem=10 GRES=gpuos:h100-80gb:4(CNT:4),gpuosx:1(IDX:3)\n";
        let job = Job::parse_all(text).remove(0);
        let had = |at: usize| (job.allocations[at].gpus.0, job.allocations[at].slices.0);
        assert_eq!(had(0), (0b11, 0xf001));
        assert_eq!(had(1), (0, 0xf << 60));
        // Without numbers nothing is known, and another GRES is another one.
        assert_eq!(had(2), (0, 0));
        assert_eq!(job.slices_on("n1"), GpuSet(0xf001));
        assert_eq!(job.slices_on("n4"), GpuSet::EMPTY);
    }
}
