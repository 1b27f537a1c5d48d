//! Tables of TOML as people write them: read, checked value by value, refused with the place and the accepted form.

mod check;
mod error;

pub use check::{Check, quoted};
pub use error::{ConfigError, Place, Source};

/// The largest file that is read, in bytes.
pub const MAX_FILE: usize = 4 << 20;

/// Reads TOML into the raw form.
///
/// # Errors
/// The file is too large, is no TOML, or holds what nothing asks for.
pub fn read<'a, T: serde::de::DeserializeOwned>(
    text: &'a str,
    file: &'a str,
) -> Result<(T, Check<'a>), ConfigError> {
    let source = Source { text, file };
    if text.len() > MAX_FILE {
        let message = format!("the file is larger than {MAX_FILE} bytes");
        return Err(Place::default().error(file, message));
    }
    let raw = toml::from_str(text).map_err(|error| {
        let start = error.span().map_or(0, |span| span.start);
        let message = plain(error.message(), source.key_before(start));
        source.place(start).error(file, message)
    })?;
    Ok((raw, Check { source }))
}

/// What the TOML reader says, in the words of the other errors.
fn plain(message: &str, key: Option<&str>) -> String {
    let message = message.trim().replace('\n', " ");
    if let Some(unknown) = message.strip_prefix("unknown field ") {
        let unknown = unknown.replacen(", expected one of ", "; write one of ", 1);
        let unknown = unknown.replacen(", expected ", "; write ", 1);
        return format!("there is no key {unknown}");
    }
    let wrong = message.strip_prefix("invalid type: ");
    let wrong = wrong.or(message.strip_prefix("invalid value: "));
    let Some((given, expected)) = wrong.and_then(|wrong| wrong.split_once(", expected ")) else {
        return message;
    };
    let expected = match expected {
        "a sequence" if given == "map" => {
            "the table in double brackets, such as [[nodes]]; [[node-type.nic]] comes after its \
             [[node-type]]"
        }
        "a sequence" => "a list in brackets",
        "a boolean" => "true or false",
        "a string" => "a text in quotes",
        "i64" => "a whole number",
        "f64" => "a number",
        other => other.strip_prefix("a table: write ").unwrap_or(other),
    };
    let key = key.map(|key| format!("{key}: ")).unwrap_or_default();
    let given = given
        .replacen("map", "a table", 1)
        .replacen("sequence", "a list", 1);
    format!("{key}{given} is not accepted; write {expected}")
}
