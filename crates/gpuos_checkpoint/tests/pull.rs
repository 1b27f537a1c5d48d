//! Single steps of a pull, one by one.

use gpuos_checkpoint::pull::{Effect, Event, Loss, MOST_WINDOW, Patience, Plan, Pull};

/// Four pieces, the last of one byte, of two of three sources; two pieces at a time.
fn plan() -> Plan {
    Plan {
        len: 31,
        piece_len: 10,
        needed: 2,
        sources: vec![5, 1, 3],
        window: 2,
        resume_from: 0,
        patience: Patience {
            retry_ms: 100,
            longest_ms: 300,
            tries: 4,
        },
    }
}

fn started(plan: Plan) -> Pull {
    let mut pull = Pull::new(plan).unwrap();
    pull.step(Event::Start, 0);
    pull
}

fn answer(source: u8, piece: u64) -> Event {
    let checked = true;
    Event::Piece {
        source,
        piece,
        checked,
    }
}

fn ask(source: u8, piece: u64) -> Effect {
    Effect::Ask { source, piece }
}

fn keep(source: u8, piece: u64) -> Effect {
    Effect::Keep { source, piece }
}

fn combine(piece: u64, sources: &[u8]) -> Effect {
    let sources = sources.to_vec();
    Effect::Combine { piece, sources }
}

fn lost(source: u8, why: Loss) -> Event {
    Event::Refused { source, why }
}

/// The sentence of the failure among effects.
fn failure(effects: &[Effect]) -> Option<String> {
    effects.iter().find_map(|effect| match effect {
        Effect::Failed(why) => Some(why.to_string()),
        _ => None,
    })
}

#[test]
fn pieces_are_asked_for_combined_and_written_in_order() {
    let mut pull = Pull::new(plan()).unwrap();
    let begun = pull.step(Event::Start, 0);
    assert_eq!(begun, [ask(5, 0), ask(1, 0), ask(5, 1), ask(1, 1)]);
    assert_eq!(pull.step(Event::Start, 0), []);
    // The second piece is ready first, and waits.
    assert_eq!(pull.step(answer(1, 1), 1), [keep(1, 1)]);
    assert_eq!(
        pull.step(answer(5, 1), 1),
        [keep(5, 1), combine(1, &[1, 5])]
    );
    assert_eq!(pull.step(Event::Combined { piece: 1 }, 1), []);
    pull.step(answer(1, 0), 1);
    pull.step(answer(5, 0), 1);
    let writes = [Effect::Write { piece: 0 }, Effect::Write { piece: 1 }];
    assert_eq!(pull.step(Event::Combined { piece: 0 }, 1), writes);
    // Nothing more is asked for before something is written.
    assert_eq!(pull.step(Event::Tick, 1), []);
    assert_eq!(pull.step(Event::Written { piece: 1 }, 2), []);
    assert_eq!(pull.written(), 0);
    let next = [ask(5, 2), ask(1, 2), ask(5, 3), ask(1, 3)];
    assert_eq!(pull.step(Event::Written { piece: 0 }, 2), next);
    assert_eq!(pull.written(), 2);
}

#[test]
fn what_was_not_asked_for_or_came_before_changes_nothing() {
    let mut pull = started(plan());
    pull.step(answer(1, 0), 1);
    for event in [
        answer(1, 0),
        answer(3, 0),
        answer(9, 0),
        answer(5, 3),
        answer(5, u64::MAX),
        Event::Piece {
            source: 3,
            piece: 0,
            checked: false,
        },
        Event::Combined { piece: 0 },
        Event::Written { piece: 0 },
        Event::Written { piece: u64::MAX },
        lost(9, Loss::Gone),
        Event::Start,
        Event::Tick,
    ] {
        assert_eq!(pull.step(event, 1), [], "{event:?}");
    }
    assert_eq!(
        pull.step(answer(5, 0), 1),
        [keep(5, 0), combine(0, &[1, 5])]
    );
    assert_eq!(pull.step(answer(5, 0), 1), []);
}

#[test]
fn questions_are_repeated_less_and_less_often() {
    let mut pull = started(Plan {
        window: 1,
        ..plan()
    });
    pull.step(answer(1, 0), 0);
    let mut asked = Vec::new();
    let mut replaced = None;
    for now in 0..2000 {
        let effects = pull.step(Event::Tick, now);
        if effects.contains(&ask(5, 0)) {
            asked.push(now);
        }
        if effects.contains(&ask(3, 0)) {
            replaced = Some(now);
        }
        if replaced == Some(now) {
            break;
        }
    }
    // After 100, 200, 300 and 300 ms: the fourth question was the last.
    assert_eq!((asked, replaced), (vec![100, 300, 600], Some(900)));
    assert_eq!(pull.step(answer(5, 0), 901), [], "too late");
    assert_eq!(
        pull.step(answer(3, 0), 901),
        [keep(3, 0), combine(0, &[1, 3])]
    );
}

/// How often the fifth source is asked for the first piece before the third stands in, and when that is, if it gives the second
/// piece at `heard`.
fn asked_until_replaced(heard: u64) -> (usize, u64) {
    let mut pull = started(plan());
    pull.step(answer(1, 0), 0);
    pull.step(answer(1, 1), 0);
    let mut asked = 1;
    for now in 0..20_000 {
        if now == heard {
            assert!(pull.step(answer(5, 1), now).contains(&keep(5, 1)));
            pull.step(Event::Combined { piece: 1 }, now);
        }
        let effects = pull.step(Event::Tick, now);
        asked += usize::from(effects.contains(&ask(5, 0)));
        if effects.contains(&ask(3, 0)) {
            return (asked, now);
        }
    }
    panic!("never replaced");
}

#[test]
fn a_source_that_answers_something_is_asked_for_longer() {
    assert_eq!(asked_until_replaced(20_000), (4, 900));
    // Heard between the third and the fourth question: four more without a word.
    assert_eq!(asked_until_replaced(650), (8, 2100));
    // One that answers others all the time, and never this.
    let mut pull = started(plan());
    pull.step(answer(1, 0), 0);
    pull.step(answer(1, 1), 0);
    let mut asked = 1;
    let replaced = (0..20_000).find(|now| {
        pull.step(answer(5, u64::MAX), *now);
        let effects = pull.step(Event::Tick, *now);
        asked += usize::from(effects.contains(&ask(5, 0)));
        effects.contains(&ask(3, 0))
    });
    assert_eq!((asked, replaced), (16, Some(4500)));
}

#[test]
fn a_source_that_is_lost_is_replaced_at_once_and_what_it_gave_counts() {
    let mut pull = started(plan());
    pull.step(answer(5, 0), 1);
    let effects = pull.step(lost(5, Loss::Absent), 2);
    assert_eq!(effects, [ask(3, 1)], "the first piece has its answer");
    assert_eq!(pull.step(lost(5, Loss::Gone), 2), []);
    assert_eq!(
        pull.step(answer(1, 0), 3),
        [keep(1, 0), combine(0, &[1, 5])]
    );
    pull.step(answer(1, 1), 3);
    assert_eq!(
        pull.step(answer(3, 1), 3),
        [keep(3, 1), combine(1, &[1, 3])]
    );
}

#[test]
fn damaged_bytes_are_asked_for_again_and_then_elsewhere() {
    let damaged = Event::Piece {
        source: 5,
        piece: 0,
        checked: false,
    };
    let mut pull = started(plan());
    assert_eq!(pull.step(damaged, 1), []);
    assert_eq!(pull.step(damaged, 1), [], "a repeated message");
    assert_eq!(pull.step(Event::Tick, 2), [ask(5, 0)]);
    assert_eq!(pull.step(damaged, 3), [ask(3, 0), ask(3, 1)]);
    let failed = pull.step(lost(1, Loss::Gone), 4);
    assert_eq!(
        failure(&failed).unwrap(),
        "a shard needs 2 others of its stripe, and 1 can be had; at place 5: its bytes are damaged; at place 1: its node is gone; \
         it can go on where it stopped when more can be had, else take an older checkpoint"
    );
    assert_eq!(pull.step(answer(3, 0), 5), [], "it has ended");
}

#[test]
fn it_fails_when_too_few_are_left_and_not_before() {
    let mut pull = started(plan());
    assert_eq!(failure(&pull.step(lost(3, Loss::Absent), 1)), None);
    assert!(failure(&pull.step(lost(1, Loss::Absent), 1)).is_some());
    // Known before it starts.
    let mut pull = Pull::new(plan()).unwrap();
    assert_eq!(pull.step(lost(5, Loss::Gone), 0), []);
    assert_eq!(pull.step(Event::Start, 0)[..2], [ask(1, 0), ask(3, 0)]);
    // Too few from the beginning.
    let mut pull = Pull::new(Plan {
        sources: vec![1],
        ..plan()
    })
    .unwrap();
    assert!(failure(&pull.step(Event::Start, 0)).is_some());
    // The last piece has all its answers: nobody is needed any more.
    let mut pull = started(Plan {
        resume_from: 3,
        ..plan()
    });
    pull.step(answer(1, 3), 0);
    assert_eq!(
        pull.step(answer(5, 3), 0).last(),
        Some(&combine(3, &[1, 5]))
    );
    for source in [1, 3, 5] {
        assert_eq!(pull.step(lost(source, Loss::Gone), 1), []);
    }
    assert_eq!(
        pull.step(Event::Combined { piece: 3 }, 1),
        [Effect::Write { piece: 3 }]
    );
    assert_eq!(pull.step(Event::Written { piece: 3 }, 1), [Effect::Done]);
}

#[test]
fn it_goes_on_where_it_stopped() {
    let mut pull = Pull::new(Plan {
        resume_from: 3,
        ..plan()
    })
    .unwrap();
    assert_eq!(pull.step(Event::Start, 0), [ask(5, 3), ask(1, 3)]);
    for whole in [
        Plan {
            resume_from: 4,
            ..plan()
        },
        Plan { len: 0, ..plan() },
    ] {
        let mut pull = Pull::new(whole).unwrap();
        assert_eq!(pull.step(Event::Start, 0), [Effect::Done]);
        assert_eq!(pull.step(Event::Tick, 0), []);
    }
}

#[test]
fn pieces_cover_a_shard() {
    let plan = plan();
    assert_eq!((plan.pieces(), plan.memory()), (4, 40));
    assert_eq!((plan.bytes_of(0), plan.bytes_of(3)), (0..10, 30..31));
    assert!(plan.bytes_of(4).is_empty() && plan.bytes_of(u64::MAX).is_empty());
}

#[test]
fn plans_that_cannot_be_followed_are_refused() {
    for (bad, why) in [
        (
            Plan {
                piece_len: 0,
                ..plan()
            },
            "the length of a piece is 0; give 1 byte or more",
        ),
        (
            Plan {
                needed: 0,
                ..plan()
            },
            "it needs no source; give 1 or more",
        ),
        (
            Plan {
                window: 0,
                ..plan()
            },
            "the window is out of range; give 1 to 1024 pieces",
        ),
        (
            Plan {
                window: MOST_WINDOW + 1,
                ..plan()
            },
            "the window is out of range; give 1 to 1024 pieces",
        ),
        (
            Plan {
                patience: Patience {
                    tries: 0,
                    ..plan().patience
                },
                ..plan()
            },
            "no question may be asked; allow 1 try or more",
        ),
        (
            Plan {
                sources: vec![1, 2, 1],
                ..plan()
            },
            "a source is named twice; name each once",
        ),
        (
            Plan {
                resume_from: 5,
                ..plan()
            },
            "more pieces are said to be written than it has; look at the length of the file, or start from piece 0",
        ),
    ] {
        let error = Pull::new(bad).unwrap_err().to_string();
        assert_eq!(error, format!("a shard cannot be made: {why}"));
    }
}

#[test]
fn the_largest_numbers_do_not_overflow() {
    let patience = Patience {
        retry_ms: u64::MAX,
        longest_ms: u64::MAX,
        tries: u8::MAX,
    };
    let huge = Plan {
        len: u64::MAX,
        piece_len: u32::MAX,
        needed: 255,
        sources: (0..255).collect(),
        window: 32,
        patience,
        ..plan()
    };
    assert!(huge.memory() > 0);
    let mut pull = Pull::new(huge).unwrap();
    assert_eq!(pull.step(Event::Start, u64::MAX).len(), 255 * 32);
    pull.step(Event::Tick, u64::MAX);
    let last = Plan {
        len: u64::MAX,
        piece_len: 1,
        resume_from: u64::MAX - 1,
        patience,
        ..plan()
    };
    let mut pull = Pull::new(last).unwrap();
    assert_eq!(
        pull.step(Event::Start, 0),
        [ask(5, u64::MAX - 1), ask(1, u64::MAX - 1)]
    );
    for now in [u64::MAX, u64::MAX, 0] {
        pull.step(Event::Tick, now);
    }
}
