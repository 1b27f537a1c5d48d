//! `--gpuos-mig`: slices of GPUs. The value is read here; [`MigRequest::resolve`] says which profile
//! serves it on a cluster.
use gpuos_model::hostlist::shorten;
use gpuos_model::mig::profile::{bare, is_name};
use gpuos_model::words::{check_value, not_understood};
use gpuos_placement::mig::{Item, MigRequest, Want};

use super::OptionError;

/// The most kinds of slices in one request.
pub const MAX_KINDS: usize = 8;

const MIG_FORM: &str = "a profile (3g.40gb), memory (10G) or a part of a GPU (1/2), with +me for the media \
     engines and :COUNT, several with commas, and :per-task at the end: 1g.10gb:2,3g.40gb:1:per-task";

/// Reads the value of `--gpuos-mig`.
///
/// Memory is in bytes of the driver's figure: `10G` and `10GB` are 10^9 each, as in the names of
/// profiles, `10Gi` and `10GiB` 2^30 each.
///
/// # Errors
/// A sentence with the accepted form.
pub fn parse_mig(value: &str) -> Result<MigRequest, OptionError> {
    let error = |reason: String| OptionError::new("--gpuos-mig", value, &reason, MIG_FORM);
    check_value(value).map_err(error)?;
    let end = ":per-task";
    let cut = value.len().saturating_sub(end.len());
    let (kinds, per_task) = match value.get(cut..) {
        Some(last) if last.eq_ignore_ascii_case(end) => (&value[..cut], true),
        _ => (value, false),
    };
    if kinds.split(',').count() > MAX_KINDS {
        return Err(error(format!("more than {MAX_KINDS} kinds of slices")));
    }
    let items = kinds
        .split(',')
        .map(item)
        .collect::<Result<Vec<Item>, String>>();
    Ok(MigRequest {
        items: items.map_err(error)?,
        per_task,
    })
}

/// One kind: `WHAT[+me][:COUNT]`.
fn item(text: &str) -> Result<Item, String> {
    let (what, count) = match text.split_once(':') {
        Some((what, count)) => (what, self::count(count)?),
        None => (text, 1),
    };
    // A slip for 3g.40gb that would otherwise be given three gigabytes.
    if let Some(number) = what.strip_suffix('g').filter(|n| n.parse::<u64>().is_ok()) {
        return Err(format!(
            "'{}' could be memory, {number}G, or the start of a profile's name",
            shorten(what)
        ));
    }
    let what = &bare(what).to_ascii_lowercase();
    let end = what.find(['+', '-']).unwrap_or(what.len());
    let (size, suffix) = what.split_at(end);
    if is_name(what) {
        let want = Want::Named(size.into());
        let suffix = suffix.into();
        return Ok(Item {
            want,
            suffix,
            count,
        });
    }
    let want = match size.split_once('/') {
        Some((of, whole)) => part(size, of, whole)?,
        None => Want::Bytes(bytes(size).ok_or_else(|| not_understood(what))?),
    };
    match suffix {
        "" | "+me" => Ok(Item {
            want,
            suffix: suffix.into(),
            count,
        }),
        other => Err(format!(
            "'{}' goes with a profile's name only",
            shorten(other)
        )),
    }
}

fn count(text: &str) -> Result<u16, String> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let count = text.parse().ok().filter(|&count| digits && count > 0);
    count.ok_or_else(|| {
        format!(
            "'{}' is no number of slices from 1 to {}",
            shorten(text),
            u16::MAX
        )
    })
}

fn part(given: &str, of: &str, whole: &str) -> Result<Want, String> {
    let number = |text: &str| text.parse::<u8>().ok().filter(|&n| (1..=16).contains(&n));
    match (number(of), number(whole)) {
        (Some(of), Some(whole)) if of <= whole => Ok(Want::Part { of, whole }),
        _ => Err(format!(
            "'{}' is no part of a GPU, such as 1/2 or 3/7",
            shorten(given)
        )),
    }
}

/// `10g`, `10gb`, `10gi`, `10gib`; in lower case.
fn bytes(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(end);
    let scale = match unit.strip_suffix('b').unwrap_or(unit) {
        "m" => 1_000_000,
        "mi" => 1 << 20,
        "g" => 1_000_000_000,
        "gi" => 1 << 30,
        "t" => 1_000_000_000_000,
        "ti" => 1 << 40,
        _ => return None,
    };
    let bytes = number.parse::<u64>().ok()?.checked_mul(scale)?;
    (bytes > 0).then_some(bytes)
}
