//! What ends faults: a reset, and a repair.

use crate::model::Board;
use crate::state::{Errors, Gpu, GpuInstance, Link, MAX_INSTANCES, MAX_LINKS, Node, now_us};

/// Resets a GPU as `nvidia-smi -r` does. What was pending takes effect, counts since the last reset
/// and settings go; damage stays. Refused while processes run, and for a GPU that is off the bus.
pub fn reset(node: &mut Node, index: usize) -> Result<(), String> {
    let board = node.model().board();
    let count = node.gpus().len();
    let Some(gpu) = node.gpus_mut().get_mut(index) else {
        return Err(format!("GPU {index}: the node has {count} GPUs"));
    };
    if gpu.lost != 0 {
        return Err(format!(
            "GPU {index} is lost: only a reboot or a repair brings it back"
        ));
    }
    let pids: Vec<String> = gpu.processes().map(|p| p.pid.to_string()).collect();
    if !pids.is_empty() {
        return Err(format!(
            "GPU {index} is in use by process {}",
            pids.join(", ")
        ));
    }
    fresh(gpu, board);
    Ok(())
}

/// What every reset does.
fn fresh(gpu: &mut Gpu, board: &Board) {
    gpu.settle(board, now_us());
    gpu.reset_required = 0;
    gpu.recovery_action = 0;
    gpu.driver_timeout = 0;
    gpu.hang_until_us = 0;
    gpu.volatile = Errors::default();
    gpu.pcie_replays = 0;
    gpu.rows_pending = 0;
    for page in &mut gpu.pages {
        page.pending = 0;
    }
    gpu.links = [Link::default(); MAX_LINKS];
    gpu.ecc[0] = gpu.ecc[1];
    gpu.mig[0] = gpu.mig[1];
    gpu.instances = [GpuInstance::default(); MAX_INSTANCES];
    gpu.clock_lock = [0, 0];
    gpu.memory_clock_lock = [0, 0];
    gpu.app_clocks = [0, 0];
    gpu.power_limit_mw = board.watts[2] * 1000;
}

/// Boots the node: every GPU is reset and back on the bus, and nobody uses it. Damage stays.
pub fn reboot(node: &mut Node) {
    let board = node.model().board();
    node.hang_until_us = 0;
    for gpu in node.gpus_mut() {
        gpu.processes = Default::default();
        gpu.lost = 0;
        gpu.persistence = 0;
        gpu.compute_mode = 0;
        fresh(gpu, board);
    }
}

/// Makes a GPU as good as new, in its place and with its name: as after a reboot with the board
/// mended. Its processes are gone; modes stay.
pub fn repair(node: &mut Node, index: usize) -> Result<(), String> {
    let board = node.model().board();
    let count = node.gpus().len();
    let Some(gpu) = node.gpus_mut().get_mut(index) else {
        return Err(format!("GPU {index}: the node has {count} GPUs"));
    };
    fresh(gpu, board);
    *gpu = Gpu {
        uuid: gpu.uuid,
        serial: gpu.serial,
        persistence: gpu.persistence,
        compute_mode: gpu.compute_mode,
        power_limit_mw: gpu.power_limit_mw,
        ecc: gpu.ecc,
        mig: gpu.mig,
        energy_mj: gpu.energy_mj,
        energy_at_us: gpu.energy_at_us,
        ..Gpu::default()
    };
    Ok(())
}
