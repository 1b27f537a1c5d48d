//! `gpuos lab` from start to end.

use std::process::{Command, Output};

use gpuos_lab::{Lab, LabSpec};
use serde_json::Value;

fn gpuos(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gpuos"))
        .args(args)
        .output()
        .expect("gpuos runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn json(out: &Output) -> Value {
    serde_json::from_slice(&out.stdout).expect("JSON")
}

/// Ends the lab also when the test fails.
struct Down(String);

impl Drop for Down {
    fn drop(&mut self) {
        gpuos(&["lab", "down", "--name", &self.0]);
    }
}

#[test]
fn up_run_status_down() {
    let name = format!("cli-{}", std::process::id());
    let up = [
        "--json",
        "lab",
        "up",
        "--name",
        &name,
        "--nodes",
        "2",
        "--node-type",
        "pairs-8",
        "--select",
        "stock",
        "--switches",
        "1",
    ];
    let out = gpuos(&up);
    if !out.status.success() {
        // Only a machine that can have no lab at all excuses this.
        match Lab::up(&LabSpec::unique("cli-probe"), &mut |_| ()) {
            Err(e) if e.is_environment() => {
                eprintln!("skipped: {e}");
                return;
            }
            _ => panic!("{}{}", text(&out.stderr), text(&out.stdout)),
        }
    }
    let _down = Down(name.clone());
    let up_json = json(&out);
    assert_eq!(up_json["schema"], "gpuos.lab/1");
    assert_eq!(up_json["nodes"], serde_json::json!(["n1", "n2"]));
    assert!(up_json["slurmctld_pid"].is_u64());

    // A second one of that name is refused; the first lives on.
    assert_eq!(gpuos(&up).status.code(), Some(1));

    let run = |command: &[&str]| {
        let args = [&["lab", "run", "--name", &name, "--"], command].concat();
        gpuos(&args)
    };
    let script = "echo $SLURMD_NODENAME:$CUDA_VISIBLE_DEVICES";
    let out = run(&["srun", "--gres=gpu:2", "-w", "n2", "sh", "-c", script]);
    assert_eq!(text(&out.stdout), "n2:0,1\n", "{}", text(&out.stderr));
    assert_eq!(run(&["sh", "-c", "exit 7"]).status.code(), Some(7));
    let switches = text(&run(&["scontrol", "show", "topology"]).stdout);
    assert!(switches.contains("SwitchName=leaf2"), "{switches}");

    let status = text(&gpuos(&["lab", "status", "--name", &name]).stdout);
    assert!(status.contains("2 of 2 run"), "{status}");
    let labs = json(&gpuos(&["lab", "list", "--json"]));
    let names: Vec<&Value> = labs["labs"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|lab| &lab["name"])
        .collect();
    assert!(names.iter().any(|n| **n == name.as_str()), "{names:?}");

    let out = gpuos(&["lab", "down", "--name", &name]);
    assert_eq!(text(&out.stdout), format!("lab {name} is down\n"));
    let out = gpuos(&["lab", "down", "--name", &name]);
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stderr).contains("there is no lab named"));
}

#[test]
fn wrong_usage_is_exit_code_2() {
    for (args, part) in [
        (vec!["--slurm", "No Such"], "--slurm"),
        (vec!["--slurm", "bullseye"], "has Slurm 20.11"),
        (vec!["--slurm", "jammy"], "no Debian suite of that name"),
        (vec!["--nodes", "many"], "--nodes"),
        (vec!["--nodes", "0"], "at least one node"),
        (vec!["--node-type", "dgx-x"], "dgx-h100"),
        (vec!["--name", "a/b"], "lab name"),
        (vec!["--conf", "nonsense"], "Key=Value"),
        (vec!["--mig-switchable", "7"], "--mig"),
    ] {
        let out = gpuos(&[&["lab", "up", "--select", "stock"], &args[..]].concat());
        assert_eq!(out.status.code(), Some(2), "{args:?}");
        let error = text(&out.stderr);
        assert!(error.contains(part), "{args:?}: {error}");
    }
}

#[test]
fn wrong_usage_of_a_lab_of_pbs_is_exit_code_2() {
    for (args, part) in [
        (
            vec!["--pbs", "opt/pbs"],
            "--pbs opt/pbs: give the absolute path",
        ),
        (
            vec!["--pbs", "/no/pbs"],
            "--pbs /no/pbs: no PBS server is installed there",
        ),
        (
            vec!["--pbs", "/no/pbs", "--nodes", "0"],
            "at least one node",
        ),
        (
            vec!["--pbs", "/no/pbs", "--nodes", "65"],
            "65 nodes: a lab of PBS has 1 to 64",
        ),
        (vec!["--pbs", "/no/pbs", "--node-type", "dgx-x"], "dgx-h100"),
        (
            vec!["--pbs", "/no/pbs", "--switches", "2"],
            "cannot be used with",
        ),
        (
            vec!["--pbs", "/no/pbs", "--slurm", "native"],
            "cannot be used with",
        ),
    ] {
        let out = gpuos(&[&["lab", "up"], &args[..]].concat());
        assert_eq!(out.status.code(), Some(2), "{args:?}");
        let error = text(&out.stderr);
        assert!(error.contains(part), "{args:?}: {error}");
    }
}
