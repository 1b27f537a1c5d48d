//! Options about the job's GPUs while it runs: power, clocks, MPS, the watch for hangs, a share of a GPU.
use gpuos_core::limits::{ClockRange, PowerCap, Share};
use gpuos_model::hostlist::shorten;
use gpuos_model::words::{check_value, not_understood};

use super::{OptionError, size};

const POWER_FORM: &str = "watts such as 300W, or a share of the GPU's usual limit such as 80%";
const CLOCKS_FORM: &str = "MHz such as 1200, or a range such as 1200-1500";
const MPS_FORM: &str = "on, or the share of a GPU's threads for each process, such as 50%";
const SHARE_FORM: &str = "timeslice, timeslice:N with N of a GPU's shards, either with its memory such as timeslice,mem=60G or \
                          timeslice,mem=60G,park=nvme, or mps:SHARE with a share of its threads such as mps:25%";
const WATCH_FORM: &str = "on, or minutes from 1 to 10080";

/// No board takes more watts.
const MOST_WATTS: u32 = 100_000;
/// No board has a higher clock.
const MOST_MHZ: u32 = 20_000;
/// No GPU has more shards.
const MOST_SHARDS: u32 = 1024;
/// A week.
const MOST_MINUTES: u32 = 10_080;

/// Reads the value of `--gpuos-power`.
pub fn parse_power(value: &str) -> Result<PowerCap, OptionError> {
    let error = |reason: &str| OptionError::new("--gpuos-power", value, reason, POWER_FORM);
    check_value(value).map_err(|reason| error(&reason))?;
    let (number, is_share) = match value.strip_suffix('%') {
        Some(number) => (number, true),
        None => (value.strip_suffix(['W', 'w']).unwrap_or(""), false),
    };
    let number = whole(number).ok_or_else(|| error(&not_understood(value)))?;
    match (number, is_share) {
        (0, _) => Err(error("a GPU does not run without power")),
        (percent @ 1..=100, true) => Ok(PowerCap::Percent(percent as u8)),
        (_, true) => Err(error("more than 100% is no cap")),
        (watts @ 1..=MOST_WATTS, false) => Ok(PowerCap::Watts(watts)),
        (_, false) => Err(error("no GPU draws as much")),
    }
}

/// Reads the value of `--gpuos-clocks`.
pub fn parse_clocks(value: &str) -> Result<ClockRange, OptionError> {
    let error = |reason: &str| OptionError::new("--gpuos-clocks", value, reason, CLOCKS_FORM);
    check_value(value).map_err(|reason| error(&reason))?;
    let (least, most) = value.split_once('-').unwrap_or((value, value));
    let range = whole(least).zip(whole(most));
    let (least, most) = range.ok_or_else(|| error(&not_understood(value)))?;
    match (least, most) {
        (0, _) => Err(error("a clock of 0 MHz stands still")),
        (_, most) if most > MOST_MHZ => Err(error("no GPU is as fast")),
        (least, most) if least > most => Err(error("the first is the lower one")),
        (least, most) => Ok(ClockRange { least, most }),
    }
}

/// Reads the value of `--gpuos-mps`: percent, with 100 for `on`.
pub fn parse_mps(value: &str) -> Result<u8, OptionError> {
    let error = |reason: &str| OptionError::new("--gpuos-mps", value, reason, MPS_FORM);
    check_value(value).map_err(|reason| error(&reason))?;
    if value.eq_ignore_ascii_case("on") {
        return Ok(100);
    }
    match value.strip_suffix('%').and_then(whole) {
        Some(percent @ 1..=100) => Ok(percent as u8),
        Some(_) => Err(error("a share is 1% to 100%")),
        None => Err(error(&not_understood(value))),
    }
}

/// Reads the value of `--gpuos-share`.
pub fn parse_share(value: &str) -> Result<Share, OptionError> {
    let error = |reason: &str| OptionError::new("--gpuos-share", value, reason, SHARE_FORM);
    check_value(value).map_err(|reason| error(&reason))?;
    let lower = value.to_ascii_lowercase();
    let mut words = lower.split(',');
    let word = words.next().unwrap_or_default();
    if word.starts_with("mem=") || word.starts_with("park=") {
        return Err(error("the way of sharing comes first"));
    }
    let (mut mib, mut park) = (None, None);
    for word in words {
        let twice = match word.split_once('=') {
            Some(("mem", text)) => {
                let size = size::of_gpu(text).map_err(|reason| error(&reason))?;
                mib.replace(size).is_some()
            }
            Some(("park", text)) => {
                let nvme = parse_park(text).map_err(|reason| error(&reason))?;
                park.replace(nvme).is_some()
            }
            _ => return Err(error(&not_understood(word))),
        };
        if twice {
            let (name, _) = word.split_once('=').unwrap_or_default();
            return Err(error(&format!("{name}= stands there twice")));
        }
    }
    if park.is_some() && mib.is_none() {
        return Err(error(
            "park= goes with timeslice,mem=SIZE alone: nothing else is parked",
        ));
    }
    let nvme = park.unwrap_or(false);
    let (way, much) = match word.split_once(':') {
        Some((way, much)) => (way, Some(much)),
        None => (word, None),
    };
    match (way, much) {
        ("timeslice", None) => Ok(Share::TimeSlice {
            shards: 1,
            mib,
            nvme,
        }),
        ("timeslice", Some(much)) => match whole(much) {
            Some(shards @ 1..=MOST_SHARDS) => Ok(Share::TimeSlice {
                shards: shards as u16,
                mib,
                nvme,
            }),
            _ => Err(error(&format!(
                "'{}' is no number of shards from 1 to {MOST_SHARDS}",
                shorten(much)
            ))),
        },
        ("mps", _) if mib.is_some() => Err(error(
            "mem= goes with timeslice alone: programs under MPS share one context that nothing can be moved under",
        )),
        ("mps", Some(much)) => match much.strip_suffix('%').and_then(whole) {
            Some(percent @ 1..=100) => Ok(Share::Mps {
                percent: percent as u8,
            }),
            Some(_) => Err(error("a share is 1% to 100%")),
            None => Err(error(&not_understood(much))),
        },
        ("mps", None) => Err(error("the share of the GPU is missing")),
        _ => Err(error(&not_understood(way))),
    }
}

/// Whether what is parked goes to NVMe, and not to host memory.
fn parse_park(place: &str) -> Result<bool, String> {
    match place {
        "nvme" => Ok(true),
        "host" => Ok(false),
        "" => Err(not_understood(place)),
        _ => Err(format!("'{}' is neither nvme nor host", shorten(place))),
    }
}

/// Reads the value of `--gpuos-watch`: seconds, or 0 for what the rule says.
pub fn parse_watch(value: &str) -> Result<u32, OptionError> {
    let error = |reason: &str| OptionError::new("--gpuos-watch", value, reason, WATCH_FORM);
    check_value(value).map_err(|reason| error(&reason))?;
    match (value.to_ascii_lowercase().as_str(), whole(value)) {
        ("on", _) => Ok(0),
        (_, Some(minutes @ 1..=MOST_MINUTES)) => Ok(minutes * 60),
        (_, Some(_)) => Err(error("that is out of range")),
        _ => Err(error(&not_understood(value))),
    }
}

/// A whole number of at most nine digits; signs and blanks are no part of one.
fn whole(text: &str) -> Option<u32> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| digits && text.len() <= 9)
}
