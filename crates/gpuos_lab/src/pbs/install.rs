//! Where a PBS is, and the programs of the machine that a lab of it needs.

use std::env;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::LabError;

/// Folders of system programs; not in every root's PATH.
const SYSTEM: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What an installation has, below its prefix.
const PROGRAMS: [&str; 10] = [
    "sbin/pbs_server",
    "sbin/pbs_sched",
    "sbin/pbs_comm",
    "sbin/pbs_mom",
    "bin/qmgr",
    "bin/qstat",
    "bin/qsub",
    "bin/qterm",
    "bin/pbsnodes",
    "libexec/pbs_habitat",
];

/// What makes namespaces and links, and the Debian package that has it.
const TOOLS: [(&str, &str); 5] = [
    ("unshare", "util-linux"),
    ("nsenter", "util-linux"),
    ("setpriv", "util-linux"),
    ("mount", "mount"),
    ("ip", "iproute2"),
];

/// An installed PBS.
#[derive(Clone, Debug)]
pub(crate) struct Install {
    /// The folder that it is installed under.
    pub(crate) prefix: PathBuf,
    /// Its release, for example `23.06.06`.
    pub(crate) version: String,
}

impl Install {
    /// The PBS under a prefix.
    ///
    /// # Errors
    /// There is none, it does not say its release, or a program of the machine is missing.
    pub(crate) fn find(prefix: &Path) -> Result<Install, LabError> {
        let missing: Vec<&str> = PROGRAMS
            .into_iter()
            .filter(|program| !prefix.join(program).is_file())
            .collect();
        if !missing.is_empty() {
            return Err(LabError::Spec(format!(
                "--pbs {}: no PBS server is installed there, {} is missing: give the prefix of an OpenPBS or PBS Professional \
                 with server, scheduler, communication daemon and MoM, for example /opt/pbs",
                prefix.display(),
                missing.join(", ")
            )));
        }
        if let Some((program, package)) = TOOLS.iter().find(|(program, _)| !is_in(program, SYSTEM))
        {
            return Err(LabError::Missing {
                program: program.to_string(),
                fix: format!("on Debian: apt-get install {package}"),
            });
        }
        let helper = prefix.join("sbin/pbs_iff");
        if !fs::metadata(&helper).is_ok_and(|data| data.mode() & 0o4000 != 0 && data.uid() == 0) {
            return Err(LabError::Machine {
                what: format!(
                    "{} is not setuid root, so that PBS takes no jobs of users",
                    helper.display()
                ),
                fix: format!(
                    "as PBS's INSTALL says: chmod 4755 {0}/sbin/pbs_iff {0}/sbin/pbs_rcp",
                    prefix.display()
                ),
            });
        }
        let qstat = prefix.join("bin/qstat");
        let out = Command::new(&qstat).arg("--version").output();
        let out = out.map_err(|source| LabError::Io {
            what: format!("cannot run {}", qstat.display()),
            source,
        })?;
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        // "pbs_version = 23.06.06"
        let version = text.split('=').nth(1).unwrap_or_default().trim();
        if version.is_empty() {
            let errors = String::from_utf8_lossy(&out.stderr).into_owned();
            return Err(LabError::Command {
                command: format!("{} --version", qstat.display()),
                status: "it names no release".to_string(),
                stderr: format!("{text}{errors}"),
            });
        }
        Ok(Install {
            prefix: prefix.to_path_buf(),
            version: version.to_string(),
        })
    }

    /// PATH in a lab: the folder given, PBS's programs, the system's, then what the caller has.
    pub(crate) fn path(&self, tools: &Path) -> String {
        let (tools, prefix) = (tools.display(), self.prefix.display());
        let callers = env::var("PATH").unwrap_or_default();
        let all = format!("{tools}:{prefix}/bin:{prefix}/sbin:{SYSTEM}:{callers}");
        all.trim_end_matches(':').to_string()
    }
}

fn is_in(program: &str, path: &str) -> bool {
    path.split(':')
        .any(|folder| Path::new(folder).join(program).is_file())
}
