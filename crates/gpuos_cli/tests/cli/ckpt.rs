//! `gpuos ckpt`, with a gpuos_mover that plays a part, and with several of a lab.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use gpuos_core::wire::{CheckpointJob, CheckpointPhase, CheckpointRefused};
use gpuos_host::socket::MOVER;

use crate::ckpt_bed::{
    NOBODY, Part, failing, forms, job, kept, lab, made, mover, other, telling, whole, with,
};
use crate::site::Site;

#[test]
fn a_line_for_each_job_says_how_far_it_is() {
    let site = Site::new("24.11.5");
    let mut jobs = vec![whole()];
    let running = CheckpointJob {
        uid: 0,
        checkpoints: vec![kept(2, true, 2), kept(3, false, 2)],
        scheme: "rs:6+2".into(),
        losses: 2,
        interval_s: Some(7200),
        ..job(18, CheckpointPhase::Running)
    };
    jobs.push(running);
    jobs.push(job(19, CheckpointPhase::Gathering));
    jobs.push(CheckpointJob {
        why: "n2 does not answer:\nit was asked 3 times".into(),
        ..job(20, CheckpointPhase::Rebuilding)
    });
    jobs.push(CheckpointJob {
        why: "rs:6+2 needs 8 nodes".into(),
        scheme: "single".into(),
        losses: 0,
        ..job(21, CheckpointPhase::Failed)
    });
    jobs.push(CheckpointJob {
        nodes: Vec::new(),
        ..job(22, CheckpointPhase::Left)
    });
    let run = mover(&site, telling(&jobs));
    let wanted = "\
JOB  USER        NODES   PHASE       NEWEST  AGE  EVERY   SURVIVES  SIZE
 17  4000000001  n[1-2]  making 16   15      2 d  10 min  1 of 2    1.5 GiB
 18  root        n[1-2]  running     2       2 d  2 h     2 of 8    1.5 GiB
 19  4000000001  n[1-2]  gathering   -       -    -       1 of 2    -
 20  4000000001  n[1-2]  rebuilding  -       -    -       1 of 2    -
 21  4000000001  n[1-2]  failed      -       -    -       -         -
 22  4000000001  n1      left        -       -    -       1 of 2    -
job 20: n2 does not answer:\\nit was asked 3 times
job 21: rs:6+2 needs 8 nodes
6 jobs, 8.0 GiB on disk on n1
";
    let answer = site.run(&["ckpt", "list", &run]);
    assert_eq!(
        (answer.code, &answer.out[..]),
        (0, wanted),
        "{}",
        answer.err
    );
    let one = site.run(&["ckpt", "list", "18", "--json", &run]).json();
    let row = &one["jobs"][0];
    assert_eq!(one["jobs"].as_array().unwrap().len(), 1);
    assert_eq!(
        (&row["newest"], &row["bytes"]),
        (&2.into(), &(3 << 29).into())
    );
    assert_eq!(
        (&row["user"], &row["phase"]),
        (&"root".into(), &"running".into())
    );
    assert_eq!(one["told"][0]["node"], "n1");
}

#[test]
fn a_checkpoint_that_was_refused_is_told_and_is_not_the_newest() {
    let site = Site::new("24.11.5");
    let mut jobs = vec![whole()];
    jobs[0].checkpoints[1].refused = Some(CheckpointRefused {
        rank: 2,
        node: "n3".into(),
        said: "no layer\u{1b}[31m".into(),
    });
    let run = mover(&site, telling(&jobs));
    let list = site.run(&["ckpt", "list", &run]);
    let said = "checkpoint 15 is refused by rank 2 on n3: no layer\\u{1b}[31m\n";
    assert!(
        list.out.contains(&format!("job 17: {said}")),
        "{}",
        list.out
    );
    assert!(list.out.contains("making 16      14 "), "{}", list.out);
    let show = site.run(&["ckpt", "show", "17", "--node=n1", &run]);
    let part = format!("\npassed over from now on:\n  {said}");
    assert!(show.out.contains(&part), "{}", show.out);
}

#[test]
fn a_job_of_a_lab_is_one_line_and_shown_with_all_its_nodes() {
    let site = Site::new("24.11.5");
    let run = lab(
        &site,
        vec![("n1", telling(&[other()])), ("n2", telling(&[whole()]))],
    );
    let list = site.run(&["ckpt", "list", &run]);
    let wanted = "\
JOB        USER  NODES   PHASE      NEWEST  AGE  EVERY   SURVIVES  SIZE
 17  4000000001  n[1-2]  making 16      15  2 d  10 min  1 of 2    1.5 GiB
1 job, 8.0 GiB on disk on n[1-2]
";
    assert_eq!((list.code, &list.out[..]), (0, wanted), "{}", list.err);
    let shown = site.run(&["ckpt", "show", "17", &run]);
    let wanted = "\
Job 17 of 4000000001 on n[1-2], restarted once
  running: checkpoints can be made
  went on from checkpoint 12
  passed over: checkpoint 13: the parts of 2 nodes are gone
  every 10 min, which is Daly's optimum
  any 1 node of each pair can be lost, and its part is made again (partner)
  4 ranks of the program, joined: 2-3 on n1, 0-1 on n2
  making checkpoint 16 by the interval for 12.3 s: waits for the program's files, rank 1; n1: the program's files, ranks 2-3

NODE  NUMBER  AGE  COMMITTED  FILES  SIZE     ON DISK  TOOK   FORM
n1        14  3 d  yes            4  1.5 GiB  2.0 GiB  2.5 s  -
n2        14  3 d  yes            4  1.5 GiB  2.0 GiB  2.5 s  -
n1        15  2 d  no             4  1.5 GiB  2.0 GiB  -      -
n2        15  2 d  yes            4  1.5 GiB  2.0 GiB  2.5 s  zstd (-50 %), AES-256-CTR in part

came to nothing:
  checkpoint 11: no room on n2
";
    assert_eq!((shown.code, &shown.out[..]), (0, wanted), "{}", shown.err);
    let one = site.run(&["ckpt", "show", "17", "--node", "n1", &run]);
    assert!(
        one.out.contains("The job's other nodes, n2, keep parts"),
        "{}",
        one.out
    );
    // The mover of one node is away.
    std::fs::remove_file(site.path("gpuosd.n2") + "/" + MOVER).unwrap();
    let shown = site.run(&["ckpt", "show", "17", &run]);
    assert_eq!(shown.code, 0);
    assert!(
        shown
            .out
            .contains("\nnot asked: n2: no gpuos_mover answers here"),
        "{}",
        shown.out
    );
    let json = site.run(&["ckpt", "show", "17", "--json", &run]).json();
    assert_eq!(json["missing"].as_array().unwrap().len(), 1);
    let away = site.run(&["ckpt", "show", "17", "--node", "n2", &run]);
    assert_eq!(away.code, 1);
    assert!(away.err.contains("no gpuos_mover answers"), "{}", away.err);
}

#[test]
fn each_phase_is_told_in_words() {
    for (phase, words) in [
        // Nothing is left over of a job that waits.
        (
            CheckpointPhase::Left,
            "kept: the job is PENDING and goes on from what is kept",
        ),
        (CheckpointPhase::Gathering, "gathering: the movers"),
        (CheckpointPhase::Rebuilding, "rebuilding: parts that"),
        (
            CheckpointPhase::Running,
            "no rank of the program has joined yet",
        ),
        (
            CheckpointPhase::Failed,
            "failed: no checkpoints are made in this run; because",
        ),
    ] {
        let site = Site::new("24.11.5");
        let told = CheckpointJob {
            why: "because".into(),
            ..job(17, phase)
        };
        let run = mover(&site, telling(&[told]));
        let answer = site.run(&["ckpt", "show", "17", &run]);
        assert_eq!(answer.code, 0, "{}", answer.err);
        for part in [words, "no checkpoint is kept yet"] {
            assert!(answer.out.contains(part), "{phase:?}: {}", answer.out);
        }
    }
}

#[test]
fn what_is_saved_and_not_stored_is_told_first() {
    let site = Site::new("24.11.5");
    let told = CheckpointJob {
        failed_in_row: 1,
        failed_why: "checkpoint 4: no space on n2".into(),
        ..job(17, CheckpointPhase::Running)
    };
    let run = mover(&site, telling(&[told]));
    let answer = site.run(&["ckpt", "show", "17", &run]);
    let line = "  not stored: the last one came to nothing: checkpoint 4: no space on n2\n";
    assert!(answer.out.contains(line), "{}", answer.out);
}

#[test]
fn a_checkpoint_that_is_asked_for_is_waited_for() {
    let site = Site::new("24.11.5");
    let run = made(&site);
    let answer = site.run(&["ckpt", "now", "17", &run]);
    assert_eq!(
        (answer.code, &answer.out[..]),
        (
            0,
            "checkpoint 5 of job 17 is committed after 2.5 s: 4 files, 1.5 GiB on n1\n"
        ),
        "{}",
        answer.err
    );
    let site = Site::new("24.11.5");
    let run = failing(&site);
    let answer = site.run(&["ckpt", "now", "17", &run]);
    assert_eq!(
        (answer.code, &answer.out[..]),
        (
            1,
            "checkpoint 5 of job 17 came to nothing: checkpoint 5: no room on n2\n"
        ),
        "{}",
        answer.err
    );
    let site = Site::new("24.11.5");
    let run = failing(&site);
    let answer = site.run(&["ckpt", "now", "17", "--no-wait", &run]);
    assert_eq!(
        (answer.code, &answer.out[..]),
        (0, "job 17 is asked for a checkpoint\n"),
        "{}",
        answer.err
    );
}

#[test]
fn what_ends_while_a_checkpoint_is_waited_for_ends_the_wait() {
    let site = Site::new("24.11.5");
    let left = vec![job(17, CheckpointPhase::Left)];
    let run = mover(
        &site,
        Part {
            after_now: [with(&[4], None, &[]), left].into(),
            ..telling(&with(&[4], None, &[]))
        },
    );
    let answer = site.run(&["ckpt", "now", "17", &run]);
    assert_eq!(answer.code, 1);
    assert!(answer.out.contains("the job has ended"), "{}", answer.out);
    let site = Site::new("24.11.5");
    let run = mover(
        &site,
        Part {
            ends: true,
            ..telling(&with(&[4], None, &[]))
        },
    );
    let answer = site.run(&["ckpt", "now", "17", &run]);
    assert_eq!(answer.code, 1);
    for part in [
        "how it ended is not known",
        "`gpuos ckpt show 17`",
        "no gpuos_mover answers",
        "systemctl start gpuos_mover",
    ] {
        assert!(answer.err.contains(part), "{}", answer.err);
    }
}

#[test]
fn what_is_kept_is_verified_on_each_node() {
    let site = Site::new("24.11.5");
    let run = forms(&site);
    let answer = site.run(&["ckpt", "verify", "17", &run]);
    let wanted = "\
n1: 2 checkpoints read, all of it holds
n2: 2 checkpoints read, 1 fault found
  checkpoint 14: extent 7 does not match its digest
";
    assert_eq!(
        (answer.code, &answer.out[..]),
        (1, wanted),
        "{}",
        answer.err
    );
    let answer = site.run(&["ckpt", "verify", "17", "--node", "n1", &run]);
    assert_eq!(answer.code, 0, "{}", answer.out);
    // What was not read is not known to hold.
    std::fs::remove_file(site.path("gpuosd.n2") + "/" + MOVER).unwrap();
    let answer = site.run(&["ckpt", "verify", "17", &run]);
    assert_eq!(answer.code, 1);
    assert!(answer.out.contains("not asked: n2"), "{}", answer.out);
}

#[test]
fn checkpoints_of_a_job_that_has_ended_are_removed() {
    let site = Site::new("24.11.5");
    let left = CheckpointJob {
        nodes: Vec::new(),
        leads: false,
        ..job(17, CheckpointPhase::Left)
    };
    let run = lab(
        &site,
        vec![
            ("n1", telling(std::slice::from_ref(&left))),
            ("n2", telling(&[left])),
            ("n3", Part::default()),
        ],
    );
    let answer = site.run(&["ckpt", "prune", "17", &run]);
    assert_eq!(
        (answer.code, &answer.out[..]),
        (
            0,
            "n1: 2 checkpoints of job 17 are removed\nn2: 2 checkpoints of job 17 are removed\n"
        ),
        "{}",
        answer.err
    );
    let site = Site::new("24.11.5");
    let run = mover(
        &site,
        Part {
            refuses: Some("job 17 runs: end it first".into()),
            ..telling(&[whole()])
        },
    );
    for verb in ["prune", "now", "verify"] {
        let answer = site.run(&["ckpt", verb, "17", &run]);
        assert_eq!(answer.code, 1, "{verb}: {}", answer.out);
        let said = format!("{}{}", answer.out, answer.err);
        assert!(said.contains("job 17 runs: end it first"), "{verb}: {said}");
    }
}

/// What an ordinary user may, by the kernel's word on who he is.
#[test]
fn a_user_sees_and_handles_his_own_jobs() {
    let site = Site::new("24.11.5");
    let roots = CheckpointJob {
        uid: 0,
        ..job(18, CheckpointPhase::Running)
    };
    let run = mover(&site, telling(&[whole(), roots]));
    if std::fs::metadata(site.path("run")).unwrap().uid() != 0 {
        println!("skipped: only root can be another user");
        return;
    }
    site.install(Path::new(env!("CARGO_BIN_EXE_gpuos")), "gpuos");
    std::fs::set_permissions(site.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let user = |args: &[&str]| {
        let mut command = Command::new(site.path("bin/gpuos"));
        command.args(args).arg(&run).uid(NOBODY).gid(NOBODY);
        let path = format!("{}:/usr/bin:/bin", site.path("bin"));
        let out = command.env_clear().env("PATH", path).current_dir("/");
        let out = out.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let said = text(out.stdout) + &text(out.stderr);
        (out.status.code().unwrap(), said)
    };
    let (code, said) = user(&["ckpt", "list"]);
    assert!(code == 0 && said.contains("1 job, "), "{said}");
    let (code, said) = user(&["ckpt", "now", "17", "--no-wait"]);
    assert!(code == 0 && said.contains("is asked for"), "{said}");
    for verb in ["show", "now", "verify", "prune"] {
        let (code, said) = user(&["ckpt", verb, "18", "--local"]);
        assert!(
            code == 1 && said.contains("another user's"),
            "{verb}: {said}"
        );
    }
}

/// A user is told of his own jobs only: a job of others is as one that is not there.
#[test]
fn a_job_that_is_not_told_of_is_said_to_be_perhaps_anothers() {
    let site = Site::new("24.11.5");
    // By Slurm job 1 runs on n1, where this mover is.
    let run = mover(&site, telling(&[whole()]));
    for verb in ["show", "now", "verify", "prune"] {
        let answer = site.run(&["ckpt", verb, "1", &run]);
        assert_eq!(answer.code, 1, "{verb}");
        assert!(
            answer
                .err
                .contains("gpuos_mover of n1 tells you of no checkpoints of job 1")
                && answer.err.contains("another user's"),
            "{verb}: {}",
            answer.err
        );
    }
    let list = site.run(&["ckpt", "list", "1", &run]);
    assert_eq!(
        (list.code, &list.out[..]),
        (0, "n1: no checkpoints of jobs that you may see\n")
    );
}
