//! Heartbeats of simulated nodes over a simulated network: lost, late and one-way messages, partitions that come and
//! go, nodes that die, stall and restart. What must hold whatever happens: who asks slurmctld about a
//! node is not itself asked about by others.

use std::collections::BTreeMap;

use gpuos_core::peers::{
    Act, Datagram, Effect, Event, Group, HOLD_MS, HeartbeatConfig, ManagerAnswer, PeerState, Peers,
    step,
};

use crate::random::Random;

const TICK: u64 = 100;
/// All gpuosds have run for this long when a test begins.
const READY: u64 = HOLD_MS + 5000;

#[derive(Clone)]
struct Node {
    peers: Peers,
    /// The machine runs.
    lives: bool,
    /// Its gpuosd runs.
    daemon: bool,
    /// Its gpuosd does nothing before.
    stalled_until: u64,
}

/// Something on its way.
enum Due {
    Message(Datagram),
    Slurmd(usize, String, ManagerAnswer),
}

#[derive(Clone, PartialEq, Debug)]
struct Ask {
    at: u64,
    by: usize,
    about: usize,
    job: u32,
}

struct World {
    nodes: Vec<Node>,
    groups: Vec<Group>,
    /// Which way messages go through.
    open: Vec<Vec<bool>>,
    /// In percent.
    loss: usize,
    latest_ms: usize,
    now: u64,
    due: BTreeMap<(u64, u64), Due>,
    count: u64,
    asks: Vec<Ask>,
    random: Random,
    settings: HeartbeatConfig,
}

fn name(node: usize) -> String {
    format!("n{}", node + 1)
}

fn number(name: &str) -> usize {
    name[1..].parse::<usize>().unwrap() - 1
}

impl World {
    fn new(nodes: usize, jobs: &[Vec<usize>], seed: u64) -> World {
        let fresh = |node: usize| Node {
            peers: Peers::new(&name(node), seed, 0),
            lives: true,
            daemon: true,
            stalled_until: 0,
        };
        let group = |(nth, nodes): (usize, &Vec<usize>)| Group {
            job: (nth as u32 + 1).into(),
            nodes: nodes.iter().map(|n| name(*n)).collect(),
        };
        let mut world = World {
            nodes: (0..nodes).map(fresh).collect(),
            groups: jobs.iter().enumerate().map(group).collect(),
            open: vec![vec![true; nodes]; nodes],
            loss: 0,
            latest_ms: 20,
            now: 0,
            due: BTreeMap::new(),
            count: 0,
            asks: Vec::new(),
            random: Random(seed),
            settings: HeartbeatConfig {
                act: Act::Down,
                ..HeartbeatConfig::default()
            },
        };
        for node in 0..nodes {
            world.meet(node);
        }
        world
    }

    /// One job of all nodes, which know each other well.
    fn ready(nodes: usize, seed: u64) -> World {
        let mut world = World::new(nodes, &[(0..nodes).collect()], seed);
        world.run(READY);
        assert_eq!(world.asks, []);
        world
    }

    fn meet(&mut self, node: usize) {
        let groups = Event::Groups(self.groups.clone());
        self.event(node, groups);
    }

    fn restart(&mut self, node: usize) {
        self.nodes[node].peers = Peers::new(&name(node), self.random.below(u64::MAX), self.now);
        self.nodes[node].daemon = true;
        self.meet(node);
    }

    fn runs(&self, node: usize) -> bool {
        let node = &self.nodes[node];
        node.lives && node.daemon && self.now >= node.stalled_until
    }

    fn lost(&mut self) -> bool {
        self.random.index(100) < self.loss
    }

    fn later(&mut self, after: usize, due: Due) {
        self.count += 1;
        self.due.insert((self.now + after as u64, self.count), due);
    }

    fn event(&mut self, node: usize, event: Event) {
        let effects = step(&mut self.nodes[node].peers, &self.settings, event, self.now);
        for effect in effects {
            match effect {
                Effect::Send(told) => {
                    assert!(told.encode().len() <= gpuos_core::peers::MAX_DATAGRAM);
                    let after = self.random.index(self.latest_ms) + 1;
                    if self.open[node][number(&told.to)] && !self.lost() {
                        self.later(after, Due::Message(told));
                    }
                }
                Effect::Probe(about) => self.probe(node, about),
                Effect::Silent {
                    job, node: about, ..
                } => self.asks.push(Ask {
                    at: self.now,
                    by: node,
                    about: number(&about),
                    job: job.number().unwrap(),
                }),
                Effect::Note { .. } | Effect::CheckOwnNode => {}
            }
        }
    }

    fn probe(&mut self, node: usize, about: String) {
        let other = number(&about);
        let way = self.open[node][other] && self.open[other][node];
        let (answer, after) = match way && self.nodes[other].lives && !self.lost() {
            true => (ManagerAnswer::Answers, 50),
            false => (ManagerAnswer::Gone, 1000),
        };
        self.later(after, Due::Slurmd(node, about, answer));
    }

    fn run(&mut self, ms: u64) {
        let end = self.now + ms;
        while self.now < end {
            self.now += 1;
            while let Some(entry) = self.due.first_entry().filter(|e| e.key().0 <= self.now) {
                match entry.remove() {
                    Due::Message(told) if self.runs(number(&told.to)) => {
                        self.event(number(&told.to), Event::Received(told));
                    }
                    Due::Slurmd(node, about, answer) if self.runs(node) => {
                        self.event(node, Event::Manager(about, answer));
                    }
                    _ => {}
                }
            }
            for node in 0..self.nodes.len() {
                // Nodes do not tick together.
                if (self.now + node as u64 * 37).is_multiple_of(TICK) && self.runs(node) {
                    self.event(node, Event::Tick);
                }
            }
        }
    }

    fn cut(&mut self, sides: &[usize]) {
        for (a, row) in self.open.iter_mut().enumerate() {
            for (b, open) in row.iter_mut().enumerate() {
                *open = sides[a] == sides[b];
            }
        }
    }

    fn state(&self, of: usize, seen_by: usize) -> Option<PeerState> {
        let view = self.nodes[seen_by].peers.view(&self.settings, self.now);
        let own = view.into_iter().find(|peer| peer.node == name(of));
        own.map(|peer| peer.state)
    }

    /// Nobody asks about a node, and is asked about, within a time that no slurmctld takes to act.
    fn sound(&self, what: &str) {
        for one in &self.asks {
            for other in &self.asks {
                let near = one.at.abs_diff(other.at) < HOLD_MS - 8000;
                let against = near && one.job == other.job && one.by == other.about;
                assert!(!against, "{what}: {one:?} and {other:?}");
            }
        }
    }
}

/// How many seeds: a quarter of them in the daily run, all with `$GPUOS_LONG` (`make random`).
fn seeds(all: u64) -> u64 {
    all / if std::env::var_os("GPUOS_LONG").is_some() {
        1
    } else {
        4
    }
}

#[test]
fn a_dead_node_is_found_within_five_seconds() {
    let mut longest = 0;
    for nodes in [3, 4, 5, 8, 16, 33, 64] {
        for seed in 0..seeds(8) {
            let mut world = World::ready(nodes, seed);
            let ms = world.random.below(1000);
            world.run(ms);
            let dead = world.random.index(nodes);
            world.nodes[dead].lives = false;
            let killed = world.now;
            world.run(6000);
            let found = world.asks.first().expect("found");
            assert!(world.asks.iter().all(|ask| ask.about == dead));
            longest = longest.max(found.at - killed);
            assert_eq!(world.state(dead, found.by), Some(PeerState::Silent));
        }
    }
    assert!(longest < 5000, "{longest} ms");
    eprintln!("the longest took {longest} ms");
}

#[test]
fn of_two_nodes_the_first_asks() {
    for (dead, asks) in [(1, 1), (0, 0)] {
        let mut world = World::ready(2, 1);
        world.nodes[dead].lives = false;
        world.run(20_000);
        assert_eq!(world.asks.len(), asks);
    }
}

#[test]
fn lost_messages_are_no_alarm_and_hide_no_dead_node_for_long() {
    for seed in 0..24 {
        let nodes = 3 + seed as usize % 4;
        let mut world = World::ready(nodes, seed);
        world.loss = 20;
        world.run(200_000);
        assert_eq!(world.asks, [], "seed {seed}");
        let dead = world.random.index(nodes);
        world.nodes[dead].lives = false;
        world.run(15_000);
        assert!(
            world.asks.iter().any(|ask| ask.about == dead),
            "seed {seed}"
        );
        assert!(
            world.asks.iter().all(|ask| ask.about == dead),
            "seed {seed}"
        );
    }
}

#[test]
fn a_gpuosd_that_ends_is_no_node_that_ends() {
    let mut world = World::ready(5, 3);
    world.nodes[2].daemon = false;
    world.run(120_000);
    assert_eq!(world.asks, []);
    assert_eq!(world.state(2, 1), Some(PeerState::DaemonSilent));
    world.restart(2);
    world.run(5000);
    assert_eq!(world.state(2, 1), Some(PeerState::Alive));
    // One that ends in order says so, and a machine that is then switched off is an administrator's business.
    let own = world.nodes[2].peers.farewell();
    assert_eq!(own, ["n1", "n2", "n5"]);
    for node in own {
        let bye = Datagram::new("n3", &node, gpuos_core::peers::Body::Bye);
        world.event(number(&node), Event::Received(bye));
    }
    world.nodes[2].lives = false;
    world.run(30_000);
    assert_eq!(world.asks, []);
    assert_eq!(world.state(2, 1), Some(PeerState::Left));
}

#[test]
fn of_two_halves_one_asks() {
    for seed in 0..seeds(200) {
        let mut random = Random(seed);
        let nodes = 2 + random.index(8);
        let mut world = World::ready(nodes, seed);
        let sides: Vec<usize> = (0..nodes).map(|_| random.index(2)).collect();
        world.cut(&sides);
        world.run(30_000);
        for ask in &world.asks {
            assert_eq!(sides[ask.by], sides[world.asks[0].by], "seed {seed}");
            assert_ne!(sides[ask.by], sides[ask.about], "seed {seed}");
        }
        // All is heard again, and nobody is asked about any more.
        let before = world.asks.len();
        world.cut(&vec![0; nodes]);
        world.run(30_000);
        assert_eq!(world.asks.len(), before, "seed {seed}");
        for (a, b) in (0..nodes).flat_map(|a| (0..nodes).map(move |b| (a, b))) {
            let state = world.state(a, b);
            assert!(
                state.is_none_or(|s| s == PeerState::Alive),
                "{a} {b} {state:?}"
            );
        }
    }
}

/// Everything at once, on any graph of one-way cuts, in several jobs.
#[test]
fn nobody_asks_and_is_asked_about() {
    let mut asks = 0;
    for seed in 0..seeds(300) {
        let mut random = Random(seed ^ 0x9e37);
        let nodes = 3 + random.index(6);
        let some = |random: &mut Random| {
            let mut all: Vec<usize> = (0..nodes).collect();
            all.retain(|_| random.index(4) > 0);
            all
        };
        let jobs = [(0..nodes).collect(), some(&mut random)];
        let mut world = World::new(nodes, &jobs, seed);
        world.run(READY);
        for _ in 0..60 {
            match random.index(10) {
                0 | 1 => {
                    let sides: Vec<usize> = (0..nodes).map(|_| random.index(2)).collect();
                    world.cut(&sides);
                }
                2..=4 => {
                    let (a, b) = (random.index(nodes), random.index(nodes));
                    world.open[a][b] = !world.open[a][b];
                }
                5 => world.cut(&vec![0; nodes]),
                6 => {
                    world.loss = random.index(30);
                    world.latest_ms = 1 + random.index(1500);
                }
                7 => {
                    let node = random.index(nodes);
                    world.nodes[node].stalled_until = world.now + random.below(8000);
                }
                8 => {
                    let node = random.index(nodes);
                    world.nodes[node].lives = !world.nodes[node].lives;
                }
                _ => world.restart(random.index(nodes)),
            }
            world.run(random.below(6000));
        }
        world.sound(&format!("seed {seed}"));
        asks += world.asks.len();
    }
    // It is not that nobody ever asks.
    assert!(asks > 100, "{asks}");
    eprintln!("{asks} questions to slurmctld");
}

#[test]
fn a_node_that_was_asleep_accuses_nobody() {
    let mut world = World::ready(4, 5);
    for _ in 0..20 {
        world.nodes[1].stalled_until = world.now + 1800;
        world.run(4000);
    }
    // Nor is it accused: its slurmd answers.
    world.nodes[1].stalled_until = world.now + 60_000;
    world.run(90_000);
    assert_eq!(world.asks, []);
    assert_eq!(world.state(1, 0), Some(PeerState::Alive));
}

#[test]
fn many_nodes_at_once_are_a_switch() {
    let mut world = World::ready(20, 9);
    for dead in 10..19 {
        world.nodes[dead].lives = false;
    }
    world.run(20_000);
    for node in 0..20 {
        let own = world.asks.iter().filter(|ask| ask.by == node).count();
        assert!(own <= 4, "{own}");
    }
}

#[test]
fn votes_that_nobody_asked_for_count_nothing() {
    use gpuos_core::peers::{Body, Word};
    let mut world = World::ready(5, 11);
    for nonce in 0..2000 {
        for from in ["n3", "n4", "n5", "x"] {
            let body = Body::Vote {
                about: "n2".into(),
                nonce,
                word: Word::Gone,
            };
            let told = Datagram::new(from, "n1", body);
            world.event(0, Event::Received(told));
        }
    }
    world.run(10_000);
    assert_eq!(world.asks, []);
    assert_eq!(world.state(1, 0), Some(PeerState::Alive));
}
