//! Xids of the kernel's log, for what NVIDIA's library does not tell: where it cannot be opened, hangs, or is
//! closed for a reset.
//!
//! The driver writes several lines for one event, and NVML's event comes before or after them. So a line counts
//! only where NVML told no Xid of that number of that GPU shortly before and does not shortly after, and
//! lines of the same kind count once.

use std::time::{Duration, Instant};

use gpuos_core::health::Event;
use gpuos_host::kernel_log::KernelXid;

/// NVML is given so long to tell it.
const WAIT: Duration = Duration::from_secs(5);
/// For so long lines of the same kind belong to one event.
const SAME: Duration = Duration::from_secs(10);
/// Kinds that are remembered; a GPU shows few of them in ten seconds.
const MOST: usize = 1024;

/// A line that waits, and kinds that were told of late.
#[derive(Debug, Default)]
pub struct Second {
    waiting: Vec<(u8, KernelXid, Instant)>,
    told: Vec<(u8, u32, Instant)>,
}

impl Second {
    /// NVML told an Xid.
    pub fn by_library(&mut self, gpu: u8, code: u32, now: Instant) {
        self.waiting
            .retain(|(of, xid, _)| (*of, xid.code) != (gpu, code));
        self.remember(gpu, code, now);
    }

    /// The kernel logged one.
    pub fn by_kernel(&mut self, gpu: u8, xid: KernelXid, now: Instant) {
        let told = |(of, code, at): &(u8, u32, Instant)| {
            (*of, *code) == (gpu, xid.code) && now.duration_since(*at) < SAME
        };
        let waits =
            |(of, other, _): &(u8, KernelXid, Instant)| (*of, other.code) == (gpu, xid.code);
        let known = self.told.iter().any(told) || self.waiting.iter().any(waits);
        if !known && self.waiting.len() < MOST {
            self.waiting.push((gpu, xid, now));
        }
    }

    /// What NVML did not tell.
    pub fn due(&mut self, now: Instant) -> Vec<Event> {
        self.told.retain(|(.., at)| now.duration_since(*at) < SAME);
        let waited = |(.., at): &mut (u8, KernelXid, Instant)| now.duration_since(*at) >= WAIT;
        let due: Vec<_> = self.waiting.extract_if(.., waited).collect();
        let event = |(gpu, xid, _): (u8, KernelXid, Instant)| {
            self.remember(gpu, xid.code, now);
            Event::Xid {
                gpu,
                code: xid.code,
                gpu_instance: xid.gpu_instance,
                compute_instance: xid.compute_instance,
                pid: xid.pid,
            }
        };
        due.into_iter().map(event).collect()
    }

    fn remember(&mut self, gpu: u8, code: u32, now: Instant) {
        self.told
            .retain(|(of, other, _)| (*of, *other) != (gpu, code));
        if self.told.len() < MOST {
            self.told.push((gpu, code, now));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        second.by_library(0, 48, at(0));
        second.by_kernel(0, xid(48), at(1));
        second.by_kernel(1, xid(48), at(1));
        second.by_kernel(1, xid(48), at(2));
        second.by_library(1, 48, at(3));
        second.by_kernel(2, xid(79), at(3));
        second.by_kernel(2, xid(79), at(4));
        assert_eq!(second.due(at(7)), []);
        let told = second.due(at(9));
        assert!(
            matches!(
                told[..],
                [Event::Xid {
                    gpu: 2,
                    code: 79,
                    pid: Some(17),
                    ..
                }]
            ),
            "{told:?}"
        );
        // Lines that come late belong to it; those long after are another event.
        second.by_kernel(2, xid(79), at(12));
        assert_eq!(second.due(at(30)), []);
        second.by_kernel(2, xid(79), at(31));
        assert_eq!(second.due(at(36)).len(), 1);
    }
}
