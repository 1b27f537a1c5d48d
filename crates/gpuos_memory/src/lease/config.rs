//! What a site may set, and what it is if it does not.

use crate::link::Bounds;

/// Bounds and times of the broker. Times are in ms, shares of 1000.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// Processes of one job.
    pub clients_per_job: usize,
    /// A turn is at least so long.
    pub quantum_ms: u64,
    /// A turn is at most so long while another job waits, unless turns are given up on.
    pub longest_ms: u64,
    /// A turn is so many switches long; at least 10.
    pub switches: u64,
    /// Turns that are worth less of the time than this are given up on.
    pub worth: u64,
    /// Who has no work for so long, and for as long as a switch takes, gives way.
    pub idle_ms: u64,
    /// For parking and for taking a turn there is at least so much time, and four times what it took so far.
    pub switch_ms: u64,
    /// Who says that work of before is under way on its GPUs has so much time to park while others wait, and more only where that took longer.
    pub work_ms: u64,
    /// Bytes a second that parking is taken to have before it was measured.
    pub rate: u64,
    /// Bytes a second that NVMe has at least: what goes there or comes from there has so much more time.
    pub nvme_rate: u64,
    /// A process that is to end and still lives is named again after this time.
    pub end_ms: u64,
    /// Who is away for so long is ended.
    pub away_ms: u64,
    /// Who is stopped by his own will, and not by the workload manager, for so long while others wait for what he has on a GPU is ended.
    pub stopped_ms: u64,
    /// Pressure on host memory begins when so much of it is used, ...
    pub high: u64,
    /// ... and ends when no more than this is.
    pub low: u64,
    /// It also begins when jobs wait for memory for so much of the time and more than [`Config::low`] is used; that ends when it is a quarter.
    pub stalled: u32,
    /// What a notice has until the next step.
    pub notice_ms: u64,
    /// What demoting may take.
    pub demote_ms: u64,
    /// Between one step that has ended and the next.
    pub cool_ms: u64,
    /// Processes whose memory they cannot move themselves are parked by the driver's own checkpoint calls. By default they are not.
    pub checkpoints: bool,
    /// What each GPU's link to the host takes.
    pub gpu_link: Bounds,
    /// What NVMe takes.
    pub nvme_link: Bounds,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            clients_per_job: 64,
            quantum_ms: 30_000,
            longest_ms: 300_000,
            switches: 20,
            worth: 800,
            idle_ms: 1000,
            switch_ms: 10_000,
            work_ms: 600_000,
            rate: 20_000_000_000,
            nvme_rate: 2_000_000_000,
            end_ms: 2000,
            away_ms: 30_000,
            stopped_ms: 600_000,
            high: 920,
            low: 850,
            stalled: 100,
            notice_ms: 1000,
            demote_ms: 10_000,
            cool_ms: 5000,
            checkpoints: false,
            gpu_link: Bounds {
                ahead_rate: 8_000_000_000,
                at_once: 2,
                ahead_at_once: 1,
                waiting: 4096,
                stays: 0,
            },
            nvme_link: Bounds {
                ahead_rate: 2_000_000_000,
                at_once: 4,
                ahead_at_once: 1,
                waiting: 4096,
                stays: 0,
            },
        }
    }
}
