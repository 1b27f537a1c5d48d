//! JSON as PBS prints it, which is not always JSON.
//!
//! Control characters stand in texts as they are, a backslash before characters that have no escape, values that look like
//! numbers without quotes (`007`, `nan`, `0x1f`, a job's name among them), one key several times in an object, and texts that are JSON
//! themselves as that JSON. So a value is a text, a list or an object here, and whoever asks for a key is told when it is not
//! clear which value is meant.
use std::borrow::Cow;

/// The most objects and lists inside each other that are read; PBS has five. What lies deeper is a user's text that looks like
/// JSON: it is passed over, as an empty text.
const MOST_DEPTH: usize = 32;

/// A value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Json<'a> {
    /// A text, or what stands there without quotes.
    Text(Cow<'a, str>),
    /// A list.
    List(Vec<Json<'a>>),
    /// An object, its entries in the order of the text.
    Object(Vec<(Cow<'a, str>, Json<'a>)>),
}

impl<'a> Json<'a> {
    /// Reads a text.
    ///
    /// # Errors
    /// What stands where that it cannot be, as a sentence.
    pub fn parse(text: &'a str) -> Result<Json<'a>, String> {
        let mut reader = Reader { text, at: 0 };
        let value = reader.value(0)?;
        reader.blanks();
        match reader.peek() {
            None => Ok(value),
            Some(_) => Err(reader.error("nothing more")),
        }
    }

    /// The value of a key; `None`: it has none, or is no object.
    ///
    /// # Errors
    /// The key stands there more than once: its name.
    pub fn get(&self, key: &str) -> Result<Option<&Json<'a>>, String> {
        let Json::Object(entries) = self else {
            return Ok(None);
        };
        let mut found = entries.iter().filter(|(known, _)| known == key);
        match (found.next(), found.next()) {
            (_, Some(_)) => Err(format!("{key} stands in it twice")),
            (first, None) => Ok(first.map(|(_, value)| value)),
        }
    }

    /// The text of a key; empty where it has none.
    ///
    /// # Errors
    /// As [`Json::get`], or it is a list or an object: PBS prints a user's text that looks like JSON as JSON.
    pub fn text(&self, key: &str) -> Result<&str, String> {
        match self.get(key)? {
            Some(Json::Text(text)) => Ok(text),
            Some(_) => Err(format!("{key} is no text in it")),
            None => Ok(""),
        }
    }

    /// The entries of an object; none of what is no object.
    pub fn entries(&self) -> &[(Cow<'a, str>, Json<'a>)] {
        match self {
            Json::Object(entries) => entries,
            _ => &[],
        }
    }

    /// The entries of an object whose values are texts.
    pub fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.entries()
            .iter()
            .filter_map(|(key, value)| match value {
                Json::Text(text) => Some((&**key, &**text)),
                _ => None,
            })
    }
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Reader<'a> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn error(&self, wanted: &str) -> String {
        let line = 1 + self.text.as_bytes()[..self.at.min(self.text.len())]
            .iter()
            .filter(|byte| **byte == b'\n')
            .count();
        format!("line {line} of it has something else where {wanted} has to stand")
    }

    fn value(&mut self, depth: usize) -> Result<Json<'a>, String> {
        self.blanks();
        match self.peek() {
            Some(b'{' | b'[') if depth > MOST_DEPTH => self.skip(),
            Some(b'{') => self.object(depth),
            Some(b'[') => self.list(depth),
            Some(b'"') => Ok(Json::Text(self.string()?)),
            _ => self.bare(),
        }
    }

    /// Passes over an object or a list, however deep it is: without a call for each level, which would end the stack.
    fn skip(&mut self) -> Result<Json<'a>, String> {
        let mut open = Vec::new();
        loop {
            match self.peek() {
                Some(b'"') => {
                    self.string()?;
                    continue;
                }
                Some(b'{') => open.push(b'}'),
                Some(b'[') => open.push(b']'),
                Some(end @ (b'}' | b']')) if open.pop() != Some(end) => {
                    return Err(self.error("another bracket"));
                }
                Some(_) => {}
                None => return Err(self.error("a closing bracket")),
            }
            self.at += 1;
            if open.is_empty() {
                return Ok(Json::Text(Cow::Borrowed("")));
            }
        }
    }

    fn object(&mut self, depth: usize) -> Result<Json<'a>, String> {
        let mut entries = Vec::new();
        self.at += 1;
        loop {
            self.blanks();
            match self.peek() {
                Some(b'}') => break,
                // A comma too many, too.
                Some(b',') => self.at += 1,
                Some(b'"') => {
                    let key = self.string()?;
                    self.blanks();
                    if self.peek() != Some(b':') {
                        return Err(self.error("a colon"));
                    }
                    self.at += 1;
                    let value = self.value(depth + 1)?;
                    self.after(b'}')?;
                    entries.push((key, value));
                }
                _ => return Err(self.error("a key")),
            }
        }
        self.at += 1;
        Ok(Json::Object(entries))
    }

    fn list(&mut self, depth: usize) -> Result<Json<'a>, String> {
        let mut values = Vec::new();
        self.at += 1;
        loop {
            self.blanks();
            match self.peek() {
                Some(b']') => break,
                Some(b',') => self.at += 1,
                _ => {
                    values.push(self.value(depth + 1)?);
                    self.after(b']')?;
                }
            }
        }
        self.at += 1;
        Ok(Json::List(values))
    }

    /// After a value a comma comes, or what ends the object or list. So a quote inside a text, which PBS escapes, never begins
    /// a key that a user wrote.
    fn after(&mut self, end: u8) -> Result<(), String> {
        self.blanks();
        match self.peek() {
            Some(byte) if byte == b',' || byte == end => Ok(()),
            _ => Err(self.error("a comma")),
        }
    }

    fn bare(&mut self) -> Result<Json<'a>, String> {
        let rest = &self.text[self.at..];
        let ends =
            |c: char| matches!(c, ',' | '}' | ']' | '{' | '[' | '"' | ':') || c.is_whitespace();
        let length = rest.find(ends).unwrap_or(rest.len());
        if length == 0 {
            return Err(self.error("a value"));
        }
        self.at += length;
        Ok(Json::Text(Cow::Borrowed(&rest[..length])))
    }

    /// A text in quotes; the reader stands at the first one.
    fn string(&mut self) -> Result<Cow<'a, str>, String> {
        self.at += 1;
        let start = self.at;
        let mut own: Option<String> = None;
        let mut from = start;
        loop {
            match self.peek() {
                None => return Err(self.error("the end of a text")),
                Some(b'"') => break,
                Some(b'\\') => {
                    let text = own.get_or_insert_default();
                    text.push_str(&self.text[from..self.at]);
                    self.at += 1;
                    self.escape(own.get_or_insert_default())?;
                    from = self.at;
                }
                Some(_) => self.at += 1,
            }
        }
        let last = &self.text[from..self.at];
        self.at += 1;
        Ok(match own {
            None => Cow::Borrowed(last),
            Some(mut text) => {
                text.push_str(last);
                Cow::Owned(text)
            }
        })
    }

    /// What stands behind a backslash.
    fn escape(&mut self, text: &mut String) -> Result<(), String> {
        let Some(c) = self.text[self.at..].chars().next() else {
            return Err(self.error("the end of a text"));
        };
        self.at += c.len_utf8();
        match c {
            '"' | '\\' | '/' => text.push(c),
            'n' => text.push('\n'),
            't' => text.push('\t'),
            'r' => text.push('\r'),
            'b' => text.push('\u{8}'),
            'f' => text.push('\u{c}'),
            'u' => {
                let code = self.text.get(self.at..self.at + 4);
                let code = code.and_then(|hex| u32::from_str_radix(hex, 16).ok());
                match code {
                    Some(code) => {
                        self.at += 4;
                        text.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
                    }
                    None => text.push_str("\\u"),
                }
            }
            // `\,` and the like are PBS's own.
            other => {
                text.push('\\');
                text.push(other);
            }
        }
        Ok(())
    }
}
