//! Event sets: waiting for what happens to GPUs.

use std::ffi::{c_uint, c_ulonglong};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nvml::{nvmlDevice_t, nvmlEventData_st, nvmlEventSet_t};
use nvml_wrapper_sys::bindings as nvml;

use super::call::{Answer, code};
use super::session::{View, answer, shared};
use super::{Out, Target, device_handle, gpu, nvml};
use crate::latency::Cost::Driver;
use crate::state::{Event, MAX_EVENTS, MAX_GPUS, NO_INSTANCE, Node};

/// The kinds of event that every board has.
const BASIC: u32 = nvml::nvmlEventTypeSingleBitEccError
    | nvml::nvmlEventTypeDoubleBitEccError
    | nvml::nvmlEventTypePState
    | nvml::nvmlEventTypeXidCriticalError
    | nvml::nvmlEventTypeClock;

/// Kinds that came with boards which remap rows.
const LATER: u32 = nvml::nvmlEventTypeSingleBitEccErrorStorm
    | nvml::nvmlEventTypeDramRetirementEvent
    | nvml::nvmlEventTypeDramRetirementFailure
    | nvml::nvmlEventTypeNonFatalPoisonError
    | nvml::nvmlEventTypeFatalPoisonError
    | nvml::nvmlEventTypeGpuUnavailableError
    | nvml::nvmlEventTypeGpuRecoveryAction;

/// An event set of this process.
#[derive(Default)]
struct Set {
    /// Kinds wanted, by GPU, and from which event on.
    wanted: [u64; MAX_GPUS],
    since: [u64; MAX_GPUS],
    /// The next event that was not looked at.
    next: u64,
}

/// By number of the handle, less one.
static SETS: Mutex<Vec<Option<Arc<Mutex<Set>>>>> = Mutex::new(Vec::new());

/// What a set's handle carries, so that other numbers are refused.
const TAG: usize = 0x55 << 56;

fn sets<R>(work: impl FnOnce(&mut Vec<Option<Arc<Mutex<Set>>>>) -> R) -> R {
    work(&mut SETS.lock().unwrap_or_else(PoisonError::into_inner))
}

fn number(handle: nvmlEventSet_t) -> Answer<usize> {
    let number = handle.addr() ^ TAG;
    (number > 0).then(|| number - 1).ok_or(code::INVALID)
}

fn with<R>(handle: nvmlEventSet_t, work: impl FnOnce(&mut Set) -> Answer<R>) -> Answer<R> {
    let number = number(handle)?;
    let set = sets(|sets| sets.get(number).cloned().flatten()).ok_or(code::INVALID)?;
    work(&mut set.lock().unwrap_or_else(PoisonError::into_inner))
}

fn supported(view: &View<'_>) -> u64 {
    let later = if view.board.row_banks > 0 { LATER } else { 0 };
    let mig = if view.board.mig.is_some() {
        nvml::nvmlEventMigConfigChange
    } else {
        0
    };
    (BASIC | later | mig).into()
}

/// What the set has to tell: an event, or that one of its GPUs is gone.
fn look(node: &Node, set: &mut Set) -> Option<Answer<Event>> {
    // Events that were overwritten before anybody looked are lost, as in the driver's queue.
    let oldest = node.next_event.saturating_sub(MAX_EVENTS as u64);
    set.next = set.next.max(oldest).min(node.next_event);
    while set.next < node.next_event {
        let event = node.events[set.next as usize % MAX_EVENTS];
        set.next += 1;
        let gpu = event.gpu as usize % MAX_GPUS;
        if set.wanted[gpu] & event.kind != 0 && set.next > set.since[gpu] {
            return Some(Ok(event));
        }
    }
    let lost = |(gpu, wanted): (&crate::state::Gpu, &u64)| gpu.lost != 0 && *wanted != 0;
    node.gpus()
        .iter()
        .zip(&set.wanted)
        .any(lost)
        .then_some(Err(code::LOST))
}

fn wait(
    handle: nvmlEventSet_t,
    out: &Out<nvmlEventData_st>,
    limit_ms: c_uint,
    instances: bool,
) -> Answer<()> {
    let shared = shared()?;
    if out.is_null() {
        return Err(code::INVALID);
    }
    let end = Instant::now() + Duration::from_millis(limit_ms.into());
    loop {
        let seen = shared.changes();
        let found = with(handle, |set| Ok(shared.read(|node| look(node, set))))?;
        if let Some(found) = found {
            let event = found?;
            return out.set(nvmlEventData_st {
                device: device_handle(Target::Gpu(event.gpu as usize)),
                eventType: event.kind,
                eventData: event.data,
                gpuInstanceId: if instances {
                    event.gpu_instance
                } else {
                    NO_INSTANCE
                },
                computeInstanceId: if instances {
                    event.compute_instance
                } else {
                    NO_INSTANCE
                },
            });
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(code::TIMEOUT);
        }
        shared.wait(seen, left);
    }
}

nvml! {
    fn nvmlEventSetCreate(out: Out<nvmlEventSet_t>) {
        let next = shared()?.read(|node| node.next_event);
        let made = sets(|sets| {
            let made = Some(Arc::new(Mutex::new(Set { next, ..Set::default() })));
            match sets.iter().position(Option::is_none) {
                Some(free) => {
                    sets[free] = made;
                    free
                }
                None => {
                    sets.push(made);
                    sets.len() - 1
                }
            }
        });
        out.set(std::ptr::without_provenance_mut(TAG ^ (made + 1)))
    }
    fn nvmlDeviceGetSupportedEventTypes(device: nvmlDevice_t, out: Out<c_ulonglong>) {
        answer(device, &out, Driver, |view| Ok(supported(&view)))
    }
    fn nvmlDeviceRegisterEvents(
        device: nvmlDevice_t,
        kinds: c_ulonglong,
        handle: nvmlEventSet_t,
    ) {
        let (index, next, possible) =
            gpu(device, Driver, |view| Ok((view.index, view.node.next_event, supported(&view))))?;
        if kinds & !possible != 0 {
            return Err(code::UNSUPPORTED);
        }
        with(handle, |set| {
            if set.wanted[index] == 0 {
                set.since[index] = next;
            }
            set.wanted[index] |= kinds;
            Ok(())
        })
    }
    fn nvmlEventSetWait(handle: nvmlEventSet_t, out: Out<nvmlEventData_st>, limit_ms: c_uint) {
        wait(handle, &out, limit_ms, false)
    }
    fn nvmlEventSetWait_v2(handle: nvmlEventSet_t, out: Out<nvmlEventData_st>, limit_ms: c_uint) {
        wait(handle, &out, limit_ms, true)
    }
    fn nvmlEventSetFree(handle: nvmlEventSet_t) {
        shared()?;
        let number = number(handle)?;
        let freed = sets(|sets| sets.get_mut(number).and_then(Option::take));
        freed.map(|_| ()).ok_or(code::INVALID)
    }
}
