//! A lab with jobs of a user who is to be left alone, and two users who would not leave her alone.

mod daemons;

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gpuos_core::health::ExtraPart;
use gpuos_core::wire::{Reply, Request, Status};
use gpuos_host::socket::{Client, NAME};
use gpuos_lab::{Cgroup, Suite};
use gpuos_tests::{Cluster, MPS_CONTROL, plugins, port, program, slices};

use super::checkpoints::VICTIM;
use super::driver::{MEMORY, NODE_TYPE};
use crate::attacker::{MARK, ROLE, WORDS};
use crate::users::{ALICE, EVE, MALLORY, User};

/// The GPU of each node that is divided.
pub const DIVIDED: u64 = 1 << 7;
/// Nodes; n4 hears a stand-in for the kernel's log, and n5 has GPUs for all the forged jobs.
pub const NODES: [&str; 5] = ["n1", "n2", "n3", "n4", "n5"];

/// A longer wait than anything takes that happens at all.
const LIMIT: Duration = Duration::from_secs(400);
/// Whether Slurm holds a job that says nothing is asked after this time.
const SOON: Duration = Duration::from_secs(10);

/// All that a site can switch on that does something to processes and nodes.
const TOML: &str = "\
[isolation]
foreign = \"kill\"
grace = \"2s\"
[heartbeat]
act = \"down\"
[[health.rule]]
name = \"hang\"
hold = \"4s\"
[metrics]
";

/// Where nodes of the stage park memory on a disk.
pub fn parked() -> PathBuf {
    format!("/run/gpuos-hostile-parked-{}", std::process::id()).into()
}

/// Jobs that are to run on as if nobody else were there.
#[derive(Clone, Copy, Debug, Default)]
pub struct Victims {
    /// One GPU of n1.
    pub plain: u32,
    /// A power cap on one GPU of n1.
    pub capped: u32,
    /// Half of a divided GPU of n1.
    pub slices: u32,
    /// MPS on one GPU of n2.
    pub mps: u32,
    /// One GPU each of n2 and n3, which ping each other.
    pub wide: u32,
    /// Root's, with one GPU of n3.
    pub root: u32,
    /// One GPU of n4.
    pub logged: u32,
    /// Checkpoints each second, on n4 and n5.
    pub saved: u32,
}

impl Victims {
    /// All of them.
    pub fn all(&self) -> [u32; 8] {
        [
            self.plain,
            self.capped,
            self.slices,
            self.mps,
            self.wide,
            self.root,
            self.logged,
            self.saved,
        ]
    }
}

/// The lab.
pub struct Stage {
    /// Its Slurm.
    pub cluster: Cluster,
    /// Where the gpuosd that has the port answers to a Prometheus.
    pub metrics: String,
    /// The jobs to be left alone, once they run.
    pub victims: Victims,
    /// Jobs of the first attacker with a slice of n1 each, once they run.
    pub sliced: Vec<u32>,
    /// Whether the nodes of the victim's wide job hear each other, once somebody has looked.
    pub hears: RefCell<Option<Result<(), String>>>,
    /// What is still to come into the stand-in for the kernel's log, and when the last record came.
    log: Arc<Mutex<(VecDeque<String>, Instant)>>,
    /// Forged jobs that gpuosd has to do something about, each with the job that its text names.
    pub forged: RefCell<Vec<(u32, u32)>>,
    /// Attackers' processes: each ends with the stage.
    helpers: RefCell<Vec<Child>>,
    /// What commands showed that several judges ask for.
    shown: RefCell<BTreeMap<String, String>>,
}

impl Drop for Stage {
    fn drop(&mut self) {
        for mut child in self.helpers.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = fs::remove_dir_all(parked());
    }
}

impl Stage {
    /// Makes it. `None` where this machine cannot.
    pub fn up(suite: &Suite) -> Option<Stage> {
        // Built before the lab is there: it may take a while.
        let programs = plugins::programs();
        // Not one that an outgoing connection may get meanwhile.
        let metrics = format!("127.0.0.1:{}", port::port());
        let mut setup = slices::pool("hostile", suite, NODES.len(), DIVIDED);
        setup.spec.cgroup = Cgroup::Auto;
        // Turns of a second, and moves that are taken to take no time.
        setup.spec.shards = 4;
        setup.spec.memory_turn = 1;
        setup.spec.movers = Some(plugins::daemons().to_path_buf());
        let parking = parked().display().to_string();
        setup.spec.gpuos_toml = Some(format!(
            "{TOML}listen = \"{metrics}\"\n[memory]\n{MEMORY}nvme = \"{parking}\"\n{NODE_TYPE}"
        ));
        // Of jobs users see their own.
        setup.spec.slurm_conf_extra.push("PrivateData=jobs".into());
        let walled = "PartitionName=walled Nodes=ALL State=UP";
        setup.spec.slurm_conf_extra.push(walled.into());
        let cluster = setup.steered()?;
        let stage = Stage {
            cluster,
            metrics,
            victims: Victims::default(),
            sliced: Vec::new(),
            hears: RefCell::default(),
            forged: RefCell::default(),
            log: Arc::new(Mutex::new((VecDeque::new(), Instant::now()))),
            helpers: RefCell::default(),
            shown: RefCell::default(),
        };
        let bin = stage.path("bin");
        program(&bin.join("nvidia-cuda-mps-control"), MPS_CONTROL);
        let own = std::env::current_exe().expect("this program");
        for (from, name) in [(own, "attacker"), (programs.join("gpuos"), "gpuos")] {
            // Another process copies, as in gpuos_lab: what has just been written by a program with threads cannot be run.
            let copied = Command::new("install")
                .arg(from)
                .arg(bin.join(name))
                .status();
            assert!(
                copied.is_ok_and(|status| status.success()),
                "{name} is copied"
            );
        }
        Some(stage)
    }

    /// Starts the jobs that are to be left alone.
    pub fn start_victims(&mut self) {
        let one = "--gres=gpu:1";
        let ask = |options: &[&str], script: &str| {
            let options = [&["-J", "victim", "--requeue"], options].concat();
            self.sbatch(ALICE, &options, script)
                .expect("it is a job like any other")
        };
        let sleep = "sleep 7200";
        self.victims = Victims {
            plain: ask(&["-w", "n1", one], sleep),
            capped: ask(&["-w", "n1", one, "--gpuos-power=300W"], sleep),
            slices: ask(&["-w", "n1", "--gpuos-mig=3g.40gb"], sleep),
            mps: ask(&["-w", "n2", one, "--gpuos-mps=on"], sleep),
            wide: ask(&["-N2", "-w", "n[2-3]", one], "srun sleep 7200"),
            logged: ask(&["-w", "n4", one], sleep),
            saved: ask(
                &["-N2", "-w", "n[4-5]", "--gpuos-checkpoint=1s,l2=partner"],
                VICTIM,
            ),
            root: self.cluster.sbatch(&["--requeue", "-w", "n3", one], sleep),
        };
        for job in self.victims.all() {
            self.cluster.wait(job, &["RUNNING"]);
        }
        self.until("the victim's slices", || {
            (!self.slices().is_empty()).then_some(())
        });
        // The heartbeat between its nodes begins once gpuosd has asked Slurm for the job.
        let folder = self.runtime("n2").join(format!("mps/{}", self.victims.mps));
        self.until("the victim's MPS", || folder.exists().then_some(()));
        // What is compared later has to be there: a step may go on before gpuosd has come to it.
        self.until("the victim's power cap", || {
            let shown = slices::nvml(&self.cluster, "n1", &["show"]);
            shown.contains("limit 300 W").then_some(())
        });
        let (pid, begun) = (folder.join("pipe/pid"), Instant::now());
        self.until("the victim's MPS daemon, or none comes", || {
            let text = fs::read_to_string(&pid).unwrap_or_default();
            (text.ends_with('\n') || begun.elapsed() > Duration::from_secs(60)).then_some(())
        });
    }

    /// Starts jobs of the first attacker with a slice each, which job_submit/gpuos gives them.
    pub fn start_sliced(&mut self) {
        let options = ["-J", "sliced", "-w", "n1", "--gpuos-mig=1g.10gb"];
        let ask = || {
            self.sbatch(MALLORY, &options, "sleep 7200")
                .expect("a job like any other")
        };
        self.sliced = vec![ask(), ask()];
        for job in &self.sliced {
            self.cluster.wait(*job, &["RUNNING"]);
        }
    }

    /// A path below the lab's folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.cluster.lab.dir().join(name)
    }

    /// Where jobs write.
    pub fn work(&self, name: &str) -> PathBuf {
        self.path("work").join(name)
    }

    /// The folder with the socket of a node's gpuosd.
    pub fn runtime(&self, node: &str) -> PathBuf {
        self.cluster.lab.gpuosd_runtime_dir(node)
    }

    /// That socket.
    pub fn socket(&self, node: &str) -> PathBuf {
        self.runtime(node).join(NAME)
    }

    /// The MIG instances of n1 that lie in slices of the victim, by UUID.
    pub fn slices(&self) -> Vec<String> {
        let bits = slices::bits(&self.cluster, self.victims.slices);
        let bits = bits.get("n1").cloned().unwrap_or_default();
        let all = slices::instances(&self.cluster, "n1");
        let own = all
            .into_iter()
            .filter(|one| one.slices.iter().all(|slice| bits.contains(slice)));
        own.filter_map(|one| one.uuid).collect()
    }

    /// Waits for what has to come.
    pub fn until<T>(&self, what: &str, mut done: impl FnMut() -> Option<T>) -> T {
        match self.try_until(&mut done) {
            Some(value) => value,
            None => panic!("waited in vain: {what}{}", self.cluster.report("")),
        }
    }

    /// Waits for what has to come where all is well; `None`: it did not.
    pub fn try_until<T>(&self, mut done: impl FnMut() -> Option<T>) -> Option<T> {
        let deadline = Instant::now() + LIMIT;
        loop {
            if let Some(value) = done() {
                return Some(value);
            }
            if Instant::now() > deadline {
                return None;
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// A command of Slurm's by a user.
    pub fn command(&self, user: User, name: &str) -> Command {
        let mut command = self.cluster.lab.command("setpriv").expect("the lab is up");
        let [uid, gid] = ["reuid", "regid"].map(|what| format!("--{what}={}", user.uid));
        command.args([&uid, &gid, "--clear-groups", "--"]);
        command.args(["timeout", "-k", "5", "240", name]);
        command.env("ATTACKER", self.path("bin/attacker"));
        command.current_dir(self.path("work")).stdin(Stdio::null());
        command
    }

    /// What a command wrote to standard output, or all that it wrote where it failed.
    pub fn said(&self, command: &mut Command) -> Result<String, String> {
        let out = command.output().map_err(|e| e.to_string())?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match out.status.success() {
            true => Ok(text(&out.stdout)),
            false => Err(text(&out.stdout) + &text(&out.stderr)),
        }
    }

    /// sbatch by a user; the job.
    pub fn sbatch(&self, user: User, options: &[&str], script: &str) -> Result<u32, String> {
        self.sbatch_with(self.command(user, "sbatch"), options, script)
    }

    /// The same, by a command that has more in its environment.
    pub fn sbatch_with(
        &self,
        mut command: Command,
        options: &[&str],
        script: &str,
    ) -> Result<u32, String> {
        let work = self.path("work");
        command
            .arg("--parsable")
            .arg(format!("--output={}/%A.out", work.display()))
            .arg(format!("--chdir={}", work.display()));
        if options.iter().all(|option| !option.starts_with('/')) {
            let wrap = format!("--wrap={script}");
            let text = self.said(command.args(options).arg(wrap))?;
            return number(&text);
        }
        // A script by its path, and its arguments.
        number(&self.said(command.args(options))?)
    }

    /// `scontrol update` by a user.
    pub fn update(&self, user: User, job: u32, fields: &[&str]) -> Result<String, String> {
        let mut command = self.command(user, "scontrol");
        self.said(
            command
                .args(["update", &format!("JobId={job}")])
                .args(fields),
        )
    }

    /// What a job has written so far.
    pub fn output(&self, job: u32) -> String {
        fs::read_to_string(self.work(&format!("{job}.out"))).unwrap_or_default()
    }

    /// Waits for a line of a job's output that starts so, and gives the rest of it.
    pub fn told(&self, job: u32, start: &str) -> Result<String, String> {
        let reason = || {
            let args = ["-h", "-j", &job.to_string(), "-o", "%r"];
            self.cluster.try_run("squeue", &args)
        };
        let begun = Instant::now();
        let found = self.try_until(|| {
            let text = self.output(job);
            let found = text.lines().find_map(|line| line.strip_prefix(start));
            // One that Slurm holds says nothing more.
            let is_held =
                || begun.elapsed() > SOON && reason().is_ok_and(|it| it.contains("requeued held"));
            let found = found.map(|rest| Some(rest.to_owned()));
            found.or_else(|| is_held().then_some(None))
        });
        found.flatten().ok_or_else(|| {
            let (state, said) = (self.jobs(&[job]), self.output(job));
            format!("job {job} says no {start}: {state:?} {:?} {said}", reason())
        })
    }

    /// State and restarts of jobs, by number. Their names, which users write, are not asked for.
    pub fn jobs(&self, jobs: &[u32]) -> BTreeMap<u32, (String, u32)> {
        let list: Vec<String> = jobs.iter().map(u32::to_string).collect();
        let format = "JobID:12,State:20,RestartCnt:12";
        let args = ["-h", "-t", "all", "-j", &list.join(","), "-O", format];
        let text = self.cluster.run("squeue", &args);
        let read = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [job, state, restarts] = words[..] else {
                return None;
            };
            Some((
                job.parse().ok()?,
                (state.to_owned(), restarts.parse().ok()?),
            ))
        };
        text.lines().filter_map(read).collect()
    }

    /// Whether gpuosd has done something about a job that hangs: it was requeued or ended, or an audit log says why not.
    pub fn is_acted_on(&self, job: u32) -> bool {
        let of_job = [format!("\"job\":{job},"), format!("job {job} ")];
        let told = |node| {
            of_job
                .iter()
                .any(|of_job| self.audit(node).contains(of_job))
        };
        self.is_touched(job) || NODES.into_iter().any(told)
    }

    /// Whether a job was requeued or has ended: it was left alone while it waits or runs for the first time.
    pub fn is_touched(&self, job: u32) -> bool {
        let now = self.jobs(&[job]);
        now.get(&job).is_none_or(|(state, restarts)| {
            *restarts > 0 || !["PENDING", "CONFIGURING", "RUNNING"].contains(&&**state)
        })
    }

    /// `Ok` where jobs run, and have not been requeued.
    pub fn run_on(&self, jobs: &[u32]) -> Result<(), String> {
        let now = self.jobs(jobs);
        let well = |job: &&u32| now.get(job) == Some(&("RUNNING".to_owned(), 0));
        match jobs.iter().find(|job| !well(job)) {
            None => Ok(()),
            Some(job) => Err(match now.get(job) {
                Some((state, restarts)) => {
                    format!("job {job} is {state}, requeued {restarts} times")
                }
                None => format!("job {job} is gone"),
            }),
        }
    }

    /// The same of one that may still wait to start.
    pub fn come_to_run(&self, job: u32) -> Result<(), String> {
        self.try_until(|| (self.is_touched(job) || self.run_on(&[job]).is_ok()).then_some(()));
        self.run_on(&[job])
    }

    /// Root's question to the gpuosd of a node.
    pub fn ask(&self, node: &str, request: &Request) -> Result<Reply, String> {
        let client = Client::connect(&self.socket(node), LIMIT);
        let mut client = client.map_err(|e| format!("{node}: {e}"))?;
        client.ask(request).map_err(|e| format!("{node}: {e}"))
    }

    /// What a node's gpuosd has told slurmctld of GPUs that are not as they should be; empty where all are.
    pub fn unwell(&self, node: &str) -> Result<String, String> {
        let (part, _) = ExtraPart::read(&self.status(node)?.published);
        let gpus = ExtraPart {
            held: Default::default(),
            short: false,
            ..part
        };
        Ok(gpus.to_string())
    }

    /// How a node is, as root is told.
    pub fn status(&self, node: &str) -> Result<Status, String> {
        match self.ask(node, &Request::Status)? {
            Reply::Status { status } => Ok(*status),
            other => Err(format!("{node}: {other:?}")),
        }
    }

    /// The audit log of a node.
    pub fn audit(&self, node: &str) -> String {
        let file = self.cluster.lab.gpuosd_state_dir(node).join("audit.jsonl");
        fs::read_to_string(file).unwrap_or_default()
    }

    /// A process of a user that plays a part; it ends when its standard input is closed, or with the stage.
    pub fn part(&self, user: u32, role: &str, words: &[&str]) -> Child {
        let mut command = Command::new(self.path("bin/attacker"));
        command
            .args(["--exact", "hostile::plays_its_part", "--nocapture"])
            .env(ROLE, role)
            .env(WORDS, words.join("\n"))
            .uid(user)
            .gid(user)
            .current_dir(self.path("work"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        command.spawn().expect("a copy of this program")
    }

    /// The same, with all that it says written to a file.
    pub fn part_to(&self, user: User, role: &str, words: &[&str], file: &Path) {
        let mut child = self.part(user.uid, role, words);
        let mut from = child.stdout.take().expect("a pipe");
        let mut to = File::create(file).expect("a file");
        std::thread::spawn(move || std::io::copy(&mut from, &mut to));
        self.keep(child);
    }

    /// Keeps a process until the end.
    pub fn keep(&self, child: Child) {
        self.helpers.borrow_mut().push(child);
    }

    /// A user sends this to the socket of a node. What is answered is heard later: so many lines, or what comes until all is still.
    pub fn talk(&self, user: User, node: &str, text: &[u8], answers: usize) -> Talk {
        self.talk_to(user, &self.socket(node), text, answers)
    }

    /// The same to another daemon's socket.
    pub fn talk_to(&self, user: User, socket: &Path, text: &[u8], answers: usize) -> Talk {
        let socket = socket.display().to_string();
        let mut child = self.part(user.uid, "talk", &[&socket, &answers.to_string()]);
        if let Some(mut input) = child.stdin.take() {
            let _ = input.write_all(text);
        }
        Talk(child)
    }

    /// What root sees who runs `gpuos` with these words; failures too.
    pub fn gpuos(&self, words: &[&str]) -> String {
        self.shown_by(None, words)
    }

    /// The same, once for all judges.
    pub fn screen(&self, words: &[&str]) -> String {
        let key = words.join(" ");
        if let Some(text) = self.shown.borrow().get(&key) {
            return text.clone();
        }
        let text = self.gpuos(words);
        self.shown.borrow_mut().insert(key, text.clone());
        text
    }

    /// What a user sees who runs `gpuos` with these words, or root.
    pub fn shown_by(&self, user: Option<User>, words: &[&str]) -> String {
        let gpuos = self.path("bin/gpuos").display().to_string();
        let mut command = match user {
            Some(user) => self.command(user, &gpuos),
            None => self.cluster.lab.command(&gpuos).expect("the lab is up"),
        };
        let out = command.args(words).output().expect("gpuos runs");
        let both = [out.stdout, out.stderr].concat();
        String::from_utf8_lossy(&both).into_owned()
    }

    /// Ends the jobs that were to be left alone. The MPS daemon of one of them would outlive the lab, as it outlives gpuosd.
    pub fn end_victims(&self) {
        let mps = self.victims.mps.to_string();
        let folder = self.runtime("n2").join("mps").join(&mps);
        let _ = self.cluster.try_run("scancel", &[&mps[..]]);
        self.until("the victim's MPS has ended", || {
            (!folder.exists()).then_some(())
        });
    }

    /// Ends all jobs of the attackers.
    pub fn end_attackers(&self) {
        for user in [MALLORY, EVE] {
            let _ = self.cluster.try_run("scancel", &["-u", user.name]);
        }
        let names = format!("{},{}", MALLORY.name, EVE.name);
        self.until("the attackers' jobs have ended", || {
            let text = self
                .cluster
                .try_run("squeue", &["-h", "-u", &names, "-o", "%A"]);
            text.is_ok_and(|text| text.trim().is_empty()).then_some(())
        });
    }
}

/// A user's words with gpuosd.
pub struct Talk(Child);

impl Talk {
    /// What was answered.
    pub fn heard(mut self) -> Vec<String> {
        let mut all = String::new();
        if let Some(mut output) = self.0.stdout.take() {
            let _ = output.read_to_string(&mut all);
        }
        let _ = self.0.wait();
        let lines = all.lines().filter_map(|line| line.strip_prefix(MARK));
        lines.map(str::to_owned).collect()
    }
}

/// The first line that a part says.
pub fn first_line(child: &mut Child) -> String {
    let Some(output) = child.stdout.as_mut() else {
        return String::new();
    };
    let lines = BufReader::new(output).lines().map_while(Result::ok);
    let mut said = lines.filter_map(|line| line.strip_prefix(MARK).map(str::to_owned));
    said.next().unwrap_or_default()
}

fn number(text: &str) -> Result<u32, String> {
    let id = text.trim().split(';').next().unwrap_or_default();
    id.parse().map_err(|_| format!("no job id: {text}"))
}
