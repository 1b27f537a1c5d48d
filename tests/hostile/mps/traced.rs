//! MPS daemons that their user traces, to have them run what he likes.

use std::fs;
use std::path::PathBuf;

use crate::attempt::{Attempt, Judge, Verdict, attempt, ensure, judge, known};
use crate::stage::Stage;
use crate::users::MALLORY;

/// SECURITY.md's name of the input.
const INPUT: &str = "MPS daemons";
/// Where the jobs run.
const NODE: &str = "n3";

/// The attempts. `$here` is a folder of the attacker's, in which code that runs in the daemon says what it has seen.
pub fn all() -> Vec<Attempt> {
    let own = "it opens the job's GPU and no other";
    let ends = "nothing of it outlives the job";
    vec![
        traced(
            own,
            "code that is put into it opens all GPUs of the node",
            "for device in $devices; do why=$( (: <\"$device\") 2>&1); case $why in *ermitted*) ;; *) echo \"open ${device##*/}\" >>$here/said ;; esac; done; \
             echo done >>$here/said; sleep 300",
            opens_its_own,
        ),
        traced(
            ends,
            "code that is put into it starts processes of other sessions, deaf to signals",
            "trap '' TERM HUP INT; (setsid sh -c \"trap '' TERM HUP INT; echo \\$\\$ >>$here/pids; while :; do sleep 300; done\" &); echo $$ >>$here/pids; \
             echo done >>$here/said; while :; do sleep 300; done",
            nothing_lives,
        ),
        traced(
            ends,
            "code that is put into it is another process every few milliseconds",
            "echo 'trap \"\" TERM HUP INT; echo $$ >>'$here'/pids; sleep 0.02; setsid sh '$here'/hop &' >$here/hop; setsid sh $here/hop & sleep 1; \
             echo done >>$here/said; while :; do sleep 300; done",
            nothing_lives,
        ),
        traced(
            own,
            "code that is put into it leaves its control group",
            "for group in $(find /sys/fs/cgroup -name cgroup.procs 2>/dev/null | head -n 2000); do echo $$ >$group && echo \"entered $group\" >>$here/said; done \
             2>/dev/null; cat /proc/self/cgroup >$here/groups; echo done >>$here/said; sleep 300",
            is_in_its_group,
        ),
        traced(
            ends,
            "code that is put into it kills the daemon and stays",
            "(setsid sh -c \"trap '' TERM HUP INT; sleep 1; echo \\$\\$ >>$here/pids; echo done >>$here/said; while :; do sleep 300; done\" &); kill -9 $$",
            nothing_lives,
        ),
    ]
}

type Look = fn(&Stage, &str, u32) -> Result<(), String>;

/// A job with MPS that has its daemon execute a script, by ptrace(2).
fn traced(holds: &'static str, name: &'static str, code: &'static str, look: Look) -> Attempt {
    attempt(INPUT, name, holds, move |stage: &Stage| -> Judge {
        if !cfg!(target_arch = "x86_64") {
            return known(Verdict::Skipped("registers of x86-64 are written".into()));
        }
        let here = folder(stage, name);
        fs::create_dir(&here).expect("a folder");
        std::os::unix::fs::chown(&here, Some(MALLORY.uid), Some(MALLORY.uid)).expect("hers");
        let devices = stage.cluster.lab.device_dir();
        let file = here.join("code");
        let text = format!(
            "#!/bin/sh\nPATH=/usr/bin:/bin LC_ALL=C\nhere={}\ndevices=$(ls {}/nvidia[0-9]*)\n{code}\n",
            here.display(),
            devices.display()
        );
        gpuos_tests::program(&file, &text);
        let script = format!(
            "case $CUDA_MPS_PIPE_DIRECTORY in */mps/*) ;; *) echo end=late; exit ;; esac\n\
             export GPUOS_HOSTILE_ROLE=trace GPUOS_HOSTILE_WORDS=\"$(cat $CUDA_MPS_PIPE_DIRECTORY/pid)\n{}\"\n\
             \"$ATTACKER\" --exact hostile::plays_its_part --nocapture\n\
             echo end=$CUDA_VISIBLE_DEVICES$GPU_DEVICE_ORDINAL; sleep 600",
            file.display()
        );
        let submit = move |stage: &Stage| {
            let options = ["-w", NODE, "--gres=gpu:1", "--gpuos-mps=on"];
            stage.sbatch_with(stage.command(MALLORY, "sbatch"), &options, &script)
        };
        let first = submit(stage);
        judge(move |stage| {
            let mut job = first?;
            // On a busy machine a daemon may come later than its step waits for it.
            for _ in 0..8 {
                if stage.told(job, "end=")? != "late" {
                    break;
                }
                job = submit(stage)?;
            }
            let said = || fs::read_to_string(here.join("said")).unwrap_or_default();
            let ran = stage.try_until(|| said().contains("done").then_some(()));
            ran.ok_or_else(|| {
                format!("the code did not run in the daemon: {}", stage.output(job))
            })?;
            let seen = look(stage, name, job);
            let _ = stage.cluster.try_run("scancel", &[&job.to_string()]);
            stage.status(NODE)?;
            seen
        })
    })
}

fn folder(stage: &Stage, name: &str) -> PathBuf {
    stage.work(&format!("traced-{}", name.replace([' ', ','], "-")))
}

fn said(stage: &Stage, name: &str, file: &str) -> String {
    fs::read_to_string(folder(stage, name).join(file)).unwrap_or_default()
}

fn opens_its_own(stage: &Stage, name: &str, job: u32) -> Result<(), String> {
    let gpus = stage.cluster.gpus(job);
    let own: Vec<String> = gpus
        .values()
        .flatten()
        .map(|gpu| format!("open nvidia{gpu}"))
        .collect();
    let said = said(stage, name, "said");
    let opened: Vec<&str> = said
        .lines()
        .filter(|line| line.starts_with("open "))
        .collect();
    ensure(opened == own, || format!("{opened:?}, and it has {own:?}"))
}

fn nothing_lives(stage: &Stage, name: &str, job: u32) -> Result<(), String> {
    let pids = || -> Vec<u32> {
        let text = said(stage, name, "pids");
        text.split_whitespace()
            .filter_map(|pid| pid.parse().ok())
            .collect()
    };
    ensure(!pids().is_empty(), || "nothing was started".into())?;
    stage
        .cluster
        .try_run("scancel", &[&job.to_string()])
        .map_err(|why| format!("scancel: {why}"))?;
    let lives = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let own = fs::metadata(format!("/proc/{pid}"));
        let own = own.is_ok_and(|of| std::os::unix::fs::MetadataExt::uid(&of) == MALLORY.uid);
        own && !stat.is_empty() && !stat.contains(") Z ")
    };
    let over = || {
        let before = pids().len();
        std::thread::sleep(std::time::Duration::from_millis(300));
        let all = pids();
        (all.len() == before && !all.iter().any(lives)).then_some(())
    };
    stage.try_until(over).ok_or_else(|| {
        let all = pids();
        let left: Vec<&u32> = all.iter().filter(|pid| lives(pid)).collect();
        format!("of {} processes {left:?} live", all.len())
    })
}

fn is_in_its_group(stage: &Stage, name: &str, job: u32) -> Result<(), String> {
    let said_ = said(stage, name, "said");
    ensure(!said_.contains("entered"), || said_.clone())?;
    let groups = said(stage, name, "groups");
    ensure(groups.contains(&format!("/gpuos/{NODE}/mps_{job}")), || {
        format!("it is in {groups}")
    })
}
