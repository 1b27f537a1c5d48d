//! Spans out of what happens. A trace begins with a fault that takes a GPU out of service, or with an administrator's
//! command; what follows from it (publication, requeue, release, the job's new start, reset, check) are its spans.
//! Nothing here asks a clock or waits.

use std::collections::{BTreeMap, BTreeSet};

use gpuos_core::health::Admin;
use gpuos_core::job::JobId;
use gpuos_model::node_gpu::NodeGpu;
use opentelemetry::trace::{SpanId, TraceId};
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator};

/// A trace's first span ends when nothing has followed for so long: jobs are told again every 5 s, and slurmctld is asked
/// as often.
const QUIET: u64 = 12_000;
/// A fault counts as the reason for what follows within so long.
const RECENT: u64 = 60_000;
/// A job that has not started by then is given up.
const PATIENCE: u64 = 15 * 60_000;
/// Spans that wait to be sent, and sentences in one; older spans and later sentences go.
const MOST: usize = 1000;

/// How something went; the sentence of a failure.
pub type ActionResult = Result<(), String>;

/// What the loop tells.
#[derive(Debug)]
pub enum What {
    /// The GPU showed a fault.
    Fault {
        /// GRES index.
        gpu: NodeGpu,
        /// What it was.
        text: String,
    },
    /// An administrator's command.
    Admin(Admin),
    /// A line of the audit log.
    Judged {
        /// GRES index.
        gpu: Option<NodeGpu>,
        /// The rule.
        rule: Option<String>,
        /// The sentence.
        text: String,
    },
    /// These GPUs are to stand in Slurm's record as out.
    Publish {
        /// Number of the publication.
        revision: u64,
        /// GRES indices.
        out: Vec<NodeGpu>,
    },
    /// slurmctld took that publication, or did not.
    Published {
        /// Its number.
        revision: u64,
        /// Whether it did.
        ok: bool,
    },
    /// A job is to be requeued.
    Requeue {
        /// The job.
        job: JobId,
        /// GPUs that it holds here.
        gpus: Vec<NodeGpu>,
    },
    /// It is requeued, or will not be.
    Requeued(JobId, ActionResult),
    /// It may start again, or will not.
    Released(JobId, ActionResult),
    /// It runs again since that time, on those nodes.
    Runs(JobId, u64, String),
    /// It will not run again.
    Gone(JobId, String),
    /// A reset or a check of a GPU begins.
    Began(NodeGpu, &'static str),
    /// It has ended.
    Ended(NodeGpu, &'static str, ActionResult),
}

/// A span that has ended.
#[derive(Clone, PartialEq, Debug)]
pub struct Span {
    /// The trace that it belongs to.
    pub trace: TraceId,
    /// Its own number.
    pub id: SpanId,
    /// The span that it follows from; invalid for a trace's first.
    pub parent: SpanId,
    /// What it is.
    pub name: &'static str,
    /// Milliseconds since 1970.
    pub start_ms: u64,
    /// Milliseconds since 1970.
    pub end_ms: u64,
    /// Names and values.
    pub attributes: Vec<(&'static str, String)>,
    /// Sentences and when they were said.
    pub events: Vec<(u64, String)>,
    /// What went wrong.
    pub error: Option<String>,
}

/// What a span under way belongs to.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Key {
    Publish(u64),
    Job(JobId),
    Device(&'static str),
}

/// A trace that something may follow in.
#[derive(Debug)]
struct Thread {
    first: Span,
    open: BTreeMap<Key, Span>,
    ended: bool,
}

/// All traces under way.
#[derive(Debug, Default)]
pub struct Follower {
    /// By GPU; `None`: of the node.
    threads: BTreeMap<Option<NodeGpu>, Thread>,
    out: BTreeSet<NodeGpu>,
    /// What faults GPUs showed, and when.
    faults: BTreeMap<NodeGpu, Vec<(u64, String)>>,
    /// Rules that spoke against a GPU, and when.
    rules: BTreeMap<NodeGpu, BTreeMap<String, u64>>,
    done: Vec<Span>,
    ids: RandomIdGenerator,
}

impl Follower {
    /// Takes what happened at `at` (milliseconds since 1970).
    pub fn take(&mut self, at: u64, what: What) {
        match what {
            What::Fault { gpu, text } => {
                self.add_event(Some(gpu), at, &text);
                let faults = self.faults.entry(gpu).or_default();
                faults.retain(|(when, _)| at.saturating_sub(*when) < RECENT);
                faults.truncate(MOST);
                faults.push((at, text));
            }
            What::Admin(admin) => self.admin(at, &admin),
            What::Judged { gpu, rule, text } => {
                if let (Some(gpu), Some(rule)) = (gpu, rule) {
                    self.rules.entry(gpu).or_default().insert(rule, at);
                }
                self.add_event(gpu, at, &text);
            }
            What::Publish { revision, out } => self.publish(at, revision, out),
            What::Published { revision, ok } => {
                let went = || match ok {
                    true => Ok(()),
                    false => Err("slurmctld has not taken it; it is tried again".to_string()),
                };
                let of: Vec<_> = self.threads.keys().copied().collect();
                for gpu in of {
                    self.close(gpu, Key::Publish(revision), at, went());
                }
            }
            What::Requeue { job, gpus } => self.requeue(at, &job, &gpus),
            What::Requeued(job, went) => self.next(at, &job, "requeue", went, Some("release")),
            What::Released(job, went) => self.next(at, &job, "release", went, Some("start")),
            What::Runs(job, since, nodes) => {
                if let Some(thread) = self.of_job(&job).and_then(|of| self.threads.get_mut(&of))
                    && let Some(span) = thread.open.get_mut(&Key::Job(job.clone()))
                {
                    span.attributes.push(("gpuos.nodes", nodes));
                    let since = since.max(span.start_ms);
                    self.next(since, &job, "start", Ok(()), None);
                }
            }
            What::Gone(job, why) => self.next(at, &job, "start", Err(why), None),
            What::Began(gpu, what) => self.open(Some(gpu), Key::Device(what), what, at, Vec::new()),
            What::Ended(gpu, what, went) => self.close(Some(gpu), Key::Device(what), at, went),
        }
    }

    /// Time went by.
    pub fn tick(&mut self, now: u64) {
        for job in self.waiting() {
            let key = Key::Job(job.clone());
            let began = |thread: &Thread| thread.open.get(&key).map(|span| span.start_ms);
            if self
                .threads
                .values()
                .find_map(began)
                .is_some_and(|began| now > began + PATIENCE)
            {
                self.take(
                    now,
                    What::Gone(job, "it has not started within 15 minutes".into()),
                );
            }
        }
        for thread in self.threads.values_mut() {
            if thread.open.is_empty() && now > thread.first.end_ms + QUIET && !thread.ended {
                thread.ended = true;
                self.done.push(thread.first.clone());
            }
        }
        let out = &self.out;
        self.threads.retain(|gpu, thread| {
            let back = gpu.is_none_or(|gpu| !out.contains(&gpu));
            !(thread.ended && thread.open.is_empty() && back)
        });
        let over = self.done.len().saturating_sub(MOST);
        self.done.drain(..over);
    }

    /// Jobs that may start again and have not been seen to run.
    pub fn waiting(&self) -> Vec<JobId> {
        let open = self.threads.values().flat_map(|thread| &thread.open);
        let starts = open.filter_map(|(key, span)| match key {
            Key::Job(job) if span.name == "start" => Some(job.clone()),
            _ => None,
        });
        starts.collect()
    }

    /// Spans that have ended; [`Follower::sent`] takes them away.
    pub fn done(&self) -> &[Span] {
        &self.done
    }

    /// All that [`Follower::done`] had are sent.
    pub fn sent(&mut self) {
        self.done.clear();
    }

    fn admin(&mut self, at: u64, admin: &Admin) {
        // What went on with the GPU is another trace, and over.
        if let Some(mut before) = self.threads.remove(&admin.gpu) {
            for (_, mut span) in std::mem::take(&mut before.open) {
                (span.end_ms, span.error) = (at, Some("an administrator's command came".into()));
                self.done.push(span);
            }
            if !before.ended {
                self.done.push(before.first);
            }
        }
        let mut attributes = vec![
            ("gpuos.uid", admin.uid.to_string()),
            ("gpuos.force", admin.force.to_string()),
        ];
        if !admin.reason.is_empty() {
            attributes.push(("gpuos.reason", admin.reason.clone()));
        }
        self.begin(admin.gpu, admin.verb.word(), at, attributes);
    }

    fn publish(&mut self, at: u64, revision: u64, out: Vec<NodeGpu>) {
        let out: BTreeSet<NodeGpu> = out.into_iter().collect();
        let changed: Vec<NodeGpu> = out.symmetric_difference(&self.out).copied().collect();
        self.out = out;
        for gpu in changed {
            if self.out.contains(&gpu)
                && self
                    .threads
                    .get(&Some(gpu))
                    .is_none_or(|thread| thread.ended)
            {
                self.recovery(gpu, at);
            }
            self.open(Some(gpu), Key::Publish(revision), "publish", at, Vec::new());
        }
    }

    /// A trace of a fault, if there was one: after a start what stands there is published again.
    fn recovery(&mut self, gpu: NodeGpu, at: u64) {
        let recent = |when: u64| at.saturating_sub(when) < RECENT;
        let mut rules = self.rules.remove(&gpu).unwrap_or_default();
        rules.retain(|_, when| recent(*when));
        let Some(judged) = rules.values().copied().min() else {
            return;
        };
        let rules = rules.into_keys().collect::<Vec<_>>().join(",");
        let mut faults = self.faults.remove(&gpu).unwrap_or_default();
        faults.retain(|(when, _)| recent(*when));
        let start = faults.first().map_or(judged, |(when, _)| *when);
        self.begin(Some(gpu), "recovery", start, vec![("gpuos.rule", rules)]);
        for (when, text) in faults {
            self.add_event(Some(gpu), when, &text);
        }
    }

    fn requeue(&mut self, at: u64, job: &JobId, gpus: &[NodeGpu]) {
        // The rules ask for it again while the job is here.
        if self.of_job(job).is_some() {
            return;
        }
        let with_fault = gpus
            .iter()
            .map(|gpu| Some(*gpu))
            .find(|gpu| self.threads.contains_key(gpu));
        let of = with_fault.unwrap_or(None);
        if !self.threads.contains_key(&of) {
            self.begin(None, "recovery", at, Vec::new());
        }
        self.open(
            of,
            Key::Job(job.clone()),
            "requeue",
            at,
            vec![("gpuos.job", job.to_string())],
        );
    }

    /// A job's span ends, and the next begins.
    fn next(
        &mut self,
        at: u64,
        job: &JobId,
        name: &str,
        went: ActionResult,
        then: Option<&'static str>,
    ) {
        let Some(of) = self.of_job(job) else { return };
        let key = Key::Job(job.clone());
        let is = |thread: &Thread| thread.open.get(&key).is_some_and(|span| span.name == name);
        if !self.threads.get(&of).is_some_and(is) {
            return;
        }
        let well = went.is_ok();
        self.close(of, key.clone(), at, went);
        if let (true, Some(then)) = (well, then) {
            self.open(of, key, then, at, vec![("gpuos.job", job.to_string())]);
        }
    }

    fn of_job(&self, job: &JobId) -> Option<Option<NodeGpu>> {
        let key = Key::Job(job.clone());
        let mut threads = self.threads.iter();
        threads.find_map(|(of, thread)| thread.open.contains_key(&key).then_some(*of))
    }

    fn begin(
        &mut self,
        gpu: Option<NodeGpu>,
        name: &'static str,
        at: u64,
        mut attributes: Vec<(&'static str, String)>,
    ) {
        if let Some(gpu) = gpu {
            attributes.push(("gpuos.gpu", gpu.to_string()));
        }
        let first = Span {
            trace: self.ids.new_trace_id(),
            id: self.ids.new_span_id(),
            parent: SpanId::INVALID,
            name,
            start_ms: at,
            end_ms: at,
            attributes,
            events: Vec::new(),
            error: None,
        };
        let open = BTreeMap::new();
        self.threads.insert(
            gpu,
            Thread {
                first,
                open,
                ended: false,
            },
        );
    }

    /// A sentence of the first span, while it has not ended.
    fn add_event(&mut self, gpu: Option<NodeGpu>, at: u64, text: &str) {
        if let Some(thread) = self.threads.get_mut(&gpu)
            && !thread.ended
            && thread.first.events.len() < MOST
        {
            thread.first.events.push((at, text.into()));
            thread.first.end_ms = thread.first.end_ms.max(at);
        }
    }

    /// Begins a span of a trace, if the GPU has one.
    fn open(
        &mut self,
        of: Option<NodeGpu>,
        key: Key,
        name: &'static str,
        at: u64,
        attributes: Vec<(&'static str, String)>,
    ) {
        let Some(thread) = self.threads.get_mut(&of) else {
            return;
        };
        let span = Span {
            id: self.ids.new_span_id(),
            parent: thread.first.id,
            name,
            start_ms: at,
            end_ms: at,
            attributes,
            events: Vec::new(),
            ..thread.first.clone()
        };
        thread.open.entry(key).or_insert(span);
    }

    fn close(&mut self, of: Option<NodeGpu>, key: Key, at: u64, went: ActionResult) {
        let Some(thread) = self.threads.get_mut(&of) else {
            return;
        };
        let Some(mut span) = thread.open.remove(&key) else {
            return;
        };
        (span.end_ms, span.error) = (at, went.err());
        thread.first.end_ms = thread.first.end_ms.max(at);
        self.done.push(span);
    }
}
