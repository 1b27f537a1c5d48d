//! What the programs of a job load and find that have memory of their GPUs from gpuosd: more than whole GPUs have, or a part of one in turns. The same
//! as with Slurm, where spank_gpuos says it.
//!
//! All of it is in the hands of the job's user from then on, who could load the library himself: what a job really has gpuosd decides by what it
//! was told of the job.

use gpuos_config::options::{MemoryOption, MemoryPolicy, MemoryTiers};
use gpuos_core::limits::Share;
use gpuos_core::wire::{StepMemory, memory_socket};

use super::allocation::Allocation;
use super::event::{Edit, Event, env};
use super::memory;
use super::options::wish;
use super::resources::MPS;
use super::shares;

/// What programs load, and what they find.
const LD_PRELOAD: &str = "LD_PRELOAD";
const GRANT: &str = "GPUOS_MEM_GRANT";
const HBM: &str = "GPUOS_MEM_HBM";
const POLICY: &str = "GPUOS_MEM_POLICY";
const SOCKET: &str = "GPUOS_MEM_SOCKET";

/// What the programs of a job may use of each of its GPUs of this host.
pub(super) struct Granted {
    asked: MemoryOption,
    /// In turns with other jobs.
    pub(super) in_turns: bool,
}

impl Granted {
    /// What a job has by its share of a GPU, or by what it asks for of whole ones.
    pub(super) fn of(event: &Event) -> Option<Granted> {
        let allocation = Allocation::of(event, &event.job.exec_vnode).ok()?;
        let resources = &event.job.resources;
        let share = shares::wished(resources).filter(|_| allocation.has_parts());
        if let Some(mib) = share.and_then(Share::in_turns_mib) {
            let asked = MemoryOption {
                mib,
                // Parked it lies in host memory; while it works, in the GPU's alone.
                tiers: MemoryTiers::Hbm,
                policy: MemoryPolicy::default(),
            };
            return Some(Granted {
                asked,
                in_turns: true,
            });
        }
        // Nothing can be moved under it: who got around the check of pbs_server has none.
        let alone = wish(resources, MPS).is_none();
        let asked = memory::wished(resources).filter(|_| alone)?;
        allocation.has_whole().then_some(Granted {
            asked,
            in_turns: false,
        })
    }

    /// What gpuosd is told of it.
    pub(super) fn told(&self) -> StepMemory {
        StepMemory {
            bytes_per_gpu: self.asked.bytes(),
            timeslice: self.in_turns,
        }
    }

    /// Why the program has less, as its user is told.
    pub(super) fn without(&self, why: &str) -> String {
        match self.in_turns {
            true => format!(
                "the program takes no turns on its GPU, and may find less memory there than mem= says: {why}"
            ),
            false => format!(
                "the program may not get the memory beyond its GPUs that gpuos_mem says: {why}"
            ),
        }
    }

    /// What a program of such a job finds, and what its user is told besides.
    pub(super) fn variables(&self, event: &Event) -> (Vec<Edit>, Option<String>) {
        let library = &event.preload[..];
        if !is_path(library) {
            let what = match self.in_turns {
                true => {
                    "the program takes no turns on its GPU, and may use memory there that others count on"
                }
                false => "the program has no more memory than its GPUs",
            };
            let note = format!(
                "{what}: this host has no libgpuos_preload.so of gpuos; tell your administrator"
            );
            return (Vec::new(), Some(note));
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
        let bytes = self.asked.bytes().to_string();
        let edits = vec![
            env(LD_PRELOAD, &loaded.join(":")),
            env(GRANT, &bytes),
            // As much of it as the GPU has may lie there, whatever the job's user has in this variable; in turns it is there alone while it works.
            env(HBM, &bytes),
            env(POLICY, self.asked.policy.name()),
            env(SOCKET, &memory_socket(&event.gpuosd)),
        ];
        (edits, note)
    }
}

fn is_path(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._+-".contains(&byte);
    text.starts_with('/') && text.bytes().all(plain)
}
