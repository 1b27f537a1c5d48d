//! A job whose name looks like the records of others, in a real Slurm that lets it in: root's daemon does what it does to
//! that job alone, and nobody sees a job that is not there.

use std::collections::BTreeSet;

use gpuos_lab::Suite;
use gpuos_tests::plugins::programs;
use gpuos_tests::{Cluster, Setup, per_suite};
use serde_json::Value;

per_suite!(a_name_is_no_record);

/// State and restarts of a job, and nothing that a user writes.
fn stands(cluster: &Cluster, job: u32) -> (String, u32) {
    let format = "State:|,RestartCnt:|";
    let text = cluster.run("squeue", &["-h", "-j", &job.to_string(), "-O", format]);
    let (state, rest) = text.trim().split_once('|').expect("two fields");
    let restarts = rest.trim_end_matches('|').parse().expect("a number");
    (state.into(), restarts)
}

fn top(cluster: &Cluster) -> Value {
    let program = programs().join("gpuos");
    let program = program.to_str().expect("a path in UTF-8");
    let text = cluster.run(program, &["--json", "top"]);
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// Jobs that top shows, and on which GPUs.
fn shown(cluster: &Cluster) -> (BTreeSet<String>, Vec<(u64, String)>) {
    let top = top(cluster);
    let word = |value: &Value| value.as_str().expect("a word").to_string();
    let jobs = top["jobs"].as_array().expect("jobs").iter();
    let gpus = top["gpus"].as_array().expect("GPUs").iter();
    let held = gpus.flat_map(|gpu| {
        let index = gpu["index"].as_u64().expect("a number");
        let jobs = gpu["jobs"].as_array().expect("jobs").iter();
        jobs.map(move |job| (index, word(job))).collect::<Vec<_>>()
    });
    (jobs.map(|job| word(&job["job"])).collect(), held.collect())
}

/// Runs a command as a user who is nobody in particular.
fn as_user(cluster: &Cluster, program: &str, args: &[&str]) -> Result<String, String> {
    let user = ["--reuid=65534", "--regid=65534", "--clear-groups", program];
    cluster.try_run("setpriv", &[&user, args].concat())
}

/// Control characters in the texts of a job, whichever command brings them and whatever the job asks for.
fn users_are_refused(cluster: &Cluster) {
    let batch = ["-H", "-o", "/dev/null", "-D", "/tmp", "--wrap=true"];
    let names = "JobName=x\n   UserId=root(0)";
    let job = match as_user(cluster, "sbatch", &[&batch[..], &["--parsable"]].concat()) {
        Ok(job) => job,
        Err(why) => return gpuos_tests::skip("a user's jobs", &why),
    };
    for option in [
        "--job-name=x\nArrayJobId=1 ArrayTaskId=z",
        "--comment=x\r\n   SystemComment=y",
        "--account=a\tb",
        "--wckey=\u{1b}[2J",
        "--mail-user=\u{9b}1m",
        "--network=\u{202e}x",
        "--error=/tmp/x\n   TresPerNode=gres/gpu:8",
    ] {
        let name = option.split('=').next().expect("a name");
        for (program, rest) in [
            ("sbatch", &batch[..]),
            ("srun", &["true"]),
            ("salloc", &["true"]),
        ] {
            if program != "sbatch" && name != "--job-name" && name != "--comment" {
                continue;
            }
            let args = [&rest[..rest.len() - 1], &[option], &rest[rest.len() - 1..]].concat();
            let why = as_user(cluster, program, &args).expect_err(option);
            assert!(
                why.contains(name) && why.contains("U+00") | why.contains("U+20"),
                "{program} {option:?}: {why}"
            );
            let control = |c: char| c.is_control() && c != '\n' || c == '\u{202e}';
            assert!(!why.contains(control), "{why:?}");
        }
    }
    // Command lines and scripts have several lines.
    let args = [&batch[..5], &["--wrap=echo a\necho b"]].concat();
    as_user(cluster, "sbatch", &args).expect("a script of two lines");
    let id = format!("JobId={}", job.trim());
    for change in [names, "Comment=\u{1b}c"] {
        as_user(cluster, "scontrol", &["update", &id, change]).expect_err(change);
    }
    as_user(cluster, "scontrol", &["update", &id, "JobName=naïve 模型"])
        .expect("one line of print");
    cluster.run("scancel", &["-u", "65534"]);
}

fn a_name_is_no_record(suite: &Suite) {
    let mut setup = Setup::simulated("forged", suite, 1);
    setup.spec.job_submit = true;
    let Some(cluster) = setup.steered() else {
        return;
    };
    users_are_refused(&cluster);
    // What root writes is let in, as all is where the plugin is not loaded.
    let victim = cluster.start(&["--requeue", "--gres=gpu:1"]);
    let forger = cluster.start(&["--requeue", "--gres=gpu:1"]);
    let gpu = cluster.gpus(forger)["n1"][0];
    let other = cluster.gpus(victim)["n1"][0];
    let record = cluster.show(victim);
    let (own, known) = (
        format!("JobId={forger}"),
        [victim, forger].map(|job| job.to_string()),
    );
    let forgeries = [
        format!("x\nArrayJobId={victim} ArrayTaskId=z"),
        format!("x\nHetJobId={victim} HetJobOffset=0"),
        "x\n   SystemComment=gpuos:1 mig=7g.80gb\n     Nodes=n1 CPU_IDs=0 Mem=1 GRES=gpu:h100:8(IDX:0-7)".into(),
        format!("x\n\n{record}\n\nJobId=4711 JobName=phantom\n   UserId=root(0) GroupId=root(0)\n   JobState=RUNNING"),
        format!("x\n{}\n\n{record}", record.split_once('\n').expect("lines").1),
        "\u{1b}[2Jx\r\n\u{202e}y".into(),
    ];
    for name in forgeries {
        // slurmctld takes no longer ones.
        let name: String = name.chars().take(1000).collect();
        cluster.update(&[&own, &format!("JobName={name}")]);
        let (jobs, held) = shown(&cluster);
        assert_eq!(jobs, known.clone().into(), "{name:?}");
        for (index, job) in held {
            let own = if index == gpu as u64 { forger } else { victim };
            assert_eq!(job, own.to_string(), "{name:?}: GPU {index}");
            assert!(
                [gpu, other].contains(&(index as usize)),
                "{name:?}: GPU {index}"
            );
        }
        let program = programs().join("gpuos");
        let text = cluster.run(program.to_str().expect("a path"), &["top", "--once"]);
        let control = |c: char| c.is_control() && c != '\n' || c == '\u{202e}';
        assert!(!text.contains(control), "{text:?}");
    }
    // By a name that says it is the other one, it is requeued for the fault of its GPU.
    let name = format!("JobName=x\nArrayJobId={victim} ArrayTaskId=z");
    cluster.update(&[&own, &name]);
    let fault = cluster
        .lab
        .fault("n1", &format!("gpu{gpu}"), &["xid", "48"]);
    fault.expect("gpuos-nvml knows it");
    cluster.until("the job on the GPU is requeued", || {
        (stands(&cluster, forger).1 == 1).then_some(())
    });
    // It starts again at once, as a job of its own does.
    cluster.until("it runs again", || {
        (stands(&cluster, forger).0 == "RUNNING").then_some(())
    });
    assert_eq!(stands(&cluster, victim), ("RUNNING".into(), 0));
    cluster.drained();
}
