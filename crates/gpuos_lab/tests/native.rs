//! Labs of the Slurm of this machine.

mod common;

use std::time::{Duration, Instant};

use common::{job_gpus, leftovers, up};
use gpuos_lab::{Cgroup, LabError, LabSpec, Select};

/// A busy machine is no fault.
const LIMIT: Duration = Duration::from_secs(180);

#[test]
fn a_job_gets_the_gpus_it_asks_for() {
    let spec = LabSpec {
        nodes: 4.into(),
        node_type: "pairs-8".into(),
        cgroup: Cgroup::Off,
        ..LabSpec::unique("job")
    };
    let begin = Instant::now();
    let Some(lab) = up(&spec) else { return };
    eprintln!("4 nodes up in {:?}", begin.elapsed());
    let script = "echo cuda=$CUDA_VISIBLE_DEVICES node=$SLURMD_NODENAME; sleep 1000";
    let job = lab
        .sbatch(&["--gres=gpu:3", "--nodelist=n3"], script)
        .expect("submits");
    lab.wait_job(job, &["RUNNING"], LIMIT).expect("runs");
    assert_eq!(job_gpus(&lab, job), "n3:0-2");
    let text = lab.wait_output(job, "node=", LIMIT).expect("writes");
    assert_eq!(text.trim(), "cuda=0,1,2 node=n3");
}

#[test]
fn labs_side_by_side_leave_nothing() {
    let names = |prefix| LabSpec {
        node_type: "pairs-8".into(),
        ..LabSpec::unique(prefix)
    };
    let (spec_a, spec_b) = (names("side-a"), names("side-b"));
    let Some(a) = up(&spec_a) else { return };
    let Some(b) = up(&spec_b) else { return };
    // Same node names, different clusters: job ids and nodes do not mix.
    let job = a
        .sbatch(
            &["-N2"],
            &format!("env -i sh -c 'sleep 1000; : {}'", a.dir().display()),
        )
        .expect("submits");
    a.wait_job(job, &["RUNNING"], LIMIT).expect("runs");
    let queue = |lab: &gpuos_lab::Lab| lab.run("squeue", &["-h", "-o", "%i"]).expect("squeue");
    assert_eq!(queue(&a).trim(), job.to_string());
    assert_eq!(queue(&b), "");
    match up_again(&spec_a) {
        LabError::InUse(name) => assert_eq!(name, spec_a.name),
        other => panic!("{other}"),
    }
    let (id_a, id_b) = (a.record().id.clone(), b.record().id.clone());
    let (dir_a, dir_b) = (a.dir().to_path_buf(), b.dir().to_path_buf());
    a.down().expect("goes down");
    assert_eq!(leftovers(&id_a, &dir_a), Vec::<String>::new());
    assert_eq!(
        b.run("sinfo", &["-h", "-o", "%D %T"]).expect("b lives"),
        "2 idle\n"
    );
    drop(b);
    assert_eq!(leftovers(&id_b, &dir_b), Vec::<String>::new());
}

fn up_again(spec: &LabSpec) -> LabError {
    match gpuos_lab::Lab::up(spec, &mut |_| ()) {
        Ok(_) => panic!("two labs of one name"),
        Err(e) => e,
    }
}

#[test]
fn slurmctld_dies_and_comes_back() {
    let spec = LabSpec {
        nodes: 1.into(),
        ..LabSpec::unique("ctld")
    };
    let Some(lab) = up(&spec) else { return };
    let job = lab
        .sbatch(&["--gres=gpu:2"], "sleep 1000")
        .expect("submits");
    lab.wait_job(job, &["RUNNING"], LIMIT).expect("runs");
    lab.wait_saved().expect("saves");
    let before = lab.slurmctld_pid().expect("runs");
    assert!(lab.kill_slurmctld(9).expect("dies"));
    assert_eq!(lab.slurmctld_pid(), None);
    assert!(!lab.kill_slurmctld(9).expect("was dead"));
    lab.start_slurmctld().expect("starts");
    assert_ne!(lab.slurmctld_pid(), Some(before));
    assert_eq!(lab.job_state(job).expect("known"), "RUNNING");
    lab.set_slurm_conf("SlurmctldDebug", Some("debug"))
        .expect("edits");
    lab.restart().expect("restarts");
    let conf = lab.run("scontrol", &["show", "config"]).expect("config");
    assert!(
        conf.lines()
            .any(|l| l.starts_with("SlurmctldDebug") && l.ends_with("= debug"))
    );
    assert!(lab.stop_slurmd("n1").expect("ends"));
    assert_eq!(lab.slurmd_pid("n1"), None);
    lab.start_slurmd("n1").expect("starts");
    lab.reconfigure().expect("reconfigures");
    lab.wait_ready(LIMIT).expect("ready");
    assert_eq!(lab.job_state(job).expect("known"), "RUNNING");
}

#[test]
fn the_device_cgroup_forbids_other_gpus() {
    let spec = LabSpec {
        nodes: 1.into(),
        node_type: "pairs-8".into(),
        cgroup: Cgroup::Required,
        ..LabSpec::unique("dev")
    };
    let Some(lab) = up(&spec) else { return };
    // An allowed device without a driver answers ENXIO, a forbidden one EPERM.
    let script = format!(
        "for i in 0 1 2 3 4 5 6 7; do LC_ALL=C cat {}/nvidia$i; done 2>&1; echo done; sleep 1000",
        lab.device_dir().display()
    );
    let job = lab.sbatch(&["--gres=gpu:2"], &script).expect("submits");
    let text = lab.wait_output(job, "done", LIMIT).expect("writes");
    let allowed = text.matches("No such device").count();
    let refused = text.matches("Operation not permitted").count();
    assert_eq!((allowed, refused), (2, 6), "{text}");
    assert_eq!(job_gpus(&lab, job), "n1:0-1");
    let (id, dir) = (lab.record().id.clone(), lab.dir().to_path_buf());
    lab.down().expect("goes down");
    assert_eq!(leftovers(&id, &dir), Vec::<String>::new());
}

#[test]
fn thousands_of_gpus_without_daemons() {
    let spec = LabSpec {
        nodes: 0.into(),
        cloud_nodes: Some(300),
        node_type: "dgx-h100".into(),
        ..LabSpec::unique("cloud")
    };
    let Some(lab) = up(&spec) else { return };
    let job = lab
        .sbatch(&["-N64", "--gpus-per-node=8"], "true")
        .expect("submits");
    lab.wait_job(job, &["CONFIGURING", "RUNNING"], LIMIT)
        .expect("placed");
    let nodes = lab
        .run("squeue", &["-h", "-t", "all", "-o", "%D"])
        .expect("squeue");
    assert_eq!(nodes.trim(), "64");
}

#[test]
fn plugins_beside_slurms_own() {
    // A plugin that Slurm never loads stands for gpuos's: what counts is the folder.
    let built = tempfile::tempdir().expect("tempdir");
    std::fs::write(built.path().join("libspank_gpuos.so"), "").expect("write");
    let spec = LabSpec {
        nodes: 1.into(),
        ..LabSpec::unique("beside")
    };
    let Some(mut lab) = up(&spec) else { return };
    let job = lab
        .sbatch(&["--gres=gpu:2"], "sleep 1000")
        .expect("submits");
    lab.wait_job(job, &["RUNNING"], LIMIT).expect("runs");
    let select = Select::Installed {
        plugin_dir: built.path().to_path_buf(),
        own_dir: false,
    };
    lab.set_select(select).expect("changes");
    lab.restart().expect("restarts");
    let dir = lab.dir().join("lib/slurm");
    let conf = lab.run("scontrol", &["show", "config"]).expect("config");
    let line = conf.lines().find(|line| line.starts_with("PluginDir"));
    assert!(line.expect("PluginDir").ends_with(&*dir.to_string_lossy()));
    assert!(dir.join("spank_gpuos.so").is_file());
    assert_eq!(lab.job_state(job).expect("known"), "RUNNING");
    assert_eq!(job_gpus(&lab, job), "n1:0-1");
    lab.set_select(Select::Stock).expect("changes back");
    lab.restart().expect("restarts");
    assert_eq!(lab.job_state(job).expect("known"), "RUNNING");
}
