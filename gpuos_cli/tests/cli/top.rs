//! `gpuos top --once` and `--json`, with a gpuosd of a recorded status and without one.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use gpuos_core::wire::{Happening, Peer, Reply, Request, Status};
use gpuos_host::socket::{Desk, Limits, NAME, Server, bind};

use crate::site::{RELEASES, Site};

/// Answers with a recorded status.
struct Recorded(Status);

impl Desk for Recorded {
    fn who(&self) -> (String, String) {
        ("0.1.0".into(), self.0.node.clone())
    }

    fn ask(&self, _peer: Peer, _request: Request) -> Reply {
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
