//! Rules of co-location in a real Slurm: jobs kept apart, places for one job alone, reserves.

use gpuos_lab::Suite;
use gpuos_tests::{Cluster, Setup, per_suite};

per_suite!(
    classes_and_tenants_are_kept_apart,
    a_domain_of_its_own,
    a_reserve_is_for_gangs,
    affinity_to_places,
    several_types_at_once
);

const LEAVES: &str = "[[fabric.level]]\nname = \"leaf\"\n\
    [[fabric.switch]]\nname = \"l1\"\nlevel = \"leaf\"\nnodes = \"n[1-2]\"\n\
    [[fabric.switch]]\nname = \"l2\"\nlevel = \"leaf\"\nnodes = \"n[3-4]\"\n";

/// Four nodes in two leaves, with rules.
fn four(name: &str, rules: &str, suite: &Suite) -> Option<Cluster> {
    let mut setup = Setup::new(name, suite);
    setup.spec.nodes = 4.into();
    setup.spec.gpuos_toml = Some(format!("{LEAVES}{rules}"));
    setup.steered()
}

fn node(cluster: &Cluster, job: u32) -> String {
    let nodes: Vec<String> = cluster.gpus(job).into_keys().collect();
    nodes.join(",")
}

fn in_leaf(cluster: &Cluster, job: u32) -> usize {
    match node(cluster, job).as_str() {
        "n1" | "n2" | "n1,n2" => 1,
        "n3" | "n4" | "n3,n4" => 2,
        other => panic!("job {job} is on {other}"),
    }
}

/// Waits until squeue shows a sentence for a job that waits.
fn waits(cluster: &Cluster, job: u32, says: &str) {
    let id = job.to_string();
    cluster.until(&format!("job {job} waits because {says}"), || {
        let reason = cluster.run("squeue", &["-h", "-j", &id, "-o", "%T %r"]);
        assert!(!reason.starts_with("RUNNING"), "{}", cluster.show(job));
        reason.contains(says).then_some(())
    });
}

fn classes_and_tenants_are_kept_apart(suite: &Suite) {
    let rules = "[[class]]\nname = \"noisy\"\naccount = \"loud\"\n[[class]]\nname = \"train\"\n\
                 [[rule]]\ntenants = \"account\"\nlevel = \"leaf\"\n\
                 [[rule]]\nnever-beside = [\"noisy\", \"train\"]\n";
    let Some(cluster) = four("rules", rules, suite) else {
        return;
    };
    let physics = cluster.start(&["--gres=gpu:1", "-A", "physics"]);
    let biology = cluster.start(&["--gres=gpu:1", "-A", "biology"]);
    assert_ne!(in_leaf(&cluster, physics), in_leaf(&cluster, biology));
    // A third tenant has no leaf; Slurm alone may not give it one either.
    let third = cluster.sbatch(&["--gres=gpu:1", "-A", "loud"], "sleep 600");
    let stock = cluster.sbatch(&["--gres=gpu:1", "-A", "loud", "--gpuos=off"], "sleep 600");
    waits(&cluster, third, "kept apart: account");
    // More of the same tenants, and a job without GPUs, are not touched.
    let more = cluster.start(&["--gres=gpu:4", "-A", "physics"]);
    assert_eq!(in_leaf(&cluster, more), in_leaf(&cluster, physics));
    let cpu = cluster.start(&["-A", "loud"]);
    // It holds after a crash of slurmctld.
    cluster.crash(physics);
    let later = cluster.start(&["--gres=gpu:1", "-A", "biology"]);
    assert_eq!(in_leaf(&cluster, later), in_leaf(&cluster, biology));
    for waiting in [third, stock] {
        assert_eq!(cluster.lab.job_state(waiting).expect("known"), "PENDING");
    }
    // Both are of one account: they may share.
    cluster.cancel(&[biology, later]);
    for job in [third, stock] {
        cluster.wait(job, &["RUNNING"]);
        assert_ne!(in_leaf(&cluster, job), in_leaf(&cluster, physics));
    }
    cluster.cancel(&[physics, more, third, stock, cpu]);

    // The class of a job comes from its account, or from the job itself.
    let noisy = cluster.start(&["--gres=gpu:1", "-A", "loud", "-w", "n1"]);
    let other = cluster.start(&["--gres=gpu:1", "-A", "loud", "-w", "n2"]);
    let train = ["--gres=gpu:1", "-A", "loud", "--gpuos-class=train"];
    let there = [&train[..], &["-w", "n1"]].concat();
    let beside = cluster.sbatch(&there, "sleep 600");
    waits(
        &cluster,
        beside,
        "n1 is kept apart: class noisy runs there (rule 2)",
    );
    let apart = cluster.start(&train);
    assert_eq!(in_leaf(&cluster, apart), 2);
    cluster.cancel(&[noisy]);
    cluster.wait(beside, &["RUNNING"]);
    cluster.cancel(&[other, beside, apart]);
    cluster.drained();
}

/// Without any rule in gpuos.toml.
fn a_domain_of_its_own(suite: &Suite) {
    let Some(cluster) = four("sole", "", suite) else {
        return;
    };
    let sole = cluster.start(&["--gres=gpu:1", "--gpuos-exclusive=leaf"]);
    let leaf = in_leaf(&cluster, sole);
    // Nobody joins it: neither steered, nor by Slurm alone, nor after a restart.
    let beside = cluster.start(&["--gres=gpu:1"]);
    assert_ne!(in_leaf(&cluster, beside), leaf);
    let wide = cluster.sbatch(&["-N3", "--gres=gpu:1"], "sleep 600");
    let stock = cluster.sbatch(&["-N3", "--gres=gpu:1", "--gpuos=off"], "sleep 600");
    waits(
        &cluster,
        wide,
        &format!("job {sole} has leaf l{leaf} to itself"),
    );
    cluster.restart_slurmctld();
    let again = cluster.start(&["-N2", "--gres=gpu:1"]);
    assert_ne!(in_leaf(&cluster, again), leaf);
    cluster.lab.reconfigure().expect("reconfigures");
    let more = cluster.start(&["-N2", "--gres=gpu:1"]);
    assert_ne!(in_leaf(&cluster, more), leaf);
    // It does not join others: the other leaf is in use.
    let second = cluster.sbatch(&["--gres=gpu:1", "--gpuos-exclusive=leaf"], "sleep 600");
    waits(&cluster, second, "to itself");
    // On the node alone is possible beside jobs on the other.
    cluster.cancel(&[wide, stock, again, more]);
    let alone = cluster.start(&["--gres=gpu:1", "--gpuos-exclusive=node"]);
    assert_ne!(in_leaf(&cluster, alone), leaf);
    assert_ne!(node(&cluster, alone), node(&cluster, beside));
    let tight = cluster.start(&["--gres=gpu:7"]);
    assert_eq!(node(&cluster, tight), node(&cluster, beside));
    cluster.cancel(&[sole]);
    cluster.wait(second, &["RUNNING"]);
    assert_eq!(in_leaf(&cluster, second), leaf);
    cluster.cancel(&[second, alone, tight, beside]);
    let all = cluster.start(&["-N4", "--gres=gpu:8"]);
    cluster.cancel(&[all]);
    cluster.drained();
}

fn a_reserve_is_for_gangs(suite: &Suite) {
    let rules = "[[reserve]]\ndomains = 1\nlevel = \"leaf\"\ngangs = 2\nhard = true\nunless-shorter = \"5m\"\n\
                 [[reserve]]\nnodes = 3\ngangs = 2\n";
    let Some(cluster) = four("reserve", rules, suite) else {
        return;
    };
    // Three nodes are a last resort: all go to the fourth while it has room.
    let small: Vec<u32> = (0..4)
        .map(|_| cluster.start(&["--gres=gpu:2", "-t", "60"]))
        .collect();
    assert!(small.iter().all(|job| node(&cluster, *job) == "n1"));
    // Then to the next one, but never to the leaf that is kept.
    let next: Vec<u32> = (0..4)
        .map(|_| cluster.start(&["--gres=gpu:2", "-t", "60"]))
        .collect();
    assert!(next.iter().all(|job| node(&cluster, *job) == "n2"));
    let waiting = cluster.sbatch(&["--gres=gpu:2", "-t", "60"], "sleep 600");
    let stock = cluster.sbatch(&["--gres=gpu:2", "-t", "60", "--gpuos=off"], "sleep 600");
    waits(
        &cluster,
        waiting,
        "kept for gangs on 2 nodes or more (reserve 1)",
    );
    // A gang may have it, and a short job.
    let gang = cluster.start(&["-N2", "--gres=gpu:4", "-t", "60"]);
    assert_eq!(in_leaf(&cluster, gang), 2);
    let short = cluster.start(&["--gres=gpu:1", "-t", "2"]);
    assert_eq!(in_leaf(&cluster, short), 2);
    // Short by its partition.
    cluster.run(
        "scontrol",
        &["update", "PartitionName=all", "DefaultTime=2"],
    );
    let short = cluster.start(&["--gres=gpu:1"]);
    assert_eq!(in_leaf(&cluster, short), 2);
    for job in [waiting, stock] {
        assert_eq!(cluster.lab.job_state(job).expect("known"), "PENDING");
    }
    cluster.cancel(&[small[0], small[1]]);
    for job in [waiting, stock] {
        cluster.wait(job, &["RUNNING"]);
        assert_eq!(in_leaf(&cluster, job), 1);
    }
    cluster.drained();
}

fn affinity_to_places(suite: &Suite) {
    let rules = "[[power-domain]]\nname = \"pdu1\"\nnodes = \"n[1,3]\"\n";
    let Some(cluster) = four("places", rules, suite) else {
        return;
    };
    for (rule, wanted) in [
        ("affinity:leaf=l2", &["n3", "n4"][..]),
        ("anti-affinity:switch=l1", &["n3", "n4"]),
        ("affinity:node=n4", &["n4"]),
        ("anti-affinity:power=pdu1,node=n2", &["n4"]),
        ("affinity:power=pdu1,switch=l2", &["n3"]),
    ] {
        let job = cluster.start(&["--gres=gpu:1", &format!("--gpuos-placement={rule}")]);
        let node = node(&cluster, job);
        assert!(wanted.contains(&node.as_str()), "{rule}: {node}");
        cluster.cancel(&[job]);
    }
    let io = cluster.start(&["--gres=gpu:1", "--gpuos-class=io", "-w", "n3"]);
    let near = cluster.start(&["--gres=gpu:1", "--gpuos-placement=affinity:class=io"]);
    assert_eq!(node(&cluster, near), "n3");
    let far = cluster.start(&["--gres=gpu:1", "--gpuos-placement=anti-affinity:class=io"]);
    assert_ne!(node(&cluster, far), "n3");
    cluster.cancel(&[io, near, far]);
    cluster.drained();
}

/// A job that asks for GPUs of two types is placed by Slurm, and rules hold for it all the same.
fn several_types_at_once(suite: &Suite) {
    let rules = "[[rule]]\ntenants = \"account\"\nlevel = \"leaf\"\n";
    let Some(cluster) = four("types", rules, suite) else {
        return;
    };
    let lab = &cluster.lab;
    let line = |kind: &str, gpus: &str| {
        let device = lab.device_dir().join(format!("nvidia{gpus}"));
        format!(
            "NodeName=n[1-4] Name=gpu Type={kind} File={}\n",
            device.display()
        )
    };
    let both = line("old", "[0-3]") + &line("new", "[4-7]");
    lab.write_conf("gres.conf", &format!("AutoDetect=off\n{both}"))
        .expect("writes");
    lab.edit_slurm_conf(|text| text.replace("gpu:a40:8", "gpu:old:4,gpu:new:4"))
        .expect("writes");
    lab.restart().expect("restarts");

    let two = ["--gres=gpu:old:1,gpu:new:1", "-A"];
    let physics = cluster.start(&["--gres=gpu:old:1", "-A", "physics", "-w", "n1"]);
    let biology = cluster.start(&[&two[..], &["biology"]].concat());
    assert_eq!(in_leaf(&cluster, biology), 2);
    let third = cluster.sbatch(&[&two[..], &["loud"]].concat(), "sleep 600");
    waits(&cluster, third, "kept apart: account");
    // It keeps others away as well.
    let one = ["--gres=gpu:old:1", "-A", "loud", "-w", "n3"];
    let single = cluster.sbatch(&one, "sleep 600");
    waits(&cluster, single, "kept apart: account");
    cluster.cancel(&[single, physics]);
    cluster.wait(third, &["RUNNING"]);
    assert_eq!(in_leaf(&cluster, third), 1);
    cluster.cancel(&[biology, third]);
    cluster.drained();
}
