//! A private Slurm cluster, or a private PBS, on one machine, with device files as GPUs.
//!
//! Real munged, slurmctld and one slurmd per node, in a folder of their own, on free ports of
//! the loopback interface. Any number of labs run side by side, and nothing is left of a lab
//! when it ends.
//!
//! - `spec`: what is wanted; `lab`: the cluster; `conf`, `daemons`, `plugins`, `accounting`, `cgroup`: what it is made of,
//! - `suite`: releases of Slurm, by `apt`, `chroot` and `install`,
//! - `gpus`: simulated GPUs and gpuosd; `movers`: gpuos_mover; `node_type`; `mig`: a pool of divided GPUs, and of the MIG-switchable ones,
//! - `built`: folders of what cargo has built,
//! - `pbs`: the same with a PBS, whose hosts have namespaces of their own,
//! - `guard`, `hold` and `store`: nothing is left behind.
//!
//! ```no_run
//! use gpuos_lab::{Lab, LabSpec};
//!
//! let spec = LabSpec {
//!     nodes: 4.into(),
//!     node_type: "pairs-8".into(),
//!     ..LabSpec::unique("doc")
//! };
//! let lab = Lab::up(&spec, &mut |step| eprintln!("{step}"))?;
//! print!("{}", lab.run("sinfo", &["-N", "-l"])?);
//! # Ok::<(), gpuos_lab::LabError>(())
//! ```

mod accounting;
mod apt;
mod built;
mod cgroup;
mod chroot;
mod conf;
mod daemons;
mod error;
mod gpus;
mod guard;
mod hold;
mod install;
mod lab;
mod mig;
mod movers;
mod node_type;
mod pauses;
pub mod pbs;
mod plugins;
mod process;
mod spec;
mod store;
mod suite;
mod sys;
mod tiers;

pub use conf::set_key;
pub use error::LabError;
pub use gpus::find_daemon_dir;
pub use lab::{Lab, field};
pub use movers::find_mover_dir;
pub use pauses::Pauses;
pub use plugins::find_plugin_dir;
pub use spec::{Cgroup, LabSpec, NodeGroup, Nodes, Select, Suite};
pub use store::{Owner, Record, down, record, records, state_root, sweep};
pub use suite::cache_dir;
pub use sys::lock;
pub use tiers::{SHARDS, find_tiers_dir};
