//! What becomes of the vnodes of a mom's host by what gpuosd there says: how many GPUs PBS counts, what the host shows of them, and whether it gets jobs.
//!
//! PBS's own number of GPUs is the site's. Where fewer are to be had it is counted down, the site's number is noted beside it, and it comes back; a number
//! that somebody writes meanwhile is the site's from then on.

use gpuos_core::wire::{HostOrder, MomHost, MomOrders, MomRoom};
use gpuos_model::gpuset::GpuSet;
use gpuos_model::screen;

use crate::published::Published;

use super::event::{Edit, Event, Gpu, Host, Resources, Server, ServerVnode, Value};
use super::mom::natural;
use super::options::said;
use super::resources::{
    LINKED, MIG_COMPUTE, MIG_FITS, MIG_MEMORY, NGPUS, SHARE_FITS, SHARE_PARTS, SHOWN, SITE_NGPUS,
};
use super::vnodes::short;

/// How comments of gpuos begin: those of a host that is offline, and those of one that goes on.
const MARK: &str = "gpuos: ";
pub(super) const OF_HOST: &str = "gpuos: host: ";
/// The longest reason in a comment, in characters.
const MOST_REASON: usize = 200;

/// How pbs_server has the host; `None` where it did not say.
pub(super) fn seen(event: &Event, server: &Server) -> Option<MomHost> {
    let own = server.vnodes.get(&natural(event))?;
    let counted = own_vnodes(event, server).filter_map(|(name, told)| counted(name, told));
    let reason = own.comment.strip_prefix(OF_HOST).filter(|_| own.offline);
    Some(MomHost {
        offline: own.offline,
        reason: reason.map(|rest| format!("{MARK}{rest}")),
        shown: said(&own.resources, SHOWN).unwrap_or_default().to_owned(),
        counted: counted.map(|one| one.site).sum(),
        ..MomHost::default()
    })
}

/// The host's vnodes as pbs_server has them.
fn own_vnodes<'a>(
    event: &'a Event,
    server: &'a Server,
) -> impl Iterator<Item = (&'a String, &'a ServerVnode)> {
    let all = server.vnodes.iter();
    all.filter(|(name, _)| event.vnodes.contains_key(*name))
}

/// What has to change of the host's vnodes.
pub(super) fn edits(event: &Event, host: &Host, orders: &MomOrders, server: &Server) -> Vec<Edit> {
    let mut edits = Vec::new();
    let own = natural(event);
    for (name, told) in own_vnodes(event, server) {
        edits.extend(state(name, told, &orders.host));
    }
    let Some(room) = &orders.room else {
        return edits;
    };
    let Some(told) = server.vnodes.get(&own) else {
        return edits;
    };
    shown(&mut edits, &own, told, host, room);
    let out = Published::parse(&room.shown).unwrap_or_default().out;
    let vnodes: Vec<_> = own_vnodes(event, server).collect();
    let note = match count(&mut edits, &vnodes, host, (room.whole, out)) {
        Ok(()) => of_gpus(out, event),
        Err(misfit) => misfit,
    };
    let is_own = told.comment.is_empty() || told.comment.starts_with(MARK);
    let goes_on = !told.offline && !matches!(orders.host, HostOrder::Offline(_));
    if goes_on && is_own && told.comment != note {
        edits.push(Edit::Comment {
            vnode: own,
            value: note,
        });
    }
    edits
}

/// What changes when a run of a job has left the host, of which mom names the vnodes that it had. What is gpuos's own there is written as it is; for how
/// many GPUs PBS counts, which changes with one that is out of service, pbs_server has to be asked (`None`), and where the job had no part of some vnode
/// with GPUs that is left to mom's next list.
pub(super) fn edits_at_end(event: &Event, host: &Host, orders: &MomOrders) -> Option<Vec<Edit>> {
    let mut edits = Vec::new();
    let (Some(room), false) = (&orders.room, event.vnodes.is_empty()) else {
        return Some(edits);
    };
    let own = natural(event);
    let Some(server) = &event.server else {
        if orders.look {
            return None;
        }
        shown(&mut edits, &own, &ServerVnode::default(), host, room);
        return Some(edits);
    };
    let Some(told) = server.vnodes.get(&own) else {
        return Some(edits);
    };
    shown(&mut edits, &own, told, host, room);
    if seen(event, server).is_some_and(|seen| seen.counted == host.whole()) {
        let vnodes: Vec<_> = own_vnodes(event, server).collect();
        let out = Published::parse(&room.shown).unwrap_or_default().out;
        // More than is described is said in mom's next list.
        let _ = count(&mut edits, &vnodes, host, (room.whole, out));
    }
    Some(edits)
}

/// Whether a vnode gets jobs. What others took offline stays so, with their comment.
fn state(name: &str, told: &ServerVnode, order: &HostOrder) -> Option<Edit> {
    let by_gpuos = told.offline && told.comment.starts_with(OF_HOST);
    let vnode = name.to_owned();
    match order {
        HostOrder::Offline(reason) => {
            let value = of_host(reason);
            let changes = !told.offline || by_gpuos && told.comment != value;
            changes.then_some(Edit::Offline { vnode, value })
        }
        HostOrder::Online if by_gpuos => Some(Edit::Online { vnode }),
        HostOrder::Online | HostOrder::Leave => None,
    }
}

/// What the host shows of its GPUs, and what PBS counts of those that are shared or divided.
fn shown(edits: &mut Vec<Edit>, own: &str, told: &ServerVnode, host: &Host, room: &MomRoom) {
    let has = |is: fn(&Gpu) -> bool| host.gpus.iter().any(is);
    let (divided, shared) = (has(|gpu| gpu.mig.is_some()), has(|gpu| gpu.shares > 0));
    let linked = has(|gpu| gpu.is_whole() && !gpu.nvlink.is_empty());
    let text = Value::Text(room.shown.clone());
    let wanted = [
        (SHOWN, Some(text)),
        (LINKED, linked.then_some(Value::Number(room.linked))),
        (
            MIG_COMPUTE,
            divided.then_some(Value::Number(room.mig_compute)),
        ),
        (
            MIG_MEMORY,
            divided.then_some(Value::Number(room.mig_memory)),
        ),
        (MIG_FITS, divided.then_some(Value::Number(room.mig_fits))),
        (
            SHARE_PARTS,
            shared.then_some(Value::Number(room.share_parts)),
        ),
        (SHARE_FITS, shared.then_some(Value::Number(room.share_fits))),
    ];
    for (name, value) in wanted {
        set(edits, own, &told.resources, name, value);
    }
}

/// A resource of a vnode as it is to be; `None`: it has none.
fn set(
    edits: &mut Vec<Edit>,
    vnode: &str,
    has: &Resources,
    name: &'static str,
    value: Option<Value>,
) {
    let value = value.unwrap_or_else(|| Value::Text(String::new()));
    let text = match &value {
        Value::Number(number) => number.to_string(),
        Value::Text(text) => text.clone(),
    };
    if said(has, name).unwrap_or_default() != text {
        edits.push(Edit::Vnode {
            vnode: vnode.to_owned(),
            name,
            value,
        });
    }
}

/// A vnode on which PBS counts GPUs.
struct Counted<'a> {
    name: &'a String,
    has: &'a Resources,
    /// The site's own number.
    site: u64,
    /// What is to stand there.
    wanted: u64,
}

/// Has PBS count as many GPUs as there are to be had: so many `whole` ones, without those that are `out` of service.
///
/// # Errors
/// PBS counts more than the administrator describes: what stays as it is, in a sentence for the comment.
fn count(
    edits: &mut Vec<Edit>,
    vnodes: &[(&String, &ServerVnode)],
    host: &Host,
    (whole, out): (u64, GpuSet),
) -> Result<(), String> {
    let of_gpus = vnodes.iter().filter_map(|(name, told)| counted(name, told));
    let mut counted: Vec<Counted> = of_gpus.collect();
    let all: u64 = counted.iter().map(|one| one.site).sum();
    let described = host.gpus.len() as u64;
    if all > described {
        return Err(format!(
            "{MARK}PBS counts {all} GPUs here, and {described} are described: gpuos pbs install --hosts with all of them; until then jobs may find none of their own"
        ));
    }
    // GPUs of vnodes of a release before this one are these vnodes' still.
    let former = host.former.iter().filter_map(|index| host.gpus.get(*index));
    let former = former.filter(|gpu| gpu.is_whole()).count() as u64;
    let mut missing = all.saturating_sub(whole.saturating_sub(former));
    // Where the site has several vnodes it is the NUMA node of a GPU that is out, as far as that is known, and then the one with most.
    for index in out.iter() {
        let numa = host
            .gpus
            .get(index)
            .filter(|gpu| gpu.is_whole())
            .and_then(|gpu| gpu.numa);
        let is_its = |one: &&mut Counted| {
            numa.is_some_and(|numa| one.name.ends_with(&format!("[{numa}]"))) && one.wanted > 0
        };
        if missing > 0
            && let Some(one) = counted.iter_mut().find(is_its)
        {
            one.wanted -= 1;
            missing -= 1;
        }
    }
    while missing > 0 {
        let Some(most) = counted.iter_mut().max_by_key(|one| one.wanted) else {
            break;
        };
        most.wanted = most.wanted.saturating_sub(1);
        missing -= 1;
    }
    // Where PBS counts none any more there is nothing to be brought back.
    let has_none = |told: &ServerVnode| said(&told.resources, NGPUS).is_none();
    let others = vnodes.iter().filter(|(_, told)| has_none(told));
    for (name, told) in others {
        set(edits, name, &told.resources, SITE_NGPUS, None);
    }
    for one in &counted {
        set(
            edits,
            one.name,
            one.has,
            NGPUS,
            Some(Value::Number(one.wanted)),
        );
        let differs = one.wanted != one.site;
        let note = differs.then(|| Value::Text(format!("{}>{}", one.site, one.wanted)));
        set(edits, one.name, one.has, SITE_NGPUS, note);
    }
    Ok(())
}

fn counted<'a>(name: &'a String, told: &'a ServerVnode) -> Option<Counted<'a>> {
    let now: u64 = said(&told.resources, NGPUS)?.parse().ok()?;
    let site = site_number(now, said(&told.resources, SITE_NGPUS));
    Some(Counted {
        name,
        has: &told.resources,
        site,
        wanted: site,
    })
}

/// The site's own number of GPUs, by what stands there now and by what was noted when it was counted down.
pub fn site_number(now: u64, noted: Option<&str>) -> u64 {
    let noted = noted.and_then(|text| text.split_once('>'));
    let site = noted.filter(|(_, made)| made.parse() == Ok(now));
    site.and_then(|(site, _)| site.parse().ok()).unwrap_or(now)
}

/// The comment of a host of which GPUs are out of service; empty: none is.
fn of_gpus(out: GpuSet, event: &Event) -> String {
    let host = short(&event.host);
    match out.len() {
        0 => String::new(),
        1 => format!("{MARK}GPU {out} is out of service; gpuos health on {host} says why"),
        _ => format!("{MARK}GPUs {out} are out of service; gpuos health on {host} says why"),
    }
}

/// The comment of a host that is offline: one line of print.
fn of_host(reason: &str) -> String {
    let line = screen::line(reason.strip_prefix(MARK).unwrap_or(reason));
    let short: String = line.chars().take(MOST_REASON).collect();
    format!("{OF_HOST}{}", short.trim())
}
