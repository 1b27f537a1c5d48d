//! How a kind of GPU can be divided, as its driver tells it.
//!
//! Nothing about a board is written down here: profiles, placements and limits come from NVML
//! (`nvmlDeviceGetGpuInstanceProfileInfo`, `nvmlDeviceGetGpuInstancePossiblePlacements`) and are
//! checked before anything is built on them.
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::hostlist::shorten;

/// The most memory slices that a GPU can have here: a mask of them is 16 bits.
pub const MOST_SLICES: u8 = 16;
/// The most profiles of one kind of GPU. RTX PRO 6000 has 11.
pub const MOST_PROFILES: usize = 32;
/// The longest name of a profile, in bytes.
const MOST_NAME: usize = 32;

/// Kinds of media engines that are counted: decoders, encoders, JPEG decoders, optical flow.
pub const ENGINES: usize = 4;

/// A GPU instance profile, as NVML tells it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// The id that users know from `nvidia-smi mig -lgip`, and creation uses.
    pub id: u32,
    /// Name without the `MIG ` before it, for example `3g.40gb` or `1g.10gb+me`.
    pub name: String,
    /// Compute slices.
    pub compute: u8,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Instances that an otherwise idle GPU takes.
    pub most: u8,
    /// Memory slices that one instance takes.
    pub size: u8,
    /// First memory slices that it may have, ascending.
    pub starts: Vec<u8>,
    /// Media engines of one instance, in the order of [`ENGINES`].
    pub engines: [u8; ENGINES],
}

impl Profile {
    /// What follows the memory in its name: empty, `+me`, `+gfx`, `-me`, …
    pub fn suffix(&self) -> &str {
        let end = self.name.find(['+', '-']).unwrap_or(self.name.len());
        &self.name[end..]
    }

    /// Whether it has the engines that only one instance of a GPU can have: by its name, or because
    /// it is the whole GPU.
    pub fn media(&self) -> bool {
        self.suffix().starts_with("+me") || (self.suffix().is_empty() && self.engines[3] > 0)
    }

    /// The memory slices of an instance from `start` on.
    pub fn placement(&self, start: u8) -> u16 {
        let whole = (1u32 << self.size.min(MOST_SLICES)) - 1;
        (whole << start.min(MOST_SLICES)) as u16
    }
}

/// The profiles of a kind of GPU, checked.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "Vec<Profile>", into = "Vec<Profile>")]
pub struct Geometry {
    slices: u8,
    compute: u8,
    profiles: Vec<Profile>,
}

/// Why what a driver tells of MIG cannot be used, in a sentence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GeometryError(pub String);

impl fmt::Display for GeometryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for GeometryError {}

impl TryFrom<Vec<Profile>> for Geometry {
    type Error = GeometryError;

    fn try_from(profiles: Vec<Profile>) -> Result<Geometry, GeometryError> {
        Geometry::new(profiles)
    }
}

impl From<Geometry> for Vec<Profile> {
    fn from(geometry: Geometry) -> Vec<Profile> {
        geometry.profiles
    }
}

impl Geometry {
    /// Checks profiles; they are kept in the order given. A GPU has as many memory slices as the
    /// farthest placement reaches, and as many compute slices as its largest profile.
    ///
    /// # Errors
    /// Placements, limits or names that cannot be, with the profile that says so.
    pub fn new(profiles: Vec<Profile>) -> Result<Geometry, GeometryError> {
        if profiles.is_empty() {
            return Err(GeometryError("the GPU names no MIG profile".into()));
        }
        if profiles.len() > MOST_PROFILES {
            let given = profiles.len();
            return Err(GeometryError(format!(
                "the GPU names {given} MIG profiles, more than {MOST_PROFILES}"
            )));
        }
        for (at, profile) in profiles.iter().enumerate() {
            check(profile).map_err(|why| {
                let name = shorten(&profile.name);
                GeometryError(format!("MIG profile {} ({name}): {why}", profile.id))
            })?;
            let before = &profiles[..at];
            let same = |other: &&Profile| {
                other.id == profile.id || other.name.eq_ignore_ascii_case(&profile.name)
            };
            if let Some(other) = before.iter().find(same) {
                return Err(GeometryError(format!(
                    "MIG profiles {} ({}) and {} ({}) have the same id or name",
                    other.id, other.name, profile.id, profile.name
                )));
            }
        }
        let ends = profiles.iter().flat_map(|profile| {
            let size = profile.size;
            profile.starts.iter().map(move |start| start + size)
        });
        Ok(Geometry {
            slices: ends.max().unwrap_or(0),
            compute: profiles.iter().map(|p| p.compute).max().unwrap_or(0),
            profiles,
        })
    }

    /// Memory slices of the GPU: 8 on A100 to B200, 4 on A30, 12 on RTX PRO 6000.
    pub fn slices(&self) -> u8 {
        self.slices
    }

    /// Compute slices of the GPU.
    pub fn compute(&self) -> u8 {
        self.compute
    }

    /// The profiles, in NVML's order.
    pub fn profiles(&self) -> &[Profile] {
        &self.profiles
    }

    /// The number of the profile with this name, in any case of letters, with or without `MIG `.
    pub fn by_name(&self, name: &str) -> Option<usize> {
        let name = bare(name);
        let mut all = self.profiles.iter();
        all.position(|profile| profile.name.eq_ignore_ascii_case(name))
    }

    /// The number of the profile with this id.
    pub fn by_id(&self, id: u32) -> Option<usize> {
        self.profiles.iter().position(|profile| profile.id == id)
    }
}

/// A profile's name without the `MIG ` that NVML puts before it.
pub fn bare(name: &str) -> &str {
    let cut = name
        .get(..4)
        .filter(|start| start.eq_ignore_ascii_case("mig "));
    cut.map_or(name, |start| &name[start.len()..]).trim()
}

/// Whether text has the form of a profile's name: `3g.40gb`, with a suffix or not.
pub fn is_name(text: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let end = text.find(['+', '-']).unwrap_or(text.len());
    let (size, suffix) = text.split_at(end);
    let lower = size.to_ascii_lowercase();
    let parts = lower.split_once("g.");
    let memory = parts.and_then(|(_, memory)| memory.strip_suffix("gb"));
    let word = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.');
    text.len() <= MOST_NAME
        && parts.is_some_and(|(compute, _)| digits(compute))
        && memory.is_some_and(digits)
        && (suffix.is_empty() || (suffix.len() > 1 && suffix.bytes().all(word)))
}

fn check(profile: &Profile) -> Result<(), String> {
    let Profile {
        compute,
        most,
        size,
        ref starts,
        ..
    } = *profile;
    if !is_name(&profile.name) {
        return Err("the name has not the form of 3g.40gb".into());
    }
    if compute == 0 || compute > MOST_SLICES || size == 0 || profile.memory_mib == 0 {
        return Err(format!(
            "{compute} compute slices, {size} memory slices and {} MiB cannot be",
            profile.memory_mib
        ));
    }
    if starts.is_empty() || !starts.is_sorted_by(|a, b| a < b) {
        return Err("its placements are missing, or not in ascending order".into());
    }
    let end = starts.last().map_or(0, |&start| u32::from(start)) + u32::from(size);
    if end > u32::from(MOST_SLICES) {
        return Err(format!(
            "a placement ends at memory slice {end}, and {MOST_SLICES} is the most"
        ));
    }
    if most == 0 || usize::from(most) > starts.len() {
        return Err(format!(
            "{most} instances cannot be with {} placements",
            starts.len()
        ));
    }
    Ok(())
}
