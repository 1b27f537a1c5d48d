//! What a PBS says of its jobs and reservations at a moment, as far as two of them can be held against each other.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// What a job or a reservation has, added up over its chunks, and over its subjobs where it is an array.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Given {
    /// Chunks of `exec_vnode`.
    pub chunks: u64,
    /// CPUs.
    pub ncpus: u64,
    /// GPUs.
    pub ngpus: u64,
    /// Memory in KiB.
    pub mem: u64,
}

/// A job, an array or a reservation.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Shape {
    /// How many of its subjobs are in each state; one state where it is a job.
    pub states: BTreeMap<String, usize>,
    /// What those that run or are suspended have.
    pub given: Given,
    /// The exit status, where it has ended.
    pub exit: Option<i64>,
}

/// All of them by the names that a request gives them.
pub type Shapes = BTreeMap<String, Shape>;

/// A look: what is compared, and what is not.
#[derive(Clone, Default, Debug)]
pub struct Look {
    /// What is compared.
    pub shapes: Shapes,
    /// Hosts of each job, which two PBS may choose differently.
    pub hosts: BTreeMap<String, BTreeSet<String>>,
    /// What is said of each that waits.
    pub comments: BTreeMap<String, String>,
    /// What each job and subjob that runs has on its first host.
    pub first_host: BTreeMap<String, FirstHost>,
    /// The same with what the program of each was told of them.
    pub told: BTreeMap<String, (u64, String)>,
}

/// A chunk's vnodes with their resources, as `exec_vnode` and `resv_nodes` have them.
fn vnodes(exec_vnode: &str) -> Vec<Vec<&str>> {
    let words = exec_vnode.split(['(', ')', '+']);
    let words = words.filter(|word| !word.is_empty());
    words.map(|word| word.split(':').collect()).collect()
}

/// The host of a vnode: those that a site makes of one are named `n1[0]`.
fn host(vnode: &str) -> &str {
    vnode.split('[').next().unwrap_or_default()
}

fn kib(size: &str) -> u64 {
    let digits = size.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits.parse().unwrap_or(0);
    match &size[digits.len()..] {
        "gb" => number << 20,
        "mb" => number << 10,
        "b" => number >> 10,
        _ => number,
    }
}

impl Given {
    fn add(&mut self, exec_vnode: &str) {
        self.chunks += exec_vnode.matches('(').count() as u64;
        for word in vnodes(exec_vnode).iter().flatten() {
            let Some((name, value)) = word.split_once('=') else {
                continue;
            };
            let number = value.parse().unwrap_or(0);
            match name {
                "ncpus" => self.ncpus += number,
                "ngpus" => self.ngpus += number,
                "mem" => self.mem += kib(value),
                _ => {}
            }
        }
    }
}

/// The host of a job's first chunk, where its program starts.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct FirstHost {
    /// Its name.
    pub name: String,
    /// GPUs that the job has there.
    pub gpus: u64,
}

impl FirstHost {
    fn of(exec_vnode: &str) -> FirstHost {
        let all = vnodes(exec_vnode);
        let name = all.first().map(|words| host(words[0])).unwrap_or_default();
        let own = all.iter().filter(|words| host(words[0]) == name);
        let gpus = own
            .flatten()
            .filter_map(|word| word.strip_prefix("ngpus=")?.parse::<u64>().ok());
        FirstHost {
            name: name.to_owned(),
            gpus: gpus.sum(),
        }
    }
}

/// The job of a subjob: `24[].head` of `24[3].head`.
fn array(job: &str) -> Option<String> {
    let (number, rest) = job.split_once('[')?;
    let (index, rest) = rest.split_once(']')?;
    (!index.is_empty()).then(|| format!("{number}[]{rest}"))
}

impl Look {
    /// From `qstat -t -x -f -F json`; `names` has the name of each job by its PBS name.
    pub fn of_jobs(jobs: &BTreeMap<String, Value>, names: &BTreeMap<String, String>) -> Look {
        let mut look = Look::default();
        for (id, job) in jobs {
            let state = text(&job["job_state"]);
            // What an array is, its subjobs say.
            let is_begun = id.contains("[]") && ["B", "F", "X"].contains(&&state[..]);
            let parent = array(id);
            let Some(name) = names.get(parent.as_ref().unwrap_or(id)) else {
                continue;
            };
            let shape = look.shapes.entry(name.clone()).or_default();
            if is_begun || id.contains("[]") && has_subjobs(jobs, id) {
                continue;
            }
            *shape.states.entry(state.clone()).or_default() += 1;
            if parent.is_none() {
                shape.exit = job["Exit_status"].as_i64();
            }
            let comment = text(&job["comment"]);
            if ["R", "E", "S"].contains(&&state[..]) {
                let exec_vnode = text(&job["exec_vnode"]);
                shape.given.add(&exec_vnode);
                look.first_host
                    .insert(id.clone(), FirstHost::of(&exec_vnode));
                let hosts = vnodes(&exec_vnode);
                let hosts = hosts.iter().map(|words| host(words[0]).to_owned());
                look.hosts.entry(name.clone()).or_default().extend(hosts);
            } else {
                look.comments.insert(name.clone(), comment);
            }
        }
        look
    }

    /// Adds what `pbs_rstat -f` says.
    pub fn add_reservations(&mut self, said: &str, names: &BTreeMap<String, String>) {
        for part in said.split("\n\n") {
            let value = |key: &str| {
                let line = part.lines().find_map(|line| line.trim().strip_prefix(key));
                line.unwrap_or_default().trim().to_owned()
            };
            let Some(name) = names.get(&value("Resv ID:")) else {
                continue;
            };
            let mut shape = Shape::default();
            shape.states.insert(value("reserve_state ="), 1);
            let nodes = value("resv_nodes =");
            shape.given.add(&nodes);
            let hosts = vnodes(&nodes);
            let hosts = hosts.iter().map(|words| host(words[0]).to_owned());
            self.hosts.insert(name.clone(), hosts.collect());
            self.shapes.insert(name.clone(), shape);
        }
    }
}

fn has_subjobs(jobs: &BTreeMap<String, Value>, id: &str) -> bool {
    jobs.keys().any(|job| array(job).as_deref() == Some(id))
}

/// A value of JSON as PBS writes it: a text may be a number.
pub fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

#[test]
fn what_an_exec_vnode_has_is_added_up() {
    let text = "(n1:ncpus=4:ngpus=2:mem=2gb+n1[0]:ngpus=1)+(n2:ncpus=1:mem=1024kb)";
    let mut given = Given::default();
    given.add(text);
    let sum = Given {
        chunks: 2,
        ncpus: 5,
        ngpus: 3,
        mem: (2 << 20) + 1024,
    };
    assert_eq!(given, sum);
    let first = FirstHost::of(text);
    assert_eq!((&first.name[..], first.gpus), ("n1", 3));
    assert_eq!(array("24[3].head").as_deref(), Some("24[].head"));
    assert_eq!(array("24[].head"), None);
}
