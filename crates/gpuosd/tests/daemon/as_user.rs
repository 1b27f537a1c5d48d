//! Processes of gpuosd's with a user's rights: no process of that user gets into them, and they end with whoever has started them.

use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use gpuos_host::steps::job_processes::{Proc, Processes};
use gpuosd::{clear, driver_checkpoint};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, Signal, geteuid, kill_process};

use crate::site::LIMIT;

const USER: u32 = 1000;
const GROUP: u32 = 100;
const GPUOSD: &str = env!("CARGO_BIN_EXE_gpuosd");

/// Numbers of a line of what the kernel says of a process; none where it is gone.
fn numbers(pid: u32, name: &str) -> Vec<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let words = line.unwrap_or_default().split_whitespace();
    words.map(|word| word.parse().unwrap()).collect()
}

fn wait_until(what: &str, is: impl Fn() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !is() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// It has the user's rights and nothing else.
fn became_the_user(pid: u32) {
    wait_until("it has the user's rights", || {
        numbers(pid, "Uid:") == [USER; 4]
    });
    assert_eq!(numbers(pid, "Gid:"), [GROUP; 4]);
    assert_eq!(numbers(pid, "Groups:"), Vec::<u32>::new());
    for rights in ["CapPrm:", "CapEff:", "CapAmb:"] {
        assert_eq!(numbers(pid, rights), [0], "{rights}");
    }
}

/// A process of the user may look into this one, for which the kernel asks the same as for tracing it.
fn is_open(pid: u32) -> bool {
    let mut look = Command::new("readlink");
    look.arg(format!("/proc/{pid}/exe")).stdout(Stdio::null());
    look.uid(USER).gid(GROUP).status().unwrap().success()
}

fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid.try_into().unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

/// A folder in which everybody may look.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    folder
}

#[test]
fn nobody_gets_into_the_process_that_calls_the_driver_and_it_ends_with_its_parent() {
    if !geteuid().is_root() {
        return;
    }
    let folder = folder();
    // Whoever opens it waits for somebody who writes to it.
    let library = folder.path().join("libcuda");
    mknodat(CWD, &library, FileType::Fifo, Mode::from_raw_mode(0o666), 0).unwrap();
    fs::set_permissions(&library, Permissions::from_mode(0o666)).unwrap();
    let mut target = Command::new("sleep");
    let mut target = target.arg("600").uid(USER).gid(GROUP).spawn().unwrap();
    let proc = Proc::at("/proc");
    let who = proc.who(target.id()).unwrap().unwrap();
    let caller = format!(
        "'{GPUOSD}' {} back {} {} {USER} 600000 $$ /proc '{}' & echo $!; wait",
        driver_checkpoint::FLAG,
        target.id(),
        who.started,
        library.display(),
    );
    let mut parent = Command::new("sh");
    let parent = parent.args(["-c", &caller]).stdout(Stdio::piped());
    let mut parent = parent.spawn().unwrap();
    let mut line = String::new();
    let mut told = BufReader::new(parent.stdout.take().unwrap());
    told.read_line(&mut line).unwrap();
    let caller: u32 = line.trim().parse().unwrap();

    became_the_user(caller);
    assert!(is_open(target.id()));
    assert!(!is_open(caller));
    parent.kill().unwrap();
    parent.wait().unwrap();
    wait_until("it ends with its parent", || {
        proc.who(caller).unwrap().is_none_or(|who| who.ended)
    });
    target.kill().unwrap();
    target.wait().unwrap();
}

#[test]
fn nobody_gets_into_the_process_that_empties_a_folder() {
    if !geteuid().is_root() {
        return;
    }
    let folder = folder();
    let own = folder.path().join("7");
    fs::create_dir(&own).unwrap();
    std::os::unix::fs::lchown(&own, Some(USER), Some(GROUP)).unwrap();
    // It takes long enough to be stopped on the way.
    crate::clear::nest(&own, 6_000);
    let mut process = Command::new(GPUOSD)
        .args([clear::FLAG, "30"])
        .stdin(File::open(&own).unwrap())
        .spawn()
        .unwrap();
    became_the_user(process.id());
    signal(process.id(), Signal::STOP);
    assert!(!is_open(process.id()));
    signal(process.id(), Signal::CONT);
    process.wait().unwrap();
    let remove = || clear::remove(Path::new(GPUOSD), folder.path(), "7".as_ref(), clear::TIME);
    wait_until("it is empty", || remove().is_ok());
}
