//! MIG on a GPU of the twin: what the driver would make, and what it would refuse.

use std::collections::BTreeSet;

use gpuos_core::mig::Shown;
use gpuos_model::mig::{Geometry, MigPlacement, Profile};

use super::twin::{Twin, TwinGpu};
use super::{Answer, Error, GpuLibrary, Happening, Load, MigMode};

impl Twin {
    /// Turns MIG mode on: the GPU can be divided so from now on, and is not yet.
    pub fn divide(&self, gpu: u8, geometry: &Geometry) {
        let profiles = geometry.profiles().to_vec();
        self.change(gpu, |gpu| {
            gpu.identity.mig = Some(MigMode {
                on: true,
                pending: true,
                most: profiles.iter().map(|p| p.most.into()).max().unwrap_or(0),
            });
            gpu.mig_profiles = profiles;
            gpu.mig_instances.clear();
            gpu.counted.clear();
        });
    }

    /// Makes or destroys instances, and tells who waits for events when it was done.
    pub(super) fn changes<T>(
        &self,
        gpu: u8,
        work: impl FnOnce(&mut TwinGpu) -> Answer<T>,
    ) -> Answer<T> {
        let before = self.mig_instances(gpu)?;
        let done = self.with(gpu, work)?;
        if self.mig_instances(gpu)? != before {
            self.happen(gpu, Happening::MigChanged);
        }
        Ok(done)
    }
}

impl TwinGpu {
    fn mig_on(&self) -> Answer<()> {
        let on = self.identity.mig.is_some_and(|mig| mig.on);
        on.then_some(()).ok_or(Error::NotSupported)
    }

    pub(super) fn set_mig_mode(&mut self, on: bool) -> Answer<()> {
        let used = !self.processes.is_empty() || !self.mig_instances.is_empty();
        let mig = self.identity.mig.as_mut().ok_or(Error::NotSupported)?;
        match (mig.on == on, used, self.mig_waits) {
            (true, ..) => Ok(()),
            (false, true, _) => Err(Error::InUse),
            (false, false, true) => Err(super::mig::wants_reset()),
            (false, false, false) => {
                (mig.on, mig.pending) = (on, on);
                Ok(())
            }
        }
    }

    pub(super) fn profiles(&self) -> Answer<Vec<Profile>> {
        self.mig_on()?;
        Ok(self.mig_profiles.clone())
    }

    pub(super) fn instances(&self) -> Vec<Shown> {
        let mut all = self.mig_instances.clone();
        for instance in &mut all {
            let inside = |gi| gi == Some(instance.gi);
            instance.busy = self.processes.iter().any(|p| inside(p.gpu_instance));
        }
        all.sort_by_key(|instance| instance.gi);
        all
    }

    pub(super) fn memory(&self) -> Vec<(String, Answer<[u64; 2]>)> {
        let of = |instance: &Shown| {
            let profile = self.mig_profiles.iter().find(|p| p.id == instance.profile);
            let total = profile.map_or(0, |profile| profile.memory_mib);
            let own = self
                .processes
                .iter()
                .filter(|p| p.gpu_instance == Some(instance.gi));
            let used = own.filter_map(|p| p.memory_mib).sum();
            Ok([total, used])
        };
        let each = self.mig_instances.iter().flat_map(|instance| {
            let own = instance.computes.iter();
            own.map(move |(_, uuid)| (uuid.clone(), of(instance)))
        });
        each.collect()
    }

    pub(super) fn loads(&mut self) -> Answer<Vec<(u32, Answer<Option<Load>>)>> {
        if self.mig_on().is_err() {
            return Ok(Vec::new());
        }
        if !self.gpm {
            return Err(Error::NotSupported);
        }
        let there = self.mig_instances.iter();
        let there = there.filter(|one| !one.computes.is_empty());
        let there: BTreeSet<u32> = there.map(|one| one.gi).collect();
        self.counted.retain(|gi| there.contains(gi));
        let load = |gi: &u32| {
            let [sm, memory] = self.mig_loads.get(gi).copied().unwrap_or_default();
            let load = Load {
                sm: Ok(sm),
                memory: Ok(memory),
            };
            let known = self.counted.contains(gi);
            (*gi, Ok(known.then_some(load)))
        };
        let told = there.iter().map(load).collect();
        self.counted = there;
        Ok(told)
    }

    pub(super) fn make_gpu(&mut self, profile: u32, placement: MigPlacement) -> Answer<u32> {
        self.mig_on()?;
        let known = self.mig_profiles.iter().find(|known| known.id == profile);
        let placed = |known: &&Profile| known.size == placement.size;
        let placed = known
            .filter(placed)
            .filter(|known| known.starts.contains(&placement.start));
        let known = placed.ok_or_else(|| super::mig::no_such_placement(profile, placement))?;
        let same = self
            .mig_instances
            .iter()
            .filter(|other| other.profile == profile);
        let taken = self
            .mig_instances
            .iter()
            .any(|other| other.placement.overlaps(placement));
        if taken || same.count() >= usize::from(known.most) {
            return Err(Error::InsufficientResources);
        }
        // A tree that halves, as the hardware numbers them: 0 is the whole, 1 and 2 the halves.
        let ends = self
            .mig_profiles
            .iter()
            .flat_map(|p| p.starts.iter().map(|start| start + p.size));
        let slices = u32::from(ends.max().unwrap_or(0));
        let (start, size) = (u32::from(placement.start), u32::from(placement.size));
        let gi = slices / size - 1 + start / size;
        self.mig_instances.push(Shown {
            gi,
            profile,
            placement,
            computes: Vec::new(),
            busy: false,
        });
        Ok(gi)
    }

    pub(super) fn make_compute(&mut self, gi: u32, serial: u64) -> Answer<(u32, String)> {
        self.mig_on()?;
        let instance = self.mig_instances.iter_mut().find(|i| i.gi == gi);
        let instance = instance.ok_or_else(|| super::mig::no_such_instance(gi))?;
        if !instance.computes.is_empty() {
            return Err(Error::InsufficientResources);
        }
        let made = (0, format!("MIG-00000000-0000-4000-9000-{serial:012x}"));
        instance.computes.push(made.clone());
        Ok(made)
    }

    pub(super) fn destroy_compute(&mut self, gi: u32) -> Answer<()> {
        let used = self.processes.iter().any(|p| p.gpu_instance == Some(gi));
        match self.mig_instances.iter_mut().find(|i| i.gi == gi) {
            Some(instance) if used && !instance.computes.is_empty() => Err(Error::InUse),
            Some(instance) => {
                instance.computes.clear();
                Ok(())
            }
            None => Ok(()),
        }
    }

    pub(super) fn destroy_gpu(&mut self, gi: u32) -> Answer<()> {
        let at = self.mig_instances.iter().position(|i| i.gi == gi);
        match at {
            Some(at) if !self.mig_instances[at].computes.is_empty() => Err(Error::InUse),
            Some(at) => {
                self.mig_instances.remove(at);
                self.counted.remove(&gi);
                Ok(())
            }
            None => Ok(()),
        }
    }
}
