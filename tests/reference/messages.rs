//! A crate's part of docs/reference/messages.md, made of its tables. Tests of several crates include this file.

use std::path::{Path, PathBuf};

use gpuos_model::messages::Row;

#[path = "parts.rs"]
pub mod parts;

/// Holds parts of the page, by their names, against tables. `makes` is what in the crate's sources would make such a text,
/// and is to be found in no place but a table.
pub fn hold(tables: &[(&str, &[Row])], makes: &[&str]) {
    let part = |(name, rows): &(&str, &[Row])| ((*name).to_string(), list(rows));
    let all: Vec<_> = tables.iter().map(part).collect();
    parts::hold("reference/messages.md", &all, "make reference");
    only_in_tables(tables, makes);
}

/// The rows as a list.
fn list(rows: &[Row]) -> String {
    assert!(!rows.is_empty());
    let row = |row: &Row| {
        let mut text = format!("- {}", quoted(row.text));
        let said = [(row.means, ""), (row.action, "**")];
        let said = said.map(|(sentence, mark)| {
            let sentence = sentence.split_whitespace().collect::<Vec<_>>().join(" ");
            let whole = sentence.is_empty() || sentence.ends_with('.');
            assert!(whole, "{}: {sentence:?} is no sentence", row.text);
            match sentence.as_str() {
                "" => sentence,
                _ => format!("{mark}{}{mark}", sentence.replace('<', "\\<")),
            }
        });
        let said: Vec<String> = said.into_iter().filter(|one| !one.is_empty()).collect();
        if !said.is_empty() {
            text += &format!("\\\n  {}", said.join(" "));
        }
        text + "\n"
    };
    let rows = rows.iter().map(row);
    format!("\n\n{}\n", rows.collect::<String>())
}

/// A text as it is shown, with its variable parts as `<part>`.
fn quoted(text: &str) -> String {
    // A refusal begins with its option, as the source has it.
    let text = match text.strip_prefix("option=") {
        Some(rest) => format!("{{option}}={rest}"),
        None if text.starts_with('"') => text.replacen('"', "", 2),
        None => text.to_string(),
    };
    let mut shown = String::new();
    let mut rest = text.as_str();
    while let Some((before, after)) = rest.split_once('{') {
        let (part, after) = after.split_once('}').expect("the end of a part");
        shown += &format!("{before}<{}>", part.replace('_', " "));
        rest = after;
    }
    shown += rest;
    match shown.contains('`') {
        true => format!("`` {shown} ``"),
        false => format!("`{shown}`"),
    }
}

/// What a crate's sources say, without their tests; tables stand in files of their own.
fn sources() -> Vec<(PathBuf, String)> {
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path).expect("a source");
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            files.push((path, code.to_string()));
        }
    }
    assert!(files.len() > 2);
    files
}

/// Nothing says such a text but by a table, and each row is said: the compiler does not look into macros of other crates.
fn only_in_tables(tables: &[(&str, &[Row])], makes: &[&str]) {
    let sources = sources();
    for ((path, code), word) in sources
        .iter()
        .flat_map(|one| makes.iter().map(move |w| (one, w)))
    {
        if code.contains(word) {
            parts::page::fail(&format!(
                "{} says something by {word} that docs/reference/messages.md would not have: make it a row of messages.rs in \
                 this crate",
                path.display()
            ));
        }
    }
    let is_said = |name: &str| {
        let call = format!("::{name}");
        let ends = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
        sources
            .iter()
            .any(|(_, code)| code.split(&call).skip(1).any(ends))
    };
    let rows = tables.iter().flat_map(|(_, rows)| *rows);
    let mut named = rows.filter(|row| !row.name.is_empty());
    if let Some(row) = named.find(|row| !is_said(row.name)) {
        parts::page::fail(&format!(
            "nothing says the message {}: take its row out",
            row.name
        ));
    }
}
