//! Where the programs and plugins of a Slurm release are.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Context, LabError};
use crate::spec::Suite;
use crate::sys::{ChildSetup, View, c_path, short_hostname};

/// Folders of system programs; not in every root's PATH.
const PROGRAM_DIRS: [&str; 6] = [
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
];

/// What to install for a lab of the native Slurm.
const PACKAGES: &str = "on Debian: apt-get install slurmctld slurmd slurm-client munge";

/// An installed Slurm.
#[derive(Clone, Debug)]
pub(crate) struct Install {
    /// Root directory that it lives in; `None` = this machine's.
    pub(crate) root: Option<PathBuf>,
    /// PATH for its programs, as seen from its root.
    pub(crate) path: String,
    /// Its plugin folder, as seen from its root.
    pub(crate) plugin_dir: PathBuf,
    /// Its release, for example `22.05.8`.
    pub(crate) version: String,
}

impl Install {
    /// The loopback address that this host's own name stands for; `None` when it stands for
    /// another address or none. Slurm listens on that address only, or else on all interfaces.
    pub(crate) fn loopback(&self) -> Option<Ipv4Addr> {
        if self.root.is_some() {
            // The root has a hosts file of the lab's own.
            return Some(Ipv4Addr::LOCALHOST);
        }
        let found = (short_hostname().as_str(), 0).to_socket_addrs().ok()?;
        let all: Vec<Ipv4Addr> = found
            .filter_map(|address| match address.ip() {
                IpAddr::V4(v4) => Some(v4),
                IpAddr::V6(_) => None,
            })
            .collect();
        let first = *all.first()?;
        all.iter().all(Ipv4Addr::is_loopback).then_some(first)
    }

    /// Finds the Slurm of this machine or of a prefix, or the one in the root of a suite.
    pub(crate) fn find(suite: &Suite, root: Option<PathBuf>) -> Result<Install, LabError> {
        let mut dirs: Vec<String> = PROGRAM_DIRS.map(String::from).to_vec();
        if let Suite::Prefix(prefix) = suite {
            for sub in ["bin", "sbin"] {
                dirs.insert(0, format!("{}/{sub}", prefix.display()));
            }
        } else if root.is_none() {
            let own = std::env::var("PATH").unwrap_or_default();
            let own: Vec<String> = own.split(':').map(String::from).collect();
            let more: Vec<String> = dirs.drain(..).filter(|dir| !own.contains(dir)).collect();
            dirs = own.into_iter().chain(more).collect();
        }
        let find = |program: &str| find_in(&dirs, root.as_deref(), program);
        for program in ["slurmctld", "slurmd", "munged", "sinfo", "scontrol"] {
            if find(program).is_none() {
                return Err(LabError::Missing {
                    program: program.to_string(),
                    fix: match suite {
                        Suite::Native => PACKAGES.to_string(),
                        Suite::Prefix(prefix) => {
                            format!("it is neither below {} nor in PATH", prefix.display())
                        }
                        Suite::Debian(name) => format!(
                            "the folder of suite {name} is incomplete: remove it, the next start makes it anew"
                        ),
                    },
                });
            }
        }
        let version = version(root.as_deref(), &find("slurmctld").unwrap_or_default())?;
        let plugin_dir = plugin_dir(suite, root.as_deref()).ok_or_else(|| LabError::Missing {
            program: "select_cons_tres.so".to_string(),
            fix: "Slurm's plugin folder was not found below /usr/lib, /usr/lib64 or /usr/local/lib: install Slurm's plugins".to_string(),
        })?;
        Ok(Install {
            root,
            path: dirs.join(":"),
            plugin_dir,
            version,
        })
    }

    /// Whether a program is there.
    pub(crate) fn has(&self, program: &str) -> bool {
        let dirs: Vec<String> = self.path.split(':').map(String::from).collect();
        find_in(&dirs, self.root.as_deref(), program).is_some()
    }
}

fn find_in(dirs: &[String], root: Option<&Path>, program: &str) -> Option<PathBuf> {
    dirs.iter()
        .map(|dir| Path::new(dir).join(program))
        .find(|path| inside(root, path).is_file())
}

/// A path of a root as this process sees it.
pub(crate) fn inside(root: Option<&Path>, path: &Path) -> PathBuf {
    match root {
        None => path.to_path_buf(),
        Some(root) => root.join(path.strip_prefix("/").unwrap_or(path)),
    }
}

fn version(root: Option<&Path>, slurmctld: &Path) -> Result<String, LabError> {
    let mut command = Command::new(slurmctld);
    command.arg("-V");
    if let Some(root) = root {
        ChildSetup {
            new_session: false,
            cgroups: Vec::new(),
            view: View::Build(Vec::new(), c_path(root)),
        }
        .apply(&mut command);
    }
    let out = command
        .output()
        .context(|| format!("cannot run {} -V", slurmctld.display()))?;
    // "slurm 22.05.8" or "slurm-wlm 22.05.8".
    let text = String::from_utf8_lossy(&out.stdout);
    let version = text.split_ascii_whitespace().last().unwrap_or_default();
    if !out.status.success() || !version.starts_with(|c: char| c.is_ascii_digit()) {
        return Err(LabError::Command {
            command: format!("{} -V", slurmctld.display()),
            status: out.status.to_string(),
            stderr: format!("{text}{}", String::from_utf8_lossy(&out.stderr)),
        });
    }
    Ok(version.to_string())
}

fn plugin_dir(suite: &Suite, root: Option<&Path>) -> Option<PathBuf> {
    let mut candidates = Vec::new();
    let mut lib_dirs = vec!["/usr/local/lib", "/usr/lib64", "/usr/lib"]
        .into_iter()
        .map(PathBuf::from)
        .collect::<Vec<_>>();
    if let Suite::Prefix(prefix) = suite {
        lib_dirs = vec![prefix.join("lib"), prefix.join("lib64")];
    }
    for lib in lib_dirs {
        candidates.push(lib.join("slurm"));
        candidates.push(lib.join("slurm-wlm"));
        for entry in fs::read_dir(inside(root, &lib))
            .into_iter()
            .flatten()
            .flatten()
        {
            // Debian's architecture folders, for example x86_64-linux-gnu.
            if entry.file_name().to_string_lossy().contains("-linux-") {
                candidates.push(lib.join(entry.file_name()).join("slurm-wlm"));
                candidates.push(lib.join(entry.file_name()).join("slurm"));
            }
        }
    }
    candidates
        .into_iter()
        .find(|dir| inside(root, &dir.join("select_cons_tres.so")).is_file())
}
