//! How Slurm takes a file of `Key=Value` apart, whatever the file: comments, continued lines, escapes, quotes
//! (`_get_next_line` and `_keyvalue_regex` in Slurm's `parse_config.c`, the same from 22.05 to 26.05).

/// A line as Slurm reads it: comments and escapes removed, continued lines joined.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct LogicalLine {
    /// Number of its first line in the file, from 1 on.
    pub number: usize,
    /// What stands in it.
    pub text: String,
}

/// The pairs at the start of a line, and what is left where no pair follows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Pairs<'a> {
    /// `Key=Value`, keys in lower case without the operator of `Key+=Value`, quotes removed.
    pub pairs: Vec<(String, String)>,
    /// The rest, without blanks around it.
    pub rest: &'a str,
}

/// The lines of a file, empty ones left out.
pub(super) fn logical_lines(text: &str) -> Vec<LogicalLine> {
    let mut lines = Vec::new();
    let (mut joined, mut first) = (String::new(), None);
    for (at, line) in text.split('\n').enumerate() {
        let line = without_comment(line);
        let number = *first.get_or_insert(at + 1);
        match continued(line) {
            Some(part) => joined.push_str(part),
            None => {
                joined.push_str(line);
                push(&mut lines, number, &std::mem::take(&mut joined));
                first = None;
            }
        }
    }
    if let Some(number) = first {
        push(&mut lines, number, &joined);
    }
    lines
}

fn push(lines: &mut Vec<LogicalLine>, number: usize, text: &str) {
    if !text.bytes().all(is_space) {
        let text = without_escapes(text);
        lines.push(LogicalLine { number, text });
    }
}

/// What C calls white space; other blanks of Unicode are part of a value.
pub(super) fn is_space(byte: u8) -> bool {
    byte.is_ascii_whitespace() || byte == 0x0b
}

/// Cuts a line at the first `#` that no backslash escapes, inside quotes too.
fn without_comment(line: &str) -> &str {
    let mut escaped = false;
    for (at, byte) in line.bytes().enumerate() {
        match byte {
            b'#' if !escaped => return &line[..at],
            b'\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    line
}

/// The line without the backslash that continues it: the last of an odd number at its end. Blanks may follow.
fn continued(line: &str) -> Option<&str> {
    let end = line.trim_end_matches(|c: char| c.is_ascii() && is_space(c as u8));
    let backslashes = end.len() - end.trim_end_matches('\\').len();
    (backslashes % 2 == 1).then(|| &end[..end.len() - 1])
}

/// `\x` becomes `x`, whatever x is.
fn without_escapes(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => plain.extend(chars.next()),
            c => plain.push(c),
        }
    }
    plain
}

/// The file that an `Include` names, and what follows it; `None`: the line is none. As in Slurm, nothing stands before the word, and the
/// name ends at a blank, in quotes too.
pub(super) fn include(text: &str) -> Option<(&str, &str)> {
    const WORD: usize = "include".len();
    let is_word = text
        .get(..WORD)
        .is_some_and(|word| word.eq_ignore_ascii_case("include"));
    let after = text.get(WORD..).filter(|_| is_word)?;
    let name = skip_blanks(after);
    if name.len() == after.len() {
        return None;
    }
    let end = name.bytes().position(is_space).unwrap_or(name.len());
    Some((&name[..end], skip_blanks(&name[end..])))
}

/// Takes the pairs at the start of a line.
pub(super) fn pairs(text: &str) -> Pairs<'_> {
    let mut pairs = Vec::new();
    let mut rest = text;
    while let Some((key, value, after)) = pair(rest) {
        pairs.push((key.to_ascii_lowercase(), value.to_owned()));
        rest = after;
    }
    let rest = skip_blanks(rest).trim_end_matches(|c: char| c.is_ascii() && is_space(c as u8));
    Pairs { pairs, rest }
}

/// One pair: key, value, and what follows.
fn pair(text: &str) -> Option<(&str, &str, &str)> {
    let text = skip_blanks(text);
    let is_key = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.');
    let length = text
        .bytes()
        .position(|byte| !is_key(byte))
        .unwrap_or(text.len());
    let key = Some(&text[..length]).filter(|key| !key.is_empty())?;
    let rest = skip_blanks(&text[length..]);
    let rest = rest.strip_prefix(['-', '*', '+', '/']).unwrap_or(rest);
    let value = skip_blanks(rest.strip_prefix('=')?);
    if let Some((quoted, after)) = value
        .strip_prefix('"')
        .and_then(|inside| inside.split_once('"'))
        && after.bytes().next().is_none_or(is_space)
    {
        return Some((key, quoted, after));
    }
    // A quote that is not closed, or not before a blank, is a part of the value.
    let end = value.bytes().position(is_space).unwrap_or(value.len());
    (end > 0).then(|| (key, &value[..end], &value[end..]))
}

fn skip_blanks(text: &str) -> &str {
    text.trim_start_matches(|c: char| c.is_ascii() && is_space(c as u8))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<(usize, String)> {
        let lines = logical_lines(text).into_iter();
        lines.map(|line| (line.number, line.text)).collect()
    }

    fn read(text: &str) -> (Vec<(String, String)>, &str) {
        let Pairs { pairs, rest } = pairs(text);
        (pairs, rest)
    }

    #[test]
    fn lines_are_joined_and_comments_cut_as_in_slurm() {
        let cases: [(&str, &[(usize, &str)]); 9] = [
            ("A=1\n\n  \nB=2", &[(1, "A=1"), (4, "B=2")]),
            ("A=1 \\\nB=2\nC=3\n", &[(1, "A=1 B=2"), (3, "C=3")]),
            // Blanks, a carriage return among them, may stand behind the backslash.
            ("A=1 \\ \t\r\nB=2\r\n", &[(1, "A=1 B=2\r")]),
            // An even number of backslashes continues nothing; each pair is one.
            ("A=1\\\\\nB=2", &[(1, "A=1\\"), (2, "B=2")]),
            ("A=1 # x \\\nB=2", &[(1, "A=1 "), (2, "B=2")]),
            ("A=1 \\ # x\nB=2", &[(1, "A=1 B=2")]),
            ("A=\"x#y\"", &[(1, "A=\"x")]),
            ("A=x\\#y \\\\# z", &[(1, "A=x#y \\")]),
            ("A=1 \\\n", &[(1, "A=1 ")]),
        ];
        for (text, wanted) in cases {
            let wanted: Vec<_> = wanted.iter().map(|(n, t)| (*n, t.to_string())).collect();
            assert_eq!(lines(text), wanted, "{text:?}");
        }
    }

    #[test]
    fn pairs_are_those_of_slurms_expression() {
        let pair = |key: &str, value: &str| (key.to_string(), value.to_string());
        type Case<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a str);
        let cases: [Case<'_>; 11] = [
            (
                " Name = gpu File=/dev/x ",
                &[("name", "gpu"), ("file", "/dev/x")],
                "",
            ),
            ("Feature=\"a b\" X=1", &[("feature", "a b"), ("x", "1")], ""),
            ("A=\"\"", &[("a", "")], ""),
            ("A=\"b\"c d=\"e", &[("a", "\"b\"c"), ("d", "\"e")], ""),
            ("Key+=a,b", &[("key", "a,b")], ""),
            ("Key + =a", &[], "Key + =a"),
            // A key without a value takes what follows.
            ("Gres= Feature=a", &[("gres", "Feature=a")], ""),
            ("A=1 rubbish B=2", &[("a", "1")], "rubbish B=2"),
            ("A=", &[], "A="),
            ("a-b=1", &[], "a-b=1"),
            ("A=b=c", &[("a", "b=c")], ""),
        ];
        for (text, wanted, rest) in cases {
            let wanted: Vec<_> = wanted.iter().map(|(k, v)| pair(k, v)).collect();
            assert_eq!(read(text), (wanted, rest), "{text}");
        }
    }

    #[test]
    fn an_include_stands_at_the_start_of_a_line() {
        assert_eq!(include("INCLUDE  a.conf \n"), Some(("a.conf", "")));
        assert_eq!(include("include \"a b\""), Some(("\"a", "b\"")));
        assert_eq!(include(" Include a"), None);
        assert_eq!(include("Includes=a"), None);
        assert_eq!(include("Include"), None);
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_without_panic(text: String, odd in "[ \\\\#\"=\n\ra-c+]{0,60}") {
            for text in [text, odd] {
                for line in logical_lines(&text) {
                    include(&line.text);
                    pairs(&line.text);
                }
            }
        }
    }
}
