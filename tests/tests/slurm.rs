//! Tests on real Slurms: one program of all of them, so that they are linked once and the labs of one file are up while those
//! of another wait. `cargo test -p gpuos_tests --test slurm faults::` runs the tests of `faults.rs`.

mod accounting;
mod checkpoint;
mod checkpoint_beside;
mod checkpoint_ends;
mod checkpoint_expedite;
mod checkpoint_grace;
mod checkpoint_kinds;
mod checkpoint_losses;
mod checkpoint_matrix;
mod checkpoint_memory;
mod checkpoint_numbers;
mod checkpoint_outside;
mod checkpoint_overhead;
mod checkpoint_rto;
mod claims;
mod discover;
mod doctor;
mod epilog;
mod faults;
mod forecasts;
mod forged;
mod forms;
mod gres;
mod gridengine;
mod health;
mod heartbeat;
mod held;
#[path = "../hostile/main.rs"]
mod hostile;
mod install;
mod isolation;
mod json;
mod limits;
mod memory;
mod memory_grants;
mod memory_places;
mod memory_short;
mod memory_turns;
mod mig;
mod mig_away;
mod mig_crash;
mod mig_requests;
mod mig_switch;
mod migrate;
mod mix;
mod objectives;
mod options;
mod passthrough;
mod pbs;
mod pbs_health;
mod pbs_holds;
mod pbs_measured;
mod pbs_planner;
mod pbs_site;
mod placement;
mod reasons;
mod records;
mod restart;
mod rules;
mod share;
mod slices;
mod soak;
#[path = "spank/main.rs"]
mod spank;
mod spares;
mod steering;
mod switchable;
mod tables;
mod upgrade;
mod words;

// Its modules name each other as if they were a program of their own.
use hostile::{attacker, attempt, stage, users};
