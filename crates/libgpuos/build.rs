//! Gives the library its soname, by which programs find it: it changes when a function goes or means something else.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libgpuos.so.0");
}
