//! What PBS is to count and to show of a host's GPUs, and what of it pbs_server shows.

use core::time::Duration;

use gpuos_core::health::ExtraPart;
use gpuos_core::wire::{HostOrder, MomHost, MomOrders, MomRoom};
use gpuos_model::gpu_index::{GresGpu, NvmlIndex};
use gpuos_model::gpuset::GpuSet;
use gpuos_pbs::published::{Group, Published};

use super::choose::Gpus;
use super::state::{LOOK, State};

/// So often pbs_server is looked at where nothing is out of service: somebody may have changed what the host's vnode says.
const LOOKS_AGAIN: Duration = Duration::from_secs(60);

impl State {
    /// GPUs that a state of them has out of service, those of the pool among them.
    pub(super) fn out(&self, part: &ExtraPart) -> GpuSet {
        let whole: GpuSet = part.out.iter().copied().collect();
        let pool = part.pool_out.iter().map(|gpu| gpu.index());
        let pool = pool.fold(GpuSet::EMPTY, GpuSet::with);
        let gpus = &self.gpus;
        GpuSet(whole.and(gpus.undivided()).0 | pool.and(gpus.divided()).0)
    }

    /// GPUs out of service: as it has to be, or as pbs_server shows it where nobody has said yet; `None`: neither.
    pub(super) fn known_out(&self) -> Option<GpuSet> {
        match &self.wanted {
            Some(part) => Some(self.out(part)),
            None => Some(shown_out(self.seen()?)),
        }
    }

    /// The host's own vnode as pbs_server had it last.
    pub(super) fn seen(&self) -> Option<&MomHost> {
        self.host.as_ref().map(|(host, _)| host)
    }

    /// What PBS is to count and to show; `None`: it is not known yet, or not gpuos's to say.
    pub(super) fn room(&self) -> Option<MomRoom> {
        if self.heard.is_none() || self.advise {
            return None;
        }
        let out = self.known_out()?;
        let gpus = &self.gpus;
        let pool = match gpus.divided().is_empty() {
            true => Default::default(),
            false => self.pool?,
        };
        let holders = self.holders(None);
        let running = holders.iter().filter(|one| !one.suspended);
        let running: Vec<_> = running.cloned().collect();
        let left = gpus.parts_left(&running, out);
        // PBS counts those for their jobs, until these end.
        let held = running.iter().fold(0, |all, one| all | one.whole.0);
        let parts = gpus.shared().filter(|(gpu, _)| !gpu.is_in(out));
        Some(MomRoom {
            whole: gpus.whole().minus(out.minus(GpuSet(held))).len() as u64,
            linked: gpus.linked(gpus.usable(&holders, out)),
            mig_fits: pool.fits,
            share_fits: left.iter().map(|(_, left)| *left).max().unwrap_or(0).into(),
            share_parts: parts.map(|(_, all)| u64::from(all)).sum(),
            mig_compute: pool.compute,
            mig_memory: pool.memory,
            shown: shown(gpus, gpus.free(&holders, out), out).to_string(),
        })
    }

    /// Whether pbs_server shows what is out of service, and the host as it has to be.
    pub(super) fn is_shown(&self) -> bool {
        let Some(seen) = self.seen() else {
            return false;
        };
        if self.advise {
            return self.is_advice_shown(seen);
        }
        let whole = match &self.drain {
            None => true,
            Some(Some(_)) => seen.offline,
            Some(None) => seen.reason.is_none(),
        };
        let wanted = self.wanted.as_ref();
        whole && wanted.is_none_or(|part| self.out(part) == shown_out(seen))
    }

    /// Whether pbs_server is to be asked how it has the host when a run has left it: PBS counts other GPUs from now on. Without a word of it mom's next
    /// list would tell.
    fn looks_at_end(&self, room: Option<&MomRoom>) -> bool {
        let told = self.told_room.as_ref();
        room.is_some_and(|room| told.is_none_or(|told| told.whole != room.whole))
    }

    /// What mom is to do when a run has left the host.
    pub(super) fn orders_at_end(&self) -> MomOrders {
        let room = self.room();
        MomOrders {
            look: self.looks_at_end(room.as_ref()),
            room,
            ..MomOrders::default()
        }
    }

    /// Whether pbs_server is to be asked how it has the host.
    fn looks(&self, room: Option<&MomRoom>) -> bool {
        let Some((seen, at)) = &self.host else {
            return true;
        };
        // Of numbers beside the text it is only known what mom was told.
        let differs = room
            .is_some_and(|room| room.shown != seen.shown || self.told_room.as_ref() != Some(room));
        let wanted = self.wanted.as_ref().map(|part| self.out(part));
        let out = !shown_out(seen).is_empty() || seen.reason.is_some();
        let out = out || wanted.is_some_and(|out| !out.is_empty());
        let patience = if out { LOOK } else { LOOKS_AGAIN };
        !self.is_shown() || differs || at.elapsed() > patience
    }

    /// What mom is to do.
    pub(super) fn orders(&self) -> MomOrders {
        let room = self.room();
        let look = self.looks(room.as_ref());
        if self.advise {
            return MomOrders {
                host: self.advised(),
                look,
                ..MomOrders::default()
            };
        }
        MomOrders {
            room,
            host: match &self.drain {
                None => HostOrder::Leave,
                Some(None) => HostOrder::Online,
                Some(Some(reason)) => HostOrder::Offline(reason.clone()),
            },
            look,
            rerun: self.rerun.clone(),
            end: self.end.clone(),
            ..MomOrders::default()
        }
    }

    /// What is published of the GPUs by what pbs_server shows. What PBS has no place for counts as published.
    pub(super) fn published(&self, seen: &MomHost) -> ExtraPart {
        let part = self.wanted.clone().unwrap_or_default();
        if self.advise {
            return self.advised_part(part);
        }
        let out = shown_out(seen);
        let (whole, pool) = (self.gpus.undivided(), self.gpus.divided());
        ExtraPart {
            out: out.and(whole).iter().filter_map(GresGpu::new).collect(),
            pool_out: out.and(pool).iter().filter_map(NvmlIndex::new).collect(),
            ..part
        }
    }
}

/// What pbs_server shows as out of service. A text that is none of gpuos's says nothing, and is written anew.
fn shown_out(seen: &MomHost) -> GpuSet {
    Published::parse(&seen.shown).unwrap_or_default().out
}

fn shown(gpus: &Gpus, free: GpuSet, out: GpuSet) -> Published {
    let all = gpus.described().iter();
    Published {
        whole: gpus.whole(),
        free,
        out,
        links: groups(all.clone().map(|gpu| gpu.nvlink.clone())),
        numa: groups(all.map(|gpu| gpu.numa.map_or(String::new(), |numa| numa.to_string()))),
    }
}

/// GPUs by names, in the order in which these come first; an empty name is none.
fn groups(names: impl Iterator<Item = String>) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for (at, name) in names.enumerate().filter(|(_, name)| !name.is_empty()) {
        match groups.iter_mut().find(|group| group.name == name) {
            Some(group) => group.gpus = group.gpus.with(at),
            None => groups.push(Group {
                name,
                gpus: GpuSet::EMPTY.with(at),
            }),
        }
    }
    groups
}
