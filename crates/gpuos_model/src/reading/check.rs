//! Checks of single values: each refusal names the key, what was given and the accepted form.
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use toml::Spanned;

use super::error::{ConfigError, Place, Source};
use crate::hostlist::{is_name, shorten};

/// The longest free text (GPU model, source), in bytes.
const MAX_TEXT: usize = 500;

/// The longest path, in bytes; Linux takes no longer one.
const MAX_PATH: usize = 4095;

/// Checks values of one file.
#[derive(Clone, Copy)]
pub struct Check<'a> {
    /// The file.
    pub source: Source<'a>,
}

impl Check<'_> {
    /// Where a value stands.
    pub fn place<T>(&self, value: &Spanned<T>) -> Place {
        self.source.place(value.span().start)
    }

    /// An error at a value.
    pub fn error<T>(&self, at: &Spanned<T>, message: impl Into<String>) -> ConfigError {
        self.place(at).error(self.source.file, message)
    }

    /// The error for a value that is not accepted.
    pub fn refuse<T>(
        &self,
        key: &str,
        value: &Spanned<T>,
        given: impl Display,
        accepted: impl Display,
    ) -> ConfigError {
        let given = shorten(&given.to_string());
        self.error(
            value,
            format!("{key} = {given} is not accepted; write {accepted}"),
        )
    }

    /// The value of a key that a table must have.
    pub fn need<'v, T, U>(
        &self,
        table: &Spanned<U>,
        header: &str,
        key: &str,
        value: &'v Option<Spanned<T>>,
    ) -> Result<&'v Spanned<T>, ConfigError> {
        value.as_ref().ok_or_else(|| {
            self.error(
                table,
                format!("{header} has no {key}; add a line {key} = ..."),
            )
        })
    }

    /// A whole number in a range, or the default.
    pub fn int(
        &self,
        key: &str,
        value: &Option<Spanned<i64>>,
        range: RangeInclusive<i64>,
        default: i64,
    ) -> Result<i64, ConfigError> {
        let Some(value) = value else {
            return Ok(default);
        };
        let number = *value.get_ref();
        match range.contains(&number) {
            true => Ok(number),
            false => {
                let accepted = format!("a whole number from {} to {}", range.start(), range.end());
                Err(self.refuse(key, value, number, accepted))
            }
        }
    }

    /// A bandwidth in GB/s, or the default.
    pub fn gbps(
        &self,
        key: &str,
        value: &Option<Spanned<f64>>,
        default: f32,
    ) -> Result<f32, ConfigError> {
        let Some(value) = value else {
            return Ok(default);
        };
        let number = *value.get_ref();
        match (0.0..=100_000.0).contains(&number) {
            true => Ok(number as f32),
            false => {
                let accepted = "GB/s per direction, a number from 0 to 100000";
                Err(self.refuse(key, value, number, accepted))
            }
        }
    }

    /// A name: of a node type, a switch, a level.
    pub fn name(&self, key: &str, value: &Spanned<String>) -> Result<String, ConfigError> {
        let text = value.get_ref();
        match is_name(text) && text.len() <= 64 {
            true => Ok(text.clone()),
            false => {
                let accepted = "a name of 1 to 64 ASCII letters, digits and . _ -";
                Err(self.refuse(key, value, quoted(text), accepted))
            }
        }
    }

    /// Free text, or an empty one.
    pub fn text(&self, key: &str, value: &Option<Spanned<String>>) -> Result<String, ConfigError> {
        let Some(value) = value else {
            return Ok(String::new());
        };
        let text = value.get_ref();
        match text.len() <= MAX_TEXT && !text.contains(char::is_control) {
            true => Ok(text.clone()),
            false => {
                let accepted = format!("one line of at most {MAX_TEXT} bytes");
                Err(self.refuse(key, value, quoted(text), accepted))
            }
        }
    }

    /// A path from the root. `example` follows "such as" where it is refused.
    pub fn path(
        &self,
        key: &str,
        value: &Spanned<String>,
        example: &str,
    ) -> Result<PathBuf, ConfigError> {
        let text = value.get_ref();
        let plain = !text.chars().any(char::is_control);
        match text.starts_with('/') && text.len() <= MAX_PATH && plain {
            true => Ok(text.into()),
            false => {
                let form = format!("a path from the root, such as {example}");
                Err(self.refuse(key, value, quoted(text), form))
            }
        }
    }

    /// A time such as `30s`, `10m`, `2h` or `1d`, in seconds.
    pub fn seconds(
        &self,
        key: &str,
        value: &Option<Spanned<String>>,
    ) -> Result<Option<u32>, ConfigError> {
        let Some(value) = value else { return Ok(None) };
        let text = value.get_ref();
        let units = [('s', 1), ('m', 60), ('h', 3600), ('d', 86_400)];
        let time = units.iter().find_map(|(unit, seconds)| {
            let number = text.strip_suffix(*unit)?;
            let plain = number.bytes().all(|b| b.is_ascii_digit());
            let number = number
                .parse::<u32>()
                .ok()
                .filter(|number| plain && *number <= 9999)?;
            Some(number * seconds)
        });
        match time {
            Some(time) => Ok(Some(time)),
            None => {
                let form = "a time from 0 to 9999 with its unit, such as \"30s\", \"10m\", \"2h\" or \"1d\"";
                Err(self.refuse(key, value, quoted(text), form))
            }
        }
    }

    /// One of a few words.
    pub fn word<T: Copy>(
        &self,
        key: &str,
        value: &Option<Spanned<String>>,
        words: &[(&str, T)],
        default: T,
    ) -> Result<T, ConfigError> {
        let Some(value) = value else {
            return Ok(default);
        };
        let text = value.get_ref();
        match words.iter().find(|(word, _)| word == text) {
            Some((_, meaning)) => Ok(*meaning),
            None => {
                let words: Vec<String> = words.iter().map(|(word, _)| quoted(word)).collect();
                Err(self.refuse(key, value, quoted(text), words.join(" or ")))
            }
        }
    }

    /// GPU indices below `gpus`.
    pub fn gpus<T>(
        &self,
        key: &str,
        at: &Spanned<T>,
        list: &[i64],
        gpus: usize,
    ) -> Result<Vec<usize>, ConfigError> {
        let index = |&number: &i64| {
            let index = usize::try_from(number).ok().filter(|&index| index < gpus);
            index.ok_or_else(|| {
                let last = gpus.saturating_sub(1);
                let accepted = format!("GPU indices from 0 to {last}");
                self.refuse(key, at, format!("... {number} ..."), accepted)
            })
        };
        list.iter().map(index).collect()
    }
}

/// The text in quotes, as it stands in a TOML file.
pub fn quoted(text: &str) -> String {
    format!("\"{text}\"")
}
