//! The memory of instances: what the driver tells of each, and no figure where it tells none.

use gpuos_core::wire::{MigInstance, MigStatus, Reply, Request};

use crate::mig::{Guest, by_hand, job, pool, start, step};
use crate::site::Daemon;

const G1: u32 = 19;

fn status(daemon: &Daemon) -> MigStatus {
    match daemon.ask(&Request::Mig).unwrap() {
        Reply::Mig { mig } => *mig,
        other => panic!("{other:?}"),
    }
}

fn instance(daemon: &Daemon, gpu: u8) -> Option<MigInstance> {
    let gpus = status(daemon).gpus.into_iter();
    let mut own = gpus.filter(|one| one.gpu == gpu);
    own.next()?.instances.into_iter().next()
}

#[test]
fn memory_of_an_instance_is_told_and_what_the_driver_does_not_tell_is_no_zero() {
    let site = pool("");
    by_hand(&site, 5, G1, 0);
    let daemon = start(&site);
    job(&site, 8, "0-3", ("gpuos: mig=3g.40gb:1", ""));
    step(&daemon, 8, crate::mig::BATCH, ("3g.40gb", &[0, 1, 2, 3])).unwrap();
    let until = |what: &str, gpu: u8, holds: &dyn Fn(&MigInstance) -> bool| {
        site.until(what, || instance(&daemon, gpu).filter(holds))
    };
    let idle = until("an idle instance", 4, &|one| one.memory_used_mib == Some(0));
    assert!(idle.memory_total_mib > Some(30_000), "{idle:?}");
    let _own = Guest::on(&site, 4, 1);
    until("its process's memory", 4, &|one| {
        one.memory_used_mib == Some(1000) && one.memory_unknown.is_none()
    });
    let strange = until("that of nobody", 5, &|one| one.memory_used_mib == Some(0));
    assert!(strange.foreign && strange.memory_total_mib < Some(11_000));
    // The instance's figure goes, though gpuosd still knows of the instance.
    site.change(4, |gpu| gpu.driver_timeout = 1);
    let silent = until("why it is not known", 4, &|one| {
        one.memory_unknown
            .as_deref()
            .is_some_and(|why| why.contains("did not answer"))
    });
    assert_eq!(
        (silent.memory_used_mib, silent.memory_total_mib),
        (None, None)
    );
    assert_eq!(silent.job, Some(8));
}
