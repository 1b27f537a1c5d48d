//! Labs of a generated site: a PBS as its administrator has made it, and gpuos in it.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use gpuos_lab::LabSpec;
use gpuos_lab::pbs::{MOM, PbsLab};
use gpuos_tests::plugins::{built, daemons, programs};
use serde_json::{Value, json};

use super::host::Host;
use super::look::text;
use super::site::{GPUS, Site};

/// How long vnodes may take to be there.
const LIMIT: Duration = Duration::from_secs(60);

/// How long gpuos may take to say of all hosts what is counted there.
const WHILE: Duration = Duration::from_secs(25);

fn ran<T>(result: Result<T, gpuos_lab::LabError>) -> T {
    result.unwrap_or_else(|e| panic!("{e}"))
}

fn until(limit: Duration, there: impl Fn() -> bool) -> bool {
    let deadline = Instant::now() + limit;
    while Instant::now() < deadline {
        if there() {
            return true;
        }
        sleep(Duration::from_millis(100));
    }
    there()
}

/// Times that a lab may fail to start: PBS asks a new database that is not up yet on a machine with much to do.
const TRIES: usize = 2;

/// The site's PBS without gpuos, on hosts that have simulated GPUs with their daemon, or nothing of that kind.
pub fn up(prefix: &Path, site: &Site, name: &str, simulated: bool) -> PbsLab {
    let spec = LabSpec {
        nodes: 4.into(),
        node_type: "dgx-h100".into(),
        pbs: Some(prefix.to_path_buf()),
        simulated_gpus: simulated.then(|| daemons().to_path_buf()),
        ..LabSpec::unique(name)
    };
    let mut tries = (0..TRIES).map(|_| PbsLab::up(&spec, &mut |_| ()));
    let lab = tries.find(|lab| lab.is_ok());
    let lab = ran(lab.unwrap_or_else(|| PbsLab::up(&spec, &mut |_| ())));
    for host in &site.hosts {
        let name = &host.name[..];
        ran(lab.kill(name, MOM, 15));
        // The lab's moms say how many GPUs there are; here qmgr does.
        ran(lab.run_on(name, None, "pbs_mom", &["-s", "remove", "gpus"]));
        let file = lab.dir().join(format!("work/vnodes.{name}"));
        fs::write(&file, host.vnode_definition()).expect("written");
        let file = file.display().to_string();
        ran(lab.run_on(name, None, "pbs_mom", &["-s", "insert", "site", &file]));
        ran(lab.run("qmgr", &["-c", &format!("delete node {name}")]));
        ran(lab.start(name, MOM));
        ran(lab.run("qmgr", &["-c", &format!("create node {name}")]));
    }
    let vnodes: Vec<String> = site.hosts.iter().flat_map(|host| host.vnodes()).collect();
    let all_free = || {
        let found = pbsnodes(&lab);
        vnodes.iter().all(|vnode| found[vnode]["state"] == "free")
    };
    assert!(until(LIMIT, all_free), "{:#}", pbsnodes(&lab));
    qmgr(&lab, &Site::resources());
    qmgr(&lab, &site.lines());
    if !site.labels_after_install {
        qmgr(&lab, &site.labels());
    }
    let config = lab.home("head").join("sched_priv/sched_config");
    let mut lines = fs::read_to_string(&config).expect("sched_config");
    for (name, value) in &site.sched_config {
        let own = |line: &&str| !line.trim_start().starts_with(&format!("{name}:"));
        let others: Vec<&str> = lines.lines().filter(own).collect();
        lines = format!("{}\n{name}: {value}\n", others.join("\n"));
    }
    fs::write(&config, lines).expect("written");
    hang_up(&lab, "head", "pbs_sched");
    lab
}

/// Gives qmgr lines, none of which it refuses.
pub fn qmgr(lab: &PbsLab, lines: &str) {
    let file = lab.dir().join("work/qmgr");
    fs::write(&file, lines).expect("written");
    let said = ran(lab.output("sh", &["-c", &format!("qmgr <{}", file.display())]));
    let errors = String::from_utf8_lossy(&said.stderr);
    assert!(!errors.contains("rror"), "{errors}\n{lines}");
}

fn hang_up(lab: &PbsLab, host: &str, daemon: &str) {
    if let Some(pid) = lab.pid(host, daemon) {
        let kill = Command::new("kill")
            .args(["-HUP", &pid.to_string()])
            .status();
        assert!(kill.expect("kill runs").success());
    }
}

fn pbsnodes(lab: &PbsLab) -> Value {
    let said = lab.run("pbsnodes", &["-av", "-F", "json"]);
    let mut all: Value = serde_json::from_str(&said.unwrap_or_default()).unwrap_or_default();
    all["nodes"].take()
}

/// What a site has before gpuos comes, to be held against what it has when gpuos is gone: vnodes, and the scheduler's configuration.
pub fn snapshot(lab: &PbsLab) -> String {
    let mut nodes = pbsnodes(lab);
    for vnode in nodes.as_object_mut().into_iter().flatten() {
        let said = vnode.1.as_object_mut().expect("a vnode");
        said.retain(|key, _| !key.contains("time"));
    }
    let config = lab.home("head").join("sched_priv/sched_config");
    let config = fs::read_to_string(config).expect("sched_config");
    format!("{nodes:#}\n{config}")
}

/// `gpuos pbs install`, until moms have the hook and say what they count; a sentence where hosts are left out or are counted
/// otherwise than by the site.
pub fn install(lab: &PbsLab, site: &Site) -> Option<String> {
    let with_gpus = site.hosts.iter().filter(|host| host.ngpus > 0);
    let hosts: Vec<_> = with_gpus.collect();
    let described = hosts.iter().enumerate().map(|(at, host)| {
        let gpus = vec![json!({}); GPUS as usize];
        let host_of = json!({ "leaf": format!("l{}", at / 2), "gpus": gpus });
        (host.name.clone(), host_of)
    });
    let described = Value::from(described.collect::<serde_json::Map<_, _>>());
    let file = lab.dir().join("work/gpus.json");
    fs::write(&file, described.to_string()).expect("written");
    let path = |path: std::path::PathBuf| path.display().to_string();
    let (file, library) = (path(file), path(built().join("libgpuos_pbs_hook.so")));
    let words = ["pbs", "install", "--hosts", &file, "--library", &library];
    let said = ran(lab.run(&path(programs().join("gpuos")), &words));
    let left_out = said.lines().filter(|line| line.contains(" left out"));
    let mut wrong: Vec<String> = left_out.map(str::to_owned).collect();
    for host in &site.hosts {
        let folder = lab.home(&host.name).join("mom_priv/hooks");
        let parts = ["gpuos.HK", "gpuos.PY", "gpuos.CF"];
        let there = || parts.iter().all(|part| folder.join(part).is_file());
        assert!(until(LIMIT, there), "{} gets no hook", host.name);
        if site.running_at_install {
            hang_up(lab, &host.name, MOM);
        } else {
            ran(lab.kill(&host.name, MOM, 15));
            ran(lab.start(&host.name, MOM));
        }
    }
    let counted = || {
        let nodes = pbsnodes(lab);
        let of = |host: &str| -> u64 {
            let all = nodes.as_object().into_iter().flatten();
            let own = all.filter(|(name, _)| name.split('[').next() == Some(host));
            own.filter_map(|(_, vnode)| {
                text(&vnode["resources_available"]["ngpus"])
                    .parse::<u64>()
                    .ok()
            })
            .sum()
        };
        let all = site.hosts.iter();
        let all = all.filter(|host| of(&host.name) != host.ngpus);
        let all = all.map(|host| format!("{}: {} of {}", host.name, of(&host.name), host.ngpus));
        all.collect::<Vec<_>>().join(", ")
    };
    let known = || {
        let nodes = pbsnodes(lab);
        let leaf = |name: &String| {
            let own = &nodes[name]["resources_available"];
            own["gpuos_leaf"].is_string()
        };
        let is_up = |host: &Host| {
            nodes[&host.name]["state"] != "down"
                && nodes[&host.name]["state"] != "state-unknown,down"
        };
        site.hosts.iter().all(is_up)
            && hosts.iter().all(|host| host.split || leaf(&host.name))
            && counted().is_empty()
    };
    if wrong.is_empty() {
        until(WHILE, known);
    }
    wrong.push(counted());
    Some(wrong.join("\n")).filter(|wrong| !wrong.is_empty())
}

/// `gpuos pbs remove`, and what is then not as it was before.
pub fn remove(lab: &PbsLab, before: &str) -> Option<String> {
    let said = ran(lab.output(
        &programs().join("gpuos").display().to_string(),
        &["pbs", "remove"],
    ));
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    if until(WHILE, || snapshot(lab) == before) {
        return None;
    }
    let after = snapshot(lab);
    let lines = |a: &str, b: &str| -> String {
        let b: std::collections::BTreeSet<&str> = b.lines().collect();
        let own = a.lines().filter(|line| !b.contains(line));
        own.take(12)
            .map(|line| format!("{}\n", line.trim()))
            .collect()
    };
    Some(format!(
        "{said}\nbefore alone:\n{}after alone:\n{}",
        lines(before, &after),
        lines(&after, before)
    ))
}
