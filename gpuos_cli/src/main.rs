//! The gpuos command.
fn main() {}
