//! Checkpoints of jobs that are several: each task of an array has its own, and of a heterogeneous job the first component.

use std::collections::BTreeMap;

use gpuos_lab::Suite;
use gpuos_tests::suites::left_to_soak;
use gpuos_tests::{Cluster, Setup, per_suite, plugins};

use crate::checkpoint::{committed, counter, had_saved, output, until};

per_suite!(
    each_task_of_an_array_and_the_first_component_have_checkpoints,
    a_task_is_restarted_and_not_the_array_of_its_number
);

const NODES: [&str; 3] = ["n1", "n2", "n3"];

/// Both in one lab, for most of the time is the lab's.
fn each_task_of_an_array_and_the_first_component_have_checkpoints(suite: &Suite) {
    if left_to_soak("checkpoints of arrays and heterogeneous jobs", suite) {
        return;
    }
    let mut setup = Setup::new("ckpt-kinds", suite);
    setup.spec.nodes = NODES.len().into();
    setup.spec.job_submit = true;
    setup.spec.movers = Some(plugins::daemons().to_path_buf());
    let Some(cluster) = setup.steered() else {
        return;
    };
    array(&cluster);
    heterogeneous(&cluster);
}

/// One task of an array is requeued, and goes on from a checkpoint of its own; the other runs on.
fn array(cluster: &Cluster) {
    let script = format!("exec >>$SLURM_JOB_ID.out; {} 100000 0.02", counter());
    let options = [
        "--requeue",
        "--open-mode=append",
        "--array=1-2",
        "-N1",
        "--gpuos-checkpoint=1s",
    ];
    let array = cluster.sbatch(&options, &script);
    let ids = |task: u32| {
        let name = format!("{array}_{task}");
        let running = ["-h", "-t", "RUNNING", "-o", "%A", "-j", &name];
        cluster.run("squeue", &running).trim().parse::<u32>().ok()
    };
    let [one, other] = [1, 2].map(|task| until(cluster, "the task has a number", || ids(task)));
    assert_ne!(one, other);
    for job in [one, other] {
        until(cluster, "two checkpoints", || {
            newest(cluster, job).filter(|number| *number >= 2)
        });
    }
    requeue(cluster, &format!("{array}_1"), one);
    goes_on(cluster, one);
    assert!(
        !output(cluster, other).contains("restored"),
        "it was not touched"
    );
    cluster.cancel(&[array]);
}

/// Another component than the first is refused, and the job goes on from the checkpoints of the first.
fn heterogeneous(cluster: &Cluster) {
    let script = format!("srun {} 100000 0.02", counter());
    let both = [
        "-N2",
        "--gpuos-checkpoint=1s",
        ":",
        "-N1",
        "--gpuos-checkpoint=2s",
    ];
    let refused = cluster.try_sbatch(&both, &script).expect_err("refused");
    assert!(
        refused.contains(
            "--gpuos-checkpoint=2s: this is not the first component of its heterogeneous job"
        ),
        "{refused}"
    );
    let first = [
        "--requeue",
        "--open-mode=append",
        "-N2",
        "--ntasks-per-node=1",
        "--gpuos-checkpoint=1s",
        ":",
        "-N1",
        "--requeue",
        "--gpuos-checkpoint=off",
    ];
    let job = cluster.sbatch(&first, &script);
    until(cluster, "two checkpoints", || {
        newest(cluster, job).filter(|number| *number >= 2)
    });
    requeue(cluster, &job.to_string(), job);
    goes_on(cluster, job);
    cluster.cancel(&[job]);
}

/// To `scontrol requeue` the number of the array, which one of its tasks has too, means all tasks.
fn a_task_is_restarted_and_not_the_array_of_its_number(suite: &Suite) {
    let mut setup = Setup::new("ckpt-task", suite);
    setup.spec.nodes = 1.into();
    setup.spec.job_submit = true;
    setup.spec.movers = Some(plugins::daemons().to_path_buf());
    let Some(cluster) = setup.steered() else {
        return;
    };
    let script = format!("exec >>$SLURM_JOB_ID.out; {} 100000 0.02", counter());
    let options = [
        "--requeue",
        "--open-mode=append",
        "--array=1-3",
        "-N1",
        "--gpuos-checkpoint=1s",
    ];
    let array = cluster.sbatch(&options, &script);
    let tasks = || {
        let rows = ["-h", "-a", "-t", "all", "-j", &array.to_string()];
        let format = ["-O", "JobID:.20,ArrayTaskID:.20,RestartCnt:.20,State:.20"];
        let text = cluster.run("squeue", &[&rows[..], &format].concat());
        let rows = text.lines().map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let number = |at: usize| words[at].parse::<u32>().unwrap_or(u32::MAX);
            (
                number(0),
                (words[1].to_string(), number(2), words[3].to_string()),
            )
        });
        rows.collect::<BTreeMap<_, _>>()
    };
    until(&cluster, "the tasks run", || {
        let tasks = tasks();
        let run = tasks.values().filter(|(_, _, state)| state == "RUNNING");
        (run.count() == 3).then_some(())
    });
    for job in tasks().into_keys() {
        until(&cluster, "a checkpoint", || committed(&cluster, "n1", job));
    }
    let (task, _, _) = tasks()[&array].clone();
    let name = format!("{array}_{task}");
    let gpuos = plugins::programs().join("gpuos");
    let gpuos = gpuos.to_str().expect("UTF-8");
    let dir = cluster.lab.gpuosd_runtime_dir("n1");
    let dir = format!("--runtime-dir={}", dir.display());
    // By the task's name, and then by its own number, as `gpuos ckpt list` has it.
    for (times, label) in [(1, &name), (2, &array.to_string())] {
        let told = cluster.run(gpuos, &["ckpt", "restart", label, &dir]);
        assert!(
            told.starts_with(&format!(
                "job {name} is requeued and goes on from checkpoint "
            )),
            "{told}"
        );
        until(&cluster, "it is requeued", || {
            let tasks = tasks();
            let (_, restarts, state) = &tasks[&array];
            (*restarts == times && state == "PENDING").then_some(())
        });
        for (job, (task, restarts, state)) in tasks() {
            let touched = job == array || restarts == 0 && state == "RUNNING";
            assert!(touched, "{label}: {job} {task} {restarts} {state}");
        }
        cluster.update(&[&format!("JobId={name}"), "StartTime=now+3"]);
        until(&cluster, "it runs again", || {
            (tasks()[&array].2 == "RUNNING").then_some(())
        });
        until(&cluster, "it has joined again", || {
            (output(&cluster, array)
                .matches("restored checkpoint")
                .count()
                == times as usize)
                .then_some(())
        });
    }
    cluster.cancel(&[array]);
}

/// The newest checkpoint of a job that any node knows of.
fn newest(cluster: &Cluster, job: u32) -> Option<u32> {
    let of = |node: &&str| committed(cluster, node, job);
    NODES.iter().filter_map(of).max()
}

/// Slurm holds a requeued job back for two minutes; not in the second in which its credential was revoked, though.
fn requeue(cluster: &Cluster, name: &str, job: u32) {
    cluster.run("scontrol", &["requeue", name]);
    until(cluster, "the job is requeued", || {
        let state = cluster.lab.job_state(job).ok();
        state.filter(|state| state == "PENDING")
    });
    cluster.update(&[&format!("JobId={name}"), "StartTime=now+3"]);
    cluster.wait(job, &["RUNNING"]);
}

/// It goes on from a checkpoint that it has made, at the count of that, and makes others.
fn goes_on(cluster: &Cluster, job: u32) {
    let restored = until(cluster, "it goes on", || {
        let text = output(cluster, job);
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("restored checkpoint "));
        line.map(str::to_string)
    });
    let read = |line: &str| -> Option<(u32, u32)> {
        let (number, count) = line.split_once(" at ")?;
        Some((number.parse().ok()?, count.parse().ok()?))
    };
    let (number, count) = read(&restored).expect("a number and a count");
    let text = output(cluster, job);
    // Lines of all ranks, which do not say whose they are.
    let saved = text.lines().filter_map(|line| line.strip_prefix("saved "));
    let is_so = |told: (u32, u32)| had_saved(&[told], (number, count));
    assert!(saved.filter_map(read).any(is_so), "{restored}\n{text}");
    until(cluster, "another checkpoint", || {
        newest(cluster, job).filter(|newest| *newest > number + 1)
    });
}
