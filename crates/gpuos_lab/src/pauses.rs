//! Waiting for what a command has to be asked for: often at first, less often the longer it takes.

use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::error::LabError;

/// First pause.
const SHORTEST: Duration = Duration::from_millis(50);
/// Longest one.
const LONGEST: Duration = Duration::from_millis(400);

/// Pauses between questions. Each is an eighth of the time waited so far, from 50 to 400 ms: whoever waits 10 s asks 50 times
/// and not 200 times, and hears of the end at most an eighth later. A question is a program that starts and a request to
/// slurmctld, which many labs at once pay for.
#[derive(Debug)]
pub struct Pauses {
    begun: Instant,
}

impl Pauses {
    /// The waiting begins.
    pub fn new() -> Pauses {
        Pauses {
            begun: Instant::now(),
        }
    }

    /// The next pause.
    pub fn pause(&self) {
        sleep(after(self.begun.elapsed()));
    }
}

/// Waits until job `job` is in one of these states; returns which. `look` says in which it is, or nothing where that is not known now, and
/// `shown` what its manager shows of it.
///
/// # Errors
/// It is in none of them after `limit`: with what is shown of it.
pub(crate) fn wait_for_state(
    (job, states): (&str, &[&str]),
    limit: Duration,
    mut look: impl FnMut() -> Result<Option<String>, LabError>,
    shown: impl Fn() -> Result<String, LabError>,
) -> Result<String, LabError> {
    let (pauses, deadline) = (Pauses::new(), Instant::now() + limit);
    loop {
        let state = look()?.unwrap_or_default();
        if states.contains(&state.as_str()) {
            return Ok(state);
        }
        if Instant::now() > deadline {
            return Err(LabError::Command {
                command: format!("wait for job {job} to be {}", states.join(" or ")),
                status: format!("after {} s it is {state}", limit.as_secs()),
                stderr: shown()?,
            });
        }
        pauses.pause();
    }
}

impl Default for Pauses {
    fn default() -> Pauses {
        Pauses::new()
    }
}

fn after(waited: Duration) -> Duration {
    (waited / 8).clamp(SHORTEST, LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_become_fewer() {
        let (mut waited, mut questions) = (Duration::ZERO, 0);
        while waited < Duration::from_secs(10) {
            waited += after(waited);
            questions += 1;
        }
        assert!((30..=50).contains(&questions), "{questions}");
        assert_eq!(after(Duration::ZERO), SHORTEST);
    }
}
