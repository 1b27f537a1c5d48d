//! What holds for every NVML, whatever the hardware: on each simulated kind of node, and on the
//! driver's own library where this machine has GPUs. Only reads.

use std::collections::BTreeSet;

use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::{
    Clock, EccCounter, MemoryError, TemperatureSensor, TemperatureThreshold,
};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;

use crate::common;
use crate::common::on;

/// A value, unless the hardware does not have it.
fn known<T>(result: Result<T, NvmlError>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(NvmlError::NotSupported | NvmlError::NoPermission) => None,
        Err(error) => panic!("{error:?}"),
    }
}

fn holds(nvml: &Nvml) {
    let count = nvml.device_count().unwrap();
    assert!(count > 0);
    assert!(nvml.sys_driver_version().unwrap().contains('.'));
    assert!(nvml.sys_cuda_driver_version().unwrap() >= 11_000);
    common::fails!(nvml.device_by_index(count), InvalidArg);
    common::fails!(
        nvml.device_by_uuid("GPU-00000000-0000-0000-0000-000000000000"),
        NotFound
    );
    let mut uuids = BTreeSet::new();
    for index in 0..count {
        let device = nvml.device_by_index(index).unwrap();
        assert_eq!(device.index().unwrap(), index);
        let uuid = device.uuid().unwrap();
        assert!(uuid.starts_with("GPU-") && uuid.len() == 40, "{uuid}");
        assert_eq!(nvml.device_by_uuid(&*uuid).unwrap().index().unwrap(), index);
        let pci = device.pci_info().unwrap();
        assert_eq!(pci.pci_device_id & 0xFFFF, 0x10DE, "NVIDIA's vendor id");
        let found = nvml.device_by_pci_bus_id(&*pci.bus_id).unwrap();
        assert_eq!(found.uuid().unwrap(), uuid);
        assert!(uuids.insert(uuid));
        assert!(device.name().unwrap().len() > 5);
        assert!(device.cuda_compute_capability().unwrap().major >= 7);
        let memory = device.memory_info().unwrap();
        assert!(memory.used + memory.free <= memory.total);
        if let Some(load) = known(device.utilization_rates()) {
            assert!(load.gpu <= 100 && load.memory <= 100);
        }
        let celsius = device.temperature(TemperatureSensor::Gpu).unwrap();
        assert!((5..120).contains(&celsius));
        let threshold = |kind| known(device.temperature_threshold(kind));
        let pair = threshold(TemperatureThreshold::Slowdown)
            .zip(threshold(TemperatureThreshold::Shutdown));
        if let Some((slowdown, shutdown)) = pair {
            assert!(slowdown <= shutdown);
        }
        if let Some(limits) = known(device.power_management_limit_constraints()) {
            let limit = device.enforced_power_limit().unwrap();
            assert!(limits.min_limit <= limits.max_limit && limit <= limits.max_limit);
        }
        let now = device.clock_info(Clock::SM).unwrap();
        assert!(now <= device.max_clock_info(Clock::SM).unwrap());
        assert!(device.current_pcie_link_width().unwrap() <= device.max_pcie_link_width().unwrap());
        if let Some(corrected) =
            known(device.total_ecc_errors(MemoryError::Corrected, EccCounter::Aggregate))
        {
            let volatile = device.total_ecc_errors(MemoryError::Corrected, EccCounter::Volatile);
            assert!(volatile.unwrap() <= corrected);
        }
        if let Some(energy) = known(device.total_energy_consumption()) {
            assert!(device.total_energy_consumption().unwrap() >= energy);
        }
        // A field that does not exist is the field's error, not the call's.
        let fields = device
            .field_values_for(&[FieldId(1), FieldId(9999)])
            .unwrap();
        assert_eq!(fields.len(), 2);
        assert!(fields[1].as_ref().is_err() || fields[1].as_ref().unwrap().value.is_err());
        known(device.running_compute_processes());
        known(device.supported_event_types());
        known(device.mig_mode());
    }
}

#[test]
fn on_every_simulated_kind() {
    for kind in &nvidia_ml::model::KINDS {
        on("on_every_simulated_kind", kind.name, |site| {
            holds(&site.nvml())
        });
    }
}

#[test]
fn on_this_machines_gpus() {
    if !std::path::Path::new("/dev/nvidiactl").exists() {
        eprintln!("skipped: this machine has no NVIDIA GPU");
        return;
    }
    match Nvml::init() {
        Ok(nvml) => holds(&nvml),
        Err(error) => eprintln!("skipped: the driver's library does not open: {error}"),
    }
}
