//! XML as Grid Engine prints it: elements and text, and no `<` in what users wrote.

/// The deepest that elements lie in each other.
const MOST_DEPTH: usize = 32;

/// An element with text and no element in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Leaf {
    /// Names of the elements around it, from the outermost on, and its own.
    pub(super) path: Vec<String>,
    /// Its text.
    pub(super) text: String,
}

/// All leaves, in their order.
///
/// # Errors
/// What is wrong with the text: it is none that Grid Engine would print.
pub(super) fn leaves(text: &str) -> Result<Vec<Leaf>, String> {
    let mut leaves = Vec::new();
    let mut open: Vec<String> = Vec::new();
    let mut rest = text;
    // Whether nothing but text came since the last element began.
    let mut plain = false;
    while let Some(at) = rest.find('<') {
        let (before, tag) = rest.split_at(at);
        let end = tag.find('>').ok_or("a tag has no end")?;
        let (tag, after) = (&tag[1..end], &tag[end + 1..]);
        rest = after;
        if tag.starts_with('?') {
            continue;
        }
        if let Some(name) = tag.strip_prefix('/') {
            let name = name.trim_end();
            if open.last().map(String::as_str) != Some(name) {
                return Err("an element ends that did not begin".into());
            }
            if plain {
                leaves.push(Leaf {
                    path: open.clone(),
                    text: unescape(before),
                });
            }
            plain = false;
            open.pop();
            continue;
        }
        let inner = tag.strip_suffix('/').unwrap_or(tag);
        let name = inner.split_whitespace().next().unwrap_or_default();
        let word = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.' | b':');
        if name.is_empty() || !name.bytes().all(word) {
            return Err("an element has no valid name".into());
        }
        plain = inner.len() == tag.len();
        if plain {
            if open.len() == MOST_DEPTH {
                return Err("elements lie too deep".into());
            }
            open.push(name.to_owned());
        }
    }
    match open.is_empty() {
        true => Ok(leaves),
        false => Err("it is cut off".into()),
    }
}

fn unescape(text: &str) -> String {
    let known = [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&apos;", "'"),
        ("&amp;", "&"),
    ];
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('&') {
        out += &rest[..at];
        rest = &rest[at..];
        let found = known.iter().find(|(name, _)| rest.starts_with(name));
        let (name, stands_for) = found.copied().unwrap_or(("&", "&"));
        out += stands_for;
        rest = &rest[name.len()..];
    }
    out + rest
}
