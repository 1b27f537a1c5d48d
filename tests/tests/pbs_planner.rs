//! `gpuos pbs-planner` beside a real pbs_server, wherever `$GPUOS_TEST_PBS` names an installation.
//!
//! The ledger is PBS's own accounting: who had which vnode from when to when, in the order in which it happened.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use gpuos_lab::LabSpec;
use gpuos_lab::pbs::{MOM, PbsLab};
use gpuos_model::rng::Rng;
use gpuos_tests::plugins::programs;
use gpuos_tests::{costs, pbs};

/// How long a change may take to be seen.
const LIMIT: Duration = Duration::from_secs(180);

/// How long all random jobs may take.
const ALL: Duration = Duration::from_secs(900);

const NODES: usize = 4;
const GPUS: usize = 8;
const SCHED: &str = "pbs_sched";

/// A lab of four nodes under two leaf switches, each GPU a vnode of one job.
fn up(prefix: &Path, name: &str) -> PbsLab {
    let spec = LabSpec {
        nodes: NODES.into(),
        node_type: "pairs-8".into(),
        pbs: Some(prefix.to_path_buf()),
        ..LabSpec::unique(name)
    };
    let lab = PbsLab::up(&spec, &mut |step| eprintln!("{step}")).unwrap_or_else(|e| panic!("{e}"));
    for line in [
        "create resource gpuos_leaf type=string, flag=h",
        "create resource gpuos_nvlink type=string, flag=h",
        "create resource gpuos_topology type=string",
    ] {
        ran(lab.run("qmgr", &["-c", line]));
    }
    for (at, node) in lab.record().spec.node_names().iter().enumerate() {
        let file = lab.dir().join(format!("work/vnodes-{node}"));
        fs::write(&file, vnodes(node, at / 2)).unwrap();
        let file = file.display().to_string();
        ran(lab.run_on(node, None, "pbs_mom", &["-s", "remove", "gpus"]));
        ran(lab.run_on(node, None, "pbs_mom", &["-s", "insert", "gpus", &file]));
        lab.kill(node, MOM, 15).unwrap_or_else(|e| panic!("{e}"));
        lab.start(node, MOM).unwrap_or_else(|e| panic!("{e}"));
    }
    let all = NODES * GPUS;
    until("all vnodes are free", || {
        let text = lab.run("pbsnodes", &["-av"]).unwrap_or_default();
        text.matches("sharing = force_excl").count() == all
            && text.matches("state = free").count() == all + NODES
    });
    lab
}

/// The vnodes of a node, as its mom reads them.
fn vnodes(node: &str, leaf: usize) -> String {
    let mut text = format!(
        "$configversion 2\n{node}: resources_available.ncpus = 0\n{node}: resources_available.ngpus = 0\n"
    );
    for gpu in 0..GPUS {
        let vnode = format!("{node}[{gpu}]");
        text += &format!(
            "{vnode}: resources_available.ncpus = 2\n{vnode}: resources_available.ngpus = 1\n{vnode}: resources_available.mem = 1gb\n\
             {vnode}: resources_available.gpuos_leaf = l{leaf}\n{vnode}: resources_available.gpuos_nvlink = {node}.{}\n\
             {vnode}: sharing = force_excl\n",
            gpu / 2
        );
    }
    text
}

fn ran<T>(result: Result<T, gpuos_lab::LabError>) -> T {
    result.unwrap_or_else(|e| panic!("{e}"))
}

fn until(what: &str, there: impl Fn() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !there() {
        assert!(Instant::now() < deadline, "not after {LIMIT:?}: {what}");
        sleep(Duration::from_millis(200));
    }
}

fn gpuos() -> String {
    programs().join("gpuos").display().to_string()
}

/// Stops or continues the scheduler.
fn signal(lab: &PbsLab, name: &str) {
    if let Some(pid) = lab.pid("head", SCHED) {
        let status = Command::new("kill").args([name, &pid.to_string()]).status();
        assert!(status.unwrap().success());
    }
}

/// A planner that runs without end, and says what it does in a file of the lab.
struct Planner(Child);

/// What planners say is in this file of the lab.
const SAID: &str = "work/planner";

impl Planner {
    fn start(lab: &PbsLab) -> Planner {
        let path = lab.dir().join(SAID);
        let said = fs::OpenOptions::new().create(true).append(true).open(path);
        let said = said.unwrap();
        let mut command = ran(lab.command(&gpuos()));
        command
            .args(["pbs-planner", "--interval=1"])
            .stdin(Stdio::null())
            .stderr(said.try_clone().unwrap())
            .stdout(said);
        Planner(command.spawn().unwrap())
    }
}

impl Drop for Planner {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Names of the vnodes of an exec_vnode.
fn names(exec_vnode: &str) -> BTreeSet<String> {
    let words = exec_vnode.split(['(', ')', '+']);
    let names = words.filter(|word| !word.is_empty());
    names
        .map(|word| word.split(':').next().unwrap_or_default().to_owned())
        .collect()
}

/// Where jobs were started, each as often as it was, by PBS's accounting; panics where a vnode was given to two at a time.
fn ledger(lab: &PbsLab) -> HashMap<String, Vec<BTreeSet<String>>> {
    let mut files: Vec<_> = fs::read_dir(lab.home("head").join("server_priv/accounting"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    let mut owner = HashMap::new();
    let mut started: HashMap<String, Vec<BTreeSet<String>>> = HashMap::new();
    for file in files {
        for line in fs::read_to_string(file).unwrap().lines() {
            let mut parts = line.splitn(4, ';');
            let (_, kind, job, rest) = (parts.next(), parts.next(), parts.next(), parts.next());
            let (Some(kind), Some(job), Some(rest)) = (kind, job, rest) else {
                continue;
            };
            match kind {
                "S" => {
                    let given = rest
                        .split(' ')
                        .find_map(|word| word.strip_prefix("exec_vnode="));
                    let given = names(given.unwrap_or_else(|| panic!("{line}")));
                    for vnode in &given {
                        let before = owner.insert(vnode.clone(), job.to_owned());
                        assert!(before.is_none(), "{vnode} of {before:?} was given to {job}");
                    }
                    started.entry(job.to_owned()).or_default().push(given);
                }
                "E" | "R" => owner.retain(|_, of| of != job),
                _ => {}
            }
        }
    }
    started
}

/// What the planner said that it started, and where.
fn planned(lab: &PbsLab) -> Vec<(String, BTreeSet<String>)> {
    let text = fs::read_to_string(lab.dir().join(SAID)).unwrap_or_default();
    let starts = text.lines().filter_map(|line| {
        let (job, rest) = line.split_once(" starts: ")?;
        let (_, given) = rest.rsplit_once("; ")?;
        Some((job.to_owned(), names(given)))
    });
    starts.collect()
}

/// Vnodes that are not free, or have jobs.
fn left(lab: &PbsLab) -> BTreeSet<String> {
    let text = ran(lab.run("pbsnodes", &["-av"]));
    let vnodes = text.split("\n\n").filter(|vnode| {
        let free = vnode.contains("state = free") && !vnode.contains("jobs = ");
        !free && !vnode.trim().is_empty()
    });
    let name = |vnode: &str| vnode.trim().lines().next().unwrap_or_default().to_owned();
    vnodes.map(name).collect()
}

/// The notes of a plan.
fn notes(lab: &PbsLab) -> String {
    let mut command = ran(lab.command(&gpuos()));
    let out = command.args(["pbs-planner", "--dry-run"]).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    let notes = text.lines().filter(|line| line.starts_with("note: "));
    notes.collect::<Vec<_>>().join("\n")
}

fn submit(lab: &PbsLab, options: &[&str], script: &str) -> String {
    ran(lab.qsub(Some("user1"), options, script))
}

fn leaves(vnodes: &BTreeSet<String>) -> BTreeSet<bool> {
    let second = |name: &String| name.starts_with("n3[") || name.starts_with("n4[");
    vnodes.iter().map(second).collect()
}

#[test]
fn a_gang_runs_on_exactly_the_planned_vnodes() {
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
    ran(lab.wait_job(&one, &["R"], LIMIT));
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
    ran(lab.wait_job(&gang, &["R"], LIMIT));
    let given = ran(lab.job(&gang, "exec_vnode")).unwrap();
    assert_eq!(names(&given), names(&place));
    // The scheduler's own view of a moment ago gives none of it away again.
    signal(&lab, "-CONT");
    let small: Vec<_> = (0..12)
        .map(|_| submit(&lab, &["-l", "select=1:ngpus=1:ncpus=1"], "sleep 1\n"))
        .collect();
    for job in &small {
        ran(lab.wait_job(job, &["F"], LIMIT));
    }
    ledger(&lab);
    ran(lab.run("qdel", &[&one]));
    ran(lab.run("qdel", &[&gang]));
    // pbs_sched goes on while no planner runs.
    ran(lab.wait_job(&next, &["F"], LIMIT));
    ran(lab.down());
}

#[test]
fn no_vnode_twice_among_random_jobs_while_planner_and_scheduler_come_and_go() {
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
            let first = Planner::start(lab);
            signal(lab, "-STOP");
            while planned(lab).is_empty() && !ended.load(Ordering::Relaxed) {
                sleep(Duration::from_millis(200));
            }
            signal(lab, "-CONT");
            drop(first);
            while !ended.load(Ordering::Relaxed) {
                let planner = Planner::start(lab);
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
            let script = format!("sleep {}\n", below(3));
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
    // pbs_sched may still be the one of whose gangs pbs_server refused a start half way; then the planner names each such vnode.
    until("every vnode is free, or told to be left", || {
        let told = notes(&lab);
        let left = left(&lab);
        eprintln!("{} vnodes are left by refused starts", left.len());
        left.iter()
            .all(|vnode| told.contains(&format!(" {vnode} ")))
    });
    let planned = planned(&lab);
    eprintln!(
        "{} of {} jobs were started by the planner",
        planned.len(),
        jobs.len()
    );
    assert!(!planned.is_empty());
    for (job, vnodes) in &planned {
        assert!(started[job].contains(vnodes), "{job} on {vnodes:?}");
    }
    ran(lab.down());
}
