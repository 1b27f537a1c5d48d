//! `gpuos top --once` and `--json`, with a gpuosd of a recorded status and without one.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use gpuos_core::wire::{CheckpointJob, CheckpointPhase, Happening, Peer, Reply, Request, Status};
use gpuos_host::socket::{Limits, NAME, RequestHandler, Server, bind};

use crate::ckpt_bed::{job, start, telling};
use crate::site::{RELEASES, Site};

/// Answers with a recorded status.
struct Recorded(Status);

impl RequestHandler for Recorded {
    fn who(&self) -> (String, String) {
        ("0.1.0".into(), self.0.node.clone())
    }

    fn ask(&self, _peer: Peer, request: Request) -> Reply {
        if request == Request::Mig {
            let mig = Box::new(crate::mig::pool());
            return Reply::Mig { mig };
        }
        let status = Box::new(self.0.clone());
        Reply::Status { status }
    }

    fn watch(&self, _peer: Peer) -> Receiver<Happening> {
        channel().1
    }
}

/// A gpuosd of node n1 for that site; the flag that names its socket.
pub fn daemon(site: &Site) -> String {
    let text = include_str!("../data/status.json");
    let status: Status = serde_json::from_str(text).unwrap();
    let dir = site.path("run");
    std::fs::create_dir_all(&dir).unwrap();
    let listener = bind(&std::path::Path::new(&dir).join(NAME)).unwrap();
    Server::start(listener, Arc::new(Recorded(status)), Limits::default()).unwrap();
    format!("--runtime-dir={dir}")
}

/// The recorded cluster, with a part of gpuos's in the record of n2.
fn site(release: &str) -> Site {
    let site = Site::new(release);
    let text = std::fs::read_to_string(site.path("nodes.txt")).unwrap();
    let (before, after) = text.split_once("NodeName=n2 ").unwrap();
    let (line, after) = after.split_once('\n').unwrap();
    let extra = "   Extra=rack 7 [gpuos:1 out=7 degraded=2]";
    site.file(
        "nodes.txt",
        &format!("{before}NodeName=n2 {line}\n{extra}\n{after}"),
    );
    site
}

#[test]
fn one_table_of_each_kind_is_printed_once() {
    let site = site("24.11.5");
    let run = daemon(&site);
    let answer = site.run(&["top", "--once", &run]);
    assert_eq!((answer.code, answer.err.as_str()), (0, ""));
    let golden = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/top-once.txt");
    if std::env::var_os("GPUOS_UPDATE_GOLDEN").is_some() {
        std::fs::write(&golden, &answer.out).unwrap();
    }
    let wanted = std::fs::read_to_string(&golden).unwrap();
    assert_eq!(
        answer.out, wanted,
        "written anew with GPUOS_UPDATE_GOLDEN=1"
    );
}

#[test]
fn a_job_whose_checkpoints_are_not_stored_is_told() {
    let site = site("24.11.5");
    let run = daemon(&site);
    let told = CheckpointJob {
        failed_in_row: 3,
        failed_why: "checkpoint 7: no space on n2".into(),
        ..job(17, CheckpointPhase::Running)
    };
    start(&site, "run", "n1", telling(&[told]));
    let answer = site.run(&["top", "--once", &run]);
    let told = "job 17 saves checkpoints that are not stored: the last 3 came to nothing, at last checkpoint 7: no space on n2; see `gpuos ckpt show 17`";
    assert!(answer.out.contains(told), "{}", answer.out);
}

#[test]
fn without_a_daemon_it_says_what_is_missing() {
    for release in RELEASES {
        let site = site(release);
        let none = format!("--runtime-dir={}", site.path("nowhere"));
        let answer = site.run(&["top", "--once", &none]);
        assert_eq!(answer.code, 0, "{}", answer.err);
        let out = &answer.out;
        assert!(out.contains("4 nodes, 32 GPUs: "), "{release}: {out}");
        assert!(out.contains("9 out, 1 degraded"), "{release}: {out}");
        let missing = "no temperature, power and load of this node's GPUs: no gpuosd answers here";
        assert!(
            out.contains(missing) && out.contains("systemctl start gpuosd"),
            "{out}"
        );
        let json = site.run(&["top", "--json", &none]).json();
        assert_eq!(json["nodes"][1]["out"], 1, "{release}");
        assert_eq!(json["gpus"][8 + 7]["state"], "out", "{release}");
        assert_eq!(json["gpus"][8 + 2]["state"], "degraded", "{release}");
        assert!(json["gpus"][0]["celsius"].is_null());
    }
}

#[test]
fn without_slurm_the_node_itself_is_shown_and_without_both_it_fails() {
    let site = site("22.05.8");
    let run = daemon(&site);
    site.program(
        "scontrol",
        "#!/bin/sh\necho 'cannot contact slurmctld' >&2\nexit 1\n",
    );
    let answer = site.run(&["top", "--once", &run]);
    assert_eq!(answer.code, 0);
    assert!(
        answer.out.contains("cannot contact slurmctld"),
        "{}",
        answer.out
    );
    assert!(answer.out.contains("1 node, 8 GPUs"), "{}", answer.out);
    let none = format!("--runtime-dir={}", site.path("nowhere"));
    let answer = site.run(&["top", "--once", &none]);
    assert_eq!(answer.code, 1);
    assert!(
        answer.out.contains("systemctl start gpuosd"),
        "{}",
        answer.out
    );
}

#[test]
fn order_and_filter() {
    let site = site("24.11.5");
    let run = daemon(&site);
    let json = site.run(&["top", "--json", &run]).json();
    assert_eq!(json["schema"], "gpuos.top/1");
    let hot = site
        .run(&["top", "--once", "--sort=-c", "--filter=n1", &run])
        .out;
    let gpus: Vec<&str> = hot
        .lines()
        .skip_while(|l| !l.contains("BUSY%"))
        .skip(1)
        .take(2)
        .collect();
    assert!(
        gpus[0].contains(" 84 ") && gpus[1].contains(" 71 "),
        "{hot}"
    );
    assert!(!hot.contains("\nn2 "), "{hot}");
    let wrong = site.run(&["top", "--once", "--sort=heat"]);
    assert_eq!(wrong.code, 2);
    assert!(
        wrong.err.contains("write one of") && wrong.err.contains("WATTS"),
        "{}",
        wrong.err
    );
    let screen = site.run(&["top", &run]);
    assert_eq!(screen.code, 1);
    assert!(screen.err.contains("--once"), "{}", screen.err);
}

/// A Prometheus that answers each question with what it has, as gpuosd's metrics are named; its address.
fn prometheus(of: &'static [(&str, &str, &str, &str)]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut reader = BufReader::new(stream.unwrap());
            let (mut head, mut length) = (String::new(), 0);
            while !head.ends_with("\r\n\r\n") && reader.read_line(&mut head).unwrap() > 0 {}
            for line in head.to_lowercase().lines() {
                if let Some(value) = line.strip_prefix("content-length: ") {
                    length = value.parse().unwrap();
                }
            }
            assert!(
                head.starts_with("POST /api/v1/query HTTP/1.1\r\n"),
                "{head}"
            );
            let mut form = vec![0; length];
            reader.read_exact(&mut form).unwrap();
            let form = String::from_utf8(form).unwrap();
            let asked = ["gpuos_gpu_polled", "gpuos_gpu_fault", "temperature_celsius"];
            let asked = asked.into_iter().find(|name| form.contains(name)).unwrap();
            let series = of.iter().filter(|(name, ..)| match asked {
                "temperature_celsius" => !name.is_empty() && !name.contains('-'),
                "gpuos_gpu_fault" => name.contains('-'),
                _ => name.is_empty(),
            });
            let series = series.map(|(name, node, gpu, value)| {
                let what = if name.contains('-') { "rule" } else { "__name__" };
                serde_json::json!({
                    "metric": { what: name, "node": node, "gpu": gpu }, "value": [1795312127.4, value],
                })
            });
            let series: Vec<serde_json::Value> = series.collect();
            let data = serde_json::json!({ "resultType": "vector", "result": series });
            let body = serde_json::json!({ "status": "success", "data": data }).to_string();
            let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n";
            let answer = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
            reader.get_mut().write_all(answer.as_bytes()).unwrap();
        }
    });
    url
}

const TOLD: &[(&str, &str, &str, &str)] = &[
    ("", "n2", "0", "1"),
    ("gpuos_gpu_temperature_celsius", "n2", "0", "66"),
    ("gpuos_gpu_power_watts", "n2", "0", "412.5"),
    ("gpuos_gpu_utilization_ratio", "n2", "0", "0.97"),
    ("gpuos_gpu_memory_used_bytes", "n2", "0", "71303168000"),
    ("xid-79", "n2", "7", "1"),
    // gpuosd of this node knows better, and there is no such node and no such GPU.
    ("gpuos_gpu_temperature_celsius", "n1", "0", "99"),
    ("gpuos_gpu_temperature_celsius", "n77", "0", "99"),
    ("gpuos_gpu_temperature_celsius", "n2", "99", "99"),
    ("gpuos_gpu_temperature_celsius", "n2", "1", "NaN"),
];

#[test]
fn heat_power_and_load_of_other_nodes_come_from_prometheus() {
    let site = site("24.11.5");
    let run = daemon(&site);
    let url = prometheus(TOLD);
    let asked = format!("--prometheus={url}/");
    let json = site.run(&["top", "--json", &run, &asked]).json();
    let gpu = &json["gpus"][8];
    assert_eq!(
        (&gpu["celsius"], &gpu["power_mw"]),
        (&66.into(), &412_500.into())
    );
    assert_eq!(
        (&gpu["busy_percent"], &gpu["memory_mib"]),
        (&97.into(), &68_000.into())
    );
    assert_eq!(json["gpus"][0]["celsius"], 84);
    assert!(json["gpus"][9]["celsius"].is_null());
    let figures = |node: usize| &json["nodes"][node]["figures"];
    assert_eq!(
        (figures(0), figures(1)),
        (&"gpuosd".into(), &"prometheus".into())
    );
    assert!(figures(2).is_null());
    assert_eq!(json["nodes"][1]["max_celsius"], 66);
    let mut faults = json["faults"].as_array().unwrap().iter();
    assert!(faults.any(|fault| fault["node"] == "n2" && fault["rule"] == "xid-79"));
    let missing = json["missing"][0].as_str().unwrap();
    assert!(
        missing.contains("of n[3-4]: Prometheus has nothing of them"),
        "{missing}"
    );
    // The same from gpuos.toml.
    site.file(
        "gpuos.toml",
        &format!("[metrics]\nprometheus = \"{url}\"\n"),
    );
    let config = site.path("gpuos.toml");
    let same = site
        .run(&["top", "--json", &run, "--config", &config])
        .json();
    assert_eq!(same["gpus"], json["gpus"]);
}

#[test]
fn a_prometheus_that_does_not_answer_is_said_and_all_else_is_shown() {
    let site = site("24.11.5");
    let run = daemon(&site);
    let free = format!("127.0.0.1:{}", crate::port::port());
    let asked = format!("--prometheus=http://{free}");
    let answer = site.run(&["top", "--once", &run, &asked]);
    assert_eq!(answer.code, 0, "{}", answer.err);
    let said =
        format!("no temperature, power and load of other nodes: Prometheus at http://{free}: ");
    assert!(
        answer.out.contains(&said) && answer.out.contains("4 nodes"),
        "{}",
        answer.out
    );
    let wrong = site.run(&["top", "--once", "--prometheus=prom:9090"]);
    assert_eq!(wrong.code, 2);
    assert!(
        wrong.err.contains("write http://HOST:PORT"),
        "{}",
        wrong.err
    );
}
