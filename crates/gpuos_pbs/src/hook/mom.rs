//! What a mom's host has, for gpuosd there, and what mom does by its answer: vnodes offline and online, jobs that run again.
//!
//! pbs_server is the memory: which vnodes gpuos took offline, and for what, their comments say; which jobs have to run again, their
//! `Exit_status`. So hook and gpuosd may be gone at any moment.

use gpuos_core::job::JobId;
use gpuos_core::wire::{
    HostOrder, Lines, MAX_REPLY, MAX_REQUEST, MomJob, MomOrders, MomReport, MomVnodes, PROTOCOL,
    Reply, Request, decode, encode,
};
use gpuos_model::gpu_index::GresGpu;
use gpuos_model::screen;

use super::event::{
    Ask, Edit, Event, Held, Host, Kind, Server, ServerJob, ServerVnode, Verdict, noted_json,
};
use super::launch::{gpu, short};
use super::vnodes::{parse_exec_vnode, vnode_name};

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
/// So often the hook asks pbs_server in one event.
const TURNS: u32 = 2;

/// A question to gpuosd.
#[derive(Debug)]
pub struct Question {
    event: Event,
    /// Its socket.
    pub socket: String,
    /// The lines that it is told.
    pub lines: Vec<u8>,
    /// Whether it is waited for: else nothing depends on what it says.
    pub waits: bool,
}

/// What gpuosd is to be told of an event; `None`: it is none of its business.
pub(super) fn question(event: &Event) -> Option<Question> {
    let host = own(event)?;
    if event.gpuosd.is_empty() {
        return None;
    }
    let report = match event.kind {
        Kind::ExecjobLaunch => {
            let job = &event.job;
            let job = held(event, &job.id, &job.exec_vnode, &job.held)?;
            MomReport {
                jobs: vec![job],
                ..MomReport::default()
            }
        }
        Kind::ExechostPeriodic => MomReport {
            gpus: host.gpus.iter().map(|gpu| gpu.uuid.clone()).collect(),
            jobs: jobs(event),
            all: true,
            asked: event.server.is_some(),
            vnodes: event
                .server
                .as_ref()
                .and_then(|server| seen(event, host, server)),
        },
        _ => return None,
    };
    let hello = Request::Hello {
        protocol: PROTOCOL,
        client: concat!("gpuos_pbs_hook ", env!("CARGO_PKG_VERSION")).into(),
    };
    let report = Request::Mom {
        report: Box::new(report),
    };
    let mut lines = encode(&hello, MAX_REQUEST).ok()?;
    lines.extend(encode(&report, MAX_REQUEST).ok()?);
    Some(Question {
        socket: event.gpuosd.clone(),
        lines,
        waits: event.kind == Kind::ExechostPeriodic,
        event: event.clone(),
    })
}

impl Question {
    /// What is to be done, as JSON, after what gpuosd said: its lines, or why there are none; an empty text: there is no gpuosd here.
    pub fn answer(&self, said: &Result<Vec<u8>, String>) -> String {
        if !self.waits {
            return super::decide(&self.event).json();
        }
        let orders = match said {
            Ok(lines) => orders(lines),
            Err(none) if none.is_empty() => return Verdict::accept(Vec::new()).json(),
            Err(why) => Err(why.clone()),
        };
        match orders {
            Ok(orders) => obey(&self.event, &orders),
            Err(why) => noted_json(&format!("gpuosd on this host gave no answer: {why}")),
        }
    }
}

/// Reads what gpuosd said: an answer to the greeting, and one to the report.
fn orders(said: &[u8]) -> Result<MomOrders, String> {
    let mut lines = Lines::new(MAX_REPLY);
    lines.push(said);
    loop {
        let line = lines.next_line().map_err(|why| why.to_string())?;
        let line = line.ok_or("it ended before it had answered")?;
        match decode(&line, MAX_REPLY).map_err(|why| why.to_string())? {
            Reply::Hello { .. } => {}
            Reply::Mom { orders } => return Ok(*orders),
            Reply::Refused { message, .. } => return Err(message),
            _ => return Err("it is of another release".into()),
        }
    }
}

/// What the administrator says of this host, if it has GPUs.
fn own(event: &Event) -> Option<&Host> {
    let this = short(&event.host);
    let mut hosts = event.hosts.iter();
    let (_, host) = hosts.find(|(name, host)| short(name) == this && !host.gpus.is_empty())?;
    Some(host)
}

/// The name that vnodes of this host begin with.
fn first(event: &Event) -> &str {
    event.host.split('.').next().unwrap_or_default()
}

/// A job with its GPUs of this host, if it has any.
fn held(event: &Event, id: &str, exec_vnode: &str, held: &Held) -> Option<MomJob> {
    let chunks = parse_exec_vnode(exec_vnode).ok()?;
    let this = short(&event.host);
    let here = chunks.iter().flatten().filter_map(gpu);
    let here = here.filter(|(host, _)| short(host) == this);
    let mut gpus: Vec<GresGpu> = here.filter_map(|(_, index)| GresGpu::new(index)).collect();
    gpus.sort_unstable();
    gpus.dedup();
    let job: JobId = id.parse().ok()?;
    (!gpus.is_empty()).then(|| MomJob {
        job,
        user: held.user.clone(),
        // A user whom this host does not know has no say here.
        uid: held.uid.unwrap_or(u32::MAX),
        gpus,
        run: held.run,
    })
}

fn jobs(event: &Event) -> Vec<MomJob> {
    let jobs = event.jobs.iter();
    let job = jobs.filter_map(|(id, job)| held(event, id, &job.exec_vnode, &job.held));
    job.collect()
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

fn host_of(vnode: &str) -> &str {
    vnode.split('[').next().unwrap_or_default()
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

/// All vnodes of the host, its own first; then those of its GPUs in order.
fn vnodes(event: &Event, host: &Host) -> Vec<String> {
    let name = first(event);
    let natural = match event.vnodes.contains_key(&event.host) {
        true => event.host.clone(),
        false => name.to_owned(),
    };
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

/// Does what gpuosd says, or asks pbs_server first for what that needs.
fn obey(event: &Event, orders: &MomOrders) -> String {
    let Some(host) = own(event) else {
        return Verdict::accept(Vec::new()).json();
    };
    let here = |job: &&JobId| event.jobs.contains_key(&job.to_string());
    let told = orders.rerun.keys().chain(orders.end.keys());
    let told: Vec<String> = told.filter(here).map(JobId::to_string).collect();
    let Some(server) = &event.server else {
        let mut jobs: Vec<String> = spread(event).cloned().chain(told.clone()).collect();
        jobs.sort_unstable();
        jobs.dedup();
        // With a job that has to end they say whether pbs_server answers at all.
        let vnodes = match orders.look || !told.is_empty() {
            true => vnodes(event, host),
            false => Vec::new(),
        };
        if vnodes.is_empty() && jobs.is_empty() {
            return Verdict::accept(Vec::new()).json();
        }
        return Ask { vnodes, jobs }.json();
    };
    let new = told.iter().filter(|id| !server.jobs.contains_key(*id));
    let new: Vec<String> = new.cloned().collect();
    if !new.is_empty() && event.turn < TURNS {
        // gpuosd wants it by what it has just been told.
        let vnodes = match server.vnodes.is_empty() {
            true => vnodes(event, host),
            false => Vec::new(),
        };
        return Ask { vnodes, jobs: new }.json();
    }
    let mut edits = change(event, host, orders, server);
    for (jobs, again) in [(&orders.rerun, true), (&orders.end, false)] {
        for (id, times) in jobs.iter().filter(|(id, _)| here(id)) {
            edits.extend(end(event, server, &id.to_string(), (*times, again)));
        }
    }
    // Those whose other hosts say so.
    for id in spread(event).filter(|id| !told.contains(id)) {
        if server.jobs.get(id).is_some_and(ends) {
            edits.extend(kill(event, id));
        }
    }
    Verdict::accept(edits).json()
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
