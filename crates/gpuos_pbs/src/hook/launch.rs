//! A program that is about to be started: it is told which GPUs of this host are the job's.

use std::collections::{BTreeMap, BTreeSet};

use super::advise;
use super::event::{Edit, Event, Gpu, Host, env};
use super::options::said;
use super::resources::{NGPUS, NVLINK, SHARE_PARTS, UUID};
use super::shares;
use super::vnodes::{gpu, parse_exec_vnode, shared, short, vnode_name};

/// `CUDA_VISIBLE_DEVICES` and `GPUOS_*`, where the job was given vnodes of GPUs of this host.
pub(super) fn launched(event: &Event) -> Result<Vec<Edit>, String> {
    if advise::host(event).is_some() {
        return Ok(Vec::new());
    }
    let text = event.job.exec_vnode.as_str();
    let chunks = match parse_exec_vnode(text) {
        Ok(chunks) => chunks,
        Err(why) if text.contains(NGPUS) || text.contains(SHARE_PARTS) => {
            return Err(format!(
                "gpuos cannot read exec_vnode, and so cannot tell the job its GPUs: {why}; report it with the job's qstat -f"
            ));
        }
        // No GPU is in it, whatever it says.
        Err(_) => return Ok(Vec::new()),
    };
    let whole = chunks.iter().flatten().filter_map(gpu);
    let parts = shares::here(event, &chunks, &event.job.resources).into_iter();
    let gpus: BTreeSet<(&str, usize)> = whole.chain(parts.filter_map(shared)).collect();
    let this = short(&event.host);
    let here: Vec<usize> = gpus
        .iter()
        .filter(|(host, _)| short(host) == this)
        .map(|(_, index)| *index)
        .collect();
    if here.is_empty() {
        return Ok(Vec::new());
    }
    let hosts = Hosts::of(event);
    let uuids: Vec<Option<String>> = here
        .iter()
        .map(|index| uuid(event, &hosts, *index))
        .collect();
    // A mixture of names and numbers is none that CUDA takes.
    let whole: Option<Vec<String>> = uuids.into_iter().collect();
    let numbers: Vec<String> = here.iter().map(usize::to_string).collect();
    let visible = whole.unwrap_or_else(|| numbers.clone());
    let mut edits = vec![
        env("CUDA_VISIBLE_DEVICES", &visible.join(",")),
        // Indices are NVIDIA's own, which count by the place on the PCI bus.
        env("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
        env("GPUOS_GPUS", &numbers.join(",")),
    ];
    if let Some(level) = level(event, &hosts, &gpus) {
        edits.push(env("GPUOS_LEVEL", level));
    }
    Ok(edits)
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

/// The UUID of a GPU of this host, by the administrator or by its vnode.
fn uuid(event: &Event, hosts: &Hosts, index: usize) -> Option<String> {
    let described = hosts.gpu(&event.host, index).map(|gpu| gpu.uuid.as_str());
    let name = event.host.split('.').next().unwrap_or_default();
    let vnode = event.vnodes.get(&vnode_name(name, index));
    let known = described.or_else(|| vnode.and_then(|vnode| said(vnode, UUID)));
    known.filter(|uuid| is_word(uuid)).map(String::from)
}

/// The closest level at which all GPUs of the job are in one domain, as far as it is known.
fn level(event: &Event, hosts: &Hosts, gpus: &BTreeSet<(&str, usize)>) -> Option<&'static str> {
    let one = |domain: &dyn Fn(&str, usize) -> Option<String>| {
        let mut domains = gpus.iter().map(|(host, index)| domain(host, *index));
        let first = domains.next().flatten().filter(|domain| !domain.is_empty());
        first.is_some() && domains.all(|other| other == first)
    };
    let nvlink = |host: &str, index: usize| {
        let said_here = event
            .vnodes
            .get(&vnode_name(host, index))
            .and_then(|vnode| said(vnode, NVLINK));
        let described = hosts.gpu(host, index).map(|gpu| gpu.nvlink.as_str());
        described.or(said_here).map(String::from)
    };
    let leaf = |host: &str, _: usize| Some(hosts.host(host)?.leaf.clone());
    if gpus.len() > 1 && one(&nvlink) {
        return Some("nvlink");
    }
    if one(&|host: &str, _| Some(host.to_ascii_lowercase())) {
        return Some("node");
    }
    one(&leaf).then_some("leaf")
}

/// Whether a text can stand in a list of devices.
pub(super) fn is_word(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'/' | b':');
    !text.is_empty() && text.len() <= 128 && text.bytes().all(inner)
}
