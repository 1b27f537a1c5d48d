//! What a job hands to its steps in its environment, so that they have what it asked for, and no default that it has undone.

use super::given::{EffectiveOptions, Opt};
use super::{Inherited, OPTIONS, Source};

/// The variables: what holds while the job runs, its groups, its slices, [`JOB_CHECKPOINT`] and [`JOB_SPARES`].
pub const VARIABLES: [&str; 5] = [
    "GPUOS_JOB_LIMITS",
    "GPUOS_JOB_SHAPE",
    "GPUOS_JOB_MIG",
    JOB_CHECKPOINT,
    JOB_SPARES,
];

/// What the job says of its checkpoints.
pub const JOB_CHECKPOINT: &str = "GPUOS_JOB_CHECKPOINT";

/// Its spare nodes.
pub const JOB_SPARES: &str = "GPUOS_JOB_SPARES";

/// What stands in place of a value that is undone.
pub const OFF: &str = "off";

/// Values of [`VARIABLES`].
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Handover {
    limits: Inherited,
    shape: Option<String>,
    mig: Option<String>,
    checkpoint: Option<String>,
    spares: Option<String>,
    /// Read in a job, which has settled what no step changes.
    is_of_job: bool,
}

impl Handover {
    /// What a step finds in its environment.
    pub fn read(get: impl Fn(&str) -> Option<String>) -> Handover {
        let values = VARIABLES.map(|name| get(name).filter(|v| !v.is_empty()));
        let [limits, shape, mig, checkpoint, spares] = values;
        Handover {
            limits: Inherited::parse(&limits.unwrap_or_default()),
            shape,
            mig,
            checkpoint,
            spares,
            is_of_job: true,
        }
    }

    /// Whether the job has said what holds for its steps, so that no default does. What is about the place is the
    /// job's in any case.
    pub fn decides(&self, opt: Opt) -> bool {
        match opt {
            Opt::Shape => self.shape.is_some(),
            Opt::Mig => self.mig.is_some(),
            // What was counted for the job at submission bounds its steps.
            Opt::Memory if self.is_of_job => true,
            opt => !opt.is_for_steps() || self.limits.has(OPTIONS[opt as usize].name),
        }
    }

    /// Whether it has memory beyond that of its GPUs.
    pub fn has_memory(&self) -> bool {
        self.limits.options().memory.is_some()
    }

    /// Whether a step may have so much memory for each GPU: what its job has, or less. A command that makes a job may, for all that is
    /// known here.
    pub fn may_have_memory(&self, value: &str) -> bool {
        !self.is_of_job || self.limits.bounds_memory(value)
    }

    /// Whether a step may share its GPU so: where its job shares it in turns, with no more of its memory than that has, and never without.
    pub fn may_share(&self, value: &str) -> bool {
        !self.is_of_job || self.limits.bounds_share(value)
    }

    /// A step asks for more than its job has. slurmstepd has its flag, and is to know that it does not count.
    fn keep_memory(&mut self) {
        let name = OPTIONS[Opt::Memory as usize].name;
        if !self.limits.has(name) {
            self.limits.record(name, OFF, Source::Flag);
        }
    }

    /// With what a command adds. `own_step`: it is srun, whose step has its option for slices itself, and tells by the
    /// variable whether a job or a step asked.
    pub fn with(mut self, settled: &EffectiveOptions, own_step: bool) -> Handover {
        for opt in Opt::LIMITS {
            let name = OPTIONS[opt as usize].name;
            match &settled.values[opt as usize] {
                Some(given) if opt == Opt::Memory && !self.may_have_memory(&given.value) => {
                    self.keep_memory();
                }
                // slurmstepd has the flag, and passes it over, too.
                Some(given) if opt == Opt::Share && !self.may_share(&given.value) => {}
                None if opt == Opt::Share && !self.may_share(OFF) => {}
                Some(given) => self.limits.record(name, &given.value, given.source),
                None if settled.undone[opt as usize] => self.limits.record(name, OFF, Source::Flag),
                None => {}
            }
        }
        match &settled.values[Opt::Shape as usize] {
            Some(given) => self.shape = Some(given.value.clone()),
            None if settled.undone[Opt::Shape as usize] => self.shape = Some(OFF.into()),
            None => {}
        }
        match &settled.values[Opt::Mig as usize] {
            Some(given) => {
                self.limits
                    .came_from(OPTIONS[Opt::Mig as usize].name, given.source);
                if !own_step {
                    self.mig = Some(given.value.clone());
                }
            }
            // A step that undoes the slices of its job does so for itself: slurmstepd has its flag.
            None if settled.undone[Opt::Mig as usize] && self.mig.is_none() => {
                self.mig = Some(OFF.into());
            }
            None => {}
        }
        match &settled.values[Opt::Checkpoint as usize] {
            Some(given) if !self.is_of_job => self.checkpoint = Some(given.value.clone()),
            // slurmstepd has the step's flag: it is to know that it does not count.
            Some(_) if self.checkpoint.is_none() => self.checkpoint = Some(OFF.into()),
            _ => {}
        }
        if let (Some(given), false) = (&settled.values[Opt::Spares as usize], self.is_of_job) {
            self.spares = Some(given.value.clone());
        }
        self
    }

    /// The variables, and what they are set to; none where they are to be absent.
    pub fn variables(self) -> impl Iterator<Item = (&'static str, Option<String>)> {
        let limits = Some(self.limits.to_string()).filter(|text| !text.is_empty());
        let values = [limits, self.shape, self.mig, self.checkpoint, self.spares];
        VARIABLES.into_iter().zip(values)
    }
}
