//! `make install` and `make uninstall`, with the files of this build in place of the optimised ones.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use gpuos_tests::plugins::{built, daemons, programs};
use object::{Object, ObjectSection, ObjectSymbol};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .canonicalize()
        .expect("the project")
}

fn make(target: &str, build: &Path, to: &Path, more: &[&str]) {
    make_under("022", target, build, to, more);
}

/// The same with a umask.
fn make_under(umask: &str, target: &str, build: &Path, to: &Path, more: &[&str]) {
    let out = Command::new("sh")
        .current_dir(root())
        .args(["-c", &format!("umask {umask}; exec make \"$@\""), "make"])
        .args(["--no-print-directory", target])
        .arg(format!("DESTDIR={}", to.display()))
        .args(more)
        .env("CARGO_TARGET_DIR", build)
        .output()
        .expect("make");
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "make {target}: {text}");
}

/// All below a folder, relative to it.
fn all(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut todo = vec![folder.to_path_buf()];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            if entry.path().is_dir() {
                todo.push(entry.path());
            }
            let path = entry.path();
            found.push(
                path.strip_prefix(folder)
                    .expect("below")
                    .display()
                    .to_string(),
            );
        }
    }
    found.sort();
    found
}

/// What stands in for a release build: the files of this one.
fn a_build(dir: &Path) -> (PathBuf, PathBuf) {
    let build = dir.join("target");
    let release = build.join("release");
    fs::create_dir_all(&release).expect("a folder");
    for name in [
        "select_gpuos",
        "spank_gpuos",
        "job_submit_gpuos",
        "gres_gpuos",
    ] {
        let file = format!("lib{name}.so");
        symlink(built().join(&file), release.join(&file)).expect("a link");
    }
    symlink(programs().join("gpuos"), release.join("gpuos")).expect("a link");
    // It takes long to build, and is a program like the others.
    symlink(programs().join("gpuos"), release.join("gpuos-layout")).expect("a link");
    for daemon in ["gpuosd", "gpuos_mover"] {
        symlink(daemons().join(daemon), release.join(daemon)).expect("a link");
    }
    let library = programs().join("libgpuos.so");
    symlink(library, release.join("libgpuos.so")).expect("a link");
    (build, release)
}

/// Root runs what is installed, and everybody reads it: whatever the umask of the shell in which it was installed.
#[test]
fn modes_are_the_same_under_every_umask() {
    let dir = tempfile::tempdir().expect("a folder");
    let (build, _) = a_build(dir.path());
    for umask in ["000", "077", "027"] {
        let to = dir.path().join(format!("stage-{umask}"));
        fs::create_dir(&to).expect("a folder");
        make_under(umask, "install", &build, &to, &["PREFIX=/usr", "STRIP=no"]);
        let names = all(&to);
        assert!(names.len() > 100, "{}", names.len());
        for name in names {
            let facts = fs::symlink_metadata(to.join(&name)).expect("installed");
            let mode = facts.permissions().mode() & 0o7777;
            let right = match (facts.is_symlink(), facts.is_dir()) {
                (true, _) => continue,
                (_, true) => mode == 0o755,
                (_, false) => mode == 0o644 || mode == 0o755,
            };
            assert!(right, "umask {umask}: {name} has {mode:o}");
        }
    }
}

#[test]
fn what_is_installed_follows_its_places_and_goes_again() {
    let dir = tempfile::tempdir().expect("a folder");
    let (build, release) = a_build(dir.path());
    for places in [
        &["PREFIX=/opt/gpuos"][..],
        &[
            "PREFIX=/usr",
            "PLUGINDIR=/usr/lib/x86_64-linux-gnu/slurm-wlm",
        ],
    ] {
        let to = dir.path().join("stage");
        make("install", &build, &to, places);
        let prefix = places[0].trim_start_matches("PREFIX=/");
        let plugins = match places.get(1) {
            Some(own) => own.trim_start_matches("PLUGINDIR=/").to_string(),
            None => format!("{prefix}/lib/gpuos"),
        };
        let read = |name: &str| {
            let path = to.join(name);
            fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
        };
        let doc = format!("{prefix}/share/doc/gpuos");
        for name in ["slurm.conf.sample", "plugstack.conf.sample"] {
            // What the plugin takes without a word is said in any case.
            let text = read(&format!("{doc}/{name}"));
            let text = text.replace("/usr/lib/gpuos/libgpuos_preload.so.0 without it", "");
            assert!(text.contains(&format!("/{plugins}")), "{name}: {text}");
            assert!(!text.contains("/usr/lib/gpuos"), "{name}: {text}");
        }
        // It is told of a library that lies elsewhere.
        let libraries = format!("/{prefix}/lib/gpuos");
        let named = format!("/spank_gpuos.so preload={libraries}/libgpuos_preload.so.0\n");
        let sample = read(&format!("{doc}/plugstack.conf.sample"));
        let elsewhere = libraries != "/usr/lib/gpuos";
        assert_eq!(sample.contains(&named), elsewhere, "{sample}");
        for daemon in ["gpuosd", "gpuos_mover"] {
            let unit = read(&format!("{prefix}/lib/systemd/system/{daemon}.service"));
            let started = format!("ExecStart=/{prefix}/sbin/{daemon}\n");
            assert!(unit.contains(&started), "{unit}");
            let page = read(&format!("{prefix}/share/man/man8/{daemon}.8"));
            assert!(page.contains(daemon), "{page}");
        }
        let unit = read(&format!(
            "{prefix}/lib/systemd/system/gpuos-ckpt-drill.service"
        ));
        let started = format!("ExecStart=/{prefix}/bin/gpuos ckpt drill ");
        assert!(unit.contains(&started), "{unit}");
        let unit = read(&format!(
            "{prefix}/lib/systemd/system/gpuos-pbs-planner.service"
        ));
        let started = format!("ExecStart=/{prefix}/bin/gpuos pbs-planner ");
        assert!(unit.contains(&started), "{unit}");
        let timer = read(&format!(
            "{prefix}/lib/systemd/system/gpuos-ckpt-drill.timer"
        ));
        assert!(timer.contains("OnCalendar="), "{timer}");
        for name in [
            "docs/admin/health.md",
            "docs/decisions/README.md",
            "README.md",
            "gpuos.toml.sample",
        ] {
            assert!(!read(&format!("{doc}/{name}")).is_empty(), "{name}");
        }
        assert!(read(&format!("{prefix}/share/gpuos/grafana/gpuos.json")).starts_with('{'));
        assert!(
            read(&format!("{prefix}/share/gpuos/prometheus/gpuos.rules.yml")).contains("groups:")
        );
        // What programs of users find: by pkg-config, and where docs/user/checkpoint-programs.md says.
        let pkgconfig = read(&format!("{prefix}/lib/pkgconfig/gpuos.pc"));
        for line in [
            format!("libdir=/{prefix}/lib/gpuos"),
            format!("prefix=/{prefix}"),
            format!("Version: {}", env!("CARGO_PKG_VERSION")),
        ] {
            assert!(pkgconfig.lines().any(|own| own == line), "{pkgconfig}");
        }
        let library = to.join(format!("{prefix}/lib/gpuos/libgpuos.so"));
        let soname = fs::read_link(library).expect("a link");
        assert_eq!(soname, Path::new("libgpuos.so.0"));
        assert!(read(&format!("{prefix}/include/gpuos.h")).contains("gpuos_ckpt_join"));
        for name in [
            "gpuos-checkpoint.sh",
            "gpuos.f90",
            "python/gpuos/checkpoint.py",
            "python/gpuos/memory.py",
            "examples/memory/kv_cache.py",
            "examples/checkpoint/counter.c",
        ] {
            let text = read(&format!("{prefix}/share/gpuos/{name}"));
            assert!(!text.is_empty(), "{name}");
        }
        let debug = to.join(format!("{prefix}/lib/debug"));
        let stripped = !places.contains(&"STRIP=no");
        assert_eq!(debug.exists(), stripped, "{places:?}");
        // Stripped, with the debug file that it names, and with all that Slurm and the unwinder need.
        for (name, whole) in [
            (format!("{plugins}/select_gpuos.so"), "libselect_gpuos.so"),
            (format!("{prefix}/bin/gpuos"), "gpuos"),
            (format!("{prefix}/lib/gpuos/libgpuos.so.0"), "libgpuos.so"),
        ]
        .into_iter()
        .filter(|_| stripped)
        {
            let bytes = fs::read(to.join(&name)).expect("installed");
            let file = object::File::parse(bytes.as_slice()).expect("ELF");
            let before = fs::read(release.join(whole)).expect("built");
            let before = object::File::parse(before.as_slice()).expect("ELF");
            assert!(file.section_by_name(".symtab").is_none(), "{name}");
            assert!(file.section_by_name(".debug_line").is_none(), "{name}");
            assert!(file.section_by_name(".eh_frame").is_some(), "{name}");
            let exports = |file: &object::File| -> Vec<String> {
                let symbols = file
                    .dynamic_symbols()
                    .filter(|symbol| symbol.is_definition());
                symbols
                    .filter_map(|symbol| symbol.name().ok().map(str::to_string))
                    .collect()
            };
            assert_eq!(exports(&file), exports(&before), "{name}");
            let debug = to.join(format!("{prefix}/lib/debug/{name}.debug"));
            let (link, _) = file.gnu_debuglink().expect("readable").expect("a link");
            assert_eq!(
                link,
                debug.file_name().expect("a name").as_encoded_bytes(),
                "{name}"
            );
            let bytes = fs::read(&debug).unwrap_or_else(|e| panic!("{}: {e}", debug.display()));
            let debug = object::File::parse(bytes.as_slice()).expect("ELF");
            assert!(
                debug
                    .section_by_name(".debug_line")
                    .is_some_and(|section| section.size() > 0),
                "{name}"
            );
        }
        let version = Command::new(to.join(format!("{prefix}/bin/gpuos")))
            .arg("--version")
            .output();
        assert!(version.expect("runs").status.success());
        make("uninstall", &build, &to, places);
        assert_eq!(all(&to), [""; 0], "{places:?}");
    }
}
