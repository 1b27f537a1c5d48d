//! A host that is lost under a job with slices and limits, on a PBS: PBS has the job run on
//! another one, and nothing of its first run counts when the host is back.

use std::fs;

use gpuos_tests::{costs, pbs};

use crate::pbs_full::{Full, SLICE, WHOLE};
use crate::pbs_site::ran;

#[test]
fn a_job_whose_host_is_lost_runs_elsewhere_and_nothing_of_its_first_run_counts() {
    let Some(prefix) = pbs("a host that is lost under jobs with GPUs") else {
        return;
    };
    let _cost = costs::of("slurm::pbs_lost");
    let site = Full::up(&prefix, "pbs-lost");
    let lab = &site.lab;
    ran(lab.run("qmgr", &["-c", "set server node_fail_requeue = 5"]));
    let work = site.work.display();
    let script = format!(
        "echo $(hostname) $CUDA_VISIBLE_DEVICES >>{work}/$PBS_JOBID.runs\nwhile [ ! -e {work}/end ]; do sleep 0.1; done\n"
    );
    let runs = |job: &str| {
        let text = fs::read_to_string(site.work.join(format!("{job}.runs")));
        let text = text.unwrap_or_default();
        text.lines().map(String::from).collect::<Vec<_>>()
    };
    let limited = [&WHOLE[..], &["-l", "gpuos_power=300W"]].concat();
    let of = |host: &str, options: &[&str]| {
        let place = format!("{}:host={host}", options[1]);
        let options = [&["-l", &place], &options[2..]].concat();
        site.submit("user1", &options, &script)
    };
    let first = [of("n1", &SLICE), of("n1", &limited)];
    for job in &first {
        site.until("its script runs", || runs(job).len() == 1);
    }
    // Of a job with slices it knows the slices.
    site.until("gpuosd knows it", || {
        site.known("n1")
            .is_some_and(|known| known.contains(&first[1]))
    });
    // Where a host is named a job waits for it; these may run anywhere.
    for job in &first {
        assert_eq!(site.state(job), "R");
    }
    let free = [
        site.submit("user1", &SLICE, &script),
        site.submit("user1", &limited, &script),
    ];
    for job in &free {
        site.until("its script runs", || runs(job).len() == 1);
    }
    let lost = "n1";
    let here: Vec<&String> = free
        .iter()
        .filter(|job| runs(job)[0].starts_with(lost))
        .collect();
    eprintln!(
        "{} of those that may run anywhere are on {lost}",
        here.len()
    );
    ran(lab.crash(lost));
    for job in &here {
        site.until("it runs elsewhere", || runs(job).len() == 2);
        assert!(runs(job)[1].starts_with("n2 "), "{:?}", runs(job));
    }
    ran(lab.reboot(lost));
    site.until("it is free", || {
        let text = lab.run("pbsnodes", &["-av"]).unwrap_or_default();
        let mut own = text.split("\n\n");
        let own = own.find(|vnode| vnode.trim_start().starts_with(lost));
        own.is_some_and(|vnode| vnode.contains("state = free"))
    });
    // pbs_sched's next cycle may be minutes away, and one that came too early for gpuosd there is put off.
    let again = |job: &String| {
        ran(lab.run("qmgr", &["-c", "set server scheduling = True"]));
        runs(job).len() == 2
    };
    // Those that have to be there run there again, with what they had.
    for job in &first {
        site.until("it runs again where it was", || again(job));
        assert!(runs(job)[1].starts_with("n1 "), "{:?}", runs(job));
    }
    let of_first = |job: &&String| runs(job).last().is_some_and(|run| run.starts_with("n1 "));
    site.until("gpuosd knows what runs there now and nothing else", || {
        let whole = [&first[1], &free[1]].into_iter().filter(of_first);
        let now = whole.cloned().collect();
        site.known(lost) == Some(now)
    });
    let slices = [&first[0], &free[0]].into_iter().filter(of_first);
    let slices = slices.filter_map(|job| runs(job).last()?.split(' ').nth(1).map(String::from));
    assert_eq!(site.instances(lost), slices.collect());
    fs::write(site.work.join("end"), "").unwrap();
    for job in first.iter().chain(&free) {
        site.until("it ends", || site.state(job) == "F");
        assert_eq!(site.attribute(job, "Exit_status"), "0");
    }
    site.nothing_is_left();
    ran(site.lab.down());
}
