//! The PBS that the tests run on: an installed one that `$GPUOS_TEST_PBS` names, for example `/opt/pbs`, or the stand-in of
//! `tests/pbs_stand_in`, which has no scheduler. What it cannot show is skipped, and counted.

use std::env;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::{skip, suites};

/// What a test needs of PBS that not every PBS of the tests has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Needs {
    /// Decisions of pbs_sched.
    Scheduler,
    /// What the stand-in leaves out: reservations, arrays, hooks that come with PBS, measurements.
    RealPbs,
}

impl Needs {
    fn words(self) -> &'static str {
        match self {
            Needs::Scheduler => "the scheduler of PBS",
            Needs::RealPbs => "a real PBS",
        }
    }
}

/// The prefix of the PBS for a test that needs no scheduler; `None`, and a line on standard error, where labs are not to run.
pub fn pbs(what: &str) -> Option<PathBuf> {
    if let Some(prefix) = named() {
        return Some(prefix);
    }
    if suites().is_empty() {
        skipped(what, "labs");
        return None;
    }
    Some(stand_in().to_path_buf())
}

/// The same for a test that needs more than the stand-in has.
pub fn pbs_with(what: &str, needs: Needs) -> Option<PathBuf> {
    let real = named().filter(|prefix| !is_stand_in(prefix));
    if real.is_none() {
        skipped(what, needs.words());
    }
    real
}

/// Whether the PBS of this prefix starts no job by itself.
pub fn is_stand_in(prefix: &Path) -> bool {
    prefix.join("etc/pbs_stand_in").is_file()
}

fn named() -> Option<PathBuf> {
    let prefix = env::var_os("GPUOS_TEST_PBS").filter(|prefix| !prefix.is_empty());
    prefix.map(PathBuf::from)
}

/// Says that a test of PBS is skipped, and adds a line `needs<tab>what` to the file that `$GPUOS_SKIPPED` names.
fn skipped(what: &str, needs: &str) {
    skip(
        what,
        &format!("it needs {needs}, and GPUOS_TEST_PBS names no installed PBS"),
    );
    let Some(path) = env::var_os("GPUOS_SKIPPED") else {
        return;
    };
    // One write of one line to a file that is only added to: tests beside this one write there too.
    let file = OpenOptions::new().create(true).append(true).open(&path);
    let line = format!("{needs}\t{what}\n");
    if let Err(e) = file.and_then(|mut file| file.write_all(line.as_bytes())) {
        eprintln!("GPUOS_SKIPPED={}: {e}", path.display());
    }
}

/// The stand-in, laid out beside this program: where users of labs can run it, as they run what is built.
fn stand_in() -> &'static Path {
    static LAID_OUT: OnceLock<PathBuf> = OnceLock::new();
    LAID_OUT.get_or_init(|| {
        let own = env::current_exe().expect("own path");
        let prefix = own.with_file_name("pbs_stand_in");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("pbs_stand_in/lay_out.py");
        let out = Command::new("python3").arg(&script).arg(&prefix).output();
        let out = out.expect("python3 runs");
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{}: {said}", script.display());
        prefix
    })
}
