//! Jobs that get none of their nodes again, on a real Slurm: their parts come from the nodes that they had.

use std::fs;

use gpuos_lab::Suite;
use gpuos_tests::cluster::LIMIT;
use gpuos_tests::{Cluster, per_suite, plugins};

use crate::checkpoint::{
    committed, count, had_saved, have_told, logs, movers, requeue, said, starts_soon, until,
};

per_suite!(a_job_goes_on_from_what_nodes_hold_that_it_does_not_have);

pub(crate) const OLD: [&str; 3] = ["n1", "n2", "n3"];
pub(crate) const NEW: [&str; 3] = ["n4", "n5", "n6"];

/// Publishes that nodes hold something of a job.
pub(crate) fn publish(cluster: &Cluster, nodes: &[&str], job: u32) {
    for node in nodes {
        let extra = format!("Extra=[gpuos:1 ckpt=x:1,{job}:1,0:0]");
        cluster.update(&[&format!("NodeName={node}"), &extra]);
    }
}

/// The newest checkpoint of a job that programs on these nodes were told of, from `least` on.
pub(crate) fn newest(cluster: &Cluster, nodes: &[&str], job: u32, least: u32) -> u32 {
    until(cluster, "a checkpoint", || {
        let known = nodes
            .iter()
            .filter_map(|node| committed(cluster, node, job));
        known.max().filter(|number| *number >= least)
    })
}

/// Requeues a job, which gets none of the nodes `from`.
pub(crate) fn away(cluster: &Cluster, job: u32, from: &[&str], to: &[&str]) {
    have_told(cluster, job, 3, newest(cluster, from, job, 1));
    from.iter().for_each(|node| cluster.set_node(node, "DRAIN"));
    to.iter().for_each(|node| cluster.set_node(node, "RESUME"));
    requeue(cluster, job);
    cluster.wait(job, &["RUNNING"]);
}

/// All ranks go on from one checkpoint that is at least this new.
pub(crate) fn go_on(cluster: &Cluster, job: u32, times: usize, least: u32) -> u32 {
    let restored = |rank| {
        until(cluster, "it goes on", || {
            let all = said(cluster, job, rank, "restored checkpoint");
            all.get(times - 1).copied()
        })
    };
    let from: Vec<(u32, u32)> = (0..3).map(restored).collect();
    for (rank, (number, count)) in (0..).zip(&from) {
        assert_eq!(*number, from[0].0, "one checkpoint for all: {from:?}");
        assert!(*number >= least, "{least} was committed: {from:?}");
        let saved = said(cluster, job, rank, "saved");
        assert!(
            had_saved(&saved, (*number, *count)),
            "rank {rank}: {saved:?}, {from:?}\n{}",
            logs(cluster)
        );
    }
    from[0].0
}

fn a_job_goes_on_from_what_nodes_hold_that_it_does_not_have(suite: &Suite) {
    let Some(cluster) = movers("ckpt-outside", suite, 6) else {
        return;
    };
    NEW.iter().for_each(|node| cluster.set_node(node, "DRAIN"));
    let job = count(&cluster, &[]);
    let before = newest(&cluster, &OLD, job, 2);
    publish(&cluster, &OLD, job);
    away(&cluster, job, &OLD, &NEW);
    let first = go_on(&cluster, job, 1, before);
    until(&cluster, "a mover tells who gave the part", || {
        logs(&cluster)
            .contains("gave the part of node 2")
            .then_some(())
    });
    let before = newest(&cluster, &NEW, job, first + 2);
    // Back to nodes that have something older, and one that has the newest is lost with all that it had.
    publish(&cluster, &NEW, job);
    cluster.lab.kill_mover("n5", libc::SIGKILL).expect("it ran");
    fs::remove_dir_all(cluster.lab.checkpoints_dir("n5")).expect("it had a store");
    away(&cluster, job, &NEW, &OLD);
    let second = go_on(&cluster, job, 2, before);
    newest(&cluster, &OLD, job, second + 1);
    begins_from_another(&cluster, job);
}

/// A new job on other nodes begins from what another one has left, and goes on from its own when it has some.
fn begins_from_another(cluster: &Cluster, job: u32) {
    cluster.cancel(&[job]);
    let count_of = |number: u32| {
        let saved = said(cluster, job, 1, "saved");
        saved.iter().rfind(|(of, _)| *of == number).map(|of| of.1)
    };
    cluster.lab.start_mover("n5").expect("it starts");
    OLD.iter().for_each(|node| cluster.set_node(node, "DRAIN"));
    NEW.iter().for_each(|node| cluster.set_node(node, "RESUME"));
    let submit = |value: &str| {
        let value = format!("--gpuos-restart={value}");
        count(cluster, &[&value])
    };
    let next = submit(&job.to_string());
    let (from, at) = until(cluster, "it begins from the other job's", || {
        said(cluster, next, 1, "restored checkpoint").pop()
    });
    if let Some(saved) = count_of(from) {
        assert_eq!(at, saved, "checkpoint {from} of job {job}");
    }
    // Two, for the word of the last one may be lost.
    let own = newest(cluster, &NEW, next, from + 2);
    have_told(cluster, next, 3, own);
    requeue(cluster, next);
    go_on(cluster, next, 2, own);
    cluster.cancel(&[next]);
    // One that there is not: no program begins anew in its place.
    let none = submit(&format!("{job}/4000000000"));
    until(cluster, "the programs are told", || {
        let text = crate::checkpoint::output(cluster, none);
        text.contains("cannot begin from checkpoint 4000000000 of job")
            .then_some(())
    });
    cluster.cancel(&[none]);
    goes_back(cluster);
}

/// `gpuos ckpt` on the node n4.
fn ckpt(cluster: &Cluster, args: &[&str]) -> String {
    let gpuos = plugins::programs().join("gpuos");
    let dir = cluster.lab.gpuosd_runtime_dir("n4");
    let dir = dir.to_str().expect("UTF-8");
    let all = [&["ckpt"], args, &["--runtime-dir", dir]].concat();
    cluster.run(gpuos.to_str().expect("UTF-8"), &all)
}

/// A job goes back to a checkpoint that is not its newest, and that one is restored elsewhere while it runs.
fn goes_back(cluster: &Cluster) {
    let job = count(cluster, &["--gpuos-checkpoint=1h,l2=xor:3"]);
    let id = job.to_string();
    until(cluster, "all have joined", || {
        (0..3)
            .all(|rank| crate::checkpoint::output(cluster, job).contains(&format!("{rank}: new")))
            .then_some(())
    });
    for _ in 0..2 {
        ckpt(cluster, &["now", &id]);
    }
    let told = ckpt(cluster, &["restart", &id, "1"]);
    assert!(told.contains("goes on from checkpoint 1"), "{told}");
    starts_soon(cluster, job);
    cluster.wait(job, &["RUNNING"]);
    assert_eq!(go_on(cluster, job, 1, 1), 1);
    // Numbers go on above the one that was left.
    ckpt(cluster, &["now", &id]);
    newest(cluster, &NEW, job, 3);
    publish(cluster, &NEW, job);
    OLD.iter().for_each(|node| cluster.set_node(node, "RESUME"));
    // What counts as lost is made again, and the nodes fetch it anew each time.
    for _ in 0..2 {
        let told = drill(cluster, &id);
        eprintln!("{told}");
        for words in [
            "checkpoint 3 of job",
            "was restored on n[1-3]: 3 files of 3 ranks",
            "as if lost, and not read: the part of node ",
            "was made again of what the others have",
        ] {
            assert!(told.contains(words), "{words}\n{told}\n{}", logs(cluster));
        }
        until(cluster, "what was fetched is gone", || {
            let left = |node: &str| cluster.lab.checkpoints_dir(node).join(&id).exists();
            (!OLD.iter().any(|node| left(node))).then_some(())
        });
    }
    reported(cluster, &id);
    cluster.cancel(&[job]);
}

/// A drill without one part of each set. Its ranks ask the mover of their node by the command, which is no installed one.
fn drill(cluster: &Cluster, id: &str) -> String {
    let programs = plugins::programs();
    let path = std::env::var("PATH").unwrap_or_default();
    let dir = cluster.lab.gpuosd_runtime_dir("%n");
    let environment = [
        format!("PATH={}:{path}", programs.display()),
        format!("GPUOS_RUNTIME_DIR={}", dir.display()),
    ];
    let command = ["gpuos", "ckpt", "drill", id, "--lose=1"];
    let all: Vec<&str> = environment
        .iter()
        .map(String::as_str)
        .chain(command)
        .collect();
    // It waits for a job, on a machine that other labs have, too.
    let out = cluster.lab.output_within("env", &all, LIMIT);
    let out = out.unwrap_or_else(|why| panic!("{why}\n{}", logs(cluster)));
    let told = String::from_utf8_lossy(&out.stdout).into_owned();
    let why = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{told}{why}\n{}", logs(cluster));
    told
}

/// The restart and the drills are in the journals of the nodes that led them, soon after they are over.
fn reported(cluster: &Cluster, id: &str) {
    let gpuos = plugins::programs().join("gpuos");
    let gpuos = gpuos.to_str().expect("UTF-8");
    let report = |node: &&str| {
        let dir = cluster.lab.gpuosd_runtime_dir(node);
        let dir = dir.to_str().expect("UTF-8");
        cluster.run(gpuos, &["ckpt", "report", id, "--runtime-dir", dir])
    };
    let told = until(cluster, "both drills are told", || {
        let told: String = OLD.iter().chain(&NEW).map(report).collect();
        let drills = told.lines().filter(|line| line.ends_with("  restored"));
        (drills.count() == 2).then_some(told)
    });
    eprintln!("{told}");
    assert!(told.contains("1 restart: median"), "{told}");
}
