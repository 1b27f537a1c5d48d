//! Words that users write: how long, of which letters, and the reason for those that are not taken.
use std::ops::{Bound, RangeBounds};

use crate::hostlist::shorten;

/// The longest value of an option, in bytes.
pub const MAX_VALUE: usize = 1024;

/// The longest name of a level, job or user in an option, in bytes.
pub const MAX_WORD: usize = 64;

/// The reason for a word, or nothing, that does not mean anything here.
pub fn not_understood(word: &str) -> String {
    match word {
        "" => "a value is missing".into(),
        word => format!("'{}' is not understood", shorten(word)),
    }
}

/// What reads whole numbers of a range, for the values of flags: digits alone, and the reason for another text has the range in words.
///
/// The reason is for a sentence that has named the flag and the text already.
pub fn whole_number<T: TryFrom<u64>>(
    range: impl RangeBounds<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone {
    let least = match range.start_bound() {
        Bound::Included(least) => *least,
        Bound::Excluded(below) => below.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let most = match range.end_bound() {
        Bound::Included(most) => Some(*most),
        Bound::Excluded(above) => Some(above.saturating_sub(1)),
        Bound::Unbounded => None,
    };
    move |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let number = text
            .parse()
            .ok()
            .filter(|number| digits && *number >= least);
        let number = number.filter(|number| most.is_none_or(|most| *number <= most));
        let number = number.and_then(|number| T::try_from(number).ok());
        number.ok_or_else(|| match most {
            Some(most) => format!("write a whole number from {least} to {most}"),
            None if digits && text.len() > 9 => {
                format!("that is too large; write a whole number from {least} on")
            }
            None => format!("write a whole number from {least} on"),
        })
    }
}

/// Units of memory and their MiB, the largest first.
pub const UNITS: [(char, u32); 3] = [('t', 1 << 20), ('g', 1 << 10), ('m', 1)];

/// MiB of a size in lower case, such as `16g`, `16gb` or `16gib`, all in binary units as Slurm has them; `None`: it is none, or more than
/// fits.
pub fn mib_of(word: &str) -> Option<u32> {
    let bare = word.strip_suffix('b').unwrap_or(word);
    let bare = bare.strip_suffix('i').unwrap_or(bare);
    UNITS.iter().find_map(|(unit, mib)| {
        let number = bare.strip_suffix(*unit)?;
        let digits = (1..=9).contains(&number.len()) && number.bytes().all(|b| b.is_ascii_digit());
        let number: u64 = number.parse().ok().filter(|_| digits)?;
        u32::try_from(number * u64::from(*mib)).ok()
    })
}

/// The text form of so many MiB, in the largest unit that has it whole: `60G`.
pub fn mib_text(mib: u32) -> String {
    let whole = UNITS.iter().find(|(_, unit)| mib.is_multiple_of(*unit));
    let (unit, of) = whole.unwrap_or(&('m', 1));
    format!("{}{}", mib / of, unit.to_ascii_uppercase())
}

/// Whether a value is short enough to be looked at.
///
/// # Errors
/// It is longer than [`MAX_VALUE`].
pub fn check_value(value: &str) -> Result<(), String> {
    match value.len() <= MAX_VALUE {
        true => Ok(()),
        false => Err(format!("the value is longer than {MAX_VALUE} characters")),
    }
}

/// Whether a word can be a name. `what` names it in the reason.
///
/// # Errors
/// Why it cannot.
pub fn check_word(word: &str, what: &str) -> Result<(), String> {
    let clean = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-' | b'@' | b'+');
    if word.is_empty() {
        Err(format!("the {what} is missing"))
    } else if word.len() > MAX_WORD {
        Err(format!("the {what} is longer than {MAX_WORD} characters"))
    } else if !word.bytes().all(clean) {
        Err(format!(
            "'{}' is no {what} (letters, digits and . _ - @ +)",
            shorten(word)
        ))
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{mib_of, mib_text, whole_number};

    #[test]
    fn numbers_of_flags_are_refused_with_their_range_in_words() {
        let read = whole_number::<u16>(1..=1440);
        assert_eq!((read("1"), read("1440")), (Ok(1), Ok(1440)));
        for bad in [
            "",
            "0",
            "1441",
            "x",
            "-1",
            "+1",
            " 1",
            "1.5",
            "99999999999999999999",
        ] {
            assert_eq!(
                read(bad),
                Err("write a whole number from 1 to 1440".into()),
                "{bad}"
            );
        }
        let read = whole_number::<u32>(1..);
        assert_eq!(read("4294967295"), Ok(u32::MAX));
        assert_eq!(read("0"), Err("write a whole number from 1 on".into()));
        assert_eq!(
            read("4294967296"),
            Err("that is too large; write a whole number from 1 on".into())
        );
        assert_eq!(
            whole_number::<u8>(..=64)("65"),
            Err("write a whole number from 0 to 64".into())
        );
        assert_eq!(
            whole_number::<u8>(2..4)("4"),
            Err("write a whole number from 2 to 3".into())
        );
    }

    #[test]
    fn sizes_are_taken_with_and_without_the_letters_for_bytes() {
        for (word, mib) in [
            ("512m", 512),
            ("512mb", 512),
            ("120g", 120 << 10),
            ("120gb", 120 << 10),
            ("120gi", 120 << 10),
            ("120gib", 120 << 10),
            ("2tib", 2 << 20),
        ] {
            assert_eq!(mib_of(word), Some(mib), "{word}");
        }
        for none in [
            "",
            "b",
            "g",
            "gib",
            "120",
            "120b",
            "120i",
            "120ib",
            "1.5g",
            "-1g",
            "1gbb",
            "1gii",
            "50%",
            "1000000000m",
            "99999t",
        ] {
            assert_eq!(mib_of(none), None, "{none}");
        }
        assert_eq!(mib_text(120 << 10), "120G");
    }
}
