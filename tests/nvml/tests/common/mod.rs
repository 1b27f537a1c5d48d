//! A simulated node for a test. The library keeps one session for a process, so every test runs its
//! body in a process of its own: the test starts itself again with the node's environment.

#![allow(
    dead_code,
    unused_imports,
    unused_macros,
    reason = "each test file uses a part of this"
)]

use std::panic::Location;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use nvml_wrapper::Nvml;

/// A call of nvml-wrapper fails with this error.
macro_rules! fails {
    ($call:expr, $error:ident) => {{
        let result = $call;
        let as_wanted = matches!(result, Err(nvml_wrapper::error::NvmlError::$error));
        assert!(
            as_wanted,
            "not {}: {:?}",
            stringify!($error),
            result.map(|_| ())
        );
    }};
}
pub(crate) use fails;

/// A node in a folder.
pub struct Site {
    pub dir: PathBuf,
}

/// Tells the second process which test it is.
const INSIDE: &str = "GPUOS_NVML_TEST";

/// Runs `body` in a process of its own, on a node of this kind. `test` is the name of the test in the caller's file.
#[track_caller]
pub fn on(test: &str, kind: &str, body: impl FnOnce(&Site)) {
    with(test, kind, &[], body);
}

/// The same with arguments for `create`.
#[track_caller]
pub fn with(test: &str, kind: &str, create: &[&str], body: impl FnOnce(&Site)) {
    let module = Path::new(Location::caller().file()).file_stem();
    let module = module.and_then(|name| name.to_str()).expect("a name");
    let test = format!("{module}::{test}");
    let test = test.as_str();
    if std::env::var_os(INSIDE).is_some_and(|inside| inside == test) {
        let dir = std::env::var_os("LD_LIBRARY_PATH").expect("the node's folder");
        return body(&Site { dir: dir.into() });
    }
    let folder = tempfile::tempdir().expect("a folder");
    // Other users must get in.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path(), open).expect("permissions");
    let site = Site {
        dir: folder.path().to_path_buf(),
    };
    let dir = folder.path().to_str().expect("a name");
    // The library that was built for this test: the one beside gpuos-nvml is `cargo build`'s.
    let tests = std::env::current_exe().expect("this program");
    let library = tests.with_file_name("libnvidia_ml.so");
    let library = library.to_str().expect("a name");
    let mut words = vec!["create", kind, "--dir", dir, "--library", library];
    words.extend(create);
    said(
        &tool(folder.path())
            .args(words)
            .output()
            .expect("gpuos-nvml"),
    );
    let mut again = Command::new(std::env::current_exe().expect("this program"));
    again.args(["--exact", test, "--nocapture", "--test-threads=1"]);
    again.env(INSIDE, test);
    let done = site.environment(&mut again).output().expect("this program");
    let text = said(&done);
    assert!(
        text.contains("1 passed"),
        "no test is called {test}:\n{text}"
    );
    let errors = String::from_utf8_lossy(&done.stderr);
    for line in errors.lines().filter(|line| line.starts_with("skipped:")) {
        eprintln!("{line}");
    }
}

/// What a program printed; fails the test when the program failed.
pub fn said(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{}:\n{text}\n{errors}",
        output.status
    );
    text
}

fn tool(dir: &Path) -> Command {
    let mut tool = Command::new(env!("CARGO_BIN_EXE_gpuos-nvml"));
    tool.env("GPUOS_NVML_STATE", dir.join("state"));
    tool
}

impl Site {
    /// The library, under the name that programs open.
    pub fn library(&self) -> PathBuf {
        self.dir.join("libnvidia-ml.so.1")
    }

    /// The library through the safe Rust wrapper.
    pub fn nvml(&self) -> Nvml {
        let path = self.library();
        Nvml::builder()
            .lib_path(path.as_os_str())
            .init()
            .expect("nvmlInit")
    }

    /// Gives a program this node.
    pub fn environment<'a>(&self, program: &'a mut Command) -> &'a mut Command {
        program
            .env("GPUOS_NVML_STATE", self.dir.join("state"))
            .env("LD_LIBRARY_PATH", &self.dir)
            .env_remove("GPUOS_NVML_LATENCY")
    }

    /// `gpuos-nvml` with these words; it must succeed.
    pub fn run(&self, words: &str) -> String {
        let words = words.split_whitespace();
        said(&tool(&self.dir).args(words).output().expect("gpuos-nvml"))
    }

    /// The same where it must fail; gives what it says.
    pub fn refused(&self, words: &str) -> String {
        let words = words.split_whitespace();
        let output = tool(&self.dir).args(words).output().expect("gpuos-nvml");
        assert!(!output.status.success(), "gpuos-nvml did it");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
}
