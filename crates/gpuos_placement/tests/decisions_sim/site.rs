//! The site: its GPUs as they stand in the racks, the jobs, and the ledger of who has what.

use std::collections::BTreeMap;

use super::slurm::Slurm;
use crate::random::Random;

/// Memory slices of a GPU.
pub const SLICES: usize = 8;
/// Shards of a GPU.
pub const SHARDS: u64 = 4;
/// Seconds that a job waits, and that a GPU was of its mode, before it is switched.
pub const AFTER: i64 = 60;
pub const HOLD: i64 = 300;

/// What a GPU is there for, as gpuos.toml and gres.conf say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    Whole,
    Switchable,
    Divided,
}

/// The GPUs of each node, in NVML's order.
pub const NODES: [&[Role]; 4] = [
    &[
        Role::Whole,
        Role::Switchable,
        Role::Switchable,
        Role::Switchable,
    ],
    &[
        Role::Divided,
        Role::Whole,
        Role::Switchable,
        Role::Switchable,
    ],
    &[Role::Divided, Role::Divided, Role::Switchable],
    &[Role::Whole, Role::Whole, Role::Whole],
];

/// A GPU in the racks: node, and NVML's index.
pub type Card = (usize, usize);

/// What a job asks for. On one node, each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ask {
    Whole(usize),
    Shards(u64),
    /// A placement of so many slices.
    Slices(u32),
    /// Whole GPUs, and a placement.
    Both(usize, u32),
    WholeNode,
}

impl Ask {
    pub const EACH: [Ask; 10] = [
        Ask::Whole(1),
        Ask::Whole(2),
        Ask::Whole(4),
        Ask::Shards(1),
        Ask::Shards(3),
        Ask::Slices(1),
        Ask::Slices(4),
        Ask::Slices(8),
        Ask::Both(1, 2),
        Ask::WholeNode,
    ];

    pub fn gpus(&self) -> usize {
        match self {
            Ask::Whole(count) | Ask::Both(count, _) => *count,
            _ => 0,
        }
    }

    pub fn slices(&self) -> u32 {
        match self {
            Ask::Slices(count) | Ask::Both(_, count) => *count,
            _ => 0,
        }
    }
}

/// What of a GPU a job has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Has {
    Whole,
    Shards(u64),
    /// By bits.
    Slices(u64),
    /// A job that has the whole node has it both ways.
    Node,
}

/// A job that waits.
#[derive(Clone, Debug)]
pub struct Waiting {
    pub id: u32,
    pub ask: Ask,
    pub since: i64,
}

/// A job that runs.
#[derive(Clone, Debug)]
pub struct Running {
    pub end: i64,
    pub has: Vec<(Card, Has)>,
}

/// Who has what, by what stands in the racks.
#[derive(Default)]
pub struct Ledger {
    pub jobs: BTreeMap<u32, Running>,
    pub out: Vec<Card>,
    /// How a GPU served last, whether by slices, and since when.
    pub served: BTreeMap<Card, (bool, i64)>,
}

impl Ledger {
    pub fn of(&self, card: Card) -> impl Iterator<Item = (u32, Has)> + '_ {
        let jobs = self.jobs.iter();
        let has = jobs.flat_map(|(id, job)| job.has.iter().map(move |has| (*id, has)));
        has.filter(move |(_, has)| has.0 == card)
            .map(|(id, has)| (id, has.1))
    }

    pub fn is_free(&self, card: Card) -> bool {
        self.of(card).next().is_none()
    }

    /// Whether a job that has come at `since` may have an idle GPU of a mode now.
    pub fn may_switch(&self, card: Card, slices: bool, since: i64, now: i64) -> bool {
        let (served, at) = self.served.get(&card).copied().unwrap_or((false, 0));
        served == slices || now >= (since + AFTER).max(at + HOLD)
    }

    /// Somebody is given a part of a GPU: nobody else may have the same.
    fn give(&mut self, card: Card, has: Has, now: i64) {
        assert!(
            !self.out.contains(&card),
            "{card:?} is out of service and given"
        );
        let mut shards = 0;
        for (other, theirs) in self.of(card) {
            match (has, theirs) {
                (Has::Shards(_), Has::Shards(count)) => shards += count,
                (Has::Slices(mine), Has::Slices(bits)) if mine & bits == 0 => {}
                _ => panic!("{card:?} is given as {has:?}, and job {other} has {theirs:?}"),
            }
        }
        if let Has::Shards(count) = has {
            assert!(
                shards + count <= SHARDS,
                "{card:?} has no {count} shards beside {shards}"
            );
        }
        let sliced = matches!(has, Has::Slices(_));
        let served = self.served.entry(card).or_insert((false, 0));
        if served.0 != sliced {
            *served = (sliced, now);
        }
    }
}

/// The site, and what happens to it.
pub struct Site {
    pub ledger: Ledger,
    pub waiting: Vec<Waiting>,
    pub now: i64,
    random: Random,
    slurm: Slurm,
    next: u32,
    counts: BTreeMap<&'static str, u32>,
    history: Vec<(u32, i64, usize)>,
}

impl Site {
    pub fn new(seed: u64) -> Site {
        Site {
            ledger: Ledger::default(),
            waiting: Vec::new(),
            now: 1_000_000,
            random: Random(seed),
            slurm: Slurm::new(seed),
            next: 1,
            counts: BTreeMap::new(),
            history: Vec::new(),
        }
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// One thing happens, and then slurmctld goes through its queue.
    pub fn operate(&mut self) {
        self.now += self.random.below(20) as i64;
        self.end_jobs(|job, now| job.end <= now);
        match self.random.below(20) {
            0..=9 => self.arrive(),
            10 => self.drain(),
            11..=12 => self.bring_back(),
            13 => self.slurm.restart(),
            14..=16 => self.slurm.register(),
            17 => self.forget_one(),
            _ => {}
        }
        self.schedule();
    }

    fn arrive(&mut self) {
        if self.waiting.len() > 12 {
            return;
        }
        let (id, ask) = (self.next, self.random.pick(&Ask::EACH));
        self.next += 1;
        let since = self.now;
        self.waiting.push(Waiting { id, ask, since });
        self.count("arrivals");
    }

    fn drain(&mut self) {
        let node = self.random.index(NODES.len());
        let card = (node, self.random.index(NODES[node].len()));
        if !self.ledger.out.contains(&card) && self.ledger.out.len() < 3 {
            self.ledger.out.push(card);
            self.count("drains");
        }
    }

    fn bring_back(&mut self) {
        let at = self.random.index(self.ledger.out.len());
        if !self.ledger.out.is_empty() {
            self.ledger.out.swap_remove(at);
        }
    }

    /// Somebody gives up.
    fn forget_one(&mut self) {
        let at = self.random.index(self.waiting.len());
        if !self.waiting.is_empty() {
            self.waiting.remove(at);
        }
    }

    fn end_jobs(&mut self, ends: impl Fn(&Running, i64) -> bool) {
        let now = self.now;
        let ended: Vec<u32> = (self.ledger.jobs.iter())
            .filter(|(_, job)| ends(job, now))
            .map(|(id, _)| *id)
            .collect();
        for id in ended {
            self.ledger.jobs.remove(&id);
            self.slurm.ended(id);
            self.count("ends");
        }
    }

    /// slurmctld's queue: each job once, with the answer held against the ledger.
    fn schedule(&mut self) {
        for at in (0..self.waiting.len()).rev() {
            let job = self.waiting[at].clone();
            if self.start(&job) {
                self.waiting.remove(at);
            } else {
                let node = self.would_serve(&job);
                assert!(
                    node.is_none(),
                    "{job:?} waits, and node {node:?} could serve it now"
                );
                self.forecast(&job);
            }
        }
    }

    /// Asks for a start; what is given goes into the ledger.
    fn start(&mut self, job: &Waiting) -> bool {
        let Some((node, has)) = self.slurm.run_now(&self.ledger, job, self.now) else {
            return false;
        };
        self.check_form(job, node, &has);
        for (card, has) in &has {
            self.ledger.give(*card, *has, self.now);
        }
        let end = self.now + 1 + self.random.below(400) as i64;
        self.ledger.jobs.insert(job.id, Running { end, has });
        self.slurm.started(&self.ledger, node, self.now);
        self.history.push((job.id, self.now, node));
        self.count(match job.ask {
            Ask::Whole(_) => "whole",
            Ask::Shards(_) => "shards",
            Ask::Slices(_) => "slices",
            Ask::Both(..) => "both",
            Ask::WholeNode => "whole nodes",
        });
        true
    }

    /// A job has what it asked for, on one node.
    fn check_form(&self, job: &Waiting, node: usize, has: &[(Card, Has)]) {
        assert!(has.iter().all(|one| one.0.0 == node));
        assert!(
            self.slurm.is_registered(node),
            "{job:?} starts on a node that has not registered"
        );
        let whole = has.iter().filter(|one| one.1 == Has::Whole).count();
        let slices = has.iter().map(|one| match one.1 {
            Has::Slices(bits) => bits.count_ones(),
            _ => 0,
        });
        let slices: Vec<u32> = slices.filter(|count| *count > 0).collect();
        match job.ask {
            Ask::Whole(count) => assert_eq!((whole, has.len()), (count, count)),
            Ask::Shards(count) => {
                assert!(
                    matches!(has, [(_, Has::Shards(got))] if *got == count),
                    "{has:?}"
                );
            }
            // A placement is of one GPU.
            Ask::Slices(count) => assert_eq!(slices, [count]),
            Ask::Both(count, placement) => {
                assert_eq!((whole, slices.iter().sum::<u32>()), (count, placement));
            }
            Ask::WholeNode => assert_eq!(has.len(), NODES[node].len()),
        }
    }

    /// A node that could serve a job now, by the racks alone, without a GPU that is spared for others.
    fn would_serve(&self, job: &Waiting) -> Option<usize> {
        let serves = |node: &usize| self.slurm.is_registered(*node) && self.node_serves(*node, job);
        (0..NODES.len()).find(serves)
    }

    fn node_serves(&self, node: usize, job: &Waiting) -> bool {
        let (roles, ledger) = (NODES[node], &self.ledger);
        let cards = (0..roles.len()).map(|nvml| (node, nvml));
        let role = |card: &Card| roles[card.1];
        let sound = |card: &Card| !ledger.out.contains(card);
        let idle = |card: &Card| sound(card) && ledger.is_free(*card);
        let switches = |card: &Card, slices: bool| {
            role(card) != Role::Switchable || ledger.may_switch(*card, slices, job.since, self.now)
        };
        let whole =
            |card: &Card| role(card) != Role::Divided && idle(card) && switches(card, false);
        // Only GPUs without anybody: what fits beside others is for the geometry to say.
        let placement =
            |card: &Card| role(card) != Role::Whole && idle(card) && switches(card, true);
        match job.ask {
            Ask::Whole(count) => cards.filter(whole).count() >= count,
            Ask::Shards(count) => cards.clone().any(|card| {
                let theirs = ledger.of(card).map(|(_, has)| match has {
                    Has::Shards(count) => count,
                    _ => SHARDS,
                });
                let left = SHARDS - theirs.sum::<u64>().min(SHARDS);
                let shared = !ledger.is_free(card) && sound(&card) && role(&card) != Role::Divided;
                whole(&card) || shared && left >= count
            }),
            Ask::Slices(_) => cards.clone().any(|card| placement(&card)),
            // Which GPU the placement is of is open: those that are whole are of the others.
            Ask::Both(count, _) => {
                let fixed = |card: &Card| role(card) == Role::Whole && idle(card);
                cards.clone().filter(fixed).count() >= count
                    && cards.clone().any(|card| placement(&card))
            }
            Ask::WholeNode => cards.clone().all(|card| idle(&card)),
        }
    }

    /// Asks when a job could start: never at a time when what it counts on is somebody's.
    fn forecast(&mut self, job: &Waiting) {
        let Ask::Whole(count) = job.ask else { return };
        if !self.ledger.out.is_empty() {
            return;
        }
        let Some((node, start)) = self.slurm.will_run(&self.ledger, job, self.now) else {
            return;
        };
        let free = (0..NODES[node].len()).filter(|nvml| {
            let card = (node, *nvml);
            let gone = |(id, _)| self.ledger.jobs[&id].end <= start;
            // Slurm sees a job that is over its time as one that ends now.
            NODES[node][*nvml] != Role::Divided && self.ledger.of(card).all(gone)
        });
        assert!(
            free.count() >= count,
            "{job:?} is promised node {node} at {start}"
        );
        assert!(start >= self.now);
        self.count("forecasts");
    }

    /// All jobs end, all GPUs come back, all nodes register: whatever fits an empty node is served then, one after the other.
    pub fn serve_all_that_wait(&mut self) {
        self.ledger.out.clear();
        self.slurm.register_all();
        self.end_jobs(|_, _| true);
        for job in std::mem::take(&mut self.waiting) {
            self.now += AFTER + HOLD;
            assert!(self.start(&job), "{job:?} is not served by an empty site");
            self.end_jobs(|_, _| true);
        }
    }

    pub fn fits_an_empty_site(&self, ask: &Ask) -> bool {
        let job = Waiting {
            id: 0,
            ask: *ask,
            since: 0,
        };
        self.would_serve(&job).is_some()
    }

    pub fn would_start(&mut self, ask: &Ask) -> bool {
        let job = Waiting {
            id: 1,
            ask: *ask,
            since: 0,
        };
        self.slurm.register_all();
        self.start(&job)
    }

    pub fn history(self) -> Vec<(u32, i64, usize)> {
        self.history
    }

    /// A run that never came to what is to be seen shows nothing.
    pub fn report(&self) {
        println!("{:?}", self.counts);
        let kinds = [
            "whole",
            "shards",
            "slices",
            "both",
            "whole nodes",
            "drains",
            "forecasts",
        ];
        for kind in kinds {
            assert!(
                self.counts.contains_key(kind),
                "no {kind} in this run: {:?}",
                self.counts
            );
        }
    }
}
