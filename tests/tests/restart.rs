//! From a start of slurmctld to the registration of a node. Slurm 22.05, and 23.11.0 to 24.11.0, start GPU jobs in
//! between that get no GPU in their record, and 22.05 does not give back what it took off the node for them: here it
//! is shown with stock Slurm, and that it does not happen with gpuos.

use std::fs;
use std::os::unix::net::UnixListener;

use gpuos_lab::Suite;
use gpuos_tests::show::{self, Used};
use gpuos_tests::{Cluster, Setup, per_suite};

per_suite!(
    stock_22_05_loses_gpus_of_a_job_requeued_from_a_dead_node,
    stock_loses_gpus_before_a_node_registers,
    gpu_jobs_wait_until_their_node_has_registered,
    exclusive_jobs_wait_until_their_node_has_registered,
    stock_loses_gpus_on_a_node_undrained_before_it_registers,
    jobs_get_their_gpus_on_a_node_undrained_before_it_registers,
);

/// A job on n1 and its slurmstepd.
struct Stepd {
    job: u32,
    pid: String,
}

impl Stepd {
    fn start(cluster: &Cluster, more: &[&str]) -> Stepd {
        let options = [&["-w", "n1"], more].concat();
        let job = cluster.sbatch(&options, "echo $PPID > stepd; sleep 600");
        let file = cluster.lab.dir().join("work/stepd");
        let pid = cluster.until("the job has named its slurmstepd", || {
            let text = fs::read_to_string(&file).ok()?;
            text.ends_with('\n').then(|| text.trim().to_string())
        });
        Stepd { job, pid }
    }

    fn signal(&self, cluster: &Cluster, name: &str) {
        cluster.run("sh", &["-c", &format!("kill -{name} {}", self.pid)]);
    }

    /// Restarts slurmctld. n1 answers it and can have jobs, but does not register: before that, its slurmd
    /// asks each slurmstepd, and this one is stopped.
    fn keeps_n1_from_registering(&self, cluster: &Cluster) {
        self.signal(cluster, "STOP");
        cluster.restart_slurmctld();
    }

    fn end(self, cluster: &Cluster) {
        self.signal(cluster, "CONT");
        cluster.cancel(&[self.job]);
    }
}

fn submit(cluster: &Cluster, form: &str) -> u32 {
    let options: Vec<&str> = form.split(' ').collect();
    cluster.sbatch(&options, "sleep 600")
}

fn has_no_gpu(cluster: &Cluster, job: u32) -> bool {
    cluster.gpus(job).values().all(Vec::is_empty)
}

fn stock_loses_gpus_before_a_node_registers(suite: &Suite) {
    let Some(cluster) = Setup::new("unregistered-stock", suite).stock().up() else {
        return;
    };
    let stepd = Stepd::start(&cluster, &[]);
    stepd.keeps_n1_from_registering(&cluster);
    let job = cluster.start(&["--gres=gpu:2", "-w", "n1"]);
    let typed = cluster.start(&["--gres=gpu:a40:1", "-w", "n1"]);
    if !cluster.starts_before_registration() {
        assert!(!has_no_gpu(&cluster, job), "{}", cluster.show(job));
        assert!(!has_no_gpu(&cluster, typed), "{}", cluster.show(typed));
        stepd.end(&cluster);
        return cluster.drained();
    }
    assert!(has_no_gpu(&cluster, job), "{}", cluster.show(job));
    let is_22_05 = cluster.lab.version().starts_with("22.05");
    // Later releases forget the type too, but take nothing off the node.
    let lost = has_no_gpu(&cluster, typed);
    assert_eq!(lost, !is_22_05, "{}", cluster.show(typed));
    cluster.cancel(&[job, typed]);
    stepd.end(&cluster);
    if !is_22_05 {
        return cluster.until("nothing of n1 is in use", || {
            (cluster.used()["n1"] == Used::default()).then_some(())
        });
    }
    let left = Used {
        gpus: 2,
        index: vec![0, 1],
        ..Used::default()
    };
    cluster.until("two GPUs of n1 are left in use by nobody", || {
        (cluster.used()["n1"] == left).then_some(())
    });
    // What an administrator does: it counts anew.
    cluster.lab.reconfigure().expect("reconfigures");
    cluster.until("a reconfigure gives them back", || {
        (cluster.used()["n1"] == Used::default()).then_some(())
    });
}

/// A requeued job of which slurmctld still waits to hear that it has ended, when its node is set down.
fn stock_22_05_loses_gpus_of_a_job_requeued_from_a_dead_node(suite: &Suite) {
    let Some(cluster) = Setup::new("requeued-stock", suite).stock().up() else {
        return;
    };
    if !cluster.lab.version().starts_with("22.05") {
        return;
    }
    let stepd = Stepd::start(&cluster, &["--requeue", "--gres=gpu:2"]);
    let job = stepd.job;
    let slurmd = cluster.lab.slurmd_pid("n1").expect("runs");
    cluster.run("sh", &["-c", &format!("kill -9 {slurmd}")]);
    cluster.until("the slurmd is gone", || {
        cluster.lab.slurmd_pid("n1").is_none().then_some(())
    });
    // Else the new start could meet the old one on the node.
    stepd.signal(&cluster, "KILL");
    cluster.run("scontrol", &["requeue", &job.to_string()]);
    let down = ["update", "NodeName=n1", "State=DOWN", "Reason=dead"];
    cluster.run("scontrol", &down);
    cluster.lab.start_slurmd("n1").expect("starts");
    cluster.ready();
    // What slurmctld still wanted to tell the dead slurmd, to end the first start, may meet the second one.
    let state = cluster.wait(job, &["RUNNING", "FAILED"]);
    assert!(has_no_gpu(&cluster, job), "{}", cluster.show(job));
    if state == "RUNNING" {
        let _ = cluster.try_run("scancel", &[&job.to_string()]);
    }
    cluster.until("two GPUs of n1 are left in use by nobody", || {
        let used = &cluster.used()["n1"];
        (used.cpus == 0 && used.gpus == 2).then_some(())
    });
    assert!(
        cluster
            .lab
            .slurmctld_log()
            .contains("bad node_offset 0 count is 0")
    );
    cluster.lab.reconfigure().expect("reconfigures");
    cluster.until("a reconfigure gives them back", || {
        (cluster.used()["n1"] == Used::default()).then_some(())
    });
}

fn gpu_jobs_wait_until_their_node_has_registered(suite: &Suite) {
    let mut setup = Setup::new("unregistered", suite);
    setup.spec.nodes = 1.into();
    let Some(cluster) = setup.steered() else {
        return;
    };
    let before = cluster.start(&["--gres=gpu:1"]);
    let stepd = Stepd::start(&cluster, &[]);
    stepd.keeps_n1_from_registering(&cluster);
    let forms = [
        "--gres=gpu:2",
        "--gpus=1",
        "--gpus-per-task=1 -n2 -N1",
        "--gpus=1 --gpuos=off",
    ];
    let jobs = forms.map(|form| submit(&cluster, form));
    // It was submitted last, and n1 is open for it.
    cluster.start(&[]);
    if cluster.starts_before_registration() {
        for job in jobs {
            assert!(
                cluster.show(job).contains("JobState=PENDING"),
                "{}",
                cluster.show(job)
            );
        }
    }
    stepd.end(&cluster);
    let mut held = cluster.gpus(before)["n1"].clone();
    for job in jobs {
        cluster.wait(job, &["RUNNING"]);
        held.extend(&cluster.gpus(job)["n1"]);
    }
    held.sort_unstable();
    assert_eq!(held, show::indices("0-6"), "each GPU once");
    cluster.drained();
}

/// A job that takes whole nodes gets all their GPUs, named or not: also as the first job of all, before any record is
/// trusted.
fn exclusive_jobs_wait_until_their_node_has_registered(suite: &Suite) {
    let mut setup = Setup::new("unregistered-whole", suite);
    setup.spec.nodes = 1.into();
    let Some(cluster) = setup.steered() else {
        return;
    };
    if !cluster.starts_before_registration() {
        return;
    }
    // What the slurmd takes for a step that answers late: no job of slurmctld's has the node.
    let socket = cluster.lab.dir().join("spool/n1/n1_4711.0");
    let stepd = UnixListener::bind(&socket).expect("binds");
    let from = cluster.lab.slurmctld_log().len();
    cluster.restart_slurmctld();
    let job = cluster.sbatch(&["--exclusive", "-N1"], "sleep 600");
    let line = "n1 has not registered since slurmctld started";
    cluster.until("the job waits for the node, or has started", || {
        let waits = cluster.lab.slurmctld_log().split_off(from).contains(line);
        (waits || !cluster.show(job).contains("JobState=PENDING")).then_some(())
    });
    assert!(
        cluster.show(job).contains("JobState=PENDING"),
        "{}",
        cluster.show(job)
    );
    drop(stepd);
    fs::remove_file(&socket).expect("removes");
    cluster.wait(job, &["RUNNING"]);
    assert_eq!(cluster.gpus(job)["n1"].len(), 8, "{}", cluster.show(job));
    cluster.drained();
}

/// slurmctld takes no state for a node that it calls unknown, and does so until a job has started there. `UNDRAIN` marks the
/// node as silent, and leaves it open for jobs; its next answer takes the mark off.
fn undrain_n1(cluster: &Cluster) {
    cluster.start(&["-w", "n1"]);
    cluster.update(&["NodeName=n1", "State=UNDRAIN"]);
}

/// Since 24.11.1 Slurm goes by the topology that it saved, but not where a node is marked as silent. Since 25.11 cons_tres
/// finds no GPU for the job there and lets it wait.
fn stock_loses_gpus_on_a_node_undrained_before_it_registers(suite: &Suite) {
    let Some(cluster) = Setup::new("undrained-stock", suite).stock().up() else {
        return;
    };
    if cluster.is_before([24, 11, 1]) || !cluster.is_before([25, 11, 0]) {
        return;
    }
    let stepd = Stepd::start(&cluster, &[]);
    stepd.keeps_n1_from_registering(&cluster);
    // The answer may come before the job starts.
    cluster.until("a job starts without its GPUs", || {
        undrain_n1(&cluster);
        let job = cluster.start(&["--gres=gpu:2", "-w", "n1"]);
        let lost = has_no_gpu(&cluster, job);
        cluster.cancel(&[job]);
        lost.then_some(())
    });
    stepd.end(&cluster);
}

fn jobs_get_their_gpus_on_a_node_undrained_before_it_registers(suite: &Suite) {
    let mut setup = Setup::new("undrained", suite);
    setup.spec.nodes = 1.into();
    let Some(cluster) = setup.steered() else {
        return;
    };
    let stepd = Stepd::start(&cluster, &[]);
    stepd.keeps_n1_from_registering(&cluster);
    undrain_n1(&cluster);
    let forms = ["--gres=gpu:2", "--gpus=1", "--gpus=1 --gpuos=off"];
    let jobs = forms.map(|form| submit(&cluster, form));
    // The answer or the registration: from then on they may start.
    cluster.start(&[]);
    stepd.end(&cluster);
    let mut held = Vec::new();
    for job in jobs {
        cluster.wait(job, &["RUNNING"]);
        held.extend(cluster.gpus(job).remove("n1").unwrap_or_default());
    }
    held.sort_unstable();
    held.dedup();
    assert_eq!(held.len(), 4, "each GPU once");
    cluster.drained();
}
