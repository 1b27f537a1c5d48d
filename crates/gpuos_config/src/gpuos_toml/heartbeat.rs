//! `[heartbeat]`: whether and how gpuosds watch each other's nodes.
use gpuos_core::peers::{Act, HeartbeatConfig};
use gpuos_model::reading::{Check, ConfigError};

use super::raw::RawHeartbeat;

const ACTS: [(&str, Act); 3] = [("off", Act::Off), ("warn", Act::Warn), ("down", Act::Down)];

/// Fewer pings than that within `silent-ms` would make every lost one an alarm.
const PINGS: u64 = 3;

pub(super) fn read(check: Check, raw: &RawHeartbeat) -> Result<HeartbeatConfig, ConfigError> {
    let usual = HeartbeatConfig::default();
    let int = |key, value, range, default: u64| {
        let number = check.int(key, value, range, default as i64)?;
        Ok::<u64, ConfigError>(number as u64)
    };
    let config = HeartbeatConfig {
        act: check.word("act", &raw.act, &ACTS, usual.act)?,
        port: int("port", &raw.port, 0..=65_535, usual.port.into())? as u16,
        interval_ms: int(
            "interval-ms",
            &raw.interval_ms,
            100..=10_000,
            usual.interval_ms,
        )?,
        silent_ms: int("silent-ms", &raw.silent_ms, 1000..=120_000, usual.silent_ms)?,
        hung_ms: int("hung-ms", &raw.hung_ms, 1000..=600_000, usual.hung_ms)?,
    };
    let least = PINGS * config.interval_ms;
    match (
        &raw.silent_ms.as_ref().or(raw.interval_ms.as_ref()),
        &raw.hung_ms,
    ) {
        (Some(at), _) if config.silent_ms < least => {
            let message = format!(
                "silent-ms = {} is less than {PINGS} times interval-ms = {}; write silent-ms = {least} or more",
                config.silent_ms, config.interval_ms
            );
            Err(check.error(at, message))
        }
        (_, Some(at)) if config.hung_ms < config.silent_ms => {
            let message = format!(
                "hung-ms = {} is less than silent-ms = {}; write that or more",
                config.hung_ms, config.silent_ms
            );
            Err(check.error(at, message))
        }
        _ => Ok(HeartbeatConfig {
            // A long silent-ms alone is no mistake.
            hung_ms: config.hung_ms.max(config.silent_ms),
            ..config
        }),
    }
}

#[cfg(test)]
mod tests {
    use crate::gpuos_toml::Config;
    use gpuos_core::peers::{Act, HeartbeatConfig};

    fn read(text: &str) -> Result<HeartbeatConfig, String> {
        let config = Config::parse(&format!("[heartbeat]\n{text}\n"), "gpuos.toml");
        let config = config.map(|config| config.heartbeat);
        config.map_err(|e| e.to_string())
    }

    #[test]
    fn peers_are_watched_and_nothing_is_done_by_default() {
        assert_eq!(read("").unwrap(), HeartbeatConfig::default());
        assert_eq!(HeartbeatConfig::default().act, Act::Warn);
        let own =
            read("act = \"down\"\nport = 7000\ninterval-ms = 1000\nsilent-ms = 30000").unwrap();
        assert_eq!((own.act, own.port), (Act::Down, 7000));
        assert_eq!((own.silent_ms, own.hung_ms), (30_000, 30_000));
    }

    #[test]
    fn mistakes_are_named_with_their_place() {
        for (text, wanted) in [
            ("act = \"kill\"", "\"off\" or \"warn\" or \"down\""),
            ("port = 65536", "from 0 to 65535"),
            ("interval-ms = 10", "from 100 to 10000"),
            ("interval-ms = 1000", "write silent-ms = 3000 or more"),
            ("silent-ms = 1100", "write silent-ms = 1200 or more"),
            ("hung-ms = 1500", "less than silent-ms = 2000"),
            ("enabled = true", "there is no key"),
        ] {
            let error = read(text).unwrap_err();
            let placed = error.contains("gpuos.toml:2:");
            assert!(error.contains(wanted) && placed, "{text}: {error}");
        }
    }
}
