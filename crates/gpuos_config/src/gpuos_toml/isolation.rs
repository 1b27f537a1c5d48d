//! `[isolation]`: what gpuosd does about processes on GPUs that they do not own.
use gpuos_core::isolation::{Foreign, Policy};
use gpuos_model::reading::{Check, ConfigError};

use super::raw::RawIsolation;

const WORDS: [(&str, Foreign); 3] = [
    ("ignore", Foreign::Ignore),
    ("warn", Foreign::Warn),
    ("kill", Foreign::Kill),
];
/// The most users or programs of a list.
const MOST: usize = 64;

pub(super) fn read(check: Check, raw: &RawIsolation) -> Result<Policy, ConfigError> {
    let default = Policy::default();
    let grace = check.seconds("grace", &raw.grace)?;
    let uids = match &raw.exempt_uids {
        None => default.exempt_uids,
        Some(list) => {
            let uid = |uid: &toml::Spanned<i64>| {
                let number = u32::try_from(*uid.get_ref());
                let form = "numbers of users, such as [997, 1001]";
                number.map_err(|_| check.refuse("exempt-uids", uid, uid.get_ref(), form))
            };
            few(check, "exempt-uids", list)?
                .iter()
                .map(uid)
                .collect::<Result<_, _>>()?
        }
    };
    let programs = match &raw.exempt_programs {
        None => default.exempt_programs,
        Some(list) => {
            let name = |name| check.name("exempt-programs", name);
            few(check, "exempt-programs", list)?
                .iter()
                .map(name)
                .collect::<Result<_, _>>()?
        }
    };
    Ok(Policy {
        foreign: check.word("foreign", &raw.foreign, &WORDS, default.foreign)?,
        grace_ms: grace.map_or(default.grace_ms, |seconds| u64::from(seconds) * 1000),
        exempt_uids: uids,
        exempt_programs: programs,
        kill_root: raw.kill_root.unwrap_or(default.kill_root),
        devices: raw.devices.unwrap_or(default.devices),
    })
}

fn few<'v, T>(
    check: Check,
    key: &str,
    list: &'v [toml::Spanned<T>],
) -> Result<&'v [toml::Spanned<T>], ConfigError> {
    match list.get(MOST) {
        Some(one) => Err(check.error(one, format!("{key} has more than {MOST} entries"))),
        None => Ok(list),
    }
}

#[cfg(test)]
mod tests {
    use crate::gpuos_toml::Config;
    use gpuos_core::isolation::{Foreign, Policy};

    fn read(text: &str) -> Result<Policy, String> {
        let config = Config::parse(&format!("[isolation]\n{text}\n"), "gpuos.toml");
        config
            .map(|config| config.isolation)
            .map_err(|e| e.to_string())
    }

    #[test]
    fn defaults_and_every_key() {
        assert_eq!(read("").unwrap(), Policy::default());
        let text = "foreign = \"kill\"\ngrace = \"1m\"\nexempt-uids = [997]\nexempt-programs = [\"my_agent\"]\n\
                    kill-root = true\ndevices = false";
        let wanted = Policy {
            foreign: Foreign::Kill,
            grace_ms: 60_000,
            exempt_uids: vec![997],
            exempt_programs: vec!["my_agent".into()],
            kill_root: true,
            devices: false,
        };
        assert_eq!(read(text).unwrap(), wanted);
    }

    #[test]
    fn mistakes_are_named_with_their_place() {
        for (text, wanted) in [
            ("foreign = \"shoot\"", "\"ignore\" or \"warn\" or \"kill\""),
            ("grace = \"10\"", "a time from 0 to 9999"),
            ("exempt-uids = [-1]", "numbers of users"),
            ("exempt-programs = [\"a b\"]", "exempt-programs"),
            ("kill = true", "there is no key"),
        ] {
            let error = read(text).unwrap_err();
            assert!(
                error.contains(wanted) && error.contains("gpuos.toml:2:"),
                "{text}: {error}"
            );
        }
    }
}
