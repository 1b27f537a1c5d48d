//! How the GPUs of a pool are to be divided, as a file for `gpuos mig assert`, and what differs from it.
use std::collections::HashMap;
use std::fmt;

use gpuos_model::gpuset::{GpuSet, MAX_GPUS};
use gpuos_model::mig::MigPlacement;
use gpuos_model::mig::profile::{MOST_SLICES, bare, is_name};
use gpuos_model::reading::{Check, ConfigError, quoted};
use gpuos_placement::explain::parse_gpus;
use serde::Deserialize;
use toml::Spanned;

use super::fabric::hosts;
use super::read;

/// The most entries of one `instances`: a GPU has no more slices.
const MOST: usize = MOST_SLICES as usize;

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
struct RawLayout {
    gpu: Vec<Spanned<RawGpu>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
#[serde(expecting = "a table: write [[gpu]]")]
struct RawGpu {
    nodes: Option<Spanned<String>>,
    gpus: Option<Spanned<String>>,
    instances: Option<Spanned<Vec<Spanned<String>>>>,
}

/// How GPUs are to be divided.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MigLayout {
    /// In the order of the file. No GPU is in two.
    pub gpus: Vec<Wanted>,
}

/// What is to be on some GPUs, on each of them alike: this and nothing else.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// The nodes; empty: that on which the question is asked.
    pub nodes: Vec<String>,
    /// NVML indexes.
    pub gpus: GpuSet,
    /// The instances.
    pub instances: Vec<Pinned>,
}

/// Instances of one profile. Displays as in the file: `3g.40gb@4-7`, `1g.10gb:2`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pinned {
    /// Its name.
    pub profile: String,
    /// Memory slices of the one instance; `None`: anywhere.
    pub placement: Option<MigPlacement>,
    /// How many; 1 with a placement.
    pub count: u16,
}

impl fmt::Display for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.profile)?;
        match (self.placement, self.count) {
            (Some(MigPlacement { start, size: 0 | 1 }), _) => write!(f, "@{start}"),
            (Some(MigPlacement { start, size }), _) => {
                write!(f, "@{start}-{}", start.saturating_add(size) - 1)
            }
            (None, 1) => Ok(()),
            (None, count) => write!(f, ":{count}"),
        }
    }
}

impl Pinned {
    /// An instance where it is.
    pub fn at(profile: &str, placement: MigPlacement) -> Pinned {
        Pinned {
            profile: profile.into(),
            placement: Some(placement),
            count: 1,
        }
    }

    fn is(&self, profile: &str) -> bool {
        self.profile.eq_ignore_ascii_case(bare(profile))
    }

    /// `PROFILE[@FIRST[-LAST]]` or `PROFILE[:COUNT]`.
    fn parse(text: &str) -> Option<Pinned> {
        let (name, placement, count) = match (text.split_once('@'), text.split_once(':')) {
            (Some((name, slices)), _) => {
                let (first, last) = slices.split_once('-').unwrap_or((slices, slices));
                let (start, last) = (number(first)?, number(last)?);
                let size = last.checked_sub(start)? + 1;
                let (start, size) = (u8::try_from(start).ok()?, u8::try_from(size).ok()?);
                (name, Some(MigPlacement { start, size }), 1)
            }
            (_, Some((name, count))) => (name, None, number(count).filter(|count| *count > 0)?),
            _ => (text, None, 1),
        };
        is_name(&bare(name).to_ascii_lowercase()).then(|| Pinned {
            profile: bare(name).to_string(),
            placement,
            count,
        })
    }
}

/// A number below that of a GPU's slices, or their number.
fn number(text: &str) -> Option<u16> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let number = text.parse().ok().filter(|_| digits)?;
    (number <= u16::from(MOST_SLICES)).then_some(number)
}

/// What is not as it is to be. Displays as a part of a sentence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Difference {
    /// Instances that are to be there.
    Missing(Pinned),
    /// An instance that is not to be there.
    Extra(Pinned),
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Difference::Missing(what) => write!(f, "{what} is not there"),
            Difference::Extra(what) => write!(f, "{what} is there and not wanted"),
        }
    }
}

impl Wanted {
    /// What differs on one GPU, on which these instances are: first those that are missing in the order of the
    /// file, then those that are too many in theirs.
    pub fn differences(&self, there: &[(&str, MigPlacement)]) -> Vec<Difference> {
        let mut left: Vec<(&str, MigPlacement)> = there.to_vec();
        let mut missing = Vec::new();
        // Those with a place first: a count may stand for any of the others.
        let (at, anywhere): (Vec<_>, Vec<_>) = self
            .instances
            .iter()
            .partition(|one| one.placement.is_some());
        for wanted in at {
            let own = |(profile, placement): &(&str, MigPlacement)| {
                wanted.is(profile) && Some(*placement) == wanted.placement
            };
            match left.iter().position(own) {
                Some(found) => drop(left.remove(found)),
                None => missing.push(Difference::Missing(wanted.clone())),
            }
        }
        for wanted in anywhere {
            let mut count = wanted.count;
            left.retain(|(profile, _)| {
                let own = count > 0 && wanted.is(profile);
                count -= u16::from(own);
                !own
            });
            if count > 0 {
                let more = Pinned {
                    count,
                    ..wanted.clone()
                };
                missing.push(Difference::Missing(more));
            }
        }
        let extra = left
            .into_iter()
            .map(|(profile, placement)| Pinned::at(bare(profile), placement));
        missing
            .into_iter()
            .chain(extra.map(Difference::Extra))
            .collect()
    }
}

impl MigLayout {
    /// Reads such a file.
    ///
    /// # Errors
    /// File, line, column and the accepted form.
    pub fn parse(text: &str, file: &str) -> Result<MigLayout, ConfigError> {
        let (raw, check): (RawLayout, _) = read(text, file)?;
        if raw.gpu.is_empty() {
            let message = "it says nothing of any GPU; write [[gpu]] with gpus and instances";
            return Err(check.source.place(0).error(file, message));
        }
        let mut layout = MigLayout::default();
        let mut known: HashMap<String, GpuSet> = HashMap::new();
        for table in &raw.gpu {
            let wanted = wanted(check, table)?;
            let here = [String::new()];
            let nodes = match wanted.nodes.is_empty() {
                true => &here[..],
                false => &wanted.nodes,
            };
            for node in nodes {
                let before = known.entry(node.clone()).or_insert(GpuSet::EMPTY);
                if let Some(gpu) = before.and(wanted.gpus).iter().next() {
                    let on = if node.is_empty() { "" } else { " of " };
                    let message = format!("GPU {gpu}{on}{node} is in two [[gpu]]; keep it in one");
                    return Err(check.error(table, message));
                }
                *before = GpuSet(before.0 | wanted.gpus.0);
            }
            layout.gpus.push(wanted);
        }
        Ok(layout)
    }

    /// The file that [`MigLayout::parse`] reads.
    pub fn text(&self) -> String {
        let mut text = String::from("# How GPUs are divided: `gpuos mig assert FILE` compares.\n");
        for wanted in &self.gpus {
            text.push_str("\n[[gpu]]\n");
            if !wanted.nodes.is_empty() {
                text += &format!("nodes = \"{}\"\n", wanted.nodes.join(","));
            }
            let instances: Vec<String> = wanted
                .instances
                .iter()
                .map(|one| format!("\"{one}\""))
                .collect();
            text += &format!(
                "gpus = \"{}\"\ninstances = [{}]\n",
                wanted.gpus,
                instances.join(", ")
            );
        }
        text
    }
}

fn wanted(check: Check, table: &Spanned<RawGpu>) -> Result<Wanted, ConfigError> {
    let header = "[[gpu]]";
    let raw = table.get_ref();
    let mut nodes = match &raw.nodes {
        Some(list) => hosts(check, list, list.get_ref())?,
        None => Vec::new(),
    };
    nodes.sort_unstable();
    nodes.dedup();
    let gpus = check.need(table, header, "gpus", &raw.gpus)?;
    let set = parse_gpus(gpus.get_ref()).filter(|set| !set.is_empty());
    let set = set.ok_or_else(|| {
        let form = format!("NVML indexes from 0 to {}, such as \"4-7\"", MAX_GPUS - 1);
        check.refuse("gpus", gpus, quoted(gpus.get_ref()), form)
    })?;
    let list = check.need(table, header, "instances", &raw.instances)?;
    if list.get_ref().len() > MOST {
        let message = format!("instances: more than {MOST}, and no GPU has so many");
        return Err(check.error(list, message));
    }
    let mut instances: Vec<Pinned> = Vec::new();
    for entry in list.get_ref() {
        let one = Pinned::parse(entry.get_ref()).ok_or_else(|| {
            let form = "a profile with its memory slices (\"3g.40gb@4-7\", \"1g.10gb@0\") or with how many there \
                 are (\"1g.10gb:2\")";
            check.refuse("instances", entry, quoted(entry.get_ref()), form)
        })?;
        let overlaps = |other: &&Pinned| {
            let both = other.placement.zip(one.placement);
            both.is_some_and(|(other, own)| other.overlaps(own))
        };
        if let Some(other) = instances.iter().find(overlaps) {
            let message = format!("instances: {one} and {other} have a memory slice in common");
            return Err(check.error(entry, message));
        }
        let twice = one.placement.is_none()
            && instances
                .iter()
                .any(|other| other.placement.is_none() && other.is(&one.profile));
        if twice {
            let message = format!(
                "instances: {} is counted twice; add the numbers",
                one.profile
            );
            return Err(check.error(entry, message));
        }
        instances.push(one);
    }
    Ok(Wanted {
        nodes,
        gpus: set,
        instances,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(instances: &str) -> MigLayout {
        MigLayout::parse(
            &format!("[[gpu]]\ngpus = \"4\"\ninstances = {instances}\n"),
            "f",
        )
        .unwrap()
    }

    fn differs(instances: &str, there: &[(&str, u8, u8)]) -> Vec<String> {
        let there: Vec<(&str, MigPlacement)> = there
            .iter()
            .map(|&(profile, start, size)| (profile, MigPlacement { start, size }))
            .collect();
        let found = layout(instances).gpus[0].differences(&there);
        found.iter().map(Difference::to_string).collect()
    }

    #[test]
    fn what_differs_is_named() {
        let there = [("1g.10gb", 0, 1), ("1g.10gb", 2, 1), ("3g.40gb", 4, 4)];
        let same: [&str; 5] = [
            "[\"1g.10gb@0\", \"1g.10gb@2\", \"3g.40gb@4-7\"]",
            "[\"3g.40gb\", \"1g.10gb:2\"]",
            "[\"1G.10GB:1\", \"1g.10gb@0\", \"MIG 3g.40gb\"]",
            "[\"1g.10gb\", \"1g.10gb@2\", \"3g.40gb:1\"]",
            "[\"3g.40gb@4-7\", \"1g.10gb:2\"]",
        ];
        for same in same {
            assert_eq!(differs(same, &there), [""; 0], "{same}");
        }
        assert_eq!(differs("[]", &[]), [""; 0]);
        assert_eq!(
            differs("[\"3g.40gb@0-3\", \"1g.10gb:4\"]", &there),
            [
                "3g.40gb@0-3 is not there",
                "1g.10gb:2 is not there",
                "3g.40gb@4-7 is there and not wanted"
            ]
        );
        assert_eq!(
            differs("[\"1g.10gb\", \"3g.40gb\"]", &there),
            ["1g.10gb@2 is there and not wanted"]
        );
    }

    #[test]
    fn what_is_written_is_read_again() {
        let text = "[[gpu]]\nnodes = \"n[1-2]\"\ngpus = \"4-5,7\"\ninstances = [\"1g.10gb+me@0\", \"2g.20gb:3\"]\n\
                    [[gpu]]\ngpus = \"0\"\ninstances = []\n";
        let layout = MigLayout::parse(text, "f").unwrap();
        assert_eq!(layout.gpus[0].nodes, ["n1", "n2"]);
        assert_eq!(MigLayout::parse(&layout.text(), "f"), Ok(layout));
    }

    #[test]
    fn mistakes_are_named_with_their_place() {
        let gpu = |instances: &str| format!("[[gpu]]\ngpus = \"4\"\ninstances = [{instances}]\n");
        let cases = [
            (String::new(), "f:1:1", "nothing of any GPU"),
            ("[[gpu]]\ngpu = 4".into(), "f:2:1", "there is no key `gpu`"),
            (
                "[[gpu]]\ninstances = []".into(),
                "f:1:1",
                "[[gpu]] has no gpus",
            ),
            (
                "[[gpu]]\ngpus = \"4\"".into(),
                "f:1:1",
                "[[gpu]] has no instances",
            ),
            (
                "[[gpu]]\ngpus = \"64\"\ninstances = []".into(),
                "f:2:8",
                "NVML indexes",
            ),
            (
                "[[gpu]]\nnodes = \"n[\"\ngpus = \"1\"\ninstances = []".into(),
                "f:2:9",
                "n[",
            ),
            (gpu("\"3g.40gb@7-4\""), "f:3:14", "\"3g.40gb@4-7\""),
            (gpu("\"3g.40gb\", \"3g.40gb:0\""), "f:3:25", "\"1g.10gb:2\""),
            (gpu("\"10G\""), "f:3:14", "a profile"),
            (gpu("\"1g.10gb@255\""), "f:3:14", "a profile"),
            (
                gpu("\"3g.40gb@0-3\", \"1g.10gb@3\""),
                "f:3:29",
                "a memory slice in common",
            ),
            (gpu("\"1g.10gb\", \"1G.10gb:2\""), "f:3:25", "counted twice"),
            (
                format!("{}{}", gpu(""), gpu("")),
                "f:4:1",
                "GPU 4 is in two [[gpu]]",
            ),
            (gpu("1"), "f:3:14", "a text in quotes"),
        ];
        for (text, place, wanted) in cases {
            let error = MigLayout::parse(&text, "f").unwrap_err().to_string();
            assert!(
                error.starts_with(place) && error.contains(wanted),
                "{text}: {error}"
            );
        }
    }
}
