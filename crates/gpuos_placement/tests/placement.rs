//! Tests of what decides where jobs go: one program of all of them, so that they are linked once. `cargo test -p gpuos_placement --test placement decisions_sim::` runs the
//! tests of `decisions_sim.rs`.

mod counting;
#[path = "../../gpuos_model/tests/mig_support/mod.rs"]
mod mig_support;
mod plan_events;
mod plan_support;
#[path = "../../gpuos_model/tests/random/mod.rs"]
mod random;

mod decisions_sim;
mod defrag;
mod defrag_ratio;
mod fabric_alloc;
mod fabric_random;
mod frag;
mod mig_offer;
mod mig_pack;
mod mig_tile;
mod plan_alloc;
mod plan_behaviour;
mod plan_cache;
mod plan_costs;
mod plan_engine;
mod plan_fabric;
mod plan_gpus;
mod plan_held;
mod plan_islands;
mod plan_learn;
mod plan_rails;
mod plan_reserve;
mod plan_scarcity;
mod plan_short;
mod plan_waits;
mod queue;
mod record;
mod record_runs;
mod shards;
mod switching;
mod withhold;
