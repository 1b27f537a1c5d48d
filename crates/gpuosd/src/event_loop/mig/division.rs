//! Which GPUs are divided, or can be: `[[mig.pool]]` of gpuos.toml.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use gpuos_model::gpu_index::{GresGpu, NvmlIndex, NvmlSet};
use gpuos_model::node_gpu::NodeGpu;

use crate::event_loop::gpus::Gpus;
use crate::mig::pool::{Pool, Switchable};

/// A gres.conf that does not fit `switchable` is read again so often.
const RENEW_EVERY: Duration = Duration::from_secs(5);

/// The pool, as gpuos.toml had it when it could be read last.
#[derive(Default)]
pub struct Division {
    pool: Option<Pool>,
    /// The GPUs that are in MIG mode for good by NVML's index, and the MIG-switchable ones.
    fixed: NvmlSet,
    switchable: Switchable,
    /// gpuos.toml has been read.
    configured: bool,
    /// When gres.conf was to be read again last.
    renewed: Option<Instant>,
}

impl Division {
    /// As it was saved.
    pub fn restore(fixed: NvmlSet, switchable: Switchable) -> Division {
        Division {
            fixed,
            switchable,
            ..Division::default()
        }
    }

    /// gpuos.toml was read. Returns what was there before.
    pub fn set(&mut self, pool: Option<Pool>) -> Division {
        let switchable = pool
            .as_ref()
            .map(|pool| pool.switchable.clone())
            .unwrap_or_default();
        let gpus = pool.iter().flat_map(|pool| &pool.gpus);
        let fixed = gpus.filter(|gpu| !switchable.contains_key(gpu));
        let fixed = fixed.fold(NvmlSet::EMPTY, |all, gpu| all.with(*gpu));
        let now = Division {
            fixed,
            switchable,
            configured: true,
            renewed: self.renewed,
            pool,
        };
        std::mem::replace(self, now)
    }

    /// Whether the same GPUs are divided, and can be.
    pub fn has_same_gpus(&self, other: &Division) -> bool {
        (self.fixed, &self.switchable) == (other.fixed, &other.switchable)
    }

    /// The pool; none before gpuos.toml was read.
    pub fn pool(&self) -> Option<&Pool> {
        self.pool.as_ref()
    }

    /// GPUs that are in MIG mode for good, by NVML's index.
    pub fn fixed(&self) -> NvmlSet {
        self.fixed
    }

    /// The MIG-switchable ones, with their numbers in GRES `gpu`.
    pub fn switchable(&self) -> &Switchable {
        &self.switchable
    }

    /// Whether gpuos.toml has been read.
    pub fn is_configured(&self) -> bool {
        self.configured
    }

    /// A GPU by NVML's index, as people call it: one of GRES `gpu`, if it is MIG-switchable.
    pub fn number(&self, gpu: NvmlIndex) -> NodeGpu {
        let whole = self.switchable.get(&gpu);
        whole.map_or(NodeGpu::Pool(gpu), |gres| NodeGpu::Gres(*gres))
    }

    /// NVML's index of a GPU of the pool; `None`: it is none.
    pub fn index(&self, number: NodeGpu) -> Option<NvmlIndex> {
        let mut switchable = self.switchable.iter();
        match number {
            NodeGpu::Pool(gpu) => Some(gpu),
            NodeGpu::Gres(gres) => switchable
                .find(|(_, own)| **own == gres)
                .map(|(gpu, _)| *gpu),
        }
    }

    /// The numbers of the GPUs on which these bits lie.
    pub fn numbers(&self, pool: &Pool, bits: u64) -> Vec<NodeGpu> {
        let on = pool.gpus.iter().copied();
        let on = on.filter(|gpu| pool.all_bits(*gpu) & bits != 0);
        let on: BTreeSet<NodeGpu> = on.map(|gpu| self.number(gpu)).collect();
        on.into_iter().collect()
    }

    /// Whether a step with these GPUs of GRES `gpu` has to wait until they are whole. `asks`: it waits for an answer.
    pub fn concerns(&self, gpus: &[u8], asks: bool) -> bool {
        let switchable = |gpu: &u8| self.switchable.values().any(|one| u8::from(*one) == *gpu);
        gpus.iter().any(switchable) || asks && !self.configured
    }

    /// NVML's indexes of those of GPUs of GRES `gpu` that are MIG-switchable. `None`: the library has not shown which they are.
    pub fn whole_of(&self, gpus: &BTreeSet<GresGpu>, known: &Gpus) -> Option<BTreeSet<NvmlIndex>> {
        if self.switchable.is_empty() {
            return Some(BTreeSet::new());
        }
        let own = known
            .found()
            .iter()
            .filter(|gpu| gpu.number.gres().is_some_and(|gpu| gpus.contains(&gpu)));
        let switchable = own.map(|gpu| gpu.nvml);
        let switchable = switchable.filter(|gpu| self.switchable.contains_key(gpu));
        (!known.found().is_empty()).then(|| switchable.collect())
    }

    /// Where gres.conf does not number MIG-switchable GPUs as their place in gpuos.toml does: a sentence.
    pub fn misnumbered(&self, known: &Gpus) -> Option<String> {
        let mut wrong = self.switchable.iter().filter(|_| !known.found().is_empty());
        wrong.find_map(|(gpu, number)| misnumbered(*gpu, *number, known))
    }

    /// Why the mode of a GPU cannot be changed: it is not known which GPU it is.
    pub fn wrong(&self, gpu: NvmlIndex, known: &Gpus) -> Option<String> {
        match self.switchable.get(&gpu) {
            Some(number) => misnumbered(gpu, *number, known),
            None => Some(format!(
                "GPU {gpu} is not in `switchable` of gpuos.toml any more"
            )),
        }
    }

    /// Why a step with these GPUs of GRES `gpu` must not run: it is not known which GPUs they are.
    pub fn misnamed(&self, gpus: &BTreeSet<GresGpu>, known: &Gpus) -> Option<String> {
        let named = |(_, number): &(&NvmlIndex, &GresGpu)| {
            !known.found().is_empty() && gpus.contains(*number)
        };
        let mut named = self.switchable.iter().filter(named);
        named.find_map(|(gpu, number)| misnumbered(*gpu, *number, known))
    }

    /// Whether gres.conf is to be read again. `began`: when the daemon started.
    pub fn renews(&mut self, known: &Gpus, now: Instant, began: Instant) -> bool {
        let renewed = self.renewed.unwrap_or(began);
        let renews =
            now.duration_since(renewed) >= RENEW_EVERY && self.misnumbered(known).is_some();
        if renews {
            self.renewed = Some(now);
        }
        renews
    }
}

fn misnumbered(gpu: NvmlIndex, number: GresGpu, known: &Gpus) -> Option<String> {
    let found = known.found().iter().find(|found| found.nvml == gpu);
    let is = match found {
        Some(found) if found.number == NodeGpu::Gres(number) => return None,
        Some(found) => format!("by gres.conf it is {}", found.number),
        None => "gres.conf does not have it".into(),
    };
    Some(format!(
        "GPU {gpu} is in `switchable` of a [[mig.pool]] and therefore number {number} of GRES gpu, but {is}: list GRES gpu in \
         gres.conf by NVML's index without the GPUs that are in MIG mode for good; until then its MIG mode stays"
    ))
}
