//! gpuos's own adapter to NVML, on every simulated kind of node, and read-only on the driver's library
//! where this machine has GPUs.

use std::collections::BTreeSet;
use std::time::Duration;

use gpuos_host::hardware::nvml::{
    Driver, Error, GpuEvent, GpuLibrary, Happening, LinkPeer, RecoveryAction, Twin,
};
use gpuos_model::cluster::Link;
use nvidia_ml::model::{KINDS, kind_named};

use crate::common::{Site, on};

fn open(site: &Site) -> Driver {
    Driver::open(site.library().to_str()).expect("the simulated library")
}

fn xid(code: u32) -> Happening {
    Happening::Xid {
        code,
        gpu_instance: None,
        compute_instance: None,
    }
}

/// What holds for every library. Reads only.
fn holds(library: &dyn GpuLibrary) {
    let count = library.count().unwrap();
    assert!(count > 0);
    assert!(library.driver_version().unwrap().contains('.'));
    assert_eq!(library.identity(count), Err(Error::NoSuchGpu));
    let mut uuids = BTreeSet::new();
    for gpu in 0..count {
        let who = library.identity(gpu).unwrap();
        assert!(who.uuid.starts_with("GPU-"), "{}", who.uuid);
        assert!(uuids.insert(who.uuid));
        let pci = who.pci.as_bytes();
        assert_eq!(
            (who.pci.len(), pci[4], pci[7]),
            (12, b':', b':'),
            "{}",
            who.pci
        );
        assert!(who.memory_mib > 4_000 && who.name.len() > 5);
        if let Some([least, default, most]) = who.power_limits_mw {
            assert!(least <= default && default <= most);
        }
        let links = library.nvlinks(gpu).unwrap();
        let sample = library.sample(gpu).unwrap();
        assert!(
            sample
                .celsius
                .is_some_and(|celsius| (5..120).contains(&celsius))
        );
        assert_eq!(sample.nvlinks.count_ones() as usize, links.len());
        assert_eq!(sample.nvlinks_down & !sample.nvlinks, 0);
        assert!(sample.pcie_width <= sample.pcie_width_most);
        assert!(sample.busy_percent.is_none_or(|percent| percent <= 100));
        match library.recovery_action(gpu) {
            Ok(action) => {
                let polled = sample.recovery_action.map(RecoveryAction::from_nvml);
                assert_eq!(polled, Some(action));
            }
            Err(error) => assert!(error.is_absence(), "{error}"),
        }
        library.processes(gpu).unwrap();
        assert_eq!(library.path(gpu, gpu), Ok(Link::Same));
        for peer in 0..count {
            assert_eq!(library.path(gpu, peer), library.path(peer, gpu));
        }
    }
    library.wait_events(Duration::ZERO).unwrap();
}

#[test]
fn on_every_simulated_kind() {
    for kind in &KINDS {
        on("on_every_simulated_kind", kind.name, |site| {
            let library = open(site);
            holds(&library);
            // The second process comes here for every kind, on the node of one.
            let name = library.identity(0).unwrap().name;
            let shown = KINDS.iter().find(|kind| kind.board == name).unwrap();
            let node_type = shown.node_type();
            // The twin in memory shows the same machine.
            let twin = Twin::of(node_type);
            assert_eq!(library.count(), twin.count());
            for gpu in 0..library.count().unwrap() {
                let (real, twin_is) = (library.identity(gpu).unwrap(), twin.identity(gpu).unwrap());
                assert_eq!((&real.name, real.minor), (&twin_is.name, twin_is.minor));
                assert_eq!(real.memory_mib, twin_is.memory_mib);
                assert_eq!(real.numa, twin_is.numa);
                let links = |library: &dyn GpuLibrary| library.nvlinks(gpu).unwrap().len();
                assert_eq!(links(&library), links(&twin), "{name}");
            }
        });
    }
}

#[test]
fn on_this_machines_gpus() {
    if !std::path::Path::new("/dev/nvidiactl").exists() {
        eprintln!("skipped: this machine has no NVIDIA GPU");
        return;
    }
    match Driver::open(None) {
        Ok(library) => holds(&library),
        Err(error) => eprintln!("skipped: {error}"),
    }
}

#[test]
fn the_twin_holds_the_same() {
    for kind in &KINDS {
        holds(&Twin::of(kind_named(kind.name).unwrap().1.node_type()));
    }
}

#[test]
fn a_library_that_is_not_there_is_an_error_with_what_to_do() {
    let Err(error) = Driver::open(Some("/nowhere/libnvidia-ml.so.1")) else {
        panic!("opened");
    };
    let text = error.to_string();
    assert!(matches!(error, Error::Missing { .. }));
    assert!(
        text.contains("/nowhere/libnvidia-ml.so.1") && text.contains("--nvml"),
        "{text}"
    );
}

#[test]
fn a_symbol_that_the_library_lacks_is_an_error() {
    // A library that is none of NVIDIA's: every function is missing, and nothing panics.
    let Err(error) = Driver::open(Some("libc.so.6")) else {
        panic!("opened");
    };
    assert_eq!(error, Error::Symbol("nvmlInit_v2"));
    assert!(error.is_absence() && error.to_string().contains("newer driver"));
}

#[test]
fn links_end_where_the_machine_says() {
    on("links_end_where_the_machine_says", "a30-4", |site| {
        let library = open(site);
        let peer = library.identity(1).unwrap().pci;
        for link in library.nvlinks(0).unwrap() {
            assert!(link.up);
            assert_eq!(link.peer, LinkPeer::Gpu(peer.clone()));
        }
        site.run("fault gpu0 nvlink 1 down");
        let links = library.nvlinks(0).unwrap();
        assert_eq!((links[0].up, links[1].up), (true, false));
        let sample = library.sample(0).unwrap();
        assert_eq!((sample.nvlinks, sample.nvlinks_down), (0b1111, 0b10));
    });
}

#[test]
fn a_switched_machine_has_switches_and_a_fabric() {
    on(
        "a_switched_machine_has_switches_and_a_fabric",
        "dgx-h100",
        |site| {
            let library = open(site);
            let links = library.nvlinks(5).unwrap();
            assert!(links.len() == 18 && links.iter().all(|link| link.peer == LinkPeer::Switch));
            assert_eq!(links[0].version, Some(4));
            let who = library.identity(5).unwrap();
            assert_eq!(who.fabric.unwrap().cluster.len(), 32);
            let mig = who.mig.unwrap();
            assert!(!mig.on && mig.most == 7);
            assert_eq!(who.cpus.len(), 112);
        },
    );
}

fn counters_arrive(site: &Site) {
    let library = open(site);
    let before = library.sample(2).unwrap();
    assert_eq!(before.recovery_action, Some(0));
    assert_eq!(
        (before.thermal_ns, before.power_brake_ns),
        (Some(0), Some(0))
    );
    for fault in [
        "ecc corrected 3",
        "ecc uncorrected 2 sram",
        "sram-threshold",
        "row-remap pending",
        "nvlink 4 replay 5",
        "nvlink 4 recovery 6",
        "nvlink 5 crc 7",
        "pcie-replay 8",
        "pcie-link 3 8",
        "thermal 95",
        "recovery-action drain-and-reset",
    ] {
        site.run(&format!("fault gpu2 {fault}"));
    }
    let sample = library.sample(2).unwrap();
    assert_eq!(sample.ecc_corrected, Some(3));
    assert_eq!(sample.ecc_uncorrected_ever, Some(2));
    assert_eq!(sample.sram_threshold, Some(true));
    assert_eq!(sample.rows_pending, Some(true));
    assert_eq!(sample.nvlink_replays, Some(5));
    assert_eq!(sample.nvlink_recoveries, Some(6));
    assert_eq!(sample.nvlink_crc, Some(7));
    assert_eq!(sample.pcie_replays, Some(8));
    assert_eq!(
        (sample.pcie_generation, sample.pcie_width),
        (Some(3), Some(8))
    );
    assert_eq!(sample.celsius, Some(95));
    assert!(sample.thermal_ns > before.thermal_ns);
    assert_eq!(sample.power_brake_ns, Some(0));
    assert_eq!(sample.clock_reasons.unwrap() & 0x40, 0x40);
    assert_eq!(sample.recovery_action, Some(4));
    assert_eq!(
        library.recovery_action(2),
        Ok(RecoveryAction::DrainAndReset)
    );
    let neighbour = library.sample(3).unwrap();
    assert_eq!(neighbour.recovery_action, Some(0));
    assert_eq!(neighbour.ecc_corrected, Some(0));
}

#[test]
fn counters_of_every_fault_arrive_in_a_sample() {
    let test = "counters_of_every_fault_arrive_in_a_sample";
    on(test, "dgx-h100", counters_arrive);
}

/// NVLink 5 counts under other names.
#[test]
fn counters_arrive_from_nvlink_5_too() {
    on("counters_arrive_from_nvlink_5_too", "b200", counters_arrive);
}

#[test]
fn events_name_the_gpu_and_its_instances() {
    on(
        "events_name_the_gpu_and_its_instances",
        "dgx-h100",
        |site| {
            let library = open(site);
            assert_eq!(library.wait_events(Duration::ZERO), Ok(Vec::new()));
            site.run("fault gpu3 xid 94 5/1");
            site.run("fault gpu1 xid 31");
            let events = library.wait_events(Duration::from_secs(5)).unwrap();
            let mine = Happening::Xid {
                code: 94,
                gpu_instance: Some(5),
                compute_instance: Some(1),
            };
            assert_eq!(events[0], GpuEvent { gpu: 3, what: mine });
            assert!(
                events.contains(&GpuEvent {
                    gpu: 1,
                    what: xid(31)
                }),
                "{events:?}"
            );
            site.run("fault gpu3 recovery-action reset");
            let events = library.wait_events(Duration::from_secs(5)).unwrap();
            let action =
                |event: &GpuEvent| event.gpu == 3 && event.what == Happening::RecoveryAction;
            assert!(events.iter().any(action), "{events:?}");
        },
    );
}

#[test]
fn a_lost_gpu_is_told_once_and_the_others_go_on() {
    on(
        "a_lost_gpu_is_told_once_and_the_others_go_on",
        "dgx-h100",
        |site| {
            let library = open(site);
            library.wait_events(Duration::ZERO).unwrap();
            site.run("fault gpu6 xid 79");
            let mut all = Vec::new();
            while !all.contains(&GpuEvent {
                gpu: 6,
                what: Happening::Lost,
            }) {
                let more = library.wait_events(Duration::from_secs(5)).unwrap();
                assert!(!more.is_empty(), "{all:?}");
                all.extend(more);
            }
            assert!(
                all.contains(&GpuEvent {
                    gpu: 6,
                    what: xid(79)
                }),
                "{all:?}"
            );
            assert_eq!(
                library.wait_events(Duration::from_millis(20)),
                Ok(Vec::new())
            );
            assert_eq!(library.sample(6), Err(Error::Lost));
            assert_eq!(library.count(), Ok(8));
            site.run("fault gpu2 xid 13");
            let events = library.wait_events(Duration::from_secs(5)).unwrap();
            assert_eq!(
                events,
                [GpuEvent {
                    gpu: 2,
                    what: xid(13)
                }]
            );
            // After the repair and a new start of the library it is a GPU like the others.
            site.run("repair gpu6");
            library.reopen().unwrap();
            assert!(library.sample(6).is_ok());
            library.wait_events(Duration::ZERO).unwrap();
            site.run("fault gpu6 xid 43");
            let events = library.wait_events(Duration::from_secs(5)).unwrap();
            assert_eq!(
                events,
                [GpuEvent {
                    gpu: 6,
                    what: xid(43)
                }]
            );
        },
    );
}

#[test]
fn a_driver_that_does_not_answer_is_an_error() {
    on(
        "a_driver_that_does_not_answer_is_an_error",
        "l40s-8",
        |site| {
            let library = open(site);
            site.run("fault gpu1 driver-timeout");
            assert_eq!(library.sample(1), Err(Error::Timeout));
            assert!(library.sample(0).is_ok());
        },
    );
}

#[test]
fn power_and_clocks_are_set_within_the_boards_limits() {
    on(
        "power_and_clocks_are_set_within_the_boards_limits",
        "dgx-h100",
        |site| {
            let library = open(site);
            match library.set_power_limit_mw(0, 400_000) {
                Ok(()) => {
                    assert_eq!(library.power_limit_mw(0), Ok(400_000));
                    assert_eq!(library.sample(0).unwrap().power_limit_mw, Some(400_000));
                    library.lock_clocks(0, 900, 1200).unwrap();
                    library.unlock_clocks(0).unwrap();
                }
                Err(Error::NoPermission) => eprintln!("skipped: only root sets limits"),
                Err(error) => panic!("{error}"),
            }
            let refused = library.set_power_limit_mw(0, 5_000_000).unwrap_err();
            assert!(
                refused.to_string().starts_with("power limit 5000 W"),
                "{refused}"
            );
        },
    );
}

#[test]
fn processes_are_those_that_run() {
    on("processes_are_those_that_run", "dgx-a100", |site| {
        let library = open(site);
        assert_eq!(library.processes(0), Ok(Vec::new()));
        let me = std::process::id();
        site.run(&format!("run gpu0 --pid {me} --load 80 --memory 4000"));
        let list = library.processes(0).unwrap();
        assert_eq!(list.len(), 1);
        assert_eq!((list[0].pid, list[0].memory_mib), (me, Some(4000)));
        assert_eq!(list[0].gpu_instance, None);
        assert_eq!(library.sample(0).unwrap().processes, Some(1));
    });
}
