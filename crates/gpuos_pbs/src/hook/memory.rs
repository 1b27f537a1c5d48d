//! Memory beyond that of whole GPUs: what of it the GPUs have no room for is added to the memory of the job's chunks, so that PBS promises
//! nothing twice. What was added stands in the chunk beside it, and is taken out before a change is counted anew.

use gpuos_config::options::{JobOptions, MemoryOption, parse_memory};

use super::beyond::Beyond;
use super::event::{Event, Resources};
use super::options::{named, said, wish};
use super::refused;
use super::resources::{MEM, MEM_BEYOND, MIG, MPS, NGPUS, SHARE};
use super::select::{Chunk, Select, mentions, size};
use super::vnodes::{Given, host_of, parse_exec_vnode, short};
use crate::units;

const PARTS: &str = "for whole GPUs alone have it";
const CONTEXT: &str = "whose programs share one context that nothing can be moved under";

/// What a job asks for, as far as its words can be read.
pub(super) fn wished(resources: &Resources) -> Option<MemoryOption> {
    parse_memory(wish(resources, MEM)?).ok()
}

/// What of a job does not go with it, and why.
fn beside(of: impl Fn(&str) -> bool) -> Option<(String, &'static str)> {
    let all = [(MIG, PARTS), (SHARE, PARTS), (MPS, CONTEXT)];
    let found = all.into_iter().find(|(name, _)| of(name));
    found.map(|(name, why)| (named(name), why))
}

/// Refuses what does not go with it.
pub(super) fn goes_with(asked: &MemoryOption, options: &JobOptions) -> Result<(), String> {
    let has = |name: &str| match name {
        MIG => options.mig.is_some(),
        SHARE => options.share.is_some(),
        _ => options.mps.is_some(),
    };
    match beside(has) {
        Some((beside, why)) => {
            Err(refused::memory_goes_not_with(asked, named(MEM), beside, why).to_string())
        }
        None => Ok(()),
    }
}

/// Refuses what a user has written there himself: it is made of what he asks for.
pub(super) fn not_by_hand(job: &Resources) -> Result<(), String> {
    let chunks = said(job, "select").unwrap_or_default();
    if said(job, MEM_BEYOND).is_none() && !mentions(chunks, MEM_BEYOND) {
        return Ok(());
    }
    let value = said(job, MEM_BEYOND).unwrap_or("…");
    Err(refused::memory_by_hand(value, named(MEM_BEYOND)).to_string())
}

/// The chunks of a job without what was added before. By what stands in the chunk, whoever wrote it: what is added then is added to the rest.
pub(super) fn uncounted(select: &Select) -> Select {
    let without = |chunk: &Chunk| {
        let added = chunk.values(MEM_BEYOND).next().and_then(units::kib);
        let mut chunk = chunk.clone();
        chunk.take_out(&[MEM_BEYOND]);
        if let Some(added) = added.filter(|kib| *kib > 0) {
            chunk.change_memory(|own| own.checked_sub(added).filter(|rest| *rest > 0));
        }
        chunk
    };
    Select(select.0.iter().map(without).collect())
}

/// The chunks of a job with it: those with GPUs have a place for what these have no room for.
///
/// # Errors
/// The rest of the request rules it out, or it is not known how much it takes: the sentence.
pub(super) fn counted(
    asked: &MemoryOption,
    select: Option<&Select>,
    site: Option<&Beyond>,
) -> Result<Select, String> {
    let option = || named(MEM);
    let site = site.ok_or_else(|| refused::memory_is_off(asked, option()).to_string())?;
    if !site.unknown.is_empty() {
        return Err(refused::memory_of_gpu_unknown(asked, option(), &site.unknown).to_string());
    }
    if site.gpu_mib == 0 {
        return Err(refused::memory_of_no_gpu(asked, option()).to_string());
    }
    let most = site.most_mib(asked.tiers);
    if u64::from(asked.mib) > most {
        let why = refused::memory_is_too_much(asked, option(), site.gpu_mib, most);
        return Err(why.to_string());
    }
    let Some(select) = select else {
        return Err(refused::memory_has_no_chunk(asked, option()).to_string());
    };
    let share = site.share_mib(asked).saturating_mul(1 << 10);
    let with = |chunk: &Chunk| {
        let mut chunk = chunk.clone();
        let gpus = chunk.number(NGPUS);
        let added = share.saturating_mul(gpus);
        if added == 0 {
            return Ok(chunk);
        }
        if !chunk.change_memory(|own| own.checked_add(added)) {
            return Err(refused::memory_of_program_unsaid(asked, option()).to_string());
        }
        chunk.wants.push((MEM_BEYOND.into(), size(added)));
        Ok(chunk)
    };
    let chunks: Result<Vec<Chunk>, String> = select.0.iter().map(with).collect();
    Ok(Select(chunks?))
}

/// KiB of memory that a job was given on a host, and GPUs.
fn on(host: &str, given: &[Vec<Given>]) -> (u64, u64) {
    let here = given.iter().flatten();
    let here = here.filter(|one| short(host_of(&one.vnode)) == host);
    here.fold((0, 0), |(kib, gpus), one| {
        (
            one.memory_kib().saturating_add(kib),
            one.count(NGPUS).saturating_add(gpus),
        )
    })
}

/// What was added to all chunks of a job for its GPUs, in KiB; `None`: its chunks are not told.
fn added_kib(resources: &Resources) -> Option<u64> {
    let select = Select::parse(said(resources, "select")?).ok()?;
    let of = |chunk: &Chunk| {
        let added = chunk.values(MEM_BEYOND).next().and_then(units::kib);
        u64::from(chunk.count.unwrap_or(1)).saturating_mul(added.unwrap_or(0))
    };
    Some(select.0.iter().map(of).fold(0, u64::saturating_add))
}

/// What is wrong with what a job with it was given, when it is about to be started; `None`: nothing.
pub(super) fn misgiven(event: &Event) -> Option<String> {
    let job = &event.job;
    let text = wish(&job.resources, MEM)?;
    let has = |name: &str| wish(&job.resources, name).is_some();
    if let Some((beside, why)) = beside(has) {
        return Some(refused::memory_goes_not_with(text, named(MEM), beside, why).to_string());
    }
    // What cannot be read is PBS's own text.
    let given = parse_exec_vnode(&job.exec_vnode).ok()?;
    let asked = wished(&job.resources).zip(event.memory.as_ref());
    let share = asked.map(|(asked, site)| site.share_mib(&asked).saturating_mul(1 << 10));
    let all = given.iter().flatten().map(|one| one.count(NGPUS));
    let all = all.fold(0, u64::saturating_add);
    // What the program needs itself may be as large as what the GPUs take, and does not count for them.
    let added = added_kib(&job.resources);
    let is_added = added
        .zip(share)
        .is_none_or(|(added, share)| added >= share.saturating_mul(all));
    let mut hosts = given
        .iter()
        .flatten()
        .map(|one| short(host_of(&one.vnode)))
        .filter(|host| {
            let (kib, gpus) = on(host, &given);
            let fits = share.is_some_and(|share| share.saturating_mul(gpus) <= kib);
            gpus > 0 && !(fits && is_added)
        });
    hosts
        .next()
        .map(|host| refused::memory_is_not_counted(text, named(MEM), host).to_string())
}
