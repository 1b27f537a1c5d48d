//! The planner of select/gpuos, driven by events as slurmctld drives it.

use std::sync::Arc;

use gpuos_model::cluster;
use gpuos_model::gpuset::GpuSet;
use gpuos_placement::frag::{Choice, Cluster, Learner, MAX_DEVICES, MILLI, Node, Request, Share};
use gpuos_placement::plan::{self, GpuShape, NodeState, Planner};

use super::Policy;
use super::stock::Stock;

/// Slurm's GPUs are given whole, so a share counts as a GPU, and cores are whole; a job without
/// GPUs goes where the model of stock Slurm puts it. Nodes are of one type when they have as many
/// GPUs of the same model; nothing is known of links or of the network.
#[derive(Default)]
pub struct BySelect {
    known: Option<Known>,
    learner: Learner,
}

struct Known {
    planner: Planner,
    /// Models of the planner's node types, as a bit mask each.
    models: Vec<u64>,
    /// Most cores and memory of a node of each type.
    sizes: Vec<(u32, u64)>,
    /// State of the cluster that the planner knows.
    version: u64,
    /// By model: its nodes, as a bitmap.
    nodes_of: Vec<Vec<u64>>,
}

impl Known {
    fn new(cluster: &Cluster) -> Known {
        let mut types: Vec<((u8, u8), Arc<cluster::NodeType>)> = Vec::new();
        let mut models = Vec::new();
        let mut sizes: Vec<(u32, u64)> = Vec::new();
        let mut nodes_of = vec![vec![0; cluster.nodes().len().div_ceil(64)]; 64];
        let mut nodes = Vec::new();
        for (index, node) in cluster.nodes().iter().enumerate() {
            nodes_of[usize::from(node.model & 63)][index / 64] |= 1 << (index % 64);
            let key = (node.gpus, node.model);
            let at = types.iter().position(|t| t.0 == key).unwrap_or_else(|| {
                types.push((key, Arc::new(plain(node))));
                models.push(1 << (node.model & 63));
                sizes.push((0, 0));
                types.len() - 1
            });
            let size = &mut sizes[at];
            *size = (
                size.0.max(node.cpu / 1000),
                size.1.max(u64::from(node.memory)),
            );
            nodes.push(cluster::Node {
                name: format!("n{index}"),
                node_type: Some(types[at].1.clone()),
            });
        }
        let fabric = cluster::Fabric { levels: Vec::new() };
        let mut known = Known {
            planner: Planner::new(cluster::Cluster { nodes, fabric }),
            models,
            sizes,
            version: cluster.version(),
            nodes_of,
        };
        for index in 0..cluster.nodes().len() {
            known.update(cluster, index);
        }
        known
    }

    fn update(&mut self, cluster: &Cluster, index: usize) {
        let node = &cluster.nodes()[index];
        let whole = node.free.iter().enumerate();
        let free = whole.fold(0, |set, (gpu, &free)| set | u64::from(free == MILLI) << gpu);
        let state = NodeState {
            candidate: true,
            present: GpuSet::first(usize::from(node.gpus)),
            free: GpuSet(free),
            free_cpus: node.cpu / 1000,
            free_memory_mib: u64::from(node.memory),
            ..NodeState::default()
        };
        self.planner.update(index as u32, state);
    }

    fn follow(&mut self, cluster: &Cluster) {
        match cluster.changed_since(self.version) {
            Some(changed) => {
                for &index in changed {
                    self.update(cluster, index as usize);
                }
            }
            None => (0..cluster.nodes().len()).for_each(|index| self.update(cluster, index)),
        }
        self.version = cluster.version();
    }
}

impl Policy for BySelect {
    fn choose(&mut self, cluster: &Cluster, request: &Request) -> Option<Choice> {
        let known = self.known.get_or_insert_with(|| Known::new(cluster));
        if request.gpus == 0 {
            return Stock.choose(cluster, request);
        }
        known.follow(cluster);
        let cores = request.cpu.div_ceil(1000);
        let accepted = known.models.iter().enumerate();
        let accepted = accepted.filter(|(_, model)| request.models & **model != 0);
        let types = accepted.fold(0u64, |set, (number, _)| {
            set | 1u64.checked_shl(number as u32).unwrap_or(0)
        });
        let any = request.models == u64::MAX || known.models.len() > 64;
        self.learner.arrives(
            Share {
                gpus: request.gpus,
                cpus: cores,
                memory_gib: request.memory.div_ceil(1024),
                types: if any { 0 } else { types },
            },
            1,
        );
        if self.learner.due() {
            let expected = self.learner.expected(known.sizes.clone());
            known.planner.learn(expected);
            known.planner.work(usize::MAX);
        }
        let mut wanted = plan::Request::new(1, 1, GpuShape::PerNode(u32::from(request.gpus)));
        wanted.cpus_per_node = cores;
        wanted.memory_mib_per_node = u64::from(request.memory);
        let mut candidates = vec![0; cluster.nodes().len().div_ceil(64)];
        for (model, nodes) in known.nodes_of.iter().enumerate() {
            if request.models >> model & 1 == 1 {
                candidates.iter_mut().zip(nodes).for_each(|(c, n)| *c |= n);
            }
        }
        let choice = known.planner.decide(&wanted, Some(&candidates), 0).ok()?;
        Some(Choice {
            node: choice.nodes.first()?.node as usize,
            slot: MAX_DEVICES - 1,
        })
    }
}

/// A node type of which nothing but the number of GPUs is known.
fn plain(node: &Node) -> cluster::NodeType {
    let gpus = usize::from(node.gpus);
    let link = |at: usize| match at / gpus == at % gpus {
        true => cluster::Link::Same,
        false => cluster::Link::Node,
    };
    cluster::NodeType {
        name: format!("model{}-{gpus}", node.model),
        gpu: String::new(),
        gres_type: String::new(),
        gpus,
        links: (0..gpus * gpus).map(link).collect(),
        numa: vec![0; gpus],
        nics: Vec::new(),
        nvlink_gbps: 0.0,
        pcie_gbps: 0.0,
        socket_gbps: 0.0,
        nvswitch: false,
        sockets: 1,
        cores_per_socket: 1,
        memory_mib: 0,
        gpu_memory_mib: 0,
        figures: Default::default(),
        source: String::new(),
    }
}
