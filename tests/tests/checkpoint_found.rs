//! Whether a job that starts again has ever made a checkpoint, where it is looked for, and by which keys it is read, on a real Slurm without
//! gpuosd.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use gpuos_lab::Suite;
use gpuos_tests::{Cluster, Setup, per_suite, plugins};

use crate::checkpoint::{
    committed, count, counter, have_told, logs, lose, movers, output, requeue, starts_soon, until,
};
use crate::checkpoint_outside::{NEW, OLD, away, go_on, newest};
use crate::held;

per_suite!(
    checkpoints_are_found_that_no_node_names,
    what_was_made_is_not_begun_anew_and_what_was_not_is,
    movers_with_different_keys_say_so_once_and_a_key_is_changed_while_a_job_runs,
);

/// What a node publishes that holds something of many jobs, none of which is one of this cluster's.
fn crowd() -> String {
    let jobs: Vec<String> = (900..916).map(|job| format!("{job}:9")).collect();
    format!("[gpuos:1 ckpt={}]", jobs.join(","))
}

/// Other users' jobs take all places of a node's list, or no gpuosd is there to publish any.
fn checkpoints_are_found_that_no_node_names(suite: &Suite) {
    let Some(cluster) = movers("ckpt-unnamed", suite, 6) else {
        return;
    };
    NEW.iter().for_each(|node| cluster.set_node(node, "DRAIN"));
    let job = count(&cluster, &[]);
    let before = newest(&cluster, &OLD, job, 2);
    away(&cluster, job, &OLD, &NEW);
    let first = go_on(&cluster, job, 1, before);
    let before = newest(&cluster, &NEW, job, first + 2);
    held::publish(&cluster, &NEW, &crowd());
    away(&cluster, job, &NEW, &OLD);
    go_on(&cluster, job, 2, before);
    cluster.cancel(&[job]);
}

/// A program of one rank, alone on its node, which appends to its output.
fn alone(cluster: &Cluster, options: &[&str]) -> (u32, String) {
    let script = format!("srun -l {} 100000 0.02", counter());
    let all = ["--requeue", "-N1", "--exclusive", "--open-mode=append"];
    let job = cluster.sbatch(&[&all, options].concat(), &script);
    cluster.wait(job, &["RUNNING"]);
    until(cluster, "it begins", || says(cluster, job, "new", 1));
    (job, held::nodes(cluster, job).remove(0))
}

fn says(cluster: &Cluster, job: u32, what: &str, times: usize) -> Option<()> {
    let text = output(cluster, job);
    (text.matches(what).count() >= times).then_some(())
}

/// Three jobs lose their nodes with all that was stored there: one that had made checkpoints, one that is to begin anew then, and one that had made none.
fn what_was_made_is_not_begun_anew_and_what_was_not_is(suite: &Suite) {
    let Some(cluster) = movers("ckpt-lost-all", suite, 6) else {
        return;
    };
    NEW.iter().for_each(|node| cluster.set_node(node, "DRAIN"));
    let (kept, on) = alone(&cluster, &["--gpuos-checkpoint=1s"]);
    let (anew, other) = alone(&cluster, &["--gpuos-checkpoint=1s", "--gpuos-restart=new"]);
    let (early, third) = alone(&cluster, &["--gpuos-checkpoint=1h"]);
    for (job, node) in [(kept, &on), (anew, &other)] {
        let number = until(&cluster, "a checkpoint", || committed(&cluster, node, job));
        have_told(&cluster, job, 1, number);
        until(&cluster, "its record says so", || {
            let comment = cluster.show(job);
            comment.contains("made=").then_some(())
        });
    }
    for node in [&on, &other, &third] {
        lose(&cluster, node, || {});
    }
    [kept, anew, early]
        .iter()
        .for_each(|job| starts_soon(&cluster, *job));
    NEW.iter().for_each(|node| cluster.set_node(node, "RESUME"));
    let told = until(&cluster, "it is told", || {
        let text = output(&cluster, kept);
        let line = text.lines().find(|line| line.contains("no checkpoint"))?;
        Some(line.to_string())
    });
    println!("{told}");
    let made = format!("was made in run 0 of the job, on {on}");
    let silent = format!("the mover of node {on} at");
    for words in [&made, &silent, "--gpuos-restart=new"] {
        assert!(told.contains(words), "{words}\n{told}\n{}", logs(&cluster));
    }
    assert!(!told.contains("gone"), "{told}");
    until(&cluster, "it begins anew as it asked", || {
        says(&cluster, anew, "new", 2)
    });
    until(&cluster, "it has nothing to lose", || {
        says(&cluster, early, "new", 2)
    });
    assert_eq!(output(&cluster, kept).matches("new\n").count(), 1);
    cluster.cancel(&[kept, anew, early]);
}

/// The file that all movers of the lab have as their key, and one that another key is written to.
fn key_files(cluster: &Cluster) -> (PathBuf, PathBuf) {
    let dir = cluster.lab.dir();
    (dir.join("munge/key"), dir.join("other.key"))
}

fn write_key(path: &Path, bytes: &[u8]) {
    let _ = fs::remove_file(path);
    fs::write(path, bytes).expect("a key");
    fs::set_permissions(path, fs::Permissions::from_mode(0o400)).expect("it is ours");
}

/// Has the mover of a node start anew.
fn again(cluster: &Cluster, node: &str) {
    let killed = cluster.lab.kill_mover(node, libc::SIGKILL);
    assert!(killed.expect("it can be killed"), "{node} had one");
    cluster.lab.start_mover(node).expect("it starts");
}

fn toml(other: &[&Path]) -> String {
    format!("[checkpoint]\nenabled = true\nport = 0\nleast-seconds = 1\nother-keys = {other:?}\n")
}

fn movers_with_different_keys_say_so_once_and_a_key_is_changed_while_a_job_runs(suite: &Suite) {
    let mut setup = Setup::new("ckpt-keys", suite);
    setup.spec.nodes = 3.into();
    setup.spec.movers = Some(plugins::daemons().to_path_buf());
    setup.spec.gpuos_toml = Some(toml(&[]));
    let Some(cluster) = setup.steered() else {
        return;
    };
    let nodes = ["n1", "n2", "n3"];
    let (key, other) = key_files(&cluster);
    let old = fs::read(&key).expect("munge's key");
    let new = [7; 64];
    // One node has another key: both sides say so, and the program begins without.
    write_key(&key, &new);
    again(&cluster, "n3");
    let job = count(&cluster, &[]);
    until(&cluster, "the program begins", || {
        says(&cluster, job, "new", 3)
    });
    let words = "have different keys of checkpoints";
    let line = until(&cluster, "it is said", || {
        let log = cluster.lab.mover_log("n1");
        let mut lines = log.lines().filter(|line| line.contains(words));
        lines
            .find(|line| line.contains("node n3"))
            .map(String::from)
    });
    println!("{line}");
    assert!(line.contains("other-keys"), "{line}");
    // By who connects and by who is connected to; several nodes are one machine here.
    let said = || cluster.lab.mover_log("n1").matches(words).count();
    std::thread::sleep(std::time::Duration::from_secs(8));
    let before = said();
    std::thread::sleep(std::time::Duration::from_secs(8));
    assert_eq!(said(), before, "{}", cluster.lab.mover_log("n1"));
    assert!(before <= 3, "{}", cluster.lab.mover_log("n1"));
    write_key(&key, &old);
    again(&cluster, "n3");
    let before = said();
    let made = newest(&cluster, &nodes, job, 1);
    have_told(&cluster, job, 3, made);
    // The steps of a change, node after node, while it runs on.
    let step = |signs: &[u8], other_key: &[u8]| {
        write_key(&key, signs);
        write_key(&other, other_key);
        let text = toml(&[&other]);
        cluster.lab.write_conf("gpuos.toml", &text).expect("writes");
        for node in nodes {
            again(&cluster, node);
            let before = newest(&cluster, &nodes, job, 1);
            newest(&cluster, &nodes, job, before + 1);
        }
    };
    step(&old, &new);
    // What the old key signed is restored after all have turned to the new one.
    let last = newest(&cluster, &nodes, job, 1);
    step(&new, &old);
    let turned = newest(&cluster, &nodes, job, last + 1);
    have_told(&cluster, job, 3, turned);
    requeue(&cluster, job);
    cluster.wait(job, &["RUNNING"]);
    go_on(&cluster, job, 1, turned);
    assert!(said() <= before, "{}", cluster.lab.mover_log("n1"));
    cluster.cancel(&[job]);
}
