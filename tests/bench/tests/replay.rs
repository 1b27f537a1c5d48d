//! A small replay in the real slurmctld: every job starts with what it asked for and ends, and no
//! GPU is held twice: the driver itself fails on either. How well the jobs lie is not asserted:
//! the two slurmctld drift apart with the machine's speed.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use serde_json::Value;

fn probe(dir: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("probe/probe.c");
    let probe = dir.join("probe.so");
    let built = Command::new("cc")
        .args(["-O2", "-shared", "-fPIC", "-Wl,-z,nodelete", "-o"])
        .args([&probe, &source])
        .arg("-ldl")
        .status()
        .expect("cc runs");
    assert!(built.success(), "the probe does not compile");
    probe
}

#[test]
fn every_job_of_a_small_replay_ends_with_what_it_asked_for() {
    let dir = env::temp_dir().join(format!("gpuos-replay-{}", std::process::id()));
    fs::create_dir_all(&dir).expect("a folder");
    let plugins = gpuos_lab::find_plugin_dir().expect("the plugins are built");
    let out = Command::new(env!("CARGO_BIN_EXE_gpuos-bench"))
        .args(["replay", "--quick", "--slurm", "native"])
        .env("GPUOS_BENCH_PROBE", probe(&dir))
        .env("GPUOS_BENCH_PLUGIN", plugins.join("libselect_gpuos.so"))
        .env("GPUOS_BENCH_OUT", &dir)
        .output()
        .expect("the benchmark runs");
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    let text = fs::read_to_string(dir.join("replay.json"));
    fs::remove_dir_all(&dir).expect("the folder goes");
    if said.contains("skipped:") {
        eprintln!("{said}");
        return;
    }
    assert!(out.status.success(), "{said}");
    let value: Value = serde_json::from_str(&text.expect("replay.json")).expect("JSON");
    assert_eq!(value["schema"], "gpuos.replay/1");
    let run = &value["runs"][0];
    for side in ["stock", "gpuos"] {
        assert_eq!(run[side]["jobs"], 60, "{side}: {said}");
        assert!(run[side]["jobs_on_several_nodes"].as_u64() > Some(0));
    }
}
