//! A munged of the machine with a key of its own, in a folder of its own.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// It ends with this.
pub struct Daemon(Child, tempfile::TempDir);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Daemon {
    /// Where it listens.
    pub fn socket(&self) -> PathBuf {
        self.1.path().join("socket")
    }
}

/// Starts one; `None`: there is no munged on PATH.
pub fn munged(key: u8) -> Option<Daemon> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("key"), [key; 32]).unwrap();
    let mut command = Command::new("munged");
    command.args(["--foreground", "--force", "--num-threads=1"]);
    for name in ["socket", "key-file", "seed-file", "pid-file", "log-file"] {
        let file = folder.path().join(name.trim_end_matches("-file"));
        command.arg(format!("--{name}={}", file.display()));
    }
    command.stdin(Stdio::null()).stderr(Stdio::null());
    let daemon = Daemon(command.spawn().ok()?, folder);
    let deadline = Instant::now() + Duration::from_secs(60);
    while UnixStream::connect(daemon.socket()).is_err() {
        assert!(Instant::now() < deadline, "munged does not start");
        sleep(Duration::from_millis(20));
    }
    Some(daemon)
}
