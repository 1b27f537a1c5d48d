//! `--gpuos-share=timeslice,mem=SIZE` at submission: what a job has of a GPU needs a place in host memory while it is another's turn, and that is
//! added to the memory that the job asks of Slurm, so that nothing is promised twice. With `park=nvme` the place is on NVMe, in a GRES of the site's.
//!
//! Which jobs come to stand on one GPU, and how many, Slurm's count of shards decides: see [`crate::share`].

use gpuos_config::options::{JobOptions, Sources};
use gpuos_core::limits::Share;

use crate::memory::{Chosen, Host, Inventory, Raised};
use crate::messages::{notes, refused};
use crate::refusal::Refusal;
use crate::shape::Shape;
use crate::share;

/// The memory that a job has of a GPU in turns, in MiB; `None`: it shares none, or in another way.
pub fn asked(options: &JobOptions) -> Option<(Share, u64)> {
    let share = options.share?;
    Some((share, share.in_turns_mib()?.into()))
}

/// Adds a place for what is parked to what a new job asks for. `None`: it asks for no memory in turns.
///
/// # Errors
/// The site does not allow it, the job asks for something that does not go with it, or it is not known or not there what it takes.
pub fn choose(
    inventory: &Inventory,
    (options, sources): (&JobOptions, &Sources),
    shape: &Shape,
    host: &Host,
) -> Result<Option<Chosen>, Refusal> {
    let Some((share, mib)) = asked(options) else {
        return Ok(None);
    };
    let config = &inventory.config;
    if config.turns == 0 {
        return Err(refused::turns_are_off(share).into());
    }
    if let Some((beside, why, undo)) = share::does_not_go_with((options, sources), shape) {
        return Err(refused::share_goes_not_with(share, beside, why, undo).into());
    }
    if inventory.dynamic {
        return Err(refused::turns_of_any_node(share).into());
    }
    let candidates = inventory.with_shards();
    if let Some((_, node)) = candidates.iter().find(|(kind, _)| kind.gpu_mib.is_none()) {
        return Err(refused::turns_of_gpu_unknown(share, node).into());
    }
    let least = candidates.iter().filter_map(|(kind, _)| kind.gpu_mib).min();
    let least = least.ok_or_else(|| refused::no_shards(share))?;
    let most = config.most_in_turns_mib(least);
    if mib > most {
        let why = refused::turns_are_too_large(share, least, most);
        return Err(Refusal::impossible(why));
    }
    if share.nvme_gib() > 0 {
        return on_nvme(inventory, (share, mib), sources).map(Some);
    }
    if !inventory.counted {
        return Err(refused::turns_are_not_counted(share).into());
    }
    let Host::Node(own) = *host else {
        return Err(refused::turns_need_memory(share).into());
    };
    let all = own.saturating_add(mib);
    let largest = candidates.iter().map(|(kind, _)| kind.host_mib).max();
    let largest = largest.unwrap_or(0);
    if all > largest {
        let why = refused::turns_misfit(share, all, largest);
        return Err(Refusal::impossible(why));
    }
    let named = sources.named("--gpuos-share", &share.to_string());
    Ok(Some(Chosen {
        raised: Some(Raised::Node(all)),
        sentence: notes::turns(named, mib, config.turns, all, own),
    }))
}

/// What is parked goes to NVMe, which is counted in a GRES ([`share::with_nvme`]): the job's memory is as it says.
fn on_nvme(
    inventory: &Inventory,
    (share, mib): (Share, u64),
    sources: &Sources,
) -> Result<Chosen, Refusal> {
    let gib = u64::from(share.nvme_gib());
    let Some(gres) = &inventory.nvme else {
        return Err(refused::nvme_is_not_counted(share).into());
    };
    let candidates = inventory.with_shards();
    let largest = candidates.iter().map(|(kind, _)| kind.nvme_gib).max();
    let largest = largest.unwrap_or(0);
    if gib > largest {
        let why = refused::nvme_misfit(share, gib, gres, largest);
        return Err(Refusal::impossible(why));
    }
    let named = sources.named("--gpuos-share", &share.to_string());
    Ok(Chosen {
        raised: None,
        sentence: notes::turns_on_nvme(named, mib, inventory.config.turns, gres, gib),
    })
}

/// Checks a change of the memory of a job that shares a GPU in turns.
///
/// # Errors
/// There would be no place for what is parked.
pub fn check_update(options: &JobOptions, update: &Host) -> Result<(), Refusal> {
    let Some((share, mib)) = asked(options).filter(|(share, _)| share.nvme_gib() == 0) else {
        return Ok(());
    };
    let enough = match update {
        Host::Unsaid | Host::Whole => true,
        Host::Node(all) => *all >= mib,
        Host::Cpu | Host::Gpu(..) | Host::Other => false,
    };
    match enough {
        true => Ok(()),
        false => Err(refused::turns_stay(share, mib).into()),
    }
}

#[cfg(test)]
#[path = "turns_tests.rs"]
mod tests;
