//! `gpuos mig`, with a gpuosd that tells of a pool, and without one.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use gpuos_core::job::JobId;
use gpuos_core::wire::{
    Happening, MigGpuStatus, MigInstance, MigLoad, MigStatus, Peer, Percent, Reply, Request,
};
use gpuos_host::socket::{Limits, NAME, RequestHandler, Server, bind};
use gpuos_model::mig::MigPlacement;

use crate::site::Site;

struct Pool(MigStatus);

impl RequestHandler for Pool {
    fn who(&self) -> (String, String) {
        ("0.1.0".into(), "n1".into())
    }

    fn ask(&self, _peer: Peer, request: Request) -> Reply {
        assert_eq!(request, Request::Mig);
        let mig = Box::new(self.0.clone());
        Reply::Mig { mig }
    }

    fn watch(&self, _peer: Peer) -> Receiver<Happening> {
        channel().1
    }
}

/// A gpuosd of node n1 with this pool; the flag that names its socket.
pub fn daemon(site: &Site, status: MigStatus) -> String {
    let dir = site.path("run");
    std::fs::create_dir_all(&dir).unwrap();
    let listener = bind(&Path::new(&dir).join(NAME)).unwrap();
    Server::start(listener, Arc::new(Pool(status)), Limits::default()).unwrap();
    format!("--runtime-dir={dir}")
}

fn instance(profile: &str, start: u8, size: u8, job: Option<u32>) -> MigInstance {
    MigInstance {
        profile: profile.into(),
        placement: MigPlacement { start, size },
        gi: Some(2),
        ci: Some(0),
        uuid: Some("MIG-aaaa".into()),
        job: job.map(JobId::from),
        phase: if job.is_some() { "ready" } else { "foreign" }.into(),
        foreign: job.is_none(),
        others: false,
        pids: vec![4711],
        memory_total_mib: Some(9984),
        memory_used_mib: Some(12),
        memory_unknown: None,
        load: MigLoad {
            sm_percent: Some(Percent::of_ratio(0.5)),
            bandwidth_percent: Some(Percent::of_ratio(0.004)),
            load_unknown: None,
        },
    }
}

pub fn pool() -> MigStatus {
    let wanted = MigInstance {
        gi: None,
        ci: None,
        uuid: None,
        phase: "wanted".into(),
        pids: Vec::new(),
        memory_total_mib: None,
        memory_used_mib: None,
        memory_unknown: Some("the instance is not there".into()),
        load: MigLoad {
            load_unknown: Some("the instance is not there".into()),
            ..MigLoad::default()
        },
        ..instance("1g.10gb", 2, 1, Some(18))
    };
    let busy = MigGpuStatus {
        first: 0,
        slices: 8,
        ready: true,
        instances: vec![instance("3g.40gb", 4, 4, Some(17)), wanted],
        free: vec![0, 1, 3],
        fits: [
            ("1g.10gb".into(), 3),
            ("2g.20gb".into(), 1),
            ("3g.40gb".into(), 0),
        ]
        .into(),
        ..MigGpuStatus::new(4u8.try_into().unwrap())
    };
    let mixed = MigGpuStatus {
        gpu: 5u8.try_into().unwrap(),
        first: 8,
        instances: vec![instance("1g.10gb", 6, 1, None)],
        free: vec![0, 1, 2, 3, 4, 5],
        ..busy.clone()
    };
    MigStatus {
        board: "h100-80gb".into(),
        gpus: vec![busy, mixed],
        unread: false,
    }
}

/// What the form of the JSON is held against.
pub fn whole(site: &Site) -> String {
    let mut status = pool();
    status.gpus[1].trouble = Some("MIG mode is off".into());
    daemon(site, status)
}

#[test]
fn bars_holders_and_room_are_shown() {
    let site = Site::new("24.11.5");
    let run = daemon(&site, pool());
    let answer = site.run(&["mig", &run]);
    let wanted = "\
n1: 2 x h100-80gb, 9 of 16 memory slices free

GPU 4   [..b.aaaa]  free 0-1,3  fits 1g.10gb:3 or 2g.20gb:1

GPU 5   [......a-]  free 0-5  fits 1g.10gb:3 or 2g.20gb:1

GPU  KEY  PROFILE  SLICES  JOB  PHASE    MEMORY                           SM   BANDWIDTH  PIDS  UUID
  4  a    3g.40gb  4-7     17   ready    12/9984 MiB                      50%  <1%        4711  MIG-aaaa
  4  b    1g.10gb  2       18   wanted   n/a (the instance is not there)  n/a  n/a
  5  a    1g.10gb  6       -    foreign  12/9984 MiB                      50%  <1%        4711  MIG-aaaa
Load of 4b: n/a (the instance is not there)
1 instance made by hand: [mig] foreign in gpuos.toml says what is done about them
";
    assert_eq!(
        (answer.code, &answer.out[..]),
        (0, wanted),
        "{}",
        answer.err
    );
    let json = site.run(&["mig", "n1", "--json", &run]).json();
    assert_eq!(
        (&json["schema"], &json["node"]),
        (&"gpuos.mig/1".into(), &"n1".into())
    );
    assert_eq!((&json["free"], &json["slices"]), (&9.into(), &16.into()));
    let first = &json["mig"]["gpus"][0]["instances"][0];
    assert_eq!(
        (&first["job"], &first["sm_percent"]),
        (&17.into(), &50.0.into())
    );
}

/// The other node's answer is shown as this node's would be.
#[test]
fn another_node_is_asked_by_the_same_command_there() {
    let site = Site::new("24.11.5");
    let run = daemon(&site, pool());
    let here = site.run(&["mig", &run]).out;
    let json = site
        .run(&["mig", "--json", &run])
        .out
        .replace("\"n1\"", "\"n3\"");
    site.file("told", &json);
    let far = format!(
        "#!/bin/sh\necho \"$*\" >{}\nexec cat {}\n",
        site.path("words"),
        site.path("told")
    );
    site.program("reach", &far);
    let answer = site.run(&["mig", "n3", "--via", "reach", &run]);
    assert_eq!(answer.code, 0, "{}", answer.err);
    assert_eq!(answer.out, here.replace("n1:", "n3:"));
    let words = std::fs::read_to_string(site.path("words")).unwrap();
    assert!(
        words.starts_with("n3 gpuos --json mig --runtime-dir="),
        "{words}"
    );
}

#[test]
fn no_pool_is_a_no_and_no_daemon_an_error() {
    let site = Site::new("24.11.5");
    let nobody = site.run(&["mig", "--runtime-dir", &site.path("nowhere")]);
    assert_eq!(nobody.code, 1);
    assert!(nobody.err.contains("gpuosd"), "{}", nobody.err);
    let run = daemon(&site, MigStatus::default());
    let empty = site.run(&["mig", &run]);
    assert_eq!(empty.code, 1);
    assert!(empty.out.contains("no GPU is divided"), "{}", empty.out);
    assert_eq!(site.run(&["mig", "n[1-2]", &run]).code, 2);
    assert_eq!(site.run(&["mig", "--config", "/etc/none", &run]).code, 2);
}
