//! Faults through the public face of the health step.

mod health_support;

use gpuos_core::health::GpuState;
use health_support::{World, job, xid};

#[test]
fn a_double_bit_error_drains_the_gpu_requeues_its_job_and_the_gpu_returns() {
    let mut world = World::new(8);
    world.jobs = vec![job(7, &[3]), job(8, &[4])];
    world.run(2);
    world.tell(xid(3, 48));
    assert_eq!(world.node.state(3), GpuState::Draining);
    world.run(10);
    assert_eq!(world.part.out, [3]);
    assert_eq!(world.requeued, [(7, false)]);
    world.run(60);
    assert_eq!(
        world.node.state(3),
        GpuState::Available,
        "{}",
        world.story()
    );
    assert_eq!(world.node.state(4), GpuState::Allocated);
    assert!(world.killed.is_empty() && world.part.is_empty());
    assert_eq!(world.reset, [3]);
}
