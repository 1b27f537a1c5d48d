//! GPUs that a step names and Slurm has not given: in real Slurm clusters nothing is done to them, and nothing while slurmctld is
//! silent.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use gpuos_core::limits::{Asked, PowerCap};
use gpuos_core::step::StepId;
use gpuos_core::wire::{Reason, Reply, Request};
use gpuos_host::socket::{Client, NAME};
use gpuos_lab::Suite;
use gpuos_tests::cluster::LIMIT;
use gpuos_tests::{Cluster, Setup, per_suite, program, slices};

per_suite!(
    gpus_that_slurm_does_not_count_are_nobodys,
    a_silent_slurmctld_gives_nothing
);

const ALL: &str = "0,1,2,3,4,5,6,7";

fn one(name: &str, suite: &Suite) -> Option<Cluster> {
    let mut setup = Setup::simulated(name, suite, 1);
    setup.spec.job_submit = true;
    setup.steered()
}

/// How many GPUs have a power limit that is not the board's.
fn limited(cluster: &Cluster) -> usize {
    slices::nvml(cluster, "n1", &["show"])
        .matches("limit")
        .count()
}

fn output(cluster: &Cluster, job: u32) -> String {
    let file = cluster.lab.dir().join(format!("work/{job}.out"));
    fs::read_to_string(file).unwrap_or_default()
}

/// Where no GRES `gpu` is configured, Slurm neither sets the variables nor removes what a user writes there.
fn gpus_that_slurm_does_not_count_are_nobodys(suite: &Suite) {
    let Some(cluster) = one("uncounted", suite) else {
        return;
    };
    let without = |text: String| {
        let lines = text.lines().filter(|line| !line.starts_with("GresTypes"));
        let word = |word: &&str| !word.starts_with("Gres=");
        let kept = lines.map(|line| line.split(' ').filter(word).collect::<Vec<_>>().join(" "));
        kept.collect::<Vec<_>>().join("\n") + "\n"
    };
    cluster.lab.edit_slurm_conf(without).expect("it is written");
    cluster
        .lab
        .write_conf("gres.conf", "")
        .expect("it is written");
    cluster.lab.restart().expect("Slurm starts");
    cluster.ready();
    let script = format!(
        "export SLURM_JOB_GPUS={ALL} SLURM_STEP_GPUS={ALL}\n\
         srun --gpuos-power=300W sh -c 'echo step=$SLURM_STEP_GPUS; sleep 600'"
    );
    let job = cluster.sbatch(&["-w", "n1"], &script);
    let told = cluster.until("the step runs", || {
        let text = output(&cluster, job);
        text.contains("step=").then_some(text)
    });
    assert_eq!(limited(&cluster), 0, "{told}");
    // If Slurm has left the variable, the job is told what comes of it.
    let left = told.contains(&format!("step={ALL}"));
    let says = || output(&cluster, job).contains("which Slurm has not given to this job here");
    match left {
        true => cluster.until("the job is told", || says().then_some(())),
        false => assert!(!says(), "{}", output(&cluster, job)),
    }
    eprintln!(
        "Slurm {} leaves the variable: {left}",
        cluster.lab.version()
    );
    cluster.cancel(&[job]);
}

/// slurmctld is stopped while the prolog of a job runs, whose batch script asks for a power limit.
fn a_silent_slurmctld_gives_nothing(suite: &Suite) {
    // Later releases wait for the end of the prolog before slurmctld has the script launched.
    if *suite != Suite::Native {
        return;
    }
    let Some(cluster) = one("silent", suite) else {
        return;
    };
    how_long(&cluster);
    cluster.until("the limit goes with the job before", || {
        (limited(&cluster) == 0).then_some(())
    });
    let [hold, began, prolog] =
        ["work/hold", "work/began", "prolog"].map(|name| cluster.lab.dir().join(name));
    let wait = format!(
        "#!/bin/sh\n: > {}\nwhile [ -e {} ]; do sleep 0.1; done\n",
        began.display(),
        hold.display()
    );
    program(&prolog, &wait);
    let named = prolog.display().to_string();
    cluster
        .lab
        .set_slurm_conf("Prolog", Some(&named))
        .expect("it is written");
    cluster.lab.restart().expect("Slurm reads it");
    fs::write(&hold, "").expect("a file");
    let job = cluster.sbatch(
        &["--gres=gpu:1", "--gpuos-power=300W"],
        "echo runs; sleep 600",
    );
    cluster.until("the prolog runs", || began.exists().then_some(()));
    let pid = cluster.lab.slurmctld_pid().expect("it runs").to_string();
    let signal = |name: &str| {
        let sent = Command::new("kill").args([name, &pid]).status();
        assert!(sent.expect("kill runs").success());
    };
    signal("-STOP");
    fs::remove_file(&hold).expect("the prolog goes on");
    // Under load gpuosd's own sentence may come after the step waits no more.
    let whys = [
        "slurmctld does not say which GPUs this job has: power and clocks are set once it does",
        "gpuosd has not answered within 2 s",
    ];
    let said = |text: &String| text.contains("runs") && whys.iter().any(|why| text.contains(why));
    let end = Instant::now() + LIMIT;
    let mut told = String::new();
    while !said(&told) && Instant::now() < end {
        told = output(&cluster, job);
        std::thread::sleep(Duration::from_millis(100));
    }
    let before = limited(&cluster);
    signal("-CONT");
    assert_eq!(before, 0, "{told}");
    assert!(said(&told), "{told}");
    cluster.until("the limit comes when slurmctld answers", || {
        (limited(&cluster) == 1).then_some(())
    });
    cluster.cancel(&[job]);
    cluster.drained();
}

/// How much later a step starts because slurmctld is asked.
fn how_long(cluster: &Cluster) {
    let job = cluster.start(&["--gres=gpu:1", "--gpuos-power=300W"]);
    cluster.until("the limit", || (limited(cluster) == 1).then_some(()));
    let (_, gpus) = cluster.gpus(job).pop_first().expect("a node");
    let socket = cluster.lab.gpuosd_runtime_dir("n1").join(NAME);
    let ask = |power, step| {
        let asked = Asked {
            power,
            ..Asked::default()
        };
        let gpus = gpus.iter().map(|gpu| *gpu as u8).collect();
        let id = StepId {
            job: job.into(),
            step,
        };
        let (uid, mig, switchable) = (0, None, false);
        let request = Request::StepStart {
            id: id.clone(),
            uid,
            gpus,
            asked,
            mig,
            switchable,
            memory: None,
            reason: Reason::Devices,
        };
        let begun = Instant::now();
        let mut client = Client::connect(&socket, Duration::from_secs(30)).expect("it listens");
        let told = client.ask(&request).expect("an answer");
        let took = begun.elapsed();
        client.ask(&Request::StepEnd { id }).expect("an answer");
        assert!(
            matches!(told, Reply::Done { .. } | Reply::Prepared { .. }),
            "{told:?}"
        );
        took
    };
    let cap = Some(PowerCap::Watts(300));
    let [mut plain, mut asks] =
        [None, cap].map(|power| (0..21).map(|step| ask(power, step)).collect::<Vec<_>>());
    plain.sort();
    asks.sort();
    eprintln!(
        "a step that asks for nothing is answered after {:?} (median; at most {:?}), one with a limit that is in force after {:?} ({:?})",
        plain[10], plain[20], asks[10], asks[20]
    );
    cluster.cancel(&[job]);
}
