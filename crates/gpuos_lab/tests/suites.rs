//! Labs of the Slurm of Debian suites.

mod common;

use std::fs;
use std::time::{Duration, Instant};

use common::{job_gpus, leftovers, up};
use gpuos_lab::{Cgroup, LabError, LabSpec, Suite};

/// A busy machine is no fault.
const LIMIT: Duration = Duration::from_secs(180);

fn whole_life(suite: &str) {
    let spec = LabSpec {
        nodes: 2.into(),
        node_type: "dgx-h100".into(),
        suite: Suite::Debian(suite.to_string()),
        cgroup: Cgroup::Off,
        ..LabSpec::unique(suite)
    };
    let begin = Instant::now();
    let Some(lab) = up(&spec) else { return };
    eprintln!("{suite} {} up in {:?}", lab.version(), begin.elapsed());
    // The suite's own programs, the lab's folder, and the caller's working directory.
    let own = lab.run("cat", &["/etc/debian_version"]).expect("cat");
    assert_ne!(
        own,
        fs::read_to_string("/etc/debian_version").unwrap_or_default()
    );
    let mut pwd = lab.command("pwd").expect("a command");
    let pwd = pwd.current_dir("/tmp").output().expect("pwd");
    assert_eq!(String::from_utf8_lossy(&pwd.stdout), "/tmp\n");
    let script = "echo cuda=$CUDA_VISIBLE_DEVICES node=$SLURMD_NODENAME; sleep 1000";
    let job = lab
        .sbatch(&["--gres=gpu:3", "--nodelist=n2"], script)
        .expect("submits");
    let text = lab.wait_output(job, "node=", LIMIT).expect("writes");
    assert_eq!(text.trim(), "cuda=0,1,2 node=n2");
    assert_eq!(job_gpus(&lab, job), "n2:0-2");
    // From 23.11 on slurmctld starts a new process on reconfigure: it is still the lab's.
    lab.reconfigure().expect("reconfigures");
    lab.wait_ready(LIMIT).expect("ready");
    assert!(lab.slurmctld_pid().is_some());
    lab.wait_saved().expect("saves");
    assert!(lab.kill_slurmctld(9).expect("dies"));
    lab.start_slurmctld().expect("starts");
    assert_eq!(lab.job_state(job).expect("known"), "RUNNING");
    let (id, dir) = (lab.record().id.clone(), lab.dir().to_path_buf());
    lab.down().expect("goes down");
    assert_eq!(leftovers(&id, &dir), Vec::<String>::new());
}

#[test]
fn trixie() {
    whole_life("trixie");
}

#[test]
fn sid() {
    whole_life("sid");
}

#[test]
fn an_unknown_suite_is_refused_before_anything_is_fetched() {
    let spec = LabSpec {
        suite: Suite::Debian("nosuchsuite".to_string()),
        ..LabSpec::unique("nosuch")
    };
    let mut said = Vec::new();
    match gpuos_lab::Lab::up(&spec, &mut |line| said.push(line.to_owned())) {
        Ok(_) => panic!("there is no such suite"),
        Err(LabError::Spec(text)) => {
            assert!(
                text.contains("nosuchsuite") && text.contains("trixie"),
                "{text}"
            );
        }
        Err(e) => panic!("{e}"),
    }
    assert_eq!(said, Vec::<String>::new());
}
