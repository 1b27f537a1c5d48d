//! A program in Python by NVIDIA's cuda-bindings, which open the driver by themselves. PyPI alone has them.

use std::path::Path;
use std::process::Command;

/// Runs it, from that place in the caller's package. `None`, with a line: the first Python here does not have them.
pub fn program(source: &str) -> Option<Command> {
    let mut has = Command::new("python3");
    has.args(["-c", "from cuda.bindings import driver"]);
    if !has.output().is_ok_and(|out| out.status.success()) {
        eprintln!(
            "skipped: python3 here has no cuda-bindings: tests/cuda/README.md tells how to get them"
        );
        return None;
    }
    let mut program = Command::new("timeout");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
    program.args(["60", "python3"]).arg(source);
    Some(program)
}
