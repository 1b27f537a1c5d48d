//! A node with MIG-switchable GPUs, and what a call about a job makes of it.
use gpuos_model::gpu_index::{GresGpu, NvmlIndex, PoolGpu};
use gpuos_model::gpuset::{GpuSet, MAX_GPUS};

use super::gpu::{Allocated, Gpu, GpuMode};
use super::marks::{Mark, Marks, Why};

/// A node with MIG-switchable GPUs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// Its index.
    pub index: usize,
    /// Its name.
    pub name: String,
    /// How many devices GRES `gpuos` has to have there.
    pub slices: usize,
    /// None: nobody knows which are MIG-switchable.
    pub gpus: Vec<Gpu>,
    /// Whether the log says that its GPUs are not switched.
    pub logged: bool,
}

/// What a node shows of one GRES.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct GresState {
    /// How many devices it has.
    pub devices: usize,
    /// Which of the first 64 devices are allocated.
    pub allocated_bits: u64,
    /// How many units are allocated.
    pub allocated: u64,
    /// Whether it is known of which type its devices are.
    pub has_topology: bool,
    /// Whether it is from slurm.conf and saved state alone.
    pub provisional: bool,
    /// Whether a job that starts now would lack what it gets of it in its own record.
    pub loses: bool,
}

impl GresState {
    /// 22.05: a job that began before the node registered has some, and nobody knows which.
    fn is_nameless(&self) -> bool {
        self.allocated > u64::from(self.allocated_bits.count_ones())
    }
}

/// What a node shows of its GPUs.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct NodeState {
    /// GRES `gpu`.
    pub gpus: GresState,
    /// GRES `gpuos`.
    pub slices: GresState,
    /// GPUs, as devices of GRES `gpu`, of which shards are in use or that MPS serves.
    pub shared: u64,
    /// Power saving has the node off.
    pub power_saved: bool,
    /// GPUs, as devices of GRES `gpu`, that are out of service.
    pub out: GpuSet,
}

/// What is understood of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reading {
    /// What is given of its GPUs.
    Known(Allocated),
    /// Nobody knows whose its GPUs are: it is not as gpuos.toml says, or has not registered.
    Unknown {
        /// Not even jobs with whole GPUs may have it.
        for_nobody: bool,
        /// It comes right by itself.
        passes: bool,
    },
}

/// What a job asks for.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Asks {
    /// Whole GPUs, or shards of some.
    pub whole: bool,
    /// Slices.
    pub slices: bool,
}

impl Asks {
    /// The one kind of GPU that it asks for, if it is one.
    pub const fn only(self) -> Option<GpuMode> {
        match (self.whole, self.slices) {
            (true, false) => Some(GpuMode::Whole),
            (false, true) => Some(GpuMode::Slices),
            _ => None,
        }
    }
}

/// The job of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Job {
    /// What it asks for.
    pub asks: Asks,
    /// Whether idle GPUs of the other mode are kept from it for a while.
    pub spares_idle: bool,
    /// From when on it has waited long enough for these.
    pub patient_from: i64,
    /// Seconds that such a GPU has to have been of its mode.
    pub hold: i64,
    /// Whether it is asked when it could start.
    pub is_forecast: bool,
    /// The time of the call.
    pub now: i64,
}

/// How a GPU served last, and since when, on a node as it was known before.
pub fn served(before: &[Node], node: &str, nvml: NvmlIndex) -> (GpuMode, i64) {
    let own = before.iter().find(|own| own.name == node);
    let gpu = own.and_then(|own| own.gpus.iter().find(|gpu| gpu.nvml == nvml));
    gpu.map_or((GpuMode::Whole, 0), |gpu| (gpu.mode, gpu.since))
}

impl Node {
    /// A node of whose GPUs nothing is known yet.
    pub fn new(index: usize, name: &str, slices: usize) -> Node {
        Node {
            index,
            name: name.into(),
            slices,
            gpus: Vec::new(),
            logged: false,
        }
    }

    /// Adds a GPU by its numbers; `each`: the slices of a GPU. `before`: the nodes as they were known before.
    pub fn add(
        &mut self,
        nvml: NvmlIndex,
        gres: GresGpu,
        pool: PoolGpu,
        each: u8,
        before: &[Node],
    ) {
        let (mode, since) = served(before, &self.name, nvml);
        self.gpus.push(Gpu {
            nvml,
            gres,
            slices: pool.slices(each),
            mode,
            since,
        });
    }

    /// What is understood of its state.
    pub fn read(&self, state: &NodeState) -> Reading {
        let NodeState { gpus, slices, .. } = state;
        let last = self.gpus.iter().map(|gpu| gpu.gres.index()).max();
        let nameless = gpus.is_nameless() || slices.is_nameless();
        let fits = slices.devices == self.slices
            && !nameless
            && self.slices <= MAX_GPUS
            && slices.has_topology
            && gpus.has_topology
            && gpus.devices <= MAX_GPUS
            && last.is_some_and(|last| gpus.devices > last);
        if fits && !gpus.loses && !slices.loses {
            return Reading::Known(Allocated {
                gpus: gpus.allocated_bits,
                shared: state.shared,
                slices: slices.allocated_bits,
            });
        }
        let provisional = gpus.provisional || slices.provisional;
        Reading::Unknown {
            for_nobody: provisional && !state.power_saved || slices.allocated > 0,
            passes: nameless || provisional,
        }
    }

    /// Remembers how its GPUs serve.
    pub fn learn(&mut self, given: Allocated, now: i64) {
        self.gpus.iter_mut().for_each(|gpu| gpu.learn(given, now));
    }

    /// Decides what of its GPUs counts as given for the job of a call. The new marks are the last ones of `marks`, to be
    /// carried out by [`Marks::carry_out`]. Bits that are given already have no mark: they are somebody else's.
    pub fn mark(&mut self, given: Allocated, out: GpuSet, job: &Job, marks: &mut Marks) {
        self.learn(given, job.now);
        for gpu in &self.gpus {
            gpu.mark(self.index, given, gpu.gres.is_in(out), job, marks);
        }
    }
}

impl Gpu {
    /// When an idle one of the other mode may be offered to a job.
    fn offered_from(&self, job: &Job) -> i64 {
        job.patient_from.max(self.since.saturating_add(job.hold))
    }

    fn mark(&self, node: usize, given: Allocated, out: bool, job: &Job, marks: &mut Marks) {
        let Asks { whole, slices } = job.asks;
        let mut free = [GpuMode::Whole, GpuMode::Slices].map(|mode| {
            let devices = self.devices(mode);
            devices & !given.of(mode)
        });
        let mut mark = |mode: GpuMode, why: Why| {
            let bits = std::mem::take(&mut free[mode as usize]);
            if bits != 0 {
                marks.push(Mark::new(node, self, mode, bits, why));
            }
        };
        // Which slices it gets is not known yet: they might be of the GPU that it gets as a whole.
        if slices && whole {
            mark(GpuMode::Whole, Why::Never);
        }
        if slices && out {
            mark(GpuMode::Slices, Why::Never);
        }
        // In a forecast what is due is offered at once.
        let at = self.offered_from(job);
        let spared = job.spares_idle && !(job.is_forecast && at <= job.now);
        match self.held(given) {
            Some(GpuMode::Slices) => mark(GpuMode::Whole, Why::Allocated),
            // Somebody has both: a job that took the whole node.
            Some(GpuMode::Whole) if slices => mark(GpuMode::Slices, Why::Allocated),
            // One that is out of service is withheld from it besides.
            None if spared && whole && !out && self.mode == GpuMode::Slices => {
                mark(GpuMode::Whole, Why::OtherMode(at));
            }
            None if spared && slices && self.mode == GpuMode::Whole => {
                mark(GpuMode::Slices, Why::OtherMode(at));
            }
            _ => {}
        }
    }
}
