//! What a job asks for with `--gpuos-mig`, and the profile that serves it.
use std::fmt;

use gpuos_model::mig::profile::{Geometry, Profile};

/// One kind of slice.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Want {
    /// A profile by name, without its suffix, in lower case: `3g.40gb`.
    Named(String),
    /// At least so many bytes of GPU memory.
    Bytes(u64),
    /// At least this part of a GPU.
    Part {
        /// Above the line.
        of: u8,
        /// Below it.
        whole: u8,
    },
}

/// Why no kind of GPU of a cluster serves a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NotServed {
    /// What is wrong with it.
    pub reason: String,
    /// What can be asked for here.
    pub accepted: String,
}

/// So many slices of one kind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Item {
    /// Which.
    pub want: Want,
    /// What a profile's name ends with: empty, `+me`, `+gfx`, `-me`, in lower case.
    pub suffix: String,
    /// How many.
    pub count: u16,
}

/// What a job asks for: on each node, or for each of its tasks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MigRequest {
    /// The kinds, in the order given.
    pub items: Vec<Item>,
    /// For each task instead of each node.
    pub per_task: bool,
}

/// What serves a request on one kind of GPU: number of the profile, and how many of it, largest
/// profiles first.
pub type Serves = Vec<(usize, u16)>;

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.want {
            Want::Named(name) => f.write_str(name)?,
            Want::Bytes(bytes) => write!(f, "{}", amount(*bytes))?,
            Want::Part { of, whole } => write!(f, "{of}/{whole}")?,
        }
        f.write_str(&self.suffix)?;
        match self.count {
            1 => Ok(()),
            count => write!(f, ":{count}"),
        }
    }
}

impl fmt::Display for MigRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, item) in self.items.iter().enumerate() {
            write!(f, "{}{item}", if at > 0 { "," } else { "" })?;
        }
        f.write_str(if self.per_task { ":per-task" } else { "" })
    }
}

/// Bytes in the largest unit that says them exactly.
fn amount(bytes: u64) -> String {
    let units = [
        (1_000_000_000_000, "T"),
        (1 << 40, "Ti"),
        (1_000_000_000, "G"),
        (1 << 30, "Gi"),
        (1_000_000, "M"),
        (1 << 20, "Mi"),
    ];
    let exact = units
        .iter()
        .find(|(unit, _)| bytes.is_multiple_of(*unit) && bytes > 0);
    exact.map_or_else(
        || format!("{bytes}B"),
        |(unit, name)| format!("{}{name}", bytes / unit),
    )
}

impl Item {
    /// The profile of a kind of GPU that serves this: the one that is named, or of those that are
    /// large enough the one with the fewest memory slices, then the fewest compute slices.
    ///
    /// A part of a GPU is met in memory slices or in compute slices: of an H100 (8 and 7) 1/7 is
    /// `1g.10gb`, 1/4 `1g.20gb`, 1/2 `3g.40gb`. Where nothing is named, profiles with a suffix serve
    /// only who writes that suffix, and the whole GPU serves `+me` too.
    pub fn profile(&self, geometry: &Geometry) -> Option<usize> {
        if let Want::Named(name) = &self.want {
            return geometry.by_name(&format!("{name}{}", self.suffix));
        }
        let slices = (geometry.slices(), geometry.compute());
        let serves = |profile: &Profile| {
            let kind = profile.suffix().eq_ignore_ascii_case(&self.suffix)
                || (self.suffix == "+me" && profile.suffix().is_empty() && profile.media());
            kind && self.want.met(profile, slices)
        };
        let all = geometry.profiles().iter().enumerate();
        all.filter(|(_, profile)| serves(profile))
            .min_by_key(|(_, p)| (p.size, p.compute, p.memory_mib, p.id))
            .map(|(number, _)| number)
    }
}

impl Want {
    fn met(&self, profile: &Profile, (slices, compute): (u8, u8)) -> bool {
        match *self {
            Want::Named(_) => false,
            Want::Bytes(bytes) => u128::from(profile.memory_mib) << 20 >= u128::from(bytes),
            Want::Part { of, whole } => {
                let part = |has: u8, all: u8| {
                    u16::from(has) * u16::from(whole) >= u16::from(of) * u16::from(all)
                };
                part(profile.size, slices) || part(profile.compute, compute)
            }
        }
    }
}

impl MigRequest {
    /// What serves the request on GPUs of one kind; `None` when they lack one of the profiles.
    pub fn serves(&self, geometry: &Geometry) -> Option<Serves> {
        let mut serves: Serves = Vec::new();
        for item in &self.items {
            let profile = item.profile(geometry)?;
            match serves.iter_mut().find(|(known, _)| *known == profile) {
                Some((_, count)) => *count = count.saturating_add(item.count),
                None => serves.push((profile, item.count)),
            }
        }
        let size = |&(profile, _): &(usize, u16)| {
            let profile = &geometry.profiles()[profile];
            (profile.size, profile.compute)
        };
        serves.sort_by(|a, b| size(b).cmp(&size(a)).then(a.0.cmp(&b.0)));
        Some(serves)
    }

    /// What serves the request on each kind of GPU of a cluster: `geometries` with the most GPUs
    /// that a node has of the kind. `tasks` is how many tasks a node has at most, for requests for
    /// each task. Kinds of which a node could not hold it even when idle are `None`.
    ///
    /// # Errors
    /// No kind serves it: a sentence with the profiles that this cluster has.
    pub fn resolve(
        &self,
        geometries: &[(&Geometry, u32)],
        tasks: u32,
    ) -> Result<Vec<Option<Serves>>, NotServed> {
        let refuse = |reason: String| {
            let kinds: Vec<String> = geometries.iter().map(|(g, _)| names(g)).collect();
            let accepted = match kinds.is_empty() {
                true => "no --gpuos-mig: no GPU of this cluster is in MIG mode".into(),
                false => format!("a profile of this cluster: {}", unique(kinds).join("; or ")),
            };
            NotServed { reason, accepted }
        };
        for item in &self.items {
            if geometries.iter().all(|(g, _)| item.profile(g).is_none()) {
                return Err(refuse(format!("no GPU here {}", item.lack())));
            }
        }
        let times = if self.per_task { tasks.max(1) } else { 1 };
        let mut room = false;
        let each = geometries.iter().map(|&(geometry, gpus)| {
            let serves = self.serves(geometry)?;
            room = true;
            holds(geometry, &serves, gpus, times).then_some(serves)
        });
        let each: Vec<Option<Serves>> = each.collect();
        if each.iter().any(Option::is_some) {
            return Ok(each);
        }
        Err(refuse(match room {
            true => "no node has so many at once".into(),
            false => "no kind of GPU has all of them".into(),
        }))
    }
}

impl Item {
    /// What GPUs lack that do not serve it.
    fn lack(&self) -> String {
        let media = match self.suffix.as_str() {
            "" => String::new(),
            suffix => format!(" with {suffix}"),
        };
        match &self.want {
            Want::Named(name) => format!("has a profile {name}{}", self.suffix),
            Want::Bytes(bytes) => format!("has a profile of {}{media}", amount(*bytes)),
            Want::Part { of, whole } => format!("has a profile of {of}/{whole}{media}"),
        }
    }
}

/// Whether so many GPUs could hold it when idle: by memory slices, and by the limit of each
/// profile. What does not fit by these counts never fits.
fn holds(geometry: &Geometry, serves: &Serves, gpus: u32, times: u32) -> bool {
    let of = |&(profile, count): &(usize, u16)| {
        let profile = &geometry.profiles()[profile];
        let count = u64::from(count) * u64::from(times);
        (profile, count)
    };
    let slices: u64 = serves
        .iter()
        .map(of)
        .map(|(p, n)| u64::from(p.size) * n)
        .sum();
    slices <= u64::from(geometry.slices()) * u64::from(gpus)
        && serves
            .iter()
            .map(of)
            .all(|(p, n)| n <= u64::from(p.most) * u64::from(gpus))
}

/// The names of the profiles, the smallest first.
fn names(geometry: &Geometry) -> String {
    let mut profiles: Vec<&Profile> = geometry.profiles().iter().collect();
    profiles.sort_by_key(|p| (p.size, p.compute, p.suffix().len()));
    let names: Vec<&str> = profiles.iter().map(|p| p.name.as_str()).collect();
    names.join(", ")
}

fn unique(mut words: Vec<String>) -> Vec<String> {
    let mut seen = std::collections::BTreeSet::new();
    words.retain(|word| seen.insert(word.clone()));
    words
}
