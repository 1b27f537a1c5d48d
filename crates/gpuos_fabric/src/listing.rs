//! What a save says of its objects: a list in text, and the names of its files.
//!
//! ```text
//! gpuos-memory 1
//! bytes 42949672960 cache
//! mapped 1048576 layer%2F7
//! end 2 c5a1e0f03bd2a977
//! ```
//!
//! The list is written last, so a save that came to an early end has none. A name is a file's name too, with `%XX` for all but letters, digits, `_`, `-` and dots behind its
//! beginning: it is the same in all saves, by which gpuos_mover finds what did not change, and never a path.

use std::collections::HashSet;
use std::fmt::Write;

/// The file of the list. No other file of a save ends so.
pub(crate) const LIST: &str = "gpuos-memory";
/// What the others end with.
const ENDING: &str = ".memory";
/// Bytes that a name takes in a file's name; with the ending file systems have room for it.
const MOST_NAME: usize = 240;
/// Bytes that a list may have: those of about a million objects.
pub(crate) const MOST: u64 = 256 << 20;
const FIRST: &str = "gpuos-memory 1\n";

/// An object that was saved.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    /// It is made of a file, which is where its bytes are.
    pub(crate) mapped: bool,
}

fn is_plain(byte: u8, at: usize) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-' || byte == b'.' && at > 0
}

fn encoded(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    for (at, byte) in name.bytes().enumerate() {
        if is_plain(byte, at) {
            text.push(char::from(byte));
        } else {
            // A String takes all that is written to it.
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}

fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        rest = behind;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let (two, behind) = rest.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(std::str::from_utf8(two).ok()?, 16).ok()?);
        rest = behind;
    }
    let name = String::from_utf8(bytes).ok()?;
    // A name has one form: what has another one was not written here, and its file could have any name.
    (encoded(&name) == text).then_some(name)
}

/// The file of an object of this name.
///
/// # Errors
/// The name is none, or too long for a file's name.
pub(crate) fn file_name(name: &str) -> Result<String, String> {
    let text = encoded(name);
    match text.len() {
        0 => Err("an empty name: give at least one character".to_string()),
        1..=MOST_NAME => Ok(text + ENDING),
        length => Err(format!(
            "a name of {length} bytes, where all but letters, digits, _, - and dots counts as three: {MOST_NAME} are the most"
        )),
    }
}

/// A sum that tells damage, not malice (FNV-1a).
fn sum(text: &str) -> u64 {
    let add = |sum: u64, byte: u8| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, add)
}

/// The text of a list.
pub(crate) fn text(entries: &[Entry]) -> String {
    let mut text = FIRST.to_string();
    for entry in entries {
        let kind = if entry.mapped { "mapped" } else { "bytes" };
        let name = encoded(&entry.name);
        let _ = writeln!(text, "{kind} {} {name}", entry.bytes);
    }
    let _ = write!(text, "end {} ", entries.len());
    let sum = sum(&text);
    let _ = writeln!(text, "{sum:016x}");
    text
}

/// The objects of a list.
///
/// # Errors
/// It is none, of a newer form, or damaged.
pub(crate) fn entries(text: &[u8]) -> Result<Vec<Entry>, String> {
    let damaged = || format!("{LIST} is damaged");
    let text = std::str::from_utf8(text).map_err(|_| damaged())?;
    let Some(body) = text.strip_prefix(FIRST) else {
        return Err(match text.starts_with("gpuos-memory ") {
            true => format!("{LIST} is of a newer version of gpuos"),
            false => damaged(),
        });
    };
    let mut found: Vec<Entry> = Vec::new();
    let mut names = HashSet::new();
    let mut lines = body.split_inclusive('\n');
    for line in lines.by_ref() {
        let words = line.strip_suffix('\n').ok_or_else(damaged)?;
        if words.starts_with("end ") {
            let whole = self::text(&found);
            // One list has one text, so all of it is held against what it says.
            return match whole == text {
                true => Ok(found),
                false => Err(damaged()),
            };
        }
        let entry = entry(words).ok_or_else(damaged)?;
        if !names.insert(entry.name.clone()) {
            return Err(damaged());
        }
        found.push(entry);
    }
    Err(format!("{LIST} has no end"))
}

fn entry(words: &str) -> Option<Entry> {
    let mut words = words.splitn(3, ' ');
    let (kind, bytes, name) = (words.next()?, words.next()?, words.next()?);
    let mapped = match kind {
        "bytes" => false,
        "mapped" => true,
        _ => return None,
    };
    let name = decoded(name)?;
    // What no object can be registered under was not written here.
    if name.contains('\0') || file_name(&name).is_err() {
        return None;
    }
    Some(Entry {
        name,
        bytes: bytes.parse().ok()?,
        mapped,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, bytes: u64, mapped: bool) -> Entry {
        let name = name.to_string();
        Entry {
            name,
            bytes,
            mapped,
        }
    }

    fn some() -> Vec<Entry> {
        vec![
            entry("cache", 40 << 30, false),
            entry("../etc/passwd", 1, false),
            entry("Größe 1\n2", u64::MAX, true),
        ]
    }

    #[test]
    fn a_list_says_what_was_written() {
        for all in [Vec::new(), some()] {
            assert_eq!(entries(text(&all).as_bytes()), Ok(all));
        }
    }

    #[test]
    fn names_are_no_paths_and_all_different() {
        let names = [
            "a",
            "A",
            ".",
            "..",
            "/",
            "a/b",
            "a%2Fb",
            "%",
            "gpuos-memory",
            ".memory",
            "ä",
            "a b",
        ];
        let files = names.map(|name| file_name(name).expect("a name"));
        for (at, file) in files.iter().enumerate() {
            assert!(
                !file.contains(['/', ' ']) && !file.starts_with('.'),
                "{file}"
            );
            assert!(file != LIST && !files[..at].contains(file), "{file}");
        }
        assert!(file_name("").is_err() && file_name(&"n".repeat(241)).is_err());
        assert!(file_name(&"ä".repeat(41)).is_err());
        assert_eq!(file_name(&"ä".repeat(40)).expect("a name").len(), 247);
    }

    #[test]
    fn each_change_is_found() {
        let whole = text(&some()).into_bytes();
        for at in 0..whole.len() {
            assert!(entries(&whole[..at]).is_err(), "{at}");
            for bit in 0..8 {
                let mut damaged = whole.clone();
                damaged[at] ^= 1 << bit;
                assert!(entries(&damaged).is_err(), "byte {at}, bit {bit}");
            }
        }
        for odd in [
            vec![entry("a", 1, false), entry("a", 2, false)],
            vec![entry("", 1, false)],
            vec![entry("a\0b", 1, false)],
            vec![entry(&"n".repeat(241), 1, false)],
        ] {
            assert!(entries(text(&odd).as_bytes()).is_err(), "{odd:?}");
        }
        let longer = [&whole[..], b"\n"].concat();
        assert!(entries(&longer).is_err());
        let newer = entries(b"gpuos-memory 2\n").expect_err("newer");
        assert!(newer.contains("newer version"), "{newer}");
    }
}
