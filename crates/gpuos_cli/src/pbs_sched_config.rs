//! pbs_sched's configuration: its line `resources:` is changed at an install and is what it was after a removal.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use gpuos_host::{Machine, ThisMachine};
use gpuos_pbs::pbs_conf::{HOME, value};
use gpuos_pbs::sched_config::{Change, line, resources, with, without};

use crate::reply::out;

/// How long it may take to tell pbs_sched.
const LIMIT: Duration = Duration::from_secs(10);

/// The file.
pub struct SchedConfig {
    path: PathBuf,
    /// Its text, or why it cannot be read.
    text: Result<String, String>,
}

/// A change that is to be made.
pub struct Edit {
    path: PathBuf,
    /// The new text, and what was changed; `None`: nothing is to be changed.
    new: Option<(String, Change)>,
    /// What an administrator does himself.
    note: String,
}

impl SchedConfig {
    /// The file that is named, or that of the PBS with this pbs.conf.
    pub fn of(named: Option<&Path>, pbs_conf: &str) -> SchedConfig {
        let path = match named {
            Some(path) => path.to_path_buf(),
            None => Path::new(value(pbs_conf, "PBS_HOME").unwrap_or(HOME))
                .join("sched_priv/sched_config"),
        };
        let text = fs::read_to_string(&path).map_err(|why| why.to_string());
        SchedConfig { path, text }
    }

    /// What has these resources looked at. `known`: what an install before this one has changed, whose line of before stays noted.
    pub fn with(self, names: &[&str], known: Option<&Change>) -> Edit {
        let SchedConfig { path, text } = self;
        let text = match text {
            Ok(text) => text,
            Err(why) => {
                let note = format!(
                    "{} cannot be read ({why}): have its line `resources:` name {}, and send pbs_sched a HUP.\n",
                    path.display(),
                    names.join(", ")
                );
                return Edit {
                    path,
                    new: None,
                    note,
                };
            }
        };
        let file = path.to_string_lossy().into_owned();
        let new = with(&text, names).map(|(text, change)| {
            let known = known.filter(|known| known.file == file && known.after == change.before);
            let before = known.map_or(change.before, |known| known.before.clone());
            (
                text,
                Change {
                    file,
                    before,
                    ..change
                },
            )
        });
        Edit {
            path,
            new,
            note: String::new(),
        }
    }

    /// What takes a change back.
    pub fn without(self, change: &Change) -> Edit {
        let SchedConfig { path, text } = self;
        let new = text.as_ref().ok().and_then(|text| without(text, change));
        let note = match &new {
            Some(_) => String::new(),
            None => {
                let has = text.as_ref().map(|text| resources(text).join(", "));
                format!(
                    "The line `resources:` of {} is not as gpuos pbs install left it, and stays ({}).\n",
                    path.display(),
                    has.unwrap_or_else(|why| why.clone())
                )
            }
        };
        Edit {
            path,
            new: new.map(|text| (text, change.clone())),
            note,
        }
    }
}

impl Edit {
    /// What is changed; `None`: nothing.
    pub fn change(&self) -> Option<Change> {
        self.new.as_ref().map(|(_, change)| change.clone())
    }

    /// Writes it and has pbs_sched read it. What is to be said besides.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn apply(self, dry_run: bool, json: bool) -> Result<String> {
        let Some((text, _)) = self.new else {
            return Ok(self.note);
        };
        let file = self.path.display();
        if !json {
            out(&format!(
                "{file}: {}\n",
                line(&text).unwrap_or("no line resources:")
            ));
        }
        if dry_run {
            return Ok(self.note);
        }
        let was = fs::metadata(&self.path).with_context(|| format!("cannot read {file}"))?;
        let folder = self.path.parent().unwrap_or(Path::new("/"));
        let new = tempfile::NamedTempFile::new_in(folder)
            .with_context(|| format!("cannot write in {}", folder.display()))?;
        fs::write(new.path(), &text).with_context(|| format!("cannot write {file}"))?;
        fs::set_permissions(new.path(), was.permissions())
            .with_context(|| format!("cannot write {file}"))?;
        new.persist(&self.path)
            .with_context(|| format!("cannot write {file}"))?;
        Ok(self.note + &told(folder))
    }
}

/// Has pbs_sched read its configuration anew; what an administrator does where that is not possible.
fn told(folder: &Path) -> String {
    let pid = fs::read_to_string(folder.join("sched.lock")).unwrap_or_default();
    let pid = pid.trim();
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let is_number = !pid.is_empty() && pid.bytes().all(|byte| byte.is_ascii_digit());
    let done = is_number
        && name.starts_with("pbs_sched")
        && ThisMachine
            .run_within(LIMIT, "kill", &["-HUP", pid])
            .is_ok_and(|done| done.ok);
    match done {
        true => String::new(),
        false => "Send pbs_sched a HUP, so that it reads its configuration anew.\n".into(),
    }
}
