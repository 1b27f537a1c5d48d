//! Ordinary users: accounts that are there for this test alone, in a mount namespace with its own passwd.
//!
//! Slurm runs jobs of nobody who has no account, and accounts below 1000 are a system's own. So the test runs itself once more in
//! a mount namespace in which three more users are known; the machine's files stay as they are.

use std::fs;
use std::process::Command;

/// Set in the run inside of the namespace.
const INSIDE: &str = "GPUOS_HOSTILE_INSIDE";

/// A user.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct User {
    /// Name of the account.
    pub name: &'static str,
    /// Its number, and that of its group.
    pub uid: u32,
}

/// The first attacker.
pub const MALLORY: User = User {
    name: "mallory",
    uid: 61_001,
};
/// The second.
pub const EVE: User = User {
    name: "eve",
    uid: 61_002,
};
/// Whose jobs are to be left alone.
pub const ALICE: User = User {
    name: "alice",
    uid: 61_003,
};

/// Whether this is the run in which the users are known. If not it starts that, for the test of that name, and waits for its end.
/// `None`: this machine does not let it, and that is said.
pub fn are_known(test: &str) -> Option<bool> {
    if let Some(ran) = std::env::var_os(INSIDE) {
        fs::write(ran, test).expect("a word that this test ran");
        return Some(true);
    }
    let folder = tempfile::tempdir().expect("a folder");
    for (file, lines) in [
        ("passwd", ":x:{0}:{0}::/tmp:/bin/sh\n"),
        ("group", ":x:{0}:\n"),
    ] {
        let mut text = fs::read_to_string(format!("/etc/{file}")).expect("the machine's accounts");
        for user in [MALLORY, EVE, ALICE] {
            text += user.name;
            text += &lines.replace("{0}", &user.uid.to_string());
        }
        fs::write(folder.path().join(file), text).expect("written");
    }
    let mount = "mount --bind \"$1/passwd\" /etc/passwd && mount --bind \"$1/group\" /etc/group";
    let can = Command::new("unshare")
        .args(["-m", "--propagation", "private", "sh", "-c", mount, "sh"])
        .arg(folder.path())
        .output();
    if !can.is_ok_and(|out| out.status.success()) {
        gpuos_tests::skip(
            test,
            "root cannot make a mount namespace here, in which the test's users are known",
        );
        return None;
    }
    let script = format!("{mount} && shift && exec \"$@\"");
    let status = Command::new("setpriv")
        .args([
            "--pdeathsig",
            "KILL",
            "unshare",
            "-m",
            "--propagation",
            "private",
        ])
        .args(["sh", "-c", &script, "sh"])
        .arg(folder.path())
        .arg(std::env::current_exe().expect("this program"))
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, folder.path().join("ran"))
        .status()
        .expect("setpriv is there");
    assert!(status.success(), "{test}: what is above");
    // A program that has no test of this name ends well, too.
    let ran = fs::read_to_string(folder.path().join("ran"));
    assert_eq!(ran.ok().as_deref(), Some(test), "no test is called so");
    Some(false)
}
