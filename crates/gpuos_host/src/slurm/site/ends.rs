//! When jobs end at the latest, from what Slurm prints in local time.

use gpuos_placement::plan::quarters;

use crate::slurm::site::Site;
use crate::slurm::{Job, seconds};

/// A job without a limit counts as if it had a year, as in Slurm's own records.
const YEAR: i64 = 365 * 86_400;

/// A local time as Slurm prints it, in seconds of a calendar without time zones or leap seconds:
/// good for differences. `None`: no time (`Unknown`, `N/A`).
fn local(text: &str) -> Option<i64> {
    let (date, clock) = text.split_once('T')?;
    let number = |text: &str| text.parse::<i64>().ok();
    let mut date = date.split('-').map(number);
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Days since 1970: http://howardhinnant.github.io/date_algorithms.html#days_from_civil
    let (y, m) = match month {
        1 | 2 => (year - 1, month + 9),
        _ => (year, month - 3),
    };
    let days = 365 * y + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day - 1 - 719_468;
    Some(days * 86_400 + seconds(clock)? as i64)
}

/// Seconds from one local time as Slurm prints it to another one; `None`: one of them is none.
pub fn seconds_between(from: &str, to: &str) -> Option<i64> {
    Some(local(to)? - local(from)?)
}

/// When the last job on each node ends, as the planner has it; 0 = nothing runs there, or nobody says.
pub fn of_nodes(site: &Site, jobs: &[Job]) -> Vec<u32> {
    let mut ends = vec![0; site.nodes.len()];
    for job in jobs.iter().filter(|job| job.is_running()) {
        let end = local(&job.end).map_or(0, quarters);
        for node in site.indices(&job.nodes).0 {
            ends[node as usize] = end.max(ends[node as usize]);
        }
    }
    ends
}

/// When a waiting job would end if it started now; 0 = not known. What time it is now is told by
/// the jobs that run: where none does, it does not matter.
pub fn if_started_now(job: &Job, jobs: &[Job]) -> u32 {
    let running = jobs.iter().filter(|other| other.is_running());
    let now = running.filter_map(|job| Some(local(&job.start)? + job.run_seconds as i64));
    let limit = match job.time_limit.as_str() {
        "UNLIMITED" => Some(YEAR),
        limit => seconds(limit).map(|limit| limit as i64),
    };
    match (now.max(), limit) {
        (Some(now), Some(limit)) => quarters(now.saturating_add(limit)),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_times_are_seconds_and_other_words_are_none() {
        assert_eq!(local("1970-01-01T00:00:00"), Some(0));
        assert_eq!(local("2024-02-29T12:00:01"), Some(1_709_208_001));
        let day = |text| local(text).expect("a time");
        assert_eq!(
            day("2026-03-01T00:00:00") - day("2026-02-28T00:00:00"),
            86_400
        );
        for bad in ["", "Unknown", "N/A", "2026-13-01T00:00:00", "T", "a-b-cTd"] {
            assert_eq!(local(bad), None, "{bad}");
        }
    }
}
