//! `gpuos pbs-planner` beside a pbs_server.
//!
//! The ledger is PBS's own accounting: who had how many GPUs of which host from when to when, in the order in which it happened.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use gpuos_lab::pbs::PbsLab;
use gpuos_model::rng::Rng;
use gpuos_tests::{Needs, costs, pbs, pbs_with};

use crate::pbs_site::{
    GPUS, LIMIT, Planner, all_free, gpuos, gpus, ledger, names, noted, noting, planned, ran,
    reaches, signal, submit, until, up,
};

/// How long all random jobs may take.
const ALL: Duration = Duration::from_secs(900);

fn leaves(hosts: &BTreeSet<String>) -> BTreeSet<bool> {
    hosts
        .iter()
        .map(|host| ["n3", "n4"].contains(&&host[..]))
        .collect()
}

#[test]
fn a_gang_runs_on_exactly_the_planned_hosts() {
    let Some(prefix) = pbs("gangs by gpuos pbs-planner") else {
        return;
    };
    let _cost = costs::of("slurm::pbs_planner::gang");
    let lab = up(&prefix, "pbs-plan");
    let plan = |args: &[&str]| {
        let mut command = ran(lab.command(&gpuos()));
        let out = command
            .args(["--json", "pbs-planner"])
            .args(args)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        assert!(json["starts"].is_array(), "{out:?}");
        json
    };
    // The scheduler is away, so that it is the planner's move.
    let one = submit(&lab, &["-l", "select=1:ngpus=1:ncpus=1"], "sleep 1000\n");
    reaches(&lab, &one, "R", LIMIT);
    signal(&lab, "-STOP");
    let gang = submit(
        &lab,
        &[
            "-l",
            "select=2:ngpus=8:ncpus=8:mem=2gb",
            "-l",
            "place=scatter",
            "-l",
            "gpuos_topology=leaf:required",
        ],
        "sleep 1000\n",
    );
    let next = submit(
        &lab,
        &[
            "-l",
            "select=2:ngpus=8",
            "-l",
            "place=scatter",
            "-l",
            "gpuos_topology=leaf:required",
        ],
        "true\n",
    );
    let said = plan(&["--dry-run"]);
    assert_eq!(said["starts"][0]["job"], gang.as_str(), "{said}");
    let place = said["starts"][0]["exec_vnode"].as_str().unwrap().to_owned();
    assert_eq!(leaves(&names(&place)).len(), 1, "{place}");
    assert_eq!(said["keeps"][0]["job"], next.as_str(), "{said}");
    assert_eq!(ran(lab.job(&gang, "job_state")).as_deref(), Some("Q"));
    let done = plan(&["--once"]);
    assert_eq!(done["starts"][0]["exec_vnode"], place.as_str());
    assert!(done["refused"][0].is_null(), "{done}");
    reaches(&lab, &gang, "R", LIMIT);
    let given = ran(lab.job(&gang, "exec_vnode")).unwrap();
    assert_eq!(gpus(&given), gpus(&place));
    // The scheduler's own view of a moment ago gives none of it away again.
    signal(&lab, "-CONT");
    let small: Vec<_> = (0..12)
        .map(|_| submit(&lab, &["-l", "select=1:ngpus=1:ncpus=1"], "sleep 1\n"))
        .collect();
    for job in &small {
        reaches(&lab, job, "F", LIMIT);
    }
    ledger(&lab);
    ran(lab.run("qdel", &[&one]));
    ran(lab.run("qdel", &[&gang]));
    // pbs_sched goes on while no planner runs.
    reaches(&lab, &next, "F", LIMIT);
    ran(lab.down());
}

/// Names of reservations that PBS has confirmed.
fn confirmed(lab: &PbsLab) -> Vec<String> {
    let text = ran(lab.run("pbs_rstat", &["-f"]));
    let blocks = text.split("Resv ID: ").skip(1);
    let confirmed = blocks.filter(|block| block.contains("reserve_state = RESV_CONFIRMED"));
    let ids = confirmed.filter_map(|block| block.lines().next());
    ids.map(str::to_owned).collect()
}

#[test]
fn what_is_kept_for_a_gang_pbs_sched_keeps_too_also_when_the_planner_is_killed() {
    let Some(prefix) = pbs_with("reservations of gpuos pbs-planner", Needs::Scheduler) else {
        return;
    };
    let _cost = costs::of("slurm::pbs_planner::kept");
    // With the hook: pbs_sched alone would start the gang across leaves.
    let lab = up(&prefix, "pbs-keep");
    let whole = |host: &str, limit: &str| {
        let (select, limit) = (
            format!("select=1:ngpus=8:host={host}"),
            format!("walltime={limit}"),
        );
        let job = submit(&lab, &["-l", &select, "-l", &limit], "sleep 1000\n");
        reaches(&lab, &job, "R", LIMIT);
        job
    };
    let (first, _second) = (whole("n1", "0:15:00"), whole("n3", "2:00:00"));
    let planner = Planner::start(&lab, 1);
    let gang = submit(
        &lab,
        &[
            "-l",
            "select=2:ngpus=8",
            "-l",
            "place=scatter",
            "-l",
            "walltime=1:00:00",
            "-l",
            "gpuos_topology=leaf:required",
        ],
        "sleep 1000\n",
    );
    until("PBS keeps the first leaf", || confirmed(&lab).len() == 1);
    let kept = confirmed(&lab);
    drop(planner);
    // pbs_sched is alone now. Whoever would run longer than the gang waits goes to the fourth host, and then nowhere.
    let limit = ["-l", "select=1:ngpus=1", "-l", "walltime=1:00:00"];
    let long: Vec<_> = (0..GPUS + 1)
        .map(|_| submit(&lab, &limit, "sleep 1000\n"))
        .collect();
    let (last, others) = long.split_last().unwrap();
    for job in others {
        reaches(&lab, job, "R", LIMIT);
        let place = ran(lab.job(job, "exec_vnode")).unwrap();
        assert!(place.contains("(n4:"), "{place}");
    }
    until("the last one is told why it waits", || {
        let comment = ran(lab.job(last, "comment")).unwrap_or_default();
        comment.contains("Not Running")
    });
    assert_eq!(ran(lab.job(last, "job_state")).as_deref(), Some("Q"));
    // Whoever ends before is welcome.
    let limit = ["-l", "select=1:ngpus=1", "-l", "walltime=0:01:00"];
    let short = submit(&lab, &limit, "true\n");
    reaches(&lab, &short, "F", LIMIT);
    ran(lab.run("qdel", &[last]));
    // The next planner knows the reservation for its own, and needs it no more once the gang runs.
    let _planner = Planner::start(&lab, 1);
    sleep(Duration::from_secs(5));
    assert_eq!(confirmed(&lab), kept);
    ran(lab.run("qdel", &[&first]));
    reaches(&lab, &gang, "R", LIMIT);
    let place = names(&ran(lab.job(&gang, "exec_vnode")).unwrap());
    assert_eq!(Vec::from_iter(&place), ["n1", "n2"]);
    until("nothing is reserved", || {
        ran(lab.run("pbs_rstat", &[])).trim().is_empty()
    });
    ran(lab.down());
}

#[test]
fn no_gpu_twice_among_random_jobs_while_planner_and_scheduler_come_and_go() {
    let Some(prefix) = pbs("random jobs beside gpuos pbs-planner") else {
        return;
    };
    let _cost = costs::of("slurm::pbs_planner::random");
    let lab = up(&prefix, "pbs-mix");
    let mut random = Rng::new(2026);
    let ended = AtomicBool::new(false);
    let mut below = |n: u64| random.below(n);
    let jobs = scope(|scope| {
        let (lab, ended) = (&lab, &ended);
        scope.spawn(move || {
            let mut random = Rng::new(7);
            // The first planner has the jobs to itself until it has started one.
            let first = Planner::start(lab, 1);
            signal(lab, "-STOP");
            while planned(lab).is_empty() && !ended.load(Ordering::Relaxed) {
                sleep(Duration::from_millis(200));
            }
            signal(lab, "-CONT");
            drop(first);
            while !ended.load(Ordering::Relaxed) {
                let planner = Planner::start(lab, 1);
                for _ in 0..1 + random.below(3) {
                    signal(lab, "-STOP");
                    sleep(Duration::from_millis(200 + random.below(2000)));
                    signal(lab, "-CONT");
                    sleep(Duration::from_millis(100 + random.below(700)));
                }
                // Wherever it is.
                drop(planner);
            }
        });
        let mut jobs = Vec::new();
        for _ in 0..120 {
            let gpus = [1, 1, 2, 4, 8][below(5) as usize];
            let select = format!("select={}:ngpus={gpus}:ncpus={}", 1 + below(3), gpus);
            let mut options = vec!["-l", &select];
            if below(2) == 0 {
                options.extend(["-l", "place=scatter"]);
            }
            if below(3) == 0 {
                options.extend(["-l", "gpuos_topology=leaf"]);
            }
            let script = noting(lab, &format!("sleep {}", below(3)));
            jobs.push(submit(lab, &options, &script));
        }
        let deadline = Instant::now() + ALL;
        let result = jobs.iter().try_for_each(|job| {
            let left = deadline.saturating_duration_since(Instant::now());
            lab.wait_job(job, &["F"], left).map(drop)
        });
        ended.store(true, Ordering::Relaxed);
        ran(result);
        jobs
    });
    let started = ledger(&lab);
    for job in &jobs {
        assert!(started.contains_key(job), "{job} never ran");
    }
    assert_eq!(noted(&lab).len(), jobs.len(), "each job has noted its GPUs");
    all_free(&lab);
    let planned = planned(&lab);
    eprintln!(
        "{} of {} jobs were started by the planner",
        planned.len(),
        jobs.len()
    );
    assert!(!planned.is_empty());
    for (job, gpus) in &planned {
        assert!(started[job].contains(gpus), "{job} on {gpus:?}");
    }
    ran(lab.down());
}
