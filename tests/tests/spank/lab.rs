//! A lab with stock selection and the options, and its commands run with variables of one's own.

use std::path::Path;
use std::process::Output;

use gpuos_lab::{Lab, LabSpec, Select, Suite};
use gpuos_tests::skip;

use super::LIMIT;

/// Four nodes with GPUs in pairs, two under each leaf switch; stock selection.
pub fn up(suite: &Suite, job_submit: bool, plugins: &Path) -> Option<Lab> {
    let spec = LabSpec {
        nodes: 4.into(),
        node_type: "pairs-8".into(),
        suite: suite.clone(),
        select: Select::Installed {
            plugin_dir: plugins.to_path_buf(),
            own_dir: true,
        },
        topology_conf: Some(LabSpec::tree_topology(
            &["n1", "n2", "n3", "n4"].map(String::from),
            2,
        )),
        slurm_conf_extra: vec!["SlurmdDebug=debug".into(), "PrologFlags=Alloc".into()],
        spank: true,
        job_submit,
        ..LabSpec::unique("spank")
    };
    match Lab::up(&spec, &mut |_| ()) {
        Ok(lab) => Some(lab),
        Err(e) if e.is_environment() => {
            skip(&format!("gpuos options on {suite}"), &e.to_string());
            None
        }
        Err(e) => panic!("{e}"),
    }
}

/// Output of a command with variables set; the exit code with both streams.
pub fn with(lab: &Lab, variables: &[(&str, &str)], program: &str, args: &[&str]) -> (i32, String) {
    let mut command = lab.command(program).expect("the lab is up");
    for name in [
        "GPUOS",
        "GPUOS_TOPOLOGY",
        "GPUOS_PLACEMENT",
        "GPUOS_SHAPE",
        "GPUOS_PROFILE",
        "SLURM_EXIT_ERROR",
    ] {
        command.env_remove(name);
    }
    let Output {
        status,
        stdout,
        stderr,
    } = command
        .envs(variables.iter().copied())
        .args(args)
        .current_dir("/tmp")
        .output()
        .expect("runs");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (status.code().unwrap_or(-1), text(stdout) + &text(stderr))
}

pub fn queue(lab: &Lab) -> String {
    lab.run("squeue", &["-h", "-o", "%i %T"]).expect("squeue")
}

/// The options that reached slurmctld, as a job's prolog is told of them.
pub fn carried(lab: &Lab, variables: &[(&str, &str)], program: &str, args: &[&str]) -> Vec<String> {
    let seen = lab.dir().join("work/prolog");
    let _ = std::fs::remove_file(&seen);
    let (code, text) = with(lab, variables, program, args);
    assert_eq!(code, 0, "{text}");
    let text = std::fs::read_to_string(&seen).unwrap_or_default();
    let prefix = "SPANK__SLURM_SPANK_OPTION_gpuos_";
    let mut options: Vec<String> = text
        .lines()
        .filter_map(|line| line.strip_prefix(prefix))
        .map(String::from)
        .collect();
    options.sort();
    options
}

pub fn no_node_is_drained(lab: &Lab) {
    assert_eq!(lab.run("sinfo", &["-h", "-R"]).expect("sinfo"), "");
    lab.wait_ready(LIMIT).expect("all nodes take jobs");
}
