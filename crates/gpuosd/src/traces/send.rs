//! The thread of traces: it follows what the loop tells, looks whether requeued jobs run again, and sends spans to a
//! collector by OTLP over HTTP. A collector that does not answer costs the loop nothing.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures_executor::block_on;
use gpuos_config::gpuos_toml::MetricsConfig;
use gpuos_core::health::{Effect, Event, RecoveryAction};
use gpuos_model::node_gpu::NodeGpu;
use gpuos_workload::WorkloadManager;
use gpuos_workload::action::{Action, Outcome};
use gpuos_workload::job::JobState;
use opentelemetry::trace::{SpanContext, SpanKind, Status, TraceFlags, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanExporter as _, SpanLinks};

use super::follow::{Follower, Span, What};
use crate::jobs::Table;

/// What waits for the thread; more is lost, and said.
const WAITING: usize = 1024;
/// Jobs that are to start are looked at so often.
const LOOK: Duration = Duration::from_secs(1);
/// Wait after a collector that did not take spans.
const AGAIN: Duration = Duration::from_secs(10);
/// Longest time for one request.
const LIMIT: Duration = Duration::from_secs(5);

/// What the loop holds of traces. No call waits for anybody.
pub struct Traces {
    node: String,
    manager: Arc<dyn WorkloadManager>,
    url: Option<String>,
    to: Option<SyncSender<(u64, What)>>,
    trouble: Trouble,
}

type Trouble = Arc<Mutex<Option<String>>>;

fn set(trouble: &Trouble, what: Option<String>) {
    let mut trouble = trouble.lock().unwrap_or_else(PoisonError::into_inner);
    match (&*trouble, &what) {
        (None, Some(why)) => tracing::warn!(
            "{why}; they are kept and sent again every {} s",
            AGAIN.as_secs()
        ),
        (Some(_), None) => tracing::info!("traces are sent again"),
        _ => {}
    }
    *trouble = what;
}

impl Traces {
    /// Nothing is told before [`Traces::set`].
    pub fn new(node: &str, manager: Arc<dyn WorkloadManager>) -> Traces {
        Traces {
            node: node.into(),
            manager,
            url: None,
            to: None,
            trouble: Trouble::default(),
        }
    }

    /// Takes `[metrics]` of gpuos.toml.
    pub fn set(&mut self, config: &MetricsConfig) {
        if self.url == config.traces {
            return;
        }
        self.url.clone_from(&config.traces);
        // The thread before ends with its sender.
        self.to = None;
        self.trouble = Trouble::default();
        let Some(url) = self.url.clone() else { return };
        let (to, from) = sync_channel(WAITING);
        let (node, trouble) = (self.node.clone(), Arc::clone(&self.trouble));
        let manager = self.manager.clone();
        let run = move || run(&from, &*manager, (&url, &node), &trouble);
        match thread::Builder::new().name("traces".into()).spawn(run) {
            Ok(_) => self.to = Some(to),
            Err(e) => set(&self.trouble, Some(format!("no thread for traces: {e}"))),
        }
    }

    /// Why nothing is told, if so.
    pub fn trouble(&self) -> Option<String> {
        self.trouble
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The rules are told of it.
    pub fn event(&self, at_ms: u64, event: &Event) {
        if self.to.is_none() {
            return;
        }
        let fault = |gpu: &NodeGpu, text: String| What::Fault { gpu: *gpu, text };
        let went = |ok: bool, message: &String| match ok {
            true => Ok(()),
            false => Err(message.clone()),
        };
        let what = match event {
            Event::Xid { gpu, code, .. } => fault(gpu, format!("Xid {code}")),
            Event::Logged { gpu, code, .. } => {
                fault(gpu, format!("Xid {code} in the kernel's log"))
            }
            Event::Lost { gpu } => fault(gpu, "the GPU is lost".into()),
            Event::RecoveryAction { gpu, action } if *action != RecoveryAction::None => {
                fault(gpu, format!("the driver wants: {}", action.word()))
            }
            Event::Admin(admin) => What::Admin(admin.clone()),
            Event::Published { revision, ok } => What::Published {
                revision: *revision,
                ok: *ok,
            },
            Event::ResetDone { gpu, ok, message } => What::Ended(*gpu, "reset", went(*ok, message)),
            Event::CheckDone { gpu, ok, message } => What::Ended(*gpu, "check", went(*ok, message)),
            _ => return,
        };
        self.record(at_ms, what);
    }

    /// The rules want it done.
    pub fn effects(&self, at_ms: u64, effects: &[Effect], jobs: &Table) {
        if self.to.is_none() {
            return;
        }
        // The reason comes before what follows from it.
        for effect in effects {
            if let Effect::Audit(audit) = effect {
                let what = What::Judged {
                    gpu: audit.gpu,
                    rule: audit.rule.clone(),
                    text: audit.text.clone(),
                };
                self.record(at_ms, what);
            }
        }
        for effect in effects {
            let what = match effect {
                Effect::Publish { revision, part } => What::Publish {
                    revision: *revision,
                    out: part.all_out(),
                },
                Effect::Requeue { job, .. } => {
                    let held = jobs.jobs.get(job);
                    let gpus = held.map_or_else(Vec::new, |held| {
                        held.all_gpus().into_iter().map(NodeGpu::from).collect()
                    });
                    What::Requeue {
                        job: job.clone(),
                        gpus,
                    }
                }
                Effect::Reset { gpu } => What::Began(*gpu, "reset"),
                Effect::Check { gpu } => What::Began(*gpu, "check"),
                _ => continue,
            };
            self.record(at_ms, what);
        }
    }

    /// slurmctld answered.
    pub fn acted(&self, at_ms: u64, action: &Action, outcome: &Outcome) {
        let went = match outcome {
            Outcome::Done(_) | Outcome::Nothing(_) => Ok(()),
            Outcome::Refused(why) => Err(why.clone()),
            Outcome::NotYet(_) | Outcome::NoAnswer(_) => return,
        };
        match action {
            Action::Requeue { job } | Action::Hold { job, .. } => {
                self.record(at_ms, What::Requeued(job.clone(), went));
            }
            Action::Release { job, .. } => self.record(at_ms, What::Released(job.clone(), went)),
            _ => {}
        }
    }

    fn record(&self, at_ms: u64, what: What) {
        let Some(to) = &self.to else { return };
        if let Err(TrySendError::Full(_)) = to.try_send((at_ms, what)) {
            let why = "traces have gaps: their thread is behind";
            set(&self.trouble, Some(why.into()));
        }
    }
}

fn run(
    from: &Receiver<(u64, What)>,
    manager: &dyn WorkloadManager,
    (url, node): (&str, &str),
    trouble: &Trouble,
) {
    let exporter = match exporter(url, node) {
        Ok(exporter) => exporter,
        Err(why) => return set(trouble, Some(format!("no traces to {url}: {why}"))),
    };
    tracing::info!("traces go to {url}");
    let mut follower = Follower::default();
    let (mut looked, mut again) = (Instant::now(), Instant::now());
    loop {
        let ended = match from.recv_timeout(LOOK) {
            Ok((at_ms, what)) => {
                follower.take(at_ms, what);
                false
            }
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => true,
        };
        if looked.elapsed() >= LOOK {
            looked = Instant::now();
            poll_requeued(&mut follower, manager);
            follower.tick(now_ms());
        }
        if !follower.done().is_empty() && (ended || Instant::now() >= again) {
            let spans = follower.done().iter().map(data).collect();
            match block_on(exporter.export(spans)) {
                Ok(()) => {
                    follower.sent();
                    set(trouble, None);
                }
                Err(e) => {
                    again = Instant::now() + AGAIN;
                    set(trouble, Some(format!("no traces to {url}: {e}")));
                }
            }
        }
        if ended {
            return;
        }
    }
}

/// Looks which of the jobs that may start again run.
fn poll_requeued(follower: &mut Follower, manager: &dyn WorkloadManager) {
    for job in follower.waiting() {
        let now = now_ms();
        // Where slurmctld is away: another time.
        let Ok(record) = manager.job(&job) else {
            return;
        };
        let what = match record {
            None => What::Gone(job, "the job is gone".into()),
            Some(record) => match record.state {
                JobState::Running => {
                    let since = now.saturating_sub(record.run_seconds * 1000);
                    What::Runs(job, since, record.nodes.join(","))
                }
                JobState::Waiting | JobState::Starting | JobState::Ending => continue,
                JobState::Stopped | JobState::Over => {
                    What::Gone(job, format!("the job is {}", record.state_word))
                }
            },
        };
        follower.take(now, what);
    }
}

fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |time| time.as_millis() as u64)
}

fn exporter(url: &str, node: &str) -> Result<SpanExporter, String> {
    let config = ureq::Agent::config_builder()
        .timeout_global(Some(LIMIT))
        .http_status_as_error(false)
        // A collector of the site's own; no proxy of some user's environment.
        .proxy(None);
    let client = Blocking(config.build().into());
    let built = SpanExporter::builder()
        .with_http()
        .with_http_client(client)
        .with_endpoint(url)
        .with_timeout(LIMIT)
        .build();
    let mut exporter = built.map_err(|e| e.to_string())?;
    let attributes = [
        KeyValue::new("service.version", crate::RELEASE),
        KeyValue::new("service.instance.id", node.to_string()),
        KeyValue::new("gpuos.node", node.to_string()),
    ];
    let resource = Resource::builder_empty().with_service_name("gpuosd");
    exporter.set_resource(&resource.with_attributes(attributes).build());
    Ok(exporter)
}

fn time(ms: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(ms)
}

fn data(span: &Span) -> SpanData {
    let mut events = SpanEvents::default();
    let event = |(at, text): &(u64, String)| {
        opentelemetry::trace::Event::new(text.clone(), time(*at), Vec::new(), 0)
    };
    events.events = span.events.iter().map(event).collect();
    let attribute = |(name, value): &(&'static str, String)| KeyValue::new(*name, value.clone());
    SpanData {
        span_context: SpanContext::new(
            span.trace,
            span.id,
            TraceFlags::SAMPLED,
            false,
            TraceState::default(),
        ),
        parent_span_id: span.parent,
        parent_span_is_remote: false,
        span_kind: SpanKind::Internal,
        name: span.name.into(),
        start_time: time(span.start_ms),
        end_time: time(span.end_ms),
        attributes: span.attributes.iter().map(attribute).collect(),
        dropped_attributes_count: 0,
        events,
        links: SpanLinks::default(),
        status: match &span.error {
            None => Status::Unset,
            Some(why) => Status::error(why.clone()),
        },
        instrumentation_scope: InstrumentationScope::builder("gpuosd").build(),
    }
}

/// An HTTP client that waits: this thread has nothing else to do.
#[derive(Debug)]
struct Blocking(ureq::Agent);

#[async_trait::async_trait]
impl HttpClient for Blocking {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (head, body) = request.into_parts();
        let answer = self.0.run(Request::from_parts(head, body.to_vec()))?;
        let (head, mut body) = answer.into_parts();
        let body = body.with_config().limit(64 << 10).read_to_vec()?;
        Ok(Response::from_parts(head, body.into()))
    }
}
