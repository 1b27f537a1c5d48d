//! Texts of users on screens, in logs and in messages: what is not print is shown as an escape.
use std::borrow::Cow;

/// Whether a character ends a line, moves a cursor, or turns the direction in which its neighbours are shown: the C0 and
/// C1 controls and DEL, Unicode's line and paragraph separators, and its embeddings, overrides and isolates.
pub fn is_control(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        // Marks of direction, which move what stands beside them.
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{61c}')
}

/// The text with an escape such as `\n` or `\u{1b}` for each such character: one line that does to a screen what it says.
pub fn line(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_control) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match is_control(c) {
            // Tells \n, \r and \t by name.
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    Cow::Owned(shown)
}

/// [`line`] for a text of several lines: newlines and tabs stay.
pub fn lines(text: &str) -> Cow<'_, str> {
    let harmful = |c: char| is_control(c) && !matches!(c, '\n' | '\t');
    if !text.chars().any(harmful) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match harmful(c) {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_print_is_escaped_and_nothing_else() {
        assert!(matches!(line("naïve 模型 🚀 \\n"), Cow::Borrowed(_)));
        assert_eq!(
            line("x\n\u{1b}[2J\u{9b}\u{202e}"),
            "x\\n\\u{1b}[2J\\u{9b}\\u{202e}"
        );
        assert_eq!(lines("a\n\tb\u{1b}[1m\r"), "a\n\tb\\u{1b}[1m\\r");
        assert!(
            !line("\0\u{7f}\u{85}\u{2028}\u{2069}")
                .chars()
                .any(is_control)
        );
    }
}
