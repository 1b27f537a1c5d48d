//! In slurmstepd: tells gpuosd of this node which step has which GPUs. Without a gpuosd nothing happens.
//!
//! The socket does not block, two lines go out in one piece that fits into any socket's buffer, and no answer
//! is read. What does not go through at once is left out; gpuosd asks Slurm then. Only a job that wants its
//! GPUs set waits for the answer, for [`PATIENCE`] at most; and one with slices of GPUs, which has nothing before
//! they are made, for [`CARVING`], also over a gpuosd that is started anew. So does one with a whole MIG-switchable GPU, in
//! GRES `gpu` and GRES `gpuos`: it may still be divided.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use gpuos_config::options::{Inherited, OptionHelp};
use gpuos_core::limits::Asked;
use gpuos_core::step::StepId;
use gpuos_core::wire::{
    Code, Lines, MAX_REPLY, MAX_REQUEST, MigAsk, PROTOCOL, Reason, Reply, Request, decode, encode,
    root_socket, switchable_file,
};
use gpuos_model::gpuset::GpuSet;
use gpuos_model::messages::Message;
use gpuos_placement::explain::parse_gpus;

use crate::messages;

/// gpuosd's socket, unless plugstack.conf names another: `spank_gpuos.so socket=PATH`, with `%n` for the
/// name of the node.
const SOCKET: &str = "/run/gpuos/gpuosd.sock";

/// How long a step waits for its GPUs to be set: gpuosd needs a moment for it, and one that hangs is to hold
/// up nobody.
const PATIENCE: Duration = Duration::from_secs(2);

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
/// `argv` has `argc` C strings, as SPANK hands them to every hook.
pub unsafe fn socket(argc: c_int, argv: *const *mut c_char) -> String {
    let count = usize::try_from(argc).unwrap_or(0);
    let mut socket = SOCKET.to_owned();
    for at in 0..if argv.is_null() { 0 } else { count } {
        // SAFETY: promised by the caller.
        let word = unsafe { *argv.add(at) };
        if word.is_null() {
            continue;
        }
        // SAFETY: a C string, promised by the caller.
        let word = unsafe { CStr::from_ptr(word) }.to_str().unwrap_or_default();
        if let Some(path) = word.strip_prefix("socket=") {
            socket = path.to_owned();
        }
    }
    socket
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
        _ if !asked.waits() => StepAnswer::default(),
        None => StepAnswer::note(messages::no_gpuosd(wishes(&asked))),
        Some(socket) => {
            let undone = wishes(&asked);
            match answer(&socket, Instant::now() + PATIENCE) {
                Some(Answer::Prepared(told)) => told,
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
                Some(Answer::Prepared(told)) => return told,
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

/// What gpuosd says to a step.
enum Answer {
    Prepared(StepAnswer),
    Refused(Code, String),
    /// A release that knew no such wish.
    Unknown,
}

/// Waits for gpuosd's answer; none when the time is over or it has gone.
fn answer(socket: &OwnedFd, deadline: Instant) -> Option<Answer> {
    let mut lines = Lines::new(MAX_REPLY);
    loop {
        while let Some(line) = lines.next_line().ok()? {
            match decode::<Reply>(&line, MAX_REPLY).ok()? {
                Reply::Hello { .. } => {}
                Reply::Prepared {
                    notes,
                    environment,
                    failed,
                } => {
                    return Some(Answer::Prepared(StepAnswer {
                        notes,
                        environment,
                        requeues: failed.is_some(),
                        failed,
                    }));
                }
                Reply::Refused { code, message } => return Some(Answer::Refused(code, message)),
                Reply::Done { .. } => return Some(Answer::Unknown),
                _ => return None,
            }
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let mut poll = libc::pollfd {
            fd: socket.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one descriptor that is open, and its record.
        if left.is_zero() || unsafe { libc::poll(&raw mut poll, 1, left.as_millis() as i32) } < 0 {
            return None;
        }
        let mut bytes = [0u8; 4096];
        // SAFETY: the buffer has `len` bytes.
        let got = unsafe {
            libc::recv(
                socket.as_raw_fd(),
                bytes.as_mut_ptr().cast(),
                bytes.len(),
                libc::MSG_DONTWAIT,
            )
        };
        match usize::try_from(got) {
            Ok(0) => return None,
            Ok(count) => lines.push(&bytes[..count]),
            // Nothing yet: time decides. A gpuosd that was killed is an error.
            Err(_) if is_for_later(&std::io::Error::last_os_error()) => {}
            Err(_) => return None,
        }
    }
}

fn is_for_later(error: &std::io::Error) -> bool {
    use std::io::ErrorKind;
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// Tells that the step has ended, if its start was told.
pub fn ended() {
    let told = TOLD.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some((path, id)) = told {
        let _ = send(&path, &Request::StepEnd { id });
    }
}

fn send(path: &str, request: &Request) -> Option<OwnedFd> {
    let hello = Request::Hello {
        protocol: PROTOCOL,
        client: concat!("spank_gpuos ", env!("CARGO_PKG_VERSION")).into(),
    };
    let mut text = encode(&hello, MAX_REQUEST).ok()?;
    text.extend(encode(request, MAX_REQUEST).ok()?);
    // slurmstepd is root here, and root has a socket of its own that no user can fill.
    let socket = connect(&root_socket(path)).or_else(|| connect(path))?;
    // SAFETY: the descriptor is open and the buffer has `len` bytes. Nobody at the other end is no signal.
    let sent = unsafe {
        libc::send(
            socket.as_raw_fd(),
            text.as_ptr().cast(),
            text.len(),
            libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT,
        )
    };
    (usize::try_from(sent) == Ok(text.len())).then_some(socket)
}

/// Connects at once or not at all: std's connect would wait for a daemon whose queue is full.
fn connect(path: &str) -> Option<OwnedFd> {
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers.
    let raw = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
    if raw < 0 {
        return None;
    }
    // SAFETY: just opened, and nobody else has it.
    let socket = unsafe { OwnedFd::from_raw_fd(raw) };
    // SAFETY: sockaddr_un is plain numbers, for which zero is a value.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    // One zero has to stay at the end.
    if path.len() >= address.sun_path.len() {
        return None;
    }
    for (to, from) in address.sun_path.iter_mut().zip(path.bytes()) {
        *to = from as c_char;
    }
    let size = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: the descriptor is open, the address is whole and of that size.
    let rc = unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), size) };
    (rc == 0).then_some(socket)
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
