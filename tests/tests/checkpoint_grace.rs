//! How long jobs of a QOS go on when others preempt them, with a real slurmdbd and MariaDB: sbatch and `gpuos doctor` say where that is too short for a
//! checkpoint. Partitions are in `checkpoint_ends.rs`.

use gpuos_lab::Suite;
use gpuos_tests::{Cluster, Setup, per_suite, plugins};

use crate::checkpoint_ends::told_at_submission;

per_suite!(a_qos_leaves_time_for_a_checkpoint);

fn a_qos_leaves_time_for_a_checkpoint(suite: &Suite) {
    let mut setup = Setup::new("ckpt-grace", suite);
    setup.spec.nodes = 1.into();
    setup.spec.job_submit = true;
    setup.spec.accounting = true;
    setup.spec.gpuos_toml = Some("[checkpoint]\nenabled = true\n".into());
    setup.spec.slurm_conf_extra.extend([
        "PreemptType=preempt/qos".into(),
        "PreemptMode=REQUEUE".into(),
        "AccountingStorageEnforce=associations,limits,qos".into(),
    ]);
    let Some(cluster) = setup.steered() else {
        return;
    };
    let sacctmgr = |words: &[&str]| cluster.run("sacctmgr", &[&["-i"], words].concat());
    sacctmgr(&["add", "qos", "low", "gracetime=5"]);
    sacctmgr(&["add", "qos", "high", "preempt=low,normal"]);
    // slurmdbd makes this account itself.
    sacctmgr(&["modify", "account", "root", "set", "qos+=low,high"]);
    cluster.until("slurmctld knows the QOS", || {
        let job = cluster.try_sbatch(&["-H", "--qos=high"], "true").ok()?;
        cluster.cancel(&[job]);
        Some(())
    });
    let none = "jobs of QOS normal may be preempted without notice (GraceTime=0)";
    says(
        &cluster,
        &["--qos=low"],
        Some("jobs of QOS low have 5 s when they are preempted (GraceTime)"),
    );
    says(&cluster, &["--qos=high"], None);
    says(&cluster, &["--qos=normal"], Some(none));
    // Without a QOS a job gets the default of its user, which is that of all here until somebody has another one.
    says(&cluster, &[], Some(none));
    doctor_says(
        &cluster,
        "QOS normal (GraceTime=0), low (GraceTime=5) are preempted before",
    );
    sacctmgr(&["modify", "user", "root", "set", "defaultqos=high"]);
    says(&cluster, &[], None);
    sacctmgr(&["modify", "user", "root", "set", "defaultqos=low"]);
    says(&cluster, &[], Some("jobs of QOS low have 5 s"));
    // Time enough, and a QOS that only suspends.
    sacctmgr(&["modify", "qos", "low", "set", "gracetime=60"]);
    says(&cluster, &["--qos=low"], None);
    sacctmgr(&["modify", "qos", "high", "set", "preempt-=normal"]);
    says(&cluster, &["--qos=normal"], None);
    doctor_says(&cluster, "QOS low (GraceTime=60) can save");
}

/// slurmctld hears of changes from slurmdbd some time later.
fn says(cluster: &Cluster, options: &[&str], sentence: Option<&str>) {
    let what = format!("{options:?} says {sentence:?}");
    cluster.until(&what, || {
        let said = told_at_submission(cluster, options);
        let right = match sentence {
            Some(sentence) => said.contains(sentence),
            None => !said.contains("preempted"),
        };
        right.then_some(())
    });
}

fn doctor_says(cluster: &Cluster, words: &str) {
    let gpuos = plugins::programs().join("gpuos");
    let out = cluster.output(gpuos.to_str().expect("UTF-8"), &["--json", "doctor"]);
    let out = out.expect("it runs");
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(said.contains(words), "{words}\n{said}");
}
