//! From a cluster and the description of its fabric to the graph.
use gpuos_model::cluster::{Cluster, Fabric, FabricLevel, Link, NO_DOMAIN, NodeType};
use gpuos_model::gpuset::GpuSet;

use super::kinds::{Island, Kind, MAX_GRAPH_SWITCHES, Tree, TreeLevel, Uplink};
use super::route::{Router, table};
use super::torus::Torus;
use super::{NONE, Net, Port, UNBOUNDED, Ways, levels, units};

/// Rails that are told apart; adapters past this count as the last one.
const MAX_RAILS: u16 = 64;

/// Name of the level whose domains are NVLink domains across nodes.
const NVLINK: &str = "nvlink";

impl Net {
    /// The network of a cluster whose fabric is given by its levels, as from switches or Slurm's
    /// topology files. `uplinks` are those of the fabric's levels; with `rails`, each domain of the
    /// lowest level has a leaf switch for each rail. A level `nvlink` is the NVLink domains.
    pub fn of_levels(cluster: &Cluster, uplinks: &[Uplink], rails: bool) -> Net {
        let fabric = &cluster.fabric;
        let of = |level: &FabricLevel| {
            let of = |node: usize| level.domain_of.get(node).copied().unwrap_or(NO_DOMAIN);
            (0..cluster.nodes.len()).map(of).collect::<Vec<u32>>()
        };
        let tree = fabric.levels.iter().enumerate();
        let tree = tree.filter(|(_, level)| level.name != NVLINK);
        let level = |(at, level): (usize, &FabricLevel)| TreeLevel {
            name: level.name.clone(),
            domains: level.domains.clone(),
            of: of(level),
            uplink: uplinks.get(at).copied().unwrap_or_default(),
        };
        let island = Island {
            name: String::new(),
            nodes: (0..cluster.nodes.len() as u32).map(Some).collect(),
            kind: Kind::Tree(Tree {
                levels: tree.map(level).collect(),
                rails,
            }),
            port_units: UNBOUNDED,
            border_units: UNBOUNDED,
        };
        let nvlink = fabric.levels.iter().find(|level| level.name == NVLINK);
        let mut net = Net::build(cluster, &[island], nvlink);
        net.apply_levels(fabric.clone());
        net
    }

    /// The network of a cluster made of islands, with NVLink domains across nodes on top. The
    /// levels come of the islands; what the cluster says of its fabric does not count.
    ///
    /// # Errors
    /// A node in two islands, more nodes than a fabric has places, a number of a kind that is 0.
    pub fn new(
        cluster: &Cluster,
        islands: &[Island],
        nvlink: Option<&FabricLevel>,
    ) -> Result<Net, String> {
        let mut owner: Vec<Option<usize>> = vec![None; cluster.nodes.len()];
        for (at, island) in islands.iter().enumerate() {
            check(island)?;
            for &node in island.nodes.iter().flatten() {
                let name = |at: usize| &islands[at].name;
                let Some(owner) = owner.get_mut(node as usize) else {
                    return Err(format!(
                        "{} has a node that is not in the cluster",
                        island.name
                    ));
                };
                if let Some(other) = owner.replace(at) {
                    let node = &cluster.nodes[node as usize].name;
                    return Err(match other == at {
                        true => format!("node {node} is in {} twice", island.name),
                        false => {
                            format!("node {node} is in {} and in {}", name(other), island.name)
                        }
                    });
                }
            }
        }
        let mut net = Net::build(cluster, islands, nvlink);
        let fabric = levels::of_islands(cluster.nodes.len(), islands, nvlink);
        net.apply_levels(fabric);
        Ok(net)
    }

    fn build(cluster: &Cluster, islands: &[Island], nvlink: Option<&FabricLevel>) -> Net {
        let nodes = cluster.nodes.len();
        let mut net = Net {
            names: cluster.nodes.iter().map(|node| node.name.clone()).collect(),
            starts: vec![0],
            ..Net::default()
        };
        let mut place: Vec<Option<(usize, usize)>> = vec![None; nodes];
        for (island, at) in islands.iter().zip(0..) {
            for (spot, node) in island.nodes.iter().enumerate() {
                if let Some(node) = node {
                    place[*node as usize] = Some((at, spot));
                }
            }
        }
        for (at, node) in cluster.nodes.iter().enumerate() {
            let bound = place[at].map_or(UNBOUNDED, |(island, _)| islands[island].port_units);
            for (rail, near, units) in adapters(node.node_type.as_deref()) {
                let link = net.link(units.min(bound));
                net.ports.push(Port {
                    rail,
                    switch: NONE,
                    link,
                    near,
                });
            }
            net.starts.push(net.ports.len() as u32);
        }
        for (at, island) in islands.iter().enumerate() {
            net.add(at, island);
        }
        net.nvlink = vec![NONE; nodes];
        if let Some(level) = nvlink {
            net.nvlink_units = vec![units(f64::from(level.gbps)); level.domains.len()];
            for (node, &domain) in level.domain_of.iter().enumerate().take(nodes) {
                let Some(rate) = net.nvlink_units.get_mut(domain as usize) else {
                    continue;
                };
                net.nvlink[node] = domain;
                // Without a rate of its own, the domain is as fast as the nodes' own NVLinks.
                let own = cluster.nodes[node].node_type.as_deref().map(node_nvlink);
                if level.gbps <= 0.0 {
                    *rate = (*rate).min(own.unwrap_or(UNBOUNDED));
                }
            }
        }
        net
    }

    /// Takes the levels over and ranks the nodes by them.
    fn apply_levels(&mut self, fabric: Fabric) {
        let torus = |node: u32| {
            let port = self
                .ports(node)
                .first()
                .filter(|port| port.switch != NONE)?;
            let ways = &self.islands[self.island_of[port.switch as usize] as usize];
            Some(ways.torus.as_ref()?.snake(port.switch - ways.first))
        };
        let island = |node: u32| {
            let port = self.ports(node).first().filter(|port| port.switch != NONE);
            port.map_or(u16::MAX, |port| self.island_of[port.switch as usize])
        };
        let nodes = self.names.len() as u32;
        let snake: Vec<_> = (0..nodes).map(|node| (island(node), torus(node))).collect();
        let mut order: Vec<u32> = (0..nodes).collect();
        // A stable sort by the narrowest level first, the widest last.
        for level in &fabric.levels {
            let of = |node: &u32| level.domain_of.get(*node as usize).copied();
            order.sort_by_key(|node| of(node).unwrap_or(NO_DOMAIN));
        }
        // Rings visit domain after domain; on a torus neighbour after neighbour.
        order.sort_by_key(|&node| snake[node as usize]);
        self.rank = vec![0; order.len()];
        for (rank, &node) in order.iter().enumerate() {
            self.rank[node as usize] = rank as u32;
        }
        self.fabric = fabric;
    }

    /// A pair of links; returns the first one.
    fn link(&mut self, units: u32) -> u32 {
        let link = self.capacity.len() as u32;
        self.capacity.extend([units; 2]);
        link
    }

    fn links_of(&mut self, pairs: usize, units: u32) -> u32 {
        let first = self.capacity.len() as u32;
        self.capacity.resize(self.capacity.len() + 2 * pairs, units);
        first
    }

    fn switch(&mut self, island: usize, name: String) -> u32 {
        self.switches.push(name);
        self.island_of.push(island as u16);
        self.switches.len() as u32 - 1
    }

    /// Hangs the ports of the island's nodes on switches, by place and rail.
    fn attach(&mut self, island: &Island, switch: impl Fn(usize, u16) -> Option<u32>) {
        for (spot, node) in island.nodes.iter().enumerate() {
            let Some(node) = *node else { continue };
            let from = self.starts[node as usize] as usize;
            let to = self.starts[node as usize + 1] as usize;
            for port in &mut self.ports[from..to] {
                port.switch = switch(spot, port.rail).unwrap_or(NONE);
            }
        }
    }

    fn add(&mut self, at: usize, island: &Island) {
        let first = self.switches.len() as u32;
        let mut torus = None;
        let router = match &island.kind {
            Kind::Tree(tree) => self.tree(at, island, tree),
            Kind::Torus {
                dims,
                per_switch,
                units,
                ..
            } => {
                let switches: u32 = dims.iter().product();
                for switch in 0..switches {
                    self.switch(at, format!("switch {}", levels::coordinates(dims, switch)));
                }
                let base = self.links_of(switches as usize * dims.len(), *units);
                let per_switch = *per_switch as usize;
                self.attach(island, |spot, _| Some(first + (spot / per_switch) as u32));
                torus = Some(Torus(dims.clone()));
                Router::Torus {
                    dims: dims.clone(),
                    base,
                }
            }
            Kind::Dragonfly(d) => {
                for nth in 0..d.groups * d.routers {
                    let (group, router) = (nth / d.routers + 1, nth % d.routers + 1);
                    self.switch(at, format!("group {group} switch {router}"));
                }
                let within = d.groups * (d.routers * (d.routers - 1) / 2);
                let local = self.links_of(within as usize, d.local_units);
                let between = d.groups * (d.groups - 1) / 2 * d.globals;
                let global = self.links_of(between as usize, d.global_units);
                let per_switch = d.per_switch as usize;
                self.attach(island, |spot, _| Some(first + (spot / per_switch) as u32));
                Router::Dragonfly {
                    routers: d.routers,
                    groups: d.groups,
                    globals: d.globals,
                    local,
                    global,
                }
            }
            Kind::Graph(graph) => {
                for name in &graph.switches {
                    self.switch(at, name.clone());
                }
                let base = self.capacity.len() as u32;
                for link in &graph.links {
                    self.link(link.units);
                }
                self.attach(island, |spot, rail| {
                    let hung = graph.places.get(spot)?;
                    let own = hung.iter().find(|(of, _)| *of == Some(rail));
                    let any = hung.iter().find(|(of, _)| of.is_none());
                    Some(first + own.or(any)?.1)
                });
                let ends: Vec<(u32, u32)> = graph.links.iter().map(|l| (l.a, l.b)).collect();
                let switches = graph.switches.len() as u32;
                Router::Table {
                    switches,
                    next: table(switches, base, &ends, &self.capacity),
                    base,
                    ends,
                }
            }
        };
        let border = self.link(island.border_units);
        self.islands.push(Ways {
            router,
            first,
            border,
            torus,
        });
    }

    /// The switches of a tree, level by level; domains of the top level meet in a core that has no
    /// name and no bound of its own.
    fn tree(&mut self, at: usize, island: &Island, tree: &Tree) -> Router {
        let first = self.switches.len() as u32;
        let highest = |net: &Net| {
            let ports = island.nodes.iter().flatten().flat_map(|&n| net.ports(n));
            ports.map(|port| port.rail).max().unwrap_or(0) + 1
        };
        let rails = if tree.rails {
            u32::from(highest(self))
        } else {
            1
        };
        let wide = |level: usize| if level == 0 { rails } else { 1 };
        let mut parent = Vec::new();
        for (nth, level) in tree.levels.iter().enumerate() {
            let start = parent.len() as u32;
            let above = start + level.domains.len() as u32 * wide(nth);
            for (domain, outer) in tree.parents(nth).into_iter().enumerate() {
                for rail in 0..wide(nth) {
                    let name = match wide(nth) {
                        1 => level.domains[domain].clone(),
                        _ => format!("{} rail {rail}", level.domains[domain]),
                    };
                    self.switch(at, name);
                    // An outermost domain without an outer one hangs on the core.
                    parent.push(match outer {
                        NO_DOMAIN => NONE,
                        outer => above + outer,
                    });
                }
            }
        }
        let core = parent.len() as u32;
        self.switch(at, "core".into());
        for above in parent.iter_mut().filter(|above| **above == NONE) {
            *above = core;
        }
        parent.push(NONE);
        let leaf = |spot: usize| {
            let known = tree.levels.iter().enumerate();
            let mut start = 0;
            for (nth, level) in known {
                if level.of[spot] != NO_DOMAIN {
                    return Some((nth, start, level.of[spot]));
                }
                start += level.domains.len() as u32 * wide(nth);
            }
            None
        };
        self.attach(island, |spot, rail| {
            let (nth, start, domain) = leaf(spot)?;
            let rail = if nth == 0 { u32::from(rail) % rails } else { 0 };
            Some(first + start + domain * wide(nth) + rail)
        });
        // Capacities from below upwards: what hangs on a switch bounds its full uplink.
        let mut down = vec![0u64; parent.len()];
        for &node in island.nodes.iter().flatten() {
            for port in self.ports(node).iter().filter(|port| port.switch != NONE) {
                down[(port.switch - first) as usize] +=
                    u64::from(self.capacity[port.link as usize]);
            }
        }
        let mut up = vec![NONE; parent.len()];
        let mut switch = 0;
        for (nth, level) in tree.levels.iter().enumerate() {
            for _ in 0..level.domains.len() as u32 * wide(nth) {
                let units = level.uplink.capacity(down[switch]);
                up[switch] = self.link(units);
                down[parent[switch] as usize] += u64::from(units);
                switch += 1;
            }
        }
        let mut depth = vec![0u16; parent.len()];
        for at in (0..parent.len()).rev() {
            if parent[at] != NONE {
                depth[at] = depth[parent[at] as usize] + 1;
            }
        }
        Router::Tree { parent, up, depth }
    }
}

fn check(island: &Island) -> Result<(), String> {
    let name = &island.name;
    let zero = match &island.kind {
        Kind::Tree(_) => false,
        Kind::Torus {
            dims, per_switch, ..
        } => dims.is_empty() || dims.contains(&0) || *per_switch == 0,
        Kind::Dragonfly(d) => [d.groups, d.routers, d.per_switch, d.globals].contains(&0),
        Kind::Graph(graph) => graph.switches.is_empty(),
    };
    if zero {
        return Err(format!("{name} has a size of 0; every size is at least 1"));
    }
    if let Kind::Dragonfly(d) = &island.kind
        && (d.groups > 4096 || d.routers > 1024 || d.globals > 64)
    {
        return Err(format!(
            "{name} is larger than any dragonfly: at most 4096 groups of 1024 switches, with 64 \
             links between two groups, are possible"
        ));
    }
    if let Some(places) = island.kind.places()
        && (island.nodes.len() as u64 > places || places > 1 << 20)
    {
        return Err(format!(
            "{name} has {} nodes, and its sizes make {places} places; at most 1048576 places, and \
             one for each node, are possible",
            island.nodes.len()
        ));
    }
    if !refers(island) {
        return Err(format!(
            "{name} names a switch, a domain or a place that it does not have; each has to be one of its own"
        ));
    }
    Ok(())
}

/// Whether switches and domains that an island names are its own.
fn refers(island: &Island) -> bool {
    match &island.kind {
        Kind::Tree(tree) => tree.levels.iter().all(|level| {
            let known = |&of: &u32| of == NO_DOMAIN || (of as usize) < level.domains.len();
            level.of.len() == island.nodes.len() && level.of.iter().all(known)
        }),
        Kind::Graph(graph) => {
            let count = graph.switches.len();
            let known = |switch: u32| (switch as usize) < count;
            count <= MAX_GRAPH_SWITCHES
                && graph
                    .links
                    .iter()
                    .all(|link| known(link.a) && known(link.b))
                && graph.places.iter().flatten().all(|hung| known(hung.1))
        }
        Kind::Torus { .. } | Kind::Dragonfly(_) => true,
    }
}

/// Adapters of a node: rail, GPUs nearest to it, rate. Those slower than half the fastest carry
/// management or storage: NCCL does not use them beside fast ones, and they are left out. A node
/// without known adapters has one of unknown rate.
fn adapters(node_type: Option<&NodeType>) -> Vec<(u16, GpuSet, u32)> {
    let Some(node_type) = node_type.filter(|t| !t.nics.is_empty()) else {
        return vec![(0, GpuSet(u64::MAX), UNBOUNDED)];
    };
    let rate = |gbps: f32| units(f64::from(gbps));
    let known = node_type.nics.iter().map(|nic| rate(nic.gbps));
    let fastest = known.filter(|&units| units != UNBOUNDED).max().unwrap_or(0);
    let mut list = Vec::new();
    for nic in node_type
        .nics
        .iter()
        .filter(|nic| rate(nic.gbps) >= fastest / 2)
    {
        let near = (0..node_type.gpus).filter(|&gpu| node_type.is_nearest(nic, gpu));
        let set = near.fold(GpuSet::EMPTY, GpuSet::with);
        list.push((nic.rail.min(MAX_RAILS - 1), set, rate(nic.gbps)));
    }
    list
}

/// Rate of a GPU's own NVLinks.
fn node_nvlink(node_type: &NodeType) -> u32 {
    let count = |link: &Link| match link {
        Link::Nv(links) => f64::from(*links),
        _ => 0.0,
    };
    let most = node_type.links.iter().map(count).fold(0.0, f64::max);
    units(most * f64::from(node_type.nvlink_gbps))
}
