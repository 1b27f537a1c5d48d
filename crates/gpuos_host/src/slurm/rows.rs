//! What `squeue` says of jobs, one field after the other.
//!
//! Slurm prints users' texts as they are, newlines too: a job's name can look like any line of any command. So
//! squeue is given a format in which every field ends with a word that was made for this one call and that nobody
//! can know, and the fields are what lies between these words. The format goes through the environment: a command
//! line can be read by everybody.

use std::time::Duration;

use gpuos_model::hostlist::expand;

use crate::{Machine, Output};
use gpuos_workload::action::Outcome;

/// The fields, by the names that `squeue -O` has for them on every release since 22.05.
const FIELDS: [&str; 27] = [
    "JobID",
    "ArrayJobID",
    "ArrayTaskID",
    "HetJobID",
    "HetJobOffset",
    "UserID",
    "UserName",
    "State",
    "RestartCnt",
    "Requeue",
    "BatchFlag",
    "NodeList",
    "ReqNodes",
    "Name",
    "Feature",
    "Licenses",
    "Reservation",
    "system_comment",
    "cpus-per-tres",
    "tres-per-job",
    "tres-per-node",
    "tres-per-socket",
    "tres-per-task",
    "PriorityLong",
    "admin_comment",
    "mem-per-tres",
    // The last one says that the row is whole.
    "JobID",
];

/// One job in squeue's answer.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Row {
    /// Number of the job.
    pub id: u32,
    /// Its number as users write it, made of numbers alone; see [`Job::label`](super::Job::label).
    pub label: String,
    /// What stands before the name in `scontrol show job`: `ArrayJobId=4 ArrayTaskId=1 `.
    pub kind: Kind,
    /// Number and name of the user.
    pub uid: u32,
    /// See [`Row::uid`].
    pub user: String,
    /// `RUNNING`, …
    pub state: String,
    /// How often it was requeued.
    pub restarts: u32,
    /// Whether Slurm would requeue it.
    pub may_requeue: bool,
    /// Its nodes, as Slurm writes them.
    pub nodes: String,
    /// `--nodelist`.
    pub required: String,
    /// Whether somebody holds it.
    pub held: bool,
    /// What operators wrote about it.
    pub admin_comment: String,
    /// The job's name, exactly.
    pub name: String,
    /// Fields of `scontrol show job` that stand behind users' texts there, by their names.
    pub fields: Vec<(&'static str, String)>,
}

/// Which kind of number a job has.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) enum Kind {
    /// One of its own.
    #[default]
    Plain,
    /// A task of an array, or those tasks of it that still wait together.
    Array(u32, String),
    /// A component of a heterogeneous job.
    Het(u32, u32),
}

impl Kind {
    /// The job's number as users write it.
    fn label(&self, id: u32) -> String {
        match self {
            Kind::Plain => id.to_string(),
            Kind::Array(array, task) if is_number(task) => format!("{array}_{task}"),
            Kind::Array(array, _) => array.to_string(),
            Kind::Het(job, offset) => format!("{job}+{offset}"),
        }
    }
}

/// A state of a job as Slurm writes it. One that was submitted with `--requeue=expedite`, which Slurm has since 25.11, and was requeued is
/// `EXPEDITING` until it runs again: it waits like others.
pub(crate) fn waiting(state: &str) -> &str {
    match state {
        "EXPEDITING" => "PENDING",
        other => other,
    }
}

impl Row {
    /// Whether the number means this one job to Slurm's commands. That of an array whose tasks wait together means
    /// all its tasks.
    pub fn is_single(&self) -> bool {
        !matches!(&self.kind, Kind::Array(_, task) if !is_number(task))
    }

    /// Whether the job has this node.
    pub fn has(&self, node: &str) -> bool {
        is_in(&self.nodes, node)
    }

    /// Whether it has been requeued and has not begun again.
    pub fn is_requeued(&self) -> bool {
        let waits = ["PENDING", "REQUEUED", "COMPLETING"].contains(&self.state.as_str());
        waits && self.restarts > 0
    }

    /// Whether the job asks for this node.
    pub fn requires(&self, node: &str) -> bool {
        is_in(&self.required, node)
    }

    fn read(fields: &[&str]) -> Option<Row> {
        let number = |at: usize| fields[at].parse::<u32>().ok();
        let text = |at: usize| match fields[at] {
            "(null)" | "N/A" => String::new(),
            text => text.to_string(),
        };
        let id = number(0).filter(|id| *id != 0 && fields[FIELDS.len() - 1] == fields[0])?;
        // Every job but a task has itself for an array.
        let kind = match (fields[2], fields[3]) {
            ("N/A", "N/A") => Kind::Plain,
            ("N/A", _) => Kind::Het(number(3)?, number(4)?),
            (task, _) => Kind::Array(number(1)?, tasks(task)?),
        };
        let flag = |at: usize| match fields[at] {
            "0" => Some(false),
            _ => number(at).map(|n| n != 0),
        };
        Some(Row {
            id,
            label: kind.label(id),
            kind,
            uid: number(5)?,
            user: text(6),
            state: Some(waiting(fields[7]))
                .filter(|state| {
                    !state.is_empty() && state.bytes().all(|b| b.is_ascii_uppercase() || b == b'_')
                })?
                .into(),
            restarts: number(8)?,
            may_requeue: flag(9)? && flag(10)?,
            nodes: text(11),
            required: text(12),
            held: fields[23] == "0",
            admin_comment: text(24),
            name: fields[13].into(),
            fields: vec![
                ("Features", text(14)),
                ("Licenses", text(15)),
                ("Reservation", text(16)),
                ("SystemComment", text(17)),
                ("CpusPerTres", text(18)),
                ("TresPerJob", text(19)),
                ("TresPerNode", text(20)),
                ("TresPerSocket", text(21)),
                ("TresPerTask", text(22)),
                ("AdminComment", text(24)),
                ("MemPerTres", text(25)),
            ],
        })
    }
}

fn is_in(list: &str, node: &str) -> bool {
    expand(list).is_ok_and(|nodes| nodes.iter().any(|name| name == node))
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

/// Numbers of tasks: `7`, `1-3,5%2`, `0-9:3`, `1,3,...`.
fn tasks(text: &str) -> Option<String> {
    let known = |b: u8| b.is_ascii_digit() || b"-,%:.".contains(&b);
    (!text.is_empty() && text.bytes().all(known)).then(|| text.into())
}

/// Asks squeue for rows; `which` names the jobs.
///
/// # Errors
/// As the command ends: [`Outcome::Refused`] for a job that slurmctld does not know. An answer that is not made of
/// whole rows is none: [`Outcome::NoAnswer`].
pub(crate) fn rows(
    machine: &dyn Machine,
    limit: Duration,
    which: &[&str],
    refused: impl Fn(&str) -> bool,
) -> Result<Vec<Row>, Outcome> {
    let secret = machine.secret();
    let secret = secret.map_err(|e| Outcome::NoAnswer(format!("cannot read /dev/urandom: {e}")))?;
    // A digit or a sign at its start would belong to the field's width.
    let end = format!("<{secret}>");
    let format = FIELDS.map(|field| format!("{field}:{end}")).join(",");
    let mut args = vec!["-a"];
    args.extend(which);
    let line = || format!("`squeue {}`", args.join(" "));
    let output = machine.run_with_env(limit, ("SQUEUE_FORMAT2", &format), "squeue", &args);
    let output = output.map_err(|e| Outcome::NoAnswer(format!("{e:#}")))?;
    if !output.ok {
        let error = error_line(&output);
        let sentence = format!("{}: {error}", line());
        return Err(match refused(&error) {
            true => Outcome::Refused(sentence),
            false => Outcome::NoAnswer(sentence),
        });
    }
    read(&output.stdout, &end).ok_or_else(|| {
        Outcome::NoAnswer(format!(
            "{} gave an answer that cannot be read{}",
            line(),
            match output.stderr.trim() {
                "" => String::new(),
                said => format!(": {said}"),
            }
        ))
    })
}

/// The rows of an answer; `None`: it has another form, or a number twice. The first row is the heading, by which an
/// answer without a job differs from none.
fn read(text: &str, end: &str) -> Option<Vec<Row>> {
    let mut pieces: Vec<&str> = text.split(end).collect();
    if pieces.pop()? != "\n" || !pieces.len().is_multiple_of(FIELDS.len()) {
        return None;
    }
    let mut rows: Vec<Row> = Vec::new();
    for (at, row) in pieces.chunks(FIELDS.len()).enumerate() {
        let mut fields = row.to_vec();
        if at == 0 {
            continue;
        }
        fields[0] = fields[0].strip_prefix('\n')?;
        rows.push(Row::read(&fields)?);
    }
    let mut numbers: Vec<u32> = rows.iter().map(|row| row.id).collect();
    numbers.sort_unstable();
    numbers.dedup();
    (!pieces.is_empty() && numbers.len() == rows.len()).then_some(rows)
}

/// What a command that failed said, in one line.
pub(super) fn error_line(output: &Output) -> String {
    let lines = output.stderr.lines().chain(output.stdout.lines());
    let mut lines = lines.map(str::trim).filter(|line| !line.is_empty());
    lines.next_back().unwrap_or("it gave no reason").into()
}

/// squeue's answer in `format` for jobs that `scontrol -d show jobs` printed, for recordings: no user had a hand in them.
pub(crate) fn rows_of(jobs: &str, format: &str) -> String {
    let end = format
        .split_once(':')
        .and_then(|(_, rest)| rest.split(',').next());
    let end = end.unwrap_or_default();
    let mut text = end.repeat(FIELDS.len());
    for record in super::Record::parse_all(jobs, "JobId") {
        text.push('\n');
        for field in FIELDS {
            let get = |key: &str| record.get(key).map(String::from);
            let user = || record.text("UserId");
            let value = match field {
                "JobID" => get("JobId"),
                "ArrayJobID" => get("ArrayJobId").or(get("JobId")),
                "ArrayTaskID" => get("ArrayTaskId").or(Some("N/A".into())),
                "HetJobID" => get("HetJobId").or(Some("N/A".into())),
                "HetJobOffset" => get("HetJobOffset").or(Some("N/A".into())),
                "UserID" => user()
                    .split(['(', ')'])
                    .nth(1)
                    .map(String::from)
                    .or(Some("0".into())),
                "UserName" => user().split('(').next().map(String::from),
                "State" => get("JobState"),
                "RestartCnt" => get("Restarts").or(Some("0".into())),
                "Requeue" | "BatchFlag" => get(field).or(Some("0".into())),
                "NodeList" => get("NodeList"),
                "ReqNodes" => get("ReqNodeList"),
                "Name" => get("JobName"),
                "Feature" => get("Features"),
                "Licenses" | "Reservation" => get(field),
                "system_comment" => get("SystemComment"),
                "cpus-per-tres" => get("CpusPerTres"),
                "mem-per-tres" => get("MemPerTres"),
                "tres-per-job" => get("TresPerJob"),
                "tres-per-node" => get("TresPerNode"),
                "tres-per-socket" => get("TresPerSocket"),
                "tres-per-task" => get("TresPerTask"),
                "PriorityLong" => get("Priority").or(Some("1".into())),
                "admin_comment" => get("AdminComment"),
                _ => None,
            };
            text.push_str(value.as_deref().unwrap_or("(null)"));
            text.push_str(end);
        }
    }
    text + "\n"
}
