//! What a place is worth to a job beside another one, in words.
use gpuos_model::cluster::Cluster;

use super::note::ValueGain;
use crate::cost::Objective;

/// `More work by 31 % for the price than n5 (dgx-h100).`
pub fn value_sentence(worth: &ValueGain, cluster: &Cluster) -> String {
    let ValueGain {
        objectives,
        percent,
        than,
    } = worth;
    let node = cluster.nodes.iter().find(|node| node.name == *than);
    let kind = node.and_then(|node| node.node_type.as_deref());
    let than = match kind {
        Some(kind) => format!("{than} ({})", kind.name),
        None => than.clone(),
    };
    let alone = objectives.weight(objectives.heaviest()) == 100;
    match objectives.heaviest() {
        Objective::Throughput if alone => format!("Faster by {percent} % than {than}."),
        Objective::Latency if alone => {
            format!("Quicker by {percent} % in small exchanges than {than}.")
        }
        Objective::Energy if alone => {
            format!("More work by {percent} % for the energy than {than}.")
        }
        Objective::Cost if alone => format!("More work by {percent} % for the price than {than}."),
        Objective::Fairness if alone => {
            format!("Fairer by {percent} % than {than}.")
        }
        _ => format!("Worth {percent} % more by {objectives} than {than}."),
    }
}
