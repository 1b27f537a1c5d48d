use proptest::prelude::*;

use super::*;

fn nodes(list: &str) -> Vec<String> {
    expand(list).unwrap()
}

/// Each level with its domains and their nodes: `leaf: s0=n1,n2 s1=n3`.
fn show(fabric: &Fabric, nodes: &[String]) -> String {
    let mut text = String::new();
    for level in &fabric.levels {
        text += &format!("{}:", level.name);
        for (domain, name) in level.domains.iter().enumerate() {
            let members = nodes.iter().zip(&level.domain_of);
            let members = members
                .filter(|(_, of)| **of == domain as u32)
                .map(|(n, _)| n.as_str());
            text += &format!(" {name}={}", gpuos_model::hostlist::compress(members));
        }
        text += "\n";
    }
    text
}

fn conf(text: &str, list: &str) -> String {
    let nodes = nodes(list);
    show(
        &parse_topology_conf(text, "topology.conf")
            .unwrap()
            .fabric(&nodes),
        &nodes,
    )
}

fn conf_error(text: &str) -> String {
    parse_topology_conf(text, "topology.conf")
        .unwrap_err()
        .to_string()
}

#[test]
fn tree_of_switches() {
    let text = "# a comment\n\
                switchname=s0 NODES=n[0-1] LinkSpeed=9 # another\n\
                SwitchName=s1 Nodes=\\\n  n[2-3]\n\
                SwitchName=s2 Nodes = \"n4\"\n\
                SwitchName=top Switches=s[0-2]\n";
    assert_eq!(
        conf(text, "n[0-5]"),
        "leaf: s0=n[0-1] s1=n[2-3] s2=n4\nspine: top=n[0-4]\n"
    );
}

#[test]
fn uneven_tree_keeps_domains_inside_each_other() {
    let text = "SwitchName=a Nodes=n1\nSwitchName=b Nodes=n2\nSwitchName=c Nodes=n3\n\
                SwitchName=ab Switches=a,b\nSwitchName=top Switches=ab,c\n\
                SwitchName=lone Nodes=n4\n";
    assert_eq!(
        conf(text, "n[1-4]"),
        "leaf: a=n1 b=n2 c=n3 lone=n4\n\
         spine: c=n3 ab=n[1-2] lone=n4\n\
         core: top=n[1-3] lone=n4\n"
    );
}

#[test]
fn blocks_and_others() {
    let text = "BlockName=b1 Nodes=n[1-2]\nBlockName=b2 Nodes=n[3-4]\nBlockSizes=2,4\n";
    assert_eq!(
        conf(text, "n[1-4]"),
        "block: b1=n[1-2] b2=n[3-4]\nblock4: b1..b2=n[1-4]\n"
    );
    assert_eq!(conf("RingName=r Nodes=n[1-4]\n", "n[1-4]"), "");
    assert_eq!(conf("", "n1"), "");
}

#[test]
fn broken_conf_says_where() {
    for (text, what) in [
        (
            "SwitchName=a Nodes=n1\nSwitchName=a Nodes=n2",
            ":2:1: switch a is described twice",
        ),
        (
            "\n\nSwitchName=a Switches=b",
            ":3:1: switch a has the child b",
        ),
        ("SwitchName=a Switches=a", "has the child a"),
        (
            "SwitchName=a Nodes=n1 Colour=red",
            "'colour' does not belong",
        ),
        ("BlockName=a Nodes=n1\nBlockSizes=2,6", ":2:1: block size 6"),
        ("BlockSizes=x", "are no block sizes"),
        (
            "SwitchName=a Nodes=n1 Switches=b\nSwitchName=b Nodes=n2",
            "needs either",
        ),
        ("SwitchName=a Switches=b\nSwitchName=b Switches=a", "circle"),
        (
            "SwitchName=l Nodes=n1\nSwitchName=top Switches=a\n\nSwitchName=a Switches=b,l\n\
             SwitchName=b Switches=c\nSwitchName=c Switches=a",
            "a circle through",
        ),
        ("SwitchName=a Nodes=n[1-", "not a hostlist"),
        ("SwitchName=a Nodes", "write Key=Value"),
        ("SwitchName=a Nodes=", "write Key=Value"),
        ("Colour=red", "'colour' is not understood"),
        (
            "SwitchName=a Nodes=n1\nBlockName=b Nodes=n2",
            ":2:1: the file has switches and blocks",
        ),
        ("Include other.conf", "there is no such file"),
    ] {
        let error = conf_error(text);
        assert!(error.contains(what), "{text}: {error}");
        assert!(error.starts_with("topology.conf:"), "{error}");
    }
}

const YAML: &str = "\
---
# comment
- topology: flat
  cluster_default: false
  flat: true
- topology: main
  cluster_default: true
  tree:
    switches:
      - switch: root
        children: s[1-2]
      - switch: s1
        nodes: n[01-02]
      - switch: s2
        nodes: [n03, n04]
- topology: blocks
  block:
    block_sizes:
      - 2
    blocks:
      - block: b1
        nodes: n[01-04]
";

#[test]
fn yaml_takes_the_default_topology() {
    let nodes = nodes("n[01-04]");
    let read = |text: &str| parse_topology_yaml(text, "topology.yaml").unwrap();
    let first = |text: &str| read(text).of_cluster().unwrap().clone();
    let names: Vec<String> = read(YAML)
        .all()
        .iter()
        .map(|one| one.name.clone())
        .collect();
    assert_eq!(names, ["main", "flat", "blocks"]);
    let file = first(YAML);
    assert_eq!(file.name, "main");
    assert_eq!(
        show(&file.fabric(&nodes), &nodes),
        "leaf: s1=n[01-02] s2=n[03-04]\nspine: root=n[01-04]\n"
    );
    let file = first(&YAML.replace("cluster_default: true", "cluster_default: false"));
    assert_eq!(
        (file.name.as_str(), file.fabric(&nodes)),
        ("flat", Fabric::default())
    );
    let block = YAML.split("- topology: blocks").nth(1).unwrap();
    let file = first(&format!("- topology: b{block}"));
    assert_eq!(show(&file.fabric(&nodes), &nodes), "block: b1=n[01-04]\n");
}

#[test]
fn a_single_topology_needs_no_list() {
    let text = "topology: t\ntree:\n  switches: {switch: s1, nodes: n1}\n";
    let found = parse_topology_yaml(text, "t").unwrap();
    assert_eq!(
        show(&found.fabrics(&nodes("n1"))[0], &nodes("n1")),
        "leaf: s1=n1\n"
    );
}

#[test]
fn nodes_go_where_their_own_line_puts_them() {
    let nodes = nodes("n[01-04]");
    let shown = |text: &str| {
        let mut all = parse_topology_yaml(YAML, "t").unwrap();
        all.move_nodes([("n03", text)].into_iter());
        let fabrics = all.fabrics(&nodes);
        format!("{}{}", show(&fabrics[0], &nodes), show(&fabrics[2], &nodes))
    };
    let there = "leaf: s1=n[01-02] s2=n[03-04]\nspine: root=n[01-04]\nblock: b1=n[01-04]\n";
    assert_eq!(shown(""), there);
    assert_eq!(shown("main:s2,blocks:b1"), there);
    assert_eq!(
        shown("main:root:s1"),
        "leaf: s1=n[01-03] s2=n04\nspine: root=n[01-04]\nblock: b1=n[01-02,04]\n"
    );
    assert_eq!(
        shown("main:root:new,flat:x,blocks:b1"),
        "leaf: s1=n[01-02] s2=n04 new=n03\nspine: root=n[01-04]\nblock: b1=n[01-04]\n"
    );
    // A switch of switches has no nodes of its own, and an unknown block is none.
    assert_eq!(
        shown("main:root,blocks:b9"),
        "leaf: s1=n[01-02] s2=n04\nspine: root=n[01-02,04]\nblock: b1=n[01-02,04]\n"
    );
}

#[test]
fn blocks_of_blocks_are_those_of_slurm() {
    let blocks = |count: usize, sizes: &str| {
        let lines =
            (1..=count).map(|b| format!("BlockName=b{b} Nodes=n[{}-{}]\n", 2 * b - 1, 2 * b));
        let list = format!("n[1-{}]", 2 * count);
        conf(&(lines.collect::<String>() + sizes), &list)
    };
    assert_eq!(blocks(1, ""), "block: b1=n[1-2]\n");
    assert_eq!(
        blocks(3, ""),
        "block: b1=n[1-2] b2=n[3-4] b3=n[5-6]\nblock4: b1..b2=n[1-4] b3=n[5-6]\nblock8: b1..b3=n[1-6]\n"
    );
    assert_eq!(
        blocks(3, "BlockSizes=2,8\n"),
        "block: b1=n[1-2] b2=n[3-4] b3=n[5-6]\nblock8: b1..b3=n[1-6]\n"
    );
    assert_eq!(blocks(3, "BlockSizes=2\n").lines().count(), 1);
}

#[test]
fn broken_yaml_says_where() {
    for (text, what) in [
        ("", "the file is not a list of topologies"),
        ("text", "the file is not a list"),
        ("a: b", "a topology has no name"),
        (
            "- topology: t\n  block: {block_sizes: [2, 3], blocks: []}",
            "block size 3",
        ),
        ("- topology: [", "this is no YAML"),
        ("- tree: {}", ":1:3: a topology has no name"),
        (
            "- topology: t\n  tree:\n    nodes: n1",
            "switches is missing",
        ),
        (
            "- topology: t\n  tree:\n    switches:\n      - nodes: n1",
            ":4:9: an entry has no switch",
        ),
        ("- &a [*a]", "aliases"),
        (
            "- topology: t\n  block:\n    blocks:\n    - block: {}",
            "block has no value",
        ),
        (
            "- topology: t\n  tree:\n    switches:\n    - switch: s\n      children: x",
            ":4:7: switch s has the child x",
        ),
    ] {
        let error = parse_topology_yaml(text, "topology.yaml")
            .unwrap_err()
            .to_string();
        assert!(error.contains(what), "{text}: {error}");
    }
    let deep = "[".repeat(100);
    assert!(parse_topology_yaml(&deep, "t").is_err());
}

proptest! {
    #[test]
    fn any_tree_is_nested(parents in proptest::collection::vec(0usize..8, 1..30)) {
        // Switch i > 0 hangs below an earlier one; switches without children get a node.
        let parent = |at: usize| parents[at] % at;
        let mut text = String::new();
        for at in 0..parents.len() {
            let children: Vec<String> = (1..parents.len())
                .filter(|&child| parent(child) == at)
                .map(|child| format!("s{child}"))
                .collect();
            text += &match children.is_empty() {
                true => format!("SwitchName=s{at} Nodes=n{at}\n"),
                false => format!("SwitchName=s{at} Switches={}\n", children.join(",")),
            };
        }
        let nodes: Vec<String> = (0..parents.len()).map(|at| format!("n{at}")).collect();
        let Ok(file) = parse_topology_conf(&text, "t") else {
            return Ok(());
        };
        let fabric = file.fabric(&nodes);
        for pair in fabric.levels.windows(2) {
            for a in 0..nodes.len() {
                for b in 0..a {
                    let inner = pair[0].domain_of[a];
                    if inner != NO_DOMAIN && inner == pair[0].domain_of[b] {
                        prop_assert_eq!(pair[1].domain_of[a], pair[1].domain_of[b]);
                    }
                }
            }
        }
    }
}
