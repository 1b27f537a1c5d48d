//! Where in a file an error is, and what to write instead.
use std::fmt;

/// A mistake in a configuration file. Displays as `file:line:column: message`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigError {
    /// Name of the file as the caller gave it.
    pub file: String,
    /// Line, from 1.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
    /// One sentence: the key, what was given, and the accepted form.
    pub message: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ConfigError {
            file,
            line,
            column,
            message,
        } = self;
        write!(f, "{file}:{line}:{column}: {message}")
    }
}

impl std::error::Error for ConfigError {}

/// A place in a file: line and column, from 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The line.
    pub line: u32,
    /// The column in characters.
    pub column: u32,
}

impl Default for Place {
    fn default() -> Place {
        Place { line: 1, column: 1 }
    }
}

impl Place {
    /// A mistake there.
    pub fn error(self, file: &str, message: impl Into<String>) -> ConfigError {
        ConfigError {
            file: file.into(),
            line: self.line,
            column: self.column,
            message: message.into(),
        }
    }
}

/// A text with a name, which turns byte offsets into places.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    /// The text.
    pub text: &'a str,
    /// Its name, as mistakes call it.
    pub file: &'a str,
}

impl Source<'_> {
    /// The place of a byte offset; one past the end counts as the end.
    pub fn place(&self, offset: usize) -> Place {
        let mut offset = offset.min(self.text.len());
        while !self.text.is_char_boundary(offset) {
            offset -= 1;
        }
        let before = &self.text[..offset];
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        Place {
            line: 1 + before.bytes().filter(|&b| b == b'\n').count() as u32,
            column: 1 + before[line_start..].chars().count() as u32,
        }
    }

    /// The key that the value at `offset` belongs to, as far as the line tells.
    pub fn key_before(&self, offset: usize) -> Option<&str> {
        let before = self.text.get(..offset)?;
        let start = before.rfind(['\n', '{', ',']).map_or(0, |at| at + 1);
        let key = before[start..].split('=').next()?.trim();
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
        (before[start..].contains('=') && !key.is_empty() && key.bytes().all(plain)).then_some(key)
    }
}
