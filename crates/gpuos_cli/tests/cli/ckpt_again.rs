//! `gpuos ckpt restart` and `drill`: Slurm's commands are played.

use gpuos_core::wire::CheckpointRefused;

use crate::ckpt_bed::{made, mover, telling, with};
use crate::site::Site;

/// Slurm's scontrol requeues any job, and says which.
fn requeues(site: &Site) {
    let log = site.path("requeued");
    site.program("scontrol", &format!("#!/bin/sh\necho \"$*\" >>{log}\n"));
}

#[test]
fn a_job_is_requeued_to_its_newest_checkpoint_or_to_one_that_is_named() {
    let site = Site::new("24.11.5");
    let run = mover(&site, telling(&with(&[4, 5], None, &[])));
    requeues(&site);
    let answer = site.run(&["ckpt", "restart", "17", &run]);
    assert_eq!(answer.code, 0, "{}", answer.err);
    let begins = "job 17 is requeued and goes on from checkpoint 5; what it has done in the ";
    assert!(answer.out.starts_with(begins), "{}", answer.out);
    let answer = site
        .run(&["--json", "ckpt", "restart", "17", "4", &run])
        .json();
    assert_eq!((&answer["from"], &answer["newest"]), (&4.into(), &5.into()));
    let done = std::fs::read_to_string(site.path("requeued")).unwrap();
    assert_eq!(done, "requeue 17\nrequeue 17\n");
    let answer = site.run(&["ckpt", "restart", "17", "4", "--no-requeue", &run]);
    let said = "the next run of job 17 begins from checkpoint 4\n";
    assert_eq!((answer.code, &answer.out[..]), (0, said), "{}", answer.err);
    let done = std::fs::read_to_string(site.path("requeued")).unwrap();
    assert_eq!(done.lines().count(), 2, "not requeued");
}

#[test]
fn a_part_of_an_array_or_of_a_heterogeneous_job_is_requeued_as_slurm_takes_it() {
    for (kind, scontrols, said) in [
        // To `scontrol requeue` the number means all tasks of the array.
        (
            "ArrayJobId=17 ArrayTaskId=3 ArrayTaskThrottle=1",
            "17_3",
            "17_3",
        ),
        (
            "ArrayJobId=4 ArrayTaskId=0 ArrayTaskThrottle=1",
            "4_0",
            "4_0",
        ),
        // Slurm requeues all components by the number of the first, and refuses others.
        ("HetJobId=16 HetJobOffset=1", "16", "16+1"),
    ] {
        let site = Site::new("24.11.5");
        site.edit("jobs.txt", "JobId=17 ", &format!("JobId=17 {kind} "));
        let run = mover(&site, telling(&with(&[4, 5], None, &[])));
        requeues(&site);
        let answer = site.run(&["ckpt", "restart", "17", &run]);
        assert_eq!(answer.code, 0, "{kind}: {}", answer.err);
        let begins = format!("job {said} is requeued and goes on from checkpoint 5; ");
        assert!(answer.out.starts_with(&begins), "{}", answer.out);
        let done = std::fs::read_to_string(site.path("requeued")).unwrap();
        assert_eq!(done, format!("requeue {scontrols}\n"), "{kind}");
    }
    // What is not known for certain is not requeued.
    for (from, to, why) in [
        (
            "JobId=17 ",
            "JobId=17 ArrayJobId=17 ArrayTaskId=3-5%1 ArrayTaskThrottle=1 ",
            "name one of them",
        ),
        ("JobId=17 ", "JobId=77 ", "slurmctld does not know it"),
    ] {
        let site = Site::new("24.11.5");
        site.edit("jobs.txt", from, to);
        let run = mover(&site, telling(&with(&[4, 5], None, &[])));
        requeues(&site);
        let answer = site.run(&["ckpt", "restart", "17", &run]);
        assert_eq!(answer.code, 1, "{to}: {}", answer.out);
        assert!(answer.err.contains(why), "{to}: {}", answer.err);
        assert!(
            !std::path::Path::new(&site.path("requeued")).exists(),
            "{to}"
        );
    }
}

#[test]
fn what_a_rank_has_refused_is_not_the_newest() {
    let site = Site::new("24.11.5");
    let mut jobs = with(&[4, 5], None, &[]);
    let newest = jobs[0].checkpoints.iter_mut().find(|kept| kept.number == 5);
    newest.expect("it is kept").refused = Some(CheckpointRefused {
        rank: 2,
        node: "n3".into(),
        said: "no layer".into(),
    });
    let run = mover(&site, telling(&jobs));
    requeues(&site);
    let answer = site.run(&["ckpt", "restart", "17", &run]);
    let begins = "job 17 is requeued and goes on from checkpoint 4; ";
    assert!(answer.out.starts_with(begins), "{}", answer.out);
}

#[test]
fn a_job_without_a_checkpoint_is_left_alone_and_a_refusal_is_told() {
    let site = Site::new("24.11.5");
    let run = mover(&site, telling(&with(&[], None, &[])));
    requeues(&site);
    let answer = site.run(&["ckpt", "restart", "17", &run]);
    assert_eq!(answer.code, 1, "{}", answer.err);
    assert!(
        answer.out.contains("has no checkpoint yet"),
        "{}",
        answer.out
    );
    assert!(!std::path::Path::new(&site.path("requeued")).exists());
    let site = Site::new("24.11.5");
    let run = mover(&site, telling(&with(&[4], None, &[])));
    let answer = site.run(&["ckpt", "restart", "17", &run]);
    assert_eq!(answer.code, 1);
    assert!(
        answer.err.contains("job 17 is not requeued"),
        "{}",
        answer.err
    );
    for bad in [
        &["17", "0"][..],
        &["17", "x"],
        &["17", "4294967296"],
        &["1/../2"],
        &[],
    ] {
        let args = [&["ckpt", "restart"], bad, &[&run]].concat();
        assert_eq!(site.run(&args).code, 2, "{bad:?}");
    }
}

/// What two ranks say that were given their files.
pub fn restores(site: &Site) -> String {
    let run = made(site);
    site.program(
        "srun",
        "#!/bin/sh\necho \"$*\" >$0.args\n\
         echo 'gpuos-drill 0 restored 4 3 4096 1500 n3 {\"told\":[{\"jobs\":[{\"came\":[\"node n1 gave its part\"]}]}]}'\n\
         echo 'gpuos-drill 1 restored 4 1 1024 900 n4 '\n",
    );
    run
}

#[test]
fn a_drill_says_what_was_restored_where() {
    let site = Site::new("24.11.5");
    let run = restores(&site);
    let answer = site.run(&["ckpt", "drill", "17", "--partition=spare", &run]);
    assert_eq!(answer.code, 0, "{}{}", answer.out, answer.err);
    let said = "checkpoint 4 of job 17 was restored on n[3-4]: 4 files of 2 ranks, 5.0 KiB, each byte held against its digest\n";
    assert!(answer.out.starts_with(said), "{}", answer.out);
    assert!(answer.out.contains("restored in 1.5 s"), "{}", answer.out);
    assert!(
        answer.out.ends_with("  node n1 gave its part\n"),
        "{}",
        answer.out
    );
    let asked = std::fs::read_to_string(site.path("bin/srun.args")).unwrap();
    for word in [
        "--gpuos-restart=17/4",
        "--nodes=2",
        "--ntasks=2",
        "--partition=spare",
    ] {
        assert!(asked.contains(word), "{asked}");
    }
}

#[test]
fn a_drill_that_fails_says_why() {
    let site = Site::new("24.11.5");
    let run = made(&site);
    site.program(
        "srun",
        "#!/bin/sh\necho 'gpuos-drill 0 failed cannot begin from checkpoint 4 of job 17: it is gone'\nexit 1\n",
    );
    let answer = site.run(&["ckpt", "drill", "17", &run]);
    let said = "checkpoint 4 of job 17 could not be restored: cannot begin from checkpoint 4 of job 17: it is gone\n";
    assert_eq!((answer.code, &answer.out[..]), (1, said), "{}", answer.err);
    site.program(
        "srun",
        "#!/bin/sh\necho 'srun: error: no such partition' >&2\nexit 1\n",
    );
    let answer = site.run(&["ckpt", "drill", "17", &run]);
    assert_eq!(answer.code, 1);
    assert!(
        answer
            .err
            .contains("the drill did not run: srun: error: no such partition"),
        "{}",
        answer.err
    );
    let answer = site.run(&["ckpt", "drill", "17", "9", &run]);
    assert_eq!(
        (answer.code, &answer.out[..]),
        (1, "no checkpoint 9 of job 17 is kept\n")
    );
}
