//! A layout table that is not this Slurm's is never trusted, and a right one always is: every shift of every field, and
//! first jobs that are hard to understand.

use std::collections::BTreeMap;
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

/// Shifts that no check can see, each with the reason why that cannot matter. A structure and field, and by how much.
const HARMLESS: [(&str, &str); 0] = [];

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
    fs::copy(&file, "/tmp/abi/shifts").ok();
    for user in ["root", "nobody"] {
        for form in FORMS {
            let user = format!("--uid={user}");
            let mut options = vec![user.as_str()];
            options.extend(form);
            let job = cluster.sbatch(&options, "true");
            cluster.until("the tables were held against the job", || {
                told().contains(&format!("looked\tjob {job}\t")).then_some(())
            });
            cluster.cancel(&[job]);
        }
    }
    let told = told();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut trusted: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for line in told.lines() {
        let parts: Vec<&str> = line.split('\t').collect();
        *counts.entry(parts[0]).or_default() += 1;
        if parts[0] == "trusted" {
            trusted.entry(parts[1]).or_default().push(parts[2]);
        }
    }
    eprintln!("{suite}: {counts:?}");
    assert!(counts.values().sum::<usize>() > 1000, "{counts:?}");
    trusted.retain(|name, _| !HARMLESS.iter().any(|(known, _)| known == name));
    assert!(trusted.is_empty(), "trusted: {trusted:#?}");
    cluster.drained();
}
