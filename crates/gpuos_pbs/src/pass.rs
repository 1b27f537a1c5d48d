//! One pass over the jobs that wait: which of them start now, and on exactly which vnodes.
//!
//! The texts of one moment come in, a plan goes out; [`gpuos_placement::queue`] decides, as for any workload manager. Here its
//! choices become vnodes, each of which is given to one job at most. [`reserve`] has PBS itself keep what a plan keeps, [`what_if`] asks
//! about a job that is not submitted.

pub mod reserve;
pub mod what_if;

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use gpuos_placement::explain::{sentence, why_wait};
use gpuos_placement::plan::{Choice, Ending, Planner};
use gpuos_placement::queue::{self, Answer, Bounds, Decided, Queue, Waiting};
use serde::Serialize;

use crate::state::wanted::{Chunk, Kind, Wanted};
use crate::state::{Job, Site};

/// The most kinds of jobs in one pass ([`Kind`]): each is a look at all vnodes, and users say how many there are.
const MOST_KINDS: usize = 64;

/// A job that starts now.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Start {
    /// Its whole name.
    pub job: String,
    /// Its vnodes, chunk by chunk, as `qrun -H` takes them.
    pub exec_vnode: String,
    /// Where that is, in words.
    pub sentence: String,
}

/// A job that waits, and why.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Stays {
    /// Its whole name.
    pub job: String,
    /// Why, in words.
    pub why: String,
}

/// Vnodes that are kept for a job that is next and does not fit.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Keeps {
    /// Its whole name.
    pub job: String,
    /// In how many seconds it can start at the earliest, by the time limits of running jobs.
    pub starts_in: i64,
    /// The vnodes of GPUs on the kept hosts.
    pub vnodes: Vec<String>,
}

/// What is to be done now.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Plan {
    /// Jobs that start, in the order in which they come.
    pub starts: Vec<Start>,
    /// What no other job is given from here.
    pub keeps: Vec<Keeps>,
    /// Jobs that have to wait for room.
    pub waits: Vec<Stays>,
    /// Jobs with GPUs that pbs_sched alone places.
    pub left: Vec<Stays>,
    /// What the planner answered, job by job, by indices of hosts.
    #[serde(skip)]
    pub decided: Decided,
    /// The jobs that it was asked about, by their whole names, in the same order.
    #[serde(skip)]
    pub asked: Vec<String>,
}

/// Plans for all GPU jobs that wait, but those that PBS refused to run lately: they would have their vnodes in the plan and
/// not start there. The same site gives the same plan.
pub fn plan(site: &Site, planner: &mut Planner, bounds: Bounds, refused: &HashSet<String>) -> Plan {
    let mut plan = Plan::default();
    let mut kinds: Vec<Kind> = Vec::new();
    let mut jobs: Vec<(&Job, Chunk)> = Vec::new();
    let mut queue = Queue {
        endings: endings(site),
        ..Queue::default()
    };
    for job in in_order(site) {
        let wanted = match &job.unreadable[..] {
            "" => Wanted::of(job, site),
            why => Err(format!("it cannot be read: {why}")),
        };
        let wanted = wanted.and_then(|wanted| match &site.barred[..] {
            "" => Ok(wanted),
            barred => Err(barred.to_owned()),
        });
        let wanted = wanted.and_then(|wanted| match refused.contains(&job.id) {
            true => Err("PBS refused to run it lately".into()),
            false => Ok(wanted),
        });
        match wanted {
            // It has no GPUs.
            Err(why) if why.is_empty() => {}
            Err(why) => plan.left.push(stays(job, why)),
            Ok(wanted) => {
                let known = kinds.iter().position(|kind| *kind == wanted.kind);
                if known.is_none() && kinds.len() == MOST_KINDS {
                    let why = format!("more than {MOST_KINDS} kinds of requests are before it");
                    plan.left.push(stays(job, why));
                    continue;
                }
                let kind = known.unwrap_or_else(|| {
                    queue.kinds.push(wanted.kind.states(site));
                    kinds.push(wanted.kind);
                    kinds.len() - 1
                });
                queue.waiting.push(Waiting {
                    more_memory_mib: wanted.request.memory_mib_per_node,
                    request: wanted.request,
                    kind,
                    ends_in: job.walltime(),
                });
                jobs.push((job, wanted.chunk));
            }
        }
    }
    let waiting = queue.waiting.clone();
    let mut board = Board {
        site,
        taken: HashMap::new(),
        came_late: HashSet::new(),
    };
    let mut texts: HashMap<usize, String> = HashMap::new();
    let mut accept = |index: usize, choice: &Choice| {
        let (_, chunk) = jobs[index];
        let kind = &kinds[waiting[index].kind];
        let text = board.give(index, choice, chunk, kind);
        text.map(|text| texts.insert(index, text)).is_some()
    };
    let decided = queue::pass(planner, queue, bounds, &mut accept);
    for (index, (answer, (job, _))) in decided.answers.iter().zip(&jobs).enumerate() {
        match answer {
            Answer::Starts(choice) => plan.starts.push(Start {
                job: job.id.clone(),
                exec_vnode: texts.remove(&index).unwrap_or_default(),
                sentence: of_pbs(&sentence(choice, &waiting[index].request, &site.cluster)),
            }),
            Answer::Waits(wait) => plan.waits.push(stays(job, of_pbs(&why_wait(wait)))),
            Answer::Refused if board.came_late.contains(&index) => {
                let why =
                    "jobs before it in this pass have the vnodes of the GPUs that it could have";
                plan.waits.push(stays(job, why.into()));
            }
            Answer::Refused => {
                let why = "the vnodes of the GPUs that it could have lack CPUs or memory for it";
                plan.left.push(stays(job, why.into()));
            }
        }
    }
    for kept in &decided.kept {
        let hosts = kept.nodes.iter();
        let hosts = hosts.filter_map(|node| site.nodes.hosts.get(*node as usize));
        let vnodes = hosts.flat_map(|host| site.nodes.vnodes_of(host));
        let with_gpus = vnodes.filter(|(_, vnode)| vnode.gpus.all > 0 && !vnode.is_in_parts());
        plan.keeps.push(Keeps {
            job: jobs[kept.job].0.id.clone(),
            starts_in: kept.starts_in,
            vnodes: with_gpus.map(|(_, vnode)| vnode.name.clone()).collect(),
        });
    }
    plan.asked = jobs.iter().map(|(job, _)| job.id.clone()).collect();
    plan.decided = decided;
    plan
}

/// A sentence of the planner as it is right of PBS: what users write has another form there.
fn of_pbs(sentence: &str) -> String {
    let written = sentence.replace("--gpuos-", "-l gpuos_");
    written.replace("Slurm offers", "PBS offers")
}

fn stays(job: &Job, why: String) -> Stays {
    Stays {
        job: job.id.clone(),
        why,
    }
}

/// The jobs that may start now, those of queues with a higher priority first, else in PBS's order.
fn in_order(site: &Site) -> Vec<&Job> {
    let priority: HashMap<&str, i64> = site
        .queues
        .iter()
        .map(|queue| (&queue.name[..], queue.priority))
        .collect();
    let mut jobs: Vec<&Job> = site.jobs.iter().filter(|job| job.state == "Q").collect();
    let of = |job: &Job| priority.get(&job.queue[..]).copied().unwrap_or(0);
    jobs.sort_by_key(|job| std::cmp::Reverse(of(job)));
    jobs
}

/// When running jobs give GPUs back, by host: those of whole vnodes, which are one job's alone. What a job has that is not
/// listed, such as a task of an array, comes back at a time that nobody knows.
fn endings(site: &Site) -> Vec<Ending> {
    let mut endings = Vec::new();
    let comes_back = |at: &usize| {
        let vnode = site.nodes.vnodes.get(*at)?;
        let comes = vnode.exclusive && vnode.taken && !vnode.out && vnode.gpus.all > 0;
        let host = site.nodes.host_of(*at).filter(|_| comes)?;
        Some((host, vnode.gpus.all as u32))
    };
    let mut listed: HashSet<usize> = HashSet::new();
    for job in site.jobs.iter().filter(|job| job.has_vnodes()) {
        let at = job.ends_in.unwrap_or(queue::ENDLESS);
        let mut hosts: Vec<(usize, u32)> = Vec::new();
        for given in job.given.iter().flatten() {
            let vnode = site.nodes.vnode(&given.vnode);
            let vnode = vnode.filter(|vnode| listed.insert(*vnode));
            if let Some((host, gpus)) = vnode.as_ref().and_then(comes_back) {
                match hosts.iter_mut().find(|(known, _)| *known == host) {
                    Some((_, sum)) => *sum = sum.saturating_add(gpus),
                    None => hosts.push((host, gpus)),
                }
            }
        }
        endings.extend(hosts.into_iter().map(|(host, gpus)| Ending {
            at,
            node: host as u32,
            gpus,
        }));
    }
    let others = (0..site.nodes.vnodes.len()).filter(|vnode| !listed.contains(vnode));
    let others = others.filter_map(|vnode| comes_back(&vnode));
    endings.extend(others.map(|(host, gpus)| Ending {
        at: queue::ENDLESS,
        node: host as u32,
        gpus,
    }));
    endings
}

/// What this pass has given away.
struct Board<'s> {
    site: &'s Site,
    /// The job that was given a vnode, by index of both.
    taken: HashMap<usize, usize>,
    /// Jobs that a place was refused because a vnode of it is an earlier job's by now.
    came_late: HashSet<usize>,
}

/// What a chunk gets of a vnode.
#[derive(Clone, Copy, Default)]
struct Part {
    vnode: usize,
    gpus: u64,
    cpus: u64,
    memory_kib: u64,
}

impl Board<'_> {
    /// The vnodes of a choice as `qrun -H` takes them; then they are given away. `None`: they do not hold the job.
    fn give(&mut self, job: usize, choice: &Choice, chunk: Chunk, kind: &Kind) -> Option<String> {
        let mut chunks: Vec<Vec<Part>> = Vec::new();
        // What the job itself has of a vnode so far: one with several GPUs may serve several of its chunks.
        let mut own: HashMap<usize, Part> = HashMap::new();
        for chosen in &choice.nodes {
            let nodes = &self.site.nodes;
            let host = nodes.hosts.get(chosen.node as usize)?;
            let mut gpus = chosen.gpus.iter();
            let count = chosen.gpus.len() as u32 / chunk.gpus.max(1);
            for _ in 0..count {
                let mut parts: Vec<Part> = Vec::new();
                for gpu in gpus.by_ref().take(chunk.gpus as usize) {
                    let mut vnodes = nodes.vnodes_of(host);
                    let (at, _) = vnodes.find(|(_, vnode)| {
                        let free = vnode.gpu_sets(&kind.has_left).1.contains(gpu);
                        free && kind.allows(vnode)
                    })?;
                    if self.taken.contains_key(&at) {
                        self.came_late.insert(job);
                        return None;
                    }
                    match parts.iter_mut().find(|part| part.vnode == at) {
                        Some(part) => part.gpus += 1,
                        None => parts.push(Part {
                            vnode: at,
                            gpus: 1,
                            ..Part::default()
                        }),
                    }
                }
                self.share(&mut parts, &mut own, chunk)?;
                chunks.push(parts);
            }
        }
        self.taken.extend(own.keys().map(|vnode| (*vnode, job)));
        Some(self.text(&chunks))
    }

    /// Divides a chunk's CPUs and memory among the vnodes of its GPUs, as evenly as they have them.
    fn share(
        &self,
        parts: &mut [Part],
        own: &mut HashMap<usize, Part>,
        chunk: Chunk,
    ) -> Option<()> {
        let (mut cpus, mut memory) = (u64::from(chunk.cpus), chunk.memory_kib);
        for even in [true, false] {
            let mut left = parts.len() as u64;
            for part in parts.iter_mut() {
                let vnode = self.site.nodes.vnodes.get(part.vnode)?;
                let used = own.entry(part.vnode).or_default();
                let most = |wanted: u64| match even {
                    true => wanted.div_ceil(left),
                    false => wanted,
                };
                let more = most(cpus).min(vnode.cpus.free().saturating_sub(used.cpus));
                let free = vnode.memory_kib.free();
                let more_memory = most(memory).min(free.saturating_sub(used.memory_kib));
                part.cpus += more;
                part.memory_kib += more_memory;
                used.cpus += more;
                used.memory_kib += more_memory;
                cpus -= more;
                memory -= more_memory;
                left -= 1;
            }
        }
        (cpus == 0 && memory == 0).then_some(())
    }

    fn text(&self, chunks: &[Vec<Part>]) -> String {
        let mut text = String::new();
        for (nth, parts) in chunks.iter().enumerate() {
            text += if nth > 0 { "+(" } else { "(" };
            for (nth, part) in parts.iter().enumerate() {
                let name = self.site.nodes.vnodes.get(part.vnode);
                let name = name.map_or("", |vnode| &vnode.name);
                text += if nth > 0 { "+" } else { "" };
                text += name;
                if part.cpus > 0 {
                    let _ = write!(text, ":ncpus={}", part.cpus);
                }
                if part.memory_kib > 0 {
                    let _ = write!(text, ":mem={}kb", part.memory_kib);
                }
                let _ = write!(text, ":ngpus={}", part.gpus);
            }
            text.push(')');
        }
        text
    }
}
