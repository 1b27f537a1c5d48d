//! The network between the nodes as a graph with link capacities, and what a gang of nodes can
//! expect of it.
//!
//! One type, [`Net`], stands for every kind of fabric: trees (fat tree and Clos of any depth, also
//! rail-optimised), torus, hypercube, dragonfly, any graph of switches, and islands of different
//! kinds side by side, each with NVLink domains across nodes on top. A net knows
//!
//! - its directed links with their capacities, and the route between any two ports ([`route`]);
//! - the bus bandwidth that NCCL's rings would reach over a set of nodes and GPUs, with what
//!   running gangs were promised counted in ([`Net::bandwidth`], [`Promises`]);
//! - nested domains for the planner's search, whatever the kind ([`Net::fabric`]);
//! - with [`Traffic`](crate::traffic::Traffic) on top, what the planner's choices are worth beside the running gangs.
//!
//! All figures are whole hundredths of GB/s per direction, so that every machine decides alike.

mod bandwidth;
mod build;
mod kinds;
mod levels;
mod recipe;
mod route;
mod torus;

pub use bandwidth::{Promise, Promises, Scratch};
pub use kinds::{Dragonfly, Graph, GraphLink, Island, Kind, MAX_GRAPH_SWITCHES, Tree, Uplink};
pub use recipe::Recipe;

use gpuos_model::cluster::Fabric;
use gpuos_model::gpuset::GpuSet;
use route::Router;

/// A capacity or bandwidth that nobody knows or that nothing bounds.
pub const UNBOUNDED: u32 = u32::MAX;

/// Hundredths of GB/s in one GB/s.
pub const UNITS_PER_GBPS: u32 = 100;

/// Marks what is absent in index tables.
pub(crate) const NONE: u32 = u32::MAX;

/// The hundredths of GB/s of a rate; 0 or less, and what is no number, is [`UNBOUNDED`]: not known.
pub fn units(gbps: f64) -> u32 {
    match gbps > 0.0 {
        true => (gbps * f64::from(UNITS_PER_GBPS)).round().clamp(1.0, 1e9) as u32,
        false => UNBOUNDED,
    }
}

/// The levels of islands, without those of NVLink domains.
pub fn levels_of(nodes: usize, islands: &[Island]) -> Fabric {
    levels::of_islands(nodes, islands, None)
}

/// Where a node meets the fabric: one network adapter.
#[derive(Clone, Debug)]
pub(crate) struct Port {
    /// Index of the adapter's rail.
    pub rail: u16,
    /// Switch that it hangs on; [`NONE`] where the fabric does not name the node.
    pub switch: u32,
    /// Link from the node; the link to the node is the next one.
    pub link: u32,
    /// GPUs whose nearest adapter this is.
    pub near: GpuSet,
}

/// A network between the nodes of a cluster. Nodes are counted as in the cluster.
#[derive(Clone, Debug, Default)]
pub struct Net {
    /// Capacity of each directed link; [`UNBOUNDED`] when not known.
    capacity: Vec<u32>,
    /// Names of the switches.
    switches: Vec<String>,
    /// Island of each switch.
    island_of: Vec<u16>,
    /// Islands: how routes go in each.
    islands: Vec<Ways>,
    /// Ports of all nodes, and where those of each node start.
    ports: Vec<Port>,
    starts: Vec<u32>,
    /// NVLink domain across nodes of each node or [`NONE`], and the rate of each domain.
    nvlink: Vec<u32>,
    nvlink_units: Vec<u32>,
    /// Rank of each node in the order in which rings visit nodes.
    rank: Vec<u32>,
    /// Names of the nodes, for [`Net::link_name`].
    names: Vec<String>,
    fabric: Fabric,
}

/// Routes of one island, and its way to the others.
#[derive(Clone, Debug)]
struct Ways {
    router: Router,
    /// First switch of the island.
    first: u32,
    /// Link out of the island; the link into it is the next one.
    border: u32,
    /// The order of a torus.
    torus: Option<torus::Torus>,
}

impl Net {
    /// Number of nodes.
    pub fn nodes(&self) -> usize {
        self.rank.len()
    }

    /// Number of directed links, those between nodes and switches included.
    pub fn links(&self) -> usize {
        self.capacity.len()
    }

    /// Capacity of a directed link in hundredths of GB/s; [`UNBOUNDED`] when not known or no link.
    pub fn capacity(&self, link: u32) -> u32 {
        let known = self.capacity.get(link as usize);
        known.copied().unwrap_or(UNBOUNDED)
    }

    /// The levels and domains of this fabric, for the planner: from the narrowest to the widest,
    /// each domain inside one of the next level.
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// The nodes in the order in which rings visit them: domain after domain, on a torus neighbour
    /// after neighbour.
    pub fn ring_order(&self) -> Vec<u32> {
        let mut order: Vec<u32> = (0..self.nodes() as u32).collect();
        order.sort_unstable_by_key(|&node| self.rank[node as usize]);
        order
    }

    /// The ports of a node.
    pub(crate) fn ports(&self, node: u32) -> &[Port] {
        let from = self.starts[node as usize] as usize;
        let to = self.starts[node as usize + 1] as usize;
        &self.ports[from..to]
    }

    /// Calls `visit` with each directed link on the way from port `a` to port `b`. Ports that hang
    /// on no known switch have their own links only.
    pub(crate) fn walk(&self, a: &Port, b: &Port, mut visit: impl FnMut(u32)) {
        visit(a.link);
        if a.switch != NONE && b.switch != NONE && a.switch != b.switch {
            let one = self.island_of[a.switch as usize] as usize;
            let two = self.island_of[b.switch as usize] as usize;
            if one == two {
                let ways = &self.islands[one];
                let spread = u32::from(a.rail);
                let (from, to) = (a.switch - ways.first, b.switch - ways.first);
                ways.router.walk(from, to, spread, &mut visit);
            } else {
                let (out, into) = (&self.islands[one], &self.islands[two]);
                out.router.leave(a.switch - out.first, &mut visit);
                visit(out.border);
                visit(into.border + 1);
                into.router.enter(b.switch - into.first, &mut visit);
            }
        }
        visit(b.link + 1);
    }

    /// The directed links on the way from a port of one node to a port of another, by the places
    /// of their adapters in the node types. Empty when there is no such node or port.
    pub fn path(&self, from: (u32, usize), to: (u32, usize)) -> Vec<u32> {
        let port = |(node, port): (u32, usize)| {
            let known = (node as usize) < self.nodes();
            known.then(|| self.ports(node).get(port)).flatten()
        };
        let mut links = Vec::new();
        if let (Some(a), Some(b)) = (port(from), port(to)) {
            self.walk(a, b, |link| links.push(link));
        }
        links
    }

    /// What a link joins, in words for people.
    pub fn link_name(&self, link: u32) -> String {
        let port = self.ports.iter().position(|port| port.link == link & !1);
        if let Some(at) = port {
            let node = self.starts.partition_point(|&start| start as usize <= at) - 1;
            let rail = self.ports[at].rail;
            let way = if link & 1 == 0 { "from" } else { "to" };
            return format!("{way} node {}, rail {rail}", self.names[node]);
        }
        for ways in &self.islands {
            if ways.border == link & !1 {
                return "between islands".into();
            }
            if let Some((from, to)) = ways.router.ends(link) {
                let name = |switch: u32| match switch {
                    NONE => "core",
                    at => &self.switches[(ways.first + at) as usize],
                };
                return format!("{} to {}", name(from), name(to));
            }
        }
        format!("link {link}")
    }
}
