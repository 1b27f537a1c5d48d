//! Hosts on which another one gives GPUs to jobs, such as pbs_cgroups: gpuos gives programs nothing there, keeps them from nothing and takes nothing out of
//! service. What gpuosd finds it says in the comment of the host's own vnode.

use gpuos_core::wire::{HostOrder, MomHost, MomJob, MomOrders, MomReport};
use gpuos_model::gpu_index::GresGpu;
use gpuos_model::screen;

use super::event::{Edit, Event, Gpu, Host, Server, Verdict};
use super::mom::{described, job, natural};
use super::options::said;
use super::resources::{CLOCKS, MEM, MPS, POWER};

/// How comments of gpuos begin that ask an administrator for something; others are another's.
const MARK: &str = "gpuos advises: ";
/// The longest comment, in characters.
const MOST: usize = 200;

/// What the administrator says of this host, if gpuos only advises there.
pub(super) fn host(event: &Event) -> Option<&Host> {
    event.described().find(|host| host.advise)
}

/// What gpuosd is told of such a host.
pub(super) fn report(event: &Event, host: &Host) -> MomReport {
    MomReport {
        described: described(host),
        jobs: jobs(event, host),
        all: true,
        asked: event.server.is_some(),
        host: event.server.as_ref().and_then(|server| seen(event, server)),
        advise: true,
        ..MomReport::default()
    }
}

/// What a program of a job is told for which something would be done elsewhere.
pub(super) fn noted(event: &Event, mut verdict: Verdict) -> Verdict {
    let asks = |name: &str| said(&event.job.resources, name).is_some();
    if host(event).is_none() {
        return verdict;
    }
    if [POWER, CLOCKS, MPS].into_iter().any(asks) {
        let note = "gpuos only advises on this host: power and clocks of its GPUs are not set, and MPS is not started";
        verdict.notes.push(note.into());
    }
    if asks(MEM) {
        let note = "gpuos only advises on this host: the program has no more memory than its GPUs";
        verdict.notes.push(note.into());
    }
    verdict
}

/// Jobs that have GPUs here, by what PBS counts or by what they were told; which ones they are the latter says alone.
fn jobs(event: &Event, host: &Host) -> Vec<MomJob> {
    let all = event.jobs.iter().filter_map(|(id, held)| {
        let mut job = job(event, id, (&held.exec_vnode, &held.held, &held.resources))?;
        let counts = std::mem::take(&mut job.count) > 0;
        job.gpus = given(host, &held.visible);
        (!job.gpus.is_empty() || counts).then_some(job)
    });
    all.collect()
}

/// GPUs by their UUIDs in a list as CUDA reads it. What is in it besides, such as MIG instances, is none of them.
fn given(host: &Host, visible: &str) -> Vec<GresGpu> {
    let listed =
        |gpu: &Gpu| !gpu.uuid.is_empty() && visible.split(',').any(|one| one.trim() == gpu.uuid);
    let own = host.gpus.iter().enumerate().filter(|(_, gpu)| listed(gpu));
    own.filter_map(|(index, _)| GresGpu::new(index)).collect()
}

/// What gpuos says in the comment of the host's own vnode.
fn seen(event: &Event, server: &Server) -> Option<MomHost> {
    let told = server.vnodes.get(&natural(event))?;
    Some(MomHost {
        reason: told.comment.strip_prefix(MARK).map(str::to_owned),
        // Another's comment is in its place.
        commented: !is_own(&told.comment),
        ..MomHost::default()
    })
}

/// Whether a comment may be another one.
fn is_own(comment: &str) -> bool {
    comment.is_empty() || comment.starts_with(MARK)
}

/// What becomes of the comment. Another's stays, and so does the state of the vnode.
pub(super) fn comment(event: &Event, orders: &MomOrders, server: &Server) -> Option<Edit> {
    let vnode = natural(event);
    let told = server.vnodes.get(&vnode)?;
    let wanted = match &orders.host {
        HostOrder::Leave => return None,
        HostOrder::Online => String::new(),
        HostOrder::Offline(advice) => {
            let advice = screen::line(advice);
            format!("{MARK}{}", advice.chars().take(MOST).collect::<String>())
        }
    };
    (is_own(&told.comment) && told.comment != wanted).then_some(Edit::Comment {
        vnode,
        value: wanted,
    })
}
