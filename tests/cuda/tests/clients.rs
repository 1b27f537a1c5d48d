//! Programs that know nothing of the simulator. They are skipped, with a line, where they are missing.

use std::path::Path;
use std::process::{Command, Stdio};

use cudarc::driver::{CudaContext, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;

use crate::common::{library, said, with};

#[path = "common/bindings.rs"]
mod bindings;
#[path = "common/openmp.rs"]
mod openmp;

/// In this package, both.
const BINDINGS: &str = "tests/common/bindings.py";
const OPENMP: &str = "tests/common/openmp.c";

/// The library under the names that programs open.
fn named(folder: &Path) {
    for name in ["libcuda.so", "libcuda.so.1"] {
        std::os::unix::fs::symlink(library(), folder.join(name)).unwrap();
    }
}

fn is_there(program: &str) -> bool {
    let mut command = Command::new(program);
    command
        .arg("-version")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let there = command.status().is_ok_and(|status| status.success());
    if !there {
        eprintln!("skipped: there is no {program}");
    }
    there
}

#[test]
fn ffmpeg_gets_the_frames_back_that_it_uploaded() {
    if !is_there("ffmpeg") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    named(folder.path());
    let frames = |filter: &str| {
        let mut ffmpeg = Command::new("timeout");
        ffmpeg.args([
            "60",
            "ffmpeg",
            "-v",
            "error",
            "-nostdin",
            "-init_hw_device",
            "cuda=gpu",
            "-filter_hw_device",
            "gpu",
        ]);
        ffmpeg.args([
            "-f",
            "lavfi",
            "-i",
            "testsrc2=size=320x240:rate=5:duration=2",
            "-vf",
            filter,
        ]);
        ffmpeg.args(["-f", "framemd5", "-"]);
        ffmpeg
            .env("LD_LIBRARY_PATH", folder.path())
            .env("GPUOS_CUDA", "memory=256M");
        for name in ["GPUOS_NVML_STATE", "CUDA_VISIBLE_DEVICES"] {
            ffmpeg.env_remove(name);
        }
        said(&ffmpeg.output().unwrap())
    };
    let there_and_back = frames("format=nv12,hwupload_cuda,hwdownload,format=nv12");
    assert!(
        there_and_back
            .lines()
            .filter(|line| !line.starts_with('#'))
            .count()
            == 10,
        "{there_and_back}"
    );
    assert_eq!(there_and_back, frames("format=nv12"));
}

#[test]
fn cudarc_computes_and_gets_the_result() {
    let folder = tempfile::tempdir().unwrap();
    named(folder.path());
    let variables = [
        ("LD_LIBRARY_PATH", folder.path().to_str().unwrap()),
        ("GPUOS_CUDA", "memory=64M,version=12.8"),
    ];
    with("cudarc_computes_and_gets_the_result", &variables, |_| {
        let context = CudaContext::new(0).unwrap();
        assert_eq!(context.name().unwrap(), "NVIDIA H100 80GB HBM3");
        let ptx = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry saxpy(\
                   .param .u64 y, .param .u64 x, .param .f32 a, .param .u64 n) { ret; }";
        let module = context.load_module(Ptx::from_src(ptx)).unwrap();
        let saxpy = module.load_function("saxpy").unwrap();
        let stream = context.new_stream().unwrap();
        let (count, a) = (100_000_u64, 2.0_f32);
        let numbers: Vec<f32> = (0..count).map(|i| i as f32).collect();
        let x = stream.clone_htod(&numbers).unwrap();
        let mut y = stream.clone_htod(&vec![1.0_f32; count as usize]).unwrap();
        let mut launch = stream.launch_builder(&saxpy);
        launch.arg(&mut y).arg(&x).arg(&a).arg(&count);
        // SAFETY: the arguments are those of the kernel, and the vectors have so many elements.
        unsafe { launch.launch(LaunchConfig::for_num_elems(count as u32)) }.unwrap();
        let sums = stream.clone_dtoh(&y).unwrap();
        let wanted = numbers.iter().map(|number| 2.0 * number + 1.0);
        assert!(sums.iter().copied().eq(wanted));
    });
}

#[test]
fn libgomp_gets_its_bytes_back_and_hears_that_a_kernel_is_none_of_ours() {
    let folder = tempfile::tempdir().unwrap();
    named(folder.path());
    let Some(program) = openmp::program(OPENMP, folder.path()) else {
        return;
    };
    let run = |more: &[&str]| {
        let mut openmp = Command::new("timeout");
        openmp.arg("60").arg(&program).args(more);
        openmp
            .env("LD_LIBRARY_PATH", folder.path())
            .env("GPUOS_CUDA", "memory=256M")
            .env("OMP_TARGET_OFFLOAD", "MANDATORY");
        for name in ["GPUOS_NVML_STATE", "CUDA_VISIBLE_DEVICES"] {
            openmp.env_remove(name);
        }
        openmp.output().unwrap()
    };
    assert_eq!(said(&run(&[])), "devices 1\nequal\n");
    let with_kernel = run(&["kernel"]);
    let told = String::from_utf8_lossy(&with_kernel.stderr);
    assert!(
        !with_kernel.status.success() && told.contains("cannot be launched"),
        "{told}"
    );
}

#[test]
fn nvidias_bindings_for_python_get_their_bytes_back() {
    let Some(mut python) = bindings::program(BINDINGS) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    named(folder.path());
    python
        .env("LD_LIBRARY_PATH", folder.path())
        .env("GPUOS_CUDA", "memory=256M");
    for name in ["GPUOS_NVML_STATE", "CUDA_VISIBLE_DEVICES"] {
        python.env_remove(name);
    }
    assert_eq!(said(&python.output().unwrap()), "devices 1\nequal\n");
}
