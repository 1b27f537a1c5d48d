//! A task of a job whose checkpoints gpuos_mover keeps, by what `qstat -xml -j` prints of the job; where it runs, by `qstat -xml -s rs`.
//!
//! A run of a task is known by the moment at which sge_qmaster gave it its host: Grid Engine counts no runs.

use std::collections::BTreeSet;

use crate::ask::Ask;
use crate::gridengine::ENVIRONMENT;
use crate::gridengine::job::{Record, all_of};

/// How names in a job's context begin by which it remembers its hosts: an entry for each, so that tasks that start at the same time do
/// not undo each other's.
const HOST: &str = "gpuos_at_";

/// Hosts that are remembered at most, and the longest name of one.
const MOST_HOSTS: usize = 64;
const MOST_NAME: usize = 64;

/// `JAT_status` of a task that runs, and of one that is handed to its host.
const RUNS: u32 = 0x80 | 0x200;
/// `JB_restart` of a job with `-r n`.
const NO_RERUN: u32 = 2;

/// A task.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Task {
    /// Its user.
    pub user: String,
    /// Number of the user.
    pub uid: u32,
    /// Number of the user's group.
    pub gid: u32,
    /// When its run was given its host, in seconds since 1970; `None`: it waits.
    pub since: Option<u32>,
    /// Whether it may run again.
    pub may_rerun: bool,
    /// How often it makes checkpoints, as sbatch has it; `None`: it makes none.
    pub asked: Option<String>,
    /// Hosts that it says to have run on. Its user can write there, too: these are names of exec hosts or of nothing.
    pub hosts: Vec<String>,
}

/// The numbers of a job and of its task in the name by which checkpoints know them, such as `17.1`.
pub fn numbers(name: &str) -> Option<(&str, &str)> {
    let (job, task) = name.split_once('.')?;
    (crate::journal::file(job, task)? == name).then_some((job, task))
}

/// The entry of a host in a job's context; `None`: it is no name of one.
pub fn host_entry(host: &str) -> Option<String> {
    is_host(host).then(|| format!("{HOST}{host}"))
}

/// The name of a host up to the first dot, in small letters: exec hosts are compared by these.
pub fn short(host: &str) -> String {
    let first = host.split('.').next().unwrap_or_default();
    first.to_ascii_lowercase()
}

fn is_host(name: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let plain = name.bytes().all(inner) && !name.starts_with('-');
    plain && (1..=MOST_NAME).contains(&name.len())
}

impl Task {
    /// Reads a job's record for one of its tasks; `None`: sge_qmaster knows no such job, or not any more.
    ///
    /// # Errors
    /// It is no record of that job, or its options are wrong.
    pub fn read(text: &str, job: &str, task: &str) -> Result<Option<Task>, String> {
        let all = all_of(text)?;
        if all
            .iter()
            .any(|leaf| leaf.path == ["unknown_jobs", "ST_name"] && leaf.text == job)
        {
            return Ok(None);
        }
        let record = Record(&all);
        if record.one("JB_job_number")? != job {
            return Err(format!("qstat prints another job than {job}"));
        }
        let context = record.context();
        let environment = record.one("JB_checkpoint_name").unwrap_or_default();
        let asked = match environment == ENVIRONMENT {
            true => asked(&context)?,
            false => None,
        };
        let named = context
            .iter()
            .filter_map(|(name, _)| name.strip_prefix(HOST));
        let hosts: BTreeSet<&str> = named.filter(|name| is_host(name)).collect();
        Ok(Some(Task {
            user: record.one("JB_owner")?.to_owned(),
            uid: record.number("JB_uid")?,
            gid: record.number("JB_gid")?,
            since: since(&record, task),
            may_rerun: record.number("JB_restart").unwrap_or(NO_RERUN) != NO_RERUN,
            asked,
            hosts: hosts
                .into_iter()
                .take(MOST_HOSTS)
                .map(String::from)
                .collect(),
        }))
    }
}

/// `-ckpt gpuos` alone leaves it to gpuos how often.
fn asked(context: &[(&str, &str)]) -> Result<Option<String>, String> {
    let ours = |(name, _): &&(&str, &str)| *name == crate::ask::CHECKPOINT;
    let Some((name, value)) = context.iter().rev().find(ours) else {
        return Ok(Some("auto".into()));
    };
    let ask = Ask::read(0, [(*name, *value)].into_iter(), "-l {}")?;
    Ok(ask.checkpoint.map(|asked| asked.to_string()))
}

/// When the run of a task was given its host.
fn since(record: &Record<'_>, task: &str) -> Option<u32> {
    let (mut status, mut found) = (0, None);
    let mut take = |of: &str, status: u32, start: u32| {
        if of == task && status & RUNS != 0 && start > 0 {
            found = Some(start);
        }
    };
    let (mut number, mut start) = ("", 0);
    for (name, value) in record.within("JB_ja_tasks") {
        match name {
            // The first of each entry.
            "JAT_status" => {
                take(number, status, start);
                (status, number, start) = (value.parse().unwrap_or(0), "", 0);
            }
            "JAT_task_number" => number = value,
            "JAT_start_time" => start = value.parse().unwrap_or(0),
            _ => {}
        }
    }
    take(number, status, start);
    found
}

/// The host on which a task runs, by the list of running jobs of its user; `None`: it is not there.
///
/// # Errors
/// It is no such list.
pub fn host(text: &str, job: &str, task: &str) -> Result<Option<String>, String> {
    let all = all_of(text)?;
    let entry = ["job_info", "queue_info", "job_list"];
    let is = |path: &[String]| path.len() == 4 && entry.iter().zip(path).all(|(a, b)| a == b);
    let (mut number, mut queue, mut found) = ("", "", None);
    // A job that is no array has no element for its task.
    let mut of = "1";
    let mut take = |number: &str, of: &str, queue: &str| {
        if number == job && of == task {
            found = queue.rsplit_once('@').map(|(_, host)| short(host));
        }
    };
    for leaf in all.iter().filter(|leaf| is(&leaf.path)) {
        let value = &leaf.text[..];
        match leaf.path[3].as_str() {
            "JB_job_number" => {
                take(number, of, queue);
                (number, queue, of) = (value, "", "1");
            }
            "queue_name" => queue = value,
            "tasks" => of = value,
            _ => {}
        }
    }
    take(number, of, queue);
    Ok(found.filter(|host| is_host(host)))
}

/// Hosts of a job, as `qconf -sel` lists all exec hosts; others are none.
pub fn known(list: &str, hosts: &[String]) -> Vec<String> {
    let all: BTreeSet<String> = list.lines().map(|line| short(line.trim())).collect();
    let known = hosts.iter().filter(|host| all.contains(*host));
    known.cloned().collect()
}

/// Whether a job has slots on several hosts, by the file in its folder that lists them, a line for each host.
pub fn is_spread(pe_hostfile: &str) -> bool {
    let hosts = pe_hostfile
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    let hosts: BTreeSet<String> = hosts.map(short).collect();
    hosts.len() > 1
}

/// A name of a user that can stand as an argument.
pub fn is_user(name: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    !name.is_empty() && name.len() <= MOST_NAME && !name.starts_with('-') && name.bytes().all(inner)
}
