//! A client of the simulated driver, in a process that has the library loaded before.

use std::path::PathBuf;
use std::process::{Command, Output};

use crate::common::{Cuda, Flag, library, with};

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

/// Runs a test that moves extents until it has moved so many: where the machine has much else to do, those that move get little of it.
/// `None` of `run`: this is the process of the test.
pub fn moves(least: u64, run: impl Fn() -> Option<String>) {
    let mut most = 0;
    for _ in 0..RUNS {
        let Some(said) = run() else { return };
        most = most.max(moved(&said));
        if most >= least {
            return;
        }
    }
    panic!("only {most} extents moved");
}

/// So often is something tried that depends on when threads run.
pub const RUNS: usize = 6;

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
fn planted(test: &str, mutant: &str, settings: &str, more: &[(&str, &str)]) -> Output {
    let folder = folder();
    let mut again = Command::new("timeout");
    again
        .arg("300")
        .arg(std::env::current_exe().expect("this program"));
    again.args(["--exact", test, "--nocapture", "--test-threads=1"]);
    again.envs(variables(folder.path(), 2048, 16, settings));
    again
        .env("GPUOS_PRELOAD_MUTANT", mutant)
        .env("GPUOS_CUDA_TEST", test);
    again
        .env_remove("GPUOS_NVML_STATE")
        .env_remove("CUDA_VISIBLE_DEVICES");
    again.envs(more.iter().copied());
    again.output().expect("timeout of coreutils")
}

/// What `timeout` ends with where it had to end the program.
const TOO_LONG: i32 = 124;

/// Whether a test fails with a planted error, in one of some runs: how much is moved, and when, is another thing each time. None of the
/// planted errors stops a program, so that one which did not end has found nothing: the machine may have much else to do.
pub fn finds(test: &str, mutant: &str, settings: &str, more: &[(&str, &str)]) -> bool {
    (0..RUNS).any(|_| {
        let out = planted(test, mutant, settings, more);
        let text = String::from_utf8_lossy(&out.stdout);
        assert!(text.contains("running 1 test"), "{text}");
        !out.status.success() && out.status.code() != Some(TOO_LONG)
    })
}

/// CUmemAllocationProp: pinned, with a type of handle, on a device, for RDMA.
pub fn prop(handle_types: u32, device: u32, rdma: u32) -> [u32; 8] {
    [1, handle_types, 1, device, 0, 0, rdma << 8, 0]
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

    // What expandable segments do.

    pub fn create_code(&self, bytes: u64, prop: &[u32; 8]) -> Result<u64, u32> {
        let mut handle = 0_u64;
        let words = [&raw mut handle as u64, bytes, prop.as_ptr() as u64, 0];
        match self.code("cuMemCreate", &words) {
            0 => Ok(handle),
            code => Err(code),
        }
    }

    pub fn create(&self, bytes: u64, device: u32) -> u64 {
        self.create_code(bytes, &prop(0, device, 0))
            .expect("memory")
    }

    pub fn reserve(&self, bytes: u64) -> u64 {
        self.get("cuMemAddressReserve", &[bytes, 0, 0, 0])
    }

    pub fn allow(&self, at: u64, bytes: u64, device: u32, flags: u32) -> u32 {
        let access = [1, device, flags];
        self.code("cuMemSetAccess", &[at, bytes, access.as_ptr() as u64, 1])
    }

    pub fn map(&self, at: u64, bytes: u64, offset: u64, handle: u64, device: u32) {
        self.ok("cuMemMap", &[at, bytes, offset, handle, 0]);
        assert_eq!(self.allow(at, bytes, device, 3), 0);
    }

    // Stream-ordered allocations.

    pub fn alloc_async(&self, bytes: u64, stream: u64) -> u64 {
        self.get("cuMemAllocAsync", &[bytes, stream])
    }

    pub fn free_async(&self, at: u64, stream: u64) {
        self.ok("cuMemFreeAsync", &[at, stream]);
    }

    /// An attribute of a pool.
    pub fn pool_attribute(&self, pool: u64, which: u64) -> u64 {
        let mut value = 0_u64;
        self.ok(
            "cuMemPoolGetAttribute",
            &[pool, which, &raw mut value as u64],
        );
        value
    }

    pub fn set_pool_attribute(&self, pool: u64, which: u64, value: u64) {
        self.ok(
            "cuMemPoolSetAttribute",
            &[pool, which, &raw const value as u64],
        );
    }

    /// A stream that stands still until the flag has the value.
    pub fn held(&self, stream: u64, flag: &Flag) {
        let wait = self.kernel("wait");
        assert_eq!(self.launch(wait, stream, &[flag.0, 1]), 0);
    }
}
