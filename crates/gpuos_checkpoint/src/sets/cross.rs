//! Two levels that cross each other: edges of a bipartite graph, coloured.
//!
//! Domains are vertices, those of one level on each side. A node is an edge between its two domains, and its set a colour: that
//! no set has a domain twice is that edges of one colour never meet. As many colours as the largest vertex has edges are
//! always enough (Kőnig 1916; the construction by alternating paths is in Bondy, Murty: "Graph Theory with Applications",
//! theorem 6.1), and the colours can be made equally frequent (de Werra: "Equitable colorations of graphs", 1971). So counting
//! alone decides whether two levels can be kept apart.

use std::collections::{BTreeMap, BTreeSet};

use super::domains::Level;

/// The set of each node, for levels without a domain of more nodes than there are `sets`. Sizes differ by one at most.
pub(super) fn cross(one: &Level, other: &Level, sets: usize) -> Vec<usize> {
    let vertices = one.sizes.len() + other.sizes.len();
    let pairs = one.domain.iter().zip(&other.domain);
    let mut graph = Graph {
        ends: pairs.map(|(a, b)| [*a, one.sizes.len() + *b]).collect(),
        colour: vec![0; one.domain.len()],
        at: vec![BTreeMap::new(); vertices],
        edges: vec![BTreeSet::new(); sets],
    };
    for edge in 0..graph.ends.len() {
        graph.insert(edge);
    }
    while graph.level_out() {}
    graph.colour
}

struct Graph {
    ends: Vec<[usize; 2]>,
    colour: Vec<usize>,
    /// The edges at each vertex by colour.
    at: Vec<BTreeMap<usize, usize>>,
    /// The edges of each colour.
    edges: Vec<BTreeSet<usize>>,
}

impl Graph {
    fn is_free(&self, vertex: usize, colour: usize) -> bool {
        !self.at[vertex].contains_key(&colour)
    }

    fn insert(&mut self, edge: usize) {
        let [u, v] = self.ends[edge];
        let sets = self.edges.len();
        // Each begins to look at another colour, so that all become about equally frequent.
        let mut colours = (0..sets).map(|step| (edge + step) % sets);
        if let Some(both) = colours
            .clone()
            .find(|c| self.is_free(u, *c) && self.is_free(v, *c))
        {
            return self.paint(edge, both);
        }
        // Neither vertex has as many edges as there are colours yet, for this edge is still missing.
        let free = [u, v].map(|end| colours.clone().find(|c| self.is_free(end, *c)));
        let first = colours.next().unwrap_or(0);
        let [a, b] = free.map(|colour| colour.unwrap_or(first));
        // It never comes to `u`, where it would arrive on an edge of colour `a`: both sides take turns.
        let path = self.path(v, [a, b]);
        self.flip(&path, [a, b]);
        self.paint(edge, a);
    }

    /// The edges that a walk meets which takes the colours in turn.
    fn path(&self, from: usize, [first, second]: [usize; 2]) -> Vec<usize> {
        let (mut vertex, mut colour, mut path) = (from, first, Vec::new());
        while let Some(edge) = self.at[vertex].get(&colour) {
            path.push(*edge);
            let [u, v] = self.ends[*edge];
            vertex = u + v - vertex;
            colour = first + second - colour;
        }
        path
    }

    /// Exchanges two colours along a path.
    fn flip(&mut self, path: &[usize], [one, other]: [usize; 2]) {
        for edge in path {
            let colour = self.colour[*edge];
            self.edges[colour].remove(edge);
            for end in self.ends[*edge] {
                self.at[end].remove(&colour);
            }
        }
        for edge in path {
            self.paint(*edge, one + other - self.colour[*edge]);
        }
    }

    fn paint(&mut self, edge: usize, colour: usize) {
        self.colour[edge] = colour;
        self.edges[colour].insert(edge);
        for end in self.ends[edge] {
            self.at[end].insert(colour, edge);
        }
    }

    /// Gives an edge of the most frequent colour to the rarest. Whether they differed by more than one.
    fn level_out(&mut self) -> bool {
        let sizes = || self.edges.iter().map(BTreeSet::len).enumerate();
        let most = sizes().max_by_key(|(_, size)| *size);
        let least = sizes().min_by_key(|(_, size)| *size);
        let (Some((often, most)), Some((rare, least))) = (most, least) else {
            return false;
        };
        if most <= least + 1 {
            return false;
        }
        // Edges of both colours make up paths and even rings. One path at least has the frequent colour at both ends.
        let ends = self.edges[often].iter().flat_map(|edge| self.ends[*edge]);
        let starts = ends.filter(|vertex| self.is_free(*vertex, rare));
        let mut paths = starts.map(|vertex| self.path(vertex, [often, rare]));
        let Some(longer) = paths.find(|path| !path.len().is_multiple_of(2)) else {
            return false;
        };
        self.flip(&longer, [often, rare]);
        true
    }
}
