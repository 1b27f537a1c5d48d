//! A program by OpenMP's own calls, whose library opens the driver by itself: Debian's gcc-12-offload-nvptx compiles it.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles it, from that place in the caller's package, in a folder. `None`, with a line: no compiler here has what that takes.
pub fn program(source: &str, folder: &Path) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
    let to = folder.join("openmp");
    let compiles = |compiler: &&str| {
        let mut compiler = Command::new(compiler);
        compiler.args(["-fopenmp", "-foffload=nvptx-none", "-O1", "-o"]);
        let out = compiler.args([&to, &source]).output();
        out.is_ok_and(|out| out.status.success())
    };
    if ["gcc", "gcc-12"].iter().any(compiles) {
        return Some(to);
    }
    eprintln!("skipped: no gcc here compiles for nvptx: apt-get install gcc-12-offload-nvptx");
    None
}
