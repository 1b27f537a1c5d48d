//! What the texts of PBS have in common: quotes, and separators outside of them.

use gpuos_model::hostlist::shorten;

use super::MOST_BYTES;

/// Cuts a text at a separator outside quotes, of which PBS has two kinds.
///
/// # Errors
/// A quote is not closed, or the text is too long.
pub(super) fn split(text: &str, separator: char) -> Result<Vec<&str>, String> {
    if text.len() > MOST_BYTES {
        return Err(format!("it is longer than {MOST_BYTES} bytes"));
    }
    let mut parts = Vec::new();
    let (mut start, mut quote) = (0, None);
    for (at, c) in text.char_indices() {
        match quote {
            Some(open) if open == c => quote = None,
            Some(_) => {}
            None if matches!(c, '"' | '\'') => quote = Some(c),
            None if c == separator => {
                parts.push(&text[start..at]);
                start = at + c.len_utf8();
            }
            None => {}
        }
    }
    if quote.is_some() {
        return Err(format!("a quote in '{}' is not closed", shorten(text)));
    }
    parts.push(&text[start..]);
    Ok(parts)
}

/// Reads `resource=value`, with the value in quotes or without.
///
/// # Errors
/// What is wrong with it.
pub(super) fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text
        .split_once('=')
        .ok_or_else(|| format!("'{}' has no value", shorten(text.trim())))?;
    let name = name.trim_matches(is_space);
    if !is_resource(name) {
        return Err(format!("'{}' is no name of a resource", shorten(name)));
    }
    Ok((name.to_owned(), unquoted(value.trim_matches(is_space))?))
}

/// A value without its quotes.
fn unquoted(value: &str) -> Result<String, String> {
    let quoted = value.chars().next().filter(|c| matches!(c, '"' | '\''));
    let inside = match quoted {
        Some(quote) => value
            .strip_prefix(quote)
            .and_then(|rest| rest.strip_suffix(quote)),
        None => Some(value),
    };
    let stray = |inside: &str| match quoted {
        Some(quote) => inside.contains(quote),
        None => inside.contains(['"', '\'', '(', ')']) || inside.is_empty(),
    };
    match inside {
        Some(inside) if !stray(inside) => Ok(inside.to_owned()),
        _ => Err(format!("'{}' is no value", shorten(value))),
    }
}

/// A value as [`pair`] reads it again, in quotes only where it needs them. One with both kinds of quotes has no such form, and
/// cannot come of a text.
pub(super) fn quoted(value: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-@/[]^{}~%#".contains(c);
    if !value.is_empty() && value.chars().all(plain) {
        return value.to_owned();
    }
    match value.contains('"') {
        true => format!("'{value}'"),
        false => format!("\"{value}\""),
    }
}

/// Whether a text can be the name of a resource.
pub(super) fn is_resource(name: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.');
    name.len() <= 255
        && name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.bytes().all(inner)
}

/// What C's `isspace` takes, which PBS goes by.
pub(super) fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r' | '\u{b}' | '\u{c}')
}
