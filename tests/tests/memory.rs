//! A slurmctld that may not read its own memory in the usual way, under a real filter of system calls: gpuos steers by
//! another way, or passes through and says why. Its log always has one of the two lines.

use std::process::Command;

use gpuos_lab::{Select, Suite};
use gpuos_tests::{Cluster, Setup, per_suite, plugins, program};

per_suite!(filtered, not_selected);

/// The variable that names the rules for the next slurmctld.
const RULES: &str = "GPUOS_TEST_RULES";

/// Puts a slurmctld before Slurm's own into the lab: under the rules that [`RULES`] names, if it names some.
fn wrap(cluster: &Cluster) {
    let tools = cluster.lab.dir().join("tools");
    let copied = Command::new("cp")
        .args(["--", env!("CARGO_BIN_EXE_gpuos-filtered")])
        .arg(&tools)
        .status()
        .expect("cp");
    assert!(copied.success());
    let text = format!(
        "#!/bin/sh\ntools=\"${{0%/*}}\" PATH=\"${{PATH#*:}}\"\nown=$(command -v slurmctld)\nif [ -z \"${RULES}\" ]; then exec \"$own\" \"$@\"; fi\n\
         exec \"$tools/gpuos-filtered\" \"${RULES}\" \"$own\" \"$@\"\n"
    );
    program(&tools.join("slurmctld"), &text);
}

/// Starts slurmctld anew under rules; what it has logged since.
fn restart(cluster: &mut Cluster, rules: &str) -> String {
    let from = cluster.lab.slurmctld_log().len();
    cluster.lab.set_slurmctld_env(&[(RULES, rules)]);
    cluster.restart_slurmctld();
    let pid = cluster.lab.slurmctld_pid().expect("it runs");
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a status");
    let mode = if rules.is_empty() { "0" } else { "2" };
    let line = status.lines().find(|line| line.starts_with("Seccomp:"));
    assert_eq!(
        line.and_then(|line| line.split_whitespace().nth(1)),
        Some(mode)
    );
    cluster.lab.slurmctld_log().split_off(from)
}

fn count(log: &str, words: &str) -> usize {
    log.lines().filter(|line| line.contains(words)).count()
}

/// GPUs 0 and 1 are linked; stock Slurm gives 0 and 2.
fn steers(cluster: &Cluster, rules: &str) {
    let job = cluster.start(&["--gres=gpu:2", "-w", "n1"]);
    assert_eq!(cluster.planned(job)["n1"], [0, 1], "{rules}");
    cluster.drained();
}

fn filtered(suite: &Suite) {
    let mut setup = Setup::new("memory", suite);
    setup.spec.job_submit = true;
    let Some(mut cluster) = setup.steered() else {
        return;
    };
    assert_eq!(count(&cluster.lab.slurmctld_log(), "by way of a pipe"), 0);
    wrap(&cluster);
    // Systemd's filters end the process for a call that they forbid; an emulator has no filter that could be asked for.
    for (rules, why) in [
        ("refused", "a seccomp filter is in force"),
        ("kills", "a seccomp filter is in force"),
        ("emulated", "Function not implemented"),
    ] {
        let log = restart(&mut cluster, rules);
        assert_eq!(count(&log, "steering cons_tres"), 1, "{rules}: {log}");
        let told = log.lines().filter(|line| line.contains("by way of a pipe"));
        let told: Vec<&str> = told.collect();
        assert!(
            matches!(told[..], [line] if line.contains(why)),
            "{rules}: {log}"
        );
        assert_eq!(count(&log, "passing through"), 0, "{rules}: {log}");
        steers(&cluster, rules);
    }
    cluster.expects_errors = true;
    for (rules, why) in [
        ("nothing", "a seccomp filter is in force"),
        ("emulated-nothing", "Function not implemented"),
    ] {
        let log = restart(&mut cluster, rules);
        passes(&cluster, rules, &log, why);
    }
    // What has been saved there is read by a slurmctld without a filter, and the jobs go on.
    let job = cluster.start(&["--gres=gpu:2", "-w", "n1"]);
    restart(&mut cluster, "");
    assert!(cluster.passes_through().is_none());
    assert_eq!(cluster.lab.job_state(job).expect("known"), "RUNNING");
    assert_eq!(cluster.gpus(job)["n1"].len(), 2);
    assert_eq!(cluster.used()["n1"].gpus, 2);
    cluster.drained();
    steers(&cluster, "none");
}

/// All is as with stock Slurm, and the log has one line that says why.
fn passes(cluster: &Cluster, rules: &str, log: &str, why: &str) {
    let told: Vec<&str> = log
        .lines()
        .filter(|line| line.contains("select/gpuos: ") && !line.contains("debug"))
        .collect();
    let parts = [
        "passing through to cons_tres",
        "may not read its own memory",
        "a pipe: Operation not permitted",
        "SystemCallFilter=",
        why,
    ];
    let [line] = told[..] else {
        panic!("{rules}: {told:#?}");
    };
    for part in parts {
        assert!(line.contains(part), "{rules}: {part} in {line}");
    }
    assert_eq!(
        count(log, "job_submit/gpuos: jobs are accepted"),
        1,
        "{log}"
    );
    // Users see nothing of it.
    let script = [
        "--wrap=sleep 600",
        "--parsable",
        "--gres=gpu:2",
        "-wn1",
        "--output=/dev/null",
    ];
    let out = cluster.lab.output("sbatch", &script).expect("sbatch runs");
    assert!(out.status.success() && out.stderr.is_empty(), "{out:?}");
    let job = String::from_utf8_lossy(&out.stdout).trim().parse();
    let job = job.expect("a number");
    cluster.wait(job, &["RUNNING"]);
    assert_eq!(cluster.gpus(job)["n1"].len(), 2);
    assert_eq!(cluster.note(job), None, "{rules}: a job was steered");
    let rest = cluster.start(&["--gres=gpu:6", "-w", "n1"]);
    let waits = cluster.sbatch(&["--gres=gpu:1", "-w", "n1"], "sleep 600");
    assert_eq!(cluster.used()["n1"].gpus, 8);
    cluster.cancel(&[job, rest]);
    cluster.wait(waits, &["RUNNING"]);
    // doctor knows what mends it.
    let gpuos = plugins::programs().join("gpuos");
    let out = cluster
        .lab
        .output(&gpuos.to_string_lossy(), &["doctor"])
        .expect("gpuos runs");
    let told = String::from_utf8_lossy(&out.stdout);
    assert!(
        told.contains("SystemCallFilter slurmctld"),
        "{rules}: {told}"
    );
    cluster.drained();
}

/// Up to 24.11 slurmctld and the commands load every select plugin in PluginDir: one that is not selected says nothing.
fn not_selected(suite: &Suite) {
    let mut setup = Setup::new("memory2", suite);
    setup.spec.select = Select::Installed {
        plugin_dir: plugins::built().to_path_buf(),
        own_dir: true,
    };
    let Some(mut cluster) = setup.up() else {
        return;
    };
    wrap(&cluster);
    let log = restart(&mut cluster, "nothing");
    assert_eq!(count(&log, "select/gpuos"), 0, "{log}");
    let job = cluster.start(&["--gres=gpu:2", "-w", "n1"]);
    assert_eq!(cluster.gpus(job)["n1"].len(), 2);
    cluster.drained();
}
