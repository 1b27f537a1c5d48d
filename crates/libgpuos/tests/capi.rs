//! libgpuos.so as a C program sees it, and as a Fortran program does where there is a compiler for it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use support::{Mover, root, run_counter};
use tempfile::TempDir;

#[allow(dead_code, reason = "tests of the protocol need more of it")]
#[path = "../../gpuos_program/tests/support/mod.rs"]
mod support;

/// A compiler, unless it is missing here.
fn compiler(name: &str) -> Option<Command> {
    let here = Command::new(name).arg("--version").output();
    if here.is_ok_and(|out| out.status.success()) {
        return Some(Command::new(name));
    }
    eprintln!("skipped: there is no {name} here");
    None
}

/// A folder with the library under the name that programs look for.
fn library() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let own = std::env::current_exe().expect("own path");
    // cargo builds it beside the tests of this crate.
    let built = own.parent().expect("a folder").join("libgpuos.so");
    assert!(built.exists(), "{}", built.display());
    symlink(&built, folder.path().join("libgpuos.so.0")).expect("a link");
    symlink(&built, folder.path().join("libgpuos.so")).expect("a link");
    folder
}

/// A folder with the simulated driver under the name that the library opens.
fn driver() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let built = std::env::current_exe().expect("own path");
    let built = built.with_file_name("libcuda.so");
    assert!(built.exists(), "{}", built.display());
    symlink(built, folder.path().join("libcuda.so.1")).expect("a link");
    folder
}

/// Compiles sources into `folder` and gives the program.
fn compiled(mut compiler: Command, folder: &Path, flags: &[&str], sources: &[PathBuf]) -> PathBuf {
    let program = folder.join("program");
    let lib = folder.display();
    compiler
        .current_dir(folder)
        .args(flags)
        .arg(format!("-I{}", root().join("include").display()))
        .args(sources)
        .args([&format!("-L{lib}"), &format!("-Wl,-rpath,{lib}"), "-lgpuos"])
        .arg("-o")
        .arg(&program);
    let out = compiler.output().expect("a compiler");
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && text.is_empty(), "{text}");
    program
}

const C: [&str; 5] = [
    "-std=c99",
    "-D_POSIX_C_SOURCE=200809L",
    "-Wall",
    "-Wextra",
    "-Wpedantic",
];

#[test]
fn the_example_in_c_counts_on() {
    let Some(cc) = compiler("cc") else { return };
    let folder = library();
    let source = root().join("examples/checkpoint/counter.c");
    let program = compiled(cc, folder.path(), &C, &[source]);
    run_counter(|| {
        let mut command = Command::new(&program);
        command.args(["1000000", "1"]);
        command
    });
}

#[test]
fn each_function_says_what_the_header_says() {
    let Some(cc) = compiler("cc") else { return };
    let folder = library();
    let source = root().join("crates/libgpuos/tests/each.c");
    let program = compiled(cc, folder.path(), &C, &[source]);
    let mover = Mover::start();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        command
            .args(arguments)
            .env("GPUOS_CHECKPOINT_DIR", mover.path());
        command
    };
    let out = Command::new(&program)
        .arg("without")
        .env_remove("GPUOS_CHECKPOINT_DIR")
        .output()
        .expect("runs");
    assert!(out.status.success(), "{out:?}");

    let other = Mover::start();
    let mut command = run(&["lost"]);
    command.env("GPUOS_CHECKPOINT_DIR", other.path());
    let child = command.stderr(Stdio::piped()).spawn().expect("runs");
    other
        .ended(other.ask_in_vain("interval", "no room"))
        .expect_err("fails");
    other.ended(other.ask("interval")).expect("committed");
    let out = child.wait_with_output().expect("ends");
    assert!(out.status.success(), "{out:?}");
    assert_eq!(
        String::from_utf8_lossy(&out.stderr),
        "gpuos: checkpoint 1 was saved and came to nothing: no room; the program goes on, and it would begin again from its start\n"
    );

    let child = run(&["with"]).spawn().expect("runs");
    mover
        .ended(mover.ask_in_vain("asked", "no room"))
        .expect_err("fails");
    mover.ended(mover.ask("end")).expect("committed");
    let out = child.wait_with_output().expect("ends");
    assert!(out.status.success(), "{out:?}");
    let kept = fs::read_to_string(mover.kept(2, 0).join("state"));
    assert_eq!(kept.expect("kept"), "state of rank 0 of 1\n");

    mover.refuse("made by 8 ranks");
    let out = run(&["refused"]).output().expect("runs");
    assert!(out.status.success(), "{out:?}");
    mover.silent();
    let out = run(&["silent"]).output().expect("runs");
    assert!(out.status.success(), "{out:?}");
}

#[test]
fn memory_does_what_the_header_says_in_host_memory_and_on_a_gpu() {
    let Some(cc) = compiler("cc") else { return };
    let folder = library();
    let source = root().join("crates/libgpuos/tests/memory.c");
    let program = compiled(cc, folder.path(), &C, &[source]);
    on_each_device(&program, folder.path(), |_| ());
}

/// Runs a program, with a device and the folder as its arguments, in host memory and on the simulated driver.
#[track_caller]
fn on_each_device(program: &Path, folder: &Path, with: impl Fn(&mut Command)) {
    let driver = driver();
    for (device, path) in [("-1", folder), ("0", driver.path())] {
        let mut command = Command::new(program);
        command
            .arg(device)
            .arg(folder)
            .env("LD_LIBRARY_PATH", path)
            .env("GPUOS_CUDA", "memory=64M")
            .env_remove("GPUOS_NVML_STATE")
            .env_remove("CUDA_VISIBLE_DEVICES");
        with(&mut command);
        let out = command.output().expect("runs");
        assert!(out.status.success(), "device {device}: {out:?}");
    }
}

#[test]
fn a_save_writes_what_was_written_since_the_last_where_files_can_share_bytes() {
    let Some(cc) = compiler("cc") else { return };
    let Some(mut other) = compiler("cc") else {
        return;
    };
    let folder = library();
    let tests = root().join("crates/libgpuos/tests");
    let sharing = folder.path().join("shares.so");
    let out = other
        .args(["-std=c99", "-Wall", "-Wextra", "-shared", "-fPIC", "-o"])
        .arg(&sharing)
        .arg(tests.join("shares.c"))
        .output()
        .expect("a compiler");
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && text.is_empty(), "{text}");
    let program = compiled(cc, folder.path(), &C, &[tests.join("saves.c")]);
    for shares in ["0", "1"] {
        on_each_device(&program, folder.path(), |command| {
            command.arg(shares).env("LD_PRELOAD", &sharing);
            if shares == "1" {
                command.env("SHARES", "1");
            }
        });
    }
}

#[test]
fn the_python_package_and_the_example_do_the_same() {
    let new = "import sys; sys.exit(sys.version_info < (3, 9))";
    let here = Command::new("python3").args(["-c", new]).status();
    if !here.is_ok_and(|status| status.success()) {
        eprintln!("skipped: there is no python3 of version 3.9 or newer here");
        return;
    }
    let (folder, driver) = (library(), driver());
    let python = |arguments: &[&str]| {
        let out = Command::new("python3")
            .args(["-W", "error"])
            .args(arguments)
            .current_dir(root().join("python"))
            .env("PYTHONPATH", root().join("python"))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("GPUOS_LIBRARY", folder.path().join("libgpuos.so.0"))
            .env("LD_LIBRARY_PATH", driver.path())
            .env("GPUOS_CUDA", "memory=64M")
            .env_remove("GPUOS_NVML_STATE")
            .env_remove("CUDA_VISIBLE_DEVICES")
            .output()
            .expect("runs");
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.success(), "{said}");
        (String::from_utf8_lossy(&out.stdout).into_owned(), said)
    };
    let (_, said) = python(&["-m", "unittest", "-v", "tests.test_memory"]);
    assert!(said.contains("\nOK") && !said.contains("skipped"), "{said}");
    let example = root().join("examples/memory/kv_cache.py");
    let example = example.to_str().expect("a path");
    for more in [&[][..], &["--device=0"]] {
        let (out, _) = python(&[&[example, "--turns=30"], more].concat());
        assert!(
            out.contains("98 MiB of cache in 16 MiB: 30 tokens"),
            "{out}"
        );
    }
}

#[test]
fn the_header_is_c_plus_plus_too() {
    let Some(mut cxx) = compiler("c++") else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let source = folder.path().join("header.cc");
    fs::write(
        &source,
        "#include <gpuos.h>\nint main() { return !gpuos_version(); }\n",
    )
    .expect("written");
    let out = cxx
        .args(["-Wall", "-Wextra", "-Wpedantic", "-fsyntax-only"])
        .arg(format!("-I{}", root().join("include").display()))
        .arg(source)
        .output()
        .expect("a compiler");
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && text.is_empty(), "{text}");
}

#[test]
fn the_fortran_module_counts_on() {
    let Some(fortran) = compiler("gfortran") else {
        return;
    };
    let folder = library();
    let sources = [
        root().join("include/gpuos.f90"),
        root().join("crates/libgpuos/tests/counter.f90"),
    ];
    let program = compiled(
        fortran,
        folder.path(),
        &["-std=f2008", "-Wall", "-Wextra"],
        &sources,
    );
    run_counter(|| {
        let mut command = Command::new(&program);
        command.arg("1000000");
        command
    });
}
