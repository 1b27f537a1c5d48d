//! Figures over time: how often something happened of late, and how long it has been so.
use serde::{Deserialize, Serialize};

use super::event::Sample;
use super::rules::{Gauge, Rule};

/// Parts of a window.
const PARTS: usize = 8;

/// Counts over the last stretch of time, in eight parts: the oldest part falls out as a whole.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Window {
    start: u64,
    parts: [u64; PARTS],
}

impl Window {
    /// Adds to the present part and gives the sum over the last `within_ms`.
    pub fn add(&mut self, count: u64, within_ms: u64, clock: u64) -> u64 {
        let part = (within_ms / PARTS as u64).max(1);
        let passed = clock.saturating_sub(self.start) / part;
        if passed > 0 {
            let kept = PARTS.saturating_sub(usize::try_from(passed).unwrap_or(PARTS));
            self.parts.copy_within(..kept, PARTS - kept);
            self.parts[..PARTS - kept].fill(0);
            self.start = clock - (clock.saturating_sub(self.start)) % part;
        }
        self.parts[0] = self.parts[0].saturating_add(count);
        self.parts
            .iter()
            .fold(0, |sum, part| sum.saturating_add(*part))
    }
}

/// What one rule remembers of one GPU.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Watch {
    /// What was counted of late.
    pub(super) window: Window,
    /// The counter as it stood last.
    pub(super) counter: Option<u64>,
    /// The figure as it is.
    pub(super) figure: u64,
    /// Since when the figure is at its threshold.
    pub(super) above: Option<u64>,
    /// Since when it is below, after it was above.
    pub(super) below: Option<u64>,
    /// The rule has acted on it.
    pub(super) acted: bool,
    /// An administrator forced the GPU back although it is so: it counts again once it was over.
    pub(super) overruled: bool,
    /// When it was said last, and how often it happened since without being said.
    pub(super) said: Option<u64>,
    pub(super) unsaid: u64,
}

/// What a sample says about a gauge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reading {
    /// A counter stands at.
    Counter(u64),
    /// It is so just now.
    Level(u64),
}

/// `nvmlClocksEventReason*`: hardware thermal slowdown, and the power brake.
const REASON_HW_THERMAL: u64 = 0x40;
const REASON_POWER_BRAKE: u64 = 0x80;
/// Degrees below the slowdown temperature from which a GPU counts as hot.
const HOT_MARGIN: u32 = 5;

/// What a sample says about a gauge; `None` = nothing. `watched`: a job on the GPU asked to be watched.
pub(super) fn reading(
    gauge: Gauge,
    sample: &Sample,
    before: Option<&Sample>,
    usual: &Usual,
    watched: bool,
) -> Option<Reading> {
    use Reading::{Counter, Level};
    let flag = |set: Option<bool>| set.map(|set| Level(set.into()));
    let level = |figure: Option<u32>| figure.map(|figure| Level(figure.into()));
    let missing = |now: Option<u32>, most: Option<u32>| Some(most?.saturating_sub(now?));
    let grew = |of: fn(&Sample) -> Option<u64>| Some(of(sample)? > of(before?)?);
    let reason = |bit: u64| sample.clock_reasons.map(|bits| bits & bit != 0);
    let either = |a: Option<bool>, b: Option<bool>| match (a, b) {
        (None, None) => None,
        (a, b) => Some(a == Some(true) || b == Some(true)),
    };
    let busy = sample.busy_percent > Some(0);
    match gauge {
        Gauge::EccCorrected => sample.ecc_corrected.map(Counter),
        Gauge::EccUncorrected => sample.ecc_uncorrected.map(Counter),
        Gauge::EccAggregate => sample.ecc_uncorrected_ever.map(Level),
        Gauge::SramThreshold => flag(sample.sram_threshold),
        Gauge::RowPending => flag(sample.rows_pending),
        Gauge::RowFailure => flag(sample.rows_failed),
        Gauge::RowsRemapped => level(
            sample
                .rows_uncorrected
                .map(|rows| rows.saturating_add(sample.rows_corrected.unwrap_or(0))),
        ),
        Gauge::RowsLow => level(
            sample
                .banks
                .map(|[_, _, _, few, none]| few.saturating_add(none)),
        ),
        Gauge::PagePending => flag(sample.pages_pending),
        Gauge::Pages => level(match (sample.pages_single_bit, sample.pages_double_bit) {
            (None, None) => None,
            (a, b) => Some(a.unwrap_or(0).saturating_add(b.unwrap_or(0))),
        }),
        Gauge::NvlinkReplays => sample.nvlink_replays.map(Counter),
        Gauge::NvlinkRecoveries => sample.nvlink_recoveries.map(Counter),
        Gauge::NvlinkCrc => sample.nvlink_crc.map(Counter),
        Gauge::NvlinkDown => Some(Level(u64::from(sample.nvlinks_down.count_ones()))),
        Gauge::PcieReplays => sample.pcie_replays.map(Counter),
        Gauge::PcieWidth => level(missing(sample.pcie_width, sample.pcie_width_most)),
        // An idle GPU saves power with a slower link.
        Gauge::PcieGen if !busy => Some(Level(0)),
        Gauge::PcieGen => level(missing(sample.pcie_generation, sample.pcie_generation_most)),
        Gauge::Thermal => flag(either(
            reason(REASON_HW_THERMAL),
            grew(|sample| sample.thermal_ns),
        )),
        Gauge::Hot => {
            let (now, slow) = (sample.celsius?, sample.slowdown_celsius?);
            level(Some(now.saturating_sub(slow.saturating_sub(HOT_MARGIN))))
        }
        Gauge::Warming => usual.above(sample).map(Level),
        Gauge::PowerBrake => flag(either(
            reason(REASON_POWER_BRAKE),
            grew(|sample| sample.power_brake_ns),
        )),
        Gauge::Hang => sample
            .busy_percent
            .map(|percent| Level(u64::from(watched && percent == 0))),
        Gauge::Silent => Some(Level(0)),
    }
}

/// Bands of power in which temperatures are compared.
const BANDS: usize = 4;
/// A temperature is taken into the average so often, in ms.
const USUAL_MS: u64 = 60_000;
/// So many of them make the average: those of a day.
const USUAL_OVER: i64 = 1440;
/// Before so many there is nothing to compare with: those of an hour.
const USUAL_FROM: u32 = 60;

/// How warm the GPU has been over the last day, by how much power it drew.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Usual {
    /// Average in thousandths of a degree, and how many temperatures are in it.
    bands: [(i64, u32); BANDS],
    at: u64,
}

impl Usual {
    /// Takes a poll in, once a minute.
    pub(super) fn take(&mut self, sample: &Sample, clock: u64) {
        let (Some(band), Some(celsius)) = (band(sample), sample.celsius) else {
            return;
        };
        if clock.saturating_sub(self.at) < USUAL_MS {
            return;
        }
        self.at = clock;
        let (average, seen) = &mut self.bands[band];
        *seen = seen.saturating_add(1);
        let over = USUAL_OVER.min(i64::from(*seen));
        *average += (i64::from(celsius) * 1000 - *average) / over;
    }

    /// Whole degrees above the average.
    fn above(&self, sample: &Sample) -> Option<u64> {
        let (average, seen) = self.bands[band(sample)?];
        let above = i64::from(sample.celsius?) * 1000 - average;
        (seen >= USUAL_FROM).then(|| u64::try_from(above / 1000).unwrap_or(0))
    }
}

fn band(sample: &Sample) -> Option<usize> {
    let (power, limit) = (sample.power_mw?, sample.power_limit_mw?.max(1));
    let band = u64::from(power) * BANDS as u64 / u64::from(limit);
    Some(usize::try_from(band).unwrap_or(BANDS).min(BANDS - 1))
}

impl Watch {
    /// Takes a reading in.
    pub(super) fn take(&mut self, reading: Reading, rule: &Rule, clock: u64) {
        let figure = match reading {
            Reading::Level(figure) => figure,
            Reading::Counter(now) => {
                let before = self.counter.replace(now);
                // The first reading says nothing of when; a counter that fell began anew with a reset.
                let grown = match before {
                    Some(before) if now >= before => now - before,
                    Some(_) => now,
                    None => 0,
                };
                self.window
                    .add(grown, u64::from(rule.within_s) * 1000, clock)
            }
        };
        self.figure = figure;
        if figure >= rule.threshold {
            self.above.get_or_insert(clock);
            self.below = None;
        } else if self.acted {
            self.below.get_or_insert(clock);
        } else {
            self.above = None;
        }
    }

    /// The figure, once, when it has been at the threshold for `hold_ms`.
    pub(super) fn due(&mut self, hold_ms: u64, clock: u64) -> Option<u64> {
        let since = self.above.filter(|_| self.below.is_none() && !self.acted)?;
        (clock.saturating_sub(since) >= hold_ms).then(|| {
            self.acted = true;
            self.figure
        })
    }

    /// Whether it has been below for `calm_ms` after it acted; then it can act again.
    pub(super) fn calmed(&mut self, calm_ms: u64, clock: u64) -> bool {
        let Some(below) = self.below.filter(|_| self.acted) else {
            return false;
        };
        let calm = clock.saturating_sub(below) >= calm_ms;
        if calm {
            self.above = None;
            self.below = None;
            self.acted = false;
            self.overruled = false;
        }
        calm
    }

    /// A stronger word decides: what was counted is done with, what is still so is looked at again.
    pub(super) fn left(&mut self, counter: bool) {
        match counter {
            true => self.forget(),
            false => self.acted = false,
        }
    }

    /// An administrator says that it does not matter.
    pub(super) fn overrule(&mut self) {
        if self.held().is_some() {
            self.acted = true;
            self.overruled = true;
        } else {
            self.forget();
        }
    }

    /// Whether the rule acted, and it is not over.
    pub(super) fn has_acted(&self) -> bool {
        self.acted
    }

    /// The figure, while it is at the threshold.
    pub(super) fn held(&self) -> Option<u64> {
        let held = self.above.is_some() && self.below.is_none() && !self.overruled;
        held.then_some(self.figure)
    }

    /// After a repair: what was counted is forgotten, and it can act again.
    pub(super) fn forget(&mut self) {
        *self = Watch {
            counter: self.counter,
            said: self.said,
            ..Watch::default()
        };
    }
}

impl Gauge {
    /// Whether it is counted within the rule's time.
    pub fn is_counter(self) -> bool {
        matches!(
            self,
            Gauge::EccCorrected
                | Gauge::EccUncorrected
                | Gauge::NvlinkReplays
                | Gauge::NvlinkRecoveries
                | Gauge::NvlinkCrc
                | Gauge::PcieReplays
        )
    }

    /// Whether it is set or not.
    pub fn is_flag(self) -> bool {
        matches!(
            self,
            Gauge::SramThreshold
                | Gauge::RowPending
                | Gauge::RowFailure
                | Gauge::PagePending
                | Gauge::Thermal
                | Gauge::PowerBrake
                | Gauge::Hang
                | Gauge::Silent
        )
    }
}
