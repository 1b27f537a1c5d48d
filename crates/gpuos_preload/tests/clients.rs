//! Programs that know nothing of the library, with it and without: the same comes out. Only with `GPUOS_LONG`: they are large.

use std::path::Path;
use std::process::{Command, Stdio};

use cudarc::driver::{CudaContext, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;

use crate::common::said;
use crate::shim::{folder, preloaded, variables};

#[path = "../../../tests/cuda/tests/common/bindings.rs"]
mod bindings;
#[path = "../../../tests/cuda/tests/common/openmp.rs"]
mod openmp;

/// In the package of the simulated driver, both.
const BINDINGS: &str = "../../tests/cuda/tests/common/bindings.py";
const OPENMP: &str = "../../tests/cuda/tests/common/openmp.c";

fn wanted() -> bool {
    std::env::var_os("GPUOS_LONG").is_some() || std::env::var_os("GPUOS_CUDA_TEST").is_some()
}

#[test]
fn ffmpeg_gets_the_frames_back_that_it_uploaded() {
    let mut version = Command::new("ffmpeg");
    version
        .arg("-version")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    if !wanted() || !version.status().is_ok_and(|status| status.success()) {
        eprintln!("skipped: without GPUOS_LONG, or there is no ffmpeg");
        return;
    }
    let folder = folder();
    let frames = |filter: &str, more: Vec<(String, String)>| {
        let mut ffmpeg = Command::new("timeout");
        ffmpeg.args(["60", "ffmpeg", "-v", "error", "-nostdin"]);
        ffmpeg.args(["-init_hw_device", "cuda=gpu", "-filter_hw_device", "gpu"]);
        ffmpeg.args([
            "-f",
            "lavfi",
            "-i",
            "testsrc2=size=1920x1080:rate=5:duration=4",
            "-vf",
            filter,
        ]);
        ffmpeg
            .args(["-f", "framemd5", "-"])
            .env("LD_LIBRARY_PATH", folder.path());
        ffmpeg
            .env("GPUOS_CUDA", "memory=256M")
            .env_remove("GPUOS_NVML_STATE")
            .envs(more);
        said(&ffmpeg.output().unwrap())
    };
    let mut with = variables(folder.path(), 256, 4, "memory=256M");
    with.push(("GPUOS_PRELOAD_SHAKE".to_string(), "1".to_string()));
    let there_and_back = "format=nv12,hwupload_cuda,hwdownload,format=nv12";
    assert_eq!(
        frames(there_and_back, with),
        frames("format=nv12", Vec::new())
    );
}

#[test]
fn cudarc_computes_and_gets_the_result() {
    if !wanted() {
        eprintln!("skipped: without GPUOS_LONG");
        return;
    }
    let more = [("GPUOS_PRELOAD_SHAKE", "1")];
    let settings = "memory=64M,version=12.8";
    preloaded(
        "cudarc_computes_and_gets_the_result",
        [64, 4],
        settings,
        &more,
        |_| {
            let context = CudaContext::new(0).unwrap();
            let ptx = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry saxpy(\
                   .param .u64 y, .param .u64 x, .param .f32 a, .param .u64 n) { ret; }";
            let module = context.load_module(Ptx::from_src(ptx)).unwrap();
            let saxpy = module.load_function("saxpy").unwrap();
            let stream = context.new_stream().unwrap();
            let (count, a) = (1_000_000_u64, 2.0_f32);
            let numbers: Vec<f32> = (0..count).map(|i| i as f32).collect();
            let x = stream.clone_htod(&numbers).unwrap();
            let mut y = stream.clone_htod(&vec![1.0_f32; count as usize]).unwrap();
            for _ in 0..3 {
                let mut launch = stream.launch_builder(&saxpy);
                launch.arg(&mut y).arg(&x).arg(&a).arg(&count);
                // SAFETY: the arguments are those of the kernel, and the vectors have so many elements.
                unsafe { launch.launch(LaunchConfig::for_num_elems(count as u32)) }.unwrap();
            }
            let sums = stream.clone_dtoh(&y).unwrap();
            // Rounded after each step, as the kernel does.
            let wanted = numbers
                .iter()
                .map(|number| (0..3).fold(1.0_f32, |sum, _| 2.0 * number + sum));
            assert!(sums.iter().copied().eq(wanted));
        },
    );
}

#[test]
fn libgomp_gets_its_bytes_back() {
    let folder = folder();
    let program = match wanted() {
        true => openmp::program(OPENMP, folder.path()),
        false => None,
    };
    let Some(program) = program else {
        eprintln!("skipped: without GPUOS_LONG, or no compiler for it");
        return;
    };
    let mut openmp = Command::new("timeout");
    openmp.arg("60").arg(program);
    openmp.env("OMP_TARGET_OFFLOAD", "MANDATORY");
    has_a_third(openmp, folder.path());
}

#[test]
fn nvidias_bindings_for_python_get_their_bytes_back() {
    if !wanted() {
        eprintln!("skipped: without GPUOS_LONG");
        return;
    }
    if let Some(python) = bindings::program(BINDINGS) {
        has_a_third(python, folder().path());
    }
}

/// A program gets its bytes back, of 96 MiB of which a third has room in the GPU.
fn has_a_third(mut program: Command, folder: &Path) {
    program
        .env("GPUOS_PRELOAD_SHAKE", "1")
        .envs(variables(folder, 256, 32, "memory=256M"));
    for name in ["GPUOS_NVML_STATE", "CUDA_VISIBLE_DEVICES"] {
        program.env_remove(name);
    }
    assert_eq!(said(&program.output().unwrap()), "devices 1\nequal\n");
}
