//! GRES request strings, in all the forms in which Slurm's releases write them.
use super::OptionError;

/// The longest list, in bytes.
const MAX_TEXT: usize = 64 * 1024;

/// The most GPUs of one kind that a request may name; far above any cluster, and far below
/// what could overflow a sum.
const MAX_COUNT: u64 = 1 << 40;

/// One kind of GRES and how many of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GresRequest {
    /// Name of the GRES, for example `gpu`.
    pub name: String,
    /// Its type, for example `h100`.
    pub gres_type: Option<String>,
    /// How many; never 0.
    pub count: u64,
}

/// Reads a GRES list: `gres:gpu:h100:4` (22.05), `gres/gpu:2` (later releases), `gpu:2`,
/// `gpu=2`, `gpu`, `gpu:h100`, `gpu:1K`, and lists of these. Entries of other resources
/// (`license/x:1`), of count 0 and the word `none` are left out, as Slurm does. What stands
/// in parentheses (`gpu:h100:8(S:0-1)`) is skipped. `option` is what the error names.
///
/// # Errors
/// An entry that Slurm would not read either.
pub fn parse_gres(option: &str, text: &str) -> Result<Vec<GresRequest>, OptionError> {
    let mut list = Vec::new();
    for entry in entries(option, text)? {
        let error = |reason: &str| {
            let accepted =
                "NAME[:TYPE][:COUNT], for example gpu:2 or gpu:h100:4, in a list with commas";
            OptionError::new(option, entry, reason, accepted)
        };
        let resource = match entry.split_once('/') {
            Some(("gres", rest)) => rest,
            Some(_) => continue,
            None => entry.strip_prefix("gres:").unwrap_or(entry),
        };
        if resource.eq_ignore_ascii_case("none") {
            continue;
        }
        let (name, rest) = match resource.find([':', '=']) {
            Some(at) => (&resource[..at], &resource[at..]),
            None => (resource, ""),
        };
        check_name(name).map_err(|reason| error(&reason))?;
        let (gres_type, count) = type_and_count(rest).map_err(|reason| error(&reason))?;
        if count > 0 {
            list.push(GresRequest {
                name: name.into(),
                gres_type,
                count,
            });
        }
    }
    Ok(list)
}

/// Reads the value of `--gpus` and its kin: `4`, `h100:4`, `h100:2,a100:2`.
///
/// # Errors
/// As [`parse_gres`].
pub fn parse_gpus(option: &str, text: &str) -> Result<Vec<GresRequest>, OptionError> {
    let mut list = Vec::new();
    for entry in entries(option, text)? {
        let error = |reason: &str| {
            let accepted = "COUNT or TYPE:COUNT, for example 8 or h100:8, in a list with commas";
            OptionError::new(option, entry, reason, accepted)
        };
        let (gres_type, count) =
            type_and_count(&format!(":{entry}")).map_err(|reason| error(&reason))?;
        if count > 0 {
            list.push(GresRequest {
                name: "gpu".into(),
                gres_type,
                count,
            });
        }
    }
    Ok(list)
}

/// The entries of a list, without what stands in parentheses and without empty ones.
fn entries<'a>(option: &str, text: &'a str) -> Result<Vec<&'a str>, OptionError> {
    let error = |reason: &str| {
        OptionError::new(
            option,
            text,
            reason,
            "a list such as gpu:2 or gpu:h100:4,gpu:a100:2",
        )
    };
    if text.len() > MAX_TEXT {
        return Err(error("the list is too long"));
    }
    let mut found = Vec::new();
    // Where the entry starts, and where its text ends once a parenthesis has opened.
    let (mut start, mut end, mut depth) = (0, None, 0);
    for (at, byte) in text.bytes().chain([b',']).enumerate() {
        match byte {
            b'(' => {
                depth += 1;
                end = end.or(Some(at));
            }
            b')' if depth == 0 => return Err(error("a ')' has no '('")),
            b')' => depth -= 1,
            b',' if depth == 0 => {
                found.push(text[start..end.unwrap_or(at)].trim());
                (start, end) = (at + 1, None);
            }
            _ => {}
        }
    }
    if depth > 0 {
        return Err(error("a '(' has no ')'"));
    }
    found.retain(|entry| !entry.is_empty());
    Ok(found)
}

/// Reads `[:TYPE][:COUNT]` or `[:TYPE]=COUNT`. As in Slurm, a last word that is no number is
/// a type with the count 1.
fn type_and_count(rest: &str) -> Result<(Option<String>, u64), String> {
    if rest.is_empty() {
        return Ok((None, 1));
    }
    let at = rest.rfind('=').or(rest.rfind(':')).unwrap_or(0);
    let (front, last) = (&rest[..at], &rest[at + 1..]);
    let kind = front.strip_prefix(':');
    if last.is_empty() {
        return Err("the count is missing".into());
    }
    match (count(last)?, kind) {
        (Some(count), None) => Ok((None, count)),
        (Some(count), Some(kind)) => check_name(kind).map(|()| (Some(kind.into()), count)),
        (None, None) if !rest.starts_with('=') => check_name(last).map(|()| (Some(last.into()), 1)),
        (None, _) => Err(format!(
            "'{}' is no count",
            gpuos_model::hostlist::shorten(last)
        )),
    }
}

/// A count as Slurm writes one, with its suffixes; `None`: it is none, or above any that a node has.
pub fn parse_count(text: &str) -> Option<u64> {
    count(text).ok().flatten()
}

/// A count with Slurm's suffixes (K, M, G, T, P in steps of 1024); `None` when it is a word.
fn count(text: &str) -> Result<Option<u64>, String> {
    let Some((digits, scale)) = digits_and_scale(text) else {
        return Ok(None);
    };
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Ok(None);
    }
    let value = digits.parse::<u64>().ok();
    let value = value.and_then(|value| value.checked_mul(scale));
    match value.filter(|&value| value <= MAX_COUNT) {
        Some(value) => Ok(Some(value)),
        None => Err("the count is too large".into()),
    }
}

/// What stands before the suffix of a count, and what that multiplies it by; `None`: Slurm has no such suffix.
pub(crate) fn digits_and_scale(text: &str) -> Option<(&str, u64)> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let power = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" => 0,
        "k" => 1,
        "m" => 2,
        "g" => 3,
        "t" => 4,
        "p" => 5,
        _ => return None,
    };
    Some((digits, 1024u64.pow(power)))
}

pub(crate) fn check_name(name: &str) -> Result<(), String> {
    let clean = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-' | b'+');
    let starts = name
        .bytes()
        .next()
        .is_some_and(|b| b.is_ascii_alphanumeric());
    match starts && name.len() <= 128 && name.bytes().all(clean) {
        true => Ok(()),
        false => Err(format!(
            "'{}' is no GRES name or type",
            gpuos_model::hostlist::shorten(name)
        )),
    }
}
