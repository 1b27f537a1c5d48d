//! gpuosd: the daemon of a node.
//!
//! One thread has the state, the [`event_loop`]; it never waits for a library, a command, a disk or a client. Others do that for
//! it, each kind in a thread of its own. They tell it by [`sink`]s, which make [`event_loop::Message`]s of their answers, and are
//! imported by it, never the reverse:
//!
//! - [`gpus`]: polls NVIDIA's library and waits for its events,
//! - [`host`]: looks at network adapters, memory, file systems and the kernel's log,
//! - [`isolation`]: looks who is on the GPUs and what steps may open,
//! - [`confine`]: keeps programs of jobs of PBS to their GPUs,
//! - [`blocking`]: runs Slurm's commands, and resets and checks of GPUs,
//! - [`limits`]: sets power limits and clocks for jobs,
//! - [`mps`]: starts and ends MPS daemons for jobs,
//! - [`mig`]: makes and destroys MIG instances for jobs, and writes [`slices`] ([`switchable_file`]: which GPUs are MIG-switchable),
//! - [`memory`]: hears programs that ask for memory in tiers, and sees them end,
//! - [`disk`]: writes the state ([`store`]) and the audit log ([`audit`]); [`chosen_gpus`]: the file of what was chosen for jobs of PBS,
//! - [`socket_handler`]: answers clients,
//! - [`peers`]: the other nodes of this node's jobs,
//! - [`metrics`]: tells Prometheus, and exporters that know no jobs ([`metrics::job_mapping`]),
//! - `suspicion`: asks gpuos_mover for checkpoints of jobs whose GPUs get worse,
//! - [`traces`]: tells an OpenTelemetry collector, in builds that have it.
//!
//! Between them: [`numbering`] (which GPUs Slurm counts, and how), [`jobs`] (which of them hold which GPUs), [`known`] (whose jobs they are, for [`socket_handler`]), [`status`] (the state as
//! clients see it), [`queue`] (what slurmctld is asked and told, one at a time), [`clear`] (empties folders of users with their rights) and [`driver_checkpoint`] (calls the driver
//! for processes of users, with their rights), both by `as_user`, and [`in_group`] (starts programs with a user's rights in control groups of theirs).
//! [`options`] and [`run`] start it all. Sockets, the log, and whether a folder is nobody else's are `gpuos_daemon`'s.

#![forbid(unsafe_code)]

mod as_user;
pub mod audit;
pub mod blocking;
pub mod chosen_gpus;
pub mod clear;
pub mod confine;
pub mod disk;
pub mod driver_checkpoint;
pub mod event_loop;
pub mod gpus;
pub mod host;
pub mod in_group;
pub mod isolation;
pub mod jobs;
pub mod known;
pub mod limits;
pub mod memory;
pub mod metrics;
pub mod mig;
pub mod mps;
pub mod numbering;
pub mod options;
pub mod peers;
pub mod queue;
pub mod run;
pub mod sink;
pub mod slices;
pub mod socket_handler;
pub mod status;
pub mod store;
mod suspicion;
pub mod switchable_file;
pub mod traces;

/// The daemon's release.
pub const RELEASE: &str = env!("CARGO_PKG_VERSION");
