//! What a job needs of its nodes beside GPUs, and which candidates cannot give it.
//!
//! cons_tres refuses a node for many a reason. Those that can be read are looked at before a node is offered: a node
//! that cannot serve the job has nothing free for it, as far as the planner is told. The form in which it is told is
//! the state of a node, which is recorded, so that a decision replays. What cannot be read is learned ([`crate::decide::refusals`]).

use gpuos_model::fnv::fnv;
use gpuos_model::gpuset::GpuSet;
use gpuos_placement::fits::{self, Cores, Memory, SOCKETS, Socket};
use gpuos_placement::plan::GpuShape;
use slurm_ffi::bits::Bitmap;
use slurm_ffi::gres::{JobGres, NodeGres};
use slurm_ffi::handles::{Job, Node};
use slurm_ffi::needs::{CR_CPU, CR_MEMORY, CR_SOCKET, Sharing};

use crate::abi::frame::Frame;
use crate::abi::source::Source;
use crate::read::ledger::{Holding, Ledger, Sum};
use crate::read::request::Wanted;
use crate::read::snapshot::Snapshot;

/// A job asks for at most so many other GRES that are looked at.
const OTHERS: usize = 4;

/// Another GRES that a job asks for: its id, and units on a node. Of which type they are is left to cons_tres.
type Other = (u32, u64);

/// What the job at hand needs of each of its nodes beside GPUs.
#[derive(Clone, Copy, Default)]
pub struct Demand {
    memory: Memory,
    cores: Cores,
    sharing: Sharing,
    /// The job's partition, where what its jobs hold on a node counts.
    part: Option<usize>,
    /// CPUs on each node for sure.
    cpus: u32,
    /// GPUs on each node for sure.
    gpus: u32,
    /// Whether a core is given with all its threads, so that memory for each CPU is for all of them.
    whole_cores: bool,
    binds: bool,
    /// Whether GPUs near free cores go before others: see [`Demand::is_trimmed`].
    near: bool,
    /// GPUs on each of so many sockets, where the job asks for them so.
    on_sockets: Option<(u32, u32)>,
    others: [Other; OTHERS],
    other_count: usize,
    /// Jobs that ask for the same have the same number here.
    pub form: u64,
}

impl Demand {
    /// Reads what the job of a call asks for. `site`: `SelectTypeParameters` as Slurm's bits.
    pub fn of(frame: &Frame<'_>, site: u16, gpus: JobGres<'_>, wanted: &Wanted) -> Demand {
        let job = frame.job;
        let request = &wanted.request;
        let parameters = job.select_parameters(site);
        let sharing = job.sharing();
        let mut cores = job.cores(parameters);
        cores.alone = job.takes_whole_nodes() || sharing == Sharing::Nothing;
        let on_each = request.gpus_of_node();
        let tasks = job.tasks_on_each(cores.overcommit);
        let cpus = (tasks.saturating_mul(cores.cpus_per_task))
            .max(request.cpus_per_node)
            .max(on_each.saturating_mul(request.cpus_per_gpu))
            .max(1);
        let mut demand = Demand {
            memory: match parameters & CR_MEMORY {
                0 => Memory::Free,
                _ => job.memory(gpus.memory_for_each()),
            },
            cores,
            sharing,
            part: follows(&cores).then(|| job.partition_key()),
            cpus,
            gpus: on_each,
            whole_cores: parameters & (CR_CPU | CR_SOCKET) == 0,
            binds: job.binds_gpus(),
            on_sockets: match request.gpus {
                GpuShape::PerSocket {
                    per_socket,
                    sockets,
                } => Some((per_socket, sockets)),
                _ => None,
            },
            ..Demand::default()
        };
        let fixed = matches!(request.gpus, GpuShape::PerNode(_)) && !wanted.required();
        demand.near = fixed && wanted.nodes > 1 && demand.is_trimmed();
        frame.source.for_each_other(job, &mut |id, entry| {
            if demand.other_count < OTHERS {
                demand.others[demand.other_count] = (id, entry.units_on_a_node());
                demand.other_count += 1;
            }
        });
        demand.form = demand.form_of(job, gpus, wanted);
        demand
    }

    /// What jobs that ask for the same have in common, condensed.
    fn form_of(&self, job: Job<'_>, gpus: JobGres<'_>, wanted: &Wanted) -> u64 {
        let (request, demand) = (&wanted.request, self);
        let (kind, count) = match request.gpus {
            GpuShape::PerNode(gpus) => (1, u64::from(gpus)),
            GpuShape::Total(gpus) => (2, u64::from(gpus)),
            GpuShape::PerTask { per_task, tasks } => {
                (3, u64::from(per_task) << 32 | u64::from(tasks))
            }
            GpuShape::PerSocket {
                per_socket,
                sockets,
            } => (4, u64::from(per_socket) << 32 | u64::from(sockets)),
        };
        let (memory, mib) = match demand.memory {
            Memory::Free => (0, 0),
            Memory::Node(mib) => (1, mib),
            Memory::Cpu(mib) => (2, mib),
            Memory::Gpu(mib) => (3, mib),
            Memory::All => (4, 0),
        };
        let Cores {
            sockets,
            per_socket,
            threads,
            tasks_per_socket,
            tasks_per_core,
            ..
        } = demand.cores;
        let cores = [
            sockets,
            per_socket,
            threads,
            tasks_per_socket,
            tasks_per_core,
        ];
        let words = [
            kind,
            count,
            u64::from(request.min_nodes) << 32 | u64::from(request.max_nodes),
            memory << 60 | mib,
            u64::from(demand.cpus) << 32 | u64::from(request.cpus_per_gpu),
            u64::from(demand.cores.tasks_per_node) << 32 | u64::from(demand.cores.cpus_per_task),
            fnv(gpus.type_name().unwrap_or_default().bytes()) << 2 | demand.sharing as u64,
            job.partition_key() as u64,
        ];
        let words = words
            .into_iter()
            .chain(cores.map(u64::from))
            .chain(job.other_requests());
        let others = demand.others().iter();
        let words = words.chain(others.map(|(id, units)| u64::from(*id) << 32 ^ units));
        words.fold(0xcbf2_9ce4_8422_2325, |hash: u64, word| {
            (hash ^ word)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .rotate_left(29)
        })
    }

    fn others(&self) -> &[Other] {
        &self.others[..self.other_count]
    }

    /// Whether the planner, which counts GPUs, CPUs and memory of a node, knows all that is known here.
    fn is_plain(&self, open: bool) -> bool {
        !(self.memory.takes_all()
            || matches!(self.memory, Memory::Gpu(_)) && open
            || self.cores.is_special()
            || self.sharing != Sharing::Cores
            || self.binds
            || self.on_sockets.is_some()
            || self.other_count > 0)
    }

    /// Whether cons_tres gives a job fewer sockets of a node than are free there, for lack of memory. From 24.11 on its tree topology
    /// takes nodes whose GPUs are far from free cores after the others, and then the others keep all their sockets, for which there is
    /// not the memory: it refuses all of them together.
    fn is_trimmed(&self) -> bool {
        self.cores.whole_sockets && matches!(self.memory, Memory::Cpu(1..))
    }

    /// Has the planner look for what the job needs of a node at least.
    pub fn ask_for(&self, wanted: &mut Wanted) {
        let request = &mut wanted.request;
        request.cpus_per_node = request.cpus_per_node.max(1);
        request.memory_mib_per_node = self.least_memory(1);
    }

    /// MiB that a node must have free, where a core has so many threads.
    fn least_memory(&self, threads: u32) -> u64 {
        let cpus = match self.whole_cores {
            true => self.cpus.next_multiple_of(threads.max(1)),
            false => self.cpus,
        };
        self.memory.least(cpus, self.gpus)
    }
}

/// The cores of a node, socket by socket, if they are known.
fn sockets(node: Node<'_>, sum: &Sum, own: &[u16; SOCKETS]) -> Option<([Socket; SOCKETS], usize)> {
    let (count, cores) = (usize::from(node.sockets()), node.cores_per_socket());
    if count > SOCKETS || sum.coreless > 0 {
        return None;
    }
    let mut all = [Socket::default(); SOCKETS];
    for (at, socket) in all[..count].iter_mut().enumerate() {
        let first = at * usize::from(cores);
        let kept = node.reserved_cores(first..first + usize::from(cores));
        *socket = Socket {
            free: cores.saturating_sub(sum.cores[at] + kept),
            used: sum.cores[at],
            own: own[at],
        };
    }
    Some((all, count))
}

/// Of the free GPUs of a node those near a socket with free cores: where there are enough of them, those near one that
/// has so many CPUs free.
fn bound(
    gpus: NodeGres<'_>,
    node: Node<'_>,
    free: GpuSet,
    cpus: u32,
    sockets: &[Socket],
    want: u32,
) -> GpuSet {
    let cores = usize::from(node.cores_per_socket());
    let threads = u32::from(node.threads());
    let (mut some, mut enough, mut listed) = (GpuSet::EMPTY, GpuSet::EMPTY, GpuSet::EMPTY);
    for entry in 0..gpus.topologies() {
        let Some(bits) = gpus.topology_bits(entry) else {
            continue;
        };
        let bits = GpuSet(bits.chunk(0)).and(free);
        listed.0 |= bits.0;
        let near = gpus.topology_cores(entry);
        let is_near = |at: usize| {
            near.is_none_or(|near: Bitmap<'_>| near.count_in(at * cores..(at + 1) * cores) > 0)
        };
        let count = sockets.iter().enumerate().filter(|(at, _)| is_near(*at));
        let count: u32 = count
            .map(|(_, socket)| u32::from(socket.free) * threads)
            .sum();
        if count > 0 {
            some.0 |= bits.0;
        }
        if count >= cpus {
            enough.0 |= bits.0;
        }
    }
    let unlisted = free.minus(listed);
    let fits = GpuSet(enough.0 | unlisted.0);
    match fits.len() >= want as usize {
        true => fits,
        false => GpuSet(some.0 | unlisted.0),
    }
}

/// How many sockets of a node have so many of these GPUs near them; those that are near no socket of their own are near all.
fn sockets_with(gpus: NodeGres<'_>, node: Node<'_>, free: GpuSet, each: u32) -> u32 {
    let (count, cores) = (
        usize::from(node.sockets()).min(SOCKETS),
        usize::from(node.cores_per_socket()),
    );
    let mut near = [GpuSet::EMPTY; SOCKETS];
    let mut listed = GpuSet::EMPTY;
    for entry in 0..gpus.topologies() {
        let (Some(bits), Some(map)) = (gpus.topology_bits(entry), gpus.topology_cores(entry))
        else {
            continue;
        };
        let bits = GpuSet(bits.chunk(0)).and(free);
        let own = |at: &usize| map.count_in(at * cores..(at + 1) * cores) > 0;
        if (0..count).all(|at| own(&at)) {
            continue;
        }
        listed.0 |= bits.0;
        for at in (0..count).filter(own) {
            near[at].0 |= bits.0;
        }
    }
    let mut anywhere = free.minus(listed).len() as u32;
    let mut found = 0;
    near[..count].sort_unstable_by_key(|gpus| std::cmp::Reverse(gpus.len()));
    for gpus in &near[..count] {
        let lacks = each.saturating_sub(gpus.len() as u32);
        if lacks > anywhere {
            break;
        }
        anywhere -= lacks;
        found += 1;
    }
    found
}

/// Whether what jobs of the same partition hold on a node counts.
fn follows(cores: &Cores) -> bool {
    cores.whole_sockets || cores.most_per_node.is_some() || cores.most_per_socket.is_some()
}

/// The same for a job that starts or runs. `site`: `SelectTypeParameters` as Slurm's bits.
pub fn follows_part(site: u16, job: Job<'_>) -> bool {
    follows(&job.cores(job.select_parameters(site)))
}

/// Adds to what a job holds the cores that it has of each socket. A core that it has is nobody else's, with all
/// its threads.
pub fn note_cores(source: &Source<'_>, job: Job<'_>, held: &mut [Holding]) {
    let shape = |index: usize| {
        let node = source.node(index)?;
        let (sockets, cores) = (
            usize::from(node.sockets()),
            usize::from(node.cores_per_socket()),
        );
        (usize::from(node.cores()) == sockets * cores).then_some((sockets, cores))
    };
    let mut left = held.iter_mut();
    job.for_each_cores(shape, |index, cores| {
        let Some(held) = left.by_ref().find(|one| one.node as usize == index) else {
            return;
        };
        let threads = source
            .node(index)
            .map_or(1, |node| u32::from(node.threads()));
        let all: u32 = cores.iter().map(|cores| u32::from(*cores)).sum();
        held.cpus = held.cpus.max(all * threads);
        held.cores = Some(cores);
    });
}

/// The candidates of a call against what its job needs.
pub struct Fitting<'e, 'a> {
    /// Where nodes are read.
    pub source: &'e Source<'a>,
    /// What running jobs hold.
    pub ledger: &'e Ledger,
    /// The candidates.
    pub snapshot: &'e mut Snapshot,
    /// What the job needs.
    pub demand: &'e Demand,
    /// Whether some node has cores with several threads.
    pub has_threads: bool,
}

impl<'a> Fitting<'_, 'a> {
    /// Has the candidates that cannot give the job what it needs have nothing free for it.
    pub fn fit(&mut self, wanted: &Wanted) {
        let demand = self.demand;
        // How many GPUs a node gives is not settled yet.
        let open = matches!(
            wanted.request.gpus,
            GpuShape::Total(_) | GpuShape::PerTask { .. }
        );
        let threads = self.has_threads && matches!(demand.memory, Memory::Cpu(_));
        if !demand.is_plain(open) || threads {
            self.fit_each(open);
        }
    }

    #[inline(never)]
    fn fit_each(&mut self, open: bool) {
        let (source, demand) = (self.source, self.demand);
        for index in 0..self.snapshot.places.len() {
            let Some(gres) = self.snapshot.gpus(source, index) else {
                continue;
            };
            let Some(node) = source.node(index) else {
                continue;
            };
            let usable = self.usable_cpus(node, index);
            let sum = self.ledger.sum(index);
            let state = &mut self.snapshot.states[index];
            let Some(cpus) = usable else {
                (state.free_cpus, state.free_memory_mib) = (0, 0);
                continue;
            };
            if let Some(cpus) = cpus {
                state.free_cpus = cpus;
            }
            if (demand.binds || demand.near)
                && let Some((sockets, count)) = sockets(node, &sum, &[0; SOCKETS])
            {
                let sockets = &sockets[..count];
                let near = bound(gres, node, state.free, demand.cpus, sockets, demand.gpus);
                if demand.binds || near.len() >= demand.gpus as usize {
                    state.free = near;
                }
            }
            if let Some((each, count)) = demand.on_sockets
                && sockets_with(gres, node, state.free, each) < count
            {
                (state.free_cpus, state.free_memory_mib) = (0, 0);
                continue;
            }
            // The planner knows no memory of a GPU: it is shown as many as there is memory for.
            if let (true, Memory::Gpu(each)) = (open, demand.memory)
                && each > 0
            {
                let most = state.free_memory_mib / each;
                while state.free.len() as u64 > most {
                    let last = 63 - state.free.0.leading_zeros();
                    state.free.0 &= !(1 << last);
                }
            }
        }
    }

    /// How many CPUs of a node the job at hand can use; `Some(None)`: as many as are free there, `None`: the node does
    /// not serve it.
    fn usable_cpus(&self, node: Node<'a>, index: usize) -> Option<Option<u32>> {
        let demand = self.demand;
        let sum = self.ledger.sum(index);
        let memory_free = node.memory_for_jobs().saturating_sub(sum.memory_mib);
        let [_, overlapping, alone] = sum.jobs;
        let shared = match demand.sharing {
            Sharing::Cores => overlapping > 0,
            Sharing::Overlaps => sum.jobs[Sharing::Cores as usize] > 0,
            Sharing::Nothing => sum.all_jobs() > 0,
        };
        let short = match demand.memory {
            Memory::Free => false,
            memory if memory.takes_all() => sum.memory_mib > 0,
            _ => memory_free < demand.least_memory(u32::from(node.threads())),
        };
        if shared || short || alone > 0 || !self.has_others(node) {
            return None;
        }
        if demand.sharing == Sharing::Overlaps {
            // Whose cores those of the others are does not matter.
            return Some(Some(u32::MAX));
        }
        let own = demand
            .part
            .map_or([0; SOCKETS], |part| self.ledger.of_part(part, index));
        if !demand.cores.is_special() {
            return Some(None);
        }
        let Some((sockets, count)) = sockets(node, &sum, &own) else {
            return Some(None);
        };
        let shape = fits::Node {
            threads: node.threads(),
            cores_per_socket: node.cores_per_socket(),
            sockets: &sockets[..count],
        };
        let cpus = demand.cores.usable(&shape);
        let cpus = demand
            .cores
            .with_memory(cpus, demand.memory, memory_free, &shape);
        (cpus >= demand.cpus).then_some(Some(cpus))
    }

    /// Whether a node has what the job asks for of other GRES.
    fn has_others(&self, node: Node<'a>) -> bool {
        self.demand.others().iter().all(|(id, units)| {
            let gres = self.source.gres(node, *id);
            gres.is_some_and(|gres| gres.free_units() >= *units)
        })
    }
}
