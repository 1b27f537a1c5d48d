//! `--gpuos-checkpoint`: how often a job makes checkpoints, what its nodes keep for each other, and what is drained.
use std::fmt;

use gpuos_checkpoint::sets::{Scheme, SchemeError};
use gpuos_model::words::{check_value, not_understood};

use super::{OptionError, size};

const FORM: &str = "auto, a time from 1s to 7d such as 10m, either with l0=SIZE, l2=SCHEME, l3=every:N or l3=off after it such as 10m,l0=16G,l2=partner";

const RESTART_FORM: &str = "auto, new, no, JOB or JOB/N such as 1234/7";

/// A week, in seconds.
const MOST_SECONDS: u64 = 7 * 86_400;

/// Units of a time, the largest first, and their seconds.
const UNITS: [(char, u32); 4] = [('d', 86_400), ('h', 3600), ('m', 60), ('s', 1)];

/// How words begin that later releases may know.
const LATER: [&str; 2] = ["dir=", "every:"];

/// The largest `l0=SIZE` in MiB, 16 TiB; own choice.
pub const MOST_MEMORY_MIB: u32 = 16 << 20;

/// The largest N of `l3=every:N`; own choice.
pub const MOST_EVERY: u32 = 1_000_000;

/// How often checkpoints are made. Its text form is `auto` or a time in the largest unit that has it whole: `90s`, `10m`, `2h`, `1d`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Every {
    /// As often as it pays, by what checkpoints cost and how often nodes fail.
    Auto,
    /// After so many seconds, 1 to 604800.
    Seconds(u32),
}

/// Which checkpoints are drained to the site's parallel file system. Its text form is `every:6` or `off`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Drain {
    /// One of so many, 1 to [`MOST_EVERY`].
    Every(u32),
    /// None.
    Off,
}

/// Parts of a set that a drill can count as gone: as many as a set has nodes.
pub const MOST_LOST: u8 = 64;

/// From what a job begins. Its text form is `auto`, `new`, `no`, `1234`, `1234/7` or, in drills, `1234/7/lose:2`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Restart {
    /// From its own newest checkpoint, where it has made one; one that was made and is not found is not begun anew.
    #[default]
    Auto,
    /// As [`Restart::Auto`], and from the start where none can be restored, also of those that were made.
    New,
    /// From the start, in each of its runs.
    No,
    /// As [`Restart::Auto`]; as long as it has none itself, from a checkpoint of an earlier job.
    From {
        /// Slurm's number of that job, never 0.
        job: u32,
        /// The checkpoint, from 1 on; `None`: its newest.
        number: Option<u32>,
        /// The job is a drill: so many parts of each set, [`MOST_LOST`] at most, count as gone, and nothing is kept of what it fetches.
        lose: Option<u8>,
    },
}

/// What a job says of its checkpoints.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CheckpointOption {
    /// How often.
    pub every: Every,
    /// MiB of memory on each node into which programs write their files, 1 to [`MOST_MEMORY_MIB`]; `None`: they write to its disk.
    pub memory_mib: Option<u32>,
    /// What its nodes keep for each other; `None`: what the site says.
    pub scheme: Option<Scheme>,
    /// Which are drained; `None`: what the site says.
    pub drain: Option<Drain>,
    /// From what it begins; it has an option of its own, `--gpuos-restart`.
    pub restart: Restart,
}

/// Reads the value of `--gpuos-checkpoint`.
///
/// # Errors
/// It is no time, no scheme, or something of a later release.
pub fn parse_checkpoint(value: &str) -> Result<CheckpointOption, OptionError> {
    let error = |reason: &str| OptionError::new("--gpuos-checkpoint", value, reason, FORM);
    check_value(value).map_err(|reason| error(&reason))?;
    let lower = value.to_ascii_lowercase();
    let mut words = lower.split(',');
    let every = words.next().unwrap_or_default();
    for word in ["l0=", "l2=", "l3="] {
        if every.starts_with(word) {
            return Err(error(&format!("the time before {word} is missing")));
        }
    }
    let mut option = CheckpointOption {
        every: parse_every(every).map_err(|reason| error(&reason))?,
        memory_mib: None,
        scheme: None,
        drain: None,
        restart: Restart::Auto,
    };
    let mut restarts = false;
    for word in words {
        if let Some(restart) = word.strip_prefix("restart=") {
            if std::mem::replace(&mut restarts, true) {
                return Err(error("restart= stands there twice"));
            }
            option.restart = read_restart(restart).map_err(|reason| error(&reason))?;
            continue;
        }
        if let Some(size) = word.strip_prefix("l0=") {
            if option.memory_mib.is_some() {
                return Err(error("l0= stands there twice"));
            }
            option.memory_mib = Some(parse_size(size).map_err(|reason| error(&reason))?);
            continue;
        }
        if let Some(drain) = word.strip_prefix("l3=") {
            if option.drain.is_some() {
                return Err(error("l3= stands there twice"));
            }
            option.drain = Some(parse_drain(drain).map_err(|reason| error(&reason))?);
            continue;
        }
        let Some(scheme) = word.strip_prefix("l2=") else {
            return Err(error(&refused(word)));
        };
        if option.scheme.is_some() {
            return Err(error("l2= stands there twice"));
        }
        let scheme = scheme.parse::<Scheme>();
        option.scheme = Some(scheme.map_err(|why| OptionError {
            accepted: SchemeError::accepted(),
            ..error(&why.reason())
        })?);
    }
    Ok(option)
}

/// Reads the value of `--gpuos-restart`.
///
/// # Errors
/// It is none of the words, and no number of a job.
pub fn parse_restart(value: &str) -> Result<Restart, OptionError> {
    let error = |reason: &str| OptionError::new("--gpuos-restart", value, reason, RESTART_FORM);
    check_value(value).map_err(|reason| error(&reason))?;
    read_restart(&value.to_ascii_lowercase()).map_err(|reason| error(&reason))
}

fn read_restart(word: &str) -> Result<Restart, String> {
    let number = |text: &str| {
        let digits = (1..=10).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
        let number = text.parse().ok().filter(|number: &u32| *number > 0);
        number.filter(|_| digits)
    };
    match word {
        "auto" => return Ok(Restart::Auto),
        "new" => return Ok(Restart::New),
        "no" => return Ok(Restart::No),
        _ => {}
    }
    let mut words = word.splitn(3, '/');
    let Some(job) = words.next().and_then(number) else {
        return Err(not_understood(word));
    };
    let number = match words.next().map(number) {
        None => None,
        Some(Some(number)) => Some(number),
        Some(None) => return Err("a checkpoint is a number from 1 on".into()),
    };
    let lose = words.next().map(|word| {
        let lost = word
            .strip_prefix("lose:")
            .and_then(|lost| lost.parse().ok());
        let lost = lost.filter(|lost| *lost <= MOST_LOST && word == format!("lose:{lost}"));
        lost.ok_or(format!("lose: is lose:0 to lose:{MOST_LOST}"))
    });
    Ok(Restart::From {
        job,
        number,
        lose: lose.transpose()?,
    })
}

fn parse_drain(word: &str) -> Result<Drain, String> {
    if word == "off" {
        return Ok(Drain::Off);
    }
    let number = word.strip_prefix("every:").unwrap_or_default();
    let digits = (1..=9).contains(&number.len()) && number.bytes().all(|b| b.is_ascii_digit());
    match number.parse() {
        Ok(every @ 1..=MOST_EVERY) if digits => Ok(Drain::Every(every)),
        Ok(_) if digits => Err(format!("every: is for 1 to {MOST_EVERY}")),
        _ => Err(not_understood(&format!("l3={word}"))),
    }
}

fn parse_size(word: &str) -> Result<u32, String> {
    match size::parse(word) {
        Some(mib @ 1..=MOST_MEMORY_MIB) => Ok(mib),
        Some(_) => Err("l0= is for 1M to 16T of memory of each node".into()),
        None if word.ends_with('%') => Err(format!(
            "{}: a size is no share, as nodes of a cluster may differ",
            not_understood(&format!("l0={word}"))
        )),
        None => Err(not_understood(&format!("l0={word}"))),
    }
}

fn parse_every(word: &str) -> Result<Every, String> {
    if word == "auto" {
        return Ok(Every::Auto);
    }
    let time = UNITS.iter().find_map(|(unit, seconds)| {
        let number = word.strip_suffix(*unit)?;
        let digits = (1..=9).contains(&number.len()) && number.bytes().all(|b| b.is_ascii_digit());
        let number: u64 = number.parse().ok().filter(|_| digits)?;
        Some(number * u64::from(*seconds))
    });
    match time {
        Some(seconds @ 1..=MOST_SECONDS) => Ok(Every::Seconds(seconds as u32)),
        Some(_) => Err("a time is 1s to 7d".into()),
        None => Err(refused(word)),
    }
}

/// The reason for a word that is no time and no scheme.
fn refused(word: &str) -> String {
    let later = LATER.iter().find(|later| word.starts_with(**later));
    match later {
        Some(later) => format!("{later} is not part of this release"),
        None => not_understood(word),
    }
}

impl fmt::Display for Every {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Every::Seconds(time) = *self else {
            return f.write_str("auto");
        };
        let mut units = UNITS.iter();
        let whole = units.find(|(_, seconds)| time.is_multiple_of(*seconds) && time > 0);
        let (unit, seconds) = whole.unwrap_or(&('s', 1));
        write!(f, "{}{unit}", time / seconds)
    }
}

impl fmt::Display for CheckpointOption {
    /// As [`parse_checkpoint`] reads it: `10m,l2=partner`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CheckpointOption {
            every,
            memory_mib,
            scheme,
            drain,
            restart,
        } = self;
        write!(f, "{every}")?;
        if let Some(mib) = memory_mib {
            write!(f, ",l0={}", size::text(*mib))?;
        }
        if let Some(scheme) = scheme {
            write!(f, ",l2={scheme}")?;
        }
        match drain {
            Some(Drain::Every(every)) => write!(f, ",l3=every:{every}")?,
            Some(Drain::Off) => f.write_str(",l3=off")?,
            None => {}
        }
        match restart {
            Restart::Auto => Ok(()),
            restart => write!(f, ",restart={restart}"),
        }
    }
}

impl fmt::Display for Restart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Restart::Auto => f.write_str("auto"),
            Restart::New => f.write_str("new"),
            Restart::No => f.write_str("no"),
            Restart::From { job, number, lose } => {
                write!(f, "{job}")?;
                if let Some(number) = number {
                    write!(f, "/{number}")?;
                }
                // It stands behind a number alone.
                match lose.filter(|_| number.is_some()) {
                    Some(lost) => write!(f, "/lose:{lost}"),
                    None => Ok(()),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn option(every: Every, scheme: Option<Scheme>) -> CheckpointOption {
        CheckpointOption {
            every,
            memory_mib: None,
            scheme,
            drain: None,
            restart: Restart::Auto,
        }
    }

    #[test]
    fn from_what_a_job_begins() {
        let from = |job, number| Restart::From {
            job,
            number,
            lose: None,
        };
        let drill = |lost| Restart::From {
            job: 1234,
            number: Some(7),
            lose: Some(lost),
        };
        for (value, wanted) in [
            ("auto", Restart::Auto),
            ("New", Restart::New),
            ("No", Restart::No),
            ("1234", from(1234, None)),
            ("1234/7", from(1234, Some(7))),
            ("4294967295/4294967295", from(u32::MAX, Some(u32::MAX))),
            ("1234/7/lose:0", drill(0)),
            ("1234/7/Lose:64", drill(64)),
        ] {
            assert_eq!(parse_restart(value), Ok(wanted));
            let whole = format!("10m,restart={value},l2=partner");
            let read = parse_checkpoint(&whole).unwrap();
            assert_eq!(read.restart, wanted, "{whole}");
            assert_eq!(parse_checkpoint(&read.to_string()), Ok(read));
        }
        for value in [
            "",
            "0",
            "1/",
            "1/0",
            "/1",
            "1/../2",
            "1/2/3",
            "1/2/lose:65",
            "1/2/lose:01",
            "1/2/lose:",
            "1/2/lose:1/",
            "1/lose:1",
            "../1",
            "-1",
            "+1",
            "1.5",
            "4294967296",
            "99999999999999999999",
            "1/4294967296",
            "1 ",
            "12_3",
            "12+1",
            "yes",
            "1;2",
            "1/2\n",
        ] {
            let why = parse_restart(value).unwrap_err().to_string();
            assert!(why.starts_with("--gpuos-restart"), "{why}");
            assert!(why.contains("; write auto, new, no, JOB or JOB/N"), "{why}");
            assert!(parse_checkpoint(&format!("10m,restart={value}")).is_err());
        }
        let twice = parse_checkpoint("10m,restart=1,restart=2").unwrap_err();
        assert!(twice.to_string().contains("restart= stands there twice"));
    }

    #[test]
    fn times_and_schemes() {
        let of = |seconds| option(Every::Seconds(seconds), None);
        for (value, wanted, text) in [
            ("auto", option(Every::Auto, None), "auto"),
            ("30s", of(30), "30s"),
            ("090s", of(90), "90s"),
            ("10M", of(600), "10m"),
            ("120m", of(7200), "2h"),
            ("7d", of(604_800), "7d"),
            (
                "Auto,L2=Partner",
                option(Every::Auto, Some(Scheme::Partner)),
                "auto,l2=partner",
            ),
            (
                "1h,l2=xor:8",
                option(Every::Seconds(3600), Some(Scheme::Xor { nodes: 8 })),
                "1h,l2=xor:8",
            ),
            (
                "10m,l2=rs:6+2",
                option(
                    Every::Seconds(600),
                    Some(Scheme::ReedSolomon { data: 6, parity: 2 }),
                ),
                "10m,l2=rs:6+2",
            ),
            (
                "1s,l2=single",
                option(Every::Seconds(1), Some(Scheme::Single)),
                "1s,l2=single",
            ),
            (
                "10m,L3=every:06",
                CheckpointOption {
                    drain: Some(Drain::Every(6)),
                    ..of(600)
                },
                "10m,l3=every:6",
            ),
            (
                "auto,l3=off,l2=partner",
                CheckpointOption {
                    drain: Some(Drain::Off),
                    ..option(Every::Auto, Some(Scheme::Partner))
                },
                "auto,l2=partner,l3=off",
            ),
            (
                "10m,l2=partner,L0=16384M",
                CheckpointOption {
                    memory_mib: Some(16 << 10),
                    ..option(Every::Seconds(600), Some(Scheme::Partner))
                },
                "10m,l0=16G,l2=partner",
            ),
            (
                "auto,l0=1500m",
                CheckpointOption {
                    memory_mib: Some(1500),
                    ..option(Every::Auto, None)
                },
                "auto,l0=1500M",
            ),
            (
                "10m,l0=16GiB,l2=partner",
                CheckpointOption {
                    memory_mib: Some(16 << 10),
                    scheme: Some(Scheme::Partner),
                    ..of(600)
                },
                "10m,l0=16G,l2=partner",
            ),
            (
                "10m,l0=16t",
                CheckpointOption {
                    memory_mib: Some(MOST_MEMORY_MIB),
                    ..of(600)
                },
                "10m,l0=16T",
            ),
        ] {
            let read = parse_checkpoint(value).unwrap();
            assert_eq!((read, read.to_string().as_str()), (wanted, text), "{value}");
        }
    }

    #[test]
    fn what_is_refused_and_why() {
        for (value, reason) in [
            ("", "a value is missing"),
            ("10", "'10' is not understood"),
            ("m", "'m' is not understood"),
            ("-5m", "'-5m' is not understood"),
            ("1.5h", "'1.5h' is not understood"),
            ("10 m", "'10 m' is not understood"),
            ("10m ", "'10m ' is not understood"),
            ("0s", "a time is 1s to 7d"),
            ("8d", "a time is 1s to 7d"),
            ("604801s", "a time is 1s to 7d"),
            ("999999999d", "a time is 1s to 7d"),
            ("1000000000s", "is not understood"),
            ("l2=partner", "the time before l2= is missing"),
            (",l2=partner", "a value is missing"),
            ("10m,", "a value is missing"),
            ("10m,partner", "'partner' is not understood"),
            ("10m,l2=single,l2=single", "l2= stands there twice"),
            ("10m,l3=/lustre", "'l3=/lustre' is not understood"),
            ("10m,l3=every:0", "every: is for 1 to 1000000"),
            ("10m,l3=every:1000001", "every: is for 1 to 1000000"),
            ("10m,l3=every:+6", "'l3=every:+6' is not understood"),
            ("10m,l3=off,l3=off", "l3= stands there twice"),
            ("l3=off", "the time before l3= is missing"),
            ("l0=1G", "the time before l0= is missing"),
            ("10m,l0=1G,l0=1G", "l0= stands there twice"),
            ("10m,l0=", "'l0=' is not understood"),
            ("10m,l0=16", "'l0=16' is not understood"),
            ("10m,l0=0G", "l0= is for 1M to 16T of memory of each node"),
            ("10m,l0=17T", "l0= is for 1M to 16T of memory of each node"),
            ("10m,l0=999999999T", "'l0=999999999t' is not understood"),
            ("10m,l0=-1G", "'l0=-1g' is not understood"),
            ("10m,l0=1.5G", "'l0=1.5g' is not understood"),
            (
                "10m,l0=50%",
                "a size is no share, as nodes of a cluster may differ",
            ),
            ("10m,l2=partner,dir=/x", "dir= is not part of this release"),
            ("every:100", "every: is not part of this release"),
            (
                "10m,l2=",
                "l2= is not understood: it is not one of the known schemes",
            ),
            (
                "10m,l2=xor:1",
                "l2=xor:1 is not understood: a set needs at least 2 nodes",
            ),
            (
                "10m,l2=rs:60+8",
                "l2=rs:60+8 is not understood: a set has at most 64 nodes",
            ),
        ] {
            let why = parse_checkpoint(value).unwrap_err().to_string();
            let begin = format!("--gpuos-checkpoint={value}: ");
            assert!(why.starts_with(&begin) && why.contains(reason), "{why}");
            let form = match reason.starts_with("l2=") && reason.contains("is not understood") {
                true => "; write l2=single, l2=partner, l2=xor:NODES (2 to 64)",
                false => "; write auto, a time from 1s to 7d",
            };
            assert!(why.contains(form), "{why}");
            let once = why.matches("l2=partner").count() <= 1 + value.matches("l2=partner").count();
            assert!(once, "the accepted form stands there twice: {why}");
        }
        assert!(parse_checkpoint(&"1".repeat(2000)).is_err());
    }

    proptest! {
        #[test]
        fn what_is_taken_reads_back_and_what_is_not_is_one_short_line(
            value in ".{0,60}|[0-9]{1,7}[smhd](,l0=[0-9]{0,10}[mgtMGT]?)?(,l2=[a-z]{2,7}:?[0-9+]{0,5})?(,l3=(off|every:[0-9]{0,8}))?(,restart=(no|[0-9]{1,11}(/[0-9]{0,11})?))?",
        ) {
            match parse_checkpoint(&value) {
                Ok(read) => prop_assert_eq!(parse_checkpoint(&read.to_string()), Ok(read)),
                Err(why) => prop_assert!(why.to_string().len() < 1000),
            }
        }
    }
}
