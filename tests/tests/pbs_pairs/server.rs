//! A PBS as a test sees it: commands, cycles of its scheduler, jobs, and what is assigned.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use gpuos_lab::pbs::PbsLab;
use serde_json::Value;

use super::look::{Look, text};
use super::shell::Shell;
use super::site::Site;

/// How long jobs may take to start or end, and the scheduler to have looked at all of them.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Between two looks at what a daemon does on its own.
const PAUSE: Duration = Duration::from_millis(40);

/// What a scheduler writes at the end of a cycle.
const CYCLE: &[u8] = b"Leaving Scheduling Cycle";

/// A PBS whose scheduler does nothing unless it is told to.
pub struct Server {
    pub lab: PbsLab,
    /// A folder that all its hosts and users have.
    pub work: PathBuf,
    log: PathBuf,
    log_at: u64,
    /// GPUs that the site counts on each host.
    gpus: BTreeMap<String, u64>,
    /// A shell of each user, by name.
    shells: BTreeMap<String, Shell>,
}

/// What the program of a job was told of its GPUs, once it runs.
fn told(work: &Path, job: &str) -> Option<String> {
    let text = fs::read_to_string(work.join(format!("began.{job}"))).ok()?;
    text.ends_with('\n').then(|| text.trim().to_owned())
}

impl Server {
    /// That of a lab which is ready.
    pub fn new(lab: PbsLab, site: &Site) -> Server {
        let mut server = Server {
            work: lab.dir().join("work"),
            lab,
            log: PathBuf::new(),
            log_at: 0,
            gpus: site
                .hosts
                .iter()
                .map(|host| (host.name.clone(), host.ngpus))
                .collect(),
            shells: BTreeMap::new(),
        };
        let stopped = server.sh("root", "qmgr -c 'set server scheduling = False'");
        stopped.expect("the scheduler stops");
        server.ended_cycles();
        server
    }

    /// What a command writes.
    pub fn sh(&mut self, user: &str, line: &str) -> Result<String, String> {
        let lab = &self.lab;
        let shell = self.shells.entry(user.to_owned());
        shell.or_insert_with(|| Shell::start(lab, user)).run(line)
    }

    /// How many cycles have ended since the last call.
    fn ended_cycles(&mut self) -> usize {
        let logs = fs::read_dir(self.lab.home("head").join("sched_logs"));
        let newest = logs.expect("logs").flatten().map(|log| log.path()).max();
        let newest = newest.expect("the scheduler has written something");
        if newest != self.log {
            (self.log, self.log_at) = (newest, 0);
        }
        let mut file = fs::File::open(&self.log).expect("a log");
        let mut text = Vec::new();
        file.seek(SeekFrom::Start(self.log_at)).expect("a place");
        file.read_to_end(&mut text).expect("read");
        // A line that is not whole is read again.
        let whole = text
            .iter()
            .rposition(|b| *b == b'\n')
            .map_or(0, |at| at + 1);
        self.log_at += whole as u64;
        let ends = text[..whole].windows(CYCLE.len());
        ends.filter(|window| *window == CYCLE).count()
    }

    /// One cycle of the scheduler.
    pub fn cycle(&mut self) {
        self.ended_cycles();
        let told = self.sh("root", "qmgr -c 'set server scheduling = True'");
        told.expect("the scheduler starts");
        let deadline = Instant::now() + LIMIT;
        while self.ended_cycles() == 0 {
            assert!(Instant::now() < deadline, "no cycle of the scheduler");
            sleep(Duration::from_millis(10));
        }
        let stopped = self.sh("root", "qmgr -c 'set server scheduling = False'");
        stopped.expect("the scheduler stops");
    }

    pub fn jobs(&mut self) -> BTreeMap<String, Value> {
        let said = self.sh("root", "qstat -t -x -f -F json");
        let said = said.expect("qstat answers");
        let mut all: Value =
            serde_json::from_str(&said).unwrap_or_else(|e| panic!("no JSON: {e}\n{said}"));
        let jobs = match all["Jobs"].take() {
            Value::Object(jobs) => jobs,
            _ => serde_json::Map::new(),
        };
        jobs.into_iter().collect()
    }

    /// What there is, once every job that was started has a program, or is back where it was.
    pub fn look(&mut self, names: &BTreeMap<String, String>) -> Look {
        let deadline = Instant::now() + LIMIT;
        let work = self.work.clone();
        let is_settled = |(id, job): (&String, &Value)| match &text(&job["job_state"])[..] {
            "R" => told(&work, id).is_some() || job["substate"].as_u64() >= Some(42),
            "E" => false,
            _ => true,
        };
        let mut jobs = self.jobs();
        while !jobs.iter().all(is_settled) && Instant::now() < deadline {
            sleep(PAUSE);
            jobs = self.jobs();
        }
        for (_, job) in jobs.iter_mut().filter(|(id, job)| !is_settled((id, job))) {
            let state = format!("{} and goes nowhere", text(&job["job_state"]));
            job["job_state"] = Value::from(state);
        }
        let mut look = Look::of_jobs(&jobs, names);
        if names.keys().any(|name| name.starts_with('R')) {
            // It fails where there are none.
            let said = self.sh("root", "pbs_rstat -f").unwrap_or_default();
            look.add_reservations(&said, names);
        }
        for (id, first) in &look.first_host {
            let told = told(&self.work, id).unwrap_or_else(|| "unset".into());
            // `qrun -H` starts a job also where PBS counts no GPUs, and there is nothing to be told of.
            let gpus = first.gpus.min(self.gpus[&first.name]);
            look.told.insert(id.clone(), (gpus, told));
        }
        look
    }

    pub fn until(&mut self, limit: Duration, there: impl Fn(&mut Server) -> bool) -> bool {
        let deadline = Instant::now() + limit;
        let mut is = there(self);
        while !is && Instant::now() < deadline {
            sleep(PAUSE);
            is = there(self);
        }
        is
    }

    /// Whether the mom of each job that runs has said so.
    pub fn all_have_begun(&mut self) -> bool {
        let begins = |job: &Value| job["job_state"] == "R" && job["substate"] == 41;
        !self.jobs().values().any(begins)
    }

    /// What is assigned on each host.
    pub fn assigned(&mut self) -> BTreeMap<String, String> {
        let said = self.sh("root", "pbsnodes -av -F json").unwrap_or_default();
        let all: Value = serde_json::from_str(&said).unwrap_or_default();
        let mut sums: BTreeMap<String, [u64; 2]> = BTreeMap::new();
        for (vnode, said) in all["nodes"].as_object().into_iter().flatten() {
            let host = vnode.split('[').next().unwrap_or_default();
            let sum = sums.entry(host.to_owned()).or_default();
            for (at, name) in ["ncpus", "ngpus"].into_iter().enumerate() {
                sum[at] += text(&said["resources_assigned"][name]).parse().unwrap_or(0);
            }
        }
        let word = |[ncpus, ngpus]: [u64; 2]| format!("{ncpus} CPUs, {ngpus} GPUs");
        let sums = sums.into_iter().map(|(host, sum)| (host, word(sum)));
        sums.collect()
    }
}
