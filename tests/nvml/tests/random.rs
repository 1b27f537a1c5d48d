//! Properties over random input: words for faults, orders to MIG, and a state file with wrong bytes.

use std::os::unix::fs::FileExt;

use libloading::Library;
use nvidia_ml::fault::{Fault, inject};
use nvidia_ml::mig::ComputeProfile;
use nvidia_ml::model::{KINDS, kind_named};
use nvidia_ml::state::{Gpu, Node, Options, Shared, node};
use proptest::prelude::*;
use proptest::strategy::ValueTree;

use crate::common::on;

fn fresh(kind: &str) -> Box<Node> {
    let (number, kind) = kind_named(kind).unwrap();
    node(number, kind, Options::default())
}

/// Words that faults are made of, and some that they are not.
fn words() -> impl Strategy<Value = Vec<String>> {
    let known = prop::sample::select(vec![
        "xid",
        "ecc",
        "sram-threshold",
        "row-remap",
        "retired-page",
        "nvlink",
        "pcie-replay",
        "pcie-link",
        "thermal",
        "power-brake",
        "lost",
        "hang",
        "driver-timeout",
        "recovery-action",
        "corrected",
        "uncorrected",
        "sram",
        "dram",
        "pending",
        "failure",
        "down",
        "crc",
        "replay",
        "reset",
        "none",
        "double-bit",
        "0",
        "1",
        "3",
        "79",
        "2/0",
        "/",
        "-1",
        "18446744073709551615",
        "18446744073709551616",
        "99999999999",
        "",
    ]);
    let word = prop_oneof![4 => known.prop_map(str::to_string), 1 => "\\PC{0,6}"];
    prop::collection::vec(word, 0..5)
}

/// What a person does with MIG: make or destroy something.
#[derive(Clone, Debug)]
enum Order {
    Create(usize, Option<u32>),
    Destroy(usize),
    Compute(usize, u32, Option<u32>),
    DestroyCompute(usize),
}

fn order() -> impl Strategy<Value = Order> {
    prop_oneof![
        3 => (0..8usize, prop::option::of(0..9u32)).prop_map(|(p, s)| Order::Create(p, s)),
        1 => (0..8usize).prop_map(Order::Destroy),
        3 => (0..8usize, 0..6u32, prop::option::of(0..8u32))
            .prop_map(|(i, p, s)| Order::Compute(i, p, s)),
        1 => (0..16usize).prop_map(Order::DestroyCompute),
    ]
}

/// Instances lie in their placements, do not overlap, and have ids of their own.
fn sound(gpu: &Gpu, mig: &'static nvidia_ml::model::Mig) {
    let instances = gpu.gpu_instances();
    let mut used = 0u32;
    let mut compute_slices = 0;
    let mut ids = std::collections::BTreeSet::new();
    for instance in instances {
        let profile = mig.by_id(instance.profile).unwrap();
        assert!(profile.starts.contains(&instance.start));
        let placement = ((1 << instance.size) - 1) << instance.start;
        assert_eq!(used & placement, 0, "two instances in one placement");
        used |= placement;
        compute_slices += profile.slices[0];
        assert!(ids.insert(instance.id), "two instances with one id");
        let profiles = ComputeProfile::of(mig, profile);
        let mut taken = 0u32;
        for compute in instance.computes() {
            let own = profiles
                .iter()
                .find(|p| p.index == compute.profile)
                .unwrap();
            let placement = ((1 << own.slices) - 1) << compute.start;
            assert!(taken & placement == 0 && placement >> profile.slices[0] == 0);
            taken |= placement;
        }
    }
    assert!(compute_slices <= 7 && used >> mig.slices == 0);
}

proptest! {
    #[test]
    fn any_words_are_a_fault_or_a_sentence(words in words()) {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match Fault::parse(&words) {
            Err(sentence) => prop_assert!(sentence.contains("give one of") || sentence.contains("the form is")),
            Ok(fault) => {
                for kind in &KINDS {
                    let mut node = fresh(kind.name);
                    // Refused where the board cannot have it; a panic fails the test.
                    let _ = inject(&mut node, Some(1), &fault);
                    let neighbour = node.gpus()[0];
                    prop_assert!(neighbour.lost == 0 && neighbour.recovery_action == 0);
                }
            }
        }
    }

    #[test]
    fn any_orders_leave_mig_sound(
        kind in prop::sample::select(vec!["dgx-a100", "dgx-h100", "b200", "a30-4"]),
        orders in prop::collection::vec(order(), 1..40),
    ) {
        let mut node = fresh(kind);
        let mig = node.model().board().mig.unwrap();
        node.gpus_mut()[0].mig = [1, 1];
        for order in orders {
            let serial = node.next_serial();
            let gpu = &mut node.gpus_mut()[0];
            let pick = |n: usize, all: Vec<u64>| all.get(n % all.len().max(1)).copied();
            let instances = gpu.gpu_instances().iter().map(|i| i.serial).collect();
            let devices = gpu.mig_devices().iter().map(|(_, c)| c.serial).collect();
            let _ = match order {
                Order::Create(profile, start) => {
                    let profile = &mig.profiles[profile % mig.profiles.len()];
                    gpu.create_instance(mig, profile.id, start, serial).map(|_| ())
                }
                Order::Destroy(n) => pick(n, instances).map_or(Ok(()), |s| gpu.destroy_instance(s)),
                Order::Compute(n, profile, start) => pick(n, instances).map_or(Ok(()), |inside| {
                    gpu.create_compute(mig, inside, profile, start, serial).map(|_| ())
                }),
                Order::DestroyCompute(n) => {
                    pick(n, devices).map_or(Ok(()), |s| gpu.destroy_compute(s))
                }
            };
            sound(gpu, mig);
        }
    }
}

/// Queries of a GPU whose other arguments all are pointers to where an answer goes.
const QUERIES: [&str; 30] = [
    "nvmlDeviceGetArchitecture",
    "nvmlDeviceGetBAR1MemoryInfo",
    "nvmlDeviceGetComputeMode",
    "nvmlDeviceGetCurrPcieLinkWidth",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetEccMode",
    "nvmlDeviceGetEncoderUtilization",
    "nvmlDeviceGetEnforcedPowerLimit",
    "nvmlDeviceGetGpuFabricInfo",
    "nvmlDeviceGetIndex",
    "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetMinorNumber",
    "nvmlDeviceGetNumGpuCores",
    "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetPcieReplayCounter",
    "nvmlDeviceGetPerformanceState",
    "nvmlDeviceGetPersistenceMode",
    "nvmlDeviceGetPowerManagementDefaultLimit",
    "nvmlDeviceGetPowerManagementLimitConstraints",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetRemappedRows",
    "nvmlDeviceGetRetiredPagesPendingStatus",
    "nvmlDeviceGetRowRemapperHistogram",
    "nvmlDeviceGetSupportedEventTypes",
    "nvmlDeviceGetTotalEnergyConsumption",
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceIsMigDeviceHandle",
    "nvmlDeviceOnSameBoard",
];

/// Where the state begins: magic, size, lock and two words come before it, and stay.
const HEADER: u64 = 24 + size_of::<libc::pthread_mutex_t>() as u64;

#[test]
fn a_damaged_state_is_wrong_figures_and_no_crash() {
    on(
        "a_damaged_state_is_wrong_figures_and_no_crash",
        "dgx-h100",
        |site| {
            // SAFETY: the library of this workspace.
            let library = unsafe { Library::new(site.library()) }.unwrap();
            let mut room = [0u64; 512];
            let place = room.as_mut_ptr().addr();
            let call = |name: &str, first: usize| {
                // SAFETY: a C function of at most six arguments; all but the first are pointers to
                // memory that is larger than anything these functions write.
                unsafe {
                    type Function =
                        unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> u32;
                    let function = library.get::<Function>(name.as_bytes()).unwrap();
                    function(
                        first,
                        place,
                        place + 512,
                        place + 1024,
                        place + 1536,
                        place + 2048,
                    )
                }
            };
            assert_eq!(call("nvmlInit_v2", 0), 0);
            assert_eq!(call("nvmlDeviceGetHandleByIndex_v2", 3), 0);
            // SAFETY: the array is not touched while the library writes.
            let gpu = unsafe { std::ptr::read_volatile(place as *const usize) };
            let path = site.dir.join("state");
            let state = std::fs::OpenOptions::new()
                .write(true)
                .read(true)
                .open(&path)
                .unwrap();
            let size = state.metadata().unwrap().len();
            let mut runner = proptest::test_runner::TestRunner::deterministic();
            let damage = prop::collection::vec((HEADER..size, any::<u8>()), 5000);
            let shared = Shared::open(&path).unwrap();
            for _ in 0..20 {
                let tree = damage.new_tree(&mut runner).unwrap();
                for (at, byte) in tree.current() {
                    state.write_all_at(&[byte], at).unwrap();
                }
                // Waits that the damage asks for would end the test, not the library.
                shared.update(|node| {
                    (node.hang_until_us, node.real_latency) = (0, 0);
                    for gpu in &mut node.gpus {
                        gpu.hang_until_us = 0;
                    }
                });
                for name in QUERIES {
                    call(name, gpu);
                }
            }
        },
    );
}
