//! Jobs that Slurm will end, on a real Slurm: they save themselves in time, are requeued, and go on.

use gpuos_lab::Suite;
use gpuos_tests::cluster::LIMIT;
use gpuos_tests::{Cluster, Setup, per_suite, plugins};

use crate::checkpoint::{counter, had_saved, logs, said, until};

per_suite!(jobs_go_on_after_their_limit_and_after_preemption);

/// Both in one lab, for most of the time is a limit's.
fn jobs_go_on_after_their_limit_and_after_preemption(suite: &Suite) {
    let mut setup = Setup::simulated("ckpt-ends", suite, 4);
    setup.spec.movers = Some(plugins::daemons().to_path_buf());
    setup.spec.job_submit = true;
    setup.spec.slurm_conf_extra.extend([
        "PreemptType=preempt/partition_prio".into(),
        "PreemptMode=REQUEUE".into(),
        "PartitionName=high Nodes=ALL PriorityTier=10 MaxTime=INFINITE State=UP".into(),
        "PartitionName=low Nodes=ALL PriorityTier=1 GraceTime=900 Default=YES MaxTime=INFINITE State=UP"
            .into(),
        "PartitionName=short Nodes=ALL PriorityTier=1 GraceTime=5 State=UP".into(),
        "PartitionName=none Nodes=ALL PriorityTier=1 State=UP".into(),
    ]);
    let Some(cluster) = setup.steered() else {
        return;
    };
    told_of_grace(&cluster);
    let limited = submit(&cluster, &["-w", "n1", "-N1", "--exclusive", "--time=1"]);
    let alone = ["-w", "n4", "-N1", "--exclusive", "--time=1", "--no-requeue"];
    let alone = submit(&cluster, &alone);
    let low = submit(&cluster, &["-w", "n2,n3", "-N2", "--exclusive"]);
    let ranks = [(limited, 0), (low, 0), (low, 1)];
    for (job, rank) in ranks {
        until(&cluster, "a checkpoint", || {
            said(&cluster, job, rank, "saved").pop()
        });
    }
    let high = cluster
        .try_sbatch(
            &["-p", "high", "-w", "n2,n3", "-N2", "--exclusive"],
            "sleep 5",
        )
        .expect("submits");
    // Long before their grace is over.
    until(&cluster, "the preempting job has the nodes", || {
        is(&cluster, high, "RUNNING").or(is(&cluster, high, "COMPLETED"))
    });
    for (job, rank) in ranks {
        goes_on(&cluster, job, rank);
    }
    cluster.cancel(&[limited, low]);
    ends_by_itself(&cluster, alone);
    drained(&cluster);
    // Nothing in these is another one on another release.
    if *suite == Suite::Native {
        suspected(&cluster);
        migrated(&cluster);
    }
}

/// A job that may not be requeued is told that its last checkpoint is the last, and ends before its limit would end it.
fn ends_by_itself(cluster: &Cluster, job: u32) {
    until(cluster, "it ends", || is(cluster, job, "COMPLETED"));
    let told = crate::checkpoint::output(cluster, job);
    assert!(!told.contains("restored"), "{told}");
    // The program stops where it has saved.
    let last = told.lines().last().unwrap_or_default();
    assert!(last.starts_with("0: saved"), "{told}");
}

/// sbatch says where a preempted job has no time to save, and takes the job.
fn told_of_grace(cluster: &Cluster) {
    for (partition, sentence) in [
        (
            Some("none"),
            "jobs of partition none may be preempted without notice (GraceTime=0)",
        ),
        (
            Some("short"),
            "jobs of partition short have 5 s when they are preempted (GraceTime)",
        ),
        (Some("high"), ""),
        (None, ""),
    ] {
        let partition: Vec<&str> = partition.iter().flat_map(|name| ["-p", *name]).collect();
        let said = told_at_submission(cluster, &partition);
        assert!(said.contains(sentence), "{partition:?}: {said}");
        assert_eq!(said.contains("preempted"), !sentence.is_empty(), "{said}");
    }
    // What an administrator changes counts at once, and slurm.conf is as it was.
    for (change, told) in [
        (&["PartitionName=short", "GraceTime=60"][..], false),
        (&["PartitionName=short", "GraceTime=4"], true),
        (&["PartitionName=short", "PriorityTier=10"], false),
        (
            &["PartitionName=short", "PriorityTier=1", "GraceTime=5"],
            true,
        ),
    ] {
        cluster.update(change);
        let said = told_at_submission(cluster, &["-p", "short"]);
        assert_eq!(
            said.contains("jobs of partition short"),
            told,
            "{change:?}: {said}"
        );
    }
}

/// What sbatch says of a job with checkpoints and these options, which it takes.
pub(crate) fn told_at_submission(cluster: &Cluster, options: &[&str]) -> String {
    let script = cluster.script("waits", "true");
    let dir = format!("--chdir={}", cluster.lab.dir().join("work").display());
    let base = [
        "--parsable",
        "-H",
        "--requeue",
        "--gpuos-checkpoint=10m",
        &dir,
    ];
    let args = [&base[..], options, &[&script]].concat();
    let out = cluster.output("sbatch", &args).expect("sbatch runs");
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    let job = String::from_utf8_lossy(&out.stdout).trim().parse();
    cluster.cancel(&[job.unwrap_or_else(|_| panic!("it was not taken: {said}"))]);
    said
}

/// A job saves before its GPU is taken from it.
fn drained(cluster: &Cluster) {
    let job = submit(cluster, &["-N1", "--gres=gpu:1"]);
    until(cluster, "a checkpoint", || {
        said(cluster, job, 0, "saved").pop()
    });
    let gpuos = plugins::programs().join("gpuos");
    let gpus = cluster.gpus(job);
    let (node, gpus) = gpus.first_key_value().expect("it has a GPU");
    let target = format!("{node}:{}", gpus[0]);
    known(cluster, node, (job, gpus[0]));
    let dir = cluster.lab.gpuosd_runtime_dir(node);
    let flags = ["--force", "--runtime-dir", dir.to_str().expect("UTF-8")];
    let args = [&["drain", &target][..], &flags].concat();
    let told = cluster.run(gpuos.to_str().expect("UTF-8"), &args);
    let saved = format!("job {job} has saved as checkpoint ");
    assert!(told.starts_with(&saved), "{told}\n{}", logs(cluster));
    goes_on(cluster, job, 0);
    cluster.cancel(&[job]);
    cluster.run(
        gpuos.to_str().expect("UTF-8"),
        &[
            "online",
            &target,
            "--force",
            "--runtime-dir",
            dir.to_str().expect("UTF-8"),
        ],
    );
}

/// A GPU gets worse: gpuosd has the job save before the fault comes, and leaves it where it is.
fn suspected(cluster: &Cluster) {
    let (job, node, gpu) = rare(cluster);
    let sick = cluster
        .lab
        .fault(&node, &format!("gpu{gpu}"), &["xid", "145"]);
    sick.expect("a fault");
    let (number, _) = until(cluster, "it has saved", || {
        said(cluster, job, 0, "saved").pop()
    });
    assert_eq!(number, 1, "for nothing else than the suspicion");
    until(cluster, "it runs on", || is(cluster, job, "RUNNING"));
    let told = format!("job {job} is asked to save: GPU {gpu} is degraded");
    until(cluster, "the audit log", || {
        let text = health(cluster, &node, &["--audit=50"]);
        text.contains(&told).then_some(())
    });
    cluster.cancel(&[job]);
}

/// All jobs with checkpoints leave a node, and go on elsewhere.
fn migrated(cluster: &Cluster) {
    let (job, node, _) = rare(cluster);
    let gpuos = plugins::programs().join("gpuos");
    let dir = cluster.lab.gpuosd_runtime_dir(&node);
    let flags = [
        "--migrate",
        "--reason=fan",
        "--runtime-dir",
        dir.to_str().expect("UTF-8"),
    ];
    let args = [&["drain", &node][..], &flags].concat();
    // gpuosd writes what the node holds within half a minute.
    let out = cluster
        .lab
        .output_within(gpuos.to_str().expect("UTF-8"), &args, LIMIT);
    let told = String::from_utf8(out.expect("it runs").stdout).expect("UTF-8");
    eprintln!("{told}");
    let saved =
        format!("job {job} has saved as checkpoint 1 and is requeued\n1 of 1 job requeued\n");
    assert!(told.ends_with(&saved), "{told}\n{}", logs(cluster));
    let from = until(cluster, "it goes on", || {
        said(cluster, job, 0, "restored checkpoint").pop()
    });
    assert_eq!(from.0, 1);
    let now = cluster.gpus(job);
    assert!(!now.contains_key(&node), "{now:?}");
    cluster.cancel(&[job]);
}

/// A job with a GPU that saves by itself once an hour; its node and its GPU.
fn rare(cluster: &Cluster) -> (u32, String, usize) {
    let job = submit(
        cluster,
        &["-N1", "--gres=gpu:1", "--gpuos-checkpoint=1h,l2=single"],
    );
    until(cluster, "it has joined", || {
        crate::checkpoint::output(cluster, job)
            .contains("0: new")
            .then_some(())
    });
    let gpus = cluster.gpus(job);
    let (node, gpus) = gpus.first_key_value().expect("it has a GPU");
    known(cluster, node, (job, gpus[0]));
    (job, node.clone(), gpus[0])
}

/// Waits until gpuosd knows by slurmctld's record that a job has this GPU: on a busy machine later than the job itself.
fn known(cluster: &Cluster, node: &str, (job, gpu): (u32, usize)) {
    let gpuos = plugins::programs().join("gpuos");
    let dir = cluster.lab.gpuosd_runtime_dir(node);
    let dir = dir.to_str().expect("UTF-8");
    until(cluster, "gpuosd knows whose the GPU is", || {
        // It exits with 1 where a GPU is not well.
        let args = ["health", "--json", "--runtime-dir", dir];
        let told = cluster.output(gpuos.to_str()?, &args).ok()?.stdout;
        let told: serde_json::Value = serde_json::from_slice(&told).ok()?;
        let jobs = told["status"]["gpus"].as_array()?.get(gpu)?["jobs"].as_array()?;
        jobs.contains(&job.into()).then_some(())
    });
}

/// `gpuos health` of a node.
fn health(cluster: &Cluster, node: &str, args: &[&str]) -> String {
    let gpuos = plugins::programs().join("gpuos");
    let dir = cluster.lab.gpuosd_runtime_dir(node);
    let flags = ["--runtime-dir", dir.to_str().expect("UTF-8")];
    cluster.run(
        gpuos.to_str().expect("UTF-8"),
        &[&["health"][..], args, &flags].concat(),
    )
}

/// A program that counts for longer than anybody lets it, and saves often.
fn submit(cluster: &Cluster, options: &[&str]) -> u32 {
    let program = format!("trap '' TERM; exec {} 100000 0.05", counter());
    let script = format!("srun -l sh -c \"{program}\"");
    let all = [
        "--requeue",
        "--ntasks-per-node=1",
        "--open-mode=append",
        "--gpuos-checkpoint=2s,l2=single",
    ];
    let job = cluster.sbatch(&[&all[..], options].concat(), &script);
    cluster.wait(job, &["RUNNING"]);
    job
}

/// It runs again, from its last checkpoint, and counts and saves on.
fn goes_on(cluster: &Cluster, job: u32, rank: u32) {
    let (number, count) = until(cluster, "it goes on", || {
        said(cluster, job, rank, "restored checkpoint").pop()
    });
    let (saved, next) = until(cluster, "a checkpoint after that", || {
        let saved = said(cluster, job, rank, "saved");
        let next = saved.iter().find(|(of, _)| *of > number).copied()?;
        Some((saved, next))
    });
    assert!(
        had_saved(&saved, (number, count)),
        "rank {rank} of job {job} went on from {number} at {count}: {saved:?}\n{}",
        logs(cluster)
    );
    assert!(next.1 > count, "{saved:?}");
    // It may have come to its limit once more.
    until(cluster, "it runs", || is(cluster, job, "RUNNING"));
}

fn is(cluster: &Cluster, job: u32, state: &str) -> Option<()> {
    let now = cluster.lab.job_state(job).ok()?;
    (now == state).then_some(())
}
