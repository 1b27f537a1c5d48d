use gpuos_config::gpuos_toml::Config;
use gpuos_model::cluster::{Fabric, FabricLevel};
use gpuos_model::node_types::NodeFacts;

use super::*;

fn said(list: &[(&str, &str)]) -> JobOptions {
    let mut options = JobOptions::default();
    for (name, value) in list {
        options.set(&format!("gpuos-{name}"), value).unwrap();
    }
    options
}

fn per_node(gres: &str) -> Shape {
    Shape {
        per_node: Some(gres.into()),
        ..Shape::default()
    }
}

#[test]
fn what_is_about_gpus_is_ignored_without_them() {
    let all = [
        ("topology", "leaf"),
        ("placement", "pack"),
        ("shape", "tp2"),
        ("profile", "io"),
        ("exclusive", "node"),
        ("power", "300W"),
        ("clocks", "1200"),
        ("watch", "5"),
        ("mps", "50%"),
        ("class", "noisy"),
    ];
    let (plain, none) = (Shape::default(), Sources::default());
    let environment = Sources::parse("environment=topology,shape,watch,class");
    for one in all {
        let options = said(&[one]);
        let name = format!("gpuos-{}", one.0);
        let expected = match one.0 {
            "class" => Vec::new(),
            _ => vec![format!(
                "gpuos: --{name}={} is ignored: the job asks for no GPUs; write --gpus=N with them",
                one.1
            )],
        };
        assert_eq!(of_job(&options, &none, &plain), expected);
        for gres in [
            "gres/gpu:1",
            "gres:gpu:h100:2",
            "gres/nic:1,gpu",
            "gres/shard:1",
            "gres/gpu:x:y:",
        ] {
            assert_eq!(
                of_job(&options, &none, &per_node(gres)),
                [""; 0],
                "{one:?} {gres}"
            );
        }
        let whole = Shape {
            exclusive: true,
            ..Shape::default()
        };
        assert_eq!(of_job(&options, &none, &whole), [""; 0]);
        // A default is silent, and says nothing to the checks either.
        let mut quiet = options.clone();
        silence(&mut quiet, &environment, &plain);
        let is_default = environment.of(&name) == Source::Environment;
        assert_eq!(
            quiet.is_default(),
            is_default && one.0 != "class",
            "{one:?}"
        );
        if is_default {
            assert_eq!(of_job(&options, &environment, &plain), [""; 0]);
        }
        silence(&mut options.clone(), &none, &plain);
        let mut kept = options.clone();
        silence(&mut kept, &environment, &per_node("gres/gpu:1"));
        assert_eq!(kept, options);
    }
    let several = said(&all);
    let script = Sources::parse("script=power environment=watch,topology");
    assert_eq!(
        of_job(&several, &script, &plain),
        [
            "gpuos: --gpuos-placement=pack, --gpuos-shape=tp2, --gpuos-profile=io, --gpuos-exclusive=node, #SBATCH \
          --gpuos-power=300W, --gpuos-clocks=1200, --gpuos-mps=50% are ignored: the job asks for no GPUs; write \
          --gpus=N with them"
        ]
    );
    let slices = said(&[
        ("mig", "1/2"),
        ("power", "300W"),
        ("topology", "leaf"),
        ("watch", "on"),
    ]);
    assert_eq!(
        of_job(&slices, &none, &plain),
        [
            "gpuos: --gpuos-power=300W, --gpuos-watch=on are ignored: the job has slices, and they are about whole GPUs"
        ]
    );
}

#[test]
fn slices_that_a_process_does_not_use_are_named() {
    let none = Sources::default();
    let tasks = |tasks, nodes| Shape {
        tasks,
        min_nodes: nodes,
        max_nodes: nodes,
        ..Shape::default()
    };
    let note = |request: &str, shape: &Shape| {
        let notes = of_job(&said(&[("mig", request)]), &none, shape);
        assert!(notes.len() <= 1, "{notes:?}");
        notes.into_iter().next().map_or(String::new(), String::from)
    };
    let plain = Shape::default();
    assert_eq!(
        note("1g.10gb:3", &plain),
        "gpuos: --gpuos-mig=1g.10gb:3: a CUDA process uses one slice only, and the one task of a node has 3; write \
         --gpuos-mig=1g.10gb:per-task with --ntasks-per-node=3 for a slice each"
    );
    assert!(note("10G:2", &tasks(2, 2)).ends_with(", or more memory in one slice"));
    let each = note("1/2:2:per-task", &tasks(3, 1));
    assert!(
        each.contains("each task has 2; write --gpuos-mig=1/2:per-task with --ntasks-per-node=6"),
        "{each}"
    );
    assert!(note("1g.10gb:2,3g.40gb", &plain).contains("start a process for each"));
    for (fine, shape) in [
        ("1g.10gb", &plain),
        ("1g.10gb:per-task", &tasks(3, 1)),
        ("1g.10gb:3", &tasks(3, 1)),
        // How many tasks a node gets is open.
        ("1g.10gb:3", &tasks(3, 0)),
    ] {
        assert_eq!(note(fine, shape), "", "{fine}");
    }
    let both = note("1g.10gb", &per_node("gres/gpu:1"));
    assert!(
        both.starts_with("gpuos: --gpuos-mig=1g.10gb: beside whole GPUs, programs see these"),
        "{both}"
    );
}

/// Two nodes with GPUs in leaf l0, one without in leaf l1 and in rack r0.
fn cluster() -> Cluster {
    let node = |at: usize| NodeFacts {
        name: format!("n{at}"),
        gpus: if at < 2 { 4 } else { 0 },
        gres_type: String::new(),
        sockets: 1,
        cores_per_socket: 8,
        links: None,
        gpu_sockets: None,
    };
    let nodes: Vec<NodeFacts> = (0..3).map(node).collect();
    let level = |name: &str, domains: &[&str], domain_of: Vec<u32>| FabricLevel {
        name: name.into(),
        domains: domains.iter().map(|one| (*one).into()).collect(),
        domain_of,
        gbps: 0.0,
    };
    let fabric = Fabric {
        levels: vec![
            level("leaf", &["l0", "l1"], vec![0, 0, 1]),
            level("rack", &["r0"], vec![NO_DOMAIN, NO_DOMAIN, 0]),
        ],
    };
    Config::default().cluster(&nodes, Some(&fabric)).unwrap()
}

#[test]
fn a_level_without_gpus_is_named() {
    let none = Sources::default();
    let notes =
        |list: &[(&str, &str)], sources: &Sources| of_levels(&said(list), sources, &cluster());
    assert_eq!(
        notes(&[("topology", "rack"), ("exclusive", "rack")], &none),
        [
            "gpuos: --gpuos-topology=rack is ignored: no domain of the level rack has GPUs",
            "gpuos: --gpuos-exclusive=rack means nodes: no domain of the level rack has GPUs",
        ]
    );
    let quiet = Sources::parse("environment=topology");
    assert_eq!(notes(&[("topology", "rack")], &quiet), [""; 0]);
    for level in ["leaf", "node", "nvlink", "any"] {
        assert_eq!(notes(&[("topology", level)], &none), [""; 0], "{level}");
    }
}

#[test]
fn names_that_nobody_has_are_named() {
    let cluster = cluster();
    let classes = "[[class]]\nname = \"io\"\n";
    let notes = |toml: &str, rule: &str, sources: &Sources, has: Option<&str>| {
        let config = Config::parse(toml, "gpuos.toml").unwrap();
        let unnamed = |targets: &[Target<'_>]| {
            let is = |target: &Target| match target {
                Target::Job(name) | Target::Class(name) => Some(*name) != has,
                _ => panic!("{target:?}"),
            };
            has.map(|_| targets.iter().map(is).collect())
        };
        let options = said(&[("placement", rule)]);
        of_neighbours(&options, sources, (config.rules(), &cluster), &unnamed).join("|")
    };
    let none = Sources::default();
    let script = Sources::parse("script=placement");
    let said = notes(
        "",
        "affinity:bob,ann,leaf=l9,class=io",
        &script,
        Some("ann"),
    );
    assert_eq!(
        said,
        "gpuos: #SBATCH --gpuos-placement=affinity:bob,ann,leaf=l9,class=io: no leaf is called l9, no job that runs or \
         waits has the name, number or user bob (by number, where Slurm's records have no name of a user), no job that runs \
         or waits is of class io; until one does, this says nothing"
    );
    let said = notes(classes, "anti-affinity:class=x", &none, None);
    assert!(said.contains("gpuos.toml describes no class x;"), "{said}");
    for (toml, rule, has) in [
        ("", "affinity:ann", Some("ann")),
        // Where it cannot be said nothing is.
        ("", "affinity:ann,class=io", None),
        (classes, "affinity:class=io", Some("")),
        (
            "",
            "affinity:leaf=l1,switch=r0,switch=n2,node=n0,rack=r0,pod=l0",
            Some(""),
        ),
    ] {
        assert_eq!(notes(toml, rule, &none, has), "", "{rule}");
    }
    let quiet = Sources::parse("environment=placement");
    assert_eq!(notes("", "affinity:leaf=l9,bob", &quiet, Some("")), "");
}
