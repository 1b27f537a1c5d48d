//! How busy GPU instances are (GPM): through the C interface, and through gpuos's own adapter and its twin.

use std::ffi::c_uint;
use std::time::{Duration, Instant};

use gpuos_host::hardware::nvml::{Driver, Error, GpuLibrary, Load, Twin};
use gpuos_model::mig::{Geometry, MigPlacement};
use nvidia_ml::model::kind_named;
use nvml::{NvmlLib, nvmlDevice_t, nvmlGpmMetricsGet_t, nvmlGpmSample_t, nvmlGpmSupport_t};
use nvml_wrapper_sys::bindings as nvml;

use crate::common::{Site, on};

const INVALID: c_uint = nvml::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT;
const UNSUPPORTED: c_uint = nvml::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED;
const VERSION: c_uint = nvml::nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
const SM: c_uint = nvml::nvmlGpmMetricId_t_NVML_GPM_METRIC_SM_UTIL;
const DRAM: c_uint = nvml::nvmlGpmMetricId_t_NVML_GPM_METRIC_DRAM_BW_UTIL;
const PCIE: c_uint = nvml::nvmlGpmMetricId_t_NVML_GPM_METRIC_PCIE_TX_PER_SEC;

/// The C interface.
struct C(NvmlLib);

impl C {
    fn open(site: &Site) -> C {
        // SAFETY: the library of this workspace; its constructors do nothing.
        let lib = unsafe { NvmlLib::new(site.library()) }.expect("the library");
        // SAFETY: takes no arguments.
        assert_eq!(unsafe { lib.nvmlInit_v2() }, 0);
        C(lib)
    }

    fn gpu(&self, index: c_uint) -> nvmlDevice_t {
        let mut gpu = std::ptr::null_mut();
        // SAFETY: a number and an out parameter.
        let code = unsafe { self.0.nvmlDeviceGetHandleByIndex_v2(index, &raw mut gpu) };
        assert_eq!(code, 0);
        gpu
    }

    fn supported(&self, gpu: nvmlDevice_t, version: c_uint) -> Result<c_uint, c_uint> {
        let mut support = nvmlGpmSupport_t {
            version,
            isSupportedDevice: 7,
        };
        // SAFETY: a handle and a structure.
        match unsafe { self.0.nvmlGpmQueryDeviceSupport(gpu, &raw mut support) } {
            0 => Ok(support.isSupportedDevice),
            code => Err(code),
        }
    }

    fn alloc(&self) -> nvmlGpmSample_t {
        let mut sample = std::ptr::null_mut();
        // SAFETY: an out parameter.
        assert_eq!(unsafe { self.0.nvmlGpmSampleAlloc(&raw mut sample) }, 0);
        sample
    }

    fn free(&self, sample: nvmlGpmSample_t) -> c_uint {
        // SAFETY: the simulated library takes any number for a handle.
        unsafe { self.0.nvmlGpmSampleFree(sample) }
    }

    fn take(&self, gpu: nvmlDevice_t, gi: Option<c_uint>, sample: nvmlGpmSample_t) -> c_uint {
        // SAFETY: as in `free`.
        unsafe {
            match gi {
                Some(gi) => self.0.nvmlGpmMigSampleGet(gpu, gi, sample),
                None => self.0.nvmlGpmSampleGet(gpu, sample),
            }
        }
    }

    /// Code and value of each metric.
    fn metrics(
        &self,
        version: c_uint,
        samples: [nvmlGpmSample_t; 2],
        ids: &[c_uint],
    ) -> Result<Vec<(c_uint, f64)>, c_uint> {
        // SAFETY: numbers and pointers.
        let mut ask: nvmlGpmMetricsGet_t = unsafe { std::mem::zeroed() };
        ask.version = version;
        ask.numMetrics = ids.len() as c_uint;
        [ask.sample1, ask.sample2] = samples;
        for (metric, id) in ask.metrics.iter_mut().zip(ids) {
            metric.metricId = *id;
        }
        // SAFETY: a structure; the simulated library takes any number for a handle.
        match unsafe { self.0.nvmlGpmMetricsGet(&raw mut ask) } {
            0 => {
                let each = ask.metrics.iter().take(ids.len());
                Ok(each.map(|m| (m.nvmlReturn, m.value)).collect())
            }
            code => Err(code),
        }
    }
}

/// MigPlacement of the half of an H100 that begins at slice 4.
const HALF: MigPlacement = MigPlacement { start: 4, size: 4 };

#[test]
fn two_samples_make_metrics() {
    on("two_samples_make_metrics", "dgx-h100", |site| {
        site.run("mig gpu1 on");
        let library = open(site);
        let gi = library.mig_make_gpu(1, 9, HALF).unwrap();
        let (ci, _) = library.mig_make_compute(1, gi).unwrap();
        let c = C::open(site);
        let (whole, divided) = (c.gpu(0), c.gpu(1));
        assert_eq!(c.supported(divided, 1), Ok(1));
        assert_eq!(c.supported(divided, 2), Err(VERSION));
        let [a, b] = [c.alloc(), c.alloc()];
        assert_eq!(c.take(divided, Some(gi), a), 0);
        assert_eq!(c.metrics(1, [a, b], &[SM]), Err(INVALID), "one sample only");
        let pid = std::process::id();
        site.run(&format!(
            "run gpu1 --pid {pid} --load 80 --instance {gi}/{ci}"
        ));
        assert_eq!(c.take(divided, Some(gi), b), 0);
        let told = c.metrics(1, [a, b], &[SM, DRAM, PCIE]).unwrap();
        assert_eq!(
            told[..2],
            [(0, 40.0), (0, 24.0)],
            "the mean of both samples"
        );
        assert_eq!(told[2].0, UNSUPPORTED);
        assert_eq!(c.metrics(1, [a, a], &[SM]), Err(INVALID));
        assert_eq!(c.metrics(1, [a, b], &[]), Err(INVALID));
        let sized = size_of::<nvmlGpmMetricsGet_t>() as c_uint | 1 << 24;
        assert_eq!(c.metrics(sized, [a, b], &[SM]), Err(VERSION));
        // Whole and divided are not compared, nor is an instance with one that has its number later.
        assert_eq!(c.take(divided, None, b), UNSUPPORTED);
        assert_eq!(c.take(whole, Some(gi), b), UNSUPPORTED);
        assert_eq!(c.take(divided, Some(77), b), INVALID);
        assert_eq!(c.take(whole, None, b), 0);
        assert_eq!(c.metrics(1, [a, b], &[SM]), Err(INVALID));
        site.run(&format!("stop {pid}"));
        library.mig_destroy_compute(1, gi).unwrap();
        library.mig_destroy_gpu(1, gi).unwrap();
        assert_eq!(library.mig_make_gpu(1, 9, HALF), Ok(gi));
        assert_eq!(c.take(divided, Some(gi), b), 0);
        assert_eq!(c.metrics(1, [a, b], &[SM]), Err(INVALID));
        // What was freed, and what was never a sample.
        assert_eq!((c.free(a), c.free(a)), (0, INVALID));
        assert_eq!(c.take(divided, Some(gi), a), INVALID);
        assert_eq!(c.metrics(1, [a, b], &[SM]), Err(INVALID));
        let null = std::ptr::null_mut();
        assert_eq!(c.free(null), INVALID);
        assert_eq!(c.take(divided, Some(gi), null), INVALID);
        assert_eq!(c.metrics(1, [null, b], &[SM]), Err(INVALID));
    });
}

fn open(site: &Site) -> Driver {
    Driver::open(site.library().to_str()).expect("the simulated library")
}

/// What the newest call tells of the one instance of GPU 1.
fn load(library: &dyn GpuLibrary) -> Option<Load> {
    let told = library.mig_load(1).unwrap();
    assert_eq!(told.len(), 1, "{told:?}");
    told[0].1.clone().unwrap()
}

/// Asks until the load is that.
fn until(library: &dyn GpuLibrary, sm: f64, memory: f64) {
    let wanted = Some(Load {
        sm: Ok(sm),
        memory: Ok(memory),
    });
    let begun = Instant::now();
    loop {
        let told = load(library);
        if told == wanted {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{told:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn the_load_of_an_instance_is_that_of_its_processes() {
    on(
        "the_load_of_an_instance_is_that_of_its_processes",
        "dgx-h200",
        |site| {
            site.run("mig gpu1 on");
            let library = open(site);
            assert_eq!(library.mig_load(0), Ok(Vec::new()), "not in MIG mode");
            assert_eq!(library.mig_load(1), Ok(Vec::new()));
            let gi = library.mig_make_gpu(1, 9, HALF).unwrap();
            assert_eq!(library.mig_load(1), Ok(Vec::new()), "nothing can run in it");
            let (ci, _) = library.mig_make_compute(1, gi).unwrap();
            let pid = std::process::id();
            let busy = format!("run gpu1 --pid {pid} --load 50 --instance {gi}/{ci}");
            site.run(&busy);
            assert_eq!(load(&library), None, "nothing to compare with");
            until(&library, 0.5, 0.3);
            site.run(&format!("stop {pid}"));
            until(&library, 0.0, 0.0);
            // Opened anew, it begins anew.
            library.reopen().unwrap();
            assert_eq!(load(&library), None);
            until(&library, 0.0, 0.0);
            // Another one with its number: made here,
            let anew = |by: &Driver| {
                by.mig_destroy_compute(1, gi).unwrap();
                by.mig_destroy_gpu(1, gi).unwrap();
                assert_eq!(by.mig_make_gpu(1, 9, HALF), Ok(gi));
                by.mig_make_compute(1, gi).unwrap();
            };
            anew(&library);
            assert_eq!(load(&library), None);
            until(&library, 0.0, 0.0);
            // or by somebody else, of which the driver tells.
            let other = open(site);
            library.mig_destroy_compute(1, gi).unwrap();
            library.mig_destroy_gpu(1, gi).unwrap();
            other.mig_make_gpu(1, 9, HALF).unwrap();
            other.mig_make_compute(1, gi).unwrap();
            library.wait_events(Duration::ZERO).unwrap();
            until(&library, 0.0, 0.0);
            anew(&other);
            assert!(
                !library
                    .wait_events(Duration::from_secs(60))
                    .unwrap()
                    .is_empty()
            );
            assert_eq!(load(&library), None);
        },
    );
}

#[test]
fn boards_before_hopper_have_none() {
    on("boards_before_hopper_have_none", "a30-4", |site| {
        site.run("mig gpu1 on");
        let library = open(site);
        let whole = MigPlacement { start: 0, size: 4 };
        let gi = library.mig_make_gpu(1, 0, whole).unwrap();
        library.mig_make_compute(1, gi).unwrap();
        assert_eq!(library.mig_load(1), Err(Error::NotSupported));
        let c = C::open(site);
        assert_eq!(c.supported(c.gpu(1), 1), Ok(0));
        let sample = c.alloc();
        assert_eq!(c.take(c.gpu(1), Some(gi), sample), UNSUPPORTED);
        assert_eq!(c.take(c.gpu(0), None, sample), UNSUPPORTED);
    });
}

/// The Rust crate nvml-wrapper, which knows nothing of this library.
#[test]
fn an_independent_client_reads_the_same() {
    use nvml_wrapper::enums::gpm::GpmMetricId;
    on("an_independent_client_reads_the_same", "b200", |site| {
        let nvml = site.nvml();
        let gpu = nvml.device_by_index(2).unwrap();
        assert!(gpu.gpm_support().unwrap());
        let before = gpu.gpm_sample().unwrap();
        site.run(&format!("run gpu2 --pid {} --load 50", std::process::id()));
        let after = gpu.gpm_sample().unwrap();
        let ids = [
            GpmMetricId::GraphicsUtil,
            GpmMetricId::SmUtil,
            GpmMetricId::DramBwUtil,
            GpmMetricId::SmOccupancy,
        ];
        let told = nvml_wrapper::gpm::gpm_metrics_get(&nvml, &before, &after, &ids).unwrap();
        let values = told.iter().map(|one| one.as_ref().ok().map(|m| m.value));
        let values: Vec<Option<f64>> = values.collect();
        assert_eq!(values, [Some(25.0), Some(25.0), Some(15.0), None]);
    });
}

#[test]
fn the_twin_does_the_same() {
    let twin = Twin::of(kind_named("dgx-h100").unwrap().1.node_type());
    on_twin(&twin, || {
        twin.mig_destroy_compute(1, 0).unwrap();
        twin.mig_destroy_gpu(1, 0).unwrap();
    });
    twin.change(1, |gpu| gpu.gpm = false);
    assert_eq!(twin.mig_load(1), Err(Error::NotSupported));
}

fn on_twin(twin: &Twin, destroy: impl Fn()) {
    let boards = include_str!("../../../crates/gpuos_sim/data/mig/boards.json");
    let boards: Vec<serde_json::Value> = serde_json::from_str(boards).unwrap();
    let board = boards.iter().find(|board| board["name"] == "h100-80gb");
    let geometry: Geometry = serde_json::from_value(board.unwrap()["profiles"].clone()).unwrap();
    twin.divide(1, &geometry);
    twin.change(1, |gpu| gpu.gpm = true);
    assert_eq!(twin.mig_load(0), Ok(Vec::new()));
    for _ in 0..2 {
        let whole = MigPlacement { start: 0, size: 8 };
        let gi = twin.mig_make_gpu(1, 0, whole).unwrap();
        assert_eq!(twin.mig_load(1), Ok(Vec::new()));
        twin.mig_make_compute(1, gi).unwrap();
        twin.change(1, |gpu| _ = gpu.mig_loads.insert(gi, [0.5, 0.25]));
        assert_eq!(load(twin), None);
        until(twin, 0.5, 0.25);
        destroy();
    }
    let gi = twin
        .mig_make_gpu(1, 19, MigPlacement { start: 0, size: 1 })
        .unwrap();
    twin.mig_make_compute(1, gi).unwrap();
}

/// A driver from before GPM: the library opens, and says of the load that it has none.
#[test]
fn a_library_without_the_functions_does_not_support_it() {
    on(
        "a_library_without_the_functions_does_not_support_it",
        "dgx-h100",
        |site| {
            let mut library = std::fs::read(site.library()).unwrap();
            let (name, other) = (b"nvmlGpm", b"nvmlOld");
            let mut renamed = 0;
            for at in 0..library.len() - name.len() {
                if library[at..].starts_with(name) {
                    library[at..at + name.len()].copy_from_slice(other);
                    renamed += 1;
                }
            }
            assert!(renamed >= 6, "{renamed}");
            let old = site.dir.join("old.so");
            std::fs::write(&old, library).unwrap();
            site.run("mig gpu1 on");
            let library = Driver::open(old.to_str()).unwrap();
            let gi = library.mig_make_gpu(1, 9, HALF).unwrap();
            library.mig_make_compute(1, gi).unwrap();
            assert_eq!(library.mig_load(1), Err(Error::NotSupported));
        },
    );
}
