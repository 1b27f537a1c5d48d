//! Who has which GPUs of a host: an entry for each job, in a file of root's whose name is the job's number.

use std::collections::BTreeSet;

/// The most digits of a number of a job or a task.
const MOST_DIGITS: usize = 10;

/// What a job holds, and how long: until the process that keeps the job is gone and no process of its group is left.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Entry {
    /// Numbers of its GPUs.
    pub gpus: BTreeSet<u8>,
    /// The process that watches over the job, by pid and moment of its start in the kernel's ticks. 0: the job has ended.
    pub keeper: (u32, u64),
    /// The group that all processes of the job have, and nobody else has meanwhile. 0: there is none.
    pub group: u32,
}

impl Entry {
    /// The text of the file.
    pub fn text(&self) -> String {
        let gpus: Vec<String> = self.gpus.iter().map(u8::to_string).collect();
        let (pid, start) = self.keeper;
        format!(
            "gpus {}\nkeeper {pid} {start}\ngroup {}\n",
            gpus.join(","),
            self.group
        )
    }

    /// Reads [`Entry::text`]; `None` of what is none, such as a file whose writing was cut off.
    pub fn parse(text: &str) -> Option<Entry> {
        let mut lines = text.strip_suffix('\n')?.split('\n');
        let list = lines.next()?.strip_prefix("gpus ")?;
        let keeper = lines.next()?.strip_prefix("keeper ")?.split_once(' ')?;
        let group = lines.next()?.strip_prefix("group ")?;
        let gpus: Option<BTreeSet<u8>> = list.split(',').map(|gpu| gpu.parse().ok()).collect();
        lines.next().is_none().then_some(())?;
        Some(Entry {
            gpus: gpus?,
            keeper: (keeper.0.parse().ok()?, keeper.1.parse().ok()?),
            group: group.parse().ok()?,
        })
    }
}

/// The name of the file of a job: its number, and that of its task, 1 where it has none. `None`: these are no numbers.
pub fn file(job: &str, task: &str) -> Option<String> {
    let task = match task {
        "0" | "undefined" => "1",
        task => task,
    };
    let number = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        digits && text.len() <= MOST_DIGITS && !text.starts_with('0')
    };
    (number(job) && number(task)).then(|| format!("{job}.{task}"))
}
