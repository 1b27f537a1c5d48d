//! The library itself: its name and symbols, arguments that make no sense, and a state that
//! survives those who use it.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use libloading::Library;
use nvidia_ml::model::kind_named;
use nvidia_ml::state::{Options, Shared, node};
use object::read::elf::{Dyn, ElfFile64, FileHeader};
use object::{Object, ObjectSymbol};

use crate::common::{on, said};

type AnyFunction = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> u32;

/// Names that the library exports.
fn exports(library: &Path) -> BTreeSet<String> {
    let data = std::fs::read(library).expect("the library");
    let file = object::File::parse(&*data).expect("an ELF file");
    let symbols = file
        .dynamic_symbols()
        .filter(|s| s.is_definition() && s.is_global());
    let names = symbols.filter_map(|symbol| symbol.name().ok().map(str::to_string));
    names.collect()
}

#[test]
fn it_is_called_what_programs_open_and_exports_nvml_only() {
    on(
        "it_is_called_what_programs_open_and_exports_nvml_only",
        "dgx-h100",
        |site| {
            let data = std::fs::read(site.library()).unwrap();
            let file = ElfFile64::<object::Endianness>::parse(&*data).unwrap();
            let endian = file.endian();
            let sections = file.elf_header().sections(endian, &*data).unwrap();
            let (entries, strings) = sections.dynamic(endian, &*data).unwrap().unwrap();
            let strings = sections.strings(endian, &*data, strings).unwrap();
            let name = entries
                .iter()
                .find(|e| e.d_tag(endian) == u64::from(object::elf::DT_SONAME));
            let name = name.unwrap().string(endian, strings).unwrap();
            assert_eq!(name, b"libnvidia-ml.so.1");
            let exported = exports(&site.library());
            assert!(exported.len() > 390, "{}", exported.len());
            let others: Vec<_> = exported
                .iter()
                .filter(|name| !name.starts_with("nvml"))
                .collect();
            assert!(others.is_empty(), "{others:?}");
        },
    );
}

/// The functions that a section of README.md lists.
fn listed() -> BTreeSet<String> {
    let text = include_str!("../README.md");
    let words = text.split('`').skip(1).step_by(2);
    words
        .filter(|word| word.starts_with("nvml") && !word.contains('-'))
        .map(str::to_string)
        .collect()
}

#[test]
fn the_readme_lists_what_is_simulated() {
    on("the_readme_lists_what_is_simulated", "dgx-h100", |site| {
        let exported = exports(&site.library());
        // Functions that only say that they are not supported are not listed one by one.
        let source = include_str!("../src/exports/unsupported.rs");
        let refused = source
            .split_whitespace()
            .filter(|word| word.starts_with("nvml"));
        let refused: BTreeSet<String> = refused.map(str::to_string).collect();
        let simulated: BTreeSet<String> = exported.difference(&refused).cloned().collect();
        let missing: Vec<_> = simulated.difference(&listed()).cloned().collect();
        let gone: Vec<_> = listed().difference(&simulated).cloned().collect();
        assert!(
            missing.is_empty() && gone.is_empty(),
            "not in README.md: {missing:?}; only there: {gone:?}"
        );
    });
}

/// Functions that succeed, or do nothing bad, with null pointers and zeros.
const HARMLESS: [&str; 4] = [
    "nvmlInit",
    "nvmlInit_v2",
    "nvmlInitWithFlags",
    "nvmlShutdown",
];

#[test]
fn arguments_that_make_no_sense_are_errors() {
    on(
        "arguments_that_make_no_sense_are_errors",
        "dgx-h100",
        |site| {
            // SAFETY: the library of this workspace.
            let library = unsafe { Library::new(site.library()) }.unwrap();
            let call = |name: &str, arguments: [usize; 6]| {
                // SAFETY: a C function of at most six words that checks pointers for null; the other
                // values are given only as handles.
                unsafe {
                    let function = library.get::<AnyFunction>(name.as_bytes()).unwrap();
                    let [a, b, c, d, e, f] = arguments;
                    function(a, b, c, d, e, f)
                }
            };
            let names = exports(&site.library());
            let names: Vec<_> = names
                .iter()
                .filter(|name| !HARMLESS.contains(&name.as_str()) && *name != "nvmlErrorString")
                .collect();
            for name in &names {
                assert_ne!(call(name, [0; 6]), 0, "{name} before nvmlInit");
            }
            assert_eq!(call("nvmlInit_v2", [0; 6]), 0);
            for name in &names {
                assert_ne!(call(name, [0; 6]), 0, "{name} with zeros");
                let device_first = !name.contains("Handle") && !name.contains("Count");
                if name.starts_with("nvmlDeviceGet") && device_first {
                    assert_ne!(call(name, [0xDEAD_BEE0, 0, 0, 0, 0, 0]), 0, "{name}");
                }
            }
            assert_eq!(call("nvmlShutdown", [0; 6]), 0);
            assert_eq!(call("nvmlShutdown", [0; 6]), 1);
        },
    );
}

#[test]
fn without_a_state_there_is_no_driver() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let driver = |content: Option<&[u8]>| {
        match content {
            Some(bytes) => std::fs::write(&state, bytes).unwrap(),
            None => assert!(!state.exists()),
        }
        Shared::open(&state).err().map(|error| error.kind())
    };
    assert_eq!(driver(None), Some(std::io::ErrorKind::NotFound));
    assert_eq!(driver(Some(b"")), Some(std::io::ErrorKind::InvalidData));
    assert_eq!(
        driver(Some(&[7; 5000])),
        Some(std::io::ErrorKind::InvalidData)
    );
    // Cut off, and with another first byte.
    let (number, kind) = kind_named("dgx-h100").unwrap();
    Shared::create(&state, &node(number, kind, Options::default())).unwrap();
    let mut whole = std::fs::read(&state).unwrap();
    assert_eq!(
        driver(Some(&whole[..whole.len() - 1])),
        Some(std::io::ErrorKind::InvalidData)
    );
    whole[0] ^= 1;
    assert_eq!(driver(Some(&whole)), Some(std::io::ErrorKind::InvalidData));
}

/// What the second process of the tests below does: `die` in the middle of an update, or `count`.
const WORK: &str = "GPUOS_NVML_TEST_WORK";
const ROUNDS: u64 = 300;

fn again(test: &str, work: &str, state: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", test, "--nocapture"])
        .env(WORK, work)
        .env("STATE", state);
    command
}

/// Does the work when this is a second process.
fn worked() -> bool {
    let Some(work) = std::env::var_os(WORK) else {
        return false;
    };
    let shared = Shared::open(Path::new(&std::env::var_os("STATE").unwrap())).unwrap();
    if work == "die" {
        shared.update(|node| {
            node.gpus_mut()[0].heat = 77;
            // SAFETY: ends this process as kill -9 does.
            unsafe { libc::raise(libc::SIGKILL) };
        });
    }
    for _ in 0..ROUNDS {
        shared.update(|node| node.instances_made += 1);
    }
    true
}

fn fresh(folder: &Path) -> (std::path::PathBuf, Shared) {
    let state = folder.join("state");
    let (number, kind) = kind_named("dgx-h100").unwrap();
    let shared = Shared::create(&state, &node(number, kind, Options::default())).unwrap();
    (state, shared)
}

#[test]
fn a_process_killed_in_an_update_leaves_the_state_as_it_was() {
    if worked() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (state, shared) = fresh(folder.path());
    let name = "library::a_process_killed_in_an_update_leaves_the_state_as_it_was";
    for round in 1..=3 {
        let killed = again(name, "die", &state).output().unwrap();
        assert!(!killed.status.success());
        // The lock is free, what was half done is not there, and updates work.
        assert_eq!(shared.read(|node| node.gpus()[0].heat), 0);
        shared.update(|node| node.gpus_mut()[1].heat = round);
        assert_eq!(shared.read(|node| node.gpus()[1].heat), round);
    }
}

#[test]
fn processes_do_not_lose_each_others_updates() {
    if worked() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (state, shared) = fresh(folder.path());
    let name = "library::processes_do_not_lose_each_others_updates";
    let workers: Vec<_> = (0..3)
        .map(|_| {
            let mut worker = again(name, "count", &state);
            worker
                .stdout(std::process::Stdio::piped())
                .stderr(std::process::Stdio::piped());
            worker.spawn().unwrap()
        })
        .collect();
    for worker in workers {
        said(&worker.wait_with_output().unwrap());
    }
    assert_eq!(shared.read(|node| node.instances_made), 3 * ROUNDS);
}

#[test]
fn a_panic_in_an_update_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (_, shared) = fresh(folder.path());
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        shared.update(|node| {
            node.gpus_mut()[0].heat = 50;
            panic!("on purpose");
        });
    }));
    assert!(caught.is_err());
    assert_eq!(shared.read(|node| node.gpus()[0].heat), 0);
}
