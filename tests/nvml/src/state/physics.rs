//! What follows from load, limits and faults: clocks, power, temperature, energy. The same state and
//! time give the same figures.

use nvml_wrapper_sys::bindings as nvml;

use super::{Gpu, Process};
use crate::model::Board;

/// Reasons for which the hardware halves the clocks.
const BRAKES: u32 = nvml::nvmlClocksThrottleReasonHwSlowdown;

impl Gpu {
    /// The processes there are.
    pub fn processes(&self) -> impl Iterator<Item = &Process> {
        self.processes.iter().filter(|process| process.is_alive())
    }

    /// How busy the GPU is, in percent.
    pub fn load(&self) -> u32 {
        self.processes()
            .map(|process| process.load)
            .sum::<u32>()
            .min(100)
    }

    /// How busy a GPU instance is, in percent of the instance.
    pub fn load_of(&self, instance: u32) -> u32 {
        let own = self.processes().filter(|p| p.gpu_instance == instance);
        own.map(|process| process.load).sum::<u32>().min(100)
    }

    /// Memory that processes use, in MiB.
    pub fn used_mib(&self) -> u64 {
        self.processes().map(|process| process.memory_mib).sum()
    }

    /// Degrees Celsius of the GPU.
    pub fn celsius(&self, board: &Board) -> u32 {
        let [idle, full, ..] = board.celsius;
        self.heat.max(idle + (full - idle) * self.load() / 100)
    }

    /// Whether the temperature is where the hardware slows down.
    pub fn too_hot(&self, board: &Board) -> bool {
        self.celsius(board) >= board.celsius[3]
    }

    /// Why the clocks are not higher (`nvmlClocksEventReason*`).
    pub fn reasons(&self, board: &Board) -> u64 {
        let mut reasons = self.throttle;
        if self.too_hot(board) {
            reasons |= nvml::nvmlClocksThrottleReasonHwThermalSlowdown
                | nvml::nvmlClocksThrottleReasonHwSlowdown;
        }
        if self.load() == 0 {
            reasons |= nvml::nvmlClocksEventReasonGpuIdle;
        } else if self.wanted_mw(board) > self.power_limit_mw {
            reasons |= nvml::nvmlClocksEventReasonSwPowerCap;
        }
        reasons.into()
    }

    /// Power that the load would take without a limit, in milliwatts.
    fn wanted_mw(&self, board: &Board) -> u32 {
        let [idle, _, default, _] = board.watts;
        let mut watts = (default - idle) * self.load() * 10;
        if self.reasons_of_hardware(board) {
            watts /= 2;
        }
        idle * 1000 + watts
    }

    fn reasons_of_hardware(&self, board: &Board) -> bool {
        self.throttle & BRAKES != 0 || self.too_hot(board)
    }

    /// Power in milliwatts.
    pub fn power_mw(&self, board: &Board) -> u32 {
        let wanted = self.wanted_mw(board);
        wanted.min(self.power_limit_mw.max(board.watts[0] * 1000))
    }

    /// Energy since the driver was loaded, in millijoules, at a time in microseconds since 1970.
    pub fn energy_mj(&self, board: &Board, now_us: u64) -> u64 {
        let passed = now_us.saturating_sub(self.energy_at_us);
        let more = u128::from(passed) * u128::from(self.power_mw(board)) / 1_000_000;
        self.energy_mj.saturating_add(more as u64)
    }

    /// Books the energy up to now; to be called before what decides the power changes.
    pub fn settle(&mut self, board: &Board, now_us: u64) {
        self.energy_mj = self.energy_mj(board, now_us);
        self.energy_at_us = now_us;
    }

    /// Clocks in MHz: graphics, memory, video.
    pub fn clocks(&self, board: &Board) -> [u32; 3] {
        if self.load() == 0 {
            let [graphics, memory, video] = board.idle_clocks;
            let [lowest, _] = self.clock_lock;
            return [graphics.max(lowest), memory, video];
        }
        let [mut graphics, memory, video] = board.clocks;
        if self.app_clocks[0] != 0 {
            graphics = graphics.min(self.app_clocks[0]);
        }
        let wanted = self.wanted_mw(board);
        if wanted > self.power_limit_mw {
            let share = u64::from(self.power_limit_mw) * 1000 / u64::from(wanted);
            graphics = (u64::from(graphics) * share / 1000) as u32;
        }
        if self.reasons_of_hardware(board) {
            graphics /= 2;
        }
        let [low, high] = self.clock_lock;
        if high != 0 {
            graphics = graphics.clamp(low.min(high), high);
        }
        [graphics.max(board.clock_steps[0]), memory, video]
    }

    /// How long power brakes and thermal slowdowns lasted, in nanoseconds.
    pub fn throttled_ns(&self, now_us: u64) -> u64 {
        let open = match self.throttled_since_us {
            0 => 0,
            since => now_us.saturating_sub(since),
        };
        (self.throttled_us + open) * 1000
    }
}
