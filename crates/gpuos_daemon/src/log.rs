//! Where the log goes: every event has a sentence and the node, and where they are known the GPU, rule, job and user as
//! fields.
//!
//! - To journald, in its own protocol, where the service runs under it: `journalctl -u gpuosd GPUOS_GPU=3`.
//! - To a terminal as text.
//! - To anything else on standard error as a JSON object a line.

use std::fmt::{self, Debug};
use std::fs::File;
use std::io::{IsTerminal, stderr};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_journald::{Priority, PriorityMappings};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, layer};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::{LookupSpan, Registry};
use tracing_subscriber::util::SubscriberInitExt;

/// Fields get this before their names in the journal.
const PREFIX: &str = "GPUOS";
/// Details are for developers.
const LEVEL: LevelFilter = LevelFilter::INFO;

/// Starts the log of this process, which is `daemon` of `node`. Once; a second call changes nothing.
pub fn start(daemon: &str, node: &str) {
    let registry = Registry::default().with(LEVEL);
    if is_journal() {
        // journald may be away while it starts anew: then it reads standard error still.
        if let Ok(journal) = tracing_journald::layer() {
            let journal = journal
                .with_field_prefix(Some(PREFIX.into()))
                .with_syslog_identifier(daemon.into())
                .with_custom_fields([(format!("{PREFIX}_NODE"), node)])
                // That all goes its way is no notice: syslog's levels as administrators filter by them.
                .with_priority_mappings(PriorityMappings {
                    info: Priority::Informational,
                    ..PriorityMappings::new()
                });
            let _ = registry.with(journal).try_init();
            return;
        }
    }
    let text = layer().with_writer(stderr);
    let _ = match stderr().is_terminal() {
        true => registry.with(text.with_target(false)).try_init(),
        false => {
            let node = node.to_string();
            registry.with(text.event_format(Json { node })).try_init()
        }
    };
}

/// An event as a JSON object in one line.
struct Json {
    node: String,
}

impl<S, N> FormatEvent<S, N> for Json
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut timestamp = String::new();
        SystemTime.format_time(&mut Writer::new(&mut timestamp))?;
        let mut fields = Fields(Map::new());
        event.record(&mut fields);
        let Fields(mut object) = fields;
        object.insert("timestamp".into(), timestamp.into());
        object.insert("level".into(), event.metadata().level().as_str().into());
        object.insert("node".into(), self.node.as_str().into());
        writeln!(writer, "{}", Value::Object(object))
    }
}

/// The fields of an event, numbers as numbers.
struct Fields(Map<String, Value>);

impl Fields {
    fn set(&mut self, field: &Field, value: impl Into<Value>) {
        self.0.insert(field.name().into(), value.into());
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.set(field, format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.set(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set(field, value);
    }
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
