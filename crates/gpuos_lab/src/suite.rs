//! Folders with the Slurm of Debian suites: made once by debootstrap from the mirror that this
//! machine is configured for, then used read-only by any number of labs.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::apt;
use crate::chroot;
use crate::error::{Context, LabError};
use crate::process::MARK;
use crate::sys::{self, ChildSetup, View};

/// Packages that a lab needs of a suite.
const PACKAGES: &str = "slurmctld,slurmd,slurm-client,slurm-wlm-basic-plugins,munge,slurmrestd";

/// Debian suites with a Slurm that gpuos has layouts for.
const SUPPORTED: [&str; 7] = [
    "bookworm", "trixie", "forky", "sid", "stable", "testing", "unstable",
];

/// Suites whose Slurm is older than 22.05, the first that gpuos knows.
const TOO_OLD: [(&str, &str); 4] = [
    ("bullseye", "20.11"),
    ("buster", "18.08"),
    ("stretch", "16.05"),
    ("jessie", "14.03"),
];

/// Refuses a suite in which no lab can run, before anything of it is fetched. One whose folder is there already, made by
/// hand or by another release of gpuos, is taken as it is.
pub(crate) fn supported(name: &str) -> Result<(), LabError> {
    if SUPPORTED.contains(&name) || cache_dir().join(name).is_dir() {
        return Ok(());
    }
    let known =
        "native, bookworm, trixie, forky or sid, or the absolute path of an installed Slurm";
    let old = TOO_OLD.iter().find(|(old, _)| *old == name);
    Err(LabError::Spec(match old {
        Some((_, release)) => format!(
            "--slurm {name}: Debian {name} has Slurm {release}, and gpuos works from 22.05 on; give {known}"
        ),
        None => format!(
            "--slurm {name}: no Debian suite of that name has a Slurm that gpuos knows; give {known}"
        ),
    }))
}

/// Folder of the suites: `$GPUOS_LAB_CACHE`, else `/var/cache/gpuos/suites`, or
/// `gpuos/suites` in the user's cache folder where that cannot be written.
pub fn cache_dir() -> PathBuf {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(dir) = set("GPUOS_LAB_CACHE") {
        return PathBuf::from(dir);
    }
    let system = PathBuf::from("/var/cache/gpuos/suites");
    if system.is_dir() || fs::create_dir_all(&system).is_ok() {
        return system;
    }
    let home = set("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| set("HOME").map(|home| PathBuf::from(home).join(".cache")));
    home.map_or(system, |dir| dir.join("gpuos/suites"))
}

fn failed(suite: &str, what: impl Into<String>, fix: impl Into<String>) -> LabError {
    LabError::Suite {
        suite: suite.to_string(),
        what: what.into(),
        fix: fix.into(),
    }
}

/// The folder of a suite; makes it when there is none. `id` is that of the lab that waits for
/// it: its guard ends debootstrap and removes what is half done.
pub(crate) fn root(
    name: &str,
    id: &str,
    progress: &mut dyn FnMut(&str),
) -> Result<PathBuf, LabError> {
    let cache = cache_dir();
    let dir = cache.join(name);
    if dir.is_dir() {
        return Ok(dir);
    }
    let program = ["/usr/sbin/debootstrap", "/usr/local/sbin/debootstrap"]
        .into_iter()
        .find(|path| Path::new(path).is_file())
        .ok_or_else(|| LabError::Missing {
            program: "debootstrap".to_string(),
            fix: format!("it makes the folder with Slurm of Debian {name}: apt-get install debootstrap, or use --slurm native"),
        })?;
    let source = mirror(name)?;
    fs::create_dir_all(&cache).context(|| format!("cannot make {}", cache.display()))?;
    progress(&format!("{name}: waiting for the folder of suites"));
    let lock = cache.join(format!(".{name}.lock"));
    let _lock = sys::lock(&lock).context(|| format!("cannot lock {}", lock.display()))?;
    if dir.is_dir() {
        return Ok(dir);
    }
    // Nobody else works under this lock: these are of builds that were cut off.
    for entry in fs::read_dir(&cache).into_iter().flatten().flatten() {
        let file = entry.file_name();
        if file.to_string_lossy().starts_with(&format!("{name}.tmp-")) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    let new = cache.join(format!("{name}.tmp-{id}"));
    progress(&format!(
        "{name}: debootstrap from {} into {} (about 300 MB, a minute or two, once)",
        source.uri,
        dir.display()
    ));
    let result = debootstrap(program, name, id, &source, &new, progress);
    let result = result.and_then(|()| {
        for waste in ["var/cache/apt/archives", "var/lib/apt/lists"] {
            let _ = fs::remove_dir_all(new.join(waste));
        }
        chroot::prepare(&new)?;
        fs::rename(&new, &dir).context(|| format!("cannot make {}", dir.display()))
    });
    if result.is_err() {
        let _ = fs::remove_dir_all(&new);
    }
    result.map(|()| dir)
}

fn mirror(suite: &str) -> Result<apt::Source, LabError> {
    if let Ok(uri) = std::env::var("GPUOS_LAB_MIRROR") {
        return Ok(apt::Source {
            uri,
            ..apt::Source::default()
        });
    }
    let os_release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let own = apt::own_suite(&os_release);
    apt::debian_archive(Path::new("/etc/apt"), &own).ok_or_else(|| {
        failed(
            suite,
            "no source below /etc/apt is the Debian archive",
            "set GPUOS_LAB_MIRROR to a mirror of it, for example http://deb.debian.org/debian, or use --slurm native",
        )
    })
}

fn debootstrap(
    program: &str,
    suite: &str,
    id: &str,
    source: &apt::Source,
    dir: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<(), LabError> {
    let mut command = Command::new(program);
    command
        .args(["--variant=minbase", &format!("--include={PACKAGES}")])
        .args(
            source
                .keyring
                .iter()
                .map(|k| format!("--keyring={}", k.display())),
        )
        .arg(suite)
        .arg(dir)
        .arg(&source.uri)
        .env(
            "PATH",
            "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        )
        .env("LC_ALL", "C")
        .env("DEBIAN_FRONTEND", "noninteractive")
        .env(MARK, id)
        .envs(proxy())
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    // It mounts /proc in the folder; in a namespace of its own that cannot be left over.
    ChildSetup {
        new_session: true,
        cgroups: Vec::new(),
        view: View::Private,
    }
    .apply(&mut command);
    let mut child = command.spawn().map_err(|e| LabError::Machine {
        what: format!("cannot start debootstrap in a mount namespace of its own: {e}"),
        fix: "a container needs CAP_SYS_ADMIN for it; or use --slurm native".to_string(),
    })?;
    let mut problem = String::new();
    let mut phase = String::new();
    let mut count = 0;
    // Messages are `I: Retrieving libc6 2.41`, `W: …`, `E: …`.
    for line in child
        .stdout
        .take()
        .into_iter()
        .flat_map(|out| BufReader::new(out).lines())
        .map_while(Result::ok)
    {
        if let Some(text) = line.strip_prefix("E: ").or(line.strip_prefix("W: ")) {
            problem = text.to_string();
        } else if let Some(text) = line.strip_prefix("I: ") {
            let verb = text.split(' ').next().unwrap_or_default();
            // Stands between any two packages retrieved.
            if verb == "Validating" {
                continue;
            }
            count += 1;
            if verb != phase {
                phase = verb.to_string();
                count = 1;
            }
            if count == 1 || count % 25 == 0 {
                progress(&format!("{suite}: {text}"));
            }
        }
    }
    let status = child
        .wait()
        .context(|| "cannot wait for debootstrap".to_string())?;
    if status.success() {
        return Ok(());
    }
    let log = fs::read_to_string(dir.join("debootstrap/debootstrap.log")).unwrap_or_default();
    Err(explain(suite, &source.uri, &problem, &log))
}

/// Tells what failed from debootstrap's last complaint and its log.
fn explain(suite: &str, uri: &str, problem: &str, log: &str) -> LabError {
    let last: Vec<&str> = log.lines().rev().take(4).collect();
    let last: Vec<&str> = last.into_iter().rev().collect();
    let what = format!("debootstrap of {suite} from {uri} failed: {problem}");
    let lower = problem.to_ascii_lowercase();
    if lower.contains("no such script") {
        let fix = "give the name of a Debian suite, for example trixie or sid";
        failed(suite, what, fix)
    } else if ["release", "download", "retriev", "packages.xz", "get"]
        .iter()
        .any(|word| lower.contains(word))
    {
        let fix = "check the network and the mirror, or set GPUOS_LAB_MIRROR to another one";
        failed(suite, what, fix)
    } else {
        let fix = format!(
            "a package of {suite} is broken at present or the disk is full; try again later, or use --slurm native; its log ends with: {}",
            last.join(" | ")
        );
        failed(suite, what, fix)
    }
}

/// apt's proxy, where the environment names none.
fn proxy() -> Option<(String, String)> {
    if std::env::var_os("http_proxy").is_some() {
        return None;
    }
    let out = Command::new("apt-config")
        .args(["shell", "PROXY", "Acquire::http::Proxy"])
        .output()
        .ok()?;
    let text = String::from_utf8(out.stdout).ok()?;
    let value = text.trim().strip_prefix("PROXY='")?.strip_suffix('\'')?;
    (!value.is_empty() && value != "DIRECT").then(|| ("http_proxy".to_string(), value.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suites_without_a_slurm_that_is_known_are_refused() {
        for name in ["bookworm", "trixie", "sid"] {
            assert!(supported(name).is_ok(), "{name}");
        }
        for (name, words) in [
            ("bullseye", "has Slurm 20.11, and gpuos works from 22.05 on"),
            ("jammy", "no Debian suite of that name"),
            ("trixy", "give native, bookworm, trixie"),
        ] {
            let told = supported(name).unwrap_err().to_string();
            assert!(told.contains(words), "{told}");
        }
    }

    #[test]
    fn complaints_are_told_apart() {
        let text = |problem: &str| {
            let error = explain("sid", "http://m/debian", problem, "a\nb\n");
            assert!(error.is_environment());
            error.to_string()
        };
        let network = text("Failed getting release file http://m/debian/dists/sid/Release");
        assert!(network.contains("check the network"), "{network}");
        let package = text("Failure while configuring required packages.");
        assert!(package.contains("is broken at present"), "{package}");
        assert!(package.contains("a | b"), "{package}");
        let name = text("No such script: /usr/share/debootstrap/scripts/sidd");
        assert!(name.contains("name of a Debian suite"), "{name}");
    }
}
