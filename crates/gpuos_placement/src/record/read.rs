//! Reading, from bytes that may be in any state.
use std::fmt;

use gpuos_model::cluster::Cluster;

use super::bytes::{check, u32_at, u64_at};
use super::event::Event;
use super::model::Model;
use super::ring::{FRAME, MADE_BY, MAGIC, SEGMENT_HEAD, Sizes, VERSION, seed};
use super::tally::Tally;
use super::{FORMAT, MODELS, SEGMENTS};
use crate::cost::{End, History};
use crate::fabric::Recipe;
use crate::frag::Expected;

/// Why bytes are no recording that this gpuos reads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReadError {
    /// They begin otherwise.
    NotARing,
    /// Another release of gpuos wrote them: its name, and the version of their form.
    OtherFormat(String, u32),
    /// They are cut off or longer than their head says.
    Length,
}

/// A sentence: what is wrong and what to do.
impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::NotARing => f.write_str(
                "it is no ring of decisions; give a file that `gpuos replay --save` wrote, or the ring \
                 of a slurmctld with select/gpuos",
            ),
            ReadError::OtherFormat(version, format) => write!(
                f,
                "gpuos {version} wrote it in form {format}, this is gpuos {VERSION}, which reads \
                 form {FORMAT}; use the gpuos command of that release"
            ),
            ReadError::Length => f.write_str(
                "its length is not what it says at its start; it was cut off or damaged when it was copied",
            ),
        }
    }
}

impl std::error::Error for ReadError {}

/// The events of one segment, oldest first.
#[derive(Clone, PartialEq, Debug)]
pub struct Segment {
    /// Number of the segment since the ring was made.
    pub number: u64,
    /// The cluster that its decisions were made for, in [`Recording::clusters`]; `None` when that
    /// is not kept any more.
    pub cluster: Option<usize>,
    /// The events; the state that it begins with comes first.
    pub events: Vec<Event<'static>>,
}

/// What a ring holds.
#[derive(Clone, PartialEq, Debug)]
pub struct Recording {
    /// Version of gpuos that wrote it.
    pub made_by: String,
    /// The form in which it wrote.
    pub format: u32,
    /// What was counted.
    pub tally: Tally,
    /// The cluster, as it was configured and as nodes came and went.
    pub clusters: Vec<Cluster>,
    /// For each cluster what the network between its nodes is made of, where gangs on it are recorded.
    pub nets: Vec<Option<Recipe>>,
    /// Segments, oldest first.
    pub segments: Vec<Segment>,
}

impl Recording {
    /// What the runs teach that have ended since the oldest segment that is left, of at most `most` users
    /// and job names.
    pub fn history(&self, most: usize) -> History {
        let mut history = History::new(most);
        let events = self.segments.iter().flat_map(|segment| &segment.events);
        for event in events {
            if let Event::Ran(run) = event {
                history.note(&End {
                    user: &run.user,
                    name: &run.name,
                    gpus: run.gpus,
                    seconds: run.seconds,
                    bus: run.bus,
                    completed: true,
                });
            }
        }
        history
    }

    /// The cluster that the last decisions were made for, and the mix that they went by, if one
    /// was learned; `None` when that cluster is not kept.
    pub fn latest(&self) -> Option<(&Cluster, Option<&Expected>)> {
        let last = self.segments.last()?;
        let mut newest = last.events.iter().rev();
        // A segment begins with the mix, if there is one.
        let learned = newest.find_map(|event| match event {
            Event::Learned(expected) => Some(&**expected),
            _ => None,
        });
        Some((self.clusters.get(last.cluster?)?, learned))
    }
}

/// Reads a ring, also while it is being written: what is half written or half overwritten is left
/// out.
///
/// # Errors
/// The bytes are no ring of a form that is known.
pub fn read(bytes: &[u8]) -> Result<Recording, ReadError> {
    if !bytes.starts_with(MAGIC) || bytes.len() < MADE_BY.end {
        return Err(ReadError::NotARing);
    }
    let made_by = String::from_utf8_lossy(&bytes[MADE_BY]);
    let made_by = made_by.trim_end_matches('\0').to_string();
    let format = u32_at(bytes, 8);
    if format != FORMAT {
        let printable = made_by.chars().filter(char::is_ascii_graphic).collect();
        return Err(ReadError::OtherFormat(printable, format));
    }
    let sizes = Sizes::of(bytes).ok_or(ReadError::Length)?;
    let (mut clusters, mut nets) = (Vec::new(), Vec::new());
    let mut checks = Vec::new();
    for model in 0..MODELS {
        let at = sizes.model_at(model);
        let cluster = framed(&bytes[at..at + sizes.model], 0, 0)
            .and_then(|bytes| postcard::from_bytes(bytes).ok())
            .and_then(Model::cluster);
        if let Some((cluster, net)) = cluster {
            clusters.push(cluster);
            nets.push(net);
            checks.push(u32_at(bytes, at + 4));
        }
    }
    let mut segments: Vec<Segment> = (0..SEGMENTS)
        .map(|segment| {
            let start = sizes.segment_at(segment);
            let number = u64_at(bytes, start);
            let made_for = u32_at(bytes, start + 8);
            Segment {
                number,
                cluster: checks.iter().position(|&check| check == made_for),
                events: events(
                    &bytes[..start + sizes.segment],
                    start + SEGMENT_HEAD,
                    number,
                ),
            }
        })
        .filter(|segment| segment.number > 0 && !segment.events.is_empty())
        .collect();
    segments.sort_by_key(|segment| segment.number);
    Ok(Recording {
        made_by,
        format,
        tally: Tally::read(bytes),
        clusters,
        nets,
        segments,
    })
}

/// The counters of a ring, without reading what else it holds; `None`: it is no ring of this form.
pub fn tally(bytes: &[u8]) -> Option<Tally> {
    let known = bytes.starts_with(MAGIC) && u32_at(bytes, 8) == FORMAT;
    known.then(|| Tally::read(bytes))
}

/// All whole events from `at` on.
fn events(bytes: &[u8], mut at: usize, lap: u64) -> Vec<Event<'static>> {
    let mut events = Vec::new();
    while let Some(found) = framed(bytes, at, seed(lap, at + FRAME)) {
        let Ok(event) = postcard::from_bytes(found) else {
            break;
        };
        events.push(event);
        at += FRAME + found.len();
    }
    events
}

/// The bytes behind a length and a check, if the check holds.
fn framed(bytes: &[u8], at: usize, seed: u64) -> Option<&[u8]> {
    let length = u32_at(bytes, at) as usize;
    let start = at.checked_add(FRAME)?;
    let found = bytes.get(start..start.checked_add(length)?)?;
    (length > 0 && u32_at(bytes, at + 4) == check(seed, found)).then_some(found)
}
