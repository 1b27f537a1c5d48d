//! Tests of configuration, and of what it and the planner make together: one program of all of them, so that they are linked once. `cargo test -p gpuos_config --test config config_behaviour::` runs the
//! tests of `config_behaviour.rs`.

#[path = "../../gpuos_placement/tests/counting/mod.rs"]
mod counting;
#[path = "../../gpuos_model/tests/mig_support/mod.rs"]
mod mig_support;
#[path = "../../../tests/reference/page.rs"]
mod page;
#[path = "../../gpuos_placement/tests/plan_support/mod.rs"]
mod plan_support;
#[path = "../../gpuos_model/tests/random/mod.rs"]
mod random;
#[path = "../../../tests/fuzz/src/targets.rs"]
mod targets;

mod config_behaviour;
mod config_sample;
mod fabric_net;
mod input_fuzz;
mod mig_evict;
mod mig_pool;
mod mig_request;
mod plan_traffic;
mod record_net;
mod reference;
mod rules;
