//! gpuos's own adapter makes, lists and destroys MIG instances on every simulated board that has MIG, and its
//! twin in memory does the same.

use std::time::Duration;

use gpuos_core::mig::Shown;
use gpuos_host::hardware::nvml::{Driver, Error, GpuLibrary, Happening, Twin};
use gpuos_model::mig::{Geometry, MigPlacement};
use nvidia_ml::model::kind_named;

use crate::common::{Site, on};

/// Kinds of node, and the board of `crates/gpuos_sim/data/mig/boards.json` that they have.
const BOARDS: [(&str, &str); 6] = [
    ("dgx-a100", "a100-80gb"),
    ("dgx-a100-40gb", "a100-40gb"),
    ("dgx-h100", "h100-80gb"),
    ("dgx-h200", "h200"),
    ("b200", "b200"),
    ("a30-4", "a30"),
];

fn open(site: &Site) -> Driver {
    Driver::open(site.library().to_str()).expect("the simulated library")
}

/// A board as the simulator has it.
fn board(name: &str) -> Geometry {
    let boards = include_str!("../../../crates/gpuos_sim/data/mig/boards.json");
    let boards: Vec<serde_json::Value> = serde_json::from_str(boards).unwrap();
    let board = boards.iter().find(|board| board["name"] == name).unwrap();
    serde_json::from_value(board["profiles"].clone()).unwrap()
}

fn twin(kind: &str, gpu: u8, geometry: &Geometry) -> Twin {
    let twin = Twin::of(kind_named(kind).unwrap().1.node_type());
    twin.divide(gpu, geometry);
    twin
}

/// What holds of GPU 1 with MIG mode on and no instance, whatever library it is.
fn holds(library: &dyn GpuLibrary, geometry: &Geometry) {
    let told = Geometry::new(library.mig_profiles(1).unwrap()).unwrap();
    assert_eq!(&told, geometry);
    assert_eq!(library.mig_instances(1), Ok(Vec::new()));
    // Every profile at every placement, alone on the GPU: one after the other.
    for profile in geometry.profiles() {
        for &start in &profile.starts {
            let size = profile.size;
            let placement = MigPlacement { start, size };
            let gi = library.mig_make_gpu(1, profile.id, placement).unwrap();
            let bare = Shown {
                gi,
                profile: profile.id,
                placement,
                computes: Vec::new(),
                busy: false,
            };
            assert_eq!(library.mig_instances(1), Ok(vec![bare.clone()]));
            let taken = library.mig_make_gpu(1, profile.id, placement);
            assert_eq!(
                taken,
                Err(Error::InsufficientResources),
                "{} at {start}",
                profile.name
            );
            let (ci, uuid) = library.mig_make_compute(1, gi).unwrap();
            assert!(uuid.starts_with("MIG-") && uuid.len() == 40, "{uuid}");
            let full = Shown {
                computes: vec![(ci, uuid)],
                ..bare
            };
            let uuid = full.computes[0].1.clone();
            assert_eq!(library.mig_instances(1), Ok(vec![full]));
            let idle = vec![(uuid, Ok([profile.memory_mib, 0]))];
            assert_eq!(library.mig_memory(1), Ok(idle));
            // It takes all of the GPU instance.
            assert_eq!(
                library.mig_make_compute(1, gi),
                Err(Error::InsufficientResources)
            );
            assert_eq!(library.mig_destroy_gpu(1, gi), Err(Error::InUse));
            for _ in 0..2 {
                library.mig_destroy_compute(1, gi).unwrap();
            }
            for _ in 0..2 {
                library.mig_destroy_gpu(1, gi).unwrap();
                library.mig_destroy_compute(1, gi).unwrap();
            }
            assert_eq!(library.mig_instances(1), Ok(Vec::new()));
            let lost = library.mig_make_compute(1, gi).unwrap_err().to_string();
            assert!(lost.contains(&format!("GPU instance {gi}")), "{lost}");
        }
    }
    full(library, geometry);
    let placement = MigPlacement { start: 1, size: 2 };
    for (profile, placement) in [(geometry.profiles()[0].id, placement), (77, placement)] {
        let refused = library.mig_make_gpu(1, profile, placement).unwrap_err();
        assert!(matches!(refused, Error::Refused(_)), "{refused:?}");
        let text = refused.to_string();
        assert!(text.contains("memory slice 1 (2 slices)"), "{text}");
    }
    // GPU 0 is not in MIG mode.
    let placement = MigPlacement { start: 0, size: 1 };
    let id = geometry.profiles()[0].id;
    assert_eq!(library.mig_profiles(0), Err(Error::NotSupported));
    assert_eq!(library.mig_instances(0), Ok(Vec::new()));
    assert_eq!(library.mig_memory(0), Ok(Vec::new()));
    assert_eq!(
        library.mig_make_gpu(0, id, placement),
        Err(Error::NotSupported)
    );
    assert_eq!(library.mig_destroy_gpu(0, 1), Ok(()));
    assert_eq!(library.mig_instances(200), Err(Error::NoSuchGpu));
}

/// As many of the smallest profile as there can be, and not one more.
fn full(library: &dyn GpuLibrary, geometry: &Geometry) {
    let profile = &geometry.profiles()[0];
    let size = profile.size;
    for &start in &profile.starts {
        let placement = MigPlacement { start, size };
        let gi = library.mig_make_gpu(1, profile.id, placement).unwrap();
        library.mig_make_compute(1, gi).unwrap();
    }
    let shown = library.mig_instances(1).unwrap();
    assert_eq!(shown.len(), usize::from(profile.most));
    assert!(shown.is_sorted_by(|a, b| a.gi < b.gi && a.computes[0].1 != b.computes[0].1));
    let largest = geometry.profiles().last().unwrap();
    let whole = MigPlacement {
        start: 0,
        size: largest.size,
    };
    assert_eq!(
        library.mig_make_gpu(1, largest.id, whole),
        Err(Error::InsufficientResources)
    );
    for instance in shown {
        library.mig_destroy_compute(1, instance.gi).unwrap();
        library.mig_destroy_gpu(1, instance.gi).unwrap();
    }
    assert_eq!(library.mig_instances(1), Ok(Vec::new()));
}

fn on_board(test: &str, number: usize) {
    let (kind, name) = BOARDS[number];
    on(test, kind, |site| {
        site.run("mig gpu1 on");
        holds(&open(site), &board(name));
    });
}

#[test]
fn an_a100() {
    on_board("an_a100", 0);
}

#[test]
fn an_a100_with_40_gb() {
    on_board("an_a100_with_40_gb", 1);
}

#[test]
fn an_h100() {
    on_board("an_h100", 2);
}

#[test]
fn an_h200() {
    on_board("an_h200", 3);
}

#[test]
fn a_b200() {
    on_board("a_b200", 4);
}

#[test]
fn an_a30() {
    on_board("an_a30", 5);
}

#[test]
fn the_twin_holds_the_same() {
    for (kind, name) in BOARDS {
        let geometry = board(name);
        holds(&twin(kind, 1, &geometry), &geometry);
    }
}

/// A process in the instance of a job: the instance stays until it is gone.
#[test]
fn what_a_process_holds_is_not_destroyed() {
    on(
        "what_a_process_holds_is_not_destroyed",
        "dgx-h100",
        |site| {
            site.run("mig 1-2 on");
            let library = open(site);
            let placement = MigPlacement { start: 4, size: 4 };
            let gi = library.mig_make_gpu(1, 9, placement).unwrap();
            let (ci, _) = library.mig_make_compute(1, gi).unwrap();
            let pid = std::process::id();
            site.run(&format!("run gpu1 --pid {pid} --instance {gi}/{ci}"));
            let busy = |gpu| {
                let shown = library.mig_instances(gpu).unwrap();
                shown
                    .iter()
                    .map(|instance| instance.busy)
                    .collect::<Vec<_>>()
            };
            // The same id on another GPU is another instance.
            library.mig_make_gpu(2, 9, placement).unwrap();
            assert_eq!((busy(1), busy(2)), (vec![true], vec![false]));
            assert_eq!(library.mig_destroy_compute(1, gi), Err(Error::InUse));
            assert_eq!(library.mig_destroy_gpu(1, gi), Err(Error::InUse));
            site.run(&format!("stop {pid}"));
            assert_eq!(busy(1), [false]);
            library.mig_destroy_compute(1, gi).unwrap();
            library.mig_destroy_gpu(1, gi).unwrap();
        },
    );
}

/// Instances that somebody made by hand, with several compute instances: all of them are seen, and all go.
#[test]
fn several_compute_instances_are_one_instance() {
    on(
        "several_compute_instances_are_one_instance",
        "dgx-a100",
        |site| {
            site.run("mig all on");
            let library = open(site);
            let gi = library
                .mig_make_gpu(0, 9, MigPlacement { start: 0, size: 4 })
                .unwrap();
            by_hand(site, gi, 2);
            let shown = library.mig_instances(0).unwrap();
            let ids: Vec<u32> = shown[0].computes.iter().map(|compute| compute.0).collect();
            assert_eq!(ids, [0, 1]);
            assert_eq!(
                library.mig_make_compute(0, gi),
                Err(Error::InsufficientResources)
            );
            library.mig_destroy_compute(0, gi).unwrap();
            assert_eq!(library.mig_instances(0).unwrap()[0].computes, []);
            library.mig_destroy_gpu(0, gi).unwrap();
        },
    );
}

/// Makes compute instances of one slice, as `nvidia-smi mig -cci 0` does.
fn by_hand(site: &Site, gi: u32, count: usize) {
    use nvidia_ml::state::Shared;
    let shared = Shared::open(&site.dir.join("state")).unwrap();
    shared.update(|node| {
        let mig = node.model().board().mig.unwrap();
        for _ in 0..count {
            let serial = node.next_serial();
            let gpu = &mut node.gpus_mut()[0];
            let found = gpu
                .gpu_instances()
                .into_iter()
                .find(|instance| instance.id == gi);
            let inside = found.unwrap().serial;
            gpu.create_compute(mig, inside, 0, None, serial).unwrap();
        }
    });
}

#[test]
fn who_waits_is_told_of_changes() {
    let geometry = board("h100-80gb");
    let twin = twin("dgx-h100", 3, &geometry);
    let gi = twin
        .mig_make_gpu(3, 19, MigPlacement { start: 2, size: 1 })
        .unwrap();
    twin.mig_destroy_compute(3, gi).unwrap();
    let events = twin.wait_events(Duration::ZERO).unwrap();
    assert_eq!(events.len(), 1, "nothing to destroy is no change");
    assert_eq!((events[0].gpu, events[0].what), (3, Happening::MigChanged));
}

/// What holds of a GPU that switches without a reset, whatever library it is. It begins whole.
fn switches(library: &dyn GpuLibrary, profile: u32) {
    let mode = || {
        let mig = library.identity(1).unwrap().mig.unwrap();
        (mig.on, mig.pending)
    };
    library.set_mig_mode(1, false).unwrap();
    assert_eq!(mode(), (false, false));
    library.set_mig_mode(1, true).unwrap();
    assert_eq!(mode(), (true, true));
    let placement = MigPlacement { start: 0, size: 1 };
    let gi = library.mig_make_gpu(1, profile, placement).unwrap();
    assert_eq!(library.set_mig_mode(1, false), Err(Error::InUse));
    assert_eq!(mode(), (true, true), "nothing waits for a reset");
    library.mig_destroy_gpu(1, gi).unwrap();
    library.set_mig_mode(1, false).unwrap();
    assert_eq!(mode(), (false, false));
    assert_eq!(library.mig_instances(1), Ok(Vec::new()));
}

#[test]
fn mig_mode_goes_on_and_off_where_nothing_is_on_the_gpu() {
    on(
        "mig_mode_goes_on_and_off_where_nothing_is_on_the_gpu",
        "dgx-h100",
        |site| switches(&open(site), 19),
    );
    let twin = twin("dgx-h100", 1, &board("h100-80gb"));
    twin.set_mig_mode(1, false).unwrap();
    switches(&twin, 19);
    assert_eq!(twin.set_mig_mode(2, true), Err(Error::NotSupported));
}

#[test]
fn a_mode_that_would_wait_for_a_reset_is_taken_back() {
    let refused = |library: &dyn GpuLibrary| {
        let why = library.set_mig_mode(1, true).unwrap_err().to_string();
        assert!(why.contains("out of `switchable`"), "{why}");
        let mig = library.identity(1).unwrap().mig.unwrap();
        assert_eq!((mig.on, mig.pending), (false, false));
    };
    on(
        "a_mode_that_would_wait_for_a_reset_is_taken_back",
        "dgx-a100",
        |site| refused(&open(site)),
    );
    let twin = twin("dgx-a100", 1, &board("a100-80gb"));
    twin.set_mig_mode(1, false).unwrap();
    twin.change(1, |gpu| gpu.mig_waits = true);
    refused(&twin);
}
