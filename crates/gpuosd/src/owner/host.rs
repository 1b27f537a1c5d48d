//! What becomes of what the host shows.

use std::collections::BTreeMap;
use std::time::Instant;

use gpuos_core::health::{Event, Signal};
use gpuos_host::hardware::discover::PciPlace;
use gpuos_host::hardware::kernel_log::KernelXid;

use super::Owner;
use crate::gpus::Found;
use crate::host::Told;

impl Owner {
    pub(super) fn host(&mut self, told: Told) {
        match told {
            Told::Round(round) => {
                let place = |gpu: &Found| Some((gpu.gres, self.hardware.place(&gpu.pci)?));
                let gpus: Vec<(u8, &PciPlace)> = self.found.iter().filter_map(place).collect();
                for event in self.links.events(&round, &gpus) {
                    self.apply(event);
                }
            }
            Told::Xids(xids) => {
                for xid in xids {
                    self.logged(xid);
                }
            }
            Told::Hardware(found) => {
                let lines = self.hardware.found(found);
                differs(&lines);
            }
        }
    }

    fn logged(&mut self, xid: KernelXid) {
        let mut all = self.found.iter().chain(&self.pooled);
        let gpu = all.find(|gpu| xid.is_of(&gpu.pci));
        match gpu.map(|gpu| gpu.gres) {
            Some(gpu) => {
                let known = self.has_rule(xid.code);
                self.kernel.by_kernel(gpu, xid, known, Instant::now());
            }
            None => {
                let Some(unsaid) = self.strangers.came(Instant::now()) else {
                    return;
                };
                let more = match unsaid {
                    0 => String::new(),
                    more => format!(" (and {more} more of such lines since it was said last)"),
                };
                tracing::warn!(
                    "the kernel's log has Xid {} of the GPU at PCI {}, which is none that gpuosd knows{more}",
                    xid.code,
                    xid.pci
                );
            }
        }
    }

    fn has_rule(&self, code: u32) -> bool {
        self.rules.of(Signal::Xid(code)).is_some()
    }

    /// NVML's Xids are noted, so that the same one in the kernel's log does not count.
    pub(super) fn note_xid(&mut self, event: &Event) {
        if let Event::Xid { gpu, code, .. } = event {
            let known = self.has_rule(*code);
            self.kernel.by_library(*gpu, *code, known, Instant::now());
        }
    }

    /// Xids of the kernel's log that NVIDIA's library did not tell.
    pub(super) fn late_xids(&mut self) {
        for event in self.kernel.due(Instant::now()) {
            self.apply(event);
        }
        let unconfirmed = self.health.unconfirmed();
        self.trouble("kernel-log", unconfirmed);
    }
}

/// Says where the hardware is not what is configured.
pub(super) fn differs(lines: &[String]) {
    for line in lines {
        tracing::warn!("{line}");
    }
}

/// `8 x NVIDIA H100` and the like, for the log.
pub(super) fn names(found: &[Found]) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for gpu in found {
        *counts.entry(&gpu.name).or_default() += 1;
    }
    let each = counts
        .iter()
        .map(|(name, count)| format!("{count} x {name}"));
    each.collect::<Vec<_>>().join(", ")
}
