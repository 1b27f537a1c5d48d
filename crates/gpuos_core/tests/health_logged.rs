//! Xids that only the kernel's log has, where users can write: for every rule nothing is done unless NVML confirms
//! them or is silent, and then the same as for the library's own word.

use gpuos_core::health::{Action, Effect, Event, GpuState, RecoveryAction, Rules, Signal};

use crate::health_support::{World, job, kept, nth, sound, xid};

fn logged(gpu: u8, code: u32) -> Event {
    Event::Logged {
        gpu: nth(gpu),
        code,
        gpu_instance: None,
        pid: None,
    }
}

/// Every number that a rule names, and one that none does.
fn codes() -> Vec<u32> {
    let rules = Rules::default();
    let codes = rules.all().iter().filter_map(|rule| match rule.signal {
        Signal::Xid(code) => Some(code),
        _ => None,
    });
    let codes: Vec<u32> = codes.chain([9999]).collect();
    assert!(codes.len() > 60, "{}", codes.len());
    codes
}

fn world() -> World {
    let mut world = World::new(8);
    world.jobs = vec![job(7, &[3]), job(8, &[2, 4])];
    world.run(2);
    world
}

/// Nothing was done to a job, a GPU or the node, and slurmctld was told nothing.
fn untouched(world: &World, about: &str) {
    let story = world.story();
    let only_words = |effect: &Effect| matches!(effect, Effect::Audit(_) | Effect::Warn { .. });
    assert!(world.done.iter().all(only_words), "{about}\n{story}");
    for gpu in 0..8 {
        assert!(
            world.node[nth(gpu)].is_healthy(),
            "{about}: GPU {gpu}\n{story}"
        );
    }
    assert!(world.drained.is_none() && world.part.is_empty(), "{about}");
}

#[test]
fn a_line_of_the_log_alone_does_nothing_whatever_it_says() {
    for code in codes() {
        let mut world = world();
        for _ in 0..5 {
            world.tell(logged(3, code));
            world.run(1);
        }
        world.run(100);
        let about = format!("Xid {code}");
        untouched(&world, &about);
        // It is told, once, and shown for a while.
        let story = world.story();
        assert_eq!(
            story.matches("the kernel's log has").count(),
            1,
            "{about}\n{story}"
        );
        let shown = world.node.unconfirmed().unwrap_or_default();
        assert!(
            shown.contains(&format!("Xid {code} of GPU 3")),
            "{about}: {shown}"
        );
        if code == 79 {
            world.run(600);
            assert_eq!(world.node.unconfirmed(), None, "{about}");
            untouched(&world, &about);
        }
    }
}

#[test]
fn all_of_them_on_all_gpus_for_minutes_do_nothing_and_do_not_flood_the_audit_log() {
    let mut world = world();
    let codes = codes();
    for second in 0..100 {
        for gpu in [3, 5, 8] {
            for code in codes.iter().chain(&[second + 10_000]) {
                world.tell(logged(gpu, *code));
            }
        }
        world.run(1);
    }
    untouched(&world, "a flood");
    let lines = world.story().lines().count();
    assert!(lines <= 20 * 3, "{lines}");
    assert!(world.story().contains("which were not said"));
    assert!(
        world
            .node
            .unconfirmed()
            .is_some_and(|text| text.len() < 600)
    );
    assert_eq!(kept(&world.node), world.node);
}

/// What becomes of the jobs and of GPU 3, half a minute after it was told.
fn fate(world: &mut World) -> impl PartialEq + std::fmt::Debug + use<> {
    world.run(30);
    let state = world.node.state(nth(3));
    let (killed, requeued) = (world.killed.clone(), world.requeued.clone());
    (
        state,
        killed,
        requeued,
        world.drained.is_some(),
        world.part.clone(),
    )
}

/// A library that does not answer, from the beginning or a while after the line.
#[test]
fn where_the_library_is_silent_the_log_counts_as_its_word() {
    for code in codes() {
        let told = |event: fn(u8, u32) -> Event, wait: u64| {
            let mut world = world();
            world.touched.insert(3);
            world.library = false;
            if wait == 0 {
                world.tell(Event::LibrarySilent);
            }
            world.tell(event(3, code));
            world.run(wait);
            if wait > 0 {
                world.tell(Event::LibrarySilent);
            }
            fate(&mut world)
        };
        let known = {
            let mut world = world();
            world.touched.insert(3);
            world.library = false;
            world.tell(Event::LibrarySilent);
            world.tell(xid(3, code));
            fate(&mut world)
        };
        assert_eq!(told(logged, 0), known, "Xid {code}");
        assert_eq!(told(logged, 70), known, "Xid {code}, 70 s before");
    }
}

#[test]
fn what_confirms_a_line_is_about_its_gpu_and_its_time() {
    type Confirm = fn(&mut World);
    let confirms: [(&str, u32, Confirm); 6] = [
        ("lost", 79, |world| {
            world.silent.insert(3);
            world.tell(Event::Lost { gpu: nth(3) });
        }),
        ("no answers", 119, |world| {
            world.silent.insert(3);
            world.run(12);
        }),
        ("recovery action", 119, |world| {
            world.samples[3].recovery_action = Some(4);
            world.run(1);
        }),
        ("an uncorrected error", 48, |world| {
            world.samples[3].ecc_uncorrected = Some(1);
            world.run(1);
        }),
        ("a row", 64, |world| {
            world.samples[3].rows_pending = Some(true);
            world.run(1);
        }),
        ("a row that could not be remapped", 64, |world| {
            world.samples[3].rows_failed = Some(true);
            world.run(1);
        }),
    ];
    for (about, code, confirm) in confirms {
        let believed = |world: &World| world.story().contains("from the kernel's log");
        // Before and after the line; not of another GPU, and not long after.
        for order in 0..2 {
            let mut world = world();
            world.touched.insert(3);
            if order == 0 {
                confirm(&mut world);
            }
            world.tell(logged(2, code));
            world.tell(logged(3, code));
            if order == 1 {
                world.run(30);
                confirm(&mut world);
            }
            world.run(20);
            assert!(believed(&world), "{about}, {order}\n{}", world.story());
            assert_eq!(world.node.state(nth(2)), GpuState::Allocated, "{about}");
            let of_2 = world
                .story()
                .lines()
                .filter(|line| line.contains("GPU 2"))
                .count();
            assert_eq!(of_2, 1, "{about}\n{}", world.story());
        }
        let mut world = world();
        world.touched.insert(3);
        world.tell(logged(3, code));
        world.run(95);
        confirm(&mut world);
        world.run(5);
        assert!(!believed(&world), "{about}, late\n{}", world.story());
    }
}

#[test]
fn figures_that_everybody_has_now_and_then_confirm_nothing() {
    type Change = fn(&mut World);
    let changes: [(&str, Change); 5] = [
        ("corrected errors", |world| {
            world.samples[3].ecc_corrected = Some(40)
        }),
        ("one poll without an answer", |world| {
            world.silent.insert(3);
            world.run(2);
            world.silent.clear();
        }),
        ("heat", |world| world.samples[3].celsius = Some(70)),
        ("PCIe replays", |world| {
            world.samples[3].pcie_replays = Some(1)
        }),
        ("a recovery action that was withdrawn", |world| {
            world.samples[2].recovery_action = Some(0);
        }),
    ];
    for (about, change) in changes {
        for code in [48, 79, 119, 31] {
            let mut world = world();
            world.tell(logged(3, code));
            change(&mut world);
            world.run(120);
            untouched(&world, about);
        }
    }
    // Errors of memory speak for Xids about memory, and for no other.
    let mut world = world();
    world.samples[3].ecc_uncorrected = Some(1);
    world.run(1);
    for code in [79, 31, 119, 62] {
        world.tell(logged(3, code));
    }
    world.run(60);
    assert!(world.killed.is_empty() && world.requeued.is_empty());
    assert!(!world.node.state(nth(3)).is_out() && world.drained.is_none());
}

#[test]
fn the_librarys_own_word_ends_the_doubt() {
    let mut world = world();
    world.touched.insert(3);
    world.tell(logged(3, 31));
    world.run(3);
    world.tell(xid(3, 31));
    assert_eq!(world.killed, [(7, Some(0))]);
    assert_eq!(world.node.unconfirmed(), None);
    // What comes after it needs a word of its own.
    world.jobs.push(job(9, &[3]));
    world.run(1);
    world.tell(logged(3, 31));
    world.run(120);
    assert_eq!(world.killed.len(), 1);
}

#[test]
fn rules_count_only_what_is_believed() {
    let rules = Rules::default();
    let counted = rules
        .all()
        .iter()
        .find(|rule| rule.name == "xid-109")
        .unwrap();
    assert!(counted.threshold > 1 && counted.action != Action::Warn);
    let mut world = world();
    for _ in 0..20 {
        world.tell(logged(3, 109));
        world.run(100);
    }
    untouched(&world, "Xid 109");
    world.touched.insert(3);
    world.tell(xid(3, 109));
    world.run(30);
    assert!(
        world.requeued.is_empty(),
        "one is not two\n{}",
        world.story()
    );
    world.tell(Event::RecoveryAction {
        gpu: nth(3),
        action: RecoveryAction::None,
    });
    world.samples[3] = sound();
}
