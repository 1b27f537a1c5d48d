//! How many jobs gpuos places where cons_tres has a choice, and how many of its offers cons_tres refuses.

use gpuos_lab::{LabSpec, Suite};
use gpuos_tests::{Cluster, Setup, per_suite};

per_suite!(whole_memory);

fn cloud(name: &str, suite: &Suite, nodes: usize) -> Setup {
    let mut setup = Setup::new(name, suite);
    setup.spec.nodes = 0.into();
    setup.spec.cloud_nodes = Some(nodes);
    setup.spec.node_type = "dgx-h100".into();
    setup.spec.topology_conf = Some(LabSpec::tree_topology(&setup.spec.cloud_names(), 32));
    setup.spec.slurm_conf_extra.extend([
        "DefMemPerCPU=".into(),
        "ResumeRate=0".into(),
        "SlurmctldDebug=info".into(),
    ]);
    setup
}

fn running(cluster: &Cluster) -> usize {
    cluster.run("squeue", &["-h", "-r", "-t", "R,CF", "-o", "%i"]).lines().count()
}

fn noted(cluster: &Cluster) -> usize {
    cluster.run("scontrol", &["-o", "show", "job"]).lines().filter(|l| l.contains("SystemComment=gpuos")).count()
}

fn whole_memory(suite: &Suite) {
    let jobs = std::env::var("GPUOS_STEER_JOBS").ok().and_then(|n| n.parse().ok()).unwrap_or(60);
    let nodes = std::env::var("GPUOS_STEER_NODES").ok().and_then(|n| n.parse().ok()).unwrap_or(200);
    let setup = cloud("steering", suite, nodes);
    let Some(cluster) = setup.steered() else { return };
    let all = format!("NodeName=c[1-{nodes}]");
    cluster.run("scontrol", &["update", &all, "State=POWER_UP"]);
    let array = format!("--array=1-{jobs}");
    cluster.sbatch(&[&array, "--gres=gpu:1"], "sleep 600");
    let start = std::time::Instant::now();
    cluster.until("all run", || (running(&cluster) == jobs).then_some(()));
    let text = cluster.run("scontrol", &["-d", "-o", "show", "job"]);
    for l in text.lines().take(2) { eprintln!("{l}"); }
    eprintln!("{}", cluster.run("scontrol", &["show", "config"]).lines().filter(|l| l.contains("DefMem") || l.contains("SelectType")).collect::<Vec<_>>().join("\n"));
    eprintln!("{} of {jobs} steered, {:?}", noted(&cluster), start.elapsed());
}
