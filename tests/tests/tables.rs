//! A layout table that is not this Slurm's is never trusted, and a right one always is: every shift of every field, and
//! first jobs that are hard to understand.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use gpuos_lab::{Select, Suite};
use gpuos_tests::{Setup, per_suite, plugins};

per_suite!(every_shift);

/// The first jobs that a table is held against.
const FORMS: [&[&str]; 8] = [
    &["--gres=gpu:2"],
    &["-N2", "--gpus-per-node=3"],
    &["-n2", "--gpus-per-task=1"],
    &["--gpus=4"],
    &["--gres=gpu:a40:1"],
    &["--exclusive"],
    &["-N1", "--exclusive", "--gpus-per-node=8", "--gpuos=off"],
    &["-n3", "-c2", "--mem=100"],
];

/// Shifts within a structure of unchanged size that no check can see, each with the reason why that cannot matter: what is
/// misread is a number that is only read, and what comes of it is a choice that cons_tres could have made.
const HARMLESS: [(&str, &str); 7] = [
    (
        "job_record.req_switch compiled",
        "read as 0: a job with --switches is steered, and cons_tres still keeps to its switches",
    ),
    (
        "job_record.qos_id compiled",
        "without accounting it is 0 for each job; with it, a QOS of no known name has no rule",
    ),
    (
        "node_record.cpus compiled",
        "the next field has the CPUs without those kept for the system, and is read instead where it is not 0",
    ),
    (
        "node_record.cpus_efctv compiled",
        "read as 0: all CPUs of the node count, and cons_tres refuses those that are kept for the system",
    ),
    (
        "node_record.weight compiled",
        "read as the threads of a core where both are 1: nodes are preferred otherwise",
    ),
    (
        "gres_job_state.def_cpus_per_gres compiled",
        "read as 0: a partition's default of CPUs for a GPU is left to cons_tres",
    ),
    (
        "gres_node_state.gres_cnt_found compiled",
        "a node is taken for registered",
    ),
];

/// Every field that is used, moved by 4 and 8 bytes in either direction, alone, with all after it, and as a compiler
/// would: one slurmctld holds all of these tables against itself and its first jobs.
fn every_shift(suite: &Suite) {
    let mut setup = Setup::new("shifts", suite);
    setup.spec.select = Select::Gpuos {
        plugin_dir: plugins::with_faults().to_path_buf(),
        own_dir: true,
    };
    let Some(mut cluster) = setup.steered() else {
        return;
    };
    let file = cluster.lab.dir().join("work/shifts");
    let told = || fs::read_to_string(&file).unwrap_or_default();
    let path = file.to_string_lossy().into_owned();
    cluster.lab.set_slurmctld_env(&[("GPUOS_SHIFTS", &path)]);
    cluster.restart_slurmctld();
    cluster.until("all tables were tried", || {
        told().contains("done\t").then_some(())
    });
    cluster.ready();
    for user in ["root", "nobody"] {
        for form in FORMS {
            let user = format!("--uid={user}");
            let mut options = vec![user.as_str()];
            options.extend(form);
            let job = cluster.sbatch(&options, "true");
            cluster.until("the tables were held against the job", || {
                told()
                    .contains(&format!("looked\tjob {job}\t"))
                    .then_some(())
            });
            cluster.cancel(&[job]);
        }
    }
    let told = told();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let (mut trusted, mut second) = (BTreeMap::<&str, usize>::new(), BTreeSet::new());
    for line in told.lines() {
        let parts: Vec<&str> = line.split('\t').collect();
        *counts.entry(parts[0]).or_default() += 1;
        match parts[0] {
            "first" => *trusted.entry(parts[1]).or_default() += 1,
            "second" => _ = second.insert(parts[1]),
            _ => {}
        }
    }
    eprintln!("{suite}: {counts:?}");
    assert!(counts.values().sum::<usize>() > 1000, "{counts:?}");
    // What only the selection shows is read and written only after the second look.
    trusted.retain(|name, _| !(name.starts_with("gres_job_state.") && second.contains(name)));
    // Two that are equally large, and empty in the first jobs: see docs/decisions/0002.
    let (swapped, mut trusted): (BTreeMap<_, _>, BTreeMap<_, _>) = trusted
        .into_iter()
        .partition(|(name, _)| name.contains(" swapped "));
    eprintln!("{suite}: not told apart from their neighbours: {swapped:?}");
    assert!(swapped.len() < 20, "{swapped:#?}");
    trusted.retain(|name, _| !HARMLESS.iter().any(|(known, _)| name.starts_with(known)));
    assert!(trusted.is_empty(), "trusted: {trusted:#?}");
    cluster.drained();
}
