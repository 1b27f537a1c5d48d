//! Words that users write: how long, of which letters, and the reason for those that are not taken.
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

/// Units of memory and their MiB, the largest first.
pub const UNITS: [(char, u32); 3] = [('t', 1 << 20), ('g', 1 << 10), ('m', 1)];

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
