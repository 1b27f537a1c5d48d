//! The state of every candidate node, read from Slurm's records at the start of a call.

use gpuos_model::gpuset::{GpuSet, MAX_GPUS};
use gpuos_placement::plan::NodeState;
use slurm_ffi::bits::Bitmap;
use slurm_ffi::gres::NodeGres;
use slurm_ffi::handles::{Node, POWERED_DOWN};

use crate::abi::source::Source;
use crate::read::ledger::Ledger;
use crate::read::prefetch::Prefetch;
use crate::read::service::Service;

/// With more node weights than this, weights are not planned one by one.
pub const MOST_WEIGHTS: usize = 8;

/// What is remembered of one candidate beside its [`NodeState`].
#[derive(Clone, Copy)]
pub struct Place {
    /// Slurm's GRES state of the node's GPUs as an address; 0 when it has none: see [`Snapshot::gpus`].
    gres: usize,
    /// Whether the GPUs have no topology entry (neither `Cores=` nor a type): then a mask restricts how
    /// many GPUs are given, not which.
    pub flat: bool,
    /// How many devices the node has.
    pub devices: usize,
    /// Slurm's weight of the node.
    pub weight: u64,
    /// Whether no job is known to hold a CPU there.
    pub idle: bool,
}

impl Place {
    /// Whether the node is a candidate with GPUs.
    pub fn has_gpus(&self) -> bool {
        self.gres != 0
    }

    const NONE: Place = Place {
        gres: 0,
        flat: false,
        devices: 0,
        weight: 0,
        idle: false,
    };
}

/// Buffers for the snapshot, kept from call to call.
#[derive(Default)]
pub struct Snapshot {
    /// By node index.
    pub states: Vec<NodeState>,
    /// By node index.
    pub places: Vec<Place>,
    /// Facts of each node that the cluster model is built from, condensed; by node index.
    pub signatures: Vec<u64>,
    weights: Vec<u64>,
    /// Nodes with free GPUs that are degraded, and these.
    degraded: Vec<(usize, GpuSet)>,
    /// Whether a signature changed since the model was built.
    pub changed: bool,
    /// Whether some candidate has GPUs that are only counted, not listed by device.
    pub unlisted: bool,
}

impl Snapshot {
    /// Reads the candidates of this call.
    ///
    /// `wanted_type` restricts the free GPUs to a GRES type. `is_forecast`: it is asked when a job could start.
    pub fn take(
        &mut self,
        is_forecast: bool,
        source: &Source<'_>,
        prefetch: &mut Prefetch,
        candidates: Bitmap<'_>,
        wanted_type: Option<&str>,
        (ledger, service): (&Ledger, &Service),
    ) {
        let count = source.nodes();
        self.states.clear();
        self.states.resize(count, NodeState::default());
        self.places.clear();
        self.places.resize(count, Place::NONE);
        self.signatures.resize(count, 0);
        self.unlisted = false;
        self.degraded.clear();
        let mut ahead = prefetch.begin(candidates, count);
        for index in candidates.iter().take_while(|index| *index < count) {
            prefetch.fetch(ahead.next());
            let Some(seen) = take(source, prefetch, index, wanted_type) else {
                continue;
            };
            let (node, gpus) = (seen.node, seen.gpus);
            let signature = signature(node, gpus, seen.devices);
            if self.signatures[index] != signature {
                self.signatures[index] = signature;
                self.changed = true;
            }
            let Some(devices) = seen.devices else {
                self.unlisted |= gpus.available() > 0;
                continue;
            };
            if devices > MAX_GPUS {
                self.unlisted = true;
                continue;
            }
            let (cpus, memory) = ledger.on(index);
            let known_memory = source.memory_counts && node.memory() > 1;
            self.places[index] = Place {
                gres: gpus.raw() as usize,
                flat: gpus.topologies() == 0,
                devices,
                weight: node.weight_for(is_forecast),
                idle: cpus == 0,
            };
            let (out, degraded) = service.of(index);
            let free = seen.free.minus(out);
            if !degraded.and(free).is_empty() {
                self.degraded.push((index, degraded.and(free)));
            }
            self.states[index] = NodeState {
                candidate: true,
                present: seen.fitting.minus(out),
                free,
                free_cpus: node.cpus().saturating_sub(cpus),
                free_memory_mib: if known_memory {
                    node.memory_for_jobs().saturating_sub(memory)
                } else {
                    u64::MAX
                },
                affinity: 0,
                penalty: 0,
                until: ledger.until(index),
            };
        }
    }

    /// The GPUs of a candidate.
    pub fn gpus<'a>(&self, source: &Source<'a>, index: usize) -> Option<NodeGres<'a>> {
        let place = self.places.get(index)?;
        // SAFETY: `take` has read it in this call: whoever has a source takes a snapshot before it reads one.
        unsafe { source.gres_again(place.gres) }
    }

    /// The different node weights among the candidates, lowest first, at most [`MOST_WEIGHTS`]; the last
    /// one always covers all.
    pub fn weights(&mut self) -> usize {
        let candidates = self.states.iter().zip(&self.places);
        let weights = candidates.filter(|(state, _)| state.candidate);
        few_weights(&mut self.weights, weights.map(|(_, place)| place.weight));
        self.weights.len()
    }

    /// Leaves only the candidates up to the weight with that rank in [`Snapshot::weights`].
    pub fn up_to_weight(&mut self, rank: usize) {
        let most = self.weights.get(rank).copied().unwrap_or(u64::MAX);
        for (state, place) in self.states.iter_mut().zip(&self.places) {
            state.candidate = place.gres != 0 && place.weight <= most;
        }
    }

    /// How many candidates have at least `count` free GPUs, whatever their CPUs.
    pub fn with_free(&self, count: u32) -> u32 {
        let fits = |state: &&NodeState| state.candidate && state.free.len() as u32 >= count;
        self.states.iter().filter(fits).count() as u32
    }

    /// Whether some candidates have more GPUs than others that have any.
    pub fn has_sizes(&self) -> bool {
        let mut sizes = self.places.iter().filter(|place| place.has_gpus());
        let first = sizes.next().map(|place| place.devices);
        sizes.any(|place| Some(place.devices) != first)
    }

    /// Candidates with free GPUs, and how many they have together.
    pub fn with_any(&self) -> (u32, u32) {
        let states = self
            .states
            .iter()
            .filter(|state| state.candidate && !state.free.is_empty());
        states.fold((0, 0), |(nodes, gpus), state| {
            (nodes + 1, gpus + state.free.len() as u32)
        })
    }

    /// Has GPUs that are degraded not be free; whether there were any.
    pub fn spare_degraded(&mut self) -> bool {
        for (index, degraded) in &self.degraded {
            let free = &mut self.states[*index].free;
            *free = free.minus(*degraded);
        }
        !self.degraded.is_empty()
    }

    /// Has them free again.
    pub fn offer_degraded(&mut self) {
        for (index, degraded) in &self.degraded {
            self.states[*index].free.0 |= degraded.0;
        }
    }

    /// Sets CPUs and memory to "unknown", for a job that nobody else will place: what is known of them is advice.
    pub fn forget_cpus(&mut self) {
        for state in &mut self.states {
            state.free_cpus = u32::MAX;
            state.free_memory_mib = u64::MAX;
        }
    }
}

/// What the first look at a node with GPUs finds.
pub struct Seen<'a> {
    /// The node.
    pub node: Node<'a>,
    /// Its GPUs.
    pub gpus: NodeGres<'a>,
    /// How many devices it has, where they are listed one by one.
    pub devices: Option<usize>,
    /// Those of the wanted type; none where there are more than [`MAX_GPUS`].
    pub fitting: GpuSet,
    /// Those of them that are free.
    pub free: GpuSet,
}

/// Looks at a node's GPUs, of one type where one is wanted; `None`: there are none. Not inlined: a call
/// that looks twice is to find this code at hand the second time.
#[inline(never)]
pub fn take<'a>(
    source: &Source<'a>,
    prefetch: &mut Prefetch,
    index: usize,
    wanted_type: Option<&str>,
) -> Option<Seen<'a>> {
    let node = source.node(index)?;
    let gpus = source.gpus(node)?;
    let bits = gpus.bits();
    prefetch.remember(index, node, gpus, bits, source.layout);
    let devices = bits.map(|bits| bits.len());
    let (mut present, mut taken) = (GpuSet::EMPTY, 0);
    if let Some(bits) = bits.filter(|bits| bits.len() <= MAX_GPUS) {
        present = fitting(gpus, bits.len(), wanted_type);
        taken = bits.chunk(0);
        let used = source.shards(node).and_then(NodeGres::bits);
        taken |= used.map_or(0, |used| used.chunk(0));
    }
    Some(Seen {
        node,
        gpus,
        devices,
        fitting: present,
        free: present.minus(GpuSet(taken)),
    })
}

/// Different weights, lowest first. A plan for each takes its time: of more than [`MOST_WEIGHTS`] the higher ones are taken together, but those of
/// nodes that are up not with those of others.
fn few_weights(few: &mut Vec<u64>, all: impl Iterator<Item = u64> + Clone) {
    few.clear();
    for weight in all.clone() {
        if !few.contains(&weight) {
            few.push(weight);
            if few.len() > MOST_WEIGHTS {
                break;
            }
        }
    }
    if few.len() > MOST_WEIGHTS {
        few.clear();
        few.extend(all);
    }
    few.sort_unstable();
    few.dedup();
    if few.len() <= MOST_WEIGHTS {
        return;
    }
    // Those that are off, and those that rules want last, have higher bits.
    let up = few.partition_point(|weight| *weight < POWERED_DOWN);
    let all_up = up == few.len();
    let last_up = up.checked_sub(1).map(|last| few[last]);
    few.truncate(MOST_WEIGHTS - 2);
    let last = few.last().copied();
    few.extend(last_up.filter(|weight| !all_up && Some(*weight) > last));
    few.push(u64::MAX);
}

/// The GPUs of a node with so many devices that are of a GRES type, if one is wanted.
fn fitting(gpus: NodeGres<'_>, devices: usize, wanted_type: Option<&str>) -> GpuSet {
    let present = GpuSet::first(devices);
    let Some(kind) = wanted_type else {
        return present;
    };
    let topologies = gpus.topologies();
    if topologies == 0 {
        return match gpus.only_type() == Some(kind) {
            true => present,
            false => GpuSet::EMPTY,
        };
    }
    let of_kind = (0..topologies).filter(|t| gpus.topology_type(*t) == Some(kind));
    let all = of_kind
        .filter_map(|t| gpus.topology_bits(t))
        .fold(0, |set, bits| set | bits.chunk(0));
    present.and(GpuSet(all))
}

/// Condenses what the cluster model takes from Slurm, so that a change (nodes register one by one
/// after a start) is noticed without comparing matrices.
fn signature(node: Node<'_>, gpus: NodeGres<'_>, devices: Option<usize>) -> u64 {
    let bits = devices.map_or(0, |devices| devices as u64 + 1);
    let fields = [
        bits,
        gpus.topologies() as u64,
        gpus.link_len() as u64,
        u64::from(node.sockets()),
        u64::from(node.cores_per_socket()),
        node.topology_at() as u64,
    ];
    // FNV-1a over the fields; 0 stays the mark of "never seen".
    fields
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, field| {
            (hash ^ field).wrapping_mul(0x0100_0000_01b3)
        })
        | 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn few(all: &[u64]) -> Vec<u64> {
        let mut few = vec![99];
        few_weights(&mut few, all.iter().copied());
        few
    }

    #[test]
    fn many_weights_are_few_groups_and_nodes_that_are_up_come_first() {
        assert!(few(&[]).is_empty());
        assert_eq!(few(&[5, 1, 5, 1]), [1, 5]);
        let eight: Vec<u64> = (1..=8).collect();
        assert_eq!(few(&eight), eight);
        assert_eq!(
            few(&(1..=20).rev().collect::<Vec<_>>()),
            [1, 2, 3, 4, 5, 6, u64::MAX]
        );
        let down = (1..=5).map(|weight| weight | POWERED_DOWN);
        let all: Vec<u64> = (1..=5).chain(down.clone()).collect();
        assert_eq!(few(&all), [1, 2, 3, 4, 5, 1 | POWERED_DOWN, u64::MAX]);
        let all: Vec<u64> = (1..=9).chain(down).collect();
        assert_eq!(few(&all), [1, 2, 3, 4, 5, 6, 9, u64::MAX]);
    }
}
