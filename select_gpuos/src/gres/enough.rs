//! Whether cons_tres gave a job what it asks for, and how an answer that gives less is taken back.
//!
//! cons_tres can say yes and select fewer GPUs than were asked for, where links or sockets leave it no way to the free ones. It does so to a
//! choice of gpuos in places where by itself it would have gone elsewhere, so that such an answer is none.

use gpuos_placement::least::{Asked, Shortage};
use slurm_ffi::gres::{JobGres, NodeGres};
use slurm_ffi::handles::Job;

use crate::abi::frame::Frame;
use crate::read::site::Site;
use crate::read::trust::LayoutTrust;

/// What a job that cons_tres has just accepted was given too little of; `plain`: GPUs that it would have without gpuos, where that was
/// asked. `None` where it has enough, starts nothing, or where the selection may not be read.
pub fn shortage(
    frame: &Frame<'_>,
    site: &Site,
    trust: &LayoutTrust,
    plain: u64,
) -> Option<Shortage> {
    let given = given(frame, site, trust)?;
    let (job, nodes) = (frame.job, frame.candidates);
    let short = frame.source.gpus_asked(job).find_map(|gpus| {
        let counted = |node| (node, gpus.selected_count(node));
        let short = asked(job, gpus).shortage(nodes.iter().map(counted));
        short.or_else(|| nodes.iter().find_map(|node| overcounted(frame, gpus, node)))
    });
    let fewer = Shortage {
        given,
        asked: plain,
        node: None,
    };
    short.or((given < plain).then_some(fewer))
}

/// On a node whose GPUs cons_tres only counts it counts some for each socket that the job has cores of, also more than are free: then
/// the job gets none.
fn overcounted(frame: &Frame<'_>, gpus: JobGres<'_>, node: usize) -> Option<Shortage> {
    let asked = gpus.selected_count(node);
    if gpus.per_node() > 0 || gpus.selected(node).is_some() {
        return None;
    }
    let given = frame.source.gpus_of(node)?.free_units();
    (given < asked).then_some(Shortage {
        given,
        asked,
        node: Some(node),
    })
}

/// GPUs of a job that cons_tres has just accepted; `None` where it starts nothing, or where the selection may not be read.
pub fn given(frame: &Frame<'_>, site: &Site, trust: &LayoutTrust) -> Option<u64> {
    let (source, job, nodes) = (&frame.source, frame.job, frame.candidates);
    if !frame.is_start() || !trust.reads_selection(site, job) {
        return None;
    }
    if job.whole_nodes() {
        // Slurm adds what it did not ask for once it starts.
        let of_node = |node| source.gpus_of(node).map_or(0, NodeGres::available);
        return Some(nodes.iter().map(of_node).sum());
    }
    let of_entry = |gpus: JobGres<'_>| nodes.iter().map(|node| gpus.selected_count(node)).sum();
    Some(source.sum(job, of_entry))
}

fn asked(job: Job<'_>, gpus: JobGres<'_>) -> Asked {
    let per_socket = gpus.per_socket();
    let sockets = match per_socket {
        0 => 0,
        _ => job.cores(0).sockets.into(),
    };
    Asked {
        per_node: gpus.per_node(),
        per_job: gpus.per_job(),
        per_task: gpus.per_task(),
        tasks: job.tasks().into(),
        per_socket,
        sockets,
    }
}

/// Takes back what cons_tres has written for a start that is not to be, but for the candidates, which are the caller's. Only after
/// [`shortage`] has read it.
#[cold]
pub fn take_back(frame: &Frame<'_>) {
    let api = frame.source.api;
    let selected = frame.source.gpus_asked(frame.job);
    selected.for_each(|gpus| gpus.take_back(api));
    frame.job.free_resources(api);
    frame.call.take_back(api);
}
