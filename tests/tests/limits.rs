//! What jobs ask of their GPUs while they run, from the command line to the GPU, in real Slurm clusters: power
//! caps and clocks, MPS, the watch for hangs.

use std::cell::Cell;
use std::fs;
use std::path::Path;
use std::process::Command;

use gpuos_lab::Suite;
use gpuos_tests::{Cluster, MPS_CONTROL, Setup, per_suite, program};

per_suite!(
    caps_last_as_long_as_their_job,
    watched_jobs_that_hang_run_again,
    mps_lasts_as_long_as_its_job,
);

/// Two nodes with eight simulated GPUs each.
fn two(name: &str, suite: &Suite, gpuos_toml: &str) -> Option<Cluster> {
    let mut setup = Setup::simulated(name, suite, 2);
    setup.spec.job_submit = true;
    setup.spec.gpuos_toml = Some(gpuos_toml.into());
    setup.steered()
}

/// The lines of a node's GPUs, as gpuos-nvml shows them.
fn gpus(cluster: &Cluster, node: &str) -> Vec<String> {
    let out = Command::new(cluster.lab.dir().join("bin/gpuos-nvml"))
        .arg("--state")
        .arg(cluster.lab.gpus_dir(node).join("state"))
        .arg("show")
        .output()
        .expect("gpuos-nvml runs");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    text.lines().skip(1).map(String::from).collect()
}

/// Which GPUs of a node show something.
fn which(cluster: &Cluster, node: &str, what: &str) -> Vec<usize> {
    let lines = gpus(cluster, node);
    let found = lines
        .iter()
        .enumerate()
        .filter(|(_, line)| line.contains(what));
    found.map(|(gpu, _)| gpu).collect()
}

/// No GPU has anything set.
fn all_as_before(cluster: &Cluster) {
    for node in ["n1", "n2"] {
        cluster.until(&format!("all of {node} as before"), || {
            let set = which(cluster, node, "limit").len() + which(cluster, node, "clocks").len();
            (set == 0).then_some(())
        });
    }
}

fn place(cluster: &Cluster, job: u32) -> (String, Vec<usize>) {
    let gpus = cluster.gpus(job);
    let (node, set) = gpus.first_key_value().expect("a node");
    (node.clone(), set.clone())
}

/// Waits until exactly the GPUs of a job have a limit.
fn has(cluster: &Cluster, job: u32, limit: &str) -> (String, Vec<usize>) {
    let (node, set) = place(cluster, job);
    cluster.until(&format!("GPUs {set:?} of {node} with {limit}"), || {
        (which(cluster, &node, limit) == set).then_some(())
    });
    (node, set)
}

fn caps_last_as_long_as_their_job(suite: &Suite) {
    let Some(cluster) = two("limits", suite, FORBIDDEN) else {
        return;
    };
    // What no GPU takes is refused when it is submitted, with what it may be.
    let refused = cluster.try_sbatch(&["--gres=gpu:1", "--gpuos-power=900W"], "true");
    let refused = refused.expect_err("it is too much");
    assert!(refused.contains("takes more than 700 W"), "{refused}");
    let wrong = cluster.try_sbatch(&["--gres=gpu:1", "--gpuos-clocks=fast"], "true");
    assert!(
        wrong
            .expect_err("no clocks")
            .contains("write MHz such as 1200")
    );

    // The cap is there when the script's first line runs, and gone after the job: by itself ...
    let show = format!(
        "{0}/bin/gpuos-nvml --state {0}/nvml/$SLURMD_NODENAME/state show | grep -c 'limit 300 W' > first; sleep 2",
        cluster.lab.dir().display()
    );
    cluster.answered(|| {
        all_as_before(&cluster);
        let job = cluster.sbatch(&["--gres=gpu:2", "--gpuos-power=300W", "-w", "n1"], &show);
        cluster.wait(job, &["COMPLETED"]);
        cluster.lab.job_output(job)
    });
    let first = fs::read_to_string(cluster.lab.dir().join("work/first")).unwrap_or_default();
    assert_eq!(first.trim(), "2");
    all_as_before(&cluster);
    // ... and by scancel. A neighbour has its own, or none.
    let cap = [
        "--gres=gpu:2",
        "-w",
        "n1",
        "--gpuos-power=300W",
        "--gpuos-clocks=1200-1500",
    ];
    let capped = cluster.start(&cap);
    let share = cluster.start(&["--gres=gpu:1", "-w", "n1", "--gpuos-power=80%"]);
    let plain = cluster.start(&["--gres=gpu:1", "-w", "n1"]);
    let (_, set) = has(&cluster, capped, "limit 300 W");
    has(&cluster, capped, "clocks 1200-1500 MHz");
    has(&cluster, share, "limit 560 W");
    cluster.cancel(&[plain]);

    // A gpuosd that is killed while a job ends, and while another goes on.
    cluster.lab.kill_gpuosd("n1", 9).expect("it ran");
    cluster.cancel(&[capped]);
    assert_eq!(which(&cluster, "n1", "limit 300 W"), set);
    // A job that starts now is told, and not held up.
    let alone = ["--gres=gpu:1", "-w", "n1", "--gpuos-power=400W"];
    let alone = cluster.sbatch(&alone, "echo here");
    cluster.wait(alone, &["COMPLETED"]);
    let out = cluster.lab.dir().join(format!("work/{alone}.out"));
    let told = fs::read_to_string(out).unwrap_or_default();
    assert!(
        told.contains("here") && told.contains("no gpuosd listens"),
        "{told}"
    );
    cluster.lab.start_gpuosd("n1").expect("it starts");
    cluster.until("the cap of the job that is gone", || {
        which(&cluster, "n1", "limit 300 W")
            .is_empty()
            .then_some(())
    });
    has(&cluster, share, "limit 560 W");
    cluster.cancel(&[share]);
    all_as_before(&cluster);

    // Steps without a batch script, on several nodes: those of a batch job inherit what it asked for.
    let wide = ["-N2", "--gres=gpu:1", "--gpuos-power=350W"];
    let wide = cluster.sbatch(&wide, "srun sleep 600");
    cluster.wait(wide, &["RUNNING"]);
    for node in ["n1", "n2"] {
        cluster.until(&format!("a cap on {node}"), || {
            (which(&cluster, node, "limit 350 W").len() == 1).then_some(())
        });
    }
    cluster.cancel(&[wide]);
    all_as_before(&cluster);
    let text = cluster.run("srun", &["--gres=gpu:1", "--gpuos-power=250W", "hostname"]);
    assert!(!text.is_empty());
    all_as_before(&cluster);
    what_is_forbidden_stays_undone(&cluster);
    cluster.drained();
}

const FORBIDDEN: &str = "[[forbid]]\noptions = [\"gpuos-power\", \"gpuos-mps\"]\npartition = \"debug\"\n\
                         ask = \"hpc@example.org\"\n\
                         [[forbid]]\noptions = [\"gpuos-clocks\"]\naccount = \"students\"\n";

/// At submission, by a change, by a step of a job that named none of it, and past job_submit/gpuos.
fn what_is_forbidden_stays_undone(cluster: &Cluster) {
    cluster.run("scontrol", &["create", "PartitionName=debug", "Nodes=ALL"]);
    let said =
        "it is not allowed in partition debug; write no --gpuos-power, or ask hpc@example.org";
    for partitions in ["debug", "all,debug"] {
        let asked = ["-p", partitions, "--gres=gpu:1", "--gpuos-power=300W"];
        let refused = cluster
            .try_sbatch(&asked, "true")
            .expect_err("it is not allowed");
        assert!(refused.contains(said), "{partitions}: {refused}");
    }
    let asked = ["-A", "students", "--gres=gpu:1", "--gpuos-clocks=1200"];
    let refused = cluster
        .try_sbatch(&asked, "true")
        .expect_err("it is not allowed");
    assert!(
        refused.contains("it is not allowed for account students"),
        "{refused}"
    );
    // A job that waits is not moved there with it; what has nothing to do with that can be changed.
    let waiting = ["-H", "--gres=gpu:1", "--gpuos-power=300W"];
    let waiting = cluster.sbatch(&waiting, "true");
    let id = format!("JobId={waiting}");
    let moved = cluster.try_run("scontrol", &["update", &id, "Partition=debug"]);
    assert!(moved.is_err(), "{moved:?}");
    let named = cluster.try_run("scontrol", &["update", &id, "Comment=other"]);
    assert!(named.is_ok(), "{named:?}");
    cluster.cancel(&[waiting]);
    // srun in an allocation says it to nobody but the node.
    let script = "srun --gpuos-power=300W --gpuos-clocks=1200-1500 sleep 600";
    let job = cluster.sbatch(&["-p", "debug", "-w", "n1", "--gres=gpu:2"], script);
    cluster.wait(job, &["RUNNING"]);
    let out = cluster.lab.dir().join(format!("work/{job}.out"));
    let told = cluster.until("the step is told", || {
        let told = fs::read_to_string(&out).unwrap_or_default();
        told.contains("--gpuos-power is left out").then_some(told)
    });
    assert!(
        told.contains("in partition debug; ask hpc@example.org"),
        "{told}"
    );
    // What is allowed of it is done.
    has(cluster, job, "clocks 1200-1500 MHz");
    assert!(which(cluster, "n1", "limit").is_empty());
    cluster.cancel(&[job]);
    all_as_before(cluster);
}

/// The rule's ten minutes are shorter here.
const HANG: &str = "[[health.rule]]\nname = \"hang\"\nhold = \"5s\"\n";

fn watched_jobs_that_hang_run_again(suite: &Suite) {
    let Some(cluster) = two("hang", suite, HANG) else {
        return;
    };
    let plain = cluster.start(&["--requeue", "--gres=gpu:1", "-w", "n1"]);
    let idle = ["--requeue", "--gres=gpu:2", "-w", "n1", "--gpuos-watch=on"];
    let watched = cluster.sbatch(&idle, "echo start >> starts; sleep 600");
    // It hangs the second time as well: no more is waited for than that it runs again.
    let starts = cluster.lab.dir().join("work/starts");
    cluster.until("the watched job starts again", || {
        let text = fs::read_to_string(&starts).unwrap_or_default();
        (text.lines().count() >= 2).then_some(())
    });
    cluster.cancel(&[watched]);
    let show = cluster.show(plain);
    assert!(
        show.contains("JobState=RUNNING") && show.contains("Restarts=0"),
        "{show}"
    );
    cluster.cancel(&[plain]);
    cluster.drained();
}

fn mps_lasts_as_long_as_its_job(suite: &Suite) {
    let Some(cluster) = two("mps", suite, "") else {
        return;
    };
    let wrong = cluster.try_sbatch(&["--gres=gpu:1", "--gpuos-mps=0%"], "true");
    let wrong = wrong.expect_err("no share");
    assert!(wrong.contains("a share is 1% to 100%"), "{wrong}");
    let work = |name: &str| {
        let file = cluster.lab.dir().join("work").join(name);
        fs::read_to_string(file).unwrap_or_default()
    };
    let asks = ["--gres=gpu:2", "-n2", "-w", "n1", "--gpuos-mps=50%"];

    // Without the program the job is told, and runs.
    let ended = |script: &str| {
        let job = cluster.sbatch(&asks, script);
        cluster.wait(job, &["COMPLETED"]);
        job
    };
    let told = cluster.answered(|| {
        let job = ended("echo here $CUDA_MPS_PIPE_DIRECTORY");
        cluster.lab.job_output(job)
    });
    assert!(
        told.lines().any(|line| line == "here") && told.contains("MPS is not there: the program"),
        "{told}"
    );

    let control = cluster.lab.dir().join("bin/nvidia-cuda-mps-control");
    program(&control, MPS_CONTROL);
    let script = "\
        echo $CUDA_MPS_PIPE_DIRECTORY $CUDA_MPS_LOG_DIRECTORY $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE > mps.script\n\
        cat $CUDA_MPS_PIPE_DIRECTORY/gpus > mps.gpus\n\
        srun sh -c 'echo $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE $(cat $CUDA_MPS_PIPE_DIRECTORY/pid)' > mps.tasks\n\
        srun --gpuos-mps=on -n1 sh -c 'echo share=$CUDA_MPS_ACTIVE_THREAD_PERCENTAGE' > mps.on";
    let last = Cell::new(0);
    let out = cluster.answered(|| {
        last.set(ended(script));
        cluster.lab.job_output(last.get())
    });
    let job = last.get();
    let seen = work("mps.script");
    let words: Vec<&str> = seen.split_whitespace().collect();
    let [pipe, log, "50"] = words[..] else {
        panic!("{seen}{out}");
    };
    let own = Path::new(pipe).parent().expect("a folder");
    assert!(own.ends_with(format!("mps/{job}")), "{pipe}");
    assert_eq!(Path::new(log), own.join("log"));
    assert_eq!(work("mps.gpus").matches("GPU-").count(), 2);
    let tasks = work("mps.tasks");
    let lines: Vec<&str> = tasks.lines().collect();
    assert!(lines.len() == 2 && lines[0] == lines[1], "{tasks}{out}");
    assert_eq!(work("mps.on").trim(), "share=");
    let pid = lines[0].strip_prefix("50 ").expect("a share and a process");
    cluster.until("nothing of the MPS daemon is left", || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let ended = stat.is_empty() || stat.contains(") Z ");
        (ended && !own.exists()).then_some(())
    });
    cluster.drained();
}
