//! Faults through the public face of the health step.

use gpuos_core::health::{Event, GpuState, RecoveryAction, Verb};

use crate::health_support::{World, admin, job, nth, numbers, xid};

#[test]
fn a_double_bit_error_drains_the_gpu_requeues_its_job_and_the_gpu_returns() {
    let mut world = World::new(8);
    world.jobs = vec![job(7, &[3]), job(8, &[4])];
    world.run(2);
    world.tell(xid(3, 48));
    assert_eq!(world.node.state(nth(3)), GpuState::Draining);
    world.run(10);
    assert_eq!(numbers(&world.part.out), [3]);
    assert_eq!(world.requeued, [(7, false)]);
    world.run(60);
    assert_eq!(
        world.node.state(nth(3)),
        GpuState::Available,
        "{}",
        world.story()
    );
    assert_eq!(world.node.state(nth(4)), GpuState::Allocated);
    assert!(world.killed.is_empty() && world.part.is_empty());
    assert_eq!(world.reset, [3]);
}

#[test]
fn a_job_that_came_before_slurmctld_knew_is_sent_away_again() {
    // It may be allocated and not reported yet when the fault happens, and the first word about it not the strongest.
    let asked = Event::RecoveryAction {
        gpu: nth(0),
        action: RecoveryAction::from_nvml(1),
    };
    for faults in [&[xid(0, 48)][..], &[xid(0, 64), asked]] {
        for later in [0, 1, 4] {
            let mut world = World::new(1);
            world.run(1);
            faults.iter().for_each(|fault| world.tell(fault.clone()));
            world.run(later);
            world.jobs = vec![job(9, &[0])];
            world.run(5);
            assert_eq!(world.requeued, [(9, false)], "{later}: {}", world.story());
            assert!(
                world
                    .story()
                    .contains("the workload manager did not know yet")
            );
        }
    }
}

#[test]
fn a_damaged_part_is_written_anew_also_where_it_says_what_is_wanted() {
    let mut world = World::new(4);
    world.run(30);
    assert_eq!(world.published, []);
    for out in [&[][..], &[2]] {
        world.damaged = true;
        let before = world.published.len();
        world.run(60);
        let (_, part) = world.published.last().expect("it is written");
        assert_eq!(
            (&numbers(&part.out)[..], world.published.len()),
            (out, before + 1)
        );
        assert!(!world.damaged && world.node.is_confirmed());
        world.tell(admin(Verb::Drain, Some(2), false));
        world.run(60);
    }
}
