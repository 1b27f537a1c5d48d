//! A program that is about to be started: it is told which GPUs of this host are the job's, by what gpuosd has chosen.

use std::collections::BTreeMap;

use gpuos_core::wire::{MomChoice, Reply};

use super::allocation::Allocation;
use super::event::{Edit, Event, Gpu, Host, Verdict, env};
use super::resources::{NGPUS, SHARE_PARTS};
use super::talk::{Daemon, Said, Talk, replies};
use super::vnodes::short;
use super::{advise, confine, mom, prepare};

/// What a program is told that has no GPUs of its own because nobody chooses them.
const AS_ELSEWHERE: &str = "no GPUs are chosen for this job, and its programs find all of the host as in PBS without gpuos";

/// What becomes of a program, after what the daemons said, in the order of the talks; nothing: there is nobody to be asked.
pub(super) fn verdict(event: &Event, said: &[(&Talk, &Said)]) -> Verdict {
    let by = |daemon: Daemon| {
        let mut all = said.iter();
        all.find(|(talk, _)| talk.daemon == daemon).copied()
    };
    let gpuosd = by(Daemon::Gpuosd);
    let found = match launched(event, gpuosd.map(|(_, said)| said)) {
        Ok(found) => found,
        Err(refused) => return *refused,
    };
    let asked = [gpuosd, by(Daemon::Mover)].into_iter().flatten();
    let mut verdict = prepare::prepared(event, found.edits, asked);
    verdict.notes.extend(found.note);
    let verdict = advise::noted(event, verdict);
    confine::applied(event, by(Daemon::Groups).map(|(_, said)| said), verdict)
}

/// What a program finds of its GPUs.
#[derive(Default)]
struct Found {
    edits: Vec<Edit>,
    /// Why it finds none of its own.
    note: Option<String>,
}

/// `CUDA_VISIBLE_DEVICES` and `GPUOS_*`, where the job has GPUs of this host.
///
/// # Errors
/// The program is not started.
fn launched(event: &Event, gpuosd: Option<&Said>) -> Result<Found, Box<Verdict>> {
    if mom::own(event).is_none() {
        return Ok(Found::default());
    }
    let text = event.job.exec_vnode.as_str();
    let allocation = match Allocation::of(event, text) {
        Ok(allocation) => allocation,
        Err(why) if text.contains(NGPUS) || text.contains(SHARE_PARTS) => {
            return Err(Box::new(Verdict::reject(format!(
                "gpuos cannot read exec_vnode, and so cannot tell the job its GPUs: {why}; report it with the job's qstat -f"
            ))));
        }
        // No GPU is in it, whatever it says.
        Err(_) => return Ok(Found::default()),
    };
    let named = allocation.named.iter().chain(&allocation.named_shared);
    let mut gpus: Vec<usize> = named.map(|gpu| gpu.index()).collect();
    if allocation.is_chosen() {
        match choice(event, gpuosd) {
            Err(why) => {
                let note = format!("{AS_ELSEWHERE}: {why}");
                return Ok(Found {
                    edits: Vec::new(),
                    note: Some(note),
                });
            }
            Ok(chosen) if !chosen.refused.is_empty() => {
                return Err(Box::new(refused(event, &allocation, &chosen.refused)));
            }
            Ok(chosen) => gpus.extend(chosen.gpus.iter().map(|gpu| gpu.index())),
        }
    }
    gpus.sort_unstable();
    gpus.dedup();
    Ok(Found {
        edits: variables(event, &allocation, &gpus),
        note: None,
    })
}

/// What gpuosd has chosen, or that there is nothing to be chosen from.
///
/// # Errors
/// Why the job has all of the host, in a clause.
fn choice(event: &Event, gpuosd: Option<&Said>) -> Result<MomChoice, String> {
    let said = gpuosd.ok_or("gpuosd is not told of jobs on this host")?;
    let said = said.as_ref().map_err(|why| match why.is_empty() {
        true => "gpuosd does not run on this host; tell your administrator".to_owned(),
        false => format!("gpuosd on this host gave no answer: {why}"),
    })?;
    let mut replies = replies(said)?.into_iter();
    let chosen = replies.find_map(|reply| match reply {
        Reply::Mom { orders } => {
            let mut chosen = orders.chosen.into_iter();
            let own = |(job, _): &(_, _)| ToString::to_string(job) == event.job.id;
            Some(chosen.find(own).map(|(_, choice)| choice))
        }
        _ => None,
    });
    match chosen {
        Some(Some(chosen)) if chosen.as_stock => Err(chosen.refused),
        Some(Some(chosen)) => Ok(chosen),
        _ => Err("gpuosd on this host is of another release".into()),
    }
}

/// A program whose GPUs are not to be had: its job is queued again. PBS has counted what is not there, as of a GPU that has just gone out of service.
fn refused(event: &Event, allocation: &Allocation, why: &str) -> Verdict {
    let again = event.first && allocation.is_of_script(event);
    let then = match again {
        true => "it is queued again",
        false => "this program of it is not started",
    };
    Verdict {
        edits: again.then_some(Edit::Requeue).into_iter().collect(),
        must: true,
        ..Verdict::reject(format!(
            "the GPUs of this job are not there, and {then}: {why}"
        ))
    }
}

fn variables(event: &Event, allocation: &Allocation, gpus: &[usize]) -> Vec<Edit> {
    if gpus.is_empty() {
        return Vec::new();
    }
    let hosts = Hosts::of(event);
    let uuid = |index: &usize| {
        let gpu = hosts.gpu(&event.host, *index)?;
        is_word(&gpu.uuid).then(|| gpu.uuid.clone())
    };
    // A mixture of names and numbers is none that CUDA takes.
    let whole: Option<Vec<String>> = gpus.iter().map(uuid).collect();
    let numbers: Vec<String> = gpus.iter().map(usize::to_string).collect();
    let visible = whole.unwrap_or_else(|| numbers.clone());
    let mut edits = vec![
        env("CUDA_VISIBLE_DEVICES", &visible.join(",")),
        // Indices are NVIDIA's own, which count by the place on the PCI bus.
        env("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
        env("GPUOS_GPUS", &numbers.join(",")),
    ];
    if let Some(level) = level(event, &hosts, allocation, gpus) {
        edits.push(env("GPUOS_LEVEL", level));
    }
    edits
}

/// What the administrator says of hosts, by their short names.
struct Hosts<'a>(BTreeMap<String, &'a Host>);

impl<'a> Hosts<'a> {
    fn of(event: &'a Event) -> Hosts<'a> {
        // Of two with one short name the first in order counts.
        let hosts = event.hosts.iter().rev();
        Hosts(hosts.map(|(name, host)| (short(name), host)).collect())
    }

    fn host(&self, name: &str) -> Option<&'a Host> {
        self.0.get(&short(name)).copied()
    }

    fn gpu(&self, host: &str, index: usize) -> Option<&'a Gpu> {
        self.host(host)?.gpus.get(index)
    }
}

/// The closest level at which all GPUs of the job are in one domain, as far as it is known. Which GPUs it has of other hosts is not: there all of a host
/// have to be in the domain.
fn level(
    event: &Event,
    hosts: &Hosts,
    allocation: &Allocation,
    gpus: &[usize],
) -> Option<&'static str> {
    let this = short(&event.host);
    let others: Vec<&String> = allocation
        .hosts
        .iter()
        .filter(|host| **host != this)
        .collect();
    let own = hosts.host(&this)?;
    let of_own = gpus
        .iter()
        .map(|index| own.gpus.get(*index).map(|gpu| &gpu.nvlink[..]));
    let of_others = others.iter().flat_map(|name| match hosts.host(name) {
        Some(host) => host.gpus.iter().map(|gpu| Some(&gpu.nvlink[..])).collect(),
        None => vec![None],
    });
    let is_alone = others.is_empty() && gpus.len() == 1;
    if !is_alone && is_one(of_own.chain(of_others)) {
        return Some("nvlink");
    }
    if others.is_empty() {
        return Some("node");
    }
    let leaves = others
        .iter()
        .map(|name| hosts.host(name).map(|host| &host.leaf[..]));
    is_one(leaves.chain([Some(&own.leaf[..])])).then_some("leaf")
}

/// Whether all are in one domain that has a name.
fn is_one<'a>(mut domains: impl Iterator<Item = Option<&'a str>>) -> bool {
    match domains.next() {
        Some(Some(first)) => !first.is_empty() && domains.all(|other| other == Some(first)),
        _ => false,
    }
}

/// Whether a text can stand in a list of devices.
pub(super) fn is_word(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'/' | b':');
    !text.is_empty() && text.len() <= 128 && text.bytes().all(inner)
}
