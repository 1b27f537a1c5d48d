//! Checkpoints on a real Slurm: a program saves itself, loses its node, and goes on from its last checkpoint on other nodes.

use std::fs;
use std::path::{Path, PathBuf};

use gpuos_lab::Suite;
use gpuos_tests::cluster::LIMIT;
use gpuos_tests::{Cluster, Setup, per_suite, plugins};

per_suite!(ranks_go_on_after_their_node_is_lost);

/// Nodes with a mover each, and no gpuosd.
fn movers(name: &str, suite: &Suite, nodes: usize) -> Option<Cluster> {
    let mut setup = Setup::new(name, suite);
    setup.spec.nodes = nodes.into();
    setup.spec.movers = Some(plugins::daemons().to_path_buf());
    setup.steered()
}

/// The example of the documentation, which counts and saves.
fn counter() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let root = root.canonicalize().expect("the project");
    let (share, examples) = (root.join("share"), root.join("examples/checkpoint"));
    format!("env GPUOS_SHARE={} sh {}/counter.sh", share.display(), examples.display())
}

fn output(cluster: &Cluster, job: u32) -> String {
    let file = cluster.lab.dir().join(format!("work/{job}.out"));
    fs::read_to_string(file).unwrap_or_default()
}

/// What the movers of all nodes have logged.
fn logs(cluster: &Cluster) -> String {
    let nodes = cluster.lab.spec().node_names();
    let told = nodes.iter().map(|node| format!("== mover of {node}\n{}", cluster.lab.mover_log(node)));
    told.collect()
}

fn until<T>(cluster: &Cluster, what: &str, mut done: impl FnMut() -> Option<T>) -> T {
    let deadline = std::time::Instant::now() + LIMIT.min(std::time::Duration::from_secs(40));
    loop {
        if let Some(value) = done() {
            return value;
        }
        if std::time::Instant::now() > deadline {
            let outputs: String = (1..4).map(|job| output(cluster, job)).collect();
            panic!("waited in vain: {what}\n{}\n{outputs}", logs(cluster));
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

/// Where a node keeps a job's checkpoints.
fn kept(cluster: &Cluster, node: &str, job: u32) -> PathBuf {
    cluster.lab.checkpoints_dir(node).join(job.to_string())
}

/// The number of the newest checkpoint that a job's programs were told of on a node.
fn committed(cluster: &Cluster, node: &str, job: u32) -> Option<u32> {
    let jobs = cluster.lab.checkpoints_dir(node).with_file_name("jobs");
    let file = jobs.join(job.to_string()).join("commit");
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

fn ranks_go_on_after_their_node_is_lost(suite: &Suite) {
    let Some(cluster) = movers("ckpt-lost", suite, 4) else {
        return;
    };
    let script = format!("srun -l {} 100000 0.02", counter());
    let options = ["--requeue", "-N3", "--ntasks-per-node=1", "--gpuos-checkpoint=1s,l2=xor:3"];
    let job = cluster.sbatch(&options, &script);
    cluster.wait(job, &["RUNNING"]);
    let nodes: Vec<String> = cluster.gpus(job).into_keys().collect();
    eprintln!("job {job} on {nodes:?}");
    let first = until(&cluster, "two checkpoints", || committed(&cluster, "n1", job).filter(|number| *number >= 2));
    eprintln!("checkpoint {first} is committed");
    eprintln!("{}\n{}", output(&cluster, job), logs(&cluster));
}
