//! `-l place=`: how chunks are spread, who else may be there, and which of them stay together.

use std::fmt;

use gpuos_model::hostlist::shorten;

use super::text::{is_resource, is_space};

/// How chunks are spread over hosts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrangement {
    /// Anywhere.
    Free,
    /// All on one host.
    Pack,
    /// Each on another host.
    Scatter,
    /// Each on another vnode.
    Vscatter,
}

/// Who else may be there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sharing {
    /// Nobody on the vnodes.
    Excl,
    /// Anybody.
    Shared,
    /// Nobody on the hosts.
    Exclhost,
}

const ARRANGEMENTS: [(&str, Arrangement); 4] = [
    ("free", Arrangement::Free),
    ("pack", Arrangement::Pack),
    ("scatter", Arrangement::Scatter),
    ("vscatter", Arrangement::Vscatter),
];

const SHARINGS: [(&str, Sharing); 3] = [
    ("excl", Sharing::Excl),
    ("shared", Sharing::Shared),
    ("exclhost", Sharing::Exclhost),
];

/// The whole of it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Place {
    /// How chunks are spread; [`Arrangement::Free`] where it is not said.
    pub arrangement: Option<Arrangement>,
    /// Who else may be there; the vnodes say it where it is not said.
    pub sharing: Option<Sharing>,
    /// A resource: all vnodes of the job have a value of it in common, if PBS finds a set of vnodes that could ever hold it.
    pub group: Option<String>,
}

impl Place {
    /// Reads words with colons between, each kind once, in any order and any case.
    ///
    /// # Errors
    /// What is wrong, without the form that is accepted.
    pub fn parse(text: &str) -> Result<Place, String> {
        let mut place = Place::default();
        for word in text.split(':').map(|word| word.trim_matches(is_space)) {
            let lower = word.to_ascii_lowercase();
            let twice = match word.split_once('=') {
                Some((key, group)) if key.eq_ignore_ascii_case("group") && is_group(group) => {
                    place.group.replace(group.to_owned()).is_some()
                }
                _ => match (known(&ARRANGEMENTS, &lower), known(&SHARINGS, &lower)) {
                    (Some(one), _) => place.arrangement.replace(one).is_some(),
                    (_, Some(one)) => place.sharing.replace(one).is_some(),
                    _ => return Err(format!("'{}' is not understood", shorten(word))),
                },
            };
            if twice {
                return Err(format!(
                    "'{}' comes after another word of its kind",
                    shorten(word)
                ));
            }
        }
        Ok(place)
    }
}

fn is_group(name: &str) -> bool {
    is_resource(name) && !name.contains('.')
}

fn known<T: Copy>(table: &[(&str, T)], word: &str) -> Option<T> {
    let row = table.iter().find(|(name, _)| *name == word);
    row.map(|(_, value)| *value)
}

fn word<T: PartialEq>(table: &[(&'static str, T)], value: &T) -> Option<&'static str> {
    let row = table.iter().find(|(_, one)| one == value);
    row.map(|(name, _)| *name)
}

/// The text, as [`Place::parse`] reads it: arrangement, sharing, group.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let arrangement = self.arrangement.and_then(|one| word(&ARRANGEMENTS, &one));
        let sharing = self.sharing.and_then(|one| word(&SHARINGS, &one));
        let group = self.group.as_ref().map(|group| format!("group={group}"));
        let words = [
            arrangement.map(String::from),
            sharing.map(String::from),
            group,
        ];
        let words: Vec<String> = words.into_iter().flatten().collect();
        f.write_str(&words.join(":"))
    }
}
