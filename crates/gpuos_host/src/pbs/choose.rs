//! Which GPUs of a host a job of PBS has. PBS counts them; which ones they are the planner says, on this one host.

use gpuos_core::wire::{MomGpu, MomJob};
use gpuos_model::gpu_index::GresGpu;
use gpuos_model::gpuset::{GpuSet, MAX_GPUS};
use gpuos_model::node_types::NodeFacts;
use gpuos_pbs::links;
use gpuos_wlm::ask::{Ask, TOPOLOGY};
use gpuos_wlm::host::{Host, Short};
use serde::{Deserialize, Serialize};

/// GPUs that were chosen for a run of a job.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Choice {
    /// Which of its runs.
    pub(super) run: u64,
    /// Those that it has as a whole.
    pub(super) gpus: Vec<GresGpu>,
    /// The one of which it has parts, and how many.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) shared: Option<GresGpu>,
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) parts: u16,
}

impl Choice {
    /// All of them.
    pub(super) fn all(&self) -> impl Iterator<Item = GresGpu> {
        self.gpus.iter().copied().chain(self.shared)
    }
}

fn is_zero(number: &u16) -> bool {
    *number == 0
}

/// What another job has.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Holder {
    /// GPUs as a whole.
    pub(super) whole: GpuSet,
    /// GPUs of which it has parts, with how many; `None`: nobody says, so that it counts as having all.
    pub(super) parts: Vec<(GresGpu, Option<u16>)>,
    /// PBS has suspended it, and gives what it counts of it to others.
    pub(super) suspended: bool,
}

/// Why a job has no GPUs now.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Refusal {
    /// In a sentence.
    pub(super) why: String,
    /// What is described of the host does not fit what PBS counts.
    pub(super) unfit: bool,
}

impl Refusal {
    fn now(why: String) -> Refusal {
        Refusal { why, unfit: false }
    }
}

/// The GPUs of a host.
#[derive(Debug)]
pub(super) struct Gpus {
    described: Vec<MomGpu>,
    host: Host,
}

impl Default for Gpus {
    fn default() -> Gpus {
        Gpus::of(Vec::new())
    }
}

impl Gpus {
    /// As an administrator describes them.
    pub(super) fn of(mut described: Vec<MomGpu>) -> Gpus {
        described.truncate(MAX_GPUS);
        let sets: Vec<&str> = described.iter().map(|gpu| &gpu.nvlink[..]).collect();
        let numa = described.iter().map(|gpu| u16::try_from(gpu.numa?).ok());
        let facts = NodeFacts {
            gpus: described.len(),
            links: links::rows(&sets),
            gpu_sockets: numa.collect(),
            ..NodeFacts::default()
        };
        let host = Host::of_kind(facts.node_type(None).into());
        Gpus { described, host }
    }

    /// As they are described.
    pub(super) fn described(&self) -> &[MomGpu] {
        &self.described
    }

    fn of_kind(&self, is: impl Fn(&MomGpu) -> bool) -> GpuSet {
        let all = self.described.iter().enumerate();
        all.filter(|(_, gpu)| is(gpu))
            .fold(GpuSet::EMPTY, |set, (at, _)| set.with(at))
    }

    /// Those that are not divided.
    pub(super) fn undivided(&self) -> GpuSet {
        self.of_kind(|gpu| !gpu.divided)
    }

    /// Those that are divided.
    pub(super) fn divided(&self) -> GpuSet {
        self.of_kind(|gpu| gpu.divided)
    }

    /// Those that jobs have as a whole.
    pub(super) fn whole(&self) -> GpuSet {
        self.of_kind(|gpu| !gpu.divided && gpu.shares == 0)
    }

    /// Those of which jobs have parts, with how many there are of each.
    pub(super) fn shared(&self) -> impl Iterator<Item = (GresGpu, u16)> {
        let all = self.described.iter().enumerate();
        let shared = all.filter(|(_, gpu)| !gpu.divided && gpu.shares > 0);
        shared.filter_map(|(at, gpu)| Some((GresGpu::new(at)?, gpu.shares)))
    }

    /// Chooses what PBS counts for a job.
    ///
    /// # Errors
    /// There is not so much now, beside what others have and what is `out` of service.
    pub(super) fn choose(
        &self,
        job: &MomJob,
        others: &[Holder],
        out: GpuSet,
    ) -> Result<Choice, Refusal> {
        let gpus = match job.count {
            0 => GpuSet::EMPTY,
            _ => self.choose_whole(job, others, out)?,
        };
        let parts = parts(job);
        let shared = match parts {
            0 => None,
            _ => Some(self.choose_shared(parts, others, out)?),
        };
        Ok(Choice {
            run: job.run,
            gpus: gpus.iter().filter_map(GresGpu::new).collect(),
            shared,
            parts,
        })
    }

    fn choose_whole(
        &self,
        job: &MomJob,
        others: &[Holder],
        out: GpuSet,
    ) -> Result<GpuSet, Refusal> {
        let count = job.count as usize;
        let free = self.free(others, out);
        // PBS gives what a suspended job has to others: these come last.
        let last = self.usable(others, out).minus(free);
        if free.len() + last.len() < count {
            return Err(Refusal::now(self.too_few(job.count, free.len(), out)));
        }
        let options = [(TOPOLOGY, &job.topology[..])].into_iter();
        let wish = |gpus: usize| match Ask::read(gpus as u32, options.clone(), "{}") {
            Ok(ask) if !job.topology.is_empty() => ask,
            // A level above the host, where all of its GPUs are in one domain.
            _ => Ask {
                gpus: gpus as u32,
                ..Ask::default()
            },
        };
        let ask = wish(count);
        if ask.linked() > 1 {
            let found = self.plan(&ask, free);
            let found = found.or_else(|_| self.plan(&ask, union(free, last)));
            return found.map_err(|short| Refusal::now(unlinked(job.count, &short)));
        }
        let chosen = match free.len() < count {
            false => self.plan(&ask, free),
            true => {
                let rest = self.plan(&wish(count - free.len()), last);
                rest.map(|rest| union(free, rest))
            }
        };
        chosen.map_err(|short| Refusal::now(unlinked(job.count, &short)))
    }

    fn plan(&self, ask: &Ask, from: GpuSet) -> Result<GpuSet, Short> {
        let chosen = self.host.choose(ask, &self.all_but(from))?;
        let numbers = chosen.numbers.into_iter().map(usize::from);
        Ok(numbers.fold(GpuSet::EMPTY, GpuSet::with))
    }

    fn all_but(&self, from: GpuSet) -> std::collections::BTreeSet<u8> {
        let all = GpuSet::first(self.described.len());
        all.minus(from).iter().map(|at| at as u8).collect()
    }

    /// The fullest of the shared GPUs that has so many parts left; what suspended jobs have is given last.
    fn choose_shared(
        &self,
        parts: u16,
        others: &[Holder],
        out: GpuSet,
    ) -> Result<GresGpu, Refusal> {
        let running = others.iter().filter(|one| !one.suspended);
        let running: Vec<Holder> = running.cloned().collect();
        for holders in [others, &running] {
            let room = self.parts_left(holders, out);
            let fits = room.into_iter().filter(|(_, left)| *left >= parts);
            if let Some((gpu, _)) = fits.min_by_key(|(gpu, left)| (*left, *gpu)) {
                return Ok(gpu);
            }
        }
        let most = self.parts_left(&running, out);
        let most = most.into_iter().map(|(_, left)| left).max().unwrap_or(0);
        Err(Refusal::now(format!(
            "PBS counts {parts} parts of a shared GPU of this host for the job, and none that is in service has more than {most} left"
        )))
    }

    /// Shared GPUs in service with how many parts nobody has.
    pub(super) fn parts_left(&self, holders: &[Holder], out: GpuSet) -> Vec<(GresGpu, u16)> {
        let in_service = self.shared().filter(|(gpu, _)| !gpu.is_in(out));
        let left = |(gpu, all): (GresGpu, u16)| {
            let own = holders.iter().flat_map(|one| &one.parts);
            let own = own.filter(|(of, _)| *of == gpu);
            let taken = own.fold(0u16, |sum, (_, parts)| {
                sum.saturating_add(parts.unwrap_or(all))
            });
            (gpu, all.saturating_sub(taken))
        };
        in_service.map(left).collect()
    }

    /// Whole GPUs in service that no job has.
    pub(super) fn free(&self, holders: &[Holder], out: GpuSet) -> GpuSet {
        self.whole().minus(out).minus(taken(holders.iter()))
    }

    /// Those that no running job has: what suspended ones have PBS gives to others.
    pub(super) fn usable(&self, holders: &[Holder], out: GpuSet) -> GpuSet {
        let running = holders.iter().filter(|one| !one.suspended);
        self.whole().minus(out).minus(taken(running))
    }

    /// How many of some GPUs at most are linked with each other.
    pub(super) fn linked(&self, gpus: GpuSet) -> u64 {
        let set_of =
            |at: usize| Some(&self.described.get(at)?.nvlink).filter(|set| !set.is_empty());
        let linked = |at: usize| {
            let beside = gpus.iter().filter(|other| set_of(*other) == set_of(at));
            set_of(at).map_or(1, |_| beside.count())
        };
        gpus.iter().map(linked).max().unwrap_or(0) as u64
    }

    /// `PBS counts 2 GPUs of this host for the job, and 1 of its 8 is free: 1 is out of service, and other jobs have 6`
    fn too_few(&self, count: u32, free: usize, out: GpuSet) -> String {
        let all = self.whole();
        let out = all.and(out).len();
        let is = |count: usize| if count == 1 { "is" } else { "are" };
        format!(
            "PBS counts {count} GPU{} of this host for the job, and {free} of its {} {} free: {out} {} out of service, and other jobs have {}",
            if count == 1 { "" } else { "s" },
            all.len(),
            is(free),
            is(out),
            all.len() - out - free,
        )
    }
}

/// How many parts of a shared GPU are to be chosen for a job.
pub(super) fn parts(job: &MomJob) -> u16 {
    // Which GPU these are of is known already.
    if job.shared.is_empty() { job.parts } else { 0 }
}

fn union(one: GpuSet, other: GpuSet) -> GpuSet {
    GpuSet(one.0 | other.0)
}

fn taken<'a>(holders: impl Iterator<Item = &'a Holder>) -> GpuSet {
    holders.fold(GpuSet::EMPTY, |all, one| union(all, one.whole))
}

fn unlinked(count: u32, short: &Short) -> String {
    let (Short::Gpus(why) | Short::Level(why)) = short;
    format!(
        "the job requires its {count} GPUs to be linked by NVLink, and so many of the free GPUs of this host are not: {why}"
    )
}
