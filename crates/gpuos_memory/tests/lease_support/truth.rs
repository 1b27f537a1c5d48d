//! What really lies where, and who was told what: an independent ledger, checked at every step.

use std::collections::{BTreeMap, BTreeSet};

use gpuos_memory::lease::{ClientId, GpuId, JobId, JobSpec, Supply};

/// Bytes of one process, as they lie.
#[derive(Clone, Default, Debug)]
pub struct Bytes {
    pub hbm: BTreeMap<GpuId, u64>,
    pub host: u64,
    pub nvme: u64,
}

impl Bytes {
    /// What lies in GPU memory.
    pub fn in_hbm(&self) -> u64 {
        self.hbm.values().sum()
    }
}

/// The ledger.
#[derive(Default)]
pub struct Truth {
    pub supply: Supply,
    pub jobs: BTreeMap<JobId, JobSpec>,
    /// Whose a process is.
    pub of: BTreeMap<ClientId, JobId>,
    /// What lies where.
    pub bytes: BTreeMap<ClientId, Bytes>,
    /// GPU memory that a process may use, from when it is told until it has given it away.
    pub told: BTreeMap<(ClientId, GpuId), u64>,
    /// What it has of GPU and host memory, by what it was answered.
    pub has: BTreeMap<(ClientId, GpuId), (u64, u64)>,
    /// It may use its GPUs, by what it was told last.
    pub works: BTreeMap<ClientId, bool>,
    /// Until when it has to have parked or be back.
    pub until: BTreeMap<ClientId, u64>,
    /// It was told to go to NVMe, and is not back since. What one that is dead was told holds for its job until another one is back: the others
    /// may have had nothing on a GPU, so that none of them was told.
    pub stowed: BTreeMap<ClientId, JobId>,
    /// It has no connection, so nothing can be said to it.
    pub away: BTreeSet<ClientId>,
}

fn bound(what: &str, is: u64, most: u64) -> Result<(), String> {
    match is > most {
        true => Err(format!("{what}: {is} of {most}")),
        false => Ok(()),
    }
}

impl Truth {
    /// A process is dead.
    pub fn dead(&mut self, client: ClientId) {
        self.of.remove(&client);
        self.bytes.remove(&client);
        self.told.retain(|(it, _), _| *it != client);
        self.has.retain(|(it, _), _| *it != client);
        self.works.remove(&client);
        self.until.remove(&client);
        self.away.remove(&client);
    }

    /// It is not on NVMe, nor on its way there.
    pub fn is_back(&mut self, client: ClientId) {
        let (of, job) = (&self.of, self.of.get(&client));
        self.stowed
            .retain(|it, its| *it != client && (Some(&*its) != job || of.contains_key(it)));
    }

    /// Nobody has of what the workload manager counts more than it gave him.
    fn counted(&self) -> Result<(), String> {
        let mut beyond = 0;
        let jobs: BTreeSet<JobId> = self.of.values().copied().collect();
        for job in jobs {
            let own = self.bytes.iter();
            let own = own.filter(|(it, _)| self.of.get(it) == Some(&job));
            let own: u64 = own.map(|it| it.1.nvme).sum();
            // Of one that is over nothing is given to others before its processes are dead.
            let given = self.jobs.get(&job).map_or(own, |spec| spec.nvme);
            beyond += own.saturating_sub(given);
        }
        let free = self.supply.nvme.saturating_sub(self.supply.nvme_counted);
        bound("NVMe that is not counted", beyond, free)
    }

    /// All laws.
    pub fn check(&self, now: u64, slack: u64) -> Result<(), String> {
        for (gpu, present) in &self.supply.gpus {
            let told = self.told.iter().filter(|((_, it), _)| it == gpu);
            bound(
                &format!("HBM of GPU {} promised", gpu.0),
                told.map(|it| *it.1).sum(),
                *present,
            )?;
            let lies = self.bytes.values().filter_map(|it| it.hbm.get(gpu));
            bound(&format!("HBM of GPU {}", gpu.0), lies.sum(), *present)?;
            self.one_holder(*gpu, *present)?;
        }
        let sum = |what: fn(&Bytes) -> u64| self.bytes.values().map(what).sum::<u64>();
        bound("host memory", sum(|it| it.host), self.supply.host)?;
        bound("NVMe", sum(|it| it.nvme), self.supply.nvme)?;
        self.counted()?;
        for (job, spec) in &self.jobs {
            let own = self
                .bytes
                .iter()
                .filter(|(it, _)| self.of.get(it) == Some(job));
            let host = own.map(|it| it.1.host).sum();
            bound(&format!("host memory of job {}", job.0), host, spec.host)?;
            for (gpu, _) in &self.supply.gpus {
                let own = self
                    .has
                    .iter()
                    .filter(|((client, it), _)| it == gpu && self.of.get(client) == Some(job));
                let (hbm, all) =
                    own.fold((0, 0), |sum, (_, it)| (sum.0 + it.0, sum.1 + it.0 + it.1));
                let its = spec.gpus.contains(gpu);
                let [most, grant] = if its {
                    [spec.hbm_per_gpu, spec.bytes_per_gpu]
                } else {
                    [0, 0]
                };
                bound(&format!("HBM of job {}", job.0), hbm, most)?;
                bound(&format!("memory of job {}", job.0), all, grant)?;
            }
        }
        for (client, until) in &self.until {
            if now > until.saturating_add(slack) {
                return Err(format!(
                    "process {} lives although it is deaf since {until}, now {now}",
                    client.0
                ));
            }
        }
        Ok(())
    }

    /// Where jobs in turns do not fit beside each other, one of them works.
    fn one_holder(&self, gpu: GpuId, present: u64) -> Result<(), String> {
        let mut jobs: BTreeMap<JobId, (u64, bool, bool)> = BTreeMap::new();
        let mut fixed = 0;
        for ((client, on), (hbm, _)) in &self.has {
            let Some(spec) = self.of.get(client).and_then(|job| self.jobs.get(job)) else {
                continue;
            };
            if *on == gpu && !spec.timeslice {
                fixed += hbm;
            } else if *on == gpu && *hbm > 0 {
                let works = self.works.get(client).copied().unwrap_or(false);
                let job = jobs.entry(spec.job).or_default();
                job.0 += hbm;
                job.1 |= works && !self.away.contains(client);
                job.2 = self.stowed.values().any(|it| *it == spec.job);
            }
        }
        let there = || jobs.values().filter(|it| !it.2);
        let all: u64 = there().map(|it| it.0).sum();
        let work = there().filter(|it| it.1).count();
        match work > 1 && all + fixed > present {
            true => Err(format!("GPU {} has {work} holders", gpu.0)),
            false => Ok(()),
        }
    }
}
