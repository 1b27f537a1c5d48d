use super::super::PREFIX;
use super::super::handover::Handover;
use super::*;

fn none(_: Opt) -> Option<String> {
    None
}

fn leaf_default(opt: Opt) -> Option<String> {
    (opt == Opt::Topology).then(|| "leaf".to_owned())
}

fn flag(value: &str) -> SourcedValue {
    let source = Source::Flag;
    SourcedValue {
        value: value.into(),
        source,
    }
}

/// The values without their sources.
fn finish(
    asked: &mut GivenOptions,
    default: impl Fn(Opt) -> Option<String>,
) -> Result<[Option<String>; COUNT], OptionError> {
    let settled = asked.finish(default)?;
    Ok(settled.values.map(|given| given.map(|given| given.value)))
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
    let mut asked = GivenOptions::default();
    asked.note(Opt::Shape, flag("tp2:dp2"), None);
    asked.note(Opt::Profile, flag("io"), None);
    let values = finish(&mut asked, off).unwrap();
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
    let mut asked = GivenOptions::default();
    asked.note(Opt::Power, flag("300W"), None);
    let values = finish(&mut asked, default).unwrap();
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
        let mut asked = GivenOptions::default();
        for (opt, value) in flags {
            asked.note(*opt, flag(value), None);
        }
        let values = finish(&mut asked, default).unwrap();
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
fn memory_beyond_that_of_gpus_and_what_does_not_go_with_it() {
    let values = |flags: &[(Opt, &str)], defaults: &[(Opt, &str)]| {
        let mut asked = GivenOptions::default();
        for (opt, value) in flags {
            asked.note(*opt, flag(value), None);
        }
        let default = |opt: Opt| {
            let mut defaults = defaults.iter();
            defaults.find_map(|(of, value)| (*of == opt).then(|| (*value).to_owned()))
        };
        let values = finish(&mut asked, default).unwrap();
        [Opt::Memory, Opt::Mps, Opt::Mig, Opt::Share].map(|opt| values[opt as usize].clone())
    };
    let some = |text: &str| Some(text.to_owned());
    let (memory, mps) = ((Opt::Memory, "120G"), (Opt::Mps, "on"));
    assert_eq!(values(&[], &[memory]), [some("120G"), None, None, None]);
    // Of two defaults the older option counts, and a flag silences any default.
    assert_eq!(values(&[], &[memory, mps]), [None, some("on"), None, None]);
    assert_eq!(values(&[memory], &[mps]), [some("120G"), None, None, None]);
    assert_eq!(
        values(&[(Opt::Mig, "1/2")], &[memory]),
        [None, None, some("1/2"), None]
    );
    assert_eq!(
        values(&[memory], &[(Opt::Share, "timeslice"), (Opt::Mig, "1/2")]),
        [some("120G"), None, None, None]
    );
    // Two flags go on: the controller says that they contradict each other.
    assert_eq!(
        values(&[memory, mps], &[]),
        [some("120G"), some("on"), None, None]
    );
}

#[test]
fn a_step_has_the_memory_of_its_job_or_less() {
    let limits = |job: &str, value: Option<&str>| {
        let handed = Handover::read(|name| (name == "GPUOS_JOB_LIMITS").then(|| job.to_owned()));
        let mut asked = GivenOptions::default();
        if let Some(value) = value {
            asked.note(Opt::Memory, flag(value), None);
        }
        let settled = asked.finish(none).unwrap();
        let given = settled.values[Opt::Memory as usize].as_ref();
        let bounded = given.is_some_and(|given| !handed.may_have_memory(&given.value));
        let mut variables = handed.with(&settled, true).variables();
        let (_, limits) = variables.next().unwrap();
        (limits.unwrap_or_default(), bounded)
    };
    for (job, value, told, bounded) in [
        ("mem=120G", None, "mem=120G", false),
        ("mem=120G", Some("60G"), "mem=60G", false),
        (
            "mem=120G",
            Some("120G,policy=lru"),
            "mem=120G,policy=lru",
            false,
        ),
        ("mem=120G", Some("121G"), "mem=120G", true),
        ("mem=80G,tiers=hbm", Some("60G"), "mem=80G,tiers=hbm", true),
        (
            "mem=80G,tiers=hbm",
            Some("60G,tiers=hbm"),
            "mem=60G,tiers=hbm",
            false,
        ),
        ("mem=off", Some("60G"), "mem=off", true),
        ("watch=5", Some("60G"), "watch=5 mem=off", true),
        ("mem=120G", Some("off"), "mem=off", false),
    ] {
        assert_eq!(
            limits(job, value),
            (told.to_owned(), bounded),
            "{job} {value:?}"
        );
    }
    // A default in the environment of a step is none of its job's.
    let handed = Handover::read(|_| None);
    assert!(handed.decides(Opt::Memory) && !handed.decides(Opt::Watch));
}

#[test]
fn flags_win_over_defaults_and_defaults_fill_in() {
    let mut asked = GivenOptions::default();
    asked.note(Opt::Topology, flag("node"), None);
    assert_eq!(
        finish(&mut asked, leaf_default),
        strings([Some("node"), None, None])
    );
    assert_eq!(
        finish(&mut asked, leaf_default),
        strings([Some("leaf"), None, None])
    );
    assert_eq!(finish(&mut asked, none), strings([None, None, None]));
    assert_eq!(
        finish(&mut asked, |_| Some(String::new())),
        strings([None, None, None])
    );
}

#[test]
fn the_last_flag_counts() {
    let mut asked = GivenOptions::default();
    asked.note(Opt::Topology, flag("node"), None);
    asked.note(Opt::Topology, flag("leaf:required"), None);
    assert_eq!(
        finish(&mut asked, none),
        strings([Some("leaf:required"), None, None])
    );
}

#[test]
fn a_later_component_inherits_nothing() {
    let mut asked = GivenOptions::default();
    asked.note(Opt::Topology, flag("leaf"), None);
    assert_eq!(
        finish(&mut asked, none),
        strings([Some("leaf"), None, None])
    );
    // Slurm repeats the first component's value to the second one ...
    asked.note(Opt::Topology, flag("leaf"), Some("leaf"));
    assert_eq!(finish(&mut asked, none), strings([None, None, None]));
    // ... after the script's line and before the command line, which both count.
    asked.note(Opt::Topology, flag("leaf"), Some("leaf"));
    asked.note(Opt::Topology, flag("leaf"), Some("leaf"));
    assert_eq!(
        finish(&mut asked, none),
        strings([Some("leaf"), None, None])
    );
    asked.note(Opt::Topology, flag("node"), Some("leaf"));
    asked.note(Opt::Topology, flag("leaf"), Some("leaf"));
    assert_eq!(
        finish(&mut asked, none),
        strings([Some("node"), None, None])
    );
}

#[test]
fn defaults_never_contradict_flags() {
    let off = |opt| (opt == Opt::Switch).then(|| "off".to_owned());
    let mut asked = GivenOptions::default();
    asked.note(Opt::Switch, flag("off"), None);
    assert_eq!(
        finish(&mut asked, leaf_default),
        strings([None, None, Some("off")])
    );
    asked.note(Opt::Placement, flag("pack"), None);
    assert_eq!(finish(&mut asked, off), strings([None, Some("pack"), None]));
    assert_eq!(finish(&mut asked, off), strings([None, None, Some("off")]));
    let both = |opt| match opt {
        Opt::Switch => Some("off".to_owned()),
        _ => leaf_default(opt),
    };
    assert_eq!(finish(&mut asked, both), strings([None, None, Some("off")]));
    // Flags that contradict each other go on: the controller says so.
    asked.note(Opt::Switch, flag("off"), None);
    asked.note(Opt::Topology, flag("leaf"), None);
    assert_eq!(
        finish(&mut asked, none),
        strings([Some("leaf"), None, Some("off")])
    );
}

#[test]
fn a_bad_default_is_named() {
    let mut asked = GivenOptions::default();
    let sentence = finish(&mut asked, |opt| {
        (opt == Opt::Placement).then(|| "sideways".to_owned())
    })
    .unwrap_err()
    .to_string();
    assert!(
        sentence.contains("sideways") && sentence.contains("GPUOS_PLACEMENT"),
        "{sentence}"
    );
    // A flag makes it irrelevant.
    asked.note(Opt::Placement, flag("pack"), None);
    let bad = |opt| (opt == Opt::Placement).then(|| "sideways".to_owned());
    assert_eq!(finish(&mut asked, bad), strings([None, Some("pack"), None]));
}

#[test]
fn a_value_is_on_the_command_line_in_every_form_that_getopt_takes() {
    let on = |line: &str| {
        let words: Vec<String> = line.split(' ').map(String::from).collect();
        Opt::Watch.is_on(&words, "5")
    };
    for line in [
        "sbatch --gpuos-watch=5 job.sh",
        "sbatch -o out --gpuos-watch 5 job.sh",
        "sbatch --parsable --gpuos-wat=5",
        "sbatch -n1 --gpuos-w 5 --wrap true",
        "sbatch -n1 : --gpuos-watch=5 job.sh",
    ] {
        assert!(on(line), "{line}");
    }
    for line in [
        "sbatch",
        "sbatch job.sh",
        "sbatch job.sh --gpuos-watch=5",
        "sbatch -n1 --parsable=x job.sh --gpuos-watch 5",
        "sbatch --gpuos-watch=50 --gpuos-mps=5 --gpuos=5 --watch=5 job.sh",
        "sbatch --gpuos-watch",
    ] {
        assert!(!on(line), "{line}");
    }
    let switch = ["sbatch", "--gpuos-watch=on"].map(String::from);
    assert!(!Opt::Switch.is_on(&switch, "on"));
}

/// A good and a bad value of each option, by [`Opt`].
const VALUES: [[&str; 2]; COUNT] = [
    ["leaf:required", "leaf:maybe"],
    ["pack", "sideways"],
    ["on", "perhaps"],
    ["tp2:dp2", "tp2:tp2"],
    ["io", "disk"],
    ["noisy", "a b"],
    ["node", "any"],
    ["300W", "300"],
    ["1200-1500", "fast"],
    ["20", "0"],
    ["50%", "50"],
    ["1g.10gb:2", "3g"],
    ["mps:25%", "mps"],
    ["10m,l2=partner", "10m,dir=/x"],
    ["1234/7", "1/../2"],
    ["2", "0"],
    ["120G,policy=lru", "120"],
];

/// Ways in which a value comes to a component of a job.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Way {
    Flag,
    Script,
    Environment,
    /// By the job of a step.
    Inherited,
    /// A default, and the flag `off`.
    Undone,
    /// A line of the script, and the flag `off`.
    Overruled,
}

/// What comes of one value, as the hooks of a command do it.
fn settle(opt: Opt, way: Way, value: &str) -> Result<EffectiveOptions, String> {
    let mut asked = GivenOptions::default();
    // A default of spares is silent without checkpoints.
    if opt == Opt::Spares {
        asked.note(Opt::Checkpoint, flag("10m"), None);
    }
    let mut note = |value: &str, source| {
        let given = SourcedValue {
            value: value.into(),
            source,
        };
        let checked = opt
            .check(value)
            .map_err(|why| why.came_from(source).to_string());
        checked.map(|()| asked.note(opt, given, None))
    };
    match way {
        Way::Flag => note(value, Source::Flag)?,
        Way::Script => note(value, Source::Script)?,
        Way::Environment | Way::Inherited => {}
        Way::Undone => note("off", Source::Flag)?,
        Way::Overruled => {
            note(value, Source::Script)?;
            note("off", Source::Flag)?;
        }
    }
    let limits = match OPTIONS[opt as usize].name.strip_prefix("gpuos-") {
        Some(name) => format!("{name}={value}"),
        None => String::new(),
    };
    let job = Handover::read(|variable| match (way, variable) {
        (Way::Inherited, "GPUOS_JOB_LIMITS") => Some(limits.clone()),
        (Way::Inherited, "GPUOS_JOB_SHAPE") if opt == Opt::Shape => Some(value.into()),
        (Way::Inherited, "GPUOS_JOB_MIG") if opt == Opt::Mig => Some(value.into()),
        _ => None,
    });
    let default = |of: Opt| {
        let has = matches!(way, Way::Environment | Way::Inherited | Way::Undone);
        let counts = way != Way::Inherited || !job.decides(of);
        (of == opt && has && counts).then(|| value.to_owned())
    };
    asked.finish(default).map_err(|why| why.to_string())
}

#[test]
fn every_option_from_every_place_is_taken_undone_or_refused_by_its_name() {
    use Way::{Environment, Flag, Inherited, Overruled, Script, Undone};
    for opt in Opt::ALL {
        let row = &OPTIONS[opt as usize];
        let [good, bad] = VALUES[opt as usize];
        let is_switch = opt == Opt::Switch;
        for way in [Flag, Script, Environment, Inherited, Undone, Overruled] {
            for value in [good, bad, "off", "OFF", ""] {
                let settled = settle(opt, way, value);
                let case = format!("--{} {way:?} {value:?}: {settled:?}", row.name);
                let named = match way {
                    Flag => format!("--{}={value}: ", row.name),
                    Script | Overruled => format!("#SBATCH --{}={value}: ", row.name),
                    Environment | Inherited | Undone => {
                        format!("{}={value} (environment): ", row.environment)
                    }
                };
                let is_off = value.eq_ignore_ascii_case("off");
                // An empty variable is none, a default that is undone or decided already is not looked at.
                let looked_at = match way {
                    Flag | Script | Overruled => true,
                    Environment => !value.is_empty(),
                    Undone => false,
                    // What no job could have handed over leaves the default to count; the place is the job's.
                    // So is memory beyond that of the GPUs.
                    Inherited => {
                        let own = opt != Opt::Memory && Opt::LIMITS.contains(&opt);
                        value == bad && own
                    }
                };
                if looked_at && !is_off && value != good {
                    let why = settled.expect_err(&case);
                    assert!(why.starts_with(&named), "{case}");
                    let form = if is_switch {
                        "write on or off"
                    } else {
                        ", or off"
                    };
                    assert!(why.contains(form), "{case}");
                    let undoes = format!("; --{}=off undoes it for one job", row.name);
                    let told = way != Flag && way != Script && way != Overruled && !is_switch;
                    assert_eq!(why.ends_with(&undoes), told, "{case}");
                    continue;
                }
                let settled = settled.expect(&case);
                let given = settled.values[opt as usize].as_ref();
                let expected = match way {
                    Flag if is_switch || !is_off => Some(Source::Flag),
                    Script if is_switch || !is_off => Some(Source::Script),
                    Environment if !value.is_empty() && (is_switch || !is_off) => {
                        Some(Source::Environment)
                    }
                    Undone | Overruled if is_switch => Some(Source::Flag),
                    _ => None,
                };
                assert_eq!(given.map(|given| given.source), expected, "{case}");
                let undone = match way {
                    Flag | Script => is_off,
                    Undone | Overruled => true,
                    Environment | Inherited => false,
                };
                assert_eq!(settled.undone[opt as usize], undone && !is_switch, "{case}");
                // What is undone stays so in the steps.
                let handed = Handover::default().with(&settled, false);
                let decides = expected.is_some() || (undone && !is_switch);
                assert_eq!(
                    handed.decides(opt),
                    decides || !opt.is_for_steps(),
                    "{case}"
                );
            }
        }
    }
}

#[test]
fn a_silenced_default_stays_silent_in_the_steps_of_the_job() {
    let mut asked = GivenOptions::default();
    asked.note(Opt::Share, flag("timeslice"), None);
    let default = |opt| match opt {
        Opt::Mig => Some("1g.10gb".to_owned()),
        Opt::Power => Some("300W".to_owned()),
        Opt::Watch => Some("5".to_owned()),
        _ => None,
    };
    let settled = asked.finish(default).unwrap();
    let handed = Handover::default().with(&settled, false);
    let variables: Vec<_> = handed.variables().collect();
    let limits = "power=off watch=5 share=timeslice environment=watch";
    assert_eq!(
        variables,
        [
            ("GPUOS_JOB_LIMITS", Some(limits.into())),
            ("GPUOS_JOB_SHAPE", None),
            ("GPUOS_JOB_MIG", Some("off".into())),
            ("GPUOS_JOB_CHECKPOINT", None),
            ("GPUOS_JOB_SPARES", None),
        ]
    );
    // srun's own step tells by the variable that a job asked for slices; a step of a job leaves it as it is.
    let mut asked = GivenOptions::default();
    asked.note(Opt::Mig, flag("1g.10gb"), None);
    let own = Handover::default().with(&asked.finish(none).unwrap(), true);
    assert!(!own.decides(Opt::Mig));
    let job = Handover::read(|name| (name == "GPUOS_JOB_MIG").then(|| "1/2".to_owned()));
    asked.note(Opt::Mig, flag("off"), None);
    let step = job.clone().with(&asked.finish(none).unwrap(), true);
    assert_eq!(step, job);
}

#[test]
fn from_what_a_job_begins_is_said_with_its_checkpoints() {
    let settle = |given: &[(Opt, &str)], default: &str| {
        let mut asked = GivenOptions::default();
        for (opt, value) in given {
            asked.note(*opt, flag(value), None);
        }
        let of =
            |opt: Opt| (opt == Opt::Restart && !default.is_empty()).then(|| default.to_owned());
        let values = asked.finish(of).unwrap().with_restart().values;
        let text = |opt: Opt| {
            values[opt as usize]
                .as_ref()
                .map(|given| given.value.clone())
        };
        [text(Opt::Checkpoint), text(Opt::Restart)]
    };
    let some = |text: &str| Some(text.to_owned());
    let checkpoint = (Opt::Checkpoint, "10m,l2=partner");
    for (given, default, wanted) in [
        (&[checkpoint][..], "", [some("10m,l2=partner"), None]),
        (
            &[checkpoint, (Opt::Restart, "12/3")],
            "",
            [some("10m,l2=partner,restart=12/3"), some("12/3")],
        ),
        (
            &[checkpoint],
            "12",
            [some("10m,l2=partner,restart=12"), some("12")],
        ),
        (
            &[checkpoint, (Opt::Restart, "off")],
            "12",
            [some("10m,l2=partner"), None],
        ),
        // A flag alone is refused by the controller, a default is none of this job's.
        (&[(Opt::Restart, "12")], "", [None, some("12")]),
        (&[], "12", [None, None]),
    ] {
        assert_eq!(settle(given, default), wanted, "{given:?} {default}");
    }
}

#[test]
fn checkpoints_are_the_jobs_and_no_step_changes_them() {
    let handed = |handed: Handover, value: Option<&str>| {
        let mut asked = GivenOptions::default();
        if let Some(value) = value {
            asked.note(Opt::Checkpoint, flag(value), None);
        }
        let settled = asked.finish(none).unwrap();
        let mut variables = handed.with(&settled, true).variables();
        variables.find_map(|(name, value)| (name == "GPUOS_JOB_CHECKPOINT").then_some(value))
    };
    let some = |text: &str| Some(Some(text.to_owned()));
    // A command that makes a job.
    assert_eq!(handed(Handover::default(), Some("10m")), some("10m"));
    assert_eq!(handed(Handover::default(), None), Some(None));
    assert_eq!(handed(Handover::default(), Some("off")), Some(None));
    // A step of a job with checkpoints, and of one without.
    let with = || Handover::read(|name| (name == "GPUOS_JOB_CHECKPOINT").then(|| "1h".to_owned()));
    for value in [None, Some("10m"), Some("off")] {
        assert_eq!(handed(with(), value), some("1h"), "{value:?}");
    }
    let without = || Handover::read(|_| None);
    assert_eq!(handed(without(), None), Some(None));
    assert_eq!(handed(without(), Some("10m")), some("off"));
    assert!(with().decides(Opt::Checkpoint) && without().decides(Opt::Checkpoint));
}
