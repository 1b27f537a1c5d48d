//! Gives the library a soname of its own: SCR itself may be installed beside it.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libscr-gpuos.so.0");
}
