//! Placement sets on a real PBS, wherever `$GPUOS_TEST_PBS` names an installation: the vnodes name leaf switches and NVLink domains, and where the
//! site has PBS go by them, pbs_sched keeps together what says nothing of gpuos.

use gpuos_tests::{costs, pbs};

use crate::pbs_site::{LIMIT, names, ran, submit, up};

#[test]
fn pbs_sched_keeps_jobs_together_that_say_nothing_of_gpuos() {
    let Some(prefix) = pbs("placement sets of PBS") else {
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
        let has = |host: &&str| {
            let mut vnodes = names(&given).into_iter();
            vnodes.any(|name| name.starts_with(&format!("{host}[")))
        };
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
        "set server node_group_key = \"gpuos_nvlink,gpuos_leaf\"",
        "set server node_group_enable = true",
    ] {
        ran(lab.run("qmgr", &["-c", line]));
    }
    let together = submit(&lab, &whole, "sleep 1000\n");
    ran(lab.wait_job(&together, &["R"], LIMIT));
    assert_eq!(hosts(&together), ["n3", "n4"]);
    // A pair that NVLink connects.
    let pair = submit(&lab, &["-l", "select=2:ngpus=1:ncpus=1"], "sleep 1000\n");
    ran(lab.wait_job(&pair, &["R"], LIMIT));
    let given = ran(lab.job(&pair, "exec_vnode")).unwrap();
    let pairs: Vec<Vec<&str>> = vec![
        vec!["n1[2]", "n1[3]"],
        vec!["n1[4]", "n1[5]"],
        vec!["n1[6]", "n1[7]"],
        vec!["n2[0]", "n2[1]"],
        vec!["n2[2]", "n2[3]"],
        vec!["n2[4]", "n2[5]"],
        vec!["n2[6]", "n2[7]"],
    ];
    let vnodes = names(&given);
    let vnodes: Vec<&str> = vnodes.iter().map(String::as_str).collect();
    assert!(pairs.contains(&vnodes), "{given}");
    ran(lab.down());
}
