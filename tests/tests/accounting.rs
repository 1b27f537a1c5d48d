//! Rules by QOS, with a real slurmdbd and MariaDB: the job record has a QOS's number alone, and its name comes
//! from slurmctld's own tables.

use gpuos_lab::{NodeGroup, Suite};
use gpuos_placement::explain::Note;
use gpuos_tests::sites::TWO_PRICES;
use gpuos_tests::{Cluster, Setup, per_suite};

per_suite!(qos);

/// With the site of two prices: n3 and n4 are DGX H100. No QOS `later` exists at first.
const TOML: &str = r#"
[[nodes]]
match = "n[3-4]"
type = "fast"

[[policy.rule]]
qos = "thrifty"
objectives = { cost = 100 }

[[policy.rule]]
qos = "later"
objectives = { cost = 90, energy = 10 }

[[policy.rule]]
partition = "speed"
objectives = { throughput = 100 }
"#;

fn qos(suite: &Suite) {
    let mut setup = Setup::new("qos", suite);
    setup.spec.node_type = "l40s-8".into();
    setup.spec.more_nodes = vec![NodeGroup {
        names: vec!["n3".into(), "n4".into()],
        node_type: "dgx-h100".into(),
    }];
    setup.spec.gpuos_toml = Some([TWO_PRICES, TOML].concat());
    setup.spec.accounting = true;
    setup.spec.slurm_conf_extra.extend([
        // slurmctld then asks its tables of accounts and QOS for each job, under their locks.
        "AccountingStorageEnforce=associations,limits,qos".into(),
        "PartitionName=speed Nodes=ALL MaxTime=INFINITE State=UP".into(),
    ]);
    let Some(cluster) = setup.steered() else {
        return;
    };
    grant(&cluster, "thrifty");
    by_rule(&cluster);
    // slurmctld hears of it from slurmdbd, without a reconfigure.
    grant(&cluster, "later");
    let (node, objectives) = place(&cluster, &["--qos=later"]);
    assert!(is_cheap(&node), "{node}");
    assert_eq!(objectives.as_deref(), Some("energy=10,cost=90"));
    // The names are asked for anew after a reconfigure and after a restart.
    cluster.lab.reconfigure().expect("reconfigures");
    cluster.ready();
    by_rule(&cluster);
    cluster.restart_slurmctld();
    by_rule(&cluster);
    let log = cluster.lab.slurmctld_log();
    assert!(!log.contains("holds for no job"), "{log}");
}

/// Makes a QOS that jobs of root may have, beside those that they have.
fn grant(cluster: &Cluster, qos: &str) {
    cluster.run("sacctmgr", &["-i", "add", "qos", qos]);
    // slurmdbd makes this account itself.
    let set = format!("qos+={qos}");
    cluster.run(
        "sacctmgr",
        &["-i", "modify", "account", "root", "set", &set],
    );
}

fn is_cheap(node: &str) -> bool {
    ["n1", "n2"].contains(&node)
}

/// QOS and partition choose differently, and a QOS without a rule does not choose.
fn by_rule(cluster: &Cluster) {
    let (node, objectives) = place(cluster, &["--qos=thrifty", "--gpuos-profile=compute"]);
    assert!(is_cheap(&node), "{node}");
    assert_eq!(objectives.as_deref(), Some("cost=100"));
    let (node, objectives) = place(cluster, &["-p", "speed", "--gpuos-profile=compute"]);
    assert!(!is_cheap(&node), "{node}");
    assert_eq!(objectives.as_deref(), Some("throughput=100"));
    let (_, objectives) = place(cluster, &["--qos=normal"]);
    assert_eq!(objectives, None);
    // Of two rules for a job the first that stands in gpuos.toml holds.
    let both = ["-p", "speed", "--qos=thrifty", "--gpuos-profile=compute"];
    let (node, objectives) = place(cluster, &both);
    assert!(is_cheap(&node), "{node}");
    assert_eq!(objectives.as_deref(), Some("cost=100"));
}

/// The node of a job with one GPU, and the objectives that chose it.
fn place(cluster: &Cluster, options: &[&str]) -> (String, Option<String>) {
    let options = [options, &["--gres=gpu:1"]].concat();
    // Until slurmctld has heard of account and QOS it refuses the job.
    let job = cluster.until("sbatch", || cluster.try_sbatch(&options, "sleep 600").ok());
    cluster.wait(job, &["RUNNING"]);
    let node = cluster.planned(job).into_keys().next().expect("a node");
    let note: Note = cluster.note(job).expect("a note");
    cluster.cancel(&[job]);
    cluster.drained();
    (node, note.worth.map(|worth| worth.objectives.to_string()))
}
