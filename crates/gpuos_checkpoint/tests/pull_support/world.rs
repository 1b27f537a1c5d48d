//! A set of simulated nodes with real bytes, and makers of shards on a network that loses, repeats, delays and damages messages.

use std::collections::{BTreeMap, BTreeSet};

use gpuos_checkpoint::pull::{Effect, Event, Loss, Patience, Plan, Pull};
use gpuos_checkpoint::stripe::{Geometry, Shard};
use gpuos_model::rng::Rng;

use super::code::{combine, factors};

const TICK_MS: u64 = 40;
/// Whatever is to end has ended by then.
const LATEST_MS: u64 = 3_600_000;

/// How bad the world is: each in percent.
#[derive(Clone, Copy, Default)]
pub struct Faults {
    pub lost: u64,
    pub repeated: u64,
    pub damaged: u64,
    /// In each tick of a maker.
    pub crashes: u64,
    pub latest_ms: u64,
}

/// What a member does when it is asked.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Member {
    Answers,
    /// Says nothing, and now and then somebody notices that its node is gone.
    Dead,
    /// Has lost its shards.
    Empty,
    /// Has other bytes than it should.
    Rotten,
}

#[derive(Clone, Copy, Default)]
pub struct Sent {
    pub messages: u64,
    pub bytes: u64,
}

/// Something on its way.
#[derive(Clone)]
pub enum Due {
    Ask {
        maker: usize,
        source: u8,
        piece: u64,
    },
    Answer {
        maker: usize,
        source: u8,
        piece: u64,
        bytes: Option<Vec<u8>>,
    },
    Refused {
        maker: usize,
        source: u8,
        why: Loss,
    },
    Combined {
        maker: usize,
        life: u64,
        piece: u64,
    },
    Written {
        maker: usize,
        life: u64,
        piece: u64,
        bytes: Vec<u8>,
    },
    Tick {
        maker: usize,
        life: u64,
    },
    Restart {
        maker: usize,
    },
    Falls {
        member: u8,
        to: Member,
    },
}

/// Who makes one shard.
pub struct Maker {
    pub wanted: Shard,
    plan: Plan,
    pull: Pull,
    life: u64,
    kept: BTreeMap<(u64, u8), Vec<u8>>,
    combined: BTreeMap<u64, Vec<u8>>,
    /// Outlives crashes.
    disc: BTreeMap<u64, Vec<u8>>,
    handed: BTreeSet<u64>,
    /// All sources that any piece was made of.
    pub made_of: BTreeSet<Vec<u8>>,
    pub ended: Option<bool>,
}

pub struct World {
    set: Geometry,
    /// The right bytes of each shard, by stripe and place.
    truth: BTreeMap<(u8, u8), Vec<u8>>,
    members: Vec<Member>,
    pub makers: Vec<Maker>,
    /// Makers that went on after a crash, and that gave up though there were enough sources.
    pub resumed: usize,
    pub in_vain: usize,
    faults: Faults,
    pub sent: Vec<Sent>,
    due: BTreeMap<(u64, u64), Due>,
    count: u64,
    now: u64,
    pub rng: Rng,
}

impl World {
    pub fn new(set: Geometry, chunk_len: usize, faults: Faults, seed: u64) -> World {
        let mut rng = Rng::new(seed);
        let mut truth = BTreeMap::new();
        for stripe in 0..set.members() {
            for place in 0..set.data() {
                let bytes = (0..chunk_len).map(|_| rng.bits() as u8).collect();
                truth.insert((stripe, place), bytes);
            }
        }
        World {
            set,
            truth,
            members: vec![Member::Answers; set.members().into()],
            makers: Vec::new(),
            resumed: 0,
            in_vain: 0,
            faults,
            sent: vec![Sent::default(); set.members().into()],
            due: BTreeMap::new(),
            count: 0,
            now: 0,
            rng,
        }
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.rng.below(100) < percent
    }

    pub fn later(&mut self, after: u64, due: Due) {
        self.count += 1;
        self.due.insert((self.now + after, self.count), due);
    }

    /// Over the network.
    fn post(&mut self, from: u8, bytes: usize, due: &Due) {
        let copies = 1 + u64::from(self.chance(self.faults.repeated));
        for _ in 0..copies {
            self.sent[usize::from(from)].messages += 1;
            self.sent[usize::from(from)].bytes += bytes as u64;
            let after = 1 + self.rng.below(self.faults.latest_ms);
            if !self.chance(self.faults.lost) {
                self.later(after, due.clone());
            }
        }
    }

    /// Whether the shard of a source is there and right.
    fn has(&self, stripe: u8, place: u8) -> bool {
        let holder = self.set.at(stripe, place).unwrap().member;
        self.members[usize::from(holder)] == Member::Answers
            && self.truth.contains_key(&(stripe, place))
    }

    fn order(&mut self, wanted: Shard, sources: Vec<u8>, len: usize, piece_len: u32, window: u16) {
        let plan = Plan {
            len: len as u64,
            piece_len,
            needed: self.set.data(),
            sources,
            window,
            resume_from: 0,
            patience: Patience {
                retry_ms: 100,
                longest_ms: 800,
                tries: 5,
            },
        };
        let maker = self.makers.len();
        self.makers.push(Maker {
            wanted,
            pull: Pull::new(plan.clone()).unwrap(),
            plan,
            life: 0,
            kept: BTreeMap::new(),
            combined: BTreeMap::new(),
            disc: BTreeMap::new(),
            handed: BTreeSet::new(),
            made_of: BTreeSet::new(),
            ended: None,
        });
        self.restart(maker);
    }

    /// A new process, which knows what is on disc.
    fn restart(&mut self, number: usize) {
        let maker = &mut self.makers[number];
        maker.life += 1;
        maker.kept.clear();
        maker.combined.clear();
        maker.plan.resume_from = (0..)
            .take_while(|piece| maker.disc.contains_key(piece))
            .count() as u64;
        maker.handed = (0..maker.plan.resume_from).collect();
        maker.pull = Pull::new(maker.plan.clone()).unwrap();
        let life = maker.life;
        self.resumed += usize::from(maker.plan.resume_from > 0);
        self.later(
            TICK_MS,
            Due::Tick {
                maker: number,
                life,
            },
        );
        self.event(number, Event::Start);
    }

    fn event(&mut self, number: usize, event: Event) {
        let effects = self.makers[number].pull.step(event, self.now);
        for effect in effects {
            self.act(number, effect);
        }
    }

    fn act(&mut self, number: usize, effect: Effect) {
        let maker = &mut self.makers[number];
        let (wanted, life) = (maker.wanted, maker.life);
        match effect {
            Effect::Ask { source, piece } => {
                assert!(maker.plan.sources.contains(&source) && piece < maker.plan.pieces());
                let ask = Due::Ask {
                    maker: number,
                    source,
                    piece,
                };
                self.post(wanted.member, 0, &ask);
            }
            // Done where the bytes are at hand.
            Effect::Keep { .. } => {}
            Effect::Combine { piece, sources } => {
                assert_eq!(sources.len(), usize::from(self.set.data()));
                let kept: Vec<Vec<u8>> = sources
                    .iter()
                    .map(|source| maker.kept.remove(&(piece, *source)).expect("kept"))
                    .collect();
                let shards: Vec<&[u8]> = kept.iter().map(Vec::as_slice).collect();
                let by = factors(&sources, wanted.place, self.set.data(), self.set.parity());
                let before = maker.combined.insert(piece, combine(&by, &shards));
                assert_eq!(before, None, "combined twice");
                maker.made_of.insert(sources);
                let after = self.rng.below(5);
                self.later(
                    after,
                    Due::Combined {
                        maker: number,
                        life,
                        piece,
                    },
                );
            }
            Effect::Write { piece } => {
                assert_eq!(piece, maker.handed.len() as u64, "in order");
                assert!(maker.handed.insert(piece), "once");
                let bytes = maker.combined.remove(&piece).expect("combined");
                let after = 1 + self.rng.below(20);
                self.later(
                    after,
                    Due::Written {
                        maker: number,
                        life,
                        piece,
                        bytes,
                    },
                );
            }
            Effect::Done => self.done(number),
            Effect::Failed(too_few) => {
                assert!(too_few.left < usize::from(too_few.needed), "{too_few}");
                assert_eq!(too_few.left + too_few.lost.len(), maker.plan.sources.len());
                self.failed(number);
            }
        }
    }

    fn done(&mut self, number: usize) {
        let maker = &mut self.makers[number];
        let made: Vec<u8> = maker.disc.values().flatten().copied().collect();
        assert_eq!(maker.disc.len() as u64, maker.plan.pieces());
        assert_eq!(maker.pull.written(), maker.plan.pieces());
        maker.ended = Some(true);
        let place = (maker.wanted.stripe, maker.wanted.place);
        // A parity shard is new when it is encoded; whether it is right shows when others are made of it.
        let right = self.truth.entry(place).or_insert_with(|| made.clone());
        assert!(*right == made, "wrong bytes of {:?}", maker.wanted);
    }

    /// The network may have looked worse than it is: as long as enough sources are there, it is tried again later.
    fn failed(&mut self, number: usize) {
        let maker = &self.makers[number];
        let there = maker
            .plan
            .sources
            .iter()
            .filter(|place| self.has(maker.wanted.stripe, **place));
        if there.count() >= usize::from(self.set.data()) {
            self.makers[number].life += 1;
            self.in_vain += 1;
            self.later(500, Due::Restart { maker: number });
        } else {
            self.makers[number].ended = Some(false);
        }
    }

    fn arrive(&mut self, due: Due) {
        match due {
            Due::Ask {
                maker,
                source,
                piece,
            } => self.asked(maker, source, piece),
            Due::Answer {
                maker,
                source,
                piece,
                bytes,
            } => {
                let checked = bytes.is_some();
                let event = Event::Piece {
                    source,
                    piece,
                    checked,
                };
                let effects = self.makers[maker].pull.step(event, self.now);
                if effects.contains(&Effect::Keep { source, piece }) {
                    let before = self.makers[maker]
                        .kept
                        .insert((piece, source), bytes.expect("checked"));
                    assert_eq!(before, None, "kept twice");
                }
                let (kept, combined) = (&self.makers[maker].kept, &self.makers[maker].combined);
                let held = kept.values().chain(combined.values());
                let memory: usize = held.map(Vec::len).sum();
                assert!(memory as u64 <= self.makers[maker].plan.memory());
                for effect in effects {
                    self.act(maker, effect);
                }
            }
            Due::Refused { maker, source, why } => {
                self.event(maker, Event::Refused { source, why })
            }
            Due::Combined { maker, life, piece } if life == self.makers[maker].life => {
                self.event(maker, Event::Combined { piece });
            }
            Due::Written {
                maker: number,
                life,
                piece,
                bytes,
            } => {
                let maker = &mut self.makers[number];
                // What a process that crashed has handed over may still come to the disc, or not.
                if life == maker.life || self.rng.below(2) == 0 {
                    let before = maker.disc.insert(piece, bytes.clone());
                    assert!(
                        before.is_none_or(|before| before == bytes),
                        "written twice, with other bytes"
                    );
                }
                if life == self.makers[number].life {
                    self.event(number, Event::Written { piece });
                }
            }
            Due::Tick { maker, life } if life == self.makers[maker].life => {
                if self.chance(self.faults.crashes) {
                    self.makers[maker].life += 1;
                    let after = self.rng.below(300);
                    return self.later(after, Due::Restart { maker });
                }
                self.event(maker, Event::Tick);
                if self.makers[maker].ended.is_none() {
                    self.later(TICK_MS, Due::Tick { maker, life });
                }
            }
            Due::Restart { maker } => self.restart(maker),
            Due::Falls { member, to } => self.members[usize::from(member)] = to,
            Due::Combined { .. } | Due::Tick { .. } => {}
        }
    }

    fn asked(&mut self, maker: usize, source: u8, piece: u64) {
        let stripe = self.makers[maker].wanted.stripe;
        let holder = self.set.at(stripe, source).unwrap().member;
        let refused = |why| Due::Refused { maker, source, why };
        let health = self.members[usize::from(holder)];
        match health {
            Member::Dead if self.chance(10) => self.later(5, refused(Loss::Gone)),
            Member::Dead => {}
            Member::Empty => self.post(holder, 0, &refused(Loss::Absent)),
            _ => {
                let range = self.makers[maker].plan.bytes_of(piece);
                let range = range.start as usize..range.end as usize;
                let bytes = self.truth[&(stripe, source)][range].to_vec();
                let len = bytes.len();
                let right = health == Member::Answers && !self.chance(self.faults.damaged);
                let bytes = right.then_some(bytes);
                self.post(
                    holder,
                    len,
                    &Due::Answer {
                        maker,
                        source,
                        piece,
                        bytes,
                    },
                );
            }
        }
    }

    fn run(&mut self) {
        while self.makers.iter().any(|maker| maker.ended.is_none()) {
            let (at, due) = self.due.pop_first().expect("something goes on");
            assert!(at.0 < LATEST_MS, "it does not end");
            self.now = at.0;
            self.arrive(due);
        }
        // What still arrives changes nothing.
        while let Some((at, due)) = self.due.pop_first() {
            self.now = at.0;
            match due {
                Due::Restart { .. } => {}
                due => self.arrive(due),
            }
        }
    }

    /// All parity shards, by those that hold them.
    pub fn encode(&mut self, len: usize, piece_len: u32, window: u16) {
        for member in 0..self.set.members() {
            for parity in self.set.parities(member) {
                let sources = (0..self.set.data()).collect();
                self.order(parity, sources, len, piece_len, window);
            }
        }
        self.run();
        assert!(self.makers.drain(..).all(|maker| maker.ended == Some(true)));
    }

    /// All that some members held, of what the others have, each stripe beginning with other sources.
    pub fn rebuild(&mut self, lost: &BTreeSet<u8>, len: usize, piece_len: u32, window: u16) {
        for member in lost {
            for shard in self.set.held_by(*member) {
                let others = self
                    .set
                    .stripe(shard.stripe)
                    .filter(|other| !lost.contains(&other.member));
                let mut sources: Vec<u8> = others.map(|other| other.place).collect();
                let turn = usize::from(shard.stripe) % sources.len();
                sources.rotate_left(turn);
                self.order(shard, sources, len, piece_len, window);
            }
        }
        self.run();
    }

    pub fn some_members(&mut self, count: usize) -> BTreeSet<u8> {
        let mut all: Vec<u8> = (0..self.set.members()).collect();
        self.rng.shuffle(&mut all);
        all.into_iter().take(count).collect()
    }
}
