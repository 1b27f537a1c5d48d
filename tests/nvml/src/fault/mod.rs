//! Faults: what can be wrong with a GPU, and what it then shows to those who ask.

mod mend;
mod words;

use nvml_wrapper_sys::bindings as nvml;

pub use mend::{reboot, repair, reset};

use crate::state::{Event, Gpu, MAX_LINKS, MAX_PAGES, NO_INSTANCE, Node, Page, now_us};

/// NVML's recovery actions.
pub const NO_ACTION: u32 = 0;
/// The GPU needs a reset.
pub const GPU_RESET: u32 = 1;
/// The node needs a reboot.
pub const NODE_REBOOT: u32 = 2;
/// P2P work has to end.
pub const DRAIN_P2P: u32 = 3;
/// Work has to end, then the GPU needs a reset.
pub const DRAIN_AND_RESET: u32 = 4;

/// One fault. [`Fault::parse`] reads it from words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// An Xid in the kernel log and in event sets, with the MIG instances that it names.
    Xid {
        /// Its number.
        xid: u32,
        /// GPU instance, or [`NO_INSTANCE`].
        gpu_instance: u32,
        /// Compute instance, or [`NO_INSTANCE`].
        compute_instance: u32,
    },
    /// ECC errors, counted since the last reset and for ever.
    Ecc {
        /// Uncorrected ones.
        uncorrected: bool,
        /// In on-chip memory.
        sram: bool,
        /// How many.
        count: u64,
        /// GPU instance they hit, or [`NO_INSTANCE`].
        gpu_instance: u32,
    },
    /// Uncorrected errors of on-chip memory passed the threshold at which a board is replaced.
    SramThreshold,
    /// A row will be remapped at the next reset.
    RowPending,
    /// A row could not be remapped: its bank has no spare row.
    RowFailure,
    /// A page is retired at the next reset (boards before Ampere).
    RetiredPage {
        /// After a double-bit error; else after several single-bit errors.
        double_bit: bool,
    },
    /// Errors on an NVLink.
    LinkErrors {
        /// The link.
        link: usize,
        /// Which counter.
        counter: LinkCounter,
        /// How many.
        count: u64,
    },
    /// An NVLink is down.
    LinkDown {
        /// The link.
        link: usize,
    },
    /// PCIe replays.
    PcieReplays {
        /// How many.
        count: u64,
    },
    /// The PCIe link trained down.
    PcieLink {
        /// Generation.
        generation: u32,
        /// Lanes.
        width: u32,
    },
    /// The GPU is this hot, in degrees Celsius.
    Thermal {
        /// The temperature.
        celsius: u32,
    },
    /// The power brake of the board is on.
    PowerBrake,
    /// The GPU has fallen off the bus.
    Lost,
    /// Calls block.
    Hang {
        /// For so many milliseconds.
        milliseconds: u64,
    },
    /// The driver does not answer in time.
    DriverTimeout,
    /// NVML's recovery action.
    Recovery {
        /// `NVML_GPU_RECOVERY_ACTION_*`.
        action: u32,
    },
}

/// A counter of NVLink errors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkCounter {
    /// Replays.
    Replay,
    /// Recoveries.
    Recovery,
    /// CRC errors.
    Crc,
    /// ECC errors in data.
    Ecc,
}

/// Makes the fault: on one GPU, or on the node for faults of the library (only [`Fault::Hang`]). The
/// error is a sentence.
pub fn inject(node: &mut Node, gpu: Option<usize>, fault: &Fault) -> Result<(), String> {
    let now = now_us();
    let Some(index) = gpu else {
        let Fault::Hang { milliseconds } = fault else {
            return Err("of the whole node only 'hang' is a fault: name a GPU".to_string());
        };
        node.hang_until_us = now + milliseconds * 1000;
        return Ok(());
    };
    let count = node.gpus().len();
    if index >= count {
        return Err(format!(
            "GPU {index}: the node has GPUs 0 to {}",
            count.max(1) - 1
        ));
    }
    possible(node, fault)?;
    let board = node.model().board();
    node.gpus_mut()[index].settle(board, now);
    match fault {
        Fault::Xid {
            xid,
            gpu_instance,
            compute_instance,
        } => {
            xid_event(node, index, *xid, [*gpu_instance, *compute_instance]);
            consequences(node, index, *xid);
        }
        Fault::Ecc {
            uncorrected,
            sram,
            count,
            gpu_instance,
        } => {
            ecc(
                &mut node.gpus_mut()[index],
                *uncorrected,
                *sram,
                *count,
                *gpu_instance,
            );
            let kind = match uncorrected {
                true => nvml::nvmlEventTypeDoubleBitEccError,
                false => nvml::nvmlEventTypeSingleBitEccError,
            };
            post(node, index, kind, 0);
        }
        Fault::Hang { milliseconds } => {
            node.gpus_mut()[index].hang_until_us = now + milliseconds * 1000;
        }
        Fault::Recovery { action } => recovery(node, index, *action),
        Fault::Lost => {
            xid_event(node, index, 79, [NO_INSTANCE; 2]);
            consequences(node, index, 79);
        }
        Fault::RowPending => {
            let gpu = &mut node.gpus_mut()[index];
            gpu.rows_uncorrected += 1;
            gpu.rows_pending = 1;
            post(node, index, nvml::nvmlEventTypeDramRetirementEvent, 0);
            xid_event(node, index, 63, [NO_INSTANCE; 2]);
        }
        Fault::RowFailure => {
            let gpu = &mut node.gpus_mut()[index];
            gpu.rows_failed = 1;
            gpu.banks_exhausted += 1;
            post(node, index, nvml::nvmlEventTypeDramRetirementFailure, 0);
            xid_event(node, index, 64, [NO_INSTANCE; 2]);
            consequences(node, index, 64);
        }
        Fault::RetiredPage { double_bit } => {
            retire(&mut node.gpus_mut()[index], *double_bit, now)?;
            xid_event(node, index, 63, [NO_INSTANCE; 2]);
        }
        quiet => shown_when_asked(&mut node.gpus_mut()[index], quiet, now),
    }
    Ok(())
}

/// Refuses what the board cannot have.
fn possible(node: &Node, fault: &Fault) -> Result<(), String> {
    let kind = node.model();
    let board = kind.board();
    match *fault {
        Fault::LinkErrors { link, .. } | Fault::LinkDown { link } if link >= kind.links() => {
            Err(format!(
                "NVLink {link}: a GPU of {} has {} NVLinks",
                kind.name,
                kind.links()
            ))
        }
        Fault::RetiredPage { .. } if !board.retires_pages() => Err(format!(
            "{} remaps rows and retires no pages: use 'row-remap'",
            board.name
        )),
        Fault::RowPending | Fault::RowFailure if board.retires_pages() => Err(format!(
            "{} retires pages and remaps no rows: use 'retired-page'",
            board.name
        )),
        Fault::Thermal { celsius } if celsius <= board.celsius[0] => Err(format!(
            "{celsius} degrees: an idle {} has {} already",
            board.name, board.celsius[0]
        )),
        _ => Ok(()),
    }
}

/// Faults that raise no event.
fn shown_when_asked(gpu: &mut Gpu, fault: &Fault, now: u64) {
    match *fault {
        Fault::SramThreshold => gpu.sram_threshold = 1,
        Fault::LinkErrors {
            link,
            counter,
            count,
        } => {
            let link = &mut gpu.links[link % MAX_LINKS];
            let place = match counter {
                LinkCounter::Replay => &mut link.replay,
                LinkCounter::Recovery => &mut link.recovery,
                LinkCounter::Crc => &mut link.crc_flit,
                LinkCounter::Ecc => &mut link.ecc_data,
            };
            *place = place.saturating_add(count);
        }
        Fault::LinkDown { link } => gpu.links[link % MAX_LINKS].down = 1,
        Fault::PcieReplays { count } => gpu.pcie_replays = gpu.pcie_replays.saturating_add(count),
        Fault::PcieLink { generation, width } => gpu.pcie_degraded = [generation, width],
        Fault::Thermal { celsius } => {
            gpu.heat = celsius;
            brake(gpu, nvml::nvmlClocksThrottleReasonHwThermalSlowdown, now);
        }
        Fault::PowerBrake => brake(gpu, nvml::nvmlClocksThrottleReasonHwPowerBrakeSlowdown, now),
        Fault::DriverTimeout => gpu.driver_timeout = 1,
        _ => {}
    }
}

fn brake(gpu: &mut Gpu, reason: u32, now: u64) {
    gpu.throttle |= reason | nvml::nvmlClocksThrottleReasonHwSlowdown;
    if gpu.throttled_since_us == 0 {
        gpu.throttled_since_us = now;
    }
}

fn ecc(gpu: &mut Gpu, uncorrected: bool, sram: bool, count: u64, gpu_instance: u32) {
    for errors in [&mut gpu.volatile, &mut gpu.aggregate] {
        let place = match (uncorrected, sram) {
            (false, false) => &mut errors.dram_corrected,
            (false, true) => &mut errors.sram_corrected,
            (true, false) => &mut errors.dram_uncorrected,
            (true, true) => &mut errors.sram_secded,
        };
        *place = place.saturating_add(count);
    }
    if uncorrected && sram {
        let hit = gpu
            .instances
            .iter_mut()
            .filter(|i| i.exists == 1 && i.id == gpu_instance);
        for instance in hit {
            instance.sram_uncorrected = instance.sram_uncorrected.saturating_add(count);
        }
    }
}

fn retire(gpu: &mut Gpu, double_bit: bool, now: u64) -> Result<(), String> {
    let number = gpu.page_count as usize;
    let Some(place) = gpu.pages.get_mut(number) else {
        return Err(format!(
            "{MAX_PAGES} pages are retired: there is room for no more"
        ));
    };
    *place = Page {
        // Addresses that differ; what lies there does not matter.
        address: 0x1_0000 * (number as u64 + 1),
        time_us: now,
        cause: double_bit.into(),
        pending: 1,
    };
    gpu.page_count += 1;
    Ok(())
}

fn post(node: &mut Node, gpu: usize, kind: u32, data: u64) {
    node.post(Event {
        gpu: gpu as u32,
        gpu_instance: NO_INSTANCE,
        compute_instance: NO_INSTANCE,
        reserved: 0,
        kind: kind.into(),
        data,
    });
}

fn xid_event(node: &mut Node, gpu: usize, xid: u32, [gpu_instance, compute_instance]: [u32; 2]) {
    node.post(Event {
        gpu: gpu as u32,
        gpu_instance,
        compute_instance,
        reserved: 0,
        kind: nvml::nvmlEventTypeXidCriticalError.into(),
        data: xid.into(),
    });
}

/// What an Xid does to the GPU: the resolution buckets of NVIDIA's Xid catalogue.
fn consequences(node: &mut Node, index: usize, xid: u32) {
    match xid {
        79 => {
            recovery(node, index, NODE_REBOOT);
            node.gpus_mut()[index].lost = 1;
        }
        46 | 48 | 62 | 64 | 74 | 95 | 109 | 110 | 119 | 120 | 136 | 140 | 143 => {
            node.gpus_mut()[index].reset_required = 1;
            recovery(node, index, GPU_RESET);
        }
        _ => {}
    }
}

/// Changes the recovery action; those who wait hear of it, by event and as Xid 154.
fn recovery(node: &mut Node, index: usize, action: u32) {
    if node.gpus()[index].recovery_action == action {
        return;
    }
    node.gpus_mut()[index].recovery_action = action;
    post(
        node,
        index,
        nvml::nvmlEventTypeGpuRecoveryAction,
        action.into(),
    );
    xid_event(node, index, 154, [NO_INSTANCE; 2]);
}
