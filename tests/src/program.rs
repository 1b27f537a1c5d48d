//! Programs that tests write and others run.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// What makes squeue's rows and whole records of the jobs in a stand-in's files: `awk -v rows="$SQUEUE_FORMAT2" -f` this.
pub const JOBS: &str = include_str!("slurm.awk");

/// Writes a program. Another process does it: what a thread beside this one starts meanwhile would
/// have the file open for writing, and nothing that is can be run ("Text file busy").
pub fn program(path: &Path, text: &str) {
    let mut write = Command::new("install")
        .args(["-m", "755", "/dev/stdin"])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .expect("install");
    let mut input = write.stdin.take().expect("its input");
    input.write_all(text.as_bytes()).expect("is read");
    drop(input);
    let status = write.wait().expect("install ends");
    assert!(status.success(), "install {}: {status}", path.display());
}
