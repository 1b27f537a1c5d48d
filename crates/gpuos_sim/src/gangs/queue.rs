//! The scheduler around the policies: a queue as Slurm runs it, in simulated time.
//!
//! Jobs wait in the order of their submission. Whenever one comes or ends, those at the head are
//! started as long as they fit (`sched/builtin`'s pass). Every [`Settings::interval`] seconds at
//! most, if something has changed, backfill looks at the first [`Settings::depth`] jobs behind
//! the head (`bf_interval` and `bf_max_job_test`, Slurm's defaults): the head gets a reservation,
//! that is the earliest moment at which it fits when every running job lasts to its time limit,
//! and the nodes that the policy would choose for it then; a job behind it starts now if it ends
//! by its limit before that moment, or if it fits on the other nodes (EASY backfill; Lifka 1995).
//! Slurm reserves for each job that it tests; one reservation is the simpler rule, starts no job
//! later than Slurm would need for the head, and is the same for all policies.
//!
//! [`Reserve::All`] is closer to Slurm where that matters: all jobs that a pass looks at are given a
//! reservation, which holds its nodes whole and begins at the full minute before its start, as
//! `bf_resolution` has it. So a node that somebody waits for is out of reach for those behind.
//!
//! A policy may be patient: then a gang whose turn has come takes only a close place until its
//! patience ends, has no reservation meanwhile, and those behind it are served past it.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};

use gpuos_model::gpuset::GpuSet;
use gpuos_placement::plan::{NodeChoice, quarters};

use super::policy::{Ask, FreeCapacity, Policy};
use super::workload::Job;

/// How the queue is run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Seconds between two passes of backfill.
    pub interval: i64,
    /// Jobs that a pass of backfill looks at.
    pub depth: usize,
    /// Who gets a reservation.
    pub reserve: Reserve,
    /// Jobs end by a clock that tells starts to so many units of time only, in the middle of them, so
    /// that those of one unit end together; 0 = by the moment itself. Less than the shortest run.
    pub clock: i64,
}

/// Which waiting jobs get a reservation in a pass of backfill.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reserve {
    /// The head of the queue (EASY).
    Head,
    /// Every job that does not start, as Slurm does it. Begin and end of a reservation are rounded down
    /// to multiples of so many units of time (`bf_resolution`).
    All(i64),
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            interval: 30,
            depth: 500,
            reserve: Reserve::Head,
            clock: 0,
        }
    }
}

/// Is told what happens, in the order of time.
pub trait Observer {
    /// A job started at `now` on these nodes.
    fn started(&mut self, now: i64, job: &Job, nodes: &[NodeChoice]);
    /// A job ended, and gives these nodes back.
    fn ended(&mut self, now: i64, job: &Job, nodes: &[NodeChoice]);
}

/// The free GPUs of all nodes, and how many nodes have how many free.
#[derive(Clone)]
struct Free {
    sets: Vec<GpuSet>,
    /// By number of free GPUs: nodes.
    counts: Vec<u32>,
}

impl Free {
    fn new(nodes: u32, gpus: u32) -> Free {
        let mut counts = vec![0; gpus as usize + 1];
        counts[gpus as usize] = nodes;
        Free {
            sets: vec![GpuSet::first(gpus as usize); nodes as usize],
            counts,
        }
    }

    fn set(&mut self, node: u32, free: GpuSet) {
        let known = &mut self.sets[node as usize];
        self.counts[known.len()] -= 1;
        self.counts[free.len()] += 1;
        *known = free;
    }

    fn take(&mut self, nodes: &[NodeChoice]) {
        for at in nodes {
            let left = self.sets[at.node as usize].minus(at.gpus);
            self.set(at.node, left);
        }
    }

    fn give(&mut self, nodes: &[NodeChoice]) {
        for at in nodes {
            let free = self.sets[at.node as usize];
            self.set(at.node, GpuSet(free.0 | at.gpus.0));
        }
    }

    fn fits(&self, ask: Ask) -> bool {
        fits(&self.counts, ask)
    }
}

/// All that a job needs is so many nodes with so many free GPUs: whether it fits depends on the
/// counts alone, whatever the policy.
fn fits(counts: &[u32], ask: Ask) -> bool {
    let able = counts.iter().skip(ask.per_node as usize);
    able.sum::<u32>() >= ask.nodes
}

fn ask(job: &Job) -> Ask {
    Ask {
        nodes: job.nodes,
        per_node: job.per_node,
        until: 0,
    }
}

struct Sim<'a> {
    jobs: &'a [Job],
    policy: &'a mut dyn Policy,
    observer: &'a mut dyn Observer,
    clock: i64,
    free: Free,
    waiting: VecDeque<u32>,
    /// By job: its nodes while it runs.
    held: Vec<Vec<NodeChoice>>,
    ends: BinaryHeap<Reverse<(i64, u32)>>,
    /// The running jobs by the moment at which their limit is reached.
    limits: BTreeSet<(i64, u32)>,
    /// By node: when its last job ends by its limit, as the planner has it; its jobs.
    until: Vec<u32>,
    on: Vec<Vec<u32>>,
    /// By job: its entry in `limits`.
    limit_of: Vec<i64>,
    /// By job: until when it waits for a close place; 0 = its turn has not come yet.
    patient: Vec<i64>,
    /// The moments at which the patience of a job ends.
    retries: BinaryHeap<Reverse<i64>>,
}

/// Runs all jobs to their ends. `jobs` are in the order of their submit times, and each fits on
/// the empty cluster.
///
/// Errors: a sentence, when the policy breaks the contract of [`Policy::place`].
pub fn run(
    jobs: &[Job],
    nodes: u32,
    node_gpus: u32,
    settings: Settings,
    policy: &mut dyn Policy,
    observer: &mut dyn Observer,
) -> Result<(), String> {
    let mut sim = Sim {
        jobs,
        policy,
        observer,
        clock: settings.clock,
        free: Free::new(nodes, node_gpus),
        waiting: VecDeque::new(),
        held: vec![Vec::new(); jobs.len()],
        ends: BinaryHeap::new(),
        limits: BTreeSet::new(),
        until: vec![0; nodes as usize],
        on: vec![Vec::new(); nodes as usize],
        limit_of: vec![0; jobs.len()],
        patient: vec![0; jobs.len()],
        retries: BinaryHeap::new(),
    };
    let mut next = 0;
    let mut last_pass = i64::MIN / 2;
    let mut changed = false;
    loop {
        let submit = jobs.get(next).map(|job| job.submit);
        let end = sim.ends.peek().map(|Reverse((end, _))| *end);
        let pass = (changed && !sim.waiting.is_empty()).then_some(last_pass + settings.interval);
        let retry = sim.retries.peek().map(|Reverse(moment)| *moment);
        let Some(now) = [submit, end, pass, retry].into_iter().flatten().min() else {
            return Ok(());
        };
        while let Some(&Reverse((end, id))) = sim.ends.peek() {
            if end > now {
                break;
            }
            sim.ends.pop();
            sim.end(now, id);
            changed = true;
        }
        while sim
            .retries
            .peek()
            .is_some_and(|Reverse(moment)| *moment <= now)
        {
            sim.retries.pop();
            changed = true;
        }
        while jobs.get(next).is_some_and(|job| job.submit <= now) {
            sim.waiting.push_back(next as u32);
            sim.policy.arrives(ask(&jobs[next]));
            next += 1;
            changed = true;
        }
        let head = sim.in_order(now, settings.depth)?;
        if changed && now >= last_pass + settings.interval {
            match settings.reserve {
                Reserve::Head => sim.backfill(now, head, settings.depth)?,
                Reserve::All(grain) => sim.plan_all(now, head, settings.depth, grain)?,
            }
            last_pass = now;
            changed = false;
        }
    }
}

impl Sim<'_> {
    fn end(&mut self, now: i64, id: u32) {
        let nodes = std::mem::take(&mut self.held[id as usize]);
        self.free.give(&nodes);
        self.limits.remove(&(self.limit_of[id as usize], id));
        for at in &nodes {
            let on = &mut self.on[at.node as usize];
            on.retain(|&other| other != id);
            let last = on.iter().map(|&other| self.limit_of[other as usize]).max();
            self.until[at.node as usize] = last.map_or(0, quarters);
        }
        self.observer.ended(now, &self.jobs[id as usize], &nodes);
    }

    /// Starts a job that fits; `false`: it waits for a close place.
    fn start(&mut self, now: i64, id: u32, kept: &[bool]) -> Result<bool, String> {
        let job = &self.jobs[id as usize];
        let patient = self.patient(now, id);
        let room = FreeCapacity {
            free: &self.free.sets,
            reserved: kept,
            until: &self.until,
        };
        let until = quarters(now + job.limit);
        let timed = Ask { until, ..ask(job) };
        let nodes = self.policy.place(room, timed, patient);
        if nodes.is_none() && patient {
            return Ok(false);
        }
        let nodes = nodes.filter(|nodes| sound(room, ask(job), nodes));
        let nodes = nodes.ok_or_else(|| {
            format!(
                "the policy does not place {} nodes with {} GPUs each, although they are free",
                job.nodes, job.per_node
            )
        })?;
        self.observer.started(now, job, &nodes);
        self.free.take(&nodes);
        let told = match self.clock {
            0 => now,
            clock => now.div_euclid(clock) * clock + clock / 2,
        };
        self.ends.push(Reverse((told + job.run, id)));
        self.limit_of[id as usize] = now + job.limit;
        self.limits.insert((now + job.limit, id));
        for at in &nodes {
            self.on[at.node as usize].push(id);
            let last = &mut self.until[at.node as usize];
            *last = (*last).max(until);
        }
        self.held[id as usize] = nodes;
        Ok(true)
    }

    /// Whether a job whose turn has come waits for a close place only.
    fn patient(&mut self, now: i64, id: u32) -> bool {
        let until = &mut self.patient[id as usize];
        if *until == 0 {
            let job = &self.jobs[id as usize];
            let seconds = self.policy.patience(ask(job), job.limit);
            *until = now + seconds;
            if seconds > 0 {
                self.retries.push(Reverse(*until));
            }
        }
        now < *until
    }

    /// Starts the jobs at the head of the queue as long as they fit, past those that wait for a
    /// close place; returns the place in the queue of the first that does not fit.
    fn in_order(&mut self, now: i64, depth: usize) -> Result<usize, String> {
        let mut at = 0;
        while at <= depth {
            let Some(&id) = self.waiting.get(at) else {
                break;
            };
            let fits = self.free.fits(ask(&self.jobs[id as usize]));
            if fits && self.start(now, id, &[])? {
                self.waiting.remove(at);
            } else if self.patient(now, id) {
                at += 1;
            } else {
                break;
            }
        }
        Ok(at)
    }

    /// The earliest moment at which the job fits by the limits of the running ones, and the
    /// nodes that it would get.
    fn reserve(&mut self, job: &Job) -> Option<(i64, Vec<NodeChoice>)> {
        let mut later = self.free.clone();
        let mut at = None;
        for &(end, id) in &self.limits {
            // All that end at one moment count together.
            if at.is_some_and(|at| at < end) && later.fits(ask(job)) {
                break;
            }
            at = Some(end);
            later.give(&self.held[id as usize]);
        }
        let moment = at?;
        // Of nodes that are whole by then the planner asks no end.
        let room = FreeCapacity {
            free: &later.sets,
            reserved: &[],
            until: &self.until,
        };
        let timed = Ask {
            until: quarters(moment + job.limit),
            ..ask(job)
        };
        let nodes = self.policy.forecast(&self.free.sets, room, timed)?;
        Some((at?, nodes))
    }

    fn backfill(&mut self, now: i64, head: usize, depth: usize) -> Result<(), String> {
        let least = Ask {
            nodes: 1,
            per_node: 1,
            until: 0,
        };
        let Some(&id) = self.waiting.get(head) else {
            return Ok(());
        };
        if self.waiting.len() < head + 2 || !self.free.fits(least) {
            return Ok(());
        }
        let Some((moment, reserved)) = self.reserve(&self.jobs[id as usize]) else {
            return Ok(());
        };
        let mut kept = vec![false; self.free.sets.len()];
        for at in &reserved {
            kept[at.node as usize] = true;
        }
        let mut open = self.open(&reserved);
        let mut at = head + 1;
        for _ in 0..depth {
            let Some(&id) = self.waiting.get(at) else {
                break;
            };
            let job = &self.jobs[id as usize];
            let short = now + job.limit <= moment;
            let able = match short {
                true => self.free.fits(ask(job)),
                false => fits(&open, ask(job)),
            };
            if !able || !self.start(now, id, if short { &[] } else { &kept })? {
                at += 1;
                continue;
            }
            self.waiting.remove(at);
            open = self.open(&reserved);
            if !self.free.fits(least) {
                break;
            }
        }
        Ok(())
    }

    /// A pass in which every job that does not start is given a reservation: the earliest moment at
    /// which it fits beside the reservations of those before it, which hold their nodes whole.
    fn plan_all(&mut self, now: i64, head: usize, depth: usize, grain: i64) -> Result<(), String> {
        let down = |time: i64| time.div_euclid(grain) * grain;
        let mut plans: Vec<Plan> = Vec::new();
        let mut kept = vec![false; self.free.sets.len()];
        let mut at = head;
        for _ in 0..=depth {
            let Some(&id) = self.waiting.get(at) else {
                break;
            };
            let job = self.jobs[id as usize];
            mark(&mut kept, &plans, now, now + job.limit);
            if fits_unreserved(&self.free.sets, &kept, ask(&job)) && self.start(now, id, &kept)? {
                self.waiting.remove(at);
                continue;
            }
            at += 1;
            let mut moments: Vec<i64> = self
                .limits
                .iter()
                .map(|&(end, _)| end.max(now + 1))
                .collect();
            moments.extend(plans.iter().map(|p| p.until).filter(|&t| t > now));
            moments.sort_unstable();
            moments.dedup();
            let mut later = self.free.sets.clone();
            let mut running = self.limits.iter().peekable();
            for moment in moments {
                while let Some(&&(end, id)) = running.peek() {
                    if end.max(now + 1) > moment {
                        break;
                    }
                    for at in &self.held[id as usize] {
                        later[at.node as usize].0 |= at.gpus.0;
                    }
                    running.next();
                }
                mark(&mut kept, &plans, moment, moment + job.limit);
                if !fits_unreserved(&later, &kept, ask(&job)) {
                    continue;
                }
                let open = FreeCapacity {
                    free: &later,
                    reserved: &kept,
                    until: &self.until,
                };
                let timed = Ask {
                    until: quarters(moment + job.limit),
                    ..ask(&job)
                };
                let nodes = self
                    .policy
                    .forecast(&self.free.sets, open, timed)
                    .unwrap_or_default();
                plans.push(Plan {
                    from: down(moment),
                    until: down(moment + job.limit),
                    nodes: nodes.iter().map(|at| at.node).collect(),
                });
                break;
            }
        }
        Ok(())
    }

    /// How many nodes have how many free GPUs, without the reserved ones.
    fn open(&self, reserved: &[NodeChoice]) -> Vec<u32> {
        let mut open = self.free.counts.clone();
        for at in reserved {
            open[self.free.sets[at.node as usize].len()] -= 1;
        }
        open
    }
}

/// A reservation.
struct Plan {
    from: i64,
    until: i64,
    nodes: Vec<u32>,
}

/// Marks the nodes of reservations that meet a time.
fn mark(kept: &mut [bool], plans: &[Plan], from: i64, until: i64) {
    kept.fill(false);
    for plan in plans.iter().filter(|p| p.from < until && from < p.until) {
        plan.nodes.iter().for_each(|&n| kept[n as usize] = true);
    }
}

/// Whether the job fits on the nodes that are not kept.
fn fits_unreserved(free: &[GpuSet], kept: &[bool], ask: Ask) -> bool {
    let able = free.iter().zip(kept);
    let able = able.filter(|(free, kept)| !**kept && free.len() >= ask.per_node as usize);
    able.count() >= ask.nodes as usize
}

/// Whether a choice is what was asked for, and free.
fn sound(room: FreeCapacity<'_>, ask: Ask, nodes: &[NodeChoice]) -> bool {
    nodes.len() == ask.nodes as usize
        && nodes.windows(2).all(|pair| pair[0].node < pair[1].node)
        && nodes.iter().all(|at| {
            let free = room.free(at.node as usize);
            at.gpus.len() == ask.per_node as usize && at.gpus.minus(free).is_empty()
        })
}
