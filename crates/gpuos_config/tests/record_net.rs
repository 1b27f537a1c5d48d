//! Recordings of a site whose gangs share a network: which of several close places was taken is found
//! again, with the bandwidth that the running gangs left, wherever in the ring the decision lies.

use std::collections::BTreeSet;

use gpuos_config::gpuos_toml::Config;
use gpuos_model::cluster::Cluster;
use gpuos_model::gpuset::GpuSet;
use gpuos_model::node_types::NodeFacts;
use gpuos_placement::fabric::Recipe;
use gpuos_placement::plan::{GpuShape, NodeState, Planner};
use gpuos_placement::record::{By, Event, Outcome, Purpose, Recording, Sizes, Writer, read};
use gpuos_placement::traffic::Traffic;
use proptest::prelude::*;

use crate::plan_support::{idle, mix, request};
use crate::random::Random;

const NODES: usize = 24;

/// Fabrics on which gangs get into each other's way.
const NETS: [&str; 4] = [
    "kind = \"fat-tree\"\nnodes-per-switch = 2\nfanout = [2, 3]\noversubscription = [4, 4]\n",
    "kind = \"torus\"\nsize = [4, 3, 2]\nswitch-gbps = 25\n",
    "kind = \"dragonfly\"\ngroups = 3\nswitches-per-group = 4\nnodes-per-switch = 2\nswitch-gbps = 25\n\
     global-gbps = 25\n",
    "kind = \"hypercube\"\ndimensions = 5\nswitch-gbps = 12.5\n",
];

/// A scheduler of gangs that keeps a ring.
struct Scheduler {
    net: Option<Recipe>,
    traffic: Traffic,
    planner: Planner,
    writer: Writer,
    memory: Vec<u8>,
    states: Vec<NodeState>,
    running: Vec<(u32, Vec<(u32, GpuSet)>)>,
    random: Random,
    job: u32,
}

fn site(kind: &str) -> (Config, Cluster) {
    let net =
        format!("[[fabric.net]]\nname = \"ib\"\nnodes = \"n[1-{NODES}]\"\nnode-gbps = 25\n{kind}");
    let config = Config::parse(&net, "gpuos.toml").unwrap();
    let facts: Vec<NodeFacts> = (1..=NODES)
        .map(|n| NodeFacts {
            name: format!("n{n}"),
            gpus: 8,
            gres_type: "h100".into(),
            ..NodeFacts::default()
        })
        .collect();
    let cluster = config.cluster(&facts, None).unwrap();
    (config, cluster)
}

impl Scheduler {
    fn new(kind: &str, records: u32, seed: u64) -> Scheduler {
        let (config, cluster) = site(kind);
        let sizes = Sizes::new(records, NODES);
        let mut memory = vec![0; sizes.total()];
        let mut writer = Writer::open(&mut memory, sizes, NODES);
        let net = config.recipe(&cluster);
        writer.model(&mut memory, &cluster, net.as_ref());
        Scheduler {
            net,
            traffic: config.traffic(&cluster).expect("a net"),
            states: idle(&cluster),
            planner: Planner::new(cluster),
            writer,
            memory,
            running: Vec::new(),
            random: Random(seed),
            job: 0,
        }
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.random.below(limit)
    }

    /// The ring is told what select_gpuos tells its own.
    fn tell(&mut self, job: u32) {
        match self.traffic.gang(job) {
            Some((nodes, promise)) => {
                self.writer.gang(&mut self.memory, job, nodes, promise);
            }
            None => self.writer.gang_ended(&mut self.memory, job),
        }
    }

    /// Some jobs end or shrink, then one is decided and starts.
    fn decide(&mut self) {
        while !self.running.is_empty() && (self.running.len() > 12 || self.below(3) == 0) {
            let at = self.below(self.running.len() as u64) as usize;
            if self.below(6) == 0 && self.running[at].1.len() > 1 {
                let (node, gpus) = self.running[at].1.pop().expect("several");
                self.release(node, gpus);
                let (job, nodes) = self.running[at].clone();
                self.traffic.start(job, nodes);
                self.tell(job);
            } else {
                let (job, nodes) = self.running.swap_remove(at);
                nodes
                    .into_iter()
                    .for_each(|(node, gpus)| self.release(node, gpus));
                self.traffic.end(job);
                self.tell(job);
            }
        }
        self.job += 1;
        let nodes = 1 + self.below(5) as u32;
        let request = request(
            nodes,
            GpuShape::PerNode([1, 2, 4, 8][self.below(4) as usize]),
        );
        self.writer.states(&mut self.memory, &self.states);
        let pick = self.traffic.best(&mut self.planner, &self.states, &request);
        // As select_gpuos offers them: the pick, then the others in order.
        let refused = self.below(5) == 0;
        for tried in 0..=u32::from(refused) {
            let (skip, by) = match tried {
                0 => (pick.skip, By::Network(pick.beside)),
                _ => (u32::from(pick.skip == 0), By::Order),
            };
            let answer = self.planner.plan(&self.states, &request, skip);
            let answer = answer.as_ref().map(|choice| *choice);
            let at = 1_700_000_000 + u64::from(self.job);
            self.writer.asked(
                &mut self.memory,
                self.job,
                Purpose::Start,
                (skip, by),
                &request,
                answer,
                at,
            );
            let Ok(choice) = answer else { break };
            if tried == u32::from(refused) {
                let held: Vec<_> = choice.nodes.iter().map(|n| (n.node, n.gpus)).collect();
                for &(node, gpus) in &held {
                    let state = &mut self.states[node as usize];
                    state.free = state.free.minus(gpus);
                }
                self.writer
                    .ended(&mut self.memory, self.job, Outcome::Taken);
                self.traffic.start(self.job, held.clone());
                self.tell(self.job);
                self.running.push((self.job, held));
            }
        }
    }

    fn release(&mut self, node: u32, gpus: GpuSet) {
        let free = &mut self.states[node as usize].free;
        *free = GpuSet(free.0 | gpus.0);
    }

    fn read(&self) -> Recording {
        read(&self.memory).expect("a ring")
    }
}

/// Replays all of it; answers how many places were compared, and how many of these were not the first.
fn holds(recording: &Recording) -> (u64, u64) {
    let mut others = 0;
    let counts = recording.replay(&mut |step| {
        assert!(
            step.same,
            "{:?} now {:?} {:?}",
            step.asked, step.pick, step.again
        );
        assert_eq!(
            step.pick.is_some(),
            matches!(step.asked.by, By::Network(_)),
            "{:?}",
            step.asked
        );
        others += u64::from(step.pick.is_some_and(|pick| pick.skip > 0));
    });
    assert_eq!((counts.replayed, counts.not_compared), (counts.same, 0));
    (counts.compared, others)
}

#[test]
fn the_choice_beside_running_gangs_replays_on_every_kind_of_fabric() {
    for (kind, seed) in NETS.into_iter().zip(1..) {
        let mut scheduler = Scheduler::new(kind, 4096, seed);
        for _ in 0..600 {
            scheduler.decide();
        }
        let (compared, others) = holds(&scheduler.read());
        assert!(compared > 150 && others > 5, "{kind}: {compared}, {others}");
    }
}

#[test]
fn a_ring_that_has_wrapped_knows_who_runs() {
    let mut scheduler = Scheduler::new(NETS[0], 64, 7);
    let mut first = BTreeSet::new();
    for round in 0..1500 {
        scheduler.decide();
        if round % 100 == 99 {
            let recording = scheduler.read();
            assert!(holds(&recording).0 > 20, "round {round}");
            let head = recording.segments.first().map(|s| s.number);
            first.insert(head);
        }
    }
    assert!(first.len() > 5, "the oldest were overwritten: {first:?}");
    // The mix, the network and the gangs stand at the head of a segment, in this order.
    scheduler.planner.learn(mix(3, 1));
    assert!(scheduler.planner.work(usize::MAX));
    let learned = scheduler.planner.learned().expect("just learned").clone();
    scheduler.writer.learned(&mut scheduler.memory, &learned);
    for _ in 0..1500 {
        scheduler.decide();
    }
    let recording = scheduler.read();
    holds(&recording);
    for segment in &recording.segments {
        assert!(matches!(segment.events[0], Event::Learned(_)));
        assert_eq!(segment.events[1], Event::Network { whole: true });
    }
}

#[test]
fn a_reconfiguration_tells_all_gangs_anew() {
    let mut scheduler = Scheduler::new(NETS[0], 512, 11);
    for round in 0..200 {
        scheduler.decide();
        if round % 40 == 20 {
            let cluster = scheduler.planner.cluster().clone();
            let net = scheduler.net.clone();
            let (writer, memory) = (&mut scheduler.writer, &mut scheduler.memory);
            writer.model(memory, &cluster, net.as_ref());
            scheduler.traffic.clear();
            for (job, nodes) in scheduler.running.clone() {
                scheduler.traffic.start(job, nodes);
                scheduler.tell(job);
            }
        }
    }
    let recording = scheduler.read();
    assert_eq!(recording.clusters.len(), 1, "the same model is kept once");
    assert_eq!(recording.nets, [scheduler.net.clone()]);
    assert!(holds(&recording).0 > 40);
}

#[test]
fn gangs_too_many_for_a_segment_are_said_to_be_missing() {
    let mut scheduler = Scheduler::new(NETS[0], 64, 5);
    let whole: Vec<(u32, GpuSet)> = (0..NODES as u32).map(|n| (n, GpuSet(1 << 40))).collect();
    for job in 1..=100 {
        scheduler.traffic.start(10_000 + job, whole.clone());
        scheduler.tell(10_000 + job);
    }
    for _ in 0..200 {
        scheduler.decide();
    }
    let counts = scheduler.read().replay(&mut |step| assert!(step.same));
    assert!(counts.not_compared > 50, "{counts:?}");
    // They end, and from the next segment on all is known again.
    for job in 1..=100 {
        scheduler.traffic.end(10_000 + job);
        scheduler.tell(10_000 + job);
    }
    for _ in 0..1500 {
        scheduler.decide();
    }
    assert!(holds(&scheduler.read()).0 > 20);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(16) })]

    /// Damage hides decisions; those that are left come out the same, or say that they cannot.
    #[test]
    fn damage_makes_no_other_choice(seed in any::<u64>(), kind in 0..NETS.len(), hits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..40)) {
        let mut scheduler = Scheduler::new(NETS[kind], 64, seed);
        for _ in 0..120 {
            scheduler.decide();
        }
        for (at, value) in hits {
            let at = at.index(scheduler.memory.len());
            scheduler.memory[at] ^= value;
        }
        if let Ok(recording) = read(&scheduler.memory) {
            recording.replay(&mut |step| assert!(step.same, "{:?} now {:?}", step.asked, step.pick));
        }
    }
}
