//! Placement sets on a real PBS, wherever `$GPUOS_TEST_PBS` names an installation: hosts name their leaf switches, and where the site has PBS go by them,
//! pbs_sched keeps together what says nothing of gpuos. On a host gpuosd keeps the GPUs of such a job together.

use gpuos_tests::{Needs, costs, pbs_with};

use crate::pbs_site::{LIMIT, names, ran, submit, up};

#[test]
fn pbs_sched_keeps_jobs_together_that_say_nothing_of_gpuos() {
    let Some(prefix) = pbs_with("placement sets of PBS", Needs::Scheduler) else {
        return;
    };
    let _cost = costs::of("slurm::pbs_sets");
    let lab = up(&prefix, "pbs-sets");
    // Of the first leaf only n2 is free as a whole, of the second n3 and n4.
    let first = submit(
        &lab,
        &["-l", "select=1:host=n1:ngpus=1:ncpus=1"],
        "sleep 1000\n",
    );
    ran(lab.wait_job(&first, &["R"], LIMIT));
    let whole = ["-l", "select=2:ngpus=8:ncpus=1", "-l", "place=scatter"];
    let hosts = |job: &str| -> Vec<String> {
        let given = ran(lab.job(job, "exec_vnode")).unwrap_or_default();
        let hosts = ["n1", "n2", "n3", "n4"].into_iter();
        let has = |host: &&str| names(&given).contains(*host);
        hosts.filter(has).map(str::to_owned).collect()
    };
    let apart = submit(&lab, &whole, "sleep 1000\n");
    ran(lab.wait_job(&apart, &["R"], LIMIT));
    assert_eq!(
        hosts(&apart),
        ["n2", "n3"],
        "without sets it takes the first"
    );
    ran(lab.run("qdel", &["-W", "force", &apart]));
    for line in [
        "set server node_group_key = gpuos_leaf",
        "set server node_group_enable = true",
    ] {
        ran(lab.run("qmgr", &["-c", line]));
    }
    let together = submit(&lab, &whole, "sleep 1000\n");
    ran(lab.wait_job(&together, &["R"], LIMIT));
    assert_eq!(hosts(&together), ["n3", "n4"]);
    // GPUs that NVLink connects, two by two.
    let pair = submit(
        &lab,
        &["-l", "select=2:ngpus=1:ncpus=1", "-l", "place=pack"],
        "echo $GPUOS_GPUS $GPUOS_LEVEL\n",
    );
    ran(lab.wait_job(&pair, &["F"], LIMIT));
    let said = lab.job_output(&pair);
    let pairs = ["0,1", "2,3", "4,5", "6,7"].map(|pair| format!("{pair} nvlink\n"));
    assert!(pairs.contains(&said), "{said}");
    ran(lab.down());
}
