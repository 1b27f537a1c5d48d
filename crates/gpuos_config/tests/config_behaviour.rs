//! What gpuos.toml means, and what it says about mistakes.

use gpuos_config::gpuos_toml::{Config, LogLevel, NoteField};
use gpuos_model::cluster::{Cluster, Fabric, FabricLevel, Link, NO_DOMAIN};
use gpuos_model::node_types::NodeFacts;
use gpuos_placement::plan::Placement;

fn parse(text: &str) -> Config {
    Config::parse(text, "gpuos.toml").unwrap_or_else(|error| panic!("{error}"))
}

fn error(text: &str) -> String {
    let error = Config::parse(text, "gpuos.toml").unwrap_err();
    assert!(error.line >= 1 && error.column >= 1);
    error.to_string()
}

fn facts(name: &str, gpus: usize, gres_type: &str) -> NodeFacts {
    NodeFacts {
        name: name.into(),
        gpus,
        gres_type: gres_type.into(),
        sockets: 2,
        cores_per_socket: 32,
        ..NodeFacts::default()
    }
}

fn eight(names: &[&str]) -> Vec<NodeFacts> {
    names.iter().map(|name| facts(name, 8, "h100")).collect()
}

fn type_name(cluster: &Cluster, node: usize) -> &str {
    cluster.nodes[node]
        .node_type
        .as_ref()
        .map_or("-", |t| &t.name)
}

#[test]
fn values_are_read() {
    let config = parse(
        "[slurm]\nsteer = false\nnote = \"off\"\nlog = \"quiet\"\nattempts = 16\nrecords = 0\n\
         [policy]\nplacement = \"pack\"\ntopology = \"leaf\"\n",
    );
    assert!(!config.slurm.steer);
    assert_eq!(
        (config.slurm.note, config.slurm.log),
        (NoteField::Off, LogLevel::Quiet)
    );
    assert_eq!(config.slurm.attempts, 16);
    assert_eq!(config.slurm.records, 0);
    assert_eq!(config.policy.placement, Placement::Pack);
    assert_eq!(config.policy.topology.unwrap().level, "leaf");
}

#[test]
fn mistakes_have_a_place_and_an_accepted_form() {
    for (text, expected) in [
        (
            "[slurm]\nster = true\n",
            "2:1: there is no key `ster`; write one of `steer`, `note`",
        ),
        (
            "[slurms]\n",
            "1:2: there is no key `slurms`; write one of `slurm`, `policy`",
        ),
        (
            "[slurm]\nsteer = 1\n",
            "2:9: steer: integer `1` is not accepted; write true or false",
        ),
        (
            "[slurm]\nattempts = 17\n",
            "2:12: attempts = 17 is not accepted; write a whole number from 1 to 16",
        ),
        (
            "[slurm]\nattempts = \"x\"\n",
            "attempts: string \"x\" is not accepted; write a whole number",
        ),
        (
            "[slurm]\nlog = \"loud\"\n",
            "2:7: log = \"loud\" is not accepted; write \"decisions\" or \"quiet\"",
        ),
        (
            "slurm = 3\n",
            "slurm: integer `3` is not accepted; write [slurm]",
        ),
        ("[slurm\n", "1:7: unclosed table"),
        (
            "[slurm]\nsteer = true\nsteer = true\n",
            "3:1: duplicate key",
        ),
        (
            "[nodes]\nmatch = \"n1\"\n",
            "write the table in double brackets",
        ),
        (
            "[policy]\nplacement = \"affinity:x\"\n",
            "\"spread\" or \"first-fit\"",
        ),
        (
            "[policy]\nplacement = \"tight\"\n",
            "2:13: placement=tight: 'tight' is not understood",
        ),
        (
            "[policy]\ntopology = \"leaf:required\"\n",
            "only a job itself can require a level",
        ),
        (
            "[[nodes]]\nmatch = \"n1\"\ntype = \"dgx\"\n",
            "3:8: type = \"dgx\" is not accepted; write one of dgx-a100, dgx-h100",
        ),
        (
            "[[nodes]]\ntype = \"dgx-h100\"\n",
            "1:1: [[nodes]] has no match; add a line match",
        ),
        (
            "[[nodes]]\nmatch = \"n[1-\"\ntype = \"dgx-h100\"\n",
            "2:9: match: 'n[1-' is not a hostlist",
        ),
        (
            "[[nodes]]\nmatch = \"n1\"\ntype = \"dgx-h100\"\n\
          [[nodes]]\nmatch = \"n[1-2]\"\ntype = \"dgx-h200\"\n",
            "4:1: node n1 is in two [[nodes]]",
        ),
        (
            "[[node-type]]\nname = \"a b\"\ngpus = 1\n",
            "2:8: name = \"a b\" is not accepted",
        ),
        ("[[node-type]]\nname = \"a\"\n", "[[node-type]] has no gpus"),
        (
            "[[node-type]]\nname = \"a\"\ngpus = 65\n",
            "gpus = 65 is not accepted; write a whole number from 1 to 64",
        ),
        (
            "[[node-type]]\nname = \"a\"\ngpus = 2\n[[node-type]]\nname = \"a\"\ngpus = 2\n",
            "4:1: node type a is described twice",
        ),
        (
            "[[node-type]]\nname = \"a\"\nbase = \"b\"\n",
            "3:8: base = \"b\" is not accepted",
        ),
        (
            "[[node-type]]\nname = \"a\"\ngpus = 2\nnvswitch = true\n",
            "need nvlinks",
        ),
        (
            "[[node-type]]\nname = \"a\"\ngpus = 2\nnvlinks = 4\nnvlink-pairs = [[0, 2]]\n",
            "5:16: nvlink-pairs = ... 2 ... is not accepted; write GPU indices from 0 to 1",
        ),
        (
            "[[node-type]]\nname = \"a\"\ngpus = 2\nnvlinks = 4\nnvlink-pairs = [[0, 1, 1]]\n",
            "write pairs",
        ),
        (
            "[[node-type]]\nname = \"a\"\ngpus = 2\nlinks = [\"X NV4\"]\n",
            "links has 1 rows; write 2",
        ),
        (
            "[[node-type]]\nname = \"a\"\ngpus = 2\nlinks = [\"X NV4\", \"NV2 X\"]\n",
            "NV2 from GPU 1 to GPU 0 and NV4 back",
        ),
        (
            "[[node-type]]\nname = \"a\"\ngpus = 2\nlinks = [\"X FOO\", \"NV2 X\"]\n",
            "links, row 0, entry 1 = \"FOO\" is not accepted",
        ),
        (
            "[[node-type]]\nname = \"a\"\ngpus = 2\nnuma = [0]\n",
            "write 2 NUMA nodes",
        ),
        (
            "[[node-type]]\nname = \"a\"\ngpus = 2\npcie-gbps = -1\n",
            "a number from 0 to 100000",
        ),
        (
            "[[node-type]]\nname = \"a\"\ngpus = 2\npcie-gbps = nan\n",
            "a number from 0 to 100000",
        ),
        (
            "[[node-type]]\nname = \"a\"\ngpus = 1\n[[node-type.nic]]\nname = \"m\"\n",
            "has no gbps",
        ),
        (
            "[[fabric.level]]\nname = \"node\"\n",
            "other than node, any and off",
        ),
        (
            "[[fabric.level]]\nname = \"off\"\n",
            "2:8: name = \"off\" is not accepted",
        ),
        (
            "[[class]]\naccount = \"a\"\nname = \"off\"\n",
            "3:8: name = \"off\" is not accepted",
        ),
        (
            "[[fabric.level]]\nname = \"leaf\"\n[[fabric.level]]\nname = \"leaf\"\n",
            "4:8: level leaf is described twice",
        ),
        (
            "[[fabric.switch]]\nname = \"l1\"\nlevel = \"leaf\"\nnodes = \"n1\"\n",
            "3:9: level = \"leaf\" is not accepted; write a level, and describe it",
        ),
        (
            "[[fabric.level]]\nname = \"leaf\"\n[[fabric.switch]]\nname = \"l1\"\nlevel = \"leaf\"\n",
            "needs either nodes",
        ),
        (
            "[[fabric.level]]\nname = \"leaf\"\n\
          [[fabric.switch]]\nname = \"l1\"\nlevel = \"leaf\"\nnodes = \"n[1-2]\"\n\
          [[fabric.switch]]\nname = \"l2\"\nlevel = \"leaf\"\nnodes = \"n[2-3]\"\n",
            "7:1: node n2 is in switch l2 and in switch l1 of level leaf",
        ),
    ] {
        let error = error(text);
        assert!(error.starts_with("gpuos.toml:"), "{error}");
        assert!(
            error.contains(expected),
            "{text}\ngave: {error}\nnot: {expected}"
        );
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn columns_count_characters() {
    let error = Config::parse("# ä\n[slurm]\nlog = \"ä\" # ö\nx = 1\n", "f").unwrap_err();
    assert_eq!((error.line, error.column), (4, 1));
}

#[test]
fn derived_type_changes_only_what_it_says() {
    let config = parse(
        "[[node-type]]\nname = \"own\"\nbase = \"dgx-h200\"\nmemory-gib = 1024\n\
         [[node-type]]\nname = \"half\"\nbase = \"own\"\ngpus = 4\n\
         [[node-type]]\nname = \"paired\"\nbase = \"half\"\nnvlink-pairs = [[0, 1], [2, 3]]\n",
    );
    let own = config.node_type("own").unwrap();
    let h200 = gpuos_model::node_types::by_name("dgx-h200").unwrap();
    assert_eq!(
        (own.memory_mib, own.gpus, &own.nics),
        (1 << 20, 8, &h200.nics)
    );
    assert_eq!(
        (own.gpu.as_str(), own.links == h200.links),
        ("NVIDIA H200", true)
    );
    let half = config.node_type("half").unwrap();
    assert_eq!(
        (half.gpus, half.link(0, 3), half.nvswitch),
        (4, Link::Nv(18), true)
    );
    assert_eq!(
        (half.numa.as_slice(), half.nics.len()),
        (&[0, 0, 1, 1][..], 0)
    );
    let paired = config.node_type("paired").unwrap();
    assert_eq!(
        (paired.link(0, 1), paired.link(1, 2)),
        (Link::Nv(18), Link::Sys)
    );
    assert!(!paired.nvswitch);
}

#[test]
fn node_type_comes_from_rule_then_gres_type_then_facts() {
    let config = parse("[[nodes]]\nmatch = \"n2\"\ntype = \"dgx-h200\"\n");
    let mut nodes = eight(&["n1", "n2"]);
    nodes.push(facts("cpu", 0, ""));
    nodes.push(facts("odd", 6, "h100"));
    nodes.push(facts("many", 65, "h100"));
    let cluster = config.cluster(&nodes, None).unwrap();
    assert_eq!(type_name(&cluster, 0), "dgx-h100");
    assert_eq!(type_name(&cluster, 1), "dgx-h200");
    assert_eq!(type_name(&cluster, 2), "-");
    assert_eq!(type_name(&cluster, 3), "h100-x6");
    assert_eq!(type_name(&cluster, 4), "-");
    // An own type of that GRES type and size comes before the shipped one.
    let own = parse("[[node-type]]\nname = \"own\"\nbase = \"dgx-h100\"\n");
    assert_eq!(type_name(&own.cluster(&nodes, None).unwrap(), 0), "own");

    let error = config.cluster(&[facts("n2", 4, "h100")], None).unwrap_err();
    assert_eq!(
        error.to_string(),
        "gpuos.toml:2:9: node n2 has 4 GPUs, and node type dgx-h200 has 8; name a type \
         with 4 GPUs or leave the node out of match"
    );
}

#[test]
fn links_of_gres_conf_decide_about_bridges() {
    let config = Config::default();
    let pairs = vec![-1, 12, 0, 0, 12, -1, 0, 0, 0, 0, -1, 12, 0, 0, 12, -1];
    let all = vec![-1, 4, 4, 4, 4, -1, 4, 4, 4, 4, -1, 4, 4, 4, 4, -1];
    let node = |links: Option<Vec<i32>>| NodeFacts {
        links,
        gpu_sockets: Some(vec![0, 0, 1, 1]),
        ..facts("n1", 4, "a100")
    };
    let of = |links| {
        config.cluster(&[node(links)], None).unwrap().nodes[0]
            .node_type
            .clone()
            .unwrap()
    };
    assert_eq!(of(Some(pairs)).name, "a100-pairs-4");
    // Without Links= nobody knows whether the bridges are there.
    let bare = of(None);
    assert_eq!(
        (bare.name.as_str(), bare.link(0, 1), bare.link(1, 2)),
        ("a100-x4", Link::Node, Link::Sys)
    );
    let linked = of(Some(all));
    assert_eq!(
        (linked.link(0, 1), linked.link(0, 3)),
        (Link::Nv(4), Link::Nv(4))
    );
    assert_eq!(linked.nvlink_gbps, 20.0, "the rate of an A100");
    // A matrix of the wrong size tells nothing.
    assert_eq!(of(Some(vec![1; 9])).link(0, 1), Link::Node);
}

#[test]
fn long_gres_types_of_autodetect_are_understood() {
    let of = |gres_type: &str, gpus| {
        let cluster = Config::default()
            .cluster(&[facts("n1", gpus, gres_type)], None)
            .unwrap();
        type_name(&cluster, 0).to_string()
    };
    assert_eq!(of("nvidia_h100_80gb_hbm3", 8), "dgx-h100");
    assert_eq!(of("NVIDIA_A100-SXM4-80GB", 8), "dgx-a100");
    assert_eq!(of("nvidia_l40s", 8), "l40s-8");
    for other in [
        "nvidia_h100_pcie",
        "nvidia_h200_nvl",
        "a100_3g.20gb",
        "h1000",
        "gpu",
    ] {
        assert_eq!(of(other, 8), format!("{other}-x8"));
    }
}

#[test]
fn nvswitch_machines_show_no_links() {
    let mut node = facts("n1", 8, "H100");
    node.links = Some(vec![0; 64]);
    let cluster = Config::default().cluster(&[node], None).unwrap();
    assert_eq!(type_name(&cluster, 0), "dgx-h100");
}

#[test]
fn nodes_of_one_kind_share_their_type() {
    let cluster = Config::default()
        .cluster(&eight(&["a", "b"]), None)
        .unwrap();
    let [a, b] = [0, 1].map(|at: usize| cluster.nodes[at].node_type.clone().unwrap());
    assert!(std::sync::Arc::ptr_eq(&a, &b));
}

fn slurm_fabric() -> Fabric {
    let level = |name: &str, domains: &[&str], of: &[u32]| FabricLevel {
        name: name.into(),
        domains: domains.iter().map(|d| d.to_string()).collect(),
        domain_of: of.to_vec(),
        gbps: 0.0,
    };
    Fabric {
        levels: vec![
            level("leaf", &["l1", "l2"], &[0, 0, 1, 1]),
            level("spine", &["s"], &[0; 4]),
        ],
    }
}

const LEVELS: &str = "[[fabric.level]]\nname = \"nvlink\"\ngbps = 700\n\
                      [[fabric.level]]\nname = \"leaf\"\ngbps = 50\n\
                      [[fabric.switch]]\nname = \"r1\"\nlevel = \"nvlink\"\nnodes = \"n[1-2]\"\n";

#[test]
fn own_levels_join_those_of_slurm() {
    let nodes = eight(&["n1", "n2", "n3", "n4"]);
    let cluster = parse(LEVELS)
        .cluster(&nodes, Some(&slurm_fabric()))
        .unwrap();
    let show: Vec<(&str, f32)> = cluster
        .fabric
        .levels
        .iter()
        .map(|l| (l.name.as_str(), l.gbps))
        .collect();
    assert_eq!(show, [("nvlink", 700.0), ("leaf", 50.0), ("spine", 0.0)]);
    assert_eq!(
        cluster.fabric.levels[0].domain_of,
        [0, 0, NO_DOMAIN, NO_DOMAIN]
    );

    let none = parse(LEVELS).cluster(&nodes, None).unwrap_err().to_string();
    assert!(
        none.contains(":5:8: level leaf has no [[fabric.switch]]"),
        "{none}"
    );
    let only_slurm = Config::default()
        .cluster(&nodes, Some(&slurm_fabric()))
        .unwrap();
    assert_eq!(only_slurm.fabric, slurm_fabric());
}

#[test]
fn domains_must_lie_inside_each_other() {
    let crossing = LEVELS.replace("n[1-2]", "n[2-3]");
    let nodes = eight(&["n1", "n2", "n3", "n4"]);
    let error = parse(&crossing)
        .cluster(&nodes, Some(&slurm_fabric()))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("nodes n2 and n3 share r1 of level nvlink but no domain of"),
        "{error}"
    );
}

#[test]
fn switches_hold_switches() {
    let pods = "[[fabric.level]]\nname = \"leaf\"\n[[fabric.level]]\nname = \"pod\"\n\
                [[fabric.switch]]\nname = \"p\"\nlevel = \"pod\"\nswitches = [\"l[1-2]\"]\n";
    let nodes = eight(&["n1", "n2", "n3", "n4"]);
    let mut fabric = slurm_fabric();
    fabric.levels.truncate(1);
    let cluster = parse(pods).cluster(&nodes, Some(&fabric)).unwrap();
    assert_eq!(cluster.fabric.levels[1].domain_of, [0; 4]);
    let wrong = pods.replace("l[1-2]", "l3");
    let error = parse(&wrong)
        .cluster(&nodes, Some(&fabric))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("switch p has no switch l3 below it"),
        "{error}"
    );
}

#[test]
fn unknown_nodes_are_told_and_do_no_harm() {
    let config = parse(LEVELS);
    let nodes = eight(&["n1", "n3", "n4", "n5"]);
    let warnings = config.unknown_nodes(&["n1", "n3", "n4", "n5"]);
    assert_eq!(warnings.len(), 1);
    assert!(
        warnings[0]
            .to_string()
            .contains(":8:8: node n2 is not in slurm.conf"),
        "{}",
        warnings[0]
    );
    assert!(config.cluster(&nodes, Some(&slurm_fabric())).is_ok());
}

#[test]
fn objectives_hold_by_partition_and_qos() {
    use gpuos_placement::cost::Objective;
    let text = "[policy]\nobjectives = { throughput = 70, energy = 30 }\n\
                [[policy.rule]]\npartition = \"batch\"\nqos = \"green\"\nobjectives = { energy = 100 }\n\
                [[policy.rule]]\npartition = \"batch\"\nplacement = \"pack\"\nobjectives = { cost = 100 }\n";
    let policy = Config::parse(text, "gpuos.toml").unwrap().policy;
    let weight = |partition: &str, qos: &str, of| {
        policy
            .objectives_for(partition, qos)
            .map(|all| all.weight(of))
    };
    assert_eq!(weight("other", "green", Objective::Energy), Some(30));
    assert_eq!(weight("batch", "green", Objective::Energy), Some(100));
    assert_eq!(weight("batch", "normal", Objective::Cost), Some(100));
    // Nothing said: no node type is preferred.
    assert_eq!(Config::default().policy.objectives_for("batch", ""), None);
    assert_eq!(*policy.placement_for("batch", "green"), Placement::Pack);
    assert_eq!(*policy.placement_for("x", ""), Placement::Default);
    assert_eq!(policy.topology_for("batch", "green"), None);
}

#[test]
fn whether_anything_is_weighed_is_known_of_all_jobs_at_once() {
    for (text, weighs) in [
        ("", false),
        (
            "[policy]\nplacement = \"pack\"\n[[policy.rule]]\nqos = \"low\"\nplacement = \"spread\"\n",
            false,
        ),
        ("[policy]\nobjectives = { cost = 100 }\n", true),
        (
            "[[policy.rule]]\nqos = \"low\"\nobjectives = { cost = 100 }\n",
            true,
        ),
    ] {
        let policy = Config::parse(text, "gpuos.toml").unwrap().policy;
        assert_eq!(policy.weighs(), weighs, "{text}");
    }
}

#[test]
fn contradictory_weights_are_told_with_their_line() {
    let rule = "[[policy.rule]]\npartition = \"a\"\n";
    for (text, line, what) in [
        (
            "[policy]\nobjectives = { throughput = 80, cost = 40 }".into(),
            2,
            "throughput 80, cost 40 make 120",
        ),
        ("[policy]\nobjectives = {}".into(), 2, "nothing make 0"),
        (
            "[policy]\nobjectives = { energy = 150, cost = -50 }".into(),
            2,
            "energy 150, cost -50 make 100",
        ),
        (
            "[policy]\nobjectives = { speed = 100 }".into(),
            2,
            "there is no key `speed`",
        ),
        (
            format!("{rule}{rule}"),
            3,
            "another [[policy.rule]] is for the same jobs",
        ),
        (
            "[[policy.rule]]\nplacement = \"pack\"".into(),
            1,
            "is for all jobs",
        ),
        (
            format!("{rule}topology = \"leaf:required\""),
            3,
            "only a job itself can require",
        ),
        (
            format!("{rule}objectives = {{ cost = 99 }}"),
            3,
            "cost 99 make 99",
        ),
    ] {
        let error = Config::parse(&text, "gpuos.toml").expect_err(&text);
        assert!(error.message.contains(what), "{text}\n{error}");
        assert_eq!(error.line, line, "{text}\n{error}");
    }
}
