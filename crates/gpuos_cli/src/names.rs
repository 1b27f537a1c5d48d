//! Names of jobs as users write them and as squeue shows them: `17`, `4_1`, `4_[2-5%1]`, `19+1`.

use gpuos_host::slurm::Job;

/// What a user names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Name {
    /// A job, all of an array, or all of a heterogeneous job.
    Job(u32),
    /// Tasks of an array.
    Tasks(u32, Tasks),
    /// A component of a heterogeneous job.
    Component(u32, u32),
}

/// Numbers of tasks: first, last and step of each range.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tasks {
    ranges: Vec<(u32, u32, u32)>,
    /// Slurm cuts long lists short.
    more: bool,
}

/// A number as Slurm writes it.
fn number(text: &str) -> Option<u32> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

impl Name {
    /// Reads a name; `None`: it is none.
    pub fn parse(text: &str) -> Option<Name> {
        if let Some((job, offset)) = text.split_once('+') {
            return Some(Name::Component(number(job)?, number(offset)?));
        }
        let Some((array, tasks)) = text.split_once('_') else {
            return number(text).map(Name::Job);
        };
        let list = match tasks.strip_prefix('[') {
            Some(list) => list.strip_suffix(']')?,
            None => {
                number(tasks)?;
                tasks
            }
        };
        Some(Name::Tasks(number(array)?, Tasks::parse(list)?))
    }

    /// Whether a job is the one that is named, or a part of it.
    pub fn means(&self, job: &Job) -> bool {
        match self {
            Name::Job(id) => {
                let whole = job.label.split(['_', '+']).next().and_then(number);
                job.id == *id || whole == Some(*id)
            }
            Name::Component(het, offset) => job.label == format!("{het}+{offset}"),
            Name::Tasks(array, tasks) => match job.label.split_once('_') {
                Some((own, task)) => {
                    number(own) == Some(*array) && number(task).is_some_and(|task| tasks.has(task))
                }
                None => {
                    let together = together(job).is_some_and(|own| own.meets(tasks));
                    number(&job.label) == Some(*array) && together
                }
            },
        }
    }

    /// How to speak of a job that was asked for by this name: by the task alone where that waits among others.
    pub fn of(&self, job: &Job) -> String {
        match (self, together(job)) {
            (Name::Tasks(array, tasks), Some(_)) if tasks.only().is_some() => {
                format!("{array}_{}", tasks.only().unwrap_or_default())
            }
            (_, Some(_)) => format!("{}_[{}]", job.label, job.array_tasks),
            _ => job.label.clone(),
        }
    }

    /// The number of the array, or of the whole job.
    pub fn whole(&self) -> u32 {
        match self {
            Name::Job(id) | Name::Tasks(id, _) | Name::Component(id, _) => *id,
        }
    }
}

/// The tasks of an array that wait together in one record.
pub fn together(job: &Job) -> Option<Tasks> {
    let several = job.array_tasks.contains(|c: char| !c.is_ascii_digit());
    several.then(|| Tasks::parse(&job.array_tasks)).flatten()
}

impl Tasks {
    /// Reads `1-3,7`, `0-8:4` and `2-4%1`, also where Slurm has cut it short.
    pub fn parse(text: &str) -> Option<Tasks> {
        let list = match text.split_once('%') {
            Some((list, most)) => {
                number(most)?;
                list
            }
            None => text,
        };
        let cut = list.trim_end_matches("...");
        let more = cut.len() < list.len();
        let mut ranges = Vec::new();
        for part in cut.split(',').filter(|part| !part.is_empty() || !more) {
            let (range, step) = match part.split_once(':') {
                Some((range, step)) => (range, number(step)?.max(1)),
                None => (part, 1),
            };
            let (low, high) = match range.split_once('-') {
                // The last number is cut off, too.
                Some((low, "")) if more => (number(low)?, number(low)?),
                Some((low, high)) => (number(low)?, number(high)?),
                None => (number(range)?, number(range)?),
            };
            if low > high {
                return None;
            }
            ranges.push((low, high, step));
        }
        (more || !ranges.is_empty()).then_some(Tasks { ranges, more })
    }

    /// Whether a task is among them; of a list that was cut short, also one past its end.
    pub fn has(&self, task: u32) -> bool {
        let among = |&(low, high, step): &(u32, u32, u32)| {
            (low..=high).contains(&task) && (task - low).is_multiple_of(step)
        };
        let past = self.more && self.ranges.iter().all(|range| range.1 < task);
        past || self.ranges.iter().any(among)
    }

    /// Whether some task is in both.
    fn meets(&self, other: &Tasks) -> bool {
        const MOST: usize = 1 << 16;
        let all = |tasks: &Tasks| tasks.ranges.clone().into_iter();
        let mut own = all(self).flat_map(|(low, high, step)| (low..=high).step_by(step as usize));
        self.more && other.more || own.by_ref().take(MOST).any(|task| other.has(task)) || {
            let mut theirs =
                all(other).flat_map(|(low, high, step)| (low..=high).step_by(step as usize));
            theirs.by_ref().take(MOST).any(|task| self.has(task))
        }
    }

    /// The task, if it is one.
    fn only(&self) -> Option<u32> {
        match (&self.ranges[..], self.more) {
            ([(low, high, _)], false) if low == high => Some(*low),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(id: u32, label: &str, array_tasks: &str) -> Job {
        Job {
            id,
            label: label.into(),
            array_tasks: array_tasks.into(),
            ..Job::default()
        }
    }

    #[test]
    fn every_name_that_squeue_shows_finds_its_job() {
        let waits = job(6, "6", "2-4,9,20-30:5%1");
        for (name, means) in [
            ("6", true),
            ("6_2", true),
            ("6_9", true),
            ("6_25", true),
            ("6_26", false),
            ("6_1", false),
            ("6_[2-4,9,20-30:5%1]", true),
            ("6_[4-8]", true),
            ("6_[5-8]", false),
            ("6+1", false),
            ("7_2", false),
            ("60", false),
        ] {
            assert_eq!(Name::parse(name).unwrap().means(&waits), means, "{name}");
        }
        let runs = job(20, "6_1", "1");
        for (name, means) in [
            ("6", true),
            ("20", true),
            ("6_1", true),
            ("6_[0-3]", true),
            ("6_2", false),
        ] {
            assert_eq!(Name::parse(name).unwrap().means(&runs), means, "{name}");
        }
        let part = job(9, "8+1", "");
        for (name, means) in [
            ("8", true),
            ("9", true),
            ("8+1", true),
            ("8+0", false),
            ("8_1", false),
        ] {
            assert_eq!(Name::parse(name).unwrap().means(&part), means, "{name}");
        }
        for bad in [
            "",
            "6_",
            "6_[",
            "6_[]",
            "6_[4-2]",
            "_2",
            "6+",
            "6_2+1",
            "6_[2",
            "a",
            "6_[2-x]",
            "99999999999",
        ] {
            assert_eq!(Name::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_task_is_spoken_of_alone_and_tasks_as_squeue_does() {
        let waits = job(6, "6", "2-4%1");
        let of = |name: &str| Name::parse(name).unwrap().of(&waits);
        assert_eq!(
            (of("6"), of("6_3"), of("6_[2-3]")),
            ("6_[2-4%1]".into(), "6_3".into(), "6_[2-4%1]".into())
        );
        assert_eq!(Name::parse("20").unwrap().of(&job(20, "6_1", "1")), "6_1");
    }

    #[test]
    fn a_list_that_slurm_cut_short_may_have_more() {
        let tasks = Tasks::parse("1,3,5-...").unwrap();
        assert!(tasks.has(3) && tasks.has(77) && !tasks.has(2));
    }
}
