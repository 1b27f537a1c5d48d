//! Whom or what an affinity rule means.

/// Whom or what an affinity rule names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target<'a> {
    /// A job or user.
    Job(&'a str),
    /// `class=NAME`: jobs of a class.
    Class(&'a str),
    /// `power=NAME`: a power domain.
    Power(&'a str),
    /// `switch=NAME`, `LEVEL=NAME`: a domain of the fabric, of any level without `level`.
    Domain {
        /// The level.
        level: Option<&'a str>,
        /// The name.
        name: &'a str,
    },
}

impl<'a> Target<'a> {
    /// What one of the names of an affinity rule means.
    pub fn of(word: &'a str) -> Target<'a> {
        match word.split_once('=') {
            None => Target::Job(word),
            Some(("class", name)) => Target::Class(name),
            Some(("power", name)) => Target::Power(name),
            Some(("switch", name)) => Target::Domain { level: None, name },
            Some((level, name)) => Target::Domain {
                level: Some(level),
                name,
            },
        }
    }
}
