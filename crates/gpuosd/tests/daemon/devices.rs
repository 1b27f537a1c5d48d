//! What steps may open with control groups of version 2: real groups and programs of the kernel, laid out as Slurm does.
//! Where the machine has no version 2, or does not let programs be attached, it says so and tests nothing.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use gpuos_host::slurm::group_names::GroupNames;
use gpuos_host::steps::device_groups::{Cgroups, DeviceGroups, StepGroups};

use crate::bpf::{self, Below};
use crate::site::Site;

/// Groups of a node, removed at the end with what runs in them.
struct Tree {
    root: PathBuf,
    running: Vec<Child>,
}

impl Tree {
    /// `None`, and why, where this machine cannot.
    fn make(name: &str) -> Option<Tree> {
        let made = || {
            let mounts = fs::read_to_string("/proc/mounts")?;
            let at = mounts.lines().find_map(|line| {
                let mut words = line.split(' ').skip(1);
                let at = words.next()?;
                (words.next() == Some("cgroup2")).then(|| PathBuf::from(at))
            });
            let at = at.ok_or_else(|| io::Error::other("no hierarchy of version 2 is mounted"))?;
            let root = at.join(format!("gpuosd-test-{}-{name}", std::process::id()));
            let tree = Tree {
                root,
                running: Vec::new(),
            };
            fs::create_dir(&tree.root)?;
            bpf::deny(&tree.root, &[200], Below::Override).map_err(|e| {
                io::Error::new(e.kind(), format!("a program cannot be attached: {e}"))
            })?;
            Ok::<_, io::Error>(tree)
        };
        made()
            .map_err(|e| {
                eprintln!("skipped: what steps may open with control groups of version 2: {e}")
            })
            .ok()
    }

    /// A group of a job, made when it is missing.
    fn group(&self, path: &str) -> PathBuf {
        let folder = self.root.join("system.slice/slurmstepd.scope").join(path);
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    /// A process in a group.
    fn run(&mut self, group: &Path) -> u32 {
        let child = Command::new("sleep").arg("600").spawn().unwrap();
        let pid = child.id();
        self.running.push(child);
        fs::write(group.join("cgroup.procs"), pid.to_string()).unwrap();
        pid
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        for one in &mut self.running {
            let _ = one.kill();
            let _ = one.wait();
        }
        let mut groups = vec![self.root.clone()];
        let mut at = 0;
        while at < groups.len() {
            let below = fs::read_dir(&groups[at]).into_iter().flatten().flatten();
            let below = below.map(|entry| entry.path()).filter(|path| path.is_dir());
            groups.extend(below.collect::<Vec<_>>());
            at += 1;
        }
        for group in groups.iter().rev() {
            for _ in 0..100 {
                if fs::remove_dir(group).is_ok() {
                    break;
                }
                sleep(Duration::from_millis(10));
            }
        }
    }
}

fn constrained(folder: &Path) {
    fs::write(folder.join("cgroup.conf"), "ConstrainDevices=yes\n").unwrap();
}

fn processes(group: &Path) -> Vec<u32> {
    let text = fs::read_to_string(group.join("cgroup.procs")).unwrap();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

#[test]
fn whatever_holds_for_a_task_is_what_is_found() {
    holds(Below::Override, "job_7");
    holds(Below::Multi, "job_7");
}

/// As Slurm names groups by itself from 26.05.
#[test]
fn it_is_the_same_where_slurm_has_named_the_group_by_its_own_id() {
    holds(Below::Multi, SLUID);
}

/// Slurm's own id of the job.
const SLUID: &str = "s521M7XBGAHZ00";

fn holds(below: Below, job: &str) {
    let Some(mut tree) = Tree::make(&format!("asked-{below:?}-{job}")) else {
        return;
    };
    let names = Arc::new(GroupNames::default());
    let scratch = tempfile::tempdir().unwrap();
    constrained(scratch.path());
    let groups = Cgroups::at(&tree.root, scratch.path(), "n1")
        .with(env!("CARGO_BIN_EXE_gpuosd"), scratch.path())
        .with_group_names(&names);
    let group = |rest: &str| tree.group(&format!("{job}{rest}"));
    let (step, other) = (group("/step_0"), group("/step_1"));
    let first = group("/step_0/user/task_0");
    let second = group("/step_0/user/task_1");
    let third = group("/step_1/user/task_0");
    let job = group("");
    bpf::deny(&job, &[0, 1], below).unwrap();
    bpf::deny(&step, &[0, 1, 2], below).unwrap();
    bpf::deny(&first, &[0, 1, 2, 3], below).unwrap();
    bpf::deny(&second, &[0, 1, 2, 4], below).unwrap();
    assert_eq!(
        groups.steps(),
        Ok(StepGroups::default()),
        "nobody runs in them"
    );
    let pid = tree.run(&first);
    tree.run(&third);
    if job.ends_with(SLUID) {
        // Nobody has told yet whose it is.
        let found = groups.steps().unwrap();
        assert!(found.list.is_empty(), "{found:?}");
        assert!(found.unclear.is_some_and(|why| why.contains(SLUID)));
        names.learn(SLUID, &7.into());
    }
    let minors: Vec<u32> = (0..8).collect();
    let tried = |folder: &Path| {
        let steps = groups.steps().unwrap();
        let group = steps.list.into_iter().find(|step| step.folder == folder);
        groups.allowed(&group.unwrap(), &minors)
    };
    // On a machine with much else to do it may take longer than gpuosd waits, which asks again then.
    let allowed = |folder: &Path| {
        let interrupted =
            |e: &io::Error| e.kind() == ErrorKind::Interrupted && !e.to_string().contains("frozen");
        let mut answers = (0..60).map(|_| tried(folder));
        let answer = answers.find(|answer| !answer.as_ref().is_err_and(interrupted));
        answer.expect("it is never asked in time")
    };
    let began = Instant::now();
    assert_eq!(allowed(&step).unwrap(), BTreeSet::from([4, 5, 6, 7]));
    eprintln!("asked within {:?}", began.elapsed());
    assert_eq!(allowed(&other).unwrap(), BTreeSet::from([2, 3, 4, 5, 6, 7]));
    // A program that forgets what the job's says.
    bpf::deny(&third, &[5], below).unwrap();
    let rest = match below {
        Below::Override => BTreeSet::from([0, 1, 2, 3, 4, 6, 7]),
        Below::Multi => BTreeSet::from([2, 3, 4, 6, 7]),
    };
    assert_eq!(allowed(&other).unwrap(), rest);
    // A step may open what one of its tasks may.
    tree.run(&second);
    assert_eq!(allowed(&step).unwrap(), BTreeSet::from([3, 4, 5, 6, 7]));
    // Whoever asked is gone, and so are its files.
    assert_eq!(processes(&first), [pid]);
    assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 1);
    // A suspended job is left alone.
    let freeze = |on: &str| fs::write(job.join("cgroup.freeze"), on).unwrap();
    freeze("1");
    assert_eq!(tried(&step).unwrap_err().kind(), ErrorKind::Interrupted);
    assert_eq!(processes(&first), [pid]);
    freeze("0");
    assert!(allowed(&step).is_ok());
    // A step that ended.
    let steps = groups.steps().unwrap();
    assert!(steps.list.iter().all(|step| step.step.job == 7.into()));
    drop(tree);
    let ended = groups.allowed(&steps.list[0], &minors).unwrap_err();
    assert_eq!(ended.kind(), ErrorKind::NotFound, "{ended}");
}

/// Slurm kills a step while it is asked, again and again: its groups can be removed at once, and nobody is left.
#[test]
fn steps_that_are_killed_meanwhile_end_as_without_us() {
    let Some(mut tree) = Tree::make("killed") else {
        return;
    };
    let scratch = tempfile::tempdir().unwrap();
    constrained(scratch.path());
    let groups = Cgroups::at(&tree.root, scratch.path(), "n1")
        .with(env!("CARGO_BIN_EXE_gpuosd"), scratch.path());
    let minors: Vec<u32> = (0..8).collect();
    let mut unknown = 0;
    for round in 0..20 {
        let name = format!("job_{round}/step_0");
        let step = tree.group(&name);
        let task = tree.group(&format!("{name}/user/task_0"));
        tree.run(&task);
        let group = groups.steps().unwrap().list.remove(0);
        let answer = std::thread::scope(|scope| {
            let asked = scope.spawn(|| groups.allowed(&group, &minors));
            sleep(Duration::from_micros(300 * round));
            fs::write(step.join("cgroup.kill"), "1").unwrap();
            asked.join().unwrap()
        });
        match answer {
            Ok(allowed) => assert_eq!(allowed, minors.iter().copied().collect()),
            Err(e) => {
                let kinds = [ErrorKind::Interrupted, ErrorKind::NotFound];
                assert!(kinds.contains(&e.kind()), "{e}");
                unknown += 1;
            }
        }
        for child in &mut tree.running {
            child.wait().unwrap();
        }
        let deadline = Instant::now() + Duration::from_secs(60);
        for folder in [&task, &step.join("user"), &step] {
            while let Err(e) = fs::remove_dir(folder) {
                assert!(Instant::now() < deadline, "{}: {e}", folder.display());
                sleep(Duration::from_millis(1));
            }
        }
        fs::remove_dir(step.parent().unwrap()).unwrap();
    }
    eprintln!("{unknown} of 20 were killed before they could be asked");
}

#[test]
fn a_step_that_may_open_too_much_is_told_of() {
    let Some(mut tree) = Tree::make("told") else {
        return;
    };
    let site = Site::new();
    constrained(&site.path(""));
    std::os::unix::fs::symlink(&tree.root, site.path("cgroup")).unwrap();
    site.job(7, "0-1");
    let job = tree.group("job_7");
    let task = tree.group("job_7/step_batch/user/task_0");
    bpf::deny(&job, &[2, 3, 4, 5, 6], Below::Override).unwrap();
    tree.run(&task);
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuosd"));
    command.env("SLURM_CONF", site.path("slurm.conf"));
    let daemon = site.start_under(command, &[]);
    daemon.ready();
    let found = site.until("the step may open too much", || {
        daemon.status().isolation.findings.pop()
    });
    let wanted = "step 7.batch may open GPU 7, which its job does not hold";
    assert!(found.message.starts_with(wanted), "{}", found.message);
    assert_eq!(daemon.status().isolation.devices, "checked");
    bpf::deny(&job, &[2, 3, 4, 5, 6, 7], Below::Override).unwrap();
    site.until("it is over", || {
        daemon.status().isolation.findings.is_empty().then_some(())
    });
}
