//! What the tests of labs share.
#![allow(dead_code, reason = "each test uses its part")]

use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use gpuos_lab::{Lab, LabSpec, field};

/// A lab, or `None` with the reason printed where this machine cannot have one, or `$GPUOS_TEST_SUITES` wants none.
pub fn up(spec: &LabSpec) -> Option<Lab> {
    if std::env::var("GPUOS_TEST_SUITES").is_ok_and(|names| names.trim() == "none") {
        eprintln!("SKIPPED {}: GPUOS_TEST_SUITES names no release", spec.name);
        return None;
    }
    match Lab::up(spec, &mut |step| eprintln!("{step}")) {
        Ok(lab) => Some(lab),
        Err(e) if e.is_environment() => {
            eprintln!("skipped: {e}");
            None
        }
        Err(e) => panic!("{e}"),
    }
}

/// `NODE:INDICES` of a running or ended job, as scontrol shows them.
pub fn job_gpus(lab: &Lab, job: u32) -> String {
    let text = lab
        .run("scontrol", &["-d", "-o", "show", "job", &job.to_string()])
        .expect("scontrol");
    let node = field(&text, "Nodes").unwrap_or_default();
    let index = text.split("IDX:").nth(1).unwrap_or_default();
    let index = index.split(')').next().unwrap_or_default();
    format!("{node}:{index}")
}

/// Waits until a lab that someone else ends has left nothing behind.
pub fn wait_clean(id: &str, dir: &Path) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !leftovers(id, dir).is_empty() && Instant::now() < deadline {
        sleep(Duration::from_millis(100));
    }
    assert_eq!(leftovers(id, dir), Vec::<String>::new());
}

/// Processes, files, cgroups and mounts that a lab left behind.
pub fn leftovers(id: &str, dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").expect("proc").flatten() {
        let read = |name: &str| fs::read(entry.path().join(name)).unwrap_or_default();
        let text = |name: &str| String::from_utf8_lossy(&read(name)).into_owned();
        let ours = text("environ").contains(id) || text("cgroup").contains(id);
        let cmdline = text("cmdline").replace('\0', " ");
        let in_dir = cmdline.contains(&*dir.to_string_lossy());
        // One that has ended and that init has not waited for yet is nothing.
        let ended = text("stat").contains(") Z 1 ");
        if ended {
            continue;
        }
        if entry.file_name().as_encoded_bytes()[0].is_ascii_digit() && (ours || in_dir) {
            found.push(format!("process {}: {cmdline}", entry.path().display()));
        }
    }
    if text("/proc/mounts").contains(id) {
        found.push("a mount".to_string());
    }
    if dir.exists() {
        found.push(dir.display().to_string());
    }
    let tree = ["/sys/fs/cgroup", "/dev"].map(Path::new);
    let below = fs::read_dir(tree[0]).into_iter().flatten().flatten();
    let places = below
        .map(|entry| entry.path())
        .chain(tree.map(Path::to_path_buf));
    found.extend(
        places
            .map(|place| place.join(format!("gpuos-lab-{id}")))
            .filter(|path| path.exists())
            .map(|path| path.display().to_string()),
    );
    found
}

fn text(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}
