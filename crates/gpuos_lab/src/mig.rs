//! GPUs of a lab's nodes that are divided by MIG: what slurm.conf, gres.conf and gpuos.toml say of them, and the
//! files that stand for NVIDIA's capability devices and for gpuosd's slices.
//!
//! Boards are those that the simulated NVML has, with the origin of their figures in `crates/gpuos_sim/data/mig`.

use std::fs;
use std::path::PathBuf;

use gpuos_model::cluster::NodeType;
use gpuos_model::gpuset::GpuSet;
use gpuos_model::hostlist;
use serde::Deserialize;

use crate::error::{Context, LabError};
use crate::node_type;
use crate::spec::LabSpec;
use crate::store::Record;
use crate::sys;

const BOARDS: &str = include_str!("../../gpuos_sim/data/mig/boards.json");

/// Which board a node type's GPUs are, by the name that NVML gives them.
const BOARD_OF: [(&str, &str); 5] = [
    ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
    ("NVIDIA A100 80GB PCIe", "a100-80gb"),
    ("NVIDIA H100 80GB HBM3", "h100-80gb"),
    ("NVIDIA H200", "h200"),
    ("NVIDIA B200", "b200"),
];

/// GPU instances that the driver has numbers for on a GPU, and compute instances of each.
const INSTANCES: [usize; 2] = [15, 8];

/// What `config` and `monitor` leave: the number of the first GPU's first instance.
const FIRST_MINOR: usize = 3;

/// A major number that no driver has: opening such a device fails where the device group lets it through.
const CAPS_MAJOR: u32 = 120;

/// A kind of GPU.
#[derive(Deserialize)]
pub(crate) struct Board {
    /// Its name, and the type of GRES `gpuos`.
    pub(crate) name: String,
    profiles: Vec<Profile>,
}

#[derive(Deserialize)]
struct Profile {
    id: u32,
    name: String,
    compute: u8,
    memory_mib: u64,
    most: u8,
    size: usize,
    starts: Vec<usize>,
    engines: [u8; 4],
}

impl Board {
    /// Memory slices of one GPU.
    pub(crate) fn slices(&self) -> usize {
        let ends = self.profiles.iter().map(|profile| {
            let start = profile.starts.iter().max().copied().unwrap_or(0);
            start + profile.size
        });
        ends.max().unwrap_or(0)
    }

    /// Its entry in gpuos.toml.
    fn stanza(&self) -> String {
        let profiles = self.profiles.iter().map(|one| {
            format!(
                "  {{ id = {}, name = {:?}, compute = {}, memory-mib = {}, most = {}, size = {}, starts = {:?}, \
                 engines = {:?} }},\n",
                one.id, one.name, one.compute, one.memory_mib, one.most, one.size, one.starts, one.engines
            )
        });
        let profiles: String = profiles.collect();
        format!(
            "[[mig.board]]\nname = {:?}\nprofiles = [\n{profiles}]\n",
            self.name
        )
    }
}

/// The board of a node type whose GPUs are in the pool; `None` where the node has no GPU or the lab no pool.
///
/// # Errors
/// The GPUs cannot be divided, or the pool has a GPU that the node has not.
pub(crate) fn board(spec: &LabSpec, node_type: &NodeType) -> Result<Option<Board>, LabError> {
    if spec.mig.is_empty() || node_type.gpus == 0 {
        return Ok(None);
    }
    if let Some(gpu) = spec.mig.iter().find(|gpu| *gpu >= node_type.gpus) {
        return Err(LabError::Spec(format!(
            "--mig {}: node type {} has no GPU {gpu}: give GPUs from 0 to {}",
            spec.mig,
            node_type.name,
            node_type.gpus - 1
        )));
    }
    let boards: Vec<Board> = serde_json::from_str(BOARDS).unwrap_or_default();
    let known = BOARD_OF.iter().find(|(gpu, _)| *gpu == node_type.gpu);
    let found = known.and_then(|(_, name)| boards.into_iter().find(|board| board.name == *name));
    found.map(Some).ok_or_else(|| {
        let can = BOARD_OF.map(|(gpu, _)| gpu).join(", ");
        LabError::Spec(format!(
            "--mig {}: node type {} has GPUs that cannot be divided here ({}); give one with {can}",
            spec.mig, node_type.name, node_type.gpu
        ))
    })
}

/// The GPUs of a node that are in GRES `gpu`: the MIG-switchable ones are.
pub(crate) fn whole(spec: &LabSpec, node_type: &NodeType) -> Vec<usize> {
    let fixed = fixed(spec);
    (0..node_type.gpus)
        .filter(|gpu| !fixed.contains(*gpu))
        .collect()
}

/// The GPUs of a node that are in MIG mode for good.
pub(crate) fn fixed(spec: &LabSpec) -> GpuSet {
    spec.mig.minus(spec.mig_switchable)
}

/// The `[mig]` part of gpuos.toml; empty without a pool, or where the lab's own text has one.
pub(crate) fn stanza(spec: &LabSpec) -> Result<String, LabError> {
    let own = spec.gpuos_toml.as_deref().unwrap_or_default();
    if spec.mig.is_empty()
        || own
            .lines()
            .any(|line| line.trim_start().starts_with("[mig"))
    {
        return Ok(String::new());
    }
    let mut boards: Vec<(Board, Vec<String>)> = Vec::new();
    for (node, kind) in spec
        .typed_nodes()
        .into_iter()
        .chain(spec.typed_cloud_nodes())
    {
        let Some(board) = board(spec, &node_type::find(spec, &kind)?)? else {
            continue;
        };
        match boards
            .iter_mut()
            .find(|(known, _)| known.name == board.name)
        {
            Some((_, nodes)) => nodes.push(node),
            None => boards.push((board, vec![node])),
        }
    }
    let mut text = "\n[mig]\nforeign = \"leave\"\n".to_string();
    let mut switchable = String::new();
    if !spec.mig_switchable.is_empty() {
        let [after, hold] = spec.mig_switch_seconds;
        text += &format!("switch-after = \"{after}s\"\nswitch-hold = \"{hold}s\"\n");
        switchable = format!("switchable = \"{}\"\n", spec.mig_switchable);
    }
    for (board, _) in &boards {
        text += &board.stanza();
    }
    for (board, nodes) in &boards {
        let nodes = hostlist::compress(nodes.iter().map(String::as_str));
        text += &format!(
            "[[mig.pool]]\nnodes = {nodes:?}\ngpus = \"{}\"\n{switchable}board = {:?}\n",
            spec.mig, board.name
        );
    }
    Ok(text)
}

/// Folder of the slice files of a node; all cloud nodes, whose files nobody reads, have one.
pub(crate) fn slices_dir(record: &Record, node: &str) -> PathBuf {
    record.path(&format!("mig/{node}/slices"))
}

/// Name of the first slice file of a GPU without its number: `gpu4s`.
pub(crate) fn slice_file(gpu: usize) -> String {
    format!("gpu{gpu}s")
}

/// The number of a capability's device, as the driver counts them.
fn minor(gpu: usize, instance: usize, compute: Option<usize>) -> usize {
    let [instances, computes] = INSTANCES;
    let first = FIRST_MINOR + (gpu * instances + instance) * (1 + computes);
    first + compute.map_or(0, |compute| 1 + compute)
}

/// `/proc/driver/nvidia-caps/mig-minors` of the GPUs in the pool.
fn minors(pool: GpuSet) -> String {
    let [instances, computes] = INSTANCES;
    let mut text = "config 1\nmonitor 2\n".to_string();
    for gpu in pool.iter() {
        for instance in 0..instances {
            text += &format!(
                "gpu{gpu}/gi{instance}/access {}\n",
                minor(gpu, instance, None)
            );
            for compute in 0..computes {
                let minor = minor(gpu, instance, Some(compute));
                text += &format!("gpu{gpu}/gi{instance}/ci{compute}/access {minor}\n");
            }
        }
    }
    text
}

/// Folder with the capability devices of a node, `nvidia-cap3`, …, as `/dev/nvidia-caps`.
pub(crate) fn caps_dir(record: &Record, node: &str) -> PathBuf {
    record.device_dir().join(format!("caps-{node}"))
}

/// What stands for `/proc/driver/nvidia-caps/mig-minors` on a node.
pub(crate) fn minors_file(record: &Record, node: &str) -> PathBuf {
    record.path(&format!("mig/{node}/minors"))
}

/// Makes the capability devices and the first slice files of all nodes with a pool: slurmd does not start
/// without the latter.
pub(crate) fn make(record: &Record) -> Result<(), LabError> {
    let spec = &record.spec;
    for (node, kind) in spec.typed_nodes() {
        if let Some(board) = board(spec, &node_type::find(spec, &kind)?)? {
            make_slices(record, &node, &board)?;
        }
    }
    Ok(())
}

fn make_slices(record: &Record, node: &str, board: &Board) -> Result<(), LabError> {
    let pool = record.spec.mig;
    let (slices, caps) = (slices_dir(record, node), caps_dir(record, node));
    for dir in [&slices, &caps] {
        fs::create_dir_all(dir).context(|| format!("cannot make {}", dir.display()))?;
    }
    let write = |path: PathBuf, text: &str| {
        fs::write(&path, text).context(|| format!("cannot write {}", path.display()))
    };
    write(minors_file(record, node), &minors(pool))?;
    let [instances, computes] = INSTANCES;
    for gpu in pool.iter() {
        let mut fence = String::new();
        let whole = record.device_dir().join(format!("nvidia{gpu}"));
        for slice in 0..board.slices() {
            let file = slices.join(format!("{}{slice}", slice_file(gpu)));
            write(file, &format!("{}\n", whole.display()))?;
        }
        for number in minor(gpu, 0, None)..minor(gpu, instances, None) {
            let path = caps.join(format!("nvidia-cap{number}"));
            sys::make_device_file(&path, CAPS_MAJOR, number as u32)
                .context(|| format!("cannot make {}", path.display()))?;
            if (number - minor(gpu, 0, None)).is_multiple_of(1 + computes) {
                fence += &format!("{}\n", path.display());
            }
        }
        write(slices.join(format!("fence{gpu}")), &fence)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_driver() {
        let text = minors(GpuSet::EMPTY.with(1));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[..2], ["config 1", "monitor 2"]);
        assert_eq!(
            lines[2..5],
            [
                "gpu1/gi0/access 138",
                "gpu1/gi0/ci0/access 139",
                "gpu1/gi0/ci1/access 140"
            ]
        );
        assert_eq!(lines.last(), Some(&"gpu1/gi14/ci7/access 272"));
    }

    #[test]
    fn boards_and_pools() {
        let spec = LabSpec {
            nodes: 3.into(),
            mig: GpuSet(0b1111_0000),
            ..LabSpec::default()
        };
        let found = |kind: &str| board(&spec, &node_type::find(&spec, kind).expect("a type"));
        let h100 = found("dgx-h100").expect("may be divided").expect("a board");
        assert_eq!((h100.name.as_str(), h100.slices()), ("h100-80gb", 8));
        assert!(found("cpu").expect("fine").is_none());
        for (kind, why) in [
            ("pairs-8", "cannot be divided"),
            ("a100-pairs-4", "no GPU 4"),
        ] {
            let error = found(kind).err().expect(kind).to_string();
            assert!(error.contains(why), "{error}");
        }
        let text = stanza(&spec).expect("a stanza");
        assert!(
            text.contains("nodes = \"n[1-3]\"\ngpus = \"4-7\"\nboard = \"h100-80gb\""),
            "{text}"
        );
        let switchable = LabSpec {
            mig_switchable: GpuSet(0b1000_0000),
            mig_switch_seconds: [1, 90],
            ..spec.clone()
        };
        let text = stanza(&switchable).expect("a stanza");
        for part in [
            "switch-after = \"1s\"\nswitch-hold = \"90s\"\n",
            "gpus = \"4-7\"\nswitchable = \"7\"\n",
        ] {
            assert!(text.contains(part), "{text}");
        }
        let own = LabSpec {
            gpuos_toml: Some("[mig]\nforeign = \"destroy\"\n".into()),
            ..spec.clone()
        };
        assert_eq!(stanza(&own).expect("fine"), "");
    }
}
