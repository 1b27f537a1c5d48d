//! What a mom's host has, for gpuosd there, and what mom does by its answer: GPUs counted and shown, hosts offline and online, jobs that run again.
//!
//! pbs_server is the memory: what gpuos took offline or counted down its vnodes say; which jobs have to run again, their
//! `Exit_status`. So hook and gpuosd may be gone at any moment.

use std::collections::{BTreeMap, BTreeSet};

use gpuos_config::options::parse_topology;
use gpuos_core::job::JobId;
use gpuos_core::wire::{MomGpu, MomJob, MomOrders, MomReport, MomSlices, Reply, Request};
use gpuos_model::hostlist::compress;

use super::advise;
use super::allocation::Allocation;
use super::event::{
    Ask, Edit, Event, Held, Host, Job, Resources, Server, ServerJob, accepted_json,
};
use super::options::{said, wish};
use super::resources::{CHECKPOINT, HOSTS, MEM, MIG, SHARE, TOPOLOGY};
use super::room;
use super::talk::{Daemon, Said, Talk, replies};
use super::vnodes::short;

/// `Exit_status` of a job that has to run again, or to be deleted, when it has ended, because a hook said so.
pub(super) const HOOK_RERUN: i64 = -18;
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
    let report = MomReport {
        described: described(host),
        jobs: jobs(event).filter(has_gpus).collect(),
        all: true,
        asked: event.server.is_some(),
        host: event
            .server
            .as_ref()
            .and_then(|server| room::seen(event, server)),
        ..MomReport::default()
    };
    Talk::new(Daemon::Gpuosd, &event.gpuosd, &lines(report))
}

/// All GPUs of a host, in the administrator's order.
pub(super) fn described(host: &Host) -> Vec<MomGpu> {
    let gpus = host.gpus.iter().map(|gpu| MomGpu {
        uuid: gpu.uuid.clone(),
        nvlink: gpu.nvlink.clone(),
        numa: gpu.numa,
        shares: gpu.shares,
        divided: gpu.mig.is_some(),
    });
    gpus.collect()
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
    let named = !job.gpus.is_empty() || !job.shared.is_empty();
    named || job.count > 0 || job.parts > 0 || job.slices.is_some()
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

pub(super) fn orders(said: &[u8]) -> Result<MomOrders, String> {
    match replies(said)?.into_iter().next_back() {
        Some(Reply::Mom { orders }) => Ok(*orders),
        Some(Reply::Refused { message, .. }) => Err(message),
        _ => Err("it is of another release".into()),
    }
}

/// What the administrator says of this host, if it has GPUs which gpuos gives.
pub(super) fn own(event: &Event) -> Option<&Host> {
    let mut described = event.described();
    described.find(|host| !host.gpus.is_empty() && !host.advise)
}

/// A job with its GPUs of this host, and its hosts.
pub(super) fn job(
    event: &Event,
    id: &str,
    (exec_vnode, held, resources): (&str, &Held, &Resources),
) -> Option<MomJob> {
    let has = Allocation::of(event, exec_vnode).ok()?;
    let asked = wish(resources, MIG).filter(|_| has.has_slices());
    let slices = asked.map(|asked| MomSlices {
        request: asked.to_owned(),
        compute: has.compute,
        memory: has.memory,
        gpus: has.named_divided.iter().copied().collect(),
        chunks: has.chunks,
    });
    // What was given of shared GPUs is nothing for a job that asks for no share.
    let shares = wish(resources, SHARE).is_some();
    let needs_memory =
        shares && has.has_parts() || wish(resources, MEM).is_some() && has.has_whole();
    let topology = wish(resources, TOPOLOGY).and_then(|text| parse_topology(text).ok());
    Some(MomJob {
        job: id.parse().ok()?,
        user: held.user.clone(),
        // A user whom this host does not know has no say here.
        uid: held.uid.unwrap_or(u32::MAX),
        count: has.count,
        topology: topology.map(|wish| wish.to_string()).unwrap_or_default(),
        parts: if shares { has.parts } else { 0 },
        gpus: has.named.iter().copied().collect(),
        shared: has
            .named_shared
            .iter()
            .copied()
            .filter(|_| shares)
            .collect(),
        memory_mib: if needs_memory {
            has.memory_kib >> 10
        } else {
            0
        },
        slices,
        run: held.run,
        script_on: has.hosts.first().cloned().unwrap_or_default(),
        hosts: compress(has.hosts.iter().map(String::as_str)),
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
        let has = Allocation::of(event, &job.exec_vnode).unwrap_or_default();
        let elsewhere = has.hosts.iter().any(|host| *host != this);
        job.session > 1 && elsewhere && has.has_any()
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

/// The host's own vnode.
pub(super) fn natural(event: &Event) -> String {
    let first = event.host.split('.').next().unwrap_or_default();
    match event.vnodes.contains_key(&event.host) {
        true => event.host.clone(),
        false => first.to_owned(),
    }
}

/// All vnodes that mom has.
fn vnodes(event: &Event) -> Vec<String> {
    let own = std::iter::once(natural(event)).chain(event.vnodes.keys().cloned());
    own.collect::<BTreeSet<_>>().into_iter().collect()
}

/// pbs_server is to be asked how it has the host's vnodes.
pub(super) fn asked_vnodes(event: &Event) -> Ask {
    Ask {
        vnodes: vnodes(event),
        jobs: Vec::new(),
    }
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
            true => vnodes(event),
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
            true => vnodes(event),
            false => Vec::new(),
        };
        return Err(Ask { vnodes, jobs: new });
    }
    let mut edits = room::edits(event, host, orders, server);
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
