//! Options about other jobs: what kind of job this is, what it wants to itself, whom it goes near.
use gpuos_model::words::{check_value, check_word, not_understood};

use super::OptionError;

const CLASS_FORM: &str = "a name such as noisy or training";
const EXCLUSIVE_FORM: &str = "node, nvlink or a level of the fabric such as leaf";

/// How the entry of `--gpuos-exclusive` in a job's `spank_job_env` starts, `-` read as `_`.
const EXCLUSIVE_ENTRY: &str = "_SLURM_SPANK_OPTION_gpuos_gpuos_exclusive=";

/// Reads the value of `--gpuos-class`. Names become lower case.
pub fn parse_class(value: &str) -> Result<String, OptionError> {
    let error = |reason: String| OptionError::new("--gpuos-class", value, &reason, CLASS_FORM);
    check_word(value, "class name").map_err(error)?;
    Ok(value.to_ascii_lowercase())
}

/// Reads the value of `--gpuos-exclusive`: the level whose domains the job wants to itself.
pub fn parse_exclusive(value: &str) -> Result<String, OptionError> {
    let error =
        |reason: String| OptionError::new("--gpuos-exclusive", value, &reason, EXCLUSIVE_FORM);
    check_value(value).map_err(error)?;
    check_word(value, "level name").map_err(error)?;
    match value.to_ascii_lowercase() {
        level if level == "any" => Err(error(not_understood("any"))),
        level => Ok(level),
    }
}

/// Whether an entry of a job's `spank_job_env` is that of `--gpuos-exclusive`.
pub fn is_exclusive(entry: &str) -> bool {
    let same = |(a, b): (u8, u8)| a == b || (a == b'-' && b == b'_');
    entry.len() >= EXCLUSIVE_ENTRY.len() && entry.bytes().zip(EXCLUSIVE_ENTRY.bytes()).all(same)
}

/// Checks one of the names of an affinity rule.
pub(super) fn check_target(word: &str) -> Result<(), String> {
    match word.split_once('=') {
        None => check_word(word, "job or user name"),
        Some((key, name)) => {
            check_word(key, "kind of place (class, power, switch or a level)")?;
            check_word(name, "name of a place")
        }
    }
}
