//! Hosts on which another one gives GPUs to jobs, such as pbs_cgroups: gpuos makes no vnodes there, gives programs nothing, keeps them from
//! nothing and takes nothing out of service. It says where the host is, so that PBS's sets of vnodes hold for it, and what gpuosd finds, in
//! the comment of the host's own vnode.

use gpuos_core::wire::{HostOrder, MomJob, MomOrders, MomReport, MomVnodes};
use gpuos_model::gpu_index::GresGpu;
use gpuos_model::screen;

use super::event::{Edit, Event, Gpu, Host, HostJob, Server, Value, Verdict};
use super::mom::{job, natural};
use super::options::said;
use super::resources::{CLOCKS, LEAF, MEM, MPS, NGPUS, NVLINK, POWER};
use super::startup;
use super::vnodes::{gpu_of, host_of, parse_exec_vnode, short};

/// How comments of gpuos begin that ask an administrator for something; others are another's.
const MARK: &str = "gpuos advises: ";
/// The longest comment, in characters.
const MOST: usize = 200;

/// What the administrator says of this host, if gpuos only advises there.
pub(super) fn host(event: &Event) -> Option<&Host> {
    let this = short(&event.host);
    let mut hosts = event.hosts.iter();
    let own = |(name, host): &(&String, &Host)| short(name) == this && host.advise;
    hosts.find(own).map(|(_, host)| host)
}

/// A mom that starts: in which leaf and set of NVLink its vnodes are. Whose GPUs are counted on which of them is not touched.
pub(super) fn started(event: &Event, host: &Host) -> Result<Vec<Edit>, String> {
    startup::check(host)?;
    let this = short(&event.host);
    let own = natural(event);
    let others = event
        .vnodes
        .keys()
        .filter(|name| short(host_of(name)) == this);
    let mut vnodes: Vec<&String> = others.filter(|name| **name != own).collect();
    vnodes.push(&own);
    let mut edits = Vec::new();
    for vnode in vnodes {
        let mut set = |name, value: &str| {
            if !value.is_empty() {
                edits.push(Edit::Vnode {
                    vnode: vnode.clone(),
                    name,
                    value: Value::Text(value.into()),
                });
            }
        };
        set(LEAF, &host.leaf);
        set(NVLINK, nvlink(host, gpu_of(vnode).map(|(_, numa)| numa)));
    }
    Ok(edits)
}

/// The set of NVLink that all GPUs of a vnode are in: of the host's own all that it has, of one of a NUMA node those beside it.
fn nvlink(host: &Host, numa: Option<usize>) -> &str {
    let beside =
        |gpu: &&Gpu| numa.is_none() || gpu.numa.and_then(|own| own.try_into().ok()) == numa;
    let mut sets = host.gpus.iter().filter(beside).map(|gpu| &gpu.nvlink[..]);
    let first = sets.next().unwrap_or_default();
    match sets.all(|other| other == first) {
        true => first,
        false => "",
    }
}

/// What gpuosd is told of such a host.
pub(super) fn report(event: &Event, host: &Host) -> MomReport {
    MomReport {
        gpus: host.gpus.iter().map(|gpu| gpu.uuid.clone()).collect(),
        jobs: jobs(event, host),
        all: true,
        asked: event.server.is_some(),
        vnodes: event.server.as_ref().and_then(|server| seen(event, server)),
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
        job.gpus = given(host, &held.visible);
        (!job.gpus.is_empty() || counts(event, held)).then_some(job)
    });
    all.collect()
}

/// Whether PBS counts GPUs of this host for a job.
fn counts(event: &Event, held: &HostJob) -> bool {
    let this = short(&event.host);
    let chunks = parse_exec_vnode(&held.exec_vnode).unwrap_or_default();
    let mut given = chunks.iter().flatten();
    given.any(|one| short(host_of(&one.vnode)) == this && one.count(NGPUS) > 0)
}

/// GPUs by their UUIDs in a list as CUDA reads it. What is in it besides, such as MIG instances, is none of them.
fn given(host: &Host, visible: &str) -> Vec<GresGpu> {
    let listed =
        |gpu: &Gpu| !gpu.uuid.is_empty() && visible.split(',').any(|one| one.trim() == gpu.uuid);
    let own = host.gpus.iter().enumerate().filter(|(_, gpu)| listed(gpu));
    own.filter_map(|(index, _)| GresGpu::new(index)).collect()
}

/// What gpuos says in the comment of the host's own vnode.
fn seen(event: &Event, server: &Server) -> Option<MomVnodes> {
    let told = server.vnodes.get(&natural(event))?;
    Some(MomVnodes {
        drained: told.comment.strip_prefix(MARK).map(str::to_owned),
        // Another's comment is in its place.
        whole: !is_own(&told.comment),
        ..MomVnodes::default()
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
