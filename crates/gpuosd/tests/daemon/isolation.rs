//! Processes on GPUs: recorded ones in a folder, and real ones that are killed.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use gpuos_core::isolation::Finding;

use crate::site::{Daemon, Site};

/// A process that ends with the test.
pub struct Ends(pub Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A process as `/proc` shows it.
pub fn record(site: &Site, pid: u32, uid: u32, name: &str, cgroup: &str) {
    let folder = site.path("proc").join(pid.to_string());
    fs::create_dir_all(&folder).unwrap();
    let stat = format!("{pid} ({name}) S{} {} 0\n", " 0".repeat(18), pid * 100);
    fs::write(folder.join("stat"), stat).unwrap();
    let status = format!("Name:\t{name}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n");
    fs::write(folder.join("status"), status).unwrap();
    fs::write(folder.join("cgroup"), format!("0::{cgroup}\n")).unwrap();
}

pub fn of_job(job: u32, step: &str) -> String {
    format!("/system.slice/slurmstepd.scope/job_{job}/step_{step}/user/task_0")
}

pub fn findings(daemon: &Daemon<'_>) -> Vec<Finding> {
    daemon.status().isolation.findings
}

pub fn audited(site: &Site, text: &str) -> usize {
    let log = fs::read_to_string(site.path("state/audit.jsonl")).unwrap_or_default();
    log.lines().filter(|line| line.contains(text)).count()
}

/// Control groups named by Slurm's own ids, as 26.05 has them with version 2: whose they are slurmctld says.
#[test]
fn jobs_are_known_by_slurms_own_ids_of_them() {
    let site = Site::new();
    fs::write(site.path("gpuos.toml"), "[isolation]\ngrace = \"1s\"\n").unwrap();
    site.job_with_id(7, "0-1", "   SLUID=s521M7XBGAHZ00\n");
    site.job_with_id(8, "2", "   SLUID=s521M7XBGAJ600\n");
    let of = |id: &str| format!("/system.slice/slurmstepd.scope/{id}/step_0/user/task_0");
    // At home; on the GPU of another job; of an id that slurmctld does not know; with an id that is a job's, in a tree of a user's own.
    record(&site, 41, 1000, "python3", &of("s521M7XBGAHZ00"));
    record(&site, 42, 1000, "train", &of("s521M7XBGAJ600"));
    record(&site, 43, 1000, "train", &of("s521M7XBGAJ900"));
    let forged = of("s521M7XBGAHZ00");
    record(
        &site,
        44,
        1001,
        "miner",
        &format!("/user.slice/user-1001.slice{forged}"),
    );
    for (pid, gpu) in [(41, 0), (42, 1), (43, 3), (44, 1)] {
        site.compute(pid, Some(gpu));
    }
    let proc = site.path("proc");
    let daemon = site.start_with(&["--proc", proc.to_str().unwrap()]);
    daemon.ready();
    let two = || (findings(&daemon).len() == 2).then(|| findings(&daemon));
    let found = site.until("two strangers", two);
    let said: Vec<&str> = found.iter().map(|one| &one.message[..]).collect();
    assert_eq!(
        said,
        [
            "process 42 (train, uid 1000) of job 8 is on GPU 1, which job 7 holds",
            "process 44 (miner, uid 1001) of no job is on GPU 1, which job 7 holds"
        ]
    );
    let status = daemon.status();
    let devices = &status.isolation.devices;
    assert!(
        devices.contains("process 43") && devices.contains("s521M7XBGAJ900"),
        "{devices}"
    );
    let on_0 = &status.gpus[0].processes[0];
    assert_eq!(
        (on_0.pid, on_0.job.clone(), on_0.foreign),
        (41, Some(7.into()), false)
    );
}

#[test]
fn strangers_are_named_and_those_at_home_are_not() {
    let site = Site::new();
    fs::write(site.path("gpuos.toml"), "[isolation]\ngrace = \"1s\"\n").unwrap();
    site.job(7, "0-1");
    record(&site, 41, 1000, "python3", &of_job(7, "0"));
    record(&site, 42, 1001, "miner", "/user.slice/user-1001.slice");
    record(&site, 43, 1000, "train", &of_job(9, "batch"));
    record(
        &site,
        44,
        112,
        "nvidia-persiste",
        "/system.slice/nvidia.service",
    );
    for (pid, gpu) in [(41, 0), (42, 0), (43, 3), (44, 0)] {
        site.compute(pid, Some(gpu));
    }
    let proc = site.path("proc");
    let daemon = site.start_with(&["--proc", proc.to_str().unwrap()]);
    daemon.ready();
    let two = || (findings(&daemon).len() == 2).then(|| findings(&daemon));
    let found = site.until("two strangers", two);
    let said: Vec<&str> = found.iter().map(|one| &one.message[..]).collect();
    assert_eq!(
        said,
        [
            "process 42 (miner, uid 1001) of no job is on GPU 0, which job 7 holds",
            "process 43 (train, uid 1000) of job 9 is on GPU 3, which no job holds"
        ]
    );
    let status = daemon.status();
    assert!(
        status
            .isolation
            .devices
            .starts_with("unknown: no control groups with devices")
    );
    let on_0: Vec<_> = status.gpus[0]
        .processes
        .iter()
        .map(|one| (one.pid, one.job.clone(), one.foreign))
        .collect();
    assert_eq!(
        on_0,
        [
            (41, Some(7.into()), false),
            (42, None, true),
            (44, None, false)
        ]
    );
    assert_eq!(status.gpus[0].processes[0].step.as_deref(), Some("0"));
    assert!(status.gpus[1].processes.is_empty());
    site.until("the audit log", || {
        (audited(&site, "process 43 (train") == 1).then_some(())
    });
    // The one that goes is let go; the other is not named again.
    site.compute(42, None);
    site.until("one stranger", || {
        (findings(&daemon).len() == 1).then_some(())
    });
    site.until("it is over", || {
        (audited(&site, "over: process 42") == 1).then_some(())
    });
    assert_eq!(audited(&site, "process 43 (train"), 1);
    // His job has got the GPU: he is at home.
    site.job(9, "3");
    site.until("none", || findings(&daemon).is_empty().then_some(()));
    assert_eq!(audited(&site, "killed"), 0);
}

/// What a user can make himself: groups named as Slurm's below his own, and a process in the groups of another's job.
#[test]
fn a_name_of_a_group_makes_nobody_at_home() {
    let site = Site::new();
    fs::write(site.path("gpuos.toml"), "[isolation]\ngrace = \"1s\"\n").unwrap();
    site.job(7, "0-1");
    let session = "/user.slice/user-1001.slice/user@1001.service/app.slice";
    let forged = format!("{session}{}", of_job(7, "0"));
    let short = format!("{session}/slurmstepd.scope/job_7/step_0");
    for (pid, uid, group) in [
        (41, 1000, &of_job(7, "0")),
        (42, 1001, &forged),
        (43, 1001, &short),
        (44, 1001, &of_job(7, "0")),
        // Root for the job's user.
        (45, 0, &of_job(7, "0")),
        // Of a container without root, by its map of users.
        (46, 100_033, &of_job(7, "0")),
    ] {
        record(&site, pid, uid, "python3", group);
        site.compute(pid, Some(0));
    }
    let map = "         0       1000          1\n         1     100000      65536\n";
    fs::write(site.path("proc/46/uid_map"), map).unwrap();
    let proc = site.path("proc");
    let daemon = site.start_with(&["--proc", proc.to_str().unwrap()]);
    daemon.ready();
    let three = || (findings(&daemon).len() == 3).then(|| findings(&daemon));
    let found = site.until("three strangers", three);
    let said: Vec<&str> = found.iter().map(|one| &one.message[..]).collect();
    assert_eq!(
        said,
        [
            "process 42 (python3, uid 1001) of no job is on GPU 0, which job 7 holds",
            "process 43 (python3, uid 1001) of no job is on GPU 0, which job 7 holds",
            "process 44 (python3, uid 1001) in the group of job 7, which is uid 1000's, is on GPU 0, which job 7 holds",
        ]
    );
}

#[test]
fn a_stranger_is_killed_where_that_is_wanted_and_nobody_else() {
    let site = Site::new();
    let sleep = |uid| {
        let child = Command::new("sleep").arg("600").uid(uid).spawn();
        child.map(Ends)
    };
    let (Ok(mut stranger), Ok(mut exempt), Ok(mut root)) = (sleep(65534), sleep(4000), sleep(0))
    else {
        eprintln!("skipped: only root can start processes of other users");
        return;
    };
    let policy = "[isolation]\nforeign = \"kill\"\ngrace = \"1s\"\nexempt-uids = [4000]\n";
    fs::write(site.path("gpuos.toml"), policy).unwrap();
    site.job(7, "2");
    for one in [&stranger, &exempt, &root] {
        site.compute(one.0.id(), Some(2));
    }
    let daemon = site.start();
    daemon.ready();
    site.until("he is killed", || stranger.0.try_wait().unwrap());
    let pid = stranger.0.id();
    site.compute(pid, None);
    let told = format!("process {pid} was killed");
    site.until("the audit log", || {
        (audited(&site, &told) == 1).then_some(())
    });
    // Root's is told of and left.
    let of_root = format!("process {} (sleep, uid 0)", root.0.id());
    site.until("root's is told", || {
        (audited(&site, &of_root) == 1).then_some(())
    });
    let left = || {
        let all = findings(&daemon);
        (all.len() == 1 && all[0].pid == Some(root.0.id())).then_some(())
    };
    site.until("one finding is left", left);
    assert!(root.0.try_wait().unwrap().is_none() && exempt.0.try_wait().unwrap().is_none());
    assert_eq!(audited(&site, "was killed"), 1);
    assert!(
        !site.slurm("log").contains("scancel"),
        "{}",
        site.slurm("log")
    );
}
