//! The line `resources:` of pbs_sched's configuration: resources that are not in it are not looked at when a job is placed.

use serde::{Deserialize, Serialize};

use crate::hook::resources::{
    LEAF, LINKED, MIG_BOARD, MIG_COMPUTE, MIG_FITS, MIG_MEMORY, NGPUS, NVLINK, SHARE_FITS,
    SHARE_PARTS,
};

/// Resources without which pbs_sched gives GPUs twice, or starts jobs that the host has to send back.
pub const COUNTED: [&str; 4] = [NGPUS, MIG_COMPUTE, MIG_MEMORY, SHARE_PARTS];

/// The resources that pbs_sched has to look at, where hosts have divided GPUs and where they have shared ones.
pub fn needed(divided: bool, shared: bool) -> Vec<&'static str> {
    let mut names = vec![NGPUS, NVLINK, LEAF, LINKED];
    if divided {
        names.extend([MIG_COMPUTE, MIG_MEMORY, MIG_FITS, MIG_BOARD]);
    }
    if shared {
        names.extend([SHARE_PARTS, SHARE_FITS]);
    }
    names
}

/// What was changed, so that it can be taken back.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Change {
    /// The file.
    pub file: String,
    /// The line as it was; empty: there was none.
    pub before: String,
    /// The line as it is.
    pub after: String,
}

/// The text with these resources in its line, and what was changed; `None`: they are there.
pub fn with(text: &str, names: &[&str]) -> Option<(String, Change)> {
    let Some(line) = line(text) else {
        let after = format!("resources: \"{}\"", names.join(", "));
        let separator = if text.is_empty() || text.ends_with('\n') {
            ""
        } else {
            "\n"
        };
        let change = Change {
            after: after.clone(),
            ..Change::default()
        };
        return Some((format!("{text}{separator}{after}\n"), change));
    };
    let has = listed(line);
    let missing: Vec<&str> = names
        .iter()
        .filter(|name| !has.contains(name))
        .copied()
        .collect();
    if missing.is_empty() {
        return None;
    }
    let missing = missing.join(", ");
    let after = match end_of_list(line) {
        Some(end) if has.is_empty() => format!("{}{missing}{}", &line[..end], &line[end..]),
        Some(end) => format!("{}, {missing}{}", &line[..end], &line[end..]),
        // Without quotes it is one name at most.
        None => format!("resources: \"{}\"", [has.join(", "), missing].join(", ")),
    };
    let change = Change {
        before: line.to_owned(),
        after: after.clone(),
        ..Change::default()
    };
    Some((replaced(text, line, &after), change))
}

/// The text as it was before a change; `None`: the line is another by now.
pub fn without(text: &str, change: &Change) -> Option<String> {
    let line = line(text).filter(|line| *line == change.after)?;
    Some(match change.before.is_empty() {
        true => replaced(text, &format!("{line}\n"), ""),
        false => replaced(text, line, &change.before),
    })
}

/// The resources that pbs_sched looks at.
pub fn resources(text: &str) -> Vec<&str> {
    line(text).map(listed).unwrap_or_default()
}

/// The last line of it, which is the one that counts.
pub fn line(text: &str) -> Option<&str> {
    let own = |line: &&str| line.trim_start().starts_with("resources:");
    text.lines().rfind(own)
}

/// The names in a line: those between quotes, or the first word. What follows says when the line holds.
fn listed(line: &str) -> Vec<&str> {
    let value = line.split_once(':').map_or("", |(_, value)| value.trim());
    let list = match value.strip_prefix('"') {
        Some(rest) => rest.split('"').next(),
        None => value.split_whitespace().next(),
    };
    let names = list.unwrap_or_default().split([',', ' ', '\t']);
    names.filter(|name| !name.is_empty()).collect()
}

/// Where the list in a line ends that is in quotes; `None`: it is not.
fn end_of_list(line: &str) -> Option<usize> {
    let (before, list) = line.split_once('"')?;
    Some(before.len() + 1 + list.find('"')?)
}

/// The text with another line in the place of the last such one.
fn replaced(text: &str, line: &str, by: &str) -> String {
    let at = text.rfind(line).unwrap_or(text.len());
    let end = (at + line.len()).min(text.len());
    format!("{}{by}{}", &text[..at], &text[end..])
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# resources: \"x\"\nstrict_ordering: false\tALL\nresources: \"ncpus, mem, arch\"\n\nload_balancing: false\n";

    #[test]
    fn what_is_missing_is_added_and_taken_back_byte_for_byte() {
        for text in [
            TEXT,
            "resources: \"\"\n",
            "resources: ncpus\n",
            "  resources:\t\"ncpus,ngpus\"",
            "by_queue: true",
            "",
        ] {
            let (changed, change) = with(text, &["ngpus", "gpuos_leaf"]).expect("a change");
            let has = resources(&changed);
            assert!(
                has.contains(&"ngpus") && has.contains(&"gpuos_leaf"),
                "{changed}"
            );
            assert_eq!(with(&changed, &["ngpus", "gpuos_leaf"]), None);
            let back = without(&changed, &change).expect("it is ours");
            assert_eq!(back.trim_end_matches('\n'), text.trim_end_matches('\n'));
            if text.ends_with('\n') {
                assert_eq!(back, text);
            }
        }
    }

    #[test]
    fn a_line_that_the_site_has_changed_since_stays() {
        let (changed, change) = with(TEXT, &["ngpus"]).expect("a change");
        let other = changed.replace("arch", "arch, vntype");
        assert_eq!(without(&other, &change), None);
        assert_eq!(resources(TEXT), ["ncpus", "mem", "arch"]);
    }

    #[test]
    fn the_line_is_read_as_pbs_sched_does() {
        let text = "# resources: \"old\"\nresources: \"ncpus\"\nresources: \"ngpus, gpuos_nvlink,mem\"\tALL\n";
        assert_eq!(resources(text), ["ngpus", "gpuos_nvlink", "mem"]);
        assert!(resources("by_queue: True\n").is_empty());
        let (changed, _) = with(text, &["mem", "gpuos_leaf"]).expect("a change");
        let line = "resources: \"ngpus, gpuos_nvlink,mem, gpuos_leaf\"\tALL";
        assert_eq!(changed.lines().next_back(), Some(line));
    }
}
