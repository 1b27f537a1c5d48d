//! Why a job waits for a required level: gpuos's sentence in squeue, put back by a thread in slurmctld whenever
//! slurmctld has cleared it, and Slurm's own reason wherever it has another one.

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::Duration;

use gpuos_lab::{Select, Suite};
use gpuos_tests::{Cluster, Setup, per_suite, plugins, skip};

per_suite!(in_sight, daemon, storm, thread, panic);

const LEAVES: &str = "[[fabric.level]]\nname = \"leaf\"\n\
    [[fabric.switch]]\nname = \"l1\"\nlevel = \"leaf\"\nnodes = \"n[1-2]\"\n\
    [[fabric.switch]]\nname = \"l2\"\nlevel = \"leaf\"\nnodes = \"n[3-4]\"\n";
/// Two whole nodes in one leaf.
const GANG: [&str; 3] = ["-N2", "--gpus-per-node=8", "--gpuos-topology=leaf:required"];
/// The thread, as ps shows it.
const THREAD: &str = "gpuos-reasons";

/// Four nodes in two leaves. Backfill, which would set reasons too, looks after the end of the test.
fn four(name: &str, suite: &Suite) -> Setup {
    let mut setup = Setup::new(name, suite);
    setup.spec.nodes = 4.into();
    setup.spec.gpuos_toml = Some(LEAVES.into());
    let options = &mut setup.spec.slurm_conf_extra[0];
    *options = options.replace("bf_interval=1,", "bf_interval=3600,");
    assert!(options.contains("3600"), "{options}");
    setup
}

/// `None` too where the main scheduler, which is what these tests are about, starts no job: on 23.11 and 24.05 without
/// slurmdbd it takes every account for invalid, under any select plugin, and leaves the jobs to backfill.
fn steered(setup: Setup) -> Option<Cluster> {
    let cluster = setup.steered()?;
    let probe = cluster.sbatch(&["-w", "n1"], "true");
    let starts = cluster.until("the main scheduler has tried a job", || {
        let invalid = reason(&cluster, probe) == "InvalidAccount";
        let state = cluster.lab.job_state(probe).expect("known");
        (invalid || state != "PENDING").then_some(!invalid)
    });
    if !starts {
        skip("reasons in sight", "the main scheduler starts no job");
    }
    starts.then_some(cluster)
}

/// One GPU in each leaf is in use, so no leaf has two whole nodes.
fn blocked(cluster: &Cluster) -> [u32; 2] {
    ["n1", "n3"].map(|node| cluster.start(&["--gres=gpu:1", "-w", node]))
}

fn gang(cluster: &Cluster) -> u32 {
    cluster.sbatch(&GANG, "sleep 600")
}

fn reason(cluster: &Cluster, job: u32) -> String {
    let id = job.to_string();
    let text = cluster.run("squeue", &["-h", "-j", &id, "-o", "%r"]);
    text.trim().to_string()
}

/// Waits until squeue shows gpuos's sentence on the level. Plain `Resources` is in sight for the moment between a refusal
/// and the thread's next look, and counts where the level is not what was missing in the last look.
fn shown(cluster: &Cluster, job: u32) {
    cluster.until("squeue shows gpuos's reason", || {
        let reason = reason(cluster, job);
        let ours = reason.starts_with("gpuos: ") && reason.contains("leaf");
        let counted = reason.starts_with("gpuos: The job needs");
        assert!(ours || counted || reason == "Resources", "{reason}");
        ours.then_some(())
    });
}

/// Waits until squeue shows a reason of Slurm's, and looks again after the thread has.
fn slurms_own(cluster: &Cluster, job: u32, own: &str) {
    cluster.until(own, || reason(cluster, job).contains(own).then_some(()));
    for _ in 0..3 {
        sleep(Duration::from_secs(1));
        let reason = reason(cluster, job);
        assert!(reason.contains(own), "{reason} in place of {own}");
    }
}

/// As [`shown`], of a job that may not have been tested yet.
fn comes(cluster: &Cluster, job: u32) {
    cluster.until("squeue shows gpuos's reason at last", || {
        reason(cluster, job).starts_with("gpuos: ").then_some(())
    });
}

fn update(cluster: &Cluster, job: u32, change: &str) {
    cluster.update(&[&format!("JobId={job}"), change]);
}

fn in_sight(suite: &Suite) {
    let Some(cluster) = steered(four("reasons", suite)) else {
        return;
    };
    let [first, second] = blocked(&cluster);
    let waits = gang(&cluster);
    // Alone: the main scheduler refuses it every second, no other job is tested.
    comes(&cluster, waits);
    let mut others = Vec::new();
    for round in 0..12 {
        let options: &[&str] = match round % 3 {
            0 => &["-N3", "--gpus-per-node=8"],
            1 => &["-N4", "--gpus-per-node=8", "--gpuos=off"],
            _ => &["-N4", "--exclusive"],
        };
        others.push(cluster.sbatch(options, "sleep 600"));
        shown(&cluster, waits);
    }
    cluster.cancel(&others);
    shown(&cluster, waits);

    cluster.run("scontrol", &["hold", &waits.to_string()]);
    slurms_own(&cluster, waits, "JobHeld");
    cluster.run("scontrol", &["release", &waits.to_string()]);
    comes(&cluster, waits);
    update(&cluster, waits, &format!("Dependency=afterany:{first}"));
    slurms_own(&cluster, waits, "Dependency");
    // With the first job gone the gang starts.
    cluster.cancel(&[first]);
    cluster.wait(waits, &["RUNNING"]);
    slurms_own(&cluster, waits, "None");
    cluster.cancel(&[waits, second]);
    cluster.drained();
}

/// Reconfiguring, restarting and killing slurmctld with such jobs in the queue.
fn daemon(suite: &Suite) {
    let Some(cluster) = steered(four("keeper", suite)) else {
        return;
    };
    let [first, second] = blocked(&cluster);
    let waits = gang(&cluster);
    let more: Vec<u32> = (0..20).map(|_| gang(&cluster)).collect();
    comes(&cluster, waits);
    for round in 0..6 {
        match round % 3 {
            0 => {
                cluster.lab.reconfigure().expect("reconfigures");
                cluster.ready();
            }
            1 => cluster.restart_slurmctld(),
            _ => cluster.crash(waits),
        }
        comes(&cluster, waits);
    }
    let log = cluster.lab.slurmctld_log();
    assert!(!log.contains("Semaphores still set"), "{log}");
    cluster.cancel(&more);
    cluster.cancel(&[waits, first, second]);
    cluster.drained();
}

/// Rounds of each submitter in [`storm`].
const ROUNDS: usize = 10;

/// Gangs submitted, held, released and cancelled from three sides while slurmctld reads its configuration and is
/// restarted: every command is answered, and none leaves a lock or a GPU behind.
fn storm(suite: &Suite) {
    let Some(cluster) = steered(four("storm", suite)) else {
        return;
    };
    blocked(&cluster);
    let rounds = std::env::var("GPUOS_STORM_ROUNDS").ok();
    let rounds = rounds.map_or(ROUNDS, |rounds| rounds.parse().expect("a number"));
    let left = AtomicUsize::new(3);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..rounds {
                    one_round(&cluster);
                }
                left.fetch_sub(1, Ordering::Relaxed);
            });
        }
        while left.load(Ordering::Relaxed) > 0 {
            sleep(Duration::from_secs(3));
            cluster.lab.reconfigure().expect("reconfigures");
            sleep(Duration::from_secs(3));
            cluster.restart_slurmctld();
        }
    });
    // Those whose submitter or canceller was not answered stand before it.
    cluster.run("scancel", &["-t", "PENDING"]);
    let waits = gang(&cluster);
    comes(&cluster, waits);
    let log = cluster.lab.slurmctld_log();
    assert!(!log.contains("Semaphores still set"), "{log}");
    cluster.drained();
}

/// While slurmctld restarts a command may fail; none may hang.
fn one_round(cluster: &Cluster) {
    let patient = |program: &str, args: &[&str]| {
        if let Err(why) = cluster.try_run(program, args) {
            // The exit status of `timeout` leaves no text.
            assert!(!why.is_empty(), "{program} {args:?} hangs");
        }
    };
    let Ok(job) = cluster.try_sbatch(&GANG, "sleep 600") else {
        return sleep(Duration::from_millis(200));
    };
    let job = job.to_string();
    patient("squeue", &["-h", "-o", "%i %r"]);
    patient("scontrol", &["hold", &job]);
    patient("scontrol", &["release", &job]);
    patient("squeue", &["-h", "-j", &job, "-o", "%r"]);
    patient("scancel", &[&job]);
}

/// Names of slurmctld's threads that are gpuos's.
fn threads(cluster: &Cluster) -> Option<usize> {
    let pid = cluster.lab.slurmctld_pid()?;
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let name = |task: fs::DirEntry| fs::read_to_string(task.path().join("comm")).ok();
    let names = tasks.filter_map(|task| name(task.ok()?));
    Some(names.filter(|name| name.trim() == THREAD).count())
}

fn has_threads(cluster: &Cluster, count: usize) {
    let what = format!("slurmctld has {count} threads of gpuos's");
    cluster.until(&what, || (threads(cluster) == Some(count)).then_some(()));
}

/// One thread where gpuos steers, none where it passes through.
fn thread(suite: &Suite) {
    let Some(mut cluster) = steered(four("thread", suite)) else {
        return;
    };
    cluster.expects_errors = true;
    has_threads(&cluster, 1);
    let write = |text: &str| {
        cluster.lab.write_conf("gpuos.toml", text).expect("writes");
        cluster.lab.reconfigure().expect("reconfigures");
        cluster.ready();
    };
    write("[slurm]\nsteer = false\n");
    has_threads(&cluster, 0);
    write(LEAVES);
    has_threads(&cluster, 1);
    // A layout table that cannot be read: no structure of slurmctld is touched by anybody.
    let table = "gpuos-layouts.tsv";
    cluster
        .lab
        .write_conf(table, "job_record\tjob_id\tmany\t4\n")
        .expect("writes");
    cluster.restart_slurmctld();
    let job = cluster.start(&["--gres=gpu:2"]);
    has_threads(&cluster, 0);
    cluster.cancel(&[job]);
    cluster.drained();
}

/// A panic ends the thread alone: gpuos goes on steering, and the reason comes back when backfill looks.
fn panic(suite: &Suite) {
    let mut setup = four("reason-panic", suite);
    let options = &mut setup.spec.slurm_conf_extra[0];
    *options = options.replace("bf_interval=3600,", "bf_interval=1,");
    setup.spec.select = Select::Gpuos {
        plugin_dir: plugins::with_faults().to_path_buf(),
        own_dir: true,
    };
    let Some(mut cluster) = setup.steered() else {
        return;
    };
    cluster.expects_errors = true;
    cluster.lab.set_slurmctld_env(&[("GPUOS_PANIC_AT", THREAD)]);
    cluster.restart_slurmctld();
    let blockers = blocked(&cluster);
    let waits = gang(&cluster);
    has_threads(&cluster, 0);
    let pid = cluster.lab.slurmctld_pid();
    comes(&cluster, waits);
    let job = cluster.start(&["--gres=gpu:2"]);
    cluster.planned(job);
    let log = cluster.lab.slurmctld_log();
    assert!(log.contains("internal error in the thread"), "{log}");
    assert_eq!(cluster.lab.slurmctld_pid(), pid);
    cluster.cancel(&[waits, job, blockers[0], blockers[1]]);
    cluster.drained();
}
