//! How many jobs gpuos places where cons_tres has a choice, and how many of its offers cons_tres refuses: forms of
//! request by states of a cluster, by the counters that select_gpuos keeps in its recording.
//!
//! The nodes are in `State=CLOUD` and no slurmd stands behind them: a job holds its nodes and waits for them. Some
//! cells of the table are tried each time; `GPUOS_FORMS=1` (`make forms`) tries all of them and prints those that
//! were not perfect.

use std::fmt::Write as _;
use std::io::Read as _;
use std::thread::sleep;
use std::time::{Duration, Instant};

use gpuos_lab::{LabSpec, Suite};
use gpuos_placement::record::{self, Tally};
use gpuos_tests::cluster::LIMIT;
use gpuos_tests::{Cluster, Setup, per_suite};

per_suite!(whole_memory, forms, cores_with_threads, whole_sockets);

/// Nodes of the tables.
const NODES: usize = 16;
/// Jobs of one form in one state, as an array.
const JOBS: usize = 4;
/// None of the jobs of a cell that has not begun by then may ever do.
const WHILE: Duration = Duration::from_millis(2500);

/// A cluster of `pairs-8` nodes: 8 GPUs, 2 sockets with 32 cores each, 512 GiB.
fn cloud(name: &str, suite: &Suite, nodes: usize, conf: &[&str]) -> Option<Cluster> {
    let mut setup = Setup::new(name, suite);
    setup.spec.nodes = 0.into();
    setup.spec.cloud_nodes = Some(nodes);
    setup.spec.topology_conf = Some(LabSpec::tree_topology(&setup.spec.cloud_names(), 32));
    setup.spec.slurm_conf_extra.extend(
        [
            "ResumeRate=0",
            "SlurmctldDebug=info",
            // Every job is looked at in every pass; backfill asks on top of that.
            "SchedulerParameters=batch_sched_delay=0,sched_interval=1,default_queue_depth=10000,bf_interval=30",
        ]
        .map(str::to_owned),
    );
    let own = conf.iter().map(|line| (*line).to_owned());
    setup.spec.slurm_conf_extra.extend(own);
    let nic = conf.iter().any(|line| line.contains("nic:4"));
    let cluster = setup.steered()?;
    if nic {
        let file = cluster.lab.dir().join("etc/gres.conf");
        let mut text = std::fs::read_to_string(&file).expect("is there");
        let _ = writeln!(text, "NodeName=c[1-{nodes}] Name=nic Count=4");
        std::fs::write(&file, text).expect("writes");
        cluster.restart_slurmctld();
    }
    power_up(&cluster, nodes);
    Some(cluster)
}

/// Turns all nodes on, as far as slurmctld knows, and waits until it starts jobs.
fn power_up(cluster: &Cluster, nodes: usize) {
    let all = format!("NodeName=c[1-{nodes}]");
    cluster.run("scontrol", &["update", &all, "State=POWER_UP"]);
    let job = cluster.sbatch(&["--gres=gpu:1", "--mem=1"], "sleep 600");
    cluster.until("a first job runs", || {
        (running(cluster, job) == 1).then_some(())
    });
    cancel(cluster, job);
}

/// The counters at the head of the recording.
fn tally(cluster: &Cluster) -> Tally {
    let mut head = [0; 4096];
    let mut file = std::fs::File::open(cluster.ring()).expect("slurmctld makes it");
    file.read_exact(&mut head).expect("has a head");
    record::tally(&head).expect("a recording")
}

/// How many jobs of an array have got nodes.
fn running(cluster: &Cluster, job: u32) -> usize {
    let job = job.to_string();
    let args = ["-h", "-r", "-j", &job, "-t", "R,CF", "-o", "%i"];
    let text = cluster.try_run("squeue", &args);
    text.map_or(0, |text| text.lines().count())
}

/// Submits an array of a form and waits until all of it runs, or none of it has begun to for so long; how many run.
fn array(
    cluster: &Cluster,
    jobs: usize,
    form: &[&str],
    patience: Duration,
) -> Option<(u32, usize)> {
    let tasks = format!("--array=1-{jobs}");
    let options = [&[tasks.as_str()], form].concat();
    let job = match cluster.try_sbatch(&options, "sleep 600") {
        Ok(job) => job,
        Err(why) => {
            eprintln!("not to be had here: {form:?}: {}", why.trim());
            return None;
        }
    };
    let (mut seen, mut since) = (0, Instant::now());
    loop {
        let now = running(cluster, job);
        if now > seen {
            (seen, since) = (now, Instant::now());
        }
        if seen == jobs || since.elapsed() > patience {
            return Some((job, seen));
        }
        sleep(Duration::from_millis(30));
    }
}

fn cancel(cluster: &Cluster, job: u32) {
    let id = job.to_string();
    cluster.run("scancel", &[&id]);
    cluster.until("the array has ended", || {
        let text = cluster.try_run("squeue", &["-h", "-j", &id, "-o", "%T"]);
        text.map_or(true, |text| text.trim().is_empty())
            .then_some(())
    });
}

/// All jobs end.
fn cleared(cluster: &Cluster) {
    cluster.run("scancel", &["-u", "root"]);
    cluster.until("all jobs have ended", || {
        let text = cluster.run("squeue", &["-h", "-o", "%i"]);
        text.trim().is_empty().then_some(())
    });
}

/// Puts one job on each of these nodes.
fn fill(cluster: &Cluster, nodes: impl Iterator<Item = usize>, options: &[&str]) {
    for node in nodes {
        let node = format!("c{node}");
        let one = cluster.try_sbatch(&[&["-w", &node], options].concat(), "sleep 600");
        if let Err(why) = one {
            // What the site does not have.
            assert!(why.contains("generic resource"), "{why}");
            return;
        }
    }
    cluster.until("the cluster is filled", || {
        let text = cluster.run("squeue", &["-h", "-t", "PD", "-o", "%i"]);
        text.trim().is_empty().then_some(())
    });
}

/// A state of the cluster.
struct State {
    name: &'static str,
    make: fn(&Cluster),
}

/// Jobs that take all memory of a node: of 400 on 1,250 nodes 4 were placed.
fn whole_memory(suite: &Suite) {
    let all = std::env::var_os("GPUOS_FORMS").is_some();
    let (jobs, nodes) = if all { (400, 1250) } else { (40, 100) };
    let Some(cluster) = cloud("memory", suite, nodes, &["DefMemPerCPU="]) else {
        return;
    };
    for form in [
        &["--gres=gpu:1"][..],
        &["--gres=gpu:1", "--mem=0"],
        &["--gres=gpu:1", "--mem=1000"],
    ] {
        let before = tally(&cluster);
        let (job, run) = array(&cluster, jobs, form, LIMIT).expect("submits");
        let seen = tally(&cluster).since(&before);
        eprintln!("{form:?}: {run} of {jobs} run; {seen:?}");
        assert_eq!(run, jobs);
        let log = cluster.lab.slurmctld_log();
        let through = log.lines().find(|line| line.contains("passing through"));
        assert_eq!(through, None);
        assert_eq!((seen.placed, seen.left), (jobs as u64, 0), "{form:?}");
        assert_eq!(seen.refused, 0, "{form:?}");
        cancel(&cluster, job);
    }
}

const STATES: &[State] = &[
    State {
        name: "empty",
        make: |_| (),
    },
    State {
        name: "small jobs on half of it",
        make: |c| fill(c, 1..=NODES / 2, &["--gres=gpu:1", "--mem=1000", "-c2"]),
    },
    State {
        name: "no memory left on half",
        make: |c| fill(c, (1..=NODES).step_by(2), &["--gres=gpu:2", "--mem=520000"]),
    },
    State {
        name: "one socket in use on half",
        make: |c| {
            fill(
                c,
                (1..=NODES).step_by(2),
                &["-n32", "--ntasks-per-socket=32", "--mem=1000"],
            )
        },
    },
    State {
        name: "few cores left on half",
        make: |c| fill(c, 1..=NODES / 2, &["-n61", "--mem=1000"]),
    },
    State {
        name: "half taken alone",
        make: |c| {
            fill(
                c,
                (1..=NODES).step_by(2),
                &["--exclusive", "--mem=1000", "--gres=gpu:1"],
            )
        },
    },
    State {
        name: "the other GRES in use on half",
        make: |c| fill(c, 1..=NODES / 2, &["--gres=gpu:1,nic:4", "--mem=1000"]),
    },
    State {
        name: "all of it by turns",
        make: |c| {
            fill(c, (1..=NODES).step_by(5), &["-n40", "--mem=1000"]);
            fill(
                c,
                (2..=NODES).step_by(5),
                &["--gres=gpu:3", "-c10", "--mem=300000"],
            );
            fill(
                c,
                (3..=NODES).step_by(5),
                &["--gres=gpu:6", "-n6", "--mem=100000"],
            );
            fill(
                c,
                (4..=NODES).step_by(5),
                &["-p", "limited", "-n12", "--mem=1000", "--gres=gpu:1"],
            );
        },
    },
    State {
        name: "almost full",
        make: |c| {
            fill(c, 1..=NODES - 5, &["--gres=gpu:7", "-n60", "--mem=500000"]);
        },
    },
];

const FORMS: &[&[&str]] = &[
    &["--gres=gpu:1"],
    &["--gres=gpu:1", "--mem=0"],
    &["--gres=gpu:2", "--mem=8000"],
    &["--gres=gpu:1", "--mem=500000"],
    &["--gres=gpu:1", "--mem-per-cpu=4000", "-c8"],
    &["--gres=gpu:1", "-n40", "--mem-per-cpu=10000"],
    &["--gres=gpu:2", "--mem-per-gpu=20000"],
    &["--gres=gpu:2", "--mem-per-gpu=200000"],
    &["-N1", "--gpus=3", "--mem-per-gpu=100000"],
    &["-N1", "--gpus=2", "--mem=1000"],
    &["--gpus=2", "--mem=1000"],
    &["-N1", "-n2", "--gpus-per-task=1", "--mem=1000"],
    &["-N1", "-n2", "--gpus-per-task=2", "-c12", "--mem=1000"],
    &["-n2", "--gpus-per-task=2", "--mem=1000"],
    &["--gres=gpu:1", "-c20", "--mem=1000"],
    &["--gres=gpu:1", "-c40", "--mem=1000"],
    &["--gres=gpu:1", "-n62", "-N1", "--mem=1000"],
    &["--gres=gpu:2", "--cpus-per-gpu=4", "--mem=1000"],
    &["--gres=gpu:2", "--cpus-per-gpu=20", "--mem=1000"],
    &["--gres=gpu:1", "--mincpus=24", "--mem=1000"],
    &["--gres=gpu:1", "--sockets-per-node=2", "-n4", "--mem=1000"],
    &["--gres=gpu:1", "--cores-per-socket=16", "-n4", "--mem=1000"],
    &[
        "--gres=gpu:2",
        "--sockets-per-node=2",
        "--cores-per-socket=8",
        "-n16",
        "--mem=1000",
    ],
    &[
        "--gres=gpu:1",
        "--ntasks-per-socket=4",
        "-n8",
        "-N1",
        "--mem=1000",
    ],
    &["--gres=gpu:1", "--ntasks-per-core=1", "-n8", "--mem=1000"],
    &["--gres=gpu:1", "--threads-per-core=1", "-n8", "--mem=1000"],
    &["--gres=gpu:1", "--hint=nomultithread", "-n8", "--mem=1000"],
    &["--gres=gpu:1", "--hint=compute_bound", "-n8", "--mem=1000"],
    &[
        "--gres=gpu:2",
        "--gres-flags=enforce-binding",
        "-c4",
        "--mem=1000",
    ],
    &[
        "--gres=gpu:1",
        "--gres-flags=enforce-binding",
        "-c20",
        "--mem=1000",
    ],
    &["--gres=gpu:1", "--exclusive", "--mem=1000"],
    &["--gres=gpu:1", "--exclusive"],
    &["--gres=gpu:1", "--exclusive=user", "--mem=1000"],
    &["--gres=gpu:1,nic:1", "--mem=1000"],
    &["--gres=gpu:2,nic:4", "--mem=1000"],
    &["--gres=gpu:1", "-S2", "--mem=1000"],
    &["-N2", "--gres=gpu:2", "--mem=1000"],
    &["-N2", "--gres=gpu:1"],
    &["-N2", "--gres=gpu:2", "--mem=500000"],
    &["-N2", "-n20", "--gres=gpu:2", "--mem=1000"],
    &["-N2", "--ntasks-per-node=16", "--gres=gpu:4", "--mem=1000"],
    &["-N2", "-n2", "-c30", "--gres=gpu:1", "--mem-per-cpu=4000"],
    &["-N1-2", "--gres=gpu:2", "--mem=1000"],
    &["-N2", "--gres=gpu:2,nic:2", "--mem=1000"],
    &["-N2", "--gpus=4", "--mem=1000"],
    &["-p", "gpumem", "--gres=gpu:2"],
    &["-p", "gpumem", "-N1", "--gpus=2"],
    &["-p", "limited", "--gres=gpu:1", "-c8", "--mem=1000"],
    &["-p", "limited", "--gres=gpu:1", "--mem=1000"],
    &["-p", "alone", "--gres=gpu:1", "--mem=1000"],
    &["-p", "forced", "--gres=gpu:1", "-n4", "--mem=1000"],
    &["-p", "shared", "--gres=gpu:1", "-n4", "--mem=1000"],
    &[
        "-p",
        "shared",
        "--gres=gpu:1",
        "-n4",
        "--mem=1000",
        "--oversubscribe",
    ],
    &["--gres=gpu:1", "-O", "-n100", "--mem=1000"],
    &["--gres=gpu:1", "-c3", "--mem=1000", "--tmp=0"],
    &["--gres=gpu:1", "--mem=1000", "--contiguous"],
];

/// Every how many forms one is tried, in this state alone, without `GPUOS_FORMS`.
const SHORT: (usize, &str) = (6, "all of it by turns");

/// Tries forms in states; what was not perfect is in the text.
fn table(cluster: &Cluster, forms: &[&[&str]], site: &str) {
    let all = std::env::var_os("GPUOS_FORMS").is_some();
    let only = (!all).then_some(SHORT.1);
    let mut text = String::new();
    let start = tally(cluster);
    let (mut cells, mut run) = (0, 0);
    let mut cell = 0;
    for state in STATES {
        if only.is_some_and(|only| state.name != only) {
            continue;
        }
        let chosen: Vec<_> = forms
            .iter()
            .filter(|_| {
                cell += 1;
                all || cell % SHORT.0 == 0
            })
            .collect();
        if chosen.is_empty() {
            continue;
        }
        (state.make)(cluster);
        for form in chosen {
            let before = tally(cluster);
            let Some((job, count)) = array(cluster, JOBS, form, WHILE) else {
                continue;
            };
            let seen = tally(cluster).since(&before);
            cells += 1;
            run += count;
            if seen.left + seen.unplanned + seen.refused > 0
                || (seen.placed + seen.only_way) < count as u64
            {
                let _ = writeln!(
                    text,
                    "{site}, {}: {}: {count} run; {seen:?}",
                    state.name,
                    form.join(" ")
                );
            }
            cancel(cluster, job);
        }
        cleared(cluster);
    }
    let seen = tally(cluster).since(&start);
    let version = cluster.lab.version();
    eprintln!(
        "{text}{site}, Slurm {version}: {cells} cells, {run} jobs ran; {seen:?}: {:?} % steered, {:?} refusals in 100 calls",
        seen.steered_percent(),
        seen.refused_percent()
    );
    assert!(run > 0 && seen.placed > 0);
    // In a short run a single refusal is more than one in a hundred calls.
    assert!(seen.steered_percent() >= Some(99.0), "{text}");
    assert!(
        seen.refused <= 2 || seen.refused_percent() <= Some(1.0),
        "{text}"
    );
}

fn forms(suite: &Suite) {
    let node = "NodeName=c[1-16] NodeAddr=127.0.0.1 Sockets=2 CoresPerSocket=32 ThreadsPerCore=1 RealMemory=524288 \
                Gres=gpu:a40:8,nic:4 State=CLOUD";
    let conf = [
        "DefMemPerCPU=",
        "AllowSpecResourcesUsage=yes",
        "GresTypes=gpu,nic",
        node,
        "PartitionName=gpumem Nodes=ALL MaxTime=INFINITE State=UP DefMemPerGPU=50000 DefCpuPerGPU=6",
        "PartitionName=limited Nodes=ALL MaxTime=INFINITE State=UP MaxCPUsPerNode=16",
        "PartitionName=alone Nodes=ALL MaxTime=INFINITE State=UP OverSubscribe=EXCLUSIVE",
        "PartitionName=forced Nodes=ALL MaxTime=INFINITE State=UP OverSubscribe=FORCE:2",
        "PartitionName=shared Nodes=ALL MaxTime=INFINITE State=UP OverSubscribe=YES:2",
    ];
    let Some(cluster) = cloud("forms", suite, NODES, &conf) else {
        return;
    };
    table(&cluster, FORMS, "CR_Core_Memory");
}

/// The forms that ask for cores.
fn of_cores() -> Vec<&'static [&'static str]> {
    let own = |word: &&str| {
        ![
            "-p",
            "--gres=gpu:1,nic:1",
            "--gres=gpu:2,nic:4",
            "--gres=gpu:2,nic:2",
        ]
        .contains(word)
    };
    FORMS
        .iter()
        .copied()
        .filter(|form| form.iter().all(&own))
        .collect()
}

fn cores_with_threads(suite: &Suite) {
    let node = "NodeName=c[1-16] NodeAddr=127.0.0.1 Sockets=2 CoresPerSocket=32 ThreadsPerCore=2 RealMemory=524288 \
                MemSpecLimit=2000 CoreSpecCount=2 Gres=gpu:a40:8 State=CLOUD";
    let conf = [
        "SelectTypeParameters=CR_CPU_Memory",
        node,
        "PartitionName=limited Nodes=ALL MaxTime=INFINITE State=UP MaxCPUsPerNode=16",
    ];
    if let Some(cluster) = cloud("threads", suite, NODES, &conf) {
        table(&cluster, &of_cores(), "CR_CPU_Memory, two threads");
    }
}

fn whole_sockets(suite: &Suite) {
    let conf = [
        "SelectTypeParameters=CR_Socket_Memory",
        "PartitionName=limited Nodes=ALL MaxTime=INFINITE State=UP MaxCPUsPerNode=16",
    ];
    if let Some(cluster) = cloud("sockets", suite, NODES, &conf) {
        table(&cluster, &of_cores(), "CR_Socket_Memory");
    }
}
