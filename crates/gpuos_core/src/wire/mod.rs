//! What gpuosd and its clients say to each other on the local socket.
//!
//! One JSON value a line. A client says [`Request::Hello`] first; the daemon answers each request with
//! one [`Reply`], or with many to [`Request::Watch`]. A client that only reports may write both lines
//! and go without reading. docs/admin/gpuosd.md has the protocol for people.
//!
//! - [`message`]: the messages,
//! - [`mig`]: slices of GPUs; [`memory`]: memory beyond that of GPUs, [`memory_status`]: who has it; [`checkpoint`]: what gpuos_mover is asked on its
//!   socket,
//! - [`mom`]: what the hook in a pbs_mom tells, and what mom is to do,
//! - [`status`]: what [`Reply::Status`] carries,
//! - [`frame`]: lines to messages and back, within limits,
//! - [`right`]: who may ask for what,
//! - [`reveal`]: what of a node's state a user is told.

mod checkpoint;
mod frame;
mod memory;
mod memory_status;
mod message;
mod mig;
mod mom;
mod reveal;
mod right;
mod status;
#[cfg(test)]
mod tests;

pub use checkpoint::{
    CHECKPOINT_VARIABLE, CheckpointFigures, CheckpointForm, CheckpointJob, CheckpointKept,
    CheckpointMaking, CheckpointPhase, CheckpointRecoveries, CheckpointRecovery, CheckpointRefused,
    CheckpointRequest, MEMORY_FOLDER, MEMORY_UNSEEN, MOVER_ALIVE, MoverSettings,
};
pub use frame::{Lines, MAX_REPLY, MAX_REQUEST, WireError, decode, encode};
pub use memory::StepMemory;
pub use memory_status::{
    MemoryFigures, MemoryGpuStatus, MemoryLeaseStatus, MemoryPressureStatus, MemoryProgramStatus,
    MemoryStatus, MemoryTierStatus, MemoryUnaskedStatus,
};
pub use message::{
    Code, Happening, MPS_VARIABLES, PROTOCOL, Reason, Reply, Request, memory_socket, root_socket,
    switchable_file,
};
pub use mig::{MIG_VARIABLES, MigAsk, MigGpuStatus, MigInstance, MigLoad, MigStatus, Percent};
pub use mom::{
    HostOrder, MomChoice, MomEnd, MomGpu, MomHost, MomJob, MomOrders, MomReport, MomRoom, MomSlices,
};
pub use reveal::{Viewer, names_others};
pub use right::{Peer, Right, is_root, may, needs, refusal};
pub use status::{
    CapStatus, DaemonStatus, FaultStatus, GpuStatus, HiddenStatus, IsolationStatus, JobStatus,
    PeerStatus, ProcessStatus, Status,
};
