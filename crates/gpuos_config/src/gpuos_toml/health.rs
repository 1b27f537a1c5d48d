//! `[health]` and `[[health.rule]]`.
use std::path::PathBuf;

use gpuos_core::health::{Limits, Rules, merge};
use gpuos_model::reading::{Check, ConfigError};
use toml::Spanned;

use super::raw::RawHealth;

/// The most file systems: each has a thread of its own.
const MOST_FILE_SYSTEMS: usize = 16;
pub(super) fn read(check: Check, raw: &RawHealth) -> Result<Rules, ConfigError> {
    let limits = limits(check, raw)?;
    let mut shipped = Rules::default();
    if raw.rule.is_empty() {
        shipped.limits = limits;
        return Ok(shipped);
    }
    let rules = merge(check, &raw.rule, shipped.all().to_vec())?;
    Ok(Rules::new(rules, limits))
}

/// `file-systems`: those that gpuosd asks whether they answer.
pub(super) fn file_systems(check: Check, raw: &RawHealth) -> Result<Vec<PathBuf>, ConfigError> {
    let paths = raw.file_systems.as_deref().unwrap_or_default();
    if let Some(one) = paths.get(MOST_FILE_SYSTEMS) {
        let message = format!("file-systems has more than {MOST_FILE_SYSTEMS} paths");
        return Err(check.error(one, message));
    }
    let path = |path| check.path("file-systems", path, "\"/home\"");
    paths.iter().map(path).collect()
}

fn limits(check: Check, raw: &RawHealth) -> Result<Limits, ConfigError> {
    let default = Limits::default();
    let number = |key: &str, value: &Option<Spanned<i64>>, range, default: u32| {
        check
            .int(key, value, range, default.into())
            .map(|number| number as u32)
    };
    let time = |key: &str, value: &Option<Spanned<String>>, default: u32| {
        check
            .seconds(key, value)
            .map(|time| time.unwrap_or(default))
    };
    Ok(Limits {
        max_returns: number("returns", &raw.returns, 1..=1000, default.max_returns)?,
        returns_within_s: time(
            "returns-within",
            &raw.returns_within,
            default.returns_within_s,
        )?,
        attempts: number("attempts", &raw.attempts, 1..=100, default.attempts)?,
        auto_reset: raw.reset.unwrap_or(default.auto_reset),
        reset_timeout_s: time("reset-timeout", &raw.reset_timeout, default.reset_timeout_s)?,
        check_timeout_s: time("check-timeout", &raw.check_timeout, default.check_timeout_s)?,
        settle_s: time("settle", &raw.settle, default.settle_s)?,
        calm_s: time("calm", &raw.calm, default.calm_s)?,
        publish_burst: number(
            "publish-burst",
            &raw.publish_burst,
            1..=100,
            default.publish_burst,
        )?,
        publish_every_s: time("publish-every", &raw.publish_every, default.publish_every_s)?,
        publish_wait_s: time("publish-wait", &raw.publish_wait, default.publish_wait_s)?,
        publish_spread_ms: time(
            "publish-spread",
            &raw.publish_spread,
            default.publish_spread_ms / 1000,
        )?
        .saturating_mul(1000),
        retry_s: time("retry", &raw.retry, default.retry_s)?,
    })
}
