//! What is common to all: wrong usage, missing programs, pages.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::site::Site;

#[test]
fn wrong_usage_is_told_and_exits_2() {
    let site = Site::new("24.11.5");
    for (args, words) in [
        (&["plan"][..], "required arguments"),
        (
            &["plan", "--gpus", "4", "--gres", "gpu:2"],
            "cannot be used with",
        ),
        (
            &["plan", "--gpus=0"],
            "asks for no GPU; write for example 8 or h100:8",
        ),
        (
            &["plan", "--gres=gpu:0"],
            "asks for no GPU; write for example gpu:8 or gpu:h100:8",
        ),
        (&["plan", "--gpus=1", "--nodes=3-1"], "write N or N-M"),
        (
            &["plan", "--gpus=1", "--topology=leaf:maybe"],
            "LEVEL:required",
        ),
        (&["plan", "--gpus=1", "--placement=near"], "pack, spread"),
        (&["plan", "--gpus=1", "--mem=lots"], "number of MiB"),
        (&["plan", "--gpus-per-task=1"], "--ntasks"),
        (&["plan", "--gpus=1", "-w", "n["], "has no ']'"),
        (&["why", "x"], "write a job number"),
        (&["why"], "JOBID"),
        (&["topo", "n1", "--type", "dgx-h100"], "cannot be used with"),
        (&["topo", "n1", "--live"], "cannot be used with"),
        (&["completion", "tcsh"], "possible values: bash, zsh, fish"),
        (&["frobnicate"], "unrecognized subcommand"),
        (&[], "Usage"),
    ] {
        let answer = site.run(args);
        assert_eq!(answer.code, 2, "{args:?}: {}", answer.err);
        assert!(answer.err.contains(words), "{args:?}: {}", answer.err);
        let mut json = vec!["--json"];
        json.extend(args);
        let answer = site.run(&json);
        assert_eq!(answer.code, 2);
        assert_eq!(answer.json()["schema"], "gpuos.error/1", "{args:?}");
    }
    let failed = site.run(&["topo", "nowhere"]);
    assert_eq!((failed.code, failed.out.as_str()), (1, ""));
    assert!(
        failed
            .err
            .contains("no node nowhere: this cluster has n[1-4]"),
        "{}",
        failed.err
    );
    assert_eq!(site.run(&["--help"]).code, 0);
    assert_eq!(site.run(&["--version"]).code, 0);
}

#[test]
fn without_slurm_the_answer_says_what_is_missing() {
    let site = Site::new("24.11.5");
    fs::remove_file(site.dir.path().join("bin/scontrol")).unwrap();
    let bin = site.path("bin");
    let run = |args: &[&str]| {
        let out = Command::new(env!("CARGO_BIN_EXE_gpuos"))
            .args(args)
            .env_clear()
            .env("PATH", &bin)
            .output()
            .unwrap();
        (
            out.status.code().unwrap(),
            String::from_utf8([out.stdout, out.stderr].concat()).unwrap(),
        )
    };
    let (code, text) = run(&["topo"]);
    assert_eq!(code, 1);
    assert!(text.contains("scontrol is not on PATH: install"), "{text}");
    for args in [
        &["discover", "--nvml=/none/libnvidia-ml.so.1"][..],
        &["topo", "--live", "--nvml=/none/libnvidia-ml.so.1"],
    ] {
        let (code, text) = run(args);
        assert_eq!(code, 1);
        assert!(
            text.contains("/none/libnvidia-ml.so.1 cannot be opened"),
            "{text}"
        );
    }
    let (code, text) = run(&["doctor", "--json"]);
    assert_eq!(code, 2, "there is nothing to look at");
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["checks"][0]["name"], "slurm");
    assert_eq!(json["checks"][0]["status"], "fail");
}

#[test]
fn layout_without_its_program_says_what_to_install() {
    let site = Site::new("24.11.5");
    // A copy of the command, so that nothing lies beside it.
    site.install(Path::new(env!("CARGO_BIN_EXE_gpuos")), "gpuos");
    let run = |args: &[&str]| {
        let out = Command::new(site.path("bin/gpuos"))
            .args(args)
            .env_clear()
            .env("PATH", "/nowhere")
            .output()
            .unwrap();
        (
            out.status.code().unwrap(),
            String::from_utf8([out.stdout, out.stderr].concat()).unwrap(),
        )
    };
    let (code, text) = run(&["layout", "/src"]);
    assert_eq!(code, 1);
    assert!(text.contains("gpuos-layout is not installed"), "{text}");
    // With a program of that name its answer is passed on.
    site.program("gpuos-layout", "#!/bin/sh\necho \"$@\"\nexit 1\n");
    let (code, text) = run(&["layout", "/src", "-o", "t.tsv", "--release", "25.05.1"]);
    assert_eq!(
        (code, text.trim()),
        (1, "/src --output t.tsv --release 25.05.1")
    );
}

#[test]
fn pages_come_from_the_flag_table() {
    let site = Site::new("24.11.5");
    let dir = site.path("man");
    let answer = site.run(&["man", &dir]);
    assert_eq!(answer.code, 0, "{}", answer.err);
    for page in [
        "gpuos",
        "gpuos-topo",
        "gpuos-why",
        "gpuos-plan",
        "gpuos-sim",
        "gpuos-doctor",
        "gpuos-discover",
        "gpuos-mig",
        "gpuos-mig-plan",
        "gpuos-mig-assert",
        "gpuos-ckpt",
        "gpuos-ckpt-now",
        "gpuos-ckpt-restart",
        "gpuos-ckpt-drill",
        "gpuos-ckpt-report",
        "gpuos-lab",
        "gpuos-lab-up",
        "gpuos-layout",
    ] {
        let text = fs::read_to_string(format!("{dir}/{page}.1")).unwrap();
        assert!(text.contains(".SH NAME"), "{page}");
    }
    let plan = fs::read_to_string(format!("{dir}/gpuos-plan.1")).unwrap();
    assert!(
        plan.contains("gpus\\-per\\-node") && plan.contains("gpuos plan"),
        "{plan}"
    );
    let jobs = fs::read_to_string(format!("{dir}/gpuos-options.1")).unwrap();
    let jobs = jobs.replace("\\-", "-");
    for option in gpuos_config::options::OPTIONS {
        let first = option.details.split(". ").next().unwrap();
        for part in [option.argument, option.environment, first] {
            assert!(jobs.contains(part), "{}: {part}: {jobs}", option.name);
        }
        assert!(jobs.contains(&format!("--{}", option.name)), "{jobs}");
    }
    for shell in ["bash", "zsh", "fish"] {
        let script = site.run(&["completion", shell]);
        assert_eq!(script.code, 0);
        assert!(script.out.contains("gpus-per-node"), "{shell}");
    }
}

/// A command that reads no gpuos.toml does not pass over one that is named.
#[test]
fn a_config_that_would_not_be_read_is_wrong_usage() {
    let site = Site::new("24.11.5");
    let file = site.path("gpuos.toml");
    site.file("gpuos.toml", "");
    for command in [
        &["replay", "/nowhere"][..],
        &["sim", "/nowhere"],
        &["lab", "list"],
        &["layout", "/nowhere"],
        &["completion", "bash"],
    ] {
        let answer = site.run(&[&["--config", &file], command].concat());
        assert_eq!(answer.code, 2, "{command:?}: {}", answer.err);
        assert!(
            answer
                .err
                .contains(&format!("'gpuos {}' reads no gpuos.toml", command[0])),
            "{command:?}: {}",
            answer.err
        );
    }
    let json = site.run(&["sim", "/nowhere", "--config", &file, "--json"]);
    assert_eq!(
        (json.code, &json.json()["schema"]),
        (2, &"gpuos.error/1".into())
    );
    assert_eq!(site.run(&["topo", "--config", &file]).code, 0);
}

#[test]
fn a_node_that_cannot_be_reached_is_said_in_plain_words() {
    let site = Site::new("24.11.5");
    let none = format!("--runtime-dir={}", site.path("nowhere"));
    for (via, said) in [
        ("false", "no answer from n2 by `false`: it said nothing\n"),
        ("echo no route to", "by `echo no route to`: no route to n2 "),
    ] {
        let answer = site.run(&["drain", "n2:1", "--via", via, &none]);
        assert_eq!(answer.code, 1);
        assert!(answer.err.contains(said), "{}", answer.err);
    }
}
