//! Gives the library the name that programs ask the loader for, and keeps what it links to itself.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // The state of the simulated NVML comes with NVML's exports, which are another library's.
    println!("cargo:rustc-cdylib-link-arg=-Wl,--exclude-libs,ALL");
    // Threads of streams run in it as long as the process lives.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
