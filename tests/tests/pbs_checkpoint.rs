//! Checkpoints of jobs of a real PBS, with a gpuos_mover beside each mom, wherever `$GPUOS_TEST_PBS` names an installation.

use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use gpuos_lab::LabSpec;
use gpuos_lab::pbs::{MOM, MOVER, PbsLab};
use gpuos_tests::plugins::{built, daemons, programs};
use gpuos_tests::{Needs, costs, pbs_with};
use serde_json::Value;

/// How long a change may take to be seen.
const LIMIT: Duration = Duration::from_secs(180);
const NODES: [&str; 4] = ["n1", "n2", "n3", "n4"];

fn ran<T>(result: Result<T, gpuos_lab::LabError>) -> T {
    result.unwrap_or_else(|e| panic!("{e}"))
}

fn gpuos() -> String {
    programs().join("gpuos").display().to_string()
}

fn took(what: &str, since: Instant) {
    eprintln!("from {what}: {:.1} s", since.elapsed().as_secs_f64());
}

fn folder(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name);
    path.display().to_string()
}

/// A PBS of four nodes whose hook knows that checkpoints are kept.
struct Site(PbsLab);

impl Site {
    fn up(prefix: &Path) -> Site {
        let spec = LabSpec {
            nodes: 4.into(),
            pbs: Some(prefix.to_path_buf()),
            movers: Some(daemons().to_path_buf()),
            ..LabSpec::unique("pbs-checkpoint")
        };
        let lab = PbsLab::up(&spec, &mut |step| eprintln!("{step}"));
        let site = Site(ran(lab));
        let library = built().join("libgpuos_pbs_hook.so");
        let library = library.display().to_string();
        let words = ["pbs", "install", "--checkpoints", "--library", &library];
        ran(site.0.run(&gpuos(), &words));
        for node in NODES {
            let folder = site.0.home(node).join("mom_priv/hooks");
            site.until("a mom has the hook", || {
                let parts = ["gpuos.HK", "gpuos.PY", "gpuos.CF"];
                parts.iter().all(|part| folder.join(part).is_file())
            });
            // Files alone are not all that a mom needs.
            site.until("a mom runs the hook", || {
                let log = site.0.daemon_log(node, MOM);
                log.contains("periodic hook accepted")
            });
        }
        site
    }

    fn until(&self, what: &str, there: impl Fn() -> bool) {
        let since = Instant::now();
        while !there() {
            if since.elapsed() > LIMIT {
                let jobs = self.0.run("qstat", &["-f"]).unwrap_or_default();
                let logs = NODES.map(|node| {
                    let tail = |text: String| {
                        let lines: Vec<&str> = text.lines().collect();
                        lines[lines.len().saturating_sub(25)..].join("\n")
                    };
                    let mom = tail(self.0.daemon_log(node, MOM));
                    format!("{node}:\n{}\n{mom}", tail(self.0.mover_log(node)))
                });
                panic!("not after {LIMIT:?}: {what}\n{jobs}\n{}", logs.join("\n"));
            }
            sleep(Duration::from_millis(200));
        }
    }

    /// A job that counts for ever, and has started.
    fn counter(&self, options: &[&str]) -> String {
        let all = [
            &["-l", "gpuos_checkpoint=1h", "-j", "oe", "-k", "oed"],
            options,
        ]
        .concat();
        let script = format!(
            "cd {}; GPUOS_HELPERS={} exec sh {}/counter.sh 1000000 0.02 >>$PBS_JOBID.said 2>&1\n",
            self.0.dir().join("work").display(),
            folder("share"),
            folder("examples/checkpoint"),
        );
        let job = ran(self.0.qsub(Some("user1"), &all, &script));
        ran(self.0.wait_job(&job, &["R"], LIMIT));
        job
    }

    /// What the counter has said.
    fn said(&self, job: &str) -> String {
        let path = self.0.dir().join(format!("work/{job}.said"));
        fs::read_to_string(path).unwrap_or_default()
    }

    /// The numbers behind these words in what the counter said.
    fn numbers(&self, job: &str, words: &str) -> Vec<u64> {
        let said = self.said(job);
        let lines = said.lines().filter(|line| line.starts_with(words));
        let last = lines.filter_map(|line| line.split_whitespace().next_back()?.parse().ok());
        last.collect()
    }

    fn attribute(&self, job: &str, name: &str) -> String {
        let value = self.0.job(job, name).ok().flatten();
        value.unwrap_or_default()
    }

    fn state(&self, job: &str) -> String {
        self.attribute(job, "job_state")
    }

    /// The host on which a job runs.
    fn host(&self, job: &str) -> String {
        let given = self.attribute(job, "exec_vnode");
        let name = given.trim_start_matches('(').split([':', '[']).next();
        name.unwrap_or_default().to_owned()
    }

    /// A command of the job's user on its host, whose answer is JSON.
    fn ckpt(&self, host: &str, words: &[&str]) -> Value {
        let all = [&["--json", "ckpt"], words].concat();
        let said = ran(self.0.run_on(host, Some("user1"), &gpuos(), &all));
        serde_json::from_str(&said).unwrap_or_else(|e| panic!("{e}: {said}"))
    }

    /// Waits until the job's program can make checkpoints.
    fn is_served(&self, host: &str, job: &str) {
        self.until("the program is known", || {
            let words = ["--json", "ckpt", "show", job];
            let said = self.0.run_on(host, Some("user1"), &gpuos(), &words);
            let told: Value = serde_json::from_str(&said.unwrap_or_default()).unwrap_or_default();
            told["told"][0]["jobs"][0]["phase"] == "running"
        });
    }

    /// Waits until the counter runs again, and goes on at the number that it saved last.
    fn goes_on(&self, job: &str, times: usize) -> u64 {
        self.until("the counter goes on", || {
            self.numbers(job, "restored checkpoint").len() >= times
        });
        let restored = self.numbers(job, "restored checkpoint")[times - 1];
        let saved = self.numbers(job, "saved");
        assert!(saved.contains(&restored), "{restored} of {saved:?}");
        assert_eq!(self.said(job).matches("new\n").count(), 1);
        restored
    }
}

#[test]
fn a_job_of_pbs_goes_on_where_it_was_after_a_hold_and_on_other_nodes() {
    let Some(prefix) = pbs_with("checkpoints in PBS", Needs::Scheduler) else {
        return;
    };
    let _cost = costs::of("slurm::pbs_checkpoint");
    let site = Site::up(&prefix);
    let lab = &site.0;

    // A checkpoint that its user asks for.
    let job = site.counter(&[]);
    let first = site.host(&job);
    site.is_served(&first, &job);
    let made = site.ckpt(&first, &["now", &job]);
    assert_eq!(made["outcome"], "committed", "{made}");
    assert_eq!(site.attribute(&job, "Resource_List.gpuos_hosts"), first);

    // Nobody names hosts himself, and a job is its user's alone.
    let forged = ["-l", "gpuos_checkpoint=1h", "-l", "gpuos_hosts=n4"];
    let refused = lab.qsub(Some("user1"), &forged, "true\n").unwrap_err();
    assert!(refused.to_string().contains("gpuos_hosts"), "{refused}");
    for words in [&["now", &job[..]][..], &["restart", &job], &["show", &job]] {
        let all = [&["ckpt"], words].concat();
        assert!(
            lab.run_on(&first, Some("user2"), &gpuos(), &all).is_err(),
            "{words:?}"
        );
    }

    // A hold saves it and puts it into state H; on release it goes on, and its node may be another one.
    let since = Instant::now();
    ran(lab.run_on("head", Some("user1"), "qhold", &[&job]));
    site.until("the job is held", || site.state(&job) == "H");
    took("qhold to state H", since);
    let before = site.numbers(&job, "saved").len();
    assert_eq!(before, 2, "the hold has it saved: {}", site.said(&job));
    ran(lab.run("pbsnodes", &["-o", &first]));
    let since = Instant::now();
    ran(lab.run_on("head", Some("user1"), "qrls", &[&job]));
    ran(lab.wait_job(&job, &["R"], LIMIT));
    let second = site.host(&job);
    assert_ne!(first, second);
    let at = site.goes_on(&job, 1);
    took("qrls to the next number on another host", since);
    assert_eq!(Some(&at), site.numbers(&job, "saved").last());

    // Its user has it begin again, from a checkpoint that another node keeps.
    site.is_served(&second, &job);
    let since = Instant::now();
    let again = site.ckpt(&second, &["restart", &job]);
    assert_eq!(again["requeued"], true, "{again}");
    site.goes_on(&job, 2);
    took("gpuos ckpt restart to the next number", since);

    // An operator moves it.
    let third = site.host(&job);
    site.is_served(&third, &job);
    let made = site.ckpt(&third, &["now", &job]);
    assert_eq!(made["outcome"], "committed", "{made}");
    ran(lab.run("pbsnodes", &["-o", &third]));
    ran(lab.run("qrerun", &[&job]));
    site.goes_on(&job, 3);
    assert_ne!(site.host(&job), third);

    // Movers and moms that are killed lose nothing.
    let fourth = site.host(&job);
    ran(lab.kill(&fourth, MOVER, 9));
    ran(lab.start(&fourth, MOVER));
    site.is_served(&fourth, &job);
    let made = site.ckpt(&fourth, &["now", &job]);
    assert_eq!(made["outcome"], "committed", "{made}");
    ran(lab.kill(&fourth, MOM, 9));
    ran(lab.start(&fourth, MOM));
    site.goes_on(&job, 4);
    ran(lab.run("qdel", &[&job]));

    // All ranks of a program of two hosts are saved, and go on elsewhere together.
    ran(lab.run("pbsnodes", &["-r", &first]));
    ran(lab.run("pbsnodes", &["-r", &third]));
    let script = format!(
        "exec pbsdsh -- sh -c 'cd {}; RANK=$PBS_NODENUM WORLD_SIZE=2 GPUOS_HELPERS={} exec sh {}/counter.sh 1000000 0.02 >>$PBS_JOBID.said 2>&1'\n",
        lab.dir().join("work").display(),
        folder("share"),
        folder("examples/checkpoint"),
    );
    let wide = [
        "-l",
        "gpuos_checkpoint=1h",
        "-l",
        "select=2:ncpus=1",
        "-l",
        "place=scatter",
    ];
    let job = ran(lab.qsub(Some("user1"), &wide, &script));
    ran(lab.wait_job(&job, &["R"], LIMIT));
    let leads = site.host(&job);
    site.is_served(&leads, &job);
    let made = site.ckpt(&leads, &["now", &job]);
    assert_eq!(made["outcome"], "committed", "{made}");
    ran(lab.run("pbsnodes", &["-o", &leads]));
    ran(lab.run("qrerun", &[&job]));
    site.until("both ranks go on", || {
        site.numbers(&job, "restored checkpoint").len() == 2
    });
    let (restored, saved) = (
        site.numbers(&job, "restored checkpoint"),
        site.numbers(&job, "saved"),
    );
    assert!(
        restored.iter().all(|number| saved.contains(number)),
        "{restored:?} of {saved:?}"
    );
    assert_ne!(site.host(&job), leads);
    ran(lab.run("qdel", &[&job]));

    // One that is preempted goes on from its newest checkpoint where there is room.
    let all = "select=1:ncpus=112";
    for line in [
        "create queue express queue_type=execution, priority=200, enabled=true, started=true",
        "set sched preempt_order = R",
    ] {
        ran(lab.run("qmgr", &["-c", line]));
    }
    let others: Vec<&str> = NODES.into_iter().filter(|node| *node != leads).collect();
    ran(lab.run("pbsnodes", &["-r", &leads]));
    ran(lab.run("pbsnodes", &[&["-o"], &others[..]].concat()));
    let job = site.counter(&["-l", all]);
    site.is_served(&leads, &job);
    let made = site.ckpt(&leads, &["now", &job]);
    assert_eq!(made["outcome"], "committed", "{made}");
    let first = ["-q", "express", "-l", all];
    let first = ran(lab.qsub(Some("user2"), &first, "sleep 10000\n"));
    ran(lab.wait_job(&first, &["R"], LIMIT));
    ran(lab.run("pbsnodes", &["-r", others[0]]));
    // pbs_sched looks at a node that came back with its next cycle.
    ran(lab.run("qmgr", &["-c", "set server scheduling = true"]));
    site.goes_on(&job, 1);
    assert_eq!(site.host(&job), others[0]);
    ran(lab.run("qdel", &[&job, &first]));
}
