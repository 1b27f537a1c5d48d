//! Heartbeats between the gpuosds of a job's nodes on a real Slurm: a node that dies is found, set DOWN and its job
//! runs again; a gpuosd that dies does nothing to any job; a node that comes back is resumed.
//! `scripts/heartbeat.sh` measures how soon a dead node is found.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use gpuos_core::peers::HOLD_MS;
use gpuos_core::wire::{PeerStatus, Reply, Request};
use gpuos_host::socket::{Client, NAME};
use gpuos_lab::Suite;
use gpuos_tests::{Cluster, Setup, measured_runs, per_suite};

per_suite!(a_dead_node_is_found_and_its_job_runs_again);

const NODES: [&str; 4] = ["n1", "n2", "n3", "n4"];

/// Four nodes whose gpuosds ask slurmctld to act.
fn four(name: &str, suite: &Suite) -> Option<Cluster> {
    let mut setup = Setup::simulated(name, suite, 4);
    let toml = "[heartbeat]\nact = \"down\"\nhung-ms = 20000\n";
    setup.spec.gpuos_toml = Some(toml.into());
    setup.steered()
}

/// A job on three nodes that notes each of its starts.
fn start(cluster: &Cluster) -> u32 {
    let script = "echo $SLURM_JOB_ID ${SLURM_RESTART_COUNT:-0} >> starts; srun sleep 3600";
    let job = cluster.sbatch(&["--requeue", "-N3", "--gres=gpu:1"], script);
    cluster.wait(job, &["RUNNING"]);
    job
}

fn starts(cluster: &Cluster, job: u32, restarts: u32) -> bool {
    let text = fs::read_to_string(cluster.lab.dir().join("work/starts")).unwrap_or_default();
    text.lines().any(|line| line == format!("{job} {restarts}"))
}

/// The nodes of a job, in Slurm's order.
pub(crate) fn nodes_of(cluster: &Cluster, job: u32) -> Vec<String> {
    cluster.gpus(job).into_keys().collect()
}

fn peers(cluster: &Cluster, node: &str) -> BTreeMap<String, PeerStatus> {
    let socket = cluster.lab.gpuosd_runtime_dir(node).join(NAME);
    let client = Client::connect(&socket, Duration::from_secs(30));
    match client.and_then(|mut client| client.ask(&Request::Status)) {
        Ok(Reply::Status { status }) => {
            let peers = status.peers.into_iter();
            peers.map(|peer| (peer.node.clone(), peer)).collect()
        }
        _ => BTreeMap::new(),
    }
}

/// Waits until each node of `job` hears the others.
pub(crate) fn all_heard(cluster: &Cluster, job: u32) {
    let nodes = nodes_of(cluster, job);
    for node in &nodes {
        cluster.until(&format!("{node} hears the others of job {job}"), || {
            let heard = peers(cluster, node);
            let of_job = heard
                .values()
                .filter(|peer| peer.jobs.contains(&job.into()));
            (of_job.filter(|peer| peer.state == "alive").count() == nodes.len() - 1).then_some(())
        });
    }
}

fn is_seen_as(cluster: &Cluster, node: &str, by: &str, state: &str) {
    cluster.until(&format!("{node} is {state} to {by}"), || {
        let seen = peers(cluster, by);
        seen.get(node).filter(|peer| peer.state == state).map(drop)
    });
}

fn audit(cluster: &Cluster, node: &str) -> String {
    let file = cluster.lab.gpuosd_state_dir(node).join("audit.jsonl");
    fs::read_to_string(file).unwrap_or_default()
}

fn signal(signal: &str, pid: Option<u32>) {
    let pid = pid.expect("it runs").to_string();
    let done = std::process::Command::new("kill")
        .args([signal, &pid])
        .status();
    assert!(done.expect("kill is there").success());
}

/// Kills slurmd and gpuosd of a node at once; when, in ms since 1970. Its steps, which nobody looks after any more, are
/// left: their end would tell srun what a dead node cannot tell.
fn kill_node(cluster: &Cluster, node: &str) -> u64 {
    let (slurmd, gpuosd) = (cluster.lab.slurmd_pid(node), cluster.lab.gpuosd_pid(node));
    signal("-KILL", gpuosd);
    signal("-KILL", slurmd);
    now_ms()
}

pub(crate) fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.expect("after 1970").as_millis() as u64
}

pub(crate) fn revive(cluster: &Cluster, node: &str) {
    cluster.until("the daemons are gone", || {
        let gone = cluster.lab.slurmd_pid(node).is_none() && cluster.lab.gpuosd_pid(node).is_none();
        gone.then_some(())
    });
    cluster.lab.start_slurmd(node).expect("starts");
    cluster.lab.start_gpuosd(node).expect("starts");
}

fn slurm_node(cluster: &Cluster, node: &str) -> String {
    cluster.run("scontrol", &["show", "node", node])
}

/// When one of `by` found `node` silent after `since`, by its audit log, in ms since 1970.
pub(crate) fn found(cluster: &Cluster, node: &str, by: &[String], since: u64) -> Option<u64> {
    let says = format!("{node} is silent for ");
    let at = |line: &str| -> Option<u64> {
        let value: serde_json::Value = serde_json::from_str(line).ok()?;
        let text = value.get("text")?.as_str()?;
        let at = value.get("at_ms")?.as_u64()?;
        (text.starts_with(&says) && at >= since).then_some(at)
    };
    by.iter()
        .flat_map(|other| {
            audit(cluster, other)
                .lines()
                .filter_map(at)
                .collect::<Vec<_>>()
        })
        .min()
}

/// Until then a gpuosd that has just started has no say.
fn wait_for_a_say(cluster: &Cluster, since: Instant) {
    let wait = Duration::from_millis(HOLD_MS) + Duration::from_secs(1);
    cluster.until("all have a say", || (since.elapsed() > wait).then_some(()));
}

fn untouched(cluster: &Cluster, job: u32) {
    let show = cluster.show(job);
    assert!(
        show.contains("JobState=RUNNING") && show.contains("Restarts=0"),
        "{show}"
    );
}

fn a_dead_node_is_found_and_its_job_runs_again(suite: &Suite) {
    let Some(cluster) = four("beat", suite) else {
        return;
    };
    let up = Instant::now();
    let job = start(&cluster);
    all_heard(&cluster, job);
    let nodes = nodes_of(&cluster, job);
    let victim = nodes[2].clone();

    // A gpuosd that is killed, with all others having a say.
    wait_for_a_say(&cluster, up);
    cluster.lab.kill_gpuosd(&victim, 9).expect("ends");
    is_seen_as(&cluster, &victim, &nodes[0], "gpuosd-silent");
    is_seen_as(&cluster, &victim, &nodes[1], "gpuosd-silent");
    untouched(&cluster, job);
    cluster.lab.start_gpuosd(&victim).expect("starts");
    all_heard(&cluster, job);
    // One that is stopped in order says so.
    cluster.lab.kill_gpuosd(&victim, 15).expect("ends");
    is_seen_as(&cluster, &victim, &nodes[0], "left");
    cluster.lab.start_gpuosd(&victim).expect("starts");
    all_heard(&cluster, job);
    untouched(&cluster, job);
    assert_eq!(found(&cluster, &victim, &nodes, 0), None);

    // The whole node.
    let killed = kill_node(&cluster, &victim);
    let others = &nodes[..2];
    let at = cluster.until("the dead node is found", || {
        found(&cluster, &victim, others, killed)
    });
    eprintln!("{victim} was found after {} ms", at - killed);
    cluster.until("slurmctld has it DOWN", || {
        let show = slurm_node(&cluster, &victim);
        (show.contains("State=DOWN") && show.contains("gpuos: silent: ")).then_some(())
    });
    cluster.until("the job runs again", || {
        starts(&cluster, job, 1).then_some(())
    });
    assert!(!nodes_of(&cluster, job).contains(&victim));
    revive(&cluster, &victim);
    cluster.until("the node is back", || {
        let show = slurm_node(&cluster, &victim);
        (!show.contains("DOWN") && !show.contains("NOT_RESPONDING")).then_some(())
    });

    // One that hangs: its kernel takes connections, nobody answers.
    let up = Instant::now();
    all_heard(&cluster, job);
    let nodes = nodes_of(&cluster, job);
    let victim = nodes[2].clone();
    wait_for_a_say(&cluster, up);
    let (slurmd, gpuosd) = (
        cluster.lab.slurmd_pid(&victim),
        cluster.lab.gpuosd_pid(&victim),
    );
    let stopped = now_ms();
    signal("-STOP", gpuosd);
    signal("-STOP", slurmd);
    cluster.until("the hung node is found", || {
        found(&cluster, &victim, &nodes[..2], stopped)
    });
    cluster.until("slurmctld has it DOWN", || {
        slurm_node(&cluster, &victim)
            .contains("gpuos: silent: ")
            .then_some(())
    });
    signal("-CONT", slurmd);
    signal("-CONT", gpuosd);
    cluster.until(
        "its gpuosd has it resumed, or slurmd has registered",
        || (!slurm_node(&cluster, &victim).contains("State=DOWN")).then_some(()),
    );
    cluster.cancel(&[job]);
    for node in NODES {
        cluster.until(&format!("{node} is idle"), || {
            slurm_node(&cluster, node)
                .contains("State=IDLE")
                .then_some(())
        });
    }
    cluster.drained();
}

/// How long it takes from the death of a node until the others have agreed on it, and until its job runs
/// again; by `scripts/heartbeat.sh`.
#[test]
fn detection() {
    let Some(runs) = measured_runs("GPUOS_HEARTBEAT_RUNS", "scripts/heartbeat.sh") else {
        return;
    };
    let Some(cluster) = four("beats", &Suite::Native) else {
        return;
    };
    let (mut seen, mut pending, mut again) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..runs {
        let up = Instant::now();
        let job = start(&cluster);
        all_heard(&cluster, job);
        wait_for_a_say(&cluster, up);
        let nodes = nodes_of(&cluster, job);
        let killed = kill_node(&cluster, &nodes[2]);
        cluster.until("slurmctld requeues the job", || {
            (!cluster.show(job).contains("JobState=RUNNING")).then_some(())
        });
        pending.push(now_ms() - killed);
        cluster.until("the job runs again", || {
            starts(&cluster, job, 1).then_some(())
        });
        again.push(now_ms() - killed);
        let at = found(&cluster, &nodes[2], &nodes[..2], killed);
        seen.push(at.expect("it was found") - killed);
        eprintln!("{seen:?} {pending:?} {again:?}");
        cluster.cancel(&[job]);
        revive(&cluster, &nodes[2]);
        cluster.ready();
    }
    for (what, mut times) in [
        ("the others have agreed", seen),
        ("slurmctld has requeued the job", pending),
        ("the job runs again", again),
    ] {
        times.sort_unstable();
        println!(
            "node killed, Slurm {}, {runs} runs, until {what}: median {:.1} s, longest {:.1} s",
            cluster.lab.version(),
            times[times.len() / 2] as f64 / 1e3,
            times[times.len() - 1] as f64 / 1e3
        );
    }
    cluster.drained();
}
