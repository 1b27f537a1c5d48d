//! `gpuos pbs` on a qmgr that notes what it is told, and `gpuos pbs-hook`.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::site::{Answer, Site};

/// A PBS of which there are a qmgr and a pbs.conf; `hook` and `resource` are what qmgr lists.
fn pbs(hook: &str, resource: &str) -> Site {
    let site = Site::new("24.11.5");
    let dir = site.path("");
    site.file("hook.list", hook);
    site.file("resource.list", resource);
    site.file(
        "node.list",
        "Node n1[0]\n    resources_available.gpuos_uuid = GPU-a\n",
    );
    let script = format!(
        "#!/bin/sh\necho \"$2\" >> {dir}/said\ncase \"$2\" in\n\
         'list hook') cat {dir}/hook.list ;;\n\
         'list resource') cat {dir}/resource.list ;;\n\
         'list node @default') cat {dir}/node.list ;;\n\
         'list server') [ -f {dir}/away ] && exit 1 ;;\n\
         'export hook gpuos application/x-config default') cat {dir}/known.json ;;\n\
         'import hook gpuos application/x-config default '*) cp \"${{2##* }}\" {dir}/config.json ;;\n\
         'import hook gpuos application/x-python default '*) cp \"${{2##* }}\" {dir}/hook.py ;;\n\
         'delete resource gpuos_topology') echo 'qmgr: Error (15208) returned from server' >&2; echo 'resource busy on job' >&2; exit 1 ;;\n\
         esac\n[ ! -f {dir}/away ]\n"
    );
    site.program("qmgr", &script);
    site.file("pbs.conf", &format!("PBS_SERVER=head\nPBS_EXEC={dir}\n"));
    site
}

fn run(site: &Site, arguments: &[&str]) -> Answer {
    let conf = format!("--pbs-conf={}", site.path("pbs.conf"));
    site.run(&[arguments, &[&conf]].concat())
}

fn said(site: &Site) -> String {
    fs::read_to_string(site.path("said")).unwrap_or_default()
}

fn config(site: &Site) -> Value {
    serde_json::from_str(&fs::read_to_string(site.path("config.json")).expect("it was imported"))
        .expect("JSON")
}

const HOSTS: &str = r#"{"n1":{"leaf":"l1","gpus":[{"uuid":"GPU-a"}]}}"#;

#[test]
fn the_hook_goes_in_line_by_line() {
    let site = pbs("", "");
    site.file("gpus.json", HOSTS);
    let hosts = format!("--hosts={}", site.path("gpus.json"));
    let dry = run(&site, &["pbs", "install", "--dry-run", &hosts]);
    assert_eq!(dry.code, 0, "{}", dry.err);
    assert!(
        said(&site).lines().all(|line| line.starts_with("list ")),
        "{}",
        said(&site)
    );
    let done = run(&site, &["pbs", "install", "--library=/x/lib.so", &hosts]);
    assert_eq!(done.code, 0, "{}", done.err);
    for answer in [&dry, &done] {
        assert!(
            answer
                .out
                .contains("qmgr -c 'create resource gpuos_topology type=string,flag=m'\n"),
            "{}",
            answer.out
        );
    }
    assert!(
        said(&site).contains("create hook gpuos\n"),
        "{}",
        said(&site)
    );
    let config = config(&site);
    assert_eq!(config["library"], "/x/lib.so");
    assert_eq!(config["hosts"]["n1"]["gpus"][0]["uuid"], "GPU-a");
    assert!(
        config["command"].as_str().unwrap().ends_with("/gpuos"),
        "{config}"
    );
    let hook = fs::read_to_string(site.path("hook.py")).unwrap();
    assert_eq!(hook, include_str!("../../../../pbs_hook/gpuos_hook.py"));
    assert!(
        !hook.is_empty() && done.out.contains("sched_config"),
        "{}",
        done.out
    );
}

#[test]
fn hosts_that_are_known_stay() {
    let hook = "Hook gpuos\n    enabled = true\n    event = queuejob\n    order = 500\n    alarm = 10\n    fail_action = none\n";
    let site = pbs(hook, "");
    site.file(
        "known.json",
        &format!(r#"{{"command":"/old","library":"/old","hosts":{HOSTS}}}"#),
    );
    let done = run(&site, &["--json", "pbs", "install"]);
    assert_eq!(
        done.json()["refused"],
        serde_json::json!([]),
        "{}",
        done.err
    );
    crate::schemas::agrees("pbs-qmgr", &done.json());
    assert_eq!(config(&site)["hosts"]["n1"]["leaf"], "l1");
    assert!(
        !said(&site).contains("create hook") && !said(&site).contains("enabled"),
        "{}",
        said(&site)
    );
}

#[test]
fn what_cannot_be_is_a_sentence_and_changes_nothing() {
    let site = pbs("", "Resource gpuos_mig\n    type = long\n");
    let fails = |arguments: &[&str], words: &str| {
        let answer = run(&site, arguments);
        assert_eq!(answer.code, 1, "{}", answer.out);
        assert!(answer.err.contains(words), "{}", answer.err);
        assert!(
            said(&site).lines().all(|line| line.starts_with("list ")),
            "{}",
            said(&site)
        );
    };
    fails(&["pbs", "install"], "gpuos_mig of type long");
    fails(
        &["pbs", "install", "--library=lib.so"],
        "write a whole path",
    );
    fails(
        &["pbs", "install", "--library=/x/lib'; set server"],
        "write a whole path",
    );
    fails(
        &["pbs", "install", "--hosts=/nowhere"],
        "cannot read /nowhere",
    );
    site.file("gpus.json", r#"{"n1":{"gpu":[]}}"#);
    let hosts = format!("--hosts={}", site.path("gpus.json"));
    fails(&["pbs", "install", &hosts], "unknown field `gpu`");
    site.file("away", "");
    fails(&["pbs", "install"], "pbs_server does not answer qmgr");
    site.file("pbs.conf", "PBS_SERVER=head\n");
    fails(&["pbs", "remove"], "no line PBS_EXEC=DIRECTORY");
}

#[test]
fn the_hook_goes_out_and_what_is_in_use_is_told() {
    let site = pbs(
        "Hook gpuos\n    enabled = true\n",
        "Resource gpuos_topology\n    type = string\nResource ngpus\n    type = long\n    flag = nh\n",
    );
    let answer = run(&site, &["pbs", "remove"]);
    assert_eq!(answer.code, 1, "{}", answer.out);
    assert!(answer.out.contains("not done: delete resource gpuos_topology: qmgr: Error (15208) returned from server resource busy on job"), "{}", answer.out);
    assert!(
        said(&site).contains("delete hook gpuos\n")
            && said(&site).contains("unset node n1[0] resources_available.gpuos_uuid\n"),
        "{}",
        said(&site)
    );
    assert!(!said(&site).contains("ngpus"), "{}", said(&site));
}

#[test]
fn a_host_with_jobs_keeps_what_it_has_and_says_where_it_is() {
    let site = pbs("", "");
    site.file("gpus.json", HOSTS);
    let hosts = format!("--hosts={}", site.path("gpus.json"));
    site.file(
        "node.list",
        "Node n1\n    Mom = n1.example\n    queue = gpuq\n    jobs = 17.head/0\n    resources_available.ncpus = 64\n",
    );
    let answer = run(&site, &["pbs", "install", &hosts]);
    assert_eq!(answer.code, 0, "{}", answer.err);
    let made = said(&site);
    assert!(
        made.contains("set node n1 resources_available.ngpus = "),
        "{made}"
    );
    assert!(
        !made.contains("ncpus") && !made.contains("delete node"),
        "{made}"
    );
    // PBS counted none before, and does not when gpuos has gone.
    let before = config(&site)["before"].clone();
    assert!(
        before["n1"]["resources_available.ngpus"].is_null(),
        "{before}"
    );
}

#[test]
fn an_event_is_answered_on_standard_output() {
    let ask = |event: &[u8]| -> Value {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpuos"));
        let mut running = command
            .arg("pbs-hook")
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // Who has read enough reads no more.
        let _ = running.stdin.take().unwrap().write_all(event);
        let done = running.wait_with_output().unwrap();
        assert_eq!(done.status.code(), Some(0));
        assert_eq!(done.stdout.iter().filter(|byte| **byte == b'\n').count(), 1);
        serde_json::from_slice(&done.stdout).unwrap()
    };
    let good = ask(br#"{"schema":"gpuos.pbs/1","event":"queuejob","job":{"resources":{"select":"1:ngpus=1","gpuos_topology":"node"}}}"#);
    assert_eq!(good["edits"][0]["value"], "free:group=host");
    for bad in [&b""[..], b"\xff\0", &vec![b' '; 9 << 20]] {
        assert_eq!(ask(bad)["verdict"], "error");
    }
}
