//! What `SCR_Config` is told: `KEY=VALUE`, `KEY`, `KEY=`, and the same for children behind a parent `KEY=VALUE`.

use std::collections::BTreeMap;

/// The setting with the folder above all files.
pub(crate) const PREFIX: &str = "SCR_PREFIX";

/// Settings by parent, if there is one, and key.
#[derive(Default)]
pub(crate) struct Settings(BTreeMap<(Option<Pair>, String), String>);

type Pair = (String, String);

/// What a text of `SCR_Config` asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Asked {
    /// The value of a key.
    Get(Option<Pair>, String),
    /// New values, `None` to take one back.
    Set(Option<Pair>, Vec<(String, Option<String>)>),
}

impl Settings {
    /// The value that was set last.
    pub(crate) fn get(&self, parent: Option<&Pair>, key: &str) -> Option<&str> {
        let place = (parent.cloned(), key.to_string());
        self.0.get(&place).map(String::as_str)
    }

    /// Takes values over.
    pub(crate) fn set(&mut self, parent: Option<Pair>, values: Vec<(String, Option<String>)>) {
        for (key, value) in values {
            let place = (parent.clone(), key);
            match value {
                Some(value) => drop(self.0.insert(place, value)),
                None => drop(self.0.remove(&place)),
            }
        }
    }
}

/// Reads a text of `SCR_Config`. Values may stand in double quotes.
///
/// # Errors
///
/// A sentence.
pub(crate) fn read(text: &str) -> Result<Asked, String> {
    let refuse = || {
        format!(
            "SCR_Config({text:?}) is neither KEY nor KEY=VALUE nor KEY= nor PARENT=VALUE KEY=VALUE"
        )
    };
    let mut words = split(text)
        .into_iter()
        .map(|word| match word.split_once('=') {
            Some((key, value)) => (key.to_string(), Some(value.to_string())),
            None => (word, None),
        });
    let (first, value) = words.next().ok_or_else(refuse)?;
    let rest: Vec<(String, Option<String>)> = words.collect();
    if first.is_empty() || rest.iter().any(|(key, _)| key.is_empty()) {
        return Err(refuse());
    }
    let given = |value: String| Some(value).filter(|value| !value.is_empty());
    match (value, &rest[..]) {
        (None, []) => Ok(Asked::Get(None, first)),
        (Some(value), []) => Ok(Asked::Set(None, vec![(first, given(value))])),
        (Some(value), [(key, None)]) => Ok(Asked::Get(Some((first, value)), key.clone())),
        (Some(value), children) => {
            let read = |(key, value): &(String, Option<String>)| {
                Some((key.clone(), given(value.clone()?)))
            };
            let values: Option<Vec<_>> = children.iter().map(read).collect();
            Ok(Asked::Set(Some((first, value)), values.ok_or_else(refuse)?))
        }
        (None, _) => Err(refuse()),
    }
}

/// Words between spaces, which may stand inside double quotes; the quotes go.
fn split(text: &str) -> Vec<String> {
    let (mut words, mut word, mut quoted) = (Vec::new(), String::new(), false);
    for letter in text.chars() {
        match letter {
            '"' => quoted = !quoted,
            space if space.is_whitespace() && !quoted => words.push(std::mem::take(&mut word)),
            other => word.push(other),
        }
    }
    words.push(word);
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(texts: &[&str]) -> Settings {
        let mut settings = Settings::default();
        for text in texts {
            match read(text) {
                Ok(Asked::Set(parent, values)) => settings.set(parent, values),
                other => panic!("{text}: {other:?}"),
            }
        }
        settings
    }

    #[test]
    fn the_last_value_counts_and_can_be_taken_back() {
        let settings = told(&[
            "SCR_FLUSH=10",
            "SCR_FLUSH=20",
            "SCR_PREFIX=\"/a b/=c\"",
            "X=1",
            "X=",
        ]);
        assert_eq!(settings.get(None, "SCR_FLUSH"), Some("20"));
        assert_eq!(settings.get(None, "SCR_PREFIX"), Some("/a b/=c"));
        assert_eq!(settings.get(None, "X"), None);
    }

    #[test]
    fn children_stand_behind_their_parent() {
        let settings = told(&[
            "CKPT=0 TYPE=XOR SET_SIZE=16",
            "CKPT=1 TYPE=SINGLE",
            "CKPT=0 SET_SIZE=",
        ]);
        let zero = ("CKPT".to_string(), "0".to_string());
        assert_eq!(settings.get(Some(&zero), "TYPE"), Some("XOR"));
        assert_eq!(settings.get(Some(&zero), "SET_SIZE"), None);
        assert_eq!(settings.get(None, "TYPE"), None);
        assert_eq!(
            read("CKPT=0 TYPE"),
            Ok(Asked::Get(Some(zero), "TYPE".into()))
        );
        assert_eq!(read("SCR_FLUSH"), Ok(Asked::Get(None, "SCR_FLUSH".into())));
    }

    #[test]
    fn what_is_no_setting_is_refused() {
        for text in ["", " ", "=1", "A B", "A B=1", "A=1 B C=2", "A=1 =2"] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
