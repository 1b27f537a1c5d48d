//! What keeps the daemon from its work.

use std::collections::BTreeMap;

/// Sentences, by what they are about.
#[derive(Debug, Default)]
pub struct Troubles(BTreeMap<&'static str, String>);

impl Troubles {
    /// Something is wrong, or is so no more.
    pub fn set(&mut self, of: &'static str, what: Option<String>) {
        match what {
            Some(what) => drop(self.0.insert(of, what)),
            None => drop(self.0.remove(of)),
        }
    }

    /// What is wrong with something.
    pub fn get(&self, of: &str) -> Option<&String> {
        self.0.get(of)
    }

    /// All that something is wrong with.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.keys().copied()
    }

    /// All sentences.
    pub fn sentences(&self) -> Vec<String> {
        self.0.values().cloned().collect()
    }
}
