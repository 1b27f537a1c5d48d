//! MIG on one GPU: which instances exist, which fit, and what making and destroying them does.
//!
//! Ids follow the hardware's scheme, a tree that halves: on eight memory slices the whole is 0, the
//! halves 1 and 2, the quarters 3 to 6, single slices 7 to 13.

use crate::model::{Mig, Profile};
use crate::state::{ComputeInstance, Gpu, GpuInstance, MAX_INSTANCES, Node, mig_uuid_text};

/// Why an instance cannot be made or destroyed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// MIG is off, or the board has none.
    NotSupported,
    /// No such profile, placement or instance.
    Invalid,
    /// The placement is taken, or as many exist as may.
    NoRoom,
    /// Something still uses the instance.
    InUse,
}

/// Compute instance profiles: index, id, compute slices, and the first slices they may have.
const COMPUTE: [(u32, u32, u32, &[u32]); 5] = [
    (0, 0, 1, &[0, 1, 2, 3, 4, 5, 6]),
    (1, 1, 2, &[0, 2, 4]),
    (2, 2, 3, &[0, 4]),
    (3, 3, 4, &[0]),
    (4, 4, 7, &[0]),
];

/// What a GPU instance offers to compute instances.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ComputeProfile {
    /// `NVML_COMPUTE_INSTANCE_PROFILE_*`.
    pub index: u32,
    /// The id that users know, and creation uses.
    pub id: u32,
    /// Compute slices.
    pub slices: u32,
    /// How many fit into an empty GPU instance.
    pub count: u32,
    /// Multiprocessors of each.
    pub cores: u32,
    starts: &'static [u32],
}

impl ComputeProfile {
    /// The profiles of GPU instances of a kind, from the smallest on.
    pub fn of(mig: &Mig, profile: &Profile) -> Vec<ComputeProfile> {
        let [whole, _] = profile.slices;
        let fits = COMPUTE.iter().filter(|(_, _, slices, _)| *slices <= whole);
        let made = fits.map(|&(index, id, slices, starts)| ComputeProfile {
            index,
            id,
            slices,
            count: starts
                .iter()
                .filter(|&&start| start + slices <= whole)
                .count() as u32,
            cores: match slices == whole {
                true => profile.cores,
                false => mig.slice_cores * slices,
            },
            starts,
        });
        made.collect()
    }

    /// The first slices that an instance may have in a GPU instance of that many compute slices.
    pub fn starts(&self, whole: u32) -> impl Iterator<Item = u32> + use<> {
        let slices = self.slices;
        let starts = self.starts.iter().copied();
        starts.filter(move |start| start + slices <= whole)
    }
}

/// Where the driver puts an instance when nobody says it, the least first: the second half of eight
/// slices before the first, and of its single slices the last. As `nvidia-smi mig -cgi` prints it on
/// A100 and H100; ascending on RTX PRO 6000, and taken to be so on A30.
fn by_itself(mig: &Mig, size: u32, start: u32) -> (bool, bool, u32) {
    let eight = mig.slices == 8;
    (eight && start < 4, eight && size == 1 && start != 6, start)
}

impl Gpu {
    /// Whether MIG mode is on.
    pub fn mig_on(&self) -> bool {
        self.mig[0] == 1
    }

    /// The GPU instances, by id.
    pub fn gpu_instances(&self) -> Vec<&GpuInstance> {
        let mut found: Vec<_> = self.instances.iter().filter(|i| i.exists == 1).collect();
        found.sort_by_key(|instance| instance.id);
        found
    }

    /// The MIG devices, in the order of their indices: by GPU instance, then compute instance.
    pub fn mig_devices(&self) -> Vec<(&GpuInstance, &ComputeInstance)> {
        let instances = self.gpu_instances().into_iter();
        let devices = instances.flat_map(|gi| gi.computes().into_iter().map(move |ci| (gi, ci)));
        devices.collect()
    }

    /// The MIG device whose compute instance has this serial number.
    pub fn mig_device(&self, serial: u64) -> Option<(&GpuInstance, &ComputeInstance)> {
        let mut devices = self.mig_devices().into_iter();
        devices.find(|(_, compute)| compute.serial == serial)
    }

    /// First memory slices at which another instance of the profile fits now.
    pub fn free_starts(&self, profile: &Profile) -> Vec<u32> {
        let same = |instance: &&&GpuInstance| instance.profile == profile.id;
        let instances = self.gpu_instances();
        if instances.iter().filter(same).count() as u32 >= profile.count {
            return Vec::new();
        }
        let [_, size] = profile.slices;
        let free = |start: &u32| {
            instances
                .iter()
                .all(|i| start + size <= i.start || i.start + i.size <= *start)
        };
        profile.starts.iter().copied().filter(free).collect()
    }

    /// Makes a GPU instance at `start`, or where the driver would put it. Gives its serial number.
    pub fn create_instance(
        &mut self,
        mig: &Mig,
        profile: u32,
        start: Option<u32>,
        serial: u64,
    ) -> Result<u64, Refusal> {
        if !self.mig_on() {
            return Err(Refusal::NotSupported);
        }
        let profile = mig.by_id(profile).ok_or(Refusal::Invalid)?;
        let free = self.free_starts(profile);
        let start = match start {
            Some(start) if !profile.starts.contains(&start) => return Err(Refusal::Invalid),
            Some(start) => free.into_iter().find(|&s| s == start),
            None => free
                .into_iter()
                .min_by_key(|&s| by_itself(mig, profile.slices[1], s)),
        };
        let start = start.ok_or(Refusal::NoRoom)?;
        let place = self.instances.iter_mut().find(|i| i.exists == 0);
        let [_, size] = profile.slices;
        *place.ok_or(Refusal::NoRoom)? = GpuInstance {
            exists: 1,
            id: mig.slices / size - 1 + start / size,
            profile: profile.id,
            start,
            size,
            serial,
            ..GpuInstance::default()
        };
        Ok(serial)
    }

    /// Destroys the GPU instance with this serial number.
    pub fn destroy_instance(&mut self, serial: u64) -> Result<(), Refusal> {
        let instance = self.instance_mut(serial)?;
        if !instance.computes().is_empty() {
            return Err(Refusal::InUse);
        }
        *instance = GpuInstance::default();
        Ok(())
    }

    /// The GPU instance with this serial number.
    pub fn instance(&self, serial: u64) -> Option<&GpuInstance> {
        let mut all = self.instances.iter();
        all.find(|i| i.exists == 1 && i.serial == serial)
    }

    fn instance_mut(&mut self, serial: u64) -> Result<&mut GpuInstance, Refusal> {
        let mut all = self.instances.iter_mut();
        all.find(|i| i.exists == 1 && i.serial == serial)
            .ok_or(Refusal::Invalid)
    }

    /// Makes a compute instance in the GPU instance with serial number `inside`.
    pub fn create_compute(
        &mut self,
        mig: &Mig,
        inside: u64,
        profile: u32,
        start: Option<u32>,
        serial: u64,
    ) -> Result<u64, Refusal> {
        let instance = self.instance_mut(inside)?;
        let of = mig.by_id(instance.profile).ok_or(Refusal::Invalid)?;
        let [whole, _] = of.slices;
        let profiles = ComputeProfile::of(mig, of);
        let wanted = profiles
            .iter()
            .find(|p| p.id == profile)
            .ok_or(Refusal::Invalid)?;
        let free = instance.free_compute_starts(&profiles, wanted, whole);
        let start = match start {
            Some(start) if !wanted.starts(whole).any(|s| s == start) => {
                return Err(Refusal::Invalid);
            }
            Some(start) => free.into_iter().find(|&s| s == start),
            None => free.into_iter().next(),
        };
        let start = start.ok_or(Refusal::NoRoom)?;
        let used: Vec<u32> = instance.computes().iter().map(|c| c.id).collect();
        let id = (0..).find(|id| !used.contains(id)).unwrap_or(0);
        let place = instance.compute.iter_mut().find(|c| c.exists == 0);
        *place.ok_or(Refusal::NoRoom)? = ComputeInstance {
            exists: 1,
            id,
            profile: wanted.index,
            start,
            serial,
        };
        Ok(serial)
    }

    /// Destroys the compute instance with this serial number.
    pub fn destroy_compute(&mut self, serial: u64) -> Result<(), Refusal> {
        let (gi, ci) = self.mig_device(serial).ok_or(Refusal::Invalid)?;
        let (gi, ci) = (gi.id, ci.id);
        if self
            .processes()
            .any(|p| p.gpu_instance == gi && p.compute_instance == ci)
        {
            return Err(Refusal::InUse);
        }
        let compute = self.instances.iter_mut().flat_map(|i| i.compute.iter_mut());
        for place in compute.filter(|c| c.exists == 1 && c.serial == serial) {
            *place = ComputeInstance::default();
        }
        Ok(())
    }

    /// Sets MIG mode; the board says whether that waits for a reset. The instances go with the mode.
    pub fn set_mig(&mut self, on: bool, needs_reset: bool) -> Result<(), Refusal> {
        let mode = u32::from(on);
        if self.mig == [mode, mode] {
            return Ok(());
        }
        if self.processes().next().is_some() || !self.gpu_instances().is_empty() {
            return Err(Refusal::InUse);
        }
        self.mig[1] = mode;
        if !needs_reset {
            self.mig[0] = mode;
        }
        Ok(())
    }
}

impl GpuInstance {
    /// Its compute instances, by id.
    pub fn computes(&self) -> Vec<&ComputeInstance> {
        let mut found: Vec<_> = self.compute.iter().filter(|c| c.exists == 1).collect();
        found.sort_by_key(|compute| compute.id);
        found
    }

    /// First compute slices at which another compute instance of the profile fits now.
    pub fn free_compute_starts(
        &self,
        profiles: &[ComputeProfile],
        wanted: &ComputeProfile,
        whole: u32,
    ) -> Vec<u32> {
        let size = |index: u32| {
            let found = profiles.iter().find(|p| p.index == index);
            found.map_or(0, |p| p.slices)
        };
        let free = |start: &u32| {
            let end = start + wanted.slices;
            let mut computes = self.computes().into_iter();
            computes.all(|c| end <= c.start || c.start + size(c.profile) <= *start)
        };
        wanted.starts(whole).filter(free).collect()
    }
}

impl Node {
    /// The MIG instances, one on each line: `gpu7 gi 2 profile 9 slices 4-7`, with the UUIDs of its compute instances.
    pub fn instances_text(&self) -> String {
        let mut text = String::new();
        for (index, gpu) in self.gpus().iter().enumerate() {
            for one in gpu.gpu_instances() {
                let last = one.start + one.size - 1;
                text += &format!(
                    "gpu{index} gi {} profile {} slices {}-{last}",
                    one.id, one.profile, one.start
                );
                for compute in one.computes() {
                    text += &format!(" {}", mig_uuid_text(self.seed, compute.serial));
                }
                text.push('\n');
            }
        }
        text
    }

    /// Makes an instance with a compute instance that fills it, as somebody may by hand.
    ///
    /// # Errors
    /// As [`Gpu::create_instance`].
    pub fn carve(&mut self, gpu: usize, profile: u32, start: u32) -> Result<(), Refusal> {
        let mig = self.model().board().mig.ok_or(Refusal::NotSupported)?;
        let of = mig.by_id(profile).ok_or(Refusal::Invalid)?;
        let [whole, _] = of.slices;
        let computes = ComputeProfile::of(mig, of);
        let fills = computes.iter().find(|one| one.slices == whole);
        let fills = fills.ok_or(Refusal::Invalid)?.id;
        let (outer, inner) = (self.next_serial(), self.next_serial());
        let gpu = self.gpus_mut().get_mut(gpu).ok_or(Refusal::Invalid)?;
        gpu.create_instance(mig, profile, Some(start), outer)?;
        gpu.create_compute(mig, outer, fills, None, inner)?;
        Ok(())
    }

    /// A number that no instance had before.
    pub fn next_serial(&mut self) -> u64 {
        self.instances_made += 1;
        self.instances_made
    }
}

const _: () = assert!(MAX_INSTANCES >= 7, "seven instances of 1g fit on a GPU");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{A30, A100_80, H100_80};

    fn gpu() -> Gpu {
        Gpu {
            mig: [1, 1],
            ..Gpu::default()
        }
    }

    #[test]
    fn ids_and_placements_are_those_of_the_hardware() {
        let mut gpu = gpu();
        for (start, id) in [(0, 1), (4, 2)] {
            gpu.create_instance(&H100_80, 9, Some(start), start.into())
                .unwrap();
            assert_eq!(gpu.gpu_instances().last().unwrap().id, id);
        }
        assert_eq!(
            gpu.create_instance(&H100_80, 19, None, 9),
            Err(Refusal::NoRoom)
        );
        gpu.destroy_instance(4).unwrap();
        let ids: Vec<u32> = (0..3)
            .map(|n| {
                let serial = gpu.create_instance(&H100_80, 19, None, 10 + n).unwrap();
                gpu.instance(serial).unwrap().id
            })
            .collect();
        assert_eq!(ids, [13, 11, 12]);
        let mut small = self::gpu();
        small.create_instance(&A30, 14, Some(3), 1).unwrap();
        assert_eq!(small.instance(1).unwrap().id, 6);
    }

    /// What NVIDIA's MIG User Guide and users show of `nvidia-smi mig -cgi`: profiles, then the ids.
    #[test]
    fn without_a_placement_the_driver_has_its_order() {
        for (profiles, ids) in [
            (&[19; 7][..], &[13, 11, 12, 7, 8, 9, 10][..]),
            (&[14, 14, 14, 20], &[5, 3, 4, 13]),
            (&[19, 14, 5], &[13, 5, 1]),
            (&[9, 19, 14, 19], &[2, 7, 4, 8]),
            // 3g.40gb comes last and finds no room.
            (&[19, 19, 14, 9], &[13, 11, 3]),
        ] {
            let mut gpu = gpu();
            let made = profiles.iter().zip(0..).filter_map(|(&profile, serial)| {
                gpu.create_instance(&A100_80, profile, None, serial).ok()?;
                Some(gpu.instance(serial)?.id)
            });
            assert_eq!(made.collect::<Vec<u32>>(), ids, "{profiles:?}");
        }
    }

    #[test]
    fn only_listed_placements_are_taken() {
        let mut gpu = gpu();
        for (profile, start) in [(9, 2), (14, 1), (15, 7), (0, 4), (77, 0)] {
            let refused = gpu.create_instance(&A100_80, profile, Some(start), 1);
            assert_eq!(refused, Err(Refusal::Invalid), "{profile} at {start}");
        }
        gpu.create_instance(&A100_80, 14, Some(2), 1).unwrap();
        assert_eq!(
            gpu.create_instance(&A100_80, 9, Some(0), 2),
            Err(Refusal::NoRoom)
        );
        assert_eq!(gpu.create_instance(&A100_80, 9, None, 2), Ok(2));
        assert_eq!(gpu.instance(2).unwrap().start, 4);
    }

    #[test]
    fn one_media_instance_only_and_nothing_without_mig_mode() {
        let mut gpu = gpu();
        gpu.create_instance(&H100_80, 20, None, 1).unwrap();
        assert_eq!(
            gpu.create_instance(&H100_80, 20, None, 2),
            Err(Refusal::NoRoom)
        );
        let mut off = Gpu::default();
        assert_eq!(
            off.create_instance(&H100_80, 19, None, 1),
            Err(Refusal::NotSupported)
        );
    }

    #[test]
    fn compute_instances_share_their_gpu_instance() {
        let mut gpu = gpu();
        gpu.create_instance(&H100_80, 9, Some(0), 1).unwrap();
        gpu.create_compute(&H100_80, 1, 0, None, 2).unwrap();
        gpu.create_compute(&H100_80, 1, 0, None, 3).unwrap();
        assert_eq!(
            gpu.create_compute(&H100_80, 1, 1, None, 4),
            Err(Refusal::NoRoom)
        );
        gpu.create_compute(&H100_80, 1, 0, None, 4).unwrap();
        assert_eq!(
            gpu.create_compute(&H100_80, 1, 0, None, 5),
            Err(Refusal::NoRoom)
        );
        assert_eq!(
            gpu.create_compute(&H100_80, 1, 3, None, 5),
            Err(Refusal::Invalid)
        );
        assert_eq!(gpu.destroy_instance(1), Err(Refusal::InUse));
        for serial in [2, 3, 4] {
            gpu.destroy_compute(serial).unwrap();
        }
        gpu.create_compute(&H100_80, 1, 2, None, 6).unwrap();
        assert_eq!(gpu.destroy_instance(1), Err(Refusal::InUse));
        gpu.destroy_compute(6).unwrap();
        gpu.destroy_instance(1).unwrap();
        assert_eq!(gpu.destroy_instance(1), Err(Refusal::Invalid));
    }
}
