//! The interval that is used, and the sentence that says why.
use std::fmt;

use super::optimum::{daly, lost_share, positive, young};

/// What a checkpoint costs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Costs {
    /// The program stands still for so many seconds.
    pub pause_s: f64,
    /// Then it is stored in the background for so many seconds.
    pub background_s: f64,
    /// The share of its speed, 0 to 1, that the program loses meanwhile.
    pub slowdown: f64,
    /// A restart takes so many seconds, from the failure until the program computes again.
    pub restart_s: f64,
}

/// What bounds the interval.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Limits {
    /// The share of the time that checkpoints may cost.
    pub budget: f64,
    /// The shortest interval, in seconds.
    pub least_s: f64,
    /// The longest interval, in seconds. It prevails over the budget.
    pub most_s: f64,
}

impl Default for Limits {
    /// 3 %, and between a minute and a day.
    fn default() -> Limits {
        Limits {
            budget: 0.03,
            least_s: 60.0,
            most_s: 86_400.0,
        }
    }
}

/// What decided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bound {
    /// Daly's optimum.
    Optimum,
    /// The budget made it longer.
    Budget,
    /// A checkpoint has to be stored before the next one begins.
    Storing,
    /// The shortest interval.
    Least,
    /// The longest interval.
    Most,
}

/// An interval with the figures that it comes from, in seconds. Its `Display` is the sentence for users.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Choice {
    /// The interval.
    pub interval_s: f64,
    /// What decided.
    pub bound: Bound,
    /// Young's.
    pub young_s: f64,
    /// Daly's.
    pub daly_s: f64,
    /// The time that the program loses by one checkpoint.
    pub cost_s: f64,
    /// Between two failures of the job.
    pub mtbf_s: f64,
    /// The nodes of the job.
    pub nodes: u32,
    /// The share of the time that checkpoints cost when nothing fails.
    pub overhead: f64,
    /// The share that is expected to be lost with failures.
    pub lost: f64,
    limits: Limits,
}

/// Chooses the interval for a job of so many nodes with this mean time between failures of the job.
///
/// # Errors
/// A sentence that names the figure which is no number, not above 0, or contradicts another.
pub fn choose(costs: Costs, mtbf_s: f64, nodes: u32, limits: Limits) -> Result<Choice, String> {
    let share = |what: &str, value: f64, least: f64| match value >= least && value <= 1.0 {
        true => Ok(value),
        false => Err(format!(
            "{what} is {value}; it has to be a share of at most 1, such as 0.03"
        )),
    };
    let time = |what: &str, value: f64| match value.is_finite() && value >= 0.0 {
        true => Ok(value),
        false => Err(format!(
            "{what} is {value}; it has to be a number of seconds that is not below 0"
        )),
    };
    let background = time("the time in the background", costs.background_s)?;
    let slowdown = share("the slowdown", costs.slowdown, 0.0)?;
    let cost_s = time("the pause", costs.pause_s)? + background * slowdown;
    let budget = share("the budget", limits.budget, f64::MIN_POSITIVE)?;
    let least = positive("the shortest interval", limits.least_s)?;
    let most = positive("the longest interval", limits.most_s)?;
    if least > most {
        return Err(format!(
            "the shortest interval, {least} s, is above the longest, {most} s; exchange them"
        ));
    }
    let (young_s, daly_s) = (young(cost_s, mtbf_s)?, daly(cost_s, mtbf_s)?);
    let mut chosen = (daly_s, Bound::Optimum);
    for (bound, seconds) in [
        (Bound::Budget, cost_s / budget),
        (Bound::Storing, background),
        (Bound::Least, least),
    ] {
        if seconds > chosen.0 {
            chosen = (seconds, bound);
        }
    }
    if chosen.0 > most {
        chosen = (most, Bound::Most);
    }
    let (interval_s, bound) = chosen;
    Ok(Choice {
        interval_s,
        bound,
        young_s,
        daly_s,
        cost_s,
        mtbf_s,
        nodes,
        overhead: cost_s / (interval_s + cost_s),
        lost: lost_share(interval_s, cost_s, costs.restart_s, mtbf_s)?,
        limits,
    })
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |share: f64| format!("{:.1} %", share * 100.0);
        let why = match self.bound {
            Bound::Optimum => "which is Daly's optimum".into(),
            Bound::Budget => format!(
                "because checkpoints may cost {} of the time (Daly's optimum would be {})",
                percent(self.limits.budget),
                time_text(self.daly_s)
            ),
            Bound::Storing => format!(
                "because it takes as long to store one (Daly's optimum would be {})",
                time_text(self.daly_s)
            ),
            Bound::Least => format!(
                "the shortest that is allowed (Daly's optimum would be {})",
                time_text(self.daly_s)
            ),
            Bound::Most => format!(
                "the longest that is allowed (Daly's optimum would be {}, the budget of {} asks for {})",
                time_text(self.daly_s),
                percent(self.limits.budget),
                time_text(self.cost_s / self.limits.budget)
            ),
        };
        write!(
            f,
            "every {}, {why}: a checkpoint costs {}, a job of {} nodes fails every {}; checkpoints take {} of the time, and {} is \
             lost in all",
            time_text(self.interval_s),
            time_text(self.cost_s),
            self.nodes,
            time_text(self.mtbf_s),
            percent(self.overhead),
            percent(self.lost)
        )
    }
}

/// Two units at most: `4.2 s`, `25 min`, `3 h 5 min`, `12 d 4 h`.
fn time_text(seconds: f64) -> String {
    if seconds < 60.0 {
        return format!("{seconds:.1} s");
    }
    if seconds > 1e12 {
        return "many thousand years".into();
    }
    let minutes = (seconds / 60.0).round();
    let (hours, days) = ((minutes / 60.0).floor(), (minutes / 1440.0).floor());
    if hours < 1.0 {
        format!("{minutes} min")
    } else if days < 1.0 {
        format!("{hours} h {} min", minutes - hours * 60.0)
    } else {
        format!("{days} d {} h", (hours - days * 24.0).floor())
    }
}
