//! A PBS with all that gpuos gives there: whole GPUs with power, clocks, MPS and memory beyond their own, a GPU in slices and one in turns on each
//! host, and programs in control groups where this machine has them. And what of it is still there.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use gpuos_lab::LabSpec;
use gpuos_lab::pbs::PbsLab;
use gpuos_model::gpuset::GpuSet;
use gpuos_tests::mps::MPS_CONTROL;
use gpuos_tests::plugins::{built, daemons};
use serde_json::{Value, json};

use crate::memory_turns::CLIENT;
use crate::pbs_site::{cuda, gpuos, has_hook, ran, start_waiting};

/// How long a change may take to be seen.
pub const LIMIT: Duration = Duration::from_secs(240);

/// GPUs of each host: the first is shared, the last divided, and those between are whole.
pub const GPUS: usize = 8;
const DIVIDED: usize = GPUS - 1;

/// GPUs with so little memory that the machine of a test has room for what is beyond it.
const GPUOS: &str = "[memory]\noversubscribe = true\nturns = 2\nreserve-mib = 0\n\n[[node-type]]\nname = \"small\"\nbase = \"dgx-h100\"\n\
                     gpu-memory-mib = 1024\n\n[[nodes]]\nmatch = \"n[1-2]\"\ntype = \"small\"\n";

/// What [`Full::left`] finds: each thing with its kind in front.
pub const WHAT_LEFT: [&str; 6] = [
    "instances",
    "GPUs with limits",
    "jobs that gpuosd knows",
    "hosts with memory lent",
    "daemons of MPS",
    "control groups",
];

/// What jobs ask for: slices, a part in turns, and memory beyond that of a GPU.
pub const SLICE: [&str; 4] = ["-l", "select=1:ncpus=1", "-l", "gpuos_mig=1g.10gb"];
pub const TURNS: [&str; 4] = [
    "-l",
    "select=1:ncpus=1:mem=100mb",
    "-l",
    "gpuos_share=\"timeslice,mem=600M\"",
];
pub const BEYOND: [&str; 4] = [
    "-l",
    "select=1:ncpus=1:ngpus=1:mem=100mb",
    "-l",
    "gpuos_mem=1500M",
];
pub const WHOLE: [&str; 2] = ["-l", "select=1:ncpus=1:ngpus=1"];

pub struct Full {
    pub lab: PbsLab,
    pub work: PathBuf,
    pub hosts: Vec<String>,
    /// What PBS showed before gpuos was installed.
    pub before: String,
    cuda: PathBuf,
}

impl Full {
    pub fn up(prefix: &Path, name: &str) -> Full {
        let spec = LabSpec {
            nodes: 2.into(),
            node_type: "dgx-h100".into(),
            pbs: Some(prefix.to_path_buf()),
            simulated_gpus: Some(daemons().to_path_buf()),
            mig: GpuSet::EMPTY.with(DIVIDED),
            gpuos_toml: Some(GPUOS.into()),
            // Turns of a second, and moves that are taken to take no time.
            memory_turn: 1,
            ..LabSpec::unique(name)
        };
        let lab = ran(PbsLab::up(&spec, &mut |step| eprintln!("{step}")));
        let cuda = cuda(&lab);
        let control = lab.dir().join("bin/nvidia-cuda-mps-control");
        fs::write(&control, MPS_CONTROL).unwrap();
        fs::set_permissions(&control, fs::Permissions::from_mode(0o755)).unwrap();
        let hosts = lab.record().spec.node_names();
        let work = lab.dir().join("work");
        let mut site = Full {
            lab,
            work,
            hosts,
            before: String::new(),
            cuda,
        };
        site.before = site.shown();
        let mut gpus = vec![json!({}); GPUS];
        gpus[0] = json!({ "shares": 4 });
        let host = json!({ "leaf": "l1", "gpus": gpus });
        let all: BTreeMap<&String, _> = site.hosts.iter().map(|name| (name, &host)).collect();
        fs::write(site.work.join("gpus.json"), json!(all).to_string()).unwrap();
        site.install();
        site.all_free();
        site
    }

    /// `gpuos pbs install`, until moms have the hook.
    pub fn install(&self) {
        let path = |path: PathBuf| path.display().to_string();
        let hosts = path(self.work.join("gpus.json"));
        let library = path(built().join("libgpuos_pbs_hook.so"));
        let preload = path(self.cuda.join("libgpuos_preload.so.0"));
        let words = ["pbs", "install", "--hosts", &hosts, "--library", &library];
        let more = ["--preload", &preload, "--confine", "try"];
        ran(self.lab.run(&gpuos(), &[&words[..], &more].concat()));
        for host in &self.hosts {
            self.until("a mom has the hook", || has_hook(&self.lab, host));
        }
    }

    pub fn until(&self, what: &str, there: impl Fn() -> bool) {
        self.until_in(LIMIT, what, there);
    }

    pub fn until_in(&self, limit: Duration, what: &str, there: impl Fn() -> bool) {
        let began = Instant::now();
        while !there() {
            start_waiting(&self.lab);
            if began.elapsed() > limit {
                let jobs = self.lab.run("qstat", &["-x", "-f"]).unwrap_or_default();
                let logs = self.hosts.iter().map(|host| self.lab.gpuosd_log(host));
                let logs: Vec<String> = logs.collect();
                panic!(
                    "not after {limit:?}: {what}\n{:#?}\n{jobs}\n{}",
                    self.left(),
                    logs.join("\n")
                );
            }
            sleep(Duration::from_millis(200));
        }
    }

    pub fn all_free(&self) {
        self.until("all hosts are free, with what is counted", || {
            let text = self.lab.run("pbsnodes", &["-av"]).unwrap_or_default();
            let of_each = |words: &str| text.matches(words).count() == self.hosts.len();
            let counted = [
                "state = free",
                "resources_available.ngpus = 6",
                "free=1-6;",
                "resources_available.gpuos_mig_memory = 8",
                "resources_available.gpuos_mig_fits = 8",
                "resources_available.gpuos_share_fits = 4",
            ];
            counted.into_iter().all(of_each)
        });
    }

    pub fn attribute(&self, job: &str, name: &str) -> String {
        self.lab.job(job, name).ok().flatten().unwrap_or_default()
    }

    pub fn state(&self, job: &str) -> String {
        self.attribute(job, "job_state")
    }

    pub fn submit(&self, user: &str, options: &[&str], script: &str) -> String {
        ran(self.lab.qsub(Some(user), options, script))
    }

    /// Lines of a script that have a CUDA program compute for so many seconds, of which each sum is looked at.
    pub fn computes(&self, seconds: &str) -> String {
        let test = std::env::current_exe().expect("this program");
        let stays = self.work.join("stays-$PBS_JOBID");
        let stays = stays.display();
        // The driver's GPUs are those that gpuosd sees, with memory for one of two programs.
        format!(
            ": >{stays}\n(sleep {seconds}; rm {stays}) &\n\
             env LD_LIBRARY_PATH={} GPUOS_NVML_STATE={}/$(hostname)/state GPUOS_CUDA=memory=128M,link=0 {CLIENT}={stays} \
             CUDA_MPS_PIPE_DIRECTORY=/nonexistent {} --exact memory_turns::client --nocapture >{}.out 2>&1 || exit 3\n",
            self.cuda.display(),
            self.lab
                .gpus_dir("n1")
                .parent()
                .expect("a folder")
                .display(),
            test.display(),
            self.work.join("of-$PBS_JOBID").display(),
        )
    }

    pub fn nvml(&self, host: &str, words: &[&str]) -> String {
        let mut command = Command::new(self.lab.dir().join("bin/gpuos-nvml"));
        let state = self.lab.gpus_dir(host).join("state");
        let out = command.arg("--state").arg(state).args(words).output();
        let out = out.expect("gpuos-nvml runs");
        assert!(out.status.success(), "{out:?}");
        String::from_utf8_lossy(&out.stdout).into_owned()
    }

    /// UUIDs of all instances that the driver of a host has.
    pub fn instances(&self, host: &str) -> BTreeSet<String> {
        let text = self.nvml(host, &["instances"]);
        let uuids = text.lines().filter_map(|line| line.split(' ').nth(7));
        uuids.map(String::from).collect()
    }

    /// What a command of gpuos on a host says.
    fn said(&self, host: &str, words: &[&str]) -> Value {
        let said = self.lab.run_on(host, None, &gpuos(), words);
        serde_json::from_str(&said.unwrap_or_default()).unwrap_or_default()
    }

    /// Jobs that gpuosd of a host knows; nothing where it does not answer.
    pub fn known(&self, host: &str) -> Option<BTreeSet<String>> {
        let said = self.said(host, &["health", "--json"]);
        let jobs = said["status"]["jobs"].as_array()?.iter();
        let names = jobs.filter_map(|job| job["job"].as_str());
        Some(names.map(String::from).collect())
    }

    /// Control groups of jobs, by their paths.
    pub fn groups(&self) -> Vec<String> {
        let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
        let roots = mounts.lines().filter_map(|line| {
            let mut words = line.split(' ').skip(1);
            let at = words.next()?;
            (words.next() == Some("cgroup2")).then(|| PathBuf::from(at))
        });
        let own = format!("gpuos-lab-{}/gpuos", self.lab.record().id);
        let folders = roots.flat_map(|root| {
            let host = |host: &String| root.join(&own).join(host);
            self.hosts.iter().map(host).collect::<Vec<_>>()
        });
        let entries = folders.flat_map(|folder| fs::read_dir(folder).into_iter().flatten());
        let paths = entries.flatten().map(|entry| entry.path());
        let groups = paths.filter(|path| path.is_dir());
        groups.map(|path| path.display().to_string()).collect()
    }

    /// Whether gpuosd of each host has control groups for programs.
    pub fn confines(&self) -> bool {
        self.hosts.iter().all(|host| {
            let said = self.said(host, &["health", "--json"]);
            let devices = said["status"]["isolation"]["devices"].as_str();
            devices.is_some_and(|said| said.contains("by control groups in"))
        })
    }

    /// What jobs that are over have left behind, in words.
    pub fn left(&self) -> Vec<String> {
        let mut left = Vec::new();
        for host in &self.hosts {
            let mut add = |what: &str, of: String| left.push(format!("{what} on {host}: {of}"));
            for uuid in self.instances(host) {
                add(WHAT_LEFT[0], uuid);
            }
            let shown = self.nvml(host, &["show"]);
            let changed = shown
                .lines()
                .filter(|line| line.contains("limit") || line.contains("clocks"));
            changed.for_each(|line| add(WHAT_LEFT[1], line.into()));
            match self.known(host) {
                None => add("no answer of gpuosd", String::new()),
                Some(jobs) => jobs.into_iter().for_each(|job| add(WHAT_LEFT[2], job)),
            }
            let mut lent = self.said(host, &["mem", "show", "--json"]);
            let lent = lent["memory"].take();
            let programs = lent["programs"].as_array().map(Vec::len);
            if lent["host"]["promised"] != 0 || programs != Some(0) {
                add(WHAT_LEFT[3], lent.to_string());
            }
            // Without any it is not there.
            let mps = self.lab.run_on(host, None, "ls", &["-A", "/run/gpuos/mps"]);
            let mps = mps.unwrap_or_default();
            mps.lines().for_each(|name| add(WHAT_LEFT[4], name.into()));
        }
        left.extend(
            self.groups()
                .into_iter()
                .map(|path| format!("{}: {path}", WHAT_LEFT[5])),
        );
        left
    }

    pub fn nothing_is_left(&self) {
        self.until("nothing of any job is left", || self.left().is_empty());
        self.all_free();
    }
}
