//! The pool of a node: which instances Slurm's records give to which job, and how that is written in variables.

use std::collections::BTreeMap;

use gpuos_core::config::MigConfig;
use gpuos_core::gpuset::{GpuSet, MAX_GPUS};
use gpuos_core::mig::reconcile::Foreign;
use gpuos_core::mig::tile::tile;
use gpuos_core::mig::{Claim, Geometry, Held, Phase, Serves, Window};
use gpuos_core::options::parse_mig;
use gpuos_core::wire::{MIG_VARIABLES, MigAsk};
use gpuos_host::slurm::Job;
use serde::{Deserialize, Serialize};

use crate::slices::Layout;

/// The pool, from gpuos.toml.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pool {
    /// Name of the kind of GPU.
    pub board: String,
    /// How it is divided.
    pub geometry: Geometry,
    /// NVML's indexes, ascending.
    pub gpus: Vec<u8>,
    /// What is done about instances of nobody.
    pub foreign: Foreign,
}

/// An instance that a job is to have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Piece {
    /// NVML's index.
    pub gpu: u8,
    /// NVML's id of the profile.
    pub profile: u32,
    /// Where.
    pub window: Window,
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
    /// A step has asked for them.
    #[serde(skip)]
    pub wanted: bool,
}

/// What outlives the daemon.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Journal {
    /// Claims by NVML's index.
    pub claims: BTreeMap<u8, Vec<Claim>>,
    /// By job.
    pub grants: BTreeMap<u32, Grant>,
}

/// `0-3`.
pub fn slices_text(window: Window) -> String {
    let last = u32::from(window.start) + u32::from(window.size.max(1)) - 1;
    format!("{}-{last}", window.start)
}

impl Pool {
    /// The pool that a node is in.
    pub fn of(config: &MigConfig, node: &str) -> Option<Pool> {
        let (pool, board) = config.pool_of(node)?;
        let gpus = pool.gpus.iter();
        Some(Pool {
            board: board.name.clone(),
            geometry: board.geometry.clone(),
            gpus: gpus.filter_map(|gpu| u8::try_from(gpu).ok()).collect(),
            foreign: config.foreign,
        })
    }

    /// The first bit of a GPU by NVML's index.
    pub fn first(&self, gpu: u8) -> Option<usize> {
        let nth = self.gpus.iter().position(|own| *own == gpu)?;
        Some(nth * usize::from(self.geometry.slices()))
    }

    /// The bits of an instance.
    pub fn bits(&self, piece: &Piece) -> u64 {
        let first = self.first(piece.gpu).unwrap_or(MAX_GPUS);
        let start = first + usize::from(piece.window.start);
        let slices = start..start + usize::from(piece.window.size);
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
    ///
    /// # Errors
    /// Neither says it, or the bits are not such instances: a sentence.
    pub fn grant(&self, node: &str, job: &Job, ask: Option<&MigAsk>) -> Result<Grant, String> {
        let bits = job.slices_on(node).0;
        let told = GpuSet(bits);
        let (serves, text) = match (noted(&job.system_comment), ask) {
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
        let cuts = tile(&self.geometry, bits, &serves).ok_or_else(|| {
            format!(
                "the memory slices {told} that Slurm gave to job {} cannot be divided into {text}",
                job.id
            )
        })?;
        let piece = |cut: &gpuos_core::mig::tile::Cut| {
            Some(Piece {
                gpu: *self.gpus.get(cut.gpu)?,
                profile: self.geometry.profiles().get(cut.profile)?.id,
                window: cut.window,
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
            wanted: false,
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
        own.sort_by_key(|piece| (piece.gpu, piece.window));
        let (mut profiles, mut uuids, mut windows) = (Vec::new(), Vec::new(), Vec::new());
        for piece in own {
            let Some(uuid) = made(piece) else { continue };
            profiles.push(self.profile(piece.profile));
            uuids.push(uuid);
            windows.push(format!("{}:{}", piece.gpu, slices_text(piece.window)));
        }
        let uuids = uuids.join(",");
        let values = [
            uuids.clone(),
            uuids.clone(),
            profiles.join(","),
            uuids,
            windows.join(","),
        ];
        let names = MIG_VARIABLES.map(String::from);
        names.into_iter().zip(values).collect()
    }
}

/// How gpuos's note begins.
const MARK: &str = "gpuos: ";

/// What gpuos's note in `SystemComment` says of slices.
fn noted(comment: &str) -> Option<&str> {
    let at = comment.find(MARK)?;
    let mut words = comment[at..].split(' ');
    words.find_map(|word| word.strip_prefix("mig="))
}

/// What Slurm's records give to jobs on one GPU.
pub fn held(grants: &BTreeMap<u32, Grant>, gpu: u8) -> Vec<Held> {
    let each = grants.iter().flat_map(|(job, grant)| {
        let own = grant.pieces.iter().filter(move |piece| piece.gpu == gpu);
        own.map(|piece| Held {
            job: *job,
            window: piece.window,
        })
    });
    each.collect()
}

/// Which instance can be used in each memory slice of a GPU.
pub fn layout(claims: &[Claim], slices: u8) -> Layout {
    let mut layout = vec![None; usize::from(slices)];
    for claim in claims {
        if let Phase::Ready { gi, ci, .. } = claim.phase {
            let start = usize::from(claim.window.start);
            let own = layout.iter_mut().skip(start);
            own.take(usize::from(claim.window.size))
                .for_each(|slice| *slice = Some((gi, ci)));
        }
    }
    layout
}
