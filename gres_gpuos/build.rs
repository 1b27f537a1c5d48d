//! Keeps the plugin mapped once it is loaded: Slurm opens a plugin twice and closes it in between,
//! and a handler of the Rust runtime must not point at memory that is gone.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
