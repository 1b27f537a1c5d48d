//! Bandwidth and promises allocate nothing after the first calls: they run inside slurmctld's
//! locks.

use gpuos_model::gpuset::GpuSet;
use gpuos_placement::fabric::{Net, Promises, Scratch, Uplink};

use crate::counting::allocations;
use crate::plan_support::*;

fn work(net: &Net, promises: &mut Promises, scratch: &mut Scratch) -> u64 {
    let mut sum = 0;
    for (first, step, size) in [(0, 1, 2), (3, 7, 64), (1, 1, 400), (5, 40, 20)] {
        let node = |at: u32| ((first + at * step) % 1250, GpuSet::first(8));
        let mut nodes = [(0, GpuSet::EMPTY); 400];
        for (at, slot) in nodes[..size].iter_mut().enumerate() {
            *slot = node(at as u32);
        }
        let promise = promises.add(net, scratch, &nodes[..size], 1000);
        sum += u64::from(net.bandwidth(promises, scratch, &nodes[..size]));
        promises.remove(net, scratch, &nodes[..size], promise);
    }
    sum
}

#[test]
fn nothing_is_allocated_once_warm() {
    let cluster = tree(nvswitch(), 1250, 32, 8);
    let net = Net::of_levels(&cluster, &[Uplink::Oversubscribed(2000)], true);
    let (mut promises, mut scratch) = (Promises::new(&net), Scratch::new(&net));
    let first = work(&net, &mut promises, &mut scratch);
    let before = allocations();
    let again = work(&net, &mut promises, &mut scratch);
    assert_eq!(allocations(), before);
    assert_eq!(again, first);
    assert!(promises.is_empty());
}
