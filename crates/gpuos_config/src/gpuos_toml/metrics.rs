//! `[metrics]`: where gpuosd tells its figures, and where `gpuos top` finds those of other nodes.

// An address as a value; nothing is opened here.
use core::net::SocketAddr;
use std::path::PathBuf;

use gpuos_model::reading::{Check, ConfigError, quoted};
use toml::Spanned;

use super::raw::RawMetrics;

/// The longest address of a server, in bytes.
const MAX_URL: usize = 1000;
/// Where OTLP over HTTP takes traces, if the address says nothing else.
const TRACES: &str = "/v1/traces";

/// `[metrics]`. By default nothing is told to anybody.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MetricsConfig {
    /// Where Prometheus may ask; `None`: nowhere.
    pub listen: Option<SocketAddr>,
    /// Whether Prometheus is told of no job and no user.
    pub nameless: bool,
    /// Directory of the map files for dcgm-exporter's `--hpc-job-mapping-dir`.
    pub dcgm_dir: Option<PathBuf>,
    /// Directory of the map files for jobstats.
    pub jobstats_dir: Option<PathBuf>,
    /// The site's Prometheus, without a slash at its end; `gpuos top` asks it.
    pub prometheus: Option<String>,
    /// The OTLP collector's address for traces, with its path.
    pub traces: Option<String>,
}

/// Checks the address of a server that is asked without TLS, and takes slashes from its end: `http://HOST[:PORT][/PATH]`.
///
/// # Errors
/// The form that is accepted.
pub fn http_url(text: &str) -> Result<String, &'static str> {
    const FORM: &str = "http://HOST:PORT, such as http://prometheus:9090; gpuos speaks no TLS";
    let rest = text.strip_prefix("http://").ok_or(FORM)?;
    let (server, _) = rest.split_once('/').unwrap_or((rest, ""));
    let plain = |c: char| c.is_ascii_graphic() && !"@?#\"<>\\".contains(c);
    let port = match server.rsplit_once(':') {
        // The colons of an address such as [::1] are its own.
        Some((host, port)) if !port.ends_with(']') => {
            !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0)
        }
        _ => !server.is_empty(),
    };
    match port && rest.len() <= MAX_URL && rest.chars().all(plain) {
        true => Ok(text.trim_end_matches('/').into()),
        false => Err(FORM),
    }
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
        nameless: !raw.jobs.unwrap_or(true),
        dcgm_dir: directory(check, "dcgm-dir", &raw.dcgm_dir)?,
        jobstats_dir: directory(check, "jobstats-dir", &raw.jobstats_dir)?,
        prometheus: url(check, "prometheus", &raw.prometheus)?,
        traces: url(check, "traces", &raw.traces)?.map(with_path),
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

fn url(
    check: Check,
    key: &str,
    value: &Option<Spanned<String>>,
) -> Result<Option<String>, ConfigError> {
    let Some(value) = value.as_ref().filter(|value| !value.get_ref().is_empty()) else {
        return Ok(None);
    };
    match http_url(value.get_ref()) {
        Ok(url) => Ok(Some(url)),
        Err(form) => {
            let form = format!("{form}; or \"\" for none");
            Err(check.refuse(key, value, quoted(value.get_ref()), form))
        }
    }
}

fn with_path(url: String) -> String {
    let server = url.strip_prefix("http://").unwrap_or(&url);
    match server.contains('/') {
        true => url,
        false => url + TRACES,
    }
}

#[cfg(test)]
mod tests {
    use crate::gpuos_toml::Config;

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
    fn servers() {
        let text = "[metrics]\nprometheus = \"http://[::1]:9090/prom/\"\ntraces = \"http://127.0.0.1:4318\"\n";
        let config = read(text).unwrap();
        assert_eq!(config.prometheus.unwrap(), "http://[::1]:9090/prom");
        assert_eq!(config.traces.unwrap(), "http://127.0.0.1:4318/v1/traces");
        let own = read("[metrics]\ntraces = \"http://tempo/otlp\"\n").unwrap();
        assert_eq!(own.traces.unwrap(), "http://tempo/otlp");
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
            ("prometheus = \"prom:9090\"", "write http://HOST:PORT"),
            ("prometheus = \"http://prom:0\"", "write http://HOST:PORT"),
            ("prometheus = \"http://u@prom\"", "write http://HOST:PORT"),
            ("traces = \"https://tempo:4318\"", "gpuos speaks no TLS"),
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
