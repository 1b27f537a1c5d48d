//! Which jobs' checkpoints a node holds: told seldom, and never at the cost of what is told of GPUs.

use std::collections::BTreeMap;

use gpuos_core::health::{Effect, Event, ExtraPart, NodeHealth, Rules, Verb, step};

use crate::health_support::{World, admin, job, kept, nth, sound, xid};
use crate::random::Random;

fn held(jobs: &[(u32, u32)]) -> Event {
    Event::Held {
        jobs: map(jobs),
        more: false,
    }
}

fn map(jobs: &[(u32, u32)]) -> BTreeMap<u32, u32> {
    jobs.iter().copied().collect()
}

/// What was published, without the moments.
pub fn parts(world: &World) -> Vec<String> {
    world
        .published
        .iter()
        .map(|(_, part)| part.to_string())
        .collect()
}

#[test]
fn jobs_are_named_while_the_node_holds_their_checkpoints() {
    let mut world = World::new(2);
    world.run(30);
    assert_eq!(world.published, [], "nobody has said anything");
    world.tell(held(&[(7, 3)]));
    world.run(15);
    assert_eq!(parts(&world), ["[gpuos:1 ckpt=7:3]"]);
    assert_eq!(world.part.held, map(&[(7, 3)]));
    world.tell(held(&[]));
    world.run(80);
    assert_eq!(parts(&world)[1..], [""]);
}

#[test]
fn only_another_set_or_a_size_of_more_than_twice_is_told_and_once_a_minute() {
    let mut world = World::new(2);
    world.tell(held(&[(7, 10), (8, 1)]));
    world.run(120);
    for size in [11, 20, 5, 7, 19, 10] {
        world.tell(held(&[(7, size), (8, 2)]));
        world.run(20);
    }
    assert_eq!(parts(&world), ["[gpuos:1 ckpt=7:10,8:1]"]);
    world.tell(held(&[(7, 21), (8, 2)]));
    world.run(120);
    assert_eq!(parts(&world)[1..], ["[gpuos:1 ckpt=7:21,8:2]"]);
    // Jobs that come and go all the time.
    let (begun, before) = (world.now, world.published.len());
    for nth in 0..600 {
        world.tell(held(&[(9 + nth, 1)]));
        world.run(1);
    }
    let times: Vec<u64> = world.published[before..]
        .iter()
        .map(|(at, _)| *at)
        .collect();
    assert!(
        times.windows(2).all(|two| two[1] - two[0] >= 60_000),
        "{times:?}"
    );
    let minutes = ((world.now - begun) / 60_000) as usize;
    assert!(
        (minutes / 2..=minutes + 1).contains(&times.len()),
        "{times:?}"
    );
}

#[test]
fn a_node_that_is_emptied_does_not_wait_a_minute() {
    let mut world = World::new(2);
    world.tell(held(&[(7, 10)]));
    world.run(15);
    world.tell(held(&[(7, 10), (8, 1)]));
    world.run(15);
    assert_eq!(
        parts(&world),
        ["[gpuos:1 ckpt=7:10]"],
        "a minute has not passed"
    );
    world.tell(admin(Verb::Drain, None, false));
    world.run(3);
    let last = || "[gpuos:1 ckpt=7:10,8:1]";
    assert_eq!(parts(&world).last().map(String::as_str), Some(last()));
    // Another checkpoint there, and still no storm.
    let before = world.published.len();
    for nth in 0..60 {
        world.tell(held(&[(9 + nth, 1)]));
        world.run(1);
    }
    let times: Vec<u64> = world.published[before - 1..]
        .iter()
        .map(|(at, _)| *at)
        .collect();
    assert!(
        times.windows(2).all(|two| two[1] - two[0] >= 10_000),
        "{times:?}"
    );
    assert!(times.len() >= 5, "{times:?}");
}

#[test]
fn a_restart_tells_nothing_anew_and_no_state_takes_over_what_stands_there() {
    let mut world = World::new(2);
    world.tell(held(&[(7, 10)]));
    world.run(60);
    world.node = kept(&world.node);
    world.tell(Event::Started { rebooted: false });
    world.run(60);
    world.tell(held(&[(7, 12)]));
    world.run(120);
    assert_eq!(world.published.len(), 1, "{:?}", world.published);
    // The state is lost, and gpuos_mover has not answered yet.
    world.node = NodeHealth::new(2, 1);
    world.tell(Event::Started { rebooted: false });
    world.run(120);
    world.tell(held(&[(7, 9)]));
    world.run(120);
    assert_eq!(world.published.len(), 1, "{:?}", world.published);
    // A GPU goes out before anybody has said anything: the word stays.
    world.node = NodeHealth::new(2, 1);
    world.tell(Event::Started { rebooted: false });
    world.poll();
    world.tell(xid(0, 79));
    world.run(5);
    assert_eq!(parts(&world)[1..], ["[gpuos:1 out=0 ckpt=7:10]"]);
    // An administrator has removed it.
    world.part.held.clear();
    world.run(90);
    assert_eq!(parts(&world)[2..], ["[gpuos:1 out=0 ckpt=7:10]"]);
}

/// The revision and the part of a publication among effects.
fn publication(effects: &[Effect]) -> Option<(u64, ExtraPart)> {
    effects.iter().find_map(|effect| match effect {
        Effect::Publish { revision, part } => Some((*revision, part.clone())),
        _ => None,
    })
}

#[test]
fn a_gpu_that_goes_out_does_not_wait_for_a_word_that_is_under_way() {
    let (mut node, rules, mut now) = (NodeHealth::new(2, 1), Rules::default(), 1_000_000);
    let mut tell = |node: &mut NodeHealth, event: Event, passed: u64| {
        now += passed;
        step(node, &rules, event, now)
    };
    let shown = |part: ExtraPart| Event::Shown {
        part,
        damaged: false,
        drain: None,
    };
    tell(&mut node, shown(ExtraPart::default()), 0);
    tell(&mut node, held(&[(7, 1)]), 0);
    let mut waits = || (0..20).find_map(|_| publication(&tell(&mut node, Event::Tick, 1000)));
    let (word, part) = waits().expect("the word is told");
    assert_eq!(part.to_string(), "[gpuos:1 ckpt=7:1]");
    // slurmctld takes its time for it.
    let said = tell(&mut node, xid(0, 79), 0);
    let said = publication(&said).or_else(|| publication(&tell(&mut node, Event::Tick, 1000)));
    let (out, part) = said.expect("within the spread of a second");
    assert_eq!(part.to_string(), "[gpuos:1 out=0 ckpt=7:1]");
    // The answer to the word says nothing about the other.
    let answer = |revision, ok| Event::Published { revision, ok };
    tell(&mut node, answer(word, false), 0);
    assert!(!node.confirmed_out(nth(0)));
    tell(&mut node, answer(out, true), 0);
    assert!(node.confirmed_out(nth(0)));
    // Nor does a word that is refused, or never answered, change what is known of GPUs.
    for answered in [true, false] {
        let stands = node.part();
        tell(&mut node, shown(stands), 0);
        tell(&mut node, held(&[(8 + u32::from(answered), 1)]), 0);
        let mut waits = || (0..90).find_map(|_| publication(&tell(&mut node, Event::Tick, 1000)));
        let (word, _) = waits().expect("told");
        let said = match answered {
            true => tell(&mut node, answer(word, false), 0),
            false => tell(&mut node, Event::Tick, 20_000),
        };
        assert_eq!(said, []);
        assert!(node.confirmed_out(nth(0)) && node.is_confirmed());
    }
}

/// A site with the words and one without them, whatever happens: the same is done of everything else, at the same moment.
#[test]
fn with_words_and_without_all_else_is_the_same() {
    for seed in 0..6 {
        let mut random = Random(seed * 104_729 + 7);
        let mut worlds = [World::new(4), World::new(4)];
        worlds
            .iter_mut()
            .for_each(|world| world.touched.extend(0..4));
        for _ in 0..120 {
            let jobs: Vec<(u32, u32)> = (0..random.below(4))
                .map(|_| (1 + random.below(3) as u32, 1 + random.below(9) as u32))
                .collect();
            let (kind, gpu) = (random.below(10), random.below(4) as u8);
            let code = random.pick(&[13, 48, 63, 74, 79, 94, 95, 119]);
            let (seconds, up) = (random.below(40), random.below(4) > 0);
            for (nth, world) in worlds.iter_mut().enumerate() {
                match kind {
                    0 => world.tell(xid(gpu, code)),
                    1 => world.samples[usize::from(gpu)].clock_reasons = Some(0x40),
                    2 => world.samples[usize::from(gpu)] = sound(),
                    3 => world.slurmctld = up,
                    4 => world.jobs = vec![job(1 + u32::from(gpu), &[gpu])],
                    5 => world.jobs.clear(),
                    6 => {
                        world.node = kept(&world.node);
                        world.tell(Event::Started { rebooted: false });
                    }
                    7 if nth == 0 => world.tell(Event::Short(up)),
                    _ if nth == 0 => world.tell(held(&jobs)),
                    _ => {}
                }
                world.run(seconds);
            }
        }
        let [with, without] = &worlds;
        let others = |world: &World| -> Vec<Effect> {
            let all = world.done.iter().cloned();
            all.filter(|effect| !matches!(effect, Effect::Publish { .. }))
                .collect()
        };
        assert_eq!(others(with), others(without), "seed {seed}");
        let gpus = |world: &World| -> Vec<(u64, String)> {
            let bare = |part: &ExtraPart| ExtraPart {
                held: BTreeMap::new(),
                short: false,
                ..part.clone()
            };
            let all = world.published.iter();
            all.map(|(at, part)| (*at, bare(part).to_string()))
                .collect()
        };
        // All that is told without words is told with them, and beside it no more than one word a minute.
        let mut rest = gpus(without).into_iter().peekable();
        let mut words = Vec::new();
        for one in gpus(with) {
            match rest.next_if_eq(&one) {
                Some(_) => {}
                None => words.push(one.0),
            }
        }
        assert_eq!(rest.next(), None, "seed {seed}");
        assert!(
            words.windows(2).all(|two| two[1] - two[0] >= 60_000),
            "seed {seed}: {words:?}"
        );
        assert!(!words.is_empty(), "seed {seed}");
    }
}
