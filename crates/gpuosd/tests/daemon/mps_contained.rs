//! MPS daemons and code of their users in them: they open the GPUs of the job and no others, and nothing of them outlives it.

use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use gpuos_core::step::StepId;

use crate::mps::{end, lives, start, until_audited};
use crate::program::program;
use crate::site::Site;

const BATCH: u32 = StepId::BATCH;

/// A daemon that runs what its user puts beside its pipe: as whoever has its user can have it do by ptrace(2).
const TRACED: &str = r#"#!/bin/sh
pipe=$CUDA_MPS_PIPE_DIRECTORY
[ "$1" = -f ] || exit 0
echo "$$" >"$pipe/pid"
: >"$pipe/control"
while sleep 0.05; do
    [ -e "$pipe/code" ] || continue
    mv "$pipe/code" "$pipe/runs"
    . "$pipe/runs"
done
"#;

/// A site whose gpuosd makes control groups in a part of this machine's, or where it is told that there are none.
pub struct GroupSite {
    site: Site,
    /// Folders of this machine's hierarchies; none: it lets nobody make one.
    parts: Vec<PathBuf>,
    proc: String,
}

impl Deref for GroupSite {
    type Target = Site;

    fn deref(&self) -> &Site {
        &self.site
    }
}

/// Mounts of control groups: where, and what for; version 2 last.
fn mounts() -> Vec<(String, PathBuf)> {
    let text = fs::read_to_string("/proc/mounts").unwrap_or_default();
    let wanted = ["devices", "freezer", "pids"];
    let mut found = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [_, at, kind, options, ..] = words[..] else {
            continue;
        };
        let named = options.split(',').find(|option| wanted.contains(option));
        match (kind, named) {
            ("cgroup", Some(name)) => found.push((name.to_owned(), at.into())),
            ("cgroup2", _) => found.push((String::new(), at.into())),
            _ => {}
        }
    }
    found.sort_by_key(|(name, _)| name.is_empty());
    found
}

impl GroupSite {
    /// With groups of version 1 where this machine has them and `version` is 1, else of version 2.
    pub fn new(version: u32) -> GroupSite {
        let site = Site::new();
        let cgroup = site.path("cgroup");
        let mut own = site.path("").file_name().unwrap().to_owned();
        own.push(format!("-gpuosd-test-{}", std::process::id()));
        let mounts = mounts();
        let has_1 = mounts.iter().any(|(name, _)| name == "devices");
        let mut parts = Vec::new();
        for (name, at) in mounts {
            let wanted = name.is_empty() != (has_1 && version == 1);
            let part = at.join(&own);
            if !wanted || fs::create_dir(&part).is_err() {
                continue;
            }
            let link = match name.is_empty() {
                true => cgroup.clone(),
                false => {
                    fs::create_dir_all(&cgroup).unwrap();
                    cgroup.join(name)
                }
            };
            std::os::unix::fs::symlink(&part, link).unwrap();
            parts.push(part);
        }
        let proc = match parts.is_empty() {
            false => "/proc".to_owned(),
            true => {
                eprintln!(
                    "no control groups can be made here: MPS daemons run as on a machine without any"
                );
                fs::create_dir_all(site.path("proc/self")).unwrap();
                fs::write(site.path("proc/self/mountinfo"), "").unwrap();
                site.path("proc").display().to_string()
            }
        };
        GroupSite { site, parts, proc }
    }

    /// Flags of gpuosd with these besides.
    pub fn flags<'a>(&'a self, more: &[&'a str]) -> Vec<&'a str> {
        ["--proc", &self.proc[..]]
            .into_iter()
            .chain(more.iter().copied())
            .collect()
    }
}

impl Drop for GroupSite {
    fn drop(&mut self) {
        for part in &self.parts {
            remove(part);
        }
    }
}

/// Removes groups, inside out, with what runs in them.
fn remove(group: &Path) {
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&entry.path());
        }
    }
    for _ in 0..200 {
        let left = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
        for pid in left.split_whitespace() {
            let _ = std::process::Command::new("kill")
                .args(["-9", pid])
                .status();
        }
        if fs::remove_dir(group).is_ok() || !group.exists() {
            return;
        }
        sleep(Duration::from_millis(10));
    }
}

/// A site with that daemon and device files of GPUs; `None` where this machine cannot have it.
fn traced(version: u32) -> Option<(GroupSite, String)> {
    let site = GroupSite::new(version);
    if site.parts.is_empty() {
        eprintln!("skipped: this machine lets no control groups be made");
        return None;
    }
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(site.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    let path = site.path("traced");
    program(&path, TRACED);
    for minor in [0, 1, 2, 3, 255] {
        let made = std::process::Command::new("mknod")
            .args(["-m", "666"])
            .arg(site.path(&format!("nvidia{minor}")))
            .args(["c", "195", &minor.to_string()])
            .status();
        if !made.is_ok_and(|made| made.success()) {
            eprintln!("skipped: this machine lets no device files be made");
            return None;
        }
    }
    Some((site, path.display().to_string()))
}

/// Has the daemon of a job run code, as its user.
fn inject(site: &Site, job: u32, code: &str) {
    let pipe = site.path(&format!("run/mps/{job}/pipe"));
    fs::write(pipe.join("new"), code).unwrap();
    fs::rename(pipe.join("new"), pipe.join("code")).unwrap();
}

/// The numbers of processes that wrote theirs into files of this kind.
fn pids(site: &Site, name: &str) -> Vec<u32> {
    let text = fs::read_to_string(site.path(name)).unwrap_or_default();
    text.split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect()
}

/// A file that the daemon's user can write.
fn open_file(site: &Site, name: &str) -> String {
    use std::os::unix::fs::PermissionsExt;
    fs::write(site.path(name), "").unwrap();
    fs::set_permissions(site.path(name), fs::Permissions::from_mode(0o666)).unwrap();
    site.path(name).display().to_string()
}

#[test]
fn code_of_its_user_in_it_opens_the_jobs_gpus_and_no_others() {
    for version in [1, 2] {
        let Some((site, control)) = traced(version) else {
            return;
        };
        let daemon = site.start_with(&site.flags(&["--mps-command", &control]));
        daemon.ready();
        site.job(7, "1-2");
        let (notes, told) = start(&site, &daemon, 7, BATCH, &[1, 2], 100);
        assert!(notes.is_empty() && !told.is_empty(), "{notes:?}");
        let (said, at) = (
            open_file(&site, "said"),
            site.path("").display().to_string(),
        );
        // Without a driver an open that is allowed says that there is no device.
        inject(
            &site,
            7,
            &format!(
                "for n in 0 1 2 3 255; do LC_ALL=C setsid sh -c \": <{at}/nvidia$n\" 2>&1 | grep -q permitted && printf 'no ' || printf 'yes '; done >{said}"
            ),
        );
        let seen = site.until("what the code in the daemon opens", || {
            let text = fs::read_to_string(site.path("said")).unwrap_or_default();
            (text.split_whitespace().count() == 5).then_some(text)
        });
        assert_eq!(seen.trim(), "no yes yes no yes", "version {version}");
        end(&daemon, 7, BATCH);
        until_audited(&site, "the MPS daemon of job 7 has ended");
    }
}

/// Whatever it has started has left its parents, its session and its signals behind, or is another process every few milliseconds.
#[test]
fn what_code_of_its_user_has_started_in_it_ends_with_the_job() {
    for version in [1, 2] {
        let Some((site, control)) = traced(version) else {
            return;
        };
        let daemon = site.start_with(&site.flags(&["--mps-command", &control]));
        daemon.ready();
        site.job(7, "1");
        start(&site, &daemon, 7, BATCH, &[1], 100);
        let (stays, hops) = (open_file(&site, "stays"), open_file(&site, "hops"));
        let hop = site.path("hop").display().to_string();
        program(
            Path::new(&hop),
            "#!/bin/sh\ntrap '' TERM HUP INT\necho $$ >>\"$1\"\nsleep 0.05\nsetsid \"$0\" \"$1\" &\n",
        );
        inject(
            &site,
            7,
            &format!(
                "(setsid sh -c \"trap '' TERM HUP INT; echo \\$\\$ >>{stays}; while :; do sleep 600; done\" &)\n(setsid {hop} {hops} &)\n"
            ),
        );
        site.until("both run", || {
            (!pids(&site, "stays").is_empty() && pids(&site, "hops").len() > 3).then_some(())
        });
        end(&daemon, 7, BATCH);
        until_audited(&site, "the MPS daemon of job 7 has ended");
        assert!(
            !pids(&site, "stays").into_iter().any(lives),
            "version {version}"
        );
        let last = pids(&site, "hops").len();
        sleep(Duration::from_millis(500));
        assert_eq!(
            pids(&site, "hops").len(),
            last,
            "version {version}: it goes on"
        );
        let folder = site.path("run/mps/7");
        assert!(!folder.exists());
    }
}

#[test]
fn one_whose_gpuosd_has_lost_its_state_is_ended_by_the_next_one() {
    let Some((site, control)) = traced(1) else {
        return;
    };
    let flags = site.flags(&["--mps-command", &control]);
    let daemon = site.start_with(&flags);
    daemon.ready();
    site.job(7, "1");
    start(&site, &daemon, 7, BATCH, &[1], 100);
    let pid = pids(&site, "run/mps/7/pipe/pid");
    assert!(pid.len() == 1 && lives(pid[0]));
    daemon.kill();
    fs::remove_dir_all(site.path("state")).unwrap();
    let daemon = site.start_with(&flags);
    daemon.ready();
    site.until("its end", || (!lives(pid[0])).then_some(()));
}

#[test]
fn without_a_group_that_keeps_it_to_the_jobs_gpus_there_is_none() {
    if mounts().is_empty() {
        eprintln!("skipped: this machine has no control groups");
        return;
    }
    // Another folder than that of control groups.
    let site = Site::new();
    let path = site.path("traced");
    program(&path, TRACED);
    let daemon = site.start_with(&["--mps-command", &path.display().to_string()]);
    daemon.ready();
    site.job(7, "1");
    let begun = Instant::now();
    let (notes, told) = start(&site, &daemon, 7, BATCH, &[1], 100);
    assert!(
        told.is_empty()
            && notes[0].contains("cannot be kept to those of the job")
            && notes[0].contains("--cgroup")
            && notes[0].ends_with("the job runs without it"),
        "{notes:?} after {} s",
        begun.elapsed().as_secs()
    );
    assert!(!site.path("run/mps/7").exists());
    end(&daemon, 7, BATCH);
}
