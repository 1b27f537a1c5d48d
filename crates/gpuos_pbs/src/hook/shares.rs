//! Parts of a GPU, of which several jobs have one each: what a job asks for becomes a count in its chunk, which pbs_sched gives of one vnode. A job
//! that has the GPU in turns with its memory gets a place for what is parked, too, in the memory of its chunk; its programs find in variables
//! what they may use.

use gpuos_config::options::{MemoryPolicy, parse_share};
use gpuos_core::limits::Share;
use gpuos_core::wire::memory_socket;

use super::event::{Edit, Event, Resources, Shares, env};
use super::options::{named, said, wish};
use super::place::{Place, Sharing};
use super::refused;
use super::resources::{SHARE, SHARE_GPU, SHARE_PARTS};
use super::select::{Chunk, Select};
use super::vnodes::{Given, parse_exec_vnode, shared, short};
use crate::units;

/// What programs load that have memory of a GPU in turns, and what they find: as with Slurm.
const LD_PRELOAD: &str = "LD_PRELOAD";
const GRANT: &str = "GPUOS_MEM_GRANT";
const HBM: &str = "GPUOS_MEM_HBM";
const POLICY: &str = "GPUOS_MEM_POLICY";
const SOCKET: &str = "GPUOS_MEM_SOCKET";

/// What a job asks for, as far as its words can be read.
pub(super) fn wished(resources: &Resources) -> Option<Share> {
    parse_share(wish(resources, SHARE)?).ok()
}

/// What a job was given of GPUs of this host that it shares; of one that asks for no share it is nothing, whatever it was given.
pub(super) fn here<'a>(
    event: &Event,
    given: &'a [Vec<Given>],
    resources: &Resources,
) -> Vec<&'a Given> {
    let this = short(&event.host);
    let is_here = |one: &&Given| shared(one).is_some_and(|(host, _)| short(host) == this);
    match wish(resources, SHARE) {
        Some(_) => given.iter().flatten().filter(is_here).collect(),
        None => Vec::new(),
    }
}

/// Of how many parts of a GPU a job is counted.
pub(super) fn parts(share: Share, site: Shares) -> u64 {
    let all = u64::from(site.parts);
    match share {
        // So many that no more than `turns` of them are on a GPU.
        Share::TimeSlice { shards, mib, .. } => {
            let least = mib.map_or(0, |_| all.div_ceil(site.turns.max(1).into()));
            u64::from(shards).max(least)
        }
        Share::Mps { percent } => (all * u64::from(percent)).div_ceil(100),
    }
}

/// Refuses a count that a user has written: it is made of what he asks for.
pub(super) fn not_by_hand(job: &Resources) -> Result<(), String> {
    let chunks = said(job, "select").unwrap_or_default().to_ascii_lowercase();
    if said(job, SHARE_PARTS).is_none() && !chunks.contains(&format!("{SHARE_PARTS}=")) {
        return Ok(());
    }
    let value = said(job, SHARE_PARTS).unwrap_or("…");
    Err(refused::by_hand(value, named(SHARE_PARTS)).to_string())
}

/// The chunks of a job without what was counted in them for the share that it had before.
pub(super) fn uncounted(select: &Select, before: Option<Share>) -> Select {
    let parked = parked_kib(before);
    let without = |chunk: &Chunk| {
        let counted = chunk.values(SHARE_PARTS).next().is_some();
        let mut chunk = chunk.clone();
        chunk
            .wants
            .retain(|(name, _)| !name.eq_ignore_ascii_case(SHARE_PARTS));
        if counted && parked > 0 {
            memory(&mut chunk, |own| own.checked_sub(parked));
        }
        chunk
    };
    Select(select.0.iter().map(without).collect())
}

/// A place for what a job has parked, in KiB.
fn parked_kib(share: Option<Share>) -> u64 {
    share
        .and_then(Share::in_turns_mib)
        .map_or(0, |mib| u64::from(mib) << 10)
}

/// Changes the memory of a chunk, in KiB, where it has some and there is a new amount. Whether it was changed.
fn memory(chunk: &mut Chunk, to: impl Fn(u64) -> Option<u64>) -> bool {
    let mut wants = chunk.wants.iter_mut();
    let own = wants.find(|(name, _)| name.eq_ignore_ascii_case("mem"));
    let changed = own.and_then(|(_, value)| {
        *value = size(to(units::kib(value).filter(|kib| *kib > 0)?)?);
        Some(())
    });
    changed.is_some()
}

/// A size as PBS reads it.
fn size(kib: u64) -> String {
    match kib {
        kib if kib.is_multiple_of(1 << 20) => format!("{}gb", kib >> 20),
        kib if kib.is_multiple_of(1 << 10) => format!("{}mb", kib >> 10),
        kib => format!("{kib}kb"),
    }
}

/// The chunk of a job with a share, in which it is counted.
///
/// # Errors
/// The rest of the request rules it out, or no GPU has it: the sentence.
pub(super) fn counted(
    share: Share,
    select: Option<&Select>,
    (place, given): (&Place, &str),
    site: Option<Shares>,
) -> Result<Select, String> {
    let option = || named(SHARE);
    let Some(site) = site else {
        return Err(refused::no_shares(share, option()).to_string());
    };
    let in_turns = share.in_turns_mib();
    match (in_turns, site.turns) {
        (Some(_), 0) => return Err(refused::turns_are_off(share, option()).to_string()),
        (None, 1..) => return Err(refused::share_without_memory(share, option()).to_string()),
        _ => {}
    }
    if share.nvme_gib() > 0 {
        return Err(refused::not_on_nvme(share, option()).to_string());
    }
    if in_turns.is_some_and(|mib| u64::from(mib) > site.most_mib) {
        let why = refused::turns_are_too_large(share, option(), site.gpu_mib, site.most_mib);
        return Err(why.to_string());
    }
    let parts = parts(share, site);
    if parts > site.parts.into() {
        return Err(refused::too_many_parts(share, option(), site.parts).to_string());
    }
    let group = place.group.as_deref();
    if group.is_some_and(|group| group != SHARE_GPU) {
        return Err(refused::share_is_of_one_gpu(share, option(), given).to_string());
    }
    if matches!(place.sharing, Some(Sharing::Excl | Sharing::Exclhost)) {
        return Err(refused::share_is_not_alone(share, option(), given).to_string());
    }
    let [chunk] = select.map_or(&[][..], |select| &select.0[..]) else {
        let chunks = select.map_or(0, |select| select.0.len());
        return Err(refused::share_has_one_chunk(share, option(), chunks).to_string());
    };
    if let Some(chunks) = chunk.count.filter(|count| *count > 1) {
        return Err(refused::share_has_one_chunk(share, option(), chunks).to_string());
    }
    let mut chunk = chunk.clone();
    let parked = parked_kib(Some(share));
    if parked > 0 && !memory(&mut chunk, |own| own.checked_add(parked)) {
        return Err(refused::turns_need_memory(share, option()).to_string());
    }
    chunk.wants.push((SHARE_PARTS.into(), parts.to_string()));
    Ok(Select(vec![chunk]))
}

/// What is wrong with what a job with a share was given, when it is about to be started; `None`: nothing.
pub(super) fn misgiven(event: &Event) -> Option<String> {
    let job = &event.job;
    let asked = wish(&job.resources, SHARE)?;
    // What cannot be read is PBS's own text.
    let given = parse_exec_vnode(&job.exec_vnode).ok()?;
    let mut own = given.iter().flatten().filter(|one| shared(one).is_some());
    let Some(first) = own.next() else {
        return Some(refused::share_is_not_counted(asked, named(SHARE)).to_string());
    };
    let mut parts_of_it = 0;
    // Where no vnode has as much as its chunk, PBS takes the rest of another one, and a GPU with that.
    for one in given.iter().flatten() {
        if one.vnode != first.vnode {
            let why = refused::share_of_two_gpus(asked, named(SHARE), &first.vnode, &one.vnode);
            return Some(why.to_string());
        }
        parts_of_it += one.count(SHARE_PARTS);
    }
    let share = wished(&job.resources);
    let needed = share
        .zip(event.shares)
        .map(|(share, site)| parts(share, site));
    let memory: u64 = given.iter().flatten().map(Given::memory_kib).sum();
    let whole = needed.is_none_or(|parts| parts_of_it >= parts) && memory >= parked_kib(share);
    (!whole).then(|| refused::share_is_not_counted(asked, named(SHARE)).to_string())
}

/// MiB of a GPU of this host that the programs of a job have in turns.
pub(super) fn in_turns_mib(event: &Event) -> Option<u32> {
    let given = parse_exec_vnode(&event.job.exec_vnode).ok()?;
    let has = !here(event, &given, &event.job.resources).is_empty();
    wished(&event.job.resources).filter(|_| has)?.in_turns_mib()
}

/// What a program of such a job finds, and what its user is told besides.
pub(super) fn variables(event: &Event) -> (Vec<Edit>, Option<String>) {
    let Some(mib) = in_turns_mib(event) else {
        return (Vec::new(), None);
    };
    let library = &event.preload[..];
    if !is_path(library) {
        let note = "the program takes no turns on its GPU, and may use memory there that others count on: this host has no libgpuos_preload.so of \
             gpuos; tell your administrator";
        return (Vec::new(), Some(note.into()));
    }
    // A text of the user's, which PBS writes into a file of its own: what could be more than names of files is left out.
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._+-: ".contains(&byte);
    let kept = event.loaded.bytes().all(plain);
    let note = (!kept).then(|| {
        "LD_PRELOAD of the job has characters other than letters, digits and / . _ + - : and is left out".into()
    });
    let others = event.loaded.split([':', ' ']);
    let others = others.filter(|one| kept && !one.is_empty() && *one != library);
    let loaded: Vec<&str> = std::iter::once(library).chain(others).collect();
    let bytes = (u64::from(mib) << 20).to_string();
    let edits = vec![
        env(LD_PRELOAD, &loaded.join(":")),
        env(GRANT, &bytes),
        // While it works it is in the GPU's memory alone.
        env(HBM, &bytes),
        env(POLICY, MemoryPolicy::default().name()),
        env(SOCKET, &memory_socket(&event.gpuosd)),
    ];
    (edits, note)
}

fn is_path(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._+-".contains(&byte);
    text.starts_with('/') && text.bytes().all(plain)
}
