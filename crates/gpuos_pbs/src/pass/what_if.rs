//! A job that is not submitted: what would become of it now, after all jobs that wait already.
//!
//! It is read, checked and planned as a job of PBS is: by the hook's own answer to its submission, and in a pass over the whole queue.

use std::collections::{BTreeMap, HashSet};

use gpuos_model::mig::Geometry;
use gpuos_placement::plan::{Choice, Planner, Wait};
use gpuos_placement::queue::{Answer, Bounds};
use serde_json::json;

use super::{Start, plan};
use crate::hook::beyond::Beyond;
use crate::hook::decide;
use crate::hook::event::{Edit, Event, SCHEMA, Value};
use crate::hook::run::in_one_piece;
use crate::state::wanted::Wanted;
use crate::state::{Job, Site, scope};
use crate::units::seconds;

/// Its name in a plan; no job of PBS has such a one.
const NAME: &str = "the job";

/// A job as its user would submit it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Asked {
    /// `-l select=`.
    pub select: String,
    /// `-l place=`; empty: none.
    pub place: String,
    /// What is said with `-l` beside these, by resource.
    pub resources: Vec<(String, String)>,
    /// `-q`; empty: the queue that the server has for such jobs.
    pub queue: String,
}

/// What would become of it.
#[derive(Clone, PartialEq, Debug)]
pub enum Outcome {
    /// It starts.
    Starts {
        /// On these vnodes.
        start: Start,
        /// The same by indices of hosts.
        choice: Choice,
    },
    /// It waits for room.
    Waits {
        /// Why, in words.
        why: String,
        /// The same for programs; `None`: no single place would hold it, though there is room.
        wait: Option<Wait>,
        /// In how many seconds it can start at the earliest, if it is the first that waits.
        starts_in: Option<i64>,
        /// In how many seconds the first job can start that vnodes are kept for: whoever ends before then may have them.
        kept_for: Option<i64>,
    },
    /// pbs_sched alone places it, for this reason.
    Left(String),
    /// It has no GPUs or parts of some, and pbs_sched places it.
    WithoutGpus {
        /// Which of the two, as a sentence without its end.
        why: &'static str,
        /// The hosts that have room for a chunk of it now; `None`: not all of it has room.
        room: Option<Vec<String>>,
    },
}

/// An answer about a job.
#[derive(Clone, PartialEq, Debug)]
pub struct Told {
    /// What becomes of it.
    pub outcome: Outcome,
    /// Why no host could ever have it; empty: some could.
    pub never: String,
    /// GPUs that are free for such a job, whoever else waits.
    pub free_gpus: usize,
    /// Hosts that have these.
    pub free_hosts: usize,
}

impl Asked {
    /// The command that submits it, without the script.
    pub fn qsub(&self) -> String {
        let mut words = vec!["qsub".to_owned()];
        if !self.queue.is_empty() {
            words.push(format!("-q {}", self.queue));
        }
        words.push(format!("-l select={}", self.select));
        if !self.place.is_empty() {
            words.push(format!("-l place={}", self.place));
        }
        words.extend(self.resources.iter().map(|(name, value)| {
            match value.contains(',') {
                // qsub itself divides what it is given at commas.
                true => format!("-l '{name}=\"{value}\"'"),
                false => format!("-l {name}={value}"),
            }
        }));
        words.join(" ")
    }

    /// The job as PBS has it once the hook has seen it.
    ///
    /// # Errors
    /// The hook refuses it, or there is no such queue: a sentence.
    pub fn job(&self, site: &Site) -> Result<Job, String> {
        let queue = match &self.queue[..] {
            "" => &site.server.default_queue[..],
            named => named,
        };
        if site.queue(queue).is_none() {
            let known: Vec<&str> = site.queues.iter().map(|queue| &queue.name[..]).collect();
            let which = match queue {
                "" => "PBS has no queue for jobs that name none".to_owned(),
                queue => format!("PBS has no queue {queue}"),
            };
            return Err(format!("{which}; name one of {}", known.join(", ")));
        }
        let given = [("select", &self.select), ("place", &self.place)];
        let given = given.map(|(name, value)| (name.to_owned(), value.clone()));
        let mut resources: Vec<(String, String)> = given.into_iter().collect();
        resources.extend(self.resources.iter().cloned());
        resources.retain(|(_, value)| !value.is_empty());
        if let Some((_, limit)) = resources.iter().find(|(name, _)| name == "walltime")
            && seconds(limit).is_none()
        {
            return Err(format!(
                "'{limit}' is no time limit; write seconds or HOURS:MINUTES:SECONDS"
            ));
        }
        for edit in seen_by_the_hook(&resources, site)? {
            let Edit::Resource {
                name,
                value: Value::Text(value),
            } = edit
            else {
                continue;
            };
            resources.retain(|(known, _)| *known != name);
            resources.push((name, value));
        }
        let mut job = Job {
            id: NAME.into(),
            state: "Q".into(),
            queue: queue.to_owned(),
            resources,
            ..Job::default()
        };
        job.place = job.resource("place").unwrap_or_default().to_owned();
        // With what the hook has counted in it.
        job.select = job.resource("select").unwrap_or_default().to_owned();
        Ok(job)
    }
}

/// What jobs can have of memory beyond that of GPUs, by gpuos.toml as it is now; the hook has it as it was when it was installed.
fn beyond(site: &Site) -> Option<Beyond> {
    let nodes = &site.nodes;
    let hosts = nodes.hosts.iter();
    let hosts = hosts.filter(|host| nodes.gives_whole_gpus(host));
    Beyond::of(
        &site.config,
        hosts.map(|host| (host.name.split('.').next().unwrap_or_default(), host.gpus)),
    )
}

/// How GPUs of the site can be divided, by the names of their kinds.
fn boards(site: &Site) -> BTreeMap<String, Geometry> {
    let boards = site.config.mig.boards.iter();
    boards
        .map(|board| (board.name.clone(), board.geometry.clone()))
        .collect()
}

/// What the hook changes of a job that is submitted on a site with a planner.
fn seen_by_the_hook(resources: &[(String, String)], site: &Site) -> Result<Vec<Edit>, String> {
    let resources: BTreeMap<&str, &str> = resources
        .iter()
        .map(|(name, value)| (&name[..], &value[..]))
        .collect();
    let event = json!({
        "schema": SCHEMA,
        "event": "queuejob",
        "planner": true,
        "memory": beyond(site),
        "boards": boards(site),
        "job": { "resources": resources },
    });
    let verdict = decide(&Event::read(&event.to_string())?);
    match verdict.refused {
        Some(sentence) => Err(sentence),
        None => Ok(verdict.edits),
    }
}

/// What would become of a job that is submitted now.
///
/// # Errors
/// It would be refused: with the sentence.
pub fn ask(site: &Site, planner: &mut Planner, asked: &Asked) -> Result<Told, String> {
    let job = asked.job(site)?;
    let never = scope::scope(&job, site).err().unwrap_or_default();
    let without = |why: &'static str, job: &Job| {
        let room = scope::room(job, site);
        Ok(Told {
            never: never.clone(),
            free_gpus: 0,
            free_hosts: room.iter().flatten().count(),
            outcome: Outcome::WithoutGpus { why, room },
        })
    };
    if let Some(one_piece) = with_fits(&job, &boards(site)) {
        return without("it has parts of GPUs", &one_piece);
    }
    let states = match Wanted::of(&job, site) {
        Ok(wanted) => wanted.kind.states(site),
        Err(why) if why.is_empty() => return without("it has no GPUs", &job),
        Err(_) => Vec::new(),
    };
    let free = states.iter().filter(|state| state.candidate);
    let free: Vec<usize> = free.map(|state| state.free.len()).collect();
    let mut with = site.clone();
    with.jobs.push(job);
    Ok(Told {
        never,
        outcome: outcome(&with, planner),
        free_gpus: free.iter().sum(),
        free_hosts: free.iter().filter(|count| **count > 0).count(),
    })
}

/// A job with slices or a share with what it has to have of one GPU, which is looked at where its start was refused; `None`: it has neither.
fn with_fits(job: &Job, boards: &BTreeMap<String, Geometry>) -> Option<Job> {
    let resources = job.resources.iter().cloned().collect();
    let select = in_one_piece(&resources, boards)?;
    Some(Job {
        select: select.to_string(),
        ..job.clone()
    })
}

/// The same if no other job waited.
///
/// # Errors
/// As [`ask`].
pub fn ask_alone(site: &Site, planner: &mut Planner, asked: &Asked) -> Result<Told, String> {
    let mut alone = site.clone();
    alone.jobs.retain(|job| job.state != "Q");
    ask(&alone, planner, asked)
}

fn outcome(site: &Site, planner: &mut Planner) -> Outcome {
    let mut plan = plan(site, planner, Bounds::default(), &HashSet::new());
    let is_own = |job: &String| job == NAME;
    if let Some(left) = plan.left.iter().find(|left| is_own(&left.job)) {
        return Outcome::Left(left.why.clone());
    }
    let at = plan.asked.iter().position(is_own).unwrap_or(usize::MAX);
    let mut starts = plan.starts.drain(..);
    let start = starts.find(|start| is_own(&start.job));
    drop(starts);
    let answer = plan.decided.answers.get(at);
    if let (Some(start), Some(Answer::Starts(choice))) = (start, answer) {
        return Outcome::Starts {
            start,
            choice: site.without_guesses(choice),
        };
    }
    let waits = plan.waits.iter().find(|waits| is_own(&waits.job));
    let kept = plan.keeps.iter().find(|keeps| is_own(&keeps.job));
    Outcome::Waits {
        why: waits.map_or_else(String::new, |waits| waits.why.clone()),
        wait: match answer {
            Some(Answer::Waits(wait)) => Some(wait.clone()),
            _ => None,
        },
        starts_in: kept.map(|kept| kept.starts_in),
        kept_for: plan
            .keeps
            .iter()
            .filter(|keeps| !is_own(&keeps.job))
            .map(|keeps| keeps.starts_in)
            .min(),
    }
}
