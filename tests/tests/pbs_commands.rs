//! `gpuos plan`, `topo`, `top`, `mig` and `doctor` on a PBS: what they say is held against
//! what PBS and the planner then do.

use std::collections::BTreeSet;
use std::process::Output;

use gpuos_lab::pbs::{GPUOSD, PbsLab};
use gpuos_tests::{costs, pbs};
use serde_json::Value;

use crate::pbs_site::{
    GPUS, LIMIT, NODES, SERVER, gpuos, gpus, ran, reaches, signal, submit, until, up,
};

/// The command on a host, for PBS: this machine may have Slurm's commands too.
fn asked(lab: &PbsLab, (host, user): (&str, Option<&str>), args: &[&str]) -> Output {
    let mut command = ran(lab.command_on(host, user, &gpuos()));
    command.args(args).arg("--pbs").output().unwrap()
}

fn text(lab: &PbsLab, args: &[&str]) -> String {
    let out = asked(lab, ("head", None), args);
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(said.is_empty() || said.contains("PBS"), "{out:?}");
    String::from_utf8(out.stdout).unwrap()
}

fn json(lab: &PbsLab, args: &[&str]) -> Value {
    let text = text(lab, &[&["--json"], args].concat());
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// The words of the doctor's findings of a status.
fn found(lab: &PbsLab, host: &str, user: Option<&str>, status: &str) -> BTreeSet<String> {
    let out = asked(lab, (host, user), &["--json", "doctor"]);
    let said: Value = serde_json::from_slice(&out.stdout).unwrap_or_default();
    let checks = said["checks"].as_array().cloned().unwrap_or_default();
    assert!(!checks.is_empty(), "{out:?}");
    let of = checks.iter().filter(|check| check["status"] == status);
    let words = of.filter_map(|check| check["name"].as_str());
    words.map(str::to_owned).collect()
}

fn set(words: &[&str]) -> BTreeSet<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

#[test]
fn each_command_says_what_pbs_has_and_does() {
    let Some(prefix) = pbs("gpuos plan, topo, top, mig and doctor on PBS") else {
        return;
    };
    let _cost = costs::of("slurm::pbs_commands");
    let lab = up(&prefix, "pbs-cmds");
    plan_is_what_the_planner_does(&lab);
    topo_and_top(&lab);
    doctor_on_each_host(&lab);
    // No gpuosd: told, and no question of Slurm.
    let out = ran(lab
        .command_on("head", None, &gpuos())
        .map(|mut command| command.arg("mig").output().unwrap()));
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(
        said.contains("gpuosd") && !said.contains("scontrol"),
        "{out:?}"
    );
    ran(lab.down());
}

/// A job that is submitted as the plan says starts exactly where the plan says.
fn plan_is_what_the_planner_does(lab: &PbsLab) {
    // The scheduler is away, so that it is the planner's move.
    let one = submit(lab, &["-l", "select=1:ngpus=1:ncpus=1"], "sleep 1000\n");
    reaches(lab, &one, "R", LIMIT);
    signal(lab, "-STOP");
    let wish = "--topology=leaf:required";
    let said = json(lab, &["plan", "--gpus-per-node=8", "--nodes=2", wish]);
    assert_eq!(said["fits"], true, "{said}");
    assert_eq!(said["place"]["level"], "leaf", "{said}");
    let planned = said["exec_vnode"].as_str().unwrap();
    assert_eq!(gpus(planned).values().sum::<usize>(), 2 * GPUS, "{planned}");
    let words: Vec<&str> = said["qsub"].as_str().unwrap().split(' ').skip(1).collect();
    let gang = submit(lab, &words, "sleep 1000\n");
    // It comes before whoever is planned now: no leaf is left.
    let next = json(lab, &["plan", "--gpus-per-node=8", "--nodes=2", wish]);
    assert_eq!(
        (&next["fits"], &next["held_up"]),
        (&false.into(), &true.into())
    );
    let mut command = ran(lab.command(&gpuos()));
    let done = command.args(["pbs-planner", "--once"]).output().unwrap();
    assert!(done.status.success(), "{done:?}");
    reaches(lab, &gang, "R", LIMIT);
    let given = ran(lab.job(&gang, "exec_vnode")).unwrap();
    assert_eq!(gpus(&given), gpus(planned));
    signal(lab, "-CONT");
    let refused = asked(
        lab,
        ("head", None),
        &["plan", "--gpus=1", "--topology=rack"],
    );
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("PBS would refuse `qsub"), "{said}");
    // A user sees the same.
    let user = asked(
        lab,
        ("head", Some("user1")),
        &["plan", "--gpus=2", "--topology=nvlink"],
    );
    let said = String::from_utf8_lossy(&user.stdout);
    assert!(said.contains("all linked by NVLink"), "{user:?}");
}

fn topo_and_top(lab: &PbsLab) {
    let said = json(lab, &["topo"]);
    assert_eq!(said["gpus"], NODES * GPUS);
    assert_eq!(said["free_gpus"], NODES * GPUS - 1 - 2 * GPUS, "{said}");
    let leaf = &said["levels"][0];
    assert_eq!(
        (&leaf["name"], &leaf["domains"][1]["nodes"][0]),
        (&"leaf".into(), &"n3".into())
    );
    let node = text(lab, &["topo", "n2"]);
    assert!(node.contains("NVLink") || node.contains("NV"), "{node}");
    let said = json(lab, &["top"]);
    let used = said["gpus"].as_array().unwrap().iter();
    let used = used.filter(|gpu| gpu["state"] == "allocated" && gpu["jobs"][0].is_string());
    assert_eq!(used.count(), 1 + 2 * GPUS);
    assert_eq!(said["jobs"].as_array().map(Vec::len), Some(2), "{said}");
    // A GPU that is out of service is shown as such, with the comment.
    let free = said["gpus"].as_array().unwrap().iter();
    let free = free
        .clone()
        .find(|gpu| gpu["state"] == "available")
        .unwrap();
    let (node, gpu) = (free["node"].as_str().unwrap(), free["index"].to_string());
    ran(lab.fault(node, &format!("gpu{gpu}"), &["row-remap", "failure"]));
    until("the GPU is shown as out", || {
        let said = json(lab, &["top"]);
        let mut gpus = said["gpus"].as_array().unwrap().iter();
        gpus.any(|one| {
            let reason = one["reason"].as_str().unwrap_or_default();
            one["state"] == "out" && reason.contains("out of service")
        })
    });
    ran(lab.fault(node, &format!("gpu{gpu}"), &["repair"]));
    let name = format!("{node}:{gpu}");
    ran(lab.run_on(node, None, &gpuos(), &["online", &name, "--local"]));
}

fn doctor_on_each_host(lab: &PbsLab) {
    // The hook was told of a planner, and none runs.
    let warned = found(lab, "head", None, "warn");
    assert_eq!(warned, set(&["planner"]));
    let well = found(lab, "head", None, "ok");
    let parts = [
        "pbs.conf",
        "pbs_server",
        "hook",
        "resources",
        "vnodes",
        "command",
        "sched_config",
        "left over",
    ];
    assert!(well.is_superset(&set(&parts)), "{well:?}");
    assert_eq!(found(lab, "head", None, "fail"), set(&[]));
    // On a mom's host the library counts, and gpuosd.
    assert_eq!(found(lab, "n1", None, "warn"), set(&[]));
    ran(lab.kill("n1", GPUOSD, 9));
    until("the doctor misses gpuosd", || {
        found(lab, "n1", None, "warn") == set(&["gpuosd"])
    });
    ran(lab.start("n1", GPUOSD));
    assert!(found(lab, "n1", None, "ok").is_superset(&set(&["hook", "library", "vnodes"])));
    // A user is told what he may not see.
    assert!(found(lab, "head", Some("user1"), "note").contains("hook"));
    for (line, word) in [
        ("set hook gpuos enabled = false", "hook"),
        ("set hook gpuos enabled = true", ""),
        ("set hook gpuos event -= runjob", "hook"),
        ("set hook gpuos event += runjob", ""),
    ] {
        ran(lab.run("qmgr", &["-c", line]));
        let failed = found(lab, "head", None, "fail");
        let wanted: BTreeSet<String> = Some(word)
            .filter(|word| !word.is_empty())
            .map(str::to_owned)
            .into_iter()
            .collect();
        assert_eq!(failed, wanted, "{line}");
    }
    ran(lab.kill("head", SERVER, 15));
    until("pbs_server has ended", || lab.pid("head", SERVER).is_none());
    assert!(found(lab, "head", None, "fail").contains("pbs_server"));
    ran(lab.start("head", SERVER));
    until("the doctor finds all well again", || {
        found(lab, "head", None, "fail").is_empty()
    });
}
