//! The plugins under test.
//!
//! cargo builds no `cdylib` for the tests of another crate, so the first test that needs them
//! calls cargo, with the target folder and profile that it was built with itself. Where cargo has
//! built them already this takes a fraction of a second. `$GPUOS_PLUGIN_DIR` names a folder of
//! plugins to test instead, `$GPUOS_DAEMON_DIR` and `$GPUOS_PROGRAM_DIR` one of gpuosd and of the commands: `make test` names what
//! it has built with the whole workspace, whose dependencies cargo would build once more with the features of these crates alone.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The folder with the plugins as users get them.
pub fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| match std::env::var_os("GPUOS_PLUGIN_DIR") {
        Some(dir) => PathBuf::from(dir),
        None => cargo(
            &[
                "-p",
                "select_gpuos",
                "-p",
                "spank_gpuos",
                "-p",
                "job_submit_gpuos",
                "-p",
                "gres_gpuos",
                "-p",
                "pbs_hook",
            ],
            target(),
        ),
    })
}

/// The folder with gpuosd and gpuos_mover, and with the simulated GPUs that a lab has it watch.
pub fn daemons() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| match std::env::var_os("GPUOS_DAEMON_DIR") {
        Some(dir) => PathBuf::from(dir),
        None => cargo(
            &["-p", "gpuosd", "-p", "gpuos_moverd", "-p", "gpuos_nvml"],
            target(),
        ),
    })
}

/// The same, where a test has them panic at `$GPUOS_PANIC_AT`, or takes shifted layout tables from `$GPUOS_SHIFTS`: debug builds alone
/// know these.
pub fn with_faults() -> &'static Path {
    let release = !cfg!(debug_assertions) && std::env::var_os("GPUOS_PLUGIN_DIR").is_none();
    assert!(
        !release,
        "plugins of a release build do not panic: run this test without --release"
    );
    built()
}

/// The folder with the command `gpuos`, `gpuos-nvml` and the simulated NVML that it copies from beside itself, libgpuos.so,
/// libscr.so, libgpuos_preload.so and the simulated libcuda.so.
pub fn programs() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| match std::env::var_os("GPUOS_PROGRAM_DIR") {
        Some(dir) => PathBuf::from(dir),
        None => cargo(
            &[
                "-p",
                "gpuos_cli",
                "-p",
                "gpuos_nvml",
                "-p",
                "libgpuos",
                "-p",
                "libscr",
                "-p",
                "gpuos_preload",
                "-p",
                "gpuos_cuda",
            ],
            target(),
        ),
    })
}

/// cargo's target folder: this program lies in `TARGET/PROFILE/deps`.
fn target() -> PathBuf {
    let own = std::env::current_exe().expect("own path");
    let target = own.ancestors().nth(3).expect("a cargo target folder");
    target.to_path_buf()
}

fn cargo(arguments: &[&str], target: PathBuf) -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| env!("CARGO").into());
    let mut command = Command::new(cargo);
    command
        .arg("build")
        .args(arguments)
        .arg("--target-dir")
        .arg(&target)
        .current_dir(env!("CARGO_MANIFEST_DIR"));
    if !cfg!(debug_assertions) {
        command.arg("--release");
    }
    let out = command.output().expect("cargo runs");
    assert!(
        out.status.success(),
        "cargo build {}: {}",
        arguments.join(" "),
        String::from_utf8_lossy(&out.stderr)
    );
    target.join(if cfg!(debug_assertions) {
        "debug"
    } else {
        "release"
    })
}
