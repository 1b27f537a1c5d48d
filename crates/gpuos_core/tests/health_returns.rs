//! How GPUs and nodes come back: after resets that help or not, at an administrator's word, after a restart.

use gpuos_core::health::{Event, GpuState, Verb};

use crate::health_support::{World, admin, job, kept, nth, numbers, xid};

#[test]
fn a_gpu_that_fails_again_and_again_waits_for_an_administrator() {
    let mut world = World::new(1);
    world.run(1);
    for _ in 0..3 {
        world.tell(xid(0, 48));
        world.run(60);
        assert_eq!(
            world.node.state(nth(0)),
            GpuState::Available,
            "{}",
            world.story()
        );
    }
    world.tell(xid(0, 48));
    world.run(3600);
    assert_eq!(world.node.state(nth(0)), GpuState::Offline);
    assert_eq!(world.reset.len(), 3);
    assert!(
        world.story().contains("came back 3 times within 24 h"),
        "{}",
        world.story()
    );
    world.tell(admin(Verb::Online, Some(0), false));
    world.run(60);
    assert_eq!(
        world.node.state(nth(0)),
        GpuState::Available,
        "{}",
        world.story()
    );
}

#[test]
fn a_reset_that_fails_is_tried_again_and_then_left_to_an_administrator() {
    let mut world = World::new(1);
    world.run(1);
    world.resets = Some(false);
    world.tell(xid(0, 48));
    world.run(300);
    assert_eq!(
        world.node.state(nth(0)),
        GpuState::Offline,
        "{}",
        world.story()
    );
    assert_eq!(world.reset.len(), 2);
    assert!(world.story().contains("GPU is in use"));
    // A reset that never ends is the same.
    let mut world = World::new(1);
    world.run(1);
    world.resets = None;
    world.tell(xid(0, 48));
    world.run(600);
    assert_eq!(
        world.node.state(nth(0)),
        GpuState::Offline,
        "{}",
        world.story()
    );
}

#[test]
fn a_reset_that_mends_nothing_does_not_bring_the_gpu_back() {
    let mut world = World::new(1);
    world.run(1);
    world.mend = |_| {};
    world.samples[0].rows_failed = Some(true);
    world.tell(xid(0, 64));
    world.run(400);
    assert!(world.node.state(nth(0)).is_out(), "{}", world.story());
    assert_eq!(numbers(&world.part.out), [0]);
}

#[test]
fn an_administrator_drains_and_brings_back() {
    let mut world = World::new(2);
    world.jobs = vec![job(7, &[0])];
    world.run(1);
    world.tell(admin(Verb::Drain, Some(0), false));
    world.run(30);
    assert_eq!(
        (world.node.state(nth(0)), world.requeued.len()),
        (GpuState::Draining, 0)
    );
    assert_eq!(numbers(&world.part.out), [0]);
    world.jobs.clear();
    world.run(3600);
    assert_eq!(world.node.state(nth(0)), GpuState::Drained);
    assert!(world.reset.is_empty());
    world.tell(admin(Verb::Online, Some(0), false));
    world.run(40);
    assert_eq!(
        world.node.state(nth(0)),
        GpuState::Available,
        "{}",
        world.story()
    );

    // By force the job goes at once, and the GPU comes back without a check.
    world.jobs = vec![job(8, &[0])];
    world.run(1);
    world.tell(admin(Verb::Offline, Some(0), true));
    world.run(5);
    assert_eq!(world.requeued, [(8, false)]);
    assert_eq!(world.node.state(nth(0)), GpuState::Offline);
    world.tell(admin(Verb::Online, Some(0), true));
    assert_eq!(world.node.state(nth(0)), GpuState::Available);
    assert!(
        world
            .story()
            .contains("user 1000 said offline --force: fans")
    );
}

#[test]
fn a_node_that_an_administrator_drained_stays_drained() {
    let mut world = World::new(2);
    world.run(1);
    world.tell(admin(Verb::Drain, None, false));
    world.run(1);
    assert!(world.drained.is_some());
    world.tell(xid(0, 79));
    world.run(5);
    world.tell(Event::Started { rebooted: true });
    world.run(200);
    assert!(world.drained.is_some(), "{}", world.story());
    world.tell(admin(Verb::Online, None, false));
    world.run(60);
    assert!(
        world.drained.is_none() && world.part.is_empty(),
        "{}",
        world.story()
    );
}

#[test]
fn a_restart_in_any_state_goes_on_from_there() {
    let states = [
        GpuState::Degraded,
        GpuState::Draining,
        GpuState::Drained,
        GpuState::Resetting,
        GpuState::Offline,
    ];
    for wanted in states {
        let mut world = World::new(1);
        world.jobs = vec![job(7, &[0])];
        world.run(1);
        match wanted {
            GpuState::Degraded => world.tell(xid(0, 63)),
            GpuState::Draining => world.tell(admin(Verb::Drain, Some(0), false)),
            GpuState::Offline => world.tell(admin(Verb::Offline, Some(0), false)),
            _ => {
                world.resets = None;
                world.jobs.clear();
                world.tell(xid(0, 48));
                world.run(if wanted == GpuState::Drained { 5 } else { 20 });
            }
        }
        assert_eq!(world.node.state(nth(0)), wanted, "{}", world.story());
        world.node = kept(&world.node);
        world.resets = Some(true);
        world.tell(Event::Started { rebooted: false });
        let after = match wanted {
            GpuState::Resetting => GpuState::Drained,
            same => same,
        };
        assert_eq!(world.node.state(nth(0)), after);
        world.jobs.clear();
        world.run(90);
        let end = match wanted {
            GpuState::Draining => GpuState::Drained,
            GpuState::Offline => GpuState::Offline,
            _ => GpuState::Available,
        };
        assert_eq!(
            world.node.state(nth(0)),
            end,
            "{wanted:?}\n{}",
            world.story()
        );
    }
}
