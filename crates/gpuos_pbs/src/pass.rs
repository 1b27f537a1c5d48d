//! One pass over the jobs that wait: which of them start now, and on exactly which vnodes.
//!
//! The texts of one moment come in, a plan goes out; [`gpuos_placement::queue`] decides, as for any workload manager. Here its
//! choices become parts of vnodes, of which no more is given away than is left. [`reserve`] has PBS itself keep what a plan keeps, [`what_if`]
//! asks about a job that is not submitted.

pub mod reserve;
pub mod what_if;

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use gpuos_placement::explain::{sentence, why_wait};
use gpuos_placement::plan::{Choice, Ending, Planner};
use gpuos_placement::queue::{self, Answer, Bounds, Decided, Queue, Waiting};
use serde::Serialize;

use crate::hook::resources::NGPUS;
use crate::state::nodes::{Counts, Host, Nodes, Vnode};
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

/// What a job has of a vnode, or is to have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Part {
    /// Index of the vnode.
    pub vnode: usize,
    /// What of it.
    pub counts: Counts,
}

/// Vnodes of which something is kept for a job that is next and does not fit.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Keeps {
    /// Its whole name.
    pub job: String,
    /// In how many seconds it can start at the earliest, by the time limits of running jobs.
    pub starts_in: i64,
    /// The vnodes on the kept hosts of which the job can get GPUs.
    pub vnodes: Vec<String>,
    /// What it would get of each.
    #[serde(skip)]
    pub parts: Vec<Part>,
}

impl Keeps {
    /// What is kept, in words: `8 GPUs of n1, 8 of n2`.
    pub fn text(&self, nodes: &Nodes) -> String {
        let vnodes = self.parts.iter().filter_map(|part| {
            let vnode = nodes.vnodes.get(part.vnode)?;
            Some((part.counts[0], &vnode.name))
        });
        let texts = vnodes
            .enumerate()
            .map(|(nth, (gpus, name))| match (nth, gpus) {
                (0, 1) => format!("1 GPU of {name}"),
                (0, _) => format!("{gpus} GPUs of {name}"),
                _ => format!("{gpus} of {name}"),
            });
        texts.collect::<Vec<_>>().join(", ")
    }
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
        given: HashMap::new(),
        closed: HashSet::new(),
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
                sentence: of_pbs(&sentence(
                    &site.without_guesses(choice),
                    &waiting[index].request,
                    &site.cluster,
                )),
            }),
            Answer::Waits(wait) => plan.waits.push(stays(job, of_pbs(&why_wait(wait)))),
            Answer::Refused if board.came_late.contains(&index) => {
                let why = "jobs before it in this pass have what it could have";
                plan.waits.push(stays(job, why.into()));
            }
            Answer::Refused => {
                let why = "the hosts whose GPUs it could have lack CPUs or memory for its chunks";
                plan.left.push(stays(job, why.into()));
            }
        }
    }
    for kept in &decided.kept {
        let (job, chunk) = jobs[kept.job];
        let wanted = &waiting[kept.job];
        let hosts = kept.nodes.iter();
        let hosts = hosts.filter_map(|node| site.nodes.hosts.get(*node as usize));
        let count = wanted.request.gpus.units().count.unwrap_or(0);
        let each = count.div_ceil(kept.nodes.len().max(1) as u32).max(1);
        let parts = hosts.flat_map(|host| keep(site, host, chunk, each, &kinds[wanted.kind]));
        let parts: Vec<Part> = parts.collect();
        let names = parts
            .iter()
            .map(|part| site.nodes.vnodes[part.vnode].name.clone());
        plan.keeps.push(Keeps {
            job: job.id.clone(),
            starts_in: kept.starts_in,
            vnodes: names.collect(),
            parts,
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

/// What so many chunks would get of a host's vnodes once these are free.
fn keep(site: &Site, host: &Host, chunk: Chunk, count: u32, kind: &Kind) -> Vec<Part> {
    let mut rest = chunk.counts(count);
    let vnodes = site.nodes.vnodes_of(host);
    let vnodes = vnodes.filter(|(_, vnode)| vnode.gpus.all > 0 && kind.fits(vnode));
    let parts = vnodes.map(|(at, vnode)| Part::of(&mut rest, at, vnode.all()));
    parts.filter(|part| part.counts[0] > 0).collect()
}

/// When running jobs give GPUs back, by host. What a job has that is not listed, such as a task of an array, comes back at a time that nobody
/// knows.
fn endings(site: &Site) -> Vec<Ending> {
    let nodes = &site.nodes;
    let mut endings: Vec<Ending> = Vec::new();
    // Of a vnode that is one job's alone all comes back with that.
    let used = nodes
        .vnodes
        .iter()
        .map(|vnode| match vnode.is_closed(false) {
            true => vnode.gpus.all,
            false => vnode.gpus.used,
        });
    let mut used: Vec<u64> = used.collect();
    let mut add = |at: i64, vnode: usize, gpus: u64| {
        let host = nodes.host_of(vnode).unwrap_or(usize::MAX) as u32;
        if gpus > 0 && !nodes.vnodes[vnode].out {
            endings.push(Ending {
                at,
                node: host,
                gpus: gpus as u32,
            });
        }
    };
    for job in site.jobs.iter().filter(|job| job.has_vnodes()) {
        let at = job.ends_in.unwrap_or(queue::ENDLESS);
        for given in job.given.iter().flatten() {
            if let Some(vnode) = nodes.vnode(&given.vnode) {
                let gpus = match nodes.vnodes[vnode].is_closed(false) {
                    true => used[vnode],
                    false => given.count(NGPUS).min(used[vnode]),
                };
                used[vnode] -= gpus;
                add(at, vnode, gpus);
            }
        }
    }
    for (vnode, rest) in used.into_iter().enumerate() {
        add(queue::ENDLESS, vnode, rest);
    }
    endings
}

/// What this pass has given away.
struct Board<'s> {
    site: &'s Site,
    /// What was given of a vnode, by its index.
    given: HashMap<usize, Counts>,
    /// Vnodes that a job of this pass has to itself.
    closed: HashSet<usize>,
    /// Jobs that a place was refused on which something is an earlier job's by now.
    came_late: HashSet<usize>,
}

impl Board<'_> {
    /// What a job gets of vnodes for a choice, as `qrun -H` takes it; then it is given away. `None`: the hosts do not hold the job.
    fn give(&mut self, job: usize, choice: &Choice, chunk: Chunk, kind: &Kind) -> Option<String> {
        let nodes = &self.site.nodes;
        let mut chunks: Vec<Vec<Part>> = Vec::new();
        let mut own: HashMap<usize, Counts> = HashMap::new();
        for chosen in &choice.nodes {
            let host = nodes.hosts.get(chosen.node as usize)?;
            for _ in 0..chosen.gpus.len() as u32 / chunk.gpus.max(1) {
                let Some(parts) = self.parts(host, chunk, kind, &own) else {
                    if host.vnodes.iter().any(|at| self.given.contains_key(at)) {
                        self.came_late.insert(job);
                    }
                    return None;
                };
                for part in &parts {
                    add(&mut own, part.vnode, part.counts);
                }
                chunks.push(parts);
            }
        }
        let closes = |part: &&Part| kind.alone || nodes.vnodes[part.vnode].is_unshared();
        let closed = chunks.iter().flatten().filter(closes);
        self.closed.extend(closed.map(|part| part.vnode));
        for (vnode, counts) in own {
            add(&mut self.given, vnode, counts);
        }
        Some(self.text(&chunks))
    }

    /// What a chunk gets of a host's vnodes: all of one of them if one has it, else of several, those with GPUs first.
    fn parts(
        &self,
        host: &Host,
        chunk: Chunk,
        kind: &Kind,
        own: &HashMap<usize, Counts>,
    ) -> Option<Vec<Part>> {
        let is_open = |(at, vnode): &(usize, &Vnode)| {
            let alone = kind.alone || vnode.is_unshared();
            let others = self.closed.contains(at) || alone && self.given.contains_key(at);
            kind.allows(vnode) && !others
        };
        let open = self.site.nodes.vnodes_of(host).filter(is_open);
        let room = |(at, vnode): (usize, &Vnode)| {
            let mut room = vnode.left();
            for given in [self.given.get(&at), own.get(&at)].into_iter().flatten() {
                room = std::array::from_fn(|nth| room[nth].saturating_sub(given[nth]));
            }
            (at, room)
        };
        let mut rooms: Vec<(usize, Counts)> = open.map(room).collect();
        let mut rest = chunk.counts(1);
        let holds = |room: &Counts| (0..3).all(|nth| room[nth] >= rest[nth]);
        rooms.sort_by_key(|(_, room)| (!holds(room), room[0] == 0));
        let parts = rooms
            .into_iter()
            .map(|(at, room)| Part::of(&mut rest, at, room));
        let parts: Vec<Part> = parts.filter(|part| part.counts != [0; 3]).collect();
        (rest == [0; 3]).then_some(parts)
    }

    fn text(&self, chunks: &[Vec<Part>]) -> String {
        let chunk = |parts: &Vec<Part>| {
            let parts = parts.iter().map(|part| part.text(&self.site.nodes));
            format!("({})", parts.collect::<Vec<_>>().join("+"))
        };
        chunks.iter().map(chunk).collect::<Vec<_>>().join("+")
    }
}

fn add(sums: &mut HashMap<usize, Counts>, vnode: usize, more: Counts) {
    let sum = sums.entry(vnode).or_default();
    *sum = std::array::from_fn(|nth| sum[nth] + more[nth]);
}

impl Part {
    /// Takes from what is still wanted what there is on a vnode.
    fn of(rest: &mut Counts, vnode: usize, has: Counts) -> Part {
        let counts: Counts = std::array::from_fn(|nth| rest[nth].min(has[nth]));
        *rest = std::array::from_fn(|nth| rest[nth] - counts[nth]);
        Part { vnode, counts }
    }

    /// As a part of `exec_vnode`.
    fn text(&self, nodes: &Nodes) -> String {
        let mut text = nodes.vnodes[self.vnode].name.clone();
        let [gpus, cpus, memory_kib] = self.counts;
        for (name, count, unit) in [
            ("ncpus", cpus, ""),
            ("mem", memory_kib, "kb"),
            ("ngpus", gpus, ""),
        ] {
            if count > 0 {
                let _ = write!(text, ":{name}={count}{unit}");
            }
        }
        text
    }
}
