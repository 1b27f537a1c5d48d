//! Labs of PBS.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use gpuos_lab::LabSpec;
use gpuos_lab::pbs::{HEAD_DAEMONS, MOM, PbsLab};
use gpuos_tests::plugins::{daemons, programs};
use gpuos_tests::{costs, pbs};
use serde_json::Value;

use crate::pbs_site::{reaches, start_waiting};

/// How long a job may take to run and end, and a lab to be gone.
const LIMIT: Duration = Duration::from_secs(300);

/// Set for the process that makes a lab and is killed: the name of the lab.
const MAKER: &str = "GPUOS_PBS_TEST_MAKER";

/// The prefix of its PBS.
const PREFIX: &str = "GPUOS_PBS_TEST_PREFIX";

fn spec(prefix: &Path, name: &str, nodes: usize) -> LabSpec {
    LabSpec {
        nodes: nodes.into(),
        node_type: "pairs-8".into(),
        pbs: Some(prefix.to_path_buf()),
        ..LabSpec::unique(name)
    }
}

fn up(spec: &LabSpec) -> PbsLab {
    PbsLab::up(spec, &mut |step| eprintln!("{step}")).unwrap_or_else(|e| panic!("{e}"))
}

/// What a lab is seen by outside of it: its folder, and the namespaces of its hosts.
#[derive(Debug)]
struct Traces {
    dir: PathBuf,
    namespaces: BTreeSet<String>,
}

/// The namespaces of a process; none of one that has ended.
fn namespaces(process: &Path) -> BTreeSet<String> {
    let kinds = ["net", "mnt", "uts", "ipc", "pid_for_children"];
    let links = kinds.map(|kind| fs::read_link(process.join("ns").join(kind)));
    let texts = links.into_iter().flatten();
    texts.map(|link| link.display().to_string()).collect()
}

impl Traces {
    fn of(lab: &PbsLab) -> Traces {
        let own = namespaces(Path::new("/proc/self"));
        let head = HEAD_DAEMONS.map(|daemon| ("head".to_string(), daemon));
        let nodes = lab.record().spec.node_names().into_iter();
        let daemons = head.into_iter().chain(nodes.map(|node| (node, MOM)));
        let pids = daemons.map(|(host, daemon)| {
            let pid = lab.pid(&host, daemon);
            pid.unwrap_or_else(|| panic!("no {daemon} on {host}"))
        });
        let all = pids.flat_map(|pid| namespaces(&PathBuf::from(format!("/proc/{pid}"))));
        Traces {
            dir: lab.dir().to_path_buf(),
            namespaces: all.filter(|namespace| !own.contains(namespace)).collect(),
        }
    }

    fn left(&self) -> Vec<String> {
        let mut left = Vec::new();
        let processes = fs::read_dir("/proc").expect("proc").flatten();
        for process in processes.map(|entry| entry.path()) {
            if !self.namespaces.is_disjoint(&namespaces(&process)) {
                let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
                left.push(format!("{} {}", process.display(), name.trim()));
            }
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
        let dir = self.dir.display().to_string();
        let mounts = mounts.lines().filter(|line| line.contains(&dir));
        left.extend(mounts.map(|line| format!("mount {line}")));
        let interfaces = fs::read_dir("/sys/class/net")
            .expect("interfaces")
            .flatten();
        let names = interfaces.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let is_ours = |name: &String| {
            let number = name.strip_prefix('v').unwrap_or_default();
            name == "switch" || !number.is_empty() && number.bytes().all(|c| c.is_ascii_digit())
        };
        left.extend(
            names
                .filter(is_ours)
                .map(|name| format!("interface {name}")),
        );
        if self.dir.exists() {
            left.push(dir);
        }
        left
    }

    fn wait_gone(&self) {
        let deadline = Instant::now() + LIMIT;
        while !self.left().is_empty() && Instant::now() < deadline {
            sleep(Duration::from_millis(100));
        }
        assert_eq!(self.left(), Vec::<String>::new());
    }
}

/// A job of an ordinary user.
fn submit(lab: &PbsLab, options: &[&str], script: &str) -> String {
    let job = lab.qsub(Some("user1"), options, script);
    job.unwrap_or_else(|e| panic!("{e}"))
}

fn wait(lab: &PbsLab, job: &str, state: &str) {
    reaches(lab, job, state, LIMIT);
}

/// What the hosts of a job said, in order.
fn said(lab: &PbsLab, user: Option<&str>, select: &str, script: &str) -> Vec<String> {
    let job = lab.qsub(user, &["-l", select, "-l", "place=scatter"], script);
    let job = job.unwrap_or_else(|e| panic!("{e}"));
    wait(lab, &job, "F");
    let text = lab.job_output(&job);
    let mut lines: Vec<String> = text.lines().map(String::from).collect();
    lines.sort();
    lines
}

#[test]
fn a_job_runs_on_two_of_four_nodes_and_nothing_is_left_of_the_lab() {
    let Some(prefix) = pbs("a lab of four nodes") else {
        return;
    };
    let _cost = costs::of("slurm::pbs::lab");
    let lab = up(&spec(&prefix, "pbs", 4));
    let traces = Traces::of(&lab);
    // Five hosts have five kinds of namespaces each, and none shares one with another or with this process.
    assert_eq!(traces.namespaces.len(), 25, "{traces:?}");

    let script = "pbsdsh -- sh -c 'echo $(hostname) $(id -un) $(ls /dev/nvidia? | wc -l)'\n";
    let lines = said(&lab, Some("user1"), "select=2:ncpus=1:ngpus=8", script);
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert_ne!(lines[0], lines[1]);
    for line in &lines {
        let words: Vec<&str> = line.split(' ').collect();
        assert!(["n1", "n2", "n3", "n4"].contains(&words[0]), "{lines:?}");
        assert_eq!(words[1..], ["user1", "8"], "{lines:?}");
    }
    let lines = said(&lab, None, "select=1", "id -un\n");
    assert_eq!(lines, ["root"]);

    // GPUs that a job has are not given again.
    let all = submit(&lab, &["-l", "select=4:ngpus=8"], "sleep 1000\n");
    wait(&lab, &all, "R");
    let one = submit(&lab, &["-l", "select=1:ngpus=1"], "true\n");
    let deadline = Instant::now() + LIMIT;
    let comment = || {
        let comment = lab.job(&one, "comment");
        comment
            .unwrap_or_else(|e| panic!("{e}"))
            .unwrap_or_default()
    };
    while !comment().contains("ngpus") && Instant::now() < deadline {
        start_waiting(&lab);
        sleep(Duration::from_millis(200));
    }
    assert!(comment().contains("Not Running"), "{}", comment());
    lab.run("qdel", &[&all]).unwrap_or_else(|e| panic!("{e}"));
    wait(&lab, &one, "F");

    lab.down().unwrap_or_else(|e| panic!("{e}"));
    traces.wait_gone();
}

#[test]
fn a_node_that_is_lost_comes_back_and_a_killed_server_goes_on() {
    let Some(prefix) = pbs("a lab that loses a node and its server") else {
        return;
    };
    let _cost = costs::of("slurm::pbs::losses");
    let lab = up(&LabSpec {
        node_type: "dgx-h100".into(),
        simulated_gpus: Some(daemons().to_path_buf()),
        ..spec(&prefix, "pbs-loss", 2)
    });
    let library = lab.run_on("n2", None, "ls", &["/run/nvml/libnvidia-ml.so.1"]);
    library.unwrap_or_else(|e| panic!("{e}"));
    lab.fault("n2", "gpu3", &["lost"])
        .unwrap_or_else(|e| panic!("{e}"));
    let error = lab.fault("head", "gpu3", &["lost"]).unwrap_err();
    assert!(error.to_string().contains("no node of lab"), "{error}");
    let job = submit(&lab, &["-l", "select=1:host=n1"], "sleep 1000\n");
    wait(&lab, &job, "R");
    lab.crash("n2").unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(lab.pid("n2", MOM), None);
    let error = lab.run_on("n2", None, "true", &[]).unwrap_err().to_string();
    assert!(error.contains("n2 of lab"), "{error}");
    lab.reboot("n2").unwrap_or_else(|e| panic!("{e}"));
    lab.wait_ready(LIMIT).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(said(&lab, None, "select=1:host=n2", "hostname\n"), ["n2"]);

    let server = HEAD_DAEMONS[1];
    assert!(
        lab.kill("head", server, 9)
            .unwrap_or_else(|e| panic!("{e}"))
    );
    lab.start("head", server).unwrap_or_else(|e| panic!("{e}"));
    wait(&lab, &job, "R");
    lab.wait_ready(LIMIT).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(said(&lab, None, "select=1:host=n2", "hostname\n"), ["n2"]);
}

/// Not a test of its own: the maker's part, run in another process by [`make`].
#[test]
fn maker() {
    let (Ok(name), Ok(prefix)) = (std::env::var(MAKER), std::env::var(PREFIX)) else {
        return;
    };
    let lab = up(&LabSpec {
        name,
        ..spec(Path::new(&prefix), "made", 1)
    });
    // It has nothing of the lab about it, and its own session.
    let script = "setsid env -i sleep 1000\n";
    let job = submit(&lab, &[], script);
    wait(&lab, &job, "R");
    let traces = Traces::of(&lab);
    let names: Vec<&str> = traces.namespaces.iter().map(String::as_str).collect();
    println!("dir={} namespaces={}", lab.dir().display(), names.join(","));
    sleep(Duration::from_secs(600));
}

/// A lab in another process: that process, and the lab's traces.
fn make(prefix: &Path, name: &str) -> (Child, Traces) {
    let mut child = Command::new(std::env::current_exe().expect("own path"))
        .args(["pbs::maker", "--exact", "--nocapture"])
        .env(MAKER, name)
        .env(PREFIX, prefix)
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    let out = BufReader::new(child.stdout.take().expect("piped"));
    for line in out.lines().map_while(Result::ok) {
        // The harness writes the test's name in front.
        if let Some((_, found)) = line.split_once("dir=") {
            let (dir, names) = found.split_once(" namespaces=").expect("two values");
            let traces = Traces {
                dir: PathBuf::from(dir),
                namespaces: names.split(',').map(String::from).collect(),
            };
            return (child, traces);
        }
    }
    let _ = child.wait();
    panic!("the maker of lab {name} has ended");
}

#[test]
fn nothing_is_left_of_a_killed_makers_lab_and_the_one_beside_it_goes_on() {
    let Some(prefix) = pbs("two labs, and the maker of one is killed") else {
        return;
    };
    let _cost = costs::of("slurm::pbs::killed");
    let (mut child, traces) = make(&prefix, &format!("pbs-made-{}", std::process::id()));
    let beside = up(&spec(&prefix, "pbs-beside", 1));
    assert!(
        traces
            .namespaces
            .is_disjoint(&Traces::of(&beside).namespaces)
    );
    child.kill().expect("kills");
    child.wait().expect("waits");
    traces.wait_gone();
    assert_eq!(said(&beside, None, "select=1", "hostname\n"), ["n1"]);
}

fn gpuos(args: &[&str]) -> Output {
    let mut command = Command::new(programs().join("gpuos"));
    command.args(args).env_remove("GPUOS_LAB");
    command.output().expect("gpuos runs")
}

/// Ends the lab also when the test fails.
struct Down(String);

impl Drop for Down {
    fn drop(&mut self) {
        gpuos(&["lab", "down", "--name", &self.0]);
    }
}

#[test]
fn the_command_makes_lists_enters_and_ends_a_lab() {
    let Some(prefix) = pbs("gpuos lab up --pbs") else {
        return;
    };
    let _cost = costs::of("slurm::pbs::command");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let name = format!("pbs-cli-{}", std::process::id());
    let prefix = prefix.display().to_string();
    let _down = Down(name.clone());
    let words = ["--name", &name, "--nodes", "1", "--node-type", "pairs-8"];
    let out = gpuos(&[&["--json", "lab", "up", "--pbs", &prefix][..], &words].concat());
    assert!(out.status.success(), "{out:?}");
    let made: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    assert_eq!(made["schema"], "gpuos.lab/1");
    assert_eq!(made["nodes"], serde_json::json!(["n1"]));
    assert!(made["pbs_server_pid"].is_u64() && made["pbs_mom_pids"]["n1"].is_u64());

    let lab = |words: &[&str]| gpuos(&[&["lab"], words].concat());
    let list = text(&lab(&["list"]).stdout);
    let line = list.lines().find(|line| line.starts_with(&name));
    assert!(
        line.is_some_and(|line| line.contains("PBS ") && line.ends_with("up")),
        "{list}"
    );
    let status = text(&lab(&["status", "--name", &name]).stdout);
    assert!(status.contains("1 of 1 run"), "{status}");
    let out = lab(&[
        "run",
        "--name",
        &name,
        "--on",
        "n1",
        "--as",
        "user2",
        "--",
        "sh",
        "-c",
        "id -un; hostname; exit 7",
    ]);
    assert_eq!(text(&out.stdout), "user2\nn1\n");
    assert_eq!(out.status.code(), Some(7));
    let out = lab(&["run", "--name", &name, "--on", "n9", "--", "true"]);
    assert_eq!(out.status.code(), Some(2));
    assert!(text(&out.stderr).contains("has no host n9: give one of head, n1"));
    let out = lab(&["run", "--name", &name, "--", "gpuos", "lab", "down"]);
    assert!(
        text(&out.stderr).contains("leave its shell first"),
        "{out:?}"
    );
    let out = lab(&["down", "--name", &name]);
    assert_eq!(text(&out.stdout), format!("lab {name} is down\n"));
}
