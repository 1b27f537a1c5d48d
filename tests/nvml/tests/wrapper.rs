//! The Rust crate nvml-wrapper, an independent client, reads every kind of node as it is described.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use nvidia_ml::state::Shared;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{
    Clock, ComputeMode, EccCounter, MemoryError, MemoryLocation, PerformanceState,
    TemperatureSensor, TemperatureThreshold, TopologyLevel,
};
use nvml_wrapper::enum_wrappers::nv_link::{Capability, ErrorCounter};
use nvml_wrapper::enums::device::{DeviceArchitecture, UsedGpuMemory};

use crate::common::{fails, on, with};

const MIB: u64 = 1 << 20;

/// Name, GPUs, memory in MiB, architecture, power limit in W, PCIe generation.
type Facts = (&'static str, u32, u64, DeviceArchitecture, u32, u32);

fn reads_as(test: &str, kind: &str, facts: Facts) {
    on(test, kind, |site| {
        let (name, count, memory, architecture, watts, generation) = facts;
        let nvml = site.nvml();
        assert_eq!(nvml.device_count().unwrap(), count);
        assert_eq!(nvml.sys_cuda_driver_version().unwrap(), 13_000);
        assert!(nvml.sys_nvml_version().unwrap().starts_with("13.580"));
        let (mut uuids, mut serials) = (BTreeSet::new(), BTreeSet::new());
        for index in 0..count {
            let device = nvml.device_by_index(index).unwrap();
            assert_eq!(device.name().unwrap(), name);
            assert_eq!(device.index().unwrap(), index);
            assert_eq!(device.minor_number().unwrap(), index);
            assert_eq!(device.architecture().unwrap(), architecture);
            assert_eq!(device.memory_info().unwrap().total, memory * MIB);
            assert_eq!(
                device.power_management_limit_default().unwrap(),
                watts * 1000
            );
            assert_eq!(device.max_pcie_link_gen().unwrap(), generation);
            assert_eq!(device.current_pcie_link_width().unwrap(), 16);
            assert_eq!(device.num_fans().unwrap(), 0);
            fails!(device.fan_speed(0), NotSupported);
            assert!(device.is_ecc_enabled().unwrap().currently_enabled);
            // Every way to a GPU leads to the same one.
            let uuid = device.uuid().unwrap();
            let pci = device.pci_info().unwrap();
            assert_eq!(nvml.device_by_uuid(&*uuid).unwrap().index().unwrap(), index);
            assert!(serials.insert(device.serial().unwrap()));
            for id in [
                pci.bus_id.as_str(),
                &pci.bus_id[4..],
                &pci.bus_id.to_lowercase(),
            ] {
                assert_eq!(
                    nvml.device_by_pci_bus_id(id).unwrap().uuid().unwrap(),
                    uuid,
                    "{id}"
                );
            }
            uuids.insert(uuid);
        }
        assert_eq!(uuids.len(), count as usize);
        fails!(nvml.device_by_index(count), InvalidArg);
        fails!(nvml.device_by_uuid("GPU-none"), NotFound);
    });
}

#[test]
fn a_dgx_a100() {
    let facts = (
        "NVIDIA A100-SXM4-80GB",
        8,
        81920,
        DeviceArchitecture::Ampere,
        400,
        4,
    );
    reads_as("a_dgx_a100", "dgx-a100", facts);
}

#[test]
fn a_dgx_h100() {
    let facts = (
        "NVIDIA H100 80GB HBM3",
        8,
        81559,
        DeviceArchitecture::Hopper,
        700,
        5,
    );
    reads_as("a_dgx_h100", "dgx-h100", facts);
}

#[test]
fn a_dgx_h200() {
    let facts = (
        "NVIDIA H200",
        8,
        143_771,
        DeviceArchitecture::Hopper,
        700,
        5,
    );
    reads_as("a_dgx_h200", "dgx-h200", facts);
}

#[test]
fn a_b200() {
    let facts = (
        "NVIDIA B200",
        8,
        183_359,
        DeviceArchitecture::Blackwell,
        1000,
        5,
    );
    reads_as("a_b200", "b200", facts);
}

#[test]
fn eight_l40s() {
    let facts = ("NVIDIA L40S", 8, 46068, DeviceArchitecture::Ada, 350, 4);
    reads_as("eight_l40s", "l40s-8", facts);
}

#[test]
fn four_a30() {
    let facts = ("NVIDIA A30", 4, 24576, DeviceArchitecture::Ampere, 165, 4);
    reads_as("four_a30", "a30-4", facts);
}

#[test]
fn load_shows_in_all_figures() {
    on("load_shows_in_all_figures", "dgx-h100", |site| {
        let nvml = site.nvml();
        let device = nvml.device_by_index(2).unwrap();
        let idle = (
            device.power_usage().unwrap(),
            device.temperature(TemperatureSensor::Gpu).unwrap(),
        );
        assert!(
            device
                .current_throttle_reasons()
                .unwrap()
                .contains(ThrottleReasons::GPU_IDLE)
        );
        site.run("run gpu2 --pid 4242 --load 90 --memory 30000");
        site.run("run gpu2 --pid 4243 --load 5 --memory 1000 --graphics");
        assert_eq!(device.utilization_rates().unwrap().gpu, 95);
        assert!(device.power_usage().unwrap() > 2 * idle.0);
        assert!(device.temperature(TemperatureSensor::Gpu).unwrap() > idle.1);
        assert_eq!(device.clock_info(Clock::SM).unwrap(), 1980);
        assert_eq!(device.performance_state().unwrap(), PerformanceState::Zero);
        let compute = device.running_compute_processes().unwrap();
        assert_eq!(compute.len(), 1);
        assert_eq!((compute[0].pid, compute[0].gpu_instance_id), (4242, None));
        assert!(matches!(compute[0].used_gpu_memory, UsedGpuMemory::Used(m) if m == 30000 * MIB));
        assert_eq!(device.running_graphics_processes().unwrap()[0].pid, 4243);
        let info = device.memory_info().unwrap();
        assert_eq!(info.used, 31000 * MIB);
        assert_eq!(info.free + info.used + info.reserved, info.total);
        let other = nvml.device_by_index(3).unwrap();
        assert_eq!(other.utilization_rates().unwrap().gpu, 0);
        let before = device.total_energy_consumption().unwrap();
        std::thread::sleep(Duration::from_millis(20));
        let passed = device.total_energy_consumption().unwrap() - before;
        assert!(
            passed >= 600 * 20,
            "{passed} mJ in 20 ms at more than 600 W"
        );
        site.run("stop 4242");
        site.run("stop 4243");
        assert_eq!(device.utilization_rates().unwrap().gpu, 0);
        assert!(!device.is_accounting_enabled().unwrap());
    });
}

#[test]
fn settings_hold_for_every_process_and_a_reset_takes_them_back() {
    let name = "settings_hold_for_every_process_and_a_reset_takes_them_back";
    on(name, "dgx-a100", |site| {
        let nvml = site.nvml();
        let mut device = nvml.device_by_index(0).unwrap();
        let limits = device.power_management_limit_constraints().unwrap();
        assert_eq!((limits.min_limit, limits.max_limit), (100_000, 400_000));
        fails!(device.set_power_management_limit(500_000), InvalidArg);
        device.set_power_management_limit(250_000).unwrap();
        assert_eq!(device.enforced_power_limit().unwrap(), 250_000);
        device
            .set_compute_mode(ComputeMode::ExclusiveProcess)
            .unwrap();
        device.set_persistent(false).unwrap();
        assert!(!device.is_in_persistent_mode().unwrap());
        let clocks = device.supported_graphics_clocks(1593).unwrap();
        assert_eq!(
            (clocks[0], clocks[1], *clocks.last().unwrap()),
            (1410, 1395, 210)
        );
        device.set_ecc(false).unwrap();
        let ecc = device.is_ecc_enabled().unwrap();
        assert!(ecc.currently_enabled && !ecc.pending_enabled);
        // A capped GPU under load stays at its limit, and says why it is slower.
        site.run("run 0 --pid 7");
        assert_eq!(device.power_usage().unwrap(), 250_000);
        assert!(device.clock_info(Clock::Graphics).unwrap() < 1410);
        assert!(
            device
                .current_throttle_reasons()
                .unwrap()
                .contains(ThrottleReasons::SW_POWER_CAP)
        );
        assert!(site.refused("reset gpu0").contains("in use by process 7"));
        site.run("stop 7");
        site.run("reset gpu0");
        assert_eq!(device.power_management_limit().unwrap(), 400_000);
        assert!(!device.is_ecc_enabled().unwrap().currently_enabled);
        assert_eq!(
            device.compute_mode().unwrap(),
            ComputeMode::ExclusiveProcess
        );
        let volatile = device.total_ecc_errors(MemoryError::Corrected, EccCounter::Volatile);
        fails!(volatile, NotSupported);
    });
}

#[test]
fn settings_are_roots() {
    on("settings_are_roots", "dgx-h100", |site| {
        let nvml = site.nvml();
        let mut device = nvml.device_by_index(0).unwrap();
        // SAFETY: this process has one thread that matters, and root's rights are not needed again.
        // 65534 is nobody; without root it is refused, and the process was no root before.
        unsafe { libc::seteuid(65534) };
        fails!(device.set_power_management_limit(300_000), NoPermission);
        fails!(device.set_persistent(false), NoPermission);
        fails!(device.set_ecc(false), NoPermission);
        fails!(device.set_mig_mode(true), NoPermission);
        assert_eq!(device.power_management_limit().unwrap(), 700_000);
        // Reading is everybody's: another process of that user gets the file too.
        let shared = Shared::open(&site.dir.join("state")).unwrap();
        assert_eq!(shared.read(|node| node.gpus().len()), 8);
    });
}

#[test]
fn nvlinks_and_pcie_paths() {
    on("nvlinks_and_pcie_paths", "dgx-a100", |site| {
        let nvml = site.nvml();
        let device = nvml.device_by_index(0).unwrap();
        for link in 0..12 {
            let link = device.link_wrapper_for(link);
            assert!(link.is_active().unwrap());
            assert_eq!(link.version().unwrap(), 4);
            assert!(link.has_capability(Capability::P2p).unwrap());
            assert_eq!(link.error_counter(ErrorCounter::DlCrcFlit).unwrap(), 0);
        }
        fails!(device.link_wrapper_for(12).is_active(), InvalidArg);
        let level = |peer| {
            let peer = nvml.device_by_index(peer).unwrap();
            device.topology_common_ancestor(peer).unwrap()
        };
        assert_eq!(level(1), TopologyLevel::Multiple);
        assert_eq!(level(2), TopologyLevel::Node);
        assert_eq!(level(5), TopologyLevel::System);
        let near = device
            .topology_nearest_gpus(TopologyLevel::Multiple)
            .unwrap();
        assert_eq!(near.len(), 1);
        assert_eq!(near[0].index().unwrap(), 1);
        // GPU 0 is on the first socket of two with 64 cores each: CPUs 0-63 and their threads.
        let cpus = device.cpu_affinity(4).unwrap();
        assert_eq!(cpus, [u64::MAX, 0, u64::MAX, 0]);
    });
}

#[test]
fn bridged_pairs_and_boards_without_links() {
    on("bridged_pairs_and_boards_without_links", "a30-4", |site| {
        let nvml = site.nvml();
        let device = nvml.device_by_index(2).unwrap();
        let peer = nvml.device_by_index(3).unwrap();
        let remote = device.link_wrapper_for(1).remote_pci_info().unwrap();
        assert_eq!(remote.bus_id, peer.pci_info().unwrap().bus_id);
        // A link is down at both ends.
        site.run("fault gpu3 nvlink 1 down");
        assert!(!device.link_wrapper_for(1).is_active().unwrap());
        assert!(device.link_wrapper_for(0).is_active().unwrap());
    });
}

#[test]
fn boards_without_nvlink_say_so() {
    on("boards_without_nvlink_say_so", "l40s-8", |site| {
        let nvml = site.nvml();
        let device = nvml.device_by_index(0).unwrap();
        fails!(device.link_wrapper_for(0).is_active(), NotSupported);
        fails!(device.mig_mode(), NotSupported);
        assert_eq!(device.performance_state().unwrap(), PerformanceState::Eight);
        let peer = nvml.device_by_index(1).unwrap();
        assert_eq!(
            device.topology_common_ancestor(peer).unwrap(),
            TopologyLevel::Single
        );
    });
}

#[test]
fn memory_errors_are_counted_where_the_board_counts_them() {
    on(
        "memory_errors_are_counted_where_the_board_counts_them",
        "v100-4",
        |site| {
            let nvml = site.nvml();
            let device = nvml.device_by_index(0).unwrap();
            let count = |place| {
                device.memory_error_counter(MemoryError::Uncorrected, EccCounter::Aggregate, place)
            };
            assert_eq!(count(MemoryLocation::L2Cache).unwrap(), 0);
            assert_eq!(count(MemoryLocation::RegisterFile).unwrap(), 0);
            assert_eq!(count(MemoryLocation::Device).unwrap(), 0);
            fails!(count(MemoryLocation::Cbu), NotSupported);
        },
    );
}

#[test]
fn thresholds_and_margins() {
    on("thresholds_and_margins", "dgx-a100", |site| {
        let nvml = site.nvml();
        let device = nvml.device_by_index(0).unwrap();
        let threshold = |kind| device.temperature_threshold(kind);
        assert_eq!(threshold(TemperatureThreshold::Shutdown).unwrap(), 92);
        assert_eq!(threshold(TemperatureThreshold::Slowdown).unwrap(), 89);
        assert_eq!(threshold(TemperatureThreshold::GpuMax).unwrap(), 85);
        assert_eq!(threshold(TemperatureThreshold::MemoryMax).unwrap(), 95);
    });
}

#[test]
fn real_latencies_only_where_asked_for() {
    with(
        "real_latencies_only_where_asked_for",
        "dgx-h100",
        &["--real-latency"],
        |site| {
            let nvml = site.nvml();
            let device = nvml.device_by_index(0).unwrap();
            let time = || {
                let begin = Instant::now();
                device.power_usage().unwrap();
                begin.elapsed()
            };
            // Asking firmware takes 3 ms in the table; sleeping takes at least that.
            assert!(time() >= Duration::from_millis(3));
            site.run("latency off");
            let fastest = (0..50).map(|_| time()).min().unwrap();
            assert!(fastest < Duration::from_millis(3), "{fastest:?}");
        },
    );
}
