//! A Slurm that knows GRES only: it gives whatever looks free, at random, from what the step functions leave of it.

use std::collections::BTreeMap;

use gpuos_model::gpu_index::{GresGpu, NvmlIndex, NvmlSet, PoolGpu};
use gpuos_model::gpuset::GpuSet;
use gpuos_placement::mig::offer::{self, out_of_service};
use gpuos_placement::mig::{self, Effort, Pool};
use gpuos_placement::shards;
use gpuos_placement::switching::{
    Asks, Forecast, GpuMode, GresState, Job, Marks, Node, NodeState, Reading,
};
use gpuos_placement::withhold::out::{self, Withhold};
use gpuos_placement::withhold::registration::{Known, Readiness, SavedTopology};

use super::site::{AFTER, Ask, Card, HOLD, Has, Ledger, NODES, Role, SHARDS, SLICES, Waiting};
use crate::mig_support::board;
use crate::random::Random;

/// A release that gives GPUs of nodes that it does not know yet.
const RELEASE: SavedTopology = SavedTopology::Ignored;

/// What is given of a node, in Slurm's numbers.
#[derive(Clone, Default)]
struct Devices {
    gpus: u64,
    /// Shards in use, by GPU.
    shards: Vec<u64>,
    slices: u64,
}

impl Devices {
    fn shared(&self) -> u64 {
        let used = self
            .shards
            .iter()
            .enumerate()
            .filter(|(_, used)| **used > 0);
        used.fold(0, |all, (gpu, _)| all | 1 << gpu)
    }
}

/// What a job has, in Slurm's numbers.
struct Allocation {
    node: usize,
    gpus: u64,
    shards: Option<(usize, u64)>,
    slices: u64,
}

/// One call: what counts as given beside what is, and who is a candidate.
#[derive(Clone)]
struct Call {
    job: Waiting,
    gpus: Vec<u64>,
    slices: Vec<u64>,
    candidates: Vec<bool>,
    now: i64,
}

/// The machine's numbers: those in GRES `gpu` are all that are not divided for good, slices are of all that are not whole for good.
fn in_gres_gpu(node: usize) -> Vec<usize> {
    let all = NODES[node].iter().enumerate();
    let listed = all.filter(|(_, role)| **role != Role::Divided);
    listed.map(|(nvml, _)| nvml).collect()
}

fn in_pool(node: usize) -> Vec<usize> {
    let all = NODES[node].iter().enumerate();
    let listed = all.filter(|(_, role)| **role != Role::Whole);
    listed.map(|(nvml, _)| nvml).collect()
}

fn set(all: impl Iterator<Item = usize>) -> GpuSet {
    all.fold(GpuSet::EMPTY, GpuSet::with)
}

pub struct Slurm {
    random: Random,
    jobs: BTreeMap<u32, Allocation>,
    provisional: Vec<bool>,
    nodes: Vec<Node>,
    pool: Pool,
    numbers: Vec<Option<u32>>,
}

impl Slurm {
    pub fn new(seed: u64) -> Slurm {
        let mut pool = Pool::new(vec![board("h100-80gb")]).expect("a sound board");
        let number = |node| match in_pool(node).len() {
            0 => None,
            gpus => Some(pool.add_node(0, gpus).expect("not too many")),
        };
        let numbers = (0..NODES.len()).map(number).collect();
        Slurm {
            random: Random(seed.wrapping_mul(77)),
            jobs: BTreeMap::new(),
            provisional: vec![false; NODES.len()],
            nodes: make_nodes(&[]),
            pool,
            numbers,
        }
    }

    /// slurmctld makes its tables anew; which GPUs served how is kept.
    pub fn restart(&mut self) {
        self.nodes = make_nodes(&self.nodes);
        self.provisional = vec![true; NODES.len()];
    }

    pub fn register(&mut self) {
        let waits: Vec<usize> = (0..NODES.len())
            .filter(|node| self.provisional[*node])
            .collect();
        if !waits.is_empty() {
            let node = self.random.pick(&waits);
            self.provisional[node] = false;
        }
    }

    pub fn register_all(&mut self) {
        self.provisional.fill(false);
    }

    pub fn is_registered(&self, node: usize) -> bool {
        !self.provisional[node]
    }

    pub fn ended(&mut self, job: u32) {
        self.jobs.remove(&job);
    }

    /// A job has started on a node: how its GPUs serve is remembered.
    pub fn started(&mut self, ledger: &Ledger, node: usize, now: i64) {
        let state = self.state(ledger, node);
        for own in self.nodes.iter_mut().filter(|own| own.index == node) {
            if let Reading::Known(given) = own.read(&state) {
                own.learn(given, now);
            }
        }
    }

    fn devices(&self, node: usize) -> Devices {
        self.devices_at(node, |_| true)
    }

    fn devices_at(&self, node: usize, runs: impl Fn(u32) -> bool) -> Devices {
        let mut all = Devices {
            shards: vec![0; in_gres_gpu(node).len()],
            ..Devices::default()
        };
        let jobs = self
            .jobs
            .iter()
            .filter(|(id, job)| job.node == node && runs(**id));
        for (_, job) in jobs {
            all.gpus |= job.gpus;
            all.slices |= job.slices;
            if let Some((gpu, count)) = job.shards {
                all.shards[gpu] += count;
            }
        }
        all
    }

    fn known(&self, node: usize) -> Known {
        Known {
            provisional: self.provisional[node],
            has_topology: true,
            has_types: true,
            ..Known::default()
        }
    }

    /// GPUs of a node that are out of service, as its `Extra` has them: by number in GRES `gpu`, and for the others by
    /// NVML's.
    fn out(&self, ledger: &Ledger, node: usize) -> (GpuSet, NvmlSet) {
        let out = |nvml: &usize| ledger.out.contains(&(node, *nvml));
        let gres = in_gres_gpu(node);
        let by_gres = (0..gres.len()).filter(|at| out(&gres[*at]));
        let divided = |nvml: &usize| NODES[node][*nvml] == Role::Divided;
        let by_nvml = (0..NODES[node].len()).filter(|nvml| out(nvml) && divided(nvml));
        (set(by_gres), NvmlSet(set(by_nvml)))
    }

    fn state(&self, ledger: &Ledger, node: usize) -> NodeState {
        let devices = self.devices(node);
        let gres = |devices: usize, given: u64| GresState {
            devices,
            allocated_bits: given,
            allocated: given.count_ones().into(),
            has_topology: true,
            provisional: self.provisional[node],
            loses: RELEASE.loses(self.known(node)),
        };
        NodeState {
            gpus: gres(in_gres_gpu(node).len(), devices.gpus),
            slices: gres(in_pool(node).len() * SLICES, devices.slices),
            shared: devices.shared(),
            power_saved: false,
            out: self.out(ledger, node).0,
        }
    }

    /// The phase that sees to MIG-switchable GPUs.
    fn switch(&mut self, ledger: &Ledger, call: &mut Call, is_forecast: bool) -> Marks {
        let mut marks = Marks::default();
        if call.job.ask == Ask::WholeNode {
            return marks;
        }
        let ask = call.job.ask;
        let job = Job {
            asks: Asks {
                whole: ask.gpus() > 0 || matches!(ask, Ask::Shards(_)),
                slices: ask.slices() > 0,
            },
            spares_idle: true,
            patient_from: call.job.since + AFTER,
            hold: HOLD,
            is_forecast,
            now: call.now,
        };
        let mut nodes = std::mem::take(&mut self.nodes);
        for own in &mut nodes {
            let (node, state) = (own.index, self.state(ledger, own.index));
            match own.read(&state) {
                Reading::Unknown { for_nobody, .. } => {
                    if for_nobody || job.asks.slices {
                        call.candidates[node] = false;
                    }
                }
                Reading::Known(given) => {
                    let before = marks.all().len();
                    own.mark(given, state.out, &job, &mut marks);
                    marks.carry_out(before, |mark| {
                        let (given, masks) = match mark.mode {
                            GpuMode::Whole => (state.gpus.allocated_bits, &mut call.gpus[node]),
                            GpuMode::Slices => {
                                (state.slices.allocated_bits, &mut call.slices[node])
                            }
                        };
                        let bits = mark.bits & !(given | *masks);
                        *masks |= bits;
                        (bits != 0).then_some((0, bits))
                    });
                }
            }
        }
        self.nodes = nodes;
        marks
    }

    fn take_back(marks: &mut Marks, call: &mut Call) {
        for mark in marks.take_lifted() {
            match mark.mode {
                GpuMode::Whole => call.gpus[mark.node] &= !mark.bits,
                GpuMode::Slices => call.slices[mark.node] &= !mark.bits,
            }
        }
    }

    fn call(job: &Waiting, now: i64) -> Call {
        Call {
            job: job.clone(),
            gpus: vec![0; NODES.len()],
            slices: vec![0; NODES.len()],
            candidates: vec![true; NODES.len()],
            now,
        }
    }

    /// A job is to start now: its node, and what it gets there.
    pub fn run_now(
        &mut self,
        ledger: &Ledger,
        job: &Waiting,
        now: i64,
    ) -> Option<(usize, Vec<(Card, Has)>)> {
        let mut call = Slurm::call(job, now);
        let mut marks = self.switch(ledger, &mut call, false);
        // Somebody could be preempted, and is spared first.
        let spared = marks.has_idle() && self.random.below(8) == 0 && job.since + AFTER <= now;
        let mut given = self.answer(ledger, call.clone());
        if given.is_none() && marks.offer_idle(spared, now) {
            Slurm::take_back(&mut marks, &mut call);
            given = self.answer(ledger, call);
        }
        let given = given?;
        let has = self.cards(&given, job.ask);
        let node = given.node;
        self.jobs.insert(job.id, given);
        Some((node, has))
    }

    /// Withholds, keeps out, and has the call decided.
    fn answer(&mut self, ledger: &Ledger, mut call: Call) -> Option<Allocation> {
        let ask = call.job.ask;
        let job = out::Job {
            whole_nodes: ask == Ask::WholeNode,
            nodes: 1,
            each: (ask.gpus() as u64).max(1),
            sum: 0,
        };
        for node in 0..NODES.len() {
            let (out, pool_out) = self.out(ledger, node);
            let state = out::NodeState {
                devices: in_gres_gpu(node).len(),
                allocated: GpuSet(self.devices(node).gpus),
                out,
                is_pool_out: !pool_out.is_empty(),
            };
            match job.withhold(&state) {
                Withhold::Nothing => {}
                Withhold::Node => call.candidates[node] = false,
                Withhold::Gpus { out, .. } => call.gpus[node] |= out.0,
            }
            if RELEASE.readiness(self.known(node)) == Readiness::Waits {
                call.candidates[node] = false;
            }
        }
        match ask {
            Ask::Whole(count) => self.any_gpus(&call, count),
            Ask::WholeNode => self.any_node(&call),
            Ask::Shards(count) => self.shards(ledger, &call, count),
            Ask::Slices(_) | Ask::Both(..) => self.slices(ledger, &call),
        }
    }

    fn free_gpus(&self, call: &Call, node: usize) -> GpuSet {
        let devices = self.devices(node);
        let taken = devices.gpus | devices.shared() | call.gpus[node];
        match call.candidates[node] {
            true => GpuSet::first(in_gres_gpu(node).len()).minus(GpuSet(taken)),
            false => GpuSet::EMPTY,
        }
    }

    fn some_of(&mut self, free: GpuSet, count: usize) -> u64 {
        let mut left: Vec<usize> = free.iter().collect();
        let mut bits = 0;
        for _ in 0..count {
            let at = self.random.index(left.len());
            bits |= 1 << left.swap_remove(at);
        }
        bits
    }

    /// Left to Slurm: any GPUs of any node.
    fn any_gpus(&mut self, call: &Call, count: usize) -> Option<Allocation> {
        let able = |node: &usize| self.free_gpus(call, *node).len() >= count;
        let able: Vec<usize> = (0..NODES.len()).filter(able).collect();
        if able.is_empty() {
            return None;
        }
        let node = self.random.pick(&able);
        let gpus = self.some_of(self.free_gpus(call, node), count);
        Some(Allocation {
            node,
            gpus,
            shards: None,
            slices: 0,
        })
    }

    fn any_node(&mut self, call: &Call) -> Option<Allocation> {
        let idle = |node: &usize| {
            let devices = self.devices(*node);
            call.candidates[*node] && devices.gpus | devices.shared() | devices.slices == 0
        };
        let idle: Vec<usize> = (0..NODES.len()).filter(idle).collect();
        if idle.is_empty() {
            return None;
        }
        let node = self.random.pick(&idle);
        Some(Allocation {
            node,
            gpus: GpuSet::first(in_gres_gpu(node).len()).0,
            shards: None,
            slices: GpuSet::first(in_pool(node).len() * SLICES).0,
        })
    }

    fn shards(&mut self, ledger: &Ledger, call: &Call, count: u64) -> Option<Allocation> {
        let mut candidates = shards::Candidates::default();
        for node in (0..NODES.len()).filter(|node| call.candidates[*node]) {
            let devices = self.devices(node);
            let state = shards::NodeState {
                devices: devices.shards.len(),
                shard_devices: devices.shards.len(),
                allocated: devices.gpus | call.gpus[node],
                shared: devices.shared(),
                degraded: self.out(ledger, node).0,
            };
            let entries = devices.shards.iter().enumerate();
            let entries = entries.map(|(gpu, used)| shards::Entry {
                gpus: 1 << gpu,
                all: SHARDS,
                used: *used,
                is_type: true,
            });
            if let Some(part) = state.best(entries, count) {
                candidates.push(shards::Candidate {
                    node,
                    named: false,
                    weight: node as u64 % 2,
                    short: false,
                    part,
                });
            }
        }
        candidates.rank();
        let needs = shards::Needs { nodes: 1, named: 0 };
        let attempts = candidates.attempts(needs, 3)?;
        let nth = self.random.index(attempts.count);
        let (node, gpu) = candidates.offered(attempts, nth).next()?;
        Some(Allocation {
            node,
            gpus: 0,
            shards: Some((gpu.index(), count)),
            slices: 0,
        })
    }

    fn slices(&mut self, ledger: &Ledger, call: &Call) -> Option<Allocation> {
        let ask = mig::Ask::of_slices(&self.pool, call.job.ask.slices().into())?;
        let prices = self.pool.prices();
        let (mut effort, mut candidates) = (Effort::default(), offer::Candidates::default());
        for node in (0..NODES.len()).filter(|node| call.candidates[*node]) {
            let Some(number) = self.numbers[node] else {
                continue;
            };
            let (gres_out, pool_out) = self.out(ledger, node);
            let gres = in_gres_gpu(node);
            let gres_of = |nvml: NvmlIndex| {
                let switchable = NODES[node][nvml.index()] == Role::Switchable;
                let at = gres.iter().position(|gpu| *gpu == nvml.index())?;
                GresGpu::new(at).filter(|_| switchable)
            };
            let own = set(in_pool(node).into_iter());
            let out = out_of_service(NvmlSet(own), pool_out, gres_out, gres_of);
            let taken = self.devices(node).slices | call.slices[node];
            self.pool.see(number, taken, out);
            if let Some(pick) = self.pool.pick(&mut effort, &prices, number, &ask) {
                candidates.push(offer::Candidate {
                    node,
                    named: false,
                    at: 0,
                    weight: 0,
                    pick,
                });
            }
        }
        candidates.rank();
        let needs = offer::Needs {
            min: 1,
            wanted: 1,
            named: 0,
        };
        if !candidates.serve(needs) {
            return None;
        }
        let count = call.job.ask.gpus();
        for tried in 0.. {
            let (offered, last) = candidates.offered(needs, tried, 2);
            let enough = |node: usize| self.free_gpus(call, node).len() >= count;
            let able: Vec<_> = offered.filter(|one| enough(one.node)).copied().collect();
            if !able.is_empty() {
                let one = self.random.pick(&able);
                let gpus = self.some_of(self.free_gpus(call, one.node), count);
                return Some(Allocation {
                    node: one.node,
                    gpus,
                    shards: None,
                    slices: one.pick.bits,
                });
            }
            if last {
                break;
            }
        }
        None
    }

    /// What an allocation is in the racks.
    fn cards(&self, given: &Allocation, ask: Ask) -> Vec<(Card, Has)> {
        let node = given.node;
        let (gres, pool) = (in_gres_gpu(node), in_pool(node));
        if ask == Ask::WholeNode {
            return (0..NODES[node].len())
                .map(|nvml| ((node, nvml), Has::Node))
                .collect();
        }
        let whole = GpuSet(given.gpus)
            .iter()
            .map(|at| ((node, gres[at]), Has::Whole));
        let shards = given.shards.iter();
        let shards = shards.map(|(at, count)| ((node, gres[*at]), Has::Shards(*count)));
        let slices = pool.iter().enumerate().filter_map(|(nth, nvml)| {
            let own = given.slices >> (nth * SLICES) & 0xff;
            (own != 0).then_some(((node, *nvml), Has::Slices(own)))
        });
        whole.chain(shards).chain(slices).collect()
    }

    /// When a job with whole GPUs could start, and where: Slurm sees jobs end and their own devices become free, but no
    /// mark.
    pub fn will_run(&mut self, ledger: &Ledger, job: &Waiting, now: i64) -> Option<(usize, i64)> {
        let mut call = Slurm::call(job, now);
        let mut marks = self.switch(ledger, &mut call, true);
        for node in 0..NODES.len() {
            call.candidates[node] &= RELEASE.readiness(self.known(node)) != Readiness::Waits;
        }
        let mut best = None;
        for tried in 0.. {
            let found = self.soonest(ledger, &call, job.ask.gpus());
            let answer = Forecast {
                tried,
                now,
                start: found.map(|found| found.1),
            };
            if marks.take_forecast(&answer, |node| found.is_some_and(|found| found.0 == node)) {
                best = found.map(|found| found.0);
            }
            if marks.starts_by(now) {
                break;
            }
            if tried == 0 {
                for (id, own) in &self.jobs {
                    marks.ends(own.node, ledger.jobs[id].end, |mode| match mode {
                        GpuMode::Whole => own.gpus | own.shards.map_or(0, |(gpu, _)| 1 << gpu),
                        GpuMode::Slices => own.slices,
                    });
                }
                marks.date();
            }
            if !marks.offer_next(tried) || !Marks::retries_forecast(tried + 1) {
                break;
            }
            Slurm::take_back(&mut marks, &mut call);
        }
        Some((best?, marks.start()?))
    }

    fn soonest(&mut self, ledger: &Ledger, call: &Call, count: usize) -> Option<(usize, i64)> {
        let mut moments: Vec<i64> = ledger.jobs.values().map(|job| job.end).collect();
        moments.push(call.now);
        moments.sort_unstable();
        for at in moments {
            let free = |node: usize| {
                let devices = self.devices_at(node, |id| ledger.jobs[&id].end > at);
                let taken = devices.gpus | devices.shared() | call.gpus[node];
                GpuSet::first(in_gres_gpu(node).len())
                    .minus(GpuSet(taken))
                    .len()
            };
            let able = |node: &usize| call.candidates[*node] && free(*node) >= count;
            let able: Vec<usize> = (0..NODES.len()).filter(able).collect();
            if !able.is_empty() {
                return Some((self.random.pick(&able), at));
            }
        }
        None
    }
}

/// The nodes with MIG-switchable GPUs.
fn make_nodes(before: &[Node]) -> Vec<Node> {
    let mut nodes = Vec::new();
    for (index, roles) in NODES.iter().enumerate() {
        let (gres, pool) = (in_gres_gpu(index), in_pool(index));
        let mut node = Node::new(index, &format!("n{index}"), pool.len() * SLICES);
        for (nvml, role) in roles.iter().enumerate() {
            if *role == Role::Switchable {
                let at = |list: &[usize]| list.iter().position(|gpu| *gpu == nvml);
                node.add(
                    NvmlIndex::new(nvml).expect("a GPU"),
                    at(&gres).and_then(GresGpu::new).expect("in GRES gpu"),
                    at(&pool).and_then(PoolGpu::new).expect("in the pool"),
                    SLICES as u8,
                    before,
                );
            }
        }
        if !node.gpus.is_empty() {
            nodes.push(node);
        }
    }
    nodes
}
