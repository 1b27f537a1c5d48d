//! What is free of a host and in pieces, on a real PBS with simulated GPUs: a job goes to the host
//! that has it in one piece, is not started in vain again and again, and starts when something has ended, long before pbs_sched would look of itself.

use std::fs;
use std::path::Path;
use std::time::Duration;

use gpuos_lab::LabSpec;
use gpuos_lab::pbs::PbsLab;
use gpuos_tests::plugins::{built, daemons};
use gpuos_tests::{Needs, costs, pbs_with};
use serde_json::json;

use crate::pbs_site::{gpuos, has_hook, ran, submit, until};

/// pbs_sched looks of itself after this time, in seconds.
const ITERATION: u64 = 3600;
/// How long a job that waits is looked at: its start would be tried again after 10 s.
const WAITS: Duration = Duration::from_secs(25);

/// Two hosts, each with two sets of three linked GPUs and two GPUs of four parts.
fn up(prefix: &Path) -> PbsLab {
    let spec = LabSpec {
        nodes: 2.into(),
        node_type: "dgx-h100".into(),
        pbs: Some(prefix.to_path_buf()),
        simulated_gpus: Some(daemons().to_path_buf()),
        ..LabSpec::unique("pbs-pieces")
    };
    let lab = ran(PbsLab::up(&spec, &mut |step| eprintln!("{step}")));
    let host = |name: &str| {
        let gpu = |at: usize| match at {
            6.. => json!({ "shares": 4 }),
            _ => json!({ "nvlink": format!("{name}.{}", at / 3) }),
        };
        json!({ "gpus": (0..8).map(gpu).collect::<Vec<_>>() })
    };
    let hosts = lab.dir().join("work/gpus.json");
    fs::write(
        &hosts,
        json!({ "n1": host("n1"), "n2": host("n2") }).to_string(),
    )
    .unwrap();
    let library = built().join("libgpuos_pbs_hook.so").display().to_string();
    let hosts = hosts.display().to_string();
    let words = ["pbs", "install", "--hosts", &hosts, "--library", &library];
    ran(lab.run(&gpuos(), &words));
    ran(lab.run(
        "qmgr",
        &[
            "-c",
            &format!("set server scheduler_iteration = {ITERATION}"),
        ],
    ));
    for node in lab.record().spec.node_names() {
        until("a mom has the hook", || has_hook(&lab, &node));
    }
    for host in ["n1", "n2"] {
        until("a host shows what it has", || {
            shows(&lab, host, "gpuos_linked = 3")
        });
        until("a host shows its parts", || {
            shows(&lab, host, "gpuos_share_fits = 4")
        });
    }
    lab
}

fn shows(lab: &PbsLab, host: &str, words: &str) -> bool {
    let text = lab.run("pbsnodes", &["-v", host]).unwrap_or_default();
    text.lines().any(|line| line.trim_end().ends_with(words))
}

fn attribute(lab: &PbsLab, job: &str, name: &str) -> String {
    lab.job(job, name).ok().flatten().unwrap_or_default()
}

fn runs_on(lab: &PbsLab, job: &str, host: &str) -> bool {
    let given = attribute(lab, job, "exec_vnode");
    attribute(lab, job, "job_state") == "R" && given.starts_with(&format!("({host}:"))
}

/// A job of so many parts of a GPU of a host, which runs there.
fn sharer(lab: &PbsLab, host: &str, parts: usize) -> String {
    let share = format!("gpuos_share=timeslice:{parts}");
    let select = format!("select=1:ncpus=1:host={host}");
    let job = submit(lab, &["-l", &select, "-l", &share], "sleep 10000\n");
    until("it runs", || runs_on(lab, &job, host));
    job
}

#[test]
fn what_is_in_pieces_is_not_tried_in_vain() {
    let Some(prefix) = pbs_with("shares and links in pieces on PBS", Needs::Scheduler) else {
        return;
    };
    let _cost = costs::of("slurm::pbs_pieces");
    let lab = up(&prefix);
    shares_in_pieces(&lab);
    links_in_pieces(&lab);
    ran(lab.down());
}

fn shares_in_pieces(lab: &PbsLab) {
    // One part is left of each GPU of n1, and two of one GPU of n2.
    let first = sharer(lab, "n1", 3);
    sharer(lab, "n1", 3);
    sharer(lab, "n2", 4);
    sharer(lab, "n2", 2);
    until("n1 shows what it has left", || {
        shows(lab, "n1", "gpuos_share_fits = 1")
    });
    let two = ["-l", "select=1:ncpus=1", "-l", "gpuos_share=timeslice:2"];
    let job = submit(lab, &two, "sleep 10000\n");
    until("it runs where it has both on one GPU", || {
        runs_on(lab, &job, "n2")
    });
    let next = submit(lab, &two, "sleep 10000\n");
    // By the sums n1 has room for it.
    until("it was started in vain, and asks for one piece", || {
        attribute(lab, &next, "Resource_List.select").contains("gpuos_share_fits=2")
            && attribute(lab, &next, "job_state") == "Q"
            && attribute(lab, &next, "comment").contains("gpuos_share_fits")
    });
    let runs = attribute(lab, &next, "run_count");
    std::thread::sleep(WAITS);
    assert_eq!(attribute(lab, &next, "run_count"), runs);
    assert_eq!(attribute(lab, &next, "job_state"), "Q");
    ran(lab.run("qdel", &[&first]));
    until("it starts when another one ends", || {
        runs_on(lab, &next, "n1")
    });
}

fn links_in_pieces(lab: &PbsLab) {
    let linked = |count: usize| {
        let select = format!("select=1:ncpus=1:ngpus={count}:host=n1");
        let options = ["-l", &select, "-l", "gpuos_topology=nvlink:required"];
        submit(lab, &options, "sleep 10000\n")
    };
    let (first, second) = (linked(3), linked(2));
    for job in [&first, &second] {
        until("it runs", || runs_on(lab, job, "n1"));
    }
    until("n1 shows what it has left", || {
        shows(lab, "n1", "gpuos_linked = 1")
    });
    let third = linked(3);
    // pbs_sched names what its last host lacks.
    until("it waits for linked ones", || {
        attribute(lab, &third, "comment").contains("Insufficient")
    });
    ran(lab.run("qdel", &[&first]));
    until("it starts when these are free", || {
        runs_on(lab, &third, "n1")
    });
}
