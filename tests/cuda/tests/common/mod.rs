//! A client of the library by its C interface. The library has one driver for a process, so every test
//! runs its body in a process of its own: the test starts itself again with its settings.

use std::panic::Location;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use libloading::Library;

/// Tells the second process which test it is.
const INSIDE: &str = "GPUOS_CUDA_TEST";

/// Runs `body` in a process of its own, on devices with these settings. `test` is its name in the caller's
/// file. Gives what the process wrote to standard error, and nothing in the process itself.
#[track_caller]
pub fn on(test: &str, settings: &str, body: impl FnOnce(&Cuda)) -> Option<String> {
    with(test, &[("GPUOS_CUDA", settings)], body)
}

/// The same with other variables.
#[track_caller]
pub fn with(test: &str, variables: &[(&str, &str)], body: impl FnOnce(&Cuda)) -> Option<String> {
    let module = Path::new(Location::caller().file()).file_stem();
    let module = module.and_then(|name| name.to_str()).expect("a name");
    let test = format!("{module}::{test}");
    if std::env::var_os(INSIDE).is_some_and(|inside| inside == test.as_str()) {
        body(&Cuda::open());
        return None;
    }
    let mut again = Command::new(std::env::current_exe().expect("this program"));
    again.args(["--exact", &test, "--nocapture", "--test-threads=1"]);
    again.env(INSIDE, &test);
    for name in ["GPUOS_CUDA", "GPUOS_NVML_STATE", "CUDA_VISIBLE_DEVICES"] {
        again.env_remove(name);
    }
    again.envs(variables.iter().copied());
    let done = again.output().expect("this program");
    let text = said(&done);
    assert!(
        text.contains("1 passed"),
        "no test is called {test}:\n{text}"
    );
    Some(String::from_utf8_lossy(&done.stderr).into_owned())
}

/// What a program printed; fails the test when the program failed.
pub fn said(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{}:\n{text}\n{errors}",
        output.status
    );
    text
}

/// The library that was built for this test.
pub fn library() -> PathBuf {
    let tests = std::env::current_exe().expect("this program");
    tests.with_file_name("libcuda.so")
}

/// The opened library.
pub struct Cuda(Library);

/// Codes that tests name.
#[allow(unused_imports, reason = "not all of them in all programs of tests")]
pub use gpuos_driver::code::{ILLEGAL_ADDRESS, INVALID, NOT_FOUND, NOT_READY, OUT_OF_MEMORY};

type Call = [u64];

impl Cuda {
    pub fn open() -> Cuda {
        // SAFETY: the library's initialisers are Rust's own.
        Cuda(unsafe { Library::new(library()) }.expect("libcuda.so"))
    }

    /// The address of a function.
    pub fn address(&self, name: &str) -> Option<usize> {
        // SAFETY: the symbol is only looked at.
        let symbol = unsafe { self.0.get::<extern "C" fn() -> u32>(name.as_bytes()) };
        symbol.ok().map(|symbol| *symbol as usize)
    }

    /// Calls a function whose arguments are all numbers and pointers.
    pub fn code(&self, name: &str, a: &Call) -> u32 {
        let address = self.address(name).unwrap_or_else(|| panic!("no {name}"));
        call(address, a)
    }

    /// The same where it must succeed.
    #[track_caller]
    pub fn ok(&self, name: &str, a: &Call) {
        let code = self.code(name, a);
        assert_eq!(code, 0, "{name} gave {code}");
    }

    /// The same of a function that gives a number or handle by its first argument.
    #[track_caller]
    pub fn get(&self, name: &str, rest: &Call) -> u64 {
        let mut value = 0_u64;
        let mut all = vec![&raw mut value as u64];
        all.extend(rest);
        self.ok(name, &all);
        value
    }

    /// `cuInit`, and a context on the device.
    pub fn context(&self, device: u64) -> u64 {
        self.ok("cuInit", &[0]);
        self.get("cuCtxCreate_v2", &[0, device])
    }

    pub fn alloc(&self, bytes: u64) -> u64 {
        self.get("cuMemAlloc_v2", &[bytes])
    }

    pub fn upload(&self, to: u64, bytes: &[u8]) {
        self.ok(
            "cuMemcpyHtoD_v2",
            &[to, bytes.as_ptr() as u64, bytes.len() as u64],
        );
    }

    pub fn download(&self, from: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.ok(
            "cuMemcpyDtoH_v2",
            &[bytes.as_mut_ptr() as u64, from, length as u64],
        );
        bytes
    }

    pub fn stream(&self) -> u64 {
        self.get("cuStreamCreate", &[1])
    }

    /// A kernel of ours.
    pub fn kernel(&self, name: &str) -> u64 {
        let text = format!("gpuos-cubin 1\nkernel {name}\n\0");
        let module = self.get("cuModuleLoadData", &[text.as_ptr() as u64]);
        self.function(module, name)
    }

    pub fn function(&self, module: u64, name: &str) -> u64 {
        let name = format!("{name}\0");
        self.get("cuModuleGetFunction", &[module, name.as_ptr() as u64])
    }

    /// Launches a kernel; its arguments are words, of which it takes the bytes that it has.
    pub fn launch(&self, kernel: u64, stream: u64, args: &[u64]) -> u32 {
        let places: Vec<*const u64> = args.iter().map(std::ptr::from_ref).collect();
        let all = [
            kernel,
            1,
            1,
            1,
            32,
            1,
            1,
            0,
            stream,
            places.as_ptr() as u64,
            0,
        ];
        self.code("cuLaunchKernel", &all)
    }

    /// A word of host memory for which kernel `wait` can wait.
    pub fn flag(&self) -> Flag {
        Flag(self.get("cuMemAllocHost_v2", &[4096]))
    }
}

/// See [`Cuda::flag`].
pub struct Flag(pub u64);

impl Flag {
    pub fn set(&self, value: u32) {
        // SAFETY: `flag` allocated the word, aligned to a page, and nothing frees it.
        unsafe { std::sync::atomic::AtomicU32::from_ptr(self.0 as *mut u32) }
            .store(value, std::sync::atomic::Ordering::SeqCst);
    }
}

/// Calls C by address.
pub fn call(address: usize, a: &Call) -> u32 {
    // SAFETY: a function of the library, with the arguments that the test gives it.
    unsafe { gpuos_driver::call(address, a) }
}
