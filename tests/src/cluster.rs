//! A lab with gpuos in it, and the questions that every test asks of it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Output;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use gpuos_lab::{Cgroup, Lab, LabError, LabSpec, Pauses, Select, Suite};
use gpuos_placement::explain::Note;
use gpuos_placement::record::{self, Recording};

use crate::complaints::{Unregistered, is_complaint, is_lost_requeued, is_own};
use crate::show::{self, Gpus, Used};
use crate::{ledger, plugins, program, skip};

/// Longest wait for anything that should happen at once.
pub const LIMIT: Duration = Duration::from_secs(240);

/// What a test wants of its cluster.
pub struct Setup {
    /// The lab; [`Setup::new`] makes one with `select/gpuos` and spank_gpuos.
    pub spec: LabSpec,
}

impl Setup {
    /// Two `pairs-8` nodes (8 GPUs in 4 NVLink pairs, 2 sockets) under `select/gpuos`, with a
    /// scheduler that looks every second.
    pub fn new(name: &str, suite: &Suite) -> Setup {
        Setup {
            spec: LabSpec {
                nodes: 2.into(),
                node_type: "pairs-8".into(),
                suite: suite.clone(),
                cgroup: Cgroup::Off,
                spank: true,
                slurm_conf_extra: vec![
                    "SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1,\
                     bf_resolution=1,bf_continue"
                        .into(),
                    "KillWait=1".into(),
                ],
                ..LabSpec::unique(name)
            },
        }
    }

    /// `nodes` nodes with eight simulated GPUs and a gpuosd each.
    pub fn simulated(name: &str, suite: &Suite, nodes: usize) -> Setup {
        let mut setup = Setup::new(name, suite);
        setup.spec.nodes = nodes.into();
        setup.spec.node_type = "dgx-h100".into();
        setup.spec.simulated_gpus = Some(plugins::daemons().to_path_buf());
        setup
    }

    /// Stock selection instead; gpuos is in no folder that Slurm searches.
    pub fn stock(mut self) -> Setup {
        self.spec.select = Select::Stock;
        self.spec.spank = false;
        self
    }

    /// Makes the lab. `None`, with the reason printed, where this machine cannot have it.
    pub fn up(mut self) -> Option<Cluster> {
        let stock = !self.spec.spank && self.spec.select == Select::Stock;
        if !stock && self.spec.select == Select::Stock {
            self.spec.select = Select::Gpuos {
                plugin_dir: plugins::built().to_path_buf(),
                own_dir: true,
            };
        }
        let what = format!("{} on {}", self.spec.name, self.spec.suite);
        match Lab::up(&self.spec, &mut |_| ()) {
            Ok(lab) => {
                eprintln!("{what}: Slurm {}", lab.version());
                let cluster = Cluster {
                    lab,
                    expects_errors: false,
                };
                // Those of another build may say it in other words.
                let daemons = cluster.lab.spec().simulated_gpus.as_deref();
                if daemons.is_some_and(|dir| dir == plugins::daemons()) {
                    cluster.hears_faults();
                }
                Some(cluster)
            }
            Err(e) if e.is_environment() => {
                skip(&what, &e.to_string());
                None
            }
            Err(e) => panic!("{what}: {e}"),
        }
    }

    /// As [`Setup::up`], and `None` too where gpuos does not know the release: that it then
    /// passes through is checked before.
    pub fn steered(self) -> Option<Cluster> {
        let cluster = self.up()?;
        let log = cluster.lab.slurmctld_log();
        if log.contains("steering cons_tres") {
            return Some(cluster);
        }
        assert!(
            log.contains("passing through to cons_tres"),
            "neither steering nor passing through:\n{}",
            cluster.report("select/gpuos")
        );
        let job = cluster.sbatch(&["--gres=gpu:2"], "true");
        cluster.wait(job, &["COMPLETED"]);
        cluster.drained();
        let line = log.lines().find(|line| line.contains("passing through"));
        skip(
            &format!("steering on Slurm {}", cluster.lab.version()),
            line.unwrap_or_default(),
        );
        None
    }
}

/// A lab that is up.
pub struct Cluster {
    /// The lab.
    pub lab: Lab,
    /// Whether errors of gpuos itself are what the test is about.
    pub expects_errors: bool,
}

impl Cluster {
    /// Waits until the gpuosd of every node would hear of a fault: NVML tells nobody of what was before.
    fn hears_faults(&self) {
        for node in self.lab.spec().node_names() {
            self.until(&format!("gpuosd of {node} hears NVML's events"), || {
                let log = self.lab.gpuosd_log(&node);
                log.contains("NVML's events are heard").then_some(())
            });
        }
    }

    /// Runs a Slurm command; its output. Panics with its error if it fails. What can be said twice is said again where
    /// slurmctld does not answer in time, as on a busy machine.
    pub fn run(&self, program: &str, args: &[&str]) -> String {
        let again = ["squeue", "sinfo", "sacct", "scancel"].contains(&program)
            || program == "scontrol" && args.contains(&"show");
        let deadline = Instant::now() + LIMIT;
        loop {
            match self.try_run(program, args) {
                Ok(text) => return text,
                Err(why) if again && why.contains("timed out") && Instant::now() < deadline => {
                    println!("{program} {} is said again: {why}", args.join(" "));
                }
                Err(why) => panic!("{program} {}: {why}{}", args.join(" "), self.report("")),
            }
        }
    }

    /// Runs a Slurm command that is ended when it takes longer than anything should.
    pub fn output(&self, program: &str, args: &[&str]) -> Result<Output, LabError> {
        self.lab.output_within(program, args, LIMIT)
    }

    /// Runs a Slurm command: its output, or what it wrote when it failed.
    pub fn try_run(&self, program: &str, args: &[&str]) -> Result<String, String> {
        let out = self.output(program, args).map_err(|e| e.to_string())?;
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        if out.status.success() {
            Ok(text)
        } else {
            Err(text + &String::from_utf8_lossy(&out.stderr))
        }
    }

    /// Submits a shell script; the job id.
    pub fn sbatch(&self, options: &[&str], script: &str) -> u32 {
        self.try_sbatch(options, script).unwrap_or_else(|text| {
            panic!("sbatch {}: {text}{}", options.join(" "), self.report(""))
        })
    }

    /// Submits a shell script; the job id, or what sbatch says.
    pub fn try_sbatch(&self, options: &[&str], script: &str) -> Result<u32, String> {
        let work = self.lab.dir().join("work");
        let out = format!("--output={}/%A.out", work.display());
        let dir = format!("--chdir={}", work.display());
        let wrap = format!("--wrap={script}");
        let mut args = vec!["--parsable", &out, &dir];
        args.extend(options);
        args.push(&wrap);
        let text = self.try_run("sbatch", &args)?;
        let id = text.trim().split(';').next().unwrap_or_default();
        id.parse().map_err(|_| format!("no job id: {text}"))
    }

    /// Submits a job that is held: its id and what sbatch says, or why there is none.
    pub fn submit_held(&self, args: &[&str]) -> Result<(u32, String), String> {
        let work = format!("--chdir={}", self.lab.dir().join("work").display());
        let all = [&["--parsable", "-H", &work], args, &["--wrap=true"]].concat();
        let out = self.output("sbatch", &all).expect("sbatch runs");
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        let id = String::from_utf8_lossy(&out.stdout).trim().parse();
        id.map(|id| (id, said.clone())).map_err(|_| said)
    }

    /// Submits a job that sleeps, and waits until it runs.
    pub fn start(&self, options: &[&str]) -> u32 {
        let job = self.sbatch(options, "sleep 3600");
        self.wait(job, &["RUNNING"]);
        job
    }

    /// Waits until a job is in one of these states.
    pub fn wait(&self, job: u32, states: &[&str]) -> String {
        match self.lab.wait_job(job, states, LIMIT) {
            Ok(state) => state,
            Err(e) => panic!("{e}{}", self.report("")),
        }
    }

    /// Waits until `done` gives a value.
    pub fn until<T>(&self, what: &str, mut done: impl FnMut() -> Option<T>) -> T {
        let (pauses, deadline) = (Pauses::new(), Instant::now() + LIMIT);
        loop {
            if let Some(value) = done() {
                return value;
            }
            assert!(
                Instant::now() < deadline,
                "waited in vain: {what}{}",
                self.report("")
            );
            pauses.pause();
        }
    }

    /// Waits until the slurmd of each node has registered with the slurmctld that runs: jobs may start before.
    pub fn registered(&self) {
        self.until("the nodes have registered", || {
            let nodes = self.run("scontrol", &["-o", "show", "node"]);
            (!nodes.contains("SlurmdStartTime=None")).then_some(())
        });
    }

    /// Waits until all nodes can run jobs.
    pub fn ready(&self) {
        if let Err(e) = self.lab.wait_ready(LIMIT) {
            panic!("{e}");
        }
    }

    /// Has slurmctld save its state, and waits until what is saved has all that was before. `job` is one that runs or waits.
    pub fn save(&self, job: u32) {
        let asked = SystemTime::now();
        // A save after a change; a start by the backfill scheduler alone sets off none.
        let mark = format!("saved-{}", ledger::now());
        self.update(&[&format!("JobId={job}"), &format!("Comment={mark}")]);
        let file = self.lab.dir().join("state/job_state");
        self.until("slurmctld has saved its jobs", || {
            let bytes = std::fs::read(&file).ok()?;
            let mut parts = bytes.windows(mark.len());
            parts.any(|part| part == mark.as_bytes()).then_some(())
        });
        // Nodes come after jobs, where anything of them has changed.
        let deadline = Instant::now() + Duration::from_secs(10);
        while !self.lab.has_saved("node_state", asked) && Instant::now() < deadline {
            sleep(Duration::from_millis(50));
        }
    }

    /// Kills slurmctld and starts it again, with its state saved before: what slurmctld had
    /// not saved is lost under any select plugin. `job` is one that runs or waits.
    pub fn crash(&self, job: u32) {
        self.crash_only(job);
        self.ready();
    }

    /// The same, without waiting for the nodes.
    pub fn crash_only(&self, job: u32) {
        self.save(job);
        self.restart_only(9);
        self.open_nodes(&["State=UNDRAIN"]);
    }

    /// Asks slurmctld for these states of all nodes, in turn, after a crash: nodes are saved at other times than jobs, so
    /// that a drain that was taken back just before is there again. A node that the state does not suit stays as it is.
    pub fn open_nodes(&self, states: &[&str]) {
        for node in self.lab.spec().node_names() {
            let name = format!("NodeName={node}");
            for state in states {
                let _ = self.try_run("scontrol", &["update", &name, state]);
            }
        }
    }

    /// Kills the slurmd of a node with `kill -9`. Its jobs run on.
    pub fn kill_slurmd(&self, node: &str) {
        // Without mercy: in order it would wait for steps that it is just starting or ending. The pid of one
        // that a reconfigure has just put in place of the old one is not known at once.
        let pid = self.until("the slurmd runs", || self.lab.slurmd_pid(node));
        self.run("sh", &["-c", &format!("kill -9 {pid}")]);
        self.until("the slurmd is gone", || {
            self.lab.slurmd_pid(node).is_none().then_some(())
        });
    }

    /// `scontrol update`, once more where slurmctld does not answer in time.
    pub fn update(&self, args: &[&str]) {
        let args = [&["update"], args].concat();
        self.until(&args.join(" "), || match self.try_run("scontrol", &args) {
            Err(why) if why.contains("timed out") => None,
            Err(why) => panic!("{why}{}", self.report("")),
            Ok(_) => Some(()),
        });
    }

    /// Sets the state of a node.
    pub fn set_node(&self, node: &str, state: &str) {
        let (node, state) = (format!("NodeName={node}"), format!("State={state}"));
        self.update(&[&node, &state, "Reason=test"]);
    }

    /// What a job has written that `run` submits and sees end, once gpuosd has answered its steps in time: on a busy machine it
    /// may not, and the job goes on without.
    pub fn answered(&self, run: impl Fn() -> String) -> String {
        let mut tries = (1..=8).map(|time| (time, run()));
        let in_time = tries.find_map(|(time, text)| {
            let late = text.contains("gpuosd has not answered within");
            if late {
                println!("gpuosd was late, {time} of at most 8 times: {text}");
            }
            (!late).then_some(text)
        });
        in_time.unwrap_or_else(|| panic!("eight times gpuosd was late{}", self.report("gpuos")))
    }

    /// Writes an executable script of `sh` into the folder that jobs run in; its path.
    pub fn script(&self, name: &str, lines: &str) -> String {
        let file = self.lab.dir().join("work").join(name);
        program(&file, &format!("#!/bin/sh\n{lines}\n"));
        file.to_string_lossy().into_owned()
    }

    /// Ends slurmctld in order and starts it again.
    pub fn restart_slurmctld(&self) {
        self.restart_only(15);
        self.ready();
    }

    /// Ends slurmctld with a signal and starts it again, without waiting for the nodes.
    pub fn restart_only(&self, signal: i32) {
        self.end_slurmctld(signal);
        self.lab.start_slurmctld().expect("starts");
    }

    /// Where select/gpuos records its decisions.
    pub fn ring(&self) -> PathBuf {
        record::path(&self.lab.dir().join("etc").to_string_lossy()).into()
    }

    /// The decisions that are recorded.
    pub fn recording(&self) -> Recording {
        let bytes = std::fs::read(self.ring()).expect("slurmctld makes it at its start");
        record::read(&bytes).expect("a recording")
    }

    /// Waits for its pid too: that of a 26.05 which a reconfigure has just put in place of the old one is
    /// not known at once.
    fn end_slurmctld(&self, signal: i32) {
        self.until("slurmctld runs and ends", || {
            let ended = self.lab.kill_slurmctld(signal).expect("ends");
            ended.then_some(())
        });
    }

    /// `scontrol show job -d` of this job alone, also of the first of an array or het job.
    pub fn show(&self, job: u32) -> String {
        let text = self.run("scontrol", &["-d", "show", "job", &job.to_string()]);
        let own = format!("JobId={job} ");
        let block = text
            .split("\n\n")
            .find(|block| block.trim().starts_with(&own));
        block.unwrap_or_default().to_string()
    }

    /// The GPUs that Slurm gave a job.
    pub fn gpus(&self, job: u32) -> Gpus {
        show::job_gpus(&self.show(job))
    }

    /// The note that gpuos left in a job's record.
    pub fn note(&self, job: u32) -> Option<Note> {
        Note::parse(show::long_field(&self.show(job), "SystemComment")?)
    }

    /// The GPUs of a job, which the note must name too.
    pub fn planned(&self, job: u32) -> Gpus {
        let text = self.show(job);
        let gpus = show::job_gpus(&text);
        let note = show::long_field(&text, "SystemComment").and_then(Note::parse);
        let Some(note) = note else {
            panic!("job {job} has no note:\n{text}{}", self.report("gpuos"));
        };
        if note.more_nodes == 0 {
            let named: Gpus = note
                .gpus
                .iter()
                .map(|one| (one.node.clone(), one.gpus.iter().collect()))
                .collect();
            assert_eq!(named, gpus, "note and allocation of job {job}:\n{text}");
        }
        gpus
    }

    /// Ends jobs and waits until they are gone.
    pub fn cancel(&self, jobs: &[u32]) {
        for job in jobs {
            self.run("scancel", &[&job.to_string()]);
        }
        for job in jobs {
            let id = job.to_string();
            self.until(&format!("job {job} has ended"), || {
                let text = self.try_run("squeue", &["-h", "-j", &id, "-o", "%T"]);
                text.map_or(true, |text| text.trim().is_empty())
                    .then_some(())
            });
        }
    }

    /// What is in use on each node.
    pub fn used(&self) -> BTreeMap<String, Used> {
        show::nodes_used(&self.run("scontrol", &["-d", "-o", "show", "node"]))
    }

    /// Ends all jobs; then nothing may be in use, and Slurm may not have complained of any count.
    pub fn drained(&self) {
        let _ = self.try_run("scancel", &["-u", "root"]);
        self.until("all jobs have ended", || {
            let text = self.run("squeue", &["-h", "-o", "%i"]);
            text.trim().is_empty().then_some(())
        });
        // CPUs of a node are given back a moment after its last job has gone.
        let all_free = || self.used().values().all(|used| *used == Used::default());
        let freed = |most: Duration| {
            let deadline = Instant::now() + most;
            while !all_free() && Instant::now() < deadline {
                sleep(Duration::from_millis(100));
            }
            all_free()
        };
        let loses = self.loses_releases() || self.lost_a_requeued_job();
        let most = if loses {
            Duration::from_secs(20)
        } else {
            LIMIT
        };
        if !freed(most) && loses {
            println!("stock 22.05 lost GPUs after a restart or a requeue: counting anew");
            self.lab.reconfigure().expect("reconfigures");
            freed(LIMIT);
        }
        for (node, used) in self.used() {
            if used != Used::default() {
                // The lab goes with this test; its log is what says how it came to this.
                let kept = std::env::temp_dir().join(format!("{}.slurmctld.log", self.lab.name()));
                let _ = std::fs::write(&kept, self.lab.slurmctld_log());
                panic!(
                    "{node} after all jobs: {used:?}; slurmctld's log is kept as {}{}",
                    kept.display(),
                    self.report("")
                );
            }
        }
        self.no_complaints();
    }

    /// Stock 22.05 starts jobs on nodes that have not registered since slurmctld was restarted, and then
    /// miscounts their GPUs (`tests/restart.rs` shows how); a reconfigure counts anew. With gpuos, and in
    /// later releases, the counts have to be right all the time.
    fn loses_releases(&self) -> bool {
        let stock = self.lab.spec().select == Select::Stock;
        stock && self.restarted_22_05()
    }

    /// 22.05 never gives back the GPUs of a job that was requeued from a node that was set down before it
    /// had ended there (`tests/restart.rs`); at the end of the job it says so.
    fn lost_a_requeued_job(&self) -> bool {
        let log = self.lab.slurmctld_log();
        self.lab.version().starts_with("22.05") && log.lines().any(is_lost_requeued)
    }

    /// Whether the lab has a Slurm older than this, for example `[24, 11, 6]`.
    pub fn is_before(&self, release: [u32; 3]) -> bool {
        let parts = self.lab.version().split('.');
        let mut numbers = parts.map_while(|part| part.parse().ok());
        std::array::from_fn(|_| numbers.next().unwrap_or(u32::MAX)) < release
    }

    /// Whether stock Slurm starts GPU jobs on nodes that have not registered since slurmctld was started, without
    /// GPUs: 22.05, and 23.11.0 to 24.11.0 (`tests/restart.rs`).
    pub fn starts_before_registration(&self) -> bool {
        self.is_before([23, 2, 0]) || !self.is_before([23, 11, 0]) && self.is_before([24, 11, 1])
    }

    fn restarted_22_05(&self) -> bool {
        let log = self.lab.slurmctld_log();
        self.lab.version().starts_with("22.05") && log.matches("started on cluster").count() > 1
    }

    /// Slurm's log may not complain of GPUs or counts, nor gpuos of itself.
    pub fn no_complaints(&self) {
        let log = self.lab.slurmctld_log();
        // The ledger of a soak says whether a GPU was really given twice.
        let miscounts = self.loses_releases();
        // Of jobs that ran over the restart 22.05 knows how many GPUs they have, but not of which type,
        // until their nodes have registered: stock or not.
        let types_lost = self.restarted_22_05();
        let requeues = self.lost_a_requeued_job();
        // Of a number in a job's own record, nothing of what nodes have (`tests/epilog.rs` shows it).
        let epilogs = self.is_before([24, 11, 6]);
        let mut unregistered = Unregistered::new(self.lab.spec().node_names());
        let mut known = |line: &str| {
            unregistered.explains(line)
                || requeues && is_lost_requeued(line)
                || epilogs && line.contains("error: job_update_tres_cnt: cpu_cnt underflow (")
                || miscounts
                    && (line.contains("underflow") || line.contains("overallocated resources"))
                || types_lost && line.contains(" type ") && line.contains("gres count underflow")
        };
        let bad: Vec<&str> = log
            .lines()
            .filter(|line| !known(line))
            .filter(|line| is_complaint(line) || (is_own(line) && !self.expects_errors))
            .collect();
        if let Some(last) = bad.last() {
            let all: Vec<&str> = log.lines().collect();
            let at = all.iter().rposition(|line| line == last).unwrap_or(0);
            let before = all[at.saturating_sub(60)..=at].join("\n");
            panic!(
                "slurmctld complains:\n{}\nand before:\n{before}",
                bad.join("\n")
            );
        }
    }

    /// Where gpuos passes through: the line that says so.
    pub fn passes_through(&self) -> Option<String> {
        let log = self.lab.slurmctld_log();
        let line = log
            .lines()
            .rev()
            .find(|line| line.contains("passing through") || line.contains("steering cons_tres"))?;
        line.contains("passing through").then(|| line.to_string())
    }

    /// For a failed assertion: the queue, the nodes, and slurmctld's last lines, of those with
    /// `part` in them.
    pub fn report(&self, part: &str) -> String {
        let mut text = String::new();
        for (program, args) in [("squeue", vec!["-l"]), ("sinfo", vec!["-N", "-l"])] {
            let out = self.try_run(program, &args).unwrap_or_else(|e| e);
            let _ = write!(text, "\n{program}:\n{out}");
        }
        let log = self.lab.slurmctld_log();
        let lines: Vec<&str> = log.lines().filter(|line| line.contains(part)).collect();
        let last = &lines[lines.len().saturating_sub(40)..];
        let _ = write!(text, "\nslurmctld.log:\n{}\n", last.join("\n"));
        for node in self.lab.spec().node_names() {
            let log = self.lab.gpuosd_log(&node);
            let lines: Vec<&str> = log.lines().collect();
            let last = &lines[lines.len().saturating_sub(30)..];
            if !last.is_empty() {
                let _ = write!(text, "\ngpuosd of {node}:\n{}\n", last.join("\n"));
            }
        }
        text
    }
}
