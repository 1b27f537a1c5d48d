//! Xids of the kernel's log, for what NVIDIA's library does not tell: where it cannot be opened, hangs, or is
//! closed for a reset.
//!
//! The driver writes several lines for one event, and NVML's event comes before or after them. So a line counts
//! only where NVML told no Xid of that number of that GPU shortly before and does not shortly after, and
//! lines of the same kind count once. Whether it is believed, the health rules say.

use std::time::{Duration, Instant};

use gpuos_core::health::Event;
use gpuos_host::hardware::kernel_log::KernelXid;
use gpuos_model::node_gpu::NodeGpu;

/// NVML is given so long to tell it.
const WAIT: Duration = Duration::from_secs(5);
/// For so long lines of the same kind belong to one event.
const SAME: Duration = Duration::from_secs(10);
/// Kinds of one GPU that are remembered: somewhat more than there are rules, which are some hundred.
const MOST: usize = 256;
/// All numbers that no rule has are one kind: users may make up many.
const UNKNOWN: u32 = u32::MAX;

/// A line, and what is remembered of it.
#[derive(Debug)]
struct Waiting {
    gpu: NodeGpu,
    /// Its number, or [`UNKNOWN`].
    kind: u32,
    xid: KernelXid,
    since: Instant,
}

/// Lines that wait, and kinds that were told of late.
#[derive(Debug, Default)]
pub struct Second {
    waiting: Vec<Waiting>,
    reported: Vec<(NodeGpu, u32, Instant)>,
}

impl Second {
    /// NVML told an Xid.
    pub fn by_library(&mut self, gpu: NodeGpu, code: u32, known: bool, now: Instant) {
        self.waiting
            .retain(|line| (line.gpu, line.xid.code) != (gpu, code));
        self.remember(gpu, kind(code, known), now);
    }

    /// The kernel logged one; `known`: a rule has its number.
    pub fn by_kernel(&mut self, gpu: NodeGpu, xid: KernelXid, known: bool, now: Instant) {
        let kind = kind(xid.code, known);
        let told = |(of, other, at): &(NodeGpu, u32, Instant)| {
            (*of, *other) == (gpu, kind) && now.duration_since(*at) < SAME
        };
        let waits = |line: &Waiting| (line.gpu, line.kind) == (gpu, kind);
        let had = self.reported.iter().any(told) || self.waiting.iter().any(waits);
        let of_gpu = self.waiting.iter().filter(|line| line.gpu == gpu).count();
        if !had && of_gpu < MOST {
            self.waiting.push(Waiting {
                gpu,
                kind,
                xid,
                since: now,
            });
        }
    }

    /// What NVML did not tell.
    pub fn due(&mut self, now: Instant) -> Vec<Event> {
        self.reported
            .retain(|(.., at)| now.duration_since(*at) < SAME);
        let waited = |line: &mut Waiting| now.duration_since(line.since) >= WAIT;
        let due: Vec<_> = self.waiting.extract_if(.., waited).collect();
        let event = |line: Waiting| {
            self.remember(line.gpu, line.kind, now);
            Event::Logged {
                gpu: line.gpu,
                code: line.xid.code,
                gpu_instance: line.xid.gpu_instance,
                pid: line.xid.pid,
            }
        };
        due.into_iter().map(event).collect()
    }

    fn remember(&mut self, gpu: NodeGpu, kind: u32, now: Instant) {
        self.reported
            .retain(|(of, other, _)| (*of, *other) != (gpu, kind));
        if self.reported.iter().filter(|(of, ..)| *of == gpu).count() < MOST {
            self.reported.push((gpu, kind, now));
        }
    }
}

fn kind(code: u32, known: bool) -> u32 {
    if known { code } else { UNKNOWN }
}

/// Lines about GPUs that gpuosd does not know: said once in a while, with how many there were.
#[derive(Debug, Default)]
pub struct Strangers {
    logged: Option<Instant>,
    suppressed: u64,
}

/// See there.
const SAY_EVERY: Duration = Duration::from_secs(60);

impl Strangers {
    /// One more came. `Some`: it is to be said, with so many that were not.
    pub fn came(&mut self, now: Instant) -> Option<u64> {
        let late = |at: Instant| now.duration_since(at) >= SAY_EVERY;
        if !self.logged.is_none_or(late) {
            self.suppressed = self.suppressed.saturating_add(1);
            return None;
        }
        self.logged = Some(now);
        Some(std::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nth(gpu: u8) -> NodeGpu {
        NodeGpu::try_from(gpu).expect("a GPU")
    }

    fn xid(code: u32) -> KernelXid {
        KernelXid {
            pci: "0000:1b:00".into(),
            code,
            gpu_instance: None,
            compute_instance: None,
            pid: Some(17),
        }
    }

    #[test]
    fn an_xid_counts_once_whoever_tells_it_first() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut second = Second::default();
        // The library first, the library after, the library never.
        second.by_library(nth(0), 48, true, at(0));
        second.by_kernel(nth(0), xid(48), true, at(1));
        second.by_kernel(nth(1), xid(48), true, at(1));
        second.by_kernel(nth(1), xid(48), true, at(2));
        second.by_library(nth(1), 48, true, at(3));
        second.by_kernel(nth(2), xid(79), true, at(3));
        second.by_kernel(nth(2), xid(79), true, at(4));
        assert_eq!(second.due(at(7)), []);
        let told = second.due(at(9));
        assert!(
            matches!(
                told[..],
                [Event::Logged {
                    gpu,
                    code: 79,
                    pid: Some(17),
                    ..
                }] if gpu == nth(2)
            ),
            "{told:?}"
        );
        // Lines that come late belong to it; those long after are another event.
        second.by_kernel(nth(2), xid(79), true, at(12));
        assert_eq!(second.due(at(30)), []);
        second.by_kernel(nth(2), xid(79), true, at(31));
        assert_eq!(second.due(at(36)).len(), 1);
    }

    #[test]
    fn numbers_that_are_made_up_leave_room_for_those_that_are_not() {
        let start = Instant::now();
        let mut second = Second::default();
        for code in 1000..9000 {
            second.by_kernel(nth(0), xid(code), false, start);
        }
        second.by_kernel(nth(0), xid(79), true, start);
        second.by_kernel(nth(1), xid(7777), false, start);
        let told = second.due(start + WAIT);
        let code = |event: &Event| match event {
            Event::Logged { gpu, code, .. } => (*gpu, *code),
            other => panic!("{other:?}"),
        };
        let codes: Vec<(NodeGpu, u32)> = told.iter().map(code).collect();
        assert_eq!(codes, [(nth(0), 1000), (nth(0), 79), (nth(1), 7777)]);
    }

    #[test]
    fn lines_about_strangers_are_said_once_a_minute() {
        let start = Instant::now();
        let mut strangers = Strangers::default();
        let said: Vec<u64> = (0..125)
            .filter_map(|second| strangers.came(start + Duration::from_secs(second)))
            .collect();
        assert_eq!(said, [0, 59, 59]);
    }
}
