//! What tests of a PBS with gpuos share: a site as `gpuos pbs install` makes it, a planner that comes and goes, and who had which GPUs.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use gpuos_lab::LabSpec;
use gpuos_lab::pbs::{MOM, PbsLab};
use gpuos_tests::plugins::{built, daemons, programs};
use gpuos_tests::{is_stand_in, results};

/// How long a change may take to be seen.
pub const LIMIT: Duration = Duration::from_secs(180);

/// How long waiting jobs are left alone where a test has them started.
const PAUSE: Duration = Duration::from_millis(700);

/// Nodes of a lab, and GPUs of each.
pub const NODES: usize = 4;
pub const GPUS: usize = 8;

/// The scheduler and the server, by their programs.
pub const SCHED: &str = "pbs_sched";
pub const SERVER: &str = "pbs_server";

/// What planners say is in this file of the lab.
const SAID: &str = "work/planner";

pub fn ran<T>(result: Result<T, gpuos_lab::LabError>) -> T {
    result.unwrap_or_else(|e| panic!("{e}"))
}

pub fn until(what: &str, there: impl Fn() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !there() {
        assert!(Instant::now() < deadline, "not after {LIMIT:?}: {what}");
        sleep(Duration::from_millis(200));
    }
}

/// Whether PBS starts jobs by itself; a stand-in does not.
pub fn has_scheduler(lab: &PbsLab) -> bool {
    let prefix = lab.record().spec.pbs.as_deref();
    !prefix.is_some_and(is_stand_in)
}

/// Where there is no scheduler, has each job that waits start where there is room for it, unless that was done just before.
pub fn start_waiting(lab: &PbsLab) {
    static DONE: Mutex<BTreeMap<String, Instant>> = Mutex::new(BTreeMap::new());
    if has_scheduler(lab) {
        return;
    }
    let mut done = DONE.lock().unwrap_or_else(PoisonError::into_inner);
    let before = done.get(lab.name());
    if before.is_some_and(|when| when.elapsed() < PAUSE) {
        return;
    }
    done.insert(lab.name().to_owned(), Instant::now());
    drop(done);
    let waiting = lab.run("qselect", &["-s", "Q"]).unwrap_or_default();
    for job in waiting.lines() {
        // Its comment says why one goes on waiting.
        let _ = lab.output("qrun", &[job]);
    }
}

/// Waits until a job is in this state, and has it start where there is no scheduler.
pub fn reaches(lab: &PbsLab, job: &str, state: &str, limit: Duration) {
    let began = Instant::now();
    while !has_scheduler(lab) && began.elapsed() < limit {
        start_waiting(lab);
        if ran(lab.job(job, "job_state")).as_deref() == Some(state) {
            return;
        }
        sleep(Duration::from_millis(200));
    }
    ran(lab.wait_job(job, &[state], limit.saturating_sub(began.elapsed())));
}

pub fn gpuos() -> String {
    programs().join("gpuos").display().to_string()
}

/// A lab of four nodes, as yet without gpuos.
pub fn bare(prefix: &Path, name: &str) -> PbsLab {
    let spec = LabSpec {
        nodes: NODES.into(),
        node_type: "dgx-h100".into(),
        pbs: Some(prefix.to_path_buf()),
        simulated_gpus: Some(daemons().to_path_buf()),
        ..LabSpec::unique(name)
    };
    PbsLab::up(&spec, &mut |step| eprintln!("{step}")).unwrap_or_else(|e| panic!("{e}"))
}

/// A lab of four nodes under two leaf switches, two GPUs of each always linked, with the hook in it; its logs have parts of seconds.
pub fn up(prefix: &Path, name: &str) -> PbsLab {
    let lab = bare(prefix, name);
    for host in lab.host_names() {
        let path = lab.dir().join(format!("hosts/{host}/pbs.conf"));
        // Another file in its place would not be the one that the host has.
        let file = fs::OpenOptions::new().append(true).open(path);
        let line = b"PBS_LOG_HIGHRES_TIMESTAMP=1\n";
        file.unwrap().write_all(line).unwrap();
    }
    ran(lab.run("qmgr", &["-c", "set server log_events = 4095"]));
    ran(lab.kill("head", SERVER, 15));
    ran(lab.start("head", SERVER));
    for node in lab.record().spec.node_names() {
        ran(lab.kill(&node, MOM, 15));
        ran(lab.start(&node, MOM));
    }
    ran(lab.wait_ready(LIMIT));
    let hosts = lab.dir().join("work/gpus.json");
    fs::write(&hosts, described(&lab)).unwrap();
    let library = built().join("libgpuos_pbs_hook.so").display().to_string();
    let hosts = hosts.display().to_string();
    let words = ["pbs", "install", "--planner", "--hosts", &hosts];
    let library = ["--library", &library];
    ran(lab.run(&gpuos(), &[&words[..], &library].concat()));
    for node in lab.record().spec.node_names() {
        until("a mom has the hook", || has_hook(&lab, &node));
    }
    all_free(&lab);
    lab
}

/// What `gpuos pbs install --hosts` is told.
fn described(lab: &PbsLab) -> String {
    let nodes = lab.record().spec.node_names();
    let hosts = nodes.iter().enumerate().map(|(at, node)| {
        let gpus: Vec<_> = (0..GPUS)
            .map(|gpu| serde_json::json!({ "nvlink": format!("{node}.{}", gpu / 2) }))
            .collect();
        let host = serde_json::json!({ "leaf": format!("l{}", at / 2), "gpus": gpus });
        (node.clone(), host)
    });
    let hosts: serde_json::Map<_, _> = hosts.collect();
    serde_json::Value::from(hosts).to_string()
}

/// A folder with the simulated driver and the library for memory in tiers, for users' programs on all nodes, which may note what they have on the GPUs.
pub fn cuda(lab: &PbsLab) -> PathBuf {
    let folder = lab.dir().join("cuda");
    fs::create_dir_all(&folder).unwrap();
    for (made, name) in [
        ("libgpuos_preload.so", "libgpuos_preload.so.0"),
        ("libcuda.so", "libcuda.so.1"),
    ] {
        symlink(programs().join(made), folder.join(name)).unwrap();
    }
    for node in lab.record().spec.node_names() {
        let state = lab.gpus_dir(&node).join("state");
        fs::set_permissions(&state, fs::Permissions::from_mode(0o666)).unwrap();
    }
    folder
}

/// Whether a mom has script and configuration of the hook.
pub fn has_hook(lab: &PbsLab, node: &str) -> bool {
    let folder = lab.home(node).join("mom_priv/hooks");
    let parts = ["gpuos.HK", "gpuos.PY", "gpuos.CF"];
    parts.iter().all(|part| folder.join(part).is_file())
}

/// Waits until each host is free and shows all of its GPUs so.
pub fn all_free(lab: &PbsLab) {
    let all = format!("free=0-{};", GPUS - 1);
    until("all hosts are free and show it", || {
        let text = lab.run("pbsnodes", &["-av"]).unwrap_or_default();
        text.matches(&all).count() == NODES && text.matches("state = free").count() == NODES
    });
}

fn send(signal: &str, pid: u32) {
    let status = Command::new("kill")
        .args([signal, &pid.to_string()])
        .status();
    assert!(status.unwrap().success());
}

/// Stops or continues the scheduler, or has it read its configuration.
pub fn signal(lab: &PbsLab, name: &str) {
    if let Some(pid) = lab.pid("head", SCHED) {
        send(name, pid);
    }
}

/// A planner that runs without end, and says what it does in a file of the lab.
pub struct Planner(Child);

impl Planner {
    pub fn start(lab: &PbsLab, interval: u32) -> Planner {
        let path = lab.dir().join(SAID);
        let said = fs::OpenOptions::new().create(true).append(true).open(path);
        let said = said.unwrap();
        let mut command = ran(lab.command(&gpuos()));
        command
            .args(["pbs-planner", &format!("--interval={interval}")])
            .stdin(Stdio::null())
            .stderr(said.try_clone().unwrap())
            .stdout(said);
        Planner(command.spawn().unwrap())
    }
}

impl Drop for Planner {
    /// By SIGKILL, wherever it is.
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// GPUs by vnode of an exec_vnode.
pub type Gpus = BTreeMap<String, usize>;

/// What an exec_vnode has of GPUs.
pub fn gpus(exec_vnode: &str) -> Gpus {
    let mut found = Gpus::new();
    for part in exec_vnode
        .split(['(', ')', '+'])
        .filter(|part| !part.is_empty())
    {
        let mut words = part.split(':');
        let vnode = words.next().unwrap_or_default().to_owned();
        let count = words.find_map(|word| word.strip_prefix("ngpus=")?.parse().ok());
        *found.entry(vnode).or_default() += count.unwrap_or(0);
    }
    found
}

/// Names of the vnodes of an exec_vnode.
pub fn names(exec_vnode: &str) -> BTreeSet<String> {
    gpus(exec_vnode).into_keys().collect()
}

/// Lines of PBS's accounting: kind, job, and what is said of it.
pub fn accounting(lab: &PbsLab) -> Vec<(String, String, String)> {
    let mut files: Vec<_> = fs::read_dir(lab.home("head").join("server_priv/accounting"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    let texts = files.iter().map(|file| fs::read_to_string(file).unwrap());
    let text: String = texts.collect();
    let lines = text.lines().filter_map(|line| {
        let mut parts = line.splitn(4, ';').skip(1).map(str::to_owned);
        Some((parts.next()?, parts.next()?, parts.next()?))
    });
    lines.collect()
}

/// The GPUs of a line that says that a job starts.
pub fn given(rest: &str) -> Gpus {
    let mut words = rest.split(' ');
    let given = words.find_map(|word| word.strip_prefix("exec_vnode="));
    gpus(given.unwrap_or_else(|| panic!("{rest}")))
}

/// Where jobs were started, each as often as it was, by PBS's accounting; panics where a host gave more GPUs than it has.
pub fn ledger(lab: &PbsLab) -> HashMap<String, Vec<Gpus>> {
    let mut runs: HashMap<String, Gpus> = HashMap::new();
    let mut started: HashMap<String, Vec<Gpus>> = HashMap::new();
    let lines = accounting(lab);
    for (kind, job, rest) in &lines {
        match &kind[..] {
            "S" => {
                let given = given(rest);
                runs.insert(job.clone(), given.clone());
                for vnode in given.keys() {
                    let all: usize = runs.values().filter_map(|of| of.get(vnode)).sum();
                    let theirs = || lines.iter().filter(|(_, job, _)| runs.contains_key(job));
                    assert!(
                        all <= GPUS,
                        "{all} GPUs of {vnode} are given by {job}: {runs:?}\n{:#?}",
                        theirs().collect::<Vec<_>>()
                    );
                }
                started.entry(job.clone()).or_default().push(given);
            }
            "E" | "R" => {
                runs.remove(job);
            }
            _ => {}
        }
    }
    started
}

/// A script that notes which GPUs it has while it runs its lines.
pub fn noting(lab: &PbsLab, lines: &str) -> String {
    let ledger = lab.dir().join("work/ledger");
    let ledger = ledger.display();
    format!(
        "echo + $(hostname) $PBS_JOBID $GPUOS_GPUS >>{ledger}\n{lines}\necho - $(hostname) $PBS_JOBID >>{ledger}\n"
    )
}

/// The GPUs that scripts have noted, by job; panics where two had one at a time.
pub fn noted(lab: &PbsLab) -> HashMap<String, Vec<usize>> {
    let text = fs::read_to_string(lab.dir().join("work/ledger")).unwrap_or_default();
    let mut owners: HashMap<String, String> = HashMap::new();
    let mut all = HashMap::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["+", host, job, gpus] => {
                let numbers = gpus.split(',').map(|gpu| gpu.parse().unwrap());
                let numbers: Vec<usize> = numbers.collect();
                for gpu in &numbers {
                    let before = owners.insert(format!("{host}:{gpu}"), job.to_owned());
                    assert!(
                        before.is_none(),
                        "GPU {gpu} of {host} is {before:?}'s and {job}'s\n{text}"
                    );
                }
                all.insert(job.to_owned(), numbers);
            }
            ["-", _, job] => owners.retain(|_, owner| owner != job),
            _ => panic!("{line} in\n{text}"),
        }
    }
    all
}

/// What the planner said that it started, and where.
pub fn planned(lab: &PbsLab) -> Vec<(String, Gpus)> {
    let text = fs::read_to_string(lab.dir().join(SAID)).unwrap_or_default();
    let starts = text.lines().filter_map(|line| {
        let (job, rest) = line.split_once(" starts: ")?;
        let (_, given) = rest.rsplit_once("; ")?;
        Some((job.to_owned(), gpus(given)))
    });
    starts.collect()
}

pub fn submit(lab: &PbsLab, options: &[&str], script: &str) -> String {
    ran(lab.qsub(Some("user1"), options, script))
}

/// Load of the last minute.
pub fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or_default().to_owned()
}

/// What this machine is, in words.
pub fn machine() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let value = |key: &str| {
        let line = text.lines().find(|line| line.starts_with(key))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let cores = text
        .lines()
        .filter(|line| line.starts_with("processor"))
        .count();
    let model = value("model name").unwrap_or_else(|| "an unnamed processor".into());
    let is_virtual = value("flags").is_some_and(|flags| flags.contains(" hypervisor"));
    let kind = if is_virtual {
        " in a virtual machine"
    } else {
        ""
    };
    format!("{cores} cores of {model}{kind}")
}

/// Writes a part of docs/results/pbs.md, where this run is to write it.
pub fn write_part(name: &str, made: &str) {
    if !results::wanted() {
        return;
    }
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/results/pbs.md");
    let text = fs::read_to_string(&page).expect("the page is there");
    let begin = format!("<!-- made: {name} -->\n");
    let (head, rest) = text.split_once(&begin).expect("a place for the table");
    let (_, tail) = rest.split_once("<!-- end -->").expect("its end");
    let made = made.trim_end();
    fs::write(page, format!("{head}{begin}\n{made}\n\n<!-- end -->{tail}")).expect("written");
}
