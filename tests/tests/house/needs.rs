//! Which of the machine's programs scripts/needs.sh takes for Debian's.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use super::root;

/// A function of the script, as it stands there.
fn function(name: &str) -> String {
    let script = fs::read_to_string(root().join("scripts/needs.sh")).expect("the script");
    let begin = script
        .find(&format!("{name}() {{\n"))
        .expect("the function");
    let end = script[begin..].find("\n}\n").expect("its end");
    script[begin..begin + end + 3].to_string()
}

/// Debian's slurmctld is an alternative: a link to a link to the file that a package has. After `make demo` it is there, and `make test` still
/// needs the slurmdbd that goes with it.
#[test]
fn an_alternative_is_of_the_package_that_its_links_lead_to() {
    let folder = std::env::temp_dir().join(format!("gpuos-needs-{}", std::process::id()));
    let path = |name: &str| folder.join(name);
    for name in ["bin", "sbin", "etc/alternatives", "opt"] {
        fs::create_dir_all(path(name)).expect("a folder");
    }
    let packaged = path("sbin/slurmctld-wlm");
    for file in [&packaged, &path("opt/slurmctld")] {
        fs::write(file, "").expect("a program");
    }
    symlink(&packaged, path("etc/alternatives/slurmctld")).expect("a link");
    symlink("../etc/alternatives/slurmctld", path("sbin/slurmctld")).expect("a link");
    let dpkg = path("bin/dpkg");
    let text = format!("#!/bin/sh\n[ \"$2\" = {} ]\n", packaged.display());
    fs::write(&dpkg, text).expect("a stand-in");
    fs::set_permissions(&dpkg, fs::Permissions::from_mode(0o755)).expect("a program");
    let script = format!("{}is_packaged \"$1\"", function("is_packaged"));
    let is_packaged = |program: &Path| {
        let mut command = Command::new("sh");
        command.args(["-c", &script, "sh"]).arg(program);
        let bin = path("bin").display().to_string();
        command.env("PATH", format!("{bin}:/usr/bin:/bin"));
        command.status().expect("sh").success()
    };
    assert!(is_packaged(&path("sbin/slurmctld")), "by two links");
    assert!(is_packaged(&packaged), "by its own name");
    assert!(!is_packaged(&path("opt/slurmctld")), "a Slurm of one's own");
    fs::remove_dir_all(folder).expect("removed");
}
