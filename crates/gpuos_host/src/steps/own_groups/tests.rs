//! Real groups of the kernel where this machine lets them be made, and texts elsewhere.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::*;

/// When a process was started.
fn since(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    started(&stat).unwrap()
}

/// A part of this machine's hierarchy of version 2, removed at the end with what runs there.
struct Part {
    folder: PathBuf,
    running: Vec<Child>,
}

impl Part {
    /// `None`, and why, where this machine cannot.
    fn make(name: &str) -> Option<Part> {
        let made = || {
            let mounts = fs::read_to_string("/proc/mounts")?;
            let at = mounts.lines().find_map(|line| {
                let mut words = line.split(' ').skip(1);
                let at = words.next()?;
                (words.next() == Some("cgroup2")).then(|| PathBuf::from(at))
            });
            let at = at.ok_or_else(|| io::Error::other("no version 2 is mounted"))?;
            let folder = at.join(format!("gpuos-test-{}-{name}", std::process::id()));
            fs::create_dir(&folder)?;
            let part = Part {
                folder,
                running: Vec::new(),
            };
            // Below a group with such a program nobody may attach another.
            let tried = part.folder.join("tried");
            fs::create_dir(&tried)?;
            attach(load(&program(&[]))?, File::open(&tried)?)?;
            fs::remove_dir(&tried)?;
            Ok::<_, io::Error>(part)
        };
        made()
            .map_err(|e| eprintln!("skipped: control groups of gpuos's own: {e}"))
            .ok()
    }

    fn groups(&self) -> OwnGroups {
        OwnGroups::at(&self.folder, "n1", Path::new("/proc")).unwrap()
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

/// Device files of GPUs 0 to 3, and one that is everybody's.
fn devices(folder: &Path) -> bool {
    [0, 1, 2, 3, 255].into_iter().all(|minor| {
        let device = rustix::fs::makedev(MAJOR, minor);
        let (kind, mode) = (
            rustix::fs::FileType::CharacterDevice,
            rustix::fs::Mode::from_raw_mode(0o666),
        );
        let name = folder.join(minor.to_string());
        rustix::fs::mknodat(rustix::fs::CWD, name, kind, mode, device).is_ok()
    })
}

#[test]
fn a_job_opens_its_own_gpus_and_no_others_whoever_in_it_tries() {
    let Some(mut part) = Part::make("opens") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    if !devices(folder.path()) {
        eprintln!("skipped: this machine lets no device files be made");
        return;
    }
    let groups = part.groups();
    let (first, second, none) = (part.shell(), part.shell(), part.shell());
    groups.confine(&id("1.head"), first, &[1].into()).unwrap();
    groups
        .confine(&id("2[7].head"), second, &[0, 2].into())
        .unwrap();
    groups.confine(&id("3.head"), none, &[].into()).unwrap();
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
    again.confine(&id("1.head"), later, &[1].into()).unwrap();
    assert_eq!(part.says(later, &direct), "no yes no no yes");
    // The job runs again and has another GPU here.
    again.confine(&id("1.head"), later, &[3].into()).unwrap();
    assert_eq!(part.says(later, &direct), "no no no yes yes");

    let text = fs::read_to_string(format!("/proc/{}/cgroup", second.0)).unwrap();
    assert_eq!(job_in(&text, again.path()), Some(id("2[7].head")));
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
    let Some(mut part) = Part::make("number") else {
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
        let said = groups.confine(&id("1.head"), process, &[].into());
        assert!(said.is_err(), "{process:?}");
    }
    let first = groups.confine(&id("1.head"), (1, since(1)), &[].into());
    assert!(first.is_err());
    let is = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    assert_eq!(is, was);
    assert!(!groups.folder().exists(), "nothing was made for nobody");
}

#[test]
fn what_is_no_group_of_ours_is_left_alone() {
    let Some(part) = Part::make("others") else {
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
fn without_groups_of_version_2_it_is_said_why() {
    let folder = tempfile::tempdir().unwrap();
    let at = |node: &str| OwnGroups::at(folder.path(), node, Path::new("/proc")).unwrap_err();
    assert!(at("n1").contains("no control groups of version 2"));
    assert!(at("../n1").contains("name of this node"));
    fs::write(folder.path().join("cgroup.controllers"), "").unwrap();
    assert!(at("n1").contains("is in no mount"), "{}", at("n1"));
}

#[test]
fn only_a_whole_path_from_the_root_names_a_job() {
    let path = "/part/gpuos/n1";
    for (text, job) in [
        ("0::/part/gpuos/n1/job_7.head\n", Some("7.head")),
        (
            "3:devices:/x\n0::/part/gpuos/n1/job_7[1].head/inner/job_8\n",
            Some("7[1].head"),
        ),
        ("0::/part/gpuos/n1/job_7 (deleted)\n", Some("7")),
        ("0::/part/gpuos/n1\n", None),
        ("0::/part/gpuos/n12/job_7\n", None),
        ("0::/part/gpuos/n1/job_../x\n", None),
        ("0::/part/gpuos/n1/job_\n", None),
        ("0::/user.slice/part/gpuos/n1/job_7\n", None),
        ("1:name=x:/part/gpuos/n1/job_7\n0::/\n", None),
        // A name of version 1 with a newline in it.
        ("4:pids:/a\n0::/part/gpuos/n1/job_7\n0::/user.slice\n", None),
        ("", None),
    ] {
        assert_eq!(job_in(text, path), job.map(id), "{text}");
    }
}

#[test]
fn the_kernels_name_of_a_folder_is_found_by_its_mount() {
    let mounts = "20 1 0:5 / / rw - ext4 /dev/a rw\n\
                  30 20 0:27 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
                  31 30 0:28 /lab /sys/fs/cgroup/unified rw shared:3 - cgroup2 cgroup2 rw\n\
                  32 30 0:28 / /sys/fs/cgroup/all rw - cgroup2 none rw\n";
    let of = |folder: &str| path_of(mounts, Path::new(folder));
    assert_eq!(of("/sys/fs/cgroup/unified"), Some("/lab".into()));
    assert_eq!(of("/sys/fs/cgroup/unified/a/b"), Some("/lab/a/b".into()));
    assert_eq!(of("/sys/fs/cgroup/all"), Some(String::new()));
    assert_eq!(of("/sys/fs/cgroup/all/a"), Some("/a".into()));
    assert_eq!(of("/sys/fs/cgroup"), None);
    assert_eq!(of("/home"), None);
}

#[test]
fn the_kernel_says_which_number_capabilities_have() {
    let devices = "Character devices:\n  1 mem\n195 nvidia\n236 nvidia-caps\n237 nvidia-caps-imex-channels\n\nBlock devices:\n240 nvidia-caps\n";
    assert_eq!(major_of(devices, CAPS), Some(236));
    assert_eq!(major_of("Block devices:\n240 nvidia-caps\n", CAPS), None);
    assert_eq!(major_of("", CAPS), None);
}
