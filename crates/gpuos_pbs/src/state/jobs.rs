//! `qstat -f -F json`, for jobs, queues (`-Q`) and the server (`-B`).
//!
//! What users write into a job is a text of the JSON and stays one. A key that is read and stands in a job twice makes the job
//! unreadable, and so does a job that stands in the answer twice: whatever a user's text may have done to the answer, nothing
//! is decided by it.

use std::collections::HashMap;

use super::json::Json;
use crate::hook::vnodes::{Given, hosts, parse_exec_vnode, short};
use crate::units::seconds;

/// A job as PBS shows it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Job {
    /// Its whole name, such as `1234.head` or `1234[7].head`.
    pub id: String,
    /// The name that its user gave it.
    pub name: String,
    /// Who submitted it.
    pub user: String,
    /// As whom it runs, by `euser`, which PBS shows to its managers, or as who submitted it where it names nobody else (`qsub -u`); empty: that is
    /// not known.
    pub runs_as: String,
    /// PBS's letter: `Q` waits, `R` runs, …
    pub state: String,
    /// Its queue.
    pub queue: String,
    /// `-l` by resource.
    pub resources: Vec<(String, String)>,
    /// The reservation that it is of; empty: none.
    pub reservation: String,
    /// What it asks for, with the defaults of server and queue.
    pub select: String,
    /// `-l place`.
    pub place: String,
    /// What it has, chunk by chunk.
    pub given: Vec<Vec<Given>>,
    /// The hosts on which that is, each once and by its short name, in order: that of its script is the first.
    pub hosts: Vec<String>,
    /// What PBS says of it.
    pub comment: String,
    /// Whether it is an array, which stands for its subjobs.
    pub is_array: bool,
    /// Whether its user lets it run again (`qsub -r`).
    pub may_rerun: bool,
    /// In how many seconds it ends at the latest; `None`: nobody knows.
    pub ends_in: Option<i64>,
    /// For how many seconds it has run, as its mom last said.
    pub ran: i64,
    /// Why it cannot be read; empty when it can. Nothing but its name and state is known then.
    pub unreadable: String,
}

impl Job {
    /// The value of a resource that it asks for; names of resources are the same in any case.
    pub fn resource(&self, name: &str) -> Option<&str> {
        let mut all = self.resources.iter();
        let (_, value) = all.find(|(known, _)| known.eq_ignore_ascii_case(name))?;
        Some(value.trim()).filter(|value| !value.is_empty())
    }

    /// Whether it has the vnodes that it was given: one that is held or waits again only goes on there, and a suspended one has
    /// given them back.
    pub fn has_vnodes(&self) -> bool {
        matches!(&self.state[..], "R" | "E" | "U") && !self.given.is_empty()
    }

    /// Its number without the server, as in `12` or `12[3]`.
    pub fn number(&self) -> &str {
        self.id.split('.').next().unwrap_or(&self.id)
    }

    /// How long it may run, in seconds.
    pub fn walltime(&self) -> Option<i64> {
        seconds(self.resource("walltime")?)
    }
}

/// Whether a text can be the number of a job, as qrun takes it.
pub fn is_job(id: &str) -> bool {
    let digits = id.len() - id.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, mut rest) = id.split_at(digits);
    if number.is_empty() || id.len() > 255 {
        return false;
    }
    if let Some(inside) = rest.strip_prefix('[') {
        let Some((index, after)) = inside.split_once(']') else {
            return false;
        };
        if !index.bytes().all(|b| b.is_ascii_digit()) {
            return false;
        }
        rest = after;
    }
    let host = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    rest.is_empty() || rest.starts_with('.') && rest.bytes().all(host)
}

/// Reads what `qstat -f -F json` prints: jobs in the order of PBS, and what cannot be read of it, as sentences.
///
/// # Errors
/// The text is not what qstat prints: a sentence.
pub fn parse(text: &str) -> Result<(Vec<Job>, Vec<String>), String> {
    let json = Json::parse(text).map_err(|why| format!("qstat -f: {why}"))?;
    let all = json.get("Jobs").map_err(|why| format!("qstat -f: {why}"))?;
    // Without jobs the key is not there.
    let all = all.map(Json::entries).unwrap_or_default();
    let mut seen: HashMap<&str, u32> = HashMap::new();
    for (id, _) in all {
        *seen.entry(id).or_default() += 1;
    }
    let (mut jobs, mut notes) = (Vec::with_capacity(all.len()), Vec::new());
    for (id, json) in all {
        if !is_job(id) {
            notes.push(format!("\"{}\" is no number of a job", id.escape_debug()));
            continue;
        }
        let read = match seen.get(&**id) {
            Some(1) => job(id, json),
            _ => Err("it stands in qstat's answer twice".into()),
        };
        jobs.push(read.unwrap_or_else(|why| Job {
            id: id.to_string(),
            state: json.text("job_state").unwrap_or_default().to_owned(),
            unreadable: why,
            ..Job::default()
        }));
    }
    Ok((jobs, notes))
}

fn job(id: &str, json: &Json) -> Result<Job, String> {
    let empty = Json::Object(Vec::new());
    let asked = json.get("Resource_List")?.unwrap_or(&empty);
    let used = json.get("resources_used")?.unwrap_or(&empty);
    let select = match json.text("schedselect")? {
        "" => asked.text("select")?,
        select => select,
    };
    let exec_vnode = json.text("exec_vnode")?;
    let given = match exec_vnode {
        "" => Vec::new(),
        text => parse_exec_vnode(text).map_err(|why| format!("exec_vnode: {why}"))?,
    };
    let mut resources: Vec<(String, String)> = Vec::new();
    for (name, _) in asked.entries() {
        let twice = |(known, _): &(String, String)| known.eq_ignore_ascii_case(name);
        if resources.iter().any(twice) {
            return Err(format!("{name} stands in it twice"));
        }
        resources.push((name.to_string(), asked.text(name)?.to_owned()));
    }
    let owner = json.text("Job_Owner")?;
    let owner = owner.split('@').next().unwrap_or(owner);
    let runs_as = match (json.text("euser")?, json.text("User_List")?) {
        ("", "") => owner,
        (euser, _) => euser,
    };
    let mut job = Job {
        id: id.to_owned(),
        name: json.text("Job_Name")?.to_owned(),
        user: owner.to_owned(),
        runs_as: runs_as.to_owned(),
        state: json.text("job_state")?.to_owned(),
        queue: json.text("queue")?.to_owned(),
        reservation: json.text("reserve_ID")?.to_owned(),
        resources,
        select: select.to_owned(),
        place: asked.text("place")?.to_owned(),
        hosts: on(json.text("exec_host")?, &given),
        given,
        comment: json.text("comment").unwrap_or_default().trim().to_owned(),
        is_array: json.text("array")?.eq_ignore_ascii_case("true"),
        may_rerun: !json.text("Rerunable")?.eq_ignore_ascii_case("false"),
        ..Job::default()
    };
    let ran = seconds(used.text("walltime")?).unwrap_or(0);
    job.ran = ran;
    // One that is over its time ends any moment.
    job.ends_in = job.walltime().map(|limit| limit.saturating_sub(ran).max(1));
    Ok(job)
}

/// The hosts of `n1/0*2+n2/0*2`; where it says none, those by the names of vnodes, which are the hosts' own unless a site has named them.
fn on(exec_host: &str, given: &[Vec<Given>]) -> Vec<String> {
    if exec_host.is_empty() {
        return hosts(given.iter().flatten());
    }
    let mut all: Vec<String> = Vec::new();
    for part in exec_host.split('+') {
        let host = short(part.split('/').next().unwrap_or_default().trim());
        if !host.is_empty() && !all.contains(&host) {
            all.push(host);
        }
    }
    all
}

/// A queue, as far as it says which jobs may start.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct QueueRecord {
    /// Name.
    pub name: String,
    /// Jobs of a queue with a higher one come first.
    pub priority: i64,
    /// Why no job of it is started from here; empty: jobs may start.
    pub barred: String,
}

/// Reads what `qstat -Q -f -F json` prints.
///
/// # Errors
/// The text is not what qstat prints: a sentence.
pub fn parse_queues(text: &str) -> Result<Vec<QueueRecord>, String> {
    let told = |why: String| format!("qstat -Q -f: {why}");
    let json = Json::parse(text).map_err(told)?;
    let all = json.get("Queue").map_err(told)?;
    let all = all.ok_or("qstat -Q -f: its answer has no \"Queue\"")?;
    let read = all.entries().iter().map(|(name, json)| queue(name, json));
    read.map(|read| read.map_err(told)).collect()
}

fn queue(name: &str, json: &Json<'_>) -> Result<QueueRecord, String> {
    let is = |key: &str, value: &str| -> Result<bool, String> {
        Ok(json.text(key)?.eq_ignore_ascii_case(value))
    };
    let barred = if !is("queue_type", "Execution")? {
        "it only passes jobs on".into()
    } else if !is("started", "True")? {
        "it is stopped".into()
    } else if !json.text("partition")?.is_empty() {
        "another scheduler has it".into()
    } else if let Some(limit) = limit_of(json) {
        format!("it has {limit}, which pbs_sched alone keeps")
    } else {
        String::new()
    };
    Ok(QueueRecord {
        name: name.to_owned(),
        priority: json.text("Priority")?.parse().unwrap_or(0),
        barred,
    })
}

/// pbs_server itself.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ServerRecord {
    /// Name.
    pub name: String,
    /// Its release, such as `23.06.06`.
    pub release: String,
    /// The queue of jobs that name none; empty: there is none.
    pub default_queue: String,
}

/// Reads what `qstat -B -f -F json` says of the server itself.
///
/// # Errors
/// The text is not what qstat prints: a sentence.
pub fn parse_server(text: &str) -> Result<ServerRecord, String> {
    let told = |why: String| format!("qstat -B -f: {why}");
    let json = Json::parse(text).map_err(told)?;
    let (name, server) = first_server(&json)?;
    Ok(ServerRecord {
        name: name.to_owned(),
        release: server.text("pbs_version").map_err(told)?.to_owned(),
        default_queue: server.text("default_queue").map_err(told)?.to_owned(),
    })
}

/// The server that an answer is about.
fn first_server<'j>(json: &'j Json<'j>) -> Result<(&'j str, &'j Json<'j>), String> {
    let told = |why: String| format!("qstat -B -f: {why}");
    let server = json.get("Server").map_err(told)?;
    let server = server.and_then(|all| all.entries().first());
    let (name, server) = server.ok_or("qstat -B -f: its answer has no \"Server\"")?;
    Ok((name, server))
}

/// Why the server as a whole lets no job be started from here, from `qstat -B -f -F json`; empty: jobs may start.
///
/// # Errors
/// The text is not what qstat prints: a sentence.
pub fn server_bars(text: &str) -> Result<String, String> {
    let told = |why: String| format!("qstat -B -f: {why}");
    let json = Json::parse(text).map_err(told)?;
    let (_, server) = first_server(&json)?;
    if !server
        .text("scheduling")
        .map_err(told)?
        .eq_ignore_ascii_case("true")
    {
        return Ok("scheduling is off on the server".into());
    }
    if let Some(limit) = limit_of(server) {
        return Ok(format!(
            "the server has {limit}, which pbs_sched alone keeps"
        ));
    }
    if server.get("job_sort_formula").map_err(told)?.is_some() {
        return Ok("the server has job_sort_formula, by which pbs_sched alone orders jobs".into());
    }
    Ok(String::new())
}

/// A limit of running jobs or of what they have in sum, which whoever runs a job by qrun passes by.
fn limit_of(json: &Json) -> Option<String> {
    const LIMITS: [&str; 4] = ["max_run", "max_user_", "max_group_", "resources_available"];
    let mut keys = json.entries().iter().map(|(key, _)| key);
    let limit = keys.find(|key| LIMITS.iter().any(|limit| key.starts_with(limit)))?;
    Some(limit.to_string())
}
