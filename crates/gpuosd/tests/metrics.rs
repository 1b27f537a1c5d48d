//! The real daemon on simulated GPUs: its metrics, its map files, and a real Prometheus that asks it.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use gpuos_core::step::StepId;
use gpuos_core::wire::{Reason, Request};
use gpuos_host::socket::{Client, NAME};
use nvidia_ml::fault::{self, Fault};
use nvidia_ml::model::kind_named;
use nvidia_ml::state::{Options, Shared, node};

#[path = "metrics/mover.rs"]
mod mover;
#[path = "../../../tests/src/port.rs"]
mod port;
#[path = "../../../tests/src/program.rs"]
mod program;

/// A test that waits longer has failed; none depends on how fast the machine is.
const PATIENCE: Duration = Duration::from_secs(240);

/// A process that ends with the test.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "not in time: {what}");
        thread::sleep(Duration::from_millis(50));
    }
}

fn get(address: SocketAddr, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: test\r\n\r\n").ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    let answer = String::from_utf8(answer).ok()?;
    Some(answer.split_once("\r\n\r\n")?.1.to_string())
}

/// A gpuosd with eight simulated H100.
struct Node {
    dir: tempfile::TempDir,
    gpus: Shared,
    metrics: SocketAddr,
    _daemon: Ends,
}

impl Node {
    fn start() -> Node {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
        let (number, kind) = kind_named("dgx-h100").unwrap();
        let state = dir.path().join("state");
        let gpus = Shared::create(&state, &node(number, kind, Options::default())).unwrap();
        // The library that was built for this test lies beside it.
        let library = std::env::current_exe()
            .unwrap()
            .with_file_name("libnvidia_ml.so");
        fs::write(
            at("gpuos.toml"),
            format!(
                "[checkpoint]\nenabled = true\n[metrics]\nlisten = \"127.0.0.1:0\"\ndcgm-dir = \"{}\"\njobstats-dir = \"{}\"\n",
                at("dcgm"),
                at("gpustat")
            ),
        )
        .unwrap();
        let log = at("log");
        let daemon = Command::new(env!("CARGO_BIN_EXE_gpuosd"))
            .args([
                "--node",
                "n1",
                "--interval",
                "1",
                "--config",
                &at("gpuos.toml"),
            ])
            .args(["--state-dir", &at("lib"), "--runtime-dir", &at("run")])
            .arg("--nvml")
            .arg(library)
            // There is no Slurm here, and nothing is reset.
            .env("PATH", at("nothing"))
            .env("GPUOS_NVML_STATE", &state)
            .env_remove("JOURNAL_STREAM")
            .stdin(Stdio::null())
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let daemon = Ends(daemon);
        let metrics = until("the address of the metrics in the log", || {
            let text = fs::read_to_string(&log).ok()?;
            let rest = text.split_once("metrics at http://")?.1;
            rest.split_once("/metrics")?.0.parse().ok()
        });
        let events = fs::read_to_string(&log).unwrap();
        for line in events.lines().filter(|line| line.ends_with('}')) {
            let event: serde_json::Value = serde_json::from_str(line).unwrap();
            assert!(
                event["message"].is_string()
                    && event["timestamp"].is_string()
                    && event["node"] == "n1",
                "{line}"
            );
        }
        Node {
            dir,
            gpus,
            metrics,
            _daemon: daemon,
        }
    }

    /// slurmctld comes: it knows the node and job 17 on these GPUs, and takes what is written.
    fn slurm(&self, gpus: &str) {
        let dir = self.dir.path();
        let script = format!(
            "#!/bin/sh\nexport PATH=/usr/bin:/bin\ncd {}\ncase \"$(basename \"$0\") $*\" in\n\
             'squeue '*) awk -v rows=\"$SQUEUE_FORMAT2\" -f jobs.awk jobs ;;\n\
             'scontrol -d show job '*) awk -f jobs.awk jobs ;;\n\
             'scontrol show node n1') printf 'NodeName=n1 Arch=x86_64\\n   Gres=gpu:h100:8\\n   State=IDLE ThreadsPerCore=1\\n   \
             Extra=%s\\n' \"$(cat extra)\" ;;\n\
             'scontrol update NodeName=n1 Extra='*) shift 2; printf %s \"${{1#Extra=}}\" >extra ;;\nesac\n",
            dir.display()
        );
        let job = format!(
            "JobId=17 JobName=train\n   UserId=1000(1000) GroupId=1000(1000)\n   JobState=RUNNING Reason=None\n   \
             Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0\n   NodeList=n1\n   NumNodes=1 NumCPUs=1\n     \
             Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:h100:1(IDX:{gpus})\n"
        );
        fs::write(dir.join("jobs"), job).unwrap();
        fs::write(dir.join("jobs.awk"), program::JOBS).unwrap();
        fs::write(dir.join("extra"), "").unwrap();
        fs::create_dir_all(dir.join("nothing")).unwrap();
        for name in ["scontrol", "squeue"] {
            program::program(&dir.join("nothing").join(name), &script);
        }
    }

    fn tell(&self, request: &Request) {
        let socket = self.dir.path().join("run").join(NAME);
        let mut client = until("the socket", || Client::connect(&socket, PATIENCE).ok());
        client.ask(request).unwrap();
    }

    /// Waits until a line of the metrics begins and ends so.
    fn line(&self, start: &str, end: &str) {
        until(&format!("{start} … {end}"), || {
            let text = get(self.metrics, "/metrics")?;
            let mut lines = text.lines();
            lines
                .any(|line| line.starts_with(start) && line.ends_with(end))
                .then_some(())
        });
    }

    fn file(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.dir.path().join(name)).ok()
    }
}

#[test]
fn jobs_come_and_go_in_metrics_and_map_files() {
    let node = Node::start();
    node.line("gpuos_gpu_polled{node=\"n1\",gpu=\"7\"", "} 1.0");
    node.line("gpuos_gpu_memory_total_bytes{node=\"n1\",gpu=\"0\"", "");
    node.line("gpuos_gpu_energy_joules_total{node=\"n1\",gpu=\"0\"", "");
    node.line("gpuos_gpu_sm_clock_hertz{node=\"n1\",gpu=\"0\"", "000000.0");
    let id = StepId {
        job: 17.into(),
        step: 0,
    };
    node.slurm("3-4");
    let gpus = vec![3, 4];
    node.tell(&Request::StepStart {
        id: id.clone(),
        uid: 1000,
        gpus,
        asked: gpuos_core::limits::Asked::default(),
        mig: None,
        switchable: false,
        memory: None,
        reason: Reason::Devices,
    });
    node.line(
        "gpuos_gpu_job_info{node=\"n1\",gpu=\"4\"",
        "jobid=\"17\",step=\"0\",user=\"1000\"} 1.0",
    );
    until("map files", || {
        let both = [node.file("gpustat/3")?, node.file("dcgm/4")?];
        (both == ["17 1000\n", "17\n"]).then_some(())
    });
    assert_eq!(node.file("gpustat/0"), None);
    fs::write(node.dir.path().join("jobs"), "").unwrap();
    node.tell(&Request::StepEnd { id });
    until("no map files", || {
        let none = ["gpustat/3", "gpustat/4", "dcgm/3", "dcgm/4"].map(|name| node.file(name));
        none.iter().all(Option::is_none).then_some(())
    });
    node.line("gpuos_jobs{", "} 0.0");
}

/// Debian's package `prometheus` has both programs.
fn there(program: &str) -> bool {
    let mut asked = Command::new(program);
    asked
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let there = asked.status().is_ok_and(|status| status.success());
    if !there {
        eprintln!("skipped: no {program} (Debian's package prometheus)");
    }
    there
}

fn packaging(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../packaging/prometheus")
        .join(name)
}

#[test]
fn promtool_accepts_the_rules_and_they_fire_when_they_should() {
    if !there("promtool") {
        return;
    }
    for args in [
        ["check", "rules", "gpuos.rules.yml"],
        ["test", "rules", "gpuos.rules.test.yml"],
    ] {
        let out = Command::new("promtool")
            .args(args)
            .current_dir(packaging(""))
            .output()
            .unwrap();
        let said = [out.stdout, out.stderr]
            .map(|text| String::from_utf8(text).unwrap())
            .concat();
        assert!(out.status.success(), "promtool {args:?}: {said}");
    }
}

/// A Prometheus that asks gpuosd every second.
struct Prometheus {
    address: SocketAddr,
    _process: Ends,
}

impl Prometheus {
    fn start(node: &Node) -> Prometheus {
        let dir = node.dir.path();
        let config = dir.join("prometheus.yml");
        let rules = packaging("gpuos.rules.yml").canonicalize().unwrap();
        fs::write(
            &config,
            format!(
                "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\n\
                 rule_files: ['{}']\n\
                 scrape_configs:\n  - {{job_name: gpuosd, static_configs: [{{targets: ['{}']}}]}}\n",
                rules.display(),
                node.metrics
            ),
        )
        .unwrap();
        let port = SocketAddr::from(([127, 0, 0, 1], port::port()));
        let process = Command::new("prometheus")
            .arg(format!("--config.file={}", config.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                dir.join("tsdb").display()
            ))
            .arg(format!("--web.listen-address={port}"))
            .stdin(Stdio::null())
            .stderr(File::create(dir.join("prometheus.log")).unwrap())
            .spawn()
            .unwrap();
        Prometheus {
            address: port,
            _process: Ends(process),
        }
    }

    fn ask(&self, path: &str) -> Option<serde_json::Value> {
        let answer: serde_json::Value = serde_json::from_str(&get(self.address, path)?).ok()?;
        (answer["status"] == "success").then(|| answer["data"].clone())
    }

    /// The labels of what a query finds, once it finds something.
    fn finds(&self, query: &str) -> Vec<serde_json::Value> {
        let coded: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
        until(query, || {
            let data = self.ask(&format!("/api/v1/query?query={coded}"))?;
            let found = data["result"].as_array()?;
            let labels = found.iter().map(|one| one["metric"].clone());
            (!found.is_empty()).then(|| labels.collect())
        })
    }
}

#[test]
fn prometheus_scrapes_gpuosd_and_evaluates_the_rules() {
    if !there("prometheus") {
        return;
    }
    let node = Node::start();
    node.slurm("0");
    let gpus = vec![0];
    let id = StepId {
        job: 17.into(),
        step: 0,
    };
    node.tell(&Request::StepStart {
        id,
        uid: 1000,
        gpus,
        asked: gpuos_core::limits::Asked::default(),
        mig: None,
        switchable: false,
        memory: None,
        reason: Reason::Devices,
    });
    let prometheus = Prometheus::start(&node);
    assert_eq!(prometheus.finds("gpuos_gpu_polled == 1").len(), 8);
    assert_eq!(prometheus.finds("up{job=\"gpuosd\"} == 1").len(), 1);
    let joined = prometheus.finds("job:gpuos_gpu_power_watts:sum");
    assert_eq!(joined[0]["jobid"], "17");
    let xid = Fault::parse(&["xid", "79"]).unwrap();
    node.gpus
        .update(|node| fault::inject(node, Some(5), &xid))
        .unwrap();
    let firing = prometheus.finds("ALERTS{alertname=\"GpuosGpuFatalXid\", alertstate=\"firing\"}");
    assert_eq!(
        (firing.len(), &firing[0]["gpu"], &firing[0]["code"]),
        (1, &"5".into(), &"79".into())
    );
    assert_eq!(
        prometheus.finds("gpuos_gpu_out_of_service == 1")[0]["gpu"],
        "5"
    );
    // Each rule was evaluated, without an error.
    let text = fs::read_to_string(packaging("gpuos.rules.yml")).unwrap();
    let starts = ["- alert: ", "- record: "];
    let all = text.lines().map(str::trim_start);
    let all = all.filter(|line| starts.iter().any(|start| line.starts_with(start)));
    let all = all.count();
    until("all rules evaluated", || {
        let data = prometheus.ask("/api/v1/rules")?;
        let groups = data["groups"].as_array()?.iter();
        let rules: Vec<_> = groups
            .flat_map(|group| group["rules"].as_array().unwrap())
            .collect();
        assert!(
            rules.iter().all(|rule| rule["health"] != "err"),
            "{rules:?}"
        );
        let done = rules.len() == all && rules.iter().all(|rule| rule["health"] == "ok");
        done.then_some(())
    });
}

/// The questions of the dashboard's panels, for all nodes, with the panel's title.
fn panels() -> Vec<(String, String)> {
    let text = fs::read_to_string(packaging("../grafana/gpuos.json")).unwrap();
    let dashboard: serde_json::Value = serde_json::from_str(&text).unwrap();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_string();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let asked = panels.flat_map(|panel| {
        let targets = panel["targets"].as_array().unwrap().iter();
        targets.map(move |target| {
            let query = text(&target["expr"]).replace("$node", ".*");
            assert!(
                !query.contains('$'),
                "a variable that this test does not know: {query}"
            );
            (text(&panel["title"]), query)
        })
    });
    asked.collect()
}

/// Metrics that a node has samples of while programs with memory in tiers run on it, or are short.
const OF_PROGRAMS: [&str; 7] = [
    "gpuos_memory_others_bytes",
    "gpuos_memory_heat_bytes",
    "gpuos_memory_link_bytes_per_second",
    "gpuos_memory_slowdown_ratio",
    "gpuos_memory_host_available_bytes",
    "gpuos_memory_pressure",
    "gpuos_memory_short_jobs",
];

#[test]
fn each_question_of_the_dashboard_finds_data_of_a_real_node() {
    if !there("prometheus") {
        return;
    }
    let node = Node::start();
    node.slurm("0");
    let (id, gpus) = (
        StepId {
            job: 17.into(),
            step: 0,
        },
        vec![0],
    );
    let uid = 1000;
    node.tell(&Request::StepStart {
        id,
        uid,
        gpus,
        asked: Default::default(),
        mig: None,
        switchable: false,
        memory: None,
        reason: Reason::Devices,
    });
    let prometheus = Prometheus::start(&node);
    assert_eq!(prometheus.finds("gpuos_gpu_polled == 1").len(), 8);
    let happens = |gpu, words: &[&str]| {
        let fault = Fault::parse(words).unwrap();
        let done = node
            .gpus
            .update(|node| fault::inject(node, Some(gpu), &fault));
        done.unwrap();
    };
    let finds = |title: &str, query: &str| {
        let coded: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
        until(&format!("{title}: {query}"), || {
            // Counts rise while they are looked at.
            happens(6, &["ecc", "corrected", "3"]);
            happens(6, &["nvlink", "2", "crc", "5"]);
            happens(6, &["pcie-replay", "4"]);
            let data = prometheus.ask(&format!("/api/v1/query?query={coded}"))?;
            let found = data["result"].as_array()?;
            (!found.is_empty()).then_some(())
        });
    };
    happens(5, &["xid", "48"]);
    // A mover that is there tells all but that it is not.
    let silent = mover::play(&node.dir.path().join("run"));
    let (gone, panels): (Vec<_>, Vec<_>) = panels()
        .into_iter()
        .partition(|(_, query)| query.starts_with("gpuos_checkpoint_mover_up"));
    let (troubles, others): (Vec<_>, Vec<_>) = panels
        .into_iter()
        .partition(|(_, query)| query.contains("trouble"));
    // What programs with memory in tiers bring about: that there is such a metric is all that is held here.
    let (programs, others): (Vec<_>, Vec<_>) = others
        .into_iter()
        .partition(|(_, query)| OF_PROGRAMS.iter().any(|name| query.contains(name)));
    let scraped = get(node.metrics, "/metrics").unwrap();
    for (title, query) in &programs {
        let words = query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let names: Vec<_> = words.filter(|word| word.starts_with("gpuos_")).collect();
        assert!(!names.is_empty(), "{title}: {query}");
        for name in names {
            let told = format!("# TYPE {name} ");
            assert!(scraped.contains(&told), "{title}: there is no {name}");
        }
    }
    assert!(others.len() > 20, "{troubles:?} {others:?}");
    for (title, query) in &others {
        finds(title, query);
    }
    silent.store(true, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(gone.len(), 1, "{gone:?}");
    for (title, query) in &gone {
        finds(title, query);
    }
    // A slurmctld that is away is a trouble.
    fs::remove_dir_all(node.dir.path().join("nothing")).unwrap();
    for (title, query) in &troubles {
        finds(title, query);
    }
}
