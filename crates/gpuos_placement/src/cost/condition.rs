//! How the GPUs of a place are now.
use gpuos_model::figures::Figures;

use super::WHOLE;

/// How the GPUs of a place are now. The default: as new, cool and uncapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Condition {
    /// Power cap of a GPU in W; 0 = none below its limit.
    pub cap_watts: u32,
    /// Temperature of the hottest GPU in degrees Celsius; 0 = not known.
    pub celsius: u32,
    /// Health in thousandths: 1000 = nothing known against it, 0 = not to be used.
    pub health: u32,
}

impl Default for Condition {
    fn default() -> Condition {
        Condition {
            cap_watts: 0,
            celsius: 0,
            health: WHOLE,
        }
    }
}

impl Condition {
    /// Clock that the GPU can hold, in thousandths of its full clock.
    ///
    /// Near its limit a GPU's power grows about with the cube of its clock, and a cap costs about a
    /// third of what it saves: a cap at 70 % of the power leaves 90 % of the clock. Within ten
    /// degrees of the slowdown temperature the clock falls in a line, to half at the temperature
    /// itself. Both are models, not measurements; a site that measures says so by `health`.
    pub fn clock(&self, figures: &Figures) -> u32 {
        let mut clock = WHOLE;
        if self.cap_watts > 0 && self.cap_watts < figures.gpu_watts {
            let saved = WHOLE - self.cap_watts * WHOLE / figures.gpu_watts;
            clock -= (saved / 3).min(WHOLE / 2);
        }
        let limit = match figures.slowdown_celsius {
            0 => Figures::SLOWDOWN_CELSIUS,
            limit => limit,
        };
        let near = (self.celsius + 10).saturating_sub(limit).min(10);
        clock * (20 - near) / 20
    }

    /// Power of a GPU in W under its cap.
    pub fn gpu_watts(&self, figures: &Figures) -> u32 {
        match self.cap_watts {
            0 => figures.gpu_watts,
            cap => figures.gpu_watts.min(cap),
        }
    }
}
