//! `gpuos pbs-planner`, over a PBS that answers from files and writes down what it is asked to run.

use std::fs;
use std::process::Command;

use crate::site::{Answer, Site};

#[path = "../../../gpuos_pbs/tests/pbs/world.rs"]
pub mod world;
use world::{Form, QUEUES, Running, SERVER, Waits, World};

/// A folder with a pbs.conf and PBS's commands.
pub struct Pbs(pub Site);

impl Pbs {
    pub fn new(world: &World) -> Pbs {
        let site = Site {
            dir: tempfile::tempdir().unwrap(),
        };
        let folder = site.path("");
        site.file("gpuos.toml", "");
        site.file(
            "pbs.conf",
            &format!("# PBS\nPBS_SERVER=head\nPBS_EXEC={folder}\n"),
        );
        site.file("vnodes", &world.vnodes());
        site.file("jobs", &world.jobs());
        site.file("queues", QUEUES);
        site.file("server", SERVER);
        site.program(
            "pbsnodes",
            &format!(
                "#!/bin/sh\n[ $1 = -av ] || [ ! -e {folder}/vnodes-now ] || exec /bin/cat {folder}/vnodes-now\nexec /bin/cat {folder}/vnodes\n"
            ),
        );
        let qstat = format!(
            "#!/bin/sh\ncase \"$1 $4\" in -B*) exec /bin/cat {folder}/server;; -Q*) exec /bin/cat {folder}/queues;; *.head) \
             [ ! -e {folder}/jobs-now ] || exec /bin/cat {folder}/jobs-now;; esac\nexec /bin/cat {folder}/jobs\n"
        );
        site.program("qstat", &qstat);
        site.program("qrun", &format!("#!/bin/sh\necho \"$*\" >> {folder}/ran\n"));
        Pbs(site)
    }

    fn planner(&self, args: &[&str]) -> Answer {
        self.gpuos(&[&["pbs-planner"], args].concat())
    }

    /// The command on a machine that has nothing of Slurm.
    pub fn gpuos(&self, args: &[&str]) -> Answer {
        let out = Command::new(env!("CARGO_BIN_EXE_gpuos"))
            .args(args)
            .env("PATH", self.0.path("bin"))
            .env("PBS_CONF_FILE", self.0.path("pbs.conf"))
            .env("GPUOS_CONF", self.0.path("gpuos.toml"))
            .output()
            .unwrap();
        Answer::of(out)
    }

    fn ran(&self) -> String {
        fs::read_to_string(self.0.path("ran")).unwrap_or_default()
    }
}

/// Two hosts of four GPUs, a job of one GPU and one of all eight.
pub fn world() -> World {
    let mut world = World::random(1, 2, 0, 0);
    for host in &mut world.hosts {
        (host.gpus, host.island, host.out, host.down) = (4, 4, 0, false);
    }
    let waits = |id, chunks, gpus| Waits {
        id,
        chunks,
        gpus,
        cpus: 1,
        mib: 0,
        form: Form::Scatter,
        topology: None,
        placement: None,
        limit: None,
        name: "a\u{1b}[31mb".into(),
        more: String::new(),
        place: String::new(),
    };
    world.waiting = vec![waits(1000, 1, 1), waits(1001, 2, 4)];
    world
}

#[test]
fn a_dry_run_says_what_it_would_do_and_does_nothing() {
    let pbs = Pbs::new(&world());
    let Answer { code, out, err } = pbs.planner(&["--dry-run"]);
    assert_eq!((code, &err[..]), (0, ""));
    assert!(out.contains("1000.head would start: "), "{out}");
    assert!(out.contains("(n0:ncpus=1:ngpus=1)"), "{out}");
    assert!(out.contains("1001.head waits: "), "{out}");
    assert_eq!(pbs.ran(), "");
}

#[test]
fn one_pass_runs_jobs_on_exactly_these_vnodes() {
    let pbs = Pbs::new(&world());
    let answer = pbs.planner(&["--once"]);
    assert_eq!((answer.code, &answer.err[..]), (0, ""), "{}", answer.out);
    assert_eq!(pbs.ran(), "-H (n0:ncpus=1:ngpus=1) 1000.head\n");
}

#[test]
fn what_does_not_hold_any_more_is_not_started() {
    let mut world = world();
    world.waiting[0].gpus = 2;
    let pbs = Pbs::new(&world);
    let held = world.jobs().replace("\"Q\"", "\"H\"");
    pbs.0.file("jobs-now", &held);
    let answer = pbs.planner(&["--once"]);
    assert_eq!(answer.code, 1);
    let told = "1000.head was not tried: it is in state H by now";
    assert!(answer.out.contains(told), "{}", answer.out);
    // qrun would give what another job has by now.
    fs::remove_file(pbs.0.path("jobs-now")).unwrap();
    let mut taken = world.clone();
    taken.running.push(Running {
        id: 900,
        on: vec![(0, 7)],
        cpus: 1,
        limit: 600,
        ran: 0,
    });
    pbs.0.file("vnodes-now", &taken.vnodes());
    let answer = pbs.planner(&["--once"]);
    let told = "1000.head was not tried: vnode n0 has no room for it any more";
    assert!(answer.out.contains(told), "{}", answer.out);
    assert_eq!(pbs.ran(), "");
    fs::remove_file(pbs.0.path("vnodes-now")).unwrap();
    let answer = pbs.planner(&["--once"]);
    assert_eq!(answer.code, 0, "{}", answer.out);
    assert!(pbs.ran().ends_with(" 1000.head\n"), "{}", pbs.ran());
}

#[test]
fn the_json_has_the_agreed_form() {
    let pbs = Pbs::new(&world());
    pbs.0.program(
        "qrun",
        "#!/bin/sh\necho 'qrun: Resource temporarily unavailable 1000.head' >&2; exit 1\n",
    );
    let answer = pbs.planner(&["--once", "--json"]);
    assert_eq!(answer.code, 1, "{}", answer.err);
    let json = answer.json();
    assert_eq!(json["schema"], "gpuos.pbs-plan/1");
    crate::schemas::agrees("pbs-plan", &json);
    let refused = json["refused"][0].as_str().unwrap();
    assert!(
        refused.contains("Resource temporarily unavailable"),
        "{refused}"
    );
}

#[test]
fn a_pbs_that_does_not_answer_is_told() {
    let pbs = Pbs::new(&world());
    pbs.0.file("jobs", "{ \"Jobs\": {");
    let answer = pbs.planner(&["--once"]);
    assert_eq!(answer.code, 1);
    assert!(answer.err.contains("qstat -f: line 1"), "{}", answer.err);
    pbs.0.program(
        "qstat",
        "#!/bin/sh\necho 'Connection refused' >&2; exit 1\n",
    );
    let answer = pbs.planner(&["--once"]);
    assert!(answer.err.contains("Connection refused"), "{}", answer.err);
    fs::remove_file(pbs.0.path("pbs.conf")).unwrap();
    let answer = pbs.planner(&["--once"]);
    assert!(answer.err.contains("$PBS_CONF_FILE"), "{}", answer.err);
}

#[test]
fn why_says_what_is_with_a_job_of_pbs() {
    let mut world = world();
    world.running.push(Running {
        id: 900,
        on: vec![(0, 3), (1, 1)],
        cpus: 1,
        limit: 600,
        ran: 0,
    });
    let pbs = Pbs::new(&world);
    let says = |job: &str| pbs.gpuos(&["why", job]).out;
    assert_eq!(
        says("900"),
        "Job 900.head has 3 GPUs, on 2 hosts in leaf l0: 2 of n0, 1 of n1.\n"
    );
    let starts = says("1000.head");
    assert!(
        starts.starts_with("Job 1000.head would start now: "),
        "{starts}"
    );
    let waits = says("1001");
    assert!(waits.starts_with("Job 1001.head waits: "), "{waits}");
    assert!(
        waits
            .contains("A planner with --keep=1, as by default, keeps 4 GPUs of n0, 4 of n1 for it"),
        "{waits}"
    );
    let jobs = world.jobs();
    pbs.0.file("jobs", &jobs.replacen("\"R\"", "\"H\"", 1));
    assert!(says("900").starts_with("Job 900.head is in state H: it is held."));
    let twice = jobs.replacen("\"queue\"", "\"queue\":\"x\",\"queue\"", 1);
    pbs.0.file("jobs", &twice);
    assert_eq!(
        says("900"),
        "Job 900.head does not wait, and it cannot be read: queue stands in it twice.\n"
    );
    pbs.0
        .file("jobs", &jobs.replace("(n0:", "(x:").replace("(n1:", "(x:"));
    assert!(
        says("900").contains("on vnodes that PBS does not list any more"),
        "{}",
        says("900")
    );
    pbs.0.file("jobs", &jobs);
    let gone = pbs.gpuos(&["why", "5"]);
    assert_eq!(gone.code, 1);
    assert!(
        gone.out.contains("PBS has no job 5 that waits or runs"),
        "{}",
        gone.out
    );
    let json = pbs.gpuos(&["why", "1000", "--pbs", "--json"]).json();
    assert_eq!(json["schema"], "gpuos.why-pbs/1");
    crate::schemas::agrees("why-pbs", &json);
}

/// pbs_sched's own reason stands beside the planner's, and what no host has is named.
#[test]
fn why_names_the_resource_or_queue_that_keeps_a_job_waiting() {
    let mut world = world();
    world.hosts[1].has = "\"gmodel\":\"h100\",".into();
    world.waiting[0].more = ":gmodel=b200".into();
    world.waiting[1].more = ":gmodel=h100".into();
    let pbs = Pbs::new(&world);
    let comment = "\"job_state\":\"Q\",\"comment\":\"Can Never Run: Insufficient amount of resource: gmodel (b200 != )\"";
    let jobs = world.jobs().replacen("\"job_state\":\"Q\"", comment, 1);
    pbs.0.file("jobs", &jobs);
    let none = pbs.gpuos(&["why", "1000"]).out;
    let never = "It will never start as it is: no vnode has gmodel=b200. PBS says: Can Never Run: Insufficient amount of resource: gmodel (b200 != ).";
    assert!(none.contains(never), "{none}");
    let one = pbs.gpuos(&["why", "1001"]).out;
    let hosts = "By its resources and queue n1 can have gmodel=h100:ngpus=4:ncpus=1.";
    assert!(one.contains(hosts), "{one}");
}

/// `qstat` lists arrays without their jobs, and shows one that it is asked for.
#[test]
fn why_knows_the_jobs_of_an_array() {
    let pbs = Pbs::new(&world());
    let subjob = |state: &str, has: &str| {
        let vnodes = format!("\"exec_vnode\":\"{has}\",");
        let vnodes = if has.is_empty() { "" } else { &vnodes };
        let text = format!(
            "{{\"timestamp\":1,\"Jobs\":{{\"7[3].head\":{{\"Job_Name\":\"array\",\"Job_Owner\":\"u@head\",\"job_state\":\"{state}\",\
             \"queue\":\"workq\",{vnodes}\"Resource_List\":{{\"select\":\"1:ngpus=1\"}}}}}}}}"
        );
        pbs.0.file("jobs-now", &text);
        pbs.gpuos(&["why", "7[3].head"])
    };
    let runs = subjob("R", "(n1:ngpus=1:ncpus=1)");
    assert_eq!(runs.out, "Job 7[3].head has 1 GPU, on one host: 1 of n1.\n");
    assert_eq!(runs.code, 0);
    let waits = subjob("Q", "").out;
    assert_eq!(
        waits,
        "Job 7[3].head waits; pbs_sched places the jobs of an array.\n"
    );
    let ended = subjob("X", "").out;
    assert!(ended.starts_with("Job 7[3].head has ended; "), "{ended}");
    let none = pbs.gpuos(&["why", "8[3].head"]);
    assert_eq!(none.code, 1);
    assert!(
        none.out.contains("PBS has no job 8[3].head"),
        "{}",
        none.out
    );
}
