//! Tests of what decides on a node: one program of all of them, so that they are linked once. `cargo test -p gpuos_core --test node health::` runs the
//! tests of `health.rs`.

mod health_support;
#[path = "../../gpuos_model/tests/mig_support/mod.rs"]
mod mig_support;
#[path = "../../../tests/reference/page.rs"]
mod page;
#[path = "../../gpuos_model/tests/random/mod.rs"]
mod random;

mod health;
mod health_docs;
mod health_extra;
mod health_faults;
mod health_held;
mod health_logged;
mod health_pool;
mod health_random;
mod health_returns;
mod health_short;
mod health_sim;
mod isolation;
mod mig_carve;
mod mig_foreign;
mod mig_reconcile;
mod peers_sim;
