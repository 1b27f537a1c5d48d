//! The options as they are given: which value counts in the end.
//!
//! Slurm tells a plugin of sbatch, salloc and srun each option as it meets it: first the `#SBATCH` lines,
//! then its own `SLURM_SPANK_…` variables, then the command line, and all of it
//! again for each component of a heterogeneous job. [`GivenOptions`] keeps what the
//! user really gave for the component at hand, and adds the `GPUOS_*` defaults that no `off` has undone. A job that comes by no such command has
//! these alone.

use std::ffi::CStr;

use super::{
    JobOptions, OPTIONS, OptionError, Source, Sources, is_off, parse_checkpoint, parse_restart,
    parse_switch,
};

/// Number of options.
pub const COUNT: usize = 17;

/// One of the plugin's options.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Opt {
    /// `--gpuos-topology`
    Topology = 0,
    /// `--gpuos-placement`
    Placement = 1,
    /// `--gpuos`
    Switch = 2,
    /// `--gpuos-shape`
    Shape = 3,
    /// `--gpuos-profile`
    Profile = 4,
    /// `--gpuos-class`
    Class = 5,
    /// `--gpuos-exclusive`
    Exclusive = 6,
    /// `--gpuos-power`
    Power = 7,
    /// `--gpuos-clocks`
    Clocks = 8,
    /// `--gpuos-watch`
    Watch = 9,
    /// `--gpuos-mps`
    Mps = 10,
    /// `--gpuos-mig`
    Mig = 11,
    /// `--gpuos-share`
    Share = 12,
    /// `--gpuos-checkpoint`
    Checkpoint = 13,
    /// `--gpuos-restart`
    Restart = 14,
    /// `--gpuos-spares`
    Spares = 15,
    /// `--gpuos-mem`
    Memory = 16,
}

impl Opt {
    /// All options, in the order in which `--help` shows them.
    pub const ALL: [Opt; COUNT] = [
        Opt::Topology,
        Opt::Placement,
        Opt::Switch,
        Opt::Shape,
        Opt::Profile,
        Opt::Class,
        Opt::Exclusive,
        Opt::Power,
        Opt::Clocks,
        Opt::Watch,
        Opt::Mps,
        Opt::Mig,
        Opt::Share,
        Opt::Checkpoint,
        Opt::Restart,
        Opt::Spares,
        Opt::Memory,
    ];

    /// Those about the job's GPUs while it runs, wherever it is placed.
    pub const LIMITS: [Opt; 6] = [
        Opt::Power,
        Opt::Clocks,
        Opt::Watch,
        Opt::Mps,
        Opt::Share,
        Opt::Memory,
    ];

    /// Those that do not go with a part of a GPU: they are about whole ones, or slices.
    const NOT_WITH_SHARE: [Opt; 5] = [Opt::Power, Opt::Clocks, Opt::Mps, Opt::Mig, Opt::Memory];

    /// Those that do not go with memory beyond that of whole GPUs.
    const NOT_WITH_MEMORY: [Opt; 3] = [Opt::Mps, Opt::Mig, Opt::Share];

    /// The option whose `val` is this number.
    pub fn from_val(val: i32) -> Option<Opt> {
        Opt::ALL.into_iter().find(|opt| *opt as i32 == val)
    }

    /// Variable that holds the user's default.
    pub fn default_variable(self) -> &'static str {
        OPTIONS[self as usize].environment
    }

    /// Name under which Slurm carries the option to the controller and to the node.
    pub fn carried_name(self) -> &'static CStr {
        match self {
            Opt::Topology => c"_SLURM_SPANK_OPTION_gpuos_gpuos_topology",
            Opt::Placement => c"_SLURM_SPANK_OPTION_gpuos_gpuos_placement",
            Opt::Switch => c"_SLURM_SPANK_OPTION_gpuos_gpuos",
            Opt::Shape => c"_SLURM_SPANK_OPTION_gpuos_gpuos_shape",
            Opt::Profile => c"_SLURM_SPANK_OPTION_gpuos_gpuos_profile",
            Opt::Class => c"_SLURM_SPANK_OPTION_gpuos_gpuos_class",
            Opt::Exclusive => c"_SLURM_SPANK_OPTION_gpuos_gpuos_exclusive",
            Opt::Power => c"_SLURM_SPANK_OPTION_gpuos_gpuos_power",
            Opt::Clocks => c"_SLURM_SPANK_OPTION_gpuos_gpuos_clocks",
            Opt::Watch => c"_SLURM_SPANK_OPTION_gpuos_gpuos_watch",
            Opt::Mps => c"_SLURM_SPANK_OPTION_gpuos_gpuos_mps",
            Opt::Mig => c"_SLURM_SPANK_OPTION_gpuos_gpuos_mig",
            Opt::Share => c"_SLURM_SPANK_OPTION_gpuos_gpuos_share",
            Opt::Checkpoint => c"_SLURM_SPANK_OPTION_gpuos_gpuos_checkpoint",
            Opt::Restart => c"_SLURM_SPANK_OPTION_gpuos_gpuos_restart",
            Opt::Spares => c"_SLURM_SPANK_OPTION_gpuos_gpuos_spares",
            Opt::Memory => c"_SLURM_SPANK_OPTION_gpuos_gpuos_mem",
        }
    }

    /// [`Opt::carried_name`], as a variable of the command.
    pub fn carried_as(self) -> &'static str {
        &self.inherited_as()["SLURM_SPANK_".len()..]
    }

    /// Variable by which Slurm hands the option from one command to the next.
    pub fn inherited_as(self) -> &'static str {
        match self {
            Opt::Topology => "SLURM_SPANK__SLURM_SPANK_OPTION_gpuos_gpuos_topology",
            Opt::Placement => "SLURM_SPANK__SLURM_SPANK_OPTION_gpuos_gpuos_placement",
            Opt::Switch => "SLURM_SPANK__SLURM_SPANK_OPTION_gpuos_gpuos",
            Opt::Shape => "SLURM_SPANK__SLURM_SPANK_OPTION_gpuos_gpuos_shape",
            Opt::Profile => "SLURM_SPANK__SLURM_SPANK_OPTION_gpuos_gpuos_profile",
            Opt::Class => "SLURM_SPANK__SLURM_SPANK_OPTION_gpuos_gpuos_class",
            Opt::Exclusive => "SLURM_SPANK__SLURM_SPANK_OPTION_gpuos_gpuos_exclusive",
            Opt::Power => "SLURM_SPANK__SLURM_SPANK_OPTION_gpuos_gpuos_power",
            Opt::Clocks => "SLURM_SPANK__SLURM_SPANK_OPTION_gpuos_gpuos_clocks",
            Opt::Watch => "SLURM_SPANK__SLURM_SPANK_OPTION_gpuos_gpuos_watch",
            Opt::Mps => "SLURM_SPANK__SLURM_SPANK_OPTION_gpuos_gpuos_mps",
            Opt::Mig => "SLURM_SPANK__SLURM_SPANK_OPTION_gpuos_gpuos_mig",
            Opt::Share => "SLURM_SPANK__SLURM_SPANK_OPTION_gpuos_gpuos_share",
            Opt::Checkpoint => "SLURM_SPANK__SLURM_SPANK_OPTION_gpuos_gpuos_checkpoint",
            Opt::Restart => "SLURM_SPANK__SLURM_SPANK_OPTION_gpuos_gpuos_restart",
            Opt::Spares => "SLURM_SPANK__SLURM_SPANK_OPTION_gpuos_gpuos_spares",
            Opt::Memory => "SLURM_SPANK__SLURM_SPANK_OPTION_gpuos_gpuos_mem",
        }
    }

    /// Checks a value; `off` is one of every option.
    pub fn check(self, value: &str) -> Result<(), OptionError> {
        JobOptions::default().set(OPTIONS[self as usize].name, value)
    }

    /// Whether it is about the job's place, and so contradicts `--gpuos=off`.
    fn about_place(self) -> bool {
        let others = [
            Opt::Switch,
            Opt::Mig,
            Opt::Checkpoint,
            Opt::Restart,
            Opt::Spares,
        ];
        !others.contains(&self) && !Opt::LIMITS.contains(&self)
    }

    /// Whether steps have it too; the others are the job's alone.
    pub fn is_for_steps(self) -> bool {
        matches!(self, Opt::Shape | Opt::Mig) || Opt::LIMITS.contains(&self)
    }

    fn turns_off(self, value: &str) -> bool {
        self == Opt::Switch && parse_switch(value) == Ok(false)
    }

    /// Whether a value says that nothing is asked. Of the switch it is a value as any other.
    pub fn is_undone_by(self, value: &str) -> bool {
        self != Opt::Switch && is_off(value)
    }

    /// Whether a command line (with the command first) has this value for the option, in one of the forms that
    /// getopt_long takes: in one word or two, with the name cut short. What follows a batch script is the script's own.
    pub fn is_on(self, words: &[String], value: &str) -> bool {
        let name = OPTIONS[self as usize].name;
        let means = |word: &str| {
            word.strip_prefix("--").is_some_and(|word| {
                let another = || OPTIONS.iter().any(|option| option.name == word);
                word == name || (!word.is_empty() && name.starts_with(word) && !another())
            })
        };
        // Of other options it is not known which take a word: one without a value of its own may.
        let may_take = |word: &str| match word.strip_prefix("--") {
            Some(long) => !long.contains('='),
            None => word.starts_with('-') && word.len() == 2,
        };
        let is_script =
            |pair: &[String]| !pair[1].starts_with('-') && pair[1] != ":" && !may_take(&pair[0]);
        let end = words.windows(2).position(is_script);
        let own = words.get(..end.map_or(words.len(), |at| at + 1));
        let own = own.unwrap_or_default();
        own.iter()
            .enumerate()
            .any(|(at, word)| match word.split_once('=') {
                Some((word, given)) => means(word) && given == value,
                None => means(word) && own.get(at + 1).is_some_and(|next| next == value),
            })
    }
}

/// A value that was given.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SourcedValue {
    /// The value.
    pub value: String,
    /// Where it came from.
    pub source: Source,
}

/// What counts in the end, by [`Opt`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct EffectiveOptions {
    /// The values.
    pub values: [Option<SourcedValue>; COUNT],
    /// Options of which the user, or what does not go with them, has undone the default: steps of the job, which
    /// see the same environment, are not to ask for it again.
    pub undone: [bool; COUNT],
}

impl EffectiveOptions {
    /// Where the values came from, for the sentences of the controller.
    pub fn sources(&self) -> Sources {
        let mut sources = Sources::default();
        for (opt, given) in Opt::ALL.into_iter().zip(&self.values) {
            if let Some(given) = given {
                sources.set(OPTIONS[opt as usize].name, given.source);
            }
        }
        sources
    }

    /// From what the job begins is a part of what it says of its checkpoints, which is handed on as one value. A default does not
    /// count in a job without checkpoints.
    pub fn with_restart(mut self) -> EffectiveOptions {
        let [checkpoint, restart] = [Opt::Checkpoint, Opt::Restart].map(|opt| opt as usize);
        let default = |given: &SourcedValue| given.source == Source::Environment;
        if self.values[checkpoint].is_none() {
            self.values[restart] = self.values[restart].take().filter(|given| !default(given));
            return self;
        }
        let said = self.values[restart].as_ref();
        let said = said.and_then(|given| parse_restart(&given.value).ok());
        if let (Some(given), Some(said)) = (&mut self.values[checkpoint], said)
            && let Ok(mut option) = parse_checkpoint(&given.value)
        {
            option.restart = said;
            given.value = option.to_string();
        }
        self
    }
}

/// What the user asked for, for one component of a job.
#[derive(Clone, Default, Debug)]
pub struct GivenOptions {
    flags: [Option<SourcedValue>; COUNT],
    inherited_seen: [bool; COUNT],
}

impl GivenOptions {
    /// Notes a call of Slurm for `opt`. `inherited` is the present value of [`Opt::inherited_as`]:
    /// Slurm repeats it once for each component, which is not the user's doing.
    pub fn note(&mut self, opt: Opt, given: SourcedValue, inherited: Option<&str>) {
        let seen = &mut self.inherited_seen[opt as usize];
        if inherited == Some(&given.value) && !*seen {
            *seen = true;
            return;
        }
        self.flags[opt as usize] = Some(given);
    }

    /// The values that count, flags over defaults; then forgets the component.
    ///
    /// A flag `off` undoes the default. A default never contradicts a flag: `--gpuos=off` silences the other
    /// defaults about the place, and any such flag silences `GPUOS=off`; a share of a GPU, and memory beyond that of GPUs, silence
    /// the defaults that do not go with them, and the other way round. The error is about a default that is not a value.
    pub fn finish(
        &mut self,
        default: impl Fn(Opt) -> Option<String>,
    ) -> Result<EffectiveOptions, OptionError> {
        let mut values = std::mem::take(self).flags;
        let mut undone = [false; COUNT];
        for opt in Opt::ALL {
            let given = values[opt as usize].as_ref();
            if given.is_some_and(|given| opt.is_undone_by(&given.value)) {
                values[opt as usize] = None;
                undone[opt as usize] = true;
            }
        }
        let is_off = |values: &[Option<SourcedValue>; COUNT]| {
            let switch = values[Opt::Switch as usize].as_ref();
            switch.is_some_and(|given| Opt::Switch.turns_off(&given.value))
        };
        let rules = Opt::ALL.into_iter().filter(|&opt| opt != Opt::Switch);
        let given = |opt: Opt| values[opt as usize].is_some();
        let any_rule = rules.clone().any(|opt| opt.about_place() && given(opt));
        let whole = Opt::NOT_WITH_SHARE.into_iter().any(given);
        let tiers = given(Opt::Memory);
        // The switch first: it decides whether the other defaults count.
        // The share before what does not go with it: of two defaults it counts.
        let order = [Opt::Switch, Opt::Share].into_iter();
        for opt in order.chain(rules.filter(|opt| *opt != Opt::Share)) {
            if values[opt as usize].is_some() || undone[opt as usize] {
                continue;
            }
            let Some(value) = default(opt).filter(|value| !value.is_empty()) else {
                continue;
            };
            let has = |opt: &Opt| values[*opt as usize].is_some();
            let unfit = match opt {
                Opt::Share => whole,
                Opt::Memory => Opt::NOT_WITH_MEMORY.iter().any(has),
                _ if tiers && Opt::NOT_WITH_MEMORY.contains(&opt) => true,
                // Without checkpoints there is nothing that spares could go on from.
                Opt::Spares => values[Opt::Checkpoint as usize].is_none(),
                _ => Opt::NOT_WITH_SHARE.contains(&opt) && values[Opt::Share as usize].is_some(),
            };
            if unfit || (opt.about_place() && is_off(&values)) {
                undone[opt as usize] = true;
                continue;
            }
            let source = Source::Environment;
            opt.check(&value).map_err(|error| error.came_from(source))?;
            let says_nothing = opt.is_undone_by(&value) || (any_rule && opt.turns_off(&value));
            if !says_nothing {
                values[opt as usize] = Some(SourcedValue { value, source });
            }
        }
        Ok(EffectiveOptions { values, undone })
    }
}

#[cfg(test)]
#[path = "given_tests.rs"]
mod tests;
