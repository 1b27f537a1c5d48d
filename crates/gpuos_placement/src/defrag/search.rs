//! A good plan when there are too many sets of actions to try all.
//!
//! A target is a set of nodes for the gang. Targets are looked at in the order of what they cost at
//! least ([`Board::cover`]), all of them briefly, the best ones again with more [`ROUNDS`]. For a
//! target, what stands in the way is taken out node by node: jobs of an overfull node are preempted
//! or moved, in the cheapest ways first; a moved job takes the place that fits best, or one where
//! somebody else has to make way in turn, or is preempted after all if that costs less. Branches
//! that cannot become cheaper than what is found are left (branch and bound), and of each choice
//! only the first few are followed, so that the work is bounded.
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use super::board::{Board, density};
use super::exact::plan;
use super::fit::Places;
use super::polish::polish;
use super::{Kind, Method, Plan};

/// Rounds: targets, choices that are followed at each step, steps for each target.
const ROUNDS: [(usize, usize, u32); 4] =
    [(400, 3, 60), (60, 4, 600), (16, 6, 4000), (4, 12, 12000)];
/// Nodes that are looked at for places in all steps together: on a large cluster there are fewer
/// steps.
const WORK: u64 = 60_000_000;
/// The same for making the best plan cheaper.
const POLISH: u64 = 40_000_000;
/// Sets of the cheapest nodes that are kept of one domain, if there are several.
const OF_DOMAIN: usize = 40;

/// The best plan that was found, and how many targets were looked at.
pub fn solve(board: &Board<'_>, least: u64) -> (Option<Plan>, u32) {
    let mut targets: Vec<(u64, u64, Vec<u32>)> = targets(board, ROUNDS[0].0)
        .into_iter()
        .map(|(cost, nodes)| (u64::MAX, cost, nodes))
        .collect();
    let looked = targets.len() as u32;
    let mut best: Option<Best> = None;
    let mut work = WORK;
    for (round, (most, width, steps)) in ROUNDS.into_iter().enumerate() {
        // Those for which the best was found, then those that promise most.
        targets.sort();
        targets.truncate(most);
        for (found, promised, nodes) in &mut targets {
            let limit = best.as_ref().map_or(u64::MAX, |best| best.cost);
            if *promised >= limit || limit <= least {
                continue;
            }
            // The first look tells how good a target is, even where another one is better.
            let own = if round == 0 { u64::MAX } else { limit };
            let mut dig = Dig::new(board, nodes, width, own, work);
            for fill in [true, false] {
                dig.search_steps(steps, fill);
            }
            work = dig.work;
            if let Some(new) = dig.best {
                *found = (*found).min(new.cost);
                if new.cost < limit {
                    best = Some(new);
                }
            }
        }
    }
    work = POLISH;
    let best = best.map(|best| polish(board, best, least, &mut work));
    let best = best.map(|best| plan(board.problem, &best.kinds, best.places, Method::Bounded));
    (best, looked)
}

/// Sets of nodes for the gang with what freeing them costs at least, the cheapest first.
fn targets(board: &Board<'_>, most: usize) -> Vec<(u64, Vec<u32>)> {
    let problem = board.problem;
    let gang = problem.gang;
    let wanted = gang.nodes as usize;
    let mut domains = Vec::new();
    let mut heap = BinaryHeap::new();
    for nodes in board.domains.at(gang.level) {
        let missing = |node: usize| i64::from(gang.gpus) - i64::from(problem.free[node]);
        let usable = nodes
            .iter()
            .filter(|&&node| problem.allows(gang.class, node));
        let mut nodes: Vec<(u64, i64, usize)> = usable
            .map(|&node| (board.cover(node, missing(node)), missing(node), node))
            .filter(|(cost, ..)| *cost != u64::MAX)
            .collect();
        nodes.sort_unstable();
        if nodes.len() >= wanted {
            let first: Vec<usize> = (0..wanted).collect();
            let cost = sum(&nodes, &first);
            heap.push(Reverse((cost, domains.len(), first)));
            domains.push((nodes, 0, BTreeSet::new()));
        }
    }
    let of_domain = if domains.len() > 1 { OF_DOMAIN } else { most };
    let mut all = Vec::new();
    while let Some(Reverse((cost, domain, set))) = heap.pop() {
        let (nodes, taken, seen) = &mut domains[domain];
        all.push((cost, set.iter().map(|&at| nodes[at].2 as u32).collect()));
        *taken += 1;
        if all.len() >= most {
            break;
        }
        if *taken >= of_domain {
            continue;
        }
        for at in (0..wanted).rev() {
            let mut next = set.clone();
            next[at] += 1;
            let end = next.get(at + 1).copied().unwrap_or(nodes.len());
            if next[at] < end && seen.len() < 64 * most && seen.insert(next.clone()) {
                heap.push(Reverse((sum(nodes, &next), domain, next)));
            }
        }
    }
    all
}

fn sum(nodes: &[(u64, i64, usize)], set: &[usize]) -> u64 {
    set.iter()
        .fold(0, |sum, &at| nodes[at].0.saturating_add(sum))
}

/// The cheapest that one look found.
pub struct Best {
    pub cost: u64,
    pub kinds: Vec<Option<Kind>>,
    pub places: Places,
}

/// A job that is to be moved and has no place yet, or not for all of its shares.
#[derive(Clone)]
struct Waiting {
    job: usize,
    /// Shares without a place, the largest first.
    shares: Vec<u32>,
    to: Vec<(u32, u32)>,
}

/// One look at one target.
pub struct Dig<'a> {
    board: &'a Board<'a>,
    gang: Vec<u32>,
    /// What is free on each node without the gang's share; below 0 = overfull.
    free: Vec<i64>,
    /// All that is free without the shares that wait: below 0, so many have to be preempted.
    spare: i64,
    kinds: Vec<Option<Kind>>,
    waiting: Vec<Waiting>,
    moved: Vec<(usize, Vec<(u32, u32)>)>,
    /// Nodes that may be overfull.
    touched: Vec<u32>,
    cost: u64,
    /// Only what costs less counts.
    most: u64,
    pub best: Option<Best>,
    /// Choices that are followed at each step.
    width: usize,
    /// Whether GPUs that are missing in all are made up for first.
    fill: bool,
    steps: u32,
    /// Nodes that may still be looked at.
    pub work: u64,
}

impl<'a> Dig<'a> {
    pub fn new(board: &'a Board<'a>, gang: &[u32], width: usize, most: u64, work: u64) -> Dig<'a> {
        let mut free: Vec<i64> = board.problem.free.iter().map(|&f| i64::from(f)).collect();
        let mut gang = gang.to_vec();
        gang.sort_unstable();
        for &node in &gang {
            free[node as usize] -= i64::from(board.problem.gang.gpus);
        }
        Dig {
            spare: -board.short(),
            touched: gang.clone(),
            gang,
            free,
            kinds: vec![None; board.problem.jobs.len()],
            waiting: Vec::new(),
            moved: Vec::new(),
            cost: 0,
            most,
            best: None,
            width,
            fill: false,
            steps: 0,
            work,
            board,
        }
    }

    /// Does what is done in a plan, but for some jobs.
    pub fn keep(&mut self, best: &Best, but: &[usize]) {
        for job in 0..best.kinds.len() {
            let Some(kind) = best.kinds[job].filter(|_| !but.contains(&job)) else {
                continue;
            };
            self.kinds[job] = Some(kind);
            self.cost += self.price(job, kind);
            self.shift(job, 1);
            if kind == Kind::Preempt {
                self.spare += self.board.problem.jobs[job].gpus() as i64;
            }
        }
        let kept = best.places.moved.iter().filter(|one| !but.contains(&one.0));
        for one in kept {
            for &(node, gpus) in &one.1 {
                self.free[node as usize] -= i64::from(gpus);
            }
            self.moved.push(one.clone());
        }
        // Where jobs are back at their places, others may be on top of them.
        let overfull = (0..self.free.len()).filter(|&node| self.free[node] < 0);
        let mut touched: Vec<u32> = overfull.map(|node| node as u32).collect();
        touched.retain(|node| !self.touched.contains(node));
        self.touched.extend(touched);
    }

    /// Looks for what costs less than what is known; if `fill`, GPUs that are missing in all are
    /// made up for first.
    pub fn search_steps(&mut self, steps: u32, fill: bool) {
        if fill && self.spare >= 0 {
            return;
        }
        (self.fill, self.steps) = (fill, steps);
        self.go();
    }

    fn price(&self, job: usize, kind: Kind) -> u64 {
        let problem = self.board.problem;
        problem.cost(&problem.jobs[job], kind).total
    }

    /// What preempting a job costs beyond moving it.
    fn extra(&self, job: usize) -> u64 {
        let moved = self.price(job, Kind::Move);
        self.price(job, Kind::Preempt).saturating_sub(moved)
    }

    /// What must be paid at least from here on.
    fn bound(&self) -> u64 {
        let overfull = self.touched.iter().map(|&node| {
            let free = self.free[node as usize];
            self.board.cover(node as usize, -free)
        });
        overfull.fold(0, u64::saturating_add).max(self.short())
    }

    /// What making up for the GPUs that are missing in all costs at least.
    fn short(&self) -> u64 {
        if self.spare >= 0 {
            return 0;
        }
        let problem = self.board.problem;
        let mut missing = self.spare.unsigned_abs();
        let mut sum = 0u64;
        let mut add = |cost: u64, gpus: u64| {
            let taken = gpus.min(missing);
            // The part of a job that is needed, rounded down.
            let part = if taken == gpus {
                cost
            } else {
                density(cost, gpus) * taken
            };
            sum = sum.saturating_add(part);
            missing -= taken;
            missing > 0
        };
        let idle = self.board.cheap.iter().copied();
        let mut idle = idle.filter(|&job| self.kinds[job].is_none()).peekable();
        let waiting = self.waiting.iter().map(|one| one.job);
        let mut waiting: Vec<(u64, usize)> = waiting
            .filter(|&job| problem.jobs[job].preemptable)
            .map(|job| (density(self.extra(job), problem.jobs[job].gpus()), job))
            .collect();
        waiting.sort_unstable_by(|a, b| b.cmp(a));
        loop {
            let next = idle.peek().map(|&job| {
                let gpus = problem.jobs[job].gpus();
                density(self.price(job, Kind::Preempt), gpus)
            });
            let (cost, job) = match (next, waiting.last().copied()) {
                (None, None) => return u64::MAX,
                (Some(each), Some((other, job))) if other <= each => {
                    waiting.pop();
                    (self.extra(job), job)
                }
                (None, Some((_, job))) => {
                    waiting.pop();
                    (self.extra(job), job)
                }
                (Some(_), _) => {
                    let Some(job) = idle.next() else {
                        return u64::MAX;
                    };
                    (self.price(job, Kind::Preempt), job)
                }
            };
            if !add(cost, problem.jobs[job].gpus()) {
                return sum;
            }
        }
    }

    fn go(&mut self) {
        if self.steps == 0 || self.work == 0 {
            return;
        }
        self.steps -= 1;
        if self.cost.saturating_add(self.bound()) >= self.most {
            return;
        }
        if self.fill && self.spare < 0 {
            return self.make_up();
        }
        let overfull = self.touched.iter().copied();
        let mut overfull = overfull.filter(|&node| self.free[node as usize] < 0);
        if let Some(node) = overfull.next_back() {
            return self.clear(node as usize);
        }
        let gpus = |one: &Waiting| self.board.problem.jobs[one.job].gpus();
        let largest = (0..self.waiting.len())
            .max_by_key(|&at| (!self.waiting[at].to.is_empty(), gpus(&self.waiting[at])));
        if let Some(at) = largest {
            let one = self.waiting.remove(at);
            self.place(&one);
            self.waiting.insert(at, one);
            return;
        }
        self.most = self.cost;
        self.best = Some(Best {
            cost: self.cost,
            kinds: self.kinds.clone(),
            places: Places {
                gang: self.gang.clone(),
                moved: self.moved.clone(),
            },
        });
    }

    /// Preempts jobs anywhere, so that there are enough free GPUs in all: those that free what is
    /// missing for the least. What has to leave the gang's nodes anyhow is worth its move.
    fn make_up(&mut self) {
        let problem = self.board.problem;
        let missing = self.spare.unsigned_abs();
        let overfull = |&(node, _): &(u32, u32)| self.free[node as usize] < 0;
        let idle = self.board.cheap.iter().copied();
        let mut options: Vec<(u64, u64, usize)> = idle
            .filter(|&job| self.kinds[job].is_none())
            .map(|at| {
                let job = &problem.jobs[at];
                let cost = self.price(at, Kind::Preempt);
                let away = job.movable && job.shares.iter().any(overfull);
                let net = if away { self.extra(at) } else { cost };
                (density(net, job.gpus().min(missing)), cost, at)
            })
            .collect();
        options.sort_unstable();
        self.work = self.work.saturating_sub(options.len() as u64);
        for (_, cost, job) in options.into_iter().take(self.width) {
            self.cost += cost;
            self.act(job, Kind::Preempt);
            self.go();
            self.cost -= cost;
            self.spare -= problem.jobs[job].gpus() as i64;
            self.kinds[job] = None;
            self.shift(job, -1);
        }
    }

    /// Takes jobs off an overfull node, in the cheapest ways.
    fn clear(&mut self, node: usize) {
        let missing = self.free[node].unsigned_abs() as u32;
        let ways = self.board.ways(node, missing, &self.kinds);
        self.work = self.work.saturating_sub(64 + 8 * ways.len() as u64);
        for (cost, way) in ways.into_iter().take(self.width) {
            if self.cost.saturating_add(cost) >= self.most {
                break;
            }
            self.cost += cost;
            let (spare, waiting) = (self.spare, self.waiting.len());
            for &(job, kind) in &way {
                self.act(job, kind);
            }
            self.go();
            self.cost -= cost;
            self.spare = spare;
            self.waiting.truncate(waiting);
            for &(job, _) in &way {
                self.kinds[job] = None;
                self.shift(job, -1);
            }
        }
    }

    fn act(&mut self, job: usize, kind: Kind) {
        self.kinds[job] = Some(kind);
        self.shift(job, 1);
        let of = &self.board.problem.jobs[job];
        match kind {
            Kind::Preempt => self.spare += of.gpus() as i64,
            Kind::Move => self.waiting.push(Waiting {
                job,
                shares: Vec::new(),
                to: Vec::new(),
            }),
        }
    }

    /// Gives a job's GPUs back (1) or takes them again (-1).
    fn shift(&mut self, job: usize, sign: i64) {
        let problem = self.board.problem;
        for &(node, gpus) in &problem.jobs[job].shares {
            self.free[node as usize] += sign * i64::from(gpus);
        }
    }

    /// Finds a place for the next share of a job, or preempts the job.
    fn place(&mut self, one: &Waiting) {
        let problem = self.board.problem;
        let job = &problem.jobs[one.job];
        if one.shares.is_empty() && !one.to.is_empty() {
            self.moved.push((one.job, one.to.clone()));
            self.go();
            self.moved.pop();
            return;
        }
        let splits: Vec<Vec<u32>> = match one.to.is_empty() {
            true => job.splits().collect(),
            false => vec![one.shares.clone()],
        };
        // Nobody makes way for more than preempting the job costs beyond the move.
        let extra = (job.preemptable && one.to.is_empty()).then(|| self.extra(one.job));
        let mut options: Vec<(u64, usize, i64, usize)> = Vec::new();
        for (split, shares) in splits.iter().enumerate() {
            self.work = self.work.saturating_sub(self.free.len() as u64);
            for node in 0..self.free.len() {
                let left = self.free[node] - i64::from(shares[0]);
                let used = || one.to.iter().any(|to| to.0 as usize == node);
                if !problem.allows(job.class, node) || used() {
                    continue;
                }
                let cost = self.board.cover(node, -left);
                if cost == u64::MAX
                    || extra.is_some_and(|extra| cost >= extra && left < 0)
                    || self.cost.saturating_add(cost) >= self.most
                    || !self.near(one, shares.len(), node)
                {
                    continue;
                }
                options.push((cost, split, left.abs(), node));
            }
        }
        options.sort_unstable();
        options.truncate(self.width);
        let mut preempt = extra;
        for (cost, split, _, node) in options {
            if preempt.is_some_and(|extra| extra <= cost && cost > 0) {
                self.preempt(one.job, preempt.take().unwrap_or(0));
            }
            let (&share, rest) = splits[split].split_first().unwrap_or((&0, &[]));
            let mut to = one.to.clone();
            to.push((node as u32, share));
            let touched = self.touched.len();
            if self.free[node] < i64::from(share) && !self.touched.contains(&(node as u32)) {
                self.touched.push(node as u32);
            }
            self.free[node] -= i64::from(share);
            self.waiting.push(Waiting {
                job: one.job,
                shares: rest.to_vec(),
                to,
            });
            self.go();
            self.waiting.pop();
            self.free[node] += i64::from(share);
            self.touched.truncate(touched);
        }
        if let Some(extra) = preempt {
            self.preempt(one.job, extra);
        }
    }

    /// Whether a node lies where the job has to stay together, and may hold all of its shares.
    fn near(&self, one: &Waiting, shares: usize, node: usize) -> bool {
        let problem = self.board.problem;
        let level = problem.jobs[one.job].level;
        let domain = problem.domain(level, node);
        match one.to.first() {
            Some(&(first, _)) => {
                domain != gpuos_model::cluster::NO_DOMAIN
                    && domain == problem.domain(level, first as usize)
            }
            None => shares == 1 || domain != gpuos_model::cluster::NO_DOMAIN,
        }
    }

    fn preempt(&mut self, job: usize, extra: u64) {
        if self.cost.saturating_add(extra) >= self.most {
            return;
        }
        let gpus = self.board.problem.jobs[job].gpus() as i64;
        self.cost += extra;
        self.spare += gpus;
        self.kinds[job] = Some(Kind::Preempt);
        self.go();
        self.kinds[job] = Some(Kind::Move);
        self.spare -= gpus;
        self.cost -= extra;
    }
}
