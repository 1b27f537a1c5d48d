//! What NCCL's rings reach over the network, beside what others were promised there.
//!
//! The model, after NCCL's documentation and its performance page (nccl-tests, PERFORMANCE.md):
//! a gang runs as many rings as each of its nodes has adapters in use, ring after ring through the
//! adapters of one rail; every ring visits the nodes in the net's order and carries the same share
//! of the data, so the slowest link of any ring sets the pace of all. The bus bandwidth is the
//! number of rings times that pace. Double binary trees load a node's adapters the same, and cross
//! the border of a switch no less often than sorted rings, so that they do not reach more.
//!
//! Nodes of one NVLink domain reach each other by NVLink alone, and reach others through the
//! adapters of all their nodes.
//!
//! On a link that others use too, a gang gets what they leave, or its fair share of the flows
//! there, whichever is more: that is what congestion control converges to.
use gpuos_model::gpuset::GpuSet;

use super::{NONE, Net, Port, UNBOUNDED};

/// The most rings that count: more channels NCCL does not open.
const MAX_RINGS: usize = 64;

/// What a gang was promised on each link of its rings. Whoever keeps [`Promises`] keeps this for
/// each running gang, and hands it back when the gang ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Promise {
    /// Rate of one ring in hundredths of GB/s.
    pub ring: u32,
}

/// What running gangs were promised, link by link. Kept current by events: [`Promises::add`] when
/// a gang starts, [`Promises::remove`] when it ends.
#[derive(Clone, Debug, Default)]
pub struct Promises {
    /// By directed link: hundredths of GB/s promised, and rings that use it.
    load: Vec<(u64, u32)>,
}

/// Working space of the functions on a net; nothing of it lasts from call to call. It grows to what
/// the net needs in the first calls, and is not allocated again.
#[derive(Clone, Debug, Default)]
pub struct Scratch {
    /// The gang's nodes by rank, and where the ports of each group of nodes start.
    order: Vec<(u32, u32, GpuSet)>,
    starts: Vec<u32>,
    /// Ports in use: sort key, node, place of the port in the node.
    ports: Vec<(u32, u32, u32)>,
    /// By link: rings of the gang; and the links with any.
    rings_on: Vec<u32>,
    touched: Vec<u32>,
    /// Rings, and their pace.
    rings: u32,
    pace: u32,
    /// Link that sets the pace.
    narrowest: u32,
}

impl Scratch {
    /// Working space for a net.
    pub fn new(net: &Net) -> Scratch {
        let mut scratch = Scratch::default();
        scratch.order.reserve(net.nodes());
        scratch.starts.reserve(net.nodes() + 1);
        scratch.ports.reserve(net.ports.len());
        scratch.rings_on.resize(net.links(), 0);
        scratch.touched.reserve(net.links());
        scratch
    }

    /// The link that bounded the last gang looked at, if any did.
    pub fn narrowest(&self) -> Option<u32> {
        Some(self.narrowest).filter(|&link| link != NONE)
    }
}

impl Promises {
    /// Nothing promised yet on a net.
    pub fn new(net: &Net) -> Promises {
        Promises {
            load: vec![(0, 0); net.links()],
        }
    }

    /// A gang starts: what [`Net::bandwidth`] finds for it now is promised to it, or `permille`
    /// thousandths of it for one that communicates less. Returns what to hand to
    /// [`Promises::remove`].
    pub fn add(
        &mut self,
        net: &Net,
        scratch: &mut Scratch,
        nodes: &[(u32, GpuSet)],
        permille: u32,
    ) -> Promise {
        net.bandwidth(self, scratch, nodes);
        if scratch.touched.is_empty() || scratch.pace == UNBOUNDED {
            return Promise::default();
        }
        let ring = u64::from(scratch.pace) * u64::from(permille.min(1000)) / 1000;
        let promise = Promise { ring: ring as u32 };
        self.count(scratch, promise);
        promise
    }

    /// A gang runs that was promised this: [`Promises::add`] without asking anew what it gets.
    pub fn keep(
        &mut self,
        net: &Net,
        scratch: &mut Scratch,
        nodes: &[(u32, GpuSet)],
        promise: Promise,
    ) {
        if promise != Promise::default() {
            net.rings(scratch, nodes);
            self.count(scratch, promise);
        }
    }

    /// Adds the rings that were laid last.
    fn count(&mut self, scratch: &Scratch, promise: Promise) {
        for &link in &scratch.touched {
            let (units, rings) = &mut self.load[link as usize];
            let own = scratch.rings_on[link as usize];
            *units += u64::from(own) * u64::from(promise.ring);
            *rings += own;
        }
    }

    /// A gang ends: the same nodes as when it started, and what [`Promises::add`] gave for it.
    pub fn remove(
        &mut self,
        net: &Net,
        scratch: &mut Scratch,
        nodes: &[(u32, GpuSet)],
        promise: Promise,
    ) {
        if promise == Promise::default() {
            return;
        }
        net.rings(scratch, nodes);
        for &link in &scratch.touched {
            let (units, rings) = &mut self.load[link as usize];
            let own = scratch.rings_on[link as usize];
            *units = units.saturating_sub(u64::from(own) * u64::from(promise.ring));
            *rings = rings.saturating_sub(own);
        }
    }

    /// What is promised on a directed link: hundredths of GB/s, and rings.
    pub fn on(&self, link: u32) -> (u64, u32) {
        self.load.get(link as usize).copied().unwrap_or_default()
    }

    /// Whether nothing is promised anywhere.
    pub fn is_empty(&self) -> bool {
        self.load.iter().all(|&load| load == (0, 0))
    }
}

impl Net {
    /// Modelled bus bandwidth between the nodes of a gang in hundredths of GB/s, as `nccl-tests`
    /// would show it, beside what is promised to others; [`UNBOUNDED`] for a gang that needs no
    /// network, or when nothing is known about its links. Links inside the nodes do not count: the
    /// caller takes the lower of this and the narrowest ring inside a node.
    ///
    /// An empty GPU set stands for all GPUs of the node. Nodes outside the net are left out.
    pub fn bandwidth(
        &self,
        promises: &Promises,
        scratch: &mut Scratch,
        nodes: &[(u32, GpuSet)],
    ) -> u32 {
        let inside = self.rings(scratch, nodes);
        for &link in &scratch.touched {
            let capacity = self.capacity[link as usize];
            if capacity == UNBOUNDED {
                continue;
            }
            let capacity = u64::from(capacity);
            let own = u64::from(scratch.rings_on[link as usize]);
            let (promised, others) = promises.on(link);
            let left = capacity.saturating_sub(promised) / own;
            let fair = capacity / (own + u64::from(others));
            let pace = left.max(fair).max(1) as u32;
            // Equal paces: the lowest link, whatever the order of the walk.
            if (pace, link) < (scratch.pace, scratch.narrowest) {
                (scratch.pace, scratch.narrowest) = (pace, link);
            }
        }
        let between = match scratch.pace {
            UNBOUNDED => UNBOUNDED,
            pace => pace.saturating_mul(scratch.rings),
        };
        between.min(inside)
    }

    /// Lays the rings: fills `rings_on`, `touched` and `rings`. Returns what the NVLink domains of
    /// the gang, if it uses any across nodes, allow.
    fn rings(&self, scratch: &mut Scratch, nodes: &[(u32, GpuSet)]) -> u32 {
        scratch.rings_on.resize(self.links(), 0);
        for link in scratch.touched.drain(..) {
            scratch.rings_on[link as usize] = 0;
        }
        (scratch.rings, scratch.pace, scratch.narrowest) = (0, UNBOUNDED, NONE);
        scratch.order.clear();
        let known = nodes
            .iter()
            .filter(|(node, _)| (*node as usize) < self.nodes());
        let ranked = known.map(|&(node, gpus)| (self.rank[node as usize], node, gpus));
        scratch.order.extend(ranked);
        scratch.order.sort_unstable();
        scratch.order.dedup_by_key(|entry| entry.1);
        let inside = self.use_ports(scratch);
        let groups = scratch.starts.len() - 1;
        if groups < 2 {
            return inside;
        }
        let sizes = scratch
            .starts
            .windows(2)
            .map(|pair| (pair[1] - pair[0]) as usize);
        let rings = sizes.min().unwrap_or(0).min(MAX_RINGS);
        let Scratch {
            starts,
            ports,
            rings_on,
            touched,
            ..
        } = scratch;
        for ring in 0..rings {
            let port = |group: usize| {
                let (_, node, place) = ports[starts[group] as usize + ring];
                &self.ports(node)[place as usize]
            };
            let mut from = port(groups - 1);
            for group in 0..groups {
                let to = port(group);
                self.walk(from, to, |link| {
                    if rings_on[link as usize] == 0 {
                        touched.push(link);
                    }
                    rings_on[link as usize] += 1;
                });
                from = to;
            }
        }
        scratch.rings = rings as u32;
        inside
    }

    /// Collects the ports in use, group by group; a group is a node, or the nodes of one NVLink
    /// domain. Returns what the NVLink domains allow.
    fn use_ports(&self, scratch: &mut Scratch) -> u32 {
        let Scratch {
            order,
            starts,
            ports,
            ..
        } = scratch;
        starts.clear();
        ports.clear();
        starts.push(0);
        let mut inside = UNBOUNDED;
        // Rails that all nodes use: rings take these first, so that they stay on their rail.
        let mut common = u64::MAX;
        for &(_, node, gpus) in order.iter() {
            let used = self
                .used(node, gpus)
                .map(|(_, port)| 1u64 << (port.rail % 64));
            common &= used.fold(0, |all, bit| all | bit);
        }
        for (at, &(_, node, gpus)) in order.iter().enumerate() {
            let domain = self.nvlink[node as usize];
            let joined =
                at > 0 && domain != NONE && domain == self.nvlink[order[at - 1].1 as usize];
            if joined {
                inside = inside.min(self.nvlink_units[domain as usize]);
            } else if at > 0 {
                starts.push(ports.len() as u32);
            }
            for (place, port) in self.used(node, gpus) {
                let shared = common >> (port.rail % 64) & 1 == 1;
                let key = u32::from(port.rail) + if shared { 0 } else { 1 << 16 };
                ports.push((key, node, place as u32));
            }
        }
        starts.push(ports.len() as u32);
        for pair in starts.windows(2) {
            ports[pair[0] as usize..pair[1] as usize].sort_unstable();
        }
        inside
    }

    /// Ports that a GPU set uses: those nearest to any of its GPUs, all when there is none.
    fn used(&self, node: u32, gpus: GpuSet) -> impl Iterator<Item = (usize, &Port)> {
        let ports = self.ports(node);
        let near = move |port: &Port| gpus.is_empty() || !port.near.and(gpus).is_empty();
        let none = !ports.iter().any(near);
        let ports = ports.iter().enumerate();
        ports.filter(move |(_, port)| none || near(port))
    }
}
