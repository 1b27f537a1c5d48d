//! The same rules for the controller `devices` of version 1: a group allows everything but what is on its list, where each device stands by
//! itself or all of a major number together, and nothing between.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use super::program::{Kept, MINORS};

/// What a group shows that allows all that is not on its list. One that is made where not all is allowed shows what is.
const ALL: &str = "a *:* rwm";

/// A line for the kernel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Rule {
    /// For `devices.deny`: one more device on the list.
    Deny(String),
    /// For `devices.allow`: one less.
    Allow(String),
}

/// The lines in their order, whatever was on the list: nothing that is refused before and after them is allowed between. `numbers` are the minor
/// numbers that there are of what has no bound.
pub(super) fn rules(kept: &[Kept], numbers: &BTreeSet<u32>) -> Vec<Rule> {
    let mut rules = Vec::new();
    for one in kept {
        let line = |minor: &dyn std::fmt::Display| format!("c {}:{minor} rwm", one.major);
        let bounded: BTreeSet<u32> = match one.shared_from {
            MINORS => numbers.clone(),
            end => (0..end).collect(),
        };
        let all = one.shared_from == MINORS;
        if all && one.own.is_empty() {
            rules.push(Rule::Deny(line(&"*")));
            continue;
        }
        let others = bounded.difference(&one.own);
        rules.extend(others.map(|minor| Rule::Deny(line(minor))));
        if all {
            rules.push(Rule::Allow(line(&"*")));
        }
        rules.extend(one.own.iter().map(|minor| Rule::Allow(line(minor))));
    }
    rules
}

/// Sets the list of a group, that no process has to be in.
pub(super) fn set(group: &Path, rules: &[Rule]) -> io::Result<()> {
    let list = fs::read_to_string(group.join("devices.list"))?;
    if list.trim() != ALL {
        let why = "not all device files are allowed there, as in a container, and then single ones cannot be refused";
        return Err(io::Error::other(why));
    }
    let open = |name: &str| File::options().write(true).open(group.join(name));
    let (mut deny, mut allow) = (open("devices.deny")?, open("devices.allow")?);
    for rule in rules {
        // One line in one call.
        match rule {
            Rule::Deny(line) => deny.write_all(line.as_bytes())?,
            Rule::Allow(line) => allow.write_all(line.as_bytes())?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The list of a group, as the kernel keeps it: a rule that allows takes the same words off, and nothing else.
    #[derive(Default)]
    struct Group(BTreeSet<String>);

    impl Group {
        fn set(&mut self, rules: &[Rule]) {
            for rule in rules {
                match rule {
                    Rule::Deny(line) => drop(self.0.insert(line.clone())),
                    Rule::Allow(line) => drop(self.0.remove(line)),
                }
            }
        }

        fn opens(&self, major: u32, minor: u32) -> bool {
            let on = |minor: &str| self.0.contains(&format!("c {major}:{minor} rwm"));
            !on("*") && !on(&minor.to_string())
        }
    }

    fn kept(gpus: &[u32], instances: &[u32]) -> [Kept; 2] {
        let kept = |major, shared_from, own: &[u32]| Kept {
            major,
            shared_from,
            own: own.iter().copied().collect(),
        };
        [kept(195, 254, gpus), kept(236, MINORS, instances)]
    }

    /// What version 2 decides of every minor number version 1 decides so as well, whatever the group's job had before.
    #[test]
    fn both_versions_refuse_the_same() {
        // The driver's list.
        let numbers: BTreeSet<u32> = (0..300).collect();
        let mut group = Group::default();
        let whole: Vec<u32> = (0..254).collect();
        for (gpus, instances) in [
            (&[][..], &[][..]),
            (&[1], &[21, 22]),
            (&[1], &[30, 31]),
            (&[0, 3], &[]),
            (&[3], &[299]),
            (&whole, &[1, 2]),
            (&[253], &[]),
        ] {
            group.set(&rules(&kept(gpus, instances), &numbers));
            for minor in 0..300 {
                let gpu = minor >= 254 || gpus.contains(&minor);
                assert_eq!(group.opens(195, minor), gpu, "195:{minor} of {gpus:?}");
                let own = instances.contains(&minor);
                assert_eq!(group.opens(236, minor), own, "236:{minor} of {instances:?}");
                assert!(group.opens(1, minor) && group.opens(510, minor));
            }
        }
    }

    #[test]
    fn nothing_of_others_is_open_between_two_lines() {
        let numbers: BTreeSet<u32> = (0..300).collect();
        let mut group = Group::default();
        group.set(&rules(&kept(&[1], &[]), &numbers));
        for rule in rules(&kept(&[2], &[7]), &numbers) {
            group.set(&[rule]);
            for minor in (0..254).filter(|minor| ![1, 2].contains(minor)) {
                assert!(!group.opens(195, minor));
            }
            assert!(!group.opens(236, 8));
        }
    }
}
