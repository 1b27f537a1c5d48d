use gpuos_placement::rules::Target;
use proptest::prelude::*;

use super::*;

#[test]
fn topology_forms() {
    let wish = parse_topology("Leaf:required").unwrap();
    assert_eq!((wish.level.as_str(), wish.required), ("leaf", true));
    assert!(!parse_topology("leaf").unwrap().required);
    assert!(!parse_topology("leaf:preferred").unwrap().required);
    assert_eq!(
        parse_topology("leef:need").unwrap_err().to_string(),
        "--gpuos-topology=leef:need: 'need' is not understood; \
         write LEVEL, LEVEL:required or LEVEL:preferred"
    );
    for bad in ["", ":required", "a b", "leaf:", "leaf:required:x", "lêaf"] {
        assert!(parse_topology(bad).is_err(), "{bad}");
    }
    assert!(parse_topology(&"x".repeat(65)).is_err());
}

#[test]
fn placement_forms() {
    assert_eq!(parse_placement("pack"), Ok(Placement::Pack));
    assert_eq!(parse_placement("Spread"), Ok(Placement::Spread));
    assert_eq!(parse_placement("best-fit"), Ok(Placement::BestFit));
    assert_eq!(parse_placement("backfill"), Ok(Placement::Backfill));
    assert_eq!(
        parse_placement("affinity:alice,123"),
        Ok(Placement::Affinity(vec!["alice".into(), "123".into()]))
    );
    assert_eq!(
        parse_placement("anti-affinity:bob"),
        Ok(Placement::AntiAffinity(vec!["bob".into()]))
    );
    for (bad, what) in [
        ("", "missing"),
        ("tight", "'tight' is not understood"),
        ("pack:x", "takes no names"),
        ("affinity", "name is missing"),
        ("affinity:a,,b", "name is missing"),
        ("affinity:a;b", "'a;b' is no job or user name"),
    ] {
        let error = parse_placement(bad).unwrap_err().to_string();
        assert!(error.contains(what), "{bad}: {error}");
        assert!(error.contains("--gpuos-placement") && error.contains("anti-affinity:NAME"));
    }
    let many = format!("affinity:{}", ["a"; 17].join(","));
    assert!(
        parse_placement(&many)
            .unwrap_err()
            .to_string()
            .contains("16")
    );
}

#[test]
fn options_about_other_jobs() {
    let near = parse_placement("affinity:class=io,leaf=l1,switch=s2,power=p,bob").unwrap();
    let Placement::Affinity(names) = near else {
        panic!("{near:?}");
    };
    let targets: Vec<Target> = names.iter().map(|name| Target::of(name)).collect();
    let domain = |level, name| Target::Domain { level, name };
    assert_eq!(
        targets,
        [
            Target::Class("io"),
            domain(Some("leaf"), "l1"),
            domain(None, "s2"),
            Target::Power("p"),
            Target::Job("bob")
        ]
    );
    for (bad, what) in [
        ("affinity:leaf=", "the name of a place is missing"),
        ("affinity:=l1", "the kind of place"),
        ("affinity:leaf=a=b", "'a=b' is no name of a place"),
    ] {
        let error = parse_placement(bad).unwrap_err().to_string();
        assert!(error.contains(what), "{bad}: {error}");
    }
    assert_eq!(parse_class("Noisy"), Ok("noisy".into()));
    assert_eq!(
        parse_class("a b").unwrap_err().to_string(),
        "--gpuos-class=a b: 'a b' is no class name (letters, digits and . _ - @ +); \
         write a name such as noisy or training"
    );
    assert_eq!(parse_exclusive("NVLink"), Ok("nvlink".into()));
    for bad in ["", "any", "leaf:required", &"x".repeat(2000)] {
        let error = parse_exclusive(bad).unwrap_err().to_string();
        assert!(error.ends_with("write node, nvlink or a level of the fabric such as leaf"));
    }
    assert!(is_exclusive(
        "_SLURM_SPANK_OPTION_gpuos_gpuos_exclusive=node"
    ));
    assert!(is_exclusive("_SLURM_SPANK_OPTION_gpuos_gpuos-exclusive="));
    for other in [
        "",
        "_SLURM_SPANK_OPTION_gpuos_gpuos_exclusive",
        "GPUOS_EXCLUSIVE=node",
    ] {
        assert!(!is_exclusive(other));
    }
}

#[test]
fn shape_and_profile_forms() {
    assert_eq!(parse_shape("TP8:pp4:dp16").unwrap().ranks(), 512);
    assert_eq!(
        parse_shape("tp8:tp4").unwrap_err().to_string(),
        "--gpuos-shape=tp8:tp4: tp stands there twice; write sizes of groups such as tp8:pp4:dp16, \
         of tp, cp, pp, dp and ep, each once, from 1 to 65536"
    );
    assert_eq!(parse_profile("IO"), Ok(Profile::Io));
    assert_eq!(
        parse_profile("disk").unwrap_err().to_string(),
        "--gpuos-profile=disk: 'disk' is not understood; write compute, memory, communication or io"
    );
    assert!(
        parse_profile("")
            .unwrap_err()
            .to_string()
            .contains("missing")
    );
}

#[test]
fn options_about_the_gpus_of_a_running_job() {
    assert_eq!(parse_power("300W"), Ok(PowerCap::Watts(300)));
    assert_eq!(parse_power("80%"), Ok(PowerCap::Percent(80)));
    let range = |least, most| Ok(ClockRange { least, most });
    assert_eq!(parse_clocks("1200"), range(1200, 1200));
    assert_eq!(parse_clocks("1200-1500"), range(1200, 1500));
    assert_eq!((parse_mps("on"), parse_mps("50%")), (Ok(100), Ok(50)));
    assert_eq!((parse_watch("on"), parse_watch("20")), (Ok(0), Ok(1200)));
    assert_eq!(
        parse_power("300").unwrap_err().to_string(),
        "--gpuos-power=300: '300' is not understood; write watts such as 300W, or a share of the GPU's \
         usual limit such as 80%"
    );
    for (name, bad) in [
        (
            "power",
            &["", "W", "0W", "-5W", "300 W", "101%", "9999999999W", "1e3W"][..],
        ),
        (
            "clocks",
            &[
                "",
                "0",
                "1500-1200",
                "1200-",
                "-1200",
                "99999",
                "1200-1300-1400",
            ],
        ),
        ("mps", &["", "none", "50", "0%", "101%", "%", "-5%", "50%%"]),
        ("watch", &["", "0", "none", "10081", "1.5", "+5"]),
        (
            "share",
            &[
                "",
                "on",
                "25%",
                "timeslice:",
                "timeslice:0",
                "timeslice:-1",
                "timeslice:25%",
                "timeslice:1025",
                "timeslice:1:1",
                "mps",
                "mps:",
                "mps:25",
                "mps:0%",
                "mps:101%",
                "mps:25%:1",
                "shard:1",
            ],
        ),
    ] {
        for value in bad {
            let error = JobOptions::default().set(&format!("gpuos-{name}"), value);
            let error = error.unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("--gpuos-{name}={value}: ")),
                "{error}"
            );
        }
    }
}

#[test]
fn steps_inherit_what_their_job_said_of_its_gpus() {
    for said in [
        "",
        "power=300W",
        "power=80% clocks=1200-1500 watch=20",
        "clocks=900 watch=on mps=on",
        "mps=50%",
        "watch=on share=mps:25%",
        "share=timeslice",
        "share=timeslice:3",
        "watch=on mem=120G,policy=lru",
    ] {
        let read = Inherited::parse(said);
        assert_eq!(read.to_string(), said);
        assert!(!read.undoes());
    }
    let odd = Inherited::parse("power=x clocks topology=leaf watch=5 = mig=1g.10gb watch=\n");
    assert_eq!(odd.to_string(), "watch=5");
    let undone = Inherited::parse("power=OFF watch=5 environment=watch,mig");
    assert_eq!(
        undone.to_string(),
        "power=off watch=5 environment=watch,mig"
    );
    let options = undone.options();
    assert!(undone.undoes() && options.power.is_none() && options.watch_s == Some(300));
    assert!(undone.has("gpuos-power") && !undone.has("gpuos-clocks"));
    assert_eq!(
        undone.reworded("--gpuos-watch=5: x; --gpuos-power=5 stays"),
        "GPUOS_WATCH=5 (environment): x; --gpuos-power=5 stays"
    );
}

#[test]
fn off_undoes_every_option_but_the_switch() {
    let good = [
        ("topology", "leaf:required"),
        ("placement", "pack"),
        ("shape", "tp2"),
        ("profile", "io"),
        ("class", "noisy"),
        ("exclusive", "node"),
        ("power", "300W"),
        ("clocks", "1200"),
        ("watch", "on"),
        ("mps", "50%"),
        ("mig", "1g.10gb"),
        ("share", "timeslice"),
        ("checkpoint", "10m,l2=partner"),
        ("restart", "1234/7"),
        ("spares", "2"),
        ("mem", "120G"),
    ];
    assert_eq!(
        good.len() + 1,
        OPTIONS.len(),
        "each option but the switch has a good value above: add that of a new one"
    );
    for (name, value) in good {
        let name = format!("gpuos-{name}");
        let mut options = JobOptions::default();
        options.set(&name, value).unwrap();
        assert!(!options.is_default(), "{name}");
        options.set(&name, "OFF").unwrap();
        assert!(options.is_default(), "{name}");
        let error = options.set(&name, "").unwrap_err().to_string();
        assert!(error.ends_with(", or off"), "{error}");
    }
    let mut options = JobOptions::default();
    options.set("gpuos", "off").unwrap();
    assert!(options.off);
}

#[test]
fn sources_are_words_and_no_more() {
    let mut sources = Sources::default();
    assert_eq!(sources.text(), "");
    sources.set("gpuos-watch", Source::Environment);
    sources.set("--gpuos", Source::Environment);
    sources.set("gpuos-mig", Source::Script);
    sources.set("gpuos-fan", Source::Script);
    assert_eq!(sources.text(), "environment=gpuos,watch script=mig");
    assert_eq!(Sources::parse(&sources.text()), sources);
    assert_eq!(sources.named("--gpuos", "on"), "GPUOS=on (environment)");
    assert_eq!(
        sources.named("--gpuos-mig", "1/2"),
        "#SBATCH --gpuos-mig=1/2"
    );
    assert_eq!(sources.named("--gpuos-power", "80%"), "--gpuos-power=80%");
    assert_eq!(sources.named("gres", "x"), "gres=x");
    let long = format!("environment=watch{}", ",watch".repeat(200));
    for odd in [
        "",
        "=",
        "environment",
        "environment=fan,gpuos-watch",
        "flag=watch",
        &long,
    ] {
        assert_eq!(Sources::parse(odd), Sources::default(), "{odd}");
    }
    let entries = ["GPUOS_SOURCES_=script=mps", "GPUOS_SOURCES=script=mig"];
    let read = Sources::from_spank_env(entries.into_iter());
    assert_eq!(read.of("--gpuos-mig"), Source::Script);
    assert_eq!(read.of("--gpuos-mps"), Source::Flag);
}

#[test]
fn shares_of_a_gpu() {
    let slices = |shards, mib, nvme| Ok(Share::TimeSlice { shards, mib, nvme });
    assert_eq!(parse_share("timeslice"), slices(1, None, false));
    assert_eq!(parse_share("TimeSlice:4"), slices(4, None, false));
    for (text, shards, mib, gib, written) in [
        ("timeslice,mem=60G", 1, 60 << 10, 0, "timeslice,mem=60G"),
        ("timeslice,mem=60GB", 1, 60 << 10, 0, "timeslice,mem=60G"),
        ("timeslice,mem=60GiB", 1, 60 << 10, 0, "timeslice,mem=60G"),
        ("Timeslice:2,MEM=512m", 2, 512, 0, "timeslice:2,mem=512M"),
        ("timeslice:1,mem=1024M", 1, 1 << 10, 0, "timeslice,mem=1G"),
        ("timeslice,mem=2M", 1, 2, 0, "timeslice,mem=2M"),
        ("timeslice,mem=16T", 1, 16 << 20, 0, "timeslice,mem=16T"),
        (
            "timeslice,mem=60G,park=host",
            1,
            60 << 10,
            0,
            "timeslice,mem=60G",
        ),
        (
            "Timeslice:2,Park=NVMe,mem=60G",
            2,
            60 << 10,
            60,
            "timeslice:2,mem=60G,park=nvme",
        ),
        (
            "timeslice,mem=1025M,park=nvme",
            1,
            1025,
            2,
            "timeslice,mem=1025M,park=nvme",
        ),
    ] {
        let share = parse_share(text);
        assert_eq!(share, slices(shards, Some(mib), gib > 0), "{text}");
        let share = share.unwrap();
        assert_eq!(share.to_string(), written);
        assert_eq!(share.nvme_gib(), gib);
    }
    assert_eq!(parse_share("mps:25%"), Ok(Share::Mps { percent: 25 }));
    assert_eq!(
        parse_share("mps").unwrap_err().to_string(),
        "--gpuos-share=mps: the share of the GPU is missing; write timeslice, timeslice:N with N of a GPU's \
         shards, either with its memory such as timeslice,mem=60G or timeslice,mem=60G,park=nvme, or mps:SHARE with a share of its \
         threads such as mps:25%"
    );
    for (value, reason) in [
        ("timeslice,", "a value is missing"),
        ("timeslice,mem", "'mem' is not understood"),
        ("timeslice,mem=", "a value is missing"),
        (
            "timeslice,mem=60",
            "'60' is not understood: the unit M, G or T is missing",
        ),
        ("timeslice,mem=1M", "memory of a GPU is 2M to 16T"),
        ("timeslice,mem=17T", "memory of a GPU is 2M to 16T"),
        ("timeslice,mem=-1G", "'-1g' is not understood"),
        (
            "timeslice,mem=50%",
            "'50%' is not understood: a size is no share, as GPUs of a cluster may differ",
        ),
        ("timeslice,mem=all", "'all' is not understood"),
        ("timeslice,mem=1G,mem=1G", "mem= stands there twice"),
        ("timeslice,tiers=hbm", "'tiers=hbm' is not understood"),
        ("mem=60G", "the way of sharing comes first"),
        ("mem=60G,timeslice", "the way of sharing comes first"),
        ("mps:25%,mem=60G", "mem= goes with timeslice alone"),
        (
            "timeslice,park=nvme",
            "park= goes with timeslice,mem=SIZE alone",
        ),
        (
            "mps:25%,park=nvme",
            "park= goes with timeslice,mem=SIZE alone",
        ),
        ("timeslice,mem=1G,park=", "a value is missing"),
        (
            "timeslice,mem=1G,park=tape",
            "'tape' is neither nvme nor host",
        ),
        (
            "timeslice,park=nvme,mem=1G,park=host",
            "park= stands there twice",
        ),
        ("park=nvme,timeslice", "the way of sharing comes first"),
    ] {
        let said = parse_share(value).unwrap_err().to_string();
        assert!(
            said.starts_with(&format!("--gpuos-share={value}: {reason}")),
            "{said}"
        );
    }
}

proptest! {
    #[test]
    fn what_anybody_writes_as_sources_is_read(text in ".{0,80}|(environment|script)=[a-z,]{0,20}") {
        let sources = Sources::parse(&text);
        prop_assert_eq!(Sources::parse(&sources.text()), sources);
        let inherited = Inherited::parse(&text);
        prop_assert_eq!(Inherited::parse(&inherited.to_string()), inherited);
    }

    #[test]
    fn a_share_is_read_as_it_is_written(
        shards in 1u16..=1024, mib in 2u32..=16 << 20, percent in 1u8..=100, text in ".{0,40}",
    ) {
        let slices = |mib, nvme| Share::TimeSlice { shards, mib, nvme };
        for share in [slices(None, false), slices(Some(mib), false), slices(Some(mib), true), Share::Mps { percent }] {
            prop_assert_eq!(parse_share(&share.to_string()), Ok(share));
        }
        let forms = [format!("timeslice:{text}"), format!("timeslice,mem={text}"), format!("mps:{text}%")];
        for text in forms.into_iter().chain([text]) {
            match parse_share(&text) {
                Ok(share) => prop_assert_eq!(parse_share(&share.to_string()), Ok(share)),
                Err(why) => prop_assert!(why.to_string().contains("; write timeslice, ")),
            }
        }
    }
}

#[test]
fn a_cap_is_moved_to_what_the_board_takes() {
    let board = [200_000, 700_000, 750_000];
    assert_eq!(PowerCap::Watts(300).on(board), (300_000, false));
    assert_eq!(PowerCap::Percent(80).on(board), (560_000, false));
    assert_eq!(PowerCap::Watts(100).on(board), (200_000, true));
    assert_eq!(PowerCap::Watts(u32::MAX).on(board), (750_000, true));
}

#[test]
fn reads_what_slurmctld_holds() {
    let entries = [
        "OTHER=x",
        "_SLURM_SPANK_OPTION_other_gpuos=rubbish",
        "_SLURM_SPANK_OPTION_gpuos_gpuos-topology=leaf:required",
        "_SLURM_SPANK_OPTION_gpuos_gpuos_placement=spread",
        "_SLURM_SPANK_OPTION_gpuos_gpuos=off",
        "_SLURM_SPANK_OPTION_gpuos_gpuos_mig=1G.10gb:2,3g.40gb:PER-TASK",
    ];
    let options = JobOptions::from_spank_env(entries.into_iter()).unwrap();
    assert!(options.off);
    assert_eq!(options.placement, Some(Placement::Spread));
    assert!(options.topology.unwrap().required);
    assert_eq!(
        options.mig.unwrap().to_string(),
        "1g.10gb:2,3g.40gb:per-task"
    );
    assert!(
        JobOptions::from_spank_env([].into_iter())
            .unwrap()
            .is_default()
    );

    let unknown = ["_SLURM_SPANK_OPTION_gpuos_gpuos-fan=3g"];
    let error = JobOptions::from_spank_env(unknown.into_iter()).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("--gpuos-fan=3g: gpuos on this cluster has no such option")
    );
}

#[test]
fn table_names_every_option_that_is_read() {
    for option in OPTIONS {
        let mut options = JobOptions::default();
        let error = options.set(option.name, "").unwrap_err();
        assert_eq!(error.option, format!("--{}", option.name));
        assert!(option.summary.len() <= 80, "{}", option.summary);
    }
}

fn gres(text: &str) -> String {
    let show = |r: &GresRequest| {
        let kind = r.gres_type.as_deref().unwrap_or("-");
        format!("{}/{kind}/{}", r.name, r.count)
    };
    match parse_gres("--gres", text) {
        Ok(list) => list.iter().map(show).collect::<Vec<_>>().join(" "),
        Err(error) => error.to_string(),
    }
}

#[test]
fn gres_forms_of_all_releases() {
    assert_eq!(gres("gres:gpu:h100:4"), "gpu/h100/4");
    assert_eq!(gres("gres/gpu:2"), "gpu/-/2");
    assert_eq!(gres("gres/gpu=2"), "gpu/-/2");
    assert_eq!(gres("gpu:h100=2"), "gpu/h100/2");
    assert_eq!(gres("gpu"), "gpu/-/1");
    assert_eq!(gres("gpu:h100"), "gpu/h100/1");
    assert_eq!(gres("gpu:2,gres:shard:1K,"), "gpu/-/2 shard/-/1024");
    assert_eq!(gres("license/x:1,gres/gpu:a:1"), "gpu/a/1");
    assert_eq!(gres("gpu:0,none"), "");
    assert_eq!(
        gres("gpu:h100:8(S:0-1),gpu:a:2(IDX:0,3)"),
        "gpu/h100/8 gpu/a/2"
    );
    assert_eq!(gres(""), "");
    for bad in [
        "gpu:",
        "gpu:h100:x",
        "gpu=x",
        ":2",
        "gpu:a b:2",
        "gpu:-1",
        "gpu(",
        "gpu)",
        "gpu:99999999999999999999",
        "gpu:9999999P",
    ] {
        assert!(gres(bad).contains("write"), "{bad}: {}", gres(bad));
    }
}

#[test]
fn gpu_counts_of_the_gpus_options() {
    let show = |text: &str| {
        let list = parse_gpus("--gpus", text).unwrap();
        list.iter()
            .map(|r| format!("{:?}:{}", r.gres_type, r.count))
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(show("4"), "None:4");
    assert_eq!(show("h100:4,a100"), "Some(\"h100\"):4 Some(\"a100\"):1");
    assert!(
        parse_gpus("--gpus", "h100:")
            .unwrap_err()
            .to_string()
            .starts_with("--gpus=h100:")
    );
}

proptest! {
    #[test]
    fn accepted_values_read_back(value in "\\PC{0,40}|[a-z-]{1,12}:[a-z,]{0,20}") {
        if let Ok(wish) = parse_topology(&value) {
            prop_assert_eq!(parse_topology(&wish.to_string()), Ok(wish));
        }
        if let Ok(rule) = parse_placement(&value) {
            prop_assert_eq!(parse_placement(&placement_text(&rule)), Ok(rule));
        }
        if let Ok(profile) = parse_profile(&value) {
            prop_assert_eq!(parse_profile(&profile.to_string()), Ok(profile));
        }
        if let Err(error) = parse_switch(&value) {
            prop_assert!(error.to_string().len() < 700);
        }
    }
}

#[test]
fn an_option_that_needs_it_has_a_job_reported_without_gpus() {
    let mut said = Inherited::default();
    said.record("gpuos-watch", "5", Source::Flag);
    // None of today's does.
    assert!(!said.needs_report(OPTIONS));
    let needing = |name: &str| {
        let need = |row: &OptionHelp| OptionHelp {
            without_gpus: row.name == name,
            ..*row
        };
        OPTIONS.iter().map(need).collect::<Vec<_>>()
    };
    assert!(said.needs_report(&needing("gpuos-watch")));
    assert!(!said.needs_report(&needing("gpuos-power")));
    said.record("gpuos-watch", "off", Source::Flag);
    assert!(!said.needs_report(&needing("gpuos-watch")));
}
