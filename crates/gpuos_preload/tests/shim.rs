//! A client of the simulated driver, in a process that has the library loaded before.

use std::path::PathBuf;
use std::process::{Command, Output};

use crate::common::{Cuda, library, with};

/// The library that was built for this test.
pub fn preload() -> PathBuf {
    std::env::current_exe()
        .expect("this program")
        .with_file_name("libgpuos_preload.so")
}

/// Bytes of a MiB.
pub const MIB: u64 = 1 << 20;

/// A folder with the driver under the name that programs open.
pub fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["libcuda.so", "libcuda.so.1"] {
        std::os::unix::fs::symlink(library(), folder.path().join(name)).expect("a link");
    }
    folder
}

/// Variables under which a program has the library: `grant` and `hbm` in MiB, on devices with these settings.
pub fn variables(
    folder: &std::path::Path,
    grant: u64,
    hbm: u64,
    settings: &str,
) -> Vec<(String, String)> {
    let text = |path: &std::path::Path| path.to_str().expect("a path").to_string();
    [
        ("LD_PRELOAD", text(&preload())),
        ("LD_LIBRARY_PATH", text(folder)),
        ("GPUOS_CUDA", settings.to_string()),
        ("GPUOS_MEM_GRANT", (grant * MIB).to_string()),
        ("GPUOS_MEM_HBM", (hbm * MIB).to_string()),
        ("GPUOS_MEM_REPORT", "1".to_string()),
        ("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent".to_string()),
    ]
    .map(|(name, value)| (name.to_string(), value))
    .to_vec()
}

/// Runs `body` in a process of its own with the library, and gives its standard error: see `common::with`.
#[track_caller]
pub fn preloaded(
    test: &str,
    [grant, hbm]: [u64; 2],
    settings: &str,
    more: &[(&str, &str)],
    body: impl FnOnce(&Cuda),
) -> Option<String> {
    let folder = folder();
    let all = variables(folder.path(), grant, hbm, settings);
    let mut all: Vec<(&str, &str)> = all
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    all.extend(more);
    with(test, &all, body)
}

/// How many extents a process said that it moved.
pub fn moved(said: &str) -> u64 {
    let line = said
        .lines()
        .find_map(|line| line.strip_prefix("gpuos: moved "));
    let number = line
        .and_then(|line| line.split(' ').next())
        .and_then(|number| number.parse().ok());
    number.unwrap_or_else(|| panic!("no report:\n{said}"))
}

/// Runs a test of this program with the library and a planted error. It may fail in any way.
pub fn planted(test: &str, mutant: &str, settings: &str, more: &[(&str, &str)]) -> Output {
    let folder = folder();
    let mut again = Command::new("timeout");
    again
        .arg("120")
        .arg(std::env::current_exe().expect("this program"));
    again.args(["--exact", test, "--nocapture", "--test-threads=1"]);
    again.envs(variables(folder.path(), 256, 16, settings));
    again
        .env("GPUOS_PRELOAD_MUTANT", mutant)
        .env("GPUOS_CUDA_TEST", test);
    again
        .env_remove("GPUOS_NVML_STATE")
        .env_remove("CUDA_VISIBLE_DEVICES");
    again.envs(more.iter().copied());
    again.output().expect("timeout of coreutils")
}

/// Calls that a test makes often.
impl Cuda {
    /// Free bytes and all, as the program sees them.
    pub fn info(&self) -> (u64, u64) {
        let (mut free, mut total) = (0_u64, 0_u64);
        self.ok(
            "cuMemGetInfo_v2",
            &[&raw mut free as u64, &raw mut total as u64],
        );
        (free, total)
    }
}
