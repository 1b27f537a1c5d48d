//! `select/gpuos`: Slurm's cons_tres, steered to the nodes and GPUs that gpuos plans.
//!
//! The plugin opens the `select_cons_tres.so` that Slurm ships and forwards every call to it
//! ([`abi::forward`]). The few calls that it does more in are written out in [`exports`]; whatever goes
//! wrong there ends in the plain forwarded call.
//!
//! `exports` is all that Slurm sees, `start` the loading, `job_test` one call as a list of phases, `events` what slurmctld reports
//! beside, `engine` the state and what follows from doubts. Below them, each using those above it in this list only:
//!
//! - `messages`: what the log says,
//! - `abi`: `call` (how cons_tres is asked), `forward` (trampolines), `source` (the one way to Slurm's records), `frame` (what all phases go
//!   by), `masks` (what is marked in Slurm's records, and taken back),
//!   `shards_of_call` (where the shards are that a job asks for),
//! - `read`: `trust` (how far the layout table is trusted), `settings` and `site`, `snapshot`, `prefetch`, `service` (GPUs that a node's
//!   `Extra` has out of service), `request`, `demand` (what cons_tres would refuse a node for), `ledger` and `ends` (what jobs hold, and
//!   until when), `cluster` (the model of Slurm's facts), `links` (for which cons_tres leaves a GPU out), `backfill` (what it asks twice),
//! - `tell`: `reasons`, `refused` and `keeper` (why a job waits, kept in sight), `records` and `sigbus` (the recording),
//! - `gres`: `registration` (nodes that have not registered since a start of slurmctld), `withhold` (GPUs out of service), `switching` and `switching_later`
//!   (MIG-switchable GPUs, each given in one GRES at a time, and when a job gets one of the other mode), `shards` (a part of a GPU: of which one),
//!   `slices` (the pool), `steer` (narrow, mask, ask, undo), `enough` (whether the answer is as much as was asked for),
//! - `decide`: `no_choice` (calls with nothing to choose), `policy` (what holds for a job's partition and QOS, and what it is worth where),
//!   `refusals` (what cons_tres refused, learned), `forecast`, `offer`, `slices` (whole placements, or they wait), `mix` (the jobs that come,
//!   learned), `neighbours` (nodes that rules forbid), `note`, `cluster_state`, `running`.

mod abi;
mod decide;
mod engine;
mod events;
mod exports;
mod gres;
mod job_test;
mod messages;
mod read;
mod start;
mod tell;
