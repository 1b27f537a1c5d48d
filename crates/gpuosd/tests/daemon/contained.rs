//! Programs in containers: bubblewrap gives each PID, user, mount and network namespaces of its own, and gpuosd is outside of all of them.

use std::cell::RefCell;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use gpuos_core::wire::MemoryProgramStatus;
use rustix::process::{Pid, Signal, kill_process};

use crate::common::library;
use crate::isolation::of_job;
use crate::memory_program::{own, sharer, socket, start_with, status, step};
use crate::site::{Daemon, Site};
use crate::turns::PARTS;

const GIB: u64 = 1 << 30;
/// Runs it as a process of a group, where that could be made, and has bubblewrap say the number that the kernel knows the program by outside.
const ENTER: &str = r#"[ -z "$GROUP" ] || echo $$ >"$GROUP/cgroup.procs" || exit 1
exec bwrap "$@" 3>"$NUMBERS""#;

/// A root with the system's libraries and the files of a test, in namespaces of its own. The user is another one inside.
fn bwrap() -> Vec<String> {
    let inside = if own() == 0 { "1000" } else { "0" };
    let programs = std::env::current_exe().unwrap();
    let programs = programs.parent().unwrap().to_str().unwrap().to_owned();
    let mut all: Vec<String> = ["--unshare-all", "--die-with-parent", "--uid", inside]
        .map(String::from)
        .to_vec();
    for system in ["/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache"] {
        all.extend(["--ro-bind-try", system, system].map(String::from));
    }
    all.extend(["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"].map(String::from));
    all.extend(["--ro-bind", &programs, &programs].map(String::from));
    all
}

/// Whether bubblewrap can make containers here; else says why not.
fn contains() -> bool {
    let tried = Command::new("bwrap").args(bwrap()).arg("true").output();
    let why = match tried {
        Ok(out) if out.status.success() => return true,
        Ok(out) => String::from_utf8_lossy(&out.stderr).into_owned(),
        Err(error) => error.to_string(),
    };
    eprintln!(
        "skipped: bwrap makes no container here (scripts/needs.sh clients installs it): {}",
        why.trim()
    );
    false
}

/// Real control groups of jobs, where root can make some: gpuosd then reads the kernel's own word of who is in them.
struct Groups {
    /// What stands before Slurm's in `/proc/PID/cgroup`, and where that is mounted.
    at: Option<(String, PathBuf)>,
    made: RefCell<Vec<PathBuf>>,
}

impl Groups {
    fn make(site: &Site) -> Groups {
        let mounts = fs::read_to_string("/proc/mounts").unwrap();
        let mounted = mounts.lines().find_map(|line| {
            let mut words = line.split(' ').skip(1);
            let at = words.next()?;
            (words.next() == Some("cgroup2")).then(|| PathBuf::from(at))
        });
        let unique = site
            .path("")
            .file_name()
            .unwrap()
            .to_string_lossy()
            .into_owned();
        let name = format!("gpuosd-test{unique}");
        let made = mounted.map(|mounted| mounted.join(&name));
        let made = made.filter(|at| fs::create_dir(at).is_ok());
        if made.is_none() {
            eprintln!("no control groups can be made here: those of the programs are recorded");
        }
        Groups {
            made: RefCell::new(made.iter().cloned().collect()),
            at: made.map(|at| (format!("/{name}"), at)),
        }
    }

    /// The group of a job's step.
    fn group(&self, job: u32) -> Option<PathBuf> {
        let (_, root) = self.at.as_ref()?;
        let mut folder = root.clone();
        for part in of_job(job, "0").split('/').skip(1) {
            folder.push(part);
            if fs::create_dir(&folder).is_ok() {
                self.made.borrow_mut().push(folder.clone());
            }
        }
        Some(folder)
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        for folder in self.made.borrow().iter().rev() {
            // What was killed may not have left yet.
            for _ in 0..100 {
                if fs::remove_dir(folder).is_ok() {
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
        }
    }
}

/// A program under the library in a container. Its folder and the simulated GPUs are bound in, and where gpuosd's socket is, if it is to be.
struct Contained {
    folder: PathBuf,
    child: Child,
    /// As gpuosd sees it.
    pid: u32,
}

impl Contained {
    fn start(
        site: &Site,
        daemon: &Daemon,
        groups: &Groups,
        job: u32,
        with_socket: bool,
    ) -> Contained {
        let folder = site.path(&format!("program-{job}"));
        fs::create_dir_all(&folder).unwrap();
        for name in ["libcuda.so", "libcuda.so.1"] {
            symlink(library(), folder.join(name)).unwrap();
        }
        let test = std::env::current_exe().unwrap();
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let (own_folder, gpus) = (text(&folder), text(&site.path("gpus")));
        let socket = socket(daemon);
        let mut words = bwrap();
        let mut more = |these: &[&str]| words.extend(these.iter().map(ToString::to_string));
        more(&["--bind", &own_folder, &own_folder, "--bind", &gpus, &gpus]);
        if with_socket {
            // The folder: gpuosd makes the socket anew when it starts again.
            let run = text(Path::new(&socket).parent().unwrap());
            more(&["--ro-bind", &run, &run]);
        }
        let preload = text(&test.with_file_name("libgpuos_preload.so"));
        for [name, value] in [
            ["LD_PRELOAD", &preload[..]],
            ["LD_LIBRARY_PATH", &own_folder],
        ] {
            more(&["--setenv", name, value]);
        }
        more(&["--as-pid-1", "--info-fd", "3", &text(&test), "--exact"]);
        more(&["turns::works_for_a_test", "--nocapture"]);
        let group = groups.group(job);
        let numbers = folder.join("numbers");
        let child = Command::new("sh")
            .args(["-c", ENTER, "sh"])
            .args(words)
            .env("GROUP", group.as_deref().unwrap_or(Path::new("")))
            .env("NUMBERS", &numbers)
            .env("GPUOS_DAEMON_TURNS", &folder)
            .env("GPUOS_CUDA", "memory=32M,link=400M")
            .env("GPUOS_NVML_STATE", &gpus)
            .env("CUDA_VISIBLE_DEVICES", "2")
            .env("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent")
            .env("GPUOS_MEM_GRANT", (60 * GIB).to_string())
            .env("GPUOS_MEM_SOCKET", &socket)
            .stdout(Stdio::null())
            .stderr(File::create(folder.join("errors")).unwrap())
            .spawn()
            .unwrap();
        let pid: u32 = site.until("the container's first process", || {
            let said = fs::read_to_string(&numbers).ok()?;
            let number = said.split_once("\"child-pid\": ")?.1;
            let (number, _) = number.split_once(|next: char| !next.is_ascii_digit())?;
            number.parse().ok()
        });
        // The kernel's own word, but for the group where none could be made.
        let proc = site.path("proc").join(pid.to_string());
        fs::create_dir(&proc).unwrap();
        for name in ["stat", "status", "uid_map"] {
            symlink(format!("/proc/{pid}/{name}"), proc.join(name)).unwrap();
        }
        match group {
            Some(_) => symlink(format!("/proc/{pid}/cgroup"), proc.join("cgroup")).unwrap(),
            None => fs::write(proc.join("cgroup"), format!("0::{}\n", of_job(job, "0"))).unwrap(),
        }
        fs::write(folder.join("begin"), "").unwrap();
        Contained { folder, child, pid }
    }

    fn status(&self, daemon: &Daemon) -> Option<MemoryProgramStatus> {
        let mut programs = status(daemon).programs.into_iter();
        programs.find(|one| one.pid == self.pid)
    }

    fn rounds(&self) -> u64 {
        fs::metadata(self.folder.join("progress")).map_or(0, |file| file.len())
    }

    fn errors(&self) -> String {
        fs::read_to_string(self.folder.join("errors")).unwrap()
    }

    fn lives(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// The program, by its number outside; its container ends with it.
    fn kill(&mut self) {
        let pid = Pid::from_raw(self.pid.try_into().unwrap()).unwrap();
        kill_process(pid, Signal::KILL).unwrap();
        self.child.wait().unwrap();
    }

    /// It ends by itself, and all that it computed was right.
    fn end(mut self) {
        fs::write(self.folder.join("end"), "").unwrap();
        let ended = self.child.wait().unwrap();
        assert!(ended.success(), "{}", self.errors());
    }
}

impl Drop for Contained {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A node whose jobs 7 and 8 have GPU 2 in turns.
fn site() -> (Site, Groups) {
    let site = Site::new();
    for id in [7, 8] {
        sharer(&site, id, "2", "70G");
    }
    let groups = Groups::make(&site);
    (site, groups)
}

fn start_again<'a>(site: &'a Site, groups: &Groups) -> Daemon<'a> {
    let below = groups.at.as_ref().map(|(below, _)| &below[..]);
    let flags = below.map(|below| ["--slurm-groups", below]);
    start_with(site, flags.as_ref().map_or(&[], |flags| &flags[..]))
}

fn start<'a>(site: &'a Site, groups: &Groups) -> Daemon<'a> {
    let daemon = start_again(site, groups);
    for id in [7, 8] {
        step(&daemon, id, &[2], 60 * GIB, true);
    }
    daemon
}

/// Both have the number 1 inside, and another user than outside.
#[test]
fn two_programs_in_containers_are_known_as_their_jobs_and_take_turns() {
    if !contains() {
        return;
    }
    let (site, groups) = site();
    let daemon = start(&site, &groups);
    let mut a = Contained::start(&site, &daemon, &groups, 7, true);
    let mut b = Contained::start(&site, &daemon, &groups, 8, true);
    site.until("turns of both", || {
        for one in [&mut a, &mut b] {
            assert!(one.lives(), "{}\n{}", one.errors(), site.log());
        }
        let both = [a.status(&daemon)?, b.status(&daemon)?];
        let worked = a.rounds() > 0 && b.rounds() > 0;
        (worked && both.iter().all(|one| one.parks >= 1)).then_some(())
    });
    for (one, job) in [(&a, 7), (&b, 8)] {
        let seen = one.status(&daemon).unwrap();
        assert_eq!((seen.job.number(), seen.uid), (Some(job), own()));
        assert!(!seen.pinned && seen.connected, "{seen:?}");
        let at_least = PARTS * crate::turns::PART;
        assert!(seen.moved_down >= at_least, "{seen:?}");
    }
    a.kill();
    let before = b.rounds();
    site.until("the other goes on", || {
        (b.rounds() > before + 2).then_some(())
    });
    site.until("the killed one is forgotten", || {
        (status(&daemon).programs.len() == 1).then_some(())
    });
    b.end();
}

/// The socket is another one then, in the folder that is bound in.
#[test]
fn gpuosd_starts_again_and_a_program_in_a_container_comes_back_to_it() {
    if !contains() {
        return;
    }
    let (site, groups) = site();
    let first = start(&site, &groups);
    let mut one = Contained::start(&site, &first, &groups, 7, true);
    site.until("it works", || (one.rounds() > 0).then_some(()));
    drop(first);
    let second = start_again(&site, &groups);
    site.until("it is back", || {
        assert!(one.lives(), "{}\n{}", one.errors(), site.log());
        one.status(&second)?.connected.then_some(())
    });
    let before = one.rounds();
    site.until("it goes on", || (one.rounds() > before).then_some(()));
    one.end();
}

/// Where gpuosd's socket is not bound in nobody gives turns: the program is told, and has what its environment says.
#[test]
fn in_a_container_without_the_socket_a_program_is_told_and_goes_on() {
    if !contains() {
        return;
    }
    let (site, groups) = site();
    let daemon = start(&site, &groups);
    let mut alone = Contained::start(&site, &daemon, &groups, 7, false);
    site.until("it works", || {
        assert!(alone.lives(), "{}", alone.errors());
        (alone.rounds() > 0).then_some(())
    });
    assert!(status(&daemon).programs.is_empty());
    let told = alone.errors();
    let is_told =
        told.contains("gpuosd cannot be asked for memory") && told.contains("No such file");
    assert!(is_told, "{told}");
    alone.end();
}

/// The loader's word, and the program runs as it would without gpuos.
#[test]
fn in_a_container_without_the_library_the_loader_says_so() {
    if !contains() {
        return;
    }
    let mut words = bwrap();
    let library = "/usr/lib/gpuos/of-no-container/libgpuos_preload.so.0";
    words.extend(["--setenv", "LD_PRELOAD", library, "true"].map(String::from));
    let out = Command::new("bwrap").args(words).output().unwrap();
    let told = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{told}");
    assert!(told.contains(library) && told.contains("ignored"), "{told}");
}
