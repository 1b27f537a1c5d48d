//! Nodes and jobs of the openb traces, from text.
//!
//! Alibaba's GPU trace of 2023, as CSV: nodes are `sn,cpu_milli,memory_mib,gpu,model`, jobs
//! `name,cpu_milli,memory_mib,num_gpu,gpu_milli` and perhaps more columns, of which `gpu_spec`,
//! `creation_time` and `deletion_time` count here.

use std::collections::BTreeSet;
use std::fmt;

use gpuos_placement::frag::{MAX_DEVICES, MILLI, Node, Request};

/// What is wrong with a trace, and where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TraceError {
    /// Line, from 1.
    pub line: usize,
    /// Column of the first character that is wrong, from 1.
    pub column: usize,
    /// What is wrong, and what would be right.
    pub reason: String,
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TraceError {
            line,
            column,
            reason,
        } = self;
        write!(f, "line {line}, column {column}: {reason}")
    }
}

impl std::error::Error for TraceError {}

/// One job of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Job {
    /// What it asks for.
    pub request: Request,
    /// Seconds from its creation to its end, where the trace says it.
    pub lifetime: Option<u64>,
}

/// A cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Nodes {
    /// Idle nodes.
    pub nodes: Vec<Node>,
    /// Names of the GPU models; a node's `model` is an index.
    pub models: Vec<String>,
}

impl Nodes {
    /// GPUs of all nodes, in thousandths.
    pub fn milli(&self) -> u64 {
        let gpus = self.nodes.iter().map(|node| u64::from(node.gpus));
        gpus.sum::<u64>() * u64::from(MILLI)
    }
}

const NODE_COLUMNS: &[&str] = &["sn", "cpu_milli", "memory_mib", "gpu", "model"];
const JOB_COLUMNS: &[&str] = &[
    "name",
    "cpu_milli",
    "memory_mib",
    "num_gpu",
    "gpu_milli",
    "gpu_spec",
    "qos",
    "pod_phase",
    "creation_time",
    "deletion_time",
    "scheduled_time",
];
/// The first columns of jobs, which every trace has.
const JOB_NEEDS: usize = 5;

/// Reads a node list.
///
/// # Errors
///
/// The first line that is not as described above, a name given twice, more than 16 GPUs on a node,
/// more than 64 models, or no GPU at all.
pub fn nodes(text: &str) -> Result<Nodes, TraceError> {
    let mut models: Vec<String> = Vec::new();
    let mut nodes = Vec::new();
    let mut names = BTreeSet::new();
    let table = Table::new(text, NODE_COLUMNS, NODE_COLUMNS.len())?;
    for row in table.rows() {
        let row = row?;
        row.unique(0, &mut names)?;
        let gpus = row.number(3)?;
        if gpus > MAX_DEVICES as u64 {
            return Err(row.error(3, format!("{gpus} GPUs; a node has 0 to {MAX_DEVICES}")));
        }
        let name = row.text(4);
        if name.is_empty() && gpus > 0 {
            return Err(row.error(4, "no GPU model, although the node has GPUs".into()));
        }
        let known = models.iter().position(|model| model == name);
        let model = known.unwrap_or_else(|| {
            models.push(name.into());
            models.len() - 1
        });
        if model >= 64 {
            return Err(row.error(4, "one GPU model too many; 64 can be told apart".into()));
        }
        let (cpu, memory) = (row.small(1)?, row.small(2)?);
        nodes.push(Node::idle(cpu, memory, gpus as u8, model as u8));
    }
    let nodes = Nodes { nodes, models };
    if nodes.milli() == 0 {
        return Err(table.empty("no node with a GPU"));
    }
    Ok(nodes)
}

/// Reads a job list for a cluster, whose models give the jobs' `gpu_spec` (`V100M16|V100M32`) a
/// meaning; a model that no node has cannot be had, which is no error.
///
/// # Errors
///
/// The first line that is not as described above, a name given twice, a share outside of 1 to
/// 1000 thousandths, a share of several GPUs, an end before the creation, or no job with a GPU.
pub fn jobs(text: &str, cluster: &Nodes) -> Result<Vec<Job>, TraceError> {
    let mut jobs = Vec::new();
    let mut names = BTreeSet::new();
    let table = Table::new(text, JOB_COLUMNS, JOB_NEEDS)?;
    for row in table.rows() {
        let row = row?;
        row.unique(0, &mut names)?;
        let request = Request {
            cpu: row.small(1)?,
            memory: row.small(2)?,
            gpus: gpus(&row)?,
            share: share(&row)?,
            models: models(&row, cluster),
        };
        let lifetime = lifetime(&row)?;
        jobs.push(Job { request, lifetime });
    }
    if jobs.iter().all(|job| job.request.gpus == 0) {
        return Err(table.empty("no job with a GPU"));
    }
    Ok(jobs)
}

/// The same jobs as Slurm's gres/gpu can run them: a share of a GPU becomes a whole one, and cores
/// are rounded up to whole ones.
pub fn whole(jobs: &mut [Job]) {
    for job in jobs {
        let request = &mut job.request;
        request.share = if request.gpus > 0 { MILLI } else { 0 };
        request.cpu = request.cpu.div_ceil(1000) * 1000;
    }
}

fn gpus(row: &Row<'_>) -> Result<u8, TraceError> {
    match row.number(3)? {
        gpus if gpus <= MAX_DEVICES as u64 => Ok(gpus as u8),
        gpus => Err(row.error(3, format!("{gpus} GPUs; a job takes 0 to {MAX_DEVICES}"))),
    }
}

fn share(row: &Row<'_>) -> Result<u16, TraceError> {
    let reason = match (row.number(3)?, row.number(4)?) {
        (0, 0) => return Ok(0),
        (1, share @ 1..=1000) => return Ok(share as u16),
        (gpus, 1000) if gpus > 1 => return Ok(MILLI),
        (0, _) => "a job without GPUs has gpu_milli 0",
        (1, _) => "gpu_milli is 1 to 1000 for a job of one GPU",
        _ => "a job of several GPUs takes them whole: gpu_milli is 1000",
    };
    Err(row.error(4, reason.into()))
}

/// Bits of the models; all for a job that names none, or that has no GPU.
fn models(row: &Row<'_>, cluster: &Nodes) -> u64 {
    let spec = row.text(5);
    if spec.is_empty() || row.text(3) == "0" {
        return u64::MAX;
    }
    spec.split('|')
        .filter_map(|name| cluster.models.iter().position(|model| model == name))
        .fold(0, |bits, model| bits | 1 << model)
}

fn lifetime(row: &Row<'_>) -> Result<Option<u64>, TraceError> {
    if row.text(8).is_empty() || row.text(9).is_empty() {
        return Ok(None);
    }
    let (from, to) = (row.number(8)?, row.number(9)?);
    let lifetime = to.checked_sub(from).ok_or_else(|| {
        let reason = format!("deletion_time {to} is before creation_time {from}");
        row.error(9, reason)
    })?;
    Ok(Some(lifetime))
}

/// A CSV without quotes, whose columns stand in the order of `columns`.
struct Table<'a> {
    text: &'a str,
    columns: &'static [&'static str],
    present: usize,
}

impl<'a> Table<'a> {
    /// Checks the heading: at least `needed` of the columns, in their order.
    fn new(
        text: &'a str,
        columns: &'static [&'static str],
        needed: usize,
    ) -> Result<Table<'a>, TraceError> {
        let heading = text.lines().next().unwrap_or("").trim_end_matches('\r');
        let names: Vec<&str> = heading.split(',').collect();
        let right = names.len() >= needed && columns.starts_with(&names);
        if !right {
            return Err(TraceError {
                line: 1,
                column: 1,
                reason: format!(
                    "the heading is {heading:?}; it has to start with {}",
                    columns[..needed].join(",")
                ),
            });
        }
        Ok(Table {
            text,
            columns,
            present: names.len(),
        })
    }

    fn rows(&self) -> impl Iterator<Item = Result<Row<'a>, TraceError>> {
        let (columns, present) = (self.columns, self.present);
        let lines = self.text.lines().enumerate().skip(1);
        lines.map(move |(index, text)| {
            let row = Row {
                line: index + 1,
                columns,
                fields: text.trim_end_matches('\r').split(',').collect(),
            };
            match row.fields.len() {
                found if found == present => Ok(row),
                found => {
                    let reason = format!("{found} fields; the heading has {present}");
                    Err(row.error(present.min(found - 1), reason))
                }
            }
        })
    }

    fn empty(&self, what: &str) -> TraceError {
        TraceError {
            line: self.text.lines().count().max(1),
            column: 1,
            reason: format!("the file ends, and there was {what}"),
        }
    }
}

struct Row<'a> {
    line: usize,
    columns: &'static [&'static str],
    fields: Vec<&'a str>,
}

impl Row<'_> {
    fn error(&self, field: usize, reason: String) -> TraceError {
        let before = &self.fields[..field.min(self.fields.len())];
        TraceError {
            line: self.line,
            column: before.iter().map(|f| f.chars().count() + 1).sum::<usize>() + 1,
            reason,
        }
    }

    /// The field; empty where this trace has no such column.
    fn text(&self, field: usize) -> &str {
        self.fields.get(field).copied().unwrap_or("")
    }

    fn number(&self, field: usize) -> Result<u64, TraceError> {
        let text = self.text(field);
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let number = text.parse::<u64>().ok().filter(|_| digits);
        number.ok_or_else(|| {
            let reason = format!("{} is {text:?}; write a whole number", self.columns[field]);
            self.error(field, reason)
        })
    }

    fn small(&self, field: usize) -> Result<u32, TraceError> {
        let number = self.number(field)?;
        // A quarter of the range: sums of a few stay in 32 bits.
        u32::try_from(number)
            .ok()
            .filter(|&n| n <= u32::MAX / 4)
            .ok_or_else(|| {
                let reason = format!(
                    "{} is {number}; no machine has that much",
                    self.columns[field]
                );
                self.error(field, reason)
            })
    }

    fn unique(&self, field: usize, seen: &mut BTreeSet<String>) -> Result<(), TraceError> {
        let name = self.text(field);
        let reason = if name.is_empty() {
            format!("{} is empty", self.columns[field])
        } else if !seen.insert(name.into()) {
            format!("{name} is in the list twice")
        } else {
            return Ok(());
        };
        Err(self.error(field, reason))
    }
}
