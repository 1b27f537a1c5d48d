//! Several processes: shared devices with a state of NVML, and children of `fork`.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use nvidia_ml::model::kind_named;
use nvidia_ml::state::{Options, Shared, node};

use crate::common::{Cuda, INVALID, OUT_OF_MEMORY, on, with};

const MIB: u64 = 1 << 20;
/// CUDA_ERROR_ILLEGAL_STATE.
const ILLEGAL_STATE: u32 = 401;
/// Tells a process that it is the second one of its test.
const SECOND: &str = "GPUOS_CUDA_TEST_SECOND";

fn state(folder: &Path) -> String {
    let path = folder.join("state");
    let (number, kind) = kind_named("dgx-h100").unwrap();
    Shared::create(&path, &node(number, kind, Options::default())).unwrap();
    path.to_str().unwrap().to_string()
}

/// A second process of the same test. It has done its part when it has printed a line.
fn second(test: &str) -> Child {
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args([
        "--exact",
        &format!("processes::{test}"),
        "--nocapture",
        "--test-threads=1",
    ]);
    again
        .env(SECOND, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = again.spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let ready = |line: std::io::Result<String>| line.is_ok_and(|line| line.contains("allocated"));
    assert!(
        lines.into_iter().any(ready),
        "the second process did not allocate"
    );
    child
}

/// The second process's part: allocates on device 2 of the node, and waits until it is ended.
fn be_second(cuda: &Cuda) {
    cuda.context(0);
    cuda.alloc(40 * MIB);
    println!("allocated");
    let mut line = String::new();
    let _ = std::io::stdin().read_line(&mut line);
}

fn used(shared: &Shared, gpu: usize) -> Vec<(u32, u64)> {
    shared.read(|node| {
        node.gpus()[gpu]
            .processes()
            .map(|p| (p.pid, p.memory_mib))
            .collect()
    })
}

#[test]
fn processes_share_a_device_and_nvml_shows_them() {
    let test = "processes_share_a_device_and_nvml_shows_them";
    let folder = tempfile::tempdir().unwrap();
    let state = state(folder.path());
    let variables = [
        ("GPUOS_NVML_STATE", state.as_str()),
        ("CUDA_VISIBLE_DEVICES", "2"),
        ("GPUOS_CUDA", "memory=64M"),
    ];
    with(test, &variables, |cuda| {
        if std::env::var_os(SECOND).is_some() {
            return be_second(cuda);
        }
        let context = cuda.context(0);
        assert_eq!(cuda.get("cuDeviceGetCount", &[]), 1);
        let shared =
            Shared::open(Path::new(&std::env::var_os("GPUOS_NVML_STATE").unwrap())).unwrap();
        let uuid = shared.read(|node| node.gpus()[2].uuid);
        let mut own = [0_u8; 16];
        cuda.ok("cuDeviceGetUuid", &[own.as_mut_ptr() as u64, 0]);
        assert_eq!(own, uuid);
        let a = cuda.alloc(10 * MIB);
        let me = std::process::id();
        assert_eq!(used(&shared, 2), [(me, 10)]);
        assert_eq!(used(&shared, 0), []);
        let mut other = second("processes_share_a_device_and_nvml_shows_them");
        assert_eq!(used(&shared, 2), [(me, 10), (other.id(), 40)]);
        let mut out = 0_u64;
        assert_eq!(
            cuda.code("cuMemAlloc_v2", &[&raw mut out as u64, 16 * MIB]),
            OUT_OF_MEMORY
        );
        cuda.alloc(14 * MIB);
        // What a killed process had is free, without anybody's doing.
        other.kill().unwrap();
        other.wait().unwrap();
        assert_eq!(used(&shared, 2), [(me, 24)]);
        cuda.alloc(40 * MIB);
        cuda.ok("cuMemFree_v2", &[a]);
        assert_eq!(used(&shared, 2), [(me, 54)]);
        cuda.ok("cuCtxDestroy_v2", &[context]);
        assert_eq!(used(&shared, 2), []);
    });
}

/// The second process's part: what it has is the same when it goes on, whatever was done with it meanwhile.
fn keep(cuda: &Cuda) {
    let (length, word) = (40 * MIB, 0x5eed_u32);
    cuda.context(0);
    let at = cuda.alloc(length);
    let fill = cuda.kernel("fill");
    assert_eq!(cuda.launch(fill, 0, &[at, word.into(), length / 4]), 0);
    println!("allocated");
    let mut line = String::new();
    let _ = std::io::stdin().read_line(&mut line);
    let bytes = cuda.download(at, length as usize);
    assert!(bytes.chunks(4).all(|four| four == word.to_le_bytes()));
    // Nobody reads any more what the frame of the test would print.
    std::process::exit(0);
}

#[test]
fn a_process_is_checkpointed_by_another_and_goes_on() {
    let test = "a_process_is_checkpointed_by_another_and_goes_on";
    let folder = tempfile::tempdir().unwrap();
    let state = state(folder.path());
    let variables = [
        ("GPUOS_NVML_STATE", state.as_str()),
        ("CUDA_VISIBLE_DEVICES", "2"),
        ("GPUOS_CUDA", "memory=64M,checkpoint=1"),
    ];
    with(test, &variables, |cuda| {
        if std::env::var_os(SECOND).is_some() {
            return keep(cuda);
        }
        let shared =
            Shared::open(Path::new(&std::env::var_os("GPUOS_NVML_STATE").unwrap())).unwrap();
        let mut other = second(test);
        let pid = u64::from(other.id());
        let asked = |pid: u64| {
            let mut state = 0_u32;
            let told = [pid, &raw mut state as u64];
            (cuda.code("cuCheckpointProcessGetState", &told), state)
        };
        let ask = |what: &str| cuda.code(&format!("cuCheckpointProcess{what}"), &[pid, 0]);
        assert_eq!(asked(pid), (0, 0));
        // One that has no driver, or is none.
        assert_eq!(asked(1).0, INVALID);
        // Each has its order.
        for (what, code) in [
            ("Checkpoint", ILLEGAL_STATE),
            ("Restore", ILLEGAL_STATE),
            ("Unlock", ILLEGAL_STATE),
            ("Lock", 0),
            ("Lock", ILLEGAL_STATE),
            ("Restore", ILLEGAL_STATE),
        ] {
            assert_eq!(ask(what), code, "{what}");
        }
        assert_eq!(
            (asked(pid), used(&shared, 2)),
            ((0, 1), vec![(other.id(), 40)])
        );
        assert_eq!(ask("Checkpoint"), 0);
        assert_eq!(
            (asked(pid), used(&shared, 2)),
            ((0, 2), vec![(other.id(), 0)])
        );
        // It does not come back while others have the memory.
        cuda.context(0);
        let all = cuda.alloc(60 * MIB);
        assert_eq!((ask("Restore"), asked(pid)), (OUT_OF_MEMORY, (0, 2)));
        cuda.ok("cuMemFree_v2", &[all]);
        assert_eq!((ask("Restore"), asked(pid)), (0, (0, 1)));
        assert_eq!((ask("Unlock"), asked(pid)), (0, (0, 0)));
        drop(other.stdin.take());
        assert!(other.wait().unwrap().success());
        assert_eq!(ask("Lock"), INVALID);
    });
}

#[test]
fn a_child_of_fork_has_no_driver_and_its_parent_goes_on() {
    on(
        "a_child_of_fork_has_no_driver_and_its_parent_goes_on",
        "memory=64M",
        |cuda| {
            cuda.context(0);
            let a = cuda.alloc(4096);
            cuda.upload(a, &[3; 4096]);
            // The child looks its functions up before, since another thread may hold a lock of libc's.
            let calls = ["cuInit", "cuCtxSynchronize", "cuCtxGetCurrent"]
                .map(|name| cuda.address(name).unwrap());
            let mut out = 0_u64;
            // SAFETY: the child calls these functions, which take no lock before they see that it is one, and ends.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let codes = calls.map(|address| {
                    crate::common::call(
                        address,
                        &[&raw mut out as u64 * u64::from(address == calls[2])],
                    )
                });
                let wrong = codes.iter().any(|code| *code != 3);
                // SAFETY: ends the child without handlers of the parent's.
                unsafe { libc::_exit(wrong.into()) };
            }
            let mut status = 0;
            // SAFETY: waits for the child above.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0);
            assert_eq!(cuda.download(a, 4096), [3; 4096]);
        },
    );
}

#[test]
fn without_a_device_there_is_none() {
    with(
        "without_a_device_there_is_none",
        &[("CUDA_VISIBLE_DEVICES", "")],
        |cuda| {
            assert_eq!(cuda.code("cuInit", &[0]), 100);
        },
    );
}
