//! What comes over the network: heartbeats, and questions of a Prometheus.

use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use gpuos_core::peers::{Body, Datagram, Word};
use gpuos_lab::field;

use crate::attempt::{Attempt, Judge, Wave, attempt, ensure, judge, known};
use crate::stage::{Stage, first_line};
use crate::users::MALLORY;

/// SECURITY.md's names of the inputs.
const BEATS: &str = "Heartbeats (UDP)";
const METRICS: &str = "Requests for metrics (HTTP)";

/// Connections that a slow client opens.
const SLOW: usize = 64;

/// The attempts.
pub fn all() -> Vec<Attempt> {
    let mut all = Vec::new();
    beats(&mut all);
    metrics(&mut all);
    all
}

/// The number of a node's port.
fn port(stage: &Stage, node: &str) -> String {
    let text = stage.cluster.run("scontrol", &["show", "node", node]);
    let own = text
        .lines()
        .find_map(|line| field(line.trim(), "Port").map(str::to_owned));
    own.unwrap_or_else(|| {
        // 6818 and the like are only shown where they are not the default.
        let conf = std::fs::read_to_string(stage.path("etc/slurm.conf")).unwrap_or_default();
        let line = conf
            .lines()
            .find(|line| line.starts_with(&format!("NodeName={node} ")));
        let port = line.and_then(|line| line.split("Port=").nth(1)?.split(' ').next());
        port.unwrap_or("6818").to_owned()
    })
}

fn beats(all: &mut Vec<Attempt>) {
    let heard = "the nodes of a job hear each other, and none is set down";
    all.push(
        attempt(
            BEATS,
            "holds the port before gpuosd does",
            heard,
            |stage: &Stage| -> Judge {
                let ports = ["n2", "n3"].map(|node| port(stage, node));
                let ports: Vec<&str> = ports.iter().map(String::as_str).collect();
                let mut part = stage.part(MALLORY.uid, "bind", &ports);
                first_line(&mut part);
                stage.keep(part);
                // What the nodes of the victim's job hear is looked at when that runs.
                known(Ok(()))
            },
        )
        .in_wave(Wave::Early)
        .short(),
    );
    all.push(
        attempt(
            BEATS,
            "whether the nodes hear each other all the same",
            heard,
            |_: &Stage| hear(),
        )
        .short(),
    );
    let forged = "neither is believed: no node is set down, and the nodes still hear each other";
    for (name, body) in [
        (
            "votes that a node is gone, sealed as a user",
            Body::Vote {
                about: "n3".into(),
                nonce: 1,
                word: Word::Gone,
            },
        ),
        (
            "a farewell in another node's name, sealed as a user",
            Body::Bye,
        ),
    ] {
        all.push(attempt(
            BEATS,
            name,
            forged,
            move |stage: &Stage| -> Judge {
                let socket = stage.path("munge/socket").display().to_string();
                let text = String::from_utf8(Datagram::new("n3", "n2", body.clone()).encode())
                    .unwrap_or_default();
                let sealed = stage.said(
                    stage
                        .command(MALLORY, "munge")
                        .args(["-S", &socket, "-s", &text]),
                );
                let address = format!("127.0.0.1:{}", port(stage, "n2"));
                let sender = UdpSocket::bind("127.0.0.1:0").expect("a socket");
                // Again and again the same one, too.
                for _ in 0..20 {
                    let sealed = sealed.as_deref().unwrap_or_default().trim();
                    let _ = sender.send_to(sealed.as_bytes(), &address);
                    let _ = sender.send_to(text.as_bytes(), &address);
                }
                hear()
            },
        ));
    }
    all.push(attempt(
        BEATS,
        "20,000 datagrams of nonsense",
        forged,
        |stage: &Stage| -> Judge {
            let address = format!("127.0.0.1:{}", port(stage, "n2"));
            let sender = UdpSocket::bind("127.0.0.1:0").expect("a socket");
            for at in 0..20_000usize {
                let text = format!("MUNGE:{}:", "A".repeat(at % 1400));
                let _ = sender.send_to(text.as_bytes(), &address);
            }
            hear()
        },
    ));
}

/// The nodes of the victim's wide job hear each other, after all that was tried. It is looked once for all attempts.
fn hear() -> Judge {
    judge(|stage| {
        let seen = stage.hears.borrow().clone();
        let seen = seen.unwrap_or_else(|| look(stage));
        stage.hears.replace(Some(seen.clone()));
        seen
    })
}

fn look(stage: &Stage) -> Result<(), String> {
    let alive = |node: &str, other: &str| {
        let status = stage.status(node).ok()?;
        let peer = status.peers.into_iter().find(|peer| peer.node == other)?;
        (peer.state == "alive").then_some(())
    };
    let both = || alive("n2", "n3").and(alive("n3", "n2"));
    stage.try_until(both).ok_or_else(|| {
        let seen = stage.status("n2");
        format!(
            "{:?}",
            seen.map(|status| (status.peers, status.daemon.troubles))
        )
    })?;
    stage.run_on(&[stage.victims.wide])
}

/// What a client is answered, and how long that took.
fn scrape(stage: &Stage, request: &str) -> Result<(String, Duration), String> {
    let begun = Instant::now();
    let mut stream = TcpStream::connect(&stage.metrics).map_err(|e| e.to_string())?;
    let limit = Some(Duration::from_secs(60));
    stream.set_read_timeout(limit).map_err(|e| e.to_string())?;
    stream
        .write_all(request.as_bytes())
        .map_err(|e| e.to_string())?;
    let mut text = String::new();
    stream
        .read_to_string(&mut text)
        .map_err(|e| e.to_string())?;
    Ok((text, begun.elapsed()))
}

const ASK: &str = "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";

fn metrics(all: &mut Vec<Attempt>) {
    let answered = "a Prometheus is answered, and not after all of them";
    all.push(
        attempt(
            METRICS,
            "64 clients that send a byte now and then",
            answered,
            |stage: &Stage| -> Judge {
                let mut slow: Vec<TcpStream> = (0..SLOW)
                    .filter_map(|_| TcpStream::connect(&stage.metrics).ok())
                    .collect();
                for one in &mut slow {
                    let _ = one.write_all(b"GET /metrics HTTP/1.1\r\nHost:");
                }
                std::thread::sleep(Duration::from_millis(300));
                let told = scrape(stage, ASK);
                drop(slow);
                known(told.and_then(|(text, took)| {
                    ensure(text.contains("gpuosd_build_info"), || text.clone())?;
                    // One after the other they would be waited for four times as long.
                    ensure(took < Duration::from_secs(30), || format!("after {took:?}"))
                }))
            },
        )
        .short(),
    );
    let files = "it answers with an error, and gpuosd goes on";
    for (name, request) in [
        (
            "asks for a file of the machine",
            "GET /../../../etc/passwd HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".to_owned(),
        ),
        (
            "sends a head of 1 MiB",
            format!(
                "GET /metrics HTTP/1.1\r\nX: {}\r\n\r\n",
                "x".repeat(1 << 20)
            ),
        ),
        (
            "sends two requests in one",
            format!(
                "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 9999999\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{ASK}"
            ),
        ),
    ] {
        all.push(attempt(
            METRICS,
            name,
            files,
            move |stage: &Stage| -> Judge {
                // An end without an answer is an answer as well.
                let told = scrape(stage, &request)
                    .map(|(text, _)| text)
                    .unwrap_or_default();
                judge(move |stage| {
                    let good =
                        told.starts_with("HTTP/1.1 2") && !told.contains("gpuosd_build_info");
                    ensure(!told.contains("root:x:") && !good, || told.clone())?;
                    let (text, _) = scrape(stage, ASK)?;
                    ensure(text.contains("gpuosd_build_info"), || text.clone())
                })
            },
        ));
    }
    all.push(
        attempt(
            METRICS,
            "names of jobs in labels",
            "each line is one sample, and no job's name is there",
            |_: &Stage| -> Judge {
                judge(|stage| {
                    let (text, _) = scrape(stage, ASK)?;
                    let body = text.split("\r\n\r\n").nth(1).unwrap_or_default();
                    let wrong = body
                        .lines()
                        .find(|line| !(line.starts_with('#') || is_sample(line)));
                    ensure(wrong.is_none() && !body.contains("phantom"), || {
                        wrong.unwrap_or("phantom").to_owned()
                    })
                })
            },
        )
        .in_wave(Wave::Unchecked),
    );
}

/// Whether a line is `name{labels} number`.
fn is_sample(line: &str) -> bool {
    let Some((name, value)) = line.rsplit_once(' ') else {
        return false;
    };
    let plain = name.starts_with("gpuos") || name.starts_with("process_");
    plain && value.parse::<f64>().is_ok()
}
