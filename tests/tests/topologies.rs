//! Which topology is in force, and which one a partition has: plugin and command say what slurmctld says, on every release, and what stock
//! Slurm keeps within a leaf gpuos keeps there.

use std::collections::BTreeMap;

use gpuos_lab::Suite;
use gpuos_model::hostlist::expand;
use gpuos_tests::plugins::programs;
use gpuos_tests::{Cluster, Setup, per_suite, skip};
use serde_json::Value;

per_suite!(the_one_in_force, of_partitions);

/// Domains of a level with their nodes.
type Domains = BTreeMap<String, Vec<String>>;

fn sorted(mut nodes: Vec<String>) -> Vec<String> {
    nodes.sort();
    nodes
}

/// Leaf switches or blocks, as slurmctld shows them.
fn shown(cluster: &Cluster) -> Domains {
    let out = cluster.output("scontrol", &["show", "topology"]);
    let text = String::from_utf8_lossy(&out.expect("scontrol").stdout).into_owned();
    let mut found = Domains::new();
    for line in text.lines() {
        let words: BTreeMap<&str, &str> = line
            .split_whitespace()
            .filter_map(|word| word.split_once('='))
            .collect();
        let name = words.get("BlockName").or(words.get("SwitchName"));
        let nodes = words
            .get("Nodes")
            .filter(|_| !words.contains_key("Switches"));
        if let (Some(name), Some(nodes)) = (name, nodes) {
            let nodes = expand(nodes).expect("a hostlist");
            found.insert((*name).to_owned(), sorted(nodes));
        }
    }
    found
}

fn gpuos(cluster: &Cluster, args: &[&str]) -> Value {
    let program = programs().join("gpuos");
    let args = [&["--json"], args].concat();
    let out = cluster.lab.output(&program.to_string_lossy(), &args);
    let text = String::from_utf8_lossy(&out.expect("gpuos runs").stdout).into_owned();
    serde_json::from_str(&text).unwrap_or_else(|why| panic!("{why}: {text}"))
}

/// The narrowest level as `gpuos topo` has it.
fn told(cluster: &Cluster) -> Domains {
    let topo = gpuos(cluster, &["topo"]);
    assert_eq!(topo["notes"], serde_json::json!([]), "{topo}");
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let domains = topo["levels"][0]["domains"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let domain = |one: &Value| {
        let nodes = one["nodes"].as_array().expect("nodes").iter().map(text);
        (text(&one["name"]), sorted(nodes.collect()))
    };
    domains.iter().map(domain).collect()
}

/// Where the lab has its files of Slurm.
fn write(cluster: &Cluster, name: &str, text: Option<&str>) {
    match text {
        Some(text) => cluster.lab.write_conf(name, text).expect("writes"),
        None => {
            let _ = std::fs::remove_file(cluster.lab.dir().join("etc").join(name));
        }
    }
}

const TREE: &str = "SwitchName=l1 \\\n  Nodes=n1,n3 # not in the order of names\nInclude more.conf\nSwitchName=top Switches=l[1-2]\n";
const MORE: &str = "switchname=l2 nodes=\"n2,n4\"\n";
const BLOCKS: &str = "BlockName=b1 Nodes=n1,n4\nBlockName=b2 Nodes=n2,n3\nBlockSizes=2,4\n";
const YAML: &str = "- topology: flat\n  flat: true\n- topology: tree\n  cluster_default: true\n  tree:\n    switches:\n      \
                    - switch: y1\n        nodes: n[1-2]\n      - switch: y2\n        nodes: n[3-4]\n      - switch: top\n        children: y[1-2]\n";

fn the_one_in_force(suite: &Suite) {
    let mut setup = Setup::new("topologies", suite);
    setup.spec.nodes = 4.into();
    let Some(cluster) = setup.steered() else {
        return;
    };
    write(&cluster, "more.conf", Some(MORE));
    for (plugin, conf, yaml, since) in [
        (Some("topology/tree"), Some(TREE), None, [22, 5, 0]),
        (None, Some(TREE), None, [22, 5, 0]),
        // Before 25.05 nobody reads it.
        (None, None, Some(YAML), [22, 5, 0]),
        (Some("topology/block"), Some(BLOCKS), None, [24, 5, 0]),
        (Some("topology/block"), Some(BLOCKS), Some(YAML), [24, 5, 0]),
    ] {
        if cluster.is_before(since) {
            continue;
        }
        cluster
            .lab
            .set_slurm_conf("TopologyPlugin", plugin)
            .expect("edits");
        write(&cluster, "topology.conf", conf);
        write(&cluster, "topology.yaml", yaml);
        cluster.restart_slurmctld();
        let case = format!("{plugin:?} {conf:?} {yaml:?}");
        let slurm = shown(&cluster);
        assert_eq!(told(&cluster), slurm, "{case}");
        let gang = cluster.start(&["-N2", "--gpus-per-node=8"]);
        let level = cluster.note(gang).expect("a note").level;
        let nodes = sorted(cluster.planned(gang).into_keys().collect());
        match slurm.is_empty() {
            true => assert_eq!(level, "any", "{case}"),
            false => assert!(
                level != "any" && slurm.values().any(|domain| *domain == nodes),
                "{case}: {level} {nodes:?}, Slurm has {slurm:?}"
            ),
        }
        cluster.cancel(&[gang]);
        cluster.drained();
    }
}

const SEVERAL: &str = "\
- topology: odd
  tree:
    switches:
      - {switch: odds, nodes: 'n[1,3,5,7]'}
      - {switch: evens, nodes: 'n[2,4,6,8]'}
- topology: main
  cluster_default: true
  tree:
    switches:
      - {switch: low, nodes: 'n[1-4]'}
      - {switch: high, nodes: 'n[5-8]'}
- topology: blocks
  block:
    block_sizes: [4]
    blocks:
      - {block: b1, nodes: 'n[1-2,5-6]'}
      - {block: b2, nodes: 'n[3-4,7-8]'}
";

/// The leaf that each partition's topology has a node in.
fn leaf(partition: &str, node: &str) -> bool {
    let number: usize = node[1..].parse().expect("n1, n2, …");
    match partition {
        "odd" => number % 2 == 1,
        "blocks" => [1, 2, 5, 6].contains(&number),
        _ => number <= 4,
    }
}

/// The nodes of a gang of four in a partition; it must be in one leaf of that partition's topology.
fn gang(cluster: &Cluster, partition: &str, as_in: &str) -> Vec<String> {
    let plan = cluster.lab.spec().spank.then(|| {
        let args = ["plan", "--partition", partition, "-N4", "--gpus-per-node=8"];
        gpuos(cluster, &args)
    });
    let job = cluster.start(&["-p", partition, "-N4", "--gpus-per-node=8"]);
    let nodes = sorted(cluster.gpus(job).into_keys().collect());
    let inside = nodes.iter().filter(|node| leaf(as_in, node)).count();
    let what = format!("{partition} as {as_in}: {nodes:?}");
    assert!(nodes.len() == 4 && (inside == 0 || inside == 4), "{what}");
    if let Some(plan) = plan {
        let place = plan["place"]["nodes"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let place = place
            .iter()
            .map(|one| one["node"].as_str().unwrap_or_default().to_owned());
        assert_eq!(sorted(place.collect()), nodes, "{what}: {plan}");
        assert!(cluster.note(job).is_some(), "{what}");
    }
    cluster.cancel(&[job]);
    nodes
}

fn of_partitions(suite: &Suite) {
    let setup = || {
        let mut setup = Setup::new("topopart", suite);
        setup.spec.nodes = 8.into();
        setup.spec.topology_yaml = Some(SEVERAL.into());
        setup.spec.slurm_conf_extra.extend([
            "TopologyPlugin=".to_owned(),
            "PartitionName=plain Nodes=ALL MaxTime=INFINITE State=UP".to_owned(),
        ]);
        setup
    };
    let with_topologies = |cluster: &Cluster| {
        let more = "PartitionName=odd Nodes=ALL Topology=odd State=UP\nPartitionName=blocks Nodes=ALL Topology=blocks State=UP\n";
        cluster
            .lab
            .edit_slurm_conf(|text| text + more)
            .expect("edits");
        cluster.restart_slurmctld();
    };
    let Some(cluster) = setup().steered() else {
        return;
    };
    if cluster.is_before([25, 5, 0]) {
        return skip("topologies of partitions", "they came with Slurm 25.05");
    }
    let stock = setup().stock().up().expect("as the other");
    for cluster in [&cluster, &stock] {
        with_topologies(cluster);
        for partition in ["plain", "odd", "blocks", "plain"] {
            gang(cluster, partition, partition);
        }
        // A partition may change its topology, and a node its place.
        cluster.run(
            "scontrol",
            &["update", "PartitionName=plain", "Topology=odd"],
        );
        gang(cluster, "plain", "odd");
        cluster.run(
            "scontrol",
            &[
                "update",
                "NodeName=n1",
                "Topology=odd:evens,main:low,blocks:b1",
            ],
        );
        cluster.run(
            "scontrol",
            &[
                "update",
                "NodeName=n8",
                "Topology=odd:odds,main:high,blocks:b2",
            ],
        );
        let job = cluster.start(&["-p", "odd", "-N4", "--gpus-per-node=8"]);
        let nodes = sorted(cluster.gpus(job).into_keys().collect());
        let leaves = [["n1", "n2", "n4", "n6"], ["n3", "n5", "n7", "n8"]];
        assert!(leaves.iter().any(|leaf| nodes == leaf), "{nodes:?}");
        cluster.cancel(&[job]);
        cluster.drained();
    }
}
