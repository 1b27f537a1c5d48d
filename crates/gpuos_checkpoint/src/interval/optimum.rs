//! The interval at which the least time is lost: J. W. Young, "A first order approximation to the optimum checkpoint interval",
//! Communications of the ACM 17 (1974), and J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart
//! dumps", Future Generation Computer Systems 22 (2006).

/// A figure that is no finite number above 0 (or, for costs, not below), with its name.
pub(super) fn positive(what: &str, value: f64) -> Result<f64, String> {
    match value.is_finite() && value > 0.0 {
        true => Ok(value),
        false => Err(format!(
            "{what} is {value}; it has to be a number of seconds above 0"
        )),
    }
}

/// Young's interval sqrt(2 C M) in seconds, for a checkpoint's cost C and the mean time M between failures of the job.
///
/// # Errors
/// A sentence if one of them is not a finite number above 0.
pub fn young(cost_s: f64, mtbf_s: f64) -> Result<f64, String> {
    let (cost, mtbf) = checked(cost_s, mtbf_s)?;
    // Two roots: the product could be more than the largest number.
    Ok((2.0 * cost).sqrt() * mtbf.sqrt())
}

/// Daly's interval in seconds, equation 37 of his article: sqrt(2 C M) (1 + (1/3) sqrt(C / 2M) + (1/9) C / 2M) - C if C < 2M, else M.
/// The time that a restart takes does not change it.
///
/// # Errors
/// As [`young`].
pub fn daly(cost_s: f64, mtbf_s: f64) -> Result<f64, String> {
    let (cost, mtbf) = checked(cost_s, mtbf_s)?;
    let ratio = cost / mtbf / 2.0;
    match ratio < 1.0 {
        true => Ok(young(cost, mtbf)? * (1.0 + ratio.sqrt() / 3.0 + ratio / 9.0) - cost),
        false => Ok(mtbf),
    }
}

/// The share of the time, 0 to 1, that is lost to checkpoints, to work done again, and to restarts that take `restart_s`, when failures
/// come as a Poisson process: 1 - W / T by Daly's complete model T = M e^(R/M) (e^((W+C)/M) - 1) for one interval W.
///
/// # Errors
/// A sentence if a figure is not a finite number above 0; `restart_s` may be 0.
pub fn lost_share(
    interval_s: f64,
    cost_s: f64,
    restart_s: f64,
    mtbf_s: f64,
) -> Result<f64, String> {
    let (cost, mtbf) = checked(cost_s, mtbf_s)?;
    let interval = positive("the interval", interval_s)?;
    if !(restart_s.is_finite() && restart_s >= 0.0) {
        return Err(format!(
            "a restart takes {restart_s} s; it has to be a number that is not below 0"
        ));
    }
    let time = mtbf * (restart_s / mtbf).exp() * ((interval + cost) / mtbf).exp_m1();
    // An endless time is a share of 1. With a vanishing one, rounding may give a little less than nothing.
    let lost = 1.0 - interval / time;
    Ok(if lost.is_nan() {
        1.0
    } else {
        lost.clamp(0.0, 1.0)
    })
}

fn checked(cost_s: f64, mtbf_s: f64) -> Result<(f64, f64), String> {
    let cost = positive("the cost of a checkpoint", cost_s)?;
    Ok((cost, positive("the mean time between failures", mtbf_s)?))
}
