//! What a mom's host has, for gpuosd there, and what mom does by its answer: vnodes offline and online, jobs that run again.
//!
//! pbs_server is the memory: which vnodes gpuos took offline, and for what, their comments say; which jobs have to run again, their
//! `Exit_status`. So hook and gpuosd may be gone at any moment.

use std::collections::{BTreeMap, BTreeSet};

use gpuos_core::job::JobId;
use gpuos_core::wire::{
    HostOrder, MomJob, MomOrders, MomReport, MomSlices, MomVnodes, Reply, Request,
};
use gpuos_model::gpu_index::{GresGpu, NvmlIndex};
use gpuos_model::hostlist::compress;
use gpuos_model::screen;

use super::advise;
use super::event::{
    Ask, Edit, Event, Held, Host, Job, Resources, Server, ServerJob, ServerVnode, accepted_json,
};
use super::memory;
use super::options::{said, wish};
use super::resources::{CHECKPOINT, HOSTS, MIG, MIG_COMPUTE, MIG_MEMORY};
use super::shares;
use super::talk::{Daemon, Said, Talk, replies};
use super::vnodes::{
    Given, divided, gpu, host_of, hosts, parse_exec_vnode, shared, short, vnode_name,
};

/// How reasons of gpuos begin, and its comments: of one GPU, and of a whole host.
const MARK: &str = "gpuos: ";
const OF_GPU: &str = "gpuos: GPU ";
const OF_HOST: &str = "gpuos: host: ";
/// The longest reason in a comment, in characters.
const MOST_REASON: usize = 200;
/// `Exit_status` of a job that has to run again, or to be deleted, when it has ended, because a hook said so.
const HOOK_RERUN: i64 = -18;
const HOOK_DELETE: i64 = -19;
/// A job that has to end is ended after so many answers, whether pbs_server says that it knows or not.
const PATIENT: u32 = 4;
/// Bytes of jobs in one line to a daemon, which reads twice as much.
const PART: usize = 8 << 10;
/// So often the hook asks pbs_server in one event.
const TURNS: u32 = 2;

/// What gpuosd and gpuos_mover are told of all that mom has.
pub(super) fn talks(event: &Event) -> Vec<Talk> {
    let talks = [to_gpuosd(event), to_mover(event)];
    talks.into_iter().flatten().collect()
}

fn to_gpuosd(event: &Event) -> Option<Talk> {
    if let Some(host) = advise::host(event).filter(|_| !event.gpuosd.is_empty()) {
        let report = advise::report(event, host);
        return Talk::new(Daemon::Gpuosd, &event.gpuosd, &lines(report));
    }
    let host = own(event)?;
    if event.gpuosd.is_empty() {
        return None;
    }
    let whole = host.gpus.iter().filter(|gpu| gpu.mig.is_none());
    let pool = host.gpus.iter().enumerate();
    let pool = pool.filter(|(_, gpu)| gpu.mig.is_some());
    let report = MomReport {
        gpus: whole.map(|gpu| gpu.uuid.clone()).collect(),
        pool: pool
            .filter_map(|(index, _)| NvmlIndex::new(index))
            .collect(),
        jobs: jobs(event).filter(has_gpus).collect(),
        all: true,
        asked: event.server.is_some(),
        vnodes: event
            .server
            .as_ref()
            .and_then(|server| seen(event, host, server)),
        ..MomReport::default()
    };
    Talk::new(Daemon::Gpuosd, &event.gpuosd, &lines(report))
}

/// gpuos_mover serves jobs with checkpoints, with GPUs or without.
fn to_mover(event: &Event) -> Option<Talk> {
    if event.mover.is_empty() {
        return None;
    }
    // Both are pbs_server's to know.
    let told = |job: MomJob| {
        let server = event.server.as_ref();
        let known = server.and_then(|server| server.jobs.get(&job.job.to_string()));
        MomJob {
            is_held: known.map(|known| known.held),
            may_rerun: known.map(|known| known.rerun),
            ..job
        }
    };
    let report = MomReport {
        jobs: jobs(event)
            .filter(|job| job.checkpoints)
            .map(told)
            .collect(),
        all: true,
        asked: event.server.is_some(),
        ..MomReport::default()
    };
    Talk::new(Daemon::Mover, &event.mover, &lines(report))
}

/// A report of all jobs in as many lines as it needs, of which the last has all else: daemons read no longer ones.
fn lines(mut report: MomReport) -> Vec<Request> {
    let (mut requests, mut part, mut length) = (Vec::new(), Vec::new(), 0);
    for job in std::mem::take(&mut report.jobs) {
        let size = serde_json::to_string(&job).map_or(0, |text| text.len());
        if length + size > PART && !part.is_empty() {
            report
                .also
                .extend(part.iter().map(|job: &MomJob| job.job.clone()));
            requests.push(request(MomReport {
                jobs: std::mem::take(&mut part),
                ..MomReport::default()
            }));
            length = 0;
        }
        length += size;
        part.push(job);
    }
    report.jobs = part;
    requests.push(request(report));
    requests
}

/// What daemons are told of a job of which a program is about to be started: that it has GPUs here, or wants `checkpoints`; `None`: it has not, or
/// there is nobody to tell.
pub(super) fn of_launch(event: &Event, checkpoints: bool) -> Option<Request> {
    let Job {
        id,
        resources,
        exec_vnode,
        held,
        ..
    } = &event.job;
    let job = job(event, id, (exec_vnode, held, resources))?;
    let told = match checkpoints {
        true => !event.mover.is_empty() && job.checkpoints,
        false => !event.gpuosd.is_empty() && own(event).is_some() && has_gpus(&job),
    };
    told.then(|| {
        request(MomReport {
            jobs: vec![job],
            ..MomReport::default()
        })
    })
}

/// Whether a job has GPUs here, or parts of some.
fn has_gpus(job: &MomJob) -> bool {
    !job.gpus.is_empty() || !job.shared.is_empty() || job.slices.is_some()
}

pub(super) fn request(report: MomReport) -> Request {
    Request::Mom {
        report: Box::new(report),
    }
}

/// What mom does by what gpuosd and gpuos_mover said; the latter may only have jobs run again.
pub(super) fn answer(event: &Event, gpuosd: Option<&Said>, mover: Option<&Said>) -> String {
    let (mut wanted, mut saved) = (MomOrders::default(), BTreeMap::new());
    let (mut silent, mut heard) = (Vec::new(), false);
    let has = [
        (
            "gpuosd",
            own(event).is_some() && !event.gpuosd.is_empty() && gpuosd.is_none(),
        ),
        ("gpuos_mover", !event.mover.is_empty() && mover.is_none()),
    ];
    for (name, _) in has.into_iter().filter(|(_, untold)| *untold) {
        silent.push(format!(
            "{name} on this host is not told what mom has: a job's line is too long"
        ));
    }
    for (name, said) in [("gpuosd", gpuosd), ("gpuos_mover", mover)] {
        let orders = match said {
            Some(Ok(lines)) => orders(lines),
            Some(Err(why)) if !why.is_empty() => Err(why.clone()),
            _ => continue,
        };
        match orders {
            Ok(orders) if name == "gpuosd" => wanted = orders,
            Ok(orders) => saved = orders.rerun,
            Err(why) => {
                silent.push(format!("{name} on this host gave no answer: {why}"));
                continue;
            }
        }
        heard = true;
    }
    let note = (!silent.is_empty()).then(|| silent.join("; "));
    if !heard {
        return accepted_json(Vec::new(), note.as_deref());
    }
    match obey(event, &wanted, &saved) {
        // The event comes again with what pbs_server says.
        Err(ask) => ask.json(),
        Ok(edits) => accepted_json(edits, note.as_deref()),
    }
}

fn orders(said: &[u8]) -> Result<MomOrders, String> {
    match replies(said)?.into_iter().next_back() {
        Some(Reply::Mom { orders }) => Ok(*orders),
        Some(Reply::Refused { message, .. }) => Err(message),
        _ => Err("it is of another release".into()),
    }
}

/// What the administrator says of this host, if it has GPUs which gpuos gives.
pub(super) fn own(event: &Event) -> Option<&Host> {
    let this = short(&event.host);
    let mut hosts = event.hosts.iter();
    let (_, host) =
        hosts.find(|(name, host)| short(name) == this && !host.gpus.is_empty() && !host.advise)?;
    Some(host)
}

/// The name that vnodes of this host begin with.
fn first(event: &Event) -> &str {
    event.host.split('.').next().unwrap_or_default()
}

/// A job with its GPUs of this host, and its hosts.
pub(super) fn job(
    event: &Event,
    id: &str,
    (exec_vnode, held, resources): (&str, &Held, &Resources),
) -> Option<MomJob> {
    let chunks = parse_exec_vnode(exec_vnode).ok()?;
    let this = short(&event.host);
    let given = || chunks.iter().flatten();
    let here = given().filter_map(gpu);
    let here = here.filter(|(host, _)| short(host) == this);
    let mut gpus: Vec<GresGpu> = here.filter_map(|(_, index)| GresGpu::new(index)).collect();
    gpus.sort_unstable();
    gpus.dedup();
    let is_here = |one: &&Given| divided(one).is_some_and(|(host, _)| short(host) == this);
    let parts = || given().filter(is_here);
    let of_pool = parts().filter_map(|one| NvmlIndex::new(divided(one)?.1));
    let of_pool: BTreeSet<NvmlIndex> = of_pool.collect();
    let counted = |name| parts().map(|one| one.count(name)).sum();
    let asked = wish(resources, MIG);
    let slices = asked
        .filter(|_| !of_pool.is_empty())
        .map(|asked| MomSlices {
            request: asked.to_owned(),
            compute: counted(MIG_COMPUTE),
            memory: counted(MIG_MEMORY),
            gpus: of_pool.into_iter().collect(),
        });
    // All hosts of a job have them in one order, that of its script first.
    let hosts = hosts(given());
    let shares = shares::here(event, &chunks, resources);
    let shared: BTreeSet<GresGpu> = shares
        .iter()
        .filter_map(|one| GresGpu::new(shared(one)?.1))
        .collect();
    let of_shares = || shares.iter().map(|one| one.memory_kib()).sum();
    let memory: u64 = memory::here_kib(event, &chunks, resources).unwrap_or_else(of_shares);
    Some(MomJob {
        job: id.parse().ok()?,
        user: held.user.clone(),
        // A user whom this host does not know has no say here.
        uid: held.uid.unwrap_or(u32::MAX),
        gpus,
        shared: shared.into_iter().collect(),
        memory_mib: memory >> 10,
        slices,
        run: held.run,
        script_on: hosts.first().cloned().unwrap_or_default(),
        hosts: compress(hosts.iter().map(String::as_str)),
        former: said(resources, HOSTS).unwrap_or_default().to_owned(),
        checkpoints: wish(resources, CHECKPOINT).is_some(),
        suspended: held.suspended,
        is_held: None,
        ends_in_s: held.ends_in,
        may_rerun: None,
    })
}

fn jobs(event: &Event) -> impl Iterator<Item = MomJob> {
    let jobs = event.jobs.iter();
    jobs.filter_map(|(id, one)| job(event, id, (&one.exec_vnode, &one.held, &one.resources)))
}

/// Jobs of several hosts whose script runs here: pbs_server knows whether another of the hosts wants them to run again.
fn spread(event: &Event) -> impl Iterator<Item = &String> {
    let this = short(&event.host);
    let jobs = event.jobs.iter().filter(move |(_, job)| {
        let chunks = parse_exec_vnode(&job.exec_vnode).unwrap_or_default();
        let mut given = chunks.iter().flatten();
        let elsewhere = given.clone().any(|one| short(host_of(&one.vnode)) != this);
        job.session > 1 && elsewhere && given.any(|one| gpu(one).is_some())
    });
    jobs.map(|(id, _)| id)
}

/// Jobs with checkpoints whose script runs here: `qhold` of one is known to pbs_server alone.
fn with_checkpoints(event: &Event) -> impl Iterator<Item = &String> {
    let jobs = event.jobs.iter().filter(|(_, job)| {
        let asks = wish(&job.resources, CHECKPOINT).is_some();
        !event.mover.is_empty() && job.session > 1 && asks
    });
    jobs.map(|(id, _)| id)
}

/// What took a vnode offline, by its comment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum By {
    Gpu,
    Host,
    Others,
}

fn by(vnode: &ServerVnode) -> Option<By> {
    vnode.offline.then(|| match &vnode.comment {
        comment if comment.starts_with(OF_GPU) => By::Gpu,
        comment if comment.starts_with(OF_HOST) => By::Host,
        _ => By::Others,
    })
}

/// The host's own vnode.
pub(super) fn natural(event: &Event) -> String {
    match event.vnodes.contains_key(&event.host) {
        true => event.host.clone(),
        false => first(event).to_owned(),
    }
}

/// All vnodes of the host, its own first; then those of its GPUs in order.
fn vnodes(event: &Event, host: &Host) -> Vec<String> {
    let name = first(event);
    let natural = natural(event);
    let gpus = (0..host.gpus.len()).map(|index| vnode_name(name, index));
    std::iter::once(natural).chain(gpus).collect()
}

/// How pbs_server has the vnodes; `None` where it did not say it of all.
fn seen(event: &Event, host: &Host, server: &Server) -> Option<MomVnodes> {
    let names = vnodes(event, host);
    let told: Option<Vec<&ServerVnode>> =
        names.iter().map(|name| server.vnodes.get(name)).collect();
    let told = told?;
    let of_gpus = |is: &dyn Fn(Option<By>) -> bool| {
        let all = told.iter().skip(1).enumerate();
        let all = all.filter(|(_, vnode)| is(by(vnode)));
        all.filter_map(|(index, _)| GresGpu::new(index)).collect()
    };
    let mut drained = told.iter().filter(|vnode| by(vnode) == Some(By::Host));
    let reason = drained.next().map(|vnode| {
        let rest = vnode.comment.strip_prefix(OF_HOST).unwrap_or_default();
        format!("{MARK}{rest}")
    });
    Some(MomVnodes {
        offline: of_gpus(&|by| by.is_some()),
        own: of_gpus(&|by| by == Some(By::Gpu)),
        drained: reason,
        whole: told.iter().all(|vnode| vnode.offline),
    })
}

/// What gpuosd says is done by these edits.
///
/// # Errors
/// What pbs_server has to be asked first.
fn obey(event: &Event, orders: &MomOrders, saved: &BTreeMap<JobId, u32>) -> Result<Vec<Edit>, Ask> {
    // Without GPUs there is no vnode to change.
    let none = Host::default();
    let host = own(event).unwrap_or(&none);
    let advice = advise::host(event).map(|_| orders);
    let (looks, only) = (orders.look, MomOrders::default());
    // Where gpuos only advises nothing else of it is done.
    let orders = if advice.is_some() { &only } else { orders };
    let here = |job: &&JobId| event.jobs.contains_key(&job.to_string());
    let told = orders.rerun.keys().chain(orders.end.keys());
    let told = told.chain(saved.keys());
    let told: Vec<String> = told.filter(here).map(JobId::to_string).collect();
    let Some(server) = &event.server else {
        let asked = spread(event).chain(with_checkpoints(event)).cloned();
        let mut jobs: Vec<String> = asked.chain(told.clone()).collect();
        jobs.sort_unstable();
        jobs.dedup();
        // With a job that has to end they say whether pbs_server answers at all.
        let vnodes = match looks || !told.is_empty() {
            true => vnodes(event, host),
            false => Vec::new(),
        };
        if vnodes.is_empty() && jobs.is_empty() {
            return Ok(Vec::new());
        }
        return Err(Ask { vnodes, jobs });
    };
    let new = told.iter().filter(|id| !server.jobs.contains_key(*id));
    let new: Vec<String> = new.cloned().collect();
    if !new.is_empty() && event.turn < TURNS {
        // gpuosd wants it by what it has just been told.
        let vnodes = match server.vnodes.is_empty() {
            true => vnodes(event, host),
            false => Vec::new(),
        };
        return Err(Ask { vnodes, jobs: new });
    }
    let mut edits = change(event, host, orders, server);
    edits.extend(advice.and_then(|orders| advise::comment(event, orders, server)));
    for (jobs, again) in [(&orders.rerun, true), (&orders.end, false)] {
        for (id, times) in jobs.iter().filter(|(id, _)| here(id)) {
            edits.extend(end(event, server, &id.to_string(), (*times, again)));
        }
    }
    // One that has saved runs again or goes on: its user may have said meanwhile that it must not run twice.
    let only = |id: &&JobId| !orders.rerun.contains_key(id) && !orders.end.contains_key(id);
    for (id, times) in saved.iter().filter(|(id, _)| here(id) && only(id)) {
        let id = id.to_string();
        if server.jobs.get(&id).is_none_or(|job| job.rerun) {
            edits.extend(end(event, server, &id, (*times, true)));
        }
    }
    // Those whose other hosts say so, or a daemon that was started anew since then.
    let known: BTreeSet<&String> = spread(event).chain(with_checkpoints(event)).collect();
    for id in known.into_iter().filter(|id| !told.contains(id)) {
        if server.jobs.get(id).is_some_and(ends) {
            edits.extend(kill(event, id));
        }
    }
    Ok(edits)
}

/// Whether pbs_server knows that the end of a job, when it comes, is a hook's.
fn ends(job: &ServerJob) -> bool {
    matches!(job.exit, Some(HOOK_RERUN | HOOK_DELETE))
}

/// A job that has to end, `again`: to run again, and of which mom was told so often before. pbs_server has to know first that this
/// end is none of its own.
fn end(event: &Event, server: &Server, id: &str, (times, again): (u32, bool)) -> Option<Edit> {
    let told = server.jobs.get(id);
    if server.jobs.is_empty() && server.vnodes.is_empty() {
        // It is away. An end now would be the job's own for it, and the job lost.
        return None;
    }
    if told.is_some_and(ends) || times >= PATIENT {
        return kill(event, id);
    }
    // It does not say yet; another event comes soon.
    if told.is_none() && times + 1 < PATIENT {
        return None;
    }
    // It would have one run again whose user has said that it must not.
    let again = again && told.is_none_or(|job| job.rerun);
    let value = id.to_owned();
    Some(match again {
        true => Edit::Rerun { value },
        false => Edit::Delete { value },
    })
}

/// Ends the script of a job where it runs here; mom then ends the rest. A mom can have the number of a session that is over, or of
/// before the host was started anew, so it is ended as its user's alone.
fn kill(event: &Event, id: &str) -> Option<Edit> {
    let job = event.jobs.get(id)?;
    let (value, uid) = (job.session, job.held.uid?);
    (value > 1).then_some(Edit::Kill { value, uid })
}

/// Vnodes that are not as they have to be. What others took offline stays offline, with their comment.
fn change(event: &Event, host: &Host, orders: &MomOrders, server: &Server) -> Vec<Edit> {
    let whole = match &orders.host {
        HostOrder::Offline(reason) => Some(of_host(reason)),
        HostOrder::Leave | HostOrder::Online => None,
    };
    let leaves = orders.host == HostOrder::Leave;
    let mut edits = Vec::new();
    for (place, vnode) in vnodes(event, host).into_iter().enumerate() {
        let Some(told) = server.vnodes.get(&vnode) else {
            continue;
        };
        let gpu = place.checked_sub(1).and_then(GresGpu::new);
        let out = gpu
            .zip(orders.out.as_ref())
            .is_some_and(|(gpu, out)| out.contains(&gpu));
        let comment = match (gpu, &whole) {
            (Some(gpu), _) if out => Some(of_gpu(gpu, first(event))),
            (_, whole) => whole.clone(),
        };
        match (comment, by(told)) {
            (Some(_), Some(By::Others)) | (None, None | Some(By::Others)) => {}
            (Some(comment), Some(_)) if comment == told.comment => {}
            // Until gpuosd knows what is out, this comment alone does.
            (Some(_), Some(By::Gpu)) if orders.out.is_none() => {}
            (Some(value), _) => edits.push(Edit::Offline { vnode, value }),
            (None, Some(By::Gpu)) if orders.out.is_none() => {}
            (None, Some(By::Host)) if leaves => {}
            (None, Some(By::Gpu | By::Host)) => edits.push(Edit::Online { vnode }),
        }
    }
    edits
}

fn of_gpu(gpu: GresGpu, host: &str) -> String {
    format!("{OF_GPU}{gpu} is out of service; gpuos health on {host} says why")
}

/// The comment of a host that is offline as a whole: one line of print.
fn of_host(reason: &str) -> String {
    let line = screen::line(reason.strip_prefix(MARK).unwrap_or(reason));
    let short: String = line.chars().take(MOST_REASON).collect();
    format!("{OF_HOST}{}", short.trim())
}
