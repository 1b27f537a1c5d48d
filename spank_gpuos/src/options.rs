//! The options in sbatch, salloc and srun: which value counts in the end.
//!
//! Slurm tells a plugin each option as it meets it: first the `#SBATCH` lines,
//! then its own `SLURM_SPANK_…` variables, then the command line, and all of it
//! again for each component of a heterogeneous job. [`Asked`] keeps what the
//! user really gave for the component at hand, and adds the `GPUOS_*` defaults.

use std::ffi::CStr;

use gpuos_core::options::{JobOptions, OPTIONS, OptionError, parse_switch};

/// Number of options.
pub const COUNT: usize = 13;

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
    ];

    /// Those about the job's GPUs while it runs, wherever it is placed.
    pub const LIMITS: [Opt; 5] = [Opt::Power, Opt::Clocks, Opt::Watch, Opt::Mps, Opt::Share];

    /// Those that do not go with a part of a GPU: they are about whole ones, or slices.
    const NOT_WITH_SHARE: [Opt; 4] = [Opt::Power, Opt::Clocks, Opt::Mps, Opt::Mig];

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
        }
    }

    /// Checks a value.
    pub fn check(self, value: &str) -> Result<(), OptionError> {
        JobOptions::default().set(OPTIONS[self as usize].name, value)
    }

    /// Whether it is about the job's place, and so contradicts `--gpuos=off`.
    fn about_place(self) -> bool {
        !matches!(self, Opt::Switch | Opt::Mig) && !Opt::LIMITS.contains(&self)
    }

    fn turns_off(self, value: &str) -> bool {
        self == Opt::Switch && parse_switch(value) == Ok(false)
    }
}

/// What the user asked for, for one component of a job.
#[derive(Clone, Default, Debug)]
pub struct Asked {
    flags: [Option<String>; COUNT],
    inherited_seen: [bool; COUNT],
}

impl Asked {
    /// Notes a call of Slurm for `opt`. `inherited` is the present value of [`Opt::inherited_as`]:
    /// Slurm repeats it once for each component, which is not the user's doing.
    pub fn note(&mut self, opt: Opt, value: &str, inherited: Option<&str>) {
        let seen = &mut self.inherited_seen[opt as usize];
        if inherited == Some(value) && !*seen {
            *seen = true;
            return;
        }
        self.flags[opt as usize] = Some(value.to_owned());
    }

    /// The values that count, by [`Opt`], flags over defaults; then forgets the component.
    ///
    /// A default never contradicts a flag: `--gpuos=off` silences the other defaults about the place, and
    /// any such flag silences `GPUOS=off`; a share of a GPU silences the defaults that do not go with it, and
    /// the other way round. The error is about a default that is not a value.
    pub fn finish(
        &mut self,
        default: impl Fn(Opt) -> Option<String>,
    ) -> Result<[Option<String>; COUNT], OptionError> {
        let flags = std::mem::take(self).flags;
        let is_off = |values: &[Option<String>; COUNT]| {
            values[Opt::Switch as usize]
                .as_deref()
                .is_some_and(|v| Opt::Switch.turns_off(v))
        };
        let rules = Opt::ALL.into_iter().filter(|&opt| opt != Opt::Switch);
        let any_rule = rules
            .clone()
            .any(|opt| opt.about_place() && flags[opt as usize].is_some());
        let given = |opt: Opt| flags[opt as usize].is_some();
        let whole = Opt::NOT_WITH_SHARE.into_iter().any(given);
        let mut values = flags;
        // The switch first: it decides whether the other defaults count.
        // The share before what does not go with it: of two defaults it counts.
        let order = [Opt::Switch, Opt::Share].into_iter();
        for opt in order.chain(rules.filter(|opt| *opt != Opt::Share)) {
            let unfit = match opt {
                Opt::Share => whole,
                _ => Opt::NOT_WITH_SHARE.contains(&opt) && values[Opt::Share as usize].is_some(),
            };
            if values[opt as usize].is_some() || unfit || (opt.about_place() && is_off(&values)) {
                continue;
            }
            let Some(value) = default(opt).filter(|value| !value.is_empty()) else {
                continue;
            };
            opt.check(&value).map_err(|error| OptionError {
                option: opt.default_variable().to_owned(),
                ..error
            })?;
            if !(any_rule && opt.turns_off(&value)) {
                values[opt as usize] = Some(value);
            }
        }
        Ok(values)
    }
}

#[cfg(test)]
mod tests {
    use gpuos_core::options::PREFIX;

    use super::*;

    fn none(_: Opt) -> Option<String> {
        None
    }

    fn leaf_default(opt: Opt) -> Option<String> {
        (opt == Opt::Topology).then(|| "leaf".to_owned())
    }

    /// Topology, placement and switch; the other options are not given.
    fn strings(values: [Option<&str>; 3]) -> Result<[Option<String>; COUNT], OptionError> {
        let mut all = [const { None }; COUNT];
        for (place, value) in all.iter_mut().zip(values) {
            *place = value.map(str::to_owned);
        }
        Ok(all)
    }

    #[test]
    fn names_agree_with_what_the_controller_reads() {
        for opt in Opt::ALL {
            assert_eq!(opt.carried_name().to_str(), Ok(opt.carried_as()));
            let name = opt
                .carried_as()
                .strip_prefix(PREFIX)
                .expect("the common prefix");
            assert_eq!(name.replace('_', "-"), OPTIONS[opt as usize].name);
            assert_eq!(Opt::from_val(opt as i32), Some(opt));
        }
        assert_eq!(Opt::from_val(COUNT as i32), None);
        assert_eq!(OPTIONS.len(), COUNT);
    }

    #[test]
    fn a_shape_is_a_rule_too() {
        let off = |opt| (opt == Opt::Switch).then(|| "off".to_owned());
        let mut asked = Asked::default();
        asked.note(Opt::Shape, "tp2:dp2", None);
        asked.note(Opt::Profile, "io", None);
        let values = asked.finish(off).unwrap();
        assert_eq!(values[Opt::Switch as usize], None);
        assert_eq!(values[Opt::Shape as usize].as_deref(), Some("tp2:dp2"));
        assert_eq!(values[Opt::Profile as usize].as_deref(), Some("io"));
    }

    #[test]
    fn limits_and_slices_go_with_any_placement() {
        let default = |opt| match opt {
            Opt::Switch => Some("off".to_owned()),
            Opt::Watch => Some("on".to_owned()),
            Opt::Mig => Some("1g.10gb".to_owned()),
            _ => None,
        };
        let mut asked = Asked::default();
        asked.note(Opt::Power, "300W", None);
        let values = asked.finish(default).unwrap();
        let value = |opt: Opt| values[opt as usize].as_deref();
        assert_eq!(value(Opt::Switch), Some("off"));
        assert_eq!(
            (value(Opt::Power), value(Opt::Watch)),
            (Some("300W"), Some("on"))
        );
        assert_eq!(value(Opt::Mig), Some("1g.10gb"));
    }

    #[test]
    fn a_share_and_what_does_not_go_with_it() {
        let default = |opt| match opt {
            Opt::Share => Some("timeslice".to_owned()),
            Opt::Power => Some("300W".to_owned()),
            Opt::Watch => Some("on".to_owned()),
            _ => None,
        };
        let values = |flags: &[(Opt, &str)]| {
            let mut asked = Asked::default();
            for (opt, value) in flags {
                asked.note(*opt, value, None);
            }
            let values = asked.finish(default).unwrap();
            [Opt::Share, Opt::Power, Opt::Mig, Opt::Watch].map(|opt| values[opt as usize].clone())
        };
        let some = |text: &str| Some(text.to_owned());
        let on = some("on");
        assert_eq!(values(&[]), [some("timeslice"), None, None, on.clone()]);
        assert_eq!(
            values(&[(Opt::Power, "80%")]),
            [None, some("80%"), None, on.clone()]
        );
        assert_eq!(
            values(&[(Opt::Mig, "1/2")]),
            [None, some("300W"), some("1/2"), on.clone()]
        );
        // Two flags go on: the controller says that they contradict each other.
        assert_eq!(
            values(&[(Opt::Share, "mps:50%"), (Opt::Power, "80%")]),
            [some("mps:50%"), some("80%"), None, on]
        );
    }

    #[test]
    fn flags_win_over_defaults_and_defaults_fill_in() {
        let mut asked = Asked::default();
        asked.note(Opt::Topology, "node", None);
        assert_eq!(
            asked.finish(leaf_default),
            strings([Some("node"), None, None])
        );
        assert_eq!(
            asked.finish(leaf_default),
            strings([Some("leaf"), None, None])
        );
        assert_eq!(asked.finish(none), strings([None, None, None]));
        assert_eq!(
            asked.finish(|_| Some(String::new())),
            strings([None, None, None])
        );
    }

    #[test]
    fn the_last_flag_counts() {
        let mut asked = Asked::default();
        asked.note(Opt::Topology, "node", None);
        asked.note(Opt::Topology, "leaf:required", None);
        assert_eq!(
            asked.finish(none),
            strings([Some("leaf:required"), None, None])
        );
    }

    #[test]
    fn a_later_component_inherits_nothing() {
        let mut asked = Asked::default();
        asked.note(Opt::Topology, "leaf", None);
        assert_eq!(asked.finish(none), strings([Some("leaf"), None, None]));
        // Slurm repeats the first component's value to the second one ...
        asked.note(Opt::Topology, "leaf", Some("leaf"));
        assert_eq!(asked.finish(none), strings([None, None, None]));
        // ... after the script's line and before the command line, which both count.
        asked.note(Opt::Topology, "leaf", Some("leaf"));
        asked.note(Opt::Topology, "leaf", Some("leaf"));
        assert_eq!(asked.finish(none), strings([Some("leaf"), None, None]));
        asked.note(Opt::Topology, "node", Some("leaf"));
        asked.note(Opt::Topology, "leaf", Some("leaf"));
        assert_eq!(asked.finish(none), strings([Some("node"), None, None]));
    }

    #[test]
    fn defaults_never_contradict_flags() {
        let off = |opt| (opt == Opt::Switch).then(|| "off".to_owned());
        let mut asked = Asked::default();
        asked.note(Opt::Switch, "off", None);
        assert_eq!(
            asked.finish(leaf_default),
            strings([None, None, Some("off")])
        );
        asked.note(Opt::Placement, "pack", None);
        assert_eq!(asked.finish(off), strings([None, Some("pack"), None]));
        assert_eq!(asked.finish(off), strings([None, None, Some("off")]));
        let both = |opt| match opt {
            Opt::Switch => Some("off".to_owned()),
            _ => leaf_default(opt),
        };
        assert_eq!(asked.finish(both), strings([None, None, Some("off")]));
        // Flags that contradict each other go on: the controller says so.
        asked.note(Opt::Switch, "off", None);
        asked.note(Opt::Topology, "leaf", None);
        assert_eq!(
            asked.finish(none),
            strings([Some("leaf"), None, Some("off")])
        );
    }

    #[test]
    fn a_bad_default_is_named() {
        let mut asked = Asked::default();
        let sentence = asked
            .finish(|opt| (opt == Opt::Placement).then(|| "sideways".to_owned()))
            .unwrap_err()
            .to_string();
        assert!(
            sentence.contains("sideways") && sentence.contains("GPUOS_PLACEMENT"),
            "{sentence}"
        );
        // A flag makes it irrelevant.
        asked.note(Opt::Placement, "pack", None);
        let bad = |opt| (opt == Opt::Placement).then(|| "sideways".to_owned());
        assert_eq!(asked.finish(bad), strings([None, Some("pack"), None]));
    }
}
