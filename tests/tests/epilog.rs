//! What stock Slurm does with the end of a job when a daemon or a node goes at that moment. Nothing here is
//! gpuos's; the soak meets both, and its ledger and `no_complaints` rely on what is shown here.

use gpuos_lab::Suite;
use gpuos_tests::{Cluster, Setup, per_suite};

per_suite!(
    a_slurmd_that_starts_anew_skips_the_epilog,
    an_epilog_counts_against_a_running_job,
);

/// Prolog and epilog write a line and end once no file `hold-prolog` or `hold-epilog` is there.
fn with_scripts(name: &str, suite: &Suite) -> Option<Cluster> {
    let cluster = Setup::new(name, suite).stock().up()?;
    let work = cluster.lab.dir().join("work");
    let work = work.display();
    let set = |key, value: &str| cluster.lab.set_slurm_conf(key, Some(value)).expect("edits");
    for name in ["Prolog", "Epilog"] {
        let lines = format!(
            "cd {work}\necho {name} $SLURM_JOB_ID >> ran\nwhile [ -e hold-{name} ]; do sleep 0.1; done"
        );
        set(name, &cluster.script(name, &lines));
    }
    set("PrologFlags", "Alloc");
    // A slurmd kills with SIGKILL only so long after SIGTERM, and 5 s at least.
    set("KillWait", "20");
    set("SlurmdDebug", "debug");
    cluster.lab.restart().expect("restarts");
    Some(cluster)
}

fn hold(cluster: &Cluster, name: &str) {
    std::fs::write(cluster.lab.dir().join(format!("work/hold-{name}")), "").expect("writes");
}

fn go_on(cluster: &Cluster, name: &str) {
    std::fs::remove_file(cluster.lab.dir().join(format!("work/hold-{name}"))).expect("removes");
}

/// How often the prolog or epilog has begun.
fn begun(cluster: &Cluster, name: &str) -> usize {
    let text = std::fs::read_to_string(cluster.lab.dir().join("work/ran")).unwrap_or_default();
    text.lines().filter(|line| line.starts_with(name)).count()
}

/// A slurmd notes on disk that a job is ending; one that reads the note at its start takes it that the
/// epilog has run.
fn a_slurmd_that_starts_anew_skips_the_epilog(suite: &Suite) {
    let Some(cluster) = with_scripts("epilog-skipped", suite) else {
        return;
    };
    let script = "trap '' TERM; echo > runs; while :; do sleep 1; done";
    let job = cluster.sbatch(&["--gres=gpu:2", "-w", "n1"], script);
    let runs = cluster.lab.dir().join("work/runs");
    cluster.until("the job runs", || runs.exists().then_some(()));
    cluster.run("scancel", &[&job.to_string()]);
    cluster.until("the slurmd has noted that the job is ending", || {
        let log = cluster.lab.slurmd_log("n1");
        log.contains("revoked").then_some(())
    });
    cluster.kill_slurmd("n1");
    cluster.lab.start_slurmd("n1").expect("starts");
    cluster.drained();
    assert_eq!(
        (begun(&cluster, "Prolog"), begun(&cluster, "Epilog")),
        (1, 0)
    );
    let log = cluster.lab.slurmd_log("n1");
    assert!(log.contains("has no expiration"), "{log}");
    assert!(log.contains("Not running epilog for "), "{log}");
}

/// slurmctld has died before it had saved that a job is ending, and so takes it for running. Before 24.11.6
/// it then counts the end of its epilog against the running job, and once more when that ends.
fn an_epilog_counts_against_a_running_job(suite: &Suite) {
    let Some(cluster) = with_scripts("epilog-counts", suite) else {
        return;
    };
    let copy = |from: &str, to: &str| {
        let dir = cluster.lab.dir();
        let line = format!("cp -a {0}/{from}/. {0}/{to}", dir.display());
        // Not while slurmctld writes there.
        let pid = cluster.lab.slurmctld_pid().map(|pid| pid.to_string());
        let signal = |name: &str| {
            if let Some(pid) = &pid {
                cluster.run("sh", &["-c", &format!("kill {name} {pid}")]);
            }
        };
        signal("-STOP");
        cluster.run("sh", &["-c", &line]);
        signal("-CONT");
    };
    let told = |times: usize| {
        cluster.until("the slurmd tells slurmctld that the job has ended", || {
            let log = cluster.lab.slurmd_log("n1");
            (log.matches("sent epilog complete msg").count() >= times).then_some(())
        });
    };
    hold(&cluster, "Epilog");
    let job = cluster.start(&["--requeue", "--gres=gpu:2", "-w", "n1"]);
    cluster.until("the batch step runs", || {
        let log = cluster.lab.slurmd_log("n1");
        log.contains("task 0").then_some(())
    });
    cluster.save(job);
    copy("state", "work/saved");
    cluster.run("scancel", &[&job.to_string()]);
    cluster.until("the epilog runs", || {
        (begun(&cluster, "Epilog") == 1).then_some(())
    });
    cluster.lab.kill_slurmctld(9).expect("ends");
    copy("work/saved", "state");
    cluster.lab.start_slurmctld().expect("starts");
    cluster.ready();
    cluster.wait(job, &["RUNNING"]);
    go_on(&cluster, "Epilog");
    told(1);
    // A reconfigure finds the nodes of a job anew, but not how many CPUs it has.
    cluster.lab.reconfigure().expect("reconfigures");
    cluster.ready();
    cluster.run("scontrol", &["requeuehold", &job.to_string()]);
    told(2);
    cluster.wait(job, &["PENDING"]);
    let log = cluster.lab.slurmctld_log();
    let counted = log.contains("error: job_update_tres_cnt: cpu_cnt underflow (1 > 0) on JobId=");
    assert_eq!(counted, cluster.is_before([24, 11, 6]), "{log}");
    // Nothing of it concerns what nodes have.
    cluster.drained();
}
