//! Slurm's hostlist expressions: `n[001-004,7],gpu-[1-2]-a`.
//!
//! [`expand`] reads what Slurm reads (several brackets in a name too), with a bound on the
//! number of names so that a typing error cannot fill the memory of a daemon. [`compress`]
//! writes the short form that every Slurm release reads back.
use std::fmt;

/// The most names that one list may stand for.
pub const MAX_HOSTS: usize = 100_000;

/// The longest node name, in bytes (DNS allows no longer one).
pub const MAX_NAME: usize = 255;

/// The most brackets in one name of a list.
const MAX_BRACKETS: usize = 8;

/// Why a text is not a hostlist.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostlistError {
    /// The list as given, shortened.
    pub given: String,
    /// What is wrong with it.
    pub reason: String,
}

impl fmt::Display for HostlistError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "'{}' is not a hostlist: {}; write names such as n1,n2 or n[001-004,7]",
            self.given, self.reason
        )
    }
}

impl std::error::Error for HostlistError {}

/// The names that a hostlist stands for, in its order, repeated names included. An empty
/// list has no name.
///
/// # Errors
/// A bracket that is not closed, not a range, or nested; a character that no node name has;
/// more than [`MAX_HOSTS`] names; a name longer than [`MAX_NAME`].
pub fn expand(list: &str) -> Result<Vec<String>, HostlistError> {
    let error = |reason: String| HostlistError {
        given: shorten(list),
        reason,
    };
    let mut names = Vec::new();
    for item in split_list(list).map_err(error)? {
        expand_item(item, &mut names).map_err(error)?;
    }
    Ok(names)
}

/// The first 60 characters of a text that a user gave, without control characters.
pub fn shorten(text: &str) -> String {
    let clean = |c: char| if c.is_control() { '?' } else { c };
    let mut short: String = text.chars().take(60).map(clean).collect();
    if text.chars().nth(60).is_some() {
        short.push('…');
    }
    short
}

/// Whether a text can be the name of a node, a switch or a level: ASCII letters, digits and
/// `. _ -`, not empty, at most [`MAX_NAME`] bytes.
pub fn is_name(text: &str) -> bool {
    !text.is_empty() && text.len() <= MAX_NAME && text.bytes().all(is_name_byte)
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-')
}

/// Cuts a list at the commas and blanks outside brackets.
fn split_list(list: &str) -> Result<Vec<&str>, String> {
    let mut items = Vec::new();
    let (mut start, mut open) = (0, false);
    for (at, byte) in list.bytes().enumerate() {
        match byte {
            b'[' if open => return Err("one bracket stands inside another".into()),
            b'[' => open = true,
            b']' if !open => return Err("a ']' has no '['".into()),
            b']' => open = false,
            b',' | b' ' | b'\t' | b'\n' | b'\r' if !open => {
                items.push(&list[start..at]);
                start = at + 1;
            }
            byte if open && (byte.is_ascii_digit() || matches!(byte, b',' | b'-')) => {}
            _ if open => return Err("brackets take numbers and ranges only".into()),
            byte if is_name_byte(byte) => {}
            _ => return Err("names have ASCII letters, digits and . _ - only".into()),
        }
    }
    if open {
        return Err("a '[' has no ']'".into());
    }
    items.push(&list[start..]);
    items.retain(|item| !item.is_empty());
    Ok(items)
}

/// Appends the names that one item stands for: the last bracket varies fastest, as in Slurm.
fn expand_item(item: &str, names: &mut Vec<String>) -> Result<(), String> {
    let mut grown = vec![String::new()];
    let mut rest = item;
    let mut brackets = 0;
    while let Some((before, from)) = rest.split_once('[') {
        let (inside, after) = from.split_once(']').ok_or("a '[' has no ']'")?;
        rest = after;
        brackets += 1;
        if brackets > MAX_BRACKETS {
            return Err(format!("more than {MAX_BRACKETS} brackets in one name"));
        }
        let ranges = inside
            .split(',')
            .map(Range::parse)
            .collect::<Result<Vec<_>, _>>()?;
        let each: u64 = ranges.iter().fold(0, |n, r| n.saturating_add(r.len()));
        let all = each.saturating_mul(grown.len() as u64);
        if all.saturating_add(names.len() as u64) > MAX_HOSTS as u64 {
            return Err(format!("it stands for more than {MAX_HOSTS} names"));
        }
        let longest = ranges.iter().map(|r| r.text_len()).max().unwrap_or(0);
        check_length(&grown, before.len() + longest)?;
        let mut next = Vec::with_capacity(all as usize);
        for stem in &grown {
            for range in &ranges {
                for number in range.low..=range.high {
                    next.push(format!("{stem}{before}{number:0w$}", w = range.width));
                }
            }
        }
        grown = next;
    }
    check_length(&grown, rest.len())?;
    if grown.len() + names.len() > MAX_HOSTS {
        return Err(format!("it stands for more than {MAX_HOSTS} names"));
    }
    names.extend(grown.into_iter().map(|stem| stem + rest));
    Ok(())
}

fn check_length(stems: &[String], more: usize) -> Result<(), String> {
    match stems.iter().all(|stem| stem.len() + more <= MAX_NAME) {
        true => Ok(()),
        false => Err(format!("a name is longer than {MAX_NAME} characters")),
    }
}

/// One range in a bracket. As in Slurm, the width of the low end is the least width of all.
struct Range {
    low: u64,
    high: u64,
    width: usize,
}

impl Range {
    fn parse(text: &str) -> Result<Range, String> {
        let (low, high) = text.split_once('-').unwrap_or((text, text));
        let number = |digits: &str| {
            let short = !digits.is_empty() && digits.len() <= 18;
            let digits = digits.bytes().all(|b| b.is_ascii_digit()).then_some(digits);
            let value = digits.filter(|_| short).and_then(|d| d.parse().ok());
            value.ok_or_else(|| format!("'{}' is not a range of numbers", shorten(text)))
        };
        let range = Range {
            low: number(low)?,
            high: number(high)?,
            width: low.len(),
        };
        match range.low <= range.high {
            true => Ok(range),
            false => Err(format!("the range '{text}' goes down")),
        }
    }

    fn len(&self) -> u64 {
        self.high - self.low + 1
    }

    fn text_len(&self) -> usize {
        self.width.max(self.high.to_string().len())
    }
}

/// The short form of a list of names, in their order: neighbours that differ only in the
/// number at the end share one bracket.
pub fn compress<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let mut out = String::new();
    let mut run: Option<Run<'a>> = None;
    for name in names {
        if let Some(open) = &mut run {
            if open.push(name) {
                continue;
            }
            open.write(&mut out);
        }
        run = Some(Run::new(name));
    }
    if let Some(open) = run {
        open.write(&mut out);
    }
    out
}

/// Names of one stem on their way into one bracket.
struct Run<'a> {
    stem: &'a str,
    /// First and last number of each range, as written.
    ranges: Vec<(&'a str, &'a str)>,
}

impl<'a> Run<'a> {
    fn new(name: &'a str) -> Run<'a> {
        let (stem, digits) = cut_number(name);
        Run {
            stem,
            ranges: vec![(digits, digits)],
        }
    }

    /// Takes the name up if it has the same stem.
    fn push(&mut self, name: &'a str) -> bool {
        let (stem, digits) = cut_number(name);
        let Some(last) = self.ranges.last_mut() else {
            return false;
        };
        if stem != self.stem || digits.is_empty() || last.0.is_empty() {
            return false;
        }
        match follows(last.0, last.1, digits) {
            true => last.1 = digits,
            false => self.ranges.push((digits, digits)),
        }
        true
    }

    fn write(&self, out: &mut String) {
        if !out.is_empty() {
            out.push(',');
        }
        out.push_str(self.stem);
        match self.ranges[..] {
            [(low, high)] if low == high => return out.push_str(low),
            _ => {}
        }
        out.push('[');
        for (nth, (low, high)) in self.ranges.iter().enumerate() {
            if nth > 0 {
                out.push(',');
            }
            out.push_str(low);
            if low != high {
                out.push('-');
                out.push_str(high);
            }
        }
        out.push(']');
    }
}

/// Cuts the number off the end of a name; a number too long to count with stays in the stem.
fn cut_number(name: &str) -> (&str, &str) {
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    match name.len() - stem.len() <= 18 {
        true => name.split_at(stem.len()),
        false => (name, ""),
    }
}

/// Whether `next` is the number after `last`, written as a range that starts at `first`
/// writes it.
fn follows(first: &str, last: &str, next: &str) -> bool {
    match (last.parse::<u64>(), next.parse::<u64>()) {
        (Ok(last), Ok(value)) => {
            value == last + 1 && format!("{value:0w$}", w = first.len()) == next
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn names(list: &str) -> String {
        expand(list).unwrap().join(" ")
    }

    #[test]
    fn expands_as_slurm_does() {
        assert_eq!(names("n1"), "n1");
        assert_eq!(names("n[001-003,7]"), "n001 n002 n003 n7");
        assert_eq!(names("n[9-11], m"), "n9 n10 n11 m");
        assert_eq!(names("n[08-011]"), "n08 n09 n10 n11");
        assert_eq!(names("r[1-2]n[1-2]"), "r1n1 r1n2 r2n1 r2n2");
        assert_eq!(names("gpu-[1-2]-ib"), "gpu-1-ib gpu-2-ib");
        assert_eq!(names(""), "");
        assert_eq!(names("a,,b"), "a b");
    }

    #[test]
    fn says_what_is_wrong() {
        for (list, what) in [
            ("n[1-", "no ']'"),
            ("n1]", "no '['"),
            ("n[1[2]]", "inside another"),
            ("n[a-c]", "numbers and ranges only"),
            ("n[]", "not a range"),
            ("n[3-1]", "goes down"),
            ("n[1-2-3]", "not a range"),
            ("n[0-100000]", "more than 100000 names"),
            ("n[0-999]m[0-999]", "more than 100000 names"),
            ("n[0-99999],m", "more than 100000 names"),
            ("n[1-99999999999999999999]", "not a range"),
            ("nödel", "ASCII"),
            ("a;rm", "ASCII"),
        ] {
            let error = expand(list).unwrap_err().to_string();
            assert!(error.contains(what), "{list}: {error}");
        }
        assert!(expand(&"x".repeat(256)).is_err());
        let shown = expand(&"[".repeat(5000)).unwrap_err().to_string();
        assert!(shown.len() < 300, "{shown}");
    }

    #[test]
    fn compresses() {
        let short = |list: &str| compress(list.split(' '));
        assert_eq!(short("n1 n2 n3 n7"), "n[1-3,7]");
        assert_eq!(short("n08 n09 n10 n011"), "n[08-10,011]");
        assert_eq!(short("n9 n10"), "n[9-10]");
        assert_eq!(short("a n1 b n2"), "a,n1,b,n2");
        assert_eq!(short("n1"), "n1");
        assert_eq!(compress([]), "");
    }

    proptest! {
        #[test]
        fn compress_and_expand_are_inverse(
            parts in proptest::collection::vec(("(n|gpu-|r1n)", 0u32..130, 0usize..4), 0..60)
        ) {
            let names: Vec<String> = parts
                .into_iter()
                .map(|(stem, number, width)| format!("{stem}{number:0width$}"))
                .collect();
            let list = compress(names.iter().map(String::as_str));
            prop_assert_eq!(expand(&list).unwrap(), names);
        }

        #[test]
        fn any_text_is_refused_or_read(text in "[n0-9,\\[\\]a -]{0,40}") {
            if let Ok(names) = expand(&text) {
                prop_assert!(names.len() <= MAX_HOSTS);
                let again = expand(&compress(names.iter().map(String::as_str))).unwrap();
                prop_assert_eq!(again, names);
            }
        }
    }
}
