//! The form of the JSON that scripts rely on: gpuosd on simulated GPUs, asked by the commands that people use.
//! `tests/json` holds for each kind of answer the paths and kinds of its values; docs/reference/json.md is the promise to users.
//! Files are written anew with GPUOS_UPDATE_SCHEMAS=1.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use gpuos_core::step::StepId;
use gpuos_core::wire::{MigAsk, Reason, Request};
use gpuos_host::socket::{Client, NAME};
use gpuos_tests::plugins::{daemons, programs};
use gpuos_tests::program::JOBS;
use serde_json::Value;

/// Longest wait for anything: a busy machine is no fault.
const LIMIT: Duration = Duration::from_secs(120);

/// slurmctld as far as gpuos asks it: node n1, node n2 that is down, and jobs in files.
const SLURM: &str = r#"#!/bin/sh
cd "$(dirname "$0")/../slurm"
record() {
    printf 'NodeName=n1 Arch=x86_64\n   Gres=gpu:h100:8(S:0-1)\n   State=%s ThreadsPerCore=1\n' "$(cat state)"
    printf '   Extra=%s\n   Reason=%s [root@2026-11-20T21:40:00]\n' "$(cat extra)" "$(cat reason)"
}
case "$(basename "$0") $*" in
"scontrol show config") printf 'ClusterName = cap\nSLURM_VERSION = 24.11.5\n' ;;
"scontrol show node n1") record ;;
"scontrol -d show nodes")
    record
    printf '\nNodeName=n2 Arch=x86_64\n   Gres=gpu:h100:8(S:0-1)\n   State=DOWN ThreadsPerCore=1\n'
    printf '   Extra=[gpuos:1 out=7 degraded=2]\n   Reason=fan [root@2026-11-20T21:40:00]\n' ;;
"scontrol update NodeName=n1 Extra="*) shift 2; printf '%s' "${1#Extra=}" >extra ;;
"scontrol update NodeName=n1 State=DRAIN Reason="*)
    shift 3; printf '%s' "${1#Reason=}" >reason; echo IDLE+DRAIN >state ;;
"scontrol update NodeName=n1 State=RESUME") : >reason; echo IDLE >state ;;
"squeue -a -t all -j "*)
    [ -e "jobs/$5" ] || { echo 'Invalid job id specified' >&2; exit 1; }
    awk -v rows="$SQUEUE_FORMAT2" -f ../jobs.awk "jobs/$5" ;;
"squeue "*) cat /dev/null jobs/* 2>/dev/null | awk -v rows="$SQUEUE_FORMAT2" -f ../jobs.awk ;;
"scontrol -d show jobs") cat jobs/* | awk -f ../jobs.awk ;;
"scontrol -d show job "*)
    [ -e "jobs/$4" ] || { echo 'Invalid job id specified' >&2; exit 1; }
    awk -f ../jobs.awk "jobs/$4" ;;
"scontrol requeue incomplete "*)
    sed -i 's/JobState=RUNNING/JobState=PENDING/; s/ NodeList=n1/ NodeList=(null)/; s/Restarts=0/Restarts=1/' "jobs/$3" ;;
"scontrol update JobId="*) ;;
"scancel "*) rm -f "jobs/${1%%.*}" ;;
*) echo "unexpected: $*" >&2; exit 1 ;;
esac
"#;

const JOB: &str = "JobId=17 JobName=train\n   UserId=ann(1000) GroupId=ann(1000)\n   JobState=RUNNING Reason=None\n   \
     Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0\n   NodeList=n1\n   NumNodes=1 NumCPUs=1\n   \
     TresPerNode=gres/gpu:h100:1\n     Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:h100:1(IDX:3)\n";

/// A process that ends with the test.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A node in a folder: eight simulated H100, a Slurm of files and a gpuosd.
struct Node {
    dir: tempfile::TempDir,
    _daemon: Option<Ends>,
}

impl Node {
    fn start() -> Node {
        let mut node = Node::without_daemon();
        node.daemon(&[]);
        node
    }

    fn without_daemon() -> Node {
        let node = Node {
            dir: tempfile::tempdir().unwrap(),
            _daemon: None,
        };
        let at = |name: &str| node.dir.path().join(name);
        fs::create_dir_all(at("slurm/jobs")).unwrap();
        fs::create_dir(at("bin")).unwrap();
        fs::write(at("slurm.text"), SLURM).unwrap();
        fs::write(at("jobs.awk"), JOBS).unwrap();
        for program in ["scontrol", "squeue", "scancel"] {
            // Another process writes the program, so that no descriptor of it is open when it runs.
            let mut install = Command::new("install");
            install.args(["-m", "755"]).arg(at("slurm.text"));
            let done = install.arg(at("bin").join(program)).status().unwrap();
            assert!(done.success());
        }
        for (name, text) in [
            ("state", "IDLE\n"),
            ("extra", ""),
            ("reason", ""),
            ("jobs/17", JOB),
        ] {
            fs::write(at("slurm").join(name), text).unwrap();
        }
        fs::write(at("gpuos.toml"), "").unwrap();
        node.nvml(&["create", "dgx-h100", "--dir", at("").to_str().unwrap()]);
        node
    }

    /// Starts gpuosd with these flags besides.
    fn daemon(&mut self, flags: &[String]) {
        let at = |name: &str| self.path(name);
        let mut daemon = self.command(&daemons().join("gpuosd"));
        daemon.args(["--node", "n1", "--interval", "1", "--reset-command", "true"]);
        daemon.args(flags);
        daemon.arg("--nvml").arg(at("libnvidia-ml.so.1"));
        daemon.arg("--config").arg(at("gpuos.toml"));
        daemon.arg("--state-dir").arg(at("lib"));
        // Not this machine's adapters and messages.
        fs::write(at("kmsg"), "").unwrap();
        daemon.arg("--sysfs").arg(at("sys"));
        daemon.arg("--kernel-log").arg(at("kmsg"));
        daemon.arg("--runtime-dir").arg(at("run"));
        daemon.stderr(File::create(at("log")).unwrap());
        self._daemon = Some(Ends(daemon.spawn().unwrap()));
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .env(
                "PATH",
                format!("{}:/usr/bin:/bin", self.path("bin").display()),
            )
            .env("GPUOS_NVML_STATE", self.path("state"))
            .stdin(Stdio::null());
        command
    }

    fn nvml(&self, words: &[&str]) {
        let output = self
            .command(&programs().join("gpuos-nvml"))
            .args(words)
            .output()
            .unwrap();
        assert!(output.status.success(), "{words:?}: {output:?}");
    }

    fn gpuos(&self, words: &[&str]) -> (i32, Value) {
        let mut gpuos = self.command(&programs().join("gpuos"));
        gpuos.arg("--json").args(words);
        match words[0] {
            "discover" | "topo" => {
                gpuos.arg("--nvml").arg(self.path("libnvidia-ml.so.1"));
                // Not this machine's adapters.
                gpuos
                    .args(["--node-name", "n1", "--sysfs"])
                    .arg(self.path("bin"))
            }
            _ => gpuos.arg("--runtime-dir").arg(self.path("run")),
        };
        let output = gpuos.output().unwrap();
        let json = serde_json::from_slice(&output.stdout);
        let json = json.unwrap_or_else(|e| panic!("{words:?}: {e}: {output:?}"));
        (output.status.code().unwrap(), json)
    }

    /// Waits until an answer is as wanted.
    fn until(&self, words: &[&str], wanted: impl Fn(&Value) -> bool) -> (i32, Value) {
        let deadline = Instant::now() + LIMIT;
        loop {
            let (code, json) = self.gpuos(words);
            if wanted(&json) {
                return (code, json);
            }
            let log = fs::read_to_string(self.path("log")).unwrap_or_default();
            assert!(Instant::now() < deadline, "{words:?}: {json:#}\n{log}");
            sleep(Duration::from_millis(100));
        }
    }

    /// A step of job 17 has GPU 3.
    fn step(&self) {
        let mut client = Client::connect(&self.path("run").join(NAME), LIMIT).unwrap();
        let id = StepId {
            job: 17.into(),
            step: 0,
        };
        let (uid, gpus) = (1000, vec![3]);
        let asked = Default::default();
        client
            .ask(&Request::StepStart {
                id,
                uid,
                gpus,
                asked,
                mig: None,
                switchable: false,
                memory: None,
                reason: Reason::Devices,
            })
            .unwrap();
    }

    /// `gpuos health --watch --json` from now on; what it prints is in the file `watch`.
    fn watch(&self) -> Ends {
        let mut watch = self.command(&programs().join("gpuos"));
        watch.args(["health", "--watch", "--json", "--runtime-dir"]);
        watch.arg(self.path("run"));
        watch.stdout(File::create(self.path("watch")).unwrap());
        let watch = Ends(watch.spawn().unwrap());
        // It watches when it is told of something.
        let deadline = Instant::now() + LIMIT;
        while fs::read_to_string(self.path("watch")).unwrap().is_empty() {
            assert!(Instant::now() < deadline, "nothing is told to a watcher");
            self.gpuos(&["drain", "n1:7"]);
            sleep(Duration::from_millis(100));
        }
        watch
    }

    fn lines(&self, name: &str) -> Vec<Value> {
        let text = fs::read_to_string(self.path(name)).unwrap();
        let whole = text
            .split_inclusive('\n')
            .filter(|line| line.ends_with('\n'));
        whole
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}

/// What answers of one kind are made of.
#[derive(Default)]
struct Form {
    /// Paths and kinds of their values.
    values: BTreeSet<String>,
    /// Objects at a path.
    objects: BTreeMap<String, usize>,
    /// How many of them have a key, by path of object and key.
    keys: BTreeMap<(String, String), usize>,
}

impl Form {
    fn add(&mut self, value: &Value, at: &str) {
        let kind = match value {
            Value::Object(fields) => {
                *self.objects.entry(at.into()).or_default() += 1;
                for (key, value) in fields {
                    *self.keys.entry((at.into(), key.clone())).or_default() += 1;
                    self.add(value, &format!("{at}.{key}"));
                }
                return;
            }
            Value::Array(items) => {
                for item in items {
                    self.add(item, &format!("{at}[]"));
                }
                if items.is_empty() {
                    self.values.insert(format!("{at}[] none"));
                }
                return;
            }
            Value::Null => "null",
            Value::Bool(_) => "bool",
            Value::Number(_) => "number",
            Value::String(_) => "string",
        };
        self.values.insert(format!("{at} {kind}"));
    }

    /// A line for each path and kind, and one for each key that some objects lack.
    fn text(mut self) -> String {
        for ((at, key), count) in &self.keys {
            if self.objects.get(at) != Some(count) {
                self.values.insert(format!("{at}.{key} missing"));
            }
        }
        self.values.into_iter().map(|line| line + "\n").collect()
    }
}

/// Holds the form of answers of one kind against its file.
fn agreed(name: &str, schema: &str, answers: &[Value]) {
    let mut form = Form::default();
    for answer in answers {
        assert_eq!(answer["schema"], schema, "{name}: {answer}");
        form.add(answer, "");
    }
    let text = form.text();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("json/{name}.txt"));
    if std::env::var_os("GPUOS_UPDATE_SCHEMAS").is_some() {
        fs::write(&file, &text).unwrap();
    }
    let want = fs::read_to_string(&file).unwrap_or_default();
    assert_eq!(text, want, "{name}: {}", file.display());
    let promise = include_str!("../../docs/reference/json.md");
    for word in [schema, &format!("tests/json/{name}.txt")] {
        assert!(
            promise.contains(word),
            "docs/reference/json.md does not name {word}"
        );
    }
}

/// Scripts rely on these names: within a release fields are added, and none is renamed, removed or given another kind.
/// Such a change needs a new schema number.
#[test]
fn the_json_of_a_node_has_the_agreed_form() {
    let node = Node::start();
    let health = &["health"][..];
    node.until(health, |json| {
        let gpus = json["status"]["gpus"].as_array();
        gpus.is_some_and(|gpus| gpus.len() == 8 && gpus.iter().all(|gpu| gpu["power_mw"].is_u64()))
    });
    node.step();
    let known = |json: &Value| json["status"]["gpus"][3]["jobs"][0] == 17;
    let (code, well) = node.until(health, known);
    assert_eq!((code, &well["well"]), (0, &true.into()));
    let (code, top) = node.gpuos(&["top"]);
    assert_eq!(code, 0);
    agreed("top", "gpuos.top/1", &[top]);
    let watch = node.watch();
    let mut admin = Vec::new();
    for words in [
        &["drain", "n1:2", "--reason", "fan"][..],
        &["online", "n1:2,7"],
        &["offline", "n1"],
    ] {
        let (code, json) = node.gpuos(words);
        assert_eq!(code, 0, "{json}");
        admin.push(json);
    }
    agreed("admin", "gpuos.admin/1", &admin);
    let (code, drained) = node.until(health, |json| json["status"]["node_drained"].is_string());
    assert_eq!((code, &drained["well"]), (1, &false.into()));
    node.gpuos(&["online", "n1", "--force"]);
    node.nvml(&["fault", "gpu3", "xid", "48"]);
    let requeued = |json: &Value| {
        let mut lines = json["lines"].as_array().unwrap().iter();
        lines.any(|line| line["job"] == 17 && line["text"] == "job 17 is requeued")
    };
    let (code, audit) = node.until(&["health", "--audit", "200"], requeued);
    assert_eq!(code, 0);
    let mut lines = audit["lines"].as_array().unwrap().clone();
    agreed("audit", "gpuos.health-audit/1", &[audit]);
    // The file on the disk has the same lines.
    lines.retain(|line| line["job"] == 17 || line["uid"].is_u64() || line["rule"].is_string());
    let on_disk = node.lines("lib/audit.jsonl");
    assert!(lines.iter().all(|line| on_disk.contains(line)));
    agreed("audit-line", "gpuos.audit/1", &on_disk);
    let (code, broken) = node.until(health, |json| {
        json["status"]["gpus"][3]["faults"][0]["rule"].is_string()
    });
    assert_eq!(code, 1);
    agreed("health", "gpuos.health/1", &[well, drained, broken]);
    let (code, nodes) = node.gpuos(&["health", "n2"]);
    assert_eq!((code, &nodes["nodes"][0]["out"][0]), (1, &7.into()));
    agreed("health-nodes", "gpuos.health-nodes/1", &[nodes]);
    let (code, reload) = node.gpuos(&["health", "--reload"]);
    assert_eq!(code, 0);
    agreed("reload", "gpuos.health-reload/1", &[reload]);
    // What is told last of what was done.
    let deadline = Instant::now() + LIMIT;
    let heard = |line: &Value| line["event"]["job"] == 17;
    while !node.lines("watch").iter().any(heard) {
        assert!(Instant::now() < deadline, "{:?}", node.lines("watch"));
        sleep(Duration::from_millis(100));
    }
    drop(watch);
    agreed("event", "gpuos.event/1", &node.lines("watch"));
    let discover = |gpus: Option<&str>| {
        gpus.inspect(|gpus| node.nvml(&["mig", gpus, "on"]));
        let (code, discover) = node.gpuos(&["discover"]);
        assert_eq!(code, 0);
        discover
    };
    let mut divided = [None, Some("4-7"), Some("all")].map(discover).to_vec();
    let (code, switchable) = node.gpuos(&["discover", "--switchable=7"]);
    assert_eq!(code, 0);
    divided.push(switchable);
    agreed("discover", "gpuos.discover/1", &divided);
    node.nvml(&["mig", "all", "off"]);
    let (code, live) = node.gpuos(&["topo", "--live"]);
    assert_eq!(code, 0);
    agreed("topo-live", "gpuos.topo-node/1", &[live]);
    let (code, error) = node.gpuos(&["drain", "n1:9"]);
    assert_eq!(code, 1);
    agreed("error", "gpuos.error/1", &[error]);
}

/// What `gpuos discover` prints of GPUs in MIG mode is what gpuosd takes, and `gpuos mig` shows what it makes of it.
#[test]
fn the_slices_of_a_node_are_shown() {
    let mut node = Node::without_daemon();
    node.nvml(&["mig", "4-5", "on"]);
    let (_, discover) = node.gpuos(&["discover"]);
    fs::write(
        node.path("gpuos.toml"),
        discover["gpuos_toml"].as_str().unwrap(),
    )
    .unwrap();
    let job = "JobId=17 JobName=train\n   UserId=ann(1000) GroupId=ann(1000)\n   JobState=RUNNING Reason=None\n   \
         Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0\n   NodeList=n1\n   NumNodes=1 NumCPUs=1\n     \
         Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpuos:h100-80gb:4(IDX:12-15)\n";
    fs::write(node.path("slurm/jobs/17"), job).unwrap();
    let caps = |gi| {
        format!(
            "gpu5/gi{gi}/access {}\ngpu5/gi{gi}/ci0/access {}\n",
            3 + 2 * gi,
            4 + 2 * gi
        )
    };
    let minors: String = (0..14).map(caps).collect();
    fs::write(node.path("minors"), minors).unwrap();
    let flag = |flag: &str, name: &str| format!("--{flag}={}", node.path(name).display());
    let flags = [
        flag("slices", "slices"),
        flag("caps", "caps"),
        flag("mig-minors", "minors"),
    ];
    node.daemon(&flags);
    let ready = |json: &Value| {
        let gpus = json["mig"]["gpus"].as_array();
        gpus.is_some_and(|gpus| gpus.len() == 2 && gpus.iter().all(|gpu| gpu["ready"] == true))
    };
    let (code, idle) = node.until(&["mig"], ready);
    assert_eq!((code, &idle["slices"]), (0, &16.into()), "{idle:#}");
    assert_eq!(idle["mig"]["gpus"][0]["fits"]["1g.10gb"], 7);
    let mut client = Client::connect(&node.path("run").join(NAME), LIMIT).unwrap();
    let asked = Request::StepStart {
        id: StepId {
            job: 17.into(),
            step: 0,
        },
        uid: 1000,
        gpus: Vec::new(),
        asked: Default::default(),
        mig: Some(MigAsk {
            request: "3g.40gb".into(),
            slices: vec![12, 13, 14, 15],
            tasks: 1,
        }),
        switchable: false,
        memory: None,
        reason: Reason::Devices,
    };
    client.ask(&asked).unwrap();
    let made = |json: &Value| {
        let instance = &json["mig"]["gpus"][1]["instances"][0];
        let load = &instance["sm_percent"];
        // The first poll of an instance has no load.
        instance["phase"] == "ready" && instance["memory_used_mib"].is_u64() && load.is_number()
    };
    let (code, taken) = node.until(&["mig"], made);
    let instance = &taken["mig"]["gpus"][1]["instances"][0];
    assert_eq!((code, &instance["job"]), (0, &17.into()), "{taken:#}");
    assert_eq!(
        (&instance["profile"], &taken["free"]),
        (&"3g.40gb".into(), &12.into())
    );
    let run = node.path("run");
    let mut gpuos = node.command(&programs().join("gpuos"));
    let text = gpuos
        .arg("mig")
        .arg("--runtime-dir")
        .arg(run)
        .output()
        .unwrap();
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(
        text.contains("GPU 5   [....aaaa]  free 0-3  fits "),
        "{text}"
    );
    agreed("mig", "gpuos.mig/1", &[idle, taken]);
}
