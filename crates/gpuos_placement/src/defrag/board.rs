//! What is looked up again and again during a search, and what no plan can cost less than.
use super::{Domains, Kind, Problem};

/// Ways to free a node that are offered.
const WAYS: usize = 16;
/// Jobs of a node that are tried in all combinations.
const MOST_JOBS: usize = 8;

/// What is done to free a node, and its cost.
pub type Way = (u64, Vec<(usize, Kind)>);

/// A problem with its indexes.
pub struct Board<'a> {
    pub problem: &'a Problem<'a>,
    pub domains: &'a Domains,
    /// Jobs that something may be done with, and their GPUs, by node.
    pub on: Vec<Vec<(usize, u32)>>,
    /// What freeing so many more GPUs of a node costs at least, by node; a job on several nodes
    /// counts in parts.
    cover: Vec<Vec<u64>>,
    /// Preemptable jobs, those that free a GPU for the least first.
    pub cheap: Vec<usize>,
}

impl<'a> Board<'a> {
    pub fn new(problem: &'a Problem<'a>, domains: &'a Domains) -> Board<'a> {
        let mut on = vec![Vec::new(); problem.free.len()];
        for (at, job) in problem.jobs.iter().enumerate() {
            for &(node, gpus) in &job.shares {
                if let Some(list) = on
                    .get_mut(node as usize)
                    .filter(|_| job.preemptable || job.movable)
                {
                    list.push((at, gpus));
                }
            }
        }
        let preemptable = (0..problem.jobs.len()).filter(|&job| problem.jobs[job].preemptable);
        let mut cheap: Vec<usize> = preemptable.collect();
        cheap.sort_by_key(|&at| {
            let job = &problem.jobs[at];
            (
                density(problem.cost(job, Kind::Preempt).total, job.gpus()),
                at,
            )
        });
        let mut board = Board {
            problem,
            domains,
            on,
            cover: Vec::new(),
            cheap,
        };
        let cost = |job: usize| problem.cheapest(&problem.jobs[job]).map_or(0, |one| one.0);
        board.cover = (0..problem.free.len())
            .map(|node| board.covers(node, &cost))
            .collect();
        board
    }

    /// What freeing so many more GPUs of a node costs at least; `u64::MAX` = it cannot be.
    pub fn cover(&self, node: usize, missing: i64) -> u64 {
        match usize::try_from(missing) {
            Err(_) | Ok(0) => 0,
            Ok(missing) => self.cover[node].get(missing).copied().unwrap_or(u64::MAX),
        }
    }

    /// The same for all numbers of GPUs, with other costs of the jobs.
    fn covers(&self, node: usize, cost: &dyn Fn(usize) -> u64) -> Vec<u64> {
        let held: u32 = self.on[node].iter().map(|job| job.1).sum();
        let mut least = vec![u64::MAX; held as usize + 1];
        least[0] = 0;
        for &(job, gpus) in &self.on[node] {
            let part = cost(job) / self.problem.jobs[job].shares.len().max(1) as u64;
            for missing in (1..least.len()).rev() {
                let with = least[missing.saturating_sub(gpus as usize)].saturating_add(part);
                least[missing] = least[missing].min(with);
            }
        }
        least
    }

    /// GPUs that the gang wants beyond all that are free: so many have to be preempted.
    pub fn short(&self) -> i64 {
        let gang = &self.problem.gang;
        let free: i64 = self.problem.free.iter().map(|&free| i64::from(free)).sum();
        i64::from(gang.nodes) * i64::from(gang.gpus) - free
    }

    /// What no plan can cost less than: the cheapest nodes of the cheapest domain have to be freed,
    /// and what is missing in all has to be preempted. The second is weighed against the first by
    /// a price for each GPU (Lagrange's relaxation: valid for every price, so the best one counts).
    pub fn least(&self) -> u64 {
        let problem = self.problem;
        let short = u64::try_from(self.short()).unwrap_or(0);
        let mut prices = vec![0];
        let mut freed = 0;
        for &job in self.cheap.iter().filter(|_| short > 0) {
            let job = &problem.jobs[job];
            freed += job.gpus();
            if freed >= short {
                let whole = density(problem.cost(job, Kind::Preempt).total, job.gpus());
                prices.extend([whole / 4, whole / 2, whole / 4 * 3, whole]);
                break;
            }
        }
        let bounds = prices.into_iter().map(|price| self.least_at(price, short));
        bounds.max().unwrap_or(0)
    }

    fn least_at(&self, price: u64, short: u64) -> u64 {
        let problem = self.problem;
        // What a preemption costs beyond what its GPUs are worth.
        let net = |at: usize| {
            let job = &problem.jobs[at];
            let cost = problem.cost(job, Kind::Preempt).total;
            cost.checked_sub(price.saturating_mul(job.gpus()))
                .ok_or_else(|| price.saturating_mul(job.gpus()) - cost)
        };
        let gains = self.cheap.iter().filter_map(|&at| net(at).err());
        let gains = gains.fold(0, u64::saturating_add);
        let cost = |at: usize| {
            let job = &problem.jobs[at];
            let preempt = job.preemptable.then(|| net(at).unwrap_or(0));
            let moved = job.movable.then(|| problem.cost(job, Kind::Move).total);
            let least = preempt.into_iter().chain(moved).min();
            least.unwrap_or(u64::MAX)
        };
        let gang = &problem.gang;
        let of = |node: usize| match gang.gpus.checked_sub(problem.free[node]) {
            None | Some(0) => 0,
            Some(missing) => {
                let all = self.covers(node, &cost);
                all.get(missing as usize).copied().unwrap_or(u64::MAX)
            }
        };
        let domain = |nodes: &Vec<usize>| {
            let usable = nodes
                .iter()
                .filter(|&&node| problem.allows(gang.class, node));
            let mut costs: Vec<u64> = usable.map(|&node| of(node)).collect();
            costs.sort_unstable();
            let costs = costs.get(..gang.nodes as usize)?;
            Some(
                costs
                    .iter()
                    .fold(0, |sum: u64, one| sum.saturating_add(*one)),
            )
        };
        let nodes = self.domains.at(gang.level).iter().filter_map(domain).min();
        let paid = price.saturating_mul(short);
        paid.saturating_add(nodes.unwrap_or(0))
            .saturating_sub(gains)
    }

    /// The cheapest ways to free so many more GPUs of a node with the jobs that nothing is done
    /// with yet; one that only preempts is always among them.
    pub fn ways(&self, node: usize, missing: u32, kinds: &[Option<Kind>]) -> Vec<Way> {
        let problem = self.problem;
        let idle = self.on[node]
            .iter()
            .filter(|&&(job, _)| kinds[job].is_none());
        let mut jobs: Vec<(u64, u32, usize)> = idle
            .filter_map(|&(job, held)| Some((problem.cheapest(&problem.jobs[job])?.0, held, job)))
            .collect();
        jobs.sort_unstable();
        // The cheapest, and more only where those do not hold enough.
        let mut held = 0;
        let enough = jobs.iter().position(|job| {
            held += job.1;
            held >= missing
        });
        let Some(enough) = enough else {
            return Vec::new();
        };
        if enough >= MOST_JOBS {
            return vec![self.plain(&jobs[..=enough], missing)];
        }
        jobs.truncate(MOST_JOBS);
        let mut ways = Vec::new();
        for set in 1u32..1 << jobs.len() {
            let members = (0..jobs.len())
                .filter(|at| set >> at & 1 == 1)
                .map(|at| jobs[at]);
            let held: u32 = members.clone().map(|(_, held, _)| held).sum();
            // No more than needed.
            if held < missing || members.clone().any(|(_, one, _)| held - one >= missing) {
                continue;
            }
            let mut partial: Vec<Way> = vec![(0, Vec::new())];
            for (_, _, job) in members {
                let of = &problem.jobs[job];
                let kinds = [(of.preemptable, Kind::Preempt), (of.movable, Kind::Move)];
                let kinds = kinds.into_iter().filter(|(may, _)| *may);
                let with = |(cost, done): &Way, kind| {
                    let cost = cost.saturating_add(problem.cost(of, kind).total);
                    (cost, [&done[..], &[(job, kind)]].concat())
                };
                let more = kinds.flat_map(|(_, kind)| partial.iter().map(move |way| (way, kind)));
                partial = more.map(|(way, kind)| with(way, kind)).collect();
            }
            ways.append(&mut partial);
        }
        ways.sort_unstable();
        let only_preempts = |way: &Way| way.1.iter().all(|(_, kind)| *kind == Kind::Preempt);
        let last = ways
            .iter()
            .skip(WAYS)
            .find(|way| only_preempts(way))
            .cloned();
        ways.truncate(WAYS);
        if !ways.iter().any(only_preempts) {
            ways.extend(last);
        }
        ways
    }

    /// One way with more jobs than can be combined: each by what is cheapest for it, without those
    /// that are not needed.
    fn plain(&self, jobs: &[(u64, u32, usize)], missing: u32) -> Way {
        let mut spare = jobs.iter().map(|job| job.1).sum::<u32>() - missing;
        let (mut cost, mut way) = (0u64, Vec::new());
        for &(_, held, job) in jobs.iter().rev() {
            if held <= spare {
                spare -= held;
            } else if let Some((one, kind)) = self.problem.cheapest(&self.problem.jobs[job]) {
                cost = cost.saturating_add(one);
                way.push((job, kind));
            }
        }
        (cost, way)
    }
}

/// GPU-seconds for each GPU, rounded down.
pub fn density(cost: u64, gpus: u64) -> u64 {
    cost / gpus.max(1)
}
