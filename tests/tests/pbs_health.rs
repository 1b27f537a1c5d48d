//! gpuosd beside moms of a real PBS, on simulated GPUs, wherever `$GPUOS_TEST_PBS` names an installation.

use std::cell::Cell;
use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use gpuos_lab::LabSpec;
use gpuos_lab::pbs::{GPUOSD, MOM, PbsLab};
use gpuos_model::rng::Rng;
use gpuos_tests::plugins::{built, daemons, programs};
use gpuos_tests::{costs, pbs, results};
use serde_json::{Value, json};

use crate::pbs_site::{load, machine, write_part};

/// How long a change may take to be seen.
const LIMIT: Duration = Duration::from_secs(240);
const GPUS: usize = 8;
/// From a fault to its job on another GPU, where there is room.
const GOAL: Duration = Duration::from_secs(30);
/// A job that goes on until it is ended.
const ENDLESS: &str = "sleep 10000\n";

fn ran<T>(result: Result<T, gpuos_lab::LabError>) -> T {
    result.unwrap_or_else(|e| panic!("{e}"))
}

fn gpuos() -> String {
    programs().join("gpuos").display().to_string()
}

/// A PBS with gpuos, and two nodes of eight simulated GPUs.
struct Site {
    lab: PbsLab,
    /// The last state that was waited for, for the message of a failure.
    seen: Cell<Instant>,
}

impl Site {
    fn up(prefix: &Path, name: &str) -> Site {
        let spec = LabSpec {
            nodes: 2.into(),
            node_type: "dgx-h100".into(),
            pbs: Some(prefix.to_path_buf()),
            simulated_gpus: Some(daemons().to_path_buf()),
            ..LabSpec::unique(name)
        };
        let lab = PbsLab::up(&spec, &mut |step| eprintln!("{step}"));
        let site = Site {
            lab: ran(lab),
            seen: Cell::new(Instant::now()),
        };
        site.install();
        site
    }

    fn install(&self) {
        let host = json!({ "gpus": vec![json!({}); GPUS] });
        let hosts = self.lab.dir().join("work/gpus.json");
        fs::write(&hosts, json!({ "n1": host, "n2": host }).to_string()).unwrap();
        let (hosts, library) = (
            hosts.display().to_string(),
            built().join("libgpuos_pbs_hook.so"),
        );
        let library = library.display().to_string();
        let words = ["pbs", "install", "--hosts", &hosts, "--library", &library];
        ran(self.lab.run(&gpuos(), &words));
        for node in ["n1", "n2"] {
            let folder = self.lab.home(node).join("mom_priv/hooks");
            self.until("a mom has the hook", || {
                let parts = ["gpuos.HK", "gpuos.PY", "gpuos.CF"];
                parts.iter().all(|part| folder.join(part).is_file())
            });
            ran(self.lab.kill(node, MOM, 15));
            ran(self.lab.start(node, MOM));
        }
        self.until("all vnodes are free", || {
            let text = self.lab.run("pbsnodes", &["-av"]).unwrap_or_default();
            text.matches("sharing = force_excl").count() == 2 * GPUS
                && text.matches("state = free").count() == 2 * GPUS + 2
        });
    }

    fn until(&self, what: &str, there: impl Fn() -> bool) {
        self.seen.set(Instant::now());
        while !there() {
            if self.seen.get().elapsed() > LIMIT {
                let vnodes = self.lab.run("pbsnodes", &["-aSv"]).unwrap_or_default();
                let logs = ["n1", "n2"].map(|node| self.lab.gpuosd_log(node));
                panic!("not after {LIMIT:?}: {what}\n{vnodes}\n{}", logs.join("\n"));
            }
            sleep(Duration::from_millis(200));
        }
    }

    /// State and comment of a vnode; empty while the server does not answer.
    fn vnode(&self, name: &str) -> (String, String) {
        let text = self.lab.run("pbsnodes", &["-v", "-F", "json", name]);
        let all: Value = serde_json::from_str(&text.unwrap_or_default()).unwrap_or_default();
        let text = |key: &str| {
            let value = all["nodes"][name][key].as_str();
            value.unwrap_or_default().to_string()
        };
        (text("state"), text("comment"))
    }

    /// A job that has started; its vnodes, in order.
    fn start(&self, options: &[&str]) -> (String, Vec<String>) {
        let job = ran(self.lab.qsub(Some("user1"), options, ENDLESS));
        ran(self.lab.wait_job(&job, &["R"], LIMIT));
        let vnodes = self.vnodes_of(&job);
        (job, vnodes)
    }

    fn vnodes_of(&self, job: &str) -> Vec<String> {
        let given = self
            .lab
            .job(job, "exec_vnode")
            .ok()
            .flatten()
            .unwrap_or_default();
        let names = given.split(['(', '+']).filter(|part| !part.is_empty());
        names
            .map(|part| part.split(':').next().unwrap_or_default().to_string())
            .collect()
    }

    fn runs(&self, job: &str) -> String {
        self.lab
            .job(job, "run_count")
            .ok()
            .flatten()
            .unwrap_or_default()
    }

    /// Whether gpuosd of a host knows that a job has a GPU there.
    fn is_known(&self, node: &str, job: &str) -> bool {
        let said = self.lab.run_on(node, None, &gpuos(), &["health"]);
        said.is_ok_and(|text| text.contains(job))
    }

    fn break_gpu(&self, vnode: &str, words: &[&str]) {
        let (node, gpu) = place(vnode);
        ran(self.lab.fault(node, &format!("gpu{gpu}"), words));
    }

    /// Waits until a job runs again on other vnodes, all of which are in service.
    fn runs_elsewhere(&self, job: &str, bad: &str) {
        self.until("the job runs elsewhere", || {
            let now = self.vnodes_of(job);
            self.runs(job) == "2"
                && self
                    .lab
                    .job(job, "job_state")
                    .is_ok_and(|state| state.as_deref() == Some("R"))
                && !now.is_empty()
                && now.iter().all(|vnode| vnode != bad)
        });
    }
}

/// Host and number of the GPU of a vnode.
fn place(vnode: &str) -> (&str, &str) {
    let (host, rest) = vnode.split_once('[').expect("a vnode of a GPU");
    (host, rest.trim_end_matches(']'))
}

/// Says how long it took from a fault to its job on another GPU; a long run holds it against the goal, and writes it down.
fn goal(lab: &PbsLab, took: Duration) {
    let seconds = took.as_secs_f64();
    eprintln!("from the fault to the job on another GPU: {seconds:.1} s");
    if std::env::var_os("GPUOS_PBS").is_none() {
        return;
    }
    let reached = took < GOAL;
    let word = if reached { "yes" } else { "no" };
    let made = format!(
        "Measured on {}, OpenPBS {}, on {}, load {} after.\n\n| goal | | reached | |\n| --- | ---: | ---: | --- |\n\
         | from the fault of a GPU to its job running on another | {} s | {seconds:.1} s | {word} |\n",
        results::today(),
        lab.version(),
        machine(),
        load(),
        GOAL.as_secs()
    );
    write_part("fault", &made);
    assert!(
        reached,
        "{seconds:.1} s from the fault to the job on another GPU"
    );
}

#[test]
fn a_fault_takes_one_vnode_offline_and_its_job_runs_elsewhere() {
    let Some(prefix) = pbs("faults of GPUs in PBS") else {
        return;
    };
    let _cost = costs::of("slurm::pbs_health");
    let site = Site::up(&prefix, "pbs-health");
    let lab = &site.lab;
    let (struck, on) = site.start(&["-l", "select=1:ncpus=1:ngpus=1"]);
    let bad = on[0].clone();
    let (host, gpu) = place(&bad);
    let beside = format!("select=1:ncpus=1:ngpus=1:host={host}");
    let (neighbour, _) = site.start(&["-l", &beside]);
    // An administrator's own, with a word and without.
    let (taken, silent) = (format!("{host}[7]"), format!("{host}[6]"));
    for (vnode, attribute) in [
        (&taken, "state = offline"),
        (&taken, "comment = fan"),
        (&silent, "state = offline"),
    ] {
        ran(lab.run("qmgr", &["-c", &format!("set node {vnode} {attribute}")]));
    }
    site.until("gpuosd knows the jobs", || {
        site.is_known(host, &struck) && site.is_known(host, &neighbour)
    });

    let began = Instant::now();
    site.break_gpu(&bad, &["row-remap", "failure"]);
    site.runs_elsewhere(&struck, &bad);
    goal(&site.lab, began.elapsed());
    let (state, comment) = site.vnode(&bad);
    assert!(state.contains("offline"), "{state}");
    assert!(
        comment.starts_with(&format!("gpuos: GPU {gpu} is out of service")),
        "{comment}"
    );
    assert_eq!(site.runs(&neighbour), "1");
    assert_eq!(site.vnode(&taken), ("offline".into(), "fan".into()));

    // Both daemons of the host are killed, with a fault in between that neither has told of yet.
    let second = site.vnodes_of(&neighbour)[0].clone();
    ran(lab.kill(host, GPUOSD, 9));
    site.break_gpu(&second, &["row-remap", "failure"]);
    ran(lab.kill(host, MOM, 9));
    ran(lab.start(host, MOM));
    ran(lab.start(host, GPUOSD));
    site.until("the second vnode is offline", || {
        site.vnode(&second).0.contains("offline")
    });
    assert!(site.vnode(&bad).0.contains("offline"));

    // Mended, they come back, and what the administrator took stays his.
    for vnode in [&bad, &second] {
        site.break_gpu(vnode, &["repair"]);
        let gpu = format!("{host}:{}", place(vnode).1);
        ran(lab.run_on(host, None, &gpuos(), &["online", &gpu, "--local"]));
    }
    for vnode in [&bad, &second] {
        site.until("the vnode is online", || {
            let (state, comment) = site.vnode(vnode);
            !state.is_empty() && !state.contains("offline") && comment.is_empty()
        });
    }
    assert_eq!(site.vnode(&taken), ("offline".into(), "fan".into()));
    assert_eq!(site.vnode(&silent), ("offline".into(), String::new()));
}

#[test]
fn a_job_of_two_hosts_runs_again_whichever_of_them_has_the_fault() {
    let Some(prefix) = pbs("faults of GPUs of a job of two hosts") else {
        return;
    };
    let _cost = costs::of("slurm::pbs_health::hosts");
    let site = Site::up(&prefix, "pbs-hosts");
    let pair = ["-l", "select=2:ncpus=1:ngpus=1", "-l", "place=scatter"];
    let (job, on) = site.start(&pair);
    // Its script runs on the host of the first; the fault is on the other.
    let bad = on[1].clone();
    let once = ["-r", "n", "-l", "select=1:ncpus=1:ngpus=1:host=n1"];
    let (fixed, alone) = site.start(&once);
    for (node, job) in [(place(&bad).0, &job), ("n1", &fixed)] {
        site.until("gpuosd knows the job", || site.is_known(node, job));
    }
    site.break_gpu(&bad, &["row-remap", "failure"]);
    site.runs_elsewhere(&job, &bad);

    // A job that must not run twice ends.
    site.break_gpu(&alone[0], &["row-remap", "failure"]);
    ran(site.lab.wait_job(&fixed, &["F"], LIMIT));
    assert_eq!(site.runs(&fixed), "1");
}

#[test]
fn without_gpuosd_jobs_run_as_ever_and_one_that_hangs_delays_none() {
    let Some(prefix) = pbs("a gpuosd that hangs in PBS") else {
        return;
    };
    let _cost = costs::of("slurm::pbs_health::hangs");
    let site = Site::up(&prefix, "pbs-hangs");
    let lab = &site.lab;
    let run = |select: &str| {
        let job = ran(lab.qsub(
            Some("user1"),
            &["-l", select],
            "echo $CUDA_VISIBLE_DEVICES\n",
        ));
        ran(lab.wait_job(&job, &["F"], LIMIT));
        lab.job_output(&job).trim().to_string()
    };
    let stop = |name: &str| {
        for node in ["n1", "n2"] {
            let pid = lab.pid(node, GPUOSD).expect("gpuosd runs").to_string();
            let done = std::process::Command::new("kill")
                .args([name, &pid])
                .status();
            assert!(done.is_ok_and(|done| done.success()));
        }
    };
    stop("-STOP");
    assert_eq!(run("select=1:ncpus=1"), "");
    assert_eq!(run("select=1:ncpus=1:ngpus=1").len(), 1);
    stop("-CONT");
    for node in ["n1", "n2"] {
        ran(lab.kill(node, GPUOSD, 9));
    }
    assert_eq!(run("select=1:ncpus=1:ngpus=1").len(), 1);
}

/// How often gpuosd is killed: `GPUOS_PBS_KILLS=COUNT` makes it more, as for the other daemons.
fn kills() -> u64 {
    let given = std::env::var("GPUOS_PBS_KILLS").ok();
    given.map_or(3, |text| text.parse().expect("GPUOS_PBS_KILLS is a number"))
}

#[test]
fn nothing_is_left_when_gpuosd_is_killed_at_any_moment() {
    let Some(prefix) = pbs("gpuosd killed beside a mom") else {
        return;
    };
    let _cost = costs::of("slurm::pbs_health::killed");
    let site = Site::up(&prefix, "pbs-gpuosd");
    let lab = &site.lab;
    let mut random = Rng::new(7);
    let mut below = |most: u64| random.below(most);
    // Faults come and are mended while gpuosd of the host is away, or as it comes and goes.
    let mut broken: Option<String> = None;
    let mut jobs = Vec::new();
    for nth in 0..kills() {
        let one = ["-l", "select=1:ncpus=1:ngpus=1"];
        jobs.push(ran(lab.qsub(Some("user1"), &one, "sleep 20\n")));
        let node = ["n1", "n2"][usize::try_from(nth % 2).unwrap()];
        sleep(Duration::from_millis(below(4000)));
        ran(lab.kill(node, GPUOSD, 9));
        match broken.take() {
            None => {
                let vnode = format!("{node}[{}]", below(8));
                site.break_gpu(&vnode, &["row-remap", "failure"]);
                broken = Some(vnode);
            }
            Some(vnode) => site.break_gpu(&vnode, &["repair"]),
        }
        sleep(Duration::from_millis(below(1500)));
        ran(lab.start(node, GPUOSD));
    }
    for job in &jobs {
        ran(lab.wait_job(job, &["F"], LIMIT));
    }
    // A GPU comes back by itself or by an administrator's word, and no vnode stays behind.
    let all = ["n1", "n2"].into_iter();
    for (node, gpu) in all.flat_map(|node| (0..GPUS).map(move |gpu| (node, gpu))) {
        site.break_gpu(&format!("{node}[{gpu}]"), &["repair"]);
        let name = format!("{node}:{gpu}");
        ran(lab.run_on(node, None, &gpuos(), &["online", &name, "--local"]));
    }
    site.until("all vnodes are free, without a comment of gpuos", || {
        let text = lab.run("pbsnodes", &["-av"]).unwrap_or_default();
        text.matches("state = free").count() == 2 * GPUS + 2 && !text.contains("gpuos:")
    });
}
