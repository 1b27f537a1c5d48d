//! What ends beneath jobs that have a GPU in turns, in a real Slurm cluster: the slurmstepd of one of them, the daemons of gpuos, the whole node, at each
//! place of a program's memory. Nothing of it is left, and what lives goes on with the right bytes.
//!
//! Some of the cells without `GPUOS_LONG`, all with it (`make mem-matrix`).

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use gpuos_lab::Suite;
use gpuos_tests::{Cluster, Setup, per_suite};

use crate::memory_turns::{MOST, ON_NVME, Turned, lab, lent, of_job};

per_suite!(what_ends_beneath_jobs_in_turns_leaves_nothing);

/// What ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Victim {
    /// Of the step of the one whose memory is looked at.
    Slurmstepd,
    Gpuosd,
    Mover,
    /// It loses its power, and comes back.
    Node,
}

const VICTIMS: [Victim; 4] = [
    Victim::Slurmstepd,
    Victim::Gpuosd,
    Victim::Mover,
    Victim::Node,
];

/// Where memory of a program is when something ends.
const PLACES: [&str; 4] = ["resident", "parking", "parked", "returning"];

/// Who, where, and whether what is parked is on NVMe.
type Cell = (Victim, &'static str, bool);

/// The mover has to do with what is on NVMe alone.
fn cells() -> Vec<Cell> {
    if std::env::var_os("GPUOS_LONG").is_none() {
        return vec![
            (Victim::Slurmstepd, "parked", true),
            (Victim::Node, "parking", true),
        ];
    }
    let each = |nvme: bool| {
        let of = move |victim| PLACES.map(|place| (victim, place, nvme));
        let victims = VICTIMS.into_iter();
        victims
            .filter(move |victim| nvme || *victim != Victim::Mover)
            .flat_map(of)
    };
    each(true).chain(each(false)).collect()
}

/// How long a process may live that nobody waits for any more.
const GOES: Duration = Duration::from_secs(120);

/// Whether a process is still there, and not only its record.
fn lives(pid: u64) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let state = status.lines().find_map(|line| line.strip_prefix("State:"));
    state.is_some_and(|state| !state.trim_start().starts_with('Z'))
}

/// Two jobs in turns, and what ends beneath one of them at that place.
fn strikes(cluster: &Cluster, parked: &Path, cell: Cell, number: usize) {
    let (victim, place, nvme) = cell;
    let args: &[&str] = if nvme { &ON_NVME } else { &MOST };
    // A link that makes moves last.
    let start = |name: &str| {
        let name = format!("{name}{number}");
        Turned::start_with(args, cluster, &name, "256M")
    };
    let (one, other) = (start("one"), start("other"));
    other.until("it had its turn", |it| it["parks"].as_u64() >= Some(1));
    let there = one.until("its memory is there", |it| it["place"] == place);
    let pid = there["pid"].as_u64().expect("a process");
    let rounds = [&one, &other].map(Turned::rounds);
    let lab = &cluster.lab;
    match victim {
        Victim::Slurmstepd => {
            assert!(lab.kill_slurmstepd(&format!("{}.0", one.id)), "{cell:?}");
        }
        Victim::Gpuosd => {
            lab.kill_gpuosd("n1", libc::SIGKILL).expect("ends");
            lab.start_gpuosd("n1").expect("starts");
        }
        Victim::Mover => {
            lab.kill_mover("n1", libc::SIGKILL).expect("ends");
            lab.start_mover("n1").expect("starts");
        }
        Victim::Node => {
            lab.kill_gpuosd("n1", libc::SIGKILL).expect("ends");
            lab.kill_mover("n1", libc::SIGKILL).expect("ends");
            cluster.kill_slurmd("n1");
            cluster.set_node("n1", "DOWN");
            lab.reboot("n1").expect("comes back");
            // One that has registered meanwhile is as it has to be.
            cluster.open_nodes(&["State=RESUME"]);
            cluster.ready();
        }
    }
    match victim {
        Victim::Gpuosd | Victim::Mover => {
            cluster.until("both go on", || {
                let mut jobs = [&one, &other].into_iter().zip(rounds);
                jobs.all(|(job, before)| job.rounds() > before + 1)
                    .then_some(())
            });
            one.ends_well();
        }
        Victim::Slurmstepd => {
            cluster.until("the other one goes on", || {
                (other.rounds() > rounds[1] + 1).then_some(())
            });
            // Its srun hears of nobody.
            cluster.run("scancel", &[&one.id.to_string()]);
            // slurmctld hears of it when the node registers.
            cluster.kill_slurmd("n1");
            lab.start_slurmd("n1").expect("starts");
            let ends = ["CANCELLED", "FAILED", "NODE_FAIL", "COMPLETED"];
            cluster.wait(one.id, &ends);
        }
        Victim::Node => {}
    }
    match victim {
        Victim::Node => {
            for job in [&one, &other] {
                cluster.run("scancel", &[&job.id.to_string()]);
            }
        }
        _ => other.ends_well(),
    }
    let deadline = Instant::now() + GOES;
    while lives(pid) {
        assert!(
            Instant::now() < deadline,
            "{cell:?}: process {pid} of job {} lives on: {}{}",
            one.id,
            lent(cluster),
            lab.gpuosd_log("n1")
        );
        std::thread::sleep(Duration::from_millis(100));
    }
    cluster.until("nothing of them is left", || {
        let told = lent(cluster);
        let none = |tier: &str| told["memory"][tier]["promised"] == 0;
        let gone = |job: &Turned| of_job(&told, job.id).is_none();
        let files = fs::read_dir(parked.join("n1")).map_or(0, Iterator::count);
        (none("host") && none("nvme") && gone(&one) && gone(&other) && files == 0).then_some(())
    });
    for job in [&one, &other] {
        assert!(!job.said().contains("panicked"), "{}", job.said());
    }
}

fn what_ends_beneath_jobs_in_turns_leaves_nothing(suite: &Suite) {
    if *suite != Suite::Native {
        eprintln!(
            "skipped: programs of jobs run over the simulated driver on this machine's own Slurm"
        );
        return;
    }
    let parked = tempfile::tempdir().expect("a folder");
    let setup = Setup::simulated("memory-kills", suite, 1);
    let Some(cluster) = lab(setup, parked.path()) else {
        return;
    };
    if !cluster.lab.has_cgroup() {
        eprintln!("skipped: gpuosd tells jobs apart by control groups");
        return;
    }
    for (number, cell) in cells().into_iter().enumerate() {
        let begun = Instant::now();
        strikes(&cluster, parked.path(), cell, number);
        let (victim, place, nvme) = cell;
        let tier = if nvme { "NVMe" } else { "host memory" };
        println!(
            "{victim:?} while it is {place}, beside {tier}: nothing left, {:.0} s",
            begun.elapsed().as_secs_f64()
        );
    }
    cluster.drained();
}
