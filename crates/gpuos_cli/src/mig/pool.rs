//! The slices of the cluster as Slurm's records have them, in the pool that slurmctld decides with.

use anyhow::{Result, bail};
use gpuos_config::options::{parse_gres, parse_mig};
use gpuos_core::health::ExtraPart;
use gpuos_host::slurm::site::{Site, options_in_words, switchable};
use gpuos_host::slurm::{Job, NodeRecord};
use gpuos_model::gpu_index::{NvmlIndex, PoolGpu, PoolSet};
use gpuos_model::gpuset::GpuSet;
use gpuos_placement::explain::Note;
use gpuos_placement::mig::{Ask, Pool};
use gpuos_placement::plan::Request;

/// A running job with slices of a node, or with a MIG-switchable GPU.
pub struct Tenant<'a> {
    /// The job.
    pub job: &'a Job,
    /// Its bits of GRES `gpuos` there.
    pub bits: u64,
    /// Slices of MIG-switchable GPUs, and which it has whole.
    pub whole: u64,
}

impl Tenant<'_> {
    /// Slices that nobody else can have.
    pub fn taken(&self) -> u64 {
        self.bits | self.whole
    }
}

/// Slices, by node.
pub struct Slices<'a> {
    /// The cluster.
    pub site: &'a Site,
    /// What decides.
    pub pool: Pool,
    /// By node of the site: its number in the pool, or why its slices are for nobody.
    pub numbers: Vec<Result<u32, String>>,
    /// By node of the site.
    pub tenants: Vec<Vec<Tenant<'a>>>,
    /// Jobs that run and wait and count for the mix.
    pub mix: usize,
}

impl<'a> Slices<'a> {
    /// What is free, from the records of nodes and jobs.
    ///
    /// # Errors
    /// No GPU of the cluster is divided, or gpuos.toml describes boards that cannot be.
    pub fn read(site: &'a Site, jobs: &'a [Job]) -> Result<Slices<'a>> {
        let mig = &site.config.mig;
        if mig.pools.is_empty() {
            bail!("no GPU of this cluster is divided: gpuos.toml has no [[mig.pool]]");
        }
        let boards = mig.boards.iter().map(|board| board.geometry.clone());
        let mut pool = Pool::new(boards.collect())?;
        let numbers = site.nodes.iter().map(|node| number(site, &mut pool, node));
        let numbers: Vec<Result<u32, String>> = numbers.collect();
        let mut slices = Slices {
            site,
            numbers,
            tenants: site.nodes.iter().map(|_| Vec::new()).collect(),
            mix: 0,
            pool,
        };
        for job in jobs.iter().filter(|job| job.is_running()) {
            slices.runs(job);
        }
        for job in jobs
            .iter()
            .filter(|job| job.is_running() || job.is_pending())
        {
            slices.arrives(job);
        }
        for node in 0..site.nodes.len() {
            slices.see(node, 0);
        }
        Ok(slices)
    }

    fn runs(&mut self, job: &'a Job) {
        for part in &job.allocations {
            let (bits, gpus) = (part.slices.0, GpuSet(part.gpus.0 | part.shared.0));
            for node in self.site.indices(&part.nodes).0 {
                let node = node as usize;
                let whole = self.whole(node, gpus);
                if bits | whole != 0 {
                    self.tenants[node].push(Tenant { job, bits, whole });
                }
            }
        }
        self.holds(job);
    }

    /// The pool knows of a running job's instances.
    pub fn holds(&mut self, job: &Job) {
        let mut on = Vec::new();
        let parts = job.allocations.iter();
        for part in parts.filter(|part| !part.slices.is_empty()) {
            let nodes = self.site.indices(&part.nodes).0.into_iter();
            let numbers = nodes.filter_map(|node| self.numbers[node as usize].clone().ok());
            on.extend(numbers.map(|number| (number, part.slices.0)));
        }
        let Some((_, bits)) = on.first() else {
            return;
        };
        if let Some(ask) = asked(&self.pool, job, u64::from(bits.count_ones())) {
            self.pool.holds(job.id, &ask, on);
        }
    }

    /// Counts for the mix, as slurmctld counts a job when it meets it.
    fn arrives(&mut self, job: &Job) {
        let asked_for = parse_gres("TRES", &job.tres_per_node).unwrap_or_default();
        let slices = asked_for.iter().filter(|gres| gres.name == "gpuos");
        let slices: u64 = slices.map(|gres| gres.count).sum();
        let ask = (slices > 0)
            .then(|| asked(&self.pool, job, slices))
            .flatten();
        if let Some(ask) = ask {
            self.mix += 1;
            self.pool.arrives(&ask, job.min_nodes);
        }
    }

    /// Has the pool look at a node of the site with these slices free besides those that are; its number there.
    pub fn see(&mut self, node: usize, freed: u64) -> Option<u32> {
        let number = *self.numbers[node].as_ref().ok()?;
        let taken = self.taken(node) & !freed;
        let out = out_of_service(self.site, &self.site.nodes[node]);
        self.pool.see(number, taken, out);
        Some(number)
    }

    /// Slices of a node that running jobs have, also those of MIG-switchable GPUs that are whole, and those of jobs that
    /// slurmctld does not show to who asks.
    pub fn taken(&self, node: usize) -> u64 {
        let record = &self.site.nodes[node];
        // Some releases name no GPUs of a job.
        let used = self.whole(node, record.gpus_used) | record.slices_used.0;
        let own = self.tenants[node].iter();
        own.fold(used, |all, one| all | one.taken())
    }

    /// Slices of those of these GPUs, by their numbers in GRES `gpu`, that are MIG-switchable.
    fn whole(&self, node: usize, gpus: GpuSet) -> u64 {
        let own = self.site.config.mig.pool_of(&self.site.nodes[node].name);
        own.map_or(0, |own| switchable::slices_of(own, gpus))
    }

    /// Has the pool look at a node of the site with these slices taken besides.
    pub fn see_with(&mut self, node: usize, more: u64) {
        if let Ok(number) = self.numbers[node] {
            let taken = self.taken(node) | more;
            let out = out_of_service(self.site, &self.site.nodes[node]);
            self.pool.see(number, taken, out);
        }
    }

    /// Free slices of a node, GPU by GPU.
    pub fn free(&self, node: usize) -> Vec<(NvmlIndex, Vec<u8>)> {
        let record = &self.site.nodes[node];
        let Some((own, board)) = self.site.config.mig.pool_of(&record.name) else {
            return Vec::new();
        };
        let (taken, slices) = (self.taken(node), board.geometry.slices());
        let out = out_of_service(self.site, record);
        let of = |nth: usize| {
            let free =
                |slice: &u8| taken >> (nth * usize::from(slices) + usize::from(*slice)) & 1 == 0;
            (0..slices).filter(free).collect::<Vec<u8>>()
        };
        let each = own.gpus.iter().enumerate();
        let each = each.filter(|(nth, _)| {
            (nth + 1) * usize::from(slices) <= u64::BITS as usize && !out.0.contains(*nth)
        });
        each.map(|(nth, gpu)| (gpu, of(nth))).collect()
    }
}

/// A node's number in the pool, or why it has none; as select_gpuos says it in slurmctld's log.
fn number(site: &Site, pool: &mut Pool, node: &NodeRecord) -> Result<u32, String> {
    let (own, _) = site
        .config
        .mig
        .pool_of(&node.name)
        .ok_or("in no [[mig.pool]]")?;
    let number = pool
        .add_node(own.board, own.gpus.len())
        .ok_or("more slices than gpuos steers on a node")?;
    let count: usize = node.slices.iter().map(|(_, count)| count).sum();
    match count == pool.slices_of(number) {
        true => Ok(number),
        false => Err(format!(
            "slurm.conf has {count} slices of GRES gpuos, [[mig.pool]] makes {}",
            pool.slices_of(number)
        )),
    }
}

/// What a job asked for that has so many slices of each node: by its note, else by its command line, else by their
/// number alone.
pub fn asked(pool: &Pool, job: &Job, slices: u64) -> Option<Ask> {
    let noted = Note::parse(&job.system_comment).and_then(|note| parse_mig(&note.mig?).ok());
    let said = || options_in_words(job.submit_line.split_whitespace()).mig;
    let request = noted.or_else(said);
    let ask = request.and_then(|request| Ask::of_request(&request, pool, slices));
    ask.or_else(|| Ask::of_slices(pool, slices))
}

/// What a node has too little of beside slices, in words.
pub fn lacks(site: &Site, request: &Request, record: &NodeRecord) -> Option<String> {
    let cpus = record.cpus.saturating_sub(record.cpus_allocated);
    if cpus < request.cpus_per_node {
        return Some(format!(
            "{cpus} CPUs free, {} needed",
            request.cpus_per_node
        ));
    }
    let memory = record
        .memory_mib
        .saturating_sub(record.memory_allocated_mib);
    let needed = request.memory_mib_per_node;
    (site.memory_counts() && memory < needed)
        .then(|| format!("{memory} MiB of memory free, {needed} needed"))
}

/// GPUs of a node's pool that get no jobs, those that its `Extra` names.
pub fn out_of_service(site: &Site, node: &NodeRecord) -> PoolSet {
    let Some((own, _)) = site.config.mig.pool_of(&node.name) else {
        return PoolSet::EMPTY;
    };
    let out = ExtraPart::read(&node.extra).0.pool_out;
    // A MIG-switchable one is known by its number in GRES gpu.
    let gpus = node.gpus_out();
    let is_out = |nvml: NvmlIndex| match own.whole(nvml) {
        Some(number) => number.is_in(gpus),
        None => out.contains(&nvml),
    };
    let each = own.gpus.iter().enumerate();
    let each = each.filter(|(_, nvml)| is_out(*nvml));
    each.filter_map(|(nth, _)| PoolGpu::new(nth)).collect()
}
