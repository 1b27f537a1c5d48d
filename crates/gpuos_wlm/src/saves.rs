//! Checkpoints that a program makes when it is asked to, in a folder of the job that its user owns.
//!
//! `request` holds the number of the checkpoint that is wanted. The program writes its files into the folder of that number and
//! then makes the file `ready` in it. `committed` holds the number of the last one that was complete.

/// Where a job may go on from, and what comes next, by the names in its folder and the text of `committed`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Saves {
    /// The last checkpoint that was complete.
    pub committed: Option<u32>,
    /// The number that the next one has: no folder of it is there.
    pub next: u32,
}

/// The number that a file says; `None`: none.
pub fn number(text: &str) -> Option<u32> {
    let text = text.strip_suffix('\n').unwrap_or(text);
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let plain = digits && !text.starts_with('0');
    text.parse().ok().filter(|_| plain)
}

impl Saves {
    /// Reads what is there.
    pub fn read<'a>(names: impl Iterator<Item = &'a str>, committed: &str) -> Saves {
        let numbers: Vec<u32> = names.filter_map(number).collect();
        let committed = number(committed).filter(|one| numbers.contains(one));
        let last = numbers.iter().max().copied().unwrap_or(0);
        Saves {
            committed,
            next: last.saturating_add(1),
        }
    }

    /// Folders that nobody needs once `done` is complete.
    pub fn old<'a>(names: impl Iterator<Item = &'a str>, done: u32) -> Vec<u32> {
        let numbers = names.filter_map(number);
        numbers.filter(|number| *number < done).collect()
    }
}
