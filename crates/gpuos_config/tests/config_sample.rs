//! The documented sample of gpuos.toml says what the program reads, all of it, and no more.

use gpuos_config::gpuos_toml::{CheckpointConfig, Config};
use gpuos_model::node_types::NodeFacts;

const SAMPLE: &str = include_str!("../../../packaging/gpuos.toml.sample");

/// The sample with every commented key and table in force.
fn uncommented() -> String {
    let key = |line: &str| {
        let end = line.trim_start_matches(|c: char| c.is_ascii_lowercase() || c == '-');
        line.starts_with('[') || end.len() < line.len() && end.starts_with(" = ")
    };
    let mut rows = false;
    let line = |line: &str| match line.strip_prefix('#') {
        // Rows of a matrix follow an open bracket.
        Some(rest) if rows || key(rest) => {
            rows = match rows {
                true => rest != "]",
                false => rest.ends_with("= ["),
            };
            format!("{rest}\n")
        }
        _ => format!("{line}\n"),
    };
    SAMPLE.lines().map(line).collect()
}

#[test]
fn sample_as_shipped_changes_nothing() {
    let config = Config::parse(SAMPLE, "gpuos.toml").unwrap();
    let empty = Config::parse("", "gpuos.toml").unwrap();
    assert_eq!(config, empty);
    assert_eq!(config.slurm, Config::default().slurm);
}

#[test]
fn every_commented_key_is_accepted() {
    let config = Config::parse(&uncommented(), "sample").unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(
        config.slurm,
        Config::default().slurm,
        "the sample shows the defaults"
    );
    assert_eq!(config.policy.placement, Config::default().policy.placement);
    let shared = Some("/scratch/gpuos/checkpoints".into());
    let checkpoint = CheckpointConfig {
        shared,
        ..CheckpointConfig::default()
    };
    assert_eq!(config.checkpoint, checkpoint);
    assert_eq!(config.health.limits, Config::default().health.limits);
    let rules = (
        config.health.all().len(),
        Config::default().health.all().len(),
    );
    assert_eq!(rules.0, rules.1 + 3);
    let types: Vec<&str> = config.node_types.iter().map(|t| t.name.as_str()).collect();
    assert_eq!(types, ["lab-a40", "mixed-links", "h100-small-memory"]);
    assert_eq!(config.node_types[0].nics.len(), 1);

    let facts = |at: u32| NodeFacts {
        name: format!("n{at:03}"),
        gpus: 8,
        gres_type: "h100".into(),
        sockets: 2,
        cores_per_socket: 56,
        ..NodeFacts::default()
    };
    let nodes: Vec<NodeFacts> = (1..=16).map(facts).collect();
    let cluster = config.cluster(&nodes, None).unwrap();
    let levels: Vec<&str> = cluster
        .fabric
        .levels
        .iter()
        .map(|l| l.name.as_str())
        .collect();
    assert_eq!(levels, ["nvlink", "leaf", "spine"]);
    assert_eq!(cluster.fabric.levels[2].domain_of, [0; 16]);
}

/// The keys that a table takes, out of the error for one that it does not.
fn keys_of(table: &str) -> Vec<String> {
    let text = format!("{table}\nno-such-key = 1\n");
    let error = Config::parse(&text, "probe").unwrap_err();
    assert!(error.message.contains("no-such-key"), "{error}");
    let line = table.lines().count() as u32 + 1;
    assert_eq!((error.line, error.column), (line, 1), "{error}");
    let quoted = error.message.split('`').skip(1).step_by(2);
    quoted.skip(1).map(String::from).collect()
}

#[test]
fn every_key_is_in_the_sample() {
    let sample = uncommented();
    let root: toml::Table = sample.parse().unwrap();
    let nets: toml::Table = nets().parse().unwrap();
    for path in [
        "slurm",
        "policy",
        "policy.rule",
        "checkpoint",
        "node-type",
        "node-type.nic",
        "nodes",
        "fabric",
        "fabric.level",
        "fabric.switch",
        "fabric.net",
        "fabric.net.switch",
        "fabric.net.link",
        "class",
        "rule",
        "reserve",
        "power-domain",
        "health",
        "health.rule",
        "mig",
        "mig.board",
        "mig.pool",
    ] {
        let keys = keys_of(&match path {
            "slurm" | "policy" | "checkpoint" | "fabric" | "health" | "mig" => format!("[{path}]"),
            "node-type.nic" => "[[node-type]]\n[[node-type.nic]]".into(),
            "fabric.net.switch" => "[[fabric.net]]\n[[fabric.net.switch]]".into(),
            "fabric.net.link" => "[[fabric.net]]\n[[fabric.net.link]]".into(),
            path => format!("[[{path}]]"),
        });
        assert!(!keys.is_empty(), "{path}");
        let mut tables = tables_at(&toml::Value::Table(root.clone()), path);
        tables.extend(tables_at(&toml::Value::Table(nets.clone()), path));
        for key in keys {
            assert!(
                tables.iter().any(|table| table.contains_key(&key)),
                "{path}: {key} is not in the sample"
            );
        }
    }
}

/// All tables at a dotted path, through arrays of tables.
fn tables_at(value: &toml::Value, path: &str) -> Vec<toml::Table> {
    let mut found = vec![value.clone()];
    for name in path.split('.') {
        let below = found.iter().flat_map(|value| match value.get(name) {
            Some(toml::Value::Array(all)) => all.clone(),
            Some(one) => vec![one.clone()],
            None => Vec::new(),
        });
        found = below.collect();
    }
    let tables = found
        .into_iter()
        .filter_map(|value| value.as_table().cloned());
    tables.collect()
}

/// The examples of `[[fabric.net]]`, which are indented, because they stand instead of the levels.
fn nets() -> String {
    let example = |line: &'static str| {
        let rest = line.strip_prefix("#  ")?;
        (rest.starts_with('[') || rest.contains(" = ")).then_some(rest)
    };
    let text: Vec<&str> = SAMPLE.lines().filter_map(example).collect();
    text.join("\n")
}

#[test]
fn every_kind_of_net_is_accepted() {
    let config = Config::parse(&nets(), "sample").unwrap_or_else(|error| panic!("{error}"));
    let names = ["a001", "a002", "b01", "c001", "d01", "e001", "f1", "f9"];
    let facts = names.map(|name| NodeFacts {
        name: name.into(),
        gpus: 8,
        gres_type: "h100".into(),
        ..NodeFacts::default()
    });
    let cluster = config.cluster(&facts, None).unwrap();
    let levels = cluster.fabric.levels.iter();
    let levels: Vec<&str> = levels.map(|level| level.name.as_str()).collect();
    assert_eq!(levels[0], "nvlink");
    for level in [
        "leaf", "spine", "core", "block2", "cube1", "group", "island",
    ] {
        assert!(levels.contains(&level), "{level}: {levels:?}");
    }
    assert_eq!(config.net(&cluster).unwrap().nodes(), names.len());
}
