//! What the broker is told of the machine: how host memory is doing, what of GPUs others use who ask nobody, whose jobs are guaranteed what,
//! and what moves may take of links.

use std::collections::{BTreeMap, BTreeSet};

use gpuos_config::gpuos_toml::{MemoryConfig, MemoryShare};
use gpuos_core::isolation::Process;
use gpuos_core::job::JobId;
use gpuos_memory::lease::{
    AccountId, ClientId, GpuId, Input, JobId as Number, Place, Record, Share, Supply,
};
use gpuos_memory::protocol::ToProgram;
use gpuos_model::gpu_index::GresGpu;
use gpuos_workload::job::Job;

use super::super::effect::{Effect, Effects};
use super::super::facts::Facts;
use super::jobs::{Before, named_by, number};
use super::without::{self, Without};
use super::{Lent, Memory, uuid};
use crate::memory::pressure::{Order, Seen};
use crate::memory::programs;
use crate::memory::watch;
use crate::queue::Task;

/// What there is of memory is told in steps of so many bytes: what a driver keeps for contexts changes all the time.
const STEP: u64 = 64 << 20;

/// What is known of the machine, and was told of it.
#[derive(Debug, Default)]
pub struct Machine {
    config: MemoryConfig,
    /// Who is looked at.
    order: Order,
    /// What was seen last.
    pub seen: Seen,
    /// Somebody has looked.
    looked: bool,
    /// Host memory that may be lent, as far as what others use is known.
    pub lendable: Option<u64>,
    /// What drivers had when nothing was lent.
    pub drivers: u64,
    /// Of each GPU, what others use who have no lease there.
    pub others: BTreeMap<GpuId, u64>,
    /// Of all GPUs together, what processes with leases use, contexts too, as it was seen before the driver took it.
    pub used: BTreeMap<ClientId, u64>,
    /// Processes that should have asked and have not.
    pub(super) without: Without,
    /// What programs were told that they may move over a link for which nobody waits, in bytes a second.
    budgets: BTreeMap<(ClientId, GpuId), u64>,
}

impl Machine {
    /// The share that counts for a job, by slurmctld's record of it.
    pub fn share_of(&self, record: &Job) -> Option<&MemoryShare> {
        let Job {
            account,
            partitions,
            qos,
            ..
        } = record;
        self.config.share_of(account, partitions, qos)
    }
}

/// What processes with leases (`has`) use of GPUs, by what was known and what is seen now. Of those that the driver has NVML shows nothing or
/// a part, and it may miss others: what is known of them stays.
fn in_use(
    before: &BTreeMap<ClientId, u64>,
    mut seen: BTreeMap<ClientId, u64>,
    by_driver: &BTreeSet<ClientId>,
    has: &BTreeSet<ClientId>,
) -> BTreeMap<ClientId, u64> {
    seen.retain(|client, bytes| *bytes > 0 && !by_driver.contains(client));
    for (client, bytes) in before.iter().filter(|(client, _)| has.contains(client)) {
        seen.entry(*client).or_insert(*bytes);
    }
    seen
}

/// The broker's number of a share.
pub fn account(share: &MemoryShare) -> AccountId {
    AccountId(share.number())
}

impl Memory {
    /// gpuos.toml was read. Jobs keep the share that they began with, and its sizes are the new ones at once.
    pub fn configured(&mut self, config: &MemoryConfig, on: &Facts<'_>, fx: &mut Effects) {
        let mut tell: BTreeMap<AccountId, Share> = BTreeMap::new();
        for gone in &self.machine.config.shares {
            tell.insert(account(gone), Share::default());
        }
        for share in &config.shares {
            let sizes = Share {
                guaranteed: share.guaranteed_mib << 20,
                at_most: share.at_most_mib.map_or(u64::MAX, |mib| mib << 20),
            };
            tell.insert(account(share), sizes);
        }
        self.machine.config = config.clone();
        // Contexts of programs stay on a GPU that jobs have in turns.
        let bytes = u64::from(config.reserve_mib) << 20;
        self.step(Input::Reserve(bytes), on, fx);
        self.step(Input::Checkpoints(config.driver_checkpoint), on, fx);
        for (account, sizes) in tell {
            self.step(Input::Account(account, sizes), on, fx);
        }
        let marks = Input::Marks {
            high: u64::from(config.pressure_begins) * 10,
            low: u64::from(config.pressure_ends) * 10,
            stalled: config.stalled_begins * 10,
        };
        self.step(marks, on, fx);
        let turns = Input::Turns {
            quantum_ms: config
                .turn_seconds
                .map_or(self.turn_ms, |s| u64::from(s) * 1000),
            work_ms: u64::from(config.switch_seconds) * 1000,
        };
        self.step(turns, on, fx);
    }

    /// What the node has, whenever it is something else.
    pub(super) fn supply(&mut self, on: &Facts<'_>, fx: &mut Effects) {
        let numbers = (0..).map_while(GresGpu::new);
        let gpus = numbers.zip(&on.health.gpus).filter_map(|(number, gpu)| {
            let total = gpu.last.as_ref()?.memory_total_mib?;
            Some((GpuId(number.index() as u32), total << 20))
        });
        self.cards.extend(gpus);
        let others = |gpu: &GpuId| self.machine.others.get(gpu).copied().unwrap_or(0);
        let cards = self.cards.iter();
        let gpus = cards.map(|(gpu, all)| (*gpu, all.saturating_sub(others(gpu))));
        let (host, nvme) = (self.machine.lendable.unwrap_or(self.host), self.nvme.bytes);
        // One that does not answer for a moment is not gone: it is among the cards still.
        let now = Supply {
            gpus: gpus.collect(),
            host,
            nvme,
            nvme_counted: self.nvme.counted.1,
        };
        if now.gpus.is_empty() || now == self.supply {
            return;
        }
        self.supply = now.clone();
        self.step(Input::Supply(now), on, fx);
        let Some(records) = self.restored.take() else {
            return;
        };
        // Reports may have come before it was known what there is.
        let waiting: BTreeSet<&JobId> = self.steps.keys().map(|id| &id.job).collect();
        for job in waiting {
            fx.ask_first(Task::Job(job.clone()));
        }
        let mut nameless = Vec::new();
        // Nobody has looked after these processes while gpuosd was away.
        for record in &records {
            match record {
                Record::Client(it) => {
                    fx.push(Effect::Programs(watch::Order::Watch(it.client)));
                    fx.push(Effect::Programs(watch::Order::Follow(it.client)));
                }
                Record::Job(spec) => {
                    let named = self.steps.keys().map(|id| &id.job);
                    let Some(job) = named_by(spec.job, named.chain(on.jobs.jobs.keys())) else {
                        // Nobody knows its name any more.
                        nameless.push(spec.job);
                        continue;
                    };
                    // One that the table has no more is told to be gone, below.
                    let uid = on.jobs.jobs.get(&job).map_or(u32::MAX, |held| held.uid);
                    let lent = Lent {
                        uid,
                        spec: None,
                        restarts: None,
                        before: Some(Before::of(spec)),
                        suspended: false,
                        may_requeue: true,
                    };
                    self.jobs.insert(job, lent);
                }
                Record::JobOver(_) | Record::Gone(_) => {}
            }
        }
        self.step(Input::Restored(records), on, fx);
        for job in nameless {
            self.step(Input::JobGone(job), on, fx);
        }
        self.keep_jobs(on, fx);
    }

    /// The thread that looks at host memory has looked.
    pub fn on_pressure(&mut self, seen: Seen, on: &Facts<'_>, fx: &mut Effects) {
        if self.leases().is_empty() {
            self.machine.drivers = seen.host.by_drivers;
        }
        self.machine.lendable = seen.host.all.map(|room| {
            let all = room.available.saturating_add(self.used(&seen));
            all.min(self.host) / STEP * STEP
        });
        let jobs = seen.jobs.values().filter_map(|memory| memory.stalled);
        // What others lose within limits of their own is no reason to take something from these.
        let host = seen.host.stalled.unwrap_or(0);
        let stalled = jobs.max().map_or(host, |jobs| jobs.min(host));
        let pressure = seen.host.tightest(&seen.near).map(|room| Input::Pressure {
            free: room.available,
            total: room.total,
            stalled,
        });
        for (job, memory) in &seen.jobs {
            let Some(limit) = memory.limit else {
                continue;
            };
            let told = Input::JobPressure {
                job: number(job),
                free: limit.saturating_sub(memory.used),
                total: limit,
                stalled: memory.stalled.unwrap_or(0),
            };
            self.step(told, on, fx);
        }
        // Who waits for memory is known then.
        if let Some(told) = pressure {
            self.step(told, on, fx);
        }
        self.machine.seen = seen;
        self.machine.looked = true;
        self.supply(on, fx);
    }

    /// Whether slurmctld is to know that the node is short of host memory: where the site has no jobs for which that matters it never is.
    /// `None`: nobody has looked since the start.
    pub fn is_short(&self) -> Option<bool> {
        let config = &self.machine.config;
        let matters = config.oversubscribe || config.turns > 0;
        (self.machine.looked).then(|| matters && self.broker.view().pressure)
    }

    /// Host memory that programs with leases use, as far as it is known: of a job what its control group has, and of all together what drivers
    /// have beside what they had when nothing was lent and what groups are charged for; not more than was promised.
    fn used(&self, seen: &Seen) -> u64 {
        let mut promised: BTreeMap<Number, u64> = BTreeMap::new();
        for client in self.broker.view().clients {
            let all = client.leases.iter();
            let all = all.map(|(_, lease)| lease.host.saturating_add(lease.refuge_host));
            *promised.entry(client.job).or_default() += all.sum::<u64>() + client.beyond;
        }
        let measured = |number: &Number| {
            let mut jobs = seen.jobs.iter();
            let own = jobs.find(|(job, _)| self::number(job) == *number);
            own.map_or(u64::MAX, |(_, memory)| memory.used)
        };
        let parts = promised
            .iter()
            .map(|(job, bytes)| measured(job).min(*bytes));
        let charged: u64 = parts.sum();
        let rest = promised.values().sum::<u64>().saturating_sub(charged);
        let kernel: u64 = seen.jobs.values().map(|job| job.kernel).sum();
        let drivers = seen.host.by_drivers.saturating_sub(self.machine.drivers);
        charged + drivers.saturating_sub(kernel).min(rest)
    }

    /// Processes were seen on GPUs: what those use who have no lease there is not promised to anybody. A program that was refused has the
    /// driver's own memory. Who has a lease may be beyond it for a moment, while it moves, and always is by its context.
    pub fn on_gpus(&mut self, seen: &[Process], on: &Facts<'_>, fx: &mut Effects) {
        let mut others: BTreeMap<GpuId, u64> = BTreeMap::new();
        let mut used: BTreeMap<ClientId, u64> = BTreeMap::new();
        let leases = self.leases();
        for process in seen {
            let client = programs::client(process.pid, process.started);
            let gpu = GpuId(process.gpu.index() as u32);
            match (process.memory_mib, leases.contains(&(client, gpu))) {
                (Some(mib), false) => *others.entry(gpu).or_default() += mib << 20,
                (Some(mib), true) => *used.entry(client).or_default() += mib << 20,
                (None, _) => {}
            }
        }
        without::look(self, seen, &leases, on, fx);
        let view = self.broker.view().clients.into_iter();
        let by_driver = view.filter(|it| it.by_driver).map(|it| it.client).collect();
        let has = leases.iter().map(|(client, _)| *client).collect();
        let before = std::mem::take(&mut self.machine.used);
        self.machine.used = in_use(&before, used, &by_driver, &has);
        self.measured(&before, on, fx);
        for bytes in others.values_mut() {
            *bytes = bytes.div_ceil(STEP) * STEP;
        }
        if others != self.machine.others {
            self.machine.others = others;
            self.supply(on, fx);
        }
    }

    /// Of processes that cannot be moved it was not known what they have, and the driver was not called.
    fn measured(&mut self, before: &BTreeMap<ClientId, u64>, on: &Facts<'_>, fx: &mut Effects) {
        let pinned = |client: &ClientId| self.holders.get(client).is_some_and(|it| it.pinned);
        let used = self.machine.used.iter();
        let new = used.filter(|(client, _)| !before.contains_key(client) && pinned(client));
        let new: Vec<(ClientId, u64)> = new.map(|(client, bytes)| (*client, *bytes)).collect();
        for (client, bytes) in new {
            self.step(Input::Pinned { client, bytes }, on, fx);
        }
    }

    /// Who has a lease of which GPU, also by a journal of before that the broker has not been given yet.
    fn leases(&self) -> BTreeSet<(ClientId, GpuId)> {
        let mut leases = BTreeSet::new();
        for record in self.restored.iter().flatten() {
            if let Record::Client(it) = record {
                leases.extend(it.leases.iter().map(|(gpu, _)| (it.client, *gpu)));
            }
        }
        for it in self.broker.view().clients {
            leases.extend(it.leases.iter().map(|(gpu, _)| (it.client, *gpu)));
        }
        leases
    }

    /// Has looked at whom there is now.
    pub(super) fn look(&mut self, on: &Facts<'_>, fx: &mut Effects) {
        let jobs = self.jobs.iter().map(|(job, lent)| (job.clone(), lent.uid));
        let mut order = Order {
            jobs: jobs.collect(),
            gpus: Vec::new(),
        };
        if !order.jobs.is_empty() {
            let found = on.gpus.found().iter();
            order.gpus = found.map(|gpu| gpu.pci.clone()).collect();
        }
        if order != self.machine.order {
            self.machine.order = order.clone();
            fx.push(Effect::LookAtMemory(order));
        }
    }

    /// Tells programs what they may move over links for which nobody waits, where that is something else than before: an equal part for each
    /// that works there.
    pub(super) fn share_links(&mut self, on: &Facts<'_>) {
        let mut works: BTreeMap<GpuId, Vec<ClientId>> = BTreeMap::new();
        for client in self.broker.view().clients {
            if client.place == Place::Resident {
                for (gpu, _) in &client.leases {
                    works.entry(*gpu).or_default().push(client.client);
                }
            }
        }
        let all = self.link / 100 * u64::from(self.machine.config.link_ahead);
        let mut budgets = BTreeMap::new();
        for (gpu, clients) in works {
            let each = all / clients.len().max(1) as u64;
            budgets.extend(clients.into_iter().map(|client| ((client, gpu), each)));
        }
        let before = std::mem::replace(&mut self.machine.budgets, budgets);
        for ((client, gpu), rate) in &self.machine.budgets {
            if before.get(&(*client, *gpu)) != Some(rate)
                && let Some(gpu) = uuid(*gpu, on)
            {
                self.say(*client, &ToProgram::Budget { gpu, rate: *rate });
            }
        }
    }

    /// A connection is new: what its program was told before does not count.
    pub(super) fn forget_budgets(&mut self, client: ClientId) {
        self.machine.budgets.retain(|(of, _), _| *of != client);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_driver_has_taken_is_known_still() {
        let of = |all: &[(u64, u64)]| -> BTreeMap<ClientId, u64> {
            let all = all.iter();
            all.map(|(client, bytes)| (ClientId(*client), *bytes))
                .collect()
        };
        let ids = |all: &[u64]| all.iter().map(|client| ClientId(*client)).collect();
        let before = of(&[(1, 10), (2, 20), (3, 30), (4, 40)]);
        // The driver has 1 and 2, and 5 since before this daemon was started. 3 was missed, 4 has no lease any more.
        let seen = of(&[(1, 0), (2, 7), (5, 3), (6, 60), (7, 0)]);
        let known = in_use(&before, seen, &ids(&[1, 2, 5]), &ids(&[1, 2, 3, 5, 6, 7]));
        assert_eq!(known, of(&[(1, 10), (2, 20), (3, 30), (6, 60)]));
        let later = in_use(&known, of(&[(1, 11)]), &ids(&[]), &ids(&[1, 6]));
        assert_eq!(later, of(&[(1, 11), (6, 60)]));
    }
}
