//! What ends beneath a program: processes of a job, daemons of a node, a whole node, slurmctld.

use std::fs;
use std::process::Command;
use std::time::Duration;

use gpuos_tests::Cluster;

use super::{Matrix, NODES};

/// What ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Victim {
    Nothing,
    Rank,
    Ranks,
    Slurmstepd,
    Slurmd,
    Gpuosd,
    Mover,
    Node,
    Slurmctld,
}

/// All of them, in the order of the table.
pub(crate) const VICTIMS: [Victim; 9] = [
    Victim::Nothing,
    Victim::Rank,
    Victim::Ranks,
    Victim::Slurmstepd,
    Victim::Slurmd,
    Victim::Gpuosd,
    Victim::Mover,
    Victim::Node,
    Victim::Slurmctld,
];

impl Victim {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Victim::Nothing => "nothing",
            Victim::Rank => "one rank",
            Victim::Ranks => "all ranks",
            Victim::Slurmstepd => "slurmstepd",
            Victim::Slurmd => "slurmd",
            Victim::Gpuosd => "gpuosd",
            Victim::Mover => "mover",
            Victim::Node => "node",
            Victim::Slurmctld => "slurmctld",
        }
    }

    /// Whether the program has to be started again. Ranks go on where their slurmstepd has ended.
    pub(crate) fn ends_programs(self) -> bool {
        matches!(self, Victim::Rank | Victim::Ranks | Victim::Node)
    }

    /// Whether it belongs to one job, and the others need not notice.
    pub(crate) fn is_of_one_job(self) -> bool {
        matches!(self, Victim::Rank | Victim::Ranks | Victim::Slurmstepd)
    }

    /// How many moments are enough, whatever is asked for.
    pub(crate) fn enough(self) -> u64 {
        match self {
            Victim::Nothing => 3,
            _ => u64::MAX,
        }
    }

    /// To what programs count that it ends beneath, a step each 50 ms: far enough for [`Victim::most`].
    pub(crate) fn limit(self) -> u64 {
        match self {
            Victim::Nothing | Victim::Slurmstepd => 400,
            _ => 2000,
        }
    }

    /// How often it may end in the life of a job. When all of a step's slurmstepds have ended, its srun hears of nobody and waits for ever.
    pub(crate) fn most(self) -> usize {
        match self {
            Victim::Nothing => 1,
            Victim::Slurmstepd => 2,
            _ => 40,
        }
    }
}

/// What was done.
pub(crate) struct Struck {
    rank: u32,
}

/// A process of a rank.
pub(crate) struct Process {
    pub(crate) pid: u32,
    node: String,
    job: u32,
    /// `None`: the script.
    pub(crate) rank: Option<u32>,
}

/// Ends it, and starts daemons again after a moment; a node stays away.
pub(crate) fn strike(
    matrix: &mut Matrix,
    victim: Victim,
    jobs: &[u32],
    earlier: &[Struck],
) -> Struck {
    let away = Duration::from_millis(200 + matrix.random.below(1500));
    let random = matrix.random.below(3) as usize;
    let nodes = NODES.iter().filter(|node| **node != matrix.spare);
    let node = *nodes.cycle().nth(random).expect("three nodes");
    // All programs have as many.
    let mut rank = matrix.random.below(3) as u32;
    while victim == Victim::Slurmstepd && earlier.iter().any(|other| other.rank == rank) {
        rank = (rank + 1) % 3;
    }
    let cluster = &matrix.cluster;
    match victim {
        Victim::Nothing => (),
        Victim::Rank | Victim::Ranks => {
            for process in of_jobs(cluster, jobs) {
                if victim == Victim::Ranks || process.rank == Some(rank) {
                    kill(process.pid);
                }
            }
        }
        Victim::Slurmstepd => {
            for process in of_jobs(cluster, jobs) {
                if process.rank == Some(rank)
                    && let Some(pid) = slurmstepd(process.pid)
                {
                    kill(pid);
                }
            }
        }
        Victim::Slurmd => {
            cluster.kill_slurmd(node);
            std::thread::sleep(away);
            cluster.lab.start_slurmd(node).expect("starts");
        }
        Victim::Gpuosd => {
            cluster.lab.kill_gpuosd(node, libc::SIGKILL).expect("ends");
            std::thread::sleep(away);
            cluster.lab.start_gpuosd(node).expect("starts");
        }
        Victim::Mover => {
            cluster.lab.kill_mover(node, libc::SIGKILL).expect("ends");
            std::thread::sleep(away);
            cluster.lab.start_mover(node).expect("starts");
        }
        Victim::Slurmctld => {
            // What it has not saved is lost without gpuos, too.
            cluster.lab.wait_saved().expect("saves");
            cluster.lab.kill_slurmctld(libc::SIGKILL).expect("ends");
            std::thread::sleep(away);
            cluster.lab.start_slurmctld().expect("starts");
        }
        Victim::Node => {
            lose(matrix, node);
            matrix.lost = Some(node);
        }
    }
    Struck { rank }
}

/// The ranks of these jobs.
fn of_jobs(cluster: &Cluster, jobs: &[u32]) -> Vec<Process> {
    let mut all = programs(cluster);
    all.retain(|process| process.rank.is_some() && jobs.contains(&process.job));
    all
}

/// Ends all of a node at once but its gpuosd, and what its disk has of checkpoints.
pub(crate) fn end_all_of(cluster: &Cluster, node: &str) {
    let there = programs(cluster);
    let there = there.iter().filter(|process| process.node == node);
    let pids: Vec<u32> = there
        .flat_map(|process| slurmstepd(process.pid).into_iter().chain([process.pid]))
        .collect();
    // In a node that loses its power nobody sees another one end: srun would have Slurm end the step on the other nodes.
    signal("-STOP", &pids);
    cluster.lab.kill_mover(node, libc::SIGKILL).expect("ends");
    cluster.kill_slurmd(node);
    signal("-KILL", &pids);
    fs::remove_dir_all(cluster.lab.checkpoints_dir(node)).expect("it had a store");
}

/// Removes what Slurm's PMIx keeps of steps, as a node that starts again would with its temporary files: what of steps that ended without a word is left
/// lets no step of the same number begin there.
fn forget_pmix(matrix: &Matrix, node: &str) {
    let spool = matrix.cluster.lab.dir().join("spool").join(node);
    let temporary = matrix.temporary.join(node);
    let all = [spool, temporary].map(fs::read_dir).into_iter().flatten();
    for entry in all.flatten().flatten() {
        let (name, path) = (entry.file_name(), entry.path());
        let of_pmix = ["stepd.slurm.pmix.", "pmix.", "spmix_appdir_"];
        if of_pmix
            .iter()
            .any(|own| name.to_string_lossy().starts_with(own))
        {
            let _ = fs::remove_dir_all(&path).or_else(|_| fs::remove_file(&path));
        }
    }
}

/// A node is lost, slurmctld is told, and the spare one may take over.
fn lose(matrix: &Matrix, node: &'static str) {
    let cluster = &matrix.cluster;
    end_all_of(cluster, node);
    forget_pmix(matrix, node);
    down(cluster, node);
    let spare = format!("NodeName={}", matrix.spare);
    cluster.update(&[&spare, "State=RESUME"]);
}

/// Slurm counts a node as lost, and requeues what ran there.
pub(crate) fn down(cluster: &Cluster, node: &str) {
    cluster.update(&[&format!("NodeName={node}"), "State=DOWN", "Reason=lost"]);
}

/// The processes of all jobs of this lab: other labs of this machine have jobs of the same numbers.
pub(crate) fn programs(cluster: &Cluster) -> Vec<Process> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else {
            continue;
        };
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        let environment = String::from_utf8_lossy(&environment).into_owned();
        let value = |name: &str| {
            let mut all = environment
                .split('\0')
                .filter_map(|line| line.split_once('='));
            all.find(|(key, _)| *key == name)
                .map(|(_, value)| value.to_string())
        };
        let Some(folder) = value("GPUOS_CHECKPOINT_DIR") else {
            continue;
        };
        let lab = cluster.lab.dir().join("mover");
        let Some(rest) = folder.strip_prefix(&*lab.to_string_lossy()) else {
            continue;
        };
        let parts: Vec<&str> = rest.trim_start_matches('/').split('/').collect();
        if let [node, "jobs", job] = parts[..]
            && let Ok(job) = job.parse()
        {
            let rank = value("GPUOS_MATRIX_RANK").and_then(|rank| rank.parse().ok());
            found.push(Process {
                pid,
                node: node.into(),
                job,
                rank,
            });
        }
    }
    found
}

/// The slurmstepd that a process descends from.
pub(crate) fn slurmstepd(pid: u32) -> Option<u32> {
    let mut pid = pid;
    while pid > 1 {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name stands in parentheses and may have some itself.
        let (name, rest) = stat.rsplit_once(')')?;
        if name.ends_with("(slurmstepd") {
            return Some(pid);
        }
        pid = rest.split_ascii_whitespace().nth(1)?.parse().ok()?;
    }
    None
}

pub(crate) fn kill(pid: u32) {
    signal("-KILL", &[pid]);
}

/// To all that have not ended by themselves.
fn signal(which: &str, pids: &[u32]) {
    let pids = pids.iter().map(u32::to_string);
    let _ = Command::new("kill").arg(which).args(pids).output();
}
