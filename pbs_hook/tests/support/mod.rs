//! A hook with its configuration, and python3 to run it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

/// What the stand-in is told that this PBS has.
const RESOURCES: [&str; 24] = [
    "gpuos_topology",
    "gpuos_placement",
    "gpuos_mig",
    "gpuos_share",
    "gpuos_mem",
    "gpuos_power",
    "gpuos_clocks",
    "gpuos_mps",
    "gpuos_checkpoint",
    "gpuos_nvlink",
    "gpuos_leaf",
    "gpuos_host",
    "gpuos_ngpus",
    "gpuos_linked",
    "gpuos_mig_compute",
    "gpuos_mig_memory",
    "gpuos_mig_fits",
    "gpuos_mig_board",
    "gpuos_share_parts",
    "gpuos_share_fits",
    "gpuos_mem_beyond",
    "gpuos_vetoes",
    "gpuos_hosts",
    "ngpus",
];

/// A file of this crate.
pub fn own(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// libgpuos_pbs_hook.so as users get it.
pub fn library() -> PathBuf {
    gpuos_tests::plugins::built().join("libgpuos_pbs_hook.so")
}

/// The command `gpuos`.
pub fn command() -> PathBuf {
    gpuos_tests::plugins::programs().join("gpuos")
}

/// Whether the hook can be run here; where it cannot, one line says so.
pub fn has_python() -> bool {
    let there = Command::new("python3").arg("--version").output().is_ok();
    if !there {
        eprintln!("skipped: python3 is not here; scripts/needs.sh lab installs it");
    }
    there
}

/// A Python of the oldest release that the hook is for, in `PATH` or among those of pyenv in the user's home; where there is none, one line says so.
pub fn oldest_python() -> Option<PathBuf> {
    let kept = std::env::var_os("HOME").map(|home| Path::new(&home).join(".pyenv/versions"));
    let kept = kept.and_then(|folder| std::fs::read_dir(folder).ok());
    let kept = kept.into_iter().flatten().filter_map(Result::ok);
    let kept = kept.map(|one| one.path().join("bin/python3.6"));
    // A shim of pyenv may stand for one that is not chosen.
    let is = |python: &PathBuf| {
        let said = Command::new(python).arg("--version").output();
        said.is_ok_and(|said| said.stdout.starts_with(b"Python 3.6."))
    };
    let found = std::iter::once(PathBuf::from("python3.6"))
        .chain(kept)
        .find(is);
    if found.is_none() {
        eprintln!("skipped: no python3.6 is here, in PATH or ~/.pyenv/versions");
    }
    found
}

/// A program for python3, with what it has on standard input; answers its standard output and error.
pub fn python(arguments: &[&Path], input: &str, environment: &[(&str, &str)]) -> (String, String) {
    python_of("python3".as_ref(), arguments, input, environment)
}

/// The same for one of several.
pub fn python_of(
    program: &Path,
    arguments: &[&Path],
    input: &str,
    environment: &[(&str, &str)],
) -> (String, String) {
    let mut python = Command::new(program);
    python
        .args(arguments)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .envs(environment.iter().copied());
    let pipes = python
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut running = pipes.spawn().expect("python3 starts");
    let mut to = running.stdin.take().expect("a pipe");
    let input = input.to_owned();
    let writes = std::thread::spawn(move || {
        // Who ends before reads no more.
        let _ = to.write_all(input.as_bytes());
    });
    let done = running.wait_with_output().expect("python3 ends");
    writes.join().expect("all was written");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    let (out, error) = (text(done.stdout), text(done.stderr));
    assert!(done.status.success(), "{}: {error}", done.status);
    (out, error)
}

/// The hook with a configuration.
pub struct Hook {
    folder: TempDir,
}

impl Hook {
    /// With command and library as they are, and these hosts.
    pub fn new(hosts: &Value) -> Hook {
        Hook::with(
            &json!({ "command": command(), "library": library(), "hosts": hosts }).to_string(),
        )
    }

    /// With this text for a configuration.
    pub fn with(config: &str) -> Hook {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("hook.json"), config).expect("a file");
        Hook { folder }
    }

    /// A file beside the configuration.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// What comes of events, one after another in one python3. A line `log=` is what the hook told PBS's log, and `note=` the program. The hook waits for the
    /// command for a minute, so that what comes of an event is not a matter of how busy this machine is.
    pub fn run(&self, events: &[&str]) -> Vec<String> {
        self.run_patiently("60", events)
    }

    /// The same with the patience of users' hooks, or any other, in seconds.
    pub fn run_patiently(&self, patience: &str, events: &[&str]) -> Vec<String> {
        self.run_by("python3".as_ref(), patience, events)
    }

    /// The same by one of several Pythons.
    pub fn run_by(&self, program: &Path, patience: &str, events: &[&str]) -> Vec<String> {
        let all: String = events
            .iter()
            .map(|event| format!("{}\n%%\n", event.trim()))
            .collect();
        let (runner, hook) = (own("tests/stand_in/run.py"), own("gpuos_hook.py"));
        let mut arguments: Vec<&Path> = vec![&runner, &hook, patience.as_ref()];
        arguments.extend(RESOURCES.iter().map(Path::new));
        let config = self.path("hook.json");
        let environment = [("PBS_HOOK_CONFIG_FILE", config.to_str().expect("text"))];
        let (out, error) = python_of(program, &arguments, &all, &environment);
        assert_eq!(
            error, "",
            "a hook writes only notes: its standard error is the user's"
        );
        let outcomes: Vec<String> = out.split_terminator("%%\n").map(String::from).collect();
        assert_eq!(outcomes.len(), events.len(), "{out}");
        outcomes
    }

    /// What comes of one event.
    pub fn one(&self, event: &str) -> String {
        self.run(&[event]).remove(0)
    }
}

/// A job without anything to say to gpuos, and what comes of it.
pub const PLAIN: &str =
    "pbs.event().type=queuejob\npbs.event().job.Resource_List[select]=1:ncpus=1:ngpus=1";
/// One that says something.
pub const ASKING: &str = "pbs.event().type=queuejob\npbs.event().job.Resource_List[select]=8:ngpus=8\npbs.event().job.Resource_List[gpuos_topology]=leaf";
/// What comes of an event that goes on as it is.
pub const ACCEPTED: &str = "pbs.event().accept=True\npbs.event().reject=False\n";
