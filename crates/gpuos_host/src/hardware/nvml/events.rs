//! Waiting for events of all GPUs at once.

use std::time::Duration;

use nvml_wrapper_sys::bindings as nvml;

use super::driver::{Session, instance};
use super::raw::{Event, Raw, Set};
use super::{Answer, Error, GpuEvent, Happening};

/// What is listened to, where the GPU has it. Clocks and performance states change too often to be news.
const KINDS: u32 = nvml::nvmlEventTypeSingleBitEccError
    | nvml::nvmlEventTypeDoubleBitEccError
    | nvml::nvmlEventTypeXidCriticalError
    | nvml::nvmlEventMigConfigChange
    | nvml::nvmlEventTypeSingleBitEccErrorStorm
    | nvml::nvmlEventTypeDramRetirementEvent
    | nvml::nvmlEventTypeDramRetirementFailure
    | nvml::nvmlEventTypeNonFatalPoisonError
    | nvml::nvmlEventTypeFatalPoisonError
    | nvml::nvmlEventTypeGpuUnavailableError
    | nvml::nvmlEventTypeGpuRecoveryAction;

/// Events taken in one go.
const MOST: usize = 256;

/// The event set, and who is not in it any more.
#[derive(Default)]
pub(super) struct Listener {
    set: Option<Set>,
    /// Lost GPUs, by index. The library tells of one again and again while it is in the set.
    lost: Vec<bool>,
}

impl Listener {
    /// Waits up to `limit` for the first event; takes all that are there.
    pub(super) fn listen(
        &mut self,
        raw: &Raw,
        session: &Session,
        limit: Duration,
    ) -> Answer<Vec<GpuEvent>> {
        let set = match self.set.take() {
            Some(set) => set,
            None => self.register(raw, session)?,
        };
        let mut found = Vec::new();
        let mut wait = limit.as_millis() as u32;
        let end = loop {
            match raw.wait(&set, wait) {
                Ok(Some(event)) => found.extend(translate(raw, session, &event)),
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
            if found.len() >= MOST {
                break Ok(());
            }
            wait = 0;
        };
        match end {
            Ok(()) => self.set = Some(set),
            Err(Error::Lost) => {
                // A new set without the lost ones is made by the next call. What happens in
                // between is lost; recovery actions and counters show it in the next poll.
                raw.free(set);
                let gone = self.newly_lost(raw, session);
                if gone.is_empty() && found.is_empty() {
                    return Err(Error::Lost);
                }
                found.extend(gone);
            }
            Err(error) => {
                raw.free(set);
                if found.is_empty() {
                    return Err(error);
                }
            }
        }
        Ok(found)
    }

    /// Ends listening, and forgets who was lost.
    pub(super) fn stop(&mut self, raw: &Raw) {
        if let Some(set) = self.set.take() {
            raw.free(set);
        }
        self.lost.clear();
    }

    fn register(&mut self, raw: &Raw, session: &Session) -> Answer<Set> {
        self.lost.resize(session.devices.len(), false);
        let set = raw.new_set()?;
        for (device, lost) in session.devices.iter().zip(&self.lost) {
            let Ok(device) = device else { continue };
            if *lost {
                continue;
            }
            // A GPU that cannot be registered is one that its polls tell of.
            if let Ok(kinds) = raw.event_kinds(*device) {
                let _ = raw.register(*device, kinds & u64::from(KINDS), &set);
            }
        }
        Ok(set)
    }

    fn newly_lost(&mut self, raw: &Raw, session: &Session) -> Vec<GpuEvent> {
        let mut gone = Vec::new();
        for (gpu, (device, lost)) in (0..).zip(session.devices.iter().zip(&mut self.lost)) {
            let Ok(device) = device else { continue };
            if !*lost && raw.temperature(*device) == Err(Error::Lost) {
                *lost = true;
                let what = Happening::Lost;
                gone.push(GpuEvent { gpu, what });
            }
        }
        gone
    }
}

fn translate(raw: &Raw, session: &Session, event: &Event) -> Option<GpuEvent> {
    let known = session
        .devices
        .iter()
        .position(|device| *device == Ok(event.device));
    let gpu = match known {
        Some(index) => index as u8,
        None => raw.index(event.device).ok()?.try_into().ok()?,
    };
    let [gpu_instance, compute_instance] = event.instances.map(instance);
    let what = match u32::try_from(event.kind).unwrap_or(0) {
        nvml::nvmlEventTypeXidCriticalError => Happening::Xid {
            code: event.data as u32,
            gpu_instance,
            compute_instance,
        },
        nvml::nvmlEventTypeSingleBitEccError => Happening::Ecc { uncorrected: false },
        nvml::nvmlEventTypeDoubleBitEccError => Happening::Ecc { uncorrected: true },
        nvml::nvmlEventTypeGpuRecoveryAction => Happening::RecoveryAction,
        nvml::nvmlEventMigConfigChange => Happening::MigChanged,
        _ => Happening::Other(event.kind),
    };
    Some(GpuEvent { gpu, what })
}
