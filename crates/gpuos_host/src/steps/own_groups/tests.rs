//! Real groups of the kernel where this machine lets them be made, and texts elsewhere.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::*;

/// When a process was started.
fn since(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    started(&stat).unwrap()
}

/// A part of one of this machine's hierarchies, removed at the end with what runs there.
struct Part {
    folder: PathBuf,
    /// What stands for the folder where hierarchies are mounted, with the driver's list and device files of MIG instances.
    site: tempfile::TempDir,
    running: Vec<Child>,
}

/// The major number that the device files of MIG instances have here.
const CAPS_MAJOR: u32 = 120;
/// How far the driver's list goes.
const LISTED: u32 = 40;

impl Part {
    /// `None`, and why, where this machine cannot.
    fn make(name: &str, version: Version) -> Option<Part> {
        let made = || {
            let mounts = fs::read_to_string("/proc/mounts")?;
            let at = mounts.lines().find_map(|line| {
                let mut words = line.split(' ').skip(1);
                let (at, kind, options) = (words.next()?, words.next()?, words.next()?);
                let own = match version {
                    Version::One => {
                        kind == "cgroup" && options.split(',').any(|one| one == "devices")
                    }
                    Version::Two => kind == "cgroup2",
                };
                own.then(|| PathBuf::from(at))
            });
            let at = at.ok_or_else(|| io::Error::other(format!("no version {version:?}")))?;
            let folder = at.join(format!("gpuos-test-{}-{name}", std::process::id()));
            fs::create_dir(&folder)?;
            let part = Part {
                folder,
                site: tempfile::tempdir()?,
                running: Vec::new(),
            };
            part.instances()?;
            let tried = part.folder.join("tried");
            fs::create_dir(&tried)?;
            match version {
                Version::One => version_1::set(&tried, &[])?,
                // Below a group with such a program nobody may attach another.
                Version::Two => attach(load(&program(&[]))?, File::open(&tried)?)?,
            }
            fs::remove_dir(&tried)?;
            // Version 1 is where its controller has a folder, version 2 the folder itself.
            if version == Version::One {
                let cgroup = part.site.path().join("cgroup");
                fs::create_dir(&cgroup)?;
                std::os::unix::fs::symlink(&part.folder, cgroup.join("devices"))?;
            }
            Ok::<_, io::Error>(part)
        };
        made()
            .map_err(|e| {
                eprintln!("skipped: control groups of gpuos's own, version {version:?}: {e}")
            })
            .ok()
    }

    /// The driver's list, and device files of what it names.
    fn instances(&self) -> io::Result<()> {
        let folder = self.site.path().join("caps");
        fs::create_dir(&folder)?;
        let text: String = (0..LISTED)
            .map(|number| format!("gpu0/gi{number}/access {number}\n"))
            .collect();
        fs::write(self.site.path().join("minors"), text)?;
        for number in 0..LISTED {
            make_device(
                &folder.join(format!("nvidia-cap{number}")),
                CAPS_MAJOR,
                number,
            )?;
        }
        Ok(())
    }

    fn groups(&self) -> OwnGroups {
        let own = self.site.path();
        let cgroup = own.join("cgroup");
        let cgroup = if cgroup.exists() {
            &cgroup
        } else {
            &self.folder
        };
        let caps = (&*own.join("caps"), &*own.join("minors"));
        OwnGroups::at(cgroup, "n1", Path::new("/proc"), caps).unwrap()
    }

    /// A process that does what it is told by lines on its standard input.
    fn shell(&mut self) -> Started {
        let child = Command::new("sh")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = child.id();
        self.running.push(child);
        (pid, since(pid))
    }

    /// What the process says to a line.
    fn says(&mut self, (pid, _): Started, line: &str) -> String {
        use std::io::{BufRead, BufReader, Write};
        let child = self.running.iter_mut().find(|one| one.id() == pid).unwrap();
        writeln!(child.stdin.as_mut().unwrap(), "{line}").unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.as_mut().unwrap())
            .read_line(&mut said)
            .unwrap();
        said.trim().to_owned()
    }

    fn end(&mut self, (pid, _): Started) {
        let at = self.running.iter().position(|one| one.id() == pid).unwrap();
        let mut child = self.running.remove(at);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        for one in &mut self.running {
            let _ = one.kill();
            let _ = one.wait();
        }
        let began = Instant::now();
        while !remove(&self.folder, DEEP) && began.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn id(text: &str) -> JobId {
    text.parse().unwrap()
}

fn make_device(file: &Path, major: u32, minor: u32) -> io::Result<()> {
    let device = rustix::fs::makedev(major, minor);
    let (kind, mode) = (
        rustix::fs::FileType::CharacterDevice,
        rustix::fs::Mode::from_raw_mode(0o666),
    );
    Ok(rustix::fs::mknodat(
        rustix::fs::CWD,
        file,
        kind,
        mode,
        device,
    )?)
}

/// Device files of GPUs 0 to 3, and one that is everybody's.
fn devices(folder: &Path) -> bool {
    let mut all = [0, 1, 2, 3, 255].into_iter();
    all.all(|minor| make_device(&folder.join(minor.to_string()), MAJOR, minor).is_ok())
}

fn gpus<const N: usize>(gpus: [u32; N]) -> Own {
    Own {
        gpus: gpus.into(),
        ..Own::default()
    }
}

#[test]
fn a_job_opens_its_own_gpus_and_no_others_whoever_in_it_tries() {
    for version in [Version::One, Version::Two] {
        opens_its_own(version);
    }
}

fn opens_its_own(version: Version) {
    let Some(mut part) = Part::make("opens", version) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    if !devices(folder.path()) {
        eprintln!("skipped: this machine lets no device files be made");
        return;
    }
    let groups = part.groups();
    let (first, second, none) = (part.shell(), part.shell(), part.shell());
    groups.confine(&id("1.head"), first, &gpus([1])).unwrap();
    groups
        .confine(&id("2[7].head"), second, &gpus([0, 2]))
        .unwrap();
    groups.confine(&id("3.head"), none, &gpus([])).unwrap();
    // Without a driver an open that is allowed says that there is no device.
    let opens = |how: &str, end: &str| {
        let at = folder.path().display();
        format!(
            "{how}for n in 0 1 2 3 255; do LC_ALL=C sh -c \": <{at}/$n\" 2>&1 | grep -q permitted && printf 'no '|| printf 'yes '; done; echo{end}"
        )
    };
    let direct = opens("", "");
    assert_eq!(part.says(first, &direct), "no yes no no yes");
    assert_eq!(part.says(second, &direct), "yes no yes no yes");
    assert_eq!(part.says(none, &direct), "no no no no yes");
    // A child that has left its session, and one whose parent has ended.
    assert_eq!(
        part.says(first, &opens("(setsid sh -c 'true'; ", ")")),
        "no yes no no yes"
    );
    assert_eq!(
        part.says(first, &opens("( (", ") & wait)")),
        "no yes no no yes"
    );
    // Another program of a job, after another daemon has come: the same group.
    let later = part.shell();
    let again = part.groups();
    again.confine(&id("1.head"), later, &gpus([1])).unwrap();
    assert_eq!(part.says(later, &direct), "no yes no no yes");
    // The job runs again and has another GPU here.
    again.confine(&id("1.head"), later, &gpus([3])).unwrap();
    assert_eq!(part.says(later, &direct), "no no no yes yes");

    let text = fs::read_to_string(format!("/proc/{}/cgroup", second.0)).unwrap();
    assert_eq!(again.path().job_in(&text), Some(id("2[7].head")));
    assert_eq!(again.sweep(), 3, "processes are in all of them");
    part.end(second);
    let began = Instant::now();
    while again.sweep() != 2 {
        assert!(began.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(!again.folder().join("job_2[7].head").exists());
}

#[test]
fn a_number_that_is_anothers_by_now_is_let_alone() {
    let Some(mut part) = Part::make("number", Version::Two) else {
        return;
    };
    let groups = part.groups();
    let (pid, started) = part.shell();
    let was = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    for process in [
        (pid, started + 1),
        (0, 0),
        (1, 0),
        (u32::MAX, started),
        (u32::MAX / 2, 0),
    ] {
        let said = groups.confine(&id("1.head"), process, &gpus([]));
        assert!(said.is_err(), "{process:?}");
    }
    let first = groups.confine(&id("1.head"), (1, since(1)), &gpus([]));
    assert!(first.is_err());
    let is = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    assert_eq!(is, was);
    assert!(!groups.folder().exists(), "nothing was made for nobody");
}

#[test]
fn what_is_no_group_of_ours_is_left_alone() {
    for version in [Version::One, Version::Two] {
        leaves_others_alone(version);
    }
}

fn leaves_others_alone(version: Version) {
    let Some(part) = Part::make("others", version) else {
        return;
    };
    let groups = part.groups();
    let other = groups.folder().join("system");
    let inner = groups.folder().join("job_4.head/container/deep");
    for folder in [&other, &inner, &groups.folder().join("job_.x")] {
        fs::create_dir_all(folder).unwrap();
    }
    assert_eq!(groups.sweep(), 0);
    assert!(other.is_dir() && groups.folder().join("job_.x").is_dir());
    assert!(!groups.folder().join("job_4.head").exists());
}

#[test]
fn without_groups_it_is_said_why() {
    let folder = tempfile::tempdir().unwrap();
    let none = Path::new("/none");
    let at = |node: &str| {
        OwnGroups::at(folder.path(), node, Path::new("/proc"), (none, none)).unwrap_err()
    };
    assert!(at("n1").contains("no control groups of version 2"));
    assert!(at("../n1").contains("name of this node"));
    fs::write(folder.path().join("cgroup.controllers"), "").unwrap();
    assert!(at("n1").contains("is in no mount"), "{}", at("n1"));
}

#[test]
fn the_kernel_says_which_number_capabilities_have() {
    let devices = "Character devices:\n  1 mem\n195 nvidia\n236 nvidia-caps\n237 nvidia-caps-imex-channels\n\nBlock devices:\n240 nvidia-caps\n";
    assert_eq!(major_of(devices, CAPS), Some(236));
    assert_eq!(major_of("Block devices:\n240 nvidia-caps\n", CAPS), None);
    assert_eq!(major_of("", CAPS), None);
}

/// Two jobs with instances of one GPU, and one with a whole GPU.
#[test]
fn a_job_opens_its_own_instances_and_no_others() {
    for version in [Version::One, Version::Two] {
        let Some(mut part) = Part::make("instances", version) else {
            continue;
        };
        let groups = part.groups();
        let (first, second, whole) = (part.shell(), part.shell(), part.shell());
        let own = |gpu: u32, instances: &[u32]| Own {
            gpus: [gpu].into(),
            instances: instances.iter().copied().collect(),
        };
        groups
            .confine(&id("1.head"), first, &own(3, &[7, 8]))
            .unwrap();
        groups
            .confine(&id("2.head"), second, &own(3, &[20, 21]))
            .unwrap();
        groups.confine(&id("3.head"), whole, &own(1, &[])).unwrap();
        let line = format!(
            "for n in $(seq 0 {}); do LC_ALL=C sh -c \": <{}/caps/nvidia-cap$n\" 2>&1 | grep -q permitted || printf \"$n \"; done; echo",
            LISTED - 1,
            part.site.path().display()
        );
        assert_eq!(part.says(first, &line), "7 8", "{version:?}");
        assert_eq!(part.says(second, &line), "20 21", "{version:?}");
        assert_eq!(part.says(whole, &line), "", "{version:?}");
        // The first one runs again and has others, and the whole GPU's has some as well.
        groups
            .confine(&id("1.head"), first, &own(3, &[30, 31]))
            .unwrap();
        groups.confine(&id("3.head"), whole, &own(1, &[9])).unwrap();
        assert_eq!(part.says(first, &line), "30 31", "{version:?}");
        assert_eq!(part.says(whole, &line), "9", "{version:?}");
        groups.confine(&id("1.head"), first, &gpus([0])).unwrap();
        assert_eq!(part.says(first, &line), "", "{version:?}");
    }
}

/// What is not known is not guessed: neither everybody's instances nor none.
#[test]
fn without_numbers_nobody_with_instances_is_confined() {
    for version in [Version::One, Version::Two] {
        let Some(mut part) = Part::make("numbers", version) else {
            continue;
        };
        let process = part.shell();
        let own = Own {
            gpus: [0].into(),
            instances: [7].into(),
        };
        if version == Version::One {
            fs::write(part.site.path().join("minors"), "none\n").unwrap();
            let why = part.groups().confine(&id("1.head"), process, &own);
            assert!(
                why.as_ref().is_err_and(|why| why.contains("is no list")),
                "{why:?}"
            );
        }
        fs::remove_dir_all(part.site.path().join("caps")).unwrap();
        let groups = part.groups();
        let why = groups.confine(&id("1.head"), process, &own).unwrap_err();
        assert!(why.contains("major number"), "{why}");
        assert_eq!(groups.confine(&id("2.head"), process, &gpus([0])), Ok(()));
    }
}

#[test]
fn who_is_in_a_group_of_pbs_cgroups_stays_there_and_is_not_kept() {
    let Some(mut part) = Part::make("beside", Version::One) else {
        return;
    };
    let groups = part.groups();
    let process = part.shell();
    let theirs = part.folder.join("pbs_jobs.service/jobid/1.head");
    fs::create_dir_all(&theirs).unwrap();
    fs::write(theirs.join("cgroup.procs"), process.0.to_string()).unwrap();
    let why = groups
        .confine(&id("1.head"), process, &gpus([0]))
        .unwrap_err();
    assert!(
        why.contains("/pbs_jobs.service/jobid/1.head: exclude this host"),
        "{why}"
    );
    let now = fs::read_to_string(theirs.join("cgroup.procs")).unwrap();
    assert_eq!(now.trim(), process.0.to_string());
    assert!(!groups.folder().exists(), "nothing was made");
}

/// A daemon that runs as a user: it opens what it serves, and all that it has started ends at once, whatever it does against that.
#[test]
fn a_daemon_of_a_user_opens_what_it_serves_and_is_ended_whole() {
    for version in [Version::One, Version::Two] {
        let Some(mut part) = Part::make("service", version) else {
            continue;
        };
        let folder = tempfile::tempdir().unwrap();
        if !devices(folder.path()) {
            eprintln!("skipped: this machine lets no device files be made");
            return;
        }
        let groups = part.groups();
        let files = groups.make_service("gpu1-1000", &gpus([1])).unwrap();
        assert_eq!(groups.service_files("gpu1-1000").unwrap(), files);
        assert!(groups.service_files("8").unwrap().is_empty());
        let shell = part.shell();
        for file in &files {
            assert_eq!(
                part.says(shell, &format!("echo 0 >{}; echo $?", file.display())),
                "0"
            );
        }
        let at = folder.path().display();
        let opens = format!(
            "for n in 0 1 2 255; do LC_ALL=C setsid sh -c \": <{at}/$n\" 2>&1 | grep -q permitted && printf 'no ' || printf 'yes '; done; echo"
        );
        assert_eq!(part.says(shell, &opens), "no yes no yes");
        let hops = format!(
            "(trap '' TERM HUP INT; setsid sh -c 'while :; do sleep 600; done' & ) >/dev/null; hop() {{ echo >>{at}/hops; sleep 0.02; (hop &) ; }}; (hop &) ; echo"
        );
        part.says(shell, &hops);
        let mut names: BTreeSet<String> = ["gpu1-1000".to_owned()].into();
        assert_eq!(groups.services(), names);
        assert_eq!(groups.sweep(), 0, "they are no jobs");
        groups
            .end_service("gpu1-1000", Duration::from_secs(20))
            .unwrap();
        names.clear();
        assert_eq!(groups.services(), names, "version {version:?}");
        let long = || fs::metadata(folder.path().join("hops")).map_or(0, |of| of.len());
        let last = long();
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(long(), last, "version {version:?}: it goes on");
        // What is not there is ended.
        assert_eq!(groups.end_service("gpu1-1000", Duration::ZERO), Ok(()));
        for name in ["", "../x", ".x"] {
            assert!(groups.make_service(name, &gpus([])).is_err());
            assert!(groups.end_service(name, Duration::ZERO).is_err());
        }
    }
}

#[test]
fn whether_there_are_control_groups_at_all_the_kernel_says() {
    let proc = tempfile::tempdir().unwrap();
    let mounts = proc.path().join("self/mountinfo");
    assert!(service::any_mounted(proc.path()).is_err());
    fs::create_dir(proc.path().join("self")).unwrap();
    for (text, any) in [
        ("20 1 0:5 / / rw - ext4 /dev/a rw\n", false),
        ("20 1 0:5 / /sys/fs/cgroup rw - tmpfs cgroup rw\n", false),
        ("31 30 0:28 / /x rw shared:3 - cgroup2 cgroup2 rw\n", true),
        ("33 30 0:29 / /x rw - cgroup cgroup rw,pids\n", true),
    ] {
        fs::write(&mounts, text).unwrap();
        assert_eq!(service::any_mounted(proc.path()).unwrap(), any, "{text}");
    }
}
