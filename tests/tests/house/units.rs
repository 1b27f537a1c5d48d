//! The units of systemd that are installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn units() -> Vec<PathBuf> {
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging");
    let all = fs::read_dir(packaging).unwrap();
    let all = all.map(|entry| entry.unwrap().path());
    let is_unit = |path: &PathBuf| {
        path.extension()
            .is_some_and(|it| it == "service" || it == "timer")
    };
    all.filter(is_unit).collect()
}

#[test]
fn systemd_takes_every_line_of_the_units() {
    if Command::new("systemd-analyze")
        .arg("--version")
        .output()
        .is_err()
    {
        eprintln!("skipped: systemd-analyze is not here (Debian's package systemd)");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", "--man=no"]);
    let mut names = Vec::new();
    for path in units() {
        let name = path.file_name().unwrap().to_str().unwrap().to_string();
        // Where they will be installed nothing is yet.
        let mut text = fs::read_to_string(&path).unwrap();
        for program in [
            "/usr/sbin/gpuosd",
            "/usr/sbin/gpuos_mover",
            "/usr/bin/gpuos",
        ] {
            for end in [" ", "\n"] {
                text = text.replace(&format!("{program}{end}"), &format!("/bin/true{end}"));
            }
        }
        fs::write(folder.path().join(&name), text).unwrap();
        verify.arg(folder.path().join(&name));
        names.push(name);
    }
    names.sort();
    let known = [
        "gpuos-ckpt-drill.service",
        "gpuos-ckpt-drill.timer",
        "gpuos-pbs-planner.service",
        "gpuos_mover.service",
        "gpuosd.service",
    ];
    assert_eq!(names, known);
    let said = verify.output().unwrap();
    let errors = String::from_utf8_lossy(&said.stderr);
    // Of the machine's own units it may say what it likes.
    let ours = names.iter().any(|name| errors.contains(name.as_str()));
    assert!(said.status.success() && !ours, "{errors}");
}

/// A timer starts the service of its own name, so the two are renamed together or not at all; and it is a moment that systemd can read.
#[test]
fn each_timer_has_its_service() {
    let all = units();
    let timers = all
        .iter()
        .filter(|path| path.extension().is_some_and(|it| it == "timer"));
    for timer in timers {
        assert!(all.contains(&timer.with_extension("service")), "{timer:?}");
        let text = fs::read_to_string(timer).unwrap();
        assert!(!text.contains("\nUnit="), "{text}");
        assert!(text.contains("\nWantedBy=timers.target"), "{text}");
    }
}
