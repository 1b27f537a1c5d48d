//! The calls in which there is nothing to choose: too few nodes have enough free GPUs, or all nodes have to be
//! taken whole. On a small cluster they are many, and whatever else gpuos read and made before it handed them
//! on would only be added to what cons_tres takes. So they are told apart first, by as little as shows them.

use gpuos_model::gpuset::MAX_GPUS;
use slurm_ffi::gres::JobGres;

use crate::abi::frame::Frame;
use crate::read::prefetch::Prefetch;
use crate::read::request;
use crate::read::snapshot;

/// With more candidates than this the look is not worth its time where it finds a choice after all.
const MOST_NODES: usize = 64;

/// What a look found that is as short as it can be.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum NoChoice {
    /// Fewer candidates than needed have enough free GPUs.
    TooFewNodes {
        /// GPUs on each node.
        wanted: u32,
        /// Nodes.
        needed: u32,
        /// Nodes that have them.
        fitting: u32,
    },
    /// As many as needed have, each of them whole, and there are no others.
    AllWhole,
}

/// Tells the calls apart in which there is nothing to choose; `None`: there may be. Only for jobs that
/// say nothing to gpuos, once the cluster model is made. `hides_cores`: where cores are hidden from cons_tres there is
/// more to do than to hand the call on.
pub fn check(
    frame: &Frame<'_>,
    gpus: JobGres<'_>,
    prefetch: &mut Prefetch,
    hides_cores: bool,
) -> Option<NoChoice> {
    let (source, job, nodes) = (&frame.source, frame.job, frame.candidates);
    let wanted = gpus.per_node();
    let other_forms = gpus.per_job() | gpus.per_task() | gpus.per_socket();
    let candidates = nodes.count();
    if wanted == 0
        || wanted > MAX_GPUS as u64
        || other_forms != 0
        || job.has_spank_env()
        || job.whole_nodes()
        || candidates > MOST_NODES
    {
        return None;
    }
    let wanted_type = gpus.type_name();
    let count = source.nodes();
    let mut ahead = prefetch.begin(nodes, count);
    let counts = request::counts(frame.call.counts, job);
    let mut whole = !hides_cores && candidates == counts.wanted as usize;
    let mut room = 0;
    for index in frame.indices() {
        prefetch.fetch(ahead.next());
        let Some(seen) = snapshot::take(source, prefetch, index, wanted_type) else {
            continue;
        };
        let Some(devices) = seen.devices.filter(|devices| *devices <= MAX_GPUS) else {
            if seen.gpus.available() > 0 {
                return None;
            }
            continue;
        };
        if (seen.free.len() as u64) < wanted {
            whole = false;
            continue;
        }
        room += 1;
        whole = whole && devices as u64 == wanted && seen.gpus.topologies() > 0;
        if room >= counts.min && !whole {
            return None;
        }
    }
    if room < counts.min {
        return Some(NoChoice::TooFewNodes {
            wanted: wanted as u32,
            needed: counts.min,
            fitting: room,
        });
    }
    (whole && room == counts.wanted).then_some(NoChoice::AllWhole)
}
