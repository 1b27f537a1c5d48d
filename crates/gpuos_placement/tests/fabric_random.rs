//! Routes and bandwidth against models written anew here, on small random graphs.

use std::collections::BTreeMap;
use std::sync::Arc;

use gpuos_model::cluster::{Cluster, Fabric, Link, Nic, Node, NodeType};
use gpuos_model::gpuset::GpuSet;
use gpuos_placement::fabric::{
    Graph, GraphLink, Island, Kind, Net, Promise, Promises, Scratch, UNBOUNDED,
};
use proptest::prelude::*;

/// A random graph: switches, links between them in units, and the switch of each node.
#[derive(Clone, Debug)]
struct World {
    switches: usize,
    links: Vec<(usize, usize, u32)>,
    homes: Vec<usize>,
    rails: usize,
}

fn world(nodes: std::ops::Range<usize>) -> impl Strategy<Value = World> {
    (2usize..6, nodes, 1usize..3)
        .prop_flat_map(|(switches, nodes, rails)| {
            let rate = prop::sample::select(vec![1000u32, 2500, 5000, 10_000]);
            // A tree that reaches all, and some links more.
            let tree: Vec<_> = (1..switches)
                .map(|s| (0..s, Just(s), rate.clone()))
                .collect();
            let more = prop::collection::vec((0..switches, 0..switches, rate), 0..4);
            let homes = prop::collection::vec(0..switches, nodes);
            (Just(switches), tree, more, homes, Just(rails))
        })
        .prop_map(|(switches, tree, more, homes, rails)| {
            let mut links: Vec<(usize, usize, u32)> = tree;
            links.extend(more.into_iter().filter(|(a, b, _)| a != b));
            World {
                switches,
                links,
                homes,
                rails,
            }
        })
}

fn node_type(rails: usize) -> NodeType {
    let nic = |at: usize| Nic {
        name: format!("m{at}"),
        numa: 0,
        rail: at as u16,
        gbps: 25.0,
        links: (0..rails)
            .map(|gpu| if gpu == at { Link::Pix } else { Link::Node })
            .collect(),
    };
    NodeType {
        name: "t".into(),
        gpu: String::new(),
        gres_type: String::new(),
        gpus: rails,
        links: (0..rails * rails)
            .map(|at| {
                if at % (rails + 1) == 0 {
                    Link::Same
                } else {
                    Link::Node
                }
            })
            .collect(),
        numa: vec![0; rails],
        nics: (0..rails).map(nic).collect(),
        nvlink_gbps: 0.0,
        pcie_gbps: 24.0,
        socket_gbps: 10.0,
        nvswitch: false,
        sockets: 1,
        cores_per_socket: 8,
        memory_mib: 0,
        gpu_memory_mib: 0,
        figures: Default::default(),
        source: String::new(),
    }
}

impl World {
    fn net(&self) -> Net {
        let node_type = Arc::new(node_type(self.rails));
        let nodes = (0..self.homes.len()).map(|at| Node {
            name: format!("n{at}"),
            node_type: Some(node_type.clone()),
        });
        let cluster = Cluster {
            nodes: nodes.collect(),
            fabric: Fabric::default(),
        };
        let link = |&(a, b, units): &(usize, usize, u32)| GraphLink {
            a: a as u32,
            b: b as u32,
            units,
        };
        let island = Island {
            name: "g".into(),
            nodes: (0..self.homes.len() as u32).map(Some).collect(),
            kind: Kind::Graph(Graph {
                switches: (0..self.switches).map(|s| format!("s{s}")).collect(),
                links: self.links.iter().map(link).collect(),
                places: self.homes.iter().map(|&s| vec![(None, s as u32)]).collect(),
            }),
            port_units: UNBOUNDED,
            border_units: UNBOUNDED,
        };
        Net::new(&cluster, &[island], None).unwrap()
    }

    /// Fewest links, then the widest bottleneck, by trying every way; the rate of that way only,
    /// because equal ways may be taken either way round.
    fn best_way(&self, from: usize, to: usize) -> (usize, u32) {
        let mut best: Vec<Option<(usize, u32)>> = vec![None; self.switches];
        best[from] = Some((0, u32::MAX));
        for _ in 0..self.switches {
            for &(a, b, units) in &self.links {
                for (a, b) in [(a, b), (b, a)] {
                    if let Some((hops, width)) = best[a] {
                        let new = (hops + 1, width.min(units));
                        let better =
                            best[b].is_none_or(|(h, w)| new.0 < h || new.0 == h && new.1 > w);
                        if better {
                            best[b] = Some(new);
                        }
                    }
                }
            }
        }
        best[to].unwrap()
    }
}

fn gang(nodes: impl IntoIterator<Item = u32>, rails: usize) -> Vec<(u32, GpuSet)> {
    nodes
        .into_iter()
        .map(|node| (node, GpuSet::first(rails)))
        .collect()
}

/// Rings over the nodes in a given order, on the net's own routes, counted anew.
fn by_hand(net: &Net, promised: &BTreeMap<u32, (u64, u32)>, order: &[u32], rails: usize) -> u32 {
    let mut uses: BTreeMap<u32, u64> = BTreeMap::new();
    for rail in 0..rails {
        for at in 0..order.len() {
            let next = order[(at + 1) % order.len()];
            for link in net.path((order[at], rail), (next, rail)) {
                *uses.entry(link).or_default() += 1;
            }
        }
    }
    let pace = uses.iter().map(|(link, &own)| {
        let capacity = u64::from(net.capacity(*link));
        let (units, rings) = promised.get(link).copied().unwrap_or_default();
        let fair = capacity / (own + u64::from(rings));
        fair.max(capacity.saturating_sub(units) / own).max(1)
    });
    (pace.min().unwrap() * rails as u64) as u32
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn routes_are_the_shortest_and_of_these_the_widest(world in world(2..8)) {
        let net = world.net();
        for a in 0..world.homes.len() {
            for b in 0..world.homes.len() {
                if a == b || world.homes[a] == world.homes[b] {
                    continue;
                }
                let path = net.path((a as u32, 0), (b as u32, 0));
                let inner = &path[1..path.len() - 1];
                let (hops, width) = world.best_way(world.homes[a], world.homes[b]);
                prop_assert_eq!(inner.len(), hops);
                let narrowest = inner.iter().map(|&link| net.capacity(link)).min();
                prop_assert_eq!(narrowest, Some(width));
            }
        }
    }

    #[test]
    fn two_nodes_get_what_the_links_between_them_carry(world in world(2..8)) {
        let net = world.net();
        let mut scratch = Scratch::new(&net);
        let (mut promises, mut promised) = (Promises::new(&net), BTreeMap::new());
        let mut kept: Vec<(Vec<(u32, GpuSet)>, Promise)> = Vec::new();
        for a in 0..world.homes.len() as u32 {
            for b in 0..a {
                let found = net.bandwidth(&promises, &mut scratch, &gang([a, b], world.rails));
                let expected = by_hand(&net, &promised, &[a, b], world.rails);
                prop_assert_eq!(found, expected, "{} {}", a, b);
                let other = gang([b, a], world.rails);
                prop_assert_eq!(net.bandwidth(&promises, &mut scratch, &other), expected);
                // Every third pair runs from now on.
                if (a + b) % 3 == 0 {
                    let promise = promises.add(&net, &mut scratch, &other, 1000);
                    prop_assert_eq!(promise.ring, expected / world.rails as u32);
                    for link in 0..net.links() as u32 {
                        if promises.on(link) != (0, 0) {
                            promised.insert(link, promises.on(link));
                        }
                    }
                    kept.push((other, promise));
                }
            }
        }
        // Ends in any order leave nothing.
        kept.reverse();
        for (gang, promise) in kept {
            promises.remove(&net, &mut scratch, &gang, promise);
        }
        prop_assert!(promises.is_empty());
    }
}
