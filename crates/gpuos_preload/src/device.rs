//! A GPU: what is granted of it, and its physical memory in two tiers.

use std::collections::BTreeSet;

use gpuos_driver::{Access, Location, Prop, attribute};
use gpuos_memory::policy::Policy;
use gpuos_memory::staging::Staging;
use gpuos_memory::table::{ExtentId, State, Table, Tier};

use crate::driver::code;
use crate::lease;
use crate::process::{self, BLOCK};
use crate::range::{Extent, Range};
use crate::short;
use crate::spare::{Piece, Spare};
use crate::vmm::{self, Answer, Place};

/// Bytes that move at once, and room that is kept for it in host memory.
pub(crate) const BATCH: u64 = 256 << 20;

/// A GPU.
pub(crate) struct Device {
    pub(crate) table: Table,
    pub(crate) grant: u64,
    pub(crate) hbm: u64,
    /// Bytes of the driver's own allocations, which are small.
    pub(crate) small: u64,
    /// The nearest NUMA node.
    node: i32,
    /// Addresses at which extents are copied.
    pub(crate) scratch: Option<u64>,
    /// Other devices that have access to its memory.
    pub(crate) peers: BTreeSet<i32>,
    pub(crate) policy: Option<Box<dyn Policy + Send>>,
    /// What the program's kernels touch, where something lies in host memory.
    pub(crate) staging: Staging,
    /// Host memory that no extent is in.
    pub(crate) spare: Spare,
}

impl Device {
    /// What is granted of a device. `None`: its memory cannot be in tiers.
    pub(crate) fn open(device: i32) -> Option<Device> {
        let grant = process::grant()?;
        let has = |which| vmm::attribute(which, device).is_ok_and(|value| value != 0);
        if !has(attribute::VIRTUAL_MEMORY) || !has(attribute::VIRTUAL_MEMORY_OF_HOST) {
            process::say(format_args!(
                "GPU {device} cannot map host memory: its memory is the driver's alone"
            ));
            return None;
        }
        let node = vmm::attribute(attribute::HOST_NODE, device)
            .unwrap_or(0)
            .max(0);
        for place in [Place::Device(device), Place::Node(node)] {
            if !vmm::granularity(place).is_ok_and(|bytes| bytes > 0 && BLOCK.is_multiple_of(bytes))
            {
                process::say(format_args!(
                    "GPU {device} maps memory in pieces that are not 2 MiB: its memory is the driver's alone"
                ));
                return None;
            }
        }
        let total = vmm::total(device).ok()?;
        let (bytes, hbm, host) = match lease::of(device) {
            // gpuosd's word, whatever the environment says.
            Some(None) => return None,
            Some(Some(lease)) => {
                let hbm = lease.hbm.min(total);
                // The driver keeps some of what NVML shows.
                let bytes = lease.bytes - (lease.hbm - hbm);
                (bytes.min(grant.bytes), hbm, lease.host)
            }
            None => {
                let hbm = grant.hbm.unwrap_or(u64::MAX).min(grant.bytes).min(total);
                // What moves has room in both tiers meanwhile.
                (grant.bytes, hbm, grant.bytes - hbm + hbm.min(BATCH))
            }
        };
        Some(Device {
            table: Table::new(hbm / BLOCK, host.div_ceil(BLOCK)),
            grant: bytes,
            hbm,
            small: 0,
            node,
            scratch: None,
            peers: BTreeSet::new(),
            policy: None,
            staging: process::staging(),
            spare: Spare::default(),
        })
    }

    /// Addresses at which extents are mapped to be copied: two batches.
    pub(crate) fn scratch(&mut self) -> Option<u64> {
        if self.scratch.is_none() {
            self.scratch = vmm::reserve(2 * BATCH).ok();
        }
        self.scratch
    }

    /// Where a tier is.
    pub(crate) fn place(&self, device: i32, tier: Tier) -> Place {
        match tier {
            Tier::Hbm => Place::Device(device),
            Tier::Host => Place::Node(self.node),
        }
    }

    /// Physical memory of the GPU, as the program asked for it if it maps it itself.
    pub(crate) fn hbm_memory(&self, device: i32, bytes: u64, prop: Option<&Prop>) -> Answer<u64> {
        match prop {
            Some(prop) => vmm::create_as(bytes, prop),
            None => vmm::create(bytes, self.place(device, Tier::Hbm)),
        }
    }

    /// Physical memory of a tier, whose place there is in the books.
    pub(crate) fn memory(
        &mut self,
        device: i32,
        tier: Tier,
        bytes: u64,
        prop: Option<&Prop>,
    ) -> Answer<u64> {
        match tier {
            Tier::Hbm => self.hbm_memory(device, bytes, prop),
            Tier::Host => {
                let mut piece = self.host_memory(device, bytes)?;
                piece.unmap();
                Ok(piece.handle)
            }
        }
    }

    /// Blocks by which more of the GPU is used than is granted.
    pub(crate) fn over(&self) -> u64 {
        let granted = self.hbm.saturating_sub(self.small) / BLOCK;
        self.table.used(Tier::Hbm).saturating_sub(granted)
    }

    /// What the driver may still have of the GPU's memory for itself.
    pub(crate) fn left_native(&self) -> u64 {
        self.hbm.saturating_sub(self.small)
    }

    /// Small allocations take of the GPU's memory too.
    pub(crate) fn count_small(&mut self, more: u64, less: u64) {
        self.small = (self.small + more).saturating_sub(less);
        self.table
            .grant(Tier::Hbm, self.hbm.saturating_sub(self.small) / BLOCK);
    }

    /// The access to its allocations: its own and that of its peers.
    pub(crate) fn sharers(&self, device: i32) -> Vec<Access> {
        let all = std::iter::once(device).chain(self.peers.iter().copied());
        all.map(|device| Access {
            location: Location::device(device),
            flags: Access::READ_WRITE,
        })
        .collect()
    }

    /// Puts physical memory behind a range. What could not be is not in its extents.
    pub(crate) fn back(&mut self, start: u64, range: &mut Range) -> Answer<()> {
        let mut at = start;
        for id in range.kept.extents.clone() {
            let bytes = self.table.blocks(id).map_or(0, |blocks| blocks * BLOCK);
            let prop = range.held.as_ref().map(|held| held.prop);
            let handle = self.create(range.device, id, bytes, prop.as_ref())?;
            if range.held.is_none()
                && let Err(error) = vmm::map(at, bytes, handle, 0)
            {
                vmm::release(handle);
                return Err(error);
            }
            range.extents.push(Extent {
                at,
                bytes,
                handle,
                id,
                number: 0,
                aside: 0,
                stowed: None,
            });
            at += bytes;
        }
        match range.held {
            None => vmm::access(start, range.bytes, &self.sharers(range.device)),
            Some(_) => Ok(()),
        }
    }

    /// Physical memory for a new extent. The GPU may have less than was granted: then it is the host's.
    fn create(
        &mut self,
        device: i32,
        id: ExtentId,
        bytes: u64,
        prop: Option<&Prop>,
    ) -> Answer<u64> {
        let tier = match self.table.state(id) {
            Ok(State::Host) => Tier::Host,
            _ => Tier::Hbm,
        };
        if tier == Tier::Hbm {
            match self.hbm_memory(device, bytes, prop) {
                Err(code::OUT_OF_MEMORY) => {}
                created => return created,
            }
            let begun = self
                .table
                .begin(id, Tier::Host)
                .and_then(|_| self.table.end(id, true));
            begun.map_err(|_| code::OUT_OF_MEMORY)?;
        }
        self.memory(device, Tier::Host, bytes, None)
    }

    /// What of host memory is granted and in no extent.
    pub(crate) fn host_room(&self) -> u64 {
        self.table.room(Tier::Host) * BLOCK
    }

    /// Host memory for an extent whose place there is in the books: kept, or new.
    pub(crate) fn host_memory(&mut self, device: i32, bytes: u64) -> Answer<Piece> {
        if let Some(piece) = self.spare.take(bytes) {
            return Ok(piece);
        }
        self.keep_within();
        let place = self.place(device, Tier::Host);
        Piece::make(bytes, place).or_else(|error| {
            if self.spare.bytes() == 0 {
                return Err(error);
            }
            self.spare.shrink(0);
            Piece::make(bytes, place)
        })
    }

    /// What is kept is within what is granted.
    pub(crate) fn keep_within(&mut self) {
        let room = self.host_room();
        self.spare.shrink(room);
    }

    /// Keeps host memory that no extent has any more, where the process has that much and may.
    pub(crate) fn keep(&mut self, piece: Piece) {
        if !short::may_keep() || self.spare.bytes() + piece.bytes > self.host_room() {
            piece.give();
        } else {
            self.spare.put(piece);
        }
    }
}
