//! The process that asks the kernel from inside a step's groups of version 2: `gpuosd --ask-devices`.
//!
//! A thread cannot: version 2 moves whole processes. It is a program of its own rather than a fork of the daemon: a
//! child of a process with threads may only make system calls until it ends, and in the step it would count with all
//! of the daemon's memory. While it is in the group it is one of the step's processes: what ends the step ends it.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use rustix::process::{Signal, set_parent_process_death_signal};

use super::make;

/// The first word after the program's name. After it come a path for device files, minor numbers with commas between
/// them, and groups.
pub const FLAG: &str = "--ask-devices";

/// What the process found, as the one line that it says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    /// Minor numbers that one of the groups at least lets be used.
    Allowed(BTreeSet<u32>),
    /// The groups are gone.
    Gone,
    /// A group is frozen, and would hold whoever enters it.
    Frozen,
    /// Device files cannot be made outside of the step either.
    Refused,
    /// What else went wrong.
    Failed(String),
}

impl Answer {
    fn line(&self) -> String {
        match self {
            Answer::Allowed(minors) => {
                let minors: Vec<String> = minors.iter().map(u32::to_string).collect();
                format!("allowed {}", minors.join(","))
            }
            Answer::Gone => "gone".into(),
            Answer::Frozen => "frozen".into(),
            Answer::Refused => "refused".into(),
            Answer::Failed(why) => format!("failed {}", why.replace('\n', " ")),
        }
    }

    /// `None` where the line is not whole: the process was ended.
    pub(super) fn parse(text: &str) -> Option<Answer> {
        let line = text.strip_suffix('\n')?;
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        Some(match word {
            "allowed" => Answer::Allowed(minors(rest)?),
            "gone" => Answer::Gone,
            "frozen" => Answer::Frozen,
            "refused" => Answer::Refused,
            "failed" => Answer::Failed(rest.into()),
            _ => return None,
        })
    }
}

fn minors(list: &str) -> Option<BTreeSet<u32>> {
    let words = list.split(',').filter(|word| !word.is_empty());
    words.map(|word| word.parse().ok()).collect()
}

/// What the process says when it is started with `words` after [`FLAG`]: a line. It enters the groups, one after the
/// other, and leaves the last one by ending, which its caller sees to at once.
pub fn answer(words: &[OsString]) -> String {
    // It does not outlive who asked.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let parsed = || {
        let [file, list, groups @ ..] = words else {
            return None;
        };
        Some((Path::new(file), minors(list.to_str()?)?, groups))
    };
    let answer = match parsed() {
        Some((file, minors, groups)) => ask(file, &minors, groups)
            .unwrap_or_else(|e| Answer::Failed(format!("{}: {e}", file.display()))),
        None => Answer::Failed(format!("{FLAG} FILE MINOR[,MINOR...] GROUP...")),
    };
    format!("{}\n", answer.line())
}

fn ask(file: &Path, minors: &BTreeSet<u32>, groups: &[OsString]) -> io::Result<Answer> {
    if let Some(minor) = minors.first()
        && !make(file, *minor)?
    {
        return Ok(Answer::Refused);
    }
    let mut allowed = None;
    for group in groups.iter().map(Path::new) {
        if frozen(group) {
            return Ok(Answer::Frozen);
        }
        match fs::write(group.join("cgroup.procs"), "0") {
            Ok(()) => {}
            Err(e) if gone(&e) => continue,
            Err(e) => return Ok(Answer::Failed(format!("{}: {e}", group.display()))),
        }
        let allowed = allowed.get_or_insert_with(BTreeSet::new);
        for minor in minors {
            if !allowed.contains(minor) && make(file, *minor)? {
                allowed.insert(*minor);
            }
        }
        if allowed.len() == minors.len() {
            break;
        }
    }
    Ok(allowed.map_or(Answer::Gone, Answer::Allowed))
}

/// Whether the group is being removed, or was.
fn gone(error: &io::Error) -> bool {
    let removed = rustix::io::Errno::NODEV.raw_os_error();
    error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(removed)
}

/// Whether a group, or one above it, is frozen or about to be.
pub(super) fn frozen(group: &Path) -> bool {
    let says = |folder: &Path| fs::read(folder.join("cgroup.freeze")).ok();
    // The root has no such file.
    let path = group.ancestors().map(says).take_while(Option::is_some);
    path.flatten().any(|text| text.starts_with(b"1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_cut_short_is_no_answer() {
        for answer in [
            Answer::Allowed([0, 7].into()),
            Answer::Allowed(BTreeSet::new()),
            Answer::Gone,
            Answer::Frozen,
            Answer::Refused,
            Answer::Failed("/sys/x: no".into()),
        ] {
            let line = answer.line() + "\n";
            assert_eq!(Answer::parse(&line), Some(answer));
            assert_eq!(Answer::parse(&line[..line.len() - 1]), None);
        }
        assert_eq!(Answer::parse("allowed 1,x\n"), None);
    }

    #[test]
    fn wrong_words_are_answered_with_the_right_ones() {
        let said = answer(&["/tmp/x".into(), "1,y".into()]);
        assert!(said.starts_with("failed --ask-devices FILE"), "{said}");
    }

    #[test]
    fn a_group_below_a_frozen_one_is_frozen() {
        let root = tempfile::tempdir().unwrap();
        let leaf = root.path().join("job_1/step_0/user/task_0");
        fs::create_dir_all(&leaf).unwrap();
        for folder in leaf.ancestors().take(4) {
            fs::write(folder.join("cgroup.freeze"), "0\n").unwrap();
        }
        assert!(!frozen(&leaf));
        fs::write(root.path().join("job_1/step_0/cgroup.freeze"), "1\n").unwrap();
        assert!(frozen(&leaf));
    }
}
