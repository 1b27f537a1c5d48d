//! Options that jobs of a partition, an account or a QOS may not use: `[[forbid]]` in gpuos.toml.
//!
//! Here with a sentence for whoever submits; gpuosd leaves them out on the node besides, for not every job comes through
//! here. What a job does not name (its user's own account, the partition of the cluster) may not be known yet.

use std::ffi::c_void;

use gpuos_config::access::{Forbidden, Standing, used};
use gpuos_config::options::JobOptions;
use slurm_ffi::api;
use slurm_ffi::layout::Fields;
use slurm_ffi::mem::{read, read_str};
use slurm_ffi::preempt::Asked;

use crate::messages::refused;
use crate::refusal::Refusal;

/// The longest name of a partition, an account or a QOS, or list of them, that is read, in bytes.
const LONGEST: usize = 64 * 1024;

/// Where the names stand in one structure.
#[derive(Clone, Copy, Debug)]
struct Names {
    partition: usize,
    account: usize,
    /// A job's record has it as a number only.
    qos: Option<usize>,
}

/// Where they stand in this release; absent where the table does not say.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    asked: Names,
    record: Names,
}

/// Where a job is to run, and for whom.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Place {
    /// Partitions, with commas between them.
    partitions: String,
    account: String,
    qos: String,
}

impl Places {
    /// The offsets of one release.
    pub fn of(fields: &Fields) -> Option<Places> {
        let names = |of: &str| {
            Some(Names {
                partition: fields.offset(of, "partition").ok()?,
                account: fields.offset(of, "account").ok()?,
                qos: None,
            })
        };
        let qos = fields.offset("job_descriptor", "qos").ok();
        Some(Places {
            asked: Names {
                qos,
                ..names("job_descriptor")?
            },
            record: names("job_record")?,
        })
    }

    /// What the description of a job names.
    pub fn asked(&self, description: *mut c_void) -> Place {
        place(description as usize, &self.asked)
    }

    /// What a job's record has.
    pub fn record(&self, record: *mut c_void) -> Place {
        place(record as usize, &self.record)
    }
}

fn place(at: usize, names: &Names) -> Place {
    let text = |offset: usize| {
        let at = read::<usize>(at.checked_add(offset)?).filter(|at| *at != 0)?;
        read_str(at, LONGEST)
    };
    Place {
        partitions: text(names.partition).unwrap_or_default(),
        account: text(names.account).unwrap_or_default(),
        qos: names.qos.and_then(text).unwrap_or_default(),
    }
}

impl Place {
    /// With slurmctld's default partition, where the job names none.
    pub fn or_default(mut self) -> Place {
        if self.partitions.is_empty() {
            let name = api::symbol(c"default_part_name").and_then(|at| read::<usize>(at as usize));
            let name = name.filter(|at| *at != 0);
            self.partitions = name
                .and_then(|at| read_str(at, LONGEST))
                .unwrap_or_default();
        }
        self
    }

    /// Partitions in which it may come to run; none where that is not known.
    pub fn partitions(&self) -> impl Iterator<Item = &str> {
        let all = self.partitions.split(',');
        all.filter(|name| !name.is_empty())
    }

    /// The same of the job of a user, for whom it is asked what preempts it.
    pub fn asked(&self, user: u32) -> Asked<'_> {
        Asked {
            partitions: &self.partitions,
            qos: &self.qos,
            account: &self.account,
            user,
        }
    }

    /// Its account; empty where it names none.
    pub fn account(&self) -> &str {
        &self.account
    }

    /// Its QOS; empty where it names none.
    pub fn qos(&self) -> &str {
        &self.qos
    }

    /// Whether it names anything.
    pub fn is_nothing(&self) -> bool {
        *self == Place::default()
    }

    /// This one, with what an update names.
    pub fn updated(self, update: Place) -> Place {
        let text = |new: String, old: String| if new.is_empty() { old } else { new };
        Place {
            partitions: text(update.partitions, self.partitions),
            account: text(update.account, self.account),
            qos: text(update.qos, self.qos),
        }
    }
}

/// Refuses a job with an option that is not allowed to it.
pub fn check(forbidden: &Forbidden, options: &JobOptions, place: &Place) -> Result<(), Refusal> {
    let partitions: Vec<&str> = place.partitions.split(',').collect();
    let job = Standing {
        partitions: &partitions,
        account: &place.account,
        qos: &place.qos,
    };
    for (option, value) in used(options) {
        if let Some(rule) = forbidden.refuses(option, &job) {
            let option = format!("--{option}");
            return Err(refused::forbidden(value, option, rule.clause(), rule.asks()).into());
        }
    }
    Ok(())
}

#[cfg(test)]
impl Place {
    /// One that names these.
    pub fn new(account: &str, partitions: &str, qos: &str) -> Place {
        Place {
            partitions: partitions.into(),
            account: account.into(),
            qos: qos.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use gpuos_config::gpuos_toml::Config;
    use slurm_ffi::release::Release;

    use super::*;

    #[test]
    fn every_release_of_the_table_has_the_places() {
        for (major, minor, patch) in [
            (22, 5, 0),
            (22, 5, 8),
            (23, 2, 3),
            (23, 11, 4),
            (24, 11, 5),
            (25, 5, 3),
            (26, 5, 5),
        ] {
            let fields = Fields::of(Release::new(major, minor, patch), None).unwrap();
            let places = Places::of(&fields);
            assert!(
                places.is_some_and(|places| places.asked.qos.is_some()),
                "{major}.{minor}.{patch}"
            );
        }
    }

    #[test]
    fn a_job_is_refused_by_where_it_is_to_run_and_for_whom() {
        let text = "[[forbid]]\noptions = [\"gpuos-mps\", \"gpuos-power\"]\npartition = \"debug\"\nask = \"ann\"\n\
                    [[forbid]]\noptions = [\"gpuos-mig\"]\naccount = \"students\"\n";
        let forbidden = Config::parse(text, "gpuos.toml").unwrap().forbidden;
        let place = |partitions: &str, account: &str| Place {
            partitions: partitions.into(),
            account: account.into(),
            ..Place::default()
        };
        let said = |option: &str, value: &str, place: &Place| {
            let mut options = JobOptions::default();
            options.set(option, value).unwrap();
            let refused = check(&forbidden, &options, place).err();
            refused.map(|refusal| refusal.sentence)
        };
        let debug = place("gpu,debug", "x");
        assert_eq!(
            said("gpuos-power", "300W", &debug).unwrap(),
            "--gpuos-power=300W: it is not allowed in partition debug; write no --gpuos-power, or ask ann"
        );
        assert!(said("gpuos-mps", "on", &debug).is_some());
        assert!(said("gpuos-clocks", "1200", &debug).is_none());
        assert!(said("gpuos-mps", "on", &place("debug2", "x")).is_none());
        let students = place("gpu", "students");
        let why = said("gpuos-mig", "1g.10gb", &students).unwrap();
        assert!(
            why.contains("for account students; write no --gpuos-mig, or ask those who run"),
            "{why}"
        );
        // A change names a part of it.
        let moved = place("gpu", "x").updated(place("debug", ""));
        assert!(said("gpuos-mps", "on", &moved).is_some());
        assert!(Place::default().is_nothing() && !moved.is_nothing());
    }
}
