//! MPS daemons of jobs: started as the job's user before its step goes on, ended with it, whatever happens in
//! between. A script stands in for NVIDIA's program.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Instant;

use gpuos_core::limits::{Asked, MpsRequest};
use gpuos_core::step::StepId;
use gpuos_core::wire::{MPS_VARIABLES, Reason, Reply, Request};

use crate::claims::most_lines;
use crate::isolation::audited;
use crate::mps_contained::GroupSite;
use crate::program::program;
use crate::site::{Daemon, Site};

const BATCH: u32 = StepId::BATCH;
const GID: u32 = 100;

/// The control program: a daemon with a server, and `quit`. One that is deaf heeds SIGKILL only; one that hangs is
/// never ready.
const CONTROL: &str = r#"#!/bin/sh
pipe=$CUDA_MPS_PIPE_DIRECTORY
kind=$(basename "$0")
if [ "$1" != -f ]; then
    read -r word
    [ "$kind $word" != "control quit" ] || kill "$(cat "$pipe/pid")"
    exit 0
fi
(env; echo "ids=$(id -u) $(id -g) $(id -G)"; echo "at=$(pwd)") >"$CUDA_MPS_LOG_DIRECTORY/told"
[ "$kind" != deaf ] || trap '' TERM
sleep 600 &
echo "$!" >"$pipe/server"
[ "$kind" = deaf ] || trap 'kill $!; exit 0' TERM
echo "$$" >"$pipe/pid"
[ "$kind" = hangs ] || : >"$pipe/control"
wait
"#;

/// A node on which another user's programs find their way, and the stand-in under this name.
fn site(kind: &str) -> (GroupSite, String) {
    let site = GroupSite::new(1);
    let folder = site.path("");
    fs::set_permissions(&folder, Permissions::from_mode(0o755)).unwrap();
    let path = site.path(kind);
    program(&path, CONTROL);
    (site, path.display().to_string())
}

/// Another user's number where the test may start programs as one, else its own.
fn user(site: &Site) -> (u32, u32) {
    let own = fs::metadata(site.path("")).unwrap();
    match own.uid() {
        0 => (1000, GID),
        uid => (uid, own.gid()),
    }
}

/// Starts a step; its notes and variables.
pub fn start(
    site: &Site,
    daemon: &Daemon,
    job: u32,
    step: u32,
    gpus: &[u8],
    percent: u8,
) -> (Vec<String>, BTreeMap<String, String>) {
    start_as(site, daemon, (job, step), gpus, percent, false)
}

/// The same, with the user's other jobs on a GPU that they share.
fn start_as(
    site: &Site,
    daemon: &Daemon,
    (job, step): (u32, u32),
    gpus: &[u8],
    percent: u8,
    joint: bool,
) -> (Vec<String>, BTreeMap<String, String>) {
    let (uid, gid) = user(site);
    let request = Request::StepStart {
        id: StepId {
            job: job.into(),
            step,
        },
        uid,
        gpus: gpus.to_vec(),
        asked: Asked {
            mps: Some(MpsRequest {
                percent,
                gid,
                joint,
            }),
            shared: joint,
            ..Asked::default()
        },
        mig: None,
        switchable: false,
        memory: None,
        reason: Reason::Devices,
    };
    match daemon.ask(&request).unwrap() {
        Reply::Prepared {
            notes, environment, ..
        } => (notes, environment),
        other => panic!("{other:?}"),
    }
}

pub fn end(daemon: &Daemon, job: u32, step: u32) {
    let id = StepId {
        job: job.into(),
        step,
    };
    daemon.ask(&Request::StepEnd { id }).unwrap();
}

fn number(path: &Path) -> u32 {
    let text = fs::read_to_string(path).unwrap();
    text.trim().parse().unwrap()
}

/// A daemon and its server.
fn pids(site: &Site, whom: impl Display) -> [u32; 2] {
    let pipe = site.path(&format!("run/mps/{whom}/pipe"));
    [number(&pipe.join("pid")), number(&pipe.join("server"))]
}

pub fn lives(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").map(|(_, rest)| rest.as_bytes()[0]);
    state.is_some_and(|state| state != b'Z')
}

fn until_gone(site: &Site, whom: impl Display, pids: [u32; 2]) {
    let folder = site.path(&format!("run/mps/{whom}"));
    site.until(&format!("the end of the MPS daemon of {whom}"), || {
        (!folder.exists() && !pids.into_iter().any(lives)).then_some(())
    });
}

pub fn until_audited(site: &Site, text: &str) {
    site.until(text, || {
        let lines = gpuosd::audit::tail(&site.path("state"), 200).unwrap_or_default();
        lines.iter().any(|line| line.contains(text)).then_some(())
    });
}

#[test]
fn one_daemon_for_a_job_as_its_user_and_nothing_is_left() {
    let (site, control) = site("control");
    let daemon = site.start_with(&site.flags(&["--mps-command", &control]));
    daemon.ready();
    site.job(7, "0-1");
    let (notes, told) = start(&site, &daemon, 7, BATCH, &[0, 1], 50);
    assert_eq!(notes, Vec::<String>::new());
    let own = site.path("run/mps/7");
    let at = |name: &str| own.join(name).display().to_string();
    let values = MPS_VARIABLES.map(|name| told.get(name).cloned());
    assert_eq!(
        values,
        [Some(at("pipe")), Some(at("log")), Some("50".into()), None]
    );
    assert_eq!(told.len(), 3);

    let (uid, gid) = user(&site);
    for folder in [own.clone(), own.join("pipe"), own.join("log")] {
        let meta = fs::metadata(folder).unwrap();
        assert_eq!(
            (meta.uid(), meta.gid(), meta.mode() & 0o777),
            (uid, gid, 0o700)
        );
    }
    // All that it was given: no variable and no group of gpuosd's.
    let said = fs::read_to_string(own.join("log/told")).unwrap();
    let uuids: Vec<String> = daemon.status().gpus[..2]
        .iter()
        .map(|gpu| gpu.uuid.clone())
        .collect();
    let mut lines: Vec<&str> = said
        .lines()
        .filter(|line| !line.starts_with("_="))
        .collect();
    lines.sort_unstable();
    let ids = match uid {
        1000 => format!("ids={uid} {gid} {gid}"),
        _ => lines
            .iter()
            .find(|line| line.starts_with("ids="))
            .unwrap()
            .to_string(),
    };
    let wanted = [
        format!("CUDA_MPS_LOG_DIRECTORY={}", at("log")),
        format!("CUDA_MPS_PIPE_DIRECTORY={}", at("pipe")),
        format!("CUDA_VISIBLE_DEVICES={}", uuids.join(",")),
        "PATH=/usr/local/bin:/usr/bin:/bin".into(),
        "PWD=/".into(),
        "at=/".into(),
        ids,
    ];
    assert_eq!(lines, wanted);
    assert_eq!(
        daemon.status().gpus[1].cap.clone().unwrap().text,
        "mps 50 %"
    );
    assert_eq!(daemon.status().gpus[2].cap, None);

    // Another step has the same one, and its own share; one with other GPUs has none.
    let both = pids(&site, 7);
    let (notes, told) = start(&site, &daemon, 7, 0, &[1], 100);
    assert_eq!((notes.len(), told.len()), (0, 2));
    site.job(7, "0-2");
    let (notes, told) = start(&site, &daemon, 7, 1, &[2], 50);
    assert!(
        notes[0].contains("this one has others") && told.is_empty(),
        "{notes:?}"
    );
    assert_eq!(pids(&site, 7), both);
    end(&daemon, 7, 1);
    end(&daemon, 7, 0);
    end(&daemon, 7, BATCH);
    until_gone(&site, 7, both);
    until_audited(&site, "job 7 has mps 50 %");
    until_audited(&site, "the MPS daemon of job 7 has ended");
}

#[test]
fn jobs_that_share_a_gpu_have_one_daemon_until_the_last_of_them_ends() {
    let (site, control) = site("control");
    let flags = site.flags(&["--mps-command", &control]);
    let daemon = site.start_with(&flags);
    daemon.ready();
    site.until("the GPU's memory is known", || {
        daemon.status().gpus[3].memory_mib
    });
    let (uid, _) = user(&site);
    let name = format!("gpu3-{uid}");
    // Left there by a gpuosd whose state is lost.
    fs::create_dir_all(site.path(&format!("run/mps/{name}/pipe"))).unwrap();
    fs::write(site.path(&format!("run/mps/{name}/pipe/old")), "").unwrap();
    for (job, gpus) in [(7, "3"), (8, "3"), (9, "5"), (10, "1-2"), (11, "3")] {
        site.job(job, gpus);
    }
    let share =
        |job, percent, gpus: &[u8]| start_as(&site, &daemon, (job, BATCH), gpus, percent, true);
    let (notes, told) = share(7, 25, &[3]);
    assert_eq!(notes, Vec::<String>::new());
    let [pipe, _, threads, memory] = MPS_VARIABLES.map(|name| told.get(name).cloned());
    let pipe = pipe.unwrap_or_default();
    assert!(pipe.ends_with(&format!("run/mps/{name}/pipe")), "{pipe}");
    assert_eq!(threads.as_deref(), Some("25"));
    let memory = memory.unwrap_or_default();
    let quarter = memory.strip_prefix("0=").and_then(|n| n.strip_suffix('M'));
    assert!(
        quarter.is_some_and(|n| n.parse::<u32>().is_ok()),
        "{memory}"
    );
    let uuid = daemon.status().gpus[3].uuid.clone();
    assert_eq!(told.get("CUDA_VISIBLE_DEVICES"), Some(&uuid));
    let one = pids(&site, &name);
    assert!(!site.path(&format!("run/mps/{name}/pipe/old")).exists());
    // The user's next job there has the same one, with its own share; on another GPU there is another one.
    let (_, told) = share(8, 75, &[3]);
    assert_eq!(told.get(MPS_VARIABLES[0]), Some(&pipe));
    assert_eq!(told.get(MPS_VARIABLES[2]).map(String::as_str), Some("75"));
    assert_eq!(pids(&site, &name), one);
    share(9, 50, &[5]);
    let other = pids(&site, format!("gpu5-{uid}"));
    // A share of several GPUs is of no one daemon, and who has no shards shares nothing.
    let (notes, told) = share(10, 50, &[1, 2]);
    assert!(
        notes[0].contains("several GPUs") && told.is_empty(),
        "{notes:?}"
    );
    end(&daemon, 10, BATCH);
    end(&daemon, 9, BATCH);
    until_gone(&site, format!("gpu5-{uid}"), other);
    // It outlasts the job for which it was started.
    end(&daemon, 7, BATCH);
    let text = format!("GPU 3 have mps for uid {uid}");
    until_audited(&site, &text);
    let (notes, _) = share(11, 10, &[3]);
    assert_eq!((notes, pids(&site, &name)), (Vec::new(), one));
    assert_eq!(daemon.status().gpus[3].cap.clone().unwrap().job, 8.into());
    assert!(one.into_iter().all(lives));
    end(&daemon, 8, BATCH);
    end(&daemon, 11, BATCH);
    until_gone(&site, &name, one);
    daemon.kill();
}

#[test]
fn kill_9_forgets_no_daemon() {
    let (site, control) = site("control");
    site.job(7, "0");
    site.job(8, "1");
    let flags = site.flags(&["--mps-command", &control]);
    let daemon = site.start_with(&flags);
    daemon.ready();
    start(&site, &daemon, 7, BATCH, &[0], 50);
    start(&site, &daemon, 8, BATCH, &[1], 50);
    let (seven, eight) = (pids(&site, 7), pids(&site, 8));
    daemon.kill();
    assert!(seven.into_iter().chain(eight).all(lives));
    fs::remove_file(site.path("slurm/jobs/7")).unwrap();
    let daemon = site.start_with(&flags);
    daemon.ready();
    until_gone(&site, 7, seven);
    // Job 8 goes on with what it had, until that dies.
    let (notes, told) = start(&site, &daemon, 8, 0, &[1], 50);
    assert_eq!((notes.len(), told.len(), pids(&site, 8)), (0, 3, eight));
    let killed = std::process::Command::new("kill")
        .args(["-9", &eight[0].to_string()])
        .status();
    assert!(killed.unwrap().success());
    until_audited(&site, "the MPS daemon of job 8");
    site.until("that it has died is known", || {
        let (notes, told) = start(&site, &daemon, 8, 1, &[1], 50);
        notes
            .first()
            .filter(|_| told.is_empty())?
            .contains("has died")
            .then_some(())
    });
    let _ = std::process::Command::new("kill")
        .arg(eight[1].to_string())
        .status();
    for step in [0, 1, BATCH] {
        end(&daemon, 8, step);
    }
    until_gone(&site, 8, eight);
}

#[test]
fn what_does_not_end_is_killed() {
    let (site, control) = site("deaf");
    let daemon = site.start_with(&site.flags(&["--mps-command", &control]));
    daemon.ready();
    site.job(7, "0");
    start(&site, &daemon, 7, BATCH, &[0], 100);
    let both = pids(&site, 7);
    end(&daemon, 7, BATCH);
    until_gone(&site, 7, both);
}

#[test]
fn the_capabilities_of_the_unit_are_enough_for_it() {
    let Some(gpuosd) = crate::unit::confined(env!("CARGO_BIN_EXE_gpuosd")) else {
        return;
    };
    let (site, control) = site("deaf");
    let daemon = site.start_under(gpuosd, &site.flags(&["--mps-command", &control]));
    daemon.ready();
    site.job(7, "0");
    let (notes, told) = start(&site, &daemon, 7, BATCH, &[0], 50);
    assert!(notes.is_empty() && told.len() == 3, "{notes:?}");
    let both = pids(&site, 7);
    end(&daemon, 7, BATCH);
    until_gone(&site, 7, both);
}

#[test]
fn what_users_leave_in_its_folder_neither_ends_gpuosd_nor_stays() {
    let (site, control) = site("control");
    // As many descriptors as the unit allows.
    let limited = format!(
        "ulimit -n 1024; exec {} \"$@\"",
        env!("CARGO_BIN_EXE_gpuosd")
    );
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", &limited, "gpuosd"]);
    let mut daemon = site.start_under(shell, &site.flags(&["--mps-command", &control]));
    daemon.ready();
    site.job(7, "0");
    start(&site, &daemon, 7, BATCH, &[0], 50);
    let both = pids(&site, 7);
    crate::clear::nest(&site.path("run/mps/7/pipe"), 18_000);
    crate::clear::nest(&site.path("run/mps/7/log"), 200);
    end(&daemon, 7, BATCH);
    until_gone(&site, 7, both);
    assert!(daemon.lives());
    until_audited(&site, "the MPS daemon of job 7 has ended");
}

#[test]
fn a_folder_that_cannot_be_removed_is_told_and_tried_again() {
    let (site, control) = site("control");
    let mut daemon = site.start_with(&site.flags(&["--mps-command", &control]));
    daemon.ready();
    site.job(7, "0");
    start(&site, &daemon, 7, BATCH, &[0], 50);
    let mounted = site.path("run/mps/7/log/mounted");
    if !crate::site::mount(&mounted, "1m") {
        return;
    }
    fs::write(mounted.join("kept"), "").unwrap();
    end(&daemon, 7, BATCH);
    until_audited(&site, "could not be removed, and is tried again");
    until_audited(&site, "something is mounted in it");
    assert!(daemon.lives() && mounted.join("kept").exists());
    crate::site::unmount(&mounted);
    site.until("the end of the folder", || {
        (!site.path("run/mps/7").exists()).then_some(())
    });
}

#[test]
fn a_program_that_is_missing_or_hangs_is_told_and_leaves_nothing() {
    for (kind, missing, why) in [
        ("hangs", false, "was not ready within"),
        ("control", true, "is not on this node"),
    ] {
        let (site, mut control) = site(kind);
        if missing {
            control += "-not-here";
        }
        let flags = site.flags(&["--mps-command", &control, "--answer-within", "15000"]);
        let daemon = site.start_with(&flags);
        daemon.ready();
        site.job(7, "0");
        let (notes, told) = start(&site, &daemon, 7, BATCH, &[0], 50);
        assert!(
            notes[0].starts_with("MPS is not there: ")
                && notes[0].contains(why)
                && notes[0].ends_with("the job runs without it"),
            "{notes:?}"
        );
        assert!(told.is_empty() && !site.path("run/mps/7").exists());
        assert_eq!(daemon.status().gpus[0].cap, None);
        end(&daemon, 7, BATCH);
    }
}

#[test]
fn lines_about_mps_of_one_user_do_not_fill_the_audit_log() {
    let (site, control) = site("control");
    let missing = control + "-not-here";
    let daemon = site.start_with(&site.flags(&["--mps-command", &missing]));
    daemon.ready();
    let begun = Instant::now();
    for job in 100..200 {
        site.job(job, "0");
        start(&site, &daemon, job, BATCH, &[0], 50);
        fs::remove_file(site.path(&format!("slurm/jobs/{job}"))).unwrap();
        end(&daemon, job, BATCH);
    }
    let count = || audited(&site, "without MPS");
    let lines = site.until("lines", || Some(count()).filter(|lines| *lines >= 30));
    assert!(lines <= most_lines(begun), "{lines}");
}
