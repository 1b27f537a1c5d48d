//! Requests against a catalogue of node types.

use gpuos_config::gpuos_toml::Config;
use gpuos_model::cluster::{Fabric, FabricLevel};
use gpuos_model::node_types::NodeFacts;

use super::*;

/// Four nodes in two leaves, four GPUs each in two NVLink pairs; a fifth with two GPUs outside.
fn catalogue() -> Catalogue {
    let links = vec![-1, 4, 0, 0, 4, -1, 0, 0, 0, 0, -1, 4, 0, 0, 4, -1];
    let node = |at: usize| NodeFacts {
        name: format!("n{at}"),
        gpus: if at < 4 { 4 } else { 2 },
        gres_type: if at < 4 { "a100" } else { "h100" }.into(),
        sockets: 2,
        cores_per_socket: 8,
        links: (at < 4).then(|| links.clone()),
        gpu_sockets: None,
    };
    let nodes: Vec<NodeFacts> = (0..5).map(node).collect();
    let fabric = Fabric {
        levels: vec![FabricLevel {
            name: "leaf".into(),
            domains: vec!["l0".into(), "l1".into()],
            domain_of: vec![0, 0, 1, 1, gpuos_model::cluster::NO_DOMAIN],
            gbps: 0.0,
        }],
    };
    Catalogue::new(
        vec![Config::default().cluster(&nodes, Some(&fabric)).unwrap()],
        Rules::default(),
        true,
    )
}

fn options(text: &[&str]) -> JobOptions {
    let prefix = gpuos_config::options::PREFIX;
    let entries: Vec<String> = text
        .iter()
        .map(|option| format!("{prefix}{option}"))
        .collect();
    JobOptions::from_spank_env(entries.iter().map(String::as_str)).unwrap()
}

fn per_node(nodes: u32, gpus: &str) -> Shape {
    Shape {
        min_nodes: nodes,
        max_nodes: nodes,
        per_node: Some(gpus.into()),
        ..Shape::default()
    }
}

fn refused(text: &[&str], shape: &Shape) -> String {
    catalogue()
        .check(&options(text), &Sources::default(), shape)
        .expect_err("a refusal")
        .sentence
}

fn accepted(text: &[&str], shape: &Shape) {
    assert_eq!(
        catalogue().check(&options(text), &Sources::default(), shape),
        Ok(()),
        "{text:?} {shape:?}"
    );
}

#[test]
fn what_fits_is_accepted() {
    accepted(
        &["gpuos_topology=leaf:required"],
        &per_node(2, "gres:gpu:4"),
    );
    accepted(
        &["gpuos_topology=leaf:required"],
        &per_node(2, "gres/gpu:a100:4"),
    );
    accepted(&["gpuos_topology=leaf"], &per_node(4, "gres/gpu:4"));
    accepted(
        &["gpuos_topology=nvlink:required"],
        &per_node(1, "gres/gpu:2"),
    );
    accepted(&["gpuos_topology=any:required"], &per_node(5, "gres/gpu:2"));
    accepted(&["gpuos_placement=pack"], &per_node(1, "gres/gpu"));
    accepted(&["gpuos=off"], &per_node(99, "gres/gpu:99"));
    let total = |gpus: &str| Shape {
        min_nodes: 1,
        per_job: Some(gpus.into()),
        ..Shape::default()
    };
    accepted(&["gpuos_topology=leaf:required"], &total("gres:gpu:8"));
    accepted(&["gpuos_topology=leaf"], &total("gres:gpu:18"));
    let tasks = |tasks, gpus: &str| Shape {
        tasks,
        per_task: Some(gpus.into()),
        ..Shape::default()
    };
    accepted(&["gpuos_topology=leaf:required"], &tasks(4, "gres/gpu:2"));
}

#[test]
fn jobs_without_gpus_and_mixed_forms_are_left_to_slurm() {
    accepted(
        &["gpuos_topology=leaf:required"],
        &Shape {
            min_nodes: 4,
            ..Shape::default()
        },
    );
    let mixed = Shape {
        per_job: Some("gres/gpu:64".into()),
        ..per_node(9, "gres/gpu:9")
    };
    accepted(&["gpuos_topology=leaf:required"], &mixed);
    accepted(
        &["gpuos_topology=leaf:required"],
        &per_node(9, "gres/gpu:a100:3,gres/gpu:h100:1"),
    );
    accepted(&["gpuos_topology=leaf:required"], &per_node(9, "gres/???"));
    accepted(
        &["gpuos_topology=leaf:required"],
        &per_node(9, "license/x:3"),
    );
}

#[test]
fn unknown_levels_are_refused_with_the_known_ones() {
    let sentence = refused(&["gpuos_topology=rack"], &Shape::default());
    assert!(
        sentence.contains("'rack'") && sentence.contains("nvlink, node, leaf, any"),
        "{sentence}"
    );
}

#[test]
fn contradictions_are_refused() {
    let sentence = refused(&["gpuos=off", "gpuos_topology=leaf"], &Shape::default());
    assert!(
        sentence.contains("--gpuos=off") && sentence.contains("--gpuos-topology=leaf"),
        "{sentence}"
    );
    let sentence = refused(&["gpuos=off", "gpuos_placement=pack"], &Shape::default());
    assert!(sentence.contains("--gpuos-placement=pack"), "{sentence}");
    let sentence = refused(
        &["gpuos_topology=node:required"],
        &per_node(2, "gres/gpu:1"),
    );
    assert!(sentence.contains("node:required"), "{sentence}");
    let sentence = refused(
        &["gpuos_topology=nvlink:required"],
        &per_node(2, "gres/gpu:1"),
    );
    assert!(sentence.contains("nvlink:required"), "{sentence}");
}

#[test]
fn caps_that_no_gpu_reaches_are_refused_with_the_most_there_is() {
    accepted(&["gpuos_power=300W"], &per_node(1, "gres/gpu:1"));
    accepted(
        &["gpuos_power=80%", "gpuos=off"],
        &per_node(1, "gres/gpu:1"),
    );
    // One of the types takes it.
    accepted(&["gpuos_power=500W"], &per_node(1, "gres/gpu:1"));
    for (gpus, what) in [
        ("gres/gpu:1", "no GPU of this cluster takes more than 700 W"),
        (
            "gres/gpu:a100:1",
            "no a100 GPU of this cluster takes more than 400 W",
        ),
    ] {
        let sentence = refused(&["gpuos_power=900W", "gpuos=off"], &per_node(1, gpus));
        assert!(sentence.starts_with("--gpuos-power=900W: "), "{sentence}");
        assert!(sentence.contains(what), "{sentence}");
    }
}

#[test]
fn ranks_are_the_gpus_asked_for() {
    accepted(&["gpuos_shape=tp4:dp2"], &per_node(2, "gres/gpu:4"));
    accepted(&["gpuos_shape=tp2:pp2"], &per_node(1, "gres/gpu:4"));
    let total = Shape {
        per_job: Some("gres/gpu:6".into()),
        ..Shape::default()
    };
    accepted(&["gpuos_shape=pp3:dp2"], &total);
    // A number of nodes that is still open can become the right one.
    let open = Shape {
        max_nodes: 4,
        ..per_node(2, "gres/gpu:4")
    };
    accepted(&["gpuos_shape=tp4:dp3"], &open);
    let whole = Shape {
        min_nodes: 2,
        exclusive: true,
        ..Shape::default()
    };
    accepted(&["gpuos_shape=tp4:dp3"], &whole);
    for (text, shape, what) in [
        (
            "tp4:dp4",
            per_node(2, "gres/gpu:4"),
            "4 x 4 = 16 ranks, and the job asks for 8",
        ),
        ("tp4:dp4", total, "asks for 6 GPUs"),
        ("tp3:dp2", open, "6 ranks do not fill nodes with 4 GPUs"),
        (
            "tp3:dp4",
            per_node(3, "gres/gpu:4"),
            "would cut tensor-parallel groups of 3",
        ),
        ("tp4", Shape::default(), "asks for no GPUs"),
    ] {
        let sentence = refused(&[&format!("gpuos_shape={text}")], &shape);
        assert!(
            sentence.contains(what) && sentence.contains("--gpuos-shape=tp"),
            "{sentence}"
        );
    }
    let sentence = refused(
        &["gpuos=off", "gpuos_shape=tp2"],
        &per_node(1, "gres/gpu:2"),
    );
    assert!(sentence.contains("--gpuos-shape=tp2"), "{sentence}");
}

#[test]
fn impossible_shapes_are_refused() {
    let sentence = refused(&["gpuos_topology=leaf"], &per_node(1, "gres/gpu:5"));
    assert!(sentence.contains("never run"), "{sentence}");
    refused(&["gpuos_placement=pack"], &per_node(2, "gres/gpu:h100:2"));
    refused(&["gpuos_placement=pack"], &per_node(6, "gres/gpu:1"));
    let sentence = refused(
        &["gpuos_topology=leaf:required"],
        &per_node(3, "gres/gpu:4"),
    );
    assert!(
        sentence.contains("leaf:required") && sentence.contains("--gpuos-topology=leaf "),
        "{sentence}"
    );
    refused(
        &["gpuos_topology=nvlink:required"],
        &per_node(1, "gres/gpu:3"),
    );
    let total = Shape {
        min_nodes: 1,
        per_job: Some("gres/gpu:9".into()),
        ..Shape::default()
    };
    refused(&["gpuos_topology=leaf:required"], &total);
}

#[test]
fn nodes_that_no_file_names_may_have_room() {
    let mut open = catalogue();
    open.bounded = false;
    let check = open.check(
        &options(&["gpuos_topology=leaf:required"]),
        &Sources::default(),
        &per_node(9, "gres/gpu:9"),
    );
    assert_eq!(check, Ok(()));
}
