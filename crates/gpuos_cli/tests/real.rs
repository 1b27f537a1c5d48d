//! topo, why, plan and doctor against a real slurmctld of the native release.

use std::process::Command;
use std::time::Duration;

use gpuos_lab::{Lab, LabSpec};
use serde_json::Value;

#[test]
fn the_answers_are_those_of_a_real_cluster() {
    if std::env::var("GPUOS_TEST_SUITES").is_ok_and(|names| names.trim() == "none") {
        eprintln!("SKIPPED cli-real: GPUOS_TEST_SUITES names no release");
        return;
    }
    let spec = LabSpec {
        nodes: 2.into(),
        node_type: "pairs-8".into(),
        topology_conf: Some(LabSpec::tree_topology(&["n1".into(), "n2".into()], 1)),
        ..LabSpec::unique("cli-real")
    };
    let lab = match Lab::up(&spec, &mut |_| ()) {
        Ok(lab) => lab,
        Err(e) if e.is_environment() => {
            eprintln!("skipped: {e}");
            return;
        }
        Err(e) => panic!("{e}"),
    };
    let gpuos = |args: &[&str]| {
        // The lab's own command knows its environment; only the program differs.
        let inside: Command = lab.command("scontrol").unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpuos"));
        command.arg("--json").args(args);
        for (key, value) in inside.get_envs() {
            match value {
                Some(value) => command.env(key, value),
                None => command.env_remove(key),
            };
        }
        let out = command.output().unwrap();
        let text = String::from_utf8(out.stdout).unwrap();
        let json: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
        (out.status.code().unwrap(), json)
    };

    let (code, topo) = gpuos(&["topo"]);
    assert_eq!(code, 0, "{topo}");
    assert_eq!(
        (&topo["gpus"], &topo["free_gpus"]),
        (&16.into(), &16.into())
    );
    assert_eq!(topo["release"], lab.version());
    assert_eq!(topo["nodes"][0]["type"], "pairs-8");
    assert_eq!(topo["levels"][0]["domains"][0]["nodes"][0], "n1");

    let sleep = "#!/bin/sh\nsleep 600\n";
    let first = lab.sbatch(&["--gres=gpu:8", "-t", "10"], sleep).unwrap();
    lab.wait_job(first, &["RUNNING"], Duration::from_secs(240))
        .unwrap();
    let (code, why) = gpuos(&["why", &first.to_string()]);
    assert_eq!(code, 0, "{why}");
    let place = &why["jobs"][0]["place"];
    assert_eq!(place["level"], "node");
    assert_eq!(place["nodes"][0]["gpus"].as_array().unwrap().len(), 8);

    // A gang has to wait for that job, and the plan of such a gang says the same.
    let gang = lab
        .sbatch(&["--gpus-per-node=8", "-N2", "-t", "10"], sleep)
        .unwrap();
    let (code, why) = gpuos(&["why", &gang.to_string()]);
    assert_eq!(code, 0);
    let waiting = &why["jobs"][0];
    assert_eq!(waiting["wait"]["kind"], "capacity", "{waiting}");
    assert_eq!(waiting["forecast"]["jobs"][0], first.to_string());
    let (code, plan) = gpuos(&["plan", "--gpus-per-node=8", "-N2"]);
    assert_eq!((code, &plan["fits"]), (1, &false.into()));
    assert_eq!(plan["wait"], waiting["wait"]);
    let (code, plan) = gpuos(&["plan", "--gpus-per-node=8"]);
    assert_eq!((code, &plan["fits"]), (0, &true.into()));
    assert_ne!(plan["place"]["nodes"][0]["node"], place["nodes"][0]["node"]);

    let (_, doctor) = gpuos(&["doctor"]);
    let status = |name: &str| {
        let checks = doctor["checks"].as_array().unwrap();
        checks
            .iter()
            .find(|c| c["name"] == name)
            .map(|c| c["status"].clone())
    };
    for name in [
        "slurm",
        "munge",
        "gpuos.toml",
        "fabric",
        "node types",
        "gpu counts",
    ] {
        assert_eq!(status(name), Some("ok".into()), "{name}: {doctor}");
    }
    assert_eq!(
        status("SelectType"),
        Some("warn".into()),
        "stock Slurm is selected"
    );
    lab.down().unwrap();
}
