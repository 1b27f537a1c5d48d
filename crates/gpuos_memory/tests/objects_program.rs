//! A program with objects over three tiers, beside a plain reference.

use std::collections::{BTreeMap, HashMap};

use gpuos_memory::objects::{
    Advice, Kind, Next, ObjectId, Objects, Origin, Outcome, Refused, Span, Spot, Standing, Task,
    TicketId, Tier,
};
use gpuos_memory::policy;
use gpuos_model::rng::Rng;

use crate::objects::{EXTENT, objects, span};

/// What moves: a number stands for the bytes of an extent.
#[derive(Default)]
struct Machine {
    tiers: [HashMap<u32, u64>; 3],
    /// Frames of GPU memory by extent.
    frames: HashMap<u32, u32>,
    now: u64,
}

impl Machine {
    fn value(&self, spot: Spot, home: u64) -> u64 {
        match spot {
            Spot::Zero => 0,
            Spot::Home => home,
            Spot::Hbm(frame) => self.tiers[0][&frame],
            Spot::Host(frame) => self.tiers[1][&frame],
            Spot::File(slot) => self.tiers[2][&slot],
        }
    }

    fn done(&mut self, task: &Task) {
        match task.kind {
            Kind::In { frame, from } => {
                let value = self.value(from, home(task.index));
                self.tiers[0].insert(frame, value);
                self.frames.insert(task.extent, frame);
            }
            Kind::Out { frame, to } => {
                let value = self.tiers[0][&frame];
                match to {
                    Some(Spot::Host(to)) => self.tiers[1].insert(to, value),
                    Some(Spot::File(to)) => self.tiers[2].insert(to, value),
                    _ => None,
                };
                assert_eq!(self.frames.remove(&task.extent), Some(frame));
            }
            Kind::Down { frame, slot } => {
                let value = self.tiers[1][&frame];
                self.tiers[2].insert(slot, value);
            }
        }
    }
}

/// The bytes of an extent of a mapped file.
fn home(index: u64) -> u64 {
    1_000_000 + index
}

/// Errors that are planted between objects and who uses and moves them: what objects would do that have them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutant {
    None,
    /// Other copies stay when an extent is written.
    ShadowKept,
    /// What leaves GPU memory is not copied.
    NotCopied,
    /// What goes from host memory to the file is not written there.
    NotFiled,
    /// What could not be moved is taken for moved.
    FailedIsDone,
    /// What comes in is taken for zeros.
    TakenForZero,
}

impl Mutant {
    /// What is done for a task, if anything is.
    fn of(self, task: &Task) -> Option<Task> {
        let kind = match (self, task.kind) {
            (Mutant::NotFiled, Kind::Down { .. }) => return None,
            (Mutant::NotCopied, Kind::Out { frame, .. }) => Kind::Out { frame, to: None },
            (Mutant::TakenForZero, Kind::In { frame, .. }) => Kind::In {
                frame,
                from: Spot::Zero,
            },
            (_, kind) => kind,
        };
        Some(Task { kind, ..*task })
    }
}

/// A program, and what it has to see.
struct Program {
    mutant: Mutant,
    objects: Objects,
    machine: Machine,
    /// Values of each object's extents; `None`: lost.
    wanted: BTreeMap<ObjectId, Vec<Option<u64>>>,
    mapped: Vec<ObjectId>,
    tickets: Vec<(TicketId, ObjectId, Span, bool)>,
    fails: bool,
    next: u64,
}

impl Program {
    fn new(limits: [u32; 3], policy: &str, fails: bool, mutant: Mutant) -> Program {
        Program {
            mutant,
            objects: objects(limits, policy),
            machine: Machine::default(),
            wanted: BTreeMap::new(),
            mapped: Vec::new(),
            tickets: Vec::new(),
            fails,
            next: 1,
        }
    }

    /// Does what is to be done next.
    fn step(&mut self, rng: &mut Rng) -> bool {
        self.machine.now += 1000;
        match self.objects.next(self.machine.now) {
            Next::Idle => return false,
            Next::Changed => {}
            Next::Task(task) => {
                let outcome = match self.fails.then(|| rng.below(200)) {
                    Some(0) => Outcome::Lost,
                    Some(1) => Outcome::NoTarget,
                    _ => Outcome::Done,
                };
                let before = self.objects.counts().poisoned;
                if outcome == Outcome::Done {
                    if let Some(task) = self.mutant.of(&task) {
                        self.machine.done(&task);
                    }
                } else if let Kind::Out { .. } = task.kind
                    && outcome == Outcome::Lost
                {
                    self.machine.frames.remove(&task.extent);
                }
                let told = match self.mutant {
                    Mutant::FailedIsDone => Outcome::Done,
                    _ => outcome,
                };
                self.objects.done(&task, told, self.machine.now);
                if self.objects.counts().poisoned > before {
                    let values = self.wanted.get_mut(&task.object).expect("an object");
                    values[task.index as usize] = None;
                    self.machine.frames.remove(&task.extent);
                }
                if outcome == Outcome::NoTarget
                    && let Kind::Out { to: None, .. } = task.kind
                {
                    self.machine.frames.remove(&task.extent);
                }
            }
        }
        for tier in [Tier::Hbm, Tier::Host, Tier::File] {
            let (used, limit) = self.objects.used(tier);
            assert!(self.fails || used <= limit, "{tier:?}: {used} of {limit}");
        }
        true
    }

    fn settle(&mut self, rng: &mut Rng) {
        for _ in 0..100_000 {
            if !self.step(rng) {
                return;
            }
        }
        panic!("it moves for ever");
    }

    /// What is held is there with the right bytes, and is written if it may be.
    fn check(&mut self) {
        let mut left = Vec::new();
        for (ticket, object, span, writes) in std::mem::take(&mut self.tickets) {
            match self.objects.standing(ticket).expect("a ticket") {
                Standing::Waiting => left.push((ticket, object, span, writes)),
                // What is clean and held takes the room that all that was written would need.
                Standing::Failed(Refused::NoRoom) => {}
                Standing::Failed(why) => assert!(self.fails, "{why}"),
                Standing::Held => {
                    let range = self.objects.extents(object, span).expect("a part");
                    let extents = self.objects.held(ticket).expect("a ticket");
                    assert_eq!(range.len(), extents.len());
                    for (index, extent) in range.zip(extents) {
                        let frame = self.machine.frames[&extent];
                        let wanted = self.wanted.get_mut(&object).expect("an object");
                        assert_eq!(Some(self.machine.tiers[0][&frame]), wanted[index]);
                        if writes {
                            self.next += 1;
                            wanted[index] = Some(self.next);
                            self.machine.tiers[0].insert(frame, self.next);
                        }
                    }
                    left.push((ticket, object, span, writes));
                }
            }
        }
        self.tickets = left;
    }

    fn some_object(&self, rng: &mut Rng) -> Option<ObjectId> {
        let count = self.wanted.len() as u64;
        (count > 0).then(|| {
            *self
                .wanted
                .keys()
                .nth(rng.below(count) as usize)
                .expect("one")
        })
    }

    fn some_part(&self, rng: &mut Rng, most: u64) -> Option<(ObjectId, Span)> {
        let object = self.some_object(rng)?;
        let bytes = self.objects.bytes(object).expect("an object");
        let offset = rng.below(bytes);
        let length = 1 + rng.below((bytes - offset).min(most * EXTENT));
        // It may begin inside an extent, and so touch one more.
        Some((object, span(offset, length)))
    }

    fn act(&mut self, rng: &mut Rng) {
        match rng.below(12) {
            0 => {
                let bytes = 1 + rng.below(5 * EXTENT);
                let origin = match rng.below(4) {
                    0 => Origin::Home,
                    _ => Origin::Zero,
                };
                if let Ok(object) = self.objects.allocate(bytes, origin) {
                    let count = bytes.div_ceil(EXTENT);
                    let value = |index| match origin {
                        Origin::Home => Some(home(index)),
                        Origin::Zero => Some(0),
                    };
                    self.wanted.insert(object, (0..count).map(value).collect());
                    if origin == Origin::Home {
                        self.mapped.push(object);
                    }
                }
            }
            1 if rng.below(3) == 0 => {
                if let Some(object) = self.some_object(rng) {
                    let held = |it: &(TicketId, ObjectId, Span, bool)| it.1 == object;
                    match self.objects.free(object) {
                        Err(why) => {
                            assert!(matches!(why, Refused::Held(_)), "{why}");
                            assert!(self.tickets.iter().any(held));
                        }
                        Ok(going) => {
                            for (_, frame) in going.expect("nothing moves now").mapped {
                                self.machine.frames.retain(|_, its| *its != frame);
                                // What another object finds there must be filled first.
                                self.machine.tiers[0].insert(frame, 666);
                            }
                            self.objects.gone(object);
                            self.wanted.remove(&object);
                            self.tickets.retain(|it| {
                                if held(it) {
                                    let standing = self.objects.standing(it.0);
                                    assert_eq!(standing, Ok(Standing::Failed(Refused::Freed)));
                                }
                                !held(it)
                            });
                        }
                    }
                }
            }
            2..=4 => {
                if let Some((object, part)) = self.some_part(rng, 2) {
                    let writes = rng.below(2) == 0 && !self.mapped.contains(&object);
                    let told = writes && self.mutant != Mutant::ShadowKept;
                    match self.objects.acquire(object, part, told) {
                        Ok(ticket) => self.tickets.push((ticket, object, part, writes)),
                        Err(why) => assert!(self.fails, "{why}"),
                    }
                }
            }
            5..=7 => {
                let count = self.tickets.len() as u64;
                if count > 0 {
                    let (ticket, ..) = self.tickets.swap_remove(rng.below(count) as usize);
                    self.objects.release(ticket).expect("a ticket");
                    assert_eq!(self.objects.release(ticket), Err(Refused::Released));
                }
            }
            8 => {
                if let Some((object, part)) = self.some_part(rng, 3) {
                    let now = self.machine.now;
                    self.objects.prefetch(object, part, now).expect("a part");
                }
            }
            9 => {
                if let Some((object, part)) = self.some_part(rng, 3) {
                    let all = [
                        Advice::Normal,
                        Advice::Hot,
                        Advice::Cold,
                        Advice::ReadMostly,
                    ];
                    let advice = all[rng.below(4) as usize];
                    self.objects.advise(object, part, advice).expect("a part");
                }
            }
            _ => {
                self.step(rng);
            }
        }
        self.check();
    }

    /// Reads everything where it is.
    fn read_all(&mut self) {
        for (object, values) in &self.wanted {
            for (index, wanted) in values.iter().enumerate() {
                let found = self.objects.reading(*object, index as u64);
                match found.map(|found| found.expect("nothing moves now")) {
                    Ok((extent, spot)) => {
                        let value = self.machine.value(spot, home(index as u64));
                        self.objects.read(extent);
                        assert_eq!(Some(value), *wanted);
                    }
                    Err(why) => {
                        assert!(matches!(why, Refused::Poisoned(_)));
                        assert_eq!(*wanted, None);
                    }
                }
            }
        }
    }
}

/// A program at random, which panics where something is wrong.
pub fn history(seed: u64, mutant: Mutant) {
    let mut rng = Rng::new(seed);
    let limits = [4 + rng.below(6), rng.below(6), 1 + rng.below(12)].map(|each| each as u32);
    let name = policy::NAMES[rng.below(5) as usize];
    let mut program = Program::new(limits, name, seed.is_multiple_of(3), mutant);
    for _ in 0..400 {
        program.act(&mut rng);
    }
    program.settle(&mut rng);
    program.check();
    program.read_all();
    // Whoever waits still is served when all others have released.
    while !program.tickets.is_empty() {
        let (ticket, ..) = program.tickets.remove(0);
        program.objects.release(ticket).expect("a ticket");
        program.settle(&mut rng);
        program.check();
    }
    program.read_all();
}
