//! What is left of labs whose maker did not end in order: nothing.

mod common;

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use common::{leftovers, up, wait_clean};
use gpuos_lab::{LabError, LabSpec, records, sweep};

/// Set for the process that makes a lab and is killed: the name of the lab.
const MAKER: &str = "GPUOS_LAB_TEST_MAKER";

/// Not a test of its own: the maker's part, run in another process by [`make`].
#[test]
fn maker() {
    let Ok(name) = std::env::var(MAKER) else {
        return;
    };
    let spec = LabSpec {
        name,
        nodes: 1.into(),
        ..LabSpec::default()
    };
    let Some(lab) = up(&spec) else {
        println!("skip");
        return;
    };
    // It has nothing of the lab about it but its ancestors, and its folder's name for the
    // tests to find it by.
    let script = format!("env -i sh -c 'sleep 1000; : {}'", lab.dir().display());
    let job = lab.sbatch(&[], &script).expect("submits");
    lab.wait_job(job, &["RUNNING"], Duration::from_secs(180))
        .expect("runs");
    println!("id={} dir={}", lab.record().id, lab.dir().display());
    sleep(Duration::from_secs(600));
}

/// A lab in another process: that process, the lab's id and folder. Without `cgroups` that
/// process sees an empty folder in their place.
fn make(name: &str, cgroups: bool) -> Option<(Child, String, PathBuf)> {
    let own = std::env::current_exe().expect("own path");
    let hidden = tempfile::tempdir().expect("tempdir");
    let mut command = if cgroups {
        Command::new(own)
    } else {
        let script = "mount --bind \"$1\" /sys/fs/cgroup && shift && exec \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", script, "sh"]);
        command.arg(hidden.path()).arg(own);
        command
    };
    let mut child = command
        .args(["maker", "--exact", "--nocapture"])
        .env(MAKER, name)
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    let out = BufReader::new(child.stdout.take().expect("piped"));
    for line in out.lines().map_while(Result::ok) {
        // The harness writes the test's name in front.
        if let Some((_, found)) = line.split_once("id=") {
            let (id, dir) = found.split_once(" dir=").expect("two values");
            return Some((child, id.to_string(), PathBuf::from(dir)));
        }
    }
    let _ = child.wait();
    eprintln!("skipped: no lab on this machine");
    None
}

/// Pid of the guard of a lab: its command line names the lab's id.
fn guard_of(id: &str) -> Option<String> {
    let name = format!("gpuos-lab-guard\0{id}\0");
    for entry in std::fs::read_dir("/proc").ok()?.flatten() {
        let text = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if String::from_utf8_lossy(&text).contains(&name) {
            return Some(entry.file_name().to_string_lossy().into_owned());
        }
    }
    None
}

fn kill(mut child: Child) {
    child.kill().expect("kills");
    assert_eq!(child.wait().expect("waits").signal(), Some(9));
}

#[test]
fn the_guard_cleans_up_after_a_killed_maker() {
    guard_cleans_up("guard", true);
}

#[test]
fn the_guard_cleans_up_where_there_are_no_cgroups() {
    guard_cleans_up("bare", false);
}

fn guard_cleans_up(prefix: &str, cgroups: bool) {
    let name = format!("{prefix}-{}", std::process::id());
    let Some((child, id, dir)) = make(&name, cgroups) else {
        return;
    };
    assert_ne!(leftovers(&id, &dir), Vec::<String>::new());
    kill(child);
    wait_clean(&id, &dir);
}

#[test]
fn a_sweep_cleans_up_when_the_guard_was_killed_too() {
    sweep_cleans_up("sweep", true);
}

#[test]
fn a_sweep_cleans_up_where_there_are_no_cgroups() {
    sweep_cleans_up("sweep-bare", false);
}

fn sweep_cleans_up(prefix: &str, cgroups: bool) {
    let name = format!("{prefix}-{}", std::process::id());
    let Some((child, id, dir)) = make(&name, cgroups) else {
        return;
    };
    let guard = guard_of(&id).expect("a guard");
    // The shell's own kill: a small system has no program of that name.
    let status = Command::new("sh")
        .args(["-c", &format!("kill -9 {guard}")])
        .status();
    assert!(status.expect("kill").success());
    kill(child);
    // The guard ends when the machine comes to that.
    let is_orphan = || records().iter().any(|r| r.id == id && r.is_orphan());
    let begun = Instant::now();
    while !is_orphan() {
        assert!(begun.elapsed() < Duration::from_secs(60), "no orphan");
        sleep(Duration::from_millis(5));
    }
    sweep();
    assert!(!records().iter().any(|r| r.id == id));
    assert_eq!(leftovers(&id, &dir), Vec::<String>::new());
}

#[test]
fn a_detached_lab_outlives_its_value_until_it_is_ended_by_name() {
    let spec = LabSpec {
        nodes: 1.into(),
        detached: true,
        ..LabSpec::unique("detached")
    };
    let Some(lab) = up(&spec) else { return };
    let (id, dir) = (lab.record().id.clone(), lab.dir().to_path_buf());
    drop(lab);
    sweep();
    let lab = gpuos_lab::Lab::open(&spec.name).expect("is up");
    assert_eq!(
        lab.run("sinfo", &["-h", "-o", "%T"]).expect("sinfo"),
        "idle\n"
    );
    drop(lab);
    gpuos_lab::down(&spec.name).expect("goes down");
    wait_clean(&id, &dir);
    match gpuos_lab::down(&spec.name) {
        Err(LabError::NotFound(name)) => assert_eq!(name, spec.name),
        other => panic!("{other:?}"),
    }
}
