//! Parts of a GPU, of which several jobs have one each: what a job asks for becomes a count in its chunk, which pbs_sched gives of one host. A job
//! that has the GPU in turns with its memory gets a place for what is parked, too, in the memory of its chunk.

use gpuos_config::options::parse_share;
use gpuos_core::limits::Share;

use super::event::{Event, Resources, Shares};
use super::options::{named, said, wish};
use super::place::{Place, Sharing};
use super::refused;
use super::resources::{SHARE, SHARE_FITS, SHARE_PARTS};
use super::select::{Chunk, Select, mentions};
use super::vnodes::{Given, parse_exec_vnode};

/// What a job asks for, as far as its words can be read.
pub(super) fn wished(resources: &Resources) -> Option<Share> {
    parse_share(wish(resources, SHARE)?).ok()
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
    let chunks = said(job, "select").unwrap_or_default();
    if said(job, SHARE_PARTS).is_none() && !mentions(chunks, SHARE_PARTS) {
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
        chunk.take_out(&[SHARE_PARTS, SHARE_FITS]);
        if counted && parked > 0 {
            chunk.change_memory(|own| own.checked_sub(parked));
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
    if parked > 0 && !chunk.change_memory(|own| own.checked_add(parked)) {
        return Err(refused::turns_need_memory(share, option()).to_string());
    }
    chunk.wants.push((SHARE_PARTS.into(), parts.to_string()));
    Ok(Select(vec![chunk]))
}

/// The chunk of a job with a share with the parts that are to be on one GPU of the host; `None`: none is counted in it.
pub(super) fn with_fits(select: &Select) -> Option<Select> {
    let mut select = select.clone();
    let [chunk] = &mut select.0[..] else {
        return None;
    };
    let parts = chunk.values(SHARE_PARTS).next()?.to_owned();
    chunk.take_out(&[SHARE_FITS]);
    chunk.wants.push((SHARE_FITS.into(), parts));
    Some(select)
}

/// What is wrong with what a job with a share was given, when it is about to be started; `None`: nothing.
pub(super) fn misgiven(event: &Event) -> Option<String> {
    let job = &event.job;
    let asked = wish(&job.resources, SHARE)?;
    // What cannot be read is PBS's own text.
    let given = parse_exec_vnode(&job.exec_vnode).ok()?;
    let parts_of_it: u64 = given
        .iter()
        .flatten()
        .map(|one| one.count(SHARE_PARTS))
        .sum();
    if parts_of_it == 0 {
        return Some(refused::share_is_not_counted(asked, named(SHARE)).to_string());
    }
    let share = wished(&job.resources);
    let needed = share
        .zip(event.shares)
        .map(|(share, site)| parts(share, site));
    let memory: u64 = given.iter().flatten().map(Given::memory_kib).sum();
    let whole = needed.is_none_or(|parts| parts_of_it >= parts) && memory >= parked_kib(share);
    (!whole).then(|| refused::share_is_not_counted(asked, named(SHARE)).to_string())
}
