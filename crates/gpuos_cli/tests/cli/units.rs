//! Units of systemd that run the command.

use std::path::Path;
use std::process::Command;

/// What commands need of the machine is less than what gpuosd does: no device, no kernel's setting, and few capabilities.
#[test]
fn units_of_the_command_are_no_more_exposed_than_the_daemon() {
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
    let known = Command::new("systemd-analyze").arg("--version").output();
    if known.is_err() {
        eprintln!("skipped: systemd-analyze is not here (Debian's package systemd)");
        return;
    }
    for unit in ["gpuos-ckpt-drill.service", "gpuos-pbs-planner.service"] {
        let text = std::fs::read_to_string(packaging.join(unit)).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(unit);
        // Where it will be installed nothing is yet.
        std::fs::write(&file, text.replace("/usr/bin/gpuos", "/bin/true")).unwrap();
        let mut verify = Command::new("systemd-analyze");
        let said = verify.args(["verify", "--man=no"]).arg(&file).output();
        let said = said.unwrap();
        let errors = String::from_utf8_lossy(&said.stderr);
        assert!(!errors.contains(unit), "{errors}");
        // Exposure from 0 to 10, in tenths.
        let mut security = Command::new("systemd-analyze");
        security.args(["security", "--no-pager", "--offline=yes", "--threshold=30"]);
        let said = security.arg(&file).output().unwrap();
        assert!(
            said.status.success(),
            "{unit}: {}",
            String::from_utf8_lossy(&said.stdout)
        );
    }
}

/// Each drill is submitted as its job's user by runuser, which root does with these capabilities and no others.
#[test]
fn the_capabilities_of_the_drills_unit_are_enough_to_become_a_user() {
    let unit = include_str!("../../../../packaging/gpuos-ckpt-drill.service");
    let line = unit
        .lines()
        .find_map(|line| line.strip_prefix("CapabilityBoundingSet="))
        .unwrap();
    let names = line.to_lowercase().replace("cap_", "+").replace(' ', ",");
    let confined = |words: &[&str]| {
        Command::new("setpriv")
            .args(["--no-new-privs", "--inh-caps=-all"])
            .arg(format!("--bounding-set=-all,{names}"))
            .args(words)
            .output()
    };
    if !confined(&["true"]).is_ok_and(|done| done.status.success()) {
        eprintln!("skipped: this needs root and setpriv");
        return;
    }
    let said = confined(&["runuser", "-u", "nobody", "--", "id", "-un"]).unwrap();
    let (out, error) = (
        String::from_utf8_lossy(&said.stdout).into_owned(),
        String::from_utf8_lossy(&said.stderr).into_owned(),
    );
    assert_eq!(out.trim(), "nobody", "{error}");
}
