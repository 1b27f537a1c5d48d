//! Memory and load of instances: what the driver tells of each, and no figure where it tells none.

use gpuos_core::wire::{MigInstance, MigLoad, MigStatus, Percent, Reply, Request};

use crate::mig::{Guest, by_hand, gone, job, pool, start, step};
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
    let mut own = gpus.filter(|one| u8::from(one.gpu) == gpu);
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
    assert_eq!(silent.job, Some(8.into()));
}

fn load(sm: f64, bandwidth: f64) -> MigLoad {
    MigLoad {
        sm_percent: Some(Percent::of_ratio(sm)),
        bandwidth_percent: Some(Percent::of_ratio(bandwidth)),
        load_unknown: None,
    }
}

#[test]
fn load_of_an_instance_is_told_and_never_that_of_the_one_before() {
    let site = pool("");
    let daemon = start(&site);
    let note = ("gpuos: mig=3g.40gb:1", "");
    job(&site, 8, "0-3", note);
    step(&daemon, 8, crate::mig::BATCH, ("3g.40gb", &[0, 1, 2, 3])).unwrap();
    let until = |what: &str, holds: &dyn Fn(&MigLoad) -> bool| {
        let told = || instance(&daemon, 4).filter(|one| holds(&one.load));
        site.until(what, told)
    };
    let idle = until("an idle instance", &|told| {
        // A figure, or why there is none.
        assert_eq!(told.load_unknown.is_some(), told.sm_percent.is_none());
        *told == load(0.0, 0.0)
    });
    let gi = idle.gi.unwrap();
    let guest = Guest::on(&site, 4, gi);
    until("a busy instance", &|told| *told == load(0.5, 0.3));
    drop(guest);
    site.change(4, |gpu| gpu.processes[0].pid = 0);
    gone(&site, 8);
    job(&site, 9, "0-3", note);
    step(&daemon, 9, crate::mig::BATCH, ("3g.40gb", &[0, 1, 2, 3])).unwrap();
    let next = until("the next one's load", &|told| {
        let shares = [told.sm_percent, told.bandwidth_percent];
        let none = Percent::of_ratio(0.0);
        assert!(
            shares.iter().flatten().all(|share| *share == none),
            "{told:?}"
        );
        *told == load(0.0, 0.0)
    });
    assert_eq!((next.gi, next.job), (Some(gi), Some(9.into())));
    site.change(4, |gpu| gpu.driver_timeout = 1);
    until("why it is not known", &|load| {
        let why = load.load_unknown.as_deref().unwrap_or_default();
        why.contains("did not answer") && load.sm_percent.is_none()
    });
}

/// As on A100 and A30, and with drivers from before GPM: memory is told, the load is not, and why.
#[test]
fn without_counters_the_load_is_no_zero() {
    let site = pool("");
    let test = std::env::current_exe().unwrap();
    let library = std::fs::read(test.with_file_name("libnvidia_ml.so")).unwrap();
    let mut old = library.clone();
    for at in 0..library.len() - 7 {
        if library[at..].starts_with(b"nvmlGpm") {
            old[at..at + 7].copy_from_slice(b"nvmlOld");
        }
    }
    assert_ne!(old, library);
    std::fs::write(site.path("nvml.so"), old).unwrap();
    by_hand(&site, 5, G1, 0);
    let daemon = start(&site);
    let strange = site.until("its memory", || {
        instance(&daemon, 5).filter(|one| one.memory_used_mib == Some(0))
    });
    let MigLoad {
        sm_percent,
        bandwidth_percent,
        load_unknown,
    } = strange.load;
    assert_eq!((sm_percent, bandwidth_percent), (None, None));
    let why = load_unknown.unwrap();
    assert!(why.contains("no GPM") && why.contains("DCGM"), "{why}");
}
