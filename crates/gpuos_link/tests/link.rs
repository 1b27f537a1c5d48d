//! Tests of the link: one program of all of them. `cargo test -p gpuos_link --test link frames::` runs the tests of `frames.rs`.

#[path = "../../gpuos_host/tests/munged/mod.rs"]
mod munged;
mod support;

mod bucket;
mod frames;
mod handshake;
mod hostile;
mod munge;
mod silent;
mod sockets;
mod strangers;
