//! What the host shows beside its GPUs, and what the kernel's log has of them.

use gpuos_config::gpuos_toml::Config;
use gpuos_core::health::Event;
use gpuos_host::hardware::discover::PciPlace;
use gpuos_host::hardware::kernel_log::KernelXid;
use gpuos_model::node_gpu::NodeGpu;
use gpuos_workload::node::NodeRecord;

use super::effect::{Effect, Effects, Now};
use super::gpus::Gpus;
use super::health::Health;
use crate::gpus::GpuIdentity;
use crate::host::Notice;
use crate::host::hardware::Hardware;
use crate::host::kernel::{Second, Strangers};
use crate::host::links::Links;

/// Links, the kernel's log, and what the node is made of.
#[derive(Default)]
pub struct Host {
    links: Links,
    kernel: Second,
    /// GPUs of the kernel's log that nobody knows.
    strangers: Strangers,
    hardware: Hardware,
}

impl Host {
    /// The thread has seen something.
    pub fn on_notice(
        &mut self,
        told: Notice,
        (gpus, health): (&Gpus, &Health),
        now: Now,
    ) -> Effects {
        let mut fx = Effects::default();
        match told {
            Notice::Round(round) => {
                let place = |gpu: &GpuIdentity| Some((gpu.number, self.hardware.place(&gpu.pci)?));
                let gpus: Vec<(NodeGpu, &PciPlace)> =
                    gpus.found().iter().filter_map(place).collect();
                for event in self.links.events(&round, &gpus) {
                    fx.push(Effect::Rules(event));
                }
            }
            Notice::Xids(xids) => {
                for xid in xids {
                    self.logged(xid, (gpus, health), now);
                }
            }
            Notice::Hardware(found) => differs(&self.hardware.found(found)),
        }
        fx
    }

    fn logged(&mut self, xid: KernelXid, (gpus, health): (&Gpus, &Health), now: Now) {
        let gpu = gpus.all().find(|gpu| xid.is_of(&gpu.pci));
        match gpu.map(|gpu| gpu.number) {
            Some(gpu) => {
                let known = health.has_rule(xid.code);
                self.kernel.by_kernel(gpu, xid, known, now.at);
            }
            None => {
                let Some(unsaid) = self.strangers.came(now.at) else {
                    return;
                };
                let more = match unsaid {
                    0 => String::new(),
                    more => format!(" (and {more} more of such lines since it was said last)"),
                };
                tracing::warn!(
                    "the kernel's log has Xid {} of the GPU at PCI {}, which gpuosd does not know{more}",
                    xid.code,
                    xid.pci
                );
            }
        }
    }

    /// The rules are told something. NVML's Xids are noted, so that the same one in the kernel's log does not count.
    pub fn on_health_event(&mut self, event: &Event, health: &Health, now: Now) {
        if let Event::Xid { gpu, code, .. } = event {
            let known = health.has_rule(*code);
            self.kernel.by_library(*gpu, *code, known, now.at);
        }
    }

    /// Xids of the kernel's log that NVIDIA's library did not tell.
    pub fn tick(&mut self, now: Now) -> Effects {
        let mut fx = Effects::default();
        for event in self.kernel.due(now.at) {
            fx.push(Effect::Rules(event));
        }
        fx
    }

    /// slurmctld has shown the node.
    pub fn shown(&mut self, record: &NodeRecord) {
        differs(&self.hardware.shown(record));
    }

    /// gpuos.toml was read.
    pub fn configured(&mut self, config: Box<Config>) {
        differs(&self.hardware.configured(config));
    }
}

/// Says where the hardware is not what is configured.
fn differs(lines: &[String]) {
    for line in lines {
        tracing::warn!("{line}");
    }
}
