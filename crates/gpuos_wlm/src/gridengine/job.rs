//! A job by what `qstat -xml -j` prints. It is qmaster's own record: a user's environment, which a prolog runs in, is not asked.

use crate::ask::Ask;
use crate::gridengine::GPU;
use crate::gridengine::xml::{Leaf, leaves};

/// The most of an answer that is read, in bytes. A job's environment and arguments are in it.
pub const MOST_BYTES: usize = 16 << 20;

/// `CE_consumable` of a complex that is counted once for each job.
const FOR_EACH_JOB: &str = "2";

/// A job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Job {
    /// Number of its user.
    pub uid: u32,
    /// What it asks for.
    pub ask: Ask,
}

impl Job {
    /// Reads the record of the job with this number.
    ///
    /// # Errors
    /// It is no record of that job, or its GPUs are not counted as they have to be.
    pub fn read(text: &str, number: &str) -> Result<Job, String> {
        let all = all_of(text)?;
        let record = Record(&all);
        if record.one("JB_job_number")? != number {
            return Err(format!("qstat prints another job than {number}"));
        }
        let uid = record.number("JB_uid")?;
        let context = record.context();
        let options = context.iter().map(|(name, value)| (*name, *value));
        let ask = Ask::read(record.gpus()?, options, "-l {}")?;
        Ok(Job { uid, ask })
    }
}

/// What qstat printed, as leaves.
pub(super) fn all_of(text: &str) -> Result<Vec<Leaf>, String> {
    if text.len() > MOST_BYTES {
        return Err(format!(
            "qstat prints more than {MOST_BYTES} bytes of the job"
        ));
    }
    leaves(text).map_err(|why| format!("qstat prints no XML of a job: {why}"))
}

/// A job's record.
pub(super) struct Record<'a>(pub(super) &'a [Leaf]);

impl<'a> Record<'a> {
    /// Leaves of the job in a list of that name, or right in the job with an empty name, by their own names.
    pub(super) fn within(&self, list: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        const JOB: [&str; 3] = ["detailed_job_info", "djob_info", "element"];
        let is = move |leaf: &&'a Leaf| {
            let path = &leaf.path;
            let depth = if list.is_empty() { 4 } else { 6 };
            path.len() == depth
                && JOB.iter().zip(path).all(|(one, other)| one == other)
                && (list.is_empty() || path[3] == list)
        };
        let leaves = self.0.iter().filter(is);
        leaves.filter_map(|leaf| Some((&leaf.path.last()?[..], &leaf.text[..])))
    }

    pub(super) fn one(&self, name: &str) -> Result<&'a str, String> {
        let mut values = self.within("").filter(|(own, _)| *own == name);
        match (values.next(), values.next()) {
            (Some((_, value)), None) => Ok(value),
            _ => Err(format!("qstat prints no single {name} of the job")),
        }
    }

    pub(super) fn number(&self, name: &str) -> Result<u32, String> {
        let number = self.one(name)?.parse();
        number.map_err(|_| format!("qstat prints no number as {name} of the job"))
    }

    /// What the job's context says: its user's words.
    pub(super) fn context(&self) -> Vec<(&'a str, &'a str)> {
        self.pairs("JB_context", "VA_variable", "VA_value")
    }

    /// Names and values of a list. One without a value has an empty one.
    fn pairs(&self, list: &'a str, name: &str, value: &str) -> Vec<(&'a str, &'a str)> {
        let mut pairs = Vec::new();
        for (own, text) in self.within(list) {
            if own == name {
                pairs.push((text, ""));
            } else if own == value
                && let Some(last) = pairs.last_mut()
            {
                last.1 = text;
            }
        }
        pairs
    }

    /// How many GPUs the job was given.
    fn gpus(&self) -> Result<u32, String> {
        const LIST: &str = "JB_hard_resource_list";
        let count = self.pairs(LIST, "CE_name", "CE_doubleval");
        let kinds = self.pairs(LIST, "CE_name", "CE_consumable");
        let mut asked = count.iter().filter(|(name, _)| *name == GPU);
        let Some((_, count)) = asked.next() else {
            return Ok(0);
        };
        if asked.next().is_some() {
            return Err(format!("the job asks for {GPU} twice"));
        }
        let kind = kinds.iter().find(|(name, _)| *name == GPU);
        if kind.is_none_or(|(_, kind)| *kind != FOR_EACH_JOB) {
            return Err(format!(
                "complex {GPU} is not counted once for each job: an administrator gives it JOB as consumable (qconf -mc)"
            ));
        }
        let whole = count.split_once('.').unwrap_or((count, ""));
        let parsed = whole.0.parse().ok();
        parsed
            .filter(|_| whole.1.bytes().all(|digit| digit == b'0'))
            .ok_or_else(|| format!("qstat prints no number of {GPU} of the job"))
    }
}
