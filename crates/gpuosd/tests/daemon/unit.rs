//! The systemd unit: what it forbids the daemon does not need.

use std::fs;
use std::path::Path;
use std::process::Command;

use gpuos_core::health::Verb;

use crate::site::Site;

fn unit() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/gpuosd.service");
    fs::read_to_string(path).unwrap()
}

fn value(key: &str) -> String {
    let text = unit();
    let own = format!("{key}=");
    let line = text.lines().find_map(|line| line.strip_prefix(&own));
    line.unwrap_or_else(|| panic!("{key} is not set"))
        .to_string()
}

/// systemd 257 takes CAP_SETUID from a service that names its user and has a filter of system calls: then no MPS daemon can be
/// started as a job's user. Seen in a machine that systemd booted (`make vm-test`, part `limits`).
#[test]
fn the_unit_names_no_user() {
    let named = unit();
    let named = named.lines().find(|line| line.starts_with("User="));
    assert_eq!(named, None);
}

#[test]
fn systemd_takes_every_line_of_the_unit() {
    if Command::new("systemd-analyze")
        .arg("--version")
        .output()
        .is_err()
    {
        eprintln!("skipped: systemd-analyze is not here (Debian's package systemd)");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gpuosd.service");
    // Where it will be installed nothing is yet.
    fs::write(&file, unit().replace("/usr/sbin/gpuosd", "/bin/true")).unwrap();
    let mut verify = Command::new("systemd-analyze");
    let said = verify
        .args(["verify", "--man=no"])
        .arg(&file)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&said.stderr);
    assert!(
        said.status.success() && !errors.contains("gpuosd.service"),
        "{errors}"
    );
    // Exposure from 0 to 10, in tenths; a daemon of root's with the machine's devices stays between.
    let mut security = Command::new("systemd-analyze");
    security.args(["security", "--no-pager", "--offline=yes", "--threshold=50"]);
    let said = security.arg(&file).output().unwrap();
    let text = String::from_utf8_lossy(&said.stdout);
    assert!(
        said.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&said.stderr)
    );
}

#[test]
fn mps_daemons_of_jobs_outlive_the_unit() {
    assert_eq!(value("KillMode"), "process");
}

#[test]
fn the_unit_lets_the_daemon_do_its_work() {
    let text = unit();
    // /dev/nvidia*, the kernel's log, what the driver's tools load and write, other users' processes, ports.
    for key in [
        "PrivateDevices",
        "DevicePolicy",
        "DeviceAllow",
        "ProtectKernelLogs",
        "ProtectKernelModules",
        "ProtectKernelTunables",
        "ProtectProc",
        "ProcSubset",
        "PrivateNetwork",
        "IPAddressDeny",
        "PrivateUsers",
        "MemoryDenyWriteExecute",
    ] {
        assert!(!text.contains(&format!("\n{key}=")), "{key}");
    }
    let families = value("RestrictAddressFamilies");
    for family in ["AF_UNIX", "AF_INET", "AF_INET6"] {
        assert!(families.split(' ').any(|one| one == family), "{family}");
    }
    // Its folders are the daemon's defaults.
    assert_eq!(value("StateDirectory"), "gpuos");
    assert_eq!(value("RuntimeDirectory"), "gpuos");
    assert_eq!(value("Type"), "notify");
}

/// A command with the capabilities of the unit and no others; `None` where that cannot be tried.
pub fn confined(program: &str) -> Option<Command> {
    let names = value("CapabilityBoundingSet").to_lowercase();
    let caps: Vec<String> = names
        .split(' ')
        .map(|cap| cap.replace("cap_", "+"))
        .collect();
    let caps = format!("-all,{}", caps.join(","));
    let confined = |program: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--no-new-privs", "--inh-caps=-all"]);
        command.arg(format!("--bounding-set={caps}")).arg(program);
        command
    };
    if confined("true")
        .output()
        .is_ok_and(|done| done.status.success())
    {
        return Some(confined(program));
    }
    eprintln!("skipped: this needs root and setpriv");
    None
}

#[test]
fn the_capabilities_of_the_unit_are_enough() {
    let Some(gpuosd) = confined(env!("CARGO_BIN_EXE_gpuosd")) else {
        return;
    };
    let site = Site::new();
    let reset = site.resets();
    let flags = ["--reset-command", &reset];
    let daemon = site.start_under(gpuosd, &flags);
    daemon.ready();
    site.fault(Some(5), "xid 48");
    daemon.admin(Verb::Drain, 2);
    site.until("Extra", || {
        site.slurm("extra").contains("out=2").then_some(())
    });
    site.until("GPU 5 was reset and is back", || {
        site.mend();
        let reset = site.slurm("resets").contains("reset 5");
        (reset && daemon.state(5) == "available").then_some(())
    });
    assert!(
        !gpuosd::audit::tail(&site.path("state"), 50)
            .unwrap()
            .is_empty()
    );
    assert!(site.path("state/state").exists());
}
