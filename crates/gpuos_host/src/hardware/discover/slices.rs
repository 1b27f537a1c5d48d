//! GPUs in MIG mode: the lines for their pool, and where gpuos.toml says otherwise.

use gpuos_config::gpuos_toml::{MigConfig, MigPool, STEERED_SLICES};
use gpuos_model::gpu_index::NvmlIndex;
use gpuos_model::gpuset::GpuSet;
use gpuos_model::mig::{Geometry, Profile};

use super::print::{cores_beside, quoted};
use super::types::{gres_type_of, like};
use super::{GpuHardware, NodeHardware};
use crate::hardware::nvml::{GpuLibrary, MigMode};

/// Where gpuosd writes which device files belong to which memory slice.
pub const SLICES: &str = "/var/lib/gpuos/slices";

/// What stands over `switchable`.
const SWITCHABLE: &str = "# In GRES gpu too: each is whole or divided, as jobs need it. Only for boards that change MIG mode \
                      without a\n# reset: not A100 and A30.\n";

/// A GPU in MIG mode.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Divided {
    /// NVML index.
    pub index: u8,
    /// The GPU.
    pub gpu: GpuHardware,
    /// How it can be divided; else why that is not known.
    pub geometry: Result<Geometry, String>,
}

impl Divided {
    /// Asks the driver how the GPU can be divided.
    pub(super) fn read(library: &dyn GpuLibrary, index: u8, gpu: GpuHardware) -> Divided {
        let told = library.mig_profiles(index).map_err(|e| e.to_string());
        Divided {
            index,
            gpu,
            geometry: told.and_then(|told| Geometry::new(told).map_err(|e| e.to_string())),
        }
    }
}

/// The GPUs of a node that make one pool.
pub(super) struct Pool<'a> {
    board: String,
    geometry: &'a Geometry,
    gpus: Vec<&'a Divided>,
}

/// The pool of a node: its first board that is known. What is left out is told in the notes.
pub(super) fn pool<'a>(found: &'a NodeHardware, notes: &mut Vec<String>) -> Option<Pool<'a>> {
    let mut pool: Option<Pool> = None;
    for one in &found.divided {
        let index = one.index;
        match (&one.geometry, &mut pool) {
            (Err(why), _) => notes.push(format!(
                "GPU {index} of NVML is in MIG mode, and how it can be divided is not known: {why}"
            )),
            (Ok(geometry), None) => {
                pool = Some(Pool {
                    board: board_name(&one.gpu.identity.name, geometry),
                    geometry,
                    gpus: vec![one],
                });
            }
            (Ok(geometry), Some(pool)) if geometry == pool.geometry => pool.gpus.push(one),
            (Ok(_), Some(pool)) => notes.push(format!(
                "GPU {index} of NVML is in MIG mode and another board than {}: a node has one pool, so it is \
                 left out",
                pool.board
            )),
        }
    }
    let slices = pool.as_ref().map_or(0, Pool::slices);
    if slices > STEERED_SLICES {
        notes.push(format!(
            "{slices} memory slices: jobs can have the first {STEERED_SLICES} of them; leave GPUs out of MIG mode"
        ));
    }
    pool
}

/// A name for a board, and its type in GRES `gpuos`: the GPU's and the memory of its largest profile.
fn board_name(gpu: &str, geometry: &Geometry) -> String {
    let largest = geometry
        .profiles()
        .iter()
        .max_by_key(|profile| profile.size);
    let memory = largest.and_then(|profile| profile.name.split_once('.'));
    let memory = memory.map_or("", |(_, memory)| memory);
    let memory = memory.split(['+', '-']).next().unwrap_or_default();
    let name = format!("{}-{memory}", gres_type_of(gpu, like(gpu, 0).as_ref()));
    match name.starts_with(|c: char| c.is_ascii_alphabetic()) {
        true => name,
        false => format!("gpu-{name}"),
    }
}

impl Pool<'_> {
    fn slices(&self) -> usize {
        self.gpus.len() * usize::from(self.geometry.slices())
    }

    /// What the node's `Gres=` says of the slices.
    pub fn gres(&self) -> String {
        format!("gpuos:{}:{}", self.board, self.slices())
    }

    /// `[[mig.board]]` and `[[mig.pool]]`.
    pub fn gpuos_toml(&self, node: &str) -> String {
        let set = self
            .gpus
            .iter()
            .fold(GpuSet::EMPTY, |set, one| set.with(one.index.into()));
        let profiles: String = self.geometry.profiles().iter().map(profile).collect();
        let board = &self.board;
        let both = self.gpus.iter().filter(|one| one.gpu.number.is_some());
        let both = both.fold(GpuSet::EMPTY, |set, one| set.with(one.index.into()));
        let switchable = match both.is_empty() {
            true => String::new(),
            false => format!("{SWITCHABLE}switchable = \"{both}\"\n"),
        };
        format!(
            "\n[[mig.board]]\nname = \"{board}\"\nprofiles = [\n{profiles}]\n\n\
             [[mig.pool]]\nnodes = \"{node}\"\ngpus = \"{set}\"\n{switchable}board = \"{board}\"\n"
        )
    }

    /// A line for each GPU: every slice is a file that gpuosd writes.
    pub fn gres_conf(&self, found: &NodeHardware, node: &str) -> String {
        let last = self.geometry.slices().max(1) - 1;
        let line = |one: &&Divided| {
            let (board, gpu) = (&self.board, one.index);
            let cores = cores_beside(found, &one.gpu);
            let cores = cores.map_or(String::new(), |cores| format!(" Cores={cores}"));
            format!(
                "NodeName={node} Name=gpuos Type={board} File={SLICES}/gpu{gpu}s[0-{last}]{cores}\n"
            )
        };
        self.gpus.iter().map(line).collect()
    }
}

fn profile(profile: &Profile) -> String {
    let Profile {
        id,
        name,
        compute,
        memory_mib,
        most,
        size,
        starts,
        engines,
    } = profile;
    format!(
        "  {{ id = {id}, name = {}, compute = {compute}, memory-mib = {memory_mib}, most = {most}, \
         size = {size}, starts = {starts:?}, engines = {engines:?} }},\n",
        quoted(name)
    )
}

/// How MIG mode stands on the node, in a line; `None` when no GPU can be divided.
pub fn mig_modes(found: &NodeHardware) -> Option<String> {
    let mode = |gpu: &GpuHardware| gpu.identity.mig;
    let whole: Vec<MigMode> = found.gpus.iter().filter_map(mode).collect();
    let off = whole.iter().filter(|mig| !mig.on && !mig.pending).count();
    let waiting = whole.iter().filter(|mig| !mig.on && mig.pending).count();
    if whole.is_empty() && found.divided.is_empty() {
        return None;
    }
    let mut parts = Vec::new();
    if !found.divided.is_empty() {
        parts.push(format!("on for {} GPUs", found.divided.len()));
    }
    if waiting > 0 {
        parts.push(format!("on after the next reset for {waiting}"));
    }
    if off > 0 {
        parts.push(format!(
            "off for {off} that have it (`nvidia-smi -i GPU -mig 1` turns it on, for slices that jobs share: \
             docs/admin/mig.md)"
        ));
    }
    Some(format!("MIG mode: {}", parts.join("; ")))
}

/// Where gpuos.toml and the driver differ about GPUs in MIG mode: a sentence, and what to do. Nothing
/// where gpuos.toml has no pool at all: then MIG is none of gpuos's business.
pub fn mig_differences(
    found: &NodeHardware,
    config: &MigConfig,
    node: &str,
) -> Vec<(String, String)> {
    let pool = config.pool_of(node);
    let discover = format!("write the lines that `gpuos discover --node-name {node}` prints");
    let mut all = Vec::new();
    if let Some((pool, board)) = pool {
        for gpu in pool.gpus.iter() {
            let one = found.divided.iter().find(|one| one.index == u8::from(gpu));
            match one.map(|one| &one.geometry) {
                Some(Ok(told)) if same(told, &board.geometry) => {}
                Some(Ok(_)) => all.push((
                    format!(
                        "[[mig.board]] {} is not how the driver divides GPU {gpu} of {node}",
                        board.name
                    ),
                    discover.clone(),
                )),
                Some(Err(why)) => all.push((
                    format!("how GPU {gpu} of {node} can be divided is not known: {why}"),
                    "see to the GPU and its driver".into(),
                )),
                // Nobody has slices of it now.
                None if pool.switchable.contains(gpu) => {}
                None => all.push((
                    format!("[[mig.pool]] has GPU {gpu} of {node}, and the driver shows no such GPU in MIG mode"),
                    format!("turn MIG mode on (`nvidia-smi -i {gpu} -mig 1`, on some boards a reset after it), or {discover}"),
                )),
            }
        }
    }
    if let Some((pool, _)) = pool {
        let switchable = pool.switchable.iter();
        all.extend(switchable.filter_map(|gpu| misnumbered(found, pool, node, gpu)));
    }
    let known = |index: u8| pool.is_some_and(|(pool, _)| pool.gpus.0.contains(index.into()));
    let strange = found.divided.iter().filter(|one| !known(one.index));
    for one in strange.filter(|_| !config.pools.is_empty()) {
        let index = one.index;
        all.push((
            format!("GPU {index} of {node} is in MIG mode and in no [[mig.pool]]: no job gets it"),
            format!("{discover}, or turn MIG mode off (`nvidia-smi -i {index} -mig 0`)"),
        ));
    }
    all
}

/// Where a MIG-switchable GPU has another number in GRES `gpu` than gpuos takes it for: a sentence, and what to do.
fn misnumbered(
    found: &NodeHardware,
    pool: &MigPool,
    node: &str,
    gpu: NvmlIndex,
) -> Option<(String, String)> {
    let own = found.gpus.iter().find(|one| one.index == u8::from(gpu));
    let number = own.and_then(|one| one.number);
    let wanted = pool.whole(gpu)?;
    let told = match number {
        Some(number) if number == u8::from(wanted) => return None,
        Some(number) => format!("gres.conf makes it number {number} of GRES gpu"),
        None => "it is not one of GRES gpu in gres.conf, or does not answer".into(),
    };
    Some((
        format!(
            "GPU {gpu} of {node} is MIG-switchable ([[mig.pool]]) and has to be number {wanted} of GRES gpu: {told}"
        ),
        format!(
            "name GRES gpu in gres.conf by NVML's index, without the GPUs in MIG mode for good ({}), as `gpuos discover \
             --switchable {}` prints it while all of the pool are in MIG mode",
            pool.fixed(),
            pool.switchable
        ),
    ))
}

/// Whether two geometries have the same profiles, in any order.
fn same(a: &Geometry, b: &Geometry) -> bool {
    let has = |profile: &Profile| b.profiles().contains(profile);
    a.profiles().len() == b.profiles().len() && a.profiles().iter().all(has)
}
