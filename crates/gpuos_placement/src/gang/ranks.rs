//! Which node gets which ranks, and the file that says so.
//!
//! Each node holds ranks that follow each other, because launchers number them so. What can be
//! chosen is which node gets which block of ranks: nodes in the order of the fabric get blocks in
//! the order of [`GroupShape::nested`], so that a tensor-parallel group stays on a node or its
//! neighbours, and the stages of a pipeline on nodes that stand together.
use std::fmt::Write;

use gpuos_model::cluster::Fabric;
use gpuos_model::cluster::{Link, NO_DOMAIN, NodeType};
use gpuos_model::gpuset::GpuSet;

use super::shape::{GroupKind, GroupShape};

/// Blocks of ranks for nodes with `per_node` ranks each: `block[i]` goes to the `i`-th node in the
/// order of the fabric.
pub fn spread(shape: &GroupShape, per_node: u32) -> Vec<u32> {
    let per_node = per_node.max(1);
    let mut blocks: Vec<u32> = (0..shape.ranks().div_ceil(per_node)).collect();
    blocks.sort_by_key(|&block| (shape.nested(block * per_node), block));
    blocks
}

/// The GPUs of a node in the order in which its ranks get them, so that groups of `tp` are linked:
/// of all GPUs left, each with those that have the widest links to it, the group with the widest
/// narrowest link is set aside, the lowest of equals; whole groups then come in the order of their
/// GPUs, and what is left over last.
pub fn gpu_order(node_type: &NodeType, gpus: GpuSet, tp: u32) -> Vec<usize> {
    let tp = tp.max(1) as usize;
    let mut left: Vec<usize> = gpus.and(GpuSet::first(node_type.gpus)).iter().collect();
    let mut groups: Vec<Vec<usize>> = Vec::new();
    while left.len() >= tp {
        let grown = left.iter().map(|&start| grow(node_type, &left, start, tp));
        let best = grown
            .enumerate()
            .max_by_key(|(at, (wide, _))| (*wide, usize::MAX - at));
        let Some((_, (_, mut group))) = best else {
            break;
        };
        left.retain(|gpu| !group.contains(gpu));
        group.sort_unstable();
        groups.push(group);
    }
    groups.sort_unstable();
    groups.into_iter().flatten().chain(left).collect()
}

/// A group of `size` GPUs around one, and its narrowest link.
fn grow(node_type: &NodeType, left: &[usize], start: usize, size: usize) -> (u32, Vec<usize>) {
    let wide = |a: usize, b: usize| match node_type.link(a, b) {
        Link::Nv(links) => 10 + u32::from(links),
        Link::Same => 9,
        Link::Pix => 5,
        Link::Pxb => 4,
        Link::Phb => 3,
        Link::Node => 2,
        Link::Sys => 1,
    };
    let mut group = vec![start];
    let mut narrowest = u32::MAX;
    while group.len() < size {
        let others = left.iter().filter(|gpu| !group.contains(gpu));
        let worst = |gpu: usize| group.iter().map(|&a| wide(a, gpu)).min().unwrap_or(0);
        let best = others.max_by_key(|&&gpu| (worst(gpu), usize::MAX - gpu));
        let Some(&gpu) = best else { break };
        narrowest = narrowest.min(worst(gpu));
        group.push(gpu);
    }
    (narrowest, group)
}

/// How far apart the ranks of each kind of group are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Spans {
    /// By [`GroupKind::ALL`]: the widest level that a group of this kind needs, by name: `node`, a
    /// level of the fabric, or `any`.
    pub levels: [String; 4],
}

impl Spans {
    /// The levels that the groups of a job reach: `nodes` holds the fabric's node of each block of
    /// `per_node` ranks.
    pub fn new(shape: &GroupShape, per_node: u32, nodes: &[u32], fabric: &Fabric) -> Spans {
        let node = |rank: u32| nodes.get((rank / per_node.max(1)) as usize).copied();
        let domain = |level: usize, node: u32| {
            let of = &fabric.levels[level].domain_of;
            of.get(node as usize).copied().unwrap_or(NO_DOMAIN)
        };
        let apart = |a: u32, b: u32| -> usize {
            if a == b {
                return 0;
            }
            let shared = |level: &usize| {
                let (one, two) = (domain(*level, a), domain(*level, b));
                one == two && one != NO_DOMAIN
            };
            let level = (0..fabric.levels.len()).find(shared);
            level.map_or(fabric.levels.len() + 1, |level| level + 1)
        };
        let levels = GroupKind::ALL.map(|kind| {
            let groups = (shape.ranks() / shape.size(kind)) as usize;
            let mut first: Vec<Option<u32>> = vec![None; groups];
            let mut widest = 0;
            for rank in 0..shape.ranks() {
                let Some(node) = node(rank) else { continue };
                let first = &mut first[shape.group(kind, rank) as usize];
                widest = widest.max(apart(*first.get_or_insert(node), node));
            }
            match widest {
                0 => "node".to_string(),
                level if level <= fabric.levels.len() => fabric.levels[level - 1].name.clone(),
                _ => "any".to_string(),
            }
        });
        Spans { levels }
    }
}

/// What goes into the file that `GPUOS_RANK_FILE` names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RankFile<'a> {
    /// The job's shape.
    pub shape: GroupShape,
    /// Names of the nodes in the order of the fabric, each with the same number of GPUs.
    pub nodes: &'a [String],
    /// GPUs, and so ranks, of a node.
    pub per_node: u32,
    /// GPUs of the node that the file is for, in the order of its ranks.
    pub gpus: &'a [usize],
    /// Socket of each of these GPUs; empty when the job does not have whole nodes.
    pub sockets: &'a [u16],
}

impl RankFile<'_> {
    /// The text: an Open MPI rankfile (`mpirun --rankfile`), with the order of the nodes and of the
    /// GPUs in comments, which scripts for torchrun read:
    ///
    /// ```text
    /// # gpuos ranks, shape tp2:pp2
    /// #node 0 n2
    /// #node 1 n1
    /// #gpus 0,1
    /// rank 0=n2 slot=0:*
    /// rank 1=n2 slot=0:*
    /// rank 2=n1 slot=0:*
    /// rank 3=n1 slot=0:*
    /// ```
    pub fn text(&self) -> String {
        let blocks = spread(&self.shape, self.per_node);
        let mut node_of = vec![""; blocks.len()];
        for (&block, node) in blocks.iter().zip(self.nodes) {
            node_of[block as usize] = node;
        }
        let mut text = format!("# gpuos ranks, shape {}\n", self.shape);
        for (rank, node) in node_of.iter().enumerate() {
            let _ = writeln!(text, "#node {rank} {node}");
        }
        let gpus: Vec<String> = self.gpus.iter().map(ToString::to_string).collect();
        let _ = writeln!(text, "#gpus {}", gpus.join(","));
        // A rank may use all cores of its GPU's socket that the job has. mpirun counts only sockets
        // that the job may use, so that a job with parts of nodes can be sure of the first one only.
        for rank in 0..self.shape.ranks() {
            let per_node = self.per_node.max(1);
            let node = node_of[(rank / per_node) as usize];
            let socket = self.sockets.get((rank % per_node) as usize).unwrap_or(&0);
            let _ = writeln!(text, "rank {rank}={node} slot={socket}:*");
        }
        text
    }
}
