//! The lines of the protocol.

use std::fmt;
use std::str::FromStr;

/// Why a checkpoint is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Reason {
    /// It is time.
    Interval,
    /// A person or a script asked for it. What this version does not know counts as this.
    Asked,
    /// The job will be ended after it: the program waits for the commit and exits; if it came to nothing, the program goes on.
    End,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::Interval => "interval",
            Reason::Asked => "asked",
            Reason::End => "end",
        })
    }
}

/// A checkpoint that is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Request {
    /// Its number.
    pub number: u32,
    /// Why.
    pub reason: Reason,
}

impl Request {
    /// Whether the job will be ended after it.
    pub fn is_end(&self) -> bool {
        self.reason == Reason::End
    }
}

/// The mover's answer to a rank that has joined.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    New,
    Restore(u32),
    /// The checkpoint, and how many ranks have made it.
    All(u32, u16),
    Failed(String),
}

/// A decimal number without sign and leading zeros.
pub(crate) fn number<N: FromStr>(text: &str) -> Option<N> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let plain = digits && (text == "0" || !text.starts_with('0'));
    plain.then(|| text.parse().ok()).flatten()
}

/// The first word of a line, and the rest.
fn split(line: &str) -> (&str, &str) {
    line.split_once(' ').unwrap_or((line, ""))
}

/// The line of `start.R.NONCE`.
pub(crate) fn answer(line: &str) -> Option<Answer> {
    match split(line) {
        ("new", "") => Some(Answer::New),
        ("restore", checkpoint) => match checkpoint.split_once(" of ") {
            None => number(checkpoint).map(Answer::Restore),
            Some((checkpoint, ranks)) => Some(Answer::All(number(checkpoint)?, number(ranks)?)),
        },
        ("failed", why) => Some(Answer::Failed(why.into())),
        _ => None,
    }
}

/// The line of `request`.
pub(crate) fn request(line: &str) -> Option<Request> {
    let (checkpoint, reason) = split(line);
    let reason = match reason {
        "interval" => Reason::Interval,
        "end" => Reason::End,
        _ => Reason::Asked,
    };
    let number = number(checkpoint)?;
    Some(Request { number, reason })
}

/// The line of `failed`: the checkpoint and why.
pub(crate) fn failed(line: &str) -> Option<(u32, &str)> {
    let (checkpoint, why) = split(line);
    Some((number(checkpoint)?, why))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lines_that_are_none() {
        for line in [
            "",
            "newer",
            "new 1",
            "restore",
            "restore x",
            "restore 01",
            "restore 4294967296",
            "restore 4 of",
            "restore 4 of 65536",
            "restore 4 of 2 of 2",
        ] {
            assert_eq!(answer(line), None, "{line}");
        }
        for line in ["", "interval", " 1", "-1 end", "+1 end", "1.0 end"] {
            assert_eq!(request(line), None, "{line}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(checkpoint: u32, why in "[^\n\r]{0,80}") {
            prop_assert_eq!(answer(&format!("restore {checkpoint}")), Some(Answer::Restore(checkpoint)));
            let all = format!("restore {checkpoint} of {}", checkpoint as u16);
            prop_assert_eq!(answer(&all), Some(Answer::All(checkpoint, checkpoint as u16)));
            prop_assert_eq!(answer(&format!("failed {why}")), Some(Answer::Failed(why.clone())));
            let line = format!("{checkpoint} {why}");
            prop_assert_eq!(failed(&line), Some((checkpoint, why.as_str())));
            for reason in [Reason::Interval, Reason::Asked, Reason::End] {
                let wanted = Request { number: checkpoint, reason };
                prop_assert_eq!(request(&format!("{checkpoint} {reason}")), Some(wanted));
            }
        }

        #[test]
        fn any_line_is_read_or_refused(line in ".*") {
            let _ = (answer(&line), request(&line), failed(&line));
        }
    }
}
