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
    assert_eq!(conf(text, "n[1-4]"), "block: b1=n[1-2] b2=n[3-4]\n");
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
        ("SwitchName=a", "needs either nodes or switches"),
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
        ("SwitchName=a Nodes=", "Nodes has no value"),
        ("Colour=red", "'Colour' is not understood"),
        (
            "SwitchName=a Nodes=n1\nBlockName=b Nodes=n2",
            ":2:1: the file has switches and blocks",
        ),
        ("Include other.conf", "Include is not followed"),
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
    let file = parse_topology_yaml(YAML, "topology.yaml").unwrap();
    assert_eq!(file.name, "main");
    assert_eq!(
        show(&file.fabric(&nodes), &nodes),
        "leaf: s1=n[01-02] s2=n[03-04]\nspine: root=n[01-04]\n"
    );
    let first = YAML.replace("cluster_default: true", "cluster_default: false");
    let file = parse_topology_yaml(&first, "topology.yaml").unwrap();
    assert_eq!(
        (file.name.as_str(), file.fabric(&nodes)),
        ("flat", Fabric::default())
    );
    let block = YAML.split("- topology: blocks").nth(1).unwrap();
    let file = parse_topology_yaml(&format!("- topology: b{block}"), "topology.yaml").unwrap();
    assert_eq!(show(&file.fabric(&nodes), &nodes), "block: b1=n[01-04]\n");
}

#[test]
fn broken_yaml_says_where() {
    for (text, what) in [
        ("", "the file is not a list of topologies"),
        ("a: b", "the file is not a list"),
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
