//! `gpuos ckpt drill` without some parts and of several jobs, and `gpuos ckpt report`.

use gpuos_core::wire::{CheckpointJob, CheckpointRecovery};

use crate::ckpt_bed::{Part, mover, telling, with};
use crate::site::Site;

/// srun restores what it is asked for, but not of job 3.
const SRUN: &str = "#!/bin/sh
echo \"$*\" >>$0.args
case \"$*\" in
*--gpuos-restart=3/*) echo 'gpuos-drill 0 failed checkpoint 4 of job 3 is gone'; exit 1 ;;
esac
echo 'gpuos-drill 0 restored 4 3 4096 1500 n3 {\"told\":[{\"jobs\":[{\"came\":[\"the part of node 1 was made again of what the others have\"]}]}]}'
echo 'gpuos-drill 1 restored 4 1 1024 900 n4 '
";

/// A job of this number with a checkpoint.
fn saved(number: u32) -> CheckpointJob {
    let mut jobs = with(&[4], None, &[]);
    let mut job = jobs.remove(0);
    job.job = number.into();
    job
}

/// What a mover has measured: two restarts and a drill.
fn recoveries() -> Vec<CheckpointRecovery> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = now.unwrap().as_secs();
    let restart = CheckpointRecovery {
        time: now - 600,
        job: 2.into(),
        uid: 0,
        run: 1,
        number: Some(7),
        nodes: 3,
        detection_ms: Some(6_500),
        requeue_ms: Some(3_000),
        rebuild_ms: Some(2_250),
        load_ms: Some(125),
        lost_s: Some(300),
        ..CheckpointRecovery::default()
    };
    vec![
        CheckpointRecovery {
            time: now - 40 * 86_400,
            ..restart.clone()
        },
        restart.clone(),
        CheckpointRecovery {
            time: now - 300,
            job: 3.into(),
            detection_ms: None,
            lost_s: Some(60),
            ..restart.clone()
        },
        CheckpointRecovery {
            time: now - 60,
            drill: Some(9.into()),
            lose: 1,
            failed: "cannot begin from checkpoint 7 of job 2: it is gone".into(),
            ..CheckpointRecovery {
                job: 2.into(),
                number: Some(7),
                ..CheckpointRecovery::default()
            }
        },
    ]
}

/// Two running jobs with checkpoints, one of which cannot be restored, and two that nobody runs or that have none.
pub fn of_two(site: &Site) -> String {
    site.program("srun", SRUN);
    let mut bare = saved(1);
    bare.checkpoints.clear();
    let jobs = [saved(2), saved(3), bare, saved(77)];
    mover(
        site,
        Part {
            recoveries: recoveries(),
            ..telling(&jobs)
        },
    )
}

#[test]
fn parts_that_count_as_gone_are_said_to_the_drills_job() {
    let site = Site::new("24.11.5");
    let run = of_two(&site);
    let answer = site.run(&["ckpt", "drill", "2", "--lose=1", "--queue-minutes=5", &run]);
    assert_eq!(answer.code, 0, "{}{}", answer.out, answer.err);
    let told = "  the part of node 1 was made again of what the others have\n";
    assert!(answer.out.ends_with(told), "{}", answer.out);
    let asked = std::fs::read_to_string(site.path("bin/srun.args")).unwrap();
    for word in [
        "--gpuos-restart=2/4/lose:1",
        "--immediate=300",
        "--exclude=n[1-2]",
    ] {
        assert!(asked.contains(word), "{asked}");
    }
    let answer = site.run(&["ckpt", "drill", "2", "--lose=2", &run]);
    assert_eq!(answer.code, 1);
    let why = "keeps what 1 lost part can be made again from (l2=partner), and --lose=2 asks for more: nothing was tried";
    assert!(answer.err.contains(why), "{}", answer.err);
    for bad in [
        &["2", "--all"][..],
        &["--all", "--sample=1"],
        &["2", "--lose=65"],
        &["--sample=0"],
        &[],
    ] {
        let args = [&["ckpt", "drill"], bad, &[&run]].concat();
        assert_eq!(site.run(&args).code, 2, "{bad:?}");
    }
}

#[test]
fn all_running_jobs_with_checkpoints_are_drilled_one_after_another() {
    let site = Site::new("24.11.5");
    let run = of_two(&site);
    let answer = site.run(&["ckpt", "drill", "--all", &run]);
    assert_eq!(answer.code, 1, "{}{}", answer.out, answer.err);
    for told in [
        "checkpoint 4 of job 2 was restored on n[3-4]",
        "checkpoint 4 of job 3 could not be restored: checkpoint 4 of job 3 is gone\n",
        "1 of 2 jobs restored, 1 failed, 0 not run\n",
    ] {
        assert!(answer.out.contains(told), "{told}\nin\n{}", answer.out);
    }
    let asked = std::fs::read_to_string(site.path("bin/srun.args")).unwrap();
    assert_eq!(asked.matches("--immediate=600").count(), 2, "{asked}");
    let answer = site.run(&["--json", "ckpt", "drill", "--sample=1", &run]);
    let told = answer.json();
    let both = [&told["restored"], &told["failed"]];
    let drilled: usize = both.iter().map(|all| all.as_array().unwrap().len()).sum();
    assert_eq!(drilled, 1, "{told}");
    // What the unit of systemd runs by itself.
    let unit = include_str!("../../../../packaging/gpuos-ckpt-drill.service");
    let of = |key: &str| {
        unit.lines()
            .find_map(|line| line.strip_prefix(key))
            .unwrap()
    };
    let command =
        of("ExecStart=/usr/bin/gpuos ").replace("$GPUOS_DRILL", of("Environment=GPUOS_DRILL="));
    let words: Vec<&str> = command.split(' ').collect();
    let answer = site.run(&[&words[..], &[&run]].concat());
    assert!(
        answer.code < 2 && answer.out.contains(" of 1 job"),
        "{}{}",
        answer.out,
        answer.err
    );
    site.program(
        "srun",
        "#!/bin/sh\necho 'srun: error: Unable to allocate' >&2\nexit 1\n",
    );
    let answer = site.run(&["ckpt", "drill", "--all", &run]);
    assert_eq!(answer.code, 1);
    assert!(
        answer.err.contains("no drill could be run"),
        "{}",
        answer.err
    );
}

#[test]
fn nothing_to_restore_is_no_failure() {
    let site = Site::new("24.11.5");
    let run = mover(&site, telling(&[saved(77)]));
    let answer = site.run(&["ckpt", "drill", "--all", &run]);
    let said = "no running job has checkpoints: there was nothing to restore\n";
    assert_eq!((answer.code, &answer.out[..]), (0, said), "{}", answer.err);
}

#[test]
fn a_report_has_the_parts_of_each_restart_and_what_drills_came_to() {
    let site = Site::new("24.11.5");
    let run = of_two(&site);
    let answer = site.run(&["ckpt", "report", &run]);
    assert_eq!(answer.code, 0, "{}", answer.err);
    for told in [
        "    2  root     7      3  6.5 s      3.0 s    2.2 s    125 ms  11.8 s  5 min\n",
        "    3  root     7      3  -          3.0 s    2.2 s    125 ms  5.3 s   60 s\n",
        "2 restarts: median, 95th percentile, largest\n",
        "  detection  6.5 s, 6.5 s, 6.5 s\n",
        "  lost work  60 s, 5 min, 5 min\n",
        "cannot begin from checkpoint 7 of job 2: it is gone",
    ] {
        assert!(answer.out.contains(told), "{told}\nin\n{}", answer.out);
    }
    let one = site
        .run(&["--json", "ckpt", "report", "3", "--since=8w", &run])
        .json();
    assert_eq!(one["recoveries"].as_array().unwrap().len(), 1);
    assert_eq!(one["figures"]["total"]["median"], 5375);
    let old = site
        .run(&["--json", "ckpt", "report", "--since=8w", &run])
        .json();
    assert_eq!(old["recoveries"].as_array().unwrap().len(), 4);
    let none = site.run(&["ckpt", "report", "12", &run]);
    let said = "no job that n1 led went on from a checkpoint in the last 30 d\n";
    assert_eq!((none.code, &none.out[..]), (0, said));
    for bad in [
        "--since=3",
        "--since=d",
        "--since=-1d",
        "--since=99999999999999999999d",
    ] {
        assert_eq!(site.run(&["ckpt", "report", bad, &run]).code, 2, "{bad}");
    }
}
