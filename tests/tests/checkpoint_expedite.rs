//! `--requeue=expedite`, which Slurm has since 25.11: a job with checkpoints that has lost a node waits as `EXPEDITING`, ahead of all others and
//! with the nodes that are left to it, and goes on from its newest checkpoint as soon as there is another one.

use gpuos_lab::Suite;
use gpuos_tests::{Setup, per_suite, plugins, skip};

use crate::checkpoint::{committed, counter, logs, lose, said, until};

per_suite!(a_job_is_expedited);

fn a_job_is_expedited(suite: &Suite) {
    // The others refuse the option.
    if matches!(suite, Suite::Native) || suite.to_string() == "trixie" {
        skip(
            &format!("--requeue=expedite on {suite}"),
            "Slurm has it since 25.11",
        );
        return;
    }
    let mut setup = Setup::new("ckpt-expedite", suite);
    setup.spec.nodes = 4.into();
    setup.spec.movers = Some(plugins::daemons().to_path_buf());
    setup.spec.job_submit = true;
    let params = "SlurmctldParameters=enable_expedited_requeue";
    setup.spec.slurm_conf_extra.push(params.into());
    let Some(cluster) = setup.steered() else {
        return;
    };
    let options = [
        "--requeue=expedite",
        "-N3",
        "-w",
        "n[1-2]",
        "--exclusive",
        "--ntasks-per-node=1",
        "--open-mode=append",
        "--gpuos-checkpoint=1s,l2=xor:3",
    ];
    let job = cluster.sbatch(&options, &format!("srun -l {} 100000 0.02", counter()));
    cluster.wait(job, &["RUNNING"]);
    let nodes = cluster.lab.spec().node_names();
    let runs = |node: &String| committed(&cluster, node, job).is_some();
    until(&cluster, "a checkpoint", || committed(&cluster, "n1", job));
    // All others are busy, and somebody waits for them.
    let third = |with| nodes.iter().skip(2).find(|node| runs(node) == with);
    let lost = until(&cluster, "a third node", || third(true));
    let free = third(false).expect("a node without the job");
    let other = cluster.sbatch(&["-w", free, "--exclusive"], "sleep 1000");
    cluster.wait(other, &["RUNNING"]);
    let later = cluster.sbatch(&["-w", free, "--exclusive"], "sleep 1000");
    let newest = committed(&cluster, "n1", job).expect("it had one");
    lose(&cluster, lost, || {});
    until(&cluster, "it is expedited", || {
        let state = cluster.lab.job_state(job).ok()?;
        (state == "EXPEDITING").then_some(())
    });
    // What the command reads of it, and what is kept meanwhile.
    let gpuos = plugins::programs().join("gpuos");
    let said_why = cluster.run(gpuos.to_str().expect("UTF-8"), &["why", &job.to_string()]);
    assert!(said_why.contains("waits"), "{said_why}");
    // The folder of its programs goes with its run.
    let store = cluster.lab.checkpoints_dir("n1").join(job.to_string());
    assert!(store.exists(), "nothing is kept");
    cluster.cancel(&[other]);
    // Nobody lets it go: no begin time holds it back.
    cluster.wait(job, &["RUNNING"]);
    let waits = cluster.lab.job_state(later).expect("a state");
    assert_eq!(waits, "PENDING", "it went before those that waited longer");
    for rank in 0..3 {
        let (number, _) = until(&cluster, "it goes on", || {
            said(&cluster, job, rank, "restored checkpoint").pop()
        });
        assert!(
            number >= newest,
            "{number} after {newest}\n{}",
            logs(&cluster)
        );
    }
    until(&cluster, "another checkpoint", || {
        committed(&cluster, "n1", job).filter(|number| *number > newest + 1)
    });
    cluster.cancel(&[job, later]);
}
