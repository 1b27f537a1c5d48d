//! A Slurm source tree: which release it is, and its headers through bindgen.

use std::fs;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};

/// Headers that define the structures of the table, in any release. Those that a release does
/// not have (structures moved to headers of their own over time) are left out.
const HEADERS: &[&str] = &[
    "slurm/slurm.h",
    "slurm/slurmdb.h",
    "src/slurmctld/slurmctld.h",
    "src/common/job_record.h",
    "src/common/part_record.h",
    "src/common/node_conf.h",
    "src/common/job_resources.h",
    "src/common/gres.h",
    "src/interfaces/gres.h",
];

/// A source tree of a known release.
pub struct Source {
    /// Exact release, for example `24.11.5`.
    pub release: String,
    dir: PathBuf,
}

impl Source {
    /// Looks at the tree in `dir`. The release is `release`, or stands in the file META.
    pub fn open(dir: &Path, release: Option<&str>) -> Result<Source> {
        if !dir.join("slurm/slurm.h").is_file() {
            bail!(
                "{} is not a Slurm source directory (it has no slurm/slurm.h): give the unpacked \
                 source of the installed release, for example from `apt-get source slurm-wlm` or \
                 slurm-24.11.5.tar.bz2",
                dir.display()
            );
        }
        let release = match release {
            Some(text) => checked(text).ok_or_else(|| {
                anyhow!("--release {text}: write three numbers, for example 24.11.5")
            })?,
            None => from_meta(dir)?,
        };
        Ok(Source {
            release,
            dir: dir.to_path_buf(),
        })
    }

    /// Rust declarations of everything that the headers define, with bindgen's layout tests:
    /// they carry the offsets.
    pub fn bindings(&self) -> Result<String> {
        let temp = tempfile::tempdir().context("cannot make a temporary directory")?;
        self.stand_ins(temp.path())?;
        let mut all = String::from("#include \"config.h\"\n");
        for header in HEADERS.iter().filter(|h| self.dir.join(h).is_file()) {
            all.push_str(&format!("#include \"{header}\"\n"));
        }
        let all_h = temp.path().join("all.h");
        fs::write(&all_h, all)?;

        let builder = bindgen::Builder::default()
            .header(all_h.display().to_string())
            .clang_arg(format!("-I{}", temp.path().display()))
            .clang_arg(format!("-I{}", self.dir.display()))
            // Tags keep their own name space, so that `struct x` and a typedef `x` stay apart.
            .c_naming(true)
            .layout_tests(true)
            .ignore_functions()
            .derive_debug(false)
            .derive_copy(false)
            .generate_comments(false)
            .formatter(bindgen::Formatter::None);
        // bindgen panics when there is no libclang: that is an error for a person to read.
        let hook = panic::take_hook();
        panic::set_hook(Box::new(|_| {}));
        let outcome = panic::catch_unwind(AssertUnwindSafe(|| builder.generate()));
        panic::set_hook(hook);
        match outcome {
            Ok(Ok(bindings)) => Ok(bindings.to_string()),
            Ok(Err(e)) => bail!(
                "clang cannot read the headers in {}: {}\nIf a system header is missing, install \
                 the build dependencies of Slurm (`apt-get build-dep slurm-wlm`) and try again",
                self.dir.display(),
                e.to_string().lines().take(6).collect::<Vec<_>>().join("\n")
            ),
            Err(panic) => {
                let why = panic
                    .downcast_ref::<String>()
                    .map(String::as_str)
                    .or_else(|| panic.downcast_ref::<&str>().copied())
                    .unwrap_or("unknown reason");
                bail!(
                    "bindgen failed: {why}\nIt needs libclang: install libclang-dev (Debian) or \
                     clang-libs (RHEL), or set LIBCLANG_PATH to the directory of libclang.so"
                )
            }
        }
    }

    /// Writes what `configure` would have made, where the tree is not configured. None of the
    /// structures depends on anything in config.h but the release.
    fn stand_ins(&self, temp: &Path) -> Result<()> {
        if !self.dir.join("config.h").is_file() {
            fs::write(temp.join("config.h"), "")?;
        }
        let numbers = self.release.replace('.', ",");
        // A leading zero would make it an octal constant.
        let numbers: Vec<&str> = numbers
            .split(',')
            .map(|n| match n.trim_start_matches('0') {
                "" => "0",
                n => n,
            })
            .collect();
        let dir = temp.join("slurm");
        fs::create_dir(&dir)?;
        fs::write(
            dir.join("slurm_version.h"),
            format!(
                "#define SLURM_VERSION_NUM(a,b,c) (((a) << 16) + ((b) << 8) + (c))\n\
                 #define SLURM_VERSION_MAJOR(a) (((a) >> 16) & 0xff)\n\
                 #define SLURM_VERSION_MINOR(a) (((a) >> 8) & 0xff)\n\
                 #define SLURM_VERSION_MICRO(a) ((a) & 0xff)\n\
                 #define SLURM_VERSION_NUMBER SLURM_VERSION_NUM({})\n",
                numbers.join(",")
            ),
        )?;
        Ok(())
    }
}

/// The release in META, the file that Slurm's build takes it from.
fn from_meta(dir: &Path) -> Result<String> {
    let path = dir.join("META");
    let text = fs::read_to_string(&path).with_context(|| {
        format!(
            "cannot read {}, which names the release: give it with --release, for example \
             --release 24.11.5",
            path.display()
        )
    })?;
    let version = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("Version:"))
        .map(str::trim)
        .with_context(|| format!("{} has no line Version:", path.display()))?;
    checked(version).ok_or_else(|| {
        anyhow!(
            "{} says {version}, which is no release: gpuos wants the exact one, for example \
             24.11.5; name it with --release if you are sure",
            path.display()
        )
    })
}

/// `text` if it is a release: three numbers with dots.
fn checked(text: &str) -> Option<String> {
    let parts: Vec<&str> = text.split('.').collect();
    let number = |p: &&str| (1..=3).contains(&p.len()) && p.bytes().all(|b| b.is_ascii_digit());
    (parts.len() == 3 && parts.iter().all(number)).then(|| text.to_string())
}
