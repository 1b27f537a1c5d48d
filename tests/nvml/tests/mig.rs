//! MIG through the C interface: what bindings in any language call.

use std::ffi::{CStr, c_char, c_uint};

use nvml::{
    NvmlLib, nvmlComputeInstance_t, nvmlDevice_t, nvmlDeviceAttributes_t, nvmlGpuInstance_t,
    nvmlGpuInstanceInfo_t, nvmlGpuInstancePlacement_t, nvmlGpuInstanceProfileInfo_v3_t,
};
use nvml_wrapper_sys::bindings as nvml;

use crate::common;
use crate::common::{Site, on};

const IN_USE: c_uint = nvml::nvmlReturn_enum_NVML_ERROR_IN_USE;
const INVALID: c_uint = nvml::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT;
const NOT_FOUND: c_uint = nvml::nvmlReturn_enum_NVML_ERROR_NOT_FOUND;
const NO_ROOM: c_uint = nvml::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_RESOURCES;
const RESET_REQUIRED: c_uint = nvml::nvmlReturn_enum_NVML_ERROR_RESET_REQUIRED;
const UNSUPPORTED: c_uint = nvml::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED;

/// Calls a function that gives one value through its last argument.
macro_rules! get {
    ($lib:expr, $function:ident($($argument:expr),*)) => {{
        let mut value = std::mem::MaybeUninit::zeroed();
        // SAFETY: the arguments are what the function takes; plain structures may be zero.
        let code = unsafe { $lib.$function($($argument,)* value.as_mut_ptr()) };
        // SAFETY: zeroed, and all types here are plain numbers or pointers.
        let value = unsafe { value.assume_init() };
        if code == 0 { Ok(value) } else { Err(code) }
    }};
}

fn open(site: &Site) -> NvmlLib {
    // SAFETY: the library of this workspace; its constructors do nothing.
    let lib = unsafe { NvmlLib::new(site.library()) }.expect("the library");
    // SAFETY: takes no arguments.
    assert_eq!(unsafe { lib.nvmlInit_v2() }, 0);
    lib
}

fn device(lib: &NvmlLib, index: c_uint) -> nvmlDevice_t {
    get!(lib, nvmlDeviceGetHandleByIndex_v2(index)).unwrap()
}

fn set_mode(lib: &NvmlLib, gpu: nvmlDevice_t, mode: c_uint) -> c_uint {
    get!(lib, nvmlDeviceSetMigMode(gpu, mode)).unwrap()
}

fn create(
    lib: &NvmlLib,
    gpu: nvmlDevice_t,
    profile: c_uint,
    start: c_uint,
) -> Result<nvmlGpuInstance_t, c_uint> {
    // The size is the profile's own; the library looks at the start.
    let place = nvmlGpuInstancePlacement_t { start, size: 0 };
    get!(
        lib,
        nvmlDeviceCreateGpuInstanceWithPlacement(gpu, profile, &raw const place)
    )
}

fn text(fill: impl FnOnce(*mut c_char, c_uint) -> c_uint) -> String {
    let mut buffer = [0; 96];
    assert_eq!(fill(buffer.as_mut_ptr(), 96), 0);
    // SAFETY: the library ends texts with a zero byte.
    unsafe { CStr::from_ptr(buffer.as_ptr()) }
        .to_str()
        .unwrap()
        .to_string()
}

#[test]
fn profiles_and_placements_are_those_of_the_board() {
    on(
        "profiles_and_placements_are_those_of_the_board",
        "dgx-h100",
        |site| {
            let lib = open(site);
            let gpu = device(&lib, 0);
            assert_eq!(set_mode(&lib, gpu, 1), 0);
            for (index, id, name, slices, cores, starts) in [
                (0, 19, "MIG 1g.10gb", 1, 16, (0..7).collect::<Vec<c_uint>>()),
                (7, 20, "MIG 1g.10gb+me", 1, 16, (0..7).collect()),
                (9, 15, "MIG 1g.20gb", 1, 26, vec![0, 2, 4, 6]),
                (1, 14, "MIG 2g.20gb", 2, 32, vec![0, 2, 4]),
                (2, 9, "MIG 3g.40gb", 3, 60, vec![0, 4]),
                (3, 5, "MIG 4g.40gb", 4, 64, vec![0]),
                (4, 0, "MIG 7g.80gb", 7, 132, vec![0]),
            ] {
                let version = size_of::<nvmlGpuInstanceProfileInfo_v3_t>() as c_uint | 3 << 24;
                // SAFETY: plain numbers and characters.
                let mut info: nvmlGpuInstanceProfileInfo_v3_t = unsafe { std::mem::zeroed() };
                info.version = version;
                // SAFETY: the version says which structure it is.
                let code = unsafe {
                    lib.nvmlDeviceGetGpuInstanceProfileInfoV(gpu, index, (&raw mut info).cast())
                };
                assert_eq!(code, 0, "{name}");
                // SAFETY: the library ends texts with a zero byte.
                let found = unsafe { CStr::from_ptr(info.name.as_ptr()) };
                assert_eq!(found.to_str().unwrap(), name);
                assert_eq!(
                    (info.id, info.sliceCount, info.multiprocessorCount),
                    (id, slices, cores)
                );
                assert_eq!(info.version, version);
                let mut places = [nvmlGpuInstancePlacement_t { start: 0, size: 0 }; 8];
                let mut count = 8;
                // SAFETY: room for eight.
                let code = unsafe {
                    lib.nvmlDeviceGetGpuInstancePossiblePlacements_v2(
                        gpu,
                        id,
                        places.as_mut_ptr(),
                        &raw mut count,
                    )
                };
                assert_eq!(code, 0);
                let found: Vec<c_uint> = places[..count as usize].iter().map(|p| p.start).collect();
                assert_eq!(found, starts, "{name}");
                let plain = get!(lib, nvmlDeviceGetGpuInstanceProfileInfo(gpu, index)).unwrap();
                assert_eq!((plain.id, plain.instanceCount), (id, info.instanceCount));
            }
            let absent = get!(
                lib,
                nvmlDeviceGetGpuInstanceProfileInfo(gpu, nvml::NVML_GPU_INSTANCE_PROFILE_6_SLICE)
            );
            assert_eq!(absent.err(), Some(UNSUPPORTED));
            assert_eq!(
                get!(lib, nvmlDeviceGetGpuInstanceProfileInfo(gpu, 17)).err(),
                Some(INVALID)
            );
        },
    );
}

#[test]
fn instances_are_made_used_and_destroyed() {
    on(
        "instances_are_made_used_and_destroyed",
        "dgx-h100",
        |site| {
            let lib = open(site);
            let gpu = device(&lib, 2);
            assert_eq!(create(&lib, gpu, 9, 0).err(), Some(UNSUPPORTED));
            assert_eq!(set_mode(&lib, gpu, 1), 0);
            let left = create(&lib, gpu, 9, 0).unwrap();
            let right = create(&lib, gpu, 14, 4).unwrap();
            assert_eq!(create(&lib, gpu, 9, 4).err(), Some(NO_ROOM));
            assert_eq!(create(&lib, gpu, 9, 2).err(), Some(INVALID));
            let info: nvmlGpuInstanceInfo_t = get!(lib, nvmlGpuInstanceGetInfo(right)).unwrap();
            assert_eq!(
                (
                    info.id,
                    info.profileId,
                    info.placement.start,
                    info.placement.size
                ),
                (5, 14, 4, 2)
            );
            assert_eq!(
                get!(lib, nvmlDeviceGetGpuInstanceRemainingCapacity(gpu, 19)),
                Ok(1)
            );
            // No compute instance yet: no device.
            assert_eq!(
                get!(lib, nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)).err(),
                Some(NOT_FOUND)
            );
            let whole: nvmlComputeInstance_t =
                get!(lib, nvmlGpuInstanceCreateComputeInstance(right, 1)).unwrap();
            let first: nvmlComputeInstance_t =
                get!(lib, nvmlGpuInstanceCreateComputeInstance(left, 0)).unwrap();
            let mig = get!(lib, nvmlDeviceGetMigDeviceHandleByIndex(gpu, 1)).unwrap();
            assert_eq!(get!(lib, nvmlDeviceIsMigDeviceHandle(mig)), Ok(1));
            assert_eq!(get!(lib, nvmlDeviceGetGpuInstanceId(mig)), Ok(5));
            assert_eq!(get!(lib, nvmlDeviceGetComputeInstanceId(mig)), Ok(0));
            let attributes: nvmlDeviceAttributes_t =
                get!(lib, nvmlDeviceGetAttributes_v2(mig)).unwrap();
            assert_eq!(
                (attributes.multiprocessorCount, attributes.memorySizeMB),
                (32, 20096)
            );
            assert_eq!(
                get!(lib, nvmlDeviceGetDeviceHandleFromMigDeviceHandle(mig)),
                Ok(gpu)
            );
            // SAFETY: a buffer and its length.
            let name =
                |handle| text(|out, room| unsafe { lib.nvmlDeviceGetName(handle, out, room) });
            assert_eq!(name(mig), "NVIDIA H100 80GB HBM3 MIG 2g.20gb");
            let part = get!(lib, nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)).unwrap();
            assert_eq!(name(part), "NVIDIA H100 80GB HBM3 MIG 1c.3g.40gb");
            // SAFETY: as above.
            let uuid =
                |handle| text(|out, room| unsafe { lib.nvmlDeviceGetUUID(handle, out, room) });
            let known = uuid(mig);
            assert!(known.starts_with("MIG-") && known != uuid(part));
            assert_eq!(
                get!(lib, nvmlDeviceGetTemperature(mig, 0)).err(),
                Some(UNSUPPORTED)
            );
            assert_eq!(
                get!(lib, nvmlDeviceGetUtilizationRates(gpu)).err(),
                Some(UNSUPPORTED)
            );
            // A process keeps what it runs in.
            site.run("run gpu2 --pid 55 --memory 3000 --instance 5/0");
            assert_eq!(
                get!(lib, nvmlDeviceGetMemoryInfo(mig)).unwrap().used,
                3000 << 20
            );
            // SAFETY: handles of this session.
            unsafe {
                assert_eq!(lib.nvmlComputeInstanceDestroy(whole), IN_USE);
                assert_eq!(lib.nvmlGpuInstanceDestroy(right), IN_USE);
                site.run("stop 55");
                assert_eq!(lib.nvmlGpuInstanceDestroy(right), IN_USE);
                assert_eq!(lib.nvmlComputeInstanceDestroy(whole), 0);
                assert_eq!(lib.nvmlComputeInstanceDestroy(whole), INVALID);
                assert_eq!(lib.nvmlGpuInstanceDestroy(right), 0);
            }
            assert_eq!(
                get!(lib, nvmlDeviceGetGpuInstanceId(mig)).err(),
                Some(NOT_FOUND)
            );
            assert_eq!(
                get!(lib, nvmlGpuInstanceGetInfo(right)).err(),
                Some(NOT_FOUND)
            );
            // The same instance again has another UUID.
            let again = create(&lib, gpu, 14, 4).unwrap();
            get!(lib, nvmlGpuInstanceCreateComputeInstance(again, 1)).unwrap();
            let mig = get!(lib, nvmlDeviceGetMigDeviceHandleByIndex(gpu, 1)).unwrap();
            assert_ne!(uuid(mig), known);
            assert_eq!(set_mode(&lib, gpu, 0), IN_USE);
            let _ = first;
        },
    );
}

#[test]
fn an_a100_switches_mig_with_a_reset() {
    on("an_a100_switches_mig_with_a_reset", "dgx-a100", |site| {
        let lib = open(site);
        let gpu = device(&lib, 0);
        let mode = || {
            let (mut now, mut later) = (9, 9);
            // SAFETY: two numbers.
            let code = unsafe { lib.nvmlDeviceGetMigMode(gpu, &raw mut now, &raw mut later) };
            assert_eq!(code, 0);
            (now, later)
        };
        site.run("run gpu0 --pid 3");
        assert_eq!(set_mode(&lib, gpu, 1), IN_USE);
        site.run("stop 3");
        assert_eq!(set_mode(&lib, gpu, 1), RESET_REQUIRED);
        assert_eq!(mode(), (0, 1));
        site.run("reset gpu0");
        assert_eq!(mode(), (1, 1));
        for start in [6, 5, 4, 3, 2, 1, 0] {
            create(&lib, gpu, 19, start).unwrap();
        }
        let mut found = [std::ptr::null_mut(); 8];
        let mut count = 0;
        // SAFETY: room for as many as the profile allows.
        let code =
            unsafe { lib.nvmlDeviceGetGpuInstances(gpu, 19, found.as_mut_ptr(), &raw mut count) };
        assert_eq!((code, count), (0, 7));
        assert_eq!(create(&lib, gpu, 19, 0).err(), Some(NO_ROOM));
    });
}

#[test]
fn xids_name_their_instances() {
    on("xids_name_their_instances", "dgx-h100", |site| {
        let lib = open(site);
        let gpu = device(&lib, 1);
        let set = get!(lib, nvmlEventSetCreate()).unwrap();
        // SAFETY: handles of this session.
        unsafe {
            assert_eq!(lib.nvmlDeviceRegisterEvents(gpu, 8, set), 0);
            // Not a kind of event.
            assert_eq!(lib.nvmlDeviceRegisterEvents(gpu, 1 << 40, set), UNSUPPORTED);
        }
        site.run("fault gpu1 xid 94 2/0");
        site.run("fault gpu1 xid 13 5");
        let waited = |instances: bool| {
            // SAFETY: plain numbers and a pointer.
            let mut data: nvml::nvmlEventData_t = unsafe { std::mem::zeroed() };
            // SAFETY: a set of this session and room for one event.
            let code = unsafe {
                match instances {
                    true => lib.nvmlEventSetWait_v2(set, &raw mut data, 5000),
                    false => lib.nvmlEventSetWait(set, &raw mut data, 5000),
                }
            };
            assert_eq!(code, 0);
            assert_eq!(data.device, gpu);
            (data.eventData, data.gpuInstanceId, data.computeInstanceId)
        };
        assert_eq!(waited(true), (94, 2, 0));
        // The first version knows no instances.
        assert_eq!(waited(false), (13, c_uint::MAX, c_uint::MAX));
        // SAFETY: a set of this session.
        unsafe {
            assert_eq!(lib.nvmlEventSetFree(set), 0);
            assert_eq!(lib.nvmlEventSetFree(set), INVALID);
        }
    });
}

#[test]
fn an_error_in_an_instance_is_counted_for_its_device() {
    on(
        "an_error_in_an_instance_is_counted_for_its_device",
        "a30-4",
        |site| {
            let lib = open(site);
            let gpu = device(&lib, 0);
            assert_eq!(set_mode(&lib, gpu, 1), RESET_REQUIRED);
            site.run("reset gpu0");
            for start in [0, 2] {
                let made = create(&lib, gpu, 5, start).unwrap();
                get!(lib, nvmlGpuInstanceCreateComputeInstance(made, 1)).unwrap();
            }
            site.run("fault gpu0 ecc uncorrected 4 sram 2");
            let count = |index| {
                let mig = get!(lib, nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)).unwrap();
                // Uncorrected, volatile, SRAM.
                get!(lib, nvmlDeviceGetMemoryErrorCounter(mig, 1, 0, 7))
            };
            assert_eq!((count(0), count(1)), (Ok(0), Ok(4)));
        },
    );
}

#[test]
fn the_fabric_says_clique_and_cluster() {
    let cluster = [
        "--clique",
        "7",
        "--cluster",
        "00112233-4455-6677-8899-aabbccddeeff",
    ];
    common::with(
        "the_fabric_says_clique_and_cluster",
        "dgx-h200",
        &cluster,
        |site| {
            let lib = open(site);
            let gpu = device(&lib, 3);
            let first = get!(lib, nvmlDeviceGetGpuFabricInfo(gpu)).unwrap();
            assert_eq!(
                (first.cliqueId, first.state, first.clusterUuid[15]),
                (7, 3, 0xFF)
            );
            let third = || {
                // SAFETY: plain numbers.
                let mut info: nvml::nvmlGpuFabricInfo_v3_t = unsafe { std::mem::zeroed() };
                info.version = size_of::<nvml::nvmlGpuFabricInfo_v3_t>() as c_uint | 3 << 24;
                // SAFETY: the version says which structure it is.
                let code = unsafe { lib.nvmlDeviceGetGpuFabricInfoV(gpu, (&raw mut info).cast()) };
                assert_eq!(code, 0);
                info
            };
            assert_eq!((third().cliqueId, third().healthSummary), (7, 1));
            site.run("fault gpu3 nvlink 0 down");
            assert_eq!((third().healthSummary, third().healthMask & 3), (3, 1));
            // A version that does not exist.
            let mut wrong = [0u32; 16];
            // SAFETY: the library reads the version only.
            let code = unsafe { lib.nvmlDeviceGetGpuFabricInfoV(gpu, wrong.as_mut_ptr().cast()) };
            assert_eq!(
                code,
                nvml::nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH
            );
        },
    );
}

#[test]
fn a_call_waits_where_it_is_held() {
    on("a_call_waits_where_it_is_held", "dgx-h100", |site| {
        let lib = open(site);
        let gpu = device(&lib, 0);
        assert_eq!(set_mode(&lib, gpu, 1), 0);
        let held = || site.run("held") == format!("{}\n", std::process::id());
        let made = || site.run("instances").lines().count();
        for (point, there) in [("before-make-gpu", 1), ("after-make-gpu", 2)] {
            site.run(&format!("hold {point} 1"));
            create(&lib, gpu, 19, 0).unwrap();
            assert!(!held(), "the first is let through");
            std::thread::scope(|threads| {
                // Handles are numbers.
                let gpu = gpu as usize;
                let lib = &lib;
                let call = threads.spawn(move || create(lib, gpu as nvmlDevice_t, 19, 1).is_ok());
                while !held() {
                    assert!(!call.is_finished());
                }
                assert_eq!(made(), there, "{point}");
                assert!(!call.is_finished());
                site.run("hold off");
                assert!(call.join().unwrap());
            });
            assert_eq!(made(), 2);
            for start in 0..2 {
                let all = site.run("instances");
                assert!(all.contains(&format!("slices {start}-{start}")), "{all}");
            }
            for id in [7, 8] {
                let instance = get!(lib, nvmlDeviceGetGpuInstanceById(gpu, id)).unwrap();
                // SAFETY: the handle is the library's.
                assert_eq!(unsafe { lib.nvmlGpuInstanceDestroy(instance) }, 0);
            }
        }
        assert!(site.refused("hold there").contains("before-make-gpu"));
    });
}
