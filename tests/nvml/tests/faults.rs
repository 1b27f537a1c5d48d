//! Every fault shows where a monitor looks for it, only there, and ends with its repair.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use nvml_wrapper::Device;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::{
    Clock, EccCounter, MemoryError, MemoryLocation, RetirementCause, TemperatureSensor,
};
use nvml_wrapper::enum_wrappers::nv_link::ErrorCounter;
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::structs::device::FieldId;

use crate::common::{Site, fails, on};

const RECOVERY_ACTION: u32 = 230;
const ROWS_PENDING: u32 = 144;
const ROWS_FAILED: u32 = 145;
const RESET_STATUS: u32 = 226;
/// How long heat and the power brake slowed the GPU down. The wrapper gives drivers from 580.82 on their numbers.
const SLOWED_NS: [u32; 2] = [252, 253];

fn field(device: &Device<'_>, id: u32) -> u64 {
    let found = device
        .field_values_for(&[FieldId(id)])
        .unwrap()
        .remove(0)
        .unwrap();
    match found.value.unwrap() {
        SampleValue::U32(value) => value.into(),
        SampleValue::U64(value) => value,
        other => panic!("field {id} is {other:?}"),
    }
}

#[test]
fn ecc_errors_are_counted_in_their_place() {
    on(
        "ecc_errors_are_counted_in_their_place",
        "dgx-h100",
        |site| {
            let nvml = site.nvml();
            let device = nvml.device_by_index(1).unwrap();
            site.run("fault gpu1 ecc corrected 5");
            site.run("fault gpu1 ecc uncorrected 2 sram");
            site.run("fault gpu1 ecc uncorrected 1");
            let at =
                |kind, counter, place| device.memory_error_counter(kind, counter, place).unwrap();
            let volatile = EccCounter::Volatile;
            assert_eq!(
                at(MemoryError::Corrected, volatile, MemoryLocation::Device),
                5
            );
            assert_eq!(
                at(MemoryError::Uncorrected, volatile, MemoryLocation::SRAM),
                2
            );
            assert_eq!(
                at(MemoryError::Uncorrected, volatile, MemoryLocation::Device),
                1
            );
            let total = |kind, counter| device.total_ecc_errors(kind, counter).unwrap();
            assert_eq!(total(MemoryError::Uncorrected, volatile), 3);
            fails!(
                device.memory_error_counter(
                    MemoryError::Corrected,
                    volatile,
                    MemoryLocation::RegisterFile
                ),
                NotSupported
            );
            // The neighbour is well.
            let other = nvml.device_by_index(0).unwrap();
            assert_eq!(
                other
                    .total_ecc_errors(MemoryError::Uncorrected, volatile)
                    .unwrap(),
                0
            );
            // A reset ends what is volatile only.
            site.run("reset gpu1");
            assert_eq!(total(MemoryError::Uncorrected, volatile), 0);
            assert_eq!(total(MemoryError::Uncorrected, EccCounter::Aggregate), 3);
            site.run("repair gpu1");
            assert_eq!(total(MemoryError::Uncorrected, EccCounter::Aggregate), 0);
        },
    );
}

#[test]
fn rows_wait_for_a_reset_and_failures_stay() {
    on(
        "rows_wait_for_a_reset_and_failures_stay",
        "dgx-a100",
        |site| {
            let nvml = site.nvml();
            let device = nvml.device_by_index(4).unwrap();
            site.run("fault gpu4 row-remap pending");
            assert_eq!(
                (field(&device, ROWS_PENDING), field(&device, ROWS_FAILED)),
                (1, 0)
            );
            site.run("reset gpu4");
            assert_eq!(field(&device, ROWS_PENDING), 0);
            site.run("fault gpu4 row-remap failure");
            assert_eq!(
                (field(&device, ROWS_FAILED), field(&device, RESET_STATUS)),
                (1, 1)
            );
            assert_eq!(field(&device, RECOVERY_ACTION), 1);
            site.run("reset gpu4");
            assert_eq!(
                (field(&device, ROWS_FAILED), field(&device, RESET_STATUS)),
                (1, 0)
            );
            let said = site.refused("fault gpu4 retired-page double-bit");
            assert!(said.contains("use 'row-remap'"), "{said}");
            site.run("repair all");
            assert_eq!(field(&device, ROWS_FAILED), 0);
        },
    );
}

#[test]
fn pages_retire_on_boards_that_retire_pages() {
    on(
        "pages_retire_on_boards_that_retire_pages",
        "v100-4",
        |site| {
            let nvml = site.nvml();
            let device = nvml.device_by_index(0).unwrap();
            assert!(!device.are_pages_pending_retired().unwrap());
            site.run("fault gpu0 retired-page double-bit");
            site.run("fault gpu0 retired-page double-bit");
            site.run("fault gpu0 retired-page single-bit");
            let pages = |cause| device.retired_pages(cause).unwrap();
            let double = pages(RetirementCause::DoubleBitEccError);
            assert_eq!(double.len(), 2);
            assert_ne!(double[0].address, double[1].address);
            assert!(double[0].timestamp > 0);
            assert_eq!(pages(RetirementCause::MultipleSingleBitEccErrors).len(), 1);
            assert!(device.are_pages_pending_retired().unwrap());
            site.run("reset gpu0");
            assert!(!device.are_pages_pending_retired().unwrap());
            assert_eq!(pages(RetirementCause::DoubleBitEccError).len(), 2);
        },
    );
}

#[test]
fn nvlink_errors_and_links_that_are_down() {
    on(
        "nvlink_errors_and_links_that_are_down",
        "dgx-h100",
        |site| {
            let nvml = site.nvml();
            let device = nvml.device_by_index(0).unwrap();
            site.run("fault gpu0 nvlink 3 crc 500");
            site.run("fault gpu0 nvlink 7 replay 9");
            site.run("fault gpu0 nvlink 5 down");
            let link = |number| device.link_wrapper_for(number);
            assert_eq!(link(3).error_counter(ErrorCounter::DlCrcFlit).unwrap(), 500);
            assert_eq!(link(3).error_counter(ErrorCounter::DlReplay).unwrap(), 0);
            assert!(!link(5).is_active().unwrap() && link(4).is_active().unwrap());
            // The same by field: all links, link 3 of the first six, link 7 of the second.
            assert_eq!(
                (field(&device, 38), field(&device, 35), field(&device, 109)),
                (500, 500, 9)
            );
            assert!(
                site.refused("fault gpu0 nvlink 18 down")
                    .contains("has 18 NVLinks")
            );
            link(3).reset_error_counters().unwrap();
            assert_eq!(field(&device, 38), 0);
        },
    );
}

#[test]
fn nvlink_5_counts_by_new_fields_only() {
    on("nvlink_5_counts_by_new_fields_only", "b200", |site| {
        let nvml = site.nvml();
        let device = nvml.device_by_index(0).unwrap();
        site.run("fault gpu0 nvlink 0 crc 4");
        fails!(
            device
                .link_wrapper_for(0)
                .error_counter(ErrorCounter::DlCrcFlit),
            NotSupported
        );
        assert_eq!(field(&device, 208), 4);
        let old = device.field_values_for(&[FieldId(38)]).unwrap().remove(0);
        assert!(old.is_err() || old.unwrap().value.is_err());
    });
}

#[test]
fn heat_and_power_brakes_slow_the_gpu_down() {
    on(
        "heat_and_power_brakes_slow_the_gpu_down",
        "dgx-h100",
        |site| {
            let nvml = site.nvml();
            for (gpu, words, reason) in [
                (0, "thermal 91", ThrottleReasons::HW_THERMAL_SLOWDOWN),
                (1, "power-brake", ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN),
            ] {
                let [slowed, other] = match gpu {
                    0 => SLOWED_NS,
                    _ => [SLOWED_NS[1], SLOWED_NS[0]],
                };
                let device = nvml.device_by_index(gpu).unwrap();
                site.run(&format!("run {gpu} --pid 99"));
                site.run(&format!("fault {gpu} {words}"));
                let reasons = device.current_throttle_reasons().unwrap();
                assert!(
                    reasons.contains(reason | ThrottleReasons::HW_SLOWDOWN),
                    "{reasons:?}"
                );
                assert_eq!(device.clock_info(Clock::Graphics).unwrap(), 990);
                let slow = field(&device, slowed);
                std::thread::sleep(Duration::from_millis(5));
                assert!(field(&device, slowed) > slow);
                assert_eq!(field(&device, other), 0);
            }
            let hot = nvml.device_by_index(0).unwrap();
            assert_eq!(hot.temperature(TemperatureSensor::Gpu).unwrap(), 91);
            assert!(
                site.refused("fault 0 thermal 20")
                    .contains("has 28 already")
            );
            site.run("repair all");
            assert!(hot.temperature(TemperatureSensor::Gpu).unwrap() < 40);
            assert_eq!(
                hot.current_throttle_reasons().unwrap(),
                ThrottleReasons::GPU_IDLE
            );
        },
    );
}

#[test]
fn pcie_replays_and_a_link_that_trained_down() {
    on(
        "pcie_replays_and_a_link_that_trained_down",
        "l40s-8",
        |site| {
            let nvml = site.nvml();
            let device = nvml.device_by_index(0).unwrap();
            site.run("fault gpu0 pcie-replay 12");
            site.run("fault gpu0 pcie-link 1 8");
            assert_eq!(device.pcie_replay_counter().unwrap(), 12);
            let link = (
                device.current_pcie_link_gen().unwrap(),
                device.current_pcie_link_width().unwrap(),
            );
            assert_eq!(link, (1, 8));
            assert_eq!(device.max_pcie_link_width().unwrap(), 16);
        },
    );
}

#[test]
fn a_gpu_off_the_bus_is_lost_to_all_and_only_a_repair_brings_it_back() {
    let name = "a_gpu_off_the_bus_is_lost_to_all_and_only_a_repair_brings_it_back";
    on(name, "dgx-h100", |site| {
        let nvml = site.nvml();
        let device = nvml.device_by_index(6).unwrap();
        site.run("fault gpu6 lost");
        fails!(device.temperature(TemperatureSensor::Gpu), GpuLost);
        fails!(device.name(), GpuLost);
        fails!(device.memory_info(), GpuLost);
        fails!(nvml.device_by_index(6), GpuLost);
        fails!(
            device.field_values_for(&[FieldId(RECOVERY_ACTION)]),
            GpuLost
        );
        assert_eq!(nvml.device_count().unwrap(), 8);
        assert!(nvml.device_by_index(5).unwrap().name().is_ok());
        assert!(site.refused("reset gpu6").contains("is lost"));
        assert!(site.run("show").contains("lost"));
        site.run("repair gpu6");
        assert!(device.name().is_ok());
    });
}

#[test]
fn a_driver_that_times_out_and_recovery_actions() {
    on(
        "a_driver_that_times_out_and_recovery_actions",
        "dgx-h100",
        |site| {
            let nvml = site.nvml();
            let device = nvml.device_by_index(0).unwrap();
            site.run("fault gpu0 driver-timeout");
            fails!(device.power_usage(), Timeout);
            site.run("reset gpu0");
            assert!(device.power_usage().is_ok());
            for (word, number) in [
                ("reset", 1),
                ("reboot", 2),
                ("drain-p2p", 3),
                ("drain-and-reset", 4),
                ("none", 0),
            ] {
                site.run(&format!("fault gpu0 recovery-action {word}"));
                assert_eq!(field(&device, RECOVERY_ACTION), number, "{word}");
            }
        },
    );
}

#[test]
fn calls_hang_as_long_as_they_are_told_to() {
    on(
        "calls_hang_as_long_as_they_are_told_to",
        "dgx-h100",
        |site| {
            let nvml = site.nvml();
            let (well, ill) = (
                nvml.device_by_index(0).unwrap(),
                nvml.device_by_index(1).unwrap(),
            );
            let begin = Instant::now();
            site.run("fault gpu1 hang 1");
            well.power_usage().unwrap();
            ill.power_usage().unwrap();
            assert!(begin.elapsed() >= Duration::from_secs(1));
            // A repair ends the hang for those who wait in it.
            site.run("fault node hang 3600");
            std::thread::scope(|scope| {
                let waiting = scope.spawn(|| well.power_usage().unwrap());
                std::thread::sleep(Duration::from_millis(50));
                assert!(!waiting.is_finished());
                site.run("repair all");
                waiting.join().unwrap();
            });
        },
    );
}

/// Waits in another thread while the test breaks things; gives all that came.
fn events(
    site: &Site,
    words: &[&str],
    wanted: EventTypes,
) -> Vec<(u32, EventTypes, Option<XidError>)> {
    let nvml = site.nvml();
    let (ready, go) = mpsc::channel();
    let (done, over) = mpsc::channel();
    std::thread::scope(|scope| {
        let listener = scope.spawn(move || {
            let mut set = nvml.create_event_set().unwrap();
            for index in 0..4 {
                let device = nvml.device_by_index(index).unwrap();
                set = device.register_events(wanted, set).unwrap();
            }
            ready.send(()).unwrap();
            let mut heard = Vec::new();
            loop {
                // Asked before the wait: then a wait that times out comes after the last event.
                let last = over.try_recv().is_ok();
                while let Ok(event) = set.wait(50) {
                    let gpu = event.device.index().unwrap();
                    heard.push((gpu, event.event_type, event.event_data));
                }
                if last {
                    return heard;
                }
            }
        });
        go.recv().unwrap();
        for words in words {
            site.run(words);
        }
        done.send(()).unwrap();
        listener.join().unwrap()
    })
}

#[test]
fn events_reach_those_who_registered_in_order() {
    on(
        "events_reach_those_who_registered_in_order",
        "dgx-h100",
        |site| {
            let words = [
                "fault gpu5 xid 31",
                "fault gpu2 xid 94",
                "fault gpu3 xid 48",
                "fault gpu2 ecc corrected 1",
            ];
            let heard = events(site, &words, EventTypes::CRITICAL_XID_ERROR);
            let xids: Vec<_> = heard
                .iter()
                .map(|(gpu, kind, data)| {
                    assert_eq!(*kind, EventTypes::CRITICAL_XID_ERROR);
                    match data {
                        Some(XidError::Value(xid)) => (*gpu, *xid),
                        other => panic!("{other:?}"),
                    }
                })
                .collect();
            // GPU 5 was not registered; 48 needs a reset, which Xid 154 tells.
            assert_eq!(xids, [(2, 94), (3, 48), (3, 154)]);
        },
    );
}

#[test]
fn ecc_errors_are_events_too_and_old_events_are_not_told() {
    on(
        "ecc_errors_are_events_too_and_old_events_are_not_told",
        "dgx-h100",
        |site| {
            site.run("fault gpu0 ecc uncorrected 1");
            let kinds = EventTypes::SINGLE_BIT_ECC_ERROR | EventTypes::DOUBLE_BIT_ECC_ERROR;
            let heard = events(
                site,
                &["fault gpu1 ecc uncorrected 1", "fault gpu0 ecc corrected 1"],
                kinds,
            );
            let heard: Vec<_> = heard
                .into_iter()
                .map(|(gpu, kind, _)| (gpu, kind))
                .collect();
            let wanted = [
                (1, EventTypes::DOUBLE_BIT_ECC_ERROR),
                (0, EventTypes::SINGLE_BIT_ECC_ERROR),
            ];
            assert_eq!(heard, wanted);
        },
    );
}

#[test]
fn waiting_ends_in_time_and_when_a_gpu_is_lost() {
    on(
        "waiting_ends_in_time_and_when_a_gpu_is_lost",
        "dgx-h100",
        |site| {
            let nvml = site.nvml();
            let device = nvml.device_by_index(0).unwrap();
            let set = nvml.create_event_set().unwrap();
            let set = device
                .register_events(EventTypes::CRITICAL_XID_ERROR, set)
                .unwrap();
            fails!(set.wait(10), Timeout);
            site.run("fault gpu0 lost");
            // First what happened: 79 and the changed recovery action.
            fails!(
                set.wait(1000)
                    .map(|_| ())
                    .and_then(|()| set.wait(1000))
                    .and_then(|_| set.wait(1000)),
                GpuLost
            );
        },
    );
}

#[test]
fn words_that_are_no_fault_are_refused() {
    on("words_that_are_no_fault_are_refused", "dgx-h100", |site| {
        assert!(
            site.refused("fault gpu0 fire")
                .contains("'fire' is no fault: give one of xid,")
        );
        assert!(site.refused("fault gpu9 lost").contains("GPUs 0 to 7"));
        assert!(site.refused("fault node xid 5").contains("only 'hang'"));
        assert!(site.refused("fault gpux lost").contains("'gpux' is no GPU"));
        assert!(
            site.refused("create dgx-x --dir /nowhere")
                .contains("give one of dgx-a100")
        );
        assert!(site.refused("stop 1").contains("on no GPU"));
    });
}
