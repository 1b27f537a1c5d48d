//! A tree over the positions: groups of at most 64 nodes at its leaves, the domains of the fabric
//! above them, the whole cluster at its root. What is kept of a group follows from its nodes, what
//! is kept of a wider knot from that of its few children: so one node that changes costs a way up, not
//! a look at all.
use super::bits;
use super::fabric::FabricIndex;

/// Nodes of a leaf at most.
const LEAF: u32 = 64;
/// Children of a knot at most, but for knots that stand for nothing but their one child.
const CHILDREN: usize = 16;
/// A knot that is no domain: it stands between domains, where one has many children.
const BETWEEN: u32 = u32::MAX;

/// A range of positions.
#[derive(Clone, Copy, Debug)]
pub struct TreeNode {
    pub start: u32,
    pub end: u32,
    parent: u32,
    /// Its children: a range of `Tree::kids`; empty at a leaf.
    kids: (u32, u32),
    /// The narrowest level of the fabric with a span around it, and the number of that span if it
    /// is the knot itself.
    level: usize,
    span: u32,
}

impl TreeNode {
    /// The number of the span of a level that the knot is, if it is one.
    pub fn span(&self, level: usize) -> Option<usize> {
        (self.level == level && self.span != BETWEEN).then_some(self.span as usize)
    }

    /// Whether it lies in no more than one span of the level, without being all of it.
    pub fn below(&self, level: usize) -> bool {
        self.level < level || self.level == level && self.span == BETWEEN
    }
}

/// Knots in an order in which children come before their parents; the root is the last.
#[derive(Debug, Default)]
pub struct Tree {
    knots: Vec<TreeNode>,
    kids: Vec<u32>,
    /// By position: its leaf.
    leaf: Vec<u32>,
    /// By level and span: its knot.
    of_span: Vec<Vec<u32>>,
    /// By level: no knot at or above the level comes before this one.
    first: Vec<u32>,
}

impl Tree {
    /// The tree of a fabric with nodes in it.
    pub fn new(fabric: &FabricIndex) -> Tree {
        let mut tree = Tree {
            leaf: vec![0; fabric.len() as usize],
            ..Tree::default()
        };
        for level in 0..=fabric.levels {
            tree.first.push(tree.knots.len() as u32);
            let mut knots = Vec::new();
            for (number, span) in fabric.spans(level).iter().enumerate() {
                let mut under: Vec<u32> = match level {
                    0 if span.end - span.start <= LEAF => Vec::new(),
                    0 => (span.start..span.end)
                        .step_by(LEAF as usize)
                        .map(|start| {
                            let end = span.end.min(start + LEAF);
                            tree.push((start, end), &[], level, BETWEEN)
                        })
                        .collect(),
                    _ => (span.children.0..span.children.1)
                        .map(|child| tree.of_span[level - 1][child as usize])
                        .collect(),
                };
                while under.len() > CHILDREN {
                    let groups = under.chunks(CHILDREN);
                    let range = |group: &[u32]| {
                        let last = group.last().copied().unwrap_or(group[0]);
                        let of = |knot: u32| tree.knots[knot as usize];
                        (of(group[0]).start, of(last).end)
                    };
                    let ranges: Vec<_> = groups.clone().map(range).collect();
                    let join = |(group, range)| tree.push(range, group, level, BETWEEN);
                    under = groups.zip(ranges).map(join).collect();
                }
                let range = (span.start, span.end);
                knots.push(tree.push(range, &under, level, number as u32));
            }
            tree.of_span.push(knots);
        }
        tree
    }

    fn push(&mut self, (start, end): (u32, u32), kids: &[u32], level: usize, span: u32) -> u32 {
        let number = self.knots.len() as u32;
        for &kid in kids {
            self.knots[kid as usize].parent = number;
        }
        if kids.is_empty() {
            self.leaf[start as usize..end as usize].fill(number);
        }
        let first = self.kids.len() as u32;
        self.kids.extend_from_slice(kids);
        self.knots.push(TreeNode {
            start,
            end,
            parent: number,
            kids: (first, self.kids.len() as u32),
            level,
            span,
        });
        number
    }

    /// Number of knots.
    pub fn len(&self) -> usize {
        self.knots.len()
    }

    /// A knot.
    pub fn node(&self, number: usize) -> &TreeNode {
        &self.knots[number]
    }

    /// The children of a knot.
    pub fn kids(&self, knot: &TreeNode) -> &[u32] {
        &self.kids[knot.kids.0 as usize..knot.kids.1 as usize]
    }

    /// The leaf that a position is in.
    pub fn leaf(&self, at: u32) -> u32 {
        self.leaf[at as usize]
    }

    /// The knot of a span.
    pub fn of_span(&self, level: usize, span: usize) -> u32 {
        self.of_span[level][span]
    }

    /// The first knot that can be a span of this level or a wider one.
    pub fn first(&self, level: usize) -> usize {
        self.first[level] as usize
    }

    /// Takes the lowest knot out of a set of them and puts its parent in.
    pub fn climb(&self, set: &mut [u64], from: u32) -> Option<u32> {
        let knot = bits::next(set, from)?;
        bits::set_member(set, knot, false);
        let parent = self.knots[knot as usize].parent;
        if parent != knot {
            bits::set_member(set, parent, true);
        }
        Some(knot)
    }
}
