//! What the loop is told, made of what each thread tells.

use std::sync::mpsc::SyncSender;

use gpuos_core::health::Event;
use gpuos_core::job::JobId;
use gpuos_core::limits::{self, MpsEvent};
use gpuos_core::wire::{Happening, Peer, Reply, Request};
use gpuos_model::gpu_index::NvmlIndex;

use crate::blocking::{self, Answer};
use crate::gpus::{self, GpuIdentity};
use crate::peers::Report;
use crate::queue::Task;
use crate::{host, isolation, memory, mig, socket_handler};

/// What the loop is told.
#[derive(Debug)]
pub enum Message {
    /// The library was opened, or why not.
    Library(Result<Vec<GpuIdentity>, String>),
    /// A round of polls has come to its end.
    Polled,
    /// Something for the rules.
    Health(Event),
    /// A client asks.
    Asked {
        /// Who.
        peer: Peer,
        /// What.
        request: Request,
        /// Where the answer goes.
        reply: SyncSender<Reply>,
    },
    /// A client watches.
    Watch(Peer, SyncSender<Happening>),
    /// The daemon of the workload manager has told what it has by itself; whether GPUs have other numbers now.
    Told(bool),
    /// Which user the controller of the workload manager runs as, by its word.
    WorkloadUser(u32),
    /// A task came to its end.
    Workload(Task, Answer),
    /// Something of the host beside its GPUs.
    Host(host::Notice),
    /// Something about power limits and clocks.
    Limits(limits::Event),
    /// Something about MPS.
    Mps(MpsEvent),
    /// Something about MIG instances, with NVML's index of the GPU.
    Mig(NvmlIndex, mig::Notice),
    /// The disk knows that a job could not get its MIG instances.
    MigCounted(JobId),
    /// A program with memory in tiers.
    Memory(memory::Notice),
    /// The disk has the journal of memory in tiers of this revision, or cannot write it.
    MemorySaved(u64),
    /// Of the other nodes of jobs.
    Peers(Report),
    /// Who is on the GPUs.
    Isolation(isolation::Notice),
    /// Read gpuos.toml again.
    Reload,
    /// End.
    End,
}

impl From<Event> for Message {
    fn from(event: Event) -> Message {
        Message::Health(event)
    }
}

impl From<limits::Event> for Message {
    fn from(event: limits::Event) -> Message {
        Message::Limits(event)
    }
}

impl From<MpsEvent> for Message {
    fn from(event: MpsEvent) -> Message {
        Message::Mps(event)
    }
}

impl From<(NvmlIndex, mig::Notice)> for Message {
    fn from((gpu, told): (NvmlIndex, mig::Notice)) -> Message {
        Message::Mig(gpu, told)
    }
}

impl From<host::Notice> for Message {
    fn from(told: host::Notice) -> Message {
        Message::Host(told)
    }
}

impl From<isolation::Notice> for Message {
    fn from(told: isolation::Notice) -> Message {
        Message::Isolation(told)
    }
}

impl From<memory::Notice> for Message {
    fn from(told: memory::Notice) -> Message {
        Message::Memory(told)
    }
}

impl From<Report> for Message {
    fn from(report: Report) -> Message {
        Message::Peers(report)
    }
}

impl From<blocking::Notice> for Message {
    fn from(told: blocking::Notice) -> Message {
        match told {
            blocking::Notice::Answer(task, answer) => Message::Workload(task, answer),
            blocking::Notice::WorkloadUser(uid) => Message::WorkloadUser(uid),
        }
    }
}

impl From<gpus::Notice> for Message {
    fn from(told: gpus::Notice) -> Message {
        match told {
            gpus::Notice::Library(told) => Message::Library(told),
            gpus::Notice::Polled => Message::Polled,
            gpus::Notice::Health(event) => Message::Health(event),
            gpus::Notice::Hardware(found) => Message::Host(host::Notice::Hardware(found)),
            gpus::Notice::Divided(gpu) => Message::Mig(gpu, mig::Notice::Changed),
        }
    }
}

impl From<socket_handler::Notice> for Message {
    fn from(told: socket_handler::Notice) -> Message {
        match told {
            socket_handler::Notice::Asked {
                peer,
                request,
                reply,
            } => Message::Asked {
                peer,
                request,
                reply,
            },
            socket_handler::Notice::Watch(peer, watcher) => Message::Watch(peer, watcher),
            socket_handler::Notice::Told(renumbered) => Message::Told(renumbered),
        }
    }
}
