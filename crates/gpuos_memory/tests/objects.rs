//! Objects over three tiers, against a plain reference: what a program reads is what it wrote, whatever was moved and failed meanwhile.

use gpuos_memory::link::Bounds;
use gpuos_memory::objects::{
    Advice, Config, Event, Kind, Next, ObjectId, Objects, Origin, Outcome, Refused, Span, Standing,
    Task, Tier,
};

use crate::objects_program::{Mutant, history};

pub const EXTENT: u64 = 100;

pub fn objects(limits: [u32; 3], policy: &str) -> Objects {
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

pub fn span(offset: u64, length: u64) -> Span {
    Span { offset, length }
}

/// 400 programs; with `$GPUOS_LONG` 20,000.
#[test]
fn what_a_program_reads_is_what_it_wrote() {
    let long = std::env::var_os("GPUOS_LONG").is_some();
    let seeds = 0..if long { 20_000 } else { 400 };
    seeds.for_each(|seed| history(seed, Mutant::None));
}

#[test]
fn planted_errors_are_found() {
    for mutant in [
        Mutant::ShadowKept,
        Mutant::NotCopied,
        Mutant::NotFiled,
        Mutant::FailedIsDone,
        Mutant::TakenForZero,
    ] {
        let fails = |seed| std::panic::catch_unwind(|| history(seed, mutant)).is_err();
        let found = (0..400).find(|seed| fails(*seed));
        let seed = found.unwrap_or_else(|| panic!("{mutant:?} is not found"));
        eprintln!("{mutant:?}: seed {seed}");
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
