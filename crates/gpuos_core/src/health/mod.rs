//! Health of the GPUs of one node: which fault means what, where each GPU stands, what is done about jobs.
//!
//! [`step`] is the whole of it: state, event and time in, effects out. It reads no clock and no file; the
//! daemon tells it what happened and does what it says. `docs/admin/health.md` has the rules and the states.

mod admin;
mod effect;
mod event;
pub mod extra;
mod faults;
pub mod held;
mod holding;
mod jobs;
mod logged;
mod node;
mod publish;
pub mod rules;
mod service;
mod state;
mod step;
mod table;
pub mod trend;

pub use effect::{Audit, Effect};
pub use event::{Admin, Event, HostFault, Job, RecoveryAction, Sample, Verb};
pub use extra::{ExtraError, ExtraPart};
pub use rules::{Action, Authority, Cure, Gauge, JobsAre, Limits, NodeGauge, Rule, Rules, Signal};
pub use state::{Cause, GpuHealth, GpuState, Hold, NodeDrain, NodeHealth, Service};
pub use step::step;
pub use table::{RawRule, merge};
