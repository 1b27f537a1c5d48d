//! The daemon gpuos_mover.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    eprintln!("gpuos_mover: the daemon is not part of this build");
    ExitCode::FAILURE
}
