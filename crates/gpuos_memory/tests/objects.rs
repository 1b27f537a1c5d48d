//! Objects over three tiers, against a plain reference: what a program reads is what it wrote, whatever was moved and failed meanwhile.

use std::collections::{BTreeMap, HashMap};

use gpuos_memory::link::Bounds;
use gpuos_memory::objects::{
    Advice, Config, Event, Kind, Next, ObjectId, Objects, Origin, Outcome, Refused, Span, Spot,
    Standing, Task, TicketId, Tier,
};
use gpuos_memory::policy;
use gpuos_model::rng::Rng;

const EXTENT: u64 = 100;

fn objects(limits: [u32; 3], policy: &str) -> Objects {
    let config = Config {
        extent: EXTENT,
        limits,
        policy: policy.to_string(),
        ahead: Bounds {
            ahead_rate: 1 << 40,
            at_once: 1,
            ahead_at_once: 1,
            waiting: 16,
            stays: 0,
        },
    };
    Objects::new(&config).expect("a policy")
}

fn span(offset: u64, length: u64) -> Span {
    Span { offset, length }
}

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

/// A program, and what it has to see.
struct Program {
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
    fn new(limits: [u32; 3], policy: &str, fails: bool) -> Program {
        Program {
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
                    self.machine.done(&task);
                } else if let Kind::Out { .. } = task.kind
                    && outcome == Outcome::Lost
                {
                    self.machine.frames.remove(&task.extent);
                }
                self.objects.done(&task, outcome, self.machine.now);
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
                    match self.objects.acquire(object, part, writes) {
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

#[test]
fn what_a_program_reads_is_what_it_wrote() {
    let long = std::env::var_os("GPUOS_LONG").is_some();
    for seed in 0..if long { 20_000 } else { 400 } {
        let mut rng = Rng::new(seed);
        let limits = [4 + rng.below(6), rng.below(6), 1 + rng.below(12)].map(|each| each as u32);
        let name = policy::NAMES[rng.below(5) as usize];
        let mut program = Program::new(limits, name, seed % 3 == 0);
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
}

/// Runs until nothing is to be done, and gives the tasks.
fn run(objects: &mut Objects) -> Vec<Task> {
    let mut tasks = Vec::new();
    for now in 1..10_000 {
        match objects.next(now * 1000) {
            Next::Idle => return tasks,
            Next::Changed => {}
            Next::Task(task) => {
                objects.done(&task, Outcome::Done, now * 1000);
                tasks.push(task);
            }
        }
    }
    panic!("it moves for ever");
}

fn use_it(objects: &mut Objects, object: ObjectId, part: Span, writes: bool) -> Vec<Task> {
    let ticket = objects.acquire(object, part, writes).expect("a part");
    let tasks = run(objects);
    assert_eq!(objects.standing(ticket), Ok(Standing::Held));
    objects.release(ticket).expect("a ticket");
    tasks
}

#[test]
fn what_was_only_read_leaves_without_a_copy() {
    let mut objects = objects([1, 2, 0], "lru");
    let one = objects.allocate(EXTENT, Origin::Zero).expect("room");
    let other = objects.allocate(EXTENT, Origin::Zero).expect("room");
    let all = span(0, EXTENT);
    use_it(&mut objects, one, all, true);
    let out = |tasks: &[Task]| match tasks[0].kind {
        Kind::Out { to, .. } => to,
        kind => panic!("{kind:?}"),
    };
    assert!(out(&use_it(&mut objects, other, all, false)).is_some());
    // Its copy in host memory stays while it is in GPU memory, so that leaving again costs nothing.
    assert_eq!(out(&use_it(&mut objects, one, all, false)), None);
    assert_eq!(objects.used(Tier::Host).0, 1);
    assert_eq!(out(&use_it(&mut objects, other, all, false)), None);
    // Written, it has no other.
    use_it(&mut objects, one, all, true);
    assert_eq!(objects.used(Tier::Host).0, 0);
    assert!(out(&use_it(&mut objects, other, all, false)).is_some());
}

#[test]
fn zeros_take_no_room_below() {
    let mut objects = objects([1, 4, 0], "gpuos");
    let object = objects.allocate(4 * EXTENT, Origin::Zero).expect("room");
    for index in 0..4 {
        use_it(&mut objects, object, span(index * EXTENT, EXTENT), false);
    }
    assert_eq!(objects.used(Tier::Host).0, 0);
    assert_eq!(objects.counts().copied, 0);
}

#[test]
fn all_objects_fit_with_one_extent_to_spare() {
    let mut objects = objects([2, 2, 2], "lru");
    let object = objects.allocate(5 * EXTENT, Origin::Zero).expect("room");
    assert_eq!(objects.allocate(1, Origin::Zero), Err(Refused::Full(1, 0)));
    // All of them written: two full tiers can still swap.
    for _ in 0..3 {
        for index in 0..5 {
            use_it(&mut objects, object, span(index * EXTENT, EXTENT), true);
        }
    }
    objects.free(object).expect("not held").expect("not moving");
    objects.gone(object);
    assert!(objects.allocate(5 * EXTENT, Origin::Zero).is_ok());
    assert_eq!(objects.free(object), Err(Refused::Freed));
    assert_eq!(objects.free(ObjectId(1 << 60)), Err(Refused::NoObject));
}

#[test]
fn tickets_that_wait_hold_nothing_and_do_not_wait_for_each_other() {
    let mut objects = objects([4, 8, 0], "lru");
    let one = objects.allocate(3 * EXTENT, Origin::Zero).expect("room");
    let other = objects.allocate(3 * EXTENT, Origin::Zero).expect("room");
    let all = span(0, 3 * EXTENT);
    let first = objects.acquire(one, all, true).expect("a part");
    let second = objects.acquire(other, all, true).expect("a part");
    run(&mut objects);
    assert_eq!(objects.standing(first), Ok(Standing::Held));
    assert_eq!(objects.standing(second), Ok(Standing::Waiting));
    assert_eq!(objects.events(), [Event::Wanted(2)]);
    // The one that waits does not keep others from what there is room for.
    let third = objects.acquire(other, span(0, 1), false).expect("a part");
    run(&mut objects);
    assert_eq!(objects.standing(third), Ok(Standing::Held));
    objects.release(first).expect("a ticket");
    run(&mut objects);
    assert_eq!(objects.standing(second), Ok(Standing::Held));
    let five = objects.acquire(one, span(0, 301), false);
    assert_eq!(five, Err(Refused::Outside(300)));
    objects.limit([2, 8, 0]);
    assert_eq!(
        objects.acquire(one, all, false),
        Err(Refused::TooLarge(3, 2))
    );
}

#[test]
fn advice_decides_who_leaves() {
    let mut objects = objects([3, 8, 0], "lru");
    let object = objects.allocate(5 * EXTENT, Origin::Zero).expect("room");
    let part = |index: u64| span(index * EXTENT, EXTENT);
    for (index, advice) in [(0, Advice::Hot), (1, Advice::Normal), (2, Advice::Cold)] {
        objects.advise(object, part(index), advice).expect("a part");
        use_it(&mut objects, object, part(index), true);
    }
    let leaves = |tasks: &[Task]| {
        let is_out = |task: &&Task| matches!(task.kind, Kind::Out { .. });
        tasks.iter().find(is_out).map(|task| task.index)
    };
    assert_eq!(
        leaves(&use_it(&mut objects, object, part(3), true)),
        Some(2)
    );
    objects
        .advise(object, part(0), Advice::Pin)
        .expect("a part");
    objects
        .advise(object, part(1), Advice::Pin)
        .expect("a part");
    assert_eq!(
        leaves(&use_it(&mut objects, object, part(4), true)),
        Some(3)
    );
    // Two are pinned: three at once cannot be until one is not.
    let ticket = objects.acquire(object, span(2 * EXTENT, 3 * EXTENT), false);
    let ticket = ticket.expect("a part");
    run(&mut objects);
    assert_eq!(objects.standing(ticket), Ok(Standing::Waiting));
    let all = span(0, 5 * EXTENT);
    objects.advise(object, all, Advice::Normal).expect("a part");
    run(&mut objects);
    assert_eq!(objects.standing(ticket), Ok(Standing::Held));
}

#[test]
fn what_was_prefetched_is_there_and_makes_nobody_leave_that_is_worth_more() {
    let mut objects = objects([4, 8, 0], "lru");
    let object = objects.allocate(8 * EXTENT, Origin::Zero).expect("room");
    objects
        .prefetch(object, span(0, 2 * EXTENT), 0)
        .expect("a part");
    assert_eq!(run(&mut objects).len(), 2);
    assert_eq!(objects.counts().ahead, 2);
    assert!(use_it(&mut objects, object, span(0, 2 * EXTENT), true).is_empty());
    let held = objects
        .acquire(object, span(0, 4 * EXTENT), true)
        .expect("a part");
    run(&mut objects);
    objects
        .prefetch(object, span(4 * EXTENT, 4 * EXTENT), 0)
        .expect("a part");
    assert!(run(&mut objects).is_empty());
    assert_eq!(objects.standing(held), Ok(Standing::Held));
}

#[test]
fn lost_bytes_are_told_and_never_read() {
    let mut objects = objects([1, 0, 4], "lru");
    let object = objects.allocate(2 * EXTENT, Origin::Zero).expect("room");
    use_it(&mut objects, object, span(0, EXTENT), true);
    use_it(&mut objects, object, span(EXTENT, EXTENT), false);
    let ticket = objects.acquire(object, span(0, 1), false).expect("a part");
    loop {
        match objects.next(0) {
            Next::Task(task) => {
                let lost = matches!(task.kind, Kind::In { .. });
                let outcome = if lost { Outcome::Lost } else { Outcome::Done };
                objects.done(&task, outcome, 0);
            }
            Next::Changed => {}
            Next::Idle => break,
        }
    }
    let lost = Refused::Poisoned(0);
    assert_eq!(objects.standing(ticket), Ok(Standing::Failed(lost)));
    assert_eq!(objects.standing(ticket), Err(Refused::Released));
    assert_eq!(objects.acquire(object, span(0, 1), true), Err(lost));
    assert_eq!(objects.reading(object, 0), Err(lost));
    use_it(&mut objects, object, span(EXTENT, EXTENT), true);
}

#[test]
fn what_was_written_since_is_told_extent_by_extent() {
    let mut objects = objects([4, 4, 0], "lru");
    let object = objects
        .allocate(5 * EXTENT - 10, Origin::Zero)
        .expect("room");
    assert_eq!(objects.written(object, 0, 0), Ok(None));
    use_it(&mut objects, object, span(150, 100), true);
    use_it(&mut objects, object, span(450, 1), true);
    let all = |objects: &Objects, since: u64| {
        let mut found = Vec::new();
        let mut from = 0;
        while let Some(span) = objects.written(object, since, from).expect("an object") {
            found.push((span.offset, span.length));
            from = span.offset + span.length;
        }
        found
    };
    assert_eq!(all(&objects, 0), [(100, 200), (400, 90)]);
    let ticket = objects.acquire(object, span(0, 1), true).expect("a part");
    run(&mut objects);
    let time = objects.now();
    assert_eq!(all(&objects, time), [(0, 100)], "it may be written now");
    objects.release(ticket).expect("a ticket");
    assert_eq!(all(&objects, time), [(0, 100)]);
    let time = objects.now();
    use_it(&mut objects, object, span(100, 390), false);
    assert!(all(&objects, time).is_empty());
}
