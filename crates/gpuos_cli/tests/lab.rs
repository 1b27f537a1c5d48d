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

/// Whether `gpuos lab up` has made a lab. Only a machine that can have no lab at all excuses that it has not.
fn is_up(out: &Output) -> bool {
    if out.status.success() {
        return true;
    }
    match Lab::up(&LabSpec::unique("cli-probe"), &mut |_| ()) {
        Err(e) if e.is_environment() => {
            eprintln!("skipped: {e}");
            false
        }
        _ => panic!("{}{}", text(&out.stderr), text(&out.stdout)),
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
    if !is_up(&out) {
        return;
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

/// With `--memory` programs run over the simulated CUDA driver: one that sees more than its GPU has, and two that have one GPU in turns.
#[test]
fn programs_larger_than_their_gpu_and_in_turns_run_in_a_lab() {
    let name = format!("cli-memory-{}", std::process::id());
    let up = ["lab", "up", "--name", &name, "--nodes", "1", "--memory"];
    let out = gpuos(&up);
    // What `cargo test` of this crate alone does not build, `make test` does.
    if !out.status.success() && text(&out.stderr).contains("make build") {
        eprintln!("skipped: {}", text(&out.stderr));
        return;
    }
    if !is_up(&out) {
        return;
    }
    let _down = Down(name.clone());
    let run = |command: &[&str]| {
        let args = [&["lab", "run", "--name", &name, "--"], command].concat();
        let out = gpuos(&args);
        (text(&out.stdout), text(&out.stderr))
    };
    let program = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../examples/memory/larger.py"
    );
    let larger = [
        "srun",
        "-N1",
        "--gpus=1",
        "--mem=1G",
        "--gpuos-mem=84G",
        "cuda",
        "python3",
        program,
        "--rounds=1",
    ];
    let (said, errors) = run(&larger);
    assert!(
        said.contains("the program sees 86016 MiB")
            && said.contains("round 1: 4 blocks of 64 MiB hold what was written"),
        "{said}{errors}"
    );
    let written = tempfile::tempdir().expect("a folder");
    let folder = written.path().display();
    let output = format!("{folder}/%j.out");
    let line = format!("srun cuda python3 {program} --rounds=2");
    let mut jobs = Vec::new();
    for _ in 0..2 {
        let turns = [
            "sbatch",
            "--parsable",
            "-N1",
            "--mem=1G",
            "--gpuos-share=timeslice,mem=1G",
            "-o",
            &output,
            "--wrap",
            &line,
        ];
        let (job, errors) = run(&turns);
        jobs.push(job.trim().to_string());
        assert!(!job.trim().is_empty(), "{errors}");
    }
    for job in &jobs {
        let ended = format!(
            "while squeue -h -j {job} 2>/dev/null | grep -q .; do sleep 0.2; done; cat {folder}/{job}.out"
        );
        let (said, errors) = run(&["timeout", "120", "sh", "-c", &ended]);
        assert!(
            said.contains("round 2: 4 blocks of 64 MiB hold"),
            "{said}{errors}"
        );
    }
}

/// What a lab misses is called what it is, and one build makes all of it.
#[test]
fn a_folder_without_daemons_is_told_with_what_brings_them() {
    let empty = std::env::temp_dir().join(format!("gpuos-none-{}", std::process::id()));
    std::fs::create_dir_all(&empty).expect("a folder");
    let folder = empty.to_str().expect("a path");
    let name = format!("cli-none-{}", std::process::id());
    let out = gpuos(&[
        "lab",
        "up",
        "--name",
        &name,
        "--nodes",
        "1",
        "--gpus",
        "simulated",
        "--daemon-dir",
        folder,
    ]);
    let said = text(&out.stderr);
    let _down = Down(name);
    std::fs::remove_dir_all(&empty).expect("removed");
    if said.contains("needs root") || said.contains("slurmctld is not installed") {
        eprintln!("skipped: {said}");
        return;
    }
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert!(
        said.contains("make build") && !said.contains("plugin"),
        "{said}"
    );
    assert!(!said.contains("cargo build"), "{said}");
}
