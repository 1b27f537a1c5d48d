//! Where the log goes: every event has a sentence, and where they are known the GPU, rule, job and user as fields.
//!
//! - To journald, in its own protocol, where the service runs under it: `journalctl -u gpuosd GPUOS_GPU=3`.
//! - To a terminal as text.
//! - To anything else on standard error as a JSON object a line.

use std::fs::File;
use std::io::{IsTerminal, stderr};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, filter::LevelFilter, fmt};

/// Fields get this before their names in the journal.
const PREFIX: &str = "GPUOS";
/// Details are for developers.
const LEVEL: LevelFilter = LevelFilter::INFO;

/// Starts the log of this process. Once; a second call changes nothing.
pub fn start() {
    let registry = Registry::default().with(LEVEL);
    if is_journal() {
        // journald may be away while it starts anew: then it reads standard error still.
        if let Ok(journal) = tracing_journald::layer() {
            let journal = journal
                .with_field_prefix(Some(PREFIX.into()))
                .with_syslog_identifier("gpuosd".into());
            let _ = registry.with(journal).try_init();
            return;
        }
    }
    let _ = match stderr().is_terminal() {
        true => registry
            .with(fmt::layer().with_writer(stderr).with_target(false))
            .try_init(),
        false => {
            let json = fmt::layer().json().flatten_event(true);
            registry
                .with(json.with_target(false).with_writer(stderr))
                .try_init()
        }
    };
}

/// Whether standard error is the journal's: systemd says which file that is.
fn is_journal() -> bool {
    let Ok(told) = std::env::var("JOURNAL_STREAM") else {
        return false;
    };
    let own = stderr().as_fd().try_clone_to_owned().map(File::from);
    let own = own.and_then(|file| file.metadata());
    own.is_ok_and(|own| told == format!("{}:{}", own.dev(), own.ino()))
}
