//! Ends and suspensions of jobs on a PBS with simulated GPUs: what a run had is gone
//! when mom says that it has left, and what a suspended job has stays its own.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use gpuos_lab::LabSpec;
use gpuos_lab::pbs::PbsLab;
use gpuos_model::gpuset::GpuSet;
use gpuos_tests::plugins::{built, daemons};
use gpuos_tests::{Needs, costs, pbs, pbs_with};
use serde_json::{Value, json};

use crate::pbs_site::{gpuos, has_hook, ran, start_waiting};

/// How long a change may take to be seen.
const LIMIT: Duration = Duration::from_secs(240);
const NODES: [&str; 2] = ["n1", "n2"];
const GPUS: usize = 8;
/// The GPU of each node that is divided.
const GPU: usize = 7;
/// Says which GPU or instance it has, and goes on until it is ended.
const SHOW: &str = "echo \"$CUDA_VISIBLE_DEVICES\" >$SEEN/$PBS_JOBID.new\nmv $SEEN/$PBS_JOBID.new $SEEN/$PBS_JOBID.seen\nsleep 10000\n";

/// Two nodes with gpuos.
struct Site {
    lab: PbsLab,
}

impl Site {
    fn up(prefix: &Path, name: &str) -> Site {
        let spec = LabSpec {
            nodes: NODES.len().into(),
            node_type: "dgx-h100".into(),
            pbs: Some(prefix.to_path_buf()),
            simulated_gpus: Some(daemons().to_path_buf()),
            mig: GpuSet::EMPTY.with(GPU),
            ..LabSpec::unique(name)
        };
        let lab = ran(PbsLab::up(&spec, &mut |step| eprintln!("{step}")));
        let site = Site { lab };
        site.install();
        site
    }

    fn install(&self) {
        let host = json!({ "gpus": vec![json!({}); GPUS] });
        let hosts = self.lab.dir().join("work/gpus.json");
        fs::write(&hosts, json!({ "n1": host, "n2": host }).to_string()).unwrap();
        let library = built().join("libgpuos_pbs_hook.so").display().to_string();
        let hosts = hosts.display().to_string();
        let words = ["pbs", "install", "--hosts", &hosts, "--library", &library];
        ran(self.lab.run(&gpuos(), &words));
        for node in NODES {
            self.until("a mom has the hook", || has_hook(&self.lab, node));
        }
        self.until("all hosts are free, with what is counted", || {
            let text = self.lab.run("pbsnodes", &["-av"]).unwrap_or_default();
            let counted = [
                "state = free",
                "ngpus = 7\n",
                "gpuos_mig_memory = 8",
                "gpuos_mig_fits = 8",
            ];
            counted
                .into_iter()
                .all(|words| text.matches(words).count() == NODES.len())
        });
    }

    fn until(&self, what: &str, there: impl Fn() -> bool) {
        let began = Instant::now();
        while !there() {
            start_waiting(&self.lab);
            if began.elapsed() > LIMIT {
                let jobs = self.lab.run("qstat", &["-x", "-f"]).unwrap_or_default();
                let logs = NODES.map(|node| self.lab.gpuosd_log(node));
                panic!("not after {LIMIT:?}: {what}\n{jobs}\n{}", logs.join("\n"));
            }
            sleep(Duration::from_millis(100));
        }
    }

    /// Mom tells no list any more that anybody would wait for.
    fn without_lists(&self) {
        ran(self.lab.run("qmgr", &["-c", "set hook gpuos freq = 3600"]));
        for node in NODES {
            let file = self.lab.home(node).join("mom_priv/hooks/gpuos.HK");
            self.until("a mom has the hook's settings", || {
                let text = fs::read_to_string(&file).unwrap_or_default();
                text.contains("freq=3600")
            });
        }
        // The next event was due before.
        sleep(Duration::from_secs(12));
    }

    fn submit(&self, options: &[&str]) -> String {
        let seen = format!("SEEN={}", self.lab.dir().join("work").display());
        let options = [&["-v", &seen], options].concat();
        ran(self.lab.qsub(Some("user1"), &options, SHOW))
    }

    fn attribute(&self, job: &str, name: &str) -> String {
        self.lab.job(job, name).ok().flatten().unwrap_or_default()
    }

    fn state(&self, job: &str) -> String {
        self.attribute(job, "job_state")
    }

    /// What a job's script was told, once it runs.
    fn runs(&self, job: &str) -> String {
        let path = self.lab.dir().join(format!("work/{job}.seen"));
        self.until("its script runs", || path.is_file());
        let text = fs::read_to_string(&path).unwrap();
        // Its next run says it anew.
        fs::remove_file(path).unwrap();
        text.trim().to_string()
    }

    /// UUIDs of all instances that the driver of a node has.
    fn instances(&self, node: &str) -> BTreeSet<String> {
        let mut command = Command::new(self.lab.dir().join("bin/gpuos-nvml"));
        let state = self.lab.gpus_dir(node).join("state");
        let out = command.arg("--state").arg(state).arg("instances").output();
        let out = out.expect("gpuos-nvml runs");
        assert!(out.status.success(), "{out:?}");
        let text = String::from_utf8_lossy(&out.stdout);
        let uuids = text.lines().filter_map(|line| line.split(' ').nth(7));
        uuids.map(String::from).collect()
    }

    /// Jobs that gpuosd of a node knows, with their GPUs.
    fn known(&self, node: &str) -> Vec<(String, Vec<u64>)> {
        let words = ["health", "--json"];
        let said = self.lab.run_on(node, None, &gpuos(), &words);
        let said: Value = serde_json::from_str(&said.unwrap_or_default()).unwrap_or_default();
        let jobs = said["status"]["jobs"].as_array().cloned();
        let jobs = jobs.unwrap_or_default().into_iter().map(|job| {
            let gpus = job["gpus"].as_array().cloned().unwrap_or_default();
            let gpus = gpus.iter().filter_map(Value::as_u64).collect();
            (job["job"].as_str().unwrap_or_default().to_string(), gpus)
        });
        jobs.collect()
    }

    fn knows(&self, node: &str, job: &str) -> bool {
        self.known(node).iter().any(|(one, _)| one == job)
    }

    fn delete(&self, jobs: &[&str]) {
        for job in jobs {
            ran(self.lab.run("qdel", &[job]));
        }
        self.until("the jobs are over", || {
            jobs.iter().all(|job| self.state(job) == "F")
        });
    }

    fn signal(&self, name: &str, job: &str) {
        ran(self.lab.run("qsig", &["-s", name, job]));
    }
}

#[test]
fn what_a_run_had_is_gone_with_its_end_and_not_with_moms_next_list() {
    let Some(prefix) = pbs("ends of jobs in PBS") else {
        return;
    };
    let _cost = costs::of("slurm::pbs_ends");
    let site = Site::up(&prefix, "pbs-ends");
    // Of a job of two hosts the other one knows by mom's list alone.
    let pair = site.submit(&["-l", "select=2:ncpus=1:ngpus=1", "-l", "place=scatter"]);
    for node in NODES {
        site.until("gpuosd knows the job", || site.knows(node, &pair));
    }
    site.without_lists();
    site.delete(&[&pair]);
    for node in NODES {
        site.until("it has left", || !site.knows(node, &pair));
    }

    // Slices: deleted, ended by itself, and run again.
    let small = ["-l", "select=1:ncpus=1:host=n1", "-l", "gpuos_mig=1g.10gb"];
    let job = site.submit(&small);
    let first = site.runs(&job);
    assert_eq!(site.instances("n1"), BTreeSet::from([first.clone()]));
    ran(site.lab.run("qrerun", &[&job]));
    let second = site.runs(&job);
    site.until("what its first run had is gone", || {
        site.instances("n1") == BTreeSet::from([second.clone()])
    });
    site.delete(&[&job]);
    let began = Instant::now();
    site.until("its instance is gone", || site.instances("n1").is_empty());
    eprintln!(
        "from the end in pbs_server to no instance: {:.1} s",
        began.elapsed().as_secs_f64()
    );
    site.until("it has left", || !site.knows("n1", &job));
    // qdel that asks nobody, and a mom that hears of it as of one to be thrown away.
    let forced = site.submit(&small);
    site.runs(&forced);
    ran(site.lab.run("qdel", &["-W", "force", &forced]));
    site.until("its instance is gone", || site.instances("n1").is_empty());
}

/// Mom, whose hooks take longer than the other host's, keeps its record of the job for some minutes then.
#[test]
fn a_job_that_mom_has_only_not_forgotten_does_not_come_back() {
    let Some(prefix) = pbs_with("ends of jobs in PBS that mom keeps", Needs::RealPbs) else {
        return;
    };
    let _cost = costs::of("slurm::pbs_ends::kept");
    let site = Site::up(&prefix, "pbs-kept");
    let pair = site.submit(&["-l", "select=2:ncpus=1:ngpus=1", "-l", "place=scatter"]);
    site.runs(&pair);
    for node in NODES {
        site.until("gpuosd knows the job", || site.knows(node, &pair));
    }
    let first = site.attribute(&pair, "exec_host");
    let first = NODES
        .into_iter()
        .find(|node| first.starts_with(node))
        .expect("the host of its script");
    let records = site.lab.home(first).join("mom_priv/jobs");
    let is_kept = || {
        let files = fs::read_dir(&records).unwrap();
        let mut names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        names.any(|name| name.starts_with(&pair))
    };
    assert!(is_kept(), "{}", records.display());
    // Another hook there, after that of gpuos, is not through when the other host has answered.
    let script = site.lab.dir().join("work/slow.py");
    let text = format!(
        "import pbs\nimport time\nif pbs.get_local_nodename() == \"{first}\":\n    time.sleep(15)\npbs.event().accept()\n"
    );
    fs::write(&script, text).unwrap();
    let import = format!(
        "import hook slow application/x-python default {}",
        script.display()
    );
    for line in [
        "create hook slow",
        "set hook slow event = execjob_end",
        "set hook slow order = 600",
        &import,
    ] {
        ran(site.lab.run("qmgr", &["-c", line]));
    }
    for node in NODES {
        let files = ["slow.HK", "slow.PY"];
        let files = files.map(|name| site.lab.home(node).join("mom_priv/hooks").join(name));
        site.until("a mom has the other hook", || {
            files.iter().all(|file| file.is_file())
        });
    }
    site.delete(&[&pair]);
    for node in NODES {
        site.until("it has left", || !site.knows(node, &pair));
    }
    // Twelve lists, of which each could bring it back.
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(60) {
        for node in NODES {
            assert!(!site.knows(node, &pair), "{node}");
        }
        sleep(Duration::from_secs(1));
    }
    assert!(is_kept(), "mom has forgotten it sooner: nothing was seen");
}

#[test]
fn what_a_suspended_job_has_stays_its_own_whoever_comes_in_its_place() {
    let Some(prefix) = pbs_with("suspended jobs in PBS", Needs::Scheduler) else {
        return;
    };
    let _cost = costs::of("slurm::pbs_ends::suspended");
    let site = Site::up(&prefix, "pbs-suspended");
    // All that the host gives as a whole, so that the next job has these too.
    let whole = ["-l", "select=1:ncpus=1:ngpus=7:host=n1"];
    let all: Vec<u64> = (0..7).collect();
    let low = site.submit(&whole);
    site.runs(&low);
    site.until("gpuosd knows the job", || site.knows("n1", &low));
    let high = site.submit(&whole);
    site.signal("suspend", &low);
    site.runs(&high);
    assert_eq!(site.state(&low), "S");
    site.until("both are on the GPUs", || {
        let mut known = site.known("n1");
        known.sort();
        known == [(low.clone(), all.clone()), (high.clone(), all.clone())]
    });
    // It goes on where it was when the other one has ended.
    site.signal("resume", &low);
    site.delete(&[&high]);
    site.until("it runs again", || site.state(&low) == "R");
    assert_eq!(site.attribute(&low, "run_count"), "1");
    site.until("gpuosd knows it alone", || {
        site.known("n1") == [(low.clone(), all.clone())]
    });
    // Where a site says that suspended jobs give back CPUs alone, its GPUs stay its own.
    let only = "set server restrict_res_to_release_on_suspend = ncpus";
    ran(site.lab.run("qmgr", &["-c", only]));
    let high = site.submit(&whole);
    site.signal("suspend", &low);
    // pbs_sched has looked at all jobs when it starts a later one.
    let later = site.submit(&["-l", "select=1:ncpus=1:ngpus=1:host=n2"]);
    site.runs(&later);
    assert_eq!([site.state(&low), site.state(&high)], ["S", "Q"]);
    site.signal("resume", &low);
    site.until("it runs again", || site.state(&low) == "R");
    site.delete(&[&low, &high, &later]);
    let all = "unset server restrict_res_to_release_on_suspend";
    ran(site.lab.run("qmgr", &["-c", all]));

    // PBS gives its slices to another one; gpuosd does not.
    let slices = ["-l", "select=1:ncpus=1:host=n1", "-l", "gpuos_mig=7g.80gb"];
    let low = site.submit(&slices);
    let own = BTreeSet::from([site.runs(&low)]);
    let high = site.submit(&slices);
    site.signal("suspend", &low);
    site.until("its start is put off", || {
        site.attribute(&high, "comment")
            .contains("were not to be had")
    });
    assert_eq!(site.instances("n1"), own);
    site.signal("resume", &low);
    site.until("it runs again", || site.state(&low) == "R");
    site.delete(&[&low]);
    site.delete(&[&high]);
    site.until("no instance is left", || site.instances("n1").is_empty());
}
