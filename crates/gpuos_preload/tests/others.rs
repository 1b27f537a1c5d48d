//! Programs that the library does not reach, or not alone: other libraries with the same functions, static and setuid programs, other roots.

use std::process::{Command, Stdio};

use object::Object;

use crate::common::{said, with};
use crate::shim::{MIB, folder, moved, preload, variables};

/// A library that has functions of the driver too, and hands them on.
const HOOK: &str = r"
#define _GNU_SOURCE
#include <dlfcn.h>
int cuMemAlloc_v2(unsigned long long *at, unsigned long bytes) {
    int (*next)(unsigned long long *, unsigned long) = dlsym(RTLD_NEXT, __func__);
    return next ? next(at, bytes) : 999;
}
";

#[test]
fn beside_another_library_with_the_same_functions_nothing_moves() {
    let test = "beside_another_library_with_the_same_functions_nothing_moves";
    let folder = folder();
    let (source, hook) = (folder.path().join("hook.c"), folder.path().join("hook.so"));
    if std::env::var_os("GPUOS_CUDA_TEST").is_none() {
        std::fs::write(&source, HOOK).unwrap();
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-o"]).arg(&hook).arg(&source);
        if !cc.status().is_ok_and(|status| status.success()) {
            eprintln!("skipped: there is no C compiler");
            return;
        }
    }
    let mut all = variables(folder.path(), 64, 16, "memory=32M");
    let both = format!("{}:{}", hook.display(), preload().display());
    all.retain(|(name, _)| name != "LD_PRELOAD");
    all.push(("LD_PRELOAD".into(), both));
    all.push(("GPUOS_PRELOAD_SHAKE".into(), "4".into()));
    let all: Vec<(&str, &str)> = all
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    let said = with(test, &all, |cuda| {
        cuda.context(0);
        let at = cuda.alloc(40 * MIB);
        cuda.upload(at + 39 * MIB, &[5; 4096]);
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert_eq!(cuda.download(at + 39 * MIB, 4096), [5; 4096]);
    });
    if let Some(said) = said {
        let line = format!(
            "gpuos: {} stands between the program and gpuos with a cuMemAlloc_v2 of its own: from now on all memory of the process stays where it is",
            hook.display()
        );
        assert!(said.contains(&line), "{said}");
        assert_eq!(moved(&said), 0, "{said}");
    }
}

/// A program that the loader does not load: `LD_PRELOAD` is nothing to it, and it says nothing of it.
#[test]
fn a_static_program_runs_without_it() {
    let program = ["/sbin/ldconfig", "/usr/sbin/ldconfig"]
        .into_iter()
        .find(|path| std::path::Path::new(path).exists());
    // One with an interpreter is loaded by that.
    let is_static = |path: &&str| {
        let bytes = std::fs::read(path).unwrap();
        let file = object::File::parse(bytes.as_slice()).unwrap();
        file.section_by_name(".interp").is_none()
    };
    let Some(program) = program.filter(is_static) else {
        eprintln!("skipped: there is no static program");
        return;
    };
    let run = |library: &str| {
        let mut program = Command::new(program);
        program.arg("--version").env("LD_PRELOAD", library);
        program.env("GPUOS_MEM_GRANT", "wrong").output().unwrap()
    };
    let (with, none) = (run(preload().to_str().unwrap()), run("/nonexistent.so"));
    assert!(with.status.success() && with.stderr.is_empty() && none.stderr.is_empty());
}

/// The loader drops `LD_PRELOAD` of a path where a program has other rights than who starts it.
#[test]
fn a_setuid_program_runs_without_it() {
    // SAFETY: it has no arguments and always succeeds.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("skipped: only root makes a program another user's");
        return;
    }
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path(), open).unwrap();
    let program = folder.path().join("cat");
    // Another process writes it: what a thread beside this one starts meanwhile would have it open, and it could not be run.
    let copied = Command::new("cp").arg("/bin/cat").arg(&program).status();
    assert!(copied.unwrap().success());
    let maps = |mode: u32| {
        std::os::unix::fs::chown(&program, Some(65534), None).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(&program, mode).unwrap();
        let mut cat = Command::new(&program);
        cat.arg("/proc/self/maps").env("LD_PRELOAD", preload());
        let out = cat.stderr(Stdio::piped()).output().unwrap();
        String::from_utf8_lossy(&out.stdout).contains("libgpuos_preload")
    };
    assert!(maps(0o755), "an ordinary one has it");
    if std::fs::metadata(&program).is_ok_and(|_| is_nosuid(folder.path())) {
        eprintln!("skipped: the file system has no setuid programs");
        return;
    }
    assert!(!maps(0o4755));
}

/// Whether a folder's file system ignores setuid.
fn is_nosuid(folder: &std::path::Path) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::CString::new(folder.as_os_str().as_bytes()).unwrap();
    // SAFETY: a structure of numbers, for which zero is a value.
    let mut found: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: a C string and the structure.
    let known = unsafe { libc::statvfs(path.as_ptr(), &raw mut found) } == 0;
    known && found.f_flag & libc::ST_NOSUID != 0
}

/// As in a container: another mount namespace, in which library and driver are at other paths.
#[test]
fn in_a_namespace_of_its_own_the_library_is_where_it_is_bound() {
    const INSIDE: &str = "GPUOS_OTHERS_INSIDE";
    let test = "others::in_a_namespace_of_its_own_the_library_is_where_it_is_bound";
    if std::env::var_os(INSIDE).is_some() {
        let cuda = crate::common::Cuda::open();
        cuda.context(0);
        assert_eq!(cuda.info(), (64 * MIB, 64 * MIB));
        let at = cuda.alloc(40 * MIB);
        cuda.upload(at + 39 * MIB, &[5; 4096]);
        assert_eq!(cuda.download(at + 39 * MIB, 4096), [5; 4096]);
        return;
    }
    let folder = folder();
    let bound = tempfile::tempdir().unwrap();
    let script = format!(
        "mount --bind \"$LIBRARIES\" {0} && LD_PRELOAD={0}/libgpuos_preload.so exec \"$PROGRAM\" --exact {test} --nocapture",
        bound.path().display()
    );
    let program = std::env::current_exe().unwrap();
    let mut all = variables(folder.path(), 64, 16, "memory=32M");
    all.retain(|(name, _)| name != "LD_PRELOAD");
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "--map-root-user", "sh", "-c", &script]);
    unshare.envs(all).env(INSIDE, "1").env("PROGRAM", &program);
    unshare.env("LIBRARIES", program.parent().unwrap());
    unshare
        .env_remove("GPUOS_NVML_STATE")
        .env_remove("CUDA_VISIBLE_DEVICES");
    let may = Command::new("unshare")
        .args(["--mount", "--map-root-user", "true"])
        .status();
    if !may.is_ok_and(|status| status.success()) {
        eprintln!("skipped: no namespace of mounts can be made");
        return;
    }
    assert!(said(&unshare.output().unwrap()).contains("1 passed"));
}
