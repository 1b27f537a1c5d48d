//! The pool of a node: which instances Slurm's records give to which job, and how that is written in variables.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use gpuos_config::gpuos_toml::{MigConfig, MigPool};
use gpuos_config::options::parse_mig;
use gpuos_core::job::JobId;
use gpuos_core::mig::reconcile::Foreign;
use gpuos_core::mig::{Claim, JobPlacement, Phase};
use gpuos_core::wire::{MIG_VARIABLES, MigAsk};
use gpuos_model::gpu_index::{GresGpu, NvmlIndex, NvmlSet, PoolGpu};
use gpuos_model::gpuset::{GpuSet, MAX_GPUS};
use gpuos_model::mig::{Geometry, MigPlacement};
use gpuos_model::node_gpu::NodeGpu;
use gpuos_placement::mig::Serves;
use gpuos_placement::mig::tile::{JobInstance, tile, tile_beside};
use gpuos_workload::job::Job;
use serde::{Deserialize, Serialize};

use crate::slices::Layout;

/// Numbers in GRES `gpu` of MIG-switchable GPUs, by NVML's index.
pub type Switchable = BTreeMap<NvmlIndex, GresGpu>;

/// The pool, from gpuos.toml.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pool {
    /// Name of the kind of GPU.
    pub board: String,
    /// How it is divided.
    pub geometry: Geometry,
    /// NVML's indexes, ascending.
    pub gpus: Vec<NvmlIndex>,
    /// The MIG-switchable ones, with their numbers in GRES `gpu`.
    pub switchable: Switchable,
    /// What is done about instances of nobody.
    pub foreign: Foreign,
}

/// An instance that a job is to have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Piece {
    /// NVML's index.
    pub gpu: NvmlIndex,
    /// NVML's id of the profile.
    pub profile: u32,
    /// Where.
    #[serde(alias = "window")]
    pub placement: MigPlacement,
}

/// What a job has by Slurm's record.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Grant {
    /// How often it had been requeued: what it had before is not what it has now.
    pub restarts: u32,
    /// Its bits of GRES `gpuos` here.
    pub bits: u64,
    /// Whether Slurm would requeue it.
    pub requeue: bool,
    /// The instances that its bits are.
    pub pieces: Vec<Piece>,
    /// MIG-switchable GPUs that it has whole, by NVML's index.
    #[serde(default)]
    pub whole: NvmlSet,
    /// It asks for this node (`--nodelist`): requeued, it comes back here.
    #[serde(default)]
    pub pinned: bool,
    /// The slices were chosen here: the workload manager has counted them only, and queues the job again by itself when its start is
    /// refused.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub chosen: bool,
    /// A step was started with all that was chosen: the job runs, and a start that is refused no longer queues it again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub served: bool,
    /// A step has asked for them.
    #[serde(skip)]
    pub wanted: bool,
}

/// A job that is held until the driver answers again.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct HeldJob {
    /// GPUs that it had, by NVML's index.
    pub gpus: NvmlSet,
}

/// What outlives the daemon.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Journal {
    /// Claims by NVML's index.
    pub claims: BTreeMap<NvmlIndex, Vec<Claim>>,
    /// By job.
    pub grants: BTreeMap<JobId, Grant>,
    /// How often each job could not get its instances here, since it last had them.
    #[serde(default)]
    pub failures: BTreeMap<JobId, u32>,
    /// Jobs that are held until the driver answers again.
    #[serde(default)]
    pub held: BTreeMap<JobId, HeldJob>,
    /// The GPUs that are in MIG mode for good by NVML's index, for a gpuos.toml that cannot be read later.
    #[serde(default)]
    pub pool: NvmlSet,
    /// The MIG-switchable ones.
    #[serde(default, alias = "moving")]
    pub switchable: Switchable,
    /// The bits of jobs as Slurm told them last: a job that is heard of again is no new one.
    #[serde(default)]
    pub given: BTreeMap<JobId, u64>,
}

/// `0-3`.
pub fn slices_text(placement: MigPlacement) -> String {
    let last = u32::from(placement.start) + u32::from(placement.size.max(1)) - 1;
    format!("{}-{last}", placement.start)
}

impl Pool {
    /// The pool that a node is in.
    pub fn of(config: &MigConfig, node: &str) -> Option<Pool> {
        let (pool, board) = config.pool_of(node)?;
        Some(Pool {
            board: board.name.clone(),
            geometry: board.geometry.clone(),
            gpus: pool.gpus.iter().collect(),
            switchable: switchable(pool),
            foreign: config.foreign,
        })
    }

    /// A GPU by NVML's index, as people call it: one of GRES `gpu`, if it is MIG-switchable.
    pub fn number(&self, gpu: NvmlIndex) -> NodeGpu {
        let whole = self.switchable.get(&gpu);
        whole.map_or(NodeGpu::Pool(gpu), |gres| NodeGpu::Gres(*gres))
    }

    /// What a job has on a node by Slurm's record: its bits of GRES `gpuos`, and the MIG-switchable GPUs that it has whole, by
    /// NVML's index. A job with whole nodes has both of a GPU: it is whole for it.
    pub fn has(&self, node: &str, job: &Job) -> (u64, NvmlSet) {
        let gpus = job.gpus_on(node);
        let own = self.switchable.iter().filter(|(_, gres)| gres.is_in(gpus));
        let whole: NvmlSet = own.map(|(gpu, _)| *gpu).collect();
        let taken = whole.iter().fold(0, |all, gpu| all | self.all_bits(gpu));
        (job.slices_on(node).0 & !taken, whole)
    }

    /// The bits of a GPU by NVML's index.
    pub fn all_bits(&self, gpu: NvmlIndex) -> u64 {
        self.bits(&Piece {
            gpu,
            profile: 0,
            placement: MigPlacement {
                start: 0,
                size: self.geometry.slices(),
            },
        })
    }

    /// The bits of all GPUs.
    fn node_bits(&self) -> u64 {
        let each = self.gpus.iter();
        each.fold(0, |all, gpu| all | self.all_bits(*gpu))
    }

    /// The first bit of a GPU by NVML's index.
    pub fn first(&self, gpu: NvmlIndex) -> Option<usize> {
        let nth = self.gpus.iter().position(|own| *own == gpu)?;
        Some(nth * usize::from(self.geometry.slices()))
    }

    /// The bits of an instance.
    pub fn bits(&self, piece: &Piece) -> u64 {
        let first = self.first(piece.gpu).unwrap_or(MAX_GPUS);
        let start = first + usize::from(piece.placement.start);
        let slices = start..start + usize::from(piece.placement.size);
        slices.fold(GpuSet::EMPTY, GpuSet::with).0
    }

    /// The name of a profile.
    pub fn profile(&self, id: u32) -> String {
        let known = self.geometry.by_id(id);
        known.map_or_else(
            || id.to_string(),
            |at| self.geometry.profiles()[at].name.clone(),
        )
    }

    /// What a job gets for its bits: by gpuos's note in its record, and where there is none, by what its step says.
    /// `others` are the instances of other jobs: what is scarce besides memory slices is not given twice where there is
    /// another way.
    ///
    /// # Errors
    /// Neither says it, or the bits are not such instances, and never will be: a sentence.
    pub fn grant(
        &self,
        node: &str,
        job: &Job,
        (ask, others): (Option<&MigAsk>, &[Piece]),
    ) -> Result<Grant, String> {
        let (bits, whole) = self.has(node, job);
        let told = GpuSet(bits);
        let note = noted(&job.note);
        // A job with whole nodes has slices for which nobody asked: no instances are made of them.
        let for_nothing = note.is_none()
            && ask.is_some_and(|ask| ask.request.is_empty())
            && (!whole.is_empty() || job.slices_on(node).0 == self.node_bits());
        if bits == 0 || for_nothing {
            return Ok(Grant {
                restarts: job.restarts,
                bits,
                requeue: job.may_requeue,
                whole,
                ..Grant::default()
            });
        }
        let (serves, text) = match (note, ask) {
            (Some(note), _) => (self.by_note(note), note.to_owned()),
            (None, Some(ask)) => (self.by_request(&ask.request, bits), ask.request.clone()),
            (None, None) => (None, String::new()),
        };
        let serves = serves.ok_or_else(|| {
            format!(
                "{text:?} names nothing that a GPU of the kind {} has",
                self.board
            )
        })?;
        let beside = others.iter().filter_map(|piece| self.cut(piece));
        let beside: Vec<JobInstance> = beside.collect();
        let cuts = tile_beside(&self.geometry, bits, &serves, &beside)
            .or_else(|| tile(&self.geometry, bits, &serves));
        let cuts = cuts.ok_or_else(|| {
            format!(
                "the memory slices {told} that Slurm gave to job {} cannot be divided into {text}",
                job.id
            )
        })?;
        let piece = |cut: &JobInstance| {
            Some(Piece {
                gpu: *self.gpus.get(cut.gpu.index())?,
                profile: self.geometry.profiles().get(cut.profile)?.id,
                placement: cut.placement,
            })
        };
        let pieces: Option<Vec<Piece>> = cuts.iter().map(piece).collect();
        let pieces = pieces.ok_or_else(|| {
            format!(
                "the memory slices {told} lie past the {} GPUs of the pool",
                self.gpus.len()
            )
        })?;
        Ok(Grant {
            restarts: job.restarts,
            bits,
            requeue: job.may_requeue,
            pieces,
            whole,
            ..Grant::default()
        })
    }

    /// The instances of a grant, as a note has them.
    pub fn names(&self, pieces: &[Piece]) -> String {
        let names = pieces.iter().map(|piece| self.profile(piece.profile));
        names.collect::<Vec<_>>().join(",")
    }

    fn cut(&self, piece: &Piece) -> Option<JobInstance> {
        Some(JobInstance {
            gpu: PoolGpu::new(self.gpus.iter().position(|gpu| *gpu == piece.gpu)?)?,
            profile: self.geometry.by_id(piece.profile)?,
            placement: piece.placement,
        })
    }

    /// `3g.40gb:1,1g.10gb:2`, for the node.
    fn by_note(&self, note: &str) -> Option<Serves> {
        let each = note.split(',').map(|entry| {
            let (name, count) = entry.rsplit_once(':').unwrap_or((entry, "1"));
            Some((self.geometry.by_name(name)?, count.parse().ok()?))
        });
        each.collect()
    }

    /// As users write it. What is asked for each task, is there as often as the bits have room for it.
    fn by_request(&self, request: &str, bits: u64) -> Option<Serves> {
        let request = parse_mig(request).ok()?;
        let mut serves = request.serves(&self.geometry)?;
        if request.per_task {
            let size = |&(at, count): &(usize, u16)| {
                u32::from(self.geometry.profiles()[at].size) * u32::from(count)
            };
            let one: u32 = serves.iter().map(size).sum();
            let times = u16::try_from(bits.count_ones() / one.max(1)).ok()?;
            for (_, count) in &mut serves {
                *count = count.saturating_mul(times);
            }
        }
        Some(serves)
    }

    /// Variables for a step that holds these bits. `made` has the UUID of an instance.
    pub fn environment(
        &self,
        grant: &Grant,
        bits: u64,
        made: impl Fn(&Piece) -> Option<String>,
    ) -> BTreeMap<String, String> {
        let own = grant.pieces.iter().filter(|piece| {
            let own = self.bits(piece);
            own != 0 && own & !bits == 0
        });
        let mut own: Vec<&Piece> = own.collect();
        // The largest first: CUDA shows a program the first one only.
        own.sort_by_key(|piece| (Reverse(piece.placement.size), piece.gpu, piece.placement));
        let (mut profiles, mut uuids, mut placements) = (Vec::new(), Vec::new(), Vec::new());
        for piece in own {
            let Some(uuid) = made(piece) else { continue };
            profiles.push(self.profile(piece.profile));
            uuids.push(uuid);
            placements.push(format!("{}:{}", piece.gpu, slices_text(piece.placement)));
        }
        let uuids = uuids.join(",");
        let values = [
            uuids.clone(),
            uuids.clone(),
            profiles.join(","),
            uuids,
            placements.join(","),
        ];
        let names = MIG_VARIABLES.map(String::from);
        names.into_iter().zip(values).collect()
    }
}

/// The MIG-switchable GPUs of a pool.
pub fn switchable(pool: &MigPool) -> Switchable {
    let each = pool.switchable.iter();
    each.filter_map(|gpu| Some((gpu, pool.whole(gpu)?)))
        .collect()
}

/// How gpuos's note begins.
const MARK: &str = "gpuos: ";

/// What gpuos's note in `SystemComment` says of slices.
fn noted(comment: &str) -> Option<&str> {
    let at = comment.find(MARK)?;
    let mut words = comment[at..].split(' ');
    words.find_map(|word| word.strip_prefix("mig="))
}

/// What Slurm's records give to jobs on one GPU. `own` says whose all processes in a placement are.
pub fn held(
    grants: &BTreeMap<JobId, Grant>,
    gpu: NvmlIndex,
    own: impl Fn(MigPlacement) -> Option<JobId>,
) -> Vec<JobPlacement> {
    let mut all = Vec::new();
    for (job, grant) in grants {
        for piece in grant.pieces.iter().filter(|piece| piece.gpu == gpu) {
            all.push(JobPlacement {
                job: job.clone(),
                placement: piece.placement,
                profile: Some(piece.profile),
                own: own(piece.placement).as_ref() == Some(job),
            });
        }
    }
    all
}

/// The slices of a GPU, whose first bit is given, that jobs have by Slurm's records without a grant: nobody has said of
/// which instances.
pub fn unknown(
    given: &BTreeMap<JobId, u64>,
    grants: &BTreeMap<JobId, Grant>,
    (first, slices): (usize, u8),
) -> Vec<JobPlacement> {
    let mut all = Vec::new();
    for (job, bits) in given.iter().filter(|(job, _)| !grants.contains_key(job)) {
        let own = |slice: &u8| GpuSet(*bits).contains(first + usize::from(*slice));
        all.extend((0..slices).filter(own).map(|start| JobPlacement {
            job: job.clone(),
            placement: MigPlacement { start, size: 1 },
            profile: None,
            own: false,
        }));
    }
    all
}

/// Which instance can be used in each memory slice of a GPU.
pub fn layout(claims: &[Claim], slices: u8) -> Layout {
    let mut layout = vec![None; usize::from(slices)];
    for claim in claims {
        if let Phase::Ready { gi, ci, .. } = claim.phase {
            let start = usize::from(claim.placement.start);
            let own = layout.iter_mut().skip(start);
            own.take(usize::from(claim.placement.size))
                .for_each(|slice| *slice = Some((gi, ci)));
        }
    }
    layout
}

#[cfg(test)]
mod tests {
    use gpuos_config::gpuos_toml::Config;
    use gpuos_workload::job::Allocation;

    use super::*;

    const CONFIG: &str = "[[mig.board]]\nname = \"a30\"\nprofiles = [\n  \
        { id = 14, name = \"1g.6gb\", compute = 1, memory-mib = 5952, most = 4, size = 1, starts = [0, 1, 2, 3] },\n  \
        { id = 5, name = \"2g.12gb\", compute = 2, memory-mib = 11968, most = 2, size = 2, starts = [0, 2] },\n]\n\
        [[mig.pool]]\nnodes = \"n1\"\ngpus = \"1,3\"\nboard = \"a30\"\n";

    fn pool() -> Pool {
        let config = Config::parse(CONFIG, "gpuos.toml").unwrap();
        Pool::of(&config.mig, "n1").unwrap()
    }

    fn job(bits: u64, comment: &str) -> Job {
        Job {
            id: 7.into(),
            restarts: 2,
            note: comment.into(),
            allocations: vec![Allocation {
                nodes: vec!["n1".into()],
                gpus: GpuSet::EMPTY,
                slices: GpuSet(bits),
                shared: GpuSet::EMPTY,
                memory_mib: 0,
                others: Vec::new(),
            }],
            ..Job::default()
        }
    }

    fn ask(request: &str) -> MigAsk {
        MigAsk {
            request: request.into(),
            slices: Vec::new(),
            tasks: 1,
        }
    }

    #[test]
    fn bits_are_instances_of_gpus_by_the_note_or_by_the_request() {
        let pool = pool();
        // Slices 2 and 3 of GPU 1, slice 0 of GPU 3.
        let record = job(
            0b1_1100,
            "kept | gpuos: level=node mig=2g.12gb:1,1g.6gb:1 gpus=n1:",
        );
        let request = ask("1g.6gb:3");
        let grant = pool.grant("n1", &record, (Some(&request), &[])).unwrap();
        let places: Vec<_> = grant
            .pieces
            .iter()
            .map(|one| (u8::from(one.gpu), one.profile, one.placement.start))
            .collect();
        assert_eq!(places, [(1, 5, 2), (3, 14, 0)]);
        assert_eq!((grant.bits, grant.restarts), (0b1_1100, 2));
        assert_eq!(
            grant.pieces.iter().map(|one| pool.bits(one)).sum::<u64>(),
            0b1_1100
        );
        // Without the note, and for each of two tasks.
        let request = Some(&ask("1g.6gb:per-task")).cloned();
        let grant = pool
            .grant("n1", &job(0b11_0000, ""), (request.as_ref(), &[]))
            .unwrap();
        assert_eq!(grant.pieces.len(), 2);
        let one = pool.environment(&grant, 0b10_0000, |piece| {
            Some(format!("MIG-{}", piece.placement.start))
        });
        assert_eq!(one["CUDA_VISIBLE_DEVICES"], "MIG-1");
        assert_eq!(one["GPUOS_MIG_PLACEMENTS"], "3:1-1");
        assert_eq!(one["GPUOS_MIG_PROFILES"], "1g.6gb");
    }

    #[test]
    fn what_cannot_be_is_a_sentence() {
        let pool = pool();
        let why = |bits, comment, request| {
            pool.grant("n1", &job(bits, comment), (Some(&ask(request)), &[]))
                .unwrap_err()
        };
        assert!(
            why(0b110, "", "2g.12gb").contains("1-2"),
            "no placement begins at 1"
        );
        assert!(why(0b1, "", "7g.80gb").contains("a30"));
        // Somebody's own text is no note.
        assert!(why(0b11, "mig=2g.12gb:1", "1g.6gb").contains("cannot be divided into 1g.6gb"));
        // Past the two GPUs of the pool.
        assert!(why(1 << 8, "", "1g.6gb").contains("past the 2 GPUs"));
    }

    #[test]
    fn what_another_job_has_of_scarce_things_is_not_given_again() {
        let config = CONFIG.replace(
            "most = 4, size = 1, starts = [0, 1, 2, 3] },",
            "most = 4, size = 1, starts = [0, 1, 2, 3] },\n  { id = 21, name = \"1g.6gb+me\", compute = 1, \
             memory-mib = 5952, most = 1, size = 1, starts = [0, 1, 2, 3] },",
        );
        let config = Config::parse(&config, "gpuos.toml").unwrap();
        let pool = Pool::of(&config.mig, "n1").unwrap();
        // One slice on each GPU; the media extension of the first is another job's.
        let record = job(0b1_0001, "gpuos: mig=1g.6gb+me:1,1g.6gb:1");
        let on = |others: &[Piece]| {
            let grant = pool.grant("n1", &record, (None, others)).unwrap();
            let me = grant.pieces.iter().find(|piece| piece.profile == 21);
            me.map(|piece| u8::from(piece.gpu))
        };
        let placement = MigPlacement { start: 2, size: 1 };
        let other = |gpu: u8| Piece {
            gpu: gpu.try_into().unwrap(),
            profile: 21,
            placement,
        };
        assert_eq!(on(&[other(1)]), Some(3));
        assert_eq!(on(&[other(3)]), Some(1));
        // No other way: the driver has the last word.
        assert!(on(&[other(1), other(3)]).is_some());
    }

    #[test]
    fn slices_of_jobs_without_a_grant_are_held_too() {
        let given = BTreeMap::from([(7.into(), 0b1_0110), (8.into(), 0b1000)]);
        let grants = BTreeMap::from([(8.into(), Grant::default())]);
        let held = |first| -> Vec<(u32, u8)> {
            let all = unknown(&given, &grants, (first, 4));
            all.iter()
                .map(|one| (one.job.number().unwrap(), one.placement.start))
                .collect()
        };
        assert_eq!(held(0), [(7, 1), (7, 2)]);
        assert_eq!(held(4), [(7, 0)]);
    }

    /// A release before or after reads what this one writes.
    #[test]
    fn a_journal_has_gpus_and_jobs_as_numbers() {
        let text = r#"{"claims":{"1":[{"id":1,"job":7,"profile":5,"placement":{"start":2,"size":2},"phase":"Wanted"}]},"grants":{"7":{"restarts":0,"bits":12,"requeue":true,"pieces":[{"gpu":1,"profile":5,"placement":{"start":2,"size":2}}],"whole":0,"pinned":false}},"failures":{"8":1},"held":{"9":{"gpus":2}},"pool":10,"switchable":{"3":1},"given":{"7":12,"10":1}}"#;
        let journal: Journal = serde_json::from_str(text).unwrap();
        assert_eq!(journal.given[&10.into()], 1);
        assert_eq!(serde_json::to_string(&journal).unwrap(), text);
    }

    /// A journal is a file: what stands in it may be anything.
    #[test]
    fn no_journal_upsets_the_arithmetic() {
        let placement = MigPlacement {
            start: 255,
            size: 255,
        };
        let pool = pool();
        for gpu in [0, 1, 3, 63].map(|gpu| NvmlIndex::new(gpu).unwrap()) {
            let piece = Piece {
                gpu,
                profile: 99,
                placement,
            };
            assert_eq!(pool.bits(&piece), 0);
        }
        let ready = |start, size| Claim {
            id: 1,
            job: 7.into(),
            profile: 0,
            placement: MigPlacement { start, size },
            phase: Phase::Ready {
                gi: 2,
                ci: 0,
                uuid: String::new(),
            },
        };
        assert_eq!(layout(&[ready(255, 255)], 4), vec![None; 4]);
        assert_eq!(
            layout(&[ready(3, 200)], 4),
            [None, None, None, Some((2, 0))]
        );
        assert_eq!(slices_text(placement), "255-509");
    }
}
