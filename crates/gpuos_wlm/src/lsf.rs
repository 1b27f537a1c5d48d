//! The environment that a job of LSF will have, by what `bsub -env` says of it.

use crate::batch::VARIABLE;

/// What `bsub -env` was given, in the file of a job's parameters that LSF has for esub; IBM's reference of bsub writes the second.
const OPTIONS: [&str; 2] = ["LSB_SUB4_SUB_ENV_VARS", "LSF_SUB4_SUB_ENV_VARS"];

/// The list of `bsub -env`, on the command line or in a line `#BSUB`, by the text of the file that `LSB_SUB_PARM_FILE` names;
/// `None`: the job has all of the environment.
pub fn environment_list(parameters: &str) -> Option<String> {
    let mut found = None;
    let mut rest = parameters;
    while let Some((name, after)) = rest.split_once(['=', '\n']) {
        // Lines that are no parameters.
        if rest.as_bytes().get(name.len()) == Some(&b'\n') {
            rest = after;
            continue;
        }
        let (value, left) = match after.strip_prefix('"') {
            Some(quoted) => unquoted(quoted),
            None => {
                let (line, left) = after.split_once('\n').unwrap_or((after, ""));
                (line.into(), left)
            }
        };
        if OPTIONS.contains(&name.trim()) {
            found = Some(value);
        }
        rest = left;
    }
    found
}

/// A value up to its closing quote, which may have lines in it, and the lines after it.
fn unquoted(text: &str) -> (String, &str) {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, c)) = characters.next() {
        match c {
            '\\' => value.extend(characters.next().map(|(_, c)| c)),
            '"' => {
                let left = text[at..].split_once('\n').map_or("", |(_, left)| left);
                return (value, left);
            }
            c => value.push(c),
        }
    }
    (value, "")
}

/// The wish in the environment that a list of `bsub -env` leaves of that of bsub, in which it is `own`. Empty: there is none, or it
/// has variables in it whose values are not known here.
pub fn wish_left(list: &str, own: &str) -> String {
    let entries = entries(list);
    let all = entries.first().is_some_and(|first| first == "all");
    let mut wish = if all { own } else { "" };
    for entry in &entries {
        let (name, value) = match entry.split_once('=') {
            Some((name, value)) => (name.trim_end(), Some(value)),
            None => (&entry[..], None),
        };
        match (name.strip_prefix('~'), value) {
            (Some(VARIABLE), _) => wish = "",
            (None, Some(value)) if name == VARIABLE => wish = value,
            (None, None) if name == VARIABLE => wish = own,
            _ => {}
        }
    }
    let wish = wish.trim();
    if wish.contains('$') {
        String::new()
    } else {
        wish.into()
    }
}

/// Entries between commas. What stands in single quotes is one value, whose commas are its own.
fn entries(list: &str) -> Vec<String> {
    let mut found = vec![String::new()];
    let mut quoted = false;
    for c in list.chars() {
        match c {
            '\'' => quoted = !quoted,
            ',' if !quoted => found.push(String::new()),
            c => found.last_mut().into_iter().for_each(|last| last.push(c)),
        }
    }
    let trimmed = found.iter().map(|entry| entry.trim().to_string());
    trimmed.filter(|entry| !entry.is_empty()).collect()
}
