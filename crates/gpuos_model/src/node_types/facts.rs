//! Node types from what Slurm itself knows.
use super::build::{NVLINK_GBPS, PCIE_GBPS, SOCKET_GBPS, pcie_links};
use crate::cluster::{Link, NodeType};

/// What Slurm itself knows of a node.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NodeFacts {
    /// Node name.
    pub name: String,
    /// GPUs that Slurm counts on it (GRES `gpu`).
    pub gpus: usize,
    /// GRES type of the GPUs; empty when they have none.
    pub gres_type: String,
    /// CPU sockets.
    pub sockets: u16,
    /// Cores per socket.
    pub cores_per_socket: u16,
    /// Rows of `Links=` of gres.conf, that of GPU `i` from `i * gpus` on, as they stand there: NVLinks by place, and -1 at the place
    /// that is the GPU's own, which need not be that with its number.
    pub links: Option<Vec<i32>>,
    /// Socket of each GPU, from `Cores=` of gres.conf.
    pub gpu_sockets: Option<Vec<u16>>,
}

impl NodeFacts {
    /// NVLinks between GPUs `a` and `b` at `a * gpus + b`, the same in both directions: where rows differ, the higher number. `None`
    /// where gres.conf does not tell them, also where its rows do not say whose each place is.
    fn nvlinks(&self) -> Option<Vec<u8>> {
        let gpus = self.gpus;
        let links = self.links.as_ref()?;
        if links.len() != gpus * gpus || gpus == 0 {
            return None;
        }
        let places = places(links, gpus)?;
        let one_way = |a: usize, b: usize| links[a * gpus + places[b]].clamp(0, 64) as u8;
        let count = |a: usize, b: usize| match a == b {
            true => 0,
            false => one_way(a, b).max(one_way(b, a)),
        };
        Some(
            (0..gpus * gpus)
                .map(|at| count(at / gpus, at % gpus))
                .collect(),
        )
    }

    /// Whether a node type can describe this node. A type with NVLink bridges is believed
    /// only when `Links=` shows the bridges: not every server with these GPUs has them. An
    /// NVSwitch machine shows no links there, so that zeros say nothing.
    pub fn fits(&self, node_type: &NodeType) -> bool {
        if node_type.gpus != self.gpus || !self.same_gpu(node_type) {
            return false;
        }
        let pairs = || (0..self.gpus).flat_map(|a| (0..a).map(move |b| (a, b)));
        let has_nvlink = pairs().any(|(a, b)| matches!(node_type.link(a, b), Link::Nv(_)));
        let counts = self.nvlinks().filter(|all| all.iter().any(|n| *n > 0));
        match counts {
            Some(counts) => pairs().all(|(a, b)| {
                let linked = matches!(node_type.link(a, b), Link::Nv(_));
                linked == (counts[a * self.gpus + b] > 0)
            }),
            None => node_type.nvswitch || !has_nvlink,
        }
    }

    /// Whether the GRES type names the GPU of a node type: as it is, or as a word of the long
    /// names that AutoDetect gives (`nvidia_h100_80gb_hbm3`). MIG slices (`a100_3g.20gb`) are
    /// other things, and cards with a PCIe plug have no NVSwitch.
    pub fn same_gpu(&self, node_type: &NodeType) -> bool {
        let wanted = &node_type.gres_type;
        if wanted.is_empty() || self.gres_type.eq_ignore_ascii_case(wanted) {
            return !wanted.is_empty();
        }
        let given = self.gres_type.to_ascii_lowercase();
        let words = || given.split(|c: char| !c.is_ascii_alphanumeric());
        let slice = |word: &str| {
            word.strip_suffix('g')
                .is_some_and(|n| n.parse::<u8>().is_ok())
        };
        let plug = |word: &str| node_type.nvswitch && (word == "pcie" || word == "nvl");
        words().any(|word| word.eq_ignore_ascii_case(wanted))
            && !words().any(|word| slice(word) || plug(word))
    }

    /// A node type made of the facts alone; `like` gives the rates of a known type with the
    /// same GPUs. Figures that nobody knows are 0.
    pub fn node_type(&self, like: Option<&NodeType>) -> NodeType {
        let gpus = self.gpus;
        let numa = match self.gpu_sockets.as_ref().filter(|list| list.len() == gpus) {
            Some(list) => list.clone(),
            // Nothing is known: no GPU is then nearer to another one than the rest.
            None => vec![0; gpus],
        };
        let mut links = pcie_links(gpus, &numa);
        let counts = self.nvlinks().unwrap_or_default();
        for (link, count) in links.iter_mut().zip(counts) {
            if count > 0 {
                *link = Link::Nv(count);
            }
        }
        let nvlinks = links.iter().any(|link| matches!(link, Link::Nv(_)));
        let rate = like.map(|t| t.nvlink_gbps).filter(|&rate| rate > 0.0);
        let kind = match self.gres_type.is_empty() {
            true => "gpu",
            false => &self.gres_type,
        };
        NodeType {
            name: format!("{kind}-x{gpus}"),
            gpu: like.map(|t| t.gpu.clone()).unwrap_or_default(),
            gres_type: self.gres_type.clone(),
            gpus,
            links,
            numa,
            nics: Vec::new(),
            nvlink_gbps: match nvlinks {
                true => rate.unwrap_or(NVLINK_GBPS),
                false => 0.0,
            },
            pcie_gbps: like.map_or(PCIE_GBPS, |t| t.pcie_gbps),
            socket_gbps: like.map_or(SOCKET_GBPS, |t| t.socket_gbps),
            nvswitch: false,
            sockets: self.sockets.max(1),
            cores_per_socket: self.cores_per_socket.max(1),
            memory_mib: 0,
            gpu_memory_mib: like.map_or(0, |t| t.gpu_memory_mib),
            figures: like.map(|t| t.figures).unwrap_or_default(),
            source: "slurm.conf and gres.conf".into(),
        }
    }
}

/// The place in the rows of `Links=` that is each GPU's own: where its row has -1. A GPU without a row, or whose row has none, has the
/// place with its number. `None` where a row has several, or two GPUs have the same: then nobody knows which column is whose.
fn places(links: &[i32], gpus: usize) -> Option<Vec<usize>> {
    let mut taken = vec![false; gpus];
    let own = links.chunks(gpus).enumerate().map(|(gpu, row)| {
        let mut found = row.iter().enumerate().filter(|(_, count)| **count == -1);
        let place = found.next().map_or(gpu, |(at, _)| at);
        let clear = found.next().is_none() && !std::mem::replace(&mut taken[place], true);
        clear.then_some(place)
    });
    own.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(rows: &[&[i32]]) -> NodeFacts {
        NodeFacts {
            gpus: rows.len(),
            links: Some(rows.concat()),
            sockets: 1,
            cores_per_socket: 8,
            ..NodeFacts::default()
        }
    }

    /// Pairs that are linked, and by how many links.
    fn linked(facts: &NodeFacts) -> Vec<(usize, usize, u8)> {
        let node_type = facts.node_type(None);
        let pairs = (0..facts.gpus).flat_map(|b| (0..b).map(move |a| (a, b)));
        let linked = pairs.filter_map(|(a, b)| {
            assert_eq!(node_type.link(a, b), node_type.link(b, a));
            match node_type.link(a, b) {
                Link::Nv(count) => Some((a, b, count)),
                _ => None,
            }
        });
        linked.collect()
    }

    #[test]
    fn a_place_in_a_row_is_the_gpu_whose_own_it_is() {
        let plain: &[&[i32]] = &[
            &[-1, 4, 0, 0],
            &[4, -1, 0, 0],
            &[0, 0, -1, 2],
            &[0, 0, 2, -1],
        ];
        assert_eq!(linked(&facts(plain)), [(0, 1, 4), (2, 3, 2)]);
        // The lines of the same node in another order: 1, 0, 3, 2.
        let turned: &[&[i32]] = &[
            &[4, -1, 0, 0],
            &[-1, 4, 0, 0],
            &[0, 0, 2, -1],
            &[0, 0, -1, 2],
        ];
        assert_eq!(linked(&facts(turned)), [(0, 1, 4), (2, 3, 2)]);
        // And 2, 0, 3, 1: GPU 1 of the lines is the one with place 0.
        let mixed: &[&[i32]] = &[
            &[0, 0, -1, 2],
            &[-1, 4, 0, 0],
            &[0, 0, 2, -1],
            &[4, -1, 0, 0],
        ];
        assert_eq!(linked(&facts(mixed)), [(0, 2, 2), (1, 3, 4)]);
    }

    #[test]
    fn lines_in_any_order_say_the_same() {
        let mut rng = crate::rng::Rng::new(7);
        for _ in 0..500 {
            let gpus = 1 + rng.below(9) as usize;
            let mut between = vec![0; gpus * gpus];
            for at in 0..gpus * gpus {
                let (a, b) = (at / gpus, at % gpus);
                between[at] = match a < b {
                    true => rng.below(5) as i32,
                    false => between[b * gpus + a],
                };
            }
            let mut own: Vec<usize> = (0..gpus).collect();
            rng.shuffle(&mut own);
            let row = |line: usize| {
                let device = own[line];
                let count = |at: usize| {
                    if at == device {
                        -1
                    } else {
                        between[device * gpus + at]
                    }
                };
                (0..gpus).map(count).collect::<Vec<i32>>()
            };
            let rows: Vec<Vec<i32>> = (0..gpus).map(row).collect();
            let rows: Vec<&[i32]> = rows.iter().map(Vec::as_slice).collect();
            let expected: Vec<_> = (0..gpus)
                .flat_map(|b| (0..b).map(move |a| (a, b)))
                .map(|(a, b)| (a, b, between[own[a] * gpus + own[b]] as u8))
                .filter(|(_, _, count)| *count > 0)
                .collect();
            assert_eq!(linked(&facts(&rows)), expected, "{rows:?}");
        }
    }

    #[test]
    fn rows_that_do_not_say_whose_a_place_is_say_nothing() {
        let same: &[&[i32]] = &[&[-1, 4], &[-1, 4]];
        assert_eq!(linked(&facts(same)), []);
        let twice: &[&[i32]] = &[&[-1, -1], &[4, -1]];
        assert_eq!(linked(&facts(twice)), []);
        // A row that lacks is one of zeros: its place is the one that is left.
        let lacks: &[&[i32]] = &[&[0, 0], &[4, -1]];
        assert_eq!(linked(&facts(lacks)), [(0, 1, 4)]);
        let short: &[&[i32]] = &[&[-1, 4]];
        assert_eq!(linked(&facts(short)), []);
    }

    #[test]
    fn where_rows_differ_the_higher_number_of_links_counts() {
        let odd: &[&[i32]] = &[&[-1, 3, -2], &[1, -1, 0], &[0, 99, -1]];
        assert_eq!(linked(&facts(odd)), [(0, 1, 3), (1, 2, 64)]);
    }
}
