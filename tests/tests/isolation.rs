//! Processes and control groups of real jobs against the plan: whoever is at home is left alone, a stranger on a
//! job's GPU is named and killed, and a step's group that lets more be opened is told of.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command};

use gpuos_core::isolation::Finding;
use gpuos_core::wire::Status;
use gpuos_host::socket::{Client, NAME};
use gpuos_lab::{Cgroup, Suite};
use gpuos_tests::cluster::LIMIT;
use gpuos_tests::{Cluster, Setup, plugins};

/// A process that ends with the test.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn status(cluster: &Cluster) -> Status {
    let socket = cluster.lab.gpuosd_runtime_dir("n1").join(NAME);
    let mut client = Client::connect(&socket, LIMIT).expect("gpuosd of n1");
    client.status().expect("its status")
}

fn findings(cluster: &Cluster) -> Vec<Finding> {
    status(cluster).isolation.findings
}

/// Puts a process on a simulated GPU, or takes it away.
fn nvml(cluster: &Cluster, words: &str) {
    let mut command = Command::new(plugins::daemons().join("gpuos-nvml"));
    command
        .arg("--state")
        .arg(cluster.lab.gpus_dir("n1").join("state"));
    let done = command.args(words.split(' ')).status().expect("gpuos-nvml");
    assert!(done.success(), "{words}");
}

/// A job whose script says its process id.
fn start(cluster: &Cluster, gpus: u32) -> (u32, u32, Vec<usize>) {
    let gres = format!("--gres=gpu:{gpus}");
    let job = cluster.sbatch(&[&gres], "echo pid=$$; sleep 3600");
    cluster.wait(job, &["RUNNING"]);
    let text = cluster
        .lab
        .wait_output(job, "pid=", LIMIT)
        .expect("its script");
    let pid = text
        .lines()
        .find_map(|line| line.strip_prefix("pid=")?.parse().ok());
    let held = cluster.gpus(job)["n1"].clone();
    (job, pid.expect("a number"), held)
}

/// Folders of device groups: of a job, then of its batch step.
fn groups(cluster: &Cluster, job: u32) -> [PathBuf; 2] {
    let devices = cluster.lab.dir().join("cgroup/devices");
    let all = fs::read_dir(&devices).expect("device groups").flatten();
    let of_job = all.map(|one| one.path().join(format!("uid_0/job_{job}")));
    let job = of_job
        .into_iter()
        .find(|path| path.is_dir())
        .expect("the job's group");
    let step = job.join("step_batch");
    [job, step]
}

#[test]
fn strangers_on_a_jobs_gpus_and_groups_that_allow_too_much() {
    if !gpuos_tests::suites().contains(&Suite::Native) {
        return gpuos_tests::skip("strangers", "GPUOS_TEST_SUITES does not name native");
    }
    let mut setup = Setup::simulated("isolation", &Suite::Native, 1);
    setup.spec.cgroup = Cgroup::Auto;
    setup.spec.gpuos_toml = Some("[isolation]\nforeign = \"kill\"\ngrace = \"2s\"\n".into());
    let Some(cluster) = setup.steered() else {
        return;
    };
    let (job, pid, held) = start(&cluster, 2);
    let (other, other_pid, _) = start(&cluster, 1);
    nvml(&cluster, &format!("run {} --pid {pid}", held[0]));
    let stranger = Command::new("sleep").arg("600").uid(65534).spawn();
    let Ok(mut stranger) = stranger.map(Ends) else {
        eprintln!("skipped: only root can start processes of other users");
        return;
    };
    let number = stranger.0.id();
    nvml(&cluster, &format!("run {} --pid {number}", held[1]));
    cluster.until("the stranger is killed", || {
        stranger.0.try_wait().expect("a child")
    });
    nvml(&cluster, &format!("stop {number}"));
    let log = cluster.lab.gpuosd_state_dir("n1").join("audit.jsonl");
    let audit = || fs::read_to_string(&log).unwrap_or_default();
    let named = format!(
        "process {number} (sleep, uid 65534) of no job is on GPU {}, which job {job} holds",
        held[1]
    );
    cluster.until("the audit log names it", || {
        audit().contains(&named).then_some(())
    });
    cluster.until("it is over", || findings(&cluster).is_empty().then_some(()));
    // The job's process is known as its own; only control groups tell that.
    let on = &status(&cluster).gpus[held[0]].processes;
    if cluster.lab.has_cgroup() {
        assert_eq!(
            (on[0].pid, on[0].job.clone(), on[0].foreign),
            (pid, Some(job.into()), false)
        );
        // Another job's process on it is named, as root's not killed, and at home on its own.
        nvml(&cluster, &format!("run {} --pid {other_pid}", held[0]));
        let found = cluster.until("the other job's process", || findings(&cluster).pop());
        assert!(
            found
                .message
                .contains(&format!("of job {other} is on GPU {}", held[0])),
            "{}",
            found.message
        );
        nvml(&cluster, &format!("stop {other_pid}"));
        cluster.until("it is over", || findings(&cluster).is_empty().then_some(()));
        too_much(&cluster, job, &held);
    } else {
        eprintln!("skipped in part: this machine has no control groups of version 1 for Slurm");
    }
    for one in [job, other] {
        let show = cluster.show(one);
        assert!(
            show.contains("JobState=RUNNING") && show.contains("Restarts=0"),
            "{show}"
        );
    }
    assert_eq!(audit().matches("was killed").count(), 1, "{}", audit());
    cluster.cancel(&[job, other]);
    cluster.drained();
}

/// Somebody lets a job's step open one GPU more; then it is taken back.
fn too_much(cluster: &Cluster, job: u32, held: &[usize]) {
    assert_eq!(status(cluster).isolation.devices, "checked");
    let not_held = (0..8).find(|gpu| !held.contains(gpu)).expect("another GPU");
    let line = format!("c 195:{not_held} rwm");
    let groups = groups(cluster, job);
    for group in &groups {
        fs::write(group.join("devices.allow"), &line).expect("the kernel takes it");
    }
    let found = cluster.until("the step may open too much", || findings(cluster).pop());
    let wanted = format!("step {job}.batch may open GPU {not_held}, which its job does not hold");
    assert!(found.message.starts_with(&wanted), "{}", found.message);
    fs::write(groups[0].join("devices.deny"), &line).expect("the kernel takes it");
    cluster.until("it is over", || findings(cluster).is_empty().then_some(()));
}
