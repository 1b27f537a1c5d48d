//! Whether a node is short of host memory: told when it begins and when it ends, seldom, and never at the cost of what is told of GPUs.

use gpuos_core::health::{Event, NodeHealth};

use crate::health_held::parts;
use crate::health_support::{World, kept, xid};
use crate::random::Random;

const SHORT: &str = "[gpuos:1 short=host]";

/// A node whose gpuosd says each second for so long whether it is short.
fn says(world: &mut World, short: bool, seconds: u64) {
    for _ in 0..seconds {
        world.tell(Event::Short(short));
        world.run(1);
    }
}

#[test]
fn a_node_is_short_from_when_that_begins_to_when_it_ends() {
    let mut world = World::new(2);
    says(&mut world, false, 30);
    assert_eq!(world.published, [], "there is nothing to say");
    says(&mut world, true, 12);
    assert_eq!(parts(&world), [SHORT]);
    assert!(world.part.short);
    says(&mut world, true, 600);
    assert_eq!(parts(&world), [SHORT], "once");
    says(&mut world, false, 12);
    assert_eq!(parts(&world), [SHORT, ""]);
    assert!(!world.part.short);
    // It is nothing about GPUs.
    assert!(world.node.is_confirmed() && world.node.part().is_empty());
}

#[test]
fn a_node_that_is_short_now_and_then_is_told_once_a_minute_at_most() {
    let mut world = World::new(2);
    let mut random = Random(11);
    for _ in 0..300 {
        let short = random.below(2) == 0;
        says(&mut world, short, 1 + random.below(8));
    }
    let times: Vec<u64> = world.published.iter().map(|(at, _)| *at).collect();
    assert!(
        times.windows(2).all(|two| two[1] - two[0] >= 60_000),
        "{times:?}"
    );
    assert!(times.len() > 5, "{times:?}");
    // Whatever was told last, what holds is told in the end.
    for short in [true, false, true] {
        says(&mut world, short, 90);
        assert_eq!(world.part.short, short);
    }
}

#[test]
fn it_is_told_with_what_else_there_is_to_say_and_does_not_count_against_that() {
    let mut world = World::new(2);
    let jobs = [(7, 3)].into();
    world.tell(Event::Held { jobs, more: false });
    says(&mut world, true, 15);
    assert_eq!(parts(&world), ["[gpuos:1 short=host ckpt=7:3]"]);
    // A GPU goes out, and the word stands beside it. It is over in the same minute.
    world.poll();
    world.tell(xid(0, 79));
    world.run(5);
    let out = "[gpuos:1 out=0 short=host ckpt=7:3]";
    assert_eq!(parts(&world)[1..], [out]);
    says(&mut world, false, 90);
    assert_eq!(parts(&world)[2..], ["[gpuos:1 out=0 ckpt=7:3]"]);
}

#[test]
fn a_restart_tells_nothing_anew_and_what_is_over_meanwhile_goes() {
    let mut world = World::new(2);
    says(&mut world, true, 30);
    let restart = |world: &mut World, node: NodeHealth| {
        world.node = node;
        world.tell(Event::Started { rebooted: false });
        // Until the first look at host memory nobody says anything.
        world.run(30);
    };
    let saved = kept(&world.node);
    restart(&mut world, saved);
    says(&mut world, true, 120);
    assert_eq!(parts(&world), [SHORT]);
    // The state is lost.
    restart(&mut world, NodeHealth::new(2, 1));
    assert_eq!(parts(&world), [SHORT]);
    says(&mut world, false, 90);
    assert_eq!(parts(&world)[1..], [""]);
    // An administrator writes it, or takes it away: gpuosd knows better.
    world.part.short = true;
    says(&mut world, false, 90);
    assert_eq!(parts(&world)[2..], [""]);
    says(&mut world, true, 90);
    world.part.short = false;
    says(&mut world, true, 90);
    assert_eq!(parts(&world)[3..], [SHORT, SHORT]);
}
