//! Jobs of PBS and GPUs that are not theirs: recorded processes in groups of gpuos's own, and real ones that are confined.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use gpuos_core::wire::{Reply, Request};

use crate::isolation::{Ends, findings, record};
use crate::pbs::{Mom, PBS, id, job, knows, world};
use crate::site::{Daemon, Site};

const OWN: &str = "/gpuos/n1/job_7.head";

/// A mount of control groups as the kernel lists it, without the kernel.
pub fn recorded_groups(site: &Site) {
    let folder = site.path("cgroup");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("cgroup.controllers"), "").unwrap();
    let own = site.path("proc/self");
    fs::create_dir_all(&own).unwrap();
    let real = fs::canonicalize(&folder).unwrap();
    let line = format!("31 30 0:28 / {} rw - cgroup2 cgroup2 rw\n", real.display());
    fs::write(own.join("mountinfo"), line).unwrap();
}

/// Control groups are where the site has its folder `cgroup`.
fn start<'a>(site: &'a Site, proc: &Path) -> Daemon<'a> {
    let proc = proc.to_str().unwrap();
    site.start_with(&[PBS[0], PBS[1], "--proc", proc])
}

#[test]
fn whose_a_process_is_its_group_says_and_who_may_be_at_home_is_not_accused() {
    let site = Site::new();
    fs::write(site.path("gpuos.toml"), "[isolation]\ngrace = \"1s\"\n").unwrap();
    recorded_groups(&site);
    let forged = format!("/user.slice/user-1002.slice{OWN}");
    for (pid, uid, group, on) in [
        (41, 1000, OWN, 0),
        (42, 1001, "/gpuos/n1/job_8[3].head/inner", 0),
        (43, 1002, "/user.slice", 0),
        // Perhaps of a job that started while nobody could confine it.
        (44, 1000, "/system.slice/pbs.service", 1),
        (45, 1002, &forged, 1),
        (46, 1001, OWN, 0),
        // Of a job that is over.
        (47, 1002, "/gpuos/n1/job_5.head", 2),
    ] {
        record(&site, pid, uid, "python3", group);
        site.compute(pid, Some(on));
    }
    let daemon = start(&site, &site.path("proc"));
    let mut other = job("8[3].head", &[1]);
    other.1.uid = 1001;
    let _mom = Mom::start(&site, world(&[job("7.head", &[0]), other]));
    daemon.ready();
    knows(&site, &daemon, 2);
    let all = || (findings(&daemon).len() == 5).then(|| findings(&daemon));
    let found = site.until("five strangers", all);
    let said: Vec<&str> = found.iter().map(|one| &one.message[..]).collect();
    assert_eq!(
        said,
        [
            "process 42 (python3, uid 1001) of job 8[3].head is on GPU 0, which job 7.head holds",
            "process 43 (python3, uid 1002) of no job is on GPU 0, which job 7.head holds",
            "process 46 (python3, uid 1001) in the group of job 7.head, which is uid 1000's, is on GPU 0, which job 7.head holds",
            "process 45 (python3, uid 1002) of no job is on GPU 1, which job 8[3].head holds",
            "process 47 (python3, uid 1002) of job 5.head is on GPU 2, which no job holds",
        ]
    );
}

/// A part of this machine's hierarchy of version 2; `None`, and why, where there is none.
struct Part(PathBuf);

impl Part {
    fn make(name: &str) -> Option<Part> {
        let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
        let at = mounts.lines().find_map(|line| {
            let mut words = line.split(' ').skip(1);
            let at = words.next()?;
            (words.next() == Some("cgroup2")).then(|| PathBuf::from(at))
        });
        let folder = at?.join(format!("gpuosd-test-{}-{name}", std::process::id()));
        match fs::create_dir(&folder) {
            Ok(()) => Some(Part(folder)),
            Err(why) => {
                eprintln!("skipped: control groups of gpuos's own: {why}");
                None
            }
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        for below in ["gpuos/n1/job_7.head", "gpuos/n1", "gpuos", ""] {
            for _ in 0..200 {
                match fs::remove_dir(self.0.join(below)) {
                    Err(why) if why.kind() == std::io::ErrorKind::ResourceBusy => {
                        sleep(Duration::from_millis(10));
                    }
                    _ => break,
                }
            }
        }
    }
}

fn started(child: &Child) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    fields
        .split_ascii_whitespace()
        .nth(19)
        .unwrap()
        .parse()
        .unwrap()
}

/// A shell that tells which GPUs' device files it may open, for each line that it is told.
fn shell(devices: &Path) -> Ends {
    let line = format!(
        "while read line; do for n in 0 1 2 3 4 5 6 7; do LC_ALL=C sh -c ': <{}/'$n 2>&1 | grep -q permitted || printf $n; done; echo; done",
        devices.display()
    );
    let child = Command::new("sh")
        .args(["-c", &line])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    Ends(child.unwrap())
}

fn opens(child: &mut Child) -> String {
    use std::io::{BufRead, BufReader, Write};
    writeln!(child.stdin.as_mut().unwrap(), "look").unwrap();
    let mut said = String::new();
    BufReader::new(child.stdout.as_mut().unwrap())
        .read_line(&mut said)
        .unwrap();
    said.trim().to_owned()
}

fn devices(folder: &Path) -> bool {
    fs::create_dir_all(folder).unwrap();
    (0..8).all(|minor| {
        let made = Command::new("mknod")
            .arg(folder.join(minor.to_string()))
            .args(["c", "195", &minor.to_string()])
            .status();
        made.is_ok_and(|made| made.success())
    })
}

#[test]
fn a_program_is_kept_to_the_gpus_of_its_job_while_gpuosd_comes_and_goes() {
    let Some(part) = Part::make("confined") else {
        return;
    };
    let site = Site::new();
    if !devices(&site.path("devices")) {
        eprintln!("skipped: this machine lets no device files be made");
        return;
    }
    std::os::unix::fs::symlink(&part.0, site.path("cgroup")).unwrap();
    let begin = || start(&site, Path::new("/proc"));
    let mut daemon = begin();
    let mom = Mom::start(&site, world(&[job("7.head", &[2])]));
    daemon.ready();
    // The administrator counts the other way round than NVIDIA.
    let mut uuids: Vec<String> = daemon
        .status()
        .gpus
        .iter()
        .map(|gpu| gpu.uuid.clone())
        .collect();
    uuids.reverse();
    mom.change(|world| world.uuids.clone_from(&uuids));
    let reversed = || {
        let now: Vec<String> = daemon
            .status()
            .gpus
            .into_iter()
            .map(|gpu| gpu.uuid)
            .collect();
        (now == uuids).then_some(())
    };
    site.until("the numbers of the administrator", reversed);
    let mut program = shell(&site.path("devices"));
    assert_eq!(opens(&mut program.0), "01234567");
    let process = (program.0.id(), started(&program.0));
    let ask = |daemon: &Daemon<'_>, (pid, started)| {
        let request = Request::Confine {
            job: id("7.head"),
            pid,
            started,
            slices: false,
        };
        daemon.ask(&request).map_err(|e| e.to_string())
    };
    // Another one that has the number by now, and the first of all.
    for other in [(process.0, process.1 + 1), (1, 0), (0, 0)] {
        let said = ask(&daemon, other);
        assert!(said.is_err(), "{said:?}");
    }
    assert_eq!(opens(&mut program.0), "01234567");
    // While it is being found anew which GPU has which number, it is waited for that.
    let confined = || match ask(&daemon, process) {
        Ok(Reply::Done { .. }) => Some(()),
        Err(why) if why.contains("does not know yet") => None,
        other => panic!("{other:?}"),
    };
    site.until("it is confined", confined);
    assert_eq!(opens(&mut program.0), "5");
    // What is said of it follows with the next look.
    site.until("gpuosd says so", || {
        let devices = daemon.status().isolation.devices;
        devices.contains("by control groups in").then_some(())
    });

    daemon.kill();
    assert_eq!(opens(&mut program.0), "5");
    daemon = begin();
    daemon.ready();
    let folder = part.0.join("gpuos/n1/job_7.head");
    sleep(Duration::from_millis(100));
    assert!(folder.is_dir() && opens(&mut program.0) == "5");
    drop(program);
    site.until("the group is gone", || (!folder.exists()).then_some(()));
    drop(daemon);
}

#[test]
fn beside_slurm_gpuosd_confines_nobody() {
    let site = Site::new();
    let daemon = site.start();
    daemon.ready();
    let request = Request::Confine {
        job: id("7"),
        pid: std::process::id(),
        started: 1,
        slices: false,
    };
    let said = daemon.ask(&request).unwrap_err().to_string();
    assert!(said.contains("confines no jobs"), "{said}");
}
