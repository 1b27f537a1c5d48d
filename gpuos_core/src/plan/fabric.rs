//! The fabric as the planner walks it: the nodes of each domain, domain by domain.

use crate::model::{Cluster, NO_DOMAIN};

/// The nodes of one domain: a range of the level's order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Span {
    /// Domain id; 0 at the level `any`.
    pub domain: u32,
    /// First position in the order.
    pub start: u32,
    /// Position after the last.
    pub end: u32,
}

/// Nodes by domain for each level, and for the level `any` past the last one.
#[derive(Debug)]
pub struct FabricIndex {
    /// Number of fabric levels; `any` has this index.
    pub levels: usize,
    /// By level: the nodes with GPUs, sorted by their domains from this level inwards.
    order: Vec<Vec<u32>>,
    /// By level: the domains that have such nodes.
    spans: Vec<Vec<Span>>,
    /// By level: domain of each node, by node index.
    domain: Vec<Vec<u32>>,
    /// By level: one more than the highest domain id.
    pub ids: Vec<usize>,
}

impl FabricIndex {
    /// Builds the index over the nodes that have a type.
    pub fn new(cluster: &Cluster) -> FabricIndex {
        let levels = cluster.fabric.levels.len();
        let nodes = cluster.nodes.len();
        let mut domain: Vec<Vec<u32>> = cluster
            .fabric
            .levels
            .iter()
            .map(|level| {
                (0..nodes)
                    .map(|n| level.domain_of.get(n).copied().unwrap_or(NO_DOMAIN))
                    .collect()
            })
            .collect();
        domain.push(vec![0; nodes]);
        let mut order = Vec::new();
        let mut spans = Vec::new();
        for level in 0..=levels {
            let mut list: Vec<u32> = (0..nodes as u32)
                .filter(|&n| cluster.nodes[n as usize].node_type.is_some())
                .filter(|&n| domain[level][n as usize] != NO_DOMAIN)
                .collect();
            // A stable sort by the narrowest level first, the widest last.
            for inner in &domain[..=level] {
                list.sort_by_key(|&n| inner[n as usize]);
            }
            let mut of_level: Vec<Span> = Vec::new();
            for (at, &node) in list.iter().enumerate() {
                let id = domain[level][node as usize];
                match of_level.last_mut() {
                    Some(span) if span.domain == id => span.end = at as u32 + 1,
                    _ => of_level.push(Span {
                        domain: id,
                        start: at as u32,
                        end: at as u32 + 1,
                    }),
                }
            }
            order.push(list);
            spans.push(of_level);
        }
        let ids = domain
            .iter()
            .map(|of| {
                let used = of.iter().filter(|&&d| d != NO_DOMAIN);
                used.max().map_or(0, |&d| d as usize + 1)
            })
            .collect();
        FabricIndex {
            levels,
            order,
            spans,
            domain,
            ids,
        }
    }

    /// Domain of a node at a level, or [`NO_DOMAIN`]; at the level `any` always 0.
    pub fn domain(&self, level: usize, node: u32) -> u32 {
        self.domain[level][node as usize]
    }

    /// The domains of a level.
    pub fn spans(&self, level: usize) -> &[Span] {
        &self.spans[level]
    }

    /// The nodes of a domain.
    pub fn nodes(&self, level: usize, span: Span) -> &[u32] {
        &self.order[level][span.start as usize..span.end as usize]
    }

    /// All nodes that have a type.
    pub fn all(&self) -> &[u32] {
        &self.order[self.levels]
    }

    /// The narrowest level at which all nodes are in one domain, and the domain.
    pub fn common(&self, mut nodes: impl Iterator<Item = u32> + Clone) -> (usize, Option<u32>) {
        let Some(first) = nodes.next() else {
            return (self.levels, None);
        };
        for level in 0..self.levels {
            let domain = self.domain(level, first);
            if domain != NO_DOMAIN && nodes.clone().all(|n| self.domain(level, n) == domain) {
                return (level, Some(domain));
            }
        }
        (self.levels, None)
    }
}
