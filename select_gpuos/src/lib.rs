//! `select/gpuos`: Slurm's cons_tres, steered to the nodes and GPUs that gpuos plans.
//!
//! The plugin opens the `select_cons_tres.so` that Slurm ships and forwards every call to it
//! ([`forward`]). The few calls that it does more in are written out in [`exports`]; whatever goes
//! wrong there ends in the plain forwarded call.

mod call;
mod clock;
mod cluster;
mod cut;
mod decide;
mod demand;
mod ends;
mod engine;
mod exports;
mod forecast;
mod forward;
mod hints;
mod keeper;
mod ledger;
mod mix;
mod moving;
mod moving_later;
mod neighbours;
mod note;
mod policy;
mod quick;
mod reasons;
mod records;
mod refusals;
mod refused;
mod registration;
mod request;
mod service;
mod settings;
mod shards;
#[cfg(feature = "fault-injection")]
mod shifts;
mod slices;
mod snapshot;
mod start;
mod steer;
mod trust;
