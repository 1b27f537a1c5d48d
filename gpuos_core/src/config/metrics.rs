//! `[metrics]`: where gpuosd tells its figures.

// An address as a value; nothing is opened here.
use core::net::SocketAddr;
use std::path::PathBuf;

use toml::Spanned;

use super::check::{Check, quoted};
use super::error::ConfigError;
use super::raw::RawMetrics;

/// `[metrics]`. By default nothing is told to anybody.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MetricsConfig {
    /// Where Prometheus may ask; `None`: nowhere.
    pub listen: Option<SocketAddr>,
    /// Directory of the map files for dcgm-exporter's `--hpc-job-mapping-dir`.
    pub dcgm_dir: Option<PathBuf>,
    /// Directory of the map files for jobstats.
    pub jobstats_dir: Option<PathBuf>,
}

pub(super) fn read(check: Check, raw: &RawMetrics) -> Result<MetricsConfig, ConfigError> {
    let listen = match &raw.listen {
        Some(text) if !text.get_ref().is_empty() => {
            let address = text.get_ref().parse().map_err(|_| {
                let form = "an address with a port, such as \"127.0.0.1:9402\" or \"[::]:9402\", or \"\" for none";
                check.refuse("listen", text, quoted(text.get_ref()), form)
            })?;
            Some(address)
        }
        _ => None,
    };
    let config = MetricsConfig {
        listen,
        dcgm_dir: directory(check, "dcgm-dir", &raw.dcgm_dir)?,
        jobstats_dir: directory(check, "jobstats-dir", &raw.jobstats_dir)?,
    };
    match &raw.jobstats_dir {
        Some(at) if config.dcgm_dir.is_some() && config.dcgm_dir == config.jobstats_dir => {
            let message = "dcgm-dir and jobstats-dir are the same directory, and their files have the same names; \
                           write two directories";
            Err(check.error(at, message))
        }
        _ => Ok(config),
    }
}

fn directory(
    check: Check,
    key: &str,
    value: &Option<Spanned<String>>,
) -> Result<Option<PathBuf>, ConfigError> {
    match value.as_ref().filter(|value| !value.get_ref().is_empty()) {
        Some(value) => check
            .path(key, value, "\"/run/gpustat\", or \"\" for none")
            .map(Some),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Config;

    fn read(text: &str) -> Result<super::MetricsConfig, String> {
        let config = Config::parse(text, "gpuos.toml");
        config
            .map(|config| config.metrics)
            .map_err(|e| e.to_string())
    }

    #[test]
    fn nothing_is_told_by_default() {
        assert_eq!(read("").unwrap(), super::MetricsConfig::default());
        let off = "[metrics]\nlisten = \"\"\ndcgm-dir = \"\"\n";
        assert_eq!(read(off).unwrap(), super::MetricsConfig::default());
    }

    #[test]
    fn addresses_and_directories() {
        let text = "[metrics]\nlisten = \"[::1]:9402\"\ndcgm-dir = \"/run/dcgm\"\njobstats-dir = \"/run/gpustat\"\n";
        let config = read(text).unwrap();
        assert_eq!(config.listen.unwrap().port(), 9402);
        assert_eq!(config.dcgm_dir.unwrap().to_str(), Some("/run/dcgm"));
        assert_eq!(config.jobstats_dir.unwrap().to_str(), Some("/run/gpustat"));
    }

    #[test]
    fn mistakes_are_named_with_their_place() {
        for (text, wanted) in [
            (
                "listen = \"localhost\"",
                "listen = \"localhost\" is not accepted",
            ),
            ("listen = \"9402\"", "127.0.0.1:9402"),
            ("dcgm-dir = \"run\"", "a path from the root"),
            ("jobstats-dir = \"/a\\nb\"", "jobstats-dir"),
            (
                "dcgm-dir = \"/a\"\njobstats-dir = \"/a\"",
                "write two directories",
            ),
            ("port = 1", "there is no key"),
        ] {
            let error = read(&format!("[metrics]\n{text}\n")).unwrap_err();
            assert!(
                error.contains(wanted) && error.contains("gpuos.toml:"),
                "{text}: {error}"
            );
        }
    }
}
