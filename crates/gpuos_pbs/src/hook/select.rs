//! `-l select=`: chunks of resources.

use std::fmt;

use gpuos_model::hostlist::shorten;

use super::text::{is_space, pair, quoted, split};
use crate::units;

/// What a job asks for, chunk by chunk.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Select(pub Vec<Chunk>);

/// So many times the same resources, each time on one host.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Chunk {
    /// How often; one where it is not said.
    pub count: Option<u32>,
    /// Resources and their values, as they were written but for quotes.
    pub wants: Vec<(String, String)>,
}

impl Select {
    /// Reads `N:resource=value:…+…`, with or without counts, values in quotes or without.
    ///
    /// # Errors
    /// What is wrong, without the form that is accepted.
    pub fn parse(text: &str) -> Result<Select, String> {
        let chunks = split(text, '+')?;
        let chunks: Result<_, _> = chunks.into_iter().map(Chunk::parse).collect();
        Ok(Select(chunks?))
    }

    /// The values of a resource in all chunks.
    pub fn values(&self, resource: &str) -> impl Iterator<Item = &str> {
        self.0.iter().flat_map(move |chunk| chunk.values(resource))
    }

    /// How much of a resource all chunks have together; what is no number counts as none.
    pub fn count(&self, resource: &str) -> u64 {
        let of = |chunk: &Chunk| {
            u64::from(chunk.count.unwrap_or(1)).saturating_mul(chunk.number(resource))
        };
        self.0.iter().map(of).fold(0, u64::saturating_add)
    }
}

/// The text, as [`Select::parse`] reads it.
impl fmt::Display for Select {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, chunk) in self.0.iter().enumerate() {
            let plus = if at > 0 { "+" } else { "" };
            write!(f, "{plus}{chunk}")?;
        }
        Ok(())
    }
}

impl Chunk {
    fn parse(text: &str) -> Result<Chunk, String> {
        let text = text.trim_matches(is_space);
        let parts = split(text, ':')?;
        let first = parts[0].trim_matches(is_space);
        let counted = first.starts_with(|c: char| c.is_ascii_digit());
        let count = match counted {
            true => Some(
                first
                    .parse::<u32>()
                    .ok()
                    .filter(|count| *count > 0)
                    .ok_or_else(|| format!("'{}' is no number of chunks", shorten(first)))?,
            ),
            false => None,
        };
        let wants = parts[usize::from(counted)..].iter();
        let wants: Result<Vec<_>, _> = wants.map(|want| pair(want)).collect();
        Ok(Chunk {
            count,
            wants: wants?,
        })
    }

    /// Changes its memory, in KiB, where it has some and there is a new amount. Whether it was changed.
    pub(super) fn change_memory(&mut self, to: impl Fn(u64) -> Option<u64>) -> bool {
        let mut wants = self.wants.iter_mut();
        let own = wants.find(|(name, _)| name.eq_ignore_ascii_case("mem"));
        let changed = own.and_then(|(_, value)| {
            *value = size(to(units::kib(value).filter(|kib| *kib > 0)?)?);
            Some(())
        });
        changed.is_some()
    }

    /// Takes out resources of these names, which PBS reads in any case.
    pub(super) fn take_out(&mut self, names: &[&str]) {
        let own = |name: &str| names.iter().any(|one| one.eq_ignore_ascii_case(name));
        self.wants.retain(|(name, _)| !own(name));
    }

    /// How much of a resource one such chunk has; what is no number counts as none.
    pub(super) fn number(&self, resource: &str) -> u64 {
        let values = self.values(resource);
        values
            .filter_map(|value| value.trim().parse::<u64>().ok())
            .fold(0, u64::saturating_add)
    }

    /// The values of a resource, whose name PBS reads in any case.
    pub fn values(&self, resource: &str) -> impl Iterator<Item = &str> {
        let of = move |(name, _): &&(String, String)| name.eq_ignore_ascii_case(resource);
        self.wants.iter().filter(of).map(|(_, value)| &value[..])
    }
}

impl fmt::Display for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.count.map(|count| count.to_string());
        let wants = self.wants.iter();
        let wants = wants.map(|(name, value)| format!("{name}={}", quoted(value)));
        let parts: Vec<String> = count.into_iter().chain(wants).collect();
        f.write_str(&parts.join(":"))
    }
}

/// Whether a select has a resource in a chunk; one that cannot be read, whether it has the name.
pub(super) fn mentions(select: &str, resource: &str) -> bool {
    match Select::parse(select) {
        Ok(select) => select.values(resource).next().is_some(),
        Err(_) => select.to_ascii_lowercase().contains(resource),
    }
}

/// A size in KiB as PBS reads it.
pub(super) fn size(kib: u64) -> String {
    match kib {
        kib if kib.is_multiple_of(1 << 20) => format!("{}gb", kib >> 20),
        kib if kib.is_multiple_of(1 << 10) => format!("{}mb", kib >> 10),
        kib => format!("{kib}kb"),
    }
}
