//! Fabrics of every kind from gpuos.toml: routes, rates, contention, and the levels for plans.

use gpuos_config::gpuos_toml::Config;
use gpuos_model::cluster::{Cluster, NO_DOMAIN};
use gpuos_model::gpuset::GpuSet;
use gpuos_model::node_types::NodeFacts;
use gpuos_placement::fabric::{Net, Promises, Scratch, UNBOUNDED};

/// Nodes `n1` to `n…` with eight H100 and eight adapters of 50 GB/s.
fn facts(count: usize) -> Vec<NodeFacts> {
    let node = |at: usize| NodeFacts {
        name: format!("n{at}"),
        gpus: 8,
        gres_type: "h100".into(),
        sockets: 2,
        cores_per_socket: 56,
        ..NodeFacts::default()
    };
    (1..=count).map(node).collect()
}

/// Names of the levels, narrowest first.
fn levels(cluster: &Cluster) -> Vec<&str> {
    let levels = cluster.fabric.levels.iter();
    levels.map(|level| level.name.as_str()).collect()
}

fn site(text: &str, nodes: usize) -> (Cluster, Net) {
    let config = Config::parse(text, "gpuos.toml").unwrap_or_else(|error| panic!("{error}"));
    let cluster = config.cluster(&facts(nodes), None);
    let cluster = cluster.unwrap_or_else(|error| panic!("{error}"));
    let net = config
        .net(&cluster)
        .unwrap_or_else(|error| panic!("{error}"));
    (cluster, net)
}

fn all(nodes: &[u32]) -> Vec<(u32, GpuSet)> {
    nodes.iter().map(|&node| (node, GpuSet::first(8))).collect()
}

fn free_rate(net: &Net, nodes: &[u32]) -> u32 {
    net.bandwidth(&Promises::new(net), &mut Scratch::new(net), &all(nodes))
}

/// Level names, and the domain name of a node at each.
fn place(cluster: &Cluster, node: usize) -> Vec<String> {
    let levels = cluster.fabric.levels.iter();
    let name = |level: &gpuos_model::cluster::FabricLevel| match level.domain_of[node] {
        NO_DOMAIN => format!("{}:-", level.name),
        domain => format!("{}:{}", level.name, level.domains[domain as usize]),
    };
    levels.map(name).collect()
}

fn nested(cluster: &Cluster) {
    for pair in cluster.fabric.levels.windows(2) {
        for a in 0..cluster.nodes.len() {
            for b in 0..a {
                let inner = pair[0].domain_of[a];
                if inner != NO_DOMAIN && inner == pair[0].domain_of[b] {
                    assert_eq!(pair[1].domain_of[a], pair[1].domain_of[b]);
                }
            }
        }
    }
}

/// Links between the first ports of two nodes, the nodes' own two left out.
fn hops(net: &Net, a: u32, b: u32) -> usize {
    net.path((a, 0), (b, 0)).len() - 2
}

const FAT_TREE: &str = "[[fabric.net]]\nname = \"ib\"\nkind = \"fat-tree\"\nnodes = \"n[1-16]\"\n\
     nodes-per-switch = 4\nfanout = [2, 2]\noversubscription = [2, 1]\n";

#[test]
fn fat_tree() {
    let (cluster, net) = site(FAT_TREE, 16);
    nested(&cluster);
    assert_eq!(
        place(&cluster, 5),
        ["leaf:leaf2", "spine:spine1", "core:core1"]
    );
    assert_eq!(
        (hops(&net, 0, 3), hops(&net, 0, 4), hops(&net, 0, 12)),
        (0, 2, 4)
    );
    // Eight adapters of 50 GB/s: 400 GB/s in a leaf; the leaf's uplink is 4 nodes x 400 / 2, and
    // one gang that crosses it once in each direction is not slowed.
    assert_eq!(free_rate(&net, &[0, 1, 2, 3]), 40_000);
    assert_eq!(free_rate(&net, &[0, 1, 4, 5]), 40_000);
    assert_eq!(free_rate(&net, &[0]), UNBOUNDED);
    // A gang of half the GPUs uses half the adapters.
    let half: Vec<_> = [0, 1].map(|n| (n, GpuSet(0b1111_0000))).to_vec();
    let rate = net.bandwidth(&Promises::new(&net), &mut Scratch::new(&net), &half);
    assert_eq!(rate, 20_000);
}

#[test]
fn promised_bandwidth_counts_on_shared_uplinks_and_comes_back() {
    let (_, net) = site(FAT_TREE, 16);
    let (mut promises, mut scratch) = (Promises::new(&net), Scratch::new(&net));
    // Each leaf has 800 GB/s upwards. Two gangs across leaves 1 and 2 fill it, a third shares.
    let gangs = [all(&[0, 4]), all(&[1, 5]), all(&[2, 6])];
    let mut kept = Vec::new();
    let mut rates = Vec::new();
    for gang in &gangs {
        rates.push(net.bandwidth(&promises, &mut scratch, gang));
        kept.push(promises.add(&net, &mut scratch, gang, 1000));
    }
    assert_eq!(rates[..2], [40_000, 40_000]);
    // Nothing is left: a fair share of 24 rings, eight of them its own (33.33 GB/s each).
    assert_eq!(rates[2], 8 * (80_000 / 24));
    assert!(
        net.link_name(scratch.narrowest().unwrap())
            .starts_with("leaf")
    );
    // Inside leaf 1 nobody else is.
    assert_eq!(
        net.bandwidth(&promises, &mut scratch, &all(&[0, 3])),
        40_000 / 2
    );
    assert_eq!(
        net.bandwidth(&promises, &mut scratch, &all(&[3, 7])),
        8 * (80_000 / 32)
    );
    // The end of one gang frees its links.
    promises.remove(&net, &mut scratch, &gangs[0], kept[0]);
    assert_eq!(
        net.bandwidth(&promises, &mut scratch, &all(&[0, 3])),
        40_000
    );
    promises.remove(&net, &mut scratch, &gangs[2], kept[2]);
    promises.remove(&net, &mut scratch, &gangs[1], kept[1]);
    assert!(promises.is_empty());
    // A gang that communicates little is promised little.
    promises.add(&net, &mut scratch, &gangs[0], 100);
    assert_eq!(
        net.bandwidth(&promises, &mut scratch, &all(&[1, 5])),
        40_000
    );
}

#[test]
fn rails_have_leaves_of_their_own() {
    let text = "[[fabric.net]]\nname = \"ib\"\nkind = \"rail\"\nnodes = \"n[1-8]\"\n\
         nodes-per-switch = 4\nfanout = [2]\nuplinks = [1]\nswitch-gbps = 50\n";
    let (cluster, net) = site(text, 8);
    nested(&cluster);
    // The same GPUs on each node stay on their rail's leaf; others go through the spine.
    let gang = |a: u64, b: u64| {
        let nodes = [(0, GpuSet(a)), (1, GpuSet(b))];
        net.bandwidth(&Promises::new(&net), &mut Scratch::new(&net), &nodes)
    };
    assert_eq!(gang(0b0011, 0b0011), 10_000);
    assert_eq!(net.path((0, 3), (1, 3)).len(), 2);
    assert_eq!(net.path((0, 3), (1, 4)).len(), 4);
    // One uplink of 50 GB/s for each leaf carries one ring each way.
    assert_eq!(gang(0b0011, 0b1100), 10_000);
    assert_eq!(gang(0b0111, 0b1110), 15_000);
    // Across pods each rail has its own uplink.
    assert_eq!(free_rate(&net, &[0, 4]), 40_000);
    assert_eq!(free_rate(&net, &[0, 1, 4, 5]), 40_000);
}

#[test]
fn torus_and_boxes() {
    let text = "[[fabric.net]]\nname = \"t\"\nkind = \"torus\"\nnodes = \"n[1-64]\"\n\
         size = [4, 4, 4]\nswitch-gbps = 100\n";
    let (cluster, net) = site(text, 64);
    nested(&cluster);
    assert_eq!(place(&cluster, 63), ["block2:t-block2-1.1.1"]);
    // Wrapped round: 3 is next to 0, 2 is two away; coordinates add up.
    assert_eq!([1, 2, 3].map(|b| hops(&net, 0, b)), [1, 2, 1]);
    assert_eq!(hops(&net, 0, 2 + 2 * 4 + 2 * 16), 6);
    // Eight rings over one link of 100 GB/s.
    assert_eq!(free_rate(&net, &[0, 1]), 8 * (10_000 / 8));
}

#[test]
fn hypercube() {
    let text = "[[fabric.net]]\nname = \"h\"\nkind = \"hypercube\"\nnodes = \"n[1-16]\"\n\
         dimensions = 4\nswitch-gbps = 100\n";
    let (cluster, net) = site(text, 16);
    nested(&cluster);
    for a in 0..16u32 {
        for b in 0..16u32 {
            if a != b {
                assert_eq!(hops(&net, a, b), (a ^ b).count_ones() as usize);
            }
        }
    }
    assert_eq!(levels(&cluster), ["cube1", "cube2", "cube3"]);
}

#[test]
fn dragonfly() {
    let text = "[[fabric.net]]\nname = \"d\"\nkind = \"dragonfly\"\nnodes = \"n[1-24]\"\n\
         groups = 3\nswitches-per-group = 4\nnodes-per-switch = 2\nswitch-gbps = 400\n\
         global-links = 2\nglobal-gbps = 100\n";
    let (cluster, net) = site(text, 24);
    nested(&cluster);
    assert_eq!(place(&cluster, 23), ["leaf:d-g3-s4", "group:d-g3"]);
    assert_eq!((hops(&net, 0, 1), hops(&net, 0, 7)), (0, 1));
    for (a, b) in [(0, 8), (3, 22), (9, 16), (16, 9)] {
        assert!((1..=3).contains(&hops(&net, a, b)), "{a} {b}");
    }
    // Between groups: eight rings over two links of 100 GB/s.
    assert_eq!(free_rate(&net, &[0, 1]), 40_000);
    assert_eq!(free_rate(&net, &[0, 8]), 20_000);
}

const GRAPH: &str = "[[fabric.net]]\nname = \"g\"\nkind = \"graph\"\n\
     [[fabric.net.switch]]\nname = \"a\"\nnodes = \"n[1-2]\"\n\
     [[fabric.net.switch]]\nname = \"b\"\nnodes = \"n[3-4]\"\n\
     [[fabric.net.switch]]\nname = \"c\"\nnodes = \"n[5-6]\"\n\
     [[fabric.net.switch]]\nname = \"d\"\nnodes = \"n[7-8]\"\n\
     [[fabric.net.switch]]\nname = \"middle\"\n\
     [[fabric.net.link]]\nbetween = [\"a\", \"b\"]\ngbps = 400\n\
     [[fabric.net.link]]\nbetween = [\"c\", \"d\"]\ngbps = 100\nlinks = 4\n\
     [[fabric.net.link]]\nbetween = [\"b\", \"middle\"]\ngbps = 100\n\
     [[fabric.net.link]]\nbetween = [\"middle\", \"c\"]\ngbps = 100\n";

#[test]
fn graph() {
    let (cluster, net) = site(GRAPH, 8);
    nested(&cluster);
    assert_eq!(place(&cluster, 0), ["leaf:a", "near1:near1-a"]);
    assert_eq!(place(&cluster, 7), ["leaf:d", "near1:near1-c"]);
    assert_eq!((hops(&net, 0, 2), hops(&net, 0, 7)), (1, 4));
    assert_eq!(free_rate(&net, &[0, 2]), 40_000);
    assert_eq!(free_rate(&net, &[0, 7]), 8 * (10_000 / 8));
    // Contention: near nodes by a link that is taken are worse than far ones that are not.
    let (mut promises, mut scratch) = (Promises::new(&net), Scratch::new(&net));
    for _ in 0..3 {
        promises.add(&net, &mut scratch, &all(&[0, 2]), 1000);
    }
    let mut beside = |nodes| net.bandwidth(&promises, &mut scratch, &all(nodes));
    assert_eq!(beside(&[5, 7]), 40_000);
    assert!(beside(&[1, 3]) < 40_000);
}

#[test]
fn nvlink_domains_lie_over_other_nets() {
    let text = format!(
        "{FAT_TREE}[[fabric.net]]\nname = \"rack\"\nkind = \"nvlink\"\nnodes = \"n[1-16]\"\n\
         nodes-per-switch = 2\nnode-gbps = 700\n"
    );
    let (cluster, net) = site(&text, 16);
    nested(&cluster);
    assert_eq!(place(&cluster, 3)[..2], ["nvlink:rack-2", "leaf:leaf1"]);
    // Inside a domain NVLink alone; between domains the adapters of both nodes, up to NVLink.
    assert_eq!(free_rate(&net, &[0, 1]), 70_000);
    assert_eq!(free_rate(&net, &[0, 1, 2, 3]), 70_000);
    assert_eq!(free_rate(&net, &[0, 2]), 40_000);
    assert_eq!(free_rate(&net, &[0, 1, 2]), 40_000);
}

#[test]
fn islands_of_different_kinds() {
    let text = "[[fabric.net]]\nname = \"old\"\nkind = \"torus\"\nnodes = \"n[1-16]\"\n\
         size = [4, 4]\nswitch-gbps = 50\nborder-gbps = 25\n\
         [[fabric.net]]\nname = \"new\"\nkind = \"fat-tree\"\nnodes = \"n[17-24]\"\n\
         nodes-per-switch = 4\n";
    let (cluster, net) = site(text, 26);
    nested(&cluster);
    assert_eq!(levels(&cluster), ["leaf", "block2", "island"]);
    assert_eq!(
        place(&cluster, 23),
        ["leaf:new-leaf2", "block2:new-leaf2", "island:new"]
    );
    assert_eq!(
        place(&cluster, 0),
        ["leaf:-", "block2:old-block2-0.0", "island:old"]
    );
    // A node that no net has is reached by its adapters alone.
    assert_eq!(place(&cluster, 25), ["leaf:-", "block2:-", "island:-"]);
    assert_eq!(free_rate(&net, &[24, 25]), 40_000);
    // All rings go over the border of the torus.
    assert_eq!(free_rate(&net, &[0, 20]), 8 * (2_500 / 8));
}

#[test]
fn levels_and_switches_are_a_tree_with_rates_too() {
    let text = "[[fabric.level]]\nname = \"leaf\"\nuplinks = 2\nuplink-gbps = 50\n\
         [[fabric.switch]]\nname = \"l1\"\nlevel = \"leaf\"\nnodes = \"n[1-2]\"\n\
         [[fabric.switch]]\nname = \"l2\"\nlevel = \"leaf\"\nnodes = \"n[3-4]\"\n";
    let (_, net) = site(text, 4);
    assert_eq!(free_rate(&net, &[0, 1]), 40_000);
    assert_eq!(free_rate(&net, &[0, 2]), 10_000);
    let rails = text.replacen("uplinks = 2", "rails = true\nuplinks = 2", 1);
    let (_, net) = site(&rails, 4);
    assert_eq!(
        free_rate(&net, &[0, 2]),
        40_000,
        "each rail has a leaf and its uplinks"
    );
}

#[test]
fn nodes_missing_on_either_side_do_no_harm() {
    let config = Config::parse(FAT_TREE, "gpuos.toml").unwrap();
    // n1 to n3 and n20 are there; the net says n1 to n16.
    let mut nodes = facts(3);
    nodes.push(NodeFacts {
        name: "n20".into(),
        ..nodes[0].clone()
    });
    let cluster = config.cluster(&nodes, None).unwrap();
    let net = config.net(&cluster).unwrap();
    assert_eq!(cluster.fabric.levels[0].domain_of, [0, 0, 0, NO_DOMAIN]);
    assert_eq!(free_rate(&net, &[0, 1, 2, 3]), 40_000);
    let names = ["n1", "n2", "n3", "n20"];
    let warnings = config.unknown_nodes(&names);
    assert_eq!(warnings.len(), 13);
    assert!(
        warnings[0]
            .to_string()
            .starts_with("gpuos.toml:1:1: node n4 is not in slurm.conf")
    );
}

#[test]
fn mistakes_are_told_with_their_line() {
    let net = |rest: &str| format!("[[fabric.net]]\nname = \"x\"\n{rest}\n");
    let grid = "nodes = \"n[1-9]\"\nsize = [2, 2]";
    let graph = "kind = \"graph\"\n[[fabric.net.switch]]\nname = \"a\"\nnodes = \"n1\"\n";
    for (text, line, what) in [
        (net("nodes = \"n1\""), 1, "[[fabric.net]] has no kind"),
        (
            net("kind = \"mesh\""),
            3,
            "kind = \"mesh\" is not accepted; write \"fat-tree\"",
        ),
        (
            net("kind = \"fat-tree\"\nnodes = \"n1\""),
            1,
            "has no nodes-per-switch",
        ),
        (
            net(&format!("kind = \"torus\"\n{grid}")),
            1,
            "9 nodes, and its sizes make 4 places",
        ),
        (
            net(&format!("kind = \"rail\"\n{grid}")),
            1,
            "kind \"rail\" has no size",
        ),
        (
            net("kind = \"torus\"\nnodes = \"n1\"\nsize = [0]"),
            5,
            "whole numbers from 1",
        ),
        (
            net("kind = \"torus\"\nnodes = \"n1\"\nsize = []"),
            5,
            "[8, 8, 8]",
        ),
        (
            net(
                "kind = \"fat-tree\"\nnodes = \"n1\"\nnodes-per-switch = 1\noversubscription = [0.5]",
            ),
            6,
            "ratios from 1 to 1000",
        ),
        (
            net("kind = \"fat-tree\"\nnodes = \"n1\"\nnodes-per-switch = 1\nuplinks = [4]"),
            1,
            "add a line switch-gbps",
        ),
        (
            net("kind = \"nvlink\"\nnodes = \"n1,n1\"\nnodes-per-switch = 1"),
            1,
            "stands in net x twice",
        ),
        (net("kind = \"graph\""), 1, "this one 0"),
        (
            net(&format!(
                "{graph}[[fabric.net.link]]\nbetween = [\"a\", \"q\"]\ngbps = 1"
            )),
            8,
            "\"q\"",
        ),
        (
            net(&format!("{graph}[[fabric.net.switch]]\nname = \"a\"")),
            7,
            "switch a is described twice",
        ),
        (
            net(&format!(
                "{graph}[[fabric.net.switch]]\nname = \"b\"\nnodes = \"n1\""
            )),
            9,
            "hangs on switch a and on switch b",
        ),
        (
            format!(
                "{0}{0}",
                net("kind = \"torus\"\nnodes = \"n1\"\nsize = [1]")
            ),
            6,
            "net x is described twice",
        ),
        (
            net("kind = \"torus\"\nnodes = \"n1\"\nsize = [1]\n[[fabric.level]]\nname = \"leaf\""),
            7,
            "level leaf is described beside [[fabric.net]]",
        ),
        (
            "[[fabric.level]]\nname = \"leaf\"\nuplinks = 4\n".into(),
            3,
            "uplinks need the rate of one",
        ),
    ] {
        let error = Config::parse(&text, "gpuos.toml").expect_err(&text);
        assert!(error.message.contains(what), "{text}\n{error}");
        assert_eq!(error.line, line, "{text}\n{error}");
    }
}

#[test]
fn a_circle_of_switches_is_told() {
    let text = "[[fabric.level]]\nname = \"leaf\"\n[[fabric.level]]\nname = \"spine\"\n\
         [[fabric.switch]]\nname = \"l\"\nlevel = \"leaf\"\nnodes = \"n1\"\n\
         [[fabric.switch]]\nname = \"a\"\nlevel = \"spine\"\nswitches = [\"b\"]\n\
         [[fabric.switch]]\nname = \"b\"\nlevel = \"spine\"\nswitches = [\"a\"]\n";
    let config = Config::parse(text, "gpuos.toml").unwrap();
    let error = config.cluster(&facts(1), None).unwrap_err();
    assert_eq!(error.line, 10);
    assert!(error.message.contains("makes a circle"), "{error}");
}
