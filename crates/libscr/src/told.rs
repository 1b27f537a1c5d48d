//! What a run is told by SCR's settings: variables of the environment, the user's file (`SCR_CONF_FILE`, or `.scrconf` in the prefix), and
//! `SCR_Config`, of which the first that has one counts, as in SCR. Each acts as in SCR, or ends `SCR_Init`, or is named as one without effect.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::settings::{Asked, PREFIX, Settings, read};

/// The file, and its name where no variable has another one.
const FILE: &str = "SCR_CONF_FILE";
const USUAL_FILE: &str = ".scrconf";

const ENABLE: &str = "SCR_ENABLE";
const FETCH: &str = "SCR_FETCH";
const CURRENT: &str = "SCR_CURRENT";
const BYPASS: &str = "SCR_CACHE_BYPASS";
const HALT_ENABLED: &str = "SCR_HALT_ENABLED";

/// Settings that act here.
const ACT: [&str; 7] = [PREFIX, FILE, ENABLE, FETCH, CURRENT, BYPASS, HALT_ENABLED];

/// Those with which SCR does what cannot be done here: the key, and what to do. Values that switch them off do not matter.
const REFUSED: [(&str, &str); 5] = [
    (
        "SCR_HALT_SECONDS",
        "gpuos has the job saved before its time limit by itself, and SCR_Should_exit says so: take the setting away",
    ),
    (
        "SCR_HALT_EXIT",
        "the program is not ended from inside: have it ask SCR_Should_exit, and take the setting away",
    ),
    (
        "SCR_CACHE_PURGE",
        "nothing that is kept is removed by a setting: take it away, and begin anew by SCR_FETCH=0, or remove checkpoints by gpuos ckpt prune JOB",
    ),
    (
        "SCR_PREFIX_PURGE",
        "nothing that is kept is removed by a setting: take it away, and begin anew by SCR_FETCH=0, or remove checkpoints by gpuos ckpt prune JOB",
    ),
    (
        "SCR_GLOBAL_RESTART",
        "ranks find their own files after a restart: take the setting away, and where ranks share files write SCR_CACHE_BYPASS=1",
    ),
];

/// Settings of SCR about what gpuos decides itself. Variables with other names may be anybody's.
const IDLE: [&str; 42] = [
    "SCR_CACHE_BASE",
    "SCR_CACHE_SIZE",
    "SCR_CHECKPOINT_INTERVAL",
    "SCR_CHECKPOINT_OVERHEAD",
    "SCR_CHECKPOINT_SECONDS",
    "SCR_CNTL_BASE",
    "SCR_COPY_TYPE",
    "SCR_CRC_ON_COPY",
    "SCR_CRC_ON_DELETE",
    "SCR_CRC_ON_FETCH",
    "SCR_CRC_ON_FLUSH",
    "SCR_DISTRIBUTE",
    "SCR_DROP_AFTER_CURRENT",
    "SCR_EXCLUDE_NODES",
    "SCR_FETCH_BYPASS",
    "SCR_FETCH_WIDTH",
    "SCR_FILE_BUF_SIZE",
    "SCR_FLUSH",
    "SCR_FLUSH_ASYNC",
    "SCR_FLUSH_ASYNC_BW",
    "SCR_FLUSH_ASYNC_PERCENT",
    "SCR_FLUSH_ASYNC_USLEEP",
    "SCR_FLUSH_ON_RESTART",
    "SCR_FLUSH_POSTSTAGE",
    "SCR_FLUSH_TYPE",
    "SCR_FLUSH_WIDTH",
    "SCR_GROUP",
    "SCR_IGNORE_FAILED_CKPT",
    "SCR_MIN_NODES",
    "SCR_MPI_BUF_SIZE",
    "SCR_PREFIX_SIZE",
    "SCR_PURGE",
    "SCR_RUNS",
    "SCR_SET_FAILURES",
    "SCR_SET_SIZE",
    "SCR_STORE",
    "SCR_TYPE",
    "SCR_USE_CONTAINERS",
    "SCR_USE_CONTAINER",
    "SCR_WATCHDOG",
    "SCR_WATCHDOG_TIMEOUT",
    "SCR_WATCHDOG_TIMEOUT_PFS",
];

/// What it comes to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Told {
    /// The folder above all files, as it was written; empty: the working directory.
    pub(crate) prefix: String,
    /// `SCR_ENABLE`: whether there are checkpoints at all.
    pub(crate) enabled: bool,
    /// `SCR_FETCH`: whether the program goes on from what there is.
    pub(crate) fetches: bool,
    /// `SCR_CURRENT`: the name of the only checkpoint from which it may go on.
    pub(crate) current: Option<String>,
    /// `SCR_CACHE_BYPASS`: ranks may share files.
    pub(crate) shares: bool,
    /// `SCR_HALT_ENABLED`: whether the program is told to end.
    pub(crate) halts: bool,
    /// What is to be said of the others, if there are some.
    pub(crate) idle: Option<String>,
}

/// Whether `SCR_Config` of this key has an effect.
pub(crate) fn acts(key: &str) -> bool {
    ACT.contains(&key) || REFUSED.iter().any(|(refused, _)| *refused == key)
}

/// A value, and where it was written.
type Written = (String, String);

impl Told {
    /// By the environment (`variable` has the value of a name), by the user's file, and by what `SCR_Config` was told. `directory` is where the
    /// program is.
    ///
    /// # Errors
    ///
    /// A sentence: the file cannot be read, or a setting wants what cannot be done.
    pub(crate) fn read(
        variable: impl Fn(&str) -> Option<String>,
        config: &Settings,
        directory: &Path,
    ) -> Result<Told, String> {
        let by_variable = |key: &str| -> Option<Written> {
            let value = variable(key).filter(|value| !value.is_empty())?;
            Some((value, "the environment".to_owned()))
        };
        let by_config = |key: &str| -> Option<Written> {
            Some((config.get(None, key)?.into(), "SCR_Config".to_owned()))
        };
        // Where the file is and what it stands beside cannot be said in it.
        let own = |key: &str| by_variable(key).or_else(|| by_config(key));
        let prefix = own(PREFIX).map_or(String::new(), |(prefix, _)| prefix);
        let file = file(own(FILE), &directory.join(&prefix))?;
        let value = |key: &str| {
            let by_file = || file.get(key).cloned();
            by_variable(key).or_else(by_file).or_else(|| by_config(key))
        };
        for (key, what) in REFUSED {
            if let Some((value, place)) = value(key)
                && is_on(&value) != Some(false)
            {
                return Err(format!(
                    "{key}={value} ({place}) cannot be done here: {what}"
                ));
            }
        }
        let switch = |key: &str, usual: bool| match value(key) {
            None => Ok(usual),
            Some((value, place)) => is_on(&value).ok_or_else(|| {
                format!("{key}={value} ({place}) is neither 0 nor 1: write one of them")
            }),
        };
        let idle: Vec<String> = IDLE
            .iter()
            .filter_map(|key| Some(format!("{key} ({})", value(key)?.1)))
            .collect();
        Ok(Told {
            enabled: switch(ENABLE, true)?,
            fetches: switch(FETCH, true)?,
            shares: switch(BYPASS, false)?,
            halts: switch(HALT_ENABLED, true)?,
            current: value(CURRENT).map(|(name, _)| name),
            idle: (!idle.is_empty()).then(|| {
                format!(
                    "{} have no effect: how often checkpoints are made and where they are kept is what sbatch --gpuos-checkpoint says",
                    idle.join(", ")
                )
            }),
            prefix,
        })
    }
}

/// What a switch says; a number above 0 is on. `None`: it is none.
fn is_on(value: &str) -> Option<bool> {
    value.trim().parse::<i64>().ok().map(|number| number > 0)
}

/// The settings of the user's file. One that nobody names need not be there.
fn file(named: Option<Written>, prefix: &Path) -> Result<BTreeMap<String, Written>, String> {
    let usual = prefix.join(USUAL_FILE);
    let (path, place) = match &named {
        Some((path, place)) => (PathBuf::from(path), format!("{FILE} of {place}")),
        None => (usual, "the folder of files".to_owned()),
    };
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if named.is_none() && error.kind() == std::io::ErrorKind::NotFound => {
            return Ok(BTreeMap::new());
        }
        Err(error) => {
            return Err(format!(
                "SCR_Init: cannot read the settings of {} ({place}): {error}",
                path.display()
            ));
        }
    };
    let mut found = BTreeMap::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let at = format!("{}:{}", path.display(), number + 1);
        match read(line) {
            Ok(Asked::Set(None, values)) => {
                for (key, value) in values {
                    let value = value.unwrap_or_default();
                    found.insert(key, (value, at.clone()));
                }
            }
            // Children are about redundancy and folders of a cache.
            Ok(Asked::Set(Some(_), _)) => {}
            Ok(Asked::Get(..)) | Err(_) => {
                return Err(format!("SCR_Init: {at}: {line:?} is not KEY=VALUE"));
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(
        variables: &[(&str, &str)],
        config: &[&str],
        file: Option<&str>,
    ) -> Result<Told, String> {
        let folder = tempfile::tempdir().expect("a folder");
        if let Some(text) = file {
            fs::write(folder.path().join(USUAL_FILE), text).expect("written");
        }
        let mut settings = Settings::default();
        for text in config {
            match read(text) {
                Ok(Asked::Set(parent, values)) => settings.set(parent, values),
                other => panic!("{text}: {other:?}"),
            }
        }
        let variable = |key: &str| {
            let found = variables.iter().find(|(name, _)| *name == key);
            found.map(|(_, value)| (*value).to_owned())
        };
        Told::read(variable, &settings, folder.path())
    }

    #[test]
    fn without_settings_all_is_as_ever() {
        let usual = told(&[], &[], None).expect("nothing is wrong");
        assert!(usual.enabled && usual.fetches && usual.halts && !usual.shares);
        assert_eq!((usual.current, usual.idle), (None, None));
        // Variables of others, and those that are switched off.
        let other = told(
            &[
                ("SCR_INSTALL", "/opt/scr"),
                ("SCR_HALT_SECONDS", "0"),
                ("SCR_DEBUG", "1"),
            ],
            &["SCR_HALT_EXIT=0"],
            Some("# nothing\n\n"),
        );
        assert!(other.expect("nothing is wrong").idle.is_none());
    }

    #[test]
    fn the_first_place_that_has_a_setting_counts() {
        let all = told(
            &[("SCR_ENABLE", "0")],
            &["SCR_ENABLE=1", "SCR_FETCH=1", "SCR_CACHE_BYPASS=1"],
            Some("SCR_ENABLE=1\nSCR_FETCH=0 # anew\nCKPT=0 TYPE=XOR\nSCR_CURRENT=step-7\n"),
        )
        .expect("nothing is wrong");
        assert!(!all.enabled && !all.fetches && all.shares);
        assert_eq!(all.current.as_deref(), Some("step-7"));
    }

    #[test]
    fn what_cannot_be_done_is_refused_with_its_place_and_what_to_do() {
        for (variables, file, wanted) in [
            (
                &[("SCR_HALT_SECONDS", "600")][..],
                None,
                "SCR_HALT_SECONDS=600 (the environment) cannot be done here: gpuos has the job saved",
            ),
            (&[("SCR_HALT_EXIT", "1")], None, "SCR_Should_exit"),
            (
                &[],
                Some("SCR_FLUSH=1\nSCR_CACHE_PURGE=1\n"),
                ".scrconf:2) cannot be done here",
            ),
            (
                &[("SCR_ENABLE", "no")],
                None,
                "SCR_ENABLE=no (the environment) is neither 0 nor 1",
            ),
            (
                &[("SCR_CONF_FILE", "/none/x")],
                None,
                "cannot read the settings of /none/x (SCR_CONF_FILE of the environment)",
            ),
            (
                &[],
                Some("SCR_ENABLE\n"),
                ".scrconf:1: \"SCR_ENABLE\" is not KEY=VALUE",
            ),
        ] {
            let why = told(variables, &[], file).expect_err(wanted);
            assert!(why.contains(wanted), "{why}");
        }
    }

    #[test]
    fn what_has_no_effect_is_named() {
        let idle = told(&[("SCR_FLUSH", "10")], &["SCR_COPY_TYPE=XOR"], None);
        let idle = idle.expect("nothing is wrong").idle.expect("two have none");
        assert!(
            idle.contains("SCR_COPY_TYPE (SCR_Config), SCR_FLUSH (the environment) have no effect"),
            "{idle}"
        );
    }
}
