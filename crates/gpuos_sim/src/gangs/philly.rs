//! The reader of Philly's trace: one job a line, with its submit time, duration and GPUs.

use std::fmt;

/// The columns, as the file's first line names them.
const HEADER: &str = "timestamp,duration,num_gpus,gpu_time,cluster";
/// The most GPUs that a line may ask for; more is a slip of the pen.
const MOST_GPUS: u32 = 100_000;
/// The longest duration accepted, ten years in seconds.
const LONGEST: f64 = 10.0 * 365.0 * 86_400.0;

/// One job of the trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceJob {
    /// Submit time in seconds since 1970, taken as UTC.
    pub submit: i64,
    /// How long it ran, in seconds, at least 1.
    pub run: i64,
    /// GPUs that it had.
    pub gpus: u32,
}

/// What is wrong with a trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TraceError {
    /// Line, counted from 1; 0 = the file as a whole.
    pub line: usize,
    /// A sentence that says what was found and what is accepted.
    pub reason: String,
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.reason),
            line => write!(f, "line {line}: {}", self.reason),
        }
    }
}

impl std::error::Error for TraceError {}

/// Reads a trace's text: the header `timestamp,duration,num_gpus,gpu_time,cluster`, then a line
/// for each job, with the time as `2017-10-09 07:01:55` and the duration in seconds. The jobs
/// come back in the order of their submit times; equal times keep the file's order.
///
/// Errors: the first line that is not understood, and why.
pub fn parse(text: &str) -> Result<Vec<TraceJob>, TraceError> {
    let mut lines = text.lines().enumerate();
    let error = |line: usize, reason: String| TraceError {
        line: line + 1,
        reason,
    };
    match lines.next() {
        Some((_, first)) if first.trim_end() == HEADER => {}
        found => {
            let found = found.map_or("nothing", |(_, first)| first);
            return Err(error(
                0,
                format!("it starts with {found:?}; a trace of gangs starts with {HEADER:?}"),
            ));
        }
    }
    let mut jobs = Vec::new();
    for (at, line) in lines {
        if line.trim().is_empty() {
            continue;
        }
        jobs.push(job(line).map_err(|reason| error(at, reason))?);
    }
    if jobs.is_empty() {
        return Err(error(0, "it holds no job after the header".into()));
    }
    jobs.sort_by_key(|job| job.submit);
    Ok(jobs)
}

fn job(line: &str) -> Result<TraceJob, String> {
    let fields: Vec<&str> = line.trim_end().split(',').collect();
    let &[time, duration, gpus, gpu_time, _] = &fields[..] else {
        return Err(format!(
            "{} fields where five are needed: {HEADER}",
            fields.len()
        ));
    };
    let submit = seconds(time)
        .ok_or_else(|| format!("the time {time:?}; write it as 2017-10-09 07:01:55"))?;
    let run = duration
        .parse::<f64>()
        .ok()
        .filter(|run| (0.0..=LONGEST).contains(run))
        .ok_or_else(|| format!("the duration {duration:?}; write seconds, at most ten years"))?;
    let gpus = gpus
        .parse::<u32>()
        .ok()
        .filter(|gpus| (1..=MOST_GPUS).contains(gpus))
        .ok_or_else(|| format!("the number of GPUs {gpus:?}; write 1 to {MOST_GPUS}"))?;
    // Not used, but a line whose sum is off is a line that was cut or shifted.
    let sum = gpu_time.parse::<f64>().ok();
    if sum.is_none_or(|sum| (sum - run * f64::from(gpus)).abs() > 1.0) {
        return Err(format!(
            "gpu_time is {gpu_time:?}, not the duration times the number of GPUs"
        ));
    }
    Ok(TraceJob {
        submit,
        run: (run.round() as i64).max(1),
        gpus,
    })
}

/// `2017-10-09 07:01:55` as seconds since 1970.
fn seconds(text: &str) -> Option<i64> {
    let bytes = text.as_bytes();
    let shape = b"0000-00-00 00:00:00";
    let fits = bytes.len() == shape.len()
        && bytes.iter().zip(shape).all(|(have, want)| match want {
            b'0' => have.is_ascii_digit(),
            other => have == other,
        });
    if !fits {
        return None;
    }
    let number = |from: usize, to: usize| text[from..to].parse::<i64>().ok();
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let lengths = [
        31,
        28 + i64::from(leap),
        31,
        30,
        31,
        30,
        31,
        31,
        30,
        31,
        30,
        31,
    ];
    let length = *lengths.get(usize::try_from(month - 1).ok()?)?;
    if !(1970..=9999).contains(&year)
        || !(1..=length).contains(&day)
        || hour > 23
        || minute > 59
        || second > 59
    {
        return None;
    }
    // Leap days before the year, then the months of the year.
    let past = year - 1;
    let years = (year - 1970) * 365 + (past / 4 - past / 100 + past / 400)
        - (1969 / 4 - 1969 / 100 + 1969 / 400);
    let months: i64 = lengths.iter().take(month as usize - 1).sum();
    Some(((years + months + day - 1) * 24 + hour) * 3600 + minute * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_counted_from_1970() {
        assert_eq!(seconds("1970-01-01 00:00:00"), Some(0));
        assert_eq!(seconds("2000-02-29 12:00:00"), Some(951_825_600));
        assert_eq!(seconds("2017-10-09 07:01:55"), Some(1_507_532_515));
        for bad in [
            "2017-02-29 00:00:00",
            "2017-13-01 00:00:00",
            "2017-10-09",
            "2017-10-09 24:00:00",
        ] {
            assert_eq!(seconds(bad), None, "{bad}");
        }
    }
}
