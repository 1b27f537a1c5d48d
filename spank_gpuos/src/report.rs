//! In slurmstepd: tells gpuosd of this node which step has which GPUs. Without a gpuosd nothing happens.
//!
//! No answer is read, and what does not go through at once is left out; gpuosd asks Slurm then. Only a job that wants its
//! GPUs set, or has memory beyond that of its GPUs, waits for the answer, for [`PATIENCE`] at most; and one with slices of GPUs, which has nothing before
//! they are made, for [`CARVING`], also over a gpuosd that is started anew. So does one with a whole MIG-switchable GPU, in
//! GRES `gpu` and GRES `gpuos`: it may still be divided.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int};
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use gpuos_config::options::{Inherited, OptionHelp};
use gpuos_core::limits::Asked;
use gpuos_core::step::StepId;
use gpuos_core::wire::{Code, MigAsk, Reason, Request, StepMemory, switchable_file};
use gpuos_model::gpuset::GpuSet;
use gpuos_model::messages::Message;
use gpuos_placement::explain::parse_gpus;

use crate::daemon::{self, Answer, answer, send};
use crate::messages;

/// gpuosd's socket, unless plugstack.conf names another: `spank_gpuos.so socket=PATH`, with `%n` for the
/// name of the node.
const SOCKET: &str = "/run/gpuos/gpuosd.sock";

/// How long a step waits for its GPUs to be set: gpuosd needs a moment for it, and one that hangs is to hold
/// up nobody. What plays gpuosd in tests may need longer on a busy machine.
const PATIENCE: Duration = Duration::from_secs(if cfg!(test) { 15 } else { 2 });

/// How long a step waits for its slices: what held them before it may have to be killed. slurmd drains the node where a
/// step has not ended within its UnkillableStepTimeout, 60 s unless slurm.conf says otherwise, after a scancel, and this
/// wait cannot be broken off: it stays below that, with time to end the tasks. gpuosd answers before.
const CARVING: Duration = Duration::from_secs(45);

/// How long a step with slices waits for a gpuosd where none listens.
const ABSENCE: Duration = Duration::from_secs(10);

/// How long it waits before it asks again.
const AGAIN: Duration = Duration::from_millis(250);

/// Where the report of this slurmstepd's step went, so that its end goes there too.
static TOLD: Mutex<Option<(String, StepId)>> = Mutex::new(None);

/// The socket that the plugin's arguments name.
///
/// # Safety
/// As [`daemon::argument`].
pub unsafe fn socket(argc: c_int, argv: *const *mut c_char) -> String {
    // SAFETY: promised by the caller.
    let named = unsafe { daemon::argument(argc, argv, "socket") };
    named.unwrap_or_else(|| SOCKET.to_owned())
}

/// What a step that asked for something is told.
#[derive(Default, Debug)]
pub struct StepAnswer {
    /// For its user.
    pub notes: Vec<String>,
    /// For its tasks.
    pub environment: BTreeMap<String, String>,
    /// Why its tasks must not run.
    pub failed: Option<String>,
    /// It is gpuosd that says so, and has the job requeued or ended.
    pub requeues: bool,
}

impl StepAnswer {
    fn prepared(
        notes: Vec<String>,
        environment: BTreeMap<String, String>,
        failed: Option<String>,
    ) -> StepAnswer {
        StepAnswer {
            notes,
            environment,
            requeues: failed.is_some(),
            failed,
        }
    }

    fn note(text: Message) -> StepAnswer {
        StepAnswer {
            notes: vec![text.into()],
            ..StepAnswer::default()
        }
    }

    fn failed(text: Message) -> StepAnswer {
        StepAnswer {
            failed: Some(text.into()),
            ..StepAnswer::default()
        }
    }
}

/// What of a step's wishes needs an answer, in words.
fn wishes(asked: &Asked) -> &'static str {
    match (asked.sets(), asked.mps.is_some()) {
        (true, true) => "power and clocks of the GPUs are not set, and MPS is not started",
        (false, true) => "MPS is not started",
        _ => "power and clocks of the GPUs are not set",
    }
}

/// A step that starts.
#[derive(Clone, Debug)]
pub struct Start {
    /// Which.
    pub id: StepId,
    /// Its user.
    pub uid: u32,
    /// Its GPUs, by Slurm's numbers.
    pub gpus: GpuSet,
    /// What its job wants of them.
    pub asked: Asked,
    /// What it has of the node's slices.
    pub mig: Option<MigAsk>,
    /// What its programs may use of the memory of each GPU.
    pub memory: Option<StepMemory>,
    /// Why it is told.
    pub reason: Reason,
}

/// Why a step is told, if it is: it has GPUs or slices, or its job has an option of this table for which gpuosd has to know of it.
pub fn reason(has_devices: bool, said: &Inherited, table: &[OptionHelp]) -> Option<Reason> {
    match (said.needs_report(table), has_devices) {
        (true, _) => Some(Reason::Option),
        (false, true) => Some(Reason::Devices),
        (false, false) => None,
    }
}

/// Tells that a step has started. Gives what its user is to be told: what was asked for its GPUs and could
/// not be done.
pub fn started(socket: &str, node: &str, start: Start) -> StepAnswer {
    let path = socket.replace("%n", node);
    let Start {
        id,
        uid,
        gpus,
        asked,
        mig,
        memory,
        reason,
    } = start;
    let switchable = !id.is_extern() && !gpus.and(switchable(&path)).is_empty();
    let lacks = match (mig.is_some(), switchable) {
        (true, _) => Some(Lacks::Slices),
        (false, true) => Some(Lacks::Whole),
        (false, false) => None,
    };
    let request = Request::StepStart {
        id: id.clone(),
        uid,
        gpus: gpus.iter().map(|gpu| gpu as u8).collect(),
        asked,
        mig,
        switchable,
        memory,
        reason,
    };
    let sent = send(&path, &request);
    if sent.is_some() || lacks.is_some() {
        *TOLD.lock().unwrap_or_else(PoisonError::into_inner) = Some((path.clone(), id));
    }
    if let Some(lacks) = lacks {
        return carved(&path, (&request, lacks), sent, (ABSENCE, CARVING));
    }
    match sent {
        Some(socket) if memory.is_some() && !asked.waits() => {
            match answer(&socket, Instant::now() + PATIENCE) {
                // An older one takes no message with a field that it does not know, and is to know of the step all the same.
                Some(Answer::Refused(Code::Malformed, _)) => {
                    send(&path, &without_memory(request));
                    StepAnswer::note(messages::no_leases())
                }
                _ => StepAnswer::default(),
            }
        }
        _ if !asked.waits() => StepAnswer::default(),
        None => StepAnswer::note(messages::no_gpuosd(wishes(&asked))),
        Some(socket) => {
            let undone = wishes(&asked);
            match answer(&socket, Instant::now() + PATIENCE) {
                Some(Answer::Prepared {
                    notes,
                    environment,
                    failed,
                }) => StepAnswer::prepared(notes, environment, failed),
                Some(Answer::Refused(_, message)) => StepAnswer {
                    notes: vec![message],
                    ..StepAnswer::default()
                },
                Some(Answer::Unknown) => StepAnswer::note(messages::not_done(undone)),
                None => StepAnswer::note(messages::not_answered(undone, PATIENCE.as_secs())),
            }
        }
    }
}

fn without_memory(mut request: Request) -> Request {
    if let Request::StepStart { memory, .. } = &mut request {
        *memory = None;
    }
    request
}

/// The MIG-switchable GPUs, which are in GRES `gpu` and in GRES `gpuos`, by their numbers in GRES `gpu`: gpuosd says so beside its socket.
fn switchable(path: &str) -> GpuSet {
    let text = std::fs::read_to_string(switchable_file(path)).unwrap_or_default();
    parse_gpus(text.trim()).unwrap_or_default()
}

/// What a step cannot run without.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lacks {
    /// Its slices.
    Slices,
    /// MIG-switchable GPUs, out of MIG mode.
    Whole,
}

/// Waits until the slices of a step are made, or its GPUs are whole. A gpuosd that goes away meanwhile, or says while it ends or has much to do
/// that it cannot answer, is told again: it finds its own work in its journal.
fn carved(
    path: &str,
    (request, lacks): (&Request, Lacks),
    mut sent: Option<OwnedFd>,
    (absence, patience): (Duration, Duration),
) -> StepAnswer {
    let begin = Instant::now();
    let mut heard = begin;
    let mut refused = None;
    loop {
        if let Some(socket) = sent {
            match answer(&socket, begin + patience) {
                Some(Answer::Prepared {
                    notes,
                    environment,
                    failed,
                }) => return StepAnswer::prepared(notes, environment, failed),
                Some(Answer::Refused(Code::Busy | Code::Failed, message)) => {
                    refused = Some(message);
                    heard = Instant::now();
                }
                Some(Answer::Refused(_, message)) => {
                    return StepAnswer {
                        failed: Some(message),
                        ..StepAnswer::default()
                    };
                }
                // None of them is MIG-switchable any more.
                Some(Answer::Unknown) if lacks == Lacks::Whole => return StepAnswer::default(),
                Some(Answer::Unknown) => {
                    return StepAnswer::failed(messages::makes_no_slices());
                }
                None => heard = Instant::now(),
            }
        }
        let why = match (heard.elapsed() >= absence, begin.elapsed() >= patience) {
            (_, true) => {
                let last = refused.map(|why| format!("; before that it said: {why}"));
                messages::no_answer(patience.as_secs(), last.unwrap_or_default())
            }
            (true, _) => messages::nobody_listens(),
            _ => {
                std::thread::sleep(AGAIN);
                sent = send(path, request);
                continue;
            }
        };
        let what = match lacks {
            Lacks::Slices => "the slices of this job are not there",
            Lacks::Whole => "the GPUs of this job may still be in MIG mode",
        };
        return StepAnswer::failed(messages::not_carved(what, why));
    }
}

/// Tells that the step has ended, if its start was told.
pub fn ended() {
    let told = TOLD.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some((path, id)) = told {
        let _ = send(&path, &Request::StepEnd { id });
    }
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
