//! In slurmstepd: the file that `GPUOS_RANK_FILE` names, for jobs with `--gpuos-shape`.
//!
//! It lies in [`FOLDER`], which root owns and everybody reads; it names nodes and says nothing that
//! `squeue` would not. slurmstepd writes it before the step's tasks start and removes it when the
//! step has ended. What cannot be written is left out: nothing here fails a job.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use gpuos_config::site::Site;
use gpuos_model::gpuset::GpuSet;
use gpuos_model::hostlist::expand;
use gpuos_placement::gang::{GroupShape, RankFile, gpu_order};

/// Variable that names the file.
pub const RANK_FILE: &std::ffi::CStr = c"GPUOS_RANK_FILE";
/// Variable by which steps learn the shape of their job.
pub const JOB_SHAPE: &std::ffi::CStr = c"GPUOS_JOB_SHAPE";

/// Where the files are.
const FOLDER: &str = "/run/gpuos";

/// The shape that Slurm handed to this slurmstepd, and the file that it has written.
static SHAPE: Mutex<Option<String>> = Mutex::new(None);
static WRITTEN: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Takes note of the option's value.
pub fn note(shape: &str) {
    *SHAPE.lock().unwrap_or_else(PoisonError::into_inner) = Some(shape.to_owned());
}

/// The value that Slurm handed over, if any.
pub fn noted() -> Option<String> {
    SHAPE.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// What the file is about.
#[derive(Clone, Default, Debug)]
pub struct Step {
    /// The job's shape, as the user wrote it.
    pub shape: String,
    /// Nodes of the step, as a hostlist.
    pub nodes: String,
    /// Which of these is this node.
    pub node_index: usize,
    /// GPUs of the step on this node; the others have as many.
    pub gpus: GpuSet,
    /// `SLURM_JOB_CPUS_PER_NODE`: `4(x2),8`; empty when not known.
    pub cpus: String,
    /// Partition of the job; empty when it is not known.
    pub partition: String,
}

/// The text of the file.
///
/// # Errors
/// Why there is none, for the debug log: the step is not the whole job, or a file of the site has
/// a mistake.
pub fn text(site: &Site, step: &Step) -> Result<String, String> {
    let shape = GroupShape::parse(&step.shape)?;
    let names = expand(&step.nodes).map_err(|e| e.to_string())?;
    let per_node = step.gpus.len() as u32;
    let gpus = u64::from(per_node) * names.len() as u64;
    shape.check(gpus, Some(per_node))?;
    let facts: Option<Vec<_>> = site.nodes.facts(&names).into_iter().collect();
    let facts = facts.ok_or("a node of the step is not in slurm.conf")?;
    let cluster = site.cluster_in(&facts, &step.partition)?;
    let net = site.config.net(&cluster).map_err(|e| e.to_string())?;
    let order = net.ring_order();
    let nodes: Vec<String> = order.iter().map(|&at| names[at as usize].clone()).collect();
    let own = cluster.nodes.get(step.node_index);
    let own = own.and_then(|node| node.node_type.as_deref());
    let ordered = match own.filter(|t| step.gpus.minus(GpuSet::first(t.gpus)).is_empty()) {
        Some(node_type) => gpu_order(node_type, step.gpus, shape.tp),
        None => step.gpus.iter().collect(),
    };
    let whole = facts
        .iter()
        .map(|facts| u32::from(facts.sockets) * u32::from(facts.cores_per_socket));
    let whole = whole.max().is_some_and(|cores| least(&step.cpus) >= cores);
    let sockets: Vec<u16> = match own.filter(|_| whole) {
        Some(node_type) => ordered
            .iter()
            .filter_map(|&gpu| node_type.numa.get(gpu).copied())
            .collect(),
        None => Vec::new(),
    };
    let file = RankFile {
        shape,
        nodes: &nodes,
        per_node,
        gpus: &ordered,
        sockets: &sockets,
    };
    Ok(file.text())
}

/// The lowest count of a list such as `4(x2),8`; 0 when there is none.
fn least(counts: &str) -> u32 {
    let counts = counts
        .split(',')
        .map(|part| part.split('(').next().unwrap_or_default());
    let counts = counts.map(|count| count.trim().parse().unwrap_or(0));
    counts.min().unwrap_or(0)
}

/// Writes the file of a step; returns where it is.
///
/// # Errors
/// The folder or the file cannot be made.
pub fn write(name: &str, text: &str) -> Result<PathBuf, String> {
    write_in(Path::new(FOLDER), name, text)
}

fn write_in(folder: &Path, name: &str, text: &str) -> Result<PathBuf, String> {
    let told = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    match fs::DirBuilder::new().mode(0o755).create(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(told(folder, error));
        }
        _ => {}
    }
    let path = folder.join(name);
    // One left over by a slurmstepd that was killed and had this number.
    let _ = fs::remove_file(&path);
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o644)
        .open(&path)
        .map_err(|error| told(&path, error))?;
    *WRITTEN.lock().unwrap_or_else(PoisonError::into_inner) = Some(path.clone());
    file.write_all(text.as_bytes())
        .map_err(|error| told(&path, error))?;
    Ok(path)
}

/// Removes what this slurmstepd has written, and the folder when it was the last file.
pub fn remove() {
    let written = WRITTEN
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take();
    if let Some(path) = written {
        let _ = fs::remove_file(&path);
        if let Some(folder) = path.parent() {
            let _ = fs::remove_dir(folder);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site() -> Site {
        Site::read(None, &|name| {
            Ok(match name {
                "slurm.conf" => Some("TopologyPlugin=topology/tree\nNodeName=n[1-4] Gres=gpu:l40s:8 Sockets=2 CoresPerSocket=8\n".into()),
                // The order of the fabric is not that of the names.
                "topology.conf" => Some(
                    "SwitchName=l1 Nodes=n[1,3]\nSwitchName=l2 Nodes=n[2,4]\nSwitchName=s Switches=l[1-2]\n"
                        .into(),
                ),
                _ => None,
            })
        })
        .unwrap()
    }

    fn step(shape: &str, nodes: &str, gpus: u64) -> Step {
        Step {
            shape: shape.into(),
            nodes: nodes.into(),
            node_index: 0,
            gpus: GpuSet(gpus),
            cpus: "4(x4)".into(),
            partition: String::new(),
        }
    }

    #[test]
    fn nodes_stand_in_the_order_of_the_fabric() {
        let text = text(&site(), &step("tp2:pp2:dp2", "n[1-4]", 3)).unwrap();
        let nodes: Vec<&str> = text
            .lines()
            .filter(|line| line.starts_with("#node"))
            .collect();
        assert_eq!(
            nodes,
            ["#node 0 n1", "#node 1 n3", "#node 2 n2", "#node 3 n4"]
        );
        assert!(
            text.contains("\nrank 2=n3 slot=0:*\nrank 3=n3 slot=0:*\n"),
            "{text}"
        );
        assert!(text.contains("\n#gpus 0,1\n"), "{text}");
    }

    #[test]
    fn a_step_that_is_not_the_whole_job_has_no_file() {
        let of = |step: &Step| text(&site(), step).unwrap_err();
        assert!(of(&step("tp2:pp2:dp2", "n[1-2]", 3)).contains("asks for 4"));
        assert!(of(&step("tp2:pp2:dp2", "n[1-3],x9", 3)).contains("not in slurm.conf"));
        assert!(of(&step("nonsense", "n1", 3)).contains("'nonsense' is no group"));
        assert!(of(&step("tp2", "n[", 3)).contains("hostlist"));
    }

    #[test]
    fn on_whole_nodes_ranks_stay_on_the_socket_of_their_gpu() {
        let whole = Step {
            cpus: "16(x2)".into(),
            ..step("tp2:dp8", "n[1-2]", 0xff)
        };
        let text = text(&site(), &whole).unwrap();
        assert!(
            text.contains("rank 3=n1 slot=0:*\nrank 4=n1 slot=1:*\n"),
            "{text}"
        );
        for (counts, count) in [
            ("4(x2),8", 4),
            ("8,2(x3)", 2),
            ("16", 16),
            ("", 0),
            ("x", 0),
        ] {
            assert_eq!(least(counts), count, "{counts}");
        }
    }

    #[test]
    fn the_file_is_written_anew_and_removed() {
        let folder = std::env::temp_dir().join(format!("gpuos-ranks-{}", std::process::id()));
        let path = write_in(&folder, "ranks.1.0.0", "one\n").unwrap();
        assert_eq!(write_in(&folder, "ranks.1.0.0", "two\n").unwrap(), path);
        assert_eq!(fs::read_to_string(&path).unwrap(), "two\n");
        remove();
        assert!(!folder.exists());
        assert!(
            write_in(Path::new("/proc/none"), "x", "")
                .unwrap_err()
                .contains("/proc/none")
        );
    }
}
