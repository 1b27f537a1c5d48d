//! Nodes, and links with a latency and a rate: what each sends and gets is counted, by control and data.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::time::{Duration, Instant};

use gpuos_checkpoint::commit::Outcome;
use gpuos_checkpoint::ids::{CheckpointId, NodeIndex};
use gpuos_mover::message::{Body, Message};
use gpuos_mover::node::Node;
use gpuos_mover::output::Output;
use gpuos_mover::settings::Settings;
use gpuos_store::fake::FakeDisk;
use gpuos_store::store::Store;

use crate::support::folder;

/// One way, between any two nodes, in microseconds: several switches and two kernels.
pub const LATENCY_US: u64 = 50;
/// Of each node, in each direction, in bytes a microsecond: 100 Gbit/s.
pub const RATE: u64 = 12_500;
/// To take a message from the socket, look at its code and act on it, or to send it, in microseconds: one thread does it at each node.
pub const MESSAGE_US: u64 = 20;
/// The same for its bytes, in bytes a microsecond: copies and codes.
pub const WORK: u64 = 1_000;
/// TCP, IP and Ethernet, and the code of a frame.
const AROUND: u64 = 120;
/// As often as the daemon looks at what is late.
const TICK_US: u64 = 200_000;

/// What one node has sent and got.
#[derive(Clone, Copy, Default, Debug)]
pub struct Traffic {
    pub control_sent: usize,
    pub control_got: usize,
    pub control_bytes_sent: u64,
    pub control_bytes_got: u64,
    /// Pieces of segments and parity.
    pub data_sent: u64,
    pub data_got: u64,
}

impl Traffic {
    pub fn control(&self) -> usize {
        self.control_sent + self.control_got
    }
}

/// What was counted until all were done.
#[derive(Clone, Default, Debug)]
pub struct Counted {
    /// In the model.
    pub us: u64,
    /// At node 0.
    pub lead: Traffic,
    /// The most at any other node, of each figure.
    pub most: Traffic,
    /// Over all nodes.
    pub data: u64,
    /// What the code of node 0 took on this machine, disk in memory and all.
    pub lead_work: Duration,
}

struct Flight {
    from: u16,
    to: u16,
    bytes: Vec<u8>,
}

pub struct Network<'a> {
    nodes: Vec<Node<'a, FakeDisk>>,
    programs: &'a [FakeDisk],
    now: u64,
    serial: u64,
    due: BinaryHeap<Reverse<(u64, u64)>>,
    flights: std::collections::HashMap<u64, Flight>,
    /// When a node's sending and receiving side are free.
    out_free: Vec<u64>,
    in_free: Vec<u64>,
    traffic: Vec<Traffic>,
    lead_work: Duration,
    restored: Vec<Option<Option<CheckpointId>>>,
    ended: BTreeSet<u16>,
}

impl<'a> Network<'a> {
    pub fn new(
        stores: &'a [Store<FakeDisk>],
        programs: &'a [FakeDisk],
        settings: impl Fn(u16) -> Settings,
    ) -> Network<'a> {
        let nodes = (0..)
            .zip(stores.iter().zip(programs))
            .map(|(own, (store, disk))| Node::new(store, disk, settings(own), 0).unwrap());
        let nodes: Vec<Node<'a, FakeDisk>> = nodes.collect();
        let count = nodes.len();
        Network {
            nodes,
            programs,
            now: 0,
            serial: 0,
            due: BinaryHeap::new(),
            flights: Default::default(),
            out_free: vec![0; count],
            in_free: vec![0; count],
            traffic: vec![Traffic::default(); count],
            lead_work: Duration::ZERO,
            restored: vec![None; count],
            ended: BTreeSet::new(),
        }
    }

    /// With what each goes on.
    pub fn restored(&self) -> Vec<Option<CheckpointId>> {
        self.restored.iter().map(|own| own.flatten()).collect()
    }

    /// Until all nodes go on.
    pub fn until_ready(&mut self) -> Counted {
        self.go(|network| network.restored.iter().all(Option::is_some))
    }

    /// A checkpoint of what the programs have saved under its number.
    pub fn checkpoint(&mut self, id: CheckpointId, time: u64) -> Counted {
        self.ended.clear();
        let count = self.nodes.len();
        let before = self.now;
        for node in 0..count {
            let name = format!("program-{}", id.number);
            let open = folder(&self.programs[node], name.as_bytes());
            let out = self.nodes[node].offer(id.number, open, time, self.now / 1000);
            self.take(node as u16, out);
        }
        let out = self.nodes[0].begin(id, self.now / 1000);
        self.take(0, out);
        let counted = self.go(|network| network.ended.len() == count);
        Counted {
            us: self.now - before,
            ..counted
        }
    }

    fn go(&mut self, done: impl Fn(&Network<'a>) -> bool) -> Counted {
        let begun = self.now;
        let mut tick = self.now;
        while !done(self) {
            assert!(self.now < begun + 600_000_000, "it does not end");
            match self.due.peek() {
                Some(Reverse((at, serial))) if *at <= tick => {
                    let (at, serial) = (*at, *serial);
                    self.due.pop();
                    self.now = at;
                    let flight = self.flights.remove(&serial).unwrap();
                    self.deliver(&flight);
                }
                _ => {
                    self.now = tick;
                    tick += TICK_US;
                    for node in 0..self.nodes.len() {
                        let since = Instant::now();
                        let out = self.nodes[node].tick(self.now / 1000);
                        self.lead_worked(node, since);
                        self.take(node as u16, out);
                    }
                }
            }
        }
        let (lead, others) = self.traffic.split_first().unwrap();
        let most = |of: fn(&Traffic) -> u64| others.iter().map(of).max().unwrap_or(0);
        let counted = Counted {
            us: self.now - begun,
            lead: *lead,
            most: Traffic {
                control_sent: most(|own| own.control_sent as u64) as usize,
                control_got: most(|own| own.control_got as u64) as usize,
                control_bytes_sent: most(|own| own.control_bytes_sent),
                control_bytes_got: most(|own| own.control_bytes_got),
                data_sent: most(|own| own.data_sent),
                data_got: most(|own| own.data_got),
            },
            data: self.traffic.iter().map(|own| own.data_sent).sum(),
            lead_work: self.lead_work,
        };
        self.traffic.fill(Traffic::default());
        self.lead_work = Duration::ZERO;
        counted
    }

    fn lead_worked(&mut self, node: usize, since: Instant) {
        if node == 0 {
            self.lead_work += since.elapsed();
        }
    }

    fn deliver(&mut self, flight: &Flight) {
        let (to, from) = (usize::from(flight.to), NodeIndex(flight.from));
        let since = Instant::now();
        let out = self.nodes[to].receive(from, &flight.bytes, self.now / 1000);
        self.lead_worked(to, since);
        self.take(flight.to, out.unwrap());
    }

    fn take(&mut self, from: u16, outputs: Vec<Output>) {
        for output in outputs {
            match output {
                Output::Send { to, bytes } => self.send(from, to.0, bytes),
                Output::Ended { outcome, .. } => {
                    assert_eq!(outcome, Outcome::Committed, "node {from}");
                    self.ended.insert(from);
                }
                Output::Ready(ready) => self.restored[usize::from(from)] = Some(ready.restore),
                Output::RefusedBegin { why, .. } => panic!("{why}"),
                Output::Note(_) | Output::FolderRead { .. } | Output::Rebuilt { .. } => {}
            }
        }
    }

    fn send(&mut self, from: u16, to: u16, bytes: Vec<u8>) {
        let length = bytes.len() as u64 + AROUND;
        let message = Message::decode(&bytes).unwrap();
        let is_data = matches!(message.body, Body::Piece { .. } | Body::Ask(_));
        let (from_at, to_at) = (usize::from(from), usize::from(to));
        if is_data {
            self.traffic[from_at].data_sent += length;
            self.traffic[to_at].data_got += length;
        } else {
            let own = &mut self.traffic[from_at];
            own.control_sent += 1;
            own.control_bytes_sent += length;
            let other = &mut self.traffic[to_at];
            other.control_got += 1;
            other.control_bytes_got += length;
        }
        let work = MESSAGE_US + length / WORK;
        let left = self.now.max(self.out_free[from_at]) + work + length / RATE;
        self.out_free[from_at] = left;
        let came = (left + LATENCY_US).max(self.in_free[to_at]) + work + length / RATE;
        self.in_free[to_at] = came;
        self.serial += 1;
        self.due.push(Reverse((came, self.serial)));
        let flight = Flight { from, to, bytes };
        self.flights.insert(self.serial, flight);
    }
}
