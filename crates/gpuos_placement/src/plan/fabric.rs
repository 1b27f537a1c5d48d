//! The fabric as the planner walks it. Nodes with GPUs stand in one order, by *position*: sorted
//! by their domains from the widest level inwards, then by index. So each domain is a range of
//! positions, and a set of nodes is a string of bits in which domains can be counted.
use gpuos_model::cluster::{Cluster, NO_DOMAIN};

use super::bits;

/// Position of a node that has no GPUs the planner knows of.
pub const NOWHERE: u32 = u32::MAX;

/// The nodes of one domain, or those of a wider domain that are in none of this level.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// Domain id; 0 at the level `any`, [`NO_DOMAIN`] for nodes in none.
    pub domain: u32,
    /// First position.
    pub start: u32,
    /// Position after the last.
    pub end: u32,
    /// The span of the next wider level that it lies in.
    pub parent: u32,
    /// The spans of the next narrower level that lie in it: `children.0..children.1`.
    pub children: (u32, u32),
}

/// A run of nodes whose indices and positions both ascend by one, within one word of indices.
#[derive(Clone, Copy, Debug)]
struct Run {
    node: u32,
    at: u32,
    len: u32,
}

/// Nodes by domain for each level, and for the level `any` past the last one.
#[derive(Debug)]
pub struct FabricIndex {
    /// Number of fabric levels; `any` has this index.
    pub levels: usize,
    /// Words of a set of positions.
    pub words: usize,
    /// Node at each position.
    order: Vec<u32>,
    /// Position of each node, or [`NOWHERE`].
    place: Vec<u32>,
    /// By level: spans in the order of positions; together they cover every position.
    spans: Vec<Vec<Span>>,
    /// By level: nodes of its largest domain.
    widest: Vec<u32>,
    /// By level: domain of each node, by node index.
    domain: Vec<Vec<u32>>,
    /// By level: the positions that are in a domain.
    inside: Vec<Vec<u64>>,
    /// By position: its span of the narrowest level.
    cell: Vec<u32>,
    /// By span of the narrowest level: the position after its last; and by level and span, the one
    /// that it lies in. The same as in `spans`, so close together that a pass over all reads little.
    ends: Vec<u32>,
    parents: Vec<Vec<u32>>,
    /// Whether nodes stand in the order of their indices.
    ascending: bool,
    /// Whether the narrowest level is that of NVLink domains.
    pub islands: bool,
    runs: Vec<Run>,
    /// Whether position and index are the same for every node.
    plain: bool,
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
        let mut order: Vec<u32> = (0..nodes as u32)
            .filter(|&n| cluster.nodes[n as usize].node_type.is_some())
            .collect();
        // Stable sorts by the narrowest level first, the widest last.
        for of in &domain {
            order.sort_by_key(|&n| of[n as usize]);
        }
        let mut place = vec![NOWHERE; nodes];
        for (at, &node) in order.iter().enumerate() {
            place[node as usize] = at as u32;
        }
        let words = bits::words_for(order.len());
        let inside = domain
            .iter()
            .map(|of| {
                let mut set = vec![0; words];
                for (at, &node) in order.iter().enumerate() {
                    bits::set_member(&mut set, at as u32, of[node as usize] != NO_DOMAIN);
                }
                set
            })
            .collect();
        let spans = cut(&order, &domain);
        let mut cell = vec![0; order.len()];
        for (index, span) in spans[0].iter().enumerate() {
            cell[span.start as usize..span.end as usize].fill(index as u32);
        }
        let ends = spans[0].iter().map(|span| span.end).collect();
        let parents = |spans: &Vec<Span>| spans.iter().map(|span| span.parent).collect();
        let parents = spans.iter().map(parents).collect();
        let widest = |spans: &Vec<Span>| {
            let domains = spans.iter().filter(|span| span.domain != NO_DOMAIN);
            domains.map(|span| span.end - span.start).max().unwrap_or(0)
        };
        FabricIndex {
            widest: spans.iter().map(widest).collect(),
            spans,
            cell,
            islands: cluster
                .fabric
                .levels
                .first()
                .is_some_and(|l| l.name == "nvlink"),
            runs: runs(&place),
            ends,
            parents,
            ascending: order.is_sorted(),
            plain: order.iter().enumerate().all(|(at, &n)| at == n as usize),
            levels,
            words,
            order,
            place,
            domain,
            inside,
        }
    }

    /// Domain of a node at a level, or [`NO_DOMAIN`]; at the level `any` always 0.
    pub fn domain(&self, level: usize, node: u32) -> u32 {
        self.domain[level][node as usize]
    }

    /// The spans of a level, those of nodes in no domain included.
    pub fn spans(&self, level: usize) -> &[Span] {
        &self.spans[level]
    }

    /// Nodes of the largest domain of a level.
    pub fn widest(&self, level: usize) -> u32 {
        self.widest[level]
    }

    /// Number of nodes with GPUs.
    pub fn len(&self) -> u32 {
        self.order.len() as u32
    }

    /// Node at a position.
    pub fn node(&self, at: u32) -> u32 {
        self.order[at as usize]
    }

    /// Whether the node at one position has a lower index than that at another.
    pub fn is_before(&self, at: u32, other: u32) -> bool {
        match self.ascending {
            true => at < other,
            false => self.node(at) < self.node(other),
        }
    }

    /// Position of a node, if it has GPUs.
    pub fn place(&self, node: u32) -> Option<u32> {
        let place = self.place.get(node as usize).copied();
        place.filter(|&at| at != NOWHERE)
    }

    /// The span of the narrowest level that a position is in.
    pub fn cell(&self, at: u32) -> usize {
        self.cell[at as usize] as usize
    }

    /// By span of the narrowest level: the position after its last.
    pub fn ends(&self) -> &[u32] {
        &self.ends
    }

    /// The span of the next wider level that a span of this one lies in.
    pub fn parent(&self, level: usize, span: usize) -> usize {
        self.parents[level][span] as usize
    }

    /// A zero for every span of every level.
    pub fn by_span(&self) -> Vec<Vec<u32>> {
        let zeros = |spans: &Vec<Span>| vec![0; spans.len()];
        self.spans.iter().map(zeros).collect()
    }

    /// Visits the domains that a position lies in, by level and span, but for the level `any`.
    pub fn around(&self, at: u32, mut visit: impl FnMut(usize, usize)) {
        let mut span = self.cell(at);
        for level in 0..self.levels {
            if self.spans[level][span].domain != NO_DOMAIN {
                visit(level, span);
            }
            span = self.parent(level, span);
        }
    }

    /// The nodes that are in some domain of a level.
    pub fn inside(&self, level: usize) -> &[u64] {
        &self.inside[level]
    }

    /// Narrows the positions in `set` to the nodes of a bitmap by node index; nodes past its end
    /// are not in it.
    pub fn restrict(&self, nodes: &[u64], set: &mut [u64], room: &mut [u64]) {
        if self.plain {
            let nodes = nodes.iter().chain(std::iter::repeat(&0));
            set.iter_mut().zip(nodes).for_each(|(word, n)| *word &= n);
            return;
        }
        room.fill(0);
        for run in &self.runs {
            let from = nodes.get(run.node as usize / 64).copied().unwrap_or(0);
            let part = from >> (run.node % 64) & (u64::MAX >> (64 - run.len));
            let (word, shift) = (run.at as usize / 64, run.at % 64);
            room[word] |= part << shift;
            if shift + run.len > 64 {
                room[word + 1] |= part >> (64 - shift);
            }
        }
        for (word, allowed) in set.iter_mut().zip(room) {
            *word &= *allowed;
        }
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

/// Cuts the order into spans, level by level from the widest.
fn cut(order: &[u32], domain: &[Vec<u32>]) -> Vec<Vec<Span>> {
    let mut spans: Vec<Vec<Span>> = vec![Vec::new(); domain.len()];
    let any = domain.len() - 1;
    if !order.is_empty() {
        spans[any].push(Span {
            domain: 0,
            start: 0,
            end: order.len() as u32,
            parent: 0,
            children: (0, 0),
        });
    }
    for level in (0..any).rev() {
        let mut inner: Vec<Span> = Vec::new();
        for (parent, outer) in spans[level + 1].iter_mut().enumerate() {
            let first = inner.len() as u32;
            for at in outer.start..outer.end {
                let id = domain[level][order[at as usize] as usize];
                match inner.last_mut() {
                    Some(span) if at > outer.start && span.domain == id => span.end = at + 1,
                    _ => inner.push(Span {
                        domain: id,
                        start: at,
                        end: at + 1,
                        parent: parent as u32,
                        children: (0, 0),
                    }),
                }
            }
            outer.children = (first, inner.len() as u32);
        }
        spans[level] = inner;
    }
    spans
}

fn runs(place: &[u32]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (node, &at) in place.iter().enumerate() {
        if at == NOWHERE {
            continue;
        }
        let node = node as u32;
        match runs.last_mut() {
            Some(run)
                if !node.is_multiple_of(64)
                    && run.node + run.len == node
                    && run.at + run.len == at =>
            {
                run.len += 1;
            }
            _ => runs.push(Run { node, at, len: 1 }),
        }
    }
    runs
}
