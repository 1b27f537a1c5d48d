//! Slices of GPUs in a lab: what the simulated driver has, what Slurm's records give, and whether both agree.

use std::collections::BTreeMap;
use std::process::Command;

use gpuos_lab::Suite;
use gpuos_model::gpuset::GpuSet;
use gpuos_model::hostlist::expand;

use crate::{Cluster, Setup, show};

/// Memory slices of an H100.
pub const SLICES: usize = 8;

/// Nodes with eight simulated H100, of which these are in the pool.
pub fn pool(name: &str, suite: &Suite, nodes: usize, gpus: u64) -> Setup {
    let mut setup = Setup::simulated(name, suite, nodes);
    setup.spec.job_submit = true;
    setup.spec.mig = GpuSet(gpus);
    setup
}

/// The same, of which these are MIG-switchable.
pub fn switchable(name: &str, suite: &Suite, nodes: usize, gpus: u64, switchable: u64) -> Setup {
    let mut setup = pool(name, suite, nodes, gpus);
    setup.spec.mig_switchable = GpuSet(switchable);
    setup
}

/// Asks for an allocation and leaves it be; its job.
pub fn ask(cluster: &Cluster, name: &str, options: &str) -> u32 {
    let line = format!("setsid salloc --no-shell -J {name} {options} </dev/null >/dev/null 2>&1 &");
    cluster.run("sh", &["-c", &line]);
    cluster.until(
        &format!("slurmctld has the job of salloc {options}"),
        || {
            let id = cluster.run("squeue", &["-h", "-n", name, "-o", "%i"]);
            id.trim().parse().ok()
        },
    )
}

/// The same, and waits until it runs.
pub fn start(cluster: &Cluster, name: &str, options: &str) -> u32 {
    let job = ask(cluster, name, options);
    cluster.wait(job, &["RUNNING"]);
    job
}

/// `gpuos-nvml` on the GPUs of a node.
pub fn nvml(cluster: &Cluster, node: &str, args: &[&str]) -> String {
    let out = Command::new(cluster.lab.dir().join("bin/gpuos-nvml"))
        .arg("--state")
        .arg(cluster.lab.gpus_dir(node).join("state"))
        .args(args)
        .output()
        .expect("gpuos-nvml runs");
    assert!(out.status.success(), "{out:?}");
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// A MIG instance as the simulated driver has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Instance {
    /// NVML's index.
    pub gpu: usize,
    /// Its memory slices.
    pub slices: Vec<usize>,
    /// Of its compute instance.
    pub uuid: Option<String>,
}

/// The instances of a node, from lines like `gpu7 gi 2 profile 9 slices 4-7 MIG-…`.
pub fn instances(cluster: &Cluster, node: &str) -> Vec<Instance> {
    let text = nvml(cluster, node, &["instances"]);
    let read = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        Some(Instance {
            gpu: words.first()?.strip_prefix("gpu")?.parse().ok()?,
            slices: show::indices(words.get(6)?),
            uuid: words.get(7).map(|uuid| (*uuid).to_owned()),
        })
    };
    let all = text
        .lines()
        .map(|line| read(line).unwrap_or_else(|| panic!("{line}")));
    all.collect()
}

/// The bits of GRES gpuos that each running job holds on each node.
pub fn held(cluster: &Cluster) -> BTreeMap<(u32, String), Vec<usize>> {
    let mut all = BTreeMap::new();
    for id in cluster
        .run("squeue", &["-h", "-t", "R", "-o", "%A"])
        .lines()
    {
        let job = id.trim().parse().expect("a job id");
        for (node, bits) in bits(cluster, job) {
            all.insert((job, node), bits);
        }
    }
    all
}

/// The bits of one job by node.
pub fn bits(cluster: &Cluster, job: u32) -> BTreeMap<String, Vec<usize>> {
    let text = cluster.show(job);
    let lines = text.lines().filter(|line| line.contains("CPU_IDs="));
    let each = lines.filter_map(|line| {
        let nodes = line.trim().strip_prefix("Nodes=")?.split(' ').next()?;
        let rest = line.split("gpuos:").nth(1)?.split("IDX:").nth(1)?;
        let bits = show::indices(rest.split(')').next()?);
        let nodes = expand(nodes).expect("a list of nodes");
        Some(nodes.into_iter().map(move |node| (node, bits.clone())))
    });
    each.flatten().collect()
}

/// Whose each slice of each node is; no slice is two jobs'.
pub fn owners(held: &BTreeMap<(u32, String), Vec<usize>>) -> BTreeMap<(String, usize), u32> {
    let mut owner = BTreeMap::new();
    for ((job, node), bits) in held {
        for &bit in bits {
            let other = owner.insert((node.clone(), bit), *job);
            assert_eq!(other, None, "{node} slice {bit} of job {job} is another's");
        }
    }
    owner
}

/// What NVML has and what Slurm's records say are the same: each instance lies in the slices of one job, no two
/// overlap, and the slices of a job are covered by its instances.
pub fn check(cluster: &Cluster, pool: &[usize]) {
    if let Err(why) = agree(cluster, pool) {
        panic!("{why}");
    }
}

/// As [`check`]; where they differ, a sentence.
pub fn agree(cluster: &Cluster, pool: &[usize]) -> Result<(), String> {
    let owner = owners(&held(cluster));
    for node in cluster.lab.spec().node_names() {
        let mut taken: BTreeMap<usize, u32> = BTreeMap::new();
        for instance in instances(cluster, &node) {
            let at = pool.iter().position(|gpu| *gpu == instance.gpu);
            let first = at.expect("a GPU of the pool") * SLICES;
            let bits = instance.slices.iter().map(|slice| first + slice);
            let job = |bit: usize| owner.get(&(node.clone(), bit)).copied();
            let jobs: Vec<Option<u32>> = bits.clone().map(job).collect();
            let Some(job) = jobs[0] else {
                return Err(format!("{instance:?} of {node} is nobody's"));
            };
            if jobs.iter().any(|one| *one != Some(job)) {
                return Err(format!("{instance:?} of {node} is of jobs {jobs:?}"));
            }
            if bits.into_iter().any(|bit| taken.insert(bit, job).is_some()) {
                return Err(format!("{instance:?} of {node} overlaps another"));
            }
        }
        let covered = owner.iter().filter(|((on, _), _)| *on == node);
        let covered: BTreeMap<usize, u32> = covered.map(|((_, bit), job)| (*bit, *job)).collect();
        if taken != covered {
            return Err(format!(
                "slices with an instance of {node}: {taken:?}; by Slurm: {covered:?}"
            ));
        }
    }
    Ok(())
}

/// The last `NAME=VALUE` that a job has written.
pub fn told(text: &str, name: &str) -> String {
    let start = format!("{name}=");
    let line = text
        .lines()
        .rev()
        .find_map(|line| line.strip_prefix(&start));
    line.unwrap_or_else(|| panic!("no {name}= in {text}"))
        .to_owned()
}

/// How often a job has told its devices (`batch=UUIDS PLACEMENTS` or `step=…`), each of which the driver had then in the placement that the
/// job was told (lines `batch sees gpu7 gi …`, as of [`instances`]).
///
/// # Errors
/// A sentence with one that the driver had not.
pub fn devices(text: &str) -> Result<usize, String> {
    let mut count = 0;
    let lines: Vec<&str> = text.lines().collect();
    for (at, line) in lines.iter().enumerate() {
        let told = line
            .split_once('=')
            .filter(|(who, _)| ["batch", "step"].contains(who));
        let Some((who, told)) = told else { continue };
        let (uuids, placements) = told.split_once(' ').unwrap_or((told, ""));
        let (next, head) = (format!("{who}="), format!("{who} sees gpu"));
        let run = lines[at + 1..]
            .iter()
            .take_while(|line| !line.starts_with(&next));
        let sees: Vec<&str> = run.filter_map(|line| line.strip_prefix(&head)).collect();
        // It was ended before it could look.
        if sees.is_empty() {
            continue;
        }
        let own: Vec<(&str, &str)> = uuids.split(',').zip(placements.split(',')).collect();
        for (uuid, placement) in &own {
            let there = placement.split_once(':').is_some_and(|(gpu, slices)| {
                let (start, end) = (format!("{gpu} gi "), format!(" slices {slices} {uuid}"));
                sees.iter()
                    .any(|one| one.starts_with(&start) && one.ends_with(&end))
            });
            if !uuid.starts_with("MIG-") || !there {
                return Err(format!(
                    "{who} has {uuid} in {placement}, which the driver has not: {text}"
                ));
            }
        }
        count += 1;
    }
    Ok(count)
}
