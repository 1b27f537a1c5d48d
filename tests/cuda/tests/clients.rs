//! Programs that know nothing of the simulator. They are skipped, with a line, where they are missing.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{library, said};

/// The library under the name that programs open.
fn named(folder: &Path) {
    std::os::unix::fs::symlink(library(), folder.join("libcuda.so.1")).unwrap();
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
